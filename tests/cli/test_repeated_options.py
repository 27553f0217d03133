"""Options that are given more than once: an error if they take one value, and one threshold per label by name."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import equipoise as eq
from equipoise.cli.app import command_line
from support.command import Ran, ran
from support.facts import facts, says, suggests

LABELS = ("Effusion", "Mass")
BY_LABEL = {"Effusion": 0.4, "Mass": 0.2}
ROLES = ["--group", "sex", "--reference", "M"]
BOTH = [*(part for name in LABELS for part in ("--label", name, "--score", f"p {name}")), *ROLES]
NAMED = [part for name, value in BY_LABEL.items() for part in ("--threshold", f"{name}={value}")]
Run = Callable[..., Ran]


def _commands(command: Any, *path: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, child in command.commands.items():
        if hasattr(child, "commands"):
            yield from _commands(child, *path, name)
        else:
            yield (*path, name), child


COMMANDS = dict(_commands(command_line()))


def _scores(frame: pd.DataFrame) -> dict[str, eq.Scores]:
    return {name: eq.Scores.from_frame(frame, label=name, score=f"p {name}", group="sex", reference="M") for name in LABELS}


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    rng, n = np.random.default_rng(0), 400
    frame = pd.DataFrame({"sex": np.tile(["F", "M"], n // 2)})
    for name in LABELS:
        sick = rng.random(n) < 0.4
        frame = frame.assign(**{name: sick.astype(int), f"p {name}": np.clip(rng.normal(0.3 + 0.2 * sick, 0.15), 0, 1)})
    return frame


@pytest.fixture(scope="module")
def table(frame: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("labels") / "scores.csv"
    frame.to_csv(path, index=False)
    return path


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_option_with_one_value_is_refused_if_given_twice(command, tmp_path, monkeypatch):
    """Through the command line: the error names the option, whatever else is missing."""
    monkeypatch.chdir(tmp_path)  # where a command that is not refused would write
    single = [o for o in COMMANDS[command].params if o.param_type_name == "option" and not o.multiple and not o.is_eager]
    arguments = ["x" for o in COMMANDS[command].params if o.param_type_name == "argument" and o.required]
    assert single
    for option in single:
        twice = [option.opts[0]] if option.is_flag else [option.opts[0], "1"]
        tried = ran(*command, *arguments, *twice, *twice)
        assert (tried.code, says(tried.err, option.opts[0], 2)) == (2, True), tried.err


def test_all_repeated_options_are_named_at_once(run: Run, table):
    tried = run(
        "audit",
        table,
        *BOTH,
        "--set",
        "audit.seed=1",
        "--set",
        "audit.level=0.9",
        "--set",
        "audit.seed=2",
        "--set",
        "audit.level=0.8",
    )
    assert (tried.code, tried.out) == (2, "")
    assert says(tried.err, "audit.seed", "audit.level")
    either = run("compare", table, "--set", "compare.paired=true", "--set", "compare.paired=false")
    assert either.code == 2
    assert says(either.err, "compare.paired", "twice")


def test_each_label_has_its_own_threshold(run: Run, table, frame):
    tried = run("audit", table, *BOTH, *NAMED, "--measure", "eod", "--json")
    found = json.loads(tried.out)["labels"]
    expected = eq.audit(_scores(frame), threshold=BY_LABEL, measures=["eod"])
    assert {name: found[name]["threshold"] for name in LABELS} == BY_LABEL
    assert {name: audit.rule.value for name, audit in expected.labels.items()} == BY_LABEL
    for name in LABELS:
        alone = eq.audit(_scores(frame)[name], threshold=BY_LABEL[name], measures=["eod"])
        assert found[name]["eod"]["value"] == expected[name]["eod"].value == alone["eod"].value


def test_a_table_on_disk_takes_thresholds_by_label(table):
    scans = {name: eq.scan(table, label=name, score=f"p {name}", group="sex", reference="M") for name in LABELS}
    audits = eq.audit(scans, threshold=BY_LABEL, measures=["eod"])
    assert {name: audit.rule.value for name, audit in audits.labels.items()} == BY_LABEL


def test_the_only_label_may_be_named(run: Run, table):
    roles = ["--label", "Mass", "--score", "p Mass", *ROLES, "--measure", "eod", "--json"]
    assert json.loads(run("audit", table, *roles, "--threshold", "Mass=0.2").out)["threshold"] == 0.2


@pytest.mark.parametrize("command", ["audit", "debias"])
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["0.2", "0.1", "0.03"], (3, "0.2", "0.1", "0.03", "LABEL=VALUE")),
        (["Effusion=0.2", "0.1"], ("Effusion=0.2", "0.1")),
        (["Effusion=0.2"], ("threshold", "Mass")),
        (["Effusion=0.2", "Mas=0.1"], ("Mas", "Mass")),
        (["Effusion=0.2", "Mass=0.1", "Mass=0.2"], ("Mass", "twice")),
        (["Effusion=0.2", "Mass=low"], ("Mass=low",)),
        (["Effusion=0.2", "Mass=1.2"], ("1.2", "between 0 and 1")),
        (["nan"], ("nan", "between 0 and 1")),
    ],
)
def test_thresholds_that_do_not_fit_the_labels(run: Run, table, tmp_path, command, given, expected):
    out = ["--out", tmp_path / "rules", "--method", "group-thresholds"] if command == "debias" else []
    tried = run(command, table, *BOTH, *(part for text in given for part in ("--threshold", text)), *out)
    assert (tried.code, tried.out) == (2, "")
    assert says(tried.err, *expected)
    assert not (tmp_path / "rules").exists()


def test_a_repair_starts_from_the_threshold_of_each_label(run: Run, table, frame, tmp_path):
    rules = tmp_path / "rules"
    tried = run("debias", table, *BOTH, *NAMED, "--method", "group-thresholds", "--out", rules, "--json")
    assert tried.code == 0
    assert {name: json.loads((rules / name / "run.json").read_text())["goal"]["threshold"] for name in LABELS} == BY_LABEL
    result = eq.debias(_scores(frame), method="group-thresholds", threshold=BY_LABEL)
    assert {name: own.goal.threshold for name, own in result.labels.items()} == BY_LABEL
    assert {name: own.trace.iloc[0]["threshold"] for name, own in result.labels.items()} == BY_LABEL


def test_two_thresholds_for_one_label_of_a_repair(run: Run, table, tmp_path):
    tried = run("debias", table, *BOTH, *NAMED, "--set", "goals.Mass.threshold=0.3", "--out", tmp_path / "rules")
    assert tried.code == 2
    assert says(tried.err, "Mass", "--threshold", "goal")


def test_compared_models_have_thresholds_by_name(run: Run, table):
    roles = [table, "--label", "Mass", *ROLES, "--score", "p Mass", "--score", "p Effusion", "--name", "old", "--name", "new", "--json"]
    by_name = run("compare", *roles, "--threshold", "new=0.4", "--threshold", "old=0.2")
    assert by_name.code == 0
    for given in (["old=0.2"], ["old=0.2", "0.4"], ["old=0.2", "mew=0.4"], ["0.1", "0.2", "0.3"]):
        assert run("compare", *roles, *(part for text in given for part in ("--threshold", text))).code == 2


def test_thresholds_in_python_name_every_label_and_no_other(frame):
    scores = _scores(frame)
    for wrong, expected in (({"Effusion": 0.2}, facts("Mass")), ({"Effusion": 0.2, "Mas": 0.1}, suggests("Mass"))):
        with pytest.raises(eq.errors.BadInput, match=expected):
            eq.audit(scores, threshold=wrong)
        with pytest.raises(eq.errors.BadInput, match=expected):
            eq.debias(scores, method="group-thresholds", threshold=wrong)
    with pytest.raises(eq.errors.BadInput, match=facts("new")):
        eq.compare({"old": scores["Mass"], "new": scores["Mass"]}, threshold={"old": 0.2})
    with pytest.raises(eq.errors.BadInput, match=facts("1.2")):
        eq.audit(scores, threshold={"Effusion": 0.2, "Mass": 1.2})
    for call in (eq.audit, eq.debias):
        with pytest.raises(eq.errors.BadInput, match=facts("threshold", "labels")):
            call(scores["Mass"], threshold=BY_LABEL)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--set", "goals.Mass.max_gap=0.1", "--set", "goals.Mass.max_gap=0.2"], ("Mass.max_gap", "twice")),
        (["--set", "report.words.F=women", "--set", "report.words.F=ladies"], ("F", "twice")),
        (["--method", "auto", "--set", "auto.allow_group=true", "--set", "auto.allow_group=false"], ("auto.allow_group", "boolean")),
    ],
)
def test_named_values_that_contradict_each_other(run: Run, table, tmp_path, options, expected):
    tried = run("debias", table, *BOTH, *options, "--out", tmp_path / "rules")
    assert tried.code == 2
    assert says(tried.err, *expected)


def test_weights_of_one_network_given_twice(run: Run, tmp_path):
    twice = ["--pretrained", "resnet-18=imagenet", "--pretrained", "resnet-18=other.pth"]
    tried = run("study", "run", "nih", "--out", tmp_path / "study", *twice)
    assert tried.code == 2
    assert says(tried.err, "resnet-18", "twice")
