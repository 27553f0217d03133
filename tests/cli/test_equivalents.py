"""Every command has an equivalent in Python: one call of the library, named here. Those of files return the numbers of the command."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

import equipoise as eq
from equipoise import data, repair, report, studies
from equipoise.cli.app import command_line
from equipoise.data import ReadOptions
from equipoise.measures import AuditSpec
from equipoise.repair import RepairRequest, Source, audit_file, prepare_file
from support import hospital
from support.command import ran
from support.scores_file import AUDIT, scores_frame, write_csv

CALLS: dict[str, Callable[..., Any]] = {
    "audit": audit_file,  # eq.audit of rows in memory
    "debias": prepare_file,  # .estimate() is the dry run, .run(folder) the repair; eq.debias for one method on rows in memory
    "compare": eq.compare,  # of tables or audits; eq.history(path).monitor() of a history
    "apply": repair.Bundle.load,  # .decide(rows)
    "report": report.write_again,  # eq.read_audit("audit.json").report("audit.html")
    "data list": studies.CATALOGUE.values,
    "data check": studies.check_files,
    "data fetch": studies.fetch,
    "data cache": data.image_caches,  # and data.clear_caches
    "study list": studies.read_plan,
    "study run": studies.run_study,
    "study show": studies.open_study,
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


SCORES = ReadOptions(labels=["y"], group=["sex"], reference=["M"], patient="pid")
TABLE = ReadOptions(labels=["sick"], group=["sex"], reference=["M"], patient="pid", id="id")
NETWORK = {"model": "net.py:build", "weights": Path("net.safetensors")}
MODEL = ("--model", "net.py:build", "--weights", "net.safetensors")
TIMES = {"provenance", "seconds", "when", "command", "out", "files", "failures", "rows_left_out"}  # of one run, or only printed


def _numbers(document: Any) -> Any:
    """A document without the entries that differ between two runs."""
    if isinstance(document, dict):
        return {key: _numbers(value) for key, value in document.items() if key not in TIMES}
    return [_numbers(value) for value in document] if isinstance(document, list) else document


def _printed(run, *arguments: object) -> Any:
    done = run(*arguments, "--json")
    assert done.code == 0, done.err
    return json.loads(done.out)


def test_the_scores_in_a_file_are_audited_as_by_the_command(run):
    path, valid = write_csv("scores.csv"), write_csv("valid.csv", scores_frame(120))
    found = audit_file(Source(path, SCORES, scores=["p"]), AuditSpec(valid=valid, level=0.9))
    printed = _printed(run, "audit", path, *AUDIT, "--reference", "M", "--patient", "pid", "--valid", valid, "--set", f"audit.level={0.9}")
    assert found.to_dict() == printed
    assert found.only is found.audits["y"]
    assert len(found.scores["y"]) == 80


def test_several_labels_in_a_file_are_audited_as_by_the_command(run):
    path = write_csv("scores.csv", scores_frame().assign(z=lambda frame: 1 - frame["y"], q=lambda frame: 1 - frame["p"]))
    reading = ReadOptions(labels=["y", "z"], group=["sex"], reference=["M"])
    found = audit_file(Source(path, reading, scores=["p", "q"]), threshold=0.4)
    columns = ("--label", "y", "--label", "z", "--score", "p", "--score", "q")
    assert found.to_dict() == _printed(run, "audit", path, *columns, "--group", "sex", "--reference", "M", "--threshold", 0.4)
    assert found.only is None


def test_a_network_is_audited_on_a_file_as_by_the_command(table):
    steps: list[str] = []
    source = Source(Path("local.csv"), TABLE, **NETWORK)
    found = audit_file(source, AuditSpec(probe=True, draws=20), bars=lambda what: (steps.append(what), repair.no_bars(what))[1])
    assert found.to_dict() == _printed(
        table,
        "audit",
        "local.csv",
        *hospital.ROLES,
        "--set",
        "data.id=id",
        *MODEL,
        "--set",
        "audit.probe=true",
        "--set",
        f"audit.draws={20}",
    )
    assert steps == ["audit", "probes"]


def test_the_scores_in_a_file_are_repaired_as_by_the_command(run, tmp_path):
    path = write_csv("scores.csv", scores_frame(800))
    goal = eq.Goal(max_gap=0.05, threshold=0.5, selection="paper")
    prepared = prepare_file(RepairRequest(Source(path, SCORES, scores=["p"]), goal, {"group-thresholds": {}}, seed=3))
    _, saved = prepared.run(tmp_path / "python")
    options = ("--max-gap", 0.05, "--threshold", 0.5, "--method", "group-thresholds", "--set", f"audit.seed={3}")
    printed = _printed(run, "debias", path, *AUDIT, "--reference", "M", "--patient", "pid", *options, "--out", "command")
    assert _numbers(dict(saved["y"].document)) == _numbers(printed)
    assert printed["before"]["rows"] == len(prepared.test["y"])
    with pytest.raises(eq.BadInput, match="not empty"):
        prepared.run(tmp_path / "python", bars=pytest.fail)  # before any work


@pytest.mark.parametrize("limits", [{}, {"max_gap": 0.05}, {"min_performance": 0.6}])
def test_a_goal_has_the_same_defaults_in_python_and_on_the_command_line(tmp_path, limits):
    """Of a file by `prepare_file` and by the command, and of its repair set by `eq.debias`."""
    path = write_csv(tmp_path / "scores.csv", scores_frame(800))
    prepared = prepare_file(RepairRequest(Source(path, SCORES, scores=["p"]), eq.Goal(**limits), {"reject-option": {}}))
    cases, saved = prepared.run(tmp_path / "python")
    options = [part for name, value in limits.items() for part in (f"--{name.replace('_', '-')}", value)]
    columns = (*AUDIT, "--reference", "M", "--patient", "pid")
    printed = _printed(ran, "debias", path, *columns, "--method", "reject-option", *options, "--out", tmp_path / "command")
    assert _numbers(dict(saved["y"].document)) == _numbers(printed)
    by_keywords = eq.debias(prepared.repair["y"], method="reject-option", **limits)
    assert (by_keywords.goal, by_keywords.rule) == (cases["y"].goal, cases["y"].result.candidate.rule)
    assert by_keywords.goal.selection == "honest"
    assert by_keywords.goal.min_performance is not None


def test_a_network_is_repaired_on_a_file_as_by_the_command(table, tmp_path):
    goal = eq.Goal(min_performance=0.6, selection="paper")
    request = RepairRequest(
        Source(Path("local.csv"), TABLE, **NETWORK), goal, {"bias-gda": hospital.BIAS_GDA}, draws=20, options=repair.Options(onnx=False)
    )
    prepared = prepare_file(request)
    dry_run = _printed(table, *hospital.TABLE, *hospital.FAST, "--dry-run")
    assert prepared.estimate().to_dict()["sets"] == dry_run["sets"]
    _, saved = prepared.run(tmp_path / "python")
    assert _numbers(dict(saved["sick"].document)) == _numbers(_printed(table, *hospital.TABLE, *hospital.FAST))


@pytest.mark.parametrize(
    ("options", "fact"),
    [
        ({}, "model="),
        ({"scores": ["p"], "model": "net.py:build"}, "model="),
        ({"scores": ["p", "q"]}, "got 2"),
        ({"model": "net.py:build", "check_scores": "known.csv"}, "known="),
        ({"model": "net.py:build", "outputs": {"z": 1}}, "'z'"),
    ],
)
def test_a_source_has_scores_or_a_model_for_each_label(options, fact):
    with pytest.raises(eq.BadInput, match=fact):
        Source(Path("scores.csv"), SCORES, **options)


@pytest.mark.parametrize(
    ("options", "fact"),
    [
        ({"spec": AuditSpec(probe=True)}, "--set", "audit.probe=true"),
        ({"spec": AuditSpec(train="train.csv")}, "--train"),
        ({"earlier": ["old.csv"]}, "--patient"),
    ],
)
def test_arguments_of_an_audit_that_cannot_be_combined_are_rejected(options, fact):
    reading = ReadOptions(labels=["y"], group=["sex"])
    with pytest.raises(eq.BadInput, match=fact):
        audit_file(Source(Path("scores.csv"), reading, scores=["p"]), **options)
