"""An audit that is repeated: the sums of every period in one Parquet file, which holds nothing about a patient.

The file has one row per period, label, attribute and group, with the sums from which rates, gaps and intervals of any measure follow. It is
written whole or not at all.
"""

import json
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from equipoise.data import replacing, take_lock
from equipoise.errors import BadInput, Misuse, did_you_mean, first_line, raise_all
from equipoise.measures.audit import Audit, Audits, AuditSums, sums_of
from equipoise.measures.confidence_sequences import EXPECTED_CHANGE
from equipoise.measures.gaps import Gap
from equipoise.measures.moments import DECISIONS, Moments
from equipoise.measures.monitoring import Monitoring, monitor

SCHEMA, SCHEMA_VERSION = "equipoise.history", 1
PERIOD = re.compile(r"(?P<year>\d{4})(-(?P<month>0[1-9]|1[0-2])(-(?P<day>0[1-9]|[12]\d|3[01]))?|-(?P<quarter>Q[1-4])|-(?P<week>W[0-5]\d))?")
SUMS = ("n0", "n1", "s0", "s1")
PAIRS = [(a, b) for a in range(4) for b in range(a + 1)]
ABOUT = ("name", "decision", "level", "min_patients", "weighted", "rows", "patients", "digest")
COLUMNS = [
    *("period", "label", "attribute", "group", "position"),
    *SUMS,
    *(f"{SUMS[b]}_{SUMS[a]}" for a, b in PAIRS),
    *(f"rows_{name}" for name in DECISIONS),
    *(f"patients_{name}" for name in DECISIONS),
    *(f"audit_{name}" for name in ABOUT),
]


@dataclass(frozen=True, eq=False)
class History:
    """The audits of successive periods: `append` adds one and writes the file, `monitor` follows every gap over all of them."""

    periods: Mapping[str, Mapping[str, AuditSums]]  # by period, then by label, in the order of time
    path: Path | None = None

    def __repr__(self) -> str:
        ends = f", {next(iter(self.periods))} to {next(reversed(list(self.periods)))}" if self.periods else ""
        return f"History({len(self.periods)} periods{ends})"

    def append(self, audit: Audit | Audits, period: str, *, replace: bool = False, new_groups: Collection[str] = ()) -> "History":
        """The history with one more period, written to its file at once.

        `period` is a year, quarter, month, week or day, such as "2026-11", later than those before. Raises an error where the period is
        there already, unless `replace` is set; and where labels, groups, references, decision or level are not those of the history. A
        group that is new is named in `new_groups`.
        """
        if not isinstance(audit, (Audit, Audits)):
            raise Misuse("History.append", "an audit: eq.history(path).append(eq.audit(scores), '2026-11')", audit)
        if self.path is None:
            return self._with(audit, period, replace, set(new_groups))
        with _locked(self.path):  # another process may have added a period since this history was read
            now = History(_read(self.path), self.path) if self.path.exists() else History({}, self.path)
            found = now._with(audit, period, replace, set(new_groups))
            found.write(self.path)
        return found

    def check_period(self, period: str, *, replace: bool = False) -> None:
        """Raises an error where a period cannot be added, before its audit is made."""
        raise_all(_period_problems(period, self.periods, replace))

    def _with(self, audit: Audit | Audits, period: str, replace: bool, new_groups: set[str]) -> "History":
        each = sums_of(audit)
        raise_all([*_period_problems(period, self.periods, replace), *self._problems(period, each, new_groups)])
        merged = dict(self.periods) | {period: each}
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
        """Every gap over time, with limits and alarms that account for repeated audits: over all periods, to come as well, and all gaps,
        the chance of any false alarm is at most 1 - `level`.

        `expected_change` is the size of change for which they are sharpest; `since` leaves out the periods before one, as after a change of
        the model. Intersections of attributes are followed on request.
        """
        if not self.periods:
            raise BadInput(
                f"{self.path or 'the history'} holds no periods. Add them with `equipoise audit ... --append FILE --date 2026-11`."
            )
        chosen = dict(self.periods)
        if since is not None:
            if since not in chosen:
                raise BadInput(f"no period {since!r} in the history.{did_you_mean(since, chosen)} It has {', '.join(chosen)}.")
            chosen = {name: each for name, each in chosen.items() if name >= since}
        return monitor(chosen, measures, level=level, expected_change=expected_change, intersections=intersections)

    def write(self, path: str | Path) -> Path:
        """The path of the file, which is written whole or not at all."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        frame = pd.DataFrame([row for period, each in self.periods.items() for own in each.values() for row in _rows(period, own)])
        table = pa.Table.from_pandas(frame[COLUMNS], preserve_index=False)
        about = json.dumps({"schema": SCHEMA, "schema_version": SCHEMA_VERSION})
        with replacing(path) as temporary:
            pq.write_table(table.replace_schema_metadata({SCHEMA: about}), temporary)
        return Path(path)

    def _problems(self, period: str, each: Mapping[str, AuditSums], new_groups: set[str]) -> list[str]:
        """Why an audit does not continue this history."""
        others = {name: known for name, known in self.periods.items() if name != period}
        if not others:
            return []
        last, known = next(reversed(others.items()))
        found = []
        if set(each) != set(known):
            return [f"this audit is of {_listed(each)}, the history of {_listed(known)}. Audit the same --label, or use another file."]
        for label, own in each.items():
            before, where = known[label], f"{label}: " if label else ""
            for what, mine, theirs in (
                ("decided by", own.decision, before.decision),
                ("at the level", own.level, before.level),
                ("with sample weights:", own.weighted, before.weighted),
                ("by", ", ".join(own.groups), ", ".join(before.groups)),
                ("with the references", _listed(own.references.values()), _listed(before.references.values())),
            ):
                if mine != theirs:
                    found.append(
                        f"{where}this audit is {what} {mine}; the period {last} is {what} {theirs}. Use the same, or another file."
                    )
            for attribute in own.groups.keys() & before.groups.keys():
                seen = {group for past in others.values() for group in past[label].groups.get(attribute, ())}
                new = [group for group in own.groups[attribute] if group not in seen | new_groups and not _crossed(group, own)]
                found += [
                    f"{where}group {group!r} of {attribute} is new to the history.{did_you_mean(group, seen)} If it is right, add it with "
                    f"--new-group {group!r} (new_groups=[...])."
                    for group in new
                ]
            same = [name for name, past in others.items() if own.digest is not None and past[label].digest == own.digest]
            if same:
                found.append(f"{where}these are the same {own.rows:,} rows as those of {same[0]}. Audit the rows of {period}.")
        return found


def history(source: str | Path | Mapping[str, Audit] | Mapping[str, Audits]) -> History:
    """The history in a Parquet file from `equipoise audit --append` (empty if there is no such file), or of audits by period.

    >>> import equipoise as eq
    >>> rng = np.random.default_rng(0)
    >>> def scores(n): return eq.Scores.from_arrays(rng.integers(0, 2, n), rng.random(n), rng.choice(["F", "M"], n), reference="M")
    >>> months = {f"2026-{month:02}": eq.audit(scores(200), measures=["eod"]) for month in (1, 2, 3)}
    >>> found = eq.history(months).monitor(["eod"])
    >>> len(found.periods), found.alarms
    (3, 0)
    """
    if isinstance(source, Mapping):
        found = History({})
        for period, audit in source.items():
            found = found.append(audit, period)
        return found
    if not isinstance(source, (str, Path)):
        raise Misuse("eq.history", "the path of a history, or audits by period: {'2026-10': audit, ...}", source)
    path = Path(source)
    return History(_read(path) if path.exists() else {}, path)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Holds other processes that write a history in the same folder, where the system has locks."""
    folder = path.resolve().parent
    folder.mkdir(parents=True, exist_ok=True)
    handle = take_lock(folder, wait=True)
    try:
        yield
    finally:
        if handle is not None:
            os.close(handle)


def is_history(path: Path) -> bool:
    """Whether a file is a Parquet file that `History.write` wrote."""
    import pyarrow.parquet as pq

    with path.open("rb") as file:
        if file.read(4) != b"PAR1":
            return False
    try:
        with pq.ParquetFile(path) as opened:
            return SCHEMA.encode() in (opened.schema_arrow.metadata or {})
    except Exception:  # a damaged file is no history; reading it as a table reports why
        return False


def _read(path: Path) -> dict[str, dict[str, AuditSums]]:
    import pyarrow.parquet as pq

    todo = "Name a file that `equipoise audit ... --append` wrote, or a new one."
    if not path.is_file():
        raise BadInput(f"{path} is not a file. {todo}")
    try:
        with pq.ParquetFile(path) as opened:
            about = json.loads((opened.schema_arrow.metadata or {}).get(SCHEMA.encode(), b"{}"))
            frame = opened.read().to_pandas()
    except Exception as error:  # a damaged file makes the library raise almost anything
        raise BadInput(f"{path} is not a readable history: {first_line(error)}. {todo}") from error
    if about.get("schema") != SCHEMA:
        raise BadInput(f"{path} is a Parquet file, but no history. {todo}")
    if about.get("schema_version") != SCHEMA_VERSION or list(frame.columns) != COLUMNS:
        raise BadInput(
            f"{path} has version {about.get('schema_version')!r} of a history; this version of Equipoise reads {SCHEMA_VERSION}."
        )
    found: dict[str, dict[str, AuditSums]] = {}
    for (period, label), rows in frame.groupby(["period", "label"], sort=True):
        found.setdefault(str(period), {})[str(label)] = _sums(str(label), rows)
    return found


def _rows(period: str, own: AuditSums) -> list[dict[str, Any]]:
    about = {f"audit_{name}": getattr(own, name) for name in ABOUT} | {"audit_patients": -1 if own.patients is None else own.patients}
    about["audit_digest"] = own.digest or ""
    found = []
    for attribute, groups in own.groups.items():
        sums = own.sums[attribute]
        for k, group in enumerate(groups):
            row: dict[str, Any] = {"period": period, "label": own.label, "attribute": attribute, "group": group, "position": k}
            row |= dict(zip(SUMS, map(float, sums.total[k]), strict=True))
            row |= {f"{SUMS[b]}_{SUMS[a]}": float(sums.second[k, a, b]) for a, b in PAIRS}
            row |= {f"rows_{name}": float(sums.rows[k, at]) for at, name in enumerate(DECISIONS)}
            row |= {f"patients_{name}": float(sums.units[k, at]) for at, name in enumerate(DECISIONS)}
            found.append(row | about)
    return found


def _sums(label: str, rows: pd.DataFrame) -> AuditSums:
    groups: dict[str, tuple[str, ...]] = {}
    sums: dict[str, Moments] = {}
    for attribute, own in rows.groupby("attribute", sort=False):
        own = own.sort_values("position")
        second = np.zeros((len(own), 4, 4))
        for a, b in PAIRS:
            second[:, a, b] = second[:, b, a] = own[f"{SUMS[b]}_{SUMS[a]}"]
        held, units = (own[[f"{what}_{name}" for name in DECISIONS]].to_numpy(np.float64) for what in ("rows", "patients"))
        groups[str(attribute)] = tuple(map(str, own["group"]))
        sums[str(attribute)] = Moments(DECISIONS, own[list(SUMS)].to_numpy(np.float64), second, held, units)
    first = rows.iloc[0]
    patients = int(first["audit_patients"])
    return AuditSums(
        str(first["audit_name"]),
        label,
        str(first["audit_decision"]),
        float(first["audit_level"]),
        int(first["audit_min_patients"]),
        bool(first["audit_weighted"]),
        int(first["audit_rows"]),
        None if patients < 0 else patients,
        str(first["audit_digest"]) or None,
        (),
        groups,
        sums,
        {},
    )


def _period_problems(period: str, known: Collection[str], replace: bool) -> list[str]:
    """What is wrong with the name of a period."""
    match = PERIOD.fullmatch(period)
    if match is None:
        return [f"--date must be a year, quarter, month, week or day: 2026, 2026-Q4, 2026-11, 2026-W46 or 2026-11-16; got {period!r}"]
    others = [name for name in known if name != period]
    if period in known:
        return [] if replace else [f"the period {period} is in the history already. Replace it with --replace (replace=True)."]
    unlike = [name for name in others if _unit(name) != _unit(period)]
    if unlike:
        return [f"the history has periods such as {unlike[-1]}, and {period} is of another length. Use the same unit of time."]
    later = [name for name in others if name > period]
    if later:
        return [
            f"{period} is before {max(later)}, which is in the history already. Add periods in the order of time, to a new file if needed."
        ]
    return []


def _unit(period: str) -> tuple[bool, ...]:
    match = PERIOD.fullmatch(period)
    return tuple(bool(each) for each in match.groupdict().values()) if match else ()


def _crossed(group: str, own: AuditSums) -> bool:
    """Whether a group is an intersection of others."""
    single = {level for levels in own.groups.values() for level in levels if " & " not in level}
    return " & " in group and all(part in single for part in group.split(" & "))


def _listed(names: Collection[str]) -> str:
    return ", ".join(names) or "one label without a name"
