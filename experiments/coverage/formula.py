"""The variance of a rate as the formula of CR3 states it, patient by patient, next to the one from power sums, and to the one before.

    python experiments/coverage/formula.py --out experiments/coverage --samples 400    # three minutes on one core

Rates of NIH patients: CheXNet's scores of several labels, at thresholds that flag a tenth, a fifth and half of the rows. A sample draws 60
or 120 patients of each sex with all of their rows. The limits are Wilson's on the effective number of rows; what differs is the variance
and its degrees of freedom: those of the audit (power sums), the same formula patient by patient with each patient's own share, and
the variance without correction with the effective number of patients (Kish) minus 1.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
from patients import nih

from equipoise.measures.intervals import fewer_clusters, wilson
from equipoise.measures.moments import moments_of

LABELS, FLAGGED, PATIENTS = ("Effusion", "Infiltration", "Pneumothorax", "Mass"), (0.1, 0.2, 0.5), (60, 120)
Floats = np.ndarray


def direct(a: Floats, b: Floats) -> tuple[float, float, float, float]:
    """The rate, its effective number of rows and degrees of freedom patient by patient, and Kish's number minus 1."""
    a, b = a[b > 0], b[b > 0]
    patients, rows = len(b), b.sum()
    rate = a.sum() / rows
    e, h = a - rate * b, b / rows
    variance = (patients - 1) / patients * ((e / (1 - h)) ** 2).sum() / rows**2
    pairs, spread = (b * (b - 1)).sum(), rate * (1 - rate)
    rho = float(np.clip(((e**2).sum() / spread - rows) / pairs, 0, 1)) if spread > 0 and pairs > 0 else 1.0
    v = h**2 * (rho + (1 - rho) / b)
    size = rows / max(variance * (rows - 1) / spread, 1.0) if variance > 0 and spread > 0 else float(patients)
    return rate, size, v.sum() ** 2 / (v**2).sum(), rows**2 / (b**2).sum() - 1


def before(a: Floats, b: Floats) -> float:
    """The effective number of rows from the variance without a correction of shares."""
    a, b = a[b > 0], b[b > 0]
    rate = a.sum() / b.sum()
    variance = len(b) / (len(b) - 1) * ((a - rate * b) ** 2).sum() / b.sum() ** 2
    spread = rate * (1 - rate)
    return float(b.sum() / max(variance * (b.sum() - 1) / spread, 1.0)) if spread > 0 and variance > 0 else b.sum() ** 2 / (b**2).sum()


def cells(label: str, flagged: float, count: int, samples: int) -> Iterator[dict[str, object]]:
    """The coverage of the rates of women and men by each formula."""
    whole = nih("chexnet", label, f"score_{label}", flagged)
    starts = np.searchsorted(whole.patient, np.arange(whole.patient[-1] + 2))
    f, y, sex = whole.decided, whole.y.astype(float), whole.group[starts[:-1]]
    by_patient = {"selection_rate": (f, np.ones(len(f))), "fpr": (f * (1 - y), 1 - y)}
    for rate, columns in by_patient.items():
        top, bottom = (np.add.reduceat(column, starts[:-1]) for column in columns)
        covered: dict[str, list[bool]] = {"power sums": [], "patient by patient": [], "Kish": []}
        for k in range(samples):
            rng = np.random.default_rng([k, count])
            for group in (0, 1):
                members = np.flatnonzero(sex == group)
                who = rng.choice(members, count)
                a, b, truth = top[who], bottom[who], top[members].sum() / bottom[members].sum()
                value, size, degrees, kish = direct(a, b)
                unit, decided = (
                    np.repeat(np.arange(count), b.astype(int)),
                    np.arange(b.sum()) - np.repeat(np.cumsum(b) - b, b.astype(int)) < np.repeat(a, b.astype(int)),
                )
                sums = moments_of(decided.astype(float), np.zeros(len(unit), int), np.zeros(len(unit), int), 1, unit)["selection_rate"]
                ends = {
                    "power sums": fewer_clusters(sums.size[0], sums.degrees[0], 0.95),
                    "patient by patient": fewer_clusters(size, degrees, 0.95),
                    "Kish": fewer_clusters(before(a, b), max(kish, 1.0), 0.95),
                }
                for name, effective in ends.items():
                    low, high = wilson(value, effective, 0.95)
                    covered[name].append(bool(low <= truth <= high))
        shares = {name: float(np.mean(own)) for name, own in covered.items()}
        yield {"label": label, "flagged": flagged, "patients": count, "rate": rate, "samples": 2 * samples, **shares}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--samples", type=int, default=400)
    given = parser.parse_args()
    rows = [row for label in LABELS for flagged in FLAGGED for count in PATIENTS for row in cells(label, flagged, count, given.samples)]
    given.out.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(rows).to_csv(given.out / "formula.csv", index=False, float_format="%.4f")
    print(pd.DataFrame(rows).to_string())


if __name__ == "__main__":
    main()
