"""Network inputs: tables, whose levels and scales are learned from the training set only, and tensors. Images are in `images`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, Self, cast

import numpy as np
import numpy.typing as npt
import pandas as pd

from equipoise.data.attribute import IntArray
from equipoise.errors import BadInput, raise_all

if TYPE_CHECKING:
    from torch import Tensor

MISSING_LEVEL = "(missing)"


@dataclass(frozen=True, eq=False)
class Encoder:
    """Encodes raw columns as numbers: z-scores for numbers, one column per level (one-hot) for categories.

    >>> encoder = Encoder.fit(pd.DataFrame({"age": [30, 50], "ward": ["a", "b"]}))
    >>> encoder.columns
    ('age', 'ward=a', 'ward=b')
    >>> encoder.transform(pd.DataFrame({"age": [40], "ward": ["c"]})).tolist()
    [[0.0, 0.0, 0.0]]
    """

    numeric: Mapping[str, tuple[float, float]]  # column: mean, scale
    levels: Mapping[str, tuple[str, ...]]  # column: the levels in the training set
    order: tuple[str, ...]  # the raw columns

    @classmethod
    def fit(cls, frame: pd.DataFrame, *, scale: bool = True) -> Encoder:
        """The encoder fitted to the rows of a `frame`. `scale=False` leaves numbers unchanged."""
        numeric: dict[str, tuple[float, float]] = {}
        levels: dict[str, tuple[str, ...]] = {}
        problems = []
        for name, column in frame.items():
            name = str(name)
            if pd.api.types.is_bool_dtype(column) or pd.api.types.is_numeric_dtype(column):
                values = column.to_numpy(dtype=float, na_value=np.nan)
                if np.isnan(values).all() or np.isinf(values).any():
                    problems.append(f"column {name!r} holds infinite values or none at all; leave it out or correct it")
                    continue
                mean, spread = float(np.nanmean(values)), float(np.nanstd(values))
                numeric[name] = (mean, spread or 1.0) if scale else (0.0, 1.0)
            elif pd.api.types.is_datetime64_any_dtype(column):
                problems.append(f"column {name!r} holds dates; turn it into a number (an age, a duration) or leave it out")
            else:
                levels[name] = tuple(sorted(_as_levels(column).unique()))
                if len(levels[name]) > 50 and len(levels[name]) > 0.5 * len(column):
                    problems.append(
                        f"column {name!r} holds {len(levels[name]):,} different texts in {len(column):,} rows, like an identifier; "
                        "leave it out with features=[...]"
                    )
        raise_all(problems)
        return cls(numeric, levels, tuple(str(c) for c in frame.columns))

    def __repr__(self) -> str:
        return f"Encoder({len(self.numeric)} columns of numbers, {len(self.levels)} of categories)"

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The names of the encoded columns."""
        names: list[str] = []
        for name in self.order:
            names += [name] if name in self.numeric else [f"{name}={level}" for level in self.levels[name]]
        return tuple(names)

    def transform(self, frame: pd.DataFrame) -> Tensor:
        """The encoded rows (n, columns), float32. A level never seen is all zeros; a missing number is the mean of the training set."""
        import torch

        return torch.from_numpy(self.numbers(frame).astype(np.float32))

    def numbers(self, frame: pd.DataFrame) -> npt.NDArray[np.float64]:
        """The encoded rows in double precision, without torch."""
        lacking = [name for name in self.order if name not in frame.columns]
        raise_all([f"no column {name!r}, which the training set had. Add it first." for name in lacking])
        names = list(self.numeric)
        try:  # all at once: one by one, hundreds of columns are slow
            values = frame[names].to_numpy(dtype=np.float64, na_value=np.nan)
        except (TypeError, ValueError):
            text = [name for name in names if not pd.api.types.is_numeric_dtype(frame[name])]
            raise_all([f"column {name!r} was a number in the training set and holds text here. Correct those rows first." for name in text])
            raise
        infinite = dict(zip(names, np.isinf(values).sum(0), strict=True))
        raise_all([f"column {name!r}: {n:,} of {len(frame):,} rows are infinite. Correct them first." for name, n in infinite.items() if n])
        mean, spread = np.array([self.numeric[name] for name in names]).reshape(-1, 2).T
        scaled = dict(zip(names, np.nan_to_num((values - mean) / spread, nan=0.0).T, strict=True))
        blocks: list[npt.NDArray[np.float64]] = []
        for name in self.order:
            if name in scaled:
                blocks.append(scaled[name][:, None])
            else:
                codes = pd.Index(self.levels[name]).get_indexer(_as_levels(frame[name]))
                blocks.append((codes[:, None] == np.arange(len(self.levels[name]))).astype(float))
        return np.concatenate(blocks, axis=1) if blocks else np.empty((len(frame), 0))

    def unseen(self, frame: pd.DataFrame) -> dict[str, dict[str, int]]:
        """Levels that the training set did not have, by column, each with the number of these rows that hold it."""
        unseen: dict[str, dict[str, int]] = {}
        for name, known_levels in self.levels.items():
            counts = _as_levels(frame[name]).value_counts()
            if new := {str(level): int(n) for level, n in counts.items() if level not in known_levels}:
                unseen[name] = new
        return unseen


class Inputs(Protocol):
    """The rows of a cohort before a network reads them: a `FeatureTable`, `Tensors` or `Images`."""

    def plain(self) -> Iterator[Any]:
        """The rows as an estimator takes them, as frames or tensors (n, ...) that are not too large."""
        return iter([self.tensor()])

    def features(self, columns: Sequence[str] | None = None) -> pd.DataFrame:  # noqa: ARG002 (of a table)
        """What a rule on scores may read of these rows; of a table, only these columns if they are given. Images have no such columns."""
        return pd.DataFrame()

    def __len__(self) -> int: ...

    def described(self) -> str:
        """The kind of the inputs, and their columns or the shape of a row."""

    def tensor(self) -> Any:
        """The network inputs (n, ...): a tensor, or images, which behave like one."""

    def take(self, index: IntArray) -> Self:
        """The selected rows."""

    def gray(self, index: object) -> Tensor:
        """Rows of images as gray pictures (b, height, width)."""
        return cast("Tensor", self.tensor()[index].float().mean(1))

    def fitted(self, *, again: bool = False) -> Encoder | None:  # noqa: ARG002 (of a table)
        """The encoder in use; None for inputs that are not a table. `again` fits one to these rows even if there is one."""
        return None

    def encoded_by(self, encoder: Encoder) -> Self:  # noqa: ARG002 (of a table)
        """These rows with the encoder of another set."""
        raise BadInput(f"only a table can be encoded, not a tensor or images; got {self.described()}")

    def stored(self) -> tuple[str, Any, IntArray | None]:
        """The kind of the stored rows, the rows as a frame or as arrays (m, ...), and the position of each row in these arrays."""

    def to_dict(self) -> dict[str, object] | None:
        """The preprocessing of images as plain values; None if it is unknown, or for other inputs."""
        return None


@dataclass(frozen=True, eq=False)
class Tensors(Inputs):
    """Network inputs in one tensor (n, ...)."""

    values: Tensor

    def __len__(self) -> int:
        return len(self.values)

    def described(self) -> str:
        """The shape of a row."""
        return f"inputs: {tuple(self.values.shape[1:])}"

    def tensor(self) -> Tensor:
        """The tensor itself."""
        return self.values

    def features(self, columns: Sequence[str] | None = None) -> pd.DataFrame:  # noqa: ARG002 (they have no names)
        """The values, if they are columns."""
        values = self.values.detach().cpu().numpy()
        return feature_columns(values) if values.ndim == 2 else pd.DataFrame()

    def stored(self) -> tuple[str, Any, IntArray | None]:
        """The values, as a frame if they are columns."""
        values = self.values.detach().cpu().numpy()
        if values.ndim <= 2:
            return "inputs", pd.DataFrame(values), None
        return f"inputs {values.shape[1:]}", values, np.arange(len(values))

    def take(self, index: IntArray) -> Tensors:
        """The selected rows."""
        return Tensors(self.values[index])


@dataclass(frozen=True, eq=False)
class FeatureTable(Inputs):
    """Raw feature columns, with the encoder that turns them into inputs once there is one."""

    frame: pd.DataFrame
    encoder: Encoder | None = None
    scale: bool = True

    def __len__(self) -> int:
        return len(self.frame)

    def __repr__(self) -> str:
        return f"FeatureTable({len(self):,} rows, {self.frame.shape[1]} columns)"

    def plain(self) -> Iterator[pd.DataFrame]:
        """The raw columns."""
        return iter([self.frame])

    def features(self, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """The raw columns, or those of them that are named."""
        return self.frame if columns is None else self.frame[[name for name in self.frame.columns if str(name) in columns]]

    def stored(self) -> tuple[str, Any, None]:
        """The raw columns."""
        return "table", self.frame, None

    def described(self) -> str:
        """The number of columns."""
        return f"columns: {self.frame.shape[1]:,}"

    @cached_property
    def _encoded(self) -> Tensor:
        return self.fitted().transform(self.frame)

    def tensor(self) -> Tensor:
        """The encoded rows (n, columns)."""
        return self._encoded

    def fitted(self, *, again: bool = False) -> Encoder:
        """The encoder in use; without one, or `again`, an encoder fitted to these rows."""
        return Encoder.fit(self.frame, scale=self.scale) if again or self.encoder is None else self.encoder

    def take(self, index: IntArray) -> FeatureTable:
        """The selected rows."""
        return replace(self, frame=self.frame.iloc[index].reset_index(drop=True))

    def encoded_by(self, encoder: Encoder) -> FeatureTable:
        """These rows with the encoder of another set."""
        return replace(self, encoder=encoder)


def feature_columns(values: npt.NDArray[Any]) -> pd.DataFrame:
    """The columns of an array (n, d), which are numbered."""
    return pd.DataFrame(values.astype(np.float64), columns=[f"feature {k + 1}" for k in range(values.shape[1])])


def _as_levels(column: pd.Series[object]) -> pd.Series[str]:
    return column.astype("object").where(column.notna(), MISSING_LEVEL).map(str)
