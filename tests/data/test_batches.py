"""Tables read where they lie: the same rows, groups and errors as in memory, with the rows in memory or in an engine."""

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from equipoise.data import Scores, StoredRows, scan, scans
from equipoise.data.table_files import is_large
from equipoise.errors import BadInput
from support.facts import says

ROLES = {"label": "y", "score": "p", "group": ["sex", "age"], "patient": "patient", "bins": {"age": [40, 60]}, "reference": ["M", "<40"]}


def _frame(rows: int = 900) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "y": rng.integers(0, 2, rows),
            "p": rng.random(rows),
            "sex": rng.choice(["F", "M", None], rows, p=[0.5, 0.4, 0.1]),
            "age": rng.integers(20, 90, rows),
            "patient": [f"{k:04d}" for k in rng.integers(0, 300, rows)],
            "w": rng.integers(1, 4, rows).astype(float),
        }
    )


def _written(frame: pd.DataFrame, folder: Path, kind: str) -> Path:
    path = folder / kind
    if kind == "file.parquet":
        frame.to_parquet(path)
    elif kind == "file.csv":
        frame.to_csv(path, index=False)
    elif kind == "file.csv.gz":
        frame.to_csv(path, index=False, sep=";", decimal=",")
    elif kind == "files":
        path.mkdir()
        (path / "_SUCCESS").write_text("")
        for k in range(3):
            frame.iloc[k::3].to_parquet(path / f"{k}.parquet")
    else:
        frame.to_parquet(path, partition_cols=["sex"])
    return path


def _rows(scores: Scores | StoredRows) -> list[tuple[object, ...]]:
    if isinstance(scores, Scores):
        columns = [scores.y, scores.score, *(a.names for a in scores.attributes), *([] if scores.weight is None else [scores.weight])]
    else:
        found = scores.engine.query(scores.rows("0"))
        names = [np.array([*a.levels, None], dtype=object)[found[f"code{k}"]] for k, a in enumerate(scores.attributes)]
        columns = [found["y"], found["score"], *names, *([found["w"]] if scores.weighted else [])]
    return sorted(zip(*(map(str, column) for column in columns), strict=True))


@pytest.fixture(params=["in memory", "in an engine"])
def in_memory(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(scans, "CHECKED_ROWS", 200)
    monkeypatch.setattr(scans, "ROWS_HELD", 10**6 if request.param == "in memory" else 300)
    return bool(request.param == "in memory")


@pytest.mark.parametrize("kind", ["file.parquet", "file.csv", "file.csv.gz", "files", "partitioned"])
def test_rows_and_groups_are_the_same_as_in_memory(kind: str, tmp_path: Path, in_memory: bool):
    frame = _frame()
    table = Scores.from_frame(frame, weight="w", **ROLES)
    with scan(_written(frame, tmp_path, kind), weight="w", **ROLES).read() as stored:
        assert isinstance(stored, Scores) == in_memory
        assert [(a.name, a.levels, a.named, a.bins) for a in stored.attributes] == [
            (a.name, a.levels, a.named, a.bins) for a in table.attributes
        ]
        assert _rows(stored) == _rows(table)
        assert _by_patient(stored) == sorted(tuple(sorted(scores)) for _, scores in frame.groupby("patient")["p"])


def _by_patient(stored: Scores | StoredRows) -> list[tuple[float, ...]]:
    """The scores of each patient."""
    if isinstance(stored, Scores):
        units, score = stored.patients, stored.score
    else:
        found = stored.engine.query(stored.rows("0"))
        units, score = found["unit"], found["score"]
    return sorted(tuple(sorted(each)) for _, each in pd.Series(score).groupby(units))


@pytest.mark.usefixtures("in_memory")
@pytest.mark.parametrize("rule", ["first", "majority", "blank"])
def test_conflicts_are_resolved_as_in_memory(rule: str, tmp_path: Path):
    frame = _frame()
    table = Scores.from_frame(frame, conflicts=rule, **ROLES)
    with scan(_written(frame, tmp_path, "file.parquet"), conflicts=rule, **ROLES).read() as stored:
        assert _rows(stored) == _rows(table)
    assert [(a.varied, a.conflicts, a.levels) for a in stored.attributes] == [(a.varied, a.conflicts, a.levels) for a in table.attributes]


@pytest.mark.usefixtures("in_memory")
def test_integer_ids_and_rows_without_patients(tmp_path: Path):
    frame = _frame().assign(patient=lambda d: d["patient"].astype(int))
    path = _written(frame, tmp_path, "file.parquet")
    with scan(path, **ROLES).read() as stored:
        assert len(_by_patient(stored)) == frame["patient"].nunique()
    with scan(path, **{**ROLES, "patient": None}).read() as stored:
        assert stored.patients is None if isinstance(stored, Scores) else not stored.has_patients
        assert len(_rows(stored)) == len(frame)


PROBLEMS = {
    "a score outside [0, 1] in a later batch": (
        lambda d: d.assign(p=d["p"].where(d.index != 850, 7.0)),
        {},
        ["'p'", "outside", "rows 801"],
    ),
    "a label that is neither 0 nor 1": (lambda d: d.assign(y=d["y"].where(d.index != 3, 2)), {}, ["'y'", "1 of 200"]),
    "a patient without an id": (lambda d: d.assign(patient=d["patient"].where(d.index != 3)), {}, ["'patient'", "row 4"]),
    "a weight of 0": (lambda d: d.assign(w=0.0), {"weight": "w"}, ["'w'", "200 of 200"]),
    "no such column": (lambda d: d.rename(columns={"sex": "Sex"}), {}, ["'sex'", "'Sex'"]),
    "a single group": (lambda d: d.assign(sex="F"), {"reference": None}, ["'sex'", "single group", "900"]),
    "an unknown reference": (lambda d: d, {"reference": ["X", "<40"]}, ["'X'", "F, M"]),
    "only positives": (lambda d: d.assign(y=1), {}, ["'y'", "only positives", "900"]),
    "an identifier as a group": (lambda d: d.assign(sex=[f"id{k}" for k in range(900)]), {"reference": None}, ["'sex'", "identifier"]),
    "patients in several groups": (lambda d: d, {"conflicts": "error"}, ["'patient'", "'sex'", "conflicts"]),
}


@pytest.mark.parametrize(("change", "roles", "named"), PROBLEMS.values(), ids=PROBLEMS)
@pytest.mark.usefixtures("in_memory")
def test_problems_are_found_in_any_batch_and_in_the_whole_table(change, roles, named, tmp_path: Path):
    path = _written(change(_frame()), tmp_path, "file.parquet")
    with pytest.raises(BadInput) as error, scan(path, **{**ROLES, **roles}).read():
        pass
    assert says(error.value, *named)


def test_roles_are_checked_before_anything_is_read(tmp_path: Path):
    with pytest.raises(BadInput) as error:
        scan(tmp_path / "none.csv", label="y", score="y", group="sex", conflicts="first", bins={"age": [1]})
    assert says(error.value, "'y'", "label, score", "'age'", "conflicts='first'")


def test_files_that_cannot_be_read_are_named(tmp_path: Path):
    folder = _written(_frame(), tmp_path, "files")
    (folder / "3.parquet").write_bytes(b"PAR1damaged")
    with pytest.raises(BadInput) as error, scan(folder, **ROLES).read():
        pass
    assert says(error.value, "3.parquet")
    (folder / "3.parquet").unlink()
    _frame(30).assign(patient=7).to_parquet(folder / "4.parquet")
    with pytest.raises(BadInput) as error, scan(folder, **ROLES).read():
        pass
    assert says(error.value, "'patient'", "integers", "4.parquet")
    empty = tmp_path / "empty"
    empty.mkdir()
    for missing, expected in ((empty, ".parquet"), (tmp_path / "nowhere", "nowhere")):
        with pytest.raises(BadInput) as error, scan(missing, **ROLES).read():
            pass
        assert says(error.value, expected)


def test_a_large_csv_must_be_utf8(tmp_path: Path):
    path = tmp_path / "latin.csv"
    path.write_bytes(_frame().assign(sex="Fémale").to_csv(index=False).encode("cp1252"))
    with pytest.raises(BadInput) as error, scan(path, **ROLES).read():
        pass
    assert says(error.value, "latin.csv", "UTF-8")


def test_is_large_survives_any_flipped_bit_in_a_parquet_footer(tmp_path: Path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"p": [0.1, 0.9]}), path)
    whole = path.read_bytes()
    footer = int.from_bytes(whole[-8:-4], "little")
    assert not is_large(path)
    for place in range(len(whole) - 8 - footer, len(whole) - 8):
        damaged = bytearray(whole)
        damaged[place] ^= 1
        path.write_bytes(damaged)
        is_large(path)  # may be True if the number of rows is damaged, but must not crash
