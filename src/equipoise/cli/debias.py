"""`equipoise debias`: repair a network or a table of scores on local patients, evaluate it on held-out ones, write a folder to serve."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from equipoise import repair
from equipoise.cli.case_file import read_case
from equipoise.cli.console import JsonOption, bar, notes, say_code, typed
from equipoise.cli.debias_output import exit_if_lacking, print_labels, print_plan, result_json, write_pdf
from equipoise.cli.options import CaseArgument, PdfOption, takes_case
from equipoise.cli.places import check_exist, check_places, page_problems
from equipoise.errors import collecting, raise_all


@takes_case(repair.Case, "data", "images", "model", "goal", "repair", unread=("audit", "history"))
def debias(
    ctx: typer.Context,
    file: CaseArgument,
    *,
    case: Callable[[dict[str, Any]], repair.Case],
    folder: Annotated[Path, typer.Option("--out", help="Folder for the repaired network, the rule, the audits and the report.")],
    pdf: PdfOption = None,
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

    [bold]Multi-label:[/bold] --label Effusion --label Mass ...: one repair of a network with one output per label, one folder per label.
    """
    problems = page_problems({"--pdf": pdf})
    asked = None
    with collecting(problems):
        asked = read_case(file, case)
    if asked is not None:
        problems += _more_problems(asked, folder, pdf, overwrite, dry_run)
    raise_all(problems)
    assert asked is not None
    with notes():
        prepared = repair.prepare_file(asked, arguments=typed(ctx), bars=bar, running=say_code)
    if dry_run:
        with notes():
            estimate = prepared.estimate()
        print_plan(estimate, folder, as_json)
        return
    with notes():
        repaired = prepared.repair(bars=bar)
        saved = repaired.save(folder, overwrite=overwrite, bars=bar)
    if not saved:  # in a process other than the first, which writes and prints
        return
    if as_json:
        print(result_json(folder, saved, prepared.left_out))
    else:
        print_labels(folder, repaired.comparisons, saved, prepared.notes, verbose, asked.report.words)
    exit_if_lacking(saved)
    write_pdf(folder, pdf, as_json)


def _more_problems(case: repair.Case, folder: Path, pdf: Path | None, overwrite: bool, dry_run: bool) -> list[str]:
    """Problems of the methods, the files to read and those to write, before any work."""
    problems: list[str] = []
    weights = case.model.weights
    if weights is not None and not weights.is_file():
        problems.append(f"no such file: {weights}. Give the file with the weights.")
    twice = sorted({column for column in case.data.score if case.data.score.count(column) > 1})
    problems += [f"--score {column} was given twice. Give each label its own column." for column in twice]
    with collecting(problems):
        repair.methods_of(case)
    if case.report.card is not None:
        from equipoise.report import read_facts

        with collecting(problems):
            read_facts(case.report.card)
    if not dry_run:
        weight_bytes = weights.stat().st_size if weights and weights.is_file() else 0
        with collecting(problems):
            repair.check_folder(folder, overwrite, 4 * len(case.labels) * weight_bytes)
        with collecting(problems):
            check_places(pdf=pdf)
    if not problems:
        check_exist(case.model.check_scores)
    return problems
