"""Scores of any network: in eval mode, without gradients, in the memory of one batch. The network is not changed."""

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial, reduce
from itertools import count

import numpy as np
import torch
from scipy.special import expit
from torch import Tensor, nn

from equipoise.data import Cohort, Images, Scores
from equipoise.errors import BadInput, first_line
from equipoise.models.devices import Feed, compute_device, mixed_precision, on_device

Convolve = Callable[..., Tensor]  # input, weight, bias, stride, padding, dilation, groups -> the ReLU of the convolution
Layers = list[Callable[[Tensor], Tensor]]
log = logging.getLogger(__name__)
_halvings = count()  # how often a batch was too large, in this process
LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)  # their outputs are sums, not probabilities
OUTPUTS = ("auto", "logit", "probability")
TINY = 1e-6  # probabilities are clipped to [TINY, 1 - TINY] before their logit is taken
Taken = Callable[[object, int], Tensor]  # a network's output and the number of rows -> the part that is used
TWO_CLASSES = (
    "Of two classes, return one number: raw[:, 1] - raw[:, 0] if they are logits; or the softmax probability of the positive class, "
    'raw.softmax(1)[:, 1], with model.output = "probability". raw[:, 1] by itself is not a logit.'
)
SIZES = (224, 64, 96, 112, 128, 160, 192, 256, 299, 320, 384, 512)  # common sizes of images in pixels, the most common first
NUMBERS = {"cpu": 2**24, "cuda": 2**25}  # input values per pass; a GPU needs more to be busy


@contextmanager
def fused(model: nn.Module, convolve: Convolve = torch.cudnn_convolution_relu, kind: torch.dtype = torch.bfloat16) -> Iterator[None]:
    """During the block, nn.Sequential runs a convolution, its bias and its ReLU in one cuDNN call, in this precision.

    PyTorch adds the bias and applies the ReLU in separate passes: fused, evaluations of VGG-16 take 13,300 images per second instead of
    8,500 on an H200, with equal outputs. Compiling the network achieves the same but takes longer than a repair. For passes without a graph
    over a network that does not change. Layers with hooks, a mask or a forward of their own are not fused.
    """
    changed = []
    try:
        for module in model.modules():
            if type(module) is nn.Sequential and (layers := _fused_layers(list(module), convolve, kind)) is not None:
                module.forward = partial(reduce, lambda x, layer: layer(x), layers)  # type: ignore[method-assign]
                changed.append(module)
        yield
    finally:
        for module in changed:
            del module.__dict__["forward"]  # the forward of its class applies again


def can_fuse(device: torch.device) -> bool:
    """Whether the device is a GPU with cuDNN and bfloat16."""
    cudnn = device.type == "cuda" and torch.version.cuda is not None and torch.backends.cudnn.is_available()
    return cudnn and torch.cuda.get_device_capability(device) >= (8, 0)


def _fused_layers(modules: list[nn.Module], convolve: Convolve, kind: torch.dtype) -> Layers | None:
    """The layers of a chain, each pair of a convolution and its ReLU as one; None if there is no such pair."""
    layers, rest = Layers(), list(modules)
    while rest:
        layer = rest.pop(0)
        if isinstance(layer, nn.Conv2d) and _fusible(layer) and rest and _plain(rest[0], nn.ReLU):
            layers.append(_fused_convolution(layer, convolve, kind))
            rest.pop(0)
        else:
            layers.append(layer)
    return layers if len(layers) < len(modules) else None


def _fused_convolution(layer: nn.Conv2d, convolve: Convolve, kind: torch.dtype) -> Callable[[Tensor], Tensor]:
    assert layer.bias is not None
    weight, bias = layer.weight.detach().to(kind), layer.bias.detach().to(kind)  # once, not for every batch
    return lambda x: convolve(x.to(kind), weight, bias, layer.stride, layer.padding, layer.dilation, layer.groups)


def _plain(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether a layer is of this exact type, without hooks or a forward of its own."""
    hooks = (module._forward_hooks, module._forward_pre_hooks)
    return type(module) is kind and not any(hooks) and "forward" not in module.__dict__


def _fusible(layer: nn.Conv2d) -> bool:
    return _plain(layer, nn.Conv2d) and layer.bias is not None and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[nn.Module]:
    """The network in eval mode; every submodule's mode is restored afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield model
    finally:
        for module, mode in modes:
            module.training = mode


def rows_at_once(inputs: Tensor | Images | Feed, numbers: int = NUMBERS["cpu"]) -> int:
    """The number of rows per pass: 4,096 of a table, fewer of images, to bound the memory.

    >>> rows_at_once(torch.empty(10, 98)), rows_at_once(torch.empty(10, 3, 224, 224))
    (4096, 111)
    """
    return max(16, min(4096, numbers // max(1, math.prod(inputs.shape[1:]))))


def outputs(model: nn.Module, inputs: Tensor | Images, batch: int | None = None, *, taken: Taken | None = None) -> Tensor:
    """One raw output per row (n,), on the CPU, or an error with the shape of the output; `taken` as in `feed_outputs`."""
    device = compute_device(model, inputs)
    return feed_outputs(on_device(model, device), Feed(inputs, device), torch.arange(len(inputs)), batch, taken=taken)


def feed_outputs(
    model: nn.Module, feed: Feed, rows: Tensor, batch: int | None = None, *, fast: bool = False, taken: Taken | None = None
) -> Tensor:
    """One raw output for each of these rows of a feed, on the CPU; `fast`: in bfloat16 if the device supports it.

    `taken` selects the part of the network's outputs that is used, by default one number per row.
    """
    raw: list[Tensor] = []

    def run(part: Tensor) -> None:
        x = feed(part)
        try:
            found = model(x)
        except (torch.OutOfMemoryError, BadInput):
            raise
        except Exception as error:  # a network may raise anything; the shapes help more than a traceback
            raise BadInput(
                f"the network raised {type(error).__name__} on inputs of shape {tuple(x.shape[1:])}, {x.dtype}: {first_line(error)}. "
                f"Give it the inputs that it was trained on, in the same order. {_shape_advice(model, feed)}".rstrip()
            ) from error
        raw.append((taken or single_output)(found, len(x)).float())

    fusion = fused(model) if fast and can_fuse(feed.device) else nullcontext()
    with evaluating(model), torch.no_grad(), mixed_precision(feed.device) if fast else nullcontext(), fusion:
        in_pieces(run, rows, feed, batch)
    return torch.cat(raw).cpu() if raw else torch.empty(0)


def in_pieces(work: Callable[[Tensor], None], rows: Tensor, feed: Feed, batch: int | None = None) -> None:
    """Calls `work` on all rows of a feed in batches. Halves the batch size if the device's memory is too small; the feed remembers it."""
    start, batch = 0, batch or rows_at_once(feed, NUMBERS.get(feed.device.type, NUMBERS["cpu"]))
    while start < len(rows):
        batch = min(batch, feed.most)
        try:
            work(rows[start : start + batch])
            start += batch
        except torch.OutOfMemoryError as error:
            feed.most = smaller(min(batch, len(rows) - start), error)


def smaller(batch: int, error: torch.OutOfMemoryError) -> int:
    """Half the batch size that was too large for the device's memory; an error for a single row."""
    if batch == 1:
        raise BadInput(
            f"the device's memory is too small for this network and a single row: {first_line(error)}. Use a smaller image size, a "
            "larger device, or the CPU (EQUIPOISE_DEVICE=cpu)."
        ) from error
    torch.cuda.empty_cache()
    level = logging.DEBUG if next(_halvings) else logging.WARNING  # warn once per process: this may happen in every pass over the rows
    log.log(level, "the device's memory is too small for %s rows at a time; continuing with %s", batch, batch // 2)
    return batch // 2


def _shape_advice(model: nn.Module, feed: Feed) -> str:
    """Advice for a network that failed on images: a common shape, with one or three channels, of which it takes a black image."""
    if len(feed.shape) != 4:
        return ""
    channels, *size = feed.shape[1:]
    if isinstance(feed.inputs, Images) and feed.inputs.transform is not None:
        shape = tuple(feed.shape[1:])
        return f"The transform {feed.inputs.transform.named} returns shape {shape}. Correct it, or images.channels."

    def accepts(*shape: int) -> bool:
        try:
            model(torch.zeros(2, *shape, device=feed.device))
        except Exception:  # a network may raise anything
            return False
        return True

    others = [c for c in (1, 3) if c != channels]
    if accepts(channels, *size):
        return ""
    candidates = [(c, *size) for c in others] + [(c, side, side) for c in (channels, *others) for side in SIZES]
    fits = next((candidate for candidate in candidates if accepts(*candidate)), None)
    if fits is None:
        sizes = ", ".join(map(str, sorted(SIZES)))
        return f"None of the common sizes fits ({sizes} px). Read the images as in its training: images.size (size=), or a transform."
    todo = [f"size={fits[1]} (--set images.size={fits[1]})"] if list(fits[1:]) != size else []
    if fits[0] != channels:
        todo.append(f"channels={fits[0]} (--set images.channels={fits[0]})")
    wrap = ", or wrap it in equipoise.models.Repeated for grey images" if fits[0] > channels else ""
    return f"It takes images of shape {fits}: read them with {' and '.join(todo)}{wrap}."


def single_output(raw: object, rows: int) -> Tensor:
    """The network's output as one number per row, or an error."""
    if not isinstance(raw, Tensor):
        raise BadInput(f"the network must return one tensor with one number per row; it returned {type(raw).__name__}. Wrap it.")
    if raw.shape not in ((rows,), (rows, 1)):
        raise BadInput(
            f"the network must return one logit or probability per row, shape ({rows},) or ({rows}, 1); it returned {tuple(raw.shape)}. "
            + (f"Wrap it. {TWO_CLASSES}" if raw.shape == (rows, 2) else "Wrap it in a module that returns only the positive class.")
        )
    return raw.reshape(rows)


def output_kind(model: nn.Module, inputs: Tensor | Images, output: str = "auto") -> str:
    """'logit' or 'probability': as given, or from the network's attribute `output`, or auto-detected.

    The output of a linear layer is a logit. Otherwise the values decide. Logits may all lie in [0, 1] by chance, so a few inputs are also
    scaled by 1,000: a probability stays within [0, 1], a logit does not.
    """
    if output not in OUTPUTS:
        raise BadInput(f"output must be one of {', '.join(OUTPUTS)}; got {output!r}")
    declared = getattr(model, "output", "auto") if output == "auto" else output
    if isinstance(declared, str) and declared in ("logit", "probability"):
        return declared
    few = inputs[:64]
    if _ends_in_a_layer(model, few[:2]):
        return "logit"
    return "probability" if looks_like_probability(lambda x: outputs(model, x), few) else "logit"


def looks_like_probability(network: Callable[[Tensor], Tensor], few: Tensor) -> bool:
    """Whether the outputs for a few inputs, and for the same inputs scaled by 1,000, lie in [0, 1]."""
    raw = [network(few)]
    for scale in (1000, -1000) if few.is_floating_point() else ():
        with suppress(BadInput):  # a network may reject such inputs
            raw.append(network(few * scale))
    values = torch.cat(raw)
    values = values[~values.isnan()]  # such as a logarithm of a negative input
    return len(values) > 0 and bool(((values >= 0) & (values <= 1)).all())


def _ends_in_a_layer(model: nn.Module, few: Tensor) -> bool:
    """Whether the network returns the output of its last linear or convolutional layer."""
    with recorded_outputs(model, LAYERS) as recorded:
        raw = outputs(model, few)
    return bool(recorded) and torch.equal(recorded[-1][1].reshape(-1).float().cpu(), raw)  # of another size, it is not equal


@contextmanager
def recorded_outputs(model: nn.Module, kinds: tuple[type[nn.Module], ...]) -> Iterator[list[tuple[str, Tensor]]]:
    """Records the name and output of every call of a layer of these types during the block; no hook remains afterwards.

    The hooks also run in a copy of the network, such as the one that `outputs` makes on another device.
    """
    calls: list[tuple[str, Tensor]] = []

    def record(name: str, _module: nn.Module, _inputs: object, output: Tensor) -> None:
        calls.append((name, output.detach()))

    with ExitStack() as hooks:
        for name, module in model.named_modules():
            if isinstance(module, kinds):
                hooks.enter_context(module.register_forward_hook(partial(record, name)))
        yield calls


def sigmoid(logits: Tensor) -> Tensor:
    """The scores of logits in double precision, equal for equal logits: torch's differ in the last bit by position in the tensor."""
    return torch.from_numpy(np.asarray(expit(logits.detach().cpu().double().numpy())))


def as_scores(raw: Tensor, output: str) -> Tensor:
    """The scores in double precision of a network's raw outputs, which are logits or probabilities."""
    return sigmoid(raw) if output == "logit" else raw.double()


def scores_from(raw: Tensor, output: str, cohort: Cohort) -> Scores:
    """The cohort's scores from a network's raw outputs (n,). Logits are kept, since near 1 different ones have the same score."""
    scores = Scores.of(cohort, as_scores(raw, output).numpy())
    return replace(scores, logit=raw.detach().cpu().double().numpy()) if output == "logit" else scores


def logit_of(raw: Tensor, probability: bool) -> Tensor:
    """The logit of a raw output."""
    return torch.logit(raw, TINY) if probability else raw


def network_scores(model: nn.Module, cohort: Cohort, output: str = "auto", raw: Tensor | None = None) -> Scores:
    """The cohort's scores by a network that returns one logit or one probability per row; `raw` are its outputs, if they are known."""
    if raw is None:
        raw = outputs(model, cohort.inputs)
    if bad := int((~torch.isfinite(raw)).sum()):
        raise BadInput(
            f"the network gave NaN or infinity for {bad:,} of {len(raw):,} rows of {cohort.name!r}. "
            "Check for missing or unscaled inputs, or weights that diverged in training."
        )
    return scores_from(raw, output_kind(model, cohort.inputs, output), cohort)


def set_output(model: nn.Module, asked: str) -> None:
    """Marks the network's output as a logit or a probability, so that every method reads it the same way; `auto` changes nothing."""
    if asked == "auto":
        return
    if not isinstance(getattr(model, "output", ""), str):
        raise BadInput(f"the network cannot be marked as returning a {asked}: its attribute `output` is something else. Wrap it.")
    model.output = asked  # type: ignore[assignment]


def resolve_output(model: nn.Module, inputs: Tensor | Images, asked: str = "auto") -> str:
    """The type of the network's output, logit or probability: auto-detected, or as requested, and then marked on the network."""
    detected = output_kind(model, inputs)
    if asked in ("auto", detected):
        return detected
    set_output(model, asked)
    return output_kind(model, inputs, asked)
