"""The folder of a study: its definition (study.json), trained networks (models/), rows (rows/, one file per task), a summary, and the
number of unreadable images by reason (broken/).

Files are written atomically, so a task whose file exists is finished, and running the study again resumes it. A folder holds one study of
one version of Equipoise. The identity of a study is everything its results depend on; a fingerprint of it is in every file. A folder with
anything else in it is refused and left unchanged.

A file of rows is Parquet: one row per (data, split, method, measure), with its trace. Gaps, permutation p-values and performances are those
of the test set, or of the validation set if the column begins with `valid_`. The columns in TIMINGS differ from run to run; all others are
bit-identical for every runner, on the same kind of device.
"""

import hashlib
import json
import logging
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any, Literal

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked

from equipoise import __version__
from equipoise.data import Columns, FloatArray, Scores
from equipoise.disk import atomic_path, sha256, write_text
from equipoise.errors import BadInput, collecting, first_line, raise_all, validation_problems
from equipoise.measures import GAPS, MEASURES, cell_index
from equipoise.methods import METHODS
from equipoise.plugins import plugin_digest
from equipoise.studies import networks
from equipoise.studies.plan import StudyPlan, Task, make_plan, narrow, tasks_of

log = logging.getLogger(__name__)
DEFINITION_FILE, LOCK_FILE = "study.json", ".lock"
ROW_KEYS = ["data", "seed", "method", "measure"]  # columns that identify a row
STUDY_SCHEMA: Literal["equipoise.study"] = "equipoise.study"
STUDY_VERSION: Literal[2] = 2  # of study.json
CODE_FILES = (  # that results depend on
    *(f"{room}/**/*.py" for room in ("data", "models", "measures", "methods")),
    *(f"studies/{name}.py" for name in ("sets/*", "catalogue", "worker", "efficientnet_lite")),
)
COSMETIC_FIELDS = ("name", "about", "keep_networks")  # fields of a plan that do not affect results
TIMINGS = ("seconds",)  # of the method, without training
P_VALUES = ("p_value", "valid_p_value")  # of the largest |gap| over the groups
POOLED_COLUMNS = ("test_cell", "test_decision", "test_patient")  # of each test row, for pooled folds (see summary)
SET_SIZES = ("train_rows", "valid_rows", "test_rows")  # of the sets of the split
ROWS_VERSION = 4  # of files of rows
VERSION_KEY = b"equipoise.rows.schema_version"
IGNORED_COLUMNS = ("noise", "valid_noise")  # columns of earlier versions that are ignored
# Columns that every file has. Others may be absent, such as those of a measure that was added later, and are then read as NaN.
REQUIRED_COLUMNS = ("fingerprint", "version", *ROW_KEYS, "gap", "performance", "valid_gap", "valid_performance", *TIMINGS)
TRACE_COLUMNS = {"trace_step": "step", "trace_gap": "gap", "trace_performance": "performance", "trace_threshold": "threshold"}
_TEXT, _REAL, _WHOLE = pa.string(), pa.float64(), pa.int64()
ROW_SCHEMA = pa.schema(
    [
        ("fingerprint", _TEXT),
        ("version", _TEXT),
        ("data", _TEXT),
        ("seed", _WHOLE),
        ("method", _TEXT),
        ("measure", _TEXT),
        *((name, _REAL) for name in ("gap", "performance", "valid_gap", "valid_performance", *P_VALUES)),
        ("limit", _REAL),  # upper bound (group-aware) of performance on the original network's test scores within |gap|
        *((f"test_{name}", _REAL) for name in (*GAPS, "balanced_accuracy", "accuracy")),
        ("met", pa.bool_()),
        ("step", _WHOLE),
        ("steps", _WHOLE),
        ("pace", _REAL),  # size of one step, in units pruned or epochs
        ("why", _TEXT),
        ("rule", _TEXT),
        ("threshold", _REAL),
        ("needs_group", pa.bool_()),
        ("performance_measure", _TEXT),
        ("min_performance", _REAL),
        ("max_gap", _REAL),
        *((name, _TEXT) for name in ("settings", "notes", "device")),
        *((name, _REAL) for name in (*SET_SIZES, *TIMINGS)),
        ("trace_step", pa.list_(_WHOLE)),
        *((name, pa.list_(_REAL)) for name in list(TRACE_COLUMNS)[1:]),
        *((name, pa.list_(kind)) for name, kind in zip(POOLED_COLUMNS, (_WHOLE, _REAL, _WHOLE), strict=True)),
    ]
)


@dataclass(frozen=True)
class StudyFolder:
    """The folder of a study."""

    path: Path
    plan: StudyPlan
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
def locked_folder(path: str | Path, plan: StudyPlan, root: str | Path | None = None) -> Iterator[StudyFolder]:
    """The folder for this study, new or existing, locked against other runs. Raises an error if it holds anything else.

    An existing one may hold more: a part of its study, down to one cell, can be run in it, and splits can be added.
    """
    path, study_identity = Path(path), identity(plan, root)
    _check_same_study(path, plan, study_identity)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"cannot make the folder {path}: {error.strerror}. Choose another one.") from error
    with _lock(path):
        stored = _check_same_study(path, plan, study_identity)  # another run may have written in the meantime
        if stored is not None and stored.code != code_digest():
            log.warning("The code of Equipoise %s has changed since %s was started; its rows may not be comparable.", stored.version, path)
        if stored is None:
            current = Definition(
                schema=STUDY_SCHEMA,
                schema_version=STUDY_VERSION,
                study=plan.name,
                fingerprint=fingerprint(study_identity),
                version=__version__,
                code=code_digest(),
                identity=study_identity,
                definition=plan.model_dump(mode="json", exclude_unset=True),
            )
        else:
            splits = max(plan.splits, stored.definition.get("splits", 0))
            current = replace(stored, definition={**stored.definition, "splits": splits})
        if current != stored:
            write_text(path / DEFINITION_FILE, TypeAdapter(Definition).dump_json(current, indent=1).decode() + "\n", follow=False)
        yield StudyFolder(path, plan, current.fingerprint, current.version)


def open_study(path: str | Path) -> StudyFolder:
    """The study in a folder, for reading."""
    path = Path(path)
    if not (path / DEFINITION_FILE).is_file():
        raise BadInput(f"{path} holds no study: there is no {DEFINITION_FILE}. Name the folder given to `equipoise study run --out`.")
    stored = _read_definition(path)
    return StudyFolder(path, make_plan(stored.definition, source=str(path / DEFINITION_FILE)), stored.fingerprint, stored.version)


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
    return read_whole(folder).drop(columns=[*TRACE_COLUMNS, *POOLED_COLUMNS])


def read_traces(folder: StudyFolder) -> pd.DataFrame:
    """The steps of all rows so far, one row per step."""
    steps = read_whole(folder)[[*ROW_KEYS, *TRACE_COLUMNS]].explode(list(TRACE_COLUMNS), ignore_index=True).rename(columns=TRACE_COLUMNS)
    kinds = {"step": "int64", **dict.fromkeys(list(TRACE_COLUMNS.values())[1:], "float64")}
    return steps.dropna(subset="step").astype(kinds).reset_index(drop=True)


def read_timings(folder: StudyFolder) -> pd.DataFrame:
    """The seconds of each finished task, training included."""
    timings = []
    for task in tasks_of(folder.plan):
        path = folder.file(task)
        dropped = path.with_suffix(".json")
        if path.is_file():
            about = rows_from_bytes(path.read_bytes(), str(path)).iloc[0] if task.method else networks.read_about(path)
        elif dropped.is_file():
            about = json.loads(dropped.read_text(encoding="utf-8"))
        else:
            continue
        timings.append((task.data, task.seed, task.method or "training", task.measure, float(about["seconds"])))
    return pd.DataFrame(timings, columns=[*ROW_KEYS, "seconds"])


def identity(plan: StudyPlan, root: str | Path | None) -> dict[str, Any]:
    """Everything the results of a study depend on, as plain values: its definition without titles, and checksums of its files.

    Raises one error with every data set whose files are missing.
    """
    content = plan.model_dump(mode="json", exclude={"data", "model", "pretrained", *COSMETIC_FIELDS})
    content["data"], problems = [], list[str]()
    for data in plan.data:
        of_kind = ("source", "options", "redraw") if data.source else (*Columns.model_fields, "attribute_as_input", "scale")
        entry = data.model_dump(mode="json", include={"name", "training", *of_kind})
        entry.get("options", {}).pop("mimic_iv", None)  # a folder, whose files are included in the checksum
        try:
            entry |= {"content": data.checksum(root), "model": plan.network(data.name).content()}
        except (BadInput, OSError) as error:
            problems.append(str(error))
        content["data"].append(entry | ({} if data.source else {"file": Path(str(data.file)).name}))
    raise_all(list(dict.fromkeys(problems)), plan.name)
    plugins: dict[str, Any] = {arm.method: plugin_digest(METHODS[arm.method].run.__module__) for arm in plan.methods}
    plugins |= {name: dict(MEASURES[name].rates) for name in plan.measures if name in MEASURES and name not in GAPS}
    return content | ({"plugins": used} if (used := {name: what for name, what in plugins.items() if what}) else {})


def fingerprint(identity: Mapping[str, Any]) -> str:
    """The first sixteen digits of the checksum of an identity."""
    return sha256(json.dumps(identity, sort_keys=True).encode())[:16]


def differences(requested: Mapping[str, Any], stored: Mapping[str, Any]) -> list[str]:
    """Messages about the differences between two identities."""

    messages = []
    for key in dict.fromkeys([*requested, *stored]):
        sides = requested.get(key), stored.get(key)
        here, there = (json.dumps([entry["name"] for entry in side or ()] if key in ("data", "methods") else side) for side in sides)
        if here != there:
            messages.append(f"{key} is {there} there and {here} here")
        elif sides[0] != sides[1]:
            messages.append(f"{key} (entries of the same names differ)")
    return messages


def code_digest() -> str:
    """A checksum of the code that results depend on, since the version does not identify it during development."""
    package = Path(__file__).parents[1]
    files = sorted(path for pattern in CODE_FILES for path in package.glob(pattern))
    return sha256(b"".join(path.read_bytes() for path in files))[:16]


def read_whole(folder: StudyFolder) -> pd.DataFrame:
    """All rows so far, with traces and pooled decisions, in the order of the study."""
    frames: list[pd.DataFrame] = []
    problems: list[str] = []
    for path in [folder.file(task) for task in tasks_of(folder.plan) if task.method]:
        with collecting(problems):
            frames += [rows_from_bytes(path.read_bytes(), str(path))] if path.is_file() else []
    raise_all(problems, str(folder.path))
    if not frames:
        return ROW_SCHEMA.empty_table().to_pandas()
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
    frame = rows_from_bytes(content, source)
    if [*frame[ROW_KEYS].itertuples(index=False, name=None)] != [(task.data, task.seed, task.method, task.measure)]:
        raise BadInput(f"{source} holds another row than its name says.")
    return str(frame["fingerprint"].iloc[0]), str(frame["version"].iloc[0])


def rows_to_bytes(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """The rows as a Parquet file with page checksums."""
    buffer = BytesIO()
    schema = ROW_SCHEMA.with_metadata({VERSION_KEY: str(ROWS_VERSION).encode()})
    pq.write_table(pa.Table.from_pylist(list(rows), schema=schema), buffer, write_page_checksum=True)
    return buffer.getvalue()


def rows_from_bytes(content: bytes, source: str) -> pd.DataFrame:
    """The rows in a Parquet file. Raises an error that names `source` if it is damaged or holds anything else.

    Columns that the file lacks, such as those of a measure that was added later, are NaN. Measures that only the file has are kept, after
    the other columns.
    """
    try:
        table = pq.read_table(BytesIO(content), page_checksum_verification=True)
    except (pa.ArrowException, OSError) as error:
        raise BadInput(f"{source} is damaged ({first_line(error)}). Run the study again to replace it.") from error
    version = (table.schema.metadata or {}).get(VERSION_KEY, b"1").decode(errors="replace")
    if version != str(ROWS_VERSION):
        raise BadInput(
            f"{source} has rows of schema version {version}; this Equipoise reads version {ROWS_VERSION}. "
            "Use the version of Equipoise that wrote it, or another folder."
        )
    table = table.drop_columns([name for name in IGNORED_COLUMNS if name in table.schema.names])
    types = dict(zip(table.schema.names, table.schema.types, strict=True))
    other_measures = [name for name in types if name not in ROW_SCHEMA.names]
    expected = {field.name: field.type for field in ROW_SCHEMA} | dict.fromkeys(other_measures, _REAL)
    unexpected = [name for name in other_measures if not name.startswith("test_")] + [n for n in types if types[n] != expected[n]]
    if unexpected or not set(REQUIRED_COLUMNS) <= set(types):
        raise BadInput(f"{source} does not hold the rows of a study. Remove it, or use another folder.")
    for name in ROW_SCHEMA.names:
        if name not in types:
            table = table.append_column(ROW_SCHEMA.field(name), pa.nulls(len(table), ROW_SCHEMA.field(name).type))
    return table.select([*ROW_SCHEMA.names, *other_measures]).replace_schema_metadata().to_pandas()


def pooled_columns(scores: Scores, decisions: FloatArray, salt: str) -> dict[str, Any]:
    """The columns with the cell, the decision and the patient of each test row, in a study by folds."""
    attribute = scores.attribute
    names = scores.ids if scores.patients is None else scores.patients
    patients = [int(hashlib.sha256(f"{salt}:{name}".encode()).hexdigest()[:15], 16) for name in names]
    values = cell_index(scores.y, attribute.codes, len(attribute.levels)).tolist(), decisions.tolist(), patients
    return dict(zip(POOLED_COLUMNS, values, strict=True))


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


def _check_same_study(path: Path, plan: StudyPlan, study_identity: dict[str, Any]) -> Definition | None:
    """What the folder holds, or None if it is new. Raises an error if it holds anything but a study of which this one is a part."""
    if path.exists() and not path.is_dir():
        raise BadInput(f"{path} is a file; the results of a study need a folder. Choose another place with --out.")
    if not (path / DEFINITION_FILE).exists():
        inside = path.iterdir() if path.exists() else ()
        other_files = sorted(p.name for p in inside if p.name != LOCK_FILE and not p.name.startswith(".equipoise."))
        if other_files:
            raise BadInput(f"{path} is not empty and holds no study ({', '.join(other_files[:3])} ...). Choose another folder with --out.")
        return None
    stored = _read_definition(path)
    if stored.version != __version__:
        raise BadInput(
            f"{path} holds results of Equipoise {stored.version}, and this is {__version__}; rows of two versions are not mixed. "
            "Nothing was changed. Choose another folder with --out, or install that version."
        )
    same = stored.identity  # restricted to the splits, data, methods and measures of the plan if it has all of them
    with suppress(BadInput):
        names = {"data": [data.name for data in plan.data], "methods": [arm.name for arm in plan.methods]}
        part = narrow(make_plan(stored.definition), splits=plan.splits, measures=plan.measures, **names)
        kept = part.model_dump(mode="json", include={"splits", "methods", "measures", "trainings"})
        same = {**same, **kept, "data": [entry for entry in same["data"] if entry["name"] in names["data"]]}
    if different := differences(study_identity, same):
        raise BadInput(
            f"{path} holds another study, {stored.study!r} ({stored.fingerprint}), not {plan.name!r} ({fingerprint(study_identity)}): "
            f"{'; '.join(different)}. Nothing was changed. Choose another folder with --out."
        )
    return stored


def _read_definition(path: Path) -> Definition:
    """The content of study.json. Raises one error with every key that is missing or has a wrong type."""
    source = path / DEFINITION_FILE
    try:
        return TypeAdapter(Definition).validate_json(source.read_bytes())
    except ValidationError as error:
        *others, last = validation_problems(error, skip=0)
        advice = "Restore the file from a copy, use the version of Equipoise that wrote it, or choose another folder with --out."
        raise BadInput(*others, f"{last}. {advice}", source=str(source)) from error


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Prevents two runs from working in one folder. The system removes the lock when the process ends, however it ends."""
    if sys.platform == "win32":
        yield
        return
    import fcntl

    handle = os.open(path / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o644)
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
