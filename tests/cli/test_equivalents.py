"""Every command has an equivalent in Python: one call of the library, named here."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import typer

import equipoise as eq
from equipoise import data, repair, report, study
from equipoise.cli.app import command_line

CALLS: dict[str, Callable[..., Any]] = {
    "audit": eq.audit,  # of data.read_cohort(...) or data.read_scores(...) where the rows are in a file
    "debias": repair.try_methods,  # eq.debias for one method; the dry run is repair.estimate
    "compare": eq.compare,  # of tables or audits; eq.history(path).monitor() of a history
    "apply": repair.Bundle.load,  # .decide(rows)
    "report": report.write_again,  # eq.read_audit("audit.json").report("audit.html")
    "data list": data.CATALOGUE.values,
    "data check": data.check_files,
    "data fetch": data.fetch,
    "data cache": data.image_caches,  # and data.clear_caches
    "study list": study.read_plan,
    "study run": study.run_study,
    "study show": study.open_study,
}
SCRIPTS = {"demo"}  # runs other commands on simulated data


def _commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    parts = getattr(command, "commands", None)  # of a group
    if parts is None:
        yield " ".join(path), command
    for name, own in (parts or {}).items():
        yield from _commands(own, (*path, name))


COMMANDS = dict(_commands(typer.main.get_command(command_line())))


def test_every_command_has_a_python_equivalent():
    assert set(COMMANDS) == set(CALLS) | SCRIPTS


@pytest.mark.parametrize("name", CALLS)
def test_the_python_equivalent_is_documented(name):
    assert callable(CALLS[name])
    assert CALLS[name].__doc__


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_has_a_help_text(name):
    assert [p.name for p in COMMANDS[name].params if not getattr(p, "help", None) and p.name != "help"] == []
