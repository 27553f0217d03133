"""What run.json and audit.json of a bundle must hold: every key with its type, and what concerns more than one of them.

The code of a transform that prepares images runs only on request.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter, model_validator
from pydantic.dataclasses import dataclass as checked

from equipoise.data import CONFLICTS, Transform, as_transform, preprocessing_of
from equipoise.errors import BadInput, Untrusted
from equipoise.methods import STRICT, Cut
from equipoise.models import ORIGINAL_ONNX, Code, code_of, load_transform, place_of
from equipoise.repair.folder import FILES
from equipoise.repair.saved_predictor import SavedPredictor

Checksum = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Positive = Annotated[int, Field(ge=1)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


@checked(config=STRICT, kw_only=True)
class ServedTransform:
    """The code of a transform: where it was, and its checksum; none of both for a callable that was given in Python."""

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
        said = {name: value for name, value in vars(self).items() if name != "transform" and value not in (None, [])}
        if self.transform is not None:
            if set(said) - {"channels"}:
                raise ValueError(f"has a `transform` and {', '.join(sorted(set(said) - {'channels'}))} as well")
        elif self.interpolation is None:
            raise ValueError("needs `interpolation`, or a `transform`")
        else:
            preprocessing_of(**said)  # says what does not go together
        return self


def transform_to_serve(
    how: Mapping[str, Any] | None,
    folder: Path,
    given: str | Callable[[Any], Any] | None,
    trust: bool,
    running: Callable[[Code], None] | None,
) -> Transform | None:
    """The transform that makes inputs of new images, or None where options do; an error where it is not the one of the repair.

    Its code runs only if it is named (`given`) or trusted, and only with the checksum of the repair: it decides what the network sees.
    """
    recorded = (how or {}).get("transform")
    if recorded is None:
        if given is not None:
            raise BadInput(f"the network in {folder} takes images without a transform. Omit --transform (transform=).")
        return None
    if given is not None and not isinstance(given, str):
        return as_transform(given)
    if recorded["path"] is None:
        raise BadInput(
            f"{folder} was saved from Python with the transform {recorded['named']}, whose code it does not name. Give it: transform="
        )
    name = str(recorded["named"]).rpartition(":")[2]
    if given is None and not Path(recorded["path"]).is_file():
        raise BadInput(
            f"the code of the transform, {recorded['path']}, no longer exists. Name its present place: --transform file.py:{name}"
        )
    named = given or f"{recorded['path']}:{name}"
    code = code_of(named, here=given is not None)
    if code is None or code.sha256 != recorded["sha256"]:
        raise Untrusted(
            f"the transform has changed since the repair: {code}. Its SHA-256 is {code.sha256 if code else ''}, and run.json has "
            f"{recorded['sha256']}. Restore the file of the repair, or repair again with the new one."
        )
    if given is None and not trust:
        raise Untrusted(
            f"{folder} needs code to prepare its images, which would run with all your rights: {code}. Its SHA-256 is {code.sha256}, the "
            f"same as in the repair. Read it, then run it with --trust (Python: trust=True), or name it yourself: --transform {named}"
        )
    if given is None and running is not None:
        running(code)
    return load_transform(named, code)


def opening(how: Mapping[str, Any], transform: Transform | None) -> dict[str, Any]:
    """The options of `Images.open` that run.json records."""
    return {name: value for name, value in how.items() if name != "transform" and value not in (None, [])} | {"transform": transform}


SCHEMA, SCHEMA_VERSION = "equipoise.repaired", 6
NETWORK_KIND, RULE_KIND, PREDICTOR_KIND = "network", "rule", "predictor"  # a folder's rule with a network, for scores, with an estimator
RUN = "run.json"
OPEN = ConfigDict(extra="allow", strict=True)
Count = Annotated[int, Field(ge=0)]


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
    classes: _Classes | None = None  # of a network whose outputs are classes, decided by argmax
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
    encoder: _Encoder | None = None  # None: numbers as they are
    width: Annotated[int, Field(ge=1)] | None = None  # of inputs that are arrays
    score: str | None = None  # of a rule for scores: the column that holds them
    logits: bool = False  # whether that column holds logits

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


OutcomeName = Literal["closed", "reduced", "unclear", "harm", "unchanged"]


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
    model: _Model | None  # None: of a rule for scores
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
        if strange := sorted(set(self.files) - set(FILES[:-1])):
            raise ValueError(f"lists files that are never written: {', '.join(strange)}")
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
            needed += [ORIGINAL_ONNX] if place_of(self.model.load or "") else []
        if lacking := [name for name in needed if name not in self.files]:
            raise ValueError(f"does not list {', '.join(lacking)} among `files`")
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
