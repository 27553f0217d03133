"""Tables of any size, read in batches, so that only one batch of the named columns is in memory.

A table is a CSV or Parquet file, a folder of them, or a data set partitioned by folders such as sex=F. Columns are read as in `read_table`.
"""

import gzip
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast
from urllib.parse import unquote

import pandas as pd

from equipoise.data.column_values import missing_columns
from equipoise.data.files import MAX_TABLE_BYTES, no_such_file
from equipoise.data.parquet_files import arrow_values, flat_columns, parquet_batches
from equipoise.data.table_files import HEADER_BYTES, check_no_workbook, csv_format, encoding_of, is_parquet, unreadable
from equipoise.errors import BadInput, raise_all

if TYPE_CHECKING:
    import pyarrow as pa

ROWS = 2**19  # per batch
FIRST_ROWS = 2**14  # in the first batch of a CSV file, which shows how long its rows are
BATCH_BYTES = 2**26  # of a CSV file per batch; the parser takes several times that in memory
NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"  # a missing value in the folder names of partitioned data sets
SUFFIXES = (".parquet", ".pq", ".csv", ".tsv", ".csv.gz", ".tsv.gz")  # of the files in a folder that are read


@dataclass(frozen=True, eq=False)
class Batch:
    """Some rows of a table: columns of names as Arrow arrays, the other columns as pandas has them."""

    where: str  # the file and the rows, for messages
    rows: int
    texts: "dict[str, pa.Array[Any]]"
    values: "dict[str, pd.Series[Any]]"


def read_batches(path: str | Path, *, text: Sequence[str], values: Sequence[str], words: Sequence[str] = ()) -> Iterator[Batch]:
    """The rows of a table in batches, with the columns `text` as names and the columns `values` as numbers where possible.

    Columns in `words` are among the values and are read as text, in which NA and the like are missing: their positive value is named.
    """
    path = Path(path)
    requested = list(dict.fromkeys([*text, *values]))
    for file, partition in _table_files(path):
        where = str(file.relative_to(path)) if path.is_dir() else file.name
        required = [name for name in requested if name not in partition]
        start = 0
        try:
            parts = (
                _parquet_parts(file, where, requested, required)
                if is_parquet(file)
                else _csv_parts(file, where, requested, required, text, words)
            )
            for rows, columns in parts:
                columns |= {name: pd.Series([partition[name]] * rows, dtype=object) for name in requested if name not in columns}
                yield Batch(
                    where if not start else f"{where}, rows {start + 1:,} to {start + rows:,} (the numbers of rows below count from there)",
                    rows,
                    {name: _as_arrow(columns[name]) for name in text},
                    {name: _as_pandas(columns[name]) for name in requested if name not in text},
                )
                start += rows
        except BadInput:
            raise
        except Exception as error:
            raise unreadable(where, error) from error


def stored_bytes(path: Path) -> int:
    """The size on disk of the files of a table."""
    return sum(file.stat().st_size for file, _ in _table_files(path))


def _table_files(path: Path) -> list[tuple[Path, dict[str, str | None]]]:
    """The files of a table in order, each with the column values in the names of its folders."""
    if path.is_file():
        return [(path, {})]
    if not path.is_dir():
        raise no_such_file(path)
    files = []
    for file in sorted(p for p in path.rglob("*") if p.is_file() and p.name.lower().endswith(SUFFIXES)):
        inside = file.relative_to(path).parts
        if any(part.startswith(("_", ".")) for part in inside):  # metadata and logs of the program that wrote the data set
            continue
        pairs = [part.partition("=") for part in inside[:-1] if "=" in part]
        files.append((file, {unquote(key): None if value == NULL_PARTITION else unquote(value) for key, _, value in pairs}))
    if not files:
        raise BadInput(f"{path} is a folder without a table; expected files that end in {', '.join(SUFFIXES)}")
    return files


def _parquet_parts(file: Path, where: str, requested: Sequence[str], required: Sequence[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """The number of rows and the columns, as Arrow arrays, of each batch of a Parquet file."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(file) as opened:
        schema = opened.schema_arrow
    raise_all(missing_columns([name for name in required if name not in schema.names], schema.names), where)
    stored = [name for name in requested if name in schema.names]
    flat_columns(schema, stored, where)
    for part in parquet_batches(file, stored, ROWS, MAX_TABLE_BYTES):
        if len(part):
            yield len(part), {name: part.column(name) for name in stored}


def _csv_parts(
    file: Path, where: str, requested: Sequence[str], required: Sequence[str], text: Sequence[str], words: Sequence[str]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """The number of rows and the columns, as pandas columns, of each batch of a CSV file."""
    with _open_unzipped(file) as stream:
        check_no_workbook(stream.read(8), file)
    with _open_unzipped(file) as stream, _Metered(stream, where) as metered:
        encoding = encoding_of(metered)
    if encoding is None:  # Windows-1252 is supported only for a file that is read as a whole
        raise BadInput(f"{where} is not UTF-8, as a CSV file that is read in batches must be. Export it as UTF-8 or as Parquet.")
    dialect = csv_format(_open_unzipped(file), encoding, file)
    names = [name for name in dialect.names if name]
    raise_all(missing_columns([name for name in required if name not in names], names), where)
    stored = [raw for raw, name in zip(dialect.raw_names, dialect.names, strict=True) if name in requested]
    with _open_unzipped(file) as stream, _Metered(stream, where, MAX_TABLE_BYTES) as metered:
        reader = pd.read_csv(metered, low_memory=False, usecols=stored, iterator=True, **dialect.options(text, words))
        rows = min(ROWS, FIRST_ROWS)
        while True:
            metered.used = 0
            try:
                part = reader.get_chunk(rows)
            except StopIteration:
                return
            rows = min(ROWS, 4 * rows, max(1, BATCH_BYTES * len(part) // max(1, metered.used)))
            frame = dialect.rename(part.reset_index(drop=True), {*text, *words})
            yield len(frame), {name: frame[name] for name in requested if name in frame.columns}


class _Metered(io.RawIOBase):
    """A stream of text that counts the bytes read, and raises `BadInput` if a line, or the rows of one batch, have too many of them."""

    def __init__(self, stream: BinaryIO, where: str, limit: float = math.inf) -> None:
        self.stream, self.where, self.limit = stream, where, limit
        self.used = 0  # bytes since the batch began
        self.line = 0  # bytes since the last line break

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        piece = self.stream.read(len(buffer))
        buffer[: len(piece)] = piece
        end = max(piece.rfind(b"\n"), piece.rfind(b"\r"))
        self.line = self.line + len(piece) if end < 0 else len(piece) - end - 1
        self.used += len(piece)
        if self.line > HEADER_BYTES:
            raise BadInput(f"{self.where} has a line of more than {HEADER_BYTES:,} bytes. Export it again, with one line per row.")
        if self.used > self.limit:
            raise BadInput(f"{self.where} has rows of more than {self.limit:,} bytes. Export it again, with shorter rows.")
        return len(piece)

    def seek(self, offset: int, whence: int = 0, /) -> int:
        self.used = self.line = 0
        return self.stream.seek(offset, whence)


def _open_unzipped(file: Path) -> BinaryIO:
    with file.open("rb") as stream:
        zipped = stream.read(2) == b"\x1f\x8b"
    return cast(BinaryIO, gzip.open(file, "rb")) if zipped else file.open("rb")


def _as_arrow(column: Any) -> "pa.Array[Any]":
    import pyarrow as pa

    return pa.array(column.to_numpy(dtype=object), pa.string(), from_pandas=True) if isinstance(column, pd.Series) else column


def _as_pandas(column: Any) -> "pd.Series[Any]":
    return column if isinstance(column, pd.Series) else arrow_values(column)
