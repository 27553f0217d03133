"""Equalised odds against a loop over mixtures and against AIF360's program, and its laws: equal odds, no worse than trivial, fair coins."""

import copy
import itertools
import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from equipoise.comparison import audit
from equipoise.data import Attribute, Scores
from equipoise.errors import BadInput, EmptyCell, UnknownName
from equipoise.measures import Cells, Rule
from equipoise.methods import make_settings, rule_to_dict
from equipoise.methods.equalised_odds import EqualisedOdds, EqualisedOddsSettings, Steps, equalised_odds
from equipoise.methods.rules import rule_from_dict
from support.chosen_scores import Logit, cohort_of, scored
from support.facts import facts, says, suggests
from support.goals import paper_goal
from support.notes import note_of
from support.published import debias
from support.random_scores import Sample, samples

PERFORMANCES = ("balanced_accuracy", "accuracy", "f1")
RULE = EqualisedOdds(("M", "F"), (Steps((0.5,), (0.0, 1.0)), Steps((0.25, 0.75), (0.0, 0.5, 1.0))), (0.75, 0.25))


def biased(n: int = 400, seed: int = 0, reference: str = "M") -> Scores:
    """Two groups with other prevalences, other means and other noise."""
    rng = np.random.default_rng(seed)
    women = rng.random(n) < 0.4
    y = (rng.random(n) < np.where(women, 0.3, 0.5)).astype(int)
    score = 1 / (1 + np.exp(-rng.normal(1.5 * y - 0.75 - women, np.where(women, 1.5, 1.0))))
    return scored(score, y, np.where(women, "F", "M"), reference)


def value_of(performance: str, fpr: float, tpr: float, y: np.ndarray) -> float:
    """A performance measure of everybody, where all groups have these rates."""
    positives, negatives = (y == 1).sum(), (y == 0).sum()
    return {
        "balanced_accuracy": (tpr + 1 - fpr) / 2,
        "accuracy": (tpr * positives + (1 - fpr) * negatives) / len(y),
        "f1": 2 * tpr * positives / (tpr * positives + fpr * negatives + positives),
    }[performance]


@given(sample=samples(missing=True), performance=st.sampled_from(PERFORMANCES), base=st.sampled_from(["score", "threshold"]))
@settings(max_examples=150)
def test_odds_are_equal_on_the_fitted_data_and_no_trivial_rule_is_better(sample: Sample, performance: str, base: str):
    scores, goal = sample.scores, paper_goal("aod", performance)
    found = equalised_odds(scores, goal, EqualisedOddsSettings(base))
    f, y = found.rule.decide(scores), scores.y
    assert ((f >= 0) & (f <= 1)).all()
    cells = Cells.of(f, y, scores.attribute)
    for label in (0, 1):
        rates = cells.rate(("fpr", "tpr")[label])
        np.testing.assert_allclose(rates, rates[0], atol=1e-9)
    assert found.trace["gap"].tolist()[1] == 0.0
    fpr, tpr = (f[y == label].mean() for label in (0, 1))
    assert found.trace["performance"].iloc[1] == pytest.approx(value_of(performance, fpr, tpr, y), abs=1e-12)
    trivial = max(value_of(performance, rate, rate, y) for rate in (0.0, 1.0))
    assert found.trace["performance"].iloc[1] >= trivial - 1e-9
    if base == "score":  # more positives for higher scores, never fewer
        assert all(np.diff(steps.probabilities).min(initial=0.0) >= 0 for steps in found.rule.steps)


def roc(score: np.ndarray, y: np.ndarray) -> list[tuple[float, float]]:
    """Every threshold of one group, one by one: (FPR, TPR)."""
    cuts = [*np.unique(score), np.inf]
    return [tuple(float((score[y == label] >= cut).mean()) for label in (0, 1)) for cut in cuts]


def highest(points: list[tuple[float, float]], fpr: float) -> float:
    """The best TPR at this FPR among all mixtures of two thresholds."""
    best = 0.0
    for (x0, y0), (x1, y1) in itertools.product(points, repeat=2):
        if x0 <= fpr <= x1:
            best = max(best, max(y0, y1) if x0 == x1 else y0 + (y1 - y0) * (fpr - x0) / (x1 - x0))
    return best


def crossings(one: list[tuple[float, float]], other: list[tuple[float, float]]) -> list[float]:
    """Where chords of two curves meet."""
    found = []
    for (a, b), (c, d) in itertools.product(itertools.combinations(one, 2), itertools.combinations(other, 2)):
        if a[0] != b[0] and c[0] != d[0]:
            slopes = (b[1] - a[1]) / (b[0] - a[0]), (d[1] - c[1]) / (d[0] - c[0])
            if abs(slopes[0] - slopes[1]) > 1e-9:
                found.append((c[1] - a[1] + slopes[0] * a[0] - slopes[1] * c[0]) / (slopes[0] - slopes[1]))
    return [x for x in found if 0 <= x <= 1]


@pytest.mark.parametrize("performance", PERFORMANCES)
@given(seed=st.integers(0, 10_000), ties=st.booleans())
@settings(max_examples=12)
def test_the_program_equals_a_loop_over_mixtures(performance: str, seed: int, ties: bool):
    rng = np.random.default_rng(seed)
    n = 14
    women = np.arange(n) % 2 == 0
    y = np.array([0, 0, 1, 1, *rng.integers(0, 2, n - 4)])
    score = rng.integers(0, 4, n) / 4 if ties else rng.random(n)
    scores = scored(score, y, np.where(women, "F", "M"))
    curves = [roc(score[rows], y[rows]) for rows in (women, ~women)]
    places = {x for curve in curves for x, _ in curve} | set(crossings(*curves))
    best = max(value_of(performance, x, min(highest(curve, x) for curve in curves), y) for x in places)
    assert equalised_odds(scores, paper_goal("eod", performance)).trace["performance"].iloc[1] == pytest.approx(best, abs=1e-9)


@given(seed=st.integers(0, 10_000), worse=st.booleans())
@settings(max_examples=25)
def test_the_threshold_variant_equals_aif360s_four_variables(seed: int, worse: bool):
    scores = biased(80, seed)
    if worse:  # than chance, for everybody: the best derived predictor is the opposite
        scores = scored(1 - scores.score, scores.y, scores.groups)
    positive, women = scores.score >= 0.5, scores.groups == "F"
    tpr, fpr = ([positive[rows & (scores.y == label)].mean() for rows in (~women, women)] for label in (1, 0))
    # Variables: p(1 | 1, M), p(1 | 0, M), p(1 | 1, F), p(1 | 0, F); the objective is the sum of FPR - TPR over both groups.
    cost = [fpr[0] - tpr[0], tpr[0] - fpr[0], fpr[1] - tpr[1], tpr[1] - fpr[1]]
    equal = [[tpr[0], 1 - tpr[0], -tpr[1], tpr[1] - 1], [fpr[0], 1 - fpr[0], -fpr[1], fpr[1] - 1]]
    theirs = linprog(cost, A_eq=equal, b_eq=[0, 0], bounds=(0, 1))
    found = equalised_odds(scores, paper_goal("eod"), EqualisedOddsSettings("threshold"))
    assert found.trace["performance"].iloc[1] == pytest.approx(0.5 - theirs.fun / 4, abs=1e-9)
    assert all(steps.thresholds in ((), (0.5,)) for steps in found.rule.steps)
    if not worse:
        assert equalised_odds(scores, paper_goal("eod")).trace["performance"].iloc[1] >= found.trace["performance"].iloc[1] - 1e-9


@given(seed=st.integers(0, 10_000), performance=st.sampled_from(PERFORMANCES))
@settings(max_examples=15)
def test_swapping_the_reference_changes_nothing_but_the_sign(seed: int, performance: str):
    one, other = (equalised_odds(biased(100, seed, reference), paper_goal("spd", performance)) for reference in ("M", "F"))
    np.testing.assert_allclose(one.trace["performance"], other.trace["performance"], atol=1e-9)
    assert one.trace["gap"].iloc[0] == pytest.approx(-other.trace["gap"].iloc[0])


def test_scores_that_say_everything_and_scores_that_say_nothing():
    y, sex = [0, 1] * 4, ["F"] * 4 + ["M"] * 4
    perfect = equalised_odds(scored([0.2, 0.7, 0.1, 0.6, 0.4, 0.9, 0.3, 0.8], y, sex), paper_goal("eod"))
    assert perfect.trace["performance"].iloc[1] == 1.0
    assert all(steps.probabilities == (0.0, 1.0) for steps in perfect.rule.steps)
    constant = equalised_odds(scored([0.3] * 8, y, sex), paper_goal("eod", max_gap=0.0))
    assert constant.trace["performance"].iloc[1] == 0.5
    assert constant.met
    assert all(steps.thresholds == () for steps in constant.rule.steps)


def test_steps_by_hand():
    scores = scored([0.2, 0.25, 0.75, 0.4, 0.5, 0.5], [0, 1, 0, 1, 0, 1], ["F", "F", "F", "M", "M", None])
    assert RULE.decide(scores).tolist() == [0.0, 0.5, 1.0, 0.0, 1.0, 0.75 * 1.0 + 0.25 * 0.5]
    assert RULE.needs_group
    assert isinstance(RULE, Rule)


def test_missing_groups_are_weighted_by_the_shares_of_the_others():
    scores = biased(200)
    groups = scores.groups.copy()
    groups[:20] = None
    found = equalised_odds(scored(scores.score, scores.y, groups), paper_goal("eod"))
    kept = groups[20:]
    np.testing.assert_allclose(found.rule.shares, [(kept == "M").mean(), (kept == "F").mean()])
    places = [np.searchsorted(steps.thresholds, scores.score[:20], side="right") for steps in found.rule.steps]
    each = [np.array(steps.probabilities)[place] for steps, place in zip(found.rule.steps, places, strict=True)]
    np.testing.assert_allclose(found.rule.decide(scored(scores.score, scores.y, groups))[:20], np.array(found.rule.shares) @ np.stack(each))
    men, women = found.rule.shares
    assert says(found.rule.describe(), f"M {men:.3g}", f"F {women:.3g}")


def test_a_group_that_was_never_seen_is_named():
    with pytest.raises(BadInput, match=facts("M", "F", "X", "scores")):
        RULE.decide(scored([0.4, 0.6, 0.5], [0, 1, 0], ["F", "M", "X"]))
    attribute = Attribute("sex", ("X", "F", "M"), np.array([1, 2]))  # a level without rows is no matter
    few = Scores(np.array([0, 1]), np.array([0.4, 0.6]), (attribute,), None, np.arange(2).astype(object))
    assert RULE.decide(few).tolist() == [0.5, 1.0]


def named(scores: Scores) -> Scores:
    """The scores with ids."""
    return replace(scores, ids=np.array([f"row {k}" for k in range(len(scores))], dtype=object))


def test_draws_are_repeatable_and_as_frequent_as_they_say():
    scores = named(scored([0.2, 0.4, 0.8, 0.4, 0.6], [0, 1, 0, 1, 0], ["F", "F", "F", "M", "M"]))
    state = np.random.get_state()[1].copy()  # noqa: NPY002
    assert np.array_equal(RULE.draw(scores, 7), RULE.draw(scores, 7))
    draws = np.stack([RULE.draw(scores, seed) for seed in range(2000)])
    assert np.array_equal(np.random.get_state()[1], state)  # noqa: NPY002
    assert set(np.unique(draws)) == {0.0, 1.0}
    chance = RULE.decide(scores)
    assert np.array_equal(draws.mean(0)[chance != 0.5], chance[chance != 0.5])
    assert draws.mean(0)[1] == pytest.approx(0.5, abs=4 * 0.5 / np.sqrt(2000))
    many = named(scored(np.full(20_000, 0.4), np.arange(20_000) % 2, ["F"] * 19_999 + ["M"]))
    assert RULE.draw(many, 0).mean() == pytest.approx(0.5, abs=4 * 0.5 / np.sqrt(20_000))


def test_goals():
    scores = biased()
    free = equalised_odds(scores, paper_goal("eod"))
    start, end = free.trace["performance"]
    assert free.trace["step"].tolist() == [0, 1]
    assert free.goal.min_performance == pytest.approx(start - 0.02)
    assert free.met == (end >= start - 0.02)
    assert equalised_odds(scores, paper_goal("eod", min_performance=end - 0.01)).met
    missed = equalised_odds(scores, paper_goal("eod", min_performance=0.99))
    assert not missed.met
    assert note_of(missed.why, "too_low").numbers["least"] == 0.99
    assert equalised_odds(scores, paper_goal("eod", max_gap=0.0)).met  # to the last bit
    gap = abs(equalised_odds(scores, paper_goal("spd")).trace["gap"].iloc[1])
    assert gap > 0.01  # prevalences differ, so selection rates must
    above = equalised_odds(scores, paper_goal("spd", max_gap=gap / 2))
    assert not above.met
    assert note_of(above.why, "too_large").numbers == {"value": pytest.approx(gap), "most": gap / 2}
    assert equalised_odds(scores, paper_goal("spd", max_gap=gap * 1.01)).met
    assert equalised_odds(scores, paper_goal("spd")).rule == free.rule  # the program does not look at the measure


def test_debias_leaves_the_network_alone_and_is_repeatable():
    scores = biased()
    cohort, model = cohort_of(scores), Logit().train()
    state, before, calls = copy.deepcopy(model.state_dict()), set(vars(model)), []
    found, again = (
        debias(model, cohort, method="equalised-odds", measure="spd", max_gap=0.05, progress=lambda *at: calls.append(at)) for _ in range(2)
    )
    assert found.rule == again.rule
    pd.testing.assert_frame_equal(found.trace, again.trace)
    assert calls == [(1, 1), (1, 1)]
    assert found.model is not model
    assert model.training
    assert model.scale.grad is None
    assert set(vars(model)) == before
    assert all(torch.equal(state[k], v) for k, v in model.state_dict().items())
    assert (found.method, found.chosen, found.settings["base"]) == ("equalised-odds", 1, "score")
    assert [(note.kind, note.subject) for note in found.notes[:3]] == [("needs_group", ""), ("randomised", ""), ("not_its_target", "spd")]
    checked = audit(found, cohort)
    assert checked["eod"].value == pytest.approx(0.0, abs=1e-9)
    assert checked["fpr_gap"].value == pytest.approx(0.0, abs=1e-9)
    assert checked["balanced_accuracy"].value == pytest.approx(found.trace["performance"].iloc[1], abs=1e-9)


def test_a_rule_survives_json():
    rule = equalised_odds(biased(), paper_goal("eod")).rule
    assert rule_from_dict(json.loads(json.dumps(rule_to_dict(rule)))) == rule
    with pytest.raises(BadInput, match=facts("steps")):
        rule_from_dict({**rule_to_dict(rule), "kind": "reject-option"})


def test_bad_settings_and_empty_cells():
    with pytest.raises(UnknownName, match=suggests("threshold")):
        make_settings("equalised-odds", {"treshold": 0.5})
    with pytest.raises(UnknownName, match=facts("score", "threshold")):
        EqualisedOddsSettings(base="hard")
    with pytest.raises(BadInput, match=facts("threshold", 1.5)):
        EqualisedOddsSettings(threshold=1.5)
    with pytest.raises(EmptyCell, match=facts("F", 2, 0)):
        equalised_odds(scored([0.1, 0.2, 0.3, 0.4], [1, 1, 1, 0], ["F", "F", "M", "M"]), paper_goal("eod"))
