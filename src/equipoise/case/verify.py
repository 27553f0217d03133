"""Verification of a bundle: run.json by the digest in it, and the files it lists by SHA-256.

A file is read once, and the verified bytes are the ones parsed. That detects damage and mixed-up files. It does not detect someone who
changes a file and writes new checksums: the origin of a folder is not verified.
"""

import errno
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from equipoise.case.folder import FILES, recover
from equipoise.case.schema import RUN, RUN_FORMAT, RUN_SCHEMA, RUN_VERSION, Run, digest_matches
from equipoise.disk import sha256, sha256_of
from equipoise.errors import BadInput, validation_problems
from equipoise.report import copy_report, write_audit_again

REPORT = "report.html"
# Files that are not kept in memory:
ONLY_CHECKED = (
    "audit.json",
    "model.onnx",
    "model.onnx.data",
    "repaired.pt",
    "trace.csv",
    "card.md",
    "card.xml",
    "card.fhir.json",
    "README.txt",
)
LARGEST_JSON = 2**26  # bytes of a JSON document; those of a bundle are far smaller
READ_ATTEMPTS = 5  # to read a folder that is being replaced repeatedly
WHERE = "Name a folder that `equipoise debias` wrote."
REPAIR_AGAIN = "Copy the folder again from its source, or run `equipoise debias` again."


def read_run(folder: Path) -> Run:
    """The content of run.json, checked to be of a bundle and unchanged; raises one error with every problem and its key."""
    path = folder / RUN
    if not folder.is_dir():
        raise BadInput(f"no such folder: {folder}. {WHERE}")
    if not path.is_file():
        raise BadInput(f"{folder} has no {RUN}. {folder_to_name(folder) or WHERE}")
    try:
        content = _read_bytes(path)
        document = json.loads(content.decode("utf-8"))
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror or error}. {REPAIR_AGAIN}") from error
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path} is not readable as JSON: {error}. {REPAIR_AGAIN}") from error
    if not isinstance(document, dict) or document.get("schema") != RUN_SCHEMA:
        raise BadInput(f"{path} does not describe a repaired model (schema {RUN_SCHEMA!r}). {WHERE}")
    if (found := document.get("schema_version")) != RUN_VERSION:
        earlier = isinstance(found, int) and 1 <= found < RUN_VERSION
        remedy = "Run `equipoise debias` again." if earlier else "Use the version of Equipoise that wrote it."
        raise BadInput(f"{path} has schema_version {found!r}; this version of Equipoise reads {RUN_VERSION}. {remedy}")
    changed = "digest: it does not match; the file was changed or damaged after it was written"
    problems = [] if digest_matches(content, document) else [changed]
    try:
        run = RUN_FORMAT.validate_json(content)
    except ValidationError as error:
        problems = validation_problems(error, 0) + problems
    if problems:
        raise BadInput(*problems, source=str(path), advice=REPAIR_AGAIN)
    return run


def _read_bytes(path: Path) -> bytes:
    """The bytes of a file; an OSError if a JSON document is too large or the file does not fit into memory."""
    try:
        if path.suffix == ".json" and (size := path.stat().st_size) > LARGEST_JSON:
            raise OSError(errno.EFBIG, f"it has {size:,} bytes, and at most {LARGEST_JSON:,} are read")
        return path.read_bytes()
    except MemoryError as error:
        raise OSError(errno.EFBIG, "it does not fit into memory") from error


@dataclass(frozen=True, eq=False)
class Verified:
    """A folder whose files are those that run.json lists."""

    folder: Path
    run: Run
    contents: Mapping[str, bytes]  # by file name; empty for files that are not parsed

    def source(self, name: str) -> str:
        """The path of a file, for messages."""
        return str(self.folder / name)


def verify(folder: str | Path) -> Verified:
    """The folder's run.json and the bytes of the files it lists, all verified before any of them is parsed."""
    folder, previous = Path(folder), ""
    for _ in range(READ_ATTEMPTS):
        recover(folder)
        try:
            run = read_run(folder)
            return Verified(folder, run, _read_listed(folder, run))
        except BadInput as error:
            if str(error) == previous:
                raise  # a folder that was replaced while it was read fails differently, or not at all, the second time
            previous, last = str(error), error
    raise last


def _read_listed(folder: Path, run: Run) -> dict[str, bytes]:
    """The bytes of the files that are parsed; raises an error with the problems of all files that run.json lists or should list."""
    contents: dict[str, bytes] = {}
    problems = [f"{name} is present but not listed in {RUN}" for name in FILES[:-1] if name not in run.files and (folder / name).exists()]
    for name, expected in run.files.items():
        path = folder / name
        if not path.is_file():
            problems.append(f"{name} is listed in {RUN} but missing")
            continue
        try:
            content = b"" if name in ONLY_CHECKED else _read_bytes(path)
            checksum = sha256_of(path) if name in ONLY_CHECKED else sha256(content)
        except OSError as error:
            problems.append(f"{name} cannot be read: {error.strerror or error}")
            continue
        if checksum != expected:
            problems.append(f"{name} is not the file that was written: its SHA-256 is {checksum}, in {RUN} it is {expected}")
        contents[name] = content
    if problems:
        raise BadInput(*problems, source=str(folder), advice=REPAIR_AGAIN)
    return contents


def write_again(
    source: str | Path, *, page: str | Path | None = None, pdf: str | Path | None = None, group_names: Mapping[str, str] | None = None
) -> list[Path]:
    """Writes a page, a PDF or both from the JSON of an audit or from the folder of a repair; returns their paths.

    The report of a repair needs the rows of its patients, which are not saved, so the page in the folder is copied or printed.

    - `source`: the JSON of an audit, or the folder of a repair.
    - `page`, `pdf`: the files to write; without either, the page of an audit is written next to its JSON.
    - `group_names`: words for groups, by default those of the audit.
    """
    folder, report = Path(source), Path(source) / REPORT
    if not folder.is_dir():
        return write_audit_again(source, page=page, pdf=pdf, group_names=group_names)
    if not report.is_file():
        raise BadInput(f"{folder} has no {REPORT}. Name a folder that `equipoise debias --out` wrote, or the JSON of an audit.")
    if page is None and pdf is None:
        raise BadInput(f"{folder} has its page already: {report}. Give --pdf FILE.pdf to print it, or --report FILE.html to copy it.")
    if group_names:
        raise BadInput(f"the words for groups in {report} were given to `equipoise debias` and cannot be changed here. Omit report.words.")
    overview = not (folder / RUN).is_file() and folder_to_name(folder)  # above the bundles of several labels; no run.json lists it
    content = report.read_bytes() if overview else verify(folder).contents[REPORT]
    return copy_report(content, report, page, pdf)


def folder_to_name(folder: Path) -> str:
    """Advice to name one of the bundles in a folder that holds one per label, or per class; empty if it holds none."""
    bundles = sorted(place.parent.name for place in folder.glob("*/run.json"))
    if not bundles:
        return ""
    advice = "one folder per label. Name one of them"
    with suppress(OSError, ValueError, AttributeError):
        if json.loads((folder / "audit.json").read_text(encoding="utf-8")).get("kind") == "classes":
            advice = "one folder per class, each of which decides between that class and the others. Name that of the class that you need"
    return f"It holds {advice}: {', '.join(str(folder / name) for name in bundles)}."
