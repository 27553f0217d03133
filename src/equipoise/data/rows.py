"""What a cohort and scores have in common: the label, groups, patient, id and weight of each row."""

from dataclasses import replace
from typing import Any, Self

import numpy as np

from equipoise.data.attribute import Attribute, FloatArray, IntArray, ObjectArray
from equipoise.data.columns import LabelKind
from equipoise.data.targets import UNNAMED
from equipoise.errors import BadInput

ARRAYS = ("y", "targets", "score", "logit", "patients", "ids", "weight")  # fields with one entry per row
INPUTS = ("source", "features")  # fields whose rows are taken by their own `take`


class Grouped:
    """Rows with a label, groups and patients: a `Cohort` or `Scores`, which are frozen dataclasses with these fields."""

    y: IntArray
    attributes: tuple[Attribute, ...]
    patients: ObjectArray | None
    ids: ObjectArray
    name: str
    weight: FloatArray | None
    labels: tuple[str, ...] = UNNAMED
    kind: LabelKind = LabelKind.LABELS

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

    @property
    def several(self) -> bool:
        """Whether the labels have names, by which the outputs of a network are chosen."""
        return self.labels != UNNAMED

    def labelled(self, label: str) -> Self:
        """The rows in which a label is known, with that label only."""
        if label:
            raise BadInput(f"{self.name!r} holds the scores of one label, not of {label!r} and others. Give one set of scores per label.")
        return self

    def column(self, label: str) -> IntArray:
        """A label in every row (n,): 0, 1, or -1 if unknown."""
        return self.labelled(label).y

    @property
    def outcome(self) -> IntArray:
        """What the classifier predicts for each row (n,): the label as 0 or 1, or the position of the class."""
        return self.y

    def fixed(self) -> Self:
        """These rows with their own encoding of a table, which all parts of them keep."""
        return self

    @property
    def by_label(self) -> dict[str, Self]:
        """The rows in which each label is known, with that label only, by name; the name of the only label is empty."""
        return {label: self.labelled(label) for label in self.labels}

    def take(self, index: object, name: str | None = None) -> Self:
        """The selected rows, by position or mask."""
        rows = np.arange(len(self))[np.asarray(index)]
        there = {field: values for field in (*ARRAYS, *INPUTS) if (values := getattr(self, field, None)) is not None}
        taken = {field: values.take(rows) if field in INPUTS else values[rows] for field, values in there.items()}
        this: Any = self  # a dataclass
        selected: Self = replace(this, name=name or self.name, attributes=tuple(a.take(rows) for a in self.attributes), **taken)
        return selected
