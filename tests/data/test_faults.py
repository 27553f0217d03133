"""Small files with far too many pixels are refused before decoding, and warnings of libraries are not printed."""

import io
import logging
import os
import struct
import threading
import warnings
import zlib
from functools import partial

import numpy as np
import pytest
from PIL import Image, PngImagePlugin

from equipoise.data import MAX_PIXELS, Images
from equipoise.data.decode import attempt, convert, decode
from equipoise.data.image_files import ImageLimit
from equipoise.data.preprocessing import Preprocessing
from equipoise.errors import BadInput
from support.facts import facts, says
from support.image_files import file_of, files_of


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _claim(kind: str, width: int, height: int) -> bytes:
    """A few bytes that claim to be a large image."""
    if kind == "png":
        header = _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 16, 0, 0, 0, 0))
        return b"\x89PNG\r\n\x1a\n" + header + _chunk(b"IDAT", zlib.compress(bytes(100))) + _chunk(b"IEND", b"")
    if kind == "bmp":
        return b"BM" + struct.pack("<IHHI", 100, 0, 0, 54) + struct.pack("<IiiHHIIiiII", 40, width, height, 1, 24, *[0] * 6) + bytes(100)
    if kind == "ppm":
        return f"P5 {width} {height} 255\n".encode() + bytes(100)
    target = io.BytesIO()
    Image.new("L", (8, 8)).save(target, kind.upper())
    content, old = bytearray(target.getvalue()), struct.pack(">H" if kind == "jpeg" else "<H", 8)
    new = struct.pack(">2H" if kind == "jpeg" else "<2H", *((height, width) if kind == "jpeg" else (width, height)))
    at = content.index(b"\xff\xc0") + 5 if kind == "jpeg" else 6
    assert content[at : at + 2] == old
    content[at : at + 4] = new
    return bytes(content)


@pytest.mark.parametrize("kind", ["png", "bmp", "ppm", "jpeg", "gif"])
def test_the_pixels_that_a_header_names_are_checked_first(kind, recwarn):
    content = _claim(kind, 60_000, 50_000)
    _, wrong = attempt(file_of(content), partial(decode, how=Preprocessing((8, 8))), ImageLimit(), 0)
    assert wrong.kind == "too large"
    assert f"{MAX_PIXELS:,}" in wrong.reason or "decompression bomb" in wrong.reason
    with pytest.raises(BadInput, match=facts(1, "images.max_pixels")):
        Images.open(files_of([content]), size=8)
    assert not recwarn.list


def _bytes(side: int, mode: str = "L") -> bytes:
    target = io.BytesIO()
    Image.new(mode, (side, side), 9 if mode == "L" else (9, 9, 9)).save(target, "PNG")
    return target.getvalue()


def test_the_limit_is_an_option_and_a_larger_image_is_broken_with_one_line():
    images = Images.open(files_of([_bytes(10), _bytes(11)]), size=8, max_pixels=100, skip_broken=True)
    assert len(images) == 1
    [wrong] = images.broken.values()
    assert wrong.kind == "too large"
    assert "11 x 11 pixels" in wrong.reason
    assert "\n" not in wrong.reason
    assert len(Images.open(files_of([_bytes(10), _bytes(11)]), size=8, max_pixels=121)) == 2
    with pytest.raises(BadInput, match=facts("max_pixels", 1, 0)):
        Images.open(files_of([_bytes(10)]), size=8, max_pixels=0)


def test_pillows_own_limit_does_not_apply(monkeypatch, recwarn):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)  # as its 179 million would, where more are allowed
    assert len(Images.open(files_of([_bytes(10)]), size=8, max_pixels=100)) == 1
    assert Image.MAX_IMAGE_PIXELS == 10
    assert not recwarn.list


def test_the_cache_depends_on_the_limit(tmp_path):
    options = {"size": 8, "skip_broken": True, "cache": tmp_path}
    assert len(Images.open(files_of([_bytes(10), _bytes(11)]), **options)) == 2
    assert len(Images.open(files_of([_bytes(10), _bytes(11)]), **options, max_pixels=100)) == 1
    assert len(Images.open(files_of([_bytes(10), _bytes(11)]), **options, max_pixels=121)) == 2


def test_a_file_larger_than_any_image_within_the_limit_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr("equipoise.data.image_files.OVERHEAD", 100)
    path = tmp_path / "large.png"
    path.write_bytes(_bytes(4) + bytes(1000))
    monkeypatch.setattr("pathlib.Path.read_bytes", lambda _: pytest.fail("read"))
    _, wrong = attempt(path, partial(decode, how=Preprocessing((4, 4)), limit=ImageLimit(100)), ImageLimit(100), 0)
    assert wrong is not None
    assert wrong.kind == "too large"


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "P", "LA", "1", "CMYK", "I;16", "F", "L"])
def test_gray_does_not_depend_on_the_block_size(mode, monkeypatch):
    rng = np.random.default_rng(0)
    if mode in ("I;16", "F"):
        image = Image.fromarray(rng.integers(0, 60_000, (37, 23)).astype(np.uint16 if mode == "I;16" else np.float32))
    else:
        image = Image.fromarray(rng.integers(0, 256, (37, 23, 4), dtype=np.uint8), "RGBA").convert(mode)
    whole = np.asarray(convert(image, "L"))
    monkeypatch.setattr("equipoise.data.dicom.PIXELS_PER_BLOCK", 100)
    assert (np.asarray(convert(image, "L")) == whole).all()


def test_large_images_are_decoded_one_at_a_time():
    limit, inside, most = ImageLimit(1000, threads=8), [0], [0]
    lock = threading.Lock()

    def work(size: int) -> None:
        with limit.room(size), limit.room(size):  # a file and then its pixels
            with lock:
                inside[0] += 1
                most[0] = max(most[0], inside[0])
            threading.Event().wait(0.02)
            with lock:
                inside[0] -= 1

    for size, expected in ((limit.bytes // 8 + 1, 1), (limit.bytes // 8, 4)):
        most[0] = 0
        threads = [threading.Thread(target=work, args=(size,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (most[0] == 1) == (expected == 1)


def test_a_decoders_warnings_become_one_line_with_the_first_image(tmp_path, caplog, recwarn, monkeypatch):
    info = PngImagePlugin.PngInfo()
    info.add(b"acTL", struct.pack(">II", 0, 0))  # an animation without frames, of which Pillow warns
    for k in range(3):
        Image.new("L", (8, 8), k).save(tmp_path / f"{k}.png", pnginfo=info if k else None)
    files = [tmp_path / f"{k}.png" for k in range(3)]
    with caplog.at_level(logging.WARNING, "equipoise"):
        assert len(Images.open(files, size=8)) == 3
    [line] = [record.getMessage() for record in caplog.records]
    assert says(line, "2 of 3", tmp_path / "1.png", "APNG")
    assert not recwarn.list
    show = warnings.showwarning
    warnings.warn("of the program's own", UserWarning, stacklevel=1)
    assert (len(recwarn.list), warnings.showwarning) == (1, show)


def test_the_reason_of_a_system_error_does_not_contain_the_file_name(tmp_path, monkeypatch):
    path = tmp_path / "patient-4711.png"
    path.write_bytes(_bytes(8))
    monkeypatch.setattr("pathlib.Path.read_bytes", lambda self: (_ for _ in ()).throw(PermissionError(13, "Permission denied", str(self))))
    _, wrong = attempt(path, partial(decode, how=Preprocessing((8, 8))), ImageLimit(), 0)
    assert (wrong.kind, wrong.reason) == ("damaged", "cannot be read: Permission denied")


def test_an_overwritten_file_of_the_same_size_and_time_is_decoded_again(tmp_path):
    rng, path = np.random.default_rng(0), tmp_path / "large.bmp"
    found = []
    for value in (50, 150):
        Image.fromarray(rng.integers(value, value + 2, (300, 300), dtype=np.uint8)).save(path)
        os.utime(path, ns=(10**18, 10**18))
        found.append(Images.open([path], size=8, cache=tmp_path / "cache").raw(0).float().mean().item())
    assert path.stat().st_size > 2**16
    assert found[0] < 60
    assert found[1] > 140
    assert decode(path, Preprocessing((8, 8))).mean() > 140


def test_libtiff_prints_nothing(capfd):
    target = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (24, 32), dtype=np.uint8)).save(
        target, "TIFF", compression="tiff_adobe_deflate"
    )
    content = bytearray(target.getvalue())
    for at in range(20, 60):
        content[at] ^= 0x55
    found = Images.open(files_of([bytes(content), target.getvalue()]), size=8, skip_broken=True)
    assert [one.kind for one in found.broken.values()] == ["damaged"]
    assert capfd.readouterr().err == ""
    os.write(2, b"still there")
    assert capfd.readouterr().err == "still there"
