"""Values with error bars: every rate of every group, every gap, every performance measure. The unit of sampling is the patient."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from equipoise.data import Attribute, IntArray, Scores
from equipoise.errors import raise_all
from equipoise.measures.cells import FloatArray, grouped, ratio, sums_at
from equipoise.measures.clusters import units_of
from equipoise.measures.gaps import MEASURES, USUAL, is_quotient, labels_needed, read_range, terms
from equipoise.measures.intervals import Limits, auroc_interval, detectable_gap, fewer_clusters, wilson
from equipoise.measures.moments import Moments, moments_of
from equipoise.measures.performance import Ranking

INSUFFICIENT = "insufficient data"
GROUP_MEASURES = ("selection_rate", "tpr", "fpr", "tnr", "fnr", "ppv", "npv", "auroc")
FEW = 30  # patients; estimates of fewer are marked
MIRRORED = {"tnr": "fpr", "fnr": "tpr"}  # one minus the other
CALIBRATION_ERROR = "calibration_error"  # has the band of a calibrated model in place of an interval
GAP_NUMBERS = ("simultaneous_low", "simultaneous_high", "p_value", "p_adjusted", "detectable")


@dataclass(frozen=True)
class Settings:
    """How intervals are made, and how many patients a cell needs."""

    level: float = 0.95
    seed: int = 0
    min_patients: int = 5
    specificity: float = 0.9  # at which sensitivity is reported, and in reverse
    sensitivity: float = 0.9
    thresholds: tuple[float, ...] = read_range(USUAL)  # of decision curves

    def __post_init__(self) -> None:
        inside = {"specificity": self.specificity, "sensitivity": self.sensitivity}
        problems = [f"{name} must be between 0 and 1, without these ends; got {v}" for name, v in inside.items() if not 0 < v < 1]
        if not 0.01 <= self.level <= 1 - 1e-9:  # beyond, quantiles are 0 or infinite; simultaneous intervals have levels above 0.9999
            problems.insert(0, f"level must be at least 0.01 and at most 0.9999; got {self.level}")
        raise_all(problems)


@dataclass(frozen=True)
class Estimate:
    """A value with its interval. `value` is NaN, and the note says why, where the data are insufficient."""

    value: float
    low: float
    high: float
    note: str = ""
    group: str = ""
    reference: str = ""
    detectable: float = float("nan")  # the smallest gap shown with 80 % power; NaN where no possible gap is so large
    p_value: float = float("nan")  # of a gap: by permutation of the groups
    p_adjusted: float = float("nan")  # for all comparisons of the audit
    simultaneous_low: float = float("nan")  # the interval that holds together with those of all other gaps of the audit
    simultaneous_high: float = float("nan")
    clear: bool = False  # whether the adjusted p-value makes the gap a finding
    patients: int = 0  # in the smaller of the two cells that the gap needs
    few: bool = False  # fewer than 30 patients in one of them

    @classmethod
    def of_gap(cls, row: Mapping[str, Any], note: str | None = None) -> "Estimate":
        """The estimate in one row of `Audit.gaps`."""
        known: dict[str, Any] = {name: float(row[name]) for name in ("value", "low", "high", *GAP_NUMBERS)}
        known |= {"group": str(row["group"]), "reference": str(row["reference"]), "note": str(row["note"]) if note is None else note}
        return cls(**known, clear=bool(row["clear"]), patients=int(row["patients"]), few=bool(row["few"]))

    def __float__(self) -> float:
        return self.value

    def __str__(self) -> str:
        if np.isnan(self.value):
            return self.note or INSUFFICIENT
        versus = f" ({self.group} minus {self.reference})" if self.group else ""
        sign = "+" if self.group else ""
        return f"{self.value:{sign}.3f} [{self.low:{sign}.3f}, {self.high:{sign}.3f}]{versus}"

    def to_dict(self) -> dict[str, object]:
        """Plain values, None for NaN."""
        numbers = {"value": self.value, "low": self.low, "high": self.high}
        if self.group:
            numbers |= {name: getattr(self, name) for name in GAP_NUMBERS}
        plain: dict[str, object] = {k: None if np.isnan(v) else v for k, v in numbers.items()}
        if self.group:
            plain |= {"group": self.group, "reference": self.reference, "direction": "group minus reference"}
            plain |= {"clear": self.clear, "patients": self.patients, "few": self.few}
        return plain | ({"note": self.note} if self.note else {})


def estimate_attribute(
    scores: Scores, f: FloatArray, attribute: Attribute, gaps: Sequence[str], settings: Settings
) -> tuple[pd.DataFrame, pd.DataFrame, Moments]:
    """One row per group with every rate and its interval, one row per gap and group, and the moments that they follow from."""
    units = units_of(scores.patients, len(scores))
    sums = moments_of(f, scores.y, attribute.codes, len(attribute.levels), units, scores.weight)
    unit = "rows" if scores.patients is None else "patients"
    return *frames_of(attribute, sums, aurocs(scores, attribute, units, settings.level), gaps, settings, unit), sums


def frames_of(
    attribute: Attribute, sums: Moments, areas: Limits, gaps: Sequence[str], settings: Settings, unit: str
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """One row per group with every rate and its interval, and one row per gap and group, from the moments and AUROCs of the groups."""
    found = {name: areas if name == "auroc" else _rate(sums, name, settings.level) for name in GROUP_MEASURES}
    detectable = detectable_gaps(sums, [coefficients(name) for name in gaps], settings.level)
    rows = [row for name, own in zip(gaps, detectable, strict=True) for row in _gap_rows(name, attribute, sums, own, settings, unit)]
    return _group_frame(attribute, sums, found, settings, unit), pd.DataFrame(rows, columns=GAP_COLUMNS)


GAP_COLUMNS = [
    *("measure", "attribute", "group", "reference", "value", "low", "high"),
    *("simultaneous_low", "simultaneous_high", "p_value", "p_adjusted", "clear"),
    *("detectable", "patients", "few", "note"),
]


def estimate_performance(scores: Scores, f: FloatArray, names: Sequence[str], settings: Settings) -> dict[str, Estimate]:
    """The performance measures of all rows together, each with its interval."""
    if not names:
        return {}
    units = units_of(scores.patients, len(scores))
    everyone = np.zeros(len(scores), np.int64)
    sums = moments_of(f, scores.y, everyone, 1, units, scores.weight)
    ranked = _Ranked(Ranking(scores.score, scores.y), units, scores.weight)
    present = sums.total[0, :2]
    lacking = [what for what, n in zip(("negatives", "positives"), present, strict=True) if n == 0]
    found = {}
    for name in names:
        if lacking and name != "accuracy":
            found[name] = Estimate(np.nan, np.nan, np.nan, f"{INSUFFICIENT}: no {' and no '.join(lacking)}")
            continue
        value, low, high = _performance(name, sums, ranked, settings.level)
        found[name] = Estimate(float(value), float(low), float(high))
    return found


@dataclass(frozen=True, eq=False)
class _Ranked:
    """Ranked rows, the patient of each, and its weight."""

    ranking: Ranking
    units: IntArray
    weight: FloatArray | None

    @cached_property
    def rows(self) -> tuple[FloatArray, FloatArray]:
        """How many positive and how many negative rows each patient has; patients with neither are left out."""
        count = int(self.units.max(initial=-1)) + 1
        held = [np.bincount(self.units[side], minlength=count) for side in (self.ranking.positive, self.ranking.negative)]
        return held[0][held[0] > 0].astype(np.float64), held[1][held[1] > 0].astype(np.float64)

    def patients(self) -> tuple[int, int]:
        """How many patients have positive rows, and how many have negative ones."""
        positive, negative = self.rows
        return len(positive), len(negative)

    def amounts(self) -> tuple[float, float]:
        """How many patients of equal weight the positive and the negative rows amount to (Kish)."""
        held: list[FloatArray] = list(self.rows)
        if self.weight is not None:
            held = [
                sums_at(self.units[side], self.weight[side], int(self.units.max()) + 1)
                for side in (self.ranking.positive, self.ranking.negative)
            ]
        positive, negative = (float(each.sum() ** 2 / (each**2).sum()) for each in held)
        return positive, negative

    def variance(self, influence: tuple[FloatArray, FloatArray]) -> float:
        """The variance between patients of a measure, from what each row adds to it."""
        units = self.units[np.concatenate([self.ranking.positive, self.ranking.negative])]
        sums, rows = np.bincount(units, np.concatenate(influence)), np.bincount(units)
        patients = int((rows > 0).sum())
        return float((sums**2).sum()) * (patients / (patients - 1) if 1 < patients < len(units) else 1.0)

    def degrees(self) -> float:
        """Degrees of freedom of that variance; infinite where each patient has one row of each label at most."""
        rows, patients = (len(self.ranking.positive), len(self.ranking.negative)), self.patients()
        return float("inf") if rows == patients else max(min(patients) - 1.0, 1.0)


def _performance(name: str, sums: Moments, ranked: _Ranked, level: float) -> tuple[float, float, float]:
    """The value and the limits of a performance measure of all rows."""
    if name == "auroc":
        return _auroc(ranked, level)
    if name == "average_precision":
        return _average_precision(ranked, level)
    return performance_of(name, sums, level)


def performance_of(name: str, sums: Moments, level: float) -> tuple[float, float, float]:
    """The value and the limits of a performance measure of decisions, from the moments of all rows."""
    if name == "balanced_accuracy":
        half, low, high = (float(x[0]) for x in sums.sums({"tpr": 0.5, "fpr": -0.5}, level))
        return 0.5 + half, max(0.5 + low, 0.0), min(0.5 + high, 1.0)
    proportion = "jaccard" if name == "f1" else name
    value, low, high = (float(x[0]) for x in (sums.value(proportion), *sums.interval(proportion, level)))
    return (value, low, high) if name != "f1" else (2 * value / (1 + value), 2 * low / (1 + low), 2 * high / (1 + high))


def _auroc(ranked: _Ranked, level: float) -> tuple[float, float, float]:
    """AUROC with the limits of Newcombe's method 5, for as many positives and negatives as the rows of different patients amount to."""
    area, m, n = _area(ranked, level)
    low, high = auroc_interval(area, m, n, level)
    return area, float(low), float(high)


def _area(ranked: _Ranked, level: float) -> tuple[float, float, float]:
    """AUROC, and the effective numbers of positives and negatives."""
    area = float(ranked.ranking.auroc(ranked.weight))
    if np.isnan(area):
        return area, np.nan, np.nan
    sizes = ranked.amounts()
    unclustered = sum(float((side**2).sum()) for side in ranked.ranking.auroc_influence())
    if unclustered > 0 and 0 < area < 1:
        effect = max(ranked.variance(ranked.ranking.auroc_influence(ranked.weight)) / unclustered, 1.0)
        sizes = len(ranked.ranking.positive) / effect, len(ranked.ranking.negative) / effect
    m, n = (float(fewer_clusters(size, ranked.degrees(), level)) for size in sizes)
    return area, m, n


def _average_precision(ranked: _Ranked, level: float) -> tuple[float, float, float]:
    """Average precision with the limits of a proportion, of as many positives as its variance between patients amounts to.

    Average precision is too high in small samples, because each positive counts among those that score no lower than it does. The lower
    limit therefore allows for the value without that.
    """
    value = float(ranked.ranking.average_precision(ranked.weight))
    size = ranked.amounts()[0]
    variance = ranked.variance(ranked.ranking.average_precision_influence(ranked.weight))
    if 0 < value < 1 and variance > 0:
        size = min(len(ranked.ranking.positive), value * (1 - value) / variance)
    size = float(fewer_clusters(size, ranked.degrees(), level))
    without = np.fmin(value, ranked.ranking.average_precision_of_others(ranked.weight))
    low, high = wilson([without, value], size, level)
    return value, float(low[0]), float(high[1])


def _rate(sums: Moments, name: str, level: float) -> Limits:
    """A rate of each group; one minus another has the mirrored interval."""
    source = MIRRORED.get(name, name)
    value, (low, high) = sums.value(source), sums.interval(source, level)
    if name in MIRRORED:
        value, low, high = 1 - value, 1 - high, 1 - low
    return Limits(value, low, high, sums.patients(source))


def aurocs(scores: Scores, attribute: Attribute, units: IntArray, level: float) -> Limits:
    """The AUROC of each group."""
    order = np.argsort(attribute.codes, kind="stable")
    parts = np.split(order, np.searchsorted(attribute.codes[order], np.arange(len(attribute.levels) + 1)))[1:-1]
    found = []
    for rows in parts:  # one at a time, in memory of the largest group
        own = grouped(units[rows], int(units.max(initial=0)) + 1)[1]
        ranked = _Ranked(Ranking(scores.score[rows], scores.y[rows]), own, None if scores.weight is None else scores.weight[rows])
        found.append((*_area(ranked, level), float(min(ranked.patients()))))
    area, m, n, patients = np.array(found).reshape(-1, 4).T
    low, high = auroc_interval(area, m, n, level)
    return Limits(area, low, high, patients)


def _group_frame(attribute: Attribute, sums: Moments, found: Mapping[str, Limits], settings: Settings, unit: str) -> pd.DataFrame:
    negatives, positives = (sums.rows_of(name).astype(int) for name in ("fpr", "tpr"))
    columns: dict[str, object] = {
        "attribute": attribute.name,
        "reference": [level == attribute.reference for level in attribute.levels],
        "n": negatives + positives,
        "positives": positives,
        "negatives": negatives,
    }
    short: list[list[str]] = [[] for _ in attribute.levels]
    few: list[list[str]] = [[] for _ in attribute.levels]
    for name, rate in found.items():
        usable = (rate.patients >= settings.min_patients) & ~np.isnan(rate.value)
        for end, values in (("", rate.value), ("_low", rate.low), ("_high", rate.high)):
            columns[f"{name}{end}"] = np.where(usable, values, np.nan)
        for k in range(len(attribute.levels)):
            if not usable[k]:
                short[k].append(name)
            elif rate.patients[k] < FEW:
                few[k].append(name)
    columns["few"] = [", ".join(names) for names in few]
    columns["note"] = [
        f"{INSUFFICIENT} (fewer than {settings.min_patients} {unit}): {', '.join(names)}" if names else "" for names in short
    ]
    return pd.DataFrame(columns, index=pd.Index(attribute.levels, name="group"))


def group_estimate(row: "pd.Series[float]", rate: str) -> Estimate:
    """A rate of a group, from its row in `Audit.groups`; the ends of the calibration error are those of a calibrated model."""
    few = rate in str(row["few"]).split(", ")
    between = f"{rate}_expected" if rate == CALIBRATION_ERROR else rate
    return Estimate(float(row[rate]), float(row[f"{between}_low"]), float(row[f"{between}_high"]), few=few)


def coefficients(gap: str) -> Mapping[str, float]:
    """The ratios of a group whose signed sum a gap compares.

    >>> coefficients("spd"), coefficients("ppv_gap")
    ({'selection_rate': 1.0}, {'ppv': 1.0})
    """
    if is_quotient(gap):
        return {MEASURES[gap].rate: 1.0}
    return {"selection_rate" if rate == "selection" else rate: sign for rate, sign in terms(gap).items()}


def _gap_rows(
    gap: str, attribute: Attribute, sums: Moments, detectable: FloatArray, settings: Settings, unit: str
) -> list[tuple[object, ...]]:
    signed = coefficients(gap)
    point, low, high = sums.gaps(signed, settings.level)
    counts = np.min([sums.patients(name) for name in signed], axis=0)
    patients = np.minimum(counts[1:], counts[0])
    usable = patients >= settings.min_patients
    quotient, needed = is_quotient(gap), labels_needed(gap)
    rows: list[tuple[object, ...]] = []
    for k, level in enumerate(attribute.others):
        short = [lvl for lvl, c in ((level, counts[k + 1]), (attribute.reference, counts[0])) if c < settings.min_patients]
        label = " and ".join("positives" if label else "negatives" for label in needed)
        what = unit if not label else f"{unit} with {label}" if unit == "patients" else label
        if quotient:
            what = f"{unit} decided {'positive' if 'ppv' in signed else 'negative'}"
        note = f"{INSUFFICIENT}: fewer than {settings.min_patients} {what} in {', '.join(map(repr, short))}" if short else ""
        numbers = [float(x[k]) if usable[k] else np.nan for x in (point, low, high)]
        later = (np.nan, np.nan, np.nan, np.nan, False)  # over all attributes, by `multiplicity`
        few = bool(usable[k] and patients[k] < FEW)
        power = float(detectable[k]) if usable[k] else np.nan
        rows.append((gap, attribute.name, level, attribute.reference, *numbers, *later, power, int(patients[k]), few, note))
    return rows


def simultaneous(gaps: pd.DataFrame, sums: Sequence[Moments], levels: FloatArray) -> pd.DataFrame:
    """The gaps with their simultaneous intervals, each at the level of its row; `sums` are of the attributes, in the order of the rows."""
    low, high = np.full(len(gaps), np.nan), np.full(len(gaps), np.nan)
    start = 0
    measures = list(dict.fromkeys(gaps["measure"]))
    for moments in sums:
        for measure in measures:
            rows = slice(start, start := start + len(moments.total) - 1)
            for level in np.unique(levels[rows][~np.isnan(levels[rows])]):
                _, lower, upper = moments.gaps(coefficients(measure), float(level))
                low[rows], high[rows] = (np.where(levels[rows] == level, new, old[rows]) for new, old in ((lower, low), (upper, high)))
    return gaps.assign(simultaneous_low=low, simultaneous_high=high)


def detectable_gaps(sums: Moments, gaps: Sequence[Mapping[str, float]], level: float) -> FloatArray:
    """The minimum detectable gaps of every group but the reference, for signed sums of ratios (gaps, groups - 1).

    The design effect of a few patients with several rows is itself uncertain: that of the group or that of all groups together is used,
    whichever is larger.
    """
    found = np.full((len(gaps), len(sums.total) - 1), np.nan)
    for width in {len(signed) for signed in gaps}:  # together, since each solution takes 20 steps of small arrays
        chosen = [k for k, signed in enumerate(gaps) if len(signed) == width]
        names = [tuple(gaps[k]) for k in chosen]
        value, own, degrees, rows = (
            np.stack([np.stack([of(name) for name in each], axis=-1) for each in names])
            for of in (sums.value, sums.size, sums.degrees, sums.rows_of)
        )  # (gaps, groups, terms)
        pooled = ratio((rows * np.nan_to_num(ratio(rows, own), nan=1.0)).sum(1, keepdims=True), rows.sum(1, keepdims=True))
        size = fewer_clusters(np.fmin(own, ratio(rows, np.broadcast_to(pooled, rows.shape))), degrees, level)
        size = np.where(size > 0, size, np.nan)
        signs = np.array([list(gaps[k].values()) for k in chosen])[:, None]
        found[chosen] = detectable_gap(signs, np.broadcast_to(value[:, :1], value[:, 1:].shape), size[:, :1], size[:, 1:], level)
    return found
