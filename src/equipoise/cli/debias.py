"""`equipoise debias`: repair a network, or scores alone, on local patients, evaluate it on held-out ones, and write a folder to serve."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from equipoise import data, report
from equipoise.cli.console import JsonOption, bar, notes, typed
from equipoise.cli.inputs import Inputs, Opened, cohort_of, group_names_of, source_of
from equipoise.cli.networks import (
    check_lines,
    checks_of,
    estimator_of,
    is_estimator,
    label_scores,
    network_of,
    output_of,
    prepared_as_saved,
    scores_of,
)
from equipoise.cli.options import FileArgument, NetworkOptions, ScoreOptions, takes_options
from equipoise.cli.outcome import exit_if_lacking, print_labels, print_plan, result_json, write_pdf
from equipoise.cli.repairs import GoalOptions, Repair, RunOptions, repair_of

if TYPE_CHECKING:
    from torch import nn

    from equipoise.models import Checkpoint, Code, Predictor
    from equipoise.repair import Comparison, Provenance, RepairEstimate, Saved, ScoreCheck

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
    of_scores = asked.source.columns or is_estimator(network.model)
    with notes():
        ready: _Network | _Rows = _rows(asked) if of_scores else _network(asked)
        origin = ready.origin(asked, typed(ctx))
    if run.dry_run:
        with notes():
            found = ready.estimate(asked)
        print_plan(found, folder, as_json)
        return
    with notes():
        cases, done = ready.repaired(asked, origin)
    if as_json:
        print(result_json(folder, done, ready.left_out))
    else:
        print_labels(folder, cases, done, ready.lines, verbose)
    exit_if_lacking(done)
    write_pdf(folder, run.pdf, as_json)


@dataclass(frozen=True)
class _Network:
    """A network and its patients, ready for the repair."""

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

    @property
    def left_out(self) -> Mapping[str, object]:
        """The rows and images that were left out, for the JSON."""
        return self.opened.to_dict()

    @property
    def lines(self) -> list[str]:
        """What to know about the rows and the network, for the terminal."""
        return [*self.opened.lines(), *self.remarks, *self.inputs]

    def origin(self, asked: Repair, arguments: list[str]) -> Provenance:
        """Where the repair comes from."""
        from equipoise.repair import Provenance

        labels, kind = asked.source.inputs.labels, asked.source.kind
        together = f"the network was repaired for {len(labels)} {kind} at once: {', '.join(labels)}; each has its own report"
        limits = [*self.opened.summary(), *self.remarks, *([together] if len(labels) > 1 else []), *self.inputs]
        return Provenance.now(
            arguments=arguments,
            model=asked.source.network.model or "",
            seed=asked.run.seed,
            files=asked.files,
            cohort=self.opened.cohort,
            limits=limits,
        )

    def estimate(self, asked: Repair) -> RepairEstimate:
        """What the repair would do."""
        from equipoise.repair import estimate

        draws = asked.run.draws if asked.run.probe else None
        rows = (self.repair, self.test)
        return estimate(self.network, *rows, asked.methods, asked.goal, self.train, draws, asked.outputs, asked.budget)

    def repaired(self, asked: Repair, origin: Provenance) -> tuple[dict[str, Comparison], dict[str, Saved]]:
        """The comparison of each label, and what was written of it."""
        from equipoise.repair import ROWS_CHECKED, Request, Serving, findable, inputs_of, save_all, servings, try_methods

        run, wanted, labels, model = asked.run, asked.wanted, asked.source.inputs.labels, asked.source.network.model or ""
        reading, repair, test = self.reading, self.repair, self.test
        names = {"patient": reading.patient, "id": reading.id, "conflicts": reading.conflicts}
        if reading.images is not None:
            names |= {"image_column": reading.image_column, "view_column": reading.view}
        read = inputs_of(self.opened.cohort, **names)
        sample = test.inputs[: min(len(test), ROWS_CHECKED)]
        served = Serving(findable(model), self.output, sample, read, self.output_name, self.came, self.code)
        serving = servings(self.network, repair, labels[0], asked.outputs, served)
        request = Request(labels[0], run.title, origin, run.draws, run.thumbnails, run.probe)
        limits: dict[str, Any] = {"budget": asked.budget, "recalibrate": wanted.recalibrate, "force": wanted.force}
        named: dict[str, Any] = {"outputs": asked.outputs, "goals": asked.goals, "seed": run.seed, "train": self.train}
        cases = try_methods(self.network, repair, test, asked.methods, asked.goal, request=request, **named, **limits, bars=bar)
        overview = run.title or f"{len(labels)} {asked.source.kind} of {data.without_folders(model)}"
        return cases, save_all(cases, asked.folder, serving, asked.options(), title=overview, bars=bar)


def _network(asked: Repair) -> _Network:
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
    return _Network(network, code, came, output_name, output, reading, opened, train, repair, test, remarks, prepared)


@dataclass(frozen=True)
class _Rows:
    """Scores in a file, or those that an estimator gives to its rows, ready for the repair."""

    reading: data.Reading
    estimator: Predictor | None  # it becomes part of the folder
    scores: ByLabel
    repair: ByLabel
    test: ByLabel
    lines: list[str]  # patients in several groups, and whether scores were compared with known ones

    @property
    def left_out(self) -> Mapping[str, object]:
        """Of scores no row is left out."""
        return {"left_out": []}

    def origin(self, asked: Repair, arguments: list[str]) -> Provenance:
        """Where the repair comes from."""
        from equipoise.repair import Provenance

        model = asked.source.network.model
        limits = self.lines if model else [*self.lines, "the rule decides from scores; the classifier that makes them was not examined"]
        name = model or f"scores in {asked.source.file.name}"
        return Provenance.now(arguments=arguments, model=name, seed=asked.run.seed, files=asked.files, limits=limits)

    def estimate(self, asked: Repair) -> RepairEstimate:
        """What the repair would do."""
        from equipoise.repair import estimate_rules

        return estimate_rules(self.repair, self.test, asked.methods, asked.goal, asked.budget)

    def repaired(self, asked: Repair, origin: Provenance) -> tuple[dict[str, Comparison], dict[str, Saved]]:
        """The comparison of each label, and what was written of it."""
        from equipoise.repair import SCORE, Request, rule_serving, save_all, try_rules, with_predictor

        reading, run = self.reading, asked.run
        labels, columns = reading.labels, asked.source.columns if self.estimator is None else [SCORE]
        names: dict[str, Any] = {"patient": reading.patient, "id": reading.id, "conflicts": reading.conflicts}
        names |= {"logits": asked.source.scores.logits}
        serving = {label: rule_serving(self.scores[label], score=column, **names) for label, column in zip(labels, columns, strict=True)}
        request = Request(labels[0], run.title, origin)
        limits: dict[str, Any] = {"seed": run.seed, "budget": asked.budget, "force": asked.wanted.force, "bars": bar}
        cases = try_rules(self.repair, self.test, asked.methods, asked.goal, request=request, goals=asked.goals, **limits)
        if self.estimator is not None:
            cases = {label: with_predictor(case, self.estimator) for label, case in cases.items()}
        title = run.title or f"{len(labels)} labels of {asked.source.file.name}"
        return cases, save_all(cases, asked.folder, serving, asked.options(), title=title, bars=bar)


def _rows(asked: Repair) -> _Rows:
    """The scores of the patients on which a rule is fitted and judged."""
    from equipoise.repair import check_rules

    reading, network, run = asked.source.inputs.reading, asked.source.network, asked.run
    estimator = None
    if is_estimator(network.model):
        estimator, reading = estimator_of(network, reading)
    check_rules(asked.methods, bool(reading.features) or estimator is not None)
    scores, checks = _read(asked, estimator, asked.source.file, reading, check=True)
    first = scores[reading.labels[0]]
    group_names_of(run.group_name, first)  # an error before any work
    if run.test_file is None:
        repair, test = data.hold_out_scores(scores, run.share, seed=run.seed)
    else:
        held, _ = _read(asked, estimator, run.test_file, reading.as_for(first))
        repair, test = scores, {label: data.same_groups(own, held[label]) for label, own in scores.items()}
    lines = [report.varying_words(each) for each in data.varying_in(first.attributes, first.patients)] + list(map(str, checks))
    return _Rows(reading, estimator, scores, repair, test, lines)


def _read(
    asked: Repair, estimator: Predictor | None, path: Path, how: data.Reading, *, check: bool = False
) -> tuple[ByLabel, list[ScoreCheck]]:
    """The scores of each label in a file, or those that the estimator gives to its rows, and their check next to known ones."""
    if estimator is None:
        return data.read_scores(path, how, asked.source.columns, logits=asked.source.scores.logits), []
    from equipoise.models import predict

    cohort = cohort_of(path, how).cohort
    found = {how.labels[0]: predict(estimator, cohort)}
    return found, checks_of(asked.source, how, estimator, cohort, found) if check else []
