"""A task gives the same results as the public functions, and depends only on its arguments."""

import json
import pickle
from itertools import count
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import equipoise as eq
from equipoise.errors import BadInput
from equipoise.measures import upper_bound
from equipoise.methods import run_method
from equipoise.models import Training, predict, train
from equipoise.studies import StudyPlan, make_plan, networks, results
from equipoise.studies.plan import StudyTask, Task, task_cost, tasks_of
from equipoise.studies.worker import attempt_task, one_thread, perform
from support.facts import facts, says

STUDIES = count()


def done(plan: StudyPlan, task: Task, cohort: eq.Cohort | None) -> tuple[bytes, pd.DataFrame]:
    """The networks and the rows of a method task, without cached splits."""
    sent, fingerprint = None if cohort is None else pickle.dumps(cohort), f"study {next(STUDIES)}"
    trained = perform(StudyTask(plan, fingerprint, "0", task.training), sent)
    method = StudyTask(plan, fingerprint, "0", task, trained=lambda: trained)
    return trained, results.rows_from_bytes(perform(method, sent), "rows")


def test_tasks_train_each_network_before_its_methods(tiny) -> None:
    tasks = tasks_of(tiny())
    assert len({task.key for task in tasks}) == len(tasks) == 2 * 3 * (1 + 3 * 2)
    assert [t.seed for t in tasks if not t.method and t.data == "loh"] == [0, 1, 2]
    assert all(tasks.index(task.training) <= tasks.index(task) for task in tasks)
    assert task_cost(tiny(), tasks[0]) > task_cost(tiny(), next(t for t in tasks if t.method == "standard"))


@pytest.mark.parametrize("method", ["standard", "bias-gda", "equalised-odds"])
def test_rows_are_what_the_public_functions_give(tiny, method: str) -> None:
    plan = tiny()
    cohort = eq.load("loh", n=400, alpha=2.0)
    settings = {"schedule": "paper", "epochs": 2} if method == "bias-gda" else {}
    for seed in (0, 1):
        (row,) = done(plan, Task("loh", seed, method, "eod"), cohort)[1].to_dict("records")
        part = eq.split(cohort, seed=seed)
        with one_thread():
            model = train(part.train, part.valid, seed=seed, settings=Training(epochs=2))
            candidate = run_method(method, model, part.valid, {"": eq.Goal("eod", selection="paper")}, seed=seed, settings=settings)
        test, valid = (eq.audit(candidate, p) for p in (part.test, part.valid))
        assert row["gap"] == pytest.approx(test["eod"].value, abs=1e-12)
        assert row["test_aod"] == pytest.approx(test["aod"].value, abs=1e-12)
        assert row["performance"] == pytest.approx(test["balanced_accuracy"].value, abs=1e-12)
        assert row["test_accuracy"] == pytest.approx(test["accuracy"].value, abs=1e-12)
        assert row["valid_gap"] == pytest.approx(valid["eod"].value, abs=1e-12)
        assert (row["met"], row["steps"]) == (candidate.met_in_sample, len(candidate.trace))
        assert [note["kind"] for note in json.loads(row["why"])] == [note.kind for note in candidate.why]
        assert row["min_performance"] == pytest.approx(candidate.goal.min_performance)
        np.testing.assert_array_equal(row["trace_gap"], candidate.trace["gap"])
        scores = predict(model, part.test)  # of the original network, whatever the method did
        codes, levels = scores.attribute.codes, scores.attribute.levels
        [best] = upper_bound(scores.score, scores.y, codes, levels, "eod", "balanced_accuracy", [abs(row["gap"])])
        assert row["limit"] == pytest.approx(best, abs=1e-12)
        if method != "bias-gda":
            assert row["performance"] <= row["limit"] + 1e-12


def test_an_arm_may_have_its_own_training_recipe(tiny) -> None:
    """Arms that name a recipe share its networks; the rows of the other arms do not change."""
    last = {"restore": "last", "epochs": 3}
    named = [{"method": m, "name": f"{m}-last", "training": "last"} for m in ("standard", "equalised-odds")]
    plan = tiny(methods=["standard", *named], trainings={"last": last})
    tasks = [task for task in tasks_of(plan) if task.data == "loh" and task.seed == 1]
    assert [t.key for t in tasks if not t.method] == ["loh@0001", "loh@0001@last"]
    assert {t.training.key for t in tasks if t.method.endswith("-last")} == {"loh@0001@last"}
    cohort = eq.load("loh", n=400, alpha=2.0)
    own, other = (next(t for t in tasks if t.method == m and t.measure == "spd") for m in ("standard", "standard-last"))
    (first, rows_of_own), (second, rows_of_other) = (done(plan, task, cohort) for task in (own, other))
    _, plainly = done(tiny(), Task("loh", 1, "standard", "spd"), cohort)
    assert rows_of_own["gap"].tolist() == plainly["gap"].tolist()
    parts = eq.split(cohort, seed=1)
    with one_thread():
        model = train(parts.train, parts.valid, seed=1, settings=Training(**last))
    state, _ = networks.from_bytes(second, "networks")
    assert networks.from_bytes(first, "networks")[1]["sha256"] != networks.from_bytes(second, "networks")[1]["sha256"]
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert json.loads(rows_of_other["settings"].iloc[0])["training"] == last
    assert "training" not in json.loads(rows_of_own["settings"].iloc[0])


def test_a_simulation_is_drawn_with_the_seed_of_the_split(tiny) -> None:
    _, drawn = done(tiny(), Task("drawn", 1, "standard", "spd"), None)
    _, fixed = done(tiny(), Task("loh", 1, "standard", "spd"), eq.load("loh", n=300, seed=1))
    assert drawn["valid_gap"].iloc[0] == pytest.approx(fixed["valid_gap"].iloc[0])


def test_f1_as_the_performance(tiny) -> None:
    cohort = eq.load("loh", n=400, alpha=2.0)
    plan = tiny(performance="f1")
    trained, found = done(plan, Task("loh", 1, "standard", "spd"), cohort)
    state, about = networks.from_bytes(trained, "networks")
    parts = eq.split(cohort, seed=1)
    part, network = parts.test, eq.train(parts.train, parts.valid, settings=Training(epochs=0))
    network.load_state_dict(state)
    assert about["task"] == "loh@0001"
    assert found["limit"].isna().all()  # F1 has none
    assert found["performance"].iloc[0] == pytest.approx(eq.audit(network, part, threshold=found["threshold"].iloc[0])["f1"].value)


def test_a_file_with_patients_and_a_network_of_the_users_own(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    patient = rng.integers(0, 150, 400)  # splits of unequal size
    frame = pd.DataFrame({"patient": patient, "a": rng.normal(size=400), "b": rng.normal(size=400), "sex": np.where(patient % 2, "F", "M")})
    frame.assign(sick=(frame["a"] + rng.normal(size=400) > 0).astype(int)).to_csv(tmp_path / "d.csv", index=False)
    (tmp_path / "net.py").write_text("from torch import nn\ndef make(): return nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 1))")
    data = {"file": str(tmp_path / "d.csv"), "name": "d", "label": "sick", "group": "sex", "reference": "M", "patient": "patient"}
    for model in ("mlp", f"{tmp_path / 'net.py'}:make"):
        plan = make_plan({"name": "own", "data": [data], "methods": ["standard"], "model": model, "training": {"epochs": 2}})
        cohort = plan.data[0].load()
        before = torch.random.get_rng_state()
        first, found = done(plan, Task("d", 1, "standard", "spd"), cohort)
        assert torch.equal(before, torch.random.get_rng_state())
        second, again = done(plan, Task("d", 1, "standard", "spd"), cohort)
        assert networks.from_bytes(first, "")[1]["sha256"] == networks.from_bytes(second, "")[1]["sha256"]
        pd.testing.assert_frame_equal(
            found.drop(columns=[*results.TIMINGS, "fingerprint"]), again.drop(columns=[*results.TIMINGS, "fingerprint"])
        )
        assert found["gap"].notna().all()


def test_a_problem_is_an_outcome(tiny) -> None:
    one_group = eq.load("loh", n=100).take(np.arange(20))
    outcome = attempt_task(StudyTask(tiny(), "x", "0", Task("loh", 0)), pickle.dumps(one_group.take(one_group.y == 1)))
    assert outcome.content is None
    assert says(outcome.problem, "label")
    assert not outcome.details
    outcome = attempt_task(StudyTask(tiny(), "x", "0", Task("nowhere", 0)), None)
    assert "StopIteration" in outcome.problem
    assert "Traceback" in outcome.details


def test_one_thread_restores_the_number_of_threads() -> None:
    before = torch.get_num_threads()
    with one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before


def test_damaged_networks_are_refused() -> None:
    content = networks.to_bytes(torch.nn.Linear(2, 1), {"fingerprint": "x"})
    assert set(networks.from_bytes(content, "w")[0]) == {"weight", "bias"}
    flipped = content[:-1] + bytes([content[-1] ^ 1])
    for damaged in (flipped, content[:-1], b"", b"nothing"):
        with pytest.raises(BadInput, match=facts("w", "damaged")):
            networks.from_bytes(damaged, "w")
