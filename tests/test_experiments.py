"""From a file of rows under experiments/ to the command that made it, and to one that runs a single cell of it; scripts that could run."""

import ast
import importlib
import importlib.util
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import equipoise
from equipoise.cli.app import command_line
from equipoise.errors import BadInput
from equipoise.studies import narrow, read_plan

ROOT = Path(__file__).parents[1]
FOLDERS = sorted(path.parent for path in (ROOT / "experiments").glob("*/README.md"))
WITHOUT = ("by hand", "as above", "the same")  # cells that are words
PLACES = {"FOLDER", "DATA/cxr-nih"}


def lines_of(folder: Path) -> Iterator[tuple[list[str], str, str]]:
    """The files, the command and the single cell in every line of the first table of a note."""
    text = (folder / "README.md").read_text(encoding="utf-8")
    table = text.partition("| rows | made by | one cell |\n|---|---|---|\n")[2].partition("\n\n")[0]
    for line in table.splitlines():
        rows, made, cell = re.split(r" \| ", line.strip("| ") + (" | " if line.endswith("|  |") else ""))[:3]
        yield re.findall(r"`([^`]+)`", rows), made, cell


def commands(cell: str) -> list[str]:
    return [found for found in re.findall(r"`([^`]+)`", cell) if re.match(r"equipoise |python |\.venv-bench/bin/python ", found)]


def options_of(script: Path) -> set[str]:
    """The options that a script declares; those without any take what is given by place."""
    calls = [node for node in ast.walk(ast.parse(script.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
    return {
        str(argument.value)
        for call in calls
        if isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument"
        for argument in call.args
        if isinstance(argument, ast.Constant)
    }


def problems_of(line: str) -> list[str]:
    """What a command names that does not exist: a script, an option, a study, or data, methods or measures of it."""
    words = shlex.split(line.partition(" > ")[0])
    if words[0] == "equipoise":
        context = command_line().commands["study"].commands["run"].make_context("run", words[3:])
        given = context.params
        try:
            plan = read_plan(str(ROOT / given["study"]) if given["study"].endswith(".toml") else given["study"])
            narrow(plan, splits=given["splits"], data=given["data"], methods=given["method"], measures=given["measure"])
        except BadInput as error:
            return [f"{line}: {error}"]
        return []
    script, known = ROOT / words[1], set()
    if not script.is_file():
        return [f"{line}: no {words[1]}"]
    known = options_of(script) or {word for word in words if f'"{word}"' in script.read_text(encoding="utf-8")}
    return [f"{line}: no option {word}" for word in words[2:] if word.startswith("--") and word not in known]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_every_file_of_rows_has_its_command_and_a_single_cell(folder: Path):
    listed, problems = [], []
    for files, made, cell in lines_of(folder):
        listed += files
        assert commands(made) or made.startswith(WITHOUT), (files, made)
        assert commands(cell) or cell.startswith(WITHOUT) or made.startswith("by hand"), (files, cell)
        problems += [problem for command in (*commands(made), *commands(cell)) for problem in problems_of(command)]
    assert sorted(listed) == sorted(path.name for path in folder.glob("*.csv"))
    assert problems == []


def test_a_command_that_has_gone_stale_is_found():
    assert problems_of("equipoise study run paper-tabular --out x --data compas --method standard") == []
    for line in (
        "equipoise study run paper-tabular --out x --data compass",
        "equipoise study run experiments/none/none.toml --out x",
        "python experiments/none/none.py",
        "python experiments/phantoms/oracle.py --outs cell.csv",
    ):
        assert len(problems_of(line)) == 1


SCRIPTS = sorted(path for folder in ("experiments", "benchmarks", "scripts") for path in (ROOT / folder).rglob("*.py"))


def missing_names(code: str) -> list[str]:
    """What a script imports or calls of Equipoise that does not exist: nothing else runs most of them."""
    tree, missing = ast.parse(code), []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] == "equipoise":
            try:
                module = importlib.import_module(str(node.module))
            except ImportError:
                missing.append(f"from {node.module}")
                continue
            missing += [f"{node.module}.{alias.name}" for alias in node.names if not has(module, alias.name)]
        elif (
            isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "eq" and not has(equipoise, node.attr)
        ):
            missing.append(f"eq.{node.attr}")
    return missing


def has(module: ModuleType, name: str) -> bool:
    return hasattr(module, name) or (hasattr(module, "__path__") and importlib.util.find_spec(f"{module.__name__}.{name}") is not None)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_script_imports_what_exists(path: Path):
    assert missing_names(path.read_text(encoding="utf-8")) == []


def test_an_import_that_has_gone_stale_is_found():
    code = "import equipoise as eq\nfrom equipoise.measures import no_such\nfrom equipoise.nowhere import x\n"
    code += "from equipoise.errors import Y\neq.load\neq.lod"
    assert missing_names(code) == ["equipoise.measures.no_such", "from equipoise.nowhere", "equipoise.errors.Y", "eq.lod"]
