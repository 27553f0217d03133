"""Audit a CSV of scores. Only the scores, the true labels and the groups of the patients are known.

    python examples/audit_csv.py --out example-output

The scores are simulated: the classifier misses more sick women than sick men. Replace scores.csv with a file of your own.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import pandas as pd

import equipoise as eq


def simulate(patients: int, seed: int = 0) -> pd.DataFrame:
    """A table of scores, one or two images per patient. Sick women get lower scores than sick men."""
    rng = np.random.default_rng(seed)
    patient = np.sort(rng.choice(patients, size=patients * 3 // 2))
    sex = rng.choice(["F", "M"], size=patients)[patient]
    sick = (rng.random(patients) < 0.4).astype(int)[patient]
    logit = rng.normal(np.where(sick == 1, 1.2, -1.2) - 0.9 * ((sick == 1) & (sex == "F")))
    return pd.DataFrame({"patient_id": patient, "sex": sex, "sick": sick, "p": (1 / (1 + np.exp(-logit))).round(4)})


def main() -> None:
    parser = argparse.ArgumentParser(description="Audit a CSV of scores.")
    parser.add_argument("--out", type=Path, default=Path("example-output"), help="folder for scores.csv and audit.json")
    parser.add_argument("--patients", type=int, default=1_000)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    file = given.out / "scores.csv"
    simulate(given.patients).to_csv(file, index=False)

    frame = pd.read_csv(file)
    scores = eq.Scores.from_frame(frame, label="sick", score="p", group="sex", reference="M", patient="patient_id", name=file.name)
    found = eq.audit(scores, threshold=0.5)  # or valid=other_scores, to choose the threshold on validation patients
    print(found)
    print(found.groups[["n", "positives", "tpr", "tpr_low", "tpr_high"]].round(3))

    eod = found["eod"]
    verdict = (
        "does not include zero: these patients show a gap" if eod.low > 0 or eod.high < 0 else "includes zero: these patients show no gap"
    )
    print(
        f"\nSensitivity, {eod.group} minus {eod.reference}: {eod.value:+.3f}. Its interval, {eod.low:+.3f} to {eod.high:+.3f}, {verdict}."
    )
    print(f"A gap smaller than {eod.detectable:.3f} would probably not be seen with this many patients.")
    (given.out / "audit.json").write_text(json.dumps(found.to_dict(), indent=2, allow_nan=False))

    print("\nThe same from the command line:")
    print(f"  equipoise audit {file} --label sick --score p --group sex --reference M --patient patient_id --threshold 0.5")


if __name__ == "__main__":
    main()
