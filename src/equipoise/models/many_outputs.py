"""Networks with several outputs: one of them, those of some labels, or those of mutually exclusive classes.

The score of a label is the sigmoid of its logit, or its probability; the score of a class is its softmax probability, which is the sigmoid
of its log odds against all other classes. So methods see scores in [0, 1] with logits behind them, as for a network with one output.
"""

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.func import functional_call

from equipoise.data import UNKNOWN, Cohort, Images, LabelKind, Scores
from equipoise.errors import BadInput, UnknownName, did_you_mean, pick, raise_all
from equipoise.models.devices import device_of
from equipoise.models.score import TINY, as_scores, looks_like_probability, network_scores, scores_from
from equipoise.models.score import outputs as outputs_of

WRAPPED = "inner."  # prefix of the layers and weights of a network inside another, as in OneOutput; the original lacks it
SUMS_TO_ONE = 1e-3  # tolerance for the sum of the probabilities of all classes
LOST = -1e-6  # the margin of a class that ties with another which comes first
log = logging.getLogger(__name__)
_logged_orders: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()


def as_matrix(raw: object, rows: int) -> Tensor:
    """The network's output as (rows, outputs), or an error with its type or shape."""
    if not isinstance(raw, Tensor):
        raise BadInput(f"the network must return one tensor (rows, outputs); it returned {type(raw).__name__}. Wrap it.")
    if raw.ndim == 1 and len(raw) == rows:
        return raw[:, None]
    if raw.ndim != 2 or len(raw) != rows:
        raise BadInput(f"the network must return (rows, outputs), here ({rows}, ...); it returned {tuple(raw.shape)}. Wrap it.")
    return raw


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
        raw: Tensor = uncalibrated(self.inner, x) if self._uncalibrated else self.inner(x)
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
    thresholds: Any = getattr(network, "op_threshs", None)
    known = isinstance(thresholds, Tensor) and all(-len(thresholds) <= column < len(thresholds) for column in columns)
    return known and bool(thresholds[list(columns)].isnan().any())


def uncalibrated(network: nn.Module, x: Tensor) -> Tensor:
    """The output of such a network with 0.5 for a missing threshold, at which calibration has no effect."""
    thresholds: Any = network.op_threshs
    plain: Tensor = functional_call(network, {"op_threshs": thresholds.nan_to_num(nan=0.5)}, (x,))
    return plain


def declared_output(network: nn.Module) -> str:
    """The declared kind of a network's output, by its attribute `output` or torchxrayvision's attributes: logit, probability or auto."""
    if isinstance(getattr(network, "op_threshs", None), Tensor):
        return "probability"
    applies_sigmoid, output = getattr(network, "apply_sigmoid", None), getattr(network, "output", "auto")
    if isinstance(applies_sigmoid, bool):
        return "probability" if applies_sigmoid else "logit"
    return output if isinstance(output, str) else "auto"


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
        raw = as_matrix(uncalibrated(self.inner, x) if self._uncalibrated else self.inner(x), len(x))
        if max(self.columns) >= raw.shape[1]:
            raise BadInput(f"output {max(self.columns)} was asked of a network that returned shape {tuple(raw.shape)}; it has too few")
        chosen = raw.index_select(1, self.index)
        return log_odds(chosen) if self.kind.argmax and self.output == "logit" else chosen

    def views(self, labels: Iterable[str]) -> dict[str, nn.Module]:
        """Each label, or class, with its output as a network with one output."""
        return {label: self.view(at) for at, label in enumerate(labels)}

    def view(self, at: int) -> nn.Module:
        """One label, or class, as a network with one output."""
        if self.kind.argmax:
            return OneClass(self.inner, self.columns, at, self.output)
        return self.inner if self.flat else OneOutput(self.inner, self.columns[at], output=self.output)


def label_views(model: nn.Module | None, labels: Iterable[str]) -> dict[str, nn.Module | None]:
    """Each label with its output as a network with one output; of one label, the network itself."""
    return {**model.views(labels)} if isinstance(model, ChosenOutputs) else dict.fromkeys(labels, model)


def whole_network(model: nn.Module) -> nn.Module:
    """The network whose outputs these are, with all of its outputs."""
    return model.inner if isinstance(model, ChosenOutputs) else model


def outputs_like(model: nn.Module, network: nn.Module) -> nn.Module:
    """The same outputs of another network, such as the repaired one."""
    return ChosenOutputs(network, model.columns, model.kind, model.output, model.flat) if isinstance(model, ChosenOutputs) else network


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
        z = raw.double() if self.inner_output == "logit" else raw.double().clamp(min=TINY**2).log()
        others = torch.cat([z[:, : self.which], z[:, self.which + 1 :]], dim=1).amax(1)
        won = raw.argmax(1) == self.which
        margin = z[:, self.which] - others
        return torch.where(won, margin.clamp(min=0.0), margin.clamp(max=LOST)).float()


def chosen_outputs(
    network: nn.Module, inputs: Tensor | Images, labels: Sequence[str], kind: LabelKind, outputs: Mapping[str, int | str] | None = None
) -> ChosenOutputs:
    """The outputs of these labels: as given; or by name, if the network names its outputs; or by position, if it has as many."""

    def in_own_shape(raw: object, rows: int) -> Tensor:
        return as_matrix(raw, rows).reshape(cast(Tensor, raw).shape)  # after the check, to see whether there is an axis of outputs

    raw = outputs_of(network, inputs[: min(4, len(inputs))], taken=in_own_shape)
    width = as_matrix(raw, len(raw)).shape[1]
    columns = _label_columns(network, labels, kind, outputs or {}, width)
    if not _output_names(network) and not kind.argmax and width > 1 and not {*labels} <= {*(outputs or {})}:
        order = ", ".join(f"{column} = {label}" for label, column in zip(labels, columns, strict=True))
        if _logged_orders.get(network) != order:  # once per network and order: one command may ask several times
            _logged_orders[network] = order
            log.warning("outputs are taken in the order of the labels: %s. If this is wrong, name them: model.outputs (outputs=)", order)
    chosen = ChosenOutputs(network, columns, kind, declared_output(network), raw.ndim == 1)
    if chosen.output not in ("logit", "probability"):
        chosen.output = _detect_output(network, columns, kind, inputs)
    return chosen


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


def _detect_output(network: nn.Module, columns: Sequence[int], kind: LabelKind, inputs: Tensor | Images) -> str:
    """'logit' or 'probability', from the network's values (see score.looks_like_probability)."""

    def chosen_columns(x: Tensor) -> Tensor:
        return outputs_of(network, x, taken=as_matrix)[:, list(columns)]

    if not looks_like_probability(chosen_columns, inputs[:64]):
        return "logit"
    probabilities = chosen_columns(inputs[:64])
    if kind.argmax and bool(((probabilities.sum(1) - 1).abs() > SUMS_TO_ONE).any()):
        raise BadInput(
            "the network gives probabilities of its classes that do not add up to 1, so they are labels of their own: use "
            'label=[...] with a column each, or a network that ends in logits or a softmax. If these are logits, say model.output = "logit"'
        )
    return "probability"


def scores_of(views: Mapping[str, nn.Module], cohort: Cohort) -> dict[str, Scores]:
    """The scores of each label on the rows where it is known; views of one network share one pass."""
    raw_outputs: dict[int, Tensor] = {}  # by the id of the network inside the views
    scores = {}
    for label, view in views.items():
        part = cohort.labelled(label)
        if not isinstance(view, (OneOutput, OneClass)) or not view.shared:  # more than a column or a margin of the network's outputs
            scores[label] = network_scores(view, part)
            continue
        if id(view.inner) not in raw_outputs:
            raw_outputs[id(view.inner)] = outputs_of(view.inner, cohort.inputs, taken=as_matrix)
        raw = raw_outputs[id(view.inner)]
        values = view.taken(raw)
        if bad := int((~torch.isfinite(values)).sum()):
            raise BadInput(f"the network gave NaN or infinity for {bad:,} of {len(raw):,} rows of {cohort.name!r}, output {label!r}")
        known = cohort.column(label) != UNKNOWN
        scores[label] = scores_from(values[torch.from_numpy(known)], str(view.output), part)
    return scores


def probabilities_of(chosen: ChosenOutputs, cohort: Cohort) -> dict[str, Scores]:
    """The probability of each label, or the softmax probability of each class, on the rows where it is known; from one pass."""
    values = as_scores(outputs_of(chosen, cohort.inputs, taken=as_matrix), chosen.output).numpy()
    return {label: Scores.of(cohort.labelled(label), values[cohort.column(label) != UNKNOWN, at]) for at, label in enumerate(cohort.labels)}
