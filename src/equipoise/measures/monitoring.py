"""Gaps followed over time, with limits and evidence of change that stay valid however often, and for however long, they are audited.

An audit that is repeated every month and tested at 5 % each time reports a false finding within a year or two. The two statements here
hold in all periods at once, without a planned end. Let d_t be the gap over periods 1 .. t, with variance v_t between patients.

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
  most alpha (Ville). Variances are those of the rates of all periods together, scaled to the patients of each part.

Half of the error is for the level of the gaps and half for their change, both divided by the number of gaps (Bonferroni): the probability
of any false alarm, over all gaps and all periods, is at most 1 - level.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from equipoise.errors import BadInput
from equipoise.measures.audit import AuditSums, records
from equipoise.measures.cells import FloatArray, IntArray, ratio
from equipoise.measures.gaps import Gap, canonical_name, coefficients, signature
from equipoise.measures.moments import FURTHEST, Moments, SignedSum, level_of
from equipoise.presenting import html_of, write_page

EXPECTED_CHANGE = 0.1  # the size of a gap, or of its change, at which limits and evidence are most powerful


def confidence_sequence(gap: SignedSum, alpha: float, expected: float = EXPECTED_CHANGE) -> tuple[FloatArray, FloatArray, FloatArray]:
    """The gap over all periods so far with limits that hold in all periods at once (...,); the whole range while data are few.

    >>> gaps = SignedSum.of([1.0, -1.0], [[0.7, 0.8], [0.7, 0.8]], [[50.0], [500.0]])
    >>> [end.round(2).tolist() for end in confidence_sequence(gaps, 0.05)]
    [[-0.1, -0.1], [-0.38, -0.18], [0.2, -0.02]]
    """
    variance = gap.variance / expected**2
    with np.errstate(invalid="ignore", divide="ignore"):
        z = np.sqrt((1 + variance) * np.log((1 + 1 / variance) / alpha**2))
    value, low, high = gap.limits(level_of(np.nan_to_num(z, nan=FURTHEST)))
    lowest, highest = np.minimum(gap.signs, 0.0).sum(-1), np.maximum(gap.signs, 0.0).sum(-1)
    known = z < FURTHEST
    return value, np.where(known, np.maximum(low, lowest), lowest), np.where(known, np.minimum(high, highest), highest)


@dataclass(frozen=True, eq=False)
class Periods:
    """The sums of k ratios in each period (T, groups, ..., k), the reference first, with standard errors over all periods so far."""

    signs: FloatArray  # (k,)
    top: FloatArray
    bottom: FloatArray
    patients: FloatArray
    deviation: FloatArray  # standard errors of the ratios over periods 1 .. t
    correlation: FloatArray  # (T, groups, ..., k, k)

    @classmethod
    def of(cls, periods: Sequence[Moments], coefficients: Mapping[str, float], shape: tuple[int, ...] = ()) -> "Periods":
        """The periods of a gap; `shape` arranges the groups of the moments as (groups, ...)."""
        names = list(coefficients)
        signs = np.array(list(coefficients.values()))
        sides = [np.array([periods[0].ratios[name][side] for name in names]) for side in (0, 1)]
        top, bottom = (np.stack([each.total @ side.T for each in periods]) for side in sides)
        patients = np.stack([np.stack([each[name].patients for name in names], axis=-1) for each in periods])
        so_far = [each.signed(coefficients) for each in cumulative(periods)]
        deviation, correlation = (np.stack([getattr(each, name) for each in so_far]) for name in ("deviation", "correlation"))
        groups = shape or top.shape[1:2]

        def arranged(array: FloatArray, tail: int = 1) -> FloatArray:
            return array.reshape(len(array), *groups, *array.shape[-tail:])

        return cls(signs, arranged(top), arranged(bottom), arranged(patients), arranged(deviation), arranged(correlation, 2))


@dataclass(frozen=True, eq=False)
class Evidence:
    """The evidence of a change of each gap in each period (T, groups - 1, ...), and the limits for a single period."""

    value: FloatArray  # 1 means no evidence
    since: IntArray  # the period (0 .. T - 1) in which a change is most likely to have started; 0 in the first period
    before: FloatArray  # the gap before that period
    after: FloatArray  # the gap since that period
    limit_low: FloatArray  # a period with a gap below this limit, or above the next, raises an alarm by itself
    limit_high: FloatArray


def change_evidence(periods: Periods, alpha: float, expected: float = EXPECTED_CHANGE, least: int = 5) -> Evidence:
    """The evidence of a change in each period. Parts of the history with fewer than `least` patients in a cell do not count."""
    count, s2 = len(periods.top), expected**2
    tops, bottoms, patients = (np.cumsum(each, axis=0) for each in (periods.top, periods.bottom, periods.patients))
    shape = (count, periods.top.shape[1] - 1, *periods.top.shape[2:-1])
    value, since = np.ones(shape), np.zeros(shape, np.int64)
    before, after, low, high = (np.full(shape, np.nan) for _ in range(4))
    for t in range(1, count):
        parts = [
            (tops[:t], bottoms[:t], patients[:t]),
            (tops[t] - tops[:t], bottoms[t] - bottoms[:t], patients[t] - patients[:t]),
        ]
        gaps, variance, enough = [], np.zeros((t, *shape[1:])), np.ones((t, *shape[1:]), bool)
        for top, bottom, units in parts:
            rate = ratio(top, bottom)
            total = np.where(periods.signs == 0, 0.0, periods.signs * rate).sum(-1)  # (t, groups, ...)
            sd = periods.signs * periods.deviation[t] * np.sqrt(ratio(np.broadcast_to(bottoms[t], bottom.shape), bottom))
            variances = np.einsum("...i,...ij,...j->...", sd, np.broadcast_to(periods.correlation[t], (*sd.shape, sd.shape[-1])), sd)
            sufficient = (units >= least).all(-1)
            gaps.append(total[:, 1:] - total[:, :1])
            variance += variances[:, 1:] + variances[:, :1]
            enough &= sufficient[:, 1:] & sufficient[:, :1]
        weight = 1 / (np.arange(1, t + 1) * np.arange(2, t + 2))  # of a change in period k + 1 = 2 .. t + 1
        weight = weight.reshape(-1, *(1,) * (len(shape) - 1))
        difference = gaps[1] - gaps[0]
        with np.errstate(invalid="ignore", over="ignore"):
            exponent = difference**2 * s2 / (2 * variance * (variance + s2))
            factor = np.exp(np.minimum(exponent, 600.0)) * np.sqrt(variance / (variance + s2))
        factor = np.where(enough & ~np.isnan(factor), factor, 1.0)
        value[t] = (weight * factor).sum(0) + 1 / (t + 1)  # the last term: changes in future periods
        since[t] = np.argmax(weight * factor, axis=0) + 1
        best = since[t][None] - 1
        before[t], after[t] = (np.take_along_axis(each, best, 0)[0] for each in gaps)
        with np.errstate(invalid="ignore"):  # the limits for a change in this period: the last of the possible changes
            v = variance[-1]
            needed = np.sqrt(2 * (np.log(1 / (alpha * weight[-1])) + np.log((v + s2) / v) / 2) * v * (v + s2) / s2)
        needed = np.where(enough[-1], needed, np.nan)
        low[t], high[t] = gaps[0][-1] - needed, gaps[0][-1] + needed
    return Evidence(value, since, before, after, low, high)


def cumulative(periods: Sequence[Moments]) -> list[Moments]:
    """The moments of all periods up to and including each period."""
    return list(itertools.accumulate(periods))


def first_period(reached: npt.NDArray[np.bool_]) -> IntArray:
    """The first period in which a condition holds (T, ...) -> (...); -1 if it never does."""
    first: IntArray = np.where(reached.any(0), reached.argmax(0), -1)
    return first


SCHEMA, SCHEMA_VERSION = "equipoise.monitoring", 2


@dataclass(frozen=True, eq=False)
class Monitoring:
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
            gap = f"{row['value']:+.3f} [{row['low']:+.3f}, {row['high']:+.3f}]" if not np.isnan(row["value"]) else "insufficient data"
            changed = f"; changed since {row['since']}: {row['before']:+.3f} to {row['after']:+.3f}" if row["changed"] else ""
            lines.append(f"  {row['measure']} of {row['group']} minus {row['reference']}: {gap}{' *' if row['shown'] else ''}{changed}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return html_of(self)

    def report(self, path: str | Path, *, group_names: Mapping[str, str] | None = None) -> Path:
        """Writes the report with a chart of every gap, HTML or PDF (.pdf), and returns its path. `group_names` are words for groups."""
        return write_page(self, path, group_names=group_names)

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON; None for insufficient data."""
        return {
            "schema": SCHEMA,
            "schema_version": SCHEMA_VERSION,
            "periods": list(self.periods),
            "level": self.level,
            "expected_change": self.expected_change,
            "comparisons": self.comparisons,
            "alarms": self.alarms,
            "intersections": list(self.intersections),
            "gaps": records(self.gaps),
            "history": records(self.frame),
        }


def monitor(
    periods: Mapping[str, Mapping[str, AuditSums]],
    measures: Sequence[Gap],
    *,
    level: float = 0.95,
    expected_change: float = 0.1,
    intersections: bool = False,
) -> Monitoring:
    """Every gap over these periods, by label, attribute and group."""
    if not 0.01 <= level <= 0.9999 or not 0.001 <= expected_change <= 1:
        raise BadInput(
            f"level must be at least 0.01 and at most 0.9999, and the expected change of a gap between 0.001 and 1; got {level} and "
            f"{expected_change}"
        )
    names = list(dict.fromkeys(canonical_name(measure) for measure in measures))
    if not names:
        raise BadInput("at least one measure is needed, such as eod")
    first = next(iter(periods.values()))
    series = {
        (label, attribute): _series(periods, label, attribute)
        for label, sums in first.items()
        for attribute in sums.groups
        if intersections or attribute not in sums.intersections
    }
    count = sum((len(groups) - 1) * len({signature(name) for name in names}) for groups, _ in series.values())
    alpha = (1 - level) / 2 / max(count, 1)
    gaps: list[dict[str, object]] = []
    rows: list[dict[str, object]] = []
    for (label, attribute), (groups, sums) in series.items():
        least = max(by_label[label].min_patients for by_label in periods.values())
        for measure in names:
            followed = _follow(sums, list(periods), measure, level, alpha, expected_change, least)
            for group, (summary, history) in zip(groups[1:], followed, strict=True):
                where = {"label": label, "measure": measure, "attribute": attribute, "group": group, "reference": groups[0]}
                gaps.append(where | summary)
                rows += [where | row for row in history]
    crossed = tuple(dict.fromkeys(name for sums in first.values() for name in sums.intersections))
    return Monitoring(tuple(periods), pd.DataFrame(gaps), pd.DataFrame(rows), count, level, expected_change, crossed)


def _follow(
    periods: Sequence[Moments], names: Sequence[str], measure: str, level: float, alpha: float, expected: float, least: int
) -> Iterator[tuple[dict[str, object], list[dict[str, object]]]]:
    """The row of each group in `Monitoring.gaps`, and its rows in `Monitoring.frame`; NaN where a cell has too few patients."""
    signs = coefficients(measure)
    evidence = change_evidence(Periods.of(periods, signs), alpha, expected, least)
    limits: list[list[FloatArray]] = [[], []]
    for one, all_so_far in zip(periods, cumulative(periods), strict=True):
        of_period, of_all = one.gap(signs).limits(level), confidence_sequence(all_so_far.gap(signs), alpha, expected)
        for kept, sums, ends in ((limits[0], one, of_period), (limits[1], all_so_far, of_all)):
            counts = np.min([sums[name].patients for name in signs], axis=0)
            kept.append(np.where(np.minimum(counts[1:], counts[0]) >= least, np.stack(ends), np.nan))
    by_period, so_far = map(np.stack, limits)  # (T, 3, groups - 1): value, low and high of each period, and of all periods up to each
    shown_at, changed_at = first_period((so_far[:, 1] > 0) | (so_far[:, 2] < 0)), first_period(evidence.value >= 1 / alpha)
    for k, (shown, changed) in enumerate(zip(shown_at.tolist(), changed_at.tolist(), strict=True)):
        value, low, high = map(float, so_far[-1, :, k])
        is_changed = changed >= 0
        summary = {
            **{"value": value, "low": low, "high": high, "shown": shown >= 0, "shown_in": names[shown] if shown >= 0 else ""},
            **{"changed": is_changed, "changed_in": names[changed] if is_changed else ""},
            **{"since": names[int(evidence.since[-1, k])] if is_changed else "", "evidence": float(evidence.value[-1, k])},
            "before": float(evidence.before[-1, k]) if is_changed else np.nan,
            "after": float(evidence.after[-1, k]) if is_changed else np.nan,
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


def _series(periods: Mapping[str, Mapping[str, AuditSums]], label: str, attribute: str) -> tuple[tuple[str, ...], list[Moments]]:
    """The groups of an attribute over all periods, and their sums in each period; zeros for a group that a period lacks."""
    groups = tuple(dict.fromkeys(group for by_label in periods.values() for group in by_label[label].groups[attribute]))
    series = []
    for by_label in periods.values():
        known, sums = by_label[label].groups[attribute], by_label[label].sums[attribute]
        place = [known.index(group) if group in known else len(known) for group in groups]
        with_none = (np.concatenate([array, np.zeros((1, *array.shape[1:]))]) for array in sums.arrays())
        series.append(Moments(sums.ratios, *(array[place] for array in with_none)))
    return groups, series
