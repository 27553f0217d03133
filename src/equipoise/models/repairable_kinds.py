"""Networks under repair beyond the general one: several outputs, and the paper's MLP with its fast steps; checks before a repair."""

import copy
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from equipoise.data import Cohort, FloatArray, Images
from equipoise.errors import BadInput, raise_all
from equipoise.models.devices import compute_device, to_device
from equipoise.models.many_outputs import WRAPPED, ChosenOutputs, as_matrix
from equipoise.models.mlp import MLP, FlatMLP, Recorder
from equipoise.models.optimisers import FlatAdam, FlatBlockwise, FlatSteps, Optimiser
from equipoise.models.repairable import Repairable, Slope, shuffled
from equipoise.models.score import evaluating, outputs, sigmoid
from equipoise.models.units import combine_sums, find_units, row_parts, sum_count
from equipoise.models.vision import shape_advice


class ManyOutputs(Repairable):
    """One module with several outputs. A row of a method is a pair of image i and label l, at i * labels + l."""

    select_outputs = staticmethod(as_matrix)

    def __init__(self, model: ChosenOutputs, inputs: Tensor | Images) -> None:
        super().__init__(model, inputs)
        self.images, self.labels = len(inputs), len(model.columns)
        self.rows, self.output_shape = self.images * self.labels, (self.images, self.labels)
        with evaluating(self.model), torch.no_grad():
            few = self.feed(torch.arange(min(2, self.images)))
            self.width = as_matrix(self.model.get_submodule("inner")(few), len(few)).shape[1]

    def batches(self, generator: np.random.Generator, batch: int, least: int = 1) -> Iterator[Tensor]:
        """Batches of whole images with at most `batch` pairs, but with `least` images or more."""
        for images in shuffled(self.images, generator, max(least, batch // self.labels), least):
            yield (images[:, None] * self.labels + torch.arange(self.labels)).reshape(-1)

    def _rows_and_values(self, index: Tensor, values: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """The images (b,) of pairs (b * labels,), and the values of the pairs as (b, labels)."""
        images = index.view(-1, self.labels)[:, 0] // self.labels
        return images, [v.view(-1, self.labels) for v in values]

    def units(self, pattern: str | Sequence[str], granularity: str = "unit") -> int:
        patterns = [f"{WRAPPED}{p}" for p in ([pattern] if isinstance(pattern, str) else pattern)]
        few = self.feed(torch.arange(min(2, self.images)))
        self._layers = find_units(self.model, few, patterns, granularity, self.width)
        return self._layers[-1].end

    def kept(self) -> nn.Module:
        return self._on_original_device(copy.deepcopy(self._kept.get_submodule("inner")))


class RepairableMLP(Repairable):
    """The paper's MLP, without frozen parameters; its rows stay on its device, and nothing is in bfloat16."""

    def __init__(self, model: MLP, inputs: Tensor) -> None:
        self.flat = FlatMLP(copy.deepcopy(model).float(), compute_device(model, inputs))
        self.device, self.original_device, self.model = self.flat.device, self.flat.original_device, self.flat.model
        self.x, self.rows = inputs.to(self.device), len(inputs)
        self.frozen, self.reduced = (0, 0), False
        self._original_theta = self.flat.theta.clone()
        self._kept = copy.deepcopy(self.model)
        self._marked = []
        self._optimisers = []
        self._hidden: list[int] = []  # hidden layers whose units may be pruned; empty if columns of the input may
        self._run = Recorder(self.flat)
        self._elsewhere: tuple[Tensor | Images, Tensor] = (inputs, self.x)  # the other inputs of an evaluation, on the device

    def scores_and_features(self, index: Tensor, *, generator: np.random.Generator | None = None) -> tuple[Tensor, Tensor]:
        masks = None if generator is None else self.flat.masks(len(index), generator)
        activations: list[Tensor] = []
        logits = self.flat.logits(self._take(index), masks=masks, training=generator is not None, kept=activations)
        return torch.sigmoid(logits), activations[-1].squeeze(0).T

    def fixed_scores_and_features(self) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
        return torch.no_grad()(self.scores_and_features)

    def proxy_gradient(self, index: Tensor, weights: Tensor, *, generator: np.random.Generator | None = None) -> None:
        masks = None if generator is None else self.flat.masks(len(index), generator)
        self._run(self._proxy_gradient if generator is None else self._proxy_gradient_in_training, index, weights, masks)

    def _proxy_gradient(self, index: Tensor, weights: Tensor, masks: Tensor | None = None, training: bool = False) -> None:
        def slope(logits: Tensor) -> Tensor:
            f = torch.sigmoid(logits)
            return weights * f * (1 - f)

        self.flat.fill_gradient(self._take(index), slope, masks=masks, training=training)

    def _proxy_gradient_in_training(self, index: Tensor, weights: Tensor, masks: Tensor | None = None) -> None:  # type: ignore[override]
        self._proxy_gradient(index, weights, masks, training=True)

    def logit_gradient(self, index: Tensor, slope: Slope, *values: Tensor) -> None:
        def step(index: Tensor, *values: Tensor) -> None:
            self.flat.fill_gradient(self._take(index), lambda logits: slope(logits, *values))

        self._run(step, index, *values, key=slope)

    def _take(self, index: Tensor) -> Tensor:
        return self.x.index_select(0, to_device(index, self.device))

    def evaluate(self, inputs: Tensor | Images | None = None) -> FloatArray:
        if inputs is not None and self._elsewhere[0] is not inputs:
            self._elsewhere = (inputs, inputs[:].to(self.device))
        scores: FloatArray = sigmoid(self.flat.evaluate(self.x if inputs is None else self._elsewhere[1])).numpy()
        return scores

    def _set_projected(self, push: tuple[Tensor, ...], against: tuple[Tensor, ...], weight: float) -> None:
        a, b = (torch.cat([g.reshape(-1) for g in gradients]) for gradients in (push, against))
        share = self.flat.total(a * b) / self.flat.total(b * b).clamp(min=1e-12)
        self.flat.gradient.copy_(a - (share + weight) * b)

    def _make_optimiser(self, name: str, rate: float) -> Optimiser:
        if name == "adamw":
            raise BadInput("adamw is for networks other than the paper's MLP; use adam")
        return {"adam": FlatAdam, "blockwise": FlatBlockwise}.get(name, FlatSteps)(self.flat, rate)

    def _state(self) -> list[Tensor]:
        return self.flat.state()

    def units(self, pattern: str | Sequence[str], granularity: str = "unit") -> int:
        layers = find_units(self.model, self.x[:2].clone(), pattern, granularity)
        self._hidden = [] if granularity == "input" else [int(layer.name.split(".")[1]) for layer in layers]
        return layers[-1].end

    def influence(self, weights: FloatArray, criterion: str = "gradient") -> tuple[FloatArray, Tensor]:
        w = torch.from_numpy(weights)
        # Rows without weight need no backward pass: they go last, and only the others get a graph.
        order = torch.argsort((w == 0).to(torch.uint8), stable=True)
        needed = int((w != 0).sum())
        order, w = to_device(order, self.device), to_device(w[order].float(), self.device)
        logits = torch.empty(self.rows, device=self.device)
        units = len(self._hidden) * self.flat.width or self.x.shape[1]
        total = torch.zeros(sum_count(criterion), units, device=self.device)
        for start in range(0, self.rows, self.flat.chunk):
            part = slice(start, min(start + self.flat.chunk, self.rows))
            x = self._take(order[part])
            if start >= needed:
                with torch.no_grad():
                    logits[part] = self.flat.logits(x)
                continue
            activations: list[Tensor] = []
            columns = x.T[None].requires_grad_(not self._hidden)
            out = self.flat.logits(columns[0].T, kept=activations)
            chosen = [activations[k] for k in self._hidden] or [columns]  # each (1, units, rows)
            f = torch.sigmoid(out)
            gradients = torch.autograd.grad((f * w[part]).sum(), chosen)
            if criterion == "gradient":
                total[0] += torch.cat([g.sum(2) for g in gradients], dim=1)[0]
            else:
                a, wg = (torch.cat(parts, dim=1)[0].T[..., None] for parts in ([c.detach() for c in chosen], gradients))
                total += row_parts(criterion, a, wg, w[part, None], f.detach()[:, None]).sum(1)
            logits[part] = out.detach()
        scores = torch.empty_like(logits).scatter_(0, order, logits)
        return sigmoid(scores).numpy(), combine_sums(criterion, total).double() / self.rows

    @torch.no_grad()
    def prune(self, units: Tensor, outgoing: bool = False) -> None:
        if not self._hidden:
            self.flat.parameters["linears.0.weight"].masked_fill_(units, 0.0)
            return
        for k, marked in zip(self._hidden, units.view(len(self._hidden), -1), strict=True):
            if outgoing:
                following = f"linears.{k + 1}.weight" if k < self.flat.depth else "out.weight"
                self.flat.parameters[following].masked_fill_(marked, 0.0)
                continue
            self.flat.parameters[f"linears.{k}.weight"].masked_fill_(marked[:, None], 0.0)
            self.flat.parameters[f"linears.{k}.bias"].masked_fill_(marked, 0.0)

    @torch.no_grad()
    def perturb(self, generator: np.random.Generator, spread: float) -> None:
        noise = to_device(torch.from_numpy(generator.standard_normal(len(self.flat.theta), dtype=np.float32)), self.device)
        self.flat.theta.copy_(self._original_theta * (1 + spread * noise))


def under_repair(model: nn.Module, cohort: Cohort) -> Repairable:
    """A copy of the network, ready for repair; one error with all of its problems."""
    check(model, cohort)
    if type(model) is MLP and all(p.requires_grad for p in model.parameters()):
        return RepairableMLP(model, cohort.inputs[:])
    if isinstance(model, ChosenOutputs):
        return ManyOutputs(model, cohort.inputs)
    return Repairable(model, cohort.inputs)


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
