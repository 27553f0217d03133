"""Several labels in one repair, on patients: a ResNet-18 with three outputs on NIH ChestX-ray14, by sex, repaired for all of them at once.

    python experiments/multi-label/nih_labels.py ../shared/data/cxr-nih --size 112 --splits 10
    python experiments/multi-label/nih_labels.py table labels.jsonl

Every frontal image has three labels (infiltration, effusion, atelectasis, each there or not). The network is trained from scratch on 60 %
of the patients and repaired on 20 %; a line of JSON for each split, method and label tells the rest: EOD (women minus men), its
p-value, balanced accuracy, seconds of the repair. It runs where the data and the network do: on a GPU if there is one.
"""

import argparse
import copy
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import equipoise as eq
from equipoise.models import backbone
from equipoise.studies.sets.chest_xrays import NIH_FINDINGS, labels_in

LABELS = [NIH_FINDINGS[name] for name in ("infiltration", "effusion", "atelectasis")]
TRAIN = "-train"
METHODS: dict[str, dict[str, Any]] = {
    "constrained": {"schedule": "paper", "learning_rate": 1e-4, "batch": 64},
    "bias-gda": {"schedule": "paper", "learning_rate": 1e-5, "batch": 32, "epochs": 10, "evals_per_epoch": 10},
    "bias-score": {},
    "bias-score-train": {},  # sex is learnt from the train part too
    "pruning": {"layers": "conv1", "units": 1_500, "max_steps": 60},
    "group-thresholds": {},
}


def cohort(folder: Path, size: int) -> eq.Cohort:
    frame = labels_in(folder)
    found = frame["finding"].str.split("|")
    for label in LABELS:
        frame[label] = found.map(lambda names, label=label: int(label in names))
    return eq.Cohort.from_images(
        frame, folder=folder / "images", image="image", label=LABELS, group="sex", reference="M", patient="patient", size=size, name="nih"
    )


def trained(parts: eq.Parts, seed: int, epochs: int, device: torch.device) -> nn.Module:
    """A ResNet-18 with an output a label: AdamW, cross-entropy with positives as heavy as negatives, the best epoch by validation loss."""
    torch.manual_seed(seed)
    net = backbone("resnet-18")
    net.fc = nn.Linear(512, len(LABELS))
    net.to(device)
    y, y_valid = (torch.from_numpy(part.targets).float() for part in (parts.train, parts.valid))
    weight = ((1 - y).sum(0) / y.sum(0)).to(device)
    optimiser, best = torch.optim.AdamW(net.parameters(), lr=1e-4), (np.inf, copy.deepcopy(net.state_dict()))

    def loss(part: eq.Cohort, labels: Tensor, rows: Tensor) -> Tensor:
        logits = net(part.inputs[rows].to(device))
        return F.binary_cross_entropy_with_logits(logits, labels[rows].to(device), pos_weight=weight)

    for _ in range(epochs):
        net.train()
        for rows in torch.randperm(len(y)).split(32):
            optimiser.zero_grad()
            loss(parts.train, y, rows).backward()
            optimiser.step()
        net.eval()
        with torch.no_grad():
            now = sum(float(loss(parts.valid, y_valid, rows)) * len(rows) for rows in torch.arange(len(y_valid)).split(256))
        if now < best[0]:
            best = now, copy.deepcopy(net.state_dict())
    net.load_state_dict(best[1])
    net.eval()
    return net


def measure(folder: Path, size: int, splits: range, epochs: int, methods: list[str]) -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    whole = cohort(folder, size)
    for seed in splits:
        parts = eq.split(whole, seed=seed)
        net = trained(parts, seed, epochs, device)
        tell(seed, "standard", eq.audit(net, parts.test, valid=parts.valid), 0.0)
        for method in methods:
            begin = time.perf_counter()
            train = parts.train if method.endswith(TRAIN) else None
            result = eq.debias(
                net,
                parts.valid,
                method=method.removesuffix(TRAIN),
                measure="eod",
                selection="paper",
                seed=seed,
                train=train,
                **METHODS[method],
            )
            tell(seed, method, eq.audit(result, parts.test), time.perf_counter() - begin)


def tell(seed: int, method: str, audits: eq.Audit, seconds: float) -> None:
    for label in LABELS:
        gap = audits[label]["eod"]
        row = {
            "split": seed,
            "method": method,
            "label": label,
            "gap": gap.value,
            "p_value": gap.p_value,
            "ba": audits[label]["balanced_accuracy"].value,
        }
        print(json.dumps({**row, "seconds": round(seconds, 2)}), flush=True)


def table(path: Path) -> None:
    rows = pd.read_json(path, lines=True)
    print("| label | method | EOD | mean &#124;EOD&#124; | BA | seconds |\n|---|---|---|---|---|---|")
    for (label, method), found in rows.groupby(["label", "method"], sort=False):
        mean, error = found["gap"].mean(), found["gap"].std() / len(found) ** 0.5
        print(
            f"| {label} | {method} | {mean:+.3f} ± {error:.3f} | {found['gap'].abs().mean():.3f} "
            f"| {found['ba'].mean():.3f} | {found['seconds'].mean():.1f} |"
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["table"]:
        table(Path(sys.argv[2]))
    else:
        parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("folder", type=Path)
        parser.add_argument("--size", type=int, default=112)
        parser.add_argument("--first", type=int, default=0)
        parser.add_argument("--splits", type=int, default=10)
        parser.add_argument("--epochs", type=int, default=15)
        parser.add_argument("--methods", default=",".join(METHODS))
        given = parser.parse_args()
        measure(given.folder, given.size, range(given.first, given.first + given.splits), given.epochs, given.methods.split(","))
