"""What our departures from the published code change: the same networks, once our way, once theirs.

Usage: EQUIPOISE_DATA=... python benchmarks/departures.py [splits] [data ...]
"""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

import equipoise as eq
from equipoise.data.seeds import generator
from equipoise.measures.cells import tabulate
from equipoise.measures.functional import gap_values, performance_functional
from equipoise.methods import pruning
from equipoise.methods.registry import run_many
from equipoise.models import train
from equipoise.models.score import predict
from equipoise.models.stack import Snapshot
from equipoise.models.stacked import StackedReplicas
from equipoise.study.paper import BIAS_GDA_FLOORS, PRUNING_FLOORS

MEASURES = ("spd", "eod")


@contextmanager
def reselecting() -> Iterator[None]:
    """Pruned units may be chosen again, as in the published code."""
    ours = pruning.most_influential

    def theirs(influence, pruned, count):  # type: ignore[no-untyped-def]
        return ours(influence, pruned & False, count)

    pruning.most_influential = theirs
    try:
        yield
    finally:
        pruning.most_influential = ours


@contextmanager
def training_mode(splits: int) -> Iterator[None]:
    """Fine-tuning with dropout and batch statistics on, as in the published code; running statistics then drift too."""
    ours = StackedReplicas.tilt
    dropouts = [generator(k, "published dropout") for k in range(splits)]

    def theirs(self: StackedReplicas, index: torch.Tensor, weights: torch.Tensor) -> None:
        def slope(logits: torch.Tensor) -> torch.Tensor:
            f = torch.sigmoid(logits)
            return weights * f * (1 - f)

        masks = self.stack.masks(index.shape[1], dropouts)
        self.stack.fill_gradient(self._take(index), slope, masks=masks, training=True)

    StackedReplicas.tilt = theirs  # type: ignore[method-assign]
    try:
        yield
    finally:
        StackedReplicas.tilt = ours  # type: ignore[method-assign]


def last_weights(parts: Sequence[eq.Parts]) -> list[torch.nn.Module]:
    """Networks as the published training leaves them: the weights 110 epochs after the best, not the best."""
    ours = train._StackedRun._leave

    def theirs(self: train._StackedRun, stopped: torch.Tensor) -> None:
        self.best = Snapshot.of(self.stack)
        ours(self, stopped)

    train._StackedRun._leave = theirs  # type: ignore[method-assign]
    try:
        return list(train.train_stack([(p.train, p.valid, k) for k, p in enumerate(parts)], settings=eq.Training(patience=110)))
    finally:
        train._StackedRun._leave = ours  # type: ignore[method-assign]


def report(name: str, variant: str, candidates: Sequence[eq.Candidate], parts: Sequence[eq.Parts], measure: str) -> None:
    rows = []
    for candidate, part in zip(candidates, parts, strict=True):
        scores = predict(candidate.model, part.test)
        cells = tabulate(candidate.rule.decide(scores), scores.y, scores.attribute)
        rows.append(
            (gap_values(measure, cells)[0], float(performance_functional("balanced_accuracy", cells.n)(cells)), len(candidate.trace))
        )
    gap, performance, steps = np.array(rows).T
    print(
        f"| {name} | {measure} | {variant} | {gap.mean():+.3f} ({gap.std(ddof=1):.3f}) | {np.abs(gap).mean():.3f} "
        f"| {performance.mean():.3f} ({performance.std(ddof=1):.3f}) | {steps.mean():.0f} |",
        flush=True,
    )


def main() -> None:
    torch.set_num_threads(1)
    splits = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    print("| data | measure | variant | bias (sd) | mean absolute bias | BA (sd) | steps |\n|---|---|---|---|---|---|---|")
    for name in sys.argv[2:] or ("compas", "bank", "adult"):
        parts = [eq.split(eq.load(name), seed=seed) for seed in range(splits)]
        networks = {
            "best weights": list(train.train_stack([(p.train, p.valid, seed) for seed, p in enumerate(parts)])),
            "last weights (published)": last_weights(parts),
        }
        variants = (
            ("standard", "", nullcontext, {}),
            ("pruning", "", nullcontext, {"units": 1}),
            ("pruning", ", units may be chosen again (published)", reselecting, {"units": 1}),
            ("bias-gda", "", nullcontext, {}),
            ("bias-gda", ", train mode (published)", lambda: training_mode(splits), {}),
        )
        for measure in MEASURES:
            for weights, models in networks.items():
                for method, change, context, settings in variants:
                    floors = {"pruning": PRUNING_FLOORS, "bias-gda": BIAS_GDA_FLOORS}.get(method)
                    goal = eq.Goal(measure, floor=floors[name][measure] if floors else None)
                    with context():
                        found = run_many(method, models, [p.valid for p in parts], goal, seeds=range(splits), settings=settings)
                    report(name, f"{method}{change}; {weights}", found, parts, measure)


if __name__ == "__main__":
    main()
