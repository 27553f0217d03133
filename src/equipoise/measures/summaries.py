"""Summaries of groups: ratios, the worst group, highest minus lowest, and differences in AUROC, Brier score and calibration.

Each is read from the limits of the groups' own rates (or AUROCs, ...), which count patients (see `moments` and `score_measures`).

- A ratio p1 / p0 has as limits the values t at which the interval of p1 - t p0 ends at zero (Donner and Zou 2012, Stat Methods Med Res
  21:347). So it excludes 1 if, and only if, the interval of the difference excludes 0, and has the same p-value.
- A difference in AUROC, Brier score or calibration in the large has the distances of both groups from their limits, added like standard
  errors (MOVER); other levels scale the distances, which gives its p-value.
- Highest minus lowest is the largest difference of any two groups. Its upper limit is the largest upper limit of the differences: the one
  pair that is truly furthest apart has to be covered. Its lower limit is the largest lower limit, which is too high if any pair's is, so
  that all pairs together keep the error (Sidak 1967). With two groups it excludes zero if the difference does. The lowest rate divided by
  the highest is the same for ratios.
- The rate of the worst group: its outer limit is that of the group that is truly worst; the inner one is the innermost limit of all
  groups, which together keep half of the error.

Patients with rows in two groups make the ratio to the reference more certain, as they do the difference; in ranges they count as different
patients. A summary is no test in a family (see `families`): ratios and differences have a p-value that is not adjusted.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import erfc, sqrt
from typing import Any

import numpy as np
import pandas as pd

from equipoise.data import Attribute, BoolArray, FloatArray, Scores
from equipoise.measures.audit import FEW_PATIENTS, SUMMARY_COLUMNS
from equipoise.measures.audit_spec import AuditSpec
from equipoise.measures.cells import ratio
from equipoise.measures.intervals import INSUFFICIENT_DATA, Ends, Estimate, Limits, combine_limits, quantile, quotient
from equipoise.measures.measure_table import COMPLEMENTS, SUMMARIES, WORSE_IF_HIGHER, Summary
from equipoise.measures.moments import Moments, moments_of_scores, units_of
from equipoise.measures.score_measures import aurocs, estimate_scores

LOWEST = {"calibration_in_the_large": -1.0}  # of a measure that is no share
DIRECTIONS = {
    **dict.fromkeys(("gap", "range"), "group minus reference"),
    **dict.fromkeys(("ratio", "min_ratio"), "group divided by reference"),
    "worst": "worst group",
}


@dataclass(frozen=True, eq=False)
class GroupValues:
    """A rate, or a measure of the scores, of every group (groups,), the reference first, with limits at any level."""

    value: FloatArray
    limits: Callable[[float], tuple[FloatArray, FloatArray]]
    patients: FloatArray
    effective: FloatArray
    correlation: FloatArray  # (groups - 1,) with that of the reference, through patients with rows in both
    p_values: Callable[[], FloatArray]  # (groups - 1,) of the differences from the reference

    @classmethod
    def of_rate(cls, sums: Moments, rate: str) -> "GroupValues":
        """A rate of decisions."""
        name = COMPLEMENTS.get(rate, rate) if rate not in sums.ratios else rate
        signed, gap, of = sums.signed({name: 1.0}), sums.gap({name: 1.0}), sums[name]

        def limits(level: float) -> tuple[FloatArray, FloatArray]:
            low, high = (end[..., 0] for end in signed.term_limits(level))
            return (low, high) if name == rate else (1 - high, 1 - low)

        value = of.value if name == rate else 1 - of.value
        return cls(value, limits, of.patients, of.effective, gap.correlation[:, 0, 1], gap.p_values)

    @classmethod
    def of_scores(cls, rate: str, found: Limits, level: float) -> "GroupValues":
        """A measure of scores from its limits at one level; their distances at other levels are as normal quantiles are."""

        def limits(other: float) -> tuple[FloatArray, FloatArray]:
            scale = float(quantile(other)) / float(quantile(level))
            low, high = (found.value + scale * (end - found.value) for end in (found.low, found.high))
            return np.maximum(low, LOWEST.get(rate, 0.0)), np.minimum(high, 1.0)

        none = np.zeros(len(found.value) - 1)

        def p_values() -> FloatArray:
            total, low, high = (end[1:] for end in pairwise(found.value, found.low, found.high, none))
            distance = np.where(total > 0, total - low, high - total)
            z = float(quantile(level)) * np.nan_to_num(ratio(np.abs(total), distance), nan=0.0, posinf=9.0)
            return np.where(np.isnan(total), np.nan, [erfc(each / sqrt(2)) for each in z])

        return cls(found.value, limits, found.patients, found.patients, none, p_values)


def pairwise(value: FloatArray, low: FloatArray, high: FloatArray, correlation: FloatArray) -> Ends:
    """The difference of each group from the first (groups,) with its limits; 0 for the first itself."""
    own, below, above = (np.stack([each, np.broadcast_to(each[:1], each.shape)], axis=-1) for each in (value, low, high))
    matrix = np.zeros((len(value), 2, 2)) + np.eye(2)
    matrix[1:, 0, 1] = matrix[1:, 1, 0] = correlation
    return combine_limits([1.0, -1.0], own, below, above, matrix)


def summaries_of(
    measures: Sequence[str], attribute: str, levels: Sequence[str], sums: Moments, scores: Mapping[str, Limits], spec: AuditSpec
) -> pd.DataFrame:
    """The summaries of the groups of an attribute, the reference first: one row per group, or one for all groups.

    `scores` are the measures of the scores of each group, at the level of the settings.
    """
    rows, known_rates = list[dict[str, Any]](), dict[str, GroupValues]()
    for summary in (SUMMARIES[name] for name in measures):
        if summary.of_scores and summary.rate not in scores:
            continue
        if summary.rate not in known_rates:
            rate = summary.rate
            known_rates[rate] = (
                GroupValues.of_scores(rate, scores[rate], spec.level) if summary.of_scores else GroupValues.of_rate(sums, rate)
            )
        groups = known_rates[summary.rate]
        known = (groups.patients >= spec.min_patients) & ~np.isnan(groups.value)
        made = _with_reference if summary.of_each_group else _of_all
        rows += [{"measure": summary.name, "attribute": attribute} | row for row in made(summary, groups, known, levels, spec)]
    return pd.DataFrame(rows, columns=SUMMARY_COLUMNS)


def summaries_on_rows(scores: Scores, f: FloatArray, attributes: Sequence[Attribute], spec: AuditSpec) -> pd.DataFrame:
    """The summaries of scores in memory with decisions f, by each attribute."""
    units, frames = units_of(scores.patients, len(scores)), []
    for a in attributes:
        found: dict[str, Limits] = {}
        if any(SUMMARIES[name].of_scores for name in spec.summaries):
            found = {"auroc": aurocs(scores, a, units, spec.level)} | dict(estimate_scores(scores, a, units, spec)[1])
        frames.append(summaries_of(spec.summaries, a.name, a.levels, moments_of_scores(scores, f, a), found, spec))
    return pd.concat(frames, ignore_index=True)


def _lacking(groups: Sequence[str], spec: AuditSpec) -> str:
    return f"{INSUFFICIENT_DATA}: fewer than {spec.min_patients} patients in {', '.join(map(repr, groups))}"


def _with_reference(
    summary: Summary, groups: GroupValues, known: BoolArray, levels: Sequence[str], spec: AuditSpec
) -> list[dict[str, Any]]:
    """Each group compared with the reference."""
    own = groups.value, *groups.limits(spec.level)
    if summary.how == "ratio":
        value, low, high = quotient(own, (own[0][:1], own[1][:1], own[2][:1]), np.append(0.0, groups.correlation))
    else:
        value, low, high = pairwise(*own, groups.correlation)
    rows, p_values = [], groups.p_values()
    for k, level in enumerate(levels[1:], 1):
        usable, small = known[k] and known[0] and not np.isnan(value[k]), [levels[j] for j in (k, 0) if not known[j]]
        note = "" if usable else _lacking(small, spec) if small else f"{INSUFFICIENT_DATA}: the rate of {levels[0]!r} is 0"
        numbers = [float(end[k]) if usable and np.isfinite(end[k]) else np.nan for end in (value, low, high)]
        rows.append(_summary_row((level, levels[0]), numbers, float(p_values[k - 1]) if usable else np.nan, groups, [k, 0], note))
    return rows


def _of_all(summary: Summary, groups: GroupValues, known: BoolArray, levels: Sequence[str], spec: AuditSpec) -> list[dict[str, Any]]:
    """One number for all groups with sufficient data."""
    some, error = np.flatnonzero(known), 1 - spec.level
    if len(some) < 2:
        without = [levels[k] for k in np.flatnonzero(~known).tolist()]
        return [_summary_row(("", ""), [np.nan] * 3, np.nan, groups, [], _lacking(without, spec))]
    left_out = f"{len(known) - len(some)} of {len(known)} groups have {INSUFFICIENT_DATA}" if len(some) < len(known) else ""
    value = groups.value[some]

    def ends(level: float) -> Ends:
        low, high = groups.limits(level)
        return value, low[some], high[some]

    order, own = np.argsort(value, kind="stable"), ends(spec.level)
    if summary.how == "worst":
        inner = ends(1 - 2 * (1 - (1 - error / 2) ** (1 / len(some))))
        upwards = summary.rate in WORSE_IF_HIGHER
        worst = int(some[order[-1] if upwards else order[0]])
        low, high = (inner[1].max(), own[2].max()) if upwards else (own[1].min(), inner[2].min())
        return [_summary_row((levels[worst], ""), [groups.value[worst], low, high], np.nan, groups, [worst], left_out)]
    inner = ends((1 - error) ** (2 / (len(some) * (len(some) - 1))))
    if summary.how == "range":
        places, total = order[[-1, 0]], value[order[-1]] - value[order[0]]
        low, high = max(_pair_differences(inner)[0].max(), 0.0), _pair_differences(own)[1].max()
    else:
        places, total = order[[0, -1]], float(ratio(value[order[:1]], value[order[-1:]])[0])
        low, high = _ratios(own)[0].min(), min(_ratios(inner)[1].min(), 1.0)
        left_out = left_out if value.any() else f"{INSUFFICIENT_DATA}: the rate is 0 in all groups"
    numbers = [total, low, high] if not np.isnan(total) else [np.nan] * 3
    first, second = some[places].tolist()
    return [_summary_row((levels[first], levels[second]), numbers, np.nan, groups, [first, second], left_out)]


def _pair_differences(ends: Ends) -> tuple[FloatArray, FloatArray]:
    """The lower and upper limits of the differences of all ordered pairs of groups (groups, groups); minus infinity on the diagonal."""
    value, low, high = ends
    total, same = value[:, None] - value, np.eye(len(value), dtype=bool)
    below, above = np.hypot((value - low)[:, None], high - value), np.hypot((high - value)[:, None], value - low)
    return np.where(same, -np.inf, total - below), np.where(same, -np.inf, total + above)


def _ratios(ends: Ends) -> tuple[FloatArray, FloatArray]:
    """The lower and upper limits of the ratios of all ordered pairs of groups (groups, groups); infinite if unknown."""
    value, low, high = ends
    _, below, above = quotient((value[:, None], low[:, None], high[:, None]), ends)
    unknown = np.eye(len(value), dtype=bool) | np.isnan(below)
    return np.where(unknown, np.inf, below), np.where(unknown, np.inf, above)


def _summary_row(
    named: tuple[str, str], numbers: Sequence[float], p: float, groups: GroupValues, places: Sequence[int], note: str
) -> dict[str, Any]:
    patients, effective = (min((float(each[k]) for k in places), default=0.0) for each in (groups.patients, groups.effective))
    few = bool(not np.isnan(numbers[0]) and effective < FEW_PATIENTS)
    value, low, high = map(float, numbers)
    about = {"p_value": p, "patients": int(patients), "few": few, "note": note}
    return {"group": named[0], "reference": named[1], "value": value, "low": low, "high": high, **about}


def headlines_of(frame: pd.DataFrame) -> dict[str, Estimate]:
    """The most extreme row of each summary: the largest difference, the ratio furthest from 1, the worst group, over all attributes."""
    found = {}
    for measure, rows in frame.groupby("measure", sort=False):
        summary, known = SUMMARIES[str(measure)], rows[rows["value"].notna()]
        if summary.is_ratio:
            order = -np.abs(np.log(known["value"].clip(lower=1e-12)))
        elif summary.how == "worst":
            order = known["value"] * (-1 if summary.rate in WORSE_IF_HIGHER else 1)
        else:
            order = -known["value"].abs()
        row = (known.loc[order.idxmin()] if len(known) else rows.iloc[0]).to_dict()
        ends: dict[str, Any] = {name: float(row[name]) for name in ("value", "low", "high", "p_value")}
        named: dict[str, Any] = {name: str(row[name]) for name in ("note", "group", "reference")}
        about: dict[str, Any] = {"patients": int(row["patients"]), "few": bool(row["few"]), "direction": DIRECTIONS[summary.how]}
        found[str(measure)] = Estimate(**ends, **named, **about)
    return found
