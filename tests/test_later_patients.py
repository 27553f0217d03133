"""Later patients: `data.date` and `repair.test_after` hold out patients by their first visit, and every outcome says whether it did."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import equipoise as eq
from equipoise.comparison.findings import changes_by_period
from equipoise.data import Columns, FeatureTable, read_scores
from equipoise.measures import AuditSpec, PairedDecisions
from support.command import Ran, ran

ROLES = {"label": "dx", "score": "p", "group": "sex", "reference": "M", "patient": "pat"}
FLAGS = [flag for role, name in ROLES.items() for flag in (f"--{role}", name)]
DATED = ["--set", "data.date=visit"]


def visits(rows: int = 1600, drift: float = 0.0, seed: int = 0) -> pd.DataFrame:
    """Rows of patients with one or two visits in 2024 and 2025; women's scores are lower, and all rise by `drift` from July 2025 on."""
    rng = np.random.default_rng(seed)
    patient = rng.integers(0, rows * 2 // 3, rows)
    day = np.clip(rng.integers(0, 730, patient.max() + 1)[patient] + rng.integers(0, 120, rows) * (rng.random(rows) < 0.3), 0, 729)
    sex, dx = rng.choice(["F", "M"], patient.max() + 1)[patient], (rng.random(rows) < 0.4).astype(int)
    z = 2.0 * dx - 1.0 + rng.normal(0, 1, rows) - 0.9 * (sex == "F") + drift * (day > 546)
    when = (pd.Timestamp("2024-01-01") + pd.to_timedelta(day, unit="D")).strftime("%Y-%m-%d")
    return pd.DataFrame({"pat": [f"{k:05d}" for k in patient], "visit": when, "sex": sex, "dx": dx, "p": 1 / (1 + np.exp(-z))})


@pytest.mark.parametrize(
    ("column", "days"),
    [
        (["2026-11-16", "2026-11-16 08:30:00", " 20261116 "], ["2026-11-16"] * 3),
        ([20261116, 20250101], ["2026-11-16", "2025-01-01"]),
        (["2026", "2026-07"], ["2026-01-01", "2026-07-01"]),
        (pd.to_datetime(["2026-11-16T08:30", "1999-12-31T00:00"]), ["2026-11-16", "1999-12-31"]),
        (pd.to_datetime(["2026-11-16T23:30+02:00"]), ["2026-11-16"]),
    ],
)
def test_dates_are_read_as_they_are_written(column, days):
    frame = visits(len(days) * 8).assign(visit=list(pd.Series(column)) * 8)
    assert eq.Scores.from_frame(frame, date="visit", **ROLES).dates.astype(str).tolist() == days * 8


@pytest.mark.parametrize("wrong", ["11/12/2026", "2026-13-01", "2026-02-30", "16.11.2026", "soon", None, ""])
def test_a_date_that_cannot_be_read_is_an_error_that_names_the_row(wrong):
    frame = visits(40)
    frame.loc[7, "visit"] = wrong
    with pytest.raises(eq.BadInput, match=r"'visit': 1 of 40 rows .* row 8 "):
        eq.Scores.from_frame(frame, date="visit", **ROLES)


def test_a_date_is_no_input_and_survives_every_way_to_rows(tmp_path: Path):
    frame = visits(400)
    cohort = eq.Cohort.from_frame(frame, date="visit", **{k: v for k, v in ROLES.items() if k != "score"})
    assert isinstance(cohort.source, FeatureTable)
    assert list(cohort.source.frame.columns) == ["p"]
    frame.to_csv(tmp_path / "visits.csv", index=False)
    read = read_scores(tmp_path / "visits.csv", Columns(date="visit", **ROLES))["dx"]
    arrays = eq.Scores.from_arrays(frame["dx"], frame["p"], frame["sex"], dates=frame["visit"])
    for rows in (cohort, read, arrays, eq.Scores.of(cohort, frame["p"])):
        assert rows.dates.astype(str).tolist() == frame["visit"].tolist()
    assert read.take([3, 1]).dates.astype(str).tolist() == frame["visit"][[3, 1]].tolist()


@pytest.mark.parametrize("patients", [True, False])
def test_later_patients_are_those_first_seen_on_the_day_or_after_it(patients, caplog: pytest.LogCaptureFixture):
    frame = visits()
    roles = ROLES if patients else {k: v for k, v in ROLES.items() if k != "patient"}
    repair, test = eq.Scores.from_frame(frame, date="visit", **roles).hold_out(test_after="2025-06-01")
    first = frame.groupby("pat")["visit"].transform("min") if patients else frame["visit"]
    assert sorted(test.ids) == frame.index[first >= "2025-06-01"].tolist()
    assert sorted(repair.ids) == frame.index[frame["visit"] < "2025-06-01"].tolist()  # returning patients without their later rows
    returning = frame[(first < "2025-06-01") & (frame["visit"] >= "2025-06-01")]["pat"].nunique()
    assert (f"{returning} patients were seen before 2025-06-01 and again" in caplog.text) == patients
    assert returning > 10 or not patients


def test_split_tests_on_later_patients_and_divides_the_others():
    cohort = eq.Cohort.from_frame(visits(), date="visit", **{k: v for k, v in ROLES.items() if k != "score"})
    train, valid, test = eq.split(cohort, seed=3, fractions=(0.6, 0.2, 0.2), test_after="2025-06-01")
    assert max(train.dates.max(), valid.dates.max()) < np.datetime64("2025-06-01") <= test.dates.min()
    assert set(train.patients) & set(valid.patients) == set(test.patients) & set(train.patients) == set()
    assert len(train) / len(valid) == pytest.approx(3, rel=0.02)


@pytest.mark.parametrize(
    ("day", "fact"),
    [
        ("2030-01-01", "2025-12-3"),
        ("2020-01-01", "2024-01-0"),
        ("tomorrow", "'tomorrow'"),
        (20250601, "'20250601'"),
        ("2025-02-30", "02-30"),
    ],
)
def test_a_day_that_divides_nothing_is_an_error(day, fact):
    with pytest.raises(eq.BadInput, match=fact):
        eq.Scores.from_frame(visits(), date="visit", **ROLES).hold_out(test_after=day)


def test_without_dates_nobody_is_later():
    with pytest.raises(eq.BadInput, match="date="):
        eq.Scores.from_frame(visits(), **ROLES).hold_out(test_after="2025-06-01")


@pytest.mark.parametrize("later", [True, False])
def test_an_outcome_says_whether_it_was_tested_on_later_patients(later):
    scores = eq.Scores.from_frame(visits(), date="visit", **ROLES)
    repair, test = scores.hold_out(**({"test_after": "2025-06-01"} if later else {"fraction": 0.4}))
    result = eq.debias(repair, method="group-thresholds", threshold=0.5)
    compared = eq.compare({"original": 0.5, "repaired": result}, test)
    assert compared.judgement.later == later
    assert result.only.judgement.later is False  # cross-fitted, on patients of the same time
    assert len(compared.found.periods.periods) == (2 if later else 3)


def command(folder: Path, *options: str, frame: pd.DataFrame | None = None) -> Ran:
    (visits(3200, drift=3.0) if frame is None else frame).to_csv(folder / "visits.csv", index=False)
    table = str(folder / "visits.csv")
    return ran(
        "debias",
        table,
        *FLAGS,
        "--threshold",
        "0.5",
        "--method",
        "group-thresholds",
        "--allow-worse",
        "--out",
        str(folder / "out"),
        *options,
    )


def test_a_repair_is_tested_on_later_patients_everywhere_it_is_told(tmp_path: Path):
    code, out, _ = command(tmp_path, *DATED, "--test-after", "2025-01-01")
    audit = json.loads((tmp_path / "out" / "audit.json").read_text())
    assert (code, audit["judgement"]["later"]) == (0, True)
    pages = [out, *((tmp_path / "out" / name).read_text() for name in ("report.html", "card.md", "README.txt"))]
    assert all("tested on later patients" in " ".join(page.split()) and "not tested on later" not in page for page in pages)
    limits = json.loads((tmp_path / "out" / "run.json").read_text())["provenance"]["limits"]
    assert any("2025-01-01" in limit for limit in limits)
    periods = audit["periods"]
    assert sum(period["patients"] for period in periods["periods"]) == audit["after"]["patients"]
    assert periods["p_value"] < 0.01  # scores rose in July, so that another threshold changes less


def test_without_a_day_it_is_not_tested_on_later_patients(tmp_path: Path):
    code, out, _ = command(tmp_path)
    assert (code, "not tested on later patients" in " ".join(out.split())) == (0, True)


def test_several_labels_have_one_day(tmp_path: Path):
    frame = visits().assign(dx2=lambda rows: rows["dx"].where(rows.index % 3 > 0), p2=lambda rows: rows["p"] ** 2)
    code, _, err = command(tmp_path, "--label", "dx2", "--score", "p2", *DATED, "--test-after", "2025-06-01", frame=frame)
    found = [json.loads((tmp_path / "out" / label / "audit.json").read_text()) for label in ("dx", "dx2")]
    assert (code, [each["judgement"]["later"] for each in found]) == (0, [True, True]), err


@pytest.mark.parametrize(
    ("options", "fact"),
    [
        (["--test-after", "2025-06-01"], "data.date"),
        ([*DATED, "--test-after", "June"], "'June'"),
        (["--set", "data.date=day", "--test-after", "2025-06-01"], "no column 'day'"),
        ([*DATED, "--test-after", "2025-06-01", "--set", "repair.test_fraction=0.4"], "test_fraction"),
        ([*DATED, "--test-after", "2031-06-01"], "on or after 2031-06-01"),
    ],
)
def test_a_wrong_day_is_one_clear_error(tmp_path: Path, options, fact):
    code, _, err = command(tmp_path, *options)
    assert (code, fact in " ".join(err.split())) == (2, True), err


def test_the_heterogeneity_test_is_cochrans_and_holds_its_level():
    """With the same change in all periods, the p-value is below 0.05 in about 5 of 100 samples."""
    rng, p_values = np.random.default_rng(5), []
    for _ in range(200):
        n = 800
        y, group, day = rng.integers(0, 2, n), rng.choice(["F", "M"], n), rng.integers(0, 365, n)
        before = (rng.random(n) < 0.3 + 0.4 * y).astype(float)
        after = np.where((group == "F") & (rng.random(n) < 0.3), 1.0, before)
        rows = eq.Scores.from_arrays(y, np.full(n, 0.5), group, reference="M", dates=np.datetime64("2025-01-01") + day)
        p_values.append(changes_by_period(PairedDecisions(rows, (before, after), AuditSpec()), "eod", "F").p_value)
    assert 0.005 < np.mean(np.array(p_values) < 0.05) < 0.10
