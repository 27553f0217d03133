"""Add a method without editing the package: one threshold for everybody, placed where the gap is small. The network stays as it is.

    python examples/add_method.py

A method is a module with a dataclass `Settings` and a function `run`, registered by `method`. It sees validation data alone.
"""

import argparse
import copy
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import pandas as pd
from torch import nn

import equipoise as eq
from equipoise.measures import sweep
from equipoise.methods import Candidate, Goal, Labels, Progress, method, select
from equipoise.methods.selection import plain_rule
from equipoise.models import predict

NAME = "one-threshold"


@dataclass(frozen=True)
class Settings:
    """What a user can set, as a keyword of `eq.debias`."""

    least: float = 0.0  # the lowest threshold that may be chosen


@method(NAME, settings=Settings, title="one threshold for everybody, where the gap is small")
def run(
    models: Sequence[nn.Module],
    cohorts: Sequence[eq.Cohort],
    goal: Goal,
    *,
    seeds: Sequence[int],
    settings: Settings,
    progress: Progress | None = None,
) -> list[Candidate]:
    """For each network, the threshold that meets the goal best, of all there are."""
    found = []
    for k, (model, cohort, seed) in enumerate(zip(models, cohorts, seeds, strict=True)):
        Labels.of([cohort], goal)  # raises where a group lacks the rows that the measure needs
        scores, groups, columns = predict(model, cohort), cohort.attribute, ["gap", "performance", "threshold"]
        swept = sweep(scores.score, scores.y, groups.codes, groups.levels, (goal.measure, goal.performance))
        best = swept.best(goal.performance)
        original = [best.values[goal.measure], best.values[goal.performance], best.threshold]  # step 0 of every trace
        tried = zip(swept.values[goal.measure], swept.values[goal.performance], swept.thresholds, strict=True)
        rows = [original, *(row for row in tried if row[2] >= settings.least)]
        trace = pd.DataFrame(rows, columns=columns, dtype=float).rename_axis("step").reset_index()
        settled = goal.settled(
            float(trace["performance"].iloc[0])
        )  # a goal without minimum performance or maximum gap gets a minimum performance
        choice = select(trace, settled)
        rule = plain_rule(NAME, trace, choice.row, cohort, settled)
        copied, own = copy.deepcopy(model), asdict(settings)
        found.append(Candidate(NAME, copied, rule, trace, choice.row, choice.why, choice.met, settled, seed, own))
        if progress:
            progress(k + 1, len(models))
    return found


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
        print(f"{result}\n  test part: eod {found['eod']}, balanced accuracy {found['balanced_accuracy']}")


if __name__ == "__main__":
    main()
