"""Exported programs: the same scores and repairs as the network they were made from, and an error if they cannot be used."""

import copy
import json
import pickle
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.data import Cohort
from equipoise.errors import BadInput, Untrusted
from equipoise.models import ExportedNetwork, load_heads, load_model, predict, save_weights, to_onnx
from equipoise.models.export import HEADS_FILE
from equipoise.models.programs import weights_of
from support.facts import facts
from support.hospital import network, patients, trained
from support.published import debias


def exported(path: Path, model: nn.Module, x: torch.Tensor, rows: object = torch.export.Dim.DYNAMIC) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.export.save(torch.export.export(model, (x[:4],), dynamic_shapes=({0: rows},)), path)
    return path


@pytest.fixture(scope="module")
def given(tmp_path_factory) -> tuple[Path, nn.Module, Cohort]:
    """A .pt2 file, the network it was made from, and a cohort."""
    frame, x, _ = patients()
    inputs = torch.from_numpy(x)
    model = trained("build", inputs, frame["sick"].to_numpy(), 60)
    path = exported(tmp_path_factory.mktemp("program") / "net.pt2", model, inputs)
    return path, model, Cohort.from_arrays(inputs, frame["sick"], frame["sex"], reference="M")


def test_scores_equal_the_networks_in_any_mode_and_after_a_copy(given):
    path, model, cohort = given
    program = load_model(str(path))
    assert isinstance(program, ExportedNetwork)
    expected = predict(model, cohort).score
    for other in (program, copy.deepcopy(program), program.train(), program.eval()):
        assert (predict(other, cohort).score == expected).all()


@pytest.mark.parametrize(
    ("method", "settings"), [("bias-gda", {"epochs": 3, "learning_rate": 0.01}), ("random", {"trials": 4}), ("reject-option", {})]
)
def test_methods_repair_a_program_as_they_repair_the_network(given, method, settings):
    path, model, cohort = given
    program = load_model(str(path))
    before = {key: value.clone() for key, value in weights_of(program).items()}
    ours, theirs = (debias(m, cohort, method=method, **settings) for m in (program, model))
    assert ours.trace.equals(theirs.trace)
    assert all(torch.equal(value, before[key]) for key, value in weights_of(program).items())


def test_a_repaired_program_is_saved_as_a_program(given, tmp_path):
    path, _, cohort = given
    repaired = debias(load_model(str(path)), cohort, method="bias-gda", epochs=3, learning_rate=0.05, min_performance=0.5).model
    assert save_weights(repaired, tmp_path)["files"] == ["repaired.safetensors", "repaired.pt2", HEADS_FILE]
    again = load_heads(load_model(str(tmp_path / "repaired.pt2")), tmp_path / HEADS_FILE)  # a program keeps its recalibration next to it
    assert (predict(again, cohort).score == predict(repaired, cohort).score).all()
    assert not (predict(again, cohort).score == predict(load_model(str(path)), cohort).score).all()


def test_a_program_object_is_audited_repaired_saved_and_served(given, tmp_path):
    path, model, cohort = given
    program = torch.export.load(path)
    before = {key: value.clone() for key, value in program.state_dict.items()}
    assert eq.audit(program, cohort)["eod"].value == eq.audit(model, cohort)["eod"].value
    repaired, theirs = (
        debias(each, cohort, method="bias-gda", epochs=3, learning_rate=0.05, min_performance=0.5) for each in (program, model)
    )
    assert repaired.trace.equals(theirs.trace)
    assert repaired.chosen > 0
    frame, x, _ = patients(seed=1)
    test = Cohort.from_arrays(torch.from_numpy(x), frame["sick"], frame["sex"], reference="M")
    folder = eq.compare({"original": program, "repaired": repaired}, test).save(tmp_path / "repaired", onnx=False)
    with pytest.raises(Untrusted, match="--trust"):
        eq.Bundle.load(folder)
    decided = eq.Bundle.load(folder, trust=True).decide(cohort)
    np.testing.assert_allclose(decided["score"], predict(repaired.model, cohort).score, atol=1e-6)
    assert all(torch.equal(value, before[key]) for key, value in program.state_dict.items())


def test_a_program_object_in_training_mode_is_refused():
    x = torch.randn(4, 1, 12, 12)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(network("cnn").train(), (x,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
    with pytest.raises(BadInput, match=facts("batch_norm", "model.eval")):
        eq.audit(program, Cohort.from_arrays(x, [0, 1, 0, 1], ["F", "M", "F", "M"]))


def test_a_program_is_exported_to_onnx(given, tmp_path):
    pytest.importorskip("onnxscript")
    path, _, cohort = given
    assert to_onnx(load_model(str(path)), cohort.inputs[:5], tmp_path / "model.onnx").max_difference <= 1e-5


def test_a_program_for_one_batch_size_or_in_training_mode_is_refused_with_the_remedy(tmp_path):
    x = torch.randn(4, 1, 12, 12)
    with pytest.raises(BadInput, match=facts(4, "dynamic_shapes")):
        load_model(str(exported(tmp_path / "fixed.pt2", network("cnn").eval(), x, None)))
    with pytest.raises(BadInput, match=facts("batch_norm", "model.eval")):
        load_model(str(exported(tmp_path / "training.pt2", network("cnn").train(), x)))


@pytest.mark.parametrize(("name", "expected"), [("none.pt2", r"none\.pt2"), ("text.pt2", r"text\.pt2")])
def test_a_file_that_is_no_program_is_refused(tmp_path, name, expected):
    (tmp_path / "text.pt2").write_text("hello")
    with pytest.raises(BadInput, match=expected):
        load_model(str(tmp_path / name))


def test_a_damaged_program_is_refused(given, tmp_path, capfd):
    path, *_ = given
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(tmp_path / "net.pt2", "w") as new:
        for name in old.namelist():
            new.writestr(name, b"{}" if name.endswith("model.json") else old.read(name))
    with pytest.raises(BadInput, match="torch"):
        load_model(str(tmp_path / "net.pt2"))
    assert "Traceback" not in capfd.readouterr().err  # torch logs one
    (tmp_path / "net.pt2").write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(BadInput, match=r"net\.pt2"):
        load_model(str(tmp_path / "net.pt2"))


class Boom:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return exec, ("raise SystemExit('code was run')",)


@pytest.mark.parametrize("name", ["weight_x.json", "../weights/weight_0", "WEIGHT_0", "version"])
def test_a_pickle_inside_is_refused_whatever_its_name(given, tmp_path, name):
    path, *_ = given
    torch.save(Boom(), tmp_path / "boom")
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(tmp_path / "net.pt2", "w") as new:
        for member in old.namelist():
            content = old.read(member)
            if member.endswith("weights_config.json"):
                plain = json.loads(content)
                next(iter(plain["config"].values())).update(use_pickle=True, path_name=name)
                content = json.dumps(plain).encode()
            new.writestr(member, content)
        new.writestr(next(m for m in old.namelist() if m.endswith("weight_0")).replace("weight_0", name), (tmp_path / "boom").read_bytes())
    with pytest.raises(BadInput, match="refused"):
        load_model(str(tmp_path / "net.pt2"))


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_second_member_of_the_same_name_is_refused(given, tmp_path):
    path, *_ = given
    torch.save(Boom(), tmp_path / "boom")
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(tmp_path / "net.pt2", "w") as new:
        for member in old.namelist():
            if "sample_inputs" in member:
                new.writestr(member, (tmp_path / "boom").read_bytes())
            new.writestr(member, old.read(member))
    with pytest.raises(BadInput, match="refused"):
        load_model(str(tmp_path / "net.pt2"))


@pytest.mark.parametrize("where", ["sample inputs", "weight", "constant", "library"])
def test_a_pickle_or_library_inside_is_refused_and_not_run(given, tmp_path, where):
    path, *_ = given
    torch.save(Boom(), tmp_path / "boom")
    bad = (tmp_path / "boom").read_bytes()
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(tmp_path / "net.pt2", "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if where == "sample inputs" and "sample_inputs" in name:
                content = bad
            if where == "weight" and name.endswith("weight_0"):
                content = bad
            if where == "weight" and name.endswith("weights_config.json"):
                plain = json.loads(content)
                for entry in plain["config"].values():
                    entry["use_pickle"] = entry["path_name"] == "weight_0"
                content = json.dumps(plain).encode()
            new.writestr(name, content)
        if where == "constant":
            new.writestr("net/data/constants/opaque_obj_0", pickle.dumps(Boom()))
        if where == "library":
            new.writestr("net/data/aotinductor/model/model.so", b"\x7fELF")
    with pytest.raises(BadInput, match="refused"):
        load_model(str(tmp_path / "net.pt2"))


def test_a_weights_file_next_to_a_program_is_refused(given):
    with pytest.raises(BadInput, match="weights"):
        load_model(str(given[0]), "net.pt")
