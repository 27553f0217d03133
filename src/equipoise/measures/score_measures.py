"""The measures of the scores themselves, whatever the threshold in use: Brier score, calibration, operating points and decision curves."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from equipoise.data import Attribute, IntArray, Scores
from equipoise.measures.calibration import FEW as TOO_FEW
from equipoise.measures.calibration import REASONS, Limits, Scored, brier, recalibrated
from equipoise.measures.calibration_error import Band, binned_error
from equipoise.measures.estimates import CALIBRATION_ERROR, FEW, INSUFFICIENT, Estimate, Settings
from equipoise.measures.net_benefit import decision_curves
from equipoise.measures.operating_points import operating_points

OF_ALL = ("brier", "calibration_intercept", "calibration_slope", "calibration_in_the_large")  # also estimated for all rows together
AT_POINTS = ("sensitivity_at_specificity", "specificity_at_sensitivity")
SCORE_MEASURES = (*OF_ALL, *AT_POINTS)  # each with an interval; the calibration error has a band instead
SAMPLED_MEASURES = ("calibration_intercept", "calibration_slope")  # of all rows together, those that may come from a sample
EVERYONE = "all"  # attribute and group of all rows together, with or without a group


@dataclass(frozen=True, eq=False)
class ScoreMeasures:
    """What was found for the groups of one attribute."""

    limits: dict[str, Limits]  # by measure
    error: Band  # the binned calibration error
    curves: pd.DataFrame  # one row per group and threshold


def estimate_scores(
    scores: Scores,
    attribute: Attribute,
    units: IntArray,
    settings: Settings,
) -> ScoreMeasures:
    """The measures of the scores of each group."""
    level, least = settings.level, settings.min_patients
    rows = Scored.of(scores.score, scores.y, attribute.codes, len(attribute.levels), units, scores.weight)
    intercept, slope, large = recalibrated(rows, level, least)
    found = (
        brier(rows, level, least),
        intercept,
        slope,
        large,
        *operating_points(rows, settings.specificity, settings.sensitivity, level, least),
    )
    curves = decision_curves(rows, attribute.name, attribute.levels, settings.thresholds, level, least)
    return ScoreMeasures(dict(zip(SCORE_MEASURES, found, strict=True)), binned_error(rows, level, settings.seed, least), curves)


def with_score_measures(groups: pd.DataFrame, found: ScoreMeasures, least: int, unit: str, used: IntArray) -> pd.DataFrame:
    """The frame of groups with the columns of these measures; those of few patients, and reasons, next to those of the others.

    `used` are the rows of each group that they come from, all of them or a sample (column "sampled").
    """
    columns: dict[str, npt.NDArray[Any]] = {}
    rare: list[list[str]] = [[] for _ in range(len(groups))]
    short: list[list[str]] = [[] for _ in range(len(groups))]
    lacking: list[list[str]] = [[] for _ in range(len(groups))]
    for name, limits in found.limits.items():
        columns |= {name: limits.value, f"{name}_low": limits.low, f"{name}_high": limits.high}
        for k, why in enumerate(limits.why):
            if why == TOO_FEW:
                short[k].append(name)
            elif why:
                lacking[k].append(f"{name} ({REASONS[why]})")
            elif limits.patients[k] < FEW:
                rare[k].append(name)
    columns[CALIBRATION_ERROR] = found.error.value
    columns |= {f"{CALIBRATION_ERROR}_expected_{end}": ends for end, ends in (("low", found.error.low), ("high", found.error.high))}
    for names, value in zip(short, found.error.value, strict=True):
        if np.isnan(value):
            names.append(CALIBRATION_ERROR)
    joined = groups.assign(**columns, sampled=used)
    joined["few"] = [", ".join(filter(None, (old, *new))) for old, new in zip(groups["few"], rare, strict=True)]
    notes = []
    for old, few, other in zip(groups["note"], short, lacking, strict=True):
        start = [old] if old or not few else [f"{INSUFFICIENT} (fewer than {least} {unit}): {few.pop(0)}"]
        notes.append("; ".join(filter(None, (", ".join([*start, *few]), f"{INSUFFICIENT}: {', '.join(other)}" if other else ""))))
    joined["note"] = notes
    last = ["few", "note"]
    return joined[[*(name for name in joined if name not in last), *last]]


def overall(found: ScoreMeasures, name: str, sampled: str = "") -> Estimate:
    """A measure of all rows together; `sampled` is the note on one that comes from a sample of them."""
    limits = found.limits[name]
    note = f"{INSUFFICIENT}: {REASONS[limits.why[0]]}" if limits.why[0] else sampled if name in SAMPLED_MEASURES else ""
    return Estimate(float(limits.value[0]), float(limits.low[0]), float(limits.high[0]), note)


def everyone(rows: int) -> Attribute:
    """An attribute with one group that holds all rows."""
    return Attribute(EVERYONE, (EVERYONE,), np.zeros(rows, np.int64))
