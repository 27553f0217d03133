"""A cohort: inputs, labels, protected attributes and patients of the same rows. The first thing that every user makes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, cast

import numpy as np
import pandas as pd

from equipoise.data.attribute import Attribute, FloatArray, IntArray, ObjectArray
from equipoise.data.bins import Bins
from equipoise.data.columns import Roles, check_frame, described, frame_of, read_columns
from equipoise.data.image_files import find_files, of_view
from equipoise.data.images import Decoding, Images
from equipoise.data.table import Encoder, Table
from equipoise.data.table_files import as_parsed
from equipoise.data.targets import UNKNOWN, read_array
from equipoise.errors import BadInput, Misuse, collecting, did_you_mean, pick, raise_all

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, eq=False)
class Cohort:
    """Rows to train on, to audit or to repair with: inputs, labels, groups and patients.

    >>> cohort = Cohort.from_frame(
    ...     pd.DataFrame({"age": [41, 70, 55, 33], "sex": ["F", "M", "M", "F"], "sick": [0, 1, 0, 1]}),
    ...     label="sick", group="sex", reference="M")
    >>> len(cohort), cohort.groups.tolist(), cohort.inputs.shape
    (4, ['F', 'M', 'M', 'F'], torch.Size([4, 1]))
    """

    source: Tensor | Table | Images  # what the network sees, or will once it is encoded
    y: IntArray  # (n,) 0 or 1; 1 is what the classifier detects
    attributes: tuple[Attribute, ...]
    patients: ObjectArray | None = None
    ids: ObjectArray = field(default_factory=lambda: np.empty(0, dtype=object))
    name: str = "cohort"
    labels: tuple[str, ...] = ()  # the names of several labels, or of classes in the order of the network's outputs
    targets: IntArray | None = None  # (n, labels) 0 or 1, -1 where it is not known; y then stands for all of them
    kind: str = "labels"  # or classes: one per row
    weight: FloatArray | None = None  # (n,) sample weights, positive; None where every row counts once

    def __post_init__(self) -> None:
        n = len(self.y)
        if not len(self.ids):
            object.__setattr__(self, "ids", np.arange(n).astype(object))
        lengths = {"inputs": len(self.source), "ids": len(self.ids), **{a.name: len(a.codes) for a in self.attributes}}
        if self.patients is not None:
            lengths["patients"] = len(self.patients)
        if self.targets is not None:
            lengths["targets"] = len(self.targets)
        if self.weight is not None:
            lengths["weight"] = len(self.weight)
        raise_all([f"{what} has {size:,} rows, y has {n:,}" for what, size in lengths.items() if size != n])

    @classmethod
    def from_frame(
        cls,
        frame: pd.DataFrame,
        *,
        label: str | Sequence[str],
        group: str | Sequence[str],
        reference: str | Sequence[str] | None = None,
        patient: str | None = None,
        id: str | None = None,
        features: Sequence[str] | None = None,
        attribute_as_input: bool = False,
        positive: object = None,
        classes: Sequence[object] | None = None,
        bins: Mapping[str, Sequence[float] | Bins] | None = None,
        conflicts: str = "row",
        weight: str | None = None,
        scale: bool = True,
        name: str = "frame",
    ) -> Cohort:
        """The cohort in a pandas frame. The features are all other columns, unless they are listed.

        Categories become one column per level and numbers z-scores; both are learned from the training set when the cohort is
        split. `scale=False` passes numbers through, for a network with a preparation of its own.

        For a network with several outputs, `label` may be a list of columns of 0 and 1 (NaN or -1: not known); or one column, with
        `classes` in the order of the outputs.

        Groups, patients and ids are taken as they stand; read them as text (`pd.read_csv(path, dtype={"patient": str})`), because pandas
        turns 007 into 7. `bins={"age": [40, 60, 80]}` makes groups of a column of numbers. Attributes are those of a row: `conflicts`
        sets what happens to patients who have more than one group, "row" (as recorded), "first", "majority", "blank" or "error".

        `weight` names a column of sample weights, used by audits and post-processing and never as an input.
        """
        check_frame("Cohort.from_frame", frame)
        roles = Roles(
            label, group, reference, patient, id, weight=weight, positive=positive, classes=classes, bins=bins, conflicts=conflicts
        )
        kept = {*roles.labels, patient, id, weight} | (set() if attribute_as_input else set(roles.groups))
        chosen = [c for c in frame.columns if c not in kept] if features is None else list(features)
        problems = [f"no feature column {c!r}.{did_you_mean(c, map(str, frame.columns), 0.6)}" for c in chosen if c not in frame.columns]
        known = {**dict.fromkeys(roles.labels, "label"), **({} if weight is None else {weight: "weight"})}
        problems += [f"feature column {c!r} is the {known[c]}, which no network may see. Leave it out." for c in chosen if c in known]
        twice = dict.fromkeys(c for c in chosen if chosen.count(c) > 1)
        problems += [f"feature column {c!r} occurs more than once in the frame or the list. Keep it once." for c in twice]
        if not chosen:
            problems.append(
                f"no feature column is left among {', '.join(map(str, frame.columns))}. Add one, or list them with features=[...]."
            )
        source = name if name != "frame" else ""
        try:
            read = read_columns(frame, roles)
        except BadInput as error:
            raise BadInput(*error.problems, *problems, source=source) from None
        raise_all(problems, source)
        return cls(Table(frame[chosen].reset_index(drop=True), scale=scale), name=name, **read.rows)

    @classmethod
    def from_arrays(
        cls,
        inputs: object,
        y: object = None,
        groups: object = None,
        *,
        reference: str | None = None,
        patients: object = None,
        attribute: str = "group",
        labels: Sequence[str] | None = None,
        classes: Sequence[object] | None = None,
        bins: Sequence[float] | None = None,
        conflicts: str = "row",
        weights: object = None,
        name: str = "arrays",
    ) -> Cohort:
        """The cohort of an input tensor (n, ...), labels, group names and patient ids, each in the same order.

        `labels` names the columns of y (n, labels), `classes` the values of y in the order of the network's outputs. `bins` cuts groups
        that are numbers, as an age, at these edges; `conflicts` as in `from_frame`.
        """
        import torch  # only here: a table or a file of scores needs no tensor

        _check_arrays(inputs, y, groups)
        targets = None if labels is None and classes is None else read_array(y, labels, classes)
        # What stands for several labels may be all positive, which is no problem of theirs.
        one = np.asarray(y) if targets is None else np.arange(len(targets.values)) % 2
        if one.ndim > 1:
            raise BadInput(f"y has shape {one.shape}; one label per row is needed, or labels=[...], which names the columns")
        frame = frame_of({"y": one, attribute: groups, "patient": patients, "weight": weights})
        named: dict[str, Any] = {name: name for name in ("patient", "weight") if name in frame}
        edges = None if bins is None else {attribute: bins}
        read = read_columns(frame, Roles("y", attribute, reference, bins=edges, conflicts=conflicts, **named))
        try:
            tensor = torch.as_tensor(inputs)
        except (TypeError, ValueError, RuntimeError) as error:
            raise BadInput(f"the inputs must be a tensor or an array of numbers (n, ...): {error}") from error
        return cls(tensor, name=name, **replace(read, targets=targets).rows)

    @classmethod
    def from_images(
        cls,
        frame: pd.DataFrame,
        *,
        folder: str | Path,
        image: str,
        label: str | Sequence[str],
        group: str | Sequence[str],
        reference: str | Sequence[str] | None = None,
        patient: str | None = None,
        view: str | None = None,
        positive: object = None,
        classes: Sequence[object] | None = None,
        bins: Mapping[str, Sequence[float] | Bins] | None = None,
        conflicts: str = "row",
        weight: str | None = None,
        allow_outside: bool = False,
        name: str = "images",
        **decoding: Unpack[Decoding],
    ) -> Cohort:
        """The cohort of a frame whose column `image` names files in a folder: paths in it, or bare names anywhere below.

        A bare name may lack the suffix of an image (.png, .dcm, ...) and must be unique below the folder; a path is exactly that path. A
        file outside the folder is refused unless `allow_outside`.

        With a column `view`, rows stay whose view is frontal (PA, AP). See `Images.open` for the options of decoding; what
        `skip_broken` leaves out is listed in `cohort.source.broken`, by the row of the frame. Several labels, classes, bins and conflicts
        as in `from_frame`.
        """
        check_frame("Cohort.from_images", frame)
        roles = Roles(
            label, group, reference, patient, image, weight=weight, positive=positive, classes=classes, bins=bins, conflicts=conflicts
        )
        rows = np.arange(len(frame)) if view is None else _frontal(frame, view, name)
        chosen = frame.iloc[rows].reset_index(drop=True)
        # A frame that lost rows since it was read still has their numbers.
        told = frame.index if pd.api.types.is_integer_dtype(frame.index) and frame.index.is_monotonic_increasing else range(len(frame))
        numbers = [int(told[row]) + 1 for row in rows]
        problems: list[str] = []
        with collecting(problems):
            read = read_columns(chosen, roles)
        with collecting(problems):
            files = find_files(chosen[image], folder, image, allow_outside=allow_outside, rows=numbers) if image in chosen else []
        raise_all(problems, name if len(rows) == len(frame) else f"{name}, {len(rows):,} frontal of {len(frame):,} rows")
        images = Images.open(files, places=[f"row {number} below the header" for number in numbers], **decoding)
        whole = cls(Table(chosen[[]]), name=name, **read.rows)
        return replace(whole.take([at for at in range(len(rows)) if at not in images.broken]), source=images)

    @classmethod
    def from_dataset(
        cls,
        dataset: object,
        frame: pd.DataFrame | None = None,
        *,
        label: str | Sequence[str] | None = None,
        group: str | Sequence[str] | None = None,
        y: object = None,
        groups: object = None,
        reference: str | Sequence[str] | None = None,
        patient: str | None = None,
        patients: object = None,
        id: str | None = None,
        cache: str | Path | None = None,
        progress: Callable[[int], None] | None = None,
        name: str = "dataset",
        **columns: Any,
    ) -> Cohort:
        """The cohort of a PyTorch Dataset or DataLoader that yields what the network takes, and a frame of its rows in the same order.

        `label`, `group`, `patient`, `id` and the other columns are those of the frame, as in `from_frame`. Without a frame, `groups`,
        `patients` and `y` are arrays; `y` may be left out where the data set yields the labels.

        An item is a tensor, (tensor, label, ...) or a mapping. The order is compared by the ids, if the data set yields some and `id` names
        a column, otherwise by the labels. A loader that shuffles or drops rows is refused, and so is a random transform. The rows are read
        once; above 256 MiB they are kept in a file (see `cache`).
        """
        from equipoise.data.torch_datasets import check_order, load_rows

        if frame is None:
            if groups is None:
                raise BadInput("a data set needs the group of each row: groups=, or a frame with the column group=")
            told = np.asarray(groups, dtype=object)
            loaded = load_rows(dataset, len(told), cache=cache, progress=progress)
            if y is None and loaded.labels is None:
                raise BadInput("the data set yields no labels; give them as y=, or a frame with the column label=")
            whole = cls.from_arrays(
                np.zeros((len(told), 1), np.float32),
                loaded.labels if y is None else y,
                told,
                reference=cast("str | None", reference),
                patients=patients,
                name=name,
                **columns,
            )
            if y is not None:
                check_order(loaded, None, whole.y if whole.targets is None else whole.targets)
            return replace(whole, source=loaded.source)
        check_frame("Cohort.from_dataset", frame)
        if label is None or group is None:
            raise BadInput("name the columns of the frame: label= and group=")
        read = read_columns(frame, Roles(label, group, reference, patient, id, **columns), name if name != "dataset" else "")
        loaded = load_rows(dataset, len(frame), cache=cache, progress=progress)
        whole = cls(Table(frame[[]].reset_index(drop=True)), name=name, **read.rows)
        check_order(loaded, None if id is None else list(whole.ids), whole.y if whole.targets is None else whole.targets)
        return replace(whole, source=loaded.source)

    def __len__(self) -> int:
        return len(self.y)

    def __repr__(self) -> str:
        """How many rows, patients and positives there are, by group; no value of any row, which may be a patient's."""
        what = "images" if isinstance(self.source, Images) else "columns" if isinstance(self.source, Table) else "inputs"
        shape = f"{self.source.frame.shape[1]:,}" if isinstance(self.source, Table) else str(tuple(self.source.shape[1:]))
        return f"Cohort({self.name!r}, {described(self.y, self.attributes, self.patients)}, {what}: {shape})"

    @property
    def inputs(self) -> Tensor:
        """What the network sees (n, ...): a tensor, or a source of images that gives one for every index."""
        if isinstance(self.source, Table):
            return self.source.tensor()
        # An image source answers all that is asked of inputs here: length, shape, type, and a tensor for every index.
        return cast("Tensor", self.source)

    @property
    def attribute(self) -> Attribute:
        """The protected attribute; with several columns, their intersection."""
        return Attribute.crossed(self.attributes)

    @property
    def groups(self) -> ObjectArray:
        """The group of each row by name, None where it is missing."""
        return self.attribute.names

    @property
    def encoder(self) -> Encoder | None:
        """How the raw columns became inputs; None for cohorts that were never a table."""
        return self.source.fitted() if isinstance(self.source, Table) else None

    def take(self, index: object, name: str | None = None) -> Cohort:
        """Some of the rows, by position or mask."""
        rows = np.arange(len(self))[np.asarray(index)]
        source = self.source.take(rows) if isinstance(self.source, (Table, Images)) else _rows_of(self.source, rows)

        def some(values: Any) -> Any:
            return None if values is None else values[rows]

        return replace(
            self,
            source=source,
            y=self.y[rows],
            attributes=tuple(a.take(rows) for a in self.attributes),
            patients=some(self.patients),
            ids=self.ids[rows],
            name=name or self.name,
            targets=some(self.targets),
            weight=some(self.weight),
        )

    def labelled(self, label: str) -> Cohort:
        """The rows in which one of several labels is known, with that label only; of a class, whether a row belongs to it."""
        column = self.column(label)
        rows = np.flatnonzero(column != UNKNOWN)
        return replace(self.take(rows, f"{self.name}, {label}"), y=column[rows], labels=(), targets=None, kind="labels")

    def encoded_by(self, encoder: Encoder) -> Cohort:
        """The same rows seen through another set's encoder, as new data must be before a trained network sees it."""
        if not isinstance(self.source, Table):
            kind = "images" if isinstance(self.source, Images) else "a tensor"
            raise BadInput(f"cohort {self.name!r} holds {kind} already; only a table can be encoded")
        return replace(self, source=self.source.encoded_by(encoder))

    def column(self, label: str) -> IntArray:
        """One of several labels in every row (n,): 0, 1, or -1 where it is not known."""
        if self.targets is None:
            raise BadInput(f"cohort {self.name!r} has one label, which is its y; several are given with label=[...] or classes=[...]")
        found: IntArray = self.targets[:, self.labels.index(pick("label", label, self.labels))]
        return found


def cohort_in(frame: pd.DataFrame, text: Collection[str], **columns: Any) -> Cohort:
    """The cohort in a frame whose columns `text` were read as text; where one of them is an input as well, as numbers."""
    cohort = Cohort.from_frame(frame, **columns)
    assert isinstance(cohort.source, Table)
    inputs = cohort.source.frame
    both = {name: as_parsed(inputs[name]) for name in inputs.columns if name in text}
    return replace(cohort, source=replace(cohort.source, frame=inputs.assign(**both))) if both else cohort


def _frontal(frame: pd.DataFrame, view: str, name: str) -> IntArray:
    """The rows whose view is frontal, or an error where there is no such column or row."""
    if view not in frame.columns:
        raise BadInput(f"no column {view!r}.{did_you_mean(view, map(str, frame.columns), 0.6)}", source=name)
    rows = np.flatnonzero(of_view(frame[view]))
    if len(frame) and not len(rows):
        held = ", ".join(map(str, frame[view].unique()[:6]))
        raise BadInput(
            f"view column {view!r} holds no frontal view (PA, AP or frontal) in {len(frame):,} rows; it holds {held}", source=name
        )
    return rows


def _rows_of(inputs: Tensor, rows: IntArray) -> Tensor:
    import torch

    return inputs[torch.from_numpy(rows)]


def _check_arrays(inputs: object, y: object, groups: object) -> None:
    """Raises where a data set, a loader or a frame is given in place of arrays, with what to do."""
    stacked = "Its rows are read by eq.Cohort.from_dataset(dataset, frame, label=..., group=...)."
    framed = "The columns of a frame are read by eq.Cohort.from_frame(frame, label=..., group=...)."
    advice = {"Dataset": stacked, "DataLoader": stacked, "DataFrame": framed}
    advice |= {"Module": "A network is not data: eq.audit(model, cohort).", "Cohort": "This is a cohort already."}
    if y is None or groups is None or any(kind.__name__ in advice for kind in type(inputs).__mro__):
        raise Misuse("Cohort.from_arrays", "inputs, labels and groups: from_arrays(inputs, y, groups)", inputs, advice)
