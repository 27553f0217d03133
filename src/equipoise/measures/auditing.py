"""Audits of scores: each label is estimated by itself, then the gaps of all labels are tested and adjusted together.

Rows in memory are estimated here; those of a larger table on disk are added up part by part (`streamed`). The label "no finding" may be
derived from the other labels of a multi-label model: a row has no finding if no label is positive, and is decided so if no label is decided
positive.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pandas as pd

from equipoise.data import Attribute, LabelKind, Scores
from equipoise.errors import BadInput, EmptyCell, pick
from equipoise.measures.audit import Audit, LabelAudit, digest_of
from equipoise.measures.audit_spec import DERIVED, AuditSpec
from equipoise.measures.by_threshold import COLUMNS, by_threshold
from equipoise.measures.cells import Cells, FloatArray, gap_values, normalised, require_cells, tabulate
from equipoise.measures.estimates import Estimate, ScoreMeasures, estimate_performance, frames_of, simultaneous
from equipoise.measures.gaps import MEASURES, QUOTIENTS, coefficients, is_quotient
from equipoise.measures.intervals import Limits
from equipoise.measures.moments import Moments, moments_of_scores, units_of
from equipoise.measures.performance import aurocs, bins_of
from equipoise.measures.permutation import adjusted, comparisons_of, critical_levels, p_values
from equipoise.measures.score_measures import (
    CURVES,
    estimate_sampled_scores,
    everyone,
    overall_measures,
)
from equipoise.measures.thresholds import Described, Rule
from equipoise.measures.withheld import GroupCounts, Parts, Shown, shown_scores

if TYPE_CHECKING:
    from equipoise.data import Scan, Stored

NO_FINDING = "no finding"
Progress = Callable[[int, int], None]  # called with the steps done and all steps


def audit_labels(
    tables: "Mapping[str, Scores] | Mapping[str, Scan]",
    rules: Mapping[str, Rule],
    spec: AuditSpec = AuditSpec(),
    kind: LabelKind = LabelKind.LABELS,
    name: str = "",
    progress: Callable[[str], Progress] | None = None,
    also: Mapping[str, tuple[str, ...]] | None = None,
) -> Audit:
    """The audit of the labels, or classes, of one model, each with its own decision rule. They are one family of comparisons.

    `tables` are the scores of each label, or the scans of one table on disk, which is read once. `name` is that of the audit, the first
    table's if there is none. `also` are further measures of a label, such as that of the goal of its repair.
    """
    reading: AbstractContextManager[Any] = nullcontext(tables)
    if not all(isinstance(table, Scores) for table in tables.values()):
        from equipoise.data import read_labels  # only for a table on disk

        reading = read_labels(cast("Mapping[str, Scan]", tables))
    with reading as opened:
        sources = {label: Source.of(table, rules[label]) for label, table in opened.items()}
        asked = [spec.changed(also=(*spec.also, *also[label])) if also else spec for label in sources]
        watched = [progress and progress(label) for label in sources]
        estimated = [*sources.values()]
        if spec.no_finding == DERIVED:
            estimated.append(_no_finding(opened, rules))
            asked.append(spec.changed(measures=("fpr_gap",), also=(), thresholds=(), shrink=False))
            watched.append(None)
        untested = []
        for source, own_spec, own_progress in zip(estimated, asked, watched, strict=True):
            found = (_estimates_of_rows if source.in_memory else _estimates_of_parts)(source, own_spec, own_progress)
            untested.append((_label_audit(source, own_spec, found), found))
    audits = _tested_together(untested)
    labels = {label: replace(audit, label=label) for label, audit in zip(sources, audits, strict=False)}
    no_finding = audits[-1] if spec.no_finding == DERIVED else None
    if spec.no_finding is not None and no_finding is None:
        no_finding = labels[pick("label for no finding", spec.no_finding, (*labels, DERIVED))]
    return Audit(labels, kind, name or next(iter(sources.values())).name, no_finding)


@dataclass(frozen=True, eq=False)
class Source:
    """The rows of one label, in parts that each hold all rows of their patients; one part if they are in memory."""

    name: str
    rule: Rule
    attributes: tuple[Attribute, ...]
    parts: Parts
    count: int = 1  # parts
    logits: bool = False  # whether stored scores are logits
    in_memory: bool = True
    has_scores: bool = True  # else the scores are decisions

    @classmethod
    def of(cls, table: "Scores | Stored", rule: Rule) -> "Source":
        if not isinstance(table, Scores) and not table.whole:
            return cls(table.name, rule, table.attributes, table.parts, table.count, table.logits, False)
        scores = table if isinstance(table, Scores) else next(table.parts())
        return cls(scores.name, rule, scores.attributes, lambda: [scores])


def _no_finding(tables: Mapping[str, Any], rules: Mapping[str, Rule]) -> Source:
    """The label "no finding" and the decision on it, as scores, on the rows in which every label is known."""
    if len(tables) < 2:
        raise BadInput(f"no finding is derived from several labels; got {', '.join(tables)}. Name the label that means it instead.")
    first = next(iter(tables.values()))

    def none_of(scores: Iterable[Scores]) -> Scores:
        by_label = dict(zip(rules, scores, strict=True))
        y = np.prod([1 - each.y for each in by_label.values()], axis=0)
        decided = np.prod([1 - rules[label].decide(each) for label, each in by_label.items()], axis=0)
        return replace(by_label[next(iter(rules))], y=y, score=decided, logit=None, name=NO_FINDING)

    rule = Described(f"none of {len(rules)} labels is decided positive: {', '.join(rules)}", decided=True)
    if not isinstance(first, Scores):
        source = replace(Source.of(first, rule), parts=lambda: map(none_of, first.parts_of_all()))
    else:
        places = [{row: k for k, row in enumerate(each.ids)} for each in tables.values()]
        shared = [row for row in first.ids if all(row in known for known in places)]
        if not shared:
            raise BadInput("no row has all labels known, so that no finding cannot be derived. Name fewer labels.")
        known = [each.take([place[row] for row in shared]) for each, place in zip(tables.values(), places, strict=True)]
        source = Source.of(none_of(known), rule)
    return replace(source, name=NO_FINDING, has_scores=False)


@dataclass(frozen=True, eq=False)
class AttributeEstimates:
    """The estimates of the groups of one attribute, from rows in memory or from sums over parts."""

    shown: Shown
    moments: Moments
    aurocs: Limits
    scores: ScoreMeasures | None  # None if there are no scores, only decisions
    p_values: Callable[..., Mapping[str, FloatArray]]  # by measure (groups - 1,), given the number of `comparisons` adjusted for


@dataclass(frozen=True, eq=False)
class Estimates:
    """The estimates of one label: of each attribute, in the order of the rows of gaps, and of all rows together."""

    counts: GroupCounts
    attributes: Sequence[AttributeEstimates]
    performance: Mapping[str, Estimate]
    overall: ScoreMeasures | None
    rows: int  # in any number
    by_threshold: pd.DataFrame | None = None
    digest: str | None = None


def _label_audit(source: Source, spec: AuditSpec, found: Estimates) -> LabelAudit:
    """The audit of one label without p-values, simultaneous intervals and headlines, which are computed for all labels together."""
    counts, unit = found.counts, "rows" if found.counts.patients is None else "patients"
    group_frames, gap_frames = [], []
    for each in found.attributes:
        shown = each.shown
        groups, gaps = frames_of(shown.attribute, each.moments, each.aurocs, each.scores, spec.gaps, spec, unit, shown.complement)
        group_frames.append(shown.with_row_counts(groups))
        gap_frames.append(gaps)
    curves = [measures.curves for measures in (found.overall, *(each.scores for each in found.attributes)) if measures is not None]
    attributes = {each.shown.attribute.name: each for each in found.attributes}
    return LabelAudit(
        estimates={**found.performance, **({} if found.overall is None else overall_measures(found.overall, found.rows, spec.wanted))},
        groups=pd.concat(group_frames),
        gaps=pd.concat(gap_frames, ignore_index=True),
        rule=source.rule,
        missing={name: each.shown.missing for name, each in attributes.items()},
        references={name: each.shown.attribute.reference for name, each in attributes.items()},
        assumed=tuple(a.name for a in source.attributes if not a.named),
        intersections=tuple(name for name, each in attributes.items() if each.shown.attribute.intersection),
        rows=counts.rows,
        patients=counts.patients,
        name=source.name,
        settings=spec,
        varying=counts.varying,
        curves=pd.concat(curves, ignore_index=True) if curves else pd.DataFrame(columns=CURVES),
        by_threshold=pd.DataFrame(columns=COLUMNS) if found.by_threshold is None else found.by_threshold,
        weighted=counts.weighted,
        sums={name: each.moments for name, each in attributes.items()},
        digest=found.digest,
        left_out=counts.rows - found.rows,
    )


def _estimates_of_rows(source: Source, spec: AuditSpec, progress: Progress | None) -> Estimates:
    """All estimates of scores in memory; without those of the scores if they are decisions."""
    (table,), rule, has_scores = source.parts(), source.rule, source.has_scores
    f = rule.decide(table)
    if spec.measures is not None and has_scores:
        require_decided_cells(spec, [tabulate(f, table.y, each, normalised(table.weight)) for each in table.attributes], table.name)
    shown = shown_scores(table, spec.min_patients)
    f, scores, steps = f[shown.kept], shown.scores, len(shown.groups) + 1
    units = units_of(scores.patients, len(scores))
    overall = estimate_sampled_scores(scores, everyone(len(scores)), units, spec) if has_scores else None
    attributes = []
    for each in shown.groups:
        a = each.attribute
        measures = estimate_sampled_scores(scores, a, units, spec) if has_scores else None
        tests = partial(p_values, f, scores.y, a.codes, a.levels, scores.patients, spec.gaps, weight=scores.weight, seed=spec.seed)
        sums = moments_of_scores(scores, f, a)
        attributes.append(AttributeEstimates(each, sums, aurocs(scores, a, units, spec.level), measures, tests))
        if progress:
            progress(len(attributes), steps)
    performance = estimate_performance(scores, f, spec.performance, spec)
    if progress:
        progress(steps, steps)
    decisions = by_threshold(scores, rule, units, spec.min_patients) if has_scores else None
    return Estimates(shown.counts, attributes, performance, overall, len(scores), decisions, digest_of(table))


def _estimates_of_parts(source: Source, spec: AuditSpec, progress: Progress | None) -> Estimates:
    """All estimates of one label, from passes over the parts: to count, and twice to add up."""
    from equipoise.measures.streamed import MOST_BINS, Tally

    counts = GroupCounts.of(source.attributes, source.parts, spec.min_patients)
    groups = [*counts.attributes, everyone(0)]
    if len(counts.cells) * 2 > MOST_BINS // 16:
        raise BadInput(
            f"the group columns have {len(counts.cells):,} intersections, too many for a table of this size. Audit them one by one."
        )
    done, steps = 0, 2 * source.count
    tallies = [Tally(len(a.levels), source.logits) for a in groups]
    for adding in (True, False):  # AUROC and average precision first, then their variances between patients
        for table in source.parts():
            kept = counts.kept(table)
            part, all_codes = (
                table if kept.all() else table.take(kept),
                [*(each[kept] for each in counts.codes(table)), np.zeros(kept.sum(), int)],
            )
            units, bins, f = units_of(part.patients, len(part)), bins_of(part), source.rule.decide(table)[kept] if adding else None
            for tally, codes in zip(tallies, all_codes, strict=True):
                if f is not None:
                    tally.add(part, f, bins, codes, units)
                else:
                    tally.binned.add(part.y, bins // tally.bin_width, codes, units, part.weight)
            done += 1
            if progress:
                progress(done, steps)
        for tally in tallies if adding else ():
            tally.rank()
    *attributes, overall = (
        tally.sums(a, source.name, has_patients=counts.patients is not None) for tally, a in zip(tallies, groups, strict=True)
    )
    if source.has_scores:
        require_decided_cells(spec, [each.cells for each in attributes[: len(source.attributes)]], source.name)
    estimates = [
        AttributeEstimates(
            counts.shown(k, each.sample.attribute.codes),
            each.moments,
            each.aurocs(spec.level),
            each.score_measures(spec) if source.has_scores else None,
            partial(each.p_values, spec.gaps, spec.seed),
        )
        for k, each in enumerate(attributes)
    ]
    return Estimates(
        counts,
        estimates,
        overall.performance(spec.performance, spec.level),
        overall.score_measures(spec) if source.has_scores else None,
        int(overall.moments["selection_rate"].rows.sum()),
    )


def require_decided_cells(spec: AuditSpec, tables: Sequence[Cells], where: str) -> None:
    """Raises one error that lists every empty cell that a requested measure needs; by default no measure needs a cell."""
    problems: list[str] = []
    for cells in tables if spec.measures is not None else ():
        for gap in spec.gaps:
            try:
                require_cells(gap, cells, where)
            except EmptyCell as error:
                problems += error.problems
            else:
                problems += _undecided(gap, cells, where)
    if problems:
        raise EmptyCell(*problems)


def _undecided(gap: str, cells: Cells, where: str) -> list[str]:
    """One problem per group in which a quotient is undefined because no row is decided positive (or negative)."""
    if not is_quotient(gap) or not np.isnan(gap_values(gap, cells)).any():
        return []
    label = QUOTIENTS[gap]
    decided, direction = ("positive", "lower") if label else ("negative", "higher")
    undefined = np.isnan(cells.rate(MEASURES[gap].rate))
    return [
        f"{gap} needs rows that are decided {decided} in every group; {level!r} has none of {int(cells.n[code].sum()):,} rows in {where}. "
        f"Use a {direction} threshold, more data, or merge groups"
        for code, level in enumerate(cells.levels)
        if undefined[code]
    ]


def _tested_together(untested: Sequence[tuple[LabelAudit, Estimates]]) -> list[LabelAudit]:
    """The audits of all labels, with p-values and simultaneous intervals adjusted over all labels together, and with headlines."""
    level = untested[0][0].settings.level
    gaps = pd.concat([audit.gaps.assign(label=k) for k, (audit, _) in enumerate(untested)], ignore_index=True)
    comparisons = int(comparisons_of(gaps).max(initial=-1)) + 1
    p, correlations = [np.zeros(0)], []
    for audit, found in untested:
        names = audit.settings.gaps
        for each in found.attributes:
            by_measure = each.p_values(comparisons=comparisons)
            p += [by_measure[name] for name in names]
            size = len(names) * (len(each.moments.total) - 1)
            correlations.append((size, partial(each.moments.gap_correlation, {name: coefficients(name) for name in names})))
    gaps = adjusted(gaps.assign(p_value=np.where(gaps["value"].notna(), np.concatenate(p), np.nan)), level)
    levels = critical_levels(gaps, correlations, level)
    audits, start = [], 0
    for audit, found in untested:
        rows = slice(start, start := start + len(audit.gaps))
        sums = [each.moments for each in found.attributes]
        frame = simultaneous(gaps.iloc[rows].drop(columns="label").reset_index(drop=True), sums, levels[rows])
        audits.append(replace(audit, gaps=frame, comparisons=comparisons, estimates=_headlines(frame) | audit.estimates))
    return audits


def _headlines(gaps: pd.DataFrame) -> dict[str, Estimate]:
    """The gap of each measure with the largest absolute value among the groups with sufficient data."""
    columns: dict[str, list[Any]] = {str(name): gaps[name].tolist() for name in gaps}
    by_measure: dict[str, list[int]] = {}
    for k, measure in enumerate(columns.get("measure", ())):
        by_measure.setdefault(measure, []).append(k)
    headlines = {}
    for measure, rows in by_measure.items():
        known = [k for k in rows if not np.isnan(columns["value"][k])]
        note = f"{len(rows) - len(known)} of {len(rows)} groups have insufficient data" if 0 < len(known) < len(rows) else None
        shown = max(known, key=lambda k: abs(columns["value"][k])) if known else rows[0]
        headlines[measure] = Estimate.of_gap({name: column[shown] for name, column in columns.items()}, note)
    return headlines
