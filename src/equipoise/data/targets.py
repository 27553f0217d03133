"""What a network with several outputs is to tell: several labels, each of them known or not, or one of several classes.

Both become one array (n, L) of 0 and 1, with -1 where it is not known: one column per label, or per class (this class or another).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from equipoise.data.attribute import MANY, IntArray, level_name
from equipoise.data.bins import numbers_of
from equipoise.errors import BadInput, collecting, did_you_mean, raise_all

UNKNOWN = -1


@dataclass(frozen=True, eq=False)
class Targets:
    """Names and values of several labels, or of one label with several classes."""

    names: tuple[str, ...]
    values: IntArray = field(repr=False)  # (n, L): 0, 1, or -1 where it is not known
    kind: str  # labels or classes

    @property
    def y(self) -> IntArray:
        """One label per row (n,): whether any label is known to be positive; of classes, whether it is another than the first.

        >>> Targets(("a", "b"), np.array([[0, 1], [0, -1]]), "labels").y.tolist(), Targets(("a", "b"), np.eye(2), "classes").y.tolist()
        ([1, 0], [0, 1])
        """
        columns = self.values[:, 1:] if self.kind == "classes" else self.values
        found: IntArray = (columns == 1).any(1).astype(np.int64)
        return found

    @property
    def fields(self) -> dict[str, Any]:
        """As the fields of a cohort."""
        return {"y": self.y, "labels": self.names, "targets": self.values, "kind": self.kind}


def equals(column: "pd.Series[object]", value: object) -> npt.NDArray[np.bool_]:
    """Which rows hold a value: text by its characters, so that '1' is not '1.0'; numbers as numbers.

    >>> equals(pd.Series(["1", "1.0"]), "1").tolist(), equals(pd.Series([1.0, 2.0]), "1").tolist()
    ([True, False], [True, False])
    """
    if pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column):
        try:
            return np.asarray(column.eq(float(value)).fillna(False), dtype=bool)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            return np.zeros(len(column), bool)
    name, empty = level_name(value), column.isna().to_numpy()
    return np.array([not gap and level_name(each) == name for each, gap in zip(column.astype(object), empty, strict=True)], dtype=bool)


def known(column: "pd.Series[object]") -> npt.NDArray[np.bool_]:
    """Which rows of a label column are known: neither empty nor -1."""
    return np.asarray(column.notna().to_numpy() & (numbers_of(column) != UNKNOWN), dtype=bool)


def label_of(column: "pd.Series[object]", name: str, positive: object = None, *, gaps: bool = False) -> tuple[IntArray, list[str]]:
    """A label (n,) of 0 and 1, or of the positive value and others, and what is wrong with it.

    With `gaps` it may be unknown (NaN or -1), which becomes -1.
    """
    n, here = len(column), known(column) if gaps else column.notna().to_numpy(dtype=bool)
    problems = []
    if not gaps and not here.all():
        problems.append(f"label column {name!r}: {int((~here).sum()):,} of {n:,} rows have no label. Leave them out first.")
    numbers = numbers_of(column)
    own = numbers == 1 if positive is None else equals(column, positive)
    other = here & ~np.isin(numbers, (0, 1))
    if positive is None and other.any():
        values = [clipped(value) for value in sorted(column[here].map(level_name).unique())]
        either = values if len(values) == 2 else values[-1:]
        named = " or ".join(f"--positive {value}" for value in either)
        problems.append(
            f"label column {name!r} must hold 0 and 1{', and NaN or -1 where it is not known' if gaps else ''}; {int(other.sum()):,} of "
            f"{n:,} rows hold something else. It holds {_examples(column[here])}. If one of them is the positive value, name it: "
            f"{named} (in Python {' or '.join(f'positive={value!r}' for value in either)}).{_classes_advice(column[here])}"
        )
    return np.where(here, own, UNKNOWN).astype(np.int64), problems


def one_label(positives: int, rows: int, name: str, positive: object = None, found: str = "") -> list[str]:
    """A problem where all rows have the same label; `found` are the values of the column, where one of them was to be the positive one."""
    if not rows:
        return [f"label column {name!r} has no known value in any row. Leave it out."]
    if positive is not None and not positives:
        return [f"label column {name!r} never holds the positive value {positive!r}{found and f'; it holds {found}'}"]
    if positives in (0, rows):
        what = "only positives" if positives else "only negatives"
        return [f"label column {name!r} holds {what} in all {rows:,} rows. Both are needed: use more rows or another column."]
    return []


def read_label(column: "pd.Series[object]", name: str, positive: object = None, *, gaps: bool = False) -> IntArray:
    """A label with both positives and negatives, or an error that lists everything wrong with it."""
    values, problems = label_of(column, name, positive, gaps=gaps)
    positives, here = int((values == 1).sum()), values != UNKNOWN
    examples = _examples(column[here]) if positive is not None and not positives else ""
    raise_all(problems or one_label(positives, int(here.sum()), name, positive, examples))
    return values


def read_labels(columns: Sequence["pd.Series[object]"], names: Sequence[str], positive: object = None) -> Targets:
    """The labels in columns of 0 and 1, or of the positive value and others; NaN and -1 are not known."""
    problems = _name_problems(names, "label")
    values = []
    for name, column in zip(names, columns, strict=True):
        with collecting(problems):
            values.append(read_label(column, name, positive, gaps=True))
    raise_all(problems)
    return Targets(tuple(map(str, names)), np.stack(values, 1), "labels")


def read_classes(column: "pd.Series[object]", name: str, classes: Sequence[object]) -> Targets:
    """The classes in a column that holds their names, or their numbers from 0; NaN and -1 are not known."""
    names = [level_name(value) for value in classes]
    problems = _name_problems(names, "class")
    if len(names) < 2:
        problems.append(f"classes needs two or more, in the order of the network's outputs; got {names}")
    raise_all(problems)
    told = column.map(level_name, na_action="ignore")
    here = column.notna().to_numpy() & ~told.eq(str(UNKNOWN)).to_numpy(dtype=bool, na_value=False)
    place = {each: at for at, each in enumerate(names)}
    if not told[here].isin(names).any():  # no name occurs, so these are numbers
        place = {str(at): at for at in range(len(names))}
    codes = told.map(place).to_numpy(np.float64)
    strange = sorted(set(told[here & np.isnan(codes)]))
    if strange:
        raise BadInput(
            f"label column {name!r} holds values that are none of the classes {', '.join(names)}: {', '.join(strange[:6])}."
            f"{did_you_mean(strange[0], names)} Add them to classes=[...], or leave those rows empty."
        )
    values = np.where(here[:, None], codes[:, None] == np.arange(len(names)), UNKNOWN).astype(np.int64)
    absent = [each for at, each in enumerate(names) if not (values[:, at] == 1).any()]
    if absent:
        raise BadInput(f"label column {name!r} holds no row of the classes {', '.join(absent)}. Leave them out or use more rows.")
    return Targets(tuple(names), values, "classes")


def read_array(y: object, labels: Sequence[str] | None, classes: Sequence[object] | None) -> Targets:
    """The labels in an array (n, L), in the order of their names; or the classes in an array (n,)."""
    values: npt.NDArray[np.object_] = np.asarray(y, dtype=object)
    if labels is not None and classes is not None:
        raise BadInput("give labels=[...] with an array (n, L) of 0 and 1, or classes=[...] with one class per row, not both")
    if classes is not None:
        if values.ndim != 1:
            raise BadInput(f"with classes, y holds one class per row, shape (n,); got {values.shape}")
        return read_classes(pd.Series(values), "y", classes)
    names = list(labels or ())
    if values.ndim != 2 or values.shape[1] != len(names):
        raise BadInput(f"{len(names)} labels ({', '.join(map(str, names))}) need y of shape (n, {len(names)}); got {values.shape}")
    return read_labels([pd.Series(values[:, k]) for k in range(len(names))], names)


def _name_problems(names: Sequence[str], what: str) -> list[str]:
    twice = sorted({name for name in names if list(names).count(name) > 1})
    found = [f"{what} {name!r} is named more than once; name each once" for name in twice]
    return found if len(names) else [f"no {what} was named; give at least one"]


def _classes_advice(found: "pd.Series[object]") -> str:
    """How a network of several classes is repaired, where a label has so few values that they may be classes."""
    values = sorted(found.map(level_name).unique())
    if not 2 < len(values) <= MANY:
        return ""
    return (
        " If they are the classes of a network that decides by argmax, name all of them in the order of its outputs: "
        f"--class {values[0]} --class {values[1]} ... (Python: classes={values[:3]!r})."
    )


def _examples(found: "pd.Series[object]") -> str:
    values = sorted(found.map(level_name).unique(), key=lambda v: (len(v), v))
    return f"{len(values):,} different values: {', '.join(map(clipped, values[:6]))}{' ...' if len(values) > 6 else ''}"


def clipped(text: str) -> str:
    """A value of the user's as a message shows it, not longer than 40 characters."""
    return text if len(text) <= 40 else f"{text[:36]} ..."
