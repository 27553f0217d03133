"""A seeded sample of the mutated inputs of `make fuzz`, and the harness itself: what is wrong must not pass for right."""

import json
import sys

import pytest
from fuzz.__main__ import main
from fuzz.case import Outcome
from fuzz.families import SHARES
from fuzz.families.images import judged
from fuzz.recount import compared, rows_of

from support.facts import says

SAMPLE = 150


def test_a_sample_of_mutated_inputs(tmp_path, monkeypatch, capsys):
    """No traceback, no wrong answer, no hang. A failure prints the command that repeats it."""
    command = ["fuzz", "--cases", str(SAMPLE), "--seed", "3", "--workers", "1"]  # so that every family has some that are accepted
    command += ["--failures", str(tmp_path / "failures"), "--summary", str(tmp_path / "summary.json")]
    monkeypatch.setattr(sys, "argv", command)
    code = main()
    assert code == 0, "".join(capsys.readouterr())
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["inputs"] == pytest.approx(SAMPLE, abs=5)
    assert summary["failures"] == {}
    assert set(summary["families"]) == set(SHARES)
    for family in summary["families"].values():
        assert family["exit_codes"].get("2", 0) > 0
        assert family["exit_codes"].get("0", 0) > 0
    assert summary["peak_mib"] < 2_600  # the libraries and what one input may take


TABLE = b"patient,sex,y,p\n1,F,1,0.9\n2,F,0,0.2\n3,M,1,0.4\n4,M,0,0.7\n"


def _audit(**changes: object) -> str:
    groups = [
        {"attribute": "sex", "group": "F", "n": 2, "positives": 1, "selection_rate": 0.5, "tpr": 1.0, "fpr": 0.0},
        {"attribute": "sex", "group": "M", "n": 2, "positives": 1, "selection_rate": 0.5, "tpr": 0.0, "fpr": 1.0},
    ]
    gaps = [{"measure": "eod", "group": "F", "reference": "M", "value": 1.0}]
    return json.dumps({"rows": 4, "patients": 4, "groups": groups, "gaps": gaps, **changes})


def test_the_recount_tells_right_from_wrong():
    rows = rows_of(TABLE)
    assert compared(_audit(), rows) == ""
    assert says(compared(_audit(rows=3), rows), "3 rows")
    assert says(compared(_audit(patients=3), rows), "3 patients")
    assert "eod" in compared(_audit(gaps=[{"measure": "eod", "group": "F", "reference": "M", "value": -1.0}]), rows)
    assert "'M'" in compared(_audit(), rows_of(TABLE.replace(b"3,M,1,0.4", b"3,M,1,0.6")))
    assert "groups" in compared(_audit(), rows_of(TABLE.replace(b"4,M", b"4,X")))
    for cell in (b"yes", b"2", b"nan", b"", b"0x1"):
        assert compared(_audit(), rows_of(TABLE.replace(b"3,M,1,", b"3,M," + cell + b","))) != ""


def test_an_image_of_another_patient_is_told():
    out = "patient,image,score,decision\n01000,a.png,0.25,0\n01000,b.png,0.75,1\n"
    names, own = ["a.png", "b.png"], {"a.png": 0.25, "b.png": 0.75}
    assert judged(Outcome(0, out, ""), names, own, False) == ""
    assert "a.png" in judged(Outcome(0, out, ""), names, {**own, "a.png": 0.75}, False)
    assert "b.png" in judged(Outcome(0, out, ""), names, {"a.png": 0.25}, False)
    assert "1000" in judged(Outcome(0, out.replace("01000,a", "1000,a"), ""), names, own, False)
    assert "1 decisions" in judged(Outcome(0, out.replace("01000,b.png,0.75,1\n", ""), ""), names, own, False)
    assert judged(Outcome(0, out.replace("01000,b.png,0.75,1\n", ""), ""), names, own, True) == ""
