"""Scores of any network: its outputs are interpreted or refused, and the network is not changed."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from equipoise.data import Cohort
from equipoise.errors import BadInput
from equipoise.models import evaluating, output_kind, outputs, predict
from equipoise.models.devices import device_of
from equipoise.models.score import sigmoid
from support.facts import facts

X = torch.linspace(-1, 1, 24).reshape(12, 2)


class Given(nn.Module):
    """A network that computes a function."""

    def __init__(self, function, output: object = None) -> None:
        super().__init__()
        self.function = function
        if output is not None:
            self.output = output

    def forward(self, x: Tensor) -> object:
        return self.function(x)


def _cohort() -> Cohort:
    return Cohort.from_arrays(X, [0, 1] * 6, ["F", "M", "M"] * 4, name="tiny")


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        (Given(lambda x: x[:, 0]), "logit"),
        (Given(lambda x: 0.5 + 0.01 * x[:, 0]), "logit"),  # all in [0, 1] on these rows, by chance
        (nn.Sequential(nn.Linear(2, 1), nn.Sigmoid()), "probability"),
        (Given(lambda x: torch.sigmoid(x[:, 0])), "probability"),
        (Given(lambda x: torch.sigmoid(torch.log(x[:, 0] + 2))), "probability"),  # NaN for inputs that do not occur
        (Given(lambda x: torch.sigmoid(x[:, 0]), output="logit"), "logit"),  # the network's own word
        (Given(lambda x: x[:, 0] * 0.1, output="probability"), "probability"),
    ],
)
def test_logits_and_probabilities_are_distinguished(model, kind):
    assert output_kind(model, X) == kind


def test_a_layer_called_output_says_nothing_about_the_kind():
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.output = nn.Linear(2, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.output(x)

    assert output_kind(Named(), X) == "logit"


def test_a_network_that_rejects_scaled_inputs_is_judged_by_the_others():
    def careful(x: Tensor) -> Tensor:
        if x.abs().max() > 10:
            raise ValueError("out of range")
        return torch.sigmoid(x[:, 0])

    assert output_kind(Given(careful), X) == "probability"


def test_a_given_kind_is_used_and_an_unknown_one_is_refused():
    model = Given(lambda x: torch.sigmoid(x[:, 0]))
    assert output_kind(model, X, "logit") == "logit"
    with pytest.raises(BadInput, match=facts("auto", "logit", "probability", "logits")):
        output_kind(model, X, "logits")


def test_logits_become_scores_by_the_sigmoid_and_probabilities_stay():
    logits = predict(Given(lambda x: 5 * x[:, 0]), _cohort()).score
    assert logits == pytest.approx(1 / (1 + np.exp(-5 * X[:, 0].double().numpy())), abs=1e-6)
    assert predict(Given(lambda x: torch.sigmoid(5 * x)[:, :1]), _cohort()).score == pytest.approx(logits, abs=1e-6)


def test_scores_keep_the_rows_of_the_cohort():
    scores = predict(Given(lambda x: x[:, 0]), _cohort())
    assert scores.y.tolist() == [0, 1] * 6
    assert scores.groups.tolist() == ["F", "M", "M"] * 4
    assert scores.name == "tiny"


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: x, facts("(12,)", "(12, 1)", "(12, 2)")),
        (lambda x: x.mean(), facts("()")),
        (lambda x: x[:1, 0], facts("(1,)")),
        (lambda x: (x[:, 0], x), facts("tuple")),
        (lambda x: x @ torch.zeros(5, 1), facts("RuntimeError", "(2,)", "torch.float32")),
        (lambda x: x[:, 0] / 0 * 0, facts("NaN", 12, "tiny")),
    ],
)
def test_outputs_other_than_one_score_per_row_are_refused_with_the_shape(function, expected):
    with pytest.raises(BadInput, match=expected):
        predict(Given(function), _cohort())


def test_batches_give_the_same_outputs_as_a_single_pass():
    model = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1))
    whole = outputs(model, X)
    assert whole.shape == (12,)
    for batch in (1, 5, 12, 100):
        assert torch.allclose(outputs(model, X, batch), whole, atol=1e-6)


def test_no_rows_give_no_outputs():
    assert outputs(nn.Linear(2, 1), X[:0]).shape == (0,)


def test_the_network_runs_on_at_most_one_batch_at_a_time():
    seen: list[int] = []
    outputs(Given(lambda x: seen.append(len(x)) or x[:, 0]), X, batch=5)
    assert seen == [5, 5, 2]


@pytest.mark.parametrize("fails", [False, True])
def test_every_submodules_mode_is_restored_even_after_an_exception(fails):
    model = nn.Sequential(nn.Dropout(), nn.BatchNorm1d(2), nn.Linear(2, 2 if fails else 1))
    model.train()
    model[1].eval()
    if fails:
        with pytest.raises(BadInput, match="returned"):
            predict(model, _cohort())
    else:
        predict(model, _cohort())
    assert [m.training for m in model.modules()] == [True, True, False, True]


def test_inside_the_context_everything_is_in_eval_mode():
    model = nn.Sequential(nn.Dropout(), nn.Linear(2, 1)).train()
    with evaluating(model) as inside:
        assert not any(m.training for m in inside.modules())
    assert all(m.training for m in model.modules())


def test_no_gradient_is_kept_and_no_weight_is_changed():
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1)).train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    assert not outputs(model, X).requires_grad
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_a_network_without_parameters_is_on_the_cpu():
    assert device_of(Given(lambda x: x)) == torch.device("cpu")
    assert device_of(nn.Linear(1, 1, device="meta")) == torch.device("meta")


class Normed(nn.Module):
    """A logit that lies in [0, 1] for inputs of any size, as may happen in a transformer."""

    def __init__(self, sigmoid: bool) -> None:
        super().__init__()
        self.norm, self.last, self.sigmoid = nn.LayerNorm(4), nn.Linear(4, 1), sigmoid
        nn.init.constant_(self.last.weight, 1e-3)
        nn.init.constant_(self.last.bias, 0.3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raw = self.last(self.norm(x))
        return torch.sigmoid(raw) if self.sigmoid else raw


@pytest.mark.parametrize("sigmoid", [False, True])
def test_the_output_of_a_linear_layer_is_a_logit_whatever_its_values(sigmoid: bool):
    model = Normed(sigmoid)
    assert output_kind(model, torch.randn(30, 4)) == ("probability" if sigmoid else "logit")
    assert not any(m._forward_hooks for m in model.modules())


def test_equal_logits_have_equal_scores_at_any_position():
    """torch.sigmoid differs in the last bit between the end and the middle of a tensor; a threshold sweep would separate such rows."""
    for seed in range(300):
        logits = (torch.rand(1, generator=torch.Generator().manual_seed(seed)) * 8 - 4).expand(3001)
        assert len(sigmoid(logits).unique()) == 1
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 20
    assert torch.allclose(sigmoid(x), torch.sigmoid(x), rtol=1e-14, atol=0)
    assert sigmoid(torch.tensor(0.0)) == 0.5


def test_two_classes_are_refused_with_the_right_formula():
    cohort = Cohort.from_arrays(torch.randn(6, 3), [0, 1] * 3, ["F", "M"] * 3)
    network = nn.Linear(3, 2)
    with pytest.raises(BadInput) as error:
        predict(network, cohort)
    assert all(part in str(error.value) for part in ("raw[:, 1] - raw[:, 0]", "raw.softmax(1)[:, 1]", 'model.output = "probability"'))
    raw = network(cohort.inputs).detach()
    torch.testing.assert_close((raw[:, 1] - raw[:, 0]).sigmoid(), raw.softmax(1)[:, 1])  # the two ways agree
