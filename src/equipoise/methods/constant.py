"""Constant decisions: the same for everybody in every group. They have no gap, and nothing to tell; no repair may end in them.

A goal asks for a small gap, and nothing has a smaller one than a classifier that decides the same for all: it is refused as a step to
choose, and as what a method delivers, unless the original was one already. One that only looks at the group is refused as well.
"""

import copy
from dataclasses import replace

import numpy as np
import numpy.typing as npt
from torch import nn

from equipoise.data import IntArray, Rows
from equipoise.measures import FloatArray
from equipoise.methods.base import Candidate
from equipoise.methods.driver import joined
from equipoise.methods.goal import Note
from equipoise.methods.selection import plain_rule
from equipoise.models import ChosenOutputs, predict


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


def not_constant(candidate: Candidate, model: nn.Module | None, cohort: Rows) -> Candidate:
    """The candidate; or the original with a note, where the candidate's decisions on these rows are constant and the original's are not."""
    if candidate.chosen == 0 or cohort.kind == "classes":
        return candidate
    if not candidate.labels:
        return _original(candidate, model, cohort) if _refused(candidate, model, cohort) else candidate
    assert isinstance(model, ChosenOutputs)  # several labels are outputs of one network
    parts = {name: cohort.labelled(name) for name in candidate.labels}
    views = {name: model.view(at) for at, name in enumerate(candidate.labels)}
    if not any(_refused(own, views[name], parts[name]) for name, own in candidate.labels.items()):
        return candidate
    whole = model.around(copy.deepcopy(model.inner))
    each = {
        name: replace(_original(own, views[name], parts[name]), model=whole.view(at))
        for at, (name, own) in enumerate(candidate.labels.items())
    }
    return joined(whole.inner, each, candidate.trace, 0, (Note("constant"), *candidate.why), cohort.kind)


def _refused(candidate: Candidate, model: nn.Module | None, cohort: Rows) -> bool:
    made = candidate.rule.decide(predict(candidate.model, cohort))
    if not constant(made, cohort.attribute.codes):
        return False
    before = plain_rule(candidate.method, candidate.trace, 0, cohort, candidate.goal).decide(predict(model, cohort))
    return not constant(before, cohort.attribute.codes)


def _original(candidate: Candidate, model: nn.Module | None, cohort: Rows) -> Candidate:
    rule = plain_rule(candidate.method, candidate.trace, 0, cohort, candidate.goal)
    network, notes = copy.deepcopy(model), (*candidate.notes, Note("constant"), Note("original_kept"))
    why = (Note("original_kept"), Note("constant"), *candidate.why)
    return replace(candidate, model=network, rule=rule, chosen=0, met_in_sample=False, why=why, notes=notes)
