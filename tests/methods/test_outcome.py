"""Outcomes on held-out rows: each by hand, and by simulation with known truth."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from equipoise.data import Attribute, Scores
from equipoise.errors import BadInput
from equipoise.measures import AuditSpec, PairedDecisions
from equipoise.measures.intervals import wilson
from equipoise.methods import Goal, Judgement, Outcome, joint_met, joint_outcome, judge, performance_limit
from equipoise.methods.evaluation import RATE_NOISE
from support.goals import paper_goal

FloatArray = npt.NDArray[np.float64]
EOD = paper_goal("eod")


def rows_of(y: npt.ArrayLike, codes: npt.ArrayLike, levels: Sequence[str] = ("M", "F"), patients: Sequence[str] | None = None) -> Scores:
    """Rows with these labels and groups; scores do not matter for a judgement."""
    label = np.asarray(y, dtype=np.int64)
    who = None if patients is None else np.array(patients, dtype=object)
    group = Attribute("sex", tuple(levels), np.asarray(codes, dtype=np.int64))
    return Scores(label, np.full(len(label), 0.5), (group,), who, np.arange(len(label)).astype(object), "test")


def world(
    rng: np.random.Generator, rows: int, before: Sequence[float], after: Sequence[float], kept: float = 0.9, fpr: float = 0.2
) -> tuple[Scores, FloatArray, FloatArray]:
    """Rows of a hospital whose groups have these sensitivities before and after; a share of the decisions hangs on the same chance."""
    codes, y = rng.integers(0, len(before), rows), rng.integers(0, 2, rows)
    first, second = rng.random(rows), rng.random(rows)
    again = np.where(rng.random(rows) < kept, first, second)
    old, new = (np.where(y == 1, np.array(rates)[codes], fpr) for rates in (before, after))
    return rows_of(y, codes, [f"g{k}" for k in range(len(before))]), (first < old) * 1.0, (again < new) * 1.0


def outcomes(times: int, rows: int, before: Sequence[float], after: Sequence[float], goal: Goal = EOD, **how: float) -> Counter[Outcome]:
    rng = np.random.default_rng(0)
    found: Counter[Outcome] = Counter()
    for _ in range(times):
        scores, old, new = world(rng, rows, before, after, **how)
        found[judge(scores, old, scores, new, goal, source="held-out").outcome] += 1
    return found


def by_hand(tpr_before: dict[str, float], tpr_after: dict[str, float], size: int, goal: Goal = EOD, **settings: int) -> Judgement:
    """The judgement of as many positives of each group, so many of whom are found, and as many negatives that are never flagged."""
    y, codes, old, new = [], [], [], []
    for k, group in enumerate(tpr_before):
        for label in (1, 0):
            y += [label] * size
            codes += [k] * size
            old += [1.0 if label and i < round(size * tpr_before[group]) else 0.0 for i in range(size)]
            new += [1.0 if label and i < round(size * tpr_after[group]) else 0.0 for i in range(size)]
    scores = rows_of(y, codes, tuple(tpr_before))
    return judge(scores, np.array(old), scores, np.array(new), goal, source="held-out", settings=AuditSpec(**settings))


def test_a_gap_is_closed_where_its_interval_lies_within_the_maximum():
    found = by_hand({"M": 0.8, "F": 0.6}, {"M": 0.8, "F": 0.8}, 2000)
    (gap,) = found.gaps
    assert found.outcome is Outcome.CLOSED
    assert (gap.before.value, gap.after.value, gap.change.value) == pytest.approx((-0.2, 0.0, 0.2))
    assert -0.05 < gap.after.simultaneous_low < 0 < gap.after.simultaneous_high < 0.05
    assert (found.max_gap, found.met, found.patients_needed) == (0.05, None, None)
    assert (found.changed, found.patients) == (400, 8000)
    strict = by_hand({"M": 0.8, "F": 0.6}, {"M": 0.8, "F": 0.8}, 2000, EOD.changed(max_gap=0.01))
    assert strict.outcome is Outcome.REDUCED  # the point is within 0.01, its interval is not
    assert strict.met


def test_a_smaller_gap_whose_interval_reaches_beyond_the_maximum_is_reduced():
    found = by_hand({"M": 0.8, "F": 0.6}, {"M": 0.8, "F": 0.7}, 1000, paper_goal("eod", max_gap=0.05))
    assert found.outcome is Outcome.REDUCED
    assert found.met is False


def test_too_few_patients_are_unclear_and_the_number_that_would_tell_does():
    goal = paper_goal("eod", max_gap=0.15)
    few = by_hand({"M": 0.8, "F": 0.7}, {"M": 0.8, "F": 0.8}, 30, goal)
    assert few.outcome is Outcome.UNCLEAR
    assert few.met  # by its points: each limit is kept
    assert few.patients_needed is not None
    assert few.patients_needed > few.patients == 120
    enough = by_hand({"M": 0.8, "F": 0.7}, {"M": 0.8, "F": 0.8}, round(few.patients_needed / 4 * 1.1), goal)
    assert enough.outcome in (Outcome.CLOSED, Outcome.REDUCED)
    none = by_hand({"M": 0.8, "F": 0.7}, {"M": 0.8, "F": 0.8}, round(few.patients_needed / 4 * 0.7), goal)
    assert none.outcome is Outcome.UNCLEAR


def test_a_larger_gap_is_harm_where_it_is_clear_and_unclear_otherwise():
    clear = by_hand({"M": 0.8, "F": 0.75}, {"M": 0.85, "F": 0.7}, 1000)
    assert clear.outcome is Outcome.HARM
    (note,) = clear.harms
    assert (note.kind, note.subject, note.numbers["before"], note.numbers["after"]) == (
        "larger_gap",
        "F",
        pytest.approx(-0.05),
        pytest.approx(-0.15),
    )
    chance = by_hand({"M": 0.8, "F": 0.75}, {"M": 0.85, "F": 0.75}, 20)
    assert (chance.outcome, chance.larger, chance.harms) == (Outcome.UNCLEAR, True, ())


@pytest.mark.parametrize(("men", "women"), [(0.8, 0.8), (0.8, 0.78), (0.9, 0.6)])
def test_the_expected_size_of_a_gap_counts_its_sampling_error(men: float, women: float):
    """A gap of zero is as much as another one that these patients happened to show: the mean of |gap| over normal draws."""
    gap = by_hand({"M": 0.8, "F": 0.6}, {"M": men, "F": women}, 200).gaps[0]
    error = (gap.after.high - gap.after.low) / 2 / 1.959964
    draws = np.abs(np.random.default_rng(0).normal(gap.after.value, error, 200_000))
    assert gap.expected == pytest.approx(draws.mean(), rel=0.01)
    assert gap.expected == gap.to_dict()["expected"] >= abs(gap.after.value)


def test_performance_clearly_below_its_limit_is_harm_whatever_the_gap():
    found = by_hand({"M": 0.9, "F": 0.7}, {"M": 0.7, "F": 0.7}, 2000)
    assert found.outcome is Outcome.HARM
    (note,) = found.harms
    assert (note.kind, note.subject) == ("performance_below_limit", "balanced_accuracy")
    assert note.numbers["limit"] == pytest.approx(0.9 - 0.02) == found.performance_limit
    assert note.numbers["after"] == pytest.approx(0.85)
    assert found.clear_loss is found.to_dict()["performance"]["clear_loss"] is True
    few = by_hand({"M": 0.9, "F": 0.7}, {"M": 0.8, "F": 0.7}, 20)
    assert (few.outcome, few.clear_loss, few.harms) == (Outcome.UNCLEAR, False, ())  # two patients
    assert [note.kind for note in few.possible_harms] == ["performance_below_limit"]
    closing = by_hand({"M": 0.9, "F": 0.3}, {"M": 0.7, "F": 0.4}, 80)
    assert (closing.outcome, closing.clear_loss) == (Outcome.UNCLEAR, False)  # a possible loss is no success, whatever the gap
    allowed = by_hand({"M": 0.9, "F": 0.7}, {"M": 0.7, "F": 0.7}, 2000, paper_goal("eod", max_loss=0.06))
    assert (allowed.outcome, allowed.clear_loss) == (Outcome.CLOSED, None)


def test_a_minimum_that_the_original_never_had_is_no_harm_but_not_closed_or_met_either():
    goal = paper_goal("eod", min_performance=0.95, max_gap=0.05)
    found = by_hand({"M": 0.8, "F": 0.6}, {"M": 0.8, "F": 0.8}, 2000, goal)
    assert (found.outcome, found.met) == (Outcome.REDUCED, False)
    assert found.performance_limit == 0.95
    worse = by_hand({"M": 0.8, "F": 0.6}, {"M": 0.7, "F": 0.6}, 2000, goal)
    assert worse.outcome is Outcome.HARM


def test_the_limit_is_that_of_the_goal_or_follows_the_original_on_the_same_rows():
    assert performance_limit(paper_goal("eod", min_performance=0.7), 0.9) == 0.7
    assert performance_limit(paper_goal("eod", max_loss=0.05), 0.9) == pytest.approx(0.85)
    assert performance_limit(EOD, 0.9) == pytest.approx(0.88)


@pytest.mark.parametrize(("keep", "harm"), [({"tpr": "before"}, True), ({"tpr": 0.85}, True), ({"tpr": 0.6}, False), ({}, False)])
def test_a_rate_that_the_goal_keeps_is_harm_where_it_is_clearly_below(keep: dict[str, float | str], harm: bool):
    goal = paper_goal("eod", min_performance=0.8, max_gap=0.05, keep=keep)
    found = by_hand({"M": 0.9, "F": 0.7}, {"M": 0.75, "F": 0.75}, 2000, goal)
    assert found.outcome is (Outcome.HARM if harm else Outcome.CLOSED)
    assert found.met is not harm
    assert [(n.kind, n.subject, n.numbers["rate"]) for n in found.harms][:1] == ([("rate_worse", "M", "tpr")] if harm else [])
    little = by_hand({"M": 0.9, "F": 0.7}, {"M": 0.85, "F": 0.75}, 20, goal)
    assert little.outcome is not Outcome.HARM  # one patient fewer: chance explains it
    if keep == {"tpr": "before"}:
        assert little.met is False  # but the rate is not kept


def test_a_gap_that_changed_sides_is_harm_only_where_it_is_clearly_larger_on_the_new_side():
    slightly = by_hand({"M": 0.8, "F": 0.7}, {"M": 0.8, "F": 0.91}, 600)
    assert (slightly.outcome, slightly.larger, slightly.harms) == (Outcome.UNCLEAR, True, ())  # its change is clear, its growth is not
    assert slightly.patients_needed is not None  # that would show it
    clearly = by_hand({"M": 0.75, "F": 0.7}, {"M": 0.75, "F": 0.9}, 600)
    assert clearly.outcome is Outcome.HARM
    assert [note.kind for note in clearly.harms] == ["larger_gap"]


def test_the_largest_gap_is_reduced_only_where_every_group_is_clearly_below_it():
    before = {"R": 0.9, "A": 0.7, "B": 0.72}
    both = by_hand(before, {"R": 0.9, "A": 0.8, "B": 0.82}, 300)
    assert both.outcome is Outcome.REDUCED
    one = by_hand(before, {"R": 0.9, "A": 0.88, "B": 0.72}, 300)
    assert one.outcome is Outcome.UNCLEAR  # the gap of B may be as large as that of A was
    assert one.patients_needed is not None
    assert one.patients_needed > one.patients
    enough = by_hand(before, {"R": 0.9, "A": 0.88, "B": 0.72}, round(one.patients_needed / 6 * 1.1))
    assert enough.outcome is Outcome.REDUCED
    small = by_hand({"R": 0.9, "A": 0.7, "B": 0.88}, {"R": 0.9, "A": 0.88, "B": 0.87}, 300)
    assert small.outcome is Outcome.REDUCED  # a gap that is far below the largest need not shrink


def test_gaps_on_both_sides_of_the_reference_need_more_evidence():
    same, opposite = (by_hand({"R": 0.7, "A": 0.5, "B": b}, {"R": 0.7, "A": 0.68, "B": b}, 400) for b in (0.6, 0.8))
    assert same.outcome is Outcome.REDUCED
    assert opposite.outcome is Outcome.UNCLEAR  # the error of the reference counts twice


def test_an_unchanged_model_is_never_closed_or_reduced():
    same = by_hand({"M": 0.8, "F": 0.8}, {"M": 0.8, "F": 0.8}, 3000, paper_goal("eod", max_gap=0.05))
    assert (same.outcome, same.changed, same.met) == (Outcome.UNCHANGED, 0, True)
    rng = np.random.default_rng(0)
    scores, decided, _ = world(rng, 5000, (0.8, 0.8), (0.8, 0.8))
    lots = np.where(decided > 0, 0.5, 0.0)  # randomised, and the same before and after
    assert judge(scores, lots, scores, lots, EOD, source="held-out").outcome is Outcome.UNCHANGED


def test_too_few_patients_in_a_group_can_only_be_unclear_or_harm():
    found = by_hand({"M": 0.8, "F": 0.4}, {"M": 0.8, "F": 0.8}, 2000, min_patients=2001)
    assert (found.outcome, found.short) == (Outcome.UNCLEAR, ("F",))
    y, codes = np.array([1] * 400 + [0] * 400), np.array([0, 1] * 398 + [2] * 4)
    scores = rows_of(y, codes, ("M", "F", "X"))
    before = np.where((codes == 1) & (np.arange(800) % 3 == 0), 0.0, y)
    found = judge(scores, before, scores, y * 1.0, EOD, source="held-out")
    assert (found.outcome, found.short, found.patients_needed) == (Outcome.UNCLEAR, ("X",), None)  # no positives of X
    worse = judge(scores, before, scores, before * (np.arange(800) % 7 > 0), EOD, source="held-out")
    assert worse.outcome is Outcome.HARM


def test_randomised_decisions_are_judged_by_their_expectation():
    y, codes = np.array([1, 0] * 4000), np.array([0, 0, 1, 1] * 2000)
    scores = rows_of(y, codes)
    before = np.where(y == 1, np.where(codes == 0, 0.8, 0.5), 0.2)
    after = np.where(y == 1, 0.8, 0.2)
    found = judge(scores, before, scores, after, EOD, source="cross-fitted")
    assert (found.outcome, found.source, found.changed) == (Outcome.CLOSED, "cross-fitted", 2000)
    assert found.gaps[0].before.value == pytest.approx(-0.3)


def test_the_numbers_are_those_of_the_paired_comparison():
    scores, old, new = world(np.random.default_rng(3), 900, (0.8, 0.6, 0.7), (0.8, 0.75, 0.7))
    found = judge(scores, old, scores, new, EOD, source="held-out")
    pair = PairedDecisions(scores, (old, new), AuditSpec())
    for gap in found.gaps:
        assert (gap.change.value, gap.change.low, gap.change.high) == tuple(
            getattr(pair.gap_change("eod", gap.group), end) for end in ("value", "low", "high")
        )
        assert gap.change.simultaneous_low < gap.change.low < gap.change.high < gap.change.simultaneous_high
        assert gap.after.value - gap.before.value == pytest.approx(gap.change.value)
    assert found.performance_change == pair.performance_change("balanced_accuracy")
    assert found.performance_after.value - found.performance_before.value == pytest.approx(found.performance_change.value)


def test_labels_judged_together_need_more_evidence():
    y, codes = np.array([1, 0] * 800), np.array([0, 0, 1, 1] * 400)
    scores = rows_of(y, codes)
    before = np.where((codes == 1) & (np.arange(1600) % 9 == 2), 0.0, y)
    alone, among = (judge(scores, before, scores, y * 1.0, EOD, source="held-out", labels=n).gaps[0] for n in (1, 10))
    assert among.after.simultaneous_high > alone.after.simultaneous_high
    assert among.change.simultaneous_low < alone.change.simultaneous_low
    assert among.change.low == alone.change.low


def test_rows_of_one_label_have_no_performance_and_do_no_harm():
    scores = rows_of(np.zeros(400), [0, 1] * 200)
    before, after = (np.arange(400) % 5 == 0) * 1.0, (np.arange(400) % 7 == 0) * 1.0
    found = judge(scores, before, scores, after, paper_goal("spd", max_gap=0.05), source="held-out")
    assert (found.outcome, found.harms, found.met) == (Outcome.UNCLEAR, (), False)


def test_rows_must_be_the_same_and_have_one_decision_each():
    scores, old, new = world(np.random.default_rng(3), 100, (0.8, 0.6), (0.8, 0.75))
    with pytest.raises(BadInput, match="same rows"):
        judge(scores, old, replace(scores, ids=scores.ids[::-1]), new, EOD, source="held-out")
    with pytest.raises(BadInput, match="100"):
        judge(scores, old[:5], scores, new, EOD, source="held-out")
    with pytest.raises(BadInput, match="probabilities"):
        judge(scores, old, scores, np.full(100, np.nan), EOD, source="held-out")


def test_the_outcome_of_several_labels_is_the_worst_that_must_be_known():
    closed, reduced, unclear, harm, unchanged = Outcome.CLOSED, Outcome.REDUCED, Outcome.UNCLEAR, Outcome.HARM, Outcome.UNCHANGED
    assert joint_outcome([closed, closed]) is closed
    assert joint_outcome([unchanged, unchanged]) is unchanged
    assert joint_outcome([closed, unchanged]) is reduced  # not all closed, and not the original either
    assert joint_outcome([closed, unclear]) is unclear
    assert joint_outcome([unclear, harm, closed]) is harm
    assert (joint_met([None, None]), joint_met([True, None]), joint_met([True, False])) == (None, True, False)


# Limits that are reached exactly, which end of an interval counts, and statements about gaps. Sizes of powers of two make rates exact.


def kinds(found: Judgement) -> list[str]:
    return [note.kind for note in found.harms]


def test_a_limit_that_is_reached_exactly_is_kept():
    goal = paper_goal("eod", max_gap=0.125, min_performance=0.84375, keep={"tpr": "before"})
    found = by_hand({"M": 0.75, "F": 0.5}, {"M": 0.75, "F": 0.625}, 16, goal)
    assert (abs(found.gaps[0].after.value), found.performance_after.value) == (0.125, 0.84375)
    assert (found.outcome, found.harms, found.met) == (Outcome.UNCLEAR, (), True)
    fallen = by_hand({"M": 0.875, "F": 0.625}, {"M": 0.75, "F": 0.625}, 16, goal.changed(keep={}))
    assert (fallen.performance_after.value, fallen.harms, fallen.clear_loss) == (0.84375, (), None)


def test_a_gap_is_within_its_maximum_up_to_the_tolerance_of_counts_over_counts():
    just, more = 0.25 - RATE_NOISE, 0.25 - 2 * RATE_NOISE
    assert just + RATE_NOISE == 0.25
    for most, met in ((just, True), (more, False)):
        goal = paper_goal("eod", max_gap=most)
        assert by_hand({"M": 0.75, "F": 0.25}, {"M": 0.75, "F": 0.5}, 16, goal).met is met


@pytest.mark.parametrize("after", [0.79, 0.81])
def test_an_interval_that_ends_at_the_maximum_lies_within_it(after: float):
    before, now = {"M": 0.8, "F": 0.6}, {"M": 0.8, "F": after}
    gap = by_hand(before, now, 2000).gaps[0].after
    end = max(-gap.simultaneous_low, gap.simultaneous_high)
    assert end == (gap.simultaneous_high if after > 0.8 else -gap.simultaneous_low)
    assert by_hand(before, now, 2000, paper_goal("eod", max_gap=end)).outcome is Outcome.CLOSED
    assert by_hand(before, now, 2000, paper_goal("eod", max_gap=np.nextafter(end, 0))).outcome is Outcome.REDUCED


def test_a_rate_that_was_below_its_minimum_and_did_not_fall_is_no_harm():
    goal = paper_goal("eod", min_performance=0.8, max_gap=0.05, keep={"tpr": 0.85})
    found = by_hand({"M": 0.7, "F": 0.5}, {"M": 0.7, "F": 0.7}, 2000, goal)
    assert (found.outcome, found.harms, found.met) == (Outcome.CLOSED, (), False)


def test_a_rate_kept_as_before_is_judged_by_its_paired_change_and_one_with_a_minimum_by_its_interval():
    few_lost = by_hand({"M": 0.8, "F": 0.6}, {"M": 0.78, "F": 0.6}, 500, paper_goal("eod", keep={"tpr": "before"}))
    assert wilson(0.78, 500, 0.975)[1] > 0.8  # the interval of the new rate alone does not exclude the old one
    assert [(note.kind, note.subject) for note in few_lost.harms] == [("rate_worse", "M")]
    at_most_little_below = paper_goal("eod", min_performance=0.8, keep={"tpr": 0.81})
    many_lost = by_hand({"M": 0.9, "F": 0.85}, {"M": 0.8, "F": 0.85}, 500, at_most_little_below)
    assert "rate_worse" not in kinds(many_lost)  # a clear loss, but not clearly below 0.81


@pytest.mark.parametrize("least", ["before", 0.3])
def test_the_share_of_positive_decisions_can_be_kept(least: float | str):
    """Half of the rows are negatives that are never flagged, so that the share is half the sensitivity."""
    goal = paper_goal("eod", min_performance=0.6, keep={"selection": least})
    found = by_hand({"M": 0.8, "F": 0.7}, {"M": 0.4, "F": 0.7}, 500, goal)
    notes = {note.subject: note.numbers for note in found.harms if note.kind == "rate_worse"}
    assert list(notes) == ["M"]
    assert (notes["M"]["rate"], notes["M"]["before"], notes["M"]["after"]) == ("selection", pytest.approx(0.4), pytest.approx(0.2))


def test_a_rate_is_kept_where_the_group_has_as_many_patients_as_a_rate_needs():
    """40 positives and 40 negatives of each group: 40 patients of a sensitivity."""
    before, after, goal = {"M": 1.0, "F": 1.0}, {"M": 0.5, "F": 1.0}, paper_goal("spd", min_performance=0.6, keep={"tpr": "before"})
    assert "rate_worse" in kinds(by_hand(before, after, 40, goal, min_patients=40))
    assert "rate_worse" not in kinds(by_hand(before, after, 40, goal, min_patients=41))


def lost(size: int, share: float, goal: Goal) -> Judgement:
    """The judgement where both groups lose the same share of the positives that were found: 0.75 before."""
    return by_hand({"M": 0.75, "F": 0.75}, {"M": 0.75 - share, "F": 0.75 - share}, size, goal)


def test_a_loss_from_the_original_is_clear_by_its_paired_change_and_one_below_a_minimum_by_its_interval():
    """Balanced accuracy falls from 0.875 by half of the share that is lost; at most 0.02 may be lost, or 0.855 is the minimum."""
    relative, absolute = (lost(256, 0.07, paper_goal("eod", **limit)) for limit in ({"max_loss": 0.02}, {"min_performance": 0.855}))
    for found in (relative, absolute):
        assert found.performance_limit == pytest.approx(0.855)
        assert found.performance_after.value < 0.855 < found.performance_after.high
        assert 0.875 + found.performance_change.high < 0.855
    assert (relative.clear_loss, absolute.clear_loss) == (True, False)
    derived = paper_goal("eod", min_performance=0.755, selection="paper")
    assert lost(256, 0.07, derived.changed(original=0.775)).clear_loss is True  # a minimum of other rows: 0.02 below the original
    few = lost(64, 0.0625, paper_goal("eod", min_performance=0.875))  # which the original has exactly
    assert 0.875 + few.performance_change.high < 0.875 < few.performance_after.high
    assert few.clear_loss is False


def test_a_loss_is_clear_only_where_the_limit_lies_beyond_the_end_of_the_interval():
    found = lost(256, 0.07, EOD)
    after, change = found.performance_after.high, found.performance_change.high
    assert after < 0.875
    for least, clear in ((after, False), (np.nextafter(after, 1), True)):
        assert lost(256, 0.07, paper_goal("eod", min_performance=least)).clear_loss is clear
    assert change < 0
    for loss, clear in ((-change, False), (-change - 1e-6, True)):
        assert lost(256, 0.07, paper_goal("eod", max_loss=loss)).clear_loss is clear


def test_an_original_below_its_minimum_may_lose_what_is_allowed():
    goal = paper_goal("eod", min_performance=0.95)
    before = {"M": 0.8, "F": 0.6}  # balanced accuracy 0.85
    within, beyond = (by_hand(before, {"M": m, "F": 0.6}, 1000, goal) for m in (0.76, 0.7))
    assert (within.performance_after.value, kinds(within)) == (pytest.approx(0.84), [])
    assert (beyond.performance_after.value, kinds(beyond)) == (pytest.approx(0.825), ["performance_below_limit"])


def two_digits_up(number: float) -> int:
    digits = len(str(int(number))) - 2
    return math.ceil(number / 10**digits) * 10**digits


@pytest.mark.parametrize("after", [0.785, 0.815])
def test_the_patients_needed_are_those_at_which_the_interval_of_the_gap_fits_its_maximum(after: float):
    """An interval shrinks with the root of the number of patients; the end nearer to its limit is the one that counts."""
    found = by_hand({"M": 0.8, "F": 0.79 if after < 0.8 else 0.81}, {"M": 0.8, "F": after}, 200)
    gap = found.gaps[0].after
    far, room = (
        (gap.simultaneous_high - gap.value, 0.05 - gap.value) if after > 0.8 else (gap.value - gap.simultaneous_low, 0.05 + gap.value)
    )
    assert found.outcome is Outcome.UNCLEAR
    assert found.patients_needed == two_digits_up(found.patients * (far / room) ** 2)


def test_too_few_patients_of_a_group_need_as_many_as_make_thirty():
    few, thirty = (by_hand({"M": 0.8, "F": 0.6}, {"M": 0.8, "F": 0.8}, size, min_patients=size + 1) for size in (15, 30))
    assert (few.short, few.patients, few.patients_needed) == (("F",), 60, 120)
    assert (thirty.short, thirty.patients, thirty.patients_needed) == (("F",), 120, None)  # more are not known to suffice


def test_the_same_gap_is_one_that_moved_by_less_than_half_a_point_with_no_other_beyond_it():
    same = by_hand({"M": 0.8, "F": 0.6}, {"M": 0.803, "F": 0.601}, 1000)
    moved = by_hand({"M": 0.8, "F": 0.6}, {"M": 0.806, "F": 0.6}, 1000)
    assert (same.same, moved.same) == (True, False)
    beyond = by_hand({"R": 0.8, "A": 0.6, "B": 0.7}, {"R": 0.8, "A": 0.6, "B": 0.59}, 1000)
    assert (beyond.largest and beyond.largest.group, beyond.same) == ("A", False)
    assert by_hand({"M": 0.8, "F": 0.6}, {"M": 0.8, "F": 0.61}, 20, min_patients=21).same is False  # no gap is known


def test_a_gap_was_clear_where_its_interval_excludes_zero_on_either_side():
    for before, size, clear in (({"M": 0.8, "F": 0.6}, 500, True), ({"M": 0.6, "F": 0.8}, 500, True), ({"M": 0.8, "F": 0.7}, 20, False)):
        assert by_hand(before, {"M": 0.8, "F": 0.75}, size).clear_before is clear
    found = by_hand({"M": 0.8, "F": 0.6}, {"M": 0.8, "F": 0.75}, 500)
    for low, high in ((0.0, 0.3), (-0.3, 0.0)):
        touching = replace(found.gaps[0], before=replace(found.gaps[0].before, simultaneous_low=low, simultaneous_high=high))
        assert replace(found, gaps=(touching,)).clear_before is False  # zero is the end of the interval, and belongs to it


def test_a_gap_is_larger_where_it_grew_by_more_than_the_tolerance():
    found = by_hand({"M": 0.8, "F": 0.6}, {"M": 0.8, "F": 0.75}, 500)
    (gap,) = found.gaps
    for value, larger in ((0.25 + RATE_NOISE, False), (0.25 + 2 * RATE_NOISE, True)):
        grown = replace(gap, before=replace(gap.before, value=-0.25), after=replace(gap.after, value=-value))
        assert replace(found, gaps=(grown,)).larger is larger


# Simulations with known truth. The worlds of `benchmarks/outcomes.py` are the same with more samples.


def test_a_gap_at_the_maximum_is_rarely_called_closed():
    found = outcomes(80, 3000, (0.8, 0.65), (0.75, 0.8))
    assert found[Outcome.CLOSED] <= 6  # expected 2.5 %, allowed 5 %
    assert found[Outcome.UNCHANGED] == 0


def test_a_closed_gap_is_found_with_enough_patients():
    found = outcomes(20, 12_000, (0.8, 0.65), (0.75, 0.75))
    assert found[Outcome.CLOSED] >= 18


def test_a_gap_that_only_changes_sides_is_rarely_called_reduced():
    found = outcomes(80, 1500, (0.8, 0.7), (0.7, 0.8))
    assert found[Outcome.REDUCED] <= 9  # allowed 5 % and its simulation error
    assert found[Outcome.CLOSED] <= 3


def test_a_gap_that_stays_is_rarely_called_anything_but_unclear():
    found = outcomes(60, 1500, (0.8, 0.7), (0.8, 0.7), kept=0.95)
    assert found[Outcome.REDUCED] <= 5
    assert found[Outcome.UNCLEAR] >= 50


@pytest.mark.parametrize(
    ("before", "after", "positives"),
    [((0.9, 0.7, 0.71), (0.92, 0.9, 0.71), 300), ((0.9, 0.7, 0.7), (0.92, 0.9, 0.7), 150), ((0.9, 0.7, 0.7), (0.9, 0.9, 0.7), 300)],
)
def test_a_largest_gap_that_passes_to_another_group_is_rarely_called_reduced(before, after, positives: int):
    found = outcomes(100, 6 * positives, before, after, kept=1.0, fpr=0.1)
    assert found[Outcome.REDUCED] <= 8  # allowed 5 % and its simulation error; 30 to 53 % by point estimates of the other groups


def test_gaps_of_all_groups_that_shrink_are_called_reduced():
    found = outcomes(40, 1800, (0.9, 0.7, 0.7), (0.9, 0.8, 0.8), kept=1.0)
    assert found[Outcome.REDUCED] >= 36


def test_a_smaller_gap_on_the_other_side_is_rarely_called_harm():
    found = outcomes(100, 2400, (0.8, 0.7), (0.8, 0.87), kept=1.0)
    assert found[Outcome.HARM] <= 12


def test_many_groups_share_the_error():
    truth = (0.75, 0.80, 0.75, 0.75, 0.70, 0.80)  # three gaps at the maximum
    found = outcomes(30, 12_000, (0.75, 0.85, 0.75, 0.75, 0.65, 0.85), truth)
    assert found[Outcome.CLOSED] <= 3
