"""A protected attribute: which group each row belongs to, by name, which group is the reference, and patients whose rows differ.

Attributes are those of a row: an age changes between two images, and a recorded race may. Patients stay the unit of splitting and
resampling whatever their rows say.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from equipoise.data.bins import Bins, Span, bins_for, numbers_in
from equipoise.errors import BadInput, UnknownName

log = logging.getLogger(__name__)

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
ObjectArray = npt.NDArray[np.object_]
MISSING = -1
MANY = 20  # levels; more of them in a column of numbers or dates, or of all different values, are no groups
FEW = 10  # rows; a column of many levels, most with fewer rows, is no grouping yet
DATE = r"\d{1,4}([-/.])\d{1,2}\1\d{1,4}([ T].*)?"  # 2026-11-15, 15.11.2026, with or without a time
SHOWN = 8  # levels that a message names
CONFLICTS = {  # what to do with a patient whose rows have more than one group, and how that is said
    "row": "each row counts in its own group",
    "first": "the first group in the table was used for all their rows",
    "majority": "the most frequent group, and of equally frequent ones the first, was used for all their rows",
    "blank": "their rows count as having no group",
    "error": "they are refused",
}


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
    named: bool = True  # False: no reference was named, and the largest group was taken
    bins: Bins | None = None  # of a column of numbers, how it was cut into groups
    varied: int = 0  # patients of the whole table who have more than one recorded group
    conflicts: str = "row"  # what was done with them

    def __repr__(self) -> str:
        counts = np.bincount(self.codes[self.codes >= 0], minlength=len(self.levels))
        shown = [f"{level} {count:,}" for level, count in zip(self.levels[:SHOWN], counts, strict=False)]
        shown += [f"{len(self.levels) - SHOWN:,} more groups"] if len(self.levels) > SHOWN else []
        missing = int((self.codes < 0).sum())
        return f"{self.name}: {', '.join([*shown, *([f'{missing:,} missing'] if missing else [])])}"

    @classmethod
    def of(cls, values: object, name: str = "group", reference: str | None = None) -> "Attribute":
        """The attribute held by a column of any type; numbers and booleans become names, and text is taken as it stands."""
        column = pd.Series(values).reset_index(drop=True)
        names = group_names(column)
        dates = pd.api.types.is_datetime64_any_dtype(column)
        levels = levels_of(names.value_counts(), len(column), name, reference, dates=dates)
        return cls(name, levels, _codes(names, levels), reference is not None)

    @classmethod
    def binned(cls, values: object, edges: object, name: str = "group", reference: str | None = None) -> "Attribute":
        """The attribute that a column of numbers makes when it is cut at these edges; the groups are in the order of the numbers.

        >>> Attribute.binned([35, 81, 59, None, 40], [40, 60, 80], name="age", reference="40-59").levels
        ('40-59', '<40', '80+')
        """
        numbers = numbers_in(pd.Series(values), name)
        bins = bins_for(numbers, edges, name)
        names = pd.Series(np.array([*bins.names, None], dtype=object)[bins.codes(numbers)], dtype=object)
        levels = levels_of_bins(names.value_counts(), bins, Span.of(numbers), name, reference)
        return cls(name, levels, _codes(names, levels), reference is not None, bins)

    @classmethod
    def crossed(cls, attributes: Sequence["Attribute"]) -> "Attribute":
        """The intersection of several attributes: 'F & white'; missing where any of them is.

        A name that holds a & itself is put in quotation marks, so that different intersections have different names.
        """
        if len(attributes) == 1:
            return attributes[0]
        shape = tuple(len(a.levels) for a in attributes)
        codes = np.stack([a.codes for a in attributes])
        missing = (codes == MISSING).any(axis=0)
        flat = np.ravel_multi_index(tuple(np.where(missing, 0, codes)), shape)
        present = np.unique(np.append(flat[~missing], 0))
        names = tuple(
            joined([a.levels[i] for a, i in zip(attributes, cell, strict=True)])
            for cell in zip(*np.unravel_index(present, shape), strict=True)
        )
        position = np.searchsorted(present, flat)
        return cls(
            joined([a.name for a in attributes]),
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
        return replace(self, codes=self.codes[index])


def levels_of(counts: "pd.Series[int]", rows: int, name: str, reference: str | None = None, *, dates: bool = False) -> tuple[str, ...]:
    """The groups of a column from the number of rows that each has, most first: the reference, then the others in order.

    Raises where they are no groups. Without a reference it is the largest.
    """
    if counts.empty:
        raise BadInput(f"column {name!r} holds no group: all {rows:,} values are missing. Use another column.")
    if len(counts) < 2:
        raise BadInput(
            f"column {name!r} holds a single group, {counts.index[0]!r} ({counts.iloc[0]:,} rows); "
            "a gap needs at least two. Use another column, or rows of every group."
        )
    if problem := _no_groups(counts, rows, name, dates):
        raise BadInput(problem)
    alike: dict[str, list[str]] = {}
    for level in counts.index:
        alike.setdefault(level.strip(), []).append(level)
    if len(alike) < len(counts):
        same = next(names for _, names in sorted(alike.items()) if len(names) > 1)
        log.warning("column %r holds groups that differ only in blanks and are kept apart: %s", name, ", ".join(map(repr, sorted(same))))
    return _reference_first(sorted(counts.index), str(counts.index[0]), name, reference)


def levels_of_bins(counts: "pd.Series[int]", bins: Bins, span: Span, name: str, reference: str | None = None) -> tuple[str, ...]:
    """The same for a column of numbers that is cut into bins: the groups are in the order of the numbers."""
    if len(counts) < 2:
        found = f"all {int(counts.sum()):,} values lie in {counts.index[0]!r}, from {span.low:g} to {span.high:g}" if len(counts) else ""
        raise BadInput(
            f"column {name!r} makes {'a single group' if found else 'no group'}: {found or 'every value is missing'}. "
            "A gap needs at least two. Choose other edges or another column."
        )
    odd = {value: (group, rows) for value, rows in span.odd.items() if rows < counts[group := bins.names[int(bins.codes(np.array(value)))]]}
    if odd:
        raise BadInput(
            *(
                f"column {name!r} is to be binned and holds {value:g} in {rows:,} rows, which is probably a code for a missing value and "
                f"would count in the group {group!r}. Leave those rows empty; if it is a value, add an edge that gives it its own group."
                for value, (group, rows) in odd.items()
            )
        )
    return _reference_first([level for level in bins.names if level in counts.index], str(counts.index[0]), name, reference)


def _reference_first(ordered: Sequence[str], largest: str, name: str, reference: str | None) -> tuple[str, ...]:
    chosen = largest if reference is None else level_name(reference)
    if chosen not in ordered:
        raise UnknownName(f"reference group for {name!r}:", chosen, ordered)
    return (chosen, *(level for level in ordered if level != chosen))


def _codes(names: "pd.Series[Any]", levels: tuple[str, ...]) -> IntArray:
    codes: IntArray = pd.Categorical(names, categories=list(levels)).codes.astype(np.int64)
    return codes


def joined(names: Sequence[str]) -> str:
    """The name of an intersection, different for different names.

    >>> joined(["F", "white"]), joined(["x & y", "z"]), joined(["x", "y & z"])
    ('F & white', '"x & y" & z', 'x & "y & z"')
    """
    return " & ".join('"' + name.replace('"', '""') + '"' if "&" in name or name.startswith('"') else name for name in names)


def group_names(column: "pd.Series[Any]") -> "pd.Series[Any]":
    """The name of each row's group, None where the cell is empty or blank."""
    if isinstance(column.dtype, pd.StringDtype):  # each text once, which for a million rows takes a tenth of the time
        place, texts = pd.factorize(column)
        known = np.array([*(text if text.strip() else None for text in texts), None], dtype=object)
        return pd.Series(known[place], index=column.index, dtype="object", name=column.name)
    names = column.map(level_name, na_action="ignore").astype("object")
    return names.where(column.notna() & (names.map(str).str.strip() != ""), None)


def level_name(value: object) -> str:
    """The name of a value. Text is its own name, so '1', '1.0' and '01' are three.

    The number 1.0 is '1', because pandas turns a column of integers with gaps into floating-point numbers.

    >>> level_name(1.0), level_name("1.0"), level_name("007"), level_name(" F")
    ('1', '1.0', '007', ' F')
    """
    if isinstance(value, (float, np.floating)) and float(value).is_integer():
        return str(int(value))
    return str(value)


def inexact(values: Iterable[object], kind: object = np.float64) -> str:
    """What is wrong with identifiers that were turned into floating-point numbers of a kind; empty where nothing is.

    >>> inexact([1.0, 2.0, "a"]), inexact([1e17])[:30], inexact([2.0**24], np.float32)[:20]
    ('', 'holds 1e+17, a floating-point ', 'holds 16777216.0, a ')
    """
    exact = 2.0 ** (np.finfo(kind).nmant + 1)  # type: ignore[call-overload]  # below it all integers are distinct
    for value in values:
        if not isinstance(value, (float, np.floating)) or np.isnan(value):
            continue
        own = 2.0 ** (np.finfo(type(value)).nmant + 1) if isinstance(value, np.floating) else exact
        if abs(float(value)) >= min(exact, own):
            return (
                f"holds {value!r}, a floating-point number so large that different identifiers are the same. "
                "Read or store the column as text (in pandas dtype=str)."
            )
    return ""


def _no_groups(counts: "pd.Series[int]", everyone: int, name: str, dates: bool) -> str:
    """Why the values of a column are no groups, and how to make some of them; empty where they are groups."""
    levels, rows, column_of = len(counts), int(counts.sum()), f"df[{name!r}]"
    many = levels > MANY
    scattered = levels > 2 and levels > rows / 2  # nearly every row has a value of its own
    if not many and not scattered:
        return ""
    # Numbers may come as text or as objects, so they are recognised by their values and not by the type of the column.
    numbers = pd.to_numeric(counts.index.to_series(), errors="coerce").to_numpy(np.float64)
    if not np.isnan(numbers).any() and (many or (scattered and (numbers != np.round(numbers)).any())):
        cuts = np.quantile(np.repeat(numbers, counts), [0.25, 0.5, 0.75], method="nearest")
        edges = ",".join(dict.fromkeys(f"{cut:.4g}" for cut in cuts))
        return (
            f"column {name!r} holds {levels:,} different numbers; a group needs a few levels. Cut it into bins, for example at its "
            f"quartiles: --bins {name}={edges} (in Python bins={{{name!r}: [{edges.replace(',', ', ')}]}})."
        )
    if dates or counts.index.str.fullmatch(DATE).all():
        return (
            f"column {name!r} holds {levels:,} different dates; a group needs a few levels. Make a few of them, for example the year, "
            f"pd.to_datetime({column_of}).dt.year, or an age in years with --bins age=40,60,80 (in Python bins=...)."
        )
    if many and levels > rows / 2:
        return (
            f"column {name!r} holds {levels:,} different values in {everyone:,} rows, like an identifier; "
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


def settled(attribute: Attribute, patients: "pd.Series[Any]", rule: str) -> Attribute:
    """The attribute with the conflicts within patients settled by a rule of CONFLICTS, and how many patients had one.

    Rows without a group stay without one. Raises where the rule is `error` and a patient has more than one group.
    """
    units = np.asarray(pd.factorize(patients)[0], dtype=np.int64)
    mixed = varying(attribute.codes, units)
    count = int(mixed.sum())
    noted = replace(attribute, varied=count, conflicts=rule)
    if not count or rule == "row":
        return noted
    names = patients.to_numpy(dtype=object)
    if rule == "error":
        some = list(dict.fromkeys(str(name) for name in names[mixed[units]]))[:5]
        raise BadInput(
            f"patient column {patients.name!r}: {count:,} of {len(set(units)):,} patients have more than one {attribute.name!r}: "
            f"{', '.join(some)}{' ...' if count > len(some) else ''}. Correct them, leave it empty where it is not known, or choose how "
            "they count with --conflicts row, first, majority or blank (in Python conflicts=...)."
        )
    codes = settled_codes(attribute.codes, units, rule)
    levels, place = without_empty(attribute, np.bincount(codes[codes != MISSING], minlength=len(attribute.levels)), rule)
    return replace(noted, levels=levels, codes=np.append(place, MISSING)[codes])


def settled_codes(codes: IntArray, units: IntArray, rule: str) -> IntArray:
    """The codes with one group for all rows of a unit, its first or most frequent one; or none, for those with several, if `blank`."""
    rows = varying(codes, units)[units] & (codes != MISSING)
    found = codes.copy()
    found[rows] = MISSING if rule == "blank" else _of_units(codes, units, by_count=rule == "majority")[units[rows]]
    return found


@dataclass(frozen=True)
class Varying:
    """How many patients have more than one recorded group of an attribute, and by which rule of CONFLICTS they count."""

    attribute: str
    patients: int
    rule: str


def varying_in(attributes: Sequence[Attribute], patients: ObjectArray | None) -> tuple[Varying, ...]:
    """The attributes that vary within patients: those of these rows, or of the whole table where a rule has settled them."""
    found = [
        Varying(a.name, patients_varying(a, patients) if a.conflicts == "row" else a.varied, a.conflicts)
        for a in attributes
        if patients is not None
    ]
    return tuple(each for each in found if each.patients)


def varying(codes: IntArray, units: IntArray) -> npt.NDArray[np.bool_]:
    """Which units (patients, 0 .. U-1) have rows in more than one group; rows without a group do not count."""
    known = codes != MISSING
    width = int(codes.max(initial=0)) + 1
    pairs = distinct(units[known] * width + codes[known])
    return np.bincount(pairs // width, minlength=int(units.max(initial=-1)) + 1) > 1


def patient_codes(patients: npt.NDArray[Any]) -> IntArray:
    """The patient of each row as a code 0 .. P-1. Codes in ascending order (int64), as of a table read in batches, are themselves."""
    if patients.dtype == np.int64 and len(patients) and patients[0] == 0:
        steps = np.diff(patients)
        if steps.min(initial=0) >= 0 and steps.max(initial=0) <= 1:
            return np.asarray(patients, dtype=np.int64)
    return np.asarray(pd.factorize(patients)[0], dtype=np.int64)


def distinct(keys: IntArray) -> IntArray:
    """The different integers, sorted. 10 million take 0.2 s, and `np.unique` 8 s (NumPy 2.4)."""
    ordered = np.sort(keys)
    return ordered[np.concatenate([[True], ordered[1:] != ordered[:-1]])] if len(ordered) else ordered


def patients_varying(attribute: Attribute, patients: ObjectArray | None) -> int:
    """How many patients have rows in more than one group of this attribute."""
    return 0 if patients is None else int(varying(attribute.codes, patient_codes(patients)).sum())


def main_group(codes: IntArray, units: IntArray) -> IntArray:
    """The group of each unit, for stratifying: the one that most of its rows have, of equally frequent ones the first; -1 if none has."""
    return _of_units(codes, units, by_count=True)


def _of_units(codes: IntArray, units: IntArray, *, by_count: bool) -> IntArray:
    """The first or the most frequent known group of each unit; -1 where there is none."""
    found = np.full(int(units.max(initial=-1)) + 1, MISSING, np.int64)
    known = np.flatnonzero(codes != MISSING)
    width = int(codes.max(initial=0)) + 1
    pairs, first, counts = np.unique(units[known] * width + codes[known], return_index=True, return_counts=True)
    # The last that is written stays: the largest count, or, where counts are equal or do not matter, the earliest row.
    order = np.lexsort((-first, counts)) if by_count else np.argsort(-first, kind="stable")
    found[pairs[order] // width] = pairs[order] % width
    return found


def without_empty(attribute: Attribute, counts: IntArray, rule: str) -> tuple[tuple[str, ...], IntArray]:
    """The levels that have rows after a rule was applied, and the place of each former level among them.

    Raises where a reference or a second group is lost.
    """
    there = counts > 0
    if there.sum() < 2 or not there[0]:
        lost = [repr(level) for level, has in zip(attribute.levels, there, strict=True) if not has]
        raise BadInput(
            f"column {attribute.name!r}: with conflicts={rule!r} no row is left in {', '.join(lost)}. Choose another rule or reference."
        )
    levels = tuple(level for level, has in zip(attribute.levels, there, strict=True) if has)
    return levels, np.where(there, np.cumsum(there) - 1, MISSING)
