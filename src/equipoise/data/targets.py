"""The labels of a model with one or several outputs: a binary label, several labels that may be unknown, or one of several classes.

They are one array (n, L) of 0 and 1, with -1 for unknown: one column per label, or per class (this class or another). The only label of a
model with one output is a column without a name.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from equipoise.data.attribute import MANY, BoolArray, IntArray, level_name
from equipoise.data.bins import to_numbers
from equipoise.data.columns import LabelKind
from equipoise.errors import BadInput, collecting, did_you_mean, raise_all

UNKNOWN = -1
UNNAMED = ("",)  # the names of the labels of a model with one output


@dataclass(frozen=True, eq=False)
class Targets:
    """Names and values of labels, or of one label with several classes."""

    names: tuple[str, ...]
    values: IntArray = field(repr=False)  # (n, L): 0, 1, or -1 if unknown
    kind: LabelKind = LabelKind.LABELS

    @property
    def y(self) -> IntArray:
        """One binary label per row (n,): any label is known to be positive; for classes, the class is not the first.

        >>> Targets(("a", "b"), np.array([[0, 1], [0, -1]])).y.tolist(), Targets(("a", "b"), np.eye(2), LabelKind.CLASSES).y.tolist()
        ([1, 0], [0, 1])
        """
        columns = self.values[:, 1:] if self.kind.argmax else self.values
        y: IntArray = (columns == 1).any(1).astype(np.int64)
        return y

    @property
    def fields(self) -> dict[str, Any]:
        """The corresponding fields of a cohort."""
        return {"y": self.y, "labels": self.names, "targets": self.values, "kind": self.kind}


def equals(column: "pd.Series[object]", value: object) -> BoolArray:
    """Which rows hold a value. Text is compared by its characters, so that '1' is not '1.0'; numbers are compared as numbers.

    >>> equals(pd.Series(["1", "1.0"]), "1").tolist(), equals(pd.Series([1.0, 2.0]), "1").tolist()
    ([True, False], [True, False])
    """
    if pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column):
        try:
            return np.asarray(column.eq(float(value)).fillna(False), dtype=bool)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            return np.zeros(len(column), bool)
    names = column.astype(object).map(level_name, na_action="ignore")
    return np.asarray(names.eq(level_name(value)) & column.notna(), dtype=bool)


def known(column: "pd.Series[object]") -> BoolArray:
    """Which rows of a label column are known: neither empty nor -1."""
    return np.asarray(column.notna().to_numpy() & (to_numbers(column) != UNKNOWN), dtype=bool)


def parse_label(
    column: "pd.Series[object]", name: str, positive: object = None, *, unknown_allowed: bool = False
) -> tuple[IntArray, list[str]]:
    """A label (n,) as 0 and 1, and its problems. `positive` is the value that becomes 1; by default the column must hold 0 and 1.

    With `unknown_allowed`, empty cells and -1 become -1.
    """
    n = len(column)
    labelled = known(column) if unknown_allowed else column.notna().to_numpy(dtype=bool)
    problems = []
    if not unknown_allowed and not labelled.all():
        problems.append(
            f"label column {name!r}: {int((~labelled).sum()):,} of {n:,} rows have no label (the first is row "
            f"{int(labelled.argmin()) + 1:,} below the header). Fill them in, or leave those rows out of the table."
        )
    numbers = to_numbers(column)
    is_positive = numbers == 1 if positive is None else equals(column, positive)
    not_binary = labelled & ~np.isin(numbers, (0, 1))
    if positive is None and not_binary.any():
        values = [shorten(value) for value in sorted(column[labelled].map(level_name).unique())]
        candidates = values if len(values) == 2 else values[-1:]
        options = " or ".join(f"--set data.positive={value}" for value in candidates)
        problems.append(
            f"label column {name!r} must hold 0 and 1{', and NaN or -1 where it is not known' if unknown_allowed else ''}; "
            f"{int(not_binary.sum()):,} of {n:,} rows hold something else. It holds {_examples(column[labelled])}. If one of them is the "
            f"positive value, name it: {options} (in Python {' or '.join(f'positive={value!r}' for value in candidates)})."
            f"{_classes_advice(column[labelled])}"
        )
    return np.where(labelled, is_positive, UNKNOWN).astype(np.int64), problems


def constant_label_problems(positives: int, rows: int, name: str, positive: object = None, examples: str = "") -> list[str]:
    """A problem if all rows have the same label. `examples` describes the values of a column that lacks the positive value."""
    if not rows:
        return [f"label column {name!r} has no known value in any row. Leave it out."]
    if positive is not None and not positives:
        return [f"label column {name!r} never holds the positive value {positive!r}{examples and f'; it holds {examples}'}"]
    if positives in (0, rows):
        what = "only positives" if positives else "only negatives"
        return [f"label column {name!r} holds {what} in all {rows:,} rows. Both are needed: use more rows or another column."]
    return []


def read_label(column: "pd.Series[object]", name: str, positive: object = None, *, unknown_allowed: bool = False) -> IntArray:
    """A label with both positives and negatives; raises `BadInput` with everything wrong with it."""
    values, problems = parse_label(column, name, positive, unknown_allowed=unknown_allowed)
    positives, labelled = int((values == 1).sum()), values != UNKNOWN
    examples = _examples(column[labelled]) if positive is not None and not positives else ""
    raise_all(problems or constant_label_problems(positives, int(labelled.sum()), name, positive, examples))
    return values


def read_label_columns(columns: Sequence["pd.Series[object]"], names: Sequence[str], positive: object = None) -> Targets:
    """The targets in several label columns, in which NaN and -1 are unknown."""
    problems = _name_problems(names, "label")
    values = []
    for name, column in zip(names, columns, strict=True):
        with collecting(problems):
            values.append(read_label(column, name, positive, unknown_allowed=True))
    raise_all(problems)
    return Targets(tuple(map(str, names)), np.stack(values, 1))


def read_class_column(column: "pd.Series[object]", name: str, classes: Sequence[object]) -> Targets:
    """The targets in a column that holds the names of classes, or their numbers from 0; NaN and -1 are unknown."""
    names = [level_name(value) for value in classes]
    problems = _name_problems(names, "class")
    if len(names) < 2:
        problems.append(f"classes needs two or more, in the order of the network's outputs; got {names}")
    raise_all(problems)
    cells = column.map(level_name, na_action="ignore")
    labelled = column.notna().to_numpy() & ~cells.eq(str(UNKNOWN)).to_numpy(dtype=bool, na_value=False)
    by_number = not cells[labelled].isin(names).any()
    positions = {str(k) if by_number else class_name: k for k, class_name in enumerate(names)}
    codes = cells.map(positions).to_numpy(np.float64)
    unexpected = sorted(set(cells[labelled & np.isnan(codes)]))
    if unexpected:
        raise BadInput(
            f"label column {name!r} holds values that are none of the classes {', '.join(names)}: {', '.join(unexpected[:6])}."
            f"{did_you_mean(unexpected[0], names)} Add them to classes=[...], or leave those rows empty."
        )
    values = np.where(labelled[:, None], codes[:, None] == np.arange(len(names)), UNKNOWN).astype(np.int64)
    empty = [class_name for k, class_name in enumerate(names) if not (values[:, k] == 1).any()]
    if empty:
        raise BadInput(f"label column {name!r} holds no row of the classes {', '.join(empty)}. Leave them out or use more rows.")
    return Targets(tuple(names), values, LabelKind.CLASSES)


def read_target_array(y: object, labels: Sequence[str] | None, classes: Sequence[object] | None) -> Targets:
    """The targets in an array: labels (n, L) in the order of their names, or classes (n,)."""
    values: npt.NDArray[np.object_] = np.asarray(y, dtype=object)
    if labels is not None and classes is not None:
        raise BadInput("give labels=[...] with an array (n, L) of 0 and 1, or classes=[...] with one class per row, not both")
    if classes is not None:
        if values.ndim != 1:
            raise BadInput(f"with classes, y holds one class per row, shape (n,); got {values.shape}")
        return read_class_column(pd.Series(values), "y", classes)
    names = list(labels or ())
    if values.ndim != 2 or values.shape[1] != len(names):
        raise BadInput(f"{len(names)} labels ({', '.join(map(str, names))}) need y of shape (n, {len(names)}); got {values.shape}")
    return read_label_columns([pd.Series(column) for column in values.T], names)


def _name_problems(names: Sequence[str], what: str) -> list[str]:
    if not len(names):
        return [f"no {what} was named; give at least one"]
    repeated = sorted({name for name in names if list(names).count(name) > 1})
    return [f"{what} {name!r} is named more than once; name each once" for name in repeated]


def _classes_advice(values: "pd.Series[object]") -> str:
    """Advice to name the classes, if a label has so few values that they may be classes."""
    names = sorted(values.map(level_name).unique())
    if not 2 < len(names) <= MANY:
        return ""
    return (
        " If they are the classes of a network that decides by argmax, name all of them in the order of its outputs: "
        f"--set data.classes={names[0]} --set data.classes={names[1]} ... (Python: classes={names[:3]!r})."
    )


def _examples(values: "pd.Series[object]") -> str:
    names = sorted(values.map(level_name).unique(), key=lambda name: (len(name), name))
    return f"{len(names):,} different values: {', '.join(map(shorten, names[:6]))}{' ...' if len(names) > 6 else ''}"


def shorten(text: str) -> str:
    """A value from the user's table as shown in a message: at most 40 characters."""
    return text if len(text) <= 40 else f"{text[:36]} ..."
