"""A history of audits: written whole, one period once, in the order of time, and the same gaps as one audit of all rows."""

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

import equipoise as eq
from equipoise.measures import Monitoring, returning_products
from support.facts import facts

MEASURES = ["eod", "spd"]


def rows(seed: int, count: int = 120, gap: float = 0.0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    found = pd.DataFrame(
        {"y": rng.integers(0, 2, count), "sex": rng.choice(["F", "M"], count), "pid": [f"{seed}-{k // 2}" for k in range(count)]}
    )
    return found.assign(p=np.clip(0.3 + 0.4 * found.y - gap * ((found.sex == "F") & (found.y == 1)) + rng.normal(0, 0.2, count), 0, 1))


def audit(table: pd.DataFrame, **options: object) -> eq.Audit:
    scores = eq.Scores.from_frame(table, label="y", score="p", group="sex", reference="M", patient="pid")
    return eq.audit(scores, **{"measures": MEASURES, "thresholds": "0.2:0.3"} | options)


@pytest.fixture(scope="module")
def months() -> dict[str, pd.DataFrame]:
    return {f"2026-{month:02}": rows(month) for month in (1, 2, 3)}


def stratified(months: dict[str, pd.DataFrame], label: int | None) -> float:
    """The gap between women and men with the same weights of the months in both: n1 n0 / (n1 + n0)."""
    gaps, weights = [], []
    for table in months.values():
        sides = [table[(table.sex == sex) & ((table.y == label) if label is not None else True)].p >= 0.5 for sex in "FM"]
        gaps.append(sides[0].mean() - sides[1].mean())
        weights.append(len(sides[0]) * len(sides[1]) / (len(sides[0]) + len(sides[1])))
    return float(np.average(gaps, weights=weights))


def test_a_history_survives_the_file_and_stratifies_by_period(months, tmp_path):
    path = tmp_path / "history.parquet"
    for period, table in months.items():
        eq.history(path).append(audit(table), period)
    found = eq.history(path)
    so_far = found.monitor(MEASURES).gaps.set_index("measure")["value"]
    assert list(found.periods) == list(months)
    assert [so_far[name] for name in MEASURES] == pytest.approx([stratified(months, 1), stratified(months, None)])
    in_memory = eq.history({period: audit(table) for period, table in months.items()}).monitor(MEASURES)
    pd.testing.assert_frame_equal(in_memory.frame, found.monitor(MEASURES).frame)
    own = found.monitor(MEASURES).frame.query("measure == 'eod' and period == '2026-02'").iloc[0]
    alone = audit(months["2026-02"])["eod"]
    assert (own["value"], own["low"], own["high"]) == pytest.approx((alone.value, alone.low, alone.high))


def test_the_file_holds_no_ids(months, tmp_path):
    path = tmp_path / "history.parquet"
    eq.history(path).append(audit(months["2026-01"]), "2026-01")
    table = pq.read_table(path).to_pandas()
    assert "1-0" not in {str(value) for column in table for value in table[column]}


@pytest.mark.parametrize(
    ("period", "expected"),
    [
        ("2026-02", ("2026-02", "--set", "history.replace=true")),
        ("2026-01", ("2026-01", "2026-03")),
        ("2026", ("2026", "2026-03")),
        ("2026-13", ("2026-13",)),
    ],
)
def test_a_period_is_there_once_and_in_order(months, period, expected):
    known = eq.history({name: audit(table) for name, table in list(months.items())[1:]})
    with pytest.raises(eq.BadInput, match=facts(*expected)):
        known.append(audit(rows(9)), period)


def test_replacing_a_period_keeps_the_others(months):
    known = eq.history({name: audit(table) for name, table in months.items()})
    found = known.append(audit(rows(9, 60)), "2026-02", replace=True)
    assert [each[""].rows for each in found.periods.values()] == [120, 60, 120]


def test_what_does_not_continue_the_history_is_refused(months):
    known = eq.history({"2026-01": audit(months["2026-01"])})
    other = rows(9)
    renamed = other.assign(sex=other.sex.replace({"F": "female"}))
    by_f = eq.Scores.from_frame(other, label="y", score="p", group="sex", reference="F", patient="pid")
    for found, expected in [
        (audit(other, threshold=0.4), (0.4,)),
        (audit(renamed), ("female", "history.new_groups")),
        (eq.audit(by_f, measures=MEASURES, thresholds="0.2:0.3"), ("references", "F", "M")),
        (audit(other, level=0.9), (0.9, 0.95)),
        (audit(months["2026-01"]), ("same", 120, "2026-01")),
    ]:
        with pytest.raises(eq.BadInput, match=facts(*expected)):
            known.append(found, "2026-02")
    assert set(known.append(audit(renamed), "2026-02", new_groups=["female"]).monitor(["eod"]).gaps["group"]) == {"F", "female"}


def test_an_interrupted_write_leaves_the_history_as_it_was(months, tmp_path, monkeypatch):
    path = tmp_path / "history.parquet"
    eq.history(path).append(audit(months["2026-01"]), "2026-01")
    before = path.read_bytes()

    def broken(*_: object) -> None:
        raise OSError(28, "no space left")

    monkeypatch.setattr(pq, "write_table", broken)
    with pytest.raises(OSError, match="space"):
        eq.history(path).append(audit(months["2026-02"]), "2026-02")
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_periods_that_others_added_meanwhile_are_kept(months, tmp_path):
    path = tmp_path / "new" / "history.parquet"
    mine, other = eq.history(path), eq.history(path)
    other.append(audit(months["2026-01"]), "2026-01")
    assert list(mine.append(audit(months["2026-02"]), "2026-02").periods) == ["2026-01", "2026-02"]
    with pytest.raises(eq.BadInput, match=facts("2026-02", "--set", "history.replace=true")):
        other.append(audit(months["2026-03"]), "2026-02")
    assert list(eq.history(path).periods) == ["2026-01", "2026-02"]


def test_the_scale_of_weights_in_a_period_does_not_matter(months):
    def weighted(table: pd.DataFrame, scale: float) -> eq.Audit:
        table = table.assign(w=scale * np.random.default_rng(0).uniform(0.5, 2.0, len(table)))
        scores = eq.Scores.from_frame(table, label="y", score="p", group="sex", reference="M", patient="pid", weight="w")
        return eq.audit(scores, measures=["eod"], thresholds="0.2:0.3")

    found = [
        eq.history({p: weighted(t, scale if p == "2026-02" else 1.0) for p, t in months.items()}).monitor(["eod"])
        for scale in (1.0, 1000.0)
    ]
    pd.testing.assert_frame_equal(found[0].frame, found[1].frame)


def test_other_files_and_no_periods_are_refused(tmp_path):
    pd.DataFrame({"a": [1]}).to_parquet(tmp_path / "table.parquet")
    (tmp_path / "text.parquet").write_text("no")
    for name in ("table.parquet", "text.parquet"):
        with pytest.raises(eq.BadInput, match=facts(name)):
            eq.history(tmp_path / name)
    with pytest.raises(eq.BadInput, match=facts("new.parquet", "--append")):
        eq.history(tmp_path / "new.parquet").monitor()


def test_a_change_is_an_alarm_and_since_starts_again():
    table = {f"2026-{month:02}": audit(rows(month, 800, gap=0.0 if month < 5 else 0.3)) for month in range(1, 8)}
    known = eq.history(table)
    found = known.monitor(["eod"])
    gap = found.gaps.iloc[0]
    assert gap["changed"]
    assert (gap["since"], found.alarms) == ("2026-05", 1)
    assert gap["after"] < -0.2 < gap["before"]
    later = known.monitor(["eod"], since="2026-05")
    assert len(later.periods) == 3
    assert not later.gaps.iloc[0]["changed"]
    with pytest.raises(eq.BadInput, match=facts("2026-09")):
        known.monitor(since="2026-09")


def test_more_gaps_need_more_evidence():
    known = eq.history({f"2026-{month:02}": audit(rows(month)) for month in (1, 2, 3)})
    one, more = known.monitor(["eod"]), known.monitor(["eod", "fnr_gap", "spd", "fpr_gap"])
    assert (one.comparisons, more.comparisons) == (1, 3)
    width = [float(each.gaps.query("measure == 'eod'").eval("high - low").iloc[0]) for each in (one, more)]
    assert width[0] < width[1]


def positives_end(month: int) -> pd.DataFrame:
    """Rows of a month; almost no women with the finding are recorded from May on."""
    table = rows(month, 800)
    sick = table[(table.sex == "F") & (table.y == 1)]
    return table if month < 5 else table.drop(index=sick.index[3:])


def test_a_gap_that_is_no_longer_measured_is_not_watched():
    known = eq.history({f"2026-{month:02}": audit(positives_end(month)) for month in range(1, 8)})
    found = known.monitor(["eod", "fpr_gap"]).gaps.set_index("measure")
    assert found["unwatched"].tolist() == [True, False]
    assert found["measured_in"].tolist() == ["2026-04", "2026-07"]


def cohort_followed(months: int, drift: float = 0.0) -> dict[str, pd.DataFrame]:
    """400 patients of whom three quarters return each month, with a rate of their own; women's sensitivity falls by `drift` at the end."""
    rng, found, known = np.random.default_rng(5), {}, pd.DataFrame()
    for month in range(1, months + 1):
        count = 400 if month == 1 else 100
        new = pd.DataFrame({"sex": rng.choice(["F", "M"], count), "y": 1, "chance": rng.beta(2, 0.5, count)})
        new["pid"] = [f"{month}-{k}" for k in range(len(new))]
        table = pd.concat([known.sample(300, random_state=month) if month > 1 else known, new], ignore_index=True)
        known = pd.concat([known, new], ignore_index=True)
        chance = table.chance - (drift if month > months - 3 else 0.0) * (table.sex == "F")
        well = pd.DataFrame({"sex": ["F", "M"] * 20, "y": 0, "p": 0.0, "pid": [f"well-{month}-{k}" for k in range(40)]})
        found[f"2026-{month:02}"] = pd.concat([table.assign(p=(rng.random(len(table)) < chance).astype(float)), well], ignore_index=True)
    return found


def followed(tables: dict[str, pd.DataFrame], *, identified: bool) -> Monitoring:
    known, past = eq.history({}), []
    for period, table in tables.items():
        own, sums = audit(table), None
        scores = dict.fromkeys(own.labels, eq.Scores.from_frame(table, label="y", score="p", group="sex", reference="M", patient="pid"))
        if identified and past:
            sums = returning_products(own, scores, past)
        known = known.append(own, period, returning=sums)
        past.append(scores)
    return known.monitor(["eod"])


def test_patients_who_return_are_clusters():
    """As an audit of all rows with a patient's visits as a cluster: wider than with as many patients, and the gap is that of all rows."""
    tables = cohort_followed(6)
    clusters, independent = (followed(tables, identified=identified).gaps.iloc[0] for identified in (True, False))
    assert clusters["value"] == independent["value"]
    width, narrow = (each["high"] - each["low"] for each in (clusters, independent))
    whole = audit(pd.concat(tables.values()))["eod"]
    apart = audit(pd.concat(tables.values()).assign(pid=range(sum(map(len, tables.values())))))["eod"]
    assert width / narrow == pytest.approx((whole.high - whole.low) / (apart.high - apart.low), rel=0.1)


def test_a_drift_among_patients_who_return_raises_the_alarm():
    found = followed(cohort_followed(9, drift=0.37), identified=True).gaps.iloc[0]
    assert found["changed"]
    assert found["since"] == "2026-07"
    assert not followed(cohort_followed(9), identified=True).gaps.iloc[0]["changed"]
