"""The two simulations against the distributions of Appendix C, each computed in another way."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.special import expit

from equipoise.data import Cohort, FeatureTable, IntArray
from equipoise.errors import BadInput
from equipoise.studies.sets.tabular import (
    ZAFAR_COVARIANCES,
    ZAFAR_MEANS,
    loh,
    loh_features,
    loh_logit,
    low_rank_draws,
    zafar,
    zafar_chance,
    zafar_network,
    zafar_plane,
)

N = 20_000
SE = 1 / math.sqrt(N)


def features(cohort: Cohort) -> pd.DataFrame:
    assert isinstance(cohort.source, FeatureTable)
    return cohort.source.frame


def in_reference(cohort: Cohort) -> IntArray:
    return np.asarray(cohort.groups == "A=1", dtype=np.int64)


def gap(cohort: Cohort) -> float:
    a = in_reference(cohort)
    return float(cohort.y[a == 0].mean() - cohort.y[a == 1].mean())


def test_loh_correlations() -> None:
    expected = pd.DataFrame(np.eye(10), index=range(1, 11), columns=range(1, 11))
    for j, k in [(2, 3), (7, 8), (7, 9), (7, 10), (8, 9), (8, 10), (9, 10)]:
        expected.loc[j, k] = expected.loc[k, j] = 0.5
    found = loh_features(N, 0).corr().to_numpy()
    assert np.abs(found - expected.to_numpy()).max() < 4 * SE


def test_loh_marginals() -> None:
    x = loh_features(N, 1)
    for j in (1, 2, 3, 7, 8, 9, 10):
        assert stats.kstest(x[f"X{j}"], "norm").pvalue > 1e-3
    assert stats.kstest(x["X4"], "expon").pvalue > 1e-3
    assert abs(x["X5"].mean() - 0.5) < 2 * SE
    assert set(x["X5"]) == {0, 1}
    counts = x["X6"].value_counts()
    assert set(counts.index) == set(range(1, 11))
    assert stats.chisquare(counts).pvalue > 1e-3


def test_loh_logit_by_hand() -> None:
    x = loh_features(200, 2)
    a = np.arange(200) % 2
    found = loh_logit(x, a, 0.7)
    for i, row in enumerate(x.to_dict("records")):
        by_hand = 0.5 * (row["X1"] + row["X2"] - row["X5"])
        if a[i] == 1 and row["X6"] in (1, 3, 5, 7, 9):
            by_hand += 2 * 0.7
        assert found[i] == pytest.approx(by_hand, abs=1e-12)


def test_loh_labels_follow_their_logit() -> None:
    cohort = loh(N, alpha=1.5, seed=3)
    chance = expit(loh_logit(loh_features(N, 3), in_reference(cohort), 1.5))
    tenth = pd.qcut(chance, 10, labels=False)
    for k in range(10):
        here = tenth == k
        assert abs(cohort.y[here].mean() - chance[here].mean()) < 4 * 0.5 / math.sqrt(here.sum())


def test_loh_attribute_is_balanced_and_independent_of_the_features() -> None:
    a = in_reference(loh(N, seed=4))
    assert abs(a.mean() - 0.5) < 2 * SE
    assert loh_features(N, 4).corrwith(pd.Series(a)).abs().max() < 4 * SE


def test_loh_without_alpha_has_no_gap_and_with_it_has_one() -> None:
    assert abs(gap(loh(N, alpha=0.0, seed=5))) < 4 * SE
    gaps = [gap(loh(N, alpha=alpha, seed=5)) for alpha in (0.5, 1.0, 2.5)]
    assert 0 > gaps[0] > gaps[1] > gaps[2]
    # With alpha 2.5 half of the reference group has odds multiplied by exp(5).
    x = loh_features(N, 5)
    one, zero = (expit(loh_logit(x, np.full(N, a), 2.5)).mean() for a in (1, 0))
    assert gaps[2] == pytest.approx(zero - one, abs=4 * SE)


def test_loh_inputs_hold_every_level_and_match_the_features() -> None:
    tiny = features(loh(10))
    numbers = ["X1", "X2", "X3", "X4", "X7", "X8", "X9", "X10"]
    assert list(tiny.columns) == [*numbers, "X5=0", "X5=1", *(f"X6={k}" for k in range(1, 11)), "A"]
    assert list(features(loh(10, attribute_as_input=False)).columns) == list(tiny.columns[:-1])
    x = loh_features(10, 0)
    assert tiny[numbers].equals(x[numbers])
    assert (tiny[[f"X6={k}" for k in range(1, 11)]].to_numpy() @ np.arange(1, 11)).tolist() == x["X6"].tolist()
    assert tiny["X5=1"].tolist() == x["X5"].tolist()
    assert tiny["A"].tolist() == in_reference(loh(10)).tolist()


def test_zafar_plane_has_the_published_moments() -> None:
    plane, y = zafar_plane(N, 0)
    assert abs(y.mean() - 0.5) < 2 * SE
    for label in (0, 1):
        points = plane[y == label]
        assert np.abs(points.mean(axis=0) - ([2, 2] if label else [-2, -2])).max() < 4 * math.sqrt(10 / len(points))
        expected = np.array([[5, 1], [1, 5]] if label else [[10, 1], [1, 3]])
        assert np.abs(np.cov(points.T) - expected).max() < 4 * 10 * math.sqrt(2 / len(points))


def test_clockwise_rotation_reproduces_the_published_decrease_of_the_gap() -> None:
    """The paper's table has no gap left at vartheta = 1.2; that holds for its code's direction, not for its text's."""
    text, code = (zafar(N, vartheta=1.2, width=2, features=1, clockwise=way) for way in (False, True))
    gaps = [c.y[c.groups == "A=0"].mean() - c.y[c.groups == "A=1"].mean() for c in (text, code)]
    assert gaps[0] == pytest.approx(-0.43, abs=0.05)
    assert gaps[1] == pytest.approx(-0.01, abs=0.05)


@given(st.floats(-7, 7), st.lists(st.tuples(st.floats(-12, 12), st.floats(-12, 12)), min_size=1, max_size=5))
def test_zafar_chance_is_a_ratio_of_densities(vartheta: float, points: list[tuple[float, float]]) -> None:
    found = zafar_chance(np.array(points), vartheta)
    for i, (u, v) in enumerate(points):
        turned = (math.cos(vartheta) * u - math.sin(vartheta) * v, math.sin(vartheta) * u + math.cos(vartheta) * v)
        one = stats.multivariate_normal([2, 2], [[5, 1], [1, 5]]).pdf(turned)
        zero = stats.multivariate_normal([-2, -2], [[10, 1], [1, 3]]).pdf(turned)
        assert found[i] == pytest.approx(one / (one + zero), abs=1e-9)


def test_zafar_chance_is_finite_far_away() -> None:
    far = zafar_chance(np.array([[1e6, -1e6], [-1e6, 0.0], [0.0, 1e6]]), 0.3)
    assert np.isfinite(far).all()
    assert (far >= 0).all()
    assert (far <= 1).all()


def test_zafar_attribute_follows_its_chance() -> None:
    cohort = zafar(N, vartheta=0.9, seed=1, width=4, features=3, mapping="gaussian")
    plane, y = zafar_plane(N, 1)
    chance = zafar_chance(plane, 0.9)
    assert np.array_equal(y, cohort.y)
    tenth = pd.qcut(chance, 10, labels=False)
    for k in range(10):
        here = tenth == k
        assert abs(in_reference(cohort)[here].mean() - chance[here].mean()) < 4 * 0.5 / math.sqrt(here.sum())


@pytest.mark.parametrize("width", [2, 5])
def test_zafar_network_by_hand(width: int) -> None:
    plane = np.array([[0.3, -1.0], [2.0, 4.0]])
    rng = np.random.default_rng([6, *b"zafar network"])
    sizes = [2, width, width, 3]
    layers = []
    for fan_in, fan_out in itertools.pairwise(sizes):
        theta = rng.standard_normal((fan_out, fan_in)) / math.sqrt(fan_in)
        layers.append((theta, rng.standard_normal(fan_out) / math.sqrt(fan_in)))
    for x, found in zip(plane, zafar_network(plane, width, 3, seed=6), strict=True):
        h: list[float] = list(x)
        for depth, (theta, b) in enumerate(layers):
            h = [sum(t * v for t, v in zip(row, h, strict=True)) + c for row, c in zip(theta, b, strict=True)]
            h = [max(0.0, v) for v in h] if depth < 2 else h
        assert found.tolist() == pytest.approx(h, abs=1e-12)


def test_zafar_inputs_do_not_depend_on_the_rotation() -> None:
    cohort = zafar(50, vartheta=1.1, seed=2, width=6, features=4, mapping="gaussian")
    expected = zafar_network(zafar_plane(50, 2)[0], 6, 4, 2)
    assert list(features(cohort).columns) == ["X1", "X2", "X3", "X4", "A"]
    assert np.allclose(features(cohort).iloc[:, :4], expected, atol=1e-5)
    assert features(cohort)["A"].tolist() == in_reference(cohort).tolist()
    assert "A" not in features(zafar(50, features=4, attribute_as_input=False))


@pytest.mark.parametrize("width", [10, 100, 400])
def test_zafar_network_neither_vanishes_nor_explodes(width: int) -> None:
    spread = zafar_network(zafar_plane(500, 0)[0], width, 50, 0).std()
    assert 0.3 < spread < 3


@pytest.mark.parametrize("mapping", ["low-rank", "gaussian"])
def test_zafar_gap_grows_as_the_angle_shrinks(mapping: str) -> None:
    gaps = [gap(zafar(N, vartheta=v, width=2, features=1, mapping=mapping)) for v in (0.0, 0.7, 0.95, 1.2)]
    assert gaps == sorted(gaps)
    assert gaps[-1] < -0.3


def test_the_published_map_has_a_bell_shaped_spectrum_of_effective_rank_50() -> None:
    """The matrices are recovered from what the map does to points, not from the code that drew them."""
    plane, y, _, x = low_rank_draws(4_000, 100, 500, 42)
    replay = np.random.RandomState(42)
    replay.random_sample(4_000)
    for label in (0, 1):
        replay.multivariate_normal(ZAFAR_MEANS[label], ZAFAR_COVARIANCES[label], size=int((y == label).sum()))
    replay.random_sample(4_000)
    layers = []
    for fan_in, fan_out in itertools.pairwise((2, 100, 100, 500)):
        rank = min(fan_in, fan_out)
        u, _ = np.linalg.qr(replay.standard_normal((fan_in, rank)))
        v, _ = np.linalg.qr(replay.standard_normal((fan_out, rank)))
        i = np.arange(rank)
        profile = 0.5 * np.exp(-((i / 50) ** 2)) + 0.5 * np.exp(-0.1 * i / 50)  # a bell and a tail of equal weight
        layers.append((u * profile) @ v.T)
        assert np.allclose(np.linalg.svd(layers[-1], compute_uv=False), profile, atol=1e-10)
    first, second, last = layers
    hidden = np.maximum(np.maximum(plane @ first, 0) @ second, 0)
    assert np.allclose(x, hidden @ last, atol=1e-10)
    found, *_ = np.linalg.lstsq(hidden, x, rcond=None)  # the last matrix, on the directions that points reach
    assert np.allclose(hidden @ found, hidden @ last, atol=1e-8)


def test_the_published_map_has_no_biases() -> None:
    plane, _, _, x = low_rank_draws(500, 30, 20, 3)
    again = low_rank_draws(500, 30, 20, 3)
    assert np.array_equal(x, again[3])
    # Without biases the network is positively homogeneous, so each ray of the plane keeps its direction in x.
    angle = np.arctan2(plane[:, 1], plane[:, 0])
    order = np.argsort(angle)
    near = np.diff(angle[order]) < 1e-4
    directions = x / np.linalg.norm(x, axis=1, keepdims=True)
    assert near.any()
    assert np.abs(directions[order][1:][near] - directions[order][:-1][near]).max() < 1e-2


def test_the_published_draws_follow_the_order_of_the_published_generator() -> None:
    """Labels, then the points of Y = 0, then those of Y = 1, then one draw per row for A, from one legacy generator."""
    n, vartheta = 200, 0.7
    state = np.random.RandomState(42)
    y = state.choice([0.0, 1.0], size=n, p=[0.5, 0.5])
    plane = np.zeros((n, 2))
    plane[y == 0] = state.multivariate_normal([-2, -2], [[10, 1], [1, 3]], size=int((y == 0).sum()))
    plane[y == 1] = state.multivariate_normal([2, 2], [[5, 1], [1, 5]], size=int((y == 1).sum()))
    turned = plane @ np.array([[math.cos(vartheta), -math.sin(vartheta)], [math.sin(vartheta), math.cos(vartheta)]])
    one = stats.multivariate_normal([2, 2], [[5, 1], [1, 5]]).pdf(turned)
    zero = stats.multivariate_normal([-2, -2], [[10, 1], [1, 3]]).pdf(turned)
    chance = one / (one + zero)
    a = [state.choice([0, 1], p=[1 - p, p]) for p in chance]
    cohort = zafar(n, vartheta=vartheta, clockwise=True, seed=42, width=6, features=4)
    assert cohort.y.tolist() == y.tolist()
    assert in_reference(cohort).tolist() == a


def test_the_gaussian_map_is_an_option() -> None:
    one, other = (zafar(50, seed=1, features=4, mapping=mapping) for mapping in ("low-rank", "gaussian"))
    assert not features(one).equals(features(other))
    assert np.allclose(features(other).iloc[:, :4], zafar_network(zafar_plane(50, 1)[0], 100, 4, 1), atol=1e-5)


@pytest.mark.parametrize("draw", [lambda s: loh(500, seed=s), lambda s: zafar(500, seed=s, width=5, features=4)])
def test_one_seed_one_cohort(draw) -> None:  # type: ignore[no-untyped-def]
    first, again, other = draw(7), draw(7), draw(8)
    assert features(first).equals(features(again))
    assert np.array_equal(first.y, again.y)
    assert np.array_equal(first.groups, again.groups)
    assert not np.array_equal(first.y, other.y)
    assert not np.array_equal(first.groups, other.groups)
    assert not features(first).equals(features(other))


def test_the_strength_of_the_bias_changes_nothing_else() -> None:
    assert features(loh(200, alpha=0.0)).equals(features(loh(200, alpha=2.0)))
    near, far = (zafar(200, vartheta=v, width=5, features=4, attribute_as_input=False) for v in (0.7, 1.2))
    assert features(near).equals(features(far))
    assert np.array_equal(near.y, far.y)
    assert not np.array_equal(near.groups, far.groups)


def test_the_published_parameters_are_the_ones_in_use() -> None:
    assert ZAFAR_MEANS.tolist() == [[-2, -2], [2, 2]]
    assert ZAFAR_COVARIANCES.tolist() == [[[10, 1], [1, 3]], [[5, 1], [1, 5]]]


@pytest.mark.parametrize(
    ("draw", "says"),
    [
        (lambda: loh(9), ["n must", "at least 10", "got 9"]),
        (lambda: loh(True), ["n must be"]),
        (lambda: loh(10.5), ["n must be"]),  # type: ignore[arg-type]
        (lambda: loh(5, alpha=-0.1, seed=-1), ["n must be", "alpha", "seed", "3 problems in loh"]),
        (lambda: loh(alpha=math.nan), ["alpha"]),
        (lambda: loh(alpha="1"), ["alpha"]),  # type: ignore[arg-type]
        (lambda: zafar(vartheta=math.inf), ["vartheta"]),
        (lambda: zafar(width=0, features=0), ["width", "features"]),
        (lambda: zafar(mapping="lowrank"), ["mapping", "low-rank, gaussian", "'lowrank'"]),
    ],
)
def test_bad_arguments_are_all_named(draw, says: list[str]) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(BadInput) as caught:
        draw()
    assert all(part in str(caught.value) for part in says)
