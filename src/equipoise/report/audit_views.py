"""What the template of the report of an audit is given: rows, axes, figures, and plain values for its scripts. Nothing here needs torch."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from equipoise.measures import Audit, Estimate, Threshold, group_estimate
from equipoise.report.audit_words import ALARMS, MISSED, worse_by
from equipoise.report.measure_words import HEADLINE, RATES, SHOWN, crossed, distinct, rate_title
from equipoise.report.panels import Called, Mark, Panel, Scale, along, decision_panels, dot, line, percents, up
from equipoise.report.text import amount, plain, sentence, short

MOST_GROUPS = 40  # of an attribute that have rates and differences each on an axis; more are in the explorer only
EXPLORED = ("selection_rate", *SHOWN)
UNKNOWN = Estimate(math.nan, math.nan, math.nan)
CALIBRATION_BINS = 10


@dataclass(frozen=True)
class Burden:
    """What the errors mean for one group: how many of those with the finding are missed, and of those without it are flagged."""

    group: str
    reference: bool
    rows: int
    positives: int
    negatives: int
    missed: Estimate
    alarms: Estimate
    more_missed: Estimate  # than in the reference
    more_alarms: Estimate


@dataclass(frozen=True)
class RateBlock:
    """One rate of all groups on an axis of its own."""

    rate: str
    title: str
    scale: Scale
    rows: Sequence[tuple[str, bool, Estimate]]


@dataclass(frozen=True)
class AuditView:
    """One attribute of an audit: its groups, their errors, each rate on an axis of its own, and all gaps on one axis."""

    attribute: str
    folded: bool  # an intersection, which is shown on demand
    many: bool  # too many groups for axes
    groups: pd.DataFrame
    burdens: Sequence[Burden]
    rates: Sequence[RateBlock]
    scale: Scale
    gaps: Mapping[str, Sequence[Estimate]]
    curves: Sequence[Panel]  # decision curves
    calibration: Sequence[Panel]
    shrunken: Sequence[Mapping[str, Any]] = ()  # gaps by empirical Bayes, where they were asked for

    @property
    def headline(self) -> list[RateBlock]:
        """The rates of decisions, which are shown at once."""
        return [block for block in self.rates if block.rate in HEADLINE]

    @property
    def of_scores(self) -> list[RateBlock]:
        """The rates of scores, which are shown on demand."""
        return [block for block in self.rates if block.rate not in HEADLINE]


def audit_views(audit: Audit, called: Called = str) -> list[AuditView]:
    """The tables of an audit, one view per attribute and intersection. A measure that mirrors another is not repeated."""
    views = []
    folded = crossed(list(audit.groups["attribute"].unique()))
    missed, alarms, shrunken = worse_by(audit, MISSED), worse_by(audit, ALARMS), _shrunken(audit)
    for name, groups in audit.groups.groupby("attribute", sort=False):
        many = len(groups) > MOST_GROUPS
        own = audit.gaps[audit.gaps["attribute"] == name]
        gaps = {m: [Estimate.of_gap(row) for row in own[own["measure"] == m].to_dict("records")] for m in distinct(own["measure"].unique())}
        views.append(
            AuditView(
                attribute=str(name),
                folded=name in folded,
                many=many,
                groups=groups,
                burdens=[_burden(str(name), str(g), row, missed, alarms) for g, row in groups.iterrows()],
                rates=[] if many else _rates(audit, groups),
                scale=Scale.of([e for rows in gaps.values() for e in rows], "points"),
                gaps={} if many else gaps,
                curves=[] if many else decision_panels(str(name), [("", audit)], called),
                calibration=[] if many else calibration_panels(audit, str(name), called),
                shrunken=shrunken.get(str(name), ()),
            )
        )
    return views


def _burden(
    attribute: str,
    group: str,
    row: "pd.Series[Any]",
    missed: Mapping[tuple[str, str], Estimate],
    alarms: Mapping[tuple[str, str], Estimate],
) -> Burden:
    more = (each.get((attribute, group), UNKNOWN) for each in (missed, alarms))
    counts = int(row["n"]), int(row["positives"]), int(row["negatives"])
    return Burden(group, bool(row["reference"]), *counts, group_estimate(row, "fnr"), group_estimate(row, "fpr"), *more)


def _rates(audit: Audit, groups: pd.DataFrame) -> list[RateBlock]:
    blocks = []
    for rate in SHOWN:
        if rate in groups:
            rows = [(str(g), bool(r["reference"]), group_estimate(r, rate)) for g, r in groups.iterrows()]
            blocks.append(RateBlock(rate, rate_title(rate, audit.settings), Scale.of([e for _, _, e in rows], RATES[rate].kind), rows))
    return blocks


def _shrunken(audit: Audit) -> dict[str, list[dict[str, Any]]]:
    """The shrunken gaps of each attribute that has them; empty where they were not asked for."""
    if not audit.shrink:
        return {}
    gaps = audit.shrunken()
    gaps = gaps[gaps["shrunken"].notna() & gaps["measure"].isin(distinct(gaps["measure"].unique()))]
    return {str(name): [{str(k): v for k, v in row.items()} for row in own.to_dict("records")] for name, own in gaps.groupby("attribute")}


def calibration_panels(audit: Audit, attribute: str, called: Called = str) -> list[Panel]:
    """One panel per group: the share with the finding against the mean score, in parts of the scores that decisions are known for.

    It is drawn from `Audit.by_threshold`, so that it shows no fewer patients than the thresholds do.
    """
    table, panels = audit.by_threshold[audit.by_threshold["attribute"] == attribute], []
    for code, group in enumerate(dict.fromkeys(table["group"])):
        sides = [table[(table["group"] == group) & (table["label"] == label)].set_index("threshold") for label in (1, 0)]
        points = _calibration_points(*sides) if all(len(side) for side in sides) else []
        if not points:
            continue
        spots = [(along(x, 0, 1), up(y, 0, 1)) for x, y in points]
        diagonal = line([(along(0, 0, 1), up(0, 0, 1)), (along(1, 0, 1), up(1, 0, 1))])
        marks = [Mark("diagonal", diagonal), Mark("curve", line(spots), code), *(Mark("spot", dot(x, y, 2.5), code) for x, y in spots)]
        said = "; ".join(f"score {amount(x)}, share {amount(y)}" for x, y in points)
        says = f"Calibration of {short(called(str(group)))}: {said}."
        panels.append(
            Panel(short(called(str(group))), says, percents("x"), percents("y"), "mean score", "share with the finding", tuple(marks))
        )
    return panels


def _calibration_points(positive: pd.DataFrame, negative: pd.DataFrame) -> list[tuple[float, float]]:
    """Mean score and share with the finding between thresholds that both labels have, joined to about ten parts of equal size."""
    cuts = sorted(set(positive.index) & set(negative.index))
    sides = [(each.loc[cuts, "above"].to_numpy(), _scores_above(each, cuts)) for each in (positive, negative)]
    above = sides[0][0] + sides[1][0]
    wanted = np.linspace(above[0], 0, CALIBRATION_BINS + 1)[:-1]
    starts = sorted({int(np.searchsorted(-above, -mass)) for mass in wanted if np.searchsorted(-above, -mass) < len(above)})
    points = []
    for low, high in pairwise([*starts, len(cuts)]):
        masses, scores = (np.array([side[k][low] - (side[k][high] if high < len(cuts) else 0.0) for side in sides]) for k in (0, 1))
        if masses.sum() > 0 and not np.isnan(scores).any():
            points.append((float(scores.sum() / masses.sum()), float(masses[0] / masses.sum())))
    return points


def _scores_above(table: pd.DataFrame, cuts: Sequence[float]) -> Any:
    """The sum of the scores from each cut on; NaN where that of a part is not known."""
    mass = table["above"].to_numpy() - np.append(table["above"].to_numpy()[1:], 0.0)
    sums = np.where(mass > 0, mass * table["score"].to_numpy(), 0.0)
    return pd.Series(sums[::-1].cumsum()[::-1], index=table.index).loc[list(cuts)].to_numpy()


@dataclass(frozen=True)
class UnderdiagnosisRow:
    """Underdiagnosis of one group, and its gap to the reference."""

    attribute: str
    group: str
    reference: bool
    with_finding: int
    rate: Estimate
    gap: Estimate


def underdiagnosis_rows(audit: Audit) -> list[UnderdiagnosisRow]:
    """The rows of underdiagnosis of the audit of "no finding", one per group."""
    gaps = {(g["attribute"], g["group"]): Estimate.of_gap(g) for g in audit.gaps.to_dict("records") if g["measure"] == "fpr_gap"}
    rows = []
    for group, row in audit.groups.iterrows():
        gap = gaps.get((row["attribute"], group), UNKNOWN)
        counts = str(row["attribute"]), str(group), bool(row["reference"]), int(row["negatives"])
        rows.append(UnderdiagnosisRow(*counts, group_estimate(row, "fpr"), gap))
    return rows


def threshold_data(audit: Audit, called: Called = str) -> dict[str, Any] | None:
    """Plain values for the threshold slider: by attribute and group, how many rows lie at or above each threshold; None without any."""
    table = audit.by_threshold
    if not len(table):
        return None
    attributes = []
    for name, rows in table.groupby("attribute", sort=False):
        reference, groups = audit.references[str(name)], []
        for group, own in rows.groupby("group", sort=False):
            cells = {str(label): [_brief(cell["threshold"]), _brief(cell["above"])] for label, cell in own.groupby("label")}
            groups.append({"name": short(called(str(group))), "reference": str(group) == reference, "cells": cells})
        attributes.append({"name": short(name), "groups": groups})
    positions = sorted(set(table["threshold"]) - {0.0})
    return {"attributes": attributes, "positions": positions, "used": audit.rule.value if isinstance(audit.rule, Threshold) else None}


def _brief(values: Iterable[float]) -> list[float]:
    """Thresholds and weights in full precision, counts without a point."""
    return [int(v) if float(v).is_integer() else float(v) for v in values]


def subgroup_data(audit: Audit, called: Called = str) -> dict[str, Any]:
    """Plain values for the explorer of groups: every group and intersection with its rates and intervals."""
    rates = [rate for rate in EXPLORED if rate in audit.groups]
    rows = []
    for group, row in audit.groups.iterrows():
        values = [group_estimate(row, rate) for rate in rates]
        rows.append(
            {
                "attribute": short(row["attribute"]),
                "name": short(called(str(group))),
                "full": plain(called(str(group)))[:400],
                "reference": bool(row["reference"]),
                "n": int(row["n"]),
                "positives": int(row["positives"]),
                "values": [[_rounded(e.value), _rounded(e.low), _rounded(e.high), int(e.few)] for e in values],
            }
        )
    measures = [{"name": sentence(rate_title(r, audit.settings)), "means": RATES[r].means, "kind": RATES[r].kind} for r in rates]
    return {"measures": measures, "groups": rows}


def _rounded(value: float) -> float | None:
    return None if math.isnan(value) else round(value, 5)
