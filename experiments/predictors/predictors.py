"""Gradient-boosted trees and a logistic pipeline, repaired by Equipoise, Fairlearn and OxonFair on the same scores and splits.

Usage: EQUIPOISE_DATA=... python experiments/predictors/predictors.py FOLDER SPLITS WORKERS [data ...], with fairlearn and oxonfair==0.3
installed (also xgboost and lightgbm, if they are to be compared). Rows are added to FOLDER/rows.csv; what is there already is not run
again.

On Adult (sex) and COMPAS (race) a model is fitted on the training set without the group among its inputs. Everybody gets its scores, is
fitted on the same validation set and judged on the same test set, and is asked for the best balanced accuracy with |gap| within 0.02, where
that can be asked for. Fairlearn's ExponentiatedGradient trains models anew, on the training set. What is randomised is judged in
expectation. Seconds are of fitting the repair, one thread per process, one run per split.
"""

import os
import sys
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[1] / "peers"))  # libraries.py

import pandas as pd
from fairlearn.reductions import DemographicParity, ErrorRate, ExponentiatedGradient, TruePositiveRateParity
from libraries import FAIRLEARN_NAMES, Fit, fairlearn_thresholds, measured, oxonfair_thresholds
from oxonfair.utils import group_metrics
from sklearn.base import clone
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import equipoise as eq
from equipoise.models import predict

BOUND = 0.02
DATA, MEASURES = ("compas", "adult"), ("eod", "spd")
ROUNDS = 10  # of ExponentiatedGradient
FAIRLEARN_MOMENTS = {"spd": DemographicParity, "eod": TruePositiveRateParity}
OXONFAIR_GAPS = {"spd": group_metrics.demographic_parity, "eod": group_metrics.equal_opportunity}
KEYS = ["data", "model", "split", "measure", "method"]
COLUMNS = [*KEYS, "needs_group", "outcome", "seconds", "gap", "balanced_accuracy", "machine"]


def models(seed: int) -> dict[str, Any]:
    """The estimators by name, as their libraries set them up; of other libraries those that are installed."""
    found: dict[str, Any] = {
        "logistic pipeline": make_pipeline(StandardScaler(), LogisticRegression(max_iter=200)),
        "HistGradientBoosting": HistGradientBoostingClassifier(random_state=seed),
    }
    try:
        from xgboost import XGBClassifier

        found["XGBoost"] = XGBClassifier(n_jobs=1, random_state=seed)
    except ImportError:
        print("xgboost is not installed; left out", file=sys.stderr)
    try:
        from lightgbm import LGBMClassifier

        found["LightGBM"] = LGBMClassifier(n_jobs=1, random_state=seed, verbose=-1)
    except ImportError:
        print("lightgbm is not installed; left out", file=sys.stderr)
    return found


Decide = Callable[[eq.Cohort], Any]
Fitted = tuple[Decide, bool, str]  # what decides, whether it needs the group, and the outcome that it reports


def contenders(model: Any, parts: eq.Parts, measure: str, seed: int) -> dict[str, Callable[[], Fitted]]:
    """What fits, and returns what decides, by name."""
    predictor, valid = eq.predictor(model), parts.valid

    def scores(cohort: eq.Cohort) -> eq.Scores:
        return eq.Scores.of(cohort, predictor.scores(cohort.source))

    def ours(**how: Any) -> Callable[[], Fitted]:
        def fitted() -> Fitted:
            found = eq.debias(model, valid, measure=measure, max_gap=BOUND, seed=seed, **how)
            return lambda cohort: found.rule.decide(predict(found.model, cohort)), found.rule.needs_group, str(found.outcome)

        return fitted

    def plain() -> Fitted:
        rule = eq.debias(model, valid, measure=measure, method="standard", selection="paper").rule
        return lambda cohort: rule.decide(scores(cohort)), False, ""

    def thresholds(fit: Fit) -> Callable[[], Fitted]:
        def fitted() -> Fitted:
            decide = fit()
            return lambda cohort: decide(scores(cohort)), True, ""

        return fitted

    def exponentiated_gradient() -> Fitted:
        share, train = parts.train.y.mean(), parts.train
        last = type(model[-1]).__name__.lower() if hasattr(model, "steps") else ""
        rule = ExponentiatedGradient(
            clone(model),
            FAIRLEARN_MOMENTS[measure](difference_bound=BOUND),
            objective=ErrorRate(costs={"fp": share, "fn": 1 - share}),  # balanced accuracy, up to a factor
            max_iter=ROUNDS,
            sample_weight_name=f"{last}__sample_weight" if last else "sample_weight",
        ).fit(train.source.frame, train.y, sensitive_features=train.attribute.codes)
        return lambda cohort: rule._pmf_predict(cohort.source.frame)[:, 1], False, ""

    return {
        "the model as it is": plain,
        "equipoise group-thresholds": ours(method="group-thresholds"),
        "Fairlearn ThresholdOptimizer": thresholds(fairlearn_thresholds(scores(valid), FAIRLEARN_NAMES[measure], BOUND)),
        "OxonFair, thresholds per group": thresholds(oxonfair_thresholds(scores(valid), OXONFAIR_GAPS[measure], BOUND)),
        "equipoise auto, without the group": ours(allow_group=False),
        "Fairlearn ExponentiatedGradient": exponentiated_gradient,
        "equipoise auto": ours(),
    }


def judged(name: str, kind: str, split: int, done: set[tuple[str, ...]], file: Path) -> None:
    """Adds the rows of one model on one split that are not there yet, each when it is finished; a method that fails is reported."""
    warnings.simplefilter("ignore")
    whole = eq.load(name, attribute_as_input=False)
    columns = [f"c{k}" for k in range(whole.source.frame.shape[1])]  # LightGBM refuses names with "=" or ","
    parts = eq.split(replace(whole, source=replace(whole.source, frame=whole.source.frame.set_axis(columns, axis=1))), seed=split)
    model = models(split)[kind].fit(parts.train.source.frame, parts.train.y)
    fits = {measure: contenders(model, parts, measure, split) for measure in MEASURES}
    for method in fits[MEASURES[0]]:  # the quick ones come first
        for measure in MEASURES:
            key = (name, kind, split, measure, method)
            if tuple(map(str, key)) in done:
                continue
            start = time.perf_counter()
            try:
                decide, needs_group, outcome = fits[measure][method]()
            except Exception as error:  # one of several libraries
                print(f"{key}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
                continue
            row: dict[str, object] = dict(zip(KEYS, key, strict=True)) | {"needs_group": needs_group, "outcome": outcome}
            row |= {"seconds": round(time.perf_counter() - start, 3)} | measured(measure, decide(parts.test), parts.test)
            row["machine"] = os.environ.get("BENCHMARK_MACHINE", "")
            pd.DataFrame([row]).to_csv(file, mode="a", header=False, index=False)


def main(folder: Path, splits: int, workers: int, data: tuple[str, ...]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "rows.csv"
    if not file.exists():
        pd.DataFrame(columns=COLUMNS).to_csv(file, index=False)
    done = {tuple(map(str, row)) for row in pd.read_csv(file)[KEYS].itertuples(index=False)}
    tasks = [(name, kind, split, done, file) for split in range(splits) for name in data for kind in models(split)]
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        for task, found in [(task, pool.submit(judged, *task)) for task in tasks]:
            if (error := found.exception()) is not None:
                print(f"{task[:3]}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *(int(n) for n in sys.argv[2:4]), tuple(sys.argv[4:]) or DATA)
