"""Patients whose recorded group is not the same in all of their rows, and what may be done about it.

Attributes are those of a row: an age changes between two images, and a recorded race may. Patients stay the unit of splitting and
resampling whatever their rows say.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from equipoise.data.attribute import MISSING, Attribute, IntArray
from equipoise.errors import BadInput

ObjectArray = npt.NDArray[np.object_]
CONFLICTS = {  # what to do with a patient whose rows have more than one group, and how that is said
    "row": "each row counts in its own group",
    "first": "the first group in the table was used for all their rows",
    "majority": "the most frequent group, and of equally frequent ones the first, was used for all their rows",
    "blank": "their rows count as having no group",
    "error": "they are refused",
}


def settled(attribute: Attribute, patients: "pd.Series[Any]", rule: str) -> Attribute:
    """The attribute with the conflicts within patients settled by a rule of CONFLICTS, and how many patients had one.

    Rows without a group stay without one. Raises where the rule is `error` and a patient has more than one group.
    """
    units = np.asarray(pd.factorize(patients)[0], dtype=np.int64)
    mixed = varying(attribute.codes, units)
    count = int(mixed.sum())
    noted = replace(attribute, varied=count, conflicts=rule)
    if not count or rule == "row":
        return noted
    names = patients.to_numpy(dtype=object)
    if rule == "error":
        some = list(dict.fromkeys(str(name) for name in names[mixed[units]]))[:5]
        raise BadInput(
            f"patient column {patients.name!r}: {count:,} of {len(set(units)):,} patients have more than one {attribute.name!r}: "
            f"{', '.join(some)}{' ...' if count > len(some) else ''}. Correct them, leave it empty where it is not known, or choose how "
            "they count with --conflicts row, first, majority or blank (in Python conflicts=...)."
        )
    codes = settled_codes(attribute.codes, units, rule)
    levels, place = without_empty(attribute, np.bincount(codes[codes != MISSING], minlength=len(attribute.levels)), rule)
    return replace(noted, levels=levels, codes=np.append(place, MISSING)[codes])


def settled_codes(codes: IntArray, units: IntArray, rule: str) -> IntArray:
    """The codes with one group for all rows of a unit, its first or most frequent one; or none, for those with several, if `blank`."""
    rows = varying(codes, units)[units] & (codes != MISSING)
    found = codes.copy()
    found[rows] = MISSING if rule == "blank" else _of_units(codes, units, by_count=rule == "majority")[units[rows]]
    return found


@dataclass(frozen=True)
class Varying:
    """How many patients have more than one recorded group of an attribute, and by which rule of CONFLICTS they count."""

    attribute: str
    patients: int
    rule: str


def varying_in(attributes: Sequence[Attribute], patients: ObjectArray | None) -> tuple[Varying, ...]:
    """The attributes that vary within patients: those of these rows, or of the whole table where a rule has settled them."""
    found = [
        Varying(a.name, patients_varying(a, patients) if a.conflicts == "row" else a.varied, a.conflicts)
        for a in attributes
        if patients is not None
    ]
    return tuple(each for each in found if each.patients)


def varying(codes: IntArray, units: IntArray) -> npt.NDArray[np.bool_]:
    """Which units (patients, 0 .. U-1) have rows in more than one group; rows without a group do not count."""
    known = codes != MISSING
    width = int(codes.max(initial=0)) + 1
    pairs = distinct(units[known] * width + codes[known])
    return np.bincount(pairs // width, minlength=int(units.max(initial=-1)) + 1) > 1


def patient_codes(patients: npt.NDArray[Any]) -> IntArray:
    """The patient of each row as a code 0 .. P-1. Codes in ascending order (int64), as of a table read in batches, are themselves."""
    if patients.dtype == np.int64 and len(patients) and patients[0] == 0:
        steps = np.diff(patients)
        if steps.min(initial=0) >= 0 and steps.max(initial=0) <= 1:
            return np.asarray(patients, dtype=np.int64)
    return np.asarray(pd.factorize(patients)[0], dtype=np.int64)


def distinct(keys: IntArray) -> IntArray:
    """The different integers, sorted. 10 million take 0.2 s, and `np.unique` 8 s (NumPy 2.4)."""
    ordered = np.sort(keys)
    return ordered[np.concatenate([[True], ordered[1:] != ordered[:-1]])] if len(ordered) else ordered


def patients_varying(attribute: Attribute, patients: ObjectArray | None) -> int:
    """How many patients have rows in more than one group of this attribute."""
    return 0 if patients is None else int(varying(attribute.codes, patient_codes(patients)).sum())


def main_group(codes: IntArray, units: IntArray) -> IntArray:
    """The group of each unit, for stratifying: the one that most of its rows have, of equally frequent ones the first; -1 if none has."""
    return _of_units(codes, units, by_count=True)


def _of_units(codes: IntArray, units: IntArray, *, by_count: bool) -> IntArray:
    """The first or the most frequent known group of each unit; -1 where there is none."""
    found = np.full(int(units.max(initial=-1)) + 1, MISSING, np.int64)
    known = np.flatnonzero(codes != MISSING)
    width = int(codes.max(initial=0)) + 1
    pairs, first, counts = np.unique(units[known] * width + codes[known], return_index=True, return_counts=True)
    # The last that is written stays: the largest count, or, where counts are equal or do not matter, the earliest row.
    order = np.lexsort((-first, counts)) if by_count else np.argsort(-first, kind="stable")
    found[pairs[order] // width] = pairs[order] % width
    return found


def without_empty(attribute: Attribute, counts: IntArray, rule: str) -> tuple[tuple[str, ...], IntArray]:
    """The levels that have rows after a rule was applied, and the place of each former level among them.

    Raises where a reference or a second group is lost.
    """
    there = counts > 0
    if there.sum() < 2 or not there[0]:
        lost = [repr(level) for level, has in zip(attribute.levels, there, strict=True) if not has]
        raise BadInput(
            f"column {attribute.name!r}: with conflicts={rule!r} no row is left in {', '.join(lost)}. Choose another rule or reference."
        )
    levels = tuple(level for level, has in zip(attribute.levels, there, strict=True) if has)
    return levels, np.where(there, np.cumsum(there) - 1, MISSING)
