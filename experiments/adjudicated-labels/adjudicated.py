"""Gaps within views, and by adjudicated labels, of two published chest X-ray networks: rows of experiments/adjudicated-labels.

    python experiments/adjudicated-labels/adjudicated.py --out experiments/adjudicated-labels [views | labels | coverage]

Scores are those of `chexnet-nih` and `larrazabal-nih-sex` under the data root, adjudicated labels those of `nih-radiologist-labels`. The
threshold of a finding flags as many rows as are labelled, so that no threshold was chosen for a gap.
"""

import argparse
import os
from pathlib import Path

import numpy as np
import pandas as pd

import equipoise as eq
from equipoise.data import read_table
from equipoise.measures import AuditSpec
from equipoise.measures.label_noise import label_gaps
from equipoise.measures.strata import gaps_within

DATA = Path(os.environ["EQUIPOISE_DATA"])
FINDINGS = (
    *("Atelectasis", "Cardiomegaly", "Effusion", "Infiltration", "Mass", "Nodule", "Pneumonia"),
    *("Pneumothorax", "Consolidation", "Edema", "Emphysema", "Fibrosis", "Pleural_Thickening"),
)  # without hernia, of which no patient under 40 has one
MEASURES = ("eod", "fpr_gap")
TEXT = {"patient", "image", "sex", "view"}
ADJUDICATED = {"Pneumothorax": "Pneumothorax", "Nodule or mass": "NoduleMass"}  # column of the radiologists: column of the label


def flagging_as_many(frame: pd.DataFrame, finding: str, score: str) -> float:
    """The threshold at which as many rows are flagged as are labelled."""
    return float(np.quantile(frame[score], 1 - frame[finding].mean(), method="higher"))


def views() -> pd.DataFrame:
    """CheXNet's gaps by sex and age, of all patients and within the view."""
    frame, rows = read_table(DATA / "chexnet-nih" / "scores.csv.gz", text=TEXT), []
    for finding in FINDINGS:
        roles = {"label": finding, "score": f"score_{finding}", "group": ["sex", "age"], "reference": ["M", "40-59"], "patient": "patient"}
        scores = eq.Scores.from_frame(frame, within="view", bins={"age": [40, 60]}, **roles)
        audit = eq.audit(scores, threshold=flagging_as_many(frame, finding, f"score_{finding}"), measures=MEASURES)
        crude = audit.gaps[["measure", "attribute", "group", "low", "high"]].rename(columns={"low": "crude_low", "high": "crude_high"})
        found = audit.within.merge(crude, on=["measure", "attribute", "group"])
        rows.append(found[found["attribute"].isin(["sex", "age"])].assign(finding=finding))
    kept = ["finding", "measure", "attribute", "group", "reference", "crude", "crude_low", "crude_high", "value", "low", "high", "left_out"]
    return pd.concat(rows)[kept].round(4)


def labels() -> tuple[pd.DataFrame, pd.DataFrame]:
    """The gaps between women and men by the text-mined and by the adjudicated label, and how well the two agree."""
    files = {
        "chexnet": (DATA / "chexnet-nih" / "scores.csv.gz", "score_"),
        "larrazabal, half women": (DATA / "larrazabal-nih-sex" / "fold_00.csv.gz", "score50_"),
        "larrazabal, men only": (DATA / "larrazabal-nih-sex" / "fold_00.csv.gz", "score0_"),
    }
    expert = read_table(DATA / "nih-radiologist-labels" / "google2019_nih-chest-xray-labels.csv.gz", text={"Image Index"})
    expert = expert.rename(columns={"Image Index": "image"} | {column: f"expert {column}" for column in ADJUDICATED})
    expert, gaps, groups = expert[["image", *(f"expert {column}" for column in ADJUDICATED)]], [], []
    for name, (path, prefix) in files.items():
        frame = read_table(path, text=TEXT).merge(expert, on="image", how="left")
        frame["NoduleMass"] = frame[["Nodule", "Mass"]].max(axis=1)
        frame[f"{prefix}NoduleMass"] = frame[[f"{prefix}Nodule", f"{prefix}Mass"]].max(axis=1)
        for column, finding in ADJUDICATED.items():
            frame["expert"] = frame[f"expert {column}"].map({"YES": 1, "NO": 0})
            roles = {"label": finding, "score": f"{prefix}{finding}", "group": "sex", "reference": "M", "patient": "patient"}
            scores = eq.Scores.from_frame(frame, audit_label="expert", **roles)
            audit = eq.audit(scores, threshold=flagging_as_many(frame, finding, f"{prefix}{finding}"), measures=MEASURES)
            gaps.append(audit.label_gaps.assign(scores=name, finding=finding))
            groups.append(audit.label_groups.assign(scores=name, finding=finding))
    first = ["scores", "finding"]
    return tuple(pd.concat(each).set_index(first).reset_index().round(4) for each in (gaps, groups))


def coverage(repetitions: int = 1000) -> pd.DataFrame:
    """How often the intervals contain the gap of the world that the rows were drawn from."""
    rows = []
    for size, adjudicated in ((1000, 300), (2500, 600), (2500, 1500)):
        rng, found = np.random.default_rng(size + adjudicated), []
        for _ in range(repetitions):
            sex = np.repeat(["F", "M"], size)
            women, truth = sex == "F", rng.random(2 * size) < 0.15
            mined = np.where(truth, rng.random(2 * size) < np.where(women, 0.45, 0.65), rng.random(2 * size) < 0.03)
            decided = rng.random(2 * size) < np.where(truth, np.where(women, 0.65, 0.75), np.where(women, 0.12, 0.10))
            wanted = np.where(mined, 6.0, 1.0) * np.where(decided, 2.0, 1.0)
            seen = rng.random(2 * size) < adjudicated * wanted / wanted.sum()
            frame = pd.DataFrame({"y": mined.astype(int), "p": decided * 1.0, "sex": sex, "expert": np.where(seen, truth, np.nan)})
            scores = eq.Scores.from_frame(frame, label="y", score="p", group="sex", reference="M", audit_label="expert")
            gaps = label_gaps(scores, frame["p"].to_numpy(), scores.attributes, AuditSpec(measures=MEASURES))
            for measure, true, of in zip(MEASURES, (-0.10, 0.02), gaps.to_dict("records"), strict=True):
                for kind in ("label", "adjudicated", "corrected"):
                    low, high = of[f"{kind}_low"], of[f"{kind}_high"]
                    found.append((measure, kind, of[kind] - true, low <= true <= high, high - low))
        whole = pd.DataFrame(found, columns=["measure", "gap", "bias", "covered", "width"])
        means = whole.groupby(["measure", "gap"], sort=False).mean().reset_index()
        rows.append(means.assign(world="labels", rows=2 * size, adjudicated=adjudicated, repetitions=repetitions))
    for patients in (60, 150, 400):
        rng, found = np.random.default_rng(patients), []
        for _ in range(repetitions):
            patient = np.repeat(np.arange(2 * patients), rng.geometric(0.4, 2 * patients).clip(max=15))
            women = patient < patients
            ap = rng.random(len(patient)) < np.where(women, 0.7, 0.3)
            y = rng.random(len(patient)) < np.where(ap, 0.4, 0.3)
            rate = np.where(y, np.where(ap, 0.5, 0.8) - 0.1 * women, np.where(ap, 0.3, 0.1))
            luck = np.where(rng.random(len(patient)) < 0.3, rng.random(2 * patients)[patient], rng.random(len(patient)))
            f, sex, view = (luck < rate) * 1.0, np.where(women, "F", "M"), np.where(ap, "AP", "PA")
            frame = pd.DataFrame({"y": y.astype(int), "p": f, "sex": sex, "view": view, "patient": patient.astype(str)})
            scores = eq.Scores.from_frame(frame, label="y", score="p", group="sex", reference="M", patient="patient", within="view")
            gaps = gaps_within(scores, f, scores.attributes, AuditSpec(measures=MEASURES))
            for true, of in zip((-0.10, 0.0), gaps.to_dict("records"), strict=True):
                found.append((of["measure"], "within", of["value"] - true, of["low"] <= true <= of["high"], of["high"] - of["low"]))
        whole = pd.DataFrame(found, columns=["measure", "gap", "bias", "covered", "width"])
        means = whole.groupby(["measure", "gap"], sort=False).mean().reset_index()
        rows.append(means.assign(world="views", rows=f"{2 * patients} patients", repetitions=repetitions))
    return pd.concat(rows).round(4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("what", nargs="*", choices=["views", "labels", "coverage", []], default=["views", "labels", "coverage"])
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    if "views" in asked.what:
        views().to_csv(asked.out / "views.csv", index=False)
    if "labels" in asked.what:
        for name, rows in zip(("gaps", "groups"), labels(), strict=True):
            rows.to_csv(asked.out / f"{name}.csv", index=False)
    if "coverage" in asked.what:
        coverage().to_csv(asked.out / "coverage.csv", index=False)


if __name__ == "__main__":
    main()
