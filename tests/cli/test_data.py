"""equipoise data: the catalogue as users see it, fetching and checking."""

import io
import json
import urllib.error
from pathlib import Path

import numpy as np
import pytest

from equipoise.data import Cohort
from equipoise.disk import sha256
from equipoise.studies import CATALOGUE, File, Recipe, catalogue
from support.facts import says

COLUMNS = 80  # of the terminal


def test_data_list_names_every_data_set_with_its_source(run):
    out = run("data", "list").out
    for recipe in CATALOGUE.values():
        assert recipe.name in out
        assert recipe.citation in out
    assert says(out, "35,993 x 43")
    listed = json.loads(run("data", "list", "--json").out)
    assert [entry["name"] for entry in listed] == list(CATALOGUE)
    assert all(entry["rows"] and entry["licence"] for entry in listed)


CONTENT = b"0,x\n1,z\n1,x\n"


def _read_tiny(root: Path) -> Cohort:
    rows = [line.split(",") for line in (root / "a.csv").read_text().split()]
    return Cohort.from_arrays(np.ones((3, 1)), [int(y) for y, _ in rows], [g for _, g in rows])


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> str:
    """A data set of one small file in the catalogue, and a network that answers with it."""
    file = File("a.csv", sha256(CONTENT), "https://example.org/a.csv")
    monkeypatch.setitem(CATALOGUE, "tiny", Recipe("tiny", _read_tiny, "group", "three rows", "nobody", 3, 1, (file,), "none"))
    monkeypatch.setattr(catalogue, "_open_url", lambda _: io.BytesIO(CONTENT))
    return "tiny"


def test_fetch_then_check(run, tiny, tmp_path):
    code, out, err = run("data", "fetch", tiny, "--root", "here")
    assert (code, err) == (0, "")
    assert out == "tiny: here/tiny\n"
    assert (tmp_path / "here" / "tiny" / "a.csv").read_bytes() == CONTENT
    assert run("data", "check", tiny, "--root", "here") == (0, "tiny: a.csv: ok (here/tiny/a.csv)\n", "")
    [state] = json.loads(run("data", "check", tiny, "--root", "here", "--json").out)
    assert state == {"data": "tiny", "file": "a.csv", "path": "here/tiny/a.csv", "status": "ok"}


@pytest.mark.parametrize("content", [None, b"tampered"])
def test_missing_files_and_wrong_checksums_fail_the_check_with_the_remedy(run, tiny, tmp_path, content):
    if content:
        (tmp_path / "tiny").mkdir()
        (tmp_path / "tiny" / "a.csv").write_bytes(content)
    code, out, err = run("data", "check", tiny, "--root", ".")
    assert code == 2
    assert says(out, "tiny", "a.csv", sha256(content) if content else "missing")
    assert says(err, "error", "tiny", "equipoise data fetch tiny --root .")


def test_a_simulation_needs_no_files(run):
    assert run("data", "check", "loh") == (0, "loh: simulated, needs no files\n", "")
    code, out, err = run("data", "fetch", "loh")
    assert (code, out) == (2, "")
    assert says(err, "loh")


def test_fetch_without_a_network_says_what_to_do_and_writes_nothing(run, tiny, tmp_path, monkeypatch):
    def offline(_: str) -> None:
        raise urllib.error.URLError("Name or service not known")

    monkeypatch.setattr(catalogue, "_open_url", offline)
    code, out, err = run("data", "fetch", tiny)
    assert (code, out) == (2, "")
    assert says(err, "error", "https://example.org/a.csv")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["check", "fetch"])
def test_an_unknown_data_set_stops_before_anything_is_fetched(run, tiny, tmp_path, command):
    code, out, err = run("data", command, tiny, "COMPAS")
    assert (code, out) == (2, "")
    assert says(err, "error", "'COMPAS'", "'compas'", "adult")
    assert list(tmp_path.iterdir()) == []


MIMIC_III = ("ADMISSIONS", "CHARTEVENTS", "DIAGNOSES_ICD", "ICUSTAYS", "LABEVENTS", "OUTPUTEVENTS", "PATIENTS", "SERVICES")


def test_the_check_of_mimic_iii_includes_every_table_that_its_study_reads(run, tmp_path):
    for table in MIMIC_III:
        (tmp_path / f"{table}.csv").touch()
    assert run("data", "check", "mimic-iii", "--root", ".").code == 0
    (tmp_path / "ICUSTAYS.csv").unlink()
    code, out, err = run("data", "check", "mimic-iii", "--root", ".")
    assert (code, says(out, "ICUSTAYS.csv", "missing"), says(err, "mimic-iii", "physionet.org/content/mimiciii")) == (2, True, True)
    assert not says(err, "data fetch")  # which refuses, since the data are credentialed


def test_the_tables_of_mimic_iv_are_checked_where_they_are(run, tmp_path):
    for name in ("metadata", "chexpert", "split"):
        (tmp_path / f"mimic-cxr-2.0.0-{name}.csv").touch()
    code, out, err = run("data", "check", "mimic-cxr", "--root", ".")
    assert (code, says(out, "patients.csv", "admissions.csv", "missing"), says(err, "--mimic-iv", "physionet.org")) == (2, True, True)
    assert not says(err, "data fetch")
    hosp = tmp_path / "iv" / "hosp"
    hosp.mkdir(parents=True)
    (hosp / "patients.csv").touch()
    (hosp / "admissions.csv").touch()
    code, out, err = run("data", "check", "mimic-cxr", "--root", ".", "--mimic-iv", "iv")
    assert (code, says(out, "iv/hosp/patients.csv"), err) == (0, True, "")
    code, _, err = run("data", "check", "adult", "--mimic-iv", "iv")
    assert (code, says(err, "--mimic-iv", "mimic-cxr")) == (2, True)
