"""Methods that change the last layer (last-layer, concept-erasure), and the search of one layer after another (layer-wise)."""

import numpy as np
import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.errors import BadInput
from equipoise.measures import Cells
from equipoise.methods import METHODS, Data, Goal, Rng, make_settings
from equipoise.methods.concept_erasure import erased
from equipoise.methods.evaluation import Label
from equipoise.methods.layer_wise import boosted_search
from equipoise.models import predict
from equipoise.models.repairable import under_repair
from support.facts import facts
from support.networks import biased_cohort, trained
from support.published import debias

KINDS = ("mlp", "perceptron", "cnn")
LAST = ("last-layer", "concept-erasure")


def inputs_of_the_last_layer(model: nn.Module, inputs: torch.Tensor) -> np.ndarray:
    """Read with a hook, in eval mode."""
    seen: list[torch.Tensor] = []
    last = [module for module in model.modules() if isinstance(module, nn.Linear)][-1]
    hook = last.register_forward_pre_hook(lambda _module, args: seen.append(args[0]))
    with torch.no_grad():
        model.eval()(inputs)
    hook.remove()
    return seen[0].double().numpy()


def label_of(cohort, measure: str) -> Label:
    return Data.of(cohort, {"": Goal(measure)}).labels[0]


def steps_of(method: str, model: nn.Module, cohort, measure: str = "spd", **settings):
    """Every step of a method, with the network's weights after it and what the method says its scores are."""
    network = under_repair(model, cohort)
    data = Data.of(cohort, {"": Goal(measure)})
    steps = METHODS[method].run(network, data, Goal(measure), make_settings(method, settings), Rng(0))
    for step in steps:
        yield step, network.evaluate()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", LAST)
def test_only_the_last_layer_changes_and_its_scores_are_those_of_the_network(kind: str, method: str):
    model, parts = trained(kind)
    for step, scores in steps_of(method, model, parts.valid):
        assert step.scores == pytest.approx(scores, abs=1e-5)
    result = debias(model, parts.valid, method=method, measure="spd", max_gap=0.01, recalibrate=False, allow_worse=True)
    before, after = model.state_dict(), result.model.state_dict()
    changed = [name for name in before if not torch.equal(before[name], after[name])]
    assert {name.rpartition(".")[0] for name in changed} == {list(before)[-1].rpartition(".")[0] if kind != "mlp" else "out"}


@pytest.mark.parametrize("measure", ["spd", "eod", "fpr_gap", "aod"])
def test_after_erasure_the_mean_logits_of_groups_are_equal_where_the_measure_compares_them(measure: str):
    cohort = biased_cohort(1500, seed=3)
    rng = np.random.default_rng(0)
    features = rng.normal(size=(1500, 5)) @ rng.normal(size=(5, 5)) + np.outer(cohort.attribute.codes, [1.0, 0, 2, 0, 0])
    features[:, 1] += cohort.y
    weight, label = rng.normal(size=5), label_of(cohort, measure)
    new, _ = erased(features, weight, label)
    logits, y, codes = features @ new, cohort.y, cohort.attribute.codes
    if measure == "aod":  # within labels, on average
        left = [(logits[(y == v) & (codes == 1)].mean() - logits[(y == v) & (codes == 0)].mean()) for v in (0, 1)]
        pooled = [((y == v).mean() * codes[y == v].mean() * (1 - codes[y == v].mean())) for v in (0, 1)]
        assert float(np.dot(left, pooled)) == pytest.approx(0, abs=1e-9)
        return
    compared = {"spd": np.ones(1500, bool), "eod": y == 1, "fpr_gap": y == 0}[measure]
    means = [logits[compared & (codes == group)].mean() for group in (0, 1)]
    assert means[0] == pytest.approx(means[1], abs=1e-9)


def test_erasure_is_the_closest_linear_layer_without_the_group():
    """An independent solution: least squares with the equations of equal means as constraints (three groups)."""
    rng = np.random.default_rng(5)
    codes = rng.integers(0, 3, 900)
    features = rng.normal(size=(900, 6)) + np.eye(6)[codes * 2] * 0.7
    cohort = eq.Cohort.from_arrays(torch.zeros(900, 1), rng.integers(0, 2, 900), np.array(list("abc"))[codes], reference="a")
    codes = cohort.attribute.codes
    weight = rng.normal(size=6)
    new, mean = erased(features, weight, label_of(cohort, "spd"))
    centred = features - features.mean(0)
    apart = np.stack([features[codes == group].mean(0) - features[codes == 0].mean(0) for group in (1, 2)])
    system = np.block([[centred.T @ centred, apart.T], [apart, np.zeros((2, 2))]])
    expected = np.linalg.solve(system, np.concatenate([centred.T @ centred @ weight, np.zeros(2)]))[:6]
    assert new == pytest.approx(expected, abs=1e-9)
    assert mean == pytest.approx(features.mean(0))


def test_the_last_layer_is_the_mean_of_regressions_on_balanced_rows():
    """With every cell of one size there is one balanced set, and scikit-learn fits the same regression to it."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    model, parts = trained("perceptron")
    cohort = parts.valid
    cells = [np.flatnonzero((cohort.attribute.codes == g) & (cohort.y == v)) for g in (0, 1) for v in (0, 1)]
    even = cohort.take(np.sort(np.concatenate([cell[: min(map(len, cells))] for cell in cells])))
    *_, (_, scores) = steps_of("last-layer", model, even, subsets=2, penalty=0.5)
    x = StandardScaler().fit_transform(inputs_of_the_last_layer(model, even.inputs[:]))
    expected = LogisticRegression(C=0.5, tol=1e-8, max_iter=10_000).fit(x, even.y).predict_proba(x)[:, 1]
    assert scores == pytest.approx(expected, abs=2e-3)


def test_a_network_that_does_not_end_in_a_linear_layer_is_refused():
    model = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 1), nn.Softplus())
    with pytest.raises(BadInput, match=facts("bias-score")):
        debias(model, biased_cohort(), method="last-layer", measure="spd")


def test_the_search_finds_a_better_point_than_random_ones():
    """On a smooth function of three numbers, over eight seeds."""

    def best(calls: int, first: int, seed: int) -> float:
        search = boosted_search(-2.0, 2.0, np.array([2.0, 2.0, 2.0]), calls, first, np.random.default_rng(seed))
        values, top = next(search), -np.inf
        while values is not None:
            value = -float(((values - [0.5, -1.0, 0.0]) ** 2).sum())
            top, values = max(top, value), search.send(value)
        kept = next(search)
        assert -float(((kept - [0.5, -1.0, 0.0]) ** 2).sum()) == pytest.approx(top)
        return top

    assert np.mean([best(40, 10, seed) for seed in range(8)]) > np.mean([best(40, 40, seed) for seed in range(8)])


def test_a_layer_keeps_its_best_values_before_the_next_is_searched():
    model, parts = trained("perceptron")
    result = debias(model, parts.valid, method="layer-wise", measure="spd", calls=6, first=6, layers=2, max_gap=0.9, margin=0.0)
    trace = result.trace.iloc[1:]
    assert len(trace) == 12
    scores = predict(result.model, parts.valid)
    cells = Cells.of(result.rule.decide(scores), scores.y, scores.attribute)
    assert float(cells.performance("balanced_accuracy")) == pytest.approx(trace["performance"].max(), abs=5e-3)
    assert trace["performance"].iloc[6] == pytest.approx(trace["performance"].iloc[:6].max(), abs=1e-9)  # starts from the best before
