"""Why a network's scores differ from the known ones: the usual reasons are tried, and the one that makes them agree is named.

First those that the scores show by themselves (logits, percentages, an inverted or a recalibrated score, rows in another order), then the
network's other outputs, then other preprocessing of the same images, on a few rows and within a minute.
"""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from scipy.special import expit
from scipy.stats import rankdata
from torch import nn

from equipoise.data import NAMED_NORMS, NORMS, Cohort, Geometry, Images
from equipoise.errors import BadInput
from equipoise.measures import FloatArray
from equipoise.models import OneOutput, as_matrix, is_network, outputs

HINT_ROWS, CONFIRM_ROWS = 8, 64  # rows on which other preprocessing is tried, and then confirmed
HINT_SECONDS = 60.0
CROP_SHARES = (0.875, 0.9, 0.95, 0.965, 0.8, 0.85, 1.0)  # crop as a share of the resized side; torchvision and timm use the first
PADS = (8, 16, 32, 64)
COMMON = {224: (256, 232, 230, 240), 299: (342, 320), 64: (72, 80), 320: (365,), 384: (438,), 512: (584,)}  # crop: usual resized sides
NO_REASON = (
    "None of the usual reasons explains it (logits, another output, another resize, crop, interpolation or normalisation). Check the "
    "weights, and prepare the images by your own code: --set images.transform=file.py:transform, or eq.Cohort.from_dataset."
)


def hint_for(model: object, cohort: Cohort, score: FloatArray, known: FloatArray, rows: Sequence[int], tolerance: float) -> str:
    """The reason that explains the differences, with the option to use; or a message that no reason was found."""
    hint = _hint_from_values(score, known, tolerance)
    if not hint and is_network(model):
        hint = _hint_from_outputs(model, cohort, known, rows, tolerance)
        if not hint and isinstance(cohort.source, Images):
            hint = _hint_from_preprocessing(model, cohort.source, score, known, np.asarray(rows), tolerance)
    return hint or (NO_REASON if isinstance(cohort.source, Images) else _hint_from_ranks(score, known))


def _agree(a: FloatArray, b: FloatArray, tolerance: float) -> bool:
    return bool((abs(a - b) <= tolerance).all())


def _hint_from_values(score: FloatArray, known: FloatArray, tolerance: float) -> str:
    """A reason that the two columns of numbers show by themselves."""
    rounding = _rounding_error(known)
    if rounding and _agree(score, known, rounding):
        places = _decimal_places(known)
        return f"The known scores are rounded to {places} decimal places; the differences are no larger: --set model.tolerance={rounding:g}"
    if _agree(score, expit(known), tolerance):
        if ((known >= 0) & (known <= 1)).all():
            return "They agree if the network returns probabilities already: --set model.output=probability (output='probability')."
        return "The known scores are logits, and their probabilities agree: write 1 / (1 + exp(-logit)) instead."
    if _agree(expit(score), known, tolerance):
        return "They agree if the network returns logits: --set model.output=logit (output='logit')."
    if _agree(score, 1 - known, tolerance):
        return "The known scores are 1 minus those of the network: they are of the negative class, or the network's output is."
    if _agree(score, known / 100, tolerance):
        return "The known scores are percentages: divide them by 100."
    if len(score) > 2 and _agree(np.sort(score), np.sort(known), tolerance):
        return "Both have the same scores on other rows: the ids are assigned to other rows in one of the files."
    return ""


def _decimal_places(known: FloatArray) -> int | None:
    """The number of decimal places to which all numbers are rounded; None if they are not."""
    return next((places for places in range(1, 6) if np.allclose(known, known.round(places), rtol=0, atol=1e-12)), None)


def _rounding_error(known: FloatArray) -> float:
    """The largest difference that rounding of the known scores explains; 0 if they are not rounded."""
    places = _decimal_places(known)
    return 0.0 if places is None else 0.51 * 10.0**-places


def _hint_from_ranks(score: FloatArray, known: FloatArray) -> str:
    if len(score) > 2 and np.ptp(known) > 0 and np.array_equal(rankdata(score.round(9)), rankdata(known.round(9))):
        return "Both rank the rows alike, so the known scores are recalibrated or scaled ones of the same network."
    return ""


def _hint_from_outputs(network: nn.Module, cohort: Cohort, known: FloatArray, rows: Sequence[int], tolerance: float) -> str:
    """The output of a multi-output network that agrees, if it is not the chosen one."""
    if not isinstance(network, OneOutput):
        return ""
    sample = rows[:CONFIRM_ROWS]
    columns = outputs(network.inner, cohort.inputs[torch.tensor(sample)], taken=as_matrix).double().numpy().T
    names = getattr(network.inner, "pathologies", getattr(network.inner, "targets", None))
    for k, column in enumerate(columns):
        if k != network.which and any(_agree(values, known[: len(sample)], tolerance) for values in (column, expit(column))):
            return f"They are those of another output of the network: --set model.outputs={names[k] if names else k}."
    return ""


def _hint_from_preprocessing(network: nn.Module, source: Images, score: FloatArray, known: FloatArray, rows: Any, tolerance: float) -> str:
    """The preprocessing with which the scores agree, as options; tried on rows that differ."""
    if not len(source.files) or len(source.shape) != 4 or source.shape[1] not in NORMS:
        return _hint_from_ranks(score, known)
    differing = np.flatnonzero(abs(score - known) > tolerance)
    sample, confirmation = differing[:HINT_ROWS], differing[:CONFIRM_ROWS]
    raw = outputs(network, source[torch.from_numpy(rows[sample])]).double().numpy()
    logits = not _agree(raw, score[sample], 1e-6)
    allowed = max(tolerance, _rounding_error(known))
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
        return _agree(expit(raw) if logits else raw, known[at], allowed)

    deadline = time.monotonic() + HINT_SECONDS
    for options in _alternatives(source):
        if agrees(options, sample) and agrees(options, confirmation):
            return f"They agree with another preprocessing: {_difference(options, source)}."
        if time.monotonic() > deadline:
            break
    return _hint_from_ranks(score, known)


def _alternatives(source: Images) -> Iterator[dict[str, Any]]:
    """Other preprocessing for images of this shape, the most common first; as options of `Images.open`."""
    channels, height, width = source.shape[1:]
    current = source.geometry or Geometry((int(height), int(width)))
    norms = [(source.mean, source.std)] if source.transform is None else []
    norms += [NORMS[channels]] + [(n["mean"], n["std"]) for n in NAMED_NORMS.values()]
    norms += [((0.0,), (1 / 255,)), ((0.5,), (0.25,)), ((0.449,), (0.226,))]
    per_channel = [tuple(v * channels if len(v) == 1 else v for v in pair) for pair in norms]
    usable = list(dict.fromkeys((mean, std) for mean, std in per_channel if len(mean) == channels == len(std)))
    geometries = _geometries(int(height), int(width), current)
    # First only one thing is changed, the geometry or the normalisation; then both.
    one_changed = [(geometry, usable[0]) for geometry in geometries] + [(current, norm) for norm in usable]
    both_changed = [(geometry, norm) for norm in usable[1:] for geometry in geometries]
    if channels == 1 and height == width:
        yield {"preset": "torchxrayvision", "size": int(height)}
    for kind in ("bilinear", "bicubic", "lanczos", "nearest"):
        for geometry, (mean, std) in dict.fromkeys([*one_changed, *both_changed]):
            yield {**replace(geometry, interpolation=kind).to_dict(), "channels": int(channels), "mean": mean, "std": std}


def _geometries(height: int, width: int, current: Geometry) -> list[Geometry]:
    geometries = [current, Geometry((height, width))]
    if height == width:
        sides = [
            *COMMON.get(height, ()),
            *(f(height / share) for share in CROP_SHARES for f in (math.floor, round)),
            *(height + pad for pad in PADS),
            *(round(height * factor) for factor in (1.25, 1.1, 1.2, 1.15)),
        ]
        longer = list(dict.fromkeys(side for side in sides if side >= height))
        geometries += [Geometry(side, height) for side in longer]
        geometries += [Geometry((height, width), "square")]
        geometries += [Geometry((side, side), height) for side in longer if side > height]
    return list(dict.fromkeys(geometries))


def _difference(options: dict[str, Any], source: Images) -> str:
    """The options of another preprocessing on the command line, and those in use that must be left out for it."""
    in_use = {"images.transform": ""}
    if source.transform is None:
        geometry = source.geometry or Geometry((int(source.shape[2]), int(source.shape[3])))
        current = geometry.to_dict() | {"channels": int(source.shape[1]), "mean": source.mean, "std": source.std}
        in_use = _command_line(current)
    arguments = _command_line(options)
    left_out = [name for name in in_use if name not in arguments]
    without = f" and without {' and '.join(left_out)}" if left_out else ""
    return f"with {' '.join(f'--set {name}={value}' for name, value in arguments.items())}{without}"


def _command_line(options: dict[str, Any]) -> dict[str, str]:
    """Options of `Images.open` as settings of a case, with their values."""
    if options.get("preset"):
        return {"images.preset": str(options["preset"])} | ({} if options["size"] == 224 else {"images.size": str(options["size"])})
    resize, crop = options["resize"], options["crop"]
    square = isinstance(resize, list) and resize[0] == resize[1]
    arguments: dict[str, str] = {}
    if square and not isinstance(crop, int):
        arguments["images.size"] = str(resize[0])
    elif resize is not None:
        arguments["images.resize"] = str(resize) if isinstance(resize, int) else "x".join(map(str, resize))
    if crop is not None:
        arguments["images.crop"] = str(crop)
    if options["interpolation"] != "bilinear":
        arguments["images.interpolation"] = str(options["interpolation"])
    if options["channels"] != 1:
        arguments["images.channels"] = str(options["channels"])
    mean, std = options["mean"], options["std"]
    if (mean, std) != NORMS[options["channels"]]:
        names = {tuple(v * len(mean) if len(v) == 1 else v for v in (n["mean"], n["std"])): name for name, n in NAMED_NORMS.items()}
        numbers = "/".join(",".join(f"{x:g}" for x in (v[:1] if len(set(v)) == 1 else v)) for v in (mean, std))
        arguments["images.normalise"] = names.get((mean, std), numbers)
    return arguments
