"""The time that a method takes on this machine: its work, by its own cost model, times the measured time per row and per evaluation."""

import copy
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from equipoise.data import Cohort, Rows, Scores
from equipoise.methods.contract import METHODS, ONE_BY_ONE, Kind, Task, Work, adaptive, cross_fitting_parts, make_settings
from equipoise.methods.evaluation import Label
from equipoise.methods.goal import Goal
from equipoise.models import evaluating, outputs

SAMPLE = {True: 32, False: 256}  # rows to time, for images and tables: about one mini-batch of a method


def work_of(name: str, task: Task, settings: Any) -> Work:
    """The work of a method with the goal's selection: cross-fitted selection runs it several times."""
    method = METHODS[name]
    once = method.cost(task, settings)
    if method.kind == Kind.OTHERS or task.goal.selection == "paper" or once.rows is None or not method.selects:
        return once
    parts = cross_fitting_parts(method, len(task.repair))
    what = f"{parts + 1} fits, for {task.goal.selection} selection, of: {once.what}"
    if method.kind == Kind.RULE:  # all fits use the scores of the original network
        return Work(once.rows, (parts + 1) * once.evaluations, what, once.seconds)
    if method.kind == Kind.PROBES:  # all fits use one pass of the network over all rows
        return Work(once.rows, (parts + 1) * once.evaluations, what, parts * once.seconds)
    runs = 3 if adaptive(settings) else 4  # two halves, all rows, and all rows again up to the chosen step
    what = f"up to {runs} runs, for {task.goal.selection} selection, of: {once.what}"
    return Work(runs * once.rows, runs * once.evaluations, what, runs * once.seconds)


@dataclass(frozen=True)
class Speed:
    """Seconds per row through the network and per evaluation of all labels, measured on a few rows."""

    task: Task
    per_row: float
    per_evaluation: float
    labels: int = 1

    @classmethod
    def measured(cls, model: nn.Module | None, repair: Rows, goal: Goal, train: Cohort | None = None, labels: int = 1) -> "Speed":
        """The speed of a network on the rows of one label; scores need no network and take no time per row."""
        network, per_row, backward = None, 0.0, 1.0
        if model is not None and not isinstance(repair, Scores):
            network, per_row = model, seconds_per_row(model, repair)
            if next(model.parameters(), None) is not None:
                backward = max(1.0, seconds_per_row(copy.deepcopy(model), repair, gradients=True) / per_row)
        return cls(Task(network, repair, goal, train, backward), per_row, labels * seconds_per_evaluation(repair, goal), labels)

    def work(self, name: str, settings: Mapping[str, Any]) -> Work:
        """The work of a method; a method that repairs labels one by one is run once per label."""
        work = work_of(name, self.task, make_settings(name, settings))
        if self.labels == 1 or METHODS[name].labels != ONE_BY_ONE:
            return work
        rows = None if work.rows is None else self.labels * work.rows
        return Work(rows, work.evaluations, f"{self.labels} runs, one per label, of: {work.what}", self.labels * work.seconds)

    def seconds(self, work: Work, more_rows: float = 0.0) -> float | None:
        """The approximate time of this work, plus `more_rows` through the network; None if the work is not known."""
        if work.rows is None:
            return None
        return (work.rows + more_rows) * self.per_row + work.evaluations * self.per_evaluation + work.seconds


def seconds_per_row(model: nn.Module, cohort: Cohort, gradients: bool = False) -> float:
    """Seconds per row of a forward pass, or with gradients of a step of fine-tuning (which changes the network), after a warm-up."""
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
    label, scores = Label.of(cohort, goal), np.linspace(0, 1, len(cohort))
    start = time.perf_counter()
    label.evaluate(scores)
    return time.perf_counter() - start
