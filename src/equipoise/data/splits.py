"""Patient-safe, stratified training, validation and test sets."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pandas as pd

from equipoise.data.attribute import MISSING, FloatArray, IntArray, main_group, patient_codes
from equipoise.data.cohort import Cohort
from equipoise.data.rows import Grouped
from equipoise.errors import BadInput, Misuse, raise_all


def generator(seed: int, name: str) -> np.random.Generator:
    """The random generator for one purpose: the same for the same seed and name, independent of those with other names.

    >>> int(generator(0, "split").integers(100)) == int(generator(0, "split").integers(100))
    True
    """
    return np.random.default_rng([seed, crc32(name.encode())])


def child_seed(seed: int, name: str) -> int:
    """An integer seed below 2**31, for libraries that need one."""
    return int(generator(seed, name).integers(2**31))


RowsT = TypeVar("RowsT", bound=Grouped)
HashArray = npt.NDArray[np.uint64]


def splitmix64(numbers: HashArray) -> HashArray:
    """The numbers scattered over 64 bits; equal numbers give equal results (the finaliser of splitmix64)."""
    x = numbers + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@dataclass(frozen=True, eq=False)
class Parts:
    """The three sets of one cohort; no patient is in two of them."""

    train: Cohort
    valid: Cohort
    test: Cohort
    unseen: dict[str, dict[str, dict[str, int]]] = field(default_factory=dict, repr=False)  # set: column: level: rows

    def __iter__(self) -> Iterator[Cohort]:
        return iter((self.train, self.valid, self.test))


def split(cohort: Cohort, *, seed: int = 0, fractions: Sequence[float] = (0.6, 0.2, 0.2)) -> Parts:
    """Training, validation and test sets of a cohort, by patient if there are patient ids, stratified by label and group.

    For tables, levels and scales are learned from the training set; levels that occur only in the other sets are listed in `unseen`.
    """
    check_cohort("eq.split", cohort)
    shares = np.asarray(fractions, dtype=float)
    if shares.shape != (3,) or (shares <= 0).any() or not np.isclose(shares.sum(), 1.0):
        raise BadInput(f"fractions must be three positive numbers that add up to 1, for train, validation and test; got {tuple(fractions)}")
    unit = np.arange(len(cohort)) if cohort.patients is None else patient_codes(cohort.patients)
    part = assign_units(_strata([cohort], unit), np.bincount(unit), shares, generator(seed, "split"))[unit]
    if len(np.unique(part)) < 3:
        raise _too_few(cohort, unit, f"for sets of {tuple(fractions)}")
    return make_parts(cohort, part)


def check_cohort(call: str, value: object) -> None:
    """Raises `Misuse` unless the argument is a cohort, and names the call to use instead."""
    if isinstance(value, Cohort):
        return
    advice = {
        "Scores": "Scores are audited as they are: eq.audit(scores).",
        "DataFrame": "Make a cohort of the frame first: eq.Cohort.from_frame(frame, label=..., group=..., patient=...).",
        "Parts": "These are three cohorts already: parts.train, parts.valid and parts.test.",
        "Module": "A network is not data. Make a cohort: eq.Cohort.from_frame(...), from_images(...) or eq.load(...).",
        "Tensor": "Make a cohort of it first: eq.Cohort.from_arrays(inputs, y, groups).",
        "ndarray": "Make a cohort of it first: eq.Cohort.from_arrays(inputs, y, groups).",
        "str": "A data set of the catalogue is loaded by its name: eq.load(name).",
    }
    raise Misuse(call, "a Cohort", value, advice)


def make_parts(cohort: Cohort, part: IntArray) -> Parts:
    """The sets of a cohort from the number (n,) of each row's set: 0, 1 or 2. Tables are encoded by the training set."""
    names = ("train", "valid", "test")
    train, valid, test = (cohort.take(np.flatnonzero(part == k), f"{cohort.name}/{name}") for k, name in enumerate(names))
    _check_disjoint(train, valid, test)
    encoder = train.source.fitted(again=True)
    if encoder is None:
        return Parts(train, valid, test)
    unseen = {name: levels for name, part in (("valid", valid), ("test", test)) if (levels := encoder.unseen(part.source.plain()))}
    return Parts(train.encoded_by(encoder), valid.encoded_by(encoder), test.encoded_by(encoder), unseen)


def hold_out(rows: RowsT, fraction: float = 0.3, *, seed: int = 0) -> tuple[RowsT, RowsT]:
    """The repair set of these rows, and the test set with this fraction of their patients; see `hold_out_each`."""
    (repair,), (test,) = hold_out_each([rows], fraction, seed=seed)
    return repair, test


def hold_out_each(sets: Sequence[RowsT], fraction: float = 0.3, *, seed: int = 0) -> tuple[list[RowsT], list[RowsT]]:
    """The repair sets and the test sets of the rows of one or several labels; no patient is in both for any label.

    Split by patient and stratified, like `split`, except that the fraction is one of patients and not of rows. Without patient ids, rows
    are split, whose id must be the same for every label. No encoder is fitted to either set: a table keeps its encoding, because the
    network was trained elsewhere.
    """
    if not 0 < fraction < 1:
        raise BadInput(f"the fraction to hold out must lie between 0 and 1; got {fraction}")
    sets = [rows.fixed() for rows in sets]
    unit = np.asarray(pd.factorize(np.concatenate([rows.ids if rows.patients is None else rows.patients for rows in sets]))[0], np.int64)
    shares = np.array([1 - fraction, fraction, 0.0])
    part = assign_units(_strata(sets, unit), np.ones(unit.max() + 1, np.int64), shares, generator(seed, "keep aside"))[unit]
    parts: list[list[RowsT]] = [[], []]
    ends = np.cumsum([len(rows) for rows in sets])
    for rows, own in zip(sets, np.split(part, ends[:-1]), strict=True):
        for k, name in enumerate(("repair", "test")):
            parts[k].append(rows.take(np.flatnonzero(own == k), f"{rows.name}/{name}"))
            if not len(parts[k][-1]):
                raise _too_few(rows, unit, f"to hold out {fraction:g} of them")
    return parts[0], parts[1]


def same_groups(repair: RowsT, test: RowsT) -> RowsT:
    """The test set with the group codes of the repair set; raises `BadInput` if it has new groups."""
    problems, attributes = [], []
    for expected, attribute in zip(repair.attributes, test.attributes, strict=True):
        if new := [level for level in attribute.levels if level not in expected.levels]:
            problems.append(
                f"{test.name!r} has groups of {expected.name!r} that {repair.name!r} lacks: {', '.join(map(repr, new))}; "
                f"known: {', '.join(map(repr, expected.levels))}"
            )
            continue
        new_codes = np.array([*(expected.levels.index(level) for level in attribute.levels), MISSING])
        attributes.append(replace(attribute, levels=expected.levels, codes=new_codes[attribute.codes]))
    raise_all(problems)
    rows: Any = test  # a dataclass, whether a cohort or scores
    recoded: RowsT = replace(rows, attributes=tuple(attributes))
    return recoded


def assign_folds(cohort: Grouped, folds: int, rng: np.random.Generator) -> IntArray:
    """The fold (n,) of each row. All rows of a patient, and duplicated rows, are in one fold; groups and labels are spread evenly."""
    unit, names = pd.factorize(cohort.ids if cohort.patients is None else cohort.patients)
    # Units are sorted by name, so that folds do not depend on the order of the rows. Leading zeros are ignored, as if ids were numbers.
    order = sorted(range(len(names)), key=lambda k: (str(names[k]).lstrip("0"), str(names[k])))
    unit = np.argsort(order)[unit]
    first_row = np.unique(unit, return_index=True)[1]
    stratum = 2 * main_group(cohort.attribute.codes, unit) + cohort.y[first_row]
    shuffled = rng.permutation(len(first_row))
    by_stratum = shuffled[np.argsort(stratum[shuffled], kind="stable")]
    fold = np.empty(len(first_row), np.int64)
    fold[by_stratum] = np.arange(len(first_row)) % folds
    rows: IntArray = fold[unit]
    return rows


def _too_few(rows: Grouped, unit: IntArray, purpose: str) -> BadInput:
    what = "rows" if rows.patients is None else f"patients in {len(rows):,} rows"
    return BadInput(f"{unit.max() + 1:,} {what} of {rows.name!r} are too few {purpose}. Use more data.")


def _strata(sets: Sequence[Grouped], unit: IntArray) -> IntArray:
    """The stratum of each unit: its most frequent group, combined with its largest label or the last class among its rows."""
    levels = max(2, len(sets[0].labels)) if sets[0].kind.argmax else 2
    largest = np.zeros(unit.max() + 1, np.int64)
    np.maximum.at(largest, unit, np.concatenate([rows.outcome for rows in sets]))
    return (main_group(np.concatenate([rows.attribute.codes for rows in sets]), unit) + 1) * levels + largest


def assign_units(stratum: IntArray, size: IntArray, shares: FloatArray, rng: np.random.Generator) -> IntArray:
    """The set (0, 1, 2) of each unit.

    The units of each stratum are shuffled and spread evenly over (0, 1). Cutting that order at the sizes of the sets gives every set its
    share of each stratum, and exactly the requested size if every unit is one row.
    """
    order = rng.permutation(len(stratum))
    order = order[np.argsort(stratum[order], kind="stable")]
    counts = np.bincount(stratum)
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    rank = np.empty(len(stratum))
    rank[order] = np.arange(len(stratum)) - starts[stratum[order]]
    offset = rng.random(len(counts))
    spread = (rank + offset[stratum]) / counts[stratum]
    along = np.argsort(spread, kind="stable")
    n = int(size.sum())
    first = int(shares[0] * n + 1e-9)
    second = first + int((n - first) * shares[1] / (shares[1] + shares[2]) + 1e-9)
    before = np.cumsum(size[along]) - size[along]
    part = np.empty(len(stratum), np.int64)
    part[along] = np.searchsorted([first, second], before, side="right")
    return part


def _check_disjoint(*parts: Cohort) -> None:
    """Raises `AssertionError` if a patient is in two sets, which would be a leak."""
    seen: set[object] = set()
    for part in parts:
        if part.patients is None:
            return
        patients = set(part.patients)
        if seen & patients:
            raise AssertionError(f"patients in two sets: {sorted(map(str, seen & patients))[:5]}")
        seen |= patients
