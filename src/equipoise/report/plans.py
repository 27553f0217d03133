"""A plan: how many patients show a gap, in a terminal and as a page."""

import math
from collections.abc import Mapping

import numpy as np

from equipoise.measures import Plan
from equipoise.report import document as doc
from equipoise.report.document import Column, Fixed, Part, Section, Text, table
from equipoise.report.panels import Axes, Panel, steps_within
from equipoise.report.text import Span, amount, percent, short_name

BARS = 24  # characters of the longest bar in a terminal


def plan_answer(plan: Plan) -> str:
    """The patients that an audit and a repair need, in one sentence."""
    found, who = plan.spec, "patients with the finding" if plan.spec.prevalence == 1 and not plan.groups["label"].any() else "patients"
    if math.isinf(plan.patients):
        return f"No number of patients shows a difference of {amount(found.gap, 'size')} points in every group."
    return (
        f"An audit needs {plan.patients:,.0f} {who} to show a difference of {amount(found.gap, 'size')} percentage points in sensitivity "
        f"in 80% of samples; a repair that holds out {percent(found.test_fraction)} of them needs {plan.repair:,.0f}."
    )


def _tables(plan: Plan, bars: bool) -> list[Part]:
    """The patients of each group, and the detectable gap by the number of patients."""
    several = len(plan.groups) > 1
    rows = []
    for row in plan.groups.itertuples():
        who = [
            Span(f"{row.label}: {row.group}" if row.label else row.group),
            Span(row.reference),
            amount(row.sensitivity),
            amount(row.share),
        ]
        rows.append([*who, *("none" if math.isinf(needed) else f"{needed:,.0f}" for needed in (row.audit, row.repair))])
    heads = [Column("Group", style="text"), Column("Reference", style="text"), "Its sensitivity", "Share of the group", "Audit", "Repair"]
    parts: list[Part] = [table("Patients needed", heads, rows)] if several or not bars else []
    largest = plan.groups.sort_values("audit").iloc[-1]
    curve = plan.curve[(plan.curve["group"] == largest["group"]) & (plan.curve["label"] == largest["label"])]
    if len(curve):
        most = curve["detectable"].replace(np.inf, np.nan).max()
        lines = [
            (
                f"{row.patients:,}",
                amount(row.detectable, "detectable"),
                "█" * round(BARS * row.detectable / most) if bars and row.detectable <= most else "",
            )
            for row in curve.itertuples()
        ]
        columns = ["Patients", "Detectable, points", *([Column("", style="text")] if bars else [])]
        parts.append(table("Detectable difference by the number of patients", columns, [line[: len(columns)] for line in lines]))
    return parts


def plan_screen(plan: Plan) -> list[Part]:
    """A plan in a terminal, with its curve as bars."""
    note = (
        "Detectable: the interval of the difference itself excludes zero in 80% of samples. Adjustment for several comparisons needs more "
        f"patients; --test cross holds out none, and a repair then needs as many as an audit. {assumed(plan)}"
    )
    return [
        Text(plan_answer(plan), "lead"),
        *(part for each in _tables(plan, True) for part in (Text(""), each)),
        Text(""),
        Text(note, "notes"),
    ]


def assumed(plan: Plan) -> str:
    """What a plan assumes about the patients."""
    found = plan.spec
    if plan.groups["label"].any() or len(plan.groups) > 1 or plan.groups["group"].iloc[0] != "the group":
        return "Sensitivity, shares and repeated visits are those of the audit."
    visits = f", {found.visits:g} visits each with a correlation of {found.correlation:g}" if found.visits > 1 else ""
    return f"Assumed: sensitivity {percent(found.sensitivity)} in the reference, a group of {percent(found.share)}{visits}."


def _curve(plan: Plan) -> Panel:
    """The detectable gap by the number of patients, of every group."""
    points = plan.curve[np.isfinite(plan.curve["detectable"])]
    most, high = math.log2(points["patients"].max()), min(1.0, float(points["detectable"].max()))
    axes = Axes(0, high, math.log2(points["patients"].min()), most)
    marks = [axes.level("base", plan.spec.gap, "the difference to show")]
    for k, (where, rows) in enumerate(points.groupby(["label", "group"], sort=False)):
        marks.append(
            axes.curve(
                "curve",
                [(math.log2(n), d) for n, d in zip(rows["patients"], rows["detectable"], strict=True)],
                k,
                short_name(" ".join(where).strip()),
            )
        )
    says = "; ".join(f"{row.patients:,} patients: {amount(row.detectable, 'size')} points" for row in points.head(8).itertuples())
    at = points["patients"].unique()
    shown = sorted(at)[:: max(1, len(at) // 4)]
    x = axes.x_ticks([math.log2(n) for n in shown], lambda v: f"{round(2**v):,}")
    y = axes.y_ticks(steps_within(0, high, 5), lambda v: amount(v, "size"))
    return Panel("Detectable difference", says, x, y, "patients", "percentage points", tuple(marks))


def plan_document(plan: Plan, names: Mapping[str, str] | None = None) -> doc.Document:
    """The page of a plan; `names` are words for groups."""
    words = names or {}
    figures: list[Part] = [doc.Figures([_curve(plan)])] if len(plan.curve) else []
    sections = [
        Section("verdict", "The answer", "", [Text(plan_answer(plan), "lead outcome"), *_tables(plan, False)[:1]]),
        Section("curve", "More or fewer patients", "", [*figures, *_tables(plan, False)[1:]]),
        Section("method", "Method and limits", "", [Text(assumed(plan)), Fixed("about")]),
    ]
    return doc.Document("plan.html", "plan", "Patients needed", sections, {"found": plan}, lambda group: words.get(group, group))
