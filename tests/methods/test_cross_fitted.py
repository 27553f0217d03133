"""Cross-fitted selection: the evidence against the bootstrap and by hand, the halves, and every method through it."""

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import norm

from equipoise.data import Cohort, Scores, assign_folds, generator
from equipoise.errors import BadInput, EmptyCell, TooFewPatients
from equipoise.measures import at_threshold, largest_gap
from equipoise.methods import METHODS, Goal, Outcome
from equipoise.methods.rules import fit_steps
from equipoise.methods.step_estimates import StepEstimates
from equipoise.methods.steps import _halves, align, rungs
from equipoise.methods.thresholds import group_thresholds as fit
from equipoise.models import predict
from support.bootstrap import bootstrap_cells
from support.facts import facts
from support.goals import paper_goal
from support.networks import trained
from support.published import any_debias, debias

QUICK = {
    "layer-wise": {"calls": 3, "first": 2, "elements": 50, "layers": 2},
    "bias-gda": {"epochs": 6, "learning_rate": 2e-3, "batch": 64},
    "pruning": {"steps": 8},
    "random": {"trials": 5},
    "adversarial-finetune": {"epochs": 2, "critic_steps": 3, "actor_steps": 3},
    "adversarial-training": {"epochs": 2},
    "auto": {"settings": {"bias-gda": {"epochs": 3}, "pruning": {"steps": 3}}},
}


def _evidence(rng: np.random.Generator, goal: Goal, steps: int = 3, n: int = 900, rows_each: int = 3, levels: int = 2) -> StepEstimates:
    """Decisions that agree within a patient, so that patients matter."""
    units = np.arange(n) // rows_each
    patients = int(units.max()) + 1
    codes, y = rng.integers(0, levels, patients)[units], rng.integers(0, 2, patients)[units]
    f = np.stack([(rng.random(patients)[units] < 0.25 + 0.35 * y + 0.1 * (codes == 1) * (k + 1)).astype(float) for k in range(steps)])
    return StepEstimates(f, y, codes, tuple("abcd"[:levels]), units, goal)


@pytest.mark.parametrize("performance", ["balanced_accuracy", "accuracy", "f1"])
@pytest.mark.parametrize("measure", ["spd", "eod", "aod", "fnr_gap"])
def test_standard_errors_are_those_of_the_patient_bootstrap(measure: str, performance: str):
    found = _evidence(np.random.default_rng(0), paper_goal(measure, performance))
    drawn = [bootstrap_cells(f, found.y, found.codes, found.levels, found.units, draws=3000, seed=1) for f in found.f]
    gaps = np.stack([largest_gap(cells.gaps(measure)) for cells in drawn])
    performances = np.stack([cells.performance(performance) for cells in drawn])
    np.testing.assert_allclose(found.gap_se(), gaps.std(1), rtol=0.08)
    np.testing.assert_allclose(found.performance_se(), performances.std(1), rtol=0.08)
    # Of differences too: the same patients are drawn for every step.
    np.testing.assert_allclose(found.performance_se(change=True)[1:], (performances - performances[0]).std(1)[1:], rtol=0.08)
    rates = np.stack([cells.rate("tpr") for cells in drawn])
    np.testing.assert_allclose(found.rate_se("tpr"), rates.std(1), rtol=0.08)
    np.testing.assert_allclose(found.rate_se("tpr", change=True)[1:], (rates - rates[0]).std(1)[1:], rtol=0.08)


def test_without_patients_the_standard_error_is_the_binomial_one():
    found = _evidence(np.random.default_rng(1), paper_goal("eod"), rows_each=1)
    rate, n = found.cells.rate("tpr"), found.cells.n[0, :-1, 1]
    np.testing.assert_allclose(found.gap_se(), np.sqrt((rate * (1 - rate) / n).sum(-1)), rtol=1e-2)
    np.testing.assert_allclose(found.gap, rate[:, 1] - rate[:, 0])


def test_of_many_groups_the_evidence_is_of_the_largest_gap():
    found = _evidence(np.random.default_rng(2), paper_goal("spd"), levels=3)
    gaps = found.cells.gaps("spd")
    np.testing.assert_allclose(np.abs(found.gap), np.abs(gaps).max(-1))
    rate, n = found.cells.rate("selection"), found.cells.n[0, :-1].sum(-1)
    worst = np.abs(gaps).argmax(-1) + 1
    by_hand = [np.sqrt(3 * (rate[k, g] * (1 - rate[k, g]) / n[g] + rate[k, 0] * (1 - rate[k, 0]) / n[0])) for k, g in enumerate(worst)]
    np.testing.assert_allclose(found.gap_se(), by_hand, rtol=1e-2)  # three equal rows a patient


def test_a_rate_of_one_is_not_taken_for_certain():
    y, codes = np.ones(20, int), np.repeat([0, 1], 10)
    found = StepEstimates(np.ones((1, 20)), y, codes, ("a", "b"), np.arange(20), paper_goal("eod"))
    assert 0.02 < found.gap_se()[0] < 0.2


def test_folds_hold_every_row_once_and_no_patient_twice():
    rng = np.random.default_rng(0)
    patients = rng.integers(0, 60, 201)
    cohort = Cohort.from_arrays(
        torch.randn(201, 3), rng.integers(0, 2, 201), np.where(patients % 2, "F", "M"), reference="M", patients=patients.astype(str)
    )
    first, second = _halves(cohort, 0)
    assert sorted([*first.held, *second.held]) == list(range(201))
    for fold, other in ((first, second), (second, first)):
        assert (np.sort(fold.own) == np.sort(other.held)).all()
        assert not set(fold.cohort.patients) & set(fold.elsewhere.patients)
        assert len(fold.cohort) == 201
        assert (fold.cohort.y[: len(fold.own)] == cohort.y[fold.own]).all()
        assert (fold.elsewhere.y[: len(fold.held)] == cohort.y[fold.held]).all()
    assert len(first.elsewhere) == len(second.elsewhere)
    assert abs(len(first.held) - len(second.held)) <= 10


@pytest.fixture(scope="module")
def problem():
    return trained("mlp")


@pytest.mark.parametrize("method", METHODS)
def test_every_method_selects_honestly(method: str, problem):
    model, parts = problem
    train = {"train": parts.train} if METHODS[method].needs_train else {}
    settings = QUICK.get(method, {})
    result = debias(model, parts.valid, method=method, measure="spd", min_performance=0.52, selection="honest", seed=3, **train, **settings)
    trace = result.trace
    assert {"gap_honest", "gap_se", "performance_honest", "performance_se"} <= set(trace)
    assert (trace["gap_se"].dropna() > 0).all()
    assert np.isfinite(trace["gap_honest"].iloc[[0, result.chosen]]).all()
    assert result.goal.selection == "honest"
    # What the trace says of the chosen step is true of what came back, on the whole part.
    scores = predict(result.model, parts.valid)
    decisions = result.rule.decide(scores)
    rates = [decisions[scores.attribute.codes == k].mean() for k in (0, 1)]
    assert rates[1] - rates[0] == pytest.approx(trace["gap"].iloc[result.chosen], abs=5e-3)
    if result.chosen == 0:
        assert all(torch.equal(v, model.state_dict()[k]) for k, v in result.model.state_dict().items())
        assert not result.rule.needs_group
    again = debias(model, parts.valid, method=method, measure="spd", min_performance=0.52, selection="honest", seed=3, **train, **settings)
    assert again.trace.equals(trace)


def test_the_correction_is_half_of_what_steps_lose_on_rows_held_out(problem):
    """Made again by hand: the only step of the method on all rows and on either half, and its decisions on all rows."""
    model, parts = problem
    settings = {"units": 4, "max_steps": 1}
    result = debias(
        model, parts.valid, method="pruning", measure="spd", min_performance=0.5, allow_worse=True, selection="honest", seed=3, **settings
    )

    def first_step(cohort: Cohort) -> np.ndarray:
        candidate = debias(model, cohort, method="pruning", measure="spd", min_performance=0.0, seed=3, **settings)
        assert candidate.chosen == 1  # or it would not be the network of that step
        return at_threshold(predict(candidate.model, parts.valid).score, candidate.trace["threshold"].iloc[1])

    codes = parts.valid.attribute.codes

    def gap(decisions: np.ndarray) -> float:
        return decisions[codes == 1].mean() - decisions[codes == 0].mean()

    halves = [(half, first_step(half.cohort)) for half in _halves(parts.valid, 3)]
    unknown, known = np.empty(len(codes)), np.empty(len(codes))
    for fold, decisions in halves:
        unknown[fold.held], known[fold.own] = decisions[fold.held], decisions[fold.own]
    expected = gap(first_step(parts.valid)) + (gap(unknown) - gap(known)) / 2
    assert result.trace["gap_honest"].iloc[1] == pytest.approx(expected)


def test_a_part_that_is_too_small_for_two_folds_says_so(problem):
    model, parts = problem
    groups, y = parts.valid.groups, parts.valid.y
    lone = np.flatnonzero((groups == "F") & (y == 1))[1:]
    small = parts.valid.take(np.setdiff1d(np.arange(len(y)), lone))
    with pytest.raises(TooFewPatients, match=facts("'F' positives: 1", "force=True")):
        debias(model, small, method="pruning", measure="eod", selection="honest")
    with pytest.raises(EmptyCell, match="selection='paper'"):
        debias(model, small, method="pruning", measure="eod", selection="honest", force=True)
    with pytest.raises(BadInput, match=facts("paper", "honest")):
        debias(model, small, selection="honets")


@pytest.mark.parametrize("measure", ["eod", "ppv_gap"])
def test_a_gap_of_exactly_nothing_is_no_surer_than_others(measure: str):
    y, codes = np.tile([0, 1], 100), np.repeat([0, 1], 100)
    f = np.where(np.arange(200) % 4 == 1, 1.0, 0.0)  # half of the positives of either group
    f[[0, 100]] = 1
    more = f.copy()
    more[101 if measure == "ppv_gap" else 103] = 1 - more[101 if measure == "ppv_gap" else 103]
    found = StepEstimates(np.stack([f, more]), y, codes, ("M", "F"), np.arange(200), paper_goal(measure))
    assert found.gap[0] == 0
    assert found.gap[1] != 0
    assert found.gap_se()[0] == pytest.approx(found.gap_se()[1], rel=0.1)
    if measure == "eod":
        assert found.gap_se()[0] == pytest.approx(np.sqrt(2 * 0.25 / 50), rel=0.02)  # binomial, 25 of 50 in either group


def test_held_out_decisions_are_made_by_fits_that_have_not_seen_the_row():
    """Made again by hand: the rule of the chosen step without one fifth of the rows decides on that fifth."""
    rng = np.random.default_rng(0)
    y, women = rng.integers(0, 2, 1000), rng.integers(0, 2, 1000)
    score = 1 / (1 + np.exp(-rng.normal(2 * y - 1 - 0.8 * women * y, 1.0)))
    scores = Scores.from_arrays(y, score, np.where(women, "F", "M"), reference="M")
    result, goal = any_debias(scores, method="group-thresholds", seed=3), Goal("eod", max_loss=0.02)
    assert result.chosen > 0
    fold = assign_folds(scores, 5, generator(3, "cross-fitted selection"))
    before, after = np.empty(len(scores)), np.empty(len(scores))
    for k in range(5):
        inside, outside = np.flatnonzero(fold != k), np.flatnonzero(fold == k)
        fitted = fit_steps(fit(part := scores.take(inside), goal), "group-thresholds", part)
        held = scores.take(outside)
        before[outside], after[outside] = fitted[0].rule.decide(held), fitted[result.chosen].rule.decide(held)
    np.testing.assert_array_equal(result.held_out.before, before)
    np.testing.assert_array_equal(result.held_out.after, after)
    assert result.judgement.changed == (before != after).sum()
    assert result.judgement.source == "cross-fitted"
    assert result.outcome == result.judgement.outcome


def test_an_original_that_is_kept_is_unchanged_whatever_its_gap(problem):
    model, parts = problem
    result = debias(model, parts.valid, method="group-thresholds", measure="spd", min_performance=0.999, max_gap=1.0, selection="honest")
    assert result.chosen == 0
    assert result.outcome == Outcome.UNCHANGED
    np.testing.assert_array_equal(result.held_out.before, result.held_out.after)
    published = debias(model, parts.valid, method="group-thresholds", measure="spd")
    assert (published.held_out, published.judgement, published.outcome, published.met) == (None, None, None, None)


def test_in_a_world_without_a_gap_thresholds_per_group_do_not_make_one():
    """Groups that mean nothing: what group-aware thresholds remove is chance, and would be a true gap on other patients."""
    rng = np.random.default_rng(0)
    fitted, honest = [], []
    grid = np.linspace(0.001, 0.999, 999)
    share = 1 - norm.cdf((np.log(grid / (1 - grid)) - 1.2) / 1.5)  # sensitivity at each threshold, the same in both groups
    for seed in range(12):
        n = 300
        y = rng.integers(0, 2, n)
        score = 1 / (1 + np.exp(-rng.normal(1.2 * (2 * y - 1), 1.5)))
        inputs = torch.from_numpy(np.log(score / (1 - score))[:, None]).float()
        cohort = Cohort.from_arrays(inputs, y, np.where(rng.random(n) < 0.5, "F", "M"), reference="M")
        identity = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Flatten(0))
        torch.nn.init.ones_(identity[0].weight)
        torch.nn.init.zeros_(identity[0].bias)
        for selection, into in (("paper", fitted), ("honest", honest)):
            rule = debias(identity, cohort, method="group-thresholds", selection=selection, seed=seed).rule
            cuts = [rule.cuts("F")[0], rule.cuts("M")[0]] if rule.needs_group else [0.5, 0.5]
            into.append(abs(np.interp(cuts[0], grid, share) - np.interp(cuts[1], grid, share)))
    assert np.mean(fitted) > 0.03
    assert np.mean(honest) < 0.1 * np.mean(fitted)


def test_steps_stand_for_shares_of_the_original_gap():
    trace = pd.DataFrame({"gap": [-0.2, -0.15, -0.1, 0.05, 0.0, np.nan], "performance": [0.8, 0.79, 0.795, 0.7, 0.6, 0.9]})
    found = rungs(trace)
    assert len(found) == 1 + 20 + 1
    assert [found[k] for k in (0, 1, 5, 10, 11, 15, 16, 20, 21)] == [0, 2, 2, 2, 3, 3, 4, 4, 4]  # 0.1 performs better than 0.15
    assert rungs(trace.iloc[:1]) == [0]
    assert rungs(trace.iloc[:2]) == [0, *[1] * 5, 1]


def test_steps_of_two_halves_meet_at_the_same_share_or_as_far_as_they_got():
    whole, far, near = (pd.DataFrame({"step": steps}) for steps in ([0, 3, 9, 20], [0, 4, 8, 12, 20, 23], [0, 2]))
    shares, rows = align([far, near, whole], numbered=True)
    assert shares == [0, 3, 9, 20]
    assert rows == [[0, 0, 2, 4], [0, 1, 1, 1], [0, 1, 2, 3]]
    gaps = [pd.DataFrame({"gap": gap, "performance": 0.5}) for gap in ([-0.2, -0.1, 0.0], [0.1, 0.09], [-0.1, -0.05, 0.0])]
    shares, rows = align(gaps, numbered=False)
    assert shares == [0, 1, 11]
    assert rows == [[0, 1, 2], [0, 1, 1], [0, 1, 2]]
