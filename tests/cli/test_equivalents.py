"""Every command has an equivalent in Python: one call of the library, named here. Those of files return the numbers of the command."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import equipoise as eq
from equipoise import data, studies
from equipoise.case import audit_case, prepare_repair, propose, write_again
from equipoise.case.audit import no_bars
from equipoise.cli.app import command_line
from support import hospital
from support.command import ran
from support.facts import says
from support.scores_file import AUDIT, scores_frame, write_csv

CALLS: dict[str, Callable[..., Any]] = {
    "init": propose,  # .sections() is the case: eq.Case(**made.sections())
    "audit": audit_case,  # eq.audit of rows in memory
    "debias": prepare_repair,  # .estimate() is the dry run, .repair() the repair; eq.debias for one method on rows in memory
    "compare": eq.compare,  # of tables or audits; eq.history(path).monitor() of a history
    "apply": eq.Bundle.load,  # .decide(rows)
    "report": write_again,  # eq.read_audit("audit.json").report("audit.html")
    "plan": eq.plan,
    "data list": studies.CATALOGUE.values,
    "data check": studies.check_files,
    "data fetch": studies.fetch,
    "data cache": data.ImageCache.found,  # and data.ImageCache.clear
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


COMMANDS = dict(_commands(command_line()))


def test_every_command_has_a_python_equivalent():
    assert set(COMMANDS) == set(CALLS) | SCRIPTS


@pytest.mark.parametrize("name", CALLS)
def test_the_python_equivalent_is_documented(name):
    assert callable(CALLS[name])
    assert CALLS[name].__doc__


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_has_a_help_text(name):
    assert [p.name for p in COMMANDS[name].params if not getattr(p, "help", None) and p.name != "help"] == []


SCORES = {"label": "y", "score": "p", "group": "sex", "reference": "M", "patient": "pid"}
TABLE = {"table": "local.csv", "label": "sick", "group": "sex", "reference": "M", "patient": "pid", "id": "id"}
NETWORK = {"load": "net.py:build", "weights": "net.safetensors"}
MODEL = ("--model", "net.py:build", "--weights", "net.safetensors")
TIMES = {"provenance", "seconds", "when", "command", "out", "files", "failures", "rows_left_out"}  # of one run, or only printed


def _numbers(document: Any) -> Any:
    """A document without the entries that differ between two runs."""
    if isinstance(document, dict):
        return {key: _numbers(value) for key, value in document.items() if key not in TIMES}
    return [_numbers(value) for value in document] if isinstance(document, (list, tuple)) else document


def _printed(run, *arguments: object) -> Any:
    done = run(*arguments, "--json")
    assert done.code == 0, done.err
    return json.loads(done.out)


def test_the_scores_in_a_file_are_audited_as_by_the_command(run):
    path, valid = write_csv("scores.csv"), write_csv("valid.csv", scores_frame(120))
    found = audit_case(eq.Case(data={"table": path, **SCORES}, audit={"valid": valid, "level": 0.9}))
    printed = _printed(run, "audit", path, *AUDIT, "--reference", "M", "--patient", "pid", "--valid", valid, "--set", "audit.level=0.9")
    assert found.to_dict() == printed
    assert found.audit["eod"] == found.audit["y"]["eod"]
    assert len(found.scores["y"]) == 80


def test_several_labels_in_a_file_are_audited_as_by_the_command(run):
    path = write_csv("scores.csv", scores_frame().assign(z=lambda frame: 1 - frame["y"], q=lambda frame: 1 - frame["p"]))
    both = {**SCORES, "label": ["y", "z"], "score": ["p", "q"], "patient": None}
    found = audit_case(eq.Case(data={"table": path, **both}, model={"threshold": 0.4}))
    columns = ("--label", "y", "--label", "z", "--score", "p", "--score", "q")
    assert found.to_dict() == _printed(run, "audit", path, *columns, "--group", "sex", "--reference", "M", "--threshold", 0.4)
    assert list(found.audit.labels) == ["y", "z"]


def test_a_network_is_audited_on_a_file_as_by_the_command(table):
    steps: list[str] = []
    case = eq.Case(data=TABLE, model=NETWORK, audit={"probe": True, "draws": 20})
    found = audit_case(case, bars=lambda what: (steps.append(what), no_bars(what))[1])
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
        "audit.draws=20",
    )
    assert steps == ["audit", "probes"]


def test_the_scores_in_a_file_are_repaired_as_by_the_command(run, tmp_path):
    path = write_csv("scores.csv", scores_frame(800))
    goal, spec = {"max_gap": 0.05, "selection": "paper"}, {"method": "group-thresholds", "seed": 3}
    repaired = eq.Case(data={"table": path, **SCORES}, model={"threshold": 0.5}, goal=goal, repair=spec).debias()
    saved = repaired.save(tmp_path / "python")
    options = ("--max-gap", 0.05, "--threshold", 0.5, "--method", "group-thresholds", "--set", "repair.seed=3")
    printed = _printed(run, "debias", path, *AUDIT, "--reference", "M", "--patient", "pid", *options, "--out", "command")
    assert _numbers(dict(saved["y"].document)) == _numbers(printed)
    assert printed["before"]["rows"] == len(repaired.comparisons["y"].result.test)
    again = eq.Case(**eq.Bundle.load(tmp_path / "python").run.case).debias().save(tmp_path / "again")
    assert _numbers(dict(again["y"].document)) == _numbers(printed)
    with pytest.raises(eq.BadInput, match="not empty"):
        repaired.save(tmp_path / "python", bars=pytest.fail)


@pytest.mark.parametrize("limits", [{}, {"max_gap": 0.05}, {"min_performance": 0.6}])
def test_a_goal_has_the_same_defaults_in_python_and_on_the_command_line(tmp_path, limits):
    """Of a file by `prepare_repair` and by the command, and of its repair set by `eq.debias`."""
    path = write_csv(tmp_path / "scores.csv", scores_frame(800))
    repaired = eq.Case(data={"table": path, **SCORES}, goal=limits, repair={"method": "reject-option"}).debias()
    cases, saved = repaired.comparisons, repaired.save(tmp_path / "python")
    options = [part for name, value in limits.items() for part in ("--set", f"goal.{name}={value}")]
    columns = (*AUDIT, "--reference", "M", "--patient", "pid")
    printed = _printed(ran, "debias", path, *columns, "--method", "reject-option", *options, "--out", tmp_path / "command")
    assert _numbers(dict(saved["y"].document)) == _numbers(printed)
    by_keywords = eq.debias(cases["y"].original.valid, method="reject-option", **limits)
    assert (by_keywords.goal, by_keywords.rule) == (cases["y"].goal, cases["y"].result.candidate.rule)
    assert by_keywords.goal.selection == "honest"
    assert by_keywords.goal.min_performance is not None


def test_a_network_is_repaired_on_a_file_as_by_the_command(table, tmp_path):
    sections = {"goal": {"min_performance": 0.6, "selection": "paper"}, "repair": {"method": "bias-gda", "draws": 20}}
    prepared = prepare_repair(eq.Case(data=TABLE, model=NETWORK, **sections, report={"onnx": False}, **{"bias-gda": hospital.BIAS_GDA}))
    dry_run = _printed(table, *hospital.TABLE, *hospital.FAST, "--dry-run")
    assert prepared.estimate().to_dict()["sets"] == dry_run["sets"]
    saved = prepared.repair().save(tmp_path / "python")
    assert eq.Case(**json.loads((tmp_path / "python" / "run.json").read_text())["case"]) == prepared.case
    assert _numbers(dict(saved["sick"].document)) == _numbers(_printed(table, *hospital.TABLE, *hospital.FAST))


WRONG = [
    ({"score": ()}, {}, "--model"),
    ({}, {"model": {"load": "net.py:build"}}, "--model"),
    ({"score": ["p", "q"]}, {}, "2 --score"),
    ({"score": ()}, {"model": {"load": "net.py:build", "check_scores": "known.csv"}}, "model.known"),
    ({"score": ()}, {"model": {"load": "net.py:build", "outputs": {"z": 1}}}, "'z'"),
    ({}, {"audit": {"probe": True}}, "audit.probe"),
    ({"train": "train.csv"}, {}, "data.train"),
    ({"patient": None}, {"history": {"earlier": ["old.csv"]}}, "--patient"),
]


@pytest.mark.parametrize(("columns", "sections", "fact"), WRONG)
def test_what_does_not_go_together_in_a_case_is_rejected(columns, sections, fact):
    with pytest.raises(eq.BadInput, match=fact):
        eq.Case(data={"table": "scores.csv", **SCORES, **columns}, **sections)


def test_a_case_file_is_the_command_and_the_call(run, tmp_path):
    """Paths are relative to the file; a flag overrides it, and `--set` reaches what has no flag."""
    write_csv(tmp_path / "scores.csv")
    lines = ["[data]", 'table = "scores.csv"', 'label = "y"', 'score = "p"', 'group = "sex"', 'reference = "M"', 'patient = "pid"']
    (tmp_path / "case.toml").write_text("\n".join([*lines, "[model]", "threshold = 0.4", "[audit]", "level = 0.9"]), encoding="utf-8")
    by_flags = _printed(
        run,
        "audit",
        tmp_path / "scores.csv",
        *AUDIT,
        "--reference",
        "M",
        "--patient",
        "pid",
        "--threshold",
        0.4,
        "--set",
        "audit.level=0.9",
    )
    assert _printed(run, "audit", tmp_path / "case.toml") == by_flags
    found = eq.Case.load(tmp_path / "case.toml")
    assert found.audit()["eod"].value == next(row["value"] for row in by_flags["gaps"] if row["measure"] == "eod")
    assert eq.Case(**found.to_dict()) == found
    changed = _printed(run, "audit", tmp_path / "case.toml", "--threshold", 0.2, "--set", "audit.level=0.8")
    assert (changed["threshold"], changed != by_flags) == (0.2, True)
    wrong = run("audit", tmp_path / "case.toml", "--set", "audit.levl=0.8", "--set", "model.threshold=3", "--level", 3)
    assert (wrong.code, "audit.level" in wrong.err) == (2, True)
    wrong = run("audit", tmp_path / "case.toml", "--set", "audit.levl=0.8", "--set", "model.threshold=3")
    assert wrong.code == 2
    assert says(wrong.err, "'level'", "model.threshold (--threshold)")
