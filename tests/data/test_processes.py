"""Worker processes give the same pixels and faults as threads; images that a process leaves or loses are decoded by its thread."""

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from joblib.externals.loky import ProcessPoolExecutor
from PIL import Image

from equipoise.data import Images, images
from equipoise.data.decode import decode
from equipoise.data.image_files import ImageLimit, NoRoom
from equipoise.data.images import fill_mapped, worker_processes
from equipoise.data.preprocessing import Preprocessing

SIZE = Preprocessing((8, 8))


def end_at_once(*_: object) -> None:
    """What a process does that is killed."""
    os._exit(3)


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Six different images, one of them damaged, and one that is missing."""
    rng = np.random.default_rng(0)
    for k in range(6):
        Image.fromarray(rng.integers(0, 256, (9, 9), dtype=np.uint8)).save(tmp_path / f"{k}.png")
    (tmp_path / "2.png").write_bytes((tmp_path / "2.png").read_bytes()[:60])
    return [tmp_path / f"{k}.png" for k in range(7)]


def opened(files: list[Path], cache: Path, **more: object) -> Images:
    return Images.open(files, size=8, cache=cache, workers=1, skip_broken=True, **more)


@pytest.fixture
def in_processes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Uses processes from two images on; returns the names of the functions called in them."""
    called: list[str] = []
    real = ProcessPoolExecutor.submit

    def submit(self: ProcessPoolExecutor, function: Callable[..., object], *given: object) -> object:
        called.append(function.__name__)
        return real(self, function, *given)

    monkeypatch.setattr(images, "MANY_IMAGES", 2)
    monkeypatch.setattr(images, "SEVERAL_THREADS", 1)
    monkeypatch.setattr(images, "IMAGES_AT_ONCE", 4)
    monkeypatch.setattr(ProcessPoolExecutor, "submit", submit)
    return called


def test_processes_and_threads_give_the_same_images(files: list[Path], tmp_path: Path, request: pytest.FixtureRequest):
    steps: list[int] = []
    plain = opened(files, tmp_path / "threads")
    called = request.getfixturevalue("in_processes")
    found = opened(files, tmp_path / "processes", progress=steps.append)
    assert sorted(called) == ["fill_mapped"] * 2 + ["identify_files"] * 2
    assert np.array_equal(found.pixels, plain.pixels)
    assert Path(found.pixels.filename).name == Path(plain.pixels.filename).name  # the same identities of the files
    assert (found.broken, list(found.rows)) == (plain.broken, [0, 1, 3, 4, 5])
    assert {at: one.kind for at, one in found.broken.items()} == {2: "damaged", 6: "missing"}
    assert sum(steps) == 7


def test_a_colour_image_in_one_process_makes_all_colour(files: list[Path], tmp_path: Path, in_processes: list[str]):
    Image.fromarray(np.full((9, 9, 3), (200, 10, 10), np.uint8)).save(files[5])
    found = opened(files, tmp_path / "cache", channels=3)
    assert "fill_mapped" in in_processes
    assert found.pixels.shape == (7, 8, 8, 3)
    assert found.pixels[5, 0, 0].tolist() == [200, 10, 10]


def test_threads_decode_if_a_process_ends(files: list[Path], tmp_path: Path, in_processes: list[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(images, "fill_mapped", end_at_once)
    found = opened(files, tmp_path / "cache")
    assert in_processes
    for at in (0, 1, 3, 4, 5):
        assert np.array_equal(found.pixels[at], decode(files[at], SIZE))


def test_a_process_is_not_this_one_and_ends_with_the_block():
    with worker_processes(1) as some:
        other = some.submit(os.getpid).result()
        assert other != os.getpid()
    with pytest.raises(ProcessLookupError):
        os.kill(other, 0)


def test_a_process_does_not_run_the_users_script_again(tmp_path: Path):
    script = tmp_path / "script.py"
    script.write_text(
        "import os\nfrom equipoise.data.images import worker_processes\nprint('run')\n"
        "with worker_processes(1) as some:\n    print(some.submit(os.getpid).result() != os.getpid())\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["run", "True"]


def test_an_image_that_needs_the_callers_lock_is_left_to_it(files: list[Path], tmp_path: Path):
    np.save(tmp_path / "out.npy", np.zeros((2, 8, 8), np.uint8))
    large = ImageLimit(threads=10**8)  # so many threads that any image is above the share of one
    with large.room(100):
        pass
    elsewhere = pickle.loads(pickle.dumps(large))
    with pytest.raises(NoRoom), elsewhere.room(100):
        pass
    chunk, path = dict(enumerate(files[:2])), str(tmp_path / "out.npy")
    assert fill_mapped(path, chunk, partial(decode, how=SIZE, limit=elsewhere), elsewhere) == (chunk, {}, {})
    assert fill_mapped(path, chunk, partial(decode, how=SIZE), ImageLimit()) == ({}, {}, {})
    assert np.array_equal(np.load(tmp_path / "out.npy")[1], decode(files[1], SIZE))
