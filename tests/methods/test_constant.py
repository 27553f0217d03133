"""A classifier that decides the same for everybody has no gap; no repair may end in one."""

from collections.abc import Iterator

import numpy as np
import pandas as pd
import pytest

from equipoise.measures import NEVER_REACHED, Threshold
from equipoise.methods import METHODS, Fit, FitStep, Goal, Kind, Method, Note, Rng, Step, debias, make_settings, run_method
from equipoise.methods.choosing import is_constant, newly_constant
from equipoise.methods.contract import NoSettings
from equipoise.methods.driver import step_decisions
from equipoise.methods.thresholds import GROUP_THRESHOLDS, GroupThresholds
from equipoise.models import predict
from support.goals import paper_goal
from support.networks import biased_cohort, trained
from support.notes import note_of


def test_the_same_for_everybody_or_for_every_group_is_constant():
    codes = np.array([0, 0, 0, 1, 1, -1])
    rows = np.array([[0, 0, 0, 0, 0, 0], [1, 1, 1, 0, 0, 1], [0, 0, 1, 1, 1, 0], [0, 0, 0, 0, 0.5, 0], [0.3, 0.3, 0.3, 0.7, 0.7, 0.5]])
    assert is_constant(rows, codes).tolist() == [True, True, False, False, True]
    assert newly_constant(rows[[2, 0, 1, 3]], codes).tolist() == [False, True, True, False]
    assert not newly_constant(rows[[1, 0, 2]], codes).any()  # the original was constant itself


def _always(kind: str):
    """A method whose only rule decides the same for everybody, or by the group only."""

    def run(scores, goal: Goal, _settings: NoSettings) -> Fit:
        own = METHODS[GROUP_THRESHOLDS].run(scores, goal, NoSettings())
        original = Threshold(float(own.trace["threshold"].iloc[0]))
        levels = scores.attribute.levels
        rule = Threshold(NEVER_REACHED) if kind == "never" else GroupThresholds(levels, (0.0, *[NEVER_REACHED] * (len(levels) - 1)), 0.0)
        trace = pd.DataFrame(
            {"step": [0, 1], "gap": [own.trace["gap"].iloc[0], 0.0], "performance": [0.7, 0.7], "threshold": [original.value, np.nan]}
        )
        return Fit(rule, trace, 1, (), True, own.goal.changed(min_performance=0.1), (), None, (FitStep(original), FitStep(rule)))

    return run


@pytest.fixture(params=["never", "by group"])
def always(request) -> Iterator[str]:
    METHODS["always"] = Method("always", _always(request.param), NoSettings, "constant", kind=Kind.RULE, rules=(GroupThresholds,))
    yield "always"
    del METHODS["always"]


@pytest.mark.parametrize("selection", ["paper", "honest"])
def test_what_a_method_delivers_is_never_constant(always: str, selection: str):
    model, parts = trained("mlp")
    found = debias(model, parts.valid, method=always, measure="spd", min_performance=0.1, selection=selection)
    assert found.chosen == 0
    decisions = found.rule.decide(predict(found.model, parts.valid))
    assert not is_constant(decisions, parts.valid.attribute.codes)
    original = predict(model, parts.valid)
    assert np.array_equal(decisions, original.score >= found.trace["threshold"].iloc[0])
    if selection == "paper":
        assert note_of(found.notes, "constant")
        assert [note.kind for note in found.why] == ["original_kept", "constant"]
        assert {note.kind for note in found.notes} <= {"original_kept", "constant", "small_cells"}  # none of the rule that was refused


@pytest.mark.parametrize("rows", [24, 40])
def test_bias_score_never_chooses_a_step_that_is_constant(rows: int):
    """Few rows, hardly anything to tell, and a minimum performance that any decision has: step 1, or 6, would decide the same for all."""
    cohort, model = biased_cohort(rows, 0), trained("mlp")[0]
    settings = make_settings("bias-score", {"folds": 2, "steps": 6})
    found = METHODS["bias-score"].run(model, cohort, paper_goal("spd", min_performance=0.0), settings, Rng(0), None)
    made = found.rule.decide(predict(model if found.model is None else found.model, cohort))
    assert not is_constant(made, cohort.attribute.codes)
    assert is_constant(step_decisions(found.steps, model, cohort), cohort.attribute.codes).any()


def _steps(_model, data, _goal, _settings, _rng):
    """Three steps: one that lowers the gap, one that decides the same for everybody, and one that changes nothing."""
    start = data.start.scores
    fairer = start + 0.05 * (data.labels[0].attribute.codes == 1)
    for number, scores in enumerate((fairer, np.full_like(start, 0.5), start), 1):
        yield Step(number, scores=scores, notes=(Note("step", numbers={"number": number}),))


@pytest.mark.parametrize("selection", ["paper", "honest"])
def test_a_refused_step_makes_room_for_the_next_usable_one(selection: str, monkeypatch):
    monkeypatch.setitem(METHODS, "three", Method("three", _steps, NoSettings, "three steps"))
    model, parts = trained("mlp")
    found = debias(
        model, parts.valid, method="three", measure="spd", min_performance=0.1, allow_worse=True, selection=selection, recalibrate=False
    )
    sizes = found.trace["gap"].abs()
    assert sizes.iloc[2] == 0  # the smallest gap of all is that of the constant step
    assert found.chosen != 2
    if selection == "paper":
        assert found.chosen == int(sizes.drop(2).idxmin()) == 1
        assert note_of(found.notes, "constant")
        assert [note.numbers["number"] for note in found.notes if note.kind == "step"] == [1]  # none of the step that was refused


def test_a_study_repeats_the_published_choice(monkeypatch):
    monkeypatch.setitem(METHODS, "three", Method("three", _steps, NoSettings, "three steps"))
    model, parts = trained("mlp")
    goal = paper_goal("spd", min_performance=0.1)
    assert run_method("three", model, parts.valid, {"": goal}, seed=0).chosen == 2
    assert run_method("three", model, parts.valid, {"": goal}, seed=0, refuse_constant=True).chosen != 2
