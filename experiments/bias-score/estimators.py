"""bias-score on scikit-learn models. Usage: python experiments/bias-score/estimators.py --out FILE [--splits 3] [--data compas bank adult]

The probes of bias-score read inputs and scores only, so that anything with a forward pass can be repaired: here a logistic regression,
gradient boosting and a random forest, each in a module of three lines, next to the original and one threshold per group. With honest
selection and no settings but the measure; values are of the test set.
"""

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[1] / "peers"))  # libraries.py

import pandas as pd
import torch
from libraries import measured
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

import equipoise as eq
from equipoise.models import predict

MEASURES = ("spd", "eod")
MODELS: dict[str, Any] = {
    "logistic regression": lambda seed: LogisticRegression(max_iter=2000, random_state=seed),
    "gradient boosting": lambda seed: HistGradientBoostingClassifier(random_state=seed),
    "random forest": lambda seed: RandomForestClassifier(200, min_samples_leaf=5, random_state=seed),
}


class Estimator(nn.Module):
    """A fitted scikit-learn classifier as a network that returns a probability. It has no gradients: rules and probes can repair it."""

    output = "probability"

    def __init__(self, estimator: Any) -> None:
        super().__init__()
        self.estimator = estimator

    def forward(self, x: Tensor) -> Tensor:
        return torch.from_numpy(self.estimator.predict_proba(x.cpu().numpy())[:, 1]).to(x)


def main() -> None:
    """Writes one row per data set, model, split, measure and method."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--data", nargs="+", default=["compas", "bank", "adult"])
    given = parser.parse_args()
    rows = []
    for data in given.data:
        for split in range(given.splits):
            parts = eq.split(eq.load(data), seed=split)
            for name, make in MODELS.items():
                model = Estimator(make(split).fit(parts.train.inputs.numpy(), parts.train.y)).eval()
                for measure in MEASURES:
                    for method in ("standard", "bias-score", "group-thresholds"):
                        start = time.process_time()
                        found = eq.debias(model, parts.valid, method=method, measure=measure, seed=split)
                        scores = predict(found.model, parts.test)
                        told = {"data": data, "model": name, "split": split, "measure": measure, "method": method}
                        held = measured(measure, found.rule.decide(scores), scores)
                        told |= {"gap": held["gap"], "chosen": found.chosen, "balanced_accuracy": held["balanced_accuracy"]}
                        rows.append({**told, "outcome": str(found.outcome), "seconds": time.process_time() - start})
                print(pd.DataFrame(rows[-6:]).round(3).to_string(header=split == 0), flush=True)
    pd.DataFrame(rows).round(6).to_csv(given.out, index=False)


if __name__ == "__main__":
    main()
