"""The modes of bias GD/A: in train mode, dropout and batch statistics while fine-tuning; evaluation in eval mode; the input unchanged."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.data import Cohort
from equipoise.errors import BadInput
from equipoise.measures import Cells
from equipoise.methods import METHODS, Candidate, run_method
from equipoise.methods.bias_gda import BiasGdaSettings
from equipoise.models import predict
from support.goals import paper_goal
from support.multilabel import fitted, labels_cohort
from support.networks import trained
from support.published import debias

QUICK = {"epochs": 3, "learning_rate": 1e-3, "batch": 64}
KINDS = ("mlp", "perceptron", "cnn")


@pytest.fixture(scope="module")
def problems() -> dict[str, tuple[nn.Module, object]]:
    return {kind: trained(kind) for kind in KINDS}


def tuned(model: nn.Module, cohort: Cohort, mode: str, seed: int = 3, **settings: object) -> Candidate:
    return debias(model, cohort, method="bias-gda", measure="spd", min_performance=0.55, seed=seed, mode=mode, **{**QUICK, **settings})


def statistics(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items() if "running_" in name}


@pytest.mark.parametrize("kind", KINDS)
def test_train_mode_leaves_the_network_that_was_given_as_it_was(kind: str, problems):
    model, parts = problems[kind]
    before, mode = copy.deepcopy(model.state_dict()), [m.training for m in model.modules()]
    rng = torch.random.get_rng_state()
    result = tuned(model, parts.valid, "train")
    assert statistics(model)  # there are some to leave alone
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert [m.training for m in model.modules()] == mode
    assert torch.equal(torch.random.get_rng_state(), rng)
    assert not any(module.training for module in result.model.modules())


@pytest.mark.parametrize("kind", KINDS)
def test_statistics_of_the_candidate_move_in_train_mode_only(kind: str, problems):
    model, parts = problems[kind]
    own = statistics(model)
    frozen, moved = (tuned(model, parts.valid, mode) for mode in ("eval", "train"))
    assert moved.chosen > 0
    assert all(torch.equal(value, own[name]) for name, value in statistics(frozen.model).items())
    assert not any(torch.equal(value, own[name]) for name, value in statistics(moved.model).items())


@pytest.mark.parametrize("kind", KINDS)
def test_steps_are_evaluated_in_eval_mode(kind: str, problems):
    """The chosen step's numbers are those of the network that comes back, its statistics included, with no dropout."""
    model, parts = problems[kind]
    result = tuned(model, parts.valid, "train")
    scores = predict(result.model, parts.valid, output="probability" if kind == "perceptron" else "logit")
    cells = Cells.of(result.rule.decide(scores), scores.y, scores.attribute)
    row = result.trace.iloc[result.chosen]
    assert cells.gaps("spd")[0] == pytest.approx(row["gap"], abs=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_one_seed_gives_the_same_bits_and_another_seed_other_ones(kind: str, problems):
    model, parts = problems[kind]
    one, two, other = (tuned(model, parts.valid, "train", seed) for seed in (1, 1, 2))
    assert one.trace.equals(two.trace)
    assert all(torch.equal(a, b) for a, b in zip(one.model.state_dict().values(), two.model.state_dict().values(), strict=True))
    assert not one.trace.equals(other.trace)


@pytest.mark.parametrize(("kind", "mode"), [("mlp", "train"), ("perceptron", "train"), ("cnn", "eval")])
def test_by_default_tables_are_fine_tuned_in_train_mode_and_images_in_eval_mode(kind: str, mode: str, problems):
    model, parts = problems[kind]
    usual = debias(model, parts.valid, method="bias-gda", measure="spd", min_performance=0.55, seed=3, **QUICK)
    assert BiasGdaSettings().mode == "auto"
    assert usual.trace.equals(tuned(model, parts.valid, mode).trace)
    assert not usual.trace.equals(tuned(model, parts.valid, "eval" if mode == "train" else "train").trace)


def test_without_dropout_a_user_module_gives_what_the_mlp_gives():
    """Rows without weight count in batch statistics: by EOD the negatives have none, and both ways must normalise with them."""
    model, parts = trained("mlp")
    model = copy.deepcopy(model)
    model.dropout.p = 0.0

    class Wrapped(nn.Module):
        output = "logit"

        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x)

    settings = {"epochs": 2, "learning_rate": 1e-3, "batch": 64, "mode": "train"}
    mlp, single = (
        run_method("bias-gda", m, parts.valid, {"": paper_goal("eod", min_performance=0.5)}, seed=1, settings=settings)
        for m in (model, Wrapped())
    )
    np.testing.assert_allclose(mlp.trace["gap"], single.trace["gap"], atol=0.02)
    for name, value in statistics(mlp.model).items():
        torch.testing.assert_close(value, single.model.state_dict()[f"inner.{name}"], rtol=1e-3, atol=1e-3)


def test_a_last_batch_of_one_row_is_left_out(problems):
    """Batch norm has no variance of one row."""
    model, parts = problems["mlp"]
    rows = len(parts.valid)
    result = tuned(model, parts.valid, "train", batch=rows - 1, epochs=2)
    assert np.isfinite(result.trace["gap"]).all()
    assert all(torch.isfinite(value).all() for value in result.model.state_dict().values())
    assert result.trace["step"].max() == 2  # one batch per epoch


def test_several_labels_in_train_mode():
    """Also where a batch has room for the labels of one image only: in train mode it takes two."""
    cohort = labels_cohort(100, 1)
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.1), nn.ReLU(), nn.Linear(8, 2))
    model = fitted(net, labels_cohort(400, 0)).eval()
    before = copy.deepcopy(model.state_dict())
    usual, moved, again = (
        debias(model, cohort, method="bias-gda", measure="spd", seed=1, mode=mode, epochs=2, learning_rate=1e-3, batch=2)
        for mode in ("eval", "train", "train")
    )
    assert set(moved.labels) == set(cohort.labels)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert moved.trace.equals(again.trace)
    assert not moved.trace.equals(usual.trace)
    assert np.isfinite(moved.trace["gap"]).all()
    assert 50 < moved.trace["step"].max() <= 100 < usual.trace["step"].max()  # 50 batches of two images per epoch, 100 of one


def test_steps_are_counted_in_epochs(problems):
    model, parts = problems["mlp"]
    for mode, batch in (("eval", 64), ("train", 64), ("train", len(parts.valid) - 1)):
        result = tuned(model, parts.valid, mode, batch=batch, epochs=2)
        assert METHODS[result.method].unit(result.settings) == "epochs"
        assert result.trace["step"].max() * result.pace == pytest.approx(2)


def test_an_unknown_mode_is_an_error(problems):
    model, parts = problems["mlp"]
    with pytest.raises(BadInput, match="eval"):
        tuned(model, parts.valid, "evl")


def test_published_settings_are_reached_from_the_public_surface():
    assert eq.Training(restore="last").restore == "last"
