"""The whole audit in a terminal: intervals unbroken at any width, names always text, and every note present."""

import io
import re

import pandas as pd
import pytest
from rich.console import Console

from equipoise.measures import GROUP_MEASURES
from equipoise.report import audit_parts, in_terminal, printable, short_name, table
from equipoise.report.text import percent
from equipoise.report.wording.names import RATE_WORDS
from support.audits import HOSTILE, audit_of, frame_of
from support.facts import says


def _shown(audit, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(in_terminal(audit_parts(audit, verbose=True)))
    return console.file.getvalue()


def test_names_of_rows_stay_where_the_heads_are_longer_than_the_terminal_is_wide():
    heads = ["Group", "AUROC with its interval", "Sensitivity in percent", "Threshold of the score", "Alarms per case", "Cheapest case"]
    console = Console(file=io.StringIO(), width=80, force_terminal=False)
    console.print(in_terminal([table("Prices", heads, [("women", "0.9", "71.6", "0.006", "35", "15"), ("men", "0.9", "", "", "", "29")])]))
    lines = console.file.getvalue().splitlines()
    assert any(line.startswith("women ") and line.rstrip().endswith("15") for line in lines)
    assert any(line.startswith("men ") and line.rstrip().endswith("29") for line in lines)
    assert {"Cheapest", "Threshold"} <= set(" ".join(lines).split())


def _cells(text: str, row: str) -> list[str]:
    """The intervals behind a row's name, over all tables."""
    return [
        cell
        for line in text.splitlines()
        if re.match(rf"\s*{re.escape(row)}\s\s", line)
        for cell in re.findall(r"\d\.\d+ \[[^\]]*\]", line)
    ]


def test_the_headline_says_what_how_many_and_which_decision():
    _, audit = audit_of(frame_of(["F", "M"]))
    assert says(_shown(audit).splitlines()[0], "tiny.csv", "120 rows", audit.rule.describe())


def test_patients_are_counted_and_named_as_what_was_drawn():
    frame = frame_of(["F", "M"]).assign(pid=lambda d: d.index // 2)
    _, audit = audit_of(frame, patient="pid")
    assert says(" ".join(_shown(audit).split()), "120 rows", "60 patients", "by patient")


@pytest.mark.parametrize("width", [60, 80, 120, 200])
@pytest.mark.parametrize("groups", [2, 6])
@pytest.mark.parametrize("name", ["F", "people with a name that is longer than their numbers"])
def test_no_interval_is_broken_at_any_width(width, groups, name):
    _, audit = audit_of(frame_of([f"{name} {k}" for k in range(groups)]))
    text = _shown(audit, width)
    for name in (RATE_WORDS[m].name for m in GROUP_MEASURES):
        expected = groups + (name == "AUROC")  # once more for everybody together
        assert len(_cells(text.partition("Differences by")[0], name)) == expected
    calibration = groups + 1  # in the large, of each group and of everybody
    assert len(re.findall(r"[+-]?\d+\.\d \[[+-]\d+\.\d, [+-]\d+\.\d\]", text)) == 6 * (groups - 1) + calibration
    assert max(map(len, text.splitlines())) <= width


def test_values_are_those_of_the_audit():
    _, audit = audit_of(frame_of(["F", "M"]), reference="M")
    text = _shown(audit)
    row = audit.groups.loc["F"]
    assert _cells(text, "sensitivity")[1].endswith(f"{100 * row['tpr']:.1f} [{100 * row['tpr_low']:.1f}, {100 * row['tpr_high']:.1f}]"[1:])
    eod = audit["eod"]
    assert f"F minus M   {100 * eod.value:+.1f} [{100 * eod.low:+.1f}, {100 * eod.high:+.1f}]" in re.sub(r" {3,}", "   ", text)
    assert "M (reference)" in text


def test_a_gap_that_is_clear_after_adjustment_is_bold():
    frame = frame_of(["F", "M"])
    frame.loc[frame["sex"] == "F", "p"] = 0.1
    _, audit = audit_of(frame, reference="M", measures=["spd"])
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system="standard")
    console.print(in_terminal(audit_parts(audit, verbose=True)))
    [line] = [line for line in console.file.getvalue().splitlines() if "F minus M" in line]
    assert "\x1b[1m" in line
    assert audit["spd"].clear


def test_insufficient_data_is_said_in_the_table_and_below_it():
    frame = pd.concat([frame_of(["F", "M"]), pd.DataFrame({"sex": "X", "y": [0, 1, 1], "p": 0.5})])
    text = _shown(audit_of(frame, reference="M")[1])
    assert text.count("insufficient data") == 15 + 6 + 1
    assert says(text, "sex X", "5 rows")


def test_what_is_short_of_data_is_named_as_in_the_table():
    frame = frame_of(["F", "M"])
    frame.loc[(frame["sex"] == "F") & (frame["y"] == 1), "y"] = [1, 1] + [0] * 28
    text = " ".join(_shown(audit_of(frame, reference="M")[1]).split())
    assert says(text, "sex F", "5 rows", ", ".join(RATE_WORDS[rate].name for rate in ("tpr", "fnr", "auroc")))


def test_missing_attributes_and_an_assumed_reference_are_said():
    frame = frame_of(["F", "M"])
    frame.loc[:11, "sex"] = None
    text = " ".join(_shown(audit_of(frame)[1]).split())
    assert says(text, "sex", "10.0%", "largest group, M")
    assert not says(_shown(audit_of(frame, reference="M")[1]), "largest group")


def test_one_gap_table_an_attribute():
    frame = frame_of(["yes", "no"]).assign(smokes=lambda d: ["yes", "no"] * (len(d) // 2))
    frame["y"] = frame["y"].sample(frac=1, random_state=0).to_numpy()
    text = _shown(audit_of(frame, group=["sex", "smokes"])[1])
    for title in ("Differences by sex:", "Differences by smokes:", "Differences by sex & smokes:"):
        assert text.count(title) == 1


def test_only_the_measures_that_were_asked_for():
    text = _shown(audit_of(frame_of(["F", "M"]), measures=["spd"])[1])
    assert "spd" in text
    assert "eod" not in text
    assert "Performance over all patients" not in text
    text = _shown(audit_of(frame_of(["F", "M"]), measures=["auroc"])[1])
    assert "all patients" in text
    assert "Differences" not in text


def test_hostile_names_are_text_and_cannot_steer_the_terminal():
    frame = frame_of(HOSTILE, column="[bold]g")
    text = _shown(audit_of(frame, name="[blink]a.csv")[1], width=200)
    for name in ("[red]x[/red]", "<script>alert(1)</script>", "</script><b>", "مجموعة", "[bold]g", "[blink]a.csv"):
        assert name in text
    assert "\x1b" not in text
    assert "\\x1b[31mred" in text
    assert "two\\nlines" in text
    assert len(text) < 100_000


def test_printable_keeps_lines_and_writes_out_the_rest():
    assert printable("a\nb") == "a\nb"
    assert printable("a\tb\x00\u202ec") == "a\\tb\\x00\\u202ec"
    assert printable("né مجموعة 组") == "né مجموعة 组"


def test_a_long_name_keeps_its_beginning_and_its_end():
    assert short_name("x" * 60) == "x" * 60
    assert short_name("a" * 3000 + "z" * 3000) == "a" * 47 + "…" + "z" * 12


def test_a_level_is_not_rounded_to_everything():
    assert (percent(0.95), percent(0.999)) == ("95%", "99.9%")
    assert "99.9% intervals" in _shown(audit_of(frame_of(["F", "M"]), level=0.999)[1])
