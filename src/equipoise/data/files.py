"""Files on disk: find one plain or gzipped, check it, write it whole or not at all."""

import glob
import gzip
import hashlib
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from equipoise.errors import BadInput, did_you_mean

MAX_TABLE_BYTES = 2**28  # of a table once it is unzipped: 256 MiB; reading a CSV takes up to ten times that in memory
LIMIT_VARIABLE = "EQUIPOISE_MAX_TABLE_BYTES"


def max_table_bytes() -> int:
    """The largest size of a table once it is unzipped: EQUIPOISE_MAX_TABLE_BYTES, or 256 MiB."""
    told = os.environ.get(LIMIT_VARIABLE, "").strip()
    if not told:
        return MAX_TABLE_BYTES
    if not told.isascii() or not told.isdigit() or int(told) < 1:
        raise BadInput(f"{LIMIT_VARIABLE} must be a positive number of bytes, such as {4 * 2**30}; got {told!r}")
    return int(told)


def too_large(path: Path, size: int | None, limit: int) -> BadInput:
    is_size = f"needs {size:,} bytes" if size is not None else f"needs more than {limit:,} bytes"
    return BadInput(
        f"{path} {is_size} once it is unzipped; the limit is {limit:,}. If the file is right, raise the limit: "
        f"--max-table-bytes, or the environment variable {LIMIT_VARIABLE}."
    )


def no_such_file(path: Path) -> BadInput:
    """The error where there is no file of this name."""
    return BadInput(f"no such file: {path}.{_neighbour(path)} Check the name and the folder, {path.absolute().parent}.")


def _neighbour(path: Path) -> str:
    folder = path.absolute().parent
    return did_you_mean(path.name, [p.name for p in folder.iterdir()], cutoff=0.75) if folder.is_dir() else ""


def read_bytes(path: Path, limit: int | None = None) -> bytes:
    """The content of a file, unzipped if it is gzipped (by its first bytes, not its name); an error where it is larger than the limit."""
    most = max_table_bytes() if limit is None else limit
    size = path.stat().st_size
    with path.open("rb") as file:
        if file.read(2) != b"\x1f\x8b":
            if size > most:
                raise too_large(path, size, most)
            file.seek(0)
            return file.read()
        file.seek(-4, os.SEEK_END)
        told = int.from_bytes(file.read(4), "little")  # what the file itself says of its length, which spares unzipping to see it
        if most < told < 1032 * size:  # no honest file is packed more tightly, so a damaged length is not believed
            raise too_large(path, None, most)
        file.seek(0)
        with gzip.GzipFile(fileobj=file) as unzipped:
            content = unzipped.read(most + 1)
    if len(content) > most:
        raise too_large(path, None, most)
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


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def without_folders(argument: str) -> str:
    """A command-line argument; of a path only its last part, since folders may contain a person's name.

    >>> without_folders("/home/ada/nets/my_model.py:build"), without_folders("--images=../scans/local/"), without_folders("0.5/0.25")
    ('my_model.py:build', '--images=local', '0.5/0.25')
    """
    option, equals, value = argument.partition("=") if argument.startswith("--") else ("", "", argument)
    path = Path(value)
    is_path = len(path.parts) > 1 and (path.is_absolute() or path.parts[0] in ("..", "~") or Path(path.parts[0]).exists())
    return f"{option}{equals}{path.name}" if is_path else argument


@contextmanager
def replacing(path: str | Path, *, follow: bool = True) -> Iterator[Path]:
    """A temporary path next to `path` that takes its place when the block ends well, and vanishes when it does not.

    `follow` says that a link stays one and the file behind it is replaced, as fits a path that the user has named; a link that lies in a
    folder from elsewhere could lead to any file of the user's and is itself replaced.
    One that a killed process left behind for the same path is removed; that of a running process, which has a lock on it, is not.
    """
    target = _target(path) if follow else Path(path).absolute()
    start = f".equipoise.{target.name[:100]}."
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        for leftover in list(target.parent.glob(f"{glob.escape(start)}????????.tmp")):
            with suppress(OSError):  # another run may have removed it
                if (lock := take_lock(leftover)) is not None:
                    leftover.unlink(missing_ok=True)
                    os.close(lock)
        handle, name = tempfile.mkstemp(prefix=start, suffix=".tmp", dir=target.parent)
    except OSError as error:
        raise BadInput(f"cannot write {path}: {error.strerror or error}. Choose another place.") from error
    temporary, held = Path(name), take_lock(Path(name))
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


def take_lock(path: Path, *, wait: bool = False) -> int | None:
    """A handle that locks a file or folder until it is closed or the process ends; None where another has it or there are no locks.

    `wait` is for a lock that another process may hold briefly.
    """
    if sys.platform == "win32":
        return None
    import fcntl

    handle = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
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
