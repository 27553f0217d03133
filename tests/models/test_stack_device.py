"""A stack computes on the device it was given: every tensor lies there, no step waits for a value, and a GPU agrees with a CPU."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from equipoise.data import Cohort, Parts, split
from equipoise.errors import BadInput
from equipoise.methods import run_many
from equipoise.methods.constrained import slope
from equipoise.models import MLP, Training, computing_on, initial_mlp, replicas, replicated, requested_device, train_stack
from equipoise.models.devices import DEVICE
from equipoise.models.optimisers import StackedAdam
from equipoise.models.replicated import StackedReplicas
from equipoise.models.stack import Recorder, Snapshot, Stack
from equipoise.models.training import _StackedRun
from support.facts import facts
from support.goals import paper_goal

META = torch.device("meta")  # has shapes but no values: whatever asks for one fails, as it would have to wait for a GPU
ROWS, COLUMNS, SIZE = 40, 4, 3
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


def _generators() -> list[np.random.Generator]:
    return [np.random.default_rng(seed) for seed in range(SIZE)]


@pytest.fixture
def networks() -> Iterator[StackedReplicas]:
    found = StackedReplicas([initial_mlp(COLUMNS, seed) for seed in range(SIZE)], torch.zeros(SIZE, ROWS, COLUMNS), META)
    with OneDevice():
        yield found


def test_a_mix_of_devices_is_noticed():
    with pytest.raises(AssertionError, match=facts("index_select")), OneDevice():
        torch.empty(3, 3, device=META).index_select(0, torch.arange(2))


def _tensors(thing: object) -> list[torch.Tensor]:
    """Every tensor in the attributes of an object."""
    return [leaf for leaf in tree_leaves(dict(vars(thing))) if isinstance(leaf, torch.Tensor)]


def test_every_tensor_of_a_stack_its_copies_and_its_optimiser_lies_on_the_device():
    stack = Stack([initial_mlp(COLUMNS, seed) for seed in range(SIZE)], device=META)
    for thing in (stack, Snapshot.of(stack), stack.masks(8, _generators()), stack.marked(torch.tensor([1]))):
        found = [thing] if isinstance(thing, torch.Tensor) else _tensors(thing)
        assert found
        assert {t.device for t in found} == {META}
    adam = StackedAdam(stack, torch.tensor([1e-2, 0.0, 1e-3]))
    assert adam.rate.device.type == "cpu"  # chosen there
    assert {t.device for name, t in vars(adam).items() if isinstance(t, torch.Tensor) and name != "rate"} == {META}


@pytest.mark.parametrize("frozen", [False, True])
def test_training_does_not_wait_for_the_device_during_an_epoch(frozen):
    seeds = list(range(SIZE))
    stack = Stack([initial_mlp(COLUMNS, seed) for seed in seeds], device=META)
    x, y = torch.zeros(SIZE, ROWS, COLUMNS), torch.zeros(SIZE, ROWS)
    run = _StackedRun(stack, x, y, x, y, seeds, Training(batch=16))
    with OneDevice():
        if frozen:
            run.optimiser.set_rate(torch.tensor([1e-3, 0.0, 1e-3]))
        run._epoch()
        assert stack.evaluate(run.x_valid).device == META
        run._update_best(torch.tensor([0.5, 0.4, 0.3]))  # losses on the CPU
    assert run.optimiser.steps == 3
    assert {t.device for t in (run.x, run.y, run.x_valid, run.y_valid, *_tensors(run.best))} == {META}


STEPS: dict[str, Callable[[StackedReplicas, torch.Tensor], object]] = {
    "proxy gradient": lambda n, index: n.proxy_gradient(index, torch.ones(index.shape)),
    "proxy gradient in training": lambda n, index: n.proxy_gradient(index, torch.ones(index.shape), generators=_generators()),
    "logit gradient": lambda n, index: n.logit_gradient(index, slope, *(torch.ones(index.shape) for _ in range(5))),
    "scores and features": lambda n, index: n.scores_and_features(index, generators=_generators()),
    "fixed scores and features": lambda n, index: n.fixed_scores_and_features()(index),
    "keep": lambda n, index: n.keep(np.array([True, False, True])),
    "perturb": lambda n, index: n.perturb(_generators(), 0.1),
    "evaluate": lambda n, index: n.evaluate(),
    "evaluate others": lambda n, index: n.evaluate([torch.zeros(ROWS, COLUMNS)] * SIZE),
}


@pytest.mark.parametrize("step", STEPS)
def test_steps_of_methods_stay_on_the_device(networks, step, monkeypatch):
    monkeypatch.setattr(replicated, "sigmoid", lambda logits: torch.zeros(logits.shape))  # the one place where values come back
    for index in networks.batches(_generators(), 16, least=2):
        STEPS[step](networks, index)


@pytest.mark.parametrize("name", ["adam", "sgd", "blockwise"])
def test_optimisers_stay_on_the_device(networks, name):
    steps = networks.optimiser(name, 1e-3)
    steps.step()
    steps.stop(np.array([False, True, False]))
    steps.step()


def test_adversarial_gradients_stay_on_the_device(networks):
    f, features = networks.scores_and_features(torch.zeros(SIZE, 8, dtype=torch.int64))
    critic = torch.zeros(SIZE, features.shape[2], 1, device=META, requires_grad=True)
    networks.adversarial_gradient(f.sum(), (f * torch.bmm(features, critic)[..., 0]).sum(), [critic], 0.5)
    assert critic.grad is not None
    assert critic.grad.device == META


@pytest.mark.parametrize("criterion", ["gradient", "taylor", "difference", "second-order"])
@pytest.mark.parametrize("layers", [[0, 5], []])
def test_influence_and_pruning_stay_on_the_device(networks, criterion, layers, monkeypatch):
    monkeypatch.setattr(replicated, "sigmoid", lambda logits: torch.zeros(logits.shape))
    networks._layers = layers
    _, influence = networks.influence(np.tile([0.0, 1.0], (SIZE, ROWS // 2)), criterion)
    assert influence.device == META
    assert influence.shape == (SIZE, 32 * len(layers) or COLUMNS)
    networks.prune(influence > 0)
    if layers:
        networks.prune(influence > 0, outgoing=True)


def test_sums_over_tensors_and_replicates_are_the_same_in_either_order():
    stack = Stack([initial_mlp(COLUMNS, seed) for seed in range(SIZE)], torch.float64)
    numbers = torch.randn(len(stack.theta), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    each = torch.stack([numbers[part].sum() for part in stack.numbers])
    torch.testing.assert_close(stack.replicate_sums(numbers), each)
    on_cpu = stack.block_sums(numbers)
    stack.device = META  # the way that is taken on a GPU, with the same tensors
    torch.testing.assert_close(stack.block_sums(numbers), on_cpu)
    torch.testing.assert_close(stack.replicate_sums(numbers), each)
    for r, (original, part) in enumerate(zip(stack.unstack(), stack.numbers, strict=True)):
        flat = torch.cat([p.detach().reshape(-1) for p in original.parameters()])
        assert torch.equal(stack.theta[part].detach(), flat), r


def test_the_device_comes_from_the_environment_and_a_missing_one_is_refused(monkeypatch):
    monkeypatch.delenv(DEVICE, raising=False)
    assert requested_device() is None
    with computing_on("cpu"):
        assert requested_device() == torch.device("cpu")
        parts = _parts(0)
        assert replicas([initial_mlp(COLUMNS, 0)], [parts.valid]).stack.device == torch.device("cpu")
    assert requested_device() is None
    with pytest.raises(BadInput, match="tpu9"), computing_on("tpu9"):
        pass
    with pytest.raises(BadInput, match="cuda:99"), computing_on("cuda:99"):
        pass
    assert requested_device() is None


def _trained(device: torch.device) -> list[MLP]:
    """In double precision: training amplifies the rounding of float32 within a few dozen steps, on a CPU as well."""
    seeds, parts = list(range(SIZE)), [_parts(seed) for seed in range(SIZE)]
    data = []
    for cohorts in ([p.train for p in parts], [p.valid for p in parts]):
        data += [torch.stack([c.inputs for c in cohorts]).double(), torch.from_numpy(np.stack([c.y for c in cohorts])).double()]
    stack = Stack([initial_mlp(COLUMNS, seed).double() for seed in seeds], torch.float64, device)
    settings = Training(epochs=3, batch=16, patience=1)  # 12 steps per epoch; from the second on they are replayed
    return _StackedRun(stack, *data, seeds, settings).run(None)


@needs_gpu
def test_training_on_a_gpu_equals_training_on_the_cpu_and_itself():
    on_cpu, on_gpu, again = (_trained(torch.device(device)) for device in ("cpu", "cuda", "cuda"))
    for expected, found, same in zip(on_cpu, on_gpu, again, strict=True):
        for name, value in expected.state_dict().items():
            assert found.state_dict()[name].device.type == "cpu"
            torch.testing.assert_close(found.state_dict()[name], value, rtol=1e-6, atol=1e-8)
            assert torch.equal(found.state_dict()[name], same.state_dict()[name]), name


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
    parts = [_parts(seed) for seed in range(SIZE)]
    seeds = list(range(SIZE))
    models = train_stack([(p.train, p.valid, seed) for seed, p in enumerate(parts)], settings=Training(epochs=5))

    def found() -> list[Any]:
        trains = [p.train for p in parts] if method == "adversarial-training" else None
        return run_many(method, models, [p.valid for p in parts], paper_goal(measure="eod"), seeds=seeds, trains=trains, settings=settings)

    on_cpu = found()
    with computing_on("cuda"):
        on_gpu = found()
    for expected, candidate in zip(on_cpu, on_gpu, strict=True):
        assert candidate.trace["gap"].iloc[0] == pytest.approx(expected.trace["gap"].iloc[0], abs=0.05)
        assert candidate.trace["performance"].iloc[0] == pytest.approx(expected.trace["performance"].iloc[0], abs=0.02)
        assert {p.device.type for p in candidate.model.parameters()} == {"cpu"}


@needs_gpu
def test_a_recorded_step_equals_the_same_step_without_recording():
    device = torch.device("cuda", torch.cuda.current_device())
    stack = Stack([initial_mlp(COLUMNS, seed) for seed in range(SIZE)], device=device)
    start, recorder = Snapshot.of(stack), Recorder(stack)
    generator = torch.Generator().manual_seed(0)

    def step(x: torch.Tensor, y: torch.Tensor) -> None:
        stack.fill_gradient(x, lambda logits: torch.sigmoid(logits) - y, training=True)

    batches = [(torch.randn(SIZE, 16, COLUMNS, generator=generator), torch.rand(SIZE, 16, generator=generator)) for _ in range(12)]
    for recorded in (True, False):
        stack.load(start, torch.arange(SIZE))
        for x, y in batches:
            recorder(step, x, y) if recorded else step(x.to(device), y.to(device))
        now = (stack.gradient.clone(), *(m.clone() for m in (*stack.means, *stack.variances)))
        if recorded:
            first = now
    for a, b in zip(first, now, strict=True):
        torch.testing.assert_close(a, b)
