"""A small `equipoise demo`: its folder, and the commands that it prints, which must run."""

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from support.command import Ran, ran
from support.facts import says

SMALL = ["--rows", "240", "--epochs", "1", "--no-onnx"]


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ran]:
    """One small demo in a folder with a space in its name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("demo"))
        patch.setenv("COLUMNS", "100")
        patch.setattr("equipoise.cli.demo.BUDGET", "0.05")  # minutes
        yield ran("demo", "--out", "my demo", *SMALL)


def _commands(shown: Ran) -> list[list[str]]:
    """The commands that the demo ran, and those that it suggests."""
    return [shlex.split(line.strip().removeprefix("$ ")) for line in shown.out.splitlines() if "equipoise " in line[:14]]


def test_the_demo_prints_every_stage(shown):
    assert (shown.code, shown.err) == (0, "")
    for part in ("Centre 1 trains", "audits it", "repairs it", "original", "(chosen)", "New patients", "simulated"):
        assert part in shown.out
    assert shown.out.rstrip().endswith("my demo/repaired/report.html")
    assert [command[1] for command in _commands(shown)] == ["audit", "debias", "apply", "audit", "debias", "debias", "apply"]


def test_the_folder_holds_a_hospitals_files_and_the_repaired_network(shown):
    assert {path.name for path in Path("my demo").iterdir()} == {
        "local.csv", "new.csv", "scores.csv", "xrays", "my_model.py", "net.safetensors", "decisions.csv", "repaired",
    }  # fmt: skip
    names = {path.name for path in Path("my demo/repaired").iterdir()}
    assert names >= {"report.html", "card.md", "card.xml", "rule.json", "audit.json", "trace.csv", "run.json", "repaired.safetensors"}
    tried = json.loads(Path("my demo/repaired/audit.json").read_text())["methods"]
    assert list(tried) == ["auto"]
    # Folders of the machine are not among what the report shows.
    assert "equipoise debias local.csv" in json.loads(Path("my demo/repaired/run.json").read_text())["provenance"]["command"]
    assert len(pd.read_csv("my demo/decisions.csv")) == len(pd.read_csv("my demo/new.csv")) == 40


def test_no_patient_is_in_both_the_repair_set_and_the_test_set(shown):
    parts = json.loads(Path("my demo/repaired/run.json").read_text())["sets"]
    patients = pd.read_csv("my demo/local.csv")["patient_id"].nunique()
    assert parts["repair"]["patients"] + parts["test"]["patients"] == patients
    assert parts["repair"]["rows"] + parts["test"]["rows"] == 240


def test_images_and_scores_give_the_same_audit(shown):
    commands = _commands(shown)
    of_images, of_scores = (json.loads(ran(*command[1:], "--json").out) for command in (commands[0], commands[3]))
    assert of_images["eod"]["value"] == pytest.approx(of_scores["eod"]["value"])
    assert of_images["auroc"]["value"] == pytest.approx(of_scores["auroc"]["value"], abs=1e-6)


def test_the_suggested_commands_run(shown):
    plan, repair, decide = _commands(shown)[4:]
    planned = ran(*plan[1:])
    assert (planned.code, planned.err) == (0, "")
    assert not Path("my demo/repaired-spd").exists()
    quick = ["--set", "bias-gda.schedule=paper", "--set", "bias-gda.epochs=2", "--set", "repair.draws=20", "--set", "report.onnx=false"]
    assert ran(*repair[1:], *quick).code == 0
    assert Path("my demo/repaired-spd/report.html").exists()
    before = Path("my demo/decisions.csv").read_text()
    Path("my demo/decisions.csv").unlink()
    assert ran(*decide[1:]).code == 0
    assert Path("my demo/decisions.csv").read_text() == before


def test_a_folder_in_use_is_refused_and_an_earlier_demo_replaced_if_asked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine").mkdir()
    Path("mine/notes.txt").write_text("keep")
    refused = ran("demo", "--out", "mine", *SMALL)
    assert (refused.code, refused.out) == (2, "")
    assert says(refused.err, "mine", "notes.txt", "--overwrite")
    assert [path.name for path in Path("mine").iterdir()] == ["notes.txt"]


def test_too_few_rows_stop_the_demo_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, err = ran("demo", "--rows", "3", "--epochs", "0")
    assert code == 2
    assert says(err, "rows", 3, 40, "epochs", 0, 1)
    assert list(tmp_path.iterdir()) == []
