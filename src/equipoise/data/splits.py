"""Patient-safe, stratified train, validation and test sets; and those of the paper's chest X-ray experiments.

Appendix "Implementation Details" of the paper: 50 % train, 25 % validation and 25 % test by patient; in every set positives and negatives
are balanced; the reference group makes up 75 % of train and 50 % of validation and of test. Here both hold at once in every set, so the
label and the group are independent in it. With more than two groups, all but the reference count as one.

`fold_parts` is a second protocol for small data, with more power: five folds by patient, each of them the whole test set once. The folds
of one assignment are pooled, so that every patient is in a test set once, for a network trained on others.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar
from zlib import crc32

import numpy as np
import pandas as pd

from equipoise.data.attribute import MISSING, Attribute, FloatArray, IntArray, ObjectArray, main_group
from equipoise.data.cohort import Cohort
from equipoise.data.table import Encoder, Table
from equipoise.errors import BadInput, Misuse, collecting, raise_all


def generator(seed: int, name: str) -> np.random.Generator:
    """The random generator of one purpose: the same for the same seed and name, independent of all others.

    >>> int(generator(0, "split").integers(100)) == int(generator(0, "split").integers(100))
    True
    """
    return np.random.default_rng([seed, crc32(name.encode())])


def child_seed(seed: int, name: str) -> int:
    """A whole number below 2**31 for libraries that take one."""
    return int(generator(seed, name).integers(2**31))


FOLDS = 5  # of `fold_parts`


class Grouped(Protocol):
    """Rows with labels, groups and patients: a cohort, or scores."""

    @property
    def y(self) -> IntArray: ...
    @property
    def attributes(self) -> tuple[Attribute, ...]: ...
    @property
    def attribute(self) -> Attribute: ...
    @property
    def patients(self) -> ObjectArray | None: ...
    @property
    def ids(self) -> ObjectArray: ...
    @property
    def name(self) -> str: ...


Same = TypeVar("Same", bound=Grouped)


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
    """Train, validation and test sets of a cohort, by patient where there are patient ids, stratified by label and group.

    For tables, levels and scales are learned from the training set; levels that only the other sets hold are listed in `unseen`.
    """
    check_cohort("eq.split", cohort)
    shares = np.asarray(fractions, dtype=float)
    if shares.shape != (3,) or (shares <= 0).any() or not np.isclose(shares.sum(), 1.0):
        raise BadInput(f"fractions must be three positive numbers that add up to 1, for train, validation and test; got {tuple(fractions)}")
    unit = _units(cohort)
    part = assign_units(_strata(cohort, unit), np.bincount(unit), shares, generator(seed, "split"))[unit]
    if len(np.unique(part)) < 3:
        raise _too_few(cohort, unit, f"for sets of {tuple(fractions)}")
    return parted(cohort, part)


def check_cohort(call: str, given: object) -> None:
    """Raises where something else than a cohort is given, with the call that takes it."""
    if isinstance(given, Cohort):
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
    raise Misuse(call, "a Cohort", given, advice)


def parted(cohort: Cohort, part: IntArray) -> Parts:
    """The three sets by the number (n,) of each row's: 0, 1 or 2. Tables are encoded by the first of them."""
    names = ("train", "valid", "test")
    train, valid, test = (cohort.take(np.flatnonzero(part == k), f"{cohort.name}/{name}") for k, name in enumerate(names))
    _check_disjoint(train, valid, test)
    if not isinstance(cohort.source, Table):
        return Parts(train, valid, test)
    assert isinstance(train.source, Table)
    encoder = Encoder.fit(train.source.frame, scale=train.source.scale)
    unseen = {}
    for name, piece in (("valid", valid), ("test", test)):
        assert isinstance(piece.source, Table)
        if new := encoder.unseen(piece.source.frame):
            unseen[name] = new
    return Parts(train.encoded_by(encoder), valid.encoded_by(encoder), test.encoded_by(encoder), unseen)


def hold_out(cohort: Cohort, fraction: float = 0.3, *, seed: int = 0) -> tuple[Cohort, Cohort]:
    """The repair set of a cohort, and this fraction of its patients held out as the test set.

    By patient and stratified, as `split`; where patients have different numbers of rows, the fraction is one of patients. Nothing is
    learned from either set: a table keeps the encoding that it has, because the network was trained elsewhere.
    """
    if not 0 < fraction < 1:
        raise BadInput(f"the fraction to hold out must lie between 0 and 1; got {fraction}")
    unit = _units(cohort)
    shares = np.array([1 - fraction, fraction, 0.0])
    part = assign_units(_strata(cohort, unit), np.ones(unit.max() + 1, np.int64), shares, generator(seed, "keep aside"))[unit]
    if isinstance(cohort.source, Table):
        cohort = cohort.encoded_by(cohort.source.fitted())
    repair, test = (cohort.take(np.flatnonzero(part == k), f"{cohort.name}/{name}") for k, name in ((0, "repair"), (1, "test")))
    if not len(repair) or not len(test):
        raise _too_few(cohort, unit, f"to hold out {fraction:g} of them")
    _check_disjoint(repair, test)
    return repair, test


def same_groups(repair: Same, test: Same) -> Same:
    """The test set with its groups numbered as those of the repair set; an error where groups are new or patients are in both."""
    problems = []
    mine, theirs = (set(() if part.patients is None else part.patients) for part in (repair, test))
    if both := len(mine & theirs):
        problems.append(
            f"{both:,} of {len(theirs):,} patients of {test.name!r} are also in {repair.name!r}; a test set is of other patients. "
            "Remove their rows from one of the files, or omit --test, which holds out patients of the first file"
        )
    attributes = []
    for own, other in zip(repair.attributes, test.attributes, strict=True):
        if new := [level for level in other.levels if level not in own.levels]:
            known = ", ".join(map(repr, own.levels))
            problems.append(
                f"{test.name!r} has groups of {own.name!r} that {repair.name!r} lacks: {', '.join(map(repr, new))}; known: {known}"
            )
            continue
        codes = np.array([*(own.levels.index(level) for level in other.levels), MISSING])
        attributes.append(replace(other, levels=own.levels, codes=codes[other.codes]))
    raise_all(problems)
    again: Any = test  # a cohort, or scores: both are dataclasses
    numbered: Same = replace(again, attributes=tuple(attributes))
    return numbered


def assign_folds(cohort: Grouped, folds: int, rng: np.random.Generator) -> IntArray:
    """The fold (n,) of each row. A patient is in one fold, and so is a duplicated row; groups and labels are spread evenly."""
    unit, distinct = pd.factorize(cohort.ids if cohort.patients is None else cohort.patients)
    place = np.empty(len(distinct), np.int64)
    # In the order of the names, whatever the order of the rows; without leading zeros, as when ids were numbers, so that folds stay.
    place[sorted(range(len(distinct)), key=lambda k: (str(distinct[k]).lstrip("0"), str(distinct[k])))] = np.arange(len(distinct))
    unit = place[unit]
    first = np.unique(unit, return_index=True)[1]
    stratum = 2 * main_group(cohort.attribute.codes, unit) + cohort.y[first]
    shuffled = rng.permutation(len(first))
    order = shuffled[np.argsort(stratum[shuffled], kind="stable")]
    fold = np.empty(len(first), np.int64)
    fold[order] = np.arange(len(first)) % folds
    rows: IntArray = fold[unit]
    return rows


def _too_few(cohort: Cohort, unit: IntArray, what: str) -> BadInput:
    held = "rows" if cohort.patients is None else f"patients in {len(cohort):,} rows"
    return BadInput(f"{unit.max() + 1:,} {held} of {cohort.name!r} are too few {what}. Use more data.")


def _units(cohort: Cohort) -> IntArray:
    """What is assigned as a whole: a patient, or a row where there are no patient ids."""
    if cohort.patients is None:
        return np.arange(len(cohort))
    return np.asarray(pd.factorize(cohort.patients)[0], dtype=np.int64)


def _strata(cohort: Cohort, unit: IntArray) -> IntArray:
    """The stratum of each unit: the group of most of its rows, and whether any is positive; of classes, the last class among its rows."""
    classes = cohort.targets is not None and cohort.kind == "classes"
    level = cohort.targets.argmax(1) if cohort.targets is not None and classes else cohort.y
    positive = np.zeros(unit.max() + 1, np.int64)
    np.maximum.at(positive, unit, level)
    return (main_group(cohort.attribute.codes, unit) + 1) * (len(cohort.labels) if classes else 2) + positive


def assign_units(stratum: IntArray, size: IntArray, shares: FloatArray, rng: np.random.Generator) -> IntArray:
    """The set (0, 1, 2) of each unit.

    Each stratum's units are shuffled and spread evenly over (0, 1); cutting that order at the row counts of the sets
    gives every set its share of each stratum, and the sets exactly the requested sizes where every unit is one row.
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
    """A patient in two sets would leak; this is checked, not trusted."""
    seen: set[object] = set()
    for part in parts:
        if part.patients is None:
            return
        here = set(part.patients)
        if seen & here:
            raise AssertionError(f"patients in two sets: {sorted(map(str, seen & here))[:5]}")
        seen |= here


def balanced_parts(
    cohort: Cohort,
    *,
    seed: int = 0,
    fractions: Sequence[float] = (0.5, 0.25, 0.25),
    privileged: Sequence[float] = (0.75, 0.5, 0.5),
) -> Parts:
    """Train, validation and test sets by patient, each thinned at random to the largest size with the requested balance.

    `privileged` is the share of the reference group in each set. Rows without a group are left out.
    """
    shares = np.asarray(privileged, dtype=float)
    if shares.shape != (3,) or not ((shares > 0) & (shares < 1)).all():
        raise BadInput(f"privileged must be three shares between 0 and 1, for train, validation and test; got {tuple(privileged)}")
    parts = split(cohort.take(cohort.attribute.codes != MISSING), seed=seed, fractions=fractions)
    return _thinned(parts, shares.tolist(), seed, cohort.name)


def _thinned(parts: Parts, shares: Sequence[float | None], seed: int, source: str) -> Parts:
    """The sets with balanced labels and these shares of the reference group; a set without a share stays as it is."""
    thin: list[Cohort] = []
    problems: list[str] = []
    for name, part, share in zip(("train", "valid", "test"), parts, shares, strict=True):
        with collecting(problems):
            thin.append(part if share is None else part.take(_balanced(part, share, name, generator(seed, f"balance {name}"))))
    raise_all(problems, source)
    train, valid, test = thin
    return Parts(train, valid, test, parts.unseen)


def fold_parts(cohort: Cohort, *, seed: int = 0, privileged: Sequence[float] = (0.75, 0.5, 0.5)) -> Parts:
    """One of five folds: seeds 0 to 4 are the folds of the first assignment of patients, 5 to 9 those of the second, and so on.

    The fold itself is the test set, as it is; the next one is the validation set and the other three are the training set, both thinned
    at random to balanced labels and these shares of the reference group (the third is not used). Rows without a group are left out.
    """
    known = cohort.take(cohort.attribute.codes != MISSING)
    assignment, fold = divmod(seed, FOLDS)
    after = (assign_folds(known, FOLDS, generator(assignment, "folds")) - fold) % FOLDS  # 0 is the fold itself, 1 the next
    if (there := len(np.unique(after))) < FOLDS:
        raise BadInput(f"{there} patients of {cohort.name!r} are too few for {FOLDS} folds. Use more data.")
    parts = parted(known, np.where(after == 0, 2, np.where(after == 1, 1, 0)))
    return _thinned(parts, (*privileged[:2], None), seed, cohort.name)


def _balanced(part: Cohort, share: float, name: str, rng: np.random.Generator) -> IntArray:
    """Positions of a random choice with as many positives as negatives and this share of the reference group in either, in order."""
    other = part.attribute.codes > 0
    cells = {(g, y): np.flatnonzero((other == bool(g)) & (part.y == y)) for g in (0, 1) for y in (0, 1)}
    portion = {0: share, 1: 1 - share}
    each = int(min(len(rows) / portion[g] for (g, _), rows in cells.items()) + 1e-9)  # positives, and as many negatives
    size = {0: round(each * share), 1: each - round(each * share)}
    if min(size.values()) < 1:
        names = {0: repr(part.attribute.reference), 1: " or ".join(map(repr, part.attribute.others))}
        least = min(len(rows) / portion[g] for (g, _), rows in cells.items())
        raise BadInput(
            *(
                f"the {name} set has {len(rows)} {'positives' if y else 'negatives'} in {names[g]}, too few for a share of "
                f"{portion[g]:.0%}. Use more data, other fractions or another share."
                for (g, y), rows in cells.items()
                if len(rows) / portion[g] == least
            )
        )
    chosen = np.sort(np.concatenate([rng.choice(rows, size[g], replace=False) for (g, _), rows in cells.items()]))
    # The balance is the point of the protocol: checked, not trusted.
    if part.y[chosen].sum() * 2 != len(chosen) or abs((~other[chosen]).mean() - share) > 0.5 / each + 1e-9:
        raise AssertionError(f"{name}: {part.y[chosen].mean():.3f} positive, {(~other[chosen]).mean():.3f} {part.attribute.reference}")
    return np.asarray(chosen, dtype=np.int64)
