"""Files on disk: read a table of any common kind, find a file plain or gzipped, check it, write it whole or not at all."""

import codecs
import csv
import glob
import gzip
import hashlib
import io
import json
import logging
import os
import re
import signal
import sys
import tempfile
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path
from typing import Any

import pandas as pd

from equipoise.data.attribute import inexact, level_name
from equipoise.errors import BadInput, did_you_mean

log = logging.getLogger(__name__)

WORKBOOKS = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0")  # how .xlsx (a zip archive) and .xls files begin
MISSING_WORDS = frozenset(  # what pandas takes for missing; never in a column of text, where NA is a value like any other
    {"", " ", "NA", "N/A", "n/a", "<NA>", "NULL", "null", "None", "NaN", "nan", "-NaN", "-nan"}
    | {"#N/A", "#N/A N/A", "#NA", "1.#IND", "-1.#IND", "1.#QNAN", "-1.#QNAN"}
)
MAX_TABLE_BYTES = 2**28  # of a table once it is unzipped: 256 MiB; reading a CSV takes up to ten times that in memory
LIMIT_VARIABLE = "EQUIPOISE_MAX_TABLE_BYTES"
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
        raise BadInput(f"no such file: {path}.{_neighbour(path)} Check the name and the folder, {path.absolute().parent}.")
    if path.stat().st_size == 0:
        raise BadInput(f"{path} is empty. Export it again, with a header and rows.")
    most = max_table_bytes() if limit is None else limit
    try:
        frame = _read_parquet(path, {*text, *words}, most) if _is_parquet(path) else _read_csv(path, set(text), set(words), most)
    except pd.errors.EmptyDataError:
        raise BadInput(f"{path} is empty. Export it again, with a header and rows.") from None
    except BadInput:
        raise
    except Exception as error:  # a damaged file makes the libraries that parse it raise almost anything
        reason = str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else type(error).__name__
        raise BadInput(f"{path} cannot be read as CSV or Parquet: {reason}. Correct it or export it again.") from error
    if frame.empty:
        raise BadInput(f"{path} has a header and no rows. Export it again, with rows.")
    return frame


def max_table_bytes() -> int:
    """The largest size of a table once it is unzipped: EQUIPOISE_MAX_TABLE_BYTES, or 256 MiB."""
    told = os.environ.get(LIMIT_VARIABLE, "").strip()
    if not told:
        return MAX_TABLE_BYTES
    if not told.isascii() or not told.isdigit() or int(told) < 1:
        raise BadInput(f"{LIMIT_VARIABLE} must be a positive number of bytes, such as {4 * 2**30}; got {told!r}")
    return int(told)


def as_parsed(column: "pd.Series[Any]") -> "pd.Series[Any]":
    """A column of text as `read_table` would have read it otherwise: numbers where they all are. For a group that is an input as well."""
    if pd.api.types.is_numeric_dtype(column):
        return column
    quoted = io.StringIO("x\n" + "\n".join('""' if pd.isna(v) else '"' + str(v).replace('"', '""') + '"' for v in column))
    return pd.read_csv(quoted, skip_blank_lines=False)["x"].set_axis(column.index).rename(column.name)


def _neighbour(path: Path) -> str:
    folder = path.absolute().parent
    return did_you_mean(path.name, [p.name for p in folder.iterdir()], cutoff=0.75) if folder.is_dir() else ""


def _is_parquet(path: Path) -> bool:
    if path.suffix.lower() in {".parquet", ".pq"}:
        return True
    with path.open("rb") as file:
        return file.read(4) == b"PAR1"


def _too_large(path: Path, size: int | None, limit: int) -> BadInput:
    is_size = f"needs {size:,} bytes" if size is not None else f"needs more than {limit:,} bytes"
    return BadInput(
        f"{path} {is_size} once it is unzipped; the limit is {limit:,}. If the file is what it should be, raise the limit: "
        f"--max-table-bytes, or the environment variable {LIMIT_VARIABLE}."
    )


def _read_parquet(path: Path, text: set[str], limit: int) -> pd.DataFrame:
    """The columns of a Parquet file by their own types: what pandas wrote beside them may be damaged, and is not needed."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        about, schema = file.metadata, file.schema_arrow
    groups = [about.row_group(k) for k in range(about.num_row_groups)]
    stored = sum(group.column(k).total_uncompressed_size for group in groups for k in range(group.num_columns))
    # A row takes 8 bytes in memory however well a column of one value is packed in the file.
    size = max(stored, 8 * about.num_rows * max(1, about.num_columns))
    if size > limit:
        raise _too_large(path, size, limit)
    twice = sorted({name for name in schema.names if schema.names.count(name) > 1})
    if twice:
        raise BadInput(f"{path} has the columns {', '.join(map(repr, twice))} more than once. Rename all but one of each.")
    strings = [field.name for field in schema if pa.types.is_string(field.type) or pa.types.is_large_string(field.type)]
    with pq.ParquetFile(path, read_dictionary=strings) as file:  # a long text that is there a million times is kept once
        table = file.read()
    if table.num_rows != about.num_rows:
        raise BadInput(f"{path} holds {table.num_rows:,} rows and says that it has {about.num_rows:,}. Export it again.")
    columns: dict[str, Any] = {}
    for name, values in zip(table.column_names, table.columns, strict=True):
        if re.fullmatch(r"__index_level_\d+__", name):
            continue
        kept = name in text
        columns[name] = _texts(values, name, path) if kept else _parsed(values)
    index = {name: [str(k) for k in values] if name in text else values for name, values in _range_index(schema.metadata, table.num_rows)}
    return pd.DataFrame({**index, **columns}, index=range(table.num_rows))


def _parsed(values: Any) -> "pd.Series[Any]":
    """An Arrow column as pandas has it; text as objects, of which equal ones are one."""
    import pyarrow as pa

    if not pa.types.is_dictionary(values.type):
        return values.to_pandas()
    if pa.types.is_string(values.type.value_type) or pa.types.is_large_string(values.type.value_type):
        return values.to_pandas().astype(object)
    return values.cast(values.type.value_type).to_pandas()


def _texts(values: Any, name: str, path: Path) -> "pd.Series[Any]":
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
    """The named index that pandas keeps as a range beside the columns; nothing where there is none, or it cannot be read."""
    with suppress(ValueError, TypeError, KeyError, AttributeError):
        for entry in json.loads(metadata[b"pandas"])["index_columns"]:
            if isinstance(entry, dict) and entry["kind"] == "range" and isinstance(entry["name"], str):
                found = range(entry["start"], entry["stop"], entry["step"])
                return [(entry["name"], list(found))] if len(found) == rows else []
    return []


def _read_csv(path: Path, text: set[str], words: set[str], limit: int) -> pd.DataFrame:
    raw = read_bytes(path, limit)
    if raw.startswith(WORKBOOKS):
        raise BadInput(f"{path} is an Excel workbook (or another archive), not a CSV file. Save the sheet as CSV first.")
    encoding = _encoding(raw, path)
    lines = raw[:65536].decode(encoding, errors="ignore").splitlines()
    # Excel may write the separator on a line of its own before the header: "sep=;".
    told = lines[0].strip(' "').lower() if lines else ""
    skip = int(told.startswith("sep=") and len(told) == 5)
    header = next(filter(str.strip, lines[skip:]), "")
    separator = told[-1] if skip else max(",;\t|", key=header.count)
    spaced = _spaced(lines[skip:], separator)
    with io.TextIOWrapper(BytesIO(raw), encoding=encoding, newline="") as whole:
        for _ in range(skip):
            whole.readline()
        reader = csv.reader(whole, delimiter=separator, skipinitialspace=spaced)
        rows = (row for row in reader if any(map(str.strip, row)))
        written = next(rows, [])
        first = next(filter(None, reader), [])  # even of separators alone, which pandas takes for a row too
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
    frame = pd.read_csv(
        BytesIO(raw),
        sep=separator,
        encoding=encoding,
        skiprows=skip,
        skipinitialspace=spaced,
        low_memory=False,
        dtype={raw_name: str for raw_name, name in zip(called, names, strict=True) if name in text | words},
        keep_default_na=False,
        na_values={raw_name: [""] if name in text else MISSING_WORDS for raw_name, name in zip(called, names, strict=True)},
    )
    if [str(c) for c in frame.columns] != called:  # the columns of text would not be the ones that were named
        raise BadInput(f"{path} has a header that cannot be read: {', '.join(map(repr, written[:6]))}. Write one name per column.")
    frame.columns = [name or raw_name for raw_name, name in zip(called, names, strict=True)]
    return _with_decimal_commas(frame, text | words) if separator == ";" else frame


def _spaced(lines: list[str], separator: str) -> bool:
    """Whether the fields are separated by a separator and a blank: then the blank is no part of a value.

    So it is where every name of the header but the first begins with one, or where a quotation mark comes after one.
    """
    rows = [row for row in csv.reader(lines[:1000], delimiter=separator) if row]
    if not rows:
        return False
    if len(rows[0]) > 1 and all(name.startswith(" ") for name in rows[0][1:]):
        return True
    return any(field.startswith(" ") and field.lstrip(" ").startswith('"') for row in rows for field in row)


def _encoding(raw: bytes, path: Path) -> str:
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return "utf-16"
    decoder, view = codecs.getincrementaldecoder("utf-8")(), memoryview(raw)
    try:
        for start in range(0, len(raw), CHUNK):
            decoder.decode(view[start : start + CHUNK])
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        _check_windows(raw, path)
        log.warning(
            "%s is not UTF-8 and was read as Western European text (Windows-1252), which changes names in other alphabets. If they look "
            "wrong, export it as UTF-8.",
            path.name,
        )
        return "cp1252"
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
    """Excel writes "0,5" where the list separator is a semicolon."""
    for column in frame.columns[frame.dtypes.map(pd.api.types.is_string_dtype)]:
        values = frame[column].dropna().astype(str)
        if column not in text and len(values) and values.str.fullmatch(r"\s*-?\d+(,\d+)?([eE][-+]?\d+)?\s*").all():
            frame[column] = pd.to_numeric(frame[column].str.replace(",", "."))
    return frame


def read_bytes(path: Path, limit: int | None = None) -> bytes:
    """The content of a file, unzipped if it is gzipped (by its first bytes, not its name); an error where it is larger than the limit."""
    most = max_table_bytes() if limit is None else limit
    size = path.stat().st_size
    with path.open("rb") as file:
        if file.read(2) != b"\x1f\x8b":
            if size > most:
                raise _too_large(path, size, most)
            file.seek(0)
            return file.read()
        file.seek(-4, os.SEEK_END)
        told = int.from_bytes(file.read(4), "little")  # what the file itself says of its length, which spares unzipping to see it
        if most < told < 1032 * size:  # no honest file is packed more tightly, so a damaged length is not believed
            raise _too_large(path, None, most)
        file.seek(0)
        with gzip.GzipFile(fileobj=file) as unzipped:
            content = unzipped.read(most + 1)
    if len(content) > most:
        raise _too_large(path, None, most)
    return content


def locate(folder: Path, name: str) -> Path | None:
    """The file of that name in the folder, plain or with .gz behind it; None if neither is there."""
    for candidate in (folder / name, folder / f"{name}.gz"):
        if candidate.is_file():
            return candidate
    return None


def sha256(content: bytes) -> str:
    """The SHA-256 digest in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


@contextmanager
def replacing(path: str | Path, *, follow: bool = True) -> Iterator[Path]:
    """A temporary path beside `path` that takes its place when the block ends well, and vanishes when it does not.

    `follow` says that a link stays one and the file behind it is replaced, as fits a path that the user has named; a link that lies in a
    folder from elsewhere could lead to any file of the user's and is itself replaced.
    One that a killed process left behind for the same path is removed; that of a running process, which has a lock on it, is not.
    """
    target = _target(path) if follow else Path(path).absolute()
    start = f".equipoise.{target.name[:100]}."
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        for leftover in list(target.parent.glob(f"{glob.escape(start)}????????.tmp")):
            if (lock := _locked(leftover)) is not None:
                leftover.unlink(missing_ok=True)
                os.close(lock)
        handle, name = tempfile.mkstemp(prefix=start, suffix=".tmp", dir=target.parent)
    except OSError as error:
        raise BadInput(f"cannot write {path}: {error.strerror or error}. Choose another place.") from error
    temporary, held = Path(name), _locked(Path(name))
    os.close(handle)
    try:
        with naming(target):
            yield temporary
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
        if held is not None:
            os.close(held)


def _locked(path: Path) -> int | None:
    """A handle with a lock on a file, which the system lifts when the process ends; None where another holds it or there are no locks."""
    if sys.platform == "win32":
        return None
    import fcntl

    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return None
    return handle


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Adds the file to an error of the system that lacks it, as those of writing do: "no space left" names the file."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def check_writable(path: str | Path) -> None:
    """Raises before a long run what `replacing` would raise after it. Makes nothing."""
    target = _target(path)
    folder = next(parent for parent in target.parents if parent.exists())
    if not folder.is_dir():
        raise BadInput(f"cannot write {path}: {folder} is a file, not a folder. Choose another place.")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise BadInput(f"cannot write {path}: the folder {folder} may not be written to. Choose another place.")


def _target(path: str | Path) -> Path:
    """Where the content goes: behind a link, and never in place of a folder or a device such as /dev/null."""
    target = Path(path).resolve()
    if target.exists() and not target.is_file():
        what = "a folder" if target.is_dir() else "no ordinary file"
        raise BadInput(f"cannot write {path}: it is {what}. Name a file.")
    return target


def write_text(path: str | Path, text: str, *, follow: bool = True) -> Path:
    """Writes a text file whole or not at all; `follow` as in `replacing`."""
    with replacing(path, follow=follow) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return Path(path)


def user_cache() -> Path:
    """Where downloaded data sets are kept: EQUIPOISE_CACHE, or the user's cache folder."""
    override = os.environ.get("EQUIPOISE_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(override) if override else Path(base) / "equipoise"


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Without Ctrl-C for a moment: while a folder is renamed, or a process starts, which then never hears it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
