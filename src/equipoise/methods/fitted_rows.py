"""The rows that a candidate was fitted to, by which a test set that contains some of them is detected."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch

from equipoise.data import FloatArray, IntArray, ObjectArray, Rows, Scores, Table


@dataclass(frozen=True, eq=False)
class FittedRows:
    """Patients and ids of the rows that a candidate was fitted to; for rows that are only numbered, also what they contain."""

    patients: ObjectArray | None
    ids: ObjectArray
    y: IntArray
    groups: ObjectArray
    values: FloatArray | IntArray | None  # one number per row that differs between rows; None if it is not needed or not known

    @classmethod
    def of(cls, rows: Rows) -> "FittedRows":
        """The identities of these rows; arrays are shared, not copied."""
        needed = rows.patients is None and _numbered(rows.ids)
        return cls(rows.patients, rows.ids, rows.y, rows.groups, _values(rows) if needed else None)

    def shared_with(self, rows: Rows) -> tuple[int, str]:
        """How many of these rows the candidate was fitted to, and the unit of that number: patients if they are known, otherwise rows.

        Rows without ids are numbered from 0, so equal numbers do not show that rows are the same. They count as the same if all rows with
        equal numbers have the same labels, groups and values.

        >>> scores = Scores.from_arrays([1, 0] * 50, np.arange(100) / 100, ["F", "F", "M", "M"] * 25)
        >>> repair, test = scores.hold_out(0.3)
        >>> FittedRows.of(repair).shared_with(scores), FittedRows.of(repair).shared_with(test)
        ((70, 'rows'), (0, 'rows'))
        """
        if self.patients is not None and rows.patients is not None:
            return len(set(self.patients) & set(rows.patients)), "patients"
        place = {key: k for k, key in enumerate(self.ids)}
        shared = np.array([k for k, key in enumerate(rows.ids) if key in place], dtype=np.int64)
        if _numbered(self.ids) and _numbered(rows.ids):
            fitted, other = np.array([place[key] for key in rows.ids[shared]], dtype=np.int64), FittedRows.of(rows)
            pairs = [(self.y, other.y), (self.groups, other.groups), (self.values, other.values)]
            known = [(mine, theirs) for mine, theirs in pairs if mine is not None and theirs is not None]
            if not all(np.array_equal(mine[fitted], theirs[shared]) for mine, theirs in known):
                return 0, "rows"
        return len(shared), "rows"


def _numbered(ids: ObjectArray) -> bool:
    """Whether ids may be mere row numbers."""
    return all(isinstance(key, (int, np.integer)) for key in ids)


def _values(rows: Rows) -> FloatArray | IntArray | None:
    """The score of each row, or a hash or sum of its inputs; None for image files, which are not read for this."""
    if isinstance(rows, Scores):
        return rows.score
    if isinstance(rows.source, Table):
        hashes: IntArray = pd.util.hash_pandas_object(rows.source.frame, index=False).to_numpy(dtype=np.uint64).view(np.int64)
        return hashes
    if isinstance(rows.source, torch.Tensor):
        sums: FloatArray = rows.source.flatten(1).sum(1, dtype=torch.float64).cpu().numpy()
        return sums
    return None
