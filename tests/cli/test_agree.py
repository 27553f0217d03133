"""All outputs of a repair agree: every interval in the report, the cards and the terminal is that of audit.json."""

import importlib
import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from lxml import html

from equipoise import Cohort, cli
from equipoise.disk import folders
from equipoise.measures import GAPS
from equipoise.report import p_value_words
from equipoise.report.wording.names import distinct, gap_words, upper_bound_words
from support.shown_numbers import NUMBER, PATIENTS, PLAIN, RATES, SHOWN, Interval, all_ends, cell_of, ends_of, is_near, is_shown, named_by

LABELS = ["Effusion", "Mass"]
METHODS = [
    "--method",
    "bias-gda",
    "--method",
    "equalised-odds",
    "--set",
    "bias-gda.schedule=paper",
    "--set",
    "bias-gda.epochs=2",
    "--set",
    "bias-gda.learning_rate=0.01",
    "--set",
    "goal.min_performance=0.5",
]
COMMON = ["--reference", "M", "--set", "data.features=a", "--set", "data.features=b", "--set", "data.features=c"]
COMMON += [
    "--set",
    "goal.selection=paper",
    "--set",
    "report.onnx=false",
    "--verbose",
    "--set",
    "repair.seed=7",
    "--set",
    "repair.draws=40",
    "--out",
    "repaired",
]


def _one(groups: list[str], *more: str) -> list[str]:
    by = [part for name in groups for part in ("--group", name)]
    network = ["--model", "net.py:build", "--weights", "net.safetensors"]
    return ["debias", "local.csv", "--label", "sick", *by, *network, *METHODS, *COMMON, *more]


def _several(*more: str) -> list[str]:
    by = [part for name in LABELS for part in ("--label", name)]
    return ["debias", "local.csv", *by, "--group", "sex", "--model", "two.py:build", "--weights", "two.pt", *METHODS, *COMMON, *more]


def _found(shown: str) -> tuple[str, ...] | None:
    match = SHOWN.fullmatch(shown.strip().rstrip("*†"))
    assert match or shown.strip() == "insufficient data", shown
    return match.groups() if match else None


def _check_report(page: Any, document: dict[str, Any]) -> int:
    """Compares the tables and the conclusion of a report with audit.json; returns the number of intervals."""
    seen = 0
    sides = ("before", "after")
    for table in page.xpath("//section[@id='groups']//table[contains(@class, 'forest-table')]"):
        attribute = re.search("Rates by (.*) before and after", table.xpath("./caption")[0].text_content())[1]
        for body in table.xpath("./tbody"):
            rate = RATES[body.xpath("./tr[1]/th")[0].text.strip()]
            for row in body.xpath("./tr[position() > 1]"):
                group = named_by(row.xpath("./th")[0])
                for side, cell in zip(sides, row.xpath("./td")[:2], strict=True):
                    [known] = [r for r in document[side]["groups"] if (r["attribute"], r["group"]) == (attribute, group)]
                    expected = ends_of(known, rate)
                    assert is_shown(cell_of(cell), expected, 1 if rate in PLAIN else 100), (attribute, group, rate, side)
                    seen += 1
    for table in page.xpath("//section[@id='gaps']//table[contains(@class, 'forest-table')]"):
        attribute = re.search("Differences by (.*) before and after", table.xpath("./caption")[0].text_content())[1]
        for body in table.xpath("./tbody"):
            measure = re.split("[ ,]", body.xpath("./tr[1]//span[@class='means']")[0].text_content())[0]
            for row in body.xpath("./tr[position() > 1]"):
                # A reference that several groups share is in the heading.
                group, reference = (bdi.text_content() for bdi in [*row.xpath("./th//bdi"), *body.xpath("./tr[1]/th/bdi")])
                key = (measure, attribute, group, reference)
                known = {
                    side: next(r for r in document[side]["gaps"] if (r["measure"], r["attribute"], r["group"], r["reference"]) == key)
                    for side in sides
                }
                cells = row.xpath("./td")
                for side, cell in zip(sides, cells[:2], strict=True):
                    assert is_shown(cell_of(cell), ends_of(known[side]), 100), (*key, side)
                    seen += 1
                if known["after"]["value"] is not None:
                    wide = [known["after"][f"simultaneous_{end}"] for end in ("low", "high")]
                    ends = cells[2].text_content().split(" to ")
                    assert ends == [""] if None in wide else all(is_near(*each, 100) for each in zip(ends, wide, strict=True))
                    shown = re.findall(r"<?[0-9.]+", cells[3].text_content())  # a derived gap is not tested
                    tested = [known[side]["p_adjusted"] for side in sides if known[side]["p_adjusted"] is not None]
                    assert shown == list(map(p_value_words, tested))
                    smallest = known["after"]["detectable"]
                    assert cells[4].text_content() == "none" if smallest is None else is_near(cells[4].text_content(), smallest, 100)
                    assert ("shown" in cells[1].get("class", "")) == known["after"]["clear"]
    [table] = page.xpath("//div[@aria-label='All methods on the test set']/table")
    audits = {"original": document["before"], **{name: entry["test_set"] for name, entry in document["methods"].items()}}
    rows = table.xpath("./tbody/tr")
    assert len(rows) == len(audits)
    for row, (name, found) in zip(rows, audits.items(), strict=True):
        assert name in row.xpath("./th")[0].text_content()
        gap, performance = row.xpath("./td")[:2]
        assert is_shown(cell_of(gap), _goal(document, found), 100), name
        assert is_shown(cell_of(performance), ends_of(found["balanced_accuracy"]), 100), name
        seen += 2
    answer = page.xpath("//p[@id='verdict-text']")[0].text_content()
    spans = re.findall(rf"points,? [^(.]*\((?:95% interval )?({NUMBER}) to ({NUMBER})\)", answer)
    known = [_goal(document, document["before"])[1:], _goal(document, document["after"])[1:], ends_of(document["change"]["gap"])[1:]]
    assert len(spans) >= (1 if known[0][0] is not None else 0)
    assert all(any(is_shown(shown, ends, 100) for ends in known) for shown in spans), spans  # type: ignore[arg-type]
    return seen + len(spans)


def _goal(document: dict[str, Any], found: dict[str, Any]) -> Interval:
    """The gap of the goal: the largest one of the attribute that the goal compares, the last of an audit."""
    attribute = found["gaps"][-1]["attribute"]
    rows = [r for r in found["gaps"] if (r["measure"], r["attribute"]) == (document["goal"]["measure"], attribute)]
    known = [r for r in rows if r["value"] is not None]
    return ends_of(max(known, key=lambda r: abs(r["value"]))) if known else (None, None, None)


def _goal_row(document: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """The row of the gap of `_goal`."""
    attribute = found["gaps"][-1]["attribute"]
    rows = [r for r in found["gaps"] if (r["measure"], r["attribute"]) == (document["goal"]["measure"], attribute)]
    return max(rows, key=lambda r: abs(r["value"] or 0.0))


def _tables(markdown: str) -> Iterator[tuple[str, list[list[str]]]]:
    """The tables of a card: the caption and the rows."""
    for caption, block in re.findall(r"^\*\*(.+)\*\*\n\n((?:^\|.*\|\n)+)", markdown, re.MULTILINE):
        yield caption, [[cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines()][2:]


def _check_card(markdown: str, document: dict[str, Any]) -> int:
    """Compares every interval of card.md with audit.json; returns their number."""
    seen, checked = 0, set()
    performance = {"Balanced accuracy": "balanced_accuracy", "Average precision": "average_precision"}
    for caption, rows in _tables(markdown):
        checked.add(caption)
        attribute = re.sub(r"\w+ by (.*) before and after.*", r"\1", caption)
        for row in rows:
            for side, place in zip(("before", "after"), (2, 3), strict=True):
                if caption.startswith("Differences by "):
                    named, _, shared = row[0].partition(" (")[0].partition(", minus ")
                    key = (attribute, row[1], shared) if shared else (attribute, *row[1].split(" minus "))
                    [known] = [
                        r
                        for r in document[side]["gaps"]
                        if (r["attribute"], r["group"], r["reference"]) == key
                        and gap_words(r["measure"]) == named
                        and r["measure"] in distinct(GAPS)
                    ]
                    assert is_shown(_found(row[place]), ends_of(known), 100), key
                    if side == "after" and known["simultaneous_low"] is not None:
                        low, high = row[4].split(" to ")
                        assert is_near(low, known["simultaneous_low"], 100), key
                        assert is_near(high, known["simultaneous_high"], 100), key
                        assert row[5].split(" → ")[1].replace("\\", "") == p_value_words(known["p_adjusted"]), key
                    if side == "after" and known["value"] is not None:
                        assert ("*" in row[place]) == known["clear"], key
                elif caption.startswith("Performance"):
                    measure = performance.get(row[0], row[0].lower())
                    scale = 1 if measure in ("auroc", "average_precision") else 100
                    assert is_shown(_found(row[place - 1]), ends_of(document[side][measure]), scale), row
                elif caption.startswith("Rates by "):
                    key = (attribute, row[1].removesuffix(" (reference)"))
                    [known] = [r for r in document[side]["groups"] if (r["attribute"], r["group"]) == key]
                    rate = RATES[row[0][:1].upper() + row[0][1:]]
                    assert is_shown(_found(row[place]), ends_of(known, rate), 1 if rate in PLAIN else 100), row
                elif caption.startswith("Change by ") and side == "after" and row[2] != "no change":
                    rate = {"sensitivity": "tpr", "false positive rate": "fpr"}[row[1]]
                    [known] = [r for r in document["change"]["rates"] if (r["group"], r["rate"]) == (row[0], rate)]
                    assert is_shown(_found(row[2]), ends_of(known), 100), row
                else:
                    continue
                seen += 1
    assert len(checked) >= 5
    return seen + _check_sentences(markdown.partition("### Results")[0], document)


def _check_sentences(text: str, document: dict[str, Any]) -> int:
    """Checks that every interval in a text is one of audit.json."""
    known = list(all_ends(document))
    shown = re.findall(r"interval (\S+) to ([^ %,;)]+)", text)
    assert shown
    for one in shown:
        assert any(None not in ends and is_shown(one, ends[1:], 100) for ends in known), one
    return len(shown)


def _check_xml(root: ET.Element, document: dict[str, Any]) -> int:
    """Checks that every estimate in card.xml is exactly one of audit.json under its label."""
    seen = 0
    for result in root.iter("{https://mc.chai.org/v0.2/schema.xsd}MetricResult"):
        label, value = (str(part.text) for part in result)
        found = json.loads(value)
        side, together = label.rpartition(", ")[2], ", simultaneous interval" in label
        label = label.replace(", simultaneous interval", "")
        if adjusted := re.fullmatch(r"(\S+) by (.+), (.+) minus (.+), adjusted p-value of (\d+) comparisons, (?:before|after)", label):
            key = (adjusted[1].replace("\\", ""), *adjusted.groups()[1:4])
            [known] = [r for r in document[side]["gaps"] if (r["measure"], r["attribute"], r["group"], r["reference"]) == key]
            assert (found["value"], int(adjusted[5])) == (known["p_adjusted"], document[side]["comparisons"]), label
            continue
        if found["kind"] != "estimate_ci":
            continue
        if " minus " in label:
            measure, attribute, group, reference = re.fullmatch(r"(\S+) by (.+), (.+) minus (.+), (?:before|after)", label).groups()
            key = (measure.replace("\\", ""), attribute, group, reference)
            [known] = [r for r in document[side]["gaps"] if (r["measure"], r["attribute"], r["group"], r["reference"]) == key]
            expected = (known["value"], known["simultaneous_low"], known["simultaneous_high"]) if together else ends_of(known)
        elif label.startswith(("sensitivity, ", "specificity, ")):
            rate, who, _ = label.split(", ")
            [known] = [r for r in document[side]["groups"] if f"{r['attribute']} {r['group']}" == who]
            expected = ends_of(known, {"sensitivity": "tpr", "specificity": "tnr"}[rate])
        else:
            expected = ends_of(document[side][{"AUROC": "auroc"}.get(label.split(", ")[0], label.split(", ")[0].replace(" ", "_"))])
        assert (found["estimate"], found["lower"], found["upper"]) == expected, label
        seen += 1
    return seen


def _check_terminal(printed: str, document: dict[str, Any]) -> int:
    """Compares the table of methods with audit.json; returns the number of intervals."""
    audits = {"original": document["before"], **{name: entry["test_set"] for name, entry in document["methods"].items()}}
    lines, seen = printed.splitlines(), 0
    for name, found in audits.items():
        line, *_ = [line for line in lines if line.strip().startswith(name) and "[" in line]  # among the methods; the options follow
        gap, performance = SHOWN.findall(line)
        assert is_shown(gap, _goal(document, found), 100), line
        assert is_shown(performance, ends_of(found["balanced_accuracy"]), 100), line
        limit = document["limit"] if name == "original" else document["methods"][name]["limit"]
        p_values = [p_value_words(_goal_row(document, found)[each]) for each in ("p_value", "p_adjusted")]
        bound = upper_bound_words(None if limit is None else limit["below"])
        assert any(
            line.strip().startswith(name) and line.split()[-2 - len(bound.split()) :] == [*p_values, *bound.split()] for line in lines
        )
        seen += 2
    return seen


def _check(folder: Path, printed: str) -> int:
    document = json.loads((folder / "audit.json").read_text())
    expected = {"level": 0.95, "seed": 7, "min_patients": 5, "specificity": 0.9, "sensitivity": 0.9}
    assert document["before"]["settings"] == document["after"]["settings"] == expected
    page = html.fromstring((folder / "report.html").read_text(encoding="utf-8"))
    lead = " ".join(page.xpath("//p[contains(@class, 'lead')]")[0].text_content().split())
    for text in (printed, (folder / "README.txt").read_text(encoding="utf-8")):
        assert lead in " ".join(text.split())  # the answer is the same sentence
    return (
        _check_report(page, document)
        + _check_card((folder / "card.md").read_text(encoding="utf-8"), document)
        + _check_xml(ET.fromstring((folder / "card.xml").read_bytes()), document)
        + _check_terminal(printed, document)
    )


@pytest.fixture
def audits(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Records the audits of a command, to check that nothing is audited twice."""
    audit_module = importlib.import_module("equipoise.measures.estimation")
    done, real = [], audit_module._label_audit

    def counted(source: Any, *rest: Any, **named: Any) -> Any:
        done.append(source.rule.describe())
        return real(source, *rest, **named)

    monkeypatch.setattr(audit_module, "_label_audit", counted)
    return done


@pytest.mark.parametrize(
    ("command", "least"),
    [
        pytest.param(lambda: _one(["sex"], *PATIENTS), 100, id="patients"),
        pytest.param(lambda: _one(["sex"]), 100, id="rows"),
        pytest.param(
            lambda: _one(["sex", "ward"], "--reference", "north", "--set", "repair.force=true", *PATIENTS), 300, id="two attributes"
        ),
    ],
)
def test_every_output_of_one_label_holds_the_numbers_of_one_audit(place, capsys, audits, command: Callable[[], list[str]], least):
    assert cli.run(command()) == 0
    assert _check(place / "repaired", capsys.readouterr().out) >= least
    assert len(audits) == 3  # the original and two methods


@pytest.mark.parametrize("more", [PATIENTS, []], ids=["patients", "rows"])
def test_every_output_of_several_labels_holds_the_numbers_of_one_audit(place, capsys, audits, more):
    assert cli.run(_several(*more)) == 0
    printed = capsys.readouterr().out
    places = folders(place / "repaired", LABELS)
    for name, following in zip(LABELS, [*LABELS[1:], "All labels"], strict=True):
        part = printed.split(f"\n{name}\n")[1].split(f"\n{following}")[0]
        assert _check(places[name], part) >= 100
    everything = json.loads((place / "repaired" / "audit.json").read_text())
    [table] = html.fromstring((place / "repaired" / "report.html").read_text(encoding="utf-8")).xpath("//main//table")
    rows = table.xpath("./tbody/tr")
    assert [named_by(row.xpath("./th")[0]) for row in rows] == LABELS
    for row, name in zip(rows, LABELS, strict=True):
        document = everything["labels"][name]
        assert document == json.loads((places[name] / "audit.json").read_text())
        cells = [cell_of(cell) for cell in row.xpath("./td")[:4]]
        for side, gap, performance in (("before", cells[0], cells[2]), ("after", cells[1], cells[3])):
            assert is_shown(gap, _goal(document, document[side]), 100)
            assert is_shown(performance, ends_of(document[side]["balanced_accuracy"]), 100)
    assert len(audits) == 2 * 3


def test_the_json_of_the_command_is_audit_json_and_the_decisions_have_its_rates(place, capsys):
    """The decisions of the saved folder on the held-out rows must give the reported rates."""
    network = [
        "--model",
        "net.py:build",
        "--weights",
        "net.safetensors",
        "--method",
        "bias-gda",
        "--set",
        "bias-gda.schedule=paper",
        "--set",
        "bias-gda.epochs=2",
    ]
    assert cli.run(["debias", "local.csv", "--label", "sick", "--group", "sex", *network, *COMMON, *PATIENTS, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    document = json.loads((place / "repaired" / "audit.json").read_text())
    assert {key: told[key] for key in document} == document
    assert cli.run(["apply", "repaired", "local.csv", "--trust", "--out", "decisions.csv"]) == 0
    frame = pd.read_csv("local.csv").assign(decision=pd.read_csv("decisions.csv")["decision"])
    cohort = Cohort.from_frame(frame, label="sick", group="sex", reference="M", patient="pid", id="id", features=["a", "b", "c"])
    held_out = frame[frame["id"].isin(cohort.hold_out(0.3, seed=7)[1].ids)]
    assert len(held_out) == document["after"]["rows"]
    for row in document["after"]["groups"]:
        own = held_out[held_out["sex"] == row["group"]]
        assert row["selection_rate"] == pytest.approx(own["decision"].mean(), abs=1e-12)
        assert row["tpr"] == pytest.approx(own.loc[own["sick"] == 1, "decision"].mean(), abs=1e-12)
        assert row["fpr"] == pytest.approx(own.loc[own["sick"] == 0, "decision"].mean(), abs=1e-12)
        assert row["n"] == len(own)
