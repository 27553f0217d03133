"""The best method for a goal: cheap methods first, then costly ones, within the budget.

Each method is tried on the same rows with the same goal and selection. With cross-fitted selection, the default, candidates are compared by
decisions on rows that they were not fitted to (`best_of`): among those whose performance holds, the smallest upper limit of |gap| by two
estimates. Candidates within half a standard error of the best count as equally good; the cheapest of them is taken, and with fewer
than 2,000 rows fine-tuning is preferred to probes, which have more parameters. A randomised rule, or one that needs each patient's group,
must be better by two standard errors. With selection="paper", in-sample values decide.

Costly methods are not tried if nothing is left to improve: the candidate's rule needs no group, and its |gap| is within half a standard
error of zero, or within 0.01, and within half of the maximum gap. With a budget, a method is not started if its cost model predicts more
than the remaining time, and fine-tuning stops when its share of the time is up. The candidate's notes list the methods tried with their
results, and those not tried with the reason.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isnan
from typing import Any

import numpy as np
from torch import nn

from equipoise.data import Cohort, Rows, Scores
from equipoise.errors import BadInput, EquipoiseError, first_line, pick
from equipoise.methods.candidate import Candidate, Progress
from equipoise.methods.contract import ALL_AT_ONCE, METHODS, PROBED_ROWS, STANDARD, Kind, Method, Task, Work, make_settings, method
from equipoise.methods.cost import Speed, work_of
from equipoise.methods.cross_fitted_choice import SURE
from equipoise.methods.debiasing import run_method
from equipoise.methods.evidence import Evidence
from equipoise.methods.goal import Goal, Note
from equipoise.methods.kept_rates import NOISE
from equipoise.methods.outcome import performance_limit
from equipoise.methods.remarks import kept_or_not
from equipoise.models import ChosenOutputs, first_decides, predict

NAME = "auto"
SAME = 0.5  # candidates whose gaps differ by fewer standard errors than this count as equally good
CLEARLY = 2.0  # standard errors by which a randomised rule, or one that needs each patient's group, must be better
ZERO = 0.01  # a gap that counts as zero
ENOUGH = 0.2  # fine-tuning is not started if less than this share of its full time is left


@dataclass(frozen=True)
class Settings:
    """Whether the rule may need each patient's group, which methods to try, and the settings of some of them."""

    allow_group: bool = True
    methods: tuple[str, ...] | None = None  # in this order, in place of the default list
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in (*(self.methods or ()), *self.settings):
            pick("method for auto", name, [*_usable()])

    def order(self, rows: Rows | None = None) -> list[str]:
        """The methods to try on these rows, the cheap ones first; for scores, those that need no network."""
        usable, on_scores = _usable(), isinstance(rows, Scores)
        if self.methods is not None:
            names = [*self.methods]
        else:
            places = {name: method.in_auto_scores if on_scores else method.in_auto for name, method in usable.items()}
            names = [name for _, name in sorted((place, name) for name, place in places.items() if place is not None)]
            if isinstance(rows, Scores) and rows.features is None:
                names = [name for name in names if usable[name].kind != Kind.PROBES]  # probes need features
        refused = [name for name in names if usable[name].needs_group and not self.allow_group]
        if self.methods is not None and refused:
            raise BadInput(f"{', '.join(refused)} would need each patient's group: set allow_group=True, or leave it out of the methods")
        return list(dict.fromkeys([STANDARD, *(name for name in names if name not in refused)]))


def _usable() -> Mapping[str, Method]:
    """The methods that auto can run."""
    return {name: method for name, method in METHODS.items() if not method.runs_others and not method.needs_train}


def cost(task: Task, settings: Settings) -> Work:
    """The work of all methods that may be tried, without a budget; auto stops when nothing is left to improve."""
    works, names = [], []
    for name in settings.order(task.repair):
        try:
            works.append(work_of(name, task, make_settings(name, settings.settings.get(name, {}))))
        except EquipoiseError:
            continue  # it cannot be run on this network, and auto skips it too
        names.append(name)
    what = f"{', '.join(names)}, one after the other until nothing is left to improve"
    if any(work.rows is None for work in works):
        return Work(None, 0, what)
    rows = sum(work.rows + len(task.repair) for work in works if work.rows is not None)  # plus one pass each for the standard error
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
    model: nn.Module | None,
    cohort: Rows,
    goal: Goal,
    *,
    seed: int,
    settings: Settings,
    progress: Progress | None = None,
    train: Cohort | None = None,
    deadline: float | None = None,
) -> Candidate:
    """The best of several methods, with what was tried in the notes."""
    order = [name for name in settings.order(cohort) if _applicable(name, model, cohort)]
    speed: Speed | None = None
    tried: list[Candidate] = []
    remarks: list[Note] = []
    for at, name in enumerate(order):
        if deadline is not None and name != STANDARD:
            # measured after the original has been tried, which raises a helpful error if the rows are unsuitable
            speed = speed or _speed(model, cohort, goal, train)
            if late := _too_late(name, speed, settings, deadline):
                remarks.append(late)
                continue
        try:
            candidate = run_method(
                name,
                model,
                cohort,
                goal,
                seed=seed,
                train=train,
                settings=settings.settings.get(name),
                budget=None if deadline is None else max(0.001, _share(order[at:]) * (deadline - time.monotonic())),
                refuse_constant=True,
            )
        except EquipoiseError as error:
            if name == STANDARD:  # no method can be run on these rows or this network
                raise
            problem = "; ".join(error.problems) if isinstance(error, BadInput) else first_line(error)
            remarks.append(Note("could_not_run", name, {"problem": problem}))
            continue
        tried.append(candidate)
        if progress:
            progress(at + 1, len(order))
        if (left_out := tuple(order[at + 1 :])) and all(_good_enough(*each) for each in _each(candidate, cohort)):
            remarks.append(Note("not_tried", name, {"methods": left_out}))
            break
    if progress:
        progress(len(order), len(order))
    return _chosen(tried, remarks, model, cohort, settings)


def _speed(model: nn.Module | None, cohort: Rows, goal: Goal, train: Cohort | None) -> Speed:
    """The speed of this machine, measured on a few rows of the first label."""
    if cohort.targets is None:
        return Speed.measured(model, cohort, goal, train)
    assert isinstance(model, ChosenOutputs)  # several labels are outputs of one network
    label = cohort.labels[0]
    label_goal = goal.each[0].changed(selection=goal.selection)
    label_train = None if train is None else train.labelled(label)
    return Speed.measured(model.view(0), cohort.labelled(label), label_goal, label_train, len(cohort.labels))


def _too_late(name: str, speed: Speed, settings: Settings, deadline: float) -> Note | None:
    """The note on a method that would take longer than the time left; None if it can be started.

    A method with steps stops when its time is up, so it is started if there is time for a fifth of its work.
    """
    left = deadline - time.monotonic()
    try:
        seconds = speed.seconds(speed.work(name, settings.settings.get(name, {})))
    except EquipoiseError:
        return None  # running it will raise the error
    least = ENOUGH if METHODS[name].kind == Kind.STEPS else 1.0
    if first_decides(left > 0 and (seconds is None or least * seconds <= left)):
        return None
    return Note("no_time", name, {"seconds": seconds or 0.0, "left": max(0.0, left)})


def _share(names: Sequence[str]) -> float:
    """The share of the remaining time for the first of these methods: methods with steps share it equally, others may use all of it."""
    steps = sum(METHODS[name].kind == Kind.STEPS for name in names)
    return 1 / steps if METHODS[names[0]].kind == Kind.STEPS else 1.0


def _applicable(name: str, model: nn.Module | None, cohort: Rows) -> bool:
    """Whether a method can repair this network on this cohort: its labels or classes, its sample weights, its parameters."""
    method = METHODS[name]
    if cohort.weight is not None and not method.weights:
        return False
    if method.kind == Kind.STEPS and model is not None and next(model.parameters(), None) is None:
        return False  # a network without parameters, as from an ONNX file, has nothing to fine-tune
    return cohort.targets is None or (method.classes if cohort.kind == "classes" else bool(method.labels))


def _each(candidate: Candidate, cohort: Rows) -> list[tuple[Candidate, Rows]]:
    """The candidate of every label with the rows of that label; with one label, the candidate itself."""
    parts: list[Rows] = [cohort.labelled(name) for name in candidate.labels] or [cohort]
    return list(zip(candidate.each, parts, strict=True))


def _good_enough(candidate: Candidate, cohort: Rows) -> bool:
    """Whether nothing is left to improve, so that costlier methods need not be tried.

    With cross-fitted values: a repair that needs no group, whose |gap| is within half its standard error (or 0.01) and within half the
    maximum gap. In-sample: any candidate that meets its goal with |gap| within half the maximum gap (without one, a standard error).
    """
    goal = candidate.goal
    if candidate.held_out is not None:
        if candidate.chosen == 0 or candidate.rule.needs_group or candidate.rule.randomised or not _performance_holds(candidate):
            return False
        if _few_rows_for_probes(candidate, cohort):
            return False
        size, error = _size_and_error(candidate, cohort)
        return bool(size <= max(SAME * error, ZERO) and (goal.max_gap is None or size <= goal.max_gap / 2))
    if not candidate.met_in_sample:
        return False
    decisions = candidate.rule.decide(predict(candidate.model, cohort))
    error = float(Evidence.of(decisions[None], cohort, goal).gap_se()[0])
    size = abs(candidate.trace["gap"].iloc[candidate.chosen])
    return bool(size <= (SURE * error if goal.max_gap is None else goal.max_gap / 2))


def _performance_holds(candidate: Candidate) -> bool:
    """Whether the cross-fitted performance of the chosen step reaches its minimum, which is counted from that of the original."""
    values = candidate.trace["performance_honest"]
    least = performance_limit(candidate.goal, float(values.iloc[0]))
    return bool(values.iloc[candidate.chosen] >= least - NOISE)


def best_of(candidates: Sequence[Sequence[Candidate]], parts: Sequence[Rows]) -> int:
    """The index of the best of several candidates by their cross-fitted values. Each has one entry per label, like `parts`.

    Among those whose performance holds, the smallest upper limit of the largest |gap| (`_size_and_error`). Candidates within half a
    standard error of it count as equally good, and the first of the list is taken; with few rows, probes come last. A rule that needs each
    patient's group is taken only if it is better by two standard errors than the best of those that need none, and a randomised rule only
    if it is better by as much than the best of all others. The original is taken only if no other candidate changes anything.
    """
    sizes = [[_size_and_error(own, part) for own, part in zip(each, parts, strict=True)] for each in candidates]
    upper = np.array([max(size + SURE * error for size, error in each) for each in sizes])
    error = np.array([max(each, key=lambda label: label[0] + SURE * label[1])[1] for each in sizes])
    performance = np.array([min(float(own.trace["performance_honest"].iloc[own.chosen]) for own in each) for each in candidates])
    holds = np.array([all(_performance_holds(own) for own in each) for each in candidates])
    changed = np.array([any(own.chosen for own in each) for each in candidates])
    if not holds.any():
        return int(performance.argmax())
    pool = holds & changed if (holds & changed).any() else holds
    tiers = [(any(own.rule.randomised for own in each), any(own.rule.needs_group for own in each)) for each in candidates]
    taken, least = -1, float("inf")  # `least` is the smallest upper limit of all earlier tiers, whether it was taken or not
    for tier in sorted(set(tiers)):
        eligible = [k for k in np.flatnonzero(pool).tolist() if tiers[k] == tier]
        if not eligible:
            continue
        best = min(eligible, key=lambda k: upper[k])
        equal = [k for k in eligible if upper[k] - upper[best] <= SAME * error[best] + NOISE]
        first = min(equal, key=lambda k: (any(_few_rows_for_probes(own, part) for own, part in zip(candidates[k], parts, strict=True)), k))
        if taken < 0 or least - upper[first] > CLEARLY * error[first] + NOISE:
            taken = first
        least = min(least, float(upper[best]))
    return taken


def _size_and_error(candidate: Candidate, rows: Rows) -> tuple[float, float]:
    """|gap|, as the root mean square of its two estimates, and its standard error.

    One estimate is the corrected value of the fit to all rows, the other that of decisions not fitted to their rows. If a method overfits
    its patients, the first is too small; the second, from fits to fewer rows, is too large and more variable. A candidate for which both
    are small is better than one whose estimates disagree.
    """
    row, held = candidate.trace.iloc[candidate.chosen], candidate.held_out
    assert held is not None  # the caller compares cross-fitted candidates
    held_out_gap = float(Evidence.of(held.after[None], rows, candidate.goal).gap[0])
    size = float(np.sqrt((row["gap_honest"] ** 2 + held_out_gap**2) / 2))
    return float("inf") if isnan(size) else size, float(row["gap_se"])  # an undefined quotient is not a small gap


def _few_rows_for_probes(candidate: Candidate, rows: Rows) -> bool:
    """Whether a candidate is the result of probes, which have many coefficients, on few rows."""
    return METHODS[candidate.method].kind == Kind.PROBES and len(rows) < PROBED_ROWS


def _in_sample_key(candidate: Candidate, model: nn.Module | None, cohort: Rows) -> tuple[float, float, float]:
    """A key that sorts the best in-sample candidate first: goals met, or rates and performances kept; then |gap| and performance.

    With several labels, the worst rank, the largest |gap| and the mean performance count.
    """
    ranks, sizes, performances, by_performance = [], [], [], []
    for at, (own, part) in enumerate(_each(candidate, cohort)):
        row, goal = own.trace.iloc[own.chosen], own.goal
        size = abs(row["gap"])
        view = model.view(at) if isinstance(model, ChosenOutputs) else model
        keeps = own.met_in_sample or not goal.keep or kept_or_not(own, view, part) is own
        enough = own.met_in_sample or goal.min_performance is None or row["performance"] >= goal.min_performance
        ranks.append(0.0 if own.met_in_sample else 1.0 + (not enough) + 2.0 * (not keeps))  # as for steps, kept rates come first
        sizes.append(float("inf") if isnan(size) else float(size))  # an undefined quotient is not a small gap
        performances.append(float(row["performance"]))
        by_performance.append((goal.min_performance is None and own.met_in_sample) or not enough)
    rank, size, performance = max(ranks), max(sizes), sum(performances) / len(performances)
    return (rank, -performance, size) if all(by_performance) else (rank, size, -performance)


def _chosen(tried: Sequence[Candidate], remarks: Sequence[Note], model: nn.Module | None, cohort: Rows, settings: Settings) -> Candidate:
    """The best of the candidates tried, with notes on all of them."""
    if all(own.held_out is not None for candidate in tried for own in candidate.each):
        parts = [part for _, part in _each(tried[0], cohort)]
        best = tried[best_of([candidate.each for candidate in tried], parts)]
    else:
        best = min(tried, key=lambda candidate: _in_sample_key(candidate, model, cohort))
    notes, reached = [], {}
    cut = [note for candidate in tried if candidate is not best for note in candidate.notes if note.kind == "cut_short"]
    for candidate in tried:
        reached[candidate.method] = numbers = _in_sample_numbers(candidate)
        about = {"taken": candidate is best, "changed": _changed(candidate), "met": candidate.met_in_sample, "best": best.method}
        notes.append(Note("tried", candidate.method, {**about, **numbers}))
    summary = {"tried": len(tried), "changed": any(map(_changed, tried)), "met": best.met_in_sample}
    head = Note("best_of_methods", best.method, {**summary, "reached": {} if best.met_in_sample else reached})
    used = {"allow_group": settings.allow_group, "methods": settings.order(cohort), **best.settings}

    def as_auto(candidate: Candidate) -> Candidate:
        return replace(candidate, method=NAME, ran_as=best.method, settings=used, notes=(*candidate.notes, *notes, *cut, *remarks))

    labels = {name: as_auto(own) for name, own in best.labels.items()}
    return replace(as_auto(best), why=(head, *best.why), labels=labels)


def _changed(candidate: Candidate) -> bool:
    """Whether any label has a step other than the original."""
    return any(own.chosen > 0 for own in candidate.each)


def _in_sample_numbers(candidate: Candidate) -> dict[str, object]:
    """Gap and performance before and after, on the rows that the candidate was chosen on."""
    before, after = candidate.trace.iloc[0], candidate.trace.iloc[candidate.chosen]
    return {
        "measure": candidate.goal.measure,
        "gap_before": float(before["gap"]),
        "gap": float(after["gap"]),
        "of": candidate.goal.performance,
        "performance_before": float(before["performance"]),
        "performance": float(after["performance"]),
    }
