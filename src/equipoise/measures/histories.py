"""The history of repeated audits, and gaps followed over time, with limits and evidence of change that stay valid however often, and for
however long, they are audited.

The file of a history holds nothing about a single patient: one row per period, label, attribute and group, with the sums from which rates,
gaps and intervals of any measure follow. It is Parquet, written atomically, with a checksum, without which it is not read. The checksum is
in the file's own metadata, with zeros in its place while it is computed. It covers every byte, so rows that were repeated, removed or
changed, and damage anywhere in the file, are found.

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

import hashlib
import io
import itertools
import json
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from equipoise.data import FloatArray, IntArray
from equipoise.disk import atomic_path, take_lock
from equipoise.errors import BadInput, Misuse, did_you_mean, first_line, raise_all
from equipoise.measures.audit import Audit, LabelAudit, records
from equipoise.measures.cells import ratio
from equipoise.measures.intervals import Estimate
from equipoise.measures.measure_table import PERFORMANCE, Gap, canonical_name, measure_of
from equipoise.measures.moments import DECISION_RATIOS, FURTHEST, Moments, SignedSum, level_of
from equipoise.presenting import html_of, write_page

EXPECTED_CHANGE = 0.1  # the size of a gap, or of its change, at which limits and evidence are most powerful


@dataclass(frozen=True, eq=False)
class AuditSums:
    """The sums of one label of an audit, and the settings that must agree before they are compared with others."""

    name: str
    label: str
    decision: str
    level: float
    min_patients: int
    weighted: bool
    rows: int
    patients: int | None
    digest: str | None
    measures: tuple[str, ...]
    groups: Mapping[str, tuple[str, ...]]  # by attribute, the reference first
    intersections: tuple[str, ...]  # attributes that are the intersection of others
    sums: Mapping[str, Moments]
    performance: Mapping[str, Estimate]

    @classmethod
    def of(cls, audit: LabelAudit, label: str) -> "AuditSums":
        """The sums of an audit."""
        return cls(
            name=audit.name,
            label=label,
            decision=audit.rule.describe(),
            level=audit.settings.level,
            min_patients=audit.settings.min_patients,
            weighted=audit.weighted,
            rows=audit.rows,
            patients=audit.patients,
            digest=audit.digest,
            measures=tuple(dict.fromkeys(map(str, audit.gaps["measure"]))),
            groups={str(a): tuple(map(str, rows.index)) for a, rows in audit.groups.groupby("attribute", sort=False)},
            intersections=audit.intersections,
            sums={name: sums.normalised() for name, sums in audit.sums.items()} if audit.weighted else audit.sums,
            performance={name: audit.estimates[name] for name in PERFORMANCE if name in audit.estimates},
        )


SumsByPeriod = Mapping[str, Mapping[str, AuditSums]]  # by period, in chronological order, then by label


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
class ChangeEvidence:
    """The evidence of a change of each gap in each period (T, groups - 1, ...), and the limits for a single period."""

    value: FloatArray  # 1 means no evidence
    since: IntArray  # the period (0 .. T - 1) in which a change is most likely to have started; 0 in the first period
    before: FloatArray  # the gap before that period
    after: FloatArray  # the gap since that period
    limit_low: FloatArray  # a period with a gap below this limit, or above the next, raises an alarm by itself
    limit_high: FloatArray


def change_evidence(
    periods: Sequence[Moments],
    coefficients: Mapping[str, float],
    alpha: float,
    expected: float = EXPECTED_CHANGE,
    least: int = 5,
    shape: tuple[int, ...] = (),
) -> ChangeEvidence:
    """The evidence of a change of a gap in each period. Parts of the history with fewer than `least` patients in a cell do not count.

    `shape` arranges the groups of the moments as (groups, ...), the reference first.
    """
    signs, so_far = np.array(list(coefficients.values())), [each.signed(coefficients) for each in itertools.accumulate(periods)]
    count, s2, groups = len(periods), expected**2, shape or (len(periods[0].total),)
    sides = [np.array([periods[0].ratios[name][side] for name in coefficients]).T for side in (0, 1)]  # numerators and denominators
    counts = [np.stack([each[name].patients for name in coefficients], axis=-1) for each in periods]
    sums = [each.total @ sides[0] for each in periods], [each.total @ sides[1] for each in periods], counts
    tops, bottoms, patients = (np.cumsum(each, axis=0).reshape(count, *groups, -1) for each in sums)
    deviation = np.stack([each.deviation for each in so_far]).reshape(tops.shape)  # standard errors of the ratios over periods 1 .. t
    correlation = np.stack([each.correlation for each in so_far]).reshape(*tops.shape, -1)
    shape = (count, groups[0] - 1, *groups[1:])
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
            total = np.where(signs == 0, 0.0, signs * rate).sum(-1)  # (t, groups, ...)
            sd = signs * deviation[t] * np.sqrt(ratio(np.broadcast_to(bottoms[t], bottom.shape), bottom))
            variances = np.einsum("...i,...ij,...j->...", sd, np.broadcast_to(correlation[t], (*sd.shape, sd.shape[-1])), sd)
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
    return ChangeEvidence(value, since, before, after, low, high)


def first_period(reached: npt.NDArray[np.bool_]) -> IntArray:
    """The first period in which a condition holds (T, ...) -> (...); -1 if it never does."""
    first: IntArray = np.where(reached.any(0), reached.argmax(0), -1)
    return first


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


def _follow(
    periods: Sequence[Moments], names: Sequence[str], measure: str, level: float, alpha: float, expected: float, least: int
) -> Iterator[tuple[dict[str, object], list[dict[str, object]]]]:
    """The row of each group in `Monitoring.gaps`, and its rows in `Monitoring.frame`; NaN where a cell has too few patients."""
    signs = measure_of(measure).coefficients
    evidence = change_evidence(periods, signs, alpha, expected, least)
    limits: list[list[FloatArray]] = [[], []]
    for one, all_so_far in zip(periods, itertools.accumulate(periods), strict=True):
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


def _series(periods: SumsByPeriod, label: str, attribute: str) -> tuple[tuple[str, ...], list[Moments]]:
    """The groups of an attribute over all periods, and their sums in each period; zeros for a group that a period lacks."""
    groups = tuple(dict.fromkeys(group for by_label in periods.values() for group in by_label[label].groups[attribute]))
    series = []
    for by_label in periods.values():
        known, sums = by_label[label].groups[attribute], by_label[label].sums[attribute]
        place = [known.index(group) if group in known else len(known) for group in groups]
        with_none = (np.concatenate([array, np.zeros((1, *array.shape[1:]))]) for array in sums.arrays())
        series.append(Moments(sums.ratios, *(array[place] for array in with_none)))
    return groups, series


HISTORY_SCHEMA, HISTORY_VERSION = "equipoise.history", 2
PERIOD_NAME = re.compile(
    r"(?P<year>\d{4})(-(?P<month>0[1-9]|1[0-2])(-(?P<day>0[1-9]|[12]\d|3[01]))?|-(?P<quarter>Q[1-4])|-(?P<week>W[0-5]\d))?"
)
SUM_COLUMNS = ("n0", "n1", "s0", "s1")
PRODUCT_INDICES = np.tril_indices(len(SUM_COLUMNS))  # of the products of sums
AUDIT_FIELDS = {
    "name": str,
    "decision": str,
    "level": float,
    "min_patients": int,
    "weighted": bool,
    "rows": int,
    "patients": int,
    "digest": str,
}
SUM_AND_COUNT_COLUMNS = [
    *SUM_COLUMNS,
    *(f"{SUM_COLUMNS[b]}_{SUM_COLUMNS[a]}" for a, b in zip(*PRODUCT_INDICES, strict=True)),
    *(f"rows_{name}" for name in DECISION_RATIOS),
    *(f"patients_{name}" for name in DECISION_RATIOS),
]
PARQUET_TYPES = {str: "string", float: "double", int: "int64", bool: "bool"}
COLUMN_TYPES = {
    **dict.fromkeys(("period", "label", "attribute", "group"), "string"),
    **{"intersection": "bool", "position": "int64"},
    **dict.fromkeys(SUM_AND_COUNT_COLUMNS, "double"),
    **{f"audit_{name}": PARQUET_TYPES[kind] for name, kind in AUDIT_FIELDS.items()},
}
ZERO_CHECKSUM = "0" * 64
# The metadata, found in the bytes of a file, so that its version is known even if the rest cannot be read.
FILE_METADATA = re.compile(rb'"schema": "equipoise.history"(?:, "schema_version": (\d+)(?:, "rows": \d+, "sha256": "([0-9a-f]{64})")?)?')
RESTORE = (
    "Restore a copy of it; or begin a new file and add the audit of every period again, in the order of time, with "
    "`equipoise audit ... --append NEW.parquet --date 2026-11`."
)
NAME_A_HISTORY = "Name a file that `equipoise audit ... --append` wrote, or a new one."


@dataclass(frozen=True, eq=False)
class History:
    """The audits of successive periods: `append` adds one and writes the file, `monitor` follows every gap over all of them."""

    periods: SumsByPeriod
    path: Path | None = None

    def __repr__(self) -> str:
        ends = f", {next(iter(self.periods))} to {next(reversed(list(self.periods)))}" if self.periods else ""
        return f"History({len(self.periods)} periods{ends})"

    def append(self, audit: Audit, period: str, *, replace: bool = False, new_groups: Collection[str] = ()) -> "History":
        """The history with one more period, which is also written to its file.

        `period` is a year, quarter, month, week or day, such as "2026-11", later than the others. Raises an error if the period exists
        already, unless `replace` is set, and if labels, groups, references, decision or level differ from those of the history. New groups
        must be listed in `new_groups`.
        """
        if not isinstance(audit, Audit):
            raise Misuse("History.append", "an audit: eq.history(path).append(eq.audit(scores), '2026-11')", audit)
        folder = None if self.path is None else self.path.resolve().parent
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        lock = None if folder is None else take_lock(folder, wait=True)  # other processes that write here wait, if the system has locks
        try:
            known = self if self.path is None else history(self.path)  # another process may have added a period since this was read
            by_label = {label: AuditSums.of(each, label) for label, each in audit.labels.items()}
            raise_all([*_period_problems(period, known.periods, replace), *known._problems(period, by_label, set(new_groups))])
            extended = History(dict(sorted({**known.periods, period: by_label}.items())), self.path)
            if self.path is not None:
                extended.write(self.path)
        finally:
            if lock is not None:
                os.close(lock)
        return extended

    def check_period(self, period: str, *, replace: bool = False) -> None:
        """Raises an error if a period cannot be added; for a check before its audit is computed."""
        raise_all(_period_problems(period, self.periods, replace))

    def monitor(
        self,
        measures: Sequence[Gap] = ("eod", "fpr_gap", "spd"),
        *,
        level: float = 0.95,
        expected_change: float = EXPECTED_CHANGE,
        since: str | None = None,
        intersections: bool = False,
    ) -> Monitoring:
        """Every gap over time, with limits and alarms that account for repeated audits.

        The probability of any false alarm, over all past and future periods and all gaps, is at most 1 - `level`. `expected_change` is the
        size of change for which limits and alarms are most powerful. `since` leaves out the periods before one, for example after a change
        of the model. With `intersections`, the intersections of attributes are followed too.
        """
        if not self.periods:
            raise BadInput(
                f"{self.path or 'the history'} holds no periods. Add them with `equipoise audit ... --append FILE --date 2026-11`."
            )
        if since is not None and since not in self.periods:
            raise BadInput(f"no period {since!r} in the history.{did_you_mean(since, self.periods)} It has {', '.join(self.periods)}.")
        if not 0.01 <= level <= 0.9999 or not 0.001 <= expected_change <= 1:
            raise BadInput(
                f"level must be at least 0.01 and at most 0.9999, and the expected change of a gap between 0.001 and 1; got {level} and "
                f"{expected_change}"
            )
        names = list(dict.fromkeys(canonical_name(measure) for measure in measures))
        if not names:
            raise BadInput("at least one measure is needed, such as eod")
        periods = {name: by_label for name, by_label in self.periods.items() if since is None or name >= since}
        first = next(iter(periods.values()))
        series = {
            (label, attribute): _series(periods, label, attribute)
            for label, sums in first.items()
            for attribute in sums.groups
            if intersections or attribute not in sums.intersections
        }
        count = sum((len(groups) - 1) * len({measure_of(name).signature for name in names}) for groups, _ in series.values())
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

    def write(self, path: str | Path) -> Path:
        """Writes the file atomically and returns its path."""
        import pyarrow.parquet as pq

        table = _period_table(self.periods)
        about = json.dumps({"schema": HISTORY_SCHEMA, "schema_version": HISTORY_VERSION, "rows": len(table), "sha256": ZERO_CHECKSUM})
        buffer = io.BytesIO()
        pq.write_table(table.replace_schema_metadata({HISTORY_SCHEMA: about}), buffer)
        content = buffer.getvalue()
        with atomic_path(path) as temporary:
            temporary.write_bytes(content.replace(_mark(ZERO_CHECKSUM), _mark(hashlib.sha256(content).hexdigest())))
        return Path(path)

    def _problems(self, period: str, by_label: Mapping[str, AuditSums], new_groups: set[str]) -> list[str]:
        """The reasons why an audit cannot be added to this history."""
        others = {name: past for name, past in self.periods.items() if name != period}
        if not others:
            return []
        last, last_by_label = next(reversed(others.items()))
        if set(by_label) != set(last_by_label):
            labels, known = (", ".join(names) or "one label without a name" for names in (by_label, last_by_label))
            return [f"this audit is of {labels}, the history of {known}. Audit the same --label, or use another file."]
        problems = []
        for label, new in by_label.items():
            old, where = last_by_label[label], f"{label}: " if label else ""
            for what, value, before in (
                ("decided by", new.decision, old.decision),
                ("at the level", new.level, old.level),
                ("with sample weights:", new.weighted, old.weighted),
                ("by", ", ".join(new.groups), ", ".join(old.groups)),
                ("with the references", *(", ".join(levels[0] for levels in audit.groups.values()) for audit in (new, old))),
            ):
                if value != before:
                    problems.append(
                        f"{where}this audit is {what} {value}; the period {last} is {what} {before}. Use the same, or another file."
                    )
            for attribute in new.groups.keys() & old.groups.keys():
                seen = {group for past in others.values() for group in past[label].groups.get(attribute, ())}
                problems += [
                    f"{where}group {group!r} of {attribute} is new to the history.{did_you_mean(group, seen)} If it is right, add it with "
                    f"--set history.new_groups={group} (new_groups=[...])."
                    for group in new.groups[attribute]
                    if group not in seen | new_groups and attribute not in new.intersections
                ]
            same = [name for name, past in others.items() if new.digest is not None and past[label].digest == new.digest]
            if same:
                problems.append(f"{where}these are the same {new.rows:,} rows as those of {same[0]}. Audit the rows of {period}.")
        return problems


def history(source: str | Path | Mapping[str, Audit]) -> History:
    """The history in a Parquet file from `equipoise audit --append` (empty if the file does not exist), or that of audits by period.

    >>> import numpy as np
    >>> import equipoise as eq
    >>> rng = np.random.default_rng(0)
    >>> def scores(n): return eq.Scores.from_arrays(rng.integers(0, 2, n), rng.random(n), rng.choice(["F", "M"], n), reference="M")
    >>> months = {f"2026-{month:02}": eq.audit(scores(200), measures=["eod"]) for month in (1, 2, 3)}
    >>> monitoring = eq.history(months).monitor(["eod"])
    >>> len(monitoring.periods), monitoring.alarms
    (3, 0)
    """
    if isinstance(source, Mapping):
        extended = History({})
        for period, audit in source.items():
            extended = extended.append(audit, period)
        return extended
    if not isinstance(source, (str, Path)):
        raise Misuse("eq.history", "the path of a history, or audits by period: {'2026-10': audit, ...}", source)
    path = Path(source)
    return History(_read_periods(path) if path.exists() else {}, path)


def _period_problems(period: str, known: Collection[str], replace: bool) -> list[str]:
    """The reasons why a period of this name cannot be added."""
    match = PERIOD_NAME.fullmatch(period)
    if match is None:
        return [f"--date must be a year, quarter, month, week or day: 2026, 2026-Q4, 2026-11, 2026-W46 or 2026-11-16; got {period!r}"]
    others = [name for name in known if name != period]
    if period in known:
        there = f"the period {period} is in the history already. Replace it with --set history.replace=true (replace=True)."
        return [] if replace else [there]
    of_other_length = [name for name in others if _unit_of_time(name) != _unit_of_time(period)]
    if of_other_length:
        return [f"the history has periods such as {of_other_length[-1]}, and {period} is of another length. Use the same unit of time."]
    later = [name for name in others if name > period]
    if later:
        return [
            f"{period} is before {max(later)}, which is in the history already. Add periods in the order of time, to a new file if needed."
        ]
    return []


# The file


def is_history(path: Path) -> bool:
    """Whether a file was written as a history, even if it is damaged now."""
    with path.open("rb") as file:
        return file.read(4) == b"PAR1" and FILE_METADATA.search(file.read()) is not None


def _read_periods(path: Path) -> dict[str, dict[str, AuditSums]]:
    """The periods in a file; raises an error if it is no history or is not as it was written."""
    import pyarrow.parquet as pq

    if not path.is_file():
        raise BadInput(f"{path} is not a file. {NAME_A_HISTORY}")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror or error}. {NAME_A_HISTORY}") from error
    metadata = FILE_METADATA.search(content)
    if content[:4] != b"PAR1" or metadata is None:
        raise BadInput(f"{path} is no history{' but another Parquet file' if content[:4] == b'PAR1' else ''}. {NAME_A_HISTORY}")
    version, checksum = (None if part is None else part.decode() for part in metadata.groups())
    if version is not None and version != str(HISTORY_VERSION):
        raise BadInput(f"{path} has version {version} of a history; this version of Equipoise reads {HISTORY_VERSION}. {RESTORE}")
    if checksum is None or hashlib.sha256(content.replace(_mark(checksum), _mark(ZERO_CHECKSUM))).hexdigest() != checksum:
        raise BadInput(f"{path} was changed or damaged after it was written: its content does not match its checksum. {RESTORE}")
    periods: dict[str, dict[str, AuditSums]] = {}
    try:
        table = pq.read_table(io.BytesIO(content))
        for (period, label), rows in table.to_pandas().groupby(["period", "label"], sort=False):
            periods.setdefault(str(period), {})[str(label)] = _sums_from_rows(str(label), rows)
        as_written = _period_table(periods).equals(table)
    except Exception as error:  # pyarrow raises many kinds of errors for a damaged file
        raise BadInput(f"{path} is not a readable history: {first_line(error)}. {RESTORE}") from error
    problems = [] if as_written else ["its rows or columns are missing, repeated or not as they are written"]
    raise_all([f"{problem}. {RESTORE}" for problem in [*problems, *_file_problems(periods)][:1]], str(path))
    return periods


def _period_table(periods: SumsByPeriod) -> Any:
    """The rows of the file, one per period, label, attribute and group."""
    import pyarrow as pa

    rows = []
    for period, by_label in periods.items():
        for audit in by_label.values():
            about = {f"audit_{name}": getattr(audit, name) for name in AUDIT_FIELDS}
            about |= {"audit_patients": -1 if audit.patients is None else audit.patients, "audit_digest": audit.digest or ""}
            for attribute, groups in audit.groups.items():
                sums = audit.sums[attribute]
                numbers = np.hstack([sums.total, sums.second[:, *PRODUCT_INDICES], sums.rows, sums.units])
                for k, group in enumerate(groups):
                    where = (period, audit.label, attribute, group, attribute in audit.intersections, k)
                    rows.append(dict(zip(COLUMN_TYPES, (*where, *map(float, numbers[k]), *about.values()), strict=True)))
    schema = pa.schema([(name, pa.type_for_alias(kind)) for name, kind in COLUMN_TYPES.items()])
    frame = pd.DataFrame(rows, columns=list(COLUMN_TYPES))
    return pa.Table.from_pandas(frame, schema=schema, preserve_index=False).replace_schema_metadata(None)


def _mark(checksum: str) -> bytes:
    """The place of the checksum in the file."""
    return f'"sha256": "{checksum}"'.encode()


def _file_problems(periods: SumsByPeriod) -> Iterator[str]:
    """What is wrong with the periods of a file."""
    names = list(periods)
    if unknown := [name for name in names if PERIOD_NAME.fullmatch(name) is None]:
        yield f"{unknown[0]!r} is no year, quarter, month, week or day"
    elif names != sorted(names) or len(set(map(_unit_of_time, names))) > 1:
        yield "the periods are not in the order of time, or of different lengths"
    first = next(({(label, *sums.groups) for label, sums in by_label.items()} for by_label in periods.values()), set())
    for period, by_label in periods.items():
        if {(label, *sums.groups) for label, sums in by_label.items()} != first:
            yield f"{period} has other labels or attributes than the first period"
        for sums in by_label.values():
            if not 0.01 <= sums.level <= 1 - 1e-9 or min(sums.rows, sums.min_patients) < 0:
                yield "levels must be between 0.01 and 1, numbers of rows and patients not negative"
            if repeated := [groups for groups in sums.groups.values() if len(set(groups)) < len(groups)]:
                yield f"a group of {', '.join(repeated[0])} of {period} is repeated"
            for each in sums.sums.values():
                if not all((np.isfinite(array) & (array >= 0)).all() for array in each.arrays()):
                    yield "sums must be finite and not negative"


def _unit_of_time(period: str) -> tuple[bool, ...]:
    """The unit of time of a period, as the parts of its name that are present."""
    match = PERIOD_NAME.fullmatch(period)
    return tuple(bool(part) for part in match.groupdict().values()) if match else ()


def _sums_from_rows(label: str, rows: pd.DataFrame) -> AuditSums:
    """The sums of one label of one period, from its rows in the file."""
    groups, sums, size = {}, {}, len(SUM_COLUMNS)
    for attribute, unsorted in rows.groupby("attribute", sort=False):
        frame = unsorted.sort_values("position")
        ends = np.cumsum([size, len(PRODUCT_INDICES[0]), len(DECISION_RATIOS)])
        total, pairs, counts, units = np.split(frame[SUM_AND_COUNT_COLUMNS].to_numpy(np.float64), ends, axis=1)
        second = np.zeros((len(frame), size, size))
        second[:, *PRODUCT_INDICES] = second[:, *PRODUCT_INDICES[::-1]] = pairs
        groups[str(attribute)] = tuple(map(str, frame["group"]))
        sums[str(attribute)] = Moments(DECISION_RATIOS, total, second, counts, units)
    about: dict[str, Any] = {name: kind(rows[f"audit_{name}"].iloc[0]) for name, kind in AUDIT_FIELDS.items()}
    about |= {"patients": None if about["patients"] < 0 else about["patients"], "digest": about["digest"] or None}
    crossed = tuple(map(str, rows["attribute"][rows["intersection"]].unique()))
    return AuditSums(**about, label=label, measures=(), groups=groups, intersections=crossed, sums=sums, performance={})
