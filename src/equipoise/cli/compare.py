"""`equipoise compare`: compare models on the same patients, or sites or periods with different patients; follow an audit over time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from equipoise import data, measures, repair, report
from equipoise.cli.console import JsonOption, bar, notes, out, say_places, to_json
from equipoise.cli.fail_if import FailIfOption, exit_if, failures_of, parse_conditions
from equipoise.cli.inputs import Inputs, check_places, group_names_of, number_problems, page_problems, parse_thresholds
from equipoise.cli.options import GroupNameOption, PdfOption, takes_options
from equipoise.errors import BadInput, raise_all

if TYPE_CHECKING:
    from equipoise.measures import Fact, Monitoring
    from equipoise.repair import ScoreComparison

ROLES = ("labels", "group", "reference", "patient", "id", "positive", "bins", "conflicts", "weight", "max_table_bytes")
AUDIT, HISTORY, TABLE = "audit", "history", "table"


@dataclass(frozen=True)
class CompareOptions:
    """Options for tables of scores and for histories."""

    score: Annotated[list[str] | None, typer.Option(help="Column of scores in a table; the first is compared with each of the others.")] = (
        None
    )
    name: Annotated[
        list[str] | None,
        typer.Option(help="Name for each compared model, site or period, in order.", show_default="the columns, or the files"),
    ] = None
    threshold: Annotated[
        list[str] | None,
        typer.Option(
            help="Scores at or above this value are decided positive; one for all, or one for each, in order or as NAME=VALUE.",
            show_default="0.5",
        ),
    ] = None
    paired: Annotated[
        bool | None,
        typer.Option(
            "--paired/--unpaired", help="Whether the tables hold the same patients or different ones.", show_default="by their ids"
        ),
    ] = None
    common_groups: Annotated[bool, typer.Option("--common-groups", help="Leave out groups that are not in all audits.")] = False
    measure: Annotated[
        list[str] | None, typer.Option(help="Measure of tables, or of a history (eod, fpr_gap and spd by default); repeat it for more.")
    ] = None
    level: Annotated[float, typer.Option(help="Confidence level for tables and histories; audits have their own.")] = 0.95
    min_patients: Annotated[int, typer.Option(help="Cells of tables with fewer patients are 'insufficient data'.")] = 5
    since: Annotated[
        str | None,
        typer.Option(help="First period of a history to use, for example after a change of the model.", show_default="the first"),
    ] = None
    expected_change: Annotated[float, typer.Option(help="Gap, or change of a gap, to which the limits of a history are tuned.")] = 0.1
    intersections: Annotated[bool, typer.Option("--intersections", help="Follow the intersections of attributes in a history too.")] = False


@takes_options(*ROLES, optional=("labels", "group"))
def compare(
    files: Annotated[
        list[Path],
        typer.Argument(
            help="Audits (.json, from audit --out), tables of scores (one with several --score columns, or several with one), or one "
            "history (.parquet, from audit --append)."
        ),
    ],
    *,
    inputs: Inputs,
    how: CompareOptions,
    fail_if: FailIfOption = None,
    save: Annotated[Path | None, typer.Option("--out", help="Also write the result as JSON to this file.")] = None,
    page: Annotated[Path | None, typer.Option("--report", help="Also write an HTML report to this file.")] = None,
    pdf: PdfOption = None,
    group_name: GroupNameOption = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Print every rate, or every period, instead of one screen.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Compare models, sites or periods, or follow an audit over time, with intervals and alarms that hold for all comparisons together.

    [bold]Two models on the same patients:[/bold] equipoise compare scores.csv --score old --score new --label y --group sex

    [bold]Two sites, from their audits:[/bold] equipoise compare a.json b.json

    [bold]An audit repeated over time:[/bold] equipoise compare history.parquet --fail-if changed
    """
    problems = number_problems(level=how.level, min_patients=how.min_patients)
    conditions = parse_conditions(fail_if, problems)
    raise_all(problems + page_problems({"--report": page, "--pdf": pdf}))
    for path in files:
        if not path.exists():
            raise data.no_such_file(path)
    check_places(save, page, pdf=pdf)
    group_names = group_names_of(group_name)
    with notes():
        result = _compare(files, inputs, how)
    failures = failures_of(conditions, _facts(result)) if conditions else []
    document = to_json(result.to_dict()) if save or as_json else ""
    if save:
        data.write_text(save, document + "\n")
    for place in (page, pdf):
        if place:
            result.report(place, group_names=group_names)
    if as_json:
        print(document)
    else:
        over_time = isinstance(result, measures.Monitoring)
        out.print(report.monitoring_view(result, verbose) if over_time else report.contrast_view(result, verbose))  # type: ignore[arg-type]
        say_places({"result": save, "report": page, "PDF": pdf})
    exit_if(failures)


def _facts(result: ScoreComparison | Monitoring) -> list[Fact]:
    if isinstance(result, measures.Monitoring):
        return measures.monitoring_facts(result)
    return repair.score_comparison_facts(result)


def _compare(files: list[Path], inputs: Inputs, how: CompareOptions) -> ScoreComparison | Monitoring:
    """The comparison of audits or of tables, or the course of an audit over time."""
    kinds = [_kind(path) for path in files]
    raise_all(_kind_problems(files, kinds, inputs.options, how))
    if kinds == [HISTORY]:
        options: dict[str, Any] = {"measures": how.measure} if how.measure else {}
        options |= {"since": how.since, "intersections": how.intersections}
        return measures.history(files[0]).monitor(level=how.level, expected_change=how.expected_change, **options)
    if kinds[0] == AUDIT:
        audits: dict[str, Any] = dict(zip(_file_names(how.name, files), map(measures.read_audit, files), strict=True))
        return repair.compare(audits, common_groups=how.common_groups)
    threshold = parse_thresholds(how.threshold, _compared_names(files, how.score or [], how.name), "name", in_order=True)
    scores = _read_scores(files, inputs.options, how.score or [], how.name)
    with bar("compare"):
        limits: dict[str, Any] = {"level": how.level, "min_patients": how.min_patients}
        return repair.compare(scores, paired=how.paired, threshold=threshold, measures=how.measure or None, **limits)


def _kind(path: Path) -> str:
    if path.is_file() and path.suffix.lower() == ".json":
        return AUDIT
    return HISTORY if path.is_file() and measures.is_history(path) else TABLE


def _kind_problems(files: list[Path], kinds: list[str], roles: Mapping[str, Any], how: CompareOptions) -> list[str]:
    """Files of different kinds, and options that are not for their kind."""
    if len(set(kinds)) > 1:
        listed = ", ".join(f"{path.name} ({kind})" for path, kind in zip(files, kinds, strict=True))
        return [f"expected audits, tables or one history; got {listed}. Compare files of one kind."]
    problems: list[str] = []
    kind, score = kinds[0], how.score or []
    if kind == HISTORY and len(files) > 1:
        problems.append(f"one history is followed at a time; got {len(files)}. Name one of them.")
    if kind == AUDIT and len(files) < 2:
        problems.append(f"one audit, {files[0].name}, has nothing to compare with. Name another one.")
    if kind != HISTORY:
        used = [option for option, value in (("--since", how.since), ("--intersections", how.intersections)) if value]
        problems += [f"{option} is for a history (.parquet, from audit --append). Omit it." for option in used]
    if kind != TABLE:
        options = {"--label": roles["labels"]} | {f"--{name}": roles[name] for name in ("group", "reference", "patient", "weight", "bins")}
        used = [option for option, value in {"--score": score, "--threshold": how.threshold, **options}.items() if value]
        article = "an" if kind == AUDIT else "a"
        return problems + [f"{option} is for tables of scores; {files[0].name} is {article} {kind}. Omit it." for option in used]
    for option, field, example in (("--label", "labels", "y"), ("--group", "group", "sex")):
        if not roles[field]:
            problems.append(f"a table of scores needs {option}, as in {option} {example}")
    if len(roles["labels"] or []) > 1:
        problems.append("tables are compared for one --label at a time. Omit the others, or compare audits, which may have several.")
    if (len(files) == 1) != (len(score) > 1) or not score:
        tables, columns = ("1 table", "two or more --score columns") if len(files) == 1 else (f"{len(files)} tables", "one --score column")
        problems.append(f"{tables} of scores: expected {columns}; got {len(score)}. Give the columns with --score.")
    return problems


def _file_names(names: list[str] | None, files: list[Path]) -> list[str]:
    """The names of the compared files: those of --name, or the files without folder and extension if these differ."""
    stems = [path.stem for path in files]
    return _checked_names(names or (stems if len(set(stems)) == len(stems) else list(map(str, files))), len(files))


def _checked_names(names: list[str], count: int) -> list[str]:
    if len(names) != count or len(set(names)) != count:
        raise BadInput(f"{count} are compared and need {count} different names; got {', '.join(names)}. Give one --name for each.")
    return names


def _compared_names(files: list[Path], score: list[str], names: list[str] | None) -> list[str]:
    """The names of the compared scores: those of --name, or the columns of one table, or the tables."""
    return _checked_names(names or score, len(score)) if len(files) == 1 else _file_names(names, files)


def _read_scores(files: list[Path], roles: Mapping[str, Any], score: list[str], names: list[str] | None) -> dict[str, data.Scores]:
    """The scores by name: several columns of one table, or the same column of several tables, with the groups of the first."""
    reading = data.ReadOptions(**{**roles, "bins": dict(map(data.read_bins, roles["bins"] or []))})
    pairs = [(files[0], column) for column in score] if len(files) == 1 else [(path, score[0]) for path in files]
    by_name: dict[str, data.Scores] = {}
    for name, (path, column) in zip(_compared_names(files, score, names), pairs, strict=True):
        (scores,) = data.read_scores(path, reading, [column]).values()
        by_name[name] = replace(scores, name=name)
        reading = reading.like(scores)
    return by_name
