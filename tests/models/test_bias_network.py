"""A network with the probes of a bias score: its formula, and its use as an ordinary module."""

import copy
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from equipoise.models import MLP, BiasScore, FeatureCache, FeatureChoice, Heads, Probe, predict, to_onnx
from support.networks import biased_cohort, cnn, perceptron

NETWORKS = {"mlp": lambda: MLP(6, width=8, depth=2), "perceptron": perceptron, "cnn": cnn}
LABELS = (None, 1, 0)
COST = np.array([[0.2, -0.3], [0.1, 0.0], [-0.4, 0.5]])


def _carrying(kind: str, depth: str = "auto") -> tuple[BiasScore, Heads, torch.Tensor]:
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    network = NETWORKS[kind]().eval()
    inputs = biased_cohort(60, images=kind == "cnn").inputs
    reading = FeatureChoice.of(network, inputs, depth)
    size = FeatureCache(network, inputs).read(reading).arrays()[1].shape[1]

    def probe(width: int) -> Probe:
        return Probe(rng.normal(size=(2, width)), rng.normal(size=2), np.empty((0, 2)), 0.0, 1.0)

    heads = Heads(probe(size + 1), tuple(probe(size) for _ in LABELS), LABELS, 0.4)
    return BiasScore(network, reading, heads, COST, "probability" if kind == "perceptron" else "logit").eval(), heads, inputs


@pytest.mark.parametrize("kind", NETWORKS)
def test_the_score_is_the_probability_minus_the_cost_of_the_posteriors(kind: str):
    model, heads, inputs = _carrying(kind)
    logit, seen = FeatureCache(model.network, inputs).read(model.reading).arrays()
    chance = heads.task(np.column_stack([seen, logit]))[:, 1]
    posteriors = [probe(seen) for probe in heads.groups]
    expected = heads.scores(chance, posteriors, COST)
    by_hand = chance - 0.4 - posteriors[0] @ COST[0] - chance * (posteriors[1] @ COST[1]) - (1 - chance) * (posteriors[2] @ COST[2])
    assert expected == pytest.approx(1 / (1 + np.exp(-4 * by_hand)))
    cohort = biased_cohort(60, images=kind == "cnn")
    assert predict(model, cohort).score == pytest.approx(expected, abs=1e-4)  # as a logit or a probability, as the network gives it
    with torch.no_grad():
        assert model(inputs).shape == model.network(inputs).shape


@pytest.mark.parametrize(("kind", "depth"), [("cnn", "all"), ("mlp", "auto"), ("perceptron", "all")])  # an export takes seconds
def test_onnx_and_an_exported_program_give_the_same_scores(kind: str, depth: str, tmp_path: Path):
    model, _, inputs = _carrying(kind, depth)
    found = to_onnx(model, inputs, tmp_path / "model.onnx", threshold=0.5, output=model.output)
    assert found.agrees
    assert found.rows == 60  # where it was exported with three
    program = torch.export.export(model, (inputs[:5],), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
    with torch.no_grad():
        assert torch.allclose(program.module()(inputs), model(inputs), atol=1e-6)


@pytest.mark.parametrize("kind", NETWORKS)
def test_numbers_are_saved_as_safetensors_and_the_structure_as_json(kind: str, tmp_path: Path):
    model, _, inputs = _carrying(kind)
    save_file(model.state_dict(), tmp_path / "repaired.safetensors")
    again = BiasScore.from_dict(NETWORKS[kind](), model.to_dict())
    again.load_state_dict(load_file(tmp_path / "repaired.safetensors"))
    with torch.no_grad():
        assert torch.equal(again.eval()(inputs), model(inputs))
        assert torch.equal(copy.deepcopy(model)(inputs), model(inputs))


def test_a_class_without_rows_has_a_finite_bias_in_the_file():
    model, heads, inputs = _carrying("mlp")
    never = Probe(heads.groups[0].weight, np.array([0.0, -np.inf]), np.empty((0, 2)), 0.0, 1.0)
    made = BiasScore(model.network, model.reading, Heads(heads.task, (never,), (None,), 0.4), COST[:1], "logit")
    assert all(torch.isfinite(value).all() for value in made.state_dict().values())
    with torch.no_grad():
        assert torch.isfinite(made.eval()(inputs)).all()


def test_no_hook_remains_and_threads_do_not_interfere():
    model, _, inputs = _carrying("cnn")
    rows = [inputs[k : k + 7] for k in range(50)]
    with torch.no_grad():
        alone = [model(x) for x in rows]
        with ThreadPoolExecutor(4) as pool:
            together = list(pool.map(lambda x: _without_grad(model, x), rows))
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(alone, together, strict=True))
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def _without_grad(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(x)
    return found
