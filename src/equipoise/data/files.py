"""Files on disk: read a table of any common kind, find a file plain or gzipped, check it, write it whole or not at all."""

import csv
import gzip
import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas as pd

from equipoise.errors import BadInput


def read_table(path: str | Path) -> pd.DataFrame:
    """The rows of a CSV (comma, semicolon or tab; with or without a byte-order mark; .gz too) or Parquet file."""
    path = Path(path)
    if not path.is_file():
        raise BadInput(f"no such file: {path}" if not path.is_dir() else f"{path} is a folder; a CSV or Parquet file is needed")
    if path.stat().st_size == 0:
        raise BadInput(f"{path} is empty")
    try:
        frame = pd.read_parquet(path) if _is_parquet(path) else _read_csv(path)
    except pd.errors.EmptyDataError:
        raise BadInput(f"{path} is empty") from None
    except (OSError, ValueError, EOFError, pd.errors.ParserError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise BadInput(f"{path} cannot be read: {reason}") from error
    if frame.empty:
        raise BadInput(f"{path} has a header and no rows")
    return frame


def _is_parquet(path: Path) -> bool:
    if path.suffix.lower() in {".parquet", ".pq"}:
        return True
    with path.open("rb") as file:
        return file.read(4) == b"PAR1"


def _read_csv(path: Path) -> pd.DataFrame:
    raw = read_bytes(path)
    encoding = "utf-16" if raw[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        header = raw[:65536].decode(encoding, errors="ignore").splitlines()[0]
    except IndexError:
        raise BadInput(f"{path} is empty") from None
    separator = max(",;\t|", key=header.count)
    # Excel writes "0,5" where the list separator is a semicolon.
    decimal = "," if separator == ";" else "."
    from io import BytesIO

    try:
        frame = pd.read_csv(BytesIO(raw), sep=separator, encoding=encoding, skipinitialspace=True, low_memory=False)
    except UnicodeDecodeError:
        encoding = "cp1252"
        frame = pd.read_csv(BytesIO(raw), sep=separator, encoding=encoding, skipinitialspace=True, low_memory=False)
    if decimal == ",":
        for column in frame.columns[frame.dtypes.map(pd.api.types.is_string_dtype)]:
            text = frame[column].dropna().astype(str)
            if len(text) and text.str.fullmatch(r"\s*-?\d+(,\d+)?([eE][-+]?\d+)?\s*").all():
                frame[column] = pd.to_numeric(frame[column].str.replace(",", "."))
    frame.columns = [str(c).strip() for c in frame.columns]
    repeated = [name for name in next(csv.reader([header], delimiter=separator)) if name.strip()]
    twice = sorted({name.strip() for name in repeated if repeated.count(name) > 1})
    if twice:
        raise BadInput(f"{path} has the column {twice[0]!r} more than once; rename one of them")
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
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent)
    except OSError as error:
        raise BadInput(f"cannot write {target}: {error.strerror or error}") from error
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
