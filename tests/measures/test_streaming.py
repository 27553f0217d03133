"""The audit of a table on disk agrees with that of the same table in memory, whether its rows are held or summed part by part."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import equipoise as eq
from equipoise.comparison import audit
from equipoise.data import Columns, Engine, Scores, read_scores, scan
from equipoise.data import scans as scans_module
from equipoise.data.engines import embedded
from equipoise.errors import BadInput, EmptyCell
from equipoise.measures import Audit, Ranking, score_measures, streaming
from support.facts import says

ROLES = {"label": "y", "score": "p", "group": ["sex", "race"], "patient": "patient"}
EXACT = ("value", "low", "high", "simultaneous_low", "simultaneous_high", "detectable", "patients", "few")
RATES = ("selection_rate", "tpr", "fpr", "tnr", "fnr", "ppv", "npv")
AUROC_ERROR = 2e-5  # of binned scores; of average precision 1e-4


def _frame(rows: int = 12_000) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    patient = rng.integers(0, rows // 3, rows)
    sex, y = np.array(["F", "M"])[patient % 2], rng.integers(0, 2, rows)
    p = 1 / (1 + np.exp(-(rng.normal(size=rows) + 1.2 * y - 0.6 + 0.3 * (sex == "F") * y)))
    race = rng.choice(["a", "b", "c", None], rows, p=[0.5, 0.47, 0.02, 0.01])
    return pd.DataFrame({"y": y, "p": p, "sex": sex, "race": race, "patient": patient.astype(str), "w": rng.integers(1, 4, rows)})


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> tuple[pd.DataFrame, Path]:
    frame, folder = _frame(), tmp_path_factory.mktemp("table")
    for k in range(3):
        frame.iloc[k * len(frame) // 3 : (k + 1) * len(frame) // 3].to_parquet(folder / f"{k}.parquet")
    return frame, folder


Audited = Callable[..., Audit]
KINDS = {"patients": {}, "weights": {"weight": "w"}, "rows": {"patient": None}}


@pytest.fixture(scope="module")
def whole() -> Audited:
    """The audit of the table in memory, made once for each kind of rows."""

    @cache
    def made(kind: str) -> Audit:
        return eq.audit(Scores.from_frame(_frame(), **{**ROLES, **KINDS[kind]}), threshold=0.5, also=("ppv_gap", "tpr-fpr"))

    return made


@pytest.fixture(scope="module")
def parts(table) -> Audited:
    """The audit of the files part by part, made once for each kind of rows and size of the samples."""

    @cache
    def made(kind: str, sampled: int = 4000) -> Audit:  # fewer rows than most groups have
        with pytest.MonkeyPatch.context() as patch:
            _in_parts(patch, sampled)
            return audit(scan(table[1], **{**ROLES, **KINDS[kind]}), threshold=0.5, also=("ppv_gap", "tpr-fpr"))

    return made


def _in_parts(monkeypatch: pytest.MonkeyPatch, sampled: int) -> None:
    monkeypatch.setattr(scans_module, "ROWS_HELD", 1000)
    monkeypatch.setattr(streaming, "PART_ROWS", 2000)
    monkeypatch.setattr(streaming, "SAMPLED_ROWS", sampled)


@pytest.mark.parametrize("kind", KINDS)
def test_part_by_part_gives_the_numbers_of_the_table_in_memory(whole, parts, kind):
    whole, parts = whole(kind), parts(kind)
    for name in EXACT:
        np.testing.assert_allclose(parts.gaps[name].astype(float), whole.gaps[name].astype(float), atol=1e-12, err_msg=name)
    for name in (*RATES, *(f"{rate}_{end}" for rate in RATES for end in ("low", "high")), "n", "positives"):
        np.testing.assert_allclose(parts.groups[name], whole.groups[name], atol=1e-12, err_msg=name)
    for name in ("auroc", "auroc_low", "auroc_high"):
        np.testing.assert_allclose(parts.groups[name], whole.groups[name], atol=AUROC_ERROR, err_msg=name)
    for name in ("spd", "eod", "balanced_accuracy", "accuracy", "f1"):
        for end in ("value", "low", "high"):
            assert getattr(parts[name], end) == pytest.approx(getattr(whole[name], end), abs=1e-12)
    for name, error in (("auroc", AUROC_ERROR), ("average_precision", 1e-4)):
        for end in ("value", "low", "high"):
            assert getattr(parts[name], end) == pytest.approx(getattr(whole[name], end), abs=error)
    large = whole.gaps["group"].isin(["M", "b", "F & b", "M & a", "M & b"]).to_numpy()  # cells in which nothing is drawn
    np.testing.assert_allclose(parts.gaps["p_value"][large], whole.gaps["p_value"][large], rtol=1e-6, atol=1e-12)
    assert (parts.rows, parts.patients, parts.comparisons, parts.varying) == (whole.rows, whole.patients, whole.comparisons, whole.varying)
    assert parts.missing == pytest.approx(whole.missing)
    assert (parts.references, parts.assumed, parts.weighted) == (whole.references, whole.assumed, whole.weighted)
    assert parts.groups.columns.tolist() == whole.groups.columns.tolist()
    assert parts.gaps.columns.tolist() == whole.gaps.columns.tolist()


def test_part_by_part_scores_that_separate_the_labels_have_limits(tmp_path, monkeypatch):
    frame = _frame(4000)
    frame = frame.assign(p=0.25 + 0.5 * frame["y"])
    frame.to_parquet(tmp_path / "rows.parquet")
    _in_parts(monkeypatch, 500)
    parts, whole = audit(scan(tmp_path, **ROLES), threshold=0.5), eq.audit(Scores.from_frame(frame, **ROLES), threshold=0.5)
    assert parts["auroc"].value == parts["average_precision"].value == parts["average_precision"].high == 1
    assert parts["average_precision"].low == pytest.approx(whole["average_precision"].low, abs=1e-4)


def test_part_by_part_the_auroc_of_scores_that_separate_the_labels_counts_patients(tmp_path, monkeypatch):
    patient = np.arange(4000) // 40
    frame = _frame(4000).assign(patient=patient.astype(str), y=patient % 2, sex=np.where(patient % 4 < 2, "F", "M"))
    frame = frame.assign(p=0.25 + 0.5 * frame["y"])
    frame.to_parquet(tmp_path / "rows.parquet")
    _in_parts(monkeypatch, 500)
    parts, whole = (audit(scan(tmp_path, **ROLES), threshold=0.5), eq.audit(Scores.from_frame(frame, **ROLES), threshold=0.5))
    assert parts.patients == 100
    assert parts["auroc"].low == pytest.approx(whole["auroc"].low, abs=0.005)
    assert parts["auroc"].low < 0.97  # of 50 patients of each label
    assert parts["average_precision"].low < 0.97


def test_measures_of_scores_are_exact_in_groups_that_are_not_sampled(whole, parts):
    whole, parts = whole("patients"), parts("patients")
    sampled = parts.groups["sampled"] < parts.groups["n"]
    assert sampled.to_dict() == {level: n > 4000 for level, n in parts.groups["n"].items()}
    for name in ("calibration_slope", "calibration_intercept", "sensitivity_at_specificity"):
        np.testing.assert_allclose(parts.groups[name][~sampled], whole.groups[name][~sampled], atol=1e-9, err_msg=name)
        # The value of a sample lies within its own interval of the value of all rows, or near it.
        width = (parts.groups[f"{name}_high"] - parts.groups[f"{name}_low"])[sampled]
        assert ((parts.groups[name] - whole.groups[name])[sampled].abs() < width).all()


def _means_of_all_rows(some: Audit, whole: Audit) -> None:
    """Brier score and calibration in the large are those of all rows, with intervals that large samples make nearly equal."""
    for name in ("brier", "calibration_in_the_large"):
        np.testing.assert_allclose(some.groups[name], whole.groups[name], atol=1e-12, err_msg=name)
        width = (whole.groups[f"{name}_high"] - whole.groups[f"{name}_low"])[whole.groups["n"] > 3000]
        for end in ("low", "high"):
            off = (some.groups[f"{name}_{end}"] - whole.groups[f"{name}_{end}"])[whole.groups["n"] > 3000].abs()
            assert (off < 0.15 * width).all(), (name, end)
        assert some[name].value == pytest.approx(whole[name].value, abs=1e-12)
        assert some[name].note == ""
    for name in ("calibration_slope", "calibration_intercept"):
        assert says(some[name].note, "sample", f"{whole.rows:,}")
        assert whole[name].note == ""


@pytest.mark.parametrize(("kind", "sampled"), [("patients", 2000), ("weights", 4000), ("rows", 4000)])
def test_means_of_scores_are_those_of_all_rows_however_many_are_sampled(whole, parts, kind, sampled: int):
    _means_of_all_rows(parts(kind, sampled) if sampled != 4000 else parts(kind), whole(kind))


LABELS = {"y": "p", "z": "q", "n": "r"}  # with the column of each one's score


@pytest.fixture(scope="module")
def labels(table, tmp_path_factory: pytest.TempPathFactory) -> tuple[pd.DataFrame, Path]:
    rng = np.random.default_rng(4)
    frame = table[0]
    z = rng.choice([0.0, 1.0, -1.0, np.nan], len(frame), p=[0.6, 0.3, 0.05, 0.05])
    frame = frame.assign(
        z=z, q=np.where(z == -1, np.nan, rng.random(len(frame))), n=rng.integers(0, 2, len(frame)), r=rng.random(len(frame))
    )
    path = tmp_path_factory.mktemp("labels") / "t.parquet"
    frame.to_parquet(path)
    return frame, path


READING = Columns(label=list(LABELS), score=list(LABELS.values()), group=["sex", "race"], patient="patient")


@pytest.fixture(scope="module")
def all_labels(labels):
    """The audit of all labels in memory."""
    return audit(read_scores(labels[1], READING), threshold=0.5, no_finding="none of the labels")


@pytest.mark.parametrize("held", [True, False], ids=["in memory", "in parts"])
def test_several_labels_are_read_once_and_audited_as_in_memory(labels, all_labels, held, monkeypatch: pytest.MonkeyPatch):
    (frame, path), whole = labels, all_labels
    if not held:
        _in_parts(monkeypatch, sampled=10**6)
    read, real = [], Engine.run
    monkeypatch.setattr(Engine, "run", lambda self, sql: (read.append(sql) if "insert into staged" in sql else None) or real(self, sql))
    scans = {label: scan(path, label=label, score=score, group=["sex", "race"], patient="patient") for label, score in LABELS.items()}
    found = audit(scans, threshold=0.5, no_finding="none of the labels")
    assert len(read) == 1
    assert list(found.labels) == list(LABELS)
    assert found.comparisons == whole.comparisons
    for name, own in {**found.labels, "derived": found.no_finding}.items():
        other = whole.no_finding if name == "derived" else whole[name]
        assert (own.rows, own.patients, own.comparisons) == (other.rows, other.patients, other.comparisons)
        for column in EXACT:
            np.testing.assert_allclose(own.gaps[column].astype(float), other.gaps[column].astype(float), atol=1e-9, err_msg=column)
        for rate in RATES:
            np.testing.assert_allclose(own.groups[rate], other.groups[rate], atol=1e-12, err_msg=rate)
        large = other.gaps["patients"] > 1000  # exact p-values
        np.testing.assert_allclose(own.gaps["p_value"][large], other.gaps["p_value"][large], rtol=1e-6, atol=1e-12)
    assert found["z"].rows == int(((frame["z"] == 0) | (frame["z"] == 1)).sum())
    assert found.no_finding.underdiagnosis["rate"].to_numpy() == pytest.approx(whole.no_finding.underdiagnosis["rate"].to_numpy())


def test_labels_of_different_tables_are_refused(labels):
    _, path = labels
    one = scan(path, **ROLES)
    with pytest.raises(BadInput, match="y, z"):
        audit({"y": one, "z": scan(path, **{**ROLES, "label": "z", "score": "q", "patient": None})})
    with pytest.raises(BadInput) as error:
        audit({"y": one}, no_finding="none of the labels")
    assert says(error.value, "several labels", "y")


def test_a_table_that_is_held_is_audited_as_in_memory(table, whole):
    whole, held = whole("patients"), audit(scan(table[1], **ROLES), threshold=0.5, also=("ppv_gap", "tpr-fpr"))
    for name in (*RATES, "auroc", "brier", "calibration_slope", "calibration_error"):
        np.testing.assert_allclose(held.groups[name], whole.groups[name], atol=1e-9, err_msg=name)
    np.testing.assert_allclose(held.gaps["value"], whole.gaps["value"], atol=1e-12)


def test_large_groups_in_memory_are_sampled_by_patient(whole, monkeypatch: pytest.MonkeyPatch):
    frame, whole = _frame(), whole("patients")
    scores = Scores.from_frame(frame, **ROLES)
    monkeypatch.setattr(score_measures, "SAMPLED_ROWS", 3000)
    some = eq.audit(scores, threshold=0.5, also=("ppv_gap", "tpr-fpr"))
    pd.testing.assert_frame_equal(some.gaps, whole.gaps)  # rates, gaps and tests use all rows
    np.testing.assert_array_equal(some.groups["auroc"], whole.groups["auroc"])
    sampled = some.groups["sampled"] < some.groups["n"]
    assert sampled.to_dict() == {level: n > 3000 for level, n in some.groups["n"].items()}
    assert (whole.groups["sampled"] == whole.groups["n"]).all()
    for name in ("calibration_slope", "calibration_error", "sensitivity_at_specificity"):
        assert not (some.groups[name] == whole.groups[name])[sampled].any()
        assert (some.groups[name] == whole.groups[name])[~sampled].all()
    _means_of_all_rows(some, whole)
    kept, _, units = score_measures.sample_of(scores, scores.attributes[0], np.asarray(pd.factorize(frame["patient"])[0]))
    rows = frame.groupby("patient").size()
    assert (
        pd.Series(kept.patients).value_counts().to_dict() == rows.loc[list(set(kept.patients))].to_dict()
    )  # all rows of a patient, or none
    assert units.max() + 1 == len(set(kept.patients))


def test_an_empty_cell_is_an_error_where_its_measure_was_named(table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    frame, _ = table
    frame.assign(y=frame["y"].where(frame["race"] != "c", 0)).to_parquet(tmp_path / "t.parquet")
    _in_parts(monkeypatch, sampled=4000)
    with pytest.raises(EmptyCell, match="'c'"):
        audit(scan(tmp_path / "t.parquet", **ROLES), threshold=0.5, measures=["eod"])


def _bins(score: np.ndarray, *, logits: bool = False) -> np.ndarray:
    """The bins of scores, in SQL."""
    with embedded("scores", 10**9) as engine:
        engine.values("scores", ("place", "score"), [(str(k), engine.number(float(each))) for k, each in enumerate(score)])
        sql = streaming.score_bin("score", logits, streaming.BINS_PER_OCTAVE)
        return engine.query(f"select {sql} as bin from scores order by place")["bin"]


def test_bins_of_logits_keep_their_order():
    logits = np.array([-1e4, -900.0, -90.0, -40.0, -1e-9, 0.0, 1e-9, 2.0, 40.0, 90.0, 900.0, 1e4])
    bins = _bins(logits, logits=True)
    assert (np.diff(bins) >= 0).all()
    assert len(set(bins.tolist())) >= 10


def test_bins_of_scores_keep_their_order_and_bound_the_error_of_auroc():
    rng = np.random.default_rng(1)
    ends = np.array([0.0, 1e-30, 1e-9, 0.5, np.nextafter(0.5, 1), 1 - 1e-9, 1.0])
    score = np.sort(np.concatenate([ends, rng.random(20_000), rng.random(20_000) ** 8, 1 - rng.random(20_000) ** 8]))
    bins = _bins(score)
    assert (np.diff(bins) >= 0).all()
    assert len(np.unique(_bins(ends[[0, 2, 3, 5, 6]]))) == 5
    y = (rng.random(len(score)) < score).astype(int)
    place = np.unique(bins, return_inverse=True)[1]
    p, q = (np.bincount(place[y == label], minlength=place.max() + 1) for label in (1, 0))
    bound = float((p * q).sum() / 2 / p.sum() / q.sum())
    binned = float((p * (np.cumsum(q) - q / 2)).sum() / p.sum() / q.sum())
    assert abs(binned - float(Ranking(score, y).ranks().auroc)) <= bound < 2e-4


def test_small_groups_are_withheld_part_by_part_as_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    frame = _frame(3000)
    frame["race"] = frame["race"].fillna("a").replace("c", "b")
    few = frame["patient"].isin(frame["patient"].unique()[:2])
    frame.loc[few, "sex"] = "X"  # two patients, who are left out
    women = frame.index[(frame["sex"] == "F") & (frame["race"] == "b")]
    frame.loc[women[3:], "race"] = "d"  # three rows remain in F & b
    frame.to_parquet(tmp_path / "t.parquet")
    inside = eq.audit(Scores.from_frame(frame, **ROLES), threshold=0.5)
    _in_parts(monkeypatch, 10_000)
    found = audit(scan(tmp_path, **ROLES), threshold=0.5)
    assert found.left_out == inside.left_out == few.sum()
    assert (found.rows, found.patients, found.missing) == (inside.rows, inside.patients, pytest.approx(inside.missing))
    pd.testing.assert_frame_equal(
        found.groups[["attribute", "n", "positives", "note"]], inside.groups[["attribute", "n", "positives", "note"]]
    )
    withheld = inside.groups["note"].str.contains("withheld")
    assert 0 < withheld.sum() < len(withheld)
    for name, sums in inside.sums.items():
        np.testing.assert_allclose(found.sums[name].total, sums.total, atol=1e-9)
    assert found["accuracy"].value == pytest.approx(inside["accuracy"].value)
