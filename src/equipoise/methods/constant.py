"""Constant decisions: the same for everybody in every group. They have no gap, and nothing to tell; no repair may end in them.

A goal asks for a small gap, and nothing has a smaller one than a classifier that decides the same for all: such a step is not chosen, and
the best of the others is, unless the original was one already. One that only looks at the group is refused as well.
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

WORST = [np.nan, -1.0]  # the gap and the performance of a step that qualifies for nothing


def constant(decisions: FloatArray, codes: IntArray) -> npt.NDArray[np.bool_]:
    """Whether decisions (..., n) are the same for everybody in every group (...); rows without a group count as one.

    >>> constant(np.array([[0, 0, 1, 1], [0, 0, 0, 0], [0, 1, 1, 1]]), np.array([0, 0, 1, 1])).tolist()
    [True, True, False]
    """
    same: npt.NDArray[np.bool_] = np.logical_and.reduce([np.ptp(decisions[..., codes == code], axis=-1) == 0 for code in np.unique(codes)])
    return same


def refused(decisions: FloatArray, codes: IntArray) -> npt.NDArray[np.bool_]:
    """Which steps (steps,) are refused for their decisions (steps, n), the first of which are the original's."""
    found = constant(decisions, codes)
    worse: npt.NDArray[np.bool_] = found & ~found[0]
    return worse


def not_constant(fit: Fit, method: Method, scores: Scores, goal: Goal, settings: Any) -> Fit:
    """The fit; where its rule decides the same for everybody, the best of the method's other rules, or the original."""
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
