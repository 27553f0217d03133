"""Rows of a PyTorch Dataset or DataLoader that yields what the network takes, read once in order, one batch in memory at a time.

An item is a tensor, a tuple that begins with one, or a mapping that holds one. A label and an id in it are compared with the user's table:
a data set in another order than its table would give every patient somebody else's score.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from equipoise.data.faults import BadTransform
from equipoise.data.image_cache import float_rows
from equipoise.data.images import Images
from equipoise.data.transforms import CHECKED, Rows, as_row, check_repeatable
from equipoise.errors import BadInput, EquipoiseError, Misuse, first_line

if TYPE_CHECKING:
    from torch import Tensor

INPUTS = ("image", "img", "x", "input", "inputs", "pixel_values", "data", "features")  # keys of an item, tried in this order
LABELS = ("label", "labels", "y", "target", "targets", "lab")
IDS = ("id", "ids", "image_id", "name", "path", "file", "filename", "key")
log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Item:
    """One row: what the network takes, and the label and id that came with it."""

    row: Rows = field(repr=False)
    label: Any = None
    id: str | None = None


@dataclass(frozen=True, eq=False)
class Loaded:
    """The rows of a data set, with the labels and ids that came with them (None where there were none)."""

    source: Tensor | Images
    labels: list[Any] | None
    ids: list[str] | None


def load_rows(
    dataset: object, count: int | None, *, cache: str | Path | None = None, progress: Callable[[int], None] | None = None
) -> Loaded:
    """The rows of a data set or loader, in its order; `count` is how many there must be, by default as many as it has.

    They stay in memory up to 256 MiB; beyond that, and wherever a folder is named as `cache`, they lie in a file in it that is removed when
    they are no longer used.
    """
    import torch

    inner = _checked(dataset)
    total = count if count is not None else _length(inner)
    if _has_positions(inner):
        positions = range(min(CHECKED, len(inner)))
        check_repeatable(lambda at: _item(_at(inner, at), at).row, positions, "the data set")
    store: Any = None
    labels, ids, read = [], [], 0
    for read, item in enumerate(_items(dataset, inner), 1):
        if store is None:
            store = float_rows((total, *item.row.shape), cache)
        if read > total:
            raise BadInput(
                f"the data set yields more rows than the {total:,} of the table. Give the table of the same rows, in the same order."
            )
        if item.row.shape != store.shape[1:]:
            raise BadTransform(f"row {read} of the data set has shape {item.row.shape} and the first {store.shape[1:]}. Return one shape.")
        store[read - 1] = item.row
        labels.append(item.label)
        ids.append(item.id)
        if progress is not None:
            progress(1)
    if read != total:
        raise BadInput(
            f"the data set yields {read:,} rows and the table has {total:,}. Give the table of the same rows, in the same order."
        )
    if store is None:
        raise BadInput("the data set has no rows")
    source = Images(store, ready=True) if isinstance(store, np.memmap) else torch.from_numpy(store)
    whole_ids = None if any(one is None for one in ids) else [str(one) for one in ids]
    return Loaded(source, None if any(one is None for one in labels) else labels, whole_ids)


def _checked(dataset: object) -> Any:
    """The data set itself, or that of a loader; an error where rows would come in random order or incomplete."""
    from torch.utils.data import DataLoader, SequentialSampler

    if isinstance(dataset, DataLoader):
        if getattr(dataset, "drop_last", False):
            raise BadInput("the DataLoader drops its last batch (drop_last=True), and with it patients. Make it with drop_last=False.")
        sampler = getattr(dataset.batch_sampler, "sampler", dataset.sampler) if dataset.batch_sampler is not None else dataset.sampler
        ordered = isinstance(sampler, SequentialSampler) or type(sampler).__name__ == "_InfiniteConstantSampler"  # that of a stream
        if not ordered:
            raise BadInput(
                f"the DataLoader takes rows in another order ({type(sampler).__name__}), and rows are matched to the table by their order. "
                "Make it with shuffle=False and without a sampler, or give its data set."
            )
        return dataset.dataset
    if not hasattr(dataset, "__getitem__") and not hasattr(dataset, "__iter__"):
        raise Misuse("Cohort.from_dataset", "a PyTorch Dataset or DataLoader", dataset)
    return dataset


def _has_positions(dataset: Any) -> bool:
    return hasattr(type(dataset), "__getitem__") and hasattr(type(dataset), "__len__")


def _length(inner: Any) -> int:
    if not hasattr(type(inner), "__len__"):
        raise BadInput("a data set without a length needs a table of the same rows: frame=, or y and groups.")
    return len(inner)


def _items(dataset: Any, inner: Any) -> Iterator[Item]:
    """The rows in order; those of a loader from its batches."""
    if dataset is not inner and dataset.batch_size is None and dataset.batch_sampler is None:  # a loader that does not batch
        given: Iterator[Any] = iter(dataset)
    elif dataset is not inner:
        yield from _of_batches(dataset)
        return
    elif _has_positions(dataset):
        given = (_at(dataset, at) for at in range(len(dataset)))
    else:
        given = iter(dataset)
    for at, item in enumerate(given):
        yield _item(item, at)


def _at(dataset: Any, at: int) -> Any:
    try:
        return dataset[at]
    except EquipoiseError:
        raise
    except Exception as error:  # the user's code may raise anything
        reason = first_line(error)
        raise BadInput(
            f"the data set raised {type(error).__name__} for row {at + 1}: {reason}. Correct it, or leave the row out."
        ) from error


def _of_batches(loader: Any) -> Iterator[Item]:
    start = 0
    for batch in loader:
        inputs, label, names = _parts(batch, start)
        if not hasattr(inputs, "shape") or len(inputs.shape) < 1:
            raise BadTransform(f"the DataLoader yields {type(inputs).__name__} where a tensor of rows is expected")
        rows = len(inputs)
        for k in range(rows):
            one = label[k] if label is not None and hasattr(label, "__len__") and len(label) == rows else None
            own = names[k] if names is not None and not isinstance(names, str) and len(names) == rows else None
            yield Item(as_row(inputs[k], "the data set", f" in row {start + k + 1}"), _plain(one), None if own is None else str(own))
        start += rows


def _item(item: object, at: int) -> Item:
    inputs, label, name = _parts(item, at)
    return Item(as_row(inputs, "the data set", f" in row {at + 1}"), _plain(label), None if name is None else str(name))


def _parts(item: Any, at: int) -> tuple[Any, Any, Any]:
    """Inputs, label and id of an item or batch."""
    if hasattr(item, "shape"):
        return item, None, None
    if isinstance(item, Mapping):
        found = next((item[key] for key in INPUTS if key in item and hasattr(item[key], "shape")), None)
        if found is None:
            raise BadTransform(
                f"row {at + 1} of the data set is a mapping with {', '.join(map(str, item))}, none of which is known as the input "
                f"({', '.join(INPUTS)}). Return a tensor, or (tensor, label)."
            )
        label, name = (next((item[key] for key in keys if key in item), None) for keys in (LABELS, IDS))
        return found, label, name
    if isinstance(item, Sequence) and not isinstance(item, (str, bytes)) and len(item):
        rest = list(item[1:])
        names = [part for part in rest if isinstance(part, str) or (_listed(part) and part and all(isinstance(p, str) for p in part))]
        numbers = [part for part in rest if part is not None and all(part is not name for name in names)]
        return item[0], numbers[0] if numbers else None, names[0] if names else None
    raise BadTransform(f"row {at + 1} of the data set is of type {type(item).__name__}. Return a tensor, (tensor, label) or a mapping.")


def _listed(part: object) -> bool:
    return isinstance(part, (list, tuple))


def _plain(label: Any) -> Any:
    """A label as a number or an array of numbers; None where it is neither."""
    if label is None:
        return None
    if hasattr(label, "detach"):
        label = label.detach().cpu().numpy()
    found = np.asarray(label)
    if found.dtype.kind not in "biuf":
        return None
    return found.item() if found.size == 1 else found


def check_order(loaded: Loaded, ids: Sequence[object] | None, y: Any) -> None:
    """Raises where the ids of a data set, or else its labels, are not those of the table, row by row; warns where it has neither."""
    if loaded.ids is not None and ids is not None:
        wrong = [at for at, (own, told) in enumerate(zip(loaded.ids, ids, strict=True)) if not _same_id(own, str(told))]
        if wrong:
            at = wrong[0]
            raise BadInput(
                f"{len(wrong):,} of {len(loaded.ids):,} rows have another id in the data set than in the table; the first is row {at + 1}: "
                f"{loaded.ids[at]!r} and {str(ids[at])!r}. Bring the table into the order of the data set."
            )
        return
    if loaded.labels is not None:
        told = np.asarray(y, dtype=np.float64)
        own = np.asarray(loaded.labels, dtype=np.float64)
        if own.shape == told.shape:
            known = np.isfinite(own) & np.isfinite(told) & (told >= 0) & (own >= 0)
            wrong_rows = np.flatnonzero(((own != told) & known).reshape(len(own), -1).any(1))
            if len(wrong_rows):
                raise BadInput(
                    f"{len(wrong_rows):,} of {len(own):,} rows have another label in the data set than in the table; the first is row "
                    f"{wrong_rows[0] + 1}. Bring the table into the order of the data set, or correct the labels."
                )
            return
    log.warning("the data set gives neither ids nor labels that the table has, so it is not known whether both have the same order")


def _same_id(own: str, told: str) -> bool:
    """Whether an id of a data set is that of the table; of a path, its file name is enough."""
    return own == told or Path(own).name == told or Path(told).name == own
