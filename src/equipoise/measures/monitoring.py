"""Gaps followed over time: each period, all periods so far with a confidence sequence, and evidence that the gap has changed.

Half of the error is for the level of the gaps and half for their change, both divided by the number of gaps (Bonferroni): the chance of any
false alarm, over all gaps and all periods, is at most 1 - level. The mathematics is in `sequences`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from equipoise.errors import BadInput
from equipoise.measures.audit import AuditSums, records
from equipoise.measures.confidence_sequences import Periods, change_evidence, confidence_sequence, cumulative, first_at
from equipoise.measures.estimates import coefficients
from equipoise.measures.gaps import Gap, named, signature
from equipoise.measures.moments import DECISIONS, Moments
from equipoise.presenting import presenter

SCHEMA, SCHEMA_VERSION = "equipoise.monitoring", 1
WHERE = ("label", "measure", "attribute", "group", "reference")


@dataclass(frozen=True, eq=False)
class Monitoring:
    """Gaps over time. `gaps` has one row per gap, as of the last period; `frame` one row per gap and period.

    In `gaps`: `value`, `low` and `high` of all periods so far (limits that hold in all periods at once); `shown` if they have excluded
    zero, in the period `shown_in`; `changed` if the gap changes over time, reported in `changed_in`, most likely `since`, from `before` to
    `after`.
    """

    periods: tuple[str, ...]
    gaps: pd.DataFrame
    frame: pd.DataFrame
    comparisons: int
    level: float
    expected_change: float

    @property
    def alarms(self) -> int:
        """How many gaps are shown to differ from zero, or to have changed; measures that mirror each other count once each."""
        return int((self.gaps["shown"] | self.gaps["changed"]).sum())

    def __repr__(self) -> str:
        return f"Monitoring({len(self.gaps)} gaps, {self.periods[0]} to {self.periods[-1]}, {self.alarms} alarms)"

    def __str__(self) -> str:
        lines = [f"{len(self.periods)} periods, {self.periods[0]} to {self.periods[-1]}"]
        for row in self.gaps.to_dict("records"):
            said = f"{row['value']:+.3f} [{row['low']:+.3f}, {row['high']:+.3f}]" if not np.isnan(row["value"]) else "insufficient data"
            changed = f"; changed since {row['since']}: {row['before']:+.3f} to {row['after']:+.3f}" if row["changed"] else ""
            lines.append(f"  {row['measure']} of {row['group']} minus {row['reference']}: {said}{' *' if row['shown'] else ''}{changed}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return str(presenter("monitoring_html")(self))

    def report(self, path: str | Path, *, group_names: Mapping[str, str] | None = None) -> Path:
        """The path of the report with a chart of every gap, HTML or PDF (.pdf) by its ending, with the user's words for groups."""
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
    wanted = list(dict.fromkeys(named(each) for each in measures))
    if not wanted:
        raise BadInput("at least one measure is needed, such as eod")
    names = list(periods)
    labels = list(next(iter(periods.values())))
    series = {
        (label, attribute): _series(periods, label, attribute)
        for label in labels
        for attribute in next(iter(periods.values()))[label].groups
        if intersections or not _is_crossed(attribute, next(iter(periods.values()))[label])
    }
    count = sum((len(groups) - 1) * len({signature(each) for each in wanted}) for groups, _ in series.values())
    alpha = (1 - level) / 2 / max(count, 1)
    found, rows = [], []
    for (label, attribute), (groups, sums) in series.items():
        least = max(each[label].min_patients for each in periods.values())
        for measure in wanted:
            signs = coefficients(measure)
            followed = Periods.of(sums, signs)
            evidence = change_evidence(followed, alpha, expected_change, least)
            own = np.stack([_gap_limits(each, signs, level, least) for each in sums])  # (T, 3, groups - 1)
            so_far = np.stack([_so_far(each, signs, alpha, expected_change, least) for each in cumulative(sums)])
            changed_at = first_at(evidence.value >= 1 / alpha)
            shown_at = first_at((so_far[:, 1] > 0) | (so_far[:, 2] < 0))
            for k, group in enumerate(groups[1:]):
                where = dict(zip(WHERE, (label, measure, attribute, group, groups[0]), strict=True))
                changed, shown = int(changed_at[k]), int(shown_at[k])
                since = int(evidence.since[-1, k])  # by all periods so far
                found.append(
                    where
                    | dict(zip(("value", "low", "high"), map(float, so_far[-1, :, k]), strict=True))
                    | {"shown": shown >= 0, "shown_in": names[shown] if shown >= 0 else ""}
                    | {"changed": changed >= 0, "changed_in": names[changed] if changed >= 0 else ""}
                    | {"since": names[since] if changed >= 0 else "", "evidence": float(evidence.value[-1, k])}
                    | {name: float(side[-1, k]) if changed >= 0 else np.nan for name, side in _sides(evidence)}
                )
                for t, name in enumerate(names):
                    numbers = zip(("value", "low", "high"), own[t, :, k], strict=True)
                    total = zip(("so_far", "so_far_low", "so_far_high"), so_far[t, :, k], strict=True)
                    row: dict[str, object] = {**where, "period": name} | {n: float(v) for n, v in (*numbers, *total)}
                    row |= {"limit_low": float(evidence.limit_low[t, k]), "limit_high": float(evidence.limit_high[t, k])}
                    rows.append(row | {"evidence": float(evidence.value[t, k]), "changed": 0 <= changed <= t})
    return Monitoring(tuple(names), pd.DataFrame(found), pd.DataFrame(rows), count, level, expected_change)


def _sides(evidence: object) -> list[tuple[str, np.ndarray[tuple[int, ...], np.dtype[np.float64]]]]:
    return [(name, getattr(evidence, name)) for name in ("before", "after")]


def _gap_limits(sums: Moments, signs: Mapping[str, float], level: float, least: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """The gaps of one period with their limits (3, groups - 1); NaN where a cell has too few patients."""
    each = sums.signed(signs)
    return np.where(_enough(sums, signs, least), np.stack(each[1:].minus(each[:1]).limits(level)), np.nan)


def _so_far(
    sums: Moments, signs: Mapping[str, float], alpha: float, expected: float, least: int
) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    each = sums.signed(signs)
    return np.where(_enough(sums, signs, least), np.stack(confidence_sequence(each[1:].minus(each[:1]), alpha, expected)), np.nan)


def _enough(sums: Moments, signs: Mapping[str, float], least: int) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    counts = np.min([sums.patients(name) for name in signs], axis=0)
    found: np.ndarray[tuple[int, ...], np.dtype[np.bool_]] = np.minimum(counts[1:], counts[0]) >= least
    return found


def _series(periods: Mapping[str, Mapping[str, AuditSums]], label: str, attribute: str) -> tuple[tuple[str, ...], list[Moments]]:
    """The groups of an attribute over all periods, and their sums in each; a group that a period lacks has none there."""
    groups = tuple(dict.fromkeys(group for each in periods.values() for group in each[label].groups[attribute]))
    found = []
    for each in periods.values():
        own, sums = each[label].groups[attribute], each[label].sums[attribute]
        place = [own.index(group) if group in own else len(own) for group in groups]
        arrays = (
            np.concatenate([array, np.zeros((1, *array.shape[1:]))])[place] for array in (sums.total, sums.second, sums.rows, sums.units)
        )
        found.append(Moments(DECISIONS, *arrays))
    return groups, found


def _is_crossed(attribute: str, own: AuditSums) -> bool:
    """Whether an attribute is the intersection of the others."""
    return len(own.groups) > 1 and attribute == list(own.groups)[-1]
