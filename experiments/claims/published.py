"""Findings of audits of three published chest X-ray networks, by the version of Equipoise on the path.

    python experiments/claims/published.py --out experiments/claims --version after
    PYTHONPATH=src-of-an-earlier-version python experiments/claims/published.py --out experiments/claims --version before

CheXNet (`chexnet-nih`: fourteen findings by sex and age), the network of Larrazabal et al. that was trained on men only (fold 0, by
sex), and the Nature Medicine network (`underdiagnosis-nih`, seed 11, by sex and age), at 95 %. Thresholds are the published ones; those of
CheXNet have the best balanced accuracy on a third of the patients, which is not audited.
"""

import argparse
import csv
import os
from pathlib import Path

import numpy as np
import pandas as pd

import equipoise as eq

LISTED = 0.1  # largest p-value of a gap that is listed, before adjustment
HARM = {"eod": "missed findings", "fpr_gap": "false alarms"}
AGES, BANDS = (0, 40, 60, 200), ("under 40", "40 to 59", "60 and over")


def scores_of(frame: pd.DataFrame, labels: list[str], prefix: str, attributes: list[str]) -> dict[str, eq.Scores]:
    """The scores of each label by sex, and by age if asked."""
    frame = frame.assign(age=pd.cut(frame["age"], AGES, right=False, labels=BANDS).astype(str))
    reference = [{"sex": "M", "age": "40 to 59"}[name] for name in attributes]
    columns = {"group": attributes, "reference": reference, "patient": "patient", "conflicts": "row"}
    return {label: eq.Scores.from_frame(frame, label=label, score=f"{prefix}{label}", **columns) for label in labels}


def networks(root: Path) -> dict[str, tuple[dict[str, eq.Scores], dict[str, float]]]:
    """The scores and thresholds of each network."""
    text = {"patient": str, "image": str}
    chexnet = pd.read_csv(root / "chexnet-nih" / "scores.csv.gz", dtype=text)
    labels = [name.removeprefix("score_") for name in chexnet.columns if name.startswith("score_")]
    patients = np.unique(chexnet["patient"])
    chosen = np.random.default_rng(0).permutation(patients)[: len(patients) // 3]
    third, cuts = chexnet[chexnet["patient"].isin(chosen)], {}
    for label in labels:
        y, score = third[label].to_numpy(), third[f"score_{label}"].to_numpy()
        tries = np.unique(score)
        rates = [[(score[y == k] >= cut).mean() for k in (1, 0)] for cut in tries]
        cuts[label] = float(tries[np.argmax([tpr - fpr for tpr, fpr in rates])])
    rest = chexnet[~chexnet["patient"].isin(chosen)]
    found = {"CheXNet": (scores_of(rest, labels, "score_", ["sex", "age"]), cuts)}
    larrazabal = pd.read_csv(root / "larrazabal-nih-sex" / "fold_00.csv.gz", dtype=text)
    table = pd.read_csv(root / "larrazabal-nih-sex" / "thresholds.csv").query("female_share == 0 and fold == 0").set_index("finding")
    prefixed = larrazabal.rename(columns=lambda name: name.replace("score0_", "own_"))
    cuts = {label: float(table.loc[label, "threshold"]) for label in table.index}
    found["Larrazabal, men only"] = scores_of(prefixed, list(cuts), "own_", ["sex"]), cuts
    medicine = pd.read_csv(root / "underdiagnosis-nih" / "scores.csv.gz", dtype=text)
    table = pd.read_csv(root / "underdiagnosis-nih" / "thresholds.csv").query("seed == 11").set_index("finding")
    cuts = {label: float(table.loc[label, "threshold"]) for label in table.index if label in medicine}
    found["Nature Medicine, seed 11"] = scores_of(medicine, list(cuts), "score11_", ["sex", "age"]), cuts
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--version", required=True, help="before or after")
    given, rows, listed = parser.parse_args(), [], []
    given.out.mkdir(parents=True, exist_ok=True)
    for name, (scores, cuts) in networks(Path(os.environ["EQUIPOISE_DATA"])).items():
        audit = eq.audit(scores, threshold=cuts)
        for label, own in audit.labels.items():
            gaps = own.gaps[own.gaps["measure"].isin(HARM) & own.gaps["value"].notna()]
            listed.append(gaps[gaps["p_value"] <= LISTED].assign(network=name, label=label))
            crossed = gaps["attribute"].isin(own.intersections)
            row = {"network": name, "version": given.version, "label": label, "comparisons": own.comparisons}
            row |= {"single": int((~crossed).sum()), "found_single": int(gaps["clear"][~crossed].sum())}
            row |= {"crossed": int(crossed.sum()), "found_crossed": int(gaps["clear"][crossed].sum())}
            rows.append(row | {"found_all": int(own.findings), "below_05": int((gaps["p_value"][~crossed] <= 0.05).sum())})
        print(name, audit.findings, flush=True)
    with (given.out / f"published_{given.version}.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    found = pd.concat(listed)[["network", "label", "measure", "attribute", "group", "reference", "value", "p_value", "p_adjusted", "clear"]]
    found.to_csv(given.out / f"findings_{given.version}.csv", index=False, float_format="%.4f")


if __name__ == "__main__":
    main()
