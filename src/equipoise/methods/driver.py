"""The driver: a run of one method (`run_method`), of several (`run_methods`), and the best of them (`auto`).

A network with several outputs is repaired for all of its labels or classes at once. Methods that change the network change it for all
labels together; methods that fit a rule or probes do so for one label after another, and the results are joined. Classes are decided by
argmax, without one rule per class, so they need a method that changes the network.

Cross-fitted selection: a step is chosen by decisions on rows that it was not fitted to, or none is. The paper's rule takes the smallest
|gap| of hundreds of steps on the rows that they were fitted to, so that the winner is worse on new patients than it seemed. Here a method
is also run on parts of the repair set, split by patient: rules and probes leave out one of five parts in turn, fine-tuning one of two
halves. Steps are compared on a grid that is comparable between sets of rows: the share of the original gap that is removed on the rows of
the fit (`rungs`). Every row then has decisions by fits that include it and by fits that do not, at the same share. Their difference is the
optimism of the fit. It is inversely proportional to the number of rows, and a fit that leaves out one part has 1 - 1/K of them, so the
corrected decisions of a step are

    f = f(all rows) + (1 - 1/K) (f(not fitted to the row) - f(fitted to it))

Gaps, rates and balanced accuracy are affine in f, so their corrected values and standard errors are those of this f. This is the optimism
correction of Efron and Harrell with cross-validation in place of the bootstrap. The correction of a single step is mostly noise (thresholds
that jump from part to part), which with 200 rows hid losses of 0.08 of balanced accuracy. It is therefore smoothed over the steps: for a
rule of a few thresholds, which is equally optimistic at every share, by the mean over all steps; for probes and networks, whose optimism
grows with the share, by a line. The decisions that were not fitted to their row are kept as `HeldOutDecisions`;
they determine the outcome without a test set. The choice among the steps is in `choosing`.

`auto` tries cheap methods first, then costly ones, within the budget. Each method is tried on the same rows with the same goal and
selection, and chosen by the same criterion as a step (`choosing`): among those whose performance holds, the smallest upper limit of |gap|,
by two estimates. Of equally good ones the cheapest is taken, and with fewer than 2,000 rows fine-tuning is preferred to probes, which have
more parameters. A randomised rule, or one that needs each patient's group, must be better by two standard errors. With selection="paper",
in-sample values decide, by the paper's rule.

Costly methods are not tried if nothing is left to improve: the candidate's rule needs no group, and its |gap| is within half a standard
error of zero, or within 0.01, and within half of the maximum gap. With a budget, a method is not started if its cost model predicts more
than the remaining time, and fine-tuning stops when its share of the time is up. The candidate's notes list the methods tried with their
results, and those not tried with the reason.
"""

import copy
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pandas as pd

from equipoise.data import Cohort, Identities, Rows, Scores, assign_folds, generator
from equipoise.errors import BadInput, EmptyCell, EquipoiseError, first_line, pick
from equipoise.measures import FloatArray, at_threshold, tabulate
from equipoise.methods.candidate import Candidate, LabelCandidate, Progress
from equipoise.methods.choosing import (
    SAME,
    SURE,
    ChosenStep,
    choose_method,
    choose_step,
    cross_fitted,
    cross_fitted_values,
    nearness,
    newly_constant,
    too_low,
)
from equipoise.methods.contract import (
    ALL_AT_ONCE,
    METHODS,
    ONE_BY_ONE,
    PART_TOO_SMALL,
    STANDARD,
    Fit,
    FitStep,
    Kind,
    Method,
    MethodRun,
    Rng,
    Speed,
    Work,
    check_method,
    cross_fitting_parts,
    method,
)
from equipoise.methods.evaluation import RATE_NOISE, ZERO_GAP, Data, kept_rates, limits_of
from equipoise.methods.goal import Goal, Note
from equipoise.methods.rules import fit_steps, not_constant, with_steps
from equipoise.methods.small_cells import advice, note_rows
from equipoise.methods.step_estimates import StepEstimates, correct_optimism
from equipoise.models import predict

if TYPE_CHECKING:
    from torch import nn

    from equipoise.models import ChosenOutputs, ReadOnce

AUTO = "auto"
LEAST_TIME_SHARE = 0.2  # fine-tuning is not started if less than this share of its full time is left


def run_method(
    name: str,
    model: "nn.Module | None",
    cohort: Rows,
    goals: Mapping[str, Goal],
    *,
    seed: int,
    train: Cohort | None = None,
    settings: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    budget: float | None = None,
    refuse_constant: bool = False,
) -> Candidate:
    """The result of one method for a network, within about `budget` seconds.

    `goals` has the goal of each label, with one selection; the goal of a cohort with one label is {"": goal}. The network of a cohort with
    several labels is `ChosenOutputs`. With `refuse_constant`, steps with constant decisions are not chosen; the published selection, which
    studies reproduce, has no such rule, and cross-fitted selection always has it.
    """
    on_scores, several = isinstance(cohort, Scores), cohort.several
    offered: dict[str, Any] = {"labels": cohort.labels, "kind": cohort.kind} if several else {}
    offered |= {"goals": list(goals.values()), "weighted": cohort.weight is not None, "rows": cohort.name}
    chosen = check_method(name, settings or {}, network=not on_scores, train=train is not None, **offered)
    own_method, deadline = METHODS[name], None if budget is None else time.monotonic() + budget
    fitted_to = {"repair": Identities.of(cohort)} | ({} if train is None else {"training": Identities.of(train)})
    views: Mapping[str, Any] = dict.fromkeys(goals)
    if not on_scores:
        from equipoise.models import is_network, label_views

        if not is_network(model):
            raise BadInput(f"{name} repairs a torch.nn.Module; got {type(model).__name__}")
        views = label_views(model, goals)
    if several and own_method.labels == ONE_BY_ONE:
        limits: dict[str, Any] = {"settings": settings, "progress": progress, "budget": None, "refuse_constant": refuse_constant}
        result = label_by_label(name, views, cohort.by_label, goals, train, seed, limits)
        network = _with_heads(cast("ChosenOutputs", model), result.labels)
        views = label_views(model, goals, network)
        each = {label: replace(own, model=views[label], fitted_to=fitted_to) for label, own in result.labels.items()}
        return replace(result, labels=each, model=network)
    used_train, parts = train if own_method.takes_train else None, cohort.by_label
    run = MethodRun(own_method, model, cohort, goals, seed, chosen, used_train, progress, deadline, refuse_constant)
    if own_method.kind == Kind.OTHERS:  # it calls this function for each of its methods
        return cast(Candidate, own_method.run(run))
    try:
        Data.of(cohort, goals)  # raises an error if the set lacks rows that the measure needs
        if own_method.kind != Kind.STEPS and not several:
            result = run_fit(run)
        else:
            from equipoise.methods.steps import run_cross_fitted_steps, run_steps  # late: rules for scores do not need it

            # `standard` of several labels is a run of no steps
            result = run_steps(run)[0] if run.selection == "paper" else run_cross_fitted_steps(run)
    except EmptyCell as error:
        hints = [text for label, part in parts.items() for text in advice(part, goals[label])]
        raise EmptyCell(*error.problems, *hints[: len(goals)]) from error
    noted = {}
    for label, own in result.labels.items():
        goal, part = goals[label], parts[label]
        if goal.keep and run.selection == "paper":  # whatever the method, a candidate that does not keep them is not met
            keep, threshold = own.goal.keep, float(own.trace["threshold"].iloc[0])
            decisions = at_threshold(predict(views[label], part).score, threshold), own.decide(part)
            before, after = (kept_rates(keep, tabulate(f, part.y, part.attribute, part.weight)) for f in decisions)
            places = [(name, level) for name in keep for level in part.attribute.levels]
            reached = zip(places, after, limits_of(keep, before), strict=True)
            broken = [too_low(rate, now, least, level) for (rate, level), now, least in reached if now < least - RATE_NOISE]
            own = replace(own, met_in_sample=False, why=(*own.why, *broken)) if broken else own
        near = None if own.met_in_sample else nearness(own, goal)
        own = replace(own, why=own.why if near is None else (*own.why, near), fitted_to=fitted_to)
        noted[label] = note_rows(own, part, own_method.without_group)
    return replace(result, labels=noted)


def label_by_label(
    method: str,
    models: Mapping[str, "nn.Module | None"],
    parts: Mapping[str, Rows],
    goals: Mapping[str, Goal],
    train: Cohort | None,
    seed: int,
    limits: Mapping[str, Any],
) -> Candidate:
    """The result of a method that repairs one label after another, which share the time and the error rate of their claims."""
    progress, budget, count = limits["progress"], limits["budget"], len(parts)
    deadline = None if budget is None else time.monotonic() + budget
    results: dict[str, LabelCandidate] = {}
    for at, (name, part) in enumerate(parts.items()):
        left = None if deadline is None else max(0.001, (deadline - time.monotonic()) / (count - at))
        own_limits = {**limits, "budget": left, "progress": progress if count == 1 else None}
        label_train = None if train is None else train.by_label[name]
        own = run_method(method, models[name], part, {"": goals[name]}, seed=seed, train=label_train, **own_limits).only
        results[name] = own if own.held_out is None else replace(own, held_out=replace(own.held_out, labels=count))
        if progress and count > 1:
            progress(at + 1, count)
    rows = []  # of the trace of several labels: the original and the chosen steps
    for step in (0, 1):
        values = [own.trace.iloc[own.chosen if step else 0] for own in results.values()]
        gaps = np.array([row["gap"] for row in values])
        worst = int(np.abs(np.where(np.isnan(gaps), np.inf, gaps)).argmax())
        performance = float(np.mean([row["performance"] for row in values]))
        rows.append({"step": step, "gap": gaps[worst], "performance": performance, "threshold": np.nan, "label": list(results)[worst]})
    return Candidate(results, None, pd.DataFrame(rows), 1)


def _with_heads(chosen: "ChosenOutputs", by_label: Mapping[str, LabelCandidate]) -> "nn.Module":
    """The network with the heads that were fitted for its outputs; without heads, a copy of the network."""
    from equipoise.models import BiasScore, ManyBiasScores

    heads = {column: own.model for column, own in zip(chosen.columns, by_label.values(), strict=True) if isinstance(own.model, BiasScore)}
    if not heads:
        return copy.deepcopy(chosen.inner)
    if chosen.flat:
        return next(iter(heads.values()))
    return ManyBiasScores(copy.deepcopy(chosen.inner), heads, chosen.output).eval()


# Methods that fit a rule, or probes: every row of their trace can be delivered.


def run_fit(run: MethodRun) -> Candidate:
    """The candidate of a method that fits a rule or probes: the rule that it chose itself ("paper"), or a step chosen by cross-fitting."""
    method, model, whole = run.method, run.model, run.rows.encoded()  # once, so that a subset has the same encoding
    ((name, goal),) = run.in_sample.items()
    network = None
    if model is not None:
        from equipoise.models import ReadOnce, check

        cohort = cast(Cohort, whole)
        if method.kind == Kind.PROBES:
            check(model, cohort, changed=False)
        network = ReadOnce(model, cohort.inputs)
    scores = predict(model, whole, raw=None if network is None else network.raw())
    parts = 1 if run.selection == "paper" else cross_fitting_parts(method, len(whole))
    fold = assign_folds(whole, parts, generator(run.seed, "cross-fitted selection")) if parts > 1 else np.zeros(len(whole), np.int64)
    fits: list[Fit] = []  # to all rows, then without one part in turn
    for k in range(parts + 1 if parts > 1 else 1):
        rows = np.flatnonzero(fold != k - 1) if k else None
        inputs: list[Any] = [scores if rows is None else scores.take(rows), goal, run.settings]
        if method.kind == Kind.PROBES:
            outputs = network if network is None or rows is None else network.take(rows)
            inputs = [model, whole if rows is None else whole.take(rows), goal, run.settings, Rng(run.seed), run.train, outputs]
        try:
            fits.append(method.run(*inputs))
        except EmptyCell as error:
            raise EmptyCell(*error.problems, *([PART_TOO_SMALL] if k else [])) from error
    found, evidence = fits[0], None
    if run.selection == "paper":
        found = not_constant(found, method.name, scores) if run.refuse_constant and method.kind == Kind.RULE else found
        step, notes = FitStep(found.rule, found.model, found.steps[found.chosen].notes if found.steps else ()), found.notes
        chosen = ChosenStep(found.chosen, found.chosen, (found.why,), (found.met,), (found.goal,))
    else:
        found = with_steps(found, method.name, scores)
        steps = [found.steps, *(fit_steps(own, method.name, scores) for own in fits[1:])]
        decisions, *by_part = (step_decisions(own, model, whole, network, scores) for own in steps)
        count = len(found.steps)
        held, tuned = (np.zeros((count, len(whole))) for _ in range(2))
        for k, own in enumerate(by_part):
            outside, reached = fold == k, own[np.minimum(np.arange(count), len(own) - 1)]  # the last step of a fit stands for further ones
            held[:, outside] = reached[:, outside]
            tuned[:, ~outside] += reached[:, ~outside] / (parts - 1)
        estimate = correct_optimism(decisions, held, tuned, parts, range(count), grows=method.kind == Kind.PROBES)
        evidence = StepEstimates.of(estimate, whole, goal.derived(selection=run.selection), held)
        original = float(found.trace["performance"].iloc[0])
        chosen = choose_step([evidence], range(count), method.least_gap, newly_constant(decisions, whole.attribute.codes), [original])
        step = found.steps[chosen.at]
        notes = found.notes if step.rule.needs_group == method.needs_group else ()  # not those of a rule that was declined
    candidate = LabelCandidate(
        method=method.name,
        model=copy.deepcopy(model) if step.model is None else step.model,
        rule=step.rule,
        trace=found.trace,
        chosen=chosen.at,
        why=chosen.why[0],
        met_in_sample=chosen.met[0],
        goal=chosen.goals[0],
        seed=run.seed,
        settings=asdict(run.settings),
        notes=(*step.notes, *notes),
    )
    if run.progress:
        run.progress(1, 1)
    if evidence is not None:
        candidate = cross_fitted(candidate, evidence, chosen, 0, range(len(found.steps)), run.rows, run)
    return Candidate({name: candidate}, candidate.model)


def step_decisions(
    steps: Sequence[FitStep], model: "nn.Module | None", rows: Rows, network: "ReadOnce | None" = None, scores: Scores | None = None
) -> FloatArray:
    """The decisions of every step of a fit on these rows (steps, n), by the network and rule that it would deliver.

    `scores` are those of the model on these rows, if they are known. The network is run once for all bias scores around it, unless
    `network` holds its outputs on these rows.
    """
    scores = predict(model, rows) if scores is None else scores
    if all(step.model is None for step in steps):
        return np.stack([step.rule.decide(scores) for step in steps])
    from equipoise.models import BiasScore, ReadOnce, bias_scores

    by_network, cohort = {id(None): scores}, cast(Cohort, rows)
    if probes := [step.model for step in steps if isinstance(step.model, BiasScore)]:
        first = probes[0]
        read = network if network is not None and network.of(first.network) else ReadOnce(first.network, cohort.inputs)
        for probe, own in zip(probes, bias_scores(probes, read.shown(first.reading)), strict=True):
            by_network[id(probe)] = Scores.of(cohort, own)
    return np.stack([step.rule.decide(by_network.get(id(step.model)) or predict(step.model, rows)) for step in steps])


# Several methods, and the best of them.


@dataclass(frozen=True)
class AutoSettings:
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
            if on_scores and cast(Scores, rows).features is None:
                names = [name for name in names if usable[name].kind != Kind.PROBES]  # probes need features
        excluded = [name for name in names if usable[name].needs_group and not self.allow_group]
        if self.methods is not None and excluded:
            raise BadInput(f"{', '.join(excluded)} would need each patient's group: set allow_group=True, or leave it out of the methods")
        return list(dict.fromkeys([STANDARD, *(name for name in names if name not in excluded)]))


def _usable() -> Mapping[str, Method]:
    """The methods that auto can run."""
    return {name: method for name, method in METHODS.items() if method.kind != Kind.OTHERS and not method.needs_train}


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
    fixed = run.model is not None and next(run.model.parameters(), None) is None  # as from an ONNX file: it has nothing to fine-tune
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
    best = candidates[choose_method([list(own.labels.values()) for own in candidates], list(cohort.by_label.values()))]
    notes, reached, cut_short, any_changed = [], {}, [], False
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
        notes.append(Note("tried", candidate.method, {**about, **numbers}))
        cut_short += [note for note in first.notes if note.kind == "cut_short" and candidate is not best]
        any_changed = any_changed or changed
    met, used = best.met_in_sample, {"allow_group": settings.allow_group, "methods": settings.order(cohort), **best.settings}
    head = Note(
        "best_of_methods", best.method, {"tried": len(candidates), "changed": any_changed, "met": met, "reached": {} if met else reached}
    )
    changes = {"method": AUTO, "ran_as": best.method, "settings": used}
    more = (*notes, *cut_short, *tried.notes)
    each = {name: replace(own, **changes, why=(head, *own.why), notes=(*own.notes, *more)) for name, own in best.labels.items()}
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

    With cross-fitted values: a repair that needs no group, whose |gap| is within half its standard error (or 0.01) and within half the
    maximum gap. In-sample: any candidate that meets its goal with |gap| within half the maximum gap (without one, a standard error).
    """
    goal, rule = candidate.goal, candidate.rule
    if candidate.held_out is None:
        if not candidate.met_in_sample:
            return False
        error = float(StepEstimates.of(candidate.decide(cohort)[None], cohort, goal).gap_se()[0])
        size = abs(candidate.trace["gap"].iloc[candidate.chosen])
        return bool(size <= (SURE * error if goal.max_gap is None else goal.max_gap / 2))
    if candidate.chosen == 0 or rule.needs_group or rule.randomised:
        return False
    size, error, holds, few_rows = cross_fitted_values(candidate, cohort)
    return holds and not few_rows and size <= max(SAME * error, ZERO_GAP) and (goal.max_gap is None or size <= goal.max_gap / 2)
