"""Why a network's scores are not the known ones: the usual reasons are tried, and the one that makes them agree is named.

First what the scores show by themselves (logits, percentages, an inverted or a recalibrated score, rows in another order), then the
network's other outputs, then other ways to prepare the same images, on a few rows and within a minute.
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
from equipoise.models import OneOutput, as_matrix, outputs

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
