"""The paper's fully connected network (Table `tab:arch`)."""

from itertools import pairwise

import torch
from torch import Tensor, nn


class MLP(nn.Module):
    """Linear, ReLU, dropout, batch norm: once from the inputs and `depth` times more, then one logit.

    The paper's network ends in a sigmoid; this one returns the logit, whose sigmoid is the score.

    >>> MLP(98)(torch.zeros(4, 98)).shape
    torch.Size([4])
    """

    output = "logit"

    def __init__(self, inputs: int, width: int = 32, depth: int = 10, dropout: float = 0.05) -> None:
        super().__init__()
        self.inputs, self.width, self.depth = inputs, width, depth
        sizes = [inputs, *[width] * (depth + 1)]
        self.linears = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for _ in range(depth + 1))
        self.out = nn.Linear(width, 1)
        self.dropout = nn.Dropout(dropout)
        self.threshold: float | None = None  # chosen on validation data by `train`

    def forward(self, x: Tensor) -> Tensor:
        for linear, norm in zip(self.linears, self.norms, strict=True):
            x = norm(self.dropout(torch.relu(linear(x))))
        logit: Tensor = self.out(x)[:, 0]
        return logit
