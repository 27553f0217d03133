"""Bundles: any byte of any listed file, keys of run.json and rule.json, files removed, swapped or dropped in.

A folder in which a listed file differs must be refused. Where nothing that counts was changed, the decisions are those of the sound one.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from fuzz.base import serving
from fuzz.bytes import mutated
from fuzz.case import Case, Outcome

JUNK: list[Any] = [
    None,
    True,
    0,
    -1,
    1e30,
    -1e30,
    "",
    "x",
    "Logit",
    [],
    {},
    [[]],
    {"a": 1},
    "logit",
    "probability",
    0.5,
    "nan",
    ["sex"],
    [1],
    "../x",
]
DROPPED = [
    "repaired.pt2",
    "heads.pt",
    "sitecustomize.py",
    "net.py",
    "torch.py",
    "heads.safetensors",
    "notes.txt",
    "extra.json",
    "repaired.pt",
]


def case(base: Path, place: Path, rng: np.random.Generator) -> Case:
    name = str(rng.choice(["threshold", "groups", "images"], p=[0.45, 0.4, 0.15]))
    bundle = place / "bundle"
    shutil.copytree(base / "bundles" / name, bundle)
    files = sorted(path.name for path in bundle.iterdir() if path.is_file())
    deciding = [file for file in files if file in ("run.json", "rule.json") or file.startswith("repaired.")]
    kind = rng.random()
    if kind < 0.3:
        file = str(rng.choice(deciding if rng.random() < 0.75 else files))
        what, content = mutated((bundle / file).read_bytes(), rng)
        (bundle / file).write_bytes(content)
        what = f"{file}, {what}"
    elif kind < 0.75:
        file = "run.json" if rng.random() < 0.65 else "rule.json"
        document = json.loads((bundle / file).read_text())
        what = f"{file}, {edited(document, rng)}"
        (bundle / file).write_text(json.dumps(document, indent=2) + "\n")
    elif kind < 0.82:
        file = str(rng.choice(files))
        (bundle / file).unlink()
        what = f"{file} removed"
    elif kind < 0.9:
        other = {"threshold": "groups", "groups": "threshold", "images": "threshold"}[name]
        file = str(rng.choice([file for file in deciding if (base / "bundles" / other / file).exists()]))
        shutil.copyfile(base / "bundles" / other / file, bundle / file)
        what = f"{file} of another bundle"
    else:
        file = str(rng.choice([file for file in DROPPED if file not in files]))
        (bundle / file).write_bytes(rng.integers(0, 256, 200, dtype=np.uint8).tobytes() if rng.random() < 0.5 else b"raise SystemExit(9)\n")
        what = f"{file} dropped in"
    changed = _changed(base / "bundles" / name, bundle)
    expected = (base / f"{name}.csv").read_text()

    def judge(outcome: Outcome) -> str:
        if changed:
            return f"accepted, although {changed}"
        return "" if outcome.out == expected else "the decisions are not those of the sound bundle"

    return Case(f"{name}: {what}", serving(base, bundle, name), judge)


def edited(document: dict[str, Any], rng: np.random.Generator) -> str:
    """Changes one place of a JSON document, and returns which."""
    place: Any = document
    path: list[str] = []
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = keys[int(rng.integers(len(keys)))]
        path.append(str(key))
        inner = place[key]
        if isinstance(inner, (dict, list)) and inner and rng.random() < 0.7:
            place = inner
            continue
        kind = rng.random()
        where = ".".join(path)
        if kind < 0.35:
            del place[key]
            return f"{where} removed"
        if kind < 0.45 and isinstance(place, dict):
            place[f"{key}_"] = place.pop(key)
            return f"{where} renamed"
        value = JUNK[int(rng.integers(len(JUNK)))]
        if isinstance(inner, (int, float)) and not isinstance(inner, bool) and rng.random() < 0.5:
            value = [inner + 1, inner * 1.01 + 0.001, -inner - 1, inner * 1e30 + 1e30][int(rng.integers(4))]
        place[key] = value
        return f"{where} = {str(value)[:20]!r}"


def _changed(sound: Path, bundle: Path) -> str:
    """Which of the listed files differ, in words; run.json and rule.json by their content, all others by their bytes."""
    for file in sorted(sound.iterdir()):
        if not file.is_file():
            continue
        mine = bundle / file.name
        if not mine.exists():
            return f"{file.name} is missing"
        if mine.read_bytes() == file.read_bytes():
            continue
        if file.name == "run.json":
            try:
                if json.loads(mine.read_text(encoding="utf-8")) == json.loads(file.read_text()):
                    continue
            except ValueError:
                pass
        return f"{file.name} is not the one that was written"
    return ""
