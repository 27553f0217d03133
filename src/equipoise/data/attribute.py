"""A protected attribute: which group each row belongs to, by name, and which group is the reference."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from equipoise.errors import BadInput, UnknownName

IntArray = npt.NDArray[np.int64]
MISSING = -1
MANY = 20  # levels; more of them in a column of numbers or dates, or of all different values, are no groups
FEW = 10  # rows; a column of many levels most of which have fewer is no grouping yet
DATE = r"\d{1,4}([-/.])\d{1,2}\1\d{1,4}([ T].*)?"  # 2026-11-15, 15.11.2026, with or without a time
SHOWN = 8  # levels that a message names


@dataclass(frozen=True, eq=False)
class Attribute:
    """Group membership of n rows: `levels[codes[i]]` is the group of row i; the reference is level 0; -1 is missing.

    >>> sex = Attribute.of(["F", "M", None, "F"], name="sex", reference="M")
    >>> sex.levels, sex.codes.tolist(), sex.others
    (('M', 'F'), [1, 0, -1, 1], ('F',))
    """

    name: str
    levels: tuple[str, ...]
    codes: IntArray  # (n,)
    named: bool = True  # False: nobody named the reference, the largest group was taken

    @classmethod
    def of(cls, values: object, name: str = "group", reference: str | None = None) -> "Attribute":
        """The attribute held by a column of any type; numbers and booleans become names."""
        column = pd.Series(values).reset_index(drop=True)
        names = column.map(level_name, na_action="ignore").astype("object")
        names = names.where(column.notna() & (names.map(str).str.strip() != ""), None)
        counts = names.value_counts()
        if counts.empty:
            raise BadInput(f"column {name!r} holds no group: all {len(column):,} values are missing. Use another column.")
        if len(counts) < 2:
            raise BadInput(
                f"column {name!r} holds a single group, {counts.index[0]!r} ({counts.iloc[0]:,} rows); "
                "a gap needs at least two. Use another column, or rows of every group."
            )
        if problem := _no_groups(column, names, counts, name):
            raise BadInput(problem)
        named = reference is not None
        chosen = level_name(reference) if named else str(counts.index[0])
        if chosen not in counts.index:
            raise UnknownName(f"reference group for {name!r}:", chosen, sorted(counts.index))
        levels = (chosen, *sorted(level for level in counts.index if level != chosen))
        codes = pd.Categorical(names, categories=list(levels)).codes.astype(np.int64)
        return cls(name, levels, codes, named)

    @classmethod
    def crossed(cls, attributes: Sequence["Attribute"]) -> "Attribute":
        """The intersection of several attributes: 'F & white'; missing where any of them is."""
        if len(attributes) == 1:
            return attributes[0]
        shape = tuple(len(a.levels) for a in attributes)
        codes = np.stack([a.codes for a in attributes])
        missing = (codes == MISSING).any(axis=0)
        flat = np.ravel_multi_index(tuple(np.where(missing, 0, codes)), shape)
        present = np.unique(np.append(flat[~missing], 0))
        names = tuple(
            " & ".join(a.levels[i] for a, i in zip(attributes, cell, strict=True))
            for cell in zip(*np.unravel_index(present, shape), strict=True)
        )
        position = np.searchsorted(present, flat)
        return cls(
            " & ".join(a.name for a in attributes),
            names,
            np.where(missing, MISSING, position),
            all(a.named for a in attributes),
        )

    @property
    def reference(self) -> str:
        """The privileged group (A = 1 in the paper)."""
        return self.levels[0]

    @property
    def others(self) -> tuple[str, ...]:
        """Every group but the reference."""
        return self.levels[1:]

    @property
    def names(self) -> npt.NDArray[np.object_]:
        """The group of each row by name, None where it is missing."""
        return np.array([*self.levels, None], dtype=object)[self.codes]

    @property
    def missing(self) -> float:
        """The share of rows with no group."""
        return float((self.codes == MISSING).mean()) if len(self.codes) else 0.0

    def take(self, index: IntArray) -> "Attribute":
        """The same attribute for some of the rows; the levels stay."""
        return Attribute(self.name, self.levels, self.codes[index], self.named)


def level_name(value: object) -> str:
    """The name of a value: 1.0 and 1 are both '1', so that a column with gaps (which pandas turns into floats) keeps its names."""
    if isinstance(value, (float, np.floating)) and float(value).is_integer():
        return str(int(value))
    return str(value).strip()


def _no_groups(column: "pd.Series[object]", names: "pd.Series[object]", counts: "pd.Series[int]", name: str) -> str:
    """Why the values of a column are no groups, and how to make some of them; empty where they are groups."""
    levels, rows, column_of = len(counts), int(counts.sum()), f"df[{name!r}]"
    many = levels > MANY
    scattered = levels > 2 and levels > rows / 2  # nearly every row has a value of its own
    # Numbers may come as text or as objects, so they are told by their values and not by the type of the column.
    numbers = pd.to_numeric(counts.index.to_series(), errors="coerce").to_numpy(np.float64)
    if not np.isnan(numbers).any() and (many or (scattered and (numbers != np.round(numbers)).any())):
        cuts = np.quantile(np.repeat(numbers, counts), [0.25, 0.5, 0.75], method="nearest")
        return (
            f"column {name!r} holds {levels:,} different numbers; a group needs a few levels. Bin it first, for example "
            f"pd.qcut({column_of}, 4), which cuts at {cuts[0]:.4g}, {cuts[1]:.4g} and {cuts[2]:.4g}, or pd.cut with edges of your own."
        )
    dates = pd.api.types.is_datetime64_any_dtype(column) or counts.index.str.fullmatch(DATE).all()
    if dates and (many or scattered):
        return (
            f"column {name!r} holds {levels:,} different dates; a group needs a few levels. Make a few of them, for example the year, "
            f"pd.to_datetime({column_of}).dt.year, or an age in bins, pd.cut(age, [0, 40, 60, 80, 120])."
        )
    if many and levels > rows / 2:
        return (
            f"column {name!r} holds {levels:,} different values in {len(names):,} rows, like an identifier; "
            "a group needs a few levels. Use another column."
        )
    small = int((counts < FEW).sum())
    if not many or small <= levels / 2:
        return ""
    large = [f"{level!r} ({count:,})" for level, count in counts[counts >= FEW].items()]
    if not large:
        return (
            f"column {name!r} holds {levels:,} different groups in {rows:,} rows, none of which has {FEW} rows. "
            "Merge them into a few, or use another column."
        )
    kept = ", ".join(large[:SHOWN]) + (f" and {len(large) - SHOWN} more" if len(large) > SHOWN else "")
    return (
        f"column {name!r} holds {levels:,} different groups, {small:,} of which have fewer than {FEW} rows. Those large enough to keep are "
        f"{kept}. Merge the others into one group, such as 'other'."
    )
