"""X-rays of known brightness by row, the options of their audit and networks that read the brightness."""

import numpy as np
import pandas as pd

ROWS = 48
BUILD = """
import torch
from torch import nn

def build():
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1, 1))

def colour():
    return nn.Sequential(nn.Conv2d(3, 1, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())

def fixed():
    return nn.Sequential(nn.Flatten(), nn.Linear(96 * 96, 1))

class Many(nn.Module):
    def __init__(self):
        super().__init__()
        self.pathologies = ["Edema", "Effusion"]
        self.layer = nn.Linear(1, 2)

    def forward(self, x):
        return torch.stack([x.mean((1, 2, 3)), -x.mean((1, 2, 3))], 1) + 0 * self.layer.bias

class Foreign(nn.Linear):
    __module__ = "torchxrayvision.models"

def foreign():
    return Foreign(1, 1)
"""
AUDIT = ["--images", "xrays", "--label", "sick", "--group", "sex", "--reference", "M", "--patient", "pid", "--set", "images.size=8"]
MODEL = ["--model", "net.py:build", "--weights", "w.safetensors"]


def rows_frame() -> pd.DataFrame:
    rows = np.arange(ROWS)
    return pd.DataFrame(
        {
            "image": [f"{k:02}.png" for k in rows],
            "sick": rows % 2,
            "sex": np.where(rows % 4 < 2, "F", "M"),
            "pid": [f"p{k // 2}" for k in rows],
            "view": np.where(rows % 12 == 11, "LATERAL", "PA"),
        }
    )
