"""What `equipoise debias` prints: the dry run, or the result on the held-out rows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from equipoise import data, report
from equipoise.cli.console import err, out
from equipoise.errors import BadInput

if TYPE_CHECKING:
    from equipoise.measures import Estimate
    from equipoise.repair import Comparison, RepairEstimate, Saved

FOR_THE_COMMITTEE = ("report.html", "card.md and card.xml")  # without these the run has failed
STYLES = {"harm": "bold red", "closed": "bold green", "reduced": "bold", "unclear": "bold yellow", "unchanged": "bold yellow"}
UPPER_BOUND = (
    "upper bound: performance above (+) or below (-) the group-aware upper bound (linear program), computed on these rows with the "
    "original scores, at the same |gap|."
)
BESIDE_THE_NAME = sum(map(len, ("-0.123 [-0.123, +0.123]", "0.123 [0.123, 0.123]", "unchanged", "needs"))) + 4 * len("  ")
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
    what = Table(title="Methods to be run", box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
    what.add_column("method")
    what.add_column("steps")
    what.add_column("at most about", justify="right")
    for step in found.methods:
        what.add_row(step.method, step.what, "unknown" if step.seconds is None else report.duration(step.seconds))
    if found.probes is not None and found.probes.seconds is not None:
        what.add_row("probes", found.probes.what, report.duration(found.probes.seconds))
    total = "unknown" if found.seconds is None else report.duration(found.seconds)
    out.print(Group(who, what))
    out.print(
        Text(f"goal: {found.to_dict()['goal']}; at most about {total} without the report; result in {report.printable(str(folder))}"),
        soft_wrap=True,
    )
    out.print("Dry run: nothing was done. Omit --dry-run to run it.")


def print_labels(folder: Path, cases: Mapping[str, Comparison], saved: Mapping[str, Saved], remarks: list[str], verbose: bool) -> None:
    """Prints the result of each label."""
    for name, case in cases.items():
        if len(cases) > 1:
            out.print(Text(f"\n{report.printable(name)}", style="bold underline"))
        _print_result(case, saved[name], remarks if len(cases) == 1 else [], verbose)
    if len(cases) > 1:
        for line in remarks:
            out.print(Text(report.printable(line)), soft_wrap=True)
        out.print(Text(f"\nAll labels: {report.printable(str(folder / 'report.html'))}"), soft_wrap=True)


def exit_if_lacking(saved: Mapping[str, Saved]) -> None:
    """Prints what could not be made, and ends the command with exit code 1 where the committee lacks a document."""
    failures = {(name, what): why for name, written in saved.items() for what, why in written.failures.items()}
    for (name, what), why in failures.items():
        place = what if len(saved) == 1 else f"{name}, {what}"
        err.print(Text(report.printable(f"not done: {place}: {why}"), style="yellow"), soft_wrap=True)
    if any(what in FOR_THE_COMMITTEE for _, what in failures):
        raise typer.Exit(1)


def check_pdf(pdf: Path | None) -> None:
    """Raises before a long run what printing would raise after it."""
    if pdf is not None:
        data.check_writable(pdf)
        report.check_printer()


def write_pdf(folder: Path, pdf: Path | None, as_json: bool) -> None:
    """Prints the report in the folder as PDF; the repair is complete without it, so a failure says how to print it again (exit code 1)."""
    if pdf is None:
        return
    try:
        report.write_again(folder, pdf=pdf)
    except BadInput as error:
        again = f"the repair is complete; print it again with: equipoise report {folder} --pdf {pdf}"
        err.print(Text(report.printable(f"not done: {pdf}: {' '.join(error.problems)} ({again})"), style="yellow"), soft_wrap=True)
        raise typer.Exit(1) from error
    if not as_json:
        out.print(Text(f"PDF: {report.printable(str(pdf))}"), soft_wrap=True)


def result_json(folder: Path, saved: Mapping[str, Saved], left_out: Mapping[str, object]) -> str:
    """The content of audit.json and the files written, by label where there are several, as JSON."""
    found = json.loads((folder / "audit.json").read_text(encoding="utf-8"))
    files, failures = {name: list(one.files) for name, one in saved.items()}, {name: dict(one.failures) for name, one in saved.items()}
    extra: dict[str, Any] = {"files": files, "failures": failures}
    if len(saved) == 1:
        extra = {key: next(iter(value.values())) for key, value in extra.items()}
    return json.dumps({**found, "out": str(folder), **extra, "rows_left_out": left_out}, indent=2, allow_nan=False)


def _print_result(case: Comparison, saved: Saved, remarks: list[str], verbose: bool) -> None:
    out.print(Text(report.printable(report.repair_answer(case)), style=STYLES[str(case.outcome)]), soft_wrap=True)
    method = f"Method: {report.method_words(case.result)}."
    for line in (method, report.met_words(case.judgement), report.original_words(case), report.repair_set_words(case)):
        if line:
            out.print(Text(report.printable(line)), soft_wrap=True)
    why = report.why_words(case.result.candidate.why)
    out.print(Text(f"Chosen: {report.printable(why)}."), soft_wrap=True)
    out.print(_methods_table(case), "", sep="\n")
    if verbose:
        out.print(_test_table(case), "", sep="\n")
        words = NO_UPPER_BOUND if case.found.methods[0].below is None else UPPER_BOUND
        out.print(Text(words, style="dim"))
    for line in [*remarks, *_notes(case, verbose)]:
        out.print(Text(report.printable(line)), soft_wrap=True)
    if verbose and saved.onnx is not None:
        out.print(f"model.onnx differs from torch by at most {saved.onnx.max_difference:.1e} on {saved.onnx.rows} rows.")
    out.print(Text(f"Written to {report.printable(str(saved.folder))}: {', '.join(saved.files)}"), soft_wrap=True)


def _methods_table(case: Comparison) -> Table:
    """The gap and the performance of the original and of each method."""
    goal = case.result.candidate.goal
    attribute = case.result.test.attribute
    others, reference = attribute.others, report.short_name(attribute.reference)
    what = f"{report.short_name(others[0]) if len(others) == 1 else f'the largest of {len(others)} groups'} minus {reference}"
    title = f"The {len(case.result.test):,} held-out rows: {what}, with 95% intervals"
    table = _plain_table(title, "", goal.measure, goal.performance.replace("_", " "), "outcome", "needs the group")
    table.columns[-1].max_width = len("needs")
    for k, row in enumerate(case.found.methods):
        outcome, needs = "" if row.judgement is None else str(row.judgement.outcome), "yes" if k and row.needs_group else "no"
        table.add_row(
            _head(row, k, out.width - BESIDE_THE_NAME),
            _interval(row.gap, "+"),
            _interval(row.performance, ""),
            outcome,
            needs,
            style="bold" if row.chosen else "",
        )
    return table


def _test_table(case: Comparison) -> Table:
    """The size of each gap with its p-values, and the distance from the upper bound."""
    title = "Permutation p-values (adjusted for all comparisons: Holm), and the group-aware upper bound"
    table = _plain_table(title, "", f"|{case.result.candidate.goal.measure}|", "p", "adjusted p", "upper bound")
    for k, row in enumerate(case.found.methods):
        above = float("nan") if row.below is None else -row.below
        cells = (_number(abs(row.gap.value), ""), report.p_words(row.gap.p_value), report.p_words(row.gap.p_adjusted), _number(above, "+"))
        table.add_row(_head(row, k), *cells, style="bold" if row.chosen else "")
    return table


def _head(row: Any, k: int, room: int | None = None) -> Text:
    name = row.name if k else "original"
    if room is not None and max(map(len, name.split())) > room:
        name = name.replace("-", "-\n")  # else it would be cut anywhere
    return Text(f"{name} (chosen)" if row.chosen else name)


def _notes(case: Comparison, verbose: bool) -> list[str]:
    """The notes of the chosen method; if verbose, also those of the others about the rows that differ from them."""
    from equipoise.report import note_words

    told = list(dict.fromkeys(case.result.candidate.notes))
    found = [f"{case.result.name}: {note_words(note)}" for note in told]
    for tried in case.candidates if verbose else ():
        for note in tried.candidate.notes:
            small = note.kind == "small_cells" and not any(other.kind == note.kind for other in told)  # much the same for all methods
            if small or (note.kind == "missing_group" and note not in told):
                told.append(note)
                found.append(f"{tried.name}: {note_words(note)}")
    return found


def _plain_table(title: str, *columns: str) -> Table:
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold", collapse_padding=True, pad_edge=False)
    table.show_edge = False  # so that with complete intervals most names of methods fit into 80 columns
    for k, column in enumerate(columns):
        table.add_column(column, no_wrap=k in (1, 2), overflow="fold")
    return table


def _interval(estimate: Estimate, sign: str) -> str:
    return report.interval(estimate.value, estimate.low, estimate.high, sign)


def _number(value: float, sign: str) -> str:
    return "" if isnan(value) else f"{value:{sign}.3f}"
