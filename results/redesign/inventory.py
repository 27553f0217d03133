"""Every capability of the code as JSON, and the table that compares it with the code before the redesign.

    PYTHONPATH=src:tests python results/redesign/inventory.py make       # writes after.json
    python results/redesign/inventory.py table                           # rewrites the generated blocks of README.md
    python results/redesign/inventory.py table --check                   # fails where a block is older than its files or an item is lost

Commands and options come from the command line itself, methods, settings and measures from their tables, data sets and presets from
`data list` and `study list`, output files from a run of every command that writes some. `before.json` was made in the same way from commit
bb3baa5. Nothing is typed in by hand but `renamed.toml`, which says what an item is called today, or why it is gone.
"""

import argparse
import contextlib
import csv
import dataclasses
import inspect
import io
import json
import re
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
KINDS = ("commands", "options", "methods", "settings", "measures", "rates", "data sets", "data set options", "presets", "Python names",
         "goal parameters", "output files")  # fmt: skip
STUDY = """
name = "tiny"
methods = ["standard"]
measures = ["spd"]
splits = 1
data = [{ source = "loh", options = { n = 200 } }]
training = { epochs = 1 }
"""


def command_tree() -> dict[str, list[str]]:
    """The options and arguments of every command."""
    import typer

    from equipoise.cli.app import command_line

    found: dict[str, list[str]] = {}

    def walk(command: Any, name: str) -> None:
        if hasattr(command, "commands"):
            for child, own in command.commands.items():
                walk(own, f"{name} {child}".strip())
            if not name:
                found["(root)"] = [option for p in command.params for option in p.opts]
            return
        given = [(p, option) for p in command.params for option in (*p.opts, *p.secondary_opts)]
        found[name] = [option if p.param_type_name == "option" else f"<{p.name}>" for p, option in given]

    walk(typer.main.get_command(command_line()), "")
    return found


def run(*arguments: object) -> str:
    """What a command prints. An error with what it complains of where it fails."""
    from equipoise.cli import run as run_command

    words, out, err = list(map(str, arguments)), io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run_command(words)
    if code:
        raise SystemExit(f"equipoise {' '.join(words)}: exit code {code}\n{out.getvalue()}{err.getvalue()}")
    return out.getvalue()


def listed(folder: Path) -> list[str]:
    """The files in a folder, with numbers and hashes left open."""
    names = (str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    return sorted({re.sub(r"\d+", "N", re.sub(r"\b[0-9a-f]{8,}\b", "HASH", name)) for name in names})


def output_files(home: Path) -> dict[str, list[str]]:
    """The files that each command writes, from a run of it on a tiny hospital."""
    import pandas as pd
    import torch
    from safetensors.torch import save_file

    from support import hospital

    hospital.table(home)
    frame = pd.read_csv(home / "local.csv")
    scores = {name: (frame[column].rank() / len(frame)).round(3) for name, column in (("p", "a"), ("q", "b"))}
    frame.assign(**scores).to_csv(home / "scores.csv", index=False)
    frame.assign(ill=1 - frame["sick"]).to_csv(home / "labels.csv", index=False)
    (home / "two.py").write_text("from torch import nn\ndef build():\n    return nn.Linear(3, 2)\n")
    torch.manual_seed(0)
    save_file(torch.nn.Linear(3, 2).state_dict(), home / "two.safetensors")
    (home / "tiny.toml").write_text(STUDY)
    roles = ["--group", "sex", "--reference", "M", "--patient", "pid"]
    quick = [*(part for f in "abc" for part in ("--feature", f)), "--method", "group-thresholds", "--selection", "paper", "--draws", 10]
    one = ["--label", "sick", "--model", f"{home / 'net.py'}:build", "--weights", home / "net.safetensors", "--probe"]
    two = ["--label", "sick", "--label", "ill", "--model", f"{home / 'two.py'}:build", "--weights", home / "two.safetensors"]
    scored, place = ["--label", "sick", "--score", "p", *roles], home / "audit"
    kept = ["--out", place / "audit.json", "--report", place / "audit.html", "--figures", place / "figures"]
    run("audit", home / "scores.csv", *scored, *kept, "--append", place / "history.parquet", "--date", "2026-11")
    run("report", place / "audit.json", "--report", home / "report" / "page.html")
    told = ["--out", home / "compare" / "compare.json", "--report", home / "compare" / "page.html"]
    run("compare", home / "scores.csv", *scored, "--score", "q", *told)
    run("debias", home / "scores.csv", *scored, "--method", "group-thresholds", "--out", home / "rule")
    run("debias", home / "local.csv", *one, *roles, *quick, "--out", home / "one")
    run("apply", home / "one", home / "new.csv", "--trust", "--out", home / "applied" / "decisions.csv")
    run("debias", home / "labels.csv", *two, *roles, *quick, "--out", home / "both")
    run("study", "run", home / "tiny.toml", "--out", home / "study", "--runner", "serial")
    run("study", "show", home / "study", "--figures", home / "study" / "figures")
    run("demo", "--out", home / "demo", "--rows", 600, "--epochs", 1, "--draws", 10)
    header = (home / "applied" / "decisions.csv").read_text().splitlines()[0]
    folders = {"audit": "audit", "report": "report", "compare": "compare", "debias": "one", "debias, two labels": "both"}
    folders |= {"debias, scores": "rule", "study": "study", "demo": "demo"}
    return {"apply": [f"decisions.csv: {header}"], **{command: listed(home / folder) for command, folder in folders.items()}}


def surface() -> dict[str, list[str]]:
    """What the equipoise that is imported offers, without running anything."""
    import equipoise as eq
    from equipoise.measures import MEASURES
    from equipoise.methods import METHODS

    commands = command_tree()
    return {
        "commands": sorted(commands),
        "options": sorted(f"{command} {option}" for command, own in commands.items() for option in dict.fromkeys(own)),
        "methods": sorted(METHODS),
        "settings": sorted(f"{name}.{field.name}" for name, method in METHODS.items() for field in dataclasses.fields(method.settings)),
        "measures": sorted(MEASURES),
        "Python names": sorted(eq.__all__),
        "goal parameters": sorted(name for name, p in inspect.signature(eq.debias).parameters.items() if p.kind is not p.VAR_KEYWORD),
    }


def make() -> dict[str, list[str]]:
    """The inventory of the equipoise that is imported."""
    import numpy as np

    import equipoise as eq

    rng = np.random.default_rng(0)
    audited = eq.audit(eq.Scores.from_arrays(rng.integers(0, 2, 200), rng.random(200), rng.choice(["F", "M"], 200))).to_dict()
    data, presets = (json.loads(run(what, "list", "--json")) for what in ("data", "study"))
    with tempfile.TemporaryDirectory() as home:
        files = output_files(Path(home))
    found = surface() | {
        "rates": sorted({key for row in audited["groups"] for key, value in row.items() if isinstance(value, (dict, float))}),
        "data sets": sorted(row["name"] for row in data),
        "data set options": sorted(f"{row['name']}.{option}" for row in data for option in row["options"]),
        "presets": sorted(f"{p['name']}: {len(p['data'])} data, {len(p['methods'])} methods, {p['splits']} splits" for p in presets),
        "output files": sorted(f"{command}: {path}" for command, paths in files.items() for path in paths),
    }
    return {kind: found[kind] for kind in KINDS}


def stored() -> tuple[dict[str, list[str]], dict[str, list[str]], dict[str, dict[str, str]]]:
    """The inventories before and after, and the renames."""
    before, after = (json.loads((HERE / name).read_text()) for name in ("before.json", "after.json"))
    return before, after, tomllib.loads((HERE / "renamed.toml").read_text())


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
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    if given.what == "make":
        (HERE / "after.json").write_text(json.dumps(make(), indent=1) + "\n", encoding="utf-8")
        return
    table, lost = compared(*stored())
    if lost:
        sys.exit("no successor in renamed.toml:\n" + "\n".join(lost))
    page = (HERE / "README.md").read_text(encoding="utf-8")
    fresh = filled(filled(page, "table", table), "identity", identical())
    if given.check and fresh != page:
        sys.exit("results/redesign/README.md is older than before.json, after.json or renamed.toml: run inventory.py table")
    (HERE / "README.md").write_text(fresh, encoding="utf-8")


if __name__ == "__main__":
    main()
