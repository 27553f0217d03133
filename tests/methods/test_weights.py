"""Sample weights in post-processing: integer weights are replicated rows, weights of one change nothing, other methods refuse."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

import equipoise as eq
from equipoise.data import Attribute, Scores
from equipoise.errors import BadInput
from equipoise.measures import Cells, choose_rule, normalise_weights, sweep, upper_bound
from equipoise.methods import METHODS, Goal, Kind
from equipoise.methods.step_estimates import StepEstimates
from equipoise.models import MLP, predict
from support.facts import facts
from support.goals import paper_goal
from support.published import debias

RULES = {"standard": {}, "group-thresholds": {}, "equalised-odds": {}, "reject-option": {"quantiles": 0, "thresholds": 20, "margins": 10}}


def scores(rows: int = 240, seed: int = 0) -> Scores:
    rng = np.random.default_rng(seed)
    code = rng.integers(0, 3, rows)
    y = (rng.random(rows) < 0.4).astype(int)
    p = np.clip(rng.normal(0.35 + 0.25 * y - 0.1 * (code == 1), 0.18), 0.001, 0.999).round(2)
    return Scores.from_arrays(y, p, np.array(["a", "b", "c"])[code], reference="a")


def weighted(plain: Scores, weight: object) -> Scores:
    return Scores(plain.y, plain.score, plain.attributes, plain.patients, plain.ids, plain.name, np.asarray(weight, dtype=float))


def replicated(plain: Scores, times: np.ndarray) -> Scores:
    rows = np.repeat(np.arange(len(plain)), times)
    attributes = tuple(a.take(rows) for a in plain.attributes)
    return Scores(plain.y[rows], plain.score[rows], attributes, None, np.arange(len(rows)).astype(object), plain.name)


@pytest.fixture
def times() -> np.ndarray:
    return np.random.default_rng(1).integers(1, 5, 240)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize(
    "goal", [paper_goal("eod", max_gap=0.05), paper_goal("spd", "accuracy", min_performance=0.6), paper_goal("aod", "f1", max_gap=0.1)]
)
def test_integer_weights_are_replicated_rows(name: str, goal: Goal, times: np.ndarray) -> None:
    method, plain = METHODS[name], scores()
    settings = method.settings(**RULES[name])
    by_weight, by_copies = (method.run(own, goal, settings) for own in (weighted(plain, 2.5 * times), replicated(plain, times)))
    assert by_weight.trace[["gap", "performance"]].to_numpy() == pytest.approx(by_copies.trace[["gap", "performance"]].to_numpy(), abs=1e-7)
    assert by_weight.rule.decide(plain) == pytest.approx(by_copies.rule.decide(plain), abs=1e-6)
    assert by_weight.met == by_copies.met
    without = method.run(plain, goal, settings)
    ones = method.run(weighted(plain, np.full(len(plain), 3.0)), goal, settings)
    pd.testing.assert_frame_equal(ones.trace, without.trace, rtol=1e-12)
    assert ones.rule.decide(plain).tolist() == pytest.approx(without.rule.decide(plain).tolist())
    assert not np.allclose(by_weight.trace[["gap", "performance"]], without.trace[["gap", "performance"]])


def test_sweep_threshold_and_upper_bound(times: np.ndarray) -> None:
    plain = scores()
    copies, heavy = replicated(plain, times), weighted(plain, times)
    for measure in ("eod", "ppv_gap", "f1", "accuracy", "tpr-fpr"):
        swept = [sweep(own.score, own.y, own.attribute, (measure,), weight=own.weight) for own in (heavy, copies)]
        assert swept[0].thresholds.tolist() == swept[1].thresholds.tolist()
        assert swept[0].values[measure] == pytest.approx(swept[1].values[measure], abs=1e-10, nan_ok=True)
    assert choose_rule(valid=heavy).value == choose_rule(valid=copies).value
    bounds = [
        upper_bound(own.score, own.y, own.attribute.codes, own.attribute.levels, "eod", "balanced_accuracy", [0.0, 0.1], weight=own.weight)
        for own in (heavy, copies)
    ]
    assert bounds[0] == pytest.approx(bounds[1], abs=1e-10)


def test_standard_errors_of_steps(times: np.ndarray) -> None:
    plain = scores()
    goal, f = paper_goal("eod", max_gap=0.05), (plain.score >= 0.5).astype(float)[None]
    attribute: Attribute = plain.attribute
    units = np.arange(len(plain))
    heavy = StepEstimates(f, plain.y, attribute.codes, attribute.levels, units, goal, times.astype(float))
    copies = replicated(plain, times)
    by_patient = np.repeat(units, times)
    again = StepEstimates(f[:, by_patient], copies.y, copies.attribute.codes, copies.attribute.levels, by_patient, goal)
    assert heavy.gap == pytest.approx(again.gap)
    assert heavy.performance == pytest.approx(again.performance)
    # One success and one failure are added to a rate of so many rows, which differ between weights and copies.
    assert heavy.gap_se() == pytest.approx(again.gap_se(), rel=0.03)
    assert heavy.performance_se() == pytest.approx(again.performance_se(), rel=0.03)
    assert heavy.rate_se("tpr") == pytest.approx(again.rate_se("tpr"), rel=0.03)
    steps = np.vstack([f, f * (np.arange(len(plain)) % 7 > 0)])
    pairs = [replace(heavy, f=steps), replace(again, f=steps[:, by_patient])]
    assert pairs[0].rate_se("tpr", change=True) == pytest.approx(pairs[1].rate_se("tpr", change=True))
    assert pairs[0].performance_se(change=True) == pytest.approx(pairs[1].performance_se(change=True))
    one = StepEstimates(f, plain.y, attribute.codes, attribute.levels, units, goal, np.ones(len(plain)))
    none = StepEstimates(f, plain.y, attribute.codes, attribute.levels, units, goal)
    assert one.gap_se().tolist() == none.gap_se().tolist()


def cohort(seed: int = 3) -> eq.Cohort:
    rng = np.random.default_rng(seed)
    n = 300
    x, sex = rng.normal(size=n), rng.choice(["F", "M"], n)
    y = (x + 0.5 * (sex == "M") + rng.normal(size=n) > 0).astype(int)
    frame = pd.DataFrame({"x": x, "y": y, "sex": sex, "w": rng.integers(1, 4, n)})
    return eq.Cohort.from_frame(frame, label="y", group="sex", reference="M", weight="w")


def test_methods_that_change_the_network_refuse_weights_and_auto_passes_over_them() -> None:
    rows = cohort()
    torch.manual_seed(0)
    model = MLP(1, width=4, depth=1).eval()
    for name, method in METHODS.items():
        if not method.weights and method.kind != Kind.OTHERS and not method.needs_train:
            with pytest.raises(BadInput, match=facts(name, "weights", "group-thresholds")):
                debias(model, rows, method=name)
    found = debias(model, rows, method="group-thresholds", max_gap=0.02)
    cells = Cells.of(
        found.rule.decide(eq.Scores.of(rows, predict(found.model, rows).score)), rows.y, rows.attribute, normalise_weights(rows.weight)
    )
    row = found.trace.iloc[found.chosen]
    assert row["gap"] == pytest.approx(float(cells.gaps("eod")[0]))
    assert row["performance"] == pytest.approx(float(cells.performance("balanced_accuracy")))
    auto = debias(model, rows, method="auto", allow_group=True, max_gap=0.02)
    assert METHODS[auto.ran].weights
    honest = debias(model, rows, method="group-thresholds", selection="honest", max_gap=0.3)
    assert honest.goal.measure == "eod"


def test_a_comparison_of_weighted_patients_is_weighted() -> None:
    rows = cohort()
    torch.manual_seed(0)
    model = MLP(1, width=4, depth=1).eval()
    repaired = debias(model, cohort(4), method="group-thresholds", max_gap=0.02)
    both = eq.compare({"original": model, "repaired": repaired}, rows)
    found, scores = both.found, predict(repaired.model, rows)
    decided, positive = repaired.rule.decide(scores), rows.y == 1
    rates = {
        sex: np.average(decided[own], weights=rows.weight[own]) for sex in ("F", "M") if (own := positive & (rows.groups == sex)).any()
    }
    assert found.after.weighted
    assert found.gap_after.value == pytest.approx(rates["F"] - rates["M"])
    assert found.gap_change.value == pytest.approx(found.gap_after.value - found.gap_before.value)
