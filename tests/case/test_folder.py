"""Filling a folder: completely or not at all, even if the run is killed; other files are kept; unusable folders are rejected first."""

import errno
import fcntl
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors import SafetensorError

from equipoise.case import check_folder
from equipoise.case import folder as subject
from equipoise.case.folder import FILES, LABELS_SCHEMA, filling, recover, remove_leftovers
from equipoise.case.verify import verify
from equipoise.disk import add_path_to_errors
from equipoise.errors import BadInput
from equipoise.models import ORIGINAL_ONNX
from equipoise.models.export import HEADS_FILE, writing
from support.facts import facts


class Killed(BaseException):
    """Raised in place of killing the process."""


def _write(folder: Path, text: str, names: tuple[str, ...] = ("run.json", "rule.json", "repaired.safetensors")) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_text(text)


def _contents(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in sorted(folder.rglob("*")) if path.is_file()}


def _fill(out: Path, text: str) -> None:
    with filling(out) as place:
        _write(place, text)


# 1. Runs that are killed

CALLS = ("rename", "replace", "link", "unlink", "rmdir", "mkdir", "fsync", "chmod", "close", "open")


def _killed_at(monkeypatch: pytest.MonkeyPatch, at: int, work: Callable[[], None]) -> bool:
    """Whether the work was killed before its n-th system call: from then on every call fails, so that nothing is cleaned up."""
    seen = 0

    def deadly(call: Callable[..., object]) -> Callable[..., object]:
        def wrapped(*arguments: object, **options: object) -> object:
            nonlocal seen
            seen += 1
            if seen > at:
                raise Killed
            return call(*arguments, **options)

        return wrapped

    with monkeypatch.context() as patch:
        for name in CALLS:
            patch.setattr(os, name, deadly(getattr(os, name)))
        patch.setattr(subject, "_exchange", deadly(subject._exchange))
        patch.setattr(subject.shutil, "rmtree", deadly(subject.shutil.rmtree))
        try:
            work()
        except Killed:
            return True
    return False


@pytest.mark.parametrize("exchange", [True, False])
def test_after_a_kill_before_any_call_a_reader_finds_the_old_or_the_new_folder(tmp_path, monkeypatch, exchange):
    if not exchange:
        monkeypatch.setattr(subject, "_exchange", lambda *_: False)
    seen, at = set(), 0
    while True:
        out = tmp_path / str(at) / "out"
        _write(out, "old")
        (out / "thesis.txt").write_text("years of work")
        killed = _killed_at(monkeypatch, at, lambda out=out: _fill(out, "new"))
        subject_locks_are_lifted(out)
        recover(out)  # as a reader does
        found = _contents(out)
        assert found.pop("thesis.txt") == "years of work"
        assert set(found.values()) in ({"old"}, {"new"}), f"killed at call {at}: {found}"
        assert len(found) == 3
        seen |= set(found.values())
        _fill(out, "newer")  # the next run removes what the killed one left
        assert sorted(path.name for path in out.parent.iterdir()) == ["out"]
        assert _contents(out) == dict.fromkeys(("repaired.safetensors", "rule.json", "run.json"), "newer") | {"thesis.txt": "years of work"}
        if not killed:
            break
        at += 1
    assert seen == {"old", "new"}
    assert at > 20  # otherwise the calls were not counted


def subject_locks_are_lifted(out: Path) -> None:
    """Closes the files that the system would close for a killed process."""
    for handle in Path("/proc/self/fd").iterdir():
        try:
            target = str(handle.readlink())
        except OSError:
            continue
        if target.startswith(str(out.parent)):
            os.close(int(handle.name))


def test_a_new_folder_appears_completely_or_not_at_all(tmp_path, monkeypatch):
    seen, at = set(), 0
    while True:
        out = tmp_path / str(at) / "out"
        out.parent.mkdir()
        killed = _killed_at(monkeypatch, at, lambda out=out: _fill(out, "new"))
        subject_locks_are_lifted(out)
        seen.add(len(_contents(out)) if out.exists() else 0)
        if not killed:
            break
        at += 1
    assert seen == {0, 3}


def test_an_interruption_leaves_nothing(tmp_path):
    def interrupted() -> None:
        with filling(tmp_path / "out") as place:
            (place / "run.json").write_text("{}")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == []


def test_leftovers_of_a_killed_run_are_removed_and_those_of_a_running_one_stay(tmp_path):
    out = tmp_path / "out"
    with filling(out) as place:
        (tmp_path / f"{subject.HIDDEN}out.abcdefgh").mkdir()
        (tmp_path / f"{subject.HIDDEN}other.abcdefgh").mkdir()
        assert [path.name for path in remove_leftovers(out)] == [".equipoise.out.abcdefgh"]
        assert place.is_dir()
        assert (tmp_path / ".equipoise.other.abcdefgh").is_dir()
        (place / "run.json").write_text("new")
    code = "from pathlib import Path\nfrom equipoise.case.folder import filling\nimport os\n"
    code += f"with filling(Path({str(out)!r})) as place:\n    (place / 'run.json').write_text('newer')\n    os.kill(os.getpid(), 9)\n"
    assert subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": ":".join(sys.path)}).returncode == -9
    assert len([path for path in tmp_path.iterdir() if path.name.startswith(".equipoise.out.")]) == 1
    assert _contents(out) == {"run.json": "new"}
    _fill(out, "last")
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".equipoise.out.")] == []


def test_a_hidden_folder_is_created_and_locked_while_no_other_run_removes_leftovers(tmp_path):
    lock = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)  # as a run that removes leftovers
    filled = threading.Thread(target=_fill, args=(tmp_path / "out", "new"))
    filled.start()
    filled.join(0.3)
    assert list(tmp_path.iterdir()) == []
    os.close(lock)
    filled.join()
    assert _contents(tmp_path / "out")["run.json"] == "new"


def test_a_reader_waits_for_a_run_that_has_moved_the_folder_away(tmp_path):
    old, new = (tmp_path / f"{subject.HIDDEN}out.abcdefgh{ending}" for ending in (subject.OLD_SUFFIX, ""))
    _write(old, "old")
    _write(new, "new")
    lock = os.open(new, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)

    def done() -> None:
        new.rename(tmp_path / "out")
        os.close(lock)

    threading.Timer(0.3, done).start()
    recover(tmp_path / "out")
    assert set(_contents(tmp_path / "out").values()) == {"new"}


# 2. Files that are replaced and files that are kept


def test_overwriting_replaces_and_removes_files_of_a_run_and_keeps_others(tmp_path):
    out = tmp_path / "out"
    _write(out, "old", ("run.json", "model.onnx", "notes.txt"))
    _write(out / "mine", "mine", ("run.json", "deep.txt"))  # a user's copy: its folder belongs to no label
    (out / "empty").mkdir()
    (out / "link").symlink_to("/nowhere")
    with filling(out) as place:
        _write(place, "new", ("run.json", "rule.json"))
        assert (out / "run.json").read_text() == "old"
    assert _contents(out) == {
        "run.json": "new",
        "rule.json": "new",
        "notes.txt": "old",
        "mine/run.json": "mine",
        "mine/deep.txt": "mine",
    }
    assert (out / "empty").is_dir()
    assert str((out / "link").readlink()) == "/nowhere"


def test_the_folders_of_several_labels_are_replaced_as_one(tmp_path):
    out = tmp_path / "out"
    overview = {"schema": LABELS_SCHEMA, "folders": {"Mass": "Mass", "Effusion": "Effusion"}}
    _write(out, json.dumps(overview), ("audit.json",))
    for label in ("Mass", "Effusion"):
        _write(out / label, "old")
    (out / "Mass" / "signed.txt").write_text("by me")
    with filling(out) as place:
        _write(place / "Effusion", "new")
        _write(place, json.dumps(overview), ("audit.json",))
    assert sorted(_contents(out)) == [
        "Effusion/repaired.safetensors",
        "Effusion/rule.json",
        "Effusion/run.json",
        "Mass/signed.txt",
        "audit.json",
    ]
    assert (out / "Effusion" / "rule.json").read_text() == "new"


def test_a_link_to_a_folder_stays_a_link(tmp_path):
    _write(tmp_path / "real", "old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    _fill(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert set(_contents(tmp_path / "real").values()) == {"new"}


def test_modes_are_the_usual_ones_and_those_of_the_earlier_folder(tmp_path):
    out = tmp_path / "out"
    _write(out, "old")
    out.chmod(0o2770)
    _fill(out, "new")
    assert out.stat().st_mode & 0o7777 == 0o2770
    umask = os.umask(0)
    os.umask(umask)
    assert (out / "run.json").stat().st_mode & 0o777 == 0o666 & ~umask


def test_an_existing_empty_folder_is_filled(tmp_path, monkeypatch):
    (tmp_path / "out").mkdir()
    check_folder(tmp_path / "out", overwrite=False)
    _fill(tmp_path / "out", "new")
    assert len(_contents(tmp_path / "out")) == 3
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")  # the current folder cannot be renamed
    check_folder(Path(), overwrite=False)
    _fill(Path(), "new")
    assert len(_contents(tmp_path / "here")) == 3
    assert len(list((tmp_path / "here").iterdir())) == 3
    with pytest.raises(BadInput, match=facts("folder")):
        check_folder(Path(), overwrite=True)


def test_if_the_swap_fails_the_new_folder_is_kept_and_named(tmp_path, monkeypatch):
    def refused(*_: object) -> bool:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    out = tmp_path / "out"
    _write(out, "old")
    monkeypatch.setattr(subject, "_exchange", refused)
    with pytest.raises(BadInput, match="complete") as caught:
        _fill(out, "new")
    assert set(_contents(out).values()) == {"old"}
    spare = Path(re.search(r"and is (\S+); rename", str(caught.value))[1])  # type: ignore[index]
    assert set(_contents(spare).values()) == {"new"}
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
def test_a_full_disk_names_the_file(tmp_path):
    def full() -> None:
        with filling(tmp_path / "out") as place:
            (place / "trace.csv").symlink_to("/dev/full")
            with add_path_to_errors(place / "trace.csv"):
                (place / "trace.csv").write_text("x" * 100)

    with pytest.raises(BadInput, match=facts(tmp_path / "out" / "trace.csv", os.strerror(errno.ENOSPC))):
        full()
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_in_safetensors_names_the_file_in_the_folder(tmp_path):
    def full() -> None:
        with filling(tmp_path / "out") as place, writing(place / "repaired.safetensors"):
            raise SafetensorError("Error while serializing: I/O error: File too large (os error 27)")

    with pytest.raises(BadInput, match=facts(tmp_path / "out" / "repaired.safetensors", os.strerror(errno.EFBIG))):
        full()
    assert list(tmp_path.iterdir()) == []


def test_carried_files_do_not_recreate_a_folder_that_another_run_moved_away(tmp_path):
    _write(tmp_path / "old", "mine", ("notes.txt",))
    with pytest.raises(FileNotFoundError):
        subject._carry_over(tmp_path / "old", tmp_path / "away")
    assert not (tmp_path / "away").exists()  # a reader would find a folder with nothing but notes


def test_without_overwrite_a_folder_that_another_run_filled_meanwhile_is_kept(tmp_path):
    def late() -> None:
        with filling(tmp_path / "out", overwrite=False) as place:
            _write(place, "late")
            _fill(tmp_path / "out", "first")  # while this run was still writing

    with pytest.raises(BadInput, match="complete") as caught:
        late()
    assert set(_contents(tmp_path / "out").values()) == {"first"}
    spare = Path(re.search(r"and is (\S+); rename", str(caught.value))[1])  # type: ignore[index]
    assert set(_contents(spare).values()) == {"late"}
    (tmp_path / "empty").mkdir()
    with filling(tmp_path / "empty", overwrite=False) as place:
        _write(place, "new")
    assert set(_contents(tmp_path / "empty").values()) == {"new"}


# 3. Folders that are rejected before the work


def test_a_link_to_itself_is_rejected(tmp_path):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for use in (lambda: check_folder(tmp_path / "loop", overwrite=True), lambda: verify(tmp_path / "loop")):
        with pytest.raises(BadInput, match="loop"):
            use()


def test_unusable_folders_are_rejected_before_the_work(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("old")
    _write(tmp_path / "out", "old", ("notes.txt",))
    cases = [("out", r"is not empty \(notes.txt\).*--overwrite"), ("file", "it is a file"), ("file/inside", "is a file, not a folder")]
    for name, expected in cases:
        with pytest.raises(BadInput, match=expected):
            check_folder(tmp_path / name, overwrite=False)
    check_folder(tmp_path / "out", overwrite=True)
    _write(tmp_path / "out", "mine", ("README.txt",))
    with pytest.raises(BadInput, match=facts("README.txt", "run.json")):
        check_folder(tmp_path / "out", overwrite=True)
    with pytest.raises(BadInput, match="MiB"):
        check_folder(tmp_path / "new", overwrite=False, needed=2**62)
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(BadInput, match=facts(tmp_path)):
        check_folder(tmp_path / "new", overwrite=False)
    assert not (tmp_path / "new").exists()


def test_a_mount_point_can_be_filled_but_not_replaced(tmp_path, monkeypatch):
    out = tmp_path / "out"
    out.mkdir()
    monkeypatch.setattr(Path, "is_mount", lambda self: self == out)
    _fill(out, "new")
    assert len(_contents(out)) == 3
    with pytest.raises(BadInput, match=facts(out)):
        check_folder(out, overwrite=True)


def test_all_files_are_known():
    assert FILES[-1] == "run.json"
    assert {HEADS_FILE, ORIGINAL_ONNX} <= set(FILES)
    assert re.fullmatch(r"repaired\.(pt2|pt|safetensors)", FILES[0])
