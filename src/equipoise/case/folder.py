"""The folder of a bundle is replaced as a whole: checks before a run, and the swap after it.

Everything is first written to a hidden folder next to it, flushed to disk, and then swapped in with one step: a reader sees the old folder
or the new one, never files of both. A hidden folder is locked while its process runs; one that a killed run left is removed by the next.
"""

import ctypes
import errno
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from equipoise.disk import check_writable, take_lock, uninterrupted
from equipoise.errors import BadInput
from equipoise.models import rank

WEIGHT_FILES = ("repaired.pt2", "repaired.pt", "repaired.safetensors")
FILES: tuple[str, ...] = (*WEIGHT_FILES, "heads.safetensors", "model.onnx", "model.onnx.data", "original.onnx", "predictor.skops")
FILES += ("predictor.joblib", "rule.json", "audit.json", "trace.csv", "report.html", "card.md", "card.xml", "card.fhir.json")
FILES += ("README.txt", "run.json")
CANDIDATES = "candidates"  # the folder inside with what the folder would hold for each candidate
INDEX = "index.json"  # in it: the names of the candidates and their folders
LABELS_SCHEMA = "equipoise.debias.labels"  # of the audit.json above the folders of a multi-label repair
OTHER_BYTES = 2**25  # for everything but the weights
HIDDEN, OLD_SUFFIX = ".equipoise.", ".old"  # prefix of hidden folders, and suffix of a replaced folder


def check_folder(folder: Path, overwrite: bool, needed: int = 0, *, replaced: bool = True) -> None:
    """Raises an error before a long run if writing would fail after it: a folder that is not empty, not writable, or on a full disk.

    Creates nothing. Of several processes that share a job, only the first writes, so only it checks.

    - `folder`, `overwrite`: where the result will be, and whether it may replace that of an earlier run.
    - `needed`: the bytes of the weights.
    - `replaced`: whether the folder is replaced as a whole, which a mount point and the current folder cannot be.
    """
    if rank() > 0:
        return
    target = recover(folder)
    if folder.exists() and not folder.is_dir():
        raise BadInput(f"cannot write {folder}: it is a file. Name a folder.")
    check_writable(folder / "run.json")
    held = sorted(path.name for path in folder.iterdir() if not _is_hidden(path, target)) if folder.is_dir() else []
    if held and not overwrite:
        shown = ", ".join(held[:5]) + (" ..." if len(held) > 5 else "")
        raise BadInput(f"{folder} is not empty ({shown}). Name another folder, or replace the output of an earlier run with --overwrite.")
    if held and replaced and (reason := _why_not_renamed(target)):
        raise BadInput(f"{folder} cannot be replaced as a whole: {reason}. Empty it, or name a folder inside it: {folder / 'repaired'}")
    written = written_by_run(folder)
    if replaced and (foreign := [name for name in held if name in FILES and Path(name) not in written]):
        raise BadInput(
            f"{folder} holds {', '.join(foreign[:5])}, but no run.json of an earlier run that wrote them; they would be lost. "
            "Move them elsewhere, or name another folder."
        )
    free = shutil.disk_usage(next(place for place in (folder.absolute(), *folder.absolute().parents) if place.is_dir())).free
    if free < needed + OTHER_BYTES:
        size = f"{(needed + OTHER_BYTES) / 2**20:,.0f} MiB, and {free / 2**20:,.0f} MiB"
        raise BadInput(f"{folder} needs about {size} are free there. Name another place or make room.")


def _why_not_renamed(target: Path) -> str:
    """The reason why an existing folder cannot be renamed; empty if it can be."""
    if target == Path.cwd() or target in Path.cwd().parents:
        return "it is the current folder, or holds it"
    if target.is_mount():
        return "it is a mount point"
    return "" if os.access(target.parent, os.W_OK | os.X_OK) else f"the folder that it is in, {target.parent}, may not be written to"


def _is_hidden(place: Path, target: Path) -> bool:
    return re.fullmatch(rf"{re.escape(HIDDEN + target.name)}\.[a-z0-9_]{{8}}(\.old)?", place.name) is not None


def written_by_run(folder: Path) -> set[Path]:
    """The files that an earlier run wrote, relative to the folder; empty if there was none."""
    written = {Path(name) for name in FILES} if (folder / "run.json").is_file() else set()
    with suppress(OSError, ValueError, AttributeError):
        overview = json.loads((folder / "audit.json").read_text(encoding="utf-8"))
        if overview.get("schema") == LABELS_SCHEMA:
            labels = [name for name in map(str, overview.get("folders", {}).values()) if Path(name).name == name]
            written |= {Path(name) for name in (*FILES, *labels)} | {Path(label, name) for label in labels for name in FILES}
    if written and (folder / CANDIDATES / INDEX).is_file():
        written |= {path.relative_to(folder) for path in (folder / CANDIDATES, *(folder / CANDIDATES).rglob("*"))}
    return written


@contextmanager
def filling(folder: Path, *, overwrite: bool = True) -> Iterator[Path]:
    """A hidden folder that replaces `folder` when the block succeeds, and is removed when it fails.

    Files of an earlier run are replaced. Other files are carried over. Without `overwrite`, a folder that another run has filled in the
    meantime stays, and the new one is kept under another name.
    """
    target = recover(folder)
    inside = target.is_dir() and bool(_why_not_renamed(target))  # then it is empty, or check_folder has rejected it
    home, place = target if inside else target.parent, folder
    try:
        with ExitStack() as ending:
            home.mkdir(parents=True, exist_ok=True)
            with _locked(home):  # so that no other run removes the new folder before it is locked
                remove_leftovers(target)
                place = Path(tempfile.mkdtemp(prefix=f"{HIDDEN}{target.name}.", dir=home))
                ending.callback(shutil.rmtree, place, ignore_errors=True)
                ending.enter_context(_locked(place))  # the system releases it when this process ends in any way
            yield place
            os.umask(umask := os.umask(0))
            for path in place.rglob("*"):
                path.chmod((0o777 if path.is_dir() else 0o666) & ~umask)  # some libraries write files that only their owner can read
            place.chmod(target.stat().st_mode & 0o7777 if target.is_dir() else 0o777 & ~umask)
            if not inside and target.is_dir():
                _carry_over(target, place)
            _sync(*place.rglob("*"), place)
            with uninterrupted():
                if inside:  # run.json comes last: without it the folder is not read
                    for path in sorted(place.iterdir(), key=lambda path: (path.name == "run.json", path.name == "audit.json", path)):
                        path.rename(target / path.name)
                else:
                    _swap(place, target, folder, overwrite)
                _sync(home)
    except OSError as error:
        named = Path(os.fsdecode(error.filename or ""))
        path = folder / named.relative_to(place) if named.is_relative_to(place) else folder
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        remedy = "Free some space there, or name another place." if full else "Choose another place."
        kept = "What was there is unchanged." if folder.exists() else "Nothing was left behind."
        raise BadInput(f"cannot write {path}: {error.strerror or error}. {kept} {remedy}") from error


@contextmanager
def _locked(place: Path) -> Iterator[None]:
    """Holds the lock of a folder, once it is free."""
    lock = take_lock(place, wait=True)
    try:
        yield
    finally:
        if lock is not None:
            os.close(lock)


def remove_leftovers(target: Path) -> list[Path]:
    """Removes the hidden folders of killed runs and returns their paths; those of running processes stay."""
    removed = []
    for home in (target.parent, target):
        for place in sorted(home.iterdir()) if home.is_dir() and os.access(home, os.R_OK | os.W_OK) else ():
            if _is_hidden(place, target) and place.is_dir() and not place.is_symlink():
                with suppress(OSError):
                    if (lock := take_lock(place)) is not None:
                        shutil.rmtree(place, ignore_errors=True)
                        os.close(lock)
                        removed.append(place)
    return removed


def recover(folder: Path) -> Path:
    """The folder behind links, restored if a killed run had moved it away; if a running process has, waits until it is done.

    Folders are moved away only on systems that cannot exchange two folders in one step.
    """
    try:
        target = folder.resolve()
    except (OSError, RuntimeError) as error:  # depending on the version of Python
        raise BadInput(f"{folder} is a link that leads to itself. Name another folder.") from error
    with suppress(OSError):
        for old in () if target.exists() else [place for place in target.parent.iterdir() if _is_hidden(place, target)]:
            if old.name.endswith(OLD_SUFFIX):
                with suppress(FileNotFoundError), _locked(old.with_name(old.name.removesuffix(OLD_SUFFIX))):
                    pass
                if not target.exists():
                    old.rename(target)
    return target


def _sync(*paths: Path) -> None:
    """Flushes files, and the names in folders, to disk."""
    for path in paths:
        with suppress(PermissionError):
            if not path.is_symlink() and (path.is_file() or path.is_dir()):
                handle = os.open(path, os.O_RDONLY)
                try:
                    os.fsync(handle)
                finally:
                    os.close(handle)


def _carry_over(old: Path, new: Path) -> None:
    """Carries the files that no run wrote over to the new folder: as hard links if possible, otherwise as copies."""
    written = written_by_run(old)
    for path in sorted(old.rglob("*")):
        within = path.relative_to(old)
        target = new / within
        if within in written or any(part.startswith(HIDDEN) for part in within.parts) or target.exists() or target.is_symlink():
            continue
        new.stat()  # raises if another run has moved it away: it must not reappear with only these files
        if path.is_dir() and not path.is_symlink():
            target.mkdir(parents=True, exist_ok=True)
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(path, target, follow_symlinks=False)
        except OSError:
            shutil.copy2(path, target, follow_symlinks=False)


def _swap(place: Path, target: Path, shown: Path, overwrite: bool) -> None:
    """Exchanges the names of the new folder and the old one, which is then removed under its hidden name."""
    try:
        if not target.exists() or (not overwrite and os.name != "nt"):
            place.rename(target)  # replaces an empty folder only
        elif not _exchange(place, target):
            target.rename(old := place.with_name(f"{place.name}{OLD_SUFFIX}"))
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
    if place.is_dir():
        with suppress(FileNotFoundError):  # another run is already replacing it, and carries the files over
            _carry_over(place, target)  # files that were added in between


def _exchange(first: Path, second: Path) -> bool:
    """Exchanges the names of two folders in one step; returns False if the system, or the file system, cannot."""
    try:  # with RENAME_EXCHANGE, which only Linux has; paths are relative to the current folder (AT_FDCWD)
        return bool(ctypes.CDLL(None).renameat2(-100, os.fsencode(first), -100, os.fsencode(second), 2) == 0)
    except (AttributeError, OSError, TypeError):
        return False
