"""The options of a committee on held-out rows, and what limits rules on the original's scores."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from equipoise.comparison import KEEP_ORIGINAL, SMALLEST_GAP, WITHOUT_GROUP, limits_of
from equipoise.data import Scores
from equipoise.errors import BadInput
from equipoise.report import in_terminal, repair_screen
from support.cases import small_case
from support.pages import repair_page


@pytest.fixture(scope="module")
def case():
    return small_case(rows=900, methods=("pruning",))


def test_the_options_are_rules_on_the_same_rows_and_the_choice_is_marked(case):
    named = {option.name: option for option in case.options}
    assert {KEEP_ORIGINAL, SMALLEST_GAP, WITHOUT_GROUP, "pruning"} <= set(named)
    assert [name for name, option in named.items() if option.chosen] == ["pruning"]
    y, codes = case.original.test.y, case.original.test.attribute.codes
    for option in named.values():
        flagged = option.tried.decisions()
        for balance, rows in zip(option.balances, (codes == 0, codes == 1, codes >= 0), strict=True):
            assert balance.missed_after == pytest.approx((flagged[rows & (y == 1)] == 0).sum() / rows.sum())
            assert balance.alarms_after == pytest.approx((flagged[rows & (y == 0)] == 1).sum() / rows.sum())
        sensitivity = [flagged[(codes == k) & (y == 1)].mean() for k in (0, 1)]
        assert option.gap.value == pytest.approx(sensitivity[1] - sensitivity[0])
    assert not named[WITHOUT_GROUP].tried.candidate.rule.needs_group
    assert abs(named[SMALLEST_GAP].gap.value) < abs(named[KEEP_ORIGINAL].gap.value)


def test_another_option_is_taken_without_fitting_again(case):
    taken = case.choose(SMALLEST_GAP)
    assert taken.result.candidate.rule == {option.name: option for option in case.options}[SMALLEST_GAP].tried.candidate.rule
    assert [option.name for option in taken.options if option.chosen] == [SMALLEST_GAP]
    assert taken.found.gap_after.value == pytest.approx({option.name: option for option in case.options}[SMALLEST_GAP].gap.value)
    with pytest.raises(BadInput, match="smallest gap"):
        case.choose("smalest gap")


def test_every_renderer_shows_the_options(case):
    from rich.console import Console

    with (console := Console(width=120)).capture() as told:
        console.print(in_terminal(repair_screen(case)))
    page = repair_page(case)
    for option in case.options:
        assert option.name in page
        assert option.name.split()[0] in told.get()
    assert 'id="options"' in page


def _scores(noise: tuple[float, float], n: int = 2000, seed: int = 0) -> Scores:
    rng = np.random.default_rng(seed)
    group, y = np.arange(n) % 2, (np.arange(n) // 2) % 2
    score = np.clip(0.5 + 0.2 * (2 * y - 1) + rng.normal(0, 1, n) * np.array(noise)[group], 0, 1)
    return Scores.from_arrays(y, score, np.array(["M", "F"], object)[group], reference="M")


def test_a_classifier_that_is_worse_in_a_group_is_named_and_an_equal_one_is_not():
    worse = limits_of(_scores((0.15, 0.5)), 0.5, 0.95, 5).worse
    assert (worse.group, worse.reference) == ("F", "M")
    assert worse.high < 0
    alike = [limits_of(_scores((0.3, 0.3), 400, seed), 0.5, 0.95, 5).worse is None for seed in range(60)]
    assert np.mean(alike) >= 0.85  # 0.95 in the long run


def test_the_exchange_counts_alarms_and_cases():
    scores = _scores((0.15, 0.5))
    found = {own.group: own for own in limits_of(scores, 0.5, 0.95, 5).exchanges}
    rows = scores.attribute.codes == scores.attribute.levels.index("F")
    y, score, own = scores.y[rows], scores.score[rows], found["F"]
    assert own.auroc.value == pytest.approx(roc_auc_score(y, score))
    assert own.sensitivity == pytest.approx((score[y == 1] >= 0.5).mean())
    assert own.wanted == found["M"].sensitivity > own.sensitivity
    cases, alarms = ((score[y == k] >= own.threshold).sum() - (score[y == k] >= 0.5).sum() for k in (1, 0))
    assert own.alarms_per_case == pytest.approx(alarms / cases)
    assert (score[y == 1] >= own.threshold).mean() >= own.wanted
    assert own.cheapest <= own.alarms_per_case
    assert np.isnan(found["M"].alarms_per_case)


def test_where_nothing_is_taken_the_page_says_what_limits_a_repair(case):
    kept = replace(case.result, candidate=case.original.candidate, test=case.original.test)
    kept_case = replace(case, classifiers=(case.original, kept), chosen=0)
    assert [option.name for option in kept_case.options if option.chosen] == [KEEP_ORIGINAL]
    page = repair_page(kept_case)
    assert page.index('id="separation"') < page.index('id="gaps"')
    assert "What would help" in page
    assert "Training again from scratch" in page  # a large, clear difference, and 900 rows


def test_training_again_is_advised_only_for_a_large_clear_difference_and_a_small_repair_set(case):
    from equipoise.report.wording.repairs import retrain_words

    kept = replace(case.result, candidate=case.original.candidate, test=case.original.test)
    kept_case = replace(case, classifiers=(case.original, kept), chosen=0)
    assert abs(kept_case.found.gap_before.value) >= 0.1
    assert "900 rows" in retrain_words(kept_case)
    many = replace(kept, valid=kept.valid.take(np.arange(900).repeat(2)) if kept.valid is not None else None)
    assert retrain_words(replace(kept_case, classifiers=(case.original, many))) == ""
    small_gap = small_case(rows=900, methods=("pruning",), cure=1.0, groups=("M", "F"), shares=(0.5, 0.5))
    assert (retrain_words(small_gap) == "") == (str(small_gap.outcome) == "closed")
