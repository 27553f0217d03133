"""What audits and repairs say first: one value for one quantity, all patients before groups, and nothing as fact that is not shown."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from lxml import html
from safetensors.torch import save_file

import equipoise as eq
from equipoise.methods import Note
from equipoise.report import repair_answer
from support.command import Ran, ran
from support.facts import says

ROLES = ("--label", "y", "--group", "sex", "--reference", "M")
SCORED = ("--score", "p", *ROLES)


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    monkeypatch.chdir(tmp_path)


def _scores(n: int, seed: int, less: float = 1.2, rows: int = 1) -> pd.DataFrame:
    """Scores that are lower for women with the finding; `rows` per patient."""
    rng = np.random.default_rng(seed)
    sex = rng.choice(["F", "M"], n // rows).repeat(rows)
    y = rng.integers(0, 2, n)
    p = 1 / (1 + np.exp(0.5 - rng.normal(1.6 * y - less * (sex == "F") * y, 1)))
    return pd.DataFrame({"pid": [f"{seed}-{k // rows}" for k in range(n)], "sex": sex, "y": y, "p": p.round(4)})


def _written(name: str, frame: pd.DataFrame) -> str:
    frame.to_csv(name, index=False)
    return name


def _done(*arguments: object) -> Ran:
    result = ran(*arguments)
    assert result.code == 0, result.err
    return result


def _page(path: str | Path) -> Any:
    return html.parse(str(path)).getroot()


def _lead(path: str | Path) -> str:
    """The first sentence of a page."""
    return " ".join(_page(path).xpath("string(//*[contains(@class, 'lead')])").split())


def _text(node: Any) -> str:
    return " ".join(node.text_content().split())


def _compared(frame: pd.DataFrame, before: float, after: float, **options: Any) -> Any:
    """One threshold compared with another on the same rows."""
    patient = "pid" if "pid" in frame else None
    scores = eq.Scores.from_frame(frame, label="y", score="p", group="sex", reference="M", patient=patient)
    return eq.compare({"original": before, "moved": after}, scores, **options)


# One quantity, one value


def test_the_original_has_one_value_at_a_threshold_in_use_whatever_the_command_and_the_method():
    valid, test = _written("valid.csv", _scores(400, 1)), _written("test.csv", _scores(400, 2))
    audited = json.loads(_done("audit", valid, *SCORED, "--threshold", 0.5, "--json").out)
    value = audited["balanced_accuracy"]["value"]
    for method in ("single-threshold", "group-thresholds"):
        found = _done("debias", valid, "--test", test, *SCORED, "--threshold", 0.5, "--method", method, "--out", method)
        goal = json.loads(Path(method, "audit.json").read_text())["goal"]
        assert goal["original"] == pytest.approx(value)
        assert goal["min_performance"] == pytest.approx(value - 0.02)
        trace = pd.read_csv(Path(method, "trace.csv")).query("step == 0")
        assert trace["performance_honest"].tolist() == pytest.approx([value] * len(trace))
        assert says(found.out, f"{100 * value:.1f}%")
        fitted = _page(Path(method, "report.html")).xpath("//p[@class='fitted']")[0]
        stated = [share for share in re.findall(r"\d+\.\d%", _text(fitted)) if abs(float(share[:-1]) - 100 * value) < 1.5]
        assert set(stated[:2]) == {f"{100 * value:.1f}%"}  # in the goal and in the sentence after it


def test_the_original_at_a_chosen_threshold_is_stated_as_its_value_on_the_repair_set():
    valid, test = _written("valid.csv", _scores(160, 3)), _written("test.csv", _scores(300, 4))
    _done("debias", valid, "--test", test, *SCORED, "--method", "group-thresholds", "--out", "rule")
    goal = json.loads(Path("rule", "audit.json").read_text())["goal"]
    plain = pd.read_csv("rule/trace.csv").query("step == 0")["performance"]
    assert [goal["original"]] * len(plain) == pytest.approx(plain.tolist())


# Audits


def test_terminal_page_and_notebook_lead_with_the_same_sentence():
    names = {"F": "women", "M": "men"}
    for frame in (_scores(900, 5), _scores(200, 6, less=0.0)):  # with and without a clear difference
        table = _written("s.csv", frame)
        shown = _done(
            "audit",
            table,
            *SCORED,
            "--threshold",
            0.5,
            "--report",
            "a.html",
            "--set",
            "report.words.F=women",
            "--set",
            "report.words.M=men",
        )
        assert _lead("a.html") in shown.out
        audit = eq.audit(eq.Scores.from_frame(frame, label="y", score="p", group="sex", reference="M"), threshold=0.5)
        audit.report("b.html", group_names=names)
        assert _lead("a.html") == _lead("b.html")
        audit.report("c.html")
        assert _lead("c.html") in _text(html.fromstring(audit._repr_html_()))


@pytest.mark.parametrize(("rows", "unit", "other"), [(1, "patients", "rows"), (3, "rows", "patients")])
def test_rows_are_called_rows_if_patients_have_several(rows, unit, other):
    table = _written("s.csv", _scores(1200, 7, rows=rows))
    shown = _done("audit", table, *SCORED, "--patient", "pid", "--threshold", 0.5, "--report", "a.html")
    for text in (shown.out, _lead("a.html"), _text(_page("a.html").get_element_by_id("worse"))):
        assert f"1,000 {unit}" in text
        assert f"1,000 {other}" not in text


def test_the_mark_of_few_patients_says_that_an_effective_number_counts():
    frame = _scores(600, 8)
    frame.loc[:299, "pid"] = np.repeat(["a", "b", "c"], 100)  # three patients have half of the rows
    table = _written("s.csv", frame)
    shown = _done("audit", table, *SCORED, "--patient", "pid", "--threshold", 0.5, "--report", "a.html")
    assert frame.query("sex == 'F'")["pid"].nunique() > 30
    for text in (shown.out, _text(_page("a.html").get_element_by_id("groups"))):
        assert re.search(r"†: [^.]*effective[^.]*30", text)
    one_row = _done("audit", _written("t.csv", _scores(60, 9)), *SCORED, "--patient", "pid", "--threshold", 0.5).out
    assert re.search(r"†: fewer than 30 patients", one_row)


@pytest.mark.parametrize(("threshold", "rate"), [(0, "specificity"), (1, "sensitivity")])
def test_everybody_flagged_is_remarked_on_like_nobody_flagged(threshold, rate):
    table = _written("s.csv", _scores(300, 10))
    shown = _done("audit", table, *SCORED, "--threshold", threshold, "--report", "a.html")
    for text in (shown.out, _lead("a.html"), _text(_page("a.html").get_element_by_id("unflagged"))):
        assert says(text, f"{rate} 0.0%")
    assert "--threshold" in shown.out


def test_everybody_flagged_is_remarked_on_for_one_of_several_labels():
    frame = _scores(300, 11).assign(z=lambda f: 1 - f["y"], q=0.9)
    both = ("--label", "y", "--score", "p", "--label", "z", "--score", "q", "--group", "sex", "--threshold", 0.5)
    shown = _done("audit", _written("s.csv", frame), *both).out
    assert says(shown, "1 of 2 labels", "every patient without the finding")


# Repairs


def test_a_repair_says_whether_the_gap_was_clear_then_what_changed_for_all_then_for_groups():
    both = _compared(_scores(2000, 12), 0.5, 0.2)
    both.report("r.html")
    found, lead = both.found, _lead("r.html")
    everybody = next(row for row in found.balances["sex"] if row.group is None)
    worst = max((row for row in found.balances["sex"] if row.group is not None), key=lambda row: row.alarms.value)
    facts = [
        lead.index("clear before"),
        lead.index(f"{1000 * everybody.alarms.value:.0f} more false alarms"),
        lead.index(f"{1000 * worst.alarms.value:.0f} more false alarms"),
    ]
    assert facts == sorted(facts)
    assert "all patients" in lead[: facts[1]]
    assert says(lead[facts[1] :], worst.group, f"{worst.rows:,}")
    assert "not clear before" not in lead
    _compared(_scores(200, 13, less=0.0), 0.5, 0.45).report("s.html")
    assert "not clear before" in _lead("s.html")


def _almost_nothing_moved() -> pd.DataFrame:
    """A clear gap, to which the lower threshold adds one decision of 1,200."""
    frame = pd.DataFrame({"sex": ["F", "M"] * 600, "y": np.repeat([1, 0], 600)})
    detected = np.where(frame["sex"] == "M", frame.index % 10 < 8, frame.index % 10 < 6)
    frame["p"] = np.where((frame["y"] == 1) & detected, 0.8, 0.2)
    frame.loc[(frame["sex"] == "M") & (frame["y"] == 1) & (frame["p"] == 0.2), "p"] = [0.45, *[0.2] * 59]
    return frame


def test_a_gap_that_is_practically_the_same_shows_no_benefit_and_asks_for_no_millions():
    both = _compared(_almost_nothing_moved(), 0.5, 0.4)
    both.report("r.html")
    lead, judgement = _lead("r.html"), both.judgement
    assert str(judgement.outcome) == "unclear"
    assert abs(judgement.gaps[0].change.value) == pytest.approx(1 / 300)
    assert says(lead, "practically the same", "no benefit")
    assert "would be needed" not in lead
    assert judgement.patients_needed is None or judgement.patients_needed <= 100_000


def _held_out_and_repair_set() -> tuple[pd.DataFrame, pd.DataFrame]:
    """With the lower threshold the gap shrinks by one patient on the repair set and grows by one on the test set."""

    def frame(moved: str) -> pd.DataFrame:
        rows = pd.DataFrame({"sex": ["F", "M"] * 100, "y": 1, "p": 0.8}).assign(pid=lambda f: [f"{moved}{k}" for k in f.index])
        rows.loc[(rows["sex"] == "F") & (rows.index < 60), "p"] = 0.2
        rows.loc[(rows["sex"] == "M") & (rows.index < 40), "p"] = 0.2
        rows.loc[rows.index[(rows["sex"] == moved) & (rows["p"] == 0.2)][0], "p"] = 0.45
        return pd.concat([rows, rows.assign(y=0, p=0.1, pid=rows["pid"] + "n")], ignore_index=True)

    return frame("M"), frame("F")


def test_a_change_by_chance_does_not_contradict_the_repair_set():
    test, valid = _held_out_and_repair_set()
    repair_set = eq.Scores.from_frame(valid, label="y", score="p", group="sex", reference="M", patient="pid")
    both = _compared(test, 0.5, 0.4, valid=repair_set)
    found = both.found
    assert abs(found.valid_after) < abs(found.valid_before)
    assert abs(found.gap_after.value) > abs(found.gap_before.value)
    assert found.gap_change.low < found.valid_after - found.valid_before < found.gap_change.high
    both.report("r.html")
    assert "contradict" not in _text(_page("r.html").get_element_by_id("verdict-text"))


def test_bars_of_changed_decisions_have_one_denominator():
    """7 of 20 newly detected and 13 of 180 newly flagged: the harms are more, and their bar is longer."""
    y = np.array([1] * 20 + [0] * 180)
    p = np.array([0.45] * 7 + [0.8] * 13 + [0.45] * 13 + [0.1] * 167)
    frame = pd.concat([pd.DataFrame({"sex": sex, "y": y, "p": p}) for sex in ("F", "M")], ignore_index=True)
    _compared(frame, 0.5, 0.4).report("r.html")
    chart = _page("r.html").xpath("//*[local-name() = 'svg' and contains(@class, 'change')]")[0]
    widths = {side: max(float(bar.get("width").rstrip("%")) for bar in chart.xpath(f".//*[@class='{side}']")) for side in ("gain", "loss")}
    assert widths["loss"] / widths["gain"] == pytest.approx(13 / 7, rel=0.01)


def test_nothing_is_stated_as_fact_under_an_unclear_outcome():
    frame = pd.DataFrame({"sex": ["F", "M"] * 40, "y": np.repeat([1, 0], 40), "p": np.repeat([0.8, 0.1], 40)})
    frame.loc[[0, 2, 4, 1], "p"] = 0.2
    frame.loc[0, "p"] = 0.45  # the lower threshold detects one woman more
    both = _compared(frame, 0.5, 0.4)
    both.report("r.html")
    assert (str(both.judgement.outcome), both.found.seen, both.found.levelled) == ("unclear", "unclear", ())
    assert "without making either group worse" not in _text(_page("r.html").get_element_by_id("affected"))


def test_one_unknown_row_is_not_to_be_merged_with_more_than_a_thousand_men():
    frame = _scores(2900, 15)
    frame.loc[0, "sex"] = "unknown"
    failed = ran("debias", _written("s.csv", frame), "--score", "p", "--label", "y", "--group", "sex", "--reference", "F", "--out", "rule")
    assert failed.code == 2
    assert "unknown" in failed.err
    assert not re.search(r"[Mm]erge[^.]*'M'", failed.err)


def test_a_budget_that_ran_out_is_the_end_of_the_first_sentence():
    columns = {"label": "y", "score": "p", "group": "sex", "reference": "M"}
    repair, held_out = (eq.Scores.from_frame(_scores(400, seed), **columns) for seed in (1, 2))
    both = eq.compare({"original": 0.5, "rule": eq.debias(repair, method="group-thresholds", threshold=0.5)}, held_out)
    (tried,) = both.candidates
    cut = Note("cut_short", "bias-gda", {"steps": 3})
    noted = replace(both, classifiers=(both.original, replace(tried, candidate=replace(tried.candidate, notes=(cut,)))))
    assert repair_answer(noted).endswith("the budget (repair.budget) ran out: bias-gda was stopped after 3 steps.")
    assert "budget" not in repair_answer(both)


def test_a_budget_that_ran_out_is_in_the_first_sentence():
    frame = _scores(600, 16).assign(height=lambda f: (f["sex"] == "M") + f["y"] + np.linspace(0, 1, 600), noise=0.5)
    Path("net.py").write_text("from torch import nn\n\ndef build():\n    return nn.Linear(2, 1)\n")
    save_file(
        {"weight": torch.tensor([[1.0, 0.0]]), "bias": torch.tensor([-1.5])}, "net.safetensors"
    )  # a large gap, which takes many steps
    table = _written("t.csv", frame[["sex", "y", "height", "noise"]])
    network = ("--set", "data.features=height", "--set", "data.features=noise", "--model", "net.py:build", "--weights", "net.safetensors")
    shown = _done(
        "debias",
        table,
        *ROLES,
        *network,
        "--method",
        "bias-gda",
        "--threshold",
        0.62,
        "--set",
        "repair.budget=1e-6",
        "--out",
        "rule",
        "--verbose",
    )
    first, *rest = shown.out.strip().splitlines()
    cut = any("budget was used up" in line for line in rest)  # it is not on every machine
    assert ("repair.budget" in first) == cut
    assert _lead("rule/report.html") == first
    assert first in Path("rule/README.txt").read_text()
