"""A data file as a cohort or as scores: the roles of its columns and, with a folder of images, how the images are read.

reading = Reading(labels=["pneumonia"], group=["sex"], reference=["M"], patient="patient_id", images=Path("xrays"))
cohort = read_cohort("local.csv", reading).cohort
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from equipoise.data.attribute import varying_in
from equipoise.data.bins import Bins
from equipoise.data.cohort import Cohort, cohort_in
from equipoise.data.columns import Roles, read_columns
from equipoise.data.faults import MAX_PIXELS, Broken, Limit, counted
from equipoise.data.image_files import IMAGE_COLUMNS, find_files, of_view
from equipoise.data.images import BROKEN_ADVICE, Images
from equipoise.data.preprocessing import Norm
from equipoise.data.scans import Scan
from equipoise.data.scores import Rows, Scores
from equipoise.data.table_files import as_parsed, column_names, read_table
from equipoise.data.targets import known
from equipoise.data.transforms import Transform
from equipoise.errors import BadInput, did_you_mean, raise_all

LISTED = 100  # reasons in a result; a folder may hold many thousand unreadable images
Counting = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]  # progress: what is done, how many times; then increments


@contextmanager
def _silent(_what: str, _total: int) -> Iterator[Callable[[int], None]]:
    yield lambda _: None


@dataclass(frozen=True)
class Reading:
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
    size: int | None = None  # these as in `Images.open`
    resize: int | tuple[int, int] | None = None
    crop: int | str | None = None
    interpolation: str | None = None
    centre: str | None = None
    channels: int | None = None
    norm: Norm = field(default_factory=lambda: Norm(mean=(), std=()))
    preset: str | None = None
    transform: Callable[[Any], Any] | Transform | None = None
    skip_broken: bool = False
    allow_outside: bool = False
    max_pixels: int = MAX_PIXELS
    cache: Path | None = None
    bins: Mapping[str, Sequence[float] | Bins] = field(default_factory=dict)
    conflicts: str = "row"
    weight: str | None = None
    max_table_bytes: int | None = None
    raw: bool = False  # columns may hold text and gaps, for a classifier that encodes them itself

    @property
    def outputs(self) -> list[str]:
        """What a network tells: the labels, or the classes of the only one."""
        return self.classes or self.labels

    @property
    def kind(self) -> str:
        """Whether these are labels or classes."""
        return "classes" if self.classes else "labels"

    @property
    def text(self) -> set[str]:
        """The columns of identifiers and groups, which are read as text; a binned group is read as a number."""
        named = {name for name in (self.patient, self.id) if name is not None}
        images = () if self.images is None else (self.image_column,) if self.image_column else IMAGE_COLUMNS
        return named | {*images} | {name for name in self.group if name not in self.bins}

    def with_bins_of(self, cohort: Rows) -> "Reading":
        """The same for another file, with the bins of this cohort, so that both have groups of the same names."""
        return replace(self, bins={a.name: a.bins for a in cohort.attributes if a.bins is not None})

    def as_for(self, cohort: Rows) -> "Reading":
        """The same for another file of this cohort's patients' kind: with its bins and its references."""
        return replace(self.with_bins_of(cohort), reference=[attribute.reference for attribute in cohort.attributes])

    def prepared_as(self, own: Mapping[str, Any], whose: str) -> tuple["Reading", tuple[str, ...]]:
        """The same with this preprocessing of images as the default, and the names of the options that were given instead.

        `own` holds keywords of `Images.open`, as those of a model's own preprocessor, and `whose` names it. A preset or a transform is a
        complete preprocessing, and stays.
        """
        given = {name: getattr(self, name) for name in ("size", "resize", "crop", "interpolation", "channels", "preset", "transform")}
        instead = tuple(name for name, value in given.items() if value is not None) + (("norm",) if self.norm["mean"] else ())
        if self.images is None or not own or self.preset is not None or self.transform is not None:
            return self, instead
        channels = own["channels"]
        if self.channels not in (None, channels):
            raise BadInput(f"channels are {self.channels}, and {whose} takes {channels}. Omit the option (--channels).")
        taken = {name: own[name] if given[name] is None else given[name] for name in ("resize", "crop", "interpolation", "channels")}
        if self.size is not None:  # stretched to a square, which leaves nothing to resize or crop
            taken |= {"resize": self.resize, "crop": self.crop}
        if "crop" not in instead and self.size is None:
            taken["centre"] = own["centre"]
        norm = Norm(mean=own["mean"], std=own["std"])
        if self.norm["mean"]:
            mean, std = (each * channels if len(each) == 1 else each for each in (self.norm["mean"], self.norm["std"]))
            norm = Norm(mean=mean, std=std)
        return replace(self, **taken, norm=norm), instead

    @property
    def view(self) -> str | None:
        """The column that marks frontal views, the only ones used; None where all rows are."""
        return self.view_column or ("view" if self.from_headers else None)

    @property
    def roles(self) -> dict[str, Any]:
        """The roles of columns that cohorts and scores share, as keywords."""
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
        """The rows of a file, with identifiers and groups as text, and labels too where values of theirs are named."""
        words = self.labels if self.positive is not None or self.classes else ()
        return read_table(path, text=self.text, words=words, limit=self.max_table_bytes)


@dataclass(frozen=True)
class Read:
    """A cohort and the rows of its file that are not in it."""

    cohort: Cohort
    left_out: tuple[Broken, ...] = ()  # what was wrong with each image that was left out
    not_frontal: int = 0

    def counts(self) -> dict[str, object]:
        """The number of rows left out by reason, without names: nothing about a patient."""
        varying = {each.attribute: each.patients for each in varying_in(self.cohort.attributes, self.cohort.patients)}
        found = {"left_out_count": len(self.left_out), "left_out_kinds": counted(self.left_out), "not_frontal": self.not_frontal}
        return found | {"patients_in_several_groups": varying, "conflicts": self.cohort.attributes[0].conflicts}

    def to_dict(self) -> dict[str, object]:
        """The counts with the rows left out and their reasons, at most a hundred."""
        return {"left_out": [f"{one.place}: {one.reason}" for one in self.left_out[:LISTED]], **self.counts()}


def read_cohort(path: str | Path, reading: Reading, *, progress: Counting = _silent) -> Read:
    """The cohort in a data file, of its numbers or of the images that its rows name, with the rows left out.

    Numbers are used unchanged: nothing is scaled, encoded or imputed for a network that was trained elsewhere.
    """
    path = Path(path)
    frame = reading.table(path)
    if reading.images is None:
        return Read(_of_numbers(frame, path.name, reading))
    return _of_images(frame, path.name, reading, reading.images, progress)


def scan_scores(path: str | Path, reading: Reading, columns: Sequence[str], *, logits: bool = False) -> dict[str, Scan]:
    """The scores of each label in a table that is read in batches (see `is_large`), one column per label."""
    if reading.id is not None:
        raise BadInput(f"{path} is read in batches, without row ids, which an audit does not report. Omit --id {reading.id} (id=).")
    return {
        label: Scan(Path(path), Roles(**{**reading.roles, "label": label}, score=column, logits=logits))
        for label, column in zip(reading.labels, columns, strict=True)
    }


def read_scores(path: str | Path, reading: Reading, columns: Sequence[str], *, logits: bool = False) -> dict[str, Scores]:
    """The scores of each label in a data file, one column per label; with several labels, on the rows where each is known.

    A patient's group, the names of bins and the reference are those of the whole table, whichever labels are known. `logits`: the
    columns hold logits. The features of the reading, if any, stand next to the scores.
    """
    path = Path(path)
    frame, found = reading.table(path), {}
    own: dict[str, Any] = {"id": reading.id, "name": path.name, "features": reading.features, "logits": logits}
    lacking = [f"label {label!r} has no score column {c!r}." for label, c in zip(reading.labels, columns, strict=True) if c not in frame]
    if lacking and len(columns) > 1:
        raise BadInput(*lacking, f"The columns are: {', '.join(map(str, frame.columns))}.", source=path.name)
    several = len(columns) > 1
    roles = reading.roles | {"conflicts": "row"} if several else reading.roles
    for label, column in zip(reading.labels, columns, strict=True):
        rows = frame[known(frame[label])] if several and label in frame.columns else frame
        found[label] = Scores.from_frame(rows, score=column, **own, **{**roles, "label": label})
    if not several:
        return found
    attributes = read_columns(frame, Roles(**reading.roles), path.name).attributes
    for label, scores in found.items():
        rows = np.flatnonzero(known(frame[label]))
        ids = scores.ids if reading.id is not None else rows.astype(object)  # of the whole table, so that labels can be put together
        found[label] = replace(scores, attributes=tuple(a.take(rows) for a in attributes), ids=ids)
    return found


def paired_columns(path: str | Path, prefix: str) -> dict[str, str]:
    """The score column of each label column of a table: the label's name after a prefix."""
    names = column_names(path)
    found = {name.removeprefix(prefix): name for name in names if name.startswith(prefix) and name != prefix}
    pairs = {label: score for label, score in found.items() if label in names}
    if not pairs:
        alone = f" {', '.join(map(repr, list(found.values())[:5]))} have no label column." if found else ""
        raise BadInput(
            f"no pair of a label column and a score column that begins with {prefix!r}.{alone} The columns are: {', '.join(names)}.",
            source=str(path),
        )
    return pairs


def _of_images(frame: pd.DataFrame, name: str, reading: Reading, folder: Path, progress: Counting) -> Read:
    column = reading.image_column or next((c for c in IMAGE_COLUMNS if c in frame.columns), None)
    if column is None or column not in frame.columns:
        found = f"no column {column!r}" if column else f"no column with the names of images (tried {', '.join(IMAGE_COLUMNS)})"
        shown = ", ".join(map(str, frame.columns))
        hint = did_you_mean(column, map(str, frame.columns), 0.6) if column else ""
        raise BadInput(f"{found}.{hint} Name it with --image-column (image_column=). The columns are: {shown}.", source=name)
    view = reading.view
    frame, wrong = _with_headers(frame, column, folder, reading, progress) if reading.from_headers else (frame, {})
    kept = frame.drop(index=list(wrong))
    if not len(kept):
        raise_all(list(map(str, wrong.values())), name)
    frontal = int(of_view(kept[view]).sum()) if view in kept.columns else len(kept)
    try:
        with progress("decoding", frontal) as more:
            cohort = Cohort.from_images(
                kept,
                folder=folder,
                image=column,
                view=view,
                size=reading.size,
                resize=reading.resize,
                crop=reading.crop,
                interpolation=reading.interpolation,
                centre=reading.centre,
                channels=reading.channels,
                preset=reading.preset,
                transform=reading.transform,
                skip_broken=reading.skip_broken,
                allow_outside=reading.allow_outside,
                max_pixels=reading.max_pixels,
                cache=reading.cache,
                progress=more,
                name=name,
                classes=reading.classes,
                **reading.norm,
                **reading.roles,
            )
    except BadInput as error:
        if reading.skip_broken or not wrong:
            raise
        raise BadInput(*map(str, wrong.values()), *error.problems, source=name) from None
    if wrong and not reading.skip_broken:
        raise BadInput(*map(str, wrong.values()), BROKEN_ADVICE, source=name)
    assert isinstance(cohort.source, Images)
    return Read(cohort, (*wrong.values(), *cohort.source.broken.values()), len(kept) - frontal)


def _with_headers(
    frame: pd.DataFrame, column: str, folder: Path, reading: Reading, progress: Counting
) -> tuple[pd.DataFrame, dict[int, Broken]]:
    """The frame with columns from the DICOM headers of its rows, and what was wrong with a row's header, by position."""
    from equipoise.data.dicom import with_headers

    files = find_files(frame[column], folder, column, allow_outside=reading.allow_outside)
    with progress("reading headers", len(files)) as more:
        filled, broken = with_headers(frame, files, more, Limit(reading.max_pixels), reading.patient)
    return filled, {at: replace(one, place=f"row {at + 1} below the header") for at, one in broken.items()}


def _of_numbers(frame: pd.DataFrame, name: str, reading: Reading) -> Cohort:
    taken = {*reading.labels, reading.patient, reading.id, reading.weight, *reading.group}
    chosen = reading.features or [c for c in frame.columns if c not in taken]
    columns = [as_parsed(frame[c]) if c in reading.text else frame[c] for c in chosen if c in frame.columns]
    problems = [] if reading.raw else [problem for column in columns for problem in _input_problems(column)]
    try:
        own = {"features": chosen, "scale": False, "name": name, "id": reading.id, "classes": reading.classes}
        cohort = cohort_in(frame, reading.text, **own, **reading.roles)
    except BadInput as error:
        raise BadInput(*error.problems, *problems, source=name) from None
    raise_all(problems, name)
    return cohort


def _input_problems(column: Any) -> Iterator[str]:
    """What a network cannot take. Nothing is imputed, because only the network's owner knows how that was done in training."""
    if column.dtype.kind not in "biuf":
        yield (f"input column {column.name!r} holds no numbers. Encode it as in training, or list the inputs with --feature (features=).")
    elif bad := int((~np.isfinite(column.to_numpy(dtype=float, na_value=np.nan))).sum()):
        yield f"input column {column.name!r}: {bad:,} of {len(column):,} rows are empty or infinite. Fill them in as in training."
