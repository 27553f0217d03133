"""`equipoise debias`: repair a network or a table of scores on local patients, evaluate it on held-out ones, write a folder to serve."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from equipoise import case as cases
from equipoise import measures, report
from equipoise.cli import console
from equipoise.cli.console import FailIfOption, JsonOption, PdfOption, out, say
from equipoise.cli.options import takes_case
from equipoise.disk import folders, write_text
from equipoise.errors import BadInput, collecting, raise_all

if TYPE_CHECKING:
    from equipoise.case import RepairEstimate, Run, Saved
    from equipoise.comparison import Comparison
    from equipoise.measures import Condition

FOR_THE_COMMITTEE = ("report.html", "card.md and card.xml")  # the run fails without these


@takes_case(cases.Case, "data", "images", "model", "goal", "repair", unread=("audit", "history"))
def debias_command(
    ctx: typer.Context,
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="{file}",
            help="CSV or Parquet file with one row per sample, a case file (.toml), or the folder of a repair; several case files: one "
            "repair per centre, and one page that compares them.",
        ),
    ],
    *,
    case: Callable[[Path], cases.Case],
    folder: Annotated[
        Path, typer.Option("--out", metavar="FOLDER", help="Folder for the repaired network, the rule, the audits and the report.")
    ] = Path("repaired"),
    pdf: PdfOption = None,
    choose: Annotated[
        str | None,
        typer.Option(
            metavar="CANDIDATE",
            help="Take another candidate of the repair in --out, as it was fitted; or original, level up, smallest gap, without the group.",
        ),
    ] = None,
    fail_if: FailIfOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the patients in each set, the methods and the estimated time, and exit.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the output of an earlier run.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Also print p-values and the upper bound, and the notes of all methods.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Repair a network, or the scores of any classifier, on local patients, evaluate it on held-out ones and write a folder to serve.

    [bold]Example:[/bold] equipoise debias local.csv --images xrays/ --label pneumonia --group sex --reference M --patient patient_id
    --model my_model.py:build --weights net.safetensors --threshold 0.4 --max-gap 0.05 --out repaired/

    [bold]A case file:[/bold] equipoise debias case.toml --out repaired/

    [bold]Scores only:[/bold] equipoise debias scores.csv --score p --label pneumonia --group sex --reference M --patient patient_id
    --threshold 0.5 --out rule/

    [bold]Several centres:[/bold] equipoise debias north.toml south.toml --out repaired/: a repair for each, compared at all of them.

    [bold]Multi-label:[/bold] --label Effusion --label Mass ...: one repair of a network with one output per label, one folder per label.
    """
    problems = console.place_problems({"--pdf": pdf}, folder=folder)
    if len(files) > 1:
        given = {"--pdf": pdf, "--choose": choose, "--dry-run": dry_run, "--fail-if": fail_if}
        problems += [f"{option} is for one case; {len(files)} were given. Omit it." for option, value in given.items() if value]
        _several_centres(ctx, files, case, folder, problems, overwrite=overwrite, verbose=verbose, as_json=as_json)
        return
    (file,) = files
    conditions = console.parse_conditions(fail_if, problems)
    with collecting(problems):
        console.failures_of(conditions, measures.outcome_facts({}))  # do they name outcomes?
    with collecting(problems):
        asked = case(file)
        problems += _more_problems(asked, folder, pdf, overwrite, dry_run or choose is not None)
    raise_all(problems)
    held = "" if choose is None else cases.fits_choice(folder, choose, asked.to_dict())
    if choose is not None and not held:
        runs = cases.choose_saved(folder, choose, asked.to_dict())
        _print_choice(folder, runs, choose, as_json)
        _fail(conditions, {label: str(run.outcome) for label, run in runs.items()})
        return
    with console.notes():
        prepared = cases.prepare_repair(asked, arguments=console.typed(ctx), bars=console.bar, running=console.say_code)
    if dry_run:
        with console.notes():
            estimate = prepared.estimate()
        _print_plan(estimate, folder, as_json)
        return
    with console.notes():
        repaired = prepared.repair(bars=console.bar) if choose is None else prepared.original(bars=console.bar).choose(choose, held)
        saved = repaired.save(folder, overwrite=overwrite, keep=choose is not None, bars=console.bar)
    if not saved:  # in a process other than the first, which writes and prints
        return
    if as_json:
        written_files = {name: (list(written.files), written.failures) for name, written in saved.items()}
        print(_result_json(folder, written_files, rows_left_out=prepared.left_out))
    else:
        several = len(saved) > 1
        for name, comparison in repaired.comparisons.items():
            if several:
                say(f"\n{name}", "bold underline")
            _print_result(comparison, saved[name], [] if several else prepared.notes, verbose, asked.report.words)
        for line in [*prepared.notes, f"\nAll labels: {folder / 'report.html'}"] if several else []:
            say(line)
    not_done = [(name, what, reason) for name, written in saved.items() for what, reason in written.failures.items()]
    for name, what, reason in not_done:
        say(f"not done: {what if len(saved) == 1 else f'{name}, {what}'}: {reason}", "yellow", console.err)
    if any(what in FOR_THE_COMMITTEE for _, what, _ in not_done):
        raise typer.Exit(1)
    if pdf is not None:
        try:
            cases.write_again(folder, pdf=pdf)
        except BadInput as error:
            again = f"the repair is complete; print it again with: equipoise report {folder} --pdf {pdf}"
            say(f"not done: {pdf}: {' '.join(error.problems)} ({again})", "yellow", console.err)
            raise typer.Exit(1) from error
        if not as_json:
            say(f"PDF: {pdf}")
    _fail(conditions, {label: str(comparison.outcome) for label, comparison in repaired.comparisons.items()})


def _several_centres(
    ctx: typer.Context,
    files: Sequence[Path],
    case: Callable[[Path], cases.Case],
    folder: Path,
    problems: list[str],
    *,
    overwrite: bool,
    verbose: bool,
    as_json: bool,
) -> None:
    """Repairs for each centre, in a folder of its name, and compares the repairs on the held-out patients of every centre."""
    asked, prepared, repaired, saved = dict[str, cases.Case](), dict[str, Any](), dict[str, Any](), dict[str, Any]()
    for path in files:
        if path.stem in asked:
            problems.append(f"two cases are named {path.stem}. The name of a centre is that of its file: rename one.")
        with collecting(problems):
            asked[path.stem] = case(path)
            problems += _more_problems(asked[path.stem], folder / path.stem, None, overwrite, dry_run=False)
    raise_all(problems)
    with console.notes():
        for name, own in asked.items():
            prepared[name] = cases.prepare_repair(own, arguments=console.typed(ctx), bars=console.bar, running=console.say_code)
        cases.check_centres(prepared)
        for name, own_prepared in prepared.items():
            repaired[name] = own_prepared.repair(bars=console.bar)
            saved[name] = repaired[name].save(folder / name, overwrite=overwrite, bars=console.bar)
        centres = cases.across_centres(prepared, repaired)
    changes = {label: {name: own.changes for name, own in by_centre.items()} for label, by_centre in centres.comparisons.items()}
    page = folder / "centres.html"
    write_text(page, report.page_of(report.centres_document(changes, centres.measures, centres.failures)))
    if as_json:
        found = {label: {name: own.to_dict() for name, own in by_centre.items()} for label, by_centre in changes.items()}
        print(console.to_json({"out": str(folder), "centres": list(asked), "changes": found, "failures": dict(centres.failures)}))
        return
    for name, own_repaired in repaired.items():
        say(f"\n{name}", "bold underline")
        for label, comparison in own_repaired.comparisons.items():
            _print_result(comparison, saved[name][label], prepared[name].notes, verbose, asked[name].report.words)
    for label, by_centre in changes.items():
        say("\nAll centres" if len(changes) == 1 else f"\nAll centres, {label}", "bold underline")
        out.print(report.in_terminal(report.centres_parts("", by_centre, centres.measures[label])), soft_wrap=False)
    for what, why in centres.failures.items():
        say(f"not compared: {what}: {why}", "yellow", console.err)
    say(f"All centres: {page}")


def _fail(conditions: Sequence[Condition], outcomes: Mapping[str, str]) -> None:
    """Ends the command with exit code 1 if a condition of --fail-if holds for the outcome of a label."""
    named = {label if len(outcomes) > 1 else "": outcome for label, outcome in outcomes.items()}
    if failures := console.failures_of(conditions, measures.outcome_facts(named)):
        console.exit_failed(failures)


def _print_choice(folder: Path, runs: Mapping[str, Run], name: str, as_json: bool) -> None:
    """Prints the result of --choose: the content of audit.json, or what README.txt says first about each label."""
    places = folders(folder, list(runs))
    if as_json:
        names = {label: sorted(path.name for path in place.iterdir() if path.is_file()) for label, place in places.items()}
        print(_result_json(folder, {label: (names[label], run.failures) for label, run in runs.items()}))
        return
    for label, place in places.items():
        _, answer, *_ = (place / "README.txt").read_text(encoding="utf-8").split("\n\n")
        say(f"{label}: {answer}" if len(runs) > 1 else answer)
    say(f"Chosen: {name}, in {folder}")


def _more_problems(case: cases.Case, folder: Path, pdf: Path | None, overwrite: bool, dry_run: bool) -> list[str]:
    """Problems of the methods, the files to read and those to write, before any work."""
    problems: list[str] = []
    weights = case.model.weights
    if weights is not None and not weights.is_file():
        problems.append(f"no such file: {weights}. Give the file with the weights.")
    twice = sorted({column for column in case.data.score if case.data.score.count(column) > 1})
    problems += [f"--score {column} was given twice. Give each label its own column." for column in twice]
    with collecting(problems):
        cases.methods_of(case)
    if case.report.card is not None:
        with collecting(problems):
            report.read_facts(case.report.card)
    if not dry_run:
        weight_bytes = weights.stat().st_size if weights and weights.is_file() else 0
        with collecting(problems):
            cases.check_folder(folder, overwrite, 4 * len(case.labels) * weight_bytes)
        with collecting(problems):
            console.check_paths(pdf=pdf)
    if not problems:
        console.check_paths(case.model.check_scores)
    return problems


def _print_plan(estimate: RepairEstimate, folder: Path, as_json: bool) -> None:
    if as_json:
        print(console.to_json({**estimate.to_dict(), "out": str(folder)}))
        return
    text = functools.partial(report.Column, style="text")
    sets = []
    for row in estimate.sets.itertuples():
        patients = "" if row.patients is None else f"{row.patients:,}"
        sets.append((row.set, report.short_name(row.group), str(row.label), f"{row.rows:,}", patients))
    steps = [*estimate.methods, *([estimate.probes] if estimate.probes is not None and estimate.probes.seconds is not None else [])]
    methods = [(step.method, step.what, _duration(step.seconds)) for step in steps]
    who = report.table("Who is in which set", ["set", text("group"), text("label"), "rows", "patients"], sets)
    work = report.table("Methods to be run", ["method", text("steps"), "at most about"], methods)
    out.print("", report.in_terminal([who]), "", report.in_terminal([work]), "", sep="\n")
    goals = "; ".join(dict.fromkeys(map(report.goal_words, estimate.goals.values())))
    say(f"goal: {goals}; at most about {_duration(estimate.seconds)} without the report; result in {folder}")
    out.print("Dry run: nothing was done. Omit --dry-run to run it.")


def _result_json(folder: Path, written: Mapping[str, tuple[list[str], Mapping[str, str]]], **more: object) -> str:
    """The content of audit.json, and the files and failures of each label, without its name if there is one, as JSON."""
    document = json.loads((folder / "audit.json").read_text(encoding="utf-8"))
    files: Any = {name: files for name, (files, _) in written.items()}
    failures: Any = {name: dict(failures) for name, (_, failures) in written.items()}
    if len(written) == 1:
        (files,), (failures,) = files.values(), failures.values()
    return console.to_json({**document, "out": str(folder), "files": files, "failures": failures, **more})


def _print_result(case: Comparison, saved: Saved, lines: Sequence[str], verbose: bool, names: Mapping[str, str]) -> None:
    """Prints the result of one label; `names` are words for groups in the first sentence, as on the page."""
    out.print(report.in_terminal(report.repair_screen(case, names, lines, verbose=verbose)))
    found = case.found
    if found.judgement.source == "held-out" and found.gap_before.detectable > abs(found.valid_before):
        shown, gap = f"{100 * found.gap_before.detectable:.1f}", f"{100 * abs(found.valid_before):.1f}"
        say(f"The held-out patients can show a difference of {shown} points, not of {gap}. To judge on all patients, add: --test cross")
    if verbose and saved.onnx is not None:
        out.print(f"model.onnx differs from torch by at most {saved.onnx.max_difference:.1e} on {saved.onnx.rows} rows.")
    say(f"Written to {saved.folder}: {', '.join(saved.files)}")


def _duration(seconds: float | None) -> str:
    return "unknown" if seconds is None else report.duration(seconds)
