"""The example scripts, run as a user runs them, and what they promise."""

import ast
import copy
import importlib.util
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from unittest.mock import patch

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file
from sklearn.metrics import recall_score

import equipoise as eq
from equipoise.cli import run
from equipoise.disk import sha256
from equipoise.measures import MEASURES
from equipoise.methods import METHODS
from equipoise.models.vision import import_torchvision
from equipoise.report.panels import PANELS
from equipoise.studies import CATALOGUE, phantom
from support.facts import facts, says
from support.published import debias

EXAMPLES = Path(__file__).parents[1] / "examples"
QUICK = {
    "audit_csv": ["--patients", "300"],
    "debias_resnet": ["--images", "240", "--epochs", "1", "--steps", "1", "--min-performance", "0.5"],
    "add_measure": ["--rows", "900", "--epochs", "4"],
    "add_method": ["--rows", "900", "--epochs", "4"],
    "add_data_set": ["--rows", "600"],
    "add_panel": ["--rows", "900", "--epochs", "4"],
}


def run_process(name: str, folder: Path, *more: str) -> str:
    """What a script prints in a process of its own; warnings are errors in it too."""
    command = [sys.executable, "-W", "error", str(EXAMPLES / f"{name}.py"), *QUICK[name], *more]
    ran = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, timeout=300, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""
    return ran.stdout


@pytest.fixture
def run_script(tables, tmp_path, monkeypatch, capfd):
    """Runs a script in this process, in an empty folder: what it prints; what it adds to the tables is taken out again."""

    def call(name: str, *more: str) -> str:
        path = EXAMPLES / f"{name}.py"
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", [str(path), *QUICK[name], *more])
        capfd.readouterr()
        runpy.run_path(str(path), run_name="__main__")
        out, err = capfd.readouterr()
        assert err == ""
        return out

    return call


def imported(name: str) -> ModuleType:
    """A script as a module, under a name of its own."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def tables():
    """The tables of measures, methods, data sets and panels, restored afterwards."""
    with patch.dict(MEASURES), patch.dict(METHODS), patch.dict(CATALOGUE), patch.dict(PANELS):
        yield


@pytest.fixture(scope="module")
def simulated() -> tuple[torch.nn.Module, eq.Parts]:
    parts = eq.split(eq.load("loh", n=2_000, alpha=2.0, seed=0), seed=0)
    return eq.train(parts.train, parts.valid, seed=0, settings=eq.Training(epochs=12)), parts


def test_every_script_is_tested():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(QUICK)


def test_audit_csv_finds_the_gap_that_is_in_its_file(tmp_path, capsys):
    printed = run_process("audit_csv", tmp_path)
    frame = pd.read_csv(tmp_path / "example-output" / "scores.csv")
    recall = {sex: recall_score(rows["sick"], rows["p"] >= 0.5) for sex, rows in frame.groupby("sex")}
    found = json.loads((tmp_path / "example-output" / "audit.json").read_text())
    assert found["eod"]["value"] == pytest.approx(recall["F"] - recall["M"])
    assert found["patients"] == frame["patient_id"].nunique() < len(frame)
    assert says(printed, "eod", f"{found['eod']['value']:+.3f}")

    # The command that it prints gives the same.
    command = shlex.split(printed.strip().splitlines()[-1])
    assert command[0] == "equipoise"
    assert run([command[1], str(tmp_path / command[2]), *command[3:], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["eod"] == found["eod"]


def test_debias_resnet_leaves_weights_that_load_where_the_old_ones_did(run_script, tmp_path):
    printed = run_script("debias_resnet")
    assert [line.split(":")[0] for line in printed.splitlines() if " -> " in line] == ["standard", "bias-gda", "pruning"]
    before, after = re.findall(r"^bias-gda: eod (\S+) -> (\S+),", printed, re.MULTILINE)[0]
    assert abs(float(after)) < abs(float(before))  # so the weights are not the old ones
    state = load_file(tmp_path / "example-output" / "repaired.safetensors")
    network = import_torchvision().models.resnet18(num_classes=1)
    network.conv1 = torch.nn.Conv2d(1, 64, 7, stride=2, padding=3, bias=False)
    network.load_state_dict(state, strict=True)
    with torch.no_grad():
        scores = torch.sigmoid(network.eval()(phantom(60, size=32, seed=2, name="test").inputs[:5]))[:, 0]
    told = ast.literal_eval(printed.strip().splitlines()[-1].partition(": ")[2])
    assert scores.tolist() == pytest.approx(told, abs=6e-4)


def test_add_measure_runs(run_script):
    printed = run_script("add_measure")
    assert says(printed, "bias-gda", "harm_gap")


def test_the_added_measure_is_audited_and_debiased(tables, simulated):
    imported("add_measure")
    model, parts = simulated
    found = eq.audit(model, parts.test)
    harm = 0.8 * (1 - found.groups["tpr"]) + 0.2 * found.groups["fpr"]
    assert found["harm_gap"].value == pytest.approx(harm["A=0"] - harm["A=1"])
    assert found["harm_gap"].low < found["harm_gap"].value < found["harm_gap"].high
    result = debias(model, parts.valid, method="bias-gda", measure="harm_gap", min_performance=0.52, learning_rate=1e-4, epochs=3)
    assert abs(result.trace["gap"].iloc[result.chosen]) < abs(result.trace["gap"].iloc[0])


def test_add_data_set_loads_what_its_file_holds(run_script, tmp_path):
    printed = run_script("add_data_set")
    frame = pd.read_csv(tmp_path / "example-output" / "ward" / "ward.csv")
    assert says(printed, len(frame), frame["patient"].nunique(), frame["sick"].sum())


def test_the_added_data_set_is_verified_by_its_checksum(tables, tmp_path):
    example = imported("add_data_set")
    path = example.write_file(tmp_path / "ward", 40)
    example.add(sha256(path.read_bytes()), 40)
    assert eq.load("ward", root=tmp_path).patients.tolist() == [str(k) for k in range(40)]
    path.write_text(path.read_text() + "40,F,1,0.5\n")
    with pytest.raises(eq.BadInput, match=r"ward\.csv"):
        eq.load("ward", root=tmp_path)


def test_the_added_panel_is_in_the_report_with_one_curve_per_group(tables, simulated, tmp_path):
    example = imported("add_panel")
    model, parts = simulated
    result = debias(model, parts.valid, method="standard", measure="spd")
    both = eq.compare({"original": model, "repaired": result}, parts.test, valid=parts.valid)
    before, after = example.flagged(both)
    assert [mark.title for mark in before.marks] == list(both.original.test.attribute.levels)
    rows = both.original.test.groups == "A=0"
    assert f"A=0: {(both.original.test.score[rows] >= 0.5).mean():.1%} at 0.5" in before.says
    page = both.report(tmp_path / "report.html").read_text(encoding="utf-8")
    assert page.count(f"<h3>{example.HEADING}</h3>") == 1
    assert before.says in page
    assert after.marks[0].d in page


def test_add_panel_runs(run_script, tmp_path):
    assert says(run_script("add_panel"), "chosen", "spd")
    assert (tmp_path / "example-output" / "report.html").is_file()


def test_add_method_runs(run_script):
    printed = run_script("add_method")
    assert says(printed, "random-walk", "eod")


def test_the_added_method_is_short():
    """From its settings to its entry in the table, blank lines left out."""
    lines = (EXAMPLES / "add_method.py").read_text().splitlines()
    start, end = lines.index("@dataclass(frozen=True)"), next(k for k, line in enumerate(lines) if line.startswith("def main"))
    assert len([line for line in lines[start:end] if line.strip()]) < 40


def test_the_added_method_keeps_the_contract(tables, simulated):
    name = imported("add_method").NAME
    model, parts = simulated
    before = copy.deepcopy(model.state_dict())
    result = debias(model, parts.valid, method=name, measure="eod", min_performance=0.55, seed=0)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert result.model is not model
    assert not result.rule.needs_group

    # The driver did the rest: it evaluated every step, kept the best and tells its numbers as they are.
    assert result.trace["step"].tolist() == list(range(21))
    scores = eq.Scores.from_arrays(
        parts.valid.y,
        torch.sigmoid(result.model(parts.valid.inputs)).detach().double().numpy().reshape(-1),
        parts.valid.groups,
        reference="A=1",
    )
    positives = scores.y == 1
    tpr = [result.rule.decide(scores)[positives & (parts.valid.groups == group)].mean() for group in ("A=0", "A=1")]
    assert result.trace["gap"].iloc[result.chosen] == pytest.approx(tpr[0] - tpr[1])
    good = result.trace[result.trace["performance"] >= 0.55]
    assert abs(result.trace["gap"].iloc[result.chosen]) == good["gap"].abs().min()

    # Its own setting is one like any other's, and so are selection, stacks and estimates of its work.
    assert len(debias(model, parts.valid, method=name, measure="eod", min_performance=0.5, steps=3).trace) == 4
    corrected = debias(model, parts.valid, method=name, measure="eod", min_performance=0.5, selection="honest", steps=3)
    assert corrected.trace["gap_honest"].iloc[[0, corrected.chosen]].notna().all()
    with pytest.raises(eq.BadInput, match=facts("random-walk", "stepz")):
        debias(model, parts.valid, method=name, stepz=4)
