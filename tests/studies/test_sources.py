"""Data of a study: pixels are sent as a file name, options exclude what the run sets, and tables have checksums."""

import gzip
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest

from equipoise.errors import BadInput
from equipoise.studies import CATALOGUE
from equipoise.studies.plan import StudyData, option_types
from support.facts import facts


@pytest.mark.parametrize("source", ["nih", "mimic-cxr"])
def test_pixels_are_sent_as_a_file_name(source: str, xrays: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EQUIPOISE_CACHE", str(tmp_path))
    counts: list[int] = []
    cohort = StudyData(source=source, options={"size": 200}).load(xrays, counts.append)
    assert sum(counts) == len(cohort) == 128
    sent = pickle.dumps(cohort)
    assert len(sent) < 128 * 200 * 200 / 100
    again = pickle.loads(sent)
    assert isinstance(again.source.pixels, np.memmap)
    assert Path(again.source.pixels.filename).is_relative_to(tmp_path)
    assert (again.inputs[:5] == cohort.inputs[:5]).all()


def test_options_exclude_arguments_that_the_run_sets() -> None:
    assert set(CATALOGUE) > {"nih", "mimic-cxr", "mimic-iii", "phantom"}
    assert set(option_types("nih")) >= {"finding", "attribute", "views", "size", "channels", "skip_broken"}
    assert "mimic_iv" in option_types("mimic-cxr")
    assert set(option_types("mimic-iii")) == {"attribute", "attribute_as_input", "inputs"}
    assert "seed" in option_types("phantom")


def test_another_table_has_another_checksum(xrays: Path, tmp_path: Path) -> None:
    shutil.copytree(xrays, tmp_path / "copy")
    for source, table in (("nih", "cxr-nih/metadata.csv"), ("mimic-cxr", "mimic-cxr/hosp/patients.csv")):
        before = StudyData(source=source).checksum(xrays)
        assert StudyData(source=source).checksum(tmp_path / "copy") == before  # in any folder
        path = tmp_path / "copy" / table
        path.write_text(path.read_text().replace(",M", ",F", 1))  # of the same length
        assert StudyData(source=source).checksum(tmp_path / "copy") != before
    hospital = tmp_path / "copy" / "mimic-cxr" / "hosp"
    hospital.rename(tmp_path / "mimic-iv")
    moved = StudyData(source="mimic-cxr", options={"mimic_iv": str(tmp_path / "mimic-iv")}).checksum(tmp_path / "copy")
    (tmp_path / "mimic-iv" / "patients.csv").write_text("subject_id,gender\n1,F\n")
    assert StudyData(source="mimic-cxr", options={"mimic_iv": str(tmp_path / "mimic-iv")}).checksum(tmp_path / "copy") != moved


def test_tables_of_mimic_iii_are_identified_by_name_and_content(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=facts("ADMISSIONS.csv", "PATIENTS.csv")):
        StudyData(source="mimic-iii").checksum(tmp_path)
    (tmp_path / "admissions.csv.gz").write_bytes(gzip.compress(b"a"))
    assert StudyData(source="mimic-iii").checksum(tmp_path)


def test_a_file_has_ids_as_text_ages_in_bins_and_resolved_conflicts(tmp_path: Path) -> None:
    rows = [f"{'007' if k % 4 < 2 else '7'},{k:03d},{35 + 10 * (k % 4)},{'01' if k % 2 else '1'},{k % 3 % 2}" for k in range(24)]
    (tmp_path / "a.csv").write_text("pid,id,age,ward,died\n" + "\n".join(rows) + "\n")
    columns = {"label": "died", "patient": "pid", "id": "id", "features": ("age", "ward")}
    cohort = StudyData(file=str(tmp_path / "a.csv"), group=("age", "ward"), bins={"age": (40.0, 60.0)}, conflicts="row", **columns).load()
    assert set(cohort.patients) == {"007", "7"}
    assert cohort.ids[:2].tolist() == ["000", "001"]
    age, ward = cohort.attributes
    assert set(age.levels) == {"<40", "40-59", "60+"}
    assert set(ward.levels) == {"01", "1"}
    assert age.varied == 2
    first = StudyData(file=str(tmp_path / "a.csv"), group="age", bins={"age": (40.0, 60.0)}, conflicts="first", **columns).load().attribute
    assert (set(first.names), first.varied, first.conflicts) == ({"<40", "40-59"}, 2, "first")
    assert cohort.encoder is not None
    assert set(cohort.encoder.numeric) == {"age", "ward"}  # numbers as inputs
