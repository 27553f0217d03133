"""The notes of a repair, and the reasons for its choice, in words. A kind that is not listed here is spelled out from its values."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from equipoise.report.text import amount, plural
from equipoise.report.wording.names import gap_words, performance_words, rate_words

if TYPE_CHECKING:
    from equipoise.methods import Note

MOST_CELLS = 6  # small cells that are named; the others are only counted
THRESHOLDS = "set of thresholds"  # one per group: there are too many sets to count
TINY_RATE = 1e-9  # rates are counts over counts: the last bits carry no information
Numbers = Mapping[str, Any]
SEARCH_NOTES = frozenset(  # kinds that explain how a repair was found; all others concern the patients, the rule or what was not done
    {"probes", "chosen_on_held_out_rows", "training_set", "cross_fitted", "tried", "not_tried", "recalibrated"}
)


def note_words(note: Note) -> str:
    """A note in words.

    >>> from equipoise.methods import Note
    >>> note_words(Note("pruned", "units", {"switched_off": 12, "of": 40, "reselected": False}))
    '12 of 40 units switched off'
    >>> note_words(Note("clipped", "weights", {"limit": 0.5}))
    'clipped: weights (limit 0.5)'
    """
    sentence = WORDS.get(note.kind, "")
    if callable(sentence):
        return sentence(note.subject, note.numbers)
    if sentence:
        return sentence.format(subject=note.subject, **_formatted(note.numbers))
    values = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in note.numbers.items())
    return f"{note.kind.replace('_', ' ')}{f': {note.subject}' if note.subject else ''}{f' ({values})' if values else ''}"


def _formatted(n: Numbers) -> dict[str, Any]:
    """Numbers for a sentence, with the words that depend on them."""
    return {**n, "performance_words": performance_words(str(n.get("of", "")))}


def why_words(why: Iterable[Note]) -> str:
    """The reasons for choosing a step, in words.

    >>> from equipoise.methods import Note
    >>> why_words([Note("original"), Note("too_low", "balanced_accuracy", {"value": 0.71, "least": 0.8, "group": None})])
    'the original model; its balanced accuracy 0.710 is below 0.8'
    """
    return "; ".join(map(note_words, why))


def _selected(unit: str, n: Numbers) -> str:
    best = f"smallest |{n['measure']}|" if n["by"] == "gap" else f"best {performance_words(n['performance'])}"
    goal = " and ".join(_goal_parts(n).values())
    if n["qualified"] is None:
        return f"the {best} that any {unit} has with {goal}"
    if n["qualified"] == 0:
        total = "" if unit == THRESHOLDS else f" of {n['of']:,}"
        return f"no {unit}{total} has {goal}; the {best}, {n['taken']:.3f}, was taken"
    return f"{best} of {n['qualified']:,} {unit if n['qualified'] == 1 else _plural(unit)} with {goal}"


def _goal_parts(n: Numbers) -> dict[str, str]:
    """The constraints of a goal in words, by what they constrain: performance, gap and rates."""
    parts = {}
    if n["min_performance"] is not None:
        parts["performance"] = f"{performance_words(n['performance'])} >= {n['min_performance']:.3g}"
    if n["max_gap"] is not None:
        parts["gap"] = f"|{n['measure']}| <= {n['max_gap']:g}"
    if n["keep"]:
        parts["rates"] = f"{_kept_rate_words(n)} in every group"
    return parts


def _kept_rate_words(n: Numbers) -> str:
    return ", ".join(f"{rate} {'as before' if isinstance(least, str) else f'>= {least:g}'}" for rate, least in n["keep"].items())


def _selected_for_all(unit: str, n: Numbers) -> str:
    words = {"min_performance": "minimum performance", "max_gap": "maximum gap"}
    meets = f"every {unit} has its {' or '.join(words[name] for name in n['asked'])}{' and keeps its rates' if n['keeps'] else ''}"
    if n["qualified"] == 0:
        return f"in no step of {n['of']:,} {meets}; the nearest was taken"
    best = f"smallest of the {_plural(unit)}' largest |gap|" if n["by"] == "gap" else f"best mean {performance_words(n['performance'])}"
    return f"{best} of {plural(n['qualified'], 'step')} in which {meets}"


def _plural(word: str) -> str:
    head, _, rest = word.partition(" ")
    return f"{head}{'es' if head.endswith('s') else 's'}{f' {rest}' if rest else ''}"


def _too_low(performance: str, n: Numbers) -> str:
    subject = f"its {performance_words(performance)}" if n["group"] is None else f"{performance_words(performance)} of {n['group']!r}"
    return f"{subject} {n['value']:.3f} is below {n['least']:.3g}"


def _nearest(_subject: str, n: Numbers) -> str:
    goal = _goal_parts(n)
    if n["expected"] and "gap" in goal:
        goal["gap"] = f"expected {goal['gap']}"
    have = {0: "none has", 1: "1 has"}
    counts = [f"{have.get(count, f'{count} have')} {goal[part]}" for part, count in n["have"].items()]
    reached = [", ".join(_reached(part, value, n) for part, value in step.items()) for step in n["nearest"]]
    apart = ", but none meets the whole goal" if n["apart"] else ""
    return f"of {plural(n['of'], 'step')} {', '.join(counts)}{apart}; the nearest: {' or '.join(reached)}"


def _reached(part: str, value: float, n: Numbers) -> str:
    if part == "rates":
        return "all rates kept" if value >= -TINY_RATE else f"a rate {-value:.3f} too low"
    if part == "gap":
        return f"no {n['measure']}" if math.isnan(value) else f"|{n['measure']}| {'about ' if n['expected'] else ''}{value:.3f}"
    return f"{performance_words(n['performance'])} {value:.3f}"


def _expected(measure: str, n: Numbers) -> str:
    """The expected effect of a step: the difference, performance with its standard error, and the price for groups."""
    sizes = f"from {amount(n['gap_before'], 'size')} to {amount(n['gap'], 'size')} points"
    error = f"(standard error {amount(n['performance_error'], 'size')})"
    performance = f"{performance_words(n['performance_of'])} changes by {amount(n['performance'], 'points')} points {error}"
    price = f"; a group loses up to {amount(n['fall'], 'size')} points" if n["fall"] > TINY_RATE else ""
    alarms = f"; a group's false positive rate rises by {amount(n['rise']['fpr'], 'size')} points" if n["rise"]["fpr"] > TINY_RATE else ""
    return f"the expected difference in {gap_words(measure)} goes {sizes}, {performance}{price}{alarms}"


def _expected_gain(measure: str, n: Numbers) -> str:
    return f"{_expected(measure, n)}: the largest net gain of {plural(n['qualified'], 'step')} within the limits, of {n['of']:,}"


def _nothing_to_repair(measure: str, n: Numbers) -> str:
    most = "" if n["max_gap"] is None else f", or what exceeds {n['max_gap']:g}," if n["max_gap"] else ""
    expected = f"the expected difference in {gap_words(measure)} of the original model is {amount(n['gap_before'], 'size')} points"
    least = f"from {n['rows']:,} rows, {expected}"
    return f"nothing to gain: {least}, and no change of the groups' rates can be expected to reduce it{most} by half a point"


def _declined(measure: str, n: Numbers) -> str:
    lacking = {
        "gain": "without a gain of half a point in the expected gap",
        "performance": f"with {performance_words(n['performance_of'])} that may be below {n['least']:.3f}",
        "rates": f"without surely keeping {_kept_rate_words(n)} in every group",
        **{name: f"with a {rate_words(name)} that may rise by more than {most:g} in a group" for name, most in n["max_rise"].items()},
        "capacity": "that flag another share of patients",
        "varied": "with the same decision for everyone within each group",
        "net": "that cost more than they gain",
    }
    reasons = ", ".join(f"{count:,} {lacking.get(what, f'beyond the limit of {what}')}" for what, count in n["lack"].items() if count)
    if not reasons:
        return f"the original was kept; its expected difference in {gap_words(measure)} is {amount(n['gap_before'], 'size')} points"
    return f"the original was kept, since every step was ruled out: {reasons}; the nearest: {_expected(measure, n)}"


def _best_of_methods(method: str, n: Numbers) -> str:
    if n["met"]:
        return f"{method}, of {plural(n['tried'], 'method')} tried"
    if n["tried"] > 1 and not n["changed"]:
        return f"the original stays: none of {n['tried']} methods tried found a step to take"
    return f"none of {n['tried']} methods tried meets the goal; {method} is nearest"


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
    more = f" and {len(cells) - MOST_CELLS} more cells are as small" if len(cells) > MOST_CELLS else ""
    return f"too few to distinguish a gap from chance: {', '.join(cells[:MOST_CELLS])}{more}. {n['advice']}"


def _probes(reading: str, n: Numbers) -> str:
    if "multipliers" in n:
        constraint = "multipliers: " + ", ".join(f"{group} {value:+.3g}" for group, value in n["multipliers"].items())
    else:
        constraint = f"every group held to a {n['rate']} of {n['level']:.3f}"
    return f"probes read {reading}; {constraint}"


def _tried(method: str, n: Numbers) -> str:
    if n["taken"]:
        result = "taken"
    elif not n["changed"]:
        result = "not taken: it changes nothing"
    else:
        result = f"not taken: {n['best']} was preferred" if n["met"] else "not taken: the goal is not met"
    gap, performance = (
        f"{amount(n[f'{of}_before'], kind)} → {amount(n[of], kind)}" for of, kind in (("gap", "points"), ("performance", "share"))
    )
    return f"tried {method} ({result}): difference in {gap_words(n['measure'])} {gap} points, {performance_words(n['of'])} {performance}"


NOT_RECALIBRATED = {
    "no_increasing_map": "no increasing map of them fits the labels of the repair set",
    "scores_collide": "two scores on either side of the threshold would become equal by rounding",
    "decisions_differ": "some decisions would change by rounding",
    "no_layer_for_it": "the network has no last linear layer with a bias for each label",
}
WORDS: dict[str, str | Callable[[str, Numbers], str]] = {  # by kind of note: a sentence, or a function of the subject and the numbers
    "original": "the original model",
    "as_given": "the model as given",
    "last_step": "the last of {steps} steps",
    "held_out_rows_decide": "values on held-out rows decide",
    "each_label_alone": "each label on its own",
    "taken_by_user": "taken in place of {subject} after its results on the held-out patients were seen, which makes them optimistic",
    "final_network_misses": "the final network misses the goal",
    "too_large": "its |{subject}| {value:.3f} is above {most:g}",
    "equal_odds": "best {subject} with equal sensitivity and false positive rate in all {groups} groups",
    "expected_gain": _expected_gain,
    "nothing_to_repair": _nothing_to_repair,
    "declined": _declined,
    "rate_too_low": "a rate that must be kept is {by:.3f} too low",
    "needs_group": "needs each patient's group",
    "band": "inside the band the positive decision goes to {subject}",
    "randomised": "randomised decisions, drawn from the seed and the id of each row",
    "not_its_target": "equalises sensitivity and false positive rate; {subject} is not its target and need not shrink",
    "frozen_parameters": "{frozen} of {of} parameter tensors are frozen and stay unchanged",
    "original_kept": "the original model was kept",
    "cross_fitted": "gaps and performance are corrected by how much worse each step is on rows not used for fitting, among {rows:,} rows",
    "cut_short": "{subject} stopped after {steps:,} steps, when its share of the budget was used up",
    "no_step": "{subject} stopped without a step: none of {trials:,} trials moved the gap far enough while keeping the performance",
    "no_time": "{subject} was not tried: it would take about {seconds:,.0f} s, and {left:,.0f} s of the budget were left",
    "could_not_run": "{subject} could not be run: {problem}",
    "recalibrated": "scores are recalibrated on the repair set, which changes no decision: their mean distance from the risk by the "
    "recalibrated original is {before:.1%} before and {after:.1%} after (cross-fitted)",
    "constant": "a repair with the same decision for everyone within each group was refused",
    "chosen_on_held_out_rows": "chosen on held-out rows in {folds} folds, with {subject} {gap:+.3f} and {performance_words} "
    "{performance:.3f} (the label's probe alone: {before:.3f}); the trace shows values on the rows that the probes were fitted to",
    "rescored": "during the repair it was evaluated with {subject} {gap_before:+.3f} and {performance_words} {performance_before:.3f}; "
    "the final network has {gap:+.3f} and {performance:.3f}",
    "selected": _selected,
    "selected_for_all": _selected_for_all,
    "too_low": _too_low,
    "nearest": _nearest,
    "best_of_methods": _best_of_methods,
    "pruned": lambda units, n: f"{'at most ' if n['reselected'] else ''}{n['switched_off']} of {n['of']} {units} switched off",
    "probes": _probes,
    "training_set": lambda _, n: (
        f"{n['rows']:,} rows of the training set were also used to learn what separates the groups"
        if n["rows"]
        else "the training set was not used: the repair set separates the groups as well"
    ),
    "missing_group": _missing_group,
    "small_cells": _small_cells,
    "tried": _tried,
    "not_tried": lambda method, n: (
        f"not tried, because {method} leaves no gap that is detectable with this many patients: {', '.join(n['methods'])}"
    ),
    "not_recalibrated": lambda reason, _: f"scores were not recalibrated: {NOT_RECALIBRATED[reason]}",
}
