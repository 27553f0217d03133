"""The label "no finding" derived from the other labels of a multi-label model, and underdiagnosis.

Underdiagnosis is the share of patients with a finding for whom the model decides "no finding" (Seyyed-Kalantari et al. 2021): the false
positive rate of the label "no finding". A multi-label model either has such a label, or it is derived from the others: a row has no finding
if no label is positive, and is decided so if no label is decided positive. Rows with a missing label are left out.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pandas as pd

from equipoise.data import Scores
from equipoise.errors import BadInput
from equipoise.measures.cells import FloatArray
from equipoise.measures.thresholds import Rule

NO_FINDING = "no finding"


@dataclass(frozen=True)
class NoneOf:
    """Decides "no finding" if none of these labels is decided positive; the scores already are these decisions."""

    labels: tuple[str, ...]
    KIND: ClassVar[str] = "none of the labels"
    shared: ClassVar[float | None] = None
    argmax: ClassVar[bool] = False
    origin: ClassVar[str] = ""
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


def require_several_labels(labels: Mapping[str, object]) -> None:
    """Raises `BadInput` if "no finding" cannot be derived because there are fewer than two labels."""
    if len(labels) < 2:
        raise BadInput(
            f"no finding is derived from several labels; got {', '.join(labels) or 'none'}. Name the label that means it instead."
        )


def none_of(scores: Mapping[str, Scores], rules: Mapping[str, Rule]) -> Scores:
    """The label "no finding" and the decision on it, as scores, on the rows in which every label is known.

    >>> first = Scores.from_arrays([1, 0, 0, 0], [0.9, 0.2, 0.4, 0.3], ["F", "F", "M", "M"])
    >>> second = Scores.from_arrays([0, 0, 1, 0], [0.1, 0.7, 0.2, 0.1], ["F", "F", "M", "M"])
    >>> from equipoise.measures.thresholds import Threshold
    >>> derived = none_of({"a": first, "b": second}, {"a": Threshold(0.5), "b": Threshold(0.5)})
    >>> derived.y.tolist(), derived.score.tolist()
    ([0, 1, 0, 1], [0.0, 0.0, 1.0, 1.0])
    """
    require_several_labels(scores)
    positions = {label: {row: k for k, row in enumerate(each.ids)} for label, each in scores.items()}
    first = next(iter(scores.values()))
    shared = [row for row in first.ids if all(row in known for known in positions.values())]
    if not shared:
        raise BadInput("no row has all labels known, so that no finding cannot be derived. Name fewer labels.")
    return none_of_rows({label: each.take([positions[label][row] for row in shared]) for label, each in scores.items()}, rules)


def none_of_rows(scores: Mapping[str, Scores], rules: Mapping[str, Rule]) -> Scores:
    """Like `none_of`, for labels that are all known on the same rows."""
    first = next(iter(scores.values()))
    y = np.prod([1 - each.y for each in scores.values()], axis=0)
    decided = np.prod([1 - rules[label].decide(each) for label, each in scores.items()], axis=0)
    return replace(first, y=y, score=decided, logit=None, name=NO_FINDING)


def underdiagnosis(groups: pd.DataFrame, gaps: pd.DataFrame) -> pd.DataFrame:
    """One row per group: the share of its patients with a finding that is decided to have none, and the gap to the reference.

    `groups` and `gaps` are the frames of the audit of "no finding".
    """
    rates = groups.rename_axis("group").reset_index()
    rates = rates[["attribute", "group", "reference", "negatives", "fpr", "fpr_low", "fpr_high"]]
    rates = rates.rename(columns={"negatives": "with_finding", "fpr": "rate", "fpr_low": "low", "fpr_high": "high"})
    compared = gaps.loc[
        gaps["measure"] == "fpr_gap", ["attribute", "group", "value", "low", "high", "p_adjusted", "clear", "patients", "few"]
    ]
    compared = compared.rename(columns={"value": "gap", "low": "gap_low", "high": "gap_high"})
    return rates.merge(compared, on=["attribute", "group"], how="left")
