"""Bins: a column of numbers, such as an age, as a few groups with readable names in the order of the numbers."""

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from equipoise.errors import BadInput

CODES = (-1, *(-(10**k - 1) for k in range(1, 7)), *(10**k - 1 for k in range(2, 7)))  # -1, -9, ..., -999999, 99, ..., 999999
HOW = "Give them in ascending order, as in age=40,60,80 (in Python bins={'age': [40, 60, 80]})."


@dataclass(frozen=True)
class Bins:
    """The edges of groups; each group begins at its edge: below the first, from one to the next, and from the last on.

    >>> Bins((40, 60, 80), whole=True).names
    ('<40', '40-59', '60-79', '80+')
    >>> Bins((0.5, 1.0), whole=False).names
    ('<0.5', '0.5 to <1', '>=1')
    """

    edges: tuple[float, ...]
    whole: bool  # whether the values are integers, which have shorter names

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all groups, in order."""
        edges = [_number(edge) for edge in self.edges]
        pairs = list(zip(self.edges[:-1], self.edges[1:], strict=True))
        if not self.whole:
            between = [f"{_number(low)} to <{_number(high)}" for low, high in pairs]
            return (f"<{edges[0]}", *between, f">={edges[-1]}")
        link = " to " if self.edges[0] < 0 else "-"  # -10-9 would be hard to read
        between = [_number(low) if high - low == 1 else f"{_number(low)}{link}{_number(high - 1)}" for low, high in pairs]
        return (f"<{edges[0]}", *between, f"{edges[-1]}+")

    def codes(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
        """The position of each value's group in `names`, -1 where it is missing."""
        return np.where(np.isnan(values), -1, np.searchsorted(self.edges, values, side="right")).astype(np.int64)

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON."""
        return {"edges": list(self.edges), "whole": self.whole}


def edges_of(given: object, name: str) -> tuple[float, ...]:
    """The edges as numbers, or an error that lists what is wrong with them."""
    if isinstance(given, Bins):
        return given.edges
    if isinstance(given, (str, bytes)) or not isinstance(given, (Sequence, np.ndarray)):
        raise BadInput(f"the edges of the bins of {name!r} must be a list of numbers; got {given!r}. {HOW}")
    try:
        edges = tuple(float(edge) for edge in given)
    except (TypeError, ValueError, OverflowError):
        raise BadInput(f"the edges of the bins of {name!r} must be numbers; got {list(given)!r}. {HOW}") from None
    if not edges:
        raise BadInput(f"the bins of {name!r} have no edge. {HOW}")
    if not all(np.isfinite(edges)):
        raise BadInput(f"the edges of the bins of {name!r} must be finite; got {list(given)!r}. {HOW}")
    if any(low >= high for low, high in itertools.pairwise(edges)):
        raise BadInput(f"the edges of the bins of {name!r} are not in ascending order: {', '.join(map(_number, edges))}. {HOW}")
    return edges


def read_bins(text: str) -> tuple[str, tuple[float, ...]]:
    """The column and the edges in an option such as age=40,60,80.

    >>> read_bins("age=40,60,80")
    ('age', (40.0, 60.0, 80.0))
    """
    name, equals, edges = text.rpartition("=")
    if not equals or not name:
        raise BadInput(f"--bins must be COLUMN=EDGE,EDGE,... as in age=40,60,80; got {text!r}")
    return name, edges_of([edge.strip() for edge in edges.split(",")], name)


def numbers_in(column: "pd.Series[Any]", name: str) -> npt.NDArray[np.float64]:
    """The numbers (n,) in a column that is to be binned, NaN where there is none, or an error that names those that are not numbers."""
    if pd.api.types.is_datetime64_any_dtype(column) or pd.api.types.is_timedelta64_dtype(column):
        raise BadInput(f"column {name!r} holds dates, which cannot be binned. Turn it into a number, such as an age in years.")
    objects = column.astype(object).reset_index(drop=True)
    numbers = numbers_of(column)
    empty = objects.isna().to_numpy() | np.array([isinstance(value, str) and not value.strip() for value in objects], bool)
    wrong = ~empty & ~np.isfinite(numbers)
    if wrong.any():
        at = int(wrong.argmax())
        raise BadInput(
            f"column {name!r} is to be binned and {int(wrong.sum()):,} of {len(objects):,} rows hold no number; first in row {at + 1:,} "
            f"below the header, {str(objects[at])[:40]!r}. Correct those rows or leave them empty."
        )
    return np.where(empty, np.nan, numbers)


def bins_for(values: npt.NDArray[np.float64], given: object, name: str) -> Bins:
    """The bins with these edges; their names are those of integers where all values and edges are."""
    if isinstance(given, Bins):
        return given
    edges = edges_of(given, name)
    known = values[~np.isnan(values)]
    return Bins(edges, bool((known == np.round(known)).all()) and all(edge.is_integer() for edge in edges))


@dataclass(frozen=True)
class Span:
    """The range of some numbers, and those among them that records hold in place of a number that is not known: additive over batches.

    >>> Span.of(np.array([35.0, 81.0, 999.0])) + Span.of(np.array([np.nan, 999.0, 12.0]))
    Span(low=12.0, high=81.0, codes={999.0: 2})
    """

    low: float = np.inf
    high: float = -np.inf
    codes: Mapping[float, int] = field(default_factory=dict)  # value: rows

    @classmethod
    def of(cls, values: npt.NDArray[np.float64]) -> "Span":
        """The span of values (n,), NaN where there is none."""
        code = np.isin(values, CODES)
        real = values[~code & ~np.isnan(values)]
        found, rows = np.unique(values[code], return_counts=True)
        return cls(float(real.min(initial=np.inf)), float(real.max(initial=-np.inf)), dict(zip(found.tolist(), rows.tolist(), strict=True)))

    def __add__(self, other: "Span") -> "Span":
        codes = Counter(self.codes) + Counter(other.codes)
        return Span(min(self.low, other.low), max(self.high, other.high), dict(codes))

    @property
    def odd(self) -> dict[float, int]:
        """The codes that cannot be numbers like the others: further above them than they lie apart, or the only ones below zero."""
        far = {value: value - self.high > self.high - self.low if value > 0 else self.low >= 0 for value in self.codes}
        return {value: rows for value, rows in self.codes.items() if far[value] and self.low <= self.high}


def bins_in(told: Mapping[str, Any]) -> dict[str, Bins]:
    """The bins by column from `Bins.to_dict` of each, or an error where they are damaged."""
    try:
        entries = [(str(name), entry["edges"], entry["whole"]) for name, entry in told.items()]
    except (AttributeError, KeyError, TypeError):
        raise BadInput(f"the bins of the groups are damaged: expected edges and whole by column, got {told!r}") from None
    return {name: Bins(edges_of(edges, name), bool(whole)) for name, edges, whole in entries}


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))


def numbers_of(column: "pd.Series[Any]") -> npt.NDArray[np.float64]:
    """The numbers (n,) in a column, NaN where there is none; what is too large for one is infinite.

    >>> numbers_of(pd.Series(["1", "x", None, "9" * 400])).tolist()
    [1.0, nan, nan, inf]
    """
    if pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_complex_dtype(column):
        return np.asarray(column.to_numpy(dtype=np.float64, na_value=np.nan))
    return np.array([_as_number(value) for value in column.astype(object)], dtype=np.float64)


def _as_number(value: Any) -> float:
    if isinstance(value, str) and (not value.isascii() or "_" in value):  # which Python would read as digits, and no other program
        return float("nan")
    try:
        return float(value)
    except OverflowError:
        return float("inf")
    except (TypeError, ValueError):
        return float("nan")
