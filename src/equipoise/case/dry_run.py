"""The dry run: the patients in each set, the work of each method, and about how long it would take. Nothing is repaired."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, cast

import numpy as np
import pandas as pd

from equipoise import models
from equipoise.case.methods_tried import Methods, RepairTask
from equipoise.data import Cohort, Scores
from equipoise.methods import METHODS, STANDARD, Goal, Kind, Speed, cross_fitting_parts, make_settings

PROBE_ROWS = {"images": 128, "table": 2000}  # rows to time the probes on; with fewer, the time does not grow with the rows
WARM_UP, TIMED_RESAMPLES = 32, 20  # rows of the first run, which loads libraries, and resamples to time


@dataclass(frozen=True)
class MethodEstimate:
    """The work of one method in words, and the number of rows through the network, counted as passes without gradients."""

    method: str
    what: str
    rows: int | None  # None: unknown
    seconds: float | None


@dataclass(frozen=True, eq=False)
class RepairEstimate:
    """The patients of each set and the work of each method, estimated."""

    sets: pd.DataFrame  # set, group, label, rows, patients (None without patient ids)
    methods: tuple[MethodEstimate, ...]
    goals: Mapping[str, Goal]  # by label
    probes: MethodEstimate | None = None  # of the layers, if they are requested for the report

    @property
    def seconds(self) -> float | None:
        """The estimated time of everything, at most; None if the time of a method is unknown."""
        parts = [*self.methods, *([] if self.probes is None else [self.probes])]
        seconds = [part.seconds for part in parts if part.seconds is not None]
        return float(sum(seconds)) if len(seconds) == len(parts) else None

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON."""
        probes = {} if self.probes is None else {"probes": {"what": self.probes.what, "seconds": self.probes.seconds}}
        return {
            "schema": "equipoise.dry_run",
            "schema_version": 1,
            "goal": "; ".join(dict.fromkeys(map(str, self.goals.values()))),
            "sets": self.sets.astype(object).where(self.sets.notna(), None).to_dict("records"),
            "methods": [asdict(method) for method in self.methods],
            **probes,
            "seconds": self.seconds,
        }


def estimate(
    task: RepairTask, methods: Methods, goals: Mapping[str, Goal], probe_draws: int | None = None, budget: float | None = None
) -> RepairEstimate:
    """The work of `try_methods` with these methods, timed on a few rows. With `probe_draws` probes of the layers are included.

    All methods together end within `budget` seconds, if it is given: `auto` starts no further method, and fine-tuning ends with the steps
    that it has made. Rules and probes always run to their end. With several labels, the first is timed: a method that repairs all labels
    of a network together takes one run, with one evaluation per label; any other method takes one run per label.
    """
    labels, (name_of_first, first), counts = len(task.labels), next(iter(task.labels.items())), []
    network, goal = cast(Any, first.model) if first.is_network else None, goals[name_of_first]
    for name in ("repair", "test", "train"):
        for label, own in task.labels.items():
            if (rows := getattr(own, name)) is not None:
                values = [f"{label}: {y}" for y in rows.y] if task.name_of(label) else rows.y
                frame = pd.DataFrame({"group": pd.Series(rows.groups).fillna("(missing)"), "label": values})
                frame["patient"] = range(len(rows)) if rows.patients is None else rows.patients
                of_set = frame.groupby(["group", "label"])["patient"].agg(rows="size", patients="nunique").reset_index()
                of_set["patients"] = of_set["patients"].astype(object) if rows.patients is not None else None
                of_set.insert(0, "set", name)
                counts.append(of_set)
    speed = Speed.measured(network, first.repair, goal, first.train, 1 if network is None else labels)
    estimates, remaining = [], budget
    for name, settings in {STANDARD: {}, **methods}.items():
        work, method = speed.work(name, settings), METHODS[name]
        if network is None:  # the scores of each label, timed on those of the first
            scores, total = cast(Scores, first.repair), 0.0
            for rule in make_settings(name, settings).order(scores) if method.kind == Kind.OTHERS else [name]:
                total += labels * _fit_seconds(rule, scores, speed, settings if rule == name else {})
            what = f"{labels} runs, one per label, of: {work.what}" if labels > 1 else work.what
            limited = min(total, budget) if budget is not None and method.kind == Kind.OTHERS else total
            estimates.append(MethodEstimate(name, what, None if work.rows is None else round(labels * work.rows), limited))
            continue
        scored_rows = len(first.repair) + len(first.test) if not method.needs_group else 0  # for the report
        rows = None if work.rows is None else round(work.rows + scored_rows)
        seconds = speed.seconds(work, scored_rows)
        if remaining is not None:
            scoring = scored_rows * speed.per_row
            if method.kind == Kind.OTHERS or method.kind == Kind.STEPS:
                seconds = remaining + scoring if seconds is None else min(seconds, remaining + scoring)
            remaining -= 0.0 if seconds is None or name == STANDARD else min(remaining, max(0.0, seconds - scoring))
        estimates.append(MethodEstimate(name, work.what, rows, seconds))
    probes = None
    if probe_draws is not None and network is not None:
        seconds = 2 * seconds_to_probe(network, cast(Cohort, first.test), probe_draws)
        probes = MethodEstimate("probes", "probes of the group in every layer, before and after", None, seconds)
    return RepairEstimate(pd.concat(counts, ignore_index=True), tuple(estimates), goals, probes)


def _fit_seconds(name: str, scores: Scores, speed: Speed, settings: Mapping[str, Any]) -> float:
    """Seconds of a method with cross-fitted selection: one fit of a rule is timed; methods of other kinds have a cost model."""
    method, goal = METHODS[name], speed.goal
    if method.kind != Kind.RULE:
        return speed.seconds(speed.work(name, settings)) or 0.0
    start = time.perf_counter()
    method.run(scores, goal.for_steps(), make_settings(name, settings)).grid()
    fits = 1 if goal.selection == "paper" or not method.selects else 1 + cross_fitting_parts(method, len(scores))
    return (time.perf_counter() - start) * fits


def seconds_to_probe(model: Any, cohort: Cohort, draws: int) -> float:
    """Seconds to predict the groups from every layer of a network, with `draws` resamples for the intervals, timed on a few rows."""
    count = min(len(cohort), PROBE_ROWS["images" if len(cohort.inputs.shape) > 2 else "table"])
    sample = cohort.take(np.linspace(0, len(cohort) - 1, count).astype(int))  # not the first rows, which may all be of one group
    models.encoding(model, sample.take(range(min(count, WARM_UP))), draws=2)
    timings = []
    for resamples in (2, 2 + TIMED_RESAMPLES):
        start = time.perf_counter()
        models.encoding(model, sample, draws=resamples)
        timings.append(time.perf_counter() - start)
    per_draw = max(0.0, timings[1] - timings[0]) / TIMED_RESAMPLES
    return (timings[0] + draws * per_draw) * len(cohort) / count
