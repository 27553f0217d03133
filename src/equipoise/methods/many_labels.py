"""Looking at several labels of one network at once, and choosing one step for all of them.

A row is a pair of an image and a label (see models.many_outputs). Each label has a goal of its own: its measure, its minimum performance or
maximum gap. Labels of a multi-label network have a threshold each, swept exactly on the rows where the label is known; classes are decided
by argmax, and each has the gaps and the performance of "this class or another". A step is chosen for all together: the smallest of the
largest |gap|s among steps in which every label has its minimum performance (its maximum gap, where it has that alone); where there are
bounds alone, the best mean performance.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
from torch import nn

from equipoise.data import UNKNOWN, Cohort
from equipoise.errors import BadInput, EmptyCell
from equipoise.measures import (
    ARGMAX,
    FloatArray,
    IntArray,
    LabelRules,
    Threshold,
    furthest,
    gap_values,
    largest,
    performance_values,
    tabulate_codes,
)
from equipoise.methods.base import Candidate, Goal
from equipoise.methods.level_up import NOISE, limits, spare
from equipoise.methods.looks import Labels, Look, decided_at
from equipoise.methods.selection import JointGoal, Search, plain_rule
from equipoise.models import ChosenOutputs, ManyOutputs, predict

Least = Sequence[FloatArray | None]  # of each label, what the rates that are kept must reach


@dataclass(frozen=True, eq=False)
class ManyLook(Look):
    """One look at all labels: the gap of largest size among them, the mean performance, and the threshold of every row (1, rows)."""

    each: tuple[Look, ...] = ()
    recall: float | None = None  # of classes: the mean share of a class that is decided so


@dataclass(frozen=True, eq=False)
class ManyLabels(Labels):
    """Several labels of one part behind the face of one; `own` are the ordinary labels of the rows `places` in which each is known."""

    own: tuple[Labels, ...] = ()
    places: tuple[IntArray, ...] = ()
    classes: bool = False

    @classmethod
    def joint(cls, cohort: Cohort, goal: JointGoal) -> "ManyLabels":
        """The labels of a part, each with its goal; one error that names every label with an empty cell."""
        assert cohort.targets is not None  # a joint goal goes with several labels
        own: list[Labels] = []
        problems: list[str] = []
        empty = False
        for name, its_goal in zip(goal.names, goal.goals, strict=True):
            try:
                own.append(Labels.of([cohort.labelled(name)], its_goal))
            except BadInput as error:
                problems += error.problems
                empty = empty or isinstance(error, EmptyCell)
        if problems:
            raise (EmptyCell if empty else BadInput)(*problems)
        count = len(goal.names)
        places = tuple(np.flatnonzero(cohort.targets[:, at] != UNKNOWN) * count + at for at in range(count))
        y, codes = (cohort.targets == 1).astype(np.int64).reshape(1, -1), np.repeat(cohort.attribute.codes, count)[None]
        first = goal.goals[0]
        classes = cohort.kind == "classes"
        return cls(y, codes, cohort.attribute.levels, first.measure, first.performance, {}, tuple(own), places, classes)

    @property
    def parts(self) -> "list[tuple[slice | IntArray, Labels]]":
        return list(zip(self.places, self.own, strict=True))

    @property
    def moving(self) -> bool:
        """Whether the weights change with the decisions: where there is more than one gap."""
        return len(self.own) > 1 or self.own[0].moving

    def centre(self, thresholds: FloatArray) -> FloatArray:
        """The thresholds; of classes, their shares, around which a network that is calibrated stays as it is."""
        if not self.classes:
            return thresholds
        shares = np.zeros(self.y.shape)
        for rows, own in self.parts:
            shares[:, rows] = own.y.mean()
        return shares

    def looked(self, scores: FloatArray, within: float | None = None, least: Least | None = None) -> ManyLook:
        """The look at scores (1, rows): of each label the best threshold, within a maximum |gap| if one is given."""
        thresholds: FloatArray = np.full(scores.shape, 0.5)
        each: list[Look] = []
        limit = least or [None] * len(self.own)
        if self.classes:
            thresholds = winning(scores.reshape(-1, len(self.own))).reshape(1, -1)
        for (rows, own), its_least in zip(self.parts, limit, strict=True):
            if self.classes:
                each.append(look_at(own, decided_at(scores, thresholds)[:, rows], its_least))
            else:
                each.append(own.look(scores[:, rows], within, its_least))
                thresholds[:, rows] = each[-1].threshold[:, None]
        recall = None
        if self.classes:
            right = decided_at(scores, thresholds) * self.y
            recall = float(np.mean([right[:, rows].sum() / own.y.sum() for rows, own in self.parts]))
        gap = largest(np.stack([look.gap for look in each], axis=-1))
        performance: FloatArray = np.mean([look.performance for look in each], axis=0)
        return ManyLook(gap, performance, thresholds, None, tuple(each), recall)

    def functional(self, scores: FloatArray, thresholds: FloatArray) -> tuple[FloatArray, FloatArray]:
        """The offset (1,) and the weights (1, rows) of the gap that is now the largest, of any label and group."""
        decisions = decided_at(scores, thresholds)
        sizes = []
        for rows, own in self.parts:
            gaps = gap_values(own.measure, tabulate_codes(decisions[:, rows], own.y, own.codes, own.levels))
            sizes.append(np.abs(np.where(np.isnan(gaps), 0.0, gaps)).max())
        rows, own = self.parts[int(np.argmax(sizes))]
        offset, mine = own.functional(scores[:, rows], thresholds[:, rows])
        weights = np.zeros(scores.shape)
        weights[:, rows] = mine
        return offset, weights


def winning(scores: FloatArray) -> FloatArray:
    """The threshold of each class (n, classes) at or above which it is the argmax of its row; of equal ones the first is.

    >>> p = np.array([[0.5, 0.3, 0.2], [0.4, 0.4, 0.2]])
    >>> (p >= winning(p)).tolist()
    [[True, False, False], [True, False, False]]
    """
    thresholds = np.empty_like(scores)
    for k in range(scores.shape[1]):
        before = np.nextafter(scores[:, :k].max(1, initial=-1.0), np.inf)
        thresholds[:, k] = np.maximum(before, scores[:, k + 1 :].max(1, initial=-1.0))
    return thresholds


def look_at(own: Labels, decisions: FloatArray, least: FloatArray | None) -> Look:
    """The look at decisions (1, n) that are made already; the threshold is that of a class's own margin."""
    cells = tabulate_codes(decisions, own.y, own.codes, own.levels)
    half = np.full(1, 0.5)
    left = None if least is None else spare(own.rates(decisions, half), least)
    return Look(furthest(own.measure, cells), performance_values(own.performance, cells), half, left)


@dataclass(frozen=True)
class Merit:
    """How good a step is: whether all rates are kept and all demands met, and then how good among its like."""

    tier: int
    value: float

    def above(self, other: "Merit | None") -> bool:
        """Whether it is better than another."""
        return other is None or (self.tier, self.value) > (other.tier, other.value)


def merit(look: ManyLook, goals: Sequence[Goal]) -> Merit:
    """The rule of `select` for several labels."""
    kept = all(own.spare is None or own.spare[0] >= -NOISE for own in look.each)
    sizes = [float(size_of(own)) for own in look.each]
    left, counted = [], []
    for own, size, goal in zip(look.each, sizes, goals, strict=True):
        if goal.min_performance is not None:
            left.append(float(own.performance[0]) - goal.min_performance)
            counted.append(size)
        else:
            assert goal.max_gap is not None  # a settled goal has one of them
            left.append(goal.max_gap - size)
    feasible = kept and min(left) >= -NOISE
    best = -max(counted) if counted else float(look.performance[0])
    return Merit(int(kept) + int(feasible), best if feasible else min(left))


def size_of(look: Look) -> float:
    """|gap|; a quotient without a value is no small one."""
    gap = float(look.gap[0])
    return np.inf if np.isnan(gap) else abs(gap)


@dataclass
class Seen:
    """The steps so far, and which was the best."""

    steps: list[int] = field(default_factory=list)
    looks: list[ManyLook] = field(default_factory=list)
    merits: list[Merit] = field(default_factory=list)
    best: int | None = None


class ManySearch(Search):
    """The steps that a method tries on one network with several labels."""

    labels: ManyLabels
    goal: JointGoal

    def _labelled(self) -> Labels:
        return ManyLabels.joint(self.cohorts[0], self.goal)

    def begin(self, scores: FloatArray) -> Look:
        """The look at the original network, step 0."""
        self.seen = Seen()
        look, self.least = self.labels.looked(scores), None
        if any(goal.keep for goal in self.goal.goals):
            decisions = decided_at(scores, look.threshold)
            half = np.full(1, 0.5)
            before = [own.rates(decisions[:, rows], half) if own.keep else None for rows, own in self.labels.parts]
            self.least = [None if b is None else limits(own.keep, b) for b, own in zip(before, self.labels.own, strict=True)]
            spares = [None if b is None or at is None else spare(b, at) for b, at in zip(before, self.least, strict=True)]
            look = replace(look, each=tuple(replace(own, spare=left) for own, left in zip(look.each, spares, strict=True)))
        if self.within is None:
            self.goals = [goal.settled(float(own.performance[0])) for goal, own in zip(self.goal.goals, look.each, strict=True)]
        else:
            self.goals = [replace(goal, min_performance=None, max_gap=self.within, max_loss=None) for goal in self.goal.goals]
        self._add(0, look, counts=self.within is None)
        return look

    def step(self, number: int, scores: FloatArray) -> Look:
        """The look at one more step; the state is kept where it is the best so far."""
        look = self.labels.looked(scores, self.within, self.least)
        if self.active[0]:
            self.networks.keep(np.array([self._add(number, look)]))
        return look

    def _add(self, number: int, look: ManyLook, counts: bool = True) -> bool:
        seen = self.seen
        now = merit(look, self.goals)
        improved = counts and now.above(None if seen.best is None else seen.merits[seen.best])
        seen.steps.append(number)
        seen.looks.append(look)
        seen.merits.append(now)
        if improved:
            seen.best = len(seen.steps) - 1
        return improved

    def candidates(self, method: str, seeds: Sequence[int], settings: Any, note: Callable[[int], str] | None = None) -> list[Candidate]:
        """The repaired network with all its outputs, and of each label what was found for it."""
        seen, cohort = self.seen, self.cohorts[0]
        row = seen.best or 0
        inner = self.networks.kept()[0]
        chosen = self._chosen(inner)
        if self.networks.reduced or self.labels.classes:
            seen.looks[row] = self._looked_again(chosen, seen.looks[row])
        why = self._why(row)
        notes = (*self.networks.notes, note(seen.steps[row])) if note else self.networks.notes
        each: dict[str, Candidate] = {}
        for at, name in enumerate(self.goal.names):
            trace, asked = self._trace(at), self._asked(at)
            lacking = self._lacking(at, seen.looks[row].each[at])
            own_why = f"{why}; {lacking}" if lacking else why
            part = cohort.labelled(name)
            rule = Threshold(0.5, ARGMAX) if self.labels.classes else plain_rule(method, trace, row, part, asked)
            told = asdict(settings)
            each[name] = Candidate(
                method, chosen.view(at), rule, trace, row, own_why, not lacking, asked, seeds[0], told, notes, pace=self.pace
            )
        settled = replace(self.goal, goals=tuple(own.goal for own in each.values()))
        return [joined(method, inner, each, settled, self._joint_trace(), row, why, cohort.kind)]

    def _chosen(self, inner: nn.Module) -> ChosenOutputs:
        assert isinstance(self.networks, ManyOutputs)  # a joint goal goes with several outputs
        given = self.networks.model
        assert isinstance(given, ChosenOutputs)
        return ChosenOutputs(inner, given.columns, given.kind, given.output, given.flat)

    def _looked_again(self, chosen: ChosenOutputs, look: ManyLook) -> ManyLook:
        """The look in full precision at the network as it will be used."""
        found = []
        for at, own in enumerate(self.labels.own):
            part = self.cohorts[0].labelled(self.goal.names[at])
            scores = predict(chosen.view(at), part).score[None]
            its_least = None if self.least is None else self.least[at]
            if self.labels.classes:
                found.append(look_at(own, decided_at(scores, np.full(1, 0.5)), its_least))
            else:
                found.append(own.look(scores, self.within, its_least))
        gap = largest(np.stack([own.gap for own in found], axis=-1))
        return replace(look, gap=gap, performance=np.mean([own.performance for own in found], axis=0), each=tuple(found))

    def _asked(self, at: int) -> Goal:
        """The goal of a label as its candidate tells it: with its minimum performance, where none was given."""
        given = self.goal.goals[at]
        return self.goals[at] if self.within is None or (given.min_performance is None and given.max_gap is None) else given

    def _lacking(self, at: int, look: Look) -> str:
        """What a label misses of its goal; empty where nothing."""
        name, goal, given = self.goal.names[at], self.goals[at], self.goal.goals[at]
        min_performance = goal.min_performance if self.within is None else given.min_performance
        performance, told = float(look.performance[0]), goal.performance.replace("_", " ")
        found = []
        if min_performance is not None and performance < min_performance - NOISE:
            found.append(f"its {told} {performance:.3f} is under the minimum performance {min_performance:.3g}")
        if goal.max_gap is not None and size_of(look) > goal.max_gap + NOISE:
            found.append(f"its |{goal.measure}| {size_of(look):.3f} is above the maximum gap {goal.max_gap:g}")
        if look.spare is not None and look.spare[0] < -NOISE:
            found.append(f"a rate that is kept is {-look.spare[0]:.3f} too low")
        return f"{name}: {', '.join(found)}" if found else ""

    def _why(self, row: int) -> str:
        seen, first = self.seen, 0 if self.within is None else 1
        if len(seen.steps) == 1:
            return "the original network"
        one, several = ("class", "classes'") if self.labels.classes else ("label", "labels'")
        asked = {"min_performance" if goal.min_performance is not None else "max_gap" for goal in self.goals}
        has = f"every {one} has its {' or '.join(sorted(asked, reverse=True))}{' and keeps its rates' if self.least is not None else ''}"
        if seen.merits[row].tier < 2:
            return f"in no step of {len(seen.steps) - first} {has}; the nearest was taken"
        good = sum(each.tier == 2 for each in seen.merits[first:])
        best = f"smallest of the {several} largest |gap|"
        if asked == {"max_gap"}:
            best = f"best mean {self.goals[0].performance.replace('_', ' ')}"
        return f"{best} of {good} step{'' if good == 1 else 's'} in which {has}"

    def _trace(self, at: int) -> pd.DataFrame:
        rows = []
        for step, look in zip(self.seen.steps, self.seen.looks, strict=True):
            own = look.each[at]
            values = [own.gap, own.performance, own.threshold] + ([] if own.spare is None else [own.spare])
            rows.append((step, *(float(value[0]) for value in values)))
        return pd.DataFrame(rows, columns=["step", "gap", "performance", "threshold", "spare"][: len(rows[0])])

    def _joint_trace(self) -> pd.DataFrame:
        rows = []
        for step, look in zip(self.seen.steps, self.seen.looks, strict=True):
            worst = self.goal.names[int(np.argmax([size_of(own) for own in look.each]))]
            performance = float(look.performance[0]) if look.recall is None else look.recall
            rows.append((step, float(look.gap[0]), performance, np.nan, worst))
        return pd.DataFrame(rows, columns=["step", "gap", "performance", "threshold", "label"])


def joined(
    method: str, model: nn.Module, each: dict[str, Candidate], goal: JointGoal, trace: pd.DataFrame, chosen: int, why: str, kind: str
) -> Candidate:
    """The candidates of several labels as one: the network with all its outputs, and a rule a label."""
    first = next(iter(each.values()))
    rule = LabelRules({name: own.rule for name, own in each.items()}, kind)
    told, met = f"{why}{unmet(each)}", not unmet(each)
    return Candidate(method, model, rule, trace, chosen, told, met, goal, first.seed, first.settings, first.notes, each, first.pace)


def unmet(each: Mapping[str, Candidate]) -> str:
    """Which labels miss their goal, to go on after other words; empty where none does."""
    lacking = [name for name, own in each.items() if not own.met]
    return f"; not met: {', '.join(lacking)}" if lacking else ""
