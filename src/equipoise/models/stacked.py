"""Equal MLPs under repair, as one stack."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from equipoise.errors import BadInput
from equipoise.models.blockwise import StackedBlockwise
from equipoise.models.feed import sent
from equipoise.models.influence import row_parts, settled, sums
from equipoise.models.mlp import MLP
from equipoise.models.protocol import BoolArray, FloatArray, Optimiser, Slope, shuffled
from equipoise.models.score import sigmoid
from equipoise.models.stack import Recorder, Snapshot, Stack, StackedAdam
from equipoise.models.units import find_units


class StackedReplicas:
    """Equal MLPs as one stack."""

    notes: tuple[str, ...] = ()
    reduced = False

    def __init__(self, models: Sequence[MLP], x: Tensor, device: torch.device | None = None) -> None:
        self.stack = Stack(models, device=device)
        self.device, self.x = self.stack.device, x.to(self.stack.device)
        self.size, self.rows = len(models), x.shape[1]
        self._original = Snapshot.of(self.stack)
        self._kept = Snapshot.of(self.stack)
        self._layers: list[int] = []  # hidden layers whose units may be pruned; none where columns of the input may
        self._first_rows = torch.arange(self.size, device=self.device)[:, None] * self.rows
        self._run = Recorder(self.stack)
        self._elsewhere: tuple[list[Tensor], Tensor] | None = None  # other inputs that were evaluated last, and the same as a stack

    def batches(self, generators: Sequence[np.random.Generator], batch: int, least: int = 1) -> Iterator[Tensor]:
        return shuffled(self.rows, generators, batch, least)

    def soft(self, index: Tensor, *, generators: Sequence[np.random.Generator] | None = None) -> tuple[Tensor, Tensor]:
        masks = None if generators is None else self.stack.masks(index.shape[1], generators)
        seen: list[Tensor] = []
        logits = self.stack.logits(self._take(index), masks=masks, training=generators is not None, kept=seen)
        return torch.sigmoid(logits), seen[-1].transpose(1, 2)

    def tilt(self, index: Tensor, weights: Tensor, *, generators: Sequence[np.random.Generator] | None = None) -> None:
        masks = None if generators is None else self.stack.masks(index.shape[1], generators)
        self._run(self._tilt if generators is None else self._tilt_in_training, index, weights, masks)

    def _tilt(self, index: Tensor, weights: Tensor, masks: Tensor | None = None, training: bool = False) -> None:
        def slope(logits: Tensor) -> Tensor:
            f = torch.sigmoid(logits)
            return weights * f * (1 - f)

        self.stack.fill_gradient(self._take(index), slope, masks=masks, training=training)

    def _tilt_in_training(self, index: Tensor, weights: Tensor, masks: Tensor | None = None) -> None:
        self._tilt(index, weights, masks, training=True)

    def push(self, index: Tensor, slope: Slope, *given: Tensor) -> None:
        def step(index: Tensor, *given: Tensor) -> None:
            self.stack.fill_gradient(self._take(index), lambda logits: slope(logits, *given))

        self._run(step, index, *given, key=slope)

    def _take(self, index: Tensor) -> Tensor:
        flat = (sent(index, self.device) + self._first_rows).reshape(-1)
        return self.x.view(-1, self.x.shape[2]).index_select(0, flat).view(*index.shape, -1)

    def still(self) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
        def look(index: Tensor) -> tuple[Tensor, Tensor]:
            with torch.no_grad():
                return self.soft(index)

        return look

    def evaluate(self, inputs: Sequence[Tensor] | None = None) -> FloatArray:
        scores: FloatArray = sigmoid(self.stack.evaluate(self.x if inputs is None else self._stacked(inputs))).numpy()
        return scores

    def _stacked(self, inputs: Sequence[Tensor]) -> Tensor:
        if self._elsewhere is None or any(a is not b for a, b in zip(self._elsewhere[0], inputs, strict=True)):
            self._elsewhere = (list(inputs), torch.stack(list(inputs)).to(self.device))
        return self._elsewhere[1]

    def oppose(self, own: Tensor, theirs: Tensor, adversary: Sequence[Tensor], weight: float) -> None:
        mine = list(self.stack.parameters.values())
        pull = torch.autograd.grad(theirs, [*mine, *adversary], retain_graph=True)
        push = torch.autograd.grad(own, mine)
        for p, gradient in zip(adversary, pull[len(mine) :], strict=True):
            p.grad = gradient
        toward, away = (torch.cat([g.reshape(-1) for g in gradients]) for gradients in (push, pull[: len(mine)]))
        share = self.stack.replicate_sums(toward * away) / self.stack.replicate_sums(away * away).clamp(min=1e-12)
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

    def units(self, pattern: str | Sequence[str], granularity: str = "unit") -> int:
        found = find_units(self.stack.unstack()[0], self.x[0, :2].clone(), pattern, granularity)
        self._layers = [] if granularity == "input" else [int(layer.name.split(".")[1]) for layer in found]
        return sum(layer.size for layer in found)

    def influence(self, weights: FloatArray, criterion: str = "gradient") -> tuple[FloatArray, Tensor]:
        w = torch.from_numpy(weights)
        # Rows without weight need no backward pass: they go last, and the graph is made for the others alone.
        order = torch.argsort((w == 0).to(torch.uint8), dim=1, stable=True)
        needed = int((w != 0).sum(1).max())
        order, w = sent(order, self.device), sent(w.gather(1, order).float(), self.device)
        logits = torch.empty(self.size, self.rows, device=self.device)
        units = len(self._layers) * self.stack.width or self.stack.inputs
        total = torch.zeros(sums(criterion), self.size, units, device=self.device)
        for start in range(0, self.rows, self.stack.chunk):
            part = slice(start, min(start + self.stack.chunk, self.rows))
            x = self._take(order[:, part])
            if start >= needed:
                with torch.no_grad():
                    logits[:, part] = self.stack.logits(x)
                continue
            seen: list[Tensor] = []
            columns = x.transpose(1, 2).requires_grad_(not self._layers)
            out = self.stack.logits(columns.transpose(1, 2), kept=seen)
            chosen = [seen[k] for k in self._layers] or [columns]
            f = torch.sigmoid(out)
            gradients = torch.autograd.grad((f * w[:, part]).sum(), chosen)
            if criterion == "gradient":
                total[0] += torch.cat([g.sum(2) for g in gradients], dim=1)
            else:
                a, wg = (torch.cat(found, dim=1).transpose(1, 2)[..., None] for found in ([c.detach() for c in chosen], gradients))
                total += row_parts(criterion, a, wg, w[:, part, None], f.detach()[..., None]).sum(2)
            logits[:, part] = out.detach()
        scores = torch.empty_like(logits).scatter_(1, order, logits)
        return sigmoid(scores).numpy(), settled(criterion, total).double() / self.rows

    def prune(self, units: Tensor, outgoing: bool = False) -> None:
        if not self._layers:
            with torch.no_grad():
                self.stack.parameters["linears.0.weight"].masked_fill_(units[:, None, :], 0.0)
            return
        marked = units.view(self.size, len(self._layers), self.stack.width)
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
            for numbers, generator in zip(self.stack.numbers, generators, strict=True):
                noise = sent(torch.from_numpy(generator.standard_normal(len(numbers), dtype=np.float32)), self.device)
                self.stack.theta[numbers] = self._original.theta[numbers] * (1 + spread * noise)


class _StackedSteps:
    """Adam, its blockwise kind or plain gradient descent on a stack."""

    def __init__(self, stack: Stack, name: str, rate: float) -> None:
        if name == "adamw":
            raise BadInput("adamw steps one network at a time, and these are a stack of the paper's MLP; use adam")
        self.stack = stack
        self.rate = torch.full((stack.size,), rate)
        kinds: dict[str, type[StackedAdam] | type[StackedBlockwise]] = {"adam": StackedAdam, "blockwise": StackedBlockwise}
        self.adam = kinds[name](stack, self.rate) if name in kinds else None

    def step(self) -> None:
        if self.adam is not None:
            self.adam.step()
            return
        with torch.no_grad():
            self.stack.theta.addcmul_(self.stack.gradient, sent(self.rate, self.stack.device)[self.stack.owner], value=-1)
            self.stack.gradient.zero_()

    def stop(self, replicates: BoolArray) -> None:
        self.rate = torch.where(torch.from_numpy(replicates), 0.0, self.rate)
        if self.adam is not None:
            self.adam.set_rate(self.rate)
