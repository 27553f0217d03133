"""AUROC of a group from each layer: scikit-learn as oracle, cases with a known answer, and an unchanged network."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GroupKFold, cross_val_predict
from torch import nn

from equipoise.data import Attribute, Cohort
from equipoise.errors import BadInput
from equipoise.models import AUROC_LABELS, encoding, fit_probe, folds_of
from equipoise.models.features import ENCODING_COLUMNS
from support.facts import facts


def _cohort(n: int = 400, shift: float = 0.0, seed: int = 0, groups: int = 2, patients: bool = True) -> Cohort:
    """Groups whose first input differs by `shift`; two rows per patient, labels by the second input."""
    rng = np.random.default_rng(seed)
    code = np.repeat(rng.permutation(np.arange(n // 2) % groups), 2)
    x = rng.normal(size=(n, 4))
    x[:, 0] += shift * code
    y = (x[:, 1] + rng.normal(size=n) > 0).astype(int)
    people = np.arange(n) // 2 if patients else None
    return Cohort.from_arrays(torch.from_numpy(x).float(), y, np.array(list("MFXZ"))[code], reference="M", attribute="sex", patients=people)


def _network(inputs: int = 4) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(inputs, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 1))


def _passing(column: int, inputs: int = 4) -> nn.Sequential:
    """A network whose hidden layer passes on one input column and the second one, and whose output is only the second."""
    net = nn.Sequential(nn.Linear(inputs, 2), nn.Identity(), nn.Linear(2, 1))
    with torch.no_grad():
        net[0].weight.copy_(torch.zeros(2, inputs))
        net[0].weight[0, column] = 1.0
        net[0].weight[1, 1] = 1.0
        net[0].bias.zero_()
        net[2].weight.copy_(torch.tensor([[0.0, 1.0]]))
        net[2].bias.zero_()
    return net


def test_the_group_is_read_where_a_layer_encodes_it_and_not_from_an_output_without_it():
    cohort = _cohort()
    x = cohort.inputs.clone()
    x[:, 0] = torch.from_numpy(cohort.attribute.codes).float()
    cohort = replace(cohort, source=x)
    found = encoding(_passing(0), cohort, draws=100).set_index("layer")
    assert found.index.tolist() == ["inputs", "2", "output"]
    for column in AUROC_LABELS:
        assert found.loc[["inputs", "2"], column].tolist() == [1.0, 1.0]
        assert found.loc["output", column] < 0.65
    blocked = encoding(_passing(2), cohort, draws=100).set_index("layer")
    assert blocked.loc["inputs", "auroc"] == 1.0
    assert blocked.loc["2", "auroc"] < 0.65


def test_a_random_group_is_at_chance():
    found = encoding(_network(), _cohort(600, seed=3), draws=300)
    for column in AUROC_LABELS:
        assert (found[f"{column}_low"] <= 0.5).all()
        assert (found[f"{column}_high"] >= 0.5).all()
    assert (found["chance"] == 0.5).all()


def test_intervals_cover_chance_about_as_often_as_their_level():
    """60 intervals of 95 %: about 3 miss. A bootstrap that ignores the variation of the probes misses about 12."""
    missed = 0
    for seed in range(20):
        found = encoding(_passing(0), _cohort(120, seed=seed, patients=False), draws=50).iloc[0]
        missed += sum(not found[f"{column}_low"] <= 0.5 <= found[f"{column}_high"] for column in AUROC_LABELS)
    assert missed <= 7


def test_values_equal_those_of_scikit_learn():
    cohort = _cohort(1000, shift=0.8)
    net = _network().eval()
    found = encoding(net, cohort, draws=50).set_index("layer")
    with torch.no_grad():
        seen = {"inputs": cohort.inputs.numpy(), "3": net[:3](cohort.inputs).numpy(), "output": net(cohort.inputs).numpy()}
    for column, label in AUROC_LABELS.items():
        rows = np.ones(len(cohort), bool) if label is None else cohort.y == label
        target = cohort.attribute.codes[rows]
        for layer, x in seen.items():
            by = cross_val_predict(
                LogisticRegression(C=1.0, max_iter=1000),
                x[rows],
                target,
                groups=cohort.patients[rows],
                cv=GroupKFold(5),
                method="predict_proba",
            )
            assert found.loc[layer, column] == pytest.approx(roc_auc_score(target, by[:, 1]), abs=0.02), (layer, column)
            assert found.loc[layer, f"{column}_low"] < found.loc[layer, column] < found.loc[layer, f"{column}_high"]


def test_the_auroc_is_of_held_out_patients():
    two, three = _cohort(240, shift=0.7), _cohort(240, shift=0.7, groups=3)
    for cohort in (two, three):
        codes = cohort.attribute.codes
        by = fit_probe(cohort.inputs.double().numpy(), codes, int(codes.max()) + 1, folds_of(cohort, 5, 0)).held_out
        expected = roc_auc_score(codes, by[:, 1]) if cohort is two else roc_auc_score(codes, by, multi_class="ovr")
        assert encoding(nn.Linear(4, 1), cohort, draws=2)["auroc"][0] == pytest.approx(expected)


def test_a_patient_is_not_recognised_from_other_images():
    """Rows of a patient are similar and the group is random: a probe fitted with the patient would predict the group."""
    rng = np.random.default_rng(0)
    patient = np.repeat(np.arange(30), 20)
    x = torch.from_numpy(rng.normal(size=(30, 60))[patient]).float()
    group, y = np.where(rng.permutation(30) % 2, "F", "M")[patient], np.tile([0, 1], 300)
    known = Cohort.from_arrays(x, y, group, reference="M", patients=patient)
    assert encoding(nn.Linear(60, 1), replace(known, patients=None), draws=2)["auroc"][0] == 1.0
    assert encoding(nn.Linear(60, 1), known, draws=2)["auroc"][0] < 0.75


def test_a_difference_in_prevalence_shows_overall_and_not_within_a_label():
    rng = np.random.default_rng(1)
    n = 2000
    code = rng.integers(0, 2, n)
    y = (rng.random(n) < np.where(code == 1, 0.8, 0.2)).astype(int)
    x = torch.from_numpy(rng.normal(size=(n, 3)) + 2 * y[:, None]).float()
    found = encoding(nn.Linear(3, 1), Cohort.from_arrays(x, y, np.where(code == 1, "F", "M"), reference="M"), draws=200).iloc[0]
    assert found["auroc_low"] > 0.7
    for column in ("auroc_positives", "auroc_negatives"):
        assert found[f"{column}_low"] <= 0.5 <= found[f"{column}_high"]


def test_few_patients_are_insufficient_data_and_small_groups_are_excluded():
    cohort = _cohort(240, shift=1.0, groups=3)
    codes = cohort.attribute.codes.copy()
    codes[np.flatnonzero(codes == 2)[8:]] = -1  # four patients of two rows are left
    rare = replace(cohort, attributes=(Attribute("sex", cohort.attribute.levels, codes),))
    found = encoding(nn.Linear(4, 1), rare, draws=20)
    assert found["auroc"].notna().all()
    assert found["note"].str.contains("left out: fewer than 5 patients in 'X'").all()
    without = replace(cohort, attributes=(Attribute("sex", cohort.attribute.levels[:2], np.where(codes == 2, -1, codes)),))
    assert found["auroc"][0] == pytest.approx(encoding(nn.Linear(4, 1), without, draws=20)["auroc"][0], abs=0.02)
    y = np.where(codes == 1, 0, cohort.y)  # no positives in the second group either
    none = encoding(nn.Linear(4, 1), replace(rare, y=y), draws=20)
    assert none["auroc_positives"].isna().all()
    assert none["auroc_positives_low"].isna().all()
    assert none["note"].str.contains("insufficient data: fewer than 5 patients with positives in").all()
    assert none["auroc_negatives"].notna().all()


def test_every_attribute_has_one_row_per_layer_in_execution_order():
    cohort = _cohort(160)
    both = replace(cohort, attributes=(*cohort.attributes, Attribute.of(np.tile(["a", "b", "c", "c"], 40), name="race")))
    found = encoding(_network(), both, draws=2)
    assert found.columns.tolist() == ENCODING_COLUMNS
    assert found["attribute"].tolist() == ["sex"] * 4 + ["race"] * 4
    assert found["layer"].tolist() == ["inputs", "3", "6", "output"] * 2
    assert found["depth"].tolist() == [0, 1, 2, 3] * 2
    assert found["width"].tolist() == [4, 8, 6, 1] * 2


def test_a_deep_network_is_read_at_its_ends_and_evenly_between():
    deep = nn.Sequential(*[layer for _ in range(9) for layer in (nn.Linear(4, 4), nn.Tanh())], nn.Linear(4, 1))
    found = encoding(deep, _cohort(100), draws=2, max_layers=3)
    assert found["layer"].tolist() == ["inputs", "6", "12", "18", "output"]
    assert found["depth"].tolist() == [0, 3, 6, 9, 10]
    assert found["width"].tolist() == [4, 4, 4, 4, 1]


def test_images_are_read_by_channels():
    """The group is the brightness, which an instance norm removes."""
    cohort = _cohort(200)
    bright = torch.from_numpy(cohort.attribute.codes).float().reshape(-1, 1, 1, 1)
    cohort = replace(cohort, source=torch.randn(200, 1, 6, 6, generator=torch.Generator().manual_seed(0)) * 0.1 + bright)
    net = nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.ReLU(), nn.InstanceNorm2d(3), nn.Conv2d(3, 2, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2, 1)
    )
    found = encoding(net, cohort, draws=50).set_index("layer")
    assert found.index.tolist() == ["0", "3", "6", "output"]
    assert found["width"].tolist() == [1, 3, 2, 1]
    assert found.loc["0", "auroc"] == 1.0
    assert found.loc["3", "auroc"] < 0.65


def test_a_network_without_layers_is_read_by_its_output():
    class Mean(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.mean((1, 2, 3))

    cohort = _cohort(200)
    bright = torch.from_numpy(cohort.attribute.codes).float().reshape(-1, 1, 1, 1)
    found = encoding(Mean(), replace(cohort, source=bright.expand(-1, 1, 4, 4).clone()), draws=2)
    assert found["layer"].tolist() == ["output"]
    assert found["auroc"].tolist() == [1.0]


def test_the_network_is_not_changed():
    net = _network().train()
    net[3].eval()  # a mode of its own
    before = {name: value.clone() for name, value in net.state_dict().items()}
    modes = [m.training for m in net.modules()]
    encoding(net, _cohort(), draws=2)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert [m.training for m in net.modules()] == modes
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in net.modules())
    assert all(p.grad is None for p in net.parameters())


def test_one_seed_one_result():
    cohort = _cohort(100, shift=0.5)
    net = nn.Linear(4, 1)
    one, two, other = (encoding(net, cohort, draws=20, seed=seed) for seed in (1, 1, 2))
    assert one.equals(two)
    assert not one.equals(other)


def test_progress_is_reported():
    seen: list[tuple[int, int]] = []
    encoding(_network(), _cohort(100), draws=2, progress=lambda done, of: seen.append((done, of)))
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_all_problems_of_the_arguments_are_reported_together():
    cohort = _cohort(100)
    with pytest.raises(BadInput, match=facts("folds", "draws", 2, 1, 0)):
        encoding(_network(), cohort, folds=1, draws=0)
    with pytest.raises(BadInput, match=facts("torch.nn.Module", "str")):
        encoding("net", cohort)
    with pytest.raises(BadInput, match=facts("Cohort", "NoneType")):
        encoding(_network(), None)
    with pytest.raises(BadInput, match=facts("(4,)")):
        encoding(_network(5), cohort)
    with pytest.raises(BadInput, match="rows"):
        encoding(_network(), cohort.take(np.arange(0)))
