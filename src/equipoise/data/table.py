"""Tables as network inputs: levels and scales are learned from the training set only and applied to every set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

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
    """How raw columns become numbers: z-scores for numbers, one column per level for categories.

    >>> encoder = Encoder.fit(pd.DataFrame({"age": [30, 50], "ward": ["a", "b"]}))
    >>> encoder.columns
    ('age', 'ward=a', 'ward=b')
    >>> encoder.transform(pd.DataFrame({"age": [40], "ward": ["c"]})).tolist()
    [[0.0, 0.0, 0.0]]
    """

    numeric: Mapping[str, tuple[float, float]]  # column: mean, scale
    levels: Mapping[str, tuple[str, ...]]  # column: the levels in the training set
    order: tuple[str, ...]  # the raw columns in their order

    @classmethod
    def fit(cls, frame: pd.DataFrame, *, scale: bool = True) -> Encoder:
        """The encoder of these rows. `scale=False` passes numbers through as they are."""
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
                found = _as_levels(column)
                distinct = sorted(found.unique())
                if len(distinct) > 50 and len(distinct) > 0.5 * len(column):
                    problems.append(
                        f"column {name!r} holds {len(distinct):,} different texts in {len(column):,} rows, like an identifier; "
                        "leave it out with features=[...]"
                    )
                    continue
                levels[name] = tuple(distinct)
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
        """The same in double precision, without torch."""
        lacking = [name for name in self.order if name not in frame.columns]
        raise_all([f"no column {name!r}, which the training set had. Add it first." for name in lacking])
        blocks: list[npt.NDArray[np.float64]] = []
        at, scaled = self._scaled(frame)
        for name in self.order:
            if name in at:
                blocks.append(scaled[:, at[name], None])
            elif name in self.numeric:
                mean, spread = self.numeric[name]
                try:
                    values = frame[name].to_numpy(dtype=float, na_value=np.nan)
                except (TypeError, ValueError):
                    raise BadInput(
                        f"column {name!r} was a number in the training set and holds text here. Correct those rows first."
                    ) from None
                if np.isinf(values).any():
                    raise BadInput(
                        f"column {name!r}: {int(np.isinf(values).sum()):,} of {len(values):,} rows are infinite. Correct them first."
                    )
                blocks.append(np.nan_to_num((values - mean) / spread, nan=0.0)[:, None])
            else:
                codes = pd.Index(self.levels[name]).get_indexer(_as_levels(frame[name]))
                blocks.append((codes[:, None] == np.arange(len(self.levels[name]))).astype(float))
        return np.concatenate(blocks, axis=1) if blocks else np.empty((len(frame), 0))

    def _scaled(self, frame: pd.DataFrame) -> tuple[dict[str, int], npt.NDArray[np.float64]]:
        """The z-scores of columns that are finite numbers already, and their places: at once, since hundreds cost much one by one."""
        plain = {str(name) for name, kind in frame.dtypes.items() if isinstance(kind, np.dtype) and kind.kind in "fiub"}
        names = [name for name in self.numeric if name in plain]
        values = frame[names].to_numpy(dtype=np.float64)
        if len(names) != values.shape[1] or np.isinf(values).any():  # a column twice, or one to report
            return {}, values[:, :0]
        mean, spread = np.array([self.numeric[name] for name in names]).reshape(-1, 2).T
        return {name: at for at, name in enumerate(names)}, np.nan_to_num((values - mean) / spread, nan=0.0)

    def unseen(self, frame: pd.DataFrame) -> dict[str, dict[str, int]]:
        """Levels that the training set did not have, with how many of these rows hold them."""
        found: dict[str, dict[str, int]] = {}
        for name, known in self.levels.items():
            counts = _as_levels(frame[name]).value_counts()
            new = {str(level): int(n) for level, n in counts.items() if level not in known}
            if new:
                found[name] = new
        return found


@dataclass(frozen=True, eq=False)
class Table:
    """Raw feature columns that wait for an encoder, or have one."""

    frame: pd.DataFrame
    encoder: Encoder | None = None
    scale: bool = True
    _made: dict[str, Tensor] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return len(self.frame)

    def __repr__(self) -> str:
        return f"Table({len(self):,} rows, {self.frame.shape[1]} columns)"

    def tensor(self) -> Tensor:
        """The encoded rows; without an encoder yet, one fitted on these rows themselves."""
        if "x" not in self._made:
            self._made["x"] = self.fitted().transform(self.frame)
        return self._made["x"]

    def fitted(self) -> Encoder:
        """The encoder in use."""
        return self.encoder or Encoder.fit(self.frame, scale=self.scale)

    def take(self, index: IntArray) -> Table:
        """Some of the rows."""
        return Table(self.frame.iloc[index].reset_index(drop=True), self.encoder, self.scale)

    def encoded_by(self, encoder: Encoder) -> Table:
        """The same rows seen through another set's encoder."""
        return Table(self.frame, encoder, self.scale)


def _as_levels(column: pd.Series[object]) -> pd.Series[str]:
    return column.astype("object").where(column.notna(), MISSING_LEVEL).map(str)
