"""Saved bundles: complete or not written, old files kept, every failure recorded, and a README with code that runs."""

import errno
import importlib.util
import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from equipoise import audit, models
from equipoise.case.repair import RepairTask, try_methods
from equipoise.case.save import Saved, Serving, save_all, saved_model
from equipoise.case.schema import ServedInputs
from equipoise.comparison import Comparison, Provenance
from equipoise.data import Cohort
from equipoise.disk import sha256
from equipoise.errors import BadInput
from equipoise.methods import Candidate, Goal
from equipoise.models import Checkpoint, load_model, predict
from equipoise.models.export import HEADS_FILE
from equipoise.models.weights import read_checkpoint
from equipoise.report import ReportSpec
from support import hospital
from support.bundles import rule_in_file
from support.facts import facts, says
from support.goals import paper_goal

QUIET = ReportSpec(onnx=False)
LABEL = "sick"
PROVENANCE = Provenance(
    command="equipoise debias ...",
    model="net.py:build",
    when="2026-01-01T00:00:00+00:00",
    versions={"equipoise": "0"},
    hashes={"local.csv": "abc"},
    limits=["one row"],
)


def _cohort(x: np.ndarray, frame: pd.DataFrame) -> Cohort:
    return Cohort.from_arrays(torch.from_numpy(x), frame["sick"], frame["sex"], reference="M", patients=frame["pid"], attribute="sex")


@pytest.fixture(scope="module")
def tried(tmp_path_factory) -> tuple[Path, Comparison, Cohort]:
    """A hospital's folder, a comparison of two methods, and the test set."""
    folder = tmp_path_factory.mktemp("hospital")
    model = hospital.table(folder)
    frame, x, _ = hospital.patients()
    repair, test = _cohort(x, frame).hold_out(0.3)
    found = _tried(
        model,
        repair,
        test,
        {"bias-gda": {"schedule": "paper", "epochs": 3, "learning_rate": 0.02}, "reject-option": {}},
        paper_goal("eod", min_performance=0.6),
    )
    return folder, found, test


@pytest.fixture
def serving(tried) -> Serving:
    folder, _, test = tried
    came = read_checkpoint(folder / "nested.pt")
    return Serving(
        ServedInputs(group="sex", features=["a", "b", "c"]), saved_model(f"{folder / 'net.py'}:build", "logit"), test.inputs[:20], came
    )


def _tried(model, repair: Cohort, test: Cohort, methods: dict, goal: Goal) -> Comparison:
    return try_methods(
        RepairTask.of(model, [LABEL], [repair], [test]), methods, {LABEL: goal}, report=ReportSpec(title="Sick"), provenance=PROVENANCE
    )[LABEL]


def _saved(case: Comparison, folder: Path, serving: Serving, options: ReportSpec, **more: bool) -> Saved:
    return save_all({LABEL: case}, folder, {LABEL: serving}, options, **more)[LABEL]


def _contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


# Contents


def test_the_folder_is_complete(tried, serving, tmp_path):
    _, case, test = tried
    written = _saved(case, tmp_path / "out", serving, QUIET)
    out = tmp_path / "out"
    names = {
        "repaired.pt",
        "repaired.safetensors",
        "rule.json",
        "audit.json",
        "trace.csv",
        "report.html",
        "card.md",
        "card.xml",
        "card.fhir.json",
    }
    assert set(written.files) == {path.name for path in out.iterdir() if path.is_file()} == names | {"README.txt", "run.json"}
    assert written.failures == {}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert len({path.stat().st_mode for path in out.iterdir() if path.is_file()}) == 1  # all files have the same permissions

    assert rule_in_file(out / "rule.json") == case.result.candidate.rule
    document = json.loads((out / "audit.json").read_text())
    assert document["after"]["eod"] == document["methods"][case.result.name]["test_set"]["eod"]
    expected = audit(Candidate({"": case.original.candidate}, case.original.candidate.model), test)
    assert document["before"]["eod"]["value"] == expected["eod"].value
    assert document["before"]["eod"]["low"] == expected["eod"].low
    trace = pd.read_csv(out / "trace.csv")
    assert trace.groupby("method")["chosen"].sum().to_dict() == {"standard": 1, "bias-gda": 1, "reject-option": 1}

    run = json.loads((out / "run.json").read_text())
    run |= run["provenance"]
    assert (run["command"], run["hashes"], run["limits"], run["seed"]) == (PROVENANCE.command, {"local.csv": "abc"}, ["one row"], 0)
    assert run["sets"]["test"]["rows"] == len(test)
    assert sorted([*run["files"], "run.json"]) == sorted(written.files)
    assert all(sha256((written.folder / name).read_bytes()) == digest for name, digest in run["files"].items())
    assert "<script" in (out / "report.html").read_text()


def test_the_weights_are_those_of_the_chosen_network_under_their_original_keys(tried, serving, tmp_path):
    folder, case, test = tried
    _saved(case, tmp_path / "out", serving, QUIET)
    found = torch.load(tmp_path / "out" / "repaired.pt", weights_only=True)
    assert (found["epoch"], next(iter(found["state_dict"]))) == (7, "module.0.weight")
    again = load_model(f"{folder}/net.py:build", tmp_path / "out" / "repaired.pt")
    assert (predict(again, test).score == case.result.test.score).all()


def _lines(readme: str) -> str:
    """The indented lines, which are code for the reader to run."""
    return "\n".join(line[4:] for line in readme.splitlines() if line.startswith("    "))


@pytest.mark.parametrize("kind", ["nested torch file", "safetensors", "masks"])
def test_the_lines_in_the_readme_load_the_network_with_torch_alone(tried, serving, alone, tmp_path, kind):
    _, case, test = tried
    factory, model, inputs = "build", case.result.candidate.model, test.inputs
    if kind == "safetensors":
        serving = replace(serving, checkpoint=Checkpoint(model.state_dict()))
    if kind == "masks":
        (tmp_path / "images").mkdir()
        factory, model = "cnn", hospital.images(tmp_path / "images")
        frame, _, pixels = hospital.patients()
        x = ((pixels / 255 - 0.5) / 0.25).astype(np.float32)[:, None]
        repair, test = _cohort(x, frame).hold_out(0.3)
        goal = paper_goal("spd", min_performance=0.6)  # the last step switches everything off, and decides the same for all
        found = _tried(model, repair, test, {"pruning": {"steps": 4, "layers": ("0", "3"), "stop_below": 0.0}}, goal)
        case = found
        model, inputs = case.result.candidate.model, test.inputs
        assert case.result.units
        kept = Checkpoint(hospital.network("cnn").state_dict())
        serving = Serving(ServedInputs(group="sex", width=3), saved_model("net.py:cnn", "logit"), inputs[:5], kept)
    _saved(case, tmp_path / "out", serving, QUIET)
    (tmp_path / "out" / "net.py").write_text(hospital.CODE)
    torch.save(inputs, tmp_path / "out" / "x.pt")
    last = "import json, torch; print(json.dumps(model(torch.load('x.pt'))[:, 0].tolist()))"
    found = alone(tmp_path / "out", f"import net\nmodel = net.{factory}()\n{_lines((tmp_path / 'out' / 'README.txt').read_text())}\n{last}")
    with torch.no_grad():
        assert found == model(inputs)[:, 0].tolist()


def test_heads_are_recorded_and_the_readme_code_puts_them_around_the_network(tried, serving, tmp_path, monkeypatch):
    folder, case, test = tried
    model = load_model(f"{folder / 'net.py'}:build", folder / "nested.pt")
    frame, x, _ = hospital.patients()
    repair, _ = _cohort(x, frame).hold_out(0.3)
    found = _tried(model, repair, test, {"bias-score": {}}, paper_goal("eod", min_performance=0.6))
    out, headed = tmp_path / "out", found
    written = _saved(headed, out, serving, QUIET)
    assert HEADS_FILE in written.files
    run = json.loads((out / "run.json").read_text())
    assert (run["heads"]["file"], run["heads"]["kind"]) == (HEADS_FILE, "bias-score")
    readme = (out / "README.txt").read_text()
    assert "ORIGINAL NETWORK" in readme

    place: dict[str, object] = {"model": hospital.network("build")}
    monkeypatch.chdir(out)
    exec(_lines(readme), place)
    with torch.no_grad():
        score = torch.sigmoid(place["model"](test.inputs)[:, 0].double()).numpy()  # type: ignore[operator]
    np.testing.assert_allclose(score, headed.result.test.score, atol=1e-7)
    assert np.abs(score - headed.original.test.score).max() > 0.01

    monkeypatch.chdir(tmp_path)
    again = _saved(case, out, serving, QUIET, overwrite=True)  # a repair without heads leaves none behind
    assert HEADS_FILE not in again.files
    assert not (out / HEADS_FILE).exists()
    assert json.loads((out / "run.json").read_text())["heads"] is None


def test_the_onnx_file_and_its_agreement_are_recorded(tried, serving, tmp_path):
    pytest.importorskip("onnxscript")
    _, case, _ = tried
    written = _saved(case, tmp_path / "out", serving, ReportSpec())
    assert written.onnx.max_difference <= 1e-5
    assert json.loads((tmp_path / "out" / "run.json").read_text())["onnx"]["max_difference"] == written.onnx.max_difference
    assert says((tmp_path / "out" / "README.txt").read_text(), "model.onnx", "torch")


def test_every_candidate_that_can_be_chosen_has_the_onnx_file_of_its_network(tried, serving, tmp_path, monkeypatch):
    onnxruntime, exported = pytest.importorskip("onnxruntime"), list[Path]()
    pytest.importorskip("onnxscript")
    _, case, test = tried
    written_by = models.to_onnx
    monkeypatch.setattr("equipoise.models.to_onnx", lambda *given, **how: exported.append(given[2]) or written_by(*given, **how))
    _saved(case, tmp_path / "out", serving, ReportSpec())
    index = json.loads((tmp_path / "out" / "candidates" / "index.json").read_text())
    assert set(index) == {"original", "bias-gda", "reject-option"}
    for name, place in index.items():
        folder = tmp_path / "out" / "candidates" / place
        assert json.loads((folder / "run.json").read_text())["failures"] == {}
        session = onnxruntime.InferenceSession(str(folder / "model.onnx"), providers=["CPUExecutionProvider"])
        (logits,) = session.run(None, {session.get_inputs()[0].name: test.inputs.numpy()})
        scored = case.choose(name).result.test.score
        assert np.allclose(1 / (1 + np.exp(-logits.astype(np.float64).ravel())), scored, atol=1e-5)
    assert len(exported) == 2  # the rule is for the network of the original


# Failures


@pytest.mark.parametrize(
    ("broken", "what"), [("to_onnx", "model.onnx"), ("page", "report.html"), ("card", "card.md and card.xml"), ("extra", "model.onnx")]
)
def test_failures_are_recorded_and_all_other_files_written(tried, serving, tmp_path, monkeypatch, broken, what):
    def fails(*_: object, **__: object) -> None:
        raise ValueError("no such operator: bessel")

    if broken == "extra":
        real = importlib.util.find_spec
        monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name.startswith("onnx") else real(name, *rest))
    else:
        place = {
            "to_onnx": "equipoise.models.to_onnx",
            "page": "equipoise.report.repair_document",
            "card": "equipoise.report.cards",
        }
        monkeypatch.setattr(place[broken], fails)
    options = ReportSpec(onnx=what == "model.onnx")
    written = _saved(replace(tried[1], failures={"pruning": "no layers"}), tmp_path / "out", serving, options)
    assert list(written.failures) == ["pruning", what]
    expected = "pip install 'equipoise[onnx]'" if broken == "extra" else "ValueError: no such operator: bessel"
    assert expected in written.failures[what]
    assert json.loads((tmp_path / "out" / "run.json").read_text())["failures"] == written.failures
    assert expected in (tmp_path / "out" / "README.txt").read_text()
    assert {"repaired.pt", "rule.json", "audit.json", "run.json"} <= set(_contents(tmp_path / "out"))


def test_only_a_threshold_can_be_part_of_the_onnx_network(tried, serving, tmp_path, monkeypatch):
    _, case, _ = tried
    monkeypatch.setattr("equipoise.models.to_onnx", lambda *_, **__: None)
    grouped = replace(case, chosen=1)
    written = _saved(grouped, tmp_path / "out", serving, ReportSpec(onnx_rule=True))
    assert "rule.json" in written.failures["the rule in model.onnx"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES])
@pytest.mark.parametrize("existing", [False, True])
def test_a_full_disk_leaves_the_old_files_and_nothing_else(tried, serving, tmp_path, monkeypatch, existing, number):
    out = tmp_path / "out"
    if existing:
        _saved(tried[1], out, serving, QUIET)
    before = _contents(out) if existing else {}
    original = Path.write_text

    def full(self: Path, *arguments: object, **options: object) -> int:
        if self.name == "README.txt":
            raise OSError(number, os.strerror(number))
        return original(self, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(BadInput, match=facts(out / "README.txt", os.strerror(number))) as caught:
        _saved(tried[1], out, serving, QUIET, overwrite=True)
    assert ("space" in str(caught.value).replace(os.strerror(number), "")) == (number == errno.ENOSPC)  # the remedy is in the message
    assert (_contents(out) if out.exists() else {}) == before
    assert [path.name for path in tmp_path.iterdir()] == (["out"] if existing else [])


def test_safetensors_hold_the_same_weights_as_the_torch_file(tried, serving, tmp_path):
    _saved(tried[1], tmp_path / "out", serving, QUIET)
    plain = load_file(tmp_path / "out" / "repaired.safetensors")
    nested = torch.load(tmp_path / "out" / "repaired.pt", weights_only=True)["state_dict"]
    assert plain.keys() == nested.keys()
    assert all(torch.equal(plain[key], nested[key]) for key in plain)
