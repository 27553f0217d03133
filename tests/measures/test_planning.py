"""How many patients show a gap: against simulated samples, the textbook formula, and the audit of as many patients."""

import json
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pytest

import equipoise as eq
from support.command import ran


def shown(first: np.ndarray, second: np.ndarray, n: float, m: float) -> np.ndarray:
    """Whether Newcombe's interval of the difference of two shares excludes zero; an implementation of its own."""
    z = NormalDist().inv_cdf(0.975)

    def wilson(p: np.ndarray, size: float) -> tuple[np.ndarray, np.ndarray]:
        middle, half = p + z**2 / (2 * size), z * np.sqrt(p * (1 - p) / size + z**2 / (4 * size**2))
        return (middle - half) / (1 + z**2 / size), (middle + half) / (1 + z**2 / size)

    (low1, high1), (low2, high2) = wilson(first, n), wilson(second, m)
    gap = second - first
    low, high = gap - np.hypot(second - low2, high1 - first), gap + np.hypot(high2 - second, first - low1)
    return (low > 0) | (high < 0)


@pytest.mark.parametrize(("gap", "sensitivity", "share"), [(0.1, 0.8, 0.5), (0.05, 0.8, 0.3), (0.08, 0.6, 0.1)])
def test_with_so_many_patients_four_of_five_samples_show_the_gap(gap: float, sensitivity: float, share: float) -> None:
    needed = eq.plan(gap=gap, sensitivity=sensitivity, share=share).patients
    rng, m = np.random.default_rng(0), round(needed * share)
    n = round(needed) - m
    power = [
        shown(rng.binomial(n, sensitivity, 40_000) / n, rng.binomial(m, sensitivity + way * gap, 40_000) / m, n, m).mean()
        for way in (-1, 1)
    ]
    assert 0.77 < min(power) < 0.84  # of the less favourable direction


def test_it_is_near_the_textbook_formula() -> None:
    z = NormalDist().inv_cdf(0.975) + NormalDist().inv_cdf(0.8)
    textbook = 2 * z**2 * (0.8 * 0.2 + 0.7 * 0.3) / 0.1**2  # two groups of the same size, without a correction
    assert textbook <= eq.plan(gap=0.1, sensitivity=0.8, share=0.5).patients < 1.05 * textbook


def test_alike_visits_rare_findings_and_a_held_out_set_need_more() -> None:
    base = {"gap": 0.05, "sensitivity": 0.8, "share": 0.3}
    one, rare = eq.plan(**base), eq.plan(**base, prevalence=0.1)
    assert 9.9 < rare.patients / one.patients < 10.1
    assert abs(one.repair - one.patients / 0.3) < 1
    same, apart = (eq.plan(**base, visits=2.0, correlation=r).patients for r in (1.0, 0.0))
    assert abs(same - one.patients) < 3
    assert abs(apart - one.patients / 2) < 0.02 * one.patients
    assert eq.plan(gap=0.3, sensitivity=0.8).patients < eq.plan(gap=0.2, sensitivity=0.8).patients


def test_from_an_audit_it_is_the_detectable_gap_of_as_many_patients() -> None:
    rng = np.random.default_rng(0)
    n = 4_000
    sex, sick = rng.choice(["F", "M"], n, p=[0.3, 0.7]), rng.integers(0, 2, n)
    score = np.where(rng.random(n) < 0.8, sick, 1 - sick) * 0.9
    audit = eq.audit(eq.Scores.from_arrays(sick, score, sex, reference="M", patients=[f"P{k // 2}" for k in range(n)]))
    detectable = float(audit.gaps.set_index("measure").loc["eod", "detectable"])
    found = eq.plan(audit, gap=detectable)
    patients = sum(len({k // 2 for k in np.flatnonzero(sex == group)}) for group in ("F", "M"))
    assert abs(found.patients / patients - 1) < 0.03
    assert found.groups["group"].tolist() == ["F"]


def test_the_command_its_page_and_its_json_agree_with_python(tmp_path: Path) -> None:
    assumed = ("--gap", 0.05, "--sensitivity", 0.8, "--share", 0.3, "--visits", 2.1)
    told = ran("plan", *assumed, "--report", tmp_path / "plan.html")
    needed = eq.plan(gap=0.05, sensitivity=0.8, share=0.3, visits=2.1).patients
    assert told.code == 0
    assert f"{needed:,.0f} patients with the finding" in told.out
    page = (tmp_path / "plan.html").read_text()
    assert f"{needed:,.0f}" in page
    assert "<svg" in page
    assert json.loads(ran("plan", *assumed, "--json").out)["groups"][0]["audit"] == needed
    assert ran("plan", "--gap", 1.5).code == 2


def test_a_case_file_gives_the_sensitivity_and_the_groups(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = [f"{rng.integers(0, 2)},{rng.random():.3f},{rng.choice(['F', 'M'])}" for _ in range(800)]
    (tmp_path / "t.csv").write_text("y,p,sex\n" + "\n".join(rows))
    (tmp_path / "case.toml").write_text('[data]\ntable = "t.csv"\nlabel = "y"\nscore = "p"\ngroup = "sex"\n[goal]\nmax_gap = 0.1\n')
    found = json.loads(ran("plan", tmp_path / "case.toml", "--json").out)
    assert found["settings"]["gap"] == 0.1
    assert found["groups"] == eq.plan(eq.Case.load(tmp_path / "case.toml").audit(), gap=0.1).to_dict()["groups"]
