"""Several labels, or classes, repaired at once: equal to one label where there is one, and true of the network that comes out."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.data import Cohort, split
from equipoise.errors import BadInput
from equipoise.measures import Cells
from equipoise.methods import ALL_AT_ONCE, METHODS
from equipoise.methods.evaluation import argmax_thresholds
from equipoise.models import ManyBiasScores, OneOutput, to_onnx
from support.facts import facts, suggests
from support.multilabel import CLASSES, LABELS, QUICK, classes_cohort, fitted, labels_cohort, labels_frame, network
from support.published import debias


def scores_by_hand(model: nn.Module, cohort: Cohort) -> np.ndarray:
    with torch.no_grad():
        raw = model(torch.as_tensor(cohort.inputs).float()).double()
    return (raw.softmax(1) if cohort.kind == "classes" else raw.sigmoid()).numpy()


def values_by_hand(decisions: np.ndarray, cohort: Cohort, label: str, measure: str) -> tuple[float, float]:
    part = cohort.labelled(label)
    known = cohort.column(label) >= 0
    cells = Cells.of(decisions[known].astype(float), part.y, part.attribute)
    return float(cells.worst_gap(measure)), float(cells.performance("balanced_accuracy"))


@pytest.mark.parametrize(
    ("method", "goal"),
    [(m, {"min_performance": 0.7}) for m in QUICK]
    + [("constrained", {"max_gap": 0.05}), ("bias-gda", {}), ("bias-gda", {"keep": {"tpr": "before"}})],
)
def test_one_label_among_several_is_the_ordinary_repair(method, goal):
    frame = labels_frame(900, 3).drop(columns="Mass")
    one = Cohort.from_frame(frame, label="Effusion", group="sex", reference="M", scale=False)
    many = replace(one, labels=("Effusion",), targets=one.y[:, None])
    net = fitted(network(one.inputs.shape[1], 1), many)
    ordinary = debias(net, one, method=method, seed=2, **goal, **QUICK[method])
    together = debias(net, many, method=method, seed=2, **goal, **QUICK[method])
    found = together.labels["Effusion"]
    assert found.trace.columns.tolist() == ordinary.trace.columns.tolist()
    np.testing.assert_allclose(found.trace.to_numpy(), ordinary.trace.to_numpy(), atol=1e-6)
    assert (found.chosen, found.met_in_sample, found.goal) == (ordinary.chosen, ordinary.met_in_sample, ordinary.goal)
    for key, value in ordinary.model.state_dict().items():
        torch.testing.assert_close(together.model.state_dict()[key], value, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("kind", ["labels", "classes"])
@pytest.mark.parametrize("method", [name for name, own in METHODS.items() if own.labels])
def test_contract(method, kind, request):
    model, cohort = request.getfixturevalue(kind)
    cohort = cohort.take(range(600))
    if not METHODS[method].repairs(cohort.kind):
        with pytest.raises(BadInput, match=facts(method, "classes", "constrained")):
            debias(model, cohort, method=method)
        return
    model.train()
    state = copy.deepcopy(model.state_dict())
    targets = cohort.targets.copy()
    result = debias(model, cohort, method=method, measure="eod", min_performance=0.6, seed=1, **QUICK.get(method, {}))

    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    assert all(m.training for m in model.modules())
    assert all(p.grad is None for p in model.parameters())
    assert np.array_equal(targets, cohort.targets)
    model.eval()
    for net in (model, result.model):
        assert not any(m._forward_hooks or m._forward_pre_hooks or m._backward_hooks for m in net.modules())
    assert not any(a is b for a in result.model.parameters() for b in model.parameters())

    # The network gives all outputs in the same shape, and each label's candidate is a view of that same network.
    x = torch.as_tensor(cohort.inputs).float()
    assert result.model(x).shape == model(x).shape
    assert list(result.labels) == list(cohort.labels)
    with pytest.raises(BadInput, match=facts(*cohort.labels)):
        _ = result.rule
    assert result.met_in_sample == all(own.met_in_sample for own in result.labels.values())
    assert all(own.rule.needs_group == METHODS[own.ran if method == "auto" else method].needs_group for own in result.labels.values())
    scores = scores_by_hand(result.model, cohort)
    for at, (label, own) in enumerate(result.labels.items()):
        assert any(m is result.model for m in own.model.modules())
        row = own.trace.iloc[own.chosen]
        if kind == "classes":
            decisions = scores.argmax(1) == at
        elif own.rule.needs_group:
            part = cohort.labelled(label)
            decisions = own.rule.decide(eq.Scores.of(part, scores[:, at]))
        else:
            decisions = scores[:, at] >= own.rule.value
        gap, performance = values_by_hand(decisions, cohort, label, "eod")
        assert gap == pytest.approx(row["gap"], abs=1e-6)
        assert performance == pytest.approx(row["performance"], abs=1e-6)
        if own.met_in_sample and METHODS[method].labels == ALL_AT_ONCE:
            assert performance >= 0.6
    if kind == "classes":
        recall = np.mean([(scores.argmax(1)[cohort.column(c) == 1] == k).mean() for k, c in enumerate(CLASSES)])
        assert result.trace["performance"].iloc[result.chosen] == pytest.approx(recall, abs=1e-6)

    again = debias(model, cohort, method=method, measure="eod", min_performance=0.6, seed=1, **QUICK.get(method, {}))
    assert all(torch.equal(v, result.model.state_dict()[k]) for k, v in again.model.state_dict().items())
    assert all(again.labels[name].trace.equals(own.trace) for name, own in result.labels.items())
    found = eq.audit(result, cohort)
    assert list(found.labels) == list(cohort.labels)
    assert found[cohort.labels[0]]["eod"].value == pytest.approx(
        result.labels[cohort.labels[0]].trace["gap"].iloc[result.labels[cohort.labels[0]].chosen], abs=1e-6
    )


def test_constrained_closes_the_gaps_of_both_labels_on_other_patients(labels):
    model, cohort = labels
    fresh = labels_cohort(6000, 9)
    before = eq.audit(model, fresh, valid=cohort)
    result = debias(model, cohort, method="constrained", measure="eod", max_loss=0.03)
    after = eq.audit(result, fresh)
    for label in LABELS:
        assert abs(before[label]["eod"].value) > 0.12
        assert abs(after[label]["eod"].value) < 0.05
        assert after[label]["balanced_accuracy"].value > before[label]["balanced_accuracy"].value - 0.04
    # One repair: a step of the one trace, not one network a label.
    assert len({own.chosen for own in result.labels.values()}) == 1


def test_constrained_closes_the_gaps_of_all_classes_on_other_patients(classes):
    model, fresh = classes[0], classes_cohort(20_000, 9)
    before = eq.audit(model, fresh)
    result = debias(model, classes_cohort(4500, 1), method="constrained", measure="eod", max_loss=0.03)
    after = eq.audit(result, fresh)
    assert max(abs(before[c]["eod"].value) for c in CLASSES) > 0.085
    for name in CLASSES:
        assert abs(after[name]["eod"].value) < 0.05
        assert after[name]["balanced_accuracy"].value > before[name]["balanced_accuracy"].value - 0.03


@pytest.mark.parametrize("method", ["constrained", "bias-gda", "pruning", "bias-score"])
def test_what_is_not_known_does_not_count(method, labels):
    model, cohort = labels
    rng = np.random.default_rng(5)
    x, groups = torch.as_tensor(cohort.inputs).float(), cohort.groups
    hidden = rng.random(cohort.targets.shape) < 0.25
    results = []
    for fill in (np.nan, -1):
        y = np.where(hidden, fill, cohort.targets).astype(object)
        part = Cohort.from_arrays(x, y, groups, reference="M", labels=LABELS)
        assert np.array_equal(part.targets == -1, hidden)
        results.append(debias(model, part, method=method, min_performance=0.6, **QUICK.get(method, {})))
    # Their labels are never looked at: the same as a trace worked out on the known rows alone.
    first, second = results
    assert all(torch.equal(a, b) for a, b in zip(first.model.state_dict().values(), second.model.state_dict().values(), strict=True))
    other = Cohort.from_arrays(x, np.where(hidden, -1, cohort.targets), groups, reference="M", labels=LABELS)
    scores = scores_by_hand(model, other)
    for at, label in enumerate(LABELS):
        start = first.labels[label].trace.iloc[0]
        assert values_by_hand(scores[:, at] >= start["threshold"], other, label, "eod")[0] == pytest.approx(start["gap"], abs=1e-9)
        assert len(other.labelled(label)) == (~hidden[:, at]).sum()


def test_rows_in_which_nothing_is_known_change_nothing_but_the_shuffles(labels):
    """A label's weights come from its known rows: rows with no known label get no gradient whatever their inputs are."""
    model, cohort = labels
    x, rng = torch.as_tensor(cohort.inputs).float(), np.random.default_rng(0)
    gone = rng.random(len(cohort)) < 0.3
    y = np.where(gone[:, None], -1, cohort.targets)
    mad = torch.where(torch.from_numpy(gone)[:, None], 5 * torch.randn(x.shape, generator=torch.Generator().manual_seed(1)), x)
    found = [
        debias(model, Cohort.from_arrays(inputs, y, cohort.groups, reference="M", labels=LABELS), method="constrained", epochs=3)
        for inputs in (x, mad)
    ]
    for a, b in zip(*(result.model.state_dict().values() for result in found), strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("method", ["constrained", "bias-gda"])
def test_three_groups(method):
    train, valid = labels_cohort(2000, 0, groups=3), labels_cohort(2400, 1, groups=3)
    model = fitted(network(6, 2), train)
    result = debias(
        model, valid, method=method, measure="eod", max_loss=0.04, **({"learning_rate": 1e-3, "epochs": 12} if method == "bias-gda" else {})
    )
    start, row = result.trace.iloc[0], result.trace.iloc[result.chosen]
    assert abs(start["gap"]) > 0.15
    assert abs(row["gap"]) < 0.06
    scores = scores_by_hand(result.model, valid)
    worst = max(abs(values_by_hand(scores[:, k] >= result.labels[name].rule.value, valid, name, "eod")[0]) for k, name in enumerate(LABELS))
    assert worst == pytest.approx(abs(row["gap"]), abs=1e-6)


def test_bias_scores_of_two_outputs_run_the_network_once_and_leave_the_third_alone(tmp_path):
    frame = labels_frame(900, 3)
    cohort = Cohort.from_frame(frame, label=LABELS, group="sex", reference="M", scale=False)

    class Counting(nn.Module):
        pathologies = ("Mass", "Edema", "Effusion")

        def __init__(self) -> None:
            super().__init__()
            self.body, self.calls = fitted(network(6, 3), _three(frame)), 0

        def forward(self, x):
            self.calls += 1
            return self.body(x)

    model = Counting()
    result = debias(model, cohort, method="bias-score", measure="eod", folds=2, steps=6)
    assert isinstance(result.model, ManyBiasScores)
    assert result.model.columns == [2, 0]  # by name
    assert result.model.pathologies == model.pathologies
    x = torch.as_tensor(cohort.inputs).float()
    result.model.network.calls = 0
    out = result.model(x)
    assert result.model.network.calls == 1
    assert torch.equal(out[:, 1], model.body(x)[:, 1])
    assert not torch.equal(out[:, 0], model.body(x)[:, 0])
    # Each label's score is that of the ordinary bias score of that output alone.
    alone = debias(OneOutput(model, "Effusion"), cohort.labelled("Effusion"), method="bias-score", measure="eod", folds=2, steps=6)
    torch.testing.assert_close(out[:, 2], alone.model(x), atol=1e-5, rtol=1e-5)

    pytest.importorskip("onnxscript")
    plain = copy.deepcopy(result.model)
    plain.network = plain.network.body
    for head in plain.heads:
        head.reading = replace(head.reading, layers=tuple(name.removeprefix("body.") for name in head.reading.layers))
    assert torch.equal(plain(x), out)
    assert to_onnx(plain.eval(), x[:9], tmp_path / "many.onnx").max_difference < 1e-5


def _three(frame) -> Cohort:
    y = np.stack([frame["Mass"], frame["Mass"] ^ frame["Effusion"], frame["Effusion"]], axis=1)
    x = frame.drop(columns=[*LABELS, "sex"]).to_numpy(np.float32, copy=True)
    return Cohort.from_arrays(x, y, frame["sex"], labels=["Mass", "Edema", "Effusion"])


def test_which_output_is_which_label(labels):
    model, cohort = labels
    swapped = nn.Sequential(*copy.deepcopy(model))
    with torch.no_grad():
        swapped[-1].weight.copy_(model[-1].weight.flip(0))
        swapped[-1].bias.copy_(model[-1].bias.flip(0))
    straight = eq.audit(model, cohort)
    told = eq.audit(swapped, cohort, outputs={"Effusion": 1, "Mass": 0})
    assert told["Mass"]["eod"].value == straight["Mass"]["eod"].value
    swapped.targets = ["Mass", "Effusion"]
    assert eq.audit(swapped, cohort)["Mass"]["eod"].value == straight["Mass"]["eod"].value
    swapped.targets = ["Masses", "Effusion"]
    with pytest.raises(BadInput, match=suggests("Masses")):
        eq.audit(swapped, cohort)
    wide = network(6, 5)
    with pytest.raises(BadInput, match=facts(5, "Effusion")):
        debias(wide, cohort, method="constrained")
    with pytest.raises(BadInput, match=suggests("Mass")):
        debias(model, cohort, outputs={"Mas": 1})
    with pytest.raises(BadInput, match="output"):
        debias(model, cohort, outputs={"Effusion": 1, "Mass": 1})
    with pytest.raises(BadInput, match=facts("outputs", 0, 1)):
        debias(model, cohort, outputs={"Effusion": 0, "Mass": 7})


def test_probabilities_of_labels_and_classes_are_repaired_too(labels, classes):
    for (model, cohort), end in ((labels, nn.Sigmoid()), (classes, nn.Softmax(1))):
        ending = nn.Sequential(model, end)
        found = debias(ending, cohort, method="constrained", measure="eod", epochs=5)
        plain = debias(model, cohort, method="constrained", measure="eod", epochs=5)
        x = torch.as_tensor(cohort.inputs).float()
        assert ((found.model(x) >= 0) & (found.model(x) <= 1)).all()
        # The same steps, up to rounding in the logarithms.
        assert abs(found.trace["gap"].iloc[found.chosen]) == pytest.approx(abs(plain.trace["gap"].iloc[plain.chosen]), abs=0.02)


def test_parts_are_stratified_by_class_and_carry_the_labels(classes):
    parts = split(classes[1], seed=0)
    whole = classes[1].targets.mean(0)
    for part in parts:
        assert part.kind == "classes"
        assert part.labels == tuple(CLASSES)
        np.testing.assert_allclose(part.targets.mean(0), whole, atol=0.01)


def test_of_equal_classes_the_first_wins():
    p = np.array([[0.4, 0.4, 0.2], [0.1, 0.45, 0.45], [1 / 3, 1 / 3, 1 / 3]])
    assert np.array_equal((p >= argmax_thresholds(p)).argmax(1), p.argmax(1))
    assert ((p >= argmax_thresholds(p)).sum(1) == 1).all()


def test_a_network_that_tells_nothing_has_no_recall_to_boast_of(classes):
    """All classes equal: argmax takes the first for everybody, and neither the look nor the view may call that right for all."""
    model, cohort = classes
    flat = copy.deepcopy(model)
    with torch.no_grad():
        flat[-1].weight.zero_()
        flat[-1].bias.zero_()
    flat.output = "logit"
    found = debias(flat, cohort, method="standard")
    assert found.trace["performance"].iloc[0] == pytest.approx(1 / 3)
    rates = eq.audit(found, cohort)
    assert [rates[c]["balanced_accuracy"].value for c in CLASSES] == pytest.approx([0.5, 0.5, 0.5])


def test_images_with_masks_are_pruned_in_their_hidden_layers_alone():
    rng = np.random.default_rng(0)
    n = 400
    a = rng.integers(0, 2, n)
    y = (rng.random((n, 2)) < (0.35 + 0.3 * a)[:, None]).astype(int)
    x = rng.normal(size=(n, 1, 8, 8)).astype(np.float32)
    for k in (0, 1):
        x[:, 0, 4 * k : 4 * k + 2, :3] += 1.5 * y[:, k, None, None]
    x[:, 0, 6:, 6:] += 1.5 * a[:, None, None]
    cohort = Cohort.from_arrays(x, y, np.where(a == 1, "M", "F"), reference="M", labels=LABELS)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(144, 2))
    model = fitted(model, cohort, epochs=30)
    options = {"measure": "spd", "min_performance": 0.55, "steps": 8, "criterion": "second-order", "recalibrate": False}
    result = debias(model, cohort, method="pruning", **options)
    assert torch.equal(result.model[-1].weight, model[-1].weight)
    [first, *_] = next(iter(result.labels.values())).notes
    assert (first.kind, first.numbers["of"]) == ("pruned", 144)
    assert abs(result.trace["gap"].iloc[result.chosen]) < abs(result.trace["gap"].iloc[0])
