"""Rows are ranked by their logits, if these are given: the logistic function maps all logits above 37 to 1."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.special import expit
from sklearn.metrics import average_precision_score, roc_auc_score
from torch import nn

import equipoise as eq
from equipoise.data import scans
from equipoise.measures import streaming
from support.command import ran

COLUMNS = {"label": "y", "score": "x", "group": "sex", "reference": "M", "patient": "patient"}
RANKED = ("auroc", "sensitivity_at_specificity", "specificity_at_sensitivity")


def _frame(scale: float = 30.0) -> pd.DataFrame:
    """Rows whose logits are mostly too large for the logistic function; the order of both labels is the same for every scale."""
    rng = np.random.default_rng(0)
    patient = rng.integers(0, 500, 1200)
    y, sex = rng.integers(0, 2, 1200), np.array(["F", "M"])[patient % 2]
    x = scale * (2.0 + rng.normal(size=1200) + 1.5 * y)
    return pd.DataFrame({"y": y, "x": x, "sex": sex, "patient": patient.astype(str), "id": [f"row-{k}" for k in range(1200)]})


def _audit(frame: pd.DataFrame) -> "eq.Audit":
    return eq.audit(eq.Scores.from_frame(frame, **COLUMNS, logits=True), threshold=0.5)


def test_saturated_logits_are_ranked_as_scikit_learn_ranks_them() -> None:
    frame, found = _frame(), _audit(_frame())
    assert roc_auc_score(frame["y"], expit(frame["x"])) < roc_auc_score(frame["y"], frame["x"]) - 0.02  # ranks are lost in the scores
    assert found["auroc"].value == pytest.approx(roc_auc_score(frame["y"], frame["x"]), abs=1e-12)
    assert found["average_precision"].value == pytest.approx(average_precision_score(frame["y"], frame["x"]), abs=1e-12)
    for sex, rows in frame.groupby("sex"):
        assert found.groups.loc[sex, "auroc"] == pytest.approx(roc_auc_score(rows["y"], rows["x"]), abs=1e-12)


def test_ranks_do_not_depend_on_the_scale_of_the_logits() -> None:
    small, large = _audit(_frame(0.5)), _audit(_frame())
    for name in ("auroc", "average_precision"):
        for end in ("value", "low", "high"):
            assert getattr(large[name], end) == pytest.approx(getattr(small[name], end), abs=1e-12)
    for name in RANKED:
        columns = [name, f"{name}_low", f"{name}_high"]
        np.testing.assert_allclose(large.groups[columns], small.groups[columns], atol=1e-9)


def test_other_numbers_are_those_of_the_scores() -> None:
    logits, scores = _frame(1.0), _frame(1.0).assign(x=lambda f: expit(f["x"]))
    of_logits, of_scores = _audit(logits).to_dict(), eq.audit(eq.Scores.from_frame(scores, **COLUMNS), threshold=0.5).to_dict()
    assert json.dumps(of_logits) == json.dumps(of_scores)


@pytest.mark.parametrize("sampled", [10**6, 100], ids=["all rows sampled", "binned"])
def test_commands_in_memory_and_in_parts_agree(sampled: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frame, folder = _frame(), tmp_path / "parts"
    folder.mkdir()
    frame.to_csv(tmp_path / "scores.csv", index=False)
    for k in range(3):
        frame.iloc[k::3].to_parquet(folder / f"{k}.parquet")
    roles = [word for name, column in COLUMNS.items() for word in (f"--{name}", column)]
    monkeypatch.setattr(scans, "ROWS_HELD", 300)
    monkeypatch.setattr(streaming, "SAMPLED_ROWS", sampled)
    whole = _audit(frame)
    for file in (tmp_path / "scores.csv", folder):
        done = ran("audit", file, *roles, "--set", "data.logits=true", "--threshold", 0.5, "--json")
        assert done.code == 0, done.err
        document = json.loads(done.out)
        groups = {row["group"]: row["auroc"] for row in document["groups"]}
        assert groups["F"] == pytest.approx(whole.groups.loc["F", "auroc"], abs=1e-4)
        assert document["auroc"]["value"] == pytest.approx(whole["auroc"].value, abs=1e-4)


def test_two_models_are_compared_by_their_logits() -> None:
    small, large = (eq.Scores.from_frame(_frame(scale), **COLUMNS, id="id", logits=True) for scale in (0.5, 30.0))
    both = eq.compare({"small": small, "large": large.take(np.arange(len(large))[::-1])}, threshold=0.5, paired=True)
    auroc = roc_auc_score(_frame()["y"], _frame()["x"])
    row = both.changes.performance.set_index("measure").loc["auroc"]
    assert (row["first"], row["second"], row["value"]) == pytest.approx((auroc, auroc, 0.0), abs=1e-9)


def test_a_network_with_large_logits_is_ranked_by_them() -> None:
    frame = _frame()
    network = nn.Linear(1, 1)
    with torch.no_grad():
        network.weight.fill_(1.0)
        network.bias.zero_()
    cohort = eq.Cohort.from_frame(frame, label="y", group="sex", reference="M", patient="patient", id="id", features=["x"], scale=False)
    found = eq.audit(network, cohort, threshold=0.5)
    assert found["auroc"].value == pytest.approx(roc_auc_score(frame["y"], frame["x"].astype(np.float32)), abs=1e-12)
