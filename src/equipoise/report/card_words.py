"""The sentences of a model card: which measure, which groups, which data, with intervals. All of them are Markdown, safe for any name."""

import numpy as np

from equipoise.data import Scores
from equipoise.measures import Audit, Estimate, meaning
from equipoise.methods import METHODS
from equipoise.report.affected import Shift
from equipoise.report.card_findings import CardFindings
from equipoise.report.card_text import line, name, spread
from equipoise.report.terminal import PERFORMANCE_NAMES, percent

RATE_WORDS = {"tpr": "sensitivity", "fpr": "false positive rate", "selection": "share decided positive"}
LISTED = 12  # worse rates that a paragraph names; the table has all


def measure_words(measure: str) -> str:
    """A gap in words: its name, what it compares, and its direction."""
    title, _, what = meaning(measure).partition(": ")
    inside = f"{name(measure)}: {what}" if what else name(measure)
    return f"{title} ({inside}, group minus reference)"


def performance_words(measure: str) -> str:
    """A performance measure in words."""
    return PERFORMANCE_NAMES.get(measure, measure.replace("_", " "))


def size(scores: Scores) -> str:
    """How many rows, of how many patients, with how many positives."""
    patients = "" if scores.patients is None else f" of {len(set(scores.patients)):,} patients"
    return f"{len(scores):,} rows{patients}, {int(scores.y.sum()):,} of them positive"


def gap_words(estimate: Estimate) -> str:
    """A gap with its interval and the two groups."""
    if np.isnan(estimate.value):
        return line(estimate.note or "insufficient data")
    between = f"{name(estimate.group)} minus {name(estimate.reference)}"
    return f"{spread(estimate.value, estimate.low, estimate.high, '+')} ({between})"


def goal(found: CardFindings) -> str:
    """What was asked for, in words."""
    asked = found.goal
    gap, performance = measure_words(asked.measure), performance_words(asked.performance)
    if asked.max_gap is None:
        text = f"The smallest absolute {gap}"
    else:
        text = f"An absolute {gap} of at most {asked.max_gap:g}"
    return text + (
        f", with {performance} of at least {asked.min_performance:.3g}."
        if asked.min_performance is not None
        else f", with the best {performance}."
    )


def verdict(found: CardFindings) -> str:
    """The question and the answer in one paragraph: the gap and the performance on the test part, before and after."""
    gap, performance = found.gap, found.performance
    level = percent(found.after.settings.level)
    sentences = [
        f"On the test part ({size(found.case.result.test)}), which took no part in the repair or in any choice, the "
        f"{measure_words(found.goal.measure)} by {name(found.attribute)} is {gap_words(gap[0])} before and "
        f"{gap_words(gap[1])} after, with {level} intervals.",
        f"The {performance_words(found.goal.performance)} is {_of(performance[0])} before and {_of(performance[1])} after.",
    ]
    change = found.gap_change
    if not np.isnan(change.value):
        moved = "got smaller" if change.value < 0 else "did NOT get smaller"
        if change.value < 0 <= change.high:
            moved += ", by an amount that chance may explain"
        sentences.insert(1, f"Its size {moved}: a change of {spread(change.value, change.low, change.high, '+')}.")
    if len(found.case.result.test.attribute.others) > 1:
        sentences.append("Of several groups, the largest gap to the reference in absolute value stands for all.")
    return " ".join(sentences)


def goal_met(found: CardFindings) -> str:
    """Whether the goal was met where it was set, and what the test part says of it."""
    candidate, asked = found.case.result.candidate, found.goal
    sentences = [f"On the validation part the goal was {'met' if candidate.met else 'NOT met'}: {line(candidate.why)}."]
    gap, performance = found.gap[1], found.performance[1]
    if asked.min_performance is not None:
        sentences.append(
            _against(
                f"the {performance_words(asked.performance)}",
                performance,
                asked.min_performance,
                "min_performance",
                performance.value >= asked.min_performance,
            )
        )
    if asked.max_gap is not None:
        sentences.append(_against(f"the absolute {name(asked.measure)}", gap, asked.max_gap, "max_gap", abs(gap.value) <= asked.max_gap))
    return " ".join(sentences)


def _against(what: str, estimate: Estimate, limit: float, kind: str, inside: bool) -> str:
    if np.isnan(estimate.value):
        return f"On the test part {what} cannot be told: {line(estimate.note or 'insufficient data')}."
    if kind == "min_performance":
        side, whole = ("at or above" if inside else "BELOW"), (estimate.low >= limit or estimate.high < limit)
    else:
        largest, crosses = max(abs(estimate.low), abs(estimate.high)), estimate.low <= 0 <= estimate.high
        smallest = 0.0 if crosses else min(abs(estimate.low), abs(estimate.high))
        side, whole = ("within" if inside else "BEYOND"), (largest <= limit or smallest > limit)
    doubt = "" if whole else "; the interval reaches to the other side"
    return f"On the test part {what} is {side} the {kind} of {limit:.3g}{doubt}."


def who_got_worse(found: CardFindings) -> str:
    """The groups whose sensitivity fell or whose false positive rate rose, and levelling down where that is what happened."""
    level = percent(found.after.settings.level)
    clear = [s for s in found.worse if s.clear]
    unclear = [s for s in found.worse if not s.clear]
    sentences = []
    if clear:
        sentences.append(f"Worse after the repair, with a {level} interval that leaves out 0: {_listed(clear)}.")
    if unclear:
        sentences.append(f"Worse after the repair, by an amount whose {level} interval holds 0: {_listed(unclear)}.")
    if not found.worse:
        sentences.append("On the test part no group's sensitivity fell and no group's false positive rate rose.")
    if found.levelled:
        parts = [
            f"{abs(p.towards):.3f} of it from {name(p.group)}, whose {RATE_WORDS[p.rate]} got worse by {abs(p.change):.3f}"
            for p in found.levelled
        ]
        sentences.append(f"**Levelling down:** the gap got smaller in part because a group was made worse ({'; '.join(parts)}).")
    rows = found.after.groups[found.after.groups["attribute"] == found.attribute]
    short = [name(group) for group, note in rows["note"].items() if note]
    if short:
        sentences.append(f"For {', '.join(short)} some or all rates are insufficient data, so that nobody can say whether they got worse.")
    return " ".join(sentences)


def _listed(shifts: list[Shift]) -> str:
    parts = [
        f"{RATE_WORDS[s.rate]} of {name(s.group)} {s.before:.3f} to {s.after:.3f}, "
        f"a change of {spread(s.change.value, s.change.low, s.change.high, '+')}"
        for s in shifts[:LISTED]
    ]
    more = len(shifts) - len(parts)
    return "; ".join(parts) + (f"; and {more} more" if more else "")


def mitigation(found: CardFindings) -> str:
    """What was done to the network or its decisions, and how it was chosen."""
    case, result = found.case, found.case.result
    candidate = result.candidate
    about = f" ({METHODS[result.name].title})" if result.name in METHODS else ""
    settings = ", ".join(f"{name(k)} = {name(v)}" for k, v in candidate.settings.items())
    sentences = [
        f"After training, with the method {name(result.name)}{line(about)}, on the validation part ({size(result.valid)}).",
        f"Goal: {goal(found)}",
        f"{_chosen(found)} Chosen step: {line(candidate.why)}.",
        f"Settings: {settings}; seed {candidate.seed}." if settings else f"Seed {candidate.seed}.",
    ]
    if candidate.rule.needs_group:
        sentences.append("**The decision rule needs each patient's group at prediction time.**")
    else:
        sentences.append("The decision rule does not need the protected attribute at prediction time.")
    others = [r.name for k, r in enumerate(case.repairs) if k != case.chosen]
    if others:
        sentences.append(f"Also tried: {', '.join(name(other) for other in others)}.")
    return " ".join(sentences)


def _chosen(found: CardFindings) -> str:
    count = len(found.case.repairs)
    what = f"The method, of {count}, its step and its rule" if count > 1 else "The step and the rule"
    return f"{what} were selected on the validation part alone."


def patients_tested(found: CardFindings) -> str:
    """Who the test patients are: size, groups with positives and negatives, missing attributes."""
    after = found.after
    rows = []
    for attribute in after.groups["attribute"].unique():
        groups = after.groups[after.groups["attribute"] == attribute]
        counts = [f"{name(g)}, {r['n']:,} rows ({r['positives']:,} positive, {r['negatives']:,} negative)" for g, r in groups.iterrows()]
        rows.append(f"By {name(attribute)}: {'; '.join(counts)}.")
    lacking = [
        f"{share:.1%} of rows have no {name(a)}; they count for performance, not for gaps." for a, share in after.missing.items() if share
    ]
    return " ".join([f"{name(after.name)}: {size(found.case.result.test)}.", *rows, *lacking])


def validation(found: CardFindings) -> str:
    """What was selected on which part, how intervals are made, and why that is a fair test."""
    settings = found.after.settings
    unit, drawn = (
        ("rows", "rows (there are no patient ids)") if found.after.patients is None else ("patients", "patients with all their rows")
    )
    sentences = [
        f"{_chosen(found)} On the test part every decision is by the rule fixed beforehand.",
        f"Intervals are {percent(settings.level)} percentiles of {settings.draws:,} bootstrap draws of {drawn}.",
        f"A rate that rests on fewer than {settings.min_patients} {unit} is given as insufficient data.",
    ]
    if found.shared_patients is None:
        sentences.append("Without patient ids, rows of one patient may lie in both parts.")
    elif found.shared_patients:
        sentences.append(f"{found.shared_patients:,} patients lie in both parts, so that the test is not of new patients alone.")
    else:
        sentences.append("No patient lies in both parts.")
    return " ".join(sentences)


def limits(found: CardFindings) -> list[str]:
    """What the reader must know before trusting the numbers."""
    gap, after = found.gap[1], found.after
    lines = [line(text) for text in (*found.case.provenance.limits, *found.case.result.candidate.notes)]
    if not np.isnan(gap.detectable):
        lines.append(
            f"A {name(found.goal.measure)} of {gap.detectable:.3f} or more would have shown in these test patients, four times in five, "
            "as different from 0; a smaller one may be there unseen."
        )
    lines += [f"{name(a)}: nobody named a reference group, so the largest, {name(after.references[a])}, was taken." for a in after.assumed]
    lines += [f"{name(group)}: {line(note)}." for group, note in after.groups["note"].items() if note]
    if found.case.result.candidate.rule.needs_group:
        lines.append("The decision depends on each patient's group. Whether that is lawful and acceptable is for the user to settle.")
    lines += [
        "Intervals speak of the drawing of patients, not of wrong labels, other hospitals, or change over time.",
        "Several measures and groups are compared; their intervals are not widened for that.",
        "An equal rate by these measures does not say that care is equal, nor that other groups or measures are free of gaps.",
    ]
    return lines


def performance_interpretation(found: CardFindings) -> str:
    """Performance before and after."""
    parts = [f"{performance_words(m)} {_of(found.before[m])} before and {_of(found.after[m])} after" for m in performance_measures(found)]
    return f"On the test part: {'; '.join(parts)}."


def performance_measures(found: CardFindings) -> list[str]:
    """The performance measures that a card states: the goal's, balanced accuracy and AUROC."""
    return list(dict.fromkeys([found.goal.performance, "balanced_accuracy", "auroc"]))


def rule(audit: Audit) -> str:
    """How a score becomes a decision."""
    text = line(audit.rule.describe())
    return text if text.startswith("positive") else f"positive if {text}"


def _of(estimate: Estimate) -> str:
    return line(estimate.note or "insufficient data") if np.isnan(estimate.value) else spread(estimate.value, estimate.low, estimate.high)
