"""The folder of a study: what it is (study.json), the trained networks (models/), the rows (rows/, one file a task) and a summary.
Where images were left out, broken/ counts them, by what was wrong.

A file is written whole or not at all, so a task whose file is there is done, and to go on after an interruption is to run the study again.
A folder holds one study of one version of Equipoise; anything else is refused and left as it is.
"""

import json
import logging
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import TypeAdapter

from equipoise.data import replacing, sha256, write_text
from equipoise.errors import BadInput, raise_all
from equipoise.study import rows, weights
from equipoise.study.identity import differences, fingerprint, identity
from equipoise.study.plan import make_plan
from equipoise.study.pooled import pooled
from equipoise.study.schema import Plan
from equipoise.study.tasks import Task, tasks_of

log = logging.getLogger(__name__)
DEFINITION, LOCK = "study.json", ".lock"
SCHEMA, SCHEMA_VERSION = "equipoise.study", 2  # of study.json


@dataclass(frozen=True)
class Folder:
    """A folder that holds this study."""

    path: Path
    plan: Plan
    fingerprint: str
    version: str

    def file(self, task: Task) -> Path:
        """Where a task's result belongs."""
        return self.path / (f"rows/{task.key}.parquet" if task.method else f"models/{task.key}.safetensors")

    def store(self, task: Task, content: bytes) -> None:
        """Writes a task's result, whole or not at all."""
        with replacing(self.file(task), follow=False) as temporary:
            temporary.write_bytes(content)

    def drop(self, training: Task) -> None:
        """Removes the networks of a block, which can be large, and keeps what is known about them."""
        path = self.file(training)
        write_text(path.with_suffix(".json"), json.dumps(weights.read_about(path), indent=1) + "\n", follow=False)
        path.unlink()

    def note_broken(self, data: str, kinds: Mapping[str, int]) -> None:
        """Writes down how many images were left out and why; their names stay on the terminal, since results are passed on."""
        write_text(self.path / f"broken/{data}.txt", "".join(f"{count} {kind}\n" for kind, count in kinds.items()), follow=False)


@contextmanager
def claimed(path: str | Path, plan: Plan, root: str | Path | None = None) -> Iterator[Folder]:
    """The folder for this study, made or found, and kept from other runs meanwhile; an error if it holds anything else."""
    path, ours = Path(path), identity(plan, root)
    folder = Folder(path, plan, fingerprint(ours), present_version())
    _check(folder, ours)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"cannot make the folder {path}: {error.strerror}. Choose another place.") from error
    with _locked(path):
        _check(folder, ours)  # somebody else may have been quicker
        if not (path / DEFINITION).exists():
            content = {
                "schema": SCHEMA,
                "schema_version": SCHEMA_VERSION,
                "study": plan.name,
                "fingerprint": folder.fingerprint,
                "version": folder.version,
                "code": code_digest(),
                "identity": ours,
                "definition": json.loads(TypeAdapter(Plan).dump_json(plan)),
            }
            write_text(path / DEFINITION, json.dumps(content, indent=1) + "\n", follow=False)
        elif _definition(path).get("code") != code_digest():
            log.warning("The code of Equipoise %s has been changed since %s was begun; its rows may not be alike.", folder.version, path)
        yield folder


def opened(path: str | Path) -> Folder:
    """The study in a folder, to look at."""
    path = Path(path)
    if not (path / DEFINITION).is_file():
        raise BadInput(f"{path} holds no study: there is no {DEFINITION}. Name the folder given to `equipoise study run --out`.")
    found = _definition(path)
    return Folder(path, make_plan(found["definition"], source=str(path / DEFINITION)), found["fingerprint"], found["version"])


def finished(folder: Folder) -> set[Task]:
    """The tasks whose results are there and sound. Damaged files are named in the log and will be replaced; alien ones are an error."""
    done, aliens = set(), []
    for task in tasks_of(folder.plan):
        path = folder.file(task)
        if not path.is_file():
            continue
        try:
            owner = _owner(path.read_bytes(), task, str(path))
        except BadInput as error:
            log.warning("%s It is done anew.", error)
            continue
        if owner != (folder.fingerprint, folder.version):
            aliens.append(f"{path} belongs to study {owner[0]} of version {owner[1]}, not to {folder.fingerprint} of {folder.version}")
        done.add(task)
    raise_all(aliens, str(folder.path))
    return done


def read_rows(folder: Folder) -> pd.DataFrame:
    """All rows so far, without their traces, in the order of the study; one error with every file that is damaged."""
    return rows.split_traces(_read(folder))[0]


def read_pooled(folder: Folder) -> pd.DataFrame:
    """The folds put together, of a study by folds; a line a (data, measure, method)."""
    return pooled(_read(folder))


def read_traces(folder: Folder) -> pd.DataFrame:
    """The steps of all rows so far."""
    return rows.split_traces(_read(folder))[1]


def read_timings(folder: Folder) -> pd.DataFrame:
    """Seconds of each finished task, training included, and of a split in it."""
    lines = []
    for task in tasks_of(folder.plan):
        path = folder.file(task)
        if path.is_file() and not task.method:
            seconds = float(weights.read_about(path)["seconds"])
        elif not task.method and path.with_suffix(".json").is_file():
            seconds = float(json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))["seconds"])
        elif path.is_file():
            seconds = float(rows.from_bytes(path.read_bytes(), str(path))["task_seconds"].iloc[0])
        else:
            continue
        line = {"data": task.data, "method": task.method or "training", "measure": task.measure, "stack": len(task.seeds)}
        lines.append({**line, "task_seconds": seconds, "seconds": seconds / len(task.seeds)})
    return pd.DataFrame(lines, columns=["data", "method", "measure", "stack", "task_seconds", "seconds"])


def present_version() -> str:
    """The version of Equipoise that is running."""
    import equipoise

    return equipoise.__version__


def code_digest() -> str:
    """A checksum of the rooms that make the numbers: while Equipoise is being developed, its version does not tell it all."""
    here = Path(__file__).parents[1]
    files = sorted(path for room in ("data", "models", "measures", "methods") for path in (here / room).glob("*.py"))
    return sha256(b"".join(path.read_bytes() for path in files))[:16]


def _read(folder: Folder) -> pd.DataFrame:
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
    order = [_position(whole["data"], [d.name for d in folder.plan.data]), _position(whole["measure"], folder.plan.measures)]
    order += [_position(whole["method"], [a.name for a in folder.plan.methods]), whole["seed"]]
    ranks = pd.concat(order, axis=1, keys=range(4)).sort_values([0, 1, 2, 3]).index
    return whole.loc[ranks].reset_index(drop=True)


def _position(column: "pd.Series[str]", order: Sequence[str]) -> "pd.Series[int]":
    return column.map({name: k for k, name in enumerate(order)})


def _owner(content: bytes, task: Task, source: str) -> tuple[str, str]:
    """The fingerprint and version in a task's file, once it is sound and complete."""
    if not task.method:
        states, about = weights.from_bytes(content, source)
        if tuple(states) != task.seeds:
            raise BadInput(f"{source} holds the networks of other splits.")
        return about["fingerprint"], about["version"]
    frame = rows.from_bytes(content, source)
    same = frame[["data", "method", "measure"]].eq([task.data, task.method, task.measure]).all(axis=None)
    if not same or tuple(frame["seed"]) != task.seeds:
        raise BadInput(f"{source} holds other rows than its name says.")
    return str(frame["fingerprint"].iloc[0]), str(frame["version"].iloc[0])


def _check(folder: Folder, ours: dict[str, Any]) -> None:
    """Refuses a folder that holds something else."""
    path = folder.path
    if path.exists() and not path.is_dir():
        raise BadInput(f"{path} is a file; the results of a study need a folder. Choose another place with --out.")
    if not (path / DEFINITION).exists():
        strangers = (
            sorted(p.name for p in path.iterdir() if p.name != LOCK and not p.name.startswith(".equipoise.")) if path.exists() else []
        )
        if strangers:
            raise BadInput(f"{path} is not empty and holds no study ({', '.join(strangers[:3])} ...). Choose another folder with --out.")
        return
    found = _definition(path)
    if found["version"] != folder.version:
        raise BadInput(
            f"{path} holds results of Equipoise {found['version']}, and this is {folder.version}; rows of two versions are not mixed. "
            "Nothing was changed. Choose another folder with --out, or install that version."
        )
    if found["fingerprint"] != folder.fingerprint:
        different = "; ".join(differences(ours, found["identity"])) or "its fingerprint is another"
        raise BadInput(
            f"{path} holds another study, {found['study']!r} ({found['fingerprint']}), not {folder.plan.name!r} ({folder.fingerprint}): "
            f"{different}. Nothing was changed. Choose another folder with --out."
        )


def _definition(path: Path) -> dict[str, Any]:
    source = path / DEFINITION
    try:
        found: dict[str, Any] = json.loads(source.read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise TypeError("it is not an object")
        lacking = [key for key in ("study", "fingerprint", "version", "identity", "definition") if key not in found]
    except (ValueError, TypeError) as error:
        raise BadInput(f"{source} is damaged ({error}). Put it back from a copy, or choose another folder with --out.") from error
    if lacking:
        raise BadInput(f"{source} lacks {', '.join(lacking)}. Put it back from a copy, or choose another folder with --out.")
    if (found.get("schema"), found.get("schema_version")) != (SCHEMA, SCHEMA_VERSION):
        raise BadInput(
            f"{source} has schema {found.get('schema')!r}, version {found.get('schema_version')!r}; this Equipoise reads {SCHEMA!r}, "
            f"version {SCHEMA_VERSION}. Use the version of Equipoise that wrote it, or choose another folder with --out."
        )
    return found


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Keeps two runs from working in one folder; the system lifts the lock when a run ends in whatever way."""
    if sys.platform == "win32":
        yield
        return
    import fcntl

    handle = os.open(path / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BadInput(f"another run is at work in {path}. Wait for it, or choose another folder with --out.") from None
        for leftover in path.rglob(".equipoise.*.tmp"):  # of a run that was killed while it wrote
            leftover.unlink(missing_ok=True)
        yield
    finally:
        os.close(handle)
