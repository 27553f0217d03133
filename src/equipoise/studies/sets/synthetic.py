"""Two simulations with adjustable bias (Appendix C of the paper): Loh, Cao and Zhou 2019, and Zafar et al. 2017 in many dimensions.

The paper leaves three things open. Loh's X6 takes the values 1 to 10, as in the original. The weights of Zafar's random network are
those of the published code (`mapping="low-rank"`): three matrices with a bell-shaped singular profile of effective rank 50, no biases,
drawn with labels, points and A from one seed in the published order, so that seed 42 gives the published data set. `mapping="gaussian"`
draws weights and biases with variance 1 / fan-in, so that values neither vanish nor explode. A is an input of both simulations by default,
as in the published experiments.
"""

import itertools
from typing import NamedTuple

import numpy as np
import pandas as pd

from equipoise.data import Attribute, Cohort, FloatArray, IntArray, Table
from equipoise.errors import did_you_mean, raise_all
from equipoise.specification import is_real
from equipoise.studies.sets import Recipe, is_integer, size_problems

CORRELATED = ["X1", "X2", "X3", "X7", "X8", "X9", "X10"]  # Loh's standard normal features
MEANS = np.array([[-2.0, -2.0], [2.0, 2.0]])  # Zafar's plane, one row per label
COVARIANCES = np.array([[[10.0, 1.0], [1.0, 3.0]], [[5.0, 1.0], [1.0, 5.0]]])
MAPPINGS = ("low-rank", "gaussian")
EFFECTIVE_RANK = 50  # of the published matrices


def loh(n: int = 30_000, *, alpha: float = 1.0, seed: int = 0, attribute_as_input: bool = True) -> Cohort:
    """n rows with a label that depends on A through an interaction with X6 of strength alpha.

    X5 and X6 are one-hot (2 + 10 columns), next to 8 numbers. X is independent of A, so a network without A among its inputs has no
    gap: leave `attribute_as_input` on to study bias. For one seed, X, A and the random numbers behind Y are the same for every alpha.

    >>> len(loh(100)), loh(100).inputs.shape[1], loh(100, attribute_as_input=False).inputs.shape[1]
    (100, 21, 20)
    """
    problems = size_problems(n, seed, 10, "rows")
    if not (is_real(alpha) and 0 <= alpha < np.inf):
        problems.append(f"alpha, the strength of the bias, must be a number of at least 0; got {alpha!r}")
    raise_all(problems, source="loh")
    features = loh_features(n, seed)
    a = _rng(seed, "loh attribute").integers(0, 2, n)
    y = (_rng(seed, "loh label").random(n) < _sigmoid(loh_logit(features, a, alpha))).astype(np.int64)
    coded = features.assign(X5=pd.Categorical(features["X5"], range(2)), X6=pd.Categorical(features["X6"], range(1, 11)))
    inputs = pd.get_dummies(coded, columns=["X5", "X6"], prefix_sep="=", dtype=float)
    return _cohort(inputs, y, a, attribute_as_input, "loh")


def loh_features(n: int, seed: int) -> pd.DataFrame:
    """X1 to X10, with categories as integers."""
    rng = _rng(seed, "loh features")
    correlation = np.eye(len(CORRELATED))
    for block in (slice(1, 3), slice(3, 7)):  # X2 with X3; X7 to X10 among themselves
        correlation[block, block] = 0.5 + 0.5 * np.eye(block.stop - block.start)
    normal = rng.multivariate_normal(np.zeros(len(CORRELATED)), correlation, size=n, method="cholesky")
    features = pd.DataFrame(normal, columns=CORRELATED).assign(
        X4=rng.exponential(1.0, n),
        X5=rng.integers(0, 2, n),
        X6=rng.integers(1, 11, n),
    )
    return features[[f"X{j}" for j in range(1, 11)]]


def loh_logit(features: pd.DataFrame, a: IntArray, alpha: float) -> FloatArray:
    """The log odds of Y = 1, row by row."""
    plain = 0.5 * (features["X1"] + features["X2"] - features["X5"])
    odd = features["X6"] % 2 == 1
    return np.asarray(plain + 2.0 * alpha * a * odd, dtype=np.float64)


def zafar(
    n: int = 30_000,
    *,
    vartheta: float = 1.0,
    clockwise: bool = False,
    seed: int = 0,
    width: int = 100,
    features: int = 500,
    mapping: str = "low-rank",
    attribute_as_input: bool = True,
) -> Cohort:
    """n rows of a random network's outputs on two Gaussian classes; the closer vartheta is to 0, the more A depends on the class.

    The points are rotated by vartheta before A is drawn, as in the paper's text. `clockwise` rotates them in the other direction, as the
    published code does; only this reproduces the paper's sensitivity table. `mapping` is the random network: "low-rank" (published) or
    "gaussian". For one seed, X, Y, the network and the random numbers behind A are the same for every vartheta.

    >>> zafar(100, features=7).inputs.shape[1], zafar(100, features=7, attribute_as_input=False).inputs.shape[1]
    (8, 7)
    """
    problems = size_problems(n, seed, 10, "rows")
    if not (is_real(vartheta) and np.isfinite(vartheta)):
        problems.append(f"vartheta, the angle in radians, must be a finite number; got {vartheta!r}")
    problems += [
        f"{name} must be a whole number of at least 1; got {value!r}"
        for name, value in (("width", width), ("features", features))
        if not is_integer(value, 1)
    ]
    if mapping not in MAPPINGS:
        problems.append(f"mapping must be one of {', '.join(MAPPINGS)}; got {mapping!r}.{did_you_mean(mapping, MAPPINGS)}")
    raise_all(problems, source="zafar")
    draws = low_rank_draws(n, width, features, seed) if mapping == "low-rank" else gaussian_draws(n, width, features, seed)
    a = (draws.uniform < zafar_chance(draws.plane, -vartheta if clockwise else vartheta)).astype(np.int64)
    # Single precision: it halves the published table to 60 MB, and networks use float32 anyway.
    inputs = pd.DataFrame(draws.x.astype(np.float32), columns=[f"X{j}" for j in range(1, features + 1)])
    return _cohort(inputs, draws.y, a, attribute_as_input, "zafar")


class Draws(NamedTuple):
    """The draws of Zafar's simulation that are the same for every vartheta. A = 1 if `uniform` is below the probability of A = 1."""

    plane: FloatArray  # (n, 2)
    y: IntArray
    uniform: FloatArray
    x: FloatArray  # (n, features)


def low_rank_draws(n: int, width: int, features: int, seed: int) -> Draws:
    """The published draws: labels, points, `uniform` and three low-rank matrices from one generator, in this order."""
    from sklearn.datasets import make_low_rank_matrix  # late: it takes a second to import

    state = np.random.RandomState(seed)
    y = (state.random_sample(n) >= 0.5).astype(np.int64)
    plane = np.empty((n, 2))
    for label in (0, 1):
        rows = y == label
        plane[rows] = state.multivariate_normal(MEANS[label], COVARIANCES[label], size=int(rows.sum()))
    uniform = 1.0 - state.random_sample(n)  # the published code sets A = 1 above the probability of A = 0
    sizes = itertools.pairwise((2, width, width, features))
    first, second, last = (make_low_rank_matrix(a, b, effective_rank=EFFECTIVE_RANK, random_state=state) for a, b in sizes)
    x = np.maximum(np.maximum(plane @ first, 0.0) @ second, 0.0) @ last
    return Draws(plane, y, uniform, x)


def gaussian_draws(n: int, width: int, features: int, seed: int) -> Draws:
    """Draws from separate generators, through a network with Gaussian weights and biases."""
    plane, y = zafar_plane(n, seed)
    return Draws(plane, y, _rng(seed, "zafar attribute").random(n), zafar_network(plane, width, features, seed))


def zafar_plane(n: int, seed: int) -> tuple[FloatArray, IntArray]:
    """The points in the plane (n, 2) and their labels."""
    y = _rng(seed, "zafar label").integers(0, 2, n)
    normal = _rng(seed, "zafar plane").standard_normal((n, 2))
    factors = np.linalg.cholesky(COVARIANCES)
    return MEANS[y] + np.einsum("nij,nj->ni", factors[y], normal), y


def zafar_chance(plane: FloatArray, vartheta: float) -> FloatArray:
    """The probability of A = 1: p(x | Y = 1) / (p(x | Y = 0) + p(x | Y = 1)) at the rotated point x."""
    rotation = np.array([[np.cos(vartheta), -np.sin(vartheta)], [np.sin(vartheta), np.cos(vartheta)]])
    away = (plane @ rotation.T)[:, None, :] - MEANS  # (n, label, 2)
    distance: FloatArray = np.einsum("nyi,yij,nyj->ny", away, np.linalg.inv(COVARIANCES), away)
    logs = -0.5 * (distance + np.log(np.linalg.det(COVARIANCES)))
    return _sigmoid(logs[:, 1] - logs[:, 0])


def zafar_network(plane: FloatArray, width: int, features: int, seed: int) -> FloatArray:
    """The outputs (n, features) of a random network with two hidden layers, Gaussian weights and biases."""
    rng = _rng(seed, "zafar network")

    def linear(x: FloatArray, fan_out: int) -> FloatArray:
        fan_in = x.shape[1]
        theta = rng.standard_normal((fan_out, fan_in)) / np.sqrt(fan_in)
        b = rng.standard_normal(fan_out) / np.sqrt(fan_in)
        return np.asarray(x @ theta.T + b)

    first = np.maximum(linear(plane, width), 0.0)
    second = np.maximum(linear(first, width), 0.0)
    return linear(second, features)


def _cohort(inputs: pd.DataFrame, y: IntArray, a: IntArray, attribute_as_input: bool, name: str) -> Cohort:
    if attribute_as_input:
        inputs = inputs.assign(A=a.astype(float))
    # Not Attribute.of: a very small sample may lack a group, which the measures report.
    return Cohort(Table(inputs), y, (Attribute("A", ("A=1", "A=0"), 1 - a),), name=name)


def _rng(seed: int, purpose: str) -> np.random.Generator:
    """The random generator of one purpose. Not `splits.generator`, which would give other data for the same seed."""
    return np.random.default_rng([seed, *purpose.encode()])


def _sigmoid(x: FloatArray) -> FloatArray:
    """1 / (1 + exp(-x)) without overflow; importing scipy for it would take a fifth of a second."""
    return np.asarray(0.5 * (1 + np.tanh(0.5 * x)))


RECIPES = (
    Recipe(
        name="loh",
        load=loh,
        files=(),
        attribute="A",
        description="simulated: the label depends on A through an interaction of strength alpha",
        citation="Loh, Cao and Zhou, WIREs Data Mining and Knowledge Discovery 9(5), 2019",
        licence="simulated",
        rows=30_000,
        features=21,
    ),
    Recipe(
        name="zafar",
        load=zafar,
        files=(),
        attribute="A",
        description="simulated: two Gaussian classes seen through a random network, A tied to the label by an angle",
        citation="Zafar, Valera, Gomez Rodriguez and Gummadi, AISTATS, PMLR 54:962-970, 2017",
        licence="simulated",
        rows=30_000,
        features=501,
    ),
)
