"""Files on disk: read a plain or gzipped file within a size limit, hash it, write it atomically."""

import glob
import gzip
import hashlib
import os
import re
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from equipoise.errors import BadInput, did_you_mean

MAX_TABLE_BYTES = 2**28  # 256 MiB once unzipped; reading a CSV takes up to ten times that in memory
LIMIT_VARIABLE = "EQUIPOISE_MAX_TABLE_BYTES"


DATABASE_SCHEMES = r"(postgresql|sqlite|duckdb):/+"


def is_database(place: object) -> bool:
    """Whether a place is a table in a database and not a file; also if it was taken for a path, which joins slashes.

    >>> is_database("postgresql://host/hospital/public.scores"), is_database("scores.csv")
    (True, False)
    """
    return re.match(DATABASE_SCHEMES, str(place)) is not None


def max_table_bytes() -> int:
    """The largest size of a table once unzipped: EQUIPOISE_MAX_TABLE_BYTES, or 256 MiB."""
    text = os.environ.get(LIMIT_VARIABLE, "").strip()
    if not text:
        return MAX_TABLE_BYTES
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise BadInput(f"{LIMIT_VARIABLE} must be a positive number of bytes, such as {4 * 2**30}; got {text!r}")
    return int(text)


def file_too_large(path: Path, size: int | None, limit: int) -> BadInput:
    """The error for a table above the limit; `size` is None if it is not known exactly."""
    needed = f"more than {limit:,}" if size is None else f"{size:,}"
    return BadInput(
        f"{path} needs {needed} bytes once it is unzipped; the limit is {limit:,}. If the file is right, raise the limit: "
        f"data.max_table_bytes, or the environment variable {LIMIT_VARIABLE}."
    )


def no_such_file(path: Path) -> BadInput:
    """The error for a missing file, with the closest name in the folder."""
    folder = path.absolute().parent
    hint = did_you_mean(path.name, [p.name for p in folder.iterdir()], cutoff=0.75) if folder.is_dir() else ""
    return BadInput(f"no such file: {path}.{hint} Check the name and the folder, {folder}.")


def read_bytes(path: Path, limit: int | None = None) -> bytes:
    """The content of a file, unzipped if its first bytes are those of gzip; raises `BadInput` if it is larger than the limit."""
    max_bytes = max_table_bytes() if limit is None else limit
    size = path.stat().st_size
    with path.open("rb") as file:
        if file.read(2) != b"\x1f\x8b":
            if size > max_bytes:
                raise file_too_large(path, size, max_bytes)
            file.seek(0)
            return file.read()
        file.seek(-4, os.SEEK_END)
        stated = int.from_bytes(file.read(4), "little")  # the unzipped size according to the file: avoids unzipping a large one
        if max_bytes < stated < 1032 * size:  # gzip compresses by at most 1032 to 1; a larger size is a damaged number
            raise file_too_large(path, None, max_bytes)
        file.seek(0)
        with gzip.GzipFile(fileobj=file) as unzipped:
            content = unzipped.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise file_too_large(path, None, max_bytes)
    return content


def sha256(content: bytes) -> str:
    """The SHA-256 digest in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def sha256_of(path: Path) -> str:
    """The SHA-256 digest of a file in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def without_folders(argument: str) -> str:
    """A command-line argument with paths shortened to their last part, since folders may contain a person's name.

    >>> without_folders("/home/ada/nets/my_model.py:build"), without_folders("--images=../scans/local/"), without_folders("0.5/0.25")
    ('my_model.py:build', '--images=local', '0.5/0.25')
    """
    option, equals, value = argument.partition("=") if argument.startswith("--") else ("", "", argument)
    path = Path(value)
    is_path = len(path.parts) > 1 and (path.is_absolute() or path.parts[0] in ("..", "~") or Path(path.parts[0]).exists())
    return f"{option}{equals}{path.name}" if is_path else argument


@contextmanager
def atomic_path(path: str | Path, *, follow: bool = True) -> Iterator[Path]:
    """A temporary path next to `path` that replaces it if the block succeeds, and is removed if it fails.

    With `follow`, a symbolic link is kept and the file behind it is replaced, as expected of a path that the user has named. Without it,
    the link itself is replaced: a link in a folder from elsewhere could lead to any file of the user.
    Temporary files that a killed process left behind for the same path are removed; those of running processes are locked and stay.
    """
    target = _target(path) if follow else Path(path).absolute()
    prefix = f".equipoise.{target.name[:100]}."
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        for leftover in list(target.parent.glob(f"{glob.escape(prefix)}????????.tmp")):
            with suppress(OSError):  # another run may have removed it
                if (lock := take_lock(leftover)) is not None:
                    leftover.unlink(missing_ok=True)
                    os.close(lock)
        handle, name = tempfile.mkstemp(prefix=prefix, suffix=".tmp", dir=target.parent)
    except OSError as error:
        raise BadInput(f"cannot write {path}: {error.strerror or error}. Choose another place.") from error
    temporary, lock = Path(name), take_lock(Path(name))
    os.close(handle)
    try:
        with add_path_to_errors(target):
            yield temporary
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
        if lock is not None:
            os.close(lock)


def take_lock(path: Path, *, wait: bool = False) -> int | None:
    """A handle that locks a file or folder until it is closed; None if another process holds the lock or the system has no locks.

    With `wait`, waits until the lock is free.
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
def add_path_to_errors(path: Path) -> Iterator[None]:
    """Adds the path to an `OSError` that lacks it, such as "no space left on device"."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def check_writable(path: str | Path) -> None:
    """Raises `BadInput` if `atomic_path` could not write this path, to be called before a long run. Creates nothing."""
    target = _target(path)
    folder = next(parent for parent in target.parents if parent.exists())
    if not folder.is_dir():
        raise BadInput(f"cannot write {path}: {folder} is a file, not a folder. Choose another place.")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise BadInput(f"cannot write {path}: the folder {folder} may not be written to. Choose another place.")


def _target(path: str | Path) -> Path:
    """The path behind symbolic links; raises `BadInput` if it is a folder or a device such as /dev/null."""
    target = Path(path).resolve()
    if target.exists() and not target.is_file():
        what = "a folder" if target.is_dir() else "no ordinary file"
        raise BadInput(f"cannot write {path}: it is {what}. Name a file.")
    return target


def write_text(path: str | Path, text: str, *, follow: bool = True) -> Path:
    """Writes a text file atomically; `follow` as in `atomic_path`."""
    with atomic_path(path, follow=follow) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return Path(path)


def user_cache() -> Path:
    """The folder of downloaded data sets: EQUIPOISE_CACHE, or `equipoise` in the user's cache folder."""
    override = os.environ.get("EQUIPOISE_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(override) if override else Path(base) / "equipoise"


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Ignores Ctrl-C during the block, while a folder is renamed or a process is started that must ignore it as well."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def folders(folder: Path, labels: Sequence[str]) -> dict[str, Path]:
    """The folder of each label: the folder itself for one label, otherwise one inside it with the label's name.

    >>> [str(place) for place in folders(Path("out"), ["Effusion", "Pleural thickening/old"]).values()]
    ['out/Effusion', 'out/Pleural-thickening-old']
    """
    if len(labels) == 1:
        return {labels[0]: folder}
    places: dict[str, Path] = {}
    for label in labels:
        name = plain = re.sub(r"[^\w.-]+", "-", label).strip("-.") or "label"
        number = 2
        while any(place.name.lower() == name.lower() for place in places.values()):  # some file systems ignore case
            name, number = f"{plain}-{number}", number + 1
        places[label] = folder / name
    return places
