"""A data file as a cohort or as scores: the roles of its columns and, with a folder of images, how the images are read.

reading = Reading(labels=["pneumonia"], group=["sex"], reference=["M"], patient="patient_id", images=Path("xrays"))
cohort = read_cohort("local.csv", reading).cohort
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pandas as pd

from equipoise.data.attribute import conflicts_in, row_numbers
from equipoise.data.bins import Bins
from equipoise.data.cohort import Cohort, cohort_from_table
from equipoise.data.columns import Roles, read_columns
from equipoise.data.faults import BROKEN_ADVICE, MAX_PIXELS, Broken, ImageLimit, count_by_kind
from equipoise.data.image_files import IMAGE_COLUMNS, find_files, is_view
from equipoise.data.preprocessing import Norm
from equipoise.data.repeated_patients import warn_of_repeated_patients
from equipoise.data.scores import Rows, Scores, read_scores_of
from equipoise.data.table_files import as_parsed, column_names, read_table
from equipoise.data.targets import known
from equipoise.errors import BadInput, did_you_mean, raise_all

if TYPE_CHECKING:
    from equipoise.data.images import Images
    from equipoise.data.scans import Scan
    from equipoise.data.transforms import Transform

LISTED = 100  # reasons in a result; a folder may hold many thousand unreadable images
Counting = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]  # (task, total) to a context that counts increments
PREPROCESSING = ("size", "resize", "crop", "interpolation", "channels", "preset", "transform")  # options of `Images.open`


def _silent(_task: str, _total: int) -> AbstractContextManager[Callable[[int], None]]:
    return nullcontext(lambda _: None)


@dataclass(frozen=True)
class ReadOptions:
    """How to read a data file: the roles of its columns and, with a folder of images, how the images are read."""

    labels: list[str]
    group: list[str]
    reference: list[str] | None = None
    patient: str | None = None
    id: str | None = None
    positive: str | None = None
    classes: list[str] | None = None  # of the only label, in the order of the network's outputs
    features: list[str] | None = None
    images: Path | None = None
    image_column: str | None = None
    view_column: str | None = None
    from_headers: bool = False
    size: int | None = None  # this and the options up to `transform` as in `Images.open`
    resize: int | tuple[int, int] | None = None
    crop: int | str | None = None
    interpolation: str | None = None
    centre: str | None = None
    channels: int | None = None
    norm: Norm = field(default_factory=lambda: Norm(mean=(), std=()))
    preset: str | None = None
    transform: "Callable[[Any], Any] | Transform | None" = None
    skip_broken: bool = False
    allow_outside: bool = False
    max_pixels: int = MAX_PIXELS
    cache: Path | None = None
    bins: Mapping[str, Sequence[float] | Bins] = field(default_factory=dict)
    conflicts: str = "row"
    weight: str | None = None
    max_table_bytes: int | None = None
    raw: bool = False  # input columns may hold text and empty cells, for a classifier that encodes them itself

    @property
    def outputs(self) -> list[str]:
        """The names of the network's outputs: the labels, or the classes of the only label."""
        return self.classes or self.labels

    @property
    def kind(self) -> str:
        """The kind of outputs: labels or classes."""
        return "classes" if self.classes else "labels"

    @property
    def text(self) -> set[str]:
        """The columns of identifiers and groups, which are read as text; a binned group is read as a number."""
        identifiers = {name for name in (self.patient, self.id) if name is not None}
        images = () if self.images is None else (self.image_column,) if self.image_column else IMAGE_COLUMNS
        return identifiers | {*images} | {name for name in self.group if name not in self.bins}

    def with_bins_of(self, cohort: Rows) -> "ReadOptions":
        """The reading of another file with the bins of this cohort, so that the groups have the same names."""
        return replace(self, bins={a.name: a.bins for a in cohort.attributes if a.bins is not None})

    def like(self, cohort: Rows) -> "ReadOptions":
        """The reading of another file with the bins and the reference groups of this cohort."""
        return replace(self.with_bins_of(cohort), reference=[attribute.reference for attribute in cohort.attributes])

    def with_preprocessing(self, default: Mapping[str, Any], owner: str) -> tuple["ReadOptions", tuple[str, ...]]:
        """The reading with a default preprocessing of images, and the names of the options that the user has set instead.

        `default` holds keywords of `Images.open`, such as those of a model's own preprocessor, and `owner` is its name in messages. A
        preset or a transform is a complete preprocessing and replaces the default.
        """
        options = {name: getattr(self, name) for name in PREPROCESSING}
        overridden = tuple(name for name, value in options.items() if value is not None) + (("norm",) if self.norm["mean"] else ())
        if self.images is None or not default or self.preset is not None or self.transform is not None:
            return self, overridden
        channels = default["channels"]
        if self.channels not in (None, channels):
            raise BadInput(f"channels are {self.channels}, and {owner} takes {channels}. Omit the option (--channels).")
        merged = {
            name: default[name] if options[name] is None else options[name] for name in ("resize", "crop", "interpolation", "channels")
        }
        if self.size is not None:  # resizes to a square, which leaves nothing to resize or crop
            merged |= {"resize": self.resize, "crop": self.crop}
        elif self.crop is None:
            merged["centre"] = default["centre"]
        norm = Norm(mean=default["mean"], std=default["std"])
        if self.norm["mean"]:
            mean, std = (values * channels if len(values) == 1 else values for values in (self.norm["mean"], self.norm["std"]))
            norm = Norm(mean=mean, std=std)
        return replace(self, **merged, norm=norm), overridden

    @property
    def view(self) -> str | None:
        """The column of views, if only frontal views are used."""
        return self.view_column or ("view" if self.from_headers else None)

    @property
    def roles(self) -> dict[str, Any]:
        """The roles of columns that cohorts and scores have in common, as keywords."""
        return {
            "label": self.labels[0] if len(self.labels) == 1 else self.labels,
            "group": self.group,
            "reference": self.reference or None,
            "patient": self.patient,
            "positive": self.positive,
            "bins": self.bins,
            "conflicts": self.conflicts,
            "weight": self.weight,
        }

    def table(self, path: Path) -> pd.DataFrame:
        """The rows of a file, with identifiers and groups as text; labels as well, if a positive value or classes are named."""
        words = self.labels if self.positive is not None or self.classes else ()
        return read_table(path, text=self.text, words=words, limit=self.max_table_bytes)


@dataclass(frozen=True)
class ReadCohort:
    """A cohort, and the rows of its file that were left out."""

    cohort: Cohort
    left_out: tuple[Broken, ...] = ()  # the images left out, with the reason for each
    not_frontal: int = 0

    def counts(self) -> dict[str, object]:
        """The number of rows left out by reason, without any name that could identify a patient."""
        return {
            "left_out_count": len(self.left_out),
            "left_out_kinds": count_by_kind(self.left_out),
            "not_frontal": self.not_frontal,
            "patients_in_several_groups": {v.attribute: v.patients for v in conflicts_in(self.cohort.attributes, self.cohort.patients)},
            "conflicts": self.cohort.attributes[0].conflicts,
        }

    def to_dict(self) -> dict[str, object]:
        """The counts, and at most a hundred of the rows left out with their reasons."""
        return {"left_out": [f"{broken.place}: {broken.reason}" for broken in self.left_out[:LISTED]], **self.counts()}


def read_cohort(path: str | Path, reading: ReadOptions, *, progress: Counting = _silent) -> ReadCohort:
    """The cohort in a data file, with its numbers or the images that its rows name as inputs, and the rows left out.

    Numbers are used unchanged: nothing is scaled, encoded or imputed for a network that was trained elsewhere.
    """
    path = Path(path)
    frame = reading.table(path)
    if reading.images is None:
        return ReadCohort(_read_numbers(frame, path.name, reading))
    return _read_images(frame, path.name, reading, reading.images, progress)


def scan_scores(path: str | Path, reading: ReadOptions, columns: Sequence[str], *, logits: bool = False) -> "dict[str, Scan]":
    """The scores of each label in a table that is read in batches (see `is_large`), one column per label."""
    from equipoise.data.scans import Scan

    if reading.id is not None:
        raise BadInput(f"{path} is read in batches, without row ids, which an audit does not report. Omit --id {reading.id} (id=).")
    return {
        label: Scan(Path(path), Roles(**{**reading.roles, "label": label}, score=column, logits=logits), limit=reading.max_table_bytes)
        for label, column in zip(reading.labels, columns, strict=True)
    }


def read_scores(path: str | Path, reading: ReadOptions, columns: Sequence[str], *, logits: bool = False) -> dict[str, Scores]:
    """The scores of each label in a data file, one column per label; with several labels, the rows in which each is known.

    Groups, bins, references and conflicts are those of the whole table, for every label. With `logits`, the columns hold logits. The
    features of the reading, if any, are kept with the scores.
    """
    path = Path(path)
    frame = reading.table(path)
    label_columns = list(zip(reading.labels, columns, strict=True))
    options: dict[str, Any] = reading.roles | {"id": reading.id, "logits": logits}
    if len(columns) <= 1:
        options |= {"name": path.name, "features": reading.features}
        return {label: Scores.from_frame(frame, score=column, **options) for label, column in label_columns}
    if lacking := [f"label {label!r} has no score column {column!r}." for label, column in label_columns if column not in frame]:
        raise BadInput(*lacking, source=path.name, advice=f"The columns are: {', '.join(map(str, frame.columns))}.")
    scores = {}
    for label, column in label_columns:
        rows = frame[known(frame[label])] if label in frame.columns else frame
        roles = Roles(**options | {"label": label, "conflicts": "row"}, score=column)
        scores[label] = read_scores_of(rows, roles, reading.features or (), path.name)
    attributes = read_columns(frame, Roles(**reading.roles), path.name).attributes
    warn_of_repeated_patients(frame, Roles(**reading.roles, id=reading.id))
    for label in scores:
        positions = np.flatnonzero(known(frame[label]))
        ids = scores[label].ids if reading.id is not None else row_numbers(len(frame))[positions]  # in the whole table, to match labels
        scores[label] = replace(scores[label], attributes=tuple(a.take(positions) for a in attributes), ids=ids)
    return scores


def paired_columns(path: str | Path, prefix: str) -> dict[str, str]:
    """The score column of each label column of a table: the label's name after a prefix."""
    names = column_names(path)
    scores = {name.removeprefix(prefix): name for name in names if name.startswith(prefix) and name != prefix}
    pairs = {label: score for label, score in scores.items() if label in names}
    if not pairs:
        unpaired = f" {', '.join(map(repr, list(scores.values())[:5]))} have no label column." if scores else ""
        raise BadInput(
            f"no pair of a label column and a score column that begins with {prefix!r}.{unpaired} The columns are: {', '.join(names)}.",
            source=str(path),
        )
    return pairs


def _read_images(frame: pd.DataFrame, name: str, reading: ReadOptions, folder: Path, progress: Counting) -> ReadCohort:
    column = reading.image_column or next((c for c in IMAGE_COLUMNS if c in frame.columns), None)
    if column is None or column not in frame.columns:
        problem = f"no column {column!r}" if column else f"no column with the names of images (tried {', '.join(IMAGE_COLUMNS)})"
        hint = did_you_mean(column, map(str, frame.columns), 0.6) if column else ""
        columns = ", ".join(map(str, frame.columns))
        raise BadInput(f"{problem}.{hint} Name it with --image-column (image_column=). The columns are: {columns}.", source=name)
    frame, broken_headers = _with_headers(frame, column, folder, reading, progress) if reading.from_headers else (frame, {})
    header_problems = list(map(str, broken_headers.values()))
    readable = frame.drop(index=list(broken_headers))
    if not len(readable):
        raise_all(header_problems, name)
    view = reading.view
    frontal = int(is_view(readable[view]).sum()) if view in readable.columns else len(readable)
    decoding = {option: getattr(reading, option) for option in (*PREPROCESSING, "centre", "skip_broken", "max_pixels", "cache")}
    try:
        with progress("decoding", frontal) as advance:
            cohort = Cohort.from_images(
                readable,
                folder=folder,
                image=column,
                view=view,
                allow_outside=reading.allow_outside,
                progress=advance,
                name=name,
                classes=reading.classes,
                **decoding,
                **reading.norm,
                **reading.roles,
            )
    except BadInput as error:
        if reading.skip_broken or not broken_headers:
            raise
        raise BadInput(*header_problems, *error.problems, source=name) from None
    if broken_headers and not reading.skip_broken:
        raise BadInput(*header_problems, source=name, advice=BROKEN_ADVICE)
    images = cast("Images", cohort.source)
    return ReadCohort(cohort, (*broken_headers.values(), *images.broken.values()), len(readable) - frontal)


def _with_headers(
    frame: pd.DataFrame, column: str, folder: Path, reading: ReadOptions, progress: Counting
) -> tuple[pd.DataFrame, dict[int, Broken]]:
    """The frame with columns from the DICOM headers of its rows, and the rows whose header cannot be read, by position."""
    from equipoise.data.dicom import add_dicom_columns

    files = find_files(frame[column], folder, column, allow_outside=reading.allow_outside)
    with progress("reading headers", len(files)) as advance:
        filled, broken = add_dicom_columns(frame, files, advance, ImageLimit(reading.max_pixels), reading.patient)
    return filled, {row: replace(fault, place=f"row {row + 1} below the header") for row, fault in broken.items()}


def _read_numbers(frame: pd.DataFrame, name: str, reading: ReadOptions) -> Cohort:
    other_columns = {*reading.labels, reading.patient, reading.id, reading.weight, *reading.group}
    features = reading.features or [c for c in frame.columns if c not in other_columns]
    problems: list[str] = []
    if not reading.raw:
        for feature in (c for c in features if c in frame.columns):
            problems += _input_problems(as_parsed(frame[feature]) if feature in reading.text else frame[feature])
    options = {"features": features, "scale": False, "name": name, "id": reading.id, "classes": reading.classes}
    try:
        cohort = cohort_from_table(frame, reading.text, **options, **reading.roles)
    except BadInput as error:
        raise BadInput(*error.problems, *problems, source=name) from None
    raise_all(problems, name)
    return cohort


def _input_problems(column: Any) -> Iterator[str]:
    """Values that a network cannot use. Nothing is imputed, because only the network's owner knows how that was done in training."""
    if column.dtype.kind not in "biuf":
        yield f"input column {column.name!r} holds no numbers. Encode it as in training, or list the inputs with --feature (features=)."
    elif bad := int((~np.isfinite(column.to_numpy(dtype=float, na_value=np.nan))).sum()):
        yield f"input column {column.name!r}: {bad:,} of {len(column):,} rows are empty or infinite. Fill them in as in training."
