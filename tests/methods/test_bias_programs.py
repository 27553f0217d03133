"""The multipliers: against brute force on small problems, and against the whole program where only a part of the rows is in doubt."""

from itertools import combinations, product

import numpy as np
import pytest
from scipy.optimize import linprog

from equipoise.methods import blind_rule as programs
from equipoise.methods.blind_rule import solve


def _problem(rows: int, gaps: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    u = rng.normal(size=rows)
    return u, rng.normal(size=(gaps, rows)) + 0.5 * u


def _dual(multipliers: np.ndarray, u: np.ndarray, g: np.ndarray, low: np.ndarray, high: np.ndarray) -> float:
    """What no decisions within the bounds can exceed."""
    bounds = np.where(multipliers > 0, high, low)
    return float(np.maximum(u - multipliers @ g, 0).sum() + multipliers @ bounds)


def _brute_force(u: np.ndarray, g: np.ndarray, low: np.ndarray, high: np.ndarray) -> float:
    """The least of the dual, which is piecewise linear: at a point where as many of its creases meet as there are multipliers."""
    gaps = len(g)
    creases = [(g[:, i], u[i]) for i in range(len(u))] + [(row, 0.0) for row in np.eye(gaps)]
    best = np.inf
    for chosen in combinations(creases, gaps):
        left, right = np.array([c[0] for c in chosen]), np.array([c[1] for c in chosen])
        if abs(np.linalg.det(left)) > 1e-9:
            best = min(best, _dual(np.linalg.solve(left, right), u, g, low, high))
    return best


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("rows", "gaps"), [(5, 1), (12, 1), (7, 2), (12, 2), (9, 3)])
def test_brute_force_on_small_problems(rows: int, gaps: int, seed: int):
    u, g = _problem(rows, gaps, seed)
    for max_gap in (0.0, 0.3, 1.5, 100.0):
        low, high = np.full(gaps, -max_gap), np.full(gaps, max_gap)
        found = solve(u, g, low, high)
        assert found is not None
        assert found.value == pytest.approx(_brute_force(u, g, low, high), abs=1e-7)
        assert found.value == pytest.approx(_dual(found.multipliers, u, g, low, high), abs=1e-7)  # so the multipliers are the best
        assert (np.abs(g @ found.decisions) <= max_gap + 1e-7).all()
        assert ((found.decisions >= 0) & (found.decisions <= 1)).all()
        # The rule: positive above the line, negative below it, and at most one fraction a gap on it.
        price = u - found.multipliers @ g
        assert (found.decisions[price > 1e-7] == 1).all()
        assert (found.decisions[price < -1e-7] == 0).all()
        assert ((found.decisions > 1e-9) & (found.decisions < 1 - 1e-9)).sum() <= gaps
        if rows <= 9:
            hard = [u @ np.array(f) for f in product((0.0, 1.0), repeat=rows) if (np.abs(g @ np.array(f)) <= max_gap).all()]
            assert found.value >= max(hard) - 1e-9


@pytest.mark.parametrize("gaps", [1, 3, 7])
def test_rows_in_doubt_give_the_solution_of_the_whole_program(gaps: int, monkeypatch: pytest.MonkeyPatch):
    u, g = _problem(3000, gaps, 1)
    monkeypatch.setattr(programs, "FIRST_PROGRAM_ROWS", 10)
    rng = np.random.default_rng(0)
    for max_gap in (400.0, 100.0, 0.0):
        low, high = np.full(gaps, -max_gap), np.full(gaps, max_gap / 2)
        whole = linprog(-u, A_ub=np.vstack([g, -g]), b_ub=np.concatenate([high, -low]), bounds=(0, 1), method="highs-ds")
        for start in (None, rng.normal(size=gaps)):
            found = solve(u, g, low, high, start)
            assert found is not None
            assert found.value == pytest.approx(-whole.fun, rel=1e-9)
            assert _dual(found.multipliers, u, g, low, high) == pytest.approx(-whole.fun, rel=1e-7)


def test_bounds_that_hold_anyway_have_no_price():
    u, g = _problem(50, 2, 0)
    found = solve(u, g, np.full(2, -1e3), np.full(2, 1e3))
    assert found is not None
    assert found.multipliers.tolist() == [0.0, 0.0]
    assert np.array_equal(found.decisions, (u > 0).astype(float))


def test_bounds_that_exclude_each_other_have_no_solution():
    u, g = np.ones(500), np.vstack([np.ones(500), np.ones(500)])
    assert solve(u, g, np.array([0.0, 300.0]), np.array([200.0, 500.0])) is None
    assert solve(u, g, np.array([0.0, 100.0]), np.array([200.0, 500.0])).value == pytest.approx(200.0)


def test_scale_does_not_matter():
    u, g = _problem(200, 2, 3)
    plain = solve(u, g, np.zeros(2), np.zeros(2))
    tiny = solve(u * 1e-6, g * 1e5, np.zeros(2), np.zeros(2))
    assert tiny.multipliers * 1e11 == pytest.approx(plain.multipliers, rel=1e-6)


@pytest.mark.parametrize("seed", range(20))
def test_one_gap_with_ties_and_bounds_on_either_side(seed: int):
    """Whole numbers, so that many rows cost the same or add nothing; the solver knows nothing of the order of rows."""
    rng = np.random.default_rng(seed)
    u, g = rng.integers(-3, 4, 40).astype(float), rng.integers(-2, 3, (1, 40)).astype(float)
    reach = np.minimum(g, 0).sum(), np.maximum(g, 0).sum()
    for low, high in ((0.0, 0.0), (2.5, 4.0), (-6.0, -3.25), (reach[0], reach[0]), (reach[1], reach[1] + 5)):
        whole = linprog(-u, A_ub=np.vstack([g, -g]), b_ub=[high, -low], bounds=(0, 1), method="highs")
        found = solve(u, g, np.array([low]), np.array([high]))
        assert found is not None
        assert found.value == pytest.approx(-whole.fun, abs=1e-9)
        assert low - 1e-9 <= (g @ found.decisions)[0] <= high + 1e-9
        assert _dual(found.multipliers, u, g, np.array([low]), np.array([high])) == pytest.approx(-whole.fun, abs=1e-9)
        assert ((found.decisions > 0) & (found.decisions < 1)).sum() <= 1
    assert solve(u, g, np.array([reach[1] + 1]), np.array([reach[1] + 2])) is None
    assert solve(u, g, np.array([reach[0] - 2]), np.array([reach[0] - 1])) is None
