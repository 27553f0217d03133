"""Rules that turn a score into a decision f in [0, 1], and their thresholds.

A randomised rule gives the probability p of a positive decision: the decision on a row is positive if u < p, where u in [0, 1) is a hash of
the seed and of the id of the row (`row_draws`), whatever its position in a file.
"""

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, ClassVar, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import pandas as pd
from annotated_types import Ge, Le

from equipoise.data import MISSING, FloatArray, IntArray, Scores
from equipoise.errors import BadInput, UnknownName, raise_all
from equipoise.measures.cells import Cells, normalise_weights


def at_threshold(score: npt.ArrayLike, threshold: npt.ArrayLike) -> FloatArray:
    """Hard decisions, 1.0 where score >= threshold (..., n)."""
    return (np.asarray(score, dtype=np.float64) >= np.asarray(threshold, dtype=np.float64)[..., None]).astype(np.float64)


def cells_at(scores: Scores, threshold: float) -> Cells:
    """The cell table of the decisions at a threshold, with the weights of the scores."""
    return Cells.of(at_threshold(scores.score, threshold), scores.y, scores.attribute, normalise_weights(scores.weight))


def sql_number(value: float) -> str:
    """A number in SQL that has all its digits, for engines that read numbers exactly (DuckDB, PostgreSQL, Spark)."""
    return f"cast('{float(value)!r}' as double precision)"


NEVER_REACHED = math.nextafter(1.0, 2.0)  # a threshold that no score reaches: the next number after 1
THRESHOLD = "threshold"  # the `kind` of a threshold in JSON


@runtime_checkable
class Rule(Protocol):
    """Turns scores into decisions.

    `decide` gives the decision on each row: 0, 1, or, if `randomised`, the probability of a 1, from which `draw(scores, seed)` makes
    decisions by the ids of the rows. `cuts` are the scores at which the decision on a row of a group changes: none for a group that the
    rule was not fitted on. `shared` is the threshold of the rows of every group; None if they are decided otherwise. With `argmax`, scores
    are margins of a class over the next. `sql` is the decision of `decide` in SQL, from score and name of the group in SQL; NULL for
    a group that the rule was not fitted on. `describe` is the rule and its `origin` in one line; `to_dict` has its kind under `kind`.
    """

    @property
    def needs_group(self) -> bool: ...
    @property
    def randomised(self) -> bool: ...
    @property
    def shared(self) -> float | None: ...
    @property
    def argmax(self) -> bool: ...
    @property
    def origin(self) -> str: ...
    def decide(self, scores: Scores) -> FloatArray: ...
    def describe(self) -> str: ...
    def cuts(self, group: str) -> tuple[float, ...]: ...
    def sql(self, score: str = "score", group: str = "group_name") -> str: ...
    def to_dict(self) -> dict[str, object]: ...


@dataclass(frozen=True)
class Threshold:
    """Positive if score >= value, in every group."""

    value: Annotated[float, Ge(0.0), Le(NEVER_REACHED)]
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

    def sql(self, score: str = "score", group: str = "group_name") -> str:  # noqa: ARG002 (the same for every group)
        return f"case when {score} >= {sql_number(self.value)} then 1 else 0 end"

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON."""
        return {"kind": THRESHOLD, **asdict(self)}


@dataclass(frozen=True)
class DescribedRule:
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

    def sql(self, score: str = "score", group: str = "group_name") -> str:  # noqa: ARG002
        if not self.decided:
            raise BadInput(f"a rule that was read from an audit has no SQL: {self.words}. Load the rule's own file.")
        return score

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON."""
        return {"kind": self.KIND, "words": self.words}


ARGMAX_RULE = Threshold(0.5, "argmax: the margin of this class over the next", argmax=True)  # the rule of each class


def row_draws(scores: Scores, seed: int) -> FloatArray:
    """A number in [0, 1) per row, made from the seed and the id of the row; raises an error if rows have no ids.

    It is the number in the first 53 bits of the SHA-256 hash of the text SEED/ID in UTF-8, divided by 2^53. Rows without ids of their own
    take the id of their patient, if there is one, so that all rows of a patient have the same number.

    >>> frame = pd.DataFrame({"y": [1, 0], "p": [0.9, 0.2], "sex": ["F", "M"], "image": ["a.png", "b.png"]})
    >>> row_draws(Scores.from_frame(frame, label="y", score="p", group="sex", id="image"), seed=0).round(4).tolist()
    [0.7743, 0.6131]
    """
    ids = scores.ids if scores.patients is None or not scores.numbered else scores.patients
    without = len(ids) if ids is scores.ids and scores.numbered else int(pd.isna(ids).sum())
    if without:
        raise BadInput(
            f"the rule is randomised and draws each decision from the id of the row; {without:,} of {len(ids):,} rows of {scores.name!r} "
            "have none. Repair with a column of row ids, data.id (id=), or of patient ids, --patient (patient=), and give new rows that "
            "column too; or repair with a method whose rule is not randomised, such as group-thresholds."
        )
    digests = b"".join([hashlib.sha256(f"{seed}/{key}".encode("utf-8", "surrogatepass")).digest()[:8] for key in ids])
    draws: FloatArray = (np.frombuffer(digests, dtype=">u8") >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return draws


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
    """The given threshold; else the best one by `optimise` on the validation scores; else 0.5. Its `origin` says which.

    - `valid`: scores that are not audited.
    """
    if threshold is not None and valid is not None:
        raise BadInput("give a threshold or validation data to choose one, not both")
    if threshold is not None:
        if isinstance(threshold, bool) or not isinstance(threshold, (int, float, np.integer, np.floating)):
            by_label = ". A threshold for each label needs several labels" if isinstance(threshold, Mapping) else ""
            raise BadInput(f"threshold must be a number, from which score on a decision is positive; got {threshold!r}{by_label}")
        if not 0 <= threshold <= NEVER_REACHED:
            raise BadInput(f"threshold must be between 0 and 1, like the scores; got {threshold}")
        return Threshold(float(threshold), "given")
    if valid is not None:
        if not isinstance(valid, Scores):
            raise BadInput(f"with scores, valid is scores too: valid=eq.Scores.from_frame(...); got {type(valid).__name__}")
        if len(np.unique(valid.y)) < 2:
            raise BadInput(
                f"a threshold by {optimise} needs positives and negatives; {valid.name!r} has one label in all {len(valid):,} rows"
            )
        from equipoise.measures.sweeps import sweep  # only for a threshold that is chosen

        origin = f"chosen by best {optimise.replace('_', ' ')} on {len(valid):,} rows of {valid.name}"
        swept = sweep(valid.score, valid.y, valid.attribute, (optimise,), normalise_weights(valid.weight))
        return Threshold(swept.best(optimise).threshold, origin)
    return Threshold(0.5, "the default; none was given or chosen on validation data")


def rules_by_label(
    labels: Iterable[str],
    rule: Rule | None,
    threshold: float | Mapping[str, float] | None,
    valid: Mapping[str, Scores] | None = None,
    optimise: str = "balanced_accuracy",
) -> dict[str, Rule]:
    """The rule of each label: the given one, or from its own threshold or its own validation scores.

    - `labels`: their names.
    - `valid`: the validation scores of each label.
    - `optimise`: a measure of performance.
    """
    if rule is not None and threshold is not None:
        raise BadInput("give a decision rule or a threshold, not both")
    own = thresholds_by_name(threshold, labels)
    return {label: rule or choose_rule(each, (valid or {}).get(label), optimise) for label, each in own.items()}


def threshold_at_capacity(scores: npt.ArrayLike, capacity: float, weight: FloatArray | None = None) -> float:
    """The lowest threshold that flags at most this share of the rows; equal scores are flagged together or not at all.

    >>> threshold_at_capacity([0.9, 0.7, 0.7, 0.3], 0.5), threshold_at_capacity([0.9, 0.7, 0.7, 0.3], 0.75)
    (0.8, 0.5)
    """
    cuts, place = np.unique(-np.asarray(scores, dtype=np.float64), return_inverse=True)
    flagged = np.cumsum(np.bincount(place, weight)) / (len(place) if weight is None else weight.sum())
    count = int(np.searchsorted(flagged, capacity + 1e-9, side="right"))
    ends = np.concatenate([[NEVER_REACHED], -cuts, -cuts[-1:]])
    return float(ends[0] if count == 0 else (ends[count] + ends[count + 1]) / 2)


def group_positions(groups: tuple[str, ...], scores: Scores, who: str, others: tuple[str, ...] = ()) -> IntArray:
    """The position of each row's group among the groups of a rule, -1 if missing or one of `others`; an error if it is none of these."""
    attribute, known = scores.attribute, {*groups, *others}
    unseen = [attribute.levels[code] for code in np.unique(attribute.codes) if code != MISSING and attribute.levels[code] not in known]
    if unseen:
        raise BadInput(
            f"{who} was fitted on the groups {', '.join(groups)}; {scores.name!r} holds rows of {', '.join(unseen)}, which it never saw. "
            "Fit it again on validation data with rows of every group."
        )
    positions = [groups.index(level) if level in groups else MISSING for level in attribute.levels]
    codes: IntArray = np.array([*positions, MISSING], dtype=np.int64)[attribute.codes]
    return codes
