"""The methods by name. `debias` runs one on one network; `run_many` runs one on many networks, as a stack where that is possible."""

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from torch import nn

from equipoise.data.cohort import Cohort
from equipoise.errors import BadInput, UnknownName, pick
from equipoise.methods.base import Candidate, Goal, Progress
from equipoise.models.mlp import MLP


@dataclass(frozen=True)
class Method:
    """Where a method lives and what it asks for. Its module has a dataclass `Settings` and a function `run`."""

    module: str
    about: str
    needs_train: bool = False  # it trains from scratch, so it wants the train part as well
    needs_group: bool = False  # its rule must know each patient's group


METHODS: dict[str, Method] = {
    "standard": Method("equipoise.methods.standard", "the original network, threshold by best performance"),
    "bias-gda": Method("equipoise.methods.bias_gda", "fine-tuning on the gap alone, down or up (the paper's Algorithm 2)"),
    "pruning": Method("equipoise.methods.pruning", "switching off the units that drive the gap (the paper's Algorithm 1)"),
    "random": Method("equipoise.methods.random", "the best of 101 random perturbations of the weights (Savani et al.)"),
    "adversarial-finetune": Method("equipoise.methods.adversarial_finetune", "fine-tuning against a critic of the gap (Savani et al.)"),
    "adversarial-training": Method(
        "equipoise.methods.adversarial_training", "training from scratch against an adversary (Zhang et al.)", needs_train=True
    ),
    "reject-option": Method("equipoise.methods.reject_option", "a band around the threshold decided by group (Kamiran)", needs_group=True),
    "equalised-odds": Method("equipoise.methods.equalised_odds", "randomised thresholds with equal TPR and FPR (Hardt)", needs_group=True),
}


def debias(
    model: nn.Module,
    cohort: Cohort,
    *,
    method: str = "bias-gda",
    measure: str = "eod",
    performance: str = "balanced_accuracy",
    floor: float | None = None,
    bound: float | None = None,
    seed: int = 0,
    train: Cohort | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> Candidate:
    """A repaired network, or a decision rule for the same one, found on validation data. The network given in is not changed.

    `floor` is the least performance to keep, `bound` the largest |gap| to allow; without either, performance may fall by 0.02. Further
    keywords are the method's own settings. `train` is for methods that train from scratch.
    """
    goal = Goal(measure, performance, floor, bound)
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
    module = importlib.import_module(method.module)
    chosen = settings_of(name, settings or {})
    for model in models:
        if not isinstance(model, nn.Module):
            raise BadInput(f"{name} repairs a torch.nn.Module; got {type(model).__name__}")
    if method.needs_train and trains is None:
        raise BadInput(f"{name} trains from scratch and needs the train part: train=parts.train")
    extra = {"trains": trains} if method.needs_train else {}
    if stackable(models, cohorts):
        found: list[Candidate] = module.run(models, cohorts, goal, seeds=seeds, settings=chosen, progress=progress, **extra)
        return found
    one_by_one = []
    for k, (model, cohort, seed) in enumerate(zip(models, cohorts, seeds, strict=True)):
        part = {"trains": [trains[k]]} if method.needs_train and trains is not None else {}
        one_by_one += module.run([model], [cohort], goal, seeds=[seed], settings=chosen, progress=progress, **part)
    return one_by_one


def settings_of(name: str, given: Mapping[str, Any]) -> Any:
    """The settings object of a method, or an error that names an unknown setting and the closest valid one."""
    module = importlib.import_module(METHODS[pick("method", name, METHODS)].module)
    valid = [f.name for f in fields(module.Settings)]
    for key in given:
        if key not in valid:
            raise UnknownName(f"setting of {name}", key, valid)
    return module.Settings(**given)


def stackable(models: Sequence[nn.Module], cohorts: Sequence[Cohort]) -> bool:
    """Whether these networks can go through a method as one: equal MLPs on parts of equal size, nothing frozen, on the CPU."""
    if not all(type(m) is MLP for m in models):
        return len(models) == 1
    shapes = {tuple((tuple(p.shape), p.dtype, p.requires_grad, p.device.type) for p in m.parameters()) for m in models}
    sizes = {c.inputs.shape for c in cohorts}
    return len(shapes) == 1 and len(sizes) == 1
