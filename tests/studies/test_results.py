"""A folder holds one study of one version: a run resumes, and anything else in the folder is reported and left unchanged."""

import importlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest

from equipoise import measures
from equipoise.errors import BadInput
from equipoise.measures import measure_table
from equipoise.studies import Event, narrow, open_study, read_rows, read_timings, read_traces, results, run_study, worker
from equipoise.studies.plan import tasks_of
from equipoise.studies.results import finished, locked_folder
from support.facts import facts, says

FEW = {"methods": ["standard", {"method": "bias-gda", "settings": {"epochs": 1}}], "measures": ["eod"], "splits": 2}


@pytest.fixture(scope="module")
def done(tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished study, which the tests copy."""
    return run_study(tiny(**FEW), tmp_path_factory.mktemp("done") / "out", runner="serial").path


@pytest.fixture
def study(done: Path, tmp_path: Path) -> results.StudyFolder:
    shutil.copytree(done, tmp_path / "out")
    return open_study(tmp_path / "out")


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_the_content_of_the_folder(study: results.StudyFolder) -> None:
    assert set(content(study.path)) == {"study.json", ".lock", *(str(study.file(t).relative_to(study.path)) for t in tasks_of(study.plan))}
    rows, traces, timings = read_rows(study), read_traces(study), read_timings(study)
    assert len(rows) == 2 * 2 * 2
    assert list(rows["method"][:4]) == ["standard"] * 2 + ["bias-gda"] * 2
    assert set(rows["fingerprint"]) == {study.fingerprint}
    first = rows.iloc[2]
    steps = traces[(traces["data"] == first["data"]) & (traces["method"] == "bias-gda") & (traces["seed"] == first["seed"])]
    assert len(steps) == first["steps"]
    assert len(timings) == 2 * 2 * 3
    assert (timings["seconds"] > 0).all()
    assert open_study(study.path) == study


def test_running_again_does_nothing(study: results.StudyFolder) -> None:
    before, events = content(study.path), list[Event]()
    run_study(study.plan, study.path, runner="serial", progress=events.append)
    assert content(study.path) == before
    assert [(e.done, e.total, e.share) for e in events] == [(12, 12, 1.0)]


def test_missing_results_are_computed_again(study: results.StudyFolder, everything) -> None:
    before = everything(study)
    train, *methods = (study.file(t) for t in tasks_of(study.plan)[:3])
    methods[0].unlink()
    run_study(study.plan, study.path, runner="serial")
    train.unlink()
    run_study(study.plan, study.path, runner="serial")
    assert not train.exists()  # nothing needs these networks any more
    methods[1].unlink()
    run_study(study.plan, study.path, runner="serial")
    assert train.exists()
    assert everything(study).equals(before)


@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b"", lambda b: b[:200] + bytes([b[200] ^ 255]) + b[201:]])
def test_damaged_files_are_named_and_replaced(study: results.StudyFolder, everything, damage, caplog: pytest.LogCaptureFixture) -> None:
    before = everything(study)
    task = tasks_of(study.plan)[1]
    damaged = [study.file(task), study.file(task.training)]
    for path in damaged:
        path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(BadInput, match=facts("loh@0000@standard@eod.parquet")):
        read_rows(study)
    run_study(study.plan, study.path, runner="serial")
    assert all(path.name in caplog.text for path in damaged)
    assert everything(study).equals(before)


def test_a_link_in_the_folder_is_replaced_and_not_written_through(study: results.StudyFolder, everything, tmp_path: Path) -> None:
    before, mine = everything(study), tmp_path / "mine.txt"
    mine.write_text("not of the study")
    task = next(task for task in tasks_of(study.plan) if task.method)
    study.file(task).unlink()
    study.file(task).symlink_to(mine)
    pd.testing.assert_frame_equal(everything(run_study(study.plan, study.path, runner="serial")), before, check_exact=True)
    assert (mine.read_text(), study.file(task).is_symlink()) == ("not of the study", False)


def test_damaged_pandas_metadata_in_rows_is_ignored(study: results.StudyFolder) -> None:
    path = study.file(next(task for task in tasks_of(study.plan) if task.method))
    table = pq.read_table(path)
    pq.write_table(table.replace_schema_metadata({**(table.schema.metadata or {}), b"pandas": b"{broken"}), path)
    assert len(read_rows(study)) > 0


def test_a_file_with_a_wrong_name_is_replaced(study: results.StudyFolder, everything) -> None:
    before = everything(study)
    first, second = (study.file(t) for t in tasks_of(study.plan)[1:3])
    second.write_bytes(first.read_bytes())
    run_study(study.plan, study.path, runner="serial")
    assert everything(study).equals(before)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"first_seed": 1}, ("first_seed", 0, 1)),
        ({"methods": ["standard", "pruning"]}, ("methods", '["standard", "bias-gda"]', '["standard", "pruning"]')),
        ({"data": [{"source": "loh", "options": {"n": 399, "alpha": 2.0}}]}, ("data", "same names")),
        ({"training": {"epochs": 1}}, ("training", '{"epochs": 2}', '{"epochs": 1}')),
    ],
)
def test_another_study_is_refused(study: results.StudyFolder, tiny, change, said: str) -> None:
    before = content(study.path)
    with pytest.raises(BadInput) as caught:
        run_study(tiny(**{**FEW, "name": "other", **change}), study.path, runner="serial")
    assert says(caught.value, "'tiny'", *said)
    assert content(study.path) == before


def test_splits_are_added_and_one_cell_is_run_in_the_folder_of_the_study(study: results.StudyFolder, tiny, everything) -> None:
    before = everything(study)
    cell = next(task for task in tasks_of(study.plan) if task.method == "bias-gda" and task.data == "drawn")
    study.file(cell).unlink()
    others = {task: study.file(task).stat().st_mtime_ns for task in tasks_of(study.plan) if task != cell}
    part = run_study(narrow(study.plan, splits=1, data=["drawn"], methods=["bias-gda"]), study.path, runner="serial")
    assert (part.fingerprint, len(read_rows(part))) == (study.fingerprint, 1)
    assert {task: study.file(task).stat().st_mtime_ns for task in others} == others
    assert everything(open_study(study.path)).equals(before)
    more = run_study(tiny(**{**FEW, "splits": 3}), study.path, runner="serial")
    assert open_study(study.path) == more
    assert sorted(set(read_rows(more)["seed"])) == [0, 1, 2]
    assert set(read_rows(more)["fingerprint"]) == {study.fingerprint}
    first_two = everything(more)[lambda rows: rows["seed"] < 2].reset_index(drop=True)
    pd.testing.assert_frame_equal(first_two, before, check_exact=True)


def test_another_version_is_refused(study: results.StudyFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    before = content(study.path)
    monkeypatch.setattr(results, "__version__", "9.9")
    with pytest.raises(BadInput, match=facts("9.9")):
        run_study(study.plan, study.path, runner="serial")
    assert content(study.path) == before


def test_rows_of_another_study_are_refused(study: results.StudyFolder, tiny, tmp_path: Path) -> None:
    other = run_study(tiny(**FEW, training={"epochs": 1}), tmp_path / "other", runner="serial")
    stranger = study.file(tasks_of(study.plan)[1])
    stranger.write_bytes(other.file(tasks_of(other.plan)[1]).read_bytes())
    before = content(study.path)
    with pytest.raises(BadInput, match=facts(other.fingerprint)):
        run_study(study.plan, study.path, runner="serial")
    assert content(study.path) == before


@pytest.fixture
def new_measure(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], str]]:
    """Adds a measure to the table, as a later Equipoise might, until the test ends."""

    def add() -> str:
        measure = measure_table.Measure("youden_gap", "Youden's index", "Youden's index", rates={"tpr": 1.0, "fpr": -1.0})
        monkeypatch.setitem(measure_table.MEASURES, measure.name, measure)
        for module in (measures, worker):
            monkeypatch.setattr(module, "GAPS", (*measure_table.GAPS, measure.name))
        importlib.reload(results)
        return "test_youden_gap"

    yield add
    monkeypatch.undo()
    importlib.reload(results)


def test_a_study_from_before_a_measure_is_read_and_resumed(study: results.StudyFolder, new_measure, everything) -> None:
    before = everything(study)
    kept, redone = (study.file(t) for t in tasks_of(study.plan)[1:3])
    old = kept.read_bytes()
    column = new_measure()
    assert read_rows(study)[column].isna().all()
    assert everything(study).drop(columns=column).equals(before)
    assert len(finished(study)) == 12
    redone.unlink()
    resumed = run_study(study.plan, study.path, runner="serial")
    assert kept.read_bytes() == old
    found = read_rows(resumed)
    assert found[column].notna().tolist() == ((found["data"] == "loh") & (found["method"] == "bias-gda") & (found["seed"] == 0)).tolist()
    known = found[found[column].notna()]
    assert len(known) == 1
    assert known[column].to_numpy() == pytest.approx((known["test_eod"] - known["test_fpr_gap"]).to_numpy())
    assert everything(study).drop(columns=column).equals(before)


def test_a_study_without_a_measure_is_read_and_resumed(study: results.StudyFolder, everything) -> None:
    before, task, lost = everything(study), tasks_of(study.plan)[1], "test_aod"
    pq.write_table(pq.read_table(study.file(task)).drop_columns([lost]), study.file(task))
    found = read_rows(run_study(study.plan, study.path, runner="serial"))
    assert found[lost].isna().sum() == 1
    assert everything(study).drop(columns=lost).equals(before.drop(columns=lost))


def test_the_definition_has_a_schema_version(study: results.StudyFolder) -> None:
    path = study.path / "study.json"
    definition = json.loads(path.read_text())
    assert (definition["schema"], definition["schema_version"]) == ("equipoise.study", 2)
    for other in ({"schema_version": 1}, {"schema_version": None}, {"schema_version": 3}, {"schema": "something.else"}):
        path.write_text(json.dumps({**definition, **other}))
        for call in (lambda: open_study(study.path), lambda: run_study(study.plan, study.path, runner="serial")):
            with pytest.raises(BadInput, match=str(next(iter(other.values())))):
                call()


@pytest.mark.parametrize(
    ("changed", "matters"),
    [
        ("studies/sets/tabular.py", True),
        ("studies/worker.py", True),
        ("studies/efficientnet_lite.py", True),
        ("methods/pruning.py", True),
        ("studies/tables.py", False),
    ],
)
def test_the_checksum_of_the_code_covers_data_sets_and_networks_but_no_tables(changed, matters, tmp_path, monkeypatch) -> None:
    package = tmp_path / "equipoise"
    shutil.copytree(Path(results.__file__).parents[1], package, ignore=shutil.ignore_patterns("__pycache__"))
    before = results.code_digest()
    monkeypatch.setattr(results, "__file__", str(package / "studies" / "results.py"))
    assert results.code_digest() == before
    with (package / changed).open("a") as file:
        file.write("# changed")
    assert (results.code_digest() != before) == matters


def test_changed_code_is_reported(study: results.StudyFolder, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "code_digest", lambda: "other")
    run_study(study.plan, study.path, runner="serial")
    assert says(caplog.text, study.path)


def test_unusable_folders_are_refused(study: results.StudyFolder, tiny, tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter1.tex").write_text("...")
    with pytest.raises(BadInput, match="study"):
        run_study(tiny(), tmp_path / "thesis", runner="serial")
    with pytest.raises(BadInput, match="file"):
        run_study(tiny(), tmp_path / "thesis" / "chapter1.tex", runner="serial")
    with pytest.raises(BadInput, match=facts("study.json")):
        open_study(tmp_path / "thesis")
    assert content(tmp_path / "thesis") == {"chapter1.tex": b"..."}


DAMAGED_DEFINITIONS = {  # replaced values of study.json, and the keys that the error names
    "not JSON": ("{", ("study.json",)),
    "an array": ("[]", ("study.json",)),
    "no values": (
        dict.fromkeys(("study", "fingerprint", "version", "code", "identity", "definition")),
        ("study:", "fingerprint:", "definition:"),
    ),
    "a fingerprint that is a number": ({"fingerprint": 7}, ("fingerprint:", "7")),
    "a fingerprint that is a list": ({"fingerprint": ["a"]}, ("fingerprint:",)),
    "a fingerprint of another form": ({"fingerprint": "zz"}, ("fingerprint:", "zz")),
    "a version that is a number": ({"version": 0.1}, ("version:",)),
    "an identity that is text": ({"identity": "x"}, ("identity:",)),
    "a definition that is a list": ({"definition": []}, ("definition:",)),
}


@pytest.mark.parametrize("damage", DAMAGED_DEFINITIONS)
def test_a_damaged_definition_is_an_error_that_names_the_key(study: results.StudyFolder, damage: str) -> None:
    path = study.path / "study.json"
    values, said = DAMAGED_DEFINITIONS[damage]
    path.write_text(values if isinstance(values, str) else json.dumps({**json.loads(path.read_text()), **values}))
    for call in (lambda: open_study(study.path), lambda: run_study(study.plan, study.path, runner="serial")):
        with pytest.raises(BadInput, match=facts(*said)):
            call()


def test_leftovers_of_a_killed_run_are_cleared(study: results.StudyFolder) -> None:
    leftover = study.path / "rows" / ".equipoise.abc.tmp"
    leftover.write_bytes(b"half")
    run_study(study.plan, study.path, runner="serial")
    assert not leftover.exists()


@pytest.mark.skipif(os.name == "nt", reason="no file locks there")
def test_two_runs_do_not_share_a_folder(study: results.StudyFolder) -> None:
    with (
        locked_folder(study.path, study.plan),
        pytest.raises(BadInput, match=facts(study.path)),
        locked_folder(study.path, study.plan),
    ):
        pass


def test_an_unfinished_study_can_be_read(study: results.StudyFolder) -> None:
    for task in tasks_of(study.plan):
        if task.method == "bias-gda":
            study.file(task).unlink()
    assert set(read_rows(study)["method"]) == {"standard"}
    assert len(finished(study)) == 8
    for path in (study.path / "rows").iterdir():
        path.unlink()
    assert read_rows(study).empty
    assert read_traces(study).empty
    assert json.loads((study.path / "study.json").read_text())["study"] == "tiny"
