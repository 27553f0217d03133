"""Files on disk: read a table of any common kind, find a file plain or gzipped, check it, write it whole or not at all."""

import csv
import gzip
import hashlib
import os
import signal
import tempfile
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

import pandas as pd

from equipoise.errors import BadInput, did_you_mean

WORKBOOKS = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0")  # how .xlsx (a zip archive) and .xls files begin


def read_table(path: str | Path) -> pd.DataFrame:
    """The rows of a CSV (comma, semicolon or tab; with or without a byte-order mark; .gz too) or Parquet file."""
    path = Path(path)
    if path.is_dir():
        raise BadInput(f"{path} is a folder; a CSV or Parquet file is needed")
    if not path.is_file():
        raise BadInput(f"no such file: {path}.{_neighbour(path)} Check the name and the folder, {path.absolute().parent}.")
    if path.stat().st_size == 0:
        raise BadInput(f"{path} is empty. Export it again, with a header and rows.")
    try:
        frame = _read_parquet(path) if _is_parquet(path) else _read_csv(path)
    except pd.errors.EmptyDataError:
        raise BadInput(f"{path} is empty. Export it again, with a header and rows.") from None
    except BadInput:
        raise
    except (OSError, ValueError, EOFError, zlib.error, csv.Error, pd.errors.ParserError) as error:
        reason = str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else type(error).__name__
        raise BadInput(f"{path} cannot be read as CSV or Parquet: {reason}. Mend it or export it again.") from error
    if frame.empty:
        raise BadInput(f"{path} has a header and no rows. Export it again, with rows.")
    return frame


def _neighbour(path: Path) -> str:
    folder = path.absolute().parent
    return did_you_mean(path.name, [p.name for p in folder.iterdir()], cutoff=0.75) if folder.is_dir() else ""


def _is_parquet(path: Path) -> bool:
    if path.suffix.lower() in {".parquet", ".pq"}:
        return True
    with path.open("rb") as file:
        return file.read(4) == b"PAR1"


def _read_parquet(path: Path) -> pd.DataFrame:
    frame = pd.read_parquet(path)
    # pandas keeps a named index, such as the patient ids, apart from the columns.
    return frame.reset_index() if any(frame.index.names) else frame


def _read_csv(path: Path) -> pd.DataFrame:
    raw = read_bytes(path)
    if raw.startswith(WORKBOOKS):
        raise BadInput(f"{path} is an Excel workbook (or another archive), not a CSV file. Save the sheet as CSV first.")
    encoding = _encoding(raw)
    lines = raw[:65536].decode(encoding, errors="ignore").splitlines()
    # Excel may write the separator on a line of its own before the header: "sep=;".
    told = lines[0].strip(' "').lower() if lines else ""
    skip = int(told.startswith("sep=") and len(told) == 5)
    header = next(filter(str.strip, lines[skip:]), "")
    separator = told[-1] if skip else max(",;\t|", key=header.count)
    rows = filter(None, csv.reader(lines[skip:], delimiter=separator, skipinitialspace=True))
    names, first = [name.strip() for name in next(rows, [])], next(rows, [])
    twice = sorted({name for name in names if name and names.count(name) > 1})
    if twice:
        raise BadInput(f"{path} has the columns {', '.join(map(repr, twice))} more than once. Rename all but one of each.")
    if len(first) > len(names):  # pandas would take the first column for row names and shift the rest
        raise BadInput(
            f"{path} has {len(names)} names in the header and {len(first)} fields in the first row. "
            "Remove trailing separators, or the row names (row.names = FALSE in R)."
        )
    frame = pd.read_csv(BytesIO(raw), sep=separator, encoding=encoding, skiprows=skip, skipinitialspace=True, low_memory=False)
    frame.columns = [str(c).strip() for c in frame.columns]
    return _with_decimal_commas(frame) if separator == ";" else frame


def _encoding(raw: bytes) -> str:
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return "utf-16"
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError:
        return "cp1252"
    return "utf-8-sig"


def _with_decimal_commas(frame: pd.DataFrame) -> pd.DataFrame:
    """Excel writes "0,5" where the list separator is a semicolon."""
    for column in frame.columns[frame.dtypes.map(pd.api.types.is_string_dtype)]:
        text = frame[column].dropna().astype(str)
        if len(text) and text.str.fullmatch(r"\s*-?\d+(,\d+)?([eE][-+]?\d+)?\s*").all():
            frame[column] = pd.to_numeric(frame[column].str.replace(",", "."))
    return frame


def read_bytes(path: Path) -> bytes:
    """The content of a file, unzipped if it is gzipped (by its first bytes, not its name)."""
    raw = path.read_bytes()
    return gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw


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
def replacing(path: str | Path) -> Iterator[Path]:
    """A temporary path beside `path` that takes its place when the block ends well, and vanishes when it does not."""
    target = _target(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=".equipoise.", suffix=".tmp", dir=target.parent)
    except OSError as error:
        raise BadInput(f"cannot write {path}: {error.strerror or error}. Choose another place.") from error
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


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


def write_text(path: str | Path, text: str) -> Path:
    """Writes a text file whole or not at all."""
    with replacing(path) as temporary:
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
