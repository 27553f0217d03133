"""Rows are written to bytes and read back; files from earlier versions are read, and other files refused."""

from io import BytesIO

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from equipoise.errors import BadInput
from equipoise.studies import results as rows
from support.facts import facts

ROW = {
    "data": "d",
    "seed": 1,
    "gap": 0.1,
    "p_value": 0.02,
    "valid_p_value": 0.03,
    "limit": 0.8,
    "trace_step": [0, 1],
    "trace_gap": [0.1, 0.0],
}


def test_rows_survive_a_round_trip() -> None:
    frame = rows.rows_from_bytes(rows.rows_to_bytes([ROW]), "x")
    assert list(frame.columns) == rows.ROW_SCHEMA.names
    assert frame[["data", "seed", "gap", "p_value", "valid_p_value", "limit"]].iloc[0].tolist() == ["d", 1, 0.1, 0.02, 0.03, 0.8]


def without(*columns: str) -> bytes:
    buffer = BytesIO()
    pq.write_table(pq.read_table(BytesIO(rows.rows_to_bytes([ROW]))).drop_columns(list(columns)), buffer)
    return buffer.getvalue()


def test_rows_without_p_values_are_read() -> None:
    frame = rows.rows_from_bytes(without("p_value", "valid_p_value", "limit", *rows.POOLED_COLUMNS, "pace", *rows.SET_SIZES), "x")
    assert list(frame.columns) == rows.ROW_SCHEMA.names
    assert frame["gap"].iloc[0] == 0.1
    assert np.isnan(frame["p_value"].iloc[0])
    assert frame["valid_p_value"].dtype == np.float64


def test_columns_of_earlier_studies_that_are_no_longer_used_are_left_out() -> None:
    table = pq.read_table(BytesIO(rows.rows_to_bytes([ROW])))
    for name in rows.IGNORED_COLUMNS:
        table = table.append_column(name, [[0.1]])
    buffer = BytesIO()
    pq.write_table(table, buffer)
    assert list(rows.rows_from_bytes(buffer.getvalue(), "x").columns) == rows.ROW_SCHEMA.names


def test_rows_from_before_the_limit_can_be_combined_with_newer_ones() -> None:
    old = rows.rows_from_bytes(without("limit", *rows.POOLED_COLUMNS, "pace", *rows.SET_SIZES), "x")
    assert list(old.columns) == rows.ROW_SCHEMA.names
    assert old["p_value"].iloc[0] == 0.02
    both = pd.concat([old, rows.rows_from_bytes(rows.rows_to_bytes([ROW]), "y")], ignore_index=True)
    assert both["limit"].isna().tolist() == [True, False]


def test_rows_from_before_folds_can_be_combined_with_newer_ones() -> None:
    old = rows.rows_from_bytes(without(*rows.POOLED_COLUMNS, "pace", *rows.SET_SIZES), "x")
    new = rows.rows_from_bytes(rows.rows_to_bytes([{**ROW, "test_cell": [0, 3], "test_decision": [1.0, 0.5], "test_patient": [7, 9]}]), "y")
    both = pd.concat([old, new], ignore_index=True)
    assert both["test_cell"].isna().tolist() == [True, False]
    assert both["limit"].tolist() == [0.8, 0.8]
    assert both["test_decision"].iloc[1].tolist() == [1.0, 0.5]


def test_rows_from_before_the_pace_are_read() -> None:
    old = rows.rows_from_bytes(without("pace", *rows.SET_SIZES), "x")
    assert list(old.columns) == rows.ROW_SCHEMA.names
    assert np.isnan(old["pace"].iloc[0])
    assert rows.rows_from_bytes(rows.rows_to_bytes([{**ROW, "pace": 0.2}]), "x")["pace"].iloc[0] == 0.2


def test_rows_from_before_the_sizes_are_read() -> None:
    old = rows.rows_from_bytes(without(*rows.SET_SIZES), "x")
    assert list(old.columns) == rows.ROW_SCHEMA.names
    assert old[list(rows.SET_SIZES)].isna().all(axis=None)
    assert rows.rows_from_bytes(rows.rows_to_bytes([{**ROW, "test_rows": 20}]), "x")["test_rows"].iloc[0] == 20


def changed(table: pa.Table) -> bytes:
    buffer = BytesIO()
    pq.write_table(table, buffer)
    return buffer.getvalue()


def plain() -> pa.Table:
    return pq.read_table(BytesIO(rows.rows_to_bytes([ROW])))


def test_any_column_outside_the_core_may_be_missing() -> None:
    for lost in (name for name in rows.ROW_SCHEMA.names if name not in rows.REQUIRED_COLUMNS):
        frame = rows.rows_from_bytes(without(lost), "x")
        assert list(frame.columns) == rows.ROW_SCHEMA.names
        assert frame[lost].isna().all()
        assert frame["gap"].tolist() == [0.1]


def test_a_measure_that_the_table_no_longer_has_is_kept() -> None:
    frame = rows.rows_from_bytes(changed(plain().append_column("test_old_gap", pa.array([0.25]))), "x")
    assert list(frame.columns) == [*rows.ROW_SCHEMA.names, "test_old_gap"]
    assert frame["test_old_gap"].tolist() == [0.25]


def test_anything_else_is_refused() -> None:
    strangers = [
        *(without(name) for name in rows.REQUIRED_COLUMNS),
        changed(plain().append_column("stranger", pa.array([0.25]))),
        changed(plain().append_column("test_text", pa.array(["a"]))),
        changed(plain().set_column(plain().schema.names.index("gap"), "gap", pa.array(["0.1"]))),
    ]
    for content in strangers:
        with pytest.raises(BadInput, match=facts("x", "rows")):
            rows.rows_from_bytes(content, "x")


def test_the_schema_version_is_in_the_file_and_a_later_one_is_refused() -> None:
    table = plain()
    assert table.schema.metadata[rows.VERSION_KEY] == str(rows.ROWS_VERSION).encode()
    later = table.replace_schema_metadata({rows.VERSION_KEY: str(rows.ROWS_VERSION + 1).encode()})
    with pytest.raises(BadInput, match=facts(rows.ROWS_VERSION + 1)):
        rows.rows_from_bytes(changed(later), "x")
