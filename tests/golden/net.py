"""Running a recorded command or call, and what is kept of it: exit code, numbers in order of their place, facts of texts.

    PYTHONPATH=src:tests python -m tests.golden record [NAME ...]     # run them and keep what they give
    PYTHONPATH=src:tests python -m tests.golden check [NAME ...]      # the differences to what was kept

Numbers are compared to 1e-12 on the machine that recorded them (processor, torch, NumPy). On any other, audits and messages are compared
to 1e-6, without what is simulated from correlations or resampled (`UNSTEADY`), where rounding picks other draws; of repairs, whose steps
amplify rounding, only the exit code is.
"""

import atexit
import csv
import dataclasses
import hashlib
import html
import json
import math
import platform
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import chdir
from functools import cache
from pathlib import Path
from shutil import copytree, ignore_patterns, rmtree
from typing import Any

import numpy as np
import pandas as pd
from tests.golden.calls import CALLS
from tests.golden.commands import COMMANDS
from tests.golden.inputs import build

from support.command import Ran, ran

KEPT = Path(__file__).parent / "kept"
CLOSE, CLOSE_ELSEWHERE = 1e-12, 1e-6
AUDIT_PAGES = ("audit.html", "history.html")  # pages of repairs state how long these took
TIMED = ("debias-dry-run",)  # what these print depends on the speed of the machine
WORDS = "seconds elapsed created date time version versions host duration path command python torch commit platform sha256 checksum files"
VARIES = re.compile(rf"(?:^|_)(?:{'|'.join(WORDS.split())}|digest|memory|peak|when|provenance)(?:$|_)")
TIMES = re.compile(r"\d{4}-\d\d-\d\dT[\d:.+]+|\d{1,2} [A-Z][a-z]+ \d{4}(, \d\d:\d\d)?|\d[\d.,]* ?(s|ms|min|minutes|seconds|h)\b")
NUMBER = re.compile(r"(?<![\w.])[-+\u2212]?\d[\d,]*\.?\d*(?:e[-+]?\d+)?(?![\w])")
STEADY = re.compile(
    r"^(py-)?(audit|compare-|history|report-audit|study-list|data|split|scan|load)(?!.*(network|images|onnx|findings|estimator|probe))"
)
UNSTEADY = re.compile(r"simultaneous_|calibration_error_expected|by_threshold")


@cache
def inputs() -> Path:
    """The folder of inputs, built once and removed at the end."""
    folder = _new_folder()
    build(folder)
    return folder


def _new_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="equipoise-golden-"))
    atexit.register(rmtree, folder, ignore_errors=True)
    return folder


@cache
def after(*commands: tuple[str, ...]) -> tuple[Path, Ran]:
    """A folder in which these commands ran one after another, and what the last one left: run once, and copied for what follows it."""
    *first, last = commands
    folder = _copy_of(after(*first)[0] if first else inputs(), images="xrays" in last)
    if last[0] == "!append":
        path = folder / last[1]
        path.write_text(path.read_text() + last[2])
        return folder, Ran(0, "", "")
    with chdir(folder):
        return folder, ran(*last)


def _copy_of(folder: Path, images: bool = False) -> Path:
    """A copy without the 150 images, unless they are needed."""
    made = _new_folder()
    copytree(folder, made, dirs_exist_ok=True, ignore=None if images else ignore_patterns("xrays"))
    return made


def observed(name: str) -> dict[str, Any]:
    """What a command or call gives in a folder of inputs."""
    if name in CALLS:
        place = _copy_of(inputs())
        with chdir(place):
            values = flat(CALLS[name](place))
        return {"values": values, "written": _files(place, inputs())}
    commands = [tuple(words) for words in COMMANDS[name]]
    for k, words in enumerate(commands[:-1]):
        if (done := after(*commands[: k + 1])[1]).code != 0:
            raise RuntimeError(f"{name}: {' '.join(words)}: {done.err}")
    place, done = after(*commands)
    before = after(*commands[:-1])[0] if commands[:-1] else inputs()
    found: dict[str, Any] = {"code": done.code, "error": sorted(facts(done.err)), "written": _files(place, before)}
    try:
        return found | {"values": flat(json.loads(done.out))}
    except ValueError:
        return found | {"text": [] if name in TIMED else facts(done.out)}


def flat(value: Any, where: str = "") -> dict[str, Any]:
    """Every number and word of a value, by its place."""
    return dict(_flat(value, where))


def _flat(value: Any, where: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, pd.DataFrame):
        value = value.to_dict("list")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if not VARIES.search(str(key)):
                yield from _flat(inner, f"{where}/{key}")
    elif isinstance(value, (list, tuple)):
        for k, inner in enumerate(value):
            yield from _flat(inner, f"{where}/{k}")
    elif isinstance(value, (bool, np.bool_)) or value is None:
        yield where, None if value is None else bool(value)
    elif isinstance(value, (int, float, np.number)):
        yield where, float(value)
    elif not re.fullmatch("[0-9a-f]{16,}", str(value)):  # a checksum, of which one in a few hundred reads as a number
        for k, fact in enumerate(facts(str(value))):
            yield f"{where}#{k}", fact


def facts(text: str) -> list[str]:
    """The numbers, the quoted words and the options in a text, in their order."""
    text = TIMES.sub("", re.sub(r"/tmp/\S+", "", text))
    return re.findall(rf"{NUMBER.pattern}|'[^'\n]{{1,60}}'|--[a-z][a-z-]+", text)


def _files(place: Path, before: Path) -> dict[str, Any]:
    """What was written that was not in the folder before: names, and the contents of tables, JSON and pages."""
    found: dict[str, Any] = {}
    for path in sorted(p for p in place.rglob("*") if p.is_file() and not (before / p.relative_to(place)).exists()):
        name = str(path.relative_to(place))
        if path.name == "card.fhir.json":  # the other cards, encoded, with their dates
            continue
        if path.suffix == ".json":
            found[name] = flat(json.loads(path.read_text()))
        elif path.suffix == ".csv":
            rows = csv.DictReader(path.read_text().splitlines())
            found[name] = flat([{str(key): _cell(cell) for key, cell in row.items()} for row in rows])
        elif path.suffix == ".html":
            found[name] = _page(path.read_text(), words=path.name in AUDIT_PAGES)
        else:
            found[name] = {}
    return found


def _cell(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return text


def _page(text: str, words: bool) -> dict[str, Any]:
    """The headings of a page and, with `words`, the numbers and options in them."""
    body = re.sub(r"(?is)<(script|style|svg)\b.*?</\1>", " ", text)
    headings = [re.sub(r"<[^>]+>", "", found).strip() for found in re.findall(r"(?is)<h[123][^>]*>(.*?)</h[123]>", body)]
    shown = html.unescape(re.sub(r"<[^>]+>", " ", body)) if words else ""
    return flat({"headings": headings, "words": facts(shown)})


@cache
def machine() -> str:
    """What the last bits of a sum depend on."""
    import torch

    info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else platform.processor()
    processor = sorted({line for line in info.splitlines() if line.startswith(("model name", "flags"))})
    return f"{hashlib.sha256(repr(processor).encode()).hexdigest()[:12]}, torch {torch.__version__}, numpy {np.__version__}"


def kept_form(name: str, found: dict[str, Any]) -> dict[str, Any]:
    """What is written down: values without their places, which are kept as one digest."""
    values = flat(found)
    unsteady = [k for k, place in enumerate(values) if UNSTEADY.search(place)]
    return {
        "machine": machine(),
        "places": _digest(values),
        "steady": _digest(_steady(values)),
        "unsteady": unsteady,
        "values": list(values.values()),
    }


def _steady(values: Mapping[str, Any]) -> dict[str, Any]:
    return {place: value for place, value in values.items() if not UNSTEADY.search(place)}


def _digest(values: Mapping[str, Any]) -> str:
    return hashlib.sha256("\n".join(values).encode()).hexdigest()[:16]


def differences(name: str, found: dict[str, Any]) -> list[str]:
    """How this differs from what was kept, at most ten lines."""
    kept = json.loads((KEPT / f"{name}.json").read_text())
    values = flat(found)
    steady = STEADY.search(name)
    here = kept["machine"] == machine()
    if not (here or steady):
        values = {place: value for place, value in values.items() if place == "/code"}
        return [f"/code: {kept['values'][0]} -> {values['/code']}"] if values and values["/code"] != kept["values"][0] else []
    close, recorded = (CLOSE if here else CLOSE_ELSEWHERE), kept["values"]
    if not here:
        values, unsteady = _steady(values), {*kept["unsteady"]}
        recorded = [value for k, value in enumerate(recorded) if k not in unsteady]
    if kept["places" if here else "steady"] != _digest(values):
        return [f"other places: {len(values)} values, {len(recorded)} kept"]
    wrong = []
    for (place, now), before in zip(values.items(), recorded, strict=True):
        if isinstance(now, float) and isinstance(before, (int, float)):
            same = math.isclose(now, before, rel_tol=close, abs_tol=close) or (math.isnan(now) and math.isnan(before))
        else:
            same = now == before
        if not same:
            wrong.append(f"{place}: {before!r} -> {now!r}")
    return wrong[:10]
