"""Bins: a column of numbers, such as an age, cut into a few groups with readable names, in ascending order."""

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from equipoise.errors import BadInput

# Values that records often hold in place of a missing number: -1, -9, ..., -999999, 99, ..., 999999
SENTINELS = (-1, *(-(10**k - 1) for k in range(1, 7)), *(10**k - 1 for k in range(2, 7)))
HOW = "Give them in ascending order, as in age=40,60,80 (in Python bins={'age': [40, 60, 80]})."


@dataclass(frozen=True)
class Bins:
    """The edges between groups. A value equal to an edge belongs to the group above it.

    >>> Bins((40, 60, 80), whole=True).names
    ('<40', '40-59', '60-79', '80+')
    >>> Bins((0.5, 1.0), whole=False).names
    ('<0.5', '0.5 to <1', '>=1')
    """

    edges: tuple[float, ...]
    whole: bool | None = None  # True if the values are integers, which allows shorter names; None before any value was seen

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all groups, in ascending order."""
        first, last = _format(self.edges[0]), _format(self.edges[-1])
        pairs = list(itertools.pairwise(self.edges))
        if not self.whole:
            return (f"<{first}", *(f"{_format(low)} to <{_format(high)}" for low, high in pairs), f">={last}")
        link = " to " if self.edges[0] < 0 else "-"  # -10-9 would be hard to read
        between = [_format(low) if high - low == 1 else f"{_format(low)}{link}{_format(high - 1)}" for low, high in pairs]
        return (f"<{first}", *between, f"{last}+")

    def named_for(self, integers: bool) -> "Bins":
        """These bins, with the names for integers if the values and edges are integers; unchanged if the names are given."""
        return replace(self, whole=integers and all_integers(np.array(self.edges))) if self.whole is None else self

    def codes(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
        """The position in `names` of each value's group, -1 for a missing value."""
        return np.where(np.isnan(values), -1, np.searchsorted(self.edges, values, side="right")).astype(np.int64)


def parse_edges(edges: object, name: str) -> tuple[float, ...]:
    """The edges, or those of bins, as numbers; raises `BadInput` unless they are finite numbers in ascending order."""
    edges = getattr(edges, "edges", edges)
    if isinstance(edges, (str, bytes)) or not isinstance(edges, (Sequence, np.ndarray)):
        raise BadInput(f"the edges of the bins of {name!r} must be a list of numbers; got {edges!r}. {HOW}")
    try:
        numbers = tuple(float(edge) for edge in edges)
    except (TypeError, ValueError, OverflowError):
        raise BadInput(f"the edges of the bins of {name!r} must be numbers; got {list(edges)!r}. {HOW}") from None
    if not numbers:
        raise BadInput(f"the bins of {name!r} have no edge. {HOW}")
    if not all(np.isfinite(numbers)):
        raise BadInput(f"the edges of the bins of {name!r} must be finite; got {list(edges)!r}. {HOW}")
    if any(low >= high for low, high in itertools.pairwise(numbers)):
        raise BadInput(f"the edges of the bins of {name!r} are not in ascending order: {', '.join(map(_format, numbers))}. {HOW}")
    return numbers


def read_bins(text: str) -> tuple[str, tuple[float, ...]]:
    """The column and the edges in an option such as age=40,60,80.

    >>> read_bins("age=40,60,80")
    ('age', (40.0, 60.0, 80.0))
    """
    name, equals, edges = text.rpartition("=")
    if not equals or not name:
        raise BadInput(f"--bins must be COLUMN=EDGE,EDGE,... as in age=40,60,80; got {text!r}")
    return name, parse_edges([edge.strip() for edge in edges.split(",")], name)


def as_bins(edges: object, name: str) -> Bins:
    """The bins with these edges, or these bins."""
    return edges if isinstance(edges, Bins) else Bins(parse_edges(edges, name))


def all_integers(values: npt.NDArray[np.float64]) -> bool:
    """Whether all values that are not missing are integers."""
    present = values[~np.isnan(values)]
    return bool((present == np.round(present)).all())


def read_numeric_column(column: "pd.Series[Any]", name: str) -> npt.NDArray[np.float64]:
    """The numbers (n,) in a column that is to be binned, NaN in empty cells; raises `BadInput` if a cell holds anything else."""
    if pd.api.types.is_datetime64_any_dtype(column) or pd.api.types.is_timedelta64_dtype(column):
        raise BadInput(f"column {name!r} holds dates, which cannot be binned. Turn it into a number, such as an age in years.")
    cells = column.astype(object).reset_index(drop=True)
    numbers = to_numbers(column)
    empty = cells.isna().to_numpy() | np.array([isinstance(value, str) and not value.strip() for value in cells], bool)
    wrong = ~empty & ~np.isfinite(numbers)
    if wrong.any():
        first = int(wrong.argmax())
        raise BadInput(
            f"column {name!r} is to be binned and {int(wrong.sum()):,} of {len(cells):,} rows hold no number; first in row {first + 1:,} "
            f"below the header, {str(cells[first])[:40]!r}. Correct those rows or leave them empty."
        )
    return np.where(empty, np.nan, numbers)


def to_numbers(column: "pd.Series[Any]") -> npt.NDArray[np.float64]:
    """The numbers (n,) in a column: NaN for anything that is not a number, infinity for a number too large for double precision.

    >>> to_numbers(pd.Series(["1", "x", None, "9" * 400])).tolist()
    [1.0, nan, nan, inf]
    """
    if pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_complex_dtype(column):
        return np.asarray(column.to_numpy(dtype=np.float64, na_value=np.nan))
    return np.array([_to_number(value) for value in column.astype(object)], dtype=np.float64)


def _to_number(value: Any) -> float:
    if isinstance(value, str) and (not value.isascii() or "_" in value):  # Python reads these as digits; other programs do not
        return float("nan")
    try:
        return float(value)
    except OverflowError:
        return float("inf")
    except (TypeError, ValueError):
        return float("nan")


@dataclass(frozen=True)
class Span:
    """The range of some numbers, and the number of rows of each value in `SENTINELS`; additive over batches.

    >>> Span.of(np.array([35.0, 81.0, 999.0])) + Span.of(np.array([np.nan, 999.0, 12.0]))
    Span(low=12.0, high=81.0, suspects={999.0: 2})
    """

    low: float = np.inf
    high: float = -np.inf
    suspects: Mapping[float, int] = field(default_factory=dict)  # value: rows; not part of the range

    @classmethod
    def of(cls, values: npt.NDArray[np.float64]) -> "Span":
        """The span of values (n,), NaN where missing."""
        suspect = np.isin(values, SENTINELS)
        regular = values[~suspect & ~np.isnan(values)]
        suspects, rows = np.unique(values[suspect], return_counts=True)
        low, high = float(regular.min(initial=np.inf)), float(regular.max(initial=-np.inf))
        return cls(low, high, dict(zip(suspects.tolist(), rows.tolist(), strict=True)))

    def __add__(self, other: "Span") -> "Span":
        suspects = Counter(self.suspects) + Counter(other.suspects)
        return Span(min(self.low, other.low), max(self.high, other.high), dict(suspects))

    @property
    def missing_codes(self) -> dict[float, int]:
        """The suspects that cannot be values like the others, with their rows: too far above the range, or negative if it is not."""
        if self.low > self.high:
            return {}
        far = {value: value - self.high > self.high - self.low if value > 0 else self.low >= 0 for value in self.suspects}
        return {value: rows for value, rows in self.suspects.items() if far[value]}


def _format(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))
