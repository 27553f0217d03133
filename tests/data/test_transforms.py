"""User transforms and data sets: the argument of a transform, and every way in which either is refused."""

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, IterableDataset

from equipoise.data import Cohort, Images
from equipoise.errors import BadInput, Misuse
from equipoise.models.vision import import_torchvision
from support.facts import facts

N = 12


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    place, rng = tmp_path_factory.mktemp("files"), np.random.default_rng(0)
    paths = [place / f"{at:02}.png" for at in range(N)]
    for path in paths:
        Image.fromarray(rng.integers(0, 256, (9, 7), dtype=np.uint8)).save(path)
    return paths


def plain(image):
    return torch.from_numpy(np.array(image.resize((8, 8)), dtype=np.float32))[None] / 255


def of_array(pixels: np.ndarray):
    assert isinstance(pixels, np.ndarray)
    return pixels[:7, :7].astype(np.float64)[None]


def of_path(path: str):
    return plain(Image.open(path))


def test_a_function_is_called_with_an_image_an_array_or_a_path(files):
    images = Images.open(files, transform=plain)
    assert images.shape == (N, 1, 8, 8)
    assert torch.equal(images[3], plain(Image.open(files[3])))
    assert torch.equal(Images.open(files, transform=of_path)[:], images[:])
    assert Images.open(files, transform=of_array)[:].dtype == torch.float32
    shown = images.gray([0, 1])
    assert (shown.shape, shown.amin((1, 2)).tolist(), shown.amax((1, 2)).tolist()) == ((2, 8, 8), [0, 0], [1, 1])


@pytest.mark.filterwarnings("ignore:NvImgCodec")
def test_monai_is_called_with_a_path_if_it_loads_and_else_with_an_array(files):
    monai = pytest.importorskip("monai.transforms")
    loads = monai.Compose([monai.LoadImage(image_only=True, reader="PILReader"), monai.EnsureChannelFirst(), monai.ScaleIntensity()])
    arrays = monai.Compose([monai.EnsureChannelFirst(channel_dim="no_channel"), monai.ScaleIntensity(), monai.Resize((6, 6))])
    assert torch.equal(Images.open(files, transform=loads)[0], torch.as_tensor(loads(str(files[0]))).float())
    assert Images.open(files, transform=arrays).shape == (N, 1, 6, 6)
    with pytest.raises(BadInput, match=facts("random", "RandFlip")):
        Images.open(files, transform=monai.Compose([*arrays.transforms, monai.RandFlip(0.5)]))


def test_rows_above_the_memory_limit_lie_in_a_temporary_file(files, tmp_path, monkeypatch):
    monkeypatch.setattr("equipoise.data.images.IN_MEMORY", 100)
    images = Images.open(files, transform=plain, cache=tmp_path)
    assert len(list(tmp_path.iterdir())) == 1
    assert torch.equal(images.take([2])[0], plain(Image.open(files[2])))
    del images
    assert not list(tmp_path.iterdir())


def _second_differs():
    seen = []

    def transform(image):
        seen.append(image)
        return plain(image) + len(seen) % 2

    return transform


def _flips():
    kinds = import_torchvision().transforms
    return kinds.Compose([kinds.Resize((8, 8)), kinds.RandomHorizontalFlip(), kinds.ToTensor()])


@pytest.mark.parametrize(
    ("transform", "parts"),
    [
        (_second_differs(), ["random", "row 1"]),
        (_flips, ["random", "RandomHorizontalFlip"]),
        (lambda image: plain(image) * float("nan"), ["NaN", "64 of 64"]),
        (lambda image: (plain(image) * 255).byte(), ["uint8", "floating"]),
        (lambda image: image, ["Image", "tensor"]),
        (lambda image: {"image": plain(image)}, ["dict", "tensor"]),
        (lambda image: torch.zeros(1, 8, 8 + (np.asarray(image)[0, 0] > 128)), ["(1, 8, 9)", "(1, 8, 8)"]),
        (lambda image: image.nothing, ["AttributeError", "nothing", "mode L"]),
        (3, ["int", "function"]),
    ],
)
def test_a_transform_that_cannot_be_used_is_refused(files, transform, parts):
    with pytest.raises(BadInput, match=facts(*parts)):
        Images.open(files, transform=transform() if transform is _flips else transform)


def test_a_transform_takes_no_options_and_broken_images_stay_broken(files, tmp_path):
    with pytest.raises(BadInput, match=facts("transform", "size")):
        Images.open(files, transform=plain, size=8)
    (tmp_path / "bad.png").write_bytes(b"no image")
    with pytest.raises(BadInput, match=facts("bad.png", "cannot be read")):
        Images.open([*files, tmp_path / "bad.png"], transform=plain)
    assert len(Images.open([tmp_path / "bad.png", *files], transform=plain, skip_broken=True)) == N


def _frame(**columns) -> pd.DataFrame:
    base = {"name": [f"{at:02}.png" for at in range(N)], "sick": [0, 1, 1] * (N // 3), "sex": ["F", "F", "M", "M"] * (N // 4)}
    return pd.DataFrame(base | columns)


class Rows(Dataset):
    """A data set with items in one of the supported forms."""

    def __init__(self, form, n: int = N) -> None:
        self.form, self.n = form, n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, at: int):
        return self.form(torch.full((2, 3), float(at)), int(at % 3 > 0), f"{at:02}.png")


class Stream(IterableDataset):
    def __iter__(self):
        return iter([(torch.full((2, 3), float(at)), int(at % 3 > 0)) for at in range(N)])


FORMS = {
    "tensor": lambda x, y, name: x,
    "pair": lambda x, y, name: (x, y),
    "triple": lambda x, y, name: (x, y, name),
    "mapping": lambda x, y, name: {"img": x, "lab": torch.tensor(y), "path": f"/data/{name}"},
}
COLUMNS = {"label": "sick", "group": "sex", "reference": "M", "id": "name"}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("as_loader", [False, True])
def test_every_form_of_item_is_read_in_order(form, as_loader):
    dataset = Rows(FORMS[form])
    cohort = Cohort.from_dataset(DataLoader(dataset, batch_size=5) if as_loader else dataset, _frame(), **COLUMNS)
    assert cohort.inputs[:, 0, 0].tolist() == list(range(N))
    assert (list(cohort.ids), list(cohort.y)) == (list(_frame()["name"]), list(_frame()["sick"]))


def test_a_stream_and_arrays_in_place_of_a_frame():
    for given in (Stream(), DataLoader(Stream(), batch_size=4)):
        cohort = Cohort.from_dataset(given, groups=_frame()["sex"], reference="M", patients=np.arange(N) // 2)
        assert list(cohort.y) == list(_frame()["sick"])
        assert (len(cohort), len(set(cohort.patients))) == (N, N // 2)


def test_large_data_sets_are_kept_in_a_file(tmp_path, monkeypatch):
    monkeypatch.setattr("equipoise.data.images.IN_MEMORY", 10)
    monkeypatch.setenv("EQUIPOISE_CACHE", str(tmp_path))
    cohort = Cohort.from_dataset(Rows(FORMS["pair"]), _frame(), **COLUMNS)
    assert isinstance(cohort.source, Images)
    assert cohort.take([4, 2]).inputs[:][:, 1, 1].tolist() == [4, 2]


class Noisy(Rows):
    def __getitem__(self, at: int):
        return torch.rand(2, 3), int(at % 3 > 0)


@pytest.mark.parametrize(
    ("dataset", "changed", "parts"),
    [
        (lambda: DataLoader(Rows(FORMS["pair"]), shuffle=True), {}, ["RandomSampler", "shuffle=False"]),
        (lambda: DataLoader(Rows(FORMS["pair"]), batch_size=5, drop_last=True), {}, ["drop_last"]),
        (lambda: Rows(FORMS["pair"]), {"sick": [1, 0, 1] * (N // 3)}, ["8 of 12", "label", "row 1"]),
        (lambda: Rows(FORMS["triple"]), {"name": [f"{N - 1 - at:02}.png" for at in range(N)]}, ["12 of 12", "00.png", "11.png"]),
        (lambda: Rows(FORMS["pair"], N - 2), {}, [N - 2, N]),
        (lambda: Rows(FORMS["pair"], N + 2), {}, ["more", N]),
        (lambda: Rows(lambda x, y, name: {"volume": x}), {}, ["volume", "pixel_values"]),
        (lambda: Rows(lambda x, y, name: x[:, : 2 + y]), {}, ["(2, 3)", "(2, 2)", "row 2"]),
        (lambda: Rows(lambda x, y, name: x.nothing), {}, ["AttributeError", "row 1"]),
        (lambda: Rows(lambda x, y, name: x / 0), {}, ["NaN", "row 1"]),
        (lambda: Noisy(FORMS["pair"]), {}, ["random", "row 1"]),
    ],
)
def test_a_data_set_that_does_not_fit_is_refused(dataset, changed, parts):
    with pytest.raises(BadInput, match=facts(*parts)):
        Cohort.from_dataset(dataset(), _frame(**changed), **COLUMNS)


def test_missing_arguments_are_named():
    with pytest.raises(BadInput, match=facts("groups=", "frame")):
        Cohort.from_dataset(Rows(FORMS["pair"]))
    with pytest.raises(BadInput, match=facts("labels", "y=")):
        Cohort.from_dataset(Rows(FORMS["tensor"]), groups=_frame()["sex"])
    with pytest.raises(BadInput, match=facts("label=", "group=")):
        Cohort.from_dataset(Rows(FORMS["pair"]), _frame())
    with pytest.raises(Misuse, match=facts("Dataset", "int")):
        Cohort.from_dataset(3, _frame(), **COLUMNS)
