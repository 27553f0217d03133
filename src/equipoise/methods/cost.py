"""How long a method takes on this machine: its work, counted by its own cost model, times what a row and an evaluation take here."""

import copy
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from equipoise.data import Cohort, Rows, Scores
from equipoise.methods.contract import METHODS, ONE_BY_ONE, Task, Work, settings_of, work_of
from equipoise.methods.evaluation import Label
from equipoise.methods.goal import Goal
from equipoise.models import evaluating, outputs

SAMPLE = {True: 32, False: 256}  # rows to measure on, images or a table: about as many as a method shows at a time


@dataclass(frozen=True)
class Speed:
    """What was measured on a few rows: seconds of a row through the network, and of an evaluation of all labels."""

    task: Task
    per_row: float
    per_evaluation: float
    labels: int = 1

    @classmethod
    def measured(cls, model: nn.Module | None, repair: Rows, goal: Goal, train: Cohort | None = None, labels: int = 1) -> "Speed":
        """The speed of a network on the rows of one label; scores are there already, and take no time."""
        if model is None or isinstance(repair, Scores):
            return cls(Task(None, repair, goal, train, 1.0), 0.0, labels * seconds_per_evaluation(repair, goal), labels)
        per_row = seconds_per_row(model, repair)
        tunable = next(model.parameters(), None) is not None
        backward = max(1.0, seconds_per_row(copy.deepcopy(model), repair, gradients=True) / per_row) if tunable else 1.0
        return cls(Task(model, repair, goal, train, backward), per_row, labels * seconds_per_evaluation(repair, goal), labels)

    def work(self, name: str, settings: Mapping[str, Any]) -> Work:
        """The work of a method; one that takes several labels one by one runs once for each of them."""
        work = work_of(name, self.task, settings_of(name, settings))
        if self.labels == 1 or METHODS[name].labels != ONE_BY_ONE:
            return work
        rows = None if work.rows is None else self.labels * work.rows
        return Work(rows, work.evaluations, f"{self.labels} runs, one per label, of: {work.what}", self.labels * work.seconds)

    def seconds(self, work: Work, more_rows: float = 0.0) -> float | None:
        """About how long that takes, with so many more rows through the network; None where the work is not known."""
        if work.rows is None:
            return None
        return (work.rows + more_rows) * self.per_row + work.evaluations * self.per_evaluation + work.seconds


def seconds_per_row(model: nn.Module, cohort: Cohort, gradients: bool = False) -> float:
    """Seconds per row, or with gradients per row of a step of fine-tuning (which changes the network); measured after a warm-up."""
    inputs = cohort.inputs
    few = inputs[: min(len(inputs), SAMPLE[len(inputs.shape) > 2])]
    optimiser = torch.optim.Adam(model.parameters(), lr=0.0) if gradients else None

    def once() -> None:
        if optimiser is None:
            outputs(model, few)
            return
        with evaluating(model):
            model(few.to(next(model.parameters()).device)).float().sum().backward()
        optimiser.step()
        optimiser.zero_grad()

    once()
    start = time.perf_counter()
    once()
    return (time.perf_counter() - start) / len(few)


def seconds_per_evaluation(cohort: Rows, goal: Goal) -> float:
    """Seconds per evaluation of all thresholds."""
    labels, scores = Label.of([cohort], goal), np.linspace(0, 1, len(cohort))[None]
    start = time.perf_counter()
    labels.evaluate(scores)
    return time.perf_counter() - start
