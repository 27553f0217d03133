"""Gaps followed over time, with limits and evidence of change that stay valid however often, and for however long, they are audited.

An audit that is repeated every month and tested at 5 % each time reports a false finding within a year or two. The two statements here
hold in all periods at once, without a planned end. Let d_t be the gap over periods 1 .. t, with variance v_t between patients. It is
stratified by period: the rates of both groups are averaged over the periods with the same weights (see `Strata`). Pooled rates would differ
if a rate drifts in both groups alike while their shares of the patients change: with 200 patients per period that raised an alarm in 41 %
of 50-period histories without a gap in any period, with 1,000 in 99 %.

- **Level.** A confidence sequence: with probability 1 - alpha, the gap is within its limits in every period. Robbins (1970) mixes the
  likelihood ratio of a shift over a normal distribution, here with mean 0 and standard deviation s, the size of gap that matters; by
  Ville's inequality the limits are d_t -/+ z_t sqrt(v_t) with z_t^2 = (1 + v_t / s^2) log((1 + s^2 / v_t) / alpha^2). For estimates whose
  increments are asymptotically independent, as those of rates over new patients are, it holds asymptotically (Waudby-Smith, Arbour, Sinha,
  Kennedy and Ramdas 2024, Ann Stat 52:2613). Limits are score limits at z_t, so that small cells and rates next to 0 and 1 are covered.
- **Change.** An e-process against "the gap is equal in all periods", for any value of the gap. If it changed from period k on, by a normal
  shift of standard deviation s, the likelihood ratio of the difference D_k between the gap since k and before it, of variance w_k, is
  B_k = sqrt(w_k / (w_k + s^2)) exp(D_k^2 s^2 / (2 w_k (w_k + s^2))). It depends on differences only, so that the unknown gap cancels
  (Perez-Ortiz, Lardy, de Heide and Grunwald 2024, Ann Stat 52:1410). The evidence is the mean of all B_k with weights 1 / (k (k - 1)), in
  which future periods count as 1. Without a change it is a martingale of mean 1, so the probability that it ever reaches 1 / alpha is at
  most alpha (Ville). Variances are those of the rates of all periods together, or of the part if that is larger, scaled to its patients.

Patients who return in a later period count as clusters: their rows in all periods together, if the sums over patients of products of sums
in different periods are known (`returning_products`). For the difference D_k between periods they count as independent, which is
conservative, since visits of a patient on both sides make it more certain.

A ratio of two rates is followed as their difference is: its limits at z_t are those of the quotient of both standardised rates, which
exclude 1 if those of the difference at z_t exclude 0, and its change is that of its logarithm, for which s is the size of gap that matters
relative to the rate of the reference.

Half of the error is for the level of the gaps and half for their change, both divided by the number of gaps (Bonferroni): the probability
of any false alarm, over all gaps and all periods, is at most 1 - level.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log

import numpy as np
import numpy.typing as npt
import pandas as pd

from equipoise.data import Attribute, FloatArray, IntArray, Scores
from equipoise.errors import BadInput
from equipoise.measures.audit import Audit, records
from equipoise.measures.cells import kish, ratio
from equipoise.measures.intervals import Ends
from equipoise.measures.measure_table import SUMMARIES, measure_of
from equipoise.measures.moments import FURTHEST, Moments, SignedSum, level_of
from equipoise.measures.thresholds import Rule
from equipoise.presenting import Presented

EXPECTED_CHANGE = 0.1  # the size of a gap, or of its change, at which limits and evidence are most powerful
LARGEST_RATIO = 20.0  # of a single period that would raise an alarm by itself; a larger limit is none


@dataclass(frozen=True, eq=False)
class Strata:
    """The ratios behind a gap in each period, of each group and of the reference next to it (T, 2, groups - 1, ..., k ratios).

    The weight of a period is n1 n0 / (n1 + n0), with the denominators n1 of the group and n0 of the reference. Both sides have the same
    weights, so that a rate that drifts in both makes no gap if their shares of the patients drift too (Simpson's paradox).
    """

    signs: FloatArray  # (k,)
    effect: FloatArray  # independent rows per row, over the periods 1 .. t, with a patient's rows in all of them as a cluster
    effect_within: FloatArray  # with a patient's rows in each period as a cluster, for differences between periods
    degrees: FloatArray  # of freedom, over the periods 1 .. t
    correlation: FloatArray  # (..., k, k), over the periods 1 .. t
    sums: tuple[FloatArray, ...]  # over the periods 1 .. t, from t = 0 on: weights, weights * rates, weights^2 / rows, patients

    @classmethod
    def of(
        cls,
        periods: Sequence[Moments],
        coefficients: Mapping[str, float],
        returning: Sequence[FloatArray] | None = None,
        shape: tuple[int, ...] = (),
    ) -> "Strata":
        """The strata of a gap.

        periods: the moments of each period.
        coefficients: of the ratios of the gap.
        returning: of patients of earlier periods (groups, 4, 4), as of `returning_products`.
        shape: arranges the groups of the moments as (groups, ...), the reference first.
        """
        names, groups = list(coefficients), shape or (len(periods[0].total),)
        pooled = list(itertools.accumulate(periods))
        so_far = [each.signed(coefficients) for each in pooled]
        top, bottom = (np.array([periods[0].ratios[name][side] for name in names], dtype=np.float64).T for side in (0, 1))

        def pairs(values: Sequence[FloatArray], *more: int) -> FloatArray:
            by_group = np.stack(values).reshape(len(periods), *groups, len(names), *more)
            return np.stack([by_group[:, 1:], np.broadcast_to(by_group[:, :1], by_group[:, 1:].shape)], axis=1)

        n = pairs([each.total @ bottom for each in periods])
        weight = np.nan_to_num(ratio(n[:, 0] * n[:, 1], n[:, 0] + n[:, 1]))
        rates = np.nan_to_num(ratio(pairs([each.total @ top for each in periods]), n))
        rows = pairs([np.stack([each[name].rows for name in names], -1) for each in periods])
        patients = pairs([np.stack([each[name].patients for name in names], -1) for each in periods]).min(1)
        within = pairs([each.size for each in so_far])
        sizes, degrees = within, pairs([each.degrees for each in so_far])
        if returning is not None and np.any(returning):
            again = [_with_returning(each, products, names) for each, products in zip(pooled, np.cumsum(returning, 0), strict=True)]
            sizes, degrees = (pairs([each[k] for each in again]) for k in (0, 1))
        of_row = np.nan_to_num(ratio(np.broadcast_to(weight[:, None] ** 2, rows.shape), rows))
        sums = weight, weight[:, None] * rates, of_row, np.where(weight > 0, patients, 0.0)
        effect, effect_within = (ratio(each, np.cumsum(rows, axis=0)) for each in (sizes, within))
        correlation = pairs([each.correlation for each in so_far], len(names))
        signs = np.array(list(coefficients.values()), dtype=np.float64)
        none_yet = (np.concatenate([np.zeros_like(each[:1]), np.cumsum(each, axis=0)]) for each in sums)
        return cls(signs, effect, effect_within, degrees, correlation, tuple(none_yet))

    def part(self, start: IntArray, end: IntArray, effect: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """The standardised ratios over the periods start + 1 .. end with their effective rows (n, 2, ...), and the patients (n, ...)."""
        weight, weighted, of_row, patients = (each[end] - each[start] for each in self.sums)
        whole = np.broadcast_to(weight[:, None], weighted.shape)
        return ratio(weighted, whole), effect * kish(whole, of_row), patients

    def gaps(self) -> SignedSum:
        """The gap over the periods 1 .. t, standardised to the same mix of periods in both groups (T, groups - 1, ...)."""
        ends = np.arange(len(self.effect))
        values, sizes, _ = self.part(np.zeros_like(ends), ends + 1, self.effect)
        one, other = (
            SignedSum(
                np.broadcast_to(self.signs, values[:, side].shape),
                *(values[:, side], sizes[:, side], self.degrees[:, side], np.full(values[:, side].shape, np.nan)),
                self.correlation[:, side],
            )
            for side in (0, 1)
        )
        return one.minus(other)


def _with_returning(pooled: Moments, products: FloatArray, names: Sequence[str]) -> tuple[FloatArray, FloatArray]:
    """The effective sample sizes and the degrees of freedom (groups, names) if the rows of a patient in all periods are one cluster."""
    sizes, degrees = [], []
    for name in names:
        of = pooled[name]
        top, bottom = (np.array(side, dtype=np.float64) for side in pooled.ratios[name][:2])
        n, spread = pooled.total @ bottom, of.value * (1 - of.value)
        slope = ratio(top - of.value[:, None] * bottom, np.broadcast_to(n[:, None], (len(n), len(bottom))))
        more = np.maximum(np.nan_to_num(np.einsum("ga,gab,gb->g", slope, products, slope)), 0.0)  # of the variance
        whole = ratio(n**2, ratio(n**2, of.effective) + np.einsum("a,gab,b->g", bottom, products, bottom))  # effective patients
        sizes.append(np.where(spread > 0, ratio(spread, ratio(spread, of.size) + more), np.fmin(of.size, whole)))
        degrees.append(np.where(whole < of.effective * (1 - 1e-9), np.fmin(of.degrees, np.maximum(whole - 1, 1.0)), of.degrees))
    return np.stack(sizes, axis=-1), np.stack(degrees, axis=-1)


def returning_products(
    audit: Audit, scores: Mapping[str, Scores], earlier: Sequence[Mapping[str, Scores]]
) -> dict[str, dict[str, FloatArray]]:
    """By label and attribute (groups, 4, 4): what patients of earlier periods add to the sums over patients of products of their sums.

    With it, all rows of a patient are one cluster, in whatever periods they are.

    audit: of the period, and `scores` its rows by label.
    earlier: the rows of each earlier period by label.
    """
    found: dict[str, dict[str, FloatArray]] = {}
    for label, own in audit.labels.items():
        found[label] = {}
        for attribute, groups in own.groups.groupby("attribute", sort=False):
            place = {str(group): k for k, group in enumerate(groups.index)}
            sides = [scores[label]], [each[label] for each in earlier]
            now, before = (_sums_by_patient(rows, own.rule, str(attribute)) for rows in sides)
            both = now.index.intersection(before.index)
            codes = np.array([place.get(str(group), -1) for group in both.get_level_values("group")], dtype=np.int64)
            x, m = (sums.loc[both].to_numpy(dtype=np.float64)[codes >= 0] for sums in (now, before))
            products = np.zeros((len(place), x.shape[1], x.shape[1]))
            np.add.at(products, codes[codes >= 0], x[:, :, None] * m[:, None, :] + m[:, :, None] * x[:, None, :])
            found[label][str(attribute)] = products
    return found


def _sums_by_patient(rows: Sequence[Scores], rule: Rule, attribute: str) -> pd.DataFrame:
    """Rows and positive decisions by label, of each patient in each group."""
    frames = []
    for each in rows:
        sizes = range(1, len(each.attributes) + 1)
        crossed = {a.name: a for k in sizes for a in map(Attribute.crossed, itertools.combinations(each.attributes, k))}
        if each.patients is None or attribute not in crossed:
            raise BadInput(f"{each.name}: expected patients and the column {attribute!r}, as in the audited rows")
        weight = np.ones(len(each)) if each.weight is None else each.weight / np.mean(each.weight)
        decided = weight * rule.decide(each)
        where = [each.y == 0, each.y == 1]
        columns = {f"n{k}": weight * there for k, there in enumerate(where)} | {f"s{k}": decided * there for k, there in enumerate(where)}
        patient, group = np.asarray(each.patients, dtype=object).astype(str), crossed[attribute].names
        frames.append(pd.DataFrame({"patient": patient, "group": group, **columns}))
    return pd.concat(frames).dropna(subset="group").groupby(["patient", "group"]).sum()


def confidence_sequence(gap: SignedSum, alpha: float, expected: float = EXPECTED_CHANGE, *, is_ratio: bool = False) -> Ends:
    """The gap over all periods so far with limits that hold in all periods at once (...,); the whole range while data are few.

    With `is_ratio`, the rate of the group, the first term of the gap, divided by that of the reference, the second.

    >>> gaps = SignedSum.of([1.0, -1.0], [[0.7, 0.8], [0.7, 0.8]], [[50.0], [500.0]])
    >>> [end.round(2).tolist() for end in confidence_sequence(gaps, 0.05)]
    [[-0.1, -0.1], [-0.38, -0.18], [0.2, -0.02]]
    """
    measured = gap
    if is_ratio:  # to first order, its error is that of p1 - t p0, relative to p0
        relative = np.nan_to_num(ratio(gap.value[..., 1], gap.value[..., 0]), nan=1.0, posinf=1.0)
        measured = replace(gap, signs=np.stack([gap.signs[..., 0] * relative, gap.signs[..., 1]], axis=-1))
    variance = measured.variance / expected**2
    with np.errstate(invalid="ignore", divide="ignore"):
        z = np.sqrt((1 + variance) * np.log((1 + 1 / variance) / alpha**2))
    level, known = level_of(np.nan_to_num(z, nan=FURTHEST)), z < FURTHEST
    if is_ratio:
        value, low, high = gap.quotient(level)
        return value, np.where(known, low, 0.0), np.where(known, high, np.nan)  # no ratio is too large while data are few
    value, low, high = gap.limits(level)
    lowest, highest = np.minimum(gap.signs, 0.0).sum(-1), np.maximum(gap.signs, 0.0).sum(-1)
    return value, np.where(known, np.maximum(low, lowest), lowest), np.where(known, np.minimum(high, highest), highest)


@dataclass(frozen=True, eq=False)
class ChangeEvidence:
    """The evidence of a change of each gap in each period (T, groups - 1, ...), and the limits for a single period."""

    value: FloatArray  # 1 means no evidence
    since: IntArray  # the period (0 .. T - 1) in which a change is most likely to have started; 0 in the first period
    before: FloatArray  # the gap before that period
    after: FloatArray  # the gap since that period
    limit_low: FloatArray  # a period with a gap below about this limit, or above the next, raises an alarm by itself; NaN: no gap can
    limit_high: FloatArray


def change_evidence(
    strata: Strata, alpha: float, expected: float = EXPECTED_CHANGE, least: int = 5, *, is_ratio: bool = False
) -> ChangeEvidence:
    """The evidence of a change of a gap in each period. Parts of the history with fewer than `least` patients in a cell do not count.

    With `is_ratio`, of the ratio of the rate that it compares.
    """
    signs, shape = strata.signs, (len(strata.effect), *strata.effect.shape[2:-1])
    value, since, furthest = np.ones(shape), np.zeros(shape, np.int64), log(LARGEST_RATIO) if is_ratio else float(np.abs(signs).sum())
    s2: FloatArray = np.full(shape[1:], expected**2)
    before, after, low, high = (np.full(shape, np.nan) for _ in range(4))
    for t in range(1, shape[0]):
        starts = np.arange(1, t + 1)
        none, whole = np.zeros_like(starts), np.full_like(starts, t + 1)
        rate, size, _ = strata.part(none[:1], whole[:1], strata.effect_within[t])
        typical = ratio(rate * size + 1, size + 2)  # an observed 0 or 1 is not certain
        if is_ratio:
            s2 = (expected / typical[0, 1, ..., 0]) ** 2
        gaps, variance, enough = [], np.zeros((t, *shape[1:])), np.ones((t, *shape[1:]), bool)
        for ends in ((none, starts), (starts, whole)):
            rate, size, patients = strata.part(*ends, strata.effect_within[t])
            own = ratio(rate * size + 2 * typical, size + 2)
            # After a drift, the rates of this part may be less certain than those of all periods; those of few rows would be too certain.
            sd = signs * np.sqrt(ratio(np.maximum(own * (1 - own), typical * (1 - typical)), size))
            if is_ratio:  # of the logarithm of a rate; that of a low one is uncertain
                sd = sd / np.minimum(own, typical)
            variance += np.einsum("ts...i,s...ij,ts...j->t...", sd, strata.correlation[t], sd)
            linked = np.log(own) if is_ratio else rate
            gaps.append(np.where(signs == 0, 0.0, signs * (linked[:, 0] - linked[:, 1])).sum(-1))
            enough &= (patients >= least).all(-1)
        weight = 1 / (starts * (starts + 1))  # of a change in period k + 1 = 2 .. t + 1
        weight = weight.reshape(-1, *(1,) * (len(shape) - 1))
        difference = gaps[1] - gaps[0]
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            exponent = difference**2 * s2 / (2 * variance * (variance + s2))
            factor = np.exp(np.minimum(exponent, 600.0)) * np.sqrt(variance / (variance + s2))
        factor = np.where(enough & ~np.isnan(factor), factor, 1.0)
        value[t] = (weight * factor).sum(0) + 1 / (t + 1)  # the last term: changes in future periods
        since[t] = np.argmax(weight * factor, axis=0) + 1
        best = since[t][None] - 1
        before[t], after[t] = (np.take_along_axis(each, best, 0)[0] for each in gaps)
        with np.errstate(invalid="ignore", divide="ignore"):  # the limits for a change in this period: the last of the possible changes
            v = variance[-1]
            needed = np.sqrt(2 * (np.log(1 / (alpha * weight[-1])) + np.log((v + s2) / v) / 2) * v * (v + s2) / s2)
        needed = np.where(enough[-1], needed, np.nan)
        low[t], high[t] = (np.where(np.abs(end) <= furthest, end, np.nan) for end in (gaps[0][-1] - needed, gaps[0][-1] + needed))
    if is_ratio:
        before, after, low, high = (np.exp(each) for each in (before, after, low, high))
    return ChangeEvidence(value, since, before, after, low, high)


def first_period(reached: npt.NDArray[np.bool_]) -> IntArray:
    """The first period in which a condition holds (T, ...) -> (...); -1 if it never does."""
    first: IntArray = np.where(reached.any(0), reached.argmax(0), -1)
    return first


@dataclass(frozen=True, eq=False)
class Monitoring(Presented):
    """Gaps over time. `gaps` has one row per gap, as of the last period; `frame` one row per gap and period.

    In `gaps`, `value`, `low` and `high` are those of all periods so far (with limits that hold in all periods at once); `shown` is true if
    the limits have ever excluded zero, first in the period `shown_in`; `changed` is true if a change was detected, first in `changed_in`,
    most likely since the period `since`, from `before` to `after`.
    """

    periods: tuple[str, ...]
    gaps: pd.DataFrame
    frame: pd.DataFrame
    comparisons: int
    level: float
    expected_change: float
    intersections: tuple[str, ...] = ()  # attributes that are the intersection of others

    @property
    def alarms(self) -> int:
        """The number of gaps that are shown to differ from zero or to have changed; every measure counts, also one that mirrors another."""
        return int((self.gaps["shown"] | self.gaps["changed"]).sum())

    def __repr__(self) -> str:
        return f"Monitoring({len(self.gaps)} gaps, {self.periods[0]} to {self.periods[-1]}, {self.alarms} alarms)"

    def __str__(self) -> str:
        lines = [f"{len(self.periods)} periods, {self.periods[0]} to {self.periods[-1]}"]
        for row in self.gaps.to_dict("records"):
            sign, how = ("", "divided by") if row["measure"] in SUMMARIES else ("+", "minus")
            ends = f"{row['value']:{sign}.3f} [{row['low']:{sign}.3f}, {row['high']:{sign}.3f}]"
            gap = "insufficient data" if np.isnan(row["value"]) else ends
            changed = f"; changed since {row['since']}: {row['before']:{sign}.3f} to {row['after']:{sign}.3f}" if row["changed"] else ""
            lines.append(f"  {row['measure']} of {row['group']} {how} {row['reference']}: {gap}{' *' if row['shown'] else ''}{changed}")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON; None for insufficient data."""
        return {
            "schema": "equipoise.monitoring",
            "schema_version": 2,
            "periods": list(self.periods),
            "level": self.level,
            "expected_change": self.expected_change,
            "comparisons": self.comparisons,
            "alarms": self.alarms,
            "intersections": list(self.intersections),
            "gaps": records(self.gaps),
            "history": records(self.frame),
        }


def follow(
    periods: Sequence[Moments],
    returning: Sequence[FloatArray],
    names: Sequence[str],
    measure: str,
    level: float,
    alpha: float,
    expected: float,
    least: int,
) -> Iterator[tuple[dict[str, object], list[dict[str, object]]]]:
    """The row of each group in `Monitoring.gaps`, and its rows in `Monitoring.frame`; NaN where a cell has too few patients."""
    is_ratio = measure in SUMMARIES
    signs, null = ({SUMMARIES[measure].rate: 1.0}, 1.0) if is_ratio else (measure_of(measure).coefficients, 0.0)
    strata = Strata.of(periods, signs, returning)
    evidence = change_evidence(strata, alpha, expected, least, is_ratio=is_ratio)
    by_cell = np.stack([np.min([one[name].patients for name in signs], axis=0) for one in periods])  # (T, groups)
    patients = np.minimum(by_cell[:, 1:], by_cell[:, :1])
    by_one = [one.gap(signs) for one in periods]
    of_period = np.stack([np.stack(gap.quotient(level) if is_ratio else gap.limits(level)) for gap in by_one])
    of_all = np.stack(confidence_sequence(strata.gaps(), alpha, expected, is_ratio=is_ratio), axis=1)
    known = strata.sums[-1][1:].min(-1) >= least
    # (T, 3, groups - 1): value, low and high of each period, and of all periods up to each
    by_period, so_far = (np.where(k[:, None], ends, np.nan) for k, ends in ((patients >= least, of_period), (known, of_all)))
    # A period counts as measured if it has enough patients, or any if no period had enough of them by itself.
    measured = patients >= np.where((patients >= least).any(0), least, 1)
    shown_at, changed_at = first_period((so_far[:, 1] > null) | (so_far[:, 2] < null)), first_period(evidence.value >= 1 / alpha)
    for k, (shown, changed) in enumerate(zip(shown_at.tolist(), changed_at.tolist(), strict=True)):
        value, low, high = map(float, so_far[-1, :, k])
        is_changed = changed >= 0
        summary = {
            **{"value": value, "low": low, "high": high, "shown": shown >= 0, "shown_in": names[shown] if shown >= 0 else ""},
            **{"changed": is_changed, "changed_in": names[changed] if is_changed else ""},
            **{"since": names[int(evidence.since[-1, k])] if is_changed else "", "evidence": float(evidence.value[-1, k])},
            "before": float(evidence.before[-1, k]) if is_changed else np.nan,
            "after": float(evidence.after[-1, k]) if is_changed else np.nan,
            "unwatched": not measured[-1, k] or np.isnan(value),
            "measured_in": next((name for name, there in zip(reversed(names), reversed(measured[:, k]), strict=True) if there), ""),
        }
        history = [
            {
                "period": name,
                **dict(zip(("value", "low", "high"), map(float, by_period[t, :, k]), strict=True)),
                **dict(zip(("so_far", "so_far_low", "so_far_high"), map(float, so_far[t, :, k]), strict=True)),
                **{end: float(getattr(evidence, end)[t, k]) for end in ("limit_low", "limit_high")},
                "evidence": float(evidence.value[t, k]),
                "changed": 0 <= changed <= t,
            }
            for t, name in enumerate(names)
        ]
        yield summary, history
