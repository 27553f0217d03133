"""Patients of earlier periods, who are left out of a repeated audit. Nothing about them is stored: the earlier tables are read again.

Audits that are repeated over time assume that each patient is in one period. A patient who returns would be counted again, and limits that
should hold over all periods would be too narrow.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from equipoise.data.column_values import missing_columns
from equipoise.data.scores import Scores
from equipoise.data.table_files import read_table
from equipoise.errors import BadInput


@dataclass(frozen=True)
class ReturningPatients:
    """The numbers of patients, and of their rows, that were in an earlier period."""

    patients: int
    of_patients: int
    rows: int
    of_rows: int
    left_out: bool

    def to_dict(self) -> dict[str, object]:
        """Plain values; counts only."""
        return dict(vars(self))


def patients_in(files: Sequence[str | Path], column: str, *, limit: int | None = None) -> frozenset[str]:
    """The patient ids in a column of these tables, as text."""
    patients: set[str] = set()
    for file in files:
        frame = read_table(file, text={column}, limit=limit)
        if column not in frame.columns:
            raise BadInput(*missing_columns([column], list(map(str, frame.columns))), source=Path(file).name)
        patients |= set(frame[column].dropna().astype(str))
    return frozenset(patients)


def first_periods(
    scores: Mapping[str, Scores], earlier: Collection[str], *, keep: bool = False
) -> tuple[dict[str, Scores], ReturningPatients]:
    """The scores of each label without the patients of `earlier` periods, and the number of these patients. `keep` keeps them.

    >>> rows = Scores.from_arrays([0, 1, 1], [0.1, 0.8, 0.4], ["F", "M", "F"], reference="M", patients=["a", "b", "c"])
    >>> new, returning = first_periods({"y": rows}, {"b", "x"})
    >>> len(new["y"]), returning.patients, returning.of_patients
    (2, 1, 3)
    """
    patients, returning_patients, returning_rows = set(), set(), {}
    for label, label_scores in scores.items():
        if label_scores.patients is None:
            raise BadInput("patients of earlier periods are found by their ids. Name the column of patients: patient= (--patient).")
        ids = np.asarray(label_scores.patients, dtype=object).astype(str)
        returning_rows[label] = np.isin(ids, list(earlier))
        returning_patients |= set(ids[returning_rows[label]])
        patients |= set(ids)
    if len(returning_patients) == len(patients) and not keep:
        raise BadInput(
            f"all {len(patients):,} patients are in earlier periods, so no row is left. Name the tables of earlier periods only, not this "
            "one."
        )
    longest = max(returning_rows.values(), key=len)
    counts = ReturningPatients(len(returning_patients), len(patients), int(longest.sum()), len(longest), not keep)
    if keep or not returning_patients:
        return dict(scores), counts
    return {label: label_scores.take(~returning_rows[label]) for label, label_scores in scores.items()}, counts
