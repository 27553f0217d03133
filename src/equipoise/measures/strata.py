"""Gaps within strata: the difference between groups among comparable patients, such as those with the same view.

The rates of both groups are averaged over the strata with the weights of Mantel and Haenszel, n1 n0 / (n1 + n0), where n1 and n0 are the
rows of the group and of the reference that the rate counts. A gap is then the difference of two rates of the same mix of strata. Its
variance comes from the sums of each patient over all strata, with each residual from the rate of its own stratum, divided by one minus the
patient's share of it (CR3). A stratum in which either side has fewer than two patients says nothing and is left out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import pandas as pd

from equipoise.data import Attribute, BoolArray, FloatArray, IntArray, Scores
from equipoise.measures.audit import WITHIN_COLUMNS
from equipoise.measures.audit_spec import AuditSpec
from equipoise.measures.cells import ratio
from equipoise.measures.intervals import INSUFFICIENT_DATA
from equipoise.measures.measure_table import measure_of
from equipoise.measures.moments import SignedSum, moments_of_scores, units_of


def counted(rate: str, f: FloatArray, y: IntArray) -> tuple[FloatArray, FloatArray]:
    """What each row adds to the numerator and to the denominator of a rate (n,)."""
    label = y.astype(np.float64)
    counts = {
        "selection_rate": (f, np.ones(len(f))),
        "tpr": (f * label, label),
        "fpr": (f * (1 - label), 1 - label),
        "ppv": (f * label, f),
        "npv": ((1 - f) * (1 - label), 1 - f),
    }
    return counts[rate]


def gaps_within(scores: Scores, f: FloatArray, attributes: Sequence[Attribute], spec: AuditSpec) -> pd.DataFrame:
    """One row per attribute, gap and group: the gap within the strata of these rows, with its interval.

    `f` are the decisions on the rows. `crude` is the gap of all patients, `strata` the number of strata with both groups, `patients` the
    number of patients of the smaller group in them, `left_out` the rows of the group in no such stratum.
    """
    strata, found = scores.strata, list[tuple[object, ...]]()
    if strata is None:
        return pd.DataFrame(found, columns=WITHIN_COLUMNS)
    weight = np.ones(len(scores)) if scores.weight is None else scores.weight
    units = units_of(scores.patients, len(scores))
    for attribute, gap in product(attributes, spec.gaps):
        signs, codes = measure_of(gap).coefficients, attribute.codes
        for k, group in enumerate(attribute.others, 1) if attribute.name != strata.name else ():
            sides = []
            for rate in signs:
                top, bottom = counted(rate, f, scores.y)
                sides.append(_standardised(weight * top, weight * bottom, codes, k, strata, units))
            shared = np.all([each.comparable for each in sides], axis=0)
            kept = (strata.codes >= 0) & shared[strata.codes]
            patients = min(len(np.unique(units[kept & (codes == code)])) for code in (0, k))
            crude = float(moments_of_scores(scores, f, attribute).gap(signs).total[k - 1])
            about = crude, int(shared.sum()), patients, int(((codes == k) & ~kept).sum())
            ends, note = [np.nan] * 3, ""
            if patients >= spec.min_patients:
                ends = [float(end[0]) for end in _difference(list(signs.values()), sides).limits(spec.level)]
            else:
                lacking = f"fewer than {spec.min_patients} patients" if shared.any() else "no patients of both groups"
                note = f"{INSUFFICIENT_DATA}: {lacking} with the same {strata.name}"
            found.append((strata.name, gap, attribute.name, group, attribute.reference, *ends, *about, note))
    return pd.DataFrame(found, columns=WITHIN_COLUMNS)


@dataclass(frozen=True, eq=False)
class Standardised:
    """One rate of a group and of the reference over the same mix of strata."""

    value: FloatArray  # (2,): of the group and of the reference
    contribution: FloatArray  # (2, patients): of each patient to the deviation of the rate from its expectation
    rows: FloatArray  # (2,): the number of independent rows of equal weight that it rests on
    effective: FloatArray  # (2,): the effective number of patients
    comparable: BoolArray  # (strata,): whether both sides have two patients


def _standardised(top: FloatArray, bottom: FloatArray, codes: IntArray, k: int, strata: Attribute, units: IntArray) -> Standardised:
    """A rate of group k and of the reference, from what each row adds to its numerator and denominator."""
    width, people = len(strata.levels), int(units.max(initial=-1)) + 1
    side = np.select([codes == k, codes == 0], [0, 1], -1)
    rows = np.flatnonzero((side >= 0) & (strata.codes >= 0) & (bottom > 0))
    pairs, place = np.unique((side[rows] * width + strata.codes[rows]) * people + units[rows], return_inverse=True)
    cell, person = pairs // people, pairs % people  # of a patient in a stratum of a side
    a, b = (np.bincount(place, column[rows], len(pairs)).astype(np.float64) for column in (top, bottom))
    n, s, patients = (np.bincount(cell, column, 2 * width).astype(np.float64).reshape(2, width) for column in (b, a, np.ones(len(pairs))))
    comparable = np.asarray((patients >= 2).all(axis=0))
    share = np.where(comparable, np.nan_to_num(ratio(n[0] * n[1], n.sum(0))), 0.0)
    share = share / max(float(share.sum()), np.finfo(float).tiny)
    rates, of_cell = np.nan_to_num(ratio(s, n)), n.reshape(-1)[cell]
    per_row = np.tile(share, 2)[cell] / of_cell
    spread = ratio(per_row * (a - rates.reshape(-1)[cell] * b), 1 - b / of_cell)  # CR3
    contribution, weight = np.zeros((2, people)), np.zeros((2, people))
    np.add.at(contribution, (cell // width, person), np.where(comparable[cell % width], np.nan_to_num(spread), 0.0))
    np.add.at(weight, (cell // width, person), per_row * b)
    squares = np.bincount(cell // width, per_row**2 * b, 2).astype(np.float64)
    return Standardised((share * rates).sum(1), contribution, ratio(np.ones(2), squares), ratio(np.ones(2), (weight**2).sum(1)), comparable)


def _difference(signs: Sequence[float], rates: Sequence[Standardised]) -> SignedSum:
    """The signed sum of the rates of the group, minus that of the reference, as one sum with the correlations of its terms."""
    terms = [(sign * (1 - 2 * side), side, rate) for side in (0, 1) for sign, rate in zip(signs, rates, strict=True)]
    value, rows, effective, contribution = (
        np.array([getattr(rate, name)[side] for _, side, rate in terms]) for name in ("value", "rows", "effective", "contribution")
    )
    side = np.array([side for _, side, _ in terms])
    covariance = np.where(side[:, None] == side, contribution @ contribution.T, 0.0)  # the two groups have different patients
    variance = np.diag(covariance)
    sd = np.sqrt(variance)
    correlation = np.where(np.eye(len(terms), dtype=bool), 1.0, np.nan_to_num(ratio(covariance, np.outer(sd, sd))))
    size = np.where(variance > 0, np.nan_to_num(ratio(value * (1 - value), variance)), np.minimum(rows, effective))
    of_terms = np.array([sign for sign, *_ in terms]), value, size, np.maximum(effective - 1, 1.0), np.full(len(terms), np.nan)
    return SignedSum(*[*(each[None] for each in of_terms), np.clip(correlation, -1.0, 1.0)[None]])
