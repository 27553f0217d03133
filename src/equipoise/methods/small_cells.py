"""Notes on the rows of any method: cells that are too small for their gap, and rows without a group.

The gap of a group with three positives is mostly noise, and a method that makes it small has fitted that noise. The notes of every
candidate therefore list such cells, with the standard error of the gap and the groups to merge; if a cell is empty there is no gap, and the
error has the same advice. Rows without a group count for performance but not for a gap, which is noted as well.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from equipoise.data import FEW_ROWS, MISSING, Rows
from equipoise.errors import TooFewPatients
from equipoise.measures import RATES, estimated_rate, measure_of, moments_of_scores, units_of
from equipoise.methods.candidate import LabelCandidate
from equipoise.methods.goal import Goal, Note

CELLS_LISTED = 6  # number of cells listed; the rest is only counted
MIN_PATIENTS = 5  # in every cell, unless a repair is forced
UNEQUAL_SIZES = 10  # times as many rows: too large a group to be merged with


@dataclass(frozen=True)
class CellCount:
    """The number of patients (or rows, without patient ids) with a label in a group. `rate` is the rate that depends on them."""

    code: int
    group: str
    label: int | None  # None: any label
    count: int
    rate: str
    unit: str  # rows or patients
    decided: str = ""  # positive or negative: only these decisions count, for PPV or NPV

    @property
    def counted(self) -> str:
        """The count in words: '3 positives', '1 patient with negatives', '4 rows', '4 rows decided positive'."""
        ending = "" if self.count == 1 else "s"
        if self.label is None:
            return f"{self.count:,} {self.unit.removesuffix('s')}{ending}{f' decided {self.decided}' if self.decided else ''}"
        what = "positive" if self.label else "negative"
        return f"{self.count:,} {what}{ending}" if self.unit == "rows" else f"{self.count:,} patient{ending} with {what}s"


def note_rows(candidate: LabelCandidate, rows: Rows, without_group: str = "") -> LabelCandidate:
    """The candidate with notes on its repair set. `without_group` describes the decision of its rule for a row without a group."""
    notes, measured = list(candidate.notes), candidate.goal
    if missing := int((rows.attribute.codes == MISSING).sum()):
        decided = without_group if candidate.rule.needs_group else ""
        counts_for = {"counts_for": measured.performance, "not_for": measured.measure, "decided_by": decided}
        notes.append(Note("missing_group", rows.attribute.name, {"missing": missing, "rows": len(rows), **counts_for}))
    rows = rows.comparing(measured.groups)
    cells = cells_of(rows, (*_measured(measured), *measured.keep))
    if (
        min(cell.count for cell in cells) < FEW_ROWS or measure_of(measured.measure).is_quotient
    ):  # otherwise the network is not run over all rows
        decisions = candidate.decide(rows)
        if measure_of(measured.measure).is_quotient:  # only positive (PPV) or negative (NPV) decisions count, which are its denominator
            label, units = measure_of(measured.measure).decided, units_of(rows.patients, len(rows))
            for at, cell in enumerate(cells):
                if cell.label is None:
                    decided_so = (rows.attribute.codes == cell.code) & ((decisions >= 0.5) == bool(label))
                    cells[at] = replace(cell, count=len(np.unique(units[decided_so])), decided="positive" if label else "negative")
        if small := [cell for cell in cells if cell.count < FEW_ROWS]:
            sums, measure_labels = moments_of_scores(rows, decisions), {RATES[rate] for rate in _measured(measured)}
            gap_errors = np.sqrt(sums.gap(measure_of(measured.measure).coefficients).variance)
            entries = []
            for cell in small:  # each with the standard error of the gap or kept rate that depends on it
                about: dict[str, object] = {"group": cell.group, "count": cell.count, "counted": cell.counted}
                if cell.label in measure_labels:  # every gap depends on the reference
                    error = gap_errors[cell.code - 1] if cell.code else gap_errors.max()
                    about |= {"of": measured.measure, "error": float(error), "each": not cell.code}
                else:
                    variance = sums.signed({estimated_rate(cell.rate): 1.0}).variance
                    about |= {"of": cell.rate, "error": float(np.sqrt(variance[cell.code])), "each": False}
                entries.append(about)
            numbers = {"cells": tuple(entries), "advice": advise_merging(rows, cells, measured.measure)}
            notes.append(Note("small_cells", measured.measure, numbers))
    return replace(candidate, notes=tuple(notes))


def advice(cohort: Rows, goal: Goal) -> list[str]:
    """The empty or too small cells of these rows, and the groups to merge; empty if there are none."""
    cohort = cohort.comparing(goal.groups)
    for rates in ((*_measured(goal), *goal.keep), ("tpr", "fpr")):  # a method may need more labels than the measure, as equalised odds does
        cells = cells_of(cohort, rates)
        if counts := [f"{cell.group!r} has {cell.counted}" for cell in cells if cell.count < FEW_ROWS]:
            more = f" and {len(counts) - CELLS_LISTED} more cells are as small" if len(counts) > CELLS_LISTED else ""
            return [f"too few in {cohort.name}: {', '.join(counts[:CELLS_LISTED])}{more}. {advise_merging(cohort, cells)}"]
    return []


def check_cells(sets: Mapping[str, Rows], goals: Mapping[str, Goal], label: str = "") -> None:
    """Raises `TooFewPatients` with a table of counts if a cell that a goal needs has fewer than `MIN_PATIENTS` patients.

    `sets` are the repair set and the test set by name. With several labels, there is one goal per label. `label` is the name of a label
    whose sets are separate from those of the others.

    - `goals`: by label.
    """
    problems: list[str] = []
    by_label = {key: cohort.by_label for key, cohort in sets.items()}
    for name, goal in goals.items():
        parts, called, rates = (
            {key: own[name].comparing(goal.groups) for key, own in by_label.items()},
            name or label,
            (*_measured(goal), *goal.keep),
        )
        cells = {key: {(cell.group, cell.label): cell for cell in cells_of(rows, rates)} for key, rows in parts.items()}
        every = dict.fromkeys(cell for own in cells.values() for cell in own)
        counts = {cell: {key: own[cell].count if cell in own else 0 for key, own in cells.items()} for cell in every}
        short = {cell: by_set for cell, by_set in counts.items() if min(by_set.values()) < MIN_PATIENTS}
        if not short:
            continue
        words = {None: "", 0: " negatives", 1: " positives"}
        shown = list(short.items())[:CELLS_LISTED]
        lines = [f"  {group!r}{words[y]}: {', '.join(f'{n:,} in {key}' for key, n in by_set.items())}" for (group, y), by_set in shown]
        lines += [f"  and {len(short) - CELLS_LISTED} more cells"] if len(short) > CELLS_LISTED else []
        worst = min(parts, key=lambda key: min(cell.count for cell in cells[key].values()))
        todo, unit = advise_merging(parts[worst], list(cells[worst].values()), goal.measure), next(iter(cells[worst].values())).unit
        who = f"{called}: {goal.measure}" if called else goal.measure
        head = f"{who} needs at least {MIN_PATIENTS} {unit} in every cell of group and label that it compares"
        force = "--set repair.force=true (in Python force=True) goes on; the outcome can then only be unclear or harm."
        leave = f"Leave {called!r} out by naming only the other labels, or: " if called else ""
        problems.append("\n".join([f"{head}; too few are:", *lines, f"  {todo}", f"  {leave}{force}"]))
    if problems:
        raise TooFewPatients(*problems)


def cells_of(cohort: Rows, rates: Sequence[str]) -> list[CellCount]:
    """Every cell that these rates need, with its size."""
    attribute, units, unit = cohort.attribute, units_of(cohort.patients, len(cohort)), "rows" if cohort.patients is None else "patients"
    cells: dict[tuple[int, int | None], CellCount] = {}
    for rate in rates:
        label = RATES[rate]
        rows = np.ones(len(cohort), bool) if label is None else cohort.y == label
        for code, group in enumerate(attribute.levels):
            count = len(np.unique(units[rows & (attribute.codes == code)]))
            cells.setdefault((code, label), CellCount(code, group, label, count, rate, unit))
    return list(cells.values())


def advise_merging(cohort: Rows, cells: Sequence[CellCount], measure: str | None = None) -> str:
    """Advice in words: the groups to merge so that none of these cells is too small, and alternatives."""
    attribute = cohort.attribute
    by_group = [[cell for cell in cells if cell.code == code] for code in range(len(attribute.levels))]
    least = [min(own, key=lambda cell: cell.count) for own in by_group]
    named = [f"{cell.group!r} ({cell.counted})" for cell in least]
    rows = [int((attribute.codes == code).sum()) for code in range(len(by_group))]
    by_size = sorted(range(1, len(by_group)), key=lambda code: least[code].count)
    pool = [code for code in by_size if least[code].count < FEW_ROWS]
    large, todo = by_size[len(pool) :], []
    if least[0].count < FEW_ROWS:
        instead = f"take a larger one, such as {named[large[-1]]}" if large else "use more rows, for no group is larger"
        todo.append(f"every gap is measured from the reference {attribute.reference!r}: {instead}")

    def enough() -> bool:
        """Whether the groups of the pool together have enough patients in every cell."""
        return all(sum(cell.count for cell in merged) >= FEW_ROWS for merged in zip(*(by_group[code] for code in pool), strict=True))

    together = sum(rows[code] for code in pool)
    while pool and large and (len(pool) == 1 or not enough()) and rows[large[0]] <= UNEQUAL_SIZES * together:
        pool.append(large.pop(0))  # the smallest of the large groups; with a much larger one, it would be that one by another name
    names = [named[code] for code in pool]
    if len(pool) > 1 and (enough() or not large):
        last = names.pop() if len(names) <= CELLS_LISTED else f"{len(names) - CELLS_LISTED} more"
        short = "" if enough() else ", and use more rows, for together they are too few as well"
        todo.append(f"merge {', '.join(names[:CELLS_LISTED])} and {last} into 'other' with data.merge{short}")
    elif pool:
        listed = ", ".join(names[:CELLS_LISTED]) + (f" and {len(names) - CELLS_LISTED} more" if len(names) > CELLS_LISTED else "")
        todo.append(
            f"use more rows of {listed}, or leave these out by emptying their {attribute.name!r}; no group is small enough to merge with"
        )
    choices = ["; ".join(todo)]
    if measure is not None and measure_of(measure).labels:
        choices.append("measure spd, which needs no label")
    if len(cohort.attributes) > 1:
        choices.append(f"take the attributes one at a time ({', '.join(a.name for a in cohort.attributes)})")
    text = ", or ".join(choices)
    return f"{text[:1].upper()}{text[1:]}."


def _measured(goal: Goal) -> tuple[str, ...]:
    """The rates of the measure; a quotient needs rows, like a selection rate."""
    return ("selection",) if measure_of(goal.measure).is_quotient else tuple(measure_of(goal.measure).rates)
