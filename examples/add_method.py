"""Add a method without editing the package: a random walk away from the original weights.

    python examples/add_method.py

A method is written for one model and yields steps. The driver evaluates each of them on the repair set, records the trace, keeps a copy of
the best state, applies the constraints of the goal and chooses; with `selection="honest"` it also runs the method on halves of the rows.
All that Equipoise knows of the method stands in its registration. In the package, this would be one file in `src/equipoise/methods/`.
"""

import argparse
from dataclasses import dataclass

import equipoise as eq
from equipoise.methods import Data, Goal, Rng, Step, Steps, Work, method
from equipoise.models import Repairable

NAME = "random-walk"


@dataclass(frozen=True)
class Settings:
    """What a user can set, as a keyword of `eq.debias` or with `--set random-walk.steps=...`."""

    steps: int = 20
    noise_sd: float = 0.02


@method(
    NAME,
    settings=Settings,
    title="small random steps away from the original weights, the best of them kept",
    cost=lambda task, settings: Work(len(task.repair) * settings.steps, settings.steps, f"{settings.steps} steps"),
)
def random_walk(model: Repairable, data: Data, goal: Goal, settings: Settings, rng: Rng) -> Steps:
    """One step per perturbation, each a little further from the original."""
    noise = rng(NAME)
    for step in range(1, settings.steps + 1):
        model.perturb(noise, settings.noise_sd * step)
        yield Step(step, progress=(step, settings.steps))


def main() -> None:
    parser = argparse.ArgumentParser(description="Add a method.")
    parser.add_argument("--rows", type=int, default=3_000)
    parser.add_argument("--epochs", type=int, default=20, help="of training")
    given = parser.parse_args()
    parts = eq.split(eq.load("loh", n=given.rows, alpha=2.0, seed=0), seed=0)
    model = eq.train(parts.train, parts.valid, seed=0, settings=eq.Training(epochs=given.epochs))
    for name in ("standard", NAME):
        result = eq.debias(model, parts.valid, method=name, measure="eod", min_performance=0.55, seed=0)
        found = eq.audit(result, parts.test)
        print(f"{result}\n  test set: eod {found['eod']}, balanced accuracy {found['balanced_accuracy']}")


if __name__ == "__main__":
    main()
