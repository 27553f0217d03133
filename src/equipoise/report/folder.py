"""The folder itself: what may lie in it, whether it will do, and how it is filled.

Everything is written into a hidden folder first and moved at the end, so that an interruption leaves nothing half-written.
"""

import errno
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from equipoise.data.files import check_writable, uninterrupted
from equipoise.errors import BadInput
from equipoise.models.export import HEADS

WEIGHTS = ("repaired.pt2", "repaired.pt", "repaired.safetensors")  # in the order in which `apply` looks for them
PAGES = ("report.html", "card.md", "card.xml", "README.txt")
FILES = (
    *WEIGHTS,
    HEADS,
    "model.onnx",
    "model.onnx.data",
    "rule.json",
    "audit.json",
    "trace.csv",
    *PAGES,
    "run.json",
)  # where the last is, all are
ROOM = 2**25  # bytes for everything but the weights


def folders(folder: Path, labels: Sequence[str]) -> dict[str, Path]:
    """The folder of each label: the folder itself where there is one label, one inside it with the label's name otherwise.

    >>> [str(place) for place in folders(Path("out"), ["Effusion", "Pleural thickening/old"]).values()]
    ['out/Effusion', 'out/Pleural-thickening-old']
    """
    if len(labels) == 1:
        return {labels[0]: folder}
    found: dict[str, Path] = {}
    for label in labels:
        name = plain = re.sub(r"[^\w.-]+", "-", label).strip("-.") or "label"
        again = 2
        while any(place.name.lower() == name.lower() for place in found.values()):  # some disks tell no capitals
            name, again = f"{plain}-{again}", again + 1
        found[label] = folder / name
    return found


def check_folder(folder: Path, overwrite: bool, needed: int = 0) -> None:
    """Raises before a long run what would go wrong after it: a folder that is not empty, not writable, or on a full disk. Makes nothing."""
    if folder.exists() and not folder.is_dir():
        raise BadInput(f"cannot write {folder}: it is a file. Name a folder.")
    check_writable(folder / "run.json")
    held = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    if held and not overwrite:
        shown = ", ".join(held[:5]) + (" ..." if len(held) > 5 else "")
        raise BadInput(
            f"{folder} is not empty ({shown}). Name another folder, or replace what an earlier run wrote there with --overwrite."
        )
    there = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.is_dir())
    free = shutil.disk_usage(there).free
    if free < needed + ROOM:
        raise BadInput(
            f"{folder} needs about {(needed + ROOM) / 2**20:,.0f} MiB, and {free / 2**20:,.0f} MiB are free there. "
            "Name another place or make room."
        )


@contextmanager
def filling(folder: Path) -> Iterator[Path]:
    """A hidden folder whose files take their place in `folder` when the block ends well, and vanish when it does not.

    A new folder appears whole. In one that is there, files of an earlier run are replaced and other files left alone.
    """
    new = not folder.exists()
    home = folder.absolute().parent if new else folder
    try:
        home.mkdir(parents=True, exist_ok=True)
        place = Path(tempfile.mkdtemp(prefix=".equipoise.", dir=home))
    except OSError as error:
        raise BadInput(f"cannot write {folder}: {error.strerror or error}. Choose another place.") from error
    try:
        yield place
        umask = os.umask(0)
        os.umask(umask)
        for path, mode in ((place, 0o777), *((made, 0o666) for made in place.iterdir())):
            path.chmod(mode & ~umask)
        with uninterrupted():
            if new:
                place.rename(folder)
            else:
                _move(place, folder)
    except OSError as error:
        raise _cannot_write(folder, error) from error
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _move(place: Path, folder: Path) -> None:
    made = {path.name for path in place.iterdir()}
    for name in FILES[::-1]:  # run.json goes first and comes last
        if name not in made:
            (folder / name).unlink(missing_ok=True)
    for name in sorted(made, key=lambda name: FILES.index(name) if name in FILES else -1):
        (place / name).replace(folder / name)


def _cannot_write(folder: Path, error: OSError) -> BadInput:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    todo = "Make room there, or name another place." if full else "Choose another place."
    return BadInput(f"cannot write {folder}: {error.strerror or error}. Nothing was left behind. {todo}")
