"""A forecast: who will be in which part, what each method will do, and about how long it will take. Nothing is repaired."""

import copy
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

from equipoise.data import Cohort
from equipoise.methods import METHODS, STANDARD, Goal, Label, Task, settings_of, work_of
from equipoise.models import encoding, evaluating, outputs

SAMPLE = {True: 32, False: 256}  # rows to measure on, images or a table: about as many as methods show at a time
PROBED = {True: 128, False: 2000}  # rows to measure probes on, whose time grows with the rows only where they are many
FEW_READ, DRAWN = 32, 20  # rows to warm up on, and draws to measure by


@dataclass(frozen=True)
class Step:
    """What one method will do: in words, and how many rows it shows the network, counted as passes without gradients."""

    method: str
    what: str
    rows: int | None  # None: not known
    seconds: float | None


@dataclass(frozen=True, eq=False)
class Forecast:
    """The patients of each part and the work of each method."""

    parts: pd.DataFrame  # part, group, label, rows, patients (None where there are no patient ids)
    steps: tuple[Step, ...]
    goal: Goal
    row_seconds: float  # for one row through the network
    look_seconds: float  # for the exact sweep of all thresholds on the repair part
    probes: Step | None = None  # of the layers, for the report, where they are asked for

    @property
    def seconds(self) -> float | None:
        """About how long all of it takes at most, if that is known of every method."""
        known = [step.seconds for step in (*self.steps, *([] if self.probes is None else [self.probes]))]
        return None if None in known else float(sum(s for s in known if s is not None))

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON."""
        steps = [{"method": s.method, "what": s.what, "rows": s.rows, "seconds": s.seconds} for s in self.steps]
        probes = {} if self.probes is None else {"probes": {"what": self.probes.what, "seconds": self.probes.seconds}}
        parts = self.parts.astype(object).where(self.parts.notna(), None).to_dict("records")
        return {
            "schema": "equipoise.plan",
            "schema_version": 1,
            "goal": self.goal.describe(),
            "parts": parts,
            "methods": steps,
            **probes,
            "seconds": self.seconds,
        }


def forecast(
    model: nn.Module,
    repair: Cohort,
    test: Cohort,
    methods: Mapping[str, Mapping[str, Any]],
    goal: Goal,
    train: Cohort | None = None,
    probe_draws: int | None = None,
) -> Forecast:
    """What a trial with these methods would do, from a few rows shown to the network. With `probe_draws` its layers are probed too."""
    parts = {"repair": repair, "test": test} | ({} if train is None else {"train": train})
    a_row, a_look = seconds_a_row(model, repair), seconds_a_look(repair, goal)
    dearer = max(1.0, seconds_a_row(copy.deepcopy(model), repair, gradients=True) / a_row)
    steps = []
    for name, given in {STANDARD: {}, **methods}.items():
        work = work_of(name, Task(model, repair, goal, train, dearer), settings_of(name, given))
        after = len(repair) + len(test) if not METHODS[name].needs_group else 0  # the scores for the report
        total = None if work.rows is None else round(work.rows + after)
        steps.append(Step(name, work.what, total, None if total is None else total * a_row + work.evaluations * a_look + work.seconds))
    counts = pd.concat([_counts(part, name) for name, part in parts.items()], ignore_index=True)
    probes = None if probe_draws is None else _probes(model, test, probe_draws)
    return Forecast(counts, tuple(steps), goal, a_row, a_look, probes)


def seconds_a_row(model: nn.Module, cohort: Cohort, gradients: bool = False) -> float:
    """How long one row takes, or with gradients one row of a step of fine-tuning (the network is then changed); after one to warm up."""
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


def seconds_a_look(cohort: Cohort, goal: Goal) -> float:
    """How long it takes to look at all thresholds once."""
    labels, scores = Label.of([cohort], goal), np.linspace(0, 1, len(cohort))[None]
    start = time.perf_counter()
    labels.evaluate(scores)
    return time.perf_counter() - start


def _counts(cohort: Cohort, part: str) -> pd.DataFrame:
    frame = pd.DataFrame({"group": pd.Series(cohort.groups).fillna("(missing)"), "label": cohort.y})
    frame["patient"] = range(len(cohort)) if cohort.patients is None else cohort.patients
    counted = frame.groupby(["group", "label"])["patient"].agg(rows="size", patients="nunique").reset_index()
    counted["patients"] = counted["patients"].astype(object) if cohort.patients is not None else None
    counted.insert(0, "part", part)
    return counted


def seconds_to_read(model: nn.Module, cohort: Cohort, draws: int) -> float:
    """How long it takes to read the groups from every layer of a network, with so many draws for the intervals, from a few rows."""
    count = min(len(cohort), PROBED[len(cohort.inputs.shape) > 2])
    few = cohort.take(np.linspace(0, len(cohort) - 1, count).astype(int))  # not the first ones, who may all be of one group
    encoding(model, few.take(range(min(count, FEW_READ))), draws=2)  # the first time, libraries are loaded
    taken = []
    for some in (2, 2 + DRAWN):
        start = time.perf_counter()
        encoding(model, few, draws=some)
        taken.append(time.perf_counter() - start)
    a_draw = max(0.0, taken[1] - taken[0]) / DRAWN
    return (taken[0] + draws * a_draw) * len(cohort) / count


def _probes(model: nn.Module, test: Cohort, draws: int) -> Step:
    """Before the repair and after it, on the part kept aside."""
    return Step("probes", "the groups read from every layer, before and after", None, 2 * seconds_to_read(model, test, draws))
