"""R networks under repair, each with its own rows, behind one face: a stack of equal MLPs, or any single module.

Methods are written once, for arrays with a leading axis of replicates. All that they do to networks goes through here, on copies.
"""

import copy
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from equipoise.data.cohort import Cohort
from equipoise.errors import BadInput, raise_all
from equipoise.models.mlp import MLP
from equipoise.models.score import device_of, evaluating, output_kind, outputs, rows_at_once, single_output
from equipoise.models.stack import CHUNK, Snapshot, Stack, StackedAdam
from equipoise.models.units import Layer, find_layers, gap_gradients, switch_off

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
AT_ONCE = 2**21  # numbers of input of one pass with a graph, which keeps activations


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

    def soft(self, index: Tensor, *, generators: Sequence[np.random.Generator] | None = None) -> tuple[Tensor, Tensor]:
        """Scores (R, b) and features (R, b, k) of the rows index (R, b), with a graph.

        In eval mode; in training mode, with dropout from the generators, if there are any.
        """
        ...

    def evaluate(self, inputs: Sequence[Tensor] | None = None) -> FloatArray:
        """The scores (R, rows) of all rows in eval mode; of other inputs, one tensor a replicate, if they are given."""
        ...

    def tilt(self, index: Tensor, weights: Tensor) -> None:
        """Leaves the gradient of the sum of weights (R, b) times scores of the rows index (R, b), in eval mode."""
        ...

    def oppose(self, own: Tensor, theirs: Tensor, adversary: Sequence[Tensor], weight: float) -> None:
        """Leaves the gradient of `own` less its projection on that of `theirs` less `weight` times that of `theirs`.

        `own` and `theirs` are sums over replicates of losses. The adversary's parameters get the gradient of `theirs`.
        """
        ...

    def optimiser(self, name: str, rate: float) -> Optimiser: ...

    def keep(self, replicates: BoolArray) -> None:
        """Copies the present state of some replicates, to be taken by `kept`."""
        ...

    def kept(self) -> list[nn.Module]:
        """The networks as they were last kept."""
        ...

    def units(self, pattern: str | Sequence[str]) -> int:
        """Makes the units of the layers that match ready for pruning, and says how many there are a network."""
        ...

    def influence(self, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
        """The scores (R, rows), and equation (5): the mean gradient of sum_i w_i f_i with respect to every unit (R, units)."""
        ...

    def prune(self, units: BoolArray, outgoing: bool = False) -> None:
        """Switches off the marked units (R, units): their pre-activation, or their outgoing weights where the next layer is known."""
        ...

    def perturb(self, generators: Sequence[np.random.Generator], spread: float) -> None:
        """Multiplies every original parameter by a draw from N(1, spread^2)."""
        ...


def replicas(models: Sequence[nn.Module], cohorts: Sequence[Cohort]) -> Replicas:
    """Copies of the networks, ready for repair; an error that lists all that is wrong with them."""
    check(models[0], cohorts[0])
    if all(type(m) is MLP and all(p.requires_grad for p in m.parameters()) and device_of(m).type == "cpu" for m in models):
        return StackedReplicas([m for m in models if isinstance(m, MLP)], torch.stack([c.inputs for c in cohorts]))
    if len(models) > 1:
        raise BadInput(f"only equal MLPs can be repaired as one; got {len(models)} networks of type {type(models[0]).__name__}")
    return SingleReplica(models[0], cohorts[0].inputs)


def check(model: nn.Module, cohort: Cohort) -> None:
    """Raises everything that stands in the way of repairing this network on this cohort."""
    problems = []
    half = sorted({str(p.dtype) for p in model.parameters() if p.is_floating_point() and p.dtype not in (torch.float32, torch.float64)})
    if half:
        problems.append(f"the network's weights are {', '.join(half)}; repair needs full precision: model.float()")
    if not any(True for _ in model.parameters()):
        problems.append("the network has no parameters")
    if not problems:
        try:
            with evaluating(model), torch.no_grad():
                few = cohort.inputs[:4].to(device_of(model))
                raw = single_output(model(few), len(few))
            if not torch.isfinite(raw).all():
                problems.append(f"the network gives NaN or infinity for rows of {cohort.name!r}")
        except BadInput as error:
            problems += error.problems
        except RuntimeError as error:  # a shape that does not fit, most often
            shape = tuple(cohort.inputs.shape[1:])
            problems.append(f"the network cannot take inputs of shape {shape} from {cohort.name!r}: {str(error).splitlines()[0]}")
    raise_all(problems)


class StackedReplicas:
    """Equal MLPs as one stack."""

    notes: tuple[str, ...] = ()

    def __init__(self, models: Sequence[MLP], x: Tensor) -> None:
        self.stack, self.x = Stack(models), x
        self.size, self.rows = len(models), x.shape[1]
        self._original = Snapshot.of(self.stack)
        self._kept = Snapshot.of(self.stack)
        self._layers: list[int] = []
        self._numbers = [(self.stack.owner == r).nonzero()[:, 0] for r in range(self.size)]

    def soft(self, index: Tensor, *, generators: Sequence[np.random.Generator] | None = None) -> tuple[Tensor, Tensor]:
        masks = None if generators is None else self.stack.masks(index.shape[1], generators)
        seen: list[Tensor] = []
        logits = self.stack.logits(self._take(index), masks=masks, training=generators is not None, kept=seen)
        return torch.sigmoid(logits), seen[-1].transpose(1, 2)

    def tilt(self, index: Tensor, weights: Tensor) -> None:
        def slope(logits: Tensor) -> Tensor:
            f = torch.sigmoid(logits)
            return weights * f * (1 - f)

        self.stack.fill_gradient(self._take(index), slope)

    def _take(self, index: Tensor) -> Tensor:
        flat = (index + torch.arange(self.size)[:, None] * self.rows).reshape(-1)
        return self.x.view(-1, self.x.shape[2]).index_select(0, flat).view(*index.shape, -1)

    def evaluate(self, inputs: Sequence[Tensor] | None = None) -> FloatArray:
        x = self.x if inputs is None else torch.stack(list(inputs))
        scores: FloatArray = torch.sigmoid(self.stack.evaluate(x).double()).numpy()
        return scores

    def oppose(self, own: Tensor, theirs: Tensor, adversary: Sequence[Tensor], weight: float) -> None:
        mine = list(self.stack.parameters.values())
        pull = torch.autograd.grad(theirs, [*mine, *adversary], retain_graph=True)
        push = torch.autograd.grad(own, mine)
        for p, gradient in zip(adversary, pull[len(mine) :], strict=True):
            p.grad = gradient
        toward, away = (torch.cat([g.reshape(-1) for g in gradients]) for gradients in (push, pull[: len(mine)]))
        dots = torch.zeros(2, self.size).index_add_(1, self.stack.owner, torch.stack([toward * away, away * away]))
        share = dots[0] / dots[1].clamp(min=1e-12)
        self.stack.gradient.copy_(toward - (share + weight)[self.stack.owner] * away)

    def optimiser(self, name: str, rate: float) -> Optimiser:
        return _StackedSteps(self.stack, name, rate)

    def keep(self, replicates: BoolArray) -> None:
        self._kept.update(self.stack, torch.from_numpy(np.flatnonzero(replicates)))

    def kept(self) -> list[nn.Module]:
        everyone = torch.arange(self.size)
        present = Snapshot.of(self.stack)
        self.stack.load(self._kept, everyone)
        models: list[nn.Module] = list(self.stack.unstack())
        self.stack.load(present, everyone)
        return models

    def units(self, pattern: str | Sequence[str]) -> int:
        found = find_layers(self.stack.unstack()[0], self.x[0], pattern)
        self._layers = [int(layer.name.split(".")[1]) for layer in found]
        return len(self._layers) * self.stack.width

    def influence(self, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
        w = torch.from_numpy(weights)
        # Rows without weight need no backward pass: they go last, and the graph is made for the others alone.
        order = torch.argsort((w == 0).to(torch.uint8), dim=1, stable=True)
        needed = int((w != 0).sum(1).max())
        w = w.gather(1, order).float()
        logits = torch.empty(self.size, self.rows)
        total = torch.zeros(self.size, len(self._layers) * self.stack.width)
        for start in range(0, self.rows, CHUNK):
            part = slice(start, min(start + CHUNK, self.rows))
            x = self._take(order[:, part])
            if start >= needed:
                with torch.no_grad():
                    logits[:, part] = self.stack.logits(x)
                continue
            seen: list[Tensor] = []
            out = self.stack.logits(x, kept=seen)
            chosen = [seen[k] for k in self._layers]
            gradients = torch.autograd.grad((torch.sigmoid(out) * w[:, part]).sum(), chosen)
            total += torch.cat([g.sum(2) for g in gradients], dim=1)
            logits[:, part] = out.detach()
        scores = torch.empty_like(logits).scatter_(1, order, logits)
        return torch.sigmoid(scores.double()).numpy(), (total.double() / self.rows).numpy()

    def prune(self, units: BoolArray, outgoing: bool = False) -> None:
        marked = torch.from_numpy(units).view(self.size, len(self._layers), self.stack.width)
        with torch.no_grad():
            for position, k in enumerate(self._layers):
                if outgoing:
                    following = f"linears.{k + 1}.weight" if k < self.stack.depth else "out.weight"
                    self.stack.parameters[following].masked_fill_(marked[:, position, None, :], 0.0)
                    continue
                self.stack.parameters[f"linears.{k}.weight"].masked_fill_(marked[:, position, :, None], 0.0)
                self.stack.parameters[f"linears.{k}.bias"].masked_fill_(marked[:, position], 0.0)

    def perturb(self, generators: Sequence[np.random.Generator], spread: float) -> None:
        with torch.no_grad():
            for numbers, generator in zip(self._numbers, generators, strict=True):
                noise = torch.from_numpy(generator.standard_normal(len(numbers), dtype=np.float32))
                self.stack.theta[numbers] = self._original.theta[numbers] * (1 + spread * noise)


class _StackedSteps:
    """Adam or plain gradient descent on a stack."""

    def __init__(self, stack: Stack, name: str, rate: float) -> None:
        self.stack = stack
        self.rate = torch.full((stack.size,), rate)
        self.adam = StackedAdam(stack, self.rate) if name == "adam" else None

    def step(self) -> None:
        if self.adam is not None:
            self.adam.step()
            return
        with torch.no_grad():
            self.stack.theta.addcmul_(self.stack.gradient, self.rate[self.stack.owner], value=-1)
            self.stack.gradient.zero_()

    def stop(self, replicates: BoolArray) -> None:
        self.rate = torch.where(torch.from_numpy(replicates), 0.0, self.rate)
        if self.adam is not None:
            self.adam.set_rate(self.rate)


class SingleReplica:
    """Any one module."""

    def __init__(self, model: nn.Module, inputs: Tensor) -> None:
        self.size, self.rows, self.inputs = 1, len(inputs), inputs
        self.model = copy.deepcopy(model).eval()
        self.device = device_of(model)
        self.probability = output_kind(model, inputs) == "probability"
        self._original = copy.deepcopy(self.model)
        self._kept = copy.deepcopy(self.model)
        self._layers: list[Layer] = []
        frozen = sum(not p.requires_grad for p in model.parameters())
        total = sum(1 for _ in model.parameters())
        self.notes: tuple[str, ...] = (f"{frozen} of {total} parameter tensors are frozen and stay as they are",) if frozen else ()

    def soft(self, index: Tensor, *, generators: Sequence[np.random.Generator] | None = None) -> tuple[Tensor, Tensor]:
        features: list[Tensor] = []
        last = [m for m in self.model.modules() if isinstance(m, nn.Linear)][-1:]
        handle = last[0].register_forward_pre_hook(lambda _m, args: features.append(args[0])) if last else None
        x = self.inputs[index[0]].to(self.device)
        try:
            if generators is None:
                raw = single_output(self.model(x), len(x))
            else:
                with torch.random.fork_rng():
                    torch.manual_seed(int(generators[0].integers(2**31)))
                    self.model.train()
                    raw = single_output(self.model(x), len(x))
        finally:
            self.model.eval()
            if handle is not None:
                handle.remove()
        seen = features[-1].reshape(len(x), -1) if features and len(features[-1]) == len(x) else raw[:, None]
        return (raw if self.probability else torch.sigmoid(raw))[None], seen[None]

    def evaluate(self, inputs: Sequence[Tensor] | None = None) -> FloatArray:
        return self._scores(self.inputs if inputs is None else inputs[0]).numpy()[None]

    def tilt(self, index: Tensor, weights: Tensor) -> None:
        f, _ = self.soft(index)
        (f * weights.to(f)).sum().backward()

    def _scores(self, inputs: Tensor) -> Tensor:
        raw = outputs(self.model, inputs).double()
        return raw if self.probability else torch.sigmoid(raw)

    def oppose(self, own: Tensor, theirs: Tensor, adversary: Sequence[Tensor], weight: float) -> None:
        mine = [p for p in self.model.parameters() if p.requires_grad]
        pull = torch.autograd.grad(theirs, [*mine, *adversary], retain_graph=True)
        push = torch.autograd.grad(own, mine)
        for p, gradient in zip(adversary, pull[len(mine) :], strict=True):
            p.grad = gradient
        dot = sum(float((a * b).sum()) for a, b in zip(push, pull, strict=False))
        square = sum(float((b * b).sum()) for b in pull[: len(mine)])
        for p, a, b in zip(mine, push, pull, strict=False):
            p.grad = a - (dot / max(square, 1e-12) + weight) * b

    def optimiser(self, name: str, rate: float) -> Optimiser:
        wanted = [p for p in self.model.parameters() if p.requires_grad]
        if not wanted:
            raise BadInput("every parameter of the network is frozen (requires_grad=False), so there is nothing to fine-tune")
        kind = torch.optim.Adam if name == "adam" else torch.optim.SGD
        return _SingleSteps(kind(wanted, lr=rate))

    def keep(self, replicates: BoolArray) -> None:
        if replicates[0]:
            self._kept = copy.deepcopy(self.model)

    def kept(self) -> list[nn.Module]:
        return [copy.deepcopy(self._kept)]

    def units(self, pattern: str | Sequence[str]) -> int:
        self._layers = find_layers(self.model, self.inputs, pattern)
        return self._layers[-1].start + self._layers[-1].size

    def influence(self, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
        w = torch.from_numpy(weights[0]).float()
        needed = (w != 0).nonzero()[:, 0]
        rest = (w == 0).nonzero()[:, 0]
        scores = torch.empty(self.rows, dtype=torch.float64)
        total = torch.zeros(self._layers[-1].start + self._layers[-1].size, dtype=torch.float64, device=self.device)
        for part in needed.split(rows_at_once(self.inputs, AT_ONCE)):
            f, gradient = gap_gradients(self.model, self._layers, self.inputs[part], w[part], self.probability)
            scores[part] = f.double().cpu()
            total += gradient.double()
        for part in rest.split(rows_at_once(self.inputs)):
            scores[part] = self._scores(self.inputs[part])
        return scores.numpy()[None], total.cpu().numpy()[None] / self.rows

    def prune(self, units: BoolArray, outgoing: bool = False) -> None:
        if outgoing:
            raise BadInput('which weights leave a unit is known for the MLP alone; for other networks use cut="pre-activation"')
        switch_off(self.model, self._layers, torch.from_numpy(units[0]))

    def perturb(self, generators: Sequence[np.random.Generator], spread: float) -> None:
        with torch.no_grad():
            for mine, original in zip(self.model.parameters(), self._original.parameters(), strict=True):
                noise = torch.from_numpy(generators[0].standard_normal(original.numel(), dtype=np.float32))
                mine.copy_(original * (1 + spread * noise.view(original.shape).to(original)))


class _SingleSteps:
    """A torch optimiser for one module."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner, self.stopped = inner, False

    def step(self) -> None:
        if not self.stopped:
            self.inner.step()
        self.inner.zero_grad()

    def stop(self, replicates: BoolArray) -> None:
        self.stopped = self.stopped or bool(replicates[0])
