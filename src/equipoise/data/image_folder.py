"""Where the images of the rows are, and how they are preprocessed: the specification, which imports neither numpy nor torch."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, model_validator

from equipoise.data.faults import MAX_PIXELS
from equipoise.data.preprocessing import INTERPOLATIONS, NAMED_NORMS, PRESETS, Norm, make_preprocessing, read_crop, read_norm, read_resize
from equipoise.errors import BadInput, collecting, pick
from equipoise.specification import Specification, setting

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
        channels = 1 if self.preset is None else PRESETS[pick("preset", self.preset, PRESETS)]["channels"]
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

    def with_preprocessing(self, default: Mapping[str, Any], owner: str) -> tuple["ImageFolder", tuple[str, ...]]:
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
