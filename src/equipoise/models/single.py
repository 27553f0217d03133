"""Any one module under repair: on a CPU, on a GPU, or in several processes (see ranks)."""

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
from equipoise.models.optimisers import OPTIMISERS, Blockwise, SingleSteps, copied
from equipoise.models.protocol import BoolArray, FloatArray, Optimiser, Replicas, Slope
from equipoise.models.score import feed_outputs, in_pieces, output_kind, rows_at_once, sigmoid, single_output, smaller
from equipoise.models.units import Layer, find_units, gap_gradients, settled, sums, switch_off

AT_ONCE = {"cpu": 2**21, "cuda": 2**24}  # numbers of input per pass with a graph, which stores activations
TINY = 1e-6  # probabilities are clipped to [TINY, 1 - TINY] before their logit is taken
DISTINCT = 50  # scores in bfloat16: with fewer, thresholds and gaps would be those of the rounding, and full precision is used
Backward = Callable[..., None]  # sets gradients from raw outputs of rows and further values of these rows


class SingleReplica(Replicas):
    """Any one module."""

    taken = staticmethod(single_output)  # selects the outputs of the rows

    def __init__(self, model: nn.Module, inputs: Tensor | Images) -> None:
        self.size, self.rows, self.inputs = 1, len(inputs), inputs
        self.grid: tuple[int, ...] = (len(inputs),)  # rows of input, and outputs per row if there are several
        self.home, self.device = device_of(model), compute_device(model, inputs)
        self.model = in_layout(copy.deepcopy(model).eval().to(self.device), inputs)
        ranks.agree(self.model)
        self.feed = Feed(inputs, self.device)
        self._feeds: dict[int, Feed] = {id(inputs): self.feed}
        self.probability = output_kind(model, inputs) == "probability"
        self.reduced = self.device.type == "cuda"  # scores during the repair are in bfloat16
        self._coarse = False  # bfloat16 would give nearly all rows the same score
        self._original = copy.deepcopy(self.model)
        self._kept = copy.deepcopy(self.model)
        self._marked: list[Tensor] = []
        self._layers: list[Layer] = []
        self._at_once = rows_at_once(self.feed, AT_ONCE.get(self.device.type, AT_ONCE["cpu"]))  # fewer once memory was too small
        self._optimisers = []
        self._frozen = np.zeros(1, bool)
        self._steps: dict[tuple[Backward, int], Captured] = {}
        self._backwards: dict[Slope, Backward] = {}
        self._pool: Pool | None = None
        frozen = sum(not p.requires_grad for p in model.parameters())
        total = sum(1 for _ in model.parameters())
        self.frozen = (frozen, total)

    def scores_and_features(self, index: Tensor, *, generators: Sequence[np.random.Generator] | None = None) -> tuple[Tensor, Tensor]:
        features: list[Tensor] = []
        last = [m for m in self.model.modules() if isinstance(m, nn.Linear)][-1:]
        x = self.feed(index[0])
        try:
            with ExitStack() as hooks, mixed_precision(self.device), nullcontext() if generators is None else self._training(generators):
                for layer in last:
                    hooks.enter_context(layer.register_forward_pre_hook(lambda _m, args: features.append(args[0])))
                raw = single_output(self.model(x), len(x))
        except torch.OutOfMemoryError as error:
            if not torch.is_grad_enabled():
                raise  # without a graph the caller can use smaller batches
            raise too_large(len(x)) from error
        raw = raw.float()
        seen = features[-1].reshape(len(x), -1).float() if features and len(features[-1]) == len(x) else raw[:, None]
        return (raw if self.probability else torch.sigmoid(raw))[None], seen[None]

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
        found: list[tuple[Tensor, Tensor]] = []
        with torch.no_grad():  # every row once; random batches would compute each many times
            in_pieces(lambda part: found.append(self.scores_and_features(part[None])), torch.arange(self.rows), self.feed)
        scores, features = (torch.cat(parts, dim=1) for parts in zip(*found, strict=True))

        def scores_and_features(index: Tensor) -> tuple[Tensor, Tensor]:
            rows = index[0].to(self.device)
            return scores[:, rows], features[:, rows]

        return scores_and_features

    def evaluate(self, inputs: Sequence[Tensor] | None = None) -> FloatArray:
        wanted = self.inputs if inputs is None else inputs[0]
        if id(wanted) not in self._feeds:  # a feed holds its inputs, so that their id is not reused
            self._feeds[id(wanted)] = Feed(wanted, self.device)
        feed, rows = self._feeds[id(wanted)], torch.arange(len(self._feeds[id(wanted)]))
        scores = self._gathered(feed, rows)
        if self.reduced and not self._coarse and len(scores.unique()) < min(DISTINCT, len(rows)):
            self._coarse = True
            scores = self._gathered(feed, rows)
        return scores.reshape(1, -1).numpy()

    def proxy_gradient(self, index: Tensor, weights: Tensor, *, generators: Sequence[np.random.Generator] | None = None) -> None:
        everyone, (weight,) = self._given(index, [weights])
        if generators is not None:
            self._proxy_gradient_in_training(everyone, weight, generators)
            return
        rows, w = ranks.share(everyone), ranks.share(weight)
        wanted = w.reshape(len(w), -1).any(1).nonzero()[:, 0]  # in eval mode, rows without weight have no effect
        self._leave_gradient(self._proxy_backward, rows[wanted], [w[wanted]], len(everyone))

    def _given(self, index: Tensor, given: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """The rows of input (b,) of indices, and what is given of them."""
        return index[0], [g[0] for g in given]

    def _proxy_gradient_in_training(self, rows: Tensor, w: Tensor, generators: Sequence[np.random.Generator]) -> None:
        """Sets the gradient in training mode. Batch statistics need all rows, so every process computes the whole batch."""
        self.model.zero_grad(set_to_none=False)
        try:
            with self._training(generators), mixed_precision(self.device):
                raw = self.taken(self.model(self.feed(rows)), len(rows)).float()
            self._proxy_backward(raw, w.to(self.device))
        except torch.OutOfMemoryError as error:
            raise too_large(len(rows)) from error

    def _proxy_backward(self, raw: Tensor, w: Tensor) -> None:
        ((raw if self.probability else torch.sigmoid(raw)) * w).sum().backward()

    def logit_gradient(self, index: Tensor, slope: Slope, *given: Tensor) -> None:
        everyone, values = self._given(index, given)
        self._leave_gradient(self._logit_backward(slope), ranks.share(everyone), [ranks.share(v) for v in values], len(everyone))

    def _logit_backward(self, slope: Slope) -> Backward:
        """The function that sets the gradient of a loss with this slope; the same object each time, so that recordings are found again."""
        if slope not in self._backwards:

            def backward(raw: Tensor, *shares: Tensor) -> None:
                logits = torch.logit(raw, eps=TINY) if self.probability else raw
                logits.backward(slope(logits.detach()[None], *(s[None] for s in shares))[0])

            self._backwards[slope] = backward
        return self._backwards[slope]

    def _leave_gradient(self, backward: Backward, rows: Tensor, given: Sequence[Tensor], batch: int) -> None:
        """Sets the gradient of some rows out of a batch, with given values per row; on a GPU padded to one of a few numbers of rows."""
        if self.device.type == "cuda":
            rows, given = self._padded(rows, given, max(8, batch // 32 * 8))
        try:
            self._step(backward, len(rows), [g.shape for g in given])(rows.to(self.device), *(g.to(self.device) for g in given))
        except torch.OutOfMemoryError as error:
            raise too_large(len(rows)) from error
        ranks.add_up_gradients([p for p in self.model.parameters() if p.requires_grad])

    def _padded(self, rows: Tensor, given: Sequence[Tensor], unit: int) -> tuple[Tensor, list[Tensor]]:
        """Padded with rows of weight zero to a multiple of `unit`, so that few shapes have to be recorded."""
        more = -len(rows) % unit if len(rows) else unit
        return torch.cat([rows, torch.zeros(more, dtype=rows.dtype)]), [torch.cat([g, torch.zeros(more, *g.shape[1:])]) for g in given]

    def _step(self, backward: Backward, rows: int, given: Sequence[torch.Size]) -> Captured:
        """The step that sets the gradient by `backward` from the outputs of a number of rows."""
        mine = [p for p in self.model.parameters() if p.requires_grad]
        for p in mine:
            if p.grad is None:
                p.grad = torch.zeros_like(p)

        def step(index: Tensor, *numbers: Tensor) -> None:
            torch._foreach_zero_([p.grad for p in mine if p.grad is not None])
            if not len(index):
                return
            with mixed_precision(self.device):
                raw = self.taken(self.model(self.feed(index)), len(index)).float()
            backward(raw, *numbers)

        if self.device.type != "cuda" or not self.feed.resident:
            return Captured(step, [torch.empty(0)])
        key = (backward, rows)
        if key not in self._steps:
            zeros = [torch.zeros(shape, device=self.device) for shape in given]
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            self._steps[key] = Captured(step, [torch.zeros(rows, dtype=torch.int64, device=self.device), *zeros], pool=self._pool)
        return self._steps[key]

    def _scores(self, feed: Feed, rows: Tensor) -> Tensor:
        raw = feed_outputs(self.model, feed, rows, fast=not self._coarse, taken=self.taken).double()
        return raw if self.probability else sigmoid(raw)

    def _gathered(self, feed: Feed, rows: Tensor) -> Tensor:
        """The scores of a feed at `rows`, each process computing its share; those of other rows are zero."""
        scores = torch.zeros(len(feed), *self.grid[1:], dtype=torch.float64)
        mine = ranks.share(rows)
        scores[mine] = self._scores(feed, mine)
        return self._added(scores)

    def _added(self, tensor: Tensor) -> Tensor:
        """The sum over the processes."""
        there = tensor.to(self.device)
        ranks.add_up([there])
        return there.cpu() if ranks.size() > 1 else tensor

    def adversarial_gradient(self, own: Tensor, theirs: Tensor, adversary: Sequence[Tensor], weight: float) -> None:
        mine = [p for p in self.model.parameters() if p.requires_grad]
        pull = torch.autograd.grad(theirs, [*mine, *adversary], retain_graph=True)
        push = torch.autograd.grad(own, mine)
        for p, gradient in zip(adversary, pull[len(mine) :], strict=True):
            p.grad = gradient
        against = list(pull[: len(mine)])
        dot = torch.stack([x.sum() for x in torch._foreach_mul(push, against)]).sum()
        square = torch.stack([x.sum() for x in torch._foreach_mul(against, against)]).sum()
        share = -(dot / square.clamp(min=1e-12) + weight)
        for p, a, b in zip(mine, push, torch._foreach_mul(against, share), strict=True):
            p.grad = a + b

    def _steps_by(self, name: str, rate: float) -> Optimiser:
        wanted = [p for p in self.model.parameters() if p.requires_grad]
        if not wanted:
            raise BadInput("every parameter of the network is frozen (requires_grad=False), so there is nothing to fine-tune")
        if name == "blockwise":
            return SingleSteps(Blockwise(wanted, rate))
        return SingleSteps(OPTIMISERS.get(name, torch.optim.SGD)(wanted, lr=rate, fused=self.device.type == "cuda"))

    def _state(self) -> list[Tensor]:
        """Everything that fine-tuning changes: parameters that are not frozen, and running statistics."""
        return [*(p.data for p in self.model.parameters() if p.requires_grad), *self.model.buffers()]

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
        return [self._sent_home(copy.deepcopy(self._kept))]

    def _sent_home(self, model: nn.Module) -> nn.Module:
        """The network on its original device and in its original layout."""
        if self.device.type == "cuda":
            model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        return model.to(self.home)

    def units(self, pattern: str | Sequence[str], granularity: str = "unit") -> int:
        self._layers = find_units(self.model, self.feed(torch.arange(min(2, self.rows))), pattern, granularity)
        return self._layers[-1].start + self._layers[-1].size

    def influence(self, weights: FloatArray, criterion: str = "gradient") -> tuple[FloatArray, Tensor]:
        w = torch.from_numpy(weights[0]).float().view(self.grid)
        some = w.reshape(len(w), -1).any(1)
        # Rows without weight need no backward pass and go last.
        order = torch.cat([ranks.share(some.nonzero()[:, 0]), ranks.share((~some).nonzero()[:, 0])])
        while True:
            try:
                raw, total = self._influence(order, w, min(self._at_once, max(1, len(order))), criterion)
                break
            except torch.OutOfMemoryError as error:
                self._at_once = smaller(min(self._at_once, len(order)), error)
        ranks.add_up([total])
        scores = raw.double() if self.probability else sigmoid(raw)
        everyone = torch.zeros(self.grid, dtype=torch.float64)
        everyone[order] = scores.cpu()
        return self._added(everyone).reshape(1, -1).numpy(), settled(criterion, total)[None] / len(w)

    def _influence(self, order: Tensor, w: Tensor, batch: int, criterion: str) -> tuple[Tensor, Tensor]:
        """Raw outputs of the rows in this order, and the sums (sums, units) that make up the criterion.

        All pieces have the same size (the last is filled up), so that rounding cannot differ between rows with and without weight, which
        for EOD are positives and negatives: a network without any signal would otherwise appear to separate them.
        """
        units = self._layers[-1].start + self._layers[-1].size
        total = torch.zeros(sums(criterion), units, dtype=torch.float64, device=self.device)
        heads = self._layers[0].kind == "head"  # without gradients torch uses another implementation of attention, with other rounding
        found = []
        filled = torch.cat([order, order[:1].expand(-len(order) % batch)])
        weighted = torch.cat([w[order], torch.zeros(len(filled) - len(order), *w.shape[1:])])
        for part, weight in zip(filled.split(batch), weighted.split(batch), strict=True):
            if heads or weight.any():
                raw, found_here = gap_gradients(self.model, self._layers, self.feed(part), weight, self.probability, criterion)
                total.add_(found_here)
            else:
                with torch.no_grad(), mixed_precision(self.device):
                    raw = self.taken(self.model(self.feed(part)), len(part)).float()
            found.append(raw)
        return torch.cat(found)[: len(order)] if found else torch.empty(0), total

    def prune(self, units: Tensor, outgoing: bool = False) -> None:
        if outgoing:
            raise BadInput('outgoing weights of a unit are known only for the MLP; for other networks use cut="pre-activation"')
        switch_off(self.model, self._layers, units[0])

    def perturb(self, generators: Sequence[np.random.Generator], spread: float) -> None:
        with torch.no_grad():
            for mine, original in zip(self.model.parameters(), self._original.parameters(), strict=True):
                mine.copy_(original * (1 + spread * _noise(original, generators[0])))


def _noise(like: Tensor, rng: np.random.Generator) -> Tensor:
    """Normal numbers in the shape of a tensor; for a GPU drawn there, since drawing millions on the CPU would dominate the time."""
    if like.is_cuda:
        own = torch.Generator(like.device).manual_seed(int(rng.integers(2**62)))
        return torch.randn(like.shape, generator=own, device=like.device)
    return torch.from_numpy(rng.standard_normal(like.numel(), dtype=np.float32)).view(like.shape)


def too_large(rows: int) -> BadInput:
    """The error for a batch that does not fit into the device's memory."""
    return BadInput(
        f"the device's memory is too small for {rows} rows of this network at a time. "
        f"Use batch={max(1, rows // 2)} or less, a smaller image size, or the CPU (EQUIPOISE_DEVICE=cpu)."
    )


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Torch's random numbers from a seed, and as they were afterwards. On the CPU no other device is asked, which takes 0.2 ms a step."""
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
