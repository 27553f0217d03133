"""What a network with several outputs is to tell: several labels, each of them known or not, or one of several classes.

Both become one array (n, L) of 0 and 1, with -1 where it is not known: one column per label, or per class (this class or another).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pandas as pd

from equipoise.data.attribute import IntArray, level_name
from equipoise.data.bins import numbers_of
from equipoise.errors import BadInput, did_you_mean, raise_all

UNKNOWN = -1
KINDS = ("labels", "classes")


@dataclass(frozen=True, eq=False)
class Targets:
    """Names and values of several labels, or of one label with several classes."""

    names: tuple[str, ...]
    values: IntArray = field(repr=False)  # (n, L): 0, 1, or -1 where it is not known
    kind: str  # labels or classes

    @property
    def y(self) -> IntArray:
        """One label per row (n,): whether any label is known to be positive; of classes, whether it is another than the first."""
        return any_positive(self.values, self.kind)


def any_positive(values: IntArray, kind: str) -> IntArray:
    """The one label (n,) that stands for all: any of the labels, or any class but the first.

    >>> any_positive(np.array([[0, 1], [0, -1]]), "labels").tolist(), any_positive(np.array([[1, 0], [0, 1]]), "classes").tolist()
    ([1, 0], [0, 1])
    """
    columns = values[:, 1:] if kind == "classes" else values
    found: IntArray = (columns == 1).any(1).astype(np.int64)
    return found


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


def read_labels(columns: Sequence["pd.Series[object]"], names: Sequence[str], positive: object = None) -> Targets:
    """The labels in columns of 0 and 1, or of the positive value and others; NaN and -1 are not known."""
    problems = _name_problems(names, "label")
    values = np.full((len(columns[0]) if columns else 0, len(names)), UNKNOWN, np.int64)
    for at, (name, column) in enumerate(zip(names, columns, strict=True)):
        numbers, here = numbers_of(column), known(column)
        if positive is not None:
            own = equals(column, positive)
        else:
            own = numbers == 1
            other = here & ~np.isin(numbers, (0, 1))
            if other.any():
                seen = ", ".join(sorted({level_name(value) for value in column[other]})[:6])
                problems.append(
                    f"label column {name!r} must hold 0 and 1, and NaN or -1 where it is not known; {int(other.sum()):,} of "
                    f"{len(column):,} rows hold something else: {seen}. "
                    "Name the positive value with positive=, or the classes with classes=[...]."
                )
                continue
        values[:, at] = np.where(here, own, UNKNOWN)
        problems += _one_sided(values[:, at], f"label column {name!r}")
    raise_all(problems)
    return Targets(tuple(map(str, names)), values, "labels")


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


def _one_sided(values: IntArray, where: str) -> list[str]:
    """One problem where a label is never known, or always the same."""
    known = values[values != UNKNOWN]
    if not len(known):
        return [f"{where} is known in none of {len(values):,} rows. Leave it out."]
    if (known == known[0]).all():
        what = "positives" if known[0] else "negatives"
        return [f"{where} holds only {what} in all {len(known):,} rows where it is known. Both are needed: use more rows or leave it out."]
    return []
