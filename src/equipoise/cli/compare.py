"""`equipoise compare`: models on the same patients, sites or periods with different patients, and audits repeated over time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from equipoise import data, measures, repair, report
from equipoise.cli.console import JsonOption, bar, notes, out
from equipoise.cli.inputs import Inputs, group_names_of, number_problems, page_problems
from equipoise.cli.options import GroupNameOption, PdfOption, takes_options
from equipoise.cli.pipeline import FailIfOption, conditions_of, exit_if
from equipoise.errors import BadInput, raise_all

if TYPE_CHECKING:
    from equipoise.measures import Monitoring
    from equipoise.repair import Contrast

ROLES = ("labels", "group", "reference", "patient", "id", "positive", "bins", "conflicts", "weight", "max_table_bytes")
AUDIT, HISTORY, TABLE = "audit", "history", "table"


@dataclass(frozen=True)
class CompareOptions:
    """What is compared in tables of scores, and what is followed in a history."""

    score: Annotated[list[str] | None, typer.Option(help="Column of scores in a table; the first is compared with each of the others.")] = (
        None
    )
    name: Annotated[
        list[str] | None,
        typer.Option(help="Name for each compared model, site or period, in order.", show_default="the columns, or the files"),
    ] = None
    threshold: Annotated[
        list[float] | None,
        typer.Option(help="Scores at or above this value are decided positive; one for all, or one for each.", show_default="0.5"),
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
    for value in how.threshold or []:
        problems += number_problems(threshold=value)
    conditions = conditions_of(fail_if, problems)
    raise_all(problems + page_problems({"--report": page, "--pdf": pdf}))
    for path in files:
        if not path.exists():
            raise data.no_such_file(path)
    for place in (save, page, pdf):
        if place:
            data.check_writable(place)
    if pdf:
        report.check_printer()
    names = group_names_of(group_name)
    with notes():
        found = _compared(files, inputs, how)
    told = found.to_dict()
    if save:
        data.write_text(save, json.dumps(told, indent=2, allow_nan=False) + "\n")
    for place in (page, pdf):
        if place:
            found.report(place, group_names=names)
    if as_json:
        print(json.dumps(told, indent=2, allow_nan=False))
    else:
        over_time = isinstance(found, measures.Monitoring)
        out.print(report.monitoring_view(found, verbose) if over_time else report.contrast_view(found, verbose))  # type: ignore[arg-type]
        for what, place in (("result", save), ("report", page), ("PDF", pdf)):
            if place:
                out.print(Text(f"{what}: {place}"), soft_wrap=True)
    if conditions:
        exit_if(conditions, measures.monitoring_facts(found) if isinstance(found, measures.Monitoring) else repair.contrast_facts(found))


def _compared(files: list[Path], inputs: Inputs, how: CompareOptions) -> Contrast | Monitoring:
    """The comparison of audits or of tables, or what became of an audit over time."""
    kinds = [_kind(path) for path in files]
    raise_all(_kind_problems(files, kinds, inputs.options, how))
    if kinds == [HISTORY]:
        wanted: dict[str, Any] = {"measures": how.measure} if how.measure else {}
        wanted |= {"since": how.since, "intersections": how.intersections}
        return measures.history(files[0]).monitor(level=how.level, expected_change=how.expected_change, **wanted)
    if kinds[0] == AUDIT:
        audits: dict[str, Any] = dict(zip(_names(how.name, files), map(measures.read_audit, files), strict=True))
        return repair.compare(audits, common_groups=how.common_groups)
    scores, given = _scores(files, inputs.options, how.score or [], how.name), how.threshold or [0.5]
    if len(given) not in (1, len(scores)):
        raise BadInput(f"{len(given)} values of --threshold for {len(scores)} sets of scores. Give one for all, or one for each.")
    each = dict(zip(scores, given * (len(scores) if len(given) == 1 else 1), strict=True))
    with bar("compare"):
        limits: dict[str, Any] = {"level": how.level, "min_patients": how.min_patients}
        return repair.compare(scores, paired=how.paired, threshold=each, measures=how.measure or None, **limits)


def _kind(path: Path) -> str:
    if path.is_file() and path.suffix.lower() == ".json":
        return AUDIT
    return HISTORY if path.is_file() and measures.is_history(path) else TABLE


def _kind_problems(files: list[Path], kinds: list[str], roles: Mapping[str, Any], how: CompareOptions) -> list[str]:
    """Files that do not go together, and options that are not for them."""
    score, over_time = how.score, {"--since": how.since, "--intersections": how.intersections}
    if len(set(kinds)) > 1:
        listed = ", ".join(f"{path.name} ({kind})" for path, kind in zip(files, kinds, strict=True))
        return [f"expected audits, tables or one history; got {listed}. Compare files of one kind."]
    problems = []
    kind = kinds[0]
    if kind == HISTORY and len(files) > 1:
        problems.append(f"one history is followed at a time; got {len(files)}. Name one of them.")
    if kind == AUDIT and len(files) < 2:
        problems.append(f"one audit, {files[0].name}, has nothing to compare with. Name another one.")
    if kind != HISTORY:
        problems += [f"{option} is for a history (.parquet, from audit --append). Omit it." for option, value in over_time.items() if value]
    if kind != TABLE:
        used = {"--score": score, "--label": roles["labels"], "--group": roles["group"], "--reference": roles["reference"]}
        used |= {"--patient": roles["patient"], "--weight": roles["weight"], "--bins": roles["bins"]}
        return problems + [f"{option} is for tables of scores; {files[0].name} is an {kind}. Omit it." for option, v in used.items() if v]
    for option, field, example in (("--label", "labels", "y"), ("--group", "group", "sex")):
        if not roles[field]:
            problems.append(f"a table of scores needs {option}, as in {option} {example}")
    if len(roles["labels"] or []) > 1:
        problems.append("tables are compared for one --label at a time. Omit the others, or compare audits, which may have several.")
    wanted = "two or more --score columns" if len(files) == 1 else "one --score column"
    if (len(files) == 1) != (len(score or []) > 1) or not score:
        shown = "1 table" if len(files) == 1 else f"{len(files)} tables"
        problems.append(f"{shown} of scores: expected {wanted}; got {len(score or [])}. Give the columns with --score.")
    return problems


def _names(given_names: list[str] | None, found: list[Path]) -> list[str]:
    stems = [path.stem for path in found]
    names = given_names or (stems if len(set(stems)) == len(stems) else list(map(str, found)))
    return _checked(names, len(found))


def _checked(names: list[str], count: int) -> list[str]:
    if len(names) != count or len(set(names)) != count:
        raise BadInput(f"{count} are compared and need {count} different names; got {', '.join(names)}. Give one --name for each.")
    return names


def _scores(files: list[Path], roles: Mapping[str, Any], score: list[str], names: list[str] | None) -> dict[str, data.Scores]:
    """The scores by name: columns of one table, or the same column of several; groups are those of the first."""
    bins = dict(map(data.read_bins, roles["bins"] or []))
    reading = data.Reading(**{**roles, "bins": bins})
    pairs = [(files[0], column) for column in score] if len(files) == 1 else [(path, score[0]) for path in files]
    called = _checked(names or score, len(pairs)) if len(files) == 1 else _names(names, files)
    found: dict[str, data.Scores] = {}
    for name, (path, column) in zip(called, pairs, strict=True):
        (own,) = data.read_scores(path, reading, [column]).values()
        found[name] = replace(own, name=name)
        known = {a.name: a.bins for a in own.attributes if a.bins is not None}
        reading = replace(reading, bins=known, reference=[a.reference for a in own.attributes])
    return found
