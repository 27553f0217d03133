"""`equipoise debias`: repair a network or a table of scores on local patients, evaluate it on held-out ones, write a folder to serve."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from equipoise import repair
from equipoise.cli.console import JsonOption, bar, notes, say_code, typed
from equipoise.cli.debias_options import GoalOptions, RunOptions, parse_request
from equipoise.cli.debias_output import exit_if_lacking, print_labels, print_plan, result_json, write_pdf
from equipoise.cli.inputs import Inputs
from equipoise.cli.options import FileArgument, NetworkOptions, ScoreOptions, takes_options
from equipoise.cli.source_options import source_of


@takes_options()
def debias(
    ctx: typer.Context,
    file: FileArgument,
    *,
    network: NetworkOptions,
    inputs: Inputs,
    scores: ScoreOptions,
    folder: Annotated[Path, typer.Option("--out", help="Folder for the repaired network, the rule, the audits and the report.")],
    goal: GoalOptions,
    run: RunOptions,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Also print p-values and the upper bound, and the notes of all methods.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Repair a network, or the scores of any classifier, on local patients, evaluate it on held-out ones and write a folder to serve.

    [bold]Example:[/bold] equipoise debias local.csv --images xrays/ --label pneumonia --group sex --reference M --patient patient_id
    --model my_model.py:build --weights net.safetensors --threshold 0.4 --max-gap 0.05 --out repaired/

    [bold]Official test set:[/bold] equipoise debias local.csv --test official.csv --label pneumonia --group sex --model my_model.py:build
    --weights net.safetensors --method bias-score --method pruning --min-performance 0.75 --out repaired/

    [bold]Scores only:[/bold] equipoise debias scores.csv --score p --label pneumonia --group sex --reference M --patient patient_id
    --threshold 0.5 --out rule/

    [bold]A scikit-learn pipeline:[/bold] equipoise debias local.csv --label sick --group sex --reference M --model pipeline.skops
    --out repaired/

    [bold]Multi-label:[/bold] --label Effusion --label Mass ...: one repair of a network with one output per label, one folder per label.

    [bold]Classes:[/bold] --label finding --class none --class pneumonia --class effusion ...: decided by argmax, one folder per class.
    """
    with notes():
        request = parse_request(source_of(file, network, inputs, scores), goal, run, folder, typed(ctx))
        prepared = repair.prepare_file(request, bars=bar, running=say_code)
    if run.dry_run:
        with notes():
            estimate = prepared.estimate()
        print_plan(estimate, folder, as_json)
        return
    with notes():
        cases, saved = prepared.run(folder, bars=bar)
    if not saved:  # in a process other than the first, which writes and prints
        return
    if as_json:
        print(result_json(folder, saved, prepared.left_out))
    else:
        print_labels(folder, cases, saved, prepared.notes, verbose, request.options.group_names)
    exit_if_lacking(saved)
    write_pdf(folder, run.pdf, as_json)
