"""Compares the numbers of two source trees: the same seeds must give the same audits, traces, weights, rules and decisions.

    python results/redesign/identity.py run OLD/src before.json
    python results/redesign/identity.py run src after.json
    python results/redesign/identity.py compare before.json after.json results/redesign/identity.csv

Needs EQUIPOISE_DATA (COMPAS, chexnet-nih). Sentences are not compared; renamed keys are mapped (RENAMED). A case that raises is a
difference. About three minutes on two quiet cores.
"""

import argparse
import csv
import hashlib
import io
import json
import math
import os
import re
import shutil
import sys
import tempfile
import time
import traceback
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

INPUTS = Path(tempfile.gettempdir()) / "equipoise-identity-inputs"
PYTHON = sys.executable

# Keys of JSON documents, trace columns and settings: old -> new. Both sides are brought to the new names before they are compared.
RENAMED = {
    "floor": "min_performance",
    "bound": "max_gap",
    "lose": "max_loss",
    "rate": "learning_rate",
    "at_most": "max_steps",
    "evaluations": "evals_per_epoch",
    "norm": "normalise",
    "minimum": "min_patients",
    "stop": "stop_below",
    "spread": "noise_sd",
    "part": "set",
    "parts": "sets",
    "repair_part": "repair_set",
    "test_part": "test_set",
}
# Fields whose value says when, where or in what words; never compared.
IGNORED = {
    "when",
    "versions",
    "command",
    "hashes",
    "why",
    "words",
    "files",
    "digest",
    "remarks",
    "notes",
    "origin",
    "seconds",
    "schema_version",
    "path",
    "sha256",
    "load",
    "named",
    "out",
    "code",
    "folder",
}
OPTIONS = {  # new -> old
    "--min-performance": "--floor",
    "--max-gap": "--bound",
    "--max-loss": "--lose",
    "--no-group-worse": "--level-up",
    "--min-rate": "--minimum",
    "--min-patients": "--minimum",
    "--normalise": "--norm",
    "--output-type": "--model-output",
    "--output-name": "--model-output-name",
}
GOAL = {"max_loss": "lose", "max_gap": "bound", "min_performance": "floor", "keep": "level_up"}
SETTINGS = {"learning_rate": "rate", "max_steps": "at_most", "evals_per_epoch": "evaluations"}

METHODS = (
    "standard",
    "bias-gda",
    "constrained",
    "bias-score",
    "pruning",
    "random",
    "adversarial-finetune",
    "adversarial-training",
    "reject-option",
    "equalised-odds",
    "group-thresholds",
)
QUICK_SETTINGS = {
    "bias-gda": {"epochs": 3, "learning_rate": 1e-3, "batch": 64},
    "constrained": {"epochs": 3},
    "pruning": {"steps": 6},
    "random": {"trials": 6},
    "adversarial-finetune": {"epochs": 2, "critic_steps": 3, "actor_steps": 3},
    "adversarial-training": {"epochs": 2},
}
CODE = """
from torch import nn

def table():
    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))

def cnn():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Conv2d(4, 3, 3, stride=2), nn.ReLU(),
        nn.Flatten(), nn.Linear(75, 6), nn.ReLU(), nn.Linear(6, 1),
    )

def two():
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 2))
"""


# ---------------------------------------------------------------- inputs: made once, without equipoise


def make_inputs() -> None:
    """Tables, images, networks in INPUTS; the same for every tree that is compared."""
    import numpy as np
    import pandas as pd
    import torch
    from PIL import Image
    from safetensors.torch import save_file
    from torch import nn

    if INPUTS.exists():
        return
    torch.set_num_threads(1)
    place = Path(tempfile.mkdtemp(prefix="identity-inputs-"))
    (place / "net.py").write_text(CODE)
    factories: dict = {}
    exec(CODE, factories)

    def fit(name: str, x, y, steps: int):
        torch.manual_seed(0)
        model = factories[name]()
        optimiser = torch.optim.Adam(model.parameters(), 0.02)
        y = torch.as_tensor(np.asarray(y)).float()
        for _ in range(steps):
            optimiser.zero_grad()
            out = model(x)
            nn.functional.binary_cross_entropy_with_logits(out if y.ndim == 2 else out[:, 0], y).backward()
            optimiser.step()
        save_file(model.state_dict(), place / f"{name}.safetensors")
        return model.eval()

    def patients(rows: int, seed: int):
        rng = np.random.default_rng(seed)
        patient = np.arange(rows) // 2
        sex = np.where(rng.random((rows + 1) // 2) < 0.5, "M", "F")[patient]
        y = (rng.random(rows) < 0.35 + 0.3 * (sex == "M")).astype(int)
        x = rng.normal(size=(rows, 3)).astype(np.float32)
        x[:, 0] += 1.2 * y
        x[:, 1] += 1.5 * (sex == "M")
        pixels = rng.integers(0, 120, (rows, 12, 12))
        pixels[:, 3:7, 3:7] += 12 * y[:, None, None]
        pixels[:, 9:, 9:] += 60 * (sex == "M")[:, None, None]
        frame = pd.DataFrame({"pid": patient + 1000 * seed, "sex": sex, "age": rng.integers(20, 95, rows), "sick": y})
        return frame, x, pixels.astype(np.uint8)

    (place / "xrays").mkdir()
    for name, rows, seed in (("local", 400, 0), ("train", 300, 5), ("new", 120, 1)):
        frame, x, pixels = patients(rows, seed)
        for k, image in enumerate(pixels):
            Image.fromarray(image).save(place / "xrays" / f"{name}-{k}.png")
        frame = frame.assign(image=[f"{name}-{k}.png" for k in range(rows)], a=x[:, 0], b=x[:, 1], c=x[:, 2])
        frame.to_csv(place / f"{name}.csv", index=False)
        if name == "train":
            fit("cnn", torch.from_numpy((pixels / 255 - 0.5) / 0.25).float()[:, None], frame["sick"], 10)
            fit("table", torch.from_numpy(x), frame["sick"], 60)
    frame, x, _ = patients(1200, 7)
    with torch.no_grad():
        model = factories["table"]()
        from safetensors.torch import load_file

        model.load_state_dict(load_file(place / "table.safetensors"))
        score = torch.sigmoid(model(torch.from_numpy(x))[:, 0]).numpy().round(6)
    site = np.random.default_rng(8).choice(["A", "B", "C"], 1200)
    frame.assign(p=score, site=site).to_csv(place / "scores.csv", index=False)
    frame.assign(p=score, site=site).iloc[:400].to_csv(place / "valid.csv", index=False)

    for name, rows, seed in (("labels", 1000, 3), ("labels-train", 800, 4)):
        rng = np.random.default_rng(seed)
        a = rng.integers(0, 2, rows)
        columns = {f"noise{k}": rng.normal(size=rows) for k in range(3)}
        tell = rng.normal(size=rows) + 2.5 * a
        for at, label in enumerate(("Effusion", "Mass")):
            y = (rng.random(rows) < 0.65 - (0.4 if at == 0 else 0.3) * a).astype(int)
            columns[f"sign{at}"] = rng.normal(size=rows) + 1.6 * y
            columns[label] = y
        frame = pd.DataFrame({**columns, "tell": tell, "sex": np.array(["M", "F"])[a], "pid": np.arange(rows) // 2})
        frame.to_csv(place / f"{name}.csv", index=False)
        if name == "labels-train":
            fit("two", torch.from_numpy(frame[FEATURES].to_numpy(np.float32)), frame[["Effusion", "Mass"]], 60)
    place.rename(INPUTS)


FEATURES = ["noise0", "noise1", "noise2", "sign0", "sign1", "tell"]
STUDY = """
name = "tiny"
methods = [
    "standard",
    {method = "bias-gda", settings = {epochs = 2}},
    {method = "pruning", settings = {steps = 4}},
    {method = "random", settings = {trials = 5}},
    {method = "adversarial-finetune", settings = {epochs = 1, critic_steps = 2, actor_steps = 2}},
    {method = "adversarial-training", settings = {epochs = 1}},
    "reject-option",
    "equalised-odds",
    "group-thresholds",
]
measures = ["spd", "eod"]
splits = 2
stack = 2
[[data]]
source = "loh"
options = {n = 400, alpha = 2.0}
[training]
epochs = 2
"""


# ---------------------------------------------------------------- talking to either code


def command(*arguments: str) -> str:
    """What an `equipoise` command prints; an error with its output where it fails."""
    from equipoise.cli import main

    arguments = tuple(old_style(list(arguments)))
    out, err = io.StringIO(), io.StringIO()
    argv, code = sys.argv, 0
    sys.argv = ["equipoise", *arguments]
    try:
        with redirect_stdout(out), redirect_stderr(err):
            main()
    except SystemExit as error:
        code = error.code or 0
    finally:
        sys.argv = argv
    if code:
        raise RuntimeError(f"exit code {code}: equipoise {' '.join(arguments)}\n{out.getvalue()[-1500:]}{err.getvalue()[-2500:]}")
    return out.getvalue()


_HELP: dict[str, str] = {}


def old_style(arguments: list[str]) -> list[str]:
    """The arguments (written in the new style) as the code at hand takes them."""
    import subprocess

    name = arguments[0]
    if name not in _HELP:
        asked = [PYTHON, "-c", "from equipoise.cli import main; main()", name, "--help"]
        _HELP[name] = subprocess.run(asked, capture_output=True, text=True, env={**os.environ, "COLUMNS": "200"}, check=False).stdout
    known = set(re.findall(r"--[a-z][a-z-]+", _HELP[name]))
    old = name == "debias" and "--max-gap" not in known
    found = [OPTIONS.get(a, a) if a.startswith("--") and a not in known else a for a in arguments]
    if old:  # lists with commas
        methods = [found[k + 1] for k, a in enumerate(found) if a == "--method"]
        if methods:
            first = found.index("--method")
            rest = [a for k, a in enumerate(found) if a != "--method" and (k == 0 or found[k - 1] != "--method")]
            found = [*rest[:first], "--method", ",".join(methods), *rest[first:]]
        found = [SET.sub(lambda m: f"{m[1]}.{SETTINGS.get(m[2], m[2])}=", a) for a in found]
    return found


SET = re.compile(r"^([a-z-]+)\.(\w+)=")


def repaired(model, cohort, *, method: str, settings: dict, **goal):
    """eq.debias with goal and settings under the names that the code at hand has."""
    import inspect

    import equipoise as eq

    known = inspect.signature(eq.debias).parameters
    goal = {key if key in known or key not in GOAL else GOAL[key]: value for key, value in goal.items()}
    own = settings if "max_gap" in known else {SETTINGS.get(key, key): value for key, value in settings.items()}
    return eq.debias(model, cohort, method=method, **goal, **own)


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def weights(model) -> str:
    """One hash of all tensors of a network: names, shapes and bytes."""
    whole = hashlib.sha256()
    for key, value in sorted(model.state_dict().items()):
        whole.update(key.encode() + str(tuple(value.shape)).encode() + value.detach().cpu().contiguous().numpy().tobytes())
    return whole.hexdigest()[:16]


def stored_weights(path: Path) -> str:
    from safetensors.torch import load_file

    class Held:
        def state_dict(self):
            return load_file(path)

    return weights(Held())


def numbers(frame) -> dict:
    """The numeric columns of a table, all values, exactly."""
    return {
        str(column): [None if v != v else v for v in frame[column].astype(float).tolist()]
        for column in frame.columns
        if frame[column].dtype.kind in "fiub" and not str(column).endswith(("seconds", "_s"))
    }


def plain_rule(rule) -> dict:
    """The numbers of a rule, whatever its class is called."""
    from dataclasses import asdict, is_dataclass

    return json.loads(
        json.dumps(asdict(rule) if is_dataclass(rule) else vars(rule), default=lambda v: v.tolist() if hasattr(v, "tolist") else str(v))
    )


def candidate(result, test) -> dict:
    """All that is to be the same of a repair."""
    import equipoise as eq

    found = {
        "trace": numbers(result.trace),
        "chosen": int(result.chosen),
        "met": bool(result.met),
        "weights": weights(result.model),
        "rule": plain_rule(result.rule),
    }
    if result.labels:
        found = {
            "weights": weights(result.model),
            "labels": {
                name: {"trace": numbers(own.trace), "chosen": int(own.chosen), "met": bool(own.met), "rule": plain_rule(own.rule)}
                for name, own in result.labels.items()
            },
        }
    else:
        found["audit"] = eq.audit(result, test).to_dict()
    return found


def page_numbers(page: Path) -> list[str]:
    """The distinct numbers with a decimal point that a reader sees on the page."""
    text = re.sub(r"(?s)<(script|style|svg)\b.*?</\1>", " ", page.read_text(encoding="utf-8"))
    text = re.sub(r"(?s)<[^>]*>", " ", text).replace("\u2212", "-")
    return sorted(set(re.findall(r"\d+\.\d+", text)))


# ---------------------------------------------------------------- the cases


def scratch() -> Path:
    return Path(tempfile.mkdtemp(prefix="identity-run-"))


_SHARED: dict = {}


def compas():
    import equipoise as eq

    if "compas" not in _SHARED:
        parts = eq.split(eq.load("compas"), seed=0)
        _SHARED["compas"] = eq.train(parts.train, parts.valid, seed=0), parts
    return _SHARED["compas"]


AUDIT = ("audit", str(INPUTS / "scores.csv"), "--label", "sick", "--score", "p", "--patient", "pid", "--json", "--seed", "3")


def cases() -> dict:
    """Name -> function."""
    found: dict = {}

    def case(name: str):
        def keep(function):
            found[name] = function
            return function

        return keep

    def audited(*more: str) -> dict:
        return json.loads(command(*AUDIT, *more))

    case("audit/csv")(lambda: audited("--group", "sex", "--reference", "M"))
    case("audit/two-attributes")(lambda: audited("--group", "sex", "--group", "age", "--bins", "age=40,60,80", "--conflicts", "majority"))
    case("audit/three-groups")(lambda: audited("--group", "site", "--measure", "spd", "--measure", "tpr-fpr", "--measure", "ppv_gap"))
    case("audit/threshold-from-valid")(lambda: audited("--group", "sex", "--valid", str(INPUTS / "valid.csv"), "--min-patients", "8"))
    nih = ("audit", str(DATA / "chexnet-nih" / "scores.csv.gz"), "--patient", "patient", "--group", "sex", "--reference", "M", "--json")
    case("audit/chexnet-nih")(lambda: json.loads(command(*nih, "--label", "Effusion", "--score", "score_Effusion", "--threshold", "0.1")))
    case("audit/chexnet-nih-labels")(
        lambda: json.loads(command(*nih, "--label", "Effusion", "--score", "score_Effusion", "--label", "Mass", "--score", "score_Mass"))
    )

    @case("audit/compas-network")
    def _():
        import equipoise as eq

        model, parts = compas()
        return {
            "weights": weights(model),
            "threshold": float(model.threshold),
            "audit": eq.audit(model, parts.test, seed=1).to_dict(),
        }

    image_inputs = (
        "--images",
        str(INPUTS / "xrays"),
        "--size",
        "12",
        "--label",
        "sick",
        "--group",
        "sex",
        "--reference",
        "M",
        "--patient",
        "pid",
        "--model",
        f"{INPUTS / 'net.py'}:cnn",
        "--weights",
        str(INPUTS / "cnn.safetensors"),
    )
    case("audit/images-probe")(
        lambda: json.loads(command("audit", str(INPUTS / "local.csv"), *image_inputs, "--json", "--draws", "20", "--probe"))
    )
    table_inputs = (
        "--label",
        "sick",
        "--group",
        "sex",
        "--reference",
        "M",
        "--patient",
        "pid",
        "--feature",
        "a",
        "--feature",
        "b",
        "--feature",
        "c",
        "--model",
        f"{INPUTS / 'net.py'}:table",
        "--weights",
        str(INPUTS / "table.safetensors"),
    )

    for method in METHODS:
        for measure in ("spd", "eod"):

            def on_compas(method=method, measure=measure):
                model, parts = compas()
                train = {"train": parts.train} if method in ("adversarial-training", "bias-score") else {}
                settings = QUICK_SETTINGS.get(method, {})
                return candidate(
                    repaired(model, parts.valid, method=method, measure=measure, seed=3, settings=settings, **train), parts.test
                )

            case(f"compas/{method}/{measure}")(on_compas)
    for name, goal in {
        "max-gap": {"max_gap": 0.05},
        "keep": {"max_gap": 0.08, "keep": {"tpr": "before"}},
        "max-loss": {"max_loss": 0.05},
        "min-performance": {"min_performance": 0.6},
        "honest": {"selection": "honest"},
        "one-se": {"selection": "one-se"},
    }.items():

        def on_goal(goal=goal):
            model, parts = compas()
            if "keep" in goal:
                import inspect

                import equipoise as eq

                goal = dict(goal)
                if "keep" not in inspect.signature(eq.debias).parameters:  # the name that the code at hand has
                    goal[next(n for n in ("no_group_worse", "level_up") if n in inspect.signature(eq.debias).parameters)] = goal.pop("keep")
            found = repaired(model, parts.valid, method="bias-gda", measure="eod", seed=3, settings=QUICK_SETTINGS["bias-gda"], **goal)
            return candidate(found, parts.test)

        case(f"compas/goal-{name}")(on_goal)

    @case("compas/auto")
    def _():
        model, parts = compas()
        return candidate(repaired(model, parts.valid, method="auto", measure="eod", seed=3, settings={}, max_gap=0.05), parts.test)

    def folder_of(arguments: tuple, new: str, apply: tuple) -> dict:
        import pandas as pd

        place = scratch()
        try:
            command("debias", *arguments, "--out", str(place / "out"), "--json")
            whole: dict = {"files": sorted(str(p.relative_to(place / "out")) for p in (place / "out").rglob("*") if p.is_file())}
            for run in sorted((place / "out").rglob("run.json")):
                own = run.parent
                key = (
                    str(own.relative_to(place / "out")).replace(".", "root", 1)
                    if own == place / "out"
                    else str(own.relative_to(place / "out"))
                )
                found = {
                    "audit": json.loads((own / "audit.json").read_text()),
                    "rule": json.loads((own / "rule.json").read_text()),
                    "trace": numbers(pd.read_csv(own / "trace.csv")),
                    "weights": stored_weights(next(own.glob("*.safetensors"))),
                    "page": page_numbers(own / "report.html"),
                }
                command("apply", str(own), str(INPUTS / new), *apply, "--out", str(place / "decisions.csv"))
                found["decisions"] = numbers(pd.read_csv(place / "decisions.csv"))
                (place / "decisions.csv").unlink()
                whole[key] = found
            return whole
        finally:
            shutil.rmtree(place)

    def settings_of(*methods: str) -> list[str]:
        return [part for m in methods for key, value in QUICK_SETTINGS.get(m, {}).items() for part in ("--set", f"{m}.{key}={value}")]

    for method in METHODS:

        def on_images(method=method):
            train = ("--train", str(INPUTS / "train.csv")) if method in ("adversarial-training", "bias-score") else ()
            arguments = (
                str(INPUTS / "local.csv"),
                *image_inputs,
                "--method",
                method,
                *settings_of(method),
                *train,
                "--measure",
                "eod",
                "--draws",
                "20",
                "--no-onnx",
            )
            return folder_of(arguments, "new.csv", ("--images", str(INPUTS / "xrays"), "--trust"))

        case(f"images/{method}")(on_images)

    @case("images/several-methods-spd")
    def _():
        methods = ("bias-gda", "pruning", "group-thresholds")
        listed = [part for m in methods for part in ("--method", m)]
        arguments = (
            str(INPUTS / "local.csv"),
            *image_inputs,
            *listed,
            *settings_of(*methods),
            "--measure",
            "spd",
            "--max-gap",
            "0.1",
            "--draws",
            "30",
            "--probe",
            "--onnx",
        )
        return folder_of(arguments, "new.csv", ("--images", str(INPUTS / "xrays"), "--trust"))

    @case("table/level-up-and-least-rate")
    def _():
        arguments = (
            str(INPUTS / "local.csv"),
            *table_inputs,
            "--method",
            "constrained",
            "--set",
            "constrained.epochs=3",
            "--no-group-worse",
            "--min-rate",
            "selection=0.1",
            "--min-performance",
            "0.55",
            "--draws",
            "20",
            "--no-onnx",
        )
        return folder_of(arguments, "new.csv", ("--trust",))

    for method in (
        "bias-gda",
        "constrained",
        "pruning",
        "reject-option",
        "group-thresholds",
        "equalised-odds",
        "random",
        "adversarial-finetune",
        "bias-score",
    ):

        def on_labels(method=method):
            import pandas as pd
            from safetensors.torch import load_file

            import equipoise as eq

            place: dict = {}
            exec(CODE, place)
            model = place["two"]()
            model.load_state_dict(load_file(INPUTS / "two.safetensors"))
            cohort = eq.Cohort.from_frame(
                pd.read_csv(INPUTS / "labels.csv"),
                label=["Effusion", "Mass"],
                group="sex",
                reference="M",
                patient="pid",
                features=FEATURES,
                scale=False,
            )
            return candidate(
                repaired(model.eval(), cohort, method=method, measure="eod", seed=3, settings=QUICK_SETTINGS.get(method, {})), None
            )

        case(f"labels/{method}")(on_labels)

    @case("labels/command-line")
    def _():
        labels = ("--label", "Effusion", "--label", "Mass", "--group", "sex", "--reference", "M", "--patient", "pid")
        features = [part for f in FEATURES for part in ("--feature", f)]
        model = ("--model", f"{INPUTS / 'net.py'}:two", "--weights", str(INPUTS / "two.safetensors"))
        arguments = (
            str(INPUTS / "labels.csv"),
            *labels,
            *features,
            *model,
            "--method",
            "pruning",
            *settings_of("pruning"),
            "--draws",
            "20",
            "--no-onnx",
        )
        return folder_of(arguments, "labels.csv", ("--trust",))

    @case("study/tiny")
    def _():
        import pandas as pd

        place = scratch()
        try:
            (place / "tiny.toml").write_text(STUDY)
            command("study", "run", str(place / "tiny.toml"), "--out", str(place / "runs"))
            tables = {}
            for path in sorted(place.rglob("*.parquet")) + sorted(place.rglob("*.csv")):
                frame = pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)
                if {"method", "measure"} <= set(frame.columns) and "seconds" in " ".join(map(str, frame.columns)):
                    tables[path.stem] = frame
            frame = pd.concat(tables.values()).sort_values(["method", "measure", "seed"], kind="stable")
            return {"rows": len(frame), **{f"{m}/{g}": numbers(own) for (m, g), own in frame.groupby(["method", "measure"])}}
        finally:
            shutil.rmtree(place)

    return found


DATA = Path(os.environ.get("EQUIPOISE_DATA", "data"))


# ---------------------------------------------------------------- running and comparing


def run(only: list[str]) -> dict:
    import logging

    logging.disable(logging.CRITICAL)
    import torch

    torch.set_num_threads(1)
    found = {}
    for name, function in cases().items():
        if only and not any(part in name for part in only):
            continue
        start = time.monotonic()
        try:
            value = {"value": json.loads(json.dumps(function(), default=str))}
        except BaseException as error:  # one broken case must not hide the others
            if isinstance(error, KeyboardInterrupt):
                raise
            value = {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()[-3000:]}
        found[name] = {**value, "seconds": round(time.monotonic() - start, 2)}
        print(
            f"  {name}: {found[name]['seconds']} s{'  ' + found[name]['error'][:300] if 'error' in found[name] else ''}",
            file=sys.stderr,
            flush=True,
        )
    return found


def flat(value, path: tuple = ()) -> dict:
    """Path -> value of every leaf, keys under their new names."""
    if isinstance(value, dict):
        found: dict = {}
        for key, own in value.items():
            if key in IGNORED:
                continue
            new = "restore" if key == "keep" and "settings" in path else RENAMED.get(key, key)
            found |= flat(own, (*path, new))
        return found
    if isinstance(value, list) and path and path[-1] == "page":
        return {(*path, v): 1 for v in value}
    if isinstance(value, list):
        found = {(*path, "length"): len(value)}
        for k, own in enumerate(value):
            found |= flat(own, (*path, str(k)))
        return found
    return {path: value}


def is_prose(value) -> bool:
    return isinstance(value, str) and (" " in value or value == "")


def compared(name: str, a: dict, b: dict) -> dict:
    """One row of the table: how many fields a case has and how many differ."""
    if "error" in a or "error" in b:
        kinds = [side.get("error", "no error").split(":")[0] for side in (a, b)]
        note = f"{kinds[0]} before, {kinds[1]} after"
        return {
            "case": name,
            "fields": 1,
            "changed": int(kinds[0] != kinds[1]),
            "gone": 0,
            "new": 0,
            "largest_difference": 0.0,
            "note": note,
        }
    x, y = ({k: v for k, v in flat(side["value"]).items() if "page" not in k} for side in (a, b))
    changed = [k for k in x.keys() & y.keys() if x[k] != y[k] and not (is_prose(x[k]) and is_prose(y[k]))]
    numbers = [
        abs(x[k] - y[k])
        for k in changed
        if all(isinstance(v, (int, float)) and not isinstance(v, bool) and math.isfinite(v) for v in (x[k], y[k]))
    ]
    notes = [f"{'/'.join(k)}: {x[k]!r} -> {y[k]!r}" for k in sorted(changed)[:2]] + [
        f"gone: {'/'.join(k)}" for k in sorted(x.keys() - y.keys())[:2]
    ]
    return {
        "case": name,
        "fields": len(x),
        "changed": len(changed),
        "gone": len(x.keys() - y.keys()),
        "new": len(y.keys() - x.keys()),
        "largest_difference": max(numbers, default=0.0),
        "note": "; ".join(notes),
    }


def compare(before: dict, after: dict, out: Path) -> int:
    """Writes one row per case and gives how many cases differ."""
    rows = [compared(name, before[name], after[name]) for name in before if name in after]
    with out.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, rows[0], lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
    different = [row for row in rows if row["changed"] or row["gone"]]
    print(f"{len(rows) - len(different)} of {len(rows)} cases identical ({sum(row['fields'] for row in rows):,} fields)")
    for row in different:
        print(f"  {row['case']}: {row['note']}")
    return len(different)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "compare"))
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--only", action="append", default=[], help="cases whose name contains this")
    given = parser.parse_args()
    if given.what == "compare":
        before, after = (json.loads(path.read_text()) for path in given.paths[:2])
        sys.exit(bool(compare(before, after, given.paths[2])))
    src = given.paths[0].resolve()
    if os.environ.get("IDENTITY_SRC") != str(src):  # in a process that imports this tree and nothing else
        make_inputs()
        own = {
            "IDENTITY_SRC": str(src),
            "PYTHONPATH": str(src),
            "OMP_NUM_THREADS": "1",
            "COLUMNS": "200",
            "EQUIPOISE_CACHE": tempfile.mkdtemp(),
        }
        os.execve(PYTHON, [PYTHON, str(Path(__file__).resolve()), *sys.argv[1:]], {**os.environ, **own})
    found = run(given.only)
    shutil.rmtree(os.environ["EQUIPOISE_CACHE"], ignore_errors=True)
    given.paths[1].write_text(json.dumps(found))


if __name__ == "__main__":
    main()
