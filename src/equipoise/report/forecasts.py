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
from equipoise.errors import EquipoiseError
from equipoise.measures import encoding, is_quotient, terms
from equipoise.methods import METHODS, Goal, Labels, settings_of
from equipoise.models import PENALTIES, evaluating, features, find_units, fit_probe, folds_of, outputs, reading_of

SAMPLE = {True: 32, False: 256}  # rows to measure on, images or a table: about as many as methods show at a time
PROBED = {True: 128, False: 2000}  # rows to measure probes on, whose time grows with the rows only where they are many
FEW_READ, DRAWN = 32, 20  # rows to warm up on, and draws to measure by
HONEST_RUNS = 4  # two halves, all rows, and all rows again up to the step that was chosen


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
    for name, given in {"standard": {}, **methods}.items():
        work = _work(name, settings_of(name, given), model, repair, goal, train, dearer)
        after = len(repair) + len(test) if not METHODS[name].needs_group else 0  # the scores for the report
        total = None if work.rows is None else round(work.rows + after)
        steps.append(Step(name, work.what, total, None if total is None else total * a_row + work.looks * a_look + work.beside))
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


def seconds_a_probe(model: nn.Module, cohort: Cohort, settings: Any) -> float:
    """How long it takes to fit one probe of bias-score on all rows, in all folds and for all penalties, from a few rows."""
    few = cohort.take(range(min(len(cohort), PROBED[len(cohort.inputs.shape) > 2])))
    _, x = features(model, few.inputs, reading_of(model, few.inputs, settings.depth, settings.layers))
    folds = folds_of(few, 2, 0)
    fit_probe(x, few.y, 2, folds)  # the first time, libraries are loaded
    start = time.perf_counter()
    fit_probe(x, few.y, 2, folds)
    fits = len(PENALTIES) + 1  # two halves of the rows a penalty, and all rows once
    each = (time.perf_counter() - start) / fits / len(few)
    return each * len(cohort) * (len(PENALTIES) * (int(settings.folds) - 1) + 1)


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


@dataclass(frozen=True)
class _Work:
    """How many rows are shown to the network at most, how many looks are taken, what is done, and seconds that are neither."""

    rows: float | None  # counted as passes without gradients; None: not known
    looks: int
    what: str
    beside: float = 0.0


def _work(name: str, s: Any, model: nn.Module, repair: Cohort, goal: Goal, train: Cohort | None, dearer: float) -> _Work:
    """The work of a method with this goal's selection. A pass with gradients is so much dearer than one without."""
    if name == "auto":
        return _together(s, model, repair, goal, train, dearer)
    once = _once(name, s, model, repair, goal, train, dearer)
    if goal.selection == "paper" or once.rows is None or name == "standard":
        return once
    what = f"up to {HONEST_RUNS} runs, for {goal.selection} selection, of: {once.what}"
    return _Work(HONEST_RUNS * once.rows, HONEST_RUNS * once.looks, what, HONEST_RUNS * once.beside)


def _together(s: Any, model: nn.Module, repair: Cohort, goal: Goal, train: Cohort | None, dearer: float) -> _Work:
    """All methods that auto may try; it stops as soon as one meets the goal with room."""
    works, names = [], []
    for name in s.order():
        try:
            works.append(_work(name, settings_of(name, s.settings.get(name, {})), model, repair, goal, train, dearer))
        except EquipoiseError:
            continue  # one that cannot be run on this network: auto passes over it too
        names.append(name)
    what = f"{', '.join(names)}, one after the other until the goal is met with room"
    if any(work.rows is None for work in works):
        return _Work(None, 0, what)
    rows = sum(work.rows + len(repair) for work in works if work.rows is not None)  # and one pass each to see how sure it is
    return _Work(rows, sum(work.looks for work in works), what, sum(work.beside for work in works))


def _once(name: str, s: Any, model: nn.Module, repair: Cohort, goal: Goal, train: Cohort | None, dearer: float) -> _Work:
    """One run of a method."""
    n = len(repair)
    if name in ("bias-gda", "constrained"):
        batches = -(-n // s.batch)
        looks = batches // max(1, batches // s.evaluations)
        most = "at most " if name == "bias-gda" else ""
        return _Work(s.epochs * n * (dearer + looks), s.epochs * looks, f"{most}{s.epochs} epochs of fine-tuning with {looks} looks each")
    if name == "bias-score":
        probes = 1 + (2 if is_quotient(goal.measure) else len(terms(goal.measure)))  # the label, and the groups given each
        beside = probes * seconds_a_probe(model, repair, s)
        what = f"{probes} probes in {s.folds} folds beside the network as it came, and {s.steps} bounds"
        return _Work(3 * n, 3 * s.steps, what, beside)  # scores before, features, scores after; a look, two points and a program a bound
    if name == "pruning":
        with torch.no_grad():
            layers = find_units(model, repair.inputs[:2], s.layers, s.granularity)
        total = layers[-1].start + layers[-1].size
        steps = min(-(-total // s.a_step(total)), getattr(s, "at_most", None) or total)
        return _Work(n * (1 + dearer * (1 + steps)), steps, f"at most {steps} steps of {s.a_step(total):,} of {total:,} units")
    if name == "random":
        return _Work(n * (1 + s.trials), s.trials, f"{s.trials} perturbed networks")
    if name == "adversarial-finetune":
        shown = min(s.batch, n) * (s.critic_steps + dearer * s.actor_steps)
        return _Work(n + s.epochs * (n + shown), s.epochs, f"{s.epochs} epochs of fine-tuning against a critic")
    if name == "adversarial-training" and train is not None:
        rows = n + s.epochs * (n + dearer * len(train))
        return _Work(rows, s.epochs, f"{s.epochs} epochs of training from scratch on {len(train):,} rows")
    if METHODS[name].needs_group:
        return _Work(n, 1, "another decision rule for the same network; it will need each patient's group")
    return _Work(n, 1, "the network as it came") if name == "standard" else _Work(None, 0, "not known in advance")
