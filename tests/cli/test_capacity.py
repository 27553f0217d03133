"""`goal.capacity` on the command line: the dry run, the terminal, the bundle, and its decisions on new rows."""

import json

import numpy as np
import pandas as pd

import equipoise as eq
from support.facts import says

SCORES = ("debias", "scores.csv", "--score", "p", "--label", "y", "--group", "sex", "--reference", "M", "--set", "goal.capacity=0.2")


def test_a_case_with_a_capacity(run, tmp_path):
    rng, n = np.random.default_rng(3), 8000
    sex, y = rng.choice(["M", "F"], n, p=[0.6, 0.4]), (rng.random(n) < 0.2).astype(int)
    p = 1 / (1 + np.exp(-(1.8 * y - 2 - 1.0 * (sex == "F") + rng.normal(size=n))))
    frame = pd.DataFrame({"y": y, "p": p.round(6), "sex": sex})
    frame.to_csv(tmp_path / "scores.csv", index=False)
    dry = run(*SCORES, "--dry-run", "--json")
    assert dry.code == 0, dry.err
    assert "0.2 flagged" in json.loads(dry.out)["goal"]
    ran = run(*SCORES, "--out", "out")
    assert ran.code == 0, ran.err
    assert says(" ".join(ran.out.split()), "20.0% of patients flagged")
    assert "20.0% of patients flagged" in (tmp_path / "out" / "report.html").read_text()
    decided = eq.Bundle.load(tmp_path / "out").decide(frame.drop(columns="y"))
    assert abs(decided["decision"].mean() - 0.2) < 0.012
    refused = run(*SCORES, "--threshold", "0.5", "--out", "other")
    assert refused.code == 2
    assert says(refused.err, "capacity", "threshold")
