"""Verification of a bundle: run.json by the digest in it, the files it lists by SHA-256, JSON documents by schema, code by checksum.

A file is read once, and the verified bytes are the ones parsed. That detects damage and mixed-up files. It does not detect someone who
changes a file and writes new checksums: the origin of a folder is not verified.
"""

import errno
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from equipoise.data import Transform, as_transform, sha256, sha256_of
from equipoise.errors import BadInput, Untrusted, raise_all, validation_problems
from equipoise.models import HEADS, ORIGINAL_ONNX, PROGRAM, Code, code_of, load_transform
from equipoise.repair.folder import FILES, recover
from equipoise.repair.saved_predictor import FILES as PREDICTORS
from equipoise.repair.schema import AUDITS_FORMAT, RUN, RUN_FORMAT, SCHEMA, SCHEMA_VERSION, RepairAudits, Run, ServedImages
from equipoise.repair.serving import OWN_NETWORK

Document = TypeVar("Document")
DIGEST = "digest"
REPORT = "report.html"
WEIGHTS = "repaired.safetensors"
REPAIRED_PROGRAM = f"repaired{PROGRAM}"
PARSED = (
    WEIGHTS,
    REPAIRED_PROGRAM,
    ORIGINAL_ONNX,
    *PREDICTORS,
    HEADS,
    "rule.json",
    "audit.json",
    REPORT,
)  # kept in memory; others are only checked
READS = 5  # attempts to read a folder that is being replaced repeatedly
LARGEST = 2**26  # bytes of a JSON document; those of a bundle are far smaller
WHERE = "Name a folder that `equipoise debias` wrote."
AGAIN = "Copy the folder again from its source, or run `equipoise debias` again."


def sealed(document: Mapping[str, object]) -> str:
    """The text of run.json: the document and its digest, the SHA-256 of this text with zeros in place of the digest.

    >>> text = sealed({"a": 1})
    >>> _digest_matches(text.encode(), json.loads(text)), _digest_matches(text.replace("1,", "2,").encode(), json.loads(text))
    (True, False)
    """
    zeros = "0" * 64
    text = json.dumps({**document, DIGEST: zeros}, indent=2, allow_nan=False, default=str) + "\n"
    return text.removesuffix(f'{zeros}"\n}}\n') + f'{sha256(text.encode())}"\n}}\n'


def _digest_matches(content: bytes, document: Mapping[str, object]) -> bool:
    ending = f'"{DIGEST}": "{document.get(DIGEST)}"\n}}\n'.encode()
    zeros = f'"{DIGEST}": "{"0" * 64}"\n}}\n'.encode()
    return content.endswith(ending) and sha256(content.removesuffix(ending) + zeros) == document.get(DIGEST)


def parsed_json(content: bytes, path: Path, form: TypeAdapter[Document]) -> Document:
    """The document in these bytes, which must have this form; raises one error with every problem and its key."""
    try:
        document = json.loads(content.decode("utf-8"), parse_constant=_reject_constant)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path} is not readable as JSON: {error}. {AGAIN}") from error
    is_run, problems = path.name == RUN, []
    if is_run:
        if not isinstance(document, dict) or document.get("schema") != SCHEMA:
            raise BadInput(f"{path} does not describe a repaired model (schema {SCHEMA!r}). {WHERE}")
        if (version := document.get("schema_version")) != SCHEMA_VERSION:
            earlier = isinstance(version, int) and 1 <= version < SCHEMA_VERSION
            remedy = "Run `equipoise debias` again." if earlier else "Use the version of Equipoise that wrote it."
            raise BadInput(f"{path} has schema_version {version!r}; this version of Equipoise reads {SCHEMA_VERSION}. {remedy}")
        if not _digest_matches(content, document):
            problems.append(f"{DIGEST}: it does not match; the file was changed or damaged after it was written")
    try:
        parsed = form.validate_json(content)
    except ValidationError as error:
        raise BadInput(*_with_remedy(validation_problems(error, 0) + problems), source=str(path)) from None
    raise_all(_with_remedy(problems), str(path))
    return parsed


def _with_remedy(problems: list[str]) -> list[str]:
    """The problems, the last one followed by the remedy."""
    return [*problems[:-1], *(f"{problem}. {AGAIN}" for problem in problems[-1:])]


def _reject_constant(text: str) -> object:
    raise ValueError(f"{text} is not a JSON number")


# Verified files


@dataclass(frozen=True, eq=False)
class Verified:
    """A folder whose files are those that run.json lists."""

    folder: Path
    run: Run
    audits: RepairAudits
    contents: Mapping[str, bytes]  # by file name; empty for files that are not parsed

    def source(self, name: str) -> str:
        """The path of a file, for messages."""
        return str(self.folder / name)


def verify(folder: str | Path) -> Verified:
    """The folder's run.json and the bytes of the files it lists, all verified before any of them is parsed."""
    folder, previous = Path(folder), ""
    for _ in range(READS):
        recover(folder)
        try:
            return _verify_once(folder)
        except BadInput as error:
            if str(error) == previous:
                raise  # a folder that was replaced while it was read fails differently, or not at all, the second time
            previous, last = str(error), error
    raise last


def _verify_once(folder: Path) -> Verified:
    run = read_run(folder)
    contents, problems = _read_listed(folder, run)
    if problems:
        raise BadInput(*_with_remedy(problems), source=str(folder))
    return Verified(folder, run, parsed_json(contents["audit.json"], folder / "audit.json", AUDITS_FORMAT), contents)


def _read_listed(folder: Path, run: Run) -> tuple[dict[str, bytes], list[str]]:
    """The bytes of the files that are parsed, and the problems of all files that run.json lists or should list."""
    problems, contents = [], {}
    for name, expected in run.files.items():
        path = folder / name
        if not path.is_file():
            problems.append(f"{name} is listed in {RUN} but missing")
            continue
        try:
            content = _read_bytes(path) if name in PARSED else b""
            checksum = sha256(content) if name in PARSED else sha256_of(path)
        except OSError as error:
            problems.append(f"{name} cannot be read: {error.strerror or error}")
            continue
        if checksum != expected:
            problems.append(f"{name} is not the file that was written: its SHA-256 is {checksum}, in {RUN} it is {expected}")
        contents[name] = content
    unlisted = [name for name in FILES[:-1] if name not in run.files and (folder / name).exists()]
    return contents, problems + [f"{name} is present but not listed in {RUN}" for name in unlisted]


def _read_bytes(path: Path) -> bytes:
    """The bytes of a file; raises an OSError if a JSON document is too large or the file does not fit into memory."""
    try:
        if path.suffix == ".json" and (size := path.stat().st_size) > LARGEST:
            raise OSError(errno.EFBIG, f"it has {size:,} bytes, and at most {LARGEST:,} are read")
        return path.read_bytes()
    except MemoryError as error:
        raise OSError(errno.EFBIG, "it does not fit into memory") from error


def verified_report(folder: Path) -> bytes:
    """The report.html of a folder that `equipoise debias` wrote: of a verified bundle, or the overview above the bundles of several labels.

    Checksums show that a folder is complete, not who wrote it.
    """
    if not (folder / RUN).is_file() and folder_to_name(folder):
        return (folder / REPORT).read_bytes()  # no run.json lists the overview
    return verify(folder).contents[REPORT]


def folder_to_name(folder: Path) -> str:
    """Advice to name one of the bundles in a folder that holds one per label, or per class; empty if it holds none."""
    bundles = sorted(place.parent.name for place in folder.glob("*/run.json"))
    if not bundles:
        return ""
    kind = None
    with suppress(OSError, ValueError, AttributeError):
        kind = json.loads((folder / "audit.json").read_text(encoding="utf-8")).get("kind")
    advice = "one folder per label. Name one of them"
    if kind == "classes":
        advice = "one folder per class, each of which decides between that class and the others. Name that of the class that you need"
    return f"It holds {advice}: {', '.join(str(folder / name) for name in bundles)}."


def read_run(folder: Path) -> Run:
    """The content of run.json, checked to be of a bundle and unchanged."""
    path = folder / RUN
    if not folder.is_dir():
        raise BadInput(f"no such folder: {folder}. {WHERE}")
    if not path.is_file():
        raise BadInput(f"{folder} has no {RUN}. {folder_to_name(folder) or WHERE}")
    try:
        content = _read_bytes(path)
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror or error}. {AGAIN}") from error
    return parsed_json(content, path, RUN_FORMAT)


# Code that a bundle needs


def code_to_run(files: Verified, model: str | None = None, trust: bool = False) -> Code | None:
    """The code that builds the network of a bundle; None for a network of Equipoise. Runs nothing; raises an error without trust."""
    recorded = files.run.network
    if ORIGINAL_ONNX in files.contents:
        if model is not None:
            raise BadInput(f"{files.folder} holds its ONNX file. Omit --model {model}.")
        return None
    if model is not None:
        code = code_of(model)
        if code is not None and model.endswith(PROGRAM) and code.sha256 != files.run.files.get(REPAIRED_PROGRAM):
            raise BadInput(
                f"the exported program {model} contains its weights and is not the repaired one. Omit --model, or name the "
                "factory of the network, as file.py:factory."
            )
        return code
    if REPAIRED_PROGRAM in files.contents:
        content = files.contents[REPAIRED_PROGRAM]
        path = (files.folder / REPAIRED_PROGRAM).absolute()
        code, recorded_sha256 = Code(str(path), path, sha256(content), content), files.run.files[REPAIRED_PROGRAM]
    else:
        load = recorded.load
        if load is None:
            raise BadInput(f"{files.folder} was saved from Python and does not name the network's code. Give the network: model=network")
        if load == OWN_NETWORK:
            return None
        path_name, _, name = load.rpartition(":")
        if path_name.endswith(".py") and not Path(path_name).is_file():
            raise BadInput(f"the network's code, {path_name}, no longer exists. Name its present location: --model file.py:{name}")
        factory = code_of(load, here=False)
        if factory is None:
            return None
        code, recorded_sha256 = factory, "" if recorded.code is None else recorded.code.sha256
    if code.sha256 != recorded_sha256:
        raise Untrusted(
            f"the network's code has changed since the repair: {code}. Its SHA-256 is {code.sha256}, and run.json has {recorded_sha256}. "
            f"If it still builds the same network, name it: --model {_as_argument(code)}"
        )
    if not trust:
        raise Untrusted(
            f"{files.folder} needs code to build its network, which would run with all your rights: {code}. "
            f"Its SHA-256 is {code.sha256}, the same as when the network was repaired. "
            f"Read it, then run it with --trust (Python: trust=True), or name the code yourself: --model {_as_argument(code)}"
        )
    return code


def _as_argument(code: Code) -> str:
    """The name of the code on a command line."""
    path_name, _, name = code.named.rpartition(":")
    return f"{code.path}:{name}" if path_name.endswith(".py") else code.named


def transform_to_serve(
    images: ServedImages | None,
    folder: Path,
    given: str | Callable[[Any], Any] | None,
    trust: bool,
    running: Callable[[Code], None] | None,
) -> Transform | None:
    """The custom transform of new images, or None if there is none; raises an error if it is not that of the repair.

    Its code runs only if it is named (`given`) or trusted, and only with the checksum of the repair: it decides what the network sees.
    """
    recorded = None if images is None else images.transform
    if recorded is None:
        if given is not None:
            raise BadInput(f"the network in {folder} takes images without a transform. Omit images.transform (transform=).")
        return None
    if given is not None and not isinstance(given, str):
        return as_transform(given)
    if recorded.path is None:
        raise BadInput(
            f"{folder} was saved from Python with the transform {recorded.named}, whose code it does not name. Give it: transform="
        )
    name = recorded.named.rpartition(":")[2]
    if given is None and not Path(recorded.path).is_file():
        instead = f"--set images.transform=file.py:{name}"
        raise BadInput(f"the code of the transform, {recorded.path}, no longer exists. Name its present place: {instead}")
    named = given or f"{recorded.path}:{name}"
    code = code_of(named, here=given is not None)
    if code is None or code.sha256 != recorded.sha256:
        raise Untrusted(
            f"the transform has changed since the repair: {code}. Its SHA-256 is {code.sha256 if code else ''}, and run.json has "
            f"{recorded.sha256}. Restore the file of the repair, or repair again with the new one."
        )
    if given is None and not trust:
        raise Untrusted(
            f"{folder} needs code to prepare its images, which would run with all your rights: {code}. Its SHA-256 is {code.sha256}, the "
            f"same as in the repair. Read it, then run it with --trust (Python: trust=True), or name it: --set images.transform={named}"
        )
    if given is None and running is not None:
        running(code)
    return load_transform(named, code)
