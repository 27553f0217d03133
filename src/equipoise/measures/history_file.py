"""The Parquet file of a history: its rows, and a checksum of the whole file, without which it is not read.

The checksum stands in the file's own metadata, with zeros in its place while it is computed. It covers every byte, so rows that were
repeated, removed or changed, and damage anywhere in the file, are found.
"""

import hashlib
import io
import json
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from equipoise.data import atomic_path
from equipoise.errors import BadInput, first_line, raise_all
from equipoise.measures.audit import AuditSums
from equipoise.measures.moments import DECISIONS, Moments

SCHEMA, SCHEMA_VERSION = "equipoise.history", 2
PERIOD = re.compile(r"(?P<year>\d{4})(-(?P<month>0[1-9]|1[0-2])(-(?P<day>0[1-9]|[12]\d|3[01]))?|-(?P<quarter>Q[1-4])|-(?P<week>W[0-5]\d))?")
SUMS = ("n0", "n1", "s0", "s1")
PAIRS = [(a, b) for a in range(4) for b in range(a + 1)]
ABOUT = {"name": str, "decision": str, "level": float, "min_patients": int, "weighted": bool, "rows": int, "patients": int, "digest": str}
TEXT = ("period", "label", "attribute", "group")
NUMBERS = [
    *SUMS,
    *(f"{SUMS[b]}_{SUMS[a]}" for a, b in PAIRS),
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


def is_history(path: Path) -> bool:
    """Whether a file was written as a history, even if it is damaged now."""
    with path.open("rb") as file:
        return file.read(4) == b"PAR1" and _about(path.read_bytes(), "schema") is not None


def write_history(periods: Periods, path: str | Path) -> Path:
    """Writes the file atomically and returns its path."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [row for period, by_label in periods.items() for sums in by_label.values() for row in _rows(period, sums)]
    frame = pd.DataFrame(rows, columns=COLUMNS)
    schema = pa.schema([(name, pa.type_for_alias(kind)) for name, kind in TYPES.items()])
    about = json.dumps({"schema": SCHEMA, "schema_version": SCHEMA_VERSION, "rows": len(frame), "sha256": ZEROS})
    table = pa.Table.from_pandas(frame, schema=schema, preserve_index=False).replace_schema_metadata({SCHEMA: about})
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    content = buffer.getvalue()
    sealed = content.replace(_mark(ZEROS), _mark(hashlib.sha256(content).hexdigest()))
    with atomic_path(path) as temporary:
        temporary.write_bytes(sealed)
    return Path(path)


def read_history(path: Path) -> dict[str, dict[str, AuditSums]]:
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
    try:
        table = pq.read_table(io.BytesIO(content))
        kinds = {name: str(kind) for name, kind in zip(table.schema.names, table.schema.types, strict=True)}
        frame = table.to_pandas()
    except Exception as error:  # pyarrow raises many kinds of errors for a damaged file
        raise BadInput(f"{path} is not a readable history: {first_line(error)}. {AGAIN}") from error
    raise_all([f"{problem}. {AGAIN}" for problem in [*_problems(frame, kinds)][:1]], str(path))
    periods: dict[str, dict[str, AuditSums]] = {}
    for (period, label), rows in frame.groupby(["period", "label"], sort=False):
        periods.setdefault(str(period), {})[str(label)] = _sums_from_rows(str(label), rows)
    return periods


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


def _problems(frame: pd.DataFrame, kinds: Mapping[str, str]) -> Iterator[str]:
    """What is wrong with the rows of a history."""
    if kinds != TYPES or list(kinds) != COLUMNS:
        wrong = [name for name in (*TYPES, *kinds) if kinds.get(name) != TYPES.get(name)]
        yield f"expected the columns of a history; {', '.join(dict.fromkeys(wrong)) or 'their order'} differs"
        return
    if frame.isna().to_numpy().any():
        yield f"{int(frame.isna().to_numpy().sum()):,} values are missing"
        return
    numbers = frame[NUMBERS].to_numpy(np.float64)
    if not np.isfinite(numbers).all() or (numbers < 0).any():
        yield "sums must be finite and not negative"
    yield from period_order_problems(list(dict.fromkeys(frame["period"])))
    keys = ["period", "label", "attribute"]
    repeated = frame.duplicated([*keys, "group"])
    if repeated.any():
        yield f"group {frame['group'][repeated].iloc[0]!r} of {frame['period'][repeated].iloc[0]} is repeated"
    for (period, label, attribute), rows in frame.groupby(keys, sort=False):
        if sorted(rows["position"]) != list(range(len(rows))) or len(set(rows["intersection"])) > 1:
            yield f"{period}: rows of {attribute!r}{f' of {label!r}' if label else ''} are missing or repeated"
    about = [f"audit_{name}" for name in ABOUT]
    if len(frame.drop_duplicates([*keys[:2], *about])) > len(frame.drop_duplicates(keys[:2])):
        yield "the rows of one period and label differ in what they say about its audit"
    if not frame["audit_level"].between(0.01, 1 - 1e-9).all() or (frame[["audit_rows", "audit_min_patients"]] < 0).to_numpy().any():
        yield "levels must be between 0.01 and 1, numbers of rows and patients not negative"
    attributes = {name: tuple(zip(rows["label"], rows["attribute"], strict=True)) for name, rows in frame.groupby("period", sort=False)}
    first = set(next(iter(attributes.values()), ()))
    yield from (f"{name} has other labels or attributes than the first period" for name, each in attributes.items() if set(each) != first)


def period_order_problems(periods: Collection[str]) -> Iterator[str]:
    """Periods that are none, or not in the order of time, or of different lengths."""
    names = list(periods)
    if unknown := [name for name in names if PERIOD.fullmatch(name) is None]:
        yield f"{unknown[0]!r} is no year, quarter, month, week or day"
    elif names != sorted(names) or len({unit_of_time(name) for name in names}) > 1:
        yield "the periods are not in the order of time, or of different lengths"


def unit_of_time(period: str) -> tuple[bool, ...]:
    """The unit of time of a period, as the parts of its name that are present."""
    match = PERIOD.fullmatch(period)
    return tuple(bool(part) for part in match.groupdict().values()) if match else ()


def _rows(period: str, audit: AuditSums) -> list[dict[str, Any]]:
    """The rows of the file for one label of one period, one per attribute and group."""
    about = {f"audit_{name}": getattr(audit, name) for name in ABOUT}
    about |= {"audit_patients": -1 if audit.patients is None else audit.patients, "audit_digest": audit.digest or ""}
    rows = []
    for attribute, groups in audit.groups.items():
        sums = audit.sums[attribute]
        for k, group in enumerate(groups):
            row: dict[str, Any] = {"period": period, "label": audit.label, "attribute": attribute, "group": group, "position": k}
            row |= {"intersection": attribute in audit.intersections}
            row |= dict(zip(SUMS, map(float, sums.total[k]), strict=True))
            row |= {f"{SUMS[b]}_{SUMS[a]}": float(sums.second[k, a, b]) for a, b in PAIRS}
            row |= {f"rows_{name}": float(sums.rows[k, at]) for at, name in enumerate(DECISIONS)}
            row |= {f"patients_{name}": float(sums.units[k, at]) for at, name in enumerate(DECISIONS)}
            rows.append(row | about)
    return rows


def _sums_from_rows(label: str, rows: pd.DataFrame) -> AuditSums:
    """The sums of one label of one period, from its rows in the file."""
    groups: dict[str, tuple[str, ...]] = {}
    sums: dict[str, Moments] = {}
    for attribute, unsorted in rows.groupby("attribute", sort=False):
        frame = unsorted.sort_values("position")
        second = np.zeros((len(frame), 4, 4))
        for a, b in PAIRS:
            second[:, a, b] = second[:, b, a] = frame[f"{SUMS[b]}_{SUMS[a]}"]
        counts, units = (frame[[f"{prefix}_{name}" for name in DECISIONS]].to_numpy(np.float64) for prefix in ("rows", "patients"))
        groups[str(attribute)] = tuple(map(str, frame["group"]))
        sums[str(attribute)] = Moments(DECISIONS, frame[list(SUMS)].to_numpy(np.float64), second, counts, units)
    first = rows.iloc[0]
    patients = int(first["audit_patients"])
    return AuditSums(
        name=str(first["audit_name"]),
        label=label,
        decision=str(first["audit_decision"]),
        level=float(first["audit_level"]),
        min_patients=int(first["audit_min_patients"]),
        weighted=bool(first["audit_weighted"]),
        rows=int(first["audit_rows"]),
        patients=None if patients < 0 else patients,
        digest=str(first["audit_digest"]) or None,
        measures=(),
        groups=groups,
        intersections=tuple(map(str, rows["attribute"][rows["intersection"]].unique())),
        sums=sums,
        performance={},
    )
