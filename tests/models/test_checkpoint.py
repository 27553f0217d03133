"""Networks from outside: built by the user's factory, filled from files that cannot run code, every misfit named."""

import pickle
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from equipoise.errors import BadInput
from equipoise.models.checkpoint import build, load_model, load_weights, read_checkpoint
from equipoise.models.vision import backbone

CODE = """
from torch import nn

def network():
    return nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))

class Own(nn.Module):
    def __init__(self, width=3):
        super().__init__()
        self.layer = nn.Linear(2, width)

ready = nn.Linear(2, 1)
number = 7
def needs(width, *, depth): return nn.Linear(width, depth)
def raises(): raise KeyError("no GPU")
def wrong(): return [1, 2]
"""


@pytest.fixture
def code(tmp_path: Path) -> Path:
    path = tmp_path / "net.py"
    path.write_text(CODE)
    return path


def _network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))


def _same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> bool:
    return found.keys() == expected.keys() and all(torch.equal(found[k], expected[k]) for k in expected)


def test_a_factory_in_a_file(code: Path):
    assert [type(m).__name__ for m in build(f"{code}:network")] == ["Linear", "ReLU", "Linear"]
    assert build(f"{code}:Own").layer.out_features == 3
    assert build(f"{code}:ready").in_features == 2


def test_a_factory_in_a_package():
    assert isinstance(build("torch.nn:Identity"), nn.Identity)


def test_a_file_may_import_what_lies_beside_it(tmp_path: Path):
    (tmp_path / "beside_me.py").write_text("from torch import nn\nlayer = nn.Linear(2, 1)\n")
    (tmp_path / "net.py").write_text("def network():\n    from beside_me import layer\n    return layer\n")
    before = list(sys.path)
    assert isinstance(build(f"{tmp_path / 'net.py'}:network"), nn.Linear)
    assert sys.path == before


def test_a_module_in_the_current_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "in_this_folder.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])  # as for an installed command
    assert isinstance(build("in_this_folder:network"), nn.Sequential)


@pytest.mark.parametrize(
    ("factory", "expected"),
    [
        ("{code}", "named as file.py:factory or package.module:factory"),
        ("{code}:", "named as file.py:factory"),
        ("{code}:netwrk", "defines no 'netwrk'. Did you mean 'network'?"),
        ("{code}:number", "is of type int. Name a function or class"),
        ("{code}:needs", "needs the arguments width, depth"),
        ("{code}:raises", "raised KeyError: 'no GPU'"),
        ("{code}:wrong", "returned an object of type list. Return a torch.nn.Module"),
        ("{code}x.py:network", "no such file"),
        ("no.such.package:network", "cannot import no.such.package: ModuleNotFoundError"),
    ],
)
def test_a_bad_factory_says_what_is_wrong_with_it(code: Path, factory: str, expected: str):
    with pytest.raises(BadInput) as caught:
        build(factory.format(code=code))
    assert expected in str(caught.value)


def test_a_file_that_raises_is_named(tmp_path: Path):
    (tmp_path / "broken.py").write_text("1 / 0")
    with pytest.raises(BadInput, match=r"broken\.py raised ZeroDivisionError when it was run"):
        build(f"{tmp_path / 'broken.py'}:network")


def test_weights_survive_a_safetensors_file(tmp_path: Path, code: Path):
    expected = _network().state_dict()
    save_file(expected, tmp_path / "w.safetensors")
    model = load_model(f"{code}:network", tmp_path / "w.safetensors")
    assert _same(model.state_dict(), expected)
    assert not model.training


@pytest.mark.parametrize(
    "wrap",
    [
        lambda state: state,
        lambda state: {"state_dict": state, "epoch": 3},
        lambda state: {"model_state_dict": state, "loss": 0.5},
        lambda state: {f"module.{key}": value for key, value in state.items()},  # from nn.DataParallel
    ],
)
def test_weights_survive_a_torch_file(tmp_path: Path, code: Path, wrap):
    expected = _network().state_dict()
    torch.save(wrap(expected), tmp_path / "w.pt")
    assert _same(load_model(f"{code}:network", tmp_path / "w.pt").state_dict(), expected)


class Malicious:
    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self):
        return (Path.touch, (self.trace,))


@pytest.mark.parametrize("save", [torch.save, lambda value, path: path.write_bytes(pickle.dumps(value))])
def test_a_pickle_that_runs_code_is_refused_and_not_run(tmp_path: Path, save):
    trace = tmp_path / "trace"
    save({"weight": Malicious(trace)}, tmp_path / "w.pt")
    with pytest.raises(BadInput, match=r"w\.pt holds more than weights and could run code.*refused"):
        load_weights(tmp_path / "w.pt")
    assert not trace.exists()
    pickle.loads(pickle.dumps(Malicious(trace)))  # the same bytes, loaded carelessly, do run
    assert trace.exists()


def test_a_whole_pickled_network_is_refused_with_what_to_save_instead(tmp_path: Path):
    torch.save(_network(), tmp_path / "w.pt")
    with pytest.raises(BadInput, match=r"Save model\.state_dict\(\) alone"):
        load_weights(tmp_path / "w.pt")


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("w.pt", b"hello", "not a readable torch file"),
        ("w.pt", b"\x00\x01\x02" * 20, "not a readable torch file"),
        ("w.pt", b"", "not a readable torch file"),
        ("w.pt", b"PK\x03\x04 not a zip", "not a readable torch file"),
        ("w.safetensors", b"hello", "not a readable safetensors file"),
    ],
)
def test_a_file_that_holds_no_weights_is_named(tmp_path: Path, name: str, content: bytes, expected: str):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadInput, match=f"{name} is {expected}"):
        load_weights(tmp_path / name)


@pytest.mark.parametrize(
    ("value", "expected"), [([1, 2], "but a list"), ({"epoch": 3, "loss": 0.1}, "but the keys epoch, loss"), ({}, "holds no state dict")]
)
def test_plain_data_that_is_no_state_dict_is_named(tmp_path: Path, value, expected: str):
    torch.save(value, tmp_path / "w.pt")
    with pytest.raises(BadInput, match=expected):
        load_weights(tmp_path / "w.pt")


def test_a_missing_weights_file_is_named(tmp_path: Path):
    with pytest.raises(BadInput, match=r"no such file: .*w\.pt"):
        load_weights(tmp_path / "w.pt")


def test_every_misfit_of_weights_and_network_is_listed(tmp_path: Path, code: Path):
    state = _network().state_dict()
    del state["0.bias"]
    save_file(state | {"head.weight": torch.zeros(1), "2.weight": torch.zeros(1, 9)}, tmp_path / "w.safetensors")
    with pytest.raises(BadInput) as caught:
        load_model(f"{code}:network", tmp_path / "w.safetensors")
    text = str(caught.value)
    assert text.startswith(f"3 problems in {tmp_path / 'w.safetensors'}:")
    assert "1 weights of the network are not in the file: 0.bias." in text
    assert "1 weights in the file fit nothing in the network: head.weight." in text
    assert "another shape than the network's: 2.weight (1, 9), not (1, 3)." in text


def test_a_backbone_by_its_name_has_the_channels_of_its_weights():
    state = backbone("squeezenet", channels=3).state_dict()
    assert build("squeezenet").features[0].in_channels == 1
    assert build("squeezenet", state).features[0].in_channels == 3
    assert build("squeezenet", {f"module.{key}": value for key, value in state.items()}).features[0].in_channels == 3


def test_where_weights_lay_in_a_file_is_remembered(tmp_path: Path):
    state = _network().state_dict()
    torch.save({"epoch": 3, "model_state_dict": state}, tmp_path / "net.pt")
    found = read_checkpoint(tmp_path / "net.pt")
    assert (found.under, found.whole["epoch"]) == ("model_state_dict", 3)
    assert _same(found.state, state)
    torch.save(state, tmp_path / "plain.pt")
    assert read_checkpoint(tmp_path / "plain.pt").under is None
    save_file(state, tmp_path / "net.safetensors")
    assert read_checkpoint(tmp_path / "net.safetensors").whole is None
