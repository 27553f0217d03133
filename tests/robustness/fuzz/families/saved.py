"""What an earlier command saved: audits as JSON, histories, folders of a repair and exported networks.

Whatever was changed since must be refused, unless it reads as before; code in a file must never run, and a page that is made again must
hold nothing of the page that lay in the folder.
"""

import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fuzz.base import FEATURES
from fuzz.bytes import mutated
from fuzz.case import Case, Outcome, anything
from fuzz.families.bundles import edited
from fuzz.families.weights import Marks

PLANTED = "fuzz-planted"
PAGES = [
    f"<SCRIPT>document.title='{PLANTED}'</SCRIPT>",
    f"<svg onload=\"document.title='{PLANTED}'\">",
    f"<script>/*{PLANTED}",
    f"<!-- <head> --><script src='{PLANTED}.js'></script>",
    f"<iframe src='file:///{PLANTED}'></iframe>",
    f"<link rel=attachment href='file:///{PLANTED}'>",
]


def case(base: Path, place: Path, rng: np.random.Generator) -> Case:
    kinds: tuple[Callable[[Path, Path, np.random.Generator], Case], ...] = (_audit, _history, _page, _exported)
    return kinds[int(rng.choice(len(kinds), p=[0.4, 0.35, 0.1, 0.15]))](base, place, rng)


def _audit(base: Path, place: Path, rng: np.random.Generator) -> Case:
    """An audit in JSON, with other bytes or other values."""
    sound = base / "audit.json"
    path = place / "mutated.json"
    kind = rng.random()
    if kind < 0.4:
        what, content = mutated(sound.read_bytes(), rng)
        path.write_bytes(content)
    elif kind < 0.95:
        document = json.loads(sound.read_text())
        what = edited(document, rng)
        path.write_text(json.dumps(document))
    else:
        what = "the same values in another form"
        path.write_text(json.dumps(json.loads(sound.read_text()), indent=3))
    try:
        same = json.loads(path.read_text(encoding="utf-8")) == json.loads(sound.read_text())
    except ValueError:
        same = False
    command = ["report", path.name, "--report", "page.html"] if rng.random() < 0.5 else ["compare", str(sound), path.name]
    return Case(f"audit, {what}", command, anything if same else _accepted)


def _accepted(_: Outcome) -> str:
    return "accepted, although it is not what was saved"


def _history(base: Path, place: Path, rng: np.random.Generator) -> Case:
    """A history with other bytes, or with rows that are doubled, missing, moved or changed."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    sound, path = base / "history.parquet", place / "mutated.parquet"
    judge = _accepted
    kind = rng.random()
    if kind < 0.4:
        what, content = mutated(sound.read_bytes(), rng)
        path.write_bytes(content)
        try:
            if pq.read_table(path).equals(pq.read_table(sound), check_metadata=True):
                judge = anything
        except Exception:  # nobody can read it
            judge = _accepted
    else:
        table = pq.read_table(sound)
        rows = list(range(table.num_rows))
        at = int(rng.integers(len(rows)))
        if kind < 0.5:
            what, table = f"row {at} twice", table.take(sorted([*rows, at]))
        elif kind < 0.6:
            what, table = f"row {at} removed", table.take([k for k in rows if k != at])
        elif kind < 0.7:
            column = str(rng.choice(table.column_names))
            what, table = f"column {column} removed", table.drop_columns([column])
        elif kind < 0.95:
            what, table = _changed_cell(table, at, rng)
            if table.equals(pq.read_table(sound)):
                judge = anything
        else:
            what, judge = "written again", anything
        pq.write_table(pa.table(table), path)
    command = ["compare", path.name] if rng.random() < 0.6 else _append(base, path)
    return Case(f"history, {what}", command, judge)


def _changed_cell(table: Any, at: int, rng: np.random.Generator) -> tuple[str, Any]:
    import pyarrow as pa

    column = int(rng.integers(table.num_columns))
    field = table.schema.field(column)
    values = table.column(column).to_pylist()
    value = [None, "x", "", -1, 0.5, 1e300, float("nan"), True, values[at - 1]][int(rng.integers(9))]
    values[at] = value
    try:
        changed = pa.array(values, field.type)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        changed, field = pa.array([str(v) for v in values], pa.string()), pa.field(field.name, pa.string())
    return f"{field.name} of row {at} = {str(value)[:20]!r}", table.set_column(column, field, changed)


def _append(base: Path, path: Path) -> list[str]:
    return ["audit", str(base / "scores.csv"), "--label", "y", "--score", "p", "--group", "sex", "--reference", "M", "--patient", "patient",
            "--set", "audit.min_patients=1", "--append", path.name, "--date", "2027-01"]  # fmt: skip


def _page(base: Path, place: Path, rng: np.random.Generator) -> Case:
    """A stranger's folder whose page was replaced."""
    folder = place / "bundle"
    shutil.copytree(base / "bundles" / str(rng.choice(["threshold", "groups"])), folder)
    page = folder / "report.html"
    planted = str(rng.choice(PAGES))
    text = page.read_text()
    at = int(rng.integers(len(text)))
    page.write_text(text[:at] + planted + text[at:] if rng.random() < 0.5 else planted)

    def judge(_: Outcome) -> str:
        return "the page in the folder was passed on" if PLANTED in (place / "again.html").read_text() else ""

    return Case(f"page, {planted}", ["report", folder.name, "--report", "again.html"], judge)


def _exported(base: Path, place: Path, rng: np.random.Generator) -> Case:
    """An exported program with other bytes, or with a pickle under any name."""
    import pickle

    sound, path, mark = base / "net.pt2", place / "mutated.pt2", place / "ran"
    if rng.random() < 0.5:
        what, content = mutated(sound.read_bytes(), rng)
        path.write_bytes(content)
    else:
        with zipfile.ZipFile(sound) as archive:
            files = {name: archive.read(name) for name in archive.namelist()}
        name = str(rng.choice([*files, "net/data/weights/weight_x.json", "net/data/constants/x.json", "x.pkl", "extra.bin"]))
        content = pickle.dumps(Marks(str(mark)), protocol=int(rng.integers(0, 5)))
        what = f"a pickle as {name}"
        with zipfile.ZipFile(path, "w") as archive:
            for other, data in {**files, name: content}.items():
                archive.writestr(other, data)
    command = ["audit", str(base / "scores.csv"), "--label", "y", "--group", "sex", "--patient", "patient", *FEATURES]
    command += ["--model", path.name, "--set", "model.output=logit", "--set", "audit.min_patients=1", "--json"]

    def judge(_: Outcome) -> str:
        if mark.exists():
            return "the code in the pickle was run"
        return "a pickle was accepted" if what.startswith("a pickle") else ""

    return Case(f"exported, {what}", command, judge)
