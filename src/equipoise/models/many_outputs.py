"""Networks with several outputs under repair: all the labels that were chosen in one pass per row of input.

A row of a method is then a pair of an image i and a label l, at i * L + l, so that an image's pairs are neighbours. The score of a label is
the sigmoid of its logit, or its probability; that of a class is its softmax probability, which is the sigmoid of its log odds against all
other classes. So methods see scores in [0, 1] with logits behind them, as those of one output.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from equipoise.data import UNKNOWN, Cohort, Images, Scores
from equipoise.errors import BadInput, UnknownName, did_you_mean, raise_all
from equipoise.models.devices import device_of
from equipoise.models.protocol import shuffled
from equipoise.models.score import evaluating, looks_like_probability, predict, sigmoid
from equipoise.models.score import outputs as outputs_of
from equipoise.models.single import TINY, SingleReplica
from equipoise.models.units import find_units
from equipoise.models.vision import OneOutput, declared_output, lacks_threshold, uncalibrated

WRAPPED = "inner."  # before the names of layers and weights of a network inside another, as in OneOutput; the original has no such prefix
SUMS_TO_ONE = 1e-3  # how far probabilities of classes may be from adding up to 1
LOST = -1e-6  # the margin of a class that has as much as another which comes first


class ChosenOutputs(nn.Module):
    """The outputs of a network that belong to some labels, (rows, labels); of classes, their log odds or probabilities."""

    index: Tensor

    def __init__(self, inner: nn.Module, columns: Sequence[int], kind: str, output: str, flat: bool = False) -> None:
        super().__init__()
        self.inner, self.columns, self.kind, self.output = inner, list(columns), kind, output
        self.flat = flat  # whether the network gives one number per row, without an axis of outputs
        self.bare = lacks_threshold(inner, self.columns)
        # On the device, so that a step can be recorded; it is no part of what is saved.
        self.register_buffer("index", torch.tensor(self.columns, device=device_of(inner)), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        raw = as_matrix(uncalibrated(self.inner, x) if self.bare else self.inner(x), len(x))
        if max(self.columns) >= raw.shape[1]:
            raise BadInput(f"output {max(self.columns)} was asked of a network that returned shape {tuple(raw.shape)}; it has too few")
        chosen = raw.index_select(1, self.index)
        return log_odds(chosen) if self.kind == "classes" and self.output == "logit" else chosen

    def around(self, inner: nn.Module) -> "ChosenOutputs":
        """The same outputs of another network, as a repair left it."""
        return ChosenOutputs(inner, self.columns, self.kind, self.output, self.flat)

    def view(self, at: int) -> nn.Module:
        """One label, or class, as a network with one output."""
        if self.kind == "classes":
            return OneClass(self.inner, self.columns, at, self.output)
        return self.inner if self.flat else OneOutput(self.inner, self.columns[at], output=self.output)


class OneClass(nn.Module):
    """By how much the logit of a class is above the next, so that 0 (a score of 0.5) is where argmax decides for it."""

    def __init__(self, inner: nn.Module, columns: Sequence[int], which: int, output: str) -> None:
        super().__init__()
        self.inner, self.columns, self.which, self.given, self.output = inner, list(columns), which, output, "logit"

    def forward(self, x: Tensor) -> Tensor:
        return self.margin(as_matrix(self.inner(x), len(x)))

    def margin(self, raw: Tensor) -> Tensor:
        """The margin (rows,) from all outputs of the network (rows, outputs)."""
        raw = raw[:, self.columns]
        # In full precision: bfloat16 and float32 logarithms may call two classes equal that are not.
        z = raw.double() if self.given == "logit" else raw.double().clamp(min=TINY**2).log()
        others = torch.cat([z[:, : self.which], z[:, self.which + 1 :]], dim=1).amax(1)
        won = raw.argmax(1) == self.which
        margin = z[:, self.which] - others
        return torch.where(won, margin.clamp(min=0.0), margin.clamp(max=LOST)).float()


def log_odds(z: Tensor) -> Tensor:
    """The log odds of each class against all others, from logits (rows, classes): their sigmoid is the softmax."""
    own = torch.eye(z.shape[1], dtype=torch.bool, device=z.device)
    others: Tensor = z[:, None, :].masked_fill(own, -torch.inf).logsumexp(2)
    return z - others


def as_matrix(raw: object, rows: int) -> Tensor:
    """What a network returned as (rows, outputs), or an error that says what came."""
    if not isinstance(raw, Tensor):
        raise BadInput(f"the network must return one tensor (rows, outputs); it returned {type(raw).__name__}. Wrap it.")
    if raw.ndim == 1 and len(raw) == rows:
        return raw[:, None]
    if raw.ndim != 2 or len(raw) != rows:
        raise BadInput(f"the network must return (rows, outputs), here ({rows}, ...); it returned {tuple(raw.shape)}. Wrap it.")
    return raw


def chosen_outputs(
    network: nn.Module, inputs: Tensor | Images, labels: Sequence[str], kind: str, outputs: Mapping[str, int | str] | None = None
) -> ChosenOutputs:
    """The outputs of these labels: as told; or by name, where the network names its outputs; or by position, where it has as many."""
    raw = outputs_of(network, inputs[: min(4, len(inputs))], taken=_unchanged)
    width = as_matrix(raw, len(raw)).shape[1]
    columns = _columns(network, labels, kind, outputs or {}, width)
    found = ChosenOutputs(network, columns, kind, declared_output(network), raw.ndim == 1)
    if found.output not in ("logit", "probability"):
        found.output = _seen_output(network, columns, kind, inputs)
    return found


def _columns(network: nn.Module, labels: Sequence[str], kind: str, outputs: Mapping[str, int | str], width: int) -> list[int]:
    one = "class" if kind == "classes" else "label"
    told: Any = getattr(network, "pathologies", getattr(network, "targets", None))
    names = [str(name) for name in told] if isinstance(told, (list, tuple)) else []
    problems: list[str] = []
    for name in outputs:
        if name not in labels:
            problems += UnknownName(f"{one} in outputs", name, labels).problems
    by_place = not names and width == len(labels)
    found: list[int] = []
    for at, label in enumerate(labels):
        which = outputs.get(label, label if names else at)
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
                found.append(names.index(which))
        elif label not in outputs and not by_place:
            problems.append(
                f"the network has {width} outputs and does not name them, and there are {len(labels)} {kind}; which is {label!r}? "
                f"Say outputs={{{label!r}: <number from 0>, ...}}"
            )
        elif not 0 <= which < width:
            problems.append(f"outputs={{{label!r}: {which}}}: the network has outputs 0 to {width - 1}")
        else:
            found.append(which)
    if len(set(found)) < len(found):
        problems.append(f"two {kind} have the same output of the network: {dict(zip(labels, found, strict=False))}")
    if kind == "classes" and width != len(labels):
        problems.append(f"{len(labels)} classes need a network with as many outputs, one each; it has {width}. Name all of its classes")
    raise_all(problems)
    return found


def _unchanged(raw: object, rows: int) -> Tensor:
    """What a network returned, once it is known to be a matrix or one number per row."""
    return as_matrix(raw, rows).reshape(cast(Tensor, raw).shape)


def _seen_output(network: nn.Module, columns: Sequence[int], kind: str, inputs: Tensor | Images) -> str:
    """'logit' or 'probability' by what the network does (see score.looks_like_probability)."""

    def shown(x: Tensor) -> Tensor:
        return outputs_of(network, x, taken=as_matrix)[:, list(columns)]

    if not looks_like_probability(shown, inputs[:64]):
        return "logit"
    first = shown(inputs[:64])
    if kind == "classes" and bool(((first.sum(1) - 1).abs() > SUMS_TO_ONE).any()):
        raise BadInput(
            "the network gives probabilities of its classes that do not add up to 1, so they are labels of their own: use "
            'label=[...] with a column each, or a network that ends in logits or a softmax. If these are logits, say model.output = "logit"'
        )
    return "probability"


def scores_of(views: Mapping[str, nn.Module], cohort: Cohort) -> dict[str, Scores]:
    """The scores of each label on the rows where it is known; views of one network are seen in one pass."""
    shared: dict[int, Tensor] = {}
    found = {}
    for label, view in views.items():
        part = cohort.labelled(label)
        if not _plain_view(view):
            found[label] = predict(view, part)
            continue
        inner = view.get_submodule("inner")
        if id(inner) not in shared:
            shared[id(inner)] = outputs_of(inner, cohort.inputs, taken=as_matrix)
        raw = shared[id(inner)]
        own = view.margin(raw) if isinstance(view, OneClass) else raw[:, int(view.which)]  # type: ignore[arg-type]
        bad = int((~torch.isfinite(own)).sum())
        if bad:
            raise BadInput(f"the network gave NaN or infinity for {bad:,} of {len(raw):,} rows of {cohort.name!r}, output {label!r}")
        known = cohort.column(label) != UNKNOWN
        values = own.double()[torch.from_numpy(known)]
        found[label] = Scores.of(part, (sigmoid(values) if view.output == "logit" else values).numpy())
    return found


def probabilities_of(chosen: ChosenOutputs, cohort: Cohort) -> dict[str, Scores]:
    """The probability of each label, or the softmax probability of each class, on the rows where it is known; from one pass."""
    raw = outputs_of(chosen, cohort.inputs, taken=as_matrix).double()
    values = (sigmoid(raw) if chosen.output == "logit" else raw).numpy()
    return {label: Scores.of(cohort.labelled(label), values[cohort.column(label) != UNKNOWN, at]) for at, label in enumerate(cohort.labels)}


def _plain_view(view: nn.Module) -> bool:
    """Whether a view is a column or a margin of what a network gives, and says of which kind that is."""
    return isinstance(view, OneClass) or (isinstance(view, OneOutput) and not view._bare and view.output in ("logit", "probability"))


class ManyOutputs(SingleReplica):
    """One module with several outputs; its rows are pairs of an image and a label."""

    taken = staticmethod(as_matrix)

    def __init__(self, model: ChosenOutputs, inputs: Tensor | Images) -> None:
        super().__init__(model, inputs)
        self.images, self.labels = len(inputs), len(model.columns)
        self.rows, self.grid = self.images * self.labels, (self.images, self.labels)
        with evaluating(self.model), torch.no_grad():
            few = self.feed(torch.arange(min(2, self.images)))
            self.width = as_matrix(self.model.get_submodule("inner")(few), len(few)).shape[1]

    def batches(self, generators: Sequence[np.random.Generator], batch: int, least: int = 1) -> Iterator[Tensor]:
        """Whole images, so many that their pairs are at most `batch`, but `least` images at least."""
        for images in shuffled(self.images, generators, max(least, batch // self.labels), least):
            yield (images[:, :, None] * self.labels + torch.arange(self.labels)).reshape(len(images), -1)

    def _given(self, index: Tensor, given: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """The images (b,) of pairs (1, b * labels), and what is given of the pairs as (b, labels)."""
        images = index[0].view(-1, self.labels)[:, 0] // self.labels
        return images, [g[0].view(-1, self.labels) for g in given]

    def units(self, pattern: str | Sequence[str], granularity: str = "unit") -> int:
        inside = [f"{WRAPPED}{p}" for p in ([pattern] if isinstance(pattern, str) else pattern)]
        few = self.feed(torch.arange(min(2, self.images)))
        self._layers = find_units(self.model, few, inside, granularity, self.width)
        return self._layers[-1].start + self._layers[-1].size

    def kept(self) -> list[nn.Module]:
        return [self._sent_home(copy.deepcopy(self._kept.get_submodule("inner")))]
