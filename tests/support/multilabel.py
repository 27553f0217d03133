"""Small biased problems with several labels or classes, and networks trained on them, for the tests of repairs of all of them at once."""

import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.nn import functional as F

from equipoise.data import Cohort

LABELS = ["Effusion", "Mass"]
CLASSES = ["none", "pneumonia", "effusion"]
QUICK = {
    "constrained": {"epochs": 4, "batch": 128},
    "bias-gda": {"epochs": 4, "learning_rate": 1e-3, "batch": 128},
    "pruning": {"steps": 6},
    "random": {"trials": 5},
}


def labels_frame(n: int, seed: int, groups: int = 2) -> pd.DataFrame:
    """Two labels. Women's signs of both are weaker, and a column tells the group, so that a network gives them lower scores."""
    rng = np.random.default_rng(seed)
    a = rng.integers(0, groups, n)  # 0 is the reference
    frame = {f"noise {k}": rng.normal(size=n) for k in range(3)}
    tell = rng.normal(size=n) + 2.5 * (a > 0)
    for at, label in enumerate(LABELS):
        y = (rng.random(n) < 0.65 - (0.4 if at == 0 else 0.3) * (a > 0)).astype(int)
        frame[f"sign {at}"] = rng.normal(size=n) + 1.6 * y
        frame[label] = y
    return pd.DataFrame({**frame, "tell": tell, "sex": np.array(["M", "F", "D"])[a]})


def labels_cohort(n: int = 1500, seed: int = 0, groups: int = 2) -> Cohort:
    frame = labels_frame(n, seed, groups)
    return Cohort.from_frame(frame, label=LABELS, group="sex", reference="M", scale=False, name=f"labels {seed}")


def classes_cohort(n: int = 1800, seed: int = 0) -> Cohort:
    """Three classes whose shares differ between the groups, and a column that tells the group."""
    rng = np.random.default_rng(seed)
    a = rng.integers(0, 2, n)
    shares = np.array([[0.2, 0.3, 0.5], [0.55, 0.3, 0.15]])
    y = (rng.random(n)[:, None] > shares.cumsum(1)[a]).sum(1)
    x = rng.normal(size=(n, 6)).astype(np.float32)
    x[np.arange(n), y] += 1.8
    x[:, 3] += 2.5 * a
    named = np.array(CLASSES, dtype=object)[y]
    return Cohort.from_arrays(x, named, np.where(a == 0, "M", "F"), reference="M", classes=CLASSES, name=f"classes {seed}")


def network(inputs: int, outputs: int, hidden: int = 16) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, 8), nn.ReLU(), nn.Linear(8, outputs))


def fitted(model: nn.Module, cohort: Cohort, epochs: int = 60, seed: int = 0) -> nn.Module:
    """The network after some full-batch steps of Adam."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for module in model.modules():
            if isinstance(module, nn.Linear):
                module.reset_parameters()
    x, targets = torch.as_tensor(cohort.inputs).float(), torch.from_numpy(cohort.targets)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(epochs):
        raw = model(x)
        if cohort.kind == "classes":
            loss = F.cross_entropy(raw, targets.argmax(1))
        else:
            known = (targets >= 0).float()
            loss = (F.binary_cross_entropy_with_logits(raw, targets.clamp(min=0).float(), reduction="none") * known).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    for p in model.parameters():
        p.grad = None
    return model.eval()
