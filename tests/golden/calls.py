"""The recorded Python calls: functions of a folder of inputs that return plain values."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from tests.golden.commands import SCORES
from tests.golden.inputs import CODE, FINDINGS

import equipoise as eq
from support.command import ran

Call = Callable[[Path], Any]
CALLS: dict[str, Call] = {}


def call(function: Call) -> Call:
    CALLS[f"py-{function.__name__.replace('_', '-')}"] = function
    return function


def _frame(folder: Path, name: str = "scores.csv") -> pd.DataFrame:
    return pd.read_csv(folder / name, dtype={"patient": str})


def _scores(folder: Path, name: str = "scores.csv", **more: Any) -> eq.Scores:
    given = {"label": "sick", "score": "p", "group": "sex", "reference": "M", "patient": "patient"} | more
    return eq.Scores.from_frame(_frame(folder, name), **given)


def _findings(folder: Path) -> dict[str, eq.Scores]:
    frame = _frame(folder)
    roles = {"group": "sex", "reference": "M", "patient": "patient"}
    return {name: eq.Scores.from_frame(frame[frame[name].notna()], label=name, score=f"score_{name}", **roles) for name in FINDINGS}


def _cohort(folder: Path, label: Any = "sick", **more: Any) -> eq.Cohort:
    columns = ["a", "b", "c", "sex", "patient", "id", *([label] if isinstance(label, str) else label)]
    frame = _frame(folder)[columns]
    given = {"label": label, "group": "sex", "reference": "M", "patient": "patient", "id": "id", "scale": False} | more
    return eq.Cohort.from_frame(frame, **given)


def _network(folder: Path, name: str = "table") -> Any:
    from safetensors.torch import load_file

    namespace: dict[str, Any] = {}
    exec(CODE, namespace)
    model = namespace[name]()
    model.load_state_dict(load_file(folder / f"{name}.safetensors"))
    return model.eval()


def _result(found: eq.Candidate, rows: Any) -> dict[str, Any]:
    trace = found.trace.select_dtypes("number")
    decided = found.rule.decide(rows) if rows is not None else None
    return {"outcome": str(found.outcome), "chosen": found.chosen, "trace": trace.to_dict("list"), "decisions": decided}


def _split(folder: Path) -> Any:
    return eq.split(_cohort(folder), seed=1)


@call
def audit_scores(folder: Path) -> Any:
    found = eq.audit(_scores(folder))
    return {"eod": [found["eod"].value, found["eod"].low, found["eod"].high], "groups": found.groups, "text": str(found)}


@call
def audit_threshold(folder: Path) -> Any:
    return eq.audit(_scores(folder), threshold=0.3).gaps


@call
def audit_weighted(folder: Path) -> Any:
    return eq.audit(_scores(folder, weight="weight")).gaps


@call
def audit_two_attributes(folder: Path) -> Any:
    return eq.audit(_scores(folder, group=["sex", "race"], reference=["M", "A"])).gaps


@call
def audit_bins(folder: Path) -> Any:
    return eq.audit(_scores(folder, group="age", reference=None, bins={"age": [40, 65]})).gaps


@call
def audit_labels(folder: Path) -> Any:
    found = eq.audit(_findings(folder))
    return {name: found[name].gaps for name in FINDINGS}


@call
def audit_network(folder: Path) -> Any:
    return eq.audit(_network(folder), _cohort(folder)).gaps


@call
def audit_findings(folder: Path) -> Any:
    found = eq.audit(_network(folder, "findings"), _cohort(folder, list(FINDINGS)))
    return {name: found[name].gaps for name in FINDINGS}


@call
def audit_estimator(folder: Path) -> Any:
    from sklearn.linear_model import LogisticRegression

    frame = _frame(folder)
    model = LogisticRegression(C=0.5, tol=1e-10).fit(frame[["a", "b", "c"]], frame["sick"])
    return eq.audit(eq.predictor(model), _cohort(folder)).gaps


@call
def audit_saved_and_read(folder: Path) -> Any:
    ran("audit", *SCORES, "--out", "audit.json")
    return eq.read_audit(folder / "audit.json").gaps


@call
def audit_report(folder: Path) -> Any:
    eq.audit(_scores(folder)).report(folder / "audit.html")
    return sorted(path.name for path in folder.glob("audit.html"))


@call
def scan(folder: Path) -> Any:
    return eq.audit(eq.scan(folder / "parts", label="sick", score="p", group="sex", reference="M", patient="patient")).gaps


@call
def history(folder: Path) -> Any:
    kept = eq.history(folder / "history.parquet")
    for k, name in enumerate(("scores.csv", "later1.csv", "later2.csv")):
        kept.append(eq.audit(_scores(folder, name)), f"2026-0{k + 1}")
    return kept.periods


@call
def split(folder: Path) -> Any:
    parts = _split(folder)
    return {name: [len(part), int(part.y.sum())] for name in ("train", "valid", "test") for part in [getattr(parts, name)]}


@call
def split_stratified_by_seed(folder: Path) -> Any:
    return [len(eq.split(_cohort(folder), seed=seed).test) for seed in range(5)]


@call
def debias_scores_auto(folder: Path) -> Any:
    return _result(eq.debias(_scores(folder), measure="eod"), _scores(folder, "later1.csv"))


@call
def debias_scores_spd(folder: Path) -> Any:
    return _result(eq.debias(_scores(folder), measure="spd", max_gap=0.05), _scores(folder, "later1.csv"))


@call
def debias_scores_keep(folder: Path) -> Any:
    return _result(eq.debias(_scores(folder), measure="eod", keep={"tpr": "before"}), _scores(folder, "later1.csv"))


@call
def debias_scores_three_groups(folder: Path) -> Any:
    rows = _scores(folder, group="race", reference="A")
    return _result(eq.debias(rows, method="group-thresholds", measure="eod"), rows)


@call
def debias_group_thresholds(folder: Path) -> Any:
    return _result(eq.debias(_scores(folder), method="group-thresholds", measure="eod", max_gap=0.02), _scores(folder, "later1.csv"))


@call
def debias_reject_option(folder: Path) -> Any:
    return _result(eq.debias(_scores(folder), method="reject-option", measure="spd"), _scores(folder, "later1.csv"))


@call
def debias_equalised_odds(folder: Path) -> Any:
    return _result(eq.debias(_scores(folder), method="equalised-odds", measure="aod"), None)


@call
def debias_labels(folder: Path) -> Any:
    found = eq.debias(_findings(folder), method="group-thresholds", measure="eod")
    return {"outcome": str(found.outcome)}


def _paper(folder: Path, method: str, measure: str = "eod", **settings: Any) -> Any:
    parts = _split(folder)
    goal = {"measure": measure, "min_performance": 0.4, "selection": "paper"}
    found = eq.debias(_network(folder), parts.valid, method=method, seed=3, **goal, **settings)
    return _result(found, None) | {"audit": eq.audit(found, parts.test).gaps}


@call
def bias_gda(folder: Path) -> Any:
    return _paper(folder, "bias-gda", schedule="paper", epochs=3)


@call
def bias_gda_spd(folder: Path) -> Any:
    return _paper(folder, "bias-gda", "spd", schedule="paper", epochs=3)


@call
def bias_gda_adaptive(folder: Path) -> Any:
    return _paper(folder, "bias-gda")


@call
def pruning(folder: Path) -> Any:
    return _paper(folder, "pruning")


@call
def pruning_spd(folder: Path) -> Any:
    return _paper(folder, "pruning", "spd")


@call
def random(folder: Path) -> Any:
    return _paper(folder, "random", trials=5)


@call
def constrained(folder: Path) -> Any:
    return _paper(folder, "constrained", epochs=2)


@call
def bias_score(folder: Path) -> Any:
    return _paper(folder, "bias-score")


@call
def adversarial_finetune(folder: Path) -> Any:
    return _paper(folder, "adversarial-finetune", epochs=1)


@call
def ppv_gap(folder: Path) -> Any:
    return _paper(folder, "bias-gda", "ppv_gap", schedule="paper", epochs=2)


@call
def honest(folder: Path) -> Any:
    parts = _split(folder)
    found = eq.debias(_network(folder), parts.valid, method="bias-gda", measure="eod", max_loss=0.05, seed=3, schedule="paper", epochs=3)
    return _result(found, None)


@call
def findings_network(folder: Path) -> Any:
    cohort = _cohort(folder, list(FINDINGS))
    parts = eq.split(cohort, seed=1)
    found = eq.debias(_network(folder, "findings"), parts.valid, method="bias-gda", measure="eod", schedule="paper", epochs=2, seed=0)
    return {"outcome": str(found.outcome), "chosen": found.chosen}


@call
def compare(folder: Path) -> Any:
    parts = _split(folder)
    found = eq.debias(_network(folder), parts.valid, method="bias-gda", measure="eod", seed=3, schedule="paper", epochs=3)
    both = eq.compare({"original": _network(folder), "repaired": found}, parts.test, valid=parts.valid)
    both.save(folder / "repaired")
    decided = eq.Bundle.load(folder / "repaired", model=_network(folder)).decide(parts.test)
    return {"text": str(both), "decisions": np.asarray(decided["decision"] if isinstance(decided, pd.DataFrame) else decided)}


@call
def compare_scores(folder: Path) -> Any:
    found = eq.debias(_scores(folder), method="group-thresholds", measure="eod")
    both = eq.compare({"original": 0.5, "repaired": found}, _scores(folder, "later1.csv"))
    both.report(folder / "report.html")
    return {"text": str(both)}


@call
def train(folder: Path) -> Any:
    parts = _split(folder)
    model = eq.train(parts.train, parts.valid, seed=0, settings=eq.Training(epochs=3))
    return eq.audit(model, parts.test).gaps


@call
def load_simulated(folder: Path) -> Any:
    cohort = eq.load("loh", n=200, alpha=2.0, seed=0)
    return [len(cohort), int(cohort.y.sum()), np.asarray(cohort.inputs[:3])]


@call
def fair_classifier(folder: Path) -> Any:
    from sklearn.linear_model import LogisticRegression

    from equipoise.sklearn import FairClassifier

    frame = _frame(folder)
    model = FairClassifier(LogisticRegression(C=0.5, tol=1e-10), measure="eod", reference="M", random_state=0)
    model.fit(frame[["a", "b", "c"]], frame["sick"], sensitive_features=frame["sex"])
    return model.predict(frame[["a", "b", "c"]], sensitive_features=frame["sex"])


@call
def check_scores(folder: Path) -> Any:
    frame = _frame(folder)
    try:
        eq.check_scores(_network(folder), _cohort(folder), frame[["id", "p"]], score="p", id="id")
    except eq.EquipoiseError as error:
        return str(error)
