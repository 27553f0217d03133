"""One audit as JSON, as a page, on one screen and in full: the same numbers everywhere."""

import json
import re
from typing import Any

import numpy as np
import pandas as pd
from lxml import html

from equipoise import cli
from support.shown_numbers import PATIENTS, PLAIN, RATES, SHOWN, all_ends, cell_of, ends_of, is_near, is_shown, named_by

MIRRORED = {"fnr_gap", "tnr_gap"}  # shown once, under the name of the measure that they mirror
Rows = dict[tuple[str, str, str], dict[str, Any]]  # by measure, attribute and group


def _check_gaps(page: Any, gaps: Rows) -> None:
    """Values, both intervals, p-values, detectable gaps, and what is marked as clear."""
    seen, bold = 0, set()
    for table in page.xpath("//table[contains(@class, 'gaps')]"):
        attribute = table.xpath("./caption")[0].text_content().removeprefix("Differences by ")
        for body in table.xpath("./tbody"):
            measure = body.xpath("./tr[1]//span[@class='means']")[0].text_content()
            for line in body.xpath("./tr[position() > 1]"):
                group = line.xpath("./th//bdi")[0].text_content()
                row, cells = gaps[measure, attribute, group], line.xpath("./td")
                assert is_shown(cell_of(cells[0]), ends_of(row), 100)
                if "shown" in cells[0].get("class", ""):
                    bold.add((measure, attribute, group))
                if row["value"] is None:
                    continue
                low, _, high = cells[1].text_content().strip().partition(" to ")
                if row["simultaneous_low"] is None:  # not tested: it has its own interval and p-value only
                    assert (low, row["p_adjusted"]) == ("", None)
                else:
                    assert is_near(low, row["simultaneous_low"], 100)
                    assert is_near(high, row["simultaneous_high"], 100)
                printed = [p for p in (row["p_adjusted"], row["p_value"]) if p is not None]
                for text, p in zip(re.findall(r"[<\d.]+", cells[2].text_content()), printed, strict=True):
                    assert p < 0.001 if text == "<0.001" else is_near(text, p)
                assert (
                    cells[3].text_content() == "none"
                    if row["detectable"] is None
                    else is_near(cells[3].text_content(), row["detectable"], 100)
                )
                seen += 1
    assert seen == sum(row["value"] is not None and row["measure"] not in MIRRORED for row in gaps.values())
    assert bold == {key for key, row in gaps.items() if row["clear"] and key[0] not in MIRRORED}


def _check_rates(page: Any, document: dict[str, Any]) -> None:
    rates = 0
    for table in page.xpath("//table[caption[starts-with(., 'Rates by ')]]"):
        attribute = table.xpath("./caption")[0].text_content().removeprefix("Rates by ")
        for body in table.xpath("./tbody"):
            rate = RATES[body.xpath("./tr[1]/th")[0].text.strip()]
            for line in body.xpath("./tr[position() > 1]"):
                [row] = [r for r in document["groups"] if (r["attribute"], r["group"]) == (attribute, named_by(line.xpath("./th")[0]))]
                assert is_shown(cell_of(line.xpath("./td")[0]), ends_of(row, rate), 1 if rate in PLAIN else 100), (
                    attribute,
                    row["group"],
                    rate,
                )
                rates += 1
    assert rates == len(RATES) * len(document["groups"])


def _check_terminal(screen: str, verbose: str, document: dict[str, Any], gaps: Rows) -> None:
    shown = [line for line in screen.splitlines() if " minus " in line and "[" in line]
    assert shown
    for line in shown:
        named = [(f"({m})", f" {g} minus {r['reference'].split()[0]} ", r) for (m, _, g), r in gaps.items() if r["value"] is not None]
        [row] = [r for measure, between, r in named if measure in line and between in line]  # a long reference may be wrapped
        assert is_shown(SHOWN.findall(line)[0], ends_of(row), 100), line
        assert ("*" in line) == row["clear"], line
    known = list(all_ends(document))
    for one in SHOWN.findall(verbose):
        assert any(is_shown(one, ends, scale) for ends in known for scale in (1, 100)), one
    assert verbose.count("*") - 1 == sum(row["clear"] for row in gaps.values())  # one more explains the mark


def test_every_output_of_an_audit_holds_the_same_numbers(place, capsys, monkeypatch):
    """One audit as JSON, as a page, on one screen and in full: values, both intervals, p-values and what is marked as clear."""
    frame = pd.read_csv("local.csv")
    rng = np.random.default_rng(5)
    scored = frame.assign(p=np.clip(0.35 + 0.3 * frame["sick"] * (frame["sex"] == "M") + rng.normal(0, 0.15, len(frame)), 0, 1))
    scored.to_csv("scores.csv", index=False)
    columns = ["--label", "sick", "--score", "p", "--group", "sex", "--group", "ward", "--reference", "M", "--reference", "south"]
    command = ["audit", "scores.csv", *columns, *PATIENTS, "--threshold", "0.5"]
    told = {}
    for name, more in {"json": ["--json"], "screen": [], "verbose": ["--verbose"], "page": ["--report", "audit.html"]}.items():
        assert cli.run([*command, *more]) == 0
        told[name] = capsys.readouterr().out
    document = json.loads(told["json"])
    page = html.fromstring((place / "audit.html").read_text(encoding="utf-8"))
    gaps = {(r["measure"], r["attribute"], r["group"]): r for r in document["gaps"]}
    assert any(row["clear"] for row in gaps.values())  # the difference in sensitivity between women and men
    assert {row["simultaneous_low"] < row["low"] for row in gaps.values() if row["simultaneous_low"] is not None} == {True}

    lead, largest = (
        " ".join(page.xpath(place)[0].text_content().split()) for place in ("//p[contains(@class, 'lead')]", "//p[@id='conclusion']")
    )
    assert lead in " ".join(told["screen"].split())
    assert f"{lead} {largest}" in " ".join(told["verbose"].split())
    assert f"{document['findings']} of {document['comparisons']}" in largest
    _check_gaps(page, gaps)
    _check_rates(page, document)
    _check_terminal(told["screen"], told["verbose"], document, gaps)
