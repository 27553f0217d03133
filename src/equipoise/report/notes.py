"""The notes of a repair in words, for page, cards and terminal. A kind without words of its own is spelled out from its values."""

from collections.abc import Callable, Mapping
from typing import Any

from equipoise.methods import Note

SHOWN = 6  # small cells, before the rest is only counted
Numbers = Mapping[str, Any]


def note_words(note: Note) -> str:
    """A note in words.

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


def _pruned(what: str, n: Numbers) -> str:
    return f"{'at most ' if n['reselected'] else ''}{n['switched_off']} of {n['of']} {what} switched off"


def _missing_group(attribute: str, n: Numbers) -> str:
    have = "row has" if n["missing"] == 1 else "rows have"
    decided = f"; the rule decides on such rows by {n['decided_by']}" if n["decided_by"] else ""
    counts = f"they count for {_name(n['counts_for'])} and not for {n['not_for']}"
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
        f"chosen on held-out rows in {n['folds']} folds: {measure} {n['gap']:+.3f}, {_name(n['of'])} {n['performance']:.3f} there, "
        f"where the label's probe has {n['before']:.3f} before any cost; "
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
    return f"tried {method} ({place}): {gap}, {_name(n['of'])} {n['performance_before']:.3f} -> {n['performance']:.3f}"


def _rescored(measure: str, n: Numbers) -> str:
    return (
        f"during the repair it was evaluated with {measure} {n['gap_before']:+.3f} and {_name(n['of'])} {n['performance_before']:.3f}; "
        f"the final network has {n['gap']:+.3f} and {n['performance']:.3f}"
    )


def _name(performance: str) -> str:
    return performance.replace("_", " ")


def _not_tried(method: str, n: Numbers) -> str:
    return f"not tried, since {method} meets the goal with room: {', '.join(n['methods'])}"


PLAIN = {
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
