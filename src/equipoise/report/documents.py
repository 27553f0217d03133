"""The documents of a bundle: report.html, the model cards and README.txt, and the overview of several labels.

The model card is card.md in the layout of the Hugging Face hub and card.xml by the schema of CHAI (draft v0.2). Its numbers come from the
findings on the test set before and after; what Equipoise cannot know comes from the user's card.toml.
"""

import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from torch import nn

from equipoise.measures import Estimate, Threshold, group_estimate
from equipoise.models import (
    HEADS,
    MASKED_LOADING,
    Exported,
    Recalibrated,
    heads_of,
    masks_in,
    plain_weights,
    program_in,
    state_like,
    state_prefix,
)
from equipoise.repair import WEIGHT_FILES, Comparison, Options, Saved, Serving
from equipoise.report import card_words as words
from equipoise.report.card_facts import NOT_PROVIDED, Facts, Result, read_facts
from equipoise.report.measure_words import PERFORMANCE, rate_title, rate_words
from equipoise.report.measure_words import performance_words as performance_name
from equipoise.report.page import labels_page, report_page
from equipoise.report.text import INSUFFICIENT, clean, count, fenced, interval, line, name, p_words, percent, sentence
from equipoise.report.wording import goal_words, method_words, preprocessing_words, repair_answer, repair_set_words

CARDS = "card.md and card.xml"


def pages(case: Comparison, options: Options) -> dict[str, Callable[[], dict[str, str]]]:
    """What is written about a comparison, by name: a function that makes the texts of its files."""
    return {
        CARDS: lambda: cards(case, options.card),
        "report.html": lambda: {"report.html": report_page(case, thumbnails=options.thumbnails, names=options.group_names)},
    }


def readme(
    case: Comparison,
    folder: Path,
    place: Path,
    serving: Serving,
    options: Options,
    onnx: Exported | None,
    failures: Mapping[str, str],
) -> str:
    """The README.txt of a bundle: how its weights are loaded, if it has any, and its decisions made, with lines that can be run."""
    environment = Environment(
        loader=PackageLoader("equipoise.report"), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, autoescape=False
    )  # plain text
    rule, came = case.result.candidate.rule, serving.came
    about = {
        "title": case.title,
        "version": case.provenance.versions.get("equipoise", ""),
        "when": case.provenance.when,
        "verdict": f"{repair_answer(case)} {repair_set_words(case)}",
        "rule": rule.describe(),
        "needs_group": rule.needs_group,
        "randomised": rule.randomised,
        "folder": folder,
        "failures": failures,
    }
    if case.result.candidate.rule_only:
        columns = {"score": serving.inputs["score"], "logits": serving.inputs["logits"], "reads": list(getattr(rule, "columns", ()))}
        groups = [attribute.name for attribute in case.result.test.attributes] if rule.needs_group else []
        files = sorted(path.name for path in place.glob("predictor.*"))  # the classifier, where it is not scores alone
        own = {"predictor": case.result.candidate.model is not None, "predictor_file": files[0] if files else None}
        return environment.get_template("README_rule.txt.j2").render(**about, **columns, **own, groups=groups)
    model = case.result.candidate.network
    original = plain_weights(model, came)
    heads = heads_of(model, original)
    return environment.get_template("README.txt.j2").render(
        **about,
        program="repaired.pt2" if program_in(model) else None,
        file=next(name for name in WEIGHT_FILES[1:] if (place / name).exists()),
        heads=HEADS if heads else None,
        reading="" if heads is None or isinstance(heads, Recalibrated) else str(heads.reading),
        recalibrated=isinstance(heads, Recalibrated),
        output_name=serving.output_name,
        under=came.under if came is not None else None,
        prefix=state_prefix(original, model),
        masks=masks_in(state_like(original, model)),
        masked_loading=MASKED_LOADING.rstrip(),
        onnx=onnx,
        onnx_rule=options.onnx_rule and isinstance(rule, Threshold),
        output=serving.output,
        images=bool(serving.inputs.get("images")),
        own=serving.code is None and not (serving.inputs.get("images") or {}).get("transform"),
        prepared=preprocessing_words(how) if (how := serving.inputs.get("images")) else "",
        named=serving.model is not None,
    )


def overview(
    title: str, cases: Mapping[str, Comparison], saved: Mapping[str, Saved], places: Mapping[str, Path], options: Options = Options()
) -> dict[str, str]:
    """The report.html and README.txt above the folders of several labels."""
    first = next(iter(cases.values()))
    method, one = method_words(first.result), "class" if first.kind == "classes" else "label"
    alone = first.result.candidate.rule_only
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
        *(rules if alone else network),
        "",
        *(f"  {place.name}: {label}; equipoise apply {place} new.csv{'' if alone else ' --trust'}" for label, place in places.items()),
        "",
        f"report.html links to the report of each {one}; audit.json holds the audits of all.",
        "",
    ]
    return {"report.html": labels_page(title, cases, saved, places, options.group_names), "README.txt": "\n".join(lines)}


GAPS_SHOWN = ("spd", "eod", "aod", "fpr_gap")  # the others are these with the sign reversed
RATES_SHOWN = ("selection_rate", "tpr", "tnr", "ppv", "npv", "auroc", "brier", "calibration_in_the_large", "calibration_slope")
XML_RATES = ("tpr", "tnr")
HUB_METRICS = {"auroc": "roc_auc"}  # the hub's names where they differ
LONGEST_METADATA = 200  # characters of a name in the metadata


def cards(case: Comparison, toml: Path | None = None) -> dict[str, str]:
    """The texts of card.md and card.xml, by name of the file."""
    facts = read_facts(toml)  # first, because it is the user's and may hold mistakes
    context = {"case": case, "found": case.found, "facts": facts, "words": words, "goal_words": goal_words, "not_provided": NOT_PROVIDED}
    return {"card.md": _markdown(case, facts, context), "card.xml": _xml(case, facts, context)}


@cache
def _environment(xml: bool) -> Environment:
    """The templates. XML is cleaned and escaped; in Markdown every name goes through the filter `name`, `line` or `fenced`."""
    environment = Environment(
        loader=PackageLoader("equipoise.report"),
        autoescape=xml,
        finalize=_cleaned if xml else None,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"name": name, "line": line, "fenced": fenced, "count": count}
    return environment


def _cleaned(value: object) -> object:
    return value if isinstance(value, Markup) else clean(value)  # a macro's output is clean and escaped already


# card.md


def _markdown(case: Comparison, facts: Facts, context: dict[str, Any]) -> str:
    found = case.found
    return (
        _environment(xml=False)
        .get_template("card.md.j2")
        .render(
            **context,
            metadata=yaml.safe_dump(metadata(case, facts), sort_keys=False, allow_unicode=True, width=10_000),
            candidate=case.result.candidate,
            provenance=case.provenance,
            level=percent(found.after.settings.level),
            attributes=[str(a) for a in found.after.groups["attribute"].unique()],
            gaps=_gap_rows(case),
            rates=_rate_rows(case),
            measures=_measures_shown(case),
            performance=[(performance_name(m), *(_spread(audit[m]) for audit in (found.before, found.after))) for m in PERFORMANCE],
            shifts=[(s, rate_words(s.rate), _spread(s.change, "+")) for s in found.shifts],
            affected=found.affected[-1],
        )
    )


def metadata(case: Comparison, facts: Facts) -> dict[str, object]:
    """The front matter of card.md, as the hub reads it. A value without enough data has no entry."""
    measure, test = case.goal.measure, case.found.after
    task = pipeline_tag(case.result.candidate.model) if facts.model.task == NOT_PROVIDED else facts.model.task
    shown = [*words.performance_measures(case), measure]
    metrics = []
    for key in shown:
        estimate = case.found.gap_after if key == measure else test[key]
        if np.isnan(estimate.value):
            continue
        label = words.measure_words(key) if key == measure else performance_name(key)
        between = {"group": _plain(estimate.group), "reference": _plain(estimate.reference)} if key == measure else {}
        numbers = {"low": float(estimate.low), "high": float(estimate.high), "level": test.settings.level}
        metrics.append(
            {"type": HUB_METRICS.get(key, key), "name": label.replace("\\", ""), "value": float(estimate.value), "args": numbers | between}
        )
    result = {
        "task": {"type": task},
        "dataset": {"type": "local", "name": _plain(test.name), "split": "test"},
        "metrics": metrics,
    }
    title = _plain(case.title) if facts.model.name == NOT_PROVIDED else facts.model.name
    return {
        "license": "unknown" if facts.model.license == NOT_PROVIDED else facts.model.license,
        "library_name": "pytorch" if isinstance(case.result.candidate.model, nn.Module) else "equipoise",
        "pipeline_tag": task,
        "tags": list(dict.fromkeys(["equipoise", "fairness", "bias-mitigation", *facts.model.keywords])),
        "metrics": [HUB_METRICS.get(key, key) for key in shown],
        "model-index": [{"name": title, "results": [result] if metrics else []}],
    }


def pipeline_tag(network: object) -> str:
    """The hub's word for the task: images if the network has convolutions over two axes, a table otherwise, as scores are."""
    images = isinstance(network, nn.Module) and any(isinstance(module, nn.Conv2d) for module in network.modules())
    return "image-classification" if images else "tabular-classification"


def _plain(text: str) -> str:
    """A name as plain text, for metadata."""
    tidy = clean(text)
    return tidy if len(tidy) <= LONGEST_METADATA else f"{tidy[: LONGEST_METADATA - 13]}…{tidy[-12:]}"


def _measures_shown(case: Comparison) -> list[str]:
    """The goal's measure and those of GAPS_SHOWN."""
    return list(dict.fromkeys([case.goal.measure, *GAPS_SHOWN]))


def _gap_rows(case: Comparison) -> list[tuple[str, ...]]:
    """Measure, attribute, groups, before, after, its simultaneous interval and adjusted p-value, and the minimum detectable gap.

    The goal's measure is first.
    """
    before, after = case.found.before, case.found.after
    rows = []
    for measure in _measures_shown(case):
        for place, row in after.gaps[after.gaps["measure"] == measure].iterrows():
            ends = [_row_interval(audit.gaps.loc[place], "value", "low", "high", "+") for audit in (before, after)]
            detectable = "" if np.isnan(row["value"]) else "none" if np.isnan(row["detectable"]) else f"{row['detectable']:.3f}"
            between = f"{name(row['group'])} minus {name(row['reference'])}"
            together = "" if np.isnan(row["value"]) else f"{row['simultaneous_low']:+.3f} to {row['simultaneous_high']:+.3f}"
            adjusted = f"{p_words(row['p_adjusted'])}{' (clear)' if row['clear'] else ''}"
            rows.append((name(measure), name(row["attribute"]), between, *ends, together, adjusted, detectable))
    return rows


def _rate_rows(case: Comparison) -> list[tuple[str, ...]]:
    """Attribute, group, rate, before and after."""
    before, after = case.found.before, case.found.after
    rows = []
    for place, (group, row) in enumerate(after.groups.iterrows()):
        who = f"{name(group)}{' (reference)' if row['reference'] else ''}"
        for rate in RATES_SHOWN:
            ends = [_spread(group_estimate(audit.groups.iloc[place], rate)) for audit in (before, after)]
            rows.append((name(row["attribute"]), who, rate_title(rate, after.settings), *ends))
    return rows


def _row_interval(row: "pd.Series[float]", value: str, low: str, high: str, sign: str = "") -> str:
    return interval(float(row[value]), float(row[low]), float(row[high]), sign)


def _spread(estimate: Estimate, sign: str = "") -> str:
    return interval(estimate.value, estimate.low, estimate.high, sign)


# card.xml


def _xml(case: Comparison, facts: Facts, context: dict[str, Any]) -> str:
    return (
        _environment(xml=True)
        .get_template("card.xml.j2")
        .render(**context, metrics=[_performance(case), _fairness(case)], safety=_safety(facts), performance_name=performance_name)
    )


def _performance(case: Comparison) -> dict[str, Any]:
    asked, found = case.goal, case.found
    least = "the best within the maximum gap" if asked.min_performance is None else f"at least {asked.min_performance:.3g}"
    results = [
        (f"{performance_name(m)}, {when}", value_json(audit[m].value, audit[m].low, audit[m].high, audit.settings.level, audit[m].note))
        for m in words.performance_measures(case)
        for when, audit in (("before", found.before), ("after", found.after))
    ]
    goal = f"{performance_name(asked.performance).capitalize()}: {least}, on the repair set."
    return {
        "element": "UsefulnessUsabilityEfficacy",
        "goal": goal,
        "results": results,
        "interpretation": words.performance_interpretation(case),
    }


def _fairness(case: Comparison) -> dict[str, Any]:
    found, level = case.found, case.found.after.settings.level
    sides = (("before", found.before), ("after", found.after))
    results = []
    for place, row in found.after.gaps[found.after.gaps["measure"] == case.goal.measure].iterrows():
        label = f"{name(row['measure'])} by {name(row['attribute'])}, {name(row['group'])} minus {name(row['reference'])}"
        for when, audit in sides:
            value = audit.gaps.loc[place]
            results.append((f"{label}, {when}", value_json(value["value"], value["low"], value["high"], level, str(value["note"]))))
            if not np.isnan(value["value"]):
                ends = value["simultaneous_low"], value["simultaneous_high"]
                results.append((f"{label}, simultaneous interval, {when}", value_json(value["value"], *ends, level)))
                p = json.dumps({"kind": "single", "value": float(value["p_adjusted"])})
                results.append((f"{label}, adjusted p-value of {audit.comparisons} comparisons (Holm), {when}", p))
    for place, (group, row) in enumerate(found.after.groups.iterrows()):
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
    return [(result.label, _own_json(result)) for result in results]


def value_json(value: float, low: float, high: float, level: float, note: str = "") -> str:
    """A value with its interval in the form that published cards use, or the words 'insufficient data'."""
    if value != value:
        return json.dumps({"kind": "single", "value": line(note) if note else INSUFFICIENT}, ensure_ascii=False)
    numbers = {"estimate": float(value), "lower": float(low), "upper": float(high), "level": _percent(level)}
    return json.dumps({"kind": "estimate_ci", **numbers})


def _own_json(result: Result) -> str:
    unit = {"unit": result.unit} if result.unit else {}
    if result.low is None:
        return json.dumps({"kind": "single", "value": result.value, **unit}, ensure_ascii=False)
    level = {} if result.level is None else {"level": _percent(result.level)}
    numbers = {"estimate": result.value, "lower": result.low, "upper": result.high}
    return json.dumps({"kind": "estimate_ci", **numbers, **level, **unit}, ensure_ascii=False)


def _percent(level: float) -> float:
    """95 for 0.95, a whole number where it is one."""
    percent = round(100 * level, 6)
    return int(percent) if percent.is_integer() else percent
