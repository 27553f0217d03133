"""`equipoise audit`: rates per group and gaps between groups, from a table of scores or from a network and its inputs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from equipoise import case as cases
from equipoise import comparison, measures, report
from equipoise.cli import console
from equipoise.cli.console import FailIfOption, JsonOption, PdfOption, SaveOption, out, say
from equipoise.cli.options import CaseArgument, takes_case
from equipoise.disk import folders, write_text
from equipoise.errors import collecting, raise_all


@takes_case(cases.Case, "data", "images", "model", "audit", "history", unread=("goal", "goals", "repair"))
def audit_command(
    ctx: typer.Context,
    file: CaseArgument,
    *,
    case: Callable[[Path], cases.Case],
    save: SaveOption = None,
    page: Annotated[
        Path | None,
        typer.Option(
            "--report",
            metavar="FILE.html",
            help="Also write an HTML report to this file; with several labels, an overview and one page per label.",
        ),
    ] = None,
    pdf: PdfOption = None,
    fail_if: FailIfOption = None,
    show_sql: Annotated[bool, typer.Option("--show-sql", help="Also print the queries to a database, to stderr.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Print every group, rate and gap instead of one screen.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Report rates per group and gaps between groups, with intervals, for existing scores or for a network.

    [bold]Example:[/bold] equipoise audit scores.csv --label y --score p --group sex --reference M --patient patient_id

    [bold]A case file:[/bold] equipoise audit case.toml --report audit.html

    [bold]A network and images:[/bold] equipoise audit local.csv --images xrays/ --label pneumonia --group sex --reference M
    --patient patient_id --model my_model.py:build --weights net.safetensors --set images.size=224

    [bold]Several labels:[/bold] equipoise audit scores.csv --score-prefix score_ --group sex --threshold Effusion=0.2 --threshold Mass=0.08

    [bold]Many rows:[/bold] equipoise audit visits/ --label y --score p --group sex, with a folder of CSV or Parquet files.
    """
    problems = console.place_problems({"--report": page, "--pdf": pdf}, save)
    conditions = console.parse_conditions(fail_if, problems)
    with collecting(problems):
        asked = case(file)
    raise_all(problems)
    history, figures, words = asked.history, asked.report.figures, asked.report.words
    written, read = (save, page, history.append, figures and figures / "rates.svg"), (asked.audit_spec.valid, asked.model.check_scores)
    console.check_paths(asked.table, *read, *history.earlier, write=written, pdf=pdf)
    if history.append:
        measures.history(history.append).check_period(asked.period or "", replace=history.replace)
    if figures and len(asked.labels) > 1:  # figures written through a link could replace any file
        raise_all(
            [
                f"{folder} is a link, and figures are not written through links. Remove it, or name another folder in report.figures."
                for folder in folders(figures, asked.labels).values()
                if folder.is_symlink()
            ]
        )
    if show_sql:
        console.print_queries()
    with console.notes("equipoise.data.images"):
        result = cases.audit_case(asked, bars=console.bar, running=console.say_code)
    failures = console.failures_of(conditions, measures.audit_facts(result.audit)) if conditions else []
    lines = report.input_words(result.checks, result.preprocessing, result.preprocessing_origin) if asked.model.load else []
    if result.returning is not None:
        lines.append(report.returning_words(result.returning))
    elif history.append and asked.data.patient and measures.history(history.append).periods:
        lines.append("patients of earlier periods, who would count again, were not identified (--set history.earlier=FILE)")
    document = result.to_dict() if as_json or save else {}
    if save or page or pdf:
        spec, model = asked.audit_spec, asked.model
        paths = [path for path in (asked.table, spec.valid, asked.data.train, model.weights, model.check_scores) if path is not None]
        provenance = comparison.Provenance.now(arguments=console.typed(ctx), files=paths, limits=lines, group_names=words)
        document["provenance"] = dict(vars(provenance))
        for place in filter(None, (page, pdf)):
            report.write_audit_page(result.audit, place, group_names=words, provenance=provenance)
    if save:
        write_text(save, console.to_json(measures.with_checksum(document)) + "\n")
    if figures:
        report.write_figures(result.audit, figures, group_names=words)
    if history.append:
        past = measures.history(history.append)
        past.append(
            result.audit, asked.period or "", replace=history.replace, new_groups=history.new_groups, returning=result.returning_products
        )
    if as_json:
        document |= {f"{prefix}{key}": value for prefix, read in result.image_files.items() for key, value in read.to_dict().items()}
        print(console.to_json(measures.with_checksum(document)))
    else:
        out.print(report.in_terminal(report.audit_parts(result.audit, words, verbose=verbose, layers=result.layers)))
        for path, rows in result.files.items():
            for line in report.reading_words(rows, names=True, varying=False):
                say(f"{path.name}: {line}")
        for line in lines:
            say(line)
        places = {"result": save, "report": page, "PDF": pdf, "figures": figures, f"history with {asked.period}": history.append}
        console.say_places(places)
    if failures:
        console.exit_failed(failures)
