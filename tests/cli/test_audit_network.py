"""equipoise audit with a network and a data file."""

import hashlib
import json
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import save_file

from support.command import instead
from support.facts import says
from support.scores_file import scores_frame, write_csv

COLUMNS = 80  # of the terminal


NETWORK = """
from torch import nn

def network():
    return nn.Linear(2, 1)
"""
WITH_MODEL = ["--label", "y", "--group", "sex", "--reference", "M", "--set", "data.id=id", "--model", "net.py:network"]


@pytest.fixture
def network(run, tmp_path) -> torch.nn.Linear:
    """A network's code and weights, and a data file, in the current folder."""
    (tmp_path / "net.py").write_text(NETWORK)
    rng = np.random.default_rng(0)
    write_csv("data.csv", scores_frame().drop(columns=["pid", "race", "p"]).assign(x1=rng.normal(size=80), x2=rng.normal(size=80)))
    torch.manual_seed(0)  # some of its logits lie outside [0, 1]; those of another start may not
    model = torch.nn.Linear(2, 1)
    save_file(model.state_dict(), "w.safetensors")
    torch.save(model.state_dict(), "w.pt")
    return model


@pytest.mark.parametrize("weights", ["w.safetensors", "w.pt"])
def test_a_network_is_audited_on_unscaled_inputs(run, network, weights):
    code, out, err = run("audit", "data.csv", *WITH_MODEL, "--weights", weights, "--json")
    assert (code, err) == (0, "")
    frame = pd.read_csv("data.csv")
    with torch.no_grad():
        decided = torch.sigmoid(network(torch.tensor(frame[["x1", "x2"]].to_numpy(), dtype=torch.float32)))[:, 0].numpy() >= 0.5
    assert json.loads(out)["accuracy"]["value"] == pytest.approx((decided == frame["y"]).mean())


def test_output_of_the_network_itself_is_not_part_of_the_result(run, network):
    Path("net.py").write_text(
        NETWORK.replace("return nn.Linear(2, 1)", "return Loud(2, 1)")
        + "\n\nclass Loud(nn.Linear):\n    def forward(self, x):\n        print('rows:', len(x))\n        return super().forward(x)\n"
    )
    code, out, err = run("audit", "data.csv", *WITH_MODEL, "--weights", "w.pt", "--json")
    assert (code, json.loads(out)["rows"]) == (0, 80)
    assert "rows: 80" in err
    for more in (["--dry-run"], ["--set", "report.onnx=false"]):
        repair = run("debias", "data.csv", *WITH_MODEL, "--weights", "w.pt", "--method", "reject-option", "--out", "new", *more, "--json")
        assert repair.code == 0
        assert json.loads(repair.out)
        assert "rows: " in repair.err


def test_inputs_may_be_listed_in_the_networks_order(run, network):
    plain = json.loads(run("audit", "data.csv", *WITH_MODEL, "--weights", "w.pt", "--json").out)
    listed = json.loads(
        run("audit", "data.csv", *WITH_MODEL, "--weights", "w.pt", "--set", "data.features=x2", "--set", "data.features=x1", "--json").out
    )
    assert plain["auroc"]["value"] != listed["auroc"]["value"]


def test_the_output_type_may_be_given(run, network):
    logit, probability = (
        run("audit", "data.csv", *WITH_MODEL, "--weights", "w.pt", "--set", f"model.output={kind}", "--json")
        for kind in ("logit", "probability")
    )
    assert logit.code == 0
    assert probability.code == 2
    assert says(probability.err, "[0, 1]")


def test_an_exported_program_is_audited(run, network):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, of its export
        program = torch.export.export(network, (torch.randn(4, 2),), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
        torch.export.save(program, "net.pt2")
    arguments = [argument if argument != "net.py:network" else "net.pt2" for argument in WITH_MODEL]
    exported = run("audit", "data.csv", *arguments, "--json")
    assert exported.code == 0
    assert str(Path("net.pt2").absolute()) in exported.err  # it is code, and that it is run is shown
    assert hashlib.sha256(Path("net.pt2").read_bytes()).hexdigest() in exported.err
    plain = run("audit", "data.csv", *WITH_MODEL, "--weights", "w.pt", "--json")
    assert json.loads(exported.out)["auroc"] == json.loads(plain.out)["auroc"]


BAD_MODELS = {
    "no file": (["--model", "none.py:network"], ["no such file: none.py"]),
    "no such factory": (["--model", "net.py:netwrk"], ["net.py defines no 'netwrk'", "Did you mean 'network'?"]),
    "no weights file": (["--weights", "none.pt"], ["no such file: none.pt"]),
    "weights that do not fit": (["--weights", "other.pt"], ["other.pt", "weight (1, 5), not (1, 2)"]),
    "inputs that do not fit": (["--set", "data.features=x1"], ["shape (1,)", "the inputs that it was trained on"]),
    "input not there": (["--set", "data.features=x1", "--set", "data.features=x3"], ["data.csv: no feature column 'x3'"]),
    "input in words": (["--set", "data.features=x1", "--set", "data.features=sex"], ["data.csv: input column 'sex' holds no numbers"]),
    "input with a gap": (["--set", "data.features=x1", "--set", "data.features=hole"], ["'hole': 1 of 80 rows are empty or infinite"]),
    "unknown output": (["--set", "model.output=logits"], ["got logits", "Did you mean 'logit'?"]),
    "a score as well": (["--score", "x1"], ["either", "--score", "--model"]),
}


@pytest.mark.parametrize("case", BAD_MODELS)
def test_a_bad_network_gets_one_message(run, network, tmp_path, case):
    arguments, expected = BAD_MODELS[case]
    torch.save(torch.nn.Linear(5, 1).state_dict(), "other.pt")
    write_csv("data.csv", pd.read_csv("data.csv").assign(hole=[np.nan] + [0.0] * 79))
    features = (
        [] if any("data.features=" in str(word) for word in arguments) else ["--set", "data.features=x1", "--set", "data.features=x2"]
    )
    code, out, err = run("audit", "data.csv", *instead([*WITH_MODEL, *features], *arguments), "--out", "result.json")
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    for part in expected:
        assert part in err
    assert not (tmp_path / "result.json").exists()


def test_problems_of_inputs_and_of_columns_come_in_one_message(run, network):
    arguments = ["--label", "ill", "--group", "sex", "--model", "net.py:network", "--set", "data.features=sex", "--set", "data.features=x3"]
    code, _, err = run("audit", "data.csv", *arguments)
    assert code == 2
    assert says(err.splitlines()[0], "error", 3, "data.csv")
