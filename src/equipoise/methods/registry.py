"""The methods by name. `debias` runs one on one network; `run_many` runs one on many networks, as a stack where that is possible."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from equipoise.data import Cohort, check_cohort
from equipoise.errors import BadInput, EmptyCell, Misuse, pick
from equipoise.measures import Gap, named
from equipoise.methods.base import Candidate, Goal, Progress
from equipoise.methods.contract import METHODS, Method, settings_of, takes
from equipoise.methods.honest import run_honestly
from equipoise.methods.level_up import levelled
from equipoise.methods.remarks import advice, remarked
from equipoise.models import MLP

NO_NETWORK = {  # what is given in place of a network, and what to do
    "Cohort": "The network comes first, then the cohort.",
    "Scores": "Scores have no network to repair. Give the network that they came from, and the cohort of their rows.",
    "DataFrame": "Make a cohort of the frame: eq.debias(model, eq.Cohort.from_frame(frame, label=..., group=...)).",
    "BaseEstimator": "Only networks (torch.nn.Module) are repaired; the scores of an estimator can be audited: eq.audit(scores).",
    "str": "A network in a file is repaired by the command `equipoise debias`, or loaded with torch first.",
}


def debias(
    model: nn.Module,
    cohort: Cohort | None = None,
    *,
    method: str = "bias-gda",
    measure: Gap = "eod",
    performance: str = "balanced_accuracy",
    min_performance: float | None = None,
    max_gap: float | None = None,
    keep: Mapping[str, float | str] | None = None,
    selection: str = "paper",
    max_loss: float | None = None,
    seed: int = 0,
    train: Cohort | None = None,
    goals: Mapping[str, Goal] | None = None,
    outputs: Mapping[str, int | str] | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> Candidate:
    """A repaired network, or a decision rule for the same one, found on validation data. The network given in is not changed.

    `measure` is the name of a gap, or a signed sum of rates: "tpr-fpr", {"tpr": 1, "fpr": -1}.
    `min_performance` is the least performance to keep, `max_gap` the largest |gap| to allow; without either, performance may fall by
    `max_loss`, which is 0.02 unless given.
    `keep={"tpr": "before"}`: no group's sensitivity may fall below what it was; `keep={"tpr": 0.8}`: nor below that minimum. `selection`
    says how a step is chosen: "paper", by the rows it was tuned on, or "honest", with confidence and held-out rows, or not at all where
    they cannot tell. Further keywords are the method's own settings. `train` is for methods that train from scratch, and for bias-score,
    which learns from it too what tells groups apart where the rows of a label are few.

    On a cohort of several labels or classes one repair serves them all, and `result.labels` has what was found for each. `goals` gives a
    label a goal of its own; `outputs` says which output of the network is which label, by number or name.
    """
    if not isinstance(model, nn.Module):
        raise Misuse("eq.debias", "a network and a cohort: eq.debias(model, parts.valid)", model, NO_NETWORK)
    if cohort is None:
        raise BadInput("eq.debias takes a network and a cohort of patients to repair it on: eq.debias(model, parts.valid)")
    check_cohort("eq.debias, after the network,", cohort)
    goal = Goal(named(measure), performance, min_performance, max_gap, keep or {}, selection, max_loss)
    if cohort.targets is not None:
        from equipoise.methods.many import goals_of, repair  # which runs methods by name, as this does

        wanted = goals_of(cohort, goal, goals)
        return repair(model, cohort, method, wanted, outputs or {}, seed=seed, settings=settings, train=train, progress=progress)
    if goals is not None or outputs is not None:
        given = " and ".join(name for name, value in (("goals", goals), ("outputs", outputs)) if value is not None)
        raise BadInput(
            f"{given} is for cohorts of several labels or classes; {cohort.name!r} has one label. Give it label=[...] or classes=[...]"
        )
    trains = None if train is None else [train]
    return run_many(method, [model], [cohort], goal, seeds=[seed], trains=trains, settings=settings, progress=progress)[0]


def run_many(
    name: str,
    models: Sequence[nn.Module],
    cohorts: Sequence[Cohort],
    goal: Goal,
    *,
    seeds: Sequence[int],
    trains: Sequence[Cohort] | None = None,
    settings: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> list[Candidate]:
    """The candidates of one method for each (model, cohort, seed); equal MLPs go through it as one stack."""
    method = METHODS[pick("method", name, METHODS)]
    chosen = settings_of(name, settings or {})
    for model in models:
        if not isinstance(model, nn.Module):
            raise BadInput(f"{name} repairs a torch.nn.Module; got {type(model).__name__}")
    if not takes(name, goal.measure):
        able = ", ".join(other for other in METHODS if takes(other, goal.measure))
        raise BadInput(f"{name} cannot lower {goal.measure}, a quotient in which decisions stand below the line too. Use one of: {able}")
    if method.needs_train and trains is None:
        raise BadInput(f"{name} trains from scratch and needs the train part: train=parts.train")
    plain = goal if method.runs_others else replace(goal, selection="paper")  # folds are dealt out here, not by the method

    def run(which: Sequence[int], parts: Sequence[Cohort]) -> list[Candidate]:
        some = [models[k] for k in which]
        theirs = [trains[k] for k in which] if method.takes_train and trains is not None else None
        return _run(method, some, parts, plain, [seeds[k] for k in which], theirs, chosen, progress)

    if method.runs_others:  # which come through here themselves
        return run(range(len(models)), cohorts)
    try:
        if goal.selection != "paper":
            found = run_honestly(run, models, cohorts, goal, seeds)
        else:
            found = run(range(len(models)), cohorts)
    except EmptyCell as error:
        raise EmptyCell(*error.problems, *advice(cohorts, goal)) from error
    if goal.keep and goal.selection == "paper":
        found = [levelled(candidate, model, cohort) for candidate, model, cohort in zip(found, models, cohorts, strict=True)]
    return [remarked(candidate, cohort, goal, method.without_group) for candidate, cohort in zip(found, cohorts, strict=True)]


def _run(
    method: Method,
    models: Sequence[nn.Module],
    cohorts: Sequence[Cohort],
    goal: Goal,
    seeds: Sequence[int],
    trains: Sequence[Cohort] | None,
    settings: Any,
    progress: Progress | None,
) -> list[Candidate]:
    """The method on all networks at once where they can be stacked, one by one otherwise."""
    at_once = stackable(models, cohorts)
    found: list[Candidate] = []
    for part in [slice(0, len(models))] if at_once else [slice(k, k + 1) for k in range(len(models))]:
        extra = {} if trains is None else {"trains": trains[part]}
        found += method.run(models[part], cohorts[part], goal, seeds=seeds[part], settings=settings, progress=progress, **extra)
    return found


def stackable(models: Sequence[nn.Module], cohorts: Sequence[Cohort]) -> bool:
    """Whether these networks can go through a method as one: equal MLPs on parts of equal size, nothing frozen, on the CPU."""
    if not all(type(m) is MLP for m in models):
        return len(models) == 1
    shapes = {tuple((tuple(p.shape), p.dtype, p.requires_grad, p.device.type) for p in m.parameters()) for m in models}
    sizes = {c.inputs.shape for c in cohorts}
    return len(shapes) == 1 and len(sizes) == 1
