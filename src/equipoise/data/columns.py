"""Columns of a user's frame, checked: label, score, groups, patients, ids, weights. Every problem of a frame in one message."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from equipoise.data.attribute import CONFLICTS, Attribute, FloatArray, IntArray, ObjectArray, inexact, level_name, settled
from equipoise.data.bins import Bins, edges_of, numbers_of
from equipoise.data.targets import Targets, clipped, read_classes, read_label, read_labels
from equipoise.errors import BadInput, Misuse, collecting, did_you_mean, pick, raise_all


@dataclass(frozen=True)
class Roles:
    """Which columns of a frame are what.

    Several labels, or one with `classes`, become `Columns.targets`. `bins` has the edges at which group columns of numbers are cut;
    `conflicts` sets what happens to patients who have more than one group (see `CONFLICTS`).
    """

    label: str | Sequence[str]
    group: str | Sequence[str]
    reference: str | Sequence[str] | None = None
    patient: str | None = None
    id: str | None = None
    score: str | None = None
    weight: str | None = None
    positive: object = None
    classes: Sequence[object] | None = None
    bins: Mapping[str, Sequence[float] | Bins] | None = None
    conflicts: str = "row"
    logits: bool = False  # whether the score column holds logits, which the logistic function maps to scores

    def __post_init__(self) -> None:
        """Raises where the names of columns are something else, such as the columns themselves."""

        def listed(value: object) -> bool:
            return isinstance(value, (list, tuple, np.ndarray, pd.Index)) and all(isinstance(name, str) for name in value)

        given: dict[str, Any] = vars(self)
        problems = [
            f"{role} must be the name of a column or a list of names; got {type(given[role]).__name__}"
            for role in ("label", "group")
            if not isinstance(given[role], str) and not listed(given[role])
        ]
        problems += [
            f"{role} must be the name of a column; got {type(given[role]).__name__}"
            for role in ("score", "patient", "id", "weight")
            if not isinstance(given[role], (str, int, type(None)))
        ]
        if not isinstance(given["bins"], (Mapping, type(None))):
            problems.append(f"bins must be the edges by column, as in {{'age': [40, 60, 80]}}; got {self.bins!r}")
        raise_all(problems)
        pick("rule for conflicts:", self.conflicts, CONFLICTS)

    @property
    def labels(self) -> list[str]:
        return [self.label] if isinstance(self.label, str) else list(self.label)

    @property
    def groups(self) -> list[str]:
        return [self.group] if isinstance(self.group, str) else list(self.group)

    @property
    def references(self) -> list[str | None]:
        """The reference of each group, None where the largest is to be taken."""
        if self.reference is None:
            return [None] * len(self.groups)
        given = [self.reference] if np.ndim(self.reference) == 0 else list(self.reference)
        count = len(self.groups)
        if len(given) != count:
            raise BadInput(f"{count} group columns need {count} references, one each in the same order; got {len(given)}: {given}")
        return [None if value is None else level_name(value) for value in given]

    def problems(self, frame: pd.DataFrame) -> list[str]:
        """What keeps the columns from being read at all: missing, there twice, named for two things, or without one value per row."""
        own = {"score": self.score, "patient": self.patient, "id": self.id, "weight": self.weight}
        wanted = dict.fromkeys(name for name in (*self.labels, *self.groups, *own.values()) if name is not None)
        counts = {name: list(frame.columns).count(name) for name in wanted}
        problems = [absent(name, list(map(str, frame.columns))) for name, count in counts.items() if not count]
        problems += [f"column {name!r} occurs {count} times. Rename all but one." for name, count in counts.items() if count > 1]
        if not len(frame):
            problems.append("the table has no rows")
        problems += self.name_problems()
        return problems + [problem for name, count in counts.items() if count == 1 for problem in _nested(frame[name], name)]

    def name_problems(self) -> list[str]:
        """What is wrong with the roles, whatever the columns hold: a column named for two things, no group, bins of no group."""
        own = {"score": self.score, "patient": self.patient, "weight": self.weight}
        roles = [*(("label", name) for name in dict.fromkeys(self.labels)), *(("group", name) for name in self.groups)]
        roles += [(role, name) for role, name in own.items() if name is not None]
        named: dict[str, list[str]] = {}
        for role, name in roles:
            named.setdefault(name, []).append(role)
        problems = [
            f"column {name!r} has more than one role: {', '.join(uses)}. Give each a column of its own."
            for name, uses in named.items()
            if len(uses) > 1
        ]
        if not self.groups:
            problems.append("no group column was named")
        return problems + bin_problems(self.bins or {}, self.groups)

    def conflict_problems(self) -> list[str]:
        """A problem where a rule for conflicts within patients was chosen, and there are no patients."""
        if self.conflicts == "row" or self.patient is not None:
            return []
        return [f"conflicts={self.conflicts!r} is about patients, and no patient column was named. Name it, or leave conflicts out."]


@dataclass(frozen=True, eq=False)
class Columns:
    """What the named columns hold."""

    y: IntArray = field(repr=False)
    attributes: tuple[Attribute, ...]
    patients: ObjectArray | None = field(repr=False)
    ids: ObjectArray = field(repr=False)
    score: FloatArray | None = field(repr=False)
    weight: FloatArray | None = field(repr=False)
    targets: Targets | None = field(repr=False)  # several labels, or classes; y is then what stands for them all

    @property
    def rows(self) -> dict[str, Any]:
        """All but the score, as the fields of a cohort."""
        found: dict[str, Any] = {name: getattr(self, name) for name in ("y", "attributes", "patients", "ids", "weight")}
        return found if self.targets is None else found | self.targets.fields


def described(y: IntArray, attributes: Sequence[Attribute], patients: ObjectArray | None) -> str:
    """How many rows, patients and positives there are, and how many rows each group has; nothing that identifies them."""
    of = "" if patients is None else f" of {len(set(patients)):,} patients"
    return ", ".join([f"{len(y):,} rows{of}", f"{int((y == 1).sum()):,} positive", *map(repr, attributes)])


def read_columns(frame: pd.DataFrame, roles: Roles, source: str = "") -> Columns:
    """The columns of a frame that have a role, or one error that lists everything wrong with them."""
    references = roles.references
    problems = roles.problems(frame)
    raise_all(problems, source)
    n = len(frame)
    y, targets = np.zeros(n, np.int64), None
    with collecting(problems):
        y, targets = _labels(frame, roles)
    as_scores = partial(score_of, logits=roles.logits)
    scores = None if roles.score is None else _checked(as_scores, frame[roles.score], roles.score, problems)
    weights = None if roles.weight is None else _checked(weight_of, frame[roles.weight], roles.weight, problems)
    attributes = []
    for name, reference in zip(roles.groups, references, strict=True):
        with collecting(problems):
            edges = (roles.bins or {}).get(name)
            of = Attribute.of(frame[name], name, reference) if edges is None else Attribute.binned(frame[name], edges, name, reference)
            attributes.append(of)
    if roles.patient and (wrong := identifier_problems(frame[roles.patient], roles.patient, "patient")):
        problems += wrong
    elif roles.patient:
        for at, attribute in enumerate(attributes):
            with collecting(problems):
                attributes[at] = settled(attribute, frame[roles.patient], roles.conflicts)
    problems += roles.conflict_problems()
    if roles.id:
        problems += identifier_problems(frame[roles.id], roles.id, "id") + _id_problems(frame[roles.id], roles.id)
    raise_all(problems, source)
    patients = identifiers(frame[roles.patient]) if roles.patient else None
    ids = identifiers(frame[roles.id]) if roles.id else np.arange(n).astype(object)
    return Columns(y, tuple(attributes), patients, ids, scores, weights, targets)


def _labels(frame: pd.DataFrame, roles: Roles) -> tuple[IntArray, Targets | None]:
    """One label per row, and the several labels or classes that it stands for."""
    if isinstance(roles.label, str) and roles.classes is None:
        return read_label(frame[roles.label], roles.label, roles.positive), None
    labels = roles.labels
    if roles.classes is None:
        targets = read_labels([frame[name] for name in labels], labels, roles.positive)
    elif len(labels) == 1:
        targets = read_classes(frame[labels[0]], labels[0], roles.classes)
    else:
        raise BadInput(f"classes are those of one label column; got {len(labels)} columns: {', '.join(labels)}")
    return targets.y, targets


def _checked(
    read: "Callable[[pd.Series[object], str], tuple[FloatArray, list[str]]]", column: "pd.Series[object]", name: str, problems: list[str]
) -> FloatArray:
    numbers, wrong = read(column, name)
    problems += wrong
    return numbers


def check_frame(call: str, frame: object) -> None:
    """Raises where something else than a frame is given, with the call that takes it."""
    if isinstance(frame, pd.DataFrame):
        return
    file = "Read the file first, ids as text: pd.read_csv(path, dtype={'patient': str})."
    arrays = "Arrays are read by from_arrays."
    advice = {
        "str": file,
        "PurePath": file,
        "Cohort": "A cohort's scores are eq.Scores.of(cohort, score); to audit a network on it: eq.audit(model, cohort).",
        "Scores": "These are scores already: eq.audit(scores).",
        "ndarray": arrays,
        "Tensor": arrays,
        "dict": "Make it one: pd.DataFrame(...).",
        "list": "Make it one: pd.DataFrame(...).",
    }
    raise Misuse(call, "a pandas DataFrame and the names of its columns", frame, advice)


def absent(name: str, names: Sequence[str]) -> str:
    """The problem of a table whose columns have these names, and this one not."""
    shown = ", ".join(map(clipped, names[:20])) + (f", and {len(names) - 20} more" if len(names) > 20 else "")
    return f"no column {name!r}.{did_you_mean(name, names, 0.6)} The columns are: {shown}."


def score_of(column: "pd.Series[object]", name: str, logits: bool = False) -> tuple[FloatArray, list[str]]:
    """The scores in a column, of logits by the logistic function, and what is wrong with them."""
    numbers = numbers_of(column)
    empty = column.isna().to_numpy()
    text = ~empty & np.isnan(numbers)
    with np.errstate(invalid="ignore"):
        outside = np.isinf(numbers) if logits else (numbers < 0) | (numbers > 1)
    problems = []
    if text.any():
        first = clipped(str(column[text].iloc[0]))
        if first.endswith("%"):
            advice = "They look like percentages: remove the sign and divide by 100."
        elif first.replace(",", ".", 1).lstrip("-").replace(".", "", 1).isdigit():
            advice = "They look like decimal commas: write points instead, or semicolons between the columns."
        else:
            advice = "Correct them or leave those rows out."
        problems.append(f"score column {name!r}: {_count(text)} are not numbers, {first!r} in the first. {advice}")
    if empty.any():
        problems.append(f"score column {name!r}: {_count(empty)} are empty (NaN). Fill them in or leave them out.")
    if outside.any():
        low, high = float(np.nanmin(numbers)), float(np.nanmax(numbers))
        if logits:
            advice = "A logit is a finite number: correct them or leave those rows out."
        elif low < 0:
            advice = "They look like logits: add --logits (Python: logits=True), which applies the logistic function 1 / (1 + exp(-x))."
        elif 2 < high <= 100:
            advice = "They look like percentages: divide by 100 first."
        else:
            advice = "A score is a probability: correct them or leave those rows out."
        where = "are infinite" if logits else "lie outside [0, 1]"
        problems.append(f"score column {name!r}: {_count(outside)} {where}; the scores go from {low:g} to {high:g}. {advice}")
    if not logits:
        return numbers, problems
    from scipy.special import expit  # late: few files hold logits

    return expit(numbers), problems


def weight_of(column: "pd.Series[object]", name: str) -> tuple[FloatArray, list[str]]:
    """The sample weights in a column, and a problem that names the first row without a positive, finite number."""
    numbers = numbers_of(column)
    with np.errstate(invalid="ignore"):
        bad = ~(np.isfinite(numbers) & (numbers > 0))
    if not bad.any():
        return numbers, []
    first = clipped(str(column[bad].iloc[0]))
    return numbers, [
        f"weight column {name!r}: {_count(bad)} hold no positive, finite number, {first!r} in the first. Leave rows of weight 0 out; "
        "correct the others."
    ]


def identifiers(column: "pd.Series[object]") -> ObjectArray:
    """The ids in a column, unchanged; whole numbers that pandas keeps as floating-point numbers because of gaps are integers again."""
    values: ObjectArray = column.to_numpy(dtype=object)
    if pd.api.types.is_float_dtype(column):
        values = np.array([int(v) if isinstance(v, float) and v.is_integer() else v for v in values], dtype=object)
    return values


def identifier_problems(column: "pd.Series[object]", name: str, role: str) -> list[str]:
    """What is wrong with a column of ids: empty ones, numbers too large to be exact, or both numbers and text."""
    empty = column.isna().to_numpy(bool) | np.array([isinstance(value, str) and not value.strip() for value in column], bool)
    problems = (
        [f"{role} column {name!r}: {_count(empty)} have no {'patient id' if role == 'patient' else 'id'}. Fill them in or leave them out."]
        if empty.any()
        else []
    )
    wrong, held = "", column[~empty]
    if isinstance(column.dtype, pd.CategoricalDtype):
        held = column.cat.categories.to_series()
    if pd.api.types.is_float_dtype(held):
        wrong = inexact(held, getattr(held.dtype, "numpy_dtype", held.dtype))
    elif held.dtype == object:
        texts = {value for value in held if isinstance(value, str)}
        both = sorted({level_name(value) for value in held if not isinstance(value, str)} & texts) if texts else []
        wrong = inexact(held) or (
            f"holds {_some(both)} as a number in some rows and as text in others, so that one may be counted as two. "
            "Read the column as text (in pandas dtype=str)."
            if both
            else ""
        )
    return [*problems, *([f"{role} column {name!r} {wrong}"] if wrong else [])]


def bin_problems(bins: Mapping[str, Sequence[float] | Bins], groups: Sequence[str]) -> list[str]:
    """What is wrong with bins by column: their edges, or that their column is no group."""
    problems = [
        f"bins are given for {name!r}, which is not a group column.{did_you_mean(name, groups)} Name it as a group, or leave its bins out."
        for name in bins
        if name not in groups
    ]
    for name, edges in bins.items():
        with collecting(problems):
            edges_of(edges, name)
    return problems


def _nested(column: "pd.Series[object]", name: str) -> list[str]:
    """One problem where cells hold lists or the like, as Parquet columns may."""
    if column.dtype != object:
        return []
    inside = column.map(_is_nested).to_numpy(bool)
    return (
        [f"column {name!r}: {_count(inside)} hold lists or records (or tensors); one value per row is needed. Use another column."]
        if inside.any()
        else []
    )


def _is_nested(value: object) -> bool:
    """Whether a cell holds several values, or one inside a tensor, which is equal to no other tensor."""
    return isinstance(value, (list, tuple, dict, set)) or (hasattr(value, "__array__") and not isinstance(value, np.generic))


def frame_of(arrays: Mapping[str, object]) -> pd.DataFrame:
    """A frame of arrays by name, or an error where they differ in length: pandas would fill up the shorter with missing values."""
    columns = {name: listed(values, name) for name, values in arrays.items() if values is not None}
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise BadInput(f"arrays of the same rows have the same length; got {', '.join(f'{n:,} in {name}' for name, n in lengths.items())}")
    return pd.DataFrame(columns)


def listed(values: object, name: str) -> "pd.Series[Any]":
    """The values of a list, an array or a tensor as a column, or an error where there is more than one per row.

    Floating-point numbers keep their type, by which it is known how exact they are; tensors in a list become their values.
    """
    if hasattr(values, "detach"):
        values = values.detach().cpu()
    if isinstance(values, (list, tuple)):
        plain = [one.item() if hasattr(one, "item") and getattr(one, "ndim", 1) == 0 and _is_nested(one) else one for one in values]
        array: npt.NDArray[Any] = np.asarray(plain, dtype=object)
    else:
        try:
            array = np.asarray(values)
        except (TypeError, ValueError, RuntimeError) as error:  # a type that NumPy lacks, as bfloat16
            raise BadInput(
                f"{name} cannot be read as one value per row: {error}. Make it an array first, as with .float().numpy()"
            ) from error
        array = array if array.dtype.kind == "f" else np.asarray(values, dtype=object)
    if array.ndim != 1:
        raise BadInput(f"{name} has shape {array.shape}; one value per row is needed, shape (n,)")
    return pd.Series(array)


def _id_problems(column: "pd.Series[object]", name: str) -> list[str]:
    repeated = column[column.duplicated() & column.notna()].unique()
    if not len(repeated):
        return []
    return [
        f"id column {name!r}: {len(repeated):,} ids occur more than once in {len(column):,} rows: {_some(repeated)}. Keep one row each."
    ]


def _count(rows: npt.NDArray[np.bool_]) -> str:
    return f"{int(rows.sum()):,} of {len(rows):,} rows (the first is row {int(rows.argmax()) + 1:,} below the header)"


def _some(values: Iterable[object]) -> str:
    shown = [clipped(str(value)) for value in values]
    return ", ".join(shown[:5]) + (" ..." if len(shown) > 5 else "")
