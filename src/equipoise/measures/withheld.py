"""Groups with too few patients, and the numbers from which theirs would follow.

The numbers of the groups of an attribute add up to those of all patients, and the intersections in a group to those of the group. So it is
not enough to withhold the numbers of a group with fewer than `least` patients: subtraction would give them back. An audit therefore

- leaves the rows outside of the groups shown out of everything, if they belong to fewer than `least` patients in all: they are in no sum
- withholds further intersections, the smallest first, until those withheld in every group, and in all, have at least `least` patients
  together, and no single one of the small ones follows from the equations between the sums.

The numbers of rows remain: they say nothing about labels, decisions or scores.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from equipoise.data import Attribute, BoolArray, GroupConflicts, IntArray, Scores, patients_varying
from equipoise.measures.cells import FloatArray, grouped
from equipoise.measures.moments import units_of

MOST = 4096  # withheld intersections up to which the equations are solved; beyond that, all are withheld
CLOSE = 1e-9
Parts = Callable[[], Iterable[Scores]]  # reads the rows of a table part by part, each with all rows of its patients


@dataclass(frozen=True, eq=False)
class Shown:
    """An attribute without the rows of the groups that are withheld, and what is known of its groups."""

    attribute: Attribute  # rows of withheld groups count as missing
    missing: float  # share of all rows without a group
    rows: IntArray  # (groups,) rows of each group: those that are shown, or all rows of a group that is withheld
    withheld: BoolArray  # (groups,)
    complement: BoolArray  # (groups,) of those withheld, groups with enough patients from which smaller ones would follow

    def with_row_counts(self, groups: pd.DataFrame) -> pd.DataFrame:
        """The frame of groups with the rows of each; positives and negatives are missing for those that are withheld."""
        if not self.withheld.any():
            return groups.assign(n=self.rows)
        counts: dict[str, object] = {name: groups[name].astype("Int64").mask(self.withheld) for name in ("positives", "negatives")}
        if "sampled" in groups:
            counts["sampled"] = np.where(self.withheld, self.rows, groups["sampled"])
        return groups.assign(n=self.rows, **counts)


@dataclass(eq=False)
class GroupCounts:
    """The rows and patients of every group of a table, and which groups are withheld. Lists have one entry per attribute."""

    attributes: tuple[Attribute, ...]  # those of the table, and last their intersection if there are several
    cells: IntArray  # the intersections that have rows, as positions among all combinations of groups
    left_out: list[BoolArray]  # of each attribute of the table (groups + 1,): groups, and last rows without one, that are in no sum
    withheld: list[BoolArray]  # groups with too few patients, and intersections from which theirs would follow
    small: Sequence[BoolArray] = ()  # groups with too few patients
    rows_by_group: Sequence[IntArray] = ()  # in the whole table
    rows_shown: Sequence[IntArray] = ()  # without those that are left out
    rows: int = 0
    patients: int | None = None
    varying: tuple[GroupConflicts, ...] = ()  # attributes of which some patients have more than one group
    weighted: bool = False

    @classmethod
    def of(cls, attributes: Sequence[Attribute], parts: Parts, least: int) -> "GroupCounts":
        """The counts of a table; parts are read again while groups fall below `least` patients because of rows that are left out."""
        cells, groups, members = np.zeros(1, np.int64), tuple(attributes), None
        if len(attributes) > 1:
            found = {0}.union(*(pd.unique(_combinations(part)).tolist() for part in parts())) - {-1}
            cells = np.array(sorted(found), dtype=np.int64)
            members = np.stack(np.unravel_index(cells, tuple(len(a.levels) for a in attributes)), axis=1)
            groups += (Attribute.crossed([replace(a, codes=codes) for a, codes in zip(attributes, members.T, strict=True)]),)
        none = [np.zeros(len(a.levels) + 1, dtype=bool) for a in groups]
        counts = cls(groups, cells, none[: len(attributes)], [each[:-1] for each in none])
        while True:
            first, varied = not counts.rows, np.zeros(len(attributes), np.int64)
            rows, outside = ([np.zeros(len(a.levels), np.int64) for a in groups] for _ in range(2))
            patients = [np.zeros(len(a.levels) + 1, np.int64) for a in groups]
            for part in parts():
                kept, unit = counts.kept(part), None if part.patients is None else units_of(part.patients, len(part))
                codes, units = [each[kept] for each in counts.codes(part)], None if unit is None else unit[kept]
                lost = codes[-1] < 0
                for n, total, beyond, each in zip(rows, patients, outside, codes, strict=True):
                    n += np.bincount(each[each >= 0], minlength=len(n))
                    total += _patients_by_group(each, units, len(n))
                    beyond += _patients_by_group(each[lost], None if units is None else units[lost], len(n))[:-1]
                if first:
                    counts.rows, counts.weighted = counts.rows + len(part), part.weight is not None
                    counts.patients = None if unit is None else (counts.patients or 0) + int(unit.max(initial=-1)) + 1
                    varied += [patients_varying(a, part.patients) for a in part.attributes]
            counts.rows_shown = rows
            if first:
                counts.rows_by_group = rows
                conflicts = [(a, int(n) if a.conflicts == "row" else a.varied) for a, n in zip(attributes, varied, strict=True)]
                counts.varying = tuple(GroupConflicts(a.name, n, a.conflicts) for a, n in conflicts if n and counts.patients is not None)
            more = [_left_out(each, least) for each in patients[: len(attributes)]]
            if not any(each.any() for each in more):
                break
            counts.left_out = [before | new for before, new in zip(counts.left_out, more, strict=True)]
        counts.small = [each[:-1] < least for each in patients]
        counts.withheld = list(counts.small)
        if members is not None:
            counts.withheld[-1] = _withheld_intersections(patients[-1][:-1], members, outside[:-1], counts.small[:-1], least)
        return counts

    def kept(self, part: Scores) -> BoolArray:
        """The rows of a part that are in any sum: without those of fewer than `least` patients who are in none of the groups shown."""
        kept: BoolArray = ~np.any([outside[a.codes] for a, outside in zip(part.attributes, self.left_out, strict=True)], axis=0)
        return kept

    def codes(self, part: Scores) -> list[IntArray]:
        """The groups of the rows of a part: of each attribute, and of their intersection if there are several; -1 if withheld."""
        codes = [a.codes for a in part.attributes]
        if len(codes) > 1:
            cell = _combinations(part)
            codes.append(np.where(cell < 0, -1, np.searchsorted(self.cells, cell)))
        return [np.where(np.append(hidden, True)[each], -1, each) for each, hidden in zip(codes, self.withheld, strict=True)]

    def shown(self, k: int, codes: IntArray) -> Shown:
        """What is known of the groups of an attribute, or of the intersection, with the groups of some rows."""
        rows, shown = self.rows_by_group[k], np.where(self.withheld[k], 0, self.rows_shown[k])
        hidden = (rows > 0) & (shown == 0)
        missing = (self.rows - int(rows.sum())) / max(self.rows, 1)
        attribute = replace(self.attributes[k], codes=codes)
        return Shown(attribute, missing, np.where(hidden, rows, shown), hidden, self.withheld[k] & ~self.small[k])


def _combinations(part: Scores) -> IntArray:
    """The intersection of every row, as a position among all combinations of groups; -1 if a group is missing."""
    codes = np.stack([a.codes for a in part.attributes])
    missing = (codes < 0).any(axis=0)
    flat = np.ravel_multi_index(tuple(np.where(missing, 0, codes)), tuple(len(a.levels) for a in part.attributes))
    return np.where(missing, -1, flat)


@dataclass(frozen=True, eq=False)
class ShownScores:
    """Scores without the rows that are in no sum; rows of groups that are withheld have no group."""

    scores: Scores
    kept: BoolArray  # (n,) of the rows of the whole table
    groups: tuple[Shown, ...]  # of each attribute, and last of their intersection if there are several
    counts: GroupCounts

    @property
    def attributes(self) -> list[Attribute]:
        """The attributes, and last their intersection if there are several."""
        return [each.attribute for each in self.groups]

    def like(self, other: Scores) -> Scores:
        """Other scores of the same rows, restricted in the same way."""
        return replace(other if self.kept.all() else other.take(self.kept), attributes=self.scores.attributes)


def shown_scores(scores: Scores, least: int) -> ShownScores:
    """The rows and groups of scores that outputs may show: groups of at least `least` patients, and no others by subtraction.

    >>> scores = Scores.from_arrays([1, 0] * 6, [0.5] * 12, ["F"] * 6 + ["M"] * 5 + ["X"])
    >>> shown_scores(scores, 5).kept.tolist() == [True] * 11 + [False], bool(shown_scores(scores, 6).kept.all())  # of 6, M and X together
    (True, True)
    """
    counts = GroupCounts.of(scores.attributes, lambda: [scores], least)
    kept = counts.kept(scores)
    groups = tuple(counts.shown(k, codes[kept]) for k, codes in enumerate(counts.codes(scores)))
    attributes = tuple(each.attribute for each in groups[: len(scores.attributes)])
    return ShownScores(replace(scores if kept.all() else scores.take(kept), attributes=attributes), kept, groups, counts)


def _patients_by_group(codes: IntArray, units: IntArray | None, groups: int) -> IntArray:
    """The number of patients of each group, and last that of patients with rows without a group (groups + 1,); of rows without units."""
    place = np.where(codes < 0, groups, codes)
    if units is not None and len(units):
        width = int(units.max()) + 1
        place = grouped(place * width + units, (groups + 1) * width)[0] // width
    return np.bincount(place, minlength=groups + 1)


def _left_out(patients: IntArray, least: int) -> BoolArray:
    """The groups of an attribute, and last the rows without one, that must not be in any sum (groups + 1,)."""
    outside = np.append(patients[:-1] < least, True)
    few = 0 < int(patients[outside].sum()) < least and not outside.all()
    left_out: BoolArray = outside & few & (patients > 0)
    return left_out


def _withheld_intersections(
    patients: IntArray, members: IntArray, outside: Sequence[IntArray], small: Sequence[BoolArray], least: int
) -> BoolArray:
    """The intersections that are withheld (cells,).

    `patients` are those of each intersection and `members` its group of each attribute (cells, attributes); `outside` are the patients of
    each group of each attribute whose rows are in no intersection, and `small` the groups whose own numbers are withheld.
    """
    hidden = (patients > 0) & (patients < least)
    if hidden.sum() > MOST:
        return np.asarray(patients > 0)
    lines = [(members[:, a] == k, int(outside[a][k])) for a, none in enumerate(small) for k in np.flatnonzero(~none)]
    lines.append((members[:, 0] >= 0, max((int(each.sum()) for each in outside), default=0)))
    while hidden.any():
        candidates = _needed(patients, hidden, lines, least)
        if not candidates.any():
            break
        hidden[np.flatnonzero(candidates)[patients[candidates].argmin()]] = True
    return hidden


def _needed(patients: IntArray, hidden: BoolArray, lines: Sequence[tuple[BoolArray, int]], least: int) -> BoolArray:
    """The intersections one of which has to be withheld as well (cells,); none if the small ones do not follow from the others."""
    free = ~hidden & (patients > 0)
    for line, outside in lines:
        if 0 < int(patients[hidden & line].sum()) + outside < least and (free & line).any():
            return free & line
    cells = np.flatnonzero(hidden)
    beyond = [k for k, (_, outside) in enumerate(lines[:-1]) if outside]
    equations: FloatArray = np.zeros((len(lines), len(cells) + len(beyond)))
    for k, (line, _) in enumerate(lines):
        equations[k, : len(cells)] = line[cells]
    equations[beyond, len(cells) + np.arange(len(beyond))] = 1.0
    equations[-1, len(cells) :] = 1.0
    _, size, directions = np.linalg.svd(equations, full_matrices=False)
    leverage = (directions[size > CLOSE * size.max(initial=1.0)] ** 2).sum(0)[: len(cells)]  # 1 if the equations have one solution for it
    for cell in cells[(leverage > 1 - CLOSE) & (patients[cells] < least)]:
        near: BoolArray = free & np.any([line for line, _ in lines if line[cell]], axis=0)
        if free.any():
            return near if near.any() else free
    return np.zeros_like(hidden)
