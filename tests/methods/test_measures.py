"""Every method and every measure that it takes: named gaps, a sum of rates of the user's own, and predictive parity."""

import copy
from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
import pytest
import torch
from torch import nn

from equipoise.comparison import audit
from equipoise.data import Cohort, Parts, Scores, split
from equipoise.errors import BadInput
from equipoise.measures import Cells, linearise
from equipoise.methods import METHODS, Label
from equipoise.methods.blind_rule import Posteriors, Problem, parity_path
from equipoise.methods.choosing import choose_step
from equipoise.methods.constrained import expected_weights
from equipoise.methods.step_estimates import StepEstimates
from equipoise.methods.thresholds import group_thresholds as fit
from equipoise.models import MLP, Critic, Heads, Probe, Training, predict, train
from support.bootstrap import bootstrap_cells
from support.facts import facts, suggests
from support.goals import paper_goal
from support.networks import trained
from support.notes import note_of
from support.published import as_chosen, debias

MEASURES = ("aod", "fpr_gap", "tnr_gap", "fnr_gap", "tpr-fpr", "0.7tpr+0.3fpr", "ppv_gap", "npv_gap")
QUICK = {
    "layer-wise": {"calls": 10, "first": 10},
    "bias-gda": {"epochs": 8, "learning_rate": 3e-3, "batch": 64},
    "constrained": {"epochs": 6},
    "bias-score": {"steps": 8, "folds": 3},
    "pruning": {"steps": 8},
    "random": {"trials": 12},
    "adversarial-finetune": {"epochs": 2, "critic_steps": 3, "actor_steps": 3},
    "adversarial-training": {"epochs": 3},
    "auto": {"methods": ("standard", "bias-score", "constrained"), "settings": {"bias-score": {"steps": 8}, "constrained": {"epochs": 6}}},
}
BOUNDED = (
    "random",
    "adversarial-finetune",
    "adversarial-training",
    "reject-option",
)  # the best performance within a maximum gap of their own
FLOOR = 0.65


@cache
def problem() -> tuple[MLP, Parts]:
    """Counts, prevalences that differ, and an input that tells more of one group: like COMPAS, and every gap is there to be lowered."""
    rng = np.random.default_rng(5)
    n = 1500
    a = rng.integers(0, 2, n)
    y = (rng.random(n) < 0.3 + 0.25 * a).astype(int)
    x = rng.normal(size=(n, 6))
    x[:, 0] = rng.poisson(1 + 1.5 * y + a)  # priors
    x[:, 1] += y * (0.3 + 1.2 * (1 - a))
    x[:, 2] += 1.2 * a
    inputs = torch.from_numpy((x - x.mean(0)) / x.std(0)).float()
    parts = split(Cohort.from_arrays(inputs, y, np.where(a == 1, "M", "F"), reference="M", name="counts"), seed=0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = MLP(6, width=8, depth=2)
    return train(parts.train, parts.valid, seed=0, model=model, settings=Training(epochs=8, learning_rate=0.01)), parts


def _by_hand(measure: str, decisions: np.ndarray, cohort: Cohort) -> float:
    """The gap of F against M from the definition, with probabilities of a positive decision."""
    rates = []
    for group in ("F", "M"):
        own = cohort.groups == group
        f, y = decisions[own], cohort.y[own]
        tpr, fpr = f[y == 1].mean(), f[y == 0].mean()
        if measure == "ppv_gap":
            rates.append((f * y).sum() / f.sum())
        elif measure == "npv_gap":
            rates.append(((1 - f) * (1 - y)).sum() / (1 - f).sum())
        else:
            table = {"aod": (tpr + fpr) / 2, "fpr_gap": fpr, "tnr_gap": 1 - fpr, "fnr_gap": 1 - tpr, "tpr-fpr": tpr - fpr}
            rates.append((table | {"0.7tpr+0.3fpr": 0.7 * tpr + 0.3 * fpr})[measure])
    return float(rates[0] - rates[1])


class Rounded(nn.Module):
    """A network with many equal scores, whose last bits depend on the place of a row in its batch, as they do on some processors."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * (1 + 2e-7 * (torch.arange(len(x), device=x.device) % 2)[:, None])


def test_no_threshold_separates_scores_of_a_network_that_differ_by_rounding():
    rng = np.random.default_rng(6)
    a, y = rng.integers(0, 2, 400), np.arange(400) % 2  # the order of the rows gives the label away, but only to rounding
    x = torch.from_numpy(np.stack([(y + rng.integers(0, 3, 400)) / 7, (a + y + rng.integers(0, 2, 400)) / 7], axis=1)).float()
    groups = np.where(a == 1, "M", "F")
    cohort = Cohort.from_arrays(x, y, groups, reference="M", name="ties")
    torch.manual_seed(6)
    model = Rounded()
    result = debias(model, cohort, method="bias-gda", measure="eod", min_performance=0.5, seed=0, **QUICK["bias-gda"])
    order = rng.permutation(400)
    other = Cohort.from_arrays(x[order], y[order], groups[order], reference="M", name="the same rows")
    for network, row in ((model, result.trace.iloc[0]), (result.model, result.trace.iloc[result.chosen])):
        decisions = predict(network, other).score >= row["threshold"]
        rates = [decisions[(other.groups == group) & (other.y == 1)].mean() for group in ("F", "M")]
        assert row["gap"] == pytest.approx(rates[0] - rates[1], abs=1e-9)
        assert row["performance"] == pytest.approx((decisions[other.y == 1].mean() + 1 - decisions[other.y == 0].mean()) / 2, abs=1e-9)


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_lowers_every_measure_that_it_takes(method: str, measure: str):
    model, parts = problem()
    extra = {"train": parts.train} if METHODS[method].needs_train else {}
    state = copy.deepcopy(model.state_dict())
    if not METHODS[method].takes(measure):
        with pytest.raises(BadInput, match=facts(method, measure, "bias-gda", "constrained", "bias-score")):
            debias(model, parts.valid, method=method, measure=measure, min_performance=FLOOR, **extra)
        return
    result = debias(model, parts.valid, method=method, measure=measure, min_performance=FLOOR, seed=1, **extra, **QUICK.get(method, {}))
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())

    # The trace is true: of the original, and of the network and rule that came back.
    first, row = result.trace.iloc[0], result.trace.iloc[result.chosen]
    before = (predict(model, parts.valid).score >= first["threshold"]).astype(float)
    after = result.rule.decide(predict(result.model, parts.valid))
    assert first["gap"] == pytest.approx(_by_hand(measure, before, parts.valid), abs=1e-9)
    assert row["gap"] == pytest.approx(_by_hand(measure, after, parts.valid), abs=1e-6)
    positive = parts.valid.y == 1
    assert row["performance"] == pytest.approx((after[positive].mean() + 1 - after[~positive].mean()) / 2, abs=1e-6)
    assert not result.trace["gap"].iloc[[0, result.chosen]].isna().any()

    # And the gap is no worse, by the rows that the method chose on.
    original = abs(first["gap"])
    assert original > 0.02
    size = abs(row.get("held_out_gap", np.nan))
    size = abs(row["gap"]) if np.isnan(size) else size
    if result.met_in_sample:
        assert size <= (max(original, 0.05) if method in BOUNDED else original) + 1e-9
        assert row["performance"] >= FLOOR - (0.03 if "held_out_gap" in row else 1e-9)
    if method == "group-thresholds" and measure == "tpr-fpr":
        # tpr = fpr in every group is a decision by the group alone: the method finds it, it is refused, and the next best is taken.
        assert (result.chosen > 0, result.met_in_sample) == (True, True)
        assert note_of(result.why, "constant")
        assert 0 < size < original
        found = as_chosen(model, parts.valid, method, paper_goal(measure, min_performance=FLOOR), seed=1)
        assert found.met_in_sample
        assert found.trace["gap"].iloc[found.chosen] == 0
        by_group = [np.unique(found.rule.decide(predict(model, parts.valid))[parts.valid.groups == group]) for group in ("F", "M")]
        assert sorted(map(float, np.concatenate(by_group))) == [0.0, 1.0]
    elif method == "group-thresholds":
        assert result.met_in_sample
        assert size < 0.02
        assert np.isfinite(audit(result, parts.valid)[measure].value)  # the measure of the goal is audited without being asked for


@pytest.mark.parametrize("measure", ["ppv_gap", "tpr-fpr"])
@pytest.mark.parametrize("method", ["bias-gda", "constrained", "pruning", "group-thresholds", "bias-score"])
def test_the_largest_gap_of_three_groups_and_a_bound(method: str, measure: str):
    model, parts = problem()
    rng = np.random.default_rng(0)
    groups = np.where(parts.valid.groups == "F", rng.choice(["F1", "F2"], len(parts.valid)), "M")
    cohort = Cohort.from_arrays(parts.valid.inputs, parts.valid.y, groups, reference="M")
    result = debias(model, cohort, method=method, measure=measure, max_gap=0.1, seed=1, **QUICK.get(method, {}))
    cells = Cells.of(result.rule.decide(predict(result.model, cohort)), cohort.y, cohort.attribute)
    row = result.trace.iloc[result.chosen]
    assert row["gap"] == pytest.approx(float(cells.worst_gap(measure)), abs=1e-6)
    held_out, size = abs(row.get("held_out_gap", row["gap"])), abs(row["gap"])  # bias-score must meet it on both
    assert result.met_in_sample == (max(held_out, size) <= 0.1 + 1e-9)
    assert ("final_network_misses" in [note.kind for note in result.why]) == (held_out <= 0.1 + 1e-9 < size)


def test_honest_selection_and_levelling_up_take_predictive_parity():
    model, parts = problem()
    result = debias(model, parts.valid, method="bias-gda", measure="ppv_gap", selection="honest", **QUICK["bias-gda"])
    assert np.isfinite(result.trace["gap_se"].dropna()).all()
    assert result.goal.measure == "ppv_gap"
    kept = debias(model, parts.valid, method="group-thresholds", measure="ppv_gap", keep={"tpr": "before"}, max_gap=0.05)
    assert kept.trace["spare"].iloc[kept.chosen] >= -1e-9


def test_a_sum_given_as_a_table_is_the_sum_that_is_written_out():
    model, parts = problem()
    one, other = (
        debias(model, parts.valid, method="bias-gda", measure=given, min_performance=FLOOR, **QUICK["bias-gda"])
        for given in ({"tpr": 0.7, "fpr": 0.3}, "0.7*tpr + 0.3*fpr")
    )
    assert one.trace.equals(other.trace)
    assert one.goal.measure == "0.7tpr+0.3fpr"
    half, named = (debias(model, parts.valid, method="group-thresholds", measure=m) for m in ({"tpr": 0.5, "fpr": 0.5}, "aod"))
    assert half.rule == named.rule


@pytest.mark.parametrize("measure", ["ppv_gap", "npv_gap"])
@pytest.mark.parametrize(
    "limits",
    [{"max_gap": 0.1}, {"max_gap": 0.0}, {"min_performance": 0.6}, {"min_performance": 0.99}, {"min_performance": 0.6, "max_gap": 0.05}],
    ids=str,
)
@pytest.mark.parametrize("performance", ["balanced_accuracy", "accuracy", "f1"])
@pytest.mark.parametrize(("groups", "n"), [(2, 26), (3, 18)])
def test_group_thresholds_are_the_best_of_all_combinations(groups: int, n: int, performance: str, limits, measure: str):
    """By enumeration, with predictive values and performance from their definitions."""
    for seed in range(3):
        rng = np.random.default_rng(seed)
        code = np.concatenate([np.repeat(np.arange(groups), 2), rng.integers(0, groups, n - 2 * groups)])
        y = np.concatenate([np.tile([0, 1], groups), rng.integers(0, 2, n - 2 * groups)])
        score = np.round(np.clip(0.4 + 0.3 * y + 0.1 * code + rng.normal(0, 0.25, n), 0, 1), 1 if seed == 1 else 6)
        fitted = fit(
            Scores.from_arrays(y, score, np.array(["a", "b", "c"])[code], reference="a"), paper_goal(measure, performance, **limits)
        )
        points = []
        for cuts in product(*(np.append(np.unique(score[code == k]), 1.1) for k in range(groups))):
            f = score >= np.array(cuts)[code]
            so = f if measure == "ppv_gap" else ~f
            if not all(so[code == k].sum() >= min(5, (code == k).sum()) for k in range(groups)):  # less than a handful tells nothing
                continue
            shares = [(y[so & (code == k)] == (measure == "ppv_gap")).mean() for k in range(groups)]
            tp, fp = (f & (y == 1)).sum(), (f & (y == 0)).sum()
            value = {
                "balanced_accuracy": (tp / (y == 1).sum() + 1 - fp / (y == 0).sum()) / 2,
                "accuracy": (f == y).mean(),
                "f1": 2 * tp / (tp + fp + y.sum()),
            }[performance]
            points.append((max(abs(share - shares[0]) for share in shares[1:]), value))
        gap, top = np.array(points).T
        if "min_performance" in limits:
            able = top >= limits["min_performance"] - 1e-9
            if able.any():
                least = gap[able].min()
                want = (least, top[able & (gap <= least + 1e-9)].max())
            else:
                want = (gap[top >= top.max() - 1e-9].min(), top.max())
            met = able.any() and want[0] <= limits.get("max_gap", 1.0) + 1e-9
        else:
            able = gap <= limits["max_gap"] + 1e-9
            best = top[able].max() if able.any() else None
            want = (gap[able & (top >= best - 1e-9)].min(), best) if able.any() else (gap.min(), top[gap <= gap.min() + 1e-9].max())
            met = able.any()
        row = fitted.trace.iloc[1]
        assert (abs(row["gap"]), row["performance"]) == pytest.approx(want, abs=1e-9)
        assert fitted.met == met


@pytest.mark.parametrize("measure", ["ppv_gap", "npv_gap"])
def test_the_prices_for_predictive_parity_are_nearly_the_best_of_a_fine_grid(measure: str):
    """With posteriors that are right: against brute force over prices and thresholds, for two groups that the inputs tell apart."""
    rng = np.random.default_rng(2)
    n = 1200
    chance, woman = rng.random(n), rng.random(n)
    y, a = (rng.random(n) < chance).astype(int), rng.random(n) < woman
    chance = np.where(a, chance**1.4, chance)  # the group matters beyond what one posterior says of it
    y = (rng.random(n) < chance).astype(int)
    cohort = Cohort.from_arrays(torch.zeros(n, 1), y, np.where(a, "F", "M"), reference="M")
    sure = Posteriors(chance, (np.column_stack([1 - woman, woman]),) * 2)
    nothing = Probe(np.zeros((2, 1)), np.zeros(2), np.empty((0, 0)), 0.0, 0.0)
    goal = paper_goal(measure, max_gap=0.1)
    known = Problem(cohort, goal, Heads(nothing, (nothing, nothing), (1, 0), 0.5), sure, sure, 2.0)
    labels = Label.of(cohort, goal)

    def look(scores: np.ndarray, max_gap: float):
        return labels.evaluate(scores, max(max_gap, 0.004))

    priced = parity_path(known, 8, look)
    assert len(priced) == 8
    for step in priced[2::3]:
        found = look(known.priced(sure, step.costs), step.max_gap)
        assert abs(found.gap) <= max(step.max_gap, 0.004)
        best = 0.0
        for with_label, without in product(np.linspace(-1, 1, 13), repeat=2):
            for side in (0, 1):
                cost = np.zeros((2, 2))
                cost[:, side] = with_label, without
                at = look(known.priced(sure, cost), step.max_gap)
                if abs(at.gap) <= max(step.max_gap, 0.004):
                    best = max(best, at.performance)
        assert found.performance >= best - 0.015  # the grid chooses 882 prices by these very rows


@pytest.mark.parametrize("measure", ["ppv_gap", "npv_gap"])
def test_the_standard_error_is_that_of_the_bootstrap(measure: str):
    rng = np.random.default_rng(3)
    n = 1600
    y, codes = rng.integers(0, 2, n), rng.integers(0, 2, n)
    f = (rng.random((2, n)) < 0.3 + 0.3 * y + 0.1 * codes).astype(float)
    levels, units = ("M", "F"), rng.integers(0, 900, n)
    units = np.unique(units, return_inverse=True)[1]
    evidence = StepEstimates(f, y, codes, levels, units, paper_goal(measure))
    for k in range(2):
        drawn = bootstrap_cells(f[k], y, codes, levels, units, draws=2000, seed=0)
        assert evidence.gap_se()[k] == pytest.approx(drawn.gaps(measure)[:, 0].std(), rel=0.1)
    # A step at which nobody of a group is decided so has no gap, and is never the one to take.
    empty = f.copy()
    empty[1, codes == 1] = 0.0 if measure == "ppv_gap" else 1.0
    none = StepEstimates(empty, y, codes, levels, units, paper_goal(measure))
    assert np.isnan(none.gap[1])
    assert choose_step([replace(none, goal=paper_goal(measure, min_performance=0.0))], (0, 7)).step == 0


def test_the_teacher_takes_the_place_of_the_label_in_the_weights():
    rng = np.random.default_rng(0)
    y, codes, p = rng.integers(0, 2, 200), rng.integers(0, 2, 200), rng.random(200)
    scores = Scores.from_arrays(y, rng.random(200), np.array(["M", "F"])[codes], reference="M")
    cells = Cells.of(scores.score >= 0.5, y, scores.attribute)
    codes = scores.attribute.codes
    assert expected_weights("ppv_gap", cells, 1, codes, y.astype(float)) == pytest.approx(
        linearise("ppv_gap", cells, 1).weights(y, codes), abs=1e-15
    )
    mine = codes == 1
    decided = mine & (scores.score >= 0.5)
    expected = (p[mine] - y[decided].mean()) / decided.sum()
    assert expected_weights("ppv_gap", cells, 1, codes, p)[mine] == pytest.approx(expected, abs=1e-12)


def test_an_unknown_measure_is_said_before_anything_is_done():
    model, parts = trained("mlp")
    with pytest.raises(BadInput, match=suggests("fpr")):
        debias(model, parts.valid, measure="tpr-frp")


@pytest.mark.parametrize(("measure", "reads"), [("aod", 4), ("tpr-fpr", 4), ("0.7tpr+0.3fpr", 4), ("eod", 2), ("spd", 2)])
def test_an_adversary_of_both_rates_sees_the_label(measure: str, reads: int, monkeypatch: pytest.MonkeyPatch):
    model, parts = problem()
    widths = []

    def critics(sizes: list[int], *others: object) -> Critic:
        widths.append(sizes[0])
        return Critic(sizes, *others)

    monkeypatch.setattr("equipoise.models.Critic", critics)
    debias(model, parts.valid, method="adversarial-training", measure=measure, train=parts.train, epochs=1)
    assert widths == [reads]


def test_a_ppv_that_rests_on_few_decisions_is_remarked_on():
    model, parts = problem()
    men = parts.valid.groups == "M"
    few = parts.valid.take(np.concatenate([np.flatnonzero(men), np.flatnonzero(~men)[:24]]))
    result = debias(model, few, method="standard", measure="ppv_gap")
    decided = int(result.rule.decide(predict(model, few))[few.groups == "F"].sum())
    assert 0 < decided < 10 < 24  # there are rows enough, and few of them are decided positive
    assert [
        (cell["group"], cell["count"], cell["of"]) for note in result.notes if note.kind == "small_cells" for cell in note.numbers["cells"]
    ] == [("F", decided, "ppv_gap")]
    assert not any(note.kind == "small_cells" for note in debias(model, parts.valid, method="standard", measure="ppv_gap").notes)
