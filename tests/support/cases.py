"""Small cases for the tests of reports and cards: simulated scores and repairs, no training."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import wraps
from inspect import signature
from typing import Any

import numpy as np
import pandas as pd
from torch import nn

from equipoise.comparison import Comparison, Provenance, ScoredCandidate
from equipoise.data import Attribute, Scores
from equipoise.measures import AuditSpec, Threshold, sweep
from equipoise.methods import Goal, LabelCandidate, Note, equalised_odds, reject_option, select
from equipoise.models import AUROC_LABELS
from equipoise.models.features import ENCODING_COLUMNS
from support.goals import paper_goal

HOSTILE_COLUMN = "<script>alert('column')</script>"
HOSTILE = (
    "<script>alert(1)</script>",
    "</script><img src=x onerror=alert(2)>",
    "\"quotes\" & 'more' {{ 7 * 7 }} {% raw %}",
    "M" * 10_000,
    "\u202eright to left\u202c مجموعة",
)
HOSTILE_NOTE = "<b onmouseover=alert(3)>note</b> </script> \u202eover"
GOAL = paper_goal("eod", "balanced_accuracy", min_performance=0.74)
FITTED = {"reject-option": reject_option.reject_option, "equalised-odds": equalised_odds.equalised_odds}


def once(made: Callable[..., Comparison]) -> Callable[..., Comparison]:
    """The same function, called once for the same options, whether these are given or the default."""
    kept: dict[str, Comparison] = {}
    given = {name: parameter.default for name, parameter in signature(made).parameters.items()}

    @wraps(made)
    def get(**options: Any) -> Comparison:
        key = repr(given | options)
        if key not in kept:
            kept[key] = made(**options)
        return kept[key]

    return get


@once
def small_case(
    *,
    groups: Sequence[str] = ("M", "F"),
    shares: Sequence[float] | None = None,
    column: str = "sex",
    second: bool = False,
    rows: int = 600,
    methods: Sequence[str] = ("bias-gda", "pruning", "reject-option", "equalised-odds"),
    chosen: int = 0,
    goal: Goal = GOAL,
    steps: int | Sequence[int] = 12,
    missing: float = 0.0,
    patients: bool = True,
    pictures: bool = False,
    hostile: bool = False,
    cure: float = 1.0,
    harm: float = 0.0,
    seed: int = 0,
) -> Comparison:
    """A network that misses the positives of every group but the first, and its repairs.

    `second` adds a column `age`; `hostile` gives names that no page may run; `cure` is how much of the shift a repair takes back, and
    `harm` what it costs the reference (1: levelling down). `rows` is the size of the validation part and of the test part. The same
    options give the same object, so that its audits are made once.
    """
    if hostile:
        column, groups = HOSTILE_COLUMN, HOSTILE
    rng = np.random.default_rng(seed)
    valid, test = (_Part(name, rng, rows, column, groups, shares, second, missing, patients, hostile) for name in ("validation", "test"))
    original = _original(valid, test, goal, seed)
    lengths = [steps] * len(methods) if isinstance(steps, int) else list(steps)
    repairs = []
    for k, (method, length) in enumerate(zip(methods, lengths, strict=True)):
        if method in FITTED:
            repair = _post_processed(method, valid, test, goal, seed)
        else:
            repair = _tuned(method, valid, test, goal, length, cure * (1 - 0.15 * k), harm, seed + k, hostile)
        if pictures and method == "pruning":
            repair = replace(repair, units=_maps(rng))
        repairs.append(repair)
    images = rng.integers(0, 256, (len(test.scores(0)), 16, 16), dtype=np.uint8) if pictures else ()
    return Comparison(
        title="Pneumonia, simulated" if not hostile else HOSTILE[0],
        label="pneumonia" if not hostile else HOSTILE[2],
        classifiers=(original, *repairs),
        chosen=chosen,
        settings=AuditSpec(seed=seed),
        provenance=Provenance(
            command="equipoise debias local.csv --label pneumonia --group sex --reference M --method bias-gda --method pruning "
            "goal.min_performance=0.74",
            model="my_model.py:build",
            seed=seed,
            when="2026-03-02T10:15:00+00:00",
            versions={"equipoise": "0.1.0", "torch": "2.6.0", "python": "3.11"},
            hashes={"local.csv": "9f" * 32, HOSTILE[1] if hostile else "net.safetensors": "3c" * 32},
            limits=["12 rows were left out: no label", *((HOSTILE_NOTE,) if hostile else ())],
        ),
        thumbnails=dict(zip(test.ids, images, strict=False)),
    )


class _Part:
    """The patients of one part: labels, groups, a latent logit, and what the network takes from it."""

    def __init__(
        self,
        name: str,
        rng: np.random.Generator,
        rows: int,
        column: str,
        groups: Sequence[str],
        shares: Sequence[float] | None,
        second: bool,
        missing: float,
        patients: bool,
        hostile: bool,
    ) -> None:
        p = np.full(len(groups), 1 / len(groups)) if shares is None else np.asarray(shares) / np.sum(shares)
        codes = rng.choice(len(groups), rows, p=p)
        self.y = (rng.random(rows) < 0.35).astype(np.int64)
        self.logit = rng.normal(np.where(self.y == 1, 1.1, -1.1), 1.0)
        self.bias = np.where((codes > 0) & (self.y == 1), 0.9, 0.0) + np.where(codes > 0, 0.3, 0.0)
        self.noise = rng.normal(0, 1, rows)
        self.favoured = (codes == 0) & (self.y == 1)
        held = np.where(rng.random(rows) < missing, -1, codes)
        self.attributes: tuple[Attribute, ...] = (Attribute(column, tuple(groups), held.astype(np.int64)),)
        if second:
            self.attributes += (Attribute("age", ("under 60", "60 and over"), rng.integers(0, 2, rows)),)
        width = rows * 3 // 4
        numbers = np.concatenate([np.arange(width), rng.integers(0, width, rows - width)])
        self.patients = np.array([f"{name[0]}{k:04d}" for k in numbers], dtype=object) if patients else None
        self.ids = np.array([f"{name[0]}-{'<img src=x>' if hostile else ''}{k:05d}" for k in range(rows)], dtype=object)
        self.name = f"{name} part of local.csv"

    def scores(self, undone: float, noise: float = 0.0, harm: float = 0.0) -> Scores:
        """The scores of a network from which `undone` of the bias was taken."""
        logit = self.logit - (1 - undone) * self.bias + noise * self.noise - harm * 0.9 * self.favoured
        score = 1 / (1 + np.exp(-logit))
        return Scores(self.y, score, self.attributes, self.patients, self.ids, self.name)


def _look(scores: Scores, goal: Goal) -> tuple[float, float, float]:
    attribute = scores.attribute
    choice = sweep(scores.score, scores.y, attribute, (goal.measure, goal.performance)).best(goal.performance)
    return float(choice.values[goal.measure]), float(choice.values[goal.performance]), float(choice.threshold)


def _frame(rows: list[tuple[int, float, float, float]]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["step", "gap", "performance", "threshold"])


def _original(valid: _Part, test: _Part, goal: Goal, seed: int) -> ScoredCandidate:
    gap, performance, threshold = _look(valid.scores(0), goal)
    settled = goal.settled(performance)
    trace = _frame([(0, gap, performance, threshold)])
    rule = Threshold(threshold, "chosen by standard on the validation part")
    found = LabelCandidate("standard", nn.Linear(2, 1), rule, trace, 0, (Note("original"),), select(trace, settled).met, settled, seed)
    return ScoredCandidate(found, valid.scores(0), test.scores(0), 0.4)


def _tuned(
    method: str, valid: _Part, test: _Part, goal: Goal, steps: int, cure: float, harm: float, seed: int, hostile: bool
) -> ScoredCandidate:
    """A repair that undoes the bias step by step, beyond what is good, with noise that grows."""
    rng = np.random.default_rng(seed)
    path = [
        (1.6 * cure * k / steps, 1.5 * (k / steps) ** 1.5 + (0.1 * rng.random() if k else 0.0), harm * k / steps) for k in range(steps + 1)
    ]
    trace = _frame([(k, *_look(valid.scores(*state), goal)) for k, state in enumerate(path)])
    settled = goal.settled(float(trace["performance"].iloc[0]))
    picked = select(trace, settled)
    rule = Threshold(float(trace["threshold"].iloc[picked.row]), f"chosen by {method} on the validation part")
    notes = (Note("original_kept") if not hostile else Note(HOSTILE_NOTE),)
    settings = {"learning_rate": 1e-5, "epochs": steps}
    found = LabelCandidate(method, nn.Linear(2, 1), rule, trace, picked.row, picked.why, picked.met, settled, seed, settings, notes)
    state = path[picked.row]
    return ScoredCandidate(found, valid.scores(*state), test.scores(*state), 12.5)


def _post_processed(method: str, valid: _Part, test: _Part, goal: Goal, seed: int) -> ScoredCandidate:
    """The same scores with a rule of their own."""
    fitted = FITTED[method](valid.scores(0), goal)
    row = getattr(fitted, "chosen", 1)
    notes = (Note("needs_group"),)
    found = LabelCandidate(
        method, nn.Linear(2, 1), fitted.rule, fitted.trace, row, fitted.why, fitted.met, fitted.goal, seed, {"max_gap": 0.05}, notes
    )
    return ScoredCandidate(found, valid.scores(0), test.scores(0), 2.0)


def some_probes(
    attribute: str = "sex", layers: Sequence[str] = ("inputs", "2", "output"), after: Sequence[str] | None = None
) -> dict[str, pd.DataFrame]:
    """Readings that are easy to tell apart: 0.6 among everybody before, 0.5 after, and a step up with the depth."""

    def frame(names: Sequence[str], start: float) -> pd.DataFrame:
        rows = []
        for depth, layer in enumerate(names):
            found = {}
            for k, name in enumerate(AUROC_LABELS):
                value = start + 0.04 * depth + 0.1 * k
                found |= {name: value, f"{name}_low": value - 0.02, f"{name}_high": value + 0.02}
            rows.append({"attribute": attribute, "layer": layer, "depth": depth, "width": 2 + depth, **found, "chance": 0.5, "note": ""})
        return pd.DataFrame(rows, columns=ENCODING_COLUMNS)

    return {"before": frame(layers, 0.6), "after": frame(after or layers, 0.5)}


def _maps(rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {f"layer{k}.conv": np.clip(rng.normal(0.8, 0.2, (8 * k, 8 * k)), 0, 1) for k in (1, 2)}
