"""TOML: the file of a study and the file of a model card, with other keys, values, types and bytes.

The oracle reads the file with tomllib: an unknown key or a value of another type must not be accepted.
"""

import tomllib
from pathlib import Path
from typing import Any

import numpy as np

from fuzz.base import FEATURES, ROLES
from fuzz.bytes import mutated
from fuzz.case import Case, refused

VALUES = ["0", "-1", "1", "2", "3.5", "nan", "inf", '""', '"x"', "true", "[]", "[[]]", "{}", '["eod"]', '["eod", "eod"]', '["nope"]',
          "1e400",
          "9" * 30, "2026-01-02", '"eod"', "[1]", '{ n = 0 }', "{ n = 1e9 }", '"standard"']  # fmt: skip
STUDY_KEYS = {
    "name",
    "title",
    "about",
    "measures",
    "splits",
    "training",
    "data",
    "methods",
    "epochs",
    "source",
    "options",
    "method",
}


def case(base: Path, place: Path, rng: np.random.Generator) -> Case:
    study = rng.random() < 0.5
    source = base / ("study.toml" if study else "card.toml")
    text = source.read_text()
    lines = text.splitlines()
    kind = rng.random()
    keyed = [k for k, line in enumerate(lines) if "=" in line]
    at = keyed[int(rng.integers(len(keyed)))]
    name = lines[at].partition("=")[0].strip()
    must_fail = False
    if kind < 0.4:
        what, content = mutated(text.encode(), rng)
    elif kind < 0.65:
        value = VALUES[int(rng.integers(len(VALUES)))]
        lines[at] = f"{name} = {value}"
        what, content = f"{name} = {value[:30]}", "\n".join(lines).encode()
    elif kind < 0.8:
        lines[at] = lines[at].replace(name, str(rng.choice([f"{name}s", name.upper(), f"x{name}", "nope"])), 1)
        what, content, must_fail = f"{name} as {lines[at].partition('=')[0].strip()}", "\n".join(lines).encode(), True
    elif kind < 0.9:
        gone = lines.pop(at)
        what, content = f"without {gone[:30]}", "\n".join(lines).encode()
    else:
        lines.insert(at, lines[at])
        what, content, must_fail = f"{name} twice", "\n".join(lines).encode(), True
    path = place / source.name
    path.write_bytes(content)
    if study:
        command = ["study", "run", path.name, "--out", "out", "--runner", "serial", "--splits", "1"]
        command = command if _small(content) else ["study", "run", path.name, "--out", "out", "--runner", "nope"]
    else:
        command = [
            "debias",
            str(base / "scores.csv"),
            *ROLES,
            *FEATURES,
            "--model",
            f"{base / 'net.py'}:linear",
            "--set",
            f"report.card={path.name}",
        ]
        command += ["--weights", str(base / "net.safetensors"), "--out", "out", "--dry-run", "--json"]
    return Case(f"{source.name}: {what}", command, refused if must_fail else lambda _: _judged(content, study, place))


def _small(content: bytes) -> bool:
    """Whether a study would end soon: nothing in it may ask for much work."""
    try:
        found = tomllib.loads(content.decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError):
        return True

    def numbers(value: Any) -> list[float]:
        if isinstance(value, dict):
            return [n for inner in value.values() for n in numbers(inner)]
        if isinstance(value, list):
            return [n for inner in value for n in numbers(inner)]
        return [float(value)] if isinstance(value, (int, float)) and abs(value) < 1e300 else []

    return all(abs(n) <= 200 for n in numbers(found)) and all(entry.get("source") == "loh" for entry in _tables(found.get("data")))


def _tables(value: Any) -> list[dict[str, Any]]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def _judged(content: bytes, study: bool, place: Path) -> str:
    try:
        found = tomllib.loads(content.decode("utf-8-sig"))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        return f"accepted, although {error}"
    if not study:
        return ""
    if not (place / "out" / "study.json").is_file():
        return "nothing was written"
    for name in ("measures", "splits"):
        if name in found and name not in (place / "out" / "study.json").read_text():
            return f"{name} is not in study.json"
    counts = {"splits": found.get("splits", 1), "epochs": found.get("training", {}).get("epochs", 1)}
    for name, value in counts.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < (name != "epochs"):
            return f"accepted with {name} = {value!r}"
    measures = found.get("measures", ["eod"])
    if not isinstance(measures, list) or not measures or len(set(measures)) != len(measures):
        return f"accepted with measures = {measures!r}"
    unknown = [key for key in found if key not in STUDY_KEYS and key not in _study_keys()]
    return f"accepted with the unknown keys {', '.join(unknown)}" if unknown else ""


def _study_keys() -> set[str]:
    from dataclasses import fields

    from equipoise.studies import StudyPlan

    return {field.name for field in fields(StudyPlan)}
