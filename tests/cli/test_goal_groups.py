"""`goal.groups` in a case file: the dry run, the terminal, the bundle and its decisions."""

import json

import numpy as np
import pandas as pd

import equipoise as eq
from support.facts import says


def test_a_case_shows_and_keeps_the_groups_that_count(run, tmp_path):
    rng, n = np.random.default_rng(1), 6000
    sex, y = rng.choice(["M", "F", "X"], n, p=[0.5, 0.48, 0.02]), rng.integers(0, 5, n) < 2
    p = 1 / (1 + np.exp(-(1.6 * y - 0.8 - 0.9 * (sex == "F") - 2.5 * (sex == "X") + rng.normal(size=n))))
    frame = pd.DataFrame({"y": y.astype(int), "p": p.round(5), "sex": sex})
    frame.to_csv(tmp_path / "scores.csv", index=False)
    (tmp_path / "case.toml").write_text(
        '[data]\ntable = "scores.csv"\nlabel = "y"\nscore = "p"\ngroup = "sex"\nreference = "M"\n[model]\nthreshold = 0.5\n'
        '[goal]\ngroups = ["M", "F"]\n'
    )
    dry = run("debias", "case.toml", "--dry-run", "--json")
    assert dry.code == 0, dry.err
    assert "groups M, F" in json.loads(dry.out)["goal"]
    ran = run("debias", "case.toml", "--out", "out")
    assert ran.code == 0, ran.err
    assert says(ran.out, "between M and F", "X")  # in the goal, and in the table of errors
    audits = json.loads((tmp_path / "out" / "audit.json").read_text())
    assert audits["goal"]["groups"] == ["M", "F"]
    assert [gap["group"] for gap in audits["judgement"]["gaps"]] == ["F"]
    decided = eq.Bundle.load(tmp_path / "out").decide(frame.drop(columns="y"))
    x = frame["sex"] == "X"
    assert (decided["decision"][x] == (frame["p"] >= 0.5)[x]).all()
