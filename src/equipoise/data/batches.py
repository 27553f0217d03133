"""Tables read in batches: a CSV or Parquet file of any size, a folder of them, or a data set partitioned by folders such as sex=F.

Only the named columns are read, and one batch at a time is in memory. The columns mean the same as in `read_table`.
"""

import codecs
import gzip
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast
from urllib.parse import unquote

import pandas as pd

from equipoise.data.files import no_such_file
from equipoise.data.table_files import CHUNK, arrow_values, check_no_workbook, csv_format, is_parquet
from equipoise.errors import BadInput, did_you_mean

if TYPE_CHECKING:
    import pyarrow as pa

ROWS = 2**19  # of a batch
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"  # what partitioned data sets write where a row has no value
TABLES = (".parquet", ".pq", ".csv", ".tsv", ".csv.gz", ".tsv.gz")  # files of a folder that are read


@dataclass(frozen=True, eq=False)
class Batch:
    """Some rows of a table: columns of names (as Arrow has them) and of numbers."""

    where: str  # the file and the rows, for messages
    rows: int
    texts: "dict[str, pa.Array[Any]]"
    values: "dict[str, pd.Series[Any]]"


def read_batches(path: str | Path, *, text: Sequence[str], values: Sequence[str], words: Sequence[str] = ()) -> Iterator[Batch]:
    """The rows of a table in batches, with the columns `text` as names and the columns `values` as numbers, if they can be.

    The columns in `words` are values of which the positive one is named: they are read as text in which NA and the like are missing.
    """
    path = Path(path)
    wanted = list(dict.fromkeys([*text, *values]))
    for file, told in _files(path):
        where = str(file.relative_to(path)) if path.is_dir() else file.name
        try:
            yield from _of_parquet(file, where, told, wanted, text) if is_parquet(file) else _of_csv(file, where, told, wanted, text, words)
        except BadInput:
            raise
        except Exception as error:  # a damaged file makes the libraries that parse it raise almost anything
            reason = str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else type(error).__name__
            raise BadInput(f"{where} cannot be read as CSV or Parquet: {reason}. Correct it or export it again.") from error


def _files(path: Path) -> list[tuple[Path, dict[str, str | None]]]:
    """The files of a table in order, each with the values that the names of its folders hold."""
    if path.is_file():
        return [(path, {})]
    if not path.is_dir():
        raise no_such_file(path)
    found = []
    for file in sorted(p for p in path.rglob("*") if p.is_file() and p.name.lower().endswith(TABLES)):
        inside = file.relative_to(path).parts
        if any(part.startswith(("_", ".")) for part in inside):  # what writers of data sets leave next to the data
            continue
        pairs = [part.partition("=") for part in inside[:-1] if "=" in part]
        found.append((file, {unquote(key): None if value == NO_VALUE else unquote(value) for key, _, value in pairs}))
    if not found:
        raise BadInput(f"{path} is a folder without a table; expected files that end in {', '.join(TABLES)}")
    return found


def _absent(wanted: Sequence[str], there: Sequence[str], where: str) -> None:
    """Raises where a file lacks columns."""
    shown = ", ".join(there[:20]) + (f", and {len(there) - 20} more" if len(there) > 20 else "")
    problems = [f"no column {name!r}.{did_you_mean(name, there, 0.6)} The columns are: {shown}." for name in wanted if name not in there]
    if problems:
        raise BadInput(*problems, source=where)


def _of_parquet(file: Path, where: str, told: dict[str, str | None], wanted: Sequence[str], text: Sequence[str]) -> Iterator[Batch]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pq.ParquetFile(file) as opened:
        names = opened.schema_arrow.names
        _absent([name for name in wanted if name not in told], names, where)
        stored = [name for name in wanted if name in names]
        start = 0
        for part in opened.iter_batches(batch_size=ROWS, columns=stored, use_threads=False):
            rows = len(part)
            if not rows:
                continue
            held = {name: part.column(name) for name in stored}
            held |= {name: pa.array([told[name]] * rows, pa.string()) for name in wanted if name not in held}
            yield Batch(
                _rows(where, start, rows),
                rows,
                {name: held[name] for name in text},
                {name: arrow_values(held[name]) for name in wanted if name not in text},
            )
            start += rows


def _of_csv(
    file: Path, where: str, told: dict[str, str | None], wanted: Sequence[str], text: Sequence[str], words: Sequence[str]
) -> Iterator[Batch]:
    import pyarrow as pa

    with _unzipped(file) as stream:
        check_no_workbook(stream.read(8), file)
    encoding = _encoding(file, where)
    written = csv_format(_unzipped(file), encoding, file)
    _absent([name for name in wanted if name not in told], [n for n in written.names if n], where)
    stored = [called for called, name in zip(written.called, written.names, strict=True) if name in wanted]
    start = 0
    with _unzipped(file) as stream:
        parts = pd.read_csv(stream, low_memory=False, usecols=stored, chunksize=ROWS, **written.options(text, words))
        for part in cast("Iterator[pd.DataFrame]", parts):
            rows = len(part)
            frame = written.named(part.reset_index(drop=True), {*text, *words})
            for name in (n for n in wanted if n not in frame.columns):
                frame[name] = pd.Series([told[name]] * rows, dtype=object)
            texts = {name: pa.array(frame[name].to_numpy(dtype=object), pa.string(), from_pandas=True) for name in text}
            yield Batch(_rows(where, start, rows), rows, texts, {name: frame[name] for name in wanted if name not in text})
            start += rows


def _encoding(file: Path, where: str) -> str:
    """The encoding of a CSV file, which is read once for it. A whole file may be Windows text; one that is read in batches may not."""
    with _unzipped(file) as stream:
        if stream.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            return "utf-16"
    decoder = codecs.getincrementaldecoder("utf-8")()
    with _unzipped(file) as stream:
        try:
            for piece in iter(lambda: stream.read(CHUNK), b""):
                decoder.decode(piece)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            raise BadInput(
                f"{where} is not UTF-8, as a CSV file that is read in batches must be. Export it as UTF-8 or as Parquet."
            ) from None
    return "utf-8-sig"


def _unzipped(file: Path) -> BinaryIO:
    with file.open("rb") as stream:
        zipped = stream.read(2) == b"\x1f\x8b"
    return cast(BinaryIO, gzip.open(file, "rb")) if zipped else file.open("rb")


def _rows(where: str, start: int, rows: int) -> str:
    return where if not start else f"{where}, rows {start + 1:,} to {start + rows:,} (the numbers of rows below count from there)"
