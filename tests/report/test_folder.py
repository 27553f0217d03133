"""Filling a folder: whole or not at all, the files of others left alone, and what will not do refused before the work."""

import os
import re

import pytest

from equipoise.errors import BadInput
from equipoise.report.folder import FILES, check_folder, filling


def test_an_interruption_leaves_nothing(tmp_path):
    def interrupted() -> None:
        with filling(tmp_path / "out") as place:
            (place / "run.json").write_text("{}")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == []


def test_overwriting_replaces_ours_removes_what_is_stale_and_leaves_others_alone(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    for name in ("run.json", "model.onnx", "notes.txt"):
        (out / name).write_text("old")
    with filling(out) as place:
        (place / "run.json").write_text("new")
        (place / "rule.json").write_text("new")
        assert (out / "run.json").read_text() == "old"
    assert {path.name: path.read_text() for path in out.iterdir()} == {"run.json": "new", "rule.json": "new", "notes.txt": "old"}


def test_a_folder_that_is_there_and_empty_is_filled(tmp_path):
    (tmp_path / "out").mkdir()
    check_folder(tmp_path / "out", overwrite=False)
    with filling(tmp_path / "out") as place:
        (place / "run.json").write_text("new")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["run.json"]


def test_a_folder_that_will_not_do_is_refused_before_the_work(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("old")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").write_text("old")
    cases = [("out", r"is not empty \(notes.txt\).*--overwrite"), ("file", "it is a file"), ("file/inside", "is a file, not a folder")]
    for name, expected in cases:
        with pytest.raises(BadInput, match=expected):
            check_folder(tmp_path / name, overwrite=False)
    check_folder(tmp_path / "out", overwrite=True)
    with pytest.raises(BadInput, match=r"needs about .* MiB, and .* MiB are free"):
        check_folder(tmp_path / "new", overwrite=False, needed=2**62)
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(BadInput, match="may not be written to"):
        check_folder(tmp_path / "new", overwrite=False)
    assert not (tmp_path / "new").exists()


def test_run_json_comes_last(tmp_path):
    assert FILES[-1] == "run.json"
    assert re.fullmatch(r"repaired\.(pt2|pt|safetensors)", FILES[0])
