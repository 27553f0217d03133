"""The documents of a bundle: report.html, the model cards, and the overview of several labels."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from equipoise.comparison import Comparison
from equipoise.methods import ALL_AT_ONCE, METHODS, joint_outcome
from equipoise.report.model_card import cards
from equipoise.report.repair_page import report_page
from equipoise.report.report_spec import ReportSpec
from equipoise.report.templating import page_of
from equipoise.report.text import date_words, percent, plain
from equipoise.report.wording.audits import few_words
from equipoise.report.wording.names import PERFORMANCE, gap_words
from equipoise.report.wording.repairs import (
    groups_called,
    method_words,
    outcomes_words,
    repair_answer,
)

CARDS = "card.md and card.xml"


def documents_of(case: Comparison, options: ReportSpec) -> dict[str, Callable[[], dict[str, str]]]:
    """The documents of a comparison: for each, a function that returns the texts of its files by name."""
    return {
        CARDS: lambda: cards(case, options.card),
        "report.html": lambda: {"report.html": report_page(case, thumbnails=options.thumbnails, names=options.words)},
    }


def overview(
    title: str,
    cases: Mapping[str, Comparison],
    written: Mapping[str, Sequence[str]],
    places: Mapping[str, Path],
    options: ReportSpec = ReportSpec(),
) -> dict[str, str]:
    """The report.html and README.txt above the folders of several labels."""
    first = next(iter(cases.values()))
    method, one = method_words(first.result), first.kind.one
    rule_only = first.result.candidate.rule_only
    rules = [
        f"The scores of {len(cases)} labels, each with a decision rule of its own. Each folder here is complete: the rule, the audits, the",
        "report and the model card.",
    ]
    network = [
        f"One network, {len(cases)} {first.kind}, repaired by {method}. Each folder here is complete: the network's weights, the rule for",
        f"its {one}, the audits, the report and the model card. The weights are the same in all of them; heads around the",
        f"network (heads.safetensors), if any, are those of the {one}.",
    ]
    lines = [
        title,
        "",
        *(rules if rule_only else network),
        "",
        *(f"  {place.name}: {label}; equipoise apply {place} new.csv{'' if rule_only else ' --trust'}" for label, place in places.items()),
        "",
        f"report.html links to the report of each {one}; audit.json holds the audits of all.",
        "",
    ]
    return {"report.html": labels_page(title, cases, written, places, options.words), "README.txt": "\n".join(map(plain, lines))}


def labels_page(
    title: str,
    cases: Mapping[str, Comparison],
    written: Mapping[str, Sequence[str]],
    places: Mapping[str, Path],
    given: Mapping[str, str] | None = None,
) -> str:
    """The overview that links to the reports of several labels, as HTML; `given` are words for groups."""
    first = next(iter(cases.values()))
    goal, attribute = first.goal, first.original.test.attribute
    called = groups_called(first, given)
    rows: list[dict[str, Any]] = [
        {
            "label": label,
            "href": f"{quote(places[label].name)}/report.html" if "report.html" in written[label] else "",
            "gap": [case.found.gap_before, case.found.gap_after],
            "performance": [case.found.performance_before, case.found.performance_after],
            "outcome": case.outcome,
            "words": repair_answer(case, called),
        }
        for label, case in cases.items()
    ]
    context = {
        "title": title,
        "kind": f"multi-{first.kind.one} report",
        "kind_words": first.kind,
        "one": first.kind.one,
        "version": first.provenance.versions.get("equipoise", ""),
        "rows": rows,
        "outcome": joint_outcome(case.outcome for case in cases.values()),
        "outcomes_words": outcomes_words({label: case.judgement for label, case in cases.items()}, first.kind),
        "method": "; ".join(dict.fromkeys(method_words(case.result) for case in cases.values())),
        "together": METHODS[first.result.candidate.method].labels == ALL_AT_ONCE,
        "alone": first.result.candidate.rule_only,
        "attribute": attribute.name,
        "reference": attribute.reference,
        "more": len(attribute.levels) > 2,
        "goal": goal,
        "gap_words": gap_words,
        "performance": PERFORMANCE[goal.performance],
        "called": called.full,
        "few_words": few_words(first.found.after.rows, first.found.after.patients, first.found.after.weighted),
        "level": percent(first.found.settings.level),
        "provenance": first.provenance,
        "when": date_words(first.provenance.when),
    }
    return page_of("labels.html", context)
