"""What every method does with rows that cannot bear its goal: small and empty cells, missing groups, demands that exclude each other."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from equipoise import Cohort, cli
from equipoise.data import MISSING, Parts
from equipoise.errors import BadInput, EmptyCell, TooFewPatients
from equipoise.methods import METHODS, Candidate, check_cells, make_settings
from equipoise.models import predict
from support import hospital
from support.facts import facts, says
from support.goals import paper_goal
from support.networks import biased_cohort, trained
from support.notes import note_of
from support.published import any_debias, debias

QUICK = {
    "layer-wise": {"calls": 3, "first": 2, "elements": 50, "layers": 2},
    "bias-gda": {"epochs": 4, "learning_rate": 1e-3, "batch": 64},
    "constrained": {"epochs": 3},
    "bias-score": {"steps": 6},
    "pruning": {"steps": 6},
    "random": {"trials": 5},
    "adversarial-finetune": {"epochs": 2, "critic_steps": 3, "actor_steps": 3},
    "adversarial-training": {"epochs": 2},
}
QUICK["auto"] = {"settings": {name: QUICK[name] for name in ("bias-gda", "constrained", "bias-score", "pruning")}}


@pytest.fixture(scope="module")
def problem() -> tuple[nn.Module, Parts]:
    return trained("mlp")


def _grouped(part: Cohort, groups: np.ndarray, reference: str = "M") -> Cohort:
    return Cohort.from_arrays(part.inputs, part.y, groups, reference=reference, attribute="sex", name=part.name)


def _split_off(part: Cohort, **sizes: tuple[int, int]) -> Cohort:
    """The part with some women in groups of their own, each with so many negatives and positives."""
    groups = part.groups.astype(object)
    for name, counts in sizes.items():
        for label, count in enumerate(counts):
            groups[np.flatnonzero((groups == "F") & (part.y == label))[:count]] = name
    return _grouped(part, groups)


def _run(method: str, model: nn.Module, cohort: Cohort, train: Cohort, measure: str = "eod", **goal: object) -> Candidate:
    extra = {"train": train} if METHODS[method].needs_train else {}
    goal = goal or {"min_performance": 0.5}
    return debias(model, cohort, method=method, measure=measure, seed=3, force=True, **goal, **extra, **QUICK.get(method, {}))


def _by_hand(candidate: Candidate, cohort: Cohort) -> tuple[float, float]:
    """EOD of the rows with a group and balanced accuracy of all, by counting."""
    f, y, group = candidate.rule.decide(predict(candidate.model, cohort)), cohort.y, cohort.groups
    gap = f[(group == "F") & (y == 1)].mean() - f[(group == "M") & (y == 1)].mean()
    return float(gap), float((f[y == 1].mean() + 1 - f[y == 0].mean()) / 2)


# rows without a group


@pytest.fixture(scope="module")
def some_missing(problem) -> tuple[Cohort, Cohort]:
    """Validation and train part with one row in twenty without a group."""
    rng, found = np.random.default_rng(0), []
    for part in (problem[1].valid, problem[1].train):
        groups = part.groups.astype(object)
        groups[rng.choice(len(groups), len(groups) // 20, replace=False)] = None
        found.append(_grouped(part, groups))
    return found[0], found[1]


@pytest.mark.parametrize("method", METHODS)
def test_rows_without_a_group_count_for_performance_alone_and_that_is_said_once(method: str, problem, some_missing):
    cohort, train = some_missing
    result = _run(method, problem[0], cohort, train)
    row = result.trace.iloc[result.chosen]
    assert (row["gap"], row["performance"]) == pytest.approx(_by_hand(result, cohort), abs=1e-9)
    missing = int(sum(group is None for group in cohort.groups))
    [note] = [note for note in result.notes if note.kind == "missing_group"]
    assert (note.subject, note.numbers["missing"], note.numbers["rows"]) == ("sex", missing, len(cohort))
    assert (note.numbers["counts_for"], note.numbers["not_for"]) == ("balanced_accuracy", "eod")
    assert bool(note.numbers["decided_by"]) == METHODS[result.ran if method == "auto" else method].needs_group


@pytest.mark.parametrize("method", METHODS)
def test_with_every_group_known_and_large_nothing_is_said_of_the_rows(method: str, problem):
    model, parts = problem
    kinds = {note.kind for note in _run(method, model, parts.valid, parts.train).notes}
    assert not kinds & {"missing_group", "small_cells"}


@pytest.mark.parametrize("method", [name for name, method in METHODS.items() if method.needs_group])
def test_a_rule_by_group_decides_a_row_without_one_as_its_note_says(method: str, problem, some_missing):
    cohort, train = some_missing
    result = _run(method, problem[0], cohort, train)
    scores, levels = predict(result.model, cohort), cohort.attribute.levels

    def decided(code: int) -> np.ndarray:
        everyone = replace(cohort.attribute, codes=np.full(len(cohort), code))
        return result.rule.decide(replace(scores, attributes=(everyone,)))

    counts = np.array([(cohort.groups == level).sum() for level in levels])
    expected = {
        "reject-option": scores.score >= result.rule.threshold if method == "reject-option" else None,
        "group-thresholds": scores.score >= result.trace["threshold"].iloc[0],
        "level-up": scores.score >= result.trace["threshold"].iloc[0],
        "equalised-odds": counts @ np.stack([decided(code) for code in range(len(levels))]) / counts.sum(),
    }
    np.testing.assert_allclose(decided(MISSING), np.asarray(expected[method], float), atol=1e-12)


# groups that are too small


@pytest.mark.parametrize("method", METHODS)
def test_small_cells_are_named_with_their_standard_error_and_what_to_merge(method: str, problem):
    model, parts = problem
    cohort, train = (_split_off(part, X=(20, 3), Y=(12, 8)) for part in (parts.valid, parts.train))
    result = _run(method, model, cohort, train)
    [note] = [note for note in result.notes if note.kind == "small_cells"]
    assert says(note.numbers["advice"], "'X' (3 positives)", "'Y' (8 positives)", "'other'")
    cells = {cell["group"]: cell for cell in note.numbers["cells"]}
    assert set(cells) == {"X", "Y"}  # F is large enough
    f = result.rule.decide(predict(result.model, cohort))
    for group, count in (("X", 3), ("Y", 8)):
        assert (cells[group]["count"], cells[group]["of"]) == (count, "eod")
        shares = {g: f[(cohort.groups == g) & (cohort.y == 1)] for g in (group, "M")}
        variances = [_variance(share) for share in shares.values()]
        assert cells[group]["error"] == pytest.approx(sum(variances) ** 0.5, abs=0.02)
    of_spd = _run(method, model, cohort, train, measure="spd").notes  # enough rows, if few positives
    assert "X" not in {cell["group"] for note in of_spd for cell in note.numbers.get("cells", ())}


def _variance(f: np.ndarray) -> float:
    """Of the share decided positive: binomial, coins included, with one success and one failure added, as in the audit."""
    share = (f.sum() + 1) / (len(f) + 2)
    return share * (1 - share) / len(f)


@pytest.mark.parametrize("method", METHODS)
def test_a_group_with_one_label_is_an_error_for_eod_that_says_what_to_merge(method: str, problem):
    model, parts = problem
    cohort, train = (_split_off(part, X=(20, 0), Y=(12, 4)) for part in (parts.valid, parts.train))
    with pytest.raises(EmptyCell) as caught:
        _run(method, model, cohort, train)
    assert says(caught.value, "eod", "positives", "'X'", 20)
    assert str(caught.value).count("'X' (0 positives), 'Y' (4 positives) and 'F' (") == 1  # what to merge, once
    if method == "equalised-odds":  # whatever the measure: it equalises sensitivity
        with pytest.raises(EmptyCell, match=facts("X", 0, 20)):
            _run(method, model, cohort, train, measure="spd")
    else:
        assert np.isfinite(_run(method, model, cohort, train, measure="spd").trace["gap"]).all()


def test_honest_selection_gives_the_same_advice(problem):
    model, parts = problem
    with pytest.raises(EmptyCell, match=facts("cross-fitted", "X", 1, "F")):
        _run("bias-gda", model, _split_off(parts.valid, X=(20, 1)), parts.train, min_performance=0.5, selection="honest")


def test_too_few_patients_in_a_cell_stop_a_repair_unless_it_is_forced(problem):
    model, parts = problem
    few, enough = (_split_off(parts.valid, X=(20, positives)) for positives in (4, 5))
    with pytest.raises(TooFewPatients) as caught:
        debias(model, few, method="standard")
    assert says(caught.value, "eod", 5, "'X' positives: 4", "force=True", "spd")
    assert debias(model, few, method="standard", force=True).chosen == 0
    assert debias(model, enough, method="standard").chosen == 0
    assert debias(model, few, method="standard", measure="spd").chosen == 0  # needs no positives
    with pytest.raises(TooFewPatients, match="4 in the repair set, 5 in the test set"):
        check_cells({"the repair set": few, "the test set": enough}, {"": paper_goal()})


# demands that exclude each other


def _demands(method: str, problem, **goal: object) -> Candidate:
    model, parts = problem
    result = _run(method, model, parts.valid, parts.train, **goal)
    assert not result.met_in_sample
    return result


@pytest.mark.parametrize("selection", ["paper", "honest"])
@pytest.mark.parametrize("method", METHODS)
def test_a_floor_and_a_bound_out_of_reach_are_told_with_the_nearest_values(method: str, selection: str, problem):
    result = _demands(method, problem, min_performance=0.99, max_gap=0.0, selection=selection)
    near = note_of(result.why, "nearest").numbers
    assert (near["expected"], near["min_performance"], near["max_gap"]) == (selection == "honest", 0.99, 0.0)
    assert near["have"]["performance"] == 0
    trace = result.trace.dropna(subset=["gap_honest"]) if selection == "honest" else result.trace
    size, performance = trace["gap"].abs(), trace["performance"]
    if selection == "honest":
        size, performance = trace["expected_gap"], trace["performance_honest"]
    assert near["have"]["gap"] == (size <= 1e-9).sum()
    assert max(step["performance"] for step in near["nearest"]) == pytest.approx(performance.max())
    assert min(step["gap"] for step in near["nearest"]) == pytest.approx(size.min())


@pytest.mark.parametrize("method", METHODS)
def test_a_rate_to_keep_against_a_floor_is_told_with_the_nearest_values(method: str, problem):
    result = _demands(method, problem, min_performance=0.7, keep={"tpr": 0.99})
    row = result.trace.iloc[result.chosen]
    if "spare" in result.trace:
        near = note_of(result.why, "nearest").numbers
        assert near["have"]["performance"] >= 1
        assert near["keep"] == {"tpr": 0.99}
        keeping = [step["performance"] for step in near["nearest"] if step["rates"] >= -1e-9]
        assert near["apart"] == bool(keeping) == (method != "level-up")  # which raises no group above the best one's rate
        if any(note.kind == "constant" for note in result.notes):  # what keeps the rates decides the same for everybody, and is refused
            assert result.chosen == 0
            assert keeping == [pytest.approx(0.5)]
        elif keeping:
            assert pytest.approx(row["performance"]) in keeping
    else:
        low = {note.numbers["group"]: note for note in result.why if note.kind == "too_low" and note.subject == "tpr"}
        assert list(low) == ["M", "F"]
        assert all(note.numbers["value"] < note.numbers["least"] == 0.99 for note in low.values())


# as it is typed


@pytest.fixture
def typed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """`equipoise debias` on a table whose columns are replaced; exit code, output, errors."""
    monkeypatch.chdir(tmp_path)
    hospital.table(tmp_path)
    frame = pd.read_csv("local.csv")

    def call(*arguments: object, group: str = "sex", **columns: object) -> tuple[int, str, str]:
        frame.assign(**columns).to_csv("local.csv", index=False)
        given = [
            "debias",
            "local.csv",
            "--label",
            "sick",
            "--group",
            group,
            "--patient",
            "pid",
            "--set",
            "data.id=id",
            "--model",
            "net.py:build",
        ]
        given += [
            "--weights",
            "net.safetensors",
            "--out",
            "repaired",
            "--set",
            "report.onnx=false",
            "--set",
            "repair.draws=20",
            "--set",
            "goal.selection=paper",
            "--json",
        ]
        given += [text for name in "abc" for text in ("--set", f"data.features={name}")]
        capsys.readouterr()
        code = cli.run([str(a) for a in [*given, *arguments]])
        return code, *capsys.readouterr()

    return frame, call


def test_the_command_writes_the_remarks_of_every_method(typed):
    frame, call = typed
    sex = frame["sex"].where(frame["pid"] >= 6)
    methods = [name for name in METHODS if not METHODS[name].needs_train]
    quick = ["bias-gda.epochs=2", "constrained.epochs=2", "pruning.steps=2", "random.trials=3", "adversarial-finetune.epochs=1"]
    given = [text for name in methods for text in ("--method", name)] + [text for setting in quick for text in ("--set", setting)]
    code, out, _ = call("--set", "goal.min_performance=0.5", *given, sex=sex)
    found = json.loads(out)
    assert code == 0
    for name in methods:
        assert sum(note["kind"] == "missing_group" for note in found["methods"][name]["notes"]) == 1


def test_auto_that_meets_nothing_is_told_and_is_no_error(typed):
    _, call = typed
    code, out, _ = call("--method", "auto", "--set", "goal.min_performance=0.99", "--max-gap", 0)
    found = json.loads(out)["methods"]["auto"]
    assert code == 0
    assert found["met"] is False
    reached = next(note for note in found["why"] if note["kind"] == "best_of_methods")["reached"]
    assert list(reached) == ["standard", "level-up", "bias-score", "group-thresholds", "constrained", "bias-gda"]
    assert {own["measure"] for own in reached.values()} == {"eod"}


def test_what_is_no_group_is_one_clear_message_and_exit_code_2(typed):
    frame, call = typed
    rng, patients = np.random.default_rng(0), frame["pid"].nunique()
    pid = frame["pid"].to_numpy()
    days = pd.to_timedelta(rng.integers(0, 20_000, patients)[pid], "D")
    rare = rng.choice(["a", "b", *(f"c{k}" for k in range(40))], patients, p=[0.4, 0.3, *[0.3 / 40] * 40])[pid]
    columns = {
        "age": (rng.uniform(18, 90, patients)[pid], "different numbers.*--bins age="),
        "born": (pd.Timestamp("1940-01-01") + days, "different dates.*dt.year"),
        "origin": (rare, r"Those large enough to keep are 'a' \(\d+\), 'b' \(\d+\).* Merge the others"),
    }
    for name, (values, message) in columns.items():
        code, out, err = call("--method", "standard", group=name, **{name: values})
        assert (code, out) == (2, "")
        assert re.search(message, err), err
        assert "Traceback" not in err


def test_every_method_is_stopped_by_an_empty_cell(typed):
    frame, call = typed
    sick = frame.groupby("pid")["sick"].transform("max")
    race = np.where((sick == 0) & (frame["pid"] < 60), "x", "a")
    for method in [name for name in METHODS if not METHODS[name].needs_train]:
        code, _, err = call("--method", method, group="race", race=race)
        assert code == 2
        assert says(err, "eod", "positives", "'x'")


def test_arrays_of_numbers_are_refused_as_groups_as_columns_are(problem):
    valid = problem[1].valid
    with pytest.raises(BadInput, match=facts("group", 140, "--bins")):
        Cohort.from_arrays(valid.inputs, valid.y, torch.rand(len(valid)).numpy())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("budget", "2"),
        ("budget", 0),
        ("threshold", "0.3"),
        ("max_gap", [0.1]),
        ("seed", "a"),
        ("seed", 1.5),
        ("seed", None),
        ("measure", None),
        ("measure", ["eod", "spd"]),
        ("method", ["bias-score", "pruning"]),
        ("keep", ["tpr"]),
        ("keep", {"tpr": None}),
    ],
)
def test_arguments_of_the_wrong_type_are_an_error_that_names_them(name: str, value: object, problem):
    model, parts = problem
    scores = predict(model, parts.valid)
    for subject in ((scores,), (model, parts.valid)):
        with pytest.raises(
            BadInput, match=re.escape(value if isinstance(value, str) else "tpr" if name == "keep" else repr(value))
        ) as found:
            any_debias(*subject, **{name: value})
        assert says(str(found.value), "rate" if name == "keep" and isinstance(value, dict) else name)


def test_all_arguments_of_the_wrong_type_are_named_at_once(problem):
    wrong = {"budget": "2", "threshold": "0.3", "seed": "a", "measure": None, "method": ["pruning"], "performance": "accurate"}
    with pytest.raises(BadInput) as found:
        any_debias(predict(problem[0], problem[1].valid), **wrong)
    assert len(found.value.problems) == len(wrong)
    assert says(str(found.value), *wrong.keys() - {"performance"}, "'accurate'")


def test_arguments_the_wrong_way_round_are_told():
    cohort = biased_cohort(60)
    with pytest.raises(BadInput, match=facts("Cohort")):
        debias(cohort, nn.Linear(6, 1), method="standard")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("method", "setting"),
    [("bias-gda", {"epochs": -1}), ("bias-gda", {"learning_rate": float("nan")}), ("constrained", {"batch": 0}), ("random", {"trials": 0}),
     ("random", {"noise_sd": float("inf")}), ("adversarial-finetune", {"critic_steps": -3})],
)  # fmt: skip
def test_numbers_that_no_method_can_work_with(method, setting):
    [(name, value)] = setting.items()
    with pytest.raises(BadInput, match=facts(value, f"{method}.{name}")):
        make_settings(method, setting)
