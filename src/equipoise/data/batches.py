"""Tables of any size: read in batches, and stored as coded rows, in memory up to `HELD` rows, otherwise in temporary files by patient.

A table is a CSV or Parquet file, a folder of them, or a data set partitioned by folders such as sex=F. Columns are read as in `read_table`,
and only one batch of the named columns is in memory. Each temporary file holds all rows of its patients, so that every sum over patients is
a sum over the files, and memory does not grow with the table. The files have no name (on Windows, they are deleted when they are closed),
so that nothing of them is left if the process is killed.
"""

import gzip
import io
import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO, cast
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt
import pandas as pd

from equipoise.data.attribute import Attribute, ObjectArray, row_numbers
from equipoise.data.column_values import missing_columns
from equipoise.data.files import LIMIT_VARIABLE, MAX_TABLE_BYTES, no_such_file
from equipoise.data.parquet_files import arrow_values, flat_columns, parquet_batches, parquet_header
from equipoise.data.scores import Scores, score_and_logit
from equipoise.data.splits import splitmix64
from equipoise.data.table_files import HEADER_BYTES, check_no_workbook, csv_format, encoding_of, is_parquet, unreadable
from equipoise.data.targets import UNKNOWN
from equipoise.errors import BadInput, raise_all

if TYPE_CHECKING:
    import pyarrow as pa

ROWS = 2**19  # per batch
FIRST_ROWS = 2**14  # in the first batch of a CSV file, which shows how long its rows are
BATCH_BYTES = 2**26  # of a CSV file per batch; the parser takes several times that in memory
NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"  # a missing value in the folder names of partitioned data sets
Columns = tuple[int, dict[str, Any], dict[str, "pd.Series[Any]"]]  # the number of rows, names as Arrow arrays, other columns
SUFFIXES = (".parquet", ".pq", ".csv", ".tsv", ".csv.gz", ".tsv.gz")  # of the files in a folder that are read
# Rows of one label in memory, at about 40 bytes each. 10 million rows took 39 s and 2.1 GB as one table, and 19 s and 0.8 GB in files.
HELD = 2**22
FILES = 128  # each must fit in memory; with a billion rows, a file has 8 million
# Bytes of coded rows per byte of the table on disk. A row is coded in 13 to 40 bytes; even with rounded scores it takes one byte on disk.
EXPANSION = 50

# The columns of coded rows: y (n, labels) as 0, 1 or -1, score (n, labels), code0, code1, ... (one per attribute, numbered in the order in
# which the groups occurred) and, if there are any, patient (hashes) and weight.
CodedRows = dict[str, npt.NDArray[Any]]


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
            read = _parquet_parts if is_parquet(file) else _csv_parts
            for rows, texts, others in read(file, where, requested, required, text, words):
                fixed = {name: pd.Series([value] * rows, dtype=object) for name, value in partition.items() if name in requested}
                texts |= {name: _as_arrow(column) for name, column in fixed.items() if name in text and name not in texts}
                others |= {name: column for name, column in fixed.items() if name not in text and name not in others}
                place = f"{where}, rows {start + 1:,} to {start + rows:,} (the numbers of rows below count from there)" if start else where
                yield Batch(place, rows, texts, others)
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


def _parquet_parts(
    file: Path, where: str, requested: Sequence[str], required: Sequence[str], text: Sequence[str], _words: Sequence[str]
) -> Iterator[Columns]:
    """The rows of each batch of a Parquet file."""
    _, schema = parquet_header(file)
    raise_all(missing_columns([name for name in required if name not in schema.names], schema.names), where)
    stored = [name for name in requested if name in schema.names]
    flat_columns(schema, stored, where)
    for part in parquet_batches(file, stored, ROWS, MAX_TABLE_BYTES):
        if len(part):
            texts = {name: part.column(name) for name in stored if name in text}
            yield len(part), texts, {name: arrow_values(part.column(name)) for name in stored if name not in text}


def _csv_parts(
    file: Path, where: str, requested: Sequence[str], required: Sequence[str], text: Sequence[str], words: Sequence[str]
) -> Iterator[Columns]:
    """The rows of each batch of a CSV file."""
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
            names = [name for name in requested if name in frame.columns]
            texts = {name: _as_arrow(frame[name]) for name in names if name in text}
            yield len(frame), texts, {name: frame[name] for name in names if name not in text}


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


def _as_arrow(column: "pd.Series[Any]") -> "pa.Array[Any]":
    import pyarrow as pa

    return pa.array(column.to_numpy(dtype=object), pa.string(), from_pandas=True)


@dataclass(frozen=True, eq=False)
class Stored:
    """The rows of a table in which one label is known, in parts that each hold all rows of their patients."""

    rows: int
    name: str
    attributes: tuple[Attribute, ...]  # without codes
    _parts: "Sequence[Part]" = field(repr=False)
    _label: int = 0  # the position among the labels that are stored together
    _labels: int = 1
    logits: bool = False  # whether the stored scores are logits

    @property
    def whole(self) -> bool:
        """Whether all rows are one part, in memory."""
        return len(self._parts) == 1 and self._parts[0].file is None

    @property
    def count(self) -> int:
        """The number of parts."""
        return len(self._parts)

    def parts(self) -> Iterator[Scores]:
        """The scores, one part at a time in memory."""
        for part in self._parts:
            yield self._scores(part.read())

    def parts_of_all(self) -> Iterator[list[Scores]]:
        """The scores of all labels that are stored together, for each part, in the rows where every label is known."""
        for part in self._parts:
            rows = part.read()
            complete = _select(rows, (rows["y"] != UNKNOWN).all(1))
            yield [replace(self, _label=k)._scores(complete) for k in range(self._labels)]

    def _scores(self, rows: CodedRows) -> Scores:
        """The scores of one label, sorted by patient, so that sums by patient access memory in order. Codes replace patient ids."""
        rows = rows | {"y": rows["y"][:, self._label], "score": rows["score"][:, self._label]}
        if self._labels > 1:
            rows = _select(rows, rows["y"] != UNKNOWN)
        patients = None
        if "patient" in rows:
            rows = _select(rows, np.argsort(rows["patient"]))
            patients = np.cumsum(np.diff(rows["patient"], prepend=rows["patient"][:1]) != 0)
        attributes = tuple(replace(a, codes=rows[f"code{k}"].astype(np.int64)) for k, a in enumerate(self.attributes))
        # Patients stay integers: as objects they would take 40 bytes each.
        y = rows["y"].astype(np.int64)
        score, logit = score_and_logit(np.ascontiguousarray(rows["score"]), self.logits)
        return Scores(
            y, score, attributes, cast("ObjectArray | None", patients), row_numbers(len(y)), self.name, rows.get("weight"), logit=logit
        )


def _select(rows: CodedRows, index: npt.NDArray[Any]) -> CodedRows:
    """The rows at these positions, or where a mask is True."""
    if index.dtype == bool and index.all():
        return rows
    return {name: column[index] for name, column in rows.items()}


@dataclass(frozen=True, eq=False)
class Part:
    """All rows of some patients: in memory, or in a file of records."""

    held: CodedRows | None
    file: IO[bytes] | None = None
    dtype: np.dtype[np.void] | None = None
    recode: Callable[[CodedRows], CodedRows] = dict  # from the codes in order of occurrence to those of the attributes

    def read(self) -> CodedRows:
        """The rows, with the codes of the attributes."""
        rows = self.held
        if rows is None:
            file = cast("IO[bytes]", self.file)
            file.seek(0)
            records = np.fromfile(file, cast("np.dtype[np.void]", self.dtype))
            rows = {name: np.ascontiguousarray(records[name]) for name in cast(tuple[str, ...], records.dtype.names)}
        return self.recode(rows)


class Storage:
    """Buffers coded rows in memory up to `HELD` rows, then writes them to files by patient, up to a number of bytes."""

    def __init__(self, labels: int, max_bytes: int, name: str) -> None:
        self.max_bytes, self.name = max_bytes, name
        self.max_held = HELD // max(1, (3 + labels) // 4)  # 40 bytes per row for one label, 9 more for each further label
        self.held: list[CodedRows] = []
        self.files: list[IO[bytes]] = []
        self.written = 0  # bytes
        self.dtype: np.dtype[np.void] | None = None  # of the records in the files
        self.rows = 0

    def add(self, rows: CodedRows) -> None:
        self.rows += len(rows["y"])
        self.held.append(rows)
        if self.files or self.rows > self.max_held:
            self._write()

    def _write(self) -> None:
        """Appends the rows in memory to the files, those of one patient to the same file."""
        if not self.files:
            self.files = [tempfile.TemporaryFile() for _ in range(FILES)]  # noqa: SIM115 (closed by `close`)
        for rows in self.held:
            records = _as_records(rows)
            self.written += records.nbytes
            if self.written > self.max_bytes:
                raise BadInput(
                    f"{self.name} needs more than {self.max_bytes:,} bytes in the temporary folder {tempfile.gettempdir()}, far more than "
                    "its size on disk: its rows are almost all the same. If the table is right, raise the limit: data.max_table_bytes, or "
                    f"the environment variable {LIMIT_VARIABLE}."
                )
            start = self.rows - sum(len(held["y"]) for held in self.held)
            keys = rows.get("patient", np.arange(start, start + len(records), dtype=np.uint64))
            place = (splitmix64(keys) % np.uint64(FILES)).astype(np.uint8)
            by_place = records[np.argsort(place, kind="stable")]
            ends = np.cumsum(np.bincount(place, minlength=FILES))
            for file, begin, end in zip(self.files, [0, *ends[:-1]], ends, strict=True):
                file.write(by_place[begin:end].tobytes())
        self.dtype = records.dtype
        self.held = []

    def close(self) -> None:
        """Closes the files, which deletes them."""
        for file in self.files:
            file.close()

    def parts(self) -> list[Part]:
        """All rows, in one part in memory or in one part per file. The storage releases the rows in memory."""
        if self.files:
            return [Part(None, file, self.dtype) for file in self.files if file.tell()]
        rows = {name: np.concatenate([held[name] for held in self.held]) for name in self.held[0]}
        self.held = []
        return [Part(rows)]


def _as_records(rows: CodedRows) -> npt.NDArray[np.void]:
    records = np.empty(len(rows["y"]), np.dtype([(name, column.dtype, column.shape[1:]) for name, column in rows.items()]))
    for name, column in rows.items():
        records[name] = column
    return records
