"""Rows of patients: what a cohort and scores have in common, how their patients are divided at random, and how sets are kept apart.

Patients are compared by their ids. Without patient ids, rows are compared: by their ids, if the ids of both sets count the same rows, and
otherwise by what they contain. Different patients can have equal rows, above all in tables of few and coarse columns. Rows therefore count
as the same if a column tells rows apart (numbers of many digits that hardly repeat; the pixels of an image), or if more of them are equal
than the repeated rows within each set explain.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from hashlib import blake2b
from itertools import combinations
from typing import Any, Self, TypeVar, cast
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pandas as pd

from equipoise.data.attribute import (
    MISSING,
    Attribute,
    BoolArray,
    DateArray,
    FloatArray,
    GroupConflicts,
    IntArray,
    ObjectArray,
    main_group,
    patient_codes,
    varying_units,
)
from equipoise.data.column_values import UNNAMED_LABEL
from equipoise.data.columns import LabelKind
from equipoise.errors import BadInput, raise_all
from equipoise.specification import read_day

CHANCE_OF_EQUAL_ROWS = 1e-4  # probability of as many equal rows of different patients, above which they are not counted
TELLING_SHARE = 0.95  # share of different values, and of values with more than `TELLING_DIGITS` digits, in a column that tells rows apart
TELLING_DIGITS = 5
ROWS_OF_A_COLUMN = 2000  # rows of a column that are looked at for this
FEWEST_ROWS = 20  # among fewer, values differ by chance
SHADES = 16  # different bytes in an image that is more than a blank one
EXAMPLES_SHOWN = 5  # in a message
FIRST_COLUMNS = 4  # by which equal rows of a table are first sought: comparing hundreds of columns takes seconds
HashArray = npt.NDArray[np.uint64]
log = logging.getLogger(__name__)


class Grouped:
    """Rows with a label, groups and patients: a `Cohort` or `Scores`, which are frozen dataclasses with these fields."""

    y: IntArray
    targets: IntArray  # (n, labels), of a cohort
    attributes: tuple[Attribute, ...]
    patients: ObjectArray | None
    dates: DateArray | None
    ids: ObjectArray
    name: str
    labels: tuple[str, ...] = UNNAMED_LABEL
    kind: LabelKind = LabelKind.LABELS

    def __len__(self) -> int:
        return len(self.y)

    def described(self) -> str:
        """The number of rows, patients and positives, and the rows of each group; no value of any row, which may be a patient's."""
        of_patients = "" if self.patients is None else f" of {len(set(self.patients)):,} patients"
        rows = [f"{len(self):,} rows{of_patients}", f"{int((self.y == 1).sum()):,} positive"]
        return ", ".join([*rows, *map(repr, self.attributes)])

    @cached_property
    def attribute(self) -> Attribute:
        """The protected attribute; with several columns, their intersection."""
        return Attribute.crossed(self.attributes)

    def comparing(self, groups: Sequence[str]) -> Self:
        """These rows, of which only these groups are compared: rows of others have no group. With no groups, all are compared."""
        attribute = self.attribute.only(groups)
        return self if attribute is self.attribute else replace(cast(Any, self), attributes=(attribute,))

    @property
    def numbered(self) -> bool:
        """Whether rows have no ids of their own and are only numbered: by integers, whereas ids are objects."""
        return self.ids.dtype != object

    @property
    def varying(self) -> list[int]:
        """For each attribute, the number of patients with rows in more than one of its groups."""
        units = None if self.patients is None else patient_codes(self.patients)
        return [0 if units is None else int(varying_units(a.codes, units).sum()) for a in self.attributes]

    @property
    def conflicts(self) -> tuple[GroupConflicts, ...]:
        """The attributes that vary within patients: in these rows, or in the whole table if a rule has resolved the conflicts."""
        counts = [n if a.conflicts == "row" else a.varied for a, n in zip(self.attributes, self.varying, strict=True)]
        return tuple(GroupConflicts(a.name, n, a.conflicts) for a, n in zip(self.attributes, counts, strict=True) if n)

    @property
    def groups(self) -> ObjectArray:
        """The group of each row by name, None where it is missing."""
        return self.attribute.names

    @property
    def several(self) -> bool:
        """Whether the labels have names, by which the outputs of a network are chosen."""
        return self.labels != UNNAMED_LABEL

    def labelled(self, label: str) -> Self:
        """The rows in which a label is known, with that label only."""
        if label:
            raise BadInput(f"{self.name!r} holds the scores of one label, not of {label!r} and others. Give one set of scores per label.")
        return self

    def column(self, label: str) -> IntArray:
        """A label in every row (n,): 0, 1, or -1 if unknown."""
        return self.labelled(label).y

    @property
    def outcome(self) -> IntArray:
        """What the classifier predicts for each row (n,): the label as 0 or 1, or the position of the class."""
        return self.targets.argmax(1) if self.kind.argmax else self.y

    def content(self) -> tuple[str, Any, IntArray | None]:
        """What the rows contain, by which equal rows are found: its kind, a frame or arrays (m, ...), and the positions in these."""
        raise NotImplementedError

    def fixed(self) -> Self:
        """These rows with their own encoding of a table, which all parts of them keep."""
        return self

    @property
    def by_label(self) -> dict[str, Self]:
        """The rows in which each label is known, with that label only, by name; the name of the only label is empty."""
        return {label: self.labelled(label) for label in self.labels}

    def take(self, index: object, name: str | None = None) -> Self:
        """The selected rows, by position or mask."""
        rows, made = np.arange(len(self))[np.asarray(index)], cast(Any, self)
        fields_by_row = {field.name: values for field in fields(made) if hasattr(values := getattr(self, field.name), "take")}
        taken = {field: values[rows] if isinstance(values, np.ndarray) else values.take(rows) for field, values in fields_by_row.items()}
        attributes = tuple(a.take(rows) for a in self.attributes)
        return cast(Self, replace(made, name=name or self.name, attributes=attributes, **taken))

    def hold_out(self, fraction: float = 0.3, *, seed: int = 0, test_after: object = None) -> tuple[Self, Self]:
        """The repair set of these rows, and the test set with this fraction of their patients; see `hold_out_each`.

        With `test_after`, a date such as 2026-01-01, the test set is of later patients instead: those first seen on that day or after it.
        Patients who were seen before it stay in the repair set, with their rows of that time; their later rows are in neither set.

        >>> from equipoise import Scores
        >>> scores = Scores.from_arrays([1, 0] * 50, [0.9, 0.2] * 50, ["F", "F", "M", "M"] * 25, reference="M")
        >>> [len(part) for part in scores.hold_out(0.3)]
        [70, 30]
        """
        later = None if test_after is None else LaterPatients.of([self], test_after)
        (repair,), (test,) = hold_out_each([self], fraction, seed=seed) if later is None else later.parts([self])
        return repair, test

    def with_groups_of(self, repair: "Grouped") -> Self:
        """These rows, of a test set, with the group codes of the repair set; raises `BadInput` if they have new groups."""
        problems, attributes = [], []
        for expected, attribute in zip(repair.attributes, self.attributes, strict=True):
            if new := [level for level in attribute.levels if level not in expected.levels]:
                problems.append(
                    f"{self.name!r} has groups of {expected.name!r} that {repair.name!r} lacks: {', '.join(map(repr, new))}; "
                    f"known: {', '.join(map(repr, expected.levels))}"
                )
                continue
            new_codes = np.array([*(expected.levels.index(level) for level in attribute.levels), MISSING])
            attributes.append(replace(attribute, levels=expected.levels, codes=new_codes[attribute.codes]))
        raise_all(problems)
        return cast(Self, replace(cast(Any, self), attributes=tuple(attributes)))


RowsT = TypeVar("RowsT", bound=Grouped)


def generator(seed: int, name: str) -> np.random.Generator:
    """The random generator for one purpose: the same for the same `seed` and `name`, independent of those with other names.

    >>> int(generator(0, "split").integers(100)) == int(generator(0, "split").integers(100))
    True
    """
    return np.random.default_rng([seed, crc32(name.encode())])


def child_seed(seed: int, name: str) -> int:
    """An integer seed below 2**31 from a `seed` and the `name` of a purpose, for libraries that need one."""
    return int(generator(seed, name).integers(2**31))


def splitmix64(numbers: HashArray) -> HashArray:
    """The numbers scattered over 64 bits; equal numbers give equal results (the finaliser of splitmix64)."""
    x = numbers + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def hold_out_each(sets: Sequence[RowsT], fraction: float = 0.3, *, seed: int = 0) -> tuple[list[RowsT], list[RowsT]]:
    """The repair sets and the test sets of the rows of one or several labels; no patient is in both for any label.

    - `sets`: the rows of each label.
    - `fraction`: the share of the patients that is held out.
    - `seed`: of the division.

    Split by patient and stratified, like `split`, except that the fraction is one of patients and not of rows. Without patient ids, rows
    are split, whose id must be the same for every label. No encoder is fitted to either set: a table keeps its encoding, because the
    network was trained elsewhere.
    """
    if not 0 < fraction < 1:
        raise BadInput(f"the fraction to hold out must lie between 0 and 1; got {fraction}")
    sets = [rows.fixed() for rows in sets]
    unit = units_of_all(sets)
    shares = np.array([1 - fraction, fraction, 0.0])
    part = assign_units(sets, unit, np.ones(unit.max() + 1, np.int64), shares, generator(seed, "keep aside"))
    repair, test = list[RowsT](), list[RowsT]()
    for rows, own in zip(sets, np.split(part, np.cumsum([len(rows) for rows in sets])[:-1]), strict=True):
        for k, (name, parts) in enumerate((("repair", repair), ("test", test))):
            parts.append(rows.take(np.flatnonzero(own == k), f"{rows.name}/{name}"))
            if not len(parts[-1]):
                raise too_few(rows, unit, f"to hold out {fraction:g} of them")
    return repair, test


def units_of_all(sets: Sequence[Grouped]) -> IntArray:
    """The patient of each row of all sets, one after another, as a code; without patient ids, the row by its id."""
    return np.asarray(pd.factorize(np.concatenate([rows.ids if rows.patients is None else rows.patients for rows in sets]))[0], np.int64)


@dataclass(frozen=True)
class LaterPatients:
    """The division of rows of one or several labels by a date: patients first seen before it, and later patients."""

    after: str  # the first day of the later patients
    patients: int  # first seen on that day or after it
    returning: int  # seen before it and again
    repair: tuple[BoolArray, ...]  # for each label, the rows before the day
    left_out: tuple[BoolArray, ...]  # the later rows of returning patients

    @classmethod
    def of(cls, sets: Sequence[Grouped], after: object) -> "LaterPatients":
        """The division of these sets, whose patients (without patient ids, rows) are divided by their first date in any of them."""
        day = np.datetime64(read_day(after, "test_after"), "D")
        dates = [rows.dates for rows in sets if rows.dates is not None]
        if len(dates) < len(sets):
            raise BadInput("test_after (repair.test_after) needs the date of each row. Name its column: date= (data.date).")
        unit = units_of_all(sets)
        seen, first = np.concatenate(dates), np.full(int(unit.max(initial=-1)) + 1, np.datetime64("9999-12-31"))
        np.minimum.at(first, unit, seen)
        is_later, ends = first >= day, np.cumsum([len(rows) for rows in sets])[:-1]
        for missing, found in (("later", is_later.any()), ("earlier", not is_later.all())):
            if not found:
                raise BadInput(
                    f"no patient of {sets[0].name!r} is first seen {'on or after' if missing == 'later' else 'before'} {day}, the day of "
                    f"test_after; the dates go from {seen.min()} to {seen.max()}. Choose a day between them."
                )
        late = ~is_later[unit] & (seen >= day)
        before = ~is_later[unit] & ~late
        divided = cls(str(day), int(is_later.sum()), len(np.unique(unit[late])), tuple(np.split(before, ends)), tuple(np.split(late, ends)))
        if divided.returning:
            log.warning(
                "%s patients were seen before %s and again: they stay in the repair set, and their later rows are in neither set",
                *(f"{divided.returning:,}", day),
            )
        return divided

    def parts(self, sets: Sequence[RowsT]) -> tuple[list[RowsT], list[RowsT]]:
        """The repair sets and the test sets of the labels."""
        repair, test = list[RowsT](), list[RowsT]()
        for rows, before, left_out in zip([rows.fixed() for rows in sets], self.repair, self.left_out, strict=True):
            for name, parts, kept in (("repair", repair, before), ("test", test, ~before & ~left_out)):
                if not kept.any():
                    raise BadInput(f"no row of {rows.name!r} is left in the {name} set by test_after={self.after}. Choose another day.")
                parts.append(rows.take(kept, f"{rows.name}/{name}"))
        return repair, test


def assign_folds(cohort: Grouped, folds: int, rng: np.random.Generator) -> IntArray:
    """The fold (n,) of each row of a `cohort`, of so many `folds`, shuffled by `rng`.

    All rows of a patient, and duplicated rows, are in one fold; groups and labels are spread evenly.
    """
    unit, names = pd.factorize(cohort.ids if cohort.patients is None else cohort.patients)
    # Units are sorted by name, so that folds do not depend on the order of the rows. Leading zeros are ignored, as if ids were numbers.
    keys = [(name.lstrip("0"), name) for name in map(str, names)]
    unit = np.argsort(sorted(range(len(keys)), key=keys.__getitem__))[unit]
    first_row = np.unique(unit, return_index=True)[1]
    stratum = 2 * main_group(cohort.attribute.codes, unit) + cohort.y[first_row]
    shuffled = rng.permutation(len(first_row))
    fold = np.empty(len(first_row), np.int64)
    fold[shuffled[np.argsort(stratum[shuffled], kind="stable")]] = np.arange(len(first_row)) % folds
    return np.asarray(fold[unit])


def too_few(rows: Grouped, unit: IntArray, purpose: str) -> BadInput:
    what = "rows" if rows.patients is None else f"patients in {len(rows):,} rows"
    return BadInput(f"{unit.max() + 1:,} {what} of {rows.name!r} are too few {purpose}. Use more data.")


def assign_units(sets: Sequence[Grouped], unit: IntArray, size: IntArray, shares: FloatArray, rng: np.random.Generator) -> IntArray:
    """The part (0, 1, 2) of each row, by its unit; `size` is the size of each unit, and `shares` are those of the parts.

    A stratum is the most frequent group of a unit, combined with its largest label or the last class among its rows. The units of each
    stratum are shuffled and spread evenly over (0, 1). Cutting that order at the sizes of the parts gives every part its share of each
    stratum, and exactly the requested size if every unit is one row.
    """
    levels = max(2, len(sets[0].labels)) if sets[0].kind.argmax else 2
    largest = np.zeros(len(size), np.int64)
    np.maximum.at(largest, unit, np.concatenate([rows.outcome for rows in sets]))
    stratum = (main_group(np.concatenate([rows.attribute.codes for rows in sets]), unit) + 1) * levels + largest
    order = rng.permutation(len(size))
    order = order[np.argsort(stratum[order], kind="stable")]
    counts = np.bincount(stratum)
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    rank = np.empty(len(size))
    rank[order] = np.arange(len(size)) - starts[stratum[order]]
    spread = (rank + rng.random(len(counts))[stratum]) / counts[stratum]
    along = np.argsort(spread, kind="stable")
    n = int(size.sum())
    first = int(shares[0] * n + 1e-9)
    second = first + int((n - first) * shares[1] / (shares[1] + shares[2]) + 1e-9)
    part = np.empty(len(size), np.int64)
    part[along] = np.searchsorted([first, second], np.cumsum(size[along]) - size[along], side="right")
    return part[unit]


@dataclass(frozen=True, eq=False)
class Identities:
    """What identifies the rows of a set: patients, ids, and what the rows contain. Arrays are shared with the set, not copied."""

    name: str
    patients: ObjectArray | None
    ids: ObjectArray
    kind: str = ""  # of the content; only contents of the same kind are compared. Empty if patient ids are enough
    frame: pd.DataFrame = field(default_factory=pd.DataFrame)  # the content of a table or of scores
    images: npt.NDArray[Any] | None = None  # (m, ...) the content of images
    positions: IntArray | None = None  # (n,) the position of each row among the images
    last: np.datetime64 | None = None  # the last day of any row; None if the days are not known

    @classmethod
    def of(cls, rows: Grouped, content: bool | None = None) -> "Identities":
        """The identities of these `rows`; with their `content`, by default, if they have no patient ids."""
        last = None if rows.dates is None or not len(rows) else rows.dates.max()
        who = cls(rows.name, rows.patients, rows.ids, last=last)
        if not (rows.patients is None if content is None else content):
            return who
        kind, stored, positions = rows.content()
        return replace(who, kind=kind, **({"frame": stored} if positions is None else {"images": stored, "positions": positions}))

    def before(self, rows: Grouped) -> bool:
        """Whether all rows of a set are known to be later than these."""
        return self.last is not None and rows.dates is not None and bool(rows.dates.min() > self.last)

    def shared_with(self, other: "Identities") -> "Shared":
        """What the other set has in common with this one.

        >>> from equipoise.data import Scores
        >>> scores = Scores.from_arrays([1, 0] * 50, np.arange(100) / 100, ["F", "F", "M", "M"] * 25)
        >>> repair, test = (Identities.of(part) for part in scores.hold_out(0.3))
        >>> repair.shared_with(Identities.of(scores)).count, repair.shared_with(test).count
        (70, 0)
        """
        if self.patients is not None and other.patients is not None:
            mine, theirs = (dict.fromkeys(map(str, patients)) for patients in (self.patients, other.patients))
            shared = [patient for patient in theirs if patient in mine]
            return Shared(len(shared), len(theirs), "patients", tuple(shared[:EXAMPLES_SHOWN]))
        both = [name for name in self.frame.columns if name in other.frame.columns]
        # Decimal numbers first, since these differ most between rows.
        both = sorted(both, key=lambda name: not all(each.frame[name].dtype.kind == "f" for each in (self, other)))
        first, second = (replace(each, frame=each.frame[both]) for each in (self, other))
        comparable = bool(self.kind) and self.kind == other.kind
        # The ids of numbered rows are integers, which may be mere row numbers.
        numbered = [pd.api.types.infer_dtype(each.ids) in ("integer", "empty") for each in (self, other)]
        if all(numbered):
            _, places, found = np.intersect1d(self.ids.astype(np.int64), other.ids.astype(np.int64), return_indices=True)
        else:
            place = {str(key): k for k, key in enumerate(self.ids)}
            pairs = [(place[key], k) for k, key in enumerate(map(str, other.ids)) if key in place]
            places, found = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
        if len(places):
            same = first._same_rows(second, places, found) if comparable else not numbered[0]
        else:
            same = all(numbered)  # rows that were numbered together are parts of one set
        if not same:
            found = first._equal_rows(second) if comparable else found[:0]
        return Shared(len(found), len(other.ids), "rows", tuple(map(str, other.ids[found[:EXAMPLES_SHOWN]])))

    def _same_rows(self, other: "Identities", mine: IntArray, theirs: IntArray) -> bool:
        """Whether the ids of both sets count the same rows: all rows with equal ids are equal, and not by chance."""
        first = slice(FEWEST_ROWS)  # most sets that are numbered separately differ here
        if not all(np.array_equal(self._hashes(mine[some]), other._hashes(theirs[some])) for some in (first, slice(None))):
            return False
        return bool(self._chance_of_equal(other) ** len(mine) < CHANCE_OF_EQUAL_ROWS)

    def _equal_rows(self, other: "Identities") -> IntArray:
        """The positions of rows of the other set that are equal to one of these rows, and not by chance."""
        mine, theirs = self._hashes(whole=False), other._hashes(whole=False)
        alike, candidates = np.flatnonzero(np.isin(theirs, mine)), np.flatnonzero(np.isin(mine, theirs))
        if not len(alike):
            return alike
        alike = alike[np.isin(other._hashes(alike), self._hashes(candidates))]  # equal in all that they contain
        # Rows that cannot be equal to those of another patient: if a column tells rows apart, all; images that are not blank.
        if other.images is not None:
            telling: IntArray = alike[np.fromiter((len(np.unique(image)) >= SHADES for image in other._pixels(alike)), bool)]
        else:
            telling = alike if any(map(_tells_rows_apart, (column for _, column in other.frame[:ROWS_OF_A_COLUMN].items()))) else alike[:0]
        if len(telling):
            return telling
        from scipy.special import pdtrc  # late: few sets have equal rows

        expected = len(self.ids) * len(other.ids) * self._chance_of_equal(other)
        return alike if len(alike) and pdtrc(len(alike) - 1, expected) < CHANCE_OF_EQUAL_ROWS else alike[:0]

    def _chance_of_equal(self, other: "Identities") -> float:
        """The probability that two rows of different patients are equal, by the pairs of equal rows within each set; never zero."""
        equal, pairs = 1.0, 1.0
        for hashes in (self._hashes(), other._hashes()):
            counts = np.unique(hashes, return_counts=True)[1].astype(np.float64)
            equal += float((counts * (counts - 1)).sum() / 2)
            pairs += len(hashes) * (len(hashes) - 1) / 2
        return min(1.0, equal / pairs)

    def _hashes(self, at: IntArray | None = None, whole: bool = True) -> HashArray:
        """A hash of each row, or of those at these positions; without `whole`, of a few columns or a line in the middle of an image."""
        if self.images is not None:
            images = self._pixels(np.arange(len(self.ids)) if at is None else at, whole)
            return np.fromiter((int.from_bytes(blake2b(image.tobytes(), digest_size=8).digest(), "little") for image in images), np.uint64)
        frame = self.frame if whole else self.frame.iloc[:, :FIRST_COLUMNS]
        frame = frame if at is None else frame.iloc[at]
        total = np.zeros(len(frame), np.uint64)
        for _, column in frame.items():  # numbers by their value, whatever their type
            if pd.api.types.is_numeric_dtype(column) or pd.api.types.is_bool_dtype(column):
                values: Any = column.to_numpy(dtype=np.float64, na_value=np.nan) + 0.0
            else:
                values = column.astype(object).where(column.notna(), "").map(str).to_numpy(dtype=object)
            total = splitmix64(total ^ pd.util.hash_array(values))
        return total

    def _pixels(self, at: IntArray, whole: bool = True) -> Iterator[npt.NDArray[np.uint8]]:
        """The bytes of these images one after another, so that few are in memory."""
        images, positions = cast(npt.NDArray[Any], self.images), cast(IntArray, self.positions)
        middle = images.shape[-2] // 2
        for row in positions[at]:
            image = np.asarray(images[row])
            yield np.ascontiguousarray(image if whole or image.ndim < 2 else image[..., middle, :]).view(np.uint8).reshape(-1)


def _tells_rows_apart(column: "pd.Series[Any]") -> bool:
    """Whether the values of a column tell rows apart."""
    if column.dtype.kind != "f":
        return False
    values = column.dropna().to_numpy(dtype=np.float64)
    if len(values) < FEWEST_ROWS or len(np.unique(values)) < TELLING_SHARE * len(values):
        return False
    many_digits = [float(f"{value:.{TELLING_DIGITS}g}") != value for value in values[:FEWEST_ROWS].tolist()]
    return bool(np.mean(many_digits) >= TELLING_SHARE)


@dataclass(frozen=True)
class Shared:
    """How many patients, or rows, of one set are in another one, of how many, and some of them."""

    count: int
    of: int
    unit: str
    examples: tuple[str, ...] = ()

    def words(self, test: str, fitted: str, remedy: str = "Remove them from one of the two") -> str:
        """The problem in words, from the names of both sets, and what to do."""
        more = ", ..." if self.count > len(self.examples) else ""
        if self.unit == "rows":
            remedy += "; if they are of different patients, name the patients with --patient (patient=)"
        return (
            f"{self.count:,} of {self.of:,} {self.unit} of {test} are also in {fitted} ({', '.join(self.examples)}{more}), so results on "
            f"them would be too good. {remedy}"
        )


def check_apart(**sets: Grouped | None) -> None:
    """Raises `BadInput` with the patients, or rows, that two of these sets have in common. Keywords are roles: training, repair, test.

    >>> from equipoise.data import Scores
    >>> scores = Scores.from_arrays([1, 0] * 50, np.arange(100) / 100, ["F", "F", "M", "M"] * 25)
    >>> repair, test = scores.hold_out(0.3)
    >>> check_apart(repair=repair, test=test)
    """
    given = {role: rows for role, rows in sets.items() if rows is not None}
    by_rows = any(rows.patients is None for rows in given.values())  # only patient ids on both sides make their content unnecessary
    known = {role: Identities.of(rows, content=by_rows) for role, rows in given.items()}
    problems = []
    for earlier, later in combinations(known, 2):
        if (shared := known[earlier].shared_with(known[later])).count:
            problems.append(shared.words(*(f"the {role} set {known[role].name!r}" for role in (later, earlier))))
    raise_all(problems)
