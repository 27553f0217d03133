"""Comparisons of models in Python: the same rows for all, one audit for every output, a bundle that decides like the candidate."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise import cli
from equipoise.errors import Misuse, Untrusted
from support.facts import facts, says
from support.published import debias

ROWS = 400


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    sex = rng.choice(["F", "M"], ROWS)
    y = (rng.random(ROWS) < 0.4).astype(int)
    a = rng.normal(1.3 * y + 0.6 * (sex == "M"), 1.0)
    return pd.DataFrame(
        {"a": a, "ward": rng.choice(["x", "y", "z"], ROWS), "sex": sex, "sick": y, "pid": [f"{k // 2:04d}" for k in range(ROWS)]}
    )


@pytest.fixture(scope="module")
def parts(frame):
    return eq.split(eq.Cohort.from_frame(frame, label="sick", group="sex", reference="M", patient="pid"), seed=0)


@pytest.fixture(scope="module")
def model(parts):
    return eq.train(parts.train, parts.valid, settings=eq.Training(epochs=3), seed=0)


@pytest.fixture(scope="module")
def result(parts, model):
    return debias(model, parts.valid, method="group-thresholds", measure="eod", max_loss=0.1)


@pytest.fixture(scope="module")
def both(parts, model, result):
    return eq.compare({"original": model, "repaired": result}, parts.test, label="sick")


def test_each_entry_is_audited_as_eq_audit_does(parts, model, result, both):
    before, after = eq.audit(model, parts.test), eq.audit(result, parts.test)
    assert both.found.before["eod"].to_dict() == before["eod"].to_dict()
    assert both.found.after["eod"].to_dict() == after["eod"].to_dict()
    assert (both.original.name, both.result.name, both.result.candidate) == ("original", "repaired", result.only)
    change = after["eod"].value - before["eod"].value
    assert both.found.gap_change.value == pytest.approx(change)


def test_the_report_has_the_same_numbers_with_and_without_the_repair_set(parts, model, result, both, tmp_path):
    path = both.report(tmp_path / "report.html")
    text = path.read_text(encoding="utf-8")
    assert f"{100 * abs(both.found.gap_after.value):.1f}" in text
    assert "Repair set</th>" not in text
    full = eq.compare({"original": model, "repaired": result}, parts.test, valid=parts.valid)
    assert "Repair set</th>" in full.report(tmp_path / "full.html").read_text(encoding="utf-8")
    assert full.found.gap_after.to_dict() == both.found.gap_after.to_dict()  # the rule of the result does not depend on it


def test_an_audit_has_a_report(parts, model, tmp_path):
    found = eq.audit(model, parts.test)
    text = found.report(tmp_path / "audit.html").read_text(encoding="utf-8")
    gap = found["eod"]
    assert says(text, f"{100 * abs(gap.value):.1f}")
    assert 'id="move-at"' in text


def test_the_choice_among_results_is_by_the_repair_set(parts, model, result):
    worse = replace(result, labels={"": replace(result.only, trace=result.trace.assign(gap=0.9))})
    found = eq.compare({"original": model, "worse": worse, "better": result}, parts.test)
    assert found.result.name == "better"


def test_a_saved_comparison_decides_as_the_candidate_does(parts, result, both, frame, tmp_path):
    folder = both.save(tmp_path / "repaired", onnx=False)
    bundle = eq.Bundle.load(folder)
    test = parts.test
    found = bundle.decide(test)
    assert found["id"].tolist() == test.ids.tolist()
    assert (found["decision"] == both.result.decisions()).all()
    assert np.allclose(found["score"], both.result.test.score)
    raw = frame.iloc[test.ids.astype(int)].drop(columns="sick")
    again = bundle.decide(raw)
    assert (again["decision"].to_numpy() == found["decision"].to_numpy()).all()
    document = json.loads((folder / "audit.json").read_text(encoding="utf-8"))
    assert document["after"]["eod"]["value"] == both.found.after["eod"].value
    with pytest.raises(Misuse, match=facts("Scores", "frame", "Cohort")):
        bundle.decide(both.result.test)  # a network scores rows itself
    (folder / "rule.json").write_text("{}")
    with pytest.raises(eq.BadInput, match=r"rule\.json"):
        eq.Bundle.load(folder)


def test_the_command_line_serves_a_bundle_that_was_saved_in_python(parts, both, frame, tmp_path, capsys):
    folder = both.save(tmp_path / "repaired", onnx=False)
    raw = frame.iloc[parts.test.ids.astype(int)].drop(columns="sick")
    raw.to_csv(tmp_path / "new.csv", index=False)
    assert cli.run(["apply", str(folder), str(tmp_path / "new.csv"), "--out", str(tmp_path / "decisions.csv")]) == 0
    decided = pd.read_csv(tmp_path / "decisions.csv")
    assert (decided["decision"].to_numpy() == both.result.decisions()).all()
    readme = (folder / "README.txt").read_text(encoding="utf-8")
    assert "--trust" not in readme


def test_a_custom_network_is_given_to_load(parts, tmp_path):
    torch.manual_seed(0)
    width = parts.test.inputs.shape[1]

    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(width, 4), nn.ReLU(), nn.Linear(4, 1))

    network = build().eval()
    result = debias(network, parts.valid, method="reject-option")
    both = eq.compare({"original": network, "repaired": result}, parts.test)
    folder = both.save(tmp_path / "repaired", onnx=False)
    with pytest.raises(eq.BadInput, match="model="):
        eq.Bundle.load(folder)
    bundle = eq.Bundle.load(folder, model=build())
    assert np.allclose(bundle.decide(parts.test)["score"], both.result.test.score)


def test_a_bundle_runs_no_code_without_a_request(parts, tmp_path):
    width = parts.test.inputs.shape[1]
    code = tmp_path / "net.py"
    lines = ["from pathlib import Path", "from torch import nn", f"Path({str(tmp_path / 'ran')!r}).touch()"]
    code.write_text("\n".join([*lines, "def build():", f"    return nn.Linear({width}, 1)"]))
    network = nn.Linear(width, 1).eval()
    result = debias(network, parts.valid, method="group-thresholds")
    both = eq.compare({"original": network, "repaired": result}, parts.test)
    folder = both.save(tmp_path / "repaired", model=f"{code}:build", onnx=False)
    with pytest.raises(Untrusted):
        eq.Bundle.load(folder)
    assert not (tmp_path / "ran").exists()
    assert np.allclose(eq.Bundle.load(folder, trust=True).decide(parts.test)["score"], both.result.test.score)
    assert (tmp_path / "ran").exists()


def _scores(seed: int, **ids: object) -> eq.Scores:
    rng = np.random.default_rng(seed)
    sex, y = rng.choice(["F", "M"], ROWS), rng.integers(0, 2, ROWS)
    frame = pd.DataFrame({"y": y, "p": np.round(0.3 * y + 0.7 * rng.random(ROWS), 2), "sex": sex, **ids})
    return eq.Scores.from_frame(frame, label="y", score="p", group="sex", reference="M", **{name: name for name in ids})


TEXT = np.array([f"x{k}" for k in range(ROWS)])


@pytest.mark.parametrize(
    ("ids", "unit", "count"),
    [
        ({}, "rows", 280),
        ({"id": TEXT}, "rows", 280),
        ({"patient": TEXT}, "patients", 280),
        ({"patient": np.arange(ROWS) // 2}, "patients", 140),
    ],
    ids=["numbered", "ids", "patients", "two rows per patient"],
)
def test_rows_that_a_candidate_was_fitted_to_are_no_test_set(ids, unit: str, count: int):
    scores = _scores(0, **ids)
    repair, test = scores.hold_out(0.3, seed=0)
    result = eq.debias(repair, method="group-thresholds", threshold=0.5)
    for overlapping in (repair, scores):
        with pytest.raises(eq.BadInput, match=facts(count, unit, "repaired")):
            eq.compare({"original": 0.5, "repaired": result}, overlapping)
    assert eq.compare({"original": 0.5, "repaired": result}, test).judgement.source == "held-out"


def test_rows_that_only_have_the_same_numbers_are_held_out(parts, model):
    result = eq.debias(_scores(0), method="group-thresholds", threshold=0.5)
    assert eq.compare({"original": 0.5, "repaired": result}, _scores(1)).original.test.name == "scores"
    with pytest.raises(eq.BadInput, match=facts(ROWS, "rows")):
        eq.compare({"original": 0.5, "repaired": result}, _scores(0))  # read again


@pytest.mark.parametrize("as_tensor", [False, True])
def test_a_network_is_not_judged_on_its_repair_set_either(parts, model, as_tensor: bool):
    repair, test = (replace(part, patients=None) for part in (parts.valid, parts.test))
    if as_tensor:
        repair, test = (replace(part, source=part.inputs) for part in (repair, test))
    result = debias(model, repair, method="group-thresholds", max_loss=0.1)
    with pytest.raises(eq.BadInput, match=facts(len(repair), "rows")):
        eq.compare({"original": model, "repaired": result}, repair)
    assert eq.compare({"original": model, "repaired": result}, test).outcome is not None


@pytest.mark.parametrize("with_repair_set", [False, True])
def test_thresholds_alone_have_a_report(with_repair_set: bool, tmp_path):
    repair, test = _scores(0).hold_out(0.5)
    valid = repair if with_repair_set else None
    both = eq.compare({"original": 0.5, "repaired": 0.4}, test, valid=valid, measure="eod")
    text = both.report(tmp_path / "report.html").read_text(encoding="utf-8")
    assert f"{100 * abs(both.found.gap_after.value):.1f}" in text
    assert (both.goal.min_performance is None) is not with_repair_set


def test_several_candidates_need_a_repair_set_to_choose_by(parts):
    repair, test = _scores(0).hold_out(0.5)
    thresholds = {"original": 0.5, "lower": 0.4, "higher": 0.6}
    with pytest.raises(eq.BadInput, match="valid="):
        eq.compare(thresholds, test)
    assert eq.compare(thresholds, test, valid=repair).chosen in (0, 1)
    result = eq.debias(repair, method="group-thresholds", threshold=0.5)
    assert eq.compare({"original": 0.5, "lower": 0.4, "repaired": result}, test).result.name == "repaired"


def test_misuse_raises_an_error_with_the_cause(parts, model):
    with pytest.raises(eq.BadInput, match=facts("original")):
        eq.compare({"original": model}, parts.test)
    with pytest.raises(eq.BadInput, match="str"):
        eq.compare({"original": model, "repaired": "net.pt"}, parts.test)


def test_a_repair_has_the_change_of_every_gap_too():
    repair, test = _scores(0).hold_out(0.5)
    both = eq.compare({"original": 0.5, "repaired": eq.debias(repair, method="group-thresholds", threshold=0.5)}, test)
    gaps, found = both.changes.gaps.set_index("measure").loc[both.goal.measure], both.found
    assert (gaps["first"], gaps["second"]) == pytest.approx((found.gap_before.value, found.gap_after.value))
    assert (gaps["value"], gaps["low"], gaps["high"]) == pytest.approx(
        (found.gap_change.value, found.gap_change.low, found.gap_change.high)
    )
    assert both.changes.affected["repaired"][0].counts == found.affected[0].counts


def test_scores_without_a_goal_have_no_outcome_and_options_are_those_of_what_is_compared():
    first, second = _scores(0, id=TEXT), _scores(1, id=TEXT)
    both = eq.compare({"a": first, "b": replace(second, y=first.y, attributes=first.attributes)})
    for ask in (lambda: both.outcome, lambda: both.options, lambda: both.save("folder")):
        with pytest.raises(eq.BadInput, match=r"changes|served"):
            ask()
    for options in ({"valid": first}, {"common_groups": True}, {"seed": 1}):
        with pytest.raises(eq.BadInput, match=facts("scores", *options)):
            eq.compare({"a": first, "b": second}, **options)
    with pytest.raises(eq.BadInput, match=facts("audits", "threshold")):
        eq.compare({"a": eq.audit(first, threshold=0.5), "b": eq.audit(second, threshold=0.5)}, threshold=0.5)
