"""Scores: all that measures and post-processing may see. A CSV of scores from anywhere is enough to audit a classifier."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from equipoise.data.attribute import Attribute, FloatArray, IntArray, ObjectArray
from equipoise.data.bins import Bins
from equipoise.data.cohort import Cohort
from equipoise.data.columns import Roles, check_frame, described, frame_of, read_columns
from equipoise.data.splits import assign_units, generator
from equipoise.data.table import Encoder, Table
from equipoise.errors import BadInput, Misuse, did_you_mean, raise_all

FRAMED = "The columns of a frame are read by eq.Scores.from_frame(frame, label=..., score=..., group=...)."
OF_COHORT = "A cohort's scores are eq.Scores.of(cohort, score)."


@dataclass(frozen=True, eq=False)
class Scores:
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
    weight: FloatArray | None = None  # (n,) sample weights, positive; None where every row counts once
    features: Table | None = None  # further columns that a rule may read at prediction time; None where there are none
    targets: ClassVar[None] = None  # scores are those of one label, as a cohort without several labels is
    labels: ClassVar[tuple[str, ...]] = ()
    kind: ClassVar[str] = "labels"

    def __post_init__(self) -> None:
        if self.features is not None and len(self.features) != len(self.y):
            raise BadInput(
                f"the features have {len(self.features):,} rows, the scores {len(self.y):,}. Give the same rows in the same order."
            )

    @classmethod
    def from_frame(
        cls,
        frame: pd.DataFrame,
        *,
        label: str,
        score: str,
        group: str | Sequence[str],
        reference: str | Sequence[str] | None = None,
        patient: str | None = None,
        id: str | None = None,
        positive: object = None,
        bins: Mapping[str, Sequence[float] | Bins] | None = None,
        conflicts: str = "row",
        weight: str | None = None,
        features: Sequence[str] | None = None,
        logits: bool = False,
        name: str = "scores",
    ) -> "Scores":
        """The scores in a pandas frame, or one error that lists everything wrong with it.

        Groups, patients and ids are taken as they stand; read them as text (`pd.read_csv(path, dtype={"patient": str})`), because pandas
        turns 007 into 7. `bins={"age": [40, 60, 80]}` makes groups of a column of numbers. Attributes are those of a row: `conflicts`
        sets what happens to patients who have more than one group, "row" (as recorded), "first", "majority", "blank" or "error".

        `weight` names a column of sample weights (positive numbers), for case-control and survey samples: a row of weight 3 stands for
        three. Only their ratios matter.

        `features` names further columns, for repairs that read more than the score (`eq.debias(scores, method="bias-score")`). `logits`:
        the score column holds logits, which the logistic function maps to scores.
        """
        check_frame("Scores.from_frame", frame)
        roles = Roles(label, group, reference, patient, id, score, weight, positive, bins=bins, conflicts=conflicts, logits=logits)
        source = name if name != "scores" else ""
        raise_all(feature_problems(frame, features or (), (label, score, *roles.groups, patient, id, weight)), source)
        read = read_columns(frame, roles, source)
        assert read.score is not None  # a score column was named
        more = Table(frame[list(features)].reset_index(drop=True)) if features else None
        return cls(read.y, read.score, read.attributes, read.patients, read.ids, name, read.weight, more)

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
        """The scores in arrays: labels, scores, group names and patient ids, each in the same order. `bins` cuts groups that are numbers.

        >>> Scores.from_arrays([1, 0, 1, 0], [0.9, 0.2, 0.4, 0.3], ["F", "F", "M", "M"], reference="M").groups.tolist()
        ['F', 'F', 'M', 'M']
        """
        call, wanted = "Scores.from_arrays", "labels, scores and groups: from_arrays(y, score, groups)"
        if score is None or groups is None:
            raise Misuse(call, wanted, y, {"DataFrame": FRAMED, "Cohort": OF_COHORT})
        for values in (y, score, groups):
            if isinstance(values, (pd.DataFrame, Cohort, Scores)):
                raise Misuse(call, wanted, values, {"DataFrame": FRAMED, "Cohort": OF_COHORT})
        frame = frame_of({"y": y, "score": score, attribute: groups, "patient": patients, "weight": weights})
        named = {column: column for column in ("patient", "weight") if column in frame}
        edges = None if bins is None else {attribute: bins}
        columns: dict[str, Any] = {"label": "y", "score": "score", "group": attribute} | named
        return cls.from_frame(frame, reference=reference, bins=edges, conflicts=conflicts, name=name, **columns)

    @classmethod
    def of(cls, cohort: Cohort, score: object) -> "Scores":
        """A cohort's rows with the score that some classifier gave each."""
        if not isinstance(cohort, Cohort):
            raise Misuse("Scores.of", "a cohort and one score per row: Scores.of(cohort, score)", cohort, {"DataFrame": FRAMED})
        try:
            values = np.asarray(score, dtype=np.float64).reshape(-1)
        except (TypeError, ValueError):
            raise BadInput(f"the scores for {cohort.name!r} must be numbers in [0, 1], one per row; got {type(score).__name__}") from None
        if len(values) != len(cohort):
            raise BadInput(f"{len(values):,} scores for {len(cohort):,} rows of {cohort.name!r}. Give one score per row.")
        if not np.isfinite(values).all() or (values < 0).any() or (values > 1).any():
            bad = int((~(np.isfinite(values) & (values >= 0) & (values <= 1))).sum())
            raise BadInput(f"{bad:,} of {len(values):,} scores for {cohort.name!r} are NaN or lie outside [0, 1]. Give probabilities.")
        return cls(cohort.y, values, cohort.attributes, cohort.patients, cohort.ids, cohort.name, cohort.weight)

    def with_features(self, features: object) -> "Scores":
        """The same scores with columns that a rule may read: a frame, or an array (n, d), of the same rows in the same order."""
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
        raise_all(feature_problems(frame, list(map(str, frame.columns)), [a.name for a in self.attributes]), self.name)
        return replace(self, features=Table(frame.set_axis(list(map(str, frame.columns)), axis=1)))

    def encoded_by(self, encoder: Encoder) -> "Scores":
        """The same rows with their features seen through another set's encoder."""
        return self if self.features is None else replace(self, features=self.features.encoded_by(encoder))

    def take(self, index: object, name: str | None = None) -> "Scores":
        """Some of the rows, by position or mask."""
        rows = np.arange(len(self))[np.asarray(index)]
        patients, weight = (None if values is None else values[rows] for values in (self.patients, self.weight))
        features = None if self.features is None else self.features.take(rows)
        attributes = tuple(a.take(rows) for a in self.attributes)
        return Scores(self.y[rows], self.score[rows], attributes, patients, self.ids[rows], name or self.name, weight, features)

    def hold_out(self, fraction: float = 0.3, *, seed: int = 0) -> "tuple[Scores, Scores]":
        """The repair set, and this fraction of the patients held out as the test set; by row where there are no patient ids.

        >>> scores = Scores.from_arrays([1, 0] * 50, [0.9, 0.2] * 50, ["F", "F", "M", "M"] * 25, reference="M")
        >>> [len(part) for part in scores.hold_out(0.3)]
        [70, 30]
        """
        repair, test = hold_out_scores({"": self}, fraction, seed=seed)
        return repair[""], test[""]

    def labelled(self, label: str) -> "Scores":
        """Raises an error, because scores have one label."""
        raise BadInput(f"{self.name!r} holds the scores of one label, not of {label!r} and others. Give one set of scores per label.")

    def __repr__(self) -> str:
        """How many rows, patients and positives there are, by group; no value of any row, which may be a patient's."""
        return f"Scores({self.name!r}, {described(self.y, self.attributes, self.patients)})"

    def __len__(self) -> int:
        return len(self.y)

    @property
    def attribute(self) -> Attribute:
        """The protected attribute; with several columns, their intersection."""
        return Attribute.crossed(self.attributes)

    @property
    def groups(self) -> ObjectArray:
        """The group of each row by name, None where it is missing."""
        return self.attribute.names


Rows = Cohort | Scores  # what a repair is fitted and judged on


def feature_problems(frame: pd.DataFrame, features: Sequence[str], taken: Sequence[str | None]) -> list[str]:
    """What is wrong with columns named as features: absent, named twice, or with another role, such as the group itself."""
    problems = [f"no feature column {c!r}.{did_you_mean(c, map(str, frame.columns), 0.6)}" for c in features if c not in frame.columns]
    twice = dict.fromkeys(c for c in features if list(features).count(c) > 1)
    problems += [f"feature column {c!r} is named more than once. Name it once." for c in twice]
    return problems + [
        f"column {c!r} is a feature and has another role (label, score, group, patient, id or weight). A rule that reads the group needs "
        "each patient's group: use group-thresholds for that. Leave it out of the features."
        for c in dict.fromkeys(features)
        if c in taken
    ]


def hold_out_scores(scores: Mapping[str, Scores], fraction: float = 0.3, *, seed: int = 0) -> tuple[dict[str, Scores], dict[str, Scores]]:
    """The repair set and the test set of the scores of one or several labels, of which no patient is in both, whichever label.

    By patient and stratified as `hold_out`; without patient ids by row, whose id must then be the same in every label.
    """
    if not 0 < fraction < 1:
        raise BadInput(f"the fraction to hold out must lie between 0 and 1; got {fraction}")
    units = {label: own.ids if own.patients is None else own.patients for label, own in scores.items()}
    rows = pd.concat(
        [pd.DataFrame({"unit": units[label], "group": pd.Series(own.groups).fillna(""), "y": own.y}) for label, own in scores.items()]
    )
    each = rows.groupby("unit", sort=False).agg(group=("group", "first"), y=("y", "max")).reset_index()
    stratum = np.asarray(pd.factorize(each["group"] + "/" + each["y"].astype(str))[0], dtype=np.int64)
    shares = np.array([1 - fraction, fraction, 0.0])
    part = assign_units(stratum, np.ones(len(each), np.int64), shares, generator(seed, "keep aside"))
    held = set(each["unit"].to_numpy(dtype=object)[part == 1])
    outside = {label: np.array([unit in held for unit in units[label]], bool) for label in scores}
    if any(not own.any() or own.all() for own in outside.values()):
        raise BadInput(f"{len(each):,} patients or rows are too few to hold out {fraction:g} of them. Use more data.")
    repair = {label: own.take(~outside[label], f"{own.name}/repair") for label, own in scores.items()}
    return repair, {label: own.take(outside[label], f"{own.name}/test") for label, own in scores.items()}
