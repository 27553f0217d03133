"""`equipoise audit`: scores from anywhere, or a network and a data file."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from equipoise import data, measures, models, repair, report
from equipoise.cli import inputs as given
from equipoise.cli import networks
from equipoise.cli.console import JsonOption, bar, notes, out, typed
from equipoise.cli.options import FileArgument, GroupNameOption, NetworkOptions, PdfOption, ScoreOptions, takes_options
from equipoise.cli.pipeline import FailIfOption, HistoryOptions, append_problems, conditions_of, exit_if
from equipoise.errors import did_you_mean, pick, raise_all

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class AnalysisOptions:
    """What is estimated, and how."""

    threshold: Annotated[float | None, typer.Option(help="Scores at or above this value are decided positive.", show_default="0.5")] = None
    valid: Annotated[
        Path | None, typer.Option(help="File with the same columns on which the threshold with the best balanced accuracy is chosen.")
    ] = None
    measure: Annotated[
        list[str] | None,
        typer.Option(
            help="Only this measure (spd, eod, fpr_gap, ppv_gap, ... or a sum of rates such as tpr-fpr), with an error for "
            "empty cells; repeat it for more."
        ),
    ] = None
    train: Annotated[
        Path | None,
        typer.Option(
            help="File with the training set in the same columns: a logistic regression on the same inputs is fitted to it, and reported "
            "where it clearly does better than the --model."
        ),
    ] = None
    shrink: Annotated[
        bool,
        typer.Option(
            "--shrink",
            help="Also report shrunken gaps (empirical Bayes) of attributes with at least four groups, such as intersections.",
        ),
    ] = False
    probe: Annotated[
        bool,
        typer.Option(
            "--probe",
            help="Also report how well each layer of the --model predicts the group; this does not show that the network uses it.",
        ),
    ] = False
    draws: Annotated[int | None, typer.Option(help="Number of bootstrap resamples of --probe.", show_default="1000")] = None
    level: Annotated[float, typer.Option(help="Confidence level of the intervals, at most 0.9999.")] = 0.95
    seed: Annotated[int, typer.Option(help="Seed of permutations, resamples and the band of a calibrated model.")] = 0
    min_patients: Annotated[int, typer.Option(help="Cells with fewer patients are reported as 'insufficient data'.")] = 5
    specificity: Annotated[float, typer.Option(help="Specificity at which the sensitivity of each group is reported (--verbose).")] = 0.9
    sensitivity: Annotated[float, typer.Option(help="Sensitivity at which the specificity of each group is reported (--verbose).")] = 0.9
    thresholds: Annotated[
        str, typer.Option(help="Thresholds of the decision curves, START:STOP or START:STOP:STEP (--verbose, --figures, --json).")
    ] = "0.05:0.5"
    no_finding: Annotated[
        str | None,
        typer.Option(
            help="Label that means 'no finding', to report underdiagnosis (its false positive rate); or 'derived': none of the labels."
        ),
    ] = None

    @property
    def keywords(self) -> measures.AuditOptions:
        """The options as the library takes them."""
        found: measures.AuditOptions = {"threshold": self.threshold, "measures": self.measure or None, "level": self.level}
        found |= {"seed": self.seed, "min_patients": self.min_patients, "specificity": self.specificity, "sensitivity": self.sensitivity}
        return found | {"thresholds": self.thresholds, "shrink": self.shrink, "no_finding": self.no_finding}


@dataclass(frozen=True)
class FileOptions:
    """What is written, and how groups are called in it."""

    save: Annotated[Path | None, typer.Option("--out", help="Also write the result as JSON to this file.")] = None
    page: Annotated[
        Path | None,
        typer.Option("--report", help="Also write an HTML report to this file; with several labels, an overview and one page per label."),
    ] = None
    pdf: PdfOption = None
    group_name: GroupNameOption = None
    figures: Annotated[Path | None, typer.Option(help="Also write figures (PNG and SVG) into this folder.")] = None


@takes_options()
def audit(
    ctx: typer.Context,
    file: FileArgument,
    *,
    network: NetworkOptions,
    inputs: given.Inputs,
    scores: ScoreOptions,
    how: AnalysisOptions,
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
    source = given.source_of(file, network, inputs, scores)
    problems = _problems(source, how, files) + append_problems(history) + _earlier_problems(source, how, history)
    conditions = conditions_of(fail_if, problems)
    raise_all(problems)
    _check_files(source, how, files, history)
    with notes("equipoise.data.images"):
        result = _audited(source, how, files.group_name, history)
    told = _document(result) if as_json or files.save else {}
    if files.save or files.page or files.pdf:
        read = [path for path in (file, how.valid, how.train, network.weights, scores.check_scores) if path is not None]
        origin = report.Origin.now(arguments=typed(ctx), files=read, inputs=result.prepared, group_names=result.group_names)
        told["provenance"] = origin.to_dict()
        _write(result, files, told, origin)
    if files.figures:
        _write_figures(result, files.figures)
    if history.append:
        new_groups = history.new_group or ()
        measures.history(history.append).append(result.every, history.date or "", replace=history.replace_period, new_groups=new_groups)
    if as_json:
        told |= {f"{prefix}{key}": value for prefix, opened in result.images.items() for key, value in opened.to_dict().items()}
        print(json.dumps(told, indent=2, allow_nan=False))
    else:
        _print(result, verbose)
        places = {"result": files.save, "report": files.page, "PDF": files.pdf, "figures": files.figures}
        for name, place in (places | {f"history with {history.date}": history.append}).items():
            if place:
                out.print(Text(f"{name}: {place}"), soft_wrap=True)
    exit_if(conditions, measures.audit_facts(result.every if result.only is None else result.only) if conditions else [])


def _problems(source: given.Source, how: AnalysisOptions, files: FileOptions) -> list[str]:
    """Options that do not go together, or have a value that is not allowed."""
    options, labels = source.inputs.options, source.inputs.labels
    network_only = source.of_networks | {"--probe": how.probe}
    problems = given.role_problems(source, network_only | {"--feature": options["features"], "--train": how.train})
    if len(labels) > 1 and how.probe:
        problems.append("--probe takes one --label, since the layers are the same for all. Omit the others.")
    problems += source.inputs.problems() + networks.check_problems(source) + networks.estimator_problems(source, network_only)
    if how.draws is not None and not how.probe:
        problems.append("--draws requires --probe; no other interval is resampled. Omit it.")
    if options["classes"] and (how.threshold is not None or how.valid is not None):
        problems.append("classes are decided by argmax, without a threshold. Omit --threshold and --valid.")
    problems += given.number_problems(threshold=how.threshold, draws=how.draws, level=how.level, seed=how.seed)
    problems += given.page_problems({"--report": files.page, "--pdf": files.pdf}) + given.json_problems(files.save)
    problems += _no_finding_problems(how.no_finding, labels)
    problems += given.number_problems(min_patients=how.min_patients, specificity=how.specificity, sensitivity=how.sensitivity)
    given.collected(problems, lambda: measures.read_range(how.thresholds))
    return problems


def _earlier_problems(source: given.Source, how: AnalysisOptions, history: HistoryOptions) -> list[str]:
    """What does not go with the tables of earlier periods."""
    if not history.earlier:
        return []
    found = [] if source.inputs.options["patient"] else ["--earlier finds patients by their ids. Add --patient with their column."]
    used = {"--train": how.train, "--probe": how.probe}
    found += [f"{option} is about all rows and cannot be combined with --earlier. Omit one of them." for option, v in used.items() if v]
    if source.network.model is None and source.file.exists() and data.is_large(source.file, source.inputs.options["max_table_bytes"]):
        found.append(f"{source.file} is read in batches, from which patients of --earlier cannot be left out. Leave them out of the table.")
    return found


def _check_files(source: given.Source, how: AnalysisOptions, files: FileOptions, history: HistoryOptions) -> None:
    """Raises where a file is not there, or cannot be written, before anything is read."""
    for path in (source.file, how.valid, source.scores.check_scores, *(history.earlier or ())):  # before pandas is imported
        if path is not None and not path.exists():
            raise data.no_such_file(path)
    for place in (files.save, files.page, files.pdf, history.append, files.figures and files.figures / "rates.png"):
        if place:
            data.check_writable(place)
    if history.append:
        measures.history(history.append).check_period(history.date or "", replace=history.replace_period)
    if files.pdf:
        report.check_printer()
    raise_all(_link_problems(files.figures, source.inputs.labels))


@dataclass(frozen=True)
class Result:
    """The audit of each label, and the rows behind it."""

    source: given.Source
    how: AnalysisOptions
    every: measures.Audits
    scores: dict[str, data.Scores]  # empty if the table was read in batches
    opened: dict[Path, given.Opened]  # the files that a network was run on
    checks: list[repair.ScoreCheck]
    layers: pd.DataFrame | None
    group_names: dict[str, str]
    whose: str  # preprocessing, where it came with the model
    returning: data.Returning | None  # patients of earlier periods; None where they were not identified
    unsought: bool  # there are earlier periods, and their patients were not identified

    @property
    def only(self) -> measures.Audit | None:
        """The audit of the only label, if there is one."""
        return next(iter(self.every.audits.values())) if len(self.source.inputs.labels) == 1 else None

    @property
    def images(self) -> dict[str, given.Opened]:
        """The files whose images were read, by how their keys begin in the JSON."""
        if self.source.inputs.options["images"] is None:
            return {}
        return {"": self.opened[self.source.file]} | ({"valid_": self.opened[self.how.valid]} if self.how.valid else {})

    @property
    def prepared(self) -> list[str]:
        """What was done to the images, whether the scores were compared with known ones, and patients of earlier periods."""
        found = networks.check_lines(self.checks, self.images[""].preprocessing() if self.images else None, self.whose)
        if self.unsought:
            found.append("patients of earlier periods, who would count again, were not identified (--earlier FILE)")
        return found if self.returning is None else [*found, report.returning_words(self.returning)]


def _audited(source: given.Source, how: AnalysisOptions, group_name: list[str] | None, history: HistoryOptions) -> Result:
    """The audit of each label, of scores in a file or of a network's."""
    labels = source.inputs.labels
    network, reading, whose = _network(source)
    opened: dict[Path, given.Opened] = {}

    def read(path: Path) -> dict[str, data.Scores]:
        if network is None:
            return data.read_scores(path, reading, source.columns, logits=source.scores.logits)
        opened[path] = given.cohort_of(path, reading)
        outputs = {} if len(labels) == 1 else networks.outputs_of(source.network.output_name, labels)
        return networks.label_scores(network, opened[path].cohort, labels, source.network.output_type or "auto", outputs)

    in_batches = network is None and data.is_large(source.file, reading.max_table_bytes)
    scores = {} if in_batches else read(source.file)
    checks = networks.checks_of(source, reading, network, opened[source.file].cohort, scores) if source.known else []
    returning = None
    if history.earlier:
        seen = data.patients_in(history.earlier, reading.patient or "", limit=reading.max_table_bytes)
        scores, returning = data.first_periods(scores, seen, keep=history.returning == "all")
    on = read(how.valid) if how.valid else {}
    names = given.group_names_of(group_name, next(iter(scores.values()), None))
    options = how.keywords
    if source.kind == "classes":  # on the margin over the other classes
        options |= {"rule": measures.Threshold(0.5, measures.ARGMAX)}
    with bar("audit") as step:
        if in_batches:
            scans = data.scan_scores(source.file, reading, source.columns, logits=source.scores.logits)
            every = measures.audit_scans(scans, valid=on, progress=_in_turn(step, labels), **options)
        else:
            asked = {name: measures.Asked.of(options).decided(on.get(name)) for name in scores}
            every = measures.audit_labels(scores, asked, reading.kind, source.file.name, _in_turn(step, list(scores)))
    if how.train is not None and network is not None:
        cohort = opened[source.file].cohort
        known = given.cohort_of(how.train, reading.with_bins_of(cohort)).cohort
        with bar("simple model"):
            every = replace(every, audits={name: _with_baseline(name, one, scores[name], cohort, known) for name, one in every.items()})
    layers = None
    if how.probe and network is not None:
        limits: dict[str, Any] = {"level": how.level, "seed": how.seed, "min_patients": how.min_patients}
        with bar("probes") as step:
            layers = models.encoding(network, opened[source.file].cohort, draws=how.draws or 1000, progress=step, **limits)
    unsought = bool(history.append and reading.patient and not history.earlier and measures.history(history.append).periods)
    return Result(source, how, every, scores, opened, checks, layers, names, whose, returning, unsought)


def _network(source: given.Source) -> tuple[Any, data.Reading, str]:
    """The network or the estimator, if one is named, how its rows are read, and whose preprocessing that is."""
    named = source.network
    reading, whose = networks.prepared_as_saved(named, source.inputs.reading)
    if named.model is None:
        return None, reading, whose
    pick("--output-type", named.output_type or "auto", models.OUTPUTS)
    if networks.is_estimator(named.model):
        return *networks.estimator_of(named, reading), whose
    output_name = networks.output_of(named.output_name) if len(source.inputs.labels) == 1 else None
    return networks.network_of(named, reading, output_name), reading, whose


def _document(result: Result) -> dict[str, Any]:
    """The result as plain values; without the names of rows that were left out, since it may be shared."""
    told: dict[str, Any]
    if result.only is None:
        told = result.every.to_dict()
    else:
        told = result.only.to_dict() | measures.no_finding_dict(result.every.no_finding, result.source.inputs.labels[0])
    if result.layers is not None:
        told["encoding"] = json.loads(result.layers.to_json(orient="records", double_precision=15))
    if result.checks:
        told["checked_scores"] = [one.to_dict() for one in result.checks]
    if result.returning is not None:
        told["returning"] = result.returning.to_dict()
    for prefix, opened in result.images.items():
        told |= {f"{prefix}{key}": value for key, value in opened.counts().items()}
        told |= {} if prefix else {"preprocessing": opened.preprocessing()}
    return told


def _write(result: Result, files: FileOptions, told: dict[str, Any], origin: report.Origin) -> None:
    for place in (files.page, files.pdf):
        if place and result.only is not None:
            report.write_audit_page(result.only, place, group_names=result.group_names, origin=origin)
        elif place:
            report.write_audits_page(result.every, place, group_names=result.group_names, origin=origin)
    if files.save:
        data.write_text(files.save, json.dumps(told, indent=2, allow_nan=False) + "\n")


def _write_figures(result: Result, folder: Path) -> None:
    for name, place in repair.folders(folder, result.source.inputs.labels).items():
        report.save_audit_figures(result.scores.get(name), result.every[name], place)
    if result.every.no_finding is not None:
        report.save_underdiagnosis_figure(result.every.no_finding, folder)


def _print(result: Result, verbose: bool) -> None:
    """Prints one screen, or every group, rate and gap."""
    several = result.only is None
    if several and not verbose:
        out.print(report.audits_summary(result.every))
    else:
        for name, one in result.every.items():
            if several:
                out.print(Text(f"\n{report.printable(name)}", style="bold underline"))
            out.print(report.audit_view(one) if verbose else report.audit_summary(one))
    for name, one in result.every.items() if result.how.shrink else ():
        out.print("", report.shrunken_view(one, name if several else ""))
    if result.every.no_finding is not None:
        out.print("", report.underdiagnosis_view(result.every.no_finding))
    if result.layers is not None:
        out.print(report.encoding_view(result.layers, result.how.level))
    rows = [f"{path.name}: {line}" for path, opened in result.opened.items() for line in opened.lines(varying=False)]
    for line in [*rows, *result.prepared]:
        out.print(Text(report.printable(line)), soft_wrap=True)


def _with_baseline(name: str, audit: measures.Audit, scores: data.Scores, cohort: data.Cohort, train: data.Cohort) -> measures.Audit:
    """The audit of a label with a simple model that is fitted to the training set."""
    both = (each.labelled(name) if each.targets is not None else each for each in (cohort, train))
    return repair.with_baseline(audit, scores, *both)


def _in_turn(step: Callable[[int, int], None], labels: list[str]) -> Callable[[str], Callable[[int, int], None]]:
    """The progress of each label as a share of that of all labels."""

    def of(label: str) -> Callable[[int, int], None]:
        return lambda done, total: step(labels.index(label) * total + done, len(labels) * total)

    return of


def _no_finding_problems(name: str | None, labels: list[str]) -> list[str]:
    """A problem where --no-finding names no label, or is to be derived from one."""
    if name is None or name in labels:
        return []
    if name != measures.DERIVED:
        return [f"--no-finding {name} is not a --label.{did_you_mean(name, labels)} Name one of them, or use --no-finding derived."]
    return [] if len(labels) > 1 else ["--no-finding derived needs several --label: no finding is none of them."]


def _link_problems(figures: Path | None, labels: list[str]) -> list[str]:
    """One problem per folder of a label, in that of --figures, that is a link: figures written through it could replace any file."""
    places = [] if figures is None or len(labels) == 1 else repair.folders(figures, labels).values()
    return [
        f"{place} is a link, and figures are not written through links. Remove it, or name another --figures."
        for place in places
        if place.is_symlink()
    ]
