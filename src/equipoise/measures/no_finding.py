"""Underdiagnosis: of the patients who have a finding, the share that is decided to have none (Seyyed-Kalantari et al. 2021).

It is the false positive rate of "no finding". A multi-label model either has such a label, or it follows from the others: a row has no
finding where no label is positive, and is decided so where no label is decided positive. Rows on which a label is not known are left out.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pandas as pd

from equipoise.data import IntArray, Scores
from equipoise.errors import BadInput
from equipoise.measures.cells import FloatArray
from equipoise.measures.decision import Rule

DERIVED = "derived"  # in place of the name of a label: no finding is none of the labels
NO_FINDING = "no finding"


@dataclass(frozen=True)
class NoneOf:
    """Decided "no finding" where none of these labels is decided positive; the scores are these decisions already."""

    labels: tuple[str, ...]
    KIND: ClassVar[str] = "none of the labels"
    needs_group: ClassVar[bool] = False
    randomised: ClassVar[bool] = False

    def decide(self, scores: Scores) -> FloatArray:
        return scores.score

    def describe(self) -> str:
        return f"none of {len(self.labels)} labels is decided positive: {', '.join(self.labels)}"

    def cuts(self, group: str) -> tuple[float, ...]:  # noqa: ARG002 (there is no score to cut)
        return ()

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON."""
        return {"kind": self.KIND, "labels": list(self.labels)}


def none_of(scores: Mapping[str, Scores], rules: Mapping[str, Rule]) -> Scores:
    """The label "no finding" and the decision on it, as scores, on the rows in which every label is known.

    >>> one = Scores.from_arrays([1, 0, 0, 0], [0.9, 0.2, 0.4, 0.3], ["F", "F", "M", "M"])
    >>> other = Scores.from_arrays([0, 0, 1, 0], [0.1, 0.7, 0.2, 0.1], ["F", "F", "M", "M"])
    >>> from equipoise.measures.decision import Threshold
    >>> found = none_of({"a": one, "b": other}, {"a": Threshold(0.5), "b": Threshold(0.5)})
    >>> found.y.tolist(), found.score.tolist()
    ([0, 1, 0, 1], [0.0, 0.0, 1.0, 1.0])
    """
    if len(scores) < 2:
        raise BadInput(
            f"no finding is derived from several labels; got {', '.join(scores) or 'none'}. Name the label that means it instead."
        )
    first = next(iter(scores.values()))
    places = [{row: k for k, row in enumerate(own.ids)} for own in scores.values()]
    shared = [row for row in first.ids if all(row in place for place in places)]
    if not shared:
        raise BadInput("no row has all labels known, so that no finding cannot be derived. Name fewer labels.")
    taken = {}
    for (label, own), place in zip(scores.items(), places, strict=True):
        taken[label] = _taken(own, np.array([place[row] for row in shared], dtype=np.int64))
    return none_of_rows(taken, rules)


def _taken(scores: Scores, rows: IntArray) -> Scores:
    """Some rows of scores."""
    patients = None if scores.patients is None else scores.patients[rows]
    weight = None if scores.weight is None else scores.weight[rows]
    attributes = tuple(attribute.take(rows) for attribute in scores.attributes)
    return Scores(scores.y[rows], scores.score[rows], attributes, patients, scores.ids[rows], scores.name, weight)


def none_of_rows(scores: Mapping[str, Scores], rules: Mapping[str, Rule]) -> Scores:
    """The same of labels that are known on the same rows."""
    first = next(iter(scores.values()))
    y = np.prod([1 - own.y for own in scores.values()], axis=0)
    clear = np.prod([1 - rules[label].decide(own) for label, own in scores.items()], axis=0)
    return replace(first, y=y, score=clear, name=NO_FINDING)


def underdiagnosis(groups: pd.DataFrame, gaps: pd.DataFrame) -> pd.DataFrame:
    """One row per group: the share of its patients with a finding that is decided to have none, and the gap to the reference.

    `groups` and `gaps` are those of the audit of "no finding", of which it is the false positive rate.
    """
    rates = groups.rename_axis("group").reset_index()
    rates = rates[["attribute", "group", "reference", "negatives", "fpr", "fpr_low", "fpr_high"]]
    names = {"negatives": "with_finding", "fpr": "rate", "fpr_low": "low", "fpr_high": "high"}
    own = gaps[gaps["measure"] == "fpr_gap"]
    compared = own[["attribute", "group", "value", "low", "high", "p_adjusted", "clear", "patients", "few"]]
    compared = compared.rename(columns={"value": "gap", "low": "gap_low", "high": "gap_high"})
    return rates.rename(columns=names).merge(compared, on=["attribute", "group"], how="left")
