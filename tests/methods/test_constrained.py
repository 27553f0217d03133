"""Constrained fine-tuning: its gradient against autograd, its multipliers, its teacher, and what it does to many groups."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import equipoise as eq
from equipoise.data import Attribute, Cohort
from equipoise.errors import BadInput, UnknownName
from equipoise.measures import Cells, match_positives
from equipoise.measures.sweeps import gap_functional
from equipoise.methods import Data, Goal, Label, run_method, step_control
from equipoise.methods.constrained import RESPONSE_STEPS, ConstrainedSettings, LagrangianState, expected_weights, slope
from equipoise.methods.evaluation import Evaluation
from equipoise.models import Repairable, predict, ranks
from equipoise.models.repairable import RepairableMLP
from support.goals import paper_goal
from support.networks import biased_cohort, trained
from support.published import debias


class Wrapped(nn.Module):
    """The same network as a module of the user's own, which ends in a logit or in a probability."""

    def __init__(self, inner: nn.Module, probability: bool = False) -> None:
        super().__init__()
        self.inner, self.output = inner, "probability" if probability else "logit"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = self.inner(x)
        return torch.sigmoid(z) if self.output == "probability" else z


@pytest.fixture(scope="module")
def problem():
    return trained("mlp")


def three_groups(parts) -> Cohort:
    """F in two halves: those whose x[2] is low and those with a high one, whose gaps differ."""
    groups = np.where(parts.valid.groups == "F", np.where(parts.valid.inputs[:, 2] > 0, "F1", "F2"), "M")
    return Cohort.from_arrays(parts.valid.inputs, parts.valid.y, groups, reference="M", name="three")


def decided(scores: np.ndarray, threshold: float) -> Evaluation:
    """An evaluation of which only the scores and the threshold count."""
    return Evaluation(scores, 0.0, 0.0, np.full(scores.shape, threshold), ())


def begun(cohort: Cohort, goal: Goal, scores: np.ndarray, threshold: float) -> Data:
    """The rows of a cohort whose original network has these scores and this threshold."""
    return replace(Data.of(cohort, {"": goal}), begun=decided(scores, threshold))


def flat(gradients) -> torch.Tensor:
    return torch.cat([g.reshape(-1) for g in gradients])


def test_the_gradient_is_that_of_the_lagrangian_by_autograd(problem):
    model, parts = problem
    cohort = three_groups(parts)
    n = len(cohort)
    networks = Repairable(Wrapped(model), cohort.inputs)
    labels = Label.of(cohort, paper_goal("eod"))
    scores = networks.evaluate()
    threshold = 0.4
    balance = LagrangianState(begun(cohort, paper_goal("eod"), scores, threshold), ConstrainedSettings(teacher=0.3, penalty=2.0))
    balance.update(decided(scores, 0.55), steps=10)
    networks.logit_gradient(torch.arange(n), slope, *balance.of(torch.arange(n)))
    ours = flat(p.grad for p in networks.model.parameters())

    # The same from the definition: a weighted cross-entropy with mixed labels, and lambda G + rho / 2 G^2 with the hard gap's value.
    own = copy.deepcopy(Wrapped(model)).eval()
    z = own(cohort.inputs).double()
    p = torch.from_numpy(match_positives(torch.logit(torch.from_numpy(scores)).numpy(), labels.y, labels.attribute.codes, 3))
    mixed = 0.7 * torch.from_numpy(cohort.y) + 0.3 * p
    share = cohort.y.mean()
    weights = mixed * 0.5 / share + (1 - mixed) * 0.5 / (1 - share)
    task = F.binary_cross_entropy_with_logits(z - np.log(0.4 / 0.6), mixed * 0.5 / share / weights, weight=weights)
    f = torch.sigmoid(z - np.log(0.55 / 0.45))
    hard = scores >= 0.55
    pressure = torch.zeros(())
    for group in ("F1", "F2"):
        rates = [(f * p)[cohort.groups == g].sum() / cohort.y[cohort.groups == g].sum() for g in (group, "M")]
        gap = np.subtract(*[hard[(cohort.groups == g) & (cohort.y == 1)].mean() for g in (group, "M")])
        multiplier = 10 / RESPONSE_STEPS * 2.0 * gap
        pressure = pressure + (multiplier + 2.0 * gap) * (rates[0] - rates[1])
    expected = flat(torch.autograd.grad(task + pressure, list(own.parameters())))
    assert expected.norm() > 0.1
    torch.testing.assert_close(ours, expected.float(), rtol=1e-3, atol=1e-6)


def given_for(index: torch.Tensor) -> list[torch.Tensor]:
    rng = torch.Generator().manual_seed(2)
    return [torch.rand(index.shape, generator=rng) for _ in range(5)]


def test_flat_single_and_probability_networks_are_pushed_alike(problem):
    model, parts = problem
    x = parts.valid.inputs
    index = torch.arange(30)
    mlp = RepairableMLP(model, x)
    mlp.logit_gradient(index, slope, *given_for(index))
    single, probability = Repairable(Wrapped(model), x), Repairable(Wrapped(model, probability=True), x)
    for networks in (single, probability):
        networks.logit_gradient(index, slope, *given_for(index))
        torch.testing.assert_close(flat(p.grad for p in networks.model.parameters()), mlp.flat.gradient, rtol=1e-3, atol=1e-5)


def test_shares_of_two_processes_add_up_to_the_whole(problem, monkeypatch):
    model, parts = problem
    index = torch.arange(31)
    whole = Repairable(Wrapped(model), parts.valid.inputs)
    whole.logit_gradient(index, slope, *given_for(index))
    total = torch.zeros(())
    for k in (0, 1):
        monkeypatch.setattr(ranks, "share", lambda rows, k=k: rows[k::2])
        part = Repairable(Wrapped(model), parts.valid.inputs)
        part.logit_gradient(index, slope, *given_for(index))
        total = total + flat(p.grad for p in part.model.parameters())
    torch.testing.assert_close(total, flat(p.grad for p in whole.model.parameters()), rtol=1e-4, atol=1e-5)


def test_multipliers_gather_the_hard_gap_of_every_group(problem):
    model, parts = problem
    cohort = three_groups(parts)
    scores = predict(model, cohort)
    gaps = Cells.of(scores.score >= 0.5, cohort.y, cohort.attribute).gaps("spd")
    at_half = (scores.score, 0.5)
    balance = LagrangianState(begun(cohort, paper_goal("spd"), *at_half), ConstrainedSettings(penalty=3.0))
    for _ in range(2):
        balance.update(decided(*at_half), steps=5)
    np.testing.assert_allclose(np.concatenate([side.multipliers for side in balance.sides]), 2 * 5 / RESPONSE_STEPS * 3.0 * gaps)
    assert abs(gaps[0] - gaps[1]) > 0.01


def test_the_teachers_probabilities_add_up_to_the_positives_of_each_group():
    rng = np.random.default_rng(0)
    codes, z = rng.integers(-1, 3, 400), rng.normal(size=400)
    y = (rng.random(400) < 0.3).astype(int)
    p = match_positives(z, y, codes, 3)
    for code in (-1, 0, 1, 2):
        mine = codes == code
        assert p[mine].sum() == pytest.approx(y[mine].sum())
        assert (np.argsort(p[mine]) == np.argsort(z[mine])).all()
    none = np.where(codes == 1, 0, y)
    assert match_positives(z, none, codes, 3)[codes == 1].max() < 1e-9


@pytest.mark.parametrize("measure", ["spd", "eod", "aod"])
def test_certain_labels_give_the_weights_of_the_gap(measure: str):
    rng = np.random.default_rng(1)
    codes, y = rng.integers(0, 3, 200), rng.integers(0, 2, 200)
    cells = Cells.of(np.zeros(y.shape), y, Attribute("sex", ("M", "F1", "F2"), codes))
    for group in (1, 2):
        w = gap_functional(measure, cells.n, group).weights(y, codes)
        np.testing.assert_allclose(expected_weights(measure, cells, group, codes, y.astype(float)), w)
        unsure = expected_weights(measure, cells, group, codes, np.full(y.shape, 0.5))
        assert np.allclose(unsure, w) == (measure == "spd")


def test_the_gaps_of_all_groups_fall_at_once_and_performance_stays(problem):
    model, parts = problem
    cohort = three_groups(parts)
    result = debias(model, cohort, method="constrained", measure="spd", min_performance=0.6, epochs=30, batch=64)
    before, after = (
        Cells.of(s.score >= t, cohort.y, cohort.attribute).gaps("spd")
        for s, t in ((predict(m, cohort), result.trace["threshold"].iloc[row]) for m, row in ((model, 0), (result.model, result.chosen)))
    )
    assert np.abs(before).min() > 0.1
    assert np.abs(after).max() < 0.05
    assert result.trace["performance"].iloc[result.chosen] >= 0.6


def test_more_performance_is_left_than_by_bias_gda_at_the_same_gap(problem):
    model, parts = problem
    goal = paper_goal("spd", max_gap=0.03)
    kept = {}
    for method, settings in (("bias-gda", {"learning_rate": 1e-3}), ("constrained", {})):
        result = run_method(
            method, model, parts.valid, {"": goal}, seed=0, settings={"schedule": "paper", "batch": 64, "epochs": 40, **settings}
        )
        assert result.met_in_sample
        kept[method] = result.trace["performance"].iloc[result.chosen]
    assert kept["constrained"] > kept["bias-gda"] + 0.01


def test_a_network_without_a_gap_is_left_alone():
    cohort = biased_cohort()
    model = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 1))
    nn.init.zeros_(model[2].weight)
    model.output = "logit"
    result = debias(model, cohort, method="constrained", measure="spd", min_performance=0.5, epochs=2)
    assert len(result.trace) == 1
    assert all(torch.equal(a, b) for a, b in zip(result.model.parameters(), model.parameters(), strict=True))


def test_the_number_of_looks_depends_on_the_settings_alone(problem):
    """Honest selection compares the steps of two folds by their numbers."""
    model, parts = problem
    steps = [
        debias(model, parts.valid, method="constrained", measure=m, min_performance=f, epochs=3, batch=32).trace["step"].tolist()
        for m, f in (("spd", 0.5), ("eod", 0.99))
    ]
    assert steps[0] == steps[1]
    assert len(steps[0]) == 1 + 3 * (-(-len(parts.valid) // 32) // 1)


def test_wrong_settings_are_clear_errors():
    with pytest.raises(BadInput, match=r"\[0, 1\]; got 1\.5"):
        ConstrainedSettings(teacher=1.5)
    with pytest.raises(UnknownName, match="blockwise"):
        ConstrainedSettings(optimiser="blockwize")


def test_a_run_that_cannot_keep_performance_spends_what_is_left_on_the_published_schedule(monkeypatch):
    """Short trials that keep performance at each evaluation ended with a fifth of the gap on Adult, which the published schedule closes."""
    model, parts = trained("mlp")
    found, spent = [], 0

    def counted(*arguments):
        nonlocal spent
        steps, evaluation = fixed(*arguments), None
        while True:
            try:
                step = steps.send(evaluation)
            except StopIteration:
                return
            spent += step.trial
            evaluation = yield step

    fixed = step_control._fixed
    for further in (lambda *_: iter(()), counted):
        monkeypatch.setattr(step_control, "_fixed", further)
        goal = {"measure": "spd", "max_loss": 0.01, "selection": "paper", "recalibrate": False}
        found.append(eq.debias(model, parts.valid, method="constrained", **goal))
    assert 0 < spent < 45
    before, after = (
        result.trace[result.trace["performance"] >= result.trace["performance"].iloc[0]]["gap"].abs().min() for result in found
    )
    assert after <= before
    assert len(found[1].trace) >= len(found[0].trace)
