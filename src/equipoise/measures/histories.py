"""The history of repeated audits: a file with the sums of each period.

The file holds nothing about a single patient: one row per period, label, attribute and group, with the sums from which rates,
gaps and intervals of any measure follow. It is Parquet, written atomically, with a checksum, without which it is not read. The checksum is
in the file's own metadata, with zeros in its place while it is computed. It covers every byte, so rows that were repeated, removed or
changed, and damage anywhere in the file, are found.
"""

import hashlib
import io
import json
import math
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from equipoise.data import FloatArray
from equipoise.disk import atomic_path, take_lock
from equipoise.errors import BadInput, Misuse, did_you_mean, first_line, needing, raise_all
from equipoise.measures.audit import Audit, LabelAudit
from equipoise.measures.intervals import Estimate
from equipoise.measures.measure_table import ESTIMATED_RATES, PERFORMANCE, Gap, canonical_name, measure_of
from equipoise.measures.moments import DECISION_RATIOS, SUM_SHAPES, Moments
from equipoise.measures.monitoring import EXPECTED_CHANGE, Monitoring, follow


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
    returning: Mapping[str, FloatArray]  # of patients of earlier periods, as of `returning_products`
    summaries: pd.DataFrame = field(default_factory=pd.DataFrame)  # of an audit in memory; a history does not hold them

    @classmethod
    def of(cls, audit: LabelAudit, label: str, returning: Mapping[str, FloatArray] | None = None) -> "AuditSums":
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
            returning={name: (returning or {}).get(name, np.zeros_like(sums.second)) for name, sums in audit.sums.items()},
            summaries=audit.summaries,
        )


FOLLOWED_RATIOS = tuple(f"{rate}_ratio" for rate in ESTIMATED_RATES)
SumsByPeriod = Mapping[str, Mapping[str, AuditSums]]  # by period, in chronological order, then by label


def _series(periods: SumsByPeriod, label: str, attribute: str) -> tuple[tuple[str, ...], list[Moments], list[FloatArray]]:
    """The groups of an attribute over all periods, and their sums in each period; zeros for a group that a period lacks."""
    groups = tuple(dict.fromkeys(group for by_label in periods.values() for group in by_label[label].groups[attribute]))
    series, returning = [], []
    for by_label in periods.values():
        known, sums = by_label[label].groups[attribute], by_label[label].sums[attribute]
        place = [known.index(group) if group in known else len(known) for group in groups]
        arrays = (*sums.arrays(), by_label[label].returning[attribute])
        *own, products = (np.concatenate([array, np.zeros((1, *array.shape[1:]))])[place] for array in arrays)
        series.append(Moments(sums.ratios, *own))
        returning.append(products)
    return groups, series, returning


HISTORY_SCHEMA, HISTORY_VERSION = "equipoise.history", 4
PERIOD_NAME = re.compile(
    r"(?P<year>\d{4})(-(?P<month>0[1-9]|1[0-2])(-(?P<day>0[1-9]|[12]\d|3[01]))?|-(?P<quarter>Q[1-4])|-(?P<week>W[0-5]\d))?"
)
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
KEPT_SUMS = {**SUM_SHAPES, "returning": SUM_SHAPES["second"]}
SUM_AND_COUNT_COLUMNS = ["_".join([name, *map(str, place)]) for name, shape in KEPT_SUMS.items() for place in np.ndindex(*shape)]
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

    def append(
        self,
        audit: Audit,
        period: str,
        *,
        replace: bool = False,
        new_groups: Collection[str] = (),
        returning: Mapping[str, Mapping[str, FloatArray]] | None = None,
    ) -> "History":
        """The history with one more period, which is also written to its file.

        Raises an error if labels, groups, references, decision or level differ from those of the history.

        period: a year, quarter, month, week or day, such as "2026-11", later than the others.
        replace: whether a period that the history has already is replaced.
        new_groups: groups that may be new to the history.
        returning: of patients of earlier periods (`equipoise.measures.returning_products`); without it, no patient returns.
        """
        if not isinstance(audit, Audit):
            raise Misuse("History.append", "an audit: eq.history(path).append(eq.audit(scores), '2026-11')", audit)
        folder = None if self.path is None else self.path.resolve().parent
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        lock = None if folder is None else take_lock(folder, wait=True)  # other processes that write here wait, if the system has locks
        try:
            known = self if self.path is None else history(self.path)  # another process may have added a period since this was read
            by_label = {label: AuditSums.of(each, label, (returning or {}).get(label, {})) for label, each in audit.labels.items()}
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
        of the model. With `intersections`, the intersections of attributes are followed too. Measures are gaps, and ratios such as
        "tpr_ratio".
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
        names = list(dict.fromkeys(str(m) if m in FOLLOWED_RATIOS else canonical_name(m) for m in measures))
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
        count = sum(
            (len(groups) - 1) * len({name if name in FOLLOWED_RATIOS else measure_of(name).signature for name in names})
            for groups, *_ in series.values()
        )
        alpha = (1 - level) / 2 / max(count, 1)
        gaps: list[dict[str, object]] = []
        rows: list[dict[str, object]] = []
        for (label, attribute), (groups, sums, returning) in series.items():
            least = max(by_label[label].min_patients for by_label in periods.values())
            for measure in names:
                followed = follow(sums, returning, list(periods), measure, level, alpha, expected_change, least)
                for group, (summary, history) in zip(groups[1:], followed, strict=True):
                    where = {"label": label, "measure": measure, "attribute": attribute, "group": group, "reference": groups[0]}
                    gaps.append(where | summary)
                    rows += [where | row for row in history]
        crossed = tuple(dict.fromkeys(name for sums in first.values() for name in sums.intersections))
        return Monitoring(tuple(periods), pd.DataFrame(gaps), pd.DataFrame(rows), count, level, expected_change, crossed)

    def write(self, path: str | Path) -> Path:
        """Writes the file atomically and returns its path."""
        with needing("a history"):
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


def period_in(name: str) -> str | None:
    """The period in a name; None if it has none, or several.

    >>> period_in("scores-2026-12"), period_in("2026-Q4"), period_in("scores"), period_in("patient-12345")
    ('2026-12', '2026-Q4', None, None)
    """
    found = [part for part in re.findall(r"(?<!\d)\d{4}(?!\d)(?:-\w{2,3}(?!\w))?(?:-\d{2}(?!\d))?", name) if PERIOD_NAME.fullmatch(part)]
    return found[0] if len(found) == 1 else None


# The file


def is_history(path: Path) -> bool:
    """Whether a file was written as a history, even if it is damaged now."""
    with path.open("rb") as file:
        return file.read(4) == b"PAR1" and FILE_METADATA.search(file.read()) is not None


def _read_periods(path: Path) -> dict[str, dict[str, AuditSums]]:
    """The periods in a file; raises an error if it is no history or is not as it was written."""
    with needing("a history"):
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
                numbers = np.hstack([each.reshape(len(groups), -1) for each in (*sums.arrays(), audit.returning[attribute])])
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
            for attribute, each in sums.sums.items():
                if not all((np.isfinite(array) & (array >= 0)).all() for array in (*each.arrays(), sums.returning[attribute])):
                    yield "sums must be finite and not negative"


def _unit_of_time(period: str) -> tuple[bool, ...]:
    """The unit of time of a period, as the parts of its name that are present."""
    match = PERIOD_NAME.fullmatch(period)
    return tuple(bool(part) for part in match.groupdict().values()) if match else ()


def _sums_from_rows(label: str, rows: pd.DataFrame) -> AuditSums:
    """The sums of one label of one period, from its rows in the file."""
    groups, sums, returning = {}, {}, dict[str, FloatArray]()
    for attribute, unsorted in rows.groupby("attribute", sort=False):
        frame = unsorted.sort_values("position")
        numbers, shapes = frame[SUM_AND_COUNT_COLUMNS].to_numpy(np.float64), KEPT_SUMS.values()
        parts = np.split(numbers, np.cumsum([math.prod(shape) for shape in shapes])[:-1], axis=1)
        *arrays, returning[str(attribute)] = (each.reshape(len(frame), *shape) for each, shape in zip(parts, shapes, strict=True))
        groups[str(attribute)] = tuple(map(str, frame["group"]))
        sums[str(attribute)] = Moments(DECISION_RATIOS, *arrays)
    about: dict[str, Any] = {name: kind(rows[f"audit_{name}"].iloc[0]) for name, kind in AUDIT_FIELDS.items()}
    about |= {"patients": None if about["patients"] < 0 else about["patients"], "digest": about["digest"] or None}
    crossed = tuple(map(str, rows["attribute"][rows["intersection"]].unique()))
    kept: dict[str, Any] = {"groups": groups, "intersections": crossed, "sums": sums, "returning": returning}
    return AuditSums(**about, label=label, measures=(), performance={}, **kept)
