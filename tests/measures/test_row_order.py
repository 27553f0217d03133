"""The limits of an audit do not depend on the order of the rows, nor on whether they are held in memory."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import equipoise as eq
from equipoise.data import scans
from support.command import ran

COLUMNS = {"label": "y", "score": "p", "group": "sex", "reference": "M", "patient": "patient", "weight": "w"}
MEASURES = ("aod", "tpr-fpr", "selection-tpr")
ENDS = ("value", "low", "high", "simultaneous_low", "simultaneous_high")


def _frame(kind: str) -> pd.DataFrame:
    """Rows of 40 patients with weights, in which a rate of the women is 0 or 1."""
    rng = np.random.default_rng(3)
    patient = rng.integers(0, 40, 120)
    sex, y, p = np.array(["M", "F"])[patient % 2], rng.integers(0, 2, 120), rng.random(120)
    women = {
        "every finding is flagged": np.where(y == 1, 0.9, p),
        "no finding is flagged": np.where(y == 1, 0.1, p),
        "all women are flagged": np.full(120, 0.9),
        "all decisions are right": np.where(y == 1, 0.9, 0.1),
    }[kind]
    p = np.where(sex == "F", women, p)
    return pd.DataFrame({"y": y, "p": p, "sex": sex, "patient": patient.astype(str), "w": rng.uniform(0.2, 3.0, 120)})


KINDS = ("every finding is flagged", "no finding is flagged", "all women are flagged", "all decisions are right")


def _limits(frame: pd.DataFrame) -> np.ndarray:
    found = eq.audit(eq.Scores.from_frame(frame, **COLUMNS), threshold=0.5, measures=MEASURES)
    return found.gaps.set_index("measure").loc[list(MEASURES), list(ENDS)].to_numpy(float)


@pytest.mark.parametrize("kind", KINDS)
def test_orders_of_the_same_rows_have_the_same_limits(kind: str) -> None:
    frame = _frame(kind)
    first = _limits(frame)
    for seed in range(39 if kind == KINDS[0] else 4):
        np.testing.assert_allclose(_limits(frame.sample(frac=1, random_state=seed)), first, atol=1e-7)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_in_memory_and_in_parts_have_the_same_limits(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frame, folder = _frame(kind), tmp_path / "parts"
    folder.mkdir()
    for k in range(3):
        frame.iloc[k::3].to_parquet(folder / f"{k}.parquet")
    monkeypatch.setattr(scans, "ROWS_HELD", 30)
    roles = [word for name, column in COLUMNS.items() for word in ("--set", f"data.{name}={column}")]
    done = ran("audit", folder, *roles, "--threshold", 0.5, *(word for m in MEASURES for word in ("--measure", m)), "--json")
    assert done.code == 0, done.err
    gaps = {row["measure"]: [row[end] for end in ENDS] for row in json.loads(done.out)["gaps"]}
    for seed in (3, 5):
        np.testing.assert_allclose([gaps[name] for name in MEASURES], _limits(frame.sample(frac=1, random_state=seed)), atol=1e-7)
