"""Influence: attribute a gap to the units of a module, by one of CRITERIA, in one backward pass per batch.

In all of them f_i is the score of row i, w_i its weight in the gap's proxy P = sum_i w_i f_i, a_i the unit's pre-activation and g_i the
derivative of f_i with respect to it:

gradient      sum_i w_i g_i: equation (5) of the paper. How P moves if the pre-activation of every row grows by the same small amount.
taylor        sum_i w_i a_i g_i: how much P falls, to first order, if the unit is set to zero.
second-order  sum_i w_i (a_i g_i - a_i^2 h_i / 2) with h_i the second derivative of f_i: the same to second order. For f = sigmoid(z),
              h = f (1 - f) (1 - 2 f) z'^2 + f (1 - f) z'', and g = f (1 - f) z'. The second term is left out, which leaves
              h = (1 - 2 f) g^2 / (f (1 - f)). That is exact where the logit z is linear in the unit (ReLU and batch norm of fixed
              statistics, between two kinks), and ignores kinks and curved layers. Diagonal: interactions of two units are left out
              too; within a unit of many positions (a channel) they are included, since the row's derivative is along all of them.
difference    sum_i w_i a_i times the sign of sum_i |w_i| g_i: the difference of the unit's mean between the groups that the gap compares,
              with its sign reversed if the unit lowers scores overall.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from equipoise.errors import BadInput
from equipoise.models.devices import mixed_precision
from equipoise.models.score import evaluating
from equipoise.models.units import Layer, frozen

CRITERIA = ("gradient", "taylor", "difference", "second-order")
SURE = 1e-12  # smallest f (1 - f), for a score that rounds to 0 or 1; its derivatives are zero anyway


def gap_gradients(
    model: nn.Module, layers: Sequence[Layer], x: Tensor, weight: Tensor, probability: bool, criterion: str = "gradient"
) -> tuple[Tensor, Tensor]:
    """Raw outputs (rows,) of a batch, and the sums over its rows that make up a criterion (sums, units), for `settled`.

    Parameters get no gradient: the graph starts at the first of the layers. A layer's gradient is summed up during the backward pass and
    not kept; its pre-activations are copied, for this batch, if the criterion needs them. For a multi-label network, weights and raw
    outputs are (rows, outputs), and only one column of the weights is used: the gap is that of one output.
    """
    if layers[0].kind == "head":
        return _head_gradients(model, layers, x, weight, probability, criterion)
    column = int(weight.abs().sum(0).argmax()) if weight.ndim == 2 else None
    own = weight if column is None else weight[:, column]
    tally = _Tally(criterion, own.to(x.device), torch.zeros(sums(criterion), layers[-1].start + layers[-1].size, device=x.device))
    with evaluating(model), frozen(model), _tapped(model, layers, tally) as leaves, torch.enable_grad(), mixed_precision(x.device):
        raw = model(x).reshape(weight.shape).float()
        f = raw if probability else torch.sigmoid(raw)
        tally.scores = f.detach() if column is None else f.detach()[:, column]
        torch.autograd.grad((f * weight.to(f)).sum(), leaves, allow_unused=True)
    return raw.detach(), tally.total


def _head_gradients(
    model: nn.Module, layers: Sequence[Layer], x: Tensor, weight: Tensor, probability: bool, criterion: str
) -> tuple[Tensor, Tensor]:
    """As `gap_gradients`, for heads of attention: torch applies their output projection without calling it, so that no hook runs.

    A gate on a head's columns of the projection's weight has, where it is 1, the derivative sum_i w_i a_i g_i over the head's outputs;
    a number added to all the head's outputs, which is the same as one added to the bias by way of the weight, has sum_i w_i g_i.
    """
    if criterion not in ("gradient", "taylor"):
        raise BadInput(f'with granularity="head", criterion must be gradient or taylor; got {criterion!r}')
    gates, changed = [], {}
    with torch.enable_grad():
        for layer in layers:
            projection = model.get_submodule(layer.name).get_submodule("out_proj")
            w = projection.get_parameter("weight").detach()
            gate = torch.zeros(layer.size, device=w.device, dtype=w.dtype, requires_grad=True)
            spread = gate.repeat_interleave(w.shape[1] // layer.size)
            if criterion == "taylor":
                changed[f"{layer.name}.out_proj.weight"] = w * (1 + spread)
            elif projection.bias is None:
                raise BadInput(f'attention {layer.name!r} has no bias, which criterion="gradient" needs for heads; use criterion="taylor"')
            else:
                changed[f"{layer.name}.out_proj.bias"] = projection.get_parameter("bias").detach() + w @ spread
            gates.append(gate)
        with evaluating(model), frozen(model), mixed_precision(x.device):
            raw = torch.func.functional_call(model, changed, (x,)).reshape(weight.shape).float()
            f = raw if probability else torch.sigmoid(raw)
            found = torch.autograd.grad((f * weight.to(f)).sum(), gates, allow_unused=True)
    slopes = [torch.zeros_like(gate) if slope is None else slope for gate, slope in zip(gates, found, strict=True)]
    return raw.detach(), torch.cat(slopes).float()[None]


def sums(criterion: str) -> int:
    """The number of sums over rows that make up a criterion."""
    return 2 if criterion == "difference" else 1


def settled(criterion: str, total: Tensor) -> Tensor:
    """The criterion (..., units) from its sums over all rows (sums, ..., units)."""
    return total[0] * total[1].sign() if criterion == "difference" else total[0]


def row_parts(criterion: str, a: Tensor, wg: Tensor, weight: Tensor, f: Tensor) -> Tensor:
    """The contribution of each row to the sums of a criterion (sums, ..., rows, units).

    From pre-activations and weighted derivatives w_i g_i, both (..., rows, units, positions), and weights and scores (..., rows, 1).
    """
    if criterion == "difference":
        return torch.stack([weight * a.sum(-1), weight.sign() * wg.sum(-1)])
    fall = (a * wg).sum(-1)
    if criterion == "second-order":
        alone = fall / torch.where(weight == 0, 1, weight)  # without its weight; zero where the weight is zero
        fall = fall * (1 - 0.5 * (1 - 2 * f) * alone / (f * (1 - f)).clamp(min=SURE))
    return fall[None]


@dataclass
class _Tally:
    """The sums over a batch (sums, units), and what the backward pass needs about its rows."""

    criterion: str
    weight: Tensor
    total: Tensor
    scores: Tensor | None = None

    def add(self, layer: Layer, module: nn.Module, gradient: Tensor, a: Tensor | None) -> None:
        """Adds a layer's contribution from its gradient and its pre-activation, or its input if the units are columns of the input."""
        where = slice(layer.start, layer.start + layer.size)
        if a is None or self.scores is None:
            self.total[0, where] += _by_unit(gradient, module, layer)
            return
        if self.criterion == "taylor":  # needs no row axis
            self.total[0, where] += _by_unit(a.float() * gradient, module, layer)
            return
        rows = len(self.weight)
        if len(gradient) != rows:
            shape = tuple(gradient.shape)
            raise BadInput(
                f"layer {layer.name!r} gives {shape} for {rows} rows, so its rows cannot be separated, which "
                f'criterion={self.criterion!r} needs; name other layers, or use criterion="taylor" or "gradient"'
            )

        def apart(t: Tensor) -> Tensor:
            """As (rows, units, positions)."""
            t = t.float()
            return t.reshape(rows, -1, layer.size).transpose(1, 2) if isinstance(module, nn.Linear) else t.reshape(rows, layer.size, -1)

        self.total[:, where] += row_parts(self.criterion, apart(a), apart(gradient), self.weight[:, None], self.scores[:, None]).sum(1)


def _by_unit(gradient: Tensor, module: nn.Module, layer: Layer) -> Tensor:
    """A gradient summed over rows, and over positions where a unit is a channel (units,)."""
    if isinstance(module, nn.Linear):
        return gradient.reshape(-1, gradient.shape[-1]).sum(0, dtype=torch.float32)
    summed = _over_rows(gradient) if gradient.is_cuda and gradient.ndim == 4 else gradient.sum(0, dtype=torch.float32)
    return summed.reshape(*layer.shape, -1).sum(-1).reshape(-1)


def _over_rows(gradient: Tensor) -> Tensor:
    """The sum over rows of (rows, c, h, w) in channels-last layout, as a product with ones: many times faster there than a sum."""
    rows, c, h, w = gradient.shape
    flat = gradient.permute(0, 2, 3, 1).reshape(rows, -1)
    return (gradient.new_ones(1, rows) @ flat).float().view(h, w, c).permute(2, 0, 1)


@contextmanager
def _tapped(model: nn.Module, layers: Sequence[Layer], tally: _Tally) -> Iterator[list[Tensor]]:
    """The leaves for a backward pass that adds every unit's contribution to the tally; no hook remains afterwards."""
    leaves: list[Tensor] = []

    def tap(layer: Layer) -> RemovableHandle:
        module = model.get_submodule(layer.name)

        def watched(value: Tensor) -> Tensor:
            """The same value; its gradient is added to the tally during the backward pass."""
            # A copy, since an activation may overwrite the value in place.
            a = None if tally.criterion == "gradient" else value.detach().clone()
            if value.requires_grad:
                value.register_hook(lambda gradient: tally.add(layer, module, gradient, a))
                return value
            leaves.append(value.requires_grad_(True))
            copied = value.clone()  # a leaf must not be overwritten by an activation in place
            copied.register_hook(lambda gradient: tally.add(layer, module, gradient, a))
            return copied

        if layer.kind == "input":
            return module.register_forward_pre_hook(lambda _module, inputs: (watched(inputs[0].detach()),))
        return module.register_forward_hook(lambda _module, _inputs, output: watched(output))

    with ExitStack() as hooks:
        for layer in layers:
            hooks.enter_context(tap(layer))
        yield leaves


def proxy(f: Tensor, w: Tensor) -> Tensor:
    """The differentiable gap sum_i w_i f_i over the last axis; for a mini-batch of M rows out of N multiply by N / M.

    >>> import torch
    >>> proxy(torch.tensor([0.5, 1.0]), torch.tensor([1.0, -1.0]))
    tensor(-0.5000)
    """
    return (w.to(f.dtype) * f).sum(-1)
