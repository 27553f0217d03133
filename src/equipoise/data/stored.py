"""Coded rows of a table that is read in batches: kept in memory up to `HELD` rows, otherwise in temporary files by patient.

Each file holds all rows of its patients, so that every sum over patients is a sum over the files, and memory does not grow with the table.
The files have no name (on Windows, they are deleted when they are closed), so that nothing of them is left if the process is killed.
"""

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import IO, Any, cast

import numpy as np
import numpy.typing as npt
import pandas as pd

from equipoise.data.attribute import Attribute, ObjectArray, resolve_codes, row_numbers
from equipoise.data.files import LIMIT_VARIABLE
from equipoise.data.scores import Scores, score_and_logit
from equipoise.data.targets import UNKNOWN
from equipoise.errors import BadInput

# Rows of one label in memory, at about 40 bytes each. 10 million rows took 39 s and 2.1 GB as one table, and 19 s and 0.8 GB in files.
HELD = 2**22
FILES = 128  # each must fit in memory; with a billion rows, a file has 8 million
# Bytes of coded rows per byte of the table on disk. A row is coded in 13 to 40 bytes; even with rounded scores it takes one byte on disk.
EXPANSION = 50

HashArray = npt.NDArray[np.uint64]
# The columns of coded rows: y (n, labels) as 0, 1 or -1, score (n, labels), code0, code1, ... (one per attribute, numbered in the order in
# which the groups occurred) and, if there are any, patient (hashes) and weight.
CodedRows = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True, eq=False)
class Stored:
    """The rows of a table in which one label is known, in parts that each hold all rows of their patients."""

    rows: int
    name: str
    attributes: tuple[Attribute, ...]  # without codes
    _parts: "Sequence[Part]" = field(repr=False)
    _label: int = 0  # the position among the labels that are stored together
    _labels: int = 1
    logits: bool = False  # whether the stored scores are logits

    @property
    def whole(self) -> bool:
        """Whether all rows are one part, in memory."""
        return len(self._parts) == 1 and self._parts[0].file is None

    @property
    def count(self) -> int:
        """The number of parts."""
        return len(self._parts)

    def parts(self) -> Iterator[Scores]:
        """The scores, one part at a time in memory."""
        for part in self._parts:
            yield self._scores(part.read())

    def parts_of_all(self) -> Iterator[list[Scores]]:
        """The scores of all labels that are stored together, for each part, in the rows where every label is known."""
        for part in self._parts:
            rows = part.read()
            complete = _select(rows, (rows["y"] != UNKNOWN).all(1))
            yield [replace(self, _label=k)._scores(complete) for k in range(self._labels)]

    def _scores(self, rows: CodedRows) -> Scores:
        """The scores of one label, sorted by patient, so that sums by patient access memory in order. Codes replace patient ids."""
        rows = rows | {"y": rows["y"][:, self._label], "score": rows["score"][:, self._label]}
        if self._labels > 1:
            rows = _select(rows, rows["y"] != UNKNOWN)
        patients = None
        if "patient" in rows:
            rows = _select(rows, np.argsort(rows["patient"]))
            patients = np.cumsum(np.diff(rows["patient"], prepend=rows["patient"][:1]) != 0)
        attributes = tuple(replace(a, codes=rows[f"code{k}"].astype(np.int64)) for k, a in enumerate(self.attributes))
        # Patients stay integers: as objects they would take 40 bytes each.
        y = rows["y"].astype(np.int64)
        score, logit = score_and_logit(np.ascontiguousarray(rows["score"]), self.logits)
        return Scores(
            y, score, attributes, cast("ObjectArray | None", patients), row_numbers(len(y)), self.name, rows.get("weight"), logit=logit
        )


def _select(rows: CodedRows, index: npt.NDArray[Any]) -> CodedRows:
    """The rows at these positions, or where a mask is True."""
    if index.dtype == bool and index.all():
        return rows
    return {name: column[index] for name, column in rows.items()}


@dataclass(frozen=True, eq=False)
class Part:
    """All rows of some patients: in memory, or in a file."""

    held: CodedRows | None
    file: IO[bytes] | None
    dtype: np.dtype[np.void] | None  # of the records in the file
    level_codes: tuple[npt.NDArray[np.int32], ...]  # of each attribute, from the codes in order of occurrence to those of its levels
    rule: str  # of CONFLICTS
    kept_codes: tuple[npt.NDArray[np.int32], ...] = ()  # from the codes of the levels to those that still have rows under the rule

    def read(self) -> CodedRows:
        """The rows, with the codes of the levels, after the rule was applied."""
        rows = self.held
        if rows is None:
            file = cast("IO[bytes]", self.file)
            file.seek(0)
            records = np.fromfile(file, cast("np.dtype[np.void]", self.dtype))
            rows = {name: np.ascontiguousarray(records[name]) for name in cast(tuple[str, ...], records.dtype.names)}
        codes = [level_codes[rows[f"code{k}"]] for k, level_codes in enumerate(self.level_codes)]
        if self.rule not in ("row", "error"):
            units = pd.factorize(rows["patient"])[0]
            resolved = [resolve_codes(code.astype(np.int64), units, self.rule) for code in codes]
            codes = [kept_codes[code] for kept_codes, code in zip(self.kept_codes, resolved, strict=True)]
        return rows | {f"code{k}": code for k, code in enumerate(codes)}


class Storage:
    """Buffers coded rows in memory up to `HELD` rows, then writes them to files by patient, up to a number of bytes."""

    def __init__(self, labels: int, max_bytes: int, name: str) -> None:
        self.max_bytes, self.name = max_bytes, name
        self.max_held = HELD // max(1, (3 + labels) // 4)  # 40 bytes per row for one label, 9 more for each further label
        self.held: list[CodedRows] = []
        self.files: list[IO[bytes]] = []
        self.written = 0  # bytes
        self.dtype: np.dtype[np.void] | None = None  # of the records in the files
        self.rows = 0

    def add(self, rows: CodedRows) -> None:
        self.rows += len(rows["y"])
        self.held.append(rows)
        if self.files or self.rows > self.max_held:
            self._write()

    def _write(self) -> None:
        """Appends the rows in memory to the files, those of one patient to the same file."""
        if not self.files:
            self.files = [tempfile.TemporaryFile() for _ in range(FILES)]  # noqa: SIM115 (closed by `close`)
        for rows in self.held:
            records = _as_records(rows)
            self.written += records.nbytes
            if self.written > self.max_bytes:
                raise BadInput(
                    f"{self.name} needs more than {self.max_bytes:,} bytes in the temporary folder {tempfile.gettempdir()}, far more than "
                    "its size on disk: its rows are almost all the same. If the table is right, raise the limit: data.max_table_bytes, or "
                    f"the environment variable {LIMIT_VARIABLE}."
                )
            start = self.rows - sum(len(held["y"]) for held in self.held)
            keys = rows.get("patient", np.arange(start, start + len(records), dtype=np.uint64))
            place = (splitmix64(keys) % np.uint64(FILES)).astype(np.uint8)
            by_place = records[np.argsort(place, kind="stable")]
            ends = np.cumsum(np.bincount(place, minlength=FILES))
            for file, begin, end in zip(self.files, [0, *ends[:-1]], ends, strict=True):
                file.write(by_place[begin:end].tobytes())
        self.dtype = records.dtype
        self.held = []

    def close(self) -> None:
        """Closes the files, which deletes them."""
        for file in self.files:
            file.close()

    def parts(self, level_codes: tuple[npt.NDArray[np.int32], ...], rule: str) -> list[Part]:
        """All rows, in one part in memory or in one part per file. The storage releases the rows in memory."""
        if self.files:
            return [Part(None, file, self.dtype, level_codes, rule) for file in self.files if file.tell()]
        rows = {name: np.concatenate([held[name] for held in self.held]) for name in self.held[0]}
        self.held = []
        return [Part(rows, None, None, level_codes, rule)]


def _as_records(rows: CodedRows) -> npt.NDArray[np.void]:
    records = np.empty(len(rows["y"]), np.dtype([(name, column.dtype, column.shape[1:]) for name, column in rows.items()]))
    for name, column in rows.items():
        records[name] = column
    return records


def splitmix64(numbers: HashArray) -> HashArray:
    """The numbers scattered over 64 bits; equal numbers give equal results (the finaliser of splitmix64)."""
    x = numbers + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
