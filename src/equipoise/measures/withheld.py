"""Groups with too few patients, and the numbers from which theirs would follow.

The numbers of the groups of an attribute add up to those of all patients, and the intersections in a group to those of the group. So it is
not enough to withhold the numbers of a group with fewer than `least` patients: subtraction would give them back. An audit therefore

- leaves the rows outside of the groups shown out of everything, if they belong to fewer than `least` patients in all: they are in no sum
- withholds further intersections, the smallest first, until those withheld in every group, and in all, have at least `least` patients
  together, and no single one of the small ones follows from the equations between the sums.

The numbers of rows remain: they say nothing about labels, decisions or scores.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from equipoise.data import Attribute, BoolArray, IntArray, Scores
from equipoise.measures.cells import FloatArray, grouped
from equipoise.measures.moments import units_of

MOST = 4096  # withheld intersections up to which the equations are solved; beyond that, all are withheld
CLOSE = 1e-9


@dataclass(frozen=True, eq=False)
class Shown:
    """An attribute without the rows of the groups that are withheld, and what is known of its groups."""

    attribute: Attribute  # rows of withheld groups count as missing
    missing: float  # share of all rows without a group
    rows: IntArray  # (groups,) rows of each group: those that are shown, or all rows of a group that is withheld
    withheld: BoolArray  # (groups,)
    complement: BoolArray  # (groups,) of those withheld, groups with enough patients from which smaller ones would follow

    @classmethod
    def of(cls, attribute: Attribute, missing: float, rows: IntArray, rows_shown: IntArray, complement: BoolArray) -> "Shown":
        """From all rows of each group, and those that are shown."""
        withheld = (rows > 0) & (rows_shown == 0)
        return cls(attribute, missing, np.where(withheld, rows, rows_shown), withheld, complement)


def shown_rows(scores: Scores, least: int) -> BoolArray:
    """The rows that are in any sum (n,): without those of fewer than `least` patients who are in none of the groups shown.

    >>> scores = Scores.from_arrays([1, 0] * 6, [0.5] * 12, ["F"] * 6 + ["M"] * 5 + ["X"])
    >>> shown_rows(scores, 5).tolist() == [True] * 11 + [False], bool(shown_rows(scores, 6).all())  # of 6, M and X are withheld together
    (True, True)
    """
    units, kept = _units(scores), np.ones(len(scores), dtype=bool)
    while True:
        counts = [patients_by_group(a.codes[kept], None if units is None else units[kept], len(a.levels)) for a in scores.attributes]
        left_out = groups_left_out(counts, least)
        if not any(outside.any() for outside in left_out):
            return kept
        kept &= ~np.any([outside[a.codes] for a, outside in zip(scores.attributes, left_out, strict=True)], axis=0)


@dataclass(frozen=True, eq=False)
class ShownScores:
    """Scores without the rows that are in no sum; rows of groups that are withheld have no group."""

    scores: Scores
    kept: BoolArray  # (n,) of the rows of the whole table
    groups: tuple[Shown, ...]  # of each attribute, and last of their intersection if there are several

    @property
    def attributes(self) -> list[Attribute]:
        """The attributes, and last their intersection if there are several."""
        return [each.attribute for each in self.groups]

    def like(self, other: Scores) -> Scores:
        """Other scores of the same rows, restricted in the same way."""
        return replace(other if self.kept.all() else other.take(self.kept), attributes=self.scores.attributes)


def shown_scores(scores: Scores, least: int) -> ShownScores:
    """The rows and groups of scores that outputs may show: groups of at least `least` patients, and no others by subtraction."""
    kept = shown_rows(scores, least)
    groups = tuple(shown_attributes(scores, kept, least))
    attributes = tuple(each.attribute for each in groups[: len(scores.attributes)])
    return ShownScores(replace(scores if kept.all() else scores.take(kept), attributes=attributes), kept, groups)


def _units(scores: Scores) -> IntArray | None:
    return None if scores.patients is None else units_of(scores.patients, len(scores))


def patients_by_group(codes: IntArray, units: IntArray | None, groups: int) -> IntArray:
    """The number of patients of each group, and last that of patients with rows without a group (groups + 1,); of rows without units."""
    place = np.where(codes < 0, groups, codes)
    if units is not None and len(units):
        width = int(units.max()) + 1
        place = grouped(place * width + units, (groups + 1) * width)[0] // width
    return np.bincount(place, minlength=groups + 1)


def groups_left_out(counts: Sequence[IntArray], least: int) -> list[BoolArray]:
    """The groups of each attribute, and last the rows without one, that must not be in any sum (groups + 1,)."""
    left_out = []
    for patients in counts:
        outside = np.append(patients[:-1] < least, True)
        few = 0 < int(patients[outside].sum()) < least and not outside.all()
        left_out.append(outside & few & (patients > 0))
    return left_out


def shown_attributes(scores: Scores, kept: BoolArray, least: int) -> list[Shown]:
    """Every attribute on the kept rows, and last their intersection if there are several, without the groups that are withheld."""
    all_units = _units(scores)
    units = None if all_units is None else all_units[kept]
    counts = [patients_by_group(a.codes[kept], units, len(a.levels)) for a in scores.attributes]
    small = [patients[:-1] < least for patients in counts]
    shown = [_shown(a, kept, hidden, hidden) for a, hidden in zip(scores.attributes, small, strict=True)]
    if len(scores.attributes) > 1:
        crossed = Attribute.crossed(scores.attributes)
        codes = crossed.codes[kept]
        patients = patients_by_group(codes, units, len(crossed.levels))
        members = np.full((len(crossed.levels), len(scores.attributes)), -1)
        known = codes >= 0
        members[codes[known]] = np.stack([a.codes[kept][known] for a in scores.attributes], axis=1)
        others = None if units is None else units[~known]
        outside = [patients_by_group(a.codes[kept][~known], others, len(a.levels))[:-1] for a in scores.attributes]
        hidden = withheld_intersections(patients[:-1], members, outside, small, least)
        shown.append(_shown(crossed, kept, hidden, patients[:-1] < least))
    return shown


def _shown(attribute: Attribute, kept: BoolArray, withheld: BoolArray, small: BoolArray) -> Shown:
    codes = attribute.codes[kept]
    masked = np.where(np.append(withheld, True)[codes], -1, codes)
    rows, shown = (np.bincount(each[each >= 0], minlength=len(attribute.levels)) for each in (attribute.codes, masked))
    return Shown.of(replace(attribute, codes=masked), attribute.missing, rows, shown, withheld & ~small)


def withheld_intersections(
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


def with_row_counts(groups: pd.DataFrame, shown: Shown) -> pd.DataFrame:
    """The frame of groups with the rows of each; positives and negatives are missing for those that are withheld."""
    if not shown.withheld.any():
        return groups.assign(n=shown.rows)
    counts: dict[str, object] = {name: groups[name].astype("Int64").mask(shown.withheld) for name in ("positives", "negatives")}
    sampled = {"sampled": np.where(shown.withheld, shown.rows, groups["sampled"])} if "sampled" in groups else {}
    return groups.assign(n=shown.rows, **counts, **sampled)
