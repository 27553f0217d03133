"""Every capability of a source tree as JSON, and the table that compares two of them.

    PYTHONPATH=OLD/src:tests python results/redesign/inventory.py make results/redesign/before.json
    PYTHONPATH=src:tests python results/redesign/inventory.py make results/redesign/after.json
    python results/redesign/inventory.py table           # rewrites the generated blocks of results/redesign/README.md
    python results/redesign/inventory.py table --check   # fails where a block is older than its files or an item has no successor

`make` reads commands and options from the command line itself, methods, settings and measures from their tables, data sets and presets from
`data list` and `study list`, and output files by running every command that writes some. Nothing is typed in by hand but `renamed.toml`,
which says what an item of the old code is called today, or why it is gone.
"""

import argparse
import contextlib
import csv
import dataclasses
import importlib
import inspect
import io
import json
import pkgutil
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
KINDS = (
    "commands",
    "options",
    "methods",
    "settings",
    "measures",
    "rates",
    "data sets",
    "presets",
    "Python names",
    "goal parameters",
    "output files",
)


def modules(package: str) -> Iterator[Any]:
    """Every module of a package."""
    whole = importlib.import_module(package)
    yield whole
    for found in pkgutil.walk_packages(whole.__path__, f"{package}."):
        if found.name.endswith("__main__"):
            continue
        with contextlib.suppress(ImportError):  # of an extra that is not installed
            yield importlib.import_module(found.name)


def command_tree() -> dict[str, dict[str, None]]:
    """The options and arguments of every command, in their order."""
    import typer

    apps = [value for module in modules("equipoise.cli") for value in vars(module).values() if isinstance(value, typer.Typer)]
    root = max(apps, key=lambda app: len(app.registered_commands) + 10 * len(app.registered_groups))
    found: dict[str, dict[str, None]] = {}

    def walk(command: Any, name: str) -> None:
        if hasattr(command, "commands"):
            for child, own in command.commands.items():
                walk(own, f"{name} {child}".strip())
            if not name:
                found["(root)"] = dict.fromkeys(option for p in command.params for option in p.opts)
            return
        found[name] = dict.fromkeys(
            option if p.param_type_name == "option" else f"<{p.name}>" for p in command.params for option in (*p.opts, *p.secondary_opts)
        )

    walk(typer.main.get_command(root), "")
    return found


def table_named(package: str, *names: str) -> Any:
    """The first table of one of these names in a package."""
    for name in names:
        for module in modules(package):
            if hasattr(module, name):
                return getattr(module, name)
    raise SystemExit(f"{package} has none of {', '.join(names)}")


def settings_of(method: Any) -> list[str]:
    """The names of a method's settings, wherever its registration keeps them."""
    kind = getattr(method, "settings", None) or getattr(method, "Settings", None)
    if kind is None:
        kind = importlib.import_module(method.module).Settings
    return [f.name for f in dataclasses.fields(kind)]


def run(*arguments: str) -> str:
    """What a command prints. An error with what it complains of where it fails."""
    from equipoise.cli import run as run_command

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run_command(list(arguments))
    if code:
        raise SystemExit(f"equipoise {' '.join(arguments)}: exit code {code}\n{out.getvalue()}{err.getvalue()}")
    return out.getvalue()


def output_files(commands: dict[str, dict[str, None]]) -> dict[str, list[str]]:
    """The files that each command writes, from a run of it on a tiny hospital."""
    from support import hospital

    found: dict[str, list[str]] = {}

    def listed(folder: Path) -> list[str]:
        return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())

    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        hospital.table(home)
        frame = __import__("pandas").read_csv(home / "local.csv")
        frame.assign(p=(frame["a"].rank() / len(frame)).round(3)).to_csv(home / "scores.csv", index=False)
        roles = ["--label", "sick", "--group", "sex", "--reference", "M", "--patient", "pid"]
        run(
            "audit",
            str(home / "scores.csv"),
            *roles,
            "--score",
            "p",
            "--draws",
            "10",
            "--out",
            str(home / "audit" / "audit.json"),
            "--figures",
            str(home / "audit" / "figures"),
        )
        found["audit"] = listed(home / "audit")
        features = [part for f in "abc" for part in ("--feature", f)]
        network = [*features, "--model", f"{home / 'net.py'}:build", "--weights", str(home / "net.safetensors")]
        run(
            "debias",
            str(home / "local.csv"),
            *roles,
            *network,
            "--method",
            "group-thresholds",
            "--draws",
            "10",
            "--out",
            str(home / "one"),
            "--probe",
        )
        found["debias"] = listed(home / "one")
        run("apply", str(home / "one"), str(home / "new.csv"), "--trust", "--out", str(home / "applied" / "decisions.csv"))
        found["apply"] = [f"{path}: {','.join(_header(home / 'applied' / path))}" for path in listed(home / "applied")]
        frame.assign(ill=1 - frame["sick"]).to_csv(home / "labels.csv", index=False)
        (home / "two.py").write_text("from torch import nn\ndef build():\n    return nn.Linear(3, 2)\n")
        _two(home / "two.safetensors")
        two = [*features, "--model", f"{home / 'two.py'}:build", "--weights", str(home / "two.safetensors")]
        run(
            "debias",
            str(home / "labels.csv"),
            "--label",
            "sick",
            "--label",
            "ill",
            *roles[2:],
            *two,
            "--method",
            "group-thresholds",
            "--draws",
            "10",
            "--out",
            str(home / "both"),
        )
        found["debias, two labels"] = listed(home / "both")
        (home / "tiny.toml").write_text(
            'name = "tiny"\nmethods = ["standard"]\nmeasures = ["spd"]\nsplits = 1\n'
            '[[data]]\nsource = "loh"\noptions = {n = 200}\n[training]\nepochs = 1\n'
        )
        run("study", "run", str(home / "tiny.toml"), "--out", str(home / "study"), "--runner", "serial")
        show = ["study", "show", str(home / "study")]
        if "--figures" in commands["study show"]:
            show += ["--figures", str(home / "study" / "figures")]
        run(*show)
        found["study"] = sorted({_shape(path) for path in listed(home / "study")})
        run("demo", "--out", str(home / "demo"), "--rows", "600", "--epochs", "1", "--draws", "10")
        found["demo"] = sorted({_shape(path) for path in listed(home / "demo")})
    return found


def _header(path: Path) -> list[str]:
    return path.read_text().splitlines()[0].split(",")


def _two(path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    torch.manual_seed(0)
    save_file(torch.nn.Linear(3, 2).state_dict(), path)


def _shape(path: str) -> str:
    """A file's path with numbers and hashes left open."""
    import re

    return re.sub(r"\d+", "N", re.sub(r"\b[0-9a-f]{8,}\b", "HASH", path))


def make() -> dict[str, Any]:
    """The inventory of the equipoise that is imported."""
    import equipoise as eq

    commands = command_tree()
    methods = table_named("equipoise.methods", "METHODS")
    gaps = list(table_named("equipoise.measures", "GAPS", "MEASURES"))
    quotients = list(table_named("equipoise.measures", "QUOTIENTS", "GAPS", "MEASURES"))
    audited = _audit()
    return {
        "commands": sorted(commands),
        "options": sorted(f"{command} {option}" for command, own in commands.items() for option in own),
        "methods": sorted(methods),
        "settings": sorted(f"{name}.{setting}" for name, method in methods.items() for setting in settings_of(method)),
        "measures": sorted({*gaps, *quotients}),
        "rates": sorted({key for row in audited["groups"] for key, value in row.items() if isinstance(value, (dict, float))}),
        "data sets": sorted(
            row["name"] + ("" if not row["options"] else f" ({', '.join(sorted(row['options']))})")
            for row in json.loads(run("data", "list", "--json"))
        ),
        "presets": sorted(
            f"{row['name']}: {len(row['data'])} data, {len(row['methods'])} methods, {row['splits']} splits"
            for row in json.loads(run("study", "list", "--json"))
        ),
        "Python names": sorted(eq.__all__),
        "goal parameters": sorted(name for name, p in inspect.signature(eq.debias).parameters.items() if p.kind is not p.VAR_KEYWORD),
        "output files": sorted(f"{command}: {path}" for command, paths in output_files(commands).items() for path in paths),
    }


def _audit() -> dict[str, Any]:
    import numpy as np

    import equipoise as eq

    rng = np.random.default_rng(0)
    return eq.audit(eq.Scores.from_arrays(rng.integers(0, 2, 200), rng.random(200), rng.choice(["F", "M"], 200))).to_dict()


def compared(before: dict[str, Any], after: dict[str, Any], renamed: dict[str, dict[str, str]]) -> tuple[str, list[str]]:
    """The table as Markdown, and the items of the old code that have neither a successor nor a reason."""
    lines = ["| kind | before | after | unchanged | renamed, moved or gone | new |", "|---|---:|---:|---:|---|---|"]
    lost = []
    for kind in KINDS:
        old, new, names = set(before[kind]), set(after[kind]), renamed.get(kind, {})
        successors = {item: names[item] for item in sorted(old - new) if item in names}
        targets = {part for words in successors.values() for part in words.split("; ")}
        lost += [f"{kind}: {item}" for item in sorted(old - new) if item not in names]
        lost += [
            f"{kind}: {item} -> {words} does not exist"
            for item, words in successors.items()
            if not words.startswith("(") and not {*words.split("; ")} <= new
        ]
        told = "<br>".join(f"`{item}` → {words if words.startswith('(') else f'`{words}`'}" for item, words in successors.items())
        added = ", ".join(f"`{item}`" for item in sorted(new - old - targets))
        lines.append(f"| {kind} | {len(old)} | {len(new)} | {len(old & new)} | {told or 'none'} | {added or 'none'} |")
    return "\n".join(lines), lost


def identical() -> str:
    """What identity.csv says, in a sentence and a list of the cases that differ."""
    with (HERE / "identity.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    different = [row for row in rows if int(row["changed"]) or int(row["gone"])]
    fields = sum(int(row["fields"]) for row in rows)
    lines = [f"{len(rows) - len(different)} of {len(rows)} cases are identical, {fields:,} fields in all."]
    return "\n".join([*lines, *(f"- {row['case']}: {row['note']}" for row in different)])


def filled(page: str, name: str, content: str) -> str:
    """The page with new content between the marks of this name."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    head, rest = page.split(begin)
    return f"{head}{begin}\n{content}\n{end}{rest.split(end)[1]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("make", "table"))
    parser.add_argument("out", nargs="?", type=Path)
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    if given.what == "make":
        given.out.write_text(json.dumps(make(), indent=1) + "\n", encoding="utf-8")
        return
    before, after = (json.loads((HERE / name).read_text()) for name in ("before.json", "after.json"))
    table, lost = compared(before, after, tomllib.loads((HERE / "renamed.toml").read_text()))
    if lost:
        sys.exit("no successor in renamed.toml:\n" + "\n".join(lost))
    page = (HERE / "README.md").read_text(encoding="utf-8")
    fresh = filled(filled(page, "table", table), "identity", identical())
    if given.check and fresh != page:
        sys.exit("results/redesign/README.md is older than before.json, after.json or renamed.toml: run inventory.py table")
    (HERE / "README.md").write_text(fresh, encoding="utf-8")


if __name__ == "__main__":
    main()
