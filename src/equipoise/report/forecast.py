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

from equipoise.data.cohort import Cohort
from equipoise.methods.base import Goal
from equipoise.methods.registry import METHODS, settings_of
from equipoise.methods.selection import Labels
from equipoise.models.score import evaluating, outputs
from equipoise.models.units import find_layers

SAMPLE = {True: 32, False: 256}  # rows to measure on, images or a table: about as many as methods show at a time


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

    @property
    def seconds(self) -> float | None:
        """About how long all of it takes at most, if that is known of every method."""
        known = [step.seconds for step in self.steps]
        return None if None in known else float(sum(s for s in known if s is not None))

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON."""
        steps = [{"method": s.method, "what": s.what, "rows": s.rows, "seconds": s.seconds} for s in self.steps]
        parts = self.parts.astype(object).where(self.parts.notna(), None).to_dict("records")
        return {
            "schema": "equipoise.plan",
            "schema_version": 1,
            "goal": self.goal.describe() if (self.goal.floor, self.goal.bound) != (None, None) else f"smallest |{self.goal.measure}|",
            "parts": parts,
            "methods": steps,
            "seconds": self.seconds,
        }


def forecast(
    model: nn.Module, repair: Cohort, test: Cohort, methods: Mapping[str, Mapping[str, Any]], goal: Goal, train: Cohort | None = None
) -> Forecast:
    """What a trial with these methods would do, from a few rows shown to the network."""
    parts = {"repair": repair, "test": test} | ({} if train is None else {"train": train})
    a_row, a_look = seconds_a_row(model, repair), seconds_a_look(repair, goal)
    dearer = max(1.0, seconds_a_row(copy.deepcopy(model), repair, gradients=True) / a_row)
    steps = []
    for name, given in {"standard": {}, **methods}.items():
        rows, looks, what = _work(name, settings_of(name, given), model, repair, train, dearer)
        after = len(repair) + len(test) if rows is not None and not METHODS[name].needs_group else 0  # the scores for the report
        total = None if rows is None else round(rows + after)
        steps.append(Step(name, what, total, None if total is None else total * a_row + looks * a_look))
    counts = pd.concat([_counts(part, name) for name, part in parts.items()], ignore_index=True)
    return Forecast(counts, tuple(steps), goal, a_row, a_look)


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
    labels, scores = Labels.of([cohort], goal), np.linspace(0, 1, len(cohort))[None]
    start = time.perf_counter()
    labels.look(scores)
    return time.perf_counter() - start


def _counts(cohort: Cohort, part: str) -> pd.DataFrame:
    frame = pd.DataFrame({"group": pd.Series(cohort.groups).fillna("(missing)"), "label": cohort.y})
    frame["patient"] = range(len(cohort)) if cohort.patients is None else cohort.patients
    counted = frame.groupby(["group", "label"])["patient"].agg(rows="size", patients="nunique").reset_index()
    counted["patients"] = counted["patients"].astype(object) if cohort.patients is not None else None
    counted.insert(0, "part", part)
    return counted


def _work(name: str, s: Any, model: nn.Module, repair: Cohort, train: Cohort | None, dearer: float) -> tuple[float | None, int, str]:
    """How many rows are shown to the network at most, how many looks are taken, and what is done, in words.

    Rows are counted as passes without gradients; one with them is so much dearer.
    """
    n = len(repair)
    if name == "bias-gda":
        batches = -(-n // s.batch)
        looks = batches // max(1, batches // s.evaluations)
        return s.epochs * n * (dearer + looks), s.epochs * looks, f"at most {s.epochs} epochs of fine-tuning with {looks} looks each"
    if name == "pruning":
        with torch.no_grad():
            layers = find_layers(model, repair.inputs[:2], s.layers, s.granularity == "channel")
        total = layers[-1].start + layers[-1].size
        steps = min(-(-total // s.a_step(total)), getattr(s, "at_most", None) or total)
        return n * (1 + dearer * (1 + steps)), steps, f"at most {steps} steps of {s.a_step(total):,} of {total:,} units"
    if name == "random":
        return n * (1 + s.trials), s.trials, f"{s.trials} perturbed networks"
    if name == "adversarial-finetune":
        shown = min(s.batch, n) * (s.critic_steps + dearer * s.actor_steps)
        return n + s.epochs * (n + shown), s.epochs, f"{s.epochs} epochs of fine-tuning against a critic"
    if name == "adversarial-training" and train is not None:
        return n + s.epochs * (n + dearer * len(train)), s.epochs, f"{s.epochs} epochs of training from scratch on {len(train):,} rows"
    if METHODS[name].needs_group:
        return n, 1, "another decision rule for the same network; it will need each patient's group"
    return (n, 1, "the network as it came") if name == "standard" else (None, 0, "not known in advance")
