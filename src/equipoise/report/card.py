"""The model card of a repaired classifier: card.md in the layout of the Hugging Face hub, card.xml by the schema of CHAI.

Numbers come from the audits of the test part before and after; what Equipoise cannot know comes from the user's card.toml.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined
from torch import nn

from equipoise.data import write_text
from equipoise.report import card_fields as fields
from equipoise.report import card_words as words
from equipoise.report.card_facts import NOT_PROVIDED, Facts, read_facts
from equipoise.report.card_findings import CardFindings, card_findings
from equipoise.report.card_text import clean, fenced, line, name, spread, to_yaml
from equipoise.report.card_xml import card_xml
from equipoise.report.case import Case
from equipoise.report.findings import Findings, find
from equipoise.report.terminal import PERFORMANCE_NAMES, ROW_NAMES, percent
from equipoise.report.words import count

TEMPLATE = "card.md.j2"
GAPS_SHOWN = ("spd", "eod", "aod", "fpr_gap")  # the others are these with the sign turned
RATES_SHOWN = ("selection_rate", "tpr", "tnr", "ppv", "npv", "auroc", "calibration_error")
HUB_METRICS = {"auroc": "roc_auc"}  # the hub's names where they differ


def write_cards(case: Case, folder: Path, toml: Path | None = None, *, found: Findings | None = None) -> None:
    """Writes card.md and card.xml into the folder, each whole or not at all. `found`, the findings of the report, is not computed again."""
    facts = read_facts(toml)  # first, because it is the user's and may hold mistakes
    shown = card_findings(case, found or find(replace(case, repairs=(case.result,), chosen=0)))  # other methods have no numbers in it
    texts = {"card.md": card_markdown(shown, facts), "card.xml": card_xml(shown, facts)}
    for file, text in texts.items():
        write_text(Path(folder) / file, text)


def card_markdown(found: CardFindings, facts: Facts) -> str:
    """The card for people, with metadata for the hub on top."""
    environment = Environment(
        loader=PackageLoader("equipoise.report"),
        autoescape=False,  # Markdown; every name goes through the filter `name`, `line` or `fenced`
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"name": name, "line": line, "fenced": fenced, "count": count}
    case = found.case
    return environment.get_template(TEMPLATE).render(
        metadata=to_yaml(metadata(found, facts)),
        found=found,
        facts=facts,
        words=words,
        case=case,
        candidate=case.result.candidate,
        provenance=case.provenance,
        fields=fields,
        level=percent(found.after.settings.level),
        attributes=[str(a) for a in found.after.groups["attribute"].unique()],
        gaps=_gap_rows(found),
        rates=_rate_rows(found),
        measures=_measures_shown(found),
        performance=_performance_rows(found),
        shifts=[(s, words.RATE_WORDS[s.rate], spread(s.change.value, s.change.low, s.change.high, "+")) for s in found.shifts],
        not_provided=NOT_PROVIDED,
    )


def metadata(found: CardFindings, facts: Facts) -> dict[str, object]:
    """The block on top of card.md, as the hub reads it. A value without enough data has no entry."""
    measure, test = found.goal.measure, found.after
    task = pipeline_tag(found.case.result.candidate.model) if facts.model.task == NOT_PROVIDED else facts.model.task
    shown = [*words.performance_measures(found), measure]
    metrics = []
    for key in shown:
        estimate = found.gap[1] if key == measure else test[key]
        if np.isnan(estimate.value):
            continue
        label = words.measure_words(key) if key == measure else words.performance_words(key)
        between = {"group": _short(estimate.group), "reference": _short(estimate.reference)} if key == measure else {}
        numbers = {"low": estimate.low, "high": estimate.high, "level": test.settings.level}
        metrics.append(
            {"type": HUB_METRICS.get(key, key), "name": label.replace("\\", ""), "value": estimate.value, "args": numbers | between}
        )
    result = {
        "task": {"type": task},
        "dataset": {"type": "local", "name": _short(test.name), "split": "test"},
        "metrics": metrics,
    }
    tags = ["equipoise", "fairness", "bias-mitigation", *facts.model.keywords]
    title = _short(found.case.title) if facts.model.name == NOT_PROVIDED else facts.model.name
    return {
        "license": "unknown" if facts.model.license == NOT_PROVIDED else facts.model.license,
        "library_name": "pytorch",
        "pipeline_tag": task,
        "tags": list(dict.fromkeys(tags)),
        "metrics": [HUB_METRICS.get(key, key) for key in shown],
        "model-index": [{"name": title, "results": [result] if metrics else []}],
    }


def pipeline_tag(network: nn.Module) -> str:
    """The hub's word for the task: images if the network has convolutions over two axes, a table otherwise."""
    images = any(isinstance(module, nn.Conv2d) for module in network.modules())
    return "image-classification" if images else "tabular-classification"


def _short(text: str) -> str:
    """A name as plain text, for metadata."""
    tidy = clean(text)
    return tidy if len(tidy) <= 200 else f"{tidy[:180]} ... {tidy[-15:]}"


def _measures_shown(found: CardFindings) -> list[str]:
    """The goal's measure and those of GAPS_SHOWN."""
    return list(dict.fromkeys([found.goal.measure, *GAPS_SHOWN]))


def _gap_rows(found: CardFindings) -> list[tuple[str, str, str, str, str, str]]:
    """Measure, attribute, groups, before, after and the smallest detectable gap; the goal's measure first."""
    rows = []
    for measure in _measures_shown(found):
        for place, row in found.after.gaps[found.after.gaps["measure"] == measure].iterrows():
            ends = [_spread_of(audit.gaps.loc[place], "value", "low", "high", "+") for audit in (found.before, found.after)]
            detectable = "" if np.isnan(row["detectable"]) else f"{row['detectable']:.3f}"
            between = f"{name(row['group'])} minus {name(row['reference'])}"
            rows.append((name(measure), name(row["attribute"]), between, ends[0], ends[1], detectable))
    return rows


def _rate_rows(found: CardFindings) -> list[tuple[str, str, str, str, str]]:
    """Attribute, group, rate, before and after."""
    rows = []
    for place, (group, row) in enumerate(found.after.groups.iterrows()):
        who = f"{name(group)}{' (reference)' if row['reference'] else ''}"
        for rate in RATES_SHOWN:
            ends = [_spread_of(audit.groups.iloc[place], rate, f"{rate}_low", f"{rate}_high") for audit in (found.before, found.after)]
            rows.append((name(row["attribute"]), who, ROW_NAMES[rate], ends[0], ends[1]))
    return rows


def _performance_rows(found: CardFindings) -> list[tuple[str, str, str]]:
    rows = []
    for measure in PERFORMANCE_NAMES:
        ends = [spread(e.value, e.low, e.high) for e in (found.before[measure], found.after[measure])]
        rows.append((words.performance_words(measure), ends[0], ends[1]))
    return rows


def _spread_of(row: pd.Series, value: str, low: str, high: str, sign: str = "") -> str:
    return spread(float(row[value]), float(row[low]), float(row[high]), sign)
