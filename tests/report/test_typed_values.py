"""What reports state comes from values, whatever the names of columns and origins are, and survives a saved audit."""

import json

import numpy as np
import pandas as pd

import equipoise as eq
from support.command import ran

ODD = "chosen (by hand): see (the) notes"


def _frame(n: int = 240) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    y = np.tile([0, 1], n // 2)
    return pd.DataFrame({"y": y, "p": np.clip(rng.normal(0.3 + 0.3 * y, 0.15), 0, 1), "sex": np.repeat(["F", "M"], n // 2)})


def _scores(frame: pd.DataFrame, **options) -> eq.Scores:
    return eq.Scores.from_frame(frame, label="y", score="p", group="sex", reference="M", **options)


def test_the_origin_of_a_saved_threshold_is_kept_unchanged(tmp_path):
    """It is a field of the file, not a part of the sentence that describes the decision."""
    rule = eq.audit(_scores(_frame()), threshold=0.4).rule
    odd = type(rule)(0.4, ODD)
    audit = eq.audit(_scores(_frame()), rule=odd)
    saved = tmp_path / "audit.json"
    saved.write_text(json.dumps(audit.to_dict()))
    again = eq.read_audit(saved)
    assert json.loads(saved.read_text())["threshold_origin"] == ODD
    assert (again.rule, again.rule.describe()) == (odd, audit.rule.describe())


def test_a_threshold_chosen_on_a_table_with_any_name_is_not_taken_for_argmax(tmp_path):
    """Only classes are decided by argmax; their saved audit says so in a field."""
    valid = _scores(_frame(), name="argmax: the margin of this class over the next")
    audit = eq.audit(_scores(_frame()), valid=valid)
    plain = audit.to_dict()
    assert (plain["argmax"], plain["threshold"], plain["threshold_origin"]) == (False, audit.rule.value, audit.rule.origin)


def test_a_comparison_is_shown_under_its_own_name():
    frame = _frame()
    compared = eq.compare({"old": _scores(frame), "new": _scores(frame.assign(p=frame["p"] ** 2))})
    assert repr(compared).startswith(f"{type(compared).__name__}(")


def test_reasons_for_missing_rates_are_values_and_are_named_in_words(tmp_path):
    """A group without positives, and one whose scores are all equal."""
    frame = pd.concat([_frame(), pd.DataFrame({"y": [0] * 12 + [0, 1] * 20, "p": [0.2] * 52, "sex": ["X"] * 12 + ["Y"] * 40})])
    frame.to_csv(tmp_path / "scores.csv", index=False)
    audit = eq.audit(_scores(frame), threshold=0.5)
    lacking = audit.groups["lacking"]
    assert lacking["M"] == {}
    assert lacking["X"]["tpr"] == "few"
    assert lacking["Y"]["calibration_slope"] == "constant"
    saved = tmp_path / "audit.json"
    saved.write_text(json.dumps(audit.to_dict()))
    assert eq.read_audit(saved).groups["lacking"].to_list() == lacking.to_list()
    shown = ran("audit", tmp_path / "scores.csv", "--label", "y", "--score", "p", "--group", "sex", "--threshold", 0.5, "--verbose")
    text = " ".join(shown.out.split())
    assert "insufficient data: calibration slope (all scores are equal)" in text
    assert "sex X: insufficient data (fewer than 5 rows): sensitivity" in text


def test_which_argument_of_a_command_names_a_threshold_in_use(tmp_path):
    """The report of a repair says that the threshold is in use because the goal names it."""
    rng = np.random.default_rng(1)
    n = 600
    frame = pd.DataFrame({"y": rng.integers(0, 2, n), "sex": np.tile(["F", "M"], n // 2)})
    frame["p"] = np.clip(rng.normal(0.3 + 0.3 * frame["y"] - 0.1 * (frame["sex"] == "F"), 0.15), 0, 1)
    frame.to_csv(tmp_path / "scores.csv", index=False)
    roles = ["--label", "y", "--score", "p", "--group", "sex", "--reference", "M", "--method", "group-thresholds"]
    for options, expected in ((["--threshold", 0.4], "the threshold in use"), ([], "on the repair set")):
        folder = tmp_path / f"rule{len(options)}"
        shown = ran("debias", tmp_path / "scores.csv", *roles, *options, "--out", folder)
        sentence = " ".join(shown.out.split()).partition("The original decides by")[2].partition("0.")[2].partition(". ")[0]
        assert expected in sentence
