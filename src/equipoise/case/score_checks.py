"""`eq.check_scores`: compares a network's scores with those that its owner computed before, so that an audit is of the right scores.

A network that sees other pixels than in training still returns scores, and their audit looks like any other. Scores from the owner's code
reveal it: they are joined by id and compared. If they differ, the usual reasons are tried: those that the scores show by themselves
(logits, percentages, an inverted or a recalibrated score, rows in another order), and the network's other outputs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import expit
from scipy.stats import rankdata

from equipoise.case.case import SCORE_TOLERANCE, Case
from equipoise.data import IMAGE_COLUMNS, Cohort, FloatArray, ImageFolder, Images, Scores, check_cohort, read_table
from equipoise.errors import BadInput, Misuse, did_you_mean
from equipoise.measures import Ranking
from equipoise.models import is_network

SHOWN_IDS = 5  # ids in a message
OUTPUT_ROWS = 64  # rows on which the network's other outputs are compared
NO_REASON = (
    "None of the usual reasons explains it (logits, rounding, another output, rows in another order). Check the weights, and the resize, "
    "crop, interpolation and normalisation of the images against those of training: images.size, images.resize, images.crop, "
    "images.interpolation, images.normalise, images.preset; or prepare them by your own code: --set images.transform=file.py:transform, or "
    "eq.Cohort.from_dataset."
)


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
            f"difference {self.median:.2g}, largest {self.largest:.2g}, correlation {_number_words(self.correlation)}, AUROC "
            f"{_number_words(self.auroc)} here and {_number_words(self.known_auroc)} with the known scores"
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
    tolerance: float = SCORE_TOLERANCE,
    output: str = "auto",
) -> ScoreCheck:
    """The comparison of a network's scores on a cohort with the known ones; raises `ScoresDiffer` if they differ.

    The error states how large the differences are, and which of the usual reasons explains them, if any does (logits, an inverted or
    another output, rows in another order).

    - `model`, `cohort`: the network or estimator, and the rows of one label; rows without a known score are left out.
    - `known`: a frame with the columns `id` and `score`, a series by id, or a mapping from ids to scores.
    - `score`, `id`: the columns of a frame; the ids are those of the cohort, the names of images or its column of ids.
    - `tolerance`: the largest difference that counts as equal.
    - `output`: what the network returns, logit or probability.

    >>> import torch
    >>> rows = Cohort.from_arrays(torch.tensor([[0.0], [1.0]]), [0, 1], ["F", "M"])
    >>> check_scores(torch.nn.Identity(), rows, {"0": 0.5, "1": 0.73106}, output="logit").agrees
    True
    """
    from equipoise.comparison import check_classifier
    from equipoise.models import predict

    check_cohort("eq.check_scores, after the network,", cohort)
    if cohort.several:
        raise BadInput("check_scores compares one label: give cohort.labelled(label) and the network with that output (OneOutput)")
    scores = predict(check_classifier(model, cohort), cohort, output=output)
    check = _compared(scores, _known_scores(known, score, id), tolerance, "", model, cohort)
    if not check.agrees:
        raise ScoresDiffer([check])
    return check


def _known_scores(known: object, score: str | None = None, id: str | None = None) -> dict[str, float]:
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


def check_known_scores(case: Case, images: ImageFolder, model: object, cohort: Cohort, scores: Mapping[str, Scores]) -> list[ScoreCheck]:
    """The scores of each label compared with the known ones, if the case names a file of them; raises `ScoresDiffer` with all differences.

    Rows are joined by the names of images or by the column `data.id`. For classes, which are decided by argmax, softmax probabilities are
    compared, since these are what other software reports.
    """
    file, columns = case.model.check_scores, case.data
    if file is None:
        return []
    if cohort.kind.argmax and is_network(model):
        from equipoise.models import chosen_outputs, probabilities_of

        scores = probabilities_of(chosen_outputs(model, cohort.inputs, cohort.labels, cohort.kind, case.outputs), cohort)
    names = [columns.id] if images.folder is None else [images.column] if images.column else list(IMAGE_COLUMNS)
    frame = read_table(file, text={name for name in names if name}, limit=columns.max_table_bytes)
    key = next((name for name in names if name in frame.columns), None)
    if key is None:
        tried, listed = (", ".join(map(str, items)) for items in (names, frame.columns))
        raise BadInput(f"no column with the ids of the rows (tried {tried}). The columns are: {listed}.", source=file.name)
    only, checks = len(scores) == 1, []
    for (label, found), column in zip(scores.items(), case.model.known, strict=True):
        known = _known_scores(frame, column, key)
        checks.append(_compared(found, known, case.model.tolerance, file.name if only else label, model if only else None, cohort))
    if not all(check.agrees for check in checks):
        raise ScoresDiffer(checks)
    return checks


def _compared(found: Scores, known_by_id: Mapping[str, float], tolerance: float, name: str, model: object, cohort: Cohort) -> ScoreCheck:
    """The network's scores compared with the known ones, joined by id; raises an error if no row has both."""
    if not tolerance > 0:
        raise BadInput(f"tolerance must be positive, as in {SCORE_TOLERANCE:g}; got {tolerance}")
    rows = [at for at, key in enumerate(found.ids) if str(key) in known_by_id]
    if not rows:
        data_ids, known_ids = (", ".join(repr(str(key)) for key in list(keys)[:3]) for keys in (found.ids, known_by_id))
        raise BadInput(
            f"no row has a known score: the ids of the data are {data_ids}, ... and the known ones {known_ids}, ... "
            "Name the column with the same ids."
        )
    score, known, y = found.score[rows], np.array([known_by_id[str(found.ids[at])] for at in rows]), found.y[rows]
    difference = abs(score - known)
    differing = np.flatnonzero(~(difference <= tolerance))
    varied = len(rows) > 1 and np.ptp(score) > 0 and np.ptp(known) > 0
    return ScoreCheck(
        rows=len(rows),
        without=len(found.ids) - len(rows),
        tolerance=tolerance,
        differing=len(differing),
        largest=float(difference.max()),
        median=float(np.median(difference)),
        correlation=float(np.corrcoef(score, known)[0, 1]) if varied else None,
        auroc=_auroc_if_defined(score, y),
        known_auroc=_auroc_if_defined(known, y),
        first=tuple((str(found.ids[rows[k]]), float(score[k]), float(known[k])) for k in differing[:SHOWN_IDS]),
        hint=_hint(model, cohort, score, known, rows, tolerance) if len(differing) else "",
        name=name,
    )


def _auroc_if_defined(score: FloatArray, y: Any) -> float | None:
    return float(Ranking(score, y == 1).ranks().auroc) if 0 < int(y.sum()) < len(y) else None


def _number_words(value: float | None) -> str:
    return "not defined" if value is None else f"{value:.4f}"


def _hint(model: object, cohort: Cohort, score: FloatArray, known: FloatArray, rows: Sequence[int], tolerance: float) -> str:
    """The reason that explains the differences, with the option to use; for images, a message if there is none."""

    def agree(a: FloatArray, b: FloatArray, within: float = tolerance) -> bool:
        return bool((abs(a - b) <= within).all())

    places = next((n for n in range(1, 6) if np.allclose(known, known.round(n), rtol=0, atol=1e-12)), None)
    if places is not None and agree(score, known, rounding := 0.51 * 10.0**-places):
        return f"The known scores are rounded to {places} decimal places; the differences are no larger: --set model.tolerance={rounding:g}"
    if agree(score, expit(known)):
        if ((known >= 0) & (known <= 1)).all():
            return "They agree if the network returns probabilities already: --set model.output=probability (output='probability')."
        return "The known scores are logits, and their probabilities agree: write 1 / (1 + exp(-logit)) instead."
    if agree(expit(score), known):
        return "They agree if the network returns logits: --set model.output=logit (output='logit')."
    if agree(score, 1 - known):
        return "The known scores are 1 minus those of the network: they are of the negative class, or the network's output is."
    if agree(score, known / 100):
        return "The known scores are percentages: divide them by 100."
    if len(score) > 2 and agree(np.sort(score), np.sort(known)):
        return "Both have the same scores on other rows: the ids are assigned to other rows in one of the files."
    import torch

    from equipoise.models import OneOutput, as_matrix, outputs

    if isinstance(model, OneOutput):
        sample, inner = rows[:OUTPUT_ROWS], model.inner
        columns = outputs(inner, cohort.inputs[torch.tensor(sample)], taken=as_matrix).double().numpy().T
        names = getattr(inner, "pathologies", getattr(inner, "targets", None))
        for k, column in enumerate(columns):
            if k != model.which and any(agree(values, known[: len(sample)]) for values in (column, expit(column))):
                return f"They are those of another output of the network: --set model.outputs={names[k] if names else k}."
    if len(score) > 2 and np.ptp(known) > 0 and np.array_equal(rankdata(score.round(9)), rankdata(known.round(9))):
        return "Both rank the rows alike, so the known scores are recalibrated or scaled ones of the same network."
    return NO_REASON if isinstance(cohort.source, Images) else ""
