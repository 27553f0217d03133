"""Tables of any size: read in batches, and their coded rows kept by patient.

A table is a CSV or Parquet file, a folder of them, or a data set partitioned by folders such as sex=F. Only the named columns are read, and
one batch at a time is in memory. The columns mean the same as in `read_table`.

Coded rows stay in memory up to `HELD` rows; more are kept in a temporary folder whose files each hold all rows of their patients, so that
every sum over patients is a sum over those files and memory does not grow with the rows.
"""

import gzip
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt
import pandas as pd

from equipoise.data.attribute import Attribute, FloatArray, ObjectArray, settled_codes
from equipoise.data.columns import absent
from equipoise.data.files import no_such_file
from equipoise.data.scores import Scores
from equipoise.data.table_files import arrow_values, check_no_workbook, csv_format, encoding_of, is_parquet
from equipoise.data.targets import UNKNOWN
from equipoise.errors import BadInput, first_line, raise_all

if TYPE_CHECKING:
    import pyarrow as pa


ROWS = 2**19  # of a batch
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"  # what partitioned data sets write where a row has no value
TABLES = (".parquet", ".pq", ".csv", ".tsv", ".csv.gz", ".tsv.gz")  # files of a folder that are read


@dataclass(frozen=True, eq=False)
class Batch:
    """Some rows of a table: columns of names (as Arrow has them) and of numbers."""

    where: str  # the file and the rows, for messages
    rows: int
    texts: "dict[str, pa.Array[Any]]"
    values: "dict[str, pd.Series[Any]]"


def read_batches(path: str | Path, *, text: Sequence[str], values: Sequence[str], words: Sequence[str] = ()) -> Iterator[Batch]:
    """The rows of a table in batches, with the columns `text` as names and the columns `values` as numbers, if they can be.

    The columns in `words` are values of which the positive one is named: they are read as text in which NA and the like are missing.
    """
    path = Path(path)
    wanted = list(dict.fromkeys([*text, *values]))
    for file, told in _files(path):
        where = str(file.relative_to(path)) if path.is_dir() else file.name
        try:
            yield from _of_parquet(file, where, told, wanted, text) if is_parquet(file) else _of_csv(file, where, told, wanted, text, words)
        except BadInput:
            raise
        except Exception as error:  # a damaged file makes the libraries that parse it raise almost anything
            reason = first_line(error)
            raise BadInput(f"{where} cannot be read as CSV or Parquet: {reason}. Correct it or export it again.") from error


def _files(path: Path) -> list[tuple[Path, dict[str, str | None]]]:
    """The files of a table in order, each with the values that the names of its folders hold."""
    if path.is_file():
        return [(path, {})]
    if not path.is_dir():
        raise no_such_file(path)
    found = []
    for file in sorted(p for p in path.rglob("*") if p.is_file() and p.name.lower().endswith(TABLES)):
        inside = file.relative_to(path).parts
        if any(part.startswith(("_", ".")) for part in inside):  # what writers of data sets leave next to the data
            continue
        pairs = [part.partition("=") for part in inside[:-1] if "=" in part]
        found.append((file, {unquote(key): None if value == NO_VALUE else unquote(value) for key, _, value in pairs}))
    if not found:
        raise BadInput(f"{path} is a folder without a table; expected files that end in {', '.join(TABLES)}")
    return found


def _of_parquet(file: Path, where: str, told: dict[str, str | None], wanted: Sequence[str], text: Sequence[str]) -> Iterator[Batch]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pq.ParquetFile(file) as opened:
        names = opened.schema_arrow.names
        raise_all([absent(name, names) for name in wanted if name not in told and name not in names], where)
        stored = [name for name in wanted if name in names]
        start = 0
        for part in opened.iter_batches(batch_size=ROWS, columns=stored, use_threads=False):
            rows = len(part)
            if not rows:
                continue
            held = {name: part.column(name) for name in stored}
            held |= {name: pa.array([told[name]] * rows, pa.string()) for name in wanted if name not in held}
            yield Batch(
                _rows(where, start, rows),
                rows,
                {name: held[name] for name in text},
                {name: arrow_values(held[name]) for name in wanted if name not in text},
            )
            start += rows


def _of_csv(
    file: Path, where: str, told: dict[str, str | None], wanted: Sequence[str], text: Sequence[str], words: Sequence[str]
) -> Iterator[Batch]:
    import pyarrow as pa

    with _unzipped(file) as stream:
        check_no_workbook(stream.read(8), file)
    with _unzipped(file) as stream:
        encoding = encoding_of(stream)
    if encoding is None:  # a whole file may be Windows text; one that is read in batches may not
        raise BadInput(f"{where} is not UTF-8, as a CSV file that is read in batches must be. Export it as UTF-8 or as Parquet.")
    written = csv_format(_unzipped(file), encoding, file)
    names = [name for name in written.names if name]
    raise_all([absent(name, names) for name in wanted if name not in told and name not in names], where)
    stored = [called for called, name in zip(written.called, written.names, strict=True) if name in wanted]
    start = 0
    with _unzipped(file) as stream:
        parts = pd.read_csv(stream, low_memory=False, usecols=stored, chunksize=ROWS, **written.options(text, words))
        for part in cast("Iterator[pd.DataFrame]", parts):
            rows = len(part)
            frame = written.named(part.reset_index(drop=True), {*text, *words})
            for name in (n for n in wanted if n not in frame.columns):
                frame[name] = pd.Series([told[name]] * rows, dtype=object)
            texts = {name: pa.array(frame[name].to_numpy(dtype=object), pa.string(), from_pandas=True) for name in text}
            yield Batch(_rows(where, start, rows), rows, texts, {name: frame[name] for name in wanted if name not in text})
            start += rows


def _unzipped(file: Path) -> BinaryIO:
    with file.open("rb") as stream:
        zipped = stream.read(2) == b"\x1f\x8b"
    return cast(BinaryIO, gzip.open(file, "rb")) if zipped else file.open("rb")


def _rows(where: str, start: int, rows: int) -> str:
    return where if not start else f"{where}, rows {start + 1:,} to {start + rows:,} (the numbers of rows below count from there)"


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
