"""Decoded images that were kept on disk: what is in a cache folder, when it was last used, and how to remove it.

Nothing is removed unless asked for. `Images.open` writes the files, and marks one as used whenever it opens it.
"""

import logging
import os
import re
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from equipoise.data.files import user_cache
from equipoise.errors import BadInput

log = logging.getLogger(__name__)
PLENTY = 50 * 2**30  # bytes in one folder from which on a warning is logged
DAY = 86_400
# A folder that the user named may hold other files, which are none of ours.
PIXELS = re.compile(r"[0-9a-f]{32}\.npy")
LEFTOVER = re.compile(r"\.equipoise\..+\.tmp")  # of a process that was killed while it decoded


@dataclass(frozen=True)
class ImageCache:
    """The pixels of one list of images at one size, in a file."""

    path: Path
    images: int  # 0 for one that was never finished or is damaged
    size: int  # pixels per side
    bytes: int
    used: float  # seconds since 1970

    @property
    def days(self) -> float:
        """Days since it was last opened."""
        return (time.time() - self.used) / DAY


def cache_folder(folder: str | Path | None = None) -> Path:
    """Where images are cached: in the named folder, or in the user's cache."""
    return Path(folder).expanduser() if folder else user_cache() / "images"


def image_caches(folder: str | Path | None = None) -> list[ImageCache]:
    """What is cached in a folder (by default the user's), most recently used first."""
    place, found = cache_folder(folder), []
    for path in place.iterdir() if place.is_dir() else ():
        finished = bool(PIXELS.fullmatch(path.name))
        if not path.is_symlink() and (finished or LEFTOVER.fullmatch(path.name)):  # a link is none of ours
            with suppress(FileNotFoundError):  # another process may remove one meanwhile
                cache = _described(path)
                # A young leftover may still be written to.
                found += [cache] if finished or cache.days > 1 else []
    return sorted(found, key=lambda cache: -cache.used)


def clear_caches(found: Iterable[ImageCache]) -> int:
    """Removes these caches; how many bytes that freed. A process that has one open keeps it until it ends."""
    freed, problems = 0, []
    for cache in found:
        try:
            cache.path.unlink(missing_ok=True)
            _notes(cache.path).unlink(missing_ok=True)
            freed += cache.bytes
        except OSError as error:
            problems.append(f"cannot remove {cache.path}: {error.strerror or error}")
    if problems:
        raise BadInput(*problems)
    return freed


def mark_used(path: Path) -> None:
    """Records that a cache was opened, and warns where its folder has grown large."""
    with suppress(OSError):  # a folder that may only be read
        os.utime(path)
    total = sum(cache.bytes for cache in image_caches(path.parent))
    if total > PLENTY:
        other = "" if path.parent == cache_folder() else f" --folder {path.parent}"
        log.warning(
            "the cached images in %s take %.0f GiB. To see them: equipoise data cache%s; to remove old ones: add --clear --older-than 30",
            path.parent,
            total / 2**30,
            other,
        )


def _notes(path: Path) -> Path:
    """The file next to the pixels that lists the broken images."""
    return path.with_suffix(".json")


def _described(path: Path) -> ImageCache:
    state = path.stat()
    images, size = 0, 0
    with suppress(OSError, ValueError):
        images, size = np.load(path, mmap_mode="r").shape[:2] if path.suffix == ".npy" else (0, 0)
    notes = _notes(path).stat().st_size if path.suffix == ".npy" and _notes(path).is_file() else 0
    return ImageCache(path, images, size, state.st_size + notes, state.st_mtime)
