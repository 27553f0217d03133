"""The preprocessing of an image for a network: size, crop, interpolation, channels, normalisation, and the presets of other libraries.

Pixels are the same as with torchvision's Resize, CenterCrop, ToTensor and Normalize on Pillow images, which antialias. Importing this
module imports neither numpy nor torch, because the command line needs the names of the presets for its help.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self, TypedDict

from pydantic import BeforeValidator, model_validator

from equipoise.errors import BadInput, collecting, did_you_mean, pick, raise_all
from equipoise.specification import Specification, setting

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from PIL import Image

MAX_PIXELS = 100_000_000  # a film of 35 x 43 cm digitised at 50 micrometres has 60 million
INTERPOLATIONS = ("bilinear", "bicubic", "nearest", "lanczos", "box")
CENTRES = ("rounded", "floor")  # the start of a crop whose centre lies between two pixels: torchvision rounds, transformers rounds down
SQUARE = "square"  # the largest central square of the image, taken before resizing


class Norm(TypedDict):
    """The normalisation (pixel - mean) / std of pixels in [0, 1], one number per channel."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


XRAY_RANGE = Norm(mean=(0.5,), std=(1 / 2048,))  # -1024 to 1024, the inputs of torchxrayvision's networks
UNIT_RANGE = Norm(mean=(0.0,), std=(1.0,))  # 0 to 1
IMAGENET = Norm(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
NORMS = {  # channels: default mean and std; those of ImageNet for 3, round numbers for 1
    1: ((0.5,), (0.25,)),
    3: (IMAGENET["mean"], IMAGENET["std"]),
}
NAMED_NORMS = {  # values of images.normalise
    "imagenet": IMAGENET,
    "xray": XRAY_RANGE,
    "unit": UNIT_RANGE,
    "inception": Norm(mean=(0.5,), std=(0.5,)),  # -1 to 1; timm's name
    "clip": Norm(mean=(0.48145466, 0.4578275, 0.40821073), std=(0.26862954, 0.26130258, 0.27577711)),
}


@dataclass(frozen=True)
class Geometry:
    """How an image is resized and cropped.

    >>> Geometry(256, 224).shape, Geometry((320, 256)).shape, Geometry(256, 224).within(500, 400)
    ((224, 224), (320, 256), (320, 256))
    """

    resize: int | tuple[int, int] | None = (224, 224)  # the shorter side, or height and width; None: not resized
    crop: int | str | None = None  # side of the central square after resizing; or SQUARE
    interpolation: str = "bilinear"
    centre: str = "rounded"  # one of CENTRES

    def __post_init__(self) -> None:
        resizes = self.resize if isinstance(self.resize, tuple) else (self.resize,)
        sides = [*(("resize", side) for side in resizes), ("crop", self.crop)]
        problems = [f"{name} must be at least 1 pixel; got {side}" for name, side in sides if isinstance(side, int) and side < 1]
        if isinstance(self.crop, str) and self.crop != SQUARE:
            problems.append(f"crop must be a number of pixels or {SQUARE!r}; got {self.crop!r}")
        if self.resize is None and not isinstance(self.crop, int):
            problems.append("images of different sizes need resize or crop in pixels")
        if self.interpolation not in INTERPOLATIONS:
            problems.append(f"interpolation must be one of {', '.join(INTERPOLATIONS)}; got {self.interpolation!r}")
        if self.centre not in CENTRES:
            problems.append(f"centre must be one of {', '.join(CENTRES)}; got {self.centre!r}")
        raise_all(problems)

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of the result."""
        if isinstance(self.crop, int):
            return self.crop, self.crop
        assert self.resize is not None  # checked above
        return (self.resize, self.resize) if isinstance(self.resize, int) else self.resize

    def within(self, height: int, width: int) -> tuple[int, int]:
        """Height and width of an image after resizing, before a crop in pixels."""
        if self.crop == SQUARE:
            height = width = min(height, width)
        if self.resize is None:
            return height, width
        if not isinstance(self.resize, int):
            return self.resize
        short, long = sorted((height, width))
        longer = int(self.resize * long / short)
        return (self.resize, longer) if height <= width else (longer, self.resize)

    def applied(self, image: Image.Image) -> Image.Image:
        """The resized and cropped image. Raises `BadInput` if its shape is not `shape`, since it was not square."""
        from PIL import Image as pillow

        height, width = self.within(image.height, image.width)
        if self.crop == SQUARE:
            side = min(image.size)
            left, top = image.width // 2 - side // 2, image.height // 2 - side // 2
            image = image.crop((left, top, left + side, top + side))
        if image.size != (width, height):
            image = image.resize((width, height), pillow.Resampling[self.interpolation.upper()])
        if isinstance(self.crop, int):
            # Negative for a smaller image, which is padded with black, as in torchvision.
            spare = [side - self.crop for side in (width, height)]
            left, top = (-(-s // 2) if s < 0 else s // 2 if self.centre == "floor" else round(s / 2) for s in spare)
            image = image.crop((left, top, left + self.crop, top + self.crop))
        if (image.height, image.width) != self.shape:
            raise BadInput(
                f"is {image.height} x {image.width} pixels after its shorter side was resized to {self.resize}, which is not square. "
                f"Crop it as well (images.crop={self.resize}), or stretch it (images.size={self.resize})."
            )
        return image

    def to_dict(self) -> dict[str, object]:
        """Plain values that are options of `Images.open`."""
        resize = list(self.resize) if isinstance(self.resize, tuple) else self.resize
        centre = {} if self.centre == "rounded" else {"centre": self.centre}
        return {"resize": resize, "crop": self.crop, "interpolation": self.interpolation, **centre}


XRAY_PRESET = "torchxrayvision"  # resized in floating point by scikit-image's method, not by Pillow (see `xray_resized`)


@dataclass(frozen=True)
class Preprocessing:
    """The preprocessing of decoded pixels without a user's transform. An empty mean or std becomes the default of NORMS."""

    geometry: Geometry = Geometry()
    channels: int = 1
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    preset: str | None = None

    def __post_init__(self) -> None:
        problems = [] if self.channels in NORMS else [f"channels must be one of {', '.join(map(str, NORMS))}; got {self.channels}"]
        for name, default in zip(("mean", "std"), NORMS.get(self.channels, ()), strict=False):
            values = getattr(self, name) or default
            object.__setattr__(self, name, values)
            if len(values) != self.channels:
                problems.append(f"{name} must hold one number per channel, {self.channels}; got {values}")
        if any(not s > 0 for s in self.std):
            problems.append(f"std must be positive; got {self.std}")
        raise_all(problems)

    def to_dict(self) -> dict[str, object]:
        """Plain values that are options of `make_preprocessing`."""
        norm = {"channels": self.channels, "mean": list(self.mean), "std": list(self.std)}
        return self.geometry.to_dict() | norm | {"preset": self.preset}


PRESETS = {  # the preprocessing of a library in its published evaluation
    "torchvision": Preprocessing(Geometry(256, 224), 3),  # ResNet18_Weights.IMAGENET1K_V1.transforms()
    "timm": Preprocessing(Geometry(256, 224, "bicubic"), 3),  # timm.data.create_transform(224), crop_pct 0.875
    XRAY_PRESET: Preprocessing(Geometry((224, 224), SQUARE), 1, **XRAY_RANGE),  # XRayCenterCrop, XRayResizer(224)
}


def make_preprocessing(
    *,
    size: int | None = None,
    resize: int | tuple[int, int] | list[int] | None = None,
    crop: int | str | None = None,
    interpolation: str | None = None,
    channels: int | None = None,
    mean: Any = (),
    std: Any = (),
    preset: str | None = None,
    centre: str | None = None,
) -> Preprocessing:
    """The preprocessing from these options; those that are not given come from the preset, if any, or the defaults.

    >>> make_preprocessing(preset="timm").geometry
    Geometry(resize=256, crop=224, interpolation='bicubic', centre='rounded')
    >>> make_preprocessing(resize=80, crop=64).geometry.shape, make_preprocessing(size=64).geometry.resize
    ((64, 64), (64, 64))
    """
    base = Preprocessing() if preset is None else PRESETS[pick("preset", preset, PRESETS)]
    problems = []
    if size is not None and resize is not None:
        problems.append(f"size ({size}) stretches images to a square and resize ({resize}) keeps their shape; give one of them")
    if size is not None and isinstance(crop, int):
        problems.append(f"size ({size}) stretches images to the input of the network; with crop={crop}, give resize={size} instead")
    if size is not None and preset not in (None, XRAY_PRESET):
        problems.append(f"the preset {preset!r} resizes and crops; give resize and crop instead of size={size}")
    extra = {"resize": resize, "crop": crop, "interpolation": interpolation, "channels": channels, "mean": mean or None, "std": std or None}
    extra = {name: value for name, value in extra.items() if value is not None}
    if preset == XRAY_PRESET and extra and not (size is None and _repeats_xray_preset(extra)):
        problems.append(f"the preset {preset!r} takes size and no other option; leave out {', '.join(extra)}")
    raise_all(problems)
    default = base.geometry
    if isinstance(resize, list):
        resize = (int(resize[0]), int(resize[1]))
    if size is not None:
        resize = (size, size)
    if resize is None and not (isinstance(crop, int) and preset is None):  # a crop in pixels needs no resizing
        resize = default.resize
    geometry = Geometry(resize, default.crop if crop is None else crop, interpolation or default.interpolation, centre or default.centre)
    channels = base.channels if channels is None else channels
    norm = (base.mean, base.std) if channels == base.channels else ((), ())
    return Preprocessing(geometry, channels, tuple(mean) or norm[0], tuple(std) or norm[1], preset)


def _repeats_xray_preset(options: dict[str, Any]) -> bool:
    """Whether options are those of torchxrayvision's preset at some size, as a bundle records them."""
    fixed = {"crop": SQUARE, "interpolation": "bilinear", "channels": 1, **XRAY_RANGE}
    resize = options.get("resize", (1, 1))
    if not isinstance(resize, (list, tuple)) or len(resize) != 2 or resize[0] != resize[1]:
        return False
    return all((tuple(value) if name in ("mean", "std") else value) == fixed[name] for name, value in options.items() if name != "resize")


def xray_resized(image: Image.Image, size: int) -> npt.NDArray[np.float32]:
    """The central square of a gray image (1, size, size) from -1024 to 1024, as by torchxrayvision's XRayCenterCrop and XRayResizer.

    The resizing is scikit-image's: a Gaussian filter, then linear interpolation, with 0 outside of the image.
    """
    import numpy as np
    from scipy import ndimage

    pixels = (2 * (np.asarray(image, dtype=np.float32) / 255) - 1) * 1024
    height, width = pixels.shape
    side = min(height, width)
    top, left = height // 2 - side // 2, width // 2 - side // 2
    pixels = pixels[top : top + side, left : left + side]
    low, high = float(pixels.min()), float(pixels.max())
    if side > size:
        pixels = ndimage.gaussian_filter(pixels, (side / size - 1) / 2, mode="constant")
    if side != size:
        pixels = ndimage.zoom(pixels, size / side, order=1, mode="grid-constant", grid_mode=True)
        if pixels.min() <= 0 <= pixels.max():  # pixels outside of the image count as 0
            low, high = min(low, 0.0), max(high, 0.0)
        pixels = pixels.clip(low, high)
    return pixels[None].astype(np.float32)


def read_norm(text: str | None, channels: int) -> Norm:
    """The mean and standard deviation in a text; empty, which stands for the defaults, if there is none.

    >>> read_norm("xray", 1), read_norm("0.4,0.5,0.6/0.25", 3)
    ({'mean': (0.5,), 'std': (0.00048828125,)}, {'mean': (0.4, 0.5, 0.6), 'std': (0.25, 0.25, 0.25)})
    """
    if text is None:
        return Norm(mean=(), std=())
    if text in NAMED_NORMS:
        mean, std = NAMED_NORMS[text]["mean"], NAMED_NORMS[text]["std"]
    else:
        try:
            mean, std = (tuple(float(number) for number in part.split(",")) for part in text.split("/"))
        except ValueError:
            raise BadInput(
                f"normalise must be {', '.join(NAMED_NORMS)} or MEAN/STD, as in 0.5/0.25; got {text!r}.{did_you_mean(text, NAMED_NORMS)}"
            ) from None
    mean, std = (values * channels if len(values) == 1 else values for values in (mean, std))
    return Norm(mean=mean, std=std)


def read_resize(value: Any) -> int | tuple[int, int] | None:
    """A resize: the shorter side, or height and width, which may be text such as 320x256."""
    if value is None:
        return None
    try:
        parts = value.lower().split("x") if isinstance(value, str) else value if isinstance(value, (list, tuple)) else [value]
        sides = tuple(map(int, parts))
    except (TypeError, ValueError):
        sides = ()
    if len(sides) not in (1, 2) or any(side < 1 for side in sides):
        raise BadInput(f"resize must be the shorter side in pixels, as in 256, or HEIGHTxWIDTH, as in 320x256; got {value!r}")
    return sides[0] if len(sides) == 1 else (sides[0], sides[1])


def read_crop(value: Any) -> int | str | None:
    """A crop: the side of a central square, which may be text, or "square"."""
    if value is None or value == SQUARE:
        return value  # type: ignore[no-any-return]
    text = str(value)
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise BadInput(f"crop must be a number of pixels, as in 224, or {SQUARE}, the largest central square; got {value!r}")
    return int(text)


IMAGE_COLUMNS = ("image", "path", "file", "filename", "Image Index")  # columns that are searched for the names of images
STEPS = ("size", "resize", "crop", "interpolation", "channels", "normalise", "preset")  # what a transform does instead


class ImageFolder(Specification):
    """A folder with the images of the rows, and the preprocessing that the network expects.

    >>> ImageFolder(folder="xrays", resize="320x256", normalise="xray").decoding["std"]
    (0.00048828125,)
    """

    folder: Path | None = setting("folder with the images of the rows (PNG, JPEG, DICOM, ...)", None, flag="--images")
    column: str | None = setting(
        "column with image names: paths relative to the folder, or names unique below it, with or without extension",
        None,
        shown=f"the first of {', '.join(IMAGE_COLUMNS)}",
        was="--image-column",
    )
    size: int | None = setting("stretch the images to this many pixels per side, the input size of the network", None, shown="224")
    resize: Annotated[Any, BeforeValidator(read_resize)] = setting(
        'resize the shorter side to this many pixels; or "HEIGHTxWIDTH". Antialiased', None
    )
    crop: Annotated[Any, BeforeValidator(read_crop)] = setting(
        'then crop the central square of this many pixels; or "square": crop the largest one before resizing', None
    )
    interpolation: str | None = setting(f"how to resize: {', '.join(INTERPOLATIONS)}", None, shown="bilinear")
    centre: str | None = setting("start of a crop whose centre lies between two pixels: rounded or floor", None, shown="rounded")
    channels: int | None = setting("1 for greyscale, 3 for colour; also before a transform", None, shown="1")
    normalise: str | dict[str, tuple[float, ...]] | None = setting(
        f'normalisation of pixels in [0, 1]: {", ".join(NAMED_NORMS)} or "MEAN/STD"',
        None,
        shown="0.5/0.25 for greyscale, ImageNet's for colour",
    )
    preset: str | None = setting(f"preprocessing of a library: {', '.join(PRESETS)}", None)
    transform: Any = setting("your own preprocessing instead, as file.py:transform, whose code is executed", None)
    from_headers: bool = setting("read sex, age and view from DICOM headers where the table has none; frontal views only", False)
    skip_broken: bool = setting("skip unreadable images and report them", False)
    allow_outside: bool = setting("also read images outside the folder (.., absolute paths, links)", False)
    max_pixels: int = setting("refuse images with more pixels than this before decoding them", MAX_PIXELS)
    cache: Path | None = setting("folder for a cache of the decoded images", None, shown="memory; the user cache if there are many")

    @model_validator(mode="after")
    def _combined(self) -> Self:
        """Raises one error with all settings that exclude each other, or that have no folder to apply to."""
        if self.folder is None:
            given = [name for name, field in type(self).model_fields.items() if getattr(self, name) != field.default]
            problems = [f"images.{name} requires images.folder (--images). Omit it." for name in given]
        elif self.transform is not None:
            given = [f"images.{name}" for name in STEPS if name != "channels" and getattr(self, name) is not None]
            problems = [f"images.transform does all of the preprocessing. Omit {', '.join(given)}, or images.transform."] if given else []
        else:
            problems = []
            with collecting(problems):
                steps = {name: getattr(self, name) for name in ("size", "resize", "crop", "interpolation", "centre", "channels", "preset")}
                make_preprocessing(**steps, **self.norm)
        if problems:
            raise BadInput(*problems)
        return self

    @property
    def norm(self) -> Norm:
        """The mean and standard deviation of the pixels; empty, which stands for the defaults, if there are none."""
        if isinstance(self.normalise, Mapping):
            return Norm(mean=self.normalise["mean"], std=self.normalise["std"])
        channels = 1 if self.preset is None else PRESETS[pick("preset", self.preset, PRESETS)].channels
        return read_norm(self.normalise, self.channels or channels)

    @property
    def text(self) -> set[str]:
        """The columns that may hold the names of images, which are read as text."""
        return set() if self.folder is None else {self.column} if self.column else set(IMAGE_COLUMNS)

    @property
    def decoding(self) -> dict[str, Any]:
        """The options of `Images.open`."""
        names = (*(name for name in STEPS if name != "normalise"), "centre", "transform", "skip_broken", "max_pixels", "cache")
        return {name: getattr(self, name) for name in names} | dict(self.norm)

    def with_preprocessing(self, default: Mapping[str, Any], owner: str) -> tuple[ImageFolder, tuple[str, ...]]:
        """The images with a default preprocessing, and the names of the settings that the user has given instead.

        `default` holds keywords of `Images.open`, such as those of a model's own preprocessor, and `owner` is its name in messages. A
        preset or a transform is a complete preprocessing and replaces the default.
        """
        overridden = tuple(name for name in (*STEPS, "transform") if getattr(self, name) is not None)
        if self.folder is None or not default or self.preset is not None or self.transform is not None:
            return self, overridden
        channels = default["channels"]
        if self.channels not in (None, channels):
            raise BadInput(f"channels are {self.channels}, and {owner} takes {channels}. Omit images.channels.")
        merged = {name: getattr(self, name) for name in ("resize", "crop", "interpolation", "channels")}
        merged = {name: default[name] if value is None else value for name, value in merged.items()}
        if self.size is not None:  # resizes to a square, which leaves nothing to resize or crop
            merged |= {"resize": self.resize, "crop": self.crop}
        elif self.crop is None:
            merged["centre"] = default["centre"]
        norm = {"mean": tuple(default["mean"]), "std": tuple(default["std"])}
        if self.normalise is not None:
            given: dict[str, Any] = dict(self.norm)
            norm = {name: values * channels if len(values) == 1 else values for name, values in given.items()}
        return self.changed(**merged, normalise=norm), overridden
