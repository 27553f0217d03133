"""The rows and inputs of an audit or a repair in words: rows left out, preprocessing, and the comparison with known scores."""

from collections.abc import Mapping, Sequence
from typing import Any

from equipoise.data import ReadCohort, conflicts_in, count_by_kind
from equipoise.report.wording.audits import varying_words


def reading_words(read: ReadCohort, *, names: bool, varying: bool = True) -> list[str]:
    """Notes about rows left out and, unless an audit reports them itself, about patients in several groups.

    With `names`, which are for the user's terminal only, the first images left out are listed.
    """
    lines = []
    if read.not_frontal:
        lines.append(f"{read.not_frontal:,} rows that are not frontal views were left out")
    if count := len(read.left_out):
        kinds = ", ".join(f"{number:,} {kind}" for kind, number in count_by_kind(read.left_out).items())
        lines.append(f"{count:,} unreadable images were left out: {kinds}")
        if names:
            lines += [f"  {image}" for image in read.left_out[:5]]
            lines += [f"  and {count - 5:,} more (--json lists them)"] if count > 5 else []
    if varying:
        lines += map(varying_words, conflicts_in(read.cohort.attributes, read.cohort.patients))
    return lines


def input_words(checks: Sequence[object], preprocessing: Mapping[str, object] | None, origin: str = "") -> list[str]:
    """The preprocessing of the images with its origin, and the result of each comparison with known scores (`ScoreCheck`)."""
    lines = []
    if preprocessing is not None:
        unchecked = "" if checks else "; the scores were not compared with known ones (model.check_scores)"
        lines.append(f"images: {preprocessing_words(preprocessing)}{f' ({origin})' if origin else ''}{unchecked}")
    return lines + list(map(str, checks))


def preprocessing_words(how: Mapping[str, Any]) -> str:
    """The preprocessing of images for a network, from the plain values in run.json.

    >>> preprocessing_words({"resize": 80, "crop": 64, "interpolation": "bilinear", "channels": 1, "mean": [0.5], "std": [0.25]})
    'shorter side resized to 80 pixels (bilinear), central 64 x 64 pixels cropped, greyscale, (pixel - 0.5) / 0.25'
    """
    if how.get("transform"):
        code = how["transform"]
        checksum = f" (SHA-256 {code['sha256'][:12]}...)" if code["sha256"] else ""
        converted = {1: ", from greyscale", 3: ", from RGB"}.get(how.get("channels") or 0, "")
        return f"prepared by the transform {code['named']}{checksum}{converted}"
    resize, crop, interpolation = how.get("resize"), how.get("crop"), how["interpolation"]
    steps = []
    if how.get("preset") == "torchxrayvision":
        steps.append("preprocessing of torchxrayvision")
    if crop == "square":
        steps.append("largest central square cropped")
    if isinstance(resize, int):
        steps.append(f"shorter side resized to {resize} pixels ({interpolation})")
    elif resize is not None:
        steps.append(f"{'resized' if crop == 'square' else 'stretched'} to {resize[0]} x {resize[1]} pixels ({interpolation})")
    if isinstance(crop, int):
        steps.append(f"central {crop} x {crop} pixels cropped")
    steps.append({1: "greyscale", 3: "RGB"}.get(how["channels"], f"{how['channels']} channels"))
    mean, std = (", ".join(f"{value:g}" for value in how[name]) for name in ("mean", "std"))
    steps.append(f"(pixel - ({mean})) / ({std})" if len(how["mean"]) > 1 else f"(pixel - {mean}) / {std}")
    return ", ".join(steps)
