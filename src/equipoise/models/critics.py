"""Small fully connected networks with a leading axis of replicates: the critics and adversaries of adversarial methods."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn


class Critics(nn.Module):
    """R equal perceptrons (ReLU, dropout between layers), one a replicate, each made and regularised by its own generator.

    >>> Critics([4, 8, 1], [np.random.default_rng(0)])(torch.zeros(1, 5, 4)).shape
    torch.Size([1, 5, 1])
    """

    def __init__(self, sizes: Sequence[int], generators: Sequence[np.random.Generator], dropout: float = 0.0) -> None:
        super().__init__()
        self.generators, self.p = generators, dropout
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for inputs, outputs in pairwise(sizes):
            limit = inputs**-0.5
            drawn = np.stack([g.uniform(-limit, limit, (inputs + 1, outputs)) for g in generators]).astype(np.float32)
            self.weights.append(nn.Parameter(torch.from_numpy(drawn[:, :-1]).contiguous()))
            self.biases.append(nn.Parameter(torch.from_numpy(drawn[:, -1:]).contiguous()))

    def forward(self, x: Tensor) -> Tensor:
        """Outputs (R, rows, last size) of inputs (R, rows, first size)."""
        for k, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.baddbmm(bias, x, weight)
            if k + 1 < len(self.weights):
                x = torch.relu(x)
                if self.training and self.p:
                    kept = np.stack([g.random(x.shape[1:], dtype=np.float32) >= self.p for g in self.generators])
                    x = x * torch.from_numpy(kept).to(x) / (1 - self.p)
        return x
