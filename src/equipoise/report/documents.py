"""The documents of a bundle: report.html, the model cards, and the overview of several labels."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from equipoise.comparison import Comparison
from equipoise.report.model_card import cards
from equipoise.report.pages import page_of
from equipoise.report.repairs import overview_document, repair_document
from equipoise.report.report_spec import ReportSpec
from equipoise.report.text import plain
from equipoise.report.wording.repairs import method_words

CARDS = "card.md and card.xml"


def documents_of(case: Comparison, options: ReportSpec) -> dict[str, Callable[[], dict[str, str]]]:
    """The documents of a comparison: for each, a function that returns the texts of its files by name."""
    return {
        CARDS: lambda: cards(case, options.card),
        "report.html": lambda: {"report.html": page_of(repair_document(case, options.words, thumbnails=options.thumbnails))},
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
    links = {label: f"{quote(place.name)}/report.html" for label, place in places.items() if "report.html" in written[label]}
    page = page_of(overview_document(title, cases, links, options.words))
    return {"report.html": page, "README.txt": "\n".join(map(plain, lines))}
