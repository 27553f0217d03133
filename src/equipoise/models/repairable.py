"""A network under repair: any module, with one or several outputs, on a CPU, on a GPU, or in several processes (see ranks).

`Repairable` is what a method gets as its model. `repairable_mlp` has a faster one for the paper's network.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext

import numpy as np
import torch
from torch import Tensor, nn

from equipoise.data import FloatArray, Images
from equipoise.errors import BadInput
from equipoise.models import ranks
from equipoise.models.devices import Captured, Feed, Pool, compute_device, device_of, in_layout, mixed_precision
from equipoise.models.optimisers import OPTIMISERS, Blockwise, Optimiser, TorchSteps, copied
from equipoise.models.score import (
    as_scores,
    feed_outputs,
    in_pieces,
    logit_of,
    output_kind,
    rows_at_once,
    single_output,
    smaller,
)
from equipoise.models.units import Layer, combine_sums, find_units, gap_gradients, sum_count, switch_off

AT_ONCE = {"cpu": 2**21, "cuda": 2**24}  # input values per pass with a graph, which stores activations
DISTINCT = 50  # distinct scores in bfloat16, below which rounding would determine thresholds and gaps: full precision is used instead
Slope = Callable[..., Tensor]  # logits (b,) and further values of their rows, each (b,) -> derivatives (b,)
Backward = Callable[..., None]  # sets gradients from raw outputs of rows and further values of these rows


class Repairable:
    """A copy of a network with one output per row, and the rows that it is repaired on."""

    select_outputs = staticmethod(single_output)  # as `taken` in `score.outputs`

    def __init__(self, model: nn.Module, inputs: Tensor | Images) -> None:
        self.rows, self.inputs = len(inputs), inputs
        self.output_shape: tuple[int, ...] = (len(inputs),)  # rows of input, and outputs per row if there are several
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
        self._at_once = rows_at_once(self.feed, AT_ONCE.get(self.device.type, AT_ONCE["cpu"]))  # lowered if memory is too small
        self._optimisers: list[Optimiser] = []
        self._steps: dict[tuple[Backward, int], Captured] = {}
        self._backwards: dict[Slope, Backward] = {}
        self._pool: Pool | None = None
        # Numbers of parameter tensors: frozen ones (requires_grad=False), and all.
        self.frozen = (sum(not p.requires_grad for p in model.parameters()), sum(1 for _ in model.parameters()))

    def _trainable(self) -> list[nn.Parameter]:
        return [p for p in self.model.parameters() if p.requires_grad]

    def batches(self, generator: np.random.Generator, batch: int, least: int = 1) -> Iterator[Tensor]:
        """All rows once, shuffled, as indices (b,) of at most `batch` rows; without a last batch of fewer than `least` rows of input."""
        return shuffled(self.rows, generator, batch, least)

    def scores_and_features(self, index: Tensor, *, generator: np.random.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Scores (b,) and features (b, k) of the rows index (b,), with a graph; in eval mode or, with a generator, in training mode."""
        features: list[Tensor] = []
        last = [m for m in self.model.modules() if isinstance(m, nn.Linear)][-1:]
        x = self.feed(index)
        try:
            with ExitStack() as hooks, mixed_precision(self.device), nullcontext() if generator is None else self._training(generator):
                for layer in last:
                    hooks.enter_context(layer.register_forward_pre_hook(lambda _module, args: features.append(args[0])))
                raw = single_output(self.model(x), len(x))
        except torch.OutOfMemoryError as error:
            if not torch.is_grad_enabled():
                raise  # without a graph the caller can use smaller batches
            raise too_large(len(x)) from error
        raw = raw.float()
        last_input = features[-1].reshape(len(x), -1).float() if features and len(features[-1]) == len(x) else raw[:, None]
        return raw if self.probability else torch.sigmoid(raw), last_input

    @contextmanager
    def _training(self, generator: np.random.Generator) -> Iterator[None]:
        """Training mode, with dropout from the generator; eval mode and torch's own generators are restored afterwards."""
        with _seeded(int(generator.integers(2**31)), self.device):
            self.model.train()
            try:
                yield
            finally:
                self.model.eval()

    def fixed_scores_and_features(self) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
        """As `scores_and_features` in eval mode, without a graph; valid as long as the network does not change."""
        batches: list[tuple[Tensor, Tensor]] = []
        with torch.no_grad():  # every row once; random batches would compute each many times
            in_pieces(lambda part: batches.append(self.scores_and_features(part)), torch.arange(self.rows), self.feed)
        scores, features = (torch.cat(parts) for parts in zip(*batches, strict=True))

        def scores_and_features(index: Tensor) -> tuple[Tensor, Tensor]:
            rows = index.to(self.device)
            return scores[rows], features[rows]

        return scores_and_features

    def evaluate(self, inputs: Tensor | Images | None = None) -> FloatArray:
        """The scores (rows,) of all rows in eval mode, or of other inputs."""
        source = self.inputs if inputs is None else inputs
        if id(source) not in self._feeds:  # a feed holds its inputs, so that their id is not reused
            self._feeds[id(source)] = Feed(source, self.device)
        feed = self._feeds[id(source)]
        scores = self._all_scores(feed)
        if self.reduced and not self._coarse and len(scores.unique()) < min(DISTINCT, len(feed)):
            self._coarse = True
            scores = self._all_scores(feed)
        return scores.reshape(-1).numpy()

    def proxy_gradient(self, index: Tensor, weights: Tensor, *, generator: np.random.Generator | None = None) -> None:
        """Sets the gradient to that of the sum of weights (b,) times scores of the rows index (b,), in eval mode.

        With a generator, in training mode with dropout from it: batch norm then normalises by all rows of index, including those with
        weight zero, and its running statistics are updated.
        """
        rows, (weight,) = self._rows_and_values(index, [weights])
        if generator is not None:
            self._proxy_gradient_in_training(rows, weight, generator)
            return
        shard, w = ranks.share(rows), ranks.share(weight)
        weighted = w.reshape(len(w), -1).any(1).nonzero()[:, 0]  # in eval mode, rows without weight have no effect
        self._set_gradient(self._proxy_backward, shard[weighted], [w[weighted]], len(rows))

    def _rows_and_values(self, index: Tensor, values: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """The rows of input (b,) at indices (b,), and the values of these rows."""
        return index, list(values)

    def _proxy_gradient_in_training(self, rows: Tensor, w: Tensor, generator: np.random.Generator) -> None:
        """Sets the gradient in training mode. Batch statistics need all rows, so every process computes the whole batch."""
        self.model.zero_grad(set_to_none=False)
        try:
            with self._training(generator):
                raw = self._raw_outputs(rows)
            self._proxy_backward(raw, w.to(self.device))
        except torch.OutOfMemoryError as error:
            raise too_large(len(rows)) from error

    def _raw_outputs(self, rows: Tensor) -> Tensor:
        with mixed_precision(self.device):
            return self.select_outputs(self.model(self.feed(rows)), len(rows)).float()

    def _proxy_backward(self, raw: Tensor, w: Tensor) -> None:
        ((raw if self.probability else torch.sigmoid(raw)) * w).sum().backward()

    def logit_gradient(self, index: Tensor, slope: Slope, *values: Tensor) -> None:
        """Sets the gradient to that of a loss with derivative `slope(logits, *values)` with respect to the logits (b,), in eval mode.

        The values are (b,), one per row. `slope` must be the same function at every step, treat rows independently, and be zero where
        all values are: rows are divided among processes, and padded with zeros to shapes that have been recorded.
        """
        rows, row_values = self._rows_and_values(index, values)
        self._set_gradient(self._logit_backward(slope), ranks.share(rows), [ranks.share(v) for v in row_values], len(rows))

    def _logit_backward(self, slope: Slope) -> Backward:
        """The function that sets the gradient of a loss with this slope; the same object each time, so that recordings are found again."""
        if slope not in self._backwards:

            def backward(raw: Tensor, *values: Tensor) -> None:
                logits = logit_of(raw, self.probability)
                logits.backward(slope(logits.detach(), *values))

            self._backwards[slope] = backward
        return self._backwards[slope]

    def _set_gradient(self, backward: Backward, rows: Tensor, values: Sequence[Tensor], batch: int) -> None:
        """Sets the gradient of some rows of a batch, with values per row; on a GPU padded, so that few shapes have to be recorded."""
        if self.device.type == "cuda":
            rows, values = self._padded(rows, values, max(8, batch // 32 * 8))
        try:
            self._step(backward, len(rows), [v.shape for v in values])(rows.to(self.device), *(v.to(self.device) for v in values))
        except torch.OutOfMemoryError as error:
            raise too_large(len(rows)) from error
        ranks.add_up_gradients(self._trainable())

    def _padded(self, rows: Tensor, values: Sequence[Tensor], unit: int) -> tuple[Tensor, list[Tensor]]:
        """The rows and values, padded with rows of weight zero to a multiple of `unit`."""
        more = -len(rows) % unit if len(rows) else unit
        return torch.cat([rows, torch.zeros(more, dtype=rows.dtype)]), [torch.cat([v, torch.zeros(more, *v.shape[1:])]) for v in values]

    def _step(self, backward: Backward, rows: int, shapes: Sequence[torch.Size]) -> Captured:
        """The step that sets the gradient by `backward` from the outputs of a number of rows and values of these shapes."""
        parameters = self._trainable()
        for p in parameters:
            if p.grad is None:
                p.grad = torch.zeros_like(p)

        def step(index: Tensor, *values: Tensor) -> None:
            torch._foreach_zero_([p.grad for p in parameters if p.grad is not None])
            if not len(index):
                return
            backward(self._raw_outputs(index), *values)

        if self.device.type != "cuda" or not self.feed.resident:
            return Captured(step, [torch.empty(0)])
        key = (backward, rows)
        if key not in self._steps:
            zeros = [torch.zeros(shape, device=self.device) for shape in shapes]
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            self._steps[key] = Captured(step, [torch.zeros(rows, dtype=torch.int64, device=self.device), *zeros], pool=self._pool)
        return self._steps[key]

    def _all_scores(self, feed: Feed) -> Tensor:
        """The scores of all rows of a feed, each process computing its share."""
        scores = torch.zeros(len(feed), *self.output_shape[1:], dtype=torch.float64)
        shard = ranks.share(torch.arange(len(feed)))
        raw = feed_outputs(self.model, feed, shard, fast=not self._coarse, taken=self.select_outputs)
        scores[shard] = as_scores(raw, self.output)
        return self._sum_over_processes(scores)

    def _sum_over_processes(self, tensor: Tensor) -> Tensor:
        if ranks.size() == 1:
            return tensor
        on_device = tensor.to(self.device)
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
        """An optimiser: adam, adamw (not for the paper's MLP), blockwise (see optimisers) or sgd."""
        self._optimisers.append(self._make_optimiser(name, rate))
        return self._optimisers[-1]

    def _make_optimiser(self, name: str, rate: float) -> Optimiser:
        parameters = self._trainable()
        if not parameters:
            raise BadInput("every parameter of the network is frozen (requires_grad=False), so there is nothing to fine-tune")
        if name == "blockwise":
            return Blockwise(parameters, rate)
        return TorchSteps(OPTIMISERS.get(name, torch.optim.SGD)(parameters, lr=rate, fused=self.device.type == "cuda"), rate)

    def _state(self) -> list[Tensor]:
        """Everything that fine-tuning changes: parameters that are not frozen, and running statistics."""
        return [*(p.data for p in self._trainable()), *self.model.buffers()]

    def mark(self) -> None:
        """Copies the present state, with the moments of its optimisers, for `restore`."""
        self._marked = copied(self._state(), self._marked)
        for optimiser in self._optimisers:
            optimiser.mark()

    def restore(self) -> None:
        """Restores the state, with the moments of its optimisers, of the last mark."""
        copied(self._marked, self._state())  # in place: recorded steps read these tensors
        for optimiser in self._optimisers:
            optimiser.restore()

    def keep(self) -> None:
        """Copies the present state, for `kept`."""
        self._kept = copy.deepcopy(self.model)

    def kept(self) -> nn.Module:
        """The network in the state of the last `keep`."""
        return self._on_original_device(copy.deepcopy(self._kept))

    def _on_original_device(self, model: nn.Module) -> nn.Module:
        """The network on its original device and in its original layout."""
        if self.device.type == "cuda":
            model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        return model.to(self.original_device)

    def units(self, pattern: str | Sequence[str], granularity: str = "unit") -> int:
        """The number of units in the layers that match; selects these layers for `influence` and `prune`.

        Units by granularity: unit, channel (of convolutions), input (columns of the table) or head (of attention).
        """
        self._layers = find_units(self.model, self.feed(torch.arange(min(2, self.rows))), pattern, granularity)
        return self._layers[-1].end

    def influence(self, weights: FloatArray, criterion: str = "gradient") -> tuple[FloatArray, Tensor]:
        """The scores (rows,), and equation (5): the mean gradient of sum_i w_i f_i with respect to every unit (units,).

        `criterion` selects another measure of the units' influence on that sum (see units).
        """
        w = torch.from_numpy(weights).float().view(self.output_shape)
        weighted = w.reshape(len(w), -1).any(1)
        # Rows without weight need no backward pass and go last.
        order = torch.cat([ranks.share(weighted.nonzero()[:, 0]), ranks.share((~weighted).nonzero()[:, 0])])
        while True:
            try:
                raw, total = self._influence(order, w, min(self._at_once, max(1, len(order))), criterion)
                break
            except torch.OutOfMemoryError as error:
                self._at_once = smaller(min(self._at_once, len(order)), error)
        ranks.add_up([total])
        scores = torch.zeros(self.output_shape, dtype=torch.float64)
        scores[order] = as_scores(raw, self.output).cpu()
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
        weights = torch.cat([w[order], torch.zeros(len(padded) - len(order), *w.shape[1:])])
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
                parameter.copy_(original * (1 + spread * _noise(original, generator)))


def shuffled(rows: int, generator: np.random.Generator, batch: int, least: int = 1) -> Iterator[Tensor]:
    """The positions of all rows, shuffled, as indices (b,); without a last batch of fewer than `least`."""
    order = torch.from_numpy(generator.permutation(rows))
    yield from (index for index in order.split(batch) if len(index) >= least)


def _noise(like: Tensor, rng: np.random.Generator) -> Tensor:
    """Normal numbers in the shape of a tensor; for a GPU drawn there, since drawing millions on the CPU would dominate the time."""
    if like.is_cuda:
        device_rng = torch.Generator(like.device).manual_seed(int(rng.integers(2**62)))
        return torch.randn(like.shape, generator=device_rng, device=like.device)
    return torch.from_numpy(rng.standard_normal(like.numel(), dtype=np.float32)).view(like.shape)


def too_large(rows: int) -> BadInput:
    """The error for a batch that does not fit into the device's memory."""
    return BadInput(
        f"the device's memory is too small for {rows} rows of this network at a time. "
        f"Use batch={max(1, rows // 2)} or less, a smaller image size, or the CPU (EQUIPOISE_DEVICE=cpu)."
    )


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seeds torch during the block and restores its generators. On the CPU this leaves other devices alone, which saves 0.2 ms per step."""
    if device.type != "cpu":
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            yield
        return
    before = torch.default_generator.get_state()
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        torch.default_generator.set_state(before)
