"""Methods tried on a network: the choice uses the repair set and the goal only; a failing method does not stop the others."""

import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from equipoise.case.case import RepairSpec
from equipoise.case.repair import RepairTask, check_methods, most_changed, rescored, try_methods
from equipoise.comparison import Comparison, ScoredCandidate, choose_candidate
from equipoise.data import Cohort, Images, Scores
from equipoise.errors import BadInput
from equipoise.measures import Threshold
from equipoise.methods import METHODS, Goal, LabelCandidate
from equipoise.models import ExportedNetwork, encoding, output_kind, predict, resolve_output, unit_maps
from equipoise.models.units import find_units, switch_off
from support.facts import facts
from support.goals import paper_goal
from support.hospital import network, patients, trained
from support.published import debias

SCORES = Scores.from_arrays([1, 0, 1, 0], [0.9, 0.2, 0.4, 0.3], ["F", "F", "M", "M"], reference="M")
QUICK = {"schedule": "paper", "epochs": 3, "learning_rate": 0.01}


def _tried(model: nn.Module, repair: Cohort, test: Cohort, methods: dict, goal: Goal, **request: object) -> Comparison:
    return try_methods(RepairTask.of(model, ["sick"], [repair], [test]), methods, {"sick": goal}, **request)["sick"]


def _repair(name: str, gap: float, performance: float, goal: Goal) -> dict[str, ScoredCandidate]:
    trace = pd.DataFrame({"step": [0, 1], "gap": [0.4, gap], "performance": [0.9, performance], "threshold": [0.5, 0.5]})
    candidate = LabelCandidate(name, nn.Identity(), Threshold(0.5), trace, 1, (), True, goal, 0)
    return {"sick": ScoredCandidate(candidate, SCORES, SCORES)}


@pytest.fixture(scope="module")
def parts() -> tuple[nn.Module, Cohort, Cohort]:
    frame, x, _ = patients()
    model = trained("build", torch.from_numpy(x), frame["sick"].to_numpy(), 60)
    cohort = Cohort.from_arrays(torch.from_numpy(x), frame["sick"], frame["sex"], reference="M", patients=frame["pid"])
    return model, *cohort.hold_out(0.3, seed=0)


# The choice


@pytest.mark.parametrize(
    ("goal", "found", "expected"),
    [
        (
            paper_goal(min_performance=0.7),
            [(0.10, 0.8), (-0.02, 0.75), (0.01, 0.6)],
            1,
        ),  # the smallest |gap| among those above the minimum performance
        (paper_goal(min_performance=0.7, max_gap=0.05), [(0.10, 0.9), (-0.04, 0.75)], 1),  # both kept
        (paper_goal(max_gap=0.05), [(0.04, 0.8), (0.0, 0.7), (0.2, 0.95)], 0),  # the best performance within the maximum gap
        (paper_goal(min_performance=0.7), [(0.0, 0.5), (0.1, 0.6)], 1),  # none reaches the minimum performance: the best performance
        (paper_goal(max_gap=0.05), [(0.3, 0.9), (-0.1, 0.5)], 1),  # none is within the maximum gap: the smallest |gap|
        (
            paper_goal(min_performance=0.7, max_gap=0.05),
            [(0.3, 0.9), (-0.1, 0.8), (0.0, 0.5)],
            1,
        ),  # none keeps both: the minimum performance first
    ],
)
def test_the_choice_follows_the_goal(goal, found, expected):
    assert choose_candidate([_repair(str(k), *values, goal) for k, values in enumerate(found)]) == expected


# The run


def test_an_exported_program_has_no_layers_for_probes_but_its_images():
    frame, _, pixels = patients()
    inputs = torch.from_numpy(pixels).float()[:, None] / 255
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(network("cnn").eval(), (inputs[:4],), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
    model = ExportedNetwork(program, "net.pt2")
    parts = Cohort.from_arrays(inputs, frame["sick"], frame["sex"], reference="M", patients=frame["pid"]).hold_out(0.3)
    with pytest.raises(BadInput, match=facts("bias-score", "layer")):
        _tried(model, *parts, {"bias-score": {"depth": "last"}}, paper_goal("spd", min_performance=0.0))
    found = _tried(model, *parts, {"bias-score": {}}, paper_goal("spd", min_performance=0.0))
    assert ("probes", "the inputs") in [(note.kind, note.subject) for note in found.candidates[0].candidate.notes]


def test_auto_may_choose_a_group_rule_if_allowed(parts):
    methods = {"auto": {"allow_group": True, "methods": ("group-thresholds",)}}
    found = _tried(*parts, methods, paper_goal(min_performance=0.6))
    candidate = found.candidates[0].candidate
    assert (candidate.method, candidate.ran) == ("auto", "group-thresholds")
    assert candidate.rule.needs_group
    assert (found.candidates[0].test.score == found.original.test.score).all()


def test_methods_run_on_the_repair_set_and_are_scored_on_both_sets(parts):
    model, repair, test = parts
    before = {key: value.clone() for key, value in model.state_dict().items()}
    methods = {"bias-gda": QUICK, "reject-option": {}, "equalised-odds": {}}
    found = _tried(model, repair, test, methods, paper_goal("eod", min_performance=0.6))
    assert [r.name for r in found.candidates] == list(methods)
    assert found.original.name == "standard"
    for r in (found.original, *found.candidates):
        assert (r.valid.ids.tolist(), r.test.ids.tolist()) == (repair.ids.tolist(), test.ids.tolist())
    assert not found.failures
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert found.result is found.candidates[found.chosen]


def test_the_test_set_has_no_influence_on_the_choice(parts):
    model, repair, test = parts
    methods = {"bias-gda": QUICK, "random": {"trials": 3}}
    one = _tried(model, repair, test, methods, paper_goal("eod", min_performance=0.6))
    other = _tried(model, repair, replace(test, y=1 - test.y), methods, paper_goal("eod", min_performance=0.6))
    assert one.chosen == other.chosen
    assert all(a.candidate.trace.equals(b.candidate.trace) for a, b in zip(one.candidates, other.candidates, strict=True))


def test_a_failing_method_does_not_stop_the_others(parts, monkeypatch):
    def fails(*_: object, **__: object) -> None:
        raise BadInput("no room")

    model, repair, test = parts
    monkeypatch.setitem(METHODS, "failing", replace(METHODS["random"], name="failing", run=fails))
    found = _tried(model, repair, test, {"failing": {}, "reject-option": {}}, paper_goal("eod", min_performance=0.6))
    assert ([r.name for r in found.candidates], found.failures) == (["reject-option"], {"failing": "no room"})
    with pytest.raises(BadInput, match=facts("failing", "no room")):
        _tried(model, repair, test, {"failing": {}}, paper_goal("eod"))


def test_a_candidate_whose_final_network_misses_the_goal_is_not_met(parts):
    model, repair, _ = parts
    candidate = debias(model, repair, method="standard", min_performance=0.6).only
    scores = predict(model, repair)
    assert rescored(candidate, scores) is candidate
    trace = candidate.trace.assign(performance=1.0, gap=0.0)
    found = rescored(replace(candidate, trace=trace, goal=paper_goal("eod", min_performance=0.99), met_in_sample=True), scores)
    assert not found.met_in_sample
    assert found.trace["performance"].iloc[0] == pytest.approx(candidate.trace["performance"].iloc[0])
    assert (found.notes[-1].kind, found.notes[-1].numbers["performance_before"]) == ("rescored", 1.0)


def test_all_problems_of_the_methods_are_raised_before_anything_is_run():
    with pytest.raises(BadInput) as caught:
        check_methods({"bias-gd": {}, "pruning": {"unit": 3}, "adversarial-training": {}}, train=False)
    for part in ("Did you mean 'bias-gda'?", "Did you mean 'units'?", "data.train=train.csv"):
        assert part in str(caught.value)


# Properties of the network


def test_the_requested_output_type_is_the_one_that_methods_use():
    bounded = nn.Sequential(nn.Linear(3, 1), nn.Sigmoid())
    rows = Cohort.from_arrays(torch.randn(20, 3), np.tile([0, 1], 10), np.repeat(["M", "F"], 10))
    assert resolve_output(bounded, rows) == "probability"
    assert resolve_output(bounded, rows, "logit") == "logit"
    assert output_kind(bounded, rows.inputs) == "logit"


def test_a_network_with_a_layer_named_output_is_not_changed():
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.output = nn.Linear(3, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.output(x)

    rows = Cohort.from_arrays(torch.randn(20, 3), np.tile([0, 1], 10), np.repeat(["M", "F"], 10))
    assert resolve_output(Own(), rows, "logit") == "logit"
    with pytest.raises(BadInput, match=facts("probability")):
        resolve_output(Own(), rows, "probability")


def test_maps_of_switched_off_units_are_shares_of_channels():
    model = network("cnn")
    layers = find_units(model, torch.zeros(2, 1, 12, 12), "0")
    off = torch.zeros(4, 12, 12, dtype=torch.bool)
    off[:2, 0, 0] = True
    off[:, 5, 5] = True
    switch_off(model, layers, off.reshape(-1))
    ((layer, kept),) = unit_maps(model).items()
    assert (layer, kept.shape) == ("0", (12, 12))
    assert (kept[0, 0], kept[5, 5], kept[1, 1]) == (0.5, 0.0, 1.0)


def test_thumbnails_are_of_the_patients_whose_score_changed_most():
    pixels = np.arange(4 * 9, dtype=np.uint8).reshape(4, 3, 3)
    images = Cohort(Images(pixels), SCORES.y, SCORES.attributes, ids=np.array(["a", "b", "c", "d"], dtype=object))
    after = replace(SCORES, score=np.array([0.9, 0.9, 0.5, 0.3]))
    shown = most_changed(SCORES, after, images, 2)
    assert list(shown) == ["b", "c"]
    assert (shown["b"] == pixels[1]).all()
    assert most_changed(SCORES, after, replace(images, source=torch.zeros(4, 2))) == {}


# Probes


def test_probes_are_of_both_networks_on_the_test_set(parts):
    model, repair, test = parts
    methods = {"bias-gda": {"schedule": "paper", "epochs": 3, "learning_rate": 0.05}}
    found = _tried(model, repair, test, methods, paper_goal("eod", min_performance=0.5), spec=RepairSpec(probe=True, draws=10))

    probes = found.probes
    pd.testing.assert_frame_equal(probes["before"], encoding(model, test, draws=10))
    pd.testing.assert_frame_equal(probes["after"], encoding(found.candidates[0].candidate.model, test, draws=10))
    assert not probes["before"].equals(probes["after"])
    same = _tried(
        model, repair, test, {"reject-option": {}}, paper_goal("eod"), spec=RepairSpec(probe=True, draws=10)
    ).probes  # another rule of the same network
    pd.testing.assert_frame_equal(same["before"], same["after"])
