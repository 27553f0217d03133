"""EOD of a classifier that knows the latent width of a simulated X-ray and not the sex, at its best threshold.

    python experiments/phantoms/oracle.py --out experiments/phantoms/oracle.csv            # ten seeds of 50,000 rows
    python experiments/phantoms/oracle.py --out cell.csv --hardness 0.5 --seeds 0          # one line of it, from one seed

Next to the closed form: one threshold for two pairs of normal distributions of equal spread, one pair per sex.
"""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import norm

import equipoise as eq
from equipoise.measures import sweep
from equipoise.studies.sets.phantom import latents

ROWS, SEPARATION = 50_000, 2.5


def measured(hardness: float, seed: int) -> tuple[float, float]:
    """EOD and balanced accuracy at the threshold with the best balanced accuracy."""
    truth = latents(ROWS, seed=seed, hardness=hardness, prevalence=0.5, share=0.5, separation=SEPARATION)
    score = norm.cdf(truth.width - SEPARATION / 2)
    scores = eq.Scores.from_arrays(truth.y, score, np.where(truth.woman, "F", "M"), reference="M", patients=truth.patient)
    best = sweep(scores.score, scores.y, scores.attribute).best()
    return float(best.values["eod"]), float(best.values["balanced_accuracy"])


def closed_form(hardness: float) -> float:
    """EOD at the threshold with the best balanced accuracy of all patients."""
    t = np.linspace(0, SEPARATION, 100_001)
    women = SEPARATION * (1 - hardness)
    best = t[np.argmax(norm.sf(t - SEPARATION) + norm.sf(t - women) - 2 * norm.sf(t))]
    return float(norm.sf(best - women) - norm.sf(best - SEPARATION))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--hardness", type=float, nargs="+", default=[0, 0.25, 0.5, 0.75, 1])
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(10)))
    given = parser.parse_args()
    lines = []
    for hardness in given.hardness:
        gap, accuracy = np.mean([measured(hardness, seed) for seed in given.seeds], axis=0)
        found = {"eod_measured": gap, "eod_closed_form": closed_form(hardness), "balanced_accuracy": accuracy}
        lines.append({"hardness": f"{hardness:g}", **{name: f"{value:.3f}" for name, value in found.items()}})
    pd.DataFrame(lines).to_csv(given.out, index=False)
    print(pd.DataFrame(lines).to_string(index=False))


if __name__ == "__main__":
    main()
