"""The dry run: the patients in each set, the work of each method, and about how long it would take. Nothing is repaired."""

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd

from equipoise.case.methods_tried import Methods, Repairable
from equipoise.data import Cohort, Rows, Scores
from equipoise.methods import METHODS, STANDARD, Goal, Kind, Speed, Work, cross_fitting_parts, make_settings

PROBE_ROWS = {"images": 128, "table": 2000}  # rows to time the probes on; with fewer, the time does not grow with the rows
WARM_UP, RESAMPLES = 32, 20  # rows of the first run, which loads libraries, and resamples to time


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
    goal: Goal
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
            "goal": str(self.goal),
            "sets": self.sets.astype(object).where(self.sets.notna(), None).to_dict("records"),
            "methods": [asdict(method) for method in self.methods],
            **probes,
            "seconds": self.seconds,
        }


def estimate(
    classifier: Repairable, methods: Methods, goal: Goal, probe_draws: int | None = None, budget: float | None = None
) -> RepairEstimate:
    """The work of `try_methods` with these methods, timed on a few rows. With `probe_draws` probes of the layers are included.

    All methods together end within `budget` seconds, if it is given: `auto` starts no further method, and fine-tuning ends with the steps
    that it has made. Rules and probes always run to their end. With several labels, the first is timed: a method that repairs all labels
    of a network together takes one run, with one evaluation per label; any other method takes one run per label.
    """
    labels, first = len(classifier.labels), classifier.first
    network: Any = first.model if first.is_network else None
    counts = [
        _counts(getattr(task, name), name, classifier.name_of(label))
        for name in ("repair", "test", "train")
        for label, task in classifier.labels.items()
        if getattr(task, name) is not None
    ]
    speed = Speed.measured(network, first.repair, goal, first.train, 1 if network is None else labels)
    estimates, remaining = [], budget
    for name, settings in {STANDARD: {}, **methods}.items():
        work, method = speed.work(name, settings), METHODS[name]
        if isinstance(first.repair, Scores):
            estimates.append(_rule_estimate(name, work, first.repair, speed, settings, labels, budget))
            continue
        scored_rows = len(first.repair) + len(first.test) if not method.needs_group else 0  # for the report
        rows = None if work.rows is None else round(work.rows + scored_rows)
        seconds = speed.seconds(work, scored_rows)
        if remaining is not None:
            scoring = scored_rows * speed.per_row
            if method.runs_others or method.kind == Kind.STEPS:
                seconds = remaining + scoring if seconds is None else min(seconds, remaining + scoring)
            remaining -= 0.0 if seconds is None or name == STANDARD else min(remaining, max(0.0, seconds - scoring))
        estimates.append(MethodEstimate(name, work.what, rows, seconds))
    probes = None
    if probe_draws is not None and isinstance(first.test, Cohort):
        seconds = 2 * seconds_to_probe(network, first.test, probe_draws)
        probes = MethodEstimate("probes", "probes of the group in every layer, before and after", None, seconds)
    return RepairEstimate(pd.concat(counts, ignore_index=True), tuple(estimates), goal, probes)


def _rule_estimate(
    name: str, work: Work, scores: Scores, speed: Speed, settings: Mapping[str, Any], labels: int, budget: float | None
) -> MethodEstimate:
    """The work of a method on the scores of each label, timed on those of the first."""
    others = METHODS[name].runs_others
    rules = make_settings(name, settings).order(scores) if others else [name]
    seconds = labels * sum(_fit_seconds(rule, scores, speed, settings if rule == name else {}) for rule in rules)
    what = f"{labels} runs, one per label, of: {work.what}" if labels > 1 else work.what
    rows = None if work.rows is None else round(labels * work.rows)
    return MethodEstimate(name, what, rows, min(seconds, budget) if budget is not None and others else seconds)


def _fit_seconds(name: str, scores: Scores, speed: Speed, settings: Mapping[str, Any]) -> float:
    """Seconds of a method with cross-fitted selection: one fit of a rule is timed; methods of other kinds have a cost model."""
    method, goal = METHODS[name], speed.goal
    if method.kind != Kind.RULE:
        return speed.seconds(speed.work(name, settings)) or 0.0
    start = time.perf_counter()
    method.run(scores, goal.for_steps(), make_settings(name, settings)).grid()
    fits = 1 if goal.selection == "paper" or not method.selects else 1 + cross_fitting_parts(method, len(scores))
    return (time.perf_counter() - start) * fits


def _counts(cohort: Rows, name: str, prefix: str) -> pd.DataFrame:
    """The rows and patients of each group and label of a set; with a prefix, the values of the label carry it."""
    frame = pd.DataFrame({"group": pd.Series(cohort.groups).fillna("(missing)"), "label": cohort.y})
    frame["patient"] = range(len(cohort)) if cohort.patients is None else cohort.patients
    counts = frame.groupby(["group", "label"])["patient"].agg(rows="size", patients="nunique").reset_index()
    counts["patients"] = counts["patients"].astype(object) if cohort.patients is not None else None
    counts.insert(0, "set", name)
    return counts.assign(label=[f"{prefix}: {value}" for value in counts["label"]]) if prefix else counts


def seconds_to_probe(model: Any, cohort: Cohort, draws: int) -> float:
    """Seconds to predict the groups from every layer of a network, with `draws` resamples for the intervals, timed on a few rows."""
    from equipoise.models import encoding

    count = min(len(cohort), PROBE_ROWS["images" if len(cohort.inputs.shape) > 2 else "table"])
    sample = cohort.take(np.linspace(0, len(cohort) - 1, count).astype(int))  # not the first rows, which may all be of one group
    encoding(model, sample.take(range(min(count, WARM_UP))), draws=2)
    timings = []
    for resamples in (2, 2 + RESAMPLES):
        start = time.perf_counter()
        encoding(model, sample, draws=resamples)
        timings.append(time.perf_counter() - start)
    per_draw = max(0.0, timings[1] - timings[0]) / RESAMPLES
    return (timings[0] + draws * per_draw) * len(cohort) / count
