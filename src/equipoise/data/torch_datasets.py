"""Reads the network inputs of a PyTorch Dataset or DataLoader, once and in order, with one batch in memory at a time.

An item is a tensor, a tuple that begins with one, or a mapping that contains one. Its label and id, if any, are compared with the user's
table: if the two were in different orders, every patient would get the score of another one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.data.decode import CHECKED, Row, as_row, check_repeatable
from equipoise.data.image_files import BadTransform
from equipoise.data.image_rows import float_rows
from equipoise.data.images import Images
from equipoise.data.table import Inputs, Tensors
from equipoise.errors import BadInput, EquipoiseError, Misuse, first_line

INPUTS = ("image", "img", "x", "input", "inputs", "pixel_values", "data", "features")  # keys of a mapping, tried in this order
LABELS = ("label", "labels", "y", "target", "targets", "lab")
IDS = ("id", "ids", "image_id", "name", "path", "file", "filename", "key")
Item = tuple[Row, Any, str | None]  # the network input of one row, its label and its id
log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Loaded:
    """The network inputs of all rows, with their labels and ids; None if any row has none."""

    source: Inputs
    labels: list[Any] | None
    ids: list[str] | None


def load_rows(
    dataset: object, count: int | None, *, cache: str | Path | None = None, progress: Callable[[int], None] | None = None
) -> Loaded:
    """The rows of a data set or loader, in its order; `count` is the expected number, by default the length of the data set.

    They stay in memory up to 256 MiB. If there are more, or a folder is named as `cache`, they lie in a mapped file in it that is removed
    when it is no longer used.
    """
    import torch

    inner = _dataset_of(dataset)
    if count is None and not hasattr(type(inner), "__len__"):
        raise BadInput("a data set without a length needs a table of the same rows: frame=, or y and groups.")
    total = len(inner) if count is None else count
    if _has_positions(inner):
        positions = range(min(CHECKED, len(inner)))
        check_repeatable(lambda at: _item(*_inputs_label_id(_get(inner, at), at), at)[0], positions, "the data set")
    rows: Any = None
    labels, ids, read = [], [], 0
    for read, (row, label, name) in enumerate(_items(dataset, inner), 1):
        if rows is None:
            rows = float_rows((total, *row.shape), cache)
        if read > total:
            raise BadInput(
                f"the data set yields more rows than the {total:,} of the table. Give the table of the same rows, in the same order."
            )
        if row.shape != rows.shape[1:]:
            raise BadTransform(f"row {read} of the data set has shape {row.shape} and the first {rows.shape[1:]}. Return one shape.")
        rows[read - 1] = row
        labels.append(label)
        ids.append(name)
        if progress is not None:
            progress(1)
    if read != total:
        raise BadInput(
            f"the data set yields {read:,} rows and the table has {total:,}. Give the table of the same rows, in the same order."
        )
    if rows is None:
        raise BadInput("the data set has no rows")
    return Loaded(
        Images(rows, ready=True) if isinstance(rows, np.memmap) else Tensors(torch.from_numpy(rows)),
        None if any(label is None for label in labels) else labels,
        None if any(name is None for name in ids) else [str(name) for name in ids],
    )


def _dataset_of(dataset: object) -> Any:
    """The data set itself, or that of a loader. Raises `BadInput` if a loader shuffles rows or drops some."""
    from torch.utils.data import DataLoader, SequentialSampler

    if not isinstance(dataset, DataLoader):
        if not hasattr(dataset, "__getitem__") and not hasattr(dataset, "__iter__"):
            raise Misuse("Cohort.from_dataset", "a PyTorch Dataset or DataLoader", dataset)
        return dataset
    if getattr(dataset, "drop_last", False):
        raise BadInput("the DataLoader drops its last batch (drop_last=True), and with it patients. Make it with drop_last=False.")
    sampler = getattr(dataset.batch_sampler, "sampler", dataset.sampler)
    if not isinstance(sampler, SequentialSampler) and type(sampler).__name__ != "_InfiniteConstantSampler":  # of an iterable data set
        raise BadInput(
            f"the DataLoader takes rows in another order ({type(sampler).__name__}), and rows are matched to the table by their order. "
            "Make it with shuffle=False and without a sampler, or give its data set."
        )
    return dataset.dataset


def _has_positions(dataset: Any) -> bool:
    return hasattr(type(dataset), "__getitem__") and hasattr(type(dataset), "__len__")


def _items(dataset: Any, inner: Any) -> Iterator[Item]:
    """The rows of a data set or loader (`inner` is the loader's data set), in order."""
    is_loader, start = dataset is not inner, 0
    if not is_loader or (dataset.batch_size is None and dataset.batch_sampler is None):
        by_position = not is_loader and _has_positions(dataset)
        for at, item in enumerate((_get(dataset, at) for at in range(len(dataset))) if by_position else dataset):
            yield _item(*_inputs_label_id(item, at), at)
        return
    for batch in dataset:
        inputs, labels, names = _inputs_label_id(batch, start)
        if not hasattr(inputs, "shape") or len(inputs.shape) < 1:
            raise BadTransform(f"the DataLoader yields {type(inputs).__name__} where a tensor of rows is expected")
        rows = len(inputs)
        if not hasattr(labels, "__len__") or len(labels) != rows:
            labels = [None] * rows
        if names is None or isinstance(names, str) or len(names) != rows:
            names = [None] * rows
        for row in range(rows):
            yield _item(inputs[row], labels[row], names[row], start + row)
        start += rows


def _get(dataset: Any, at: int) -> Any:
    try:
        return dataset[at]
    except EquipoiseError:
        raise
    except Exception as error:  # the user's code may raise anything
        raise BadInput(
            f"the data set raised {type(error).__name__} for row {at + 1}: {first_line(error)}. Correct it, or leave the row out."
        ) from error


def _item(inputs: Any, label: Any, name: Any, at: int) -> Item:
    """One row: its input, its label as a number or an array of numbers, None if it is neither, and its id."""
    values = np.asarray(label.detach().cpu().numpy() if hasattr(label, "detach") else label)
    number = None if values.dtype.kind not in "biuf" else values.item() if values.size == 1 else values
    return as_row(inputs, "the data set", f" in row {at + 1}"), number, None if name is None else str(name)


def _inputs_label_id(item: Any, at: int) -> tuple[Any, Any, Any]:
    """Inputs, label and id of an item or batch; None for a label or id that it does not have."""
    if hasattr(item, "shape"):
        return item, None, None
    if isinstance(item, Mapping):
        inputs = next((item[key] for key in INPUTS if key in item and hasattr(item[key], "shape")), None)
        if inputs is None:
            raise BadTransform(
                f"row {at + 1} of the data set is a mapping with {', '.join(map(str, item))}, none of which is known as the input "
                f"({', '.join(INPUTS)}). Return a tensor, or (tensor, label)."
            )
        label, name = (next((item[key] for key in keys if key in item), None) for keys in (LABELS, IDS))
        return inputs, label, name
    if isinstance(item, Sequence) and not isinstance(item, (str, bytes)) and len(item):
        names = [part for part in item[1:] if _is_text(part)]
        numbers = [part for part in item[1:] if part is not None and not _is_text(part)]
        return item[0], numbers[0] if numbers else None, names[0] if names else None
    raise BadTransform(f"row {at + 1} of the data set is of type {type(item).__name__}. Return a tensor, (tensor, label) or a mapping.")


def _is_text(part: object) -> bool:
    """Whether a part of an item is a string, or a part of a batch consists of strings."""
    return isinstance(part, str) or (isinstance(part, (list, tuple)) and bool(part) and all(isinstance(text, str) for text in part))


def check_order(loaded: Loaded, ids: Sequence[object] | None, y: Any) -> None:
    """Raises `BadInput` if the ids of a data set, or else its labels, differ from those of the table; warns if it has neither."""
    if loaded.ids is not None and ids is not None:
        both = [(first, str(second)) for first, second in zip(loaded.ids, ids, strict=True)]
        # One id may be a path that ends with the file name that is the other.
        wrong = [at for at, (a, b) in enumerate(both) if a != b and Path(a).name != b and Path(b).name != a]
        if wrong:
            at = wrong[0]
            raise BadInput(
                f"{len(wrong):,} of {len(loaded.ids):,} rows have another id in the data set than in the table; the first is row {at + 1}: "
                f"{loaded.ids[at]!r} and {str(ids[at])!r}. Bring the table into the order of the data set."
            )
        return
    if loaded.labels is not None:
        table_labels = np.asarray(y, dtype=np.float64)
        labels = np.asarray(loaded.labels, dtype=np.float64)
        if labels.shape == table_labels.shape:
            known = np.isfinite(labels) & np.isfinite(table_labels) & (table_labels >= 0) & (labels >= 0)
            wrong_rows = np.flatnonzero(((labels != table_labels) & known).reshape(len(labels), -1).any(1))
            if len(wrong_rows):
                raise BadInput(
                    f"{len(wrong_rows):,} of {len(labels):,} rows have another label in the data set than in the table; the first is row "
                    f"{wrong_rows[0] + 1}. Bring the table into the order of the data set, or correct the labels."
                )
            return
    log.warning("the data set gives neither ids nor labels that the table has, so it is not known whether both have the same order")
