"""New rows to decide on: their groups, images and scores in the columns of the repair, and what a user should know about them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from equipoise.data import MISSING, Attribute, Bins, ObjectArray, Scores, Table, find_files, group_names, numbers_in, of_view, score_of
from equipoise.errors import BadInput, did_you_mean, raise_all
from equipoise.measures import FloatArray


def check_images(how: Mapping[str, Any], images: bool, folder: Path) -> None:
    if how["images"] is None and images:
        raise BadInput(f"the network in {folder} takes columns of numbers, not images. Omit --images.")
    if how["images"] is not None and not images:
        raise BadInput(f"the network in {folder} takes images. Name their folder: --images xrays/")


def groups_of(frame: pd.DataFrame, columns: Sequence[str], source: str, bins: Mapping[str, Bins] | None = None) -> tuple[Attribute, ...]:
    """The groups of new rows in the columns that a rule needs, cut as in the repair. One group is enough; rows may have none."""
    lacking = [column for column in columns if column not in frame.columns]
    if lacking:
        raise BadInput(
            f"the rule decides by group and needs the column{'s' if len(lacking) > 1 else ''} {', '.join(map(repr, lacking))}; "
            f"the columns are: {', '.join(map(str, frame.columns))}. Add what is missing, or repair with a method that needs no group, "
            "such as bias-gda.",
            source=source,
        )
    found = []
    for column in columns:
        cut = (bins or {}).get(column)
        if cut is not None:
            found.append(Attribute(column, cut.names, cut.codes(numbers_in(frame[column], column)), bins=cut))
            continue
        names = group_names(frame[column])
        levels = tuple(sorted(str(level) for level in names.dropna().unique())) or ("(none)",)
        codes = pd.Categorical(names, categories=list(levels)).codes.astype(np.int64)
        found.append(Attribute(column, levels, codes))
    return tuple(found)


def image_files(frame: pd.DataFrame, column: str | None, folder: Path, name: str, allow_outside: bool) -> list[Any]:
    if column is None or column not in frame.columns:
        shown = ", ".join(map(str, frame.columns))
        raise BadInput(f"no column with the names of images. Name it with --image-column. The columns are: {shown}.", source=name)
    return list(find_files(frame[column], folder, column, allow_outside=allow_outside))


def check_one_patient(frame: pd.DataFrame, image: str, patient: str, name: str) -> None:
    """Raises an error if one image is named for several patients, all but one of whom would get another patient's score."""
    whose = frame.groupby(image)[patient].nunique()
    shared = whose[whose > 1].index
    if len(shared):
        some = ", ".join(map(repr, shared[:5])) + (" ..." if len(shared) > 5 else "")
        raise BadInput(
            f"image column {image!r}: {len(shared):,} images are named for more than one patient of {patient!r}: {some}. "
            "Correct the table: an image belongs to one patient.",
            source=name,
        )


def check_frontal(views: "pd.Series[Any]", name: str) -> None:
    """Raises an error if a row is not a frontal view: the repair left those out, so nothing is known of their scores."""
    other = ~of_view(views)
    if other.any():
        raise BadInput(
            f"{int(other.sum()):,} of {len(other):,} rows are not frontal views by the column {views.name!r}; the first is row "
            f"{int(other.argmax()) + 1:,} below the header. The network was repaired on frontal views only. Leave those rows out.",
            source=name,
        )


def id_notes(about: pd.DataFrame, id: str | None, name: str) -> list[str]:
    """What a user should know of the ids next to the decisions: that there are none, or that some occur more than once."""
    if id is None:
        return []
    if id not in about.columns:
        return [f"{name} has no column {id!r}, which held the ids in the repair; rows are identified by {about.columns[0]!r}"]
    again = about[id][about[id].duplicated() & about[id].notna()].nunique()
    return [f"{again:,} ids in {id!r} are in more than one row, and each row has its own decision"] if again else []


def row_notes(attributes: tuple[Attribute, ...], left_out: int) -> list[str]:
    notes = [f"{left_out:,} rows whose image cannot be read have no decision"] if left_out else []
    missing = int(np.any([attribute.codes < 0 for attribute in attributes], axis=0).sum()) if attributes else 0
    if missing:
        notes.append(f"{missing:,} rows have no group; the rule decides them as rows of unknown group")
    return notes


def unlabelled(score: FloatArray, attributes: tuple[Attribute, ...], ids: ObjectArray, name: str) -> Scores:
    """The scores of new rows, whose labels are not known."""
    return Scores(np.zeros(len(score), dtype=np.int64), score, attributes or (no_group(len(score)),), None, ids, name)


def no_group(rows: int) -> Attribute:
    """The attribute of rows whose group is not needed."""
    return Attribute("group", ("(none)",), np.full(rows, MISSING, dtype=np.int64))


def check_names(about: pd.DataFrame, found: pd.DataFrame) -> None:
    """Raises an error if a column of ids has the name of a column of the decisions."""
    if taken := [c for c in about.columns if c in found.columns]:
        shown = ", ".join(map(repr, taken))
        raise BadInput(f"the ids are in {shown}, which is also the name of a column of the decisions. Rename the column.")


def new_scores(
    frame: pd.DataFrame, inputs: Mapping[str, Any], attributes: tuple[Attribute, ...], ids: Any, columns: Sequence[str], name: str
) -> Scores:
    """The scores of new rows in the columns of the repair, or one error that lists everything wrong with them; no label is needed.

    `columns` are the further ones that the rule reads.
    """
    column = str(inputs["score"])
    problems = [
        f"no {what} column {c!r}.{did_you_mean(c, map(str, frame.columns), 0.6)} The columns are: {', '.join(map(str, frame.columns))}."
        for what, c in (("score", column), *(("feature", each) for each in columns))
        if c not in frame.columns
    ]
    problems += [
        f"column {c!r} is there more than once. Rename all but one." for c in (column, *columns) if list(frame.columns).count(c) > 1
    ]
    raise_all(problems, name)
    score, problems = score_of(frame[column], column, bool(inputs.get("logits")))
    raise_all(problems, name)
    features = Table(frame[list(columns)].reset_index(drop=True)) if columns else None
    return Scores(np.zeros(len(frame), dtype=np.int64), score, attributes, None, ids, name, features=features)
