"""Deterministic changes of saved audits and histories: damage, edits, and edits by someone who also writes a new checksum."""

import copy
import hashlib
import io
import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

ODD: list[Any] = [None, True, -1, 0, 2.5, 1e308, -1e308, 10**30, "", "x", "0", [], [1], {}, {"value": 1}, [[[[]]]], "\u2028<b>"]


def flipped(content: bytes, rng: np.random.Generator) -> bytes:
    """The content with one bit changed."""
    at, bit = int(rng.integers(len(content))), int(rng.integers(8))
    return content[:at] + bytes([content[at] ^ (1 << bit)]) + content[at + 1 :]


def sealed_json(document: dict[str, Any]) -> bytes:
    """A document with the checksum of its other values."""
    rest = {key: value for key, value in document.items() if key != "checksum"}
    checksum = hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()
    return json.dumps(rest | {"checksum": checksum}).encode()


def changed_value(document: Any, rng: np.random.Generator) -> Any:
    """A copy of a document in which one value, at any depth, is replaced, removed or repeated."""
    changed = copy.deepcopy(document)
    place, key = _place(changed, rng)
    kind = rng.integers(4)
    if kind == 0:
        del place[key]
    elif kind == 1 and isinstance(place, list):
        place.insert(int(rng.integers(len(place) + 1)), copy.deepcopy(place[key]))
    elif kind == 1:
        place[f"{key} again"] = copy.deepcopy(place[key])
    else:
        place[key] = ODD[int(rng.integers(len(ODD)))]
    return changed


def _place(document: Any, rng: np.random.Generator) -> tuple[Any, Any]:
    """A container at any depth, and a key or position in it."""
    place = document
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = keys[int(rng.integers(len(keys)))]
        if not (isinstance(place[key], (dict, list)) and len(place[key])) or rng.random() < 0.15:
            return place, key
        place = place[key]


def sealed_parquet(table: pa.Table, rows: int) -> bytes:
    """A table as the file of a history, with its checksum."""
    zeros = "0" * 64
    about = json.dumps({"schema": "equipoise.history", "schema_version": 2, "rows": rows, "sha256": zeros})
    buffer = io.BytesIO()
    pq.write_table(table.replace_schema_metadata({"equipoise.history": about}), buffer)
    content = buffer.getvalue()
    return content.replace(f'"sha256": "{zeros}"'.encode(), f'"sha256": "{hashlib.sha256(content).hexdigest()}"'.encode())


def row_edits() -> Iterator[tuple[str, Callable[[pd.DataFrame], pd.DataFrame]]]:
    """Edits of the rows of a history, by name."""
    yield "a row twice", lambda rows: pd.concat([rows, rows.iloc[:1]], ignore_index=True)
    yield "a row removed", lambda rows: rows.iloc[1:].reset_index(drop=True)
    yield "a period removed", lambda rows: rows[rows["period"] != rows["period"].iloc[-1]]
    yield "rows in another order", lambda rows: rows.iloc[::-1].reset_index(drop=True)
    yield "a number changed", _raised


def _raised(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with a count or sum of the second one raised."""
    column = rows.select_dtypes("float").columns[0]
    return rows.assign(**{column: rows[column] + (np.arange(len(rows)) == 1)})


def changed_cell(rows: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    """The rows with one value replaced by an odd one, a column removed or renamed, or rows repeated or removed."""
    column = rows.columns[int(rng.integers(rows.shape[1]))]
    kind, at = rng.integers(6), int(rng.integers(len(rows)))
    if kind == 0:
        return rows.drop(columns=column)
    if kind == 1:
        return rows.rename(columns={column: f"{column} again"})
    if kind == 2:
        return rows.drop(index=at).reset_index(drop=True)
    if kind == 3:
        return pd.concat([rows, rows.iloc[at : at + 1]], ignore_index=True)
    odd: dict[str, list[Any]] = {"f": [np.nan, np.inf, -1.0, 1e300, 0.5, 0], "i": [np.nan, -1, 10**15, 0.5], "b": [None]}
    choices = odd.get(rows[column].dtype.kind, [None, "", "x", "2026-13", "F & M"])
    values = rows[column].astype(object)
    values.iloc[at] = choices[int(rng.integers(len(choices)))]
    return rows.assign(**{column: values.infer_objects()})
