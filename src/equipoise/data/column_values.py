"""The values in the columns of a user's frame, validated. All problems of a frame come in one message."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from equipoise.data.attribute import (
    Attribute,
    BoolArray,
    FloatArray,
    IntArray,
    ObjectArray,
    level_name,
    precision_problem,
    resolve_conflicts,
    row_numbers,
)
from equipoise.data.bins import to_numbers
from equipoise.data.columns import Columns
from equipoise.data.targets import UNNAMED, Targets, read_class_column, read_label, read_label_columns, shorten
from equipoise.errors import BadInput, Misuse, collecting, did_you_mean, raise_all


@dataclass(frozen=True, eq=False)
class ColumnValues:
    """The values of the columns that have a role."""

    attributes: tuple[Attribute, ...]
    patients: ObjectArray | None = field(repr=False)
    ids: ObjectArray = field(repr=False)
    score: FloatArray | None = field(repr=False)  # as in the column: logits if the columns say so
    weight: FloatArray | None = field(repr=False)
    targets: Targets = field(repr=False)

    @property
    def rows(self) -> dict[str, Any]:
        """All but the score, as the fields of a cohort."""
        return {name: getattr(self, name) for name in ("attributes", "patients", "ids", "weight")} | self.targets.fields


def describe_rows(y: IntArray, attributes: Sequence[Attribute], patients: ObjectArray | None) -> str:
    """The number of rows, patients and positives, and the rows of each group; no value of any row, which may be a patient's."""
    of_patients = "" if patients is None else f" of {len(set(patients)):,} patients"
    return ", ".join([f"{len(y):,} rows{of_patients}", f"{int((y == 1).sum()):,} positive", *map(repr, attributes)])


def read_columns(frame: pd.DataFrame, columns: Columns, source: str = "") -> ColumnValues:
    """The values of the columns of a frame that have a role; raises `BadInput` with everything wrong with them."""
    problems = _frame_problems(frame, columns)
    raise_all(problems, source)
    n, patient, score = len(frame), columns.patient, columns.score[0] if columns.score else None
    with collecting(problems):
        targets = _read_targets(frame, columns)
    scores = weights = None
    if score is not None:
        scores, score_problems = read_score_column(frame[score], score, columns.logits)
        problems += score_problems
    if columns.weight is not None:
        weights, weight_problems = read_weights(frame[columns.weight], columns.weight)
        problems += weight_problems
    attributes = []
    for name, reference in zip(columns.group, columns.references, strict=True):
        edges = columns.bins.get(name)
        with collecting(problems):
            if edges is None:
                attributes.append(Attribute.of(frame[name], name, reference))
            else:
                attributes.append(Attribute.binned(frame[name], edges, name, reference))
    if patient and (patient_problems := identifier_problems(frame[patient], patient, "patient")):
        problems += patient_problems
    elif patient:
        for k, attribute in enumerate(attributes):
            with collecting(problems):
                attributes[k] = resolve_conflicts(attribute, frame[patient], columns.conflicts)
    problems += columns.conflict_problems()
    if columns.id:
        problems += identifier_problems(frame[columns.id], columns.id, "id") + _repeated_id_problems(frame[columns.id], columns.id)
    raise_all(problems, source)
    patients = read_identifiers(frame[patient]) if patient else None
    ids = read_identifiers(frame[columns.id]) if columns.id else row_numbers(n)
    return ColumnValues(tuple(attributes), patients, ids, scores, weights, targets)


def _frame_problems(frame: pd.DataFrame, columns: Columns) -> list[str]:
    """Problems that prevent reading a frame: columns missing, repeated, with two roles, or with several values per row."""
    names = (*columns.label, *columns.group, *columns.score, columns.patient, columns.id, columns.weight)
    counts = {name: list(frame.columns).count(name) for name in dict.fromkeys(names) if name is not None}
    problems = missing_columns([name for name, count in counts.items() if not count], list(map(str, frame.columns)))
    problems += [f"column {name!r} occurs {count} times. Rename all but one." for name, count in counts.items() if count > 1]
    if not len(frame):
        problems.append("the table has no rows")
    problems += columns.problems()
    return problems + [problem for name, count in counts.items() if count == 1 for problem in _nested_problems(frame[name], name)]


def _read_targets(frame: pd.DataFrame, columns: Columns) -> Targets:
    labels = columns.label
    if columns.classes:
        return read_class_column(frame[labels[0]], labels[0], columns.classes)
    if len(labels) > 1:
        return read_label_columns([frame[name] for name in labels], labels, columns.positive)
    return Targets(UNNAMED, read_label(frame[labels[0]], labels[0], columns.positive)[:, None])


def feature_problems(frame: pd.DataFrame, features: Sequence[str]) -> list[str]:
    """The problems of the columns named as features: absent or repeated."""
    problems = [f"no feature column {c!r}.{did_you_mean(c, map(str, frame.columns), 0.6)}" for c in features if c not in frame.columns]
    repeated = dict.fromkeys(c for c in features if list(features).count(c) > 1)
    return problems + [f"feature column {c!r} occurs more than once in the frame or the list. Keep it once." for c in repeated]


def check_frame(call: str, frame: object) -> None:
    """Raises `Misuse` unless the argument is a frame, and names the call to use instead."""
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


def missing_columns(names: Sequence[str], columns: Sequence[str]) -> list[str]:
    """The problems of a table that lacks these columns, one each; the last one lists the columns that the table has.

    >>> missing_columns(["Sex", "race"], ["y", "sex"])
    ["no column 'Sex'. Did you mean 'sex'?", "no column 'race'. The columns are: y, sex."]
    """
    shown = ", ".join(map(shorten, columns[:20])) + (f", and {len(columns) - 20} more" if len(columns) > 20 else "")
    problems = [f"no column {name!r}.{did_you_mean(name, columns, 0.6)}" for name in names]
    return [*problems[:-1], *(f"{problem} The columns are: {shown}." for problem in problems[-1:])]


def read_score_column(column: "pd.Series[object]", name: str, logits: bool = False) -> tuple[FloatArray, list[str]]:
    """The scores or logits in a column, and their problems."""
    numbers = to_numbers(column)
    empty = column.isna().to_numpy()
    text = ~empty & np.isnan(numbers)
    with np.errstate(invalid="ignore"):
        outside = np.isinf(numbers) if logits else (numbers < 0) | (numbers > 1)
    problems = []
    if text.any():
        first = shorten(str(column[text].iloc[0]))
        if first.endswith("%"):
            advice = "They look like percentages: remove the sign and divide by 100."
        elif first.replace(",", ".", 1).lstrip("-").replace(".", "", 1).isdigit():
            advice = "They look like decimal commas: write points instead, or semicolons between the columns."
        else:
            advice = "Correct them or leave those rows out."
        problems.append(f"score column {name!r}: {_affected_rows(text)} are not numbers, {first!r} in the first. {advice}")
    if empty.any():
        problems.append(f"score column {name!r}: {_affected_rows(empty)} are empty (NaN). Fill them in or leave them out.")
    if outside.any():
        low, high = float(np.nanmin(numbers)), float(np.nanmax(numbers))
        if logits:
            advice = "A logit is a finite number: correct them or leave those rows out."
        elif low < 0:
            advice = "They look like logits: add --set data.logits=true (Python: logits=True), which applies 1 / (1 + exp(-x))."
        elif 2 < high <= 100:
            advice = "They look like percentages: divide by 100 first."
        else:
            advice = "A score is a probability: correct them or leave those rows out."
        where = "are infinite" if logits else "lie outside [0, 1]"
        problems.append(f"score column {name!r}: {_affected_rows(outside)} {where}; the scores go from {low:g} to {high:g}. {advice}")
    return numbers, problems


def read_weights(column: "pd.Series[object]", name: str) -> tuple[FloatArray, list[str]]:
    """The sample weights in a column, and a problem if some are not positive, finite numbers."""
    numbers = to_numbers(column)
    with np.errstate(invalid="ignore"):
        bad = ~(np.isfinite(numbers) & (numbers > 0))
    if not bad.any():
        return numbers, []
    first = shorten(str(column[bad].iloc[0]))
    return numbers, [
        f"weight column {name!r}: {_affected_rows(bad)} hold no positive, finite number, {first!r} in the first. Leave rows of weight 0 "
        "out; correct the others."
    ]


def read_identifiers(column: "pd.Series[object]") -> ObjectArray:
    """The ids in a column, unchanged, except that integers which pandas stores as floating-point numbers become integers again."""
    values: ObjectArray = column.to_numpy(dtype=object)
    if pd.api.types.is_float_dtype(column):
        values = np.array([int(v) if isinstance(v, float) and v.is_integer() else v for v in values], dtype=object)
    return values


def identifier_problems(column: "pd.Series[object]", name: str, role: str) -> list[str]:
    """The problems of a column of ids: empty cells, numbers too large to be exact, the same id as a number and as text."""
    problems = []
    empty = column.isna().to_numpy(bool) | np.array([isinstance(value, str) and not value.strip() for value in column], bool)
    if empty.any():
        what = "patient id" if role == "patient" else "id"
        problems.append(f"{role} column {name!r}: {_affected_rows(empty)} have no {what}. Fill them in or leave them out.")
    values = column.cat.categories.to_series() if isinstance(column.dtype, pd.CategoricalDtype) else column[~empty]
    problem = ""
    if pd.api.types.is_float_dtype(values):
        problem = precision_problem(values, getattr(values.dtype, "numpy_dtype", values.dtype))
    elif values.dtype == object:
        problem = precision_problem(values)
        texts = {value for value in values if isinstance(value, str)}
        both = sorted({level_name(value) for value in values if not isinstance(value, str)} & texts) if texts else []
        if both and not problem:
            problem = (
                f"holds {_first_five(both)} as a number in some rows and as text in others, so that one may be counted as two. "
                "Read the column as text (in pandas dtype=str)."
            )
    if problem:
        problems.append(f"{role} column {name!r} {problem}")
    return problems


def _repeated_id_problems(column: "pd.Series[object]", name: str) -> list[str]:
    repeated = column[column.duplicated() & column.notna()].unique()
    if not len(repeated):
        return []
    return [
        f"id column {name!r}: {len(repeated):,} ids occur more than once in {len(column):,} rows: {_first_five(repeated)}. "
        "Keep one row each."
    ]


def _nested_problems(column: "pd.Series[object]", name: str) -> list[str]:
    """A problem if cells hold lists or records, as Parquet columns may."""
    nested = column.map(_is_nested).to_numpy(bool) if column.dtype == object else np.zeros(0, bool)
    if not nested.any():
        return []
    return [
        f"column {name!r}: {_affected_rows(nested)} hold lists or records (or tensors); one value per row is needed. Use another column."
    ]


def _is_nested(value: object) -> bool:
    """Whether a cell holds several values, or a tensor, which is never equal to another tensor."""
    return isinstance(value, (list, tuple, dict, set)) or (hasattr(value, "__array__") and not isinstance(value, np.generic))


def frame_from_arrays(arrays: Mapping[str, object]) -> pd.DataFrame:
    """A frame of arrays by name. Raises `BadInput` if their lengths differ, since pandas would fill up the shorter ones."""
    columns = {name: _as_column(values, name) for name, values in arrays.items() if values is not None}
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise BadInput(f"arrays of the same rows have the same length; got {', '.join(f'{n:,} in {name}' for name, n in lengths.items())}")
    return pd.DataFrame(columns)


def _as_column(values: object, name: str) -> "pd.Series[Any]":
    """A list, array or tensor (n,) as a column. Floating-point numbers keep their type, which `precision_problem` needs."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
    if isinstance(values, (list, tuple)):
        plain = [
            value.item() if hasattr(value, "item") and getattr(value, "ndim", 1) == 0 and _is_nested(value) else value for value in values
        ]
        array: npt.NDArray[Any] = np.asarray(plain, dtype=object)
    else:
        try:
            array = np.asarray(values)
        except (TypeError, ValueError, RuntimeError) as error:  # a type that NumPy lacks, such as bfloat16
            raise BadInput(
                f"{name} cannot be read as one value per row: {error}. Make it an array first, as with .float().numpy()"
            ) from error
        array = array if array.dtype.kind == "f" else np.asarray(values, dtype=object)
    if array.ndim != 1:
        raise BadInput(f"{name} has shape {array.shape}; one value per row is needed, shape (n,)")
    return pd.Series(array)


def _affected_rows(rows: BoolArray) -> str:
    return f"{int(rows.sum()):,} of {len(rows):,} rows (the first is row {int(rows.argmax()) + 1:,} below the header)"


def _first_five(values: Iterable[object]) -> str:
    shown = [shorten(str(value)) for value in values]
    return ", ".join(shown[:5]) + (" ..." if len(shown) > 5 else "")
