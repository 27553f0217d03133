"""A trial: several methods on the part to repair on, the best by the goal, and what each does to the patients kept aside.

Everything is chosen on the repair part. The part kept aside is scored once for each method, after the choice can no longer change.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import nn

from equipoise.data import Cohort, Images, Scores
from equipoise.errors import BadInput, EquipoiseError, pick, raise_all
from equipoise.measures import gap_values, largest, performance_values, tabulate
from equipoise.methods import METHODS, Candidate, Goal, Progress, debias, select, settings_of
from equipoise.models import MASKED, ExportedNetwork, encoding, output_kind, predict
from equipoise.report.case import Case, Probes, Provenance, Repair, UnitMap

EQUAL = 0.005  # what two methods may differ by and still count as equally good
SAME = 1e-9  # what sums of counts may differ by
SHOWN = 24  # of the patients whose score changed most, as thumbnails
Bars = Callable[[str], AbstractContextManager[Progress]]


@dataclass(frozen=True)
class Trial:
    """What was tried: the original, the repairs in the order of the methods, which was chosen, and the methods that could not be run."""

    original: Repair
    repairs: tuple[Repair, ...]
    chosen: int
    failures: Mapping[str, str]

    def case(
        self,
        *,
        title: str,
        label: str,
        provenance: Provenance,
        thumbnails: Mapping[object, npt.NDArray[np.uint8]] | None = None,
        probes: Probes | None = None,
    ) -> Case:
        """What reports are written from."""
        return Case(title, label, self.original, self.repairs, self.chosen, provenance, thumbnails or {}, probes)

    def probes(self, test: Cohort, *, draws: int = 1000, seed: int = 0, bars: Bars | None = None) -> Probes:
        """How well each attribute can be read from each layer before and after the chosen repair, on the part kept aside."""
        bars = bars or (lambda _: nullcontext(lambda _done, _of: None))
        with bars("probes") as step:
            before = encoding(self.original.candidate.model, test, draws=draws, seed=seed, progress=step)
        result = self.repairs[self.chosen]
        if result.test is self.original.test:  # the same network with another rule
            return Probes(before, before)
        with bars("probes after repair") as step:
            return Probes(before, encoding(result.candidate.model, test, draws=draws, seed=seed, progress=step))


def check_methods(model: nn.Module | None, methods: Mapping[str, Mapping[str, Any]], train: bool) -> None:
    """Raises all that can be known to be wrong with these methods and their settings before anything is run."""
    problems = [] if methods else ["no method was named"]
    for name, settings in methods.items():
        try:
            settings_of(pick("method", name, METHODS), settings)
        except BadInput as error:
            problems += error.problems
            continue
        if METHODS[name].needs_train and not train:
            problems.append(f"{name} trains from scratch and needs rows to train on: --train train.csv (in Python train=)")
        if METHODS[name].needs_layers and isinstance(model, ExportedNetwork):
            problems.append(
                f"{name} needs the layers of a network; an exported program has none left. Give the architecture as file.py:factory."
            )
    raise_all(problems)


def told_output(model: nn.Module, inputs: Any, asked: str = "auto") -> str:
    """What the network gives, logit or probability; what the user says is written on the network, so that every method takes its word."""
    found = output_kind(model, inputs)
    if asked in ("auto", found):
        return found
    say_output(model, asked)
    return output_kind(model, inputs, asked)


def say_output(model: nn.Module, asked: str) -> None:
    """Writes on the network what the user says that it gives; `auto` says nothing."""
    if asked == "auto":
        return
    if not isinstance(getattr(model, "output", ""), str):
        raise BadInput(f"the network cannot be told to give a {asked}: its attribute `output` is something else. Wrap it.")
    model.output = asked  # type: ignore[assignment]


def run_trial(
    model: nn.Module,
    repair: Cohort,
    test: Cohort,
    methods: Mapping[str, Mapping[str, Any]],
    goal: Goal,
    *,
    seed: int = 0,
    train: Cohort | None = None,
    bars: Bars | None = None,
) -> Trial:
    """Every method on the repair part, the best of them by the goal, and the scores of the patients kept aside under each.

    `methods` maps a name to its settings. A method that cannot be run is named in `failures`; if none can, that is an error.
    """
    check_methods(model, methods, train is not None)
    bars = bars or (lambda _: nullcontext(lambda _done, _of: None))
    original = tried("standard", {}, model, repair, test, goal, seed, None, None, bars)
    settled = original.candidate.goal
    found: list[Repair] = []
    failures: dict[str, str] = {}
    for name, settings in methods.items():
        try:
            found.append(tried(name, settings, model, repair, test, goal, seed, train, original, bars))
        except EquipoiseError as error:
            failures[name] = str(error)
    if not found:
        raise BadInput(*(f"{name}: {reason}" for name, reason in failures.items()))
    return Trial(original, tuple(found), choose(found, settled), failures)


def tried(
    name: str,
    settings: Mapping[str, Any],
    model: nn.Module,
    repair: Cohort,
    test: Cohort,
    goal: Goal,
    seed: int,
    train: Cohort | None,
    original: Repair | None,
    bars: Bars,
) -> Repair:
    """One method on the repair part, and the scores of both parts under what it found."""
    with bars(name) as step:
        start = time.perf_counter()
        candidate = debias(model, repair, method=name, seed=seed, train=train, progress=step, **asked(goal), **settings)
        seconds = time.perf_counter() - start
    if original is not None and METHODS[name].needs_group:  # the same network with another rule
        return Repair(verified(candidate, original.valid), original.valid, original.test, seconds)
    return scored(candidate, repair, test, seconds, bars)


def asked(goal: Goal) -> dict[str, Any]:
    """A goal as the keywords of `debias`."""
    names = ("measure", "performance", "min_performance", "max_gap", "selection", "max_loss")
    return {**{name: getattr(goal, name) for name in names}, "keep": goal.keep}


def scored(candidate: Candidate, repair: Cohort, test: Cohort, seconds: float, bars: Bars) -> Repair:
    """What a method found, with the scores of its network on both parts."""
    with bars(f"scores of {candidate.method}") as step:
        valid = predict(candidate.model, repair)
        step(1, 2)
        kept = predict(candidate.model, test)
    return Repair(verified(candidate, valid), valid, kept, seconds, unit_maps(candidate.model))


def verified(candidate: Candidate, scores: Scores) -> Candidate:
    """The candidate, with its chosen step as it is under scores of the network that is handed over, where the method saw another one.

    A method may look at a network in passing in another precision, or in batches that round otherwise; the network that came out counts.
    """
    goal, row = candidate.goal, candidate.chosen
    cells = tabulate(candidate.rule.decide(scores), scores.y, scores.attribute)
    gap, performance = float(largest(gap_values(goal.measure, cells))), float(performance_values(goal.performance, cells))
    seen = candidate.trace.iloc[row]
    if abs(seen["gap"] - gap) <= SAME and abs(seen["performance"] - performance) <= SAME:
        return candidate
    trace = candidate.trace.copy()
    trace.loc[trace.index[row], ["gap", "performance"]] = [gap, performance]
    note = (
        f"on the way it was seen with {goal.measure} {seen['gap']:+.3f} and "
        f"{goal.performance.replace('_', ' ')} {seen['performance']:.3f}; "
        f"scored again it has {gap:+.3f} and {performance:.3f}"
    )
    met = candidate.met and select(trace.iloc[[row]], goal).met
    why = candidate.why if met == candidate.met else f"{candidate.why}; {note}"
    return replace(candidate, trace=trace, met=met, why=why, notes=(*candidate.notes, note))


def choose(repairs: Sequence[Repair], goal: Goal) -> int:
    """The position of the best repair by a settled goal, on the repair part alone.

    Those that meet the goal come first: with a minimum performance by the smallest |gap|, with a maximum gap alone by the best performance.
    If none does, the best performance (minimum performance) or the smallest |gap| (maximum gap). Among those within 0.005 of the best, one
    whose rule needs no group.
    """
    rows = [repair.candidate.trace.iloc[repair.candidate.chosen] for repair in repairs]
    gap = np.array([abs(float(row["gap"])) for row in rows])
    performance = np.array([float(row["performance"]) for row in rows])
    enough = np.ones(len(rows), bool) if goal.min_performance is None else performance >= goal.min_performance - 1e-12
    within = np.ones(len(rows), bool) if goal.max_gap is None else gap <= goal.max_gap + 1e-12
    beyond = bool(goal.keep) or goal.selection != "paper"  # what gap and performance alone do not tell
    sure = np.array([repair.candidate.met or not beyond for repair in repairs])
    pool = next(some for some in (enough & within & sure, enough & within, enough, np.ones_like(enough)) if some.any())
    met = bool((enough & within).any())
    by_performance = (goal.min_performance is None and met) or not enough.any()
    worse = np.where(pool, -performance if by_performance else gap, np.inf)
    level = worse <= worse.min() + EQUAL
    order = [(repair.candidate.rule.needs_group, value) for repair, value in zip(repairs, worse, strict=True)]
    return min(np.flatnonzero(level).tolist(), key=lambda k: order[k])


def unit_maps(model: nn.Module) -> tuple[UnitMap, ...]:
    """For each convolution of images with units switched off, the share of channels that is still on at each position."""
    masked = [(name, module) for name, module in model.named_modules() if type(module) is MASKED[nn.Conv2d]]
    return tuple(UnitMap(name, module.get_buffer("unit_mask").double().mean(0).cpu().numpy()) for name, module in masked)


def most_changed(before: Scores, after: Scores, cohort: Cohort, count: int = SHOWN) -> dict[object, npt.NDArray[np.uint8]]:
    """The images of the patients whose score changed most, by id, as 8-bit gray (h, w). Nothing for a table."""
    if not isinstance(cohort.source, Images):
        return {}
    order = np.argsort(-np.abs(after.score - before.score), kind="stable")[:count]
    pixels = cohort.source.raw(order).numpy()
    return {cohort.ids[row]: image for row, image in zip(order, pixels, strict=True)}
