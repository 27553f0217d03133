"""A network of others, from its ONNX file to a repair and back: rows of experiments/third-party.

    python experiments/third-party/third_party.py tables --root data --out runs/third-party
    python experiments/third-party/third_party.py audit --root data --rows experiments/third-party/audit.csv
    python experiments/third-party/third_party.py fit --root data --out runs/third-party [--findings Effusion] [--group sex]
    python experiments/third-party/third_party.py rows --root data --out runs/third-party --rows experiments/third-party/rows.csv

The network is mobilenetv3-nih (15 outputs). It is repaired on images of the block cxr-nih (some with the finding and some without, at
random) and judged on all images of cxr-nih-009, of other and later patients. `tables` writes the tables for the commands in README.md,
`audit` uses the logits that came with the network, `fit` stores the decisions of each repair (it resumes), `rows` audits them.
"""

import argparse
import os
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pandas as pd

OUTPUTS = {"Effusion": 3, "Pneumothorax": 5, "Cardiomegaly": 9}  # the network's outputs
GROUPS = {"sex": "M", "view": "PA", "age": "<60"}  # with the reference
POSITIVES, NEGATIVES = 150, 250  # at most so many images with and without the finding in the repair set
ARMS: dict[str, dict[str, Any]] = {  # settings of eq.debias
    "group-thresholds": {"method": "group-thresholds"},
    "level-up": {"method": "level-up"},
    "bias-score": {"method": "bias-score"},
    "pruning": {"method": "pruning", "granularity": "channel", "steps": 60, "max_steps": 5, "budget": None, "selection": "paper"},
    "bias-gda": {"method": "bias-gda", "epochs": 3, "max_steps": 8, "budget": None, "selection": "paper"},
}


def table(root: Path, block: str) -> pd.DataFrame:
    """The images of a block with a column per finding and the network's published logits."""
    frame = pd.read_csv(root / block / "metadata.csv", dtype={"patient": str})
    known = pd.read_csv(root / "mobilenetv3-nih" / "reference_logits.csv.gz", dtype={"patient": str})
    logits = known[["image", *(f"logit_{finding}" for finding in OUTPUTS)]]
    frame = frame.merge(logits, on="image", validate="one_to_one")
    found = frame.finding.str.split("|")
    for finding in OUTPUTS:
        frame[finding] = found.map(lambda names, finding=finding: finding in names).astype(int)
        frame[f"known_{finding}"] = 1 / (1 + np.exp(-frame[f"logit_{finding}"]))
    frame["ageband"] = np.where(frame.age < 60, "<60", "60+")
    return frame.assign(path=block + "/images/" + frame.image)


def column(group: str) -> str:
    return "ageband" if group == "age" else group


def repair_rows(frame: pd.DataFrame, finding: str) -> pd.DataFrame:
    """Some images with the finding, and some without."""
    has = frame[finding] == 1
    most = min(POSITIVES, int(has.sum()))
    return pd.concat([frame[has].sample(most, random_state=2026), frame[~has].sample(NEGATIVES, random_state=2026)]).sort_index()


def decoded(root: Path, frame: pd.DataFrame, finding: str, group: str, name: str) -> Any:
    import equipoise as eq

    roles = {"label": finding, "group": column(group), "reference": GROUPS[group], "patient": "patient"}
    pixels = {"size": 224, "channels": 1, "mean": (0.485,), "std": (0.229,)}
    return eq.Cohort.from_images(frame, folder=root, image="path", name=name, **roles, **pixels)


def fit(root: Path, out: Path, finding: str, group: str, arms: list[str]) -> None:
    """Repairs the network by each arm, and stores its decisions on the later patients."""
    import torch

    import equipoise as eq
    from equipoise.models import OneOutput, load_model, predict

    torch.set_num_threads(1)
    file = out / f"{finding}-{group}.npz"
    kept: dict[str, Any] = dict(np.load(file)) if file.exists() else {}
    left = [arm for arm in ("original", *arms) if arm not in kept]
    if not left:
        return
    model = OneOutput(load_model(str(root / "mobilenetv3-nih" / "model_float.onnx")), OUTPUTS[finding], output="logit").eval()
    repair = decoded(root, repair_rows(table(root, "cxr-nih"), finding), finding, group, "repair")
    test = decoded(root, table(root, "cxr-nih-009"), finding, group, "later patients")
    scores = predict(model, test)  # of the original, once; rules decide from them
    for arm in left:
        start, own = time.perf_counter(), dict(ARMS.get(arm, {"method": "standard"}))
        if own.pop("selection", None):
            own["goal"] = eq.Goal(measure="eod", selection="paper")
        found = eq.debias(model, repair, seed=0, **own)
        weights_kept = ARMS.get(arm, {}).get("method") in (None, "group-thresholds", "level-up")
        kept[arm] = found.rule.decide(scores) if weights_kept else found.decide(test)
        kept[f"{arm}, acted"] = np.array(found.only.chosen > 0)
        kept[f"{arm}, seconds"] = np.array(time.perf_counter() - start)
        np.savez_compressed(file, **kept)
        print(f"{finding} by {group}, {arm}: {time.perf_counter() - start:.0f} s, step {found.only.chosen}", flush=True)


def audit(root: Path) -> pd.DataFrame:
    """The published logits on the later patients, decided at the threshold with the best balanced accuracy on the earlier ones."""
    from sklearn.metrics import roc_auc_score

    import equipoise as eq

    before, later, rows = table(root, "cxr-nih"), table(root, "cxr-nih-009"), []
    for finding in OUTPUTS:
        score, y = before[f"known_{finding}"].to_numpy(), before[finding].to_numpy()
        threshold = best_threshold(score, y)
        for group, reference in GROUPS.items():
            roles = {"label": finding, "group": column(group), "reference": reference, "patient": "patient"}
            scores = eq.Scores.from_frame(later, score=f"known_{finding}", **roles)
            gap = eq.audit(scores, threshold=threshold)["eod"]
            told: dict[str, Any] = {"finding": finding, "by": group, "reference": reference, "threshold": threshold}
            told |= {"gap": gap.value, "low": gap.low, "high": gap.high, "images": len(later), "patients": later.patient.nunique()}
            for level, part in later.groupby(column(group)):
                which = "reference" if level == reference else "other"
                told[f"auroc_{which}"] = roc_auc_score(part[finding], part[f"known_{finding}"])
                told[f"positives_{which}"] = int(part[finding].sum())
                told[f"tpr_{which}"] = float((part[f"known_{finding}"] >= threshold)[part[finding] == 1].mean())
            rows.append(told)
    return pd.DataFrame(rows)


def best_threshold(score: Any, y: Any) -> float:
    """The threshold with the largest balanced accuracy."""
    order = np.argsort(-score, kind="stable")
    gained = np.cumsum(y[order]) / y.sum() - np.cumsum(1 - y[order]) / (1 - y).sum()
    return float(score[order][int(gained.argmax())])


def audited(root: Path, out: Path) -> pd.DataFrame:
    """One row per finding, group and arm: rates of the groups, the gap, and its paired change with intervals by patient."""
    import equipoise as eq

    later, rows = table(root, "cxr-nih-009"), []
    for finding in OUTPUTS:
        for group, reference in GROUPS.items():
            file = out / f"{finding}-{group}.npz"
            if not file.exists():
                continue
            stored = dict(np.load(file))
            y, other = later[finding].to_numpy(), (later[column(group)] != reference).to_numpy()
            for arm in (arm for arm in ("original", *ARMS) if arm in stored):
                decided = stored[arm].astype(float)
                frame = later.assign(decided=decided)
                roles = {"label": finding, "group": column(group), "reference": reference, "patient": "patient"}
                gap = eq.audit(eq.Scores.from_frame(frame, score="decided", **roles), threshold=0.5)["eod"]
                told: dict[str, Any] = {"finding": finding, "by": group, "arm": arm, "gap": gap.value, "low": gap.low, "high": gap.high}
                for name, rest in (("reference", ~other), ("other", other)):
                    told |= {f"{rate}_{name}": decided[rest & (y == label)].mean() for rate, label in (("tpr", 1), ("fpr", 0))}
                told |= {"acted": bool(stored[f"{arm}, acted"]), "seconds": float(stored[f"{arm}, seconds"])}
                if arm != "original":
                    told |= change(later.patient, other, y, stored["original"].astype(float), decided)
                rows.append(told)
    return pd.DataFrame(rows)


def change(patients: Any, other: Any, y: Any, before: Any, after: Any) -> dict[str, float]:
    """The paired change of |gap| and of balanced accuracy, with percentiles of 2,000 resamples of patients."""
    codes, names = pd.factorize(patients)
    sums = np.zeros((len(names), 2, 2, 3))  # patient, group, label: rows, decisions before, after
    for at, values in enumerate((np.ones(len(y)), before, after)):
        np.add.at(sums[..., at], (codes, other.astype(int), y), values)
    rng, flat = np.random.default_rng(0), sums.reshape(len(names), -1)
    drawn = rng.multinomial(len(names), np.full(len(names), 1 / len(names)), size=2000)
    cells = (np.vstack([np.ones(len(names)), drawn]) @ flat).reshape(-1, 2, 2, 3)
    rates, pooled = cells[..., 1:] / cells[..., :1], cells.sum(1)
    gaps = np.abs(rates[:, 1, 1] - rates[:, 0, 1])
    accuracy = (pooled[:, 1, 1:] / pooled[:, 1, :1] + 1 - pooled[:, 0, 1:] / pooled[:, 0, :1]) / 2
    found = {}
    for name, values in (("gap_change", gaps[:, 1] - gaps[:, 0]), ("ba_change", accuracy[:, 1] - accuracy[:, 0])):
        low, high = np.nanquantile(values[1:], (0.025, 0.975))
        found |= {name: values[0], f"{name}_low": low, f"{name}_high": high}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("tables", "audit", "fit", "rows"))
    parser.add_argument("--root", required=True, type=Path, help="folder of mobilenetv3-nih, cxr-nih and cxr-nih-009")
    parser.add_argument("--out", type=Path, default=Path("runs/third-party"), help="folder of the tables and stored decisions")
    parser.add_argument("--rows", type=Path, help="CSV to write")
    parser.add_argument("--findings", default=",".join(OUTPUTS))
    parser.add_argument("--group", default="sex", choices=tuple(GROUPS))
    parser.add_argument("--arms", default=",".join(ARMS))
    given = parser.parse_args()
    if given.what in ("audit", "rows"):
        found = audit(given.root) if given.what == "audit" else audited(given.root, given.out)
        found.to_csv(given.rows, index=False, float_format="%.5g")
        print(found.to_string())
        return
    given.out.mkdir(parents=True, exist_ok=True)
    for finding in given.findings.split(","):
        if given.what == "fit":
            fit(given.root, given.out, finding, given.group, given.arms.split(","))
        else:
            repair_rows(table(given.root, "cxr-nih"), finding).to_csv(given.out / f"{finding}.csv", index=False)
            table(given.root, "cxr-nih-009").to_csv(given.out / "later.csv", index=False)


if __name__ == "__main__":
    main()
