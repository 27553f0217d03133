"""Random scored data for the measure tests: 2 to 6 groups, ties, constant scores, weights, missing groups."""

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from equipoise.data import Attribute, Scores


@dataclass(frozen=True)
class Sample:
    y: np.ndarray
    score: np.ndarray
    attribute: Attribute
    weight: np.ndarray

    @property
    def scores(self) -> Scores:
        """The sample without its weights."""
        return Scores(self.y, self.score, (self.attribute,), None, np.arange(len(self.y)).astype(object))


@st.composite
def samples(draw, full_cells: bool = True, missing: bool = False) -> Sample:
    """Every (group, label) cell holds a row if `full_cells`."""
    groups = draw(st.integers(2, 6))
    n = draw(st.integers(4 * groups, 120))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    codes = rng.integers(-1 if missing else 0, groups, n)
    y = rng.integers(0, 2, n)
    if full_cells:
        codes[: 2 * groups] = np.repeat(np.arange(groups), 2)
        y[: 2 * groups] = np.tile([0, 1], groups)
    kind = draw(st.sampled_from(["continuous", "ties", "constant", "float32"]))
    score = {
        "continuous": rng.random(n),
        "ties": rng.integers(0, 5, n) / 4,
        "constant": np.full(n, 0.3),
        "float32": rng.random(n).astype(np.float32).astype(np.float64),
    }[kind]
    weight = rng.integers(1, 4, n).astype(float) if draw(st.booleans()) else rng.random(n) + 0.1
    return Sample(y, score, Attribute("g", tuple(f"g{k}" for k in range(groups)), codes), weight)


def places(length: int, most: int = 16) -> list[int]:
    """Both ends and some places between them, where a loop over all of them would take seconds for no further law.

    >>> places(3), places(100, 4)
    ([0, 1, 2], [0, 33, 66, 99])
    """
    return sorted({int(k) for k in np.linspace(0, length - 1, min(length, most))})
