"""An audit on one screen: the largest clear gap in a sentence, groups and gaps with the audit's numbers, mirrors once, few lines."""

import io
import re
from functools import partial

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from equipoise.measures import GAPS
from equipoise.report import audit_parts, in_terminal
from equipoise.report.audits import SCREEN_GAPS, SCREEN_GROUPS
from support.audits import HOSTILE, audit_of, frame_of, joined
from support.facts import says


def _shown(view, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(in_terminal(view))
    return console.file.getvalue()


def _two_attributes() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    frame = frame_of(["F", "M"], n=240)
    return frame.assign(age=rng.choice(["<40", "40-59", "60-79", "80+"], len(frame)))


def test_one_attribute_fits_a_terminal_of_24_lines():
    text = _shown(audit_parts(audit_of(frame_of(["F", "M"]), reference="M")[1]))
    assert len(text.splitlines()) <= 24
    assert max(map(len, text.splitlines())) <= 80


def test_two_attributes_and_their_intersections_fit_a_screen():
    text = _shown(audit_parts(audit_of(_two_attributes(), group=["sex", "age"])[1]), 100)
    assert len(text.splitlines()) <= 40
    assert "sex & age" not in text  # their groups are for --verbose
    assert len(re.findall(r"[+-][\d.]+ \[", text)) <= SCREEN_GAPS


def test_values_are_those_of_the_audit():
    _, audit = audit_of(frame_of(["F", "M"]), reference="M")
    text, row, eod = _shown(audit_parts(audit)), audit.groups.loc["F"], audit["eod"]
    assert f"{100 * row['tpr']:.1f} [{100 * row['tpr_low']:.1f}, {100 * row['tpr_high']:.1f}]" in text
    [line] = [line for line in text.splitlines() if "(eod)" in line]
    assert f"{100 * eod.value:+.1f} [{100 * eod.low:+.1f}, {100 * eod.high:+.1f}]" in line


def test_a_mirror_is_shown_once():
    text = _shown(audit_parts(audit_of(frame_of(["F", "M"]), reference="M")[1]))
    assert [name for name in GAPS if f"({name})" in text] == ["spd", "eod", "fpr_gap"]
    alone = _shown(audit_parts(audit_of(frame_of(["F", "M"]), reference="M", measures=["fnr_gap", "aod"])[1]))
    assert [name for name in GAPS if f"({name})" in alone] == ["aod", "fnr_gap"]


def test_who_is_worse_off_comes_first_and_then_the_largest_clear_gap_with_its_direction():
    frame = frame_of(["F", "M"])
    frame.loc[frame["sex"] == "F", "p"] = 0.1
    _, audit = audit_of(frame, reference="M")
    text, whole = (" ".join(_shown(view(audit)).split()) for view in (audit_parts, partial(audit_parts, verbose=True)))
    missed = f"{1000 * abs(audit['eod'].value):.0f} more"
    assert text.index("sex is F,") < text.index(missed) < text.index("sex is M")
    assert missed in whole
    largest = max((audit[name] for name in ("spd", "eod", "fpr_gap")), key=lambda e: abs(e.value))
    assert largest.value < 0
    assert says(whole, f"{100 * abs(largest.value):.1f} percentage points", "lower in F", "M")


def test_no_clear_gap_is_reported_as_such():
    frame = frame_of(["F", "M"])
    frame["p"] = np.where(frame.groupby(["sex", "y"]).cumcount() % 2, 0.7, 0.3)
    _, audit = audit_of(frame, reference="M")
    text = _shown(audit_parts(audit), 200)
    assert says(text, f"{audit.comparisons} comparisons", "does not show that there is none")
    assert "detectable size" not in text
    assert not says(text, "lower in")
    assert not says(text, "higher in")


def test_groups_that_are_not_shown_are_counted():
    names = [f"g{k:02}" for k in range(15)]
    _, audit = audit_of(frame_of(names), reference="g00")
    text = _shown(audit_parts(audit))
    assert says(" ".join(text.split()), f"{len(names) - SCREEN_GROUPS} more")
    assert "g00 (reference)" in text


@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_interval_is_broken_at_any_width(width):
    text = _shown(audit_parts(audit_of(frame_of(["people with a long name", "M"]), reference="M")[1]), width)
    assert len(re.findall(r"[\d.]+ \[[+-]?[\d.]+, [+-]?[\d.]+\]", text)) == 2 * 2 + 3
    assert max(map(len, text.splitlines())) <= width


def test_insufficient_data_is_shown():
    frame = pd.concat([frame_of(["F", "M"]), pd.DataFrame({"sex": "X", "y": [0, 1, 1], "p": 0.5})])
    text = _shown(audit_parts(audit_of(frame, reference="M")[1]))
    assert text.count("insufficient data") == 2 + 3


def test_several_labels_have_a_row_each():
    _, audit = audit_of(frame_of(["F", "M"]), reference="M")
    text = _shown(audit_parts(joined(Effusion=audit, Mass=audit)))
    assert sum(line.strip().startswith(("Effusion", "Mass")) for line in text.splitlines()) == 2
    assert f"{100 * audit['balanced_accuracy'].value:.1f}" in text


def test_several_labels_begin_with_the_conclusion_and_the_threshold():
    frame = frame_of(["F", "M"]).assign(p=lambda rows: 0.9 * rows["p"])
    audit, high = (audit_of(frame, reference="M", threshold=at)[1] for at in (0.5, 0.95))
    text = " ".join(_shown(audit_parts(joined(Effusion=audit, Mass=audit))).split())
    assert says(text, "No clear difference", "2 labels", "score >= 0.5")
    assert "--threshold" not in text
    text = " ".join(_shown(audit_parts(joined(Effusion=audit, Hernia=high))).split())
    assert says(text, "score >= 0.5", high.rule.describe(), "1 of 2 labels", "flagged at this threshold", "--threshold")
    assert "groups: Hernia." in text


def test_a_threshold_that_flags_no_patient_with_the_finding_is_reported():
    frame = frame_of(["F", "M"]).assign(p=lambda rows: 0.9 * rows["p"])
    used, high = (audit_of(frame, reference="M", threshold=at)[1] for at in (0.5, 0.95))
    for view in (audit_parts, partial(audit_parts, verbose=True)):
        assert "--threshold" not in _shown(view(used))
        assert says(" ".join(_shown(view(high)).split()), "No patient with the finding", "0.0%", "--threshold")


def test_the_legend_states_the_unit_of_the_intervals_and_what_detectable_means():
    frame = frame_of(["F", "M"])
    by_row = " ".join(_shown(audit_parts(audit_of(frame, reference="M")[1])).split())
    assert says(by_row, "by row: no patient column was named, so rows are treated as independent (--patient)")
    assert says(by_row, "own interval", "80% power", "before adjustment")
    frame["patient"] = [f"p{k}" for k in range(len(frame))]
    by_patient = " ".join(_shown(audit_parts(audit_of(frame, reference="M", patient="patient")[1])).split())
    assert "by patient." in by_patient
    assert "independent" not in by_patient


def test_hostile_names_are_text_and_cannot_steer_the_terminal():
    text = _shown(audit_parts(audit_of(frame_of(HOSTILE, column="[bold]g"), name="[blink]a.csv")[1]), 200)
    assert "\x1b" not in text
    assert "[blink]a.csv" in text
    assert "\\x1b[31mred" in text
