"""Gaps followed over time: each period, all periods so far with a confidence sequence, and evidence that the gap has changed.

Half of the error is for the level of the gaps and half for their change, both divided by the number of gaps (Bonferroni): the probability
of any false alarm, over all gaps and all periods, is at most 1 - level. The mathematics is in `confidence_sequences`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from equipoise.errors import BadInput
from equipoise.measures.audit import AuditSums, records
from equipoise.measures.cells import FloatArray, IntArray
from equipoise.measures.confidence_sequences import Evidence, Periods, change_evidence, confidence_sequence, cumulative, first_period
from equipoise.measures.estimates import coefficients
from equipoise.measures.gaps import Gap, canonical_name, signature
from equipoise.measures.moments import DECISIONS, Moments
from equipoise.measures.signed_sums import SignedSum
from equipoise.presenting import presenter

SCHEMA, SCHEMA_VERSION = "equipoise.monitoring", 2
WHERE = ("label", "measure", "attribute", "group", "reference")


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
        return str(presenter("monitoring_html")(self))

    def report(self, path: str | Path, *, group_names: Mapping[str, str] | None = None) -> Path:
        """Writes the report with a chart of every gap, HTML or PDF (.pdf), and returns its path. `group_names` are words for groups."""
        return Path(presenter("write_monitoring_page")(self, Path(path), group_names=group_names))

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
    first_period = next(iter(periods.values()))
    series = {
        (label, attribute): _series(periods, label, attribute)
        for label, sums in first_period.items()
        for attribute in sums.groups
        if intersections or attribute not in sums.intersections
    }
    count = sum((len(groups) - 1) * len({signature(name) for name in names}) for groups, _ in series.values())
    alpha = (1 - level) / 2 / max(count, 1)
    gaps, rows = [], []
    for (label, attribute), (groups, sums) in series.items():
        least = max(by_label[label].min_patients for by_label in periods.values())
        for measure in names:
            followed = _follow(sums, measure, level, alpha, expected_change, least)
            for k, group in enumerate(groups[1:]):
                where = dict(zip(WHERE, (label, measure, attribute, group, groups[0]), strict=True))
                gaps.append(where | followed.summary(k, list(periods)))
                rows += [where | row for row in followed.rows(k, list(periods))]
    crossed = tuple(dict.fromkeys(name for sums in first_period.values() for name in sums.intersections))
    return Monitoring(tuple(periods), pd.DataFrame(gaps), pd.DataFrame(rows), count, level, expected_change, crossed)


@dataclass(frozen=True, eq=False)
class _Followed:
    """The gaps of one measure between the groups of one attribute, over all periods."""

    evidence: Evidence
    by_period: FloatArray  # (T, 3, groups - 1): value, low and high of each period
    so_far: FloatArray  # (T, 3, groups - 1): of all periods up to each
    changed_at: IntArray  # (groups - 1,) the first period with an alarm; -1 if there is none
    shown_at: IntArray

    def summary(self, k: int, periods: Sequence[str]) -> dict[str, object]:
        """The row of a group in `Monitoring.gaps`."""
        changed, shown = int(self.changed_at[k]), int(self.shown_at[k])
        evidence = self.evidence
        value, low, high = map(float, self.so_far[-1, :, k])
        return {
            "value": value,
            "low": low,
            "high": high,
            "shown": shown >= 0,
            "shown_in": periods[shown] if shown >= 0 else "",
            "changed": changed >= 0,
            "changed_in": periods[changed] if changed >= 0 else "",
            "since": periods[int(evidence.since[-1, k])] if changed >= 0 else "",
            "evidence": float(evidence.value[-1, k]),
            "before": float(evidence.before[-1, k]) if changed >= 0 else np.nan,
            "after": float(evidence.after[-1, k]) if changed >= 0 else np.nan,
        }

    def rows(self, k: int, periods: Sequence[str]) -> Iterator[dict[str, object]]:
        """The rows of a group in `Monitoring.frame`, one per period."""
        changed = int(self.changed_at[k])
        for t, period in enumerate(periods):
            yield {
                "period": period,
                **dict(zip(("value", "low", "high"), map(float, self.by_period[t, :, k]), strict=True)),
                **dict(zip(("so_far", "so_far_low", "so_far_high"), map(float, self.so_far[t, :, k]), strict=True)),
                "limit_low": float(self.evidence.limit_low[t, k]),
                "limit_high": float(self.evidence.limit_high[t, k]),
                "evidence": float(self.evidence.value[t, k]),
                "changed": 0 <= changed <= t,
            }


def _follow(periods: Sequence[Moments], measure: str, level: float, alpha: float, expected: float, least: int) -> _Followed:
    """The gaps of one measure over all periods; NaN in periods in which a cell has fewer than `least` patients."""
    signs = coefficients(measure)

    def limits(sums: Moments, of_gap: Callable[[SignedSum], tuple[FloatArray, FloatArray, FloatArray]]) -> FloatArray:
        counts = np.min([sums.patients(name) for name in signs], axis=0)
        signed = sums.signed(signs)
        return np.where(np.minimum(counts[1:], counts[0]) >= least, np.stack(of_gap(signed[1:].minus(signed[:1]))), np.nan)

    evidence = change_evidence(Periods.of(periods, signs), alpha, expected, least)
    by_period = np.stack([limits(sums, lambda gap: gap.limits(level)) for sums in periods])
    so_far = np.stack([limits(sums, lambda gap: confidence_sequence(gap, alpha, expected)) for sums in cumulative(periods)])
    shown_at = first_period((so_far[:, 1] > 0) | (so_far[:, 2] < 0))
    return _Followed(evidence, by_period, so_far, first_period(evidence.value >= 1 / alpha), shown_at)


def _series(periods: Mapping[str, Mapping[str, AuditSums]], label: str, attribute: str) -> tuple[tuple[str, ...], list[Moments]]:
    """The groups of an attribute over all periods, and their sums in each period; zeros for a group that a period lacks."""
    groups = tuple(dict.fromkeys(group for by_label in periods.values() for group in by_label[label].groups[attribute]))
    series = []
    for by_label in periods.values():
        known, sums = by_label[label].groups[attribute], by_label[label].sums[attribute]
        place = [known.index(group) if group in known else len(known) for group in groups]
        arrays = (
            np.concatenate([array, np.zeros((1, *array.shape[1:]))])[place] for array in (sums.total, sums.second, sums.rows, sums.units)
        )
        series.append(Moments(DECISIONS, *arrays))
    return groups, series
