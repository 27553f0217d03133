"""All thresholds at once: gaps and performance as cumulative sums of w in score order. Exact, O(n log n), no grid.

The numerator and denominator of a quotient, such as the gap in PPV, are two sums each. It is NaN at thresholds at which no row, or fewer
than a handful, of some group is decided so.

Decision rules: how a score becomes a decision f in [0, 1].

A randomised rule gives the probability p of a positive decision. The decision on a row is positive if u < p, where u in [0, 1) is a hash
of the seed and of the id of the row (`row_draws`). It does not depend on the position of the row, nor on the other rows of a file.
"""

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, ClassVar, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import pandas as pd
from annotated_types import Ge, Le

from equipoise.data import MISSING, Scores, is_numbered
from equipoise.errors import BadInput, UnknownName, pick, raise_all
from equipoise.measures.cells import (
    AFFINE_PERFORMANCE,
    Affine,
    Cells,
    FloatArray,
    IntArray,
    cell_index,
    gap_functional,
    largest_gap,
    normalised,
    performance_functional,
    performance_values,
    tabulate,
    tabulate_codes,
    worst_gap,
)
from equipoise.measures.gaps import AT_THRESHOLD, canonical_name, is_quotient

# Relative differences up to which the order of two scores of a network depends on the processor and the batch, such as after pruning.
SINGLE_PRECISION = 16 * float(np.finfo(np.float32).eps)


@dataclass(frozen=True, eq=False)
class Sweep:
    """Values at each threshold, from the highest (no row is decided positive) to the lowest (all are).

    The threshold between two neighbouring scores is their midpoint, so that rounding cannot flip a decision. Without leading axes
    there is one entry per distinct decision; with them, entries inside a run of equal scores are NaN.
    """

    thresholds: FloatArray  # (..., m)
    values: dict[str, FloatArray]  # by measure, (..., m); with more than two groups, the gap with the largest absolute value

    def best(self, performance: str = "balanced_accuracy", *, gap: str | None = None, max_gap: float | None = None) -> "Choice":
        """The threshold with the best performance; with `max_gap`, the best among those whose |gap| does not exceed it.

        If no threshold satisfies `max_gap`, the one with the smallest |gap|, and `met` is False.
        """
        score = self.values[pick("performance measure in this sweep", performance, self.values)]
        size = np.zeros_like(score) if gap is None else np.abs(self.values[pick("measure in this sweep", gap, self.values)])
        defined = ~np.isnan(score) & ~np.isnan(size)
        allowed = defined if max_gap is None or gap is None else defined & (size <= max_gap)
        met = np.asarray(allowed.any(-1))
        # Ties in performance go to the smaller gap: sums of counts, so the last bits are noise.
        best = np.where(allowed, score, -np.inf).max(-1, keepdims=True)
        tied = np.where(allowed & (score >= best - 1e-12), -size, -np.inf)
        nearest = np.where(defined, -size, -np.inf)
        index = np.where(met, tied.argmax(-1), nearest.argmax(-1))[..., None]
        threshold, *values = (np.take_along_axis(each, index, axis=-1)[..., 0] for each in (self.thresholds, *self.values.values()))
        return Choice(threshold, dict(zip(self.values, values, strict=True)), met)


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
    weight: FloatArray | None = None,
    rounding: float = 0.0,
) -> Sweep:
    """The measures at every distinct threshold of scores (..., n); y, codes and weights broadcast.

    Scores whose relative difference is at most `rounding` count as equal.
    """
    s = np.asarray(score, dtype=np.float64)
    gaps = {name: canonical_name(name, also=AT_THRESHOLD) for name in measures if name not in AT_THRESHOLD}
    order = np.argsort(-s, axis=-1)  # half the time of a sweep
    ranked = np.take_along_axis(s, order, -1)
    cell = cell_index(y, codes, len(levels))
    n = tabulate_codes(np.zeros(()), y, codes, levels, weight).n
    narrow = cell.astype(np.min_scalar_type(2 * len(levels) + 1))  # one byte per row fits the cache during reordering
    cell = np.take_along_axis(np.broadcast_to(narrow, s.shape), order, -1)
    weights = None if weight is None else np.take_along_axis(np.broadcast_to(weight, s.shape), order, -1)
    thresholds, ends = _thresholds(ranked, rounding)
    values = {}
    for name in measures:
        if name in AFFINE_PERFORMANCE:
            values[name] = _cumulative(performance_functional(name, n), cell, weights)
        elif name in AT_THRESHOLD or is_quotient(gaps[name]):  # the sums of all cells at every threshold
            by_label = np.broadcast_to(np.eye(2)[:, None], (2, *n.shape[-2:]))  # performance needs no groups
            indicators = by_label if name in AT_THRESHOLD else np.eye(2 * (len(levels) + 1)).reshape(-1, *n.shape[-2:])
            above = np.stack([_cumulative(Affine(np.zeros(()), w), cell, weights) for w in indicators], axis=-1)
            cells = Cells(levels, n[..., None, :, :], above.reshape(*above.shape[:-1], -1, 2))
            values[name] = performance_values(name, cells) if name in AT_THRESHOLD else worst_gap(gaps[name], cells)
        else:
            by_group = [_cumulative(gap_functional(gaps[name], n, k), cell, weights) for k in range(1, len(levels))]
            values[name] = by_group[0] if len(by_group) == 1 else largest_gap(np.stack(by_group, axis=-1))
    if s.ndim == 1:
        return Sweep(thresholds, values) if ends.all() else Sweep(thresholds[ends], {k: v[ends] for k, v in values.items()})
    return Sweep(thresholds, {k: np.where(ends, v, np.nan) for k, v in values.items()})


def sweep_scores(scores: Scores, measures: Sequence[str]) -> Sweep:
    """The sweep of scores with their groups and weights."""
    attribute = scores.attribute
    return sweep(scores.score, scores.y, attribute.codes, attribute.levels, measures, weight=normalised(scores.weight))


def _thresholds(ranked: FloatArray, rounding: float) -> tuple[FloatArray, npt.NDArray[np.bool_]]:
    """A threshold below each row in descending order (..., n + 1), and whether the scores around it differ by more than rounding."""
    upper, lower = ranked[..., :-1], ranked[..., 1:]
    thresholds = np.empty((*ranked.shape[:-1], ranked.shape[-1] + 1))
    thresholds[..., 0] = np.nextafter(np.maximum(ranked[..., 0], 1.0), np.inf)
    thresholds[..., -1] = np.minimum(ranked[..., -1], 0.0)
    middle = thresholds[..., 1:-1]
    np.subtract(upper, lower, out=middle)
    ends = np.ones(thresholds.shape, dtype=bool)
    np.greater(middle, rounding * upper, out=ends[..., 1:-1])
    middle /= 2
    middle += lower
    np.copyto(middle, upper, where=middle <= lower)  # two neighbouring floats have nothing between them
    return thresholds, ends


def _cumulative(functional: Affine, cell: npt.NDArray[np.integer], weights: FloatArray | None) -> FloatArray:
    """offset + the cumulative sum of the weight w of each row's cell (..., n + 1), times the sample weights."""
    flat = functional.w.reshape(*functional.w.shape[:-2], -1)
    rows = flat[cell] if flat.ndim == 1 else np.take_along_axis(np.broadcast_to(flat, (*cell.shape[:-1], flat.shape[-1])), cell, -1)
    if weights is not None:
        rows = rows * weights
    out = np.empty((*cell.shape[:-1], cell.shape[-1] + 1))
    out[..., 0] = 0.0
    np.cumsum(rows, axis=-1, out=out[..., 1:])
    out += functional.offset[..., None]
    return out


def at_threshold(score: npt.ArrayLike, threshold: npt.ArrayLike) -> FloatArray:
    """Hard decisions, 1.0 where score >= threshold (..., n)."""
    return (np.asarray(score, dtype=np.float64) >= np.asarray(threshold, dtype=np.float64)[..., None]).astype(np.float64)


def cells_at(scores: Scores, threshold: float) -> Cells:
    """The cell table of the decisions at a threshold, with the weights of the scores."""
    return tabulate(at_threshold(scores.score, threshold), scores.y, scores.attribute, normalised(scores.weight))


NEVER = math.nextafter(1.0, 2.0)  # a threshold that no score reaches: the next number after 1
THRESHOLD = "threshold"  # the `kind` of a threshold in JSON


@runtime_checkable
class Rule(Protocol):
    """Turns scores into decisions."""

    @property
    def needs_group(self) -> bool:
        """Whether the group of each patient must be known."""
        ...

    @property
    def randomised(self) -> bool:
        """Whether `decide` returns probabilities, from which `draw(scores, seed)` makes decisions by the ids of the rows."""
        ...

    @property
    def shared(self) -> float | None:
        """The threshold by which the rows of every group are decided; None if they are decided otherwise."""
        ...

    @property
    def argmax(self) -> bool:
        """Whether the scores are margins of a class over the next, so that it is decided by argmax."""
        ...

    def decide(self, scores: Scores) -> FloatArray:
        """The decision on each row: 0, 1, or the probability of a randomised 1."""
        ...

    @property
    def origin(self) -> str:
        """Where the rule comes from, for readers."""
        ...

    def describe(self) -> str:
        """The rule and its origin in one line."""
        ...

    def cuts(self, group: str) -> tuple[float, ...]:
        """The scores at which the decision on a row of this group changes; empty for a group that the rule was not fitted on."""
        ...

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON, with the kind of the rule under `kind`."""
        ...


@dataclass(frozen=True)
class Threshold:
    """Positive if score >= value, in every group."""

    value: Annotated[float, Ge(0.0), Le(NEVER)]
    origin: str = "given"  # for readers
    argmax: bool = False  # whether scores are margins of a class over the next, so that it decides by argmax
    KIND: ClassVar[str] = THRESHOLD
    needs_group: ClassVar[bool] = False
    randomised: ClassVar[bool] = False

    @property
    def shared(self) -> float:
        return self.value

    def decide(self, scores: Scores) -> FloatArray:
        return at_threshold(scores.score, self.value)

    def describe(self) -> str:
        return f"score >= {self.value:.4g} ({self.origin})"

    def cuts(self, group: str) -> tuple[float, ...]:  # noqa: ARG002 (the same for every group)
        return (self.value,)

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON."""
        return {"kind": THRESHOLD, **asdict(self)}


@dataclass(frozen=True)
class Described:
    """A rule known by its description: that of a saved audit, or that of scores which are decisions already."""

    words: str
    needs_group: bool = False
    decided: bool = False  # whether the scores are the decisions
    KIND: ClassVar[str] = "described"
    randomised: ClassVar[bool] = False
    shared: ClassVar[float | None] = None
    argmax: ClassVar[bool] = False
    origin: ClassVar[str] = ""

    def decide(self, scores: Scores) -> FloatArray:
        """The scores, if they are decisions; else an error."""
        if not self.decided:
            raise BadInput(
                f"{scores.name!r} cannot be decided by a rule that was read from an audit: {self.words}. Load the rule's own file."
            )
        return scores.score

    def describe(self) -> str:
        return self.words

    def cuts(self, group: str) -> tuple[float, ...]:  # noqa: ARG002 (they are not known)
        return ()

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON."""
        return {"kind": self.KIND, "words": self.words}


ARGMAX = Threshold(0.5, "argmax: the margin of this class over the next", argmax=True)  # the rule of each class


def row_draws(scores: Scores, seed: int) -> FloatArray:
    """A number in [0, 1) per row, made from the seed and the id of the row; raises an error if rows have no ids.

    It is the number in the first 53 bits of the SHA-256 hash of the text SEED/ID in UTF-8, divided by 2^53. Rows without ids of their own
    take the id of their patient, if there is one, so that all rows of a patient have the same number.

    >>> frame = pd.DataFrame({"y": [1, 0], "p": [0.9, 0.2], "sex": ["F", "M"], "image": ["a.png", "b.png"]})
    >>> row_draws(Scores.from_frame(frame, label="y", score="p", group="sex", id="image"), seed=0).round(4).tolist()
    [0.7743, 0.6131]
    """
    ids = scores.ids if scores.patients is None or not is_numbered(scores.ids) else scores.patients
    without = len(ids) if ids is scores.ids and is_numbered(ids) else int(pd.isna(ids).sum())
    if without:
        raise BadInput(
            f"the rule is randomised and draws each decision from the id of the row; {without:,} of {len(ids):,} rows of {scores.name!r} "
            "have none. Repair with a column of row ids, data.id (id=), or of patient ids, --patient (patient=), and give new rows that "
            "column too; or repair with a method whose rule is not randomised, such as group-thresholds."
        )
    digests = b"".join([hashlib.sha256(f"{seed}/{key}".encode("utf-8", "surrogatepass")).digest()[:8] for key in ids])
    draws: FloatArray = (np.frombuffer(digests, dtype=">u8") >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return draws


def best_threshold(scores: Scores, performance: str = "balanced_accuracy") -> Threshold:
    """The threshold with the best performance on these scores, which should be validation scores."""
    if len(np.unique(scores.y)) < 2:
        raise BadInput(
            f"a threshold by {performance} needs positives and negatives; {scores.name!r} has one label in all {len(scores):,} rows"
        )
    choice = sweep_scores(scores, (performance,)).best(performance)
    return Threshold(float(choice.threshold), f"chosen by best {performance.replace('_', ' ')} on {len(scores):,} rows of {scores.name}")


def thresholds_by_name(threshold: float | Mapping[str, float] | None, names: Iterable[str], kind: str = "label") -> dict[str, float | None]:
    """The threshold of each label (or of another `kind` of thing): one for all, or those of a mapping, which must name each of them.

    >>> thresholds_by_name({"Effusion": 0.2, "Mass": 0.08}, ["Effusion", "Mass"]), thresholds_by_name(0.5, ["Effusion", "Mass"])
    ({'Effusion': 0.2, 'Mass': 0.08}, {'Effusion': 0.5, 'Mass': 0.5})
    """
    names = list(names)
    if not isinstance(threshold, Mapping):
        return dict.fromkeys(names, threshold)
    if names == [""]:
        raise BadInput(f"a threshold for each {kind} is for several {kind}s, and there is one. Give one number; got {dict(threshold)}")
    problems = [UnknownName(f"{kind} in threshold", name, names).problems[0] for name in threshold if name not in names]
    if missing := [name for name in names if name not in threshold]:
        problems.append(f"threshold has none for {', '.join(missing)}. Give one for every {kind}, or one number for all")
    raise_all(problems)
    return {name: threshold[name] for name in names}


def choose_rule(
    threshold: float | Mapping[str, float] | None = None, valid: Scores | None = None, optimise: str = "balanced_accuracy"
) -> Threshold:
    """The given threshold; else the best one by `optimise` on the validation scores; else 0.5. Its `origin` says which."""
    if threshold is not None and valid is not None:
        raise BadInput("give a threshold or validation data to choose one, not both")
    if threshold is not None:
        if isinstance(threshold, bool) or not isinstance(threshold, (int, float, np.integer, np.floating)):
            by_label = ". A threshold for each label needs several labels" if isinstance(threshold, Mapping) else ""
            raise BadInput(f"threshold must be a number, from which score on a decision is positive; got {threshold!r}{by_label}")
        if not 0 <= threshold <= NEVER:
            raise BadInput(f"threshold must be between 0 and 1, like the scores; got {threshold}")
        return Threshold(float(threshold), "given")
    if valid is not None:
        if not isinstance(valid, Scores):
            raise BadInput(f"with scores, valid is scores too: valid=eq.Scores.from_frame(...); got {type(valid).__name__}")
        return best_threshold(valid, optimise)
    return Threshold(0.5, "the default; none was given or chosen on validation data")


def given_or_chosen(
    rule: Rule | None, threshold: float | Mapping[str, float] | None, valid: Scores | None = None, optimise: str = "balanced_accuracy"
) -> Rule:
    """The given rule, or the threshold of `choose_rule`; raises an error if both are given."""
    if rule is not None and threshold is not None:
        raise BadInput("give a decision rule or a threshold, not both")
    return choose_rule(threshold, valid, optimise) if rule is None else rule


def rules_by_label(
    labels: Iterable[str],
    rule: Rule | None,
    threshold: float | Mapping[str, float] | None,
    valid: Mapping[str, Scores] | None = None,
    optimise: str = "balanced_accuracy",
) -> dict[str, Rule]:
    """The rule of each label: the given one, or from its own threshold or its own validation scores."""
    own = thresholds_by_name(threshold, labels)
    return {label: given_or_chosen(rule, each, (valid or {}).get(label), optimise) for label, each in own.items()}


def group_positions(groups: tuple[str, ...], scores: Scores, who: str) -> IntArray:
    """The position of each row's group among the groups of a rule, -1 if missing; raises an error if a group is not among them."""
    attribute = scores.attribute
    unseen = [attribute.levels[code] for code in np.unique(attribute.codes) if code != MISSING and attribute.levels[code] not in groups]
    if unseen:
        raise BadInput(
            f"{who} was fitted on the groups {', '.join(groups)}; {scores.name!r} holds rows of {', '.join(unseen)}, which it never saw. "
            "Fit it again on validation data with rows of every group."
        )
    positions = [groups.index(level) if level in groups else MISSING for level in attribute.levels]
    codes: IntArray = np.array([*positions, MISSING], dtype=np.int64)[attribute.codes]
    return codes
