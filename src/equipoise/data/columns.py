"""Columns of a user's frame, checked: label, score, groups, patients, ids, weights. Every problem of a frame in one message."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from equipoise.data.attribute import MANY, Attribute, IntArray, inexact, level_name
from equipoise.data.bins import Bins, edges_of, numbers_of
from equipoise.data.conflicts import CONFLICTS, settled
from equipoise.data.targets import Targets, equals, read_classes, read_labels
from equipoise.errors import BadInput, Misuse, did_you_mean, pick, raise_all

FloatArray = npt.NDArray[np.float64]
ObjectArray = npt.NDArray[np.object_]


@dataclass(frozen=True, eq=False)
class Columns:
    """What the named columns hold."""

    y: IntArray = field(repr=False)
    attributes: tuple[Attribute, ...]
    patients: ObjectArray | None = field(repr=False)
    ids: ObjectArray = field(repr=False)
    score: FloatArray | None = field(repr=False)
    targets: Targets | None = field(default=None, repr=False)  # several labels, or classes
    weight: FloatArray | None = field(default=None, repr=False)


def described(y: IntArray, attributes: Sequence[Attribute], patients: ObjectArray | None) -> str:
    """How many rows, patients and positives there are, and how many rows each group has; nothing that identifies them."""
    of = "" if patients is None else f" of {len(set(patients)):,} patients"
    return ", ".join([f"{len(y):,} rows{of}", f"{int((y == 1).sum()):,} positive", *map(repr, attributes)])


def read_columns(
    frame: pd.DataFrame,
    *,
    label: str | Sequence[str],
    group: str | Sequence[str],
    reference: str | Sequence[str] | None = None,
    patient: str | None = None,
    id: str | None = None,
    score: str | None = None,
    positive: object = None,
    classes: Sequence[object] | None = None,
    bins: Mapping[str, Sequence[float] | Bins] | None = None,
    conflicts: str = "row",
    weight: str | None = None,
    source: str = "",
) -> Columns:
    """The named columns of a frame, or one error that lists everything wrong with them.

    Several label columns, or one with `classes`, are `targets`; y is then what stands for them all. `bins` has the edges at which group
    columns of numbers are cut; `conflicts` sets what happens to patients who have more than one group (see `CONFLICTS`).
    """
    check_frame("from_frame", frame)
    check_names(label=label, score=score, group=group, patient=patient, id=id, bins=bins, weight=weight)
    pick("rule for conflicts:", conflicts, CONFLICTS)
    groups = [group] if isinstance(group, str) else list(group)
    labels = [label] if isinstance(label, str) else list(label)
    references = _references(groups, reference)
    wanted = [name for name in (*labels, score, *groups, patient, id, weight) if name is not None]
    problems = [_absent(name, frame) for name in dict.fromkeys(wanted) if name not in frame.columns]
    problems += [
        f"column {name!r} is there {count} times. Rename all but one."
        for name in dict.fromkeys(wanted)
        if (count := list(frame.columns).count(name)) > 1
    ]
    problems += _shared_roles(
        [
            *(("label", name) for name in dict.fromkeys(labels)),
            ("score", score),
            *(("group", name) for name in groups),
            ("patient", patient),
            ("weight", weight),
        ]
    )
    if not len(frame):
        problems.append("the table has no rows")
    if not groups:
        problems.append("no group column was named")
    problems += bin_problems(bins or {}, groups)
    problems += [
        problem for name in dict.fromkeys(wanted) if list(frame.columns).count(name) == 1 for problem in _nested(frame[name], name)
    ]
    raise_all(problems, source)

    targets: Targets | None = None
    if isinstance(label, str) and classes is None:
        y, label_problem = _label(frame[label], label, positive)
        problems += label_problem or one_label(
            int(y.sum()), len(y), label, positive, _examples(frame[label].dropna()) if not y.any() else ""
        )
    else:
        y = np.zeros(len(frame), np.int64)
        try:
            if classes is not None and len(labels) != 1:
                raise BadInput(f"classes are those of one label column; got {len(labels)} columns: {', '.join(labels)}")
            targets = (
                read_labels([frame[name] for name in labels], labels, positive)
                if classes is None
                else read_classes(frame[labels[0]], labels[0], classes)
            )
            y = targets.y
        except BadInput as error:
            problems += error.problems
    scores: FloatArray | None = None
    if score is not None:
        scores, score_problems = _score(frame[score], score)
        problems += score_problems
    weights: FloatArray | None = None
    if weight is not None:
        weights, weight_problems = _weight(frame[weight], weight)
        problems += weight_problems
    attributes = []
    for name, named in zip(groups, references, strict=True):
        try:
            edges = (bins or {}).get(name)
            attributes.append(
                Attribute.of(frame[name], name, named) if edges is None else Attribute.binned(frame[name], edges, name, named)
            )
        except BadInput as error:
            problems += error.problems
    if patient and (wrong := _identifier_problems(frame[patient], patient, "patient")):
        problems += wrong
    elif patient:
        for at, attribute in enumerate(attributes):
            try:
                attributes[at] = settled(attribute, frame[patient], conflicts)
            except BadInput as error:
                problems += error.problems
    elif conflicts != "row":
        problems.append(f"conflicts={conflicts!r} is about patients, and no patient column was named. Name it, or leave conflicts out.")
    if id:
        problems += _identifier_problems(frame[id], id, "id") + _id_problems(frame[id], id)
    raise_all(problems, source)
    patients = identifiers(frame[patient]) if patient else None
    ids = identifiers(frame[id]) if id else np.arange(len(frame)).astype(object)
    return Columns(y, tuple(attributes), patients, ids, scores, targets, weights)


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


def check_names(*, label: object, score: object, group: object, patient: object, id: object, bins: object, weight: object = None) -> None:
    """Raises where the names of columns are something else, such as the columns themselves."""

    def listed(value: object) -> bool:
        return isinstance(value, (list, tuple, np.ndarray, pd.Index)) and all(isinstance(name, str) for name in value)

    problems = [
        f"{role} must be the name of a column{' or a list of names' if several else ''}; got {type(value).__name__}"
        for role, value, several in (
            ("label", label, True),
            ("group", group, True),
            ("score", score, False),
            ("patient", patient, False),
            ("id", id, False),
            ("weight", weight, False),
        )
        if not (isinstance(value, str) or (several and listed(value)) or (not several and (value is None or isinstance(value, int))))
    ]
    if bins is not None and not isinstance(bins, Mapping):
        problems.append(f"bins must be the edges by column, as in {{'age': [40, 60, 80]}}; got {bins!r}")
    raise_all(problems)


def _references(groups: Sequence[str], reference: str | Sequence[str] | None) -> list[str | None]:
    if reference is None:
        return [None] * len(groups)
    given = [reference] if np.ndim(reference) == 0 else list(reference)
    if len(given) != len(groups):
        raise BadInput(f"{len(groups)} group columns need {len(groups)} references, one each in the same order; got {len(given)}: {given}")
    return [None if value is None else level_name(value) for value in given]


def _shared_roles(roles: Sequence[tuple[str, str | None]]) -> list[str]:
    named: dict[str, list[str]] = {}
    for role, name in roles:
        if name is not None:
            named.setdefault(name, []).append(role)
    return [
        f"column {name!r} is named for more than one thing: {', '.join(uses)}. Give each a column of its own."
        for name, uses in named.items()
        if len(uses) > 1
    ]


def _absent(name: str, frame: pd.DataFrame) -> str:
    names = [str(c) for c in frame.columns]
    shown = ", ".join(map(_clip, names[:20])) + (f", and {len(names) - 20} more" if len(names) > 20 else "")
    return f"no column {name!r}.{did_you_mean(name, names, 0.6)} The columns are: {shown}."


def _label(column: "pd.Series[object]", name: str, positive: object) -> tuple[IntArray, list[str]]:
    n, empty = len(column), int(column.isna().sum())
    problems = [f"label column {name!r}: {empty:,} of {n:,} rows have no label. Leave them out first."] if empty else []
    found = column.dropna()
    if positive is not None:
        y = equals(column, positive).astype(np.int64)
    else:
        numbers = numbers_of(column)
        y = (numbers == 1).astype(np.int64)
        other = column[column.notna().to_numpy() & ~np.isin(numbers, (0, 1))]
        if len(other):
            last = _clip(sorted(found.map(level_name).unique())[-1])
            problems.append(
                f"label column {name!r} must hold 0 and 1; {len(other):,} of {n:,} rows hold something else. It holds {_examples(found)}. "
                f"If one of them is the positive value, name it: --positive {last} (in Python positive={last!r})."
                f"{_classes_advice(found, name)}"
            )
    return y, problems


def one_label(positives: int, rows: int, name: str, positive: object = None, found: str = "") -> list[str]:
    """A problem where all rows have the same label; `found` are the values of the column, where one of them was to be the positive one."""
    if positive is not None and not positives:
        return [f"label column {name!r} never holds the positive value {positive!r}{found and f'; it holds {found}'}"]
    if positives in (0, rows):
        what = "only positives" if positives else "only negatives"
        return [f"label column {name!r} holds {what} in all {rows:,} rows. Both are needed: use more rows or another column."]
    return []


def _weight(column: "pd.Series[object]", name: str) -> tuple[FloatArray, list[str]]:
    """The sample weights in a column, and a problem that names the first row without a positive, finite number."""
    numbers = numbers_of(column)
    with np.errstate(invalid="ignore"):
        bad = ~(np.isfinite(numbers) & (numbers > 0))
    if not bad.any():
        return numbers, []
    first = _clip(str(column[bad].iloc[0]))
    return numbers, [
        f"weight column {name!r}: {_count(bad)} hold no positive, finite number, {first!r} in the first. Leave rows of weight 0 out; "
        "correct the others."
    ]


def _classes_advice(found: "pd.Series[object]", name: str) -> str:
    """How a network of several classes is repaired, where a label has so few values that they may be classes."""
    values = sorted(found.map(level_name).unique())
    if not 2 < len(values) <= MANY:
        return ""
    return (
        " Several classes are repaired from Python:\n"
        f"  cohort = eq.Cohort.from_frame(df, label={name!r}, classes={values[:3]!r}, group=...)  # all, in the network's order\n"
        '  result = eq.debias(net, cohort, method="constrained", measure="eod")'
    )


def _score(column: "pd.Series[object]", name: str) -> tuple[FloatArray, list[str]]:
    numbers = numbers_of(column)
    empty = column.isna().to_numpy()
    text = ~empty & np.isnan(numbers)
    with np.errstate(invalid="ignore"):
        outside = (numbers < 0) | (numbers > 1)
    problems = []
    if text.any():
        first = _clip(str(column[text].iloc[0]))
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
        if low < 0:
            advice = "They look like logits: apply the sigmoid 1 / (1 + exp(-x)) first."
        elif 2 < high <= 100:
            advice = "They look like percentages: divide by 100 first."
        else:
            advice = "A score is a probability: correct them or leave those rows out."
        problems.append(f"score column {name!r}: {_count(outside)} lie outside [0, 1]; the scores go from {low:g} to {high:g}. {advice}")
    return numbers, problems


def identifiers(column: "pd.Series[object]") -> ObjectArray:
    """The ids in a column, unchanged; whole numbers that pandas keeps as floating-point numbers because of gaps are integers again."""
    values: ObjectArray = column.to_numpy(dtype=object)
    if pd.api.types.is_float_dtype(column):
        values = np.array([int(v) if isinstance(v, float) and v.is_integer() else v for v in values], dtype=object)
    return values


def _identifier_problems(column: "pd.Series[object]", name: str, role: str) -> list[str]:
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
        f"bins are given for {name!r}, which is no group column.{did_you_mean(name, groups)} Name it as a group, or leave its bins out."
        for name in bins
        if name not in groups
    ]
    for name, edges in bins.items():
        try:
            edges_of(edges, name)
        except BadInput as error:
            problems += error.problems
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


def _examples(found: "pd.Series[object]") -> str:
    values = sorted(found.map(level_name).unique(), key=lambda v: (len(v), v))
    return f"{len(values):,} different values: {', '.join(map(_clip, values[:6]))}{' ...' if len(values) > 6 else ''}"


def _some(values: Iterable[object]) -> str:
    shown = [_clip(str(value)) for value in values]
    return ", ".join(shown[:5]) + (" ..." if len(shown) > 5 else "")


def _clip(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:36]} ..."
