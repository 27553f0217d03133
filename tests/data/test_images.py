"""Images: every mode becomes 8-bit gray at one size, all broken images are listed with their rows, and methods accept a cohort of them."""

import copy
import os
import pickle
from io import BytesIO
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch import nn

import equipoise as eq
from equipoise.data import XRAY_RANGE, Cohort, Images, is_view
from equipoise.data.decode import decode as decoded
from equipoise.data.preprocessing import Preprocessing
from equipoise.errors import BadInput
from support.facts import facts, says, suggests
from support.image_files import file_of, files_of
from support.published import debias


def decode(content, size: int) -> np.ndarray:
    return decoded(file_of(content) if isinstance(content, bytes) else content, Preprocessing((size, size)))


RAMP = np.tile(np.arange(0, 256, 16, dtype=np.uint8), (16, 1))  # (16, 16), dark on the left


def _bytes(image: Image.Image, kind: str = "PNG", **options) -> bytes:
    target = BytesIO()
    image.save(target, kind, **options)
    return target.getvalue()


def _gray(value: int, side: int = 8) -> Image.Image:
    return Image.fromarray(np.full((side, side), value, np.uint8))


def _folder(folder: Path, values: dict[str, int]) -> Path:
    for name, value in values.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        _gray(value).save(folder / name)
    return folder


def _frame(n: int, **columns) -> pd.DataFrame:
    base = {"image": [f"{k:03}.png" for k in range(n)], "sick": [0, 1] * (n // 2), "sex": (["F"] * 2 + ["M"] * 2) * (n // 4)}
    return pd.DataFrame(base | {"pid": [f"p{k // 2}" for k in range(n)]} | columns)


def _cohort(frame: pd.DataFrame, folder: Path, **options) -> Cohort:
    names = {"image": "image", "label": "sick", "group": "sex", "reference": "M", "patient": "pid", "size": 8}
    return Cohort.from_images(frame, folder=folder, **(names | options))


def test_an_image_of_the_target_size_keeps_its_pixels():
    assert (decode(_bytes(Image.fromarray(RAMP)), 16) == RAMP).all()


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "LA", "P", "1", "CMYK"])
def test_every_mode_becomes_gray(mode):
    image = Image.fromarray(np.where(RAMP < 128, 0, 255).astype(np.uint8)).convert(mode)
    found = decode(_bytes(image, "TIFF" if mode == "CMYK" else "PNG"), 16)
    assert found.dtype == np.uint8
    assert (found[:, :8] <= 1).all()
    assert (found[:, 8:] >= 254).all()


def test_colour_becomes_luminance_and_transparent_pixels_black():
    assert decode(_bytes(Image.new("RGB", (4, 4), (255, 0, 0))), 4).max() == 76
    assert decode(_bytes(Image.new("RGBA", (4, 4), (255, 255, 255, 0))), 4).max() == 0


def test_sixteen_bits_are_scaled_by_their_own_range():
    deep = Image.fromarray(RAMP.astype(np.uint16) * 4 + 1000)
    assert (decode(_bytes(deep), 16) == np.rint(RAMP * (255 / 240))).all()
    flat = Image.fromarray(np.full((4, 4), 4000, np.uint16))
    assert decode(_bytes(flat), 4).max() == 0


def test_resizing_averages_instead_of_dropping_pixels():
    stripes = Image.fromarray(np.tile(np.array([0, 255], np.uint8), (64, 32)))
    found = decode(_bytes(stripes), 8)
    assert (abs(found.astype(int) - 127) < 25).all()


def test_a_large_jpeg_is_decoded_as_by_pillow():
    rng = np.random.default_rng(0)
    smooth = _gray(0, 512)
    smooth.paste(Image.fromarray(rng.integers(0, 256, (8, 8), dtype=np.uint8)).resize((512, 512), Image.Resampling.BICUBIC))
    content = _bytes(smooth, "JPEG", quality=95)
    with Image.open(BytesIO(content)) as full:
        expected = np.asarray(full.resize((32, 32), Image.Resampling.BILINEAR))
    assert (decode(content, 32) == expected).all()


def test_images_of_mixed_size_and_shape_come_out_at_one_size():
    images = Images.open(files_of([_bytes(_gray(9, 8)), _bytes(Image.new("L", (30, 10), 9)), _bytes(_gray(9, 3))]), size=8)
    assert images.shape == (3, 1, 8, 8)
    assert (images.raw(slice(None)) == 9).all()


def test_indexing_is_that_of_the_tensor():
    images = Images.open(files_of([_bytes(_gray(v)) for v in (0, 50, 100, 150)]), size=8)
    whole = images[:]
    mask = np.array([True, False, False, True])
    for index in (slice(1, 3), torch.tensor([3, 0, 0]), torch.from_numpy(mask), mask, np.array([2, -1]), [1, 2], 2, -1):
        at = torch.from_numpy(index) if isinstance(index, np.ndarray) else index
        assert torch.equal(images[index], whole[at])
    assert images[4:].shape == (0, 1, 8, 8)
    with pytest.raises(IndexError):
        images[torch.tensor([4])]
    taken = images.take(np.array([3, 1])).take(torch.tensor([1]))
    assert torch.equal(taken[:], whole[[1]])
    assert len(images.take(np.array([], int))) == 0
    assert (images.dtype, images.is_floating_point(), whole.dtype) == (torch.float32, True, torch.float32)


def test_mean_and_std_define_the_normalisation():
    three = Images(np.full((1, 2, 2), 255, np.uint8), channels=3)
    assert torch.allclose(three[0][:, 0, 0], torch.tensor([(1 - 0.485) / 0.229, (1 - 0.456) / 0.224, (1 - 0.406) / 0.225]))
    own = Images(np.full((1, 2, 2), 51, np.uint8), mean=(0.1,), std=(0.2,))
    assert own[0].max().item() == pytest.approx(0.5)
    xray = Images(np.array([[[0, 255]]], np.uint8), **XRAY_RANGE)
    assert xray[0].flatten().tolist() == [-1024, 1024]
    with pytest.raises(BadInput, match=facts("channels", 1, 3, 2)):
        Images(np.zeros((1, 2, 2), np.uint8), channels=2)
    with pytest.raises(BadInput, match=facts("mean", "channel")):
        Images(np.zeros((1, 2, 2), np.uint8), mean=(0.1, 0.2))


def _bad(folder: Path) -> list[Path]:
    good = _bytes(Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64), dtype=np.uint8)))
    frames = [_gray(0), _gray(255)]
    contents = {
        "good.png": good,
        "truncated.png": good[: len(good) // 2],
        "truncated.jpg": _bytes(Image.open(BytesIO(good)), "JPEG")[:700],
        "empty.png": b"",
        "text.png": b"no image at all",
        "moving.gif": _bytes(frames[0], "GIF", save_all=True, append_images=frames[1:]),
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return [folder / name for name in (*contents, "absent.png")]


def test_every_bad_image_is_named_in_one_error(tmp_path):
    files = _bad(tmp_path)
    with pytest.raises(BadInput) as caught:
        Images.open(files, size=8)
    problems = caught.value.problems
    assert len(problems) == 6
    assert says(str(caught.value).splitlines()[0], 6, "problems", len(files), "images")  # the advice is not counted
    assert str(caught.value).splitlines()[-1].startswith("Fix or remove")
    for name, reason in {
        "truncated.png": "cannot be decoded: image file is truncated",
        "truncated.jpg": "cannot be decoded: image file is truncated",
        "empty.png": "is empty (0 bytes)",
        "text.png": "cannot be read as an image",
        "moving.gif": "holds 2 frames",
        "absent.png": "no such file",
    }.items():
        assert any(p.startswith(f"{tmp_path / name}: {reason}") for p in problems), name
    assert "skip_broken=True" in problems[-1]


@pytest.mark.parametrize("cached", [False, True])
def test_skip_broken_records_the_broken_images(tmp_path, cached):
    files = _bad(tmp_path)
    for _ in range(2):
        images = Images.open(files, size=8, skip_broken=True, cache=tmp_path / "cache" if cached else None)
        assert len(images) == 1
        assert sorted(images.broken) == [1, 2, 3, 4, 5, 6]
        assert (images.raw(0)[0].numpy() == decode(files[0], 8)).all()
    with pytest.raises(BadInput, match=facts(files[-1])):
        Images.open(files[-1:], size=8, skip_broken=True)


def test_a_named_pipe_is_a_missing_image_and_is_never_read(tmp_path, monkeypatch):
    files = [_folder(tmp_path, {"a.png": 10}) / "a.png", tmp_path / "pipe.png"]
    os.mkfifo(files[1])
    read = Path.read_bytes

    def only_files(path: Path) -> bytes:
        assert path != files[1]  # which would wait for ever
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", only_files)
    images = Images.open(files, size=8, skip_broken=True, cache=tmp_path / "cache")
    assert (len(images), images.broken[1].kind) == (1, "missing")


def test_the_cache_is_mapped_reused_and_depends_on_the_content(tmp_path, monkeypatch):
    folder = _folder(tmp_path / "in", {"a.png": 10, "b.png": 20})
    files = [folder / "a.png", folder / "b.png"]
    first = Images.open(files, size=8, cache=tmp_path / "cache")
    assert isinstance(first.pixels, np.memmap)
    assert len(list((tmp_path / "cache").iterdir())) == 2  # pixels and notes; nothing half-written stays
    with monkeypatch.context() as patch:
        patch.setattr("equipoise.data.images.fill", lambda *_: pytest.fail("decoded again"))
        assert torch.equal(Images.open(files, size=8, cache=tmp_path / "cache")[:], first[:])
    assert Images.open(files[::-1], size=8, cache=tmp_path / "cache").raw(0).max() == 20
    assert Images.open(files, size=4, cache=tmp_path / "cache").shape == (2, 1, 4, 4)
    _gray(99).save(files[0])
    assert Images.open(files, size=8, cache=tmp_path / "cache").raw(0).max() == 99
    assert first.raw(0).max() == 10


def test_a_damaged_cache_is_rebuilt_and_a_repaired_image_is_included(tmp_path):
    files = _bad(tmp_path)
    options = {"size": 8, "cache": tmp_path / "cache", "skip_broken": True}
    before = Images.open(files, **options)[:]
    next((tmp_path / "cache").glob("*.npy")).write_bytes(b"rubbish")
    assert torch.equal(Images.open(files, **options)[:], before)
    files[-1].write_bytes(files[0].read_bytes())
    assert len(Images.open(files, **options)) == 2


def test_many_images_go_to_the_users_cache_and_are_pickled_by_name(tmp_path, monkeypatch):
    monkeypatch.setattr("equipoise.data.images.IN_MEMORY", 100)
    monkeypatch.setenv("EQUIPOISE_CACHE", str(tmp_path / "home"))
    images = Images.open(files_of([_bytes(_gray(v, 64)) for v in range(40)]), size=64)
    assert (tmp_path / "home" / "images").is_dir()
    part = images.take(np.array([7, 3]))
    sent = pickle.dumps(part)
    assert len(sent) < 5_000  # one image has 4,096 bytes
    assert torch.equal(pickle.loads(sent)[:], part[:])
    assert torch.equal(copy.deepcopy(part)[:], part[:])


def test_only_the_rows_of_images_in_memory_are_pickled():
    images = Images.open(files_of([_bytes(_gray(v, 64)) for v in range(40)]), size=64).take(np.array([7, 3]))
    sent = pickle.dumps(images)
    assert len(sent) < 3 * 64 * 64
    assert torch.equal(pickle.loads(sent)[:], images[:])


def test_too_little_disk_space_is_an_error_before_decoding(tmp_path, monkeypatch):
    monkeypatch.setattr("equipoise.data.images.shutil.disk_usage", lambda _: type("Usage", (), {"free": 10}))
    with pytest.raises(BadInput, match=facts(1, "(8, 8)", "GiB")):
        Images.open(files_of([_bytes(_gray(1))]), size=8, cache=tmp_path)
    assert not list(tmp_path.iterdir())


def test_progress_counts_every_image_for_any_number_of_threads():
    content = [_bytes(_gray(v)) for v in range(100)]
    for workers in (1, 3):
        seen: list[int] = []
        images = Images.open(files_of(content), size=8, workers=workers, progress=seen.append)
        assert sum(seen) == 100
        assert images.raw(slice(None))[:, 0, 0].tolist() == list(range(100))


def test_rows_find_their_images_by_name_and_never_by_position(tmp_path):
    _folder(tmp_path, {"003.png": 3, "deep/002.png": 2, "000.png": 0, "deep/er/001.png": 1})
    frame = _frame(4, image=["003.png", "002", "deep/er/001.png", "000.png"])
    cohort = _cohort(frame, tmp_path)
    assert cohort.source.raw(slice(None))[:, 0, 0].tolist() == [3, 2, 1, 0]
    assert cohort.ids.tolist() == frame["image"].tolist()
    assert cohort.inputs[1:3].shape == (2, 1, 8, 8)
    assert cohort.take([2, 0]).source.raw(slice(None))[:, 0, 0].tolist() == [1, 3]


def test_only_frontal_views_are_kept(tmp_path):
    _folder(tmp_path, {f"{k:03}.png": k for k in range(8)})
    views = ["PA", "ap", "LL", "LATERAL", "AP PORTABLE", "Frontal", None, "PARASAGITTAL"]
    assert is_view(pd.Series(views)).tolist() == [True, True, False, False, True, True, False, False]
    cohort = _cohort(_frame(8, view=views, sex=["F", "M"] * 4, pid=list("abcdefgh")), tmp_path, view="view")
    assert cohort.ids.tolist() == ["000.png", "001.png", "004.png", "005.png"]
    with pytest.raises(BadInput, match="frontal"):
        _cohort(_frame(8, view="LL"), tmp_path, view="view")
    with pytest.raises(BadInput, match=suggests("view")):
        _cohort(_frame(8, view="PA"), tmp_path, view="vieww")


def test_bad_images_of_a_cohort_are_named_with_the_row_of_the_frame(tmp_path):
    _folder(tmp_path, {f"{k:03}.png": k for k in range(7)})
    (tmp_path / "005.png").write_bytes(b"")
    frame = _frame(8, view=["LL", *["PA"] * 7])
    with pytest.raises(BadInput) as caught:
        _cohort(frame, tmp_path, view="view")
    empty, missing = caught.value.problems
    assert empty == f"row 6 below the header, {tmp_path / '005.png'}: is empty (0 bytes)"
    assert missing.startswith(f"row 8 below the header, {tmp_path / '007.png'}: no such file")
    cohort = _cohort(frame, tmp_path, view="view", skip_broken=True)
    assert cohort.ids.tolist() == ["001.png", "002.png", "003.png", "004.png", "006.png"]
    assert cohort.source.raw(slice(None))[:, 0, 0].tolist() == [1, 2, 3, 4, 6]
    assert cohort.y.tolist() == [1, 0, 1, 0, 0]
    assert [f"- {one}" for one in cohort.source.broken.values()] == str(caught.value).splitlines()[1:3]
    assert [one.kind for one in cohort.source.broken.values()] == ["empty", "missing"]


def test_problems_of_columns_and_names_come_in_one_message(tmp_path):
    _folder(tmp_path, {"a/000.png": 0, "b/000.png": 1, "001.png": 2})
    frame = _frame(4, image=["000.png", "001.png", None, "001.png"], sex=["F", "M", "M", "F"])
    with pytest.raises(BadInput) as caught:
        _cohort(frame, tmp_path, label="ill")
    text = str(caught.value)
    for part in ("no column 'ill'", "1 of 4 rows are empty", "image '000.png' may be any of 2 files"):
        assert part in text
    with pytest.raises(BadInput, match=facts("sex", "p0", "p1", 1, 4, "001.png")):
        _cohort(frame, tmp_path, conflicts="error")


def test_a_wrong_folder_is_one_problem(tmp_path):
    with pytest.raises(BadInput, match=facts("image", "000.png")):
        _cohort(_frame(8), tmp_path)
    with pytest.raises(BadInput, match=facts(tmp_path / "absent")):
        _cohort(_frame(8), tmp_path / "absent")


def test_a_cohort_of_images_is_split_audited_and_repaired(tmp_path):
    rng = np.random.default_rng(0)
    frame = _frame(80)
    for name, sick in zip(frame["image"], frame["sick"], strict=True):
        Image.fromarray(rng.integers(60 * sick, 60 * sick + 120, (8, 8), dtype=np.uint8)).save(tmp_path / name)
    parts = eq.split(_cohort(frame, tmp_path), seed=0, fractions=(0.3, 0.35, 0.35))
    assert not set(parts.train.patients) & set(parts.test.patients)
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 1))
    model = eq.train(parts.train, parts.valid, model=network, seed=0, settings=eq.Training(epochs=2))
    held = eq.Cohort.from_arrays(parts.test.inputs[:], parts.test.y, parts.test.groups, reference="M", patients=parts.test.patients)
    audit = eq.audit(model, parts.test)
    assert audit["eod"].value == eq.audit(model, held)["eod"].value
    result = debias(model, parts.valid, method="bias-gda", measure="eod", min_performance=0.5, seed=0, epochs=1)
    assert 0 <= eq.audit(result, parts.test)["balanced_accuracy"].value <= 1
    assert debias(model, parts.valid, method="pruning", measure="eod", min_performance=0.5, seed=0).model is not model
