"""Rows of patients: what a cohort and scores have in common, and how their patients are divided at random."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self, TypeVar
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pandas as pd

from equipoise.data.attribute import MISSING, Attribute, FloatArray, IntArray, ObjectArray, main_group
from equipoise.data.column_values import UNNAMED
from equipoise.data.columns import LabelKind
from equipoise.errors import BadInput, raise_all

ARRAYS = ("y", "targets", "score", "logit", "patients", "ids", "weight")  # fields with one entry per row
INPUTS = ("source", "features")  # fields whose rows are taken by their own `take`


class Grouped:
    """Rows with a label, groups and patients: a `Cohort` or `Scores`, which are frozen dataclasses with these fields."""

    y: IntArray
    attributes: tuple[Attribute, ...]
    patients: ObjectArray | None
    ids: ObjectArray
    name: str
    weight: FloatArray | None
    labels: tuple[str, ...] = UNNAMED
    kind: LabelKind = LabelKind.LABELS

    def __len__(self) -> int:
        return len(self.y)

    @property
    def attribute(self) -> Attribute:
        """The protected attribute; with several columns, their intersection."""
        return Attribute.crossed(self.attributes)

    @property
    def groups(self) -> ObjectArray:
        """The group of each row by name, None where it is missing."""
        return self.attribute.names

    @property
    def several(self) -> bool:
        """Whether the labels have names, by which the outputs of a network are chosen."""
        return self.labels != UNNAMED

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
        return self.y

    def fixed(self) -> Self:
        """These rows with their own encoding of a table, which all parts of them keep."""
        return self

    @property
    def by_label(self) -> dict[str, Self]:
        """The rows in which each label is known, with that label only, by name; the name of the only label is empty."""
        return {label: self.labelled(label) for label in self.labels}

    def take(self, index: object, name: str | None = None) -> Self:
        """The selected rows, by position or mask."""
        rows = np.arange(len(self))[np.asarray(index)]
        there = {field: values for field in (*ARRAYS, *INPUTS) if (values := getattr(self, field, None)) is not None}
        taken = {field: values.take(rows) if field in INPUTS else values[rows] for field, values in there.items()}
        this: Any = self  # a dataclass
        selected: Self = replace(this, name=name or self.name, attributes=tuple(a.take(rows) for a in self.attributes), **taken)
        return selected


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
    part = assign_units(strata(sets, unit), np.ones(unit.max() + 1, np.int64), shares, generator(seed, "keep aside"))[unit]
    parts: list[list[RowsT]] = [[], []]
    ends = np.cumsum([len(rows) for rows in sets])
    for rows, own in zip(sets, np.split(part, ends[:-1]), strict=True):
        for k, name in enumerate(("repair", "test")):
            parts[k].append(rows.take(np.flatnonzero(own == k), f"{rows.name}/{name}"))
            if not len(parts[k][-1]):
                raise too_few(rows, unit, f"to hold out {fraction:g} of them")
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


def too_few(rows: Grouped, unit: IntArray, purpose: str) -> BadInput:
    what = "rows" if rows.patients is None else f"patients in {len(rows):,} rows"
    return BadInput(f"{unit.max() + 1:,} {what} of {rows.name!r} are too few {purpose}. Use more data.")


def strata(sets: Sequence[Grouped], unit: IntArray) -> IntArray:
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
