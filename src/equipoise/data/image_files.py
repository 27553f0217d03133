"""Which file belongs to which row, by name and never by position, and which rows are frontal views."""

import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from equipoise.errors import BadInput, raise_all

if TYPE_CHECKING:  # a process that decodes images needs no pandas, which takes most of its start
    import pandas as pd

Pixels = npt.NDArray[np.uint8]  # (..., size, size)
Source = str | Path | bytes  # a file, or its content
VIEWS = {  # view: how its names begin; more may follow, as in AP PORTABLE
    "frontal": r"(?i)\s*(?:PA|AP|FRONTAL|POSTERO-?ANTERIOR|ANTERO-?POSTERIOR)\b",
    "PA": r"(?i)\s*(?:PA|POSTERO-?ANTERIOR)\b",
    "AP": r"(?i)\s*(?:AP|ANTERO-?POSTERIOR)\b",
}
# What may be left out of a name. The last component of a DICOM UID never is.
SUFFIXES = frozenset(f".{s}" for s in ("png", "jpg", "jpeg", "jpe", "jfif", "tif", "tiff", "bmp", "gif", "webp", "dcm", "dicom"))
SUFFIXES |= {".jp2", ".j2k", ".jpx", ".jpf", ".pbm", ".pgm", ".ppm", ".pnm"}
IMAGE_COLUMNS = ("image", "path", "file", "filename", "Image Index")  # where the names of images are looked for
LISTED = 100  # names in one message; a table may hold many thousand wrong ones


def of_view(column: "pd.Series[Any]", view: str = "frontal") -> npt.NDArray[np.bool_]:
    """Which rows are frontal views (PA, AP or frontal, in any case), or of one of these kinds. A row without a view is none."""
    return np.asarray(column.astype("string").str.match(VIEWS[view]).fillna(False), dtype=bool)


def find_files(
    names: "pd.Series[Any]", folder: str | Path, column: str, *, allow_outside: bool = False, rows: Sequence[int] | None = None
) -> list[Path]:
    """The file of each name, or one error for all names that are unclear, shared or outside the folder.

    A name with a separator is a path: exactly that file, relative to the folder unless it is absolute. A bare name is that file in the
    folder, or else the only file below it with that name, or with that name and the suffix of an image. Names are compared byte by byte.
    Two names never share a file. A file outside the folder (by `..`, an absolute path or a link) is refused unless `allow_outside`.

    A name without a file stays as it is, to be reported with the broken ones, unless no name at all has one. `rows` are the numbers
    under which rows are named, by default 1, 2, ...
    """
    root = Path(folder).expanduser()
    if not root.is_dir():
        raise BadInput(f"no such folder: {folder}. Name the one that holds the images.")
    numbers = range(1, len(names) + 1) if rows is None else rows
    empty = names.isna().to_numpy() | (names.astype(object) == "").to_numpy()
    problems = []
    if empty.any():
        problems.append(f"image column {column!r}: {empty.sum():,} of {len(names):,} rows are empty. Fill them in or leave them out.")
    texts = ["" if missing else str(name) for name, missing in zip(names, empty, strict=True)]
    inside = _Inside(root)
    paths, states = [root / text for text in texts], {}
    for at, path in enumerate(paths):
        # What lies outside is not even looked at, so that a table cannot ask which files there are.
        if texts[at] and (allow_outside or inside.holds(path)):
            states[at] = file_state(path)
    outside = [at for at in range(len(paths)) if texts[at] and at not in states]
    lost = [at for at, state in states.items() if state is None]
    below = _below(root) if any(_is_bare(texts[at]) for at in lost) else {}
    unclear = []
    for at in lost:
        found = below.get(texts[at], []) if _is_bare(texts[at]) else []
        if len(found) > 1:
            shown = ", ".join(repr(str(path.relative_to(root))) for path in sorted(found)[:3])
            unclear.append(
                f"row {numbers[at]} below the header: image {texts[at]!r} may be any of {len(found)} files below {root}: {shown}. "
                "Write the path instead."
            )
        elif found and not allow_outside and not inside.holds(found[0]):
            outside.append(at)
        elif found:
            paths[at], states[at] = found[0], file_state(found[0])
    problems += _listed(unclear)
    problems += _listed(
        [
            f"row {numbers[at]} below the header: image {texts[at]!r} lies outside {root}. "
            "Name files in the folder, or allow it: allow_outside=True (--allow-outside)."
            for at in sorted(outside)
        ]
    )
    problems += _listed(_shared(texts, paths, states, numbers))
    if lost and not outside and not unclear and not any(states.values()):
        first = texts[lost[0]]
        what = "or below it" if _is_bare(first) else "(a name with a folder in it is a path relative to that one)"
        problems.append(f"no image of column {column!r} is in {root} {what}; the first is {first!r}. Name another folder or column.")
    raise_all(problems)
    return paths


class _Inside:
    """Whether files lie in a folder once links are followed; what is known of their own folders is kept, since many share one."""

    def __init__(self, root: Path) -> None:
        self.given, self.root = root, Path(os.path.realpath(root))
        self.folders: dict[Path, bool] = {}

    def holds(self, path: Path) -> bool:
        try:
            if path.name in ("", "..") or path.is_symlink():
                return Path(os.path.realpath(path)).is_relative_to(self.root)
            place = path.parent
            if place not in self.folders:
                self.folders[place] = Path(os.path.realpath(place)).is_relative_to(self.root)
            return self.folders[place] or Path(os.path.realpath(path)) == self.root  # the folder itself, which is no image
        except (OSError, ValueError):  # no file can have such a name: a NUL in it, or too long
            return path.is_relative_to(self.given) and ".." not in path.relative_to(self.given).parts


def file_state(path: str | Path) -> os.stat_result | None:
    """The state of an ordinary file on disk; None where there is none, whatever the name."""
    try:
        state = Path(path).stat()
    except (OSError, ValueError):
        return None
    return state if stat.S_ISREG(state.st_mode) else None


def _is_bare(text: str) -> bool:
    return not {"/", "\\", os.sep} & set(text) and not Path(text).is_absolute()


def _below(root: Path) -> dict[str, list[Path]]:
    """The files below a folder by name and, where a name ends as images do, by what comes before."""
    found: dict[str, list[Path]] = {}
    for place, _, files in os.walk(root):
        for file in files:
            stem, dot, suffix = file.rpartition(".")
            found.setdefault(file, []).append(Path(place) / file)
            # a.png is never a.png.jpg.
            if stem and dot + suffix.lower() in SUFFIXES and Path(stem).suffix.lower() not in SUFFIXES:
                found.setdefault(stem, []).append(Path(place) / file)
    return found


def _shared(texts: Sequence[str], paths: Sequence[Path], states: Mapping[int, os.stat_result | None], numbers: Sequence[int]) -> list[str]:
    """Files that more than one name leads to, whether by a link or because a disk does not tell capitals."""
    owners: dict[object, dict[str, int]] = {}
    for at, state in states.items():
        if state is not None:
            owners.setdefault((state.st_dev, state.st_ino) if state.st_ino else os.path.realpath(paths[at]), {}).setdefault(texts[at], at)
    return [
        " and ".join(f"image {text!r} (row {numbers[at]} below the header)" for text, at in names.items())
        + f" are the same file, {paths[next(iter(names.values()))]}. Give each row its own image, under one name."
        for names in owners.values()
        if len(names) > 1
    ]


def _listed(problems: list[str]) -> list[str]:
    more = len(problems) - LISTED
    return problems if more <= 0 else [*problems[:LISTED], f"... and {more:,} more of this kind"]
