"""Rows survive the way to a file and back; what is no file of rows is refused, and one from before the noise floor is read."""

from io import BytesIO

import numpy as np
import pyarrow.parquet as pq
import pytest

from equipoise.errors import BadInput
from equipoise.study import rows

ROW = {"data": "d", "seed": 1, "gap": 0.1, "noise": 0.02, "valid_noise": 0.03, "trace_step": [0, 1], "trace_gap": [0.1, 0.0]}


def test_there_and_back() -> None:
    frame = rows.from_bytes(rows.to_bytes([ROW]), "x")
    assert list(frame.columns) == rows.SCHEMA.names
    assert frame[["data", "seed", "gap", "noise", "valid_noise"]].iloc[0].tolist() == ["d", 1, 0.1, 0.02, 0.03]


def without(*columns: str) -> bytes:
    buffer = BytesIO()
    pq.write_table(pq.read_table(BytesIO(rows.to_bytes([ROW]))).drop_columns(list(columns)), buffer)
    return buffer.getvalue()


def test_rows_from_before_the_noise_floor_are_read() -> None:
    frame = rows.from_bytes(without("noise", "valid_noise"), "x")
    assert list(frame.columns) == rows.SCHEMA.names
    assert frame["gap"].iloc[0] == 0.1
    assert np.isnan(frame["noise"].iloc[0])
    assert frame["valid_noise"].dtype == np.float64


def test_anything_else_is_refused() -> None:
    for columns in (("noise",), ("gap",), ("noise", "valid_noise", "gap")):
        with pytest.raises(BadInput, match="x does not hold the rows of a study"):
            rows.from_bytes(without(*columns), "x")
