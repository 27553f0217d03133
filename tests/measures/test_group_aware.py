"""The upper bound is the optimum of the linear program over every threshold, by a solver; nothing that knows the group goes beyond it."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from equipoise.data import Attribute, Scores
from equipoise.errors import BadInput, UnknownName
from equipoise.measures import GAPS, RATES, Cells, largest_gap, measure_of, upper_bound
from equipoise.methods.equalised_odds import equalised_odds
from equipoise.methods.thresholds import group_thresholds
from support.facts import facts
from support.goals import paper_goal
from support.random_scores import Sample, samples

BOUNDS = [0.0, 0.02, 0.1, 0.35, 1.0]
OWN = "tpr-fpr"  # falls and rises along the ROC curve


def _solved(sample: Sample, measure, performance: str, max_gap: float) -> float:
    """The best mixture of all thresholds of all groups, written out row by row for a general solver."""
    y, codes, score = sample.y, sample.attribute.codes, sample.score
    groups = [g for g in range(-1, len(sample.attribute.levels)) if (codes == g).any()]
    rules = [(g, (codes == g) & (score >= t)) for g in groups for t in [np.inf, *np.unique(score[codes == g])]]

    def rate(rows: np.ndarray, decided: np.ndarray, name: str) -> float:
        among = rows & (y == RATES[name]) if RATES[name] is not None else rows
        return (decided & among).sum() / among.sum()

    def value(g: int, decided: np.ndarray) -> float:
        return sum(sign * rate(codes == g, decided, name) for name, sign in measure_of(measure).rates.items())

    share = {1: (y == 1).sum(), 0: (y == 0).sum()} if performance == "balanced_accuracy" else {1: len(y) / 2, 0: len(y) / 2}
    gain = [0.5 * (d & (y == 1)).sum() / share[1] - 0.5 * (d & (y == 0)).sum() / share[0] for _, d in rules]
    at = np.array([[value(h, d) if g == h else 0.0 for g, d in rules] for h in range(len(sample.attribute.levels))])
    gaps = at[1:] - at[:1]
    mixed = np.array([[g == h for g, _ in rules] for h in groups], dtype=float)
    found = linprog(-np.array(gain), np.vstack([gaps, -gaps]), np.full(2 * len(gaps), max_gap), mixed, np.ones(len(groups)))
    assert found.success
    return 0.5 * (y == 0).sum() / share[0] - found.fun


@given(samples(missing=True), st.sampled_from([*GAPS, OWN]), st.sampled_from(["balanced_accuracy", "accuracy"]), st.sampled_from(BOUNDS))
def test_it_is_the_optimum_of_the_linear_program(sample: Sample, measure, performance: str, max_gap: float):
    found = upper_bound(sample.score, sample.y, sample.attribute.codes, sample.attribute.levels, measure, performance, [max_gap])
    assert found == pytest.approx([_solved(sample, measure, performance, max_gap)], abs=1e-8)


@given(samples(), st.sampled_from(["spd", "eod", "aod", "fpr_gap"]))
def test_the_line_rises_and_bends_down(sample: Sample, measure: str):
    bounds = np.linspace(0, 1, 21)
    found = upper_bound(sample.score, sample.y, sample.attribute.codes, sample.attribute.levels, measure, "accuracy", bounds)
    assert (np.diff(found) >= -1e-12).all()
    assert (np.diff(found, 2) <= 1e-9).all()  # a mixture of two rules is a rule


@pytest.mark.parametrize("measure", ["spd", "eod", "aod", "fpr_gap"])
def test_no_choice_of_a_threshold_a_group_is_beyond_it(measure: str):
    rng = np.random.default_rng(3)
    y, code = rng.integers(0, 2, 24), np.repeat([0, 1, 2], 8)
    y[:3], y[8:11], y[16:19] = [0, 1, 1], [0, 1, 0], [1, 0, 1]
    score = np.round(0.3 * y + 0.1 * code + rng.random(24) / 2, 1)
    attribute = Attribute("g", ("a", "b", "c"), code)
    cuts = [np.append(np.unique(score[code == k]), 2.0) for k in range(3)]
    decided = np.array([score >= np.array(cut)[code] for cut in product(*cuts)]).astype(float)
    cells = Cells.of(decided, y, attribute)
    gap, performance = np.abs(largest_gap(cells.gaps(measure))), cells.performance("balanced_accuracy")
    best = upper_bound(score, y, code, attribute.levels, measure, "balanced_accuracy", gap)
    assert (performance <= best + 1e-12).all()
    assert upper_bound(score, y, code, attribute.levels, measure, "balanced_accuracy", [2.0])[0] == pytest.approx(performance.max())


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("method", [group_thresholds, equalised_odds])
def test_methods_that_know_the_group_stay_within_it(method, seed: int):
    rng = np.random.default_rng(seed)
    women, y = rng.random(300) < 0.4, rng.integers(0, 2, 300)
    score = 1 / (1 + np.exp(-rng.normal(1.5 * y - 0.75 - women, 1.0 + women)))
    scores = Scores.from_arrays(y, score, np.where(women, "F", "M"), reference="M")
    attribute = scores.attribute
    for max_gap in (0.0, 0.05):
        rule = method(scores, paper_goal("eod", max_gap=max_gap)).rule
        cells = Cells.of(rule.decide(scores), y, attribute)
        gap, performance = float(cells.gaps("eod")[0]), float(cells.performance("balanced_accuracy"))
        [best] = upper_bound(score, y, attribute.codes, attribute.levels, "eod", "balanced_accuracy", [abs(gap)])
        assert performance <= best + 1e-12
        if method is group_thresholds and max_gap:  # thresholds alone come near, on this many patients, where a gap is allowed
            assert performance > best - 0.03


def test_there_is_no_line_for_what_is_no_sum_of_rates():
    few = ([0.9, 0.1, 0.6, 0.4], [1, 0, 0, 1], [0, 0, 1, 1], ("M", "F"))
    assert upper_bound(*few, "ppv_gap", "balanced_accuracy", [0.1]) is None
    assert upper_bound(*few, "eod", "f1", [0.1]) is None
    assert upper_bound(*few, "npv_gap", "accuracy", [0.1]) is None
    assert upper_bound(*few, OWN, "accuracy", [0.1]) is not None
    with pytest.raises(UnknownName, match="oed"):
        upper_bound(*few, "oed", "accuracy", [0.1])
    with pytest.raises(BadInput, match=facts(-0.1)):
        upper_bound(*few, "eod", "accuracy", [-0.1])


def test_a_group_without_the_cell_is_held_back_by_nothing():
    score, y, codes = [0.9, 0.1, 0.6, 0.4, 0.7, 0.3], [1, 0, 0, 1, 0, 0], [0, 0, 1, 1, 2, 2]
    whole = upper_bound(score, y, codes, ("a", "b", "c"), "eod", "accuracy", [0.0])
    assert whole == pytest.approx(_with_free(score, y, codes))
    assert np.isnan(upper_bound(score, y, [2, 2, 1, 1, 0, 0], ("a", "b", "c"), "eod", "accuracy", [0.0])).all()  # no positive
    assert np.isnan(upper_bound(score[:2], [1, 1], [0, 1], ("a", "b"), "spd", "balanced_accuracy", [0.0])).all()  # nobody is negative


def _with_free(score: list[float], y: list[int], codes: list[int]) -> list[float]:
    """The bound of the first two groups, and the third, which has negatives alone, all decided negative."""
    four = upper_bound(score[:4], y[:4], codes[:4], ("a", "b"), "eod", "accuracy", [0.0])
    assert four is not None
    return [(4 * float(four[0]) + 2) / 6]
