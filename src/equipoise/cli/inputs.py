"""The options of data files, images and networks, and how they are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from equipoise import data, report
from equipoise.cli.console import counting, say_code
from equipoise.errors import BadInput, did_you_mean, pick

if TYPE_CHECKING:
    from torch import nn

    from equipoise.models import Code

FileArgument = Annotated[Path, typer.Argument(help="CSV or Parquet file with one row per sample.")]
LabelOption = Annotated[
    list[str], typer.Option(help="Column with the true label, 0 or 1 (empty: unknown); repeat it for a multi-label network.")
]
GroupOption = Annotated[
    list[str], typer.Option(help="Column with the protected attribute; repeat it for several attributes and their intersections.")
]
ReferenceOption = Annotated[
    list[str] | None, typer.Option(help="Reference (privileged) group; one per --group.", show_default="the largest group")
]
PatientOption = Annotated[str | None, typer.Option(help="Column with patient ids; intervals resample patients.")]
IdOption = Annotated[str | None, typer.Option("--id", help="Column with unique row ids.")]
PositiveOption = Annotated[str | None, typer.Option(help="Label value that counts as positive, if labels are not 0 and 1.")]
BinsOption = Annotated[
    list[str] | None,
    typer.Option(
        help="Edges that cut a numeric --group column into groups: age=40,60,80 gives <40, 40-59, 60-79, 80+; repeat it for more."
    ),
]
ConflictsOption = Annotated[
    str,
    typer.Option(
        help="Patients recorded in several groups: row (as recorded), first, majority, blank (no group) or error; needs --patient."
    ),
]
MaxTableOption = Annotated[
    int | None,
    typer.Option(
        help="Maximum size of a table, in bytes after decompression.",
        show_default=f"{data.LIMIT_VARIABLE}, or {data.MAX_TABLE_BYTES:,}",
        min=1,
    ),
]

ModelOption = Annotated[
    str | None,
    typer.Option(
        help="Network as file.py:factory, package.module:factory or exported program (.pt2), whose code is executed; or a backbone: "
        "resnet-18, vgg-16, densenet-121, squeezenet, efficientnet-lite0, efficientnet-lite1.",
        rich_help_panel="Network",
    ),
]
WeightsOption = Annotated[
    Path | None, typer.Option(help="Weights of the network (.safetensors, or a torch file with a state dict).", rich_help_panel="Network")
]
FeatureOption = Annotated[
    list[str] | None,
    typer.Option(
        help="Input column of a tabular network; repeat it, in order.",
        show_default="all columns without another role",
        rich_help_panel="Network",
    ),
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

ImagesOption = Annotated[
    Path | None, typer.Option(help="Folder with the images of the rows (PNG, JPEG, DICOM, ...).", rich_help_panel="Images")
]
ImageColumnOption = Annotated[
    str | None,
    typer.Option(
        help="Column with the image names: paths relative to the folder, or names unique below it, with or without extension.",
        show_default="image, path, file, filename or Image Index",
        rich_help_panel="Images",
    ),
]
ViewColumnOption = Annotated[
    str | None, typer.Option(help="Column with the view; only frontal views (PA, AP) are used.", rich_help_panel="Images")
]
FromHeadersOption = Annotated[
    bool,
    typer.Option(
        "--from-headers",
        help="Read the columns sex, age and view from the DICOM headers where the table has none, and use frontal views only.",
        rich_help_panel="Images",
    ),
]
SizeOption = Annotated[
    int | None, typer.Option(help="Input size of the network, in pixels per side.", show_default="224", rich_help_panel="Images")
]
ChannelsOption = Annotated[int | None, typer.Option(help="1 for grayscale, 3 for colour.", show_default="1", rich_help_panel="Images")]
NormOption = Annotated[
    str | None,
    typer.Option(
        help="Normalisation of pixels in [0, 1]: xray (-1024 to 1024, torchxrayvision), unit (0 to 1) or MEAN/STD.",
        show_default="0.5/0.25 for grayscale, ImageNet's for colour",
        rich_help_panel="Images",
    ),
]
SkipBrokenOption = Annotated[bool, typer.Option("--skip-broken", help="Skip unreadable images and report them.", rich_help_panel="Images")]
AllowOutsideOption = Annotated[
    bool,
    typer.Option(
        "--allow-outside",
        help="Also read images outside the folder (.., absolute paths, links).",
        rich_help_panel="Images",
    ),
]
MaxPixelsOption = Annotated[
    int,
    typer.Option(help="Refuse images with more pixels than this before decoding them.", rich_help_panel="Images"),
]
CacheOption = Annotated[
    Path | None,
    typer.Option(
        help="Folder for a cache of the decoded images.",
        show_default="memory; the user cache if there are many",
        rich_help_panel="Images",
    ),
]


# Options that are read as they are; normalise, bins and cut are parsed.
SHARED = (
    *("labels", "group", "reference", "patient", "id", "positive", "features", "conflicts", "max_table_bytes", "images", "image_column"),
    *("view_column", "from_headers", "size", "channels", "skip_broken", "allow_outside", "max_pixels", "cache"),
)


@dataclass(frozen=True)
class Inputs:
    """The options that say how to read a data file."""

    labels: list[str]
    group: list[str]
    reference: list[str] | None = None
    patient: str | None = None
    id: str | None = None
    positive: str | None = None
    features: list[str] | None = None
    images: Path | None = None
    image_column: str | None = None
    view_column: str | None = None
    from_headers: bool = False
    size: int | None = None
    channels: int | None = None
    normalise: str | None = None
    skip_broken: bool = False
    allow_outside: bool = False
    max_pixels: int = data.MAX_PIXELS
    cache: Path | None = None
    bins: list[str] | None = None
    conflicts: str = "row"
    max_table_bytes: int | None = None
    cut: dict[str, data.Bins] | None = None  # the bins of an earlier file

    @property
    def edges(self) -> Mapping[str, Sequence[float] | data.Bins]:
        """The bins by column."""
        return self.cut or dict(data.read_bins(text) for text in self.bins or [])

    def cut_as(self, cohort: data.Cohort) -> Inputs:
        """The same for another file, with the bins of this cohort, so that both have groups of the same names."""
        return replace(self, cut={a.name: a.bins for a in cohort.attributes if a.bins is not None})

    @property
    def reading(self) -> data.Reading:
        """The options as the library takes them."""
        own = {name: getattr(self, name) for name in SHARED}
        return data.Reading(**own, norm=norm_of(self.normalise, self.channels or 1), bins=self.edges)

    @property
    def view(self) -> str | None:
        """The column that marks frontal views, if any."""
        return self.reading.view

    def problems(self) -> list[str]:
        """Options that do not go together."""
        twice = [
            f"--label {name} was given twice. Give each label once."
            for name in sorted({n for n in self.labels if self.labels.count(n) > 1})
        ]
        return twice + self._of_groups() + self._of_images()

    def _of_groups(self) -> list[str]:
        found: list[str] = []
        columns = []
        for text in self.bins or []:
            try:
                columns.append(data.read_bins(text)[0])
            except BadInput as error:
                found += error.problems
        found += [f"--bins {name} was given twice. Give each column once." for name in sorted({c for c in columns if columns.count(c) > 1})]
        found += [
            f"--bins names {name!r}, which is not a --group.{did_you_mean(name, self.group)} Add --group {name}, or omit its bins."
            for name in dict.fromkeys(columns)
            if name not in self.group
        ]
        try:
            pick("value of --conflicts", self.conflicts, data.CONFLICTS)
        except BadInput as error:
            found += error.problems
        if self.conflicts != "row" and self.patient is None:
            found.append(f"--conflicts {self.conflicts} requires patient ids. Give their column with --patient.")
        return found

    def _of_images(self) -> list[str]:
        with_images = {
            "--image-column": self.image_column,
            "--view-column": self.view_column,
            "--from-headers": self.from_headers,
            "--size": self.size is not None,
            "--channels": self.channels is not None,
            "--normalise": self.normalise,
            "--skip-broken": self.skip_broken,
            "--allow-outside": self.allow_outside,
            "--max-pixels": self.max_pixels != data.MAX_PIXELS,
            "--cache": self.cache,
        }
        if self.images is None:
            return [f"{option} requires --images. Omit it." for option, given in with_images.items() if given]
        found = ["--feature is for tabular networks; the inputs are the --images. Omit it."] if self.features else []
        if self.id is not None:
            found.append("--id is for tables without images; with --images the image name is the id. Omit it.")
        try:
            norm_of(self.normalise, self.channels or 1)
        except BadInput as error:
            found += error.problems
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


def cohort_of(file: Path, inputs: Inputs) -> Opened:
    """The cohort in a data file, read with a progress bar."""
    return Opened(data.read_cohort(file, inputs.reading, progress=counting))


def norm_of(text: str | None, channels: int) -> data.Norm:
    """The mean and standard deviation that an option names; empty, for the usual ones, where there is none.

    >>> norm_of("xray", 1), norm_of("0.4,0.5,0.6/0.25", 3)
    ({'mean': (0.5,), 'std': (0.00048828125,)}, {'mean': (0.4, 0.5, 0.6), 'std': (0.25, 0.25, 0.25)})
    """
    if text is None:
        return data.Norm(mean=(), std=())
    named = {"xray": data.XRAY_RANGE, "unit": data.UNIT_RANGE}
    if text in named:
        mean, std = named[text]["mean"], named[text]["std"]
    else:
        try:
            mean, std = (tuple(float(number) for number in part.split(",")) for part in text.split("/"))
        except ValueError:
            raise BadInput(
                f"--normalise must be xray, unit or MEAN/STD, as in 0.5/0.25; got {text!r}.{did_you_mean(text, named)}"
            ) from None
    mean, std = (values * channels if len(values) == 1 else values for values in (mean, std))
    return data.Norm(mean=mean, std=std)


def network_of(model: str, weights: Path | None, inputs: Inputs, output_name: str | None = None, code: Code | None = None) -> nn.Module:
    """The network that the options name, in eval mode: a factory's, a backbone's or an exported program's; one output if it has many.

    That an exported program is run is shown on stderr.
    """
    from equipoise.models import BACKBONES, PROGRAM, OneOutput, code_of, load_weights, network_with, output_named

    if model in BACKBONES and (weights is None or inputs.images is None):
        lacking = [option for option, given in (("--weights", weights), ("--images", inputs.images)) if given is None]
        raise BadInput(f"--model {model} is an untrained backbone for images; add {' and '.join(lacking)}")
    code = code or code_of(model)
    if weights is not None and model.endswith(PROGRAM):
        raise BadInput(f"the exported program {model} contains its weights. Omit {weights}.")
    state = None if weights is None else load_weights(weights)
    if model.endswith(PROGRAM):
        say_code(code)  # it looks like data and is code
    network = network_with(model, code, state, str(weights))
    if inputs.normalise is None and any(type(m).__module__.partition(".")[0] == "torchxrayvision" for m in network.modules()):
        raise BadInput(
            "the network is one of torchxrayvision, which are trained on pixels from -1024 to 1024: add --normalise xray; "
            "or --normalise unit if yours scales them itself"
        )
    if output_name is not None:
        network = OneOutput(network, output_named(output_name))
    return network.eval()


def scores_of(network: nn.Module, cohort: data.Cohort, output: str) -> data.Scores:
    """The network's scores; where it cannot take the images, the error says which it can."""
    from equipoise.models import predict, shape_advice

    try:
        return predict(network, cohort, output=output)
    except BadInput as error:
        advice = shape_advice(network, cohort.inputs.shape[1:]) if isinstance(cohort.source, data.Images) else ""
        if not advice:
            raise
        raise BadInput(" ".join((*error.problems, advice))) from error
