"""`equipoise audit`: rates per group and gaps between groups, from a table of scores or from a network and its inputs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from equipoise import data, measures, repair, report
from equipoise.cli.audit_options import AnalysisOptions, FileOptions, HistoryOptions, check_files, option_problems
from equipoise.cli.console import JsonOption, bar, notes, out, say, say_code, say_places, to_json, typed
from equipoise.cli.fail_if import FailIfOption, exit_if, failures_of, parse_conditions
from equipoise.cli.inputs import Inputs, group_names_of, parse_thresholds
from equipoise.cli.options import FileArgument, NetworkOptions, ScoreOptions, takes_options
from equipoise.cli.source_options import SourceOptions, source_of
from equipoise.errors import raise_all

if TYPE_CHECKING:
    from equipoise.repair import FileAudit


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

    [bold]Several labels:[/bold] equipoise audit local.csv --images xrays/ --label Effusion --label Mass --threshold Effusion=0.2
    --threshold Mass=0.08 --group sex ...

    [bold]Many rows:[/bold] equipoise audit visits/ --label y --score p --group sex --patient patient_id, with a folder of CSV or Parquet
    files, or one that is partitioned by folders such as sex=F. It is read in batches, as is a file above 256 MiB.
    """
    source = source_of(file, network, inputs, scores)
    problems = option_problems(source, analysis, files, history)
    conditions = parse_conditions(fail_if, problems)
    raise_all(problems)
    check_files(source, analysis, files, history)
    with notes("equipoise.data.images"):
        result = _run_audit(source, analysis, files, history)
    facts = measures.audit_facts(result.audits if result.only is None else result.only) if conditions else []
    failures = failures_of(conditions, facts)
    lines = _input_notes(result, history)
    document = result.to_dict() if as_json or files.save else {}
    if files.save or files.page or files.pdf:
        paths = [path for path in (file, analysis.valid, analysis.train, network.weights, scores.check_scores) if path is not None]
        origin = report.Origin.now(arguments=typed(ctx), files=paths, inputs=lines, group_names=result.group_names)
        document["provenance"] = origin.to_dict()
        _write(result, files, document, origin)
    if files.figures:
        _write_figures(result, files.figures)
    if history.append:
        new_groups = history.new_group or ()
        measures.history(history.append).append(result.audits, history.date or "", replace=history.replace_period, new_groups=new_groups)
    if as_json:
        document |= {f"{prefix}{key}": value for prefix, read in result.image_files.items() for key, value in read.to_dict().items()}
        print(to_json(measures.with_checksum(document)))
    else:
        _print(result, analysis, lines, verbose)
        places = {"result": files.save, "report": files.page, "PDF": files.pdf, "figures": files.figures}
        say_places(places | {f"history with {history.date}": history.append})
    exit_if(failures)


def _run_audit(source: SourceOptions, analysis: AnalysisOptions, files: FileOptions, history: HistoryOptions) -> FileAudit:
    return repair.audit_file(
        source.source(),
        analysis.spec(),
        threshold=parse_thresholds(analysis.threshold, source.inputs.labels),
        earlier=history.earlier or (),
        keep_returning=history.returning == "all",
        group_names=group_names_of(files.group_name),
        bars=bar,
        running=say_code,
    )


def _input_notes(result: FileAudit, history: HistoryOptions) -> list[str]:
    """Notes about preprocessing, the comparison with known scores, and patients of earlier periods."""
    lines = report.input_words(result.checks, result.preprocessing, result.preprocessing_origin)
    if result.returning is not None:
        return [*lines, report.returning_words(result.returning)]
    if history.append and result.source.reading.patient and measures.history(history.append).periods:
        lines.append("patients of earlier periods, who would count again, were not identified (--earlier FILE)")
    return lines


def _write(result: FileAudit, files: FileOptions, document: dict[str, Any], origin: report.Origin) -> None:
    for place in (files.page, files.pdf):
        if place and result.only is not None:
            report.write_audit_page(result.only, place, group_names=result.group_names, origin=origin)
        elif place:
            report.write_audits_page(result.audits, place, group_names=result.group_names, origin=origin)
    if files.save:
        data.write_text(files.save, to_json(measures.with_checksum(document)) + "\n")


def _write_figures(result: FileAudit, folder: Path) -> None:
    for name, place in repair.folders(folder, result.source.labels).items():
        report.save_audit_figures(result.scores.get(name), result.audits[name], place)
    if result.audits.no_finding is not None:
        report.save_underdiagnosis_figure(result.audits.no_finding, folder)


def _print(result: FileAudit, analysis: AnalysisOptions, lines: list[str], verbose: bool) -> None:
    """Prints one screen, or every group, rate and gap."""
    several = result.only is None
    if several and not verbose:
        out.print(report.audits_summary(result.audits))
    else:
        for name, audit in result.audits.items():
            if several:
                say(f"\n{name}", "bold underline")
            view = report.audit_view if verbose else report.audit_summary
            out.print(view(audit, result.group_names))
    for name, audit in result.audits.items() if analysis.shrink else ():
        out.print("", report.shrunken_view(audit, name if several else ""))
    if result.audits.no_finding is not None:
        out.print("", report.underdiagnosis_view(result.audits.no_finding))
    if result.layers is not None:
        out.print(report.encoding_view(result.layers, analysis.level))
    rows = [f"{path.name}: {line}" for path, read in result.files.items() for line in report.reading_words(read, names=True, varying=False)]
    for line in [*rows, *lines]:
        say(line)
