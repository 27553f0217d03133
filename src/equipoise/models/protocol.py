"""The interface between methods and networks under repair: R networks at once, each with its own rows.

Arrays have a leading axis of replicates. `replicated` implements it for equal MLPs, `single` for any one module.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from equipoise.data import BoolArray as BoolArray
from equipoise.data import FloatArray as FloatArray

Slope = Callable[..., Tensor]  # logits (R, b) and further values of their rows, each (R, b) -> derivatives (R, b)


class Optimiser(Protocol):
    """Takes a step along the accumulated gradients and clears them."""

    def step(self) -> None: ...

    def stop(self, replicates: BoolArray) -> None:
        """Freezes these replicates."""

    def set_rates(self, rates: FloatArray) -> None:
        """Sets the learning rate of each replicate (R,); stopped replicates remain stopped."""

    def mark(self, replicates: BoolArray) -> None:
        """Copies the moments of some replicates, for `restore`."""

    def restore(self, replicates: BoolArray) -> None:
        """Restores the moments of some replicates from their last mark."""


class Replicas(Protocol):
    """Networks under repair. Implementations derive from it, since it also defines the methods that they share."""

    size: int
    rows: int
    frozen: tuple[int, int]  # numbers of parameter tensors: frozen ones (requires_grad=False), and all
    reduced: bool  # whether scores during the repair have a lower precision than those of the repaired network
    _optimisers: list[Optimiser]
    _frozen: BoolArray  # (R,) replicates that no longer change

    def batches(self, generators: Sequence[np.random.Generator], batch: int, least: int = 1) -> Iterator[Tensor]:
        """All rows once, shuffled by the generators, one per replicate, as indices (R, b) of at most `batch` rows.

        A last batch of fewer than `least` rows of input is omitted.
        """
        return shuffled(self.rows, generators, batch, least)

    def scores_and_features(self, index: Tensor, *, generators: Sequence[np.random.Generator] | None = None) -> tuple[Tensor, Tensor]:
        """Scores (R, b) and features (R, b, k) of the rows index (R, b), with a graph.

        In eval mode; with generators, in training mode with dropout from them.
        """

    def fixed_scores_and_features(self) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
        """As `scores_and_features` in eval mode, without a graph; valid as long as the networks do not change."""

    def evaluate(self, inputs: Sequence[Tensor] | None = None) -> FloatArray:
        """The scores (R, rows) of all rows in eval mode; or of other inputs, one tensor per replicate."""

    def proxy_gradient(self, index: Tensor, weights: Tensor, *, generators: Sequence[np.random.Generator] | None = None) -> None:
        """Sets the gradient to that of the sum of weights (R, b) times scores of the rows index (R, b), in eval mode.

        With generators, in training mode with dropout from them: batch norm then normalises by all rows of index, including those with
        weight zero, and its running statistics are updated.
        """

    def logit_gradient(self, index: Tensor, slope: Slope, *values: Tensor) -> None:
        """Sets the gradient to that of a loss with derivative `slope(logits, *values)` with respect to the logits (R, b), in eval mode.

        The values are (R, b), one per row. `slope` must be the same function at every step, treat rows independently, and be zero where
        all values are: rows are divided among processes, and padded with zeros to shapes that have been recorded.
        """

    def adversarial_gradient(self, loss: Tensor, adversary_loss: Tensor, adversary: Sequence[Tensor], weight: float) -> None:
        """Sets the gradient to that of `loss`, minus its projection on that of `adversary_loss`, minus `weight` times the latter.

        Both losses are sums over replicates. The adversary's parameters get the gradient of `adversary_loss`.
        """

    def optimiser(self, name: str, rate: float) -> Optimiser:
        """An optimiser: adam, adamw (single networks only), blockwise (see optimisers) or sgd."""
        optimiser = self._make_optimiser(name, rate)
        optimiser.stop(self._frozen)
        self._optimisers.append(optimiser)
        return optimiser

    def _make_optimiser(self, name: str, rate: float) -> Optimiser: ...

    def freeze(self, replicates: BoolArray) -> None:
        """Stops every optimiser for these networks."""
        self._frozen = replicates
        for optimiser in self._optimisers:
            optimiser.stop(replicates)

    def mark(self, replicates: BoolArray) -> None:
        """Copies the present state of some replicates, with the moments of their optimisers, for `restore`."""
        self._mark(replicates)
        for optimiser in self._optimisers:
            optimiser.mark(replicates)

    def restore(self, replicates: BoolArray) -> None:
        """Restores some replicates, with the moments of their optimisers, from their last mark."""
        self._restore(replicates)
        for optimiser in self._optimisers:
            optimiser.restore(replicates)

    def _mark(self, replicates: BoolArray) -> None: ...

    def _restore(self, replicates: BoolArray) -> None: ...

    def keep(self, replicates: BoolArray) -> None:
        """Copies the present state of some replicates, for `kept`."""

    def kept(self) -> list[nn.Module]:
        """The networks in the state of the last `keep`."""

    def units(self, pattern: str | Sequence[str], granularity: str = "unit") -> int:
        """The number of units per network in the layers that match; selects these layers for `influence` and `prune`.

        Units by granularity: unit, channel (of convolutions), input (columns of the table) or head (of attention).
        """

    def influence(self, weights: FloatArray, criterion: str = "gradient") -> tuple[FloatArray, Tensor]:
        """The scores (R, rows), and equation (5): the mean gradient of sum_i w_i f_i with respect to every unit (R, units).

        `criterion` selects another measure of the units' influence on that sum (see units).
        """

    def prune(self, units: Tensor, outgoing: bool = False) -> None:
        """Switches off the marked units (R, units): their pre-activation, or their outgoing weights if the next layer is known."""

    def perturb(self, generators: Sequence[np.random.Generator], spread: float) -> None:
        """Multiplies every original parameter by a draw from N(1, spread^2)."""


def shuffled(rows: int, generators: Sequence[np.random.Generator], batch: int, least: int = 1) -> Iterator[Tensor]:
    """The positions of all rows, shuffled by each generator, as indices (R, b); without a last batch of fewer than `least`."""
    order = torch.from_numpy(np.stack([g.permutation(rows) for g in generators]))
    yield from (index for index in order.split(batch, dim=1) if index.shape[1] >= least)


def adversarial_gradients(
    loss: Tensor, adversary_loss: Tensor, parameters: Sequence[Tensor], adversary: Sequence[Tensor]
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """The gradients of the two losses with respect to the network's parameters; sets those of the adversary's parameters."""
    of_adversary = torch.autograd.grad(adversary_loss, [*parameters, *adversary], retain_graph=True)
    of_network = torch.autograd.grad(loss, parameters)
    for p, gradient in zip(adversary, of_adversary[len(parameters) :], strict=True):
        p.grad = gradient
    return of_network, of_adversary[: len(parameters)]
