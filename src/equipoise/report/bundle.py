"""What is in a repaired folder and is believed: run.json, checked against its own digest and by schema, and the files that it lists.

A file is read once; its SHA-256 is compared with that in run.json, and these very bytes are what is parsed. That detects damage and
mixed-up files. It does not detect someone who changes a file and writes new checksums: whom the folder comes from is not known by it.
"""

import errno
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, model_validator
from pydantic.dataclasses import dataclass as checked

from equipoise.data import CONFLICTS, sha256
from equipoise.errors import BadInput, raise_all
from equipoise.methods import STRICT, Cut, described
from equipoise.report.folder import FILES, recover

SCHEMA, SCHEMA_VERSION = "equipoise.repaired", 3
RUN, DIGEST = "run.json", "digest"
WHERE = "Name the folder that `equipoise debias` wrote."
AGAIN = "Copy the folder again from where it was made, or run `equipoise debias` again."
PARSED = (
    "repaired.safetensors",
    "repaired.pt2",
    "bias_score.safetensors",
    "rule.json",
    "audit.json",
)  # kept in memory; others only checked
READS = 5  # of a folder that is replaced again and again while it is read
LARGEST = 2**26  # bytes of a JSON document; ours are far smaller
OPEN = ConfigDict(extra="allow", strict=True)
Checksum = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=0)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


@checked(config=STRICT, kw_only=True)
class _Code:
    path: str | None
    sha256: Checksum | Literal[""]


@checked(config=STRICT, kw_only=True)
class _Model:
    named: str
    load: Annotated[str, Field(min_length=1)]
    output: Literal["logit", "probability"]
    output_name: str | None
    code: _Code | None


@checked(config=STRICT, kw_only=True)
class _Images:
    size: Annotated[int, Field(ge=1)]
    channels: Annotated[int, Field(ge=1)]
    mean: list[Finite]
    std: list[Annotated[float, Field(gt=0, allow_inf_nan=False)]]


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
class _Inputs:
    patient: str | None
    id: str | None
    bins: dict[str, _Bins]
    images: _Images | None
    image_column: str | None = None
    view_column: str | None = None
    conflicts: str = "row"
    features: list[str] | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> Any:
        if self.conflicts not in CONFLICTS:
            raise ValueError(f"`conflicts` must be one of {', '.join(CONFLICTS)}; got {self.conflicts!r}")
        if (self.images is None) == (not self.features):
            raise ValueError("needs either `images` or `features`, the columns that are the network's inputs")
        return self


@checked(config=STRICT, kw_only=True)
class _Part:
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
    schema_version: Literal[3]
    title: str
    label: str
    command: str
    when: str
    seed: int
    versions: dict[str, str]
    hashes: dict[str, str]
    limits: list[str]
    model: _Model
    heads: dict[str, Any] | None
    inputs: _Inputs
    groups: Annotated[list[str], Field(min_length=1)]
    method: str
    ran: str
    settings: dict[str, Any]
    methods: list[str]
    goal: dict[str, Any]
    met: bool
    parts: dict[Literal["repair", "test"], _Part]
    draws: Count
    onnx: _Onnx | None
    failures: dict[str, str]
    files: dict[str, Checksum]
    digest: Checksum

    @model_validator(mode="after")
    def _complete(self) -> Any:
        if strange := sorted(set(self.files) - set(FILES[:-1])):
            raise ValueError(f"lists files that no run writes: {', '.join(strange)}")
        needed = ["rule.json", "audit.json", "repaired.safetensors", *(["bias_score.safetensors"] if self.heads else [])]
        if lacking := [
            name for name in (*needed, *(["repaired.pt2"] if self.model.load.endswith(".pt2") else [])) if name not in self.files
        ]:
            raise ValueError(f"does not list {', '.join(lacking)} among `files`")
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
    chosen: str
    met: bool
    why: str
    goal: dict[str, Any]
    before: _Audit
    after: _Audit
    methods: dict[str, dict[str, Any]]


_DOCUMENTS: dict[str, TypeAdapter[Any]] = {RUN: TypeAdapter(_Run), "audit.json": TypeAdapter(_Audits)}


@dataclass(frozen=True, eq=False)
class Bundle:
    """A repaired folder whose files are those that run.json lists."""

    folder: Path
    run: Mapping[str, Any]
    contents: Mapping[str, bytes]  # of the files that are parsed

    def source(self, name: str) -> str:
        return str(self.folder / name)


def sealed(document: Mapping[str, object]) -> str:
    """The text of run.json: the document, and last the SHA-256 of this very text with zeros in place of the digest.

    >>> text = sealed({"a": 1})
    >>> _seal_problem(text.encode(), json.loads(text)), _seal_problem(text.replace("1,", "2,").encode(), json.loads(text))
    ('', 'digest: it does not match; the file was changed or damaged after it was written')
    """
    empty = "0" * 64
    text = json.dumps({**document, DIGEST: empty}, indent=2, allow_nan=False, default=str) + "\n"
    return text.removesuffix(f'{empty}"\n}}\n') + f'{sha256(text.encode())}"\n}}\n'


def _seal_problem(content: bytes, document: Mapping[str, object]) -> str:
    ending = f'"{DIGEST}": "{document.get(DIGEST)}"\n}}\n'.encode()
    blank = f'"{DIGEST}": "{"0" * 64}"\n}}\n'.encode()
    if content.endswith(ending) and sha256(content.removesuffix(ending) + blank) == document.get(DIGEST):
        return ""
    return f"{DIGEST}: it does not match; the file was changed or damaged after it was written"


def read_bundle(folder: Path) -> Bundle:
    """The folder's run.json and the bytes of the files that it lists, all verified before any of them is parsed."""
    folder = Path(folder)
    before = ""
    for _ in range(READS):
        recover(folder)
        try:
            return _read_once(folder)
        except BadInput as error:
            if str(error) == before:
                raise  # the same twice is no folder that was replaced while it was read, which is read again, from the new one
            before, last = str(error), error
    raise last


def _read_once(folder: Path) -> Bundle:
    run = read_run(folder)
    contents, problems = _listed(folder, run)
    if problems:
        raise BadInput(*_advised(problems), source=str(folder))
    parsed_json(contents["audit.json"], folder / "audit.json", "audit.json")
    return Bundle(folder, run, contents)


def _listed(folder: Path, run: Mapping[str, Any]) -> tuple[dict[str, bytes], list[str]]:
    """The bytes of the files that are parsed, and what is wrong with any that run.json lists or should list."""
    problems, contents = [], {}
    for name, expected in run["files"].items():
        path = folder / name
        if not path.is_file():
            problems.append(f"{name} is listed in {RUN} and is not there")
            continue
        try:
            content = _content(path) if name in PARSED else b""
            found = sha256(content) if name in PARSED else _sha256_of(path)
        except OSError as error:
            problems.append(f"{name} cannot be read: {error.strerror or error}")
            continue
        if found != expected:
            problems.append(f"{name} is not the file that was written: its SHA-256 is {found}, in {RUN} it is {expected}")
        contents[name] = content
    strange = [name for name in FILES[:-1] if name not in run["files"] and (folder / name).exists()]
    return contents, problems + [f"{name} is there and {RUN} does not list it" for name in strange]


def _content(path: Path) -> bytes:
    """The bytes of a file; an OSError where there are more than there can be."""
    try:
        if path.suffix == ".json" and (size := path.stat().st_size) > LARGEST:
            raise OSError(errno.EFBIG, f"it has {size:,} bytes, and at most {LARGEST:,} are read")
        return path.read_bytes()
    except MemoryError as error:
        raise OSError(errno.EFBIG, "it does not fit into memory") from error


def _sha256_of(path: Path) -> str:
    import hashlib

    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_run(folder: Path) -> dict[str, Any]:
    """What run.json holds, checked to be one of ours and unchanged."""
    folder = Path(folder)
    path = folder / RUN
    if not folder.is_dir():
        raise BadInput(f"no such folder: {folder}. {WHERE}")
    if not path.is_file():
        inside = sorted(place.parent.name for place in folder.glob("*/run.json"))
        labels = f" It holds a folder for each label: {', '.join(inside)}. Name one of them." if inside else f" {WHERE}"
        raise BadInput(f"{folder} has no {RUN}.{labels}")
    try:
        content = _content(path)
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror or error}. {AGAIN}") from error
    return parsed_json(content, path, RUN)


def parsed_json(content: bytes, path: Path, kind: str) -> dict[str, Any]:
    """The document in these bytes, checked by the schema of `kind`; one error with every problem and its key."""
    try:
        document = json.loads(content.decode("utf-8"), parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path} is not readable as JSON: {error}. {AGAIN}") from error
    if kind == RUN:
        if not isinstance(document, dict) or document.get("schema") != SCHEMA:
            raise BadInput(f"{path} is not of a repaired network (schema {SCHEMA!r}). {WHERE}")
        if document.get("schema_version") != SCHEMA_VERSION:
            version = document.get("schema_version")
            todo = "It has no checksums; run `equipoise debias` again." if version == 1 else "Use the Equipoise that wrote it."
            raise BadInput(f"{path} has schema_version {version!r}; this Equipoise reads {SCHEMA_VERSION}. {todo}")
    problems = []
    try:
        _DOCUMENTS[kind].validate_json(content)
    except ValidationError as error:
        problems = described(error, 0)
    if kind == RUN and (problem := _seal_problem(content, document)):
        problems.append(problem)
    raise_all(_advised(problems), str(path))
    return dict(document)


def _advised(problems: list[str]) -> list[str]:
    """The problems, the last of them with what to do about all."""
    return [*problems[:-1], *(f"{problem}. {AGAIN}" for problem in problems[-1:])]


def _no_number(text: str) -> object:
    raise ValueError(f"{text} is no number of JSON")
