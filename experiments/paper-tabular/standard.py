"""The STANDARD rows of the paper's Table 1 on real data. Usage: EQUIPOISE_DATA=... python experiments/paper-tabular/standard.py [splits]"""

import os
import sys
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

import equipoise as eq

PUBLISHED = {  # mean and standard deviation over 20 splits: balanced accuracy, SPD, EOD
    "adult": ((0.82, 0.01), (-0.32, 0.02), (-0.14, 0.02)),
    "bank": ((0.86, 0.01), (0.18, 0.04), (0.01, 0.04)),
    "compas": ((0.65, 0.01), (0.19, 0.03), (0.20, 0.05)),
}


def main() -> None:
    splits = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    print("| data | attribute in x | measure | ours, mean (sd) | published, mean (sd) | train s, all splits |")
    print("|---|---|---|---|---|---|")
    for name, published in PUBLISHED.items():
        for inside in (True, False):
            cohort = eq.load(name, attribute_as_input=inside)
            parts = [eq.split(cohort, seed=seed) for seed in range(splits)]
            start = time.perf_counter()
            models = [eq.train(p.train, p.valid, seed=seed) for seed, p in enumerate(parts)]
            took = time.perf_counter() - start
            audits = [eq.audit(m, p.test) for m, p in zip(models, parts, strict=True)]
            for measure, (mean, sd) in zip(("balanced_accuracy", "spd", "eod"), published, strict=True):
                values = [a[measure].value for a in audits]
                ours = f"{np.mean(values):.3f} ({np.std(values, ddof=1):.3f})"
                theirs = f"{mean:.2f} ({sd:.2f})" if inside else ""
                print(f"| {name} | {'yes' if inside else 'no'} | {measure} | {ours} | {theirs} | {took:.0f} |", flush=True)


if __name__ == "__main__":
    main()
