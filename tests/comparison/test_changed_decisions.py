"""Changed decisions: counts by hand, expectations of randomised rules, and levelling down distinguished from levelling up."""

from dataclasses import replace

import numpy as np
import pytest

from equipoise.comparison import Comparison, ScoredCandidate
from equipoise.comparison.findings import Affected, affected, all_attributes, balances
from equipoise.data import Attribute, Scores
from equipoise.errors import BadInput
from equipoise.measures import AuditSpec, PairedDecisions, Threshold, shown_scores
from support.cases import small_case

SETTINGS = AuditSpec()


def _affected(case: Comparison) -> list[Affected]:
    test = case.original.test
    return affected(test, case.original.decisions(), case.result.decisions(), all_attributes(test))


def _paired(original: ScoredCandidate, tried: ScoredCandidate) -> PairedDecisions:
    return PairedDecisions(original.test, (original.decisions(), tried.decisions()), SETTINGS)


def _case(before: list[float], after: list[float], y: list[int], groups: str, patients: list[str] | None = None) -> Comparison:
    """A case with these scores on its test set and a threshold of one half before and after."""
    case = small_case(rows=60, methods=("bias-gda",))
    codes = np.array(["MF".find(g) for g in groups])
    sex = (Attribute("sex", ("M", "F"), codes),)
    ids = np.arange(len(y)).astype(object)
    who = None if patients is None else np.array(patients, dtype=object)
    parts = [Scores(np.array(y), np.array(s, float), sex, who, ids, "test") for s in (before, after)]
    half = [replace(r.candidate, rule=Threshold(0.5)) for r in (case.original, case.candidates[0])]
    original, repair = (replace(r, candidate=c, test=p) for r, c, p in zip((case.original, case.candidates[0]), half, parts, strict=True))
    return replace(case, classifiers=(original, repair))


def test_changed_decisions_are_counted_by_group_and_label():
    #        M: detected, missed, cleared, alarmed, same | F: detected twice (one patient), cleared | no group: alarmed
    before = [0.1, 0.9, 0.9, 0.1, 0.9, 0.2, 0.2, 0.8, 0.1]
    after = [0.9, 0.1, 0.1, 0.9, 0.8, 0.7, 0.6, 0.3, 0.9]
    y = [1, 1, 0, 0, 1, 1, 1, 0, 0]
    case = _case(before, after, y, "MMMMMFFF?", ["a", "b", "c", "d", "e", "f", "f", "g", "h"])
    (found,) = _affected(case)
    counts = {c.group: (c.positives, c.negatives, c.detected, c.missed, c.cleared, c.alarmed) for c in found.counts}
    assert counts == {"M": (3, 2, 1, 1, 1, 1), "F": (2, 1, 2, 0, 1, 0), "": (0, 1, 0, 0, 0, 1), None: (5, 4, 3, 1, 2, 2)}
    assert (found.expected, found.patients) == (False, 7)
    assert found.counts[-1].changed == 8


def test_a_randomised_rule_has_expected_counts():
    case = small_case(chosen=3)
    (found,) = _affected(case)
    before, after, y = case.original.decisions(), case.result.decisions(), case.original.test.y
    assert found.expected
    assert found.patients is None
    # One draw of the coins has about the expected number of newly detected; the mean of many has it to a few hundredths.
    rng = np.random.default_rng(0)
    drawn = [((rng.random(len(y)) < after) & (before == 0) & (y == 1)).sum() for _ in range(400)]
    assert found.counts[-1].detected == pytest.approx(np.mean(drawn), abs=0.6)


def test_two_attributes_and_their_intersection_each_have_counts():
    found = _affected(small_case(second=True))
    assert [f.attribute for f in found] == ["sex", "age", "sex & age"]
    assert len({f.counts[-1].changed for f in found}) == 1


def _moved(men: tuple[int, int], women: tuple[int, int]) -> Comparison:
    """Ten sick men and ten sick women, of whom these numbers are detected before and after; no other patient is flagged."""
    flags = []
    for at in (0, 1):
        flags.append([*[0.9] * men[at], *[0.1] * (10 - men[at]), *[0.9] * women[at], *[0.1] * (10 - women[at]), *[0.1] * 20])
    return _case(*flags, [1] * 20 + [0] * 20, "M" * 10 + "F" * 10 + "MF" * 10)


def test_contributions_add_up_to_the_change_and_mark_harm():
    case = _moved((9, 7), (4, 6))
    parts = _paired(case.original, case.result).contributions("eod", "F")
    found = {part.group: (round(part.change.value, 6), round(part.towards, 6), part.worse) for part in parts}
    assert found == {"F": (0.2, 0.2, False), "M": (-0.2, 0.2, True)}


def test_levelling_up_does_no_harm():
    case = _moved((9, 9), (4, 9))
    pair = _paired(case.original, case.result)
    assert [part.worse for part in pair.contributions("eod", "F")] == [False, False]
    assert not any(shift.worse for shift in pair.shifts())
    assert pair.gap_change("eod", "F").value == pytest.approx(0.5)  # from -0.5 to 0
    # The same in the measure that counts misses, whose sign is the other way round.
    assert sum(part.towards for part in pair.contributions("fnr_gap", "F")) == pytest.approx(0.5)


def test_shifts_hold_the_change_of_each_rate_with_an_interval():
    case = _moved((9, 6), (4, 4))
    shifts = {(s.group, s.rate): s for s in _paired(case.original, case.result).shifts()}
    man = shifts["M", "tpr"]
    assert (man.before, man.after, man.worse) == (0.9, 0.6, True)
    assert man.change.low <= man.change.value == pytest.approx(-0.3)
    assert man.change.value <= man.change.high
    assert not shifts["F", "tpr"].worse
    assert shifts["F", "tpr"].change.value == 0


def test_groups_with_few_patients_have_no_shift_and_no_gap():
    case = _case([0.1, 0.9, 0.2] * 10, [0.9, 0.9, 0.2] * 10, [1, 1, 0] * 10, "M" * 28 + "FF")
    pair = _paired(case.original, case.result)
    assert {s.group for s in pair.shifts()} == {"M"}
    assert np.isnan(pair.gap_change("eod", "F").value)


def test_different_rows_before_and_after_are_rejected():
    case = small_case(rows=60, methods=("bias-gda",))
    other = replace(case.result, test=replace(case.result.test, ids=case.result.test.ids[::-1]))
    with pytest.raises(BadInput, match="rows"):
        _ = replace(case, classifiers=(case.original, other)).found


def test_unchanged_decisions_of_ten_patients_do_not_prove_no_change():
    change = _paired((case := _moved((10, 10), (10, 10))).original, case.result).gap_change("eod", "F")
    assert change.value == 0
    assert change.low < -0.1 < 0.1 < change.high


def test_the_interval_of_the_change_has_coverage_near_zero():
    """The gap is small before and after, so that an interval of the change of |gap| would be biased."""
    rng = np.random.default_rng(0)
    sex = Attribute("sex", ("M", "F"), np.arange(400) % 2)
    y = (np.arange(400) // 2 % 2).astype(np.int64)
    rates = {"M": (0.70, 0.72), "F": (0.68, 0.72)}
    truth = (0.72 - 0.72) - (0.68 - 0.70)
    covered = []
    for _ in range(300):
        u = rng.random(400)  # most decisions stay
        v = np.where(rng.random(400) < 0.8, u, rng.random(400))
        p = np.array([[rates[level][at] for level in ("M", "F")] for at in (0, 1)])[:, sex.codes]
        scores = Scores(y, u, (sex,), None, np.arange(400).astype(object), "test")
        change = PairedDecisions(scores, ((u < p[0]).astype(float), (v < p[1]).astype(float)), SETTINGS).gap_change("eod", "F")
        covered.append(change.low <= truth <= change.high)
    assert 0.92 <= np.mean(covered) <= 0.985


def test_changes_of_accuracy_and_balanced_accuracy_are_those_of_the_decisions():
    case = small_case(rows=400)
    pair = _paired(case.original, case.result)
    before, after, y = case.original.decisions(), case.result.decisions(), case.original.test.y
    right = [np.where(y == 1, f, 1 - f) for f in (before, after)]
    assert pair.performance_change("accuracy").value == pytest.approx(right[1].mean() - right[0].mean())
    balanced = [(r[y == 1].mean() + r[y == 0].mean()) / 2 for r in right]
    assert pair.performance_change("balanced_accuracy").value == pytest.approx(balanced[1] - balanced[0])
    for name in ("accuracy", "balanced_accuracy", "f1"):
        change = pair.performance_change(name)
        assert change.low < change.value < change.high


def test_the_balance_of_each_group_is_counted_by_hand():
    case = _case([0.1, 0.9, 0.9, 0.9] * 10, [0.9, 0.9, 0.1, 0.9] * 10, [1, 1, 0, 0] * 10, "MMFF" * 10)
    men, women, everyone = balances(
        case.original.test, shown_scores(case.original.test, 1).groups[0], case.original.decisions(), case.result.decisions(), SETTINGS
    )
    assert (men.group, women.group, everyone.group, men.reference, everyone.rows) == ("M", "F", None, True, 40)
    assert (men.missed_before, men.missed_after, men.alarms_before, men.alarms_after) == (0.5, 0.0, 0.0, 0.0)
    assert (women.missed_before, women.alarms_before, women.alarms_after) == (0.0, 1.0, 0.5)
    assert (men.corrected.value, men.spoiled.value, women.alarms.value, everyone.net.value) == (0.5, 0.0, -0.5, 0.5)
    assert men.missed.value == pytest.approx(-0.5)
    assert men.missed.low < -0.5 < men.missed.high < 0
    assert men.spoiled.low == 0 < men.corrected.low < 0.5 < men.corrected.high  # shares, never below zero
    assert men.spoiled.high > 0.02  # no loss in 20 patients does not exclude a loss


def test_the_balance_is_that_of_the_counts_and_of_the_decisions():
    case = small_case(rows=500, missing=0.1, chosen=3)  # randomised
    scores, before, after = case.original.test, case.original.decisions(), case.result.decisions()
    for row, count in zip(case.found.balances["sex"], (c for c in case.found.affected[0].counts if c.group != ""), strict=True):
        assert row.group == count.group
        assert row.corrected.value * row.rows == pytest.approx(count.detected + count.cleared)
        assert row.spoiled.value * row.rows == pytest.approx(count.missed + count.alarmed)
    assert case.found.balances["sex"][-1].missed_after == pytest.approx(((1 - after) * scores.y).mean())
    assert case.found.balances["sex"][-1].alarms_before == pytest.approx((before * (1 - scores.y)).mean())


def test_a_group_of_few_patients_has_no_balance():
    case = _case([0.1, 0.9, 0.2] * 10, [0.9, 0.9, 0.2] * 10, [1, 1, 0] * 10, "M" * 28 + "FF")
    women = case.found.balances["sex"][1]
    assert np.isnan([women.net.value, women.missed_before, women.alarms.high]).all()
