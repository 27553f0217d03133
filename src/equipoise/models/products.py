"""Features of rows and products with them: by numpy, or by torch on the device that they are on.

What goes in and out is numpy's, so that a method which needs products with many features and little else is written once. Torch is imported
only where a device is named.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from equipoise.data import IntArray
from equipoise.models.protocol import BoolArray, FloatArray

if TYPE_CHECKING:
    import torch


class Features:
    """Features (n, d) and products with them, by numpy, or by torch on the device that they are on; what goes in and out is numpy's."""

    def __init__(self, x: "FloatArray | torch.Tensor") -> None:
        self.x: Any = x
        self.numpy = isinstance(x, np.ndarray)

    @classmethod
    def on(cls, x: FloatArray, device: "torch.device | None") -> "Features":
        """These features on a device; None: as they are."""
        if device is None:
            return cls(x)
        import torch

        return cls(torch.from_numpy(x).to(device))

    def _in(self, values: Any) -> Any:
        if self.numpy:
            return values
        import torch

        return torch.from_numpy(np.ascontiguousarray(values)).to(self.x.device)

    def _out(self, values: Any) -> FloatArray:
        found: FloatArray = values if self.numpy else values.cpu().numpy()
        return found

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, rows: "BoolArray | IntArray") -> "Features":
        return Features(self.x[self._in(rows)])

    def array(self) -> FloatArray:
        """The features as an array."""
        return self._out(self.x)

    def moments(self) -> tuple[FloatArray, FloatArray]:
        """The mean and the standard deviation of each (d,)."""
        spread = self.x.std(0) if self.numpy else self.x.std(0, correction=0)
        return self._out(self.x.mean(0)), self._out(spread)

    def standardised(self, mean: FloatArray, scale: FloatArray) -> "Features":
        """The features less a mean, in units of a scale (d,)."""
        return Features((self.x - self._in(mean)) / self._in(scale))

    def with_ones(self) -> "Features":
        """The features and a column of ones, for an intercept."""
        if self.numpy:
            return Features(np.column_stack([self.x, np.ones(len(self.x))]))
        import torch

        return Features(torch.cat([self.x, torch.ones_like(self.x[:, :1])], dim=1))

    def times(self, theta: FloatArray) -> FloatArray:
        """x theta (n,) or (n, k)."""
        return self._out(self.x @ self._in(theta))

    def against(self, values: FloatArray) -> FloatArray:
        """The sum over the rows of values (n,) or (n, k) times the features: (d,) or (d, k)."""
        return self._out(self.x.T @ self._in(values))

    def gram(self, weight: FloatArray, rows: slice) -> FloatArray:
        """The sum over some rows of weight * x x' (d, d); `weight` (n,) is that of all rows."""
        roots = self._in(np.sqrt(weight[rows]))[:, None] * self.x[rows]
        return self._out(roots.T @ roots)
