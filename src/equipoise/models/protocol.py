"""What methods may do to networks under repair: R of them at once, each with its own rows, behind one face.

Methods are written once, for arrays with a leading axis of replicates. `stacked` does it for equal MLPs, `single` for any one module.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
Slope = Callable[..., Tensor]  # logits (R, b) and what else is known of their rows, each (R, b): derivatives (R, b)


class Optimiser(Protocol):
    """Steps down the gradients that have gathered, and clears them."""

    def step(self) -> None: ...

    def stop(self, replicates: BoolArray) -> None:
        """These replicates change no more."""
        ...


class Replicas(Protocol):
    """What methods may do to networks."""

    size: int
    rows: int
    notes: tuple[str, ...]
    reduced: bool  # scores on the way have a lower precision than those of the network that comes out

    def batches(self, generators: Sequence[np.random.Generator], batch: int, least: int = 1) -> Iterator[Tensor]:
        """All rows once in the order of the generators, one per replicate, as indices (R, b) of at most `batch` rows.

        A last batch of fewer than `least` rows of input is left out.
        """
        ...

    def soft(self, index: Tensor, *, generators: Sequence[np.random.Generator] | None = None) -> tuple[Tensor, Tensor]:
        """Scores (R, b) and features (R, b, k) of the rows index (R, b), with a graph.

        In eval mode; in training mode, with dropout from the generators, if there are any.
        """
        ...

    def still(self) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
        """As `soft` in eval mode, without a graph, for networks that stay as they are as long as it is used."""
        ...

    def evaluate(self, inputs: Sequence[Tensor] | None = None) -> FloatArray:
        """The scores (R, rows) of all rows in eval mode; of other inputs, one tensor a replicate, if they are given."""
        ...

    def tilt(self, index: Tensor, weights: Tensor, *, generators: Sequence[np.random.Generator] | None = None) -> None:
        """Leaves the gradient of the sum of weights (R, b) times scores of the rows index (R, b), in eval mode.

        In training mode, with dropout from the generators, if there are any: batch norm then normalises by all rows of index, with weight
        or without, and its running statistics move.
        """
        ...

    def push(self, index: Tensor, slope: Slope, *given: Tensor) -> None:
        """Leaves the gradient of a loss whose derivative by the logits (R, b) of the rows index is `slope(logits, *given)`, in eval mode.

        `given` (R, b) belongs to the rows as `index` does. `slope` is the same function at every step, takes each row for itself, and is
        zero where all that is given is: rows are shared out among processes, and filled up, with zeros, to shapes that were met before.
        """
        ...

    def oppose(self, own: Tensor, theirs: Tensor, adversary: Sequence[Tensor], weight: float) -> None:
        """Leaves the gradient of `own` less its projection on that of `theirs` less `weight` times that of `theirs`.

        `own` and `theirs` are sums over replicates of losses. The adversary's parameters get the gradient of `theirs`.
        """
        ...

    def optimiser(self, name: str, rate: float) -> Optimiser:
        """One that steps down the gradients: adam, adamw (of single networks), blockwise (see there) or sgd."""
        ...

    def keep(self, replicates: BoolArray) -> None:
        """Copies the present state of some replicates, to be taken by `kept`."""
        ...

    def kept(self) -> list[nn.Module]:
        """The networks as they were last kept."""
        ...

    def units(self, pattern: str | Sequence[str], granularity: str = "unit") -> int:
        """Makes the units of the layers that match ready for pruning, and says how many there are a network.

        Or its whole channels, columns of the input, or heads of attention: granularity unit, channel, input or head.
        """
        ...

    def influence(self, weights: FloatArray, criterion: str = "gradient") -> tuple[FloatArray, Tensor]:
        """The scores (R, rows), and equation (5): the mean gradient of sum_i w_i f_i with respect to every unit (R, units).

        Or another criterion of what units have to do with that sum (see units).
        """
        ...

    def prune(self, units: Tensor, outgoing: bool = False) -> None:
        """Switches off the marked units (R, units): their pre-activation, or their outgoing weights where the next layer is known."""
        ...

    def perturb(self, generators: Sequence[np.random.Generator], spread: float) -> None:
        """Multiplies every original parameter by a draw from N(1, spread^2)."""
        ...


def shuffled(rows: int, generators: Sequence[np.random.Generator], batch: int, least: int = 1) -> Iterator[Tensor]:
    """The numbers of all rows, shuffled by each generator, as indices (R, b); without a last batch of fewer than `least`."""
    order = torch.from_numpy(np.stack([g.permutation(rows) for g in generators]))
    yield from (index for index in order.split(batch, dim=1) if index.shape[1] >= least)
