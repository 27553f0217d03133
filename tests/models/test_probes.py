"""Probes: the features that are read, folds by patient, and held-out regressions."""

import copy

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_info, threadpool_limits
from torch import nn

from equipoise.data import Cohort
from equipoise.errors import BadInput, UnknownName
from equipoise.models import MLP, FeatureCache, FeatureChoice, fit_probe, folds_of, outputs, probes
from equipoise.models.features import picture, read
from support.facts import suggests
from support.networks import cnn, perceptron


def test_readings_by_depth():
    x = torch.randn(5, 6)
    model = MLP(6, width=8, depth=2)
    assert FeatureChoice.of(model, x) == FeatureChoice(("out",), True)
    assert FeatureChoice.of(model, x, "inputs") == FeatureChoice((), True)
    assert FeatureChoice.of(model, x, "last") == FeatureChoice(("out",), False)
    assert FeatureChoice.of(model, x, "all") == FeatureChoice(("linears.1", "linears.2", "out"), True)
    assert FeatureChoice.of(model, x, "hidden", max_layers=2) == FeatureChoice(("linears.1", "out"), False)
    images = torch.randn(5, 1, 8, 8)
    assert FeatureChoice.of(cnn(), images) == FeatureChoice((), True)
    assert FeatureChoice.of(cnn(), images, "inputs and last") == FeatureChoice(("9",), True)
    assert FeatureChoice.of(cnn(), images, "hidden") == FeatureChoice(("0", "3", "6", "9"), False)
    with pytest.raises(UnknownName, match=suggests("hidden")):
        FeatureChoice.of(model, x, "hiden")
    with pytest.raises(BadInput, match="inputs"):
        FeatureChoice.of(nn.Sequential(nn.Linear(6, 1)), x, "last")


def test_features_are_the_inputs_of_a_layer_pooled_over_positions():
    model, x = cnn().eval(), torch.randn(7, 1, 8, 8)
    with torch.no_grad():
        first = model[:3](x)
        expected = torch.cat([x.mean((2, 3)), first.mean((2, 3)), model[:6](x), model[:9](x)], 1)
    logit, seen = FeatureCache(model, x).read(FeatureChoice.of(model, x, "hidden")).arrays()
    assert seen == pytest.approx(expected.double().numpy(), abs=1e-6)
    assert logit == pytest.approx(model(x).detach().double().numpy()[:, 0], abs=1e-6)
    assert not any(m._forward_pre_hooks for m in model.modules())


def test_images_are_read_as_pictures():
    model, x = cnn().eval(), torch.randn(7, 1, 8, 8)
    assert FeatureChoice.of(model, x, "inputs") == FeatureChoice((), True)
    assert FeatureCache(model, x).read(FeatureChoice((), True)).arrays()[1] == pytest.approx(picture(x).numpy(), abs=1e-6)


def test_a_table_is_read_with_its_inputs_and_a_probability_as_a_logit():
    model, x = perceptron().eval(), torch.randn(9, 6)
    logit, seen = FeatureCache(model, x).read(FeatureChoice.of(model, x)).arrays()
    with torch.no_grad():
        assert seen == pytest.approx(torch.cat([x, model[:5](x)], 1).numpy(), abs=1e-6)
        assert logit == pytest.approx(model[:6](x).numpy()[:, 0], abs=1e-4)


class InPlace(nn.Module):
    """Overwrites its input in place."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        y = self.second(h)
        h.zero_()
        return y


def test_recorded_features_are_not_overwritten():
    model, x = InPlace(), torch.randn(4, 3)
    with torch.no_grad():
        _, seen = read(model, x, FeatureChoice(("second",), False))
        assert torch.equal(seen, model.first(x))


def test_a_network_that_fails_leaves_no_hook():
    model = MLP(6, width=8, depth=1)
    with pytest.raises(RuntimeError):
        read(model, torch.randn(3, 5), FeatureChoice(("out",), True))
    assert not any(m._forward_pre_hooks for m in model.modules())


def test_folds_keep_patients_together_and_spread_groups_and_labels():
    rng = np.random.default_rng(0)
    patient = rng.integers(0, 150, 400)
    group, label = np.where(patient % 3 == 0, "F", "M"), (rng.random(400) < 0.3).astype(int)
    cohort = Cohort.from_arrays(torch.zeros(400, 1), label, group, patients=patient)
    fold = folds_of(cohort, 5, 0)
    assert all(len(set(fold[patient == p])) == 1 for p in set(patient))
    assert np.array_equal(fold, folds_of(cohort, 5, 0))
    assert not np.array_equal(fold, folds_of(cohort, 5, 1))
    rows = Cohort.from_arrays(torch.zeros(400, 1), label, group)
    for value in ("F", "M"):
        for y in (0, 1):
            here = (group == value) & (label == y)
            sizes = np.bincount(folds_of(rows, 5, 0)[here], minlength=5)
            assert sizes.max() - sizes.min() <= 1
    twice = rows.take(np.resize(np.arange(100), 400))  # the same rows over again, as in a fold of honest selection
    fold = folds_of(twice, 5, 0)
    assert np.array_equal(fold[:100], fold[100:200])


def _drawn(n: int = 600, classes: int = 3, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 4)) * [1, 10, 0.1, 1] + [0, 5, 0, 0]
    target = np.argmax(x[:, :1] * np.arange(classes) + rng.gumbel(size=(n, classes)), axis=1)
    return x, target, np.arange(n) % 5


@pytest.mark.parametrize("classes", [2, 3])
def test_a_probe_is_logistic_regression_on_standardised_features(classes: int):
    x, target, folds = _drawn(classes=classes)
    probe = fit_probe(x, target, classes, folds)
    tolerance = 1e-8 if classes == 2 else 1e-4  # two classes are solved more exactly than scikit-learn does when it is not asked to
    oracle = make_pipeline(StandardScaler(), LogisticRegression(C=probe.penalty, max_iter=1000, tol=tolerance))
    assert probe(x) == pytest.approx(oracle.fit(x, target).predict_proba(x), abs=1e-4)
    held_out = np.empty((len(x), classes))
    for k in range(5):  # standardised over all rows, which know nothing of the target
        z = StandardScaler().fit_transform(x)
        model = LogisticRegression(C=probe.penalty, max_iter=1000, tol=tolerance).fit(z[folds != k], target[folds != k])
        held_out[folds == k] = model.predict_proba(z[folds == k])
    assert probe.held_out == pytest.approx(held_out, abs=1e-4)
    assert probe.loss == pytest.approx(-np.log(held_out[np.arange(len(x)), target]).mean(), abs=1e-4)


def test_held_out_probabilities_do_not_depend_on_the_rows_own_target(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(probes, "PENALTIES", (0.1,))
    x, target, folds = _drawn()
    other = target.copy()
    other[folds == 0] = np.random.default_rng(1).permutation(other[folds == 0])
    before, after = fit_probe(x, target, 3, folds), fit_probe(x, other, 3, folds)
    assert np.array_equal(before.held_out[folds == 0], after.held_out[folds == 0])
    assert not np.array_equal(before.held_out[folds == 1], after.held_out[folds == 1])


def test_the_penalty_is_that_of_the_best_loss_and_free_features_hardly_have_one(monkeypatch: pytest.MonkeyPatch):
    rng = np.random.default_rng(0)
    signal = rng.normal(size=300)
    target = (rng.random(300) < 1 / (1 + np.exp(-2 * signal))).astype(int)
    noise = rng.normal(size=(300, 80))
    folds = np.arange(300) % 5
    assert fit_probe(np.column_stack([noise, signal]), target, 2, folds).penalty < 1.0
    monkeypatch.setattr(probes, "PENALTIES", (1e-4,))
    held, free = (fit_probe(np.column_stack([noise, signal]), target, 2, folds, free=k) for k in (0, 1))
    slope = LogisticRegression(C=1e6).fit(signal[:, None], target).coef_[0, 0]
    assert abs(np.diff(held.weight[:, -1])[0]) < 0.1
    assert np.diff(free.weight[:, -1])[0] == pytest.approx(slope, rel=0.35)
    assert np.abs(np.diff(free.weight[:, :-1], axis=0)).max() < 0.02


def test_excluded_rows_and_missing_classes():
    x, target, folds = _drawn()
    known = target != 2
    probe = fit_probe(x, target, 3, folds, known)
    assert (probe(x)[:, 2] == 0).all()
    assert probe(x)[:, :2].sum(1) == pytest.approx(np.ones(len(x)))
    assert probe.held_out.shape == (len(x), 3)
    lonely = np.where(np.arange(len(x)) == 0, 2, target * known)  # class 2 once: one training fold lacks it
    assert np.isfinite(fit_probe(x, lonely, 3, folds).held_out).all()
    constant = np.column_stack([x, np.full(len(x), 7.0)])
    assert (fit_probe(constant, target, 3, folds).weight[:, -1] == 0).all()


@pytest.mark.parametrize("rows", [1500, 300])  # by Newton's method, and by scikit-learn's
@pytest.mark.parametrize(
    "device", ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"))]
)
def test_products_on_a_device_give_the_same_probe(rows: int, device: str):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 130))
    target, folds, known = (x[:, 0] + rng.normal(size=rows) > 0).astype(int), rng.integers(0, 5, rows), rng.random(rows) < 0.8
    more = rng.normal(size=(60, 130)), rng.integers(0, 2, 60)
    plain = fit_probe(x, target, 2, folds, known, 1, more)
    there = fit_probe(x, target, 2, folds, known, 1, more, device=torch.device(device))
    assert (there.penalty, there.more) == (plain.penalty, 60)
    for name in ("weight", "bias", "held_out"):
        assert getattr(there, name) == pytest.approx(getattr(plain, name), abs=1e-9), name


def test_a_network_is_read_once_for_all_rows_and_their_subsets():
    runs: list[int] = []
    model, x = cnn().eval(), torch.randn(9, 1, 8, 8)
    expected = {
        reading: FeatureCache(model, x).read(reading).arrays() for reading in (FeatureChoice((), True), FeatureChoice(("9",), True))
    }
    raw = outputs(model, x)
    model.register_forward_pre_hook(lambda _module, args: runs.append(len(args[0])))
    read = FeatureCache(model, x)
    some = read.take(np.array([7, 2, 4])).take(np.array([2, 0]))  # rows 4 and 7
    for reading, (logit, seen) in expected.items():
        assert some.read(reading).arrays()[0] == pytest.approx(logit[[4, 7]], abs=1e-6)
        assert some.read(reading).arrays()[1] == pytest.approx(seen[[4, 7]], abs=1e-6)
        assert read.read(reading).arrays()[1] == pytest.approx(seen, abs=1e-6)
        assert len(read.read(reading).raw) == 9
    assert torch.equal(read.raw(), raw)
    assert torch.equal(some.raw(), raw[[4, 7]])
    assert runs.count(9) == 2  # for the outputs, and for what enters a layer; the inputs need no run


def test_a_copy_is_distinguished_from_a_changed_network():
    model = cnn()
    read, same, other = FeatureCache(model, torch.randn(3, 1, 8, 8)), copy.deepcopy(model), copy.deepcopy(model)
    with torch.no_grad():
        next(other.parameters()).view(-1)[0] += 1e-6
    assert read.of(model)
    assert read.of(same)
    assert not read.of(other)
    assert not read.of(nn.Sequential(same))


def test_the_estimated_time_grows_with_the_rows_but_not_its_fixed_part(monkeypatch: pytest.MonkeyPatch):
    """With a simulated clock: a fit takes one unit per row and 10 for its checks."""
    now = [0.0]
    monkeypatch.setattr(probes.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(probes, "fit_probe", lambda x, *_, **__: now.__setitem__(0, now[0] + 10 + len(x)))
    x, y = np.random.default_rng(0).normal(size=(200, 130)), np.arange(200) % 2
    assert probes.probe_seconds(x, y, 2, 5, 1000) == pytest.approx(10 + 1000)  # the checks are not done once per row
    codes = np.where(np.arange(200) < 100, -1, np.arange(200) % 3)  # three groups, unknown of half of the rows
    assert probes.probe_seconds(x, codes, 3, 5, 1000) == pytest.approx(10 + 1000)
    assert probes.probe_seconds(x, np.full(200, -1), 3, 5, 1000) == pytest.approx(10 + 1000)  # no group is known of the first rows


def test_one_thread_fits_small_probes(monkeypatch: pytest.MonkeyPatch):
    threads: list[int] = []
    real = probes.log_loss

    def seen(*given):
        threads.append(max(own["num_threads"] for own in threadpool_info() if own["user_api"] == "blas"))
        return real(*given)

    monkeypatch.setattr(probes, "log_loss", seen)
    x, folds = np.random.default_rng(0).normal(size=(60, 4)), np.arange(60) % 3
    with threadpool_limits(2):
        fit_probe(x, np.arange(60) % 2, 2, folds)
        assert set(threads) == {1}
        monkeypatch.setattr(probes, "FEW_NUMBERS", 10)
        threads.clear()
        fit_probe(x, np.arange(60) % 2, 2, folds)
        assert set(threads) == {2}
