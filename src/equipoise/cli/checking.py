"""`--check-scores`: the scores of a network next to those that its owner has; the command stops where they differ."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from equipoise import data, repair, report
from equipoise.errors import BadInput

if TYPE_CHECKING:
    from torch import nn

CheckOption = Annotated[
    Path | None,
    typer.Option(
        "--check-scores",
        help="File with the scores that this network is known to give, in the columns --score, joined by the names of images or --id. "
        "The command stops if they differ.",
        show_default="none: the scores are not checked",
        rich_help_panel="Network",
    ),
]
ToleranceOption = Annotated[
    float | None,
    typer.Option(help="Largest difference between a score and the known one.", show_default="0.0001", rich_help_panel="Network"),
]


def check_problems(
    file: Path | None,
    tolerance: float | None,
    model: str | None,
    scores: list[str] | None,
    labels: list[str],
    options: Mapping[str, object],
) -> list[str]:
    """What is wrong with the options of the check."""
    if file is None:
        return [] if tolerance is None else ["--tolerance requires --check-scores. Omit it."]
    found = [] if model is not None else ["--check-scores compares the scores of a --model. Add it, or omit --check-scores."]
    if not scores or len(scores) != len(labels):
        found.append(f"--check-scores needs the column of the known scores: one --score per --label; got {len(scores or [])}")
    if options["classes"]:
        found.append("--check-scores does not take --class; check each class as a label of its own network.")
    if options["images"] is None and options["id"] is None:
        found.append("--check-scores joins rows by --id; name the column with ids that both files have.")
    if tolerance is not None and not tolerance > 0:
        found.append(f"--tolerance must be positive, as in 0.0001; got {tolerance:g}")
    return found


def check(
    file: Path,
    columns: list[str],
    reading: data.Reading,
    network: nn.Module | object,
    cohort: data.Cohort,
    scores: Mapping[str, data.Scores],
    tolerance: float | None,
) -> list[repair.ScoreCheck]:
    """The check of each label; an error with all differences, and the reason where one is found."""
    names = [reading.id] if reading.images is None else [reading.image_column] if reading.image_column else list(data.IMAGE_COLUMNS)
    frame = data.read_table(file, text={name for name in names if name}, limit=reading.max_table_bytes)
    key = next((name for name in names if name in frame.columns), None)
    if key is None:
        shown = ", ".join(map(str, frame.columns))
        raise BadInput(
            f"no column with the ids of the rows (tried {', '.join(map(str, names))}). The columns are: {shown}.", source=file.name
        )
    found = []
    for (label, own), column in zip(scores.items(), columns, strict=True):
        known = repair.known_scores(frame, column, key)
        one = repair.compare_known(own, known, tolerance or repair.TOLERANCE, file.name if len(scores) == 1 else label)
        found.append(one if one.agrees else repair.with_hint(one, network if len(scores) == 1 else None, cohort, own, known))
    if not all(one.agrees for one in found):
        raise repair.ScoresDiffer(found)
    return found


def check_lines(checks: list[repair.ScoreCheck], preprocessing: Mapping[str, object] | None, whose: str = "") -> list[str]:
    """What was done to the images, `whose` preprocessing that is, and whether the scores were compared with known ones."""
    source = f" ({whose})" if whose else ""
    said = [] if preprocessing is None else [f"images: {report.preprocessing_words(preprocessing)}{source}"]
    if preprocessing is not None and not checks:
        said[0] += "; the scores were not compared with known ones (--check-scores)"
    return said + [str(one) for one in checks]
