"""`eq.check_scores`: compares a network's scores with those that its owner computed before, so that an audit is of the right scores.

A network that sees other pixels than in training still returns scores, and their audit looks like any other. Scores from the owner's code
reveal it: they are joined by id and compared. If they differ, `score_hints` looks for the reason.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from equipoise.data import IMAGE_COLUMNS, Cohort, Columns, ImageFolder, Scores, check_cohort, read_table
from equipoise.errors import BadInput, Misuse, did_you_mean
from equipoise.measures import FloatArray, Ranking
from equipoise.models import chosen_outputs, is_network, probabilities_of
from equipoise.repair.score_hints import hint_for
from equipoise.repair.sections import TOLERANCE

SHOWN = 5  # ids in a message


@dataclass(frozen=True, eq=False)
class ScoreCheck:
    """The scores of a network compared with the known scores, on the rows that have both."""

    rows: int
    without: int  # rows of the cohort without a known score
    tolerance: float
    differing: int  # rows that differ by more than the tolerance
    largest: float  # absolute difference
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
        source = f" of {self.name}" if self.name else ""
        if self.agrees:
            return f"the scores agree with the known ones{source}: {self.rows:,} rows, largest difference {self.largest:.1e}"
        summary = (
            f"{self.differing:,} of {self.rows:,} scores differ from the known ones{source} by more than {self.tolerance:g}: median "
            f"difference {self.median:.2g}, largest {self.largest:.2g}, correlation {_number(self.correlation)}, AUROC "
            f"{_number(self.auroc)} here and {_number(self.known_auroc)} with the known scores"
        )
        rows = "; ".join(f"{key}: {score:.4f} here, {known:.4f} known" for key, score, known in self.first)
        return f"{summary}. First rows that differ: {rows}. {self.hint}".strip()

    def to_dict(self) -> dict[str, object]:
        """Plain values; no id, which may be a patient's."""
        return {key: value for key, value in vars(self).items() if key not in ("first", "hint", "name")} | {"agrees": self.agrees}


class ScoresDiffer(BadInput):
    """A network does not return the known scores; `checks` holds the differences."""

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
    """The comparison of a network's scores on a cohort with the known ones; raises `ScoresDiffer` if they differ.

    `known` is a frame with the columns `id` and `score`, a series with the ids as its index, or a mapping from ids to scores. The ids are
    those of the cohort: the names of images, or the column `id`. Rows without a known score are left out.

    The error states how large the differences are, and which of the usual reasons explains them, if any does (logits, an inverted or
    another output, another resize, crop or normalisation).

    >>> import torch
    >>> rows = Cohort.from_arrays(torch.tensor([[0.0], [1.0]]), [0, 1], ["F", "M"])
    >>> check_scores(torch.nn.Identity(), rows, {"0": 0.5, "1": 0.73106}, output="logit").agrees
    True
    """
    from equipoise.repair.eq_audit import predicted_scores

    check_cohort("eq.check_scores, after the network,", cohort)
    if cohort.several:
        raise BadInput("check_scores compares one label: give cohort.labelled(label) and the network with that output (OneOutput)")
    scores = predicted_scores(model, cohort, output)
    known_by_id = known_scores(known, score, id)
    check = compare_with_known(scores, known_by_id, tolerance)
    if check.agrees:
        return check
    raise ScoresDiffer([with_hint(check, model, cohort, scores, known_by_id)])


def with_hint(check: ScoreCheck, model: object, cohort: Cohort, found: Scores, known: Mapping[str, float]) -> ScoreCheck:
    """The check with the reason for its differences, if one of the usual ones explains them."""
    score, known_score, rows = _joined(found, known)
    return check if check.agrees else replace(check, hint=hint_for(model, cohort, score, known_score, rows, check.tolerance))


def known_scores(known: object, score: str | None = None, id: str | None = None) -> dict[str, float]:
    """Scores by id, as text; raises an error if an id occurs twice or a score is not a number."""
    if isinstance(known, pd.DataFrame):
        if score is None or id is None:
            raise BadInput("name the columns of the known scores: id= and score=")
        missing = [name for name in (id, score) if name not in known.columns]
        if missing:
            suggestion = did_you_mean(missing[0], map(str, known.columns), 0.6)
            columns = ", ".join(map(str, known.columns))
            raise BadInput(f"the known scores have no column {', '.join(map(repr, missing))}.{suggestion} The columns are: {columns}.")
        known = known.set_index(id)[score]
    if isinstance(known, Mapping):
        known = pd.Series(dict(known), dtype=object)
    if not isinstance(known, pd.Series):
        raise Misuse("eq.check_scores", "the known scores as a frame, a series or a mapping from ids", known)
    if known.index.has_duplicates:
        repeated = known.index[known.index.duplicated()]
        raise BadInput(
            f"the known scores have {len(set(repeated)):,} ids more than once; the first is {repeated[0]!r}. Give one score per id."
        )
    values = pd.to_numeric(known, errors="coerce")
    invalid = (values.isna() & known.notna()).to_numpy()
    if invalid.any():
        first = known[invalid].iloc[0]
        raise BadInput(f"{int(invalid.sum()):,} of {len(known):,} known scores are no numbers; the first is {first!r}. Write them as 0.25.")
    return {str(key): float(value) for key, value in values.items() if np.isfinite(value)}


def check_known_scores(
    file: str | Path,
    known_columns: Sequence[str],
    model: object,
    cohort: Cohort,
    scores: Mapping[str, Scores],
    *,
    columns: Columns,
    images: ImageFolder,
    outputs: Mapping[str, int | str] | None = None,
    tolerance: float = TOLERANCE,
) -> list[ScoreCheck]:
    """The scores of each label compared with a column of known scores in a file; raises `ScoresDiffer` with all differences.

    Rows are joined by the names of images or by the column `columns.id`. For classes, which are decided by argmax, softmax probabilities
    are compared, since these are what other software reports; `outputs` maps classes to outputs of the network.
    """
    file = Path(file)
    if cohort.kind.argmax and is_network(model):
        scores = probabilities_of(chosen_outputs(model, cohort.inputs, cohort.labels, cohort.kind, outputs), cohort)
    names = [columns.id] if images.folder is None else [images.column] if images.column else list(IMAGE_COLUMNS)
    frame = read_table(file, text={name for name in names if name}, limit=columns.max_table_bytes)
    key = next((name for name in names if name in frame.columns), None)
    if key is None:
        tried, listed = (", ".join(map(str, items)) for items in (names, frame.columns))
        raise BadInput(f"no column with the ids of the rows (tried {tried}). The columns are: {listed}.", source=file.name)
    checks, only = [], len(scores) == 1
    for (label, found), column in zip(scores.items(), known_columns, strict=True):
        known = known_scores(frame, column, key)
        check = compare_with_known(found, known, tolerance, file.name if only else label)
        checks.append(check if check.agrees else with_hint(check, model if only else None, cohort, found, known))
    if not all(check.agrees for check in checks):
        raise ScoresDiffer(checks)
    return checks


def _joined(found: Scores, known: Mapping[str, float]) -> tuple[FloatArray, FloatArray, list[int]]:
    """The network's scores, the known scores, and the positions of the rows that have both."""
    rows = [at for at, key in enumerate(found.ids) if str(key) in known]
    return found.score[rows], np.array([known[str(found.ids[at])] for at in rows]), rows


def compare_with_known(found: Scores, known: Mapping[str, float], tolerance: float = TOLERANCE, name: str = "") -> ScoreCheck:
    """The network's scores compared with the known ones, joined by id; raises an error if no row has both."""
    if not tolerance > 0:
        raise BadInput(f"tolerance must be positive, as in {TOLERANCE:g}; got {tolerance}")
    score, known_score, rows = _joined(found, known)
    if not rows:
        data_ids, known_ids = (", ".join(repr(str(key)) for key in list(keys)[:3]) for keys in (found.ids, known))
        raise BadInput(
            f"no row has a known score: the ids of the data are {data_ids}, ... and the known ones {known_ids}, ... "
            "Name the column with the same ids."
        )
    difference = abs(score - known_score)
    differing = np.flatnonzero(~(difference <= tolerance))
    y = found.y[rows]
    varied = len(rows) > 1 and np.ptp(score) > 0 and np.ptp(known_score) > 0
    return ScoreCheck(
        rows=len(rows),
        without=len(found.ids) - len(rows),
        tolerance=tolerance,
        differing=len(differing),
        largest=float(difference.max()),
        median=float(np.median(difference)),
        correlation=float(np.corrcoef(score, known_score)[0, 1]) if varied else None,
        auroc=_auroc(score, y),
        known_auroc=_auroc(known_score, y),
        first=tuple((str(found.ids[rows[k]]), float(score[k]), float(known_score[k])) for k in differing[:SHOWN]),
        name=name,
    )


def _auroc(score: FloatArray, y: Any) -> float | None:
    return float(Ranking(score, y == 1, np.arange(len(y))).auroc()) if 0 < int(y.sum()) < len(y) else None


def _number(value: float | None) -> str:
    return "not defined" if value is None else f"{value:.4f}"


# Reasons for differences
