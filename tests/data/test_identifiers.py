"""Identifiers and groups are text: read exactly as written in the file and never as numbers."""

import gzip
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise import Cohort, Scores, audit, split
from equipoise.data import Columns, as_parsed, read_cohort, read_table
from equipoise.data.table_files import MISSING_WORDS
from equipoise.errors import BadInput
from support.facts import facts

ODD = [
    "007",
    "7",
    "7.0",
    "00017",
    "123456789012345678",
    "123456789012345679",
    "9" * 40,
    "NA",
    "null",
    "None",
    "nan",
    "N/A",
    "1e5",
    "100000",
    "True",
    "true",
    "2026-11-15",
    "15.11.2026",
    "0x1F",
    "1,5",
    "Zoë Å 李",
    "  blanks  ",
    "blanks",
    'quo"ted',
    "semi;colon",
    "-inf",
    "+1",
    "=1+1",
]


def _written(path: Path, frame: pd.DataFrame) -> Path:
    frame.to_parquet(path, index=False) if path.suffix == ".parquet" else frame.to_csv(path, index=False)
    return path


@pytest.mark.parametrize("name", ["ids.csv", "ids.parquet"])
def test_text_is_read_unchanged(tmp_path: Path, name: str):
    frame = pd.DataFrame({"id": ODD, "x": np.arange(len(ODD)), "sex": ["F", "M"] * (len(ODD) // 2)})
    found = read_table(_written(tmp_path / name, frame), text=["id", "sex"])
    assert found["id"].tolist() == ODD
    assert found["x"].dtype.kind == "i"


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_text_is_read_unchanged_with_any_separator(tmp_path: Path, separator: str):
    pd.DataFrame({"id": ODD, "p": 0.5}).to_csv(tmp_path / "ids.csv", index=False, sep=separator)
    assert read_table(tmp_path / "ids.csv", text=["id"])["id"].tolist() == ODD


def test_only_an_empty_cell_is_missing(tmp_path: Path):
    (tmp_path / "ids.csv").write_text('id,x\n,1\nNA,NA\n"",3\n0,4\n')
    found = read_table(tmp_path / "ids.csv", text=["id"])
    assert found["id"].isna().tolist() == [True, False, True, False]
    assert found["id"].dropna().tolist() == ["NA", "0"]
    assert found["x"].isna().tolist() == [False, True, False, False]


def test_words_for_missing_are_missing_in_columns_of_words(tmp_path: Path):
    (tmp_path / "labels.csv").write_text("y\n1.0\nNA\nyes\n")
    found = read_table(tmp_path / "labels.csv", words=["y"])["y"]
    assert found.isna().tolist() == [False, True, False]
    assert found.dropna().tolist() == ["1.0", "yes"]


def test_the_words_for_missing_are_those_of_pandas():
    from pandas._libs.parsers import STR_NA_VALUES

    assert set(STR_NA_VALUES) - {" "} <= MISSING_WORDS


def test_a_blank_after_every_separator_belongs_to_the_separator(tmp_path: Path):
    (tmp_path / "a.csv").write_text('y, id, sex\n1, 007, "F, x"\n0, 7, M\n')
    assert read_table(tmp_path / "a.csv", text=["id", "sex"]).to_dict("list") == {"y": [1, 0], "id": ["007", "7"], "sex": ["F, x", "M"]}
    (tmp_path / "b.csv").write_text("y,id\n1, 007\n0,007\n")
    assert read_table(tmp_path / "b.csv", text=["id"])["id"].tolist() == [" 007", "007"]
    (tmp_path / "c.csv").write_text('y,id,sex\n1, 007, "F, x"\n0, 7, M\n')
    assert read_table(tmp_path / "c.csv", text=["id", "sex"]).to_dict("list") == {"y": [1, 0], "id": ["007", "7"], "sex": ["F, x", "M"]}


def test_one_field_with_a_blank_before_its_quotation_mark_leaves_others_unchanged(tmp_path: Path):
    (tmp_path / "a.csv").write_text('y,id,sex\n1, "x",F\n0, 007, M\n1,007,M\n')
    found = read_table(tmp_path / "a.csv", text=["id", "sex"])
    assert found["id"].tolist() == [' "x"', " 007", "007"]
    assert found["sex"].tolist() == ["F", " M", "M"]


def test_column_names_with_blanks_are_matched_without_them(tmp_path: Path):
    (tmp_path / "a.csv").write_text(" id ,x\n007,1\n")
    assert read_table(tmp_path / "a.csv", text=["id"])["id"].tolist() == ["007"]
    (tmp_path / "b.csv").write_text('\n\n"id",,x\n007,3,1\n')
    found = read_table(tmp_path / "b.csv", text=["id"])
    assert found["id"].tolist() == ["007"]
    assert found["Unnamed: 1"].tolist() == [3]


def test_a_header_longer_than_the_sample_is_read(tmp_path: Path):
    names = [f"column_{k:06d}" for k in range(8000)]
    (tmp_path / "wide.csv").write_text(",".join([*names, "id"]) + "\n" + ",".join(["1"] * 8000 + ["007"]) + "\n")
    assert read_table(tmp_path / "wide.csv", text=["id"])["id"].tolist() == ["007"]


def test_integers_in_parquet_are_exact_even_with_gaps(tmp_path: Path):
    ids = pa.array([123456789012345678, None, 123456789012345679, 7])
    pq.write_table(pa.table({"id": ids, "u": pa.array([2**64 - 1, None, 0, 1], pa.uint64())}), tmp_path / "a.parquet")
    found = read_table(tmp_path / "a.parquet", text=["id", "u"])
    assert found["id"].tolist() == ["123456789012345678", None, "123456789012345679", "7"]
    assert found["u"].tolist() == ["18446744073709551615", None, "0", "1"]


@pytest.mark.parametrize(
    ("values", "names"),
    [
        (pa.array([1.0, None, 2.5]), ["1", None, "2.5"]),
        (pa.array([True, False, None]), ["True", "False", None]),
        (pa.array([b"007", b"7", None]), ["007", "7", None]),
        (pa.array(["007", "", None]).dictionary_encode(), ["007", None, None]),
        (pa.array([1, 2, 1]).dictionary_encode(), ["1", "2", "1"]),
        (pa.array(["2026-11-15"] * 3).cast(pa.date32()), ["2026-11-15"] * 3),
        (pa.nulls(3), [None] * 3),
    ],
)
def test_other_types_in_parquet_have_names(tmp_path: Path, values: pa.Array, names: list[str | None]):
    pq.write_table(pa.table({"id": values, "x": [1, 2, 3]}), tmp_path / "a.parquet")
    assert read_table(tmp_path / "a.parquet", text=["id"])["id"].tolist() == names


def test_floating_point_ids_too_large_to_be_exact_are_refused(tmp_path: Path):
    pq.write_table(pa.table({"id": [123456789012345678.0, 1.0]}), tmp_path / "a.parquet")
    with pytest.raises(BadInput, match=facts("id", "1.2345678901234568e+17")):
        read_table(tmp_path / "a.parquet", text=["id"])
    frame = pd.DataFrame({"y": [0, 1], "p": [0.1, 0.9], "sex": ["F", "M"], "pid": [123456789012345678.0, 1.0]})
    with pytest.raises(BadInput, match=facts("pid", "dtype=str")):
        Scores.from_frame(frame, label="y", score="p", group="sex", patient="pid")


def test_a_named_range_index_of_pandas_is_a_column_and_damaged_metadata_are_ignored(tmp_path: Path):
    pd.DataFrame({"y": [1, 0]}, index=pd.RangeIndex(5, 7, name="id")).to_parquet(tmp_path / "a.parquet")
    assert read_table(tmp_path / "a.parquet", text=["id"])["id"].tolist() == ["5", "6"]
    table = pq.read_table(tmp_path / "a.parquet")
    for damaged in (b"{", b"[]", b'{"index_columns": 1}', b'{"index_columns": [{"kind": "range", "name": "id"}]}', b"\xff\xfe"):
        pq.write_table(table.replace_schema_metadata({b"pandas": damaged}), tmp_path / "b.parquet")
        assert read_table(tmp_path / "b.parquet")["y"].tolist() == [1, 0]


@given(st.lists(st.text(st.characters(codec="utf-8"), min_size=1), min_size=1, max_size=8))
def test_any_text_survives_csv_and_parquet(tmp_path_factory, ids):
    folder = tmp_path_factory.mktemp("ids")
    frame = pd.DataFrame({"id": ids, "x": 0.5}).astype({"id": object})
    frame.to_parquet(folder / "a.parquet", index=False)
    assert read_table(folder / "a.parquet", text=["id"])["id"].tolist() == ids
    frame.to_csv(folder / "a.csv", index=False, quoting=1)  # quotes every cell
    assert read_table(folder / "a.csv", text=["id"])["id"].tolist() == ids


# identifiers in cohorts and scores


def _table(patients: list[str]) -> pd.DataFrame:
    n = len(patients)
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "pid": np.repeat(patients, 2),
            "id": [f"{k:04d}" for k in range(2 * n)],
            "ward": np.tile(["01", "1"], n),
            "y": np.tile([0, 1, 1, 0], n)[: 2 * n],
            "p": rng.random(2 * n),
            "x": rng.normal(size=2 * n),
        }
    )


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_007_and_7_are_two_patients_and_01_and_1_two_groups(tmp_path: Path, name: str):
    frame = read_table(_written(tmp_path / name, _table(ODD)), text=["pid", "id", "ward"])
    scores = Scores.from_frame(frame, label="y", score="p", group="ward", reference="01", patient="pid", id="id")
    assert scores.patients.tolist() == np.repeat(ODD, 2).tolist()
    assert scores.ids.tolist() == [f"{k:04d}" for k in range(2 * len(ODD))]
    assert scores.attributes[0].levels == ("01", "1")
    found = audit(scores)
    assert found.patients == len(ODD)
    parts = split(Cohort.from_frame(frame, label="y", group="ward", patient="pid", id="id", features=["x"]), seed=1)
    patients = [set(part.patients) for part in parts]
    assert set.union(*patients) == set(ODD)
    assert sum(map(len, patients)) == len(ODD)


def test_a_group_that_is_also_an_input_is_parsed_as_a_number(tmp_path: Path):
    (tmp_path / "t.csv").write_text("y,sex,age\n0,0,41\n1,1,\n0,01,50\n1,0,60\n")
    cohort = read_cohort(tmp_path / "t.csv", Columns(label="y", group="sex", features=["sex", "age"], raw=True)).cohort
    assert cohort.attributes[0].levels == ("0", "01", "1")
    assert cohort.inputs[:, 0].tolist() == [0, 1, 1, 0]


def test_as_parsed_gives_what_pandas_would_have_read():
    assert as_parsed(pd.Series(["1", None, "2"], dtype=object)).tolist()[::2] == [1.0, 2.0]
    assert as_parsed(pd.Series(["01", "1"])).tolist() == [1, 1]
    assert as_parsed(pd.Series(["True", "False"])).tolist() == [True, False]
    assert as_parsed(pd.Series(['a"b', "c\nd"])).tolist() == ['a"b', "c\nd"]


def test_ids_of_frames_are_unchanged():
    frame = _table(["1", "2", "3"]).assign(pid=np.repeat([1.0, 2.0, 3.0], 2), id=pd.array([10, 11, 12, 13, 14, 15], dtype="Int64"))
    scores = Scores.from_frame(frame, label="y", score="p", group="ward", patient="pid", id="id")
    assert scores.patients.tolist() == [1, 1, 2, 2, 3, 3]
    assert all(isinstance(patient, int) for patient in scores.patients)
    assert scores.ids.tolist() == [10, 11, 12, 13, 14, 15]


def test_groups_that_differ_only_in_blanks_are_kept_apart_with_a_warning(caplog):
    frame = _table(["1", "2", "3"]).assign(ward=["F", "F ", "F", "F ", "F", "F "])
    scores = Scores.from_frame(frame, label="y", score="p", group="ward")
    assert sorted(scores.attributes[0].levels) == ["F", "F "]
    assert "'F', 'F '" in caplog.text


def test_the_positive_label_is_the_text_of_the_file():
    text = pd.DataFrame({"y": ["1", "1.0", "01", "0"], "p": 0.5, "sex": ["F", "F", "M", "M"]})
    assert Scores.from_frame(text, label="y", score="p", group="sex", positive="1.0").y.tolist() == [0, 1, 0, 0]
    numbers = text.assign(y=[1.0, 2.0, 1.0, 0.0])
    assert Scores.from_frame(numbers, label="y", score="p", group="sex", positive="1").y.tolist() == [1, 0, 1, 0]


# limits and damage


def test_a_table_that_unzips_to_more_than_the_limit_is_refused(tmp_path: Path, monkeypatch):
    content = b"y,p\n" + b"1,0.5\n" * 20_000
    (tmp_path / "a.csv").write_bytes(content)
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(content))
    # Two members: the length at the end of the file is that of the last one only.
    (tmp_path / "c.csv.gz").write_bytes(gzip.compress(content) + gzip.compress(b"1,0.5\n"))
    for name in ("a.csv", "b.csv.gz", "c.csv.gz"):
        with pytest.raises(BadInput, match=facts(name, "100,000", "data.max_table_bytes", "EQUIPOISE_MAX_TABLE_BYTES")):
            read_table(tmp_path / name, limit=100_000)
        monkeypatch.setenv("EQUIPOISE_MAX_TABLE_BYTES", "100000")
        with pytest.raises(BadInput, match=facts("100,000")):
            read_table(tmp_path / name)
        monkeypatch.setenv("EQUIPOISE_MAX_TABLE_BYTES", "1000000")
        assert len(read_table(tmp_path / name)) >= 20_000
    monkeypatch.setenv("EQUIPOISE_MAX_TABLE_BYTES", "1 GB")
    with pytest.raises(BadInput, match=facts("EQUIPOISE_MAX_TABLE_BYTES", "1 GB")):
        read_table(tmp_path / "a.csv")


def test_a_parquet_file_of_many_equal_rows_is_refused_by_its_size_in_memory(tmp_path: Path):
    pq.write_table(pa.table({"y": np.zeros(200_000, np.int64)}), tmp_path / "a.parquet")
    assert (tmp_path / "a.parquet").stat().st_size < 10_000
    with pytest.raises(BadInput, match=facts("a.parquet", "1,600,000", "1,000,000")):
        read_table(tmp_path / "a.parquet", limit=1_000_000)
    assert len(read_table(tmp_path / "a.parquet", limit=1_600_000)) == 200_000


def test_a_long_text_in_every_row_of_parquet_is_stored_once(tmp_path: Path):
    table = pa.table({"note": pa.array(["x" * 100_000] * 5_000).dictionary_encode(), "y": np.zeros(5_000)})
    pq.write_table(table, tmp_path / "a.parquet")  # 500 MB as separate texts
    found = read_table(tmp_path / "a.parquet", limit=1_000_000)["note"]
    assert len({id(text) for text in found}) == 1


@pytest.mark.parametrize(
    "values",
    [pa.array([[1], [2]]), pa.array([{"a": 1}, {"a": 2}]), pa.array([[("a", 1)], []], pa.map_(pa.string(), pa.int64()))],
)
@pytest.mark.parametrize("role", ["label", "score", "group", "patient", "id"])
def test_lists_and_records_are_refused_in_every_role(tmp_path: Path, values: pa.Array, role: str):
    columns = {"label": "y", "score": "p", "group": "sex", "patient": "pid", "id": "id"}
    table = {"y": [0, 1], "p": [0.1, 0.9], "sex": ["F", "M"], "pid": ["1", "2"], "id": ["a", "b"], columns[role]: values}
    pq.write_table(pa.table(table), tmp_path / "a.parquet")
    with pytest.raises(BadInput, match=facts(columns[role], "lists")):
        Scores.from_frame(read_table(tmp_path / "a.parquet"), **columns)
    if role in ("patient", "id", "group"):
        with pytest.raises(BadInput, match=facts(columns[role], "lists")):
            read_table(tmp_path / "a.parquet", text=[columns[role]])


@pytest.mark.parametrize("label", ["9" * 400, "-" + "9" * 400, "1e999"])
def test_a_number_too_large_for_any_type_is_refused_as_label_and_score(tmp_path: Path, label: str):
    (tmp_path / "a.csv").write_text(f"y,p,sex\n0,0.1,F\n1,0.2,M\n{label},0.3,F\n")
    with pytest.raises(BadInput, match=facts("y", 0, 1, 3)):
        Scores.from_frame(read_table(tmp_path / "a.csv"), label="y", score="p", group="sex")
    (tmp_path / "a.csv").write_text(f"p,y,sex\n0.1,0,F\n0.2,1,M\n{label},0,F\n")
    with pytest.raises(BadInput, match=facts("p", 1, 3)):
        Scores.from_frame(read_table(tmp_path / "a.csv"), label="y", score="p", group="sex")


def test_one_bad_byte_does_not_change_the_encoding_of_all_ids(tmp_path: Path):
    content = "id,x\nZoë,1\n李,2\nAna,3\n".encode()
    (tmp_path / "a.csv").write_bytes(content + b"caf\xe9,4\n")
    with pytest.raises(BadInput, match=facts("a.csv", 1, "UTF-8", 5)):
        read_table(tmp_path / "a.csv", text=["id"])
    (tmp_path / "b.csv").write_bytes("id,x\nZoë,1\ncafé,2\n".encode("cp1252"))
    assert read_table(tmp_path / "b.csv", text=["id"])["id"].tolist() == ["Zoë", "café"]


@pytest.mark.parametrize("name", ["rows.csv", "rows.parquet"])
def test_images_are_found_by_their_name_with_leading_zeros(tmp_path: Path, name: str):
    from PIL import Image

    names = ["00012", "12", "012", "1e5", "100000"]
    (tmp_path / "xrays").mkdir()
    for k, stem in enumerate(names):
        Image.fromarray(np.full((8, 8), 40 * k, np.uint8)).save(tmp_path / "xrays" / f"{stem}.png")
    rows = pd.DataFrame({"image": names, "y": [0, 1, 0, 1, 0], "sex": ["F", "M", "F", "M", "F"]})
    frame = read_table(_written(tmp_path / name, rows), text=["image", "sex"])
    cohort = Cohort.from_images(frame, folder=tmp_path / "xrays", image="image", label="y", group="sex", size=8, mean=[0], std=[1])
    assert cohort.ids.tolist() == names
    assert (cohort.inputs[:][:, 0, 0, 0] * 255).round().tolist() == [0, 40, 80, 120, 160]


@pytest.mark.parametrize("kind", [np.float32, np.float16])
def test_low_precision_floating_point_ids_are_refused_if_they_are_not_exact(tmp_path: Path, kind: type):
    first = 2 ** (np.finfo(kind).nmant + 1)  # from here on, consecutive ids may be the same number
    for start, fine in ((0, True), (first, False)):
        ids = (np.arange(6) % 3 + start).astype(kind)
        frame = pd.DataFrame({"id": ids, "y": [0, 1] * 3, "p": np.linspace(0, 1, 6), "sex": ["F", "M"] * 3})
        path = tmp_path / "ids.parquet"
        pq.write_table(pa.table({"id": pa.array(ids)}), path)
        columns = {"label": "y", "score": "p", "group": "sex", "patient": "id"}
        if fine:
            assert read_table(path, text=["id"])["id"].tolist() == ["0", "1", "2"] * 2
            assert len(set(Scores.from_frame(frame, **columns).patients)) == 3
            assert len(set(Scores.from_arrays(frame["y"], frame["p"], frame["sex"], patients=ids).patients)) == 3
            continue
        with pytest.raises(BadInput, match=facts("id")):
            read_table(path, text=["id"])
        # pandas has no categories of the other types
        for variant in (frame, *([frame.astype({"id": "category"})] if kind is np.float32 else [])):
            with pytest.raises(BadInput, match=facts("id")):
                Scores.from_frame(variant, **columns)
        with pytest.raises(BadInput, match=facts("patient")):
            Scores.from_arrays(frame["y"], frame["p"], frame["sex"], patients=ids)
        with pytest.raises(BadInput, match=facts("patient")):
            Cohort.from_arrays(np.zeros((6, 2), np.float32), frame["y"], frame["sex"], patients=ids)


def test_a_blank_patient_id_is_refused(tmp_path: Path):
    path = tmp_path / "scores.csv"
    path.write_text("id,y,p,sex\n  ,0,0.1,F\n  ,1,0.9,M\nb,0,0.2,F\nc,1,0.8,M\n")
    frame = read_table(path, text=["id", "sex"])
    with pytest.raises(BadInput, match=facts(2, 4, "rows")) as refused:
        Scores.from_frame(frame, label="y", score="p", group="sex", patient="id")
    assert "'id'" in str(refused.value)


def test_an_id_that_is_both_a_number_and_text_is_refused():
    # pandas reads a large file in chunks; if one of them holds a letter, types are mixed.
    frame = pd.DataFrame(
        {"id": pd.Series([7, "7", 8, "x"], dtype=object), "y": [0, 1] * 2, "p": [0.1, 0.9] * 2, "sex": ["F", "F", "M", "M"]}
    )
    with pytest.raises(BadInput, match=r"'id'.*7"):
        Scores.from_frame(frame, label="y", score="p", group="sex", patient="id")
    with pytest.raises(BadInput, match=r"'id'.*7"):
        Scores.from_frame(frame.astype({"id": "category"}), label="y", score="p", group="sex", patient="id")
    told_apart = frame.assign(id=pd.Series([7, "07", 8, "x"], dtype=object))
    assert len(set(Scores.from_frame(told_apart, label="y", score="p", group="sex", patient="id").patients)) == 4


def test_a_first_row_of_separators_does_not_shift_the_columns(tmp_path: Path):
    path = tmp_path / "ids.csv"
    path.write_text("id,x,z,w\n,,,,\n007,1,2,3\n8,4,5,6\n")  # pandas takes the first field of every row for the row name
    with pytest.raises(BadInput, match=facts(4, "names", 5, "fields")):
        read_table(path, text=["id"])


def test_a_table_in_another_encoding_is_read_with_a_warning(tmp_path: Path, caplog):
    path = tmp_path / "ids.csv"
    for encoding, ids in (("utf-8", ["é", "Ж"]), ("cp1252", ["é", "ü"]), ("cp1251", ["Ж", "Д"])):
        caplog.clear()
        path.write_bytes("\n".join(["id", *ids]).encode(encoding))
        found = read_table(path, text=["id"])["id"].tolist()
        assert (found == ids) == (encoding != "cp1251")  # the encoding cannot be detected
        assert ("ids.csv" in caplog.text) == (encoding != "utf-8")
