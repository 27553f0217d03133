"""Patients who were seen in earlier periods. Nothing about them is stored: the tables of those periods are read again.

Audits that are repeated over time assume that each patient is in one period. A patient who returns is counted again, and limits that should
hold over all periods become too narrow. With the tables of earlier periods at hand, such patients are found, and left out.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from equipoise.data.scores import Scores
from equipoise.data.table_files import read_table
from equipoise.errors import BadInput, did_you_mean


@dataclass(frozen=True)
class Returning:
    """How many patients, and rows of theirs, were in an earlier period."""

    patients: int
    of_patients: int
    rows: int
    of_rows: int
    left_out: bool

    def to_dict(self) -> dict[str, object]:
        """Plain values; counts only."""
        return dict(vars(self))


def patients_in(files: Sequence[str | Path], column: str, *, limit: int | None = None) -> frozenset[str]:
    """The patients in these tables, by their column, as text."""
    found: set[str] = set()
    for file in files:
        frame = read_table(file, text={column}, limit=limit)
        if column not in frame.columns:
            near = did_you_mean(column, map(str, frame.columns), 0.6)
            shown = ", ".join(map(str, frame.columns))
            raise BadInput(f"no column {column!r} with the patients.{near} The columns are: {shown}.", source=Path(file).name)
        found |= set(frame[column].dropna().astype(str))
    return frozenset(found)


def first_periods(scores: Mapping[str, Scores], earlier: Collection[str], *, keep: bool = False) -> tuple[dict[str, Scores], Returning]:
    """The scores of each label without the patients of `earlier` periods, unless they are kept, and how many those are.

    >>> rows = Scores.from_arrays([0, 1, 1], [0.1, 0.8, 0.4], ["F", "M", "F"], reference="M", patients=["a", "b", "c"])
    >>> new, found = first_periods({"y": rows}, {"b", "x"})
    >>> len(new["y"]), found.patients, found.of_patients
    (2, 1, 3)
    """
    seen, every, rows = set(), set(), {}
    for label, own in scores.items():
        if own.patients is None:
            raise BadInput("patients of earlier periods are found by their ids. Name the column of patients: patient= (--patient).")
        ids = np.asarray(own.patients, dtype=object).astype(str)
        rows[label] = np.isin(ids, list(earlier))
        seen |= set(ids[rows[label]])
        every |= set(ids)
    first = max(rows.values(), key=len)
    if len(seen) == len(every) and not keep:
        raise BadInput(
            f"all {len(every):,} patients are in earlier periods, so no row is left. Name the tables of earlier periods only, not this one."
        )
    found = Returning(len(seen), len(every), int(first.sum()), len(first), not keep)
    if keep or not seen:
        return dict(scores), found
    return {label: own.take(np.flatnonzero(~rows[label])) for label, own in scores.items()}, found
