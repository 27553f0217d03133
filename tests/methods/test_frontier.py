"""Rules along the frontier: every step keeps at most its share of the original gaps, and is the best that does."""

from itertools import product

import numpy as np
import pytest
import torch
from torch import nn

from equipoise.data import Scores
from equipoise.measures import Cells, at_threshold
from equipoise.methods import METHODS, Fit, Goal, make_settings
from equipoise.methods.contract import Rng
from equipoise.methods.driver import step_decisions
from equipoise.methods.rules import REMOVED_SHARES, half_rows, windows, with_steps
from equipoise.models import BiasScore, FeatureCache, predict
from support.goals import paper_goal
from support.networks import biased_cohort

RULES = ["group-thresholds", "reject-option", "equalised-odds"]


def _scores(n: int, groups: int = 2, seed: int = 0, digits: int = 6) -> Scores:
    rng = np.random.default_rng(seed)
    code, y = np.arange(n) % groups, (np.arange(n) // groups) % 2
    score = np.round(np.clip(0.5 + 0.15 * (2 * y - 1) + 0.12 * code + rng.normal(0, 0.2, n), 0, 1), digits)
    return Scores.from_arrays(y, score, np.array(["a", "b", "c"], object)[code], reference="a")


def _frontier(name: str, scores: Scores, goal: Goal) -> Fit:
    return with_steps(METHODS[name].run(scores, goal, make_settings(name, {})), name, scores)


def _cells(rule, scores: Scores):
    return Cells.of(rule.decide(scores), scores.y, scores.attribute)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("groups", [2, 3])
def test_every_row_of_the_trace_is_a_rule_and_the_last_is_the_goals_own(name, groups):
    scores, goal = _scores(300, groups), paper_goal("eod", max_loss=0.05)
    own, found = METHODS[name].run(scores, goal, make_settings(name, {})), _frontier(name, scores, goal)
    assert found.trace["step"].tolist() == list(range(len(REMOVED_SHARES) + 2))
    assert len(found.steps) == len(found.trace)
    assert (found.rule, found.goal, found.met, found.chosen) == (own.rule, own.goal, own.met, len(REMOVED_SHARES) + 1)
    assert found.steps[-1].rule == own.rule
    original = at_threshold(scores.score, own.trace["threshold"].iloc[0])
    assert np.array_equal(found.steps[0].rule.decide(scores), original)
    assert not found.steps[0].rule.needs_group
    for step, row in zip(found.steps, found.trace.itertuples(), strict=True):
        cells = _cells(step.rule, scores)
        assert np.abs(cells.gaps("eod")).max() == pytest.approx(abs(row.gap), abs=1e-9)
        assert float(cells.performance("balanced_accuracy")) == pytest.approx(row.performance, abs=1e-12)


@pytest.mark.parametrize("measure", ["spd", "eod", "tnr_gap"])
@pytest.mark.parametrize("name", RULES)
def test_steps_keep_their_share_of_the_gap_on_its_side_of_zero(name, measure):
    scores = _scores(600)
    found = _frontier(name, scores, paper_goal(measure))
    before = _cells(found.steps[0].rule, scores)
    (gap,), slack = before.gaps(measure), half_rows(measure, before)
    assert abs(gap) > 0.1
    if name == "equalised-odds" and measure == "spd":
        return  # it bounds sensitivity and false positive rate, of which a gap in selection rate is a mixture
    for share, step in zip(REMOVED_SHARES, found.steps[1:-1], strict=True):
        low, high = windows(np.array([gap]), share, slack)
        (left,) = _cells(step.rule, scores).gaps(measure)
        assert low[0] - 1e-8 <= left <= high[0] + 1e-8
    performance = found.trace["performance"].to_numpy()[1:-1]
    assert (np.diff(performance) <= 1e-9).all()  # a smaller gap never comes with a better performance


def test_group_thresholds_are_the_best_of_all_in_every_window():
    for groups, n, seed in ((2, 32, 0), (3, 18, 1)):
        scores = _scores(n, groups, seed, digits=2)
        found = _frontier("group-thresholds", scores, paper_goal("eod"))
        before = _cells(found.steps[0].rule, scores)
        cuts = [np.append(np.unique(scores.score[scores.attribute.codes == k]), 1.1) for k in range(groups)]
        tried = np.array(list(product(*cuts)))
        cells = Cells.of((scores.score >= tried[:, scores.attribute.codes]).astype(float), scores.y, scores.attribute)
        gaps, performance = cells.gaps("eod"), cells.performance("balanced_accuracy")
        for share, row in zip(REMOVED_SHARES, found.trace["performance"].iloc[1:-1], strict=True):
            low, high = windows(before.gaps("eod"), share, half_rows("eod", before))
            inside = ((gaps >= low - 1e-9) & (gaps <= high + 1e-9)).all(-1)
            assert row == pytest.approx(performance[inside].max(), abs=1e-9)


def test_equalised_odds_ends_in_equal_odds():
    scores = _scores(400, 3)
    found = _frontier("equalised-odds", scores, paper_goal("eod"))
    *_, last, own = found.trace["performance"]
    assert last == pytest.approx(own, abs=1e-8)
    rates = [_cells(found.steps[-2].rule, scores).rate(("fpr", "tpr")[label]) for label in (0, 1)]
    assert np.ptp(rates, axis=1) == pytest.approx([0.0, 0.0], abs=1e-8)
    with_f1 = _frontier("equalised-odds", scores, paper_goal("eod", "f1"))
    assert (np.diff(with_f1.trace["performance"].to_numpy()[1:-1]) <= 1e-8).all()


def test_rates_that_are_kept_are_kept_at_every_step_of_group_thresholds():
    found = _frontier("group-thresholds", _scores(300), paper_goal("eod", keep={"tpr": "before"}))
    assert (found.trace["spare"] >= -1e-9).all()


def test_half_of_the_rows_twice_has_the_same_frontier():
    scores = _scores(200)
    twice = Scores.from_arrays(*(np.tile(each, 2) for each in (scores.y, scores.score, scores.groups)), reference="a")
    for name in RULES:
        one, two = (_frontier(name, each, paper_goal("eod")) for each in (scores, twice))
        # Half a row is a quarter of one where all rows are there twice; beyond that nothing differs.
        np.testing.assert_allclose(one.trace["performance"], two.trace["performance"], atol=0.02)


def test_decisions_of_all_steps_are_those_of_each_network_and_rule():
    cohort = biased_cohort(300)
    model = nn.Linear(6, 1)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, 0.7, 0.1, 0.0, 0.0, 0.0]]))
        model.bias.fill_(-0.8)
    scores, goal = predict(model, cohort), paper_goal("eod")
    for name in RULES:
        steps = _frontier(name, scores, goal).steps
        made = step_decisions(steps, model, cohort)
        assert np.array_equal(made, np.stack([step.rule.decide(scores) for step in steps]))
    probes = METHODS["bias-score"].run(model, cohort, goal, make_settings("bias-score", {"steps": 5}), Rng(0), None)
    assert len(probes.steps) == len(probes.trace)
    made = step_decisions(probes.steps, model, cohort)
    for step, decisions in zip(probes.steps, made, strict=True):
        own = predict(model if step.model is None else step.model, cohort)
        assert np.array_equal(step.rule.decide(own), decisions)
    assert not any(a is b for a in probes.steps[1].model.parameters() for b in model.parameters())
    read = FeatureCache(model, cohort.inputs)
    assert np.array_equal(step_decisions(probes.steps, model, cohort, read), made)
    networks = [step.model for step in probes.steps[1:]]
    for own, found in zip(networks, BiasScore.all_scores(networks, read.read(networks[0].reading)), strict=True):
        assert found == pytest.approx(predict(own, cohort).score, abs=1e-6)  # of its heads, and of the network as it is delivered


def test_what_was_read_of_another_network_is_not_used():
    cohort, goal = biased_cohort(200), paper_goal("eod")
    model = nn.Linear(6, 1)
    steps = METHODS["bias-score"].run(model, cohort, goal, make_settings("bias-score", {"steps": 3}), Rng(0), None).steps[1:]
    expected = step_decisions(steps, model, cohort)
    other = nn.Linear(6, 1)  # and decides otherwise
    assert np.array_equal(step_decisions(steps, model, cohort, FeatureCache(other, cohort.inputs)), expected)
