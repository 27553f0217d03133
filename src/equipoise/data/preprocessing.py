"""The preprocessing of an image for a network: size, crop, interpolation, channels, normalisation, and the presets of other libraries.

Pixels are the same as with torchvision's Resize, CenterCrop, ToTensor and Normalize on Pillow images, which antialias. Importing this
module imports neither numpy nor torch, because the command line needs the names of the presets for its help.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self, TypedDict, cast

from pydantic import BeforeValidator, model_validator

from equipoise.errors import BadInput, collecting, did_you_mean, pick, raise_all
from equipoise.specification import Specification, setting

if TYPE_CHECKING:
    from PIL import Image

MAX_PIXELS = 100_000_000  # a film of 35 x 43 cm digitised at 50 micrometres has 60 million
INTERPOLATIONS = ("bilinear", "bicubic", "nearest", "lanczos", "box")
CROP_STARTS = ("rounded", "floor")  # the start of a crop whose centre lies between two pixels: torchvision rounds, transformers rounds down
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


# Beginnings of the names of random transforms
RANDOM_TRANSFORMS = ("Rand", "AutoAugment", "TrivialAugment", "AugMix", "ColorJitter", "GaussianNoise")
XRAY_PRESET = "torchxrayvision"  # resized in floating point by scikit-image's method, not by Pillow (see `decode_for_xray_network`)
LIBRARY_PREPROCESSING: dict[str, dict[str, Any]] = {  # the preprocessing of a library in its published evaluation
    "torchvision": {"resize": (256,), "crop": 224, "channels": 3},  # ResNet18_Weights.IMAGENET1K_V1.transforms()
    "timm": {"resize": (256,), "crop": 224, "interpolation": "bicubic", "channels": 3},  # timm.data.create_transform(224), crop_pct 0.875
    XRAY_PRESET: {"crop": SQUARE, **XRAY_RANGE},  # XRayCenterCrop, XRayResizer(224)
}


@dataclass(frozen=True)
class Preprocessing:
    """How decoded pixels are resized, cropped and normalised. An empty mean or std becomes the default of NORMS.

    >>> Preprocessing((256,), 224).shape, Preprocessing((320, 256)).shape, Preprocessing((256,), 224).within(500, 400)
    ((224, 224), (320, 256), (320, 256))
    """

    resize: tuple[int, ...] = (224, 224)  # the shorter side, or height and width; empty: not resized
    crop: int | str | None = None  # side of the central square after resizing; or SQUARE
    interpolation: str = "bilinear"
    centre: str = "rounded"  # one of CROP_STARTS
    channels: int = 1
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    preset: str | None = None

    def __post_init__(self) -> None:
        problems = [] if self.channels in NORMS else [f"channels must be one of {', '.join(map(str, NORMS))}; got {self.channels}"]
        problems += [f"resize must be at least 1 pixel; got {side}" for side in self.resize if side < 1]
        if not self.resize and not self.crops:
            problems.append("images of different sizes need resize or crop in pixels")
        for name, valid in (("interpolation", INTERPOLATIONS), ("centre", CROP_STARTS)):
            if getattr(self, name) not in valid:
                problems.append(f"{name} must be one of {', '.join(valid)}; got {getattr(self, name)!r}")
        for name, default in zip(("mean", "std"), NORMS.get(self.channels, ()), strict=False):
            values = getattr(self, name) or default
            object.__setattr__(self, name, values)
            if len(values) != self.channels:
                problems.append(f"{name} must hold one number per channel, {self.channels}; got {values}")
        if any(not s > 0 for s in self.std):
            problems.append(f"std must be positive; got {self.std}")
        raise_all(problems)

    @property
    def crops(self) -> bool:
        """Whether a central square of so many pixels is taken after resizing."""
        return self.crop not in (None, SQUARE)

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of the result."""
        height, width = (self.crop, self.crop) if self.crops else (self.resize[0], self.resize[-1])
        return cast(int, height), cast(int, width)

    def within(self, height: int, width: int) -> tuple[int, int]:
        """Height and width of an image after resizing, before a crop in pixels."""
        if self.crop == SQUARE:
            height = width = min(height, width)
        if len(self.resize) != 1:
            return (self.resize[0], self.resize[1]) if self.resize else (height, width)
        short, long = sorted((height, width))
        longer = int(self.resize[0] * long / short)
        return (self.resize[0], longer) if height <= width else (longer, self.resize[0])

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
        if self.crops:
            side = self.shape[0]
            # Negative for a smaller image, which is padded with black, as in torchvision.
            spare = (width - side, height - side)
            left, top = (-(-s // 2) if s < 0 else s // 2 if self.centre == "floor" else round(s / 2) for s in spare)
            image = image.crop((left, top, left + side, top + side))
        if (image.height, image.width) != self.shape:
            side = self.resize[0]
            raise BadInput(
                f"is {image.height} x {image.width} pixels after its shorter side was resized to {side}, which is not square. "
                f"Crop it as well (images.crop={side}), or stretch it (images.size={side})."
            )
        return image

    def to_dict(self) -> dict[str, object]:
        """Plain values that are options of `make_preprocessing`."""
        resize = self.resize[0] if len(self.resize) == 1 else list(self.resize) or None
        centre = {} if self.centre == "rounded" else {"centre": self.centre}
        norm = {"channels": self.channels, "mean": list(self.mean), "std": list(self.std), "preset": self.preset}
        return {"resize": resize, "crop": self.crop, "interpolation": self.interpolation, **centre, **norm}


def make_preprocessing(
    *,
    size: int | None = None,
    resize: int | tuple[int, int] | list[int] | str | None = None,
    crop: int | str | None = None,
    interpolation: str | None = None,
    channels: int | None = None,
    mean: Any = (),
    std: Any = (),
    preset: str | None = None,
    centre: str | None = None,
) -> Preprocessing:
    """The preprocessing from these options; those that are not given come from the preset, if any, or the defaults.

    - `size`: stretches images to a square; `resize`: the shorter side, or height and width; `crop`: the side of the central square.
    - `interpolation`, `centre`: of resizing, and where a crop starts; `channels`: 1 or 3; `mean`, `std`: one number per channel.
    - `preset`: the preprocessing of a library, by name.

    >>> make_preprocessing(preset="timm").interpolation, make_preprocessing(preset="timm").to_dict()["resize"]
    ('bicubic', 256)
    >>> make_preprocessing(resize=80, crop=64).shape, make_preprocessing(size=64).resize
    ((64, 64), (64, 64))
    """
    base = Preprocessing(**({} if preset is None else LIBRARY_PREPROCESSING[pick("preset", preset, LIBRARY_PREPROCESSING)]))
    sides, crop = read_resize(resize), read_crop(crop)
    crops = crop not in (None, SQUARE)
    problems = []
    if size is not None and sides:
        problems.append(f"size ({size}) stretches images to a square and resize ({resize}) keeps their shape; give one of them")
    if size is not None and crops:
        problems.append(f"size ({size}) stretches images to the input of the network; with crop={crop}, give resize={size} instead")
    if size is not None and preset not in (None, XRAY_PRESET):
        problems.append(f"the preset {preset!r} resizes and crops; give resize and crop instead of size={size}")
    given = {"resize": sides, "crop": crop, "interpolation": interpolation, "centre": centre}
    given |= {"channels": channels, "mean": tuple(mean), "std": tuple(std), "preset": preset}
    given = {name: value for name, value in given.items() if value not in (None, ())}
    others = {name: value for name, value in given.items() if name not in ("preset", "centre")}
    repeated = others == {name: getattr(base, name) for name in others} | ({"resize": sides[:1] * 2} if sides else {})
    if preset == XRAY_PRESET and others and (size is not None or not repeated):  # a bundle records all options of the preset at some size
        problems.append(f"the preset {preset!r} takes size and no other option; leave out {', '.join(others)}")
    raise_all(problems)
    if size is not None:
        given["resize"] = (size, size)
    elif not sides and crops and preset is None:  # a crop in pixels needs no resizing
        given["resize"] = ()
    norm: dict[str, Any] = {} if channels in (None, base.channels) else {"mean": (), "std": ()}
    return replace(base, **norm | given)


def read_resize(value: Any) -> tuple[int, ...]:
    """A resize: the shorter side, or height and width, which may be text such as 320x256; empty if there is none."""
    if value is None or value == ():
        return ()
    parts = value if isinstance(value, (list, tuple)) else str(value).lower().split("x")
    sides = tuple(int(part) for part in map(str, parts) if part.isascii() and part.isdigit())
    if len(sides) != len(parts) or len(sides) > 2:
        raise BadInput(f"resize must be the shorter side in pixels, as in 256, or HEIGHTxWIDTH, as in 320x256; got {value!r}")
    return sides


def read_crop(value: Any) -> int | str | None:
    """A crop: the side of a central square, which may be text, or "square"."""
    if value is None or value == SQUARE:
        return value  # type: ignore[no-any-return]
    text = str(value)
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise BadInput(f"crop must be a number of pixels, as in 224, or {SQUARE}, the largest central square; got {value!r}")
    return int(text)


@dataclass(frozen=True, eq=False)
class Transform:
    """The user's own preprocessing: a callable from an image to an array, and the file of its code."""

    function: Callable[[Any], Any] = field(repr=False)
    named: str  # as given on the command line, or the name of the callable
    path: Path | None = None  # None for a callable of this process
    sha256: str = ""
    takes: str = "image"  # or "array" or "path"

    @classmethod
    def of(cls, given: object, named: str | None = None, path: Path | None = None, sha256: str = "") -> Transform:
        """The callable as a transform. Raises `BadTransform` if it cannot be called or contains random transforms.

        - `given`: a function or object that is called with an image.
        - `named`: what it is called in messages; by default its own name.
        - `path`, `sha256`: the file of its code and the digest of that, if it was loaded from one.
        """
        if isinstance(given, Transform):
            return given
        name, kind = named or str(getattr(given, "__name__", type(given).__name__)), type(given).__name__
        if not callable(given):
            raise BadTransform(f"the transform {name} is of type {kind}. Name a function or object that is called with an image.")
        if random := sorted({type(part).__name__ for part in _composed_of(given) if type(part).__name__.startswith(RANDOM_TRANSFORMS)}):
            advice = "Name the transform for evaluation, not the one for training."
            raise BadTransform(f"the transform {name} is random: it contains {', '.join(random)}. {advice}")
        return cls(given, name, path, sha256, _argument_kind(given))

    def to_dict(self) -> dict[str, object]:
        """The name, file and checksum as plain values."""
        return {"named": self.named, "path": None if self.path is None else str(self.path), "sha256": self.sha256}


class BadTransform(BadInput):
    """The user's transform raised an error or returned an invalid result."""


def _composed_of(transform: object, depth: int = 0) -> Iterator[object]:
    """The transform and the transforms that it is composed of."""
    yield transform
    inner = getattr(transform, "transforms", None)
    if isinstance(inner, (list, tuple)) and depth < 10:
        for part in inner:
            yield from _composed_of(part, depth + 1)


def _argument_kind(transform: Any) -> str:
    """What the transform is called with: an "image", an "array" or a "path"."""
    if type(transform).__module__.partition(".")[0] == "monai":
        return "path" if any(type(part).__name__ == "LoadImage" for part in _composed_of(transform)) else "array"
    try:
        first = next(iter(inspect.signature(transform, eval_str=True).parameters.values()), None)
    except (ValueError, TypeError, NameError):  # a signature that cannot be read
        return "image"
    if first is None or first.annotation is first.empty:
        return "image"
    annotation = str(getattr(first.annotation, "__name__", first.annotation))
    if annotation in ("str", "Path", "PathLike"):
        return "path"
    return "array" if "ndarray" in annotation or "NDArray" in annotation else "image"


IMAGE_COLUMNS = ("image", "path", "file", "filename", "Image Index")  # columns that are searched for the names of images
PREPROCESSING_STEPS = ("size", "resize", "crop", "interpolation", "channels", "normalise", "preset")  # what a transform does instead


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
    )
    size: int | None = setting("stretch the images to this many pixels per side, the input size of the network", None, shown="224")
    resize: Annotated[Any, BeforeValidator(lambda value: read_resize(value) or None)] = setting(
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
    preset: str | None = setting(f"preprocessing of a library: {', '.join(LIBRARY_PREPROCESSING)}", None)
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
            given = [f"images.{name}" for name in PREPROCESSING_STEPS if name != "channels" and getattr(self, name) is not None]
            problems = [f"images.transform does all of the preprocessing. Omit {', '.join(given)}, or images.transform."] if given else []
        else:
            problems = []
            with collecting(problems):
                steps = {name: getattr(self, name) for name in ("size", "resize", "crop", "interpolation", "centre", "channels", "preset")}
                make_preprocessing(**steps, **self.norm)
        raise_all(problems)
        return self

    @property
    def norm(self) -> Norm:
        """The mean and standard deviation of the pixels; empty, which stands for the defaults, if there are none.

        >>> ImageFolder(folder="xrays", normalise="0.4,0.5,0.6/0.25", channels=3).norm
        {'mean': (0.4, 0.5, 0.6), 'std': (0.25, 0.25, 0.25)}
        """
        text = self.normalise
        if text is None:
            return Norm(mean=(), std=())
        if isinstance(text, Mapping):
            return Norm(mean=text["mean"], std=text["std"])
        if text in NAMED_NORMS:
            mean, std = NAMED_NORMS[text]["mean"], NAMED_NORMS[text]["std"]
        else:
            try:
                mean, std = (tuple(float(number) for number in part.split(",")) for part in text.split("/"))
            except ValueError:
                hint = did_you_mean(text, NAMED_NORMS)
                raise BadInput(f"normalise must be {', '.join(NAMED_NORMS)} or MEAN/STD, as in 0.5/0.25; got {text!r}.{hint}") from None
        preset = {} if self.preset is None else LIBRARY_PREPROCESSING[pick("preset", self.preset, LIBRARY_PREPROCESSING)]
        channels = self.channels or preset.get("channels", 1)
        mean, std = (values * channels if len(values) == 1 else values for values in (mean, std))
        return Norm(mean=mean, std=std)

    @property
    def text(self) -> set[str]:
        """The columns that may hold the names of images, which are read as text."""
        return set() if self.folder is None else {self.column} if self.column else set(IMAGE_COLUMNS)

    @property
    def decoding(self) -> dict[str, Any]:
        """The options of `Images.open`."""
        names = (*PREPROCESSING_STEPS, "centre", "transform", "skip_broken", "max_pixels", "cache")
        return {name: getattr(self, name) for name in names if name != "normalise"} | dict(self.norm)

    def with_preprocessing(self, default: Mapping[str, Any], owner: str) -> tuple[ImageFolder, tuple[str, ...]]:
        """The images with a default preprocessing, and the names of the settings that the user has given instead.

        `default` holds keywords of `Images.open`, such as those of a model's own preprocessor, and `owner` is its name in messages. A
        preset or a transform is a complete preprocessing and replaces the default.
        """
        overridden = tuple(name for name in (*PREPROCESSING_STEPS, "transform") if getattr(self, name) is not None)
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
