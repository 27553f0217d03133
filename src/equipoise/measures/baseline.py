"""A simple model next to a classifier on the same rows: where it clearly does better, the classifier itself is what limits a repair."""

from dataclasses import dataclass

import numpy as np

from equipoise.data import Scores
from equipoise.measures.cells import FloatArray, tabulate
from equipoise.measures.estimates import Estimate, Settings
from equipoise.measures.functional import gap_values, largest, performance_values
from equipoise.measures.paired_changes import paired

SAME_GAP = 0.01  # by how much a gap may be larger and still count as the same


@dataclass(frozen=True)
class Versus:
    """Decisions of a simple model against those of a classifier on the same rows."""

    value: float  # performance of the simple model
    other: float  # of the classifier
    difference: Estimate  # the first minus the second, paired
    gap: float  # of the goal's measure, the largest over the groups; NaN where there is none
    other_gap: float

    @property
    def clear(self) -> bool:
        """Whether the simple model is better by more than chance explains."""
        return self.difference.low > 0

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON."""
        gaps = {name: None if np.isnan(value) else value for name, value in (("gap", self.gap), ("other_gap", self.other_gap))}
        return {"value": self.value, "other": self.other, "difference": self.difference.to_dict(), **gaps, "clear": self.clear}


@dataclass(frozen=True)
class Baseline:
    """A logistic regression on the inputs of a network, at its best threshold, judged on the same held-out rows as the network."""

    inputs: str  # "table", or "pixels": images reduced to 16 x 16 pixels and a few statistics
    fitted_on: str  # "training set" or "repair set"
    fitted_rows: int
    rows: int  # held-out rows that both were judged on
    performance: str
    measure: str
    original: Versus  # against the original network
    repaired: Versus | None  # with its own gap held down, against the repaired classifier; None where that was not asked for

    @property
    def beats_original(self) -> bool:
        """Whether it clearly has more performance than the original network."""
        return self.original.clear

    @property
    def beats_repaired(self) -> bool:
        """Whether it clearly has more performance than the repaired classifier, with a gap that is no larger."""
        other = self.repaired
        return other is not None and other.clear and abs(other.gap) <= abs(other.other_gap) + SAME_GAP

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON."""
        about = {name: getattr(self, name) for name in ("inputs", "fitted_on", "fitted_rows", "rows", "performance", "measure")}
        sides = {name: None if (side := getattr(self, name)) is None else side.to_dict() for name in ("original", "repaired")}
        return {**about, **sides, "beats_original": self.beats_original, "beats_repaired": self.beats_repaired}


def versus(scores: Scores, decided: FloatArray, other: FloatArray, performance: str, measure: str, settings: Settings) -> Versus:
    """What decisions of a simple model are worth against those of another classifier on the same rows."""
    tables = [tabulate(f, scores.y, scores.attribute, scores.weight) for f in (decided, other)]
    mine, theirs = (float(performance_values(performance, cells)) for cells in tables)
    gap, other_gap = (float(largest(gap_values(measure, cells))) for cells in tables)
    return Versus(mine, theirs, paired(scores, other, decided, settings).performance_change(performance), gap, other_gap)
