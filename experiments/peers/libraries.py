"""What other libraries make of the scores of a repair set: Fairlearn, OxonFair and AIF360, as the comparisons call them.

Each function imports its library, so that no import is timed, and returns what fits; that returns what decides about other scores.
Decisions of randomised rules are their probabilities.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator, ClassifierMixin

import equipoise as eq
from equipoise.data import FloatArray
from equipoise.measures import Cells, largest_gap

Decide = Callable[[eq.Scores], FloatArray]
Fit = Callable[[], Decide]
FAIRLEARN_NAMES = {"spd": "demographic_parity", "eod": "true_positive_rate_parity"}
AIF360_NAMES = {"spd": "Statistical parity difference", "eod": "Equal opportunity difference"}
PRIVILEGED, UNPRIVILEGED = [{"group": 1.0}], [{"group": 0.0}]


class Given(ClassifierMixin, BaseEstimator):
    """An estimator whose input is its score, for Fairlearn."""

    def __init__(self) -> None:
        self.classes_ = np.array([0, 1])

    def fit(self, X: object, y: object) -> "Given":  # noqa: ARG002
        return self

    def predict_proba(self, X: Any) -> FloatArray:
        return _pairs(np.asarray(X).reshape(-1))


def fairlearn_thresholds(repair: eq.Scores, constraints: str, tolerance: float | None = None) -> Fit:
    """Fairlearn's ThresholdOptimizer, which asks for balanced accuracy."""
    from fairlearn.postprocessing import ThresholdOptimizer

    def fitted() -> Decide:
        rule = ThresholdOptimizer(
            estimator=Given(),
            constraints=constraints,
            objective="balanced_accuracy_score",
            prefit=True,
            predict_method="predict_proba",
            tol=tolerance,
        ).fit(repair.score[:, None], repair.y, sensitive_features=repair.attribute.codes)
        return lambda part: rule._pmf_predict(part.score[:, None], sensitive_features=part.attribute.codes)[:, 1]

    return fitted


def oxonfair_thresholds(repair: eq.Scores, gap: Any, bound: float) -> Fit:
    """OxonFair's thresholds per group, with a gap, one of its metrics, within a bound."""
    from oxonfair import DataDict, FairPredictor
    from oxonfair.utils import group_metrics

    def data(part: eq.Scores) -> Any:
        return DataDict(part.y, _pairs(part.score), part.attribute.codes)

    def fitted() -> Decide:
        fair = FairPredictor(None, data(repair))
        fair.fit(group_metrics.balanced_accuracy.overall, gap, bound)
        return lambda part: np.asarray(fair.predict(data(part)), dtype=np.float64)

    return fitted


def aif360_reject_option(repair: eq.Scores, measure: str, bound: float, cut: float, decided: float = 0.5, **search: Any) -> Fit:
    """AIF360's reject option, for two groups, with a gap within a bound; it is handed decisions at the threshold `decided`.

    It moves decisions in favour of the unprivileged only: those are the group with the lower rate at the threshold `cut`, whoever the
    reference is.
    """
    from aif360.algorithms.postprocessing import RejectOptionClassification

    def fitted() -> Decide:
        behind = measured(measure, (repair.score >= cut).astype(np.float64), repair)["gap"] < 0
        lower, higher = (UNPRIVILEGED, PRIVILEGED) if behind else (PRIVILEGED, UNPRIVILEGED)
        rule = RejectOptionClassification(
            unprivileged_groups=lower,
            privileged_groups=higher,
            num_class_thresh=25,
            num_ROC_margin=20,
            metric_name=AIF360_NAMES[measure],
            metric_ub=bound,
            metric_lb=-bound,
            **search,
        ).fit(*aif360_data(repair, decided))
        return lambda part: np.ravel(rule.predict(aif360_data(part, decided)[1]).labels)

    return fitted


def aif360_equalised_odds(repair: eq.Scores, cut: float) -> Fit:
    """AIF360's equalised odds, for two groups, from decisions at a threshold."""
    from aif360.algorithms.postprocessing import EqOddsPostprocessing

    def fitted() -> Decide:
        rule = EqOddsPostprocessing(unprivileged_groups=UNPRIVILEGED, privileged_groups=PRIVILEGED, seed=0)
        chances = rule.fit(*aif360_data(repair, cut)).model_params.x  # of the reference, positive and negative; of the other
        return lambda part: chances[2 * (part.attribute.codes != 0) + (part.score < cut)]

    return fitted


def aif360_data(scores: eq.Scores, threshold: float = 0.5) -> tuple[Any, Any]:
    """The labels, and the scores with decisions at a threshold, as AIF360 wants them."""
    from aif360.datasets import BinaryLabelDataset

    frame = pd.DataFrame({"group": (scores.attribute.codes == 0).astype(float), "y": scores.y.astype(float)})
    true = BinaryLabelDataset(df=frame, label_names=["y"], protected_attribute_names=["group"])
    pred = true.copy()
    pred.scores, pred.labels = scores.score.reshape(-1, 1), (scores.score >= threshold).astype(float).reshape(-1, 1)
    return true, pred


def measured(measure: str, decisions: Any, rows: eq.Cohort | eq.Scores) -> dict[str, float]:
    """The largest gap, with its sign, and balanced accuracy of decisions or of their probabilities."""
    cells = Cells.of(np.asarray(decisions, dtype=np.float64), rows.y, rows.attribute)
    performance = float(cells.performance("balanced_accuracy"))
    return {"gap": float(largest_gap(cells.gaps(measure))), "balanced_accuracy": performance}


def _pairs(score: FloatArray) -> FloatArray:
    """P(0|x) and P(1|x)."""
    return np.stack([1 - score, score], -1)
