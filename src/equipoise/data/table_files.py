"""Tables on disk: the rows of a CSV or Parquet file of any common kind, identifiers and groups as they stand in it."""

import codecs
import csv
import io
import json
import logging
import os
import re
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import pandas as pd

from equipoise.data.attribute import inexact, level_name
from equipoise.data.files import LIMIT_VARIABLE, MAX_TABLE_BYTES, max_table_bytes, no_such_file, read_bytes, too_large
from equipoise.errors import BadInput, first_line

log = logging.getLogger(__name__)

WORKBOOKS = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0")  # how .xlsx (a zip archive) and .xls files begin
MISSING_WORDS = frozenset(  # what pandas takes for missing; never in a column of text, where NA is a value like any other
    {"", " ", "NA", "N/A", "n/a", "<NA>", "NULL", "null", "None", "NaN", "nan", "-NaN", "-nan"}
    | {"#N/A", "#N/A N/A", "#NA", "1.#IND", "-1.#IND", "1.#QNAN", "-1.#QNAN"}
)
CHUNK = 2**20


def read_table(path: str | Path, *, text: Collection[str] = (), words: Collection[str] = (), limit: int | None = None) -> pd.DataFrame:
    """The rows of a CSV (comma, semicolon or tab; with or without a byte-order mark; .gz too) or Parquet file.

    Columns in `text` hold identifiers and groups: strings exactly as they stand in the file, where only an empty cell is missing. So are
    those in `words`, except that NA, null, NaN and the like are missing there. Everything else is read as numbers where it can be.
    `limit` is the largest size in bytes once unzipped; by default EQUIPOISE_MAX_TABLE_BYTES, or 256 MiB.
    """
    path = Path(path)
    if path.is_dir():
        raise BadInput(f"{path} is a folder; a CSV or Parquet file is needed")
    if not path.is_file():
        raise no_such_file(path)
    if path.stat().st_size == 0:
        raise BadInput(f"{path} is empty. Export it again, with a header and rows.")
    most = max_table_bytes() if limit is None else limit
    try:
        frame = _read_parquet(path, {*text, *words}, most) if is_parquet(path) else _read_csv(path, set(text), set(words), most)
    except pd.errors.EmptyDataError:
        raise BadInput(f"{path} is empty. Export it again, with a header and rows.") from None
    except BadInput:
        raise
    except Exception as error:  # a damaged file makes the libraries that parse it raise almost anything
        reason = first_line(error)
        raise BadInput(f"{path} cannot be read as CSV or Parquet: {reason}. Correct it or export it again.") from error
    if frame.empty:
        raise BadInput(f"{path} has a header and no rows. Export it again, with rows.")
    return frame


def column_names(path: str | Path) -> list[str]:
    """The names of the columns of a CSV or Parquet file, from its header; an error where it has none."""
    path = Path(path)
    if path.is_dir() or not path.is_file():
        raise no_such_file(path) if not path.is_dir() else BadInput(f"{path} is a folder; a CSV or Parquet file is needed")
    if not is_parquet(path):
        raw = read_bytes(path)
        check_no_workbook(raw[:8], path)
        return list(csv_format(BytesIO(raw), _encoding(raw, path), path).names)
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        return list(file.schema_arrow.names)


def as_parsed(column: "pd.Series[Any]") -> "pd.Series[Any]":
    """A column of text as `read_table` would have read it otherwise: numbers where they all are. For a group that is an input as well."""
    if pd.api.types.is_numeric_dtype(column):
        return column
    quoted = io.StringIO("x\n" + "\n".join('""' if pd.isna(v) else '"' + str(v).replace('"', '""') + '"' for v in column))
    return pd.read_csv(quoted, skip_blank_lines=False)["x"].set_axis(column.index).rename(column.name)


def is_parquet(path: Path) -> bool:
    """Whether a file is a Parquet file, by its name or its first bytes."""
    if path.suffix.lower() in {".parquet", ".pq"}:
        return True
    with path.open("rb") as file:
        return file.read(4) == b"PAR1"


def _read_parquet(path: Path, text: set[str], limit: int) -> pd.DataFrame:
    """The columns of a Parquet file by their own types: what pandas wrote next to them may be damaged, and is not needed."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        about, schema = file.metadata, file.schema_arrow
    if (size := _parquet_bytes(about)) > limit:
        raise too_large(path, size, limit)
    twice = sorted({name for name in schema.names if schema.names.count(name) > 1})
    if twice:
        raise BadInput(f"{path} has the columns {', '.join(map(repr, twice))} more than once. Rename all but one of each.")
    strings = [field.name for field in schema if pa.types.is_string(field.type) or pa.types.is_large_string(field.type)]
    with pq.ParquetFile(path, read_dictionary=strings) as file:  # a long text that is there a million times is kept once
        table = file.read()
    if table.num_rows != about.num_rows:
        raise BadInput(f"{path} holds {table.num_rows:,} rows, but its metadata state {about.num_rows:,}. Export it again.")
    columns: dict[str, Any] = {}
    for name, values in zip(table.column_names, table.columns, strict=True):
        if re.fullmatch(r"__index_level_\d+__", name):
            continue
        kept = name in text
        columns[name] = arrow_texts(values, name, path) if kept else arrow_values(values)
    index = {name: [str(k) for k in values] if name in text else values for name, values in _range_index(schema.metadata, table.num_rows)}
    return pd.DataFrame({**index, **columns}, index=range(table.num_rows))


def _parquet_bytes(about: Any) -> int:
    """The size of a Parquet file in memory. A row takes 8 bytes however well a column of one value is packed in the file.

    Columns are not looked at: of a damaged file, that ends the process in pyarrow instead of raising an error.
    """
    stored = sum(about.row_group(k).total_byte_size for k in range(about.num_row_groups))
    return int(max(stored, 8 * about.num_rows * max(1, about.num_columns)))


def is_large(path: str | Path, limit: int | None = None) -> bool:
    """Whether a table is to be read in batches: a folder, or a file above 256 MiB, unless a limit of its own was set.

    A file that is damaged or absent is not large, so that reading it reports why.
    """
    path = Path(path)
    if not path.is_file():
        return path.is_dir()
    if limit is not None or os.environ.get(LIMIT_VARIABLE):
        return False
    if not is_parquet(path):
        return path.stat().st_size > MAX_TABLE_BYTES
    import pyarrow.parquet as pq

    with suppress(Exception), pq.ParquetFile(path) as file:
        return _parquet_bytes(file.metadata) > MAX_TABLE_BYTES
    return False


def arrow_values(values: Any) -> "pd.Series[Any]":
    """An Arrow column as pandas has it; text as objects, equal ones shared."""
    import pyarrow as pa

    if not pa.types.is_dictionary(values.type):
        return values.to_pandas()
    if pa.types.is_string(values.type.value_type) or pa.types.is_large_string(values.type.value_type):
        return values.to_pandas().astype(object)
    return values.cast(values.type.value_type).to_pandas()


def arrow_texts(values: Any, name: str, path: Path) -> "pd.Series[Any]":
    """An Arrow column as names: text as it is, integers exactly (never by way of floating-point numbers, even with gaps)."""
    import pyarrow as pa

    kind = values.type.value_type if pa.types.is_dictionary(values.type) else values.type
    if pa.types.is_nested(kind):
        raise BadInput(f"{path}: column {name!r} holds lists or records ({kind}); one value per row is needed. Use another column.")
    if pa.types.is_dictionary(values.type) and (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        found = values.to_pandas().astype(object)
        return found.where(found.notna() & (found != ""), None)
    listed = values.to_pylist()
    if pa.types.is_floating(kind) and (wrong := inexact(listed, kind.to_pandas_dtype())):
        raise BadInput(f"{path}: column {name!r} {wrong}")
    try:
        plain = [value.decode("utf-8") if isinstance(value, bytes) else value for value in listed]
    except UnicodeDecodeError:
        raise BadInput(f"{path}: column {name!r} holds bytes that are not text. Store it as text.") from None
    missing = [value is None or value != value or value == "" for value in plain]
    return pd.Series([None if gap else level_name(value) for value, gap in zip(plain, missing, strict=True)], dtype=object)


def _range_index(metadata: Any, rows: int) -> list[tuple[str, list[int]]]:
    """The named index that pandas keeps as a range next to the columns; nothing where there is none, or it cannot be read."""
    with suppress(ValueError, TypeError, KeyError, AttributeError):
        for entry in json.loads(metadata[b"pandas"])["index_columns"]:
            if isinstance(entry, dict) and entry["kind"] == "range" and isinstance(entry["name"], str):
                found = range(entry["start"], entry["stop"], entry["step"])
                return [(entry["name"], list(found))] if len(found) == rows else []
    return []


def _read_csv(path: Path, text: set[str], words: set[str], limit: int) -> pd.DataFrame:
    raw = read_bytes(path, limit)
    check_no_workbook(raw[:8], path)
    written = csv_format(BytesIO(raw), _encoding(raw, path), path)
    return written.named(pd.read_csv(BytesIO(raw), low_memory=False, **written.options(text, words)), text | words)


def check_no_workbook(head: bytes, path: Path) -> None:
    """Raises where the first bytes of a file are those of a workbook."""
    if head.startswith(WORKBOOKS):
        raise BadInput(f"{path} is an Excel workbook (or another archive), not a CSV file. Save the sheet as CSV first.")


@dataclass(frozen=True)
class CsvFormat:
    """How a CSV file is written, as found in its first lines."""

    path: Path
    encoding: str
    separator: str
    skip: int  # lines before the header
    spaced: bool  # whether a blank after the separator is no part of a value
    called: tuple[str, ...]  # the columns as pandas names them
    names: tuple[str, ...]  # without blanks around them

    def options(self, text: Collection[str], words: Collection[str]) -> dict[str, Any]:
        """The arguments of `pd.read_csv` with which columns of text and words are read as they stand."""
        pairs = list(zip(self.called, self.names, strict=True))
        return {
            "sep": self.separator,
            "encoding": self.encoding,
            "skiprows": self.skip,
            "skipinitialspace": self.spaced,
            "dtype": {called: str for called, name in pairs if name in text or name in words},
            "keep_default_na": False,
            "na_values": {called: [""] if name in text else MISSING_WORDS for called, name in pairs},
        }

    def named(self, frame: pd.DataFrame, text: Collection[str]) -> pd.DataFrame:
        """The rows that pandas read, with the names of the columns as they are used, and decimal commas as points."""
        if not {str(c) for c in frame.columns} <= set(self.called):  # the columns of text would not be the ones that were named
            header = ", ".join(map(repr, self.called[:6]))
            raise BadInput(f"{self.path} has a header that cannot be read: {header}. Write one name per column.")
        used = dict(zip(self.called, self.names, strict=True))
        frame.columns = [used[str(c)] or str(c) for c in frame.columns]
        return _with_decimal_commas(frame, set(text)) if self.separator != "," else frame


def csv_format(stream: BinaryIO, encoding: str, path: Path) -> CsvFormat:
    """How the CSV file in a stream is written, from its first lines; the stream is closed."""
    lines = stream.read(65536).decode(encoding, errors="ignore").splitlines()
    # Excel may write the separator on a line of its own before the header: "sep=;".
    told = lines[0].strip(' "').lower() if lines else ""
    skip = int(told.startswith("sep=") and len(told) == 5)
    header = next(filter(str.strip, lines[skip:]), "")
    separator = told[-1] if skip else max(",;\t|", key=header.count)
    spaced = _spaced(lines[skip:], separator)
    stream.seek(0)
    with io.TextIOWrapper(stream, encoding=encoding, newline="") as whole:
        for _ in range(skip):
            whole.readline()
        reader = csv.reader(whole, delimiter=separator, skipinitialspace=spaced)
        rows = (row for row in reader if any(map(str.strip, row)))
        written = next(rows, [])
        first = next(filter(None, reader), [])  # even one of separators only, which pandas takes for a row too
    names = [name.strip() for name in written]
    twice = sorted({name for name in names if name and names.count(name) > 1})
    if twice:
        raise BadInput(f"{path} has the columns {', '.join(map(repr, twice))} more than once. Rename all but one of each.")
    if len(first) > len(names):  # pandas would take the first column for row names and shift the rest
        raise BadInput(
            f"{path} has {len(names)} names in the header and {len(first)} fields in the first row. "
            "Remove trailing separators, or the row names (row.names = FALSE in R)."
        )
    called = [name or f"Unnamed: {k}" for k, name in enumerate(written)]  # as pandas does
    return CsvFormat(path, encoding, separator, skip, spaced, tuple(called), tuple(names))


def _spaced(lines: list[str], separator: str) -> bool:
    """Whether a blank after the separator is part of it and not of the value, as in `1, "F, x"`.

    So it is where a blank follows every separator of the header; or of all rows, if a quotation mark follows one of these blanks. A single
    such field says nothing about the others, in which a leading blank may be part of an identifier.
    """
    bare = [re.sub('"[^"]*"', '""', line) for line in lines[:1000] if separator in line]
    header, rows = bare[:1], bare[1:]
    return any(_all_spaced(of, separator) for of in (header, rows if any(f'{separator} "' in row for row in rows) else []))


def _all_spaced(lines: list[str], separator: str) -> bool:
    return bool(lines) and all(field.startswith(" ") for line in lines for field in line.split(separator)[1:])


def _encoding(raw: bytes, path: Path) -> str:
    if (found := encoding_of(BytesIO(raw))) is not None:
        return found
    _check_windows(raw, path)
    log.warning(
        "%s is not UTF-8 and was read as Western European text (Windows-1252), which changes names in other alphabets. If they are "
        "wrong, export it as UTF-8.",
        path.name,
    )
    return "cp1252"


def encoding_of(stream: BinaryIO) -> str | None:
    """The encoding of text, UTF-16 or UTF-8, for which the stream is read to its end; None where it is another one."""
    if stream.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return "utf-16"
    stream.seek(0)
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for piece in iter(lambda: stream.read(CHUNK), b""):
            decoder.decode(piece)
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return None
    return "utf-8-sig"


def _check_windows(raw: bytes, path: Path) -> None:
    """Raises where a file that is no UTF-8 is no Windows text either but damaged UTF-8, which would change every accented id."""
    text = raw.decode("utf-8", errors="replace")
    bad = text.count("\ufffd")
    if len(re.sub("[\x00-\x7f\ufffd]+", "", text)) >= bad:
        line = text.count("\n", 0, text.index("\ufffd")) + 1
        raise BadInput(
            f"{path} is damaged: {bad:,} characters are not UTF-8, as the rest is; the first is in line {line:,}. Export it again."
        )


def _with_decimal_commas(frame: pd.DataFrame, text: set[str]) -> pd.DataFrame:
    """Excel writes "0,5" where the list separator is a semicolon, and a tab-separated export of the same machine does too."""
    for column in frame.columns[frame.dtypes.map(pd.api.types.is_string_dtype)]:
        values = frame[column].dropna().astype(str)
        if column not in text and len(values) and values.str.fullmatch(r"\s*-?\d+(,\d+)?([eE][-+]?\d+)?\s*").all():
            frame[column] = pd.to_numeric(frame[column].str.replace(",", "."))
    return frame
