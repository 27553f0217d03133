"""Rows that two sets have in common, by which training, repair and test sets are kept apart.

Patients are compared by their ids. Without patient ids, rows are compared: by their ids, if the ids of both sets count the same rows, and
otherwise by what they contain. Different patients can have equal rows, above all in tables of few and coarse columns. Rows therefore count
as the same if a column tells rows apart (numbers of many digits that hardly repeat; the pixels of an image), or if more of them are equal
than the repeated rows within each set explain.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pandas as pd

from equipoise.data.attribute import BoolArray, IntArray, ObjectArray
from equipoise.data.cohort import Rows
from equipoise.data.rows import HashArray, splitmix64
from equipoise.errors import raise_all

CHANCE = 1e-4  # probability of as many equal rows of different patients, above which they are not counted
TELLING = 0.95  # share of different values, and of values with more than `DIGITS` digits, in a column that tells rows apart
DIGITS = 5
SAMPLE = 2000  # rows of a column that are looked at for this
FEWEST = 20  # rows; among fewer, values differ by chance
SHADES = 16  # different bytes in an image that is more than a blank one
SHOWN = 5  # examples in a message
FEW_COLUMNS = 4  # by which equal rows of a table are first sought: comparing hundreds of columns takes seconds
Bytes = npt.NDArray[np.uint8]


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

    @classmethod
    def of(cls, rows: Rows, content: bool | None = None) -> "Identities":
        """The identities of these rows; with their content, by default, if they have no patient ids."""
        identities = cls(rows.name, rows.patients, rows.ids)
        if not (rows.patients is None if content is None else content):
            return identities
        kind, stored, positions = rows.content()
        if positions is None:
            return replace(identities, kind=kind, frame=stored)
        return replace(identities, kind=kind, images=stored, positions=positions)

    def __len__(self) -> int:
        return len(self.ids)

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
            return Shared(len(shared), len(theirs), "patients", tuple(shared[:SHOWN]))
        both = [name for name in self.frame.columns if name in other.frame.columns]
        # Decimal numbers first, since these differ most between rows.
        both = sorted(both, key=lambda name: not all(each.frame[name].dtype.kind == "f" for each in (self, other)))
        first, second = (replace(each, frame=each.frame[both]) for each in (self, other))
        places, found = _common(self.ids, other.ids)
        comparable = bool(self.kind) and self.kind == other.kind
        # Without common ids, rows that were numbered together are parts of one set.
        apart = not len(places) and _numbered(self.ids) and _numbered(other.ids)
        if not apart and not (len(places) and first._same_ids(second, places, found, comparable)):
            found = first._equal(second) if comparable else found[:0]
        return Shared(len(found), len(other), "rows", tuple(map(str, other.ids[found[:SHOWN]])))

    def _same_ids(self, other: "Identities", mine: IntArray, theirs: IntArray, comparable: bool) -> bool:
        """Whether the ids of both sets count the same rows: all rows with equal ids are equal, and not by chance."""
        if not comparable:
            return not _numbered(self.ids)
        first = slice(FEWEST)  # most sets that are numbered separately differ here
        if not all(np.array_equal(self._hashes(mine[some]), other._hashes(theirs[some])) for some in (first, slice(None))):
            return False
        return bool(_chance_of_equal(self._hashes(), other._hashes()) ** len(mine) < CHANCE)

    def _equal(self, other: "Identities") -> IntArray:
        """The positions of rows of the other set that are equal to one of these rows, and not by chance."""
        mine, theirs = self._hashes(whole=False), other._hashes(whole=False)
        alike, candidates = np.flatnonzero(np.isin(theirs, mine)), np.flatnonzero(np.isin(mine, theirs))
        if not len(alike):
            return alike
        alike = alike[np.isin(other._hashes(alike), self._hashes(candidates))]  # equal in all that they contain
        telling = alike[other._telling(alike)]
        if len(telling):
            return telling
        from scipy.special import pdtrc  # late: few sets have equal rows

        expected = len(self) * len(other) * _chance_of_equal(self._hashes(), other._hashes())
        return alike if len(alike) and pdtrc(len(alike) - 1, expected) < CHANCE else alike[:0]

    def _telling(self, at: IntArray) -> BoolArray:
        """Which of these rows cannot be equal to those of another patient: if a column tells rows apart, all; images that are not blank."""
        if self.images is not None:
            return np.fromiter((len(np.unique(image)) >= SHADES for image in self._pixels(at)), bool)
        return np.full(len(at), any(_tells_apart(self.frame.iloc[:SAMPLE, k]) for k in range(self.frame.shape[1])))

    def _hashes(self, at: IntArray | None = None, whole: bool = True) -> HashArray:
        """A hash of each row, or of those at these positions; without `whole`, of a few columns or a line in the middle of an image."""
        if self.images is None:
            frame = self.frame if whole else self.frame.iloc[:, :FEW_COLUMNS]
            return _frame_hashes(frame if at is None else frame.iloc[at])
        images = self._pixels(np.arange(len(self)) if at is None else at, whole)
        return np.fromiter((int.from_bytes(blake2b(image.tobytes(), digest_size=8).digest(), "little") for image in images), np.uint64)

    def _pixels(self, at: IntArray, whole: bool = True) -> Iterator[Bytes]:
        """The bytes of these images one after another, so that few are in memory."""
        images, positions = cast(npt.NDArray[Any], self.images), cast(IntArray, self.positions)
        middle = images.shape[-2] // 2
        for row in positions[at]:
            image = np.asarray(images[row])
            yield np.ascontiguousarray(image if whole or image.ndim < 2 else image[..., middle, :]).view(np.uint8).reshape(-1)


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


def check_apart(**sets: Rows | None) -> None:
    """Raises `BadInput` with the patients, or rows, that two of these sets have in common. Keywords are roles: training, repair, test.

    >>> from equipoise.data import Scores
    >>> scores = Scores.from_arrays([1, 0] * 50, np.arange(100) / 100, ["F", "F", "M", "M"] * 25)
    >>> repair, test = scores.hold_out(0.3)
    >>> check_apart(repair=repair, test=test)
    """
    given = {role: rows for role, rows in sets.items() if rows is not None}
    by_rows = any(rows.patients is None for rows in given.values())  # only patient ids on both sides make their content unnecessary
    known = {role: Identities.of(rows, content=by_rows) for role, rows in given.items()}
    roles, problems = list(known), []
    for at, later in enumerate(roles):
        for earlier in roles[:at]:
            shared = known[earlier].shared_with(known[later])
            if shared.count:
                problems.append(shared.words(*(f"the {role} set {known[role].name!r}" for role in (later, earlier))))
    raise_all(problems)


def _numbered(ids: ObjectArray) -> bool:
    """Whether ids may be mere row numbers."""
    return ids.dtype.kind in "iu" or all(isinstance(key, (int, np.integer)) for key in ids)


def _common(first: ObjectArray, second: ObjectArray) -> tuple[IntArray, IntArray]:
    """The positions of equal ids in both sets."""
    if _numbered(first) and _numbered(second):
        _, mine, theirs = np.intersect1d(first.astype(np.int64), second.astype(np.int64), return_indices=True)
        return mine, theirs
    place = {str(key): k for k, key in enumerate(first)}
    found = [(place[key], k) for k, key in enumerate(map(str, second)) if key in place]
    pairs = np.array(found, dtype=np.int64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


def _frame_hashes(frame: pd.DataFrame) -> HashArray:
    """A hash of each row of a frame, whatever the types of its numbers."""
    total = np.zeros(len(frame), np.uint64)
    for position in range(frame.shape[1]):
        column = frame.iloc[:, position]
        if pd.api.types.is_numeric_dtype(column) or pd.api.types.is_bool_dtype(column):
            values: Any = column.to_numpy(dtype=np.float64, na_value=np.nan) + 0.0
        else:
            values = column.astype(object).where(column.notna(), "").map(str).to_numpy(dtype=object)
        total = splitmix64(total ^ pd.util.hash_array(values))
    return total


def _chance_of_equal(first: HashArray, second: HashArray) -> float:
    """The probability that two rows of different patients are equal, by the pairs of equal rows within each set; never zero."""
    equal, pairs = 1.0, 1.0
    for hashes in (first, second):
        counts = np.unique(hashes, return_counts=True)[1].astype(np.float64)
        equal += float((counts * (counts - 1)).sum() / 2)
        pairs += len(hashes) * (len(hashes) - 1) / 2
    return min(1.0, equal / pairs)


def _tells_apart(column: "pd.Series[Any]") -> bool:
    """Whether the values of a column tell rows apart."""
    if column.dtype.kind != "f":
        return False
    values = column.dropna().to_numpy(dtype=np.float64)
    if len(values) < FEWEST or len(np.unique(values)) < TELLING * len(values):
        return False
    many_digits = [float(f"{value:.{DIGITS}g}") != value for value in values[:FEWEST].tolist()]
    return bool(np.mean(many_digits) >= TELLING)
