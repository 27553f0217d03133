"""A network under repair: any module, with one or several outputs, on a CPU, on a GPU, or in several processes (see ranks).

`Repairable` is what a method gets as its model. A row of a method is a pair of row of input i and label l, at i * labels + l; with one
label, it is the row of input. `RepairableMLP` has faster steps for the paper's network.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext

import numpy as np
import torch
from torch import Tensor, nn

from equipoise.data import Cohort, FloatArray, Images
from equipoise.errors import BadInput, raise_all
from equipoise.models import mlp, ranks, score
from equipoise.models.devices import Feed, Recorder, compute_device, device_of, in_layout, mixed_precision, to_device, within_memory
from equipoise.models.mlp import MLP, FlatMLP, Optimiser, copy_tensors
from equipoise.models.score import ChosenOutputs, as_matrix, feed_outputs, output_kind, outputs, sigmoid, single_output
from equipoise.models.units import CRITERIA, GRANULARITIES, Layer, combine_sums, find_units, gap_gradients, row_parts, sum_count, switch_off

VALUES_WITH_GRAPH = {"cpu": 2**21, "cuda": 2**24}  # input values per pass with a graph, which stores activations
DISTINCT_SCORES = 50  # in bfloat16; with fewer, rounding would determine thresholds and gaps, so that full precision is used
CLOSE_SCORES = {True: 2e-2, False: 1e-4}  # in bfloat16 or not: scores of the last layer that count as those of the network
Slope = Callable[..., Tensor]  # logits (b, labels) and further values of their rows, each (b, labels) -> derivatives (b, labels)
Backward = Callable[..., None]  # sets gradients from raw outputs of rows and further values of these rows


class Repairable:
    """A copy of a network with one output per row and label, and the rows that it is repaired on."""

    optimisers = mlp.OPTIMISERS  # by the name that `optimiser` takes
    granularities, criteria = GRANULARITIES, CRITERIA  # of `units` and of `influence`

    def __init__(self, model: nn.Module, inputs: Tensor | Images) -> None:
        several, self.inputs = isinstance(model, ChosenOutputs), inputs
        self.labels = len(model.columns) if isinstance(model, ChosenOutputs) else 1
        self.rows, self.prefix = len(inputs) * self.labels, score.INNER_PREFIX if several else ""  # prefix of the names of layers
        self.original_device, self.device = device_of(model), compute_device(model, inputs)
        self.model = in_layout(copy.deepcopy(model).eval().to(self.device), inputs)
        ranks.agree(self.model)
        self.feed = Feed(inputs, self.device)
        self._feeds: dict[int, Feed] = {id(inputs): self.feed}
        self.output = output_kind(model, inputs)
        self.probability = self.output == "probability"
        # Scores during the repair are in bfloat16, a lower precision than those of the repaired network.
        self.reduced = self.device.type == "cuda"
        self._coarse = False  # whether bfloat16 gives nearly all rows the same score
        self._original = copy.deepcopy(self.model)
        self._kept = copy.deepcopy(self.model)
        self._marked: list[Tensor] = []
        self._layers: list[Layer] = []
        values = VALUES_WITH_GRAPH.get(self.device.type, VALUES_WITH_GRAPH["cpu"])
        self._at_once = score.rows_at_once(self.feed, values)  # lowered if memory is too small
        self._optimisers: list[Optimiser] = []
        self._run = Recorder(self.device, record=self.feed.resident)
        self._backwards: dict[Slope, Backward] = {}
        # From the network's output to (b, labels).
        self._taken = as_matrix if several else lambda raw, rows: single_output(raw, rows)[:, None]
        with score.evaluating(self.model), torch.no_grad():
            few = self.feed(torch.arange(min(2, len(inputs))))
            self.width = as_matrix(score.whole_network(self.model)(few), len(few)).shape[1] if several else 1  # of the output layer
        # Numbers of parameter tensors: frozen ones (requires_grad=False), and all.
        self.frozen = (sum(not p.requires_grad for p in model.parameters()), sum(1 for _ in model.parameters()))

    def _trainable(self) -> list[nn.Parameter]:
        return [p for p in self.model.parameters() if p.requires_grad]

    def batches(self, generator: np.random.Generator, batch: int, least: int = 1) -> Iterator[Tensor]:
        """All rows once, shuffled, as indices (b,): at most `batch` rows, but `least` rows of input or more, with all of their labels."""
        order = torch.from_numpy(generator.permutation(self.rows // self.labels))
        for part in order.split(max(least, batch // self.labels) if self.labels > 1 else batch):
            if len(part) >= least:
                yield (part[:, None] * self.labels + torch.arange(self.labels)).reshape(-1)

    def scores_and_features(self, index: Tensor, *, generator: np.random.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Scores (b,) and features (b, k) of the rows index (b,), with a graph; in eval mode or, with a generator, in training mode."""
        features: list[Tensor] = []
        last = list(score.modules_of(self.model, nn.Linear).values())[-1:]
        x = self.feed(index)
        mode = nullcontext() if generator is None else self._training(generator)
        memory = within_memory(len(x)) if torch.is_grad_enabled() else nullcontext()  # without a graph the caller can use smaller batches
        with memory, ExitStack() as hooks, mixed_precision(self.device), mode:
            for layer in last:
                hooks.enter_context(layer.register_forward_pre_hook(lambda _module, args: features.append(args[0])))
            raw = single_output(self.model(x), len(x)).float()
        last_input = features[-1].reshape(len(x), -1).float() if features and len(features[-1]) == len(x) else raw[:, None]
        return raw if self.probability else torch.sigmoid(raw), last_input

    @contextmanager
    def _training(self, generator: np.random.Generator) -> Iterator[None]:
        """Training mode, with dropout from the generator; eval mode and torch's own generators are restored afterwards."""
        cpu = self.device.type == "cpu"  # leaves the generators of other devices alone, which saves 0.2 ms per step
        with torch.random.fork_rng([] if cpu else None):
            (torch.default_generator.manual_seed if cpu else torch.manual_seed)(int(generator.integers(2**31)))
            self.model.train()
            try:
                yield
            finally:
                self.model.eval()

    def fixed_scores_and_features(self) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
        """As `scores_and_features` in eval mode, without a graph; valid as long as the network does not change."""
        batches: list[tuple[Tensor, Tensor]] = []
        with torch.no_grad():  # every row once; random batches would compute each many times
            score.in_pieces(lambda part: batches.append(self.scores_and_features(part)), torch.arange(self.rows), self.feed)
        scores, features = (torch.cat(parts) for parts in zip(*batches, strict=True))

        def scores_and_features(index: Tensor) -> tuple[Tensor, Tensor]:
            rows = index.to(self.device)
            return scores[rows], features[rows]

        return scores_and_features

    def tensors(self) -> dict[str, Tensor]:
        """The parameters that are not frozen, by name; changing one in place changes the network."""
        return {name: p.data for name, p in self.model.named_parameters() if p.requires_grad}

    def last_layer(self) -> "LastLayer":
        """The last linear layer, for a method that changes nothing else; raises `BadInput` if the scores do not follow from it."""
        name = next(reversed(score.modules_of(self.model, nn.Linear)), None)
        weight, bias = (self.tensors().get(f"{name}.{kind}" if name else kind) for kind in ("weight", "bias"))
        if weight is not None and bias is not None and len(weight) == 1:
            scores, features = self.fixed_scores_and_features()(torch.arange(self.rows))
            layer = LastLayer(weight, bias, features.double().cpu().numpy())
            if np.abs(layer.scores() - scores.double().cpu().numpy()).max() < CLOSE_SCORES[self.reduced]:
                return layer
        raise BadInput(
            "this method changes the last linear layer, and the network does not end in one with a bias and one output (and a sigmoid at "
            "most) that is not frozen. Use another method, such as bias-score or constrained"
        )

    def evaluate(self, inputs: Tensor | Images | None = None) -> FloatArray:
        """The scores (rows,) of all rows in eval mode, or of other inputs."""
        source = self.inputs if inputs is None else inputs
        if id(source) not in self._feeds:  # a feed holds its inputs, so that their id is not reused
            self._feeds[id(source)] = Feed(source, self.device)
        feed, shard = self._feeds[id(source)], ranks.share(torch.arange(len(source)))  # each process computes its share
        while True:
            scores = torch.zeros(len(feed), self.labels, dtype=torch.float64)
            raw = feed_outputs(self.model, feed, shard, fast=not self._coarse, taken=self._taken)
            scores[shard] = score.as_scores(raw, self.output)
            scores = self._sum_over_processes(scores)
            if not self.reduced or self._coarse or len(scores.unique()) >= min(DISTINCT_SCORES, len(feed)):
                return scores.reshape(-1).numpy()
            self._coarse = True

    def proxy_gradient(self, index: Tensor, weights: Tensor, *, generator: np.random.Generator | None = None) -> None:
        """Sets the gradient to that of the sum of weights (b,) times scores of the rows index (b,), in eval mode.

        With a generator, in training mode with dropout from it: batch norm then normalises by all rows of index, including those with
        weight zero, and its running statistics are updated.
        """
        rows, (weight,) = self._rows_and_values(index, [weights])
        if generator is None:
            shard, w = ranks.share(rows), ranks.share(weight)
            weighted = w.any(1).nonzero()[:, 0]  # in eval mode, rows without weight have no effect
            self._set_gradient(self._proxy_backward, shard[weighted], [w[weighted]], len(rows))
            return
        self.model.zero_grad(set_to_none=False)
        with within_memory(len(rows)):
            with self._training(generator):  # batch statistics need all rows, so every process computes the whole batch
                raw = self._raw_outputs(rows)
            self._proxy_backward(raw, weight.to(self.device))

    def _rows_and_values(self, index: Tensor, values: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """The rows of input (b,) at indices (b * labels,), and the values at these indices as (b, labels)."""
        return index.view(-1, self.labels)[:, 0] // self.labels, [v.view(-1, self.labels) for v in values]

    def _raw_outputs(self, rows: Tensor) -> Tensor:
        with mixed_precision(self.device):
            return self._taken(self.model(self.feed(rows)), len(rows)).float()

    def _proxy_backward(self, raw: Tensor, w: Tensor) -> None:
        ((raw if self.probability else torch.sigmoid(raw)) * w).sum().backward()

    def logit_gradient(self, index: Tensor, slope: Slope, *values: Tensor) -> None:
        """Sets the gradient to that of a loss with derivative `slope(logits, *values)` with respect to the logits, in eval mode.

        The values are (b,), one per row. `slope` must be the same function at every step, so that recordings are found again, treat rows
        independently, and be zero where all values are: rows are divided among processes, and padded with zeros to recorded shapes.
        """

        def backward(raw: Tensor, *row_values: Tensor) -> None:
            logits = score.logit_of(raw, self.probability)
            logits.backward(slope(logits.detach(), *row_values))

        rows, own_values = self._rows_and_values(index, values)
        self._set_gradient(self._backwards.setdefault(slope, backward), ranks.share(rows), list(map(ranks.share, own_values)), len(rows))

    def _set_gradient(self, backward: Backward, rows: Tensor, values: Sequence[Tensor], batch: int) -> None:
        """Sets the gradient of some rows of a batch, with values per row; on a GPU padded, so that few shapes have to be recorded."""
        if self.device.type == "cuda":
            unit = max(8, batch // 32 * 8)
            more = -len(rows) % unit if len(rows) else unit  # rows of weight zero
            rows, values = torch.cat([rows, rows.new_zeros(more)]), [torch.cat([v, v.new_zeros(more, self.labels)]) for v in values]
        parameters = self._trainable()
        for p in parameters:
            if p.grad is None:
                p.grad = torch.zeros_like(p)

        def step(index: Tensor, *row_values: Tensor) -> None:
            torch._foreach_zero_([p.grad for p in parameters if p.grad is not None])
            if len(index):
                backward(self._raw_outputs(index), *row_values)

        with within_memory(len(rows)):
            self._run(step, rows, *values, key=backward)
        ranks.add_up_gradients(parameters)

    def _sum_over_processes(self, tensor: Tensor) -> Tensor:
        on_device = tensor.to(self.device) if ranks.size() > 1 else tensor
        ranks.add_up([on_device])
        return on_device.cpu()

    def adversarial_gradient(self, loss: Tensor, adversary_loss: Tensor, adversary: Sequence[Tensor], weight: float) -> None:
        """Sets the gradient to that of `loss`, minus its projection on that of `adversary_loss`, minus `weight` times the latter.

        The adversary's parameters get the gradient of `adversary_loss`.
        """
        parameters = self._trainable()
        of_adversary = torch.autograd.grad(adversary_loss, [*parameters, *adversary], retain_graph=True)
        push, against = torch.autograd.grad(loss, parameters), of_adversary[: len(parameters)]
        for p, gradient in zip(adversary, of_adversary[len(parameters) :], strict=True):
            p.grad = gradient
        self._set_projected(push, against, weight)

    def _set_projected(self, push: tuple[Tensor, ...], against: tuple[Tensor, ...], weight: float) -> None:
        """Sets the gradient to `push`, minus its projection on `against`, minus `weight` times the latter."""
        dot = torch.stack([x.sum() for x in torch._foreach_mul(push, against)]).sum()
        square = torch.stack([x.sum() for x in torch._foreach_mul(against, against)]).sum()
        share = -(dot / square.clamp(min=1e-12) + weight)
        for p, a, b in zip(self._trainable(), push, torch._foreach_mul(against, share), strict=True):
            p.grad = a + b

    def optimiser(self, name: str, rate: float) -> Optimiser:
        """An optimiser: adam, adamw (not for the paper's MLP), blockwise (see mlp) or sgd."""
        self._optimisers.append(self._make_optimiser(name, rate))
        return self._optimisers[-1]

    def _make_optimiser(self, name: str, rate: float) -> Optimiser:
        parameters = self._trainable()
        if not parameters:
            raise BadInput("every parameter of the network is frozen (requires_grad=False), so there is nothing to fine-tune")
        if name == "blockwise":
            return mlp.Blockwise(parameters, rate)
        return mlp.TorchSteps(mlp.OPTIMISERS.get(name, torch.optim.SGD)(parameters, lr=rate, fused=self.device.type == "cuda"), rate)

    def state(self) -> list[Tensor]:
        """Everything that fine-tuning changes: parameters that are not frozen, and running statistics."""
        return [*(p.data for p in self._trainable()), *self.model.buffers()]

    def mark(self) -> None:
        """Copies the present state, with the moments of its optimisers, for `restore`."""
        self._marked = copy_tensors(self.state(), self._marked)
        for optimiser in self._optimisers:
            optimiser.mark()

    def restore(self) -> None:
        """Restores the state, with the moments of its optimisers, of the last mark."""
        copy_tensors(self._marked, self.state())  # in place: recorded steps read these tensors
        for optimiser in self._optimisers:
            optimiser.restore()

    def keep(self) -> None:
        """Copies the present state, for `kept`."""
        self._kept = copy.deepcopy(self.model)

    def kept(self) -> nn.Module:
        """The network in the state of the last `keep`."""
        model = copy.deepcopy(score.whole_network(self._kept))
        if self.device.type == "cuda":
            model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        return model.to(self.original_device)

    def units(self, pattern: str | Sequence[str], granularity: str = "unit") -> int:
        """The number of units in the layers that match; selects these layers for `influence` and `prune`.

        Units by granularity: unit, channel (of convolutions), input (columns of the table) or head (of attention).
        """
        few = self.feed(torch.arange(min(2, len(self.inputs))))
        self._layers = find_units(self.model, few, pattern, granularity, self.width, self.prefix)
        return self._layers[-1].end

    def influence(self, weights: FloatArray, criterion: str = "gradient") -> tuple[FloatArray, Tensor]:
        """The scores (rows,), and equation (5): the mean gradient of sum_i w_i f_i with respect to every unit (units,).

        `criterion` selects another measure of the units' influence on that sum (see units).
        """
        w = torch.from_numpy(weights).float().view(-1, self.labels)
        weighted = w.any(1)
        # Rows without weight need no backward pass and go last.
        order = torch.cat([ranks.share(weighted.nonzero()[:, 0]), ranks.share((~weighted).nonzero()[:, 0])])
        while True:
            try:
                raw, total = self._influence(order, w, min(self._at_once, max(1, len(order))), criterion)
                break
            except torch.OutOfMemoryError as error:
                self._at_once = score.smaller(min(self._at_once, len(order)), error)
        ranks.add_up([total])
        scores = torch.zeros(len(w), self.labels, dtype=torch.float64)
        scores[order] = score.as_scores(raw, self.output).cpu()
        return self._sum_over_processes(scores).reshape(-1).numpy(), combine_sums(criterion, total) / len(w)

    def _influence(self, order: Tensor, w: Tensor, batch: int, criterion: str) -> tuple[Tensor, Tensor]:
        """Raw outputs of the rows in this order, and the sums (sums, units) that make up the criterion.

        All batches have the same size (the last is padded), so that rounding cannot differ between rows with and without weight, which
        for EOD are positives and negatives: a network without any signal would otherwise appear to separate them.
        """
        total = torch.zeros(sum_count(criterion), self._layers[-1].end, dtype=torch.float64, device=self.device)
        heads = self._layers[0].kind == "head"  # without gradients torch uses another implementation of attention, with other rounding
        outputs = []
        padded = torch.cat([order, order[:1].expand(-len(order) % batch)])
        weights = torch.cat([w[order], w.new_zeros(len(padded) - len(order), self.labels)])
        for part, weight in zip(padded.split(batch), weights.split(batch), strict=True):
            if heads or weight.any():
                raw, batch_sums = gap_gradients(self.model, self._layers, self.feed(part), weight, self.probability, criterion)
                total.add_(batch_sums)
            else:
                with torch.no_grad():
                    raw = self._raw_outputs(part)
            outputs.append(raw)
        return torch.cat(outputs)[: len(order)] if outputs else torch.empty(0), total

    def prune(self, units: Tensor, outgoing: bool = False) -> None:
        """Switches off the marked units (units,): their pre-activation, or their outgoing weights if the next layer is known."""
        if outgoing:
            raise BadInput('outgoing weights of a unit are known only for the MLP; for other networks use cut="pre-activation"')
        switch_off(self.model, self._layers, units)

    def perturb(self, generator: np.random.Generator, spread: float) -> None:
        """Multiplies every original parameter by a draw from N(1, spread^2)."""
        with torch.no_grad():
            for parameter, original in zip(self.model.parameters(), self._original.parameters(), strict=True):
                if original.is_cuda:  # drawn there, since drawing millions on the CPU would dominate the time
                    device_rng = torch.Generator(original.device).manual_seed(int(generator.integers(2**62)))
                    noise = torch.randn(original.shape, generator=device_rng, device=original.device)
                else:
                    noise = torch.from_numpy(generator.standard_normal(original.numel(), dtype=np.float32)).view(original.shape)
                parameter.copy_(original * (1 + spread * noise))


class LastLayer:
    """The last layer of a network under repair, and its inputs (rows, k) on all rows: logits are features @ weight + bias."""

    def __init__(self, weight: Tensor, bias: Tensor, features: FloatArray) -> None:
        self.tensors, self.features = (weight, bias), features
        self.weight, self.bias = weight[0].double().cpu().numpy(), float(bias)  # of the original

    def scores(self) -> FloatArray:
        """The scores (rows,) of the layer as it is."""
        weight, bias = (tensor.double().cpu().numpy() for tensor in self.tensors)
        scores: FloatArray = sigmoid(torch.from_numpy(self.features @ weight[0] + bias)).numpy()
        return scores

    def move(self, share: float, weight: FloatArray, bias: float) -> FloatArray:
        """Puts the layer at this share of the way from the original to another weight (k,) and bias; returns the scores (rows,)."""
        ends = (1 - share) * self.weight + share * weight, np.array([(1 - share) * self.bias + share * bias])
        for tensor, values in zip(self.tensors, ends, strict=True):
            tensor.copy_(torch.from_numpy(values).view_as(tensor))
        return self.scores()


class RepairableMLP(Repairable):
    """The paper's MLP, without frozen parameters; its rows stay on its device, and nothing is in bfloat16."""

    def __init__(self, model: MLP, inputs: Tensor) -> None:
        self.flat = FlatMLP(copy.deepcopy(model).float(), compute_device(model, inputs))
        self.labels = 1
        self.device, self.original_device, self.model = self.flat.device, self.flat.original_device, self.flat.model
        self.x, self.rows = inputs.to(self.device), len(inputs)
        self.frozen, self.reduced = (0, 0), False
        self._original_theta = self.flat.theta.clone()
        self._kept = copy.deepcopy(self.model)
        self._marked = []
        self._optimisers = []
        self._hidden: list[int] = []  # hidden layers whose units may be pruned; empty if columns of the input may
        self._run = self.flat.recorder()
        self._elsewhere: tuple[Tensor | Images, Tensor] = (inputs, self.x)  # the other inputs of an evaluation, on the device

    def scores_and_features(self, index: Tensor, *, generator: np.random.Generator | None = None) -> tuple[Tensor, Tensor]:
        masks = None if generator is None else self.flat.masks(len(index), generator)
        activations: list[Tensor] = []
        logits = self.flat.logits(self._take(index), masks=masks, training=generator is not None, kept=activations)
        return torch.sigmoid(logits), activations[-1].squeeze(0).T

    def fixed_scores_and_features(self) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
        return torch.no_grad()(self.scores_and_features)

    def proxy_gradient(self, index: Tensor, weights: Tensor, *, generator: np.random.Generator | None = None) -> None:
        training = generator is not None
        masks = None if generator is None else self.flat.masks(len(index), generator)

        def step(index: Tensor, weights: Tensor, masks: Tensor | None = None) -> None:
            def slope(logits: Tensor) -> Tensor:
                f = torch.sigmoid(logits)
                return weights * f * (1 - f)

            self.flat.fill_gradient(self._take(index), slope, masks=masks, training=training)

        self._run(step, index, weights, masks, key=training)

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

    def tensors(self) -> dict[str, Tensor]:
        return {name: p.data for name, p in self.flat.parameters.items()}

    def _make_optimiser(self, name: str, rate: float) -> Optimiser:
        if name == "adamw":
            raise BadInput("adamw is for networks other than the paper's MLP; use adam")
        return {"adam": mlp.FlatAdam, "blockwise": mlp.FlatBlockwise}.get(name, mlp.FlatSteps)(self.flat, rate)

    def state(self) -> list[Tensor]:
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
    """A copy of the network, ready for repair on the rows of the cohort; one error with all problems of the two."""
    check_repairable(model, cohort)
    if type(model) is MLP and all(p.requires_grad for p in model.parameters()):
        return RepairableMLP(model, cohort.inputs[:])
    return Repairable(model, cohort.inputs)


def check_repairable(model: nn.Module, cohort: Cohort, changed: bool = True) -> None:
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
            problems.append(f"{cohort.name}: {' '.join(error.problems)}")
    raise_all(problems)
