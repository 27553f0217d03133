"""Training from scratch by other losses: baselines of recent years, with the architecture of the original network.

They share the loop over mini-batches of cross-entropy with Adam, and differ in what a few lines say: `resampling` draws every cell of group
and label equally often; `group-dro` (Sagawa et al. 2020) weights cells by exponentiated losses, so that the worst counts most; `min-diff`
(Prost et al. 2019) adds the maximum mean discrepancy between the scores of groups, among the rows that the measure is about;
`just-train-twice` (Liu et al. 2021) trains again with the rows that a first, shorter training got wrong drawn more often, and needs no
group; `weight-averaging` (Izmailov et al. 2018) averages the network over epochs. After every epoch the constrained objective (best
performance with |gap| within the maximum gap less a margin) is evaluated on the repair set, and the best epoch is kept; the papers choose
the epoch by the worst group's accuracy on validation data, or take the last.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from equipoise.data import FloatArray, IntArray
from equipoise.errors import BadInput, pick
from equipoise.measures import measure_of
from equipoise.methods.baselines import fresh, training_cost
from equipoise.methods.contract import Rng, Step, Steps, method, within_gap
from equipoise.methods.evaluation import Data, Label, single_precision
from equipoise.methods.goal import Goal

if TYPE_CHECKING:
    from torch import Tensor

    from equipoise.models import Repairable

Loss = Callable[["Tensor", "Tensor", "Tensor"], "Tensor"]  # of the losses (b,), scores (b,) and rows (b,) of a mini-batch
SAGAWA = """@inproceedings{sagawa2020distributionally,
  title     = {Distributionally Robust Neural Networks},
  author    = {Sagawa, Shiori and Koh, Pang Wei and Hashimoto, Tatsunori B. and Liang, Percy},
  booktitle = {International Conference on Learning Representations},
  year      = {2020}
}"""
PROST = """@article{prost2019toward,
  title   = {Toward a Better Trade-off between Performance and Fairness with Kernel-based Distribution Matching},
  author  = {Prost, Flavien and Qian, Hai and Chen, Qiuwen and Chi, Ed H. and Chen, Jilin and Beutel, Alex},
  journal = {arXiv preprint arXiv:1910.11779},
  year    = {2019}
}"""
LIU = """@inproceedings{liu2021just,
  title     = {Just Train Twice: Improving Group Robustness without Training Group Information},
  author    = {Liu, Evan Z. and Haghgoo, Behzad and Chen, Annie S. and Raghunathan, Aditi and Koh, Pang Wei and Sagawa, Shiori and
               Liang, Percy and Finn, Chelsea},
  booktitle = {International Conference on Machine Learning},
  year      = {2021}
}"""
IZMAILOV = """@inproceedings{izmailov2018averaging,
  title     = {Averaging Weights Leads to Wider Optima and Better Generalization},
  author    = {Izmailov, Pavel and Podoprikhin, Dmitrii and Garipov, Timur and Vetrov, Dmitry and Wilson, Andrew Gordon},
  booktitle = {Uncertainty in Artificial Intelligence},
  year      = {2018}
}"""


@dataclass(frozen=True)
class InProcessingSettings:
    """`strength` is the step size of the weights of group-dro, the weight of min-diff, and how often just-train-twice repeats a mistake."""

    learning_rate: float = 1e-3
    epochs: int = 30
    batch: int = 128
    strength: float | None = None  # the paper's: 0.01 for group-dro, 1 for min-diff, 5 for just-train-twice; the others have none
    max_gap: float = 0.05
    margin: float = 0.01
    optimiser: str = "adam"  # or adamw, for networks other than the paper's MLP

    def __post_init__(self) -> None:
        from equipoise.models import Repairable

        pick("optimiser", self.optimiser, Repairable.optimisers)
        if self.strength is not None and self.strength <= 0:
            raise BadInput(f"strength must be positive; got {self.strength}")


def in_processing(name: str, title: str, paper: str, **about: Any) -> Callable[[Callable[..., Steps]], Callable[..., Steps]]:
    """A decorator that registers one of these methods, with what all of them share."""
    common: dict[str, Any] = {"within": within_gap, "start": fresh, "needs_train": True, "takes_train": True, "counts": "epochs"}
    return method(name, settings=InProcessingSettings, title=title, paper=paper, cost=training_cost, effort=10.0, **common, **about)


@in_processing("resampling", "training from scratch on group-balanced mini-batches", "")
def resampling(model: Repairable, data: Data, goal: Goal, settings: InProcessingSettings, rng: Rng) -> Steps:
    """A step per epoch in which every cell of group and label is drawn equally often."""
    cells = cell_of_rows(_training(data))
    yield from train_epochs(model, data, settings, rng, often=1 / np.bincount(cells)[cells])


@in_processing("group-dro", "training from scratch for the worst group (Sagawa et al.)", SAGAWA)
def group_dro(model: Repairable, data: Data, goal: Goal, settings: InProcessingSettings, rng: Rng) -> Steps:
    """A step per epoch in which the loss of each cell counts by its weight, which grows with its loss."""
    import torch

    rate = 0.01 if settings.strength is None else settings.strength
    cells = torch.from_numpy(cell_of_rows(_training(data)))
    weights = torch.ones(int(cells.max()) + 1, dtype=torch.float64)

    def loss(losses: Tensor, _scores: Tensor, rows: Tensor) -> Tensor:
        nonlocal weights
        within = torch.nn.functional.one_hot(cells[rows], len(weights)).to(losses)
        means = losses @ within / within.sum(0).clamp(min=1.0)  # (cells,); zero for one without rows in the mini-batch
        weights = weights * (rate * means.detach().cpu().double()).exp()
        weights = weights / weights.sum()
        return (weights.to(means) * means).sum()

    yield from train_epochs(model, data, settings, rng, loss)


@in_processing("min-diff", "training from scratch with a penalty on different scores of groups (Prost et al.)", PROST, quotients=False)
def min_diff(model: Repairable, data: Data, goal: Goal, settings: InProcessingSettings, rng: Rng) -> Steps:
    """A step per epoch with the discrepancy of each group from the reference in the loss."""
    import torch

    label, weight = _training(data), 1.0 if settings.strength is None else settings.strength
    values = measure_of(label.measure).labels or (None,)
    codes, y = torch.from_numpy(label.attribute.codes), torch.from_numpy(label.y)

    def loss(losses: Tensor, scores: Tensor, rows: Tensor) -> Tensor:
        total, group, own = losses.mean(), codes[rows].to(scores.device), y[rows].to(scores.device)
        for value in values:
            of_label = torch.ones_like(own, dtype=torch.bool) if value is None else own == value
            reference = scores[of_label & (group == 0)]
            for other in range(1, len(label.attribute.levels)):
                total = total + weight * discrepancy(reference, scores[of_label & (group == other)])
        return total

    yield from train_epochs(model, data, settings, rng, loss)


@in_processing("just-train-twice", "training from scratch twice, with the first one's mistakes repeated (Liu et al.)", LIU)
def just_train_twice(model: Repairable, data: Data, goal: Goal, settings: InProcessingSettings, rng: Rng) -> Steps:
    """A step per epoch of the second training; the first has a third of the epochs, and is not evaluated."""
    label, repeats = _training(data), 5.0 if settings.strength is None else settings.strength
    model.mark()
    for epoch, _ in enumerate(train_epochs(model, data, settings, rng), start=1):
        if epoch >= max(1, settings.epochs // 3):
            break
    wrong = (model.evaluate() >= 0.5) != label.y
    model.restore()
    yield from train_epochs(model, data, settings, rng, often=np.where(wrong, repeats, 1.0))


@in_processing("weight-averaging", "training from scratch with weights averaged over epochs (Izmailov et al.)", IZMAILOV)
def weight_averaging(model: Repairable, data: Data, goal: Goal, settings: InProcessingSettings, rng: Rng) -> Steps:
    """A step per epoch: the mean of the network over the epochs so far, from a quarter of them on."""
    state, first = model.state(), max(1, settings.epochs // 4)
    means = [tensor.clone() for tensor in state]
    for step in train_epochs(model, data, settings, rng):
        if step.number < first:
            continue
        count = step.number - first + 1
        for mean, tensor in zip(means, state, strict=True):
            mean.copy_(tensor if not tensor.is_floating_point() else mean + (tensor - mean) / count)
        model.mark()
        for mean, tensor in zip(means, state, strict=True):
            tensor.copy_(mean)
        yield step
        model.restore()


def discrepancy(a: Tensor, b: Tensor, length: float = 0.1) -> Tensor:
    """The squared maximum mean discrepancy of two sets of scores, with a Gaussian kernel; zero if one is empty."""
    if not len(a) or not len(b):
        return a.sum() * 0.0

    def kernel(x: Tensor, y: Tensor) -> Tensor:
        return (-((x[:, None] - y[None]) ** 2) / (2 * length**2)).exp().mean()

    return kernel(a, a) + kernel(b, b) - 2 * kernel(a, b)


def _training(data: Data) -> Label:
    assert data.train is not None  # the methods need the training set
    return data.train.labels[0]


def cell_of_rows(label: Label) -> IntArray:
    """The cell of group and label of each row (n,), numbered without gaps; rows whose group is missing are a group of their own."""
    cells: IntArray = np.unique(2 * label.attribute.codes + label.y, return_inverse=True)[1].astype(np.int64)
    return cells


def train_epochs(
    model: Repairable, data: Data, settings: InProcessingSettings, rng: Rng, loss: Loss | None = None, often: FloatArray | None = None
) -> Steps:
    """A step per epoch of training with a loss; with `often`, rows are drawn with these relative frequencies instead of once each."""
    import torch
    from torch.nn import functional as F

    all_y, shuffle, dropout = single_precision(_training(data).y), rng("shuffle"), rng("dropout")
    optimiser = model.optimiser(settings.optimiser, settings.learning_rate)
    drawn = None if often is None else partial(shuffle.choice, model.rows, model.rows, p=often / often.sum())
    for epoch in range(1, settings.epochs + 1):
        for part in model.batches(shuffle, settings.batch, 2) if drawn is None else torch.from_numpy(drawn()).split(settings.batch):
            if len(part) < 2:  # batch norm has no variance of one row
                continue
            scores, _ = model.scores_and_features(part, generator=dropout)
            losses = F.binary_cross_entropy(scores, all_y[part].to(scores.device), reduction="none")
            (losses.mean() if loss is None else loss(losses, scores, part)).backward()
            optimiser.step()
        yield Step(epoch, (epoch, settings.epochs))
