"""What `equipoise debias` prints: the plan, or the result on the patients kept aside with all that is to be minded of it."""

from __future__ import annotations

import json
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from equipoise import report
from equipoise.cli.console import out

if TYPE_CHECKING:
    from equipoise.measures import Estimate
    from equipoise.repair import Comparison, RepairEstimate, Saved

UPPER_BOUND = (
    "upper bound: performance above (+) or below (-) the group-aware upper bound (linear program), computed on these rows with the "
    "original scores, at the same |gap|."
)
NO_UPPER_BOUND = "upper bound: not defined, since this gap or performance is not a sum of rates, or a cell is empty."


def print_plan(found: RepairEstimate, folder: Path, as_json: bool) -> None:
    if as_json:
        print(json.dumps({**found.to_dict(), "out": str(folder)}, indent=2, allow_nan=False))
        return
    who = Table(title="Who is in which set", box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
    for column in ("set", "group", "label", "rows", "patients"):
        who.add_column(column, justify="right" if column in ("rows", "patients") else "left")
    for row in found.sets.itertuples():
        who.add_row(
            row.set, report.short_name(row.group), str(row.label), f"{row.rows:,}", "" if row.patients is None else f"{row.patients:,}"
        )
    what = Table(title="What will be done", box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
    what.add_column("method")
    what.add_column("steps")
    what.add_column("at most about", justify="right")
    for step in found.methods:
        what.add_row(step.method, step.what, "not known" if step.seconds is None else duration(step.seconds))
    if found.probes is not None and found.probes.seconds is not None:
        what.add_row("probes", found.probes.what, duration(found.probes.seconds))
    total = "not known" if found.seconds is None else duration(found.seconds)
    out.print(Group(who, what))
    out.print(
        Text(f"goal: {found.to_dict()['goal']}; at most about {total} in all, the report aside; result in {report.printable(str(folder))}"),
        soft_wrap=True,
    )
    out.print("Nothing was done. Leave out --dry-run to do it.")


def print_result(case: Comparison, saved: Saved, remarks: list[str]) -> None:
    from equipoise.report import verdict

    goal, methods = case.result.candidate.goal, case.found.methods
    performance = goal.performance.replace("_", " ")
    table = _plain_table(
        f"The {len(case.result.test):,} held-out rows, with 95% intervals", "", goal.measure, performance, "goal", "needs the group"
    )
    table.columns[-1].max_width = len("needs")
    beside = _plain_table(
        "Compared with chance and with the group-aware upper bound", "", f"|{goal.measure}|", "noise", "excess", "upper bound"
    )
    for k, row in enumerate(methods):
        name, gap, style = row.name if k else "original", row.gap, "bold" if row.chosen else ""
        head, met = Text(f"{name} (chosen)" if row.chosen else name), "" if not k else "met" if row.met else "NOT met"
        needs = "yes" if k and row.needs_group else "no"
        table.add_row(head, _interval(gap, "+"), _interval(row.performance, ""), met, needs, style=style)
        above = float("nan") if row.below is None else -row.below
        cells = (_number(abs(gap.value), ""), _number(gap.noise, ""), _number(gap.excess, "+"), _number(above, "+"))
        beside.add_row(head, *cells, style=style)
    out.print(Group(table, beside))
    out.print(Text(f"{report.NOISE_WORDS} {NO_UPPER_BOUND if methods[0].below is None else UPPER_BOUND}", style="dim"))
    out.print(Text(report.printable(verdict(case))), soft_wrap=True)
    if not case.result.candidate.met:
        out.print(Text(f"The goal was NOT met: {report.printable(case.result.candidate.why)}.", style="bold yellow"), soft_wrap=True)
    for line in [*remarks, *_notes(case)]:
        out.print(Text(report.printable(line)), soft_wrap=True)
    if saved.onnx is not None:
        out.print(f"model.onnx differs from torch by at most {saved.onnx.max_difference:.1e} on {saved.onnx.rows} rows.")
    out.print(Text(f"Written to {report.printable(str(saved.folder))}: {', '.join(saved.files)}"), soft_wrap=True)


def _notes(case: Comparison) -> list[str]:
    """All notes of the chosen method; of the others what is new about the rows, which they share."""
    from equipoise.report import note_words

    told = list(dict.fromkeys(case.result.candidate.notes))
    found = [f"{case.result.name}: {note_words(note)}" for note in told]
    for tried in case.candidates:
        for note in tried.candidate.notes:
            small = note.kind == "small_cells" and not any(other.kind == note.kind for other in told)  # much the same for all methods
            if small or (note.kind == "missing_group" and note not in told):
                told.append(note)
                found.append(f"{tried.name}: {note_words(note)}")
    return found


def _plain_table(title: str, *columns: str) -> Table:
    # Nothing to spare: with intervals and names of methods whole, it just fits into 80.
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold", collapse_padding=True, pad_edge=False)
    for k, column in enumerate(columns):
        table.add_column(column, no_wrap=k in (1, 2), overflow="fold")
    return table


def _interval(estimate: Estimate, sign: str) -> str:
    return report.interval(estimate.value, estimate.low, estimate.high, sign)


def _number(value: float, sign: str) -> str:
    return "" if isnan(value) else f"{value:{sign}.3f}"


def duration(seconds: float) -> str:
    """A rough duration in words.

    >>> duration(0.2), duration(8), duration(700), duration(9000)
    ('1 s', '8 s', '12 min', '2.5 h')
    """
    if seconds < 90:
        return f"{max(1.0, seconds):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
