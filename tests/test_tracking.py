"""Audits in experiment trackers: the numbers are those of the audit, names are safe, and the trackers hold what was logged."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

import equipoise as eq
from equipoise import tracking
from equipoise.errors import BadInput, MissingExtra
from equipoise.measures import Audit
from equipoise.tracking import log_to_mlflow, log_to_wandb, numbers_of
from support.audits import HOSTILE, audit_of, frame_of, joined
from support.facts import facts


@pytest.fixture(scope="module")
def audit() -> Audit:
    return audit_of(frame_of(["M", "F"]), reference="M")[1]


def test_the_numbers_are_those_of_the_audit(audit: Audit) -> None:
    found = numbers_of(audit)
    assert found["eod"] == audit["eod"].value
    assert (found["eod_low"], found["eod_high"]) == (audit["eod"].low, audit["eod"].high)
    assert found["group/F/tpr"] == audit.groups.loc["F", "tpr"]
    assert found["findings"] == audit.findings
    assert all(isinstance(value, float) and np.isfinite(value) for value in found.values())


def test_hostile_names_are_safe_and_stay_distinct() -> None:
    found = numbers_of(audit_of(frame_of([*HOSTILE, "a/b", "a:b"]))[1])
    rates = [name for name in found if name.endswith("/tpr") or "/tpr " in name]
    assert len(rates) == len(HOSTILE) + 2
    allowed = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 _.-/")
    assert all(set(name) <= allowed and len(name) <= 250 for name in found)


def test_labels_and_attributes_are_in_the_names() -> None:
    frame = frame_of(["M", "F"]).assign(q=lambda rows: 1 - rows["p"], z=lambda rows: 1 - rows["y"], age=lambda rows: rows.index % 2)
    options = {"group": ["sex", "age"], "reference": ["M", "0"]}
    both = {
        name: eq.audit(eq.Scores.from_frame(frame, label=label, score=score, name=name, **options), threshold=0.5)
        for name, label, score in (("a", "y", "p"), ("b", "z", "q"))
    }
    one = numbers_of(both["a"])
    assert one["group/sex/F/tpr"] == pytest.approx(both["a"].groups.query("attribute == 'sex'").loc["F", "tpr"])
    all_labels = numbers_of(joined(**both))
    assert all_labels["a/eod"] == both["a"]["eod"].value
    assert all_labels["b/eod"] == both["b"]["eod"].value


@pytest.mark.parametrize(("log", "package"), [(log_to_mlflow, "mlflow"), (log_to_wandb, "wandb")])
def test_a_tracker_that_is_not_installed_is_named(log, package: str, audit: Audit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra, match=facts(f"pip install 'equipoise[{package}]'")):
        log(audit)


@pytest.mark.filterwarnings("default")  # of the tracker's own libraries
def test_mlflow_holds_the_metrics_and_the_files(audit: Audit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "BATCH", 30)
    mlflow = pytest.importorskip("mlflow", reason="logging to MLflow: pip install 'equipoise[mlflow]'")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    try:
        with mlflow.start_run():
            run = log_to_mlflow(audit, prefix="test/")
        client = mlflow.MlflowClient()
        data = client.get_run(run).data
        assert data.metrics == {f"test/{name}": pytest.approx(value) for name, value in numbers_of(audit).items()}
        assert {entry.path for entry in client.list_artifacts(run, "equipoise")} == {"equipoise/audit.json", "equipoise/audit.html"}
        local = mlflow.artifacts.download_artifacts(run_id=run, artifact_path="equipoise/audit.json")
        assert json.loads(Path(local).read_text())["eod"]["value"] == audit["eod"].value
    finally:
        mlflow.set_tracking_uri(before)


@pytest.mark.filterwarnings("default")
def test_wandb_holds_the_metrics_and_the_files(audit: Audit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb", reason="logging to Weights & Biases: pip install 'equipoise[wandb]'")
    monkeypatch.setenv("WANDB_SILENT", "true")
    with pytest.raises(BadInput, match=facts("wandb.init")):
        log_to_wandb(audit)
    with wandb.init(mode="offline", project="audits", dir=str(tmp_path)) as run:
        assert log_to_wandb(audit) == run.id
        assert run.summary["eod"] == audit["eod"].value
    assert list(tmp_path.rglob("run-*.wandb"))
