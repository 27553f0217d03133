"""Measures, goals, outcomes and notes in words: the only place where values become sentences that several outputs share."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from equipoise.data import CONFLICTS, Varying
from equipoise.errors import BadInput
from equipoise.measures import MEASURES, meaning, signature, terms
from equipoise.report.text import amount, percent, sentence, short_name

if TYPE_CHECKING:
    import pandas as pd

    from equipoise.measures import Audit
    from equipoise.methods import Goal, Note
    from equipoise.repair import Comparison, Contribution

AT_BOUND = 5e-4  # less than this from the upper bound would be printed as 0.0 or 0.1 points
SHOWN = 6  # small cells, before the rest is only counted
THRESHOLDS = "set of thresholds"  # one per group: there are too many sets to count
TINY = 1e-9  # rates are counts over counts: the last bits carry no information
Numbers = Mapping[str, Any]


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
    found = f"{audit.findings} of {many} {'is' if audit.findings == 1 else 'are'} clear after adjustment"
    ends = f"simultaneous {percent(audit.settings.level)} interval {low:.1f} to {high:.1f}"
    return (
        f"{sentence(gap_words(str(row['measure'])))} is {100 * abs(row['value']):.1f} percentage points "
        f"{'lower' if row['value'] < 0 else 'higher'} in {short_name(row['group'])} than in {short_name(row['reference'])} "
        f"({ends}); {found}."
    )


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
        f"the goal ({goal_words(candidate.goal)}) was {'met' if candidate.met else 'NOT met'} there."
    )


# Notes of a repair


def note_words(note: Note) -> str:
    """A note in words.

    >>> from equipoise.methods import Note
    >>> note_words(Note("pruned", "units", {"switched_off": 12, "of": 40, "reselected": False}))
    '12 of 40 units switched off'
    >>> note_words(Note("clipped", "weights", {"limit": 0.5}))
    'clipped: weights (limit 0.5)'
    """
    if note.kind in PLAIN:
        return PLAIN[note.kind].format(subject=note.subject, **note.numbers)
    if note.kind in MADE:
        return MADE[note.kind](note.subject, note.numbers)
    values = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in note.numbers.items())
    return f"{note.kind.replace('_', ' ')}{f': {note.subject}' if note.subject else ''}{f' ({values})' if values else ''}"


def why_words(why: Iterable[Note]) -> str:
    """Why a step was chosen, in words.

    >>> from equipoise.methods import Note
    >>> why_words([Note("original"), Note("too_low", "balanced_accuracy", {"value": 0.71, "least": 0.8, "group": None})])
    'the original network; its balanced accuracy 0.710 is below 0.8'
    """
    return "; ".join(map(note_words, why))


def _selected(what: str, n: Numbers) -> str:
    best = f"smallest |{n['measure']}|" if n["by"] == "gap" else f"best {performance_words(n['performance'])}"
    of, asked = "" if what == THRESHOLDS else f" of {n['of']:,}", " and ".join(_asked(n))
    if n["qualified"] is None:
        return f"the {best} that any {what} has with {asked}"
    if n["qualified"] == 0:
        return f"no {what}{of} has {asked}; the {best}, {n['taken']:.3f}, was taken"
    return f"{best} of {n['qualified']:,} {what if n['qualified'] == 1 else _plural(what)} with {asked}"


def _asked(n: Numbers) -> list[str]:
    """What a goal asks for, each part in words."""
    asked = [] if n["min_performance"] is None else [f"{performance_words(n['performance'])} >= {n['min_performance']:.3g}"]
    asked += [] if n["max_gap"] is None else [f"|{n['measure']}| <= {n['max_gap']:g}"]
    return asked + ([f"{_kept(n)} in every group"] if n["keep"] else [])


def _kept(n: Numbers) -> str:
    return ", ".join(f"{rate} {'as before' if isinstance(least, str) else f'>= {least:g}'}" for rate, least in n["keep"].items())


def _selected_for_all(one: str, n: Numbers) -> str:
    words = {"min_performance": "minimum performance", "max_gap": "maximum gap"}
    has = f"every {one} has its {' or '.join(words[name] for name in n['asked'])}{' and keeps its rates' if n['keeps'] else ''}"
    if n["qualified"] == 0:
        return f"in no step of {n['of']:,} {has}; the nearest was taken"
    best = f"smallest of the {_plural(one)}' largest |gap|" if n["by"] == "gap" else f"best mean {performance_words(n['performance'])}"
    return f"{best} of {n['qualified']:,} step{'' if n['qualified'] == 1 else 's'} in which {has}"


def _plural(word: str) -> str:
    head, _, rest = word.partition(" ")
    return f"{head}{'es' if head.endswith('s') else 's'}{f' {rest}' if rest else ''}"


def _too_low(what: str, n: Numbers) -> str:
    whose = "its " if n["group"] is None else ""
    group = "" if n["group"] is None else f" of {n['group']!r}"
    return f"{whose}{performance_words(what)}{group} {n['value']:.3f} is below {n['least']:.3g}"


def _nearest(_what: str, n: Numbers) -> str:
    surely = "surely " if n["surely"] else ""
    words = dict(zip([key for key in ("performance", "gap", "rates") if _has(n, key)], _asked(n), strict=True))
    counts = [f"{_none(count)} {surely}{words[what]}" for what, count in n["have"].items()]
    reached = [", ".join(_reached(what, value, n) for what, value in step.items()) for step in n["nearest"]]
    steps = "1 step" if n["of"] == 1 else f"{n['of']:,} steps"
    return f"of {steps} {', '.join(counts)}{', none all of it' if n['apart'] else ''}; the nearest: {' or '.join(reached)}"


def _has(n: Numbers, what: str) -> bool:
    """Whether a goal asks for a performance, a gap or rates."""
    return bool(n["keep"]) if what == "rates" else n["min_performance" if what == "performance" else "max_gap"] is not None


def _none(count: int) -> str:
    return "none has" if count == 0 else "1 has" if count == 1 else f"{count} have"


def _reached(what: str, value: float, n: Numbers) -> str:
    if what == "rates":
        return "all rates kept" if value >= -TINY else f"a rate {-value:.3f} too low"
    if what == "gap":
        return f"no {n['measure']}" if math.isnan(value) else f"|{n['measure']}| {'at most ' if n['surely'] else ''}{value:.3f}"
    return f"{performance_words(n['performance'])} {'at least ' if n['surely'] else ''}{value:.3f}"


def _not_surely_within(measure: str, n: Numbers) -> str:
    needed = "" if n["rows"] is None else f" (about {n['rows']:,} rows would be needed to tell)"
    return f"the upper confidence limit of |{measure}|, {n['value']:.3f}, is above {n['most']:g}{needed}"


def _none_surely(performance: str, n: Numbers) -> str:
    reach = (
        performance_words(performance) if n["min_performance"] is None else f"{performance_words(performance)} {n['min_performance']:.3g}"
    )
    if n["enough"] and n["kept"]:
        both = f"{n['enough']:,} steps surely reach {reach}, {n['kept']:,} surely keep {_kept(n)} in every group, but none does both"
        return f"{both}; the original was kept"
    lacking = [] if n["enough"] else [f"reaches {reach} (the best has {n['best']:.3f}, standard error {n['error']:.3f})"]
    lacking += [] if n["kept"] else [f"keeps {_kept(n)} in every group"]
    return f"no step of {n['of']:,} surely {', nor surely '.join(lacking)}; the original was kept"


def _best_of_methods(method: str, n: Numbers) -> str:
    if n["met"]:
        return f"{method} of {n['tried']} methods tried"
    reached = "; ".join(
        f"{name} has {own['measure']} {own['gap']:+.3f} and {performance_words(own['of'])} {own['performance']:.3f}"
        for name, own in n["reached"].items()
    )
    return f"none of {n['tried']} methods tried meets the goal ({reached}); {method} is nearest"


def _pruned(what: str, n: Numbers) -> str:
    return f"{'at most ' if n['reselected'] else ''}{n['switched_off']} of {n['of']} {what} switched off"


def _missing_group(attribute: str, n: Numbers) -> str:
    have = "row has" if n["missing"] == 1 else "rows have"
    decided = f"; the rule decides on such rows by {n['decided_by']}" if n["decided_by"] else ""
    counts = f"they count for {performance_words(n['counts_for'])} and not for {n['not_for']}"
    return f"{n['missing']:,} of {n['rows']:,} {have} no {attribute}: {counts}{decided}"


def _small_cells(_measure: str, n: Numbers) -> str:
    cells = [
        f"{cell['group']!r} has {cell['counted']} (standard error of {'each' if cell['each'] else 'its'} {cell['of']} "
        f"{'up to ' if cell['each'] else ''}{cell['error']:.2f})"
        for cell in n["cells"]
    ]
    more = f" and {len(cells) - SHOWN} more cells are as small" if len(cells) > SHOWN else ""
    return f"too few to tell a gap from chance: {', '.join(cells[:SHOWN])}{more}. {n['advice']}"


def _probes(reading: str, n: Numbers) -> str:
    if "multipliers" in n:
        told = "multipliers: " + ", ".join(f"{group} {value:+.3g}" for group, value in n["multipliers"].items())
    else:
        told = f"every group held to a {n['rate']} of {n['level']:.3f}"
    return f"probes read {reading}; {told}"


def _held_out(measure: str, n: Numbers) -> str:
    return (
        f"chosen on held-out rows in {n['folds']} folds: {measure} {n['gap']:+.3f}, "
        f"{performance_words(n['of'])} {n['performance']:.3f} there, where the label's probe has {n['before']:.3f} before any cost; "
        "the trace's own columns are those on the rows that the probes were fitted on"
    )


def _training_set(_subject: str, n: Numbers) -> str:
    if n["rows"]:
        return f"what tells the groups apart was also learnt from {n['rows']:,} rows of the training set"
    return "the training set was not needed: the rows here tell the groups apart as well"


def _tried(method: str, n: Numbers) -> str:
    if n["taken"]:
        place = "taken"
    else:
        place = f"not taken: {n['best']} is better" if n["met"] else "not taken: the goal is not met"
    gap = f"{n['measure']} {n['gap_before']:+.3f} -> {n['gap']:+.3f}"
    return f"tried {method} ({place}): {gap}, {performance_words(n['of'])} {n['performance_before']:.3f} -> {n['performance']:.3f}"


def _rescored(measure: str, n: Numbers) -> str:
    return (
        f"during the repair it was evaluated with {measure} {n['gap_before']:+.3f} and "
        f"{performance_words(n['of'])} {n['performance_before']:.3f}; the final network has {n['gap']:+.3f} and {n['performance']:.3f}"
    )


def _not_tried(method: str, n: Numbers) -> str:
    return f"not tried, since {method} meets the goal with room: {', '.join(n['methods'])}"


CORRECTED = "{subject} {gap:+.3f} (standard error {error:.3f}) after correction by held-out rows"
PLAIN = {
    "original": "the original network",
    "as_given": "the network as given",
    "last_step": "the last of {steps} steps",
    "held_out_rows_decide": "values on held-out rows decide",
    "each_label_alone": "each label on its own",
    "final_network_misses": "the final network misses the goal",
    "too_large": "its |{subject}| {value:.3f} is above {most:g}",
    "equal_odds": "best {subject} with equal sensitivity and false positive rate in all {groups} groups",
    "cross_fitted_choice": f"cross-fitted choice among {{of:,}} steps, {{qualified:,}} of which surely keep what was asked: {CORRECTED}",
    "original_within": f"the original network is surely within the maximum gap {{max_gap:g}} already: {CORRECTED}",
    "nothing_to_repair": f"no gap that these {{rows:,}} rows can tell from chance: the original network has {CORRECTED}",
    "declined": f"no step has a surely smaller |{{subject}}| than the original network, which has {CORRECTED}; the original was kept",
    "rate_too_low": "a rate that must be kept is {by:.3f} too low",
    "needs_group": "needs each patient's group",
    "band": "inside the band the positive decision goes to {subject}",
    "randomised": "decisions are randomised: rule.draw(scores, seed)",
    "not_its_target": "equalises sensitivity and false positive rate; {subject} is not its target and need not shrink",
    "frozen_parameters": "{frozen} of {of} parameter tensors are frozen and stay as they are",
    "original_kept": "the original network was kept",
    "cross_fitted": "gaps and performance were corrected by how much worse the steps are on held-out rows, in two halves of {rows:,} rows",
    "could_not_run": "{subject} could not be run: {problem}",
}
MADE: dict[str, Callable[[str, Numbers], str]] = {
    "selected": _selected,
    "selected_for_all": _selected_for_all,
    "too_low": _too_low,
    "nearest": _nearest,
    "not_surely_within": _not_surely_within,
    "none_surely": _none_surely,
    "best_of_methods": _best_of_methods,
    "pruned": _pruned,
    "probes": _probes,
    "chosen_on_held_out_rows": _held_out,
    "training_set": _training_set,
    "missing_group": _missing_group,
    "small_cells": _small_cells,
    "tried": _tried,
    "not_tried": _not_tried,
    "rescored": _rescored,
}
