"""Pooled folds: estimates compared with a direct computation, intervals with patients resampled one by one, and whole studies."""

from io import StringIO

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from equipoise.measures import largest_gap_p_value, p_values
from equipoise.studies import make_plan, open_study, read_rows, run_study
from equipoise.studies.summary import pooled, read_pooled
from equipoise.studies.tables import pooled_tables
from support.facts import says

PATIENTS, ROWS = 60, 300


def _rows(seed: int = 0, repeats: int = 2) -> tuple[pd.DataFrame, list[pd.DataFrame]]:
    """Rows of a study of two methods, and the same test rows as plain frames, one per (method, repeat)."""
    rng = np.random.default_rng(seed)
    patient = np.sort(rng.integers(0, PATIENTS, ROWS))
    group, y = rng.integers(0, 2, PATIENTS)[patient], rng.integers(0, 2, ROWS)
    lines, plain = [], []
    for method in ("standard", "other"):
        for repeat in range(repeats):
            fold = np.random.default_rng(repeat).permutation(PATIENTS)[patient] % 5
            f = (rng.random(ROWS) < 0.3 + 0.3 * y + 0.2 * group * (method == "standard")).astype(float)
            plain.append(pd.DataFrame({"method": method, "patient": patient, "group": group, "y": y, "f": f}))
            for k in range(5):
                here = fold == k
                values = {"test_cell": (2 * group + y)[here], "test_decision": f[here], "test_patient": 10**15 + patient[here]}
                common = {"data": "d", "measure": "eod", "performance_measure": "balanced_accuracy", "seed": 5 * repeat + k}
                lines.append({**common, "method": method, **values})
    return pd.DataFrame(lines), plain


def _eod(frame: pd.DataFrame) -> float:
    rate = frame[frame["y"] == 1].groupby("group")["f"].mean()
    return float(rate[1] - rate[0])


def _ba(frame: pd.DataFrame) -> float:
    rate = frame.groupby("y")["f"].mean()
    return float((rate[1] + 1 - rate[0]) / 2)


def test_estimates_are_means_over_repeats_of_all_rows() -> None:
    rows, plain = _rows()
    found = pooled(rows, draws=50).set_index("method")
    for method in ("standard", "other"):
        mine = [frame for frame in plain if frame["method"].iloc[0] == method]
        assert found.loc[method, "gap"] == pytest.approx(np.mean([_eod(frame) for frame in mine]))
        assert found.loc[method, "performance"] == pytest.approx(np.mean([_ba(frame) for frame in mine]))
        assert found.loc[method, "mean_abs"] == pytest.approx(np.mean([abs(_eod(frame)) for frame in mine]))
        each = [
            largest_gap_p_value(
                p_values(frame["f"], frame["y"], frame["group"], ("a", "b"), frame["patient"].to_numpy(object), ["eod"])["eod"]
            )
            for frame in mine
        ]
        assert found.loc[method, "p_value"] == pytest.approx(min(1, 2 * np.median(each)), abs=0.1)  # other draws: rows are in another order
    assert found["repeats"].tolist() == [2, 2]
    assert found["rows"].tolist() == [ROWS, ROWS]
    assert found.loc["other", "gap_change"] == pytest.approx(found.loc["other", "gap"] - found.loc["standard", "gap"])
    assert np.isnan(found.loc["standard", "gap_change"])


def test_intervals_equal_those_of_patients_resampled_one_by_one() -> None:
    rows, plain = _rows()
    found = pooled(rows, draws=2000).set_index("method").loc["other"]
    rng = np.random.default_rng(1)
    mine = [dict(iter(frame.groupby("patient"))) for frame in plain if frame["method"].iloc[0] == "other"]
    everyone = sorted(set().union(*mine))
    gaps = []
    for _ in range(400):
        drawn = rng.choice(everyone, len(everyone))
        gaps.append(np.mean([_eod(pd.concat([repeat[p] for p in drawn])) for repeat in mine]))
    low, high = np.quantile(gaps, [0.025, 0.975])
    assert found["gap_low"] == pytest.approx(low, abs=0.025)
    assert found["gap_high"] == pytest.approx(high, abs=0.025)


def test_incomplete_repeats_are_left_out() -> None:
    rows, _ = _rows()
    found = pooled(rows[~((rows["method"] == "other") & (rows["seed"] == 7))], draws=20).set_index("method")
    assert found["repeats"].tolist() == [2, 1]
    assert np.isnan(found.loc["other", "gap_change"])  # no pair of the same repeats
    assert pooled(rows[rows["seed"] != 3].query("seed < 5"), draws=20).empty


def test_a_study_by_folds_stores_decisions_and_no_patient_id(tmp_path) -> None:
    rng = np.random.default_rng(0)
    n = 400
    patient, sex = rng.integers(0, 150, n), rng.choice(["F", "M"], 150)
    y = rng.integers(0, 2, n)
    frame = pd.DataFrame(
        {"x": y + rng.normal(size=n), "z": rng.normal(size=n), "sex": sex[patient], "pid": [f"NAME{p}" for p in patient], "y": y}
    )
    frame.to_csv(tmp_path / "data.csv", index=False)
    entry = {"file": "data.csv", "name": "own", "label": "y", "group": "sex", "reference": "M", "patient": "pid"}
    raw = {
        "name": "folds",
        "data": [entry],
        "methods": [{"method": "standard"}, {"method": "group-thresholds"}],
        "measures": ["eod"],
        "splits": 5,
        "protocol": "folds",
        "training": {"epochs": 2},
    }
    plan = make_plan(raw, folder=tmp_path)
    run_study(plan, tmp_path / "out", runner="serial")
    study = open_study(tmp_path / "out")
    found = read_pooled(study).set_index("method")
    assert found["rows"].tolist() == [n, n]
    assert found["patients"].tolist() == [len(set(patient))] * 2
    assert "test_patient" not in read_rows(study)
    assert b"NAME" not in b"".join(path.read_bytes() for path in (tmp_path / "out" / "rows").glob("*.parquet"))


def test_show_prints_the_pooled_folds() -> None:
    rows, _ = _rows()
    plan = make_plan(
        {"name": "s", "data": ["compas"], "methods": [{"method": "standard"}, {"method": "random", "name": "other"}], "protocol": "folds"}
    )
    frame = pooled(rows.assign(data="compas"), draws=20)
    console = Console(width=160, record=True, file=StringIO())
    console.print(pooled_tables(plan, frame))
    text = console.export_text()
    assert says(text, "60 patients", "300 rows", "2 repeats")
    line = next(line for line in text.splitlines() if line.strip().startswith("other"))
    gap = frame.set_index("method").loc["other", "gap"]
    assert f"{gap:+.3f} [" in line
    console.print(pooled_tables(plan, frame.iloc[:0]))
    assert "pooled folds" in console.export_text()
