"""Saved audits and histories that were damaged or edited are refused with one message, never with a traceback."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support.command import Ran, ran
from support.facts import says
from support.mutations import changed_cell, changed_value, flipped, row_edits, sealed_json, sealed_parquet

ROLES = ["--label", "y", "--score", "p", "--group", "sex", "--reference", "M", "--patient", "pid", "--threshold", "0.5"]


def _table(path: Path, seed: int) -> Path:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {"y": rng.integers(0, 2, 120), "sex": rng.choice(["F", "M", "é"], 120), "pid": [f"{seed}-{k}" for k in range(120)]}
    )
    frame.assign(p=np.clip(0.3 + 0.3 * frame["y"] + rng.normal(0, 0.2, 120), 0, 1).round(6)).to_csv(path, index=False)
    return path


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    """A folder with two saved audits and a history of two periods."""
    folder = tmp_path_factory.mktemp("saved")
    for k, name in enumerate(("a", "b")):
        history = ["--append", folder / "history.parquet", "--date", f"2026-0{k + 1}"]
        found = ran("audit", _table(folder / f"{name}.csv", k), *ROLES, "--out", folder / f"{name}.json", *history)
        assert found.code == 0, found.err
    return folder


def _of_audit(saved: Path, path: Path) -> Ran:
    first = ran("report", path, "--report", path.with_suffix(".html"))
    second = ran("compare", path, saved / "b.json", "--fail-if", "|eod| > 2")
    assert (first.code == 0) == (second.code == 0)
    return first


def _of_history(path: Path) -> Ran:
    return ran("compare", path, "--fail-if", "|eod| > 2")


def _is_refused(found: Ran, path: Path) -> bool:
    return found.code == 2 and says(found.err, path.name) and "Traceback" not in found.err


def test_the_files_are_read_as_they_were_written(saved):
    assert _of_audit(saved, saved / "a.json").code == 0
    assert _of_history(saved / "history.parquet").code == 0


@pytest.mark.parametrize("name", ["a.json", "history.parquet"])
def test_every_flipped_bit_is_refused(saved, tmp_path, name):
    rng, content = np.random.default_rng(1), (saved / name).read_bytes()
    path = tmp_path / name
    for _ in range(25):
        path.write_bytes(flipped(content, rng))
        found = ran("compare", path, *([saved / "b.json"] if name == "a.json" else []))
        assert found.code == 2, found.err
        assert "Traceback" not in found.err


def test_another_spelling_of_the_same_value_is_refused(saved, tmp_path):
    text, path = (saved / "a.json").read_text(), tmp_path / "a.json"
    for old, new in ((r"\u00e9", r"\u00E9"), ('"rows": 120', '"rows": 120, "rows": 120'), ('"level": 0.95', '"level": 0.950')):
        assert old in text
        path.write_text(text.replace(old, new, 1))
        assert _is_refused(ran("report", path), path)


def test_an_edited_audit_is_refused_with_the_reason_and_the_remedy(saved, tmp_path):
    document, path = json.loads((saved / "a.json").read_text()), tmp_path / "a.json"
    document["gaps"][0]["value"] = 0.0
    path.write_text(json.dumps(document))
    found = ran("report", path)
    assert found.code == 2
    assert says(found.err, "a.json", "checksum", "run the audit again")
    path.write_text(json.dumps(json.loads((saved / "a.json").read_text()), indent=8))  # only its blanks differ
    assert ran("report", path, "--report", tmp_path / "a.html").code == 0


def test_an_audit_edited_with_a_new_checksum_never_ends_in_a_traceback(saved, tmp_path):
    rng, path = np.random.default_rng(2), tmp_path / "a.json"
    document = json.loads((saved / "a.json").read_text())
    codes = []
    for _ in range(25):
        path.write_bytes(sealed_json(changed_value(document, rng)))
        found = ran("report", path, "--report", tmp_path / "a.html")
        assert found.code == 0 or _is_refused(found, path), found.err
        codes.append(found.code)
    assert codes.count(2) > 10


@pytest.mark.parametrize("name", [name for name, _ in row_edits()])
def test_a_history_with_other_rows_is_refused_with_the_remedy(saved, tmp_path, name):
    path, table = tmp_path / "history.parquet", pq.read_table(saved / "history.parquet")
    edited = pa.Table.from_pandas(dict(row_edits())[name](table.to_pandas()), schema=table.schema, preserve_index=False)
    pq.write_table(edited, path)
    for command in (["compare", path], ["audit", saved / "a.csv", *ROLES, "--append", path, "--date", "2026-09"]):
        found = ran(*command)
        assert _is_refused(found, path), found.err
        assert says(found.err, "--append", "Restore")


def test_a_history_edited_with_a_new_checksum_never_ends_in_a_traceback(saved, tmp_path):
    rng, path = np.random.default_rng(3), tmp_path / "history.parquet"
    rows = pq.read_table(saved / "history.parquet").to_pandas()
    codes = []
    for _ in range(20):
        table = pa.Table.from_pandas(changed_cell(rows, rng), preserve_index=False)
        path.write_bytes(sealed_parquet(table, len(rows)))
        found = _of_history(path)
        assert found.code == 0 or _is_refused(found, path), found.err
        codes.append(found.code)
    assert codes.count(2) > 10


def test_a_new_history_is_begun_from_the_same_tables(saved, tmp_path):
    path = tmp_path / "new.parquet"
    for k, name in enumerate(("a", "b")):
        assert ran("audit", saved / f"{name}.csv", *ROLES, "--append", path, "--date", f"2026-0{k + 1}").code == 0
    assert path.read_bytes() == (saved / "history.parquet").read_bytes()
