"""Scores of any network: in eval mode, without gradients, in the memory of one batch. The network is not changed.

Of a network with several outputs, the scores are those of one of them, of some labels, or of mutually exclusive classes. The score of a
label is the sigmoid of its logit, or its probability; the score of a class is its softmax probability, which is the sigmoid of its log odds
against all other classes. So methods see scores in [0, 1] with logits behind them, as for a network with one output.
"""

import logging
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial, reduce
from itertools import count
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary

import numpy as np
import torch
from scipy.special import expit
from torch import Tensor, nn
from torch.func import functional_call

from equipoise.data import UNKNOWN, Cohort, FloatArray, Images, IntArray, LabelKind, Scores
from equipoise.errors import BadInput, UnknownName, did_you_mean, first_line, pick, raise_all
from equipoise.models.devices import Feed, compute_device, device_of, mixed_precision, on_device

M = TypeVar("M", bound=nn.Module)
Convolve = Callable[..., Tensor]  # input, weight, bias, stride, padding, dilation, groups -> the ReLU of the convolution
Layers = list[Callable[[Tensor], Tensor]]
log = logging.getLogger(__name__)
_halvings = count()  # how often a batch was too large, in this process
LINEAR_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)  # their outputs are sums, not probabilities
PADDINGS = ("same", "valid")  # of a convolution, in words
OUTPUT_KINDS = ("auto", "logit", "probability")
TINY_PROBABILITY = 1e-6  # probabilities are clipped to [TINY_PROBABILITY, 1 - TINY_PROBABILITY] before their logit is taken
Taken = Callable[[object, int], Tensor]  # a network's output and the number of rows -> the part that is used
TWO_CLASSES = (
    "Of two classes, return one number: raw[:, 1] - raw[:, 0] if they are logits; or the softmax probability of the positive class, "
    'raw.softmax(1)[:, 1], with model.output = "probability". raw[:, 1] by itself is not a logit.'
)
IMAGE_SIZES = (224, 64, 96, 112, 128, 160, 192, 256, 299, 320, 384, 512)  # common sizes of images in pixels, the most common first
INNER_PREFIX = "inner."  # prefix of the layers and weights of a network inside another, as in OneOutput; the original lacks it
SUMS_TO_ONE = 1e-3  # tolerance for the sum of the probabilities of all classes
LOST_MARGIN = -1e-6  # the margin of a class that ties with another which comes first
_logged_orders: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()
VALUES_PER_PASS = {"cpu": 2**24, "cuda": 2**25}  # input values per pass; a GPU needs more to be busy


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


def _fused_layers(modules: list[nn.Module], convolve: Convolve, kind: torch.dtype) -> Layers | None:
    """The layers of a chain, each pair of a convolution and its ReLU as one; None if there is no such pair."""

    def plain(module: nn.Module, exactly: type[nn.Module]) -> bool:
        """Whether a layer is of this type, without hooks or a forward of its own."""
        return type(module) is exactly and not (module._forward_hooks or module._forward_pre_hooks or "forward" in module.__dict__)

    def joined(layer: Any) -> Callable[[Tensor], Tensor]:
        weight, bias = layer.weight.detach().to(kind), layer.bias.detach().to(kind)  # once, not for every batch
        return lambda x: convolve(x.to(kind), weight, bias, layer.stride, layer.padding, layer.dilation, layer.groups)

    layers, rest = Layers(), list(modules)
    while rest:
        layer: Any = rest.pop(0)
        fusible = plain(layer, nn.Conv2d) and layer.bias is not None and layer.padding_mode == "zeros" and layer.padding not in PADDINGS
        if fusible and rest and plain(rest[0], nn.ReLU):
            layer = joined(layer)
            rest.pop(0)
        layers.append(layer)
    return layers if len(layers) < len(modules) else None


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


def rows_at_once(inputs: Tensor | Images | Feed, numbers: int = VALUES_PER_PASS["cpu"]) -> int:
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

    cudnn = feed.device.type == "cuda" and torch.version.cuda is not None and torch.backends.cudnn.is_available()
    fusion = fused(model) if fast and cudnn and torch.cuda.get_device_capability(feed.device) >= (8, 0) else nullcontext()
    with evaluating(model), torch.no_grad(), mixed_precision(feed.device) if fast else nullcontext(), fusion:
        in_pieces(run, rows, feed, batch)
    return torch.cat(raw).cpu() if raw else torch.empty(0)


def in_pieces(work: Callable[[Tensor], None], rows: Tensor, feed: Feed, batch: int | None = None) -> None:
    """Calls `work` on all rows of a feed in batches. Halves the batch size if the device's memory is too small; the feed remembers it."""
    start, batch = 0, batch or rows_at_once(feed, VALUES_PER_PASS.get(feed.device.type, VALUES_PER_PASS["cpu"]))
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
    if (transform := feed.transform) is not None:
        shape = tuple(feed.shape[1:])
        return f"The transform {transform.named} returns shape {shape}. Correct it, or images.channels."

    def accepts(*shape: int) -> bool:
        try:
            model(torch.zeros(2, *shape, device=feed.device))
        except Exception:  # a network may raise anything
            return False
        return True

    others = [c for c in (1, 3) if c != channels]
    if accepts(channels, *size):
        return ""
    candidates = [(c, *size) for c in others] + [(c, side, side) for c in (channels, *others) for side in IMAGE_SIZES]
    fits = next((candidate for candidate in candidates if accepts(*candidate)), None)
    if fits is None:
        sizes = ", ".join(map(str, sorted(IMAGE_SIZES)))
        return f"None of the common sizes fits ({sizes} px). Read the images as in its training: images.size (size=), or a transform."
    todo = [f"size={fits[1]} (--set images.size={fits[1]})"] if list(fits[1:]) != size else []
    if fits[0] != channels:
        todo.append(f"channels={fits[0]} (--set images.channels={fits[0]})")
    wrap = ", or wrap it in equipoise.models.Repeated for grey images" if fits[0] > channels else ""
    return f"It takes images of shape {fits}: read them with {' and '.join(todo)}{wrap}."


def as_matrix(raw: object, rows: int) -> Tensor:
    """The network's output, which may be anything, as (rows, outputs), or an error with its type or shape."""
    if not isinstance(raw, Tensor):
        raise BadInput(f"the network must return one tensor, a number per row and output; it returned {type(raw).__name__}. Wrap it.")
    if raw.ndim == 1 and len(raw) == rows:
        return raw[:, None]
    if raw.ndim != 2 or len(raw) != rows:
        raise BadInput(f"the network must return (rows, outputs), here ({rows}, ...); it returned {tuple(raw.shape)}. Wrap it.")
    return raw


def single_output(raw: object, rows: int) -> Tensor:
    """The network's output as one number per row, or an error."""
    found = as_matrix(raw, rows)
    if found.shape[1] != 1:
        raise BadInput(
            f"the network must return one logit or probability per row, shape ({rows},) or ({rows}, 1); it returned {tuple(found.shape)}. "
            + (f"Wrap it. {TWO_CLASSES}" if found.shape == (rows, 2) else "Wrap it in a module that returns only the positive class.")
        )
    return found.reshape(rows)


def output_kind(model: nn.Module, inputs: Tensor | Images, output: str = "auto") -> str:
    """'logit' or 'probability': as given, or from the network's attribute `output`, or auto-detected.

    The output of a linear layer is a logit. Otherwise the values decide. Logits may all lie in [0, 1] by chance, so a few inputs are also
    scaled by 1,000: a probability stays within [0, 1], a logit does not.
    """
    if output not in OUTPUT_KINDS:
        raise BadInput(f"output must be one of {', '.join(OUTPUT_KINDS)}; got {output!r}")
    if (declared := own_output(model) if output == "auto" else output) != "auto":
        return declared
    few = inputs[:64]
    with recorded_outputs(model, LINEAR_LAYERS) as recorded:
        raw = outputs(model, few[:2])
    if recorded and torch.equal(recorded[-1][1].reshape(-1).float().cpu(), raw):  # of another size, it is not equal
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


def modules_of(model: nn.Module, *kinds: type[M]) -> dict[str, M]:
    """The modules of these types in a network, or the network itself, by name in the order of their definition."""
    return {name: module for name, module in model.named_modules() if isinstance(module, kinds)}


@contextmanager
def recorded_outputs(model: nn.Module, kinds: tuple[type[nn.Module], ...]) -> Iterator[list[tuple[str, Tensor]]]:
    """Records the name and output of every call of a layer of these types during the block; no hook remains afterwards.

    The hooks also run in a copy of the network, such as the one that `outputs` makes on another device.
    """
    calls: list[tuple[str, Tensor]] = []

    def record(name: str, _module: nn.Module, _inputs: object, output: Tensor) -> None:
        calls.append((name, output.detach()))

    with ExitStack() as hooks:
        for name, module in modules_of(model, *kinds).items():
            hooks.enter_context(module.register_forward_hook(partial(record, name)))
        yield calls


def sigmoid(logits: Tensor) -> Tensor:
    """The scores of logits in double precision, equal for equal logits: torch's differ in the last bit by position in the tensor."""
    return torch.from_numpy(np.asarray(expit(logits.detach().cpu().double().numpy())))


def as_scores(raw: Tensor, output: str) -> Tensor:
    """The scores in double precision of a network's raw outputs, which are logits or probabilities."""
    return sigmoid(raw) if output == "logit" else raw.double()


def logit_of(raw: Tensor, probability: bool) -> Tensor:
    """The logit of a raw output."""
    return torch.logit(raw, TINY_PROBABILITY) if probability else raw


def network_scores(model: nn.Module, cohort: Cohort, output: str = "auto", raw: Tensor | None = None) -> Scores:
    """The cohort's scores by a network that returns one logit or one probability per row; `raw` are its outputs, if they are known.

    Logits are kept, since near 1 different ones have the same score.
    """
    if raw is None:
        raw = outputs(model, cohort.inputs)
    if bad := int((~torch.isfinite(raw)).sum()):
        raise BadInput(
            f"the network gave NaN or infinity for {bad:,} of {len(raw):,} rows of {cohort.name!r}. "
            "Check for missing or unscaled inputs, or weights that diverged in training."
        )
    kind = output_kind(model, cohort.inputs, output)
    scores = Scores.of(cohort, as_scores(raw, kind).numpy())
    return replace(scores, logit=raw.detach().cpu().double().numpy()) if kind == "logit" else scores


def scores_and_class(network: nn.Module, inputs: Tensor | Images, output: str) -> tuple[FloatArray, IntArray | None]:
    """The score of each row by a network with one output, and of a class the position of the class that argmax decides for."""
    winner = None
    if isinstance(network, OneClass):
        logits = outputs(network.inner, inputs, taken=as_matrix)
        winner, raw = logits[:, network.columns].argmax(1).numpy(), network.taken(logits)
    else:
        raw = outputs(network, inputs)
    if invalid := int((~torch.isfinite(raw)).sum()):
        raise BadInput(f"the network returned NaN or infinity for {invalid:,} of {len(raw):,} rows. Check for missing or unscaled inputs.")
    return as_scores(raw, output).numpy(), winner


def set_output(model: nn.Module, asked: str) -> None:
    """Marks the network's output as a logit or a probability, so that every method reads it the same way; `auto` changes nothing."""
    if asked == "auto":
        return
    if not isinstance(getattr(model, "output", ""), str):
        raise BadInput(f"the network cannot be marked as returning a {asked}: its attribute `output` is something else. Wrap it.")
    model.output = asked  # type: ignore[assignment]


def resolve_output(model: nn.Module, rows: Cohort, asked: str = "auto") -> str:
    """The type of a network's output, logit or probability: auto-detected, or as requested, and then marked on the network.

    The network is run on two of the rows, so that a wrong shape of its output is reported before any work; with several labels, whose
    outputs are chosen later, `asked` is returned.
    """
    if rows.several:
        set_output(model, asked)
        return asked
    network_scores(model, rows.take(range(min(2, len(rows)))))
    detected = output_kind(model, rows.inputs)
    if asked not in ("auto", detected):
        set_output(model, asked)
        return output_kind(model, rows.inputs, asked)
    return detected


def output_named(text: str) -> int | str:
    """An output of a network from a command line or a file: a number, or a name.

    >>> output_named("-1"), output_named("Effusion"), output_named("2\u00b2"), output_named("--5")
    (-1, 'Effusion', '2\u00b2', '--5')
    """
    return int(text) if re.fullmatch(r"-?[0-9]{1,9}", text) else text


class OneOutput(nn.Module):
    """One output of a network with many, by name or number, such as one of torchxrayvision's 18 pathologies.

    `output` is logit or probability: as given; or probability if the network applies the sigmoid itself (torchxrayvision's `op_threshs` and
    `apply_sigmoid`); or the network's own attribute `output`; otherwise "auto", which is auto-detected at prediction.

    A torchxrayvision network with `op_threshs` is calibrated to an operating threshold of 0.5; that is kept. For a pathology without a
    threshold (NaN) it would return 0.5 for every image: here it returns the plain probability, and a warning is logged.
    Its pixels go from -1024 to 1024: `Cohort.from_images(..., **equipoise.data.XRAY_RANGE)`, or `--set images.normalise=xray`.

    >>> OneOutput(nn.Linear(4, 3), "Effusion", names=["Edema", "Effusion", "Mass"])(torch.zeros(5, 4)).shape
    torch.Size([5])
    """

    def __init__(self, inner: nn.Module, which: int | str, *, names: Sequence[str] | None = None, output: str = "auto") -> None:
        super().__init__()
        known = _output_names(inner) if names is None else list(map(str, names))
        if isinstance(which, str):
            if not known:
                raise BadInput(f"the network does not name its outputs, so {which!r} cannot be found; give names=[...] or a number")
            which = known.index(pick("output of the network", which, [name for name in known if name]))
        elif known and -len(known) <= which < len(known) and not known[which]:
            trained = ", ".join(filter(None, known))
            raise BadInput(f"output {which} of the network has no name: it was not trained. Those that were: {trained}")
        self.inner, self.which = inner, which
        self._uncalibrated = lacks_threshold(inner, [which])
        if self._uncalibrated:
            label = repr(known[which]) if known else str(which)
            log.warning("the network has no operating threshold for its output %s; its plain probability is used", label)
        self.output = declared_output(inner) if output == "auto" else output

    def forward(self, x: Tensor) -> Tensor:
        raw: Tensor = uncalibrated_output(self.inner, x) if self._uncalibrated else self.inner(x)
        if raw.ndim != 2 or not -raw.shape[1] <= self.which < raw.shape[1]:
            raise BadInput(f"output {self.which} was asked of a network that returned shape {tuple(raw.shape)}; (rows, outputs) is needed")
        return raw[:, self.which]

    @property
    def shared(self) -> bool:
        """Whether the output can be taken from one pass that serves several outputs, by `taken`."""
        return not self._uncalibrated and self.output in ("logit", "probability")

    def taken(self, raw: Tensor) -> Tensor:
        """This output (rows,) from all outputs of the network (rows, outputs)."""
        return raw[:, self.which]


def lacks_threshold(network: nn.Module, columns: Sequence[int]) -> bool:
    """Whether a network that calibrates itself, as torchxrayvision's do, has no operating threshold for some of these outputs."""
    thresholds = operating_thresholds(network)
    return all(-len(thresholds) <= column < len(thresholds) for column in columns) and bool(thresholds[list(columns)].isnan().any())


def operating_thresholds(network: nn.Module) -> Tensor:
    """The thresholds to which a network of torchxrayvision calibrates its outputs; empty for any other."""
    thresholds: Any = getattr(network, "op_threshs", None)
    return thresholds if isinstance(thresholds, Tensor) else torch.empty(0)


def uncalibrated_output(network: nn.Module, x: Tensor) -> Tensor:
    """The output of such a network with 0.5 for a missing threshold, at which calibration has no effect."""
    plain: Tensor = functional_call(network, {"op_threshs": operating_thresholds(network).nan_to_num(nan=0.5)}, (x,))
    return plain


def declared_output(network: nn.Module) -> str:
    """The declared kind of a network's output, by its attribute `output` or torchxrayvision's attributes: logit, probability or auto."""
    if len(operating_thresholds(network)):
        return "probability"
    if (applies_sigmoid := getattr(network, "apply_sigmoid", None)) in (True, False):
        return "probability" if applies_sigmoid else "logit"
    return own_output(network)


def own_output(network: nn.Module) -> str:
    """The network's attribute `output`, if it is logit or probability; otherwise auto, since it may be anything, such as a layer."""
    declared = str(getattr(network, "output", "auto"))
    return declared if declared in OUTPUT_KINDS else "auto"


class ChosenOutputs(nn.Module):
    """The outputs of a network for some labels, (rows, labels); for classes, their log odds or probabilities."""

    index: Tensor

    def __init__(self, inner: nn.Module, columns: Sequence[int], kind: LabelKind, output: str, flat: bool = False) -> None:
        super().__init__()
        self.inner, self.columns, self.kind, self.output = inner, list(columns), kind, output
        self.flat = flat  # whether the network gives one number per row, without an axis of outputs
        self._uncalibrated = lacks_threshold(inner, self.columns)
        # On the device, so that a step can be recorded; not saved with the weights.
        self.register_buffer("index", torch.tensor(self.columns, device=device_of(inner)), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        raw = as_matrix(uncalibrated_output(self.inner, x) if self._uncalibrated else self.inner(x), len(x))
        if max(self.columns) >= raw.shape[1]:
            raise BadInput(f"output {max(self.columns)} was asked of a network that returned shape {tuple(raw.shape)}; it has too few")
        chosen = raw.index_select(1, self.index)
        return log_odds(chosen) if self.kind.argmax and self.output == "logit" else chosen

    def view(self, at: int) -> nn.Module:
        """One label, or class, as a network with one output."""
        if self.kind.argmax:
            return OneClass(self.inner, self.columns, at, self.output)
        return self.inner if self.flat else OneOutput(self.inner, self.columns[at], output=self.output)


def label_views(model: nn.Module | None, labels: Iterable[str], network: nn.Module | None = None) -> dict[str, nn.Module | None]:
    """Each label with its output as a network with one output; of one label, the network itself. Or the same outputs of another network."""
    if not isinstance(model, ChosenOutputs):
        return dict.fromkeys(labels, model if network is None else network)
    chosen = model if network is None else ChosenOutputs(network, model.columns, model.kind, model.output, model.flat)
    return {label: chosen.view(at) for at, label in enumerate(labels)}


def whole_network(model: nn.Module) -> nn.Module:
    """The network whose outputs these are, with all of its outputs."""
    return model.inner if isinstance(model, ChosenOutputs) else model


def log_odds(z: Tensor) -> Tensor:
    """The log odds of each class against all others, from logits (rows, classes): their sigmoid is the softmax."""
    diagonal = torch.eye(z.shape[1], dtype=torch.bool, device=z.device)
    others: Tensor = z[:, None, :].masked_fill(diagonal, -torch.inf).logsumexp(2)
    return z - others


class OneClass(nn.Module):
    """The margin between the logit of a class and the largest other logit: 0 (a score of 0.5) is where argmax chooses the class."""

    shared = True

    def __init__(self, inner: nn.Module, columns: Sequence[int], which: int, output: str) -> None:
        super().__init__()
        self.inner, self.columns, self.which, self.inner_output, self.output = inner, list(columns), which, output, "logit"

    def forward(self, x: Tensor) -> Tensor:
        return self.taken(as_matrix(self.inner(x), len(x)))

    def taken(self, raw: Tensor) -> Tensor:
        """The margin (rows,) from all outputs of the network (rows, outputs)."""
        raw = raw[:, self.columns]
        # In double precision: in bfloat16 and float32, logarithms of different probabilities may be equal.
        z = raw.double() if self.inner_output == "logit" else raw.double().clamp(min=TINY_PROBABILITY**2).log()
        others = torch.cat([z[:, : self.which], z[:, self.which + 1 :]], dim=1).amax(1)
        won = raw.argmax(1) == self.which
        margin = z[:, self.which] - others
        return torch.where(won, margin.clamp(min=0.0), margin.clamp(max=LOST_MARGIN)).float()


def chosen_outputs(
    network: nn.Module, inputs: Tensor | Images, labels: Sequence[str], kind: LabelKind, given: Mapping[str, int | str] | None = None
) -> ChosenOutputs:
    """The outputs of these labels: as given; or by name, if the network names its outputs; or by position, if it has as many."""

    def in_own_shape(raw: object, rows: int) -> Tensor:
        return as_matrix(raw, rows).reshape(cast(Tensor, raw).shape)  # after the check, to see whether there is an axis of outputs

    def chosen_columns(x: Tensor) -> Tensor:
        return outputs(network, x, taken=as_matrix)[:, columns]

    raw = outputs(network, inputs[: min(4, len(inputs))], taken=in_own_shape)
    width = as_matrix(raw, len(raw)).shape[1]
    columns = _label_columns(network, labels, kind, given or {}, width)
    if not _output_names(network) and not kind.argmax and width > 1 and not {*labels} <= {*(given or {})}:
        order = ", ".join(f"{column} = {label}" for label, column in zip(labels, columns, strict=True))
        if _logged_orders.get(network) != order:  # once per network and order: one command may ask several times
            _logged_orders[network] = order
            log.warning("outputs are taken in the order of the labels: %s. If this is wrong, name them: model.outputs (outputs=)", order)
    output = declared_output(network)
    if output not in ("logit", "probability"):
        output = "probability" if looks_like_probability(chosen_columns, inputs[:64]) else "logit"
        sums = chosen_columns(inputs[:64]).sum(1) if kind.argmax and output == "probability" else torch.ones(1)
        if bool(((sums - 1).abs() > SUMS_TO_ONE).any()):
            raise BadInput(
                "the network gives probabilities of its classes that do not add up to 1, so they are labels of their own: use label=[...] "
                'with a column each, or a network that ends in logits or a softmax. If these are logits, say model.output = "logit"'
            )
    return ChosenOutputs(network, columns, kind, output, raw.ndim == 1)


def _output_names(network: nn.Module) -> list[str]:
    """The network's own names of its outputs, as torchxrayvision's networks have them; empty if it has none."""
    declared: Any = getattr(network, "pathologies", getattr(network, "targets", None))
    return [str(name) for name in declared] if isinstance(declared, (list, tuple)) else []


def _label_columns(network: nn.Module, labels: Sequence[str], kind: LabelKind, outputs: Mapping[str, int | str], width: int) -> list[int]:
    """The column of each label among the network's outputs; an error lists every label without one."""
    names = _output_names(network)
    problems: list[str] = []
    for name in outputs:
        if name not in labels:
            problems += UnknownName(f"{kind.one} in outputs", name, labels).problems
    by_position = not names and width == len(labels)
    columns: list[int] = []
    for position, label in enumerate(labels):
        which = outputs.get(label, label if names else position)
        if isinstance(which, str):
            if not names:
                problems.append(f"the network does not name its outputs, so {which!r} for {label!r} cannot be found; give a number")
            elif which not in names:
                named = [name for name in names if name]
                problems.append(
                    f"the network names no output {which!r}.{did_you_mean(which, named)} Say which is {label!r}: "
                    f"outputs={{{label!r}: ...}}. Its outputs are: {', '.join(named)}"
                )
            else:
                columns.append(names.index(which))
        elif label not in outputs and not by_position:
            problems.append(
                f"the network has {width} outputs and does not name them, and there are {len(labels)} {kind}; which is {label!r}? "
                f"Say outputs={{{label!r}: <number from 0>, ...}}"
            )
        elif not 0 <= which < width:
            problems.append(f"outputs={{{label!r}: {which}}}: the network has outputs 0 to {width - 1}")
        else:
            columns.append(which)
    if len(set(columns)) < len(columns):
        problems.append(f"two {kind} have the same output of the network: {dict(zip(labels, columns, strict=False))}")
    if kind.argmax and width != len(labels):
        problems.append(f"{len(labels)} classes need a network with as many outputs, one each; it has {width}. Name all of its classes")
    raise_all(problems)
    return columns


def scores_of(views: Mapping[str, nn.Module], cohort: Cohort) -> dict[str, Scores]:
    """The scores of each label on the rows where it is known; views of one network share one pass."""
    raw_outputs: dict[int, Tensor] = {}  # by the id of the network inside the views
    scores = {}
    for label, view in views.items():
        raw = None
        if isinstance(view, (OneOutput, OneClass)) and view.shared:  # a column or a margin of the network's outputs
            if id(view.inner) not in raw_outputs:
                raw_outputs[id(view.inner)] = outputs(view.inner, cohort.inputs, taken=as_matrix)
            raw = view.taken(raw_outputs[id(view.inner)])[torch.from_numpy(cohort.column(label) != UNKNOWN)]
        scores[label] = network_scores(view, cohort.labelled(label), raw=raw)
    return scores


def probabilities_of(chosen: ChosenOutputs, cohort: Cohort) -> dict[str, Scores]:
    """The probability of each label, or the softmax probability of each class, on the rows where it is known; from one pass."""
    values = as_scores(outputs(chosen, cohort.inputs, taken=as_matrix), chosen.output).numpy()
    return {label: Scores.of(cohort.labelled(label), values[cohort.column(label) != UNKNOWN, at]) for at, label in enumerate(cohort.labels)}
