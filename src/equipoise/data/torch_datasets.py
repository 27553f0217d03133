"""Reads the network inputs of a PyTorch Dataset or DataLoader, once and in order, with one batch in memory at a time.

An item is a tensor, a tuple that begins with one, or a mapping that contains one. Its label and id, if any, are compared with the user's
table: if the two were in different orders, every patient would get the score of another one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.data.decode import CHECKED, Row, as_row, check_repeatable
from equipoise.data.images import Images, float_rows
from equipoise.data.preprocessing import BadTransform
from equipoise.data.table import Inputs, Tensors
from equipoise.errors import BadInput, EquipoiseError, Misuse, first_line

INPUT_KEYS = ("image", "img", "x", "input", "inputs", "pixel_values", "data", "features")  # of a mapping, tried in this order
LABEL_KEYS = ("label", "labels", "y", "target", "targets", "lab")
ID_KEYS = ("id", "ids", "image_id", "name", "path", "file", "filename", "key")
log = logging.getLogger(__name__)


def load_rows(
    dataset: object, total: int, *, cache: str | Path | None = None, progress: Callable[[int], None] | None = None
) -> tuple[Inputs, list[Any] | None, list[str] | None]:
    """The `total` rows of a data set or loader, in its order, with their labels and ids; None for these if any row has none.

    They stay in memory up to 256 MiB. If there are more, or a folder is named as `cache`, they lie in a mapped file in it that is removed
    when it is no longer used.
    """
    import torch

    inner = _dataset_of(dataset)
    if _has_positions(inner):
        check_repeatable(lambda at: _row_of_item(*_parts(_get(inner, at), at), at)[0], range(min(CHECKED, len(inner))), "the data set")
    out: Any = None
    labels, ids, read = [], [], 0
    for read, (row, label, name) in enumerate(_rows(dataset, inner), 1):
        if out is None:
            out = float_rows((total, *row.shape), cache)
        if read > total:
            raise BadInput(
                f"the data set yields more rows than the {total:,} of the table. Give the table of the same rows, in the same order."
            )
        if row.shape != out.shape[1:]:
            raise BadTransform(f"row {read} of the data set has shape {row.shape} and the first {out.shape[1:]}. Return one shape.")
        out[read - 1] = row
        labels.append(label)
        ids.append(name)
        if progress is not None:
            progress(1)
    if read != total:
        raise BadInput(
            f"the data set yields {read:,} rows and the table has {total:,}. Give the table of the same rows, in the same order."
        )
    if out is None:
        raise BadInput("the data set has no rows")
    source = Images(out, ready=True) if isinstance(out, np.memmap) else Tensors(torch.from_numpy(out))
    return source, None if any(label is None for label in labels) else labels, None if None in ids else list(map(str, ids))


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


def _rows(dataset: Any, inner: Any) -> Iterator[tuple[Row, Any, str | None]]:
    """The rows of a data set or loader (`inner` is the loader's data set), in order: network input, label and id."""
    is_loader, start = dataset is not inner, 0
    if not is_loader or (dataset.batch_size is None and dataset.batch_sampler is None):
        by_position = not is_loader and _has_positions(dataset)
        for at, item in enumerate((_get(dataset, at) for at in range(len(dataset))) if by_position else dataset):
            yield _row_of_item(*_parts(item, at), at)
        return
    for batch in dataset:
        inputs, labels, names = _parts(batch, start)
        if not hasattr(inputs, "shape") or len(inputs.shape) < 1:
            raise BadTransform(f"the DataLoader yields {type(inputs).__name__} where a tensor of rows is expected")
        rows = len(inputs)
        if not hasattr(labels, "__len__") or len(labels) != rows:
            labels = [None] * rows
        if names is None or isinstance(names, str) or len(names) != rows:
            names = [None] * rows
        for row in range(rows):
            yield _row_of_item(inputs[row], labels[row], names[row], start + row)
        start += rows


def _get(dataset: Any, at: int) -> Any:
    try:
        return dataset[at]
    except EquipoiseError:
        raise
    except Exception as error:  # the user's code may raise anything
        problem = f"the data set raised {type(error).__name__} for row {at + 1}: {first_line(error)}. Correct it, or leave the row out."
        raise BadInput(problem) from error


def _row_of_item(inputs: Any, label: Any, name: Any, at: int) -> tuple[Row, Any, str | None]:
    """One row: its input, its label as a number or an array of numbers, None if it is neither, and its id."""
    values = np.asarray(label.detach().cpu().numpy() if hasattr(label, "detach") else label)
    number = None if values.dtype.kind not in "biuf" else values.item() if values.size == 1 else values
    return as_row(inputs, "the data set", f" in row {at + 1}"), number, None if name is None else str(name)


def _parts(item: Any, at: int) -> tuple[Any, Any, Any]:
    """Inputs, label and id of an item or batch; None for a label or id that it does not have."""
    if hasattr(item, "shape"):
        return item, None, None
    if isinstance(item, Mapping):
        inputs = next((item[key] for key in INPUT_KEYS if key in item and hasattr(item[key], "shape")), None)
        if inputs is None:
            raise BadTransform(
                f"row {at + 1} of the data set is a mapping with {', '.join(map(str, item))}, none of which is known as the input "
                f"({', '.join(INPUT_KEYS)}). Return a tensor, or (tensor, label)."
            )
        label, name = (next((item[key] for key in keys if key in item), None) for keys in (LABEL_KEYS, ID_KEYS))
        return inputs, label, name
    if isinstance(item, Sequence) and not isinstance(item, (str, bytes)) and len(item):
        # A part is an id if it is a string, or in a batch a list of strings.
        others = [part for part in item[1:] if part is not None]
        is_text = [isinstance(next(iter(part), None) if isinstance(part, (list, tuple)) else part, str) for part in others]
        names, numbers = ([part for part, text in zip(others, is_text, strict=True) if text is kind] for kind in (True, False))
        return item[0], numbers[0] if numbers else None, names[0] if names else None
    raise BadTransform(f"row {at + 1} of the data set is of type {type(item).__name__}. Return a tensor, (tensor, label) or a mapping.")


def check_order(loaded: tuple[Inputs, list[Any] | None, list[str] | None], ids: Sequence[object] | None, y: Any) -> None:
    """Raises `BadInput` if the ids of a data set, or else its labels, differ from those of the table; warns if it has neither."""
    _, found_labels, found_ids = loaded
    if found_ids is not None and ids is not None:
        both = [(first, str(second)) for first, second in zip(found_ids, ids, strict=True)]
        # One id may be a path that ends with the file name that is the other.
        if wrong := [at for at, (a, b) in enumerate(both) if a != b and Path(a).name != b and Path(b).name != a]:
            at = wrong[0]
            raise BadInput(
                f"{len(wrong):,} of {len(found_ids):,} rows have another id in the data set than in the table; the first is row {at + 1}: "
                f"{found_ids[at]!r} and {str(ids[at])!r}. Bring the table into the order of the data set."
            )
        return
    if found_labels is not None:
        table_labels, labels = np.asarray(y, dtype=np.float64), np.asarray(found_labels, dtype=np.float64)
        labels = labels.reshape(len(labels), -1)
        if labels.shape == table_labels.shape:
            known = np.isfinite(labels) & np.isfinite(table_labels) & (table_labels >= 0) & (labels >= 0)
            wrong_rows = np.flatnonzero(((labels != table_labels) & known).any(1))
            if len(wrong_rows):
                raise BadInput(
                    f"{len(wrong_rows):,} of {len(labels):,} rows have another label in the data set than in the table; the first is row "
                    f"{wrong_rows[0] + 1}. Bring the table into the order of the data set, or correct the labels."
                )
            return
    log.warning("the data set gives neither ids nor labels that the table has, so it is not known whether both have the same order")
