"""The model card as XML of the CHAI Applied Model Card schema (draft v0.2). Its text fields are Markdown, its bibliography is BibTeX."""

import json
import xml.etree.ElementTree as ET
from collections.abc import Iterable
from typing import Any

from equipoise.measures import Estimate
from equipoise.report import card_fields as fields
from equipoise.report import card_words as words
from equipoise.report.card_facts import NOT_PROVIDED, Facts, Result
from equipoise.report.card_findings import CardFindings
from equipoise.report.card_text import clean, line, name

RATES = {"tpr": "sensitivity", "tnr": "specificity"}
NAMESPACE = "https://mc.chai.org/v0.2/schema.xsd"
Tree = dict[str, Any]  # element: text, a tree, or a list of (element, text or tree)


def card_xml(found: CardFindings, facts: Facts) -> str:
    """The whole card as a document. Elements stand in the order of the schema."""
    # The namespace as a plain attribute keeps ElementTree's register of prefixes, which is shared by the whole process, as it is.
    root = ET.Element("AppliedModelCard", xmlns=NAMESPACE)
    _fill(root, _card(found, facts).items())
    ET.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ET.tostring(root, encoding="unicode")}\n'


def _fill(parent: ET.Element, children: Iterable[tuple[str, Any]]) -> None:
    for tag, content in children:
        element = ET.SubElement(parent, tag)
        if isinstance(content, str):
            element.text = clean(content)
        else:
            _fill(element, content.items() if isinstance(content, dict) else content)


def _card(found: CardFindings, facts: Facts) -> Tree:
    model = facts.model
    return {
        "BasicInfo": {
            "ModelName": fields.model_name(found, facts),
            "ModelDeveloper": model.developer,
            "DeveloperContact": model.contact,
        },
        "ReleaseInfo": {
            "ReleaseStage": model.stage,
            "ReleaseDate": model.release_date,
            "ReleaseVersion": model.version,
            "GlobalAvailability": model.availability,
            "EHRCompatibility": [("EHR", system) for system in model.ehr or (NOT_PROVIDED,)],
            "RegulatoryApproval": model.regulatory_approval,
        },
        "ModelSummary": {
            "Summary": fields.joined(fields.summary(found, facts), words.verdict(found)),
            "Keywords": [("Keyword", word) for word in model.keywords],
        },
        "UsesAndDirections": {
            "IntendedUseAndWorkflow": facts.use.intended,
            "PrimaryIntendedUsers": facts.use.users,
            "HowToUse": fields.how_to_use(found, facts),
            "TargetedPatientPopulation": facts.use.population,
            "CautionedOutOfScopeSettings": facts.use.out_of_scope,
        },
        "Warnings": _warnings(found, facts),
        "TrustIngredients": _trust(found, facts),
        "KeyMetrics": {
            "UsefulnessUsabilityEfficacy": _performance(found, facts),
            "FairnessEquity": _fairness(found, facts),
            "SafetyReliability": _safety(facts),
        },
        "Resources": {
            "EvaluationReferences": facts.resources.evaluation,
            "ClinicalTrial": facts.resources.clinical_trial,
            "PeerReviewedPublications": facts.resources.publications,
            "ReimbursementStatus": facts.resources.reimbursement,
            "PatientConsentOrDisclosure": facts.resources.consent,
        },
        "Bibliography": fields.bibliography(found, facts),
    }


def _warnings(found: CardFindings, facts: Facts) -> Tree:
    biases = (words.verdict(found), words.who_got_worse(found), f"Besides the audit: {facts.risks.biases}")
    limits = "\n".join(f"- {text}" for text in words.limits(found))
    return {
        "KnownRisksAndLimitations": f"As the developer says: {facts.risks.limitations}\n\n{limits}",
        "KnownBiasesOrEthicalConsiderations": fields.joined(*biases),
        "ClinicalRiskLevel": facts.risks.clinical_risk,
    }


def _trust(found: CardFindings, facts: Facts) -> Tree:
    trust = facts.trust
    return {
        "AISystemFacts": {
            "OutcomesAndOutputs": fields.outputs(found),
            "ModelType": fields.model_type(found, facts),
            "FoundationModels": facts.model.foundation,
            "InputDataSource": facts.data.source,
            "OutputAndInputDataTypes": f"Input: {facts.data.inputs}\n\nOutput: a number from 0 to 1 and a decision, 0 or 1.",
            "DevelopmentDataCharacterization": fields.development(found, facts),
            "BiasMitigationApproaches": fields.mitigation(found, facts),
            "OngoingMaintenance": trust.maintenance,
            "Security": trust.security,
            "Transparency": trust.transparency,
        },
        "TransparencyInformation": {
            "FundingSource": trust.funding,
            "ThirdPartyInformation": trust.third_parties,
            "StakeholdersConsulted": trust.stakeholders,
        },
    }


def _performance(found: CardFindings, facts: Facts) -> Tree:
    asked = found.goal
    limit = f"at least {asked.min_performance:.3g}" if asked.min_performance is not None else "the best within the maximum gap"
    results = [
        (f"{words.performance_words(m)}, {when}", estimate_json(audit[m], audit.settings.level))
        for m in words.performance_measures(found)
        for when, audit in (("before", found.before), ("after", found.after))
    ]
    goal = f"{words.performance_words(asked.performance).capitalize()}: {limit}, set for the validation part."
    return _metric(found, facts, goal, results, words.performance_interpretation(found))


def _fairness(found: CardFindings, facts: Facts) -> Tree:
    parts = (("before", found.before), ("after", found.after))
    level = found.after.settings.level
    results = []
    for place, row in found.after.gaps[found.after.gaps["measure"] == found.goal.measure].iterrows():
        label = f"{name(row['measure'])} by {name(row['attribute'])}, {name(row['group'])} minus {name(row['reference'])}"
        for when, audit in parts:
            value = audit.gaps.loc[place]
            results.append((f"{label}, {when}", value_json(value["value"], value["low"], value["high"], level, str(value["note"]))))
    for place, (group, row) in enumerate(found.after.groups.iterrows()):
        for rate, word in RATES.items():
            for when, audit in parts:
                value = audit.groups.iloc[place]
                numbers = (value[rate], value[f"{rate}_low"], value[f"{rate}_high"])
                results.append((f"{word}, {name(row['attribute'])} {name(group)}, {when}", value_json(*numbers, level)))
    interpretation = fields.joined(words.verdict(found), words.goal_met(found), words.who_got_worse(found))
    return _metric(found, facts, words.goal(found), results, interpretation)


def _metric(found: CardFindings, facts: Facts, goal: str, results: list[tuple[str, str]], interpretation: str) -> Tree:
    return {
        "MetricGoal": goal,
        "Results": [("MetricResult", {"Label": label, "ValueJson": value}) for label, value in results],
        "Interpretation": interpretation,
        "TestType": fields.kind_of_test(facts),
        "TestingDataDescription": fields.patients_tested(found, facts),
        "ValidationProcessAndJustification": words.validation(found),
    }


def _safety(facts: Facts) -> Tree:
    safety = facts.safety
    results = safety.results or (Result(NOT_PROVIDED, NOT_PROVIDED),)
    return {
        "MetricGoal": safety.goal,
        "Results": [("MetricResult", {"Label": r.label, "ValueJson": _own_json(r)}) for r in results],
        "Interpretation": safety.interpretation,
        "TestType": safety.test_type,
        "TestingDataDescription": safety.testing,
        "ValidationProcessAndJustification": safety.validation,
    }


def estimate_json(estimate: Estimate, level: float) -> str:
    """An estimate in the form that published cards use."""
    return value_json(estimate.value, estimate.low, estimate.high, level, estimate.note)


def value_json(value: float, low: float, high: float, level: float, note: str = "") -> str:
    """A value with its interval, or the words 'insufficient data'."""
    if value != value:
        return json.dumps({"kind": "single", "value": line(note) if note else "insufficient data"}, ensure_ascii=False)
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
