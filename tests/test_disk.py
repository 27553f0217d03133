"""Files: tables in every common dialect, errors for broken ones, and atomic writes."""

import errno
import gzip
import os
from pathlib import Path

import pandas as pd
import pytest

from equipoise.data import read_table
from equipoise.disk import atomic_path, check_writable, read_bytes, user_cache, write_text
from equipoise.errors import BadInput
from support.facts import facts, suggests

ROWS = {"y": [1, 0], "p": [0.5, 0.25], "name": ["Zoë", "Ana"]}
PLAIN = "y,p,name\n1,0.5,Zoë\n0,0.25,Ana\n"
EXCEL = 'y;p;name\r\n1;0,5;Zoë\r\n0;0,25;"Ana"\r\n'


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(PLAIN.encode(), id="plain"),
        pytest.param(PLAIN.encode("utf-8-sig"), id="byte-order mark"),
        pytest.param(PLAIN.replace(",", "\t").encode("utf-16"), id="Excel's Unicode text"),
        pytest.param(PLAIN.encode("cp1252"), id="Windows"),
        pytest.param(PLAIN.replace(",", "|").encode(), id="bars"),
        pytest.param(PLAIN.replace(",", ", ").encode(), id="spaces"),
        pytest.param(EXCEL.encode("utf-8-sig"), id="Excel"),
        pytest.param(b"sep=;\r\n" + EXCEL.encode(), id="Excel with its separator"),
        pytest.param(gzip.compress(PLAIN.encode()), id="gzipped"),
    ],
)
def test_every_dialect_of_csv_gives_the_same_rows(tmp_path: Path, content: bytes):
    path = tmp_path / "scores.csv"
    path.write_bytes(content)
    frame = read_table(path)
    assert frame.to_dict("list") == ROWS
    assert frame["p"].dtype == float


@pytest.mark.parametrize("name", ["scores.parquet", "scores.pq", "scores"])
def test_parquet_is_recognised_by_its_name_or_its_first_bytes(tmp_path: Path, name: str):
    pd.DataFrame(ROWS).to_parquet(tmp_path / name)
    assert read_table(tmp_path / name).to_dict("list") == ROWS


def test_a_named_parquet_index_is_a_column(tmp_path: Path):
    pd.DataFrame(ROWS).set_index("name").to_parquet(tmp_path / "s.parquet")
    assert read_table(tmp_path / "s.parquet")["name"].tolist() == ["Zoë", "Ana"]


def test_text_with_commas_is_unchanged_between_semicolons(tmp_path: Path):
    (tmp_path / "s.csv").write_text("city;p\nUlm, Bonn;0,5\n1,2;0,1\n")
    assert read_table(tmp_path / "s.csv").to_dict("list") == {"city": ["Ulm, Bonn", "1,2"], "p": [0.5, 0.1]}


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        pytest.param("s.csv", b"", "is empty", id="no bytes"),
        pytest.param("s.csv", b"\n\n", "is empty", id="blank lines"),
        pytest.param("s.csv", gzip.compress(b""), "is empty", id="gzipped nothing"),
        pytest.param("s.csv", b"y,p\n", "header", id="header alone"),
        pytest.param("s.csv", b"y,p,p\n1,2,3\n", "'p'", id="a column twice"),
        pytest.param("s.csv", b'"y";p;y\n1;2;3\n', "'y'", id="a quoted column twice"),
        pytest.param("s.csv", b"y;p\n1;0,5;\n0;0,1;\n", "2 .*3 ", id="trailing separators"),
        pytest.param("s.csv", b'"y","p"\n"1",0,0.5\n"2",1,0.1\n', "2 .*3 ", id="row names from R"),
        pytest.param("s.csv", b"y,p\n1,2\n1,2,3\n", "line 3", id="ragged"),
        pytest.param("s.csv", gzip.compress(b"y,p\n1,2\n")[:-9], "cannot be read", id="cut gzip"),
        pytest.param("s.csv", gzip.compress(b"y,p\n1,2\n")[:10] + b"\xff" * 20, "cannot be read", id="corrupt gzip"),
        pytest.param("s.xlsx", b"PK\x03\x04rest", "Excel.*CSV", id="workbook"),
        pytest.param("s.parquet", b"PAR1 and no more", "cannot be read", id="corrupt parquet"),
        pytest.param("s.parquet", b"y,p\n1,2\n", "cannot be read", id="a CSV called parquet"),
    ],
)
def test_a_broken_file_is_reported_with_the_reason(tmp_path: Path, name: str, content: bytes, expected: str):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadInput, match=f"(?s){tmp_path}/{name}.*{expected}"):
        read_table(tmp_path / name)


@pytest.mark.parametrize("damage", [slice(4, 60), slice(-60, -8), slice(-8, -4)])
def test_a_damaged_parquet_file_is_reported(tmp_path: Path, damage: slice):
    path = tmp_path / "s.parquet"
    pd.DataFrame(ROWS).to_parquet(path)
    content = bytearray(path.read_bytes())
    content[damage] = bytes(len(content[damage]))
    path.write_bytes(content)
    with pytest.raises(BadInput, match=facts("s.parquet")):
        read_table(path)


def test_a_missing_file_is_reported_with_the_folder_and_the_closest_name(tmp_path: Path):
    (tmp_path / "scores.csv").write_text(PLAIN)
    with pytest.raises(BadInput, match=suggests("scores.csv") + f".*{tmp_path}"):
        read_table(tmp_path / "score.csv")
    with pytest.raises(BadInput, match=facts(tmp_path / "nowhere")):
        read_table(tmp_path / "nowhere" / "scores.csv")
    with pytest.raises(BadInput, match="folder"):
        read_table(tmp_path)


def test_bytes_are_unzipped_by_content(tmp_path: Path):
    (tmp_path / "a").write_bytes(gzip.compress(b"text"))
    (tmp_path / "b.gz").write_bytes(b"text")
    assert read_bytes(tmp_path / "a") == read_bytes(tmp_path / "b.gz") == b"text"


def test_an_exception_while_writing_leaves_the_old_file_and_nothing_else(tmp_path: Path):
    target = tmp_path / "result.json"
    target.write_text("old")

    def half_written() -> None:
        with atomic_path(target) as temporary:
            temporary.write_text("half of the n")
            raise RuntimeError("crash")

    with pytest.raises(RuntimeError, match="crash"):
        half_written()
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_the_old_file_exists_until_the_new_one_is_complete(tmp_path: Path):
    target = tmp_path / "result.json"
    target.write_text("old")
    with target.open() as reader:
        with atomic_path(target) as temporary:
            temporary.write_text("new")
            assert target.read_text() == "old"
            assert temporary.parent == tmp_path  # a rename across file systems would not be atomic
        assert reader.read() == "old"  # renamed over, not overwritten
    assert target.read_text() == "new"
    assert list(tmp_path.iterdir()) == [target]


def test_a_written_file_has_ordinary_permissions_and_its_folders_are_created(tmp_path: Path):
    old = os.umask(0o022)
    try:
        path = write_text(tmp_path / "a" / "b.txt", "text")
    finally:
        os.umask(old)
    assert path.read_text() == "text"
    assert path.stat().st_mode & 0o777 == 0o644


def test_the_file_behind_a_link_is_replaced_and_the_link_stays(tmp_path: Path):
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write_text(tmp_path / "link", "text")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "text"


@pytest.mark.parametrize("refuse", [check_writable, lambda path: write_text(path, "text")])
def test_places_that_cannot_be_written_are_refused(tmp_path: Path, refuse):
    (tmp_path / "file").write_text("old")
    os.mkfifo(tmp_path / "pipe")
    before = sorted(tmp_path.iterdir())
    for place, expected in (
        (tmp_path, "it is a folder"),
        (tmp_path / "pipe", "no ordinary file"),
        (tmp_path / "file" / "x", "cannot write"),
    ):
        with pytest.raises(BadInput, match=expected):
            refuse(place)
    assert sorted(tmp_path.iterdir()) == before
    assert (tmp_path / "file").read_text() == "old"


def test_check_writable_creates_nothing(tmp_path: Path):
    check_writable(tmp_path / "new" / "folder" / "x.json")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_refused(tmp_path: Path):
    tmp_path.chmod(0o500)
    for refuse in (check_writable, lambda path: write_text(path, "text")):
        with pytest.raises(BadInput, match=facts("x.json")):
            refuse(tmp_path / "x.json")
    tmp_path.chmod(0o700)


def test_the_cache_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("EQUIPOISE_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert user_cache() == tmp_path / "equipoise"
    monkeypatch.setenv("EQUIPOISE_CACHE", str(tmp_path / "cache"))
    assert user_cache() == tmp_path / "cache"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
def test_the_error_of_a_full_disk_names_the_file(tmp_path):
    def full() -> None:
        with atomic_path(tmp_path / "decisions.csv") as temporary:
            temporary.unlink()
            temporary.symlink_to("/dev/full")
            temporary.write_text("x" * 100)

    with pytest.raises(OSError) as caught:
        full()
    assert caught.value.errno == errno.ENOSPC
    assert caught.value.filename == str(tmp_path / "decisions.csv")
    assert list(tmp_path.iterdir()) == []


def test_temporary_files_of_killed_processes_are_removed_and_those_of_running_ones_stay(tmp_path):
    for name in ("decisions.csv.abcdefgh", "other.csv.abcdefgh"):
        (tmp_path / f".equipoise.{name}.tmp").write_text("r1,0.5,1")
    with atomic_path(tmp_path / "decisions.csv") as running:
        with atomic_path(tmp_path / "decisions.csv") as temporary:
            temporary.write_text("second")
        assert running.exists()
        assert (tmp_path / "decisions.csv").read_text() == "second"
        running.write_text("first")
    assert (tmp_path / "decisions.csv").read_text() == "first"
    assert sorted(path.name for path in tmp_path.iterdir()) == [".equipoise.other.csv.abcdefgh.tmp", "decisions.csv"]
