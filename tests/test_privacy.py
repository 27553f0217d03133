"""What docs/reference/privacy.md says of every output holds: ids, names and folders are planted, and every byte is searched."""

import base64
import fnmatch
import io
import json
import re
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import pytest
import torch

import equipoise as eq
from equipoise import cli
from equipoise.data import Images
from support import hospital
from support.facts import says

DOCS = Path(__file__).parents[1] / "docs" / "reference" / "privacy.md"
COLUMNS = ("patient ids", "row ids, image names", "folders of your machine")
PLANTED = {  # column of the table: what must not be in a file
    COLUMNS[0]: ["QZXpatient"],
    COLUMNS[1]: ["QZXrow", "QZXimage"],
    COLUMNS[2]: ["QZXhome", "QZXfolder", "site-packages", str(Path(eq.__file__).parent), "equipoise/models"],
}
ROLES = ["--label", "sick", "--group", "sex", "--reference", "M", "--patient", "pid"]
TRUST = ["--trust"]
CHANGES = [
    "--set",
    "repair.draws=10",
    "--method",
    "pruning",
    "--set",
    "pruning.steps=4",
    "--set",
    "pruning.stop_below=0",
    "--measure",
    "spd",
    "--set",
    "goal.min_performance=0",
    "--allow-worse",
    "--set",
    "goal.max_rise.fpr=1",
    "--set",
    "goal.max_rise.selection=1",
    "--set",
    "goal.selection=paper",
]
QUICK = [
    "--method",
    "bias-gda",
    "--set",
    "goal.selection=paper",
    "--set",
    "repair.draws=10",
    "--set",
    "bias-gda.schedule=paper",
    "--set",
    "bias-gda.epochs=2",
    "--set",
    "bias-gda.learning_rate=0.05",
    "--set",
    "goal.min_performance=0.5",
]
STUDY = """
splits = 2
training = { epochs = 1 }
methods = ["standard"]
[[data]]
file = "QZXfolder/local.csv"
label = "sick"
group = "sex"
reference = "M"
patient = "pid"
id = "id"
"""


class Flow(NamedTuple):
    home: Path
    said: dict[str, tuple[str, str]]  # command: standard output and standard error


@pytest.fixture(scope="module")
def flow(tmp_path_factory) -> Iterator[Flow]:
    """Every command that writes, in a folder whose name, and that of one in it, are planted as well."""
    home = tmp_path_factory.mktemp("QZXhome")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        patch.setenv("EQUIPOISE_CACHE", str(home / "cache"))
        _hospital(home / "QZXfolder")
        yield Flow(home, _commands(patch))


def _hospital(folder: Path) -> None:
    folder.mkdir()
    hospital.table(folder)
    hospital.images(folder)
    for name in ("local.csv", "new.csv", "images.csv"):
        frame = pd.read_csv(folder / name)
        frame["pid"] = [f"QZXpatient{k}" for k in frame["pid"]]
        if "id" in frame:
            frame["id"] = [f"QZXrow{k}" for k in range(len(frame))]
        else:
            for image in frame["image"]:
                (folder / "xrays" / image).rename(folder / "xrays" / f"QZXimage{image}")
            (folder / "xrays" / "QZXimage7.png").write_bytes(b"no image")
            frame["image"] = [f"QZXimage{image}" for image in frame["image"]]
            frame.loc[3, "image"] = "QZXimage-that-is-missing.png"
        frame.to_csv(folder / name, index=False)
    model = hospital.network("build").eval()
    torch.export.save(torch.export.export(model, (torch.zeros(4, 3),), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},)), folder / "net.pt2")
    Path("mine.toml").write_text(STUDY)


def _commands(patch: pytest.MonkeyPatch) -> dict[str, tuple[str, str]]:
    place = "QZXfolder"
    images = ["--images", f"{place}/xrays", "--set", f"images.size={hospital.SIDE}", "--set", "images.skip_broken=true"]
    cnn = ["--model", f"{place}/net.py:cnn", "--weights", f"{place}/cnn.safetensors"]
    table = ["debias", f"{place}/local.csv", *ROLES, "--set", "data.id=id"]
    commands = {
        "images": [
            "debias",
            f"{place}/images.csv",
            *ROLES,
            *images,
            *cnn,
            *CHANGES,
            "--set",
            "report.onnx=false",
            "--set",
            "report.thumbnails=true",
            "--out",
            "images",
            "--json",
        ],
        "table": [*table, *QUICK, "--model", f"{place}/net.py:build", "--weights", f"{place}/nested.pt", "--out", "table"],
        "heads": [
            *[
                *table,
                "--method",
                "bias-score",
                "--set",
                "goal.min_performance=0.5",
                "--set",
                "repair.draws=10",
                "--set",
                "report.onnx=false",
                "--out",
                "heads",
            ],
            *["--model", f"{place}/net.py:build", "--weights", f"{place}/net.safetensors"],
        ],
        "program": [*table, *QUICK, "--set", "report.onnx=false", "--model", f"{place}/net.pt2", "--out", "program"],
        "audit": [
            *["audit", f"{place}/images.csv", *ROLES, *images, *cnn, "--set", "images.cache=cache/images"],
            *["--out", "audit/audit.json", "--report", "audit/audit.html", "--set", "report.figures=figures"],
        ],
        "apply": ["apply", "table", f"{place}/new.csv", "--out", "decisions.csv", *TRUST],
        "apply to images": [
            "apply",
            "images",
            f"{place}/images.csv",
            "--images",
            f"{place}/xrays",
            "--set",
            "images.skip_broken=true",
            *TRUST,
        ],
        "study": ["study", "run", "mine.toml", "--out", "study", "--runner", "serial"],
    }
    said = {}
    for name, arguments in commands.items():
        out, err = io.StringIO(), io.StringIO()
        with patch.context() as inner:
            inner.setattr(sys, "stdout", out)
            inner.setattr(sys, "stderr", err)
            code = cli.run(arguments)
        assert code == 0, (name, out.getvalue(), err.getvalue())
        said[name] = out.getvalue(), err.getvalue()
    return said


def _table() -> dict[tuple[str, ...], dict[str, str]]:
    """The table of the page: the patterns of file names in its first column, and the other columns by name."""
    lines = [line.strip("|").split("|") for line in DOCS.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    names = [cell.strip() for cell in lines[0]]
    found = {}
    for line in lines[2:]:
        cells = dict(zip(names, (cell.strip() for cell in line), strict=True))
        patterns = re.findall(r"`([^` ]+)`", cells["output"])
        found[tuple(patterns) or (cells["output"],)] = cells
    return found


def _row(path: Path, home: Path) -> dict[str, str]:
    table = _table()
    if path.relative_to(home).parts[0] == "study":
        return table["the folder of a study",]
    found = [cells for patterns, cells in table.items() if any(fnmatch.fnmatch(path.name, pattern) for pattern in patterns)]
    if path.parent.name == "images" and path.parent.parent.name == "cache":
        found = [cells for cells in found if "image cache" in cells["output"]]
    else:
        found = [cells for cells in found if "image cache" not in cells["output"]]
    assert len(found) == 1, f"{path} is in {len(found)} rows of docs/reference/privacy.md"
    return found[0]


def _contents(content: bytes) -> Iterator[bytes]:
    """A file as it is; what is inside an archive; text without the tags in it; and what is encoded in a page."""
    yield content
    if zipfile.is_zipfile(io.BytesIO(content)):
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for name in archive.namelist():
                yield name.encode()
                yield archive.read(name)
    if b"<" in content[:200]:
        yield re.sub(rb"<[^>]*>", b"", content)
        for found in re.findall(rb"base64,([A-Za-z0-9+/=]+)", content):
            yield base64.b64decode(found)


def _holds(parts: list[bytes], column: str) -> list[str]:
    return [mark for mark in PLANTED[column] if any(mark.encode() in part for part in parts)]


def test_every_file_holds_what_the_page_says_and_nothing_else(flow):
    files = [path for path in flow.home.rglob("*") if path.is_file() and "QZXfolder" not in path.parts and path.name != "mine.toml"]
    names = {path.name for path in files}
    for expected in (
        "report.html",
        "audit.html",
        "card.xml",
        "model.onnx",
        "repaired.pt",
        "repaired.pt2",
        "heads.safetensors",
        "rates.svg",
        "decisions.csv",
    ):
        assert expected in names
    promised: dict[tuple[str, str], bool] = {}
    for path in files:
        cells = _row(path, flow.home)
        parts = list(_contents(path.read_bytes()))
        for column in COLUMNS:
            found = _holds(parts, column)
            allowed = cells[column].startswith("yes")
            assert allowed or not found, f"{path.relative_to(flow.home)} holds {', '.join(found)}: {column}"
            if allowed:
                promised[cells["output"], column] = promised.get((cells["output"], column), False) or bool(found)
    assert promised  # what the page says is in a file is in it
    assert all(promised.values()), promised


def test_thumbnails_have_no_names(flow):
    html = (flow.home / "images" / "report.html").read_text(encoding="utf-8")
    assert 'alt="Image 1"' in html
    assert "QZXimage" not in html


def test_images_left_out_are_counted_in_files_and_named_on_the_terminal(flow):
    run = json.loads((flow.home / "images" / "run.json").read_text())
    [limit] = [line for line in run["provenance"]["limits"] if says(line, 2, "images")]
    assert "1 missing" in limit
    assert "1 not an image" in limit
    assert limit in (flow.home / "images" / "card.md").read_text(encoding="utf-8")
    assert "QZXimage-that-is-missing.png" in flow.said["audit"][0]
    out = flow.said["images"][0]
    left_out = json.loads(out)["rows_left_out"]["left_out"]
    assert [line.split(":")[0] for line in left_out] == ["row 4 below the header", "row 8 below the header"]
    for column in COLUMNS[:2]:
        assert not _holds(list(_contents(out.encode())), column)


def test_the_command_is_told_without_folders(flow):
    run = json.loads((flow.home / "images" / "run.json").read_text())
    assert "--images xrays" in run["provenance"]["command"]
    assert "--model net.py:cnn" in run["provenance"]["command"]


def test_a_terminal_may_show_them(flow):
    assert "QZXpatient" in (flow.home / "decisions.csv").read_text()
    assert "QZXimage" in flow.said["apply to images"][0]


def test_printing_shows_counts_and_no_patient(flow):
    frame = pd.read_csv(flow.home / "QZXfolder" / "images.csv").drop(index=[3, 7])
    cohort = eq.Cohort.from_images(
        frame, folder=flow.home / "QZXfolder" / "xrays", image="image", label="sick", group="sex", reference="M", patient="pid", size=4
    )
    scores = eq.Scores.of(cohort, cohort.source[:].mean((1, 2, 3)).sigmoid().numpy())
    rows = frame.drop(columns="image").assign(ward="QZXrow", a=range(len(frame)))
    table = eq.Cohort.from_frame(rows, label="sick", group="sex", reference="M", patient="pid")
    values = [cohort, cohort.source, scores, eq.split(cohort), eq.split(table), table, table.source, table.encoder, cohort.attributes]
    for value in [*values, eq.audit(scores)]:
        for text in (repr(value), str(value)):
            assert "QZX" not in text
            assert len(text) < 1000
            assert "array(" not in text
    assert "238 rows of 120 patients" in repr(cohort)
    assert repr(Images(cohort.source.pixels)) == "Images(238 of shape (1, 4, 4))"
