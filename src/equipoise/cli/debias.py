"""`equipoise debias`: repair a network, or scores alone, on local patients, evaluate it on held-out ones, and write a folder to serve."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from equipoise import data
from equipoise.cli.console import JsonOption, bar, notes, typed
from equipoise.cli.inputs import Inputs, Opened, cohort_of, group_names_of, source_of
from equipoise.cli.networks import check_lines, checks_of, is_estimator, label_scores, network_of, output_of, prepared_as_saved, scores_of
from equipoise.cli.options import FileArgument, NetworkOptions, ScoreOptions, takes_options
from equipoise.cli.outcome import exit_if_lacking, print_labels, print_plan, result_json, write_pdf
from equipoise.cli.repairs import GoalOptions, Repair, RunOptions, repair_of
from equipoise.cli.scores import repair_scores

if TYPE_CHECKING:
    from torch import nn

    from equipoise.models import Checkpoint, Code
    from equipoise.repair import Comparison, Provenance, Saved


@takes_options()
def debias(
    ctx: typer.Context,
    file: FileArgument,
    *,
    network: NetworkOptions,
    inputs: Inputs,
    scores: ScoreOptions,
    folder: Annotated[Path, typer.Option("--out", help="Folder for the repaired network, the rule, the audits and the report.")],
    wanted: GoalOptions,
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
    asked = repair_of(source_of(file, network, inputs, scores), wanted, run, folder)
    if asked.source.columns or is_estimator(network.model):
        repair_scores(asked, typed(ctx), verbose, as_json)
        return
    with notes():
        ready = _prepared(asked)
        origin = _origin(asked, ready, typed(ctx))
    if run.dry_run:
        _print_estimate(asked, ready, as_json)
        return
    with notes():
        cases, done = _repaired(asked, ready, origin)
    if as_json:
        print(result_json(folder, done, ready.opened.to_dict()))
    else:
        print_labels(folder, cases, done, [*ready.opened.lines(), *ready.remarks, *ready.inputs], verbose)
    exit_if_lacking(done)
    write_pdf(folder, run.pdf, as_json)


@dataclass(frozen=True)
class Prepared:
    """The network and the patients, ready for the repair."""

    network: nn.Module
    code: Code | None
    came: Checkpoint | None  # the weights that the network came with
    output_name: str | None  # of the only label
    output: str  # logit or probability, where that is known
    reading: data.Reading
    opened: Opened
    train: data.Cohort | None
    repair: data.Cohort
    test: data.Cohort
    remarks: list[str]  # about the weights
    inputs: list[str]  # what was done to images, and whether scores were compared with known ones


def _prepared(asked: Repair) -> Prepared:
    """The network on the patients that it is repaired on and judged on, after its scores were compared with known ones."""
    from equipoise.models import code_of
    from equipoise.repair import check_methods, original_weights, set_output, settled_output

    named, run, labels = asked.source.network, asked.run, asked.source.inputs.labels
    reading, whose = prepared_as_saved(named, asked.source.inputs.reading)
    code = code_of(named.model or "")
    output_name = output_of(named.output_name) if len(labels) == 1 else None
    network = network_of(named, reading, output_name, code)
    came, remarks = original_weights(network, named.weights)
    check_methods(network, asked.methods, run.train is not None)
    opened = cohort_of(asked.source.file, reading)
    group_names_of(run.group_name, opened.cohort)  # an error before any work
    train = None if run.train is None else cohort_of(run.train, reading.with_bins_of(opened.cohort)).cohort
    if run.test_file is None:
        repair, test = data.hold_out(opened.cohort, run.share, seed=run.seed)
    else:
        repair = opened.cohort
        test = data.same_groups(repair, cohort_of(run.test_file, reading.as_for(repair)).cohort)
    output = named.output_type or "auto"
    if len(labels) == 1:
        scores_of(network, repair.take(range(min(2, len(repair)))), "auto")  # report an error of shape before any work
        output = settled_output(network, repair.inputs, output)
    else:
        set_output(network, output)
    checks = []
    if asked.source.known:
        own = label_scores(network, opened.cohort, labels, output, asked.outputs)
        checks = checks_of(asked.source, reading, network, opened.cohort, own)
    prepared = check_lines(checks, opened.preprocessing(), whose)
    return Prepared(network, code, came, output_name, output, reading, opened, train, repair, test, remarks, prepared)


def _origin(asked: Repair, ready: Prepared, arguments: list[str]) -> Provenance:
    from equipoise.repair import Provenance

    labels, kind = asked.source.inputs.labels, asked.source.kind
    together = f"the network was repaired for {len(labels)} {kind} at once: {', '.join(labels)}; each has its own report"
    return Provenance.now(
        arguments=arguments,
        model=asked.source.network.model or "",
        seed=asked.run.seed,
        files=asked.files,
        cohort=ready.opened.cohort,
        limits=[*ready.opened.summary(), *ready.remarks, *([together] if len(labels) > 1 else []), *ready.inputs],
    )


def _print_estimate(asked: Repair, ready: Prepared, as_json: bool) -> None:
    from equipoise.repair import estimate

    draws = asked.run.draws if asked.run.probe else None
    rows = (ready.repair, ready.test)
    with notes():
        found = estimate(ready.network, *rows, asked.methods, asked.goal, ready.train, draws, asked.outputs, asked.budget)
    print_plan(found, asked.folder, as_json)


def _repaired(asked: Repair, ready: Prepared, origin: Provenance) -> tuple[dict[str, Comparison], dict[str, Saved]]:
    """The comparison of each label, and what was written of it."""
    from equipoise.repair import ROWS_CHECKED, Request, Serving, findable, inputs_of, save_all, servings, try_methods

    run, wanted, labels, model = asked.run, asked.wanted, asked.source.inputs.labels, asked.source.network.model or ""
    reading, repair, test = ready.reading, ready.repair, ready.test
    names = {"patient": reading.patient, "id": reading.id, "conflicts": reading.conflicts}
    if reading.images is not None:
        names |= {"image_column": reading.image_column, "view_column": reading.view}
    read = inputs_of(ready.opened.cohort, **names)
    sample = test.inputs[: min(len(test), ROWS_CHECKED)]
    served = Serving(findable(model), ready.output, sample, read, ready.output_name, ready.came, ready.code)
    serving = servings(ready.network, repair, labels[0], asked.outputs, served)
    request = Request(labels[0], run.title, origin, run.draws, run.thumbnails, run.probe)
    limits: dict[str, Any] = {"budget": asked.budget, "recalibrate": wanted.recalibrate, "force": wanted.force}
    named: dict[str, Any] = {"outputs": asked.outputs, "goals": asked.goals, "seed": run.seed, "train": ready.train}
    cases = try_methods(ready.network, repair, test, asked.methods, asked.goal, request=request, **named, **limits, bars=bar)
    overview = run.title or f"{len(labels)} {asked.source.kind} of {data.without_folders(model)}"
    return cases, save_all(cases, asked.folder, serving, asked.options(), title=overview, bars=bar)
