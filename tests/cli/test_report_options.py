"""Options for the report: words for groups, and a training set that shows whether the network is the limit."""

import json

import pandas as pd
import pytest
from safetensors.torch import save_file

from support import hospital
from support.facts import says

ROLES = ["--label", "sick", "--group", "sex", "--reference", "M", "--patient", "pid", "--set", "data.id=id", "--model", "net.py:build"]
NETWORK = [*ROLES, "--weights", "net.safetensors"]
DEBIAS = ["debias", "local.csv", *NETWORK, "--method", "group-thresholds", "--set", "report.onnx=false", "--out", "repaired"]
NAMES = ["--set", "report.words.F=women", "--set", "report.words.M=men"]


@pytest.fixture
def table(run, tmp_path):
    """Runs a command in a folder with a table and its network."""
    hospital.table(tmp_path)
    return run


def test_words_for_groups_are_in_the_report_of_a_repair_and_of_an_audit(table, tmp_path):
    assert table(*DEBIAS, *NAMES).code == 0
    page = (tmp_path / "repaired" / "report.html").read_text()
    assert "women" in page
    assert ">F<" not in page
    assert table("audit", "local.csv", *NETWORK, *NAMES, "--report", "audit.html").code == 0
    audit = (tmp_path / "audit.html").read_text()
    assert "women" in audit
    assert ">F<" not in audit
    found = json.loads((tmp_path / "repaired" / "audit.json").read_text())
    assert "women" not in json.dumps(found)  # the data's own names


@pytest.mark.parametrize(("given", "facts"), [("W=women", ("W", "F", "M")), ("women", ("women", "SECTION.KEY=VALUE"))])
def test_an_unknown_group_is_reported_before_any_work(table, tmp_path, given: str, facts: tuple[str, ...]):
    for command in (DEBIAS, ["audit", "local.csv", *NETWORK]):
        code, _, err = table(*command, "--set", f"report.words.{given}")
        assert code == 2
        assert says(err, *facts)
    assert not (tmp_path / "repaired").exists()


def test_an_audit_with_a_training_set_reports_a_better_simple_model(table, tmp_path):
    save_file(hospital.network("build").state_dict(), tmp_path / "untrained.safetensors")
    pd.read_csv("local.csv").assign(pid=lambda frame: frame["pid"] + 1000).to_csv("train.csv", index=False)  # other patients
    untrained = ["audit", "local.csv", *ROLES, "--weights", "untrained.safetensors", "--set", "data.train=train.csv"]
    code, out, _ = table(*untrained, "--json")
    found = json.loads(out)["baseline"]
    assert (code, found["beats_original"], found["fitted_on"], found["fitted_rows"]) == (0, True, "training set", hospital.ROWS)
    assert "logistic regression" in table(*untrained).out
    assert table(*untrained, "--report", "audit.html").code == 0
    assert 'id="baseline"' in (tmp_path / "audit.html").read_text()
    quiet = table("audit", "local.csv", *NETWORK, "--set", "data.train=train.csv")
    assert quiet.code == 0
    assert "logistic regression" not in quiet.out
    code, _, err = table("audit", "local.csv", "--label", "sick", "--score", "a", "--group", "sex", "--set", "data.train=train.csv")
    assert code == 2
    assert says(err, "data.train", "--model")
