"""Training from scratch by other losses: each against what its line says, computed independently."""

import numpy as np
import pytest
import torch

from equipoise.data import Cohort
from equipoise.methods import METHODS, Data, Goal, Rng, make_settings
from equipoise.methods.baselines import fresh
from equipoise.methods.in_processing import InProcessingSettings, cell_of_rows, discrepancy, train_epochs
from equipoise.models.repairable import under_repair
from support.networks import trained

NAMES = ("resampling", "group-dro", "min-diff", "just-train-twice", "weight-averaging")
KINDS = ("mlp", "perceptron", "cnn")


def ready(kind: str, measure: str = "spd"):
    """A network to train from scratch, and the rows as a method gets them."""
    model, parts = trained(kind)
    goal = {"": Goal(measure)}
    data = Data.of(parts.train, goal)
    return under_repair(fresh(model, 3), parts.train), Data(data.labels, data.places, train=data), parts


def settings(**given) -> InProcessingSettings:
    return make_settings("resampling", {"epochs": 3, "batch": 32, "learning_rate": 0.01, **given})


def states(model, steps) -> list[list[np.ndarray]]:
    return [[tensor.double().numpy().copy() for tensor in model.state()] for _ in steps]


@pytest.mark.parametrize("measure", ["spd", "eod", "aod"])
@pytest.mark.parametrize("name", NAMES)
def test_every_epoch_is_a_step_of_a_network_that_learns(name: str, measure: str):
    model, data, parts = ready("mlp", measure)
    before = model.evaluate()
    given = settings(epochs=6, strength={"min-diff": 0.1, "just-train-twice": 1.2}.get(name))  # little of what keeps scores apart
    steps = [step.number for step in METHODS[name].run(model, data, Goal(measure), given, Rng(0))]
    assert steps == list(range(7 - len(steps), 7))
    y = parts.train.y
    after = model.evaluate()
    assert after[y == 1].mean() - after[y == 0].mean() > before[y == 1].mean() - before[y == 0].mean() + 0.1


def test_the_discrepancy_is_that_of_all_pairs():
    rng = np.random.default_rng(0)
    a, b = rng.random(7), rng.random(5) ** 2

    def mean(x, y):
        return np.mean([[np.exp(-((p - q) ** 2) / (2 * 0.1**2)) for p in x] for q in y])

    found = discrepancy(torch.from_numpy(a), torch.from_numpy(b))
    assert float(found) == pytest.approx(mean(a, a) + mean(b, b) - 2 * mean(a, b))
    assert float(discrepancy(torch.from_numpy(a), torch.from_numpy(a))) == pytest.approx(0, abs=1e-12)
    assert float(discrepancy(torch.from_numpy(a), torch.empty(0))) == 0


def test_a_strong_penalty_brings_the_scores_of_groups_together():
    def apart(strength: float) -> float:
        model, data, parts = ready("perceptron")
        list(METHODS["min-diff"].run(model, data, Goal("spd"), settings(epochs=8, strength=strength), Rng(0)))
        scores, codes = model.evaluate(), parts.train.attribute.codes
        return abs(scores[codes == 1].mean() - scores[codes == 0].mean())

    assert apart(5.0) < apart(1e-6) / 2


def test_the_worst_cell_counts_most():
    """One mini-batch of everything: weights are exponentiated losses, and the loss is their sum."""
    model, data, parts = ready("perceptron")
    cells, y, counts = cell_of_rows(data.labels[0]), parts.train.y, []
    names = dict(zip(zip(parts.train.attribute.codes, y, strict=True), cells, strict=True))
    assert len(names) == 4 == len(set(cells))
    rows = len(parts.train)
    gradient_of = {}
    for name, rate in (("mild", 1e-9), ("harsh", 200.0)):
        model, data, parts = ready("perceptron")
        with torch.no_grad():
            losses = -np.log(np.where(y == 1, model.evaluate(), 1 - model.evaluate()))
        worst = max(set(cells), key=lambda cell: losses[cells == cell].mean())
        list(METHODS["group-dro"].run(model, data, Goal("spd"), settings(epochs=1, batch=rows, strength=rate, optimiser="adamw"), Rng(0)))
        scores = model.evaluate()
        after = -np.log(np.where(y == 1, scores, 1 - scores))
        gradient_of[name] = (losses - after)[cells == worst].mean()
        counts.append(worst)
    assert counts[0] == counts[1]
    assert gradient_of["harsh"] > gradient_of["mild"]


def test_resampling_draws_every_cell_equally_often(monkeypatch):
    model, data, _ = ready("perceptron")
    cells, drawn = cell_of_rows(data.labels[0]), []
    original = model.scores_and_features
    monkeypatch.setattr(model, "scores_and_features", lambda rows, **more: (drawn.extend(rows.tolist()), original(rows, **more))[1])
    list(METHODS["resampling"].run(model, data, Goal("spd"), settings(epochs=12), Rng(0)))
    shares = np.bincount(cells[drawn]) / len(drawn)
    assert shares == pytest.approx(np.full(4, 0.25), abs=0.03)
    assert np.abs(np.bincount(cells) / len(cells) - 0.25).max() > 0.05  # which the training set has not


def test_the_second_training_repeats_the_mistakes_of_the_first(monkeypatch):
    model, data, parts = ready("perceptron")
    first = under_repair(fresh(trained("perceptron")[0], 3), parts.train)
    for k, _ in enumerate(train_epochs(first, data, settings(epochs=6), Rng(0)), start=1):
        if k == 2:
            break
    wrong, drawn = (first.evaluate() >= 0.5) != parts.train.y, []
    original = model.scores_and_features
    monkeypatch.setattr(model, "scores_and_features", lambda rows, **more: (drawn.append(rows.tolist()), original(rows, **more))[1])
    list(METHODS["just-train-twice"].run(model, data, Goal("spd"), settings(epochs=6, strength=4.0), Rng(0)))
    per_epoch = -(-len(parts.train) // 32)
    second = np.concatenate(drawn[-6 * per_epoch :])
    assert np.isin(second, np.flatnonzero(wrong)).mean() == pytest.approx(4 * wrong.sum() / (4 * wrong.sum() + (~wrong).sum()), abs=0.03)


@pytest.mark.parametrize("kind", KINDS)
def test_averaged_weights_are_the_mean_over_epochs(kind: str):
    model, data, _ = ready(kind)
    averaged = states(model, METHODS["weight-averaging"].run(model, data, Goal("spd"), settings(epochs=4), Rng(0)))
    plain_model, data, _ = ready(kind)
    plain = states(plain_model, train_epochs(plain_model, data, settings(epochs=4), Rng(0)))
    for k, found in enumerate(averaged):
        for at, tensor in enumerate(found):
            expected = np.mean([state[at] for state in plain[: k + 1]], axis=0)
            if not np.array_equal(expected, np.round(expected)):  # a counter of batches is not averaged
                assert tensor == pytest.approx(expected, abs=2e-5)


def test_rows_without_a_group_are_cells_of_their_own():
    cohort = Cohort.from_arrays(torch.zeros(6, 1), [0, 1, 0, 1, 0, 1], ["a", "a", "b", "b", None, None], reference="a")
    label = Data.of(cohort, {"": Goal("spd")}).labels[0]
    assert sorted(cell_of_rows(label)) == [0, 1, 2, 3, 4, 5]
