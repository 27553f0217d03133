"""The model card of a bundle: card.md in the layout of the Hugging Face hub, and card.xml by the schema of CHAI (draft v0.2).

Numbers come from the findings on the test set before and after; facts that Equipoise cannot know come from the user's card.toml.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from torch import nn

from equipoise.measures import Estimate, group_estimate
from equipoise.models import is_network
from equipoise.repair import Comparison
from equipoise.report.card_facts import NOT_PROVIDED, Facts, Result, read_facts
from equipoise.report.pages import render
from equipoise.report.text import INSUFFICIENT, clean, interval, line, name, p_value_words, percent, sentence, shortened
from equipoise.report.wording import cards as words
from equipoise.report.wording.names import PERFORMANCE, performance_words, rate_title, rate_words
from equipoise.report.wording.repairs import goal_words, is_original

GAPS_SHOWN = ("spd", "eod", "aod", "fpr_gap")  # the other measures mirror these
RATES_SHOWN = ("selection_rate", "tpr", "tnr", "ppv", "npv", "auroc", "brier", "calibration_in_the_large", "calibration_slope")
XML_RATES = ("tpr", "tnr")
HUB_METRICS = {"auroc": "roc_auc"}  # the hub's names where they differ
LONGEST_METADATA = 200  # characters of a name in the metadata


def cards(case: Comparison, toml: Path | None = None) -> dict[str, str]:
    """The texts of card.md and card.xml, by name of the file."""
    facts, findings, unchanged = read_facts(toml), case.found, is_original(case)
    shared = {"case": case, "found": findings, "facts": facts, "words": words, "goal_words": goal_words, "not_provided": NOT_PROVIDED}
    markdown = {
        "metadata": yaml.safe_dump(metadata(case, facts), sort_keys=False, allow_unicode=True, width=10_000),
        "provenance": case.provenance,
        "level": percent(findings.after.settings.level),
        "attributes": [str(attribute) for attribute in findings.after.groups["attribute"].unique()],
        "gaps": _gap_rows(case),
        "rates": _rate_rows(case),
        "measures": _measures_shown(case),
        "performance": [(performance_words(m), *(_interval(audit[m]) for audit in (findings.before, findings.after))) for m in PERFORMANCE],
        "shifts": [
            (shift, rate_words(shift.rate), "no change" if unchanged else _interval(shift.change, "+")) for shift in findings.shifts
        ],
        "affected": findings.affected[-1],
    }
    xml = {"metrics": [_performance(case), _fairness(case)], "safety": _safety(facts)}
    return {
        "card.md": render("card.md.j2", shared | markdown),
        "card.xml": render("card.xml.j2", shared | xml),
    }


# card.md


def metadata(case: Comparison, facts: Facts) -> dict[str, object]:
    """The front matter of card.md for the hub. A measure with insufficient data has no entry."""
    measure, test = case.goal.measure, case.found.after
    task = pipeline_tag(case.result.candidate.model) if facts.model.task == NOT_PROVIDED else facts.model.task
    shown = [*words.performance_measures(case), measure]
    metrics = []
    for key in shown:
        estimate = case.found.gap_after if key == measure else test[key]
        if np.isnan(estimate.value):
            continue
        label = words.measure_words(key) if key == measure else performance_words(key)
        between = {"group": _metadata_name(estimate.group), "reference": _metadata_name(estimate.reference)} if key == measure else {}
        numbers = {"low": float(estimate.low), "high": float(estimate.high), "level": test.settings.level}
        metrics.append(
            {"type": HUB_METRICS.get(key, key), "name": label.replace("\\", ""), "value": float(estimate.value), "args": numbers | between}
        )
    result = {
        "task": {"type": task},
        "dataset": {"type": "local", "name": _metadata_name(test.name), "split": "test"},
        "metrics": metrics,
    }
    title = _metadata_name(case.title) if facts.model.name == NOT_PROVIDED else facts.model.name
    return {
        "license": "unknown" if facts.model.license == NOT_PROVIDED else facts.model.license,
        "library_name": "pytorch" if is_network(case.result.candidate.model) else "equipoise",
        "pipeline_tag": task,
        "tags": list(dict.fromkeys(["equipoise", "fairness", "bias-mitigation", *facts.model.keywords])),
        "metrics": [HUB_METRICS.get(key, key) for key in shown],
        "model-index": [{"name": title, "results": [result] if metrics else []}],
    }


def pipeline_tag(network: object) -> str:
    """The hub's name of the task: images if the network has two-dimensional convolutions, a table otherwise."""
    images = is_network(network) and any(isinstance(module, nn.Conv2d) for module in network.modules())
    return "image-classification" if images else "tabular-classification"


def _metadata_name(text: str) -> str:
    return shortened(clean(text), LONGEST_METADATA)


def _measures_shown(case: Comparison) -> list[str]:
    """The goal's measure and those of GAPS_SHOWN."""
    return list(dict.fromkeys([case.goal.measure, *GAPS_SHOWN]))


def _gap_rows(case: Comparison) -> list[tuple[str, ...]]:
    """The table of gaps, the goal's measure first; its columns are those of card.md.j2."""
    before, after = case.found.before, case.found.after
    rows = []
    for measure in _measures_shown(case):
        for place, row in after.gaps[after.gaps["measure"] == measure].iterrows():
            sides = [_interval(Estimate.of_gap(audit.gaps.loc[place].to_dict()), "+") for audit in (before, after)]
            detectable = "" if np.isnan(row["value"]) else "none" if np.isnan(row["detectable"]) else f"{row['detectable']:.3f}"
            between = f"{name(row['group'])} minus {name(row['reference'])}"
            simultaneous = "" if np.isnan(row["value"]) else f"{row['simultaneous_low']:+.3f} to {row['simultaneous_high']:+.3f}"
            adjusted = f"{p_value_words(row['p_adjusted'])}{' (clear)' if row['clear'] else ''}"
            rows.append((name(measure), name(row["attribute"]), between, *sides, simultaneous, adjusted, detectable))
    return rows


def _rate_rows(case: Comparison) -> list[tuple[str, ...]]:
    """The table of rates; its columns are those of card.md.j2."""
    before, after = case.found.before, case.found.after
    rows = []
    for place, (group, row) in enumerate(after.groups.iterrows()):
        group_name = f"{name(group)}{' (reference)' if row['reference'] else ''}"
        for rate in RATES_SHOWN:
            sides = [_interval(group_estimate(audit.groups.iloc[place], rate)) for audit in (before, after)]
            rows.append((name(row["attribute"]), group_name, rate_title(rate, after.settings), *sides))
    return rows


def _interval(estimate: Estimate, sign: str = "") -> str:
    return interval(estimate.value, estimate.low, estimate.high, sign)


# card.xml


def _performance(case: Comparison) -> dict[str, Any]:
    goal, findings = case.goal, case.found
    least = "the best within the maximum gap" if goal.min_performance is None else f"at least {goal.min_performance:.3g}"
    results = [
        (f"{performance_words(m)}, {when}", value_json(audit[m].value, audit[m].low, audit[m].high, audit.settings.level, audit[m].note))
        for m in words.performance_measures(case)
        for when, audit in (("before", findings.before), ("after", findings.after))
    ]
    return {
        "element": "UsefulnessUsabilityEfficacy",
        "goal": f"{performance_words(goal.performance).capitalize()}: {least}, on the repair set.",
        "results": results,
        "interpretation": words.performance_interpretation(case),
    }


def _fairness(case: Comparison) -> dict[str, Any]:
    findings, level = case.found, case.found.after.settings.level
    sides = (("before", findings.before), ("after", findings.after))
    results = []
    for place, row in findings.after.gaps[findings.after.gaps["measure"] == case.goal.measure].iterrows():
        label = f"{name(row['measure'])} by {name(row['attribute'])}, {name(row['group'])} minus {name(row['reference'])}"
        for when, audit in sides:
            value = audit.gaps.loc[place]
            results.append((f"{label}, {when}", value_json(value["value"], value["low"], value["high"], level, str(value["note"]))))
            if not np.isnan(value["value"]):
                ends = value["simultaneous_low"], value["simultaneous_high"]
                results.append((f"{label}, simultaneous interval, {when}", value_json(value["value"], *ends, level)))
                p = json.dumps({"kind": "single", "value": float(value["p_adjusted"])})
                results.append((f"{label}, adjusted p-value of {audit.comparisons} comparisons (Holm), {when}", p))
    for place, (group, row) in enumerate(findings.after.groups.iterrows()):
        for rate in XML_RATES:
            for when, audit in sides:
                value = audit.groups.iloc[place]
                numbers = (value[rate], value[f"{rate}_low"], value[f"{rate}_high"])
                results.append((f"{rate_words(rate)}, {name(row['attribute'])} {name(group)}, {when}", value_json(*numbers, level)))
    interpretation = words.joined(words.answer(case), words.outcome(case), words.who_got_worse(case))
    return {
        "element": "FairnessEquity",
        "goal": f"{sentence(line(goal_words(case.goal)))}.",
        "results": results,
        "interpretation": interpretation,
    }


def _safety(facts: Facts) -> list[tuple[str, str]]:
    results = facts.safety.results or (Result(label=NOT_PROVIDED, value=NOT_PROVIDED),)
    return [(result.label, _result_json(result)) for result in results]


def value_json(value: float, low: float, high: float, level: float, note: str = "") -> str:
    """A value with its interval as JSON, as in published cards; for NaN, the note or 'insufficient data'."""
    if np.isnan(value):
        return json.dumps({"kind": "single", "value": line(note) if note else INSUFFICIENT}, ensure_ascii=False)
    numbers = {"estimate": float(value), "lower": float(low), "upper": float(high), "level": _percent(level)}
    return json.dumps({"kind": "estimate_ci", **numbers})


def _result_json(result: Result) -> str:
    unit = {"unit": result.unit} if result.unit else {}
    if result.low is None:
        return json.dumps({"kind": "single", "value": result.value, **unit}, ensure_ascii=False)
    level = {} if result.level is None else {"level": _percent(result.level)}
    numbers = {"estimate": result.value, "lower": result.low, "upper": result.high}
    return json.dumps({"kind": "estimate_ci", **numbers, **level, **unit}, ensure_ascii=False)


def _percent(level: float) -> float:
    """A level in percent, an integer if possible: 95 for 0.95."""
    level_percent = round(100 * level, 6)
    return int(level_percent) if level_percent.is_integer() else level_percent
