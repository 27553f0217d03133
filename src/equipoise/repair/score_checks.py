"""`eq.check_scores`: whether a network gives the scores that its owner already has, before anything is said about them.

A network that sees other pixels than in training still gives scores, and an audit of them looks like any other. Scores that the owner has
from their own code show it: they are joined by id and compared, and where they differ, `score_hints` looks for the reason.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from equipoise.data import Cohort, Scores, check_cohort
from equipoise.errors import BadInput, Misuse, did_you_mean
from equipoise.measures import FloatArray, Ranking

TOLERANCE = 1e-4  # of a score, which network code on another machine keeps
SHOWN = 5  # ids in a message


@dataclass(frozen=True, eq=False)
class ScoreCheck:
    """The scores of a network next to those that are known, on the rows that have both."""

    rows: int
    without: int  # rows of the cohort without a known score
    tolerance: float
    differing: int  # rows that differ by more
    largest: float  # of the absolute differences
    median: float
    correlation: float | None
    auroc: float | None  # of the network's scores
    known_auroc: float | None
    first: tuple[tuple[str, float, float], ...] = field(repr=False, default=())  # id, score, known score of the first that differ
    hint: str = ""  # what would make them agree
    name: str = ""  # the file or label

    @property
    def agrees(self) -> bool:
        """Whether no row differs by more than the tolerance."""
        return self.differing == 0

    def __str__(self) -> str:
        of = f" of {self.name}" if self.name else ""
        if self.agrees:
            return f"the scores agree with the known ones{of}: {self.rows:,} rows, largest difference {self.largest:.1e}"
        said = (
            f"{self.differing:,} of {self.rows:,} scores differ from the known ones{of} by more than {self.tolerance:g}: median difference "
            f"{self.median:.2g}, largest {self.largest:.2g}, correlation {_number(self.correlation)}, AUROC {_number(self.auroc)} here and "
            f"{_number(self.known_auroc)} with the known scores"
        )
        rows = "; ".join(f"{key}: {own:.4f} here, {known:.4f} known" for key, own, known in self.first)
        return f"{said}. First rows that differ: {rows}. {self.hint}".strip()

    def to_dict(self) -> dict[str, object]:
        """Plain values; no id, which may be a patient's."""
        return {key: value for key, value in vars(self).items() if key not in ("first", "hint", "name")} | {"agrees": self.agrees}


class ScoresDiffer(BadInput):
    """A network does not give the scores that its owner has; `check` holds the differences."""

    def __init__(self, checks: Sequence[ScoreCheck]) -> None:
        super().__init__(*(str(check) for check in checks if not check.agrees))
        self.checks = tuple(checks)


def check_scores(
    model: object,
    cohort: Cohort,
    known: pd.DataFrame | pd.Series | Mapping[str, float],
    *,
    score: str | None = None,
    id: str | None = None,
    tolerance: float = TOLERANCE,
    output: str = "auto",
) -> ScoreCheck:
    """The comparison of a network's scores on a cohort with the known ones; raises `ScoresDiffer` where they are not the same.

    `known` is a frame with the columns `id` and `score`, a series with the ids as its index, or a mapping from ids to scores. The ids are
    those of the cohort: the names of images, or the column `id`. Rows without a known score are left out.

    The error states how large the differences are, and, where one of the usual reasons explains them (logits, an inverted or another
    output, another resize, crop or normalisation), which one.

    >>> import torch
    >>> rows = Cohort.from_arrays(torch.tensor([[0.0], [1.0]]), [0, 1], ["F", "M"])
    >>> check_scores(torch.nn.Identity(), rows, {"0": 0.5, "1": 0.73106}, output="logit").agrees
    True
    """
    from equipoise.repair.audit_model import predicted_scores

    check_cohort("eq.check_scores, after the network,", cohort)
    if cohort.targets is not None:
        raise BadInput("check_scores compares one label: give cohort.labelled(label) and the network with that output (OneOutput)")
    found = predicted_scores(model, cohort, output)
    check = compare_known(found, known_scores(known, score, id), tolerance)
    if check.agrees:
        return check
    raise ScoresDiffer([with_hint(check, model, cohort, found, known_scores(known, score, id))])


def with_hint(check: ScoreCheck, model: object, cohort: Cohort, found: Scores, known: Mapping[str, float]) -> ScoreCheck:
    """The check with the reason of its differences, if one of the usual ones explains them."""
    from equipoise.repair.score_hints import hint_of

    own, told, rows = _joined(found, known)
    return check if check.agrees else replace(check, hint=hint_of(model, cohort, own, told, rows, check.tolerance))


def known_scores(known: object, score: str | None = None, id: str | None = None) -> dict[str, float]:
    """Scores by id, as text; raises where an id is there twice or a score is no number."""
    if isinstance(known, pd.DataFrame):
        if score is None or id is None:
            raise BadInput("name the columns of the known scores: id= and score=")
        lacking = [name for name in (id, score) if name not in known.columns]
        if lacking:
            near = did_you_mean(lacking[0], map(str, known.columns), 0.6)
            shown = ", ".join(map(str, known.columns))
            raise BadInput(f"the known scores have no column {', '.join(map(repr, lacking))}.{near} The columns are: {shown}.")
        known = known.set_index(id)[score]
    if isinstance(known, Mapping):
        known = pd.Series(dict(known), dtype=object)
    if not isinstance(known, pd.Series):
        raise Misuse("eq.check_scores", "the known scores as a frame, a series or a mapping from ids", known)
    if known.index.has_duplicates:
        twice = known.index[known.index.duplicated()]
        raise BadInput(f"the known scores have {len(set(twice)):,} ids more than once; the first is {twice[0]!r}. Give one score per id.")
    values = pd.to_numeric(known, errors="coerce")
    bad = (values.isna() & known.notna()).to_numpy()
    if bad.any():
        raise BadInput(
            f"{int(bad.sum()):,} of {len(known):,} known scores are no numbers; the first is {known[bad].iloc[0]!r}. Write them as 0.25."
        )
    return {str(key): float(value) for key, value in values.items() if np.isfinite(value)}


def _joined(found: Scores, known: Mapping[str, float]) -> tuple[FloatArray, FloatArray, list[int]]:
    """The network's scores, the known ones, and the positions of the rows that have both."""
    rows = [at for at, key in enumerate(found.ids) if str(key) in known]
    return found.score[rows], np.array([known[str(found.ids[at])] for at in rows]), rows


def compare_known(found: Scores, known: Mapping[str, float], tolerance: float = TOLERANCE, name: str = "") -> ScoreCheck:
    """The network's scores next to the known ones, joined by id; raises where no row has both."""
    if not tolerance > 0:
        raise BadInput(f"tolerance must be positive, as in {TOLERANCE:g}; got {tolerance}")
    own, told, rows = _joined(found, known)
    if not rows:
        ours, theirs = ([repr(str(key)) for key in list(keys)[:3]] for keys in (found.ids, known))
        raise BadInput(
            f"no row has a known score: the ids of the data are {', '.join(ours)}, ... and the known ones {', '.join(theirs)}, ... "
            "Name the column with the same ids."
        )
    difference = abs(own - told)
    wrong = np.flatnonzero(~(difference <= tolerance))
    y = found.y[rows]
    first = tuple((str(found.ids[rows[at]]), float(own[at]), float(told[at])) for at in wrong[:SHOWN])
    varied = len(rows) > 1 and np.ptp(own) > 0 and np.ptp(told) > 0
    return ScoreCheck(
        rows=len(rows),
        without=len(found.ids) - len(rows),
        tolerance=tolerance,
        differing=len(wrong),
        largest=float(difference.max()),
        median=float(np.median(difference)),
        correlation=float(np.corrcoef(own, told)[0, 1]) if varied else None,
        auroc=_auroc(own, y),
        known_auroc=_auroc(told, y),
        first=first,
        name=name,
    )


def _auroc(score: FloatArray, y: Any) -> float | None:
    return float(Ranking(score, y == 1, np.arange(len(y))).auroc()) if 0 < int(y.sum()) < len(y) else None


def _number(value: float | None) -> str:
    return "not defined" if value is None else f"{value:.4f}"
