"""A protected attribute: the group of each row by name, the reference group, and patients whose rows differ.

An attribute belongs to a row, not to a patient: an age changes between two images, and a recorded race may. Patients stay the unit of
splitting and resampling even if their rows differ. A column of numbers is cut into bins, which are groups in ascending order.
"""

import itertools
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pandas as pd

from equipoise.data.alike_names import DIFFERENCE, alike_names, listed
from equipoise.errors import BadInput, UnknownName, raise_all

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


log = logging.getLogger(__name__)

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
ObjectArray = npt.NDArray[np.object_]
MISSING = -1
MANY = 20  # levels; a column of numbers or dates, or of mostly different values, with more levels is not a grouping
FEW = 10  # rows; a column of many levels, most of them with fewer rows, is not a grouping
DATE = r"\d{1,4}([-/.])\d{1,2}\1\d{1,4}([ T].*)?"  # 2026-11-15, 15.11.2026, with or without a time
SHOWN = 8  # levels that a message names
CONFLICT_ADVICE = (
    "Correct them, leave it empty where it is not known, or choose how they count with --set data.conflicts=row, first, majority or blank "
    "(in Python conflicts=...)."
)


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
    named: bool = True  # False if no reference was specified and the largest group is used
    bins: Bins | None = None  # the bins of a column of numbers
    varied: int = 0  # patients of the whole table with more than one recorded group
    conflicts: str = "row"  # the rule of CONFLICTS that was applied to them
    intersection: bool = False  # of several attributes

    def __repr__(self) -> str:
        counts = np.bincount(self.codes[self.codes >= 0], minlength=len(self.levels))
        shown = [f"{level} {count:,}" for level, count in zip(self.levels[:SHOWN], counts, strict=False)]
        if len(self.levels) > SHOWN:
            shown.append(f"{len(self.levels) - SHOWN:,} more groups")
        if missing := int((self.codes < 0).sum()):
            shown.append(f"{missing:,} missing")
        return f"{self.name}: {', '.join(shown)}"

    @classmethod
    def of(cls, values: object, name: str = "group", reference: str | None = None) -> "Attribute":
        """The attribute in a column of any type. Numbers and booleans are converted to names; text is used unchanged."""
        column = pd.Series(values).reset_index(drop=True)
        names = group_names(column)
        dates = pd.api.types.is_datetime64_any_dtype(column)
        levels = ordered_levels(names.value_counts(), len(column), name, reference, dates=dates)
        return cls(name, levels, _encode(names, levels), reference is not None)

    @classmethod
    def binned(cls, values: object, edges: object, name: str = "group", reference: str | None = None) -> "Attribute":
        """The attribute in a column of numbers, cut into groups at these edges. The groups are in ascending order.

        >>> Attribute.binned([35, 81, 59, None, 40], [40, 60, 80], name="age", reference="40-59").levels
        ('40-59', '<40', '80+')
        """
        numbers = read_numeric_column(pd.Series(values), name)
        bins = as_bins(edges, name).named_for(all_integers(numbers))
        names = pd.Series(np.array([*bins.names, None], dtype=object)[bins.codes(numbers)], dtype=object)
        levels = ordered_bin_levels(names.value_counts(), bins, Span.of(numbers), name, reference)
        return cls(name, levels, _encode(names, levels), reference is not None, bins)

    @classmethod
    def crossed(cls, attributes: Sequence["Attribute"]) -> "Attribute":
        """The intersection of several attributes, such as 'F & white'; missing in rows where any of them is missing.

        A name that contains & is quoted, so that different intersections have different names.
        """
        if len(attributes) == 1:
            return attributes[0]
        shape = tuple(len(a.levels) for a in attributes)
        codes = np.stack([a.codes for a in attributes])
        missing = (codes == MISSING).any(axis=0)
        flat = np.ravel_multi_index(tuple(np.where(missing, 0, codes)), shape)
        present = np.unique(np.append(flat[~missing], 0))
        levels = tuple(
            intersection_name([a.levels[i] for a, i in zip(attributes, cell, strict=True)])
            for cell in zip(*np.unravel_index(present, shape), strict=True)
        )
        crossed_codes = np.where(missing, MISSING, np.searchsorted(present, flat))
        name, named = intersection_name([a.name for a in attributes]), all(a.named for a in attributes)
        return cls(name, levels, crossed_codes, named, intersection=True)

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
        """The share of rows without a group."""
        return float((self.codes == MISSING).mean()) if len(self.codes) else 0.0

    def take(self, index: IntArray) -> "Attribute":
        """The attribute of the selected rows, with all levels."""
        return replace(self, codes=self.codes[index])


def ordered_levels(counts: "pd.Series[int]", rows: int, name: str, reference: str | None = None, *, dates: bool = False) -> tuple[str, ...]:
    """The groups of a column, the reference first, from the number of rows of each group in descending order.

    The reference defaults to the largest group. Raises `BadInput` if the values do not form at least two groups.
    """
    if counts.empty:
        raise BadInput(f"column {name!r} holds no group: all {rows:,} values are missing. Use another column.")
    if len(counts) < 2:
        raise BadInput(
            f"column {name!r} holds a single group, {counts.index[0]!r} ({counts.iloc[0]:,} rows); "
            "a gap needs at least two. Use another column, or rows of every group."
        )
    if problem := _grouping_problem(counts, rows, name, dates):
        raise BadInput(problem)
    if alike := alike_names(counts.index):
        log.warning("column %r holds groups %s: %s. If they are one group, correct the table", name, DIFFERENCE, listed(alike))
    return _reference_first(sorted(counts.index), str(counts.index[0]), name, reference)


def ordered_bin_levels(counts: "pd.Series[int]", bins: Bins, span: Span, name: str, reference: str | None = None) -> tuple[str, ...]:
    """The groups of a binned column that have rows, the reference first, the others in ascending order."""
    if len(counts) < 2:
        single = f"all {int(counts.sum()):,} values lie in {counts.index[0]!r}, from {span.low:g} to {span.high:g}" if len(counts) else ""
        raise BadInput(
            f"column {name!r} makes {'a single group' if single else 'no group'}: {single or 'every value is missing'}. "
            "A gap needs at least two. Choose other edges or another column."
        )
    problems = []
    for value, rows in span.missing_codes.items():
        group = bins.names[int(bins.codes(np.array(value)))]
        if rows < counts[group]:  # with an edge that gives the code its own group, it is a value
            problems.append(
                f"column {name!r} is to be binned and holds {value:g} in {rows:,} rows, which is probably a code for a missing value and "
                f"would count in the group {group!r}. Leave those rows empty; if it is a value, add an edge that gives it its own group."
            )
    raise_all(problems)
    return _reference_first([level for level in bins.names if level in counts.index], str(counts.index[0]), name, reference)


def _reference_first(ordered: Sequence[str], largest: str, name: str, reference: str | None) -> tuple[str, ...]:
    chosen = largest if reference is None else level_name(reference)
    if chosen not in ordered:
        raise UnknownName(f"reference group for {name!r}:", chosen, ordered)
    return (chosen, *(level for level in ordered if level != chosen))


def _encode(names: "pd.Series[Any]", levels: tuple[str, ...]) -> IntArray:
    codes: IntArray = pd.Categorical(names, categories=list(levels)).codes.astype(np.int64)
    return codes


def intersection_name(names: Sequence[str]) -> str:
    """The name of an intersection, different for different names.

    >>> intersection_name(["F", "white"]), intersection_name(["x & y", "z"]), intersection_name(["x", "y & z"])
    ('F & white', '"x & y" & z', 'x & "y & z"')
    """
    return " & ".join('"' + name.replace('"', '""') + '"' if "&" in name or name.startswith('"') else name for name in names)


def group_names(column: "pd.Series[Any]") -> "pd.Series[Any]":
    """The name of each row's group, None where the cell is empty or blank."""
    if isinstance(column.dtype, pd.StringDtype):  # converts each distinct text once: ten times faster for a million rows
        codes, texts = pd.factorize(column)
        distinct_names = np.array([*(text if text.strip() else None for text in texts), None], dtype=object)
        return pd.Series(distinct_names[codes], index=column.index, dtype="object", name=column.name)
    names = column.map(level_name, na_action="ignore").astype("object")
    return names.where(column.notna() & (names.map(str).str.strip() != ""), None)


def level_name(value: object) -> str:
    """The name of a value. Text is its own name, so '1', '1.0' and '01' are three different names.

    The number 1.0 is '1', because pandas turns a column of integers with gaps into floating-point numbers.

    >>> level_name(1.0), level_name("1.0"), level_name("007"), level_name(" F")
    ('1', '1.0', '007', ' F')
    """
    if isinstance(value, (float, np.floating)) and float(value).is_integer():
        return str(int(value))
    return str(value)


def precision_problem(values: Iterable[object], dtype: object = np.float64) -> str:
    """The problem of identifiers stored as floating-point numbers too large to tell integers apart; empty if there is none.

    >>> precision_problem([1.0, 2.0, "a"]), precision_problem([1e17])[:30], precision_problem([2.0**24], np.float32)[:20]
    ('', 'holds 1e+17, a floating-point ', 'holds 16777216.0, a ')
    """
    column_limit = 2.0 ** (np.finfo(dtype).nmant + 1)  # type: ignore[call-overload]  # below it all integers are distinct
    for value in values:
        if not isinstance(value, (float, np.floating)) or np.isnan(value):
            continue
        value_limit = 2.0 ** (np.finfo(type(value)).nmant + 1) if isinstance(value, np.floating) else column_limit
        if abs(float(value)) >= min(column_limit, value_limit):
            return (
                f"holds {value!r}, a floating-point number so large that different identifiers are the same. "
                "Read or store the column as text (in pandas dtype=str)."
            )
    return ""


def _grouping_problem(counts: "pd.Series[int]", all_rows: int, name: str, dates: bool) -> str:
    """The reason why the values of a column are not groups, and how to form groups from them; empty if they are groups."""
    levels, rows = len(counts), int(counts.sum())
    many = levels > MANY
    scattered = levels > 2 and levels > rows / 2  # nearly every row has a different value
    if not many and not scattered:
        return ""
    # Numbers may be stored as text or as objects, so they are recognised by their values and not by the type of the column.
    numbers = pd.to_numeric(counts.index.to_series(), errors="coerce").to_numpy(np.float64)
    if not np.isnan(numbers).any() and (many or (scattered and (numbers != np.round(numbers)).any())):
        quartiles = np.quantile(np.repeat(numbers, counts), [0.25, 0.5, 0.75], method="nearest")
        edges = ",".join(dict.fromkeys(f"{quartile:.4g}" for quartile in quartiles))
        return (
            f"column {name!r} holds {levels:,} different numbers; a group needs a few levels. Cut it into bins, for example at its "
            f"quartiles: --bins {name}={edges} (in Python bins={{{name!r}: [{edges.replace(',', ', ')}]}})."
        )
    if dates or counts.index.str.fullmatch(DATE).all():
        return (
            f"column {name!r} holds {levels:,} different dates; a group needs a few levels. Make a few of them, for example the year, "
            f"pd.to_datetime(df[{name!r}]).dt.year, or an age in years with --bins age=40,60,80 (in Python bins=...)."
        )
    if many and levels > rows / 2:
        return (
            f"column {name!r} holds {levels:,} different values in {all_rows:,} rows, like an identifier; "
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
    shown = ", ".join(large[:SHOWN]) + (f" and {len(large) - SHOWN} more" if len(large) > SHOWN else "")
    return (
        f"column {name!r} holds {levels:,} different groups, {small:,} of which have fewer than {FEW} rows. Those large enough to keep are "
        f"{shown}. Merge the others into one group, such as 'other'."
    )


def resolve_conflicts(attribute: Attribute, patients: "pd.Series[Any]", rule: str) -> Attribute:
    """The attribute after a rule of CONFLICTS was applied to patients with more than one group, with the number of such patients.

    Rows without a group stay without one. Raises `BadInput` if the rule is "error" and there are such patients.
    """
    units = np.asarray(pd.factorize(patients)[0], dtype=np.int64)
    in_conflict = varying_units(attribute.codes, units)
    count = int(in_conflict.sum())
    counted = replace(attribute, varied=count, conflicts=rule)
    if not count or rule == "row":
        return counted
    if rule == "error":
        examples = list(dict.fromkeys(str(patient) for patient in patients.to_numpy(dtype=object)[in_conflict[units]]))[:5]
        raise BadInput(
            f"patient column {patients.name!r}: {count:,} of {len(in_conflict):,} patients have more than one {attribute.name!r}: "
            f"{', '.join(examples)}{' ...' if count > len(examples) else ''}. {CONFLICT_ADVICE}"
        )
    codes = resolve_codes(attribute.codes, units, rule)
    levels, new_codes = drop_empty_levels(attribute, np.bincount(codes[codes != MISSING], minlength=len(attribute.levels)), rule)
    return replace(counted, levels=levels, codes=np.append(new_codes, MISSING)[codes])


def resolve_codes(codes: IntArray, units: IntArray, rule: str) -> IntArray:
    """The codes after units in several groups got their first or most frequent one; none, if the rule is "blank"."""
    rows = varying_units(codes, units)[units] & (codes != MISSING)
    resolved = codes.copy()
    resolved[rows] = MISSING if rule == "blank" else main_group(codes, units, rule)[units[rows]]
    return resolved


def drop_empty_levels(attribute: Attribute, counts: IntArray, rule: str) -> tuple[tuple[str, ...], IntArray]:
    """The levels that still have rows after a rule was applied, and the new code of each former level.

    Raises `BadInput` if the reference or every other group has lost all its rows.
    """
    nonempty = counts > 0
    if nonempty.sum() < 2 or not nonempty[0]:
        lost = [repr(level) for level, has_rows in zip(attribute.levels, nonempty, strict=True) if not has_rows]
        raise BadInput(
            f"column {attribute.name!r}: with conflicts={rule!r} no row is left in {', '.join(lost)}. Choose another rule or reference."
        )
    levels = tuple(level for level, has_rows in zip(attribute.levels, nonempty, strict=True) if has_rows)
    return levels, np.where(nonempty, np.cumsum(nonempty) - 1, MISSING)


@dataclass(frozen=True)
class GroupConflicts:
    """The number of patients with more than one recorded group of an attribute, and the rule of CONFLICTS that was applied."""

    attribute: str
    patients: int
    rule: str


def conflicts_in(attributes: Sequence[Attribute], patients: ObjectArray | None) -> tuple[GroupConflicts, ...]:
    """The attributes that vary within patients: in these rows, or in the whole table if a rule has resolved the conflicts."""
    if patients is None:
        return ()
    counts = [patients_varying(a, patients) if a.conflicts == "row" else a.varied for a in attributes]
    return tuple(GroupConflicts(a.name, count, a.conflicts) for a, count in zip(attributes, counts, strict=True) if count)


def patients_varying(attribute: Attribute, patients: ObjectArray | None) -> int:
    """The number of patients with rows in more than one group of this attribute."""
    return 0 if patients is None else int(varying_units(attribute.codes, patient_codes(patients)).sum())


def varying_units(codes: IntArray, units: IntArray) -> BoolArray:
    """Which units (patients, 0 .. U-1) have rows in more than one group, not counting rows without a group."""
    present = codes != MISSING
    width = int(codes.max(initial=0)) + 1
    pairs = np.sort(units[present] * width + codes[present])  # sorting 10 million takes 0.2 s, and `np.unique` 8 s (NumPy 2.4)
    distinct = pairs[np.append(True, pairs[1:] != pairs[:-1])] if len(pairs) else pairs
    return np.bincount(distinct // width, minlength=int(units.max(initial=-1)) + 1) > 1


def row_numbers(rows: int) -> ObjectArray:
    """The ids of rows that have none: their positions, as integers, whereas ids are objects."""
    return cast(ObjectArray, np.arange(rows))


def is_numbered(ids: ObjectArray) -> bool:
    """Whether rows have no ids of their own and are only numbered."""
    return ids.dtype != object


def patient_codes(patients: npt.NDArray[Any]) -> IntArray:
    """The patient of each row as a code 0 .. P-1. Codes in ascending order (int64), as of a table read in batches, stay the same."""
    if patients.dtype == np.int64 and len(patients) and patients[0] == 0:
        steps = np.diff(patients)
        if steps.min(initial=0) >= 0 and steps.max(initial=0) <= 1:
            return np.asarray(patients, dtype=np.int64)
    return np.asarray(pd.factorize(patients)[0], dtype=np.int64)


def main_group(codes: IntArray, units: IntArray, rule: str = "majority") -> IntArray:
    """The most frequent group of each unit, or its first one by the rule "first"; -1 if all are missing.

    The first of equally frequent groups is used.
    """
    groups = np.full(int(units.max(initial=-1)) + 1, MISSING, np.int64)
    present = np.flatnonzero(codes != MISSING)
    width = int(codes.max(initial=0)) + 1
    pairs, first_rows, counts = np.unique(units[present] * width + codes[present], return_index=True, return_counts=True)
    # The last assignment to a unit wins: the largest count, if counts matter, and among equal counts the earliest row.
    order = np.argsort(-first_rows, kind="stable") if rule == "first" else np.lexsort((-first_rows, counts))
    groups[pairs[order] // width] = pairs[order] % width
    return groups
