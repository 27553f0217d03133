"""All 14 findings of a published chest X-ray network, repaired from its scores by sex and by age band: rows of results/chexnet-repair.

Usage: EQUIPOISE_DATA=... .venv-bench/bin/python benchmarks/chexnet_repair.py [SPLITS [WORKERS [FOLDER]]], after
benchmarks/environment.sh.

Half of the patients are the repair set, the other half the test set, in several splits. Every contender is fitted to the same scores of
the repair set, to equalise sensitivity (eod), with balanced accuracy as performance: Equipoise with cross-fitted selection and balanced
accuracy at most 0.02 lower; Fairlearn's ThresholdOptimizer (true positive rate parity, exact and with a tolerance of 0.05); OxonFair
(thresholds per group with |eod| within 0.05); AIF360's reject option within 0.05 and its equalised odds, both for two groups only. The
original decides by the threshold of best balanced accuracy on the repair set. Gap, balanced accuracy and outcome are those of the test
set, by the same judgement for all; seconds are those of fitting. A finding with fewer than 5 patients in a cell is not repaired. Rows that
are there already are not computed again.
"""

import os
import sys
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator, ClassifierMixin

import equipoise as eq
from equipoise.data import hold_out_scores, read_table
from equipoise.errors import EmptyCell
from equipoise.measures import gap_values, largest, performance_values, tabulate
from equipoise.methods import check_cells, judge

OUT = Path(__file__).parents[1] / "results" / "chexnet-repair"
FINDINGS = (
    *("Atelectasis", "Cardiomegaly", "Effusion", "Infiltration", "Mass", "Nodule", "Pneumonia"),
    *("Pneumothorax", "Consolidation", "Edema", "Emphysema", "Fibrosis", "Pleural_Thickening", "Hernia"),
)
REFERENCES = {"sex": "M", "age": "40-59"}
BINS = {"age": [40, 60]}
GOAL = eq.Goal("eod", selection="honest")
BOUND = 0.05  # of those that ask for one
Decide = Callable[[eq.Scores], Any]


class Given(ClassifierMixin, BaseEstimator):
    """An estimator whose input is its score, for Fairlearn."""

    def __init__(self) -> None:
        self.classes_ = np.array([0, 1])

    def fit(self, X: object, y: object) -> "Given":  # noqa: ARG002
        return self

    def predict_proba(self, X: Any) -> Any:
        score = np.asarray(X).reshape(-1)
        return np.stack([1 - score, score], -1)


def contenders(repair: eq.Scores, cut: float) -> dict[str, Callable[[], tuple[Decide, str]]]:
    """What fits, and returns what decides and the method that was taken, by name; those whose library is not installed are left out."""
    found: dict[str, Callable[[], tuple[Decide, str]]] = {}
    codes, two = repair.attribute.codes, len(repair.attribute.levels) == 2

    def ours(**how: Any) -> Callable[[], tuple[Decide, str]]:
        def fitted() -> tuple[Decide, str]:
            result = eq.debias(repair, measure=GOAL.measure, **how)
            return result.rule.decide, result.ran if result.chosen else "original"

        return fitted

    found["Equipoise auto"] = ours()
    found["Equipoise auto, without the group"] = ours(allow_group=False)
    try:
        from fairlearn.postprocessing import ThresholdOptimizer

        def fairlearn(tolerance: float | None) -> Callable[[], tuple[Decide, str]]:
            def fitted() -> tuple[Decide, str]:
                rule = ThresholdOptimizer(
                    estimator=Given(),
                    constraints="true_positive_rate_parity",
                    objective="balanced_accuracy_score",
                    prefit=True,
                    predict_method="predict_proba",
                    tol=tolerance,
                ).fit(repair.score[:, None], repair.y, sensitive_features=codes)
                return lambda part: rule._pmf_predict(part.score[:, None], sensitive_features=part.attribute.codes)[:, 1], ""

            return fitted

        found |= {"Fairlearn ThresholdOptimizer": fairlearn(None), "Fairlearn ThresholdOptimizer, tol=0.05": fairlearn(BOUND)}
    except ImportError:
        print("fairlearn is not installed; left out", file=sys.stderr)
    try:
        from oxonfair import DataDict, FairPredictor
        from oxonfair.utils import group_metrics

        def pairs(part: eq.Scores) -> Any:
            return DataDict(part.y, np.stack([1 - part.score, part.score], -1), part.attribute.codes)

        def oxonfair() -> tuple[Decide, str]:
            fair = FairPredictor(None, pairs(repair))
            fair.fit(group_metrics.balanced_accuracy.overall, group_metrics.recall.diff, BOUND)
            return lambda part: np.asarray(fair.predict(pairs(part)), dtype=np.float64), ""

        found["OxonFair, thresholds per group"] = oxonfair
    except ImportError:
        print("oxonfair is not installed; left out", file=sys.stderr)
    try:
        from aif360.algorithms.postprocessing import EqOddsPostprocessing, RejectOptionClassification
        from aif360.datasets import BinaryLabelDataset

        privileged, other = [{"group": 1.0}], [{"group": 0.0}]

        def datasets(part: eq.Scores) -> tuple[Any, Any]:
            frame = pd.DataFrame({"group": (part.attribute.codes == 0).astype(float), "y": part.y.astype(float)})
            true = BinaryLabelDataset(df=frame, label_names=["y"], protected_attribute_names=["group"])
            pred = true.copy()
            pred.scores, pred.labels = part.score.reshape(-1, 1), (part.score >= cut).astype(float).reshape(-1, 1)
            return true, pred

        def aif360_reject() -> tuple[Decide, str]:
            # It moves decisions in favour of the unprivileged only: those are the group with the lower rate, whoever the reference is.
            behind = measured((repair.score >= cut).astype(float), repair)["gap"] < 0
            lower, higher = (other, privileged) if behind else (privileged, other)
            rule = RejectOptionClassification(
                unprivileged_groups=lower,
                privileged_groups=higher,
                low_class_thresh=0.001,  # the scores of rare findings are far below its default range
                high_class_thresh=max(0.002, 2 * cut),
                num_class_thresh=25,
                num_ROC_margin=20,
                metric_name="Equal opportunity difference",
                metric_ub=BOUND,
                metric_lb=-BOUND,
            ).fit(*datasets(repair))
            return lambda part: np.ravel(rule.predict(datasets(part)[1]).labels), ""

        def aif360_odds() -> tuple[Decide, str]:
            rule = EqOddsPostprocessing(unprivileged_groups=other, privileged_groups=privileged, seed=0)
            chances = rule.fit(*datasets(repair)).model_params.x  # of the reference, positive and negative; of the other
            return lambda part: chances[2 * (part.attribute.codes != 0) + (part.score < cut)], ""

        if two:
            found |= {"AIF360 reject option": aif360_reject, "AIF360 equalised odds": aif360_odds}
    except (ImportError, AttributeError) as error:  # it needs older packages than some environments have
        print(f"aif360 cannot be imported ({error}); left out", file=sys.stderr)
    return found


def measured(decisions: Any, part: eq.Scores) -> dict[str, float]:
    """The largest gap, with its sign, and balanced accuracy of decisions or of their probabilities."""
    cells = tabulate(np.asarray(decisions, dtype=np.float64), part.y, part.attribute)
    gap, performance = float(largest(gap_values(GOAL.measure, cells))), float(performance_values(GOAL.performance, cells))
    return {"gap": gap, "balanced_accuracy": performance}


def scores_of(attribute: str, finding: str) -> eq.Scores:
    """The scores of one finding with one attribute."""
    path = Path(os.environ["EQUIPOISE_DATA"]) / "chexnet-nih" / "scores.csv.gz"
    frame = read_table(path, text={"patient", "image", "sex", "view"})
    bins = {attribute: BINS[attribute]} if attribute in BINS else None
    roles: dict[str, Any] = {"group": attribute, "reference": REFERENCES[attribute], "patient": "patient", "id": "image", "bins": bins}
    return eq.Scores.from_frame(frame, label=finding, score=f"score_{finding}", name=finding, **roles)


def rows_of(attribute: str, finding: str, split: int) -> list[dict[str, object]]:
    """Every contender on one finding, attribute and split."""
    warnings.simplefilter("ignore")
    repair, test = (part[finding] for part in hold_out_scores({finding: scores_of(attribute, finding)}, 0.5, seed=split))
    about = {"attribute": attribute, "finding": finding, "split": split, "rows": len(test), "positives": int(test.y.sum())}
    try:
        check_cells({"the repair set": repair, "the test set": test}, [GOAL])
    except EmptyCell:  # too few patients, or none
        return [{**about, "method": "original", "outcome": "too few patients"}]
    original = eq.debias(repair, method="standard", measure=GOAL.measure, selection="paper").rule
    before = original.decide(test)
    found = [{**about, "method": "original", "outcome": "", **measured(before, test)}]
    for name, fit in contenders(repair, float(original.value)).items():
        started = time.perf_counter()
        try:
            decide, taken = fit()
        except Exception as error:  # of another library, on findings that are too rare for it
            found.append({**about, "method": name, "outcome": f"error: {type(error).__name__}"})
            continue
        seconds = time.perf_counter() - started
        after = np.asarray(decide(test), dtype=np.float64)
        told = judge(test, before, test, after, GOAL, source="held-out")
        found.append({**about, "method": name, "taken": taken, "outcome": str(told.outcome), "seconds": seconds, **measured(after, test)})
    return found


def main(splits: int = 3, workers: int = 1, folder: Path = OUT) -> None:
    file = folder / "rows.csv"
    done = pd.read_csv(file) if file.exists() else pd.DataFrame(columns=["attribute", "finding", "split"])
    known = set(zip(done["attribute"], done["finding"], done["split"], strict=True))
    jobs = [(a, f, s) for s in range(splits) for a in REFERENCES for f in FINDINGS if (a, f, s) not in known]
    folder.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(workers) as pool:
        for rows in pool.map(rows_of, *zip(*jobs, strict=True)) if jobs else ():
            done = pd.concat([done, pd.DataFrame(rows)], ignore_index=True)
            ordered = done.sort_values(["split", "attribute", "finding"], kind="stable")
            ordered.to_csv(file, index=False, float_format="%.6g")
            print(f"{rows[0]['attribute']}, {rows[0]['finding']}, split {rows[0]['split']}: {len(rows)} rows", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]), *map(Path, sys.argv[3:4]))
