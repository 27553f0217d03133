"""Options shared by commands that take a data file: how to read it, and the network or the columns that make its scores.

Options that belong together are the fields of a dataclass. `takes_options` replaces each parameter of a command that is such a dataclass
by its fields.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from equipoise import data

network_option = partial(typer.Option, rich_help_panel="Network")
pipeline_option = partial(typer.Option, rich_help_panel="Pipelines")
INPUTS = "inputs"  # the parameter of a command that stands for options of OPTIONS
FileArgument = Annotated[Path, typer.Argument(help="CSV or Parquet file with one row per sample; audit also takes a folder of them.")]


@dataclass(frozen=True)
class NetworkOptions:
    """The network or estimator that makes the scores."""

    model: Annotated[
        str | None,
        network_option(
            help="Network as file.py:factory, package.module:factory or exported program (.pt2), whose code is executed; an ONNX file, a "
            "local folder of Hugging Face's transformers, or an estimator (.skops; .pkl and .joblib with --trust-pickle); or a backbone: "
            "resnet-18, vgg-16, densenet-121, squeezenet, efficientnet-lite0, efficientnet-lite1."
        ),
    ] = None
    weights: Annotated[Path | None, network_option(help="Weights of the network (.safetensors, or a torch file with a state dict).")] = None
    output_type: Annotated[
        str | None, network_option(help="What the network returns: logit or probability.", show_default="auto-detected")
    ] = None
    output_name: Annotated[
        list[str] | None,
        network_option(
            help="Name or number of the output to use in a network with many, as in Effusion; with several labels, LABEL=OUTPUT, "
            "as in Effusion=3, repeated for each."
        ),
    ] = None
    trust_pickle: Annotated[
        bool,
        network_option(
            "--trust-pickle",
            help="Read the --model from a pickle (.pkl, .pickle, .joblib), which runs any code that its author put into it.",
        ),
    ] = False
    trust_type: Annotated[
        list[str] | None, network_option(help="Type to trust in a .skops file, as listed in the error message; repeat it for more.")
    ] = None


@dataclass(frozen=True)
class ScoreOptions:
    """The columns of scores instead of a network or, with `check_scores`, of known scores of the network."""

    score: Annotated[
        list[str] | None,
        typer.Option(
            help="Column with the classifier's score in [0, 1], in place of a --model; one per --label, in the same order. With "
            "--check-scores, a column of that file."
        ),
    ] = None
    score_prefix: Annotated[
        str | None,
        typer.Option(
            help="Prefix of score columns: score_ pairs score_Effusion with the label Effusion. Without --label, all such pairs are used."
        ),
    ] = None
    logits: Annotated[bool, typer.Option("--logits", help="The scores are logits; the logistic function is applied first.")] = False
    check_scores: Annotated[
        Path | None,
        network_option(
            "--check-scores",
            help="File with known scores of this network in the columns --score, joined by image names or --id. "
            "The command stops if they differ.",
            show_default="none: the scores are not checked",
        ),
    ] = None
    tolerance: Annotated[
        float | None, network_option(help="Largest difference between a score and the known one.", show_default="0.0001")
    ] = None


PdfOption = Annotated[
    Path | None, typer.Option("--pdf", help="Also write a short report as PDF to this file; needs Chromium, Chrome, Edge or WeasyPrint.")
]
GroupNameOption = Annotated[
    list[str] | None, typer.Option(help="Words for a group in the report, VALUE=WORDS, as in F=women; repeat it for each group.")
]


@dataclass(frozen=True)
class Option:
    """An option that sets a field of `data.ReadOptions`."""

    kind: Any
    default: Any
    help: str
    flag: str = ""  # if it differs from the name of the field
    shown: str | bool = True  # the default, in words
    panel: str | None = None
    least: int | None = None

    @property
    def parameter(self) -> Any:
        """The annotation for typer."""
        flags = [self.flag] if self.flag else []
        shown: Any = self.shown
        return Annotated[self.kind, typer.Option(*flags, help=self.help, show_default=shown, rich_help_panel=self.panel, min=self.least)]


_image = partial(Option, panel="Images")
OPTIONS = {  # by field of data.ReadOptions
    "labels": Option(
        list[str] | None,
        None,
        "Column with the true label, 0 or 1 (empty: unknown); repeat it for several labels.",
        "--label",
        "required, unless --score-prefix is given",
    ),
    "group": Option(list[str], ..., "Column with the protected attribute; repeat it for several attributes and their intersections."),
    "reference": Option(list[str] | None, None, "Reference (privileged) group; one per --group.", shown="the largest group"),
    "patient": Option(str | None, None, "Column with patient ids; intervals then count patients instead of rows."),
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
    "weight": Option(str | None, None, "Column with sample weights (positive numbers), for example of a case-control or survey sample."),
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
        "Resize the shorter side to this many pixels, like torchvision's Resize(256); or HEIGHTxWIDTH. Antialiased.",
        shown="none: see --size",
    ),
    "crop": _image(
        str | None,
        None,
        "Then crop the central square of this many pixels, like CenterCrop(224); or 'square': crop the largest one before resizing.",
        shown="none",
    ),
    "interpolation": _image(str | None, None, f"How to resize: {', '.join(data.INTERPOLATIONS)}.", shown="bilinear"),
    "channels": _image(
        int | None, None, "1 for greyscale, 3 for colour; with --transform, images are converted to this before it.", shown="1"
    ),
    "norm": _image(
        str | None,
        None,
        "Normalisation of pixels in [0, 1]: imagenet, xray (-1024 to 1024, torchxrayvision), unit (0 to 1), inception (-1 to 1), clip or "
        "MEAN/STD.",
        "--normalise",
        "0.5/0.25 for greyscale, ImageNet's for colour",
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


def takes_options(*names: str, optional: Collection[str] = ()) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A decorator that replaces each parameter of a command that is a dataclass of options by the fields of the dataclass.

    The parameter `inputs` is replaced by the named options of OPTIONS, or by all of them; `optional` ones may be omitted by the user.
    """
    options = {name: OPTIONS[name] for name in names or OPTIONS}
    options |= {name: replace(options[name], kind=options[name].kind | None, default=None) for name in optional}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        groups: dict[str, tuple[Any, list[inspect.Parameter]]] = {}
        flattened: list[inspect.Parameter] = []
        for parameter in signature.parameters.values():
            kind = parameter.annotation
            if parameter.name == INPUTS:
                members = [_keyword(name, option.parameter, option.default) for name, option in options.items()]
            elif is_dataclass(kind):
                hints = get_type_hints(kind, include_extras=True)
                members = [_keyword(f.name, hints[f.name], ... if f.default is MISSING else f.default) for f in fields(kind)]
            else:
                flattened.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
                continue
            groups[parameter.name] = kind, members
            flattened += members

        @wraps(command)
        def wrapper(**values: Any) -> None:
            for name, (kind, members) in groups.items():
                fields_given = {member.name: values.pop(member.name) for member in members}
                values[name] = kind(fields_given) if name == INPUTS else kind(**fields_given)
            command(**values)

        wrapper.__signature__ = signature.replace(parameters=flattened)  # type: ignore[attr-defined]
        wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in flattened}
        return wrapper

    return decorate


def flag_of(name: str) -> str:
    """The flag of an option of OPTIONS, such as --image-column."""
    return OPTIONS[name].flag or f"--{name.replace('_', '-')}"


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    """A keyword parameter; the default `...` means that it is required."""
    default = inspect.Parameter.empty if default is ... else default
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)
