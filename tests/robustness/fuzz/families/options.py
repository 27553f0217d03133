"""Options: values that are no numbers, out of range, missing, twice, of no column; unknown options and commands.

The oracle knows of each value whether it is valid; where all are, the audit must have used them.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np

from fuzz.base import FEATURES, ROLES
from fuzz.case import Case, Outcome, anything, refused
from fuzz.recount import compared, rows_of

NUMBERS = ["0", "1", "2", "5", "0.5", "0.25", "1.0", "-1", "-0.1", "1.1", "nan", "inf", "-inf", "1e-300", "1e400", "", " ", "half", "0x10",
           "99999999999999999999", "1_000", "0,5", "\u0661", "3.7", "--", "-0", "true", "1e3", "0.95", "0.9999999"]  # fmt: skip
TEXTS = ["y", "p", "sex", "patient", "id", "a", "", " ", "Y", "nope", "y,p", "../y", "\u202e", "y\x1b[31m", "M", "F", "men", "M,F", "0",
         "'; --",
         "X" * 5000, "--label", "{}", "None", "eod", "spd", "tpr-fpr", "tpr--fpr", "9*tpr", "accuracy", "ppv_gap"]  # fmt: skip
LEVELS = ("F", "M")
SETTINGS = {  # reached by --set
    "--level": "audit.level", "--seed": "audit.seed", "--min-patients": "audit.min_patients", "--id": "data.id",
    "--positive": "data.positive",
    "--performance": "goal.performance", "--min-performance": "goal.min_performance", "--test-fraction": "repair.test_fraction",
    "--feature": "data.features", "--selection": "goal.selection", "--min-rate": "goal.keep", "--repair-seed": "repair.seed",
}  # fmt: skip
COLUMNS = ("id", "patient", "sex", "y", "p", "a", "b")


def _real(text: str) -> float | None:
    try:
        return float(text) if "_" not in text else None
    except ValueError:
        return None


def _int(text: str) -> int:
    try:
        return int(text, 0)
    except ValueError:
        return int(float(text))


def _option(name: str, value: str) -> list[str]:
    """The words of a command that give a flag or a setting this value."""
    if name == "--min-rate":
        return ["--set", f"goal.keep.{value}"]
    return ["--set", f"{SETTINGS[name]}={value}"] if name in SETTINGS else [name, value]


def _between(low: float, high: float, open_ends: bool = False) -> Callable[[str], bool]:
    def valid(text: str) -> bool:
        value = _real(text)
        if value is None or value != value:
            return False
        return low < value < high if open_ends else low <= value <= high

    return valid


def _whole(least: int) -> Callable[[str], bool]:
    def valid(text: str) -> bool:
        value = 16.0 if text == "0x10" else _real(text.replace("_", ""))  # TOML reads 0x10 and 1_000 as whole numbers
        return value is not None and math.isfinite(value) and value == int(value) and value >= least  # 1.0 is one

    return valid


VALID: dict[str, tuple[list[str], Callable[[str], bool]]] = {
    "--threshold": (NUMBERS, _between(0, 1)),
    "--level": (NUMBERS, _between(0.01, 0.9999)),
    "--seed": (NUMBERS, _whole(0)),
    "--min-patients": (NUMBERS, _whole(1)),
    "--label": (TEXTS, lambda text: text == "y"),
    "--score": (TEXTS, lambda text: text == "p"),
    "--reference": (TEXTS, lambda text: text in LEVELS),
    "--patient": (TEXTS, lambda text: text in ("patient", "id", "a", "y", "p")),  # other columns may hold patients
    "--id": (TEXTS, lambda text: text in ("id", "a")),  # no two rows have the same a
    "--positive": (TEXTS + NUMBERS, lambda text: _real(text) in (0, 1) or text in ("true",)),
    "--measure": (TEXTS, lambda text: text in ("eod", "spd", "tpr-fpr", "9*tpr", "accuracy", "ppv_gap")),
}


def case(base: Path, _: Path, rng: np.random.Generator) -> Case:
    kind = rng.random()
    if kind < 0.72:
        return _audit(base, rng)
    if kind < 0.9:
        return _debias(base, rng)
    return _other(base, rng)


def _audit(base: Path, rng: np.random.Generator) -> Case:
    given = {"--label": "y", "--score": "p", "--group": "sex", "--reference": "M", "--patient": "patient"}
    given |= {"--min-patients": "1", "--threshold": "0.5", "--level": "0.9", "--seed": "1"}
    wrong = []
    for name in rng.choice(list(VALID), int(rng.integers(1, 3)), replace=False):
        values, valid = VALID[str(name)]
        value = values[int(rng.integers(len(values)))]
        given[str(name)] = value
        if not valid(value):
            wrong.append(f"{name}={value[:20]!r}")
    parts = [part for name, value in given.items() for part in _option(name, value)]
    extra = rng.random()
    if extra < 0.06:
        parts.append(str(rng.choice(["--nope", "extra.csv", "-x", "--label", "--images"])))
        wrong.append(parts[-1])
    elif extra < 0.12:
        gone = str(rng.choice(["--label", "--score", "--group"]))
        at = parts.index(gone)
        del parts[at : at + 2]
        wrong.append(f"no {gone}")
    command = ["audit", str(base / "scores.csv"), *parts, "--json"]
    what = ", ".join(wrong) or ", ".join(f"{name}={value}" for name, value in list(given.items())[-4:])
    if wrong:
        return Case(what, command, refused)
    return Case(what, command, lambda outcome: _used(outcome, given, base))


def _used(outcome: Outcome, given: dict[str, str], base: Path) -> str:
    found = json.loads(outcome.out)
    settings = found["settings"]
    asked = {
        "level": float(given["--level"]),
        "seed": _int(given["--seed"]),
        "min_patients": _int(given["--min-patients"]),
    }
    if settings | asked != settings:
        return f"asked for {asked}, used {settings}"
    if found["threshold"] != float(given["--threshold"]):
        return f"asked for the threshold {given['--threshold']}, used {found['threshold']}"
    if "--reference" in given and found["references"]["sex"] != given["--reference"]:
        return f"asked for the reference {given['--reference']}, used {found['references']['sex']}"
    rows = rows_of((base / "scores.csv").read_bytes())
    if given.get("--positive") and _real(given["--positive"]) == 0:
        rows = [{**row, "y": str(1 - int(row["y"]))} for row in rows]
    rows = [{**row, "patient": row[given["--patient"]]} for row in rows]
    return compared(outcome.out, rows, float(given["--threshold"])) if "--measure" not in given else ""


def _debias(base: Path, rng: np.random.Generator) -> Case:
    """Options of a repair that stop it before it begins, or a dry run."""
    choices: dict[str, tuple[list[str], Callable[[str], bool]]] = {
        "--method": (["bias-gda", "nope", "", "bias-gda,,pruning", "BIAS-GDA", "standard", "auto", "a" * 999],
                     lambda t: t in ("bias-gda", "standard", "auto")),
        "--measure": (TEXTS, lambda t: t in ("eod", "spd", "tpr-fpr", "9*tpr", "ppv_gap")),
        "--performance": (TEXTS, lambda t: t == "accuracy"),
        "--min-performance": (NUMBERS, _between(0, 1)),
        "--max-gap": (NUMBERS, lambda t: (_real(t) or 0.0) >= 0 and _real(t) is not None and _real(t) == _real(t)),
        "--test-fraction": (NUMBERS, _between(0, 1, open_ends=True)),
        "--repair-seed": (NUMBERS, _whole(0)),
        "--set": (["auto.allow_group=false", "auto.allow_group=maybe", "auto.allow_group", "x.y=1", "=", "bias-gda.learning_rate=nan",
                   "auto.nope=1"],
                  lambda t: t == "auto.allow_group=false"),
        "--threshold": (NUMBERS, _between(0, 1)),
        "--feature": (TEXTS, lambda t: t in ("a", "p", "patient")),  # columns of numbers; two of them are what the network takes
        "--selection": (["paper", "honest", "one-se", "", "best"], lambda t: t in ("paper", "honest")),
        "--min-rate": (["tpr=0.5", "tpr", "tpr=2", "=0.5", "tpr=nan", "fpr=0.1"], lambda t: t in ("tpr=0.5", "fpr=0.1")),
        "--model": ([f"{base / 'net.py'}:linear", f"{base / 'net.py'}:nope", f"{base / 'net.py'}", "nope.py:linear", ":", "os:system"],
                    lambda t: t.endswith(":linear") and t.startswith(str(base))),
        "--weights": ([str(base / "net.pt"), str(base / "scores.csv"), "nope.pt", str(base), ""], lambda t: t.endswith("net.pt")),
    }  # fmt: skip
    name = str(rng.choice(list(choices)))
    values, valid = choices[name]
    value = values[int(rng.integers(len(values)))]
    command = [
        "debias",
        str(base / "scores.csv"),
        *ROLES,
        "--model",
        f"{base / 'net.py'}:linear",
        "--weights",
        str(base / "net.safetensors"),
    ]
    command += [
        *(FEATURES if name != "--feature" else ["--set", "data.features=a"]),
        *_option(name, value),
        "--out",
        "out",
        "--dry-run",
        "--json",
    ]
    what = f"debias {name}={value[:30]!r}"
    return Case(what, command, anything if valid(value) else refused)


def _other(base: Path, rng: np.random.Generator) -> Case:
    words = [
        "audit",
        "debias",
        "apply",
        "demo",
        "data",
        "study",
        "list",
        "run",
        "show",
        "nope",
        "--help",
        "-h",
        "--version",
        "",
        "-",
        "--",
        "info",
        str(base),
    ]
    words += [str(base / "scores.csv"), "--json", "--out", "x", "--label", "y", "--rows", "-5", "verify", "check"]
    chosen = [str(word) for word in rng.choice(words, int(rng.integers(1, 5)))]
    if "demo" in chosen and "--help" not in chosen and "-h" not in chosen:
        chosen = [word if word != "demo" else "nope" for word in chosen]  # a demo that runs takes a minute
    if chosen[:2] == ["study", "run"]:
        chosen[1] = "show"
    return Case(" ".join(chosen)[:60], chosen, anything)
