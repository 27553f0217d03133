"""The rooms: every line of a map holds, no name hides a module, no file is too long, and what needs no network starts without torch."""

import ast
import json
import re
import resource
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import equipoise
from support.scores_file import AUDIT, scores_frame, write_csv

ROOT = Path(equipoise.__file__).parent
LONGEST = 650  # lines of a file; split a longer one by what its parts mean
ROOMS = sorted(path.parent.name for path in ROOT.glob("*/__init__.pyi"))


def exported(stub: Path) -> dict[str, str]:
    """Every exported name of a map and the module it is from."""
    return {
        alias.name: node.module or ""
        for node in ast.parse(stub.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def test_every_name_of_a_map_is_defined_where_the_map_says():
    """In a fresh interpreter: collecting doctests may import a module a second time."""
    names = [(room, name, module) for room in ROOMS for name, module in exported(ROOT / room / "__init__.pyi").items()]
    code = """
import importlib, json, sys
for room, name, module in json.load(sys.stdin):
    home = importlib.import_module(f"equipoise.{room}.{module}")
    if getattr(importlib.import_module(f"equipoise.{room}"), name) is not getattr(home, name):
        print(room, name)
"""
    ran = subprocess.run([sys.executable, "-c", code], input=json.dumps(names), capture_output=True, text=True, check=True)
    assert len(names) > 100
    assert ran.stdout == ""


@pytest.mark.parametrize("room", ROOMS)
def test_no_name_of_a_map_is_also_the_name_of_a_module(room: str):
    """`from equipoise.room import name` would mean the module or the name, by what was imported before."""
    modules = {path.stem for path in (ROOT / room).glob("*.py")} | {path.parent.name for path in (ROOT / room).glob("*/__init__.py")}
    assert modules & set(exported(ROOT / room / "__init__.pyi")) == set()


def test_the_public_names_are_those_of_the_top_map():
    assert set(equipoise.__all__) == {*exported(ROOT / "__init__.pyi"), "__version__"}
    assert all(hasattr(equipoise, name) for name in equipoise.__all__)


def test_no_file_is_longer_than_can_be_read_at_once():
    lines = {path.relative_to(ROOT).as_posix(): len(path.read_text(encoding="utf-8").splitlines()) for path in ROOT.rglob("*.py")}
    assert {name: count for name, count in lines.items() if count > LONGEST} == {}
    assert {name for name in lines if Path(name).stem in {"utils", "helpers", "common", "core", "misc"}} == set()


def test_no_room_grows_by_accident():
    """Growth is a decision, and its number is written down."""
    sizes = Path(__file__).with_name("room_sizes.toml")
    most: dict[str, int] = tomllib.loads(sizes.read_text(encoding="utf-8"))
    lines: dict[str, int] = {}
    for path in ROOT.rglob("*.py"):
        first, *below = path.relative_to(ROOT).parts
        room = first if below else "top"
        lines[room] = lines.get(room, 0) + len(path.read_text(encoding="utf-8").splitlines())
    larger = [f"{room} = {count}  # {most.get(room, 0)} there now" for room, count in sorted(lines.items()) if count > most.get(room, 0)]
    assert larger == [], f"larger than {sizes.name} allows; remove something, or decide to grow and write there:\n" + "\n".join(larger)
    assert sorted(set(most) - set(lines)) == []  # a room that is gone


def imported_by(code: str, *arguments: str) -> set[str]:
    """The modules that a fresh interpreter has imported after running some code."""
    told = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys\nprint('\\n', *sorted(sys.modules))", *arguments],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(told.stdout.splitlines()[-1].split())


def studies_in(modules: set[str]) -> list[str]:
    return [name for name in modules if name.startswith("equipoise.studies")]


COMMAND = "import sys\nfrom equipoise.cli import run\nassert run(sys.argv[1:]) == 0"


def test_auditing_a_table_of_scores_imports_no_torch(tmp_path: Path):
    rows = ["y,p,sex,patient"] + [f"{i % 2},{(i * 7 % 10) / 10},{'FM'[i // 2 % 2]},{i}" for i in range(60)]
    path = tmp_path / "scores.csv"
    path.write_text("\n".join(rows), encoding="utf-8")
    command = ["audit", str(path), "--label", "y", "--score", "p", "--group", "sex", "--reference", "M"]
    packages = imported_by(COMMAND, *command)
    assert "pandas" in packages  # the command did run
    assert packages & {"torch", "torchvision", "sklearn", "scipy", "PIL", "jinja2"} == set()


def test_an_audit_with_a_page_imports_no_studies(tmp_path: Path):
    roles = [str(write_csv(tmp_path / "scores.csv", scores_frame(400))), *AUDIT, "--reference", "M"]
    assert studies_in(imported_by(COMMAND, "audit", *roles, "--report", str(tmp_path / "audit.html"))) == []


def test_repairing_a_table_of_scores_imports_neither_torch_nor_studies(tmp_path: Path):
    roles = [str(write_csv(tmp_path / "scores.csv", scores_frame(400))), *AUDIT, "--reference", "M"]
    modules = imported_by(COMMAND, "debias", *roles, "--out", str(tmp_path / "repaired"))
    assert "torch" not in modules
    assert studies_in(modules) == []
    assert (tmp_path / "repaired" / "report.html").is_file()  # all of it was imported
    assert "torch" not in imported_by(COMMAND, "apply", str(tmp_path / "repaired"), str(tmp_path / "scores.csv"))


@pytest.mark.parametrize("command", [["--version"], ["--help"], ["audit", "--help"]], ids=" ".join)
def test_version_and_help_import_none_of_the_large_packages(command: list[str]):
    packages = imported_by(COMMAND, *command)
    assert ("typer" in packages) == (command != ["--version"])
    assert packages & LARGE == set()


LARGE = {"torch", "pandas", "numpy", "pyarrow", "scipy", "sklearn", "PIL"}
WRONG = {
    "options": [
        "audit",
        "none.csv",
        "--label",
        "y",
        "--score",
        "p",
        "--group",
        "sex",
        "--set",
        "audit.level=95",
        "--set",
        "audit.thresholds=0.5:0.1",
    ],
    "no such file": ["audit", "none.csv", "--label", "y", "--score", "p", "--group", "sex"],
}


@pytest.mark.parametrize("command", WRONG.values(), ids=WRONG)
def test_wrong_options_and_files_are_reported_before_a_large_package_is_imported(command: list[str]):
    code = "import sys\nfrom equipoise.cli import run\nassert run(sys.argv[1:]) == 2"
    assert imported_by(code, *command) & LARGE == set()


def _cpu(*command: str) -> float:
    """The processor time of a command in seconds: other programs on the machine do not count."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *command], capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


UNTIL_READ = """
import os, sys
def stop(event, given):
    if event == "open" and str(given[0]).endswith("scores.csv"):
        os.write(1, " ".join(sys.modules).encode())
        os._exit(0)
sys.addaudithook(stop)
from equipoise.cli import run
run(sys.argv[1:])
os._exit(1)
"""  # an audit up to the moment in which it opens its table


@pytest.fixture
def one_row(tmp_path: Path) -> list[str]:
    """The command that audits a table of one row."""
    path = tmp_path / "scores.csv"
    path.write_text("y,p,sex\n1,0.5,F\n", encoding="utf-8")
    return ["audit", str(path), "--label", "y", "--score", "p", "--group", "sex"]


def test_an_audit_starts_to_read_soon_after_pandas_can_be_imported(one_row: list[str]):
    """Compared with a bare import of pandas, which no audit of a table can do without: 1.4 times as long when this was written."""
    bare = min(_cpu("-c", "import pandas") for _ in range(2))
    for most, *command in (
        (2.2, "-c", UNTIL_READ, *one_row),
        (0.5, "-m", "equipoise", "--version"),
        (1.2, "-m", "equipoise", "--help"),  # 0.8 to 1.05 times: options are fields of pydantic models
    ):
        assert any(_cpu(*command) < most * bare for _ in range(3)), command  # up to three times, since a busy machine is slower


NOT_YET = re.compile(
    r"equipoise\.(measures\.(?!measure_table|audit_spec)|methods\.(?!goal)|report\.(?!report_spec)|(models|comparison)\.|studies).*"
    r"|equipoise\.case\.(?!case\b|audit).*"  # these call what reads the table
    r"|equipoise\.data\.(decode|dicom|torch_datasets)"
    r"|rich\.(table|progress|panel|markdown|syntax|live)"
    r"|(torch|torchvision|sklearn|scipy|PIL|jinja2|joblib|safetensors|pydicom|lxml|ray|onnx|onnxruntime|matplotlib)(\..*)?"
)


def test_an_audit_imports_what_reads_a_table_before_it_does_so_and_nothing_else(one_row: list[str]):
    found = subprocess.run([sys.executable, "-c", UNTIL_READ, *one_row], capture_output=True, text=True, check=True).stdout.split()
    assert {"pandas", "equipoise.data.table_files"} <= set(found)  # it was about to read
    assert [name for name in found if NOT_YET.fullmatch(name)] == []


def test_scores_audited_in_python_import_no_torch():
    code = (
        "import equipoise as eq\n"
        "scores = eq.Scores.from_arrays([1, 0, 1, 0] * 30, [0.9, 0.2, 0.4, 0.3] * 30, ['F', 'F', 'M', 'M'] * 30, reference='M')\n"
        "assert eq.audit(scores, threshold=0.5)['eod'].value == 1.0"
    )
    assert imported_by(code) & {"torch", "sklearn", "PIL"} == set()
