"""What outputs may show without disclosing few patients: groups with enough of them, and decisions at other thresholds.

**Groups.** The numbers of the groups of an attribute add up to those of all patients, and the intersections in a group to those of the
group. So it is not enough to withhold the numbers of a group with fewer than `least` patients: subtraction would give them back. An audit
therefore

- leaves the rows outside of the groups shown out of everything, if they belong to fewer than `least` patients in all: they are in no sum
- withholds further intersections, the smallest first, until those withheld in every group, and in all, have at least `least` patients
  together, and no single one of the small ones follows from the equations between the sums.

The numbers of rows remain: they say nothing about labels, decisions or scores.

**Thresholds.** Readers of an audit page can move the threshold. Two neighbouring thresholds differ by the patients whose scores lie between
them, so a fine grid would single out patients, such as the one woman with the finding who scores between 0.41 and 0.42. For each group and
label, a threshold is therefore kept only if no rows, or rows of at least `least` patients, lie between it and its neighbours, which
include the threshold in use, whose rates the audit reports anyway, and both ends. Between two kept thresholds, a rate lies between its
values there. A group and label with fewer patients in total is left out, and so is the mean score of fewer patients.

With several attributes, the counts of the groups of each add up to the same total, so a count left out for one group could be recovered by
subtraction. The groups of all attributes therefore share their thresholds. Attributes that would leave too few thresholds are left out, the
last one first, and so are attributes that are missing in other rows than the first attribute is.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np
import pandas as pd

from equipoise.data import Attribute, BoolArray, FloatArray, GroupConflicts, IntArray, Scores
from equipoise.measures.cells import distinct_keys, kish, normalise_weights, ratio, sums_at
from equipoise.measures.measure_table import PERFORMANCE, RATES, measure_of, missed_case_worth
from equipoise.measures.moments import units_of
from equipoise.measures.thresholds import Rule

MOST_WITHHELD = 4096  # intersections up to which the equations are solved; beyond that, all are withheld
SOLUTION_ROUNDING = 1e-9  # rounding error of the solutions of the equations
BY_THRESHOLD = ["attribute", "group", "label", "threshold", "above", "score"]
STEPS_BY_GROUP = ["group", "threshold", "above_positive", "above_negative", "score"]
MIN_BETWEEN = 5  # patients between two thresholds; more if the audit requires more per cell
HUNDREDTHS = tuple(round(k / 100, 2) for k in range(1, 100))
MOST_QUANTILES = 100  # further thresholds at quantiles, in case most scores are small or large
ROWS_BETWEEN = 20  # minimum number of rows between two quantiles
MIN_SHARED = 15  # thresholds shared by several attributes; with fewer, the last attribute is left out
HALF_VARIANCE = 0.25  # the variance of a rate of one half
Z_95 = 1.96


@dataclass(frozen=True, eq=False)
class ShownGroups:
    """An attribute without the rows of the groups that are withheld, and what is known of its groups."""

    attribute: Attribute  # rows of withheld groups count as missing
    missing: float  # share of all rows without a group
    rows: IntArray  # (groups,) rows of each group: those that are shown, or all rows of a group that is withheld
    withheld: BoolArray  # (groups,)
    complement: BoolArray  # (groups,) of those withheld, groups with enough patients from which smaller ones would follow


class Counted(NamedTuple):
    """Numbers of each attribute, and last of the intersection if there are several."""

    rows: list[IntArray]  # (groups,)
    patients: list[IntArray]  # (groups + 1,); the last are those with rows without a group
    outside: list[IntArray]  # (groups,) patients with rows that are in no intersection


class Countable(Protocol):
    """Rows whose groups are counted, wherever they are."""

    @property
    def whole(self) -> tuple[int, int | None, Sequence[int], bool]:
        """The rows, the patients, the patients with several groups of each attribute, and whether rows have weights."""

    def combinations(self) -> IntArray:
        """The intersections that have rows, as positions among all combinations of groups."""

    def by_group(self, counts: "GroupCounts") -> Counted:
        """The numbers of the rows that are in any sum."""


@dataclass(frozen=True, eq=False)
class CountedScores:
    """Scores in memory, to be counted."""

    scores: Scores

    @property
    def whole(self) -> tuple[int, int | None, Sequence[int], bool]:
        scores = self.scores
        patients = None if scores.patients is None else int(units_of(scores.patients, len(scores)).max(initial=-1)) + 1
        return len(scores), patients, scores.varying, scores.weight is not None

    def combinations(self) -> IntArray:
        found = np.unique(_combinations(self.scores))
        return found[found >= 0]

    def by_group(self, counts: "GroupCounts") -> Counted:
        kept = counts.kept(self.scores)
        codes = [each[kept] for each in counts.codes(self.scores)]
        units = None if self.scores.patients is None else units_of(self.scores.patients, len(self.scores))[kept]
        lost = codes[-1] < 0
        found = Counted([], [], [])
        for each, attribute in zip(codes, counts.attributes, strict=True):
            n = len(attribute.levels)
            found.rows.append(np.bincount(each[each >= 0], minlength=n))
            found.patients.append(_patients_by_group(each, units, n))
            found.outside.append(_patients_by_group(each[lost], None if units is None else units[lost], n)[:-1])
        return found


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
    def of(cls, attributes: Sequence[Attribute], table: Countable, least: int, crossed: bool = True) -> "GroupCounts":
        """The counts of a table, with the intersection of its attributes if `crossed`.

        Rows are counted again while groups fall below `least` patients because of rows that are left out.
        """
        cells, groups, members = np.zeros(1, np.int64), tuple(attributes), None
        if len(attributes) > 1 and crossed:
            cells = np.union1d(cells, table.combinations())
            members = np.stack(np.unravel_index(cells, tuple(len(a.levels) for a in attributes)), axis=1)
            groups += (Attribute.crossed([replace(a, codes=codes) for a, codes in zip(attributes, members.T, strict=True)]),)
        none = [np.zeros(len(a.levels) + 1, dtype=bool) for a in groups]
        counts = cls(groups, cells, none[: len(attributes)], [each[:-1] for each in none])
        counts.rows, counts.patients, varied, counts.weighted = table.whole
        conflicts = [(a, int(n) if a.conflicts == "row" else a.varied) for a, n in zip(attributes, varied, strict=True)]
        counts.varying = tuple(GroupConflicts(a.name, n, a.conflicts) for a, n in conflicts if n and counts.patients is not None)
        changed = True
        while changed:
            counts.rows_shown, patients, outside = table.by_group(counts)
            counts.rows_by_group, changed = counts.rows_by_group or counts.rows_shown, False
            for k, each in enumerate(patients[: len(attributes)]):
                small: BoolArray = np.append(each[:-1] < least, True)
                if 0 < int(each[small].sum()) < least and not small.all():
                    counts.left_out[k], changed = counts.left_out[k] | (small & (each > 0)), True
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
        if len(self.attributes) > len(codes):
            cell = _combinations(part)
            codes.append(np.where(cell < 0, -1, np.searchsorted(self.cells, cell)))
        return [np.where(np.append(hidden, True)[each], -1, each) for each, hidden in zip(codes, self.withheld, strict=True)]

    def shown(self, k: int, codes: IntArray) -> ShownGroups:
        """What is known of the groups of an attribute, or of the intersection, with the groups of some rows."""
        rows, shown = self.rows_by_group[k], np.where(self.withheld[k], 0, self.rows_shown[k])
        hidden = (rows > 0) & (shown == 0)
        missing = (self.rows - int(rows.sum())) / max(self.rows, 1)
        attribute = replace(self.attributes[k], codes=codes)
        return ShownGroups(attribute, missing, np.where(hidden, rows, shown), hidden, self.withheld[k] & ~self.small[k])


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
    groups: tuple[ShownGroups, ...]  # of each attribute, and last of their intersection if there are several
    counts: GroupCounts

    @property
    def attributes(self) -> list[Attribute]:
        """The attributes, and last their intersection if there are several."""
        return [each.attribute for each in self.groups]

    def like(self, other: Scores) -> Scores:
        """Other scores of the same rows, restricted in the same way."""
        return replace(other if self.kept.all() else other.take(self.kept), attributes=self.scores.attributes)


def shown_scores(scores: Scores, least: int, crossed: bool = True) -> ShownScores:
    """The rows and groups of scores that outputs may show: groups of at least `least` patients, and no others by subtraction.

    >>> scores = Scores.from_arrays([1, 0] * 6, [0.5] * 12, ["F"] * 6 + ["M"] * 5 + ["X"])
    >>> shown_scores(scores, 5).kept.tolist() == [True] * 11 + [False], bool(shown_scores(scores, 6).kept.all())  # of 6, M and X together
    (True, True)
    """
    counts = GroupCounts.of(scores.attributes, CountedScores(scores), least, crossed)
    kept = counts.kept(scores)
    groups = tuple(counts.shown(k, codes[kept]) for k, codes in enumerate(counts.codes(scores)))
    attributes = tuple(each.attribute for each in groups[: len(scores.attributes)])
    return ShownScores(replace(scores if kept.all() else scores.take(kept), attributes=attributes), kept, groups, counts)


def _patients_by_group(codes: IntArray, units: IntArray | None, groups: int) -> IntArray:
    """The number of patients of each group, and last that of patients with rows without a group (groups + 1,); of rows without units."""
    place = np.where(codes < 0, groups, codes)
    if units is not None and len(units):
        width = int(units.max()) + 1
        place = distinct_keys(place * width + units, (groups + 1) * width)[0] // width
    return np.bincount(place, minlength=groups + 1)


def _withheld_intersections(
    patients: IntArray, members: IntArray, outside: Sequence[IntArray], small: Sequence[BoolArray], least: int
) -> BoolArray:
    """The intersections that are withheld (cells,).

    `patients` are those of each intersection and `members` its group of each attribute (cells, attributes); `outside` are the patients of
    each group of each attribute whose rows are in no intersection, and `small` the groups whose own numbers are withheld.
    """
    hidden = (patients > 0) & (patients < least)
    if hidden.sum() > MOST_WITHHELD:
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
    equations[:, : len(cells)] = [line[cells] for line, _ in lines]
    equations[beyond, len(cells) + np.arange(len(beyond))] = 1.0
    equations[-1, len(cells) :] = 1.0
    _, size, directions = np.linalg.svd(equations, full_matrices=False)
    leverage = (directions[size > SOLUTION_ROUNDING * size.max(initial=1.0)] ** 2).sum(0)[
        : len(cells)
    ]  # 1 if the equations have one solution for it
    for cell in cells[(leverage > 1 - SOLUTION_ROUNDING) & (patients[cells] < least)]:
        near: BoolArray = free & np.any([line for line, _ in lines if line[cell]], axis=0)
        if free.any():
            return near if near.any() else free
    return np.zeros_like(hidden)


class _Counted(NamedTuple):
    """The rows of each group and label of some attributes, counted between the thresholds of a grid."""

    grid: FloatArray  # candidate thresholds
    names: list[tuple[str, str, int]]  # attribute, group and label of each cell: of each group, the label 1 and then 0
    sums: FloatArray  # (4, cells, bins): rows; patients, each in one bin only; weights; weighted scores

    @classmethod
    def of(cls, scores: Scores, attributes: Sequence[Attribute], cuts: Iterable[float]) -> "_Counted":
        """The grid is hundredths, rounded quantiles of the scores, and the cuts of the rule, above 0 and up to 1."""
        count = min(MOST_QUANTILES, len(scores) // ROWS_BETWEEN)
        quantiles = np.quantile(scores.score, np.arange(1, count) / count) if count > 1 else np.zeros(0)
        rounded = [float(f"{q:.2g}") if q <= 0.5 else round(1 - float(f"{1 - q:.2g}"), 12) for q in quantiles]
        grid = np.array(sorted({t for t in (*HUNDREDTHS, *rounded, *cuts) if 0 < t <= 1}), dtype=np.float64)
        units, weight = units_of(scores.patients, len(scores)), normalise_weights(scores.weight)
        bins, width = np.searchsorted(grid, scores.score, side="right"), len(grid) + 1
        one = np.ones(len(scores))
        w = one if weight is None else weight
        sums = []
        for a in attributes:
            cell = a.codes * 2 + 1 - scores.y
            known = np.flatnonzero(a.codes >= 0)
            first = known[np.unique(cell[known] * (int(units.max(initial=0)) + 1) + units[known], return_index=True)[1]]
            for rows, values in ((known, one), (first, one), (known, w), (known, w * scores.score)):
                sums.append(sums_at(cell[rows] * width + bins[rows], values[rows], 2 * len(a.levels) * width).reshape(-1, width))
        names = [(a.name, level, label) for a in attributes for level in a.levels for label in (1, 0)]
        return cls(grid, names, np.stack([np.concatenate(sums[k::4]) for k in range(4)]))

    def kept(self, chosen: Sequence[int], cuts: Sequence[float], least: int) -> list[int]:
        """The thresholds that are kept for all of these cells, by position: the cuts, and those with enough patients on both sides."""
        rows, patients = np.pad(self.sums[:2, list(chosen)].cumsum(-1), ((0, 0), (0, 0), (1, 0)))
        forced = [int(np.searchsorted(self.grid, cut)) for cut in cuts if 0 < cut <= 1]  # at other cuts, all patients are decided alike

        def enough(low: slice, high: slice) -> BoolArray:
            """Whether every cell has no row, or enough patients, in the bins from each of `low` to below each of `high`."""
            empty, many = rows[:, low] == rows[:, high], patients[:, high] - patients[:, low] >= least
            return np.asarray((empty | many).all(0))

        kept: list[int] = []
        for start, stop in pairwise(sorted({0, *(place + 1 for place in forced), len(self.grid) + 1})):  # bin k + 1 begins at threshold k
            if start:
                kept.append(start - 1)
            last, at = slice(stop, stop + 1), start
            while (both := enough(slice(at, at + 1), slice(at + 1, stop)) & enough(slice(at + 1, stop), last)).any():
                at += int(both.argmax()) + 1
                kept.append(at - 1)
        empty = (np.diff(rows[:, [0, *(place + 1 for place in kept), len(self.grid) + 1]]) == 0).all(0)
        return [place for place, left, right in zip(kept, empty, empty[1:], strict=False) if place in forced or not (left and right)]

    def steps(self, chosen: int | list[int], kept: Sequence[int]) -> tuple[FloatArray, FloatArray]:
        """Zero and the kept thresholds, and the sums of these cells between each of them and the next."""
        return np.append(0.0, self.grid[list(kept)]), np.add.reduceat(self.sums[:, chosen], [0, *(place + 1 for place in kept)], axis=-1)


def by_threshold(scores: Scores, rule: Rule, least: int) -> pd.DataFrame:
    """One row per attribute, group, label and threshold, the first of which is 0.

    `above` is the number of rows (by weight) with at least that score, `score` the mean score of those below the next threshold.

    >>> from equipoise.measures import Threshold
    >>> rng = np.random.default_rng(0)
    >>> scores = Scores.from_arrays(rng.integers(0, 2, 400), rng.random(400), rng.choice(["F", "M"], 400))
    >>> table = by_threshold(scores, Threshold(0.5), 5)
    >>> cell = table[(table["group"] == "F") & (table["label"] == 1)]
    >>> steps = -cell["above"].diff().dropna()
    >>> bool(((steps == 0) | (steps >= 5)).all()), float(cell["threshold"].iloc[0]), 0.5 in cell["threshold"].values
    (True, 0.0, True)
    """
    enough = max(least, MIN_BETWEEN)
    attributes = [a for a in scores.attributes if np.array_equal(a.codes < 0, scores.attributes[0].codes < 0)]
    shared = () if rule.shared is None else (float(rule.shared),)
    while True:
        single = len(attributes) == 1
        cuts = {level: shared or _reported_cuts(rule, level) for level in attributes[0].levels} if single else {"": shared}
        cells = _Counted.of(scores, attributes, chain(*cuts.values()))
        if single:
            kept = [cells.kept([k], cuts[group], enough) for k, (_, group, _) in enumerate(cells.names)]
            break
        by_label = [cells.kept([k for k, name in enumerate(cells.names) if name[2] == label], shared, enough) for label in (0, 1)]
        if min(map(len, by_label)) >= MIN_SHARED:
            kept = [by_label[label] for _, _, label in cells.names]
            break
        attributes = attributes[:-1]
    frames = [pd.DataFrame(columns=BY_THRESHOLD)]
    for k, (name, places) in enumerate(zip(cells.names, kept, strict=True)):
        thresholds, (_, patients, mass, score) = cells.steps(k, places)
        if patients.sum() >= enough:
            numbers = thresholds, mass[::-1].cumsum()[::-1], np.where(patients >= enough, ratio(score, mass), np.nan)
            frames.append(pd.DataFrame(dict(zip(BY_THRESHOLD, (*name, *numbers), strict=True))))
    return pd.concat(frames[1:] or frames, ignore_index=True)


def steps_by_group(scores: Scores, attribute: Attribute, rule: Rule, least: int) -> pd.DataFrame:
    """One row per group and threshold, for figures: the number of rows (by weight) of each label with at least that score, and the sum of
    the scores below the next threshold.

    Between two thresholds of a group, each label has no rows or those of at least `least` patients; a group with fewer patients of a label
    is left out. Figures of the same scores share these steps, so that comparing them does not disclose a few patients either.

    - `attribute`: whose groups are drawn.
    - `rule`: its thresholds are among those of the steps.
    """
    enough, cuts = max(least, MIN_BETWEEN), [_reported_cuts(rule, level) for level in attribute.levels]
    cells, frames = _Counted.of(scores, [attribute], chain(*cuts)), [pd.DataFrame(columns=STEPS_BY_GROUP)]
    for k, level in enumerate(attribute.levels):
        both = [2 * k, 2 * k + 1]
        thresholds, (_, patients, mass, score) = cells.steps(both, cells.kept(both, cuts[k], enough))
        if patients.sum(1).min() >= enough:
            numbers = thresholds, *mass[:, ::-1].cumsum(1)[:, ::-1], score.sum(0)
            frames.append(pd.DataFrame(dict(zip(STEPS_BY_GROUP, (level, *numbers), strict=True))))
    return pd.concat(frames[1:] or frames, ignore_index=True)


def _reported_cuts(rule: Rule, group: str) -> tuple[float, ...]:
    """The threshold of a group at which the audit reports rates; empty if the rule has several or is randomised."""
    cuts = rule.cuts(group)
    return cuts if len(cuts) == 1 and not rule.randomised else ()


def table_to_dict(table: pd.DataFrame) -> dict[str, dict[str, dict[str, dict[str, list[float | None]]]]]:
    """The table as plain values: by attribute, group and label, lists of thresholds, rows above and mean scores."""
    document: dict[str, dict[str, dict[str, dict[str, list[float | None]]]]] = {}
    for (attribute, group, label), rows in table.groupby(["attribute", "group", "label"], sort=False):
        lists = {name: [None if np.isnan(v) else float(v) for v in rows[name]] for name in BY_THRESHOLD[3:]}
        document.setdefault(str(attribute), {}).setdefault(str(group), {})[str(label)] = lists
    return document


def table_from(plain: Mapping[str, Any]) -> pd.DataFrame:
    """The table from its plain values."""
    frames = [
        pd.DataFrame({"attribute": attribute, "group": group, "label": int(label), **lists}, columns=BY_THRESHOLD)
        for attribute, groups in plain.items()
        for group, labels in groups.items()
        for label, lists in labels.items()
    ]
    if not frames:
        return pd.DataFrame(columns=BY_THRESHOLD)
    return pd.concat(frames, ignore_index=True).astype(dict.fromkeys(BY_THRESHOLD[3:], float))


def margin(scores: Scores, measure: str) -> float | None:
    """Half of the widest interval of a gap, balanced accuracy or accuracy, known before the decisions are.

    It is that of rates of one half, for the effective number of patients, whose weight is the mean weight of their rows. None if a cell is
    empty, and for other measures: they are no sums of rates, or the decisions select the patients.

    >>> scores = Scores.from_arrays([1, 0] * 800, [0.5] * 1600, ["F"] * 800 + ["M"] * 800, reference="M")
    >>> round(margin(scores, "eod"), 4), round(margin(scores, "balanced_accuracy"), 4)  # 1.96 * sqrt(0.5 / 400), ...
    (0.0693, 0.0245)
    """
    shares: dict[str, list[tuple[float, int | None, int | None]]]  # weight, group and label of each rate; None: any
    shares = {"balanced_accuracy": [(0.5, None, 1), (0.5, None, 0)], "accuracy": [(1.0, None, None)]}
    sums = [shares[measure]] if measure in shares else []
    if measure not in PERFORMANCE and missed_case_worth(measure) is None and not measure_of(measure).is_quotient:
        others = range(1, len(scores.attribute.levels))
        sums = [[(w, code, RATES[rate]) for rate, w in measure_of(measure).rates.items() for code in (0, other)] for other in others]
    units, variances = units_of(scores.patients, len(scores)), []
    for rates in sums:
        variances.append(0.0)
        for sign, code, label in rates:
            rows = np.flatnonzero((code is None or scores.attribute.codes == code) & (label is None or scores.y == label) & (units >= 0))
            if not len(rows):
                return None
            count = np.bincount(units[rows])
            weight = count.astype(np.float64) if scores.weight is None else sums_at(units[rows], scores.weight[rows], len(count))
            mean = weight[count > 0] / count[count > 0]
            variances[-1] += sign**2 * HALF_VARIANCE / float(kish(mean.sum(), (mean**2).sum()))
    return Z_95 * float(max(variances) ** 0.5) if variances else None
