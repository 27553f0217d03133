"""Columns of a user's frame, checked: label, score, groups, patients, ids. Every problem of a frame in one message."""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

import numpy as np
import numpy.typing as npt
import pandas as pd

from equipoise.data.attribute import Attribute, IntArray
from equipoise.errors import BadInput, raise_all

FloatArray = npt.NDArray[np.float64]
ObjectArray = npt.NDArray[np.object_]


@dataclass(frozen=True, eq=False)
class Columns:
    """What the named columns hold."""

    y: IntArray
    attributes: tuple[Attribute, ...]
    patients: ObjectArray | None
    ids: ObjectArray
    score: FloatArray | None


def read_columns(
    frame: pd.DataFrame,
    *,
    label: str,
    group: str | Sequence[str],
    reference: str | Sequence[str] | None = None,
    patient: str | None = None,
    id: str | None = None,
    score: str | None = None,
    positive: object = None,
    source: str = "",
) -> Columns:
    """The named columns of a frame, or one error that lists everything wrong with them."""
    groups = [group] if isinstance(group, str) else list(group)
    references = _references(groups, reference)
    wanted = [name for name in (label, score, *groups, patient, id) if name is not None]
    problems = [_absent(name, frame) for name in dict.fromkeys(wanted) if name not in frame.columns]
    if not len(frame):
        problems.append("the table has no rows")
    if not groups:
        problems.append("no group column was named")
    raise_all(problems, source)

    y, label_problem = _label(frame[label], label, positive)
    problems += label_problem
    scores: FloatArray | None = None
    if score is not None:
        scores, score_problems = _score(frame[score], score)
        problems += score_problems
    attributes = []
    for name, named in zip(groups, references, strict=True):
        try:
            attributes.append(Attribute.of(frame[name], name, named))
        except BadInput as error:
            problems += error.problems
    patients = frame[patient].to_numpy(dtype=object) if patient else None
    if patient and patients is not None:
        problems += _patient_problems(frame[patient], patient, attributes)
    if id:
        problems += _id_problems(frame[id], id)
    raise_all(problems, source)
    ids = frame[id].to_numpy(dtype=object) if id else np.arange(len(frame)).astype(object)
    return Columns(y, tuple(attributes), patients, ids, scores)


def _references(groups: Sequence[str], reference: str | Sequence[str] | None) -> list[str | None]:
    if reference is None:
        return [None] * len(groups)
    given = [reference] if isinstance(reference, (str, int, float)) else list(reference)
    if len(given) != len(groups):
        raise BadInput(f"{len(groups)} group columns need {len(groups)} references, one each in the same order; got {len(given)}: {given}")
    return [str(value) for value in given]


def _absent(name: str, frame: pd.DataFrame) -> str:
    names = [str(c) for c in frame.columns]
    near = get_close_matches(name, names, n=1, cutoff=0.6) or [c for c in names if c.lower() == name.lower()]
    hint = f" Did you mean {near[0]!r}?" if near else ""
    shown = ", ".join(names[:20]) + (f", and {len(names) - 20} more" if len(names) > 20 else "")
    return f"no column {name!r}.{hint} The columns are: {shown}."


def _label(column: "pd.Series[object]", name: str, positive: object) -> tuple[IntArray, list[str]]:
    empty = int(column.isna().sum())
    problems = [f"label column {name!r}: {empty:,} of {len(column):,} rows have no label; leave them out first"] if empty else []
    found = column.dropna()
    if positive is not None:
        matches = found.map(str) == str(positive)
        if not matches.any():
            problems.append(f"label column {name!r} never holds the positive value {positive!r}; it holds {_examples(found)}")
            return np.zeros(len(column), np.int64), problems
        return column.map(str).eq(str(positive)).to_numpy(np.int64), problems
    numbers = pd.to_numeric(found.astype("object"), errors="coerce")
    if numbers.isna().any() or not numbers.isin([0, 1]).all():
        say = (
            ""
            if found.nunique() != 2
            else "; say which value is positive, for example positive=" + repr(str(sorted(found.map(str).unique())[-1]))
        )
        problems.append(f"label column {name!r} must hold 0 and 1; it holds {_examples(found)}{say}")
        return np.zeros(len(column), np.int64), problems
    y = pd.to_numeric(column.astype("object"), errors="coerce").fillna(0).to_numpy(np.int64)
    if not problems and (y == y[0]).all():
        problems.append(f"label column {name!r} holds {y[0]} in all {len(y):,} rows; positives and negatives are both needed")
    return y, problems


def _score(column: "pd.Series[object]", name: str) -> tuple[FloatArray, list[str]]:
    numbers = pd.to_numeric(column.astype("object"), errors="coerce").to_numpy(np.float64)
    n = len(numbers)
    text = column.notna().to_numpy() & np.isnan(numbers)
    problems = []
    if text.any():
        first = f"first {column[text].iloc[0]!r} in row {int(text.argmax()) + 1}"
        problems.append(f"score column {name!r}: {int(text.sum()):,} of {n:,} rows are not numbers, {first}")
    empty = column.isna().to_numpy()
    if empty.any():
        problems.append(
            f"score column {name!r}: {int(empty.sum()):,} of {n:,} rows are empty (NaN), first in row {int(empty.argmax()) + 1}"
        )
    with np.errstate(invalid="ignore"):
        outside = (numbers < 0) | (numbers > 1)
    if outside.any():
        low, high = float(np.nanmin(numbers)), float(np.nanmax(numbers))
        if low >= 0 and 1 < high <= 100:
            advice = "they look like percentages: divide by 100"
        elif low < 0:
            advice = "they look like logits: apply the sigmoid 1 / (1 + exp(-x))"
        else:
            advice = "a score is a probability"
        problems.append(
            f"score column {name!r}: {int(outside.sum()):,} of {n:,} scores lie outside [0, 1], from {low:g} to {high:g}; {advice}"
        )
    return numbers, problems


def _patient_problems(column: "pd.Series[object]", name: str, attributes: Sequence[Attribute]) -> list[str]:
    problems = []
    empty = int(column.isna().sum())
    if empty:
        problems.append(f"patient column {name!r}: {empty:,} of {len(column):,} rows have no patient id; fill them in or leave them out")
    for attribute in attributes:
        known = attribute.codes >= 0
        levels = pd.Series(attribute.codes[known]).groupby(column[known].to_numpy()).nunique()
        mixed = levels[levels > 1].index
        if len(mixed):
            shown = ", ".join(repr(p) for p in mixed[:5])
            problems.append(f"{len(mixed):,} patients have more than one {attribute.name!r}: {shown}{' ...' if len(mixed) > 5 else ''}")
    return problems


def _id_problems(column: "pd.Series[object]", name: str) -> list[str]:
    repeated = column[column.duplicated()].unique()
    if not len(repeated):
        return []
    shown = ", ".join(repr(v) for v in repeated[:5])
    return [f"id column {name!r}: {len(repeated):,} ids occur more than once: {shown}{' ...' if len(repeated) > 5 else ''}"]


def _examples(found: "pd.Series[object]") -> str:
    values = sorted(found.map(str).unique(), key=lambda v: (len(v), v))
    return f"{len(values):,} different values: {', '.join(values[:6])}{' ...' if len(values) > 6 else ''}"
