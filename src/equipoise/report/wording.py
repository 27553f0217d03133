"""Measures, goals, outcomes and notes in words: the only place where values become sentences that several outputs share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from equipoise.data import CONFLICTS, Varying
from equipoise.errors import BadInput
from equipoise.measures import GROUP_MEASURES, MEASURES, SCORE_MEASURES, meaning, signature, terms
from equipoise.report.text import amount, percent, sentence, short_name

if TYPE_CHECKING:
    import pandas as pd

    from equipoise.measures import Audit, Contribution, Settings
    from equipoise.methods import Goal
    from equipoise.repair import Comparison

AT_BOUND = 5e-4  # less than this from the upper bound would be printed as 0.0 or 0.1 points


class Rate(NamedTuple):
    """A rate of a group in words; a page prints it as a share (percent), an area (three decimals), points or the size of a difference."""

    name: str
    means: str
    kind: str = "share"


RATES = {
    "selection_rate": Rate("share flagged", "of all patients, the share that is decided positive"),
    "tpr": Rate("sensitivity", "of those who have the finding, the share that is detected"),
    "fpr": Rate("false positive rate", "of those who do not have it, the share that is flagged"),
    "tnr": Rate("specificity", "of those who do not have it, the share that is cleared"),
    "fnr": Rate("miss rate", "of those who have the finding, the share that is missed"),
    "ppv": Rate("PPV", "positive predictive value: of those flagged, the share who have the finding"),
    "npv": Rate("NPV", "negative predictive value: of those cleared, the share who do not have it"),
    "auroc": Rate("AUROC", "the probability that a patient with the finding scores higher than one without; 0.5 is chance", "area"),
    "calibration_in_the_large": Rate(
        "calibration in the large",
        "mean score minus the share who have the finding, in points; above zero the scores are too high",
        "points",
    ),
    "calibration_intercept": Rate(
        "calibration intercept",
        "on the logit scale, with the slope at 1; above zero the finding is more frequent than the scores say",
        "signed",
    ),
    "calibration_slope": Rate(
        "calibration slope", "of the label on the logit of the score; below 1 the scores are too extreme, above 1 too moderate", "number"
    ),
    "calibration_error": Rate(
        "calibration error",
        "mean distance of the score from the share who have the finding, over 10 bins, in points; bar: range of a calibrated model",
        "size",
    ),
    "brier": Rate("Brier score", "mean squared difference of score and label; 0 is perfect", "area"),
    "sensitivity_at_specificity": Rate(
        "sensitivity at fixed specificity", "at a threshold of the group's own, with the same specificity in every group"
    ),
    "specificity_at_sensitivity": Rate(
        "specificity at fixed sensitivity", "at a threshold of the group's own, with the same sensitivity in every group"
    ),
}
PERFORMANCE = {
    "balanced_accuracy": "balanced accuracy",
    "accuracy": "accuracy",
    "f1": "F1",
    "auroc": "AUROC",
    "average_precision": "average precision",
}


def upper_bound_words(below: float | None, performance: str = "") -> str:
    """The distance from the group-aware upper bound in points: '1.2 below', '0.3 above', 'at it'; with the performance measure named.

    >>> [upper_bound_words(below) for below in (0.0123, -0.003, 0.0, None)], upper_bound_words(0.0123, "accuracy")
    (['1.2 below', '0.3 above', 'at it', '—'], '1.2 points of accuracy below it')
    """
    if below is None or math.isnan(below):
        return "—"
    if abs(below) < AT_BOUND:
        return "at it"
    where, size = "below" if below > 0 else "above", f"{100 * abs(below):.1f}"
    return f"{size} points of {performance} {where} it" if performance else f"{size} {where}"


def share_words(measure: str) -> tuple[str, str]:
    """What a measure compares, before and after the name of the finding; a sum of rates is spelled out, anything else has its own name.

    >>> "pneumonia".join(share_words("eod"))
    'of the patients who have pneumonia, the share that is detected'
    """
    return MEASURES[measure].question if measure in MEASURES else (f"{_spelled(measure)}, in the detection of ", "")


def gap_words(measure: str) -> str:
    """A measure in a few words.

    >>> gap_words("tpr-0.5fpr")
    'sensitivity - 0.5 times false positive rate'
    """
    return MEASURES[measure].short if measure in MEASURES else _spelled(measure)


def _spelled(measure: str) -> str:
    """A signed sum of rates in words; the name itself where it is none."""
    try:
        terms(measure)
    except BadInput:
        return measure
    return meaning(measure).removeprefix("difference in ")


def distinct(measures: Iterable[str]) -> list[str]:
    """The measures without those that mirror an earlier one, as fnr_gap mirrors eod.

    >>> distinct(["spd", "eod", "aod", "fpr_gap", "tnr_gap", "fnr_gap", "ppv_gap"])
    ['spd', 'eod', 'aod', 'fpr_gap', 'ppv_gap']
    """
    found: dict[tuple[object, ...], str] = {}
    for name in measures:
        found.setdefault(signature(name), name)
    return list(found.values())


def crossed(attributes: Sequence[str]) -> list[str]:
    """The intersections among the attributes: 'sex & age' next to 'sex' and 'age'."""
    pairs = {f"{a} & {b}" for a in attributes for b in attributes}
    return [name for name in attributes if name in pairs]


def largest_gap(gaps: pd.DataFrame) -> pd.Series[Any] | None:
    """The largest gap: of those that are clear after adjustment where there are any, and of these not of an intersection if possible."""
    pool = gaps[gaps["value"].notna() & gaps["measure"].isin(distinct(gaps["measure"].unique()))]
    for preferred in (pool["clear"], ~pool["attribute"].isin(crossed(list(gaps["attribute"].unique())))):
        wanted = preferred.reindex(pool.index)
        pool = pool[wanted] if wanted.any() else pool
    return pool.loc[pool["value"].abs().idxmax()] if len(pool) else None


def comparison_words(audit: Audit) -> str:
    """How many comparisons an audit makes: '12 comparisons'."""
    return f"{audit.comparisons:,} comparison{'' if audit.comparisons == 1 else 's'}"


def sampled_words(audit: Audit) -> list[str]:
    """What the figures of very many rows rest on: a sample of them, or binned scores; empty where all rows were used as they are."""
    lines = []
    if "sampled" in audit.groups:
        sampled = audit.groups[audit.groups["sampled"] < audit.groups["n"]]
        if len(sampled):
            names = ", ".join(dict.fromkeys(short_name(name) for name in sampled.index))
            lines.append(
                "Calibration intercept, slope and error, operating points and decision curves are from random samples of whole patients "
                f"(at least {int(sampled['sampled'].min()):,} rows each) in groups with more: {names}."
            )
    noted: dict[str, list[str]] = {}
    for name, estimate in audit.estimates.items():
        if estimate.note and not estimate.group and not math.isnan(estimate.value):
            noted.setdefault(estimate.note, []).append(PERFORMANCE[name] if name in PERFORMANCE else RATES[name].name)
    return lines + [f"{sentence(' and '.join(names))} of all patients: {note}." for note, names in noted.items()]


def conclusion(audit: Audit) -> str:
    """The largest finding of an audit in one sentence, and how many of its comparisons are findings after adjustment.

    The interval is the simultaneous one, because the gap was selected for its size.
    """
    row, many = largest_gap(audit.gaps), comparison_words(audit)
    if row is None:
        return "No difference could be estimated: insufficient data."
    if not row["clear"]:
        return f"No difference between groups is clear after adjustment for {many}; those below the detectable size remain possible."
    low, high = sorted(100 * abs(row[f"simultaneous_{end}"]) for end in ("low", "high"))
    family = "" if audit.own_comparisons == audit.comparisons else f" for all {audit.comparisons:,}"
    of = f"{audit.own_comparisons:,} comparison{'' if audit.own_comparisons == 1 else 's'}"
    found = f"{audit.findings} of {of} {'is' if audit.findings == 1 else 'are'} clear after adjustment{family}"
    ends = f"simultaneous {percent(audit.settings.level)} interval {low:.1f} to {high:.1f}"
    return (
        f"{sentence(gap_words(str(row['measure'])))} is {100 * abs(row['value']):.1f} percentage points "
        f"{'lower' if row['value'] < 0 else 'higher'} in {short_name(row['group'])} than in {short_name(row['reference'])} "
        f"({ends}); {found}."
    )


def rate_title(rate: str, settings: Settings) -> str:
    """The name of a rate of a group, with the value at which an operating point is read: 'sensitivity at 90% specificity'."""
    fixed = {"sensitivity_at_specificity": settings.specificity, "specificity_at_sensitivity": settings.sensitivity}
    return RATES[rate].name.replace("fixed", percent(fixed[rate])) if rate in fixed else RATES[rate].name


def lacking_words(note: str) -> str:
    """What is insufficient in a group, with the names of rates; all of them are 'everything'."""
    return "; ".join(_lacking(part) for part in note.split("; "))


def _lacking(note: str) -> str:
    before, separator, after = note.partition(": ")
    measures = after.split(", ")
    if set(measures) >= {*GROUP_MEASURES, *SCORE_MEASURES}:
        return f"{before}: everything"
    named = (m.partition(" (") for m in measures)
    return before + separator + ", ".join(f"{RATES[m].name if m in RATES else m}{gap}{why}" for m, gap, why in named)


def rate_words(rate: str) -> str:
    """The name of a rate of a group, or of a rate that a measure is a sum of."""
    return RATES["selection_rate" if rate == "selection" else rate].name


def performance_words(measure: str) -> str:
    """A performance measure in words."""
    return PERFORMANCE.get(measure, measure.replace("_", " "))


def goal_words(goal: Goal) -> str:
    """A goal in words.

    >>> from equipoise.methods import Goal
    >>> goal_words(Goal("eod", min_performance=0.75))
    'the smallest difference in sensitivity with balanced accuracy of at least 75.0%'
    >>> goal_words(Goal("spd", max_gap=0.05, keep={"tpr": "before"}))
    "the best balanced accuracy with a difference in share flagged of at most 5.0 points, and no group's sensitivity lower than before"
    """
    what, performance = gap_words(goal.measure), performance_words(goal.performance)
    floor = "" if goal.min_performance is None else f" with {performance} of at least {amount(goal.min_performance)}"
    within = f"a difference in {what} of at most {amount(goal.max_gap, 'size')} points"
    if goal.max_gap is None:
        asked = f"the smallest difference in {what}{floor}"
    else:
        asked = f"{within}{floor}" if floor else f"the best {performance} with {within}"
    kept = [
        f"no group's {rate_words(rate)} lower than before"
        if isinstance(least, str)
        else f"a {rate_words(rate)} of at least {amount(least)} in every group"
        for rate, least in goal.keep.items()
    ]
    return ", and ".join([asked, *kept])


def contribution_words(contribution: Contribution) -> str:
    """What happened to a rate, in words."""
    more = "more" if contribution.change > 0 else "fewer"
    return {
        "tpr": f"{more} of those with the finding are detected",
        "fpr": f"{more} of those without the finding are flagged",
        "selection": f"{more} patients are flagged",
    }[contribution.rate]


def varying_words(varying: Varying) -> str:
    """How many patients have more than one group, and how they count."""
    have = "patient has" if varying.patients == 1 else "patients have"
    return f"{varying.attribute}: {varying.patients:,} {have} more than one recorded group; {CONFLICTS[varying.rule]} (--conflicts)"


def repair_answer(comparison: Comparison) -> str:
    """What the repair did to the difference on held-out patients, in one sentence: the first of the page, README.txt and the terminal."""
    found = comparison.found
    old, new = found.gap_before, found.gap_after
    if found.seen == "insufficient":
        return "There are too few test patients for an answer."
    two = len(comparison.result.test.attribute.levels) == 2
    between = f"between {short_name(old.group)} and {short_name(old.reference)}" if two else f"from {short_name(old.reference)}"
    subject = f"the {'' if two else 'largest '}difference in {gap_words(comparison.goal.measure)} {between}"
    first, last = (amount(gap.value, "points") + ("" if two else f" ({short_name(gap.group)})") for gap in (old, new))
    if found.seen == "unchanged":
        return f"The repair changes no decision on the held-out patients: {subject} stays at {first} percentage points."
    if found.seen == "larger":
        return f"On held-out patients {subject} did not get smaller: {first} percentage points before the repair, {last} after."
    chance = ", which chance may explain" if found.seen == "unclear" else ""
    return f"On held-out patients {subject} went from {first} to {last} percentage points{chance}."


def repair_set_words(comparison: Comparison) -> str:
    """One sentence on the repair set: the method, the gap before and after, and whether the goal was met."""
    candidate = comparison.result.candidate
    gaps = [candidate.trace.iloc[at]["gap"] for at in (0, candidate.chosen)]
    first, last = (amount(float(gap), "points") for gap in gaps)
    rows = "" if comparison.result.valid is None else f" ({len(comparison.result.valid):,} rows)"
    name = comparison.result.name if candidate.ran == candidate.method else f"{comparison.result.name} ({candidate.ran})"
    return (
        f"On the repair set{rows}, {name} changed it from {first} to {last} points; "
        f"the goal ({goal_words(candidate.goal)}) was {'met' if candidate.met_in_sample else 'NOT met'} there."
    )
