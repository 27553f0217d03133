"""All 14 findings of a published chest X-ray network on NIH images, by sex, age band and view: rows of experiments/chexnet-nih.

    python experiments/chexnet-nih/chexnet.py --out experiments/chexnet-nih

The scores are those that J. Zech published with reproduce-chexnet (`chexnet-nih` under the data root); the network itself is not needed.
The threshold of each finding is that of the best balanced accuracy on one third of the patients; everything reported is from the other two
thirds. p-values are adjusted for all comparisons of a finding, and `clear` are the differences that an overview of all findings marks;
differences in sensitivity and false positive rate by single attributes are kept. Calibration, Brier score and AUROC do not depend on the
threshold.
"""

import argparse
import os
import time
from pathlib import Path

import numpy as np
import pandas as pd

import equipoise as eq
from equipoise.data import generator, read_table

FINDINGS = (
    *("Atelectasis", "Cardiomegaly", "Effusion", "Infiltration", "Mass", "Nodule", "Pneumonia"),
    *("Pneumothorax", "Consolidation", "Edema", "Emphysema", "Fibrosis", "Pleural_Thickening", "Hernia"),
)
ATTRIBUTES = {"sex": "M", "age": "40-59", "view": "PA"}  # with the reference of each
BINS = {"age": [40, 60]}
MEASURES = ("eod", "fpr_gap")
CALIBRATION = ("brier", "calibration_intercept", "calibration_slope", "auroc")
LEVEL = 0.95


def published_scores() -> pd.DataFrame:
    """The table of scores, one row per image."""
    path = Path(os.environ["EQUIPOISE_DATA"]) / "chexnet-nih" / "scores.csv.gz"
    return read_table(path, text={"patient", "image", "sex", "view"})


def scores_of(frame: pd.DataFrame, finding: str) -> eq.Scores:
    """The scores of one finding with all attributes."""
    return eq.Scores.from_frame(
        frame,
        label=finding,
        score=f"score_{finding}",
        group=list(ATTRIBUTES),
        reference=list(ATTRIBUTES.values()),
        patient="patient",
        bins=BINS,
        name=finding,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    folder = parser.parse_args().out
    began = time.process_time()
    frame = published_scores()
    people = np.array(sorted(frame["patient"].unique()))
    third = set(generator(0, "chexnet thresholds").permutation(people)[: len(people) // 3])
    chosen_on = frame["patient"].isin(third)
    valid, test = frame[chosen_on].reset_index(drop=True), frame[~chosen_on].reset_index(drop=True)

    labels = {finding: scores_of(test, finding) for finding in FINDINGS}
    chosen = {finding: scores_of(valid, finding) for finding in FINDINGS}
    audits = eq.audit(labels, valid=chosen, level=LEVEL, no_finding="none of the labels")
    groups, gaps = [], []
    for finding, audit in audits.overview.items():
        single = audit.groups[audit.groups["attribute"].isin(ATTRIBUTES)].rename_axis("group").reset_index()
        groups.append(single.assign(finding=finding, threshold=audit.rule.value))
        own = audit.gaps[audit.gaps["attribute"].isin(ATTRIBUTES) & audit.gaps["measure"].isin(MEASURES)]
        gaps.append(own.assign(finding=finding))
    table = pd.concat(gaps, ignore_index=True)
    kept = ["finding", "measure", "attribute", "group", "reference", "value", "low", "high", "p_value", "p_adjusted", "clear"]
    folder.mkdir(parents=True, exist_ok=True)
    table[[*kept, "detectable", "patients", "few"]].to_csv(folder / "gaps.csv", index=False, float_format="%.6g")

    rates = [f"{name}{end}" for name in ("tpr", "fpr", *CALIBRATION) for end in ("", "_low", "_high")]
    of_groups = pd.concat(groups, ignore_index=True)
    columns = ["finding", "threshold", "attribute", "group", "reference", "n", "positives", *rates]
    of_groups[columns].to_csv(folder / "groups.csv", index=False, float_format="%.6g")
    overall = [
        {"finding": finding, "rows": audit.rows, "patients": audit.patients, "positives": int(labels[finding].y.sum())}
        | {
            f"{name}{end}": getattr(audit[name], part)
            for name in CALIBRATION
            for end, part in (("", "value"), ("_low", "low"), ("_high", "high"))
        }
        for finding, audit in audits.labels.items()
    ]
    pd.DataFrame(overall).to_csv(folder / "findings.csv", index=False, float_format="%.6g")

    under = audits.no_finding.underdiagnosis
    under[under["attribute"].isin(ATTRIBUTES)].to_csv(folder / "underdiagnosis.csv", index=False, float_format="%.6g")
    made = {"rows": len(frame), "patients": len(people), "test_rows": len(test), "test_patients": test["patient"].nunique()}
    made |= {
        "comparisons": audits.comparisons,
        "shown": int(table["p_value"].notna().sum()),
        "seconds": round(time.process_time() - began, 1),
    }
    pd.DataFrame([made]).to_csv(folder / "run.csv", index=False)
    print(pd.DataFrame([made]).to_string(index=False))
    print(table[table["clear"]][kept].to_string(index=False))


if __name__ == "__main__":
    main()
