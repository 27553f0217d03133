"""What run.json in a bundle holds: every key with its type, and the checks across keys.

run.json is the dump of a `Run`, and reading it gives that `Run` back.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import AfterValidator, Field, TypeAdapter, model_serializer, model_validator
from pydantic.dataclasses import dataclass

from equipoise.case.case import RUN as RUN
from equipoise.case.folder import FILES
from equipoise.comparison import STRICT, Provenance, Text
from equipoise.data import Bins, Columns, Transform, make_preprocessing
from equipoise.disk import sha256
from equipoise.methods import Outcome

RUN_SCHEMA, RUN_VERSION = "equipoise.repaired", 9
NO_DIGEST = "0" * 64
OWN_NETWORK = "mlp"  # the network that `train` builds for tables, which is Equipoise's own code
PREDICTOR_SCORE = "score of the model"  # the column of the scores of a classifier that is not a network
Checksum = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
OutputType = Annotated[str, Field(pattern="^(logit|probability)$")]


@dataclass(config=STRICT, kw_only=True, frozen=True)
class SavedCode:
    """The code of a network or a transform, with the checksum of the bytes that were run; neither path nor checksum for a callable."""

    named: str = ""
    path: str | None
    sha256: Checksum | Literal[""]


@dataclass(config=STRICT, kw_only=True, frozen=True)
class ServedImages:
    """The preprocessing in run.json: the options of `Images.open`."""

    channels: Positive | None
    resize: Positive | Annotated[list[Positive], Field(min_length=2, max_length=2)] | None = None
    crop: Positive | str | None = None
    interpolation: str | None = None
    centre: Literal["rounded", "floor"] | None = None
    mean: list[Finite] = Field(default_factory=list)
    std: list[Annotated[float, Field(gt=0, allow_inf_nan=False)]] = Field(default_factory=list)
    preset: str | None = None
    transform: SavedCode | None = None

    @model_validator(mode="after")
    def _one_way(self) -> Any:
        options = {name: value for name, value in self.options().items() if name != "transform"}
        if self.transform is None and self.interpolation is None:
            raise ValueError("needs `interpolation`, or a `transform`")
        if self.transform is None:
            make_preprocessing(**options)  # do they exclude each other?
        elif surplus := sorted(set(options) - {"channels"}):
            raise ValueError(f"has a `transform` and {', '.join(surplus)} as well")
        return self

    def options(self, transform: Transform | None = None) -> dict[str, Any]:
        """The options of `Images.open`, with the code of the transform if there is one."""
        given = {name: value for name, value in vars(self).items() if name != "transform" and value not in (None, [])}
        return given | {"transform": transform}


@dataclass(config=STRICT, kw_only=True, frozen=True)
class SavedClasses:
    """The classes that a network decides between by argmax."""

    names: Annotated[list[str], Field(min_length=2)]
    columns: list[Count]
    output: OutputType

    @model_validator(mode="after")
    def _one_each(self) -> Any:
        if not len(self.names) == len(self.columns) == len({*self.names}) == len({*self.columns}):
            raise ValueError("needs one column of its own for each of its names")
        return self


@dataclass(config=STRICT, kw_only=True, frozen=True)
class SavedModel:
    """How to build the network again."""

    load: Annotated[str, Field(min_length=1)] | None  # None: the network is given when the bundle is loaded
    output: OutputType
    output_name: str | None = None
    classes: SavedClasses | None = None  # for a network that decides between classes by argmax
    code: SavedCode | None = None


@dataclass(config=STRICT, kw_only=True, frozen=True)
class SavedPredictor:
    """A classifier that is not a network."""

    named: str  # its type
    file: Annotated[str, Field(pattern=r"^predictor\.(skops|joblib)$")] | None  # None: it is given when the bundle is loaded
    positive: str | int | float | bool | None  # the positive class
    columns: list[str] | None  # the columns that it was fitted on
    libraries: dict[str, str]
    trusted: list[str]  # types in a .skops file that were trusted when it was written


def _ascending(bins: Bins) -> Bins:
    if not bins.edges or list(bins.edges) != sorted({*bins.edges}) or not np.isfinite(bins.edges).all():
        raise ValueError("has edges that do not ascend")
    return bins


@dataclass(config=STRICT, kw_only=True, frozen=True)
class SavedEncoder:
    """The encoding of columns as numbers."""

    numeric: dict[str, tuple[Finite, Annotated[float, Field(gt=0, allow_inf_nan=False)]]]  # column: mean, scale
    levels: dict[str, tuple[str, ...]]


class ServedInputs(Columns):
    """How new rows are prepared: the columns of the repair, of which a rule for scores has a `score`, and their encoding, or images."""

    bins: dict[str, Annotated[Bins, AfterValidator(_ascending)]] = Field(default_factory=dict)
    images: ServedImages | None = None
    image_column: str | None = None
    encoder: SavedEncoder | None = None  # None: numbers without scaling
    width: Positive | None = None  # columns of inputs that are arrays

    @model_validator(mode="after")
    def _one_kind(self) -> Any:
        if not self.group:
            raise ValueError("needs `group`, the columns with the groups of the repair")
        if not self.score and sum((self.images is not None, bool(self.features), self.width is not None)) != 1:
            raise ValueError("needs `images`, `features` (the columns that are the network's inputs) or `width`, one of them")
        if self.encoder is not None and {*self.encoder.numeric, *self.encoder.levels} != {*self.features}:
            raise ValueError("has an `encoder` of other columns than `features`")
        return self

    @model_serializer(mode="wrap")
    def _given(self, plain: Any) -> dict[str, Any]:
        return {name: value for name, value in plain(self).items() if name in self.model_fields_set}


@dataclass(config=STRICT, kw_only=True, frozen=True)
class Run:
    """The content of run.json: everything needed to reproduce the repair and to serve the classifier."""

    schema: Literal["equipoise.repaired"] = "equipoise.repaired"
    schema_version: Literal[9] = 9
    title: Text
    label: Text
    provenance: Provenance
    case: dict[str, Any] | None = None  # what the repair was made from, as `Case.to_dict` gives it; None if it was made in Python
    model: SavedModel | None  # None for a rule for scores
    predictor: SavedPredictor | None = None  # a classifier that is not a network
    heads: dict[str, Any] | None
    inputs: ServedInputs
    method: str
    ran: str
    settings: dict[str, Any]
    methods: list[str]
    goal: dict[str, Any]
    outcome: Outcome
    met: bool | None
    forced: bool = False  # the repair was run although a cell (group, label) has too few patients for any claim
    sets: dict[Literal["repair", "test"], dict[Literal["rows", "patients"], Count | None] | None]
    onnx: dict[Literal["max_difference", "opset", "rows"], int | Finite] | None  # the comparison of model.onnx with torch
    failures: dict[str, Text]
    files: dict[str, Checksum]
    digest: Checksum = NO_DIGEST  # see `sealed`

    @model_validator(mode="after")
    def _complete(self) -> Any:
        if unknown := sorted(set(self.files) - set(FILES[:-1])):
            raise ValueError(f"lists files that are never written: {', '.join(unknown)}")
        if (self.model is None) == (not self.inputs.score) or None not in (self.model, self.predictor):
            raise ValueError("needs the `score` of its inputs, of which a `predictor` may be the source, or a `model`, one of them")
        needed = ["rule.json", "audit.json", *(["heads.safetensors"] if self.heads else [])]
        if self.predictor is not None and self.predictor.file is not None:
            needed.append(self.predictor.file)
        if self.model is not None:
            load = self.model.load or ""
            needed += ["repaired.safetensors", *(["repaired.pt2"] if load.endswith(".pt2") else [])]
            needed += ["original.onnx"] if ".onnx" in (Path(load).suffix, Path(load.rpartition(":")[0]).suffix) else []
        if missing := [name for name in needed if name not in self.files]:
            raise ValueError(f"does not list {', '.join(missing)} among `files`")
        if self.model is not None and self.model.classes is not None and self.label not in self.model.classes.names:
            raise ValueError(f"has the label {self.label!r}, which is none of its classes")
        return self


RUN_FORMAT, IMAGES_FORMAT = TypeAdapter(Run), TypeAdapter(ServedImages)


def sealed(document: Mapping[str, object]) -> str:
    """The text of run.json: the document and its digest, the SHA-256 of this text with zeros in place of the digest.

    >>> text = sealed({"a": 1})
    >>> digest_matches(text.encode(), json.loads(text)), digest_matches(text.replace("1,", "2,").encode(), json.loads(text))
    (True, False)
    """
    text = json.dumps({**document, "digest": NO_DIGEST}, indent=2, allow_nan=False, default=str) + "\n"
    return text.removesuffix(f'{NO_DIGEST}"\n}}\n') + f'{sha256(text.encode())}"\n}}\n'


def digest_matches(content: bytes, document: Mapping[str, object]) -> bool:
    """Whether the bytes of run.json are those that `sealed` made."""
    ending, zeros = (f'"digest": "{digest}"\n}}\n'.encode() for digest in (document.get("digest"), NO_DIGEST))
    return content.endswith(ending) and sha256(content.removesuffix(ending) + zeros) == document.get("digest")
