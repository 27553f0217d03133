"""The folder of a bundle: its files, the checks before a run, and the replacement of the whole folder in one step.

Everything is first written to a hidden folder next to it, flushed to disk, and then swapped in with one step: a reader sees the old folder
or the new one, never files of both. A hidden folder left by a killed run is removed by the next run; one that is locked by a running
process is not.
"""

import ctypes
import errno
import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from equipoise.data import add_path_to_errors, check_writable, take_lock, uninterrupted
from equipoise.errors import BadInput
from equipoise.models import HEADS, ORIGINAL_ONNX, rank

WEIGHT_FILES = ("repaired.pt2", "repaired.pt", "repaired.safetensors")
PAGES = ("report.html", "card.md", "card.xml", "README.txt")
FILES: tuple[str, ...] = (*WEIGHT_FILES, HEADS, "model.onnx", "model.onnx.data", ORIGINAL_ONNX, "predictor.skops", "predictor.joblib")
FILES += ("rule.json", "audit.json", "trace.csv", *PAGES, "run.json")  # all files of a bundle
LABELS_SCHEMA = "equipoise.debias.labels"  # of the audit.json above the folders of a multi-label repair
ROOM = 2**25  # bytes for everything but the weights
HIDDEN, OLD = ".equipoise.", ".old"  # prefix of hidden folders, and suffix of a replaced folder
WAIT = 5.0  # seconds that a reader waits for a run that is replacing the folder
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_EXCHANGE, _HERE = 2, -100  # RENAME_EXCHANGE and AT_FDCWD of Linux


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


def check_folder(folder: Path, overwrite: bool, needed: int = 0, *, replaced: bool = True) -> None:
    """Raises an error before a long run if writing would fail after it: a folder that is not empty, not writable, or on a full disk.

    Creates nothing. With `replaced` the folder must also be one that can be replaced as a whole: no mount point, not the current folder.
    Of several processes that share a job, only the first writes, so only it checks.
    """
    if rank() > 0:
        return
    recover(folder)
    if folder.exists() and not folder.is_dir():
        raise BadInput(f"cannot write {folder}: it is a file. Name a folder.")
    check_writable(folder / "run.json")
    held = sorted(path.name for path in folder.iterdir() if not _hidden(path.name, folder)) if folder.is_dir() else []
    if held and not overwrite:
        raise BadInput(
            f"{folder} is not empty ({_shortened(held)}). Name another folder, or replace what an earlier run wrote there with --overwrite."
        )
    if held and replaced:
        if reason := _why_not_renamed(folder):
            raise BadInput(f"{folder} cannot be replaced as a whole: {reason}. Empty it, or name a folder inside it: {folder / 'repaired'}")
        foreign = sorted(path.name for path in folder.iterdir() if path.name in FILES and Path(path.name) not in _written_by_run(folder))
        if foreign:
            raise BadInput(
                f"{folder} holds {_shortened(foreign)}, but no run.json of an earlier run that wrote them; they would be lost. "
                "Move them elsewhere, or name another folder."
            )
    existing = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.is_dir())
    free = shutil.disk_usage(existing).free
    if free < needed + ROOM:
        raise BadInput(
            f"{folder} needs about {(needed + ROOM) / 2**20:,.0f} MiB, and {free / 2**20:,.0f} MiB are free there. "
            "Name another place or make room."
        )


def _shortened(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (" ..." if len(names) > 5 else "")


def _why_not_renamed(folder: Path) -> str:
    """The reason why an existing folder cannot be renamed; empty if it can be."""
    target = folder.resolve()
    if target == Path.cwd() or target in Path.cwd().parents:
        return "it is the current folder, or holds it"
    if target.is_mount():
        return "it is a mount point"
    return "" if os.access(target.parent, os.W_OK | os.X_OK) else f"the folder that it is in, {target.parent}, may not be written to"


@contextmanager
def filling(folder: Path, *, overwrite: bool = True) -> Iterator[Path]:
    """A hidden folder that replaces `folder` when the block succeeds, and is removed when it fails.

    Files of an earlier run are replaced. Other files are carried over. Without `overwrite`, a folder that another run has filled in the
    meantime stays, and the new one is kept under another name.
    """
    recover(folder)
    target = folder.resolve()
    inside = target.is_dir() and bool(_why_not_renamed(target))  # then it is empty, or check_folder has rejected it
    home = target if inside else target.parent
    lock = None
    try:
        home.mkdir(parents=True, exist_ok=True)
        remove_leftovers(target)
        place, lock = _hidden_folder(home, target.name)
    except OSError as error:
        raise BadInput(f"cannot write {folder}: {error.strerror or error}. Choose another place.") from error
    try:
        yield place
        _finish(place, target)
        if inside:
            _move_files(place, target)
        else:
            _swap(place, target, folder, overwrite)
    except OSError as error:
        raise _cannot_write(folder, place, error) from error
    finally:
        shutil.rmtree(place, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def _hidden_folder(home: Path, name: str) -> tuple[Path, int | None]:
    """A new folder with a lock on it, which the system releases when this process ends in any way."""
    while True:
        place = Path(tempfile.mkdtemp(prefix=f"{HIDDEN}{name}.", dir=home))
        lock = None
        with suppress(FileNotFoundError):  # another run removed it as a leftover just before it was locked
            lock = take_lock(place, wait=True)
            if place.stat().st_ino == (place.stat() if lock is None else os.fstat(lock)).st_ino:
                return place, lock
        if lock is not None:
            os.close(lock)


def _hidden(name: str, folder: Path) -> bool:
    """Whether a name is that of a hidden folder for this folder."""
    return re.fullmatch(rf"{re.escape(HIDDEN)}{re.escape(folder.resolve().name)}\.[a-z0-9_]{{8}}(\.old)?", name) is not None


def remove_leftovers(folder: Path) -> list[Path]:
    """Removes the hidden folders of killed runs and returns their paths; those of running processes stay."""
    target, removed = folder.resolve(), []
    for home in (target.parent, target):
        for place in sorted(home.iterdir()) if home.is_dir() and os.access(home, os.R_OK | os.W_OK) else ():
            if not _hidden(place.name, target) or not place.is_dir() or place.is_symlink():
                continue
            with suppress(OSError):
                if (lock := take_lock(place)) is not None:
                    shutil.rmtree(place, ignore_errors=True)
                    os.close(lock)
                    removed.append(place)
    return removed


def recover(folder: Path) -> None:
    """Restores a folder that a run had moved away when it was killed; waits briefly if a running process has moved it away.

    Folders are moved away only on systems that cannot exchange two folders in one step.
    """
    try:
        target = folder.resolve()
    except (OSError, RuntimeError) as error:  # depending on the version of Python
        raise BadInput(f"{folder} is a link that leads to itself. Name another folder.") from error
    deadline = time.monotonic() + WAIT
    while not target.exists() and target.parent.is_dir():
        with suppress(OSError):
            moved = [place for place in target.parent.iterdir() if _hidden(place.name, target) and place.name.endswith(OLD)]
            if not moved:
                return
            new = moved[0].with_name(moved[0].name.removesuffix(OLD))
            lock = take_lock(new) if new.is_dir() else None
            if lock is not None or not new.is_dir():
                moved[0].rename(target)
            if lock is not None:
                os.close(lock)
        if time.monotonic() > deadline:
            return
        time.sleep(0.05)


def _finish(place: Path, target: Path) -> None:
    """Sets the usual modes of files, flushes everything to disk, and carries over the files that no run wrote."""
    umask = os.umask(0)
    os.umask(umask)
    for folder, _, names in os.walk(place):
        for name in names:
            path = Path(folder, name)
            path.chmod(0o666 & ~umask)
            with add_path_to_errors(path), path.open("rb") as file:
                os.fsync(file.fileno())
        Path(folder).chmod(0o777 & ~umask)
    if target.is_dir():
        _carry_over(target, place)
        place.chmod(target.stat().st_mode & 0o7777)
    for folder, _, _ in os.walk(place):
        _sync(Path(folder))


def _sync(folder: Path) -> None:
    """Flushes the names in a folder to disk, if the system can open a folder."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _written_by_run(folder: Path) -> set[Path]:
    """The files that an earlier run wrote, relative to the folder; empty if there was none."""
    written = {Path(name) for name in FILES} if (folder / "run.json").is_file() else set()
    with suppress(OSError, ValueError, AttributeError):
        overview = json.loads((folder / "audit.json").read_text(encoding="utf-8"))
        if overview.get("schema") == LABELS_SCHEMA:
            labels = [name for name in map(str, overview.get("folders", {}).values()) if Path(name).name == name]
            written |= {Path(name) for name in (*FILES, *labels)} | {Path(label, name) for label in labels for name in FILES}
    return written


def folder_to_name(folder: Path) -> str:
    """Advice to name one of the bundles in a folder that holds one per label, or per class; empty if it holds none."""
    bundles = sorted(place.parent.name for place in folder.glob("*/run.json"))
    if not bundles:
        return ""
    kind = None
    with suppress(OSError, ValueError, AttributeError):
        kind = json.loads((folder / "audit.json").read_text(encoding="utf-8")).get("kind")
    advice = "one folder per label. Name one of them"
    if kind == "classes":
        advice = "one folder per class, each of which decides between that class and the others. Name that of the class that you need"
    return f"It holds {advice}: {', '.join(str(folder / name) for name in bundles)}."


def _carry_over(old: Path, new: Path) -> None:
    """Carries the files that no run wrote over to the new folder: as hard links if possible, otherwise as copies."""
    written = _written_by_run(old)
    for place, folder_names, names in os.walk(old):
        links = [name for name in folder_names if Path(place, name).is_symlink()]
        within = Path(place).relative_to(old)
        folder_names[:] = [name for name in folder_names if name not in links and not name.startswith(HIDDEN)]
        for name in [*names, *links]:
            target = new / within / name
            if within / name in written or target.exists() or target.is_symlink():
                continue
            if within != Path():
                new.stat()  # raises if another run has moved it away: it must not reappear with only these files
                target.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(Path(place, name), target, follow_symlinks=False)
            except OSError:
                shutil.copy2(Path(place, name), target, follow_symlinks=False)
        if not names and not folder_names and within not in written and within != Path():
            (new / within).mkdir(parents=True, exist_ok=True)


def _swap(place: Path, target: Path, shown: Path, overwrite: bool) -> None:
    """Exchanges the names of the new folder and the old one, which is then removed under its hidden name."""
    with uninterrupted():
        try:
            if not target.exists() or (not overwrite and sys.platform != "win32"):
                place.rename(target)  # replaces an empty folder only
            elif not _exchange(place, target):
                old = place.with_name(f"{place.name}{OLD}")
                target.rename(old)
                place.rename(target)
                with suppress(OSError):  # the new folder is in place; the next run removes the old one
                    old.rename(place)
        except OSError as error:
            if not place.is_dir():
                raise
            spare = Path(tempfile.mkdtemp(prefix=f"{target.name}.new-", dir=target.parent))
            place.rename(spare)
            raise BadInput(
                f"cannot replace {shown}: {error.strerror or error}. The new folder is complete and is {spare}; rename it by hand."
            ) from error
        _sync(target.parent)
        if place.is_dir():
            with suppress(FileNotFoundError):  # another run is already replacing it, and carries the files over
                _carry_over(place, target)  # files that were added in between


def _exchange(first: Path, second: Path) -> bool:
    """Exchanges the names of two folders in one step; returns False if the system cannot."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):
        return False
    if rename(_HERE, os.fsencode(first), _HERE, os.fsencode(second), _EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EPERM):  # not supported by the file system
        return False
    raise OSError(code, os.strerror(code), str(second))


def _move_files(place: Path, target: Path) -> None:
    """Moves the files into an empty folder that cannot be renamed. run.json comes last: without it the folder is not read."""
    with uninterrupted():
        for name in sorted((path.name for path in place.iterdir()), key=lambda name: (name == "run.json", name == "audit.json", name)):
            (place / name).rename(target / name)
        _sync(target)


def _cannot_write(folder: Path, place: Path, error: OSError) -> BadInput:
    remedy = "Free some space there, or name another place." if error.errno in FULL else "Choose another place."
    path = folder
    if error.filename is not None and Path(os.fsdecode(error.filename)).is_relative_to(place):
        path = folder / Path(os.fsdecode(error.filename)).relative_to(place)
    kept = "What was there is unchanged." if folder.exists() else "Nothing was left behind."
    return BadInput(f"cannot write {path}: {error.strerror or error}. {kept} {remedy}")
