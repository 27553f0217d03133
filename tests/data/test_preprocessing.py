"""Options, presets, transforms and data sets all give the scores of plain PyTorch code."""

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch import nn

from equipoise.data import Cohort, Images, make_preprocessing
from equipoise.data.decode import decode_for_xray_network
from equipoise.data.preprocessing import Preprocessing
from equipoise.errors import BadInput
from equipoise.models import predict
from equipoise.models.vision import import_torchvision
from support.facts import facts

N = 24
SHAPES = ((100, 90), (90, 131), (64, 64), (301, 97))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Images of several shapes: gray PNG and colour JPEG."""
    place, rng = tmp_path_factory.mktemp("pixels"), np.random.default_rng(0)
    for at in range(N):
        height, width = SHAPES[at % len(SHAPES)]
        small = rng.integers(0, 256, (9, 9, 3), dtype=np.uint8)
        image = Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)
        image.convert("L").save(place / f"gray{at:02}.png")
        image.save(place / f"colour{at:02}.jpg", quality=90)
    return place


def _frame(kind: str) -> pd.DataFrame:
    suffix = "png" if kind == "gray" else "jpg"
    names = [f"{kind}{at:02}.{suffix}" for at in range(N)]
    return pd.DataFrame({"image": names, "sick": [0, 1] * (N // 2), "sex": ["F", "F", "M", "M"] * (N // 4)})


def _cohort(folder, kind: str = "gray", **options) -> Cohort:
    return Cohort.from_images(_frame(kind), folder=folder, image="image", label="sick", group="sex", reference="M", **options)


class Sick(nn.Module):
    """A network that depends on every pixel and its position."""

    output = "logit"

    def __init__(self, channels: int) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(3)
            self.layers = nn.Sequential(
                nn.Conv2d(channels, 4, 7, stride=5), nn.ReLU(), nn.Conv2d(4, 4, 3, stride=2), nn.Flatten(), nn.LazyLinear(1)
            )

    def forward(self, x):
        return self.layers(x)[:, 0]


def _network(channels: int, side: int) -> nn.Module:
    network = Sick(channels)
    with torch.random.fork_rng():
        torch.manual_seed(4)
        network(torch.zeros(1, channels, side, side))
    return network.eval()


def _plain(network: nn.Module, folder, kind: str, transform) -> np.ndarray:
    """The scores by plain PyTorch code."""
    mode = "L" if kind == "gray" else "RGB"
    rows = torch.stack([transform(Image.open(folder / name).convert(mode)) for name in _frame(kind)["image"]])
    with torch.no_grad():
        return torch.sigmoid(network(rows).double()).numpy()


def _torchvision(resize, crop, mean, std, interpolation: str = "BILINEAR"):
    kinds = import_torchvision().transforms
    steps = [kinds.Resize(resize, kinds.InterpolationMode[interpolation])] if resize else []
    steps += [kinds.CenterCrop(crop)] if crop else []
    return kinds.Compose([*steps, kinds.ToTensor(), kinds.Normalize(mean, std)])


class Rows(torch.utils.data.Dataset):
    """A user's data set, which yields a tensor and a label."""

    def __init__(self, folder, kind: str, transform) -> None:
        self.folder, self.frame, self.transform = folder, _frame(kind), transform
        self.mode = "L" if kind == "gray" else "RGB"

    def __len__(self) -> int:
        return len(self.frame)

    def __getitem__(self, at):
        row = self.frame.iloc[at]
        return self.transform(Image.open(self.folder / row["image"]).convert(self.mode)), int(row["sick"])


IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
OWN = {  # options, and the same for torchvision: resize, crop, mean, std, interpolation
    "resize and crop": ("gray", {"resize": 80, "crop": 64}, (80, 64, (0.5,), (0.25,))),
    "stretched": ("gray", {"size": 64}, ((64, 64), None, (0.5,), (0.25,))),
    "rectangle, bicubic": (
        "gray",
        {"resize": (80, 70), "crop": 64, "interpolation": "bicubic"},
        ((80, 70), 64, (0.5,), (0.25,), "BICUBIC"),
    ),
    "lanczos, odd crop": ("gray", {"resize": 71, "crop": 64, "interpolation": "lanczos"}, (71, 64, (0.5,), (0.25,), "LANCZOS")),
    "nearest": ("gray", {"resize": 80, "crop": 64, "interpolation": "nearest"}, (80, 64, (0.5,), (0.25,), "NEAREST")),
    "crop alone pads": ("gray", {"crop": 95}, (None, 95, (0.5,), (0.25,))),
    "colour": ("colour", {"resize": 80, "crop": 64, "channels": 3}, (80, 64, *IMAGENET)),
    "torchvision": ("colour", {"preset": "torchvision"}, (256, 224, *IMAGENET)),
    "timm": ("colour", {"preset": "timm"}, (256, 224, *IMAGENET, "BICUBIC")),
}


@pytest.mark.parametrize("case", OWN)
def test_options_presets_transforms_and_data_sets_give_the_scores_of_plain_code(folder, case):
    kind, options, plain = OWN[case]
    transform = _torchvision(*plain)
    own = _cohort(folder, kind, **options)
    channels, side = own.source.shape[1:3]
    network = _network(channels, side)
    expected = _plain(network, folder, kind, transform)
    assert np.ptp(expected) > 0.001  # the network tells images apart
    loaded = Cohort.from_dataset(Rows(folder, kind, transform), _frame(kind), label="sick", group="sex", reference="M")
    by_transform = _cohort(folder, kind, transform=transform, channels=channels)
    for cohort in (own, by_transform, loaded):
        assert abs(predict(network, cohort).score - expected).max() < 1e-6


def test_the_wrong_crop_gives_other_scores(folder):
    network = _network(1, 64)
    right, wrong = (predict(network, _cohort(folder, **options)).score for options in ({"resize": 80, "crop": 64}, {"size": 64}))
    assert abs(right - wrong).max() > 1e-3


def test_timm_and_torchvision_presets_are_those_of_the_libraries(folder):
    timm = pytest.importorskip("timm")
    made = timm.data.create_transform(**timm.data.resolve_data_config({"input_size": (3, 224, 224)}))
    image = Image.open(folder / "colour03.jpg").convert("RGB")
    ours = Images.open([folder / "colour03.jpg"], preset="timm")
    assert torch.allclose(ours[0], made(image), atol=1e-6)
    weights = import_torchvision().models.ResNet18_Weights.IMAGENET1K_V1.transforms()
    assert torch.allclose(Images.open([folder / "colour03.jpg"], preset="torchvision")[0], weights(image), atol=1e-6)


def test_the_preset_of_torchxrayvision_is_that_of_scikit_image(tmp_path):
    """Numbers of XRayCenterCrop and XRayResizer of torchxrayvision 1.5.7 with scikit-image 0.26."""
    image = Image.fromarray((np.add.outer(np.arange(11) * 13, np.arange(14) * 7) % 256).astype(np.uint8))
    image.save(tmp_path / "image.png")
    assert decode_for_xray_network(tmp_path / "image.png", 5).shape == (1, 5, 5)
    assert np.allclose(decode_for_xray_network(tmp_path / "image.png", 5)[0], XRV_5, atol=1e-3)
    assert np.allclose(decode_for_xray_network(tmp_path / "image.png", 20)[0, ::6, ::6], XRV_20, atol=1e-3)


XRV_5 = [
    [-690.296, -632.346, -517.169, -401.993, -272.905],
    [-538.975, -461.804, -338.121, -214.438, -90.757],
    [-325.076, -232.107, -108.424, 15.260, 123.143],
    [-111.176, -2.409, 121.274, 244.957, 337.042],
    [84.860, 200.060, 315.236, 430.413, 502.251],
]
XRV_20 = [
    [-547.506, -572.481, -428.700, -284.918],
    [-457.643, -417.631, -232.107, -46.582],
    [-190.620, -73.085, 112.439, 297.964],
    [76.403, 271.460, 456.985, 642.510],
]


def test_gray_images_of_a_colour_network_are_kept_as_one_channel_and_coloured_ones_as_three(folder):
    gray = _cohort(folder, "gray", size=16, channels=3).source
    colour = _cohort(folder, "colour", size=16, channels=3).source
    assert gray.pixels.shape == (N, 16, 16)
    assert colour.pixels.shape == (N, 16, 16, 3)
    assert gray.shape == colour.shape == (N, 3, 16, 16)
    assert torch.equal(gray.gray([0]) * 255, gray.raw([0]).float())


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"size": 64, "resize": 80}, ["size", 64, "resize", 80]),
        ({"size": 64, "crop": 32}, ["size", "crop", "resize=64"]),
        ({"preset": "tim"}, ["tim", "timm"]),
        ({"preset": "timm", "size": 64}, ["timm", "size=64"]),
        ({"preset": "torchxrayvision", "channels": 3}, ["torchxrayvision", "channels"]),
        ({"crop": "round"}, ["crop", "square", "round"]),
        ({"resize": 0, "crop": 4}, ["resize", "1 pixel", 0]),
        ({"interpolation": "cubic"}, ["cubic", "bicubic"]),
    ],
)
def test_conflicting_options_are_refused(options, parts):
    with pytest.raises(BadInput, match=facts(*parts)):
        make_preprocessing(**options)


def test_a_resize_without_a_crop_refuses_images_that_are_not_square(folder):
    with pytest.raises(BadInput, match=facts("80 x 116", "images.crop=80", "images.size=80")):
        Images.open([folder / "gray01.png"], resize=80)
    assert Images.open([folder / "gray02.png"], resize=80).shape == (1, 1, 80, 80)


def test_the_preprocessing_is_returned_as_plain_values(folder):
    source = _cohort(folder, resize=80, crop=64).source
    said = source.to_dict()
    assert said == {"resize": 80, "crop": 64, "interpolation": "bilinear", "channels": 1, "mean": [0.5], "std": [0.25], "preset": None}
    again = Images.open(source.files, **said)
    assert torch.equal(again[:], source[:])
    xray = Images.open(source.files[:2], preset="torchxrayvision", size=32)
    assert torch.equal(Images.open(source.files[:2], **xray.to_dict())[:], xray[:])


def test_geometry_matches_torchvision_for_many_sizes():
    kinds, rng = import_torchvision().transforms, np.random.default_rng(1)
    for _ in range(40):
        height, width, resize, crop = rng.integers(5, 60, 4)
        image = Image.fromarray(rng.integers(0, 256, (height, width), dtype=np.uint8))
        ours = Preprocessing((int(resize),), int(crop)).applied(image)
        theirs = kinds.CenterCrop(int(crop))(kinds.Resize(int(resize))(image))
        assert np.array_equal(np.asarray(ours), np.asarray(theirs))
