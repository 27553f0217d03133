"""Audits of tables on disk, in memory that does not grow with the number of rows.

Several labels of one table are read together and estimated one after another, in the memory of one; they are one family of comparisons.
A table of up to `HELD` rows is audited in memory, exactly. A larger one is written to files that each hold all rows of their patients, and
is audited by sums over these files:

- rates, gaps, their intervals and tests, accuracy, balanced accuracy and F1 follow from sums by patient and their second moments, which
  can be added: the numbers are the same as in memory
- Brier score and calibration in the large are means over rows, so they follow from such sums too
- AUROC and average precision come from counts of scores in narrow bins
- calibration intercept, slope and error, operating points and decision curves, and the test of a group with few patients, use a random
  sample of whole patients of at least `SAMPLED` rows of each group, or all rows of a smaller group. Their intervals are those of that
  sample, and the audit states its size (`sampled`).
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from equipoise.data import (
    Attribute,
    BoolArray,
    GroupConflicts,
    IntArray,
    LabelKind,
    Scan,
    Scores,
    Stored,
    patients_varying,
    read_labels,
    row_numbers,
)
from equipoise.errors import BadInput
from equipoise.measures.audit import Audit
from equipoise.measures.audit_spec import DERIVED, AuditSpec
from equipoise.measures.auditing import (
    AttributeEstimates,
    Progress,
    UntestedAudit,
    assemble,
    require_decided_cells,
    spec_of_no_finding,
    tested_together,
    untested_audit,
)
from equipoise.measures.calibration import Scored
from equipoise.measures.cells import Cells, FloatArray, grouped, ratio
from equipoise.measures.estimates import Estimate, performance_limits
from equipoise.measures.intervals import Limits, auroc_design_effect, auroc_interval, fewer_clusters, wilson
from equipoise.measures.moments import Moments, moments_of, units_of
from equipoise.measures.no_finding import NO_FINDING, NoneOf, none_of_rows, require_several_labels
from equipoise.measures.performance import aurocs
from equipoise.measures.permutation import large_cell_p_values, p_values
from equipoise.measures.score_measures import (
    SAMPLED,
    SCORE_BINS,
    TAIL,
    Binned,
    Losses,
    ScoreMeasures,
    bins_of,
    estimate_scores,
    everyone,
    losses_of,
    rows_by_group,
    with_losses,
)
from equipoise.measures.thresholds import Rule
from equipoise.measures.withheld import Shown, groups_left_out, patients_by_group, withheld_intersections

MOST_BINS = 2**22  # of all groups together; with many groups, neighbouring bins are joined


@dataclass(eq=False)
class _Tally:
    """Running sums for the groups of one attribute, with a sample of the rows."""

    groups: int
    bins: int
    moments: Moments = field(init=False)
    losses: Losses = field(init=False)
    bin_width: int = 1  # number of neighbouring bins that are joined
    bin_weights: FloatArray = field(init=False)  # (groups, 2, bins): weight of the rows by label and bin of the score
    bin_counts: FloatArray | None = None  # (groups, 2, bins): number of rows, if there are weights
    binned: Binned = field(init=False)  # from the second pass on

    def __post_init__(self) -> None:
        none = np.zeros(0, np.int64)
        self.moments, self.losses = moments_of(none, none, none, self.groups, none), Losses.zeros(self.groups)
        while 2 * self.groups * (self.bins // self.bin_width + 1) > MOST_BINS:
            self.bin_width *= 2
        self.bin_weights = np.zeros((self.groups, 2, self.bins // self.bin_width + 1))
        self._sampled: list[tuple[Any, ...]] = []
        self._sampled_rows = np.zeros(self.groups, np.int64)
        self._patients = 0

    def add(self, part: Scores, f: FloatArray, bins: IntArray, codes: IntArray, units: IntArray) -> None:
        """Adds the rows of one part, in the first pass."""
        y, score, w = part.y, part.score, part.weight
        self.moments += moments_of(f, y, codes, self.groups, units, w)
        self.losses += losses_of(Scored.of(score, y, codes, self.groups, units, w))
        known, shape = codes >= 0, self.bin_weights.shape
        cell = ((codes * 2 + y) * shape[-1] + bins // self.bin_width)[known]
        self.bin_weights += np.bincount(cell, None if w is None else w[known], self.bin_weights.size).reshape(shape)
        if w is not None:
            counts = np.bincount(cell, minlength=self.bin_weights.size).reshape(shape).astype(np.float64)
            self.bin_counts = counts if self.bin_counts is None else self.bin_counts + counts
        needs_more = np.append(self._sampled_rows < SAMPLED, False)  # the last is of rows without a group
        rows = np.flatnonzero(needs_more[codes])
        weight, logit = (None if values is None else values[rows] for values in (w, part.logit))
        self._sampled.append((y[rows], score[rows], f[rows], codes[rows], units[rows] + self._patients, weight, logit))
        self._sampled_rows += np.bincount(codes[rows], minlength=self.groups)
        self._patients += int(units.max(initial=-1)) + 1

    def rank(self) -> None:
        """Computes AUROC and average precision, whose variances between patients need a second pass."""
        self.binned = Binned.of(self.bin_weights, self.bin_counts)

    def sums(self, groups: IntArray, attribute: Attribute, name: str, *, has_patients: bool) -> "_AttributeSums":
        """The sums of the groups that have rows; `groups` are their codes here, in the order of the attribute."""
        code = np.full(self.groups + 1, -1)
        code[groups] = np.arange(len(groups))
        columns: list[Any] = [None if column[0] is None else np.concatenate(column) for column in zip(*self._sampled, strict=True)]
        y, score, f, codes, units, weight, logit = columns
        units = grouped(units, self._patients)[1]
        sampled = replace(attribute, codes=code[codes])
        patients: Any = units if has_patients else None  # numbers instead of ids
        sample = Scores(y, score, (sampled,), patients, row_numbers(len(y)), name, weight, logit=logit)
        return _AttributeSums(self.moments.taken(groups), self.losses.taken(groups), self.binned, groups, sample, units, f)


@dataclass(frozen=True, eq=False)
class _AttributeSums:
    """Sums over all rows for the groups of one attribute, and a sample of the rows."""

    moments: Moments
    losses: Losses
    binned: Binned
    groups: IntArray  # the code in `binned` of each group
    sample: Scores
    units: IntArray  # patients of the sample
    decisions: FloatArray  # on the sample

    def score_measures(self, spec: AuditSpec) -> ScoreMeasures:
        """The measures of the scores of each group, from the sample, or from sums where these suffice."""
        measures = estimate_scores(self.sample, self.sample.attribute, self.units, spec)
        return with_losses(measures, self.losses, self.moments.rows_of("selection_rate"), spec)

    def aurocs(self, level: float) -> Limits:
        """The AUROC of each group: exact if all its rows are in the sample, else from binned scores."""
        moments, binned = self.moments, self.binned
        exact = aurocs(self.sample, self.sample.attribute, self.units, level)
        complete = rows_by_group(self.sample.attribute) == moments.rows_of("selection_rate")
        value, clustered, unclustered = (each["auroc"][self.groups] for each in (binned.value, binned.variance, binned.unclustered))
        patients, effective = moments.patients("selection_rate"), moments.effective_patients("selection_rate")
        between = clustered * np.where(np.isinf(moments.degrees("selection_rate")), 1.0, ratio(effective, effective - 1))
        rows = [moments.rows_of(name) for name in ("tpr", "fpr")]
        effect = auroc_design_effect(value, between, unclustered, *rows)
        degrees = np.minimum(moments.degrees("tpr"), moments.degrees("fpr"))
        positives, negatives = (fewer_clusters(count / effect, degrees, level) for count in rows)
        approximate = Limits(value, *auroc_interval(value, positives, negatives, level), patients)
        return replace(exact.where(complete, approximate), patients=np.minimum(moments.patients("tpr"), moments.patients("fpr")))

    def performance(self, names: Sequence[str], level: float) -> dict[str, Estimate]:
        """The performance of all rows together, if these are the sums of all rows."""
        moments, binned = self.moments, self.binned
        estimates = {}
        for name in names:
            if name not in binned.value:
                estimates[name] = Estimate(*performance_limits(name, moments, level))
                continue
            value, variance, unclustered = (float(each[name][0]) for each in (binned.value, binned.variance, binned.unclustered))
            positives, negatives = (float(moments.rows_of(rate)[0]) for rate in ("tpr", "fpr"))
            if name == "auroc":
                effect = float(auroc_design_effect(value, variance, unclustered, positives, negatives))
                low, high = auroc_interval(value, positives / effect, negatives / effect, level)
                note = f"from binned scores: off by at most {float(binned.bound[0]):.0e}"
            else:
                low, high = wilson(value, min(positives, value * (1 - value) / variance), level)
                note = "from binned scores"
            estimates[name] = Estimate(value, float(low), float(high), note)
        return estimates

    def p_values(self, measures: Sequence[str], seed: int, comparisons: int) -> list[FloatArray]:
        """The p-value of each gap (groups - 1,), for each measure: from all rows, or from the sample if a cell is small."""
        scores, attribute = self.sample, self.sample.attribute
        found = [large_cell_p_values(self.moments, measure, weighted=scores.weight is not None) for measure in measures]
        if any(np.isnan(p).any() for p in found):
            sampled = p_values(
                *(self.decisions, scores.y, attribute.codes, attribute.levels, scores.patients, measures),
                weight=scores.weight,
                comparisons=comparisons,
                seed=seed,
            )
            found = [np.where(np.isnan(p), sampled[measure], p) for measure, p in zip(measures, found, strict=True)]
        return found


def audit_scans(
    scans: Mapping[str, Scan], rules: Mapping[str, Rule], spec: AuditSpec, progress: Callable[[str], Progress] | None = None
) -> Audit:
    """The audit of the labels of one table on disk, which is read once, each with its own decision rule."""
    derived = None
    with read_labels(scans) as stored:
        untested = {
            label: _untested_audit(rows, rows.parts, rules[label], spec, progress and progress(label)) for label, rows in stored.items()
        }
        first = next(iter(stored.values()))
        if spec.no_finding == DERIVED:
            require_several_labels(scans)
            parts, of_no_finding = partial(_no_finding_parts, first, rules), NoneOf(tuple(rules))
            derived = _untested_audit(
                replace(first, name=NO_FINDING), parts, of_no_finding, spec_of_no_finding(spec), None, has_scores=False
            )
        return tested_together(untested, LabelKind.LABELS, first.name, spec.no_finding, derived)


Parts = Callable[[], Iterator[Scores]]  # reads the rows part by part, each with all rows of its patients


def _no_finding_parts(stored: Stored, rules: Mapping[str, Rule]) -> Iterator[Scores]:
    """Derived decisions on "no finding", part by part, on the rows in which every label is known."""
    for by_label in stored.parts_of_all():
        yield none_of_rows(dict(zip(rules, by_label, strict=True)), rules)


def _untested_audit(
    stored: Stored, parts: Parts, rule: Rule, spec: AuditSpec, progress: Progress | None, *, has_scores: bool = True
) -> UntestedAudit:
    """All estimates of the audit of one label, from its rows if they are in memory; else from three passes: one to count, two to add up."""
    if stored.whole:
        return untested_audit(next(parts()), rule, spec, progress, has_scores=has_scores)
    shape = tuple(len(a.levels) for a in stored.attributes)
    if math.prod(shape) * 2 > MOST_BINS // 16:
        raise BadInput(
            f"the group columns have {math.prod(shape):,} intersections, too many for a table of this size. Audit them one by one."
        )
    done, steps = 0, 2 * stored.count
    counted = _count(stored.attributes, parts, spec.min_patients)

    def advance() -> None:
        nonlocal done
        done += 1
        if progress:
            progress(done, steps)

    tallies = [_Tally(size, SCORE_BINS + 2 * TAIL if stored.logits else SCORE_BINS) for size in _sizes(shape)]
    for table, part, all_codes in counted.shown(parts):
        units, f, bins = units_of(part.patients, len(part)), rule.decide(table), bins_of(part)
        for tally, codes in zip(tallies, all_codes, strict=True):
            tally.add(part, f[counted.kept(table)], bins, codes, units)
        advance()
    for tally in tallies:
        tally.rank()
    for _, part, all_codes in counted.shown(parts):
        units, bins = units_of(part.patients, len(part)), bins_of(part)
        for tally, codes in zip(tallies, all_codes, strict=True):
            tally.binned.add(part.y, bins // tally.bin_width, codes, units, part.weight)
        advance()

    groups = [*counted.groups_with_rows(), (np.zeros(1, np.int64), everyone(0))]
    *attributes, overall = (
        tally.sums(codes, attribute, stored.name, has_patients=counted.has_patients)
        for tally, (codes, attribute) in zip(tallies, groups, strict=True)
    )
    if has_scores:
        require_decided_cells(spec, [_cells(each) for each in attributes[: len(shape)]], stored.name)
    estimates = [
        AttributeEstimates(
            counted.shown_groups(k, each.groups, each.sample.attribute),
            each.moments,
            each.aurocs(spec.level),
            each.score_measures(spec) if has_scores else None,
            partial(each.p_values, spec.gaps, spec.seed),
        )
        for k, each in enumerate(attributes)
    ]
    counts = [int(n) if a.conflicts == "row" else a.varied for a, n in zip(stored.attributes, counted.varied, strict=True)]
    return assemble(
        rule,
        spec,
        estimates,
        overall.performance(spec.performance, spec.level),
        overall.score_measures(spec) if has_scores else None,
        name=stored.name,
        assumed=tuple(a.name for a in stored.attributes if not a.named),
        rows=counted.rows,
        patients=counted.patients if counted.has_patients else None,
        varying=tuple(GroupConflicts(a.name, n, a.conflicts) for a, n in zip(stored.attributes, counts, strict=True) if n),
        weighted=counted.weighted,
        left_out=counted.rows - int(overall.moments.rows_of("selection_rate").sum()),
    )


@dataclass(eq=False)
class _Counted:
    """The rows and patients of every group of a table in parts, and which groups are withheld (see `withheld`)."""

    attributes: Sequence[Attribute]
    left_out: list[BoolArray]  # by attribute (groups + 1,): groups, and last rows without one, that are in no sum
    withheld: list[BoolArray] = field(default_factory=list)  # of each attribute, their intersection (over all combinations), and all rows
    small: list[BoolArray] = field(default_factory=list)  # of those, groups with too few patients
    rows_by_group: list[IntArray] = field(default_factory=list)  # in the whole table
    rows_shown: list[IntArray] = field(default_factory=list)  # without those that are left out
    rows: int = 0
    patients: int = 0
    varied: Any = 0
    weighted: bool = False
    has_patients: bool = False

    def add(self, part: Scores) -> None:
        """Counts the rows and patients of a part."""
        self.rows += len(part)
        self.patients += int(units_of(part.patients, len(part)).max(initial=-1)) + 1
        self.varied = self.varied + np.array([patients_varying(a, part.patients) for a in part.attributes])
        self.weighted, self.has_patients = part.weight is not None, part.patients is not None

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(len(a.levels) for a in self.attributes)

    def kept(self, part: Scores) -> BoolArray:
        """The rows of a part that are in any sum."""
        kept: BoolArray = ~np.any([outside[a.codes] for a, outside in zip(part.attributes, self.left_out, strict=True)], axis=0)
        return kept

    def shown(self, parts: Parts) -> Iterator[tuple[Scores, Scores, list[IntArray]]]:
        """Each part, its rows that are in any sum, and their groups of each attribute, of the intersection and of all rows."""
        for table in parts():
            kept = self.kept(table)
            part = table if kept.all() else table.take(kept)
            codes = _codes(part, self.shape)
            hidden = self.withheld or [np.zeros(size, dtype=bool) for size in _sizes(self.shape)]
            yield table, part, [np.where(np.append(none, True)[each], -1, each) for none, each in zip(hidden, codes, strict=True)]

    def groups_with_rows(self) -> list[tuple[IntArray, Attribute]]:
        """The codes in the tallies of the groups of each attribute, and of their intersection, without intersections that have no rows."""
        groups = [(np.arange(len(a.levels)), a) for a in self.attributes]
        if len(self.attributes) > 1:
            rows = self.rows_by_group[len(self.attributes)]
            present = np.flatnonzero((rows > 0) | (np.arange(len(rows)) == 0))
            levels = np.unravel_index(present, self.shape)
            crossed = Attribute.crossed([replace(a, codes=codes) for a, codes in zip(self.attributes, levels, strict=True)])
            groups.append((present, crossed))
        return groups

    def shown_groups(self, k: int, groups: IntArray, attribute: Attribute) -> Shown:
        """What is known of these groups of an attribute, or of the intersection."""
        rows, shown = (each[k][groups] for each in (self.rows_by_group, self.rows_shown))
        withheld, small = (each[k][groups] for each in (self.withheld, self.small))
        missing = 1 - float(self.rows_by_group[k].sum()) / self.rows
        return Shown.of(attribute, missing, rows, np.where(withheld, 0, shown), withheld & ~small)


def _count(attributes: Sequence[Attribute], parts: Parts, least: int) -> _Counted:
    """The rows and patients of every group; parts are read again while groups fall below `least` because of rows that are left out."""
    counted = _Counted(attributes, [np.zeros(len(a.levels) + 1, dtype=bool) for a in attributes])
    while True:
        first = not counted.rows
        rows_by_group = [np.zeros(size, np.int64) for size in _sizes(counted.shape)]
        patients = [np.zeros(len(rows) + 1, np.int64) for rows in rows_by_group]
        outside = [np.zeros(size, np.int64) for size in counted.shape]
        for table, part, all_codes in counted.shown(parts):
            units = None if part.patients is None else units_of(part.patients, len(part))
            for rows, total, codes in zip(rows_by_group, patients, all_codes, strict=True):
                rows += np.bincount(codes[codes >= 0], minlength=len(rows))
                total += patients_by_group(codes, units, len(rows))
            lost = all_codes[len(attributes)] < 0
            for total, a in zip(outside, part.attributes, strict=True):
                total += patients_by_group(a.codes[lost], None if units is None else units[lost], len(total))[:-1]
            if first:
                counted.add(table)
        counted.rows_shown = rows_by_group
        if first:
            counted.rows_by_group = rows_by_group
        more = groups_left_out(patients[: len(attributes)], least)
        if not any(each.any() for each in more):
            break
        counted.left_out = [before | new for before, new in zip(counted.left_out, more, strict=True)]
    counted.small = [each[:-1] < least for each in patients[:-1]]
    counted.withheld = [*counted.small, np.zeros(1, dtype=bool)]
    if len(attributes) > 1:
        cells = patients[len(attributes)][:-1]
        members = np.stack(np.unravel_index(np.arange(len(cells)), counted.shape), axis=1)
        counted.withheld[-2] = withheld_intersections(cells, members, outside, counted.small[: len(attributes)], least)
    return counted


def _sizes(shape: tuple[int, ...]) -> list[int]:
    """The number of groups of each attribute, of their intersection (over all combinations) and of all rows."""
    return [*shape, *([math.prod(shape)] if len(shape) > 1 else []), 1]


def _codes(part: Scores, shape: tuple[int, ...]) -> list[IntArray]:
    """The groups of the rows: of each attribute, of their intersection (over all combinations), and one group of all rows."""
    codes = [a.codes for a in part.attributes]
    crossed = []
    if len(codes) > 1:
        missing = np.any([each < 0 for each in codes], axis=0)
        flat = np.ravel_multi_index(tuple(np.where(missing, 0, each) for each in codes), shape)
        crossed = [np.where(missing, -1, flat)]
    return [*codes, *crossed, np.zeros(len(part), np.int64)]


def _cells(sums: _AttributeSums) -> Cells:
    """The cell table in the moments; no rows are counted without a group."""
    n, s = (np.vstack([sums.moments.total[:, columns], np.zeros((1, 2))]) for columns in (slice(0, 2), slice(2, 4)))
    return Cells(sums.sample.attribute.levels, n, s)
