"""Warnings about tables whose rows seem to be of the same patients, although they count as rows of different ones.

Without a patient column, every row counts as independent; with one, ids that differ only in what cannot be seen count as two patients.
Intervals and p-values are too small then.
"""

import logging
import re

import numpy as np
import pandas as pd

from equipoise.data.alike_names import alike_names, warn_of_alike_patients
from equipoise.data.columns import Columns

NAMES = {"patient", "patients", "patientid", "patid", "ptid", "pid", "subject", "subjectid", "personid", "mrn"}  # in any spelling
TELLING = 0.95  # share of different values in a column that tells patients apart, such as a score that is not rounded
FEWEST = 20  # distinct rows; among fewer, values differ by chance
log = logging.getLogger(__name__)


def warn_of_repeated_patients(frame: pd.DataFrame, columns: Columns) -> None:
    """Warns if rows seem to be of the same patients: by ids that are alike; without named patients, by a column of ids or as duplicates."""
    if columns.patient is not None:
        column = frame[columns.patient]
        if not pd.api.types.is_numeric_dtype(column):
            warn_of_alike_patients(alike_names(name for name in column.unique() if isinstance(name, str)), columns.patient)
        return
    used = {*columns.used, columns.id}
    for position, name in enumerate(frame.columns):
        if name in used or re.sub(r"[\W_]", "", str(name)).lower() not in NAMES:
            continue
        column = frame.iloc[:, position]
        patients, rows = _distinct(column), int(column.notna().sum())
        if 2 < patients < rows:  # two values are a yes or no, such as inpatient or not
            log.warning(
                "rows are treated as independent; column %r has repeated values (%s in %s rows): name it with --patient (patient=)",
                str(name),
                f"{patients:,}",
                f"{rows:,}",
            )
            return
    if columns.id is None and (duplicates := _duplicates(frame)):
        log.warning(
            "rows are treated as independent; %s of %s rows are exact duplicates of others: leave them out, or name the column of patients "
            "with --patient (patient=)",
            f"{duplicates:,}",
            f"{len(frame):,}",
        )


def _distinct(column: "pd.Series[object]") -> int:
    try:
        return int(column.nunique())
    except TypeError:  # cells that hold lists
        return 0


def _duplicates(frame: pd.DataFrame) -> int:
    """The number of rows that repeat another one; 0 if equal rows may be of different patients, since no column tells patients apart."""
    decimals = [k for k, dtype in enumerate(frame.dtypes) if dtype.kind == "f"][:4]
    try:
        # Equal rows are first sought by a few columns: in a table of hundreds, comparing all of them takes seconds.
        alike = frame.iloc[:, decimals].duplicated(keep=False).to_numpy(bool) if decimals else np.ones(len(frame), bool)
        repeated = np.zeros(len(frame), bool)
        repeated[alike] = frame[alike].duplicated().to_numpy(bool)
    except TypeError:  # cells that hold lists
        return 0
    distinct = frame[~repeated]
    if not repeated.any() or len(distinct) < FEWEST:
        return 0
    telling = any(_distinct(distinct.iloc[:, k]) >= TELLING * len(distinct) for k in range(distinct.shape[1]))
    return int(repeated.sum()) if telling else 0
