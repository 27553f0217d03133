"""Laws of the cell table and of the affine functional."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from equipoise.data import Attribute
from equipoise.errors import EmptyCell, UnknownName
from equipoise.measures import GAPS, MEASURES, Cells, Measure, canonical_name, largest_gap, measure_of
from equipoise.measures.sweeps import gap_functional
from support.facts import facts, suggests
from support.random_scores import Sample, samples


@given(sample=samples(missing=True), shards=st.integers(1, 7), seed=st.integers(0, 99))
def test_cell_tables_of_random_shards_add_up_to_the_whole(sample: Sample, shards: int, seed: int):
    shard = np.random.default_rng(seed).integers(0, shards, len(sample.y))
    whole = Cells.of(sample.score, sample.y, sample.attribute, sample.weight)
    pieces = [
        Cells.of(
            sample.score[shard == k], sample.y[shard == k], sample.attribute.take(np.flatnonzero(shard == k)), sample.weight[shard == k]
        )
        for k in range(shards)
    ]
    total = pieces[0]
    for piece in pieces[1:]:
        total = total + piece
    np.testing.assert_allclose(total.n, whole.n, atol=1e-12)
    np.testing.assert_allclose(total.s, whole.s, atol=1e-12)


def test_tables_of_different_groups_do_not_add_up():
    a = Cells.of([1, 0], [1, 0], Attribute.of(["F", "M"]))
    b = Cells.of([1, 0], [1, 0], Attribute.of(["F", "X"]))
    with pytest.raises(ValueError, match="groups"):
        a + b


@pytest.mark.parametrize("gap", list(GAPS))
@given(sample=samples())
def test_swapping_two_groups_flips_the_sign(gap: str, sample: Sample):
    two = Attribute("g", ("a", "b"), sample.attribute.codes % 2)
    swapped = Attribute("g", ("b", "a"), 1 - two.codes)
    one, other = (Cells.of(sample.score, sample.y, a).gaps(gap) for a in (two, swapped))
    np.testing.assert_allclose(one, -other, atol=1e-12)


@pytest.mark.parametrize("gap", list(GAPS))
@given(sample=samples(missing=True))
def test_gradient_of_the_proxy_with_respect_to_the_scores_is_w(gap: str, sample: Sample):
    cells = Cells.of(sample.score, sample.y, sample.attribute)
    w = torch.from_numpy(gap_functional(gap, cells.n, 1).weights(sample.y, sample.attribute.codes))
    f = torch.from_numpy(sample.score).requires_grad_()
    value = (f * w).sum()
    value.backward()
    assert torch.equal(f.grad, w)
    assert float(value.detach()) == pytest.approx(float(cells.gaps(gap)[0]), abs=1e-12)


@given(sample=samples(), batches=st.integers(1, 5))
def test_mini_batch_estimates_average_to_the_whole_and_are_never_nan(sample: Sample, batches: int):
    cells = Cells.of(sample.score, sample.y, sample.attribute)
    w = gap_functional("eod", cells.n, 1).weights(sample.y, sample.attribute.codes)
    n, whole = len(w), float(w @ sample.score)
    size = n // batches
    parts = [slice(k * size, (k + 1) * size if k < batches - 1 else n) for k in range(batches)]
    estimates = [n / (p.stop - p.start) * float(w[p] @ sample.score[p]) for p in parts]
    shares = [(p.stop - p.start) / n for p in parts]
    assert np.isfinite(estimates).all()
    assert np.dot(shares, estimates) == pytest.approx(whole, abs=1e-10)


@given(sample=samples())
def test_lemmas_of_appendix_a(sample: Sample):
    """-proxy is the covariance of score and attribute times N^2 / (K (N - K)); for EOD among the positives."""
    a = (sample.attribute.codes == 0).astype(float)  # A = 1 is the reference
    two = Attribute("g", ("ref", "other"), (1 - a).astype(np.int64))
    f = sample.score
    for gap, rows in (("spd", np.ones(len(f), bool)), ("eod", sample.y == 1)):
        n, k = rows.sum(), a[rows].sum()
        covariance = np.mean(f[rows] * a[rows]) - np.mean(f[rows]) * np.mean(a[rows])
        value = Cells.of(f, sample.y, two).gaps(gap)[0]
        assert -value == pytest.approx(covariance * n**2 / (k * (n - k)), abs=1e-10)


@given(sample=samples(missing=True), replicates=st.integers(1, 4))
def test_leading_axes_of_decisions_are_a_loop(sample: Sample, replicates: int):
    f = np.random.default_rng(0).random((replicates, len(sample.y)))
    batched = Cells.of(f, sample.y, sample.attribute)
    for r in range(replicates):
        one = Cells.of(f[r], sample.y, sample.attribute)
        np.testing.assert_allclose(batched.n[r], one.n, atol=1e-12)
        np.testing.assert_allclose(batched.s[r], one.s, atol=1e-12)
        for gap in GAPS:
            np.testing.assert_allclose(batched.gaps(gap)[r], one.gaps(gap), atol=1e-12)


def test_an_empty_cell_is_nan_and_named_never_zero():
    attribute = Attribute.of(["F", "F", "M", "M"], reference="M")
    cells = Cells.of([1, 0, 1, 0], [0, 0, 1, 0], attribute)
    assert np.isnan(cells.gaps("eod")).all()
    assert np.isnan(gap_functional("eod", cells.n, 1)(cells))
    assert cells.gaps("spd")[0] == 0.0
    with pytest.raises(EmptyCell, match=facts("eod", "F", 2)):
        cells.require("eod", "the test part")
    cells.require("spd")


def test_largest_is_signed_and_passes_over_groups_without_a_value():
    assert largest_gap(np.array([0.1, -0.4, np.nan])) == -0.4
    assert np.isnan(largest_gap(np.array([np.nan, np.nan])))


def test_a_measure_is_a_line_of_data(monkeypatch: pytest.MonkeyPatch):
    measure = Measure("double_tpr", "twice the sensitivity", "twice the sensitivity", rates={"tpr": 2.0})
    monkeypatch.setitem(MEASURES, measure.name, measure)
    attribute = Attribute.of(["F", "F", "M", "M"], reference="M")
    cells = Cells.of([1, 0, 0, 0], [1, 0, 1, 0], attribute)
    assert cells.gaps("double_tpr")[0] == 2.0
    assert cells.gaps("tpr-fpr")[0] == 1.0


def test_unknown_measures_and_rates_name_the_closest():
    with pytest.raises(UnknownName, match=suggests("eod")):
        measure_of("eodd")
    with pytest.raises(UnknownName, match=facts("selection", "tpr", "fpr")):
        canonical_name({"tprr": 1.0})
    assert measure_of("aod").labels == (0, 1)
    assert measure_of("spd").labels == ()
