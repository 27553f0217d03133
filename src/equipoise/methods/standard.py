"""STANDARD: the original network with the threshold of best performance on validation data, with which every method is compared."""

from equipoise.data import Scores
from equipoise.methods.contract import ALL_AT_ONCE, STANDARD, Fit, FitStep, Kind, NoSettings, Work, method
from equipoise.methods.evaluation import Label, frame, trace_row
from equipoise.methods.goal import Goal, Note
from equipoise.methods.selection import plain_rule, select


@method(
    STANDARD,
    title="the original network, threshold by best performance",
    kind=Kind.RULE,
    selects=False,
    labels=ALL_AT_ONCE,
    classes=True,
    weights=True,
    cost=lambda task, _: Work(len(task.repair), 1, "the original"),
    effort=0.1,
    in_auto=0,
    in_auto_scores=0,
)
def standard(scores: Scores, goal: Goal, _settings: NoSettings) -> Fit:
    """The threshold of best performance."""
    result = Label.of(scores, goal).original(scores.score)
    trace = frame([trace_row(0, result)])
    settled = goal.settled(result.performance)
    selection = select(trace, settled)
    why = (Note("original"), *(() if selection.met else selection.why))
    rule = plain_rule(STANDARD, trace, 0, scores, settled)
    return Fit(rule, trace, 0, why, selection.met, settled, steps=(FitStep(rule),))
