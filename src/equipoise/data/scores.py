"""Scores, the only data that measures and post-processing use. A CSV of scores from any source is enough to audit a classifier."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from equipoise.data.attribute import Attribute, FloatArray, IntArray, ObjectArray
from equipoise.data.cohort import Cohort
from equipoise.data.column_values import check_frame, describe_rows, feature_problems, frame_from_arrays, read_columns
from equipoise.data.columns import Columns
from equipoise.data.repeated_patients import warn_of_repeated_patients
from equipoise.data.rows import Grouped
from equipoise.data.splits import hold_out
from equipoise.data.table import Encoder, Table
from equipoise.errors import BadInput, Misuse, raise_all
from equipoise.specification import takes_fields_of

ADVICE = {  # by type of a wrong argument
    "DataFrame": "The columns of a frame are read by eq.Scores.from_frame(frame, label=..., score=..., group=...).",
    "Cohort": "A cohort's scores are eq.Scores.of(cohort, score).",
}


@dataclass(frozen=True, eq=False)
class Scores(Grouped):
    """One score in [0, 1] per row, with its label, its groups and its patient.

    >>> frame = pd.DataFrame({"y": [1, 0, 1, 0], "p": [0.9, 0.2, 0.4, 0.3], "sex": ["F", "F", "M", "M"]})
    >>> len(Scores.from_frame(frame, label="y", score="p", group="sex", reference="M"))
    4
    """

    y: IntArray  # (n,)
    score: FloatArray  # (n,)
    attributes: tuple[Attribute, ...]
    patients: ObjectArray | None
    ids: ObjectArray
    name: str = "scores"
    weight: FloatArray | None = None  # (n,) positive sample weights; None if every row counts once
    features: Table | None = None  # further columns that a rule may use at prediction time
    logit: FloatArray | None = None  # (n,) the logits that the scores were made from, by which rows are ranked

    def __post_init__(self) -> None:
        if self.features is not None and len(self.features) != len(self.y):
            raise BadInput(
                f"the features have {len(self.features):,} rows, the scores {len(self.y):,}. Give the same rows in the same order."
            )

    @classmethod
    @takes_fields_of(Columns, without=("classes", "score_prefix", "view", "max_table_bytes"))
    def from_frame(cls, frame: pd.DataFrame, *, name: str = "scores", **columns: Any) -> "Scores":
        """The scores in a pandas frame, whose columns are named as in `Columns`; raises `BadInput` with everything wrong with it.

        Groups, patients and ids are used unchanged; read them as text (`pd.read_csv(path, dtype={"patient": str})`), because pandas
        turns 007 into 7. `bins={"age": [40, 60, 80]}` makes groups of a column of numbers. Each row has its own group: `conflicts`
        sets what happens to patients who have more than one group, "row" (as recorded), "first", "majority", "blank" or "error".

        `weight` names a column of sample weights (positive numbers), for case-control and survey samples: a row of weight 3 stands for
        three. Only their ratios matter.

        `features` names further columns, for repairs that use more than the score (`eq.debias(scores, method="bias-score")`). With
        `logits`, the score column holds logits, which the logistic function maps to scores. AUROC and other measures of ranks use the
        logits themselves: the scores of logits above 37 are all 1.
        """
        check_frame("Scores.from_frame", frame)
        named = Columns(**columns)
        scores = read_scores_of(frame, named, name)
        warn_of_repeated_patients(frame, named)
        return scores

    @classmethod
    def from_arrays(
        cls,
        y: object,
        score: object = None,
        groups: object = None,
        *,
        reference: str | None = None,
        patients: object = None,
        attribute: str = "group",
        bins: Sequence[float] | None = None,
        conflicts: str = "row",
        weights: object = None,
        name: str = "scores",
    ) -> "Scores":
        """The scores in arrays of labels, scores, group names and patient ids of the same rows. `bins` cuts numbers into groups.

        >>> Scores.from_arrays([1, 0, 1, 0], [0.9, 0.2, 0.4, 0.3], ["F", "F", "M", "M"], reference="M").groups.tolist()
        ['F', 'F', 'M', 'M']
        """
        misused = [values for values in (y, score, groups) if isinstance(values, (pd.DataFrame, Cohort, Scores))]
        if misused or score is None or groups is None:
            expected = "labels, scores and groups: from_arrays(y, score, groups)"
            raise Misuse("Scores.from_arrays", expected, misused[0] if misused else y, ADVICE)
        frame = frame_from_arrays({"y": y, "score": score, attribute: groups, "patient": patients, "weight": weights})
        columns: dict[str, Any] = {"label": "y", "score": "score", "group": attribute}
        columns |= {column: column for column in ("patient", "weight") if column in frame}
        edges = None if bins is None else {attribute: bins}
        return cls.from_frame(frame, reference=reference, bins=edges, conflicts=conflicts, name=name, **columns)

    @classmethod
    def of(cls, cohort: Cohort, score: object) -> "Scores":
        """The rows of a cohort with a classifier's score for each."""
        if not isinstance(cohort, Cohort):
            raise Misuse(
                "Scores.of", "a cohort and one score per row: Scores.of(cohort, score)", cohort, {"DataFrame": ADVICE["DataFrame"]}
            )
        try:
            values = np.asarray(score, dtype=np.float64).reshape(-1)
        except (TypeError, ValueError):
            raise BadInput(f"the scores for {cohort.name!r} must be numbers in [0, 1], one per row; got {type(score).__name__}") from None
        if len(values) != len(cohort):
            raise BadInput(f"{len(values):,} scores for {len(cohort):,} rows of {cohort.name!r}. Give one score per row.")
        if bad := int((~((values >= 0) & (values <= 1))).sum()):
            raise BadInput(f"{bad:,} of {len(values):,} scores for {cohort.name!r} are NaN or lie outside [0, 1]. Give probabilities.")
        return cls(cohort.y, values, cohort.attributes, cohort.patients, cohort.ids, cohort.name, cohort.weight)

    def with_features(self, features: object) -> "Scores":
        """These scores with columns that a rule may use: a frame, or an array (n, d), of the same rows in the same order."""
        if isinstance(features, pd.DataFrame):
            frame = features.reset_index(drop=True)
        else:
            try:
                values = np.asarray(features, dtype=np.float64)
            except (TypeError, ValueError):
                raise Misuse("features", "a frame, or an array of numbers (n, d)", features) from None
            if values.ndim != 2:
                raise BadInput(f"features must be a frame, or an array (n, d); got an array of shape {values.shape}")
            frame = pd.DataFrame(values, columns=[f"feature {k + 1}" for k in range(values.shape[1])])
        raise_all(_feature_problems(frame, list(map(str, frame.columns)), [a.name for a in self.attributes]), self.name)
        return replace(self, features=Table(frame.set_axis(list(map(str, frame.columns)), axis=1)))

    def encoded_by(self, encoder: Encoder) -> "Scores":
        """These rows with their features encoded by the encoder of another set."""
        return self if self.features is None else replace(self, features=self.features.encoded_by(encoder))

    def encoded(self) -> "Scores":
        """These rows with their features encoded."""
        return self if self.features is None else self.encoded_by(self.features.fitted())

    def hold_out(self, fraction: float = 0.3, *, seed: int = 0) -> "tuple[Scores, Scores]":
        """The repair set, and the test set with this fraction of the patients; split by row if there are no patient ids.

        >>> scores = Scores.from_arrays([1, 0] * 50, [0.9, 0.2] * 50, ["F", "F", "M", "M"] * 25, reference="M")
        >>> [len(part) for part in scores.hold_out(0.3)]
        [70, 30]
        """
        return hold_out(self, fraction, seed=seed)

    def __repr__(self) -> str:
        return f"Scores({self.name!r}, {describe_rows(self.y, self.attributes, self.patients)})"

    def content(self) -> tuple[str, pd.DataFrame, None]:
        """What the rows contain, by which equal rows are found."""
        features = {} if self.features is None else {f"feature {name}": column for name, column in self.features.frame.items()}
        return "scores", pd.DataFrame({"score": self.score, "y": self.y, "group": self.groups, **features}), None

    @property
    def rank(self) -> FloatArray:
        """The values by which rows are ranked: the logits if there are any, because different logits may have the same score."""
        return self.score if self.logit is None else self.logit


def read_scores_of(frame: pd.DataFrame, columns: Columns, name: str = "scores") -> Scores:
    """The scores in the columns of a frame that have a role; raises `BadInput` with everything wrong with them."""
    source, features = name if name != "scores" else "", list(columns.features)
    raise_all(_feature_problems(frame, features, [*columns.used, columns.id]), source)
    read = read_columns(frame, columns, source)
    if read.score is None:
        raise BadInput("no score column was named", source=source)
    table = Table(frame[features].reset_index(drop=True)) if features else None
    score, logit = score_and_logit(read.score, columns.logits)
    return Scores(read.targets.y, score, read.attributes, read.patients, read.ids, name, read.weight, table, logit)


def score_and_logit(values: FloatArray, logits: bool) -> tuple[FloatArray, FloatArray | None]:
    """The scores, and the logits if the values are logits, which the logistic function maps to scores."""
    if not logits:
        return values, None
    from scipy.special import expit  # imported late because few files hold logits

    return np.asarray(expit(values)), values


Rows = Cohort | Scores  # the data that a repair is fitted to and evaluated on


def _feature_problems(frame: pd.DataFrame, features: Sequence[str], other_columns: Sequence[str | None]) -> list[str]:
    """The problems of columns named as features: absent, repeated, or with another role, such as the group."""
    return feature_problems(frame, features) + [
        f"column {c!r} is a feature and has another role (label, score, group, patient, id or weight). A rule that reads the group needs "
        "each patient's group: use group-thresholds for that. Leave it out of the features."
        for c in dict.fromkeys(features)
        if c in other_columns
    ]
