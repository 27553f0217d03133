"""Audits of scores: each label is estimated by itself, then the gaps of all labels are tested and adjusted together.

Rows in memory are estimated here; those of a larger table are added up where they are (`streaming`). The unit of sampling is the
patient. The label "no finding" may be derived from the other labels of a multi-label model: a row has no finding if no label is positive,
and is decided so if no label is decided positive.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pandas as pd

from equipoise.data import Attribute, BoolArray, FloatArray, LabelKind, Scores
from equipoise.errors import BadInput, EmptyCell, pick
from equipoise.measures.audit import (
    CALIBRATION_ERROR,
    FEW_PATIENTS,
    GAP_COLUMNS,
    GROUP_MEASURES,
    Audit,
    LabelAudit,
    lacking_note,
    protection,
)
from equipoise.measures.audit_spec import NONE_OF_THE_LABELS, AuditSpec, thresholds_of
from equipoise.measures.calibration import REASONS, TOO_FEW, WITHHELD
from equipoise.measures.cells import Cells, estimated_rates, normalise_weights, ratio
from equipoise.measures.disclosure import BY_THRESHOLD, GroupCounts, ShownGroups, by_threshold, shown_scores
from equipoise.measures.families import comparisons_of, critical_value, family_decisions
from equipoise.measures.intervals import INSUFFICIENT_DATA, Estimate, Limits, detectable_gap, fewer_clusters
from equipoise.measures.measure_table import COMPLEMENTS, MEASURES, OVERALL_SCORE_MEASURES, measure_of, missed_case_worth
from equipoise.measures.moments import Moments, SignedSum, concatenate_sums, level_of, moments_of, moments_of_scores, units_of
from equipoise.measures.permutation import p_values
from equipoise.measures.score_measures import (
    ALL_ROWS,
    CURVE_COLUMNS,
    RANK_MEASURES,
    SCORE_MEASURES,
    MeasuredRows,
    Ranking,
    aurocs,
    binned_error,
    decision_curves,
    estimate_scores,
    losses_of,
    operating_points,
    sample_of,
)
from equipoise.measures.summaries import headlines_of, summaries_of
from equipoise.measures.thresholds import DescribedRule, Rule

if TYPE_CHECKING:
    from equipoise.data import Scan, StoredRows

SAMPLED_MEASURES = ("calibration_intercept", "calibration_slope")  # those of all rows together that a sample of many rows is used for
NO_FINDING = "no finding"
Progress = Callable[[int, int], None]  # called with the steps done and all steps


def audit_labels(
    tables: "Mapping[str, Scores] | Mapping[str, Scan]",
    rules: Mapping[str, Rule],
    spec: AuditSpec = AuditSpec(),
    kind: LabelKind = LabelKind.LABELS,
    name: str = "",
    progress: Progress | None = None,
    also: Mapping[str, tuple[str, ...]] | None = None,
) -> Audit:
    """The audit of the labels, or classes, of one model, each with its own decision rule. They are one family of comparisons.

    `tables` are the scores of each label, or the scans of one table on disk, which is read once. `name` is that of the audit, the first
    table's if there is none. `also` are further measures of a label, such as that of the goal of its repair.

    - `rules`: the decision rule of each label.
    - `spec`: what is measured, and how.
    - `kind`: whether the scores are of labels, or of classes decided by argmax.
    - `progress`: called with the work done so far, and all of it.
    """
    reading: AbstractContextManager[Any] = nullcontext(tables)
    if not all(isinstance(table, Scores) for table in tables.values()):
        from equipoise.data import read_scans  # only for a table on disk

        reading = read_scans(cast("Mapping[str, Scan]", tables))
    with reading as opened:
        sources = {label: Source.of(table, rules[label]) for label, table in opened.items()}
        asked = [spec.changed(also=(*spec.also, *also[label])) if also else spec for label in sources]
        watched = [progress and partial(_shared, progress, k, len(sources)) for k in range(len(sources))]
        estimated = [*sources.values()]
        if spec.no_finding == NONE_OF_THE_LABELS:
            estimated.append(_no_finding(opened, rules))
            asked.append(spec.changed(measures=("fpr_gap",), also=(), thresholds=(), shrink=False))
            watched.append(None)
        untested = []
        for source, own_spec, own_progress in zip(estimated, asked, watched, strict=True):
            untested.append((_audit_rows if source.stored is None else _audit_stored)(source, own_spec, own_progress))
        audits = _tested_together(untested)
    labels = {label: replace(audit, label=label) for label, audit in zip(sources, audits, strict=False)}
    no_finding = audits[-1] if spec.no_finding == NONE_OF_THE_LABELS else None
    if spec.no_finding is not None and no_finding is None:
        no_finding = labels[pick("label for no finding", spec.no_finding, (*labels, NONE_OF_THE_LABELS))]
    return Audit(labels, kind, name or next(iter(sources.values())).name, no_finding)


def _shared(progress: Progress, label: int, labels: int, done: int, total: int) -> None:
    """Reports the progress of one label as a share of that of all labels."""
    progress(label * total + done, labels * total)


@dataclass(frozen=True, eq=False)
class Source:
    """The rows of one label, in memory or stored in an engine."""

    name: str
    rule: Rule
    attributes: tuple[Attribute, ...]
    table: Scores | None  # None if the rows are stored
    stored: "StoredRows | None" = None
    rows: str = ""  # of the stored rows, in SQL
    has_scores: bool = True  # else the scores are decisions

    @classmethod
    def of(cls, table: "Scores | StoredRows", rule: Rule) -> "Source":
        if isinstance(table, Scores):
            return cls(table.name, rule, table.attributes, table)
        return cls(table.name, rule, table.attributes, None, table, table.rows(decision_in_sql(table, rule)))


def decision_in_sql(stored: "StoredRows", rule: Rule) -> str:
    """The decision of a rule on stored rows, in SQL."""
    return rule.sql(stored.score, stored.group if rule.needs_group else "null")


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

    rule = DescribedRule(f"none of {len(rules)} labels is decided positive: {', '.join(rules)}", decided=True)
    if not isinstance(first, Scores):
        rows = first.rows_without_finding([decision_in_sql(table, own) for table, own in zip(tables.values(), rules.values(), strict=True)])
        source = Source(first.name, rule, first.attributes, None, replace(first, logits=False), rows)
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

    shown: ShownGroups
    moments: Moments
    aurocs: Limits
    measured: MeasuredRows | None  # None if there are no scores, only decisions
    measures: tuple[str, ...]  # the gaps

    @cached_property
    def gaps(self) -> SignedSum:
        """The gaps, measure by measure, of every group except the reference."""
        none = self.moments.gap({"selection_rate": 1.0})[:0]  # for an audit without gaps
        return concatenate_sums([none, *(self.moments.gap(measure_of(name).coefficients) for name in self.measures)])

    def summaries(self, spec: AuditSpec) -> pd.DataFrame:
        """The summaries of the groups that were asked for."""
        of_scores = {"auroc": self.aurocs} | ({} if self.measured is None else self.measured[1])
        levels = self.shown.attribute.levels
        return summaries_of(spec.summaries, self.shown.attribute.name, levels, self.moments, of_scores, spec)


def _label_audit(
    source: Source,
    spec: AuditSpec,
    counts: GroupCounts,
    estimates: Sequence[AttributeEstimates],
    performance: Mapping[str, Estimate],
    overall: MeasuredRows | None,
    rows: int,
    **rest: Any,
) -> tuple[LabelAudit, Sequence[AttributeEstimates]]:
    """The audit of one label without p-values, simultaneous intervals and headlines, which are computed for all labels together.

    `estimates` are those of each attribute, in the order of the rows of gaps; `performance` and `overall` those of all `rows` together.
    """
    unit, own = "rows" if counts.patients is None else "patients", {each.shown.attribute.name: each for each in estimates}
    found = dict(performance)
    if overall is not None:
        of_sample = len(overall[0].score)
        sampled = f"from a random sample of {of_sample:,} of {rows:,} rows (whole patients)" if of_sample < rows else ""
        for name in (name for name in OVERALL_SCORE_MEASURES if name in spec.wanted):
            limits = overall[1][name]
            note = f"{INSUFFICIENT_DATA}: {REASONS[limits.why[0]]}" if limits.why[0] else sampled if name in SAMPLED_MEASURES else ""
            found[name] = Estimate(float(limits.value[0]), float(limits.low[0]), float(limits.high[0]), note)
    audit = LabelAudit(
        estimates=found,
        groups=pd.concat(map(partial(_group_frame, spec=spec, unit=unit), estimates)),
        gaps=pd.concat(map(partial(_gap_frame, spec=spec, unit=unit), estimates), ignore_index=True),
        rule=source.rule,
        missing={name: each.shown.missing for name, each in own.items()},
        references={name: each.shown.attribute.reference for name, each in own.items()},
        assumed=tuple(a.name for a in source.attributes if not a.named),
        intersections=tuple(name for name, each in own.items() if each.shown.attribute.intersection),
        rows=counts.rows,
        patients=counts.patients,
        name=source.name,
        settings=spec,
        varying=counts.varying,
        weighted=counts.weighted,
        sums={name: each.moments for name, each in own.items()},
        left_out=counts.rows - rows,
        **rest,
    )
    empty = {name: partial(pd.DataFrame, columns=columns) for name, columns in (("curves", CURVE_COLUMNS), ("by_threshold", BY_THRESHOLD))}
    if spec.summaries:
        summaries = pd.concat([each.summaries(spec) for each in estimates], ignore_index=True)
        empty["summaries"] = summaries.copy
        audit = replace(audit, estimates=audit.estimates | headlines_of(summaries))
    empty["permutation"] = partial(pd.DataFrame, {"p_permutation": np.full(len(audit.gaps), np.nan)})

    def curves() -> pd.DataFrame:
        """The decision curves of all rows together and of the groups of each attribute."""
        of_groups = [(each.measured, each.shown.attribute.name, each.shown.attribute.levels) for each in estimates]
        frames = []
        for measured, name, levels in ((overall, ALL_ROWS, (ALL_ROWS,)), *of_groups):
            if measured is not None:
                frames.append(decision_curves(measured[0], name, levels, thresholds_of(spec.thresholds), spec.level, spec.min_patients))
        return pd.concat(frames, ignore_index=True)

    of_scores = {} if overall is None else {"curves": curves}
    return replace(audit, details={**empty, **of_scores, **audit.details}), estimates


def _audit_rows(source: Source, spec: AuditSpec, progress: Progress | None) -> tuple[LabelAudit, Sequence[AttributeEstimates]]:
    """The audit of scores in memory, not yet tested; without the measures of the scores if they are decisions."""
    table, rule, has_scores = cast(Scores, source.table), source.rule, source.has_scores
    f = rule.decide(table)
    if spec.measures is not None and has_scores:
        require_decided_cells(spec, [Cells.of(f, table.y, each, normalise_weights(table.weight)) for each in table.attributes], table.name)
    shown = shown_scores(table, spec.min_patients, spec.intersections)
    f, scores, steps = f[shown.kept], shown.scores, len(shown.groups) + 1
    units = units_of(scores.patients, len(scores))
    estimates: list[AttributeEstimates] = []
    everyone = Attribute(ALL_ROWS, (ALL_ROWS,), np.zeros(len(scores), np.int64))
    for a in (*shown.attributes, everyone):
        overall = None
        if has_scores:
            sample = sample_of(scores, a, units)
            losses = None if sample[0] is scores else losses_of(scores.score, scores.y, a.codes, len(a.levels), units, scores.weight)
            overall = estimate_scores(*sample, spec, losses)
        if a is not everyone:
            of_groups, areas = shown.groups[len(estimates)], aurocs(scores, a, units, spec.level)
            estimates.append(AttributeEstimates(of_groups, moments_of_scores(scores, f, a), areas, overall, spec.gaps))
            if progress:
                progress(len(estimates), steps)
    performance = estimate_performance(scores, f, spec.performance, spec)
    if progress:
        progress(steps, steps)
    # Equal for two audits of the same patients (or rows) and labels, in any order; it identifies no patient.
    keys = table.ids if table.patients is None else table.patients
    hashed = pd.util.hash_array(np.asarray(keys, dtype=object)) * np.uint64(2) + table.y.astype(np.uint64)
    digest = f"{len(table)}-{int((hashed * (hashed >> np.uint64(7) | np.uint64(1))).sum(dtype=np.uint64)):016x}"
    details: dict[str, Any] = {"permutation": partial(_permutation, f, scores, shown.attributes, spec)}
    if has_scores:
        details["by_threshold"] = partial(by_threshold, scores, rule, spec.min_patients)
    if has_scores and scores.strata is not None:
        from equipoise.measures.strata import gaps_within  # late, as label_noise: most audits have neither

        details["within"] = partial(gaps_within, scores, f, shown.attributes, spec)
    if has_scores and scores.adjudicated is not None:
        from equipoise.measures.label_noise import label_gaps, label_groups

        details |= {"label_gaps": partial(label_gaps, scores, f, shown.attributes, spec)}
        details |= {"label_groups": partial(label_groups, scores, shown.attributes, spec)}
    return _label_audit(source, spec, shown.counts, estimates, performance, overall, len(scores), digest=digest, details=details)


def _permutation(f: FloatArray, scores: Scores, attributes: Sequence[Attribute], spec: AuditSpec) -> pd.DataFrame:
    """The permutation p-values of all gaps, in their order."""
    found = []
    for a in attributes:
        by_measure = p_values(f, scores.y, a.codes, a.levels, scores.patients, spec.gaps, weight=scores.weight, seed=spec.seed)
        found += [by_measure[measure] for measure in spec.gaps]
    return pd.DataFrame({"p_permutation": np.concatenate([np.zeros(0), *found])})


def _audit_stored(source: Source, spec: AuditSpec, progress: Progress | None) -> tuple[LabelAudit, Sequence[AttributeEstimates]]:
    """The audit of stored rows, not yet tested, from sums over them."""
    from equipoise.measures.streaming import MOST_BINS, Sums, Tally

    stored = cast("StoredRows", source.stored)
    sums, has_rows = Sums(stored, source.rows, spec.min_patients), source.has_scores and not stored.engine.remote
    counts = sums.counts = GroupCounts.of(source.attributes, sums, spec.min_patients, spec.intersections)
    groups = [*counts.attributes, Attribute(ALL_ROWS, (ALL_ROWS,), np.zeros(0, np.int64))]
    if len(counts.cells) * 2 > MOST_BINS // 16:
        raise BadInput(
            f"the group columns have {len(counts.cells):,} intersections, too many for a table of this size. Audit them one by one."
        )
    sizes, steps = [len(a.levels) for a in groups], len(groups) + 1
    ranked, tallies = sums.rank(sizes), []
    for k, a in enumerate(groups):
        if progress:
            progress(k + 1, steps)
        place = k if a is not groups[-1] else None  # None: all rows together, last
        moments, losses = sums.moments(place, sizes[k])
        tallies.append(Tally(moments, losses, ranked[k], *sums.sample(place, a, moments["selection_rate"].rows)))
    if progress:
        progress(steps, steps)
    *attributes, everyone = tallies
    if source.has_scores:
        require_decided_cells(spec, [each.cells for each in attributes[: len(source.attributes)]], source.name)
    estimates = []
    for k, each in enumerate(tallies):
        of_groups = each.sample.attribute
        overall = estimate_scores(each.sample, of_groups, each.units, spec, each.losses) if has_rows else None
        if each is not everyone:
            shown = counts.shown(k, of_groups.codes)
            estimates.append(AttributeEstimates(shown, each.moments, each.aurocs(spec.level), overall, spec.gaps))
    performance = performance_of(spec.performance, everyone.moments, spec.level, everyone.ranking)
    rows = int(everyone.moments["selection_rate"].rows.sum())
    return _label_audit(source, spec, counts, estimates, performance, overall, rows)


def _group_frame(found: AttributeEstimates, spec: AuditSpec, unit: str) -> pd.DataFrame:
    """One row per group with every rate and its interval. `unit` is "patients" or "rows", whichever is the unit of sampling."""
    shown, sums, attribute = found.shown, found.moments, found.shown.attribute
    positives, negatives = (
        pd.array(sums[name].rows.astype(int), dtype="Int64" if shown.withheld.any() else "int64") for name in ("tpr", "fpr")
    )
    columns: dict[str, Any] = {
        "attribute": attribute.name,
        "reference": [level == attribute.reference for level in attribute.levels],
        "n": shown.rows,
        "positives": positives,
        "negatives": negatives,
    }
    for counts in (positives, negatives) if shown.withheld.any() else ():
        counts[shown.withheld] = pd.NA
    rates = [name for name in GROUP_MEASURES if name in sums.ratios]
    low, high = sums.signed(dict.fromkeys(rates, 1.0)).term_limits(spec.level)  # (groups, rates)
    limits = {name: Limits(sums[name].value, low[:, k], high[:, k], sums[name].patients) for k, name in enumerate(rates)}
    limits |= {
        name: replace(limits[other], value=1 - limits[other].value, low=1 - limits[other].high, high=1 - limits[other].low)
        for name, other in COMPLEMENTS.items()
    }
    of_scores = {}
    if found.measured is not None:
        rows, of_rows = found.measured
        points = operating_points(rows, spec.specificity, spec.sensitivity, spec.level, spec.min_patients)
        of_scores = dict(zip(SCORE_MEASURES, (*of_rows.values(), *points), strict=True))
    limits |= {"auroc": found.aurocs, **of_scores}
    lacking: list[dict[str, str]] = [{} for _ in attribute.levels]
    few: list[list[str]] = [[] for _ in attribute.levels]
    for name in (*GROUP_MEASURES, *of_scores):
        of_group = limits[name]
        reasons, effective = of_group.why, of_group.patients
        if name in GROUP_MEASURES:
            usable = (of_group.patients >= spec.min_patients) & ~np.isnan(of_group.value)
            reasons = tuple("" if enough else TOO_FEW for enough in usable)
            bases = ("tpr", "fpr") if name == "auroc" else (COMPLEMENTS.get(name, name),)
            effective = np.min([sums[rate].effective for rate in bases], axis=0)
        known = np.array([not why for why in reasons])
        for end, values in (("", of_group.value), ("_low", of_group.low), ("_high", of_group.high)):
            columns[f"{name}{end}"] = np.where(known, values, np.nan)
        for k, why in enumerate(reasons):
            if why:
                lacking[k][name] = WITHHELD if shown.complement[k] else why
            elif effective[k] < FEW_PATIENTS:
                few[k].append(name)
    if found.measured is not None:
        error = binned_error(rows, spec.level, spec.seed, spec.min_patients)
        for end, values in (("", error.value), ("_expected_low", error.low), ("_expected_high", error.high)):
            columns[f"{CALIBRATION_ERROR}{end}"] = values
        columns["sampled"] = np.where(shown.withheld, shown.rows, rows.clusters.sum(1.0).astype(int))
        for k in np.flatnonzero(np.isnan(error.value)).tolist():
            lacking[k][CALIBRATION_ERROR] = WITHHELD if shown.complement[k] else TOO_FEW
    columns |= {"lacking": lacking, "few": [", ".join(names) for names in few]}
    columns["note"] = [lacking_note(reasons, spec.min_patients, unit) if reasons else "" for reasons in lacking]
    return pd.DataFrame(columns, index=pd.Index(attribute.levels, name="group"))


def _gap_frame(found: AttributeEstimates, spec: AuditSpec, unit: str) -> pd.DataFrame:
    """One row per gap and group, without tests, which are computed later, over all attributes and labels together."""
    attribute, sums, protecting, least = found.shown.attribute, found.moments, found.shown.complement, spec.min_patients
    rows: list[tuple[object, ...]] = []
    usable: list[BoolArray] = [np.zeros(0, bool)]
    for gap in spec.gaps:
        signed = measure_of(gap).coefficients
        counts, patients, few = _patients(sums, signed)
        usable.append(patients >= least)
        labels = " and ".join("positives" if label else "negatives" for label in measure_of(gap).labels)
        if measure_of(gap).is_quotient:
            counted = f"{unit} decided {'positive' if 'ppv' in signed else 'negative'}"
        else:
            counted = unit if not labels else f"{unit} with {labels}" if unit == "patients" else labels
        for k, level in enumerate(attribute.others):
            small = [group for group, n in ((level, counts[k + 1]), (attribute.reference, counts[0])) if n < least]
            note = f"{INSUFFICIENT_DATA}: fewer than {least} {counted} in {', '.join(map(repr, small))}" if small else ""
            if protecting[[0, k + 1]].any():
                note = f"{INSUFFICIENT_DATA}: {protection(least, unit)}"
            marked = bool(usable[-1][k] and few[k])
            rows.append(
                (gap, attribute.name, level, attribute.reference, *[np.nan] * 7, False, False, np.nan, int(patients[k]), marked, note)
            )
    frame, known = pd.DataFrame(rows, columns=GAP_COLUMNS), np.concatenate(usable)
    detectable = detectable_gaps(sums, [measure_of(gap).coefficients for gap in spec.gaps], spec.level).ravel()
    numbers = zip(("value", "low", "high", "detectable"), (*found.gaps.limits(spec.level), detectable), strict=True)
    return frame.assign(**{name: np.where(known, values, np.nan) for name, values in numbers})


def require_decided_cells(spec: AuditSpec, tables: Sequence[Cells], where: str) -> None:
    """Raises one error that lists every empty cell that a requested measure needs; by default no measure needs a cell."""
    problems: list[str] = []
    for cells in tables if spec.measures is not None else ():
        for gap in spec.gaps:
            try:
                cells.require(gap, where)
            except EmptyCell as error:
                problems += error.problems
                continue
            if measure_of(gap).is_quotient and np.isnan(cells.gaps(gap)).any():  # no row of some group is decided positive (or negative)
                decided, direction = ("positive", "lower") if measure_of(gap).decided else ("negative", "higher")
                problems += [
                    f"{gap} needs rows that are decided {decided} in every group; {level!r} has none of {int(cells.n[code].sum()):,} rows "
                    f"in {where}. Use a {direction} threshold, more data, or merge groups (data.merge)"
                    for code, level in enumerate(cells.levels)
                    if np.isnan(cells.rate(MEASURES[gap].rate)[code])
                ]
    if problems:
        raise EmptyCell(*problems)


def _tested_together(untested: Sequence[tuple[LabelAudit, Sequence[AttributeEstimates]]]) -> list[LabelAudit]:
    """The audits of all labels, with adjusted p-values, marks and simultaneous intervals (see `families`), and with headlines."""
    level = untested[0][0].settings.level
    gaps = pd.concat([audit.gaps.assign(label=k) for k, (audit, _) in enumerate(untested)], ignore_index=True)
    correlations = []
    for audit, estimates in untested:
        signed = {name: measure_of(name).coefficients for name in audit.settings.gaps}
        correlations += [(len(each.gaps.value), partial(each.moments.gap_correlation, signed)) for each in estimates]
    sums, steps = concatenate_sums([each.gaps for _, estimates in untested for each in estimates]), []
    for audit, _ in untested:
        tested = {measure_of(measure).signature for measure in audit.settings.tested}
        primary = np.array([measure_of(measure).signature in tested for measure in audit.gaps["measure"]], dtype=bool)
        steps.append(np.where(primary, audit.gaps["attribute"].isin(audit.intersections), -1))
    gaps = family_decisions(gaps, sums, level, correlations, np.concatenate(steps).astype(np.int64))
    audits = []
    for k, (audit, _) in enumerate(untested):
        frame = gaps[gaps["label"] == k].drop(columns="label").reset_index(drop=True)
        by_measure: dict[str, list[dict[Any, Any]]] = {}
        for row in frame.to_dict("records"):
            by_measure.setdefault(row["measure"], []).append(row)
        headlines = {}  # the gap of each measure with the largest absolute value among the groups with sufficient data
        for measure, rows in by_measure.items():
            known = [row for row in rows if not np.isnan(row["value"])]
            note = f"{len(rows) - len(known)} of {len(rows)} groups have insufficient data" if 0 < len(known) < len(rows) else None
            headlines[measure] = Estimate.of_gap(max(known, key=lambda row: abs(row["value"])) if known else rows[0], note)
        comparisons = len(np.unique(comparisons_of(frame)[frame["p_adjusted"].notna()]))
        audits.append(replace(audit, gaps=frame, comparisons=comparisons, estimates=headlines | audit.estimates))
    return audits


def estimate_performance(scores: Scores, f: FloatArray, names: Sequence[str], settings: AuditSpec) -> dict[str, Estimate]:
    """The performance measures of all rows together, each with its interval.

    - `scores`, `f`: the rows, and the decisions on them (n,).
    - `names`: of the measures.
    - `settings`: the level of the intervals is read.
    """
    units = units_of(scores.patients, len(scores))
    ranking = cache(partial(Ranking, scores.rank, scores.y, units, scores.weight))  # sorts the rows only for a measure of their order

    def ranked(name: str, level: float) -> Estimate:
        return Estimate(*(ranking().auroc if name == "auroc" else ranking().average_precision)(level))

    sums = moments_of(f, scores.y, np.zeros(len(scores), np.int64), 1, units, scores.weight)
    return performance_of(names, sums, settings.level, ranked)


def performance_of(names: Sequence[str], sums: Moments, level: float, ranked: Callable[[str, float], Estimate]) -> dict[str, Estimate]:
    """The performance measures of all rows together from their moments; `ranked` estimates those of the order of the scores."""
    lacking, estimates = [label for label, n in zip(("negatives", "positives"), sums.total[0, :2], strict=True) if n == 0], {}
    for name in names:
        if lacking and name != "accuracy":
            estimates[name] = Estimate(np.nan, np.nan, np.nan, f"{INSUFFICIENT_DATA}: no {' and no '.join(lacking)}")
        elif name in RANK_MEASURES:
            estimates[name] = ranked(name, level)
        else:
            signed = {"f1": {"jaccard": 1.0}}.get(name, estimated_rates(name, sums.total[0, :2]))
            ends = np.array([float(end[0]) for end in sums.signed(signed).limits(level)]) + (0.5 if name == "balanced_accuracy" else 0.0)
            estimates[name] = Estimate(
                *np.clip(2 * ends / (1 + ends) if name == "f1" else ends, -np.inf if missed_case_worth(name) else 0.0, 1.0).tolist()
            )
    return estimates


def _patients(sums: Moments, signed: Mapping[str, float]) -> tuple[FloatArray, FloatArray, BoolArray]:
    """The patients of each group that a gap rests on (groups,), the smaller number of each group and the reference (groups - 1,), and
    whether their effective number is small (groups - 1,)."""
    counts, effective = (np.min([getattr(sums[name], kind) for name in signed], axis=0) for kind in ("patients", "effective"))
    return counts, np.minimum(counts[1:], counts[0]), np.minimum(effective[1:], effective[0]) < FEW_PATIENTS


def detectable_gaps(sums: Moments, gaps: Sequence[Mapping[str, float]], level: float) -> FloatArray:
    """The minimum detectable gap of every group except the reference, for signed sums of ratios (gaps, groups - 1).

    With few patients the design effect is itself uncertain: that of the group or that of all groups together is used, whichever is larger.
    """
    found = np.full((len(gaps), len(sums.total) - 1), np.nan)
    for width in {len(signed) for signed in gaps}:  # gaps with equally many terms at once: each solution takes 20 steps on small arrays
        chosen = [k for k, signed in enumerate(gaps) if len(signed) == width]
        value, size, degrees, rows = (
            np.stack([np.stack([getattr(sums[name], kind) for name in gaps[k]], axis=-1) for k in chosen])
            for kind in ("value", "size", "degrees", "rows")
        )  # (gaps, groups, terms)
        design_effect = np.nan_to_num(ratio(rows, size), nan=1.0)
        pooled = ratio((rows * design_effect).sum(1, keepdims=True), rows.sum(1, keepdims=True))
        size = fewer_clusters(np.fmin(size, ratio(rows, np.broadcast_to(pooled, rows.shape))), degrees, level)
        size = np.where(size > 0, size, np.nan)
        signs = np.array([list(gaps[k].values()) for k in chosen])[:, None]
        found[chosen] = detectable_gap(signs, np.broadcast_to(value[:, :1], value[:, 1:].shape), size[:, :1], size[:, 1:], level)
    return found


def simultaneous_gaps(scores: Scores, f: FloatArray, measure: str, settings: AuditSpec, labels: int = 1) -> list[Estimate]:
    """The gap of every group except the reference, with pointwise and simultaneous limits; NaN if a group has too few patients.

    The simultaneous intervals of the measure all cover with probability `settings.level`, over as many `labels` as are judged together.

    - `f`: decisions (n,).
    - `settings`: level and least number of patients.

    >>> scores = Scores.from_arrays([1, 1, 1, 1, 0] * 40, [0.5] * 200, ["F", "M"] * 100, reference="M")
    >>> (gap,) = simultaneous_gaps(scores, np.tile([0.0, 1.0, 1.0, 1.0], 50), "spd", AuditSpec())
    >>> gap.value, abs(gap.low - gap.simultaneous_low) < 1e-9
    (-0.5, True)
    """
    sums, signed = moments_of_scores(scores, f), measure_of(measure).coefficients
    gap = sums.gap(signed)
    _, patients, few = _patients(sums, signed)
    known = (patients >= settings.min_patients) & ~np.isnan(gap.total)
    correlations = [(len(known), partial(sums.gap_correlation, {measure: signed}))]
    joint = critical_value(known, few, correlations, 1 - (1 - settings.level) / labels)
    limits, simultaneous = gap.limits(settings.level), gap.limits(level_of(joint))
    estimates = []
    for k, group in enumerate(scores.attribute.others):
        estimate = Estimate(np.nan, np.nan, np.nan, INSUFFICIENT_DATA)
        if known[k]:
            (value, low, high), (_, lower, upper) = ([float(end[k]) for end in ends] for ends in (limits, simultaneous))
            estimate = Estimate(value, low, high, few=bool(few[k]), simultaneous_low=lower, simultaneous_high=upper)
        estimates.append(replace(estimate, group=group, reference=scores.attribute.reference, patients=int(patients[k])))
    return estimates
