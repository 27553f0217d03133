"""The settings of training."""

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite

import torch

from equipoise.errors import pick, raise_all

Progress = Callable[[int, float], None]  # epoch, validation loss
OPTIMISERS: dict[str, type[torch.optim.Adam] | type[torch.optim.AdamW]] = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


@dataclass(frozen=True)
class Training:
    """The settings of training. `patience` counts epochs without a better validation loss."""

    epochs: int = 1000
    batch: int = 64
    learning_rate: float = 1e-3
    patience: int = 30
    plateau: int = 10  # epochs without improvement after which the rate falls to a tenth
    optimiser: str = "adam"  # or adamw
    schedule: str = "plateau"  # or step: a tenth of the rate after every so many epochs
    step: int = 7
    augment: bool = False  # for images: centre crop, flip, translation and rotation at random
    restore: str = "best"  # the weights with the lowest validation loss; or last: those of the last epoch

    def __post_init__(self) -> None:
        pick("optimiser of training", self.optimiser, OPTIMISERS)
        pick("schedule of training", self.schedule, ("plateau", "step"))
        pick("weights to restore after training", self.restore, ("best", "last"))
        least = {"epochs": 0, "batch": 1, "patience": 1, "plateau": 1, "step": 1}  # no epochs: the network as it was initialised
        counts = {name: getattr(self, name) for name in least}
        problems = [
            f"{name} of training must be at least {least[name]}; got {value}" for name, value in counts.items() if value < least[name]
        ]
        if not (isfinite(self.learning_rate) and self.learning_rate > 0):
            problems.append(f"learning_rate must be a positive number; got {self.learning_rate}")
        raise_all(problems)


IMAGES = Training(epochs=20, batch=32, learning_rate=1e-4, patience=5, optimiser="adamw", schedule="step", augment=True)
