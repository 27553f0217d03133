"""The rows of a study as Parquet bytes: one row per (data, split, method, measure), with its trace.

Gaps, permutation p-values and performances are those of the test set, or of the validation set if the column begins with `valid_`. The
columns in TIMINGS differ from run to run; all others are bit-identical for every runner, on the same kind of device.
"""

import hashlib
from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from equipoise.data import Scores
from equipoise.errors import BadInput, first_line
from equipoise.measures import GAPS, FloatArray, cell_index

TIMINGS = ("seconds",)  # of the method, without training
P_VALUES = ("p_value", "valid_p_value")  # of the largest |gap| over the groups
LIMIT = "limit"  # upper bound (group-aware): the best performance on the original network's test scores within the |gap| of the row
POOLED = ("test_cell", "test_decision", "test_patient")  # of each test row, for pooled folds (see summary)
PACE = "pace"  # size of one step, in units pruned or epochs
SIZES = ("train_rows", "valid_rows", "test_rows")  # of the sets of the split
SCHEMA_VERSION = 4  # of files of rows
VERSION_KEY = b"equipoise.rows.schema_version"
UNREAD = ("noise", "valid_noise")  # columns of earlier versions that are ignored
# Columns that every file has. Others may be absent, such as those of a measure that was added later, and are then read as NaN.
CORE = ("fingerprint", "version", "data", "seed", "method", "measure", "gap", "performance", "valid_gap", "valid_performance", *TIMINGS)
TRACE = {"trace_step": "step", "trace_gap": "gap", "trace_performance": "performance", "trace_threshold": "threshold"}
_TEXT, _REAL, _WHOLE = pa.string(), pa.float64(), pa.int64()
SCHEMA = pa.schema(
    [
        ("fingerprint", _TEXT),
        ("version", _TEXT),
        ("data", _TEXT),
        ("seed", _WHOLE),
        ("method", _TEXT),
        ("measure", _TEXT),
        ("gap", _REAL),
        ("performance", _REAL),
        ("valid_gap", _REAL),
        ("valid_performance", _REAL),
        *((name, _REAL) for name in (*P_VALUES, LIMIT)),
        *((f"test_{name}", _REAL) for name in (*GAPS, "balanced_accuracy", "accuracy")),
        ("met", pa.bool_()),
        ("step", _WHOLE),
        ("steps", _WHOLE),
        (PACE, _REAL),
        ("why", _TEXT),
        ("rule", _TEXT),
        ("threshold", _REAL),
        ("needs_group", pa.bool_()),
        ("performance_measure", _TEXT),
        ("min_performance", _REAL),
        ("max_gap", _REAL),
        ("settings", _TEXT),
        ("notes", _TEXT),
        ("device", _TEXT),
        *((name, _REAL) for name in SIZES),
        *((name, _REAL) for name in TIMINGS),
        ("trace_step", pa.list_(_WHOLE)),
        *((name, pa.list_(_REAL)) for name in list(TRACE)[1:]),
        *((name, pa.list_(kind)) for name, kind in zip(POOLED, (_WHOLE, _REAL, _WHOLE), strict=True)),
    ]
)


def to_bytes(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """The rows as a Parquet file with page checksums."""
    buffer = BytesIO()
    schema = SCHEMA.with_metadata({VERSION_KEY: str(SCHEMA_VERSION).encode()})
    pq.write_table(pa.Table.from_pylist(list(rows), schema=schema), buffer, write_page_checksum=True)
    return buffer.getvalue()


def from_bytes(content: bytes, source: str) -> pd.DataFrame:
    """The rows in a Parquet file. Raises an error that names `source` if it is damaged or holds anything else.

    Columns that the file lacks, such as those of a measure that was added later, are NaN. Measures that only the file has are kept, after
    the other columns.
    """
    try:
        table = pq.read_table(BytesIO(content), page_checksum_verification=True)
    except (pa.ArrowException, OSError) as error:
        raise BadInput(f"{source} is damaged ({first_line(error)}). Run the study again to replace it.") from error
    version = (table.schema.metadata or {}).get(VERSION_KEY, b"1").decode(errors="replace")
    if version != str(SCHEMA_VERSION):
        raise BadInput(
            f"{source} has rows of schema version {version}; this Equipoise reads version {SCHEMA_VERSION}. "
            "Use the version of Equipoise that wrote it, or another folder."
        )
    table = table.drop_columns([name for name in UNREAD if name in table.schema.names])
    types = dict(zip(table.schema.names, table.schema.types, strict=True))
    other_measures = [name for name in types if name not in SCHEMA.names]
    expected = {field.name: field.type for field in SCHEMA} | dict.fromkeys(other_measures, _REAL)
    unexpected = [name for name in other_measures if not name.startswith("test_")] + [n for n in types if types[n] != expected[n]]
    if unexpected or not set(CORE) <= set(types):
        raise BadInput(f"{source} does not hold the rows of a study. Remove it, or use another folder.")
    for name in SCHEMA.names:
        if name not in types:
            table = table.append_column(SCHEMA.field(name), pa.nulls(len(table), SCHEMA.field(name).type))
    return table.select([*SCHEMA.names, *other_measures]).replace_schema_metadata().to_pandas()


def split_traces(frame: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The rows without traces, and the traces with one row per step."""
    keys = ["data", "seed", "method", "measure"]
    rows = frame.drop(columns=[*TRACE, *POOLED])
    steps = frame[[*keys, *TRACE]].explode(list(TRACE), ignore_index=True).rename(columns=TRACE)
    kinds = {"step": "int64", **dict.fromkeys(list(TRACE.values())[1:], "float64")}
    return rows, steps.dropna(subset="step").astype(kinds).reset_index(drop=True)


def pooled_columns(scores: Scores, decisions: FloatArray, salt: str) -> dict[str, Any]:
    """The columns with the cell, the decision and the patient of each test row, in a study by folds."""
    attribute = scores.attribute
    names = scores.ids if scores.patients is None else scores.patients
    patients = [int(hashlib.sha256(f"{salt}:{name}".encode()).hexdigest()[:15], 16) for name in names]
    values = cell_index(scores.y, attribute.codes, len(attribute.levels)).tolist(), decisions.tolist(), patients
    return dict(zip(POOLED, values, strict=True))
