"""`equipoise plan`: how many patients show a gap, before they are collected, from assumptions or from an earlier audit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from pydantic import Field

from equipoise import case as cases
from equipoise import measures, report
from equipoise.cli import console
from equipoise.cli.console import JsonOption, out, say
from equipoise.cli.options import takes_case
from equipoise.errors import raise_all
from equipoise.specification import Specification


class PlanCase(Specification):
    """What a plan assumes."""

    plan: measures.PlanSpec = Field(default_factory=measures.PlanSpec)


@takes_case(PlanCase, "plan")
def plan_command(
    file: Annotated[Path | None, typer.Argument(help="Case file (.toml) whose table is audited for what the flags would assume.")] = None,
    *,
    case: Callable[[], PlanCase],
    page: Annotated[Path | None, typer.Option("--report", metavar="FILE.html", help="Also write a page with the curve.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Show how many patients an audit and a repair need to show a gap in sensitivity, with 80 % power.

    [bold]Example:[/bold] equipoise plan --gap 0.05 --sensitivity 0.8 --share 0.3 --visits 2.1

    [bold]From an earlier table:[/bold] equipoise plan case.toml --gap 0.05
    """
    raise_all(console.place_problems({"--report": page}))
    spec = case().plan
    console.check_paths(file, write=(page,))
    given = {name: getattr(spec, name) for name in spec.model_fields_set}
    audit, words = None, None
    if file is not None:
        asked = cases.Case.load(file)
        words = asked.report.words
        given = {
            "gap": asked.goal.max_gap or spec.gap,
            "test_fraction": asked.repair.test_fraction,
            "level": asked.audit_spec.level,
        } | given
        with console.notes():
            audit = asked.audit()
    found = measures.plan(audit, **given)
    if page:
        found.report(page, group_names=words)
    if as_json:
        print(console.to_json(found.to_dict()))
        return
    out.print(report.in_terminal(report.plan_screen(found)))
    if page:
        say(f"report: {page}")
