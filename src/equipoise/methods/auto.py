"""The best method for a goal, without naming one: cheap methods first, then costly ones, as far as the time goes.

Each method is tried on the same rows with the same goal and selection. With cross-fitted selection, the default, what they found is
compared by decisions on rows that no fit has seen (`best_of`): of those whose performance holds, the smallest upper limit of |gap|, by two
estimates of it. Those within half a standard error of the best are equally good; of these the cheap one is taken, and with fewer than 2,000
rows fine-tuning before probes, which have more to fit. A randomised rule, or one that needs each patient's group, must be better by two
standard errors. With selection="paper" in-sample values decide.

Costly methods are left out once there is nothing left that they could improve: a rule that needs no group, whose |gap| is within half a
standard error of zero, or within 0.01, and within half of the maximum gap. With a budget, a method whose own cost model promises to take
longer than what is left is not begun, and fine-tuning ends with the steps that it has made when its share of the time is up. What was
tried, what came of it, what was not tried and why is in the candidate's notes.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isnan
from typing import Any

import numpy as np
from torch import nn

from equipoise.data import Cohort, Rows, Scores
from equipoise.errors import BadInput, EquipoiseError, first_line, pick
from equipoise.methods.candidate import Candidate, Progress
from equipoise.methods.contract import ALL_AT_ONCE, METHODS, PROBED_ROWS, STANDARD, Kind, Method, Task, Work, method, settings_of, work_of
from equipoise.methods.cost import Speed
from equipoise.methods.cross_fitted_choice import NOISE, SURE
from equipoise.methods.debiasing import run_many
from equipoise.methods.evidence import Evidence
from equipoise.methods.goal import Goal, Note
from equipoise.methods.remarks import kept_or_not
from equipoise.models import ChosenOutputs, predict

NAME = "auto"
SAME = 0.5  # standard errors of a gap: what two methods differ by less than that is small next to what the patients leave open
CLEARLY = 2.0  # standard errors of a gap by which a rule must be better that is randomised, or needs each patient's group
ZERO = 0.01  # a gap that counts as none
ENOUGH = 0.2  # of the most that fine-tuning may take: with less time it is not begun


@dataclass(frozen=True)
class Settings:
    """Whether the rule may need each patient's group, which methods to try, and the settings of some of them."""

    allow_group: bool = True
    methods: tuple[str, ...] | None = None  # in this order, in place of our own list
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in (*(self.methods or ()), *self.settings):
            pick("method for auto", name, [*_known()])

    def order(self, rows: Rows | None = None) -> list[str]:
        """The methods to try on these rows, the cheap ones first: of scores alone, those that need no network."""
        known, alone = _known(), isinstance(rows, Scores)
        places = {name: own.in_auto_scores if alone else own.in_auto for name, own in known.items()}
        ours = sorted((place, name) for name, place in places.items() if place is not None)
        if isinstance(rows, Scores) and rows.features is None:
            ours = [(place, name) for place, name in ours if known[name].kind != Kind.PROBES]  # which have nothing to read
        wanted = self.methods if self.methods is not None else [name for _, name in ours]
        refused = [name for name in wanted if known[name].needs_group and not self.allow_group]
        if self.methods is not None and refused:
            raise BadInput(f"{', '.join(refused)} would need each patient's group: set allow_group=True, or leave it out of the methods")
        return list(dict.fromkeys([STANDARD, *(name for name in wanted if name not in refused)]))


def _known() -> Mapping[str, Method]:
    return {name: method for name, method in METHODS.items() if not method.runs_others and not method.needs_train}


def cost(task: Task, settings: Settings) -> Work:
    """The work of all methods that may be tried, without a budget; auto stops as soon as nothing is left to improve."""
    works, names = [], []
    for name in settings.order(task.repair):
        try:
            works.append(work_of(name, task, settings_of(name, settings.settings.get(name, {}))))
        except EquipoiseError:
            continue  # one that cannot be run on this network: auto passes over it too
        names.append(name)
    what = f"{', '.join(names)}, one after the other until nothing is left to improve"
    if any(work.rows is None for work in works):
        return Work(None, 0, what)
    rows = sum(work.rows + len(task.repair) for work in works if work.rows is not None)  # and one pass each for its standard error
    return Work(rows, sum(work.evaluations for work in works), what, sum(work.seconds for work in works))


@method(
    NAME,
    settings=Settings,
    title="cheap methods first, then costly ones, until nothing is left to improve or the time is up",
    kind=Kind.OTHERS,
    takes_train=True,
    labels=ALL_AT_ONCE,
    classes=True,
    cost=cost,
)
def run(
    models: Sequence[nn.Module | None],
    cohorts: Sequence[Rows],
    goal: Goal,
    *,
    seeds: Sequence[int],
    settings: Settings,
    progress: Progress | None = None,
    trains: Sequence[Cohort] | None = None,
    deadline: float | None = None,
) -> list[Candidate]:
    """The best of several methods for each network, with what was tried in the notes."""
    order = [name for name in settings.order(cohorts[0]) if _able(name, cohorts[0]) and _tunable(name, models[0])]
    speed: Speed | None = None
    tried: list[list[Candidate]] = [[] for _ in models]
    remarks: list[list[Note]] = [[] for _ in models]
    going = list(range(len(models)))
    for at, name in enumerate(order):
        if not going:
            break
        if deadline is not None and name != STANDARD:
            # measured once the original has been tried, which says what is wrong with the rows, and what to do
            speed = speed or _speed(models[0], cohorts[0], goal, trains)
            if late := _too_late(name, speed, settings, deadline, len(going)):
                _note(remarks, going, late)
                continue
        try:
            found = run_many(
                name,
                [models[k] for k in going],
                [cohorts[k] for k in going],
                goal,
                seeds=[seeds[k] for k in going],
                trains=None if trains is None else [trains[k] for k in going],
                settings=settings.settings.get(name),
                budget=None if deadline is None else max(0.001, _share(order[at:]) * (deadline - time.monotonic())),
                refuse_constant=True,
            )
        except EquipoiseError as error:
            if name == STANDARD:  # no method can be run on these rows or this network
                raise
            _note(remarks, going, Note("could_not_run", name, {"problem": _problems(error)}))
            continue
        for k, candidate in zip(going, found, strict=True):
            tried[k].append(candidate)
        if left_out := tuple(order[at + 1 :]):
            done = [k for k, own in zip(going, found, strict=True) if all(_with_room(*each) for each in _each(own, cohorts[k]))]
            _note(remarks, done, Note("not_tried", name, {"methods": left_out}))
            going = [k for k in going if k not in done]
        if progress:
            progress(at + 1, len(order))
    if progress:
        progress(len(order), len(order))
    return [_chosen(*each, settings) for each in zip(tried, remarks, models, cohorts, strict=True)]


def _speed(model: nn.Module | None, cohort: Rows, goal: Goal, trains: Sequence[Cohort] | None) -> Speed:
    """How fast this machine is, measured on a few rows of the first label."""
    train = None if trains is None else trains[0]
    if cohort.targets is None:
        return Speed.measured(model, cohort, goal, train)
    assert isinstance(model, ChosenOutputs)  # several labels are outputs of one network
    first = cohort.labels[0]
    one = replace(goal.each[0], selection=goal.selection)
    return Speed.measured(model.view(0), cohort.labelled(first), one, None if train is None else train.labelled(first), len(cohort.labels))


def _note(remarks: Sequence[list[Note]], networks: Iterable[int], note: Note) -> None:
    for k in networks:
        remarks[k].append(note)


def _too_late(name: str, speed: Speed, settings: Settings, deadline: float, networks: int) -> Note | None:
    """The note on a method that would take longer than what is left for each of so many networks; None where it can be begun.

    One that makes steps ends when its time is up, so that a fifth of its work is enough to begin with.
    """
    left = deadline - time.monotonic()
    try:
        seconds = speed.seconds(speed.work(name, settings.settings.get(name, {})))
    except EquipoiseError:
        return None  # it will be refused, with the reason
    least = ENOUGH if METHODS[name].kind == Kind.STEPS else 1.0
    if left > 0 and (seconds is None or least * seconds <= left / networks):
        return None
    return Note("no_time", name, {"seconds": seconds or 0.0, "left": max(0.0, left)})


def _share(names: Sequence[str]) -> float:
    """The share of the time that is left for the first of these methods: fine-tuning leaves as much for each that makes steps after it."""
    steps = sum(METHODS[name].kind == Kind.STEPS for name in names)
    return 1 / steps if METHODS[names[0]].kind == Kind.STEPS else 1.0


def _able(name: str, cohort: Rows) -> bool:
    """Whether a method can repair what this cohort has: one label, several, or classes; with sample weights or without."""
    own = METHODS[name]
    if cohort.weight is not None and not own.weights:
        return False
    return cohort.targets is None or (own.classes if cohort.kind == "classes" else bool(own.labels))


def _tunable(name: str, model: nn.Module | None) -> bool:
    """Whether there is something for a method to tune: a network without parameters, as from an ONNX file, gets rules and probes."""
    return METHODS[name].kind != Kind.STEPS or model is None or next(model.parameters(), None) is not None


def _each(candidate: Candidate, cohort: Rows) -> list[tuple[Candidate, Rows]]:
    """The candidate of every label with the rows of that label; of one label, itself."""
    parts: list[Rows] = [cohort.labelled(name) for name in candidate.labels] or [cohort]
    return list(zip(candidate.each, parts, strict=True))


def _problems(error: EquipoiseError) -> str:
    """All that was wrong, in one line."""
    return "; ".join(error.problems) if isinstance(error, BadInput) else first_line(error)


def _with_room(candidate: Candidate, cohort: Rows) -> bool:
    """Whether nothing is left to improve: |gap| is at most half the maximum gap and, by cross-fitted values, half its standard error.

    By cross-fitted values a repair must need no group, and both must hold; in-sample an original that meets the goal is enough.
    """
    row = candidate.trace.iloc[candidate.chosen]
    if candidate.held_out is not None:
        if candidate.chosen == 0 or candidate.rule.needs_group or candidate.rule.randomised or not _reaches(candidate):
            return False
        if _uncertain(candidate, cohort):
            return False
        size, error = _both(candidate, cohort)
        return bool(size <= max(SAME * error, ZERO) and (candidate.goal.max_gap is None or size <= candidate.goal.max_gap / 2))
    if not candidate.met_in_sample:
        return False
    size, error = abs(row["gap"]), _error(candidate, cohort)
    return bool(size <= (SURE * error if candidate.goal.max_gap is None else candidate.goal.max_gap / 2))


def _error(candidate: Candidate, cohort: Rows) -> float:
    """The standard error of the gap on the rows that the candidate was chosen on."""
    decisions = candidate.rule.decide(predict(candidate.model, cohort))
    return float(Evidence.of(decisions[None], cohort, candidate.goal).gap_se()[0])


def _reaches(candidate: Candidate) -> bool:
    """Whether the cross-fitted performance of what was chosen reaches its minimum."""
    row, least = candidate.trace.iloc[candidate.chosen], candidate.goal.min_performance
    return least is None or bool(row["performance_honest"] >= least - NOISE)


def best_of(found: Sequence[Sequence[Candidate]], parts: Sequence[Rows]) -> int:
    """The position of the best of several candidates by their cross-fitted values. Each has one entry per label, as have the rows.

    Of those whose performance holds, the smallest upper limit of the largest |gap|, of which there are two estimates (`_both`). Those
    within half a standard error of it count as equally good, and the first of the list is taken; with few rows, probes come last. A
    randomised rule, or one that needs each patient's group, is taken only where it is better than the best of the others by two
    standard errors. The original is taken only where no other candidate changes anything.
    """
    sizes = [[_both(own, part) for own, part in zip(each, parts, strict=True)] for each in found]
    upper = np.array([max(size + SURE * error for size, error in each) for each in sizes])
    error = np.array([max(each, key=lambda own: own[0] + SURE * own[1])[1] for each in sizes])
    lost = np.array([min(float(own.trace["performance_honest"].iloc[own.chosen]) for own in each) for each in found])
    holds = np.array([all(_reaches(own) for own in each) for each in found])
    changed = np.array([any(own.chosen for own in each) for each in found])
    if not holds.any():
        return int(lost.argmax())
    pool = holds & changed if (holds & changed).any() else holds
    needs = [(any(own.rule.randomised for own in each), any(own.rule.needs_group for own in each)) for each in found]
    taken: int | None = None
    for tier in sorted(set(needs)):
        here = [k for k in np.flatnonzero(pool).tolist() if needs[k] == tier]
        if not here:
            continue
        best = min(here, key=lambda k: upper[k])
        level = [k for k in here if upper[k] - upper[best] <= SAME * error[best] + NOISE]
        first = min(level, key=lambda k: (any(_uncertain(own, part) for own, part in zip(found[k], parts, strict=True)), k))
        if taken is None or upper[taken] - upper[first] > CLEARLY * error[first] + NOISE:
            taken = first
    assert taken is not None  # the pool is not empty
    return taken


def _both(candidate: Candidate, rows: Rows) -> tuple[float, float]:
    """|gap| by both of its estimates, the root of the mean of their squares, and its standard error.

    One is the corrected value of the fit to all rows, the other that of decisions not fitted to their rows. Where a method adapts to the
    patients it was fitted to, the first is too good, and the second, of fits to fewer rows, too bad and less sure. One that has both small
    is to be preferred to one whose estimates disagree.
    """
    row, held = candidate.trace.iloc[candidate.chosen], candidate.held_out
    assert held is not None  # the caller compares cross-fitted candidates
    apart = float(Evidence.of(held.after[None], rows, candidate.goal).gap[0])
    size = float(np.sqrt((row["gap_honest"] ** 2 + apart**2) / 2))
    return float("inf") if isnan(size) else size, float(row["gap_se"])  # a quotient without a value is not a small one


def _uncertain(candidate: Candidate, rows: Rows) -> bool:
    """Whether a method has more to fit than these rows can tell: the probes of many features, of few rows. Fine-tuning follows one path."""
    return METHODS[candidate.method].kind == Kind.PROBES and len(rows) < PROBED_ROWS


def _merit(candidate: Candidate, model: nn.Module | None, cohort: Rows) -> tuple[float, float, float]:
    """Sorts the best in-sample first: goals met, or rates kept and performances reached; then what the goal asks for, then the rest.

    With several labels the worst place, the largest |gap| and the mean performance count.
    """
    places, sizes, performances, first = [], [], [], []
    for at, (own, part) in enumerate(_each(candidate, cohort)):
        row, goal = own.trace.iloc[own.chosen], own.goal
        size, performance = abs(row["gap"]), row["performance"]
        keeps = (
            own.met_in_sample
            or not goal.keep
            or kept_or_not(own, model.view(at) if isinstance(model, ChosenOutputs) else model, part) is own
        )
        enough = own.met_in_sample or goal.min_performance is None or row["performance"] >= goal.min_performance
        places.append(0.0 if own.met_in_sample else 1.0 + (not enough) + 2.0 * (not keeps))  # as for steps: rates that are kept come first
        sizes.append(float("inf") if isnan(size) else float(size))  # a quotient without a value is not a small one
        performances.append(float(performance))
        first.append((goal.min_performance is None and own.met_in_sample) or not enough)
    place, size, performance = max(places), max(sizes), sum(performances) / len(performances)
    return (place, -performance, size) if all(first) else (place, size, -performance)


def _chosen(tried: Sequence[Candidate], remarks: Sequence[Note], model: nn.Module | None, cohort: Rows, settings: Settings) -> Candidate:
    if all(own.held_out is not None for candidate in tried for own in candidate.each):
        parts = [part for _, part in _each(tried[0], cohort)]
        best = tried[best_of([candidate.each for candidate in tried], parts)]
    else:
        best = min(tried, key=lambda candidate: _merit(candidate, model, cohort))
    notes = [
        Note(
            "tried",
            candidate.method,
            {
                "taken": candidate is best,
                "changed": _changed(candidate),
                "met": candidate.met_in_sample,
                "best": best.method,
                **_numbers(candidate),
            },
        )
        for candidate in tried
    ]
    reached = {} if best.met_in_sample else {candidate.method: _numbers(candidate) for candidate in tried}
    changed = any(map(_changed, tried))
    head = Note("best_of_methods", best.method, {"tried": len(tried), "changed": changed, "met": best.met_in_sample, "reached": reached})
    told = {"allow_group": settings.allow_group, "methods": settings.order(cohort), **best.settings}
    labels = {
        name: replace(own, method=NAME, ran_as=best.method, settings=told, notes=(*own.notes, *notes, *remarks))
        for name, own in best.labels.items()
    }
    heard = (*best.notes, *notes, *remarks)
    return replace(best, method=NAME, ran_as=best.method, settings=told, why=(head, *best.why), notes=heard, labels=labels)


def _changed(candidate: Candidate) -> bool:
    """Whether any label has a step other than the original."""
    return any(own.chosen > 0 for own in candidate.each)


def _numbers(candidate: Candidate) -> dict[str, object]:
    """What a method reached on the rows that its candidate was chosen on."""
    row, goal = candidate.trace.iloc[candidate.chosen], candidate.goal
    first = candidate.trace.iloc[0]
    return {
        "measure": goal.measure,
        "gap_before": float(first["gap"]),
        "gap": float(row["gap"]),
        "of": goal.performance,
        "performance_before": float(first["performance"]),
        "performance": float(row["performance"]),
    }
