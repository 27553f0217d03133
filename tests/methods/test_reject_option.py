"""The reject option against a loop over its grid and against AIF360's own loop, and what it promises about groups and goals."""

import copy
import json

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from equipoise.comparison import audit
from equipoise.data import Attribute, Cohort, Scores
from equipoise.errors import BadInput, EmptyCell, UnknownName
from equipoise.measures import GAPS, Cells, Rule, largest_gap
from equipoise.methods import Fit, Goal, make_settings, rule_to_dict
from equipoise.methods.reject_option import RejectOption, RejectOptionSettings, reject_option
from equipoise.methods.rules import rule_from_dict
from support.chosen_scores import Logit, cohort_of, scored
from support.facts import facts, says, suggests
from support.goals import paper_goal
from support.published import debias
from support.random_scores import Sample, samples

COARSE = RejectOptionSettings(thresholds=5, margins=4, quantiles=3)
PERFORMANCES = ("balanced_accuracy", "accuracy", "f1")


def biased(shift: float, n: int = 400, seed: int = 0, reference: str = "M") -> Scores:
    """Two groups; the logits of F are moved by `shift`."""
    rng = np.random.default_rng(seed)
    women, y = rng.random(n) < 0.4, rng.integers(0, 2, n)
    score = 1 / (1 + np.exp(-rng.normal(1.5 * y - 0.75 + shift * women, 1.0)))
    return scored(score, y, np.where(women, "F", "M"), reference)


def measured(rule: Rule, scores: Scores, goal: Goal) -> tuple[float, float]:
    """Gap and performance of a rule's decisions, counted anew."""
    f, y = rule.decide(scores), scores.y
    tp, fp = f[y == 1].sum(), f[y == 0].sum()
    positives, negatives = (y == 1).sum(), (y == 0).sum()
    performance = {
        "balanced_accuracy": (tp / positives + 1 - fp / negatives) / 2,
        "accuracy": (tp + negatives - fp) / len(y),
        "f1": 2 * tp / (tp + fp + positives),
    }[goal.performance]
    return float(largest_gap(Cells.of(f, y, scores.attribute).gaps(goal.measure))), float(performance)


def ways(scores: Scores, threshold: float, measure: str) -> list[tuple[str, ...]]:
    """Whom the band may favour: the k groups with the fewest positive decisions, for each k."""
    f, sign = (scores.score >= threshold).astype(float), -1 if measure in ("fnr_gap", "tnr_gap") else 1
    gaps = [0.0, *(sign * Cells.of(f, scores.y, scores.attribute).gaps(measure))]
    levels = scores.attribute.levels
    order = sorted(range(len(levels)), key=lambda k: (gaps[k], k == 0))
    return [tuple(levels[k] for k in sorted(order[:count])) for count in range(1, len(levels))]


@pytest.mark.parametrize("measure", list(GAPS))
@given(
    sample=samples(missing=True),
    performance=st.sampled_from(PERFORMANCES),
    min_performance=st.sampled_from([None, 0.4, 0.6, 0.99]),
    max_gap=st.sampled_from([None, 0.0, 0.1, 0.3]),
)
@settings(max_examples=15)
def test_the_choice_equals_a_loop_over_the_grid(measure, sample: Sample, performance, min_performance, max_gap):
    scores, goal = sample.scores, paper_goal(measure, performance, min_performance, max_gap)
    found = reject_option(scores, goal, COARSE)
    start = found.trace.iloc[0]
    least = found.goal.min_performance
    most = COARSE.max_gap if max_gap is None else max_gap

    def merit(gap: float, value: float) -> tuple[int, float]:
        if least is not None and value < least - 1e-12:
            return 0, value
        return (2, value) if abs(gap) <= most + 1e-12 else (1, -abs(gap))

    thresholds = {*np.linspace(0.01, 0.99, 5), *np.quantile(scores.score, [1 / 6, 3 / 6, 5 / 6]), start["threshold"]}
    best = [(-1, 0.0)] * COARSE.margins
    for favoured in ways(scores, start["threshold"], measure):
        for t in thresholds:
            for k, margin in enumerate(np.linspace(0, max(0.0, min(t, 1 - t)), COARSE.margins)):
                rule = RejectOption(t, margin, favoured, scores.attribute.levels)
                best[k] = max(best[k], merit(*measured(rule, scores, goal)))
    rows = [merit(row["gap"], row["performance"]) for _, row in found.trace.iloc[1:].iterrows()]
    assert [rank for rank, _ in rows] == [rank for rank, _ in best]
    np.testing.assert_allclose([value for _, value in rows], [value for _, value in best], atol=1e-9)

    chosen = found.trace.iloc[found.chosen]
    assert merit(chosen["gap"], chosen["performance"])[0] == max(best)[0]
    assert merit(chosen["gap"], chosen["performance"])[1] == pytest.approx(max(best)[1], abs=1e-9)
    assert (chosen["threshold"], chosen["margin"]) == (found.rule.threshold, found.rule.margin)
    np.testing.assert_allclose(measured(found.rule, scores, goal), (chosen["gap"], chosen["performance"]), atol=1e-12)
    assert found.met == (
        (least is None or chosen["performance"] >= least - 1e-12) and (max_gap is None or abs(chosen["gap"]) <= max_gap + 1e-12)
    )


def aif360(scores: Scores, goal: Goal) -> tuple[float, float]:
    """Gap and performance of AIF360's choice: its loop over 100 x 50 points, its strict comparisons, its direction."""
    women, points = scores.groups == "F", []
    for t in np.linspace(0.01, 0.99, 100):
        for margin in np.linspace(0, t if t <= 0.5 else 1 - t, 50):
            decision = (scores.score > t).astype(float)
            band = (scores.score <= t + margin) & (scores.score > t - margin)
            decision[band & ~women], decision[band & women] = 0.0, 1.0
            rates = [decision[rows & (scores.y == 1)].mean() for rows in (women, ~women)]
            balanced = (decision[scores.y == 1].mean() + 1 - decision[scores.y == 0].mean()) / 2
            points.append((rates[0] - rates[1], balanced))
    assert goal.measure == "eod"
    inside = [p for p in points if abs(p[0]) <= 0.05]
    return max(inside, key=lambda p: p[1])


@pytest.mark.parametrize("shift", [-1.2, 1.2])
def test_no_worse_than_aif360_on_the_fitted_data_whatever_the_sign_of_the_gap(shift: float):
    scores, goal = biased(shift), paper_goal("eod", max_gap=0.05)
    theirs = aif360(scores, goal)
    found = reject_option(scores, goal)
    gap, performance = found.trace.iloc[found.chosen][["gap", "performance"]]
    assert found.met
    assert abs(gap) <= 0.05
    assert performance >= theirs[1] - 1e-12
    # Kamiran's direction on AIF360's grid is AIF360, where no score lies on an edge.
    same = reject_option(scores, goal, RejectOptionSettings(direction="kamiran", quantiles=0))
    assert same.trace.iloc[same.chosen]["performance"] == pytest.approx(theirs[1], abs=1e-12)
    if shift > 0:
        assert performance > theirs[1] + 0.01


def test_the_band_helps_the_group_that_is_behind():
    behind, ahead = biased(-1.2), biased(1.2)
    goal = paper_goal("eod", max_gap=0.05)
    assert reject_option(behind, goal).rule.favoured == ("F",)
    assert reject_option(ahead, goal).rule.favoured == ("M",)
    assert reject_option(ahead, goal, RejectOptionSettings(direction="kamiran")).rule.favoured == ("F",)
    for opposite in ("fnr_gap", "tnr_gap"):  # a lower value means more positives
        assert reject_option(ahead, paper_goal(opposite, max_gap=0.05)).rule.favoured == ("M",)
    trace = reject_option(ahead, goal).trace
    assert trace["gap"].iloc[0] > 0.2
    assert trace["step"].tolist() == list(range(51))


@given(shift=st.floats(-2, 2), seed=st.integers(0, 99), measure=st.sampled_from(["spd", "eod", "aod"]))
@settings(max_examples=20)
def test_swapping_the_reference_flips_the_sign_and_nothing_else(shift: float, seed: int, measure: str):
    one, other = (reject_option(biased(shift, 120, seed, reference), paper_goal(measure, max_gap=0.05)) for reference in ("M", "F"))
    assume(abs(one.trace["gap"].iloc[0]) > 1e-9)
    assert (one.rule.threshold, one.rule.margin, one.rule.favoured) == (other.rule.threshold, other.rule.margin, other.rule.favoured)
    np.testing.assert_allclose(one.trace["gap"], -other.trace["gap"], atol=1e-12)
    np.testing.assert_allclose(one.trace["performance"], other.trace["performance"], atol=1e-12)


def test_a_band_by_hand():
    rule = RejectOption(0.5, 0.25, ("F",), ("M", "F"))
    score = [0.2, 0.25, 0.5, 0.75, 0.9]
    women, men = (scored([*score, 0.0], [0, 1, 0, 1, 0, 1], [sex] * 5 + [other]) for sex, other in ("FM", "MF"))
    assert rule.decide(women)[:5].tolist() == [0, 1, 1, 1, 1]
    assert rule.decide(men)[:5].tolist() == [0, 0, 0, 1, 1]
    assert rule.needs_group
    assert isinstance(rule, Rule)


def test_a_margin_of_zero_is_the_plain_threshold():
    scores = scored([0.4, 0.4, 0.5, 0.5], [0, 1, 0, 1], ["F", "M", "F", "M"])
    assert RejectOption(0.5, 0.0, ("F",), ("M", "F")).decide(scores).tolist() == [0, 0, 1, 1]


def test_constant_scores_leave_one_decision_for_everybody_and_no_gap():
    scores = scored([0.3] * 8, [0, 1] * 4, ["F"] * 4 + ["M"] * 4)
    found = reject_option(scores, paper_goal("spd", max_gap=0.0))
    assert found.met
    assert found.trace["performance"].iloc[found.chosen] == 0.5
    assert len(set(found.rule.decide(scores))) == 1


def test_a_missing_group_gets_the_plain_threshold():
    rule = RejectOption(0.5, 0.25, ("F",), ("M", "F"))
    scores = scored([0.4, 0.6, 0.4, 0.6, 0.4, 0.6], [0, 1, 0, 1, 0, 1], ["F", "F", "M", "M", None, None])
    assert rule.decide(scores).tolist() == [1, 1, 0, 0, 0, 1]
    assert says(rule.describe(), ">= 0.75 for M", ">= 0.5")


def test_a_group_that_was_never_seen_is_named():
    rule = RejectOption(0.5, 0.25, ("F",), ("M", "F"))
    with pytest.raises(BadInput, match=facts("M", "F", "X", "scores")):
        rule.decide(scored([0.4, 0.6, 0.5], [0, 1, 0], ["F", "M", "X"]))
    # A level without rows is no matter, nor is the order of the groups.
    attribute = Attribute("sex", ("X", "F", "M"), np.array([1, 2]))
    few = Scores(np.array([0, 1]), np.array([0.4, 0.4]), (attribute,), None, np.arange(2).astype(object))
    assert rule.decide(few).tolist() == [1, 0]


def test_more_than_two_groups_the_lowest_are_favoured():
    rng = np.random.default_rng(3)
    n = 900
    code, y = rng.integers(0, 3, n), rng.integers(0, 2, n)
    score = 1 / (1 + np.exp(-rng.normal(1.5 * y - 0.75 + np.array([0.0, -1.0, -0.9])[code], 1.0)))
    scores = scored(score, y, np.array(["A", "B", "C"])[code], reference="A")
    found = reject_option(scores, paper_goal("eod", max_gap=0.1))
    assert set(found.rule.favoured) == {"B", "C"}
    assert found.met
    assert abs(found.trace["gap"].iloc[0]) > 0.2


def test_goals():
    rng = np.random.default_rng(1)
    women = rng.random(600) < 0.4
    y = (rng.random(600) < np.where(women, 0.25, 0.6)).astype(int)
    score = 1 / (1 + np.exp(-rng.normal(1.5 * y - 0.75 - women, 1.0)))
    scores = scored(score, y, np.where(women, "F", "M"))  # equal selection rates cost performance here

    def end(found: Fit) -> tuple[float, float]:
        return tuple(found.trace.iloc[found.chosen][["gap", "performance"]])

    free = reject_option(scores, paper_goal("spd"))
    start = free.trace["performance"].iloc[0]
    assert free.goal.min_performance == pytest.approx(start - 0.02)
    assert free.met
    assert end(free)[1] >= start - 0.02

    wide, narrow = (reject_option(scores, paper_goal("spd", max_gap=max_gap)) for max_gap in (0.2, 0.01))
    assert wide.met
    assert narrow.met
    assert abs(end(narrow)[0]) <= 0.01 < 0.05 < abs(end(wide)[0]) <= 0.2
    assert end(wide)[1] > end(narrow)[1]

    high = reject_option(scores, paper_goal("spd", min_performance=0.99))
    assert not high.met
    assert (high.why[0].numbers["by"], high.why[0].numbers["qualified"], high.why[0].numbers["min_performance"]) == ("performance", 0, 0.99)
    assert end(high)[1] >= start - 1e-12

    both = reject_option(
        scores, paper_goal("spd", min_performance=start, max_gap=0.01)
    )  # what keeps the minimum performance is above the maximum gap
    assert not both.met
    assert (both.why[0].numbers["by"], both.why[0].numbers["qualified"], both.why[0].numbers["max_gap"]) == ("gap", 0, 0.01)
    assert end(both)[1] >= start - 1e-9
    assert reject_option(
        scores, paper_goal("spd", min_performance=start)
    ).met  # the maximum gap of the settings is a wish, that of the goal a condition

    own, goals = (
        reject_option(scores, paper_goal("spd", min_performance=0.5), RejectOptionSettings(max_gap=0.01)),
        reject_option(scores, paper_goal("spd", min_performance=0.5, max_gap=0.01)),
    )
    assert (own.rule.threshold, own.rule.margin) == (goals.rule.threshold, goals.rule.margin)


def test_debias_leaves_the_network_alone_and_is_repeatable():
    cohort, model = cohort_of(biased(-1.2)), Logit().train()
    state, before = copy.deepcopy(model.state_dict()), set(vars(model))
    calls = []
    found, again = (
        debias(model, cohort, method="reject-option", measure="eod", max_gap=0.05, progress=lambda *at: calls.append(at)) for _ in range(2)
    )
    assert found.rule == again.rule
    pd.testing.assert_frame_equal(found.trace, again.trace)
    assert calls == [(1, 1), (1, 1)]
    assert found.model is not model
    assert model.training
    assert model.scale.grad is None
    assert set(vars(model)) == before
    assert all(torch.equal(state[k], v) for k, v in model.state_dict().items())
    assert found.method == "reject-option"
    assert found.settings["margins"] == 50
    assert found.notes[0].kind == "needs_group"
    chosen = found.trace.iloc[found.chosen]
    checked = audit(found, cohort)
    assert checked["eod"].value == pytest.approx(chosen["gap"], abs=1e-12)
    assert checked["balanced_accuracy"].value == pytest.approx(chosen["performance"], abs=1e-12)


def test_a_rule_survives_json():
    rule = reject_option(biased(-1.2), paper_goal("eod", max_gap=0.05)).rule
    assert rule_from_dict(json.loads(json.dumps(rule_to_dict(rule)))) == rule
    with pytest.raises(BadInput, match=facts("needs_group")):
        rule_from_dict({**rule_to_dict(rule), "kind": "threshold"})


def test_bad_settings_and_empty_cells():
    with pytest.raises(UnknownName, match=suggests("margins")):
        make_settings("reject-option", {"margin": 0.1})
    with pytest.raises(UnknownName, match=facts("auto", "kamiran")):
        RejectOptionSettings(direction="up")
    with pytest.raises(BadInput, match=facts("gap", 2.0)):
        RejectOptionSettings(max_gap=2.0)
    with pytest.raises(BadInput, match=facts(1, "threshold")):
        RejectOptionSettings(thresholds=0)
    cohort = Cohort.from_arrays(torch.zeros(4, 1), [0, 0, 1, 0], ["F", "F", "M", "M"], reference="M")
    with pytest.raises(EmptyCell, match=facts("eod", "F")):
        debias(Logit(), cohort, method="reject-option", measure="eod")
