"""The MIMIC-III loader: tables small enough to check by hand, then the open demo against plain pandas."""

import gzip
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from equipoise.data import Cohort, FeatureTable, split
from equipoise.errors import BadInput, UnknownName
from equipoise.studies.sets import mimic_iii as tables
from equipoise.studies.sets.mimic_iii import (
    ADMISSION_GROUPS,
    ADMISSION_TABLES,
    EVENT_COLUMNS,
    MEASUREMENTS,
    Measurement,
    mimic_iii,
    stay_means,
)
from support.facts import facts, suggests

# Patients: 1 has two admissions; 2 is over 89 (date of birth shifted); 3 is 15 years old less a day; 4 is 78 since a week; 5 is 77.
TINY = {
    "PATIENTS": """row_id,subject_id,gender,dob,expire_flag
1,1,F,2080-01-01 00:00:00,1
2,2,M,1850-06-01 00:00:00,0
3,3,M,2095-05-02 00:00:00,0
4,4,F,2032-04-24 00:00:00,0
5,5,F,2033-01-01 00:00:00,0
""",
    "ADMISSIONS": """row_id,subject_id,hadm_id,admittime,admission_type,insurance,marital_status,diagnosis,hospital_expire_flag
1,1,100,2121-03-01 08:00:00,EMERGENCY,Medicare,MARRIED,"FEVER, UNKNOWN",1
2,1,101,2120-03-01 08:00:00,ELECTIVE,Medicaid,SINGLE,SEPSIS,0
3,2,201,2150-06-01 23:59:00,EMERGENCY,Medicare,WIDOWED,FALL,1
4,3,301,2110-05-01 00:00:00,EMERGENCY,Private,SINGLE,FALL,0
5,4,401,2110-05-01 12:00:00,URGENT,Private,,STROKE,0
6,5,501,2110-05-01 12:00:00,ELECTIVE,Self Pay,SINGLE,STROKE,0
""",
    "DIAGNOSES_ICD": """row_id,subject_id,hadm_id,seq_num,icd9_code
1,1,101,1,042
2,1,100,1,1985
3,2,201,1,20280
4,2,201,2,V1251
5,4,401,1,1991
6,5,501,3,1950
7,5,501,1,0449
8,5,501,2,
""",
    "SERVICES": """row_id,subject_id,hadm_id,transfertime,prev_service,curr_service
1,1,101,2120-03-02 08:00:00,CSURG,MED
2,1,101,2120-03-01 08:00:00,,CSURG
3,2,201,2150-06-01 23:59:00,,MED
4,2,201,2150-06-02 23:59:00,MED,SURG
5,4,401,2110-05-01 12:00:00,,NSURG
""",
    # 101: heart rate 80 and 100; -1, 999, an error and a row without number do not count; 100 is a later stay; 999 is unknown.
    "CHARTEVENTS": """row_id,subject_id,hadm_id,icustay_id,itemid,charttime,value,valuenum,valueuom,warning,error
1,1,101,1,211,2120-03-01 09:00:00,80,80,BPM,,
2,1,101,1,220045,2120-03-01 10:00:00,100,100,bpm,0,0
3,1,101,1,211,2120-03-01 10:00:00,-1,-1,BPM,,
4,1,101,1,211,2120-03-01 10:00:00,999,999,BPM,,
5,1,101,1,220045,2120-03-01 10:00:00,120,120,bpm,0,1
6,1,101,1,211,2120-03-01 10:00:00,"none, yet",,BPM,,
7,1,100,2,211,2121-03-01 10:00:00,50,50,BPM,,
8,9,999,2,211,2121-03-01 10:00:00,55,55,BPM,,
9,1,101,1,678,2120-03-01 10:00:00,98.6,98.6,Deg. F,,
10,1,101,1,223762,2120-03-01 10:00:00,39,39,C,0,0
11,1,101,1,678,2120-03-01 10:00:00,37,37,Deg. F,,
12,2,201,3,190,2150-06-02 10:00:00,.4,0.4,torr,,
13,2,201,3,223835,2150-06-02 10:00:00,60,60,,0,0
14,2,201,3,223835,2150-06-02 10:00:00,5,5,,0,0
15,2,201,3,723,2150-06-02 10:00:00,1.0 ET/Trach,1,,,
16,2,201,3,9999999,2150-06-02 10:00:00,1,1,,,
17,4,401,4,51,2110-05-02 10:00:00,120,120,mmHg,,
""",
    "LABEVENTS": """row_id,subject_id,hadm_id,itemid,charttime,value,valuenum,valueuom,flag
1,1,101,50983,2120-03-01 09:00:00,140,140,mEq/L,
2,1,101,50824,2120-03-01 09:00:00,143,143,mEq/L,
3,1,,50983,2120-01-01 09:00:00,120,120,mEq/L,
4,2,201,50816,2150-06-02 09:00:00,50,50,%,
5,2,201,51301,2150-06-02 09:00:00,GREATER THAN 500,,K/uL,
6,5,501,50885,2110-05-02 09:00:00,0.5,0.5,mg/dL,
""",
    "OUTPUTEVENTS": """row_id,subject_id,hadm_id,icustay_id,charttime,itemid,value,valueuom,iserror
1,4,401,4,2110-05-02 10:00:00,40055,200,ml,
2,4,401,4,2110-05-02 11:00:00,226559,0,ml,
3,4,401,4,2110-05-02 12:00:00,226559,90000,ml,
4,4,401,4,2110-05-02 12:00:00,40086,700,ml,
5,4,401,4,2110-05-02 13:00:00,40055,300,ml,1
""",
}


def write(folder: Path, tables: dict[str, str]) -> Path:
    folder.mkdir(exist_ok=True)
    for name, text in tables.items():
        (folder / f"{name}.csv").write_text(text)
    return folder


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return write(tmp_path / "tiny", TINY)


def frame_of(cohort: Cohort) -> pd.DataFrame:
    assert isinstance(cohort.source, FeatureTable)
    return cohort.source.frame.set_index(cohort.ids.astype(int))


def test_rows_are_first_admissions_of_patients_over_15(tiny: Path) -> None:
    cohort = mimic_iii(tiny)
    assert cohort.name == "mimic-iii"
    assert cohort.ids.tolist() == [101, 201, 401, 501]
    assert cohort.patients is not None
    assert cohort.patients.tolist() == [1, 2, 4, 5]
    assert cohort.y.tolist() == [0, 1, 0, 0]


def test_means_convert_units_and_drop_errors_outliers_and_other_stays(tiny: Path) -> None:
    frame = frame_of(mimic_iii(tiny))
    expected = {
        (101, "heart_rate"): 90.0,
        (101, "temperature"): 38.0,  # 98.6 F is 37 C; 39 C; 37 F is impossible
        (101, "sodium"): 141.5,
        (201, "fio2"): 50.0,  # 0.4 of one, 60 and 50 percent; 5 is a flow in litres
        (201, "gcs_verbal"): 1.0,
        (401, "systolic_pressure"): 120.0,
        (401, "urine"): 100.0,
        (501, "bilirubin"): 0.5,
    }
    for (admission, feature), value in expected.items():
        assert frame.loc[admission, feature] == pytest.approx(value, abs=1e-12), (admission, feature)
    assert frame[list(MEASUREMENTS)].notna().to_numpy().sum() == len(expected)


def test_age_is_in_years_and_a_shifted_date_of_birth_gives_91_4(tiny: Path) -> None:
    age = frame_of(mimic_iii(tiny))["age"]
    assert age.round(2).to_dict() == {101: 40.16, 201: 91.4, 401: 78.02, 501: 77.33}


def test_a_patient_counts_from_the_day_after_the_fifteenth_birthday(tiny: Path) -> None:
    for dob, kept in (("2095-05-02", False), ("2095-04-30", True)):
        write(tiny, {"PATIENTS": TINY["PATIENTS"].replace("2095-05-02", dob)})
        assert (301 in mimic_iii(tiny).ids) == kept


def test_diseases_and_kind_of_admission(tiny: Path) -> None:
    frame = frame_of(mimic_iii(tiny))
    # 101's metastasis (1985) was coded in the later stay 100; 1950 is cancer, not yet metastatic.
    assert frame.index[frame["aids"]].tolist() == [101, 501]
    assert frame.index[frame["haematologic_malignancy"]].tolist() == [201]
    assert frame.index[frame["metastatic_cancer"]].tolist() == [401]
    kinds = {101: "scheduled surgical", 201: "medical", 401: "unscheduled surgical", 501: "medical"}
    assert frame["admission_type"].to_dict() == kinds


@pytest.mark.parametrize(
    ("codes", "disease"),
    [
        (("20000", "20238", "2024", "20382", "2386", "20892"), "haematologic_malignancy"),
        (("1960", "1991", "20970", "20979", "78951"), "metastatic_cancer"),
        (("042", "0449"), "aids"),
        (("20239", "20523", "20703", "2385", "1992", "20976", "0450", "20893", "78952"), ""),
    ],
)
def test_diseases_are_the_ranges_of_the_score(tiny: Path, codes: tuple[str, ...], disease: str) -> None:
    names = ["aids", "haematologic_malignancy", "metastatic_cancer"]
    for code in codes:
        write(tiny, {"DIAGNOSES_ICD": f"row_id,subject_id,hadm_id,seq_num,icd9_code\n1,2,201,1,{code}\n"})
        found = frame_of(mimic_iii(tiny)).loc[201, names]
        assert found.to_dict() == {name: name == disease and code != "2024" for name in names}, code


@pytest.mark.parametrize(
    ("attribute", "reference", "groups"),
    [
        ("age", ">=78", ["<78", ">=78", ">=78", "<78"]),
        ("marital_status", "single", ["single", "not single", "not single", "single"]),
        ("insurance", "public", ["public", "public", "private", "private"]),
    ],
)
def test_groups_by_attribute(tiny: Path, attribute: str, reference: str, groups: list[str]) -> None:
    cohort = mimic_iii(tiny, attribute=attribute)
    assert cohort.attribute.name == attribute
    assert cohort.attribute.reference == reference
    assert cohort.groups.tolist() == groups


def test_the_attribute_is_an_input_or_is_not(tiny: Path) -> None:
    def columns(attribute: str, as_input: bool) -> list[str]:
        return list(frame_of(mimic_iii(tiny, attribute=attribute, attribute_as_input=as_input)).columns)

    without_age = columns("age", False)
    assert "age" not in without_age
    assert sorted(columns("age", True)) == sorted([*without_age, "age"])
    assert columns("insurance", False) == columns("age", True)
    assert columns("insurance", True) == [*columns("age", True), "insurance=public"]
    single = frame_of(mimic_iii(tiny, attribute="marital_status"))["marital_status=single"]
    assert single.tolist() == [True, False, False, True]


@pytest.mark.parametrize("table", EVENT_COLUMNS)
def test_every_block_size_gives_the_same_bits(tiny: Path, table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tiny / f"{table}.csv"
    admissions = np.array([501, 101, 401, 201])  # in any order
    whole = stay_means({table: path}, admissions)
    assert whole.notna().to_numpy().any()
    pd.testing.assert_frame_equal(stay_means({table: path}, admissions[::-1]), whole[::-1].reset_index(drop=True), check_exact=True)
    pd.testing.assert_frame_equal(stay_means({table: path}, admissions[:1]), whole[:1], check_exact=True)
    size = path.stat().st_size
    for block in range(max(map(len, TINY[table].splitlines())) + 1, size + 2, 7):
        monkeypatch.setattr(tables, "BLOCK_BYTES", block)
        pd.testing.assert_frame_equal(stay_means({table: path}, admissions), whole, check_exact=True)


def test_upper_case_gzipped_tables_with_float_ids_give_the_same(tiny: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for name, text in TINY.items():
        header, rows = text.split("\n", 1)
        # As pandas writes ids in a column with gaps.
        rows = rows.replace(",101,", ",101.0,").replace(",201,", ",201.0,")
        (other / f"{name.lower()}.csv.gz").write_bytes(gzip.compress(f"{header.upper()}\n{rows}".encode()))
    pd.testing.assert_frame_equal(frame_of(mimic_iii(other)), frame_of(mimic_iii(tiny)))


def test_progress_gets_the_number_of_rows_read(tiny: Path) -> None:
    seen: list[int] = []
    mimic_iii(tiny, progress=seen.append)
    assert seen == [17, 23, 28]


def test_an_item_belongs_to_one_feature_and_ranges_are_in_order() -> None:
    def places(measurement: Measurement) -> list[tuple[str, int]]:
        return [(items.table, item) for items in measurement.sources for item in items.ids]

    every = [place for measurement in MEASUREMENTS.values() for place in places(measurement)]
    assert len(every) == len(set(every))
    assert all(m.low < m.high and m.unit for m in MEASUREMENTS.values())
    assert {items.table for m in MEASUREMENTS.values() for items in m.sources} == set(EVENT_COLUMNS)


def test_every_missing_table_and_column_is_in_one_message(tiny: Path) -> None:
    (tiny / "SERVICES.csv").unlink()
    (tiny / "LABEVENTS.csv").unlink()
    write(tiny, {"PATIENTS": TINY["PATIENTS"].replace("dob", "born"), "CHARTEVENTS": "row_id,hadm_id,value\n", "OUTPUTEVENTS": ""})
    with pytest.raises(BadInput) as caught:
        mimic_iii(tiny)
    text = str(caught.value)
    assert len(caught.value.problems) == 5
    for part in (str(tiny), "SERVICES.csv", "LABEVENTS.csv", "no column dob", "no column itemid, valuenum, error", "OUTPUTEVENTS.csv"):
        assert part in text


def test_bad_input_says_what_and_where(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=facts(tmp_path / "nowhere")):
        mimic_iii(tmp_path / "nowhere")
    with pytest.raises(UnknownName, match=suggests("marital_status")):
        mimic_iii(tiny, attribute="marital")
    assert set(ADMISSION_GROUPS) == {"age", "marital_status", "insurance"}

    def with_table(name: str, text: str) -> Path:
        return write(tmp_path / "broken", TINY | {name: text})

    with pytest.raises(BadInput, match=facts(5, 15)):
        mimic_iii(
            with_table("PATIENTS", "subject_id,dob\n" + "".join(f"{i},2109-01-01\n" for i in range(1, 6)).replace("2,2109", "2,2149"))
        )
    with pytest.raises(BadInput, match=facts(1, 5, "ADMISSIONS", "PATIENTS")):
        mimic_iii(with_table("PATIENTS", TINY["PATIENTS"].replace("5,5,F,2033-01-01 00:00:00,0\n", "")))
    with pytest.raises(BadInput, match=facts("hospital_expire_flag", 0, 1, 4)):
        mimic_iii(with_table("ADMISSIONS", TINY["ADMISSIONS"].replace("FALL,1", "FALL,")))
    with pytest.raises(BadInput, match=facts("MIMIC-III", "PATIENTS")):
        mimic_iii(with_table("PATIENTS", TINY["PATIENTS"].replace("2033-01-01", "long ago")))
    with pytest.raises(BadInput, match=facts("MIMIC-III", "CHARTEVENTS", "many")):
        mimic_iii(with_table("CHARTEVENTS", TINY["CHARTEVENTS"].replace("80,80,BPM", "80,many,BPM")))
    with pytest.raises(BadInput, match="group"):
        mimic_iii(with_table("ADMISSIONS", TINY["ADMISSIONS"].replace("SINGLE", "MARRIED")), attribute="marital_status")
    empty = {table: TINY[table].split("\n", 1)[0] + "\n" for table in EVENT_COLUMNS}
    with pytest.raises(BadInput, match=facts("CHARTEVENTS", "LABEVENTS", "OUTPUTEVENTS")):
        mimic_iii(write(tmp_path / "empty", TINY | empty))


def test_an_incomplete_download_is_an_error(tiny: Path) -> None:
    rows = TINY["CHARTEVENTS"] + TINY["CHARTEVENTS"].split("\n", 1)[1] * 3000
    (tiny / "CHARTEVENTS.csv").unlink()
    whole = gzip.compress(rows.encode())
    (tiny / "CHARTEVENTS.csv.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(BadInput, match=facts("CHARTEVENTS.csv.gz")):
        mimic_iii(tiny)


@pytest.fixture(scope="module")
def demo() -> Path:
    root = os.environ.get("EQUIPOISE_DATA")
    if not root:
        pytest.skip("EQUIPOISE_DATA is not set: no MIMIC-III demo to read")
    if not (Path(root) / "mimic-iii-demo").is_dir():
        pytest.skip(f"{root} has no folder 'mimic-iii-demo'")
    return Path(root) / "mimic-iii-demo"


@pytest.fixture(scope="module")
def cohort(demo: Path) -> Cohort:
    return mimic_iii(demo)


def test_demo_rows_and_deaths_equal_plain_pandas(demo: Path, cohort: Cohort) -> None:
    admissions = pd.read_csv(demo / "ADMISSIONS.csv.gz")
    born = pd.read_csv(demo / "PATIENTS.csv.gz").set_index("subject_id")["dob"].str[:10]
    rows = {}
    for subject, stays in admissions.groupby("subject_id"):
        first = stays.sort_values("admittime").iloc[0]
        admitted, birth = first["admittime"][:10], born[subject]
        years = int(admitted[:4]) - int(birth[:4]) - (admitted[5:] < birth[5:])
        if years >= 15:
            rows[int(first["hadm_id"])] = (years, int(first["hospital_expire_flag"]), first["insurance"])
    assert len(cohort) == len(rows) == 100
    assert set(cohort.ids) == set(rows)
    assert [rows[i][1] for i in cohort.ids] == cohort.y.tolist()
    assert cohort.y.sum() == 33
    age = frame_of(cohort)["age"]
    for admission, (years, _, _) in rows.items():
        assert age[admission] == (91.4 if years > 89 else pytest.approx(years + 0.5, abs=0.51))
    public = mimic_iii(demo, attribute="insurance").groups == "public"
    assert public.tolist() == [rows[i][2] in ("Medicare", "Medicaid") for i in cohort.ids]


def test_demo_has_most_measurements_and_encodes_to_finite_inputs(cohort: Cohort) -> None:
    share = frame_of(cohort)[list(MEASUREMENTS)].notna().mean()
    assert (share > 0.5).all()
    assert (share > 0.95).sum() >= 12
    assert cohort.inputs.shape == (100, 22)
    parts = split(cohort, seed=0)
    assert all(bool(part.inputs.isfinite().all()) for part in (parts.train, parts.valid, parts.test))


def test_demo_means_equal_brute_force(demo: Path, cohort: Cohort) -> None:
    chart = pd.read_csv(demo / "CHARTEVENTS.csv.gz", usecols=["hadm_id", "itemid", "valuenum", "error"])
    lab = pd.read_csv(demo / "LABEVENTS.csv.gz", usecols=["hadm_id", "itemid", "valuenum"])
    chart = chart[chart["error"] != 1]
    celsius = chart[chart["itemid"].isin([676, 223762])]
    fahrenheit = chart[chart["itemid"].isin([678, 223761])].assign(valuenum=lambda f: (f["valuenum"] - 32) / 1.8)
    fio2 = pd.concat([chart[chart["itemid"].isin([190, 3420, 3422, 223835])], lab[lab["itemid"] == 50816]])
    fio2 = fio2.assign(valuenum=fio2["valuenum"].where(fio2["valuenum"] > 1, fio2["valuenum"] * 100))
    brute = {
        "temperature": pd.concat([celsius, fahrenheit]).query("20 <= valuenum <= 45"),
        "fio2": fio2.query("21 <= valuenum <= 100"),
        "potassium": lab[lab["itemid"].isin([50822, 50971])].query("0.5 <= valuenum <= 30"),
    }
    frame = frame_of(cohort)
    for feature, rows in brute.items():
        expected = rows.groupby("hadm_id")["valuenum"].mean().reindex(frame.index)
        np.testing.assert_allclose(frame[feature], expected, rtol=0, atol=1e-9, err_msg=feature)


def test_every_table_that_is_read_is_in_the_demo(demo: Path) -> None:
    assert [name for name in ADMISSION_TABLES if not (demo / f"{name}.csv.gz").is_file()] == []
