"""The catalogue: loading by name, downloads, and the errors for a wrong name, option, file or network."""

import gzip
import io
import os
import re
import urllib.error
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from equipoise.data import Cohort
from equipoise.disk import read_bytes, sha256
from equipoise.errors import BadInput, UnknownName
from equipoise.studies import CATALOGUE, File, Recipe, check_files, fetch, load
from equipoise.studies.sets import locate
from equipoise.studies.sets.tabular import anonymous
from support.facts import facts, says, suggests

REAL_ROOT = os.environ.get("EQUIPOISE_DATA")  # read before the fixture below removes it
GOOD = {"a.csv": b"0,x\n1,z\n1,x\n", "b.csv": b"second\n"}


def read_tiny(root: Path, *, attribute_as_input: bool = True) -> Cohort:
    path = next(p for p in (root / "a.csv", root / "a.csv.gz") if p.exists())
    rows = [line.split(",") for line in read_bytes(path).decode().split()]
    inputs = np.ones((len(rows), 2 if attribute_as_input else 1), np.float32)
    return Cohort.from_arrays(inputs, [int(y) for y, _ in rows], [g for _, g in rows], name="tiny")


def recipe(*files: File) -> Recipe:
    return Recipe("tiny", read_tiny, "group", "three rows", "nobody", 3, 2, files, "none")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary cache, and a catalogue with one more data set, called tiny."""
    monkeypatch.delenv("EQUIPOISE_DATA", raising=False)
    monkeypatch.setenv("EQUIPOISE_CACHE", str(tmp_path / "cache"))
    files = [File(name, sha256(content), f"https://example.org/{name}") for name, content in GOOD.items()]
    monkeypatch.setitem(CATALOGUE, "tiny", recipe(*files))
    return tmp_path / "cache"


def put(folder: Path, **replaced: bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in GOOD.items():
        (folder / name).write_bytes(replaced.get(name[0], content))
    return folder


class Server:
    """Answers requests from a table of URLs and records them; raises an answer that is an exception."""

    def __init__(self, answers: dict[str, bytes | Exception]) -> None:
        self.answers, self.requested = answers, list[str]()

    def __call__(self, url: str) -> io.BytesIO:
        self.requested.append(url)
        answer = self.answers[url]
        if isinstance(answer, Exception):
            raise answer
        return io.BytesIO(answer)


def serving(**replaced: bytes | Exception) -> Server:
    return Server({f"https://example.org/{name}": replaced.get(name[0], content) for name, content in GOOD.items()})


def files_under(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def test_a_file_is_found_with_or_without_gz(tmp_path: Path) -> None:
    for name in ("a", "b.gz"):
        (tmp_path / name).write_bytes(b"text")
    assert [locate(tmp_path, name) for name in "abc"] == [tmp_path / "a", tmp_path / "b.gz", None]


def test_every_entry_of_the_catalogue_is_complete() -> None:
    assert {"adult", "bank", "compas", "loh", "zafar", "phantom", "nih", "mimic-cxr", "mimic-iii"} <= set(CATALOGUE)
    for name, entry in CATALOGUE.items():
        assert entry.name == name
        assert "attribute_as_input" in entry.options or "size" in entry.options  # images may show the attribute itself
        assert all([entry.attribute, entry.description, entry.citation, entry.licence, entry.rows, entry.features])
        assert all(re.fullmatch("[0-9a-f]{64}|" if entry.by_hand else "[0-9a-f]{64}", f.sha256) for f in entry.files)
        assert all(f.url.startswith("https://") for f in entry.files)


@pytest.mark.parametrize("name", ["loh", "zafar"])
def test_a_simulation_has_the_rows_and_features_of_its_entry(name: str, tmp_path: Path) -> None:
    assert load(name, n=20).inputs.shape == (20, CATALOGUE[name].features)
    assert len(load(name, tmp_path / "no such folder", n=20)) == 20
    assert check_files(name) == []
    with pytest.raises(BadInput, match="simulated"):
        fetch(name)


@pytest.mark.parametrize("use", [load, check_files, fetch])
def test_an_unknown_name_suggests_the_closest(use) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UnknownName, match=suggests("adult")):
        use("adlut")


def test_an_unknown_option_lists_the_valid_ones(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=facts("tiny", "aplha", "attribute_as_input")):
        load("tiny", put(tmp_path / "tiny"), aplha=1)
    with pytest.raises(BadInput, match=facts("loh", "aplha", "n, alpha, seed, attribute_as_input")):
        load("loh", aplha=1)


def test_options_reach_the_recipe(tmp_path: Path) -> None:
    put(tmp_path / "tiny")
    assert load("tiny", tmp_path).inputs.shape == (3, 2)
    assert load("tiny", tmp_path, attribute_as_input=False).inputs.shape == (3, 1)


def test_the_root_may_be_the_folder_itself_or_an_environment_variable(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "data" / "tiny")
    for root in (tmp_path / "data", str(tmp_path / "data"), tmp_path / "data" / "tiny"):
        assert len(load("tiny", root)) == 3
    monkeypatch.setenv("EQUIPOISE_DATA", str(tmp_path / "data"))
    assert check_files("tiny")[0].path == tmp_path / "data" / "tiny" / "a.csv"
    monkeypatch.setenv("EQUIPOISE_DATA", str(tmp_path / "elsewhere"))
    put(cache / "tiny")
    assert check_files("tiny")[0].path == cache / "tiny" / "a.csv"
    with pytest.raises(BadInput, match="missing"):
        load("tiny", tmp_path / "elsewhere")


def test_missing_files_are_named_with_the_folders_and_the_command(tmp_path: Path, cache: Path) -> None:
    (put(tmp_path / "tiny") / "b.csv").unlink()
    with pytest.raises(BadInput) as caught:
        load("tiny", tmp_path)
    text = str(caught.value)
    assert says(text, "b.csv")
    assert "a.csv" not in text
    assert f"{tmp_path / 'tiny'}, {tmp_path}" in text
    assert says(text, f"equipoise data fetch tiny --root {tmp_path}")
    assert check_files("tiny", tmp_path)[1] == ("b.csv", None, "missing")
    with pytest.raises(BadInput, match=facts("a.csv", "b.csv", cache, "equipoise data fetch tiny")):
        load("tiny")


def test_a_wrong_checksum_is_reported_with_the_file_and_both_checksums(tmp_path: Path) -> None:
    put(tmp_path / "tiny", b=b"tampered")
    with pytest.raises(BadInput, match=facts("b.csv", sha256(b"tampered"), sha256(GOOD["b.csv"]))):
        load("tiny", tmp_path)
    assert [status == "ok" for _, _, status in check_files("tiny", tmp_path)] == [True, False]


def test_fetch_replaces_a_wrong_file_in_the_data_root(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EQUIPOISE_DATA", str(tmp_path / "data"))
    put(tmp_path / "data" / "tiny", b=b"tampered")
    with pytest.raises(BadInput, match=facts(tmp_path / "data" / "tiny" / "b.csv", "sha256")):
        load("tiny")
    fetch("tiny", open_url=serving())
    assert len(load("tiny")) == 3
    assert check_files("tiny")[1].path == cache / "tiny" / "b.csv"


def test_gzipped_files_are_read_and_broken_ones_are_reported(tmp_path: Path) -> None:
    for path in list(put(tmp_path / "tiny").iterdir()):
        (path.parent / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    assert len(load("tiny", tmp_path)) == 3
    packed = tmp_path / "tiny" / "a.csv.gz"
    packed.write_bytes(packed.read_bytes()[:-6])
    with pytest.raises(BadInput, match=facts("a.csv.gz")):
        load("tiny", tmp_path)


def test_fetch_writes_what_load_reads(cache: Path, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int | None]] = []
    assert fetch("tiny", progress=lambda *step: seen.append(step), open_url=serving()) == cache / "tiny"
    assert len(load("tiny")) == 3
    assert files_under(cache) == ["tiny/a.csv", "tiny/b.csv"]
    assert seen == [(name, len(content), None) for name, content in GOOD.items()]
    fetch("tiny", tmp_path / "other", open_url=serving())
    assert files_under(tmp_path / "other") == ["tiny/a.csv", "tiny/b.csv"]


def test_fetch_downloads_only_what_is_missing_or_wrong(cache: Path) -> None:
    put(cache / "tiny", b=b"tampered")
    server = serving()
    fetch("tiny", open_url=server)
    assert server.requested == ["https://example.org/b.csv"]
    assert (cache / "tiny" / "b.csv").read_bytes() == GOOD["b.csv"]


def test_a_corrupted_download_writes_nothing(cache: Path) -> None:
    with pytest.raises(BadInput, match=facts("b.csv", sha256(b"<html>"), sha256(GOOD["b.csv"]))):
        fetch("tiny", open_url=serving(b=b"<html>"))
    assert files_under(cache.parent) == []


OFFLINE = [urllib.error.URLError("Name or service not known"), TimeoutError("timed out"), ConnectionResetError("reset")]


@pytest.mark.parametrize("error", OFFLINE)
def test_a_failed_download_advises_what_to_do(error: Exception, cache: Path) -> None:
    with pytest.raises(BadInput, match=facts("https://example.org/a.csv", "tiny")):
        fetch("tiny", open_url=serving(a=error))
    assert files_under(cache.parent) == []


BY_HAND = {"nih": "nihcc.app.box.com", "mimic-cxr": "physionet.org/content/mimic-cxr-jpg", "mimic-iii": "physionet.org/content/mimiciii"}


@pytest.mark.parametrize(("name", "where"), BY_HAND.items())
def test_data_to_download_by_hand_name_the_folders_searched_and_the_source(name: str, where: str, tmp_path: Path) -> None:
    for use in (load, fetch):
        with pytest.raises(BadInput) as caught:
            use(name, tmp_path)
        assert where in str(caught.value)
    with pytest.raises(BadInput, match=rf"{tmp_path}/.*, {tmp_path}(?!/)"):
        load(name, tmp_path)
    assert {state.status for state in check_files(name, tmp_path)} == {"missing"}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", ["cxr-nih", "nih", "."])
def test_nih_by_name(tmp_path: Path, place: str) -> None:
    folder = tmp_path / place
    (folder / "images").mkdir(parents=True)
    rows = [("a.png", 1, "M", "Effusion"), ("b.png", 2, "F", "No Finding"), ("c.png", 3, "F", "Mass")]
    for image, *_ in rows:
        Image.fromarray(np.zeros((8, 8), np.uint8)).save(folder / "images" / image)
    (folder / "metadata.csv").write_text(
        "image,patient,sex,age,view,finding\n" + "".join(f"{i},{p},{s},50,PA,{f}\n" for i, p, s, f in rows)
    )
    assert load("nih", tmp_path, finding="effusion", size=8).y.tolist() == [1, 0]
    assert check_files("nih", tmp_path) == [("metadata.csv", folder / "metadata.csv", "ok")]
    with pytest.raises(BadInput, match=suggests("effusion")):
        load("nih", tmp_path, finding="efusion")
    with pytest.raises(BadInput, match=facts("nih", "findings", "finding")):
        load("nih", tmp_path, findings="effusion")


def test_tables_may_be_in_subfolders_and_have_other_names(tmp_path: Path) -> None:
    (tmp_path / "mimic-cxr" / "hosp").mkdir(parents=True)
    (tmp_path / "mimic-cxr" / "hosp" / "patients.csv.gz").write_bytes(b"")
    (tmp_path / "mimic-iii").mkdir()
    (tmp_path / "mimic-iii" / "admissions.csv").write_text("")
    found = {state.file: state.path for name in ("mimic-cxr", "mimic-iii") for state in check_files(name, tmp_path) if state.path}
    assert list(found) == ["patients.csv.gz", "admissions.csv"]
    with pytest.raises(BadInput, match=facts("mimic-cxr-2.0.0-metadata.csv")):  # the error of the loader
        load("mimic-cxr", tmp_path)


def zipped(member: str, content: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(member, content)
    return buffer.getvalue()


def test_a_file_inside_an_archive(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = "https://example.org/all.zip"
    monkeypatch.setitem(CATALOGUE, "tiny", recipe(File("a.csv", sha256(GOOD["a.csv"]), url, member="in/a.csv")))
    for wrong in (b"no archive", zipped("other.csv", b"")):
        with pytest.raises(BadInput, match=facts("a.csv")):
            fetch("tiny", open_url=Server({url: wrong}))
    fetch("tiny", open_url=Server({url: zipped("in/a.csv", GOOD["a.csv"])}))
    assert (cache / "tiny" / "a.csv").read_bytes() == GOOD["a.csv"]


COMPAS_HEADER = (
    "id,name,first,last,sex,dob,age,age_cat,race,juv_fel_count,juv_misd_count,juv_other_count,priors_count,days_b_screening_arrest,"
    "c_case_number,c_charge_degree,c_charge_desc,is_recid,score_text,two_year_recid\n"
)
COMPAS = (COMPAS_HEADER + "1,Zz Secret,Zz,Secret,Male,1950-12-31,40,25 - 45,Other,0,0,0,3,-1,SECRET-17,F,Battery,0,Low,0\n").encode()


def test_a_fetched_compas_file_contains_no_names(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [published] = CATALOGUE["compas"].files
    file = File("a.csv", sha256(anonymous(COMPAS)), "https://example.org/c.csv", canonical=published.canonical)
    monkeypatch.setitem(CATALOGUE, "tiny", recipe(file))
    fetch("tiny", open_url=Server({file.url: COMPAS}))
    assert [status for _, _, status in check_files("tiny")] == ["ok"]
    [written] = [p for p in cache.rglob("*") if p.is_file()]
    assert b"Battery" in written.read_bytes()
    assert not any(secret in written.read_bytes() for secret in (b"Secret", b"Zz", b"1950", b"SECRET", b"dob"))
    with pytest.raises(BadInput, match=facts("a.csv")):
        fetch("tiny", cache / "again", open_url=Server({file.url: b"<html>not found</html>"}))


def test_a_copy_of_compas_with_names_is_accepted_unchanged(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = File("a.csv", sha256(anonymous(COMPAS)), "https://example.org/c.csv", canonical=anonymous)
    monkeypatch.setitem(CATALOGUE, "tiny", recipe(file))
    (cache / "tiny").mkdir(parents=True)
    (cache / "tiny" / "a.csv").write_bytes(COMPAS)
    assert check_files("tiny")[0].status == "ok"


@pytest.mark.parametrize("name", ["adult", "bank", "compas"])
def test_the_real_files_have_the_published_checksums(name: str) -> None:
    if not REAL_ROOT or not (Path(REAL_ROOT) / name).is_dir():
        pytest.skip(f"EQUIPOISE_DATA is not set or has no folder {name!r}")
    assert {status for _, _, status in check_files(name, REAL_ROOT)} == {"ok"}
    assert load(name, REAL_ROOT).inputs.shape == (CATALOGUE[name].rows, CATALOGUE[name].features)
