"""A job for one process or for several under torchrun: trains, fine-tunes, prunes, and writes down what came out."""

import sys

import numpy as np
import torch
from torch import nn

from equipoise.data import Cohort, split
from equipoise.methods import Label
from equipoise.methods.pruning import most_influential
from equipoise.models import Repairable, Training, ranks, train
from equipoise.studies import phantom
from support.goals import paper_goal
from support.published import debias


def network() -> nn.Module:
    """Convolutions, batch norm and a skip. No bias before the batch norm: its gradient would be rounding, which Adam turns into steps."""

    class Small(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Conv2d(1, 4, 3, stride=2, padding=1)
            self.second = nn.Conv2d(4, 4, 3, padding=1, bias=False)
            self.norm = nn.BatchNorm2d(4)
            self.out = nn.Linear(4, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = torch.relu(self.first(x))
            h = torch.relu(self.norm(h + self.second(h)))
            found: torch.Tensor = self.out(h.mean((2, 3)))
            return found

    torch.manual_seed(7)
    return Small()


def main(path: str) -> None:
    ranks.join_processes()
    torch.set_num_threads(1)
    whole = phantom(n=203, size=16, seed=3)
    cohort = Cohort(whole.inputs[:], whole.y, whole.attributes, whole.patients, name="phantom")
    parts = split(cohort, seed=0, fractions=(0.5, 0.25, 0.25))
    settings = Training(epochs=3, batch=25, learning_rate=3e-3, patience=3, optimiser="adamw", schedule="step", augment=True)
    model = train(parts.train, parts.valid, seed=0, model=network(), settings=settings)

    labels = Label.of(parts.valid, paper_goal("eod"))
    replica = Repairable(model, parts.valid.inputs)
    replica.units("first")
    scores = replica.evaluate()
    weights = labels.functional(scores >= labels.evaluate(scores).threshold)[1]
    seen, influence = replica.influence(weights)
    rows = torch.arange(len(parts.valid))
    replica.optimiser("adam", 1e-4)
    replica.proxy_gradient(rows, torch.from_numpy(weights).float())
    gradient = torch.cat([p.grad.reshape(-1) for p in replica.model.parameters() if p.grad is not None])

    replica.prune(most_influential(influence, torch.zeros_like(influence, dtype=torch.bool), 40))
    without = replica.evaluate()
    tuned = debias(
        model, parts.valid, method="bias-gda", measure="eod", min_performance=0.0, learning_rate=1e-3, epochs=2, batch=16, stop_below=0.0
    )
    pruned = debias(
        model, parts.valid, method="pruning", measure="eod", min_performance=0.0, units=40, layers="first", max_steps=3, stop_below=0.0
    )
    if ranks.rank() == 0:
        weights_of = lambda net: torch.cat([p.detach().reshape(-1) for p in net.parameters()]).numpy()  # noqa: E731
        np.savez(
            path,
            trained=weights_of(model),
            statistics=torch.cat([b.reshape(-1).double() for b in model.buffers()]).numpy(),
            scores=scores,
            seen=seen,
            influence=influence.numpy(),
            gradient=gradient.numpy(),
            tuned=weights_of(tuned.model),
            tuned_gaps=tuned.trace["gap"],
            without=without,
            pruned_gaps=pruned.trace["gap"],
            processes=ranks.size(),
        )


if __name__ == "__main__":
    main(sys.argv[1])
