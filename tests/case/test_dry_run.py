"""The dry run: every row in one set, and the work of each method counted from its settings."""

import pytest
import torch
from torch import nn

from equipoise.case import repair as case_repair
from equipoise.case.repair import MethodEstimate, RepairTask, estimate_repair, seconds_to_probe
from equipoise.data import Cohort
from equipoise.methods import METHODS, Goal, Method, bias_score, contract, thresholds
from equipoise.methods.contract import NoSettings
from support.facts import says
from support.goals import paper_goal
from support.hospital import network, patients


def estimate(model: nn.Module, repair: Cohort, test: Cohort, methods: dict, goal: Goal, train: Cohort | None = None, **more: object):
    return estimate_repair(RepairTask.of(model, ["sick"], [repair], [test], train), methods, {"sick": goal}, **more)


@pytest.fixture
def parts() -> tuple[nn.Module, Cohort, Cohort]:
    frame, x, _ = patients()
    cohort = Cohort.from_arrays(torch.from_numpy(x), frame["sick"], frame["sex"], reference="M", patients=frame["pid"])
    return network("build"), *cohort.hold_out(0.25)


def test_the_counts_are_those_of_the_sets(parts):
    _, repair, test = parts
    found = estimate(*parts, {"reject-option": {}}, paper_goal())
    assert found.sets.groupby("set")["rows"].sum().to_dict() == {"repair": len(repair), "test": len(test)}
    row = found.sets.query("set == 'repair' and group == 'F' and label == 1").iloc[0]
    chosen = (repair.groups == "F") & (repair.y == 1)
    assert (row["rows"], row["patients"]) == (chosen.sum(), len(set(repair.patients[chosen])))


def test_the_work_follows_from_the_settings(parts, monkeypatch):
    def a_row(*_: object, gradients: bool = False) -> float:
        return 0.004 if gradients else 0.001

    monkeypatch.setattr(contract, "seconds_per_row", a_row)
    monkeypatch.setattr(contract, "seconds_per_evaluation", lambda *_: 0.5)
    model, repair, test = parts
    n, m = len(repair), len(test)
    methods = {
        "bias-gda": {"schedule": "paper", "epochs": 10, "batch": 60, "evals_per_epoch": 1},
        "pruning": {"units": 2},
        "random": {"trials": 7},
        "reject-option": {},
    }
    found = {step.method: step for step in estimate(model, repair, test, methods, paper_goal()).methods}
    assert found["bias-gda"].rows == 10 * n * (4 + 1) + n + m
    assert found["bias-gda"].seconds == pytest.approx(0.001 * found["bias-gda"].rows + 10 * 0.5)
    assert found["pruning"].rows == n * (1 + 4 * 5) + n + m  # 8 units, 2 per step
    assert says(found["pruning"].what, 4, 2, 8)
    assert found["random"].rows == 8 * n + n + m
    assert found["reject-option"].rows == n


def test_the_work_of_the_methods_beyond_the_paper(parts, monkeypatch):
    monkeypatch.setattr(contract, "seconds_per_row", lambda *_, gradients=False: 0.004 if gradients else 0.001)
    monkeypatch.setattr(contract, "seconds_per_evaluation", lambda *_: 0.5)
    monkeypatch.setattr(bias_score, "probes_seconds", lambda *given: 10.0 * given[-1])
    model, repair, test = parts
    n, m = len(repair), len(test)
    chosen = {
        "methods": ("bias-score", "constrained"),
        "settings": {"constrained": {"schedule": "paper", "epochs": 2, "batch": 60, "evals_per_epoch": 1}},
    }
    methods = {
        "constrained": {"schedule": "paper", "epochs": 2, "batch": 60, "evals_per_epoch": 1},
        "bias-score": {"steps": 8},
        "group-thresholds": {},
    }

    def steps(selection: str) -> dict[str, MethodEstimate]:
        found = estimate(model, repair, test, {**methods, "auto": chosen}, Goal("aod", selection=selection)).methods
        return {step.method: step for step in found}

    once = steps("paper")
    assert once["constrained"].rows == 2 * n * (4 + 1) + n + m
    assert once["bias-score"].rows == 2 * n + n + m
    assert once["bias-score"].seconds == pytest.approx(0.001 * (3 * n + m) + 24 * 0.5 + 3 * 10.0)  # aod: the label, and the group twice
    assert once["group-thresholds"].rows == n
    assert once["auto"].rows == n + 2 * n + 10 * n + 3 * n + n + m  # the original, both methods, one pass each to cross-fit, the report
    assert says(once["auto"].what, "standard, bias-score, constrained")

    parity = estimate(model, repair, test, {"bias-score": {"steps": 8}}, paper_goal("ppv_gap")).methods[-1]  # the group given either label
    assert parity.seconds == pytest.approx(once["bias-score"].seconds)
    assert parity.what.startswith("3 probes")

    honest = steps("honest")
    assert honest["constrained"].rows == 4 * 10 * n + n + m
    assert says(honest["constrained"].what, 4, "honest", 2)
    assert honest["bias-score"].rows == 2 * n + n + m  # all fits share what was read of the network
    assert honest["bias-score"].seconds == pytest.approx(0.001 * honest["bias-score"].rows + 6 * 24 * 0.5 + 5 * 3 * 10.0)
    assert honest["group-thresholds"].rows == n  # the scores of the original are enough
    assert honest["auto"].rows == n + 2 * n + 4 * 10 * n + 3 * n + n + m
    limited = estimate(model, repair, test, {"auto": chosen}, Goal("aod", selection="honest"), budget=60.0).methods[-1]
    assert limited.seconds == pytest.approx(60 + 0.001 * (n + m))  # and the scores for the report
    both = {"constrained": {"learning_rate": 1e-5}, "bias-gda": {}}
    free, cut = (
        {one.method: one.seconds for one in estimate(model, repair, test, both, Goal(selection="honest"), budget=budget).methods}
        for budget in (None, 10.0)
    )
    assert min(free["constrained"], free["bias-gda"]) > 20
    scoring = 0.001 * (n + m)
    assert (cut["constrained"], cut["bias-gda"]) == (pytest.approx(10 + scoring), pytest.approx(scoring))  # all methods share the budget


def test_the_estimate_states_the_whole_goal(parts):
    found = estimate(*parts, {"reject-option": {}}, paper_goal(keep={"tpr": 0.8}))
    assert found.to_dict()["goal"] == "min |eod|, tpr >= 0.8"


def test_probes_are_timed(parts):
    assert estimate(*parts, {"bias-score": {}}, paper_goal()).methods[-1].seconds > 0


def test_probes_of_the_layers_are_part_of_the_estimate(parts, monkeypatch):
    assert estimate(*parts, {"reject-option": {}}, paper_goal()).probes is None
    assert seconds_to_probe(parts[0], parts[2], 1000) > 0
    monkeypatch.setattr(case_repair, "seconds_to_probe", lambda _model, cohort, draws: len(cohort) * draws)
    found = estimate(*parts, {"reject-option": {}}, paper_goal(), probe_draws=50)
    assert found.probes.seconds == 2 * len(parts[2]) * 50  # before and after
    assert found.seconds == pytest.approx(sum(step.seconds for step in found.methods) + found.probes.seconds)
    assert found.to_dict()["probes"]["seconds"] == found.probes.seconds
    assert "probes" not in estimate(*parts, {"reject-option": {}}, paper_goal()).to_dict()


def test_the_time_of_a_method_without_a_cost_model_is_unknown(parts, monkeypatch):
    monkeypatch.setitem(METHODS, "own", Method("own", thresholds.standard, NoSettings, "a method of its own"))
    found = estimate(*parts, {"own": {}}, paper_goal())
    assert found.methods[-1].seconds is None
    assert found.seconds is None
    assert found.to_dict()["seconds"] is None


def test_the_network_is_not_changed(parts):
    model = parts[0]
    before = {key: value.clone() for key, value in model.state_dict().items()}
    assert estimate(*parts, {"bias-gda": {}}, paper_goal()).seconds > 0
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
