"""Tables on disk: the rows of a CSV or Parquet file of any common dialect, with identifiers and groups exactly as written in it.

A Parquet file of a few kilobytes can hold more than a machine has memory for, since it stores equal values once, with their number.
Therefore its size in memory is checked before and while it is read; text and bytes are read as dictionaries, in which a value takes memory
once; and columns of lists and records, whose length no metadata limit, are not read: they cannot have a role.
"""

import codecs
import csv
import glob
import gzip
import io
import json
import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar, cast

import numpy as np
import numpy.typing as npt
import pandas as pd

from equipoise.data.attribute import level_name, precision_problem, to_numbers
from equipoise.disk import LIMIT_VARIABLE, MAX_TABLE_BYTES, file_too_large, is_database, max_table_bytes, no_such_file, read_bytes
from equipoise.errors import BadInput, EquipoiseError, first_line, needing

if TYPE_CHECKING:
    pass

Item = TypeVar("Item")
ROW_GROUPS_AT_ONCE = 16  # row groups that are read between two checks of the memory
LONGEST_NAME = 2**16  # bytes of a group or an id
PAGE_BYTES = 2**26  # bytes that a reader needs for the pages of its columns, in addition to the values


def read_parquet(path: Path, text: Collection[str], limit: int) -> pd.DataFrame:
    """The rows of a Parquet file by the types of its columns; in one of lists or records, which is not read, all cells are empty lists."""
    metadata, schema = parquet_header(path)
    import pyarrow as pa

    if (size := parquet_bytes(metadata, schema)) > limit:
        raise file_too_large(path, size, limit)
    _check_unique(schema.names, path)
    names = flat_columns(schema, text, path)
    groups = range(metadata.num_row_groups)
    with _open_parquet(path, schema) as file:
        steps = groups[::ROW_GROUPS_AT_ONCE]
        parts = [file.read_row_groups(list(groups[k : k + ROW_GROUPS_AT_ONCE]), columns=names) for k in _checked(steps, path, limit)]
        table = pa.concat_tables(parts) if parts else schema.empty_table()
    if table.num_rows != metadata.num_rows:
        raise BadInput(f"{path} holds {table.num_rows:,} rows, but its metadata state {metadata.num_rows:,}. Export it again.")
    columns: dict[str, Any] = {}
    with suppress(ValueError, TypeError, KeyError, AttributeError):  # pandas names a range index in the metadata, which may be damaged
        for entry in json.loads(schema.metadata[b"pandas"])["index_columns"]:
            if isinstance(entry, dict) and entry["kind"] == "range" and isinstance(entry["name"], str):
                values = range(entry["start"], entry["stop"], entry["step"])
                if len(values) == table.num_rows:
                    columns[entry["name"]] = list(map(str, values) if entry["name"] in text else values)
    for name in schema.names:
        if re.fullmatch(r"__index_level_\d+__", name):
            continue
        if name not in names:
            columns[name] = pd.Series([[]] * table.num_rows, dtype=object)
        else:
            columns[name] = arrow_texts(table[name], name, path) if name in text else arrow_values(table[name])
    return pd.DataFrame(columns, index=range(table.num_rows))


def parquet_header(path: Path) -> tuple[Any, Any]:
    """The metadata and the schema of a Parquet file."""
    with needing(f"reading {path.name}"):
        import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        return file.metadata, file.schema_arrow


def parquet_bytes(metadata: Any, schema: Any) -> int:
    """The size of a Parquet file in memory: at least 8 bytes per value, however well the file compresses a constant column.

    The metadata of columns are not used: in a damaged file, accessing them ends the process in pyarrow instead of raising an error.
    """
    groups = [metadata.row_group(k) for k in range(metadata.num_row_groups)]
    rows = max(metadata.num_rows, sum(group.num_rows for group in groups))
    width = 0
    for dtype in schema.types:
        try:
            width += max(8, int(getattr(dtype, "value_type", dtype).byte_width))  # of a dictionary, that of its values
        except (AttributeError, ValueError):  # of no fixed width, as text, which is a reference
            width += 8
    return int(max(sum(group.total_byte_size for group in groups), rows * max(8, width)))


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


def _open_parquet(path: Path, schema: Any) -> Any:
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
        if pa.total_allocated_bytes() - before > 2 * limit + PAGE_BYTES:
            raise file_too_large(path, None, limit)


def arrow_values(values: Any) -> "pd.Series[Any]":
    """An Arrow column as a pandas column, with text and bytes as objects that are shared between equal cells."""
    import pyarrow as pa

    if not pa.types.is_dictionary(values.type):
        return values.to_pandas()
    if _is_text(values.type.value_type):
        return values.to_pandas().astype(object)
    return values.cast(values.type.value_type).to_pandas()


def arrow_texts(values: Any, name: str, where: object) -> "pd.Series[Any]":
    """An Arrow column as names: text unchanged, integers exactly (never converted to floating-point numbers, even with gaps)."""
    import pyarrow as pa

    if pa.types.is_dictionary(values.type):  # each distinct value is converted once, and its name shared between cells
        chunks = values.unify_dictionaries().chunks if isinstance(values, pa.ChunkedArray) else [values]
        names = np.array([*(arrow_texts(chunks[0].dictionary, name, where) if chunks else ()), None], dtype=object)
        return pd.Series(np.concatenate([names[dictionary_codes(chunk)] for chunk in chunks] or [names[:0]]), dtype=object)
    if _is_text(values.type):
        _check_lengths(values, name, where)
    if pa.types.is_integer(values.type):
        values = values.cast(pa.string())
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):  # a fifth of the time of cell by cell
        names = np.array(values.to_numpy(zero_copy_only=False) if isinstance(values, pa.Array) else values.to_numpy(), dtype=object)
        names[names == ""] = None
        return pd.Series(names, dtype=object)
    cells = values.to_pylist()
    if pa.types.is_floating(values.type) and (problem := precision_problem(cells, values.type.to_pandas_dtype())):
        raise BadInput(f"{where}: column {name!r} {problem}")
    try:
        cells = [cell.decode("utf-8") if isinstance(cell, bytes) else cell for cell in cells]
    except UnicodeDecodeError:
        raise BadInput(f"{where}: column {name!r} holds bytes that are not text. Store it as text.") from None
    is_missing = [cell is None or cell != cell or cell == "" for cell in cells]
    return pd.Series([None if missing else level_name(cell) for cell, missing in zip(cells, is_missing, strict=True)], dtype=object)


def _check_lengths(values: Any, name: str, where: object) -> None:
    """Raises `BadInput` if a text is too long for a name: hashing it in every row would take hours."""
    import pyarrow.compute as pc

    longest = pc.max(pc.binary_length(values)).as_py()
    if (longest or 0) > LONGEST_NAME:
        raise BadInput(f"{where}: {long_name_problem(name, longest)}")


def long_name_problem(name: str, longest: int) -> str:
    """The problem of a column with a text that is too long for a name."""
    return f"column {name!r} holds a text of {longest:,} bytes; a group or an id has at most {LONGEST_NAME:,}. Use another column."


def dictionary_codes(values: Any) -> npt.NDArray[np.int64]:
    """The position of each cell's value in the dictionary of an Arrow array, -1 in empty cells."""
    return np.asarray(values.indices.cast("int64").fill_null(-1).to_numpy(zero_copy_only=False))


log = logging.getLogger(__name__)

WORKBOOKS = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0")  # first bytes of .xlsx files (zip archives) and .xls files
MISSING_WORDS = frozenset(  # the words that pandas reads as missing; in a text column they are values, since NA may be a name
    {"", " ", "NA", "N/A", "n/a", "<NA>", "NULL", "null", "None", "NaN", "nan", "-NaN", "-nan"}
    | {"#N/A", "#N/A N/A", "#NA", "1.#IND", "-1.#IND", "1.#QNAN", "-1.#QNAN"}
)
# Numbers are read to the last digit, so that a score is the same in CSV and Parquet. From pandas 3.1 on that is the default, and the option
# is deprecated; without it, older versions misread the last digit of every third score.
EXACT: dict[str, Any] = {"float_precision": "round_trip"} if tuple(map(int, pd.__version__.split(".")[:2])) < (3, 1) else {}
BYTES_DECODED = 2**20
HEADER_BYTES = 2**22  # of the header and the first row; with 100,000 columns they have about half of that


def read_table(path: str | Path, *, text: Collection[str] = (), words: Collection[str] = (), limit: int | None = None) -> pd.DataFrame:
    """The rows of a CSV (comma, semicolon or tab; with or without a byte-order mark; .gz too) or Parquet file.

    - `path`: the file.
    - `text`: columns of identifiers and groups: strings exactly as written in the file, where only an empty cell is missing.
    - `words`: columns that are read in the same way, except that NA, null, NaN and the like are missing.
    - `limit`: the largest size in bytes once unzipped; by default EQUIPOISE_MAX_TABLE_BYTES, or 256 MiB.

    All other columns are read as numbers where possible.
    """
    path = _existing_file(path)
    if path.stat().st_size == 0:
        raise BadInput(f"{path} is empty. Export it again, with a header and rows.")
    max_bytes = max_table_bytes() if limit is None else limit
    try:
        if is_parquet(path):
            frame = read_parquet(path, {*text, *words}, max_bytes)
        else:
            raw, dialect = _read_csv(path, max_bytes)
            frame = dialect.rename(pd.read_csv(io.BytesIO(raw), low_memory=False, **dialect.options(text, words)), {*text, *words})
    except pd.errors.EmptyDataError:
        raise BadInput(f"{path} is empty. Export it again, with a header and rows.") from None
    except EquipoiseError:
        raise
    except Exception as error:
        raise unreadable(path, error) from error
    if frame.empty:
        raise BadInput(f"{path} has a header and no rows. Export it again, with rows.")
    return frame


def unreadable(file: object, error: Exception) -> BadInput:
    """The error for a damaged file, which makes the libraries that parse it raise almost anything."""
    return BadInput(f"{file} cannot be read as CSV or Parquet: {first_line(error)}. Correct it or export it again.")


def column_names(path: str | Path) -> list[str]:
    """The column names in the header of a CSV or Parquet file."""
    path = _existing_file(path)
    return list(parquet_header(path)[1].names if is_parquet(path) else _read_csv(path, max_table_bytes())[1].names)


def _read_csv(path: Path, limit: int) -> "tuple[bytes, CsvFormat]":
    """The content of a CSV file, and its dialect. Text that is not UTF-8 or UTF-16 is read as Windows-1252, unless it is damaged UTF-8."""
    raw = read_bytes(path, limit)
    encoding = encoding_of(io.BytesIO(raw), path)
    if encoding is None:
        text = raw.decode("utf-8", errors="replace")
        bad = text.count("\ufffd")
        # Mostly valid UTF-8 is damaged, not Windows-1252: reading it as such would change every accented identifier.
        if len(re.sub("[\x00-\x7f\ufffd]+", "", text)) >= bad:
            line = text.count("\n", 0, text.index("\ufffd")) + 1
            raise BadInput(
                f"{path} is damaged: {bad:,} characters are not UTF-8, as the rest is; the first is in line {line:,}. Export it again."
            )
        log.warning(
            "%s is not UTF-8 and was read as Western European text (Windows-1252), which changes names in other alphabets. If they are "
            "wrong, export it as UTF-8.",
            path.name,
        )
    return raw, csv_format(io.BytesIO(raw), encoding or "cp1252", path)


def _check_unique(names: Sequence[str], path: Path) -> None:
    if again := sorted(name for name, count in Counter(names).items() if count > 1):
        raise BadInput(f"{path} has the columns {', '.join(map(repr, again))} more than once. Rename all but one of each.")


def _existing_file(path: str | Path) -> Path:
    path = Path(path)
    if path.is_dir():
        raise BadInput(f"{path} is a folder; a CSV or Parquet file is needed")
    if not path.is_file():
        raise no_such_file(path)
    return path


def as_parsed(column: "pd.Series[Any]") -> "pd.Series[Any]":
    """A text column as `read_table` reads other columns: as numbers if all its values are. For a group that is also an input."""
    if pd.api.types.is_numeric_dtype(column):
        return column
    quoted = io.StringIO("x\n" + "\n".join('""' if pd.isna(v) else '"' + str(v).replace('"', '""') + '"' for v in column))
    return pd.read_csv(quoted, skip_blank_lines=False, **EXACT)["x"].set_axis(column.index).rename(column.name)


def is_parquet(path: Path) -> bool:
    """Whether a file is a Parquet file, by its name or its first bytes."""
    if path.suffix.lower() in {".parquet", ".pq"}:
        return True
    with path.open("rb") as file:
        return file.read(4) == b"PAR1"


def is_large(path: str | Path, limit: int | None = None) -> bool:
    """Whether a table is to be added up where it is: a folder, or a file above 256 MiB unless the user has set a limit.

    Returns False for a damaged or missing file, so that reading it reports the reason.
    """
    path = Path(path)
    if not path.is_file():
        return path.is_dir() or is_database(path) or (glob.has_magic(str(path)) and not path.exists())
    if limit is not None or os.environ.get(LIMIT_VARIABLE):
        return False
    if not is_parquet(path):
        return path.stat().st_size > MAX_TABLE_BYTES
    with suppress(Exception):
        return parquet_bytes(*parquet_header(path)) > MAX_TABLE_BYTES
    return False


@dataclass(frozen=True)
class CsvFormat:
    """The dialect of a CSV file, detected from its first lines."""

    path: Path
    encoding: str
    separator: str
    skip: int  # lines before the header, apart from blank ones
    skip_space: bool  # a space after the separator is not part of the value
    raw_names: tuple[str, ...]  # the column names that pandas will use
    names: tuple[str, ...]  # the same without surrounding blanks
    lines_before: int  # all lines before the header

    def options(self, text: Collection[str], words: Collection[str]) -> dict[str, Any]:
        """The arguments of `pd.read_csv` that read the columns of text and words unchanged."""
        pairs = list(zip(self.raw_names, self.names, strict=True))
        return {
            "sep": self.separator,
            "encoding": self.encoding,
            "skiprows": self.skip,
            "skipinitialspace": self.skip_space,
            "dtype": {raw: str for raw, name in pairs if name in text or name in words},
            "keep_default_na": False,
            **EXACT,
            "na_values": {raw: [""] if name in text else MISSING_WORDS for raw, name in pairs},
        }

    def rename(self, frame: pd.DataFrame, text: Collection[str]) -> pd.DataFrame:
        """The frame that pandas read, with clean column names and with decimal commas converted."""
        if not set(map(str, frame.columns)) <= set(self.raw_names):  # otherwise the wrong columns would be read as text
            header = ", ".join(map(repr, self.raw_names[:6]))
            raise BadInput(f"{self.path} has a header that cannot be read: {header}. Write one name per column.")
        clean = dict(zip(self.raw_names, self.names, strict=True))
        frame.columns = [clean[str(c)] or str(c) for c in frame.columns]
        # Excel writes "0,5" where the list separator is a semicolon, also in tab-separated files.
        for column in frame.columns[frame.dtypes.map(pd.api.types.is_string_dtype)] if self.separator != "," else ():
            values = frame[column].dropna().astype(str)
            if column not in text and len(values) and values.str.fullmatch(r"\s*-?\d+(,\d+)?([eE][-+]?\d+)?\s*").all():
                frame[column] = to_numbers(frame[column].str.replace(",", "."))
        return frame


def csv_format(stream: BinaryIO, encoding: str, path: Path) -> CsvFormat:
    """The dialect of the CSV file in a stream, from its first lines. Closes the stream."""
    with stream:
        content = stream.read(HEADER_BYTES + 1)
    if len(content) > HEADER_BYTES:
        content = content[: content.rfind(b"\n") + 1 or content.rfind(b"\r") + 1]  # complete lines
        if not content:
            raise BadInput(
                f"{path} has more than {HEADER_BYTES:,} bytes in its first line, which should hold the names of the columns. Export it "
                "again, with one line per row."
            )
    text = content.decode(encoding, errors="ignore")
    lines = text[:65536].splitlines()
    # Excel may write the separator on a line of its own before the header: "sep=;".
    preamble = lines[0].strip(' "').lower() if lines else ""
    skip = int(preamble.startswith("sep=") and len(preamble) == 5)
    lines_before = next((k for k, line in enumerate(lines) if k >= skip and line.strip()), skip)
    header_line = lines[lines_before] if lines_before < len(lines) else ""
    separator = preamble[-1] if skip else max(",;\t|", key=header_line.count)
    # A space after the separator belongs to it and not to the value, as in `1, "F, x"`, if it follows every separator of the header; or of
    # the rows, if one of them has a quotation mark after it. A single field is not enough: a leading space may be part of an identifier.
    unquoted = [re.sub('"[^"]*"', '""', line) for line in lines[skip : skip + 1000] if separator in line]
    quoted = any(f'{separator} "' in row for row in unquoted[1:])
    skip_space = any(
        bool(some) and all(field.startswith(" ") for line in some for field in line.split(separator)[1:])
        for some in (unquoted[:1], unquoted[1:] if quoted else [])
    )
    whole = io.StringIO(text, newline="")
    for _ in range(skip):
        whole.readline()
    reader = csv.reader(whole, delimiter=separator, skipinitialspace=skip_space)
    header = next((row for row in reader if any(map(str.strip, row))), [])
    first_row = next(filter(None, reader), [])  # pandas also takes a line of separators for a row
    names = [name.strip() for name in header]
    _check_unique([name for name in names if name], path)
    if len(first_row) > len(names):  # pandas would take the first column for row names and shift the rest
        raise BadInput(
            f"{path} has {len(names)} names in the header and {len(first_row)} fields in the first row. "
            "Remove trailing separators, or the row names (row.names = FALSE in R)."
        )
    raw_names = [name or f"Unnamed: {k}" for k, name in enumerate(header)]  # as pandas does
    return CsvFormat(path, encoding, separator, skip, skip_space, tuple(raw_names), tuple(names), lines_before)


def is_gzip(path: Path) -> bool:
    """Whether a file is zipped, by its first bytes."""
    with path.open("rb") as file:
        return file.read(2) == b"\x1f\x8b"


def dialect_of(path: Path) -> CsvFormat:
    """The dialect of a CSV file of any size, of which only the first lines are read; it is not checked whether the rest is UTF-8."""
    opened: Callable[[], BinaryIO] = partial(cast(Any, gzip.open) if is_gzip(path) else open, path, "rb")
    with opened() as stream:
        encoding = encoding_of(io.BytesIO(stream.read(8)), path)
    return csv_format(opened(), encoding or "utf-8-sig", path)


def last_line_too_long(path: Path) -> bool:
    """Whether the last line of a CSV file has more than `HEADER_BYTES`. DuckDB leaves out a last line of more than 32 times that."""
    line = 0
    with cast(BinaryIO, gzip.open(path)) if is_gzip(path) else path.open("rb") as stream:
        if not is_gzip(path):
            stream.seek(max(0, path.stat().st_size - HEADER_BYTES - 1))
        while piece := stream.read(BYTES_DECODED):
            end = max(piece.rfind(b"\n"), piece.rfind(b"\r"))
            line = line + len(piece) if end < 0 else len(piece) - end - 1
            if line > HEADER_BYTES:
                return True
    return False


def encoding_of(stream: BinaryIO, path: Path) -> str | None:
    """The encoding of a text, UTF-16 or UTF-8, or None if it is neither. Reads the stream to its end. Raises `BadInput` for a workbook."""
    head = stream.read(8) or b""
    if head.startswith(WORKBOOKS):
        raise BadInput(f"{path} is an Excel workbook (or another archive), not a CSV file. Save the sheet as CSV first.")
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    stream.seek(0)
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for piece in iter(partial(stream.read, BYTES_DECODED), b""):
            decoder.decode(piece)
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return None
    return "utf-8-sig"
