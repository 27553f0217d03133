"""The evaluation of a step: gap, performance and threshold of every label, from an exact sweep of all thresholds.

A method reads its rows through `Data`, with one entry in `Data.labels` per label; a single label is the case of length one. A row is a row
of the table or, for a multi-label network, a pair of an image and a label (see models.score). Each label of a multi-label network
has its own threshold, swept on the rows where the label is known. Classes are decided by argmax, and each class has the gaps and the
performance of "this class or another".
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from equipoise import measures
from equipoise.data import UNKNOWN, Attribute, BoolArray, FloatArray, IntArray, Rows, Scores
from equipoise.errors import BadInput, EmptyCell
from equipoise.measures import RATES, Cells, Sweep, measure_of, sweep, threshold_at_capacity
from equipoise.methods.goal import BEFORE, Goal, Keep

if TYPE_CHECKING:
    from torch import Tensor

RATE_NOISE = 1e-9  # tolerance in comparisons of rates, which are counts over counts
DECISION_CUT = 0.5  # the threshold of decisions 0 and 1, and of a class
ZERO_GAP = 0.01  # a gap that counts as zero
Places = slice | IntArray


@dataclass(frozen=True, eq=False)
class Label:
    """One label of a repair set: labels and groups (n,), and evaluations that depend on their counts."""

    name: str
    y: IntArray
    attribute: Attribute
    measure: str
    performance: str
    keep: Keep = field(default_factory=dict)
    weight: FloatArray | None = None  # (n,) sample weights
    threshold: float | None = None  # in use today; None: the threshold of best performance
    capacity: float | None = None  # the share of rows that is flagged, by the threshold of any scores
    rounding: float = 0.0  # of the scores; no threshold separates two that differ by less
    least: FloatArray | None = None  # (rates * groups,) limits of the kept rates; thresholds that are too high for them are excluded

    @classmethod
    def of(cls, rows: Rows, goal: Goal, name: str = "") -> "Label":
        """The label of a cohort, or of scores; raises `EmptyCell` if rows are missing that the measure needs."""
        attribute = rows.attribute.only(goal.groups)
        cells = Cells.of(np.zeros(len(rows)), rows.y, attribute)
        cells.require(goal.measure, rows.name)
        for rate in goal.keep if "keep" in goal.model_fields_set else ():  # by default, a rate that a group lacks does not count
            cells.require(rate, rows.name)
        if len(np.unique(rows.y)) < 2:
            raise BadInput(f"{goal.performance} needs positives and negatives; {rows.name!r} holds one label in all {len(rows):,} rows")
        weight, rounding = measures.normalise_weights(rows.weight), 0.0 if isinstance(rows, Scores) else measures.SINGLE_PRECISION
        return cls(name, rows.y, attribute, goal.measure, goal.performance, goal.keep, weight, goal.threshold, goal.capacity, rounding)

    def evaluate(self, scores: FloatArray, max_gap: float | None = None) -> "LabelResult":
        """Gap, performance and threshold of scores (n,): the best performance, within a maximum |gap| if one is given."""
        if self.capacity is not None:
            threshold = threshold_at_capacity(scores, self.capacity, self.weight)
            return replace(self.decided(decisions_at(scores, threshold)), threshold=threshold)
        swept = sweep(scores, self.y, self.attribute, (self.measure, self.performance), weight=self.weight, rounding=self.rounding)
        if self.least is not None:
            low = swept.thresholds <= highest_threshold(self.keep, scores, self.y, self.attribute, self.least)
            swept = Sweep(swept.thresholds, {name: np.where(low, value, np.nan) for name, value in swept.values.items()})
        # Thresholds at which a quotient is undefined are excluded; at the lowest one all decisions are positive, so at least one remains.
        gap_counts = max_gap is not None or measure_of(self.measure).is_quotient
        choice = swept.best(self.performance, gap=self.measure if gap_counts else None, max_gap=max_gap)
        threshold = float(choice.threshold)
        margin = None if self.least is None else self.decided(decisions_at(scores, threshold)).spare
        return LabelResult(float(choice.values[self.measure]), float(choice.values[self.performance]), threshold, margin)

    def original(self, scores: FloatArray) -> "LabelResult":
        """The result of the original network, at the threshold in use or, without one, at that of best performance."""
        if self.threshold is None:
            return self.evaluate(scores)
        return replace(self.decided(decisions_at(scores, self.threshold)), threshold=self.threshold)

    def decided(self, decisions: FloatArray) -> "LabelResult":
        """The result of given decisions (n,), such as those of a class."""
        cells = self.cells(decisions)
        margin = None if self.least is None else float(smallest_margin(kept_rates(self.keep, cells), self.least))
        return LabelResult(float(cells.worst_gap(self.measure)), float(cells.performance(self.performance)), DECISION_CUT, margin)

    def keeping(self, decisions: FloatArray, result: "LabelResult") -> "tuple[Label, LabelResult]":
        """The label with the limits of its kept rates, from the original's decisions (n,), and its result with the margin over them."""
        if not self.keep:
            return self, result
        before = kept_rates(self.keep, self.cells(decisions))
        least = least_rates(self.keep, before)
        return replace(self, least=least), replace(result, spare=float(smallest_margin(before, least)))

    def cells(self, decisions: FloatArray) -> Cells:
        """The cell table of decisions (n,)."""
        return Cells.of(decisions, self.y, self.attribute, self.weight)

    def functional(self, decisions: FloatArray) -> tuple[float, FloatArray]:
        """The offset and the weights w (n,) of the largest gap, linearised at these decisions (n,)."""
        cells = self.cells(decisions)
        affine = measures.linearise(self.measure, cells, int(np.nanargmax(np.abs(cells.gaps(self.measure)))) + 1)
        return float(affine.offset), affine.weights(self.y, self.attribute.codes)


def decisions_at(scores: FloatArray, threshold: FloatArray | float) -> FloatArray:
    """Hard decisions (n,) of scores, by one threshold or by one per row (n,)."""
    return (scores >= threshold).astype(np.float64)


@dataclass(frozen=True)
class LabelResult:
    """Gap, performance and threshold of one label in one evaluation."""

    gap: float
    performance: float
    threshold: float
    spare: float | None = None  # the smallest margin of the kept rates over their limits, if the goal keeps any

    @property
    def size(self) -> float:
        """|gap|; infinite for an undefined quotient, which is not a small gap."""
        return np.inf if np.isnan(self.gap) else abs(self.gap)


@dataclass(frozen=True, eq=False)
class Evaluation:
    """One step: the largest gap of any label, the mean performance, the thresholds, and the result of each label."""

    scores: FloatArray  # (rows,)
    gap: float
    performance: float
    threshold: FloatArray  # (rows,) of the label of each row
    each: tuple[LabelResult, ...]
    recall: float | None = None  # mean recall of the classes


@dataclass(frozen=True, eq=False)
class Data:
    """The rows that a method works on: every label with the places of its rows, and the evaluation of the original network."""

    labels: tuple[Label, ...]
    places: tuple[Places, ...]  # of the rows of each label among the rows of the network
    classes: bool = False
    images: bool = False  # whether a row is an image
    train: "Data | None" = None  # the training set, for methods that need it
    begun: "Evaluation | None" = None
    least: FloatArray | None = None  # (labels,) minimum performance, NaN if a goal has none

    @classmethod
    def of(cls, rows: Rows, goals: Mapping[str, Goal]) -> "Data":
        """These rows, with the goal of each label; raises one error that lists every label with an empty cell."""
        labels: list[Label] = []
        problems: list[str] = []
        empty = False
        for name, part in rows.by_label.items():
            try:
                labels.append(Label.of(part, goals[name], name))
            except BadInput as error:
                problems += error.problems
                empty = empty or isinstance(error, EmptyCell)
        if problems:
            raise (EmptyCell if empty else BadInput)(*problems)
        count = len(rows.labels)
        known = [rows.column(name) != UNKNOWN for name in rows.labels]
        places = [slice(at, None, count) if own.all() else np.flatnonzero(own) * count + at for at, own in enumerate(known)]
        return cls(tuple(labels), tuple(places), rows.kind.argmax)

    @property
    def start(self) -> "Evaluation":
        """The evaluation of the original network."""
        assert self.begun is not None  # the driver evaluates it before a method is run
        return self.begun

    @property
    def parts(self) -> list[tuple[Places, Label]]:
        """Every label with the places of its rows."""
        return list(zip(self.places, self.labels, strict=True))

    @property
    def moving(self) -> bool:
        """Whether the weights of the gap change with the decisions, as for a quotient, and if there is more than one gap."""
        first = self.labels[0]
        return len(self.labels) > 1 or len(first.attribute.levels) > 2 or measure_of(first.measure).is_quotient

    def evaluate(self, scores: FloatArray, max_gap: float | None = None, original: bool = False) -> Evaluation:
        """The evaluation of scores (rows,): the best threshold of each label, within a maximum |gap| if one is given.

        The `original` network is evaluated at the threshold in use, if there is one.
        """
        results, recalls = [], []
        thresholds: FloatArray = np.full(scores.shape, DECISION_CUT)
        if self.classes:
            thresholds = argmax_thresholds(scores.reshape(-1, len(self.labels))).reshape(-1)
        for rows, label in self.parts:
            if self.classes:
                decisions = decisions_at(scores[rows], thresholds[rows])
                results.append(label.decided(decisions))
                members = label.y if label.weight is None else label.y * label.weight
                recalls.append((decisions * members).sum() / members.sum())
            else:
                results.append(label.original(scores[rows]) if original else label.evaluate(scores[rows], max_gap))
                thresholds[rows] = results[-1].threshold
        gap = float(measures.largest_gap(np.array([result.gap for result in results])))
        performance = float(np.mean([result.performance for result in results]))
        return Evaluation(scores, gap, performance, thresholds, tuple(results), float(np.mean(recalls)) if recalls else None)

    def decide(self, scores: FloatArray, evaluation: Evaluation) -> BoolArray:
        """Decisions (n, labels) on the scores (n * labels,) of any rows, by the thresholds of an evaluation."""
        by_label = scores.reshape(-1, len(self.labels))
        decisions: BoolArray = by_label >= (
            argmax_thresholds(by_label) if self.classes else [result.threshold for result in evaluation.each]
        )
        return decisions

    def keeping(self, start: Evaluation) -> "tuple[Data, Evaluation]":
        """These rows with the limits of the kept rates, from the original's evaluation; and that evaluation with the margins over them."""
        decisions = decisions_at(start.scores, start.threshold)
        parts = zip(self.parts, start.each, strict=True)
        labels, results = zip(*(label.keeping(decisions[rows], result) for (rows, label), result in parts), strict=True)
        return replace(self, labels=labels), replace(start, each=results)

    def functional(self, evaluation: Evaluation) -> tuple[float, FloatArray]:
        """The offset and the weights (rows,) of the largest gap of any label and group."""
        decisions = decisions_at(evaluation.scores, evaluation.threshold)

        def size(part: tuple[Places, Label]) -> float:
            gaps = part[1].cells(decisions[part[0]]).gaps(part[1].measure)
            return float(np.abs(np.where(np.isnan(gaps), 0.0, gaps)).max())

        rows, label = max(self.parts, key=size)
        weights = np.zeros(decisions.shape)
        offset, weights[rows] = label.functional(decisions[rows])
        return offset, weights

    def pull(self, evaluation: Evaluation) -> FloatArray:
        """The weights (rows,) of |gap|: moving scores against them reduces the gap, whatever its sign."""
        signed: FloatArray = self.functional(evaluation)[1] * np.sign(evaluation.gap)
        return signed

    def centre(self, threshold: FloatArray) -> FloatArray:
        """The scores at which a task loss is centred: the thresholds; for classes, their prevalences, which a calibrated network keeps."""
        if not self.classes:
            return threshold
        shares = np.zeros(sum(len(label.y) for label in self.labels))
        for rows, label in self.parts:
            shares[rows] = label.y.mean()
        return shares


def kept_rates(keep: Keep, cells: Cells) -> FloatArray:
    """The kept rates of every group (..., rates * groups)."""
    return np.concatenate([cells.rate(name) for name in keep], axis=-1)


def least_rates(keep: Keep, before: FloatArray) -> FloatArray:
    """The lower limits of the kept rates (..., rates * groups), from their values for the original network."""
    minimum = np.repeat([np.nan if least == BEFORE else float(least) for least in keep.values()], before.shape[-1] // len(keep))
    return np.where(np.isnan(minimum), before, minimum)


def smallest_margin(rates: FloatArray, least: FloatArray) -> FloatArray:
    """The smallest margin (...) of the rates over their limits; negative if one is too low. Undefined rates do not count."""
    margin = rates - least
    smallest: FloatArray = np.where(np.isnan(margin), np.inf, margin).min(-1)
    return smallest


def highest_threshold(keep: Keep, scores: FloatArray, y: IntArray, attribute: Attribute, least: FloatArray) -> float:
    """The highest threshold at which no rate of scores (n,) is below its limit (rates * groups,).

    Every rate is a share of positive decisions and can only rise as the threshold falls, so limits on rates are a limit on the threshold.

    >>> scores, y, everyone = np.array([0.9, 0.4, 0.2]), np.array([1, 1, 0]), Attribute("", ("all",), np.zeros(3, int))
    >>> highest_threshold({"tpr": 0.5}, scores, y, everyone, np.array([0.5]))
    0.9
    """
    highest = np.inf
    for at, (name, group) in enumerate((name, group) for name in keep for group in range(len(attribute.levels))):
        label = RATES[name]
        group_scores = scores[(attribute.codes == group) & ((y == label) if label is not None else True)]
        count = len(group_scores)
        needed = int(np.ceil(least[at] * count - RATE_NOISE)) if count else 0
        if needed > 0:
            highest = min(highest, float(np.partition(group_scores, count - needed)[count - needed]))
    return highest


def argmax_thresholds(scores: FloatArray) -> FloatArray:
    """The threshold of each class (n, classes) at or above which it is the argmax of its row; the first of equal ones wins.

    >>> p = np.array([[0.5, 0.3, 0.2], [0.4, 0.4, 0.2]])
    >>> (p >= argmax_thresholds(p)).tolist()
    [[True, False, False], [True, False, False]]
    """
    thresholds = np.empty_like(scores)
    for k in range(scores.shape[1]):
        before = np.nextafter(scores[:, :k].max(1, initial=-1.0), np.inf)
        thresholds[:, k] = np.maximum(before, scores[:, k + 1 :].max(1, initial=-1.0))
    return thresholds


def single_precision(numbers: np.typing.NDArray[Any]) -> "Tensor":
    """A tensor in single precision, as networks need it."""
    import torch

    return torch.from_numpy(np.ascontiguousarray(numbers)).float()


def trace_of(results: Sequence[LabelResult], steps: Sequence[int]) -> pd.DataFrame:
    """The trace of one label, with one row per step; `spare` is a column if the goal keeps rates."""
    trace = pd.DataFrame([{"step": step, **asdict(result)} for step, result in zip(steps, results, strict=True)])
    return trace.drop(columns="spare") if results[0].spare is None else trace
