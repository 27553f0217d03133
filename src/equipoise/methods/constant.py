"""Constant decisions: the same for every row of a group. They have no gap but are useless, so no repair may end in them.

A classifier with the same decision for everybody has the smallest possible gap. Such a step is refused, and the best of the others is
chosen, unless the decisions of the original are constant already. Decisions that depend only on the group are refused too.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from equipoise.data import IntArray, Scores
from equipoise.measures import FloatArray
from equipoise.methods.contract import Fit, Method
from equipoise.methods.goal import Goal, Note
from equipoise.methods.selection import plain_rule, select

WORST = [np.nan, -1.0]  # gap and performance of a refused step, with which it is never chosen


def constant(decisions: FloatArray, codes: IntArray) -> npt.NDArray[np.bool_]:
    """Whether decisions (..., n) are constant within every group (...); rows without a group count as a group.

    >>> constant(np.array([[0, 0, 1, 1], [0, 0, 0, 0], [0, 1, 1, 1]]), np.array([0, 0, 1, 1])).tolist()
    [True, True, False]
    """
    same: npt.NDArray[np.bool_] = np.logical_and.reduce([np.ptp(decisions[..., codes == code], axis=-1) == 0 for code in np.unique(codes)])
    return same


def refused(decisions: FloatArray, codes: IntArray) -> npt.NDArray[np.bool_]:
    """The steps (steps,) that are refused for their constant decisions (steps, n); the first step is the original."""
    constant_steps = constant(decisions, codes)
    newly_constant: npt.NDArray[np.bool_] = constant_steps & ~constant_steps[0]
    return newly_constant


def not_constant(fit: Fit, method: Method, scores: Scores, goal: Goal, settings: Any) -> Fit:
    """The fit; if the decisions of its rule are constant, the best of the method's other rules, or the original."""
    original, codes = plain_rule(method.name, fit.trace, 0, scores, fit.goal), scores.attribute.codes
    if not refused(np.stack([original.decide(scores), fit.rule.decide(scores)]), codes)[1]:
        return fit
    wide: Fit = fit if fit.steps or method.frontier is None else method.frontier(scores, goal, settings)
    if wide.steps:
        usable = wide.trace.copy()
        usable.loc[refused(np.stack([step.rule.decide(scores) for step in wide.steps]), codes), ["gap", "performance"]] = WORST
        chosen = select(usable, wide.goal)
        if chosen.row:
            why = (Note("constant"), *chosen.why)
            return replace(wide, rule=wide.steps[chosen.row].rule, chosen=chosen.row, why=why, met=chosen.met)
    kept = (Note("original_kept"), Note("constant"))
    return replace(fit, rule=original, trace=wide.trace, chosen=0, why=kept, met=False, notes=kept, steps=())
