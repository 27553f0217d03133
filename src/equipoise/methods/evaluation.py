"""The evaluation of a step: gap, performance and threshold of every label of every network, from an exact sweep of all thresholds.

A method sees its networks, and their rows, through `Data`. There is one entry in `Data.labels` per label, so that one label is the case of
length one. A row of a method is then a row of the table or, of a multi-label network, a pair of an image and a label (see
models.many_outputs). Each label of a multi-label network has its own threshold, swept on the rows where the label is known. Classes are
decided by argmax, and each has the gaps and the performance of "this class or another". Arrays have a leading axis for the networks of a
stack; the driver owns it, and methods use the last axis only.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from equipoise.data import UNKNOWN, BoolArray, Rows, Scores
from equipoise.errors import BadInput, EmptyCell
from equipoise.measures import (
    Cells,
    Choice,
    FloatArray,
    IntArray,
    Sweep,
    cells_at,
    furthest,
    gap_values,
    is_quotient,
    largest,
    linearised,
    normalised,
    performance_values,
    require_cells,
    sweep,
    sweep_scores,
    tabulate,
    tabulate_codes,
)
from equipoise.methods.goal import Goal, Keep, highest_thresholds, kept_rates, limits_of, spare

HALF = 0.5  # the threshold of a class on its own margin over the others
Places = slice | IntArray


@dataclass(frozen=True, eq=False)
class Label:
    """One label of R repair sets of equal size: labels and groups (R, n), and what follows from their counts."""

    name: str
    y: IntArray
    codes: IntArray
    levels: tuple[str, ...]
    measure: str
    performance: str
    keep: Keep = field(default_factory=dict)
    weight: FloatArray | None = None  # (R, n) sample weights
    threshold: float | None = None  # in use today; None: that of best performance

    @classmethod
    def of(cls, cohorts: Sequence[Rows], goal: Goal, name: str = "") -> "Label":
        """The label of these cohorts, or of their scores; an EmptyCell error where one lacks the rows that the measure needs."""
        for cohort in cohorts:
            cells = tabulate(np.zeros(len(cohort)), cohort.y, cohort.attribute)
            require_cells(goal.measure, cells, cohort.name)
            for rate in goal.keep:
                require_cells({rate: 1.0}, cells, cohort.name)
            if len(np.unique(cohort.y)) < 2:
                raise BadInput(
                    f"{goal.performance} needs positives and negatives; {cohort.name!r} holds one label in all {len(cohort):,} rows"
                )
        levels = cohorts[0].attribute.levels
        different = [c.name for c in cohorts if c.attribute.levels != levels or len(c) != len(cohorts[0])]
        if different:
            raise BadInput(
                f"networks in one stack need the same groups and sizes; these differ from {cohorts[0].name!r}: {', '.join(different[:5])}"
            )
        y, codes = np.stack([c.y for c in cohorts]), np.stack([c.attribute.codes for c in cohorts])
        weights = [normalised(c.weight) for c in cohorts]
        weight = None if any(w is None for w in weights) else np.stack([w for w in weights if w is not None])
        return cls(name, y, codes, levels, goal.measure, goal.performance, goal.keep, weight, goal.threshold)

    def only(self, network: int) -> "Label":
        """The label of one network of a stack."""
        weight = None if self.weight is None else self.weight[[network]]
        return replace(self, y=self.y[[network]], codes=self.codes[[network]], weight=weight)

    def evaluate(self, scores: FloatArray, max_gap: float | None = None, least: FloatArray | None = None) -> "Found":
        """Gap, performance and threshold (R,) of scores (R, n): the best performance, within a maximum |gap| if one is given.

        Where rates are kept, `least` (R, rates * groups) holds their limits, and thresholds that are too high for them are left out.
        """
        swept = sweep(scores, self.y, self.codes, self.levels, (self.measure, self.performance), weight=self.weight)
        if least is not None:
            highest = highest_thresholds(self.keep, scores, self.y, self.codes, len(self.levels), least)
            low = swept.thresholds <= highest[:, None]
            swept = Sweep(swept.thresholds, {name: np.where(low, value, np.nan) for name, value in swept.values.items()})
        # A threshold at which a quotient has no value is left out; at the lowest everybody is decided positive, so that one remains.
        counts = max_gap is not None or is_quotient(self.measure)
        choice = swept.best(self.performance, gap=self.measure if counts else None, max_gap=max_gap)
        left = None if least is None else spare(self.rates(scores, choice.threshold), least)
        return Found(choice.values[self.measure], choice.values[self.performance], choice.threshold, left)

    def original(self, scores: FloatArray) -> "Found":
        """The same of the original networks: at the threshold in use, or without one at that of best performance."""
        if self.threshold is None:
            return self.evaluate(scores)
        cut = np.full(len(scores), self.threshold)
        return replace(self.decided(decided_at(scores, cut)), threshold=cut)

    def decided(self, decisions: FloatArray, least: FloatArray | None = None) -> "Found":
        """The same of decisions (R, n) that are made already, as those of a class are."""
        cells = self.cells(decisions)
        half = np.full(len(decisions), HALF)
        left = None if least is None else spare(self.rates(decisions, half), least)
        return Found(furthest(self.measure, cells), performance_values(self.performance, cells), half, left)

    def cells(self, decisions: FloatArray) -> Cells:
        """The cell table of decisions (R, n)."""
        return tabulate_codes(decisions, self.y, self.codes, self.levels, self.weight)

    def rates(self, scores: FloatArray, thresholds: FloatArray) -> FloatArray:
        """The rates that are kept, of every group, at these thresholds (R, rates * groups)."""
        return kept_rates(self.keep, self.cells(decided_at(scores, thresholds)))

    @property
    def moving(self) -> bool:
        """Whether the weights of the gap change with the decisions: those of a quotient do, and those of many groups."""
        return len(self.levels) > 2 or is_quotient(self.measure)

    def weights(self, scores: FloatArray, thresholds: FloatArray) -> FloatArray:
        """The weights w (R, n) of the gap around the decisions at these thresholds."""
        return self.functional(scores, thresholds)[1]

    def functional(self, scores: FloatArray, thresholds: FloatArray) -> tuple[FloatArray, FloatArray]:
        """The offset (R,) and the weights w (R, n) of the gap around the decisions at these thresholds; of many groups, of the largest."""
        cells = self.cells(decided_at(scores, thresholds))
        worst = np.nanargmax(np.abs(gap_values(self.measure, cells)), axis=-1) + 1
        rows, offsets = np.empty(self.y.shape), np.empty(len(self.y))
        for r, group in enumerate(worst):
            affine = linearised(self.measure, Cells(self.levels, cells.n[r], cells.s[r]), int(group))
            offsets[r], rows[r] = affine.offset, affine.weights(self.y[r], self.codes[r])
        return offsets, rows


def in_use(scores: Scores, goal: Goal) -> Choice | None:
    """The threshold in use with its gap and performance on these scores; None where the goal names none."""
    if goal.threshold is None:
        return None
    cells = cells_at(scores, goal.threshold)
    values = {
        goal.measure: np.asarray(furthest(goal.measure, cells)),
        goal.performance: np.asarray(performance_values(goal.performance, cells)),
    }
    return Choice(np.asarray(goal.threshold), values, np.asarray(True))


def original_threshold(scores: Scores, goal: Goal) -> Choice:
    """The original threshold with its gap and performance on these scores: the one in use, or that of best performance."""
    if (given := in_use(scores, goal)) is not None:
        return given
    swept = sweep_scores(scores, (goal.measure, goal.performance))
    return swept.best(goal.performance, gap=goal.measure if is_quotient(goal.measure) else None)


def decided_at(scores: FloatArray, thresholds: FloatArray) -> FloatArray:
    """Hard decisions (R, n) of scores, by thresholds (R,) or by one per row (R, n)."""
    return (scores >= (thresholds if thresholds.ndim > 1 else thresholds[:, None])).astype(np.float64)


@dataclass(frozen=True, eq=False)
class Found:
    """One label in one evaluation: gap, performance and threshold, each (R,)."""

    gap: FloatArray
    performance: FloatArray
    threshold: FloatArray
    spare: FloatArray | None = None  # where rates are kept: by how much the scarcest one exceeds its limit

    def at(self, network: int, count: int) -> "Found":
        """What was found for one network, at its place among so many."""

        def placed(values: FloatArray) -> FloatArray:
            return np.where(np.arange(count) == network, values[0], np.nan)

        left = None if self.spare is None else placed(self.spare)
        return Found(placed(self.gap), placed(self.performance), placed(self.threshold), left)

    @property
    def size(self) -> FloatArray:
        """|gap|; a quotient without a value is not a small one."""
        size: FloatArray = np.where(np.isnan(self.gap), np.inf, np.abs(self.gap))
        return size


@dataclass(frozen=True, eq=False)
class Evaluation:
    """One step of all networks: the largest gap of any label, the mean performance, the thresholds, and what was found for each label."""

    scores: FloatArray  # (R, rows)
    gap: FloatArray  # (R,)
    performance: FloatArray  # (R,)
    threshold: FloatArray  # (R,), or one per row (R, rows) where there are several labels
    each: tuple[Found, ...]
    recall: float | None = None  # of classes: the mean share of a class that is decided so


@dataclass(frozen=True, eq=False)
class Data:
    """The rows that a method works on: every label with the places of its rows, and the evaluation of the original networks."""

    labels: tuple[Label, ...]
    places: tuple[Places, ...]  # where the rows of each label stand among those of the network
    classes: bool = False
    images: bool = False  # whether a row is an image
    train: "Data | None" = None  # of the training set, for methods that need it
    begun: "Evaluation | None" = None
    least: FloatArray | None = None  # (labels, R) the minimum performance, NaN where a goal has none

    @classmethod
    def of(cls, cohorts: Sequence[Rows], goals: Sequence[Goal]) -> "Data":
        """The rows of these cohorts, which have one goal per label; one error that names every label with an empty cell."""
        first = cohorts[0]
        if first.targets is None:
            return cls((Label.of(cohorts, goals[0]),), (slice(None),))
        found: list[Label] = []
        problems: list[str] = []
        empty = False
        for name, goal in zip(first.labels, goals, strict=True):
            try:
                found.append(Label.of([first.labelled(name)], goal, name))
            except BadInput as error:
                problems += error.problems
                empty = empty or isinstance(error, EmptyCell)
        if problems:
            raise (EmptyCell if empty else BadInput)(*problems)
        count = len(first.labels)
        places = tuple(np.flatnonzero(first.targets[:, at] != UNKNOWN) * count + at for at in range(count))
        return cls(tuple(found), places, first.kind == "classes")

    @property
    def start(self) -> "Evaluation":
        """The evaluation of the original networks."""
        assert self.begun is not None  # the driver evaluates them before a method is run
        return self.begun

    @property
    def several(self) -> bool:
        """Whether there is more than one label, or a class of several."""
        return len(self.labels) > 1 or not isinstance(self.places[0], slice)

    @property
    def parts(self) -> list[tuple[Places, Label]]:
        """Every label with the places of its rows."""
        return list(zip(self.places, self.labels, strict=True))

    @property
    def moving(self) -> bool:
        """Whether the weights of the gap change with the decisions, as they do wherever there is more than one gap."""
        return len(self.labels) > 1 or self.labels[0].moving

    def original(self, scores: FloatArray) -> Evaluation:
        """The evaluation of the original networks from their scores (R, rows), by the threshold in use where there is one."""
        return self.evaluate(scores, original=True)

    def evaluate(
        self, scores: FloatArray, max_gap: float | None = None, least: "Limits | None" = None, *, original: bool = False
    ) -> Evaluation:
        """The evaluation of scores (R, rows): the best threshold of each label, within a maximum |gap| if one is given."""
        limits = least or [None] * len(self.labels)
        if not self.several:
            found = self.labels[0].original(scores) if original else self.labels[0].evaluate(scores, max_gap, limits[0])
            return Evaluation(scores, found.gap, found.performance, found.threshold, (found,))
        thresholds: FloatArray = np.full(scores.shape, HALF)
        each: list[Found] = []
        if self.classes:
            thresholds = winning(scores.reshape(-1, len(self.labels))).reshape(1, -1)
        for (rows, label), limit in zip(self.parts, limits, strict=True):
            if self.classes:
                each.append(label.decided(decided_at(scores, thresholds)[:, rows], limit))
            else:
                each.append(label.original(scores[:, rows]) if original else label.evaluate(scores[:, rows], max_gap, limit))
                thresholds[:, rows] = each[-1].threshold[:, None]
        recall = None
        if self.classes:
            decisions = decided_at(scores, thresholds)
            sides = [(decisions[:, rows], label.y if label.weight is None else label.y * label.weight) for rows, label in self.parts]
            recall = float(np.mean([(made * of).sum() / of.sum() for made, of in sides]))
        return joint(scores, thresholds, each, recall)

    def decide(self, scores: FloatArray, now: Evaluation) -> BoolArray:
        """Decisions (R, n, labels) on the scores (R, n * labels) of any rows, by the thresholds of an evaluation."""
        count = len(self.labels)
        each = scores.reshape(len(scores), -1, count)
        if self.classes:
            return each >= winning(each[0])[None]
        thresholds = np.stack([own.threshold for own in now.each], axis=-1)  # (R, labels)
        made: BoolArray = each >= thresholds[:, None, :]
        return made

    def limits(self, evaluation: Evaluation, goals: Sequence[Goal]) -> "tuple[Limits, Evaluation]":
        """What the rates that are kept must reach, by the original's evaluation; and that evaluation with what they have to spare."""
        decisions = decided_at(evaluation.scores, evaluation.threshold)
        half = np.full(len(decisions), HALF)
        found: list[FloatArray | None] = []
        each = []
        for (rows, label), goal, own in zip(self.parts, goals, evaluation.each, strict=True):
            if not goal.keep:
                found.append(None)
                each.append(own)
                continue
            before = label.rates(decisions[:, rows], half)
            least = limits_of(goal.keep, before)
            found.append(least)
            each.append(replace(own, spare=spare(before, least)))
        return found, replace(evaluation, each=tuple(each))

    def functional(self, now: Evaluation) -> tuple[FloatArray, FloatArray]:
        """The offset (R,) and the weights (R, rows) of the gap that is now the largest, of any label and group."""
        if not self.several:
            return self.labels[0].functional(now.scores, now.threshold)
        decisions = decided_at(now.scores, now.threshold)
        sizes = []
        for rows, label in self.parts:
            gaps = gap_values(label.measure, label.cells(decisions[:, rows]))
            sizes.append(np.abs(np.where(np.isnan(gaps), 0.0, gaps)).max())
        rows, label = self.parts[int(np.argmax(sizes))]
        offset, mine = label.functional(now.scores[:, rows], now.threshold[:, rows])
        weights = np.zeros(now.scores.shape)
        weights[:, rows] = mine
        return offset, weights

    def pull(self, now: Evaluation) -> FloatArray:
        """The weights (R, rows) of |gap| now: moving scores against them makes the gap smaller, whichever sign it has."""
        signed: FloatArray = self.functional(now)[1] * np.sign(now.gap)[:, None]
        return signed

    def centre(self, thresholds: FloatArray) -> FloatArray:
        """The scores on which a task loss is to be centred: the thresholds; of classes, their shares, which a calibrated network keeps."""
        if not self.classes:
            return thresholds
        shares = np.zeros((1, sum(label.y.shape[1] for label in self.labels)))
        for rows, label in self.parts:
            shares[:, rows] = label.y.mean()
        return shares


Limits = Sequence[FloatArray | None]  # per label: what the rates that are kept must reach


def joint(scores: FloatArray, thresholds: FloatArray, each: Sequence[Found], recall: float | None) -> Evaluation:
    """The evaluation of several labels as one: the largest gap and the mean performance."""
    gap = largest(np.stack([own.gap for own in each], axis=-1))
    performance: FloatArray = np.mean([own.performance for own in each], axis=0)
    return Evaluation(scores, gap, performance, thresholds, tuple(each), recall)


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


def single_precision(numbers: FloatArray) -> Tensor:
    """Numbers as single precision, in which networks work."""
    return torch.from_numpy(np.ascontiguousarray(numbers)).float()


COLUMNS = ("step", "gap", "performance", "threshold", "spare")


def trace_row(step: int, found: Found, network: int) -> dict[str, float]:
    """One row of a trace: what was found for a label of one network of a stack."""
    values = {"gap": found.gap, "performance": found.performance, "threshold": found.threshold}
    if found.spare is not None:
        values["spare"] = found.spare
    return {"step": step, **{name: float(value[network]) for name, value in values.items()}}


def frame(rows: Sequence[Mapping[str, object]]) -> pd.DataFrame:
    """A trace of rows, with the columns that every trace begins with first."""
    found = pd.DataFrame(list(rows))
    return found[[*(c for c in COLUMNS if c in found), *(c for c in found if c not in COLUMNS)]]
