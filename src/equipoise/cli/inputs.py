"""The options of data files, images and networks, and how they are read."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from equipoise import data, report
from equipoise.cli.console import counting
from equipoise.errors import BadInput, did_you_mean, pick, raise_all

FileArgument = Annotated[Path, typer.Argument(help="CSV or Parquet file with one row per sample; audit also takes a folder of them.")]

ModelOption = Annotated[
    str | None,
    typer.Option(
        help="Network as file.py:factory, package.module:factory or exported program (.pt2), whose code is executed; an ONNX file, a "
        "local folder of Hugging Face's transformers, or an estimator (.skops; .pkl and .joblib with --trust-pickle); or a backbone: "
        "resnet-18, vgg-16, densenet-121, squeezenet, efficientnet-lite0, efficientnet-lite1.",
        rich_help_panel="Network",
    ),
]
WeightsOption = Annotated[
    Path | None, typer.Option(help="Weights of the network (.safetensors, or a torch file with a state dict).", rich_help_panel="Network")
]
ModelOutputOption = Annotated[
    str | None,
    typer.Option(help="What the network returns: logit or probability.", show_default="auto-detected", rich_help_panel="Network"),
]
OutputNameOption = Annotated[
    list[str] | None,
    typer.Option(
        help="Name or number of the output to use in a network with many, as in Effusion; with several labels, LABEL=OUTPUT, "
        "as in Effusion=3, repeated for each.",
        rich_help_panel="Network",
    ),
]
PdfOption = Annotated[
    Path | None, typer.Option("--pdf", help="Also write a short report as PDF to this file; needs Chromium, Chrome, Edge or WeasyPrint.")
]
GroupNameOption = Annotated[
    list[str] | None,
    typer.Option(
        help="Words for a group in the report, VALUE=WORDS, as in F=women; repeat it for each group.",
    ),
]


@dataclass(frozen=True)
class Option:
    """An option that sets a field of `data.Reading`."""

    kind: Any
    default: Any
    help: str
    flag: str = ""  # where it is not the field's name
    shown: str | bool = True  # the default in words
    panel: str | None = None
    least: int | None = None

    @property
    def parameter(self) -> Any:
        """Its annotation for typer."""
        flags = [self.flag] if self.flag else []
        more: dict[str, Any] = {"show_default": self.shown, "rich_help_panel": self.panel, "min": self.least}
        return Annotated[self.kind, typer.Option(*flags, help=self.help, **more)]


def _image(kind: Any, default: Any, help: str, flag: str = "", shown: str | bool = True) -> Option:
    return Option(kind, default, help, flag, shown, "Images")


OPTIONS = {  # by field of data.Reading; bins and norm are parsed
    "labels": Option(
        list[str] | None,
        None,
        "Column with the true label, 0 or 1 (empty: unknown); repeat it for several labels.",
        "--label",
        "required, but for --score-prefix",
    ),
    "group": Option(list[str], ..., "Column with the protected attribute; repeat it for several attributes and their intersections."),
    "reference": Option(list[str] | None, None, "Reference (privileged) group; one per --group.", shown="the largest group"),
    "patient": Option(str | None, None, "Column with patient ids; intervals resample patients."),
    "id": Option(str | None, None, "Column with unique row ids."),
    "positive": Option(str | None, None, "Label value that counts as positive, if labels are not 0 and 1."),
    "classes": Option(
        list[str] | None,
        None,
        "Class of the only --label, for a network that decides by argmax; repeat it for every class, in the order of its outputs.",
        "--class",
        "none: the label is 0 or 1",
    ),
    "bins": Option(
        list[str] | None,
        None,
        "Edges that cut a numeric --group column into groups: age=40,60,80 gives <40, 40-59, 60-79, 80+; repeat it for more.",
    ),
    "conflicts": Option(
        str, "row", "Patients recorded in several groups: row (as recorded), first, majority, blank (no group) or error; needs --patient."
    ),
    "weight": Option(str | None, None, "Column with sample weights (positive numbers), as of a case-control or survey sample."),
    "features": Option(
        list[str] | None,
        None,
        "Input column of a tabular network; repeat it, in order.",
        "--feature",
        "all columns without another role",
        "Network",
    ),
    "images": _image(Path | None, None, "Folder with the images of the rows (PNG, JPEG, DICOM, ...)."),
    "image_column": _image(
        str | None,
        None,
        "Column with the image names: paths relative to the folder, or names unique below it, with or without extension.",
        shown="image, path, file, filename or Image Index",
    ),
    "view_column": _image(str | None, None, "Column with the view; only frontal views (PA, AP) are used."),
    "from_headers": _image(
        bool,
        False,
        "Read the columns sex, age and view from the DICOM headers where the table has none, and use frontal views only.",
        "--from-headers",
    ),
    "size": _image(int | None, None, "Stretch the images to this many pixels per side, the input size of the network.", shown="224"),
    "resize": _image(
        str | None,
        None,
        "Resize the shorter side to this many pixels, as torchvision's Resize(256); or HEIGHTxWIDTH. Antialiased.",
        shown="none: see --size",
    ),
    "crop": _image(
        str | None,
        None,
        "Then take the central square of so many pixels, as CenterCrop(224); or 'square': the largest one, before resizing.",
        shown="none",
    ),
    "interpolation": _image(str | None, None, f"How to resize: {', '.join(data.INTERPOLATIONS)}.", shown="bilinear"),
    "channels": _image(
        int | None, None, "1 for grayscale, 3 for colour; with --transform, what images are converted to before it.", shown="1"
    ),
    "norm": _image(
        str | None,
        None,
        "Normalisation of pixels in [0, 1]: imagenet, xray (-1024 to 1024, torchxrayvision), unit (0 to 1), inception (-1 to 1), clip or "
        "MEAN/STD.",
        "--normalise",
        "0.5/0.25 for grayscale, ImageNet's for colour",
    ),
    "preset": _image(
        str | None,
        None,
        "Preprocessing of torchvision (256, crop 224, ImageNet), timm (the same, bicubic) or torchxrayvision (central square, 224, xray).",
        shown="none",
    ),
    "transform": _image(
        str | None,
        None,
        "Your own preprocessing instead, as file.py:transform: a torchvision or MONAI transform, or a function from a Pillow image to a "
        "tensor, whose code is executed.",
        shown="none",
    ),
    "skip_broken": _image(bool, False, "Skip unreadable images and report them.", "--skip-broken"),
    "allow_outside": _image(bool, False, "Also read images outside the folder (.., absolute paths, links).", "--allow-outside"),
    "max_pixels": _image(int, data.MAX_PIXELS, "Refuse images with more pixels than this before decoding them."),
    "cache": _image(Path | None, None, "Folder for a cache of the decoded images.", shown="memory; the user cache if there are many"),
    "max_table_bytes": Option(
        int | None,
        None,
        "Maximum size of a table, in bytes after decompression.",
        shown=f"{data.LIMIT_VARIABLE}, or {data.MAX_TABLE_BYTES:,}",
        least=1,
    ),
}


def reads_data(*names: str, optional: Collection[str] = ()) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The command with options of OPTIONS, all or those named, in place of its parameter `inputs`; `optional` ones may be left out."""
    taken = {name: OPTIONS[name] for name in names or OPTIONS}
    taken |= {name: replace(taken[name], kind=taken[name].kind | None, default=None) for name in optional}
    keyword = inspect.Parameter.KEYWORD_ONLY
    options = [
        inspect.Parameter(name, keyword, annotation=one.parameter, default=inspect.Parameter.empty if one.default is ... else one.default)
        for name, one in taken.items()
    ]

    def extended(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        own = list(signature.parameters.values())
        at = [parameter.name for parameter in own].index("inputs")
        merged = [parameter.replace(kind=keyword) for parameter in [*own[:at], *options, *own[at + 1 :]]]

        @wraps(command)
        def called(**values: Any) -> None:
            if "labels" in taken:
                values["labels"] = list(values["labels"] or [])
            command(inputs=Inputs({name: values.pop(name) for name in taken}), **values)

        called.__signature__ = signature.replace(parameters=merged)  # type: ignore[attr-defined]
        called.__annotations__ = {parameter.name: parameter.annotation for parameter in merged}
        return called

    return extended


NUMBERS: dict[str, tuple[str, Callable[[float], bool]]] = {  # by option: what is allowed, in words and as a check
    "threshold": ("between 0 and 1", lambda x: 0 <= x <= 1),
    "test_fraction": ("between 0 and 1, as in 0.3", lambda x: 0 < x < 1),
    "level": ("at least 0.01 and at most 0.9999, as in 0.95", lambda x: 0.01 <= x <= 0.9999),
    "specificity": ("between 0 and 1, as in 0.9", lambda x: 0 < x < 1),
    "sensitivity": ("between 0 and 1, as in 0.9", lambda x: 0 < x < 1),
    "draws": ("at least 2", lambda x: x >= 2),
    "seed": ("at least 0", lambda x: x >= 0),
    "min_patients": ("at least 1", lambda x: x >= 1),
}


def number_problems(**given: float | None) -> list[str]:
    """The options whose number is not allowed."""
    return [
        f"--{name.replace('_', '-')} must be {NUMBERS[name][0]}; got {value}"
        for name, value in given.items()
        if value is not None and not NUMBERS[name][1](value)
    ]


def collected(problems: list[str], check: Callable[[], Any]) -> Any:
    """The result of a check; its problems are added to the others."""
    try:
        return check()
    except BadInput as error:
        problems += error.problems
        return None


@dataclass(frozen=True)
class Inputs:
    """The options that say how to read a data file, by the fields of `data.Reading`."""

    options: Mapping[str, Any]

    @property
    def reading(self) -> data.Reading:
        """The options as the library takes them."""
        bins = dict(map(data.read_bins, self.options["bins"] or []))
        return data.Reading(**{**self.options, **self._pixels(), "transform": self._transform(), "bins": bins})

    def _pixels(self) -> dict[str, Any]:
        """The options of preprocessing that are texts, parsed."""
        preset = self.options["preset"]
        base = data.PRESETS[pick("--preset", preset, data.PRESETS)]["channels"] if preset is not None else 1
        norm = data.read_norm(self.options["norm"], self.options["channels"] or base)
        return {"norm": norm, "resize": data.read_resize(self.options["resize"]), "crop": data.read_crop(self.options["crop"])}

    def _transform(self) -> data.Transform | None:
        if self.options["transform"] is None:
            return None
        from equipoise.models import load_transform

        return load_transform(self.options["transform"])

    def problems(self) -> list[str]:
        """Options that do not go together."""
        labels = self.options["labels"]
        if not labels:
            return ["--label is missing: name the column with the true label (or pair labels with scores by --score-prefix)"]
        twice = [f"--label {name} was given twice. Give each label once." for name in sorted({n for n in labels if labels.count(n) > 1})]
        return twice + self._of_classes() + self._of_groups() + self._of_images()

    def _of_classes(self) -> list[str]:
        classes = self.options["classes"] or []
        found = [f"--class {name} was given twice. Give each class once." for name in sorted({c for c in classes if classes.count(c) > 1})]
        if len(classes) == 1:
            found.append(f"--class needs two or more; got {classes[0]!r}. Repeat it for every output of the network, in their order.")
        if classes and len(self.options["labels"]) > 1:
            found.append("--class takes one --label, the column that holds the class of each row. Omit the others.")
        if classes and self.options["positive"] is not None:
            found.append("--class and --positive cannot be combined: classes have no positive value. Omit one of them.")
        return found

    def _of_groups(self) -> list[str]:
        found: list[str] = []
        columns, groups, conflicts = [], self.options["group"], self.options["conflicts"]
        for text in self.options["bins"] or []:
            if (read := collected(found, partial(data.read_bins, text))) is not None:
                columns.append(read[0])
        found += [f"--bins {name} was given twice. Give each column once." for name in sorted({c for c in columns if columns.count(c) > 1})]
        found += [
            f"--bins names {name!r}, which is not a --group.{did_you_mean(name, groups)} Add --group {name}, or omit its bins."
            for name in dict.fromkeys(columns)
            if name not in groups
        ]
        if conflicts != "row":  # looking at the others imports pandas
            collected(found, lambda: pick("value of --conflicts", conflicts, data.CONFLICTS))
        if conflicts != "row" and self.options["patient"] is None:
            found.append(f"--conflicts {conflicts} requires patient ids. Give their column with --patient.")
        return found

    def _of_images(self) -> list[str]:
        if self.options["images"] is None:
            given = [name for name, one in OPTIONS.items() if one.panel == "Images" and self.options[name] != one.default]
            return [f"{OPTIONS[name].flag or f'--{name}'.replace('_', '-')} requires --images. Omit it." for name in given]
        found = ["--feature is for tabular networks; the inputs are the --images. Omit it."] if self.options["features"] else []
        if self.options["id"] is not None:
            found.append("--id is for tables without images; with --images the image name is the id. Omit it.")
        own = {name: self.options[name] for name in ("size", "resize", "crop", "interpolation", "norm", "preset")}
        if self.options["transform"] is not None:
            taken = [OPTIONS[name].flag or f"--{name}" for name, value in own.items() if value is not None]
            return found + ([f"--transform makes images what the network takes. Omit {', '.join(taken)}, or --transform."] if taken else [])
        if (read := collected(found, self._pixels)) is not None:
            norm, how = read.pop("norm"), {name: self.options[name] for name in ("size", "interpolation", "channels", "preset")}
            collected(found, lambda: data.preprocessing_of(**how, **read, **norm))
        return found


@dataclass(frozen=True)
class Opened:
    """A file that was read, with its words for people."""

    read: data.Read

    @property
    def cohort(self) -> data.Cohort:
        return self.read.cohort

    def counts(self) -> dict[str, object]:
        return self.read.counts()

    def to_dict(self) -> dict[str, object]:
        return self.read.to_dict()

    def preprocessing(self) -> dict[str, object] | None:
        """How images became inputs, as plain values."""
        return self.cohort.source.to_dict() if isinstance(self.cohort.source, data.Images) else None

    def summary(self, varying: bool = True) -> list[str]:
        """Rows left out and, unless an audit reports them itself, patients in several groups; without names."""
        found = data.varying_in(self.cohort.attributes, self.cohort.patients) if varying else ()
        return [*self._left_out(), *(report.varying_words(each) for each in found)]

    def lines(self, varying: bool = True) -> list[str]:
        """The summary for the user's terminal, with the first images that were left out."""
        left_out = self.read.left_out
        more = f"  and {len(left_out) - 5:,} more (--json lists them)"
        named = [f"  {one}" for one in left_out[:5]] + ([more] if len(left_out) > 5 else [])
        said, at = self.summary(varying), len(self._left_out())
        return [*said[:at], *named, *said[at:]]

    def _left_out(self) -> list[str]:
        read = self.read
        said = [f"{read.not_frontal:,} rows that are not frontal views were left out"] if read.not_frontal else []
        if read.left_out:
            kinds = ", ".join(f"{count:,} {kind}" for kind, count in data.counted(read.left_out).items())
            said.append(f"{len(read.left_out):,} unreadable images were left out: {kinds}")
        return said


def cohort_of(file: Path, reading: data.Reading) -> Opened:
    """The cohort in a data file, read with a progress bar."""
    return Opened(data.read_cohort(file, reading, progress=counting))


def group_names_of(texts: list[str] | None, cohort: data.Cohort | data.Scores | None = None) -> dict[str, str]:
    """The words for groups; with a cohort, an error where it has no such group.

    >>> group_names_of(["F=women", ">=60=older"])
    {'F': 'women', '>=60': 'older'}
    """
    found, problems = {}, []
    for text in texts or []:
        group, equals, words = (piece.strip() for piece in text.rpartition("="))
        if not equals or not group or not words:
            problems.append(f"--group-name must be VALUE=WORDS, as in F=women; got {text!r}")
        found[group] = words
    raise_all(problems)
    if cohort is not None:
        report.group_words(found, {a.name: a.levels for a in cohort.attributes})
    return found


ENDINGS = {"--report": (".html", ".htm"), "--pdf": (".pdf",)}


def page_problems(places: Mapping[str, Path | None]) -> list[str]:
    """A problem for each of --report and --pdf whose name has another ending than what is written."""
    return [
        f"{option} writes {ENDINGS[option][0]}; got {place.name!r}. Use {option} {place.with_suffix(ENDINGS[option][0]).name}."
        for option, place in places.items()
        if place is not None and place.suffix.lower() not in ENDINGS[option]
    ]
