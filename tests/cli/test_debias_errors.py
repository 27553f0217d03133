"""`equipoise debias` with bad input: one clear message, nothing half written, and complete files if a part fails."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from support import hospital
from support.command import instead
from support.facts import says
from support.hospital import FAST, QUICK, ROLES, TABLE

BAD = {
    "unknown method": (["--method", "bias-gd"], ["Did you mean 'bias-gda'?"]),
    "unknown measure": (["--measure", "eodd"], ["Did you mean 'eod'?"]),
    "a minimum performance above 1": (["--set", "goal.min_performance=75"], ["min_performance must be a number between 0 and 1; got 75"]),
    "a loss beside a floor": (["--set", "goal.min_performance=0.6", "--max-loss", "0.03"], ["max_loss cannot be combined"]),
    "no such fraction": (["--set", "repair.test_fraction=1"], ["repair.test_fraction: input should be less than 1; got 1"]),
    "a setting without a method": (["--set", "units=3"], ["SECTION.KEY=VALUE", "'units=3'"]),
    "a setting of another method": (["--set", "pruning.units=3"], ["'pruning'", "Valid: auto"]),
    "an unknown setting": (["--set", "bias-gda.epoch=3"], ["Did you mean 'epochs'?"]),
    "a setting of another type": (["--set", "bias-gda.epochs=many"], ["bias-gda.epochs", "'many'"]),
    "weights that do not fit": (["--weights", "other.pt"], ["1 weights of the network are not in the file: 2.bias", "extra"]),
    "no weights file": (["--weights", "none.pt"], ["no such file: none.pt"]),
    "a factory that raises": (["--model", "net.py:raises"], ["net.py:raises raised KeyError: 'no GPU'"]),
    "a factory with arguments": (["--model", "net.py:needs"], ["needs the arguments width"]),
    "a network with two outputs": (["--model", "net.py:two", "--weights", "two.pt"], ["it returned (2, 2)"]),
    "no such column": (["--patient", "ill"], ["no column 'ill'"]),
    "no such card": (["--set", "report.card=none.toml"], ["none.toml"]),
    "thumbnails of a table": (["--set", "report.thumbnails=true"], ["report.thumbnails requires images.folder (--images)"]),
    "an unknown selection": (["--set", "goal.selection=honestly"], ["Did you mean 'honest'?"]),
    "a minimum without a number": (["--set", "goal.keep.tpr"], ["SECTION.KEY=VALUE", "goal.keep.tpr"]),
    "a minimum in words": (["--set", "goal.keep.tpr=high"], ["'high'", "tpr"]),
    "a minimum above 1": (["--set", "goal.keep.tpr=80"], ["a minimum in [0, 1]; got 80"]),
    "a minimum of no rate": (["--set", "goal.keep.tprr=0.8"], ["Did you mean 'tpr'?"]),
    "two limits of one rate": (["--set", "goal.keep.tpr=before", "--set", "goal.keep.tpr=0.8"], ["goal.keep.tpr", "twice"]),
    "two minima and a fraction": (
        ["--set", "goal.keep.a", "--set", "goal.keep.b", "--set", "repair.draws=1"],
        ["2 problems", "goal.keep.a", "goal.keep.b"],
    ),
    "an unknown method for auto": (["--method", "auto", "--set", "auto.methods=bias-gd"], ["Did you mean 'bias-gda'?"]),
    "several at once": (
        ["--set", "goal.min_performance=2", "--set", "repair.draws=1", "--method", "prunning"],
        ["2 problems", "repair.draws", "min_performance"],
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_message_and_writes_nothing(table, tmp_path, case):
    arguments, expected = BAD[case]
    state = hospital.network("build").state_dict()
    state["extra"] = state.pop("2.bias")
    torch.save(state, "other.pt")
    torch.save(hospital.network("two").state_dict(), "two.pt")
    before = sorted(tmp_path.iterdir())
    code, out, err = table(*instead(TABLE, *arguments))
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    for part in expected:
        assert part in err
    assert sorted(path for path in tmp_path.iterdir() if path.name != "__pycache__") == before


def test_an_output_folder_that_is_not_empty_is_refused_before_the_network_is_even_built(table, tmp_path, monkeypatch):
    (tmp_path / "repaired").mkdir()
    (tmp_path / "repaired" / "thesis.txt").write_text("years of work")
    monkeypatch.setattr("equipoise.models.loading.network_from", lambda *_: pytest.fail("the network was built"))
    code, _, err = table(*TABLE, *FAST)
    assert code == 2
    assert says(err, "repaired", "thesis.txt", "--overwrite")


def test_overwrite_replaces_a_run_and_leaves_other_files(table, tmp_path):
    assert table(*instead(TABLE, *FAST, "--weights", "net.pt")).code == 0
    (tmp_path / "repaired" / "thesis.txt").write_text("years of work")
    assert table(*TABLE, *FAST, "--overwrite").code == 0
    names = {path.name for path in (tmp_path / "repaired").iterdir()}
    assert "thesis.txt" in names
    assert "repaired.pt" not in names  # of the run before, whose weights came as a torch file


def test_an_interruption_leaves_nothing_behind(table, tmp_path, monkeypatch):
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    before = sorted(tmp_path.iterdir())
    monkeypatch.setattr("equipoise.report.cards", interrupted)
    assert table(*TABLE, *FAST).code not in (0, 2)
    assert sorted(path for path in tmp_path.iterdir() if path.name != "__pycache__") == before


def test_an_operator_missing_in_onnx_is_named_and_other_files_are_written(table, tmp_path):
    pytest.importorskip("onnxscript")
    torch.save(hospital.network("Odd").state_dict(), "odd.pt")
    code, out, err = table(
        *instead([*TABLE, *QUICK], "--set", "goal.min_performance=0", "--model", "net.py:Odd", "--weights", "odd.pt", "--json")
    )
    assert code == 0
    assert says(err, "model.onnx")
    assert "bessel_j0" in json.loads(out)["failures"]["model.onnx"]
    names = {path.name for path in (tmp_path / "repaired").iterdir()}
    assert "model.onnx" not in names
    assert {"repaired.pt", "report.html", "run.json"} <= names


def test_a_failed_report_is_not_a_success_but_the_network_is_saved(table, tmp_path, monkeypatch):
    def fails(*_: object, **__: object) -> None:
        raise ValueError("no template")

    monkeypatch.setattr("equipoise.report.repair_document", fails)
    code, _, err = table(*TABLE, *FAST)
    assert code == 1
    assert says(err, "report.html", "ValueError: no template")
    assert (tmp_path / "repaired" / "repaired.safetensors").exists()


def test_the_weights_of_the_factory_are_the_default(table, tmp_path):
    (tmp_path / "ready.py").write_text(
        "import torch\nfrom net import build as plain\nfrom safetensors.torch import load_file\n"
        "def build():\n    model = plain()\n    model.load_state_dict(load_file('net.safetensors'))\n    return model\n"
    )
    arguments = ["debias", "local.csv", *ROLES, "--set", "data.id=id", "--model", "ready.py:build", "--out", "repaired"]
    assert table(*arguments, *FAST).code == 0
    assert set(load_file("repaired/repaired.safetensors")) == set(load_file("net.safetensors"))


def test_help_shows_an_example(run):
    code, out, _ = run("debias", "--help")
    assert code == 0
    assert says(" ".join(out.replace("│", " ").split()), "equipoise debias local.csv --images xrays/")


def test_a_network_in_half_precision_is_refused_with_the_remedy(table):
    save_file({key: value.half() for key, value in load_file("net.safetensors").items()}, "half.safetensors")
    Path("half.py").write_text("from net import build as plain\ndef build():\n    return plain().half()\n")
    code, _, err = table(*instead(TABLE, "--model", "half.py:build", "--weights", "half.safetensors"))
    assert code == 2
    assert "Half" in err or "float16" in err
