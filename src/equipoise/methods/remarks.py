"""What to know of the rows that a method was given, whichever method it is: cells too small for their gap, and rows without a group.

A gap of a group with three positives is computed like any other and is mostly noise, and a method that makes it small has tuned on that
noise. So every candidate's notes name such cells, with the standard error of the gap and what to merge; where a cell is empty there is no
gap, and the same advice stands in the error. Rows without a group count for performance and never for a gap, which is said as well.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from torch import nn

from equipoise.data import FEW, MISSING, Rows
from equipoise.errors import TooFewPatients
from equipoise.measures import (
    QUOTIENTS,
    RATES,
    Cells,
    FloatArray,
    at_threshold,
    is_quotient,
    labels_needed,
    linearised,
    tabulate,
    terms,
    units_of,
)
from equipoise.methods.candidate import Candidate
from equipoise.methods.cross_fitted_choice import SURE
from equipoise.methods.evidence import Evidence
from equipoise.methods.goal import NOISE, Goal, Note, kept_rates, limits_of
from equipoise.methods.selection import too_low
from equipoise.models import predict

SHOWN = 6  # cells, before the rest is only counted
MIN_PATIENTS = 5  # in a cell, without which there is no repair unless it is forced


@dataclass(frozen=True)
class Cell:
    """How many patients, or rows where there are no patient ids, a group has of a label. `rate` is what rests on them."""

    code: int
    group: str
    label: int | None  # None: whatever the label
    count: int
    rate: str
    unit: str  # rows or patients
    decided: str = ""  # positive or negative: only those decided so are counted, on whom a PPV or NPV rests

    @property
    def counted(self) -> str:
        """The count in words: '3 positives', '1 patient with negatives', '4 rows', '4 rows decided positive'."""
        ending = "" if self.count == 1 else "s"
        if self.label is None:
            return f"{self.count:,} {self.unit.removesuffix('s')}{ending}{f' decided {self.decided}' if self.decided else ''}"
        what = "positive" if self.label else "negative"
        return f"{self.count:,} {what}{ending}" if self.unit == "rows" else f"{self.count:,} patient{ending} with {what}s"


def remarked(candidate: Candidate, cohort: Rows, goal: Goal, without_group: str = "") -> Candidate:
    """The candidate with notes on the rows it was chosen on and, where the goal is not met, with how near its steps came to it.

    `goal` is the goal as it was given; `without_group` says by what the candidate's rule decides a row that has no group.
    """
    notes = [*_missing_note(candidate, cohort, without_group), *_small_note(candidate, cohort)]
    near = None if candidate.met_in_sample else nearness(candidate, goal)
    return replace(candidate, why=(*candidate.why, *(() if near is None else (near,))), notes=(*candidate.notes, *notes))


def advice(cohorts: Iterable[Rows], goal: Goal) -> list[str]:
    """Which cells are empty or too small and what to merge, for the first of these cohorts that has any; nothing if none has."""
    for cohort in cohorts:
        for rates in (_rates(goal), ("tpr", "fpr")):  # a method may ask for more labels than the measure does, as equalised odds does
            cells = cells_of(cohort, rates)
            small = [cell for cell in cells if cell.count < FEW]
            if small:
                return [f"too few in {cohort.name}: {_listed(small)}. {merging(cohort, cells)}"]
    return []


def check_cells(sets: Mapping[str, Rows], goals: Sequence[Goal], label: str = "") -> None:
    """Raises TooFewPatients with a table of counts where a cell that a goal needs has fewer patients than any claim would need.

    `sets` are the repair set and the test set by name; of several labels there is one goal each. `label` is the name of one of several
    that have sets of their own.
    """
    problems: list[str] = []
    first = next(iter(sets.values()))
    for at, goal in enumerate(goals):
        name = first.labels[at] if first.targets is not None else ""
        parts = {key: cohort.labelled(name) if name else cohort for key, cohort in sets.items()}
        problems += _too_few(parts, goal, name or label)
    if problems:
        raise TooFewPatients(*problems)


def _too_few(parts: Mapping[str, Rows], goal: Goal, label: str) -> list[str]:
    """The problem of one label: the counts of every cell that is too small in some set, in all sets, and what to do."""
    counts: dict[tuple[str, int | None], dict[str, int]] = {}
    unit = "rows"
    for key, cohort in parts.items():
        for cell in cells_of(cohort, _rates(goal)):
            counts.setdefault((cell.group, cell.label), {})[key] = cell.count
            unit = cell.unit
    short = {cell: own for cell, own in counts.items() if any(own.get(key, 0) < MIN_PATIENTS for key in parts)}
    if not short:
        return []
    words = {None: "", 0: " negatives", 1: " positives"}
    lines = [
        f"  {group!r}{words[y]}: {', '.join(f'{own.get(key, 0):,} in {key}' for key in parts)}"
        for (group, y), own in list(short.items())[:SHOWN]
    ]
    lines += [f"  and {len(short) - SHOWN} more cells"] if len(short) > SHOWN else []
    worst = min(parts.values(), key=lambda cohort: min(cell.count for cell in cells_of(cohort, _rates(goal))))
    todo = merging(worst, cells_of(worst, _rates(goal)), goal.measure)
    who = f"{label}: {goal.measure}" if label else goal.measure
    head = f"{who} needs at least {MIN_PATIENTS} {unit} in every cell of group and label that it compares"
    force = "--force (force=True) goes on; the outcome can then only be unclear or harm."
    leave = f"Leave {label!r} out by naming only the other labels, or: " if label else ""
    return ["\n".join([f"{head}; too few are:", *lines, f"  {todo}", f"  {leave}{force}"])]


def cells_of(cohort: Rows, rates: Sequence[str]) -> list[Cell]:
    """Every cell that these rates need, with its size."""
    attribute, units = cohort.attribute, units_of(cohort.patients, len(cohort))
    unit = "rows" if cohort.patients is None else "patients"
    found: dict[tuple[int, int | None], Cell] = {}
    for rate in rates:
        label = RATES[rate]
        here = np.ones(len(cohort), bool) if label is None else cohort.y == label
        for code, group in enumerate(attribute.levels):
            count = len(np.unique(units[here & (attribute.codes == code)]))
            found.setdefault((code, label), Cell(code, group, label, count, rate, unit))
    return list(found.values())


def merging(cohort: Rows, cells: Sequence[Cell], measure: str | None = None) -> str:
    """Which groups to merge so that none of these cells is too small, in words, and what else could be done."""
    attribute = cohort.attribute
    of = [[cell for cell in cells if cell.code == code] for code in range(len(attribute.levels))]
    by_size = sorted(range(1, len(of)), key=lambda code: _least(of[code]).count)
    pool = [code for code in by_size if _least(of[code]).count < FEW]
    large = by_size[len(pool) :]
    todo = []
    if _least(of[0]).count < FEW:
        instead = f"take a larger one, such as {_named(of[large[-1]])}" if large else "use more rows, for no group is larger"
        todo.append(f"every gap is measured from the reference {attribute.reference!r}: {instead}")
    while pool and large and (len(pool) == 1 or not _enough(of, pool)):
        pool.append(large.pop(0))  # the smallest of those that could stand alone
    if len(pool) > 1:
        names = [_named(of[code]) for code in pool]
        last = names.pop() if len(names) <= SHOWN else f"{len(names) - SHOWN} more"
        short = "" if _enough(of, pool) else ", and use more rows, for together they are too few as well"
        todo.append(f"merge {', '.join(names[:SHOWN])} and {last} into 'other'{short}")
    elif pool:
        todo.append(f"use more rows of {attribute.levels[pool[0]]!r}; there is no group to merge it with")
    choices = ["; ".join(todo)]
    if measure is not None and labels_needed(measure):
        choices.append("measure spd, which needs no label")
    if len(cohort.attributes) > 1:
        choices.append(f"take the attributes one at a time ({', '.join(a.name for a in cohort.attributes)})")
    text = ", or ".join(choices)
    return f"{text[:1].upper()}{text[1:]}."


def _least(own: Sequence[Cell]) -> Cell:
    return min(own, key=lambda cell: cell.count)


def _named(own: Sequence[Cell]) -> str:
    return f"{own[0].group!r} ({_least(own).counted})"


def _enough(of: Sequence[Sequence[Cell]], pool: Sequence[int]) -> bool:
    """Whether these groups together have enough in every cell."""
    return all(sum(cell.count for cell in same) >= FEW for same in zip(*(of[code] for code in pool), strict=True))


def _listed(cells: Sequence[Cell]) -> str:
    told = [f"{cell.group!r} has {cell.counted}" for cell in cells]
    return ", ".join(told[:SHOWN]) + (f" and {len(told) - SHOWN} more cells are as small" if len(told) > SHOWN else "")


def _rates(goal: Goal) -> tuple[str, ...]:
    return (*_measured(goal), *goal.keep)


def _measured(goal: Goal) -> tuple[str, ...]:
    """The rates of the measure; a quotient needs rows, like a selection rate."""
    return ("selection",) if is_quotient(goal.measure) else tuple(terms(goal.measure))


def _missing_note(candidate: Candidate, cohort: Rows, without_group: str) -> list[Note]:
    attribute, goal = cohort.attribute, candidate.goal
    missing = int((attribute.codes == MISSING).sum())
    if not missing:
        return []
    decided = without_group if candidate.rule.needs_group else ""
    counts = {"missing": missing, "rows": len(cohort), "counts_for": goal.performance, "not_for": goal.measure, "decided_by": decided}
    return [Note("missing_group", attribute.name, counts)]


def _small_note(candidate: Candidate, cohort: Rows) -> list[Note]:
    cells = cells_of(cohort, _rates(candidate.goal))
    if min(cell.count for cell in cells) >= FEW and not is_quotient(candidate.goal.measure):
        return []  # without running the network over all rows
    decisions = candidate.rule.decide(predict(candidate.model, cohort))
    cells = [_decided_so(cell, decisions, cohort, candidate.goal.measure) for cell in cells]
    small = [cell for cell in cells if cell.count < FEW]
    if not small:
        return []
    told = {"cells": tuple(_errors(candidate.goal, decisions, cohort, small)), "advice": merging(cohort, cells, candidate.goal.measure)}
    return [Note("small_cells", candidate.goal.measure, told)]


def _decided_so(cell: Cell, decisions: FloatArray, cohort: Rows, measure: str) -> Cell:
    """The cell; for a quotient, with only those who are decided so, since the others do not count for it."""
    if not is_quotient(measure) or cell.label is not None:
        return cell
    label = QUOTIENTS[measure]
    here = (cohort.attribute.codes == cell.code) & ((decisions >= 0.5) == bool(label))
    count = len(np.unique(units_of(cohort.patients, len(cohort))[here]))
    return replace(cell, count=count, decided="positive" if label else "negative")


def _errors(goal: Goal, decisions: FloatArray, cohort: Rows, small: Sequence[Cell]) -> list[dict[str, object]]:
    """Each of these cells with the standard error of what rests on it; on those of the reference every gap does."""
    attribute = cohort.attribute
    evidence = Evidence.of(decisions[None], cohort, goal)
    of_measure = {RATES[rate] for rate in _measured(goal)}
    told: list[dict[str, object]] = []
    for cell in small:
        counted = {"group": cell.group, "count": cell.count, "counted": cell.counted}
        if cell.label not in of_measure:  # a rate that is kept
            told.append({**counted, "of": cell.rate, "error": float(evidence.rate_se(cell.rate)[0, cell.code]), "each": False})
            continue
        codes = [cell.code] if cell.code else range(1, len(attribute.levels))
        told.append({**counted, "of": goal.measure, "error": max(gap_error(evidence, code) for code in codes), "each": not cell.code})
    return told


def gap_error(evidence: Evidence, code: int) -> float:
    """The standard error of one group's gap: that of the patients who happened to be here, and of the coins of a randomised rule."""
    pair = np.where(evidence.codes == code, 1, np.where(evidence.codes == 0, 0, MISSING))
    sampled = replace(evidence, codes=pair, levels=(evidence.levels[0], evidence.levels[code])).gap_se()[0]
    f = evidence.f[0]
    cells = Cells(evidence.levels, evidence.cells.n[0], evidence.cells.s[0])
    weight = linearised(evidence.goal.measure, cells, code).weights(evidence.y, evidence.codes) * evidence.mass
    return float(np.hypot(sampled, np.sqrt((weight**2 * f * (1 - f)).sum())))


def kept_or_not(candidate: Candidate, model: nn.Module | None, cohort: Rows) -> Candidate:
    """The candidate of any method, with `met` False and the groups named where it does not keep the rates that its goal asks for."""
    keep, attribute = candidate.goal.keep, cohort.attribute
    original = predict(model, cohort)
    threshold = float(candidate.trace["threshold"].iloc[0])
    before = kept_rates(keep, tabulate(at_threshold(original.score, threshold), cohort.y, attribute, cohort.weight))
    after = kept_rates(keep, tabulate(candidate.rule.decide(predict(candidate.model, cohort)), cohort.y, attribute, cohort.weight))
    least = limits_of(keep, before)
    places = [(name, level) for name in keep for level in attribute.levels]
    broken = [
        too_low(name, now, limit, level) for (name, level), now, limit in zip(places, after, least, strict=True) if now < limit - NOISE
    ]
    return replace(candidate, met_in_sample=False, why=(*candidate.why, *broken)) if broken else candidate


@dataclass(frozen=True, eq=False)
class Demand:
    """One thing that a goal asks for: a performance, a maximum gap, or rates that are kept."""

    what: str
    short: FloatArray  # (steps,) by how much each step misses it, 0 where it does not
    reached: FloatArray  # (steps,) what each step has of it; of rates, by how much the scarcest one exceeds its limit


def nearness(candidate: Candidate, goal: Goal) -> Note | None:
    """How near the steps of a candidate came to a goal that the chosen one misses; None where it has all that the trace tells.

    For each demand of the goal: how many steps have it, and how near the nearest of these comes to the others. `goal` is the goal as it
    was given. With cross-fitted selection values are what the steps were chosen by: upper limits of |gap|, and estimates of performance.
    """
    honest = "gap_honest" in candidate.trace
    asked = goal if honest else candidate.goal  # with its minimum performance, where none was given; honest selection has none
    demands, chosen = _demands(candidate, asked, honest)
    have = np.stack([demand.short <= NOISE for demand in demands]) if demands else np.ones((1, 1), bool)  # (demands, steps)
    if not demands or have[:, chosen].all() or (len(demands) == 1 and have.any()):
        return None  # with one demand, the method had reasons of its own to leave those steps behind
    missed = np.sum([demand.short for demand in demands], axis=0)
    # For each demand the step that is nearest to it, and of equals the nearest to the rest.
    rows = dict.fromkeys(int(np.lexsort((missed, demand.short))[0]) for demand in demands)
    told = {
        "of": have.shape[1],
        "surely": honest,
        "have": {demand.what: int(count) for demand, count in zip(demands, have.sum(1), strict=True)},
        "apart": len(demands) > 1 and bool(have.any(1).all() and not have.all(0).any()),
        "nearest": [{demand.what: float(demand.reached[row]) for demand in demands} for row in rows],
    }
    limits = {name: getattr(asked, name) for name in ("measure", "performance", "min_performance", "max_gap", "keep")}
    return Note("nearest", "steps", {**told, **limits})


def _demands(candidate: Candidate, goal: Goal, honest: bool) -> tuple[list[Demand], int]:
    """What the goal asks for that the trace can tell, and where the chosen step stands."""
    trace = candidate.trace
    if honest:
        trace = trace[trace["gap_honest"].notna() | (np.arange(len(trace)) == candidate.chosen)]
        size = (trace["gap_honest"].abs() + SURE * trace["gap_se"]).to_numpy()
        performance = trace["performance_honest"].to_numpy()
    else:
        size, performance = trace["gap"].abs().to_numpy(), trace["performance"].to_numpy()  # NaN where a quotient has no value
    found = []
    if goal.min_performance is not None:
        found.append(Demand("performance", np.clip(goal.min_performance - performance, 0.0, None), performance))
    if goal.max_gap is not None:
        short = np.where(np.isnan(size), np.inf, np.clip(size - goal.max_gap, 0.0, None))
        found.append(Demand("gap", short, size))
    if goal.keep and "spare" in trace and not honest:  # otherwise the groups that fall short are named one by one
        spare = trace["spare"].to_numpy()
        found.append(Demand("rates", np.clip(-spare, 0.0, None), spare))
    return found, int(np.flatnonzero(trace.index == candidate.trace.index[candidate.chosen])[0])
