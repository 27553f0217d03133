"""Gaps by a label that is sometimes wrong, next to an adjudicated label that is known for some rows.

The label of an audit may be mined from reports, while experts adjudicated it for some rows. Four gaps are compared: by the label on all
rows, by either label on the adjudicated rows, and on all rows as the adjudicated label would show it. For the last one, each row counts as
positive with the share of adjudicated positives among rows of its group, label and decision, and adjudicated rows also with the deviation
from that share, weighted up to all rows of its cell (double sampling: Tenenbein 1970, J Am Stat Assoc 65:1350). That is right if which rows
were adjudicated depends on nothing else than these three. Its interval has the uncertainty of both samples, by patient.

If no row of a cell was adjudicated, the share there may be anything from 0 to 1. There is then no value, and the limits are the smallest
and the largest gap that such shares allow.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pandas as pd

from equipoise.data import Attribute, FloatArray, Scores
from equipoise.measures.audit import LABEL_GAP_COLUMNS, LABEL_GROUP_COLUMNS
from equipoise.measures.audit_spec import AuditSpec
from equipoise.measures.intervals import INSUFFICIENT_DATA
from equipoise.measures.measure_table import measure_of
from equipoise.measures.moments import DECISION_RATIOS, Clusters, Moments, moments_of_scores, sum_columns, units_of


def label_groups(scores: Scores, attributes: Sequence[Attribute], spec: AuditSpec) -> pd.DataFrame:
    """One row per group: how many of the adjudicated positives carry the label, and how many of the labelled rows are confirmed."""
    found: list[tuple[object, ...]] = []
    for attribute, known in _adjudicated(scores, attributes):
        units = units_of(known.patients, len(known))
        sums = moments_of_scores(known, scores.y[scores.adjudicated >= 0].astype(np.float64), attribute)  # type: ignore[operator]
        low, high = sums.signed({"tpr": 1.0, "ppv": 1.0}).term_limits(spec.level)
        for k, group in enumerate(attribute.levels):
            own, shares = attribute.codes == k, list[float]()
            for at, name in enumerate(("tpr", "ppv")):
                enough = sums[name].patients[k] >= spec.min_patients
                shares += [float(end) if enough else np.nan for end in (sums[name].value[k], low[k, at], high[k, at])]
            counts = int(own.sum()), len(np.unique(units[own])), int(sums["tpr"].rows[k]), int(sums["ppv"].rows[k])
            found.append((attribute.name, group, k == 0, *counts, *shares))
    return pd.DataFrame(found, columns=LABEL_GROUP_COLUMNS)


def label_gaps(scores: Scores, f: FloatArray, attributes: Sequence[Attribute], spec: AuditSpec) -> pd.DataFrame:
    """One row per attribute, gap and group: by the label on the adjudicated rows, by the adjudicated label there, and on all rows."""
    found: list[tuple[object, ...]] = []
    for (attribute, known), whole in zip(_adjudicated(scores, attributes), attributes, strict=False):
        seen = np.flatnonzero(scores.adjudicated >= 0)  # type: ignore[operator]
        corrected, unknown = corrected_moments(scores, f, whole)
        same_rows = [moments_of_scores(replace(known, y=y), f[seen], attribute) for y in (scores.y[seen], known.y)]
        for gap in (name for name in spec.gaps if set(measure_of(name).coefficients) != {"selection_rate"}):  # which needs no label
            signs = measure_of(gap).coefficients
            every = moments_of_scores(scores, f, whole), *same_rows, corrected
            ends = np.array([sums.gap(signs).limits(spec.level) for sums in every])  # (labels, ends, groups - 1)
            patients = np.min([sums[rate].patients for sums in same_rows for rate in signs], axis=0)
            for k, group in enumerate(whole.others):
                numbers, note = ends[:, :, k].copy(), ""
                if min(patients[0], patients[k + 1]) < spec.min_patients:
                    numbers[1:] = np.nan
                    note = f"{INSUFFICIENT_DATA}: fewer than {spec.min_patients} patients with an adjudicated label"
                elif unknown[[0, k + 1]].any():
                    numbers[3] = [np.nan, *gap_bounds(scores, f, whole, k + 1, signs)]
                    note = "bounds: no row was adjudicated in some cell of group, label and decision"
                found.append((gap, whole.name, group, whole.reference, *numbers.ravel().tolist(), note))
    return pd.DataFrame(found, columns=LABEL_GAP_COLUMNS)


def _adjudicated(scores: Scores, attributes: Sequence[Attribute]) -> list[tuple[Attribute, Scores]]:
    """The rows with an adjudicated label, which is their label, with each attribute; none if there are no such rows."""
    if scores.adjudicated is None or not (scores.adjudicated >= 0).any():
        return []
    rows = np.flatnonzero(scores.adjudicated >= 0)
    known = scores.take(rows)
    return [(attribute.take(rows), replace(known, y=scores.adjudicated[rows])) for attribute in attributes]


def _cells(scores: Scores, f: FloatArray, attribute: Attribute) -> tuple[FloatArray, FloatArray, FloatArray]:
    """The rows of each group, label and decision (groups, 2, 2), those of them adjudicated, and those adjudicated as positive."""
    weight, truth = np.ones(len(scores)) if scores.weight is None else scores.weight, scores.adjudicated
    assert truth is not None
    cell = (attribute.codes * 2 + scores.y) * 2 + (f >= 0.5)
    shape, rows = (len(attribute.levels), 2, 2), attribute.codes >= 0
    counts = [
        np.bincount(cell[rows], column[rows], 4 * len(attribute.levels))
        for column in (weight, weight * (truth >= 0), weight * (truth == 1))
    ]
    whole, known, positive = (each.astype(np.float64).reshape(shape) for each in counts)
    return whole, known, positive


def corrected_moments(scores: Scores, f: FloatArray, attribute: Attribute) -> tuple[Moments, FloatArray]:
    """The moments of all rows as the adjudicated label would show them, and which groups have rows in a cell without any (groups,)."""
    whole, known, positive = _cells(scores, f, attribute)
    unknown = ((whole > 0) & (known == 0)).any((1, 2))
    share, factor = (np.divide(top, known, out=np.zeros_like(known), where=known > 0) for top in (positive, whole))
    factor *= np.sqrt(np.divide(known, known - 1, out=np.ones_like(known), where=known > 1))  # of deviations from an estimated share
    truth, at = scores.adjudicated, (attribute.codes, scores.y, (f >= 0.5).astype(np.int64))
    assert truth is not None
    y = share[at] + np.where(truth >= 0, factor[at] * (truth - share[at]), 0.0)
    units = units_of(scores.patients, len(scores))
    clusters = Clusters.of(attribute.codes, len(attribute.levels), units)
    sums = sum_columns(DECISION_RATIOS, [1 - y, y, f * (1 - y), f * y], clusters, scores.weight)
    people = np.array([len(np.unique(units[attribute.codes == k])) for k in range(len(attribute.levels))], dtype=np.float64)
    return replace(sums, units=np.minimum(sums.units, people[:, None]).clip(1.0)), unknown


def gap_bounds(scores: Scores, f: FloatArray, attribute: Attribute, k: int, signs: Mapping[str, float]) -> tuple[float, float]:
    """The smallest and the largest gap of group k that any share of positives in the cells without an adjudicated row allows."""
    whole, known, positive = _cells(scores, f, attribute)
    ends = []
    for code in (k, 0):
        rates = []
        free = np.argwhere((whole[code] > 0) & (known[code] == 0))
        for corner in product((0.0, 1.0), repeat=len(free)):
            share = np.divide(positive[code], known[code], out=np.zeros((2, 2)), where=known[code] > 0)
            for place, value in zip(free, corner, strict=True):
                share[tuple(place)] = value
            ill, well = (whole[code] * share).sum(0), (whole[code] * (1 - share)).sum(0)
            total = {"tpr": (ill[1], ill.sum()), "fpr": (well[1], well.sum()), "selection_rate": (ill[1] + well[1], ill.sum() + well.sum())}
            total |= {"ppv": (ill[1], ill[1] + well[1]), "npv": (well[0], ill[0] + well[0])}
            rates.append(sum(sign * total[rate][0] / total[rate][1] if total[rate][1] else np.nan for rate, sign in signs.items()))
        ends.append((float(np.nanmin(rates)), float(np.nanmax(rates))))
    return ends[0][0] - ends[1][1], ends[0][1] - ends[1][0]
