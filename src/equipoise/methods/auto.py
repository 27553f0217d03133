"""The best method for a goal: cheap methods first, then costly ones, within the budget.

Each method is tried on the same rows with the same goal and selection, and chosen by the same criterion as a step (`choosing`): among
those whose performance holds, the smallest upper limit of |gap|, by two estimates. Of equally good ones the cheapest is taken, and with
fewer than 2,000 rows fine-tuning is preferred to probes, which have more parameters. A randomised rule, or one that needs each patient's
group, must be better by two standard errors. With selection="paper", in-sample values decide, by the paper's rule.

Costly methods are not tried if nothing is left to improve: the candidate's rule needs no group, and its |gap| is within half a standard
error of zero, or within 0.01, and within half of the maximum gap. With a budget, a method is not started if its cost model predicts more
than the remaining time, and fine-tuning stops when its share of the time is up. The candidate's notes list the methods tried with their
results, and those not tried with the reason.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from equipoise.data import Cohort, Rows, Scores
from equipoise.errors import BadInput, EquipoiseError, first_line, pick
from equipoise.methods.candidate import Candidate, LabelCandidate, Progress
from equipoise.methods.choosing import SAME, SURE, choose_method, few_rows_for_probes, performance_holds, size_and_error
from equipoise.methods.contract import ALL_AT_ONCE, METHODS, STANDARD, Kind, Method, Speed, Work, method
from equipoise.methods.debiasing import run_method
from equipoise.methods.evidence import Evidence
from equipoise.methods.goal import Goal, Note

if TYPE_CHECKING:
    from torch import nn

NAME = "auto"
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


def cost(speed: Speed, settings: Settings) -> Work:
    """The work of all methods that may be tried, without a budget; auto stops when nothing is left to improve."""
    works, names = [], []
    for name in settings.order(speed.repair):
        try:
            works.append(replace(speed, labels=1).work(name, settings.settings.get(name, {})))
        except EquipoiseError:
            continue  # it cannot be run on this network, and auto skips it too
        names.append(name)
    what = f"{', '.join(names)}, one after the other until nothing is left to improve"
    if any(work.rows is None for work in works):
        return Work(None, 0, what)
    rows = sum(work.rows + len(speed.repair) for work in works if work.rows is not None)  # plus one pass each for the standard error
    return Work(rows, sum(work.evaluations for work in works), what, sum(work.seconds for work in works))


@method(
    NAME,
    settings=Settings,
    title="cheap methods first, then costly ones, until nothing is left to improve or the time is up",
    kind=Kind.OTHERS,
    takes_train=True,
    labels=ALL_AT_ONCE,
    cost=cost,
)
def run(
    model: "nn.Module | None",
    cohort: Rows,
    goals: Mapping[str, Goal],
    *,
    seed: int,
    settings: Settings,
    progress: Progress | None = None,
    train: Cohort | None = None,
    deadline: float | None = None,
) -> Candidate:
    """The best of several methods, with what was tried in the notes."""
    order = [name for name in settings.order(cohort) if _applicable(METHODS[name], model, cohort)]
    speed: Speed | None = None
    tried: list[Candidate] = []
    remarks: list[Note] = []
    for at, name in enumerate(order):
        own_settings, budget = settings.settings.get(name, {}), None
        if deadline is not None and name != STANDARD:
            # measured after the original has been tried, which raises a helpful error if the rows are unsuitable
            speed = speed or _speed(model, cohort, goals, train)
            if late := _too_late(name, speed, own_settings, deadline):
                remarks.append(late)
                continue
        if deadline is not None:  # methods with steps share the remaining time equally, others may use all of it
            steps = [METHODS[other].kind == Kind.STEPS for other in order[at:]]
            budget = max(0.001, (1 / sum(steps) if steps[0] else 1.0) * (deadline - time.monotonic()))
        try:
            candidate = run_method(
                name, model, cohort, goals, seed=seed, train=train, settings=own_settings, budget=budget, refuse_constant=True
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
        if (rest := tuple(order[at + 1 :])) and all(_good_enough(own, cohort.by_label[label]) for label, own in candidate.labels.items()):
            remarks.append(Note("not_tried", name, {"methods": rest}))
            break
    if progress:
        progress(len(order), len(order))
    return _chosen(tried, remarks, cohort, settings)


def _speed(model: "nn.Module | None", cohort: Rows, goals: Mapping[str, Goal], train: Cohort | None) -> Speed:
    """The speed of this machine, measured on a few rows of the first label."""
    first, goal = next(iter(goals.items()))
    if model is not None:
        from equipoise.models import label_views

        model = label_views(model, goals)[first]
    return Speed.measured(model, cohort.by_label[first], goal, None if train is None else train.by_label[first], len(goals))


def _too_late(name: str, speed: Speed, settings: Mapping[str, Any], deadline: float) -> Note | None:
    """The note on a method that would take longer than the time left; None if it can be started.

    A method with steps stops when its time is up, so it is started if there is time for a fifth of its work.
    """
    left = deadline - time.monotonic()
    try:
        seconds = speed.seconds(speed.work(name, settings))
    except EquipoiseError:
        return None  # running it will raise the error
    least = ENOUGH if METHODS[name].kind == Kind.STEPS else 1.0
    enough = left > 0 and (seconds is None or least * seconds <= left)
    if speed.model is not None:
        from equipoise.models import first_decides

        enough = first_decides(enough)
    return None if enough else Note("no_time", name, {"seconds": seconds or 0.0, "left": max(0.0, left)})


def _applicable(method: Method, model: "nn.Module | None", cohort: Rows) -> bool:
    """Whether a method can repair this network on this cohort: its labels or classes, its sample weights, its parameters."""
    if cohort.weight is not None and not method.weights:
        return False
    if method.kind == Kind.STEPS and model is not None and next(model.parameters(), None) is None:
        return False  # a network without parameters, as from an ONNX file, has nothing to fine-tune
    return not cohort.several or method.repairs(cohort.kind)


def _good_enough(candidate: LabelCandidate, cohort: Rows) -> bool:
    """Whether nothing is left to improve, so that costlier methods need not be tried.

    With cross-fitted values: a repair that needs no group, whose |gap| is within half its standard error (or 0.01) and within half the
    maximum gap. In-sample: any candidate that meets its goal with |gap| within half the maximum gap (without one, a standard error).
    """
    goal, rule = candidate.goal, candidate.rule
    if candidate.held_out is None:
        if not candidate.met_in_sample:
            return False
        error = float(Evidence.of(candidate.decide(cohort)[None], cohort, goal).gap_se()[0])
        size = abs(candidate.trace["gap"].iloc[candidate.chosen])
        return bool(size <= (SURE * error if goal.max_gap is None else goal.max_gap / 2))
    if candidate.chosen == 0 or rule.needs_group or rule.randomised or not performance_holds(candidate):
        return False
    size, error = size_and_error(candidate, cohort)
    small = size <= max(SAME * error, ZERO) and (goal.max_gap is None or size <= goal.max_gap / 2)
    return bool(small) and not few_rows_for_probes(candidate, cohort)


def _chosen(tried: Sequence[Candidate], remarks: Sequence[Note], cohort: Rows, settings: Settings) -> Candidate:
    """The best of the candidates tried, with notes on all of them."""
    best = tried[choose_method([list(candidate.labels.values()) for candidate in tried], list(cohort.by_label.values()))]
    notes, reached, cut, any_changed = [], {}, [], False
    for candidate in tried:
        first = next(iter(candidate.labels.values()))
        before, after, goal = candidate.trace.iloc[0], candidate.trace.iloc[candidate.chosen], first.goal
        reached[candidate.method] = numbers = {  # on the rows that the candidate was chosen on
            "measure": goal.measure,
            "gap_before": float(before["gap"]),
            "gap": float(after["gap"]),
            "of": goal.performance,
            "performance_before": float(before["performance"]),
            "performance": float(after["performance"]),
        }
        changed = any(own.chosen > 0 for own in candidate.labels.values())
        about = {"taken": candidate is best, "changed": changed, "met": candidate.met_in_sample, "best": best.method}
        notes.append(Note("tried", candidate.method, {**about, **numbers}))
        cut += [note for note in first.notes if note.kind == "cut_short" and candidate is not best]
        any_changed = any_changed or changed
    summary = {"tried": len(tried), "changed": any_changed, "met": best.met_in_sample, "reached": {} if best.met_in_sample else reached}
    head = Note("best_of_methods", best.method, summary)
    used = {"allow_group": settings.allow_group, "methods": settings.order(cohort), **best.settings}
    changes = {"method": NAME, "ran_as": best.method, "settings": used}
    each = best.labels.items()
    return best.with_labels(
        {name: replace(own, **changes, why=(head, *own.why), notes=(*own.notes, *notes, *cut, *remarks)) for name, own in each}
    )
