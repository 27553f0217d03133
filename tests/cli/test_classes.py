"""Classes of one label on the command line: audited and repaired by argmax, with bundles that decide new patients."""

import io
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file

import equipoise as eq
from support.command import instead, ran
from support.facts import says
from support.multilabel import CLASSES, classes_cohort, fitted, network
from support.published import debias

COLUMNS = [f"x{k}" for k in range(6)]
CODE = """
from torch import nn

def build():
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3))
"""


def _frame(cohort: eq.Cohort) -> pd.DataFrame:
    names = np.array(CLASSES, dtype=object)[cohort.targets.argmax(1)]
    return pd.DataFrame(np.asarray(cohort.inputs), columns=COLUMNS).assign(finding=names, sex=cohort.groups, pid=np.arange(len(cohort)))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a file of patients, new patients, and a network with one output per class."""
    folder = tmp_path_factory.mktemp("classes")
    (folder / "net.py").write_text(CODE)
    save_file(fitted(network(6, 3), classes_cohort(800, 1)).state_dict(), folder / "net.safetensors")
    _frame(classes_cohort(900, 2)).to_csv(folder / "local.csv", index=False)
    _frame(classes_cohort(60, 3)).drop(columns=["finding", "sex"]).to_csv(folder / "new.csv", index=False)
    return folder


def _options(place: Path) -> list[str]:
    classes = [word for name in CLASSES for word in ("--set", f"data.classes={name}")]
    model = ["--model", f"{place / 'net.py'}:build", "--weights", str(place / "net.safetensors")]
    return [str(place / "local.csv"), "--label", "finding", *classes, "--group", "sex", "--reference", "M", "--patient", "pid", *model]


def _cohort(place: Path) -> eq.Cohort:
    columns = {"label": "finding", "classes": CLASSES, "group": "sex", "reference": "M", "patient": "pid", "features": COLUMNS}
    return eq.Cohort.from_frame(pd.read_csv(place / "local.csv"), **columns, scale=False, name="local.csv")


@pytest.fixture(scope="module")
def repaired(place: Path) -> Path:
    quick = [
        "--method",
        "bias-gda",
        "--set",
        "bias-gda.schedule=paper",
        "--set",
        "bias-gda.epochs=3",
        "--set",
        "bias-gda.learning_rate=1e-3",
        "--set",
        "goal.selection=paper",
    ]
    found = ran("debias", *_options(place), *quick, "--set", "repair.draws=50", "--set", "report.onnx=false", "--out", place / "repaired")
    assert found.code == 0, found.err
    return place / "repaired"


def test_the_audit_of_each_class_equals_that_of_python(place: Path) -> None:
    told = json.loads(ran("audit", *_options(place), "--json").out)
    net = network(6, 3)
    net.load_state_dict(load_file(place / "net.safetensors"))
    expected = eq.audit(net.eval(), _cohort(place))
    assert (list(told["labels"]), told["kind"]) == (CLASSES, "classes")
    assert told["labels"] == json.loads(json.dumps(expected.to_dict()["labels"]))


def test_a_bundle_of_a_class_decides_by_argmax_of_the_repaired_network(repaired: Path, place: Path) -> None:
    tables = {name: json.loads(ran("apply", repaired / name, place / "new.csv", "--trust", "--json").out)["decisions"] for name in CLASSES}
    net = network(6, 3)
    net.load_state_dict(load_file(repaired / CLASSES[0] / "repaired.safetensors"))
    with torch.no_grad():
        winner = net.eval()(torch.tensor(pd.read_csv(place / "new.csv")[COLUMNS].to_numpy(np.float32))).argmax(1).tolist()
    for name, rows in tables.items():
        assert [row["class"] for row in rows] == [CLASSES[k] for k in winner]
        assert [row["decision"] for row in rows] == [int(CLASSES[k] == name) for k in winner]
        assert all((row["score"] >= 0.5) == bool(row["decision"]) for row in rows)


def test_the_overview_of_a_repair_says_classes(repaired: Path) -> None:
    for text in ((repaired / "report.html").read_text(), (repaired / "README.txt").read_text()):
        assert "3 classes" in text
        assert "all labels" not in text
        assert "3 labels" not in text


def test_apply_on_the_folder_above_the_classes_decides_each_of_them(repaired: Path, place: Path) -> None:
    found = ran("apply", repaired, place / "new.csv", "--trust")
    assert found.code == 0, found.err
    decided = pd.read_csv(io.StringIO(found.out))
    for name in CLASSES:
        alone = pd.read_csv(io.StringIO(ran("apply", repaired / name, place / "new.csv", "--trust").out))
        assert decided[f"{name} decision"].tolist() == alone["decision"].tolist()


def test_the_repair_equals_that_of_python(repaired: Path, place: Path) -> None:
    overview = json.loads((repaired / "audit.json").read_text())
    assert (list(overview["labels"]), overview["kind"]) == (CLASSES, "classes")
    assert all(json.loads((repaired / name / "run.json").read_text())["failures"] == {} for name in CLASSES)
    cohort = _cohort(place)
    repair, test = cohort.hold_out(0.3, seed=0)
    net = network(6, 3)
    net.load_state_dict(load_file(place / "net.safetensors"))
    result = debias(net.eval(), repair, method="bias-gda", epochs=3, learning_rate=1e-3)
    before, after = eq.audit(net, test), eq.audit(result, test)
    for name in CLASSES:
        told = overview["labels"][name]
        assert told["before"]["eod"]["value"] == before[name]["eod"].value
        assert told["after"]["eod"]["value"] == after[name]["eod"].value
        assert told["methods"]["bias-gda"]["repair_set"]["gap"] == result.labels[name].trace["gap"].iloc[result.labels[name].chosen]


@pytest.mark.parametrize(
    ("more", "facts"),
    [
        (["--method", "group-thresholds"], ["group-thresholds", "classes"]),
        (["--label", "sex"], ["classes", "label"]),
        (["--set", "data.positive=none"], ["classes", "positive"]),
        (["--set", "data.classes=none"], ["class", "none", "twice"]),
    ],
)
def test_options_that_exclude_classes_are_listed_in_one_message(place: Path, tmp_path: Path, more: list[str], facts: list[str]) -> None:
    found = ran("debias", *_options(place), *more, "--out", tmp_path / "out")
    assert found.code == 2
    assert all(fact in found.err for fact in facts)


def test_an_audit_of_classes_takes_no_threshold_and_needs_the_network(place: Path) -> None:
    found = ran("audit", *_options(place), "--threshold", 0.4)
    assert (found.code, "--threshold" in found.err) == (2, True)
    scores = ran(
        "audit",
        place / "local.csv",
        "--label",
        "finding",
        "--set",
        "data.classes=none",
        "--set",
        "data.classes=effusion",
        "--group",
        "sex",
        "--score",
        "x0",
    )
    assert (scores.code, "data.classes" in scores.err, "--model" in scores.err) == (2, True, True)


def test_one_class_is_too_few(place: Path, tmp_path: Path) -> None:
    given = instead(_options(place), "--set", "data.classes=none")
    found = ran("debias", *given, "--out", tmp_path / "out")
    assert (found.code, "classes" in found.err) == (2, True)


def test_the_page_of_several_links_to_the_page_of_each(place: Path, tmp_path: Path) -> None:
    page = tmp_path / "audit.html"
    assert ran("audit", *_options(place), "--report", page).code == 0
    overview = page.read_text()
    net = network(6, 3)
    net.load_state_dict(load_file(place / "net.safetensors"))
    audits = eq.audit(net.eval(), _cohort(place))
    assert "none" in audits.labels
    assert "other" not in audits.labels
    for name in CLASSES:
        assert f'href="audit-{name}.html"' in overview
        assert f"{100 * audits[name]['balanced_accuracy'].value:.1f}%" in overview
        assert name in (tmp_path / f"audit-{name}.html").read_text()
    assert " classes" in overview
    assert " labels" not in overview.partition('id="limits"')[0]
    again = audits.report(tmp_path / "again.html").read_text().replace("again-", "audit-")
    assert again.partition('<section id="labels">')[2].partition('id="limits"')[0] in overview  # all but the command and the time


def test_known_probabilities_of_the_classes_are_checked(place: Path, tmp_path):
    model = network(6, 3)
    model.load_state_dict(load_file(place / "net.safetensors"))
    frame = pd.read_csv(place / "local.csv")
    with torch.no_grad():
        known = model.eval()(torch.tensor(frame[COLUMNS].to_numpy(np.float32))).softmax(1).numpy()
    table = pd.DataFrame(known, columns=CLASSES).assign(pid=frame["pid"])
    table.to_csv(tmp_path / "known.csv", index=False)
    table.rename(columns=dict(zip(CLASSES, [CLASSES[1], CLASSES[0], CLASSES[2]], strict=True))).to_csv(tmp_path / "wrong.csv", index=False)
    roles = [*_options(place), "--set", "data.id=pid", *(word for name in CLASSES for word in ("--set", f"model.known={name}"))]
    for name in COLUMNS:
        roles += ["--set", f"data.features={name}"]
    found = ran("audit", *roles, "--set", f"model.check_scores={tmp_path / 'known.csv'}", "--json")
    assert found.code == 0, found.err
    assert [one["rows"] for one in json.loads(found.out)["checked_scores"]] == [900] * 3
    for command in (["audit"], ["debias", "--out", str(tmp_path / "repaired"), "--method", "bias-gda"]):
        wrong = ran(*command, *roles, "--set", f"model.check_scores={tmp_path / 'wrong.csv'}")
        assert wrong.code == 2
        assert says(wrong.err, CLASSES[0], CLASSES[1], "900")
    few = ran("audit", *roles[:-4], "--set", f"model.check_scores={tmp_path / 'known.csv'}", "--set", f"model.known={CLASSES[0]}")
    assert few.code == 2
    assert says(few.err, "model.known", "class")
