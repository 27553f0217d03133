"""Networks prepared for repair: checked, copied, and behind one interface; equal MLPs as one stack, any other network singly."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from equipoise.data import Cohort
from equipoise.errors import BadInput, raise_all
from equipoise.models.devices import compute_device, to_device
from equipoise.models.many_outputs import ChosenOutputs, as_matrix
from equipoise.models.optimisers import StackedSteps
from equipoise.models.protocol import BoolArray, FloatArray, Optimiser, Replicas, Slope, adversarial_gradients
from equipoise.models.score import outputs, sigmoid
from equipoise.models.single import ManyOutputs, SingleReplica
from equipoise.models.stack import MLP, Recorder, Snapshot, Stack
from equipoise.models.units import combine_sums, find_units, row_parts, sum_count
from equipoise.models.vision import shape_advice


class StackedReplicas(Replicas):
    """Equal MLPs as one stack."""

    frozen = (0, 0)
    reduced = False

    def __init__(self, models: Sequence[MLP], x: Tensor, device: torch.device | None = None) -> None:
        self.stack = Stack(models, device=device)
        self.device, self.x = self.stack.device, x.to(self.stack.device)
        self.size, self.rows = len(models), x.shape[1]
        self._original = Snapshot.of(self.stack)
        self._kept = Snapshot.of(self.stack)
        self._marked: Snapshot | None = None
        self._optimisers = []
        self._frozen = np.zeros(self.size, bool)
        self._layers: list[int] = []  # hidden layers whose units may be pruned; empty if columns of the input may
        self._first_rows = torch.arange(self.size, device=self.device)[:, None] * self.rows
        self._run = Recorder(self.stack)
        self._last_inputs: tuple[list[Tensor], Tensor] | None = None  # other inputs of the last evaluation, and their stack

    def scores_and_features(self, index: Tensor, *, generators: Sequence[np.random.Generator] | None = None) -> tuple[Tensor, Tensor]:
        masks = None if generators is None else self.stack.masks(index.shape[1], generators)
        activations: list[Tensor] = []
        logits = self.stack.logits(self._take(index), masks=masks, training=generators is not None, kept=activations)
        return torch.sigmoid(logits), activations[-1].transpose(1, 2)

    def proxy_gradient(self, index: Tensor, weights: Tensor, *, generators: Sequence[np.random.Generator] | None = None) -> None:
        masks = None if generators is None else self.stack.masks(index.shape[1], generators)
        self._run(self._proxy_gradient if generators is None else self._proxy_gradient_in_training, index, weights, masks)

    def _proxy_gradient(self, index: Tensor, weights: Tensor, masks: Tensor | None = None, training: bool = False) -> None:
        def slope(logits: Tensor) -> Tensor:
            f = torch.sigmoid(logits)
            return weights * f * (1 - f)

        self.stack.fill_gradient(self._take(index), slope, masks=masks, training=training)

    def _proxy_gradient_in_training(self, index: Tensor, weights: Tensor, masks: Tensor | None = None) -> None:
        self._proxy_gradient(index, weights, masks, training=True)

    def logit_gradient(self, index: Tensor, slope: Slope, *values: Tensor) -> None:
        def step(index: Tensor, *values: Tensor) -> None:
            self.stack.fill_gradient(self._take(index), lambda logits: slope(logits, *values))

        self._run(step, index, *values, key=slope)

    def _take(self, index: Tensor) -> Tensor:
        flat = (to_device(index, self.device) + self._first_rows).reshape(-1)
        return self.x.view(-1, self.x.shape[2]).index_select(0, flat).view(*index.shape, -1)

    def fixed_scores_and_features(self) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
        def scores_and_features(index: Tensor) -> tuple[Tensor, Tensor]:
            with torch.no_grad():
                return self.scores_and_features(index)

        return scores_and_features

    def evaluate(self, inputs: Sequence[Tensor] | None = None) -> FloatArray:
        scores: FloatArray = sigmoid(self.stack.evaluate(self.x if inputs is None else self._stacked(inputs))).numpy()
        return scores

    def _stacked(self, inputs: Sequence[Tensor]) -> Tensor:
        if self._last_inputs is None or any(a is not b for a, b in zip(self._last_inputs[0], inputs, strict=True)):
            self._last_inputs = (list(inputs), torch.stack(list(inputs)).to(self.device))
        return self._last_inputs[1]

    def adversarial_gradient(self, loss: Tensor, adversary_loss: Tensor, adversary: Sequence[Tensor], weight: float) -> None:
        gradients = adversarial_gradients(loss, adversary_loss, list(self.stack.parameters.values()), adversary)
        push, against = (torch.cat([g.reshape(-1) for g in flat]) for flat in gradients)
        share = self.stack.replicate_sums(push * against) / self.stack.replicate_sums(against * against).clamp(min=1e-12)
        self.stack.gradient.copy_(push - (share + weight)[self.stack.owner] * against)

    def _make_optimiser(self, name: str, rate: float) -> Optimiser:
        return StackedSteps(self.stack, name, rate)

    def _mark(self, replicates: BoolArray) -> None:
        if self._marked is None:
            self._marked = Snapshot.of(self.stack)
        self._marked.update(self.stack, torch.from_numpy(np.flatnonzero(replicates)))

    def _restore(self, replicates: BoolArray) -> None:
        assert self._marked is not None  # `mark` came first
        self.stack.load(self._marked, torch.from_numpy(np.flatnonzero(replicates)))

    def keep(self, replicates: BoolArray) -> None:
        self._kept.update(self.stack, torch.from_numpy(np.flatnonzero(replicates)))

    def kept(self) -> list[nn.Module]:
        all_replicates = torch.arange(self.size)
        present = Snapshot.of(self.stack)
        self.stack.load(self._kept, all_replicates)
        models: list[nn.Module] = list(self.stack.unstack())
        self.stack.load(present, all_replicates)
        return models

    def units(self, pattern: str | Sequence[str], granularity: str = "unit") -> int:
        layers = find_units(self.stack.unstack()[0], self.x[0, :2].clone(), pattern, granularity)
        self._layers = [] if granularity == "input" else [int(layer.name.split(".")[1]) for layer in layers]
        return layers[-1].end

    def influence(self, weights: FloatArray, criterion: str = "gradient") -> tuple[FloatArray, Tensor]:
        w = torch.from_numpy(weights)
        # Rows without weight need no backward pass: they go last, and only the others get a graph.
        order = torch.argsort((w == 0).to(torch.uint8), dim=1, stable=True)
        needed = int((w != 0).sum(1).max())
        order, w = to_device(order, self.device), to_device(w.gather(1, order).float(), self.device)
        logits = torch.empty(self.size, self.rows, device=self.device)
        units = len(self._layers) * self.stack.width or self.stack.inputs
        total = torch.zeros(sum_count(criterion), self.size, units, device=self.device)
        for start in range(0, self.rows, self.stack.chunk):
            part = slice(start, min(start + self.stack.chunk, self.rows))
            x = self._take(order[:, part])
            if start >= needed:
                with torch.no_grad():
                    logits[:, part] = self.stack.logits(x)
                continue
            activations: list[Tensor] = []
            columns = x.transpose(1, 2).requires_grad_(not self._layers)
            out = self.stack.logits(columns.transpose(1, 2), kept=activations)
            chosen = [activations[k] for k in self._layers] or [columns]
            f = torch.sigmoid(out)
            gradients = torch.autograd.grad((f * w[:, part]).sum(), chosen)
            if criterion == "gradient":
                total[0] += torch.cat([g.sum(2) for g in gradients], dim=1)
            else:
                a, wg = (torch.cat(parts, dim=1).transpose(1, 2)[..., None] for parts in ([c.detach() for c in chosen], gradients))
                total += row_parts(criterion, a, wg, w[:, part, None], f.detach()[..., None]).sum(2)
            logits[:, part] = out.detach()
        scores = torch.empty_like(logits).scatter_(1, order, logits)
        return sigmoid(scores).numpy(), combine_sums(criterion, total).double() / self.rows

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
                noise = to_device(torch.from_numpy(generator.standard_normal(len(numbers), dtype=np.float32)), self.device)
                self.stack.theta[numbers] = self._original.theta[numbers] * (1 + spread * noise)


def replicas(models: Sequence[nn.Module], cohorts: Sequence[Cohort]) -> Replicas:
    """Copies of the networks, ready for repair; one error with all of their problems."""
    check(models[0], cohorts[0])
    if all(type(m) is MLP and all(p.requires_grad for p in m.parameters()) for m in models):
        device = compute_device(models[0], cohorts[0].inputs)
        return StackedReplicas([m for m in models if isinstance(m, MLP)], torch.stack([c.inputs for c in cohorts]), device)
    if len(models) > 1:
        raise BadInput(f"only equal MLPs can be repaired as a stack; got {len(models)} networks of type {type(models[0]).__name__}")
    if isinstance(models[0], ChosenOutputs):
        return ManyOutputs(models[0], cohorts[0].inputs)
    return SingleReplica(models[0], cohorts[0].inputs)


def check(model: nn.Module, cohort: Cohort, changed: bool = True) -> None:
    """Raises one error with everything that prevents repairing this network on this cohort; `changed`: whether its weights will change."""
    problems = []
    dtypes = {p.dtype for p in model.parameters() if p.is_floating_point()} - {torch.float32, torch.float64}
    if dtypes:
        problems.append(f"the network's weights are {', '.join(sorted(map(str, dtypes)))}; repair needs full precision: model.float()")
    if changed and next(model.parameters(), None) is None:
        problems.append("the network has no parameters. Use a method that leaves it as it is, such as bias-score.")
    if not problems:
        try:
            raw = outputs(model, cohort.inputs[:4], taken=as_matrix if isinstance(model, ChosenOutputs) else None)
            if not torch.isfinite(raw).all():
                problems.append(f"the network gives NaN or infinity for rows of {cohort.name!r}")
        except BadInput as error:
            advice = shape_advice(model, cohort.inputs.shape[1:])
            problems.append(f"{cohort.name}: {' '.join((*error.problems, advice)).rstrip()}")
    raise_all(problems)
