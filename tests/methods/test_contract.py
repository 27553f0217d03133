"""One contract for every method, over a stackable MLP, a user's own perceptron and a convolutional network."""

import copy

import numpy as np
import pytest
import torch
from safetensors.torch import load, save
from torch import nn

from equipoise.comparison import audit
from equipoise.data import Cohort
from equipoise.errors import BadInput, EmptyCell, UnknownName
from equipoise.measures import Cells, performance_functional
from equipoise.methods import METHODS, Candidate
from equipoise.models import predict
from support.facts import facts, suggests
from support.goals import paper_goal
from support.networks import cnn, trained
from support.published import as_chosen, debias

QUICK = {
    "bias-gda": {"epochs": 4, "learning_rate": 1e-3, "batch": 64},
    "pruning": {"steps": 6},
    "random": {"trials": 5},
    "adversarial-finetune": {"epochs": 2, "critic_steps": 3, "actor_steps": 3},
    "adversarial-training": {"epochs": 2},
    **{name: {"epochs": 2} for name in ("resampling", "group-dro", "min-diff", "just-train-twice", "weight-averaging")},
    "layer-wise": {"calls": 2, "first": 2, "elements": 20, "layers": 2},
}
KINDS = ("mlp", "perceptron", "cnn")


@pytest.fixture(scope="module")
def problems() -> dict[str, tuple[nn.Module, object]]:
    return {kind: trained(kind) for kind in KINDS}


def _run(method: str, model: nn.Module, parts, seed: int = 3, **goal) -> Candidate:
    goal = goal or {"min_performance": 0.55}
    train = {"train": parts.train} if METHODS[method].needs_train else {}
    return debias(model, parts.valid, method=method, measure="spd", seed=seed, **goal, **train, **QUICK.get(method, {}))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", METHODS)
def test_contract(method: str, kind: str, problems):
    model, parts = problems[kind]
    model.train()
    next(iter(model.children())).eval()  # modes of its own
    modes = [m.training for m in model.modules()]
    state = copy.deepcopy(model.state_dict())
    generator_state, numpy_state = torch.random.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    result = _run(method, model, parts)

    # The network given in is unchanged: weights, modes, gradients, hooks; so are the global generators.
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    assert [m.training for m in model.modules()] == modes
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    assert torch.equal(torch.random.get_rng_state(), generator_state)
    assert np.array_equal(np.random.get_state()[1], numpy_state)  # noqa: NPY002
    for network in (model, result.model):
        assert not any(m._forward_hooks or m._forward_pre_hooks or m._backward_hooks for m in network.modules())

    # The result is an ordinary network with a rule, and its trace begins with the original and holds what was chosen.
    assert result.model is not model
    assert not any(a is b for a in result.model.parameters() for b in model.parameters())
    assert list(result.trace.columns[:4]) == ["step", "gap", "performance", "threshold"]
    assert result.trace["step"].iloc[0] == 0
    assert result.why
    assert result.rule.needs_group == METHODS[result.ran].needs_group  # auto may take a rule by group

    # What the trace says of the chosen step is true of the network and rule that came back.
    scores = predict(result.model, parts.valid, output="probability" if kind == "perceptron" else "logit")
    cells = Cells.of(result.rule.decide(scores), scores.y, scores.attribute)
    row = result.trace.iloc[result.chosen]
    assert cells.gaps("spd")[0] == pytest.approx(row["gap"], abs=5e-3)
    assert float(performance_functional("balanced_accuracy", cells.n)(cells)) == pytest.approx(row["performance"], abs=5e-3)
    if result.met_in_sample and METHODS[method].needs_group is False and method in ("bias-gda", "pruning", "standard"):
        assert row["performance"] >= 0.55

    # The same seed gives the same result.
    again = _run(method, model, parts)
    assert again.trace.equals(result.trace)
    assert again.chosen == result.chosen
    assert all(torch.equal(v, result.model.state_dict()[k]) for k, v in again.model.state_dict().items())

    # It can be audited like anything else.
    assert np.isfinite(audit(result, parts.test)["spd"].value)


@pytest.mark.parametrize("method", METHODS)
def test_a_floor_that_even_the_original_misses_is_said_plainly(method: str, problems):
    model, parts = problems["mlp"]
    result = _run(method, model, parts, min_performance=0.999)
    assert not result.met_in_sample
    assert "0.999" in str(result)
    limits = [note.numbers.get("least", note.numbers.get("min_performance")) for note in result.why]
    assert 0.999 in limits


@pytest.mark.parametrize("method", METHODS)
def test_bad_networks_and_bad_parts_are_clear_errors(method: str, problems):
    model, parts = problems["perceptron"]
    train = {"train": parts.train} if METHODS[method].needs_train else {}
    two = nn.Sequential(nn.Linear(6, 2))
    with pytest.raises(BadInput, match=facts("logit", "probability")):
        debias(two, parts.valid, method=method, measure="spd", **train)
    lone = parts.valid.take((parts.valid.groups == "M") | (parts.valid.y == 0))
    with pytest.raises(EmptyCell, match=facts("F")):
        debias(model, lone, method=method, measure="eod", **train)
    with pytest.raises(UnknownName, match="nonsense"):
        debias(model, parts.valid, method=method, nonsense=1, **train)


def test_unknown_names_and_goals():
    model, parts = trained("mlp")
    with pytest.raises(UnknownName, match=suggests("pruning")):
        debias(model, parts.valid, method="prunning")
    with pytest.raises(UnknownName, match=suggests("eod")):
        debias(model, parts.valid, measure="eodd")
    with pytest.raises(BadInput, match=facts("min_performance", 75)):
        paper_goal(min_performance=75)
    with pytest.raises(BadInput, match=facts("adversarial-training", "train")):
        debias(model, parts.valid, method="adversarial-training")


@pytest.mark.parametrize("method", ["bias-gda", "pruning", "random", "adversarial-finetune"])
def test_half_precision_is_refused_with_the_remedy(method: str, problems):
    model, parts = problems["perceptron"]
    with pytest.raises(BadInput, match=r"model\.float\(\)"):
        debias(copy.deepcopy(model).half(), parts.valid, method=method, measure="spd")


def test_a_frozen_backbone_stays_and_is_mentioned(problems):
    model, parts = problems["perceptron"]
    model = copy.deepcopy(model)
    model[0].requires_grad_(False)
    result = debias(model, parts.valid, method="bias-gda", measure="spd", min_performance=0.5, **QUICK["bias-gda"])
    assert torch.equal(result.model[0].weight, model[0].weight)
    assert not torch.equal(result.model[3].weight, model[3].weight)
    assert any(note.kind == "frozen_parameters" for note in result.notes)
    with pytest.raises(BadInput, match="fine-tune"):
        debias(model.requires_grad_(False), parts.valid, method="bias-gda", measure="spd", **QUICK["bias-gda"])


def test_pruned_convolutions_keep_their_mask_through_safetensors(problems):
    model, parts = problems["cnn"]
    result = as_chosen(model, parts.valid, "pruning", paper_goal("spd", min_performance=0.0), layers="0", steps=4)
    masks = {k: v for k, v in result.model.state_dict().items() if k.endswith("unit_mask")}
    assert list(masks) == ["0.unit_mask"]
    assert masks["0.unit_mask"].shape == (4, 8, 8)
    stored = load(save(result.model.state_dict()))
    assert all(torch.equal(stored[k], v) for k, v in result.model.state_dict().items())
    seen = []
    handle = result.model[0].register_forward_hook(lambda _m, _i, out: seen.append(out))
    result.model(parts.valid.inputs[:3])
    handle.remove()
    assert (seen[0][:, masks["0.unit_mask"] == 0] == 0).all()
    with pytest.raises(BadInput, match=facts("layer9.*", 0, 3, 6)):
        debias(cnn(), parts.valid, method="pruning", layers="layer9.*")


def test_many_groups_lower_the_largest_gap():
    rng = np.random.default_rng(0)
    model, parts = trained("mlp")
    groups = np.where(parts.valid.groups == "F", rng.choice(["F1", "F2"], len(parts.valid)), "M")
    cohort = Cohort.from_arrays(parts.valid.inputs, parts.valid.y, groups, reference="M")
    result = debias(model, cohort, method="bias-gda", measure="spd", min_performance=0.5, epochs=10, learning_rate=1e-3, batch=64)
    assert abs(result.trace["gap"].iloc[result.chosen]) < abs(result.trace["gap"].iloc[0])


def test_whole_channels_are_baked_into_the_weights_and_leave_no_mask(problems):
    model, parts = problems["cnn"]
    result = as_chosen(model, parts.valid, "pruning", paper_goal("spd", min_performance=0.0), layers="0", granularity="channel", units=1)
    assert {k: v.shape for k, v in result.model.state_dict().items()} == {k: v.shape for k, v in model.state_dict().items()}
    off = (result.model[0].weight == 0).flatten(1).all(1)
    assert int(off.sum()) == int(result.trace["step"].iloc[result.chosen]) > 0
    assert type(result.model[0]) is nn.Conv2d
    with torch.no_grad():
        assert (result.model[0](parts.valid.inputs[:3])[:, off] == 0).all()
    with pytest.raises(UnknownName, match=facts("unit", "channel")):
        debias(model, parts.valid, method="pruning", granularity="channels")
