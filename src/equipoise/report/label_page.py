"""The HTML page of the audit of one label, for a committee: one file, for screens, phones and paper. It needs no torch."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from equipoise import __version__
from equipoise.measures import OVERALL_SCORE_MEASURES, Estimate, LabelAudit, group_estimate
from equipoise.report.origin import Origin
from equipoise.report.panels import DIAGONAL, Called, Mark, Panel, RateView, Scale, decision_panels, dot, path_through, percents, x_at, y_at
from equipoise.report.templating import LIMITS, numbered, page_of, script_data
from equipoise.report.text import amount, date_words, how_many, percent, plain, plural, sentence, short
from equipoise.report.wording.audits import (
    ALARMS,
    BY_ROW,
    DETECTABLE,
    MARK_AND_INTERVAL,
    MISSED,
    baseline_words,
    counted_unit,
    few_words,
    harms,
    largest_gap,
    largest_words,
    lead,
    sampled_words,
    unflagged_words,
    worse_by,
)
from equipoise.report.wording.names import (
    PERFORMANCE,
    RATES,
    SHOWN,
    GroupNames,
    attributes_of,
    distinct,
    gap_words,
    group_words,
    rate_title,
)

SCRIPTS = ("svg.js", "page.js", "threshold.js", "subgroups.js")
CONTENTS = {
    "verdict": "The answer",
    "worse": "Who is worse off",
    "gaps": "The differences",
    "groups": "Each group",
    "threshold": "Another threshold",
    "cohort": "The patients",
    "signoff": "Decision",
    "limits": "Limits",
    "calibration": "Calibration",
    "curves": "Decision curves",
    "subgroups": "All groups and intersections",
    "method": "Method and provenance",
}
DECISIONS = ("use the classifier", "use it under conditions", "repair it first", "do not use it")  # to tick on paper
MOST_CLEAR = 12  # clear differences in the table of the answer
MOST_GROUPS = 40  # of an attribute with rates and differences on axes; attributes with more are in the explorer only
FIRST_MEASURES = ("eod", "fpr_gap")  # missed findings and false alarms: always on paper, and first in the overview of several labels
PANELS_ON_PAPER, PANELS = 6, 1000  # figures of an attribute
EXPLORED = ("selection_rate", *SHOWN)
UNKNOWN = Estimate(math.nan, math.nan, math.nan)
CALIBRATION_BINS = 10


def label_page(audit: LabelAudit, names: Mapping[str, str] | None = None, origin: Origin | None = None, *, paper: bool = False) -> str:
    """The report of the audit of one label as HTML; `names` are words for groups, such as {"F": "women"}; a short report for `paper`."""
    called = group_words(names, attributes_of(audit))
    views = audit_views(audit, called.full)
    threshold = threshold_data(audit, called.full)
    absent = {
        "gaps": not any(view.gaps for view in views),
        "threshold": threshold is None or paper,
        "calibration": not any(view.rates for view in views),
        "curves": not any(view.curves for view in views),
        "subgroups": paper,
    }
    context = _shared(audit, called, origin) | _answer(audit, called, views)
    context |= numbered({anchor: heading for anchor, heading in CONTENTS.items() if not absent.get(anchor)})
    context |= {
        "views": views,
        "on_paper": FIRST_MEASURES,
        "most_panels": PANELS_ON_PAPER if paper else PANELS,
        "single": [view for view in views if not view.folded],
        "threshold": threshold,
        "data": script_data({"threshold": threshold, "subgroups": subgroup_data(audit, called.full)}),
    }
    return page_of("audit.html", context, SCRIPTS, paper=paper)


def _shared(audit: LabelAudit, called: GroupNames, origin: Origin | None) -> dict[str, Any]:
    """The frame of the page, values that several sections use, and the origin of the audit."""
    return {
        "title": audit.name,
        "kind": "audit",
        "version": __version__,
        "origin": origin,
        "when": "" if origin is None else date_words(origin.when),
        "audit": audit,
        "called": called.full,
        "level": percent(audit.settings.level),
        "min_patients": audit.settings.min_patients,
        "rates": RATES,
        "gap_words": gap_words,
        "comparisons": plural(audit.comparisons, "comparison"),
        "sampled": sampled_words(audit),
        "size_words": how_many(audit.rows, audit.patients),
        "by_row": BY_ROW if audit.patients is None else "",
        "unit": counted_unit(audit.rows, audit.patients),
        "few_words": few_words(audit.rows, audit.patients, audit.weighted),
        "detectable": DETECTABLE,
        "mark_and_interval": MARK_AND_INTERVAL,
        "decisions": DECISIONS,
        "limits": LIMITS,
    }


def _answer(audit: LabelAudit, called: GroupNames, views: Sequence["AuditView"]) -> dict[str, Any]:
    """The first sentence of the page, and the numbers below it."""
    style, (text, *further) = lead(audit, called)
    clear = [(measure, gap) for view in views for measure, gaps in view.gaps.items() for gap in gaps if gap.clear]
    largest = largest_gap(audit)
    comparisons = plural(audit.comparisons, "comparison")
    return {
        "style_of_answer": style,
        "answer": text,
        "conclusion": " ".join(further),
        "interval_words": f"simultaneous {percent(audit.settings.level)} intervals, for {comparisons}",
        "harms": harms(audit),
        "largest": None if largest is None else Estimate.of_gap(largest),
        "largest_words": sentence(largest_words(audit)),
        "unflagged": unflagged_words({audit.name: audit}),
        "largest_measure": "" if largest is None else str(largest["measure"]),
        "clear": clear[:MOST_CLEAR],
        "more_clear": max(0, len(clear) - MOST_CLEAR),
        "performance": [(name, audit[name]) for name in PERFORMANCE if name in audit.estimates],
        "performance_words": PERFORMANCE,
        "of_scores": [(name, audit[name]) for name in OVERALL_SCORE_MEASURES if name in audit.estimates],
        "baseline_words": baseline_words(audit.baseline, audit.settings.level),
    }


# The tables and figures of each attribute


@dataclass(frozen=True)
class AuditView:
    """One attribute of an audit: its groups, their errors, each rate with its axis, and all gaps on one axis."""

    attribute: str
    folded: bool  # an intersection
    many: bool  # too many groups for axes
    groups: pd.DataFrame
    errors: Sequence[Mapping[str, Any]]  # of each group: missed findings and false alarms
    rates: Sequence[RateView]
    scale: Scale
    gaps: Mapping[str, Sequence[Estimate]]
    curves: Sequence[Panel]  # decision curves
    calibration: Sequence[Panel]
    shrunken: Sequence[Mapping[str, Any]] = ()  # gaps by empirical Bayes, if requested


def audit_views(audit: LabelAudit, called: Called = str) -> list[AuditView]:
    """One view per attribute and intersection. Measures that mirror another are not repeated."""
    views = []
    missed, alarms, shrunken = worse_by(audit, MISSED), worse_by(audit, ALARMS), _shrunken(audit)
    for attribute, groups in audit.groups.groupby("attribute", sort=False):
        name, many = str(attribute), len(groups) > MOST_GROUPS
        rows = audit.gaps[audit.gaps["attribute"] == name]
        gaps = {
            m: [Estimate.of_gap(row) for row in rows[rows["measure"] == m].to_dict("records")] for m in distinct(rows["measure"].unique())
        }
        errors = [
            {
                "group": str(group),
                "reference": bool(row["reference"]),
                "positives": row["positives"],
                "negatives": row["negatives"],
                "missed": (group_estimate(row, "fnr"), missed.get((name, str(group)), UNKNOWN)),  # and the difference from the reference
                "alarms": (group_estimate(row, "fpr"), alarms.get((name, str(group)), UNKNOWN)),
            }
            for group, row in groups.iterrows()
        ]
        views.append(
            AuditView(
                attribute=name,
                folded=name in audit.intersections,
                many=many,
                groups=groups,
                errors=errors,
                rates=[] if many else _rate_views(audit, groups),
                scale=Scale.of([gap for of_measure in gaps.values() for gap in of_measure], "points"),
                gaps={} if many else gaps,
                curves=[] if many else decision_panels(name, [("", audit)], called),
                calibration=[] if many else calibration_panels(audit, name, called),
                shrunken=shrunken.get(name, ()),
            )
        )
    return views


def _rate_views(audit: LabelAudit, groups: pd.DataFrame) -> list[RateView]:
    views = []
    for rate in SHOWN:
        if rate in groups:
            rows = [(str(group), bool(row["reference"]), group_estimate(row, rate)) for group, row in groups.iterrows()]
            scale = Scale.of([estimate for _, _, estimate in rows], RATES[rate].kind)
            views.append(RateView(rate, rate_title(rate, audit.settings), scale, rows))
    return views


def _shrunken(audit: LabelAudit) -> dict[str, list[dict[str, Any]]]:
    """The shrunken gaps of each attribute that has them; empty if they were not requested."""
    if not audit.settings.shrink:
        return {}
    gaps = audit.shrunken()
    gaps = gaps[gaps["shrunken"].notna() & gaps["measure"].isin(distinct(gaps["measure"].unique()))]
    return {str(name): [{str(k): v for k, v in row.items()} for row in rows.to_dict("records")] for name, rows in gaps.groupby("attribute")}


def calibration_panels(audit: LabelAudit, attribute: str, called: Called = str) -> list[Panel]:
    """One panel per group: the share with the finding against the mean score, in bins of the score.

    It is drawn from `Audit.by_threshold`, so that it reveals no more about single patients than the threshold slider does.
    """
    table, panels = audit.by_threshold[audit.by_threshold["attribute"] == attribute], []
    for code, group in enumerate(dict.fromkeys(table["group"])):
        sides = [table[(table["group"] == group) & (table["label"] == label)].set_index("threshold") for label in (1, 0)]
        points = _calibration_points(*sides) if all(len(side) for side in sides) else []
        if not points:
            continue
        spots = [(x_at(x, 0, 1), y_at(y, 0, 1)) for x, y in points]
        marks = [DIAGONAL, Mark("curve", path_through(spots), code), *(Mark("spot", dot(x, y, 2.5), code) for x, y in spots)]
        title = short(called(str(group)))
        says = f"Calibration of {title}: {'; '.join(f'score {amount(x)}, share {amount(y)}' for x, y in points)}."
        panels.append(Panel(title, says, percents("x"), percents("y"), "mean score", "share with the finding", tuple(marks)))
    return panels


def _calibration_points(positive: pd.DataFrame, negative: pd.DataFrame) -> list[tuple[float, float]]:
    """Mean score and share with the finding between thresholds that both labels have, merged into about ten bins of equal size."""
    cuts = sorted(set(positive.index) & set(negative.index))
    sides = [(side.loc[cuts, "above"].to_numpy(), _scores_above(side, cuts)) for side in (positive, negative)]
    above = sides[0][0] + sides[1][0]
    places = (int(np.searchsorted(-above, -mass)) for mass in np.linspace(above[0], 0, CALIBRATION_BINS + 1)[:-1])
    starts = sorted({place for place in places if place < len(above)})
    points = []
    for low, high in pairwise([*starts, len(cuts)]):
        masses, scores = (np.array([side[k][low] - (side[k][high] if high < len(cuts) else 0.0) for side in sides]) for k in (0, 1))
        if masses.sum() > 0 and not np.isnan(scores).any():
            points.append((float(scores.sum() / masses.sum()), float(masses[0] / masses.sum())))
    return points


def _scores_above(table: pd.DataFrame, cuts: Sequence[float]) -> Any:
    """The sum of the scores at or above each cut; NaN if the score of a bin is unknown."""
    mass = table["above"].to_numpy() - np.append(table["above"].to_numpy()[1:], 0.0)
    sums = np.where(mass > 0, mass * table["score"].to_numpy(), 0.0)
    return pd.Series(sums[::-1].cumsum()[::-1], index=table.index).loc[list(cuts)].to_numpy()


# Plain values for the scripts of the page


def threshold_data(audit: LabelAudit, called: Called = str) -> dict[str, Any] | None:
    """Data for the threshold slider: by attribute and group, the number of rows at or above each threshold; None if unknown."""
    table = audit.by_threshold
    if not len(table):
        return None
    attributes = []
    for name, rows in table.groupby("attribute", sort=False):
        groups = []
        for group, cells in rows.groupby("group", sort=False):
            by_label = {
                str(label): [_short_numbers(cell["threshold"]), _short_numbers(cell["above"])] for label, cell in cells.groupby("label")
            }
            reference = str(group) == audit.references[str(name)]
            groups.append({"name": short(called(str(group))), "reference": reference, "cells": by_label})
        attributes.append({"name": short(name), "groups": groups})
    positions = sorted(set(table["threshold"]) - {0.0})
    return {"attributes": attributes, "positions": positions, "used": audit.rule.shared}


def _short_numbers(values: Iterable[float]) -> list[float]:
    """Numbers in full precision, whole ones without a decimal point."""
    return [int(value) if float(value).is_integer() else float(value) for value in values]


def subgroup_data(audit: LabelAudit, called: Called = str) -> dict[str, Any]:
    """Data for the explorer of groups: every group and intersection with its rates and intervals."""
    rates = [rate for rate in EXPLORED if rate in audit.groups]
    rows = []
    for group, row in audit.groups.iterrows():
        estimates = [group_estimate(row, rate) for rate in rates]
        rows.append(
            {
                "attribute": short(row["attribute"]),
                "name": short(called(str(group))),
                "full": plain(called(str(group)))[:400],
                "reference": bool(row["reference"]),
                "n": int(row["n"]),
                "positives": None if pd.isna(row["positives"]) else int(row["positives"]),
                "values": [[*(None if math.isnan(v) else round(v, 5) for v in (e.value, e.low, e.high)), int(e.few)] for e in estimates],
            }
        )
    measures = [{"name": sentence(rate_title(r, audit.settings)), "means": RATES[r].means, "kind": RATES[r].kind} for r in rates]
    return {"measures": measures, "groups": rows}
