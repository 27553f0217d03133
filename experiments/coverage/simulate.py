"""How often the intervals of an audit cover the truth, how often it highlights a gap that is none, and the power of its detectable gap.

    python experiments/coverage/simulate.py --out experiments/coverage --workers 2   # 500 repetitions; continues where it was stopped
    python experiments/coverage/simulate.py --out /tmp/coverage --repetitions 50 --designs rare

Scores are those of two normal distributions of a latent value x, one per label, so that every quantity has a known true value: the score is
the posterior probability of the positive label in the reference group, which is calibrated there, and in other groups it is miscalibrated
by a known slope and intercept. Fifty repetitions of a design are one piece in OUT/pieces; rows.csv has one line per interval.
"""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, cached_property
from math import log, sqrt
from pathlib import Path
from statistics import NormalDist
from time import process_time

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import numpy.typing as npt
import pandas as pd

import equipoise as eq
from equipoise.data import Attribute, Scores
from equipoise.measures import GAPS, AuditSpec, PairedDecisions, measure_of
from equipoise.measures.audit_spec import thresholds_of
from equipoise.measures.calibration import ScoredRows
from equipoise.measures.estimation import detectable_gaps, estimate_performance
from equipoise.measures.intervals import Limits
from equipoise.measures.measure_table import PERFORMANCE
from equipoise.measures.moments import Moments, moments_of
from equipoise.measures.score_measures import aurocs, binned_error, decision_curves, estimate_scores, operating_points

FloatArray = npt.NDArray[np.float64]
CDF, QUANTILE = np.vectorize(NormalDist().cdf, otypes=[float]), NormalDist().inv_cdf
ALSO = ("ppv_gap", "npv_gap", "tpr-fpr")
ACCEPTED = (0.93, 0.98)
GRID = np.linspace(-9, 9, 6001)  # of the latent value, for integrals
MOVED = 0.15  # how much further down on x the threshold of the "after" decisions lies, in groups other than the reference
NOISE = {"network": 0.3, "threshold": 0.0}  # what a repaired network adds to x, so that decisions change both ways; a threshold nothing


@dataclass(frozen=True)
class Design:
    """Groups by their share, prevalence, sensitivity and false positive rate at the threshold; rows of one patient are correlated."""

    name: str
    share: tuple[float, ...]
    prevalence: tuple[float, ...]
    tpr: tuple[float, ...]
    fpr: tuple[float, ...]
    sizes: tuple[int, ...]  # rows
    per_patient: float = 1.0
    correlation: float = 0.0
    positives: float = 0.0  # in all groups together, instead of the prevalence, which then depends on the rows
    in_group: tuple[float, ...] = ()  # rows per patient of each group, where groups differ; patients then have rows of both labels
    spread: float = 0.0  # standard deviation of the logarithm of the rows per patient, where these are lognormal
    heavy: tuple[float, float] = (0.0, 1.0)  # share of rows with a larger sample weight, and that weight

    @property
    def mix(self) -> FloatArray:
        """The share of each group of the rows."""
        rows = np.asarray(self.share) * (self.in_group or (self.per_patient,) * len(self.share))
        return np.asarray(rows / rows.sum())

    def at(self, rows: int) -> "Design":
        """The design for this many rows."""
        return replace(self, prevalence=tuple(self.positives / rows for _ in self.share)) if self.positives else self


DESIGNS = (
    Design("balanced", (0.5, 0.35, 0.15), (0.5, 0.5, 0.5), (0.8, 0.7, 0.75), (0.15, 0.2, 0.15), (100, 1000, 5000)),
    Design("rare", (0.5, 0.35, 0.15), (), (0.8, 0.7, 0.9), (0.1, 0.15, 0.1), (300, 1000, 5000), positives=60),
    Design("clustered", (0.5, 0.35, 0.15), (0.5, 0.4, 0.5), (0.8, 0.7, 0.75), (0.15, 0.2, 0.15), (200, 1000, 5000), 4.0, 0.5),
    Design("extreme", (0.5, 0.35, 0.15), (0.5, 0.5, 0.5), (0.98, 0.95, 0.99), (0.02, 0.04, 0.01), (100, 1000, 5000)),
    Design("no gap", (0.3, 0.3, 0.2, 0.2), (0.4,) * 4, (0.8,) * 4, (0.15,) * 4, (300,)),
    Design("no gap, clustered", (0.3, 0.3, 0.2, 0.2), (0.4,) * 4, (0.8,) * 4, (0.15,) * 4, (1000,), 4.0, 0.5),
    Design(
        "no gap, 2 and 10 rows per patient",
        (0.7, 0.15, 0.15),
        (0.4,) * 3,
        (0.8,) * 3,
        (0.15,) * 3,
        (1000,),
        4.4,
        0.7,
        0.0,
        (2.0, 10.0, 10.0),
    ),
    Design("no gap, unequal rows per patient", (0.6, 0.4), (0.4,) * 2, (0.8,) * 2, (0.15,) * 2, (1000,), 4.0, 0.5, spread=1.2),
    Design("no gap, weights", (0.6, 0.4), (0.4,) * 2, (0.8,) * 2, (0.15,) * 2, (600,), heavy=(0.1, 20.0)),
    Design("no gap, prevalence 50 % and 5 %", (0.5, 0.5), (0.5, 0.05), (0.8, 0.8), (0.15, 0.15), (400,)),
)


@dataclass(frozen=True, eq=False)
class Sample:
    """Labels, scores, groups, patients and decisions of simulated rows."""

    y: npt.NDArray[np.int64]
    score: FloatArray
    group: npt.NDArray[np.int64]
    unit: npt.NDArray[np.int64]
    before: FloatArray
    network: FloatArray  # decisions after the repair of a network
    threshold: FloatArray  # after a threshold was moved
    weight: FloatArray | None = None

    def scores(self, groups: int) -> Scores:
        """What an audit sees of them."""
        ids = self.unit.astype(str).astype(object)
        return Scores(self.y, self.score, (Attribute("group", NAMES[:groups], self.group),), ids, ids, "simulated", self.weight)


NAMES = tuple("abcdef")


@dataclass(frozen=True)
class World:
    """A design whose latent distributions are fixed: N(mean[label], 1), positive if x >= 0."""

    design: Design

    @cached_property
    def means(self) -> FloatArray:
        """Of negatives and positives of each group (groups, 2)."""
        return np.array([[QUANTILE(f), QUANTILE(t)] for f, t in zip(self.design.fpr, self.design.tpr, strict=True)])

    def logit(self, group: int) -> tuple[float, float]:
        """Intercept and slope of the true log odds of the positive label as a function of x."""
        negative, positive = self.means[group]
        p = self.design.prevalence[group]
        return log(p / (1 - p)) - (positive**2 - negative**2) / 2, positive - negative

    def score(self, x: FloatArray) -> FloatArray:
        """The score of latent values: the posterior probability in the reference group."""
        start, slope = self.logit(0)
        return 1 / (1 + np.exp(-(start + slope * x)))

    def sample(self, rows: int, rng: np.random.Generator) -> "Sample":
        """Rows of patients, with the decisions before and after a change of the thresholds of groups other than the reference."""
        design = self.design
        count = round(rows / design.per_patient)
        group = rng.choice(len(design.share), count, p=design.share)
        if design.spread:
            size = np.maximum(1, rng.lognormal(log(design.per_patient) - design.spread**2 / 2, design.spread, count).round()).astype(
                np.int64
            )
        else:
            size = 1 + rng.poisson(np.asarray(design.in_group or (design.per_patient,) * len(design.share))[group] - 1)
        unit = np.repeat(np.arange(count), size)
        chance = rng.random(len(unit)) if design.in_group else rng.random(count)[unit]
        y = (chance < np.asarray(design.prevalence)[group][unit]).astype(np.int64)
        own, noise = rng.standard_normal(count), rng.standard_normal(len(unit))
        x = sqrt(design.correlation) * own[unit] + sqrt(1 - design.correlation) * noise + self.means[group[unit], y]
        before = (x >= 0).astype(np.float64)
        other = rng.standard_normal(len(unit))
        network, threshold = ((x + noise * other >= np.where(group[unit] > 0, -MOVED, 0.0)).astype(np.float64) for noise in NOISE.values())
        share, heavy = design.heavy
        weight = np.where(rng.random(len(unit)) < share, heavy, 1.0) if share else None
        return Sample(y, self.score(x), group[unit], unit, before, network, threshold, weight)

    def decisions(self, sample: "Sample", rng: np.random.Generator) -> FloatArray:
        """Other decisions on the patients of a sample, with their labels and groups."""
        own, noise = rng.standard_normal(int(sample.unit.max()) + 1)[sample.unit], rng.standard_normal(len(sample.unit))
        rho = self.design.correlation
        return (sqrt(rho) * own + sqrt(1 - rho) * noise + self.means[sample.group, sample.y] >= 0).astype(np.float64)

    @cache  # noqa: B019 (one world per piece)
    def rates(self, cut: float, group: int | None = None, noise: float = 0.0) -> dict[str, float]:
        """The true rates at a threshold on x, to which noise is added, of a group; or of all, with the threshold at 0 in the reference."""
        found = []
        for k in range(len(self.design.share)) if group is None else [group]:
            negative, positive = CDF((self.means[k] - (cut if k or group is not None else 0.0)) / sqrt(1 + noise**2))
            p = self.design.prevalence[k]
            weight = self.design.mix[k] if group is None else 1.0
            found.append(weight * np.array([p * positive, p * (1 - positive), (1 - p) * negative, (1 - p) * (1 - negative)]))
        tp, fn, fp, tn = np.sum(found, axis=0)
        rates = {"selection_rate": tp + fp, "tpr": tp / (tp + fn), "fpr": fp / (fp + tn), "ppv": tp / (tp + fp), "npv": tn / (tn + fn)}
        rates |= {"tnr": 1 - rates["fpr"], "fnr": 1 - rates["tpr"], "accuracy": (tp + tn) / (tp + fp + fn + tn)}
        return rates | {"balanced_accuracy": (rates["tpr"] + rates["tnr"]) / 2, "f1": 2 * tp / (2 * tp + fp + fn)}

    @cache  # noqa: B019 (one world per piece)
    def group(self, k: int) -> dict[str, float]:
        """Every true value that the audit estimates of a group."""
        start, slope = self.logit(0)
        own_slope = self.logit(k)[1]
        negative, positive = self.means[k]
        p = self.design.prevalence[k]
        density = (1 - p) * _normal(GRID - negative) + p * _normal(GRID - positive)
        chance, score = p * _normal(GRID - positive) / np.maximum(density, 1e-300), self.score(GRID)
        step = GRID[1] - GRID[0]
        brier = float((density * (chance * (1 - score) ** 2 + (1 - chance) * score**2)).sum() * step)
        return self.rates(0.0, k) | {
            "auroc": float(CDF((positive - negative) / sqrt(2))),
            "calibration_slope": own_slope / slope,
            "calibration_intercept": _offset(density * step, chance, start + slope * GRID),
            "calibration_in_the_large": float((density * score).sum() * step) - p,
            "brier": brier,
            "sensitivity_at_specificity": float(CDF(positive - negative - QUANTILE(FIXED))),
            "specificity_at_sensitivity": float(CDF(positive - negative - QUANTILE(FIXED))),
        }

    @cache  # noqa: B019 (one world per piece)
    def net_benefit(self, group: int, threshold: float) -> float:
        """True positives minus weighted false positives, per patient, with decisions at this score."""
        start, slope = self.logit(0)
        cut = (log(threshold / (1 - threshold)) - start) / slope
        p = self.design.prevalence[group]
        rates = self.rates(cut, group)
        return p * rates["tpr"] - (1 - p) * rates["fpr"] * threshold / (1 - threshold)

    @cache  # noqa: B019 (one world per piece)
    def everyone(self) -> dict[str, float]:
        """The true performance over all rows."""
        share, p = self.design.mix, np.asarray(self.design.prevalence)
        sick, well = share * p / (share * p).sum(), share * (1 - p) / (share * (1 - p)).sum()
        means = self.means
        apart = CDF((means[:, 1][:, None] - means[:, 0]) / sqrt(2))
        prevalence = float((share * p).sum())
        true = sum(w * (1 - CDF(GRID - m)) for w, m in zip(sick, means[:, 1], strict=True))
        false = sum(w * (1 - CDF(GRID - m)) for w, m in zip(well, means[:, 0], strict=True))
        precision = prevalence * true / np.maximum(prevalence * true + (1 - prevalence) * false, 1e-300)
        gained = sum(w * _normal(GRID - m) for w, m in zip(sick, means[:, 1], strict=True)) * (GRID[1] - GRID[0])
        return self.rates(0.0) | {"auroc": float(sick @ apart @ well), "average_precision": float((precision * gained).sum())}

    @cache  # noqa: B019 (one world per piece)
    def gap(self, measure: str, group: int, cut: float = 0.0, noise: float = 0.0) -> float:
        """The true gap of a group, at a threshold on x that is that of the group only, with noise in both groups."""
        own, reference = self.rates(cut, group, noise), self.rates(0.0, 0, noise)
        return sum(sign * (own[name] - reference[name]) for name, sign in measure_of(measure).coefficients.items())


FIXED = 0.9  # the specificity at which sensitivity is reported, and the reverse


def _normal(x: FloatArray) -> FloatArray:
    return np.asarray(np.exp(-(x**2) / 2) / sqrt(2 * np.pi))


def _offset(weight: FloatArray, chance: FloatArray, logit: FloatArray) -> float:
    """Calibration in the large: the shift of the log odds with which the mean score equals the prevalence."""
    low, high = -20.0, 20.0
    wanted = float((weight * chance).sum())
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if float((weight / (1 + np.exp(-(logit + middle)))).sum()) < wanted else (low, middle)
    return low


Hit = tuple[str, str, str, float, float, float, float]  # kind, measure, group, truth, low, high, expected number of the rarer outcome


def hits_of(samples: Sequence[Sample], world: World) -> Iterator[Hit]:
    """Every interval of groups, performance, gaps and changes. All groups of all samples go through the functions of an audit at once."""
    groups = len(world.design.share)
    starts = np.cumsum([0, *(int(sample.unit.max()) + 1 for sample in samples)])
    whole = Sample(
        *(np.concatenate([getattr(sample, name) for sample in samples]) for name in ("y", "score")),
        np.concatenate([groups * k + sample.group for k, sample in enumerate(samples)]),
        np.concatenate([start + sample.unit for start, sample in zip(starts, samples, strict=False)]),
        *(np.concatenate([getattr(sample, name) for sample in samples]) for name in ("before", *NOISE)),
        np.concatenate([sample.weight for sample in samples if sample.weight is not None]) if world.design.heavy[0] else None,
    )
    many = groups * len(samples)
    attribute = Attribute("group", tuple(map(str, range(many))), whole.group)
    ids = whole.unit.astype(object)
    scores = Scores(whole.y, whole.score, (attribute,), ids, ids, "simulated", whole.weight)
    settings = AuditSpec(thresholds=THRESHOLDS)
    sums = moments_of(whole.before, whole.y, whole.group, many, whole.unit, whole.weight)
    for name in RATES:
        _, low, high = sums.signed({name: 1.0}).limits(0.95)
        events = _events(sums, name, world)
        for k in np.flatnonzero(sums[name].patients >= settings.min_patients):
            yield "rate of a group", name, NAMES[k % groups], world.group(k % groups)[name], low[k], high[k], events[k]
    rarer = np.minimum(*(sums[name].rows for name in ("tpr", "fpr")))
    wrong = rarer * np.array([1 - world.group(k % groups)["auroc"] for k in range(many)])  # of the rarer label, on the wrong side of others
    area = aurocs(scores, attribute, whole.unit, settings.level)
    for k in np.flatnonzero(area.patients >= settings.min_patients):
        yield "rate of a group", "auroc", NAMES[k % groups], world.group(k % groups)["auroc"], area.low[k], area.high[k], wrong[k]
    rows, limits_of_scores = estimate_scores(scores, attribute, whole.unit, settings)
    for name, limits in limits_of_scores.items():
        for k in np.flatnonzero(~np.isnan(limits.value)):
            yield "score of a group", name, NAMES[k % groups], world.group(k % groups)[name], limits.low[k], limits.high[k], wrong[k]
    for name, limits in operating_limits(rows, settings).items():
        for k in np.flatnonzero(~np.isnan(limits.value)):
            yield "score of a group", name, NAMES[k % groups], world.group(k % groups)[name], limits.low[k], limits.high[k], wrong[k]
    error = binned_error(rows, settings.level, settings.seed, settings.min_patients)
    for k in range(0, many, groups):  # the reference is calibrated
        if not np.isnan(error.value[k]):
            yield "band of a calibrated model", "calibration_error", "a", error.value[k], error.low[k], error.high[k], wrong[k]
    where, cuts = (attribute.name, attribute.levels), thresholds_of(settings.thresholds)
    for row in decision_curves(rows, *where, cuts, settings.level, settings.min_patients).itertuples():
        if not np.isnan(row.net_benefit):
            k, truth = int(row.group) % groups, world.net_benefit(int(row.group) % groups, row.threshold)
            yield "decision curve", f"net benefit at {row.threshold:g}", NAMES[k], truth, row.low, row.high, wrong[int(row.group)]
    for k, sample in enumerate(samples):
        mine = sample.scores(groups)
        for name, estimate in estimate_performance(mine, sample.before, PERFORMANCE, settings).items():
            if not np.isnan(estimate.value):
                few = min(sample.y.sum(), (1 - sample.y).sum()) * (1 - world.everyone()["auroc" if name in RANKED else "balanced_accuracy"])
                yield "performance", name, "", world.everyone()[name], estimate.low, estimate.high, few
        part = slice(groups * k, groups * (k + 1))
        own = sums.taken(range(*part.indices(many)))
        for measure in (*GAPS, *ALSO):
            signed = measure_of(measure).coefficients
            _, low, high = own.gap(signed).limits(0.95)
            patients = np.min([own[name].patients for name in signed], axis=0)
            events = np.min([_events(own, name, world) for name in signed], axis=0)
            for g in range(1, groups):
                if min(patients[0], patients[g]) >= settings.min_patients:
                    yield "gap", measure, NAMES[g], world.gap(measure, g), low[g - 1], high[g - 1], min(events[0], events[g])
        for repair in NOISE:
            yield from changes_of(mine, sample.before, getattr(sample, repair), repair, world, settings)


def operating_limits(rows: ScoredRows, settings: AuditSpec) -> dict[str, Limits]:
    """The sensitivity of each group at a fixed specificity, and the reverse."""
    points = operating_points(rows, settings.specificity, settings.sensitivity, settings.level, settings.min_patients)
    return dict(zip(("sensitivity_at_specificity", "specificity_at_sensitivity"), points, strict=True))


RANKED = ("auroc", "average_precision")


def _events(sums: Moments, name: str, world: World) -> FloatArray:
    """The expected number of rows with the rarer outcome of a rate, of each group."""
    groups = len(world.design.share)
    rates = np.array([world.group(k % groups)[name] for k in range(len(sums.total))])
    return np.asarray(sums[name].rows * np.minimum(rates, 1 - rates))


def changes_of(scores: Scores, before: FloatArray, after: FloatArray, repair: str, world: World, settings: AuditSpec) -> Iterator[Hit]:
    """Every paired interval of a change of the decisions."""
    pair, noise = PairedDecisions(scores, (before, after), settings), NOISE[repair]
    flips = np.zeros((len(scores.attribute.levels), 2))  # changed decisions, by group and label
    np.add.at(flips, (scores.attribute.codes, scores.y), np.abs(after - before))
    for shift in pair.shifts():
        k = NAMES.index(shift.group)
        truth = world.rates(-MOVED if k else 0.0, k, noise)[shift.rate] - world.rates(0.0, k)[shift.rate]
        events = flips[k, int(shift.rate == "tpr")]
        yield f"change of a rate, {repair}", shift.rate, shift.group, truth, shift.change.low, shift.change.high, events
    for k, group in enumerate(scores.attribute.others, 1):
        for measure in ("spd", "eod", "aod", "fpr_gap", "ppv_gap"):
            change, truth = pair.gap_change(measure, group), world.gap(measure, k, -MOVED, noise) - world.gap(measure, k)
            used = {"eod": [1], "fpr_gap": [0]}.get(measure, [0, 1])
            events = flips[np.ix_([0, k], used)].min()
            if not np.isnan(change.value):
                yield f"change of a gap, {repair}", measure, group, truth, change.low, change.high, events
    for name in ("balanced_accuracy", "accuracy", "f1"):
        change, truth = pair.performance_change(name), world.rates(-MOVED, None, noise)[name] - world.rates(0.0)[name]
        yield f"change of performance, {repair}", name, "", truth, change.low, change.high, flips.sum(0).min()


def tests_of(sample: Sample, world: World, seed: int) -> Iterator[tuple[str, float]]:
    """Whether a whole audit highlights a gap that is none, and whether one of its simultaneous intervals misses."""
    groups = len(world.design.share)
    scores = sample.scores(groups)
    found = eq.audit(scores, threshold=float(world.score(np.zeros(1))[0]), measures=tuple(GAPS), seed=seed, thresholds=())
    truth = np.array([world.gap(row.measure, NAMES.index(row.group)) for row in found.gaps.itertuples()])
    none = np.abs(truth) < 1e-9
    if none.any():
        yield WRONG, float((found.gaps["clear"].to_numpy(bool) & none).any())
    clear, p = found.gaps["clear"].to_numpy(bool), found.gaps["p_adjusted"].to_numpy(float)
    excludes = ((found.gaps["simultaneous_low"] > 0) | (found.gaps["simultaneous_high"] < 0)).to_numpy(bool)
    yield CONTRADICTED, float(((clear != excludes) | (clear != (p <= 0.05))).any())
    if not none.all():
        yield FOUND, float(clear[~none].mean())
    yield MISSED, float(((truth < found.gaps["simultaneous_low"] - 1e-12) | (truth > found.gaps["simultaneous_high"] + 1e-12)).any())


def piece(design: Design, rows: int, first: int, repetitions: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """One line per interval with how often it missed, and one per test of a whole audit, over some repetitions."""
    world = World(design.at(rows))
    numbers = range(first, first + repetitions)
    samples = [world.sample(rows, np.random.default_rng([k, rows, *design.name.encode()])) for k in numbers]
    seen: dict[tuple[str, str, str], list[tuple[bool, bool, float, float]]] = {}
    for kind, measure, group, truth, low, high, events in hits_of(samples, world):
        seen.setdefault((kind, measure, group), []).append((truth < low - 1e-12, truth > high + 1e-12, high - low, float(events)))
    lines = [
        {"kind": kind, "measure": measure, "group": group, "repetitions": len(each)}
        | {"below": sum(x[0] for x in each), "above": sum(x[1] for x in each), "width": sum(x[2] for x in each)}
        | {"events": sum(x[3] for x in each)}
        for (kind, measure, group), each in seen.items()
    ]
    tests = [("samples", 1.0) for _ in samples]
    for k, sample in zip(numbers, samples, strict=True):
        for measure in POWERED:
            tests += power_of(sample, world, measure, k)
        if rows in TESTED.get(design.name, ()):
            tests += tests_of(sample, world, k)
    return pd.DataFrame(lines), pd.DataFrame(tests, columns=["what", "value"])


RATES = ("selection_rate", "tpr", "fpr", "ppv", "npv")  # tnr and fnr are one minus two of them, with mirrored intervals
THRESHOLDS = (0.1, 0.3, 0.5)
TESTED = {  # designs and rows of which whole audits are made
    "no gap": (300,),
    "no gap, clustered": (1000,),
    "no gap, 2 and 10 rows per patient": (1000,),
    "no gap, unequal rows per patient": (1000,),
    "no gap, weights": (600,),
    "no gap, prevalence 50 % and 5 %": (400,),
    "rare": (1000,),
    "balanced": (1000,),
    "clustered": (1000,),
}
WRONG, MISSED = "a gap that is none is highlighted", "a simultaneous interval misses"
CONTRADICTED, FOUND = (
    "mark, p-value and simultaneous interval of a gap contradict each other",
    "share of gaps that are there that are highlighted",
)
POWERED = ("eod", "fpr_gap")


def power_of(sample: Sample, world: World, measure: str, seed: int) -> Iterator[tuple[str, float]]:
    """The printed minimum detectable gap of group b, and whether a gap of that size is shown in other scores of the same patients.

    The power is stated for these cells, so patients, labels and groups stay as they are.
    """
    groups, signed = len(world.design.share), measure_of(measure).coefficients
    sums = moments_of(sample.before, sample.y, sample.group, groups, sample.unit, sample.weight)
    if min(sums[name].patients[:2].min() for name in signed) < AuditSpec().min_patients:
        return
    gap = float(detectable_gaps(sums, [signed], 0.95)[0, 0])
    yield f"detectable {measure}", gap
    for sign, way in ((-1, "below"), (1, "above")):
        moved = None if np.isnan(gap) else _with_gap(world.design, measure, sign * gap)
        if moved is None:
            continue
        drawn = World(moved).decisions(sample, np.random.default_rng([seed, len(sample.y), sign + 1, *measure.encode()]))
        _, low, high = moments_of(drawn, sample.y, sample.group, groups, sample.unit, sample.weight).gap(signed).limits(0.95)
        yield f"shown {way} {measure}", float(low[0] > 0 or high[0] < 0)


def _with_gap(design: Design, measure: str, d: float) -> Design | None:
    """The design in which group b has this gap and everything else of the reference; None where no rate can."""
    changed = {"tpr": design.tpr[0], "fpr": design.fpr[0]}
    for name in ("tpr", "fpr") if measure == "spd" else ("tpr",) if measure == "eod" else ("fpr",):
        changed[name] += d
    if not all(0.001 < value < 0.999 for value in changed.values()):
        return None
    return replace(
        design,
        tpr=(design.tpr[0], changed["tpr"], *design.tpr[2:]),
        fpr=(design.fpr[0], changed["fpr"], *design.fpr[2:]),
    )


CHUNK = 50  # repetitions that are saved together


def made(task: tuple[Design, int, int, int, Path]) -> str:
    """Makes one piece, unless it is there already; what it took."""
    design, rows, first, repetitions, folder = task
    stem = f"{design.name.replace(' %', '').replace(', ', '-').replace(' ', '-')}-{rows}-{first:04d}"
    if (folder / f"{stem}-tests.csv").is_file():
        return f"{stem}: there already"
    start = process_time()
    for frame, name in zip(piece(design, rows, first, repetitions), (stem, f"{stem}-tests"), strict=True):
        frame.assign(design=design.name, rows=rows).to_csv(folder / f"{name}.part", index=False, float_format="%.6g")
        (folder / f"{name}.part").rename(folder / f"{name}.csv")
    return f"{stem}: {process_time() - start:.0f} s of CPU"


def collected(out: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """One line per interval with its coverage, and one per share of wrong findings and power, from all pieces."""
    files = sorted((out / "pieces").glob("*.csv"))
    lines = pd.concat([pd.read_csv(path, keep_default_na=False) for path in files if not path.stem.endswith("-tests")])
    tests = pd.concat([pd.read_csv(path) for path in files if path.stem.endswith("-tests")])
    order = {design.name: k for k, design in enumerate(DESIGNS)}
    audits = tests[tests["what"] == "samples"].groupby(["design", "rows"]).size()
    sums = lines.groupby(["design", "rows", "kind", "measure", "group"], sort=False)[
        ["repetitions", "below", "above", "width", "events"]
    ].sum()
    found = sums.reset_index()
    total = found.set_index(["design", "rows"]).index.map(audits).to_numpy()
    found = found[found["repetitions"] >= total / 2]  # with fewer, the estimate is mostly insufficient data, and the rest are a selection
    for name in ("below", "above", "width", "events"):
        found[name] /= found["repetitions"]
    found.insert(6, "coverage", 1 - found["below"] - found["above"])
    found = found.sort_values(["design", "rows"], key=lambda c: c.map(order) if c.name == "design" else c, kind="stable")
    shares = []
    for (name, rows), mine in tests.groupby(["design", "rows"]):
        values = {what: each["value"] for what, each in mine.groupby("what")}
        for what in (WRONG, MISSED, CONTRADICTED, FOUND):
            if what in values:
                shares.append({"what": what, "repetitions": len(values[what]), "gap": np.nan, "share": values[what].mean()})
        for measure in POWERED:
            gaps = values.get(f"detectable {measure}", pd.Series(dtype=float))
            ways = [values.get(f"shown {way} {measure}", pd.Series(dtype=float)) for way in ("below", "above")]
            ways = [each for each in ways if len(each) >= max(len(gaps) / 2, 1)]  # possible in most samples
            if ways and len(gaps) >= len(values["samples"]) / 2:
                shown = min(ways, key=lambda each: each.mean())
                line = {"repetitions": len(shown), "gap": gaps.median(), "share": shown.mean(), "none": gaps.isna().mean()}
                shares.append({"what": f"power at the detectable {measure}", **line})
        for line in shares:
            line.setdefault("design", name)
            line.setdefault("rows", rows)
    whole = pd.DataFrame(shares, columns=["design", "rows", "what", "repetitions", "gap", "share", "none"])
    whole = whole.sort_values(["what", "design", "rows"], key=lambda c: c.map(order) if c.name == "design" else c)
    return found, whole


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--repetitions", type=int, default=500)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--designs", nargs="*", choices=[design.name for design in DESIGNS])
    parser.add_argument("--collect", action="store_true", help="write rows.csv and tests.csv from the pieces that are there")
    asked = parser.parse_args(arguments)
    folder = asked.out / "pieces"
    folder.mkdir(parents=True, exist_ok=True)
    chosen = [design for design in DESIGNS if not asked.designs or design.name in asked.designs]
    starts = () if asked.collect else range(0, asked.repetitions, CHUNK)
    tasks = [(d, rows, first, min(CHUNK, asked.repetitions - first), folder) for first in starts for d in chosen for rows in d.sizes]
    with ProcessPoolExecutor(asked.workers) as pool:
        for line in pool.map(made, tasks):
            print(line, flush=True)
    rows, tests = collected(asked.out)
    rows.to_csv(asked.out / "rows.csv", index=False, float_format="%.4f")
    tests.to_csv(asked.out / "tests.csv", index=False, float_format="%.4f")
    outside = rows[~rows["coverage"].between(*ACCEPTED)]
    print(f"{len(rows)} intervals, {len(outside)} with a coverage outside {ACCEPTED[0]} to {ACCEPTED[1]}", file=sys.stderr)


if __name__ == "__main__":
    main()
