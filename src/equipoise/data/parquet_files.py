"""Parquet files: their size in memory, checked before and while they are read, and their columns as pandas has them.

A file of a few kilobytes can hold more than a machine has memory for, since it stores equal values once, with their number. Therefore text
and bytes are read as dictionaries, in which a value takes memory once, and columns of lists and records, whose length no metadata limit,
are not read: they cannot have a role.
"""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from equipoise.data.attribute import level_name, precision_problem
from equipoise.data.files import check_unique, too_large
from equipoise.errors import BadInput

if TYPE_CHECKING:
    import pyarrow as pa

Item = TypeVar("Item")
TOGETHER = 16  # row groups that are read between two checks of the memory
LONGEST = 2**16  # bytes of a group or an id
PAGES = 2**26  # bytes that a reader needs for the pages of its columns, in addition to the values


def read_parquet(path: Path, text: Collection[str], limit: int) -> pd.DataFrame:
    """The rows of a Parquet file by the types of its columns, ignoring the metadata of pandas, which may be damaged.

    In a column of lists or records, which is not read, all cells are the same empty list.
    """
    import pyarrow as pa

    metadata, schema = parquet_header(path)
    if (size := parquet_bytes(metadata, schema)) > limit:
        raise too_large(path, size, limit)
    check_unique(schema.names, path)
    names = flat_columns(schema, text, path)
    groups = range(metadata.num_row_groups)
    with _opened(path, schema) as file:
        parts = [file.read_row_groups(list(groups[k : k + TOGETHER]), columns=names) for k in _checked(groups[::TOGETHER], path, limit)]
        table = pa.concat_tables(parts) if parts else schema.empty_table()
    if table.num_rows != metadata.num_rows:
        raise BadInput(f"{path} holds {table.num_rows:,} rows, but its metadata state {metadata.num_rows:,}. Export it again.")
    columns: dict[str, Any] = {
        name: [str(value) for value in values] if name in text else values
        for name, values in _range_index(schema.metadata, table.num_rows).items()
    }
    for name in schema.names:
        if re.fullmatch(r"__index_level_\d+__", name):
            continue
        if name not in names:
            columns[name] = pd.Series([[]] * table.num_rows, dtype=object)
        else:
            columns[name] = arrow_texts(table[name], name, path) if name in text else arrow_values(table[name])
    return pd.DataFrame(columns, index=range(table.num_rows))


def parquet_batches(path: Path, names: Sequence[str], rows: int, limit: int) -> "Iterator[pa.RecordBatch]":
    """Batches of at most so many rows of these columns; fewer if the rows are so long that a batch would need more bytes than the limit."""
    metadata, schema = parquet_header(path)
    stored = max(1, parquet_bytes(metadata, schema) // max(1, metadata.num_rows))  # bytes per row
    with _opened(path, schema) as file:
        parts = file.iter_batches(batch_size=max(1, min(rows, limit // stored)), columns=list(names), use_threads=False)
        yield from _checked(parts, path, limit)


def parquet_header(path: Path) -> tuple[Any, Any]:
    """The metadata and the schema of a Parquet file."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        return file.metadata, file.schema_arrow


def parquet_bytes(metadata: Any, schema: Any) -> int:
    """The size of a Parquet file in memory: at least 8 bytes per value, however well the file compresses a constant column.

    The metadata of columns are not used: in a damaged file, accessing them ends the process in pyarrow instead of raising an error.
    """
    groups = [metadata.row_group(k) for k in range(metadata.num_row_groups)]
    rows = max(metadata.num_rows, sum(group.num_rows for group in groups))
    return int(max(sum(group.total_byte_size for group in groups), rows * sum(map(_width, schema.types)), 8 * rows))


def _width(dtype: Any) -> int:
    """The bytes of one value in memory; of a text, only those of its reference."""
    try:
        dtype = getattr(dtype, "value_type", dtype)  # of a dictionary
        return max(8, int(dtype.byte_width))
    except (AttributeError, ValueError):  # of no fixed width
        return 8


def flat_columns(schema: Any, required: Collection[str], where: object) -> list[str]:
    """The columns with one value per row; raises `BadInput` if one of those required holds lists or records."""
    import pyarrow as pa

    nested = {field.name: field.type for field in schema if pa.types.is_nested(field.type)}
    for name in required:
        if name in nested:
            raise BadInput(
                f"{where}: column {name!r} holds lists or records ({nested[name]}); one value per row is needed. Use another column."
            )
    flat = [name for name in schema.names if name not in nested]
    for name in flat:  # pyarrow selects columns by the beginning of their path
        if inside := next((other for other in nested if name.startswith(f"{other}.")), None):
            raise BadInput(
                f"{where}: column {name!r} cannot be distinguished from a part of the records in {inside!r}. Rename one of them."
            )
    return flat


def _opened(path: Path, schema: Any) -> Any:
    """The file, with text and bytes as dictionaries, in which a value that is repeated in many rows is stored once."""
    import pyarrow.parquet as pq

    return pq.ParquetFile(path, read_dictionary=[field.name for field in schema if _is_text(field.type)])


def _is_text(dtype: Any) -> bool:
    """Whether values of this type have any length: text or bytes."""
    import pyarrow as pa

    return any(kind(dtype) for kind in (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary))


def _checked(items: Iterable[Item], path: Path, limit: int) -> Iterator[Item]:
    """The items; raises the error for a file that is too large if Arrow's memory grows beyond what its metadata stated."""
    import pyarrow as pa

    before = pa.total_allocated_bytes()
    for item in items:
        yield item
        if pa.total_allocated_bytes() - before > 2 * limit + PAGES:
            raise too_large(path, None, limit)


def arrow_values(values: Any) -> "pd.Series[Any]":
    """An Arrow column as a pandas column, with text and bytes as objects that are shared between equal cells."""
    import pyarrow as pa

    if not pa.types.is_dictionary(values.type):
        return values.to_pandas()
    if _is_text(values.type.value_type):
        return values.to_pandas().astype(object)
    return values.cast(values.type.value_type).to_pandas()


def arrow_texts(values: Any, name: str, path: Path) -> "pd.Series[Any]":
    """An Arrow column as names: text unchanged, integers exactly (never converted to floating-point numbers, even with gaps)."""
    import pyarrow as pa

    if pa.types.is_dictionary(values.type):  # each distinct value is converted once, and its name shared between cells
        chunks = values.unify_dictionaries().chunks if isinstance(values, pa.ChunkedArray) else [values]
        names = np.array([*(arrow_texts(chunks[0].dictionary, name, path) if chunks else ()), None], dtype=object)
        return pd.Series(np.concatenate([names[dictionary_codes(chunk)] for chunk in chunks] or [names[:0]]), dtype=object)
    check_lengths(values, name, path)
    cells = values.to_pylist()
    if pa.types.is_floating(values.type) and (problem := precision_problem(cells, values.type.to_pandas_dtype())):
        raise BadInput(f"{path}: column {name!r} {problem}")
    try:
        cells = [cell.decode("utf-8") if isinstance(cell, bytes) else cell for cell in cells]
    except UnicodeDecodeError:
        raise BadInput(f"{path}: column {name!r} holds bytes that are not text. Store it as text.") from None
    is_missing = [cell is None or cell != cell or cell == "" for cell in cells]
    return pd.Series([None if missing else level_name(cell) for cell, missing in zip(cells, is_missing, strict=True)], dtype=object)


def check_lengths(values: Any, name: str, where: object) -> None:
    """Raises `BadInput` if a text is too long for a name: hashing it in every row would take hours."""
    import pyarrow.compute as pc

    longest = pc.max(pc.binary_length(values)).as_py() if _is_text(values.type) else None
    if (longest or 0) > LONGEST:
        raise BadInput(
            f"{where}: column {name!r} holds a text of {longest:,} bytes; a group or an id has at most {LONGEST:,}. Use another column."
        )


def dictionary_codes(values: Any) -> npt.NDArray[np.int64]:
    """The position of each cell's value in the dictionary of an Arrow array, -1 in empty cells."""
    codes: npt.NDArray[np.int64] = values.indices.cast("int64").fill_null(-1).to_numpy(zero_copy_only=False)
    return codes


def _range_index(metadata: Any, rows: int) -> dict[str, list[int]]:
    """The named range index in the metadata of pandas, which is not stored as a column; empty if there is none or it is damaged."""
    with suppress(ValueError, TypeError, KeyError, AttributeError):
        for entry in json.loads(metadata[b"pandas"])["index_columns"]:
            if isinstance(entry, dict) and entry["kind"] == "range" and isinstance(entry["name"], str):
                values = range(entry["start"], entry["stop"], entry["step"])
                return {entry["name"]: list(values)} if len(values) == rows else {}
    return {}
