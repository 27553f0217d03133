"""Several labels and classes on the command line: one message that says how they are repaired from Python."""

import pandas as pd
import pytest

from equipoise.cli.app import run


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "scores.csv"
    frame = {"y": [1, 0, 1, 0], "z": [0, 1, 1, 0], "kind": list("abca"), "p": [0.3, 0.2, 0.7, 0.7], "sex": list("FMMF")}
    pd.DataFrame(frame).to_csv(path, index=False)
    return str(path)


@pytest.mark.parametrize("second", [["--label", "z"], ["--label=z"]])
def test_a_second_label_is_refused_and_not_dropped(table, second, capsys):
    assert run(["audit", table, "--label", "y", *second, "--score", "p", "--group", "sex"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert 'label=["Effusion", "Mass"]' in said.err
    assert "eq.debias(net, cohort" in said.err


def test_classes_are_told_how_they_are_repaired(table, capsys):
    assert run(["audit", table, "--label", "kind", "--score", "p", "--group", "sex"]) == 2
    assert "classes=['a', 'b', 'c']" in capsys.readouterr().err


def test_one_label_is_audited(table):
    assert run(["audit", table, "--label", "y", "--score", "p", "--group", "sex", "--json"]) == 0
