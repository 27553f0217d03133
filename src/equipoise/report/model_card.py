"""The model card of a bundle: card.md in the layout of the Hugging Face hub, and card.xml by the schema of CHAI (draft v0.2).

card.fhir.json holds both: a FHIR R4 DocumentReference of the profile AI-ModelCard (HL7, AI Transparency on FHIR, ballot 1.0.0).

They are made from the findings on the test set, before and after the repair; card.md has the tables of the report. Facts that Equipoise
cannot know come from the user's card.toml, in which every key is optional. Paragraphs are Markdown in which every name is escaped.

    [model]
    name = "Pneumonia triage, ward 3"
    developer = "Radiology AI group"
    contact = "ai@hospital.example"
    license = "mit"

    [use]
    intended = "Sorts the reading list; a radiologist reads every image."
"""

import json
import tomllib
from base64 import b64encode
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Self
from uuid import NAMESPACE_URL, uuid5

import numpy as np
import yaml
from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, ValidationError, create_model, model_validator

from equipoise.comparison import Comparison
from equipoise.data import Scores
from equipoise.errors import BadInput
from equipoise.measures import AuditSpec, Estimate, group_estimate, shown_scores
from equipoise.methods import METHODS
from equipoise.models import is_network
from equipoise.report.audits import performance_rows
from equipoise.report.choices import options_table
from equipoise.report.document import Cell, Text, table
from equipoise.report.pages import in_markdown, render
from equipoise.report.repairs import affected_tables, change_parts, cohort_parts, gap_parts, group_parts, outcome_parts
from equipoise.report.text import INSUFFICIENT, Span, interval, line, name, percent, prose, sentence, short
from equipoise.report.wording.audits import BY_ROW, DETECTABLE, LIMITS
from equipoise.report.wording.names import gap_words, lacking_words, performance_words, rate_words
from equipoise.report.wording.notes import note_words, why_words
from equipoise.report.wording.repairs import goal_words, groups_called, is_original, method_words, repair_answer
from equipoise.specification import Specification, specification_problems

GLOSSARY = ("spd", "eod", "aod", "fpr_gap")  # the other measures mirror these
XML_RATES = ("tpr", "tnr")
HUB_METRICS = {"auroc": "roc_auc"}  # the hub's names where they differ
LONGEST_METADATA = 200  # characters of a name in the metadata
NOT_PROVIDED = "not provided"
FHIR = "http://hl7.org/fhir/uv/aitransparency"
FHIR_PROFILE, FHIR_CODES, FHIR_FORMER_CODES = (
    f"{FHIR}/{name}" for name in ("StructureDefinition/AI-ModelCard", "CodeSystem/AIinputsCS", "CodeSystem/AImodelCardCS")
)
FactText = Annotated[str, AfterValidator(lambda text: prose(text) or NOT_PROVIDED)]
Texts = Annotated[tuple[Annotated[str, AfterValidator(prose)], ...], Field(strict=False)]  # TOML has lists
Date = Annotated[FactText, BeforeValidator(lambda value: value.isoformat() if isinstance(value, date) else value)]
Number = Annotated[float, Field(allow_inf_nan=False)]
HELD_OUT = "Recorded data of held-out patients: a test set used neither for the repair nor for any choice."


# The user's facts


class FactSection(Specification):
    """A table of card.toml: unknown keys are errors, and values are not converted."""

    model_config = ConfigDict(strict=True)


class Result(FactSection):
    """One result of the user's own safety test."""

    label: FactText
    value: int | Number | FactText
    low: Number | None = None
    high: Number | None = None
    level: Number | None = None  # of the interval, such as 0.95
    unit: Annotated[str, AfterValidator(prose)] = ""

    @model_validator(mode="after")
    def _whole_interval(self) -> Self:
        if (self.low is None) != (self.high is None):
            raise ValueError("expected both low and high, or neither")
        if self.low is not None and isinstance(self.value, str):
            raise ValueError("expected a number as value, since an interval is given")
        return self


TEXT_FACTS = {  # by section of card.toml, the facts that are text; "not provided" unless they are given
    "model": "name developer contact summary license task type foundation stage version availability regulatory_approval",
    "use": "intended users how population out_of_scope",
    "risks": "limitations biases clinical_risk",
    "data": "source inputs development testing test_type mitigation",
    "trust": "maintenance security transparency funding third_parties stakeholders",
    "safety": "goal interpretation test_type testing validation",
    "resources": "evaluation clinical_trial publications reimbursement consent environment",
}
OTHER_FACTS: dict[str, dict[str, Any]] = {  # those that are not
    "model": {"release_date": (Date, NOT_PROVIDED), "keywords": (Texts, ()), "ehr": (Texts, ())},  # ehr: compatible record systems
    "safety": {"results": (Annotated[tuple[Result, ...], Field(strict=False)], ())},
    "resources": {"citation": (str, NOT_PROVIDED)},  # BibTeX, unchanged
}
MODEL: Any = create_model  # models whose fields are only known here
FACT_SECTIONS: dict[str, Any] = {
    name: MODEL(name, __base__=FactSection, **dict.fromkeys(keys.split(), (FactText, NOT_PROVIDED)), **OTHER_FACTS.get(name, {}))
    for name, keys in TEXT_FACTS.items()
}
Facts: Any = MODEL("Facts", __base__=FactSection, **{name: (section, section()) for name, section in FACT_SECTIONS.items()})


def read_facts(path: Path | None) -> Any:
    """The facts in a card.toml, 'not provided' for every missing key; raises one `BadInput` that lists every problem of the file."""
    if path is None:
        return Facts()
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise BadInput(f"no such file: {path}. Name a card.toml, or omit it.") from None
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror or error}. Name a card.toml, or omit it.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} is not a TOML file: {error}. Correct that line.") from error
    try:
        return Facts.model_validate(content)
    except ValidationError as error:
        raise BadInput(*specification_problems(error, Facts), source=str(path)) from None


# The cards


def cards(repair: Comparison, toml: Path | None = None) -> dict[str, str]:
    """The texts of card.md, card.xml and card.fhir.json, by name of the file.

    - `repair`: what was measured on the test set, before and after.
    - `toml`: the file with the user's facts; without it they are "not provided".
    """
    facts, findings, before, after = read_facts(toml), repair.found, repair.found.before, repair.found.after
    measures = list(dict.fromkeys([repair.goal.measure, *GLOSSARY]))
    named = [m for m in dict.fromkeys([repair.goal.performance, "balanced_accuracy", "auroc"]) if m in before.estimates]
    level = after.settings.level
    shared = {"repair": repair, "facts": facts, "not_provided": NOT_PROVIDED, "words": paragraphs(repair, facts, measures, named)}
    performance = []
    for (measure, own, kind), (_, other, _) in zip(performance_rows(before), performance_rows(after), strict=True):
        performance.append((measure, Cell(value=own, kind=kind), Cell(value=other, kind=kind)))
    changes = []
    for shift in findings.shifts:
        change = Cell("no change") if is_original(repair) else Cell(value=shift.change, kind="points")
        changes.append(((Span(shift.group),), rate_words(shift.rate), change))
    results = [
        options_table(repair, groups_called(repair, None)),
        *gap_parts(repair, str),
        table("Performance over all patients", ["Measure", "Before", "After"], performance),
        *group_parts(repair, str),
        table(("Change by ", Span(findings.main), ", after minus before for the same patients"), ["Group", "Rate", "Change"], changes),
        *affected_tables(repair, str),
    ]
    markdown = {
        "metadata": yaml.safe_dump(metadata(repair, facts, named), sort_keys=False, allow_unicode=True, width=10_000),
        "provenance": repair.provenance,
        "references": {str(attribute): after.references.get(str(attribute)) for attribute in after.groups["attribute"].unique()},
        "results": in_markdown(results),
        "level": percent(level),
    }
    sides = (("before", before), ("after", after))
    usefulness = [(f"{performance_words(m)}, {when}", value_json(audit[m], level)) for m in named for when, audit in sides]
    fairness: list[tuple[str, str]] = []  # gaps in the measure of the goal: with intervals, simultaneous ones and adjusted p-values
    for place, row in after.gaps[after.gaps["measure"] == repair.goal.measure].iterrows():
        label = f"{name(repair.goal.measure)} by {name(row['attribute'])}, {name(row['group'])} minus {name(row['reference'])}"
        for when, gap in (("before", before.gaps.loc[place]), ("after", row)):
            e = Estimate.of_gap(dict(gap))
            fairness.append((f"{label}, {when}", value_json(e, level)))
            if not np.isnan(e.value):
                wide = Estimate(e.value, e.simultaneous_low, e.simultaneous_high)
                fairness.append((f"{label}, simultaneous interval, {when}", value_json(wide, level)))
                p = json.dumps({"kind": "single", "value": float(e.p_adjusted)})
                fairness.append((f"{label}, adjusted p-value of {after.comparisons} comparisons, {when}", p))
    for place, (group, row) in enumerate(after.groups.iterrows()):
        for rate in XML_RATES:
            label = f"{rate_words(rate)}, {name(row['attribute'])} {name(group)}"
            estimates = ((when, group_estimate(audit.groups.iloc[place], rate)) for when, audit in sides)
            fairness += [(f"{label}, {when}", value_json(estimate, level)) for when, estimate in estimates]
    least = "the best within the maximum gap" if repair.goal.min_performance is None else f"at least {repair.goal.min_performance:.3g}"
    aim = f"{performance_words(repair.goal.performance).capitalize()}: {least}, on the repair set."
    safety = []
    for result in facts.safety.results or (Result(label=NOT_PROVIDED, value=NOT_PROVIDED),):
        numbers: dict[str, object] = {"kind": "single", "value": result.value}
        if result.low is not None:
            numbers = {"kind": "estimate_ci", "estimate": result.value, "lower": result.low, "upper": result.high}
            numbers |= {} if result.level is None else {"level": _percent(result.level)}
        safety.append((result.label, json.dumps(numbers | ({"unit": result.unit} if result.unit else {}), ensure_ascii=False)))
    xml = {
        "metrics": [
            ("UsefulnessUsabilityEfficacy", aim, usefulness, shared["words"]["performance"]),
            ("FairnessEquity", f"{sentence(line(goal_words(repair.goal)))}.", fairness, shared["words"]["fairness"]),
        ],
        "safety": safety,
    }
    texts = {"card.md": render("card.md.j2", shared | markdown), "card.xml": render("card.xml.j2", shared | xml)}
    return texts | {"card.fhir.json": json.dumps(document_reference(repair, facts, texts), indent=1, ensure_ascii=False) + "\n"}


def document_reference(repair: Comparison, facts: Any, texts: dict[str, str]) -> dict[str, Any]:
    """The cards as a FHIR DocumentReference of the profile AI-ModelCard, each an attachment, with the code of its format as a category."""

    def concept(code: str, former: str, display: str) -> dict[str, Any]:
        codings = ((FHIR_CODES, code), (FHIR_FORMER_CODES, former))  # of the present build, and of the ballot of January 2026
        return {"coding": [{"system": system, "code": known, "display": display} for system, known in codings]}

    attachments = [
        {"attachment": {"contentType": kind, "language": "en", "title": file, "data": b64encode(texts[file].encode()).decode()}}
        for file, kind in (("card.md", "text/markdown"), ("card.xml", "application/xml"))
    ]
    author = {} if facts.model.developer == NOT_PROVIDED else {"author": [{"display": facts.model.developer}]}
    return {
        "resourceType": "DocumentReference",
        "meta": {"profile": [FHIR_PROFILE]},
        "language": "en",
        "identifier": [{"system": "urn:ietf:rfc:3986", "value": f"urn:uuid:{uuid5(NAMESPACE_URL, texts['card.md'])}"}],
        "status": "current",
        "type": concept("AIModelCard", "AIModelCard", "AI Model-Card"),
        "category": [
            concept("AIModelCardMarkdownFormat", "AImodelCardMarkdownFormat", "Markdown Format"),
            concept("AIModelCardCHAIformat", "AImodelCardCHAIformat", "CHAI Format"),
        ],
        **author,
        "description": short(repair_answer(repair, groups_called(repair, None)), 500),
        "content": attachments,
    }


def metadata(repair: Comparison, facts: Any, performance: list[str]) -> dict[str, object]:
    """The front matter of card.md for the hub. A measure with insufficient data has no entry."""
    measure, test, metrics, gap = repair.goal.measure, repair.found.after, [], repair.found.gap_after
    texts = {"title": repair.title, "data": test.name, "group": gap.group, "reference": gap.reference}
    called = {key: short(text, LONGEST_METADATA) for key, text in texts.items()}
    task = pipeline_tag(repair.result.candidate.model) if facts.model.task == NOT_PROVIDED else facts.model.task
    for key in (*performance, measure):
        estimate = gap if key == measure else test[key]
        if np.isnan(estimate.value):
            continue
        label = measure_words(key) if key == measure else performance_words(key)
        between = {side: called[side] for side in ("group", "reference")} if key == measure else {}
        numbers = {"low": float(estimate.low), "high": float(estimate.high), "level": test.settings.level}
        kind, value = HUB_METRICS.get(key, key), float(estimate.value)
        metrics.append({"type": kind, "name": label.replace("\\", ""), "value": value, "args": numbers | between})
    dataset = {"type": "local", "name": called["data"], "split": "test"}
    title = called["title"] if facts.model.name == NOT_PROVIDED else facts.model.name
    return {
        "license": "unknown" if facts.model.license == NOT_PROVIDED else facts.model.license,
        "library_name": "pytorch" if is_network(repair.result.candidate.model) else "equipoise",
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


def value_json(e: Estimate, level: float) -> str:
    """A value with its interval as JSON, as in published cards; for NaN, the note or 'insufficient data'."""
    if np.isnan(e.value):
        return json.dumps({"kind": "single", "value": line(e.note) if e.note else INSUFFICIENT}, ensure_ascii=False)
    numbers = {"estimate": float(e.value), "lower": float(e.low), "upper": float(e.high), "level": _percent(level)}
    return json.dumps({"kind": "estimate_ci", **numbers})


def _percent(level: float) -> float:
    """A level in percent, an integer if possible: 95 for 0.95."""
    level_percent = round(100 * level, 6)
    return int(level_percent) if level_percent.is_integer() else level_percent


# Paragraphs


def paragraphs(repair: Comparison, facts: Any, measures: Sequence[str], named: Sequence[str]) -> dict[str, Any]:
    """The paragraphs of a card by name: the user's facts, completed by known ones, and the findings on the test set."""
    candidate, after, label = repair.result.candidate, repair.found.after, name(repair.label)
    text, method = line(after.rule.describe()), line(method_words(repair.result))
    rule = text if after.rule.randomised else f"positive if {text}"  # a randomised rule is positive with a probability
    need = "needs each patient's group" if after.rule.needs_group else "does not need the protected attribute"
    known = "A decision rule for the scores of a classifier, which is not part of this card's files."
    if not candidate.rule_only:
        parameters = sum(p.numel() for p in candidate.network.parameters())
        known = f"{name(type(candidate.network).__name__)} (PyTorch), {parameters:,} parameters."
    repair_set = "" if repair.result.valid is None else f": {_size(repair.result.valid, repair.found.settings)}"
    selected = "The step and the rule were selected on the repair set only."
    if len(repair.candidates) > 1:
        selected = f"The method, of {len(repair.candidates)}, its step and its rule were selected on the repair set only."
    shared, both = repair.shared_patients, "No patient is in both sets."
    if shared is None:
        both = "Without patient ids, rows of one patient may be in both sets."
    elif shared:
        both = f"{shared:,} patients are in both sets, so the test is not only of new patients."
    unit, sampled = ("rows", f"the row: {BY_ROW}") if after.patients is None else ("patients", "the patient with all their rows")
    intervals = (
        f"{selected} On the test set every decision follows the rule fixed beforehand. Intervals are "
        f"{percent(after.settings.level)} score intervals (Wilson, Newcombe) for the effective number of {unit}; "
        f"the unit of sampling is {sampled}. A rate based on fewer than {after.settings.min_patients} {unit} is given as "
        f"{INSUFFICIENT}. {both}"
    )
    repaired = "The decision rule was fitted" if candidate.rule_only else "The network was repaired"
    cited = "" if facts.resources.citation == NOT_PROVIDED else facts.resources.citation.strip()
    paper = METHODS[candidate.ran].paper if candidate.ran in METHODS else ""
    names, tested = groups_called(repair, None), _size(repair.result.test, repair.found.settings)
    cohort = cohort_parts(repair, str, repair.original.test.patients is not None)
    found = in_markdown(part for part in outcome_parts(repair, names) if not isinstance(part, Text) or part.id == "verdict-text")
    judged, worse = f"**{line(repair_answer(repair))}**", in_markdown(part for part in change_parts(repair, names) if part.part != "table")
    summary = f"A classifier that detects {label}, repaired after training with {method}."
    sides = ((m, *(interval(e.value, e.low, e.high) for e in (repair.found.before[m], after[m]))) for m in named)
    values = [f"{performance_words(m)} {old} before and {new} after" for m, old, new in sides]
    biases = f"In addition to the audit: {facts.risks.biases}"
    return {
        "model_name": name(repair.title) if facts.model.name == NOT_PROVIDED else facts.model.name,
        "summary": summary if facts.model.summary == NOT_PROVIDED else facts.model.summary,
        "model_type": known if facts.model.type == NOT_PROVIDED else f"{facts.model.type} {known}",
        "method": method,
        "outputs": f"A score from 0 to 1 for {label}, and a decision: {rule}.",
        "how_to_use": f"Directions: {facts.use.how}\n\nDecision: {rule}. The rule {need} at prediction time.",
        "development": f"Training data: {facts.data.development}\n\n{repaired} on the repair set{repair_set}.",
        "kind_of_test": HELD_OUT if facts.data.test_type == NOT_PROVIDED else f"{facts.data.test_type}\n\n{HELD_OUT}",
        "bibliography": "\n\n".join(filter(None, [cited, paper])),
        "answer": found,
        "outcome": judged,
        "who_got_worse": worse,
        "fairness": "\n\n".join([found, judged, worse]),
        "biases": "\n\n".join([found, worse, biases]),
        "performance": f"On the test set: {'; '.join(values)}.",
        "limits": _limitations(repair),
        "mitigation": _mitigation(repair, facts, selected),
        "patients_tested": f"{name(after.name)}: {tested}.\n\n{in_markdown(cohort)}\n\nFurther description: {facts.data.testing}",
        "validation": intervals,
        "goal": f"Goal: {line(goal_words(repair.goal))}. By {measure_words(repair.goal.measure)}.",
        "glossary": [measure_words(measure) for measure in measures],
    }


def measure_words(measure: str) -> str:
    """A gap in words: its name, what it compares, and its direction."""
    return f"difference in {gap_words(measure)} ({name(measure)}, group minus reference)"


def _size(scores: Scores, settings: AuditSpec) -> str:
    """The number of rows, patients and positives; without the latter if that of a small group would follow."""
    patients = "" if scores.patients is None else f" of {len(set(scores.patients)):,} patients"
    positives = f", {int(scores.y.sum()):,} of them positive" if shown_scores(scores, settings.min_patients).kept.all() else ""
    return f"{len(scores):,} rows{patients}{positives}"


def _limitations(repair: Comparison) -> list[str]:
    """The limitations of the numbers on the card."""
    gap, after = repair.found.gap_after, repair.found.after
    lines = [line(text) for text in (*repair.provenance.limits, *map(note_words, repair.result.candidate.notes))]
    if not np.isnan(gap.detectable):
        lines.append(
            f"Minimum detectable {name(repair.goal.measure)}: {gap.detectable:.3f}, the smallest gap {DETECTABLE}. "
            "A gap that is not clear is not shown to be absent."
        )
    unit = "rows" if after.patients is None else "patients"
    lines += [f"{name(group)}: {line(lacking_words(why, after.settings, unit))}." for group, why in after.groups["lacking"].items() if why]
    if repair.result.candidate.rule.needs_group:
        lines.append("The decision depends on each patient's group. Whether that is lawful and acceptable is for the user to decide.")
    return [*lines, *LIMITS]


def _mitigation(repair: Comparison, facts: Any, selected: str) -> str:
    """The repair and its selection, and the user's own mitigation."""
    result, candidate = repair.result, repair.result.candidate
    about = f" ({METHODS[candidate.ran].title})" if candidate.ran in METHODS else ""
    settings = ", ".join(f"{name(k)} = {name(v)}" for k, v in candidate.settings.items())
    repair_set = "" if result.valid is None else f" ({_size(result.valid, repair.found.settings)})"
    sentences = [
        f"After training, with the method {line(method_words(result))}{line(about)}, on the repair set{repair_set}.",
        f"Goal: {line(goal_words(repair.goal))}.",
        f"{selected} Chosen step: {line(why_words(candidate.why))}.",
        f"Settings: {settings}; seed {candidate.seed}." if settings else f"Seed {candidate.seed}.",
        "**The decision rule needs each patient's group at prediction time.**"
        if candidate.rule.needs_group
        else "The decision rule does not need the protected attribute at prediction time.",
    ]
    if others := [name(tried.name) for k, tried in enumerate(repair.candidates) if k != repair.chosen]:
        sentences.append(f"Also tried: {', '.join(others)}.")
    return f"{' '.join(sentences)}\n\nIn addition to Equipoise: {facts.data.mitigation}"
