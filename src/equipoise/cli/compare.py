"""`equipoise compare`: compare models on the same patients, or sites or periods with different patients; follow an audit over time."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import Field

from equipoise import case as cases
from equipoise import comparison, data, measures, report
from equipoise.cli import console
from equipoise.cli.console import FailIfOption, JsonOption, PdfOption, SaveOption, out
from equipoise.cli.options import takes_case
from equipoise.data import Columns
from equipoise.disk import write_text
from equipoise.errors import BadInput, collecting, raise_all
from equipoise.report import ReportSpec
from equipoise.specification import Specification, Texts, flag_of, setting

AUDIT, HISTORY, TABLE = "audit", "history", "table"
FLAGS = ("--label", "--group", "--reference", "--patient", "--score", "--bins", "--threshold", "--measure", "--name", "--since")


class CompareSpec(Specification):
    """The section [compare]: names, pairing, and how a history is followed."""

    name: Texts = setting("name for each compared model, site or period, in order", (), flag="--name", shown="the columns, or the files")
    paired: bool | None = setting("whether the tables hold the same patients or different ones", None, shown="by their ids")
    common_groups: bool = setting("leave out groups that are not in all audits", False)
    since: str | None = setting("first period of a history to use, as after a change of the model", None, flag="--since")
    expected_change: float = setting("gap, or change of a gap, to which the limits of a history are tuned", 0.1)
    intersections: bool = setting("follow the intersections of attributes in a history too", False)


class ComparisonCase(Specification):
    """What is compared: columns of tables, and the settings of audits."""

    data: Columns = Field(default_factory=Columns)
    model: cases.ModelSpec = Field(default_factory=cases.ModelSpec)
    audit: measures.AuditSpec = Field(default_factory=measures.AuditSpec)
    compare: CompareSpec = Field(default_factory=CompareSpec)
    report: ReportSpec = Field(default_factory=ReportSpec)


@takes_case(ComparisonCase, "data", "compare", only=FLAGS)
def compare_command(
    files: Annotated[
        list[Path],
        typer.Argument(
            help="Audits (.json, from audit --out), tables of scores (one with several --score columns, or several with one), or one "
            "history (.parquet, from audit --append)."
        ),
    ],
    *,
    case: Callable[[], ComparisonCase],
    fail_if: FailIfOption = None,
    save: SaveOption = None,
    page: Annotated[Path | None, typer.Option("--report", metavar="FILE.html", help="Also write an HTML report to this file.")] = None,
    pdf: PdfOption = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Print every rate, or every period, instead of one screen.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Compare models, sites or periods, or follow an audit over time, with intervals and alarms that hold for all comparisons together.

    [bold]Two models on the same patients:[/bold] equipoise compare scores.csv --score old --score new --label y --group sex

    [bold]Two sites, from their audits:[/bold] equipoise compare a.json b.json

    [bold]An audit repeated over time:[/bold] equipoise compare history.parquet --fail-if changed
    """
    problems = console.place_problems({"--report": page, "--pdf": pdf}, save)
    conditions = console.parse_conditions(fail_if, problems)
    with collecting(problems):
        asked = case()
    raise_all(problems)
    console.check_paths(*files, write=(save, page), pdf=pdf)
    with console.notes():
        result, numbers, facts, screen = _compare(files, asked)
    failures = console.failures_of(conditions, facts(numbers)) if conditions else []
    document = console.to_json(numbers.to_dict()) if save or as_json else ""
    if save:
        write_text(save, document + "\n")
    for place in (page, pdf):
        if place:
            result.report(place, group_names=asked.report.words)
    if as_json:
        print(document)
    else:
        out.print(report.in_terminal(screen(numbers, verbose)))
        console.say_places({"result": save, "report": page, "PDF": pdf})
    if failures:
        console.exit_failed(failures)


def _compare(files: list[Path], case: ComparisonCase) -> tuple[Any, Any, Callable[..., Any], Callable[..., Any]]:
    """What has a report, of audits or tables or of an audit over time; its numbers, their facts, and their view in a terminal."""
    kinds, how, spec = [_kind(path) for path in files], case.compare, case.audit
    raise_all(_kind_problems(files, kinds, case))
    if kinds == [HISTORY]:
        options: dict[str, Any] = {"measures": spec.measures} if spec.measures else {}
        options |= {"since": how.since, "intersections": how.intersections}
        course = measures.history(files[0]).monitor(level=spec.level, expected_change=how.expected_change, **options)
        return course, course, measures.monitoring_facts, report.monitoring_screen
    columns, stems = case.data, [path.stem for path in files]
    unnamed = list(columns.score) if len(files) == 1 else stems if len(set(stems)) == len(stems) else list(map(str, files))
    names, count = how.name or unnamed, len(unnamed)
    if len(names) != count or len(set(names)) != count:
        raise BadInput(f"{count} are compared and need {count} different names; got {', '.join(names)}. Give one --name for each.")
    subjects: dict[str, Any] = {}
    if kinds[0] == AUDIT:
        subjects, options = dict(zip(names, map(measures.read_audit, files), strict=True)), {"common_groups": how.common_groups}
    else:  # several columns of one table, or the same column of several tables, with the groups of the first
        for name, (path, column) in zip(names, product(files, columns.score), strict=True):
            (scores,) = data.read_scores(path, columns.changed(score=column)).values()
            subjects[name], columns = replace(scores, name=name), columns.like(scores.attributes)
        options = {"threshold": case.model.threshold, "measures": spec.measures, "paired": how.paired}
        options |= {"level": spec.level, "min_patients": spec.min_patients}
    with console.bar("compare"):
        result = comparison.compare(subjects, **options)
    return result, result.changes, comparison.change_facts, report.changes_screen


def _kind(path: Path) -> str:
    if path.is_file() and path.suffix.lower() == ".json":
        return AUDIT
    return HISTORY if path.is_file() and measures.is_history(path) else TABLE


def _kind_problems(files: list[Path], kinds: list[str], case: ComparisonCase) -> list[str]:
    """Files of different kinds, and options that are not for their kind."""
    if len(set(kinds)) > 1:
        listed = ", ".join(f"{path.name} ({kind})" for path, kind in zip(files, kinds, strict=True))
        return [f"expected audits, tables or one history; got {listed}. Compare files of one kind."]
    problems: list[str] = []
    kind, how, columns = kinds[0], case.compare, case.data
    if kind == HISTORY and len(files) > 1:
        problems.append(f"one history is followed at a time; got {len(files)}. Name one of them.")
    if kind == AUDIT and len(files) < 2:
        problems.append(f"one audit, {files[0].name}, has nothing to compare with. Name another one.")
    if kind != HISTORY:
        used = [option for option, value in (("--since", how.since), ("compare.intersections", how.intersections)) if value]
        problems += [f"{option} is for a history (.parquet, from audit --append). Omit it." for option in used]
    if kind != TABLE:
        used = [flag_of(Columns, name) or f"data.{name}" for name in sorted(columns.model_fields_set)]
        used += ["--threshold"] if case.model.threshold is not None else []
        article = "an" if kind == AUDIT else "a"
        return problems + [f"{option} is for tables of scores; {files[0].name} is {article} {kind}. Omit it." for option in used]
    for option, given, example in (("--label", columns.label, "y"), ("--group", columns.group, "sex")):
        if not given:
            problems.append(f"a table of scores needs {option}, as in {option} {example}")
    if len(columns.label) > 1:
        problems.append("tables are compared for one --label at a time. Omit the others, or compare audits, which may have several.")
    if (len(files) == 1) != (len(columns.score) > 1) or not columns.score:
        tables, needed = ("1 table", "two or more --score columns") if len(files) == 1 else (f"{len(files)} tables", "one --score column")
        problems.append(f"{tables} of scores: expected {needed}; got {len(columns.score)}. Give the columns with --score.")
    return problems
