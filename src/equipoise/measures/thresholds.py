"""Thresholds: every one of them at once, and the rules by which a score becomes a decision f in [0, 1].

In a sweep, gaps and performance are cumulative sums of w in score order: exact, O(n log n), no grid. Of a quotient, such as the gap in PPV,
numerator and denominator are two sums each. It has no value (NaN) at thresholds where no row, or less than a handful, of some group is
decided so.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, ClassVar, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Le

from equipoise.data import MISSING, Scores
from equipoise.errors import BadInput, UnknownName, pick
from equipoise.measures.cells import Cells, FloatArray, IntArray, cell_index, normalised, tabulate, tabulate_codes
from equipoise.measures.functional import AFFINE_PERFORMANCE, furthest, gap_functional, largest, performance_functional
from equipoise.measures.gaps import GAPS, Gap, is_quotient, named
from equipoise.measures.performance import AT_THRESHOLD, f1


@dataclass(frozen=True, eq=False)
class Sweep:
    """Values at each threshold, from the highest (no row is decided positive) to the lowest (all are).

    The threshold between two neighbouring scores is their midpoint, so that rounding cannot flip a decision. Without leading axes
    there is one entry per distinct decision; with them, entries inside a run of equal scores are NaN.
    """

    thresholds: FloatArray  # (..., m)
    values: dict[str, FloatArray]  # a measure: (..., m); for more than two groups the gap with the largest absolute value

    def best(self, performance: str = "balanced_accuracy", *, gap: str | None = None, max_gap: float | None = None) -> "Choice":
        """The threshold with the best performance; with `max_gap`, the best among those whose |gap| is within it.

        Where nothing is within it, the threshold with the smallest |gap|, and `met` is False.
        """
        score = self.values[pick("performance measure in this sweep", performance, self.values)]
        size = np.zeros_like(score) if gap is None else np.abs(self.values[pick("measure in this sweep", gap, self.values)])
        real = ~np.isnan(score) & ~np.isnan(size)
        allowed = real if max_gap is None or gap is None else real & (size <= max_gap)
        met = np.asarray(allowed.any(-1))
        # Ties in performance go to the smaller gap: sums of counts, so the last bits are noise.
        best = np.where(allowed, score, -np.inf).max(-1, keepdims=True)
        level = np.where(allowed & (score >= best - 1e-12), -size, -np.inf)
        nearest = np.where(real, -size, -np.inf)
        index = np.where(met, level.argmax(-1), nearest.argmax(-1))
        return Choice(self._at(self.thresholds, index), {k: self._at(v, index) for k, v in self.values.items()}, met)

    @staticmethod
    def _at(values: FloatArray, index: IntArray) -> FloatArray:
        taken: FloatArray = np.take_along_axis(values, index[..., None], axis=-1)[..., 0]
        return taken


@dataclass(frozen=True, eq=False)
class Choice:
    """One threshold per replicate, the values there, and whether `max_gap` could be met."""

    threshold: FloatArray  # (...)
    values: dict[str, FloatArray]
    met: npt.NDArray[np.bool_]


def sweep(
    score: npt.ArrayLike,
    y: npt.ArrayLike,
    codes: npt.ArrayLike,
    levels: tuple[str, ...],
    measures: Sequence[str] = ("spd", "eod", "balanced_accuracy"),
    own: dict[str, Gap] | None = None,
    weight: FloatArray | None = None,
) -> Sweep:
    """The measures at every distinct threshold of scores (..., n); y, codes and weights broadcast. `own` adds signed sums of rates."""
    s = np.asarray(score, dtype=np.float64)
    known: dict[str, Gap] = {**{name: name for name in GAPS}, **(own or {})}
    for name in measures:
        if name not in known and name not in AT_THRESHOLD:
            known[name] = named(name, also=[*(own or ()), *AT_THRESHOLD])
    order = np.argsort(-s, axis=-1)  # half the time of a sweep
    ranked = np.take_along_axis(s, order, -1)
    in_cell = cell_index(y, codes, len(levels))
    n = _counts(in_cell, len(levels)) if weight is None else tabulate_codes(np.zeros(()), y, codes, levels, weight).n
    narrow = in_cell.astype(np.min_scalar_type(2 * len(levels) + 1))  # a byte per row fits the cache while it is put in order
    cell = np.take_along_axis(np.broadcast_to(narrow, s.shape), order, -1)
    counted = None if weight is None else np.take_along_axis(np.broadcast_to(weight, s.shape), order, -1)
    thresholds, ends = _thresholds(ranked)
    values = {}
    for name in measures:
        if name in AFFINE_PERFORMANCE:
            functional = performance_functional(name, n)
            values[name] = _cumulated(functional.w, functional.offset, cell, counted)
        elif name == "f1":
            positive = np.broadcast_to(np.arange(2) == 1, (*n.shape[-2:],)).astype(float)
            tp, fp = (_cumulated(w, np.zeros(()), cell, counted) for w in (positive, 1 - positive))
            values[name] = f1(tp, fp, n[..., 1].sum(-1)[..., None])
        elif is_quotient(known[name]):
            each_cell = np.eye(2 * (len(levels) + 1))
            above = np.stack([_cumulated(w.reshape(n.shape[-2:]), np.zeros(()), cell, counted) for w in each_cell], axis=-1)
            values[name] = furthest(known[name], Cells(levels, n[..., None, :, :], above.reshape(*above.shape[:-1], *n.shape[-2:])))
        else:
            each = []
            for k in range(1, len(levels)):
                functional = gap_functional(known[name], n, k)
                each.append(_cumulated(functional.w, functional.offset, cell, counted))
            values[name] = each[0] if len(each) == 1 else largest(np.stack(each, axis=-1))
    if s.ndim == 1:
        return Sweep(thresholds, values) if ends.all() else Sweep(thresholds[ends], {k: v[ends] for k, v in values.items()})
    return Sweep(thresholds, {k: np.where(ends, v, np.nan) for k, v in values.items()})


def sweep_scores(scores: Scores, measures: Sequence[str]) -> Sweep:
    """The same for scores, with their groups and weights."""
    attribute = scores.attribute
    return sweep(scores.score, scores.y, attribute.codes, attribute.levels, measures, weight=normalised(scores.weight))


def _counts(cell: IntArray, groups: int) -> FloatArray:
    """How many rows there are in each cell (..., groups + 1, 2)."""
    size = 2 * (groups + 1)
    lead = cell.shape[:-1]
    replicates = int(np.prod(lead))
    flat = cell if not lead else cell + (np.arange(replicates) * size).reshape(*lead, 1)
    return np.bincount(flat.ravel(), minlength=replicates * size).reshape(*lead, groups + 1, 2).astype(np.float64)


def _thresholds(ranked: FloatArray) -> tuple[FloatArray, npt.NDArray[np.bool_]]:
    """A threshold below each row in descending order (..., n + 1), and whether it separates two different scores."""
    upper, lower = ranked[..., :-1], ranked[..., 1:]
    thresholds = np.empty((*ranked.shape[:-1], ranked.shape[-1] + 1))
    thresholds[..., 0] = np.nextafter(np.maximum(ranked[..., 0], 1.0), np.inf)
    thresholds[..., -1] = np.minimum(ranked[..., -1], 0.0)
    middle = thresholds[..., 1:-1]
    np.subtract(upper, lower, out=middle)
    middle /= 2
    middle += lower
    np.copyto(middle, upper, where=middle <= lower)  # two neighbouring floats have nothing between them
    ends = np.ones(thresholds.shape, dtype=bool)
    np.not_equal(upper, lower, out=ends[..., 1:-1])
    return thresholds, ends


def _cumulated(w: FloatArray, offset: FloatArray, cell: npt.NDArray[np.integer], counted: FloatArray | None) -> FloatArray:
    flat = w.reshape(*w.shape[:-2], -1)
    rows = flat[cell] if flat.ndim == 1 else np.take_along_axis(np.broadcast_to(flat, (*cell.shape[:-1], flat.shape[-1])), cell, -1)
    if counted is not None:
        rows = rows * counted
    out = np.empty((*cell.shape[:-1], cell.shape[-1] + 1))
    out[..., 0] = 0.0
    np.cumsum(rows, axis=-1, out=out[..., 1:])
    out += np.asarray(offset)[..., None]
    return out


def at_threshold(score: npt.ArrayLike, threshold: npt.ArrayLike) -> FloatArray:
    """Hard decisions, 1.0 where score >= threshold (..., n)."""
    return (np.asarray(score, dtype=np.float64) >= np.asarray(threshold, dtype=np.float64)[..., None]).astype(np.float64)


def cells_at(scores: Scores, threshold: float) -> Cells:
    """The cell table of the decisions at a threshold, with the weights of the scores."""
    return tabulate(at_threshold(scores.score, threshold), scores.y, scores.attribute, normalised(scores.weight))


NEVER = math.nextafter(1.0, 2.0)  # the threshold that no score reaches: the number after 1
THRESHOLD = "threshold"  # the kind of rule, where one is written down
ARGMAX = "argmax: the margin of this class over the next"  # where the threshold of a class comes from


@runtime_checkable
class Rule(Protocol):
    """Turns scores into decisions; `needs_group`: whether it needs each patient's group."""

    @property
    def needs_group(self) -> bool: ...

    @property
    def randomised(self) -> bool:
        """Whether `decide` gives probabilities, from which `draw(scores, seed)` makes decisions."""
        ...

    def decide(self, scores: Scores) -> FloatArray:
        """The decision of each row: 0, 1, or the probability of a randomised 1."""
        ...

    def describe(self) -> str:
        """One line: which rule this is and where it came from."""
        ...

    def cuts(self, group: str) -> tuple[float, ...]:
        """The scores at which the decision on a row of this group changes; none for a group that the rule does not know."""
        ...

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON, with the kind of the rule under `kind`."""
        ...


@dataclass(frozen=True)
class Threshold:
    """Positive where score >= value, for everybody."""

    value: Annotated[float, Ge(0.0), Le(NEVER)]
    origin: str = "given"
    KIND: ClassVar[str] = THRESHOLD
    needs_group: ClassVar[bool] = False
    randomised: ClassVar[bool] = False

    def decide(self, scores: Scores) -> FloatArray:
        return at_threshold(scores.score, self.value)

    def describe(self) -> str:
        return f"score >= {self.value:.4g} ({self.origin})"

    def cuts(self, group: str) -> tuple[float, ...]:  # noqa: ARG002 (the same for every group)
        return (self.value,)

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON."""
        return {"kind": THRESHOLD, **asdict(self)}


@dataclass(frozen=True, eq=False)
class LabelRules(Mapping[str, Rule]):
    """A decision rule for each label; classes are decided by argmax, to which each class's rule belongs."""

    rules: Mapping[str, Rule]
    kind: str = "labels"

    def __getitem__(self, label: str) -> Rule:
        if label not in self.rules:
            raise UnknownName("label of this rule", label, self.rules)
        return self.rules[label]

    def __contains__(self, label: object) -> bool:
        return label in self.rules

    def __iter__(self) -> Iterator[str]:
        return iter(self.rules)

    def __len__(self) -> int:
        return len(self.rules)

    @property
    def needs_group(self) -> bool:
        """Whether any of them must know each patient's group."""
        return any(rule.needs_group for rule in self.rules.values())

    @property
    def randomised(self) -> bool:
        """Whether any of them gives probabilities."""
        return any(rule.randomised for rule in self.rules.values())

    def decide(self, scores: Scores) -> FloatArray:
        """An error: scores are those of one label, and so is a rule."""
        raise BadInput(
            f"these are rules of {', '.join(self.rules)}, and {scores.name!r} holds scores of one label; use rule[label].decide(scores)"
        )

    def describe(self) -> str:
        """One line per label."""
        if self.kind == "classes":
            return f"argmax of {', '.join(self.rules)}"
        return "; ".join(f"{label}: {rule.describe()}" for label, rule in self.rules.items())

    def cuts(self, group: str) -> tuple[float, ...]:
        """The thresholds of all labels for a group."""
        return tuple(cut for rule in self.rules.values() for cut in rule.cuts(group))

    def to_dict(self) -> dict[str, object]:
        """The rule of each label as plain values."""
        return {"kind": self.kind, "labels": {label: rule.to_dict() for label, rule in self.rules.items()}}


def best_threshold(scores: Scores, performance: str = "balanced_accuracy") -> Threshold:
    """The threshold with the best performance on these scores, which should be validation scores."""
    if len(np.unique(scores.y)) < 2:
        raise BadInput(
            f"a threshold by {performance} needs positives and negatives; {scores.name!r} has one label in all {len(scores):,} rows"
        )
    choice = sweep_scores(scores, (performance,)).best(performance)
    return Threshold(float(choice.threshold), f"chosen by best {performance.replace('_', ' ')} on {len(scores):,} rows of {scores.name}")


def choose_rule(threshold: float | None = None, valid: Scores | None = None, optimise: str = "balanced_accuracy") -> Threshold:
    """The threshold as given; or the best by `optimise` on the validation scores; or 0.5. Its `origin` names which."""
    if threshold is not None and valid is not None:
        raise BadInput("give a threshold or validation data to choose one, not both")
    if threshold is not None:
        if isinstance(threshold, bool) or not isinstance(threshold, (int, float, np.integer, np.floating)):
            raise BadInput(f"threshold must be a number, from which score on a decision is positive; got {threshold!r}")
        return Threshold(float(threshold), "given")
    if valid is not None:
        if not isinstance(valid, Scores):
            raise BadInput(f"with scores, valid is scores too: valid=eq.Scores.from_frame(...); got {type(valid).__name__}")
        return best_threshold(valid, optimise)
    return Threshold(0.5, "the default; none was given or chosen on validation data")


def codes_among(groups: tuple[str, ...], scores: Scores, who: str) -> IntArray:
    """Where each row's group stands among a rule's groups, -1 if it is missing; an error that names groups the rule never saw."""
    attribute = scores.attribute
    unseen = [attribute.levels[code] for code in np.unique(attribute.codes) if code != MISSING and attribute.levels[code] not in groups]
    if unseen:
        raise BadInput(
            f"{who} was fitted on the groups {', '.join(groups)}; {scores.name!r} holds rows of {', '.join(unseen)}, which it never saw. "
            "Fit it again on validation data with rows of every group."
        )
    place = [groups.index(level) if level in groups else MISSING for level in attribute.levels]
    codes: IntArray = np.array([*place, MISSING], dtype=np.int64)[attribute.codes]
    return codes
