"""Groups and patient ids that differ only in what cannot be seen: named in a warning, and never merged."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import equipoise as eq
from equipoise.data import read_table, scans

ALIKE = {
    "case": ("ward a", "Ward A", "'Ward A', 'ward a'"),
    "a trailing blank": ("a", "a ", "'a', 'a '"),
    "a no-break space": ("a b", "a\u00a0b", "'a b', 'a\\xa0b'"),
    "a zero-width space": ("a", "a\u200b", "'a', 'a\\u200b'"),
    "a byte-order mark": ("a", "\ufeffa", "'a', '\\ufeffa'"),
    "Unicode form": ("Zu\u0308rich", "Z\u00fcrich", "'Zu\\u0308rich', 'Z\\xfcrich'"),
}


FORMS = ["file.csv", "file.parquet", "folder of csv", "folder of parquet", "in files"]


@pytest.mark.parametrize(("difference", "form"), [*((each, "frame") for each in ALIKE), *(("Unicode form", each) for each in FORMS)])
def test_names_that_differ_only_in_what_cannot_be_seen_are_kept_apart_and_named(tmp_path: Path, caplog, monkeypatch, difference, form):
    one, other, shown = ALIKE[difference]
    rows = 40
    frame = pd.DataFrame({"y": np.arange(rows) % 2, "p": 0.5, "ward": ["x", "z"] * (rows // 2), "pid": [f"p{k}" for k in range(rows)]})
    groups, patients = (frame.copy() for _ in range(2))
    groups["ward"] = [one, other] * (rows // 2)
    patients.loc[[3, 30], "pid"] = [one, other]
    if form == "in files":
        monkeypatch.setattr(scans, "ROWS_HELD", 10)
    for table, column, count in ((groups, "ward", rows), (patients, "pid", rows)):
        caplog.clear()
        audit = eq.audit(_in_form(table, tmp_path / column, form), threshold=0.5)
        assert audit.patients == count
        (said,) = {record.getMessage() for record in caplog.records}
        assert f"column {column!r}" in said
        assert shown in said
        if column == "ward":
            assert set(audit.groups.index) == {one, other}


def _in_form(frame: pd.DataFrame, folder: Path, form: str) -> Any:
    roles = {"label": "y", "score": "p", "group": "ward", "patient": "pid"}
    folder.mkdir()
    if form == "frame":
        return eq.Scores.from_frame(frame, **roles)
    path = folder / ("a.csv" if "csv" in form else "a.parquet")
    frame.to_csv(path, index=False) if "csv" in form else frame.to_parquet(path)
    if form.startswith("file"):
        return eq.Scores.from_frame(read_table(path, text=["ward", "pid"]), **roles)
    return eq.scan(folder, **roles)


@pytest.mark.parametrize("form", ["frame", "folder of parquet"])
def test_ids_of_one_case_and_without_blanks_get_no_warning(tmp_path: Path, caplog, form):
    frame = pd.DataFrame({"y": [0, 1] * 20, "p": 0.5, "ward": ["A", "B", "C", "C"] * 10, "pid": [f"Pat-{k:03d}" for k in range(40)]})
    eq.audit(_in_form(frame, tmp_path / "a", form), threshold=0.5)
    assert not caplog.records
