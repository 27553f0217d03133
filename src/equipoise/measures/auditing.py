"""Audits of scores in memory, and the steps that audits in batches (`streamed`) share with them.

Each label is first estimated by itself (`UntestedAudit`); then the gaps of all labels are tested and adjusted together. `AuditSpec`
says what is estimated.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from equipoise.data import Attribute, GroupConflicts, LabelKind, Scores, conflicts_in
from equipoise.errors import EmptyCell, pick
from equipoise.measures.audit import Audit, LabelAudit, digest_of
from equipoise.measures.audit_spec import DERIVED, AuditSpec
from equipoise.measures.by_threshold import COLUMNS, by_threshold
from equipoise.measures.cells import Cells, FloatArray, gap_values, normalised, predictive, require_cells, tabulate
from equipoise.measures.estimates import Estimate, estimate_performance, frames_of, simultaneous
from equipoise.measures.gaps import QUOTIENTS, coefficients, is_quotient
from equipoise.measures.intervals import Limits
from equipoise.measures.moments import Moments, moments_of_scores, units_of
from equipoise.measures.no_finding import NoneOf, none_of
from equipoise.measures.performance import aurocs
from equipoise.measures.permutation import adjusted, comparisons_of, critical_levels, p_values
from equipoise.measures.score_measures import (
    CURVES,
    ScoreMeasures,
    estimate_sampled_scores,
    everyone,
    overall_measures,
    with_score_measures,
)
from equipoise.measures.thresholds import Rule
from equipoise.measures.withheld import Shown, shown_scores, with_row_counts


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
    undefined = np.isnan(predictive(label, cells))
    return [
        f"{gap} needs rows that are decided {decided} in every group; {level!r} has none of {int(cells.n[code].sum()):,} rows in {where}. "
        f"Use a {direction} threshold, more data, or merge groups"
        for code, level in enumerate(cells.levels)
        if undefined[code]
    ]


Progress = Callable[[int, int], None]  # called with the steps done and all steps


def audit_label(scores: Scores, rule: Rule, spec: AuditSpec, progress: Progress | None = None) -> LabelAudit:
    """The audit of the scores of one label."""
    (audit,) = adjust_together([untested_audit(scores, rule, spec, progress)])
    return audit


def audit_labels(
    scores: Mapping[str, Scores],
    rules: Mapping[str, Rule],
    spec: AuditSpec,
    kind: LabelKind = LabelKind.LABELS,
    name: str = "",
    progress: Callable[[str], Progress] | None = None,
    also: Mapping[str, tuple[str, ...]] | None = None,
) -> Audit:
    """The audit of the labels, or classes, of one model, each with its own decision rule. They are one family of comparisons.

    `name` is that of the audit, the first scores' if there is none. `also` are further measures of a label, such as that of the goal of its
    repair.
    """
    untested, derived = {}, None
    for label, own in scores.items():
        asked = spec.changed(also=(*spec.also, *also[label])) if also else spec
        untested[label] = untested_audit(own, rules[label], asked, progress(label) if progress else None)
    if spec.no_finding == DERIVED:
        derived = untested_audit(none_of(scores, rules), NoneOf(tuple(rules)), spec_of_no_finding(spec), has_scores=False)
    return tested_together(untested, kind, name or next(iter(scores.values())).name, spec.no_finding, derived)


def spec_of_no_finding(spec: AuditSpec) -> AuditSpec:
    """The specification for auditing derived decisions on "no finding": their false positive rate, which is underdiagnosis."""
    return spec.changed(measures=("fpr_gap",), also=(), thresholds=(), shrink=False)


def tested_together(
    untested: "Mapping[str, UntestedAudit]", kind: LabelKind, name: str, no_finding: str | None, derived: "UntestedAudit | None"
) -> Audit:
    """The audit of the labels, tested together with the derived audit of "no finding", or with "no finding" as one of the labels."""
    tested = adjust_together([*untested.values(), *([] if derived is None else [derived])])
    labels = {label: replace(audit, label=label) for label, audit in zip(untested, tested, strict=False)}
    if derived is not None:
        return Audit(labels, kind, name, tested[-1])
    return Audit(labels, kind, name, None if no_finding is None else labels[pick("label for no finding", no_finding, (*labels, DERIVED))])


@dataclass(frozen=True, eq=False)
class AttributeEstimates:
    """The estimates of the groups of one attribute, from rows in memory or from sums over batches."""

    shown: Shown
    moments: Moments
    aurocs: Limits
    scores: ScoreMeasures | None  # None if there are no scores, only decisions
    p_values: Callable[[int], Sequence[FloatArray]]  # by measure (groups - 1,), given the number of comparisons adjusted for


@dataclass(frozen=True, eq=False)
class UntestedAudit:
    """An audit without p-values, simultaneous intervals and headlines, which are computed for all labels together."""

    audit: LabelAudit
    estimates: Sequence[AttributeEstimates]  # in the order of the rows of gaps
    gaps: Sequence[str]


def assemble(
    rule: Rule,
    spec: AuditSpec,
    estimates: Sequence[AttributeEstimates],
    performance: dict[str, Estimate],
    overall: ScoreMeasures | None,
    *,
    name: str,
    assumed: tuple[str, ...],
    rows: int,
    patients: int | None,
    varying: tuple[GroupConflicts, ...],
    weighted: bool,
    left_out: int,
    decisions_by_threshold: pd.DataFrame | None = None,
    digest: str | None = None,
) -> UntestedAudit:
    """The audit of one label from the estimates of each attribute, and from those of all rows together."""
    unit = "rows" if patients is None else "patients"
    group_frames, gap_frames = [], []
    for each in estimates:
        shown = each.shown
        groups, gaps = frames_of(shown.attribute, each.moments, each.aurocs, spec.gaps, spec, unit, shown.complement)
        groups = groups if each.scores is None else with_score_measures(groups, each.scores, spec.min_patients, unit)
        group_frames.append(with_row_counts(groups, shown))
        gap_frames.append(gaps)
    curves = [measures.curves for measures in (overall, *(each.scores for each in estimates)) if measures is not None]
    audit = LabelAudit(
        estimates=performance | ({} if overall is None else overall_measures(overall, rows - left_out, spec.wanted)),
        groups=pd.concat(group_frames),
        gaps=pd.concat(gap_frames, ignore_index=True),
        rule=rule,
        missing={each.shown.attribute.name: each.shown.missing for each in estimates},
        references={each.shown.attribute.name: each.shown.attribute.reference for each in estimates},
        assumed=assumed,
        intersections=tuple(each.shown.attribute.name for each in estimates if each.shown.attribute.intersection),
        rows=rows,
        patients=patients,
        name=name,
        settings=spec,
        varying=varying,
        curves=pd.concat(curves, ignore_index=True) if curves else pd.DataFrame(columns=CURVES),
        by_threshold=pd.DataFrame(columns=COLUMNS) if decisions_by_threshold is None else decisions_by_threshold,
        weighted=weighted,
        sums={each.shown.attribute.name: each.moments for each in estimates},
        digest=digest,
        left_out=left_out,
    )
    return UntestedAudit(audit, estimates, spec.gaps)


def untested_audit(
    scores: Scores, rule: Rule, spec: AuditSpec, progress: Progress | None = None, *, has_scores: bool = True
) -> UntestedAudit:
    """All estimates of the audit of scores in memory; without those of the scores if `has_scores` is False (they are decisions)."""
    f = rule.decide(scores)
    if spec.measures is not None and has_scores:
        require_decided_cells(spec, [tabulate(f, scores.y, each, normalised(scores.weight)) for each in scores.attributes], scores.name)
    table, shown = scores, shown_scores(scores, spec.min_patients)
    f, scores = f[shown.kept], shown.scores
    steps = len(shown.groups) + 1
    units = units_of(scores.patients, len(scores))
    overall = estimate_sampled_scores(scores, everyone(len(scores)), units, spec) if has_scores else None
    estimates = []
    for k, each in enumerate(shown.groups):
        attribute = each.attribute
        estimates.append(
            AttributeEstimates(
                each,
                moments_of_scores(scores, f, attribute),
                aurocs(scores, attribute, units, spec.level),
                estimate_sampled_scores(scores, attribute, units, spec) if has_scores else None,
                partial(_p_values, scores, f, attribute, spec.gaps, spec.seed),
            )
        )
        if progress:
            progress(k + 1, steps)
    performance = estimate_performance(scores, f, spec.performance, spec)
    if progress:
        progress(steps, steps)
    return assemble(
        rule,
        spec,
        estimates,
        performance,
        overall,
        name=table.name,
        assumed=tuple(a.name for a in table.attributes if not a.named),
        rows=len(table),
        patients=None if table.patients is None else int(units_of(table.patients, len(table)).max(initial=-1)) + 1,
        varying=conflicts_in(table.attributes, table.patients),
        weighted=table.weight is not None,
        left_out=len(table) - len(scores),
        decisions_by_threshold=by_threshold(scores, rule, units, spec.min_patients) if has_scores else None,
        digest=digest_of(table),
    )


def _p_values(scores: Scores, f: FloatArray, attribute: Attribute, gaps: Sequence[str], seed: int, comparisons: int) -> list[FloatArray]:
    """The p-values of the gaps of one attribute, by measure (groups - 1,)."""
    codes, levels, patients = attribute.codes, attribute.levels, scores.patients
    by_measure = p_values(f, scores.y, codes, levels, patients, gaps, weight=scores.weight, comparisons=comparisons, seed=seed)
    return [by_measure[name] for name in gaps]


def adjust_together(untested: Sequence[UntestedAudit]) -> list[LabelAudit]:
    """The audits of all labels, with p-values and simultaneous intervals adjusted over all labels together, and with headlines."""
    level = untested[0].audit.settings.level
    gaps = pd.concat([each.audit.gaps.assign(label=k) for k, each in enumerate(untested)], ignore_index=True)
    comparisons = int(comparisons_of(gaps).max(initial=-1)) + 1
    p = np.concatenate([np.zeros(0), *(p for each in untested for attribute in each.estimates for p in attribute.p_values(comparisons))])
    gaps = adjusted(gaps.assign(p_value=np.where(gaps["value"].notna(), p, np.nan)), level)
    correlations = [
        (len(each.gaps) * (len(sums.total) - 1), partial(sums.gap_correlation, {name: coefficients(name) for name in each.gaps}))
        for each in untested
        for sums in (attribute.moments for attribute in each.estimates)
    ]
    levels = critical_levels(gaps, correlations, level)
    audits = []
    start = 0
    for each in untested:
        rows = slice(start, start := start + len(each.audit.gaps))
        sums = [attribute.moments for attribute in each.estimates]
        frame = simultaneous(gaps.iloc[rows].drop(columns="label").reset_index(drop=True), sums, levels[rows])
        audits.append(replace(each.audit, gaps=frame, comparisons=comparisons, estimates=_headlines(frame) | each.audit.estimates))
    return audits


def _headlines(gaps: pd.DataFrame) -> dict[str, Estimate]:
    """The gap of each measure with the largest absolute value among the groups with sufficient data."""
    by_measure: dict[str, list[dict[str, Any]]] = {}
    for row in gaps.to_dict("records"):
        by_measure.setdefault(str(row["measure"]), []).append({str(name): value for name, value in row.items()})
    headlines = {}
    for measure, rows in by_measure.items():
        known = [row for row in rows if not np.isnan(row["value"])]
        missing = len(rows) - len(known)
        note = f"{missing} of {len(rows)} groups have insufficient data" if missing and known else None
        headlines[measure] = Estimate.of_gap(max(known, key=lambda row: abs(row["value"])) if known else rows[0], note)
    return headlines
