"""Figures: every format is a valid file, names are text, and figures show the numbers of the audit."""

import itertools
import json
import struct
import xml.etree.ElementTree as ET
from pathlib import Path

import altair as alt
import numpy as np
import pandas as pd
import pytest

from equipoise.errors import BadInput
from equipoise.report import save_audit_figures
from equipoise.report.figures import gaps_figure, rates_figure, save_figures, thresholds_figure
from support.audits import HOSTILE, audit_of, frame_of
from support.facts import facts


def _data(chart) -> pd.DataFrame:
    """All rows that a chart draws."""
    return pd.concat([pd.DataFrame(rows) for rows in chart.to_dict()["datasets"].values()])


def _labels(path: Path) -> set[str]:
    return {element.text for element in ET.parse(path).iter("{http://www.w3.org/2000/svg}text") if element.text}


def test_every_figure_in_every_format_is_a_valid_file(tmp_path: Path):
    scores, audit = audit_of(frame_of(["g0", "g1"]))
    paths = save_audit_figures(scores, audit, tmp_path, ("png", "svg", "html"))
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(p.name for p in paths)
    assert len(paths) == 15
    for path in paths:
        content = path.read_bytes()
        if path.suffix == ".png":
            assert content[:8] == b"\x89PNG\r\n\x1a\n"
            assert min(struct.unpack(">II", content[16:24])) > 200
        elif path.suffix == ".svg":
            assert ET.fromstring(content).tag == "{http://www.w3.org/2000/svg}svg"
        else:
            assert b'src="http' not in content  # opens without a network
            assert b"vegaEmbed" in content


def test_every_group_and_rate_is_labelled(tmp_path: Path):
    _, audit = audit_of(frame_of([f"g{k}" for k in range(6)]))
    (path,) = save_figures({"rates": rates_figure(audit)}, tmp_path, ["svg"])
    assert {f"g{k}" for k in range(6)} | {"sensitivity", "PPV", "AUROC"} <= _labels(path)


def test_the_rates_drawn_are_the_audits():
    _, audit = audit_of(frame_of(["F", "M"]), reference="M")
    drawn = _data(rates_figure(audit)).set_index(["group", "rate"])
    assert drawn.loc[("F", "sensitivity"), ["value", "low", "high"]].tolist() == pytest.approx(
        audit.groups.loc["F", ["tpr", "tpr_low", "tpr_high"]].tolist()
    )


def test_the_gaps_drawn_are_the_audits():
    _, audit = audit_of(frame_of(["F", "M"]), reference="M")
    drawn = _data(gaps_figure(audit)).set_index("name")
    assert drawn.loc["eod: F minus M", "value"] == pytest.approx(audit["eod"].value)


def test_equal_names_in_two_attributes_stay_apart():
    frame = frame_of(["yes", "no"]).assign(smokes=lambda d: ["yes", "no"] * (len(d) // 2))
    frame["y"] = frame["y"].sample(frac=1, random_state=0).to_numpy()
    _, audit = audit_of(frame, group=["sex", "smokes"])
    assert {"sex: yes", "smokes: yes", "sex & smokes: yes & no"} <= set(_data(rates_figure(audit))["group"])
    labels = _data(gaps_figure(audit))["name"].dropna()
    assert labels.is_unique


def test_the_lines_over_thresholds_equal_deciding_at_each_of_them():
    frame = frame_of(["F", "M"], n=200).round({"p": 2})
    scores, audit = audit_of(frame, reference="M")
    drawn = _data(thresholds_figure(scores, audit, "eod"))
    eod, accuracy = (drawn[drawn["measure"] == m].set_index("threshold")["value"] for m in ("eod (F minus M)", "balanced accuracy"))
    assert {0.0, 0.5, 1.0} < set(eod.index)
    for threshold in eod.index:
        decided = frame.assign(f=frame["p"] >= (threshold if threshold < 1 else 1.1))  # the line ends where no row is positive
        tpr = decided[decided["y"] == 1].groupby("sex")["f"].mean()
        rates = decided.groupby("y")["f"].mean()
        assert eod[threshold] == pytest.approx(tpr["F"] - tpr["M"])
        assert accuracy[threshold] == pytest.approx((rates[1] + 1 - rates[0]) / 2)


def test_no_few_patients_lie_between_two_thresholds_that_are_drawn():
    rng = np.random.default_rng(0)
    frame = frame_of(["F", "M"], n=60).assign(p=lambda d: rng.random(len(d)))
    scores, audit = audit_of(frame)
    cuts = sorted(_data(thresholds_figure(scores, audit))["threshold"].dropna().unique())
    assert len(cuts) > 3
    assert not set(cuts) & set(frame["p"])
    for low, high in itertools.pairwise([*cuts[:-1], np.inf]):
        counts = frame[(frame["p"] >= low) & (frame["p"] < high)].groupby(["sex", "y"]).size()
        assert (counts >= 5).all()


def test_the_lines_reach_from_zero_to_one():
    scores, audit = audit_of(frame_of(["F", "M"]).assign(p=lambda d: 0.2 + 0.5 * d["p"]))
    drawn = _data(thresholds_figure(scores, audit))["threshold"].dropna()
    assert (drawn.min(), drawn.max()) == (0, 1)


def test_a_group_with_insufficient_data_is_not_in_the_lines():
    frame = pd.concat([frame_of(["F", "M", "N"]), pd.DataFrame({"sex": "X", "y": [0, 1], "p": [0.5, 1.0]})])
    scores, audit = audit_of(frame, reference="M")
    rest, rest_audit = audit_of(frame[frame["sex"] != "X"], reference="M")
    found, expected = (_data(thresholds_figure(*pair, "eod")) for pair in ((scores, audit), (rest, rest_audit)))
    pd.testing.assert_frame_equal(found, expected)


def test_an_audit_without_gaps_or_without_any_sufficient_group_still_draws(tmp_path: Path):
    scores, audit = audit_of(frame_of(["F", "M"]), measures=["auroc"])
    assert {p.name for p in save_audit_figures(scores, audit, tmp_path, ("svg",))} == {
        f"{name}.svg" for name in ("rates", "thresholds", "calibration", "decision-curves")
    }
    scores, audit = audit_of(frame_of(["F", "M"], n=4))
    assert len(save_audit_figures(scores, audit, tmp_path / "few", ("svg",))) == 4


def test_hostile_names_are_text_in_every_format(tmp_path: Path):
    scores, audit = audit_of(frame_of(HOSTILE, n=20, column="[bold]g"), name="<img src=x onerror=alert(1)>.csv")
    for path in save_audit_figures(scores, audit, tmp_path, ("svg", "html")):  # a PNG has no text
        content = path.read_text(errors="replace")
        if path.suffix == ".html":
            spec = content.split("const spec = ", 1)[1].split(";\n", 1)[0]
            assert "<" not in spec
            assert "<img src=x onerror=alert(1)>.csv" in str(json.loads(spec)["title"])
        else:
            elements = {element.tag.split("}")[1] for element in ET.fromstring(content).iter()}
            assert not elements & {"script", "b", "img"}
    assert {"[red]x[/red]", "<script>alert(1)</script>", "مجموعة"} <= _labels(tmp_path / "rates.svg")


def test_an_unknown_format_is_refused_and_nothing_is_written(tmp_path: Path):
    chart = alt.Chart(pd.DataFrame({"x": [1]})).mark_point()
    with pytest.raises(BadInput, match=facts("jpeg", "png", "svg", "html")):
        save_figures({"figure": chart}, tmp_path, ["svg", "jpeg"])
    assert list(tmp_path.iterdir()) == []


def test_a_figure_that_fails_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """It fails after its first bytes are written."""
    path = tmp_path / "figure.svg"
    path.write_text("old")

    def crash(place: Path, content: bytes) -> int:
        with place.open("wb") as file:
            file.write(content[:10])
        raise RuntimeError("crash")

    _, audit = audit_of(frame_of(["F", "M"]), measures=["auroc"])
    monkeypatch.setattr(Path, "write_bytes", crash)
    with pytest.raises(RuntimeError, match="crash"):
        save_figures({"figure": rates_figure(audit)}, tmp_path, ["svg"])
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_in_the_folder_is_replaced_and_not_written_through(tmp_path: Path):
    _, audit = audit_of(frame_of(["F", "M"]), measures=["auroc"])
    private = tmp_path / "private.svg"
    private.write_text("mine")
    folder = tmp_path / "figures"
    folder.mkdir()
    (folder / "rates.svg").symlink_to(private)
    save_figures({"rates": rates_figure(audit)}, folder, ["svg"])
    assert private.read_text() == "mine"
    assert not (folder / "rates.svg").is_symlink()
    assert "<svg" in (folder / "rates.svg").read_text()
