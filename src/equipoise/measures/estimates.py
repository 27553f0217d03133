"""Estimates with intervals: every rate of every group, every gap, every performance measure. The unit of sampling is the patient."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from equipoise.data import Attribute, BoolArray, IntArray, Scores
from equipoise.measures.audit_spec import AuditSpec
from equipoise.measures.calibration import REASONS, TOO_FEW, WITHHELD
from equipoise.measures.cells import FloatArray, ratio
from equipoise.measures.gaps import coefficients, is_quotient, labels_needed
from equipoise.measures.intervals import Limits, detectable_gap, fewer_clusters
from equipoise.measures.moments import Moments, moments_of, moments_of_scores, units_of
from equipoise.measures.performance import RankedRows
from equipoise.measures.permutation import joint_levels

INSUFFICIENT = "insufficient data"
GROUP_MEASURES = ("selection_rate", "tpr", "fpr", "tnr", "fnr", "ppv", "npv", "auroc")
FEW = 30  # patients; estimates from fewer are marked
MIRRORED = {"tnr": "fpr", "fnr": "tpr"}  # one minus the other rate
CALIBRATION_ERROR = "calibration_error"  # has the band of a calibrated model instead of an interval
GAP_NUMBERS = ("simultaneous_low", "simultaneous_high", "p_value", "p_adjusted", "detectable")


@dataclass(frozen=True)
class Estimate:
    """A value with its interval. If the data are insufficient, `value` is NaN and `note` gives the reason."""

    value: float
    low: float
    high: float
    note: str = ""
    group: str = ""
    reference: str = ""
    detectable: float = float("nan")  # minimum gap detectable with 80 % power; NaN if even the largest possible gap is not detectable
    p_value: float = float("nan")  # of a gap: by permutation of the groups
    p_adjusted: float = float("nan")  # for all comparisons of the audit
    simultaneous_low: float = float("nan")  # limits that hold simultaneously with those of all other gaps of the audit
    simultaneous_high: float = float("nan")
    clear: bool = False  # whether the adjusted p-value makes the gap a finding
    patients: int = 0  # in the smaller of the two groups compared
    few: bool = False  # fewer than 30 patients in one of them; effective patients, if their rows or weights are unequal

    @classmethod
    def of_gap(cls, row: Mapping[str, Any], note: str | None = None) -> "Estimate":
        """The estimate in one row of `Audit.gaps`."""
        fields: dict[str, Any] = {name: float(row[name]) for name in ("value", "low", "high", *GAP_NUMBERS)}
        fields |= {"group": str(row["group"]), "reference": str(row["reference"]), "note": str(row["note"]) if note is None else note}
        return cls(**fields, clear=bool(row["clear"]), patients=int(row["patients"]), few=bool(row["few"]))

    def __float__(self) -> float:
        return self.value

    def __str__(self) -> str:
        if np.isnan(self.value):
            return self.note or INSUFFICIENT
        versus = f" ({self.group} minus {self.reference})" if self.group else ""
        sign = "+" if self.group else ""
        return f"{self.value:{sign}.3f} [{self.low:{sign}.3f}, {self.high:{sign}.3f}]{versus}"

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON, None for NaN."""
        numbers = {"value": self.value, "low": self.low, "high": self.high}
        if self.group:
            numbers |= {name: getattr(self, name) for name in GAP_NUMBERS}
        plain: dict[str, object] = {k: None if np.isnan(v) else v for k, v in numbers.items()}
        if self.group:
            plain |= {"group": self.group, "reference": self.reference, "direction": "group minus reference"}
            plain |= {"clear": self.clear, "patients": self.patients, "few": self.few}
        return plain | ({"note": self.note} if self.note else {})


GAP_COLUMNS = [
    *("measure", "attribute", "group", "reference", "value", "low", "high"),
    *("simultaneous_low", "simultaneous_high", "p_value", "p_adjusted", "clear"),
    *("detectable", "patients", "few", "note"),
]


@dataclass(frozen=True, eq=False)
class ScoreMeasures:
    """The measures of the scores for the groups of one attribute."""

    limits: dict[str, Limits]  # by measure
    error: Limits  # the binned calibration error, with the band of a calibrated model instead of an interval
    curves: pd.DataFrame  # the decision curves
    rows: IntArray  # (groups,) rows that they were estimated from


def frames_of(
    attribute: Attribute,
    sums: Moments,
    aurocs: Limits,
    scores: ScoreMeasures | None,
    gaps: Sequence[str],
    settings: AuditSpec,
    unit: str,
    protecting: BoolArray,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """One row per group with every rate and its interval, and one row per gap and group.

    `unit` is "patients" or "rows", whichever is the unit of sampling. `protecting` marks groups (groups,) whose rows are left out because
    the numbers of a smaller group would follow from theirs.
    """
    detectable = detectable_gaps(sums, [coefficients(name) for name in gaps], settings.level)
    rows: list[tuple[object, ...]] = []
    for name, smallest in zip(gaps, detectable, strict=True):
        rows += _gap_rows(name, attribute, sums, smallest, settings, unit, protecting)
    return _group_frame(attribute, sums, aurocs, scores, settings, unit, protecting), pd.DataFrame(rows, columns=GAP_COLUMNS)


def estimate_performance(scores: Scores, f: FloatArray, names: Sequence[str], settings: AuditSpec) -> dict[str, Estimate]:
    """The performance measures of all rows together, each with its interval."""
    if not names:
        return {}
    units = units_of(scores.patients, len(scores))
    sums = moments_of(f, scores.y, np.zeros(len(scores), np.int64), 1, units, scores.weight)
    lacking = [label for label, n in zip(("negatives", "positives"), sums.total[0, :2], strict=True) if n == 0]
    ranked = None if lacking else RankedRows(scores.rank, scores.y, units, scores.weight)
    estimates = {}
    for name in names:
        if ranked is None and name != "accuracy":
            estimates[name] = Estimate(np.nan, np.nan, np.nan, f"{INSUFFICIENT}: no {' and no '.join(lacking)}")
        elif ranked is not None and name in ("auroc", "average_precision"):
            estimates[name] = Estimate(*(ranked.auroc if name == "auroc" else ranked.average_precision)(settings.level))
        else:
            estimates[name] = Estimate(*performance_limits(name, sums, settings.level))
    return estimates


def performance_limits(name: str, sums: Moments, level: float) -> tuple[float, float, float]:
    """Accuracy, balanced accuracy or F1 with its limits, from the moments of all rows."""
    if name == "balanced_accuracy":
        half, low, high = (float(x[0]) for x in sums.signed({"tpr": 0.5, "fpr": -0.5}).limits(level))
        return 0.5 + half, max(0.5 + low, 0.0), min(0.5 + high, 1.0)
    proportion = "jaccard" if name == "f1" else name
    value, low, high = (float(x[0]) for x in (sums[proportion].value, *sums.interval(proportion, level)))
    return (value, low, high) if name != "f1" else (2 * value / (1 + value), 2 * low / (1 + low), 2 * high / (1 + high))


def _group_frame(
    attribute: Attribute,
    sums: Moments,
    aurocs: Limits,
    scores: ScoreMeasures | None,
    settings: AuditSpec,
    unit: str,
    protecting: BoolArray,
) -> pd.DataFrame:
    negatives, positives = (sums[name].rows.astype(int) for name in ("fpr", "tpr"))
    columns: dict[str, object] = {
        "attribute": attribute.name,
        "reference": [level == attribute.reference for level in attribute.levels],
        "n": negatives + positives,
        "positives": positives,
        "negatives": negatives,
    }
    lacking: list[dict[str, str]] = [{} for _ in attribute.levels]
    few: list[list[str]] = [[] for _ in attribute.levels]
    for name in (*GROUP_MEASURES, *(() if scores is None else scores.limits)):
        source = MIRRORED.get(name, name)
        if scores is not None and name in scores.limits:
            limits = scores.limits[name]
            reasons, effective = limits.why, limits.patients
        else:
            limits = (
                aurocs if name == "auroc" else Limits(sums[source].value, *sums.interval(source, settings.level), sums[source].patients)
            )
            if name in MIRRORED:
                limits = replace(limits, value=1 - limits.value, low=1 - limits.high, high=1 - limits.low)
            usable = (limits.patients >= settings.min_patients) & ~np.isnan(limits.value)
            reasons = tuple("" if enough else TOO_FEW for enough in usable)
            effective = np.min([sums[rate].effective for rate in (("tpr", "fpr") if name == "auroc" else (source,))], axis=0)
        known = np.array([not why for why in reasons])
        for end, values in (("", limits.value), ("_low", limits.low), ("_high", limits.high)):
            columns[f"{name}{end}"] = np.where(known, values, np.nan)
        for k, why in enumerate(reasons):
            if why:
                lacking[k][name] = WITHHELD if protecting[k] else why
            elif effective[k] < FEW:
                few[k].append(name)
    if scores is not None:
        error = scores.error
        columns |= {CALIBRATION_ERROR: error.value, f"{CALIBRATION_ERROR}_expected_low": error.low}
        columns |= {f"{CALIBRATION_ERROR}_expected_high": error.high, "sampled": scores.rows}
        for k in np.flatnonzero(np.isnan(error.value)).tolist():
            lacking[k][CALIBRATION_ERROR] = WITHHELD if protecting[k] else TOO_FEW
    columns |= {"lacking": lacking, "few": [", ".join(names) for names in few]}
    columns["note"] = [lacking_note(reasons, settings.min_patients, unit) for reasons in lacking]
    return pd.DataFrame(columns, index=pd.Index(attribute.levels, name="group"))


def _protects(least: int, unit: str) -> str:
    return f"withheld, because those of a group with fewer than {least} {unit} would follow"


def lacking_note(lacking: Mapping[str, str], least: int, unit: str) -> str:
    """The measures of a group that are missing, in words, from the reason of each."""
    common = {TOO_FEW: f"fewer than {least} {unit}", WITHHELD: _protects(least, unit)}
    listed = {why: ", ".join(name for name, reason in lacking.items() if reason == why) for why in common}
    parts = [f"{INSUFFICIENT} ({common[why]}): {names}" for why, names in listed.items() if names]
    others = ", ".join(f"{name} ({REASONS[reason]})" for name, reason in lacking.items() if reason not in common)
    return "; ".join([*parts, *([f"{INSUFFICIENT}: {others}"] if others else [])])


def group_estimate(row: "pd.Series[float]", rate: str) -> Estimate:
    """A rate of a group, from its row in `Audit.groups`; the limits of the calibration error are those expected of a calibrated model."""
    few = rate in str(row["few"]).split(", ")
    limits = f"{rate}_expected" if rate == CALIBRATION_ERROR else rate
    return Estimate(float(row[rate]), float(row[f"{limits}_low"]), float(row[f"{limits}_high"]), few=few)


def _gap_rows(
    gap: str, attribute: Attribute, sums: Moments, detectable: FloatArray, settings: AuditSpec, unit: str, protecting: BoolArray
) -> list[tuple[object, ...]]:
    signed = coefficients(gap)
    ends = sums.gap(signed).limits(settings.level)
    counts, patients, few = _patients(sums, signed)
    usable = patients >= settings.min_patients
    labels = " and ".join("positives" if label else "negatives" for label in labels_needed(gap))
    if is_quotient(gap):
        counted = f"{unit} decided {'positive' if 'ppv' in signed else 'negative'}"
    else:
        counted = unit if not labels else f"{unit} with {labels}" if unit == "patients" else labels
    rows: list[tuple[object, ...]] = []
    for k, level in enumerate(attribute.others):
        small = [group for group, n in ((level, counts[k + 1]), (attribute.reference, counts[0])) if n < settings.min_patients]
        note = f"{INSUFFICIENT}: fewer than {settings.min_patients} {counted} in {', '.join(map(repr, small))}" if small else ""
        if protecting[[0, k + 1]].any():
            note = f"{INSUFFICIENT}: {_protects(settings.min_patients, unit)}"
        *numbers, power = (float(x[k]) if usable[k] else np.nan for x in (*ends, detectable))
        tests = (np.nan, np.nan, np.nan, np.nan, False)  # computed later, over all attributes and labels together
        marked = bool(usable[k] and few[k])
        rows.append((gap, attribute.name, level, attribute.reference, *numbers, *tests, power, int(patients[k]), marked, note))
    return rows


def _patients(sums: Moments, signed: Mapping[str, float]) -> tuple[FloatArray, FloatArray, BoolArray]:
    """The patients of each group that a gap rests on (groups,), the smaller number of each group and the reference (groups - 1,), and
    whether their effective number is small (groups - 1,)."""
    counts, effective = (np.min([getattr(sums[name], kind) for name in signed], axis=0) for kind in ("patients", "effective"))
    return counts, np.minimum(counts[1:], counts[0]), np.minimum(effective[1:], effective[0]) < FEW


def simultaneous(gaps: pd.DataFrame, sums: Sequence[Moments], levels: FloatArray) -> pd.DataFrame:
    """The gaps with simultaneous intervals, each at the level of its row. `sums` has one item per attribute, in the order of the rows."""
    low, high = np.full(len(gaps), np.nan), np.full(len(gaps), np.nan)
    start = 0
    measures = list(dict.fromkeys(gaps["measure"]))
    for moments in sums:
        for measure in measures:
            rows = slice(start, start := start + len(moments.total) - 1)
            for level in np.unique(levels[rows][~np.isnan(levels[rows])]):
                _, lower, upper = moments.gap(coefficients(measure)).limits(float(level))
                low[rows], high[rows] = (np.where(levels[rows] == level, new, old[rows]) for new, old in ((lower, low), (upper, high)))
    return gaps.assign(simultaneous_low=low, simultaneous_high=high)


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

    >>> scores = Scores.from_arrays([1, 1, 1, 1, 0] * 40, [0.5] * 200, ["F", "M"] * 100, reference="M")
    >>> (gap,) = simultaneous_gaps(scores, np.tile([0.0, 1.0, 1.0, 1.0], 50), "spd", AuditSpec())
    >>> gap.value, gap.low == gap.simultaneous_low < gap.value
    (-0.5, True)
    """
    sums, signed = moments_of_scores(scores, f), coefficients(measure)
    gap = sums.gap(signed)
    _, patients, few = _patients(sums, signed)
    known = (patients >= settings.min_patients) & ~np.isnan(gap.total)
    small = few | ((known & ~few).sum() < 2)  # a single gap has no maximum over others
    correlations = [(len(known), partial(sums.gap_correlation, {measure: signed}))]
    levels = joint_levels(np.where(known, np.arange(len(known)), -1), small, correlations, 1 - (1 - settings.level) / labels)
    limits = {level: gap.limits(level) for level in (settings.level, *np.unique(levels[known]).tolist())}
    estimates = []
    for k, group in enumerate(scores.attribute.others):
        estimate = Estimate(np.nan, np.nan, np.nan, INSUFFICIENT)
        if known[k]:
            (value, low, high), (_, lower, upper) = ([float(end[k]) for end in limits[at]] for at in (settings.level, float(levels[k])))
            estimate = Estimate(value, low, high, few=bool(few[k]), simultaneous_low=lower, simultaneous_high=upper)
        estimates.append(replace(estimate, group=group, reference=scores.attribute.reference, patients=int(patients[k])))
    return estimates
