"""What a study loads: pixels that travel as a file name, options without the run's own business, and a signature of the tables."""

import gzip
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest

from equipoise.errors import BadInput
from equipoise.study.sources import SOURCES, load_source, option_types, signature


@pytest.mark.parametrize("source", ["nih", "mimic-cxr"])
def test_pixels_travel_as_a_file_name(source: str, xrays: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EQUIPOISE_CACHE", str(tmp_path))
    counts: list[int] = []
    cohort = load_source(source, xrays, {"size": 200}, counts.append)
    assert sum(counts) == len(cohort) == 128
    sent = pickle.dumps(cohort)
    assert len(sent) < 128 * 200 * 200 / 100
    again = pickle.loads(sent)
    assert isinstance(again.source.pixels, np.memmap)
    assert Path(again.source.pixels.filename).is_relative_to(tmp_path)
    assert (again.inputs[:5] == cohort.inputs[:5]).all()


def test_options_leave_the_runs_own_business_out() -> None:
    assert set(SOURCES) > {"nih", "mimic-cxr", "mimic-iii", "phantom"}
    assert set(option_types("nih")) >= {"finding", "attribute", "views", "size", "channels", "skip_broken"}
    assert "mimic_iv" in option_types("mimic-cxr")
    assert set(option_types("mimic-iii")) == {"attribute", "attribute_as_input", "inputs"}
    assert "seed" in option_types("phantom")


def test_another_table_has_another_signature(xrays: Path, tmp_path: Path) -> None:
    shutil.copytree(xrays, tmp_path / "copy")
    for source, table in (("nih", "cxr-nih/metadata.csv"), ("mimic-cxr", "mimic-cxr/hosp/patients.csv")):
        before = signature(source, xrays, {})
        assert signature(source, tmp_path / "copy", {}) == before  # wherever it lies
        path = tmp_path / "copy" / table
        path.write_text(path.read_text().replace(",M", ",F", 1))  # of the same length
        assert signature(source, tmp_path / "copy", {}) != before
    hospital = tmp_path / "copy" / "mimic-cxr" / "hosp"
    hospital.rename(tmp_path / "mimic-iv")
    moved = signature("mimic-cxr", tmp_path / "copy", {"mimic_iv": str(tmp_path / "mimic-iv")})
    (tmp_path / "mimic-iv" / "patients.csv").write_text("subject_id,gender\n1,F\n")
    assert signature("mimic-cxr", tmp_path / "copy", {"mimic_iv": str(tmp_path / "mimic-iv")}) != moved


def test_tables_of_mimic_iii_are_known_by_name_and_content(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"none of ADMISSIONS.csv, PATIENTS.csv"):
        signature("mimic-iii", tmp_path, {})
    (tmp_path / "admissions.csv.gz").write_bytes(gzip.compress(b"a"))
    assert signature("mimic-iii", tmp_path, {})
