"""`equipoise debias`: what is written and printed."""

import json
from pathlib import Path

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from equipoise import Cohort
from equipoise.disk import sha256
from equipoise.models import load_model, predict
from equipoise.report import p_value_words
from equipoise.report.wording.audits import READ_IS_NOT_USED
from equipoise.report.wording.names import upper_bound_words
from support import hospital
from support.command import instead
from support.facts import says
from support.hospital import FAST, IMAGES, QUICK, ROLES, TABLE
from support.published import debias

# what is written and printed


def test_a_table_and_several_methods(table, tmp_path):
    pytest.importorskip("onnxscript")
    code, out, err = table(*TABLE, *QUICK, "--method", "bias-gda", "--method", "reject-option", "--method", "equalised-odds")
    assert (code, err) == (0, "")
    for part in ("original", "(chosen)", "reject-option", "equalised-odds", "held-out", "F minus M", "Written to repaired"):
        assert part in out
    names = {path.name for path in (tmp_path / "repaired").iterdir()}
    weights, papers = {"repaired.safetensors", "model.onnx"}, {"report.html", "card.md", "card.xml", "card.fhir.json", "README.txt"}
    assert names == weights | papers | {"rule.json", "audit.json", "trace.csv", "run.json", "candidates"}
    assert set(load_file("repaired/repaired.safetensors")) == set(load_file("net.safetensors"))


WITH_DROPOUT = """
from torch import nn

class Net(nn.Sequential):
    def forward(self, x):
        return self[2](nn.functional.dropout(self[1](self[0](x)), 0.5, self.training))

def build():
    return Net(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))
"""


def test_bias_gda_as_published_on_the_command_line(table, tmp_path):
    found = {}
    (tmp_path / "dropout.py").write_text(WITH_DROPOUT)
    for mode in ("eval", "train"):
        changed = instead(TABLE, "--model", "dropout.py:build")
        assert table(*changed, *FAST, "--method", "bias-gda", "--set", f"bias-gda.mode={mode}", "--overwrite").code == 0
        run = json.loads((tmp_path / "repaired" / "run.json").read_text())
        assert run["settings"]["mode"] == mode
        found[mode] = (tmp_path / "repaired" / "trace.csv").read_text()
    assert found["eval"] != found["train"]
    code, _, err = table(*TABLE, *FAST, "--method", "bias-gda", "--set", "bias-gda.mode=trian", "--overwrite")
    assert code == 2
    assert "train" in err


def test_run_json_holds_what_is_needed_to_reproduce_the_run(table, tmp_path):
    assert table(*instead(TABLE, "--weights", "nested.pt"), *FAST, "--set", "repair.seed=3").code == 0
    run = json.loads((tmp_path / "repaired" / "run.json").read_text())
    run |= run["provenance"] | {"model": run["model"]}
    assert run["command"].startswith("equipoise debias local.csv --label sick --group sex")
    assert "repair.seed=3" in run["command"]
    assert run["seed"] == 3
    assert set(run["versions"]) == {"equipoise", "torch", "numpy", "pandas", "scipy", "python"}
    assert run["hashes"] == {name: sha256((tmp_path / name).read_bytes()) for name in ("local.csv", "nested.pt", "net.py")}
    assert run["model"]["load"] == f"{tmp_path / 'net.py'}:build"
    assert run["inputs"]["features"] == ["a", "b", "c"]
    assert run["settings"]["epochs"] == 3
    parts, patients = run["sets"], pd.read_csv("local.csv")["pid"].nunique()
    assert parts["repair"]["rows"] + parts["test"]["rows"] == hospital.ROWS
    assert parts["repair"]["patients"] + parts["test"]["patients"] == patients  # no patient is in both
    assert parts["test"]["rows"] == pytest.approx(0.3 * hospital.ROWS, abs=2)
    assert torch.load("repaired/repaired.pt", weights_only=True)["epoch"] == 7


def test_json_is_one_document_and_reproducible(table, tmp_path):
    code, out, err = table(*TABLE, *FAST, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert {"value", "low", "high"} <= found["before"]["eod"].keys()
    assert found["before"]["rows"] == found["after"]["rows"] == json.loads(Path("repaired/run.json").read_text())["sets"]["test"]["rows"]
    assert found["methods"]["bias-gda"]["repair_set"]["performance"] >= 0.6
    assert (found["out"], found["failures"]) == ("repaired", {})
    assert sorted(found["files"]) == sorted(path.name for path in (tmp_path / "repaired").iterdir())
    again = json.loads(table(*TABLE, *FAST, "--json", "--overwrite").out)
    for entry in (found, again):
        entry["methods"]["bias-gda"].pop("seconds")
    assert again == found


def test_an_unmet_goal_is_reported_and_is_not_an_error(table):
    limits = ["--set", "goal.min_performance=0.999", "--max-gap", 0.05]
    code, _, _ = table(
        *TABLE,
        "--method",
        "bias-gda",
        "--set",
        "report.onnx=false",
        "--set",
        "repair.draws=20",
        *limits,
        "--set",
        "bias-gda.schedule=paper",
        "--set",
        "bias-gda.epochs=1",
    )
    assert code == 0
    assert json.loads(Path("repaired/run.json").read_text())["met"] is False


def test_images_with_masks_and_thumbnails(run, tmp_path):
    hospital.images(tmp_path)
    code, out, err = run(
        *IMAGES, "--method", "pruning", "--set", "pruning.steps=4", "--set", "pruning.stop_below=0", "--measure", "spd",
        "--set", "goal.min_performance=0.6", "--set", "repair.draws=20", "--set", "report.onnx=false",
        "--set", "report.thumbnails=true", "--json",
    )  # fmt: skip
    assert (code, err) == (0, "")
    assert json.loads(out)["chosen"] == "pruning"
    run_json = json.loads((tmp_path / "repaired" / "run.json").read_text())
    how = {"resize": [hospital.SIDE] * 2, "crop": None, "interpolation": "bilinear", "channels": 1, "mean": [0.5], "std": [0.25]}
    assert run_json["inputs"]["images"] == how | {"preset": None, "centre": None, "transform": None}
    assert "list of images" in run_json["provenance"]["hashes"]
    assert any(key.endswith(".unit_mask") for key in load_file("repaired/repaired.safetensors"))


def test_pruning_whole_channels_keeps_the_keys_of_the_weights(run, tmp_path):
    hospital.images(tmp_path)
    settings = ["--set", "pruning.granularity=channel", "--set", "pruning.units=1", "--set", "pruning.stop_below=0"]
    assert (
        run(
            *IMAGES,
            "--method",
            "pruning",
            *settings,
            "--set",
            "repair.draws=20",
            "--set",
            "report.onnx=false",
            "--measure",
            "spd",
            "--set",
            "goal.min_performance=0.5",
        ).code
        == 0
    )
    assert set(load_file("repaired/repaired.safetensors")) == set(load_file("cnn.safetensors"))


def test_a_repaired_program_is_saved_as_a_program(table, tmp_path):
    import warnings

    model = hospital.network("build")
    model.load_state_dict(load_file("net.safetensors"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(model, (torch.randn(4, 3),), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
        torch.export.save(program, "net.pt2")
    arguments = ["debias", "local.csv", *ROLES, "--set", "data.id=id", "--model", "net.pt2", "--out", "repaired"]
    assert table(*arguments, *FAST).code == 0
    assert {"repaired.pt2", "repaired.safetensors"} <= {path.name for path in (tmp_path / "repaired").iterdir()}
    assert (
        table(
            *arguments,
            "--set",
            "report.onnx=false",
            "--set",
            "repair.draws=20",
            "--set",
            "goal.min_performance=0.6",
            "--method",
            "bias-score",
            "--overwrite",
        ).code
        == 0
    )
    assert all(torch.equal(value, load_file("net.safetensors")[key]) for key, value in load_file("repaired/repaired.safetensors").items())
    frame, x, _ = hospital.patients()
    cohort = Cohort.from_arrays(torch.from_numpy(x), frame["sick"], frame["sex"], reference="M", patients=frame["pid"])
    candidate = debias(load_model("net.pt2"), cohort.hold_out(0.3)[0], method="bias-score", min_performance=0.6)
    assert candidate.chosen > 0
    found = json.loads(table("apply", "repaired", "local.csv", "--trust", "--json").out)
    assert [row["score"] for row in found["decisions"]] == pytest.approx(predict(candidate.model, cohort).score, abs=1e-6)
    code, _, err = table(*arguments, "--method", "pruning", "--overwrite")
    assert code == 2
    assert says(err, "pruning", "layers")


def test_a_method_that_trains_gets_rows_to_train_on(table):
    arguments = [
        *TABLE,
        "--set",
        "report.onnx=false",
        "--set",
        "repair.draws=20",
        "--method",
        "adversarial-training",
        "--set",
        "adversarial-training.epochs=2",
    ]
    code, _, err = table(*arguments)
    assert code == 2
    assert "data.train=train.csv" in err
    pd.read_csv("local.csv").assign(pid=lambda frame: frame["pid"] + 1000).to_csv("train.csv", index=False)  # other patients
    assert table(*arguments, "--set", "data.train=train.csv").code == 0


# a dry run


def test_a_dry_run_lists_patients_and_methods_and_writes_nothing(table, tmp_path):
    before = sorted(tmp_path.iterdir())
    code, out, err = table(*TABLE, "--method", "bias-gda", "--method", "reject-option", "--dry-run")
    assert (code, err) == (0, "")
    for part in ("repair", "test", "45 evaluations", "another decision rule", "nothing was done"):
        assert part in " ".join(out.split())
    assert sorted(tmp_path.iterdir()) == before


def test_a_dry_run_counts_the_probes(table):
    code, out, _ = table(*TABLE, "--method", "reject-option", "--dry-run", "--set", "repair.probe=true", "--set", "repair.draws=5")
    assert code == 0
    assert says(out, "probes")


def test_a_dry_run_as_json(table):
    found = json.loads(table(*TABLE, "--dry-run", "--json").out)
    assert sum(row["rows"] for row in found["sets"]) == hospital.ROWS
    assert found["seconds"] > 0


# gaps, probes


def test_gaps_are_next_to_their_p_values_and_the_best_rule(table, monkeypatch):
    monkeypatch.setenv("COLUMNS", "140")
    code, out, err = table(*TABLE, *FAST, "--method", "bias-gda", "--method", "reject-option", "--verbose")
    assert (code, err) == (0, "")
    document = json.loads(Path("repaired/audit.json").read_text())
    second = out[out.index("P-values") :]
    for name, found, limit in (
        ("original", document["before"], document["limit"]),
        ("reject-option", document["methods"]["reject-option"]["test_set"], document["methods"]["reject-option"]["limit"]),
    ):
        line = next(line for line in second.splitlines() if line.strip().startswith(name))
        eod = found["eod"]
        p = [p_value_words(eod[name]) for name in ("p_value", "p_adjusted")]
        assert line.split()[-4:] == [*p, *upper_bound_words(limit["below"]).split()]
        assert limit["below"] >= -1e-12  # the same scores
        assert limit["performance"] == pytest.approx(found["balanced_accuracy"]["value"] + limit["below"])
    assert "group-aware upper bound" in " ".join(out.split())
    assert "encoding" not in document


def test_probes_go_into_the_report_and_the_audit(table):
    code, _, err = table(*TABLE, *FAST, "--set", "repair.probe=true")
    assert (code, err) == (0, "")
    html = Path("repaired/report.html").read_text()
    assert 'section id="probes"' in html
    assert READ_IS_NOT_USED in html
    layers = json.loads(Path("repaired/audit.json").read_text())["encoding"]
    assert set(layers) == {"before", "after"}
    for rows in layers.values():
        assert rows[0]["layer"] == "inputs"
        assert rows[-1]["layer"] == "output"
        assert all(0 <= row["auroc"] <= 1 for row in rows)
