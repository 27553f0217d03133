"""The bias score: its worths are the project's functionals, its rule is the best one, and the choice is made on rows held out."""

import copy
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import nn

from equipoise.comparison import audit
from equipoise.data import Cohort
from equipoise.errors import BadInput, UnknownName
from equipoise.measures import GAPS, RATES, Cells, Threshold, measure_of, performance_functional
from equipoise.methods import METHODS, Rng, bias_score, make_settings
from equipoise.methods import blind_rule as bias_problem
from equipoise.methods import blind_rule as programs
from equipoise.methods.blind_rule import Posteriors, Problem, _group_probe, fit_probes, path
from equipoise.models import BiasScore, FeatureCache, FeatureChoice, Heads, Probe, fit_probe, folds_of, predict, probes, to_onnx
from support.facts import facts
from support.goals import paper_goal
from support.networks import trained
from support.published import debias

EMPTY = Probe(np.zeros((2, 1)), np.zeros(2), np.zeros((0, 2)), 0.0, 1.0)


class Plain(nn.Module):
    """The first input as a logit."""

    output = "logit"

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.last = nn.Linear(inputs, 1)
        with torch.no_grad():
            self.last.weight.zero_()
            self.last.weight[0, 0] = 1.0
            self.last.bias.zero_()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last(x)[:, 0]
        return found


def _cohort(n: int = 4000, groups: int = 2, seed: int = 0, missing: float = 0.0) -> Cohort:
    """Groups are told by their own input, imperfectly; scores and labels depend on the group."""
    rng = np.random.default_rng(seed)
    code = rng.integers(0, groups, n)
    x = rng.normal(size=(n, groups + 1)).astype(np.float32)
    x[:, 0] += 1.2 * code / (groups - 1) - 0.6
    x[np.arange(n), code + 1] += 2.0
    y = (rng.random(n) < 1 / (1 + np.exp(-1.5 * x[:, 0]))).astype(int)
    names = np.array([f"g{k}" for k in range(groups)], dtype=object)[code]
    names[rng.random(n) < missing] = None
    return Cohort.from_arrays(torch.from_numpy(x), y, names, reference="g0")


def _known(cohort: Cohort, measure: str, chance: np.ndarray, groups: list[np.ndarray], slope: float = 1.0, centre: float = 0.5) -> Problem:
    """A problem whose posteriors are given."""
    labels = tuple(RATES[rate] for rate in measure_of(measure).rates)
    posteriors = Posteriors(chance, tuple(groups))
    return Problem(cohort, paper_goal(measure), Heads(EMPTY, (EMPTY,) * len(labels), labels, centre), posteriors, posteriors, slope)


@pytest.mark.parametrize("measure", GAPS)
@pytest.mark.parametrize("groups", [2, 3])
def test_if_label_and_group_were_known_the_worths_would_be_gap_and_performance(measure: str, groups: int):
    cohort = _cohort(500, groups)
    one_hot = np.eye(groups)[cohort.attribute.codes]
    slope, centre = bias_problem._line("balanced_accuracy", cohort.y.astype(float), cohort)
    problem = _known(cohort, measure, cohort.y.astype(float), [one_hot] * len(measure_of(measure).rates), slope, centre)
    u, g = problem.worth(problem.held_out)
    f = np.random.default_rng(1).random(500)
    cells = Cells.of(f, cohort.y, cohort.attribute)
    assert g @ f / 500 == pytest.approx(cells.gaps(measure))
    functional = performance_functional("balanced_accuracy", cells.n)
    assert u @ f / 500 + functional.offset == pytest.approx(functional(cells))
    accuracy = performance_functional("accuracy", cells.n)
    assert bias_problem._line("accuracy", f, cohort) == pytest.approx((2.0, 0.5))
    assert (2 * cohort.y - 1) @ f / 500 + accuracy.offset == pytest.approx(accuracy(cells))


def test_rows_without_a_group_count_for_performance_alone():
    whole, some = _cohort(6000), _cohort(6000, missing=0.4)
    f = (whole.inputs[:, 0].numpy() > 0).astype(float)
    sure = Posteriors(np.full(6000, 0.5), (np.eye(2)[whole.attribute.codes],))  # of those without a group too
    gaps = [_known(cohort, "spd", sure.chance, list(sure.groups)).worth(sure)[1] @ f / 6000 for cohort in (whole, some)]
    assert abs(gaps[0][0]) > 0.3
    assert gaps[1] == pytest.approx(gaps[0], abs=0.03)
    assert set(some.attribute.codes) == {-1, 0, 1}
    model = Plain(3)
    result = debias(model, some, method="bias-score", measure="spd", min_performance=0.6)
    assert abs(result.trace["held_out_gap"].iloc[result.chosen]) < 0.03


@pytest.mark.parametrize("measure", ["spd", "eod"])
def test_no_multiplier_and_threshold_do_better_than_those_found(measure: str):
    """With posteriors that are right, against brute force over 401 multipliers and all thresholds."""
    rng = np.random.default_rng(0)
    n = 1500
    chance, women = rng.random(n), rng.random(n)
    women = np.clip(women * 0.7 + 0.3 * chance, 0.01, 0.99)
    y, a = (rng.random(n) < chance).astype(int), rng.random(n) < women
    cohort = Cohort.from_arrays(torch.zeros(n, 1), y, np.where(a, "F", "M"), reference="M")
    problem = _known(cohort, measure, chance, [np.column_stack([1 - women, women])], 2.0, 0.5)
    u, g = problem.worth(problem.held_out)
    found = path(problem, 10)
    assert len(found) == 10
    for max_gap, _, about in found[3:]:
        multipliers = np.array(list(about["multipliers"].values()))
        decided = u - multipliers @ g > 0
        left = np.abs(problem.gaps(decided.astype(float))).max()
        assert left <= max_gap + 0.012  # a row or two on the line, and what the last correction left
        # Of all rules u - lambda g > t, none with at most this much of the gap that has a price is worth more.
        price, worth = np.sign(multipliers[0]), u @ decided
        for lam in np.linspace(-3, 3, 401) * np.abs(u).max() / np.abs(g).max():
            order = np.argsort(-(u - lam * g[0]))
            total, gap = np.cumsum(u[order]), np.cumsum(g[0][order])
            assert total[price * gap <= price * (g[0] @ decided)].max(initial=0.0) <= worth + 1e-9


def test_the_gap_shrinks_on_patients_that_nobody_has_seen():
    model, cohort, test = Plain(3), _cohort(seed=1), _cohort(seed=2)
    for measure in ("spd", "eod", "fpr_gap", "aod"):
        result = debias(model, cohort, method="bias-score", measure=measure, min_performance=0.6)
        before = audit(debias(model, cohort, method="standard", measure=measure), test)
        after = audit(result, test)
        assert abs(before[measure].value) > 0.15
        assert abs(after[measure].value) < 0.05
        assert after["balanced_accuracy"].value > 0.6
        assert result.met_in_sample
        assert isinstance(result.model, BiasScore)
        assert result.rule.needs_group is False


@pytest.mark.parametrize("groups", [3, 8])
def test_all_gaps_of_many_groups_at_once(groups: int):
    model, cohort, test = Plain(groups + 1), _cohort(4000, groups, seed=1), _cohort(6000, groups, seed=2)
    result = debias(model, cohort, method="bias-score", measure="spd", min_performance=0.55)
    scores = predict(result.model, test)
    cells = Cells.of(result.rule.decide(scores), test.y, test.attribute)
    start = Cells.of((test.inputs[:, 0].numpy() > 0).astype(float), test.y, test.attribute)
    assert np.abs(start.gaps("spd")).max() > 0.35
    assert np.abs(cells.gaps("spd")).max() < 0.1
    assert (np.abs(cells.gaps("spd")) < 0.1).all()


def test_the_choice_is_made_on_rows_held_out(monkeypatch: pytest.MonkeyPatch):
    """Inputs that say nothing of the group, and many of them: fitted, the probes seem to know it; held out, they do not."""
    monkeypatch.setattr(probes, "PENALTIES", (1.0,))  # no help from the penalty
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 150)).astype(np.float32)
    x[:, 0] *= 2
    group = rng.integers(0, 2, 200)
    y = (rng.random(200) < 1 / (1 + np.exp(-x[:, 0]))).astype(int)
    cohort = Cohort.from_arrays(torch.from_numpy(x), y, np.where(group == 1, "M", "F"), reference="M")
    model = Plain(150)
    problem = fit_probes(
        cohort,
        paper_goal("spd"),
        FeatureChoice.of(model, cohort.inputs, "inputs"),
        folds_of(cohort, 5, 0),
        FeatureCache(model, cohort.inputs),
    )
    codes = cohort.attribute.codes
    fitted, held_out = (p.groups[0][np.arange(200), codes].mean() for p in (problem.fitted, problem.held_out))
    assert held_out < 0.55
    assert fitted > 0.8
    result = debias(model, cohort, method="bias-score", measure="spd", min_performance=0.55)
    assert {"held_out_gap", "held_out_performance", "max_gap"} <= set(result.trace.columns)
    assert (result.trace["max_gap"].iloc[1:].diff().dropna() < 0).all()
    row = result.trace.iloc[result.chosen]
    assert row["held_out_performance"] >= 0.55
    inside = result.trace[result.trace["held_out_performance"] >= 0.55]
    assert abs(row["held_out_gap"]) == pytest.approx(inside["held_out_gap"].abs().min())


def test_a_bound_a_rate_to_keep_and_other_performances():
    model, cohort = Plain(3), _cohort(seed=1)
    within = debias(model, cohort, method="bias-score", measure="spd", max_gap=0.1)
    assert within.met_in_sample
    assert abs(within.trace["held_out_gap"].iloc[within.chosen]) <= 0.1
    closest = debias(model, cohort, method="bias-score", measure="spd", min_performance=0.0)
    assert within.trace["held_out_performance"].iloc[within.chosen] > closest.trace["held_out_performance"].iloc[closest.chosen]
    for performance in ("accuracy", "f1"):
        result = debias(model, cohort, method="bias-score", measure="eod", performance=performance, min_performance=0.6)
        assert result.met_in_sample
        assert abs(result.trace["held_out_gap"].iloc[result.chosen]) < 0.02
        assert result.trace["performance"].iloc[result.chosen] > 0.6
    kept = debias(model, cohort, method="bias-score", measure="eod", min_performance=0.6, keep={"tpr": 0.75})
    assert kept.trace["spare"].iloc[kept.chosen] >= 0
    scores = predict(kept.model, cohort)
    rates = Cells.of(kept.rule.decide(scores), cohort.y, cohort.attribute).rate("tpr")
    assert (rates > 0.72).all()  # held out it is at least 0.75


def test_a_network_without_a_gap_is_left_alone():
    rng = np.random.default_rng(0)
    x = np.repeat(rng.normal(size=(300, 2)).astype(np.float32), 2, axis=0)
    y = np.repeat((rng.random(300) < 0.5).astype(int), 2)
    cohort = Cohort.from_arrays(torch.from_numpy(x), y, np.resize(["F", "M"], 600), reference="M")
    model = Plain(2)
    result = debias(model, cohort, method="bias-score", measure="spd")
    assert result.chosen == 0
    assert type(result.model) is Plain
    assert result.model is not model
    assert result.notes[0].kind == "original_kept"


def test_it_says_what_it_read_and_refuses_what_it_cannot_do():
    model, parts = trained("mlp")
    result = debias(model, parts.valid, method="bias-score", measure="spd", min_performance=0.5, depth="hidden", layers=2)
    probes, chosen = result.notes[:2]
    assert (probes.kind, probes.subject) == ("probes", "what enters linears.1, out")
    assert list(probes.numbers["multipliers"]) == ["F"]
    assert (chosen.kind, chosen.numbers["folds"]) == ("chosen_on_held_out_rows", 5)
    with pytest.raises(UnknownName, match="depth"):
        make_settings("bias-score", {"depth": "deep"})
    with pytest.raises(BadInput, match=facts("folds", 2)):
        make_settings("bias-score", {"folds": 1})
    with pytest.raises(BadInput, match=r"model\.float\(\)"):
        debias(copy.deepcopy(model).half(), parts.valid, method="bias-score", measure="spd")


def test_the_largest_gap_falls_in_either_direction():
    """Groups that are ahead and behind the reference at once."""
    cohort = _cohort(6000, 3, seed=3)
    turned = replace(cohort, attributes=(replace(cohort.attribute, levels=("g1", "g0", "g2"), codes=_swap(cohort.attribute.codes)),))
    result = debias(Plain(4), turned, method="bias-score", measure="spd", min_performance=0.55)
    assert result.trace["gap"].iloc[0] != 0
    assert abs(result.trace["held_out_gap"].iloc[result.chosen]) < 0.04


def _swap(codes: np.ndarray) -> np.ndarray:
    return np.array([1, 0, 2])[codes]


def test_few_rows_of_a_label_are_helped_by_all_rows(monkeypatch: pytest.MonkeyPatch):
    """The group is in the inputs, whatever the label: a probe of all rows knows it better than one of a handful of positives."""
    rng = np.random.default_rng(0)
    x, codes = rng.normal(size=(600, 40)), rng.integers(0, 2, 600)
    x[:, :5] += 0.6 * codes[:, None]
    positive, folds = rng.random(600) < 0.06, np.arange(600) % 5
    wide = _group_probe(x, codes, 2, folds, positive, 1)
    assert wide.weight == pytest.approx(fit_probe(x, codes, 2, folds, codes >= 0).weight)
    monkeypatch.setattr(bias_problem, "FEW_WITH_LABEL", 5)
    assert _group_probe(x, codes, 2, folds, positive, 1).weight == pytest.approx(fit_probe(x, codes, 2, folds, positive).weight)


def test_a_label_that_changes_what_the_inputs_say_keeps_its_own_probe():
    rng = np.random.default_rng(0)
    codes, positive = rng.integers(0, 2, 1200), rng.random(1200) < 0.4
    x = rng.normal(size=(1200, 3))
    x[:, 0] += 2 * np.where(positive, 1, -1) * (2 * codes - 1)  # the other way round for negatives
    folds = np.arange(1200) % 5
    assert _group_probe(x, codes, 2, folds, positive, 1).weight == pytest.approx(fit_probe(x, codes, 2, folds, positive).weight)


def test_what_may_be_lost_is_counted_from_what_probes_have_on_rows_held_out():
    rng = np.random.default_rng(1)
    y, codes = rng.integers(0, 2, 160), rng.integers(0, 2, 160)
    x = rng.normal(size=(160, 60))  # so much to read, and so few rows, that probes do worse than the network beside them
    x[:, 0] += 1.5 * y + 0.8 * codes
    cohort = Cohort.from_arrays(torch.from_numpy(x).float(), y, np.array(["M", "F"])[codes], reference="M")
    model = nn.Sequential(nn.Linear(60, 1)).eval()
    with torch.no_grad():
        model[0].weight.copy_(torch.eye(60)[:1])
    reading, folds = FeatureChoice.of(model, cohort.inputs, "inputs"), folds_of(cohort, 5, 0)
    held_out = fit_probes(cohort, paper_goal("spd"), reading, folds, FeatureCache(model, cohort.inputs)).held_out.chance
    plain = max(((held_out >= t) == (y == 1))[y == 1].mean() / 2 + ((held_out >= t) == (y == 1))[y == 0].mean() / 2 for t in held_out)
    found = debias(model, cohort, method="bias-score", measure="spd", depth="inputs")
    assert plain < found.trace["performance"].iloc[0]
    assert found.goal.original == pytest.approx(found.trace["performance"].iloc[0])  # what is stated of the original is its own value
    in_sample = debias(model, cohort, method="bias-score", measure="spd", depth="inputs", selection="paper")
    (limit,) = {note.numbers["min_performance"] for note in in_sample.why if "min_performance" in note.numbers}
    assert limit == pytest.approx(plain - 0.02)
    assert debias(model, cohort, method="bias-score", measure="spd", depth="inputs", min_performance=0.6).goal.min_performance == 0.6


def test_probes_that_miss_a_gap_at_the_start_still_give_steps(monkeypatch: pytest.MonkeyPatch):
    """Where the first program has no solution, since probes cannot make up for what they miss, the gaps are taken as they believe them."""
    asked: list[float] = []
    real = programs.solve

    def refuses_first(u, g, low, high, start=None):
        asked.append(float(high[0]))
        return None if len(asked) == 1 else real(u, g, low, high, start)

    model, parts = trained("mlp")
    cohort = parts.valid
    monkeypatch.setattr(programs, "solve", refuses_first)
    found = debias(model, cohort, method="bias-score", measure="spd", min_performance=0.0, steps=3)
    assert len(found.trace) == 4
    monkeypatch.setattr(programs, "solve", lambda *_: None)
    assert len(debias(model, cohort, method="bias-score", measure="spd", min_performance=0.0, steps=3).trace) == 1


# as delivered


def _gray(n: int = 240, seed: int = 0) -> Cohort:
    """Images with few levels of gray, as files have them: sex is in one corner, the finding in the middle; a border that hardly varies."""
    rng = np.random.default_rng(seed)
    a = rng.integers(0, 2, n)
    y = (rng.random(n) < 0.35 + 0.3 * a).astype(int)
    x = np.round(rng.random((n, 1, 20, 20)) * 3) / 3
    x[:, 0, 7:12, 7:12] += 2.0 * y[:, None, None] / 3
    x[:, 0, 14:, 14:] += 1.0 * a[:, None, None] / 3
    x[:, 0, :3, :3] = 0.5 + 3e-6 * a[:, None, None]  # what rounding would leave there
    return Cohort.from_arrays(torch.from_numpy(x.astype(np.float32)), y, np.where(a == 1, "M", "F"), reference="M")


def _small_cnn(cohort: Cohort) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(5), nn.Flatten(), nn.Linear(75, 1))
    optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(30):
        loss = nn.functional.binary_cross_entropy_with_logits(model(cohort.inputs)[:, 0], torch.from_numpy(cohort.y).float())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return model.eval()


def test_pixels_that_differ_by_rounding_have_the_same_logit_and_onnx_agrees(tmp_path):
    pytest.importorskip("onnxscript")
    cohort = _gray()
    found = debias(_small_cnn(cohort), cohort, method="bias-score", measure="spd", max_loss=0.2, folds=3, steps=6, recalibrate=False)
    assert isinstance(found.model, BiasScore)
    noise = torch.from_numpy(np.random.default_rng(1).choice([-2e-7, 2e-7], cohort.inputs.shape).astype(np.float32))
    with torch.no_grad():
        assert (found.model(cohort.inputs + noise) - found.model(cohort.inputs)).abs().max() < 1e-4
    assert to_onnx(found.model, cohort.inputs, tmp_path / "model.onnx").max_difference < 1e-5


def test_the_trace_has_the_values_of_the_networks_that_would_be_delivered():
    cohort = _cohort(900, seed=4)
    model = Plain(3)
    fit = METHODS["bias-score"].run(model, cohort, paper_goal("spd", max_loss=0.1), make_settings("bias-score", {"steps": 6}), Rng(0), None)
    assert len(fit.steps) == len(fit.trace)
    for step, row in zip(fit.steps, fit.trace.itertuples(), strict=True):
        scores = predict(model if step.model is None else step.model, cohort)
        cells = Cells.of(step.rule.decide(scores), scores.y, scores.attribute)
        assert cells.gaps("spd")[0] == pytest.approx(row.gap, abs=1e-12)
        assert step.rule.value == row.threshold


class Estimator(nn.Module):
    """A scikit-learn classifier as a network: it has a forward pass, and nothing to train."""

    output = "probability"

    def __init__(self, estimator: LogisticRegression) -> None:
        super().__init__()
        self.estimator = estimator

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(self.estimator.predict_proba(x.numpy())[:, 1]).to(x)


def test_a_model_without_weights_is_repaired_by_what_it_reads_and_says():
    cohort, test = _cohort(1500), _cohort(4000, seed=1)
    model = Estimator(LogisticRegression().fit(cohort.inputs.numpy(), cohort.y))
    found = debias(model, cohort, method="bias-score", measure="spd", max_loss=0.1, steps=8)
    before, after = (
        abs(Cells.of(rule.decide(predict(network, test)), test.y, test.attribute).gaps("spd")[0])
        for network, rule in ((model, Threshold(found.trace["threshold"].iloc[0])), (found.model, found.rule))
    )
    assert before > 0.15
    assert after < before / 3
    with pytest.raises(BadInput, match="no parameters"):
        debias(model, cohort, method="bias-gda", measure="spd")


@pytest.mark.parametrize("selection", ["paper", "honest"])
def test_probes_whose_products_are_computed_on_a_device_give_the_same_repair(selection: str, monkeypatch: pytest.MonkeyPatch):
    cohort, used = _cohort(600), []
    given = {"method": "bias-score", "selection": selection, "steps": 6}
    plain = debias(Plain(3), cohort, **given)
    monkeypatch.setattr("equipoise.models.features.product_device", lambda *_: used.append(1) or torch.device("cpu"))
    there = debias(Plain(3), cohort, **given)
    assert used
    assert there.chosen == plain.chosen
    # Products are rounded differently by different libraries and processors. That may move a row across a threshold, which moves a rate by
    # up to 0.007 and with it the step between two rows at which a gap is reached.
    rates = ["step", "gap", "performance"]
    pd.testing.assert_frame_equal(there.trace[rates], plain.trace[rates], rtol=0, atol=0.015)
    assert predict(there.model, cohort).score == pytest.approx(predict(plain.model, cohort).score, abs=0.01)
    assert bias_score.probes_seconds(Plain(3), cohort, bias_score.BiasScoreSettings(), 3) > 0
