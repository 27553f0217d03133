"""Coded rows of more patients than are convenient to hold, kept by patient: in memory up to `HELD` rows, in a temporary folder beyond.

The files of that folder each hold all rows of their patients, so that every sum over patients is a sum over those files and memory does not
grow with the rows.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import numpy.typing as npt
import pandas as pd

from equipoise.data.attribute import Attribute, FloatArray, ObjectArray, settled_codes
from equipoise.data.scores import Scores
from equipoise.data.targets import UNKNOWN

# Rows of one label that stay in memory, at about 40 bytes each. 10 million took 39 s and 2.1 GB as one table, and 19 s and 0.8 GB in parts.
HELD = 2**22
FILES = 128  # that the others are written to; each must fit in memory, so a billion rows are 8 million at a time

HashArray = npt.NDArray[np.uint64]


@dataclass(frozen=True, eq=False)
class Stored:
    """Coded rows of a table in which one label is known. `parts` are Scores with the same groups, each with all rows of its patients."""

    rows: int
    name: str
    attributes: tuple[Attribute, ...]  # without codes
    _parts: "Sequence[Part]" = field(repr=False)
    _at: int = 0  # which of the labels that are stored together
    _labels: int = 1

    @property
    def whole(self) -> bool:
        """Whether all rows are one part, in memory."""
        return len(self._parts) == 1 and self._parts[0].file is None

    @property
    def count(self) -> int:
        """How many parts there are."""
        return len(self._parts)

    def parts(self) -> Iterator[Scores]:
        """The scores, patient by patient; one at a time is in memory."""
        for part in self._parts:
            yield self._scores(part.read())

    def parts_of_all(self) -> Iterator[list[Scores]]:
        """The scores of each label that is stored together with this one, on the rows in which all labels are known."""
        for part in self._parts:
            coded = part.read()
            known = coded.taken((coded.y != UNKNOWN).all(1))
            yield [replace(self, _at=k)._scores(known) for k in range(self._labels)]

    def _scores(self, coded: "Coded") -> Scores:
        """The rows in the order of their patients, whose codes replace their ids: sums by patient then run through memory in order."""
        if self._labels > 1:
            coded = coded.taken(coded.y[:, self._at] != UNKNOWN)
        y, score = np.ascontiguousarray(coded.y[:, self._at]), np.ascontiguousarray(coded.score[:, self._at])
        codes, weight, patients = coded.codes, coded.weight, None
        if coded.patient is not None:
            order = np.argsort(coded.patient)
            ordered = coded.patient[order]
            patients = np.cumsum(np.concatenate([np.zeros(min(len(ordered), 1), bool), ordered[1:] != ordered[:-1]]))
            y, score, codes = y[order], score[order], tuple(each[order] for each in codes)
            weight = None if weight is None else weight[order]
        held = tuple(replace(a, codes=each.astype(np.int64)) for a, each in zip(self.attributes, codes, strict=True))
        # Codes and row numbers stay numbers: as objects they would take 40 bytes each.
        ids = cast(ObjectArray, np.arange(len(coded)))
        return Scores(y.astype(np.int64), score, held, cast("ObjectArray | None", patients), ids, self.name, weight)


@dataclass(frozen=True, eq=False)
class Coded:
    """Coded rows; the codes of groups are those of the order in which the groups were seen until a `Part` settles them."""

    y: npt.NDArray[np.int8]  # (n, labels): 0, 1, or -1 where it is not known
    score: FloatArray  # (n, labels)
    codes: tuple[npt.NDArray[np.int32], ...]
    patient: HashArray | None
    weight: FloatArray | None

    def __len__(self) -> int:
        return len(self.y)

    def taken(self, rows: npt.NDArray[Any]) -> "Coded":
        """Some of the rows, by their numbers or as marked."""
        if rows.dtype == bool and rows.all():
            return self
        patient = None if self.patient is None else self.patient[rows]
        weight = None if self.weight is None else self.weight[rows]
        return Coded(self.y[rows], self.score[rows], tuple(each[rows] for each in self.codes), patient, weight)


@dataclass(frozen=True, eq=False)
class Part:
    """Rows of some patients: in memory, or in a file."""

    held: Coded | None
    file: Path | None
    dtype: np.dtype[np.void] | None
    maps: tuple[npt.NDArray[np.int32], ...]  # from codes as they were seen to those of the levels
    rule: str  # of CONFLICTS
    kept: tuple[npt.NDArray[np.int32], ...] = ()  # from those to the levels that have rows once the rule was applied

    def read(self) -> Coded:
        """The rows, with the codes of the levels."""
        coded = self.held or _from_records(np.fromfile(cast(Path, self.file), cast("np.dtype[np.void]", self.dtype)))
        codes = tuple(own[each] for own, each in zip(self.maps, coded.codes, strict=True))
        if self.rule in ("row", "error"):
            return replace(coded, codes=codes)
        units = pd.factorize(coded.patient)[0]
        settled = [settled_codes(each.astype(np.int64), units, self.rule) for each in codes]
        return replace(coded, codes=tuple(own[each] for own, each in zip(self.kept, settled, strict=True)))


class Storage:
    """Where coded rows go as they come in: into memory up to `HELD`, then into files by patient."""

    def __init__(self, folder: Path, labels: int) -> None:
        self.folder = folder
        self.most = HELD // max(1, (3 + labels) // 4)  # of one label 40 bytes per row, of each further one 9 more
        self.held: list[Coded] = []
        self.files: list[BinaryIO] = []
        self.rows = 0

    def add(self, coded: Coded) -> None:
        """Adds rows."""
        self.rows += len(coded)
        self.held.append(coded)
        if self.files or self.rows > self.most:
            self._write()

    def _write(self) -> None:
        """Appends the rows in memory to files, those of one patient to the same one."""
        if not self.files:
            self.files = [(self.folder / f"{k}.rows").open("wb") for k in range(FILES)]
        for coded in self.held:
            start = self.rows - sum(map(len, self.held))
            numbers = np.arange(start, start + len(coded), dtype=np.uint64)
            place = (mixed(numbers if coded.patient is None else coded.patient) % np.uint64(FILES)).astype(np.uint8)
            order = np.argsort(place, kind="stable")
            records = _records(coded)[order]
            ends = np.cumsum(np.bincount(place, minlength=FILES))
            for file, begin, end in zip(self.files, [0, *ends[:-1]], ends, strict=True):
                file.write(records[begin:end].tobytes())
        self.dtype = records.dtype
        self.held = []

    def close(self) -> None:
        """Closes the files."""
        for file in self.files:
            file.close()

    def parts(self, maps: tuple[npt.NDArray[np.int32], ...], rule: str) -> list[Part]:
        """All rows, in one part or in those of the files. Memory no longer holds them."""
        if self.files:
            paths = [self.folder / f"{k}.rows" for k in range(FILES)]
            return [Part(None, path, self.dtype, maps, rule) for path in paths if path.stat().st_size]
        held, self.held = _joined(self.held), []
        return [Part(held, None, None, maps, rule)]


def mixed(numbers: HashArray) -> HashArray:
    """The numbers scattered over 64 bits, equal ones alike (the finaliser of splitmix64)."""
    x = numbers + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _records(coded: Coded) -> npt.NDArray[np.void]:
    columns: dict[str, npt.NDArray[Any]] = {"score": coded.score, "y": coded.y}
    columns |= {f"code{k}": each for k, each in enumerate(coded.codes)}
    columns |= {name: each for name, each in (("patient", coded.patient), ("weight", coded.weight)) if each is not None}
    records = np.empty(len(coded), np.dtype([(name, each.dtype, each.shape[1:]) for name, each in columns.items()]))
    for name, each in columns.items():
        records[name] = each
    return records


def _from_records(records: npt.NDArray[np.void]) -> Coded:
    held = {name: np.ascontiguousarray(records[name]) for name in cast(tuple[str, ...], records.dtype.names)}
    codes = tuple(held[name] for name in held if name.startswith("code"))
    return Coded(held["y"], held["score"], codes, held.get("patient"), held.get("weight"))


def _joined(parts: list[Coded]) -> Coded:
    """All rows in one; a column at a time, so that few are held twice."""
    first = parts[0]
    return Coded(
        np.concatenate([p.y for p in parts]),
        np.concatenate([p.score for p in parts]),
        tuple(np.concatenate([p.codes[k] for p in parts]) for k in range(len(first.codes))),
        None if first.patient is None else np.concatenate([cast(HashArray, p.patient) for p in parts]),
        None if first.weight is None else np.concatenate([cast(FloatArray, p.weight) for p in parts]),
    )
