"""Networks with several outputs: log odds, views, batches of whole images, and the kinds of output."""

import numpy as np
import pytest
import torch
from torch import nn

from equipoise.data import Cohort, LabelKind
from equipoise.models import ChosenOutputs, Repairable, chosen_outputs, predict, scores_of
from equipoise.models.score import OneClass, log_odds

LABELS, CLASSES = LabelKind.LABELS, LabelKind.CLASSES


def test_the_sigmoid_of_log_odds_is_the_softmax():
    z = torch.randn(50, 4, dtype=torch.float64) * 5
    torch.testing.assert_close(log_odds(z).sigmoid(), z.softmax(1))


@pytest.mark.parametrize("output", ["logit", "probability"])
def test_a_class_is_decided_where_it_is_the_argmax(output):
    z = torch.tensor([[1.0, 1.0, 0.0], [0.0, 2.0, 2.0], [3.0, -1.0, 2.0], [0.0, 0.0, 0.0]])
    raw = z if output == "logit" else z.softmax(1)
    decided = torch.stack([OneClass(nn.Identity(), [0, 1, 2], k, output)(raw) >= 0 for k in range(3)], dim=1)
    assert decided.sum(1).tolist() == [1, 1, 1, 1]
    assert torch.equal(decided.int().argmax(1), raw.argmax(1))


def test_batches_contain_every_image_once_with_all_its_labels():
    networks = Repairable(ChosenOutputs(nn.Linear(2, 3), [0, 1, 2], LABELS, "logit"), torch.randn(11, 2))
    parts = list(networks.batches(np.random.default_rng(0), 8))
    assert [len(part) for part in parts] == [6, 6, 6, 6, 6, 3]
    every = torch.cat(parts)
    assert sorted(every.tolist()) == list(range(33))
    assert torch.equal(every.view(-1, 3) % 3, torch.arange(3).expand(11, 3))
    assert torch.equal((every.view(-1, 3) // 3)[:, 0], (every.view(-1, 3) // 3)[:, 2])


@pytest.mark.parametrize("kind", [LABELS, CLASSES])
def test_gradients_are_those_of_the_weighted_scores(kind):
    x = torch.randn(9, 2)
    net = nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 3))
    networks = Repairable(ChosenOutputs(net, [2, 0, 1], kind, "logit"), x)
    index, w = torch.arange(27), torch.randn(27)
    networks.proxy_gradient(index, w)
    raw = net(x)[:, [2, 0, 1]]
    scores = raw.softmax(1) if kind == CLASSES else raw.sigmoid()
    expected = torch.autograd.grad((scores * w.view(9, 3)).sum(), list(net.parameters()))
    for parameter, gradient in zip(networks.model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)
    np.testing.assert_allclose(networks.evaluate(), scores.detach().double().numpy().reshape(-1), atol=1e-6)


def test_influence_is_that_of_the_only_output_with_weights():
    x = torch.randn(20, 4)
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    many = Repairable(ChosenOutputs(net, [0, 1], LABELS, "logit"), x)
    assert many.units("*") == 6  # without the output layer
    w = np.zeros((20, 2))
    w[:, 1] = np.random.default_rng(0).normal(size=20)
    for criterion in ("gradient", "taylor", "second-order", "difference"):
        scores, found = many.influence(w.reshape(-1), criterion)
        alone = Repairable(ChosenOutputs(net, [1], LABELS, "logit"), x)
        alone.units("*")
        np.testing.assert_allclose(found, alone.influence(w[:, 1].copy(), criterion)[1], rtol=1e-5)
        np.testing.assert_allclose(scores.reshape(20, 2), net(x).sigmoid().detach().numpy(), atol=1e-6)


def test_batches_are_padded_with_rows_of_weight_zero():
    """As on a GPU, where few shapes are recorded: the gradient is the same."""
    net, x, w = nn.Linear(2, 3), torch.randn(5, 2), torch.randn(15)
    plain, padded = (Repairable(ChosenOutputs(net, [0, 1, 2], LABELS, "logit"), x) for _ in range(2))
    plain.proxy_gradient(torch.arange(15), w)
    rows, weights = torch.cat([torch.arange(5), torch.zeros(3, dtype=torch.int64)]), torch.cat([w.view(5, 3), torch.zeros(3, 3)])
    padded._set_gradient(padded._proxy_backward, rows, [weights], 8)
    for a, b in zip(padded.model.parameters(), plain.model.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)


@pytest.mark.parametrize(("end", "kind", "expected"), [
    (nn.Identity(), LABELS, "logit"), (nn.Sigmoid(), LABELS, "probability"),
    (nn.Identity(), CLASSES, "logit"), (nn.Softmax(1), CLASSES, "probability"),
])  # fmt: skip
def test_logits_and_probabilities_are_auto_detected(end, kind, expected):
    x = torch.randn(64, 2)
    assert chosen_outputs(nn.Sequential(nn.Linear(2, 2), end), x, ["a", "b"], kind).output == expected


def test_an_output_without_operating_threshold_is_not_calibrated():
    """As in torchxrayvision's networks: outputs are calibrated to a threshold of 0.5, and NaN means that there is none."""

    class Calibrating(nn.Module):
        pathologies = ("a", "b", "c")

        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(2, 3)
            self.register_buffer("op_threshs", torch.tensor([0.2, torch.nan, 0.5]))

        def forward(self, x):
            p, t = self.inner(x).sigmoid(), self.op_threshs
            return torch.where(t.isnan(), 0.5, torch.where(p < t, p / (2 * t), 1 - (1 - p) / (2 * (1 - t))))

    net, x = Calibrating(), torch.randn(8, 2)
    chosen = chosen_outputs(net, x, ["c", "b"], LABELS)
    assert (chosen.columns, chosen.output) == ([2, 1], "probability")
    torch.testing.assert_close(chosen(x), net.inner(x).sigmoid()[:, [2, 1]])


def test_views_of_one_network_share_one_pass_and_keep_their_scores():
    calls = []

    class Counting(nn.Linear):
        def forward(self, x):
            calls.append(len(x))
            return super().forward(x)

    rng = np.random.default_rng(0)
    y = np.where(rng.random((30, 3)) < 0.2, -1, rng.random((30, 3)) < 0.5)
    cohort = Cohort.from_arrays(torch.randn(30, 2), y, rng.choice(["F", "M"], 30), labels=["a", "b", "c"])
    chosen = chosen_outputs(Counting(2, 3), cohort.inputs, cohort.labels, LABELS)
    views = {name: chosen.view(at) for at, name in enumerate(cohort.labels)}
    calls.clear()
    found = scores_of(views, cohort)
    assert calls == [30]
    for name, view in views.items():
        np.testing.assert_allclose(found[name].score, predict(view, cohort.labelled(name)).score, atol=1e-7)


def test_labels_assigned_to_outputs_by_position_are_reported_once(caplog):
    network, x, labels = nn.Linear(2, 2), torch.randn(8, 2), ["Atelectasis", "Effusion"]
    for _ in range(2):
        assert chosen_outputs(network, x, labels, LABELS).columns == [0, 1]
    [record] = caplog.records
    assert record.levelname == "WARNING"
    assert "order of the labels: 0 = Atelectasis, 1 = Effusion" in record.getMessage()


@pytest.mark.parametrize("case", ["names of its own", "given", "classes"])
def test_outputs_that_are_named_are_not_reported(caplog, case):
    network, labels = nn.Linear(2, 2), ["Atelectasis", "Effusion"]
    if case == "names of its own":
        network.pathologies = labels[::-1]
    given = {"Atelectasis": 1, "Effusion": 0} if case == "given" else None
    chosen_outputs(network, torch.randn(8, 2), labels, CLASSES if case == "classes" else LABELS, given)
    assert not caplog.records
