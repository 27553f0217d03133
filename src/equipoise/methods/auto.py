"""The best method for a goal, without naming one: cheap methods first, then costly ones, chosen by the rule that chooses steps.

Each method is tried on the same rows with the same goal and selection, and the best of what they found is taken: those that meet the goal
first, by the smallest |gap| (a minimum performance) or the best performance (a maximum gap alone); with honest selection by confidence
bounds. Costly methods are left out once the goal is met with room: |gap| within half of the maximum gap or, without one, no larger than its
standard error. What was tried, what came of it and why it was taken or not is in the candidate's notes. A rule that needs each patient's
group is never taken unless that is allowed. Choosing among several methods on the same rows is one more choice: only patients kept aside
can tell.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isnan
from typing import Any

from torch import nn

from equipoise.data import Cohort
from equipoise.errors import BadInput, EquipoiseError, pick
from equipoise.measures import units_of
from equipoise.methods.base import Candidate, Goal, Progress
from equipoise.methods.contract import METHODS, Method, Task, Work, method, settings_of, work_of
from equipoise.methods.evidence import Evidence
from equipoise.methods.honest import SURE
from equipoise.methods.level_up import levelled
from equipoise.models import predict


@dataclass(frozen=True)
class Settings:
    """Whether the rule may need each patient's group, which methods to try, and the settings of some of them."""

    allow_group: bool = False
    methods: tuple[str, ...] | None = None  # in this order, in place of our own list
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in (*(self.methods or ()), *self.settings):
            pick("method for auto", name, [*_known()])

    def order(self) -> list[str]:
        """The methods to try, the cheap ones first."""
        known = _known()
        wanted = (
            self.methods
            if self.methods is not None
            else sorted((n for n, m in known.items() if m.in_auto is not None), key=lambda n: known[n].in_auto)
        )
        refused = [name for name in wanted if known[name].needs_group and not self.allow_group]
        if self.methods is not None and refused:
            raise BadInput(f"{', '.join(refused)} would need each patient's group: set allow_group=True, or leave it out of the methods")
        return list(dict.fromkeys(["standard", *(name for name in wanted if name not in refused)]))


def _known() -> Mapping[str, Method]:
    return {name: method for name, method in METHODS.items() if not method.runs_others and not method.needs_train}


def cost(task: Task, settings: Settings) -> Work:
    """The work of all methods that may be tried; auto stops as soon as one meets the goal with room."""
    works, names = [], []
    for name in settings.order():
        try:
            works.append(work_of(name, task, settings_of(name, settings.settings.get(name, {}))))
        except EquipoiseError:
            continue  # one that cannot be run on this network: auto passes over it too
        names.append(name)
    what = f"{', '.join(names)}, one after the other until the goal is met with room"
    if any(work.rows is None for work in works):
        return Work(None, 0, what)
    rows = sum(work.rows + len(task.repair) for work in works if work.rows is not None)  # and one pass each for its standard error
    return Work(rows, sum(work.evaluations for work in works), what, sum(work.seconds for work in works))


@method(
    "auto",
    settings=Settings,
    title="cheap methods first, then costly ones, until the goal is met with room",
    runs_others=True,
    takes_train=True,
    cost=cost,
)
def run(
    models: Sequence[nn.Module],
    cohorts: Sequence[Cohort],
    goal: Goal,
    *,
    seeds: Sequence[int],
    settings: Settings,
    progress: Progress | None = None,
    trains: Sequence[Cohort] | None = None,
) -> list[Candidate]:
    """The best of several methods for each network, with what was tried in the notes."""
    from equipoise.methods.registry import run_many

    order = settings.order()
    tried: list[list[Candidate]] = [[] for _ in models]
    remarks: list[list[str]] = [[] for _ in models]
    going = list(range(len(models)))
    for at, name in enumerate(order):
        if not going:
            break
        try:
            found = run_many(
                name,
                [models[k] for k in going],
                [cohorts[k] for k in going],
                goal,
                seeds=[seeds[k] for k in going],
                trains=None if trains is None else [trains[k] for k in going],
                settings=settings.settings.get(name),
            )
        except EquipoiseError as error:
            if name == "standard":  # the rows or the network will not do for any method
                raise
            for k in going:
                remarks[k].append(f"{name} could not be run: {_problems(error)}")
            continue
        for k, candidate in zip(going, found, strict=True):
            tried[k].append(candidate)
        left = order[at + 1 :]
        done = [k for k, candidate in zip(going, found, strict=True) if left and _with_room(candidate, cohorts[k])]
        for k in done:
            remarks[k].append(f"not tried, since {name} meets the goal with room: {', '.join(left)}")
        going = [k for k in going if k not in done]
        if progress:
            progress(at + 1, len(order))
    if progress:
        progress(len(order), len(order))
    return [_chosen(*each, settings) for each in zip(tried, remarks, models, cohorts, strict=True)]


def _problems(error: EquipoiseError) -> str:
    """All that was wrong, in one line."""
    return "; ".join(error.problems) if isinstance(error, BadInput) else str(error).splitlines()[0]


def _with_room(candidate: Candidate, cohort: Cohort) -> bool:
    """Whether the goal is met and the |gap| is at most half the maximum gap; without one, no larger than its standard error."""
    if not candidate.met:
        return False
    row = candidate.trace.iloc[candidate.chosen]
    if "gap_honest" in candidate.trace:
        size, error = abs(row["gap_honest"]), row["gap_se"]
    else:
        size, error = abs(row["gap"]), _error(candidate, cohort)
    if candidate.goal.max_gap is not None:
        held = size + SURE * error if "gap_honest" in candidate.trace else size
        return bool(held <= candidate.goal.max_gap / 2)
    return bool(size <= SURE * error)


def _error(candidate: Candidate, cohort: Cohort) -> float:
    """The standard error of the gap on the rows that the candidate was chosen on."""
    attribute = cohort.attribute
    decisions = candidate.rule.decide(predict(candidate.model, cohort))
    units = units_of(cohort.patients, len(cohort))
    return float(Evidence(decisions[None], cohort.y, attribute.codes, attribute.levels, units, candidate.goal).gap_se()[0])


def _merit(candidate: Candidate, keeps: bool) -> tuple[float, float, float]:
    """Sorts the best first: goal met, or rates kept and minimum performance reached; then what the goal asks for and the rest."""
    row, goal = candidate.trace.iloc[candidate.chosen], candidate.goal
    if "gap_honest" in candidate.trace:  # with honest selection, the confidence bounds
        size, performance = abs(row["gap_honest"]) + SURE * row["gap_se"], row["performance_honest"] - SURE * row["performance_se"]
    else:
        size, performance = abs(row["gap"]), row["performance"]
    size = float("inf") if isnan(size) else size  # a quotient without a value is no small one
    enough = candidate.met or goal.min_performance is None or row["performance"] >= goal.min_performance
    place = 0.0 if candidate.met else 1.0 + (not enough) + 2.0 * (not keeps)  # as for steps: kept rates come before performance
    by_performance = (goal.min_performance is None and candidate.met) or not enough
    return (place, -performance, size) if by_performance else (place, size, -performance)


def _keeps(candidate: Candidate, model: nn.Module, cohort: Cohort) -> bool:
    """Whether no rate that is to be kept falls short on the rows that the candidate was chosen on."""
    return not candidate.goal.keep or levelled(candidate, model, cohort) is candidate


def _chosen(tried: Sequence[Candidate], remarks: Sequence[str], model: nn.Module, cohort: Cohort, settings: Settings) -> Candidate:
    best = min(tried, key=lambda candidate: _merit(candidate, candidate.met or _keeps(candidate, model, cohort)))
    notes = []
    for candidate in tried:
        if candidate is best:
            place = "taken"
        elif best.met and not candidate.met:
            place = "not taken: the goal is not met"
        else:
            place = f"not taken: {best.method} is better"
        notes.append(f"tried {candidate.method} ({place}): {candidate}")
    head = f"{best.method} of {len(tried)} methods tried"
    if not best.met:
        reached = "; ".join(f"{candidate.method} has {_reached(candidate)}" for candidate in tried)
        head = f"none of {len(tried)} methods tried meets the goal ({reached}); {best.method} is nearest"
    told = {"allow_group": settings.allow_group, "methods": settings.order(), **best.settings}
    return replace(best, method="auto", ran_as=best.method, why=f"{head}: {best.why}", settings=told, notes=(*best.notes, *notes, *remarks))


def _reached(candidate: Candidate) -> str:
    row, goal = candidate.trace.iloc[candidate.chosen], candidate.goal
    return f"{goal.measure} {row['gap']:+.3f} and {goal.performance.replace('_', ' ')} {row['performance']:.3f}"
