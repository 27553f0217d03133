"""The output of `equipoise debias`: the dry run, or the result on the held-out rows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from equipoise import report
from equipoise.cli.console import err, out, say, to_json
from equipoise.errors import BadInput

if TYPE_CHECKING:
    from equipoise.repair import Comparison, RepairEstimate, Saved

FOR_THE_COMMITTEE = ("report.html", "card.md and card.xml")  # the run fails without these
STYLES = {"harm": "bold red", "closed": "bold green", "reduced": "bold", "unclear": "bold yellow", "unchanged": "bold yellow"}
UPPER_BOUND = (
    "upper bound: performance above (+) or below (-) the group-aware upper bound (linear program), computed on these rows with the "
    "original scores, at the same |gap|."
)
OTHER_COLUMNS = sum(map(len, ("-0.123 [-0.123, +0.123]", "0.123 [0.123, 0.123]", "unchanged", "needs"))) + 4 * len("  ")
NO_UPPER_BOUND = "upper bound: not defined, since this gap or performance is not a sum of rates, or a cell is empty."


def print_plan(estimate: RepairEstimate, folder: Path, as_json: bool) -> None:
    if as_json:
        print(to_json({**estimate.to_dict(), "out": str(folder)}))
        return
    sets = Table(title="Who is in which set", box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
    for column in ("set", "group", "label", "rows", "patients"):
        sets.add_column(column, justify="right" if column in ("rows", "patients") else "left")
    for row in estimate.sets.itertuples():
        patients = "" if row.patients is None else f"{row.patients:,}"
        sets.add_row(row.set, report.short_name(row.group), str(row.label), f"{row.rows:,}", patients)
    methods = Table(title="Methods to be run", box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
    for column in ("method", "steps", "at most about"):
        methods.add_column(column, justify="right" if column == "at most about" else "left")
    for step in estimate.methods:
        methods.add_row(step.method, step.what, _duration(step.seconds))
    if estimate.probes is not None and estimate.probes.seconds is not None:
        methods.add_row("probes", estimate.probes.what, _duration(estimate.probes.seconds))
    out.print(Group(sets, methods))
    say(f"goal: {estimate.to_dict()['goal']}; at most about {_duration(estimate.seconds)} without the report; result in {folder}")
    out.print("Dry run: nothing was done. Omit --dry-run to run it.")


def print_labels(
    folder: Path, cases: Mapping[str, Comparison], saved: Mapping[str, Saved], lines: Sequence[str], verbose: bool, names: Mapping[str, str]
) -> None:
    """Prints the result of each label; `names` are words for groups in the first sentence, as on the page."""
    for name, case in cases.items():
        if len(cases) > 1:
            say(f"\n{name}", "bold underline")
        _print_result(case, saved[name], lines if len(cases) == 1 else [], verbose, names)
    if len(cases) > 1:
        for line in lines:
            say(line)
        say(f"\nAll labels: {folder / 'report.html'}")


def exit_if_lacking(saved: Mapping[str, Saved]) -> None:
    """Prints which files could not be written, and ends the command with exit code 1 if one of them is for the committee."""
    failed = False
    for name, written in saved.items():
        for what, reason in written.failures.items():
            failed |= what in FOR_THE_COMMITTEE
            say(f"not done: {what if len(saved) == 1 else f'{name}, {what}'}: {reason}", "yellow", err)
    if failed:
        raise typer.Exit(1)


def write_pdf(folder: Path, pdf: Path | None, as_json: bool) -> None:
    """Prints the report in the folder as PDF. The repair is complete without it, so a failure says how to print it again (exit code 1)."""
    if pdf is None:
        return
    try:
        report.write_again(folder, pdf=pdf)
    except BadInput as error:
        again = f"the repair is complete; print it again with: equipoise report {folder} --pdf {pdf}"
        say(f"not done: {pdf}: {' '.join(error.problems)} ({again})", "yellow", err)
        raise typer.Exit(1) from error
    if not as_json:
        say(f"PDF: {pdf}")


def result_json(folder: Path, saved: Mapping[str, Saved], left_out: Mapping[str, object]) -> str:
    """The content of audit.json and the files written, by label if there are several, as JSON."""
    document = json.loads((folder / "audit.json").read_text(encoding="utf-8"))
    files: Any = {name: list(written.files) for name, written in saved.items()}
    failures: Any = {name: dict(written.failures) for name, written in saved.items()}
    if len(saved) == 1:
        (files,), (failures,) = files.values(), failures.values()
    return to_json({**document, "out": str(folder), "files": files, "failures": failures, "rows_left_out": left_out})


def _print_result(case: Comparison, saved: Saved, lines: Sequence[str], verbose: bool, names: Mapping[str, str]) -> None:
    say(report.repair_answer(case, report.groups_called(case, names)), STYLES[str(case.outcome)])
    method = f"Method: {report.method_words(case.result)}."
    for line in (method, report.met_words(case.judgement), report.original_words(case), report.repair_set_words(case)):
        if line:
            say(line)
    say(f"Chosen: {report.why_words(case.result.candidate.why)}.")
    out.print(_methods_table(case), "", sep="\n")
    if verbose:
        out.print(_test_table(case), "", sep="\n")
        out.print(Text(NO_UPPER_BOUND if case.found.methods[0].below is None else UPPER_BOUND, style="dim"))
    notes, hidden = _notes(case, verbose)
    for line in [*lines, *notes]:
        say(line)
    if hidden:
        say(f"How it was found: {report.plural(hidden, 'more note')} with --verbose and in report.html.", "dim")
    if verbose and saved.onnx is not None:
        out.print(f"model.onnx differs from torch by at most {saved.onnx.max_difference:.1e} on {saved.onnx.rows} rows.")
    say(f"Written to {saved.folder}: {', '.join(saved.files)}")


def _methods_table(case: Comparison) -> Table:
    """The gap and the performance of the original and of each method."""
    goal = case.result.candidate.goal
    attribute = case.result.test.attribute
    others = attribute.others
    group = report.short_name(others[0]) if len(others) == 1 else f"the largest of {len(others)} groups"
    gap = f"{group} minus {report.short_name(attribute.reference)}"
    title = f"The {len(case.result.test):,} held-out rows: {gap}, with 95% intervals"
    table = _plain_table(title, "", goal.measure, goal.performance.replace("_", " "), "outcome", "needs the group")
    table.columns[-1].max_width = len("needs")
    for k, row in enumerate(case.found.methods):
        table.add_row(
            _row_name(row, k, out.width - OTHER_COLUMNS),
            report.interval(row.gap.value, row.gap.low, row.gap.high, "+"),
            report.interval(row.performance.value, row.performance.low, row.performance.high, ""),
            "" if row.judgement is None else str(row.judgement.outcome),
            "yes" if k and row.needs_group else "no",
            style="bold" if row.chosen else "",
        )
    return table


def _test_table(case: Comparison) -> Table:
    """The size of each gap with its p-values, and the distance from the upper bound."""
    title = "Permutation p-values (adjusted for all comparisons: Holm), and the group-aware upper bound"
    table = _plain_table(title, "", f"|{case.result.candidate.goal.measure}|", "p", "adjusted p", "upper bound")
    for k, row in enumerate(case.found.methods):
        size = "" if isnan(row.gap.value) else f"{abs(row.gap.value):.3f}"
        above = "" if row.below is None or isnan(row.below) else f"{-row.below:+.3f}"
        cells = (size, report.p_value_words(row.gap.p_value), report.p_value_words(row.gap.p_adjusted), above)
        table.add_row(_row_name(row, k), *cells, style="bold" if row.chosen else "")
    return table


def _row_name(row: Any, k: int, width: int | None = None) -> Text:
    name = row.name if k else "original"
    if width is not None and max(map(len, name.split())) > width:
        name = name.replace("-", "-\n")  # otherwise it would be broken anywhere
    return Text(f"{name} (chosen)" if row.chosen else name)


def _notes(case: Comparison, verbose: bool) -> tuple[list[str], int]:
    """The notes of the chosen method to print, and the number of notes on the search that are only printed if verbose.

    If verbose, also the notes of other methods about rows that differ from those of the chosen one.
    """
    every = list(dict.fromkeys(case.result.candidate.notes))
    printed = [note for note in every if verbose or note.kind not in report.SEARCH_NOTES]
    lines = [f"{case.result.name}: {report.note_words(note)}" for note in printed]
    for tried in case.candidates if verbose else ():
        for note in tried.candidate.notes:
            # Notes on small cells are similar for all methods, so one of them is enough.
            small = note.kind == "small_cells" and not any(other.kind == note.kind for other in printed)
            if small or (note.kind == "missing_group" and note not in printed):
                printed.append(note)
                lines.append(f"{tried.name}: {report.note_words(note)}")
    return lines, len(every) - len(printed) if not verbose else 0


def _plain_table(title: str, *columns: str) -> Table:
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold", collapse_padding=True, pad_edge=False)
    table.show_edge = False  # so that with complete intervals most names of methods fit into 80 columns
    for k, column in enumerate(columns):
        table.add_column(column, no_wrap=k in (1, 2), overflow="fold")
    return table


def _duration(seconds: float | None) -> str:
    return "unknown" if seconds is None else report.duration(seconds)
