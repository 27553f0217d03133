"""Any one module under repair."""

import copy
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from equipoise.errors import BadInput
from equipoise.models.protocol import BoolArray, FloatArray, Optimiser
from equipoise.models.score import device_of, output_kind, outputs, rows_at_once, single_output
from equipoise.models.units import Layer, find_layers, gap_gradients, switch_off

AT_ONCE = 2**21  # numbers of input of one pass with a graph, which keeps activations


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

    def units(self, pattern: str | Sequence[str], channels: bool = False) -> int:
        self._layers = find_layers(self.model, self.inputs, pattern, channels)
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
