"""All 14 findings of a published chest X-ray network, repaired from its scores by sex and by age band: rows of experiments/chexnet-repair.

Usage: .venv-bench/bin/python experiments/chexnet-repair/chexnet_repair.py --out FOLDER [--splits 5] [--workers 2] [--attributes sex age]
[--findings Effusion ...], after experiments/peers/environment.sh; without it, other libraries that cannot be imported are left out.

Half of the patients are the repair set, the other half the test set, in several splits. Every contender is fitted to the same scores of
the repair set, to equalise sensitivity (eod), with balanced accuracy as performance: Equipoise with cross-fitted selection and balanced
accuracy at most 0.02 lower; Fairlearn's ThresholdOptimizer (true positive rate parity, exact and with a tolerance of 0.05); OxonFair
(thresholds per group with |eod| within 0.05); AIF360's reject option within 0.05 and its equalised odds, both for two groups only. The
original decides by the threshold of best balanced accuracy on the repair set. Gap, balanced accuracy and outcome are those of the test
set, by the same judgement for all; seconds are those of fitting. A finding with fewer than 5 patients in a cell is not repaired. Rows that
are there already are not computed again.
"""

import argparse
import itertools
import os
import sys
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[1] / "peers"))  # libraries.py
sys.path.insert(0, str(Path(__file__).parents[1] / "chexnet-nih"))  # chexnet.py

import numpy as np
import pandas as pd
from chexnet import BINS, FINDINGS, published_scores
from libraries import (
    FAIRLEARN_NAMES,
    Decide,
    Fit,
    aif360_equalised_odds,
    aif360_reject_option,
    fairlearn_thresholds,
    measured,
    oxonfair_thresholds,
)

import equipoise as eq
from equipoise.errors import EmptyCell
from equipoise.methods import check_cells, judge

REFERENCES = {"sex": "M", "age": "40-59"}
GOAL = eq.Goal("eod", selection="honest")
BOUND = 0.05  # of those that ask for one
Fitter = Callable[[], tuple[Decide, str]]  # fits, and returns what decides and the method that was taken


def contenders(repair: eq.Scores, cut: float) -> dict[str, Fitter]:
    """What fits, by name; those whose library is not installed are left out."""
    found = {"Equipoise auto": ours(repair), "Equipoise auto, without the group": ours(repair, allow_group=False)}
    for name, made in others(repair, cut).items():
        try:
            fit = made()
        except (ImportError, AttributeError) as error:  # AIF360 needs older packages than some environments have
            print(f"{name} cannot be imported ({error}); left out", file=sys.stderr)
        else:
            found[name] = theirs(fit)
    return found


def ours(repair: eq.Scores, **how: Any) -> Fitter:
    def fitted() -> tuple[Decide, str]:
        result = eq.debias(repair, measure=GOAL.measure, **how)
        return result.rule.decide, result.ran if result.chosen else "original"

    return fitted


def theirs(fit: Fit) -> Fitter:
    return lambda: (fit(), "")


def others(repair: eq.Scores, cut: float) -> dict[str, Callable[[], Fit]]:
    """What imports another library and returns what fits, by name."""
    parity = FAIRLEARN_NAMES[GOAL.measure]

    def oxonfair() -> Fit:
        from oxonfair.utils import group_metrics

        return oxonfair_thresholds(repair, group_metrics.recall.diff, BOUND)

    found: dict[str, Callable[[], Fit]] = {
        "Fairlearn ThresholdOptimizer": lambda: fairlearn_thresholds(repair, parity),
        "Fairlearn ThresholdOptimizer, tol=0.05": lambda: fairlearn_thresholds(repair, parity, BOUND),
        "OxonFair, thresholds per group": oxonfair,
    }
    if len(repair.attribute.levels) == 2:
        # The scores of rare findings are far below the default range of thresholds.
        search = {"low_class_thresh": 0.001, "high_class_thresh": max(0.002, 2 * cut)}
        found["AIF360 reject option"] = lambda: aif360_reject_option(repair, GOAL.measure, BOUND, cut, cut, **search)
        found["AIF360 equalised odds"] = lambda: aif360_equalised_odds(repair, cut)
    return found


def scores_of(attribute: str, finding: str) -> eq.Scores:
    """The scores of one finding with one attribute."""
    frame = published_scores()
    bins = {attribute: BINS[attribute]} if attribute in BINS else None
    roles: dict[str, Any] = {"group": attribute, "reference": REFERENCES[attribute], "patient": "patient", "id": "image", "bins": bins}
    return eq.Scores.from_frame(frame, label=finding, score=f"score_{finding}", name=finding, **roles)


def rows_of(attribute: str, finding: str, split: int) -> list[dict[str, object]]:
    """Every contender on one finding, attribute and split."""
    warnings.simplefilter("ignore")
    repair, test = scores_of(attribute, finding).hold_out(0.5, seed=split)
    about = {"attribute": attribute, "finding": finding, "split": split, "rows": len(test), "positives": int(test.y.sum())}
    try:
        check_cells({"the repair set": repair, "the test set": test}, {"": GOAL})
    except EmptyCell:  # too few patients, or none
        return [{**about, "method": "original", "outcome": "too few patients"}]
    original = eq.debias(repair, method="standard", measure=GOAL.measure, selection="paper").rule
    before = original.decide(test)
    found = [{**about, "method": "original", "outcome": "", **measured(GOAL.measure, before, test)}]
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
        found.append(
            {
                **about,
                "method": name,
                "taken": taken,
                "outcome": str(told.outcome),
                "seconds": seconds,
                **measured(GOAL.measure, after, test),
            }
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--attributes", nargs="+", default=list(REFERENCES), choices=REFERENCES)
    parser.add_argument("--findings", nargs="+", default=list(FINDINGS), choices=FINDINGS)
    given = parser.parse_args()
    file = given.out / "rows.csv"
    done = pd.read_csv(file) if file.exists() else pd.DataFrame(columns=["attribute", "finding", "split"])
    known = set(zip(done["attribute"], done["finding"], done["split"], strict=True))
    every = itertools.product(range(given.splits), given.attributes, given.findings)
    jobs = [(a, f, s) for s, a, f in every if (a, f, s) not in known]
    given.out.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(given.workers) as pool:
        for rows in pool.map(rows_of, *zip(*jobs, strict=True)) if jobs else ():
            done = pd.concat([done, pd.DataFrame(rows)], ignore_index=True)
            ordered = done.sort_values(["split", "attribute", "finding"], kind="stable")
            ordered.to_csv(file, index=False, float_format="%.6g")
            print(f"{rows[0]['attribute']}, {rows[0]['finding']}, split {rows[0]['split']}: {len(rows)} rows", flush=True)


if __name__ == "__main__":
    main()
