"""Image caches: listed with their images and sizes, marked as used when opened, removed only on request."""

import os
import time
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from equipoise.data import ImageCache, Images
from support.facts import says
from support.image_files import files_of


def _png(value: int) -> bytes:
    target = BytesIO()
    Image.fromarray(np.full((8, 8), value, np.uint8)).save(target, "PNG")
    return target.getvalue()


def _age(path: Path, days: float) -> None:
    then = time.time() - days * 86_400
    os.utime(path, (then, then))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two caches, of 3 and of 5 images, and two files that are not caches."""
    place = tmp_path / "cache"
    Images.open(files_of([_png(v) for v in range(3)]), size=8, cache=place)
    Images.open(files_of([_png(v) for v in range(5)]), size=4, cache=place)
    np.save(place / "features.npy", np.zeros(4))
    (place / "notes.json").write_text("mine")
    return place


def test_a_cache_is_listed_with_its_images_and_bytes(folder):
    found = sorted(ImageCache.found(folder), key=lambda cache: cache.images)
    assert [(cache.images, cache.size) for cache in found] == [(3, 8), (5, 4)]
    for cache in found:
        assert cache.bytes == sum(p.stat().st_size for p in folder.glob(f"{cache.path.stem}.*"))
        assert cache.days < 0.1
    assert ImageCache.found(folder / "absent") == []


def test_the_users_cache_is_the_default(tmp_path, monkeypatch):
    monkeypatch.setenv("EQUIPOISE_CACHE", str(tmp_path))
    monkeypatch.setattr("equipoise.data.images.IN_MEMORY", 0)
    Images.open(files_of([_png(1)]), size=8)
    assert [cache.path.parent for cache in ImageCache.found()] == [tmp_path / "images"]


def test_opening_marks_it_as_used(folder):
    for cache in ImageCache.found(folder):
        _age(cache.path, 40)
    Images.open(files_of([_png(v) for v in range(3)]), size=8, cache=folder)
    first, second = ImageCache.found(folder)
    assert (first.images, second.images) == (3, 5)
    assert first.days < 0.1
    assert second.days == pytest.approx(40, abs=0.1)


def test_clearing_removes_only_the_given_caches(folder):
    chosen = [cache for cache in ImageCache.found(folder) if cache.images == 3]
    assert ImageCache.clear(chosen) == chosen[0].bytes
    assert [cache.images for cache in ImageCache.found(folder)] == [5]
    ImageCache.clear(ImageCache.found(folder))
    assert sorted(p.name for p in folder.iterdir()) == ["features.npy", "notes.json"]
    images = Images.open(files_of([_png(v) for v in range(3)]), size=8, cache=folder)
    ImageCache.clear(ImageCache.found(folder))
    assert images.raw(2).max() == 2  # an open cache stays readable


def test_leftovers_of_a_killed_process_are_listed_after_a_day(folder):
    left = folder / ".equipoise.abc.tmp"
    left.write_bytes(b"half")
    assert len(ImageCache.found(folder)) == 2
    _age(left, 2)
    assert [(cache.images, cache.bytes) for cache in ImageCache.found(folder) if cache.path == left] == [(0, 4)]
    (folder / f"{'0' * 32}.npy").write_bytes(b"rubbish")
    assert sorted(cache.images for cache in ImageCache.found(folder)) == [0, 0, 3, 5]


def test_links_in_a_cache_are_neither_followed_nor_listed(folder, tmp_path):
    sources, mine = files_of(_png(v) for v in range(3)), tmp_path / "mine.npy"
    cache = next(cache for cache in ImageCache.found(folder) if cache.images == 3)
    np.save(mine, np.full((3, 8, 8), 7, np.uint8))
    before = mine.read_bytes()
    for path in (cache.path, cache.path.with_suffix(".json")):
        path.unlink()
    cache.path.symlink_to(mine)
    cache.path.with_suffix(".json").symlink_to(tmp_path / "absent.json")
    assert [cache.images for cache in ImageCache.found(folder)] == [5]
    images = Images.open(sources, size=8, cache=folder)
    assert images.raw(slice(None))[:, 0, 0].tolist() == [0, 1, 2]
    assert mine.read_bytes() == before
    assert not (tmp_path / "absent.json").exists()
    assert not cache.path.is_symlink()


def test_a_large_cache_is_warned_about_and_not_removed(folder, monkeypatch, caplog):
    Images.open(files_of([_png(v) for v in range(3)]), size=8, cache=folder)
    assert not caplog.records
    monkeypatch.setattr("equipoise.data.images.LARGE_CACHE", 100)
    Images.open(files_of([_png(v) for v in range(3)]), size=8, cache=folder)
    assert says(caplog.text, f"equipoise data cache --folder {folder}", "--clear --older-than 30")
    assert len(ImageCache.found(folder)) == 2
