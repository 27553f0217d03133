"""A flat MLP computes on the device it was given: every tensor lies there, no step waits for a value, and a GPU agrees with a CPU."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from equipoise.data import Cohort, Parts, split
from equipoise.errors import BadInput
from equipoise.methods import Candidate, run_method
from equipoise.methods.constrained import slope
from equipoise.models import MLP, Training, computing_on, initial_mlp, repairable, train, training, under_repair
from equipoise.models.devices import DEVICE_VARIABLE, requested_device
from equipoise.models.mlp import FlatAdam, FlatMLP, Recorder, copy_tensors
from equipoise.models.repairable import RepairableMLP
from equipoise.models.training import _MLPRun
from support.facts import facts
from support.goals import paper_goal

META = torch.device("meta")  # has shapes but no values: whatever asks for one fails, as it would have to wait for a GPU
ROWS, COLUMNS = 40, 4
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")


class OneDevice(TorchDispatchMode):
    """Fails if an operation other than a copy mixes tensors of two devices, which `meta` tensors often allow and CUDA does not."""

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        given = tree_leaves((args, kwargs or {}))
        places = {t.device.type for t in given if isinstance(t, torch.Tensor) and t.ndim}
        name = function.overloadpacket.__name__
        assert len(places) < 2 or name in ("copy_", "_to_copy"), f"{name} of tensors on {' and '.join(sorted(places))}"
        return function(*args, **(kwargs or {}))


def _parts(seed: int, n: int = 300) -> Parts:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, COLUMNS)).astype(np.float32)
    y = (x[:, 0] + rng.normal(size=n) > 0).astype(int)
    return split(Cohort.from_arrays(torch.from_numpy(x), y, rng.choice(["F", "M"], n)), seed=seed)


def _generator() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Iterator[RepairableMLP]:
    monkeypatch.setattr(repairable, "compute_device", lambda *_: META)
    found = RepairableMLP(initial_mlp(COLUMNS, 0), torch.zeros(ROWS, COLUMNS))
    with OneDevice():
        yield found


def test_a_mix_of_devices_is_noticed():
    with pytest.raises(AssertionError, match=facts("index_select")), OneDevice():
        torch.empty(3, 3, device=META).index_select(0, torch.arange(2))


def _tensors(thing: object) -> list[torch.Tensor]:
    """Every tensor in the attributes of an object."""
    return [leaf for leaf in tree_leaves(dict(vars(thing))) if isinstance(leaf, torch.Tensor)]


def test_every_tensor_of_a_flat_mlp_and_its_optimiser_lies_on_the_device():
    flat = FlatMLP(initial_mlp(COLUMNS, 0), META)
    adam = FlatAdam(flat, 1e-2)
    for found in (_tensors(flat), flat.state(), [flat.masks(8, _generator())], adam.moments):
        assert found
        assert {t.device for t in found} == {META}


def test_training_does_not_wait_for_the_device_during_an_epoch(monkeypatch):
    monkeypatch.setattr(training, "requested_device", lambda: META)
    parts = _parts(0)
    run = _MLPRun(parts.train, parts.valid, 0, Training(batch=16))
    with OneDevice():
        with pytest.raises(RuntimeError, match="item"):  # the loss at the end of the epoch is the first value that is waited for
            run.epoch()
        assert run.flat.evaluate(run.x_valid).device == META
    assert run.optimiser.steps == -(-len(parts.train) // 16)
    assert {t.device for t in (run.x, run.y, run.x_valid, run.y_valid)} == {META}


STEPS: dict[str, Callable[[RepairableMLP, torch.Tensor], object]] = {
    "proxy gradient": lambda n, index: n.proxy_gradient(index, torch.ones(index.shape)),
    "proxy gradient in training": lambda n, index: n.proxy_gradient(index, torch.ones(index.shape), generator=_generator()),
    "logit gradient": lambda n, index: n.logit_gradient(index, slope, *(torch.ones(index.shape) for _ in range(5))),
    "scores and features": lambda n, index: n.scores_and_features(index, generator=_generator()),
    "fixed scores and features": lambda n, index: n.fixed_scores_and_features()(index),
    "keep": lambda n, index: n.keep(),
    "perturb": lambda n, index: n.perturb(_generator(), 0.1),
    "evaluate": lambda n, index: n.evaluate(),
    "evaluate others": lambda n, index: n.evaluate(torch.zeros(ROWS, COLUMNS)),
}


@pytest.mark.parametrize("step", STEPS)
def test_steps_of_methods_stay_on_the_device(network, step, monkeypatch):
    monkeypatch.setattr(repairable, "sigmoid", lambda logits: torch.zeros(logits.shape))  # the one place where values come back
    for index in network.batches(_generator(), 16, least=2):
        STEPS[step](network, index)


@pytest.mark.parametrize("name", ["adam", "sgd", "blockwise"])
def test_optimisers_stay_on_the_device(network, name):
    steps = network.optimiser(name, 1e-3)
    network.mark()
    steps.step()
    network.restore()
    steps.step()


def test_adversarial_gradients_stay_on_the_device(network):
    f, features = network.scores_and_features(torch.zeros(8, dtype=torch.int64))
    critic = torch.zeros(features.shape[1], 1, device=META, requires_grad=True)
    network.adversarial_gradient(f.sum(), (f * (features @ critic)[:, 0]).sum(), [critic], 0.5)
    assert critic.grad is not None
    assert critic.grad.device == META


@pytest.mark.parametrize("criterion", ["gradient", "taylor", "difference", "second-order"])
@pytest.mark.parametrize("layers", [[0, 5], []])
def test_influence_and_pruning_stay_on_the_device(network, criterion, layers, monkeypatch):
    monkeypatch.setattr(repairable, "sigmoid", lambda logits: torch.zeros(logits.shape))
    network._hidden = layers
    _, influence = network.influence(np.tile([0.0, 1.0], ROWS // 2), criterion)
    assert influence.device == META
    assert influence.shape == (32 * len(layers) or COLUMNS,)
    network.prune(influence > 0)
    if layers:
        network.prune(influence > 0, outgoing=True)


def test_sums_are_the_same_in_either_order():
    flat = FlatMLP(initial_mlp(COLUMNS, 0).double())
    numbers = torch.randn(len(flat.theta), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    on_cpu, total = flat.block_sums(numbers), flat.total(numbers)
    torch.testing.assert_close(on_cpu, torch.stack([part.sum() for part in numbers.split(flat.lengths.tolist())]))
    torch.testing.assert_close(total, numbers.sum(0, keepdim=True))
    flat.device = META  # the way that is taken on a GPU, with the same tensors
    torch.testing.assert_close(flat.block_sums(numbers), on_cpu)
    torch.testing.assert_close(flat.total(numbers), total)


def test_the_device_comes_from_the_environment_and_a_missing_one_is_refused(monkeypatch):
    monkeypatch.delenv(DEVICE_VARIABLE, raising=False)
    assert requested_device() is None
    with computing_on("cpu"):
        assert requested_device() == torch.device("cpu")
        parts = _parts(0)
        assert under_repair(initial_mlp(COLUMNS, 0), parts.valid).device == torch.device("cpu")
    assert requested_device() is None
    with pytest.raises(BadInput, match="tpu9"), computing_on("tpu9"):
        pass
    with pytest.raises(BadInput, match="cuda:99"), computing_on("cuda:99"):
        pass
    assert requested_device() is None


def _trained(device: str, monkeypatch: pytest.MonkeyPatch) -> MLP:
    """In double precision: training amplifies the rounding of float32 within a few dozen steps, on a CPU as well."""
    monkeypatch.setattr(training, "requested_device", lambda: torch.device(device))
    monkeypatch.setattr(training, "initial_mlp", lambda inputs, seed: initial_mlp(inputs, seed).double())
    monkeypatch.setattr(training, "best_cut", lambda *_: 0.5)
    monkeypatch.setattr(training, "outputs", lambda *_: torch.zeros(1))

    def in_double(*given) -> _MLPRun:
        run = _MLPRun(*given)
        run.x, run.y, run.x_valid, run.y_valid = (t.double() for t in (run.x, run.y, run.x_valid, run.y_valid))
        return run

    monkeypatch.setattr(training, "_MLPRun", in_double)
    parts = _parts(0)
    settings = Training(epochs=3, batch=16, patience=1)  # 12 steps per epoch; then they are replayed
    return train(parts.train, parts.valid, seed=0, settings=settings)


@needs_gpu
def test_training_on_a_gpu_equals_training_on_the_cpu_and_itself(monkeypatch):
    expected, found, same = (_trained(device, monkeypatch).state_dict() for device in ("cpu", "cuda", "cuda"))
    for name, value in expected.items():
        assert found[name].device.type == "cpu"
        torch.testing.assert_close(found[name], value, rtol=1e-6, atol=1e-8)
        assert torch.equal(found[name], same[name]), name


@needs_gpu
@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("bias-gda", {"schedule": "paper", "epochs": 4, "batch": 16}),
        ("bias-gda", {"schedule": "paper", "epochs": 4, "batch": 16, "mode": "eval", "optimiser": "sgd"}),
        ("pruning", {"units": 8}),
        ("pruning", {"units": 8, "criterion": "difference"}),
        ("pruning", {"granularity": "input"}),
        ("random", {}),
        ("constrained", {"schedule": "paper", "epochs": 2, "batch": 16}),
        ("adversarial-finetune", {"schedule": "paper", "epochs": 1}),
        ("adversarial-training", {"epochs": 1}),
    ],
)
def test_a_method_runs_on_a_gpu_from_the_same_start_as_on_the_cpu(method, settings):
    parts = _parts(0)
    model = train(parts.train, parts.valid, settings=Training(epochs=5))

    def found() -> Candidate:
        used = parts.train if method == "adversarial-training" else None
        return run_method(method, model, parts.valid, {"": paper_goal(measure="eod")}, seed=0, train=used, settings=settings)

    expected = found()
    with computing_on("cuda"):
        candidate = found()
    assert candidate.trace["gap"].iloc[0] == pytest.approx(expected.trace["gap"].iloc[0], abs=0.05)
    assert candidate.trace["performance"].iloc[0] == pytest.approx(expected.trace["performance"].iloc[0], abs=0.02)
    assert {p.device.type for p in candidate.model.parameters()} == {"cpu"}


@needs_gpu
def test_a_recorded_step_equals_the_same_step_without_recording():
    device = torch.device("cuda", torch.cuda.current_device())
    flat = FlatMLP(initial_mlp(COLUMNS, 0), device)
    start, recorder = copy_tensors(flat.state(), []), Recorder(flat)
    generator = torch.Generator().manual_seed(0)

    def step(x: torch.Tensor, y: torch.Tensor) -> None:
        flat.fill_gradient(x, lambda logits: torch.sigmoid(logits) - y, training=True)

    batches = [(torch.randn(16, COLUMNS, generator=generator), torch.rand(16, generator=generator)) for _ in range(12)]
    for recorded in (True, False):
        copy_tensors(start, flat.state())
        for x, y in batches:
            recorder(step, x, y) if recorded else step(x.to(device), y.to(device))
        now = (flat.gradient.clone(), *(m.clone() for m in (*flat.means, *flat.variances)))
        if recorded:
            first = now
    for a, b in zip(first, now, strict=True):
        torch.testing.assert_close(a, b)
