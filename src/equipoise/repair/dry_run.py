"""The dry run: who is in which set, what each method would do, and about how long it would take. Nothing is repaired."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from torch import nn

from equipoise.data import Cohort, Rows, Scores
from equipoise.methods import METHODS, STANDARD, Goal, Kind, Speed, parts_of, settings_of
from equipoise.models import chosen_outputs, encoding

PROBED = {True: 128, False: 2000}  # rows to measure probes on; their time grows with the rows only if there are many
WARM_UP, RESAMPLES = 32, 20  # rows to warm up on, and resamples to measure by


@dataclass(frozen=True)
class MethodEstimate:
    """What one method would do, in words, and how many rows it would show the network, counted as passes without gradients."""

    method: str
    what: str
    rows: int | None  # None: unknown
    seconds: float | None


@dataclass(frozen=True, eq=False)
class RepairEstimate:
    """The patients of each set and the work of each method."""

    sets: pd.DataFrame  # set, group, label, rows, patients (None without patient ids)
    methods: tuple[MethodEstimate, ...]
    goal: Goal
    row_seconds: float  # for one row through the network
    evaluation_seconds: float  # for the exact sweep of all thresholds on the repair set
    probes: MethodEstimate | None = None  # of the layers, for the report, if requested

    @property
    def seconds(self) -> float | None:
        """About how long all of it takes at most, if that is known of every method."""
        known = [each.seconds for each in (*self.methods, *([] if self.probes is None else [self.probes]))]
        return None if None in known else float(sum(s for s in known if s is not None))

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON."""
        methods = [{"method": m.method, "what": m.what, "rows": m.rows, "seconds": m.seconds} for m in self.methods]
        probes = {} if self.probes is None else {"probes": {"what": self.probes.what, "seconds": self.probes.seconds}}
        return {
            "schema": "equipoise.dry_run",
            "schema_version": 1,
            "goal": str(self.goal),
            "sets": self.sets.astype(object).where(self.sets.notna(), None).to_dict("records"),
            "methods": methods,
            **probes,
            "seconds": self.seconds,
        }


def estimate(
    model: nn.Module,
    repair: Cohort,
    test: Cohort,
    methods: Mapping[str, Mapping[str, Any]],
    goal: Goal,
    train: Cohort | None = None,
    probe_draws: int | None = None,
    given_outputs: Mapping[str, int | str] | None = None,
    budget: float | None = None,
) -> RepairEstimate:
    """What `try_methods` would do with these methods, measured on a few rows. With `probe_draws` its layers are probed too.

    All methods together end within `budget` seconds, if one is given, however much they would like to do: one that chooses among others,
    and fine-tuning, which ends with the steps that it has made. Rules and probes are finished once begun.
    Of several labels, one is measured: a method that repairs all at once takes one run, with an evaluation per label; another takes one
    run per label.
    """
    sets = {"repair": repair, "test": test} | ({} if train is None else {"train": train})
    counts = pd.concat([_counts(cohort, name) for name, cohort in sets.items()], ignore_index=True)
    labels = max(1, len(repair.labels))
    if repair.labels:
        model = chosen_outputs(model, repair.inputs, repair.labels, repair.kind, given_outputs or {}).view(0)
        first = repair.labels[0]
        repair, test, train = repair.labelled(first), test.labelled(first), None if train is None else train.labelled(first)
    speed = Speed.measured(model, repair, goal, train, labels)
    found, left = [], budget
    for name, given in {STANDARD: {}, **methods}.items():
        work = speed.work(name, given)
        after = len(repair) + len(test) if not METHODS[name].needs_group else 0  # the scores for the report
        rows = None if work.rows is None else round(work.rows + after)
        seconds = speed.seconds(work, after)
        if left is not None:
            scoring = after * speed.per_row
            if METHODS[name].runs_others or METHODS[name].kind == Kind.STEPS:
                seconds = left + scoring if seconds is None else min(seconds, left + scoring)
            left -= 0.0 if seconds is None or name == STANDARD else min(left, max(0.0, seconds - scoring))
        found.append(MethodEstimate(name, work.what, rows, seconds))
    probes = None if probe_draws is None else _probes(model, test, probe_draws)
    return RepairEstimate(counts, tuple(found), goal, speed.per_row, speed.per_evaluation, probes)


def estimate_rules(
    repair: Mapping[str, Scores],
    test: Mapping[str, Scores],
    methods: Mapping[str, Mapping[str, Any]],
    goal: Goal,
    budget: float | None = None,
) -> RepairEstimate:
    """What `try_rules` would do with these methods, for the scores of each label, measured on those of the first."""
    several = len(repair) > 1
    counts = [
        own.assign(label=[f"{label}: {value}" for value in own["label"]]) if several else own
        for name, sets in (("repair", repair), ("test", test))
        for label, scores in sets.items()
        for own in [_counts(scores, name)]
    ]
    first = next(iter(repair.values()))
    speed = Speed.measured(None, first, goal)
    found = []
    for name, given in {STANDARD: {}, **methods}.items():
        work, chosen = speed.work(name, given), settings_of(name, given)
        tried = chosen.order(first) if METHODS[name].runs_others else [name]
        seconds = len(repair) * sum(_fit_seconds(each, first, goal, speed, given if each == name else {}) for each in tried)
        seconds = min(seconds, budget) if budget is not None and METHODS[name].runs_others else seconds
        what = f"{len(repair)} runs, one per label, of: {work.what}" if several else work.what
        found.append(MethodEstimate(name, what, None if work.rows is None else round(len(repair) * work.rows), seconds))
    return RepairEstimate(pd.concat(counts, ignore_index=True), tuple(found), goal, 0.0, speed.per_evaluation)


def _fit_seconds(name: str, scores: Scores, goal: Goal, speed: Speed, given: Mapping[str, Any]) -> float:
    """Seconds of a method with cross-fitted selection: a rule is fitted once to see; probes go by their own estimate."""
    known = METHODS[name]
    if known.kind != Kind.RULE:
        return speed.seconds(speed.work(name, given)) or 0.0
    start = time.perf_counter()
    (known.frontier or known.run)(scores, goal.for_steps(), settings_of(name, given))
    fits = 1 if goal.selection == "paper" or not known.selects else 1 + parts_of(known, len(scores))
    return (time.perf_counter() - start) * fits


def _counts(cohort: Rows, name: str) -> pd.DataFrame:
    """The rows and patients of each group and label of a set; of several labels, of each of them."""
    if cohort.labels:
        each = [_counts(cohort.labelled(label), name) for label in cohort.labels]
        return pd.concat(
            [own.assign(label=[f"{label}: {value}" for value in own["label"]]) for label, own in zip(cohort.labels, each, strict=True)],
            ignore_index=True,
        )
    frame = pd.DataFrame({"group": pd.Series(cohort.groups).fillna("(missing)"), "label": cohort.y})
    frame["patient"] = range(len(cohort)) if cohort.patients is None else cohort.patients
    counted = frame.groupby(["group", "label"])["patient"].agg(rows="size", patients="nunique").reset_index()
    counted["patients"] = counted["patients"].astype(object) if cohort.patients is not None else None
    counted.insert(0, "set", name)
    return counted


def seconds_to_probe(model: nn.Module, cohort: Cohort, draws: int) -> float:
    """Seconds to predict the groups from every layer of a network, with so many resamples for the intervals, from a few rows."""
    count = min(len(cohort), PROBED[len(cohort.inputs.shape) > 2])
    few = cohort.take(np.linspace(0, len(cohort) - 1, count).astype(int))  # not the first ones, which may all be of one group
    encoding(model, few.take(range(min(count, WARM_UP))), draws=2)  # the first time, libraries are loaded
    taken = []
    for some in (2, 2 + RESAMPLES):
        start = time.perf_counter()
        encoding(model, few, draws=some)
        taken.append(time.perf_counter() - start)
    per_draw = max(0.0, taken[1] - taken[0]) / RESAMPLES
    return (taken[0] + draws * per_draw) * len(cohort) / count


def _probes(model: nn.Module, test: Cohort, draws: int) -> MethodEstimate:
    """The probes before and after the repair, on the test set."""
    return MethodEstimate("probes", "probes of the group in every layer, before and after", None, 2 * seconds_to_probe(model, test, draws))
