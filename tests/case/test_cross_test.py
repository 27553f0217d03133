"""`repair.test = "cross"`: a case is repaired on all of its patients, and judged on all of them by nested cross-fitting."""

import numpy as np
import pandas as pd
import pytest

import equipoise as eq
from equipoise.cli import run


@pytest.fixture
def table(tmp_path):
    rng = np.random.default_rng(0)
    code, y = rng.integers(0, 2, 800), rng.random(800) < 0.35
    score = 1 / (1 + np.exp(1 - rng.normal(size=800) - np.where(y, 2.2 - 1.4 * code, 0.0)))
    frame = pd.DataFrame(
        {"sick": y.astype(int), "p": score, "sex": np.array(["M", "F"])[code], "patient": [f"p{k // 2}" for k in range(800)]}
    )
    frame.to_csv(path := tmp_path / "scores.csv", index=False)
    return path


def a_case(table, **repair) -> eq.Case:
    data = {"table": table, "label": "sick", "score": "p", "group": "sex", "reference": "M", "patient": "patient"}
    goal = {"max_rise": {"fpr": 0.4, "selection": 0.4}, "allow_worse": True}
    return eq.Case(data=data, model={"threshold": 0.5}, goal=goal, repair={"method": "group-thresholds", **repair})


def test_every_patient_is_in_the_repair_set_and_judged(table, tmp_path):
    repaired = a_case(table, test="cross").debias()
    (comparison,) = repaired.comparisons.values()
    assert len(comparison.original.test) == len(comparison.original.valid) == 800
    assert comparison.judgement.source == "nested"
    assert comparison.judgement.patients == 400
    chosen = comparison.result
    assert chosen.candidate.chosen > 0
    np.testing.assert_array_equal(chosen.decisions(), chosen.candidate.held_out.after)
    assert not np.array_equal(chosen.decisions(), chosen.candidate.rule.decide(chosen.test))  # the delivered rule is another one
    tpr = {group: after.value for group, (_, after) in comparison.found.rates["sex"]["tpr"].items()}  # the audit is of these decisions too
    rows = chosen.test
    for group, value in tpr.items():
        inside = (rows.groups == group) & (rows.y == 1)
        assert value == pytest.approx(chosen.decisions()[inside].mean())
    folder = tmp_path / "rule"
    repaired.save(folder)
    assert eq.Bundle.load(folder).rule == chosen.candidate.rule


def test_the_word_is_read_from_file_and_flag_and_a_file_of_that_name_is_a_file(table, tmp_path, capsys):
    (tmp_path / "case.toml").write_text(
        '[data]\ntable = "scores.csv"\nlabel = "sick"\nscore = "p"\ngroup = "sex"\n[repair]\ntest = "cross"\n'
    )
    assert eq.Case.load(tmp_path / "case.toml").repair.test == "cross"
    flags = ["--label", "sick", "--score", "p", "--group", "sex", "--patient", "patient", "--threshold", "0.5", "--method", "level-up"]
    assert run(["debias", str(table), *flags, "--test", "cross", "--out", str(tmp_path / "out")]) == 0
    assert "without them" in capsys.readouterr().out
    (tmp_path / "cross").write_text(table.read_text())
    assert eq.Case.load(tmp_path / "case.toml").repair.test == tmp_path / "cross"


def test_it_is_recommended_where_the_held_out_patients_show_too_little(table, tmp_path, capsys):
    few = pd.read_csv(table).sample(240, random_state=0).assign(patient=range(240))
    few.to_csv(tmp_path / "few.csv", index=False)
    flags = ["--label", "sick", "--score", "p", "--group", "sex", "--patient", "patient", "--threshold", "0.5", "--method", "level-up"]
    for name, recommended in (("few.csv", True), (table.name, False)):
        assert run(["debias", str(tmp_path / name), *flags, "--set", "repair.force=true", "--out", str(tmp_path / f"out-{name[:3]}")]) == 0
        shown = capsys.readouterr()
        assert ("--test cross" in shown.out + shown.err) == recommended
