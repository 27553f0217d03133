"""New rows to decide on: their groups, inputs and scores read from the columns of the repair, and notes for the user.

`recorded` is the entry `inputs` of run.json: the columns of the repair and their encoding.
"""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from equipoise.data import (
    MISSING,
    Attribute,
    Bins,
    Encoder,
    IntArray,
    ObjectArray,
    Scores,
    Table,
    as_parsed,
    find_files,
    group_names,
    is_view,
    read_identifiers,
    read_numeric_column,
    read_score_column,
    row_numbers,
    score_and_logit,
)
from equipoise.errors import BadInput, did_you_mean, raise_all
from equipoise.measures import FloatArray
from equipoise.repair.schema import Inputs


def check_images(recorded: Inputs, images: bool, folder: Path) -> None:
    """Raises an error if images are given for a network that takes none, or missing for one that does."""
    if recorded.images is None and images:
        raise BadInput(f"the network in {folder} takes columns of numbers, not images. Omit --images.")
    if recorded.images is not None and not images:
        raise BadInput(f"the network in {folder} takes images. Name their folder: --images xrays/")


def groups_of(frame: pd.DataFrame, columns: Sequence[str], source: str, bins: Mapping[str, Bins] | None = None) -> tuple[Attribute, ...]:
    """The groups of new rows in the columns that a rule needs, binned as in the repair. Rows may all be of one group, or have none."""
    missing = [column for column in columns if column not in frame.columns]
    if missing:
        raise BadInput(
            f"the rule decides by group and needs the column{'s' if len(missing) > 1 else ''} {', '.join(map(repr, missing))}; "
            f"the columns are: {', '.join(map(str, frame.columns))}. Add what is missing, or repair with a method that needs no group, "
            "such as bias-gda.",
            source=source,
        )
    attributes = []
    for column in columns:
        column_bins = (bins or {}).get(column)
        if column_bins is not None:
            codes = column_bins.codes(read_numeric_column(frame[column], column))
            attributes.append(Attribute(column, column_bins.names, codes, bins=column_bins))
            continue
        names = group_names(frame[column])
        levels = tuple(sorted(str(level) for level in names.dropna().unique())) or ("(none)",)
        attributes.append(Attribute(column, levels, pd.Categorical(names, categories=list(levels)).codes.astype(np.int64)))
    return tuple(attributes)


def identifiers(
    frame: pd.DataFrame, kept: IntArray, id: str | None, patient: str | None, image: str | None = None
) -> tuple[pd.DataFrame, ObjectArray]:
    """The identifying columns of the kept rows, and an id per row as text, None if it is empty; without such columns, row numbers.

    The id of a row is in the column of ids, else in that of images, else in that of patients.
    """
    columns = [name for name in dict.fromkeys((id, patient, image)) if name in frame.columns]
    if not columns:
        return pd.DataFrame({"row": kept + 1}), row_numbers(len(kept))
    key = next(name for name in (id, image, patient) if name in columns)
    texts = [None if pd.isna(value) or not str(value).strip() else str(value) for value in read_identifiers(frame[key])[kept]]
    return frame[columns].iloc[kept].reset_index(drop=True), np.array(texts, dtype=object)


def image_files(frame: pd.DataFrame, column: str | None, folder: Path, name: str, allow_outside: bool) -> list[Any]:
    """The image file of each row, from the column with the names of images."""
    if column is None or column not in frame.columns:
        shown = ", ".join(map(str, frame.columns))
        raise BadInput(f"no column with the names of images. Name it with images.column. The columns are: {shown}.", source=name)
    return list(find_files(frame[column], folder, column, allow_outside=allow_outside))


def check_one_patient(frame: pd.DataFrame, image: str, patient: str, name: str) -> None:
    """Raises an error if one image is named for several patients, who would get another patient's score."""
    patients = frame.groupby(image)[patient].nunique()
    shared = patients[patients > 1].index
    if len(shared):
        shown = ", ".join(map(repr, shared[:5])) + (" ..." if len(shared) > 5 else "")
        raise BadInput(
            f"image column {image!r}: {len(shared):,} images are named for more than one patient of {patient!r}: {shown}. "
            "Correct the table: an image belongs to one patient.",
            source=name,
        )


def check_frontal(views: "pd.Series[Any]", name: str) -> None:
    """Raises an error if a row is not a frontal view: the repair left other views out, so their scores are untested."""
    not_frontal = ~is_view(views)
    if not_frontal.any():
        raise BadInput(
            f"{int(not_frontal.sum()):,} of {len(not_frontal):,} rows are not frontal views by the column {views.name!r}; the first is row "
            f"{int(not_frontal.argmax()) + 1:,} below the header. The network was repaired on frontal views only. Leave those rows out.",
            source=name,
        )


def network_inputs(frame: pd.DataFrame, recorded: Inputs, text_columns: Collection[str], name: str) -> Tensor:
    """The input columns of the network as numbers, encoded as in the repair, even if they were read as text because they are groups."""
    features, encoder = recorded.features or [], recorded.encoder
    frame = frame.assign(**{column: as_parsed(frame[column]) for column in features if column in text_columns and column in frame.columns})
    problems = [f"no input column {c!r}.{did_you_mean(c, map(str, frame.columns), 0.6)}" for c in features if c not in frame.columns]
    if encoder is not None:
        raise_all(problems, name)
        return Encoder(encoder.numeric, encoder.levels, tuple(features)).transform(frame)
    for column in (c for c in features if c in frame.columns):
        if frame[column].dtype.kind not in "biuf":
            problems.append(f"input column {column!r} holds no numbers. Encode it as in the repair.")
        elif bad := int((~np.isfinite(frame[column].to_numpy(dtype=float, na_value=np.nan))).sum()):
            problems.append(f"input column {column!r}: {bad:,} of {len(frame):,} rows are empty or infinite. Fill them as in training.")
    raise_all(problems, name)
    return torch.tensor(frame[features].to_numpy(dtype=np.float32))


def score_column(frame: pd.DataFrame, recorded: Inputs, features: Sequence[str], name: str) -> tuple[FloatArray, pd.DataFrame | None]:
    """The scores of new rows and the further columns that the rule reads; raises one error that lists every problem."""
    column = str(recorded.score)
    columns = list(map(str, frame.columns))
    lacking = {what: [c for c in names if c not in columns] for what, names in (("score", [column]), ("feature", features))}
    problems = [f"no {what} column {c!r}.{did_you_mean(c, columns, 0.6)}" for what, names in lacking.items() for c in names]
    if problems:
        raise BadInput(*problems, source=name, advice=f"The columns are: {', '.join(columns)}.")
    problems = [
        f"column {c!r} is there more than once. Rename all but one." for c in (column, *features) if list(frame.columns).count(c) > 1
    ]
    raise_all(problems, name)
    values, problems = read_score_column(frame[column], column, recorded.logits)
    raise_all(problems, name)
    return score_and_logit(values, recorded.logits)[0], frame[list(features)].reset_index(drop=True) if features else None


def unlabelled(
    score: FloatArray,
    attributes: tuple[Attribute, ...],
    ids: ObjectArray,
    name: str,
    features: pd.DataFrame | None = None,
    patients: ObjectArray | None = None,
) -> Scores:
    """The scores of new rows, which have no labels; rows whose group is not needed have the group "(none)"."""
    no_group = Attribute("group", ("(none)",), np.full(len(score), MISSING, dtype=np.int64))
    table = None if features is None else Table(features)
    return Scores(np.zeros(len(score), dtype=np.int64), score, attributes or (no_group,), patients, ids, name, features=table)


def notes_on_repair(outcome: str, forced: bool, folder: Path) -> list[str]:
    """Notes on a repair whose decisions should not be used, or used with caution."""
    notes = []
    if outcome == "harm":
        notes.append(
            f"the outcome of this repair on held-out patients is harm: do not use its decisions. The reason is in {folder / 'report.html'}"
        )
    if forced:
        notes.append(
            "this repair was forced although a cell (group, label) has too few patients; held-out patients cannot show whether it helps"
        )
    return notes


def notes_on_rows(attributes: tuple[Attribute, ...], left_out: int, id_frame: pd.DataFrame, id: str | None, name: str) -> list[str]:
    """Notes on rows without a decision or a group, and on ids that are missing or occur more than once."""
    notes = [f"{left_out:,} rows whose image cannot be read have no decision"] if left_out else []
    without_group = int(np.any([attribute.codes < 0 for attribute in attributes], axis=0).sum()) if attributes else 0
    if without_group:
        notes.append(f"{without_group:,} rows have no group; the rule decides them as rows of unknown group")
    if id is not None and id not in id_frame.columns:
        notes.append(f"{name} has no column {id!r}, which held the ids in the repair; rows are identified by {id_frame.columns[0]!r}")
    elif id is not None:
        repeated = id_frame[id][id_frame[id].duplicated() & id_frame[id].notna()].nunique()
        if repeated:
            notes.append(f"{repeated:,} ids in {id!r} are in more than one row, and each row has its own decision")
    return notes
