"""Scores that a test chooses, and a network that gives them."""

import numpy as np
import pandas as pd
import torch
from torch import nn

from equipoise.data import Cohort, Scores


class Logit(nn.Module):
    """Its input is its logit, so that a test can choose the scores."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale * x[:, 0]


def scored(score, y, groups, reference="M") -> Scores:
    frame = pd.DataFrame({"p": score, "y": y, "sex": groups})
    return Scores.from_frame(frame, label="y", score="p", group="sex", reference=reference)


def cohort_of(scores: Scores) -> Cohort:
    """The cohort on which `Logit` gives these scores."""
    logit = torch.from_numpy(np.log(scores.score / (1 - scores.score))).float()
    return Cohort.from_arrays(logit[:, None], scores.y, scores.groups, reference="M", attribute="sex")
