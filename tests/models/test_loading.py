"""Networks by name: built by the user's factory, with weights from files that cannot run code; every mismatch is named."""

import hashlib
import importlib.util
import os
import py_compile
import subprocess
import sys
from pathlib import Path

import joblib
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression
from torch import nn

from equipoise.case.audit import load_classifier
from equipoise.case.case import Case
from equipoise.data import ImageFolder
from equipoise.errors import BadInput
from equipoise.models import OneOutput, backbone, code_of, load_model
from equipoise.models.loading import network_from
from support.factories import CODE
from support.facts import facts, suggests


def test_a_factory_in_a_file(code: Path):
    assert [type(m).__name__ for m in network_from(f"{code}:network")] == ["Linear", "ReLU", "Linear"]
    assert network_from(f"{code}:Own").layer.out_features == 3
    assert network_from(f"{code}:ready").in_features == 2


def test_a_factory_in_a_package():
    assert isinstance(network_from("torch.nn:Identity"), nn.Identity)


def test_a_file_may_import_from_its_own_folder(tmp_path: Path):
    (tmp_path / "beside_me.py").write_text("from torch import nn\nlayer = nn.Linear(2, 1)\n")
    (tmp_path / "net.py").write_text("def network():\n    from beside_me import layer\n    return layer\n")
    before = list(sys.path)
    assert isinstance(network_from(f"{tmp_path / 'net.py'}:network"), nn.Linear)
    assert sys.path == before


def test_a_module_in_the_current_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "in_this_folder.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])  # as for an installed command
    assert isinstance(network_from("in_this_folder:network"), nn.Sequential)


@pytest.mark.parametrize(
    ("factory", "expected"),
    [
        ("{code}", facts("file.py:factory", "package.module:factory")),
        ("{code}:", facts("file.py:factory")),
        ("{code}:netwrk", suggests("network")),
        ("{code}:number", facts("int")),
        ("{code}:needs", facts("width", "depth")),
        ("{code}:raises", facts("KeyError", "no GPU")),
        ("{code}:wrong", facts("list", "torch.nn.Module")),
        ("{code}x.py:network", facts("net.pyx.py")),
        ("{code}:stops", facts("SystemExit", 0)),
        ("no.such.package:network", facts("no.such.package")),
        ("torch.no_such_part:network", facts("torch.no_such_part")),
    ],
)
def test_an_unusable_factory_is_an_error_with_the_reason(code: Path, factory: str, expected: str):
    with pytest.raises(BadInput, match=expected):
        network_from(factory.format(code=code))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("x = 1\n1 / 0\n", ["ZeroDivisionError: division by zero", "line 2"]),
        ("x = 1\nimport sys\nsys.exit(0)\n", ["SystemExit: 0", "line 3", "__main__"]),
        ("def f(:\n", ["SyntaxError", "line 1"]),
        ("import json\njson.loads('{')\n", ["JSONDecodeError", "line 2"]),  # the line in their file, not in the library's
    ],
)
def test_a_file_that_raises_is_reported_with_its_line_and_without_blame(tmp_path: Path, content: str, expected: list[str]):
    (tmp_path / "broken.py").write_text(content)
    with pytest.raises(BadInput) as caught:
        network_from(f"{tmp_path / 'broken.py'}:network")
    text = str(caught.value)
    assert all(part in text for part in [*expected, "broken.py", f"python {tmp_path / 'broken.py'}"])
    assert "Mend" not in text
    assert "only" not in text


def test_a_keyboard_interrupt_in_the_users_code_is_not_replaced(code: Path):
    with pytest.raises(KeyboardInterrupt):
        network_from(f"{code}:interrupted")


def test_the_bytes_with_the_checksum_are_run_not_those_of_the_disk_or_of_a_cache(code: Path, tmp_path: Path):
    found = code_of(f"{code}:network")
    assert found is not None
    assert (found.path, found.sha256) == (code, hashlib.sha256(CODE.encode()).hexdigest())
    compiled = Path(importlib.util.cache_from_source(str(code)))
    py_compile.compile(str(code), doraise=True)
    assert compiled.exists()
    seconds = code.stat().st_mtime
    code.write_text(CODE.replace("nn.Linear(3, 1)", "nn.Linear(3, 9)"))  # of the same length and time: Python would take the compiled one
    os.utime(code, (seconds, seconds))
    assert network_from(f"{code}:network")[2].out_features == 9
    assert network_from(f"{code}:network", code=found)[2].out_features == 1


def test_finding_code_does_not_run_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    package = tmp_path / "found_package"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemError('it was run')")
    (package / "net.py").write_text("raise SystemError('it was run')")
    monkeypatch.chdir(tmp_path)
    found = code_of("found_package.net:build")
    assert found is not None
    assert found.path == package / "net.py"
    monkeypatch.setattr(sys, "path", ["", str(tmp_path), ".", *sys.path])
    with pytest.raises(BadInput, match=facts("found_package")):
        code_of("found_package.net:build", here=False)
    assert code_of("resnet-18") is None


def test_a_users_file_may_import_torchvision_whatever_the_builds(tmp_path: Path):
    """In a separate process, since torchvision may be imported already in this one."""
    (tmp_path / "net.py").write_text("import torchvision\n\ndef network():\n    return torchvision.models.squeezenet1_1(weights=None)\n")
    code = (
        f"from equipoise.models.loading import network_from\nprint(type(network_from({str(tmp_path / 'net.py')!r} + ':network')).__name__)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": ":".join(sys.path)})
    assert (ran.returncode, ran.stdout.strip()) == (0, "SqueezeNet"), ran.stderr


def test_a_backbone_has_the_channels_of_its_weights():
    state = backbone("squeezenet", channels=3).state_dict()
    assert network_from("squeezenet").features[0].in_channels == 1
    assert network_from("squeezenet", state).features[0].in_channels == 3
    assert network_from("squeezenet", {f"module.{key}": value for key, value in state.items()}).features[0].in_channels == 3


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("class Skipped(BaseException): pass\nraise Skipped('no GPU here')", "Skipped: no GPU here"),
        ("class Dumb(Exception):\n    def __str__(self): raise ValueError\nraise Dumb", "Dumb"),
        ("def __getattr__(name): raise KeyError(name)", "KeyError"),
        ("class Skipped(BaseException): pass\ndef network(): raise Skipped('no GPU here')", "Skipped: no GPU here"),
    ],
    ids=["no Exception", "an error without words", "a module that finds its names itself", "no Exception in the factory"],
)
def test_any_exception_of_the_users_code_becomes_a_one_line_error(tmp_path: Path, content: str, expected: str):
    (tmp_path / "odd_net.py").write_text(content)
    with pytest.raises(BadInput, match=expected) as caught:
        network_from(f"{tmp_path / 'odd_net.py'}:network")
    assert "odd_net.py" in str(caught.value)


def test_output_of_the_users_code_does_not_go_to_standard_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "loud.py").write_text(CODE + "print('loading')\ndef loud():\n    print('building')\n    return network()\n")
    network_from(f"{tmp_path / 'loud.py'}:loud")
    out, err = capsys.readouterr()
    assert out == ""  # where --json puts its result
    assert err == "loading\nbuilding\n"


def test_a_network_may_be_loaded_with_one_of_its_outputs(tmp_path: Path):
    (tmp_path / "net.py").write_text("from torch import nn\ndef build(): return nn.Linear(3, 2)\n")
    network = load_model(f"{tmp_path / 'net.py'}:build", output_name="1")
    assert isinstance(network, OneOutput)
    assert (network.which, network.training) == (1, False)


def test_a_backbone_for_a_file_needs_weights_and_images():
    with pytest.raises(BadInput, match=facts("weights=", "images=")):
        load_model("resnet-18", None, images=ImageFolder())


def test_an_estimator_in_a_file_is_read_with_the_columns_it_was_fitted_on(tmp_path: Path):
    path = tmp_path / "model.joblib"
    frame = pd.DataFrame({"age": [1.0, 2.0, 3.0, 4.0], "dose": [0.0, 1.0, 0.0, 1.0]})
    joblib.dump(LogisticRegression().fit(frame, [0, 1, 0, 1]), path)
    data, model = {"table": tmp_path / "rows.csv", "label": "sick", "group": "sex"}, {"load": str(path), "trust_pickle": True}
    _, reading, _, _ = load_classifier(Case(data=data, model=model))
    assert (reading.features, reading.raw) == (("age", "dose"), True)
