"""Training: one seed in, the same weights out; the best weights are a copy; the user's own module works too."""

import numpy as np
import pytest
import torch
from sklearn.metrics import balanced_accuracy_score
from torch import nn
from torch.nn import functional as F

from equipoise.data import Cohort, Parts, split
from equipoise.errors import BadInput
from equipoise.models import MLP, Training, predict, train
from equipoise.models.training import ModuleRun, best_cut
from support.facts import facts

QUICK = Training(epochs=6, patience=3)


@pytest.fixture(scope="module")
def parts() -> Parts:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(500, 4)).astype(np.float32)
    y = (x[:, 0] + 0.5 * rng.normal(size=500) > 0).astype(int)
    return split(Cohort.from_arrays(torch.from_numpy(x), y, rng.choice(["F", "M"], 500)), seed=0)


def test_the_network_is_the_papers():
    shapes = [tuple(m.weight.shape) for m in MLP(98).linears]
    assert shapes == [(32, 98), *[(32, 32)] * 10]
    assert [type(m).__name__ for m in MLP(98).norms] == ["BatchNorm1d"] * 11
    assert MLP(98).dropout.p == 0.05


@pytest.mark.parametrize("own", [False, True])
def test_one_seed_in_the_same_weights_out(parts: Parts, own: bool):
    def network() -> nn.Module | None:
        if not own:
            return None
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 1))

    state = torch.random.get_rng_state()
    one, two, other = (train(parts.train, parts.valid, seed=s, model=network(), settings=QUICK) for s in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), two.state_dict().values(), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True))


def test_training_learns_and_returns_eval_mode_with_a_threshold(parts: Parts):
    network = train(parts.train, parts.valid, seed=0, settings=Training(epochs=30))
    scores = predict(network, parts.test)
    assert not network.training
    assert balanced_accuracy_score(scores.y, scores.score >= network.threshold) > 0.75


def test_the_best_weights_are_restored_not_the_last(parts: Parts):
    losses: list[float] = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 1))
    settings = Training(epochs=40, patience=5, learning_rate=0.1, batch=16)
    network = train(parts.train, parts.valid, model=model, settings=settings, progress=lambda _, loss: losses.append(loss))
    with torch.no_grad():
        final = F.binary_cross_entropy_with_logits(network(parts.valid.inputs)[:, 0], torch.from_numpy(parts.valid.y).float())
    assert float(final) == pytest.approx(min(losses), abs=1e-6)
    assert losses[-1] > min(losses)
    assert len(losses) == int(np.argmin(losses)) + 1 + settings.patience


@pytest.mark.parametrize("own", [False, True])
def test_the_last_weights_are_those_of_the_last_epoch(parts: Parts, own: bool):
    """restore="last" gives the weights after exactly that number of epochs, whatever the validation losses were."""

    def network() -> nn.Module | None:
        if not own:
            return None
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return nn.Sequential(nn.Linear(4, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 1))

    losses: list[float] = []

    def trained(**changes: object) -> nn.Module:
        settings = Training(epochs=40, patience=4, learning_rate=0.03, batch=32, plateau=100).changed(**changes)
        losses.clear()
        return train(parts.train, parts.valid, seed=1, model=network(), settings=settings, progress=lambda _, loss: losses.append(loss))

    def loss_of(model: nn.Module) -> float:
        with torch.no_grad():
            return float(F.binary_cross_entropy_with_logits(model(parts.valid.inputs).reshape(-1), torch.from_numpy(parts.valid.y).float()))

    best, lowest = trained(), min(losses)
    last, epochs = trained(restore="last"), len(losses)
    again = trained(restore="last", epochs=epochs, patience=1000)
    assert epochs < 40  # it stopped early, 4 epochs after the best
    assert loss_of(best) == pytest.approx(lowest, abs=1e-6)
    assert loss_of(last) > lowest + 1e-6
    for name, value in last.state_dict().items():  # batch norm's statistics among them
        assert torch.equal(value, again.state_dict()[name]), name
    assert last.threshold == again.threshold


def test_weights_to_restore_have_a_name():
    with pytest.raises(BadInput, match="best"):
        Training(restore="lst")


def test_the_users_module_is_copied_and_probabilities_are_understood(parts: Parts):
    model = nn.Sequential(nn.Linear(4, 1), nn.Sigmoid())
    before = model[0].weight.detach().clone()
    network = train(parts.train, parts.valid, model=model, settings=QUICK)
    assert torch.equal(model[0].weight, before)
    assert not torch.equal(network[0].weight, before)
    frozen = nn.Linear(4, 1).requires_grad_(False)
    with pytest.raises(BadInput, match="train"):
        train(parts.train, parts.valid, model=frozen)


def test_a_set_with_one_label_or_another_shape_is_an_error(parts: Parts):
    negatives = parts.train.take(parts.train.y == 0)
    with pytest.raises(BadInput, match="label"):
        train(negatives, parts.valid)
    narrow = Cohort.from_arrays(parts.valid.inputs[:, :2], parts.valid.y, parts.valid.groups)
    with pytest.raises(BadInput, match=facts("(4,)", "(2,)")):
        train(parts.train, narrow)


def test_best_cut_equals_a_search_over_all_scores():
    rng = np.random.default_rng(0)
    y, score = rng.integers(0, 2, 80), rng.integers(0, 10, 80) / 10
    tried = {float(t): balanced_accuracy_score(y, score >= t) for t in np.unique(score)}
    assert tried[best_cut(score, y)] == pytest.approx(max(tried.values()))


def test_images_need_a_network_of_their_own(parts: Parts):
    images = Cohort.from_arrays(torch.zeros(len(parts.train), 1, 8, 8), parts.train.y, parts.train.groups)
    with pytest.raises(BadInput, match=facts("arrays", "(1, 8, 8)")):
        train(images, images)


def test_the_recipe_for_images():
    images = Training.as_in_paper((1, 1, 8, 8))
    assert (images.batch, images.learning_rate, images.epochs, images.optimiser, images.schedule, images.augment) == (
        32,
        1e-4,
        20,
        "adamw",
        "step",
        True,
    )
    rng = np.random.default_rng(0)
    images = Cohort.from_arrays(torch.randn(40, 1, 8, 8), rng.integers(0, 2, 40), rng.choice(["F", "M"], 40))
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 1))
    run = ModuleRun(
        net, images, images, 0, Training(batch=16, learning_rate=0.1, optimiser="adamw", schedule="step", step=2, augment=True), "logit"
    )
    rates = []
    for _ in range(5):
        rates.append(run.optimiser.param_groups[0]["lr"])
        run.epoch()
    assert rates == pytest.approx([0.1, 0.1, 0.01, 0.01, 0.001])
    assert isinstance(run.optimiser, torch.optim.AdamW)
    with pytest.raises(BadInput, match="adamw"):
        Training(optimiser="adamw2")


def test_one_seed_gives_the_same_weights_with_augmentation_too():
    rng = np.random.default_rng(0)
    images = Cohort.from_arrays(torch.randn(40, 1, 8, 8), rng.integers(0, 2, 40), rng.choice(["F", "M"], 40))
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Dropout(0.2), nn.Linear(72, 1))
    rows, held_out = images.take(range(30)), images.take(range(30, 40))
    one, two, other = (train(rows, held_out, seed=k, model=net).state_dict() for k in (0, 0, 1))
    assert all(torch.equal(one[k], two[k]) for k in one)
    assert not torch.equal(one["4.weight"], other["4.weight"])


@pytest.mark.parametrize(
    "wrong", [{"epochs": -1}, {"batch": 0}, {"learning_rate": float("nan")}, {"learning_rate": -1e-3}, {"patience": 0}]
)
def test_settings_that_cannot_train_are_refused(wrong):
    [(name, value)] = wrong.items()
    with pytest.raises(BadInput, match=facts(name, value)):
        Training(**wrong)
