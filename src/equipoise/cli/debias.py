"""`equipoise debias`: repair a network or a table of scores on local patients, evaluate it on held-out ones, write a folder to serve."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from equipoise import data, report
from equipoise.cli.console import JsonOption, bar, counting, notes, typed
from equipoise.cli.debias_options import GoalOptions, RepairRequest, RunOptions, parse_request
from equipoise.cli.debias_output import exit_if_lacking, print_labels, print_plan, result_json, write_pdf
from equipoise.cli.inputs import Inputs, group_names_of, preprocessing_of, reading_notes, source_of
from equipoise.cli.networks import (
    check_known_scores,
    is_estimator,
    label_scores,
    load_estimator,
    load_network,
    parse_output,
    predicted,
    preprocessing_lines,
    with_saved_preprocessing,
)
from equipoise.cli.options import FileArgument, NetworkOptions, ScoreOptions, takes_options

if TYPE_CHECKING:
    from torch import nn

    from equipoise.models import Checkpoint, Code, Predictor
    from equipoise.repair import Comparison, Provenance, RepairEstimate, Saved

    ByLabel = dict[str, data.Scores]


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
    request = parse_request(source_of(file, network, inputs, scores), goal, run, folder)
    from_scores = request.source.columns or is_estimator(network.model)
    prepared: _PreparedScores | _PreparedNetwork
    with notes():
        prepared = _prepare_scores(request, typed(ctx)) if from_scores else _prepare_network(request, typed(ctx))
    if run.dry_run:
        with notes():
            estimate = prepared.estimate(request)
        print_plan(estimate, folder, as_json)
        return
    with notes():
        cases, saved = prepared.run(request)
    if as_json:
        print(result_json(folder, saved, prepared.left_out))
    else:
        print_labels(folder, cases, saved, prepared.lines, verbose)
    exit_if_lacking(saved)
    write_pdf(folder, run.pdf, as_json)


@dataclass(frozen=True)
class _PreparedNetwork:
    """A network and its patients, ready for the repair."""

    network: nn.Module
    code: Code | None
    checkpoint: Checkpoint | None  # the original weights
    output_name: str | None  # of the only label
    output: str  # logit or probability, if known
    reading: data.ReadOptions
    cohort: data.Cohort  # all rows of the data file
    train: data.Cohort | None
    repair: data.Cohort
    test: data.Cohort
    provenance: Provenance
    left_out: Mapping[str, object]  # rows and images left out, for the JSON
    lines: list[str]  # notes on the rows and the network, for the terminal

    def estimate(self, request: RepairRequest) -> RepairEstimate:
        """The dry run."""
        from equipoise.repair import estimate

        draws = request.run.draws if request.run.probe else None
        rows = (self.repair, self.test)
        return estimate(self.network, *rows, request.methods, request.goal, self.train, draws, request.outputs, request.budget)

    def run(self, request: RepairRequest) -> tuple[dict[str, Comparison], dict[str, Saved]]:
        """The comparison of each label, and the files written for it."""
        from equipoise.repair import ROWS_CHECKED, Request, Serving, absolute_model_name, inputs_of, save_all, serving_by_label, try_methods

        run, labels, model = request.run, request.source.inputs.labels, request.source.network.model or ""
        reading, repair, test = self.reading, self.repair, self.test
        columns = {"patient": reading.patient, "id": reading.id, "conflicts": reading.conflicts}
        if reading.images is not None:
            columns |= {"image_column": reading.image_column, "view_column": reading.view}
        inputs = inputs_of(self.cohort, **columns)
        sample = test.inputs[: min(len(test), ROWS_CHECKED)]
        served = Serving(absolute_model_name(model), self.output, sample, inputs, self.output_name, self.checkpoint, self.code)
        serving = serving_by_label(self.network, repair, labels[0], request.outputs, served)
        cases = try_methods(
            self.network,
            repair,
            test,
            request.methods,
            request.goal,
            request=Request(labels[0], run.title, self.provenance, run.draws, run.thumbnails, run.probe),
            outputs=request.outputs,
            goals=request.goals,
            seed=run.seed,
            train=self.train,
            budget=request.budget,
            recalibrate=request.goal_options.recalibrate,
            force=request.goal_options.force,
            bars=bar,
        )
        title = run.title or f"{len(labels)} {request.source.kind} of {data.without_folders(model)}"
        return cases, save_all(cases, request.folder, serving, request.writing_options(), title=title, bars=bar)


def _prepare_network(request: RepairRequest, arguments: list[str]) -> _PreparedNetwork:
    """Loads the network and its patients, and compares its scores with known ones."""
    from equipoise.models import code_of
    from equipoise.repair import Provenance, check_methods, original_weights, resolve_output, set_output

    source, run = request.source, request.run
    options, labels = source.network, source.inputs.labels
    reading, preprocessing_origin = with_saved_preprocessing(options.model, source.inputs.reading)
    code = code_of(options.model or "")
    output_name = parse_output(options.output_name) if len(labels) == 1 else None
    network = load_network(options, reading, output_name, code)
    checkpoint, weight_notes = original_weights(network, options.weights)
    check_methods(network, request.methods, run.train is not None)
    read = data.read_cohort(source.file, reading, progress=counting)
    cohort = read.cohort
    group_names_of(run.group_name, cohort)  # reports an unknown group before any work
    train = None if run.train is None else data.read_cohort(run.train, reading.with_bins_of(cohort), progress=counting).cohort
    if run.test_file is None:
        repair, test = data.hold_out(cohort, run.share, seed=run.seed)
    else:
        test = data.read_cohort(run.test_file, reading.like(cohort), progress=counting).cohort
        repair, test = cohort, data.same_groups(cohort, test)
    output = options.output_type or "auto"
    if len(labels) == 1:
        predicted(network, repair.take(range(min(2, len(repair)))), "auto")  # reports wrong shapes before any work
        output = resolve_output(network, repair.inputs, output)
    else:
        set_output(network, output)
    checks = []
    if source.known:
        scores = label_scores(network, cohort, labels, output, request.outputs)
        checks = check_known_scores(source, reading, network, cohort, scores)
    input_notes = preprocessing_lines(checks, preprocessing_of(cohort), preprocessing_origin)
    lines = reading_notes(read, names=True) + weight_notes + input_notes
    limits = reading_notes(read, names=False) + weight_notes
    if len(labels) > 1:
        limits.append(f"the network was repaired for {len(labels)} {source.kind} at once: {', '.join(labels)}; each has its own report")
    files, limits = request.files, limits + input_notes
    provenance = Provenance.now(arguments=arguments, model=options.model or "", seed=run.seed, files=files, cohort=cohort, limits=limits)
    rows = (reading, cohort, train, repair, test)
    return _PreparedNetwork(network, code, checkpoint, output_name, output, *rows, provenance, read.to_dict(), lines)


@dataclass(frozen=True)
class _PreparedScores:
    """The scores in a file, or of an estimator, ready for the repair."""

    reading: data.ReadOptions
    estimator: Predictor | None  # saved in the folder
    scores: ByLabel
    repair: ByLabel
    test: ByLabel
    provenance: Provenance
    left_out: Mapping[str, object]  # none of the rows, for the JSON
    lines: list[str]  # notes on patients in several groups and the comparison with known scores, for the terminal

    def estimate(self, request: RepairRequest) -> RepairEstimate:
        """The dry run."""
        from equipoise.repair import estimate_rules

        return estimate_rules(self.repair, self.test, request.methods, request.goal, request.budget)

    def run(self, request: RepairRequest) -> tuple[dict[str, Comparison], dict[str, Saved]]:
        """The comparison of each label, and the files written for it."""
        from equipoise.repair import PREDICTOR_SCORE, Request, save_all, serving_of_rule, try_rules, with_predictor

        reading, run, source = self.reading, request.run, request.source
        labels, columns = reading.labels, source.columns if self.estimator is None else [PREDICTOR_SCORE]
        roles: dict[str, Any] = {"patient": reading.patient, "id": reading.id, "conflicts": reading.conflicts}
        roles["logits"] = source.scores.logits
        serving = {label: serving_of_rule(self.scores[label], score=column, **roles) for label, column in zip(labels, columns, strict=True)}
        cases = try_rules(
            self.repair,
            self.test,
            request.methods,
            request.goal,
            request=Request(labels[0], run.title, self.provenance),
            goals=request.goals,
            seed=run.seed,
            budget=request.budget,
            force=request.goal_options.force,
            bars=bar,
        )
        if self.estimator is not None:
            cases = {label: with_predictor(case, self.estimator) for label, case in cases.items()}
        title = run.title or f"{len(labels)} labels of {source.file.name}"
        return cases, save_all(cases, request.folder, serving, request.writing_options(), title=title, bars=bar)


def _prepare_scores(request: RepairRequest, arguments: list[str]) -> _PreparedScores:
    """Reads the scores in a file, or computes those of an estimator and compares them with known ones."""
    from equipoise.repair import Provenance, check_rules

    source, run = request.source, request.run
    reading, estimator = source.inputs.reading, None
    if is_estimator(source.network.model):
        estimator, reading = load_estimator(source.network, reading)
    check_rules(request.methods, bool(reading.features) or estimator is not None)
    scores, cohort = _scores_in(source.file, reading, request, estimator)
    checks = [] if cohort is None else check_known_scores(source, reading, estimator, cohort, scores)
    first = scores[reading.labels[0]]
    group_names_of(run.group_name, first)  # reports an unknown group before any work
    if run.test_file is None:
        repair, test = data.hold_out_scores(scores, run.share, seed=run.seed)
    else:
        test_scores, _ = _scores_in(run.test_file, reading.like(first), request, estimator)
        repair, test = scores, {label: data.same_groups(scores[label], test_scores[label]) for label in scores}
    lines = [*map(report.varying_words, data.conflicts_in(first.attributes, first.patients)), *map(str, checks)]
    model, limits = source.network.model, lines
    if model is None:
        model = f"scores in {source.file.name}"
        limits = [*lines, "the rule decides from scores; the classifier that makes them was not examined"]
    provenance = Provenance.now(arguments=arguments, model=model, seed=run.seed, files=request.files, limits=limits)
    return _PreparedScores(reading, estimator, scores, repair, test, provenance, {"left_out": []}, lines)


def _scores_in(
    path: Path, reading: data.ReadOptions, request: RepairRequest, estimator: Predictor | None
) -> tuple[ByLabel, data.Cohort | None]:
    """The scores of each label in a file; with an estimator, the scores of the rows, and the rows."""
    if estimator is None:
        return data.read_scores(path, reading, request.source.columns, logits=request.source.scores.logits), None
    from equipoise.models import predict

    cohort = data.read_cohort(path, reading, progress=counting).cohort
    return {reading.labels[0]: predict(estimator, cohort)}, cohort
