"""Gaps within strata: the difference between groups among comparable patients, such as those with the same view.

The rates of both groups are averaged over the strata with the weights of Mantel and Haenszel, n1 n0 / (n1 + n0), where n1 and n0 are the
rows of the group and of the reference that the rate counts. A gap is then the difference of two rates of the same mix of strata. Its
variance comes from the sums of each patient over all strata, with each residual from the rate of its own stratum, divided by one minus the
patient's share of it (CR3), and has Satterthwaite's degrees of freedom, as that of all patients has. A stratum in which either side has
fewer than two patients says nothing and is left out. With one stratum, gap and interval are those of all patients.
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
from equipoise.measures.moments import Clusters, SignedSum, moments_of_scores, units_of


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
    size: FloatArray  # (2,): the effective sample size
    degrees: FloatArray  # (2,): of freedom of the variance
    comparable: BoolArray  # (strata,): whether both sides have two patients


def _standardised(top: FloatArray, bottom: FloatArray, codes: IntArray, k: int, strata: Attribute, units: IntArray) -> Standardised:
    """A rate of group k and of the reference, from what each row adds to its numerator and denominator."""
    width, people = len(strata.levels), int(units.max(initial=-1)) + 1
    side = np.select([codes == k, codes == 0], [0, 1], -1)
    rows = np.flatnonzero((side >= 0) & (strata.codes >= 0) & (bottom > 0))
    cell_of_row = side[rows] * width + strata.codes[rows]
    pairs, member = np.unique(cell_of_row * people + units[rows], return_inverse=True)
    cell, person = pairs // people, pairs % people  # of a patient in a stratum of a side
    a, b = (np.bincount(member, column[rows], len(pairs)).astype(np.float64) for column in (top, bottom))
    n, s, patients = (np.bincount(cell, column, 2 * width).astype(np.float64).reshape(2, width) for column in (b, a, np.ones(len(pairs))))
    comparable = np.asarray((patients >= 2).all(axis=0))
    share = np.where(comparable, np.nan_to_num(ratio(n[0] * n[1], n.sum(0))), 0.0)
    share = share / max(float(share.sum()), np.finfo(float).tiny)
    rates, finite = np.nan_to_num(ratio(s, n)), np.sqrt(np.nan_to_num(ratio(patients - 1, patients)))
    value, per_row = (share * rates).sum(1), np.nan_to_num(ratio(np.tile(share, 2), n.reshape(-1)))  # 0 in strata that are left out
    residual = per_row[cell] * (a - rates.reshape(-1)[cell] * b)
    contribution = np.zeros((2, people))
    with_others = np.where(comparable[cell % width], 1 - b / n.reshape(-1)[cell], 1.0)
    np.add.at(contribution, (cell // width, person), finite.reshape(-1)[cell] * residual / with_others)  # CR3
    weight, place = np.zeros(len(codes)), np.full(len(codes), -1)
    weight[rows], place[rows] = per_row[cell_of_row] * bottom[rows], cell_of_row
    clusters = Clusters.of(np.where(weight > 0, side, -1), 2, units)
    own, weight = np.bincount(cell // width * people + person, residual, 2 * people), weight[clusters.rows]
    of_row = (rates * (1 - rates)).reshape(-1)[place[clusters.rows]]
    of_row = np.where(clusters.sum(of_row)[clusters.code] > 0, of_row, 1.0)  # if nothing varies, rows count by their weights
    of_cluster = clusters.group * people + (units[clusters.rows] if clusters.unit is None else clusters.unit)
    degrees = clusters.degrees(own[of_cluster], weight * np.sqrt(of_row))
    even = clusters.squares(weight) * clusters.patients() <= (1 + 1e-9) * clusters.sum(weight) ** 2
    degrees = np.where(even & ~clusters.repeated, np.inf, degrees)  # one row per patient, and of equal weights
    count = np.bincount(cell_of_row, minlength=2 * width).reshape(2, width)
    squares = share**2 * rates * (1 - rates)  # the variance of the rate, of independent rows: as it is, and as it is estimated
    independent, unbiased = (np.nan_to_num(ratio(squares, np.maximum(count - less, 0.0))).sum(1) for less in (0, 1))
    effect = np.maximum(np.nan_to_num(ratio((contribution**2).sum(1), unbiased), nan=1.0), 1.0)
    few = np.nan_to_num(ratio(clusters.sum(weight) ** 2, clusters.squares(weight)))  # if nothing varies, a patient counts as one row
    size = np.where(independent > 0, ratio(value * (1 - value), independent * effect), few)
    return Standardised(value, contribution, size, degrees, comparable)


def _difference(signs: Sequence[float], rates: Sequence[Standardised]) -> SignedSum:
    """The signed sum of the rates of the group, minus that of the reference, as one sum with the correlations of its terms."""
    terms = [(sign * (1 - 2 * side), side, rate) for side in (0, 1) for sign, rate in zip(signs, rates, strict=True)]
    value, size, degrees, contribution = (
        np.array([getattr(rate, name)[side] for _, side, rate in terms]) for name in ("value", "size", "degrees", "contribution")
    )
    side = np.array([side for _, side, _ in terms])
    covariance = np.where(side[:, None] == side, contribution @ contribution.T, 0.0)  # the two groups have different patients
    sd = np.sqrt(np.diag(covariance))
    correlation = np.where(np.eye(len(terms), dtype=bool), 1.0, np.nan_to_num(ratio(covariance, np.outer(sd, sd))))
    of_terms = np.array([sign for sign, *_ in terms]), value, size, degrees, np.full(len(terms), np.nan)
    return SignedSum(*[*(each[None] for each in of_terms), np.clip(correlation, -1.0, 1.0)[None]])
