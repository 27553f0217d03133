"""Files of weights: accepted and refused content, and the errors for weights that do not fit the network."""

import argparse
import collections
import datetime as dt
import pickle
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import _weights_only_unpickler as unpickler
from torch import nn

from equipoise.errors import BadInput
from equipoise.models import load_model, load_weights
from equipoise.models.export import state_like
from equipoise.models.weights import ALLOWED_TYPES, read_checkpoint
from support.facts import facts, says


def _network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))


def _same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> bool:
    return found.keys() == expected.keys() and all(torch.equal(found[k], expected[k]) for k in expected)


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
    with pytest.raises(BadInput, match=facts("w.pt", "refused")):
        load_weights(tmp_path / "w.pt")
    assert not trace.exists()
    pickle.loads(pickle.dumps(Malicious(trace)))  # the same bytes, loaded carelessly, do run
    assert trace.exists()


BESIDE = {
    "float": np.float64(0.875),
    "float32": np.float32(0.5),
    "int": np.int64(-7),
    "bool": np.bool_(True),
    "complex": np.complex128(1 - 2j),
    "text": np.str_("F\u00e9lix"),
    "big endian": np.array([1.5], ">f8")[0],
    "dtype": np.dtype("float32"),
    "array": np.arange(6, dtype=np.int32).reshape(2, 3),
    "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "options": argparse.Namespace(lr=0.1, seeds=[np.int64(1)]),
    "path": Path("/data/x.csv"),
    "time": dt.datetime(2026, 11, 15, tzinfo=dt.UTC),
    "length": dt.timedelta(seconds=3),
    "ordered": collections.OrderedDict(a=(np.float64(1), None)),
    "random": np.random.RandomState(0).get_state(),
}


@pytest.mark.parametrize("what", BESIDE)
def test_plain_values_next_to_the_weights_are_read(tmp_path: Path, what: str):
    state, value = _network().state_dict(), BESIDE[what]
    torch.save({"state_dict": state, what: value}, tmp_path / "w.pt")
    before = torch.serialization.get_safe_globals()
    found = read_checkpoint(tmp_path / "w.pt")
    assert _same(found.state, state)
    assert set(torch.serialization.get_safe_globals()) == set(before)
    torch.save(found.whole, tmp_path / "again.pt")  # as next to repaired weights
    again = torch.load(tmp_path / "again.pt", weights_only=False)[what]
    assert pickle.dumps(again) == pickle.dumps(value) or repr(again) == repr(value)
    assert type(again) is type(value)


def test_names_of_an_older_numpy_are_read(tmp_path: Path):
    content = pickle.dumps({"weight": 1, "auc": np.float64(0.5), "rows": np.arange(3)}, protocol=2).replace(b"numpy._core", b"numpy.core")
    with torch.serialization.safe_globals(ALLOWED_TYPES):
        found = unpickler.load(BytesIO(content))
    assert (found["auc"], found["rows"].tolist()) == (0.5, [0, 1, 2])


@pytest.mark.parametrize("flags", [0, 63])
def test_a_numpy_array_whose_bytes_would_be_objects_is_refused(tmp_path: Path, flags: int):
    """NumPy's own reader of dtypes takes the flags from the file: without those of objects, any bytes become pointers."""
    kind = (np.dtype, ("O8", False, True), (3, "|", None, None, None, -1, -1, flags))
    with pytest.raises((TypeError, pickle.UnpicklingError)), torch.serialization.safe_globals(ALLOWED_TYPES):
        unpickler.load(BytesIO(pickle.dumps({"array": _Reduced(kind)}, protocol=2)))


class _Reduced:
    def __init__(self, how: tuple[object, ...]) -> None:
        self.how = how

    def __reduce__(self):
        return self.how


class _Own:
    pass


@pytest.mark.parametrize(
    ("beside", "kind"),
    [
        (_Own(), "_Own"),
        ([1, {"deep": _Own()}], "_Own"),
        (np.array([{}], dtype=object), ""),
        (np.zeros(2, dtype=[("a", "f8")]), ""),
        (np.datetime64("2026-11-15"), ""),
        (np.float16, "numpy.float16"),
        (len, "builtins.len"),
        (torch.optim.Adam, "torch.optim.adam.Adam"),
        (nn.Linear(2, 1), "torch.nn.modules.linear.Linear"),
        (collections.defaultdict(list, a=[1]), "collections.defaultdict"),
    ],
)
def test_refused_types_next_to_the_weights_are_named(tmp_path: Path, beside: object, kind: str):
    torch.save({"state_dict": _network().state_dict(), "best": beside}, tmp_path / "w.pt")
    with pytest.raises(BadInput, match="refused") as caught:
        load_weights(tmp_path / "w.pt")
    assert kind in str(caught.value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (lambda: torch.eye(3).to_sparse(), "sparse"),
        (lambda: torch.eye(3).to_sparse_csr(), "sparse"),
        (lambda: torch.empty(3, 2, device="meta"), "meta"),
        (lambda: torch.quantize_per_tensor(torch.ones(3, 2), 0.1, 0, torch.qint8), "quantised"),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")  # torch's, about its own support of these
def test_weights_of_another_layout_are_named(tmp_path: Path, code: Path, value, expected: str):
    torch.save({**_network().state_dict(), "0.weight": value()}, tmp_path / "w.pt")
    with pytest.raises(BadInput, match=facts(1, "0.weight", expected)):
        load_model(f"{code}:network", tmp_path / "w.pt")


def test_complex_weights_are_not_made_real_silently(tmp_path: Path, code: Path):
    torch.save({**_network().state_dict(), "0.weight": torch.ones(3, 2, dtype=torch.complex64)}, tmp_path / "w.pt")
    with pytest.raises(BadInput, match=facts("0.weight")):
        load_model(f"{code}:network", tmp_path / "w.pt")


def test_keys_that_are_not_text_are_refused(tmp_path: Path):
    torch.save({0: torch.zeros(2)}, tmp_path / "w.pt")
    with pytest.raises(BadInput, match=facts("w.pt", 0)):
        load_weights(tmp_path / "w.pt")


def test_a_whole_pickled_network_is_refused_with_advice(tmp_path: Path):
    torch.save(_network(), tmp_path / "w.pt")
    with pytest.raises(BadInput, match=facts("model.state_dict()")):
        load_weights(tmp_path / "w.pt")


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("w.pt", b"hello", "torch"),
        ("w.pt", b"\x00\x01\x02" * 20, "torch"),
        ("w.pt", b"", "torch"),
        ("w.pt", b"PK\x03\x04 not a zip", "torch"),
        ("w.safetensors", b"hello", "safetensors"),
    ],
)
def test_a_file_that_holds_no_weights_is_named(tmp_path: Path, name: str, content: bytes, expected: str):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadInput, match=facts(name, expected)):
        load_weights(tmp_path / name)


@pytest.mark.parametrize(("value", "expected"), [([1, 2], "list"), ({"epoch": 3, "loss": 0.1}, "epoch, loss"), ({}, "state dict")])
def test_plain_data_without_a_state_dict_is_described(tmp_path: Path, value, expected: str):
    torch.save(value, tmp_path / "w.pt")
    with pytest.raises(BadInput, match=expected):
        load_weights(tmp_path / "w.pt")


def test_an_archive_that_python_cannot_open_is_refused_although_torch_reads_it(tmp_path: Path):
    path = tmp_path / "net.pt"
    torch.save({"weight": torch.ones(1, 2)}, path)
    content = bytearray(path.read_bytes())
    at = content.rindex(b"PK\x06\x07")  # says where the list of files is, and on how many disks the archive lies
    content[at + 16 : at + 20] = (7).to_bytes(4, "little")
    path.write_bytes(bytes(content))
    with pytest.raises(BadInput, match="damaged"):
        load_weights(path)


def test_a_missing_weights_file_is_named(tmp_path: Path):
    with pytest.raises(BadInput, match=facts("w.pt")):
        load_weights(tmp_path / "w.pt")


def test_every_misfit_of_weights_and_network_is_listed(tmp_path: Path, code: Path):
    state = _network().state_dict()
    del state["0.bias"]
    save_file(state | {"head.weight": torch.zeros(1), "2.weight": torch.zeros(1, 9)}, tmp_path / "w.safetensors")
    with pytest.raises(BadInput) as caught:
        load_model(f"{code}:network", tmp_path / "w.safetensors")
    assert says(caught.value, 3, tmp_path / "w.safetensors")
    missing, spare, shape = caught.value.problems
    assert says(missing, 1, "0.bias")
    assert says(spare, 1, "head.weight")
    assert says(shape, "2.weight", "(1, 9)", "(1, 3)")


def test_the_place_of_the_weights_in_a_file_is_kept(tmp_path: Path):
    state = _network().state_dict()
    torch.save({"epoch": 3, "model_state_dict": state}, tmp_path / "net.pt")
    found = read_checkpoint(tmp_path / "net.pt")
    assert (found.under, found.whole["epoch"]) == ("model_state_dict", 3)
    assert _same(found.state, state)
    torch.save(state, tmp_path / "plain.pt")
    assert read_checkpoint(tmp_path / "plain.pt").under is None
    save_file(state, tmp_path / "net.safetensors")
    assert read_checkpoint(tmp_path / "net.safetensors").whole is None


@pytest.mark.parametrize("prefix", ["_orig_mod.", "module._orig_mod.", "model.", "model._orig_mod."])
def test_prefixes_of_compilers_and_training_libraries_are_removed(tmp_path: Path, code: Path, prefix: str):
    saved = {f"{prefix}{key}": value for key, value in _network().state_dict().items()}
    torch.save({"state_dict": saved}, tmp_path / "w.ckpt")
    loaded = load_model(f"{code}:network", tmp_path / "w.ckpt")
    assert _same({f"{prefix}{key}": value for key, value in loaded.state_dict().items()}, saved)
    assert list(state_like(saved, loaded)) == list(saved)  # and it is there again in what is written


def test_a_value_with_many_references_is_read_once(tmp_path: Path):
    shared: object = np.float64(0.5)
    for _ in range(16):
        shared = [shared, shared]
    cycle: dict[str, object] = {}
    cycle["itself"] = cycle
    torch.save({"model": _network().state_dict(), "shared": shared, "cycle": cycle}, tmp_path / "w.pt")
    whole = read_checkpoint(tmp_path / "w.pt").whole
    assert isinstance(whole, dict)
    assert whole["shared"][0] is whole["shared"][1]  # or a file of a few hundred bytes takes longer than anybody waits
    assert whole["cycle"]["itself"] is whole["cycle"]


class _Odd(list):  # type: ignore[type-arg]
    """A class that is refused."""


@pytest.mark.parametrize("options", [{}, {"_use_new_zipfile_serialization": False}], ids=["zip", "before torch 1.6"])
def test_a_refused_type_is_named_once_in_every_format(tmp_path: Path, options: dict[str, bool]):
    inner: object = _Odd()
    for _ in range(6):
        inner = [inner] * 9
    torch.save({"model": _network().state_dict(), "extra": inner}, tmp_path / "w.pt", **options)
    with pytest.raises(BadInput, match="_Odd") as caught:
        load_weights(tmp_path / "w.pt")
    assert str(caught.value).count("_Odd") == 1
