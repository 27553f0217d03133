"""The best method for a goal, without naming one: cheap methods first, then costly ones, chosen by the rule that chooses steps.

Each method is tried on the same rows with the same goal and selection, and the best of what they found is taken: those that meet the goal
first, by the smallest |gap| (a minimum performance) or the best performance (only a maximum gap); with honest selection by confidence
bounds. Costly methods are left out once the goal is met with room: |gap| within half of the maximum gap or, without one, no larger than its
standard error. What was tried, what came of it and why it was taken or not is in the candidate's notes. A rule that needs each patient's
group is never taken unless that is allowed. Choosing among several methods on the same rows is one more choice: only held-out patients
can tell.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isnan
from typing import Any

from torch import nn

from equipoise.data import Cohort
from equipoise.errors import BadInput, EquipoiseError, pick
from equipoise.methods.base import Candidate, Goal, Note, Progress
from equipoise.methods.contract import ALL_AT_ONCE, METHODS, STANDARD, Kind, Method, Task, Work, method, settings_of, work_of
from equipoise.methods.cross_fitted import SURE
from equipoise.methods.debiasing import run_many
from equipoise.methods.evidence import Evidence
from equipoise.methods.remarks import kept_or_not
from equipoise.models import ChosenOutputs, predict

NAME = "auto"


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
        ours = sorted((own.in_auto, name) for name, own in known.items() if own.in_auto is not None)
        wanted = self.methods if self.methods is not None else [name for _, name in ours]
        refused = [name for name in wanted if known[name].needs_group and not self.allow_group]
        if self.methods is not None and refused:
            raise BadInput(f"{', '.join(refused)} would need each patient's group: set allow_group=True, or leave it out of the methods")
        return list(dict.fromkeys([STANDARD, *(name for name in wanted if name not in refused)]))


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
    NAME,
    settings=Settings,
    title="cheap methods first, then costly ones, until the goal is met with room",
    kind=Kind.OTHERS,
    takes_train=True,
    labels=ALL_AT_ONCE,
    classes=True,
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
    order = [name for name in settings.order() if _able(name, cohorts[0])]
    tried: list[list[Candidate]] = [[] for _ in models]
    remarks: list[list[Note]] = [[] for _ in models]
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
            if name == STANDARD:  # no method can be run on these rows or this network
                raise
            for k in going:
                remarks[k].append(Note("could_not_run", name, {"problem": _problems(error)}))
            continue
        for k, candidate in zip(going, found, strict=True):
            tried[k].append(candidate)
        left = order[at + 1 :]
        done = [
            k for k, candidate in zip(going, found, strict=True) if left and all(_with_room(*own) for own in _each(candidate, cohorts[k]))
        ]
        for k in done:
            remarks[k].append(Note("not_tried", name, {"methods": tuple(left)}))
        going = [k for k in going if k not in done]
        if progress:
            progress(at + 1, len(order))
    if progress:
        progress(len(order), len(order))
    return [_chosen(*each, settings) for each in zip(tried, remarks, models, cohorts, strict=True)]


def _able(name: str, cohort: Cohort) -> bool:
    """Whether a method can repair what this cohort has: one label, several, or classes; with sample weights or without."""
    own = METHODS[name]
    if cohort.weight is not None and not own.weights:
        return False
    return cohort.targets is None or (own.classes if cohort.kind == "classes" else bool(own.labels))


def _each(candidate: Candidate, cohort: Cohort) -> list[tuple[Candidate, Cohort]]:
    """The candidate of every label with the rows of that label; of one label, itself."""
    parts = [cohort.labelled(name) for name in candidate.labels] or [cohort]
    return list(zip(candidate.each, parts, strict=True))


def _problems(error: EquipoiseError) -> str:
    """All that was wrong, in one line."""
    return "; ".join(error.problems) if isinstance(error, BadInput) else str(error).splitlines()[0]


def _with_room(candidate: Candidate, cohort: Cohort) -> bool:
    """Whether the goal is met and the |gap| is at most half the maximum gap; without one, no larger than its standard error."""
    if not candidate.met_in_sample:
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
    decisions = candidate.rule.decide(predict(candidate.model, cohort))
    return float(Evidence.of(decisions[None], cohort, candidate.goal).gap_se()[0])


def _merit(candidate: Candidate, model: nn.Module, cohort: Cohort) -> tuple[float, float, float]:
    """Sorts the best first: the goals met, or rates kept and minimum performances reached; then what the goal asks for, then the rest.

    With several labels the worst place, the largest |gap| and the mean performance count.
    """
    places, sizes, performances, first = [], [], [], []
    for at, (own, part) in enumerate(_each(candidate, cohort)):
        row, goal = own.trace.iloc[own.chosen], own.goal
        if "gap_honest" in own.trace:  # with cross-fitted selection, the confidence bounds
            size, performance = abs(row["gap_honest"]) + SURE * row["gap_se"], row["performance_honest"] - SURE * row["performance_se"]
        else:
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


def _chosen(tried: Sequence[Candidate], remarks: Sequence[Note], model: nn.Module, cohort: Cohort, settings: Settings) -> Candidate:
    best = min(tried, key=lambda candidate: _merit(candidate, model, cohort))
    notes = [
        Note(
            "tried",
            candidate.method,
            {"taken": candidate is best, "met": candidate.met_in_sample, "best": best.method, **_numbers(candidate)},
        )
        for candidate in tried
    ]
    reached = {} if best.met_in_sample else {candidate.method: _numbers(candidate) for candidate in tried}
    head = Note("best_of_methods", best.method, {"tried": len(tried), "met": best.met_in_sample, "reached": reached})
    told = {"allow_group": settings.allow_group, "methods": settings.order(), **best.settings}
    labels = {
        name: replace(own, method=NAME, ran_as=best.method, settings=told, notes=(*own.notes, *notes, *remarks))
        for name, own in best.labels.items()
    }
    heard = (*best.notes, *notes, *remarks)
    return replace(best, method=NAME, ran_as=best.method, settings=told, why=(head, *best.why), notes=heard, labels=labels)


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
