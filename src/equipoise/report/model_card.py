"""The model card of a bundle: card.md in the layout of the Hugging Face hub, and card.xml by the schema of CHAI (draft v0.2).

Both are made from one table of results, on the test set before and after, and from the paragraphs of `wording.cards`; facts that Equipoise
cannot know come from the user's card.toml.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml

from equipoise.comparison import Comparison
from equipoise.measures import Estimate, group_estimate
from equipoise.models import is_network
from equipoise.report.card_facts import NOT_PROVIDED, Result, read_facts
from equipoise.report.pages import render
from equipoise.report.text import INSUFFICIENT, clean, interval, line, name, p_value_words, percent, sentence, shortened
from equipoise.report.wording.cards import GAPS_SHOWN, measure_words, paragraphs
from equipoise.report.wording.names import PERFORMANCE, performance_words, rate_title, rate_words
from equipoise.report.wording.repairs import goal_words, is_original

RATES_SHOWN = ("selection_rate", "tpr", "tnr", "ppv", "npv", "auroc", "brier", "calibration_in_the_large", "calibration_slope")
XML_RATES = ("tpr", "tnr")
HUB_METRICS = {"auroc": "roc_auc"}  # the hub's names where they differ
LONGEST_METADATA = 200  # characters of a name in the metadata


class Measured(NamedTuple):
    """One measure before and after the repair; `of` are the attribute and group of a gap or rate."""

    measure: str
    of: tuple[str, ...]
    before: Estimate
    after: Estimate
    reference: bool = False

    @property
    def both(self) -> tuple[tuple[str, Estimate], ...]:
        return ("before", self.before), ("after", self.after)


def cards(case: Comparison, toml: Path | None = None) -> dict[str, str]:
    """The texts of card.md and card.xml, by name of the file."""
    facts, findings, unchanged = read_facts(toml), case.found, is_original(case)
    before, after = findings.before, findings.after
    gaps = [
        Measured(measure, (str(row["attribute"]),), Estimate.of_gap(dict(before.gaps.loc[place])), Estimate.of_gap(dict(row)))
        for measure in dict.fromkeys([case.goal.measure, *GAPS_SHOWN])
        for place, row in after.gaps[after.gaps["measure"] == measure].iterrows()
    ]
    rates = [
        Measured(rate, (str(row["attribute"]), str(group)), *_sides(case, place, rate), reference=bool(row["reference"]))
        for place, (group, row) in enumerate(after.groups.iterrows())
        for rate in RATES_SHOWN
    ]
    performance = [Measured(measure, (), before[measure], after[measure]) for measure in PERFORMANCE]
    named = dict.fromkeys([case.goal.performance, "balanced_accuracy", "auroc"])
    shared = {"case": case, "found": findings, "facts": facts, "not_provided": NOT_PROVIDED}
    shared["words"] = paragraphs(case, facts)
    markdown = {
        "metadata": yaml.safe_dump(metadata(case, facts, list(named)), sort_keys=False, allow_unicode=True, width=10_000),
        "provenance": case.provenance,
        "level": percent(after.settings.level),
        "attributes": [str(attribute) for attribute in after.groups["attribute"].unique()],
        "gaps": list(map(_gap_row, gaps)),
        "rates": [
            (name(r.of[0]), name(r.of[1]) + " (reference)" * r.reference, rate_title(r.measure, after.settings), *map(_interval, r[2:4]))
            for r in rates
        ],
        "performance": [(performance_words(p.measure), _interval(p.before), _interval(p.after)) for p in performance],
        "shifts": [(s, rate_words(s.rate), "no change" if unchanged else _interval(s.change, "+")) for s in findings.shifts],
        "affected": findings.affected[-1],
    }
    least = "the best within the maximum gap" if case.goal.min_performance is None else f"at least {case.goal.min_performance:.3g}"
    level = after.settings.level
    usefulness = [
        (f"{performance_words(p.measure)}, {when}", value_json(e, level))
        for measure in named
        for p in performance
        if p.measure == measure
        for when, e in p.both
    ]
    fairness = [result for gap in gaps if gap.measure == case.goal.measure for result in _gap_results(gap, after.comparisons, level)]
    for rate in (r for r in rates if r.measure in XML_RATES):
        label = f"{rate_words(rate.measure)}, {name(rate.of[0])} {name(rate.of[1])}"
        fairness += [(f"{label}, {when}", value_json(e, level)) for when, e in rate.both]
    aim = f"{performance_words(case.goal.performance).capitalize()}: {least}, on the repair set."
    safety = facts.safety.results or (Result(label=NOT_PROVIDED, value=NOT_PROVIDED),)
    xml = {
        "metrics": [
            ("UsefulnessUsabilityEfficacy", aim, usefulness, shared["words"]["performance"]),
            ("FairnessEquity", f"{sentence(line(goal_words(case.goal)))}.", fairness, shared["words"]["fairness"]),
        ],
        "safety": [(result.label, _result_json(result)) for result in safety],
    }
    return {"card.md": render("card.md.j2", shared | markdown), "card.xml": render("card.xml.j2", shared | xml)}


def _sides(case: Comparison, place: int, rate: str) -> tuple[Estimate, Estimate]:
    return group_estimate(case.found.before.groups.iloc[place], rate), group_estimate(case.found.after.groups.iloc[place], rate)


def _gap_row(gap: Measured) -> tuple[str, ...]:
    """A row of the table of gaps in card.md."""
    after, known = gap.after, not np.isnan(gap.after.value)
    detectable = "none" if np.isnan(after.detectable) else f"{after.detectable:.3f}"
    simultaneous = f"{after.simultaneous_low:+.3f} to {after.simultaneous_high:+.3f}"
    between, sides = f"{name(after.group)} minus {name(after.reference)}", (_interval(gap.before, "+"), _interval(after, "+"))
    adjusted = f"{p_value_words(after.p_adjusted)}{' (clear)' if after.clear else ''}"
    further = (simultaneous, adjusted, detectable) if known else ("", adjusted, "")
    return (name(gap.measure), name(gap.of[0]), between, *sides, *further)


def _gap_results(gap: Measured, comparisons: int, level: float) -> Iterator[tuple[str, str]]:
    """A gap as results of card.xml: with its interval, its simultaneous interval and its adjusted p-value."""
    label = f"{name(gap.measure)} by {name(gap.of[0])}, {name(gap.after.group)} minus {name(gap.after.reference)}"
    for when, e in gap.both:
        yield f"{label}, {when}", value_json(e, level)
        if not np.isnan(e.value):
            yield f"{label}, simultaneous interval, {when}", value_json(Estimate(e.value, e.simultaneous_low, e.simultaneous_high), level)
            p = json.dumps({"kind": "single", "value": float(e.p_adjusted)})
            yield f"{label}, adjusted p-value of {comparisons} comparisons (Holm), {when}", p


def metadata(case: Comparison, facts: Any, performance: list[str]) -> dict[str, object]:
    """The front matter of card.md for the hub. A measure with insufficient data has no entry."""
    measure, test, metrics = case.goal.measure, case.found.after, []
    task = pipeline_tag(case.result.candidate.model) if facts.model.task == NOT_PROVIDED else facts.model.task
    for key in (*performance, measure):
        estimate = case.found.gap_after if key == measure else test[key]
        if np.isnan(estimate.value):
            continue
        label = measure_words(key) if key == measure else performance_words(key)
        between = {"group": _metadata_name(estimate.group), "reference": _metadata_name(estimate.reference)} if key == measure else {}
        numbers = {"low": float(estimate.low), "high": float(estimate.high), "level": test.settings.level}
        metrics.append(
            {"type": HUB_METRICS.get(key, key), "name": label.replace("\\", ""), "value": float(estimate.value), "args": numbers | between}
        )
    dataset = {"type": "local", "name": _metadata_name(test.name), "split": "test"}
    title = _metadata_name(case.title) if facts.model.name == NOT_PROVIDED else facts.model.name
    return {
        "license": "unknown" if facts.model.license == NOT_PROVIDED else facts.model.license,
        "library_name": "pytorch" if is_network(case.result.candidate.model) else "equipoise",
        "pipeline_tag": task,
        "tags": list(dict.fromkeys(["equipoise", "fairness", "bias-mitigation", *facts.model.keywords])),
        "metrics": [HUB_METRICS.get(key, key) for key in (*performance, measure)],
        "model-index": [{"name": title, "results": [{"task": {"type": task}, "dataset": dataset, "metrics": metrics}] if metrics else []}],
    }


def pipeline_tag(network: object) -> str:
    """The hub's name of the task: images if the network has two-dimensional convolutions, a table otherwise."""
    if not is_network(network):
        return "tabular-classification"
    from torch import nn

    images = any(isinstance(module, nn.Conv2d) for module in network.modules())
    return "image-classification" if images else "tabular-classification"


def _metadata_name(text: str) -> str:
    return shortened(clean(text), LONGEST_METADATA)


def _interval(estimate: Estimate, sign: str = "") -> str:
    return interval(estimate.value, estimate.low, estimate.high, sign)


def value_json(e: Estimate, level: float) -> str:
    """A value with its interval as JSON, as in published cards; for NaN, the note or 'insufficient data'."""
    if np.isnan(e.value):
        return json.dumps({"kind": "single", "value": line(e.note) if e.note else INSUFFICIENT}, ensure_ascii=False)
    numbers = {"estimate": float(e.value), "lower": float(e.low), "upper": float(e.high), "level": _percent(level)}
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
