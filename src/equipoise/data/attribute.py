"""A protected attribute: the group of each row by name, the reference group, and patients whose rows differ.

An attribute belongs to a row, not to a patient: an age changes between two images, and a recorded race may. Patients stay the unit of
splitting and resampling even if their rows differ. A column of numbers is cut into bins, which are groups in ascending order.

Names (groups or patient ids) are alike if they differ only in case, blanks, invisible characters or Unicode form. They are never merged,
since a value from a table is not reinterpreted. But they may be one group or patient that two programs wrote differently, which cannot be
seen on a screen.
"""

import itertools
import logging
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pandas as pd

from equipoise.errors import BadInput, UnknownName, pick, raise_all

log = logging.getLogger(__name__)

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
ObjectArray = npt.NDArray[np.object_]
DateArray = npt.NDArray[np.datetime64]  # of days
MISSING = -1
MANY_LEVELS = 20  # a column of numbers or dates, or of mostly different values, with more levels is not a grouping
FEW_ROWS = 10  # a column of many levels, most of them with fewer rows, is not a grouping
DATE = r"\d{1,4}([-/.])\d{1,2}\1\d{1,4}([ T].*)?"  # 2026-11-15, 15.11.2026, with or without a time
LEVELS_SHOWN = 8  # in a message
# Values that records often hold in place of a missing number
SENTINELS = (-1, -9, -99, -999, -9999, -99999, -999999, 99, 999, 9999, 99999, 999999)
BINS_ADVICE = "Give them in ascending order, as in age=40,60,80 (in Python bins={'age': [40, 60, 80]})."


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

    def codes(self, values: FloatArray) -> IntArray:
        """The position in `names` of each value's group, -1 for a missing value."""
        return np.where(np.isnan(values), -1, np.searchsorted(self.edges, values, side="right")).astype(np.int64)


def parse_edges(edges: object, name: str) -> tuple[float, ...]:
    """The edges, or those of bins, as numbers; raises `BadInput` unless they are finite numbers in ascending order."""
    edges = getattr(edges, "edges", edges)
    try:
        numbers = np.asarray(edges, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        numbers = np.empty(())
    if numbers.ndim != 1:
        raise BadInput(f"the edges of the bins of {name!r} must be a list of numbers; got {edges!r}. {BINS_ADVICE}")
    if not len(numbers):
        raise BadInput(f"the bins of {name!r} have no edge. {BINS_ADVICE}")
    if not np.isfinite(numbers).all():
        raise BadInput(f"the edges of the bins of {name!r} must be finite; got {edges!r}. {BINS_ADVICE}")
    if (np.diff(numbers) <= 0).any():
        raise BadInput(f"the edges of the bins of {name!r} are not in ascending order: {', '.join(map(_format, numbers))}. {BINS_ADVICE}")
    return tuple(numbers.tolist())


def all_integers(values: FloatArray) -> bool:
    """Whether all values that are not missing are integers."""
    present = values[~np.isnan(values)]
    return bool((present == np.round(present)).all())


def read_numeric_column(column: "pd.Series[Any]", name: str) -> FloatArray:
    """The numbers (n,) in a column that is to be binned, NaN in empty cells; raises `BadInput` if a cell holds anything else."""
    if pd.api.types.is_datetime64_any_dtype(column) or pd.api.types.is_timedelta64_dtype(column):
        raise BadInput(f"column {name!r} holds dates, which cannot be binned. Turn it into a number, such as an age in years.")
    numbers, empty = to_numbers(column), is_blank(column)
    wrong = ~empty & ~np.isfinite(numbers)
    if wrong.any():
        first = int(wrong.argmax())
        raise BadInput(
            f"column {name!r} is to be binned and {int(wrong.sum()):,} of {len(column):,} rows hold no number; first in row {first + 1:,} "
            f"below the header, {str(column.iloc[first])[:40]!r}. Correct those rows or leave them empty."
        )
    return np.where(empty, np.nan, numbers)


def is_blank(column: "pd.Series[Any]") -> BoolArray:
    """Which cells of a column are empty, or text without visible characters."""
    empty = column.isna().to_numpy(dtype=bool)
    if not pd.api.types.is_numeric_dtype(column):
        empty = empty | np.array([not str(value).strip() for value in column], bool)
    return np.asarray(empty)


def to_numbers(column: "pd.Series[Any]") -> FloatArray:
    """The numbers (n,) in a column: NaN for anything that is not a number, infinity for a number too large for double precision.

    >>> to_numbers(pd.Series(["1", "x", None, "9" * 400])).tolist()
    [1.0, nan, nan, inf]
    """
    if pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_complex_dtype(column):
        return np.asarray(column.to_numpy(dtype=np.float64, na_value=np.nan))
    numbers = np.full(len(column), np.nan)
    for row, value in enumerate(column.astype(object)):
        text = str(value)
        if text.isascii() and "_" not in text:  # Python reads other digits too, and 1_000; other programs do not
            try:
                numbers[row] = float(value)
            except OverflowError:
                numbers[row] = np.inf
            except (TypeError, ValueError):
                continue
    return numbers


def _format(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))


UNUSUAL = re.compile(r"[^\x21-\x7e]")  # anything but visible ASCII characters
INVISIBLE = re.compile(  # control characters but blanks, format characters such as a zero-width space, variation selectors
    "[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\xad\u0600-\u0605\u061c\u06dd\u070f\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f"
    "\ufeff\ufff9-\ufffb\U000e0001-\U000e01ef]"
)
DIFFERENCE = "that differ only in case, blanks, invisible characters or Unicode form and are kept apart"


def alike_names(names: Iterable[str]) -> list[list[str]]:
    """The sets of different names that are alike, each in alphabetical order.

    >>> alike_names(["F", "f", "M", "M ", "x"])
    [['F', 'f'], ['M', 'M ']]
    """
    names = list(names)
    joined = "".join(names)
    if not UNUSUAL.search(joined) and joined in (joined.lower(), joined.upper()):  # takes a tenth of the time of folding
        return []
    sets: dict[str, list[str]] = {}
    for name, form in zip(names, folded_names(names), strict=True):
        sets.setdefault(form, []).append(name)
    return sorted(sorted(alike) for alike in sets.values() if len(alike) > 1)


def folded_names(names: list[str]) -> list[str]:
    """The names in lower case, in a fixed Unicode form, without invisible characters and blanks around them; all in one text, for speed."""
    text = "\n".join(name.replace("\n", " ") for name in names)
    if not UNUSUAL.search(text.replace("\n", "")):
        return text.lower().split("\n")
    text = unicodedata.normalize("NFKC", INVISIBLE.sub("", unicodedata.normalize("NFKC", text)).casefold())
    return [line.strip() for line in re.sub(r"[^\S\n]+", " ", text).split("\n")]


def list_alike(sets: list[list[str]]) -> str:
    """Sets of alike names, for a message, with characters escaped where they are the difference.

    >>> list_alike([["F", "f"], ["\\u00e9", "e\\u0301"]])
    "'F', 'f'; '\\\\xe9', 'e\\\\u0301'"
    """
    shown = []
    for alike in sets[:3]:
        visible = len({unicodedata.normalize("NFC", name) for name in alike}) == len(alike)
        shown.append(", ".join(map(repr if visible else ascii, alike)))
    return "; ".join([*shown, f"and {len(sets) - 3:,} more"] if len(sets) > 3 else shown)


def warn_of_alike_patients(sets: list[list[str]], column: str) -> None:
    """Logs a warning that names patient ids which are alike."""
    log.warning(
        "patient column %r holds ids %s: %s. If they are of one patient, correct the table, since intervals are too narrow otherwise",
        *(column, DIFFERENCE, list_alike(sets)),
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
    missing_texts: tuple[str, ...] = ()  # that were read as missing in its table
    merged: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # groups of its table, by what they became

    def __repr__(self) -> str:
        counts = np.bincount(self.codes[self.codes >= 0], minlength=len(self.levels))
        shown = [f"{level} {count:,}" for level, count in zip(self.levels[:LEVELS_SHOWN], counts, strict=False)]
        if len(self.levels) > LEVELS_SHOWN:
            shown.append(f"{len(self.levels) - LEVELS_SHOWN:,} more groups")
        if missing := int((self.codes < 0).sum()):
            shown.append(f"{missing:,} missing")
        return f"{self.name}: {', '.join(shown)}"

    @classmethod
    def of(
        cls,
        values: object,
        name: str = "group",
        reference: str | None = None,
        edges: object = None,
        patients: "pd.Series[Any] | None" = None,
        conflicts: str = "row",
    ) -> "Attribute":
        """The attribute in a column of any type. Numbers and booleans are converted to names; text is used unchanged.

        - `values`: the group of each row; rows without a group stay without one.
        - `name`: of the attribute, in messages and results.
        - `reference`: the privileged group, which is level 0; by default the largest.
        - `edges`: cut a column of numbers into groups, which are then in ascending order.
        - `patients`: the patient of each row.
        - `conflicts`: the rule of CONFLICTS for patients with more than one group.

        >>> Attribute.of([35, 81, 59, None, 40], name="age", reference="40-59", edges=[40, 60, 80]).levels
        ('40-59', '<40', '80+')
        """
        column, coder = pd.Series(values), GroupCoder(name, edges)
        if edges is None:
            codes = coder.add_names(*reversed(pd.factorize(group_names(column))))
        else:
            codes = coder.add_numbers(column)
        attribute, level_codes = coder.attribute(reference, dates=pd.api.types.is_datetime64_any_dtype(column))
        codes = level_codes[codes]
        if patients is not None:
            units = np.asarray(pd.factorize(patients)[0], dtype=np.int64)
            in_conflict, resolved = varying_units(codes, units), resolve_codes(codes, units, conflicts)
            examples = list(dict.fromkeys(map(str, patients.to_numpy(dtype=object)[in_conflict[units]])))[:5]
            numbers = int(in_conflict.sum()), len(in_conflict), np.bincount(resolved[resolved != MISSING], minlength=len(attribute.levels))
            attribute, new_codes = resolve_conflicts(attribute, *numbers, conflicts, str(patients.name), examples)
            codes = new_codes[resolved]
        return replace(attribute, codes=codes)

    def only(self, groups: Sequence[str]) -> "Attribute":
        """The attribute with only these groups, in the order of its own; rows of other groups have none. With no groups, itself.

        >>> Attribute.of(["F", "M", "x"], name="sex", reference="M").only(["M", "F"]).levels
        ('M', 'F')
        """
        if not groups or set(groups) >= set(self.levels):
            return self
        for group in groups:
            pick(f"group of {self.name}", group, self.levels)
        if self.reference not in groups or len(set(groups)) < 2:
            raise BadInput(f"groups must have the reference {self.reference!r} and at least one other; got {', '.join(groups)}")
        levels = tuple(level for level in self.levels if level in groups)
        codes = np.array([*(levels.index(level) if level in levels else MISSING for level in self.levels), MISSING])
        return replace(self, levels=levels, codes=codes[self.codes])

    @classmethod
    def of_new_rows(cls, column: "pd.Series[Any]", name: str, bins: Bins | None = None) -> "Attribute":
        """The attribute `name` in a `column` of rows to be decided on, which may be of one group or none; `bins` as in the repair."""
        if bins is not None:
            return cls(name, bins.names, bins.codes(read_numeric_column(column, name)), bins=bins)
        names = group_names(column)
        levels = tuple(sorted(str(level) for level in names.dropna().unique())) or ("(none)",)
        return cls(name, levels, pd.Index(levels, dtype=object).get_indexer(names))

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
            cls.crossed_name([a.levels[i] for a, i in zip(attributes, cell, strict=True)])
            for cell in zip(*np.unravel_index(present, shape), strict=True)
        )
        crossed_codes = np.where(missing, MISSING, np.searchsorted(present, flat))
        name, named = cls.crossed_name([a.name for a in attributes]), all(a.named for a in attributes)
        return cls(name, levels, crossed_codes, named, intersection=True)

    @staticmethod
    def crossed_name(names: Sequence[str]) -> str:
        """The name of an intersection, different for different names.

        >>> Attribute.crossed_name(["F", "white"]), Attribute.crossed_name(["x & y", "z"]), Attribute.crossed_name(["x", "y & z"])
        ('F & white', '"x & y" & z', 'x & "y & z"')
        """
        return " & ".join('"' + name.replace('"', '""') + '"' if "&" in name or name.startswith('"') else name for name in names)

    @property
    def reference(self) -> str:
        """The privileged group (A = 1 in the paper)."""
        return self.levels[0]

    @property
    def others(self) -> tuple[str, ...]:
        """Every group but the reference."""
        return self.levels[1:]

    @property
    def names(self) -> ObjectArray:
        """The group of each row by name, None where it is missing."""
        return np.array([*self.levels, None], dtype=object)[self.codes]

    @property
    def missing(self) -> float:
        """The share of rows without a group."""
        return float((self.codes == MISSING).mean()) if len(self.codes) else 0.0

    def take(self, index: IntArray) -> "Attribute":
        """The attribute of the selected rows, with all levels."""
        return replace(self, codes=self.codes[index])


class GroupCoder:
    """The groups of one column, of a whole table or batch by batch: coded in the order in which they occur, and counted."""

    def __init__(self, name: str, edges: object = None) -> None:
        self.name, self.rows = name, 0
        self.bins = None if edges is None else Bins(parse_edges(edges, name), getattr(edges, "whole", None))
        self.counts = np.zeros(0 if self.bins is None else len(self.bins.names), np.int64)  # rows of each code
        self.code_of: dict[str, int] = {}  # of each group, if the column is not binned
        self.integers, self.low, self.high = True, np.inf, -np.inf  # of the numbers that are not in `suspects`
        self.span_known = True  # False where they are the outer edges instead: in a database, whose smallest and largest value stay there
        self.suspects = Counter[float]()  # rows of each value in `SENTINELS`

    def add_numbers(self, column: "pd.Series[Any]") -> IntArray:
        """The code of each number, which is the position of its bin."""
        numbers, bins = read_numeric_column(column, self.name), cast(Bins, self.bins)
        suspect = np.isin(numbers, SENTINELS)
        regular = numbers[~suspect & ~np.isnan(numbers)]
        self.integers = self.integers and all_integers(numbers)
        self.low, self.high = float(regular.min(initial=self.low)), float(regular.max(initial=self.high))
        self.suspects.update(numbers[suspect].tolist())
        codes = bins.codes(numbers)
        self.rows, self.counts = self.rows + len(codes), self.counts + np.bincount(codes[codes >= 0], minlength=len(bins.names))
        return codes

    def add_names(self, names: Sequence[str | None], positions: IntArray) -> IntArray:
        """The code of each row from its position in a list of names, -1 (or a name that is None) where it is missing."""
        for name in names:
            if name is not None:
                self.code_of.setdefault(name, len(self.code_of))
        codes = np.array([*(MISSING if name is None else self.code_of[name] for name in names), MISSING], np.int64)[positions]
        earlier = np.pad(self.counts, (0, len(self.code_of) - len(self.counts)))
        self.rows, self.counts = self.rows + len(codes), earlier + np.bincount(codes[codes >= 0], minlength=len(earlier))
        return codes

    def attribute(self, reference: str | None, *, dates: bool = False) -> tuple[Attribute, IntArray]:
        """The attribute without rows, and the position of each code's group among its levels, of which the reference is the first.

        The reference defaults to the largest group. Raises `BadInput` if the values do not form at least two groups.
        """
        bins, name = self.bins, self.name
        if bins is not None and bins.whole is None:  # the names for integers, if the values and edges are integers
            bins = replace(bins, whole=self.integers and all_integers(np.array(bins.edges)))
        names = list(self.code_of) if bins is None else list(bins.names)
        counts = pd.Series(self.counts, index=pd.Index(names, dtype=object))
        counts = counts[counts > 0].sort_values(ascending=False, kind="stable")
        if bins is not None:
            self._check_bins(counts, bins)
        elif counts.empty:
            raise BadInput(f"column {name!r} holds no group: all {self.rows:,} values are missing. Use another column.")
        elif len(counts) < 2:
            raise BadInput(
                f"column {name!r} holds a single group, {counts.index[0]!r} ({counts.iloc[0]:,} rows); "
                "a gap needs at least two. Use another column, or rows of every group."
            )
        else:
            # Nearly every row has a different value, or there are many values.
            unusual = len(counts) > MANY_LEVELS or 2 < len(counts) > counts.sum() / 2
            if unusual and (problem := _grouping_problem(counts, self.rows, name, dates)):
                raise BadInput(problem)
            if alike := alike_names(counts.index):
                log.warning("column %r holds groups %s: %s. If they are one group, correct the table", name, DIFFERENCE, list_alike(alike))
        ordered = sorted(counts.index) if bins is None else [level for level in names if level in counts.index]
        chosen = str(counts.index[0]) if reference is None else level_name(reference)
        if chosen not in ordered:
            raise UnknownName(f"reference group for {name!r}:", chosen, ordered)
        levels = (chosen, *(level for level in ordered if level != chosen))
        level_codes = np.append(pd.Index(levels, dtype=object).get_indexer(names), MISSING)
        return Attribute(name, levels, np.empty(0, np.int64), reference is not None, bins), level_codes

    def _check_bins(self, counts: "pd.Series[int]", bins: Bins) -> None:
        """Raises `BadInput` if fewer than two bins have rows, or if one holds a code for missing values."""
        if len(counts) < 2:
            span = f", from {self.low:g} to {self.high:g}" if self.span_known else ""
            single = f"all {int(counts.sum()):,} values lie in {counts.index[0]!r}{span}" if len(counts) else ""
            raise BadInput(
                f"column {self.name!r} makes {'a single group' if single else 'no group'}: {single or 'every value is missing'}. "
                "A gap needs at least two. Choose other edges or another column."
            )
        problems = []
        for value, rows in sorted(self.suspects.items()) if self.low <= self.high else ():
            # It cannot be a value like the others if it is too far above their range, or negative if they are not.
            far = value - self.high > self.high - self.low if value > 0 else self.low >= 0
            group = bins.names[int(bins.codes(np.array(value)))]
            if far and rows < counts[group]:  # with an edge that gives the code its own group, it is a value
                problems.append(
                    f"column {self.name!r} is to be binned and holds {value:g} in {rows:,} rows, which is probably a code for a missing "
                    f"value and would count in the group {group!r}. Leave those rows empty; if it is a value, add an edge that gives it "
                    "its own group."
                )
        raise_all(problems)


def group_names(column: "pd.Series[Any]") -> "pd.Series[Any]":
    """The name of each row's group, None where the cell is empty or blank."""
    if isinstance(column.dtype, pd.StringDtype):  # converts each distinct text once: ten times faster for a million rows
        codes, texts = pd.factorize(column)
        distinct_names = np.array([*(text if text.strip() else None for text in texts), None], dtype=object)
        return pd.Series(distinct_names[codes], index=column.index, dtype="object", name=column.name)
    names = column.map(level_name, na_action="ignore").astype("object")
    return names.where(column.notna() & (names.map(str).str.strip() != ""), None)


def merge_groups(column: "pd.Series[Any]", merge: Mapping[str, Iterable[object]]) -> "pd.Series[Any]":
    """The groups of a column by name, with those that are merged by their common name.

    >>> merge_groups(pd.Series(["A", "B", "C"]), {"other": ["B", "C"]}).tolist()
    ['A', 'other', 'other']
    """
    becomes = {level_name(group): name for name, groups in merge.items() for group in groups}
    names = group_names(column)
    return names.map(lambda name: becomes.get(name, name)).astype(object) if becomes else names


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
        if abs(float(value)) >= min(column_limit, 2.0 ** (np.finfo(type(value)).nmant + 1)):
            return (
                f"holds {value!r}, a floating-point number so large that different identifiers are the same. "
                "Read or store the column as text (in pandas dtype=str)."
            )
    return ""


def _grouping_problem(counts: "pd.Series[int]", all_rows: int, name: str, dates: bool) -> str:
    """The reason why many or mostly different values are not groups, and how to form groups from them; empty if they are groups."""
    levels, rows = len(counts), int(counts.sum())
    many = levels > MANY_LEVELS
    # Numbers may be stored as text or as objects, so they are recognised by their values and not by the type of the column.
    numbers = pd.to_numeric(counts.index.to_series(), errors="coerce").to_numpy(np.float64)
    if not np.isnan(numbers).any() and (many or (numbers != np.round(numbers)).any()):
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
    small = int((counts < FEW_ROWS).sum())
    if not many or small <= levels / 2:
        return ""
    large = [f"{level!r} ({count:,})" for level, count in counts[counts >= FEW_ROWS].items()]
    if not large:
        return (
            f"column {name!r} holds {levels:,} different groups in {rows:,} rows, none of which has {FEW_ROWS} rows. "
            "Merge them into a few with data.merge, or use another column."
        )
    shown = ", ".join(large[:LEVELS_SHOWN]) + (f" and {len(large) - LEVELS_SHOWN} more" if len(large) > LEVELS_SHOWN else "")
    return (
        f"column {name!r} holds {levels:,} different groups, {small:,} of which have fewer than {FEW_ROWS} rows. Those large enough to "
        f"keep are {shown}. Merge the others into one group with data.merge, such as {{'other': [...]}}."
    )


def resolve_conflicts(
    attribute: Attribute, varied: int, patients: int, counts: IntArray, rule: str, patient: str, examples: Sequence[str] = ()
) -> tuple[Attribute, IntArray]:
    """The attribute without rows under a rule of CONFLICTS for patients in several groups, and the new code of each of its levels.

    `varied` of the `patients` have several groups, and `counts` are the rows of each level under the rule. Raises `BadInput` if the rule is
    "error" and there are such patients, or if the reference or every other group loses all its rows.
    """
    if rule == "error" and varied:
        shown = f": {', '.join(examples)}{' ...' if varied > len(examples) else ''}" if examples else ""
        raise BadInput(
            f"patient column {patient!r}: {varied:,} of {patients:,} patients have more than one {attribute.name!r}{shown}. Correct them, "
            "leave it empty where it is not known, or choose how they count with --set data.conflicts=row, first, majority or blank (in "
            "Python conflicts=...)."
        )
    nonempty = counts > 0
    if nonempty.sum() < 2 or not nonempty[0]:
        lost = [repr(level) for level, has_rows in zip(attribute.levels, nonempty, strict=True) if not has_rows]
        raise BadInput(
            f"column {attribute.name!r}: with conflicts={rule!r} no row is left in {', '.join(lost)}. Choose another rule or reference."
        )
    levels = tuple(level for level, has_rows in zip(attribute.levels, nonempty, strict=True) if has_rows)
    new_codes = np.append(np.where(nonempty, np.cumsum(nonempty) - 1, MISSING), MISSING)
    return replace(attribute, levels=levels, codes=np.empty(0, np.int64), varied=varied, conflicts=rule), new_codes


def resolve_codes(codes: IntArray, units: IntArray, rule: str) -> IntArray:
    """The codes after units in several groups got their first or most frequent one, or none, by the rule; unchanged by other rules."""
    if rule in ("row", "error"):
        return codes
    rows = varying_units(codes, units)[units] & (codes != MISSING)
    resolved = codes.copy()
    resolved[rows] = MISSING if rule == "blank" else main_group(codes, units, rule)[units[rows]]
    return resolved


@dataclass(frozen=True)
class GroupConflicts:
    """The number of patients with more than one recorded group of an attribute, and the rule of CONFLICTS that was applied."""

    attribute: str
    patients: int
    rule: str


def varying_units(codes: IntArray, units: IntArray) -> BoolArray:
    """Which units (patients, 0 .. U-1) have rows in more than one group, not counting rows without a group."""
    present = codes != MISSING
    width = int(codes.max(initial=0)) + 1
    pairs = np.sort(units[present] * width + codes[present])  # sorting 10 million takes 0.2 s, and `np.unique` 8 s (NumPy 2.4)
    distinct = pairs[np.append(True, pairs[1:] != pairs[:-1])] if len(pairs) else pairs
    return np.bincount(distinct // width, minlength=int(units.max(initial=-1)) + 1) > 1


def patient_codes(patients: npt.NDArray[Any]) -> IntArray:
    """The patient of each row as a code 0 .. P-1. Codes in ascending order (int64), as of a table added up where it is, stay the same."""
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
