"""A small network for gray images of 48 x 48 pixels that gives one logit: three convolutions and two linear layers.

It needs nothing but torch, so that this very file can lie next to its weights as a hospital's own code would: `equipoise demo` copies it.
"""

from torch import nn

SIZE = 48


def build() -> nn.Module:
    """The network without training."""
    return nn.Sequential(
        *_block(1, 8, kernel=5),
        *_block(8, 16),
        *_block(16, 32),
        nn.Flatten(),
        nn.Linear(32 * (SIZE // 8) ** 2, 32),
        nn.ReLU(),
        nn.Linear(32, 1),
    )


def _block(channels: int, filters: int, kernel: int = 3) -> tuple[nn.Module, ...]:
    """A convolution that halves the sides."""
    return nn.Conv2d(channels, filters, kernel, stride=2, padding=kernel // 2), nn.BatchNorm2d(filters), nn.ReLU()
