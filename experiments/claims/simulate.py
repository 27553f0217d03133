"""How often an audit of several labels marks a gap that is not there, and one that is, before and after errors are spent in order.

    python experiments/claims/simulate.py --out experiments/claims --audits 1000 --workers 2

Six labels by sex and four age bands, one row per patient, at 95 %. In the world without a gap no rate depends on the group. In the mixed
world two labels have gaps by sex and by age, one only in an intersection, and three have none. Needs numpy, scipy, pandas and
`equipoise.measures`.
"""

import argparse
import csv
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import chain, repeat
from pathlib import Path

import numpy as np
import pandas as pd

from equipoise.measures.families import family_decisions
from equipoise.measures.measure_table import measure_of
from equipoise.measures.moments import concatenate_sums, moments_of

LEVEL, LABELS, PATIENTS = 0.95, 6, 2400
FEMALE, AGES = 0.45, (0.2, 0.35, 0.25, 0.2)  # shares of the patients
MEASURES = ("spd", "eod", "aod", "fpr_gap", "tnr_gap", "fnr_gap", "ppv_gap", "npv_gap")  # as in an audit without options
HARM = {measure_of(name).signature for name in ("eod", "fpr_gap")}
FEW = 30  # patients of a cell whose gaps are not studentised
WORLDS = ("no gap", "mixed")
RULES = {"one family": False, "in order": True}  # all gaps of all labels at once, and as an audit does it


def sensitivity(world: str, label: int, female: np.ndarray, age: np.ndarray) -> np.ndarray:
    """The sensitivity of each patient; the false positive rate is 0.2."""
    tpr = np.full(len(female), 0.8)
    if world == "mixed" and label < 2:
        tpr = tpr - 0.12 * female - 0.1 * (age == 0)
    if world == "mixed" and label == 2:  # old women, against old men: no difference by age
        tpr = tpr + 0.2 * (age == 3) * np.where(female, -1.0, FEMALE / (1 - FEMALE))
    return tpr


def true_gaps(world: str, label: int) -> dict[str, list[bool]]:
    """By attribute, whether the sensitivity of each group other than the reference differs from it, in the population."""
    female, age = np.repeat([False, True], 4), np.tile(range(4), 2)
    share = np.where(female, FEMALE, 1 - FEMALE) * np.array(AGES)[age]
    tpr, found = sensitivity(world, label, female, age), {}
    for attribute, code in codes_of(female, age).items():
        means = [np.average(tpr[code == k], weights=share[code == k]) for k in range(int(code.max()) + 1)]
        found[attribute] = [abs(mean - means[0]) > 1e-9 for mean in means[1:]]
    return found


def codes_of(female: np.ndarray, age: np.ndarray) -> dict[str, np.ndarray]:
    """The groups by attribute, the reference first: men, the second age band."""
    band = np.array([1, 0, 2, 3])[age]
    return {"sex": female.astype(int), "age": band, "both": female * 4 + band}


def audit(world: str, seed: int) -> list[dict[str, object]]:
    """The marks of one audit by each rule."""
    rng = np.random.default_rng([WORLDS.index(world), seed])
    female, age = rng.random(PATIENTS) < FEMALE, rng.choice(4, PATIENTS, p=AGES)
    codes = codes_of(female, age)
    rows, sums, correlations = [], [], []
    for label in range(LABELS):
        truth = true_gaps(world, label)
        sick = rng.random(PATIENTS) < 0.2
        decided = rng.random(PATIENTS) < np.where(sick, sensitivity(world, label, female, age), 0.2)
        for attribute, code in codes.items():
            groups = int(code.max()) + 1
            moments = moments_of(decided, sick, code, groups, np.arange(PATIENTS))
            signed = {name: measure_of(name).coefficients for name in MEASURES}
            for name, coefficients in signed.items():
                gap = moments.gap(coefficients)
                counts = np.min([moments[rate].effective for rate in coefficients], axis=0)
                patients = np.minimum(counts[1:], counts[0])
                sums.append(gap)
                for k, value in enumerate(gap.total, start=1):
                    known, true = patients[k - 1] >= 5, truth[attribute][k - 1] and name not in ("fpr_gap", "tnr_gap")
                    rows.append((label, name, attribute, str(k), value if known else np.nan, patients[k - 1] < FEW, true))
            correlations.append((len(MEASURES) * (groups - 1), partial(moments.gap_correlation, signed)))
    gaps = pd.DataFrame(rows, columns=["label", "measure", "attribute", "group", "value", "few", "true"])
    signature = [measure_of(name).signature in HARM for name in gaps["measure"]]
    steps = np.where(signature, gaps["attribute"] == "both", -1).astype(np.int64)
    harm = np.array(signature) & ~gaps["measure"].isin(["tnr_gap", "fnr_gap"]).to_numpy()
    true = gaps["true"].to_numpy(dtype=bool)
    single, found = (gaps["attribute"] != "both").to_numpy(), []
    for rule, in_order in RULES.items():
        made = family_decisions(gaps, concatenate_sums(sums), LEVEL, correlations, steps if in_order else None)
        clear, overview = made["clear"].to_numpy(), made["in_overview" if in_order else "clear"].to_numpy()
        false_labels = [bool((clear & ~true & (gaps["label"] == k)).any()) for k in range(LABELS)]
        marked = [k for k in range(LABELS) if (overview & (gaps["label"] == k)).any()]
        untrue = [k for k in marked if not (true & (gaps["label"] == k)).any()]
        truths = {"single": harm & true & single, "intersections": harm & true & ~single}
        found.append(
            {
                "world": world,
                "rule": rule,
                "false_in_label": float(np.mean(false_labels)),
                "false_in_worst_label": false_labels,
                "false_labels_in_overview": len(untrue) / max(len(marked), 1),
                **{f"found_{name}": float(clear[rows].mean()) if rows.any() else np.nan for name, rows in truths.items()},
            }
        )
    return found


def summaries(found: list[dict[str, object]]) -> Iterator[dict[str, object]]:
    """One row per world and rule."""
    frame = pd.DataFrame(found)
    for (world, rule), rows in frame.groupby(["world", "rule"], sort=False):
        by_label = np.mean(rows["false_in_worst_label"].tolist(), axis=0)
        means = rows[["false_in_label", "false_labels_in_overview", "found_single", "found_intersections"]].mean()
        yield {"world": world, "rule": rule, "audits": len(rows), "false_in_worst_label": by_label.max(), **means.to_dict()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--audits", type=int, default=1000, help="of each world")
    parser.add_argument("--workers", type=int, default=1)
    given = parser.parse_args()
    start, found = time.perf_counter(), []
    with ProcessPoolExecutor(given.workers) as pool:
        for world in WORLDS:
            found += chain.from_iterable(pool.map(audit, repeat(world), range(given.audits), chunksize=5))
    rows = list(summaries(found))
    given.out.mkdir(parents=True, exist_ok=True)
    with (given.out / "simulated.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({key: f"{value:.4f}" if isinstance(value, float) else value for key, value in row.items()} for row in rows)
    print(pd.DataFrame(rows).to_string(), f"{time.perf_counter() - start:.0f} s", sep="\n")


if __name__ == "__main__":
    main()
