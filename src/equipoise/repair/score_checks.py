"""`eq.check_scores`: whether a network gives the scores that its owner already has, before anything is said about them.

A network that sees other pixels than in training still gives scores, and an audit of them looks like any other. Scores that the owner has
from their own code show it: they are joined by id and compared, and where they differ, the usual reasons are tried, and
the one that makes them agree is named: first what the scores show by themselves (logits, percentages, an inverted or a recalibrated score,
rows in another order), then the network's other outputs, then other ways to prepare the same images, on a few rows and within a minute.
"""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy.special import expit
from scipy.stats import rankdata
from torch import nn

from equipoise.data import NAMED_NORMS, NORMS, Cohort, Geometry, Images, Scores, check_cohort
from equipoise.errors import BadInput, Misuse, did_you_mean
from equipoise.measures import FloatArray, Ranking
from equipoise.models import OneOutput, as_matrix, outputs

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
    own, told, rows = _joined(found, known)
    return check if check.agrees else replace(check, hint=hint_of(model, cohort, own, told, rows, check.tolerance))


def known_scores(known: object, score: str | None = None, id: str | None = None) -> dict[str, float]:
    """Scores by id, as text; raises where an id is there twice or a score is not a number."""
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


FEW = 8  # rows on which other preprocessing is tried; then on CONFIRMED
CONFIRMED = 64
SECONDS = 60.0
SHARES = (0.875, 0.9, 0.95, 0.965, 0.8, 0.85, 1.0)  # crop as a share of the resized side; the first is that of torchvision and timm
PADS = (8, 16, 32, 64)
COMMON = {224: (256, 232, 230, 240), 299: (342, 320), 64: (72, 80), 320: (365,), 384: (438,), 512: (584,)}
NONE_FOUND = (
    "None of the usual reasons explains it (logits, another output, another resize, crop, interpolation or normalisation). Check the "
    "weights, and prepare the images by your own code: --transform file.py:transform, or eq.Cohort.from_dataset."
)


def hint_of(model: object, cohort: Cohort, own: FloatArray, known: FloatArray, rows: Sequence[int], tolerance: float) -> str:
    """What would make the scores `own` the known ones, in words with the option to use; or that nothing was found."""
    network = model if isinstance(model, nn.Module) else None
    found = _of_values(own, known, tolerance)
    if not found and network is not None:
        found = _of_outputs(network, cohort, known, rows, tolerance)
    if not found and network is not None and isinstance(cohort.source, Images):
        found = _of_pixels(network, cohort.source, own, known, np.asarray(rows), tolerance)
    return found or (NONE_FOUND if isinstance(getattr(cohort, "source", None), Images) else _monotone(own, known))


def _near(a: FloatArray, b: FloatArray, tolerance: float) -> bool:
    return bool((abs(a - b) <= tolerance).all())


def _of_values(own: FloatArray, known: FloatArray, tolerance: float) -> str:
    """What the two columns of numbers show by themselves."""
    places = _decimals(known)
    if places is not None and _near(own, known, 0.51 * 10.0**-places):
        return (
            f"The known scores are rounded to {places} decimal places; the differences are no larger: --tolerance {0.51 * 10.0**-places:g}"
        )
    inside = bool(((known >= 0) & (known <= 1)).all())
    if _near(own, expit(known), tolerance):
        if inside:
            return "They agree if the network returns probabilities already: --output-type probability (output='probability')."
        return "The known scores are logits, and their probabilities agree: write 1 / (1 + exp(-logit)) instead."
    if _near(expit(own), known, tolerance):
        return "They agree if the network returns logits: --output-type logit (output='logit')."
    if _near(own, 1 - known, tolerance):
        return "The known scores are 1 minus those of the network: they are of the negative class, or the network's output is."
    if _near(own, known / 100, tolerance):
        return "The known scores are percentages: divide them by 100."
    if len(own) > 2 and _near(np.sort(own), np.sort(known), tolerance):
        return "Both have the same scores on other rows: the ids are assigned to other rows in one of the files."
    return ""


def _decimals(known: FloatArray) -> int | None:
    """The number of decimal places to which all numbers are rounded; None where they are not."""
    return next((places for places in range(1, 6) if np.allclose(known, known.round(places), rtol=0, atol=1e-12)), None)


def _monotone(own: FloatArray, known: FloatArray) -> str:
    if len(own) > 2 and np.ptp(known) > 0 and np.array_equal(rankdata(own.round(9)), rankdata(known.round(9))):
        return "Both rank the rows alike, so the known scores are recalibrated or scaled ones of the same network."
    return ""


def _of_outputs(network: nn.Module, cohort: Cohort, known: FloatArray, rows: Sequence[int], tolerance: float) -> str:
    """Whether another output of a network with many agrees."""
    if not isinstance(network, OneOutput):
        return ""
    few = rows[:CONFIRMED]
    every = outputs(network.inner, cohort.inputs[torch.tensor(few)], taken=as_matrix).double().numpy()
    names = getattr(network.inner, "pathologies", getattr(network.inner, "targets", None))
    for column in range(every.shape[1]):
        for read in (every[:, column], expit(every[:, column])):
            if column != network.which and _near(read, known[: len(few)], tolerance):
                return f"They are those of another output of the network: --output-name {names[column] if names else column}."
    return ""


def _of_pixels(network: nn.Module, source: Images, own: FloatArray, known: FloatArray, rows: Any, tolerance: float) -> str:
    """The preprocessing with which the scores agree, as options; tried on rows that differ."""
    if not len(source.files) or len(source.shape) != 4 or source.shape[1] not in NORMS:
        return _monotone(own, known)
    differing = np.flatnonzero(abs(own - known) > tolerance)
    few, confirmed = differing[:FEW], differing[:CONFIRMED]
    raw = outputs(network, source[torch.from_numpy(rows[few])]).double().numpy()
    logits = not _near(raw, own[few], 1e-6)
    places = _decimals(known)
    allowed = max(tolerance, 0 if places is None else 0.51 * 10.0**-places)

    decoded: dict[str, Images] = {}  # the same pixels serve many normalisations

    def agrees(options: dict[str, Any], at: Any) -> bool:
        files = [source.files[int(source.rows[row])] for row in rows[at]]
        norm = {name: options[name] for name in ("mean", "std") if name in options}
        key = repr((len(at), {name: value for name, value in options.items() if name not in norm}))
        try:
            if key not in decoded:
                decoded[key] = Images.open(files, **options)
            raw = outputs(network, replace(decoded[key], **norm)[:]).double().numpy()
        except BadInput:
            return False
        return _near(expit(raw) if logits else raw, known[at], allowed)

    until = time.monotonic() + SECONDS
    for options in _alternatives(source):
        if agrees(options, few) and agrees(options, confirmed):
            return f"They agree with another preprocessing: {words(options)}."
        if time.monotonic() > until:
            break
    return _monotone(own, known)


def _alternatives(source: Images) -> Iterator[dict[str, Any]]:
    """Other ways to prepare images for an input of this shape, the most common first; as options of `Images.open`."""
    channels, height, width = source.shape[1:]
    now = source.geometry or Geometry((int(height), int(width)))
    norms = [(source.mean, source.std)] if source.transform is None else []
    norms += [NORMS[channels]] + [(n["mean"], n["std"]) for n in NAMED_NORMS.values()]
    norms += [((0.0,), (1 / 255,)), ((0.5,), (0.25,)), ((0.449,), (0.226,))]
    spread = [tuple(v * channels if len(v) == 1 else v for v in pair) for pair in norms]
    usable = list(dict.fromkeys((m, s) for m, s in spread if len(m) == channels == len(s)))
    geometries = _geometries(int(height), int(width), now)
    # One thing changed first: another geometry, or another normalisation; then both.
    first = [(g, usable[0]) for g in geometries] + [(now, norm) for norm in usable]
    both = [(g, norm) for norm in usable[1:] for g in geometries]
    if channels == 1 and height == width:
        yield {"preset": "torchxrayvision", "size": int(height)}
    for kind in ("bilinear", "bicubic", "lanczos", "nearest"):
        for geometry, (mean, std) in dict.fromkeys([*first, *both]):
            yield {**replace(geometry, interpolation=kind).to_dict(), "channels": int(channels), "mean": mean, "std": std}


def _geometries(height: int, width: int, now: Geometry) -> list[Geometry]:
    found = [now, Geometry((height, width))]
    if height == width:
        sides = [
            *COMMON.get(height, ()),
            *(f(height / share) for share in SHARES for f in (math.floor, round)),
            *(height + p for p in PADS),
        ]
        sides += [round(height * 1.25), round(height * 1.1), round(height * 1.2), round(height * 1.15)]
        longer = list(dict.fromkeys(side for side in sides if side >= height))
        found += [Geometry(side, height) for side in longer]
        found += [Geometry((height, width), "square")]
        found += [Geometry((side, side), height) for side in longer if side > height]
    return list(dict.fromkeys(found))


def words(options: dict[str, Any]) -> str:
    """Options of `Images.open` as on the command line."""
    if options.get("preset"):
        size = "" if options["size"] == 224 else f" --size {options['size']}"
        return f"--preset {options['preset']}{size}"
    resize, crop = options["resize"], options["crop"]
    square = isinstance(resize, list) and resize[0] == resize[1]
    said = []
    if square and not isinstance(crop, int):
        said.append(f"--size {resize[0]}")
    elif resize is not None:
        said.append(f"--resize {resize if isinstance(resize, int) else 'x'.join(map(str, resize))}")
    said += [] if crop is None else [f"--crop {crop}"]
    said += [] if options["interpolation"] == "bilinear" else [f"--interpolation {options['interpolation']}"]
    said += [] if options["channels"] == 1 else [f"--channels {options['channels']}"]
    mean, std = options["mean"], options["std"]
    if (mean, std) != NORMS[options["channels"]]:
        same = {tuple(v * len(mean) if len(v) == 1 else v for v in (n["mean"], n["std"])): name for name, n in NAMED_NORMS.items()}
        text = "/".join(",".join(f"{x:g}" for x in (v[:1] if len(set(v)) == 1 else v)) for v in (mean, std))
        said.append(f"--normalise {same.get((mean, std), text)}")
    return " ".join(said)
