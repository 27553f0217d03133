"""The folder of a study: its definition (study.json), trained networks (models/), rows (rows/, one file per task), a summary, and the
number of unreadable images by reason (broken/).

Files are written atomically, so a task whose file exists is finished, and running the study again resumes it. A folder holds one study of
one version of Equipoise. The identity of a study is everything its results depend on; a fingerprint of it is in every file. A folder with
anything else in it is refused and left unchanged.
"""

import json
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import pandas as pd
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked

from equipoise.data import Columns, atomic_path, sha256, write_text
from equipoise.errors import BadInput, raise_all, validation_problems
from equipoise.studies import networks, rows
from equipoise.studies.plan import Plan, Task, make_plan, narrow, tasks_of

log = logging.getLogger(__name__)
DEFINITION, LOCK = "study.json", ".lock"
SCHEMA: Literal["equipoise.study"] = "equipoise.study"
SCHEMA_VERSION: Literal[2] = 2  # of study.json
CODE = (  # that results depend on
    *(f"{room}/**/*.py" for room in ("data", "models", "measures", "methods")),
    *(f"studies/{name}.py" for name in ("sets/*", "catalogue", "worker", "efficientnet_lite")),
)
COSMETIC = ("title", "published", "optional", "about", "keep_networks")  # fields of a plan that do not affect results


@dataclass(frozen=True)
class StudyFolder:
    """The folder of a study."""

    path: Path
    plan: Plan
    fingerprint: str
    version: str

    def file(self, task: Task) -> Path:
        """The file with the result of a task."""
        return self.path / (f"rows/{task.key}.parquet" if task.method else f"models/{task.key}.safetensors")

    def store(self, task: Task, content: bytes) -> None:
        """Writes the result of a task atomically."""
        with atomic_path(self.file(task), follow=False) as temporary:
            temporary.write_bytes(content)

    def drop(self, training: Task) -> None:
        """Deletes the networks of a block, which can be large, and keeps their description."""
        path = self.file(training)
        write_text(path.with_suffix(".json"), json.dumps(networks.read_about(path), indent=1) + "\n", follow=False)
        path.unlink()

    def note_broken(self, data: str, kinds: Mapping[str, int]) -> None:
        """Writes the number of images left out, by reason. Their names are only logged, since results may be shared."""
        write_text(self.path / f"broken/{data}.txt", "".join(f"{count} {kind}\n" for kind, count in kinds.items()), follow=False)


@contextmanager
def locked_folder(path: str | Path, plan: Plan, root: str | Path | None = None) -> Iterator[StudyFolder]:
    """The folder for this study, new or existing, locked against other runs. Raises an error if it holds anything else.

    An existing one may hold more: a part of its study, down to one cell, can be run in it, and splits can be added.
    """
    path, study_identity = Path(path), identity(plan, root)
    _check_same_study(path, plan, study_identity)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"cannot make the folder {path}: {error.strerror}. Choose another one.") from error
    with _locked(path):
        stored = _check_same_study(path, plan, study_identity)  # another run may have written in the meantime
        if stored is not None and stored.code != code_digest():
            log.warning("The code of Equipoise %s has changed since %s was started; its rows may not be comparable.", stored.version, path)
        if stored is None:
            stored = Definition(
                schema=SCHEMA,
                schema_version=SCHEMA_VERSION,
                study=plan.name,
                fingerprint=fingerprint(study_identity),
                version=present_version(),
                code=code_digest(),
                identity=study_identity,
                definition=plan.model_dump(mode="json", exclude_unset=True),
            )
            _write_definition(path, stored)
        elif stored.definition.get("splits", 0) < plan.splits:
            _write_definition(path, replace(stored, definition={**stored.definition, "splits": plan.splits}))
        yield StudyFolder(path, plan, stored.fingerprint, stored.version)


def open_study(path: str | Path) -> StudyFolder:
    """The study in a folder, for reading."""
    path = Path(path)
    if not (path / DEFINITION).is_file():
        raise BadInput(f"{path} holds no study: there is no {DEFINITION}. Name the folder given to `equipoise study run --out`.")
    stored = _read_definition(path)
    return StudyFolder(path, make_plan(stored.definition, source=str(path / DEFINITION)), stored.fingerprint, stored.version)


def finished(folder: StudyFolder) -> set[Task]:
    """The tasks with valid results. Damaged files are logged and will be replaced; files of another study are an error."""
    done, problems = set(), []
    for task in tasks_of(folder.plan):
        path = folder.file(task)
        if not path.is_file():
            continue
        try:
            origin = _verified_origin(path.read_bytes(), task, str(path))
        except BadInput as error:
            log.warning("%s The task is run again.", error)
            continue
        if origin != (folder.fingerprint, folder.version):
            problems.append(f"{path} belongs to study {origin[0]} of version {origin[1]}, not to {folder.fingerprint} of {folder.version}")
        done.add(task)
    raise_all(problems, str(folder.path))
    return done


def read_rows(folder: StudyFolder) -> pd.DataFrame:
    """All rows so far, without traces, in the order of the study. Raises one error with every damaged file."""
    return rows.split_traces(read_whole(folder))[0]


def read_traces(folder: StudyFolder) -> pd.DataFrame:
    """The steps of all rows so far, one row per step."""
    return rows.split_traces(read_whole(folder))[1]


def read_timings(folder: StudyFolder) -> pd.DataFrame:
    """The seconds of each finished task, training included."""
    timings = []
    for task in tasks_of(folder.plan):
        path = folder.file(task)
        if path.is_file() and not task.method:
            seconds = float(networks.read_about(path)["seconds"])
        elif not task.method and path.with_suffix(".json").is_file():
            seconds = float(json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))["seconds"])
        elif path.is_file():
            seconds = float(rows.from_bytes(path.read_bytes(), str(path))["seconds"].iloc[0])
        else:
            continue
        timings.append((task.data, task.seed, task.method or "training", task.measure, seconds))
    return pd.DataFrame(timings, columns=["data", "seed", "method", "measure", "seconds"])


def identity(plan: Plan, root: str | Path | None) -> dict[str, Any]:
    """Everything the results of a study depend on, as plain values: its definition without titles, and checksums of its files.

    Raises one error with every data set whose files are missing.
    """
    content = plan.model_dump(mode="json", exclude={"data", "model", "pretrained", "name"})
    content["data"], problems = [], list[str]()
    for data in plan.data:
        kept = {
            "name",
            "training",
            *(("source", "options", "redraw") if data.source else {*Columns.model_fields, "attribute_as_input", "scale"}),
        }
        entry = data.model_dump(mode="json", include=kept)
        entry.get("options", {}).pop("mimic_iv", None)  # a folder, whose files are included in the checksum
        try:
            entry |= {"content": data.checksum(root), "model": plan.network(data.name).content()}
        except (BadInput, OSError) as error:
            problems.append(str(error))
        content["data"].append(entry | ({} if data.source else {"file": Path(str(data.file)).name}))
    raise_all(list(dict.fromkeys(problems)), plan.name)
    plain: dict[str, Any] = _without_cosmetic(content)
    return plain


def _without_cosmetic(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_cosmetic(v) for k, v in value.items() if k not in COSMETIC}
    return [_without_cosmetic(v) for v in value] if isinstance(value, list) else value


def fingerprint(identity: Mapping[str, Any]) -> str:
    """The first sixteen digits of the checksum of an identity."""
    return sha256(json.dumps(identity, sort_keys=True).encode())[:16]


def differences(requested: Mapping[str, Any], stored: Mapping[str, Any]) -> list[str]:
    """Messages about the differences between two identities."""

    def shown(value: Any) -> str:
        if isinstance(value, list) and value and isinstance(value[0], dict):
            value = [entry.get("name") for entry in value]
        return json.dumps(value)

    messages = []
    for key in dict.fromkeys([*requested, *stored]):
        here, there = requested.get(key), stored.get(key)
        if here != there and shown(here) == shown(there):
            messages.append(f"{key} (entries of the same names differ)")
        elif here != there:
            messages.append(f"{key} is {shown(there)} there and {shown(here)} here")
    return messages


def present_version() -> str:
    """The version of Equipoise that is running."""
    from equipoise import __version__

    return __version__


def code_digest() -> str:
    """A checksum of the code that results depend on, since the version does not identify it during development."""
    package = Path(__file__).parents[1]
    files = sorted(path for pattern in CODE for path in package.glob(pattern))
    return sha256(b"".join(path.read_bytes() for path in files))[:16]


def read_whole(folder: StudyFolder) -> pd.DataFrame:
    """All rows so far, with traces and pooled decisions, in the order of the study."""
    frames: list[pd.DataFrame] = []
    problems: list[str] = []
    for task in tasks_of(folder.plan):
        path = folder.file(task)
        if task.method and path.is_file():
            try:
                frames.append(rows.from_bytes(path.read_bytes(), str(path)))
            except BadInput as error:
                problems += error.problems
    raise_all(problems, str(folder.path))
    if not frames:
        return rows.SCHEMA.empty_table().to_pandas()
    whole = pd.concat(frames, ignore_index=True)
    names = {"data": [d.name for d in folder.plan.data], "measure": folder.plan.measures, "method": [a.name for a in folder.plan.methods]}
    ranks = whole[["seed"]].assign(**{key: whole[key].map({n: k for k, n in enumerate(order)}) for key, order in names.items()})
    return whole.loc[ranks.sort_values([*names, "seed"]).index].reset_index(drop=True)


def _verified_origin(content: bytes, task: Task, source: str) -> tuple[str, str]:
    """The fingerprint and version in the file of a task. Raises an error if the file is damaged or incomplete."""
    if not task.method:
        about = networks.from_bytes(content, source)[1]
        if about["task"] != task.key:
            raise BadInput(f"{source} holds the network of another split.")
        return about["fingerprint"], about["version"]
    frame = rows.from_bytes(content, source)
    expected = (task.data, task.seed, task.method, task.measure)
    if [*frame[["data", "seed", "method", "measure"]].itertuples(index=False, name=None)] != [expected]:
        raise BadInput(f"{source} holds another row than its name says.")
    return str(frame["fingerprint"].iloc[0]), str(frame["version"].iloc[0])


@checked(config=ConfigDict(extra="allow", strict=True), kw_only=True)
class Definition:
    """The content of study.json."""

    schema: Literal["equipoise.study"]
    schema_version: Literal[2]
    study: str
    fingerprint: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
    version: str
    code: str
    identity: dict[str, Any]
    definition: dict[str, Any]


def _check_same_study(path: Path, plan: Plan, study_identity: dict[str, Any]) -> Definition | None:
    """What the folder holds, or None if it is new. Raises an error if it holds anything but a study of which this one is a part."""
    if path.exists() and not path.is_dir():
        raise BadInput(f"{path} is a file; the results of a study need a folder. Choose another place with --out.")
    if not (path / DEFINITION).exists():
        inside = path.iterdir() if path.exists() else ()
        other_files = sorted(p.name for p in inside if p.name != LOCK and not p.name.startswith(".equipoise."))
        if other_files:
            raise BadInput(f"{path} is not empty and holds no study ({', '.join(other_files[:3])} ...). Choose another folder with --out.")
        return None
    stored = _read_definition(path)
    if stored.version != present_version():
        raise BadInput(
            f"{path} holds results of Equipoise {stored.version}, and this is {present_version()}; rows of two versions are not mixed. "
            "Nothing was changed. Choose another folder with --out, or install that version."
        )
    if different := differences(study_identity, _same_part(stored, plan)):
        raise BadInput(
            f"{path} holds another study, {stored.study!r} ({stored.fingerprint}), not {plan.name!r} ({fingerprint(study_identity)}): "
            f"{'; '.join(different)}. Nothing was changed. Choose another folder with --out."
        )
    return stored


def _same_part(stored: Definition, plan: Plan) -> dict[str, Any]:
    """The identity of a stored study, restricted to the splits, data, methods and measures of a plan if it has all of them."""
    try:
        names = {"data": [data.name for data in plan.data], "methods": [arm.name for arm in plan.methods]}
        part = narrow(make_plan(stored.definition), splits=plan.splits, measures=plan.measures, **names)
    except BadInput:  # it lacks some
        return stored.identity
    kept = part.model_dump(mode="json", include={"splits", "methods", "measures", "trainings"})
    return {**stored.identity, **kept, "data": [entry for entry in stored.identity["data"] if entry["name"] in names["data"]]}


def _read_definition(path: Path) -> Definition:
    """The content of study.json. Raises one error with every key that is missing or has a wrong type."""
    source = path / DEFINITION
    try:
        return TypeAdapter(Definition).validate_json(source.read_bytes())
    except ValidationError as error:
        *others, last = validation_problems(error, skip=0)
        advice = "Restore the file from a copy, use the version of Equipoise that wrote it, or choose another folder with --out."
        raise BadInput(*others, f"{last}. {advice}", source=str(source)) from error


def _write_definition(path: Path, definition: Definition) -> None:
    write_text(path / DEFINITION, TypeAdapter(Definition).dump_json(definition, indent=1).decode() + "\n", follow=False)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Prevents two runs from working in one folder. The system removes the lock when the process ends, however it ends."""
    if sys.platform == "win32":
        yield
        return
    import fcntl

    handle = os.open(path / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BadInput(f"another run is using {path}. Wait for it, or choose another folder with --out.") from None
        for leftover in path.rglob(".equipoise.*.tmp"):  # of a run that was killed while writing
            leftover.unlink(missing_ok=True)
        yield
    finally:
        os.close(handle)
