"""The best of several methods: cheap ones first, then costly ones, within the budget.

Each method is tried on the same rows with the same goal and selection, and compared by the net gain of its step (see `choosing`). Of equal
ones the cheapest is taken. With selection="paper", in-sample values decide, by the paper's rule.

Costly methods are not tried if nothing is left to improve: the candidate's rule needs no group, and no change of the rates could reduce the
expected gap by half a point. If that is so for the original, it is kept at once. With a budget, a method is not started if its cost model
predicts more than the remaining time, and fine-tuning stops when its share of the time is up. The candidate's notes list the methods tried
with their results, and those not tried with the reason.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from equipoise.data import Cohort, Rows, Scores
from equipoise.errors import BadInput, EquipoiseError, first_line, pick
from equipoise.methods.candidate import Candidate, LabelCandidate, Progress
from equipoise.methods.choosing import LEAST_GAIN, SURE, choose_method
from equipoise.methods.contract import ALL_AT_ONCE, METHODS, STANDARD, Kind, Method, MethodRun, Speed, Work, method
from equipoise.methods.driver import run_method
from equipoise.methods.goal import Goal, Note
from equipoise.methods.step_estimates import StepEstimates

if TYPE_CHECKING:
    from torch import nn


AUTO = "auto"
LEAST_TIME_SHARE = 0.2  # fine-tuning is not started if less than this share of its full time is left


@dataclass(frozen=True)
class AutoSettings:
    """Whether the rule may need each patient's group, which methods to try, and the settings of some of them."""

    allow_group: bool = True  # whether the rule may need each patient's group
    methods: tuple[str, ...] | None = None  # in this order, in place of the default list
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)  # of some of the methods, by name

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
            if on_scores and cast(Scores, rows).features is None:
                names = [name for name in names if usable[name].kind != Kind.PROBES]  # probes need features
        excluded = [name for name in names if usable[name].needs_group and not self.allow_group]
        if self.methods is not None and excluded:
            raise BadInput(f"{', '.join(excluded)} would need each patient's group: set allow_group=True, or leave it out of the methods")
        return list(dict.fromkeys([STANDARD, *(name for name in names if name not in excluded)]))


def _usable() -> Mapping[str, Method]:
    """The methods that auto can run."""
    return {name: method for name, method in METHODS.items() if method.kind != Kind.OTHERS and not method.needs_train}


def _has_weights(model: "nn.Module", cohort: Cohort) -> bool:
    """Whether the network has weights to fine-tune; those of an ONNX file are its own only if torch can rebuild it."""
    from equipoise.models import with_weights

    try:
        return next(with_weights(model, cohort.inputs).parameters(), None) is not None
    except BadInput:
        return False


def auto_cost(speed: Speed, settings: AutoSettings) -> Work:
    """The work of all methods that may be tried, without a budget; auto stops when nothing is left to improve."""
    works = {}
    for name in settings.order(speed.repair):
        with suppress(EquipoiseError):  # a method that cannot be run on this network is skipped by auto too
            works[name] = replace(speed, labels=1).work(name, settings.settings.get(name, {}))
    what = f"{', '.join(works)}, one after the other until nothing is left to improve"
    rows = [work.rows for work in works.values() if work.rows is not None]
    if len(rows) < len(works):
        return Work(None, 0, what)
    total = sum(own + len(speed.repair) for own in rows)  # plus one pass each for the standard error
    return Work(total, sum(work.evaluations for work in works.values()), what, sum(work.seconds for work in works.values()))


@method(
    AUTO,
    settings=AutoSettings,
    title="cheap methods first, then costly ones, until nothing is left to improve or the time is up",
    kind=Kind.OTHERS,
    takes_train=True,
    labels=ALL_AT_ONCE,
    cost=auto_cost,
)
def auto(run: MethodRun) -> Candidate:
    """The best of several methods, with what was tried in the notes."""
    settings, cohort, progress = run.settings, run.rows, run.progress
    fixed = run.model is not None and not _has_weights(run.model, cast(Cohort, run.rows))
    names = []  # of the methods that can repair these labels or classes with these sample weights, and this network
    for name in settings.order(cohort):
        own = METHODS[name]
        weighted, suitable = cohort.weight is None or own.weights, not cohort.several or own.repairs(cohort.kind)
        names += [name] if weighted and suitable and not (fixed and own.kind == Kind.STEPS) else []
    methods = {name: settings.settings.get(name, {}) for name in names}

    @contextmanager
    def count(name: str) -> Iterator[None]:
        yield None
        if progress:
            progress(names.index(name) + 1, len(names))

    limits: dict[str, Any] = {"seed": run.seed, "train": run.train, "deadline": run.deadline}
    tried = run_methods(methods, run.model, cohort, run.goals, **limits, bars=count, all_of_them=False)
    if STANDARD in tried.errors:  # no method can be run on these rows or this network
        raise tried.errors[STANDARD]
    if progress:
        progress(len(names), len(names))
    candidates = list(tried.candidates.values())
    best = candidates[choose_method([list(own.labels.values()) for own in candidates])]
    notes, reached, cut_short, any_changed, told = [], {}, [], False, best
    declined = [own for own in candidates if all(label.expected is not None and len(label.trace) > 1 for label in own.labels.values())]
    if declined and not any(own.chosen for own in best.labels.values()):  # the best step that was declined gives the reason
        told = max(declined, key=lambda own: np.mean([label.expected.net for label in own.labels.values() if label.expected]))
    for candidate in candidates:
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
        about["expected"] = {name: own.expected.to_dict() for name, own in candidate.labels.items() if own.expected}
        notes.append(Note("tried", candidate.method, {**about, **numbers}))
        cut_short += [note for note in first.notes if note.kind == "cut_short" and candidate is not best]
        any_changed = any_changed or changed
    met, used = best.met_in_sample, {"allow_group": settings.allow_group, "methods": settings.order(cohort), **best.settings}
    head = Note(
        "best_of_methods", best.method, {"tried": len(candidates), "changed": any_changed, "met": met, "reached": {} if met else reached}
    )
    changes = {"method": AUTO, "ran_as": best.method, "settings": used}
    more = (*notes, *cut_short, *tried.notes)
    each = {}
    for label, result in best.labels.items():
        reason = told.labels[label]
        each[label] = replace(
            result, **changes, why=(head, reason.why[0], *result.why[1:]), expected=reason.expected, notes=(*result.notes, *more)
        )
    return replace(best, labels=each)


@dataclass(eq=False)
class MethodResults:
    """Methods that were run on the same rows: the candidate of each with its seconds, the errors of others, and notes on those not run."""

    candidates: dict[str, Candidate] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    errors: dict[str, EquipoiseError] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)


def run_methods(
    methods: Mapping[str, Mapping[str, Any]],
    model: "nn.Module | None",
    rows: Rows,
    goals: Mapping[str, Goal],
    *,
    seed: int,
    train: Cohort | None = None,
    deadline: float | None = None,
    bars: Callable[[str], AbstractContextManager[Progress | None]] = lambda _name: nullcontext(),
    all_of_them: bool = True,
) -> MethodResults:
    """The candidates of several methods, each with its settings, for the same classifier, rows and goals (see `run_method`).

    `deadline`, by `time.monotonic()`, is for all of them together; `bars` is a progress bar by the name of a method. With `all_of_them`,
    every method is run, in the remaining time. Otherwise they are tried as `auto` does: methods that would take too long are left out,
    those with steps share the time, and the first result that leaves nothing to improve is the last. The best of the candidates is chosen
    by `choose_method`.

    - `model`: the network; None for scores.
    - `seed`, `train`: for every method, as in `run_method`.
    """
    speed: Speed | None = None
    order, tried = list(methods), MethodResults()
    for at, (name, settings) in enumerate(methods.items()):
        budget = None
        if deadline is not None and not all_of_them and name != STANDARD:
            # measured after the original has been tried, which raises a helpful error if the rows are unsuitable
            if speed is None:
                (first, goal), views = next(iter(goals.items())), {}
                if model is not None:
                    from equipoise.models import first_decides, label_views

                    views = label_views(model, goals)
                speed = Speed.measured(
                    views.get(first), rows.by_label[first], goal, None if train is None else train.by_label[first], len(goals)
                )
            with suppress(EquipoiseError):  # running it will raise the error
                seconds, left = speed.seconds(speed.work(name, settings)), deadline - time.monotonic()
                # A method with steps stops when its time is up, so it is started if there is time for a fifth of its work.
                least = LEAST_TIME_SHARE if METHODS[name].kind == Kind.STEPS else 1.0
                enough = left > 0 and (seconds is None or least * seconds <= left)
                if not (enough if model is None else first_decides(enough)):
                    tried.notes.append(Note("no_time", name, {"seconds": seconds or 0.0, "left": max(0.0, left)}))
                    continue
        if deadline is not None:  # methods with steps share the remaining time equally, others may use all of it
            steps = [METHODS[other].kind == Kind.STEPS for other in order[at:]]
            share = 1 / sum(steps) if steps[0] and not all_of_them else 1.0
            budget = max(1.0 if all_of_them else 0.001, share * (deadline - time.monotonic()))
        start = time.perf_counter()
        try:
            with bars(name) as progress:
                candidate = run_method(
                    name,
                    model,
                    rows,
                    goals,
                    seed=seed,
                    train=train,
                    settings=settings,
                    progress=progress,
                    budget=budget,
                    refuse_constant=True,
                )
        except EquipoiseError as error:
            tried.errors[name] = error
            if name == STANDARD:
                break
            problem = "; ".join(error.problems) if isinstance(error, BadInput) else first_line(error)
            tried.notes.append(Note("could_not_run", name, {"problem": problem}))
            continue
        tried.candidates[name], tried.seconds[name] = candidate, time.perf_counter() - start
        done = not all_of_them and all(_good_enough(own, rows.by_label[label]) for label, own in candidate.labels.items())
        if done and (rest := tuple(order[at + 1 :])):
            tried.notes.append(Note("not_tried", name, {"methods": rest}))
            break
    return tried


def _good_enough(candidate: LabelCandidate, cohort: Rows) -> bool:
    """Whether nothing is left to improve, so that costlier methods need not be tried.

    With cross-fitted values: a result whose rule needs no group, after which no change of the rates could be expected to gain anything.
    In-sample: any candidate that meets its goal with |gap| within half the maximum gap (without one, a standard error).
    """
    goal, rule, expected = candidate.goal, candidate.rule, candidate.expected
    if expected is None:
        if not candidate.met_in_sample:
            return False
        error = float(StepEstimates.of(candidate.decide(cohort)[None], cohort, goal).gap_se()[0])
        size = abs(candidate.trace["gap"].iloc[candidate.chosen])
        return bool(size <= (SURE * error if goal.max_gap is None else goal.max_gap / 2))
    shown = candidate.chosen > 0 or len(candidate.trace) == 1  # otherwise the prospects are those of a step that was declined
    return shown and expected.room < LEAST_GAIN and not (rule.needs_group or rule.randomised)
