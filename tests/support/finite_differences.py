"""The goal and the weights of the gap with which influence is compared."""

from equipoise.data import FloatArray, Parts
from equipoise.methods import Label
from equipoise.models import Repairable
from support.goals import paper_goal

SMALLEST_GAP = paper_goal("spd", min_performance=0.0)  # the smallest gap, be it of constant decisions


def gap_weights(network: Repairable, parts: Parts, measure: str) -> FloatArray:
    labels = Label.of(parts.valid, paper_goal(measure))
    scores = network.evaluate()
    return labels.functional(scores >= labels.evaluate(scores).threshold)[1]
