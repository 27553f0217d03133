"""The schemas of run.json and audit.json in a bundle: every key with its type, and the checks across keys."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter, model_validator
from pydantic.dataclasses import dataclass as checked

from equipoise.data import CONFLICTS, Transform, make_preprocessing
from equipoise.methods import STRICT, Cut
from equipoise.models import ORIGINAL_ONNX, onnx_file_and_output
from equipoise.repair.folder import FILES
from equipoise.repair.saved_predictor import SavedPredictor

SCHEMA, SCHEMA_VERSION = "equipoise.repaired", 6
NETWORK_KIND, RULE_KIND, PREDICTOR_KIND = "network", "rule", "predictor"  # a rule with a network, for scores only, with an estimator
RUN = "run.json"
OPEN = ConfigDict(extra="allow", strict=True)
Checksum = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
OutcomeName = Literal["closed", "reduced", "unclear", "harm", "unchanged"]


@checked(config=STRICT, kw_only=True)
class ServedTransform:
    """The code of a transform: its path and checksum; neither for a callable from Python."""

    named: str
    path: str | None
    sha256: Checksum | Literal[""]


@checked(config=STRICT, kw_only=True)
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
    transform: ServedTransform | None = None

    @model_validator(mode="after")
    def _one_way(self) -> Any:
        options = {name: value for name, value in vars(self).items() if name != "transform" and value not in (None, [])}
        if self.transform is not None:
            if surplus := sorted(set(options) - {"channels"}):
                raise ValueError(f"has a `transform` and {', '.join(surplus)} as well")
        elif self.interpolation is None:
            raise ValueError("needs `interpolation`, or a `transform`")
        else:
            make_preprocessing(**options)  # raises an error about options that exclude each other
        return self


def opening(images: Mapping[str, Any], transform: Transform | None) -> dict[str, Any]:
    """The options of `Images.open` that run.json records."""
    return {name: value for name, value in images.items() if name != "transform" and value not in (None, [])} | {"transform": transform}


@checked(config=STRICT, kw_only=True)
class _Code:
    path: str | None
    sha256: Checksum | Literal[""]


@checked(config=STRICT, kw_only=True)
class _Classes:
    names: Annotated[list[str], Field(min_length=2)]
    columns: list[Count]
    output: Literal["logit", "probability"]

    @model_validator(mode="after")
    def _one_each(self) -> Any:
        if not len(self.names) == len(self.columns) == len({*self.names}) == len({*self.columns}):
            raise ValueError("needs one column of its own for each of its names")
        return self


@checked(config=STRICT, kw_only=True)
class _Model:
    named: str
    load: Annotated[str, Field(min_length=1)] | None  # None: the network is given when the bundle is loaded
    output: Literal["logit", "probability"]
    output_name: str | None
    classes: _Classes | None = None  # for a network that decides between classes by argmax
    code: _Code | None


@checked(config=STRICT, kw_only=True)
class _Bins:
    edges: Annotated[list[Finite], Field(min_length=1)]
    whole: bool

    @model_validator(mode="after")
    def _ascending(self) -> Any:
        if sorted(set(self.edges)) != self.edges:
            raise ValueError("has edges that do not ascend")
        return self


@checked(config=STRICT, kw_only=True)
class _Encoder:
    numeric: dict[str, Annotated[list[Finite], Field(min_length=2, max_length=2)]]  # column: mean, scale
    levels: dict[str, list[str]]

    @model_validator(mode="after")
    def _scales(self) -> Any:
        if zero := [name for name, (_, scale) in self.numeric.items() if scale <= 0]:
            raise ValueError(f"has scales that are not positive: {', '.join(zero)}")
        return self


@checked(config=STRICT, kw_only=True)
class _Inputs:
    patient: str | None
    id: str | None
    bins: dict[str, _Bins]
    images: ServedImages | None
    image_column: str | None = None
    view_column: str | None = None
    conflicts: str = "row"
    features: list[str] | None = None
    encoder: _Encoder | None = None  # None: numbers without scaling
    width: Positive | None = None  # columns of inputs that are arrays
    score: str | None = None  # for a rule for scores: their column
    logits: bool = False  # the column of scores holds logits

    @model_validator(mode="after")
    def _one_kind(self) -> Any:
        if self.conflicts not in CONFLICTS:
            raise ValueError(f"`conflicts` must be one of {', '.join(CONFLICTS)}; got {self.conflicts!r}")
        if self.score is None and sum((self.images is not None, bool(self.features), self.width is not None)) != 1:
            raise ValueError("needs `images`, `features` (the columns that are the network's inputs) or `width`, one of them")
        if self.encoder is not None and {*self.encoder.numeric, *self.encoder.levels} != {*(self.features or ())}:
            raise ValueError("has an `encoder` of other columns than `features`")
        return self


@checked(config=STRICT, kw_only=True)
class _Set:
    rows: Count
    patients: Count | None


@checked(config=STRICT, kw_only=True)
class _Onnx:
    max_difference: Finite
    opset: int
    rows: Count


@checked(config=STRICT, kw_only=True)
class _Run:
    schema: Literal["equipoise.repaired"]
    schema_version: Literal[6]
    title: str
    label: str
    command: str
    when: str
    seed: int
    versions: dict[str, str]
    hashes: dict[str, str]
    limits: list[str]
    kind: Literal["network", "rule", "predictor"]
    model: _Model | None  # None for a rule for scores
    predictor: SavedPredictor | None = None  # a classifier that is not a network
    heads: dict[str, Any] | None
    inputs: _Inputs
    groups: Annotated[list[str], Field(min_length=1)]
    method: str
    ran: str
    settings: dict[str, Any]
    methods: list[str]
    goal: dict[str, Any]
    outcome: OutcomeName
    met: bool | None
    sets: dict[Literal["repair", "test"], _Set | None]
    onnx: _Onnx | None
    failures: dict[str, str]
    files: dict[str, Checksum]
    digest: Checksum

    @model_validator(mode="after")
    def _complete(self) -> Any:
        if unknown := sorted(set(self.files) - set(FILES[:-1])):
            raise ValueError(f"lists files that are never written: {', '.join(unknown)}")
        network = self.kind == NETWORK_KIND
        if (self.model is None) == network or (self.inputs.score is None) != network:
            raise ValueError(f"is of kind {self.kind!r}: a rule needs the `score` of its inputs and no `model`, a network the reverse")
        if (self.predictor is None) == (self.kind == PREDICTOR_KIND):
            raise ValueError(f"is of kind {self.kind!r}: `predictor` goes with that kind only")
        needed = ["rule.json", "audit.json", *(["heads.safetensors"] if self.heads else [])]
        if self.predictor is not None and self.predictor.file is not None:
            needed.append(self.predictor.file)
        if self.model is not None:
            needed += ["repaired.safetensors", *(["repaired.pt2"] if (self.model.load or "").endswith(".pt2") else [])]
            needed += [ORIGINAL_ONNX] if onnx_file_and_output(self.model.load or "") else []
        if missing := [name for name in needed if name not in self.files]:
            raise ValueError(f"does not list {', '.join(missing)} among `files`")
        if self.model is not None and self.model.classes is not None and self.label not in self.model.classes.names:
            raise ValueError(f"has the label {self.label!r}, which is none of its classes")
        return self


@checked(config=OPEN, kw_only=True)
class _Audit:
    schema: Literal["equipoise.audit"]
    rows: Count
    patients: Count | None
    threshold: Cut | None
    needs_group: bool
    groups: list[dict[str, Any]]
    gaps: list[dict[str, Any]]


@checked(config=OPEN, kw_only=True)
class _Audits:
    schema: Literal["equipoise.debias"]
    schema_version: int
    outcome: OutcomeName
    met: bool | None
    judgement: dict[str, Any]
    chosen: str
    why: list[dict[str, Any]]
    goal: dict[str, Any]
    before: _Audit
    after: _Audit
    methods: dict[str, dict[str, Any]]


DOCUMENTS: dict[str, TypeAdapter[Any]] = {RUN: TypeAdapter(_Run), "audit.json": TypeAdapter(_Audits)}
