"""The history of repeated audits: the sums of every period in one Parquet file, which holds nothing about a single patient.

The file has one row per period, label, attribute and group, with the sums from which rates, gaps and intervals of any measure follow. It is
written atomically, with a checksum, without which it is not read. The checksum stands in the file's own metadata, with zeros in its place
while it is computed. It covers every byte, so rows that were repeated, removed or changed, and damage anywhere in the file, are found.
"""

import hashlib
import io
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

from equipoise.data import atomic_path, take_lock
from equipoise.errors import BadInput, Misuse, did_you_mean, first_line, raise_all
from equipoise.measures.audit import Audit, AuditSums, sums_of
from equipoise.measures.gaps import Gap
from equipoise.measures.moments import DECISIONS, Moments
from equipoise.measures.monitoring import EXPECTED_CHANGE, Monitoring, monitor

SCHEMA, SCHEMA_VERSION = "equipoise.history", 2
PERIOD = re.compile(r"(?P<year>\d{4})(-(?P<month>0[1-9]|1[0-2])(-(?P<day>0[1-9]|[12]\d|3[01]))?|-(?P<quarter>Q[1-4])|-(?P<week>W[0-5]\d))?")
SUMS = ("n0", "n1", "s0", "s1")
PAIRS = np.tril_indices(len(SUMS))  # of the products of sums
ABOUT = {"name": str, "decision": str, "level": float, "min_patients": int, "weighted": bool, "rows": int, "patients": int, "digest": str}
TEXT = ("period", "label", "attribute", "group")
NUMBERS = [
    *SUMS,
    *(f"{SUMS[b]}_{SUMS[a]}" for a, b in zip(*PAIRS, strict=True)),
    *(f"rows_{name}" for name in DECISIONS),
    *(f"patients_{name}" for name in DECISIONS),
]
COLUMNS = [*TEXT, "intersection", "position", *NUMBERS, *(f"audit_{name}" for name in ABOUT)]
KINDS = {str: "string", float: "double", int: "int64", bool: "bool"}
TYPES = {name: "string" if name in TEXT else "double" for name in COLUMNS} | {"position": "int64", "intersection": "bool"}
TYPES |= {f"audit_{name}": KINDS[kind] for name, kind in ABOUT.items()}
ZEROS = "0" * 64
AGAIN = (
    "Restore a copy of it; or begin a new file and add the audit of every period again, in the order of time, with "
    "`equipoise audit ... --append NEW.parquet --date 2026-11`."
)
NAME_ONE = "Name a file that `equipoise audit ... --append` wrote, or a new one."
Periods = Mapping[str, Mapping[str, AuditSums]]  # by period, in chronological order, then by label


@dataclass(frozen=True, eq=False)
class History:
    """The audits of successive periods: `append` adds one and writes the file, `monitor` follows every gap over all of them."""

    periods: Periods
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
        import pyarrow.parquet as pq

        table = _table(self.periods)
        about = json.dumps({"schema": SCHEMA, "schema_version": SCHEMA_VERSION, "rows": len(table), "sha256": ZEROS})
        buffer = io.BytesIO()
        pq.write_table(table.replace_schema_metadata({SCHEMA: about}), buffer)
        content = buffer.getvalue()
        with atomic_path(path) as temporary:
            temporary.write_bytes(content.replace(_mark(ZEROS), _mark(hashlib.sha256(content).hexdigest())))
        return Path(path)

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
    return History(_read(path) if path.exists() else {}, path)


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


def _listed(names: Collection[str]) -> str:
    return ", ".join(names) or "one label without a name"


# The file


def is_history(path: Path) -> bool:
    """Whether a file was written as a history, even if it is damaged now."""
    with path.open("rb") as file:
        return file.read(4) == b"PAR1" and _about(path.read_bytes(), "schema") is not None


def _read(path: Path) -> dict[str, dict[str, AuditSums]]:
    """The periods in a file; raises an error if it is no history or is not as it was written."""
    import pyarrow.parquet as pq

    if not path.is_file():
        raise BadInput(f"{path} is not a file. {NAME_ONE}")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror or error}. {NAME_ONE}") from error
    version, checksum = _about(content, "schema_version"), _about(content, "sha256")
    if content[:4] != b"PAR1" or _about(content, "schema") is None:
        raise BadInput(f"{path} is no history{' but another Parquet file' if content[:4] == b'PAR1' else ''}. {NAME_ONE}")
    if version is not None and version != str(SCHEMA_VERSION):
        raise BadInput(f"{path} has version {version} of a history; this version of Equipoise reads {SCHEMA_VERSION}. {AGAIN}")
    if checksum is None or hashlib.sha256(content.replace(_mark(checksum), _mark(ZEROS))).hexdigest() != checksum:
        raise BadInput(f"{path} was changed or damaged after it was written: its content does not match its checksum. {AGAIN}")
    periods: dict[str, dict[str, AuditSums]] = {}
    try:
        table = pq.read_table(io.BytesIO(content))
        for (period, label), rows in table.to_pandas().groupby(["period", "label"], sort=False):
            periods.setdefault(str(period), {})[str(label)] = _sums_from_rows(str(label), rows)
        as_written = _table(periods).equals(table)
    except Exception as error:  # pyarrow raises many kinds of errors for a damaged file
        raise BadInput(f"{path} is not a readable history: {first_line(error)}. {AGAIN}") from error
    problems = [] if as_written else ["its rows or columns are missing, repeated or not as they are written"]
    raise_all([f"{problem}. {AGAIN}" for problem in [*problems, *_problems(periods)][:1]], str(path))
    return periods


def _table(periods: Periods) -> Any:
    """The rows of the file, one per period, label, attribute and group."""
    import pyarrow as pa

    rows = [row for period, by_label in periods.items() for sums in by_label.values() for row in _rows(period, sums)]
    schema = pa.schema([(name, pa.type_for_alias(kind)) for name, kind in TYPES.items()])
    frame = pd.DataFrame(rows, columns=COLUMNS)
    return pa.Table.from_pandas(frame, schema=schema, preserve_index=False).replace_schema_metadata(None)


def _mark(checksum: str) -> bytes:
    """The place of the checksum in the file."""
    return f'"sha256": "{checksum}"'.encode()


def _about(content: bytes, key: str) -> str | None:
    """A value in the metadata of a history, found in its bytes, so that it is known even if the rest cannot be read."""
    if key == "schema":
        return SCHEMA if f'"schema": "{SCHEMA}"'.encode() in content else None
    pattern = rb'"sha256": "([0-9a-f]{64})"' if key == "sha256" else rb'"schema_version": (\d+)'
    found = re.search(rb'"schema": "equipoise.history", .{0,200}?' + pattern, content)
    return None if found is None else found[1].decode()


def _problems(periods: Periods) -> Iterator[str]:
    """What is wrong with the periods of a file."""
    names = list(periods)
    if unknown := [name for name in names if PERIOD.fullmatch(name) is None]:
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
                arrays = each.total, each.second, each.rows, each.units
                if not all((np.isfinite(array) & (array >= 0)).all() for array in arrays):
                    yield "sums must be finite and not negative"


def _unit_of_time(period: str) -> tuple[bool, ...]:
    """The unit of time of a period, as the parts of its name that are present."""
    match = PERIOD.fullmatch(period)
    return tuple(bool(part) for part in match.groupdict().values()) if match else ()


def _rows(period: str, audit: AuditSums) -> Iterator[dict[str, Any]]:
    """The rows of the file for one label of one period, one per attribute and group."""
    about = {f"audit_{name}": getattr(audit, name) for name in ABOUT}
    about |= {"audit_patients": -1 if audit.patients is None else audit.patients, "audit_digest": audit.digest or ""}
    for attribute, groups in audit.groups.items():
        sums, crossed = audit.sums[attribute], attribute in audit.intersections
        numbers = np.hstack([sums.total, sums.second[:, *PAIRS], sums.rows, sums.units])
        for k, group in enumerate(groups):
            where = {"period": period, "label": audit.label, "attribute": attribute, "group": group, "position": k, "intersection": crossed}
            yield where | dict(zip(NUMBERS, map(float, numbers[k]), strict=True)) | about


def _sums_from_rows(label: str, rows: pd.DataFrame) -> AuditSums:
    """The sums of one label of one period, from its rows in the file."""
    groups, sums, size = {}, {}, len(SUMS)
    for attribute, unsorted in rows.groupby("attribute", sort=False):
        frame = unsorted.sort_values("position")
        ends = np.cumsum([size, len(PAIRS[0]), len(DECISIONS)])
        total, pairs, counts, units = np.split(frame[NUMBERS].to_numpy(np.float64), ends, axis=1)
        second = np.zeros((len(frame), size, size))
        second[:, *PAIRS] = second[:, *PAIRS[::-1]] = pairs
        groups[str(attribute)] = tuple(map(str, frame["group"]))
        sums[str(attribute)] = Moments(DECISIONS, total, second, counts, units)
    about: dict[str, Any] = {name: kind(rows[f"audit_{name}"].iloc[0]) for name, kind in ABOUT.items()}
    about |= {"patients": None if about["patients"] < 0 else about["patients"], "digest": about["digest"] or None}
    crossed = tuple(map(str, rows["attribute"][rows["intersection"]].unique()))
    return AuditSums(**about, label=label, measures=(), groups=groups, intersections=crossed, sums=sums, performance={})
