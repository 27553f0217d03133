"""`equipoise audit`: rates per group and gaps between groups, from a table of scores or from a network and its inputs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from equipoise import data, measures, models, repair, report
from equipoise.cli import networks
from equipoise.cli.audit_options import AnalysisOptions, FileOptions, HistoryOptions, check_files, option_problems
from equipoise.cli.console import JsonOption, bar, counting, notes, out, say, say_places, to_json, typed
from equipoise.cli.fail_if import FailIfOption, exit_if, parse_conditions
from equipoise.cli.inputs import Inputs, Source, group_names_of, preprocessing_of, reading_notes, source_of
from equipoise.cli.options import FileArgument, NetworkOptions, ScoreOptions, takes_options
from equipoise.errors import pick, raise_all

if TYPE_CHECKING:
    import pandas as pd


@takes_options()
def audit(
    ctx: typer.Context,
    file: FileArgument,
    *,
    network: NetworkOptions,
    inputs: Inputs,
    scores: ScoreOptions,
    analysis: AnalysisOptions,
    files: FileOptions,
    history: HistoryOptions,
    fail_if: FailIfOption = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Print every group, rate and gap instead of one screen.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Report rates per group and gaps between groups, with intervals, for existing scores or for a network.

    [bold]Example:[/bold] equipoise audit scores.csv --label y --score p --group sex --reference M --patient patient_id

    [bold]Age bands:[/bold] equipoise audit scores.csv --label y --score p --group sex --group age --bins age=40,60,80

    [bold]A network and images:[/bold] equipoise audit local.csv --images xrays/ --label pneumonia --group sex --reference M
    --patient patient_id --model my_model.py:build --weights net.safetensors

    [bold]A scikit-learn pipeline:[/bold] equipoise audit local.csv --label sick --group sex --reference M --model pipeline.skops

    [bold]Classes of a network that decides by argmax:[/bold] --label finding --class none --class pneumonia --class effusion --model ...

    [bold]Several labels:[/bold] equipoise audit local.csv --images xrays/ --label Effusion --label Mass --group sex ...

    [bold]Many rows:[/bold] equipoise audit visits/ --label y --score p --group sex --patient patient_id, with a folder of CSV or Parquet
    files, or one that is partitioned by folders such as sex=F. It is read in batches, as is a file above 256 MiB.
    """
    source = source_of(file, network, inputs, scores)
    problems = option_problems(source, analysis, files, history)
    conditions = parse_conditions(fail_if, problems)
    raise_all(problems)
    check_files(source, analysis, files, history)
    with notes("equipoise.data.images"):
        result = _run_audit(source, analysis, files.group_name, history)
    document = _document(result) if as_json or files.save else {}
    if files.save or files.page or files.pdf:
        paths = [path for path in (file, analysis.valid, analysis.train, network.weights, scores.check_scores) if path is not None]
        origin = report.Origin.now(arguments=typed(ctx), files=paths, inputs=result.notes, group_names=result.group_names)
        document["provenance"] = origin.to_dict()
        _write(result, files, document, origin)
    if files.figures:
        _write_figures(result, files.figures)
    if history.append:
        new_groups = history.new_group or ()
        measures.history(history.append).append(result.audits, history.date or "", replace=history.replace_period, new_groups=new_groups)
    if as_json:
        document |= {f"{prefix}{key}": value for prefix, read in result.image_files.items() for key, value in read.to_dict().items()}
        print(to_json(document))
    else:
        _print(result, verbose)
        places = {"result": files.save, "report": files.page, "PDF": files.pdf, "figures": files.figures}
        say_places(places | {f"history with {history.date}": history.append})
    exit_if(conditions, measures.audit_facts(result.audits if result.only is None else result.only) if conditions else [])


@dataclass(frozen=True)
class Result:
    """The audit of each label, and the rows it was computed from."""

    source: Source
    analysis: AnalysisOptions
    audits: measures.Audits
    scores: dict[str, data.Scores]  # empty if the table was read in batches
    files: dict[Path, data.ReadCohort]  # the files that a network was run on
    checks: list[repair.ScoreCheck]
    layers: pd.DataFrame | None
    group_names: dict[str, str]
    preprocessing_origin: str  # in words, if the model came with its preprocessing
    returning: data.ReturningPatients | None  # patients of earlier periods; None if they were not identified
    returning_unknown: bool  # whether there are earlier periods whose patients were not identified

    @property
    def only(self) -> measures.Audit | None:
        """The audit of the label, if there is only one."""
        return next(iter(self.audits.audits.values())) if len(self.source.inputs.labels) == 1 else None

    @property
    def image_files(self) -> dict[str, data.ReadCohort]:
        """The files with images, by the prefix of their keys in the JSON."""
        if self.source.inputs.options["images"] is None:
            return {}
        return {"": self.files[self.source.file]} | ({"valid_": self.files[self.analysis.valid]} if self.analysis.valid else {})

    @property
    def notes(self) -> list[str]:
        """Notes about preprocessing, the comparison with known scores, and patients of earlier periods."""
        preprocessing = preprocessing_of(self.image_files[""].cohort) if self.image_files else None
        lines = networks.preprocessing_lines(self.checks, preprocessing, self.preprocessing_origin)
        if self.returning_unknown:
            lines.append("patients of earlier periods, who would count again, were not identified (--earlier FILE)")
        return lines if self.returning is None else [*lines, report.returning_words(self.returning)]


def _run_audit(source: Source, analysis: AnalysisOptions, group_name: list[str] | None, history: HistoryOptions) -> Result:
    """Audits each label, from the scores in a file or from those of a network."""
    labels = source.inputs.labels
    network, reading, preprocessing_origin = _load_model(source)
    files: dict[Path, data.ReadCohort] = {}

    def read(path: Path) -> dict[str, data.Scores]:
        if network is None:
            return data.read_scores(path, reading, source.columns, logits=source.scores.logits)
        files[path] = data.read_cohort(path, reading, progress=counting)
        outputs = {} if len(labels) == 1 else networks.parse_outputs(source.network.output_name, labels)
        return networks.label_scores(network, files[path].cohort, labels, source.network.output_type or "auto", outputs)

    in_batches = network is None and data.is_large(source.file, reading.max_table_bytes)
    scores = {} if in_batches else read(source.file)
    checks = networks.check_known_scores(source, reading, network, files[source.file].cohort, scores) if source.known else []
    returning = None
    if history.earlier:
        earlier_patients = data.patients_in(history.earlier, reading.patient or "", limit=reading.max_table_bytes)
        scores, returning = data.first_periods(scores, earlier_patients, keep=history.returning == "all")
    valid = read(analysis.valid) if analysis.valid else {}
    group_names = group_names_of(group_name, next(iter(scores.values()), None))
    options = analysis.keywords
    if source.kind == "classes":  # on the margin over the other classes
        options |= {"rule": measures.Threshold(0.5, measures.ARGMAX)}
    with bar("audit") as step:
        if in_batches:
            scans = data.scan_scores(source.file, reading, source.columns, logits=source.scores.logits)
            audits = measures.audit_scans(scans, valid=valid, progress=_label_progress(step, labels), **options)
        else:
            settings = {name: measures.AuditRequest.of(options).decided(valid.get(name)) for name in scores}
            audits = measures.audit_labels(scores, settings, reading.kind, source.file.name, _label_progress(step, list(scores)))
    if analysis.train is not None and network is not None:
        cohort = files[source.file].cohort
        train = data.read_cohort(analysis.train, reading.with_bins_of(cohort), progress=counting).cohort
        with bar("simple model"):
            with_baselines = {}
            for name, audit in audits.items():
                test_rows, train_rows = (rows.labelled(name) if rows.targets is not None else rows for rows in (cohort, train))
                with_baselines[name] = repair.with_baseline(audit, scores[name], test_rows, train_rows)
            audits = replace(audits, audits=with_baselines)
    layers = None
    if analysis.probe and network is not None:
        limits: dict[str, Any] = {"level": analysis.level, "seed": analysis.seed, "min_patients": analysis.min_patients}
        with bar("probes") as step:
            layers = models.encoding(network, files[source.file].cohort, draws=analysis.draws or 1000, progress=step, **limits)
    returning_unknown = bool(history.append and reading.patient and not history.earlier and measures.history(history.append).periods)
    return Result(source, analysis, audits, scores, files, checks, layers, group_names, preprocessing_origin, returning, returning_unknown)


def _load_model(source: Source) -> tuple[Any, data.ReadOptions, str]:
    """The network or estimator of --model, if any, how its rows are read, and the origin of the preprocessing in words."""
    options = source.network
    reading, preprocessing_origin = networks.with_saved_preprocessing(options.model, source.inputs.reading)
    if options.model is None:
        return None, reading, preprocessing_origin
    pick("--output-type", options.output_type or "auto", models.OUTPUTS)
    if networks.is_estimator(options.model):
        return *networks.load_estimator(options, reading), preprocessing_origin
    output_name = networks.parse_output(options.output_name) if len(source.inputs.labels) == 1 else None
    return networks.load_network(options, reading, output_name), reading, preprocessing_origin


def _label_progress(step: Callable[[int, int], None], labels: list[str]) -> Callable[[str], Callable[[int, int], None]]:
    """The progress of each label as a share of that of all labels."""

    def progress(label: str) -> Callable[[int, int], None]:
        return lambda done, total: step(labels.index(label) * total + done, len(labels) * total)

    return progress


def _document(result: Result) -> dict[str, Any]:
    """The result as plain values, without the names of rows that were left out, since it may be shared."""
    document: dict[str, Any]
    if result.only is None:
        document = result.audits.to_dict()
    else:
        document = result.only.to_dict() | measures.no_finding_dict(result.audits.no_finding, result.source.inputs.labels[0])
    if result.layers is not None:
        document["encoding"] = json.loads(result.layers.to_json(orient="records", double_precision=15))
    if result.checks:
        document["checked_scores"] = [check.to_dict() for check in result.checks]
    if result.returning is not None:
        document["returning"] = result.returning.to_dict()
    for prefix, read in result.image_files.items():
        document |= {f"{prefix}{key}": value for key, value in read.counts().items()}
        document |= {} if prefix else {"preprocessing": preprocessing_of(read.cohort)}
    return document


def _write(result: Result, files: FileOptions, document: dict[str, Any], origin: report.Origin) -> None:
    for place in (files.page, files.pdf):
        if place and result.only is not None:
            report.write_audit_page(result.only, place, group_names=result.group_names, origin=origin)
        elif place:
            report.write_audits_page(result.audits, place, group_names=result.group_names, origin=origin)
    if files.save:
        data.write_text(files.save, to_json(document) + "\n")


def _write_figures(result: Result, folder: Path) -> None:
    for name, place in repair.folders(folder, result.source.inputs.labels).items():
        report.save_audit_figures(result.scores.get(name), result.audits[name], place)
    if result.audits.no_finding is not None:
        report.save_underdiagnosis_figure(result.audits.no_finding, folder)


def _print(result: Result, verbose: bool) -> None:
    """Prints one screen, or every group, rate and gap."""
    several = result.only is None
    if several and not verbose:
        out.print(report.audits_summary(result.audits))
    else:
        for name, audit in result.audits.items():
            if several:
                say(f"\n{name}", "bold underline")
            out.print(report.audit_view(audit) if verbose else report.audit_summary(audit))
    for name, audit in result.audits.items() if result.analysis.shrink else ():
        out.print("", report.shrunken_view(audit, name if several else ""))
    if result.audits.no_finding is not None:
        out.print("", report.underdiagnosis_view(result.audits.no_finding))
    if result.layers is not None:
        out.print(report.encoding_view(result.layers, result.analysis.level))
    rows = [f"{path.name}: {line}" for path, read in result.files.items() for line in reading_notes(read, names=True, varying=False)]
    for line in [*rows, *result.notes]:
        say(line)
