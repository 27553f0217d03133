"""Adult, Bank and COMPAS: exact tables from the real files, and each rule of a recipe on a few rows written by hand."""

import csv
import gzip
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from equipoise.data import Cohort, FeatureTable, split
from equipoise.errors import BadInput
from equipoise.studies.sets.tabular import adult, anonymous, bank, compas

RECIPES: dict[str, Callable[..., Cohort]] = {"adult": adult, "bank": bank, "compas": compas}
PROTECTED = {"adult": "sex", "bank": "age", "compas": "race"}
SHAPES = {"adult": (45_222, 98), "bank": (30_488, 57), "compas": (6_167, 401)}
POSITIVES = {"adult": 11_208, "bank": 3_859, "compas": 2_809}
GROUPS = {
    "adult": {"Male": 30_527, "Female": 14_695},
    "bank": {"25 and over": 29_624, "under 25": 864},
    "compas": {"Caucasian": 2_100, "not Caucasian": 4_067},
}
PARTS = {"adult": (27_133, 9_044, 9_045), "bank": (18_292, 6_098, 6_098), "compas": (3_700, 1_233, 1_234)}


def folder(name: str) -> Path:
    root = os.environ.get("EQUIPOISE_DATA")
    if not root:
        pytest.skip("EQUIPOISE_DATA is not set: no real data to read")
    if not (Path(root) / name).is_dir():
        pytest.skip(f"{root} has no folder {name!r}")
    return Path(root) / name


@pytest.fixture(scope="module", params=RECIPES)
def real(request: pytest.FixtureRequest) -> Cohort:
    return RECIPES[request.param](folder(request.param))


def features(cohort: Cohort) -> pd.DataFrame:
    assert isinstance(cohort.source, FeatureTable)
    return cohort.source.frame


def test_the_table_is_the_published_one(real: Cohort) -> None:
    assert features(real).shape == SHAPES[real.name]
    assert int(real.y.sum()) == POSITIVES[real.name]
    assert pd.Series(real.groups).value_counts().to_dict() == GROUPS[real.name]
    assert real.attribute.reference == next(iter(GROUPS[real.name]))
    assert real.attribute.name == PROTECTED[real.name]
    assert real.inputs.isfinite().all()


def test_the_parts_have_the_published_sizes(real: Cohort) -> None:
    parts = split(real, seed=1)
    assert tuple(len(part) for part in parts) == PARTS[real.name]
    assert parts.unseen == {}
    assert all(part.inputs.shape[1] == SHAPES[real.name][1] for part in parts)


def test_every_row_has_exactly_one_level_per_category(real: Cohort) -> None:
    levels = features(real).filter(like="=")
    families = levels.T.groupby(levels.columns.str.split("=").str[0]).sum()
    assert len(families) == {"adult": 6, "bank": 10, "compas": 3}[real.name]
    assert (families == 1.0).all(axis=None)


def test_the_attribute_is_one_binary_input_or_none(real: Cohort) -> None:
    column = features(real)[PROTECTED[real.name]]
    assert np.array_equal(column == 1.0, real.groups == real.attribute.reference)
    without = RECIPES[real.name](folder(real.name), attribute_as_input=False)
    assert features(without).equals(features(real).drop(columns=PROTECTED[real.name]))
    assert np.array_equal(without.groups, real.groups)


def raw_base_rates(name: str) -> dict[str, float]:
    """The share of positives per group, computed from the raw file."""
    rows: list[tuple[str, bool]] = []
    if name == "adult":
        for file, first in (("adult.data.gz", 0), ("adult.test.gz", 1)):
            lines = gzip.decompress((folder(name) / file).read_bytes()).decode().splitlines()[first:]
            cells = [line.split(", ") for line in lines if line]
            rows += [(c[9], c[14].startswith(">50K")) for c in cells if "?" not in c]
    else:
        path = next(folder(name).glob("*.csv.gz"))
        with gzip.open(path, "rt", newline="") as opened:
            records = list(csv.DictReader(opened, delimiter=";" if name == "bank" else ","))
        if name == "bank":
            known = [r for r in records if "unknown" not in r.values()]
            rows = [("under 25" if int(r["age"]) < 25 else "25 and over", r["y"] == "yes") for r in known]
        else:
            near = [r for r in records if r["days_b_screening_arrest"] and abs(float(r["days_b_screening_arrest"])) <= 30]
            known = [r for r in near if r["is_recid"] != "-1" and r["c_charge_degree"] != "O" and r["c_charge_desc"]]
            rows = [("Caucasian" if r["race"] == "Caucasian" else "not Caucasian", r["two_year_recid"] == "1") for r in known]
    rates = pd.DataFrame(rows, columns=["group", "y"]).groupby("group")["y"].mean()
    return {str(group): float(rate) for group, rate in rates.items()}


def test_base_rates_agree_with_the_raw_file(real: Cohort) -> None:
    expected = raw_base_rates(real.name)
    assert set(expected) == set(GROUPS[real.name])
    for group, rate in expected.items():
        assert real.y[real.groups == group].mean() == pytest.approx(rate, abs=1e-12)


ADULT = {
    "adult.data": "30, Private, 1, HS-grad, 9, Divorced, Sales, Wife, White, Female, 5, 0, 40, Cuba, >50K\n"
    "31, ?, 1, HS-grad, 9, Divorced, Sales, Wife, White, Male, 0, 0, 40, Cuba, >50K\n\n",
    "adult.test": "|1x3 Cross validator\n"
    "32, State-gov, 1, HS-grad, 9, Divorced, Sales, Wife, Black, Male, 0, 0, 40, Cuba, >50K.\n"
    "33, State-gov, 1, HS-grad, 9, Divorced, Sales, Wife, White, Male, 0, 0, 40, Cuba, <=50K.\n\n",
}


def test_adult_rules(tmp_path: Path) -> None:
    for name, text in ADULT.items():
        (tmp_path / name).write_text(text)
    cohort = adult(tmp_path)
    assert cohort.ids.tolist() == [0, 2, 3]
    assert cohort.y.tolist() == [1, 1, 0]
    assert cohort.groups.tolist() == ["Female", "Male", "Male"]
    table = features(cohort)
    assert table["race"].tolist() == [1.0, 0.0, 1.0]
    assert table["workclass=State-gov"].tolist() == [0.0, 1.0, 1.0]
    assert table["capital-gain"].tolist() == [5.0, 0.0, 0.0]
    assert not [c for c in map(str, table) if "fnlwgt" in c or "income" in c]


BANK_HEADER = (
    "age;job;marital;education;default;housing;loan;contact;month;day_of_week;duration;campaign;pdays;previous;poutcome;"
    "emp.var.rate;cons.price.idx;cons.conf.idx;euribor3m;nr.employed;y"
)


def test_bank_rules(tmp_path: Path) -> None:
    call = "{age};{job};single;basic.4y;no;no;no;telephone;may;mon;261;1;999;0;nonexistent;1.1;93.9;-36.4;4.8;5191;{y}"
    lines = [
        call.format(age=24, job="student", y="yes"),
        call.format(age=25, job="admin.", y="no"),
        call.format(age=60, job="unknown", y="yes"),
        call.format(age=60, job="retired", y="yes"),
    ]
    (tmp_path / "bank-additional-full.csv").write_text("\r\n".join([BANK_HEADER, *lines]))
    cohort = bank(tmp_path)
    assert cohort.ids.tolist() == [0, 1, 3]
    assert cohort.y.tolist() == [1, 0, 1]
    assert cohort.groups.tolist() == ["under 25", "25 and over", "25 and over"]
    assert features(cohort)["age"].tolist() == [0.0, 1.0, 1.0]
    assert "y" not in features(cohort)
    assert "job=unknown" not in features(cohort)


DEFENDANT = {
    "id": "1", "name": "Zz Secret", "first": "Zz", "last": "Secret", "sex": "Male", "dob": "1950-12-31", "age": "40", "age_cat": "25 - 45",
    "race": "Caucasian", "juv_fel_count": "0", "juv_misd_count": "0", "juv_other_count": "0", "priors_count": "3",
    "days_b_screening_arrest": "-1", "c_case_number": "SECRET-17", "c_charge_degree": "F", "c_charge_desc": "Battery", "is_recid": "0",
    "score_text": "Low", "two_year_recid": "0",
}  # fmt: skip
IDENTIFYING = ("name", "first", "last", "dob", "c_case_number")


def defendants(*changes: dict[str, str], without: tuple[str, ...] = ()) -> bytes:
    rows = [{k: v for k, v in (DEFENDANT | change).items() if k not in without} for change in changes]
    text: str = pd.DataFrame(rows).to_csv(index=False)
    return text.encode()


def test_compas_rules(tmp_path: Path) -> None:
    content = defendants(
        {},
        {"days_b_screening_arrest": "31"},
        {"days_b_screening_arrest": ""},
        {"days_b_screening_arrest": "-30", "race": "Asian", "sex": "Female", "two_year_recid": "1"},
        {"is_recid": "-1"},
        {"c_charge_degree": "O"},
        {"score_text": "N/A"},
        {"c_charge_desc": ""},
        {"race": "Other", "c_charge_degree": "M"},
    )
    (tmp_path / "compas-scores-two-years.csv").write_bytes(content)
    cohort = compas(tmp_path)
    assert cohort.ids.tolist() == [0, 3, 8]
    assert cohort.y.tolist() == [0, 1, 0]
    assert cohort.groups.tolist() == ["Caucasian", "not Caucasian", "not Caucasian"]
    table = features(cohort)
    assert table["sex"].tolist() == [0.0, 1.0, 0.0]
    assert table["c_charge_degree=M"].tolist() == [0.0, 0.0, 1.0]
    assert table["priors_count"].tolist() == [3.0, 3.0, 3.0]
    assert not [c for c in map(str, table) if c.split("=")[0] in {*IDENTIFYING, "id", "is_recid", "two_year_recid", "score_text"}]


def test_compas_content_is_the_same_for_every_copy_and_identifies_nobody() -> None:
    changes: tuple[dict[str, str], ...] = ({}, {"race": "Other", "days_b_screening_arrest": ""}, {"score_text": "N/A"})
    full = defendants(*changes)
    reduced = defendants(*changes, without=IDENTIFYING)
    reprinted = reduced.replace(b",-1,", b",-1.0,").replace(b"N/A", b"")
    assert reprinted != reduced != full
    assert b"Secret" in full
    assert anonymous(full) == anonymous(reduced) == anonymous(reprinted) == anonymous(anonymous(full))
    assert not any(secret in anonymous(full) for secret in (b"Secret", b"Zz", b"1950", b"SECRET"))
    assert anonymous(defendants({}, {"priors_count": "4"})) != anonymous(defendants({}, {"priors_count": "5"}))


def test_the_second_of_two_columns_with_one_name_is_ignored() -> None:
    # The published file has priors_count and decile_score twice.
    header, row, _ = defendants({}).decode().split("\n")
    assert anonymous(f"{header},priors_count\n{row},99\n".encode()) == anonymous(defendants({}))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (defendants({}, without=("race",)), "race"),
        (defendants({"age": "old"}), "cannot be read"),
        (defendants({"age": "1.5"}), "cannot be read"),
        (b"", "cannot be read"),
        (b"\xff\xfe\x00junk", "cannot be read|no column"),
    ],
)
def test_a_file_that_is_not_compas_is_refused(content: bytes, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        anonymous(content)
