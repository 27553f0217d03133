"""The figures of an audit in files of their own: valid SVG with its style, names are text, and they show what the page shows."""

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pandas as pd
import pytest

from equipoise.report import write_audit_page, write_figures
from support.audits import HOSTILE, audit_of, frame_of, joined

SVG = "{http://www.w3.org/2000/svg}"


def _texts(path: Path) -> list[str]:
    return [element.text or "" for element in ET.parse(path).iter(f"{SVG}text")]


def _rows(path: Path) -> dict[tuple[str, str], tuple[str, list[float]]]:
    """By heading and name, the value in words and the places of the dots, in percent of the axis."""
    rows, heading, name, dots = {}, "", "", []
    for element in ET.parse(path).getroot():
        kind = (element.get("class") or "").split()
        if "block" in kind:
            heading = element.text or ""
        elif element.tag == f"{SVG}svg":
            dots = [float(circle.get("cx").removesuffix("%")) for circle in element.iter(f"{SVG}circle")]
        elif element.get("x") == "720":
            rows[heading, name] = element.text, dots
        elif "name" in kind:
            name = element.text or ""
    return rows


def test_every_figure_is_a_valid_file_with_its_style_and_loads_nothing(tmp_path: Path):
    _, audit = audit_of(frame_of(["g0", "g1"]))
    paths = write_figures(audit, tmp_path)
    assert sorted(path.name for path in paths) == ["calibration.svg", "decision-curves.svg", "gaps.svg", "rates.svg"]
    assert sorted(tmp_path.iterdir()) == sorted(paths)
    for path in paths:
        root = ET.parse(path).getroot()
        assert root.tag == f"{SVG}svg"
        _, _, width, height = map(float, root.get("viewBox").split())
        assert all(float(text.get("y", 0)) < height and float(text.get("x", 0)) < width for text in root.findall(f"{SVG}text"))
        style = root.find(f"{SVG}style").text
        classes = {name for element in root.iter() for name in (element.get("class") or "").split()}
        assert classes - set(re.findall(r"\.([\w-]+)", style)) <= {"axis", "head"}  # everything that is drawn has its style
        content = path.read_text(encoding="utf-8")
        assert not re.search(r"var\(|@import|url\(|href|<script", content)


def test_every_group_and_rate_is_labelled(tmp_path: Path):
    _, audit = audit_of(frame_of([f"g{k}" for k in range(6)]))
    write_figures(audit, tmp_path)
    names = {f"g{k}" for k in range(1, 6)} | {"g0 (reference)"}
    assert names | {"Sensitivity", "Specificity", "PPV", "NPV"} <= set(_texts(tmp_path / "rates.svg"))
    assert names | {"AUROC", "Calibration slope"} <= set(_texts(tmp_path / "calibration.svg"))


def test_the_rates_drawn_are_the_audits(tmp_path: Path):
    _, audit = audit_of(frame_of(["F", "M", "N"]), reference="M")
    write_figures(audit, tmp_path)
    rows, places = _rows(tmp_path / "rates.svg"), {}
    for group, row in audit.groups.iterrows():
        text, dots = rows["Sensitivity", f"{group} (reference)" if group == "M" else group]
        ends = ", ".join(f"{100 * row[f'tpr_{end}']:.1f}" for end in ("low", "high"))
        assert text.rstrip("†") == f"{100 * row['tpr']:.1f} [{ends}]"
        (places[group],) = dots
    (f, m, n), (at_f, at_m, at_n) = (audit.groups.loc[["F", "M", "N"], "tpr"], (places[group] for group in "FMN"))
    assert (at_f - at_m) / (at_n - at_m) == pytest.approx((f - m) / (n - m), abs=0.01)  # one axis


def test_the_gaps_drawn_are_the_audits(tmp_path: Path):
    _, audit = audit_of(frame_of(["F", "M"]), reference="M")
    write_figures(audit, tmp_path)
    text, dots = _rows(tmp_path / "gaps.svg")["Sensitivity", "F minus M"]
    assert float(text.split()[0]) == pytest.approx(100 * audit["eod"].value, abs=0.05)
    assert (dots[0] - 50) * audit["eod"].value >= 0  # zero is in the middle


def test_panels_are_those_of_the_page(tmp_path: Path):
    _, audit = audit_of(frame_of(["F", "M"], n=200), reference="M")
    page = write_audit_page(audit, tmp_path / "audit.html", group_names={"F": "women"}).read_text(encoding="utf-8")
    write_figures(audit, tmp_path, group_names={"F": "women"})
    for name in ("calibration", "decision-curves"):
        drawn = [path.get("d") for path in ET.parse(tmp_path / f"{name}.svg").iter(f"{SVG}path")]
        assert len(drawn) > 4
        assert all(f'd="{path}"' in page for path in drawn)
        assert "women" in _texts(tmp_path / f"{name}.svg")


def test_equal_names_in_two_attributes_stay_apart(tmp_path: Path):
    frame = frame_of(["yes", "no"]).assign(smokes=lambda d: ["yes", "no"] * (len(d) // 2))
    frame["y"] = frame["y"].sample(frac=1, random_state=0).to_numpy()
    _, audit = audit_of(frame, group=["sex", "smokes"])
    write_figures(audit, tmp_path)
    for name in ("rates", "gaps", "calibration", "decision-curves"):
        texts = _texts(tmp_path / f"{name}.svg")
        assert [text for text in texts if text.startswith("By ") or "intersections" in text] == [
            *("By sex", "By smokes"),
            "4 intersections: sex & smokes",
        ]


def test_a_group_with_insufficient_data_has_no_dot(tmp_path: Path):
    frame = pd.concat([frame_of(["F", "M", "N"]), pd.DataFrame({"sex": "X", "y": [0, 1], "p": [0.5, 1.0]})])
    _, audit = audit_of(frame, reference="M")
    write_figures(audit, tmp_path)
    assert _rows(tmp_path / "rates.svg")["Sensitivity", "X"] == ("insufficient data", [])
    assert _rows(tmp_path / "gaps.svg")["Sensitivity, minus M", "X"] == ("insufficient data", [])


def test_an_audit_without_gaps_or_without_any_sufficient_group_still_draws(tmp_path: Path):
    _, audit = audit_of(frame_of(["F", "M"]), measures=["auroc"])
    assert {path.stem for path in write_figures(audit, tmp_path)} == {"rates", "calibration", "decision-curves"}
    _, audit = audit_of(frame_of(["F", "M"], n=4))
    assert {"rates", "gaps"} <= {path.stem for path in write_figures(audit, tmp_path / "few")}


def test_each_label_has_a_folder(tmp_path: Path):
    audit = joined(Mass=audit_of(frame_of(["F", "M"]))[1], Edema=audit_of(frame_of(["F", "M"], n=80))[1])
    paths = write_figures(audit, tmp_path)
    assert {path.parent.name for path in paths} == {"Mass", "Edema"}
    assert len(paths) == 8


def test_hostile_names_are_text(tmp_path: Path):
    _, audit = audit_of(frame_of(HOSTILE, n=20, column="[bold]g"), name="<img src=x onerror=alert(1)>.csv")
    for path in write_figures(audit, tmp_path):
        elements = {element.tag for element in ET.parse(path).iter()}
        assert elements <= {f"{SVG}{tag}" for tag in ("svg", "style", "rect", "text", "g", "line", "circle", "path", "title")}
        assert _texts(path)[0].startswith("<img src=x onerror=alert(1)>.csv")
    names = " ".join(_texts(tmp_path / "rates.svg"))
    assert all(name in names for name in ("[red]x[/red]", "<script>alert(1)</script>", "مجموعة", "two\\nlines", "\\x1b[31mred"))


def test_a_figure_that_fails_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """It fails after its first characters are written."""
    path = tmp_path / "rates.svg"
    path.write_text("old")
    _, audit = audit_of(frame_of(["F", "M"]), measures=["auroc"])

    def crash(place: Path, content: str, **_: str) -> int:
        with place.open("w") as file:
            file.write(content[:10])
        raise RuntimeError("crash")

    monkeypatch.setattr(Path, "write_text", crash)
    with pytest.raises(RuntimeError, match="crash"):
        write_figures(audit, tmp_path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_in_the_folder_is_replaced_and_not_written_through(tmp_path: Path):
    _, audit = audit_of(frame_of(["F", "M"]), measures=["auroc"])
    private = tmp_path / "private.svg"
    private.write_text("mine")
    folder = tmp_path / "figures"
    folder.mkdir()
    (folder / "rates.svg").symlink_to(private)
    write_figures(audit, folder)
    assert private.read_text() == "mine"
    assert not (folder / "rates.svg").is_symlink()
    assert "<svg" in (folder / "rates.svg").read_text()
