"""A data file as a cohort or as scores: the roles of its columns and, with a folder of images, how the images are read.

columns = Columns(label="pneumonia", group="sex", reference="M", patient="patient_id")
cohort = read_cohort("local.csv", columns, ImageFolder(folder="xrays")).cohort
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pandas as pd

from equipoise.data.cohort import Cohort, Scores, cohort_from_images, cohort_from_table
from equipoise.data.columns import NOT_IN_BATCHES, Columns
from equipoise.data.preprocessing import IMAGE_COLUMNS, ImageFolder
from equipoise.data.table_files import is_large, read_table
from equipoise.errors import BadInput, did_you_mean, raise_all

if TYPE_CHECKING:
    from equipoise.data.image_files import Broken
    from equipoise.data.images import Images
    from equipoise.data.scans import Scan

REASONS_LISTED = 100  # reasons in a result; a folder may hold many thousand unreadable images
Counting = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]  # (task, total) to a context that counts increments


@dataclass(frozen=True)
class ReadCohort:
    """A cohort, and the rows of its file that were left out."""

    cohort: Cohort
    left_out: "tuple[Broken, ...]" = ()  # the images left out, with the reason for each
    not_frontal: int = 0

    @property
    def left_out_kinds(self) -> dict[str, int]:
        """The number of images left out, by the kind of their fault."""
        from equipoise.data.image_files import count_by_kind

        return count_by_kind(self.left_out)

    def counts(self) -> dict[str, object]:
        """The number of rows left out by reason, without any name that could identify a patient."""
        return {
            "left_out_count": len(self.left_out),
            "left_out_kinds": self.left_out_kinds if self.left_out else {},
            "not_frontal": self.not_frontal,
            "patients_in_several_groups": {v.attribute: v.patients for v in self.cohort.conflicts},
            "conflicts": self.cohort.attributes[0].conflicts,
        }

    def to_dict(self) -> dict[str, object]:
        """The counts, and at most a hundred of the rows left out with their reasons."""
        return {"left_out": [f"{broken.place}: {broken.reason}" for broken in self.left_out[:REASONS_LISTED]], **self.counts()}


def read_cohort(
    path: str | Path,
    columns: Columns,
    images: ImageFolder = ImageFolder(),
    *,
    attribute_as_input: bool = False,
    scale: bool = False,
    progress: Counting = lambda _task, _total: nullcontext(lambda _: None),
) -> ReadCohort:
    """The cohort in a data file, with its numbers or the images that its rows name as inputs, and the rows left out.

    - `path`, `columns`: the file, and who is what in it.
    - `images`: the folder of images and how they are decoded; without a folder, the inputs are columns.
    - `attribute_as_input`, `scale`: as in `Cohort.from_frame`; by default numbers are used unchanged, for a network trained elsewhere.
    - `progress`: makes a context for a task and its total, which is called with the number done.
    """
    path, text = Path(path), columns.text | images.text
    frame = read_table(path, text=text, words=columns.words, limit=columns.max_table_bytes)
    if images.folder is not None:
        return _read_images(frame, path.name, columns, images, images.folder, progress)
    how: dict[str, Any] = {"attribute_as_input": attribute_as_input, "scale": scale, "only_numbers": not columns.raw}
    return ReadCohort(cohort_from_table(frame, columns, path.name, text=text, **how))


def scan_if_large(path: str | Path, columns: Columns) -> "dict[str, Scan]":
    """The scores of each label in a table that must be added up where it is; empty for a table that is read as a whole.

    Those are a folder, and a file above 256 MiB unless the user has set `max_table_bytes`. `columns` names one score column per
    label.
    """
    if not is_large(path, columns.max_table_bytes):
        return {}
    from equipoise.data.scans import Scan

    if given := [role for role in ("id", *NOT_IN_BATCHES) if getattr(columns, role) and role != "date"]:  # which an audit has no use for
        named = ", ".join(f"data.{role}" for role in given)
        raise BadInput(f"{path} is added up where it is, without {named}. Omit that, or raise data.max_table_bytes.")
    used = columns.changed(features=(), date=None)
    own = {label: used.changed(label=label, score=score) for label, score in zip(columns.label, columns.score, strict=True)}
    return {label: Scan(Path(path), of_label, limit=columns.max_table_bytes) for label, of_label in own.items()}


def _read_images(frame: pd.DataFrame, name: str, columns: Columns, images: ImageFolder, folder: Path, progress: Counting) -> ReadCohort:
    from equipoise.data.image_files import BROKEN_ADVICE, ImageLimit, find_files, is_view

    column = images.column or next((c for c in IMAGE_COLUMNS if c in frame.columns), None)
    if column is None or column not in frame.columns:
        problem = f"no column {column!r}" if column else f"no column with the names of images (tried {', '.join(IMAGE_COLUMNS)})"
        hint = did_you_mean(column, map(str, frame.columns), 0.6) if column else ""
        listed = ", ".join(map(str, frame.columns))
        raise BadInput(f"{problem}.{hint} Name it: images.column (column=). The columns are: {listed}.", source=name)
    broken_headers: dict[int, Broken] = {}
    if images.from_headers:
        from equipoise.data.dicom import add_dicom_columns

        files = find_files(frame[column], folder, column, allow_outside=images.allow_outside)
        with progress("reading headers", len(files)) as advance:
            frame, faults = add_dicom_columns(frame, files, advance, ImageLimit(images.max_pixels), columns.patient)
        broken_headers = {row: replace(fault, place=f"row {row + 1} below the header") for row, fault in faults.items()}
    header_problems = list(map(str, broken_headers.values()))
    readable = frame.drop(index=list(broken_headers))
    if not len(readable):
        raise_all(header_problems, name)
    view = columns.view or ("view" if images.from_headers else None)
    frontal = int(is_view(readable[view]).sum()) if view in readable.columns else len(readable)
    try:
        with progress("decoding", frontal) as advance:
            by_image = columns.changed(id=column, view=view, features=())
            outside = images.allow_outside
            cohort = cohort_from_images(readable, by_image, folder, name, allow_outside=outside, progress=advance, **images.decoding)
    except BadInput as error:
        if images.skip_broken or not broken_headers:
            raise
        raise BadInput(*header_problems, *error.problems, source=name) from None
    if broken_headers and not images.skip_broken:
        raise BadInput(*header_problems, source=name, advice=BROKEN_ADVICE)
    decoded = cast("Images", cohort.source)
    return ReadCohort(cohort, (*broken_headers.values(), *decoded.broken.values()), len(readable) - frontal)


@dataclass(frozen=True)
class ReturningPatients:
    """The numbers of patients, and of their rows, that were in an earlier period."""

    patients: int
    of_patients: int
    rows: int
    of_rows: int


def returning_patients(scores: Mapping[str, Scores], earlier: Sequence[Mapping[str, Scores]]) -> ReturningPatients:
    """The number of patients who were in an earlier period, from the scores of each label in this one and in `earlier` ones.

    >>> rows = Scores.from_arrays([0, 1, 1], [0.1, 0.8, 0.4], ["F", "M", "F"], reference="M", patients=["a", "b", "c"])
    >>> returning_patients({"y": rows}, [{"y": rows.take(np.array([1]))}])
    ReturningPatients(patients=1, of_patients=3, rows=1, of_rows=3)
    """
    if any(rows.patients is None for by_label in (scores, *earlier) for rows in by_label.values()):
        raise BadInput("patients of earlier periods are found by their ids. Name the column of patients: patient= (--patient).")
    known = set[str]().union(*(np.asarray(rows.patients).astype(str) for by_label in earlier for rows in by_label.values()))
    ids = [np.asarray(rows.patients).astype(str) for rows in scores.values()]
    longest, everyone = max(ids, key=len), set[str]().union(*ids)
    return ReturningPatients(len(everyone & known), len(everyone), int(np.isin(longest, list(known)).sum()), len(longest))
