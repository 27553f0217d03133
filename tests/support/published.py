"""A repair as published: bias GD/A unless another method is named, chosen by the rows that it was tuned on."""

from collections.abc import Sequence
from functools import partial

from equipoise.methods import debias as any_debias

debias = partial(any_debias, method="bias-gda", selection="paper")


def options(arguments: Sequence[str]) -> list[str]:
    """What a command of `debias` lacks to do the same: bias GD/A where only its settings are named, and the selection."""
    missing = [] if "--selection" in arguments else ["--selection", "paper"]
    if "--method" not in arguments and any(each.startswith("bias-gda.") for each in arguments):
        missing += ["--method", "bias-gda"]
    return missing
