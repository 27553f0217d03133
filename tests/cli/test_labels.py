"""Several labels of one network on the command line: one audit per label, one repair, one folder per label for new patients."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from lxml import html
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional as F

import equipoise as eq
from equipoise.case import Bundle
from equipoise.cli import run
from equipoise.disk import folders
from support.facts import says
from support.published import debias

LABELS = ["Effusion", "Pleural thickening"]
SIGNS = ["height", "sign a", "sign b"]
CODE = """
from torch import nn

def build():
    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))

def wide():
    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 4))
"""

TAKEN = """
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.output = nn.Linear(3, 2)

    def forward(self, x):
        return self.output(x)
"""


def _network(outputs: int = 2) -> nn.Module:
    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, outputs))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a file of patients, a network of two outputs, and the same with four, of which two are the labels."""
    folder = tmp_path_factory.mktemp("labels")
    rng, n = np.random.default_rng(0), 2_400
    women = rng.random(n) < 0.5
    frame = pd.DataFrame({"pid": np.arange(n), "sex": np.where(women, "F", "M"), "height": rng.normal(17.6 - 1.3 * women, 0.7)})
    for label, sign, of_men, of_women in zip(LABELS, SIGNS[1:], (0.55, 0.25), (0.25, 0.5), strict=True):
        sick = rng.random(n) < np.where(women, of_women, of_men)
        frame[sign] = 1.4 * sick + rng.normal(size=n)
        frame[label] = np.where(rng.random(n) < 0.1, np.nan, sick)  # missing for some patients
    torch.manual_seed(0)
    net = _network()
    x, y = torch.tensor(frame[SIGNS].to_numpy()).float(), torch.tensor(frame[LABELS].to_numpy()).float()
    optimiser = torch.optim.Adam(net.parameters(), 0.02)
    for _ in range(150):
        loss = F.binary_cross_entropy_with_logits(net(x), y.nan_to_num(0), weight=(~y.isnan()).float())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    (folder / "net.py").write_text(CODE)
    save_file(net.state_dict(), folder / "net.safetensors")
    wide = {key: value.clone() for key, value in net.state_dict().items()}
    for key in ("2.weight", "2.bias"):  # the labels are its outputs 3 and 1
        wide[key] = torch.zeros(4, *wide[key].shape[1:])
        wide[key][[3, 1]] = net.state_dict()[key]
    save_file(wide, folder / "wide.safetensors")
    frame.to_csv(folder / "local.csv", index=False)
    return folder


def _options(place: Path, model: str = "build", weights: str = "net") -> list[str]:
    labels = [word for label in LABELS for word in ("--label", label)]
    network = ["--model", f"{place / 'net.py'}:{model}", "--weights", str(place / f"{weights}.safetensors")]
    return [str(place / "local.csv"), *labels, "--group", "sex", "--reference", "M", "--patient", "pid", *network]


def _cohort(place: Path) -> eq.Cohort:
    frame = pd.read_csv(place / "local.csv")
    return eq.Cohort.from_frame(frame, label=LABELS, group="sex", reference="M", patient="pid", scale=False, name="local.csv")


def test_the_audit_of_each_label_equals_that_of_python(place, capsys):
    assert run(["audit", *_options(place), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["labels"]
    net = _network()
    net.load_state_dict(load_file(place / "net.safetensors"))
    expected = eq.audit(net.eval(), _cohort(place))
    assert list(told) == LABELS
    for label in LABELS:
        assert told[label] == json.loads(json.dumps(expected[label].to_dict()))
    assert run(["audit", *_options(place)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(sum(line.strip().startswith(label.split()[0]) for line in lines) == 1 for label in LABELS)  # a row each
    assert run(["audit", *_options(place), "--verbose"]) == 0
    said = capsys.readouterr().out
    assert all(f"\n{label}\n" in said for label in LABELS)


def test_scores_of_several_labels_from_columns(place, tmp_path, capsys):
    frame = pd.read_csv(place / "local.csv")
    net = _network()
    net.load_state_dict(load_file(place / "net.safetensors"))
    scores = torch.sigmoid(net(torch.tensor(frame[SIGNS].to_numpy()).float())).detach().double().numpy()
    frame["p"], frame["q"] = scores.T
    frame.to_csv(tmp_path / "scored.csv", index=False)
    asked = ["audit", str(tmp_path / "scored.csv"), "--label", LABELS[0], "--label", LABELS[1], "--group", "sex", "--reference", "M"]
    assert run([*asked, "--score", "p", "--score", "q", "--patient", "pid", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["labels"]
    assert run(["audit", *_options(place), "--json"]) == 0
    expected = json.loads(capsys.readouterr().out)["labels"]
    for label in LABELS:
        assert told[label]["rows"] == expected[label]["rows"] < 2_400
        assert told[label]["eod"]["value"] == pytest.approx(expected[label]["eod"]["value"])
    assert run([*asked, "--score", "p"]) == 2
    assert says(capsys.readouterr().err, "2 --label", "1 --score")


def test_one_repair_for_all_labels_equals_that_of_python_and_serves_new_patients(place, tmp_path, capsys):
    out = tmp_path / "out"
    as_published = ["--method", "constrained", "--set", "constrained.schedule=paper", "--set", "goal.selection=paper"]
    assert run(["debias", *_options(place), *as_published, "--measure", "spd", "--out", str(out)]) == 0
    assert says(capsys.readouterr().out, *LABELS)

    repair, test = _cohort(place).hold_out(0.3, seed=0)
    net = _network()
    net.load_state_dict(load_file(place / "net.safetensors"))
    result = debias(net.eval(), repair, method="constrained", measure="spd")
    document = json.loads((out / "audit.json").read_text())
    assert document["folders"] == {"Effusion": "Effusion", "Pleural thickening": "Pleural-thickening"}
    for at, label in enumerate(LABELS):
        served = Bundle.load(out / document["folders"][label], trust=True)
        expected = torch.sigmoid(result.model(test.inputs)[:, at].detach().double())
        assert served.score(test.inputs) == pytest.approx(expected.numpy(), abs=1e-6)
        assert served.rule == result.labels[label].rule
        assert document["labels"][label] == json.loads((out / document["folders"][label] / "audit.json").read_text())
    assert says((out / "Effusion" / "report.html").read_text(), "2 labels", "Effusion, Pleural thickening")
    weights = [load_file(out / name / "repaired.safetensors") for name in document["folders"].values()]
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])  # one network
    assert run(["apply", str(out / "Effusion"), str(place / "local.csv"), "--trust", "--out", str(tmp_path / "decided.csv")]) == 0
    assert len(pd.read_csv(tmp_path / "decided.csv")) == 2_400
    capsys.readouterr()
    assert run(["apply", str(out), str(place / "local.csv"), "--trust", "--out", str(tmp_path / "all.csv")]) == 0
    both, one = (pd.read_csv(tmp_path / name) for name in ("all.csv", "decided.csv"))
    assert (both["Effusion decision"] == one["decision"]).all()
    assert "Pleural thickening decision" in both


def test_outputs_are_named_and_methods_compared(place, tmp_path, capsys):
    out = tmp_path / "out"
    which = ["--set", "model.outputs=Effusion=3", "--set", "model.outputs=Pleural thickening=1"]
    asked = [
        "debias",
        *_options(place, "wide", "wide"),
        "--method",
        "reject-option",
        "--method",
        "group-thresholds",
        "--measure",
        "spd",
        "--set",
        "repair.draws=50",
        "--set",
        "report.onnx=false",
    ]
    assert run([*asked, *which, "--out", str(out), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    for label in LABELS:
        methods = told["labels"][label]["methods"]
        assert list(methods) == ["reject-option", "group-thresholds"]
        assert "report.html" in told["files"][label]
        assert abs(methods["group-thresholds"]["test_set"]["spd"]["value"]) < abs(told["labels"][label]["before"]["spd"]["value"])
    wide = _network(4)
    wide.load_state_dict(load_file(place / "wide.safetensors"))
    x = torch.tensor(pd.read_csv(place / "local.csv")[SIGNS].to_numpy()).float()
    served = Bundle.load(out / "Effusion", trust=True)
    assert served.run.model.output_name == "3"
    assert says((out / "Effusion" / "README.txt").read_text(), "output", 3)
    assert served.score(x) == pytest.approx(torch.sigmoid(wide(x)[:, 3]).detach().double().numpy(), abs=1e-6)  # the original weights
    assert run([*asked, "--out", str(tmp_path / "other")]) == 2
    assert says(capsys.readouterr().err, "4 outputs")


def test_heads_of_each_label_are_in_its_folder(place, tmp_path, capsys):
    out = tmp_path / "out"
    asked = [
        "debias",
        *_options(place),
        "--method",
        "bias-score",
        "--measure",
        "spd",
        "--max-loss",
        "0.2",
        "--allow-worse",
        "--set",
        "goal.max_rise.fpr=1",
        "--set",
        "goal.max_rise.selection=1",
        "--set",
        "repair.draws=50",
        "--set",
        "report.onnx=false",
        "--out",
        str(out),
        "--json",
    ]
    assert run(asked) == 0
    told = json.loads(capsys.readouterr().out)
    x = torch.tensor(pd.read_csv(place / "local.csv")[SIGNS].to_numpy()).float()
    scores = []
    for label in LABELS:
        assert "heads.safetensors" in told["files"][label]
        before, after = (told["labels"][label][side]["spd"]["value"] for side in ("before", "after"))
        assert abs(after) < abs(before)
        scores.append(Bundle.load(out / told["folders"][label], trust=True).score(x))
    assert np.abs(scores[0] - scores[1]).max() > 0.1


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (["--method", "adversarial-finetune"], ["adversarial-finetune", "labels"]),
        (["--label", "Effusion"], ["--label", "Effusion"]),
        (["--set", "goals.Efusion.max_gap=0.1"], ["'Effusion'"]),
        (["--set", "goals.Effusion.max_gab=0.1"], ["max_gab", "'max_gap'"]),
        (["--set", "goals.Effusion.max_gap=small"], ["'small'"]),
        (["--set", "model.outputs=Effusion"], ["LABEL=OUTPUT", "'Effusion'"]),
        (["--set", "model.outputs=Efusion=0"], ["model.outputs", "'Efusion'", "Effusion"]),
    ],
)
def test_options_that_exclude_several_labels_are_reported_before_anything_runs(place, tmp_path, capsys, more, expected):
    assert run(["debias", *_options(place), *more, "--out", str(tmp_path / "out")]) == 2
    assert says(capsys.readouterr().err, *expected)
    assert not (tmp_path / "out").exists()


def test_the_outcome_of_each_label_is_on_the_page_and_no_name_is_markup(place, tmp_path, capsys):
    frame = pd.read_csv(place / "local.csv").rename(columns={"Effusion": "<b>Effusion</b>"})
    frame.to_csv(tmp_path / "local.csv", index=False)
    asked = [str(tmp_path / "local.csv"), *_options(place)[1:]]
    asked = ["<b>Effusion</b>" if word == "Effusion" else word for word in asked]
    out = tmp_path / "out"
    limits = ["--set", "goal.min_performance=0.99", "--max-gap", "0.05"]
    assert (
        run(["debias", *asked, "--method", "pruning", *limits, "--set", "repair.draws=50", "--set", "report.onnx=false", "--out", str(out)])
        == 0
    )
    page = (out / "report.html").read_text()
    found = json.loads((out / "audit.json").read_text())
    assert f'data-outcome="{found["outcome"]}"' in page
    for each in found["labels"].values():
        assert each["met"] is False
        assert f'class="text outcome-{each["outcome"]}"' in page
    assert "&lt;b&gt;Effusion&lt;/b&gt;" in page
    assert "<b>" not in page
    assert 'href="b-Effusion-b/report.html"' in page
    assert (out / "b-Effusion-b" / "report.html").is_file()


def test_a_network_whose_decisions_stay_is_not_said_to_have_changed_them(place, tmp_path, capsys):
    out = tmp_path / "out"
    nothing_to_do = [
        "--method",
        "constrained",
        "--max-gap",
        "1",
        "--set",
        "goal.selection=honest",
        "--set",
        "repair.draws=50",
        "--set",
        "report.onnx=false",
    ]
    assert run(["debias", *_options(place), *nothing_to_do, "--out", str(out)]) == 0
    assert json.loads((out / "audit.json").read_text())["outcome"] == "unchanged"
    [about] = html.parse(str(out / "report.html")).getroot().xpath("//p[@class='aside']")
    assert "none of its decisions" in about.text_content()


def test_folders_of_labels_are_unique():
    names = ["a b", "a/b", "A-B", "..", "x"]
    found = folders(Path("out"), names)
    assert len({place.name.lower() for place in found.values()}) == 5
    assert all(place.parent == Path("out") for place in found.values())


def test_an_error_for_classes_says_how_to_repair_them(tmp_path, capsys):
    path = tmp_path / "scores.csv"
    pd.DataFrame({"kind": list("abca"), "p": [0.3, 0.2, 0.7, 0.7], "sex": list("FMMF")}).to_csv(path, index=False)
    assert run(["audit", str(path), "--label", "kind", "--score", "p", "--group", "sex"]) == 2
    assert "classes=['a', 'b', 'c']" in capsys.readouterr().err


def test_a_network_without_a_settable_output_type_is_an_error_without_a_traceback(place, tmp_path, capsys):
    (tmp_path / "taken.py").write_text(TAKEN)
    asked = [*_options(place)[:-4], "--model", f"{tmp_path / 'taken.py'}:Net", "--set", "model.output=logit"]
    for command in (["audit", *asked], ["debias", *asked, "--out", str(tmp_path / "out")]):
        assert run(command) == 2
        assert "`output`" in capsys.readouterr().err


def test_auto_a_goal_per_label_and_cross_fitted_selection(place, tmp_path, capsys):
    out = tmp_path / "out"
    quick = ["--set", "auto.methods=pruning", "--set", "repair.draws=50", "--set", "report.onnx=false", "--set", "goal.selection=honest"]
    goals = [
        "--measure",
        "eod",
        "--set",
        "goal.min_performance=0.5",
        "--set",
        "goals.Effusion.measure=spd",
        "--set",
        "goals.Effusion.min_performance=0.6",
    ]
    assert run(["debias", *_options(place), "--method", "auto", *quick, *goals, "--out", str(out), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    goal = {label: told["labels"][label]["goal"] for label in LABELS}
    assert [goal[label]["measure"] for label in LABELS] == ["spd", "eod"]
    assert [goal[label]["min_performance"] for label in LABELS] == [0.6, 0.5]
    assert {goal[label]["selection"] for label in LABELS} == {"honest"}
    for label in LABELS:
        found = told["labels"][label]["methods"]["auto"]
        assert found["ran"] in ("standard", "pruning")
        trace = pd.read_csv(out / told["folders"][label] / "trace.csv").query("method == 'auto'")
        assert trace["gap_honest"].notna().any()


def test_a_dry_run_counts_every_label(place, tmp_path, capsys):
    asked = ["--method", "pruning", "--method", "group-thresholds", "--dry-run", "--out", str(tmp_path / "out"), "--json"]
    assert run(["debias", *_options(place), *asked]) == 0
    told = json.loads(capsys.readouterr().out)
    frame = pd.read_csv(place / "local.csv")
    for label in LABELS:
        rows = sum(each["rows"] for each in told["sets"] if each["label"].startswith(f"{label}: "))
        assert rows == frame[label].notna().sum()
    work = {each["method"]: each for each in told["methods"]}
    assert says(work["group-thresholds"]["what"], 2, "label")
    assert work["pruning"]["seconds"] > 0
    assert not (tmp_path / "out").exists()
