"""The history of repeated audits: the sums of every period in one Parquet file, which holds nothing about a single patient.

The file has one row per period, label, attribute and group, with the sums from which rates, gaps and intervals of any measure follow. It is
written atomically.
"""

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from equipoise.data import take_lock
from equipoise.errors import BadInput, Misuse, did_you_mean, raise_all
from equipoise.measures.audit import Audit, AuditSums, sums_of
from equipoise.measures.confidence_sequences import EXPECTED_CHANGE
from equipoise.measures.gaps import Gap
from equipoise.measures.history_file import PERIOD, read_history, unit_of_time, write_history
from equipoise.measures.monitoring import Monitoring, monitor


@dataclass(frozen=True, eq=False)
class History:
    """The audits of successive periods: `append` adds one and writes the file, `monitor` follows every gap over all of them."""

    periods: Mapping[str, Mapping[str, AuditSums]]  # by period, in chronological order, then by label
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
        if self.path is None:
            return self._with(audit, period, replace, set(new_groups))
        with _locked(self.path):  # another process may have added a period since this history was read
            extended = history(self.path)._with(audit, period, replace, set(new_groups))
            extended.write(self.path)
        return extended

    def check_period(self, period: str, *, replace: bool = False) -> None:
        """Raises an error if a period cannot be added; for a check before its audit is computed."""
        raise_all(_period_problems(period, self.periods, replace))

    def _with(self, audit: Audit, period: str, replace: bool, new_groups: set[str]) -> "History":
        by_label = sums_of(audit)
        raise_all([*_period_problems(period, self.periods, replace), *self._problems(period, by_label, new_groups)])
        merged = dict(self.periods) | {period: by_label}
        return History({name: merged[name] for name in sorted(merged)}, self.path)

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
        chosen = dict(self.periods)
        if since is not None:
            if since not in chosen:
                raise BadInput(f"no period {since!r} in the history.{did_you_mean(since, chosen)} It has {', '.join(chosen)}.")
            chosen = {name: by_label for name, by_label in chosen.items() if name >= since}
        return monitor(chosen, measures, level=level, expected_change=expected_change, intersections=intersections)

    def write(self, path: str | Path) -> Path:
        """Writes the file atomically and returns its path."""
        return write_history(self.periods, path)

    def _problems(self, period: str, by_label: Mapping[str, AuditSums], new_groups: set[str]) -> list[str]:
        """The reasons why an audit cannot be added to this history."""
        others = {name: past for name, past in self.periods.items() if name != period}
        if not others:
            return []
        last, last_by_label = next(reversed(others.items()))
        if set(by_label) != set(last_by_label):
            labels, known = _listed(by_label), _listed(last_by_label)
            return [f"this audit is of {labels}, the history of {known}. Audit the same --label, or use another file."]
        problems = []
        for label, new in by_label.items():
            old, where = last_by_label[label], f"{label}: " if label else ""
            for what, value, before in (
                ("decided by", new.decision, old.decision),
                ("at the level", new.level, old.level),
                ("with sample weights:", new.weighted, old.weighted),
                ("by", ", ".join(new.groups), ", ".join(old.groups)),
                ("with the references", _listed(new.references.values()), _listed(old.references.values())),
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
    return History(read_history(path) if path.exists() else {}, path)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Makes other processes that write a history in the same folder wait, if the system supports file locks."""
    folder = path.resolve().parent
    folder.mkdir(parents=True, exist_ok=True)
    handle = take_lock(folder, wait=True)
    try:
        yield
    finally:
        if handle is not None:
            os.close(handle)


def _period_problems(period: str, known: Collection[str], replace: bool) -> list[str]:
    """The reasons why a period of this name cannot be added."""
    match = PERIOD.fullmatch(period)
    if match is None:
        return [f"--date must be a year, quarter, month, week or day: 2026, 2026-Q4, 2026-11, 2026-W46 or 2026-11-16; got {period!r}"]
    others = [name for name in known if name != period]
    if period in known:
        return (
            []
            if replace
            else [f"the period {period} is in the history already. Replace it with --set history.replace=true (replace=True)."]
        )
    of_other_length = [name for name in others if unit_of_time(name) != unit_of_time(period)]
    if of_other_length:
        return [f"the history has periods such as {of_other_length[-1]}, and {period} is of another length. Use the same unit of time."]
    later = [name for name in others if name > period]
    if later:
        return [
            f"{period} is before {max(later)}, which is in the history already. Add periods in the order of time, to a new file if needed."
        ]
    return []


def _listed(names: Collection[str]) -> str:
    return ", ".join(names) or "one label without a name"
