"""A repair as published: bias GD/A unless another method is named, on its published schedule, chosen by the rows that it was tuned on."""

from collections.abc import Sequence
from typing import Any

from torch import nn

from equipoise.data import Cohort
from equipoise.methods import METHODS, Candidate, Goal, run_method
from equipoise.methods import debias as any_debias


def debias(*given: Any, method: str = "bias-gda", selection: str = "paper", **settings: Any) -> Candidate:
    """The candidate of a method with its published schedule, where it has one, and the paper's selection."""
    if method in METHODS and "schedule" in METHODS[method].settings.__dataclass_fields__:
        settings = {"schedule": "paper", **settings}
    return any_debias(*given, method=method, selection=selection, **settings)


def as_chosen(model: nn.Module, cohort: Cohort, method: str, goal: Goal, seed: int = 0, **settings: Any) -> Candidate:
    """What a method itself chooses by the paper's selection: constant decisions are not refused, and scores are not recalibrated."""
    return run_method(method, model, cohort, {"": goal}, seed=seed, settings=settings)


def options(arguments: Sequence[str]) -> list[str]:
    """What a command of `debias` lacks to do the same: bias GD/A where only its settings are named, and the selection."""
    missing = [] if any("goal.selection=" in str(word) for word in arguments) else ["--set", "goal.selection=paper"]
    if "--method" not in arguments and any(each.startswith("bias-gda.") for each in arguments):
        missing += ["--method", "bias-gda"]
    return missing
