"""Any one module under repair, with one or several outputs: on a CPU, on a GPU, or in several processes (see ranks)."""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext

import numpy as np
import torch
from torch import Tensor, nn

from equipoise.data import Images
from equipoise.errors import BadInput
from equipoise.models import ranks
from equipoise.models.devices import Captured, Feed, Pool, compute_device, device_of, in_layout, mixed_precision
from equipoise.models.many_outputs import WRAPPED, ChosenOutputs, as_matrix
from equipoise.models.optimisers import OPTIMISERS, Blockwise, SingleSteps, copied
from equipoise.models.protocol import BoolArray, FloatArray, Optimiser, Replicas, Slope, adversarial_gradients, shuffled
from equipoise.models.score import (
    as_scores,
    evaluating,
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
Backward = Callable[..., None]  # sets gradients from raw outputs of rows and further values of these rows


class SingleReplica(Replicas):
    """Any one module with one output per row."""

    select_outputs = staticmethod(single_output)  # as `taken` in `score.outputs`

    def __init__(self, model: nn.Module, inputs: Tensor | Images) -> None:
        self.size, self.rows, self.inputs = 1, len(inputs), inputs
        self.output_shape: tuple[int, ...] = (len(inputs),)  # rows of input, and outputs per row if there are several
        self.original_device, self.device = device_of(model), compute_device(model, inputs)
        self.model = in_layout(copy.deepcopy(model).eval().to(self.device), inputs)
        ranks.agree(self.model)
        self.feed = Feed(inputs, self.device)
        self._feeds: dict[int, Feed] = {id(inputs): self.feed}
        self.output = output_kind(model, inputs)
        self.probability = self.output == "probability"
        self.reduced = self.device.type == "cuda"  # scores during the repair are in bfloat16
        self._coarse = False  # whether bfloat16 gives nearly all rows the same score
        self._original = copy.deepcopy(self.model)
        self._kept = copy.deepcopy(self.model)
        self._marked: list[Tensor] = []
        self._layers: list[Layer] = []
        self._at_once = rows_at_once(self.feed, AT_ONCE.get(self.device.type, AT_ONCE["cpu"]))  # lowered if memory is too small
        self._optimisers = []
        self._frozen = np.zeros(1, bool)
        self._steps: dict[tuple[Backward, int], Captured] = {}
        self._backwards: dict[Slope, Backward] = {}
        self._pool: Pool | None = None
        self.frozen = (sum(not p.requires_grad for p in model.parameters()), sum(1 for _ in model.parameters()))

    def _trainable(self) -> list[nn.Parameter]:
        return [p for p in self.model.parameters() if p.requires_grad]

    def scores_and_features(self, index: Tensor, *, generators: Sequence[np.random.Generator] | None = None) -> tuple[Tensor, Tensor]:
        features: list[Tensor] = []
        last = [m for m in self.model.modules() if isinstance(m, nn.Linear)][-1:]
        x = self.feed(index[0])
        try:
            with ExitStack() as hooks, mixed_precision(self.device), nullcontext() if generators is None else self._training(generators):
                for layer in last:
                    hooks.enter_context(layer.register_forward_pre_hook(lambda _module, args: features.append(args[0])))
                raw = single_output(self.model(x), len(x))
        except torch.OutOfMemoryError as error:
            if not torch.is_grad_enabled():
                raise  # without a graph the caller can use smaller batches
            raise too_large(len(x)) from error
        raw = raw.float()
        last_input = features[-1].reshape(len(x), -1).float() if features and len(features[-1]) == len(x) else raw[:, None]
        return (raw if self.probability else torch.sigmoid(raw))[None], last_input[None]

    @contextmanager
    def _training(self, generators: Sequence[np.random.Generator]) -> Iterator[None]:
        """Training mode, with dropout from the generator; eval mode and torch's own generators are restored afterwards."""
        with _seeded(int(generators[0].integers(2**31)), self.device):
            self.model.train()
            try:
                yield
            finally:
                self.model.eval()

    def fixed_scores_and_features(self) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
        batches: list[tuple[Tensor, Tensor]] = []
        with torch.no_grad():  # every row once; random batches would compute each many times
            in_pieces(lambda part: batches.append(self.scores_and_features(part[None])), torch.arange(self.rows), self.feed)
        scores, features = (torch.cat(parts, dim=1) for parts in zip(*batches, strict=True))

        def scores_and_features(index: Tensor) -> tuple[Tensor, Tensor]:
            rows = index[0].to(self.device)
            return scores[:, rows], features[:, rows]

        return scores_and_features

    def evaluate(self, inputs: Sequence[Tensor] | None = None) -> FloatArray:
        source = self.inputs if inputs is None else inputs[0]
        if id(source) not in self._feeds:  # a feed holds its inputs, so that their id is not reused
            self._feeds[id(source)] = Feed(source, self.device)
        feed = self._feeds[id(source)]
        scores = self._all_scores(feed)
        if self.reduced and not self._coarse and len(scores.unique()) < min(DISTINCT, len(feed)):
            self._coarse = True
            scores = self._all_scores(feed)
        return scores.reshape(1, -1).numpy()

    def proxy_gradient(self, index: Tensor, weights: Tensor, *, generators: Sequence[np.random.Generator] | None = None) -> None:
        rows, (weight,) = self._rows_and_values(index, [weights])
        if generators is not None:
            self._proxy_gradient_in_training(rows, weight, generators)
            return
        shard, w = ranks.share(rows), ranks.share(weight)
        weighted = w.reshape(len(w), -1).any(1).nonzero()[:, 0]  # in eval mode, rows without weight have no effect
        self._set_gradient(self._proxy_backward, shard[weighted], [w[weighted]], len(rows))

    def _rows_and_values(self, index: Tensor, values: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """The rows of input (b,) at indices (1, b), and the values of these rows."""
        return index[0], [v[0] for v in values]

    def _proxy_gradient_in_training(self, rows: Tensor, w: Tensor, generators: Sequence[np.random.Generator]) -> None:
        """Sets the gradient in training mode. Batch statistics need all rows, so every process computes the whole batch."""
        self.model.zero_grad(set_to_none=False)
        try:
            with self._training(generators):
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
        rows, row_values = self._rows_and_values(index, values)
        self._set_gradient(self._logit_backward(slope), ranks.share(rows), [ranks.share(v) for v in row_values], len(rows))

    def _logit_backward(self, slope: Slope) -> Backward:
        """The function that sets the gradient of a loss with this slope; the same object each time, so that recordings are found again."""
        if slope not in self._backwards:

            def backward(raw: Tensor, *values: Tensor) -> None:
                logits = logit_of(raw, self.probability)
                logits.backward(slope(logits.detach()[None], *(v[None] for v in values))[0])

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
        parameters = self._trainable()
        push, against = adversarial_gradients(loss, adversary_loss, parameters, adversary)
        dot = torch.stack([x.sum() for x in torch._foreach_mul(push, against)]).sum()
        square = torch.stack([x.sum() for x in torch._foreach_mul(against, against)]).sum()
        share = -(dot / square.clamp(min=1e-12) + weight)
        for p, a, b in zip(parameters, push, torch._foreach_mul(against, share), strict=True):
            p.grad = a + b

    def _make_optimiser(self, name: str, rate: float) -> Optimiser:
        parameters = self._trainable()
        if not parameters:
            raise BadInput("every parameter of the network is frozen (requires_grad=False), so there is nothing to fine-tune")
        if name == "blockwise":
            return SingleSteps(Blockwise(parameters, rate))
        return SingleSteps(OPTIMISERS.get(name, torch.optim.SGD)(parameters, lr=rate, fused=self.device.type == "cuda"))

    def _state(self) -> list[Tensor]:
        """Everything that fine-tuning changes: parameters that are not frozen, and running statistics."""
        return [*(p.data for p in self._trainable()), *self.model.buffers()]

    def _mark(self, replicates: BoolArray) -> None:
        if replicates[0]:
            self._marked = copied(self._state(), self._marked)

    def _restore(self, replicates: BoolArray) -> None:
        if replicates[0]:
            copied(self._marked, self._state())  # in place: recorded steps read these tensors

    def keep(self, replicates: BoolArray) -> None:
        if replicates[0]:
            self._kept = copy.deepcopy(self.model)

    def kept(self) -> list[nn.Module]:
        return [self._on_original_device(copy.deepcopy(self._kept))]

    def _on_original_device(self, model: nn.Module) -> nn.Module:
        """The network on its original device and in its original layout."""
        if self.device.type == "cuda":
            model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        return model.to(self.original_device)

    def units(self, pattern: str | Sequence[str], granularity: str = "unit") -> int:
        self._layers = find_units(self.model, self.feed(torch.arange(min(2, self.rows))), pattern, granularity)
        return self._layers[-1].end

    def influence(self, weights: FloatArray, criterion: str = "gradient") -> tuple[FloatArray, Tensor]:
        w = torch.from_numpy(weights[0]).float().view(self.output_shape)
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
        return self._sum_over_processes(scores).reshape(1, -1).numpy(), combine_sums(criterion, total)[None] / len(w)

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
        if outgoing:
            raise BadInput('outgoing weights of a unit are known only for the MLP; for other networks use cut="pre-activation"')
        switch_off(self.model, self._layers, units[0])

    def perturb(self, generators: Sequence[np.random.Generator], spread: float) -> None:
        with torch.no_grad():
            for parameter, original in zip(self.model.parameters(), self._original.parameters(), strict=True):
                parameter.copy_(original * (1 + spread * _noise(original, generators[0])))


class ManyOutputs(SingleReplica):
    """One module with several outputs. A row of a method is a pair of image i and label l, at i * labels + l."""

    select_outputs = staticmethod(as_matrix)

    def __init__(self, model: ChosenOutputs, inputs: Tensor | Images) -> None:
        super().__init__(model, inputs)
        self.images, self.labels = len(inputs), len(model.columns)
        self.rows, self.output_shape = self.images * self.labels, (self.images, self.labels)
        with evaluating(self.model), torch.no_grad():
            few = self.feed(torch.arange(min(2, self.images)))
            self.width = as_matrix(self.model.get_submodule("inner")(few), len(few)).shape[1]

    def batches(self, generators: Sequence[np.random.Generator], batch: int, least: int = 1) -> Iterator[Tensor]:
        """Batches of whole images with at most `batch` pairs, but with `least` images or more."""
        for images in shuffled(self.images, generators, max(least, batch // self.labels), least):
            yield (images[:, :, None] * self.labels + torch.arange(self.labels)).reshape(len(images), -1)

    def _rows_and_values(self, index: Tensor, values: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """The images (b,) of pairs (1, b * labels), and the values of the pairs as (b, labels)."""
        images = index[0].view(-1, self.labels)[:, 0] // self.labels
        return images, [v[0].view(-1, self.labels) for v in values]

    def units(self, pattern: str | Sequence[str], granularity: str = "unit") -> int:
        patterns = [f"{WRAPPED}{p}" for p in ([pattern] if isinstance(pattern, str) else pattern)]
        few = self.feed(torch.arange(min(2, self.images)))
        self._layers = find_units(self.model, few, patterns, granularity, self.width)
        return self._layers[-1].end

    def kept(self) -> list[nn.Module]:
        return [self._on_original_device(copy.deepcopy(self._kept.get_submodule("inner")))]


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
