"""Scores: all that measures and post-processing may see. A CSV of scores from anywhere is enough to audit a classifier."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from equipoise.data.attribute import Attribute, IntArray
from equipoise.data.cohort import Cohort
from equipoise.data.columns import FloatArray, ObjectArray, read_columns
from equipoise.errors import BadInput


@dataclass(frozen=True, eq=False)
class Scores:
    """One score in [0, 1] a row, beside its label, its groups and its patient.

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
        name: str = "scores",
    ) -> "Scores":
        """The scores in a pandas frame, or one error that lists everything wrong with it."""
        read = read_columns(
            frame,
            label=label,
            group=group,
            reference=reference,
            patient=patient,
            id=id,
            score=score,
            positive=positive,
            source=name if name != "scores" else "",
        )
        assert read.score is not None  # a score column was named
        return cls(read.y, read.score, read.attributes, read.patients, read.ids, name)

    @classmethod
    def from_arrays(
        cls,
        y: object,
        score: object,
        groups: object,
        *,
        reference: str | None = None,
        patients: object = None,
        attribute: str = "group",
        name: str = "scores",
    ) -> "Scores":
        """The scores in arrays: labels, scores, group names and patient ids, each in the same order.

        >>> Scores.from_arrays([1, 0, 1, 0], [0.9, 0.2, 0.4, 0.3], ["F", "F", "M", "M"], reference="M").groups.tolist()
        ['F', 'F', 'M', 'M']
        """
        columns = {"y": y, "score": score, attribute: groups} | ({} if patients is None else {"patient": patients})
        arrays = {key: np.asarray(values, dtype=object) for key, values in columns.items()}
        lengths = {key: len(values) for key, values in arrays.items()}
        if len(set(lengths.values())) > 1:
            raise BadInput(f"arrays of one set of scores have the same length; got {lengths}")
        patient = None if patients is None else "patient"
        frame = pd.DataFrame(arrays)
        return cls.from_frame(frame, label="y", score="score", group=attribute, reference=reference, patient=patient, name=name)

    @classmethod
    def of(cls, cohort: Cohort, score: object) -> "Scores":
        """A cohort's rows with the score that some classifier gave each."""
        values = np.asarray(score, dtype=np.float64).reshape(-1)
        if len(values) != len(cohort):
            raise BadInput(f"{len(values):,} scores for {len(cohort):,} rows of {cohort.name!r}. Give one score a row.")
        if not np.isfinite(values).all() or (values < 0).any() or (values > 1).any():
            bad = int((~(np.isfinite(values) & (values >= 0) & (values <= 1))).sum())
            raise BadInput(f"{bad:,} of {len(values):,} scores for {cohort.name!r} are NaN or lie outside [0, 1]. Give probabilities.")
        return cls(cohort.y, values, cohort.attributes, cohort.patients, cohort.ids, cohort.name)

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
