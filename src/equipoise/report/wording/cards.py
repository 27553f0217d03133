"""The paragraphs of a model card, as Markdown in which every name is escaped."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from equipoise.comparison import Comparison
from equipoise.data import Scores
from equipoise.measures import AuditSpec, Estimate, Shift, shown_scores
from equipoise.methods import METHODS
from equipoise.report.card_facts import NOT_PROVIDED
from equipoise.report.text import INSUFFICIENT, interval, line, name, percent
from equipoise.report.wording.audits import BY_ROW, DETECTABLE, left_out_words
from equipoise.report.wording.names import gap_words, lacking_words, performance_words, rate_words
from equipoise.report.wording.notes import note_words, why_words
from equipoise.report.wording.repairs import goal_words, is_original, met_words, method_words, repair_answer

GAPS_SHOWN = ("spd", "eod", "aod", "fpr_gap")  # the other measures mirror these
SAME = 1e-9  # rates that differ by less are equal
LISTED = 12  # worse rates that are named in a paragraph; the table has all
HELD_OUT = "Recorded data of held-out patients: a test set used neither for the repair nor for any choice."


def joined(*paragraphs: str) -> str:
    """The paragraphs that are not empty and not 'not provided'; 'not provided' if there are none."""
    return "\n\n".join(p for p in paragraphs if p and p != NOT_PROVIDED) or NOT_PROVIDED


# Measures, rows and estimates


def measure_words(measure: str) -> str:
    """A gap in words: its name, what it compares, and its direction."""
    return f"difference in {gap_words(measure)} ({name(measure)}, group minus reference)"


def size(scores: Scores, settings: AuditSpec) -> str:
    """The number of rows, patients and positives; without the latter if that of a small group would follow."""
    patients = "" if scores.patients is None else f" of {len(set(scores.patients)):,} patients"
    positives = f", {int(scores.y.sum()):,} of them positive" if shown_scores(scores, settings.min_patients).kept.all() else ""
    return f"{len(scores):,} rows{patients}{positives}"


def estimate_words(estimate: Estimate, sign: str = "") -> str:
    """An estimate with its interval, or the reason why there is none."""
    if np.isnan(estimate.value):
        return line(estimate.note or INSUFFICIENT)
    return interval(estimate.value, estimate.low, estimate.high, sign)


def gap_estimate(estimate: Estimate) -> str:
    """A gap with its interval and the two groups."""
    between = "" if np.isnan(estimate.value) else f" ({name(estimate.group)} minus {name(estimate.reference)})"
    return f"{estimate_words(estimate, '+')}{between}"


# Findings on the test set


def answer(case: Comparison) -> str:
    """The gap and the performance on the test set, before and after, in one paragraph."""
    findings, level = case.found, percent(case.found.after.settings.level)
    sentences = [
        f"On the test set ({size(case.result.test, case.found.settings)}), which was used neither for the repair nor for any choice, the "
        f"{measure_words(case.goal.measure)} by {name(findings.main)} is {gap_estimate(findings.gap_before)} before and "
        f"{gap_estimate(findings.gap_after)} after, with {level} intervals.",
        f"The {performance_words(case.goal.performance)} is {estimate_words(findings.performance_before)} before and "
        f"{estimate_words(findings.performance_after)} after.",
    ]
    change = findings.gap_change
    if not np.isnan(change.value):
        moved = {"smaller": "got smaller", "unclear": "got smaller, by an amount that chance may explain", "unchanged": "did not change"}
        between = f"{name(findings.gap_before.group)} minus {name(findings.gap_before.reference)}"
        size_of_change = interval(change.value, change.low, change.high, "+")
        how = f"{between} changed by {size_of_change}"
        how = "the result is the original model with its original rule" if is_original(case) else how
        sentences.insert(1, f"It {moved.get(findings.seen, 'did NOT get smaller')}: {how}.")
    if len(case.result.test.attribute.others) > 1:
        sentences.append("With more than two groups, the gap with the largest absolute value is shown.")
    return " ".join(sentences)


def outcome(case: Comparison) -> str:
    """The outcome on the test set, and whether it keeps each limit of the goal."""
    goal, findings = case.goal, case.found
    sentences = [f"**{line(repair_answer(case))}**", *filter(None, [met_words(case.judgement)])]
    gap, performance = findings.gap_after, findings.performance_after
    least = case.judgement.performance_limit
    side = "at or above" if performance.value >= least - SAME else "BELOW"
    sure = performance.low >= least or performance.high < least
    sentences.append(_against_limit(f"the {performance_words(goal.performance)}", performance, f"{side} its limit of {least:.3g}", sure))
    if goal.max_gap is not None:
        largest, crosses = max(abs(gap.low), abs(gap.high)), gap.low <= 0 <= gap.high
        smallest = 0.0 if crosses else min(abs(gap.low), abs(gap.high))
        side = "within" if abs(gap.value) <= goal.max_gap else "ABOVE"
        sure = largest <= goal.max_gap or smallest > goal.max_gap
        sentences.append(_against_limit(f"the absolute {name(goal.measure)}", gap, f"{side} the maximum of {goal.max_gap:.3g}", sure))
    return " ".join(sentences)


def _against_limit(measure: str, estimate: Estimate, where: str, sure: bool) -> str:
    """One estimate against its limit; `sure` if the whole interval is on the same side of it."""
    if np.isnan(estimate.value):
        return f"On the test set {measure} is unknown: {line(estimate.note or INSUFFICIENT)}."
    return f"On the test set {measure} is {where}{'' if sure else '; the interval includes values on the other side'}."


def who_got_worse(case: Comparison) -> str:
    """The groups with a lower sensitivity or a higher false positive rate than before, and any levelling down."""
    findings, level = case.found, percent(case.found.after.settings.level)
    clear = [shift for shift in findings.worse if shift.clear]
    unclear = [shift for shift in findings.worse if not shift.clear]
    sentences = []
    if clear:
        sentences.append(f"Worse after the repair, with a {level} interval that excludes 0: {_listed(clear)}.")
    if unclear:
        sentences.append(f"Worse after the repair, by an amount whose {level} interval includes 0: {_listed(unclear)}.")
    if not findings.worse:
        sentences.append("On the test set no group's sensitivity fell and no group's false positive rate rose.")
    if findings.levelled:
        parts = [
            f"{abs(part.towards):.3f} of it from {name(part.group)}, whose {rate_words(part.rate)} got worse by {abs(part.change):.3f}"
            for part in findings.levelled
        ]
        sentences.append(f"**Levelling down:** the gap got smaller in part because a group got worse: {'; '.join(parts)}.")
    rows = findings.after.groups[findings.after.groups["attribute"] == findings.main]
    short = [name(group) for group, note in rows["note"].items() if note]
    if short:
        sentences.append(f"For {', '.join(short)} some or all rates are {INSUFFICIENT}, so whether they got worse is unknown.")
    return " ".join(sentences)


def _listed(shifts: Sequence[Shift]) -> str:
    parts = [
        f"{rate_words(shift.rate)} of {name(shift.group)} {shift.before:.3f} to {shift.after:.3f}, "
        f"a change of {interval(shift.change.value, shift.change.low, shift.change.high, '+')}"
        for shift in shifts[:LISTED]
    ]
    more = len(shifts) - len(parts)
    return "; ".join(parts) + (f"; and {more} more" if more else "")


def limits(case: Comparison) -> list[str]:
    """The limitations of the numbers on the card."""
    gap, after = case.found.gap_after, case.found.after
    lines = [line(text) for text in (*case.provenance.limits, *map(note_words, case.result.candidate.notes))]
    if not np.isnan(gap.detectable):
        lines.append(
            f"Minimum detectable {name(case.goal.measure)}: {gap.detectable:.3f}, the smallest gap {DETECTABLE}. "
            "A gap that is not clear is not shown to be absent."
        )
    lines += [f"{name(a)}: no reference group was given, so the largest, {name(after.references[a])}, is used." for a in after.assumed]
    unit = "rows" if after.patients is None else "patients"
    lines += [f"{name(group)}: {line(lacking_words(why, after.settings, unit))}." for group, why in after.groups["lacking"].items() if why]
    if case.result.candidate.rule.needs_group:
        lines.append("The decision depends on each patient's group. Whether that is lawful and acceptable is for the user to decide.")
    lines += [
        "Intervals cover the sampling of patients, not wrong labels, other hospitals, or change over time.",
        f"{after.comparisons} differences are compared. Adjusted p-values (Holm) and simultaneous intervals hold for all of them together; "
        "other intervals hold one at a time.",
        "An equal rate by these measures means neither that care is equal, nor that other groups or measures are free of gaps.",
    ]
    return lines


# The repair and its evaluation


def mitigation(case: Comparison, facts: Any) -> str:
    """The repair and its selection, and the user's own mitigation."""
    result, candidate = case.result, case.result.candidate
    about = f" ({METHODS[candidate.ran].title})" if candidate.ran in METHODS else ""
    settings = ", ".join(f"{name(k)} = {name(v)}" for k, v in candidate.settings.items())
    repair_set = "" if result.valid is None else f" ({size(result.valid, case.found.settings)})"
    sentences = [
        f"After training, with the method {line(method_words(result))}{line(about)}, on the repair set{repair_set}.",
        f"Goal: {line(goal_words(case.goal))}.",
        f"{_selection(case)} Chosen step: {line(why_words(candidate.why))}.",
        f"Settings: {settings}; seed {candidate.seed}." if settings else f"Seed {candidate.seed}.",
        "**The decision rule needs each patient's group at prediction time.**"
        if candidate.rule.needs_group
        else "The decision rule does not need the protected attribute at prediction time.",
    ]
    others = [name(tried.name) for k, tried in enumerate(case.candidates) if k != case.chosen]
    if others:
        sentences.append(f"Also tried: {', '.join(others)}.")
    return f"{' '.join(sentences)}\n\nIn addition to Equipoise: {facts.data.mitigation}"


def _selection(case: Comparison) -> str:
    tried = len(case.candidates)
    selected = f"The method, of {tried}, its step and its rule" if tried > 1 else "The step and the rule"
    return f"{selected} were selected on the repair set only."


def _labels(row: "pd.Series[float]") -> str:
    """The positive and negative rows of a group."""
    withheld = pd.isna(row["positives"])
    return "labels withheld" if withheld else f"{row['positives']:,} positive, {row['negatives']:,} negative"


def patients_tested(case: Comparison, facts: Any) -> str:
    """The test patients: number, groups with positives and negatives, missing attributes, and the user's description."""
    after = case.found.after
    rows = []
    for attribute in after.groups["attribute"].unique():
        groups = after.groups[after.groups["attribute"] == attribute]
        counts = [f"{name(g)}, {r['n']:,} rows ({_labels(r)})" for g, r in groups.iterrows()]
        rows.append(f"By {name(attribute)}: {'; '.join(counts)}.")
    lacking = [
        f"{share:.1%} of rows have no {name(a)}; they count for performance, not for gaps." for a, share in after.missing.items() if share
    ]
    counted = " ".join(
        filter(
            None,
            [f"{name(after.name)}: {size(case.result.test, case.found.settings)}.", *rows, *lacking, left_out_words(after)],
        )
    )
    return f"{counted}\n\nFurther description: {facts.data.testing}"


def validation(case: Comparison) -> str:
    """The rows used for selection, the kind of intervals, and whether repair set and test set share patients."""
    after, shared = case.found.after, case.shared_patients
    unit, sampled = ("rows", f"the row: {BY_ROW}") if after.patients is None else ("patients", "the patient with all their rows")
    sentences = [
        f"{_selection(case)} On the test set every decision follows the rule fixed beforehand.",
        f"Intervals are {percent(after.settings.level)} score intervals (Wilson, Newcombe) for the effective number of {unit}; "
        f"the unit of sampling is {sampled}.",
        f"A rate based on fewer than {after.settings.min_patients} {unit} is given as {INSUFFICIENT}.",
    ]
    if shared is None:
        sentences.append("Without patient ids, rows of one patient may be in both sets.")
    elif shared:
        sentences.append(f"{shared:,} patients are in both sets, so the test is not only of new patients.")
    else:
        sentences.append("No patient is in both sets.")
    return " ".join(sentences)


def paragraphs(case: Comparison, facts: Any) -> dict[str, Any]:
    """The paragraphs of a card by name: the user's facts, completed by known ones, and the findings on the test set."""
    candidate, after, label = case.result.candidate, case.found.after, name(case.label)
    text, method = line(after.rule.describe()), line(method_words(case.result))
    rule = text if after.rule.randomised else f"positive if {text}"  # a randomised rule is positive with a probability
    need = "needs each patient's group" if after.rule.needs_group else "does not need the protected attribute"
    known = "A decision rule for the scores of a classifier, which is not part of this card's files."
    if not candidate.rule_only:
        parameters = sum(p.numel() for p in candidate.network.parameters())
        known = f"{name(type(candidate.network).__name__)} (PyTorch), {parameters:,} parameters."
    repair_set = "" if case.result.valid is None else f": {size(case.result.valid, case.found.settings)}"
    repaired = "The decision rule was fitted" if candidate.rule_only else "The network was repaired"
    cited = "" if facts.resources.citation == NOT_PROVIDED else facts.resources.citation.strip()
    paper = METHODS[candidate.ran].paper if candidate.ran in METHODS else ""
    found, judged, worse = answer(case), outcome(case), who_got_worse(case)
    summary = f"A classifier that detects {label}, repaired after training with {method}."
    values = [
        f"{performance_words(m)} {estimate_words(case.found.before[m])} before and {estimate_words(after[m])} after"
        for m in dict.fromkeys([case.goal.performance, "balanced_accuracy", "auroc"])
    ]
    return {
        "model_name": name(case.title) if facts.model.name == NOT_PROVIDED else facts.model.name,
        "summary": summary if facts.model.summary == NOT_PROVIDED else facts.model.summary,
        "model_type": known if facts.model.type == NOT_PROVIDED else f"{facts.model.type} {known}",
        "method": method,
        "outputs": f"A score from 0 to 1 for {label}, and a decision: {rule}.",
        "how_to_use": f"Directions: {facts.use.how}\n\nDecision: {rule}. The rule {need} at prediction time.",
        "development": f"Training data: {facts.data.development}\n\n{repaired} on the repair set{repair_set}.",
        "kind_of_test": joined(facts.data.test_type, HELD_OUT),
        "bibliography": "\n\n".join(filter(None, [cited, paper])),
        "answer": found,
        "outcome": judged,
        "who_got_worse": worse,
        "fairness": joined(found, judged, worse),
        "biases": joined(found, worse, f"In addition to the audit: {facts.risks.biases}"),
        "performance": f"On the test set: {'; '.join(values)}.",
        "limits": limits(case),
        "mitigation": mitigation(case, facts),
        "patients_tested": patients_tested(case, facts),
        "validation": validation(case),
        "goal": f"Goal: {line(goal_words(case.goal))}. By {measure_words(case.goal.measure)}.",
        "glossary": [measure_words(measure) for measure in dict.fromkeys([case.goal.measure, *GAPS_SHOWN])],
    }
