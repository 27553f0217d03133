"""Scans: scores in tables on disk of any size that are audited without loading them as a frame. Each table is read once in batches.

A table is a CSV or Parquet file, a folder of them, or a data set partitioned by folders such as sex=F. Columns are read as in `read_table`,
and only one batch of the named columns is in memory. Each row is validated and stored in a few bytes: labels, scores, a code per attribute
and a 64-bit hash of the patient (among 50 million patients the probability that any two have the same hash is below 1 in 10,000). Up to
`ROWS_HELD` rows stay in memory; more lie in temporary files, each with all rows of its patients, so that every sum over patients is a sum
over the files. The files have no name (on Windows, they are deleted when they are closed), so that nothing of them is left if the process
is killed.
"""

import gzip
import io
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO, cast
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt
import pandas as pd

from equipoise.data import attribute as groups
from equipoise.data import column_values, table_files
from equipoise.data.attribute import Attribute, IntArray, ObjectArray
from equipoise.data.cohort import Scores
from equipoise.data.columns import NOT_IN_BATCHES, Columns
from equipoise.data.splits import HashArray, splitmix64
from equipoise.disk import LIMIT_VARIABLE, MAX_TABLE_BYTES, max_table_bytes, no_such_file
from equipoise.errors import BadInput, EquipoiseError, collecting, needing, raise_all
from equipoise.specification import takes_fields_of

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_ROWS = 2**19  # per batch
FIRST_ROWS = 2**14  # in the first batch of a CSV file, which shows how long its rows are
BATCH_BYTES = 2**26  # of a CSV file per batch; the parser takes several times that in memory
NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"  # a missing value in the folder names of partitioned data sets
ColumnsRead = dict[str, Any]  # names and identifiers as Arrow arrays, other columns as pandas has them
TABLE_SUFFIXES = (".parquet", ".pq", ".csv", ".tsv", ".csv.gz", ".tsv.gz")  # of the files in a folder that are read
# Rows of one label in memory, at about 40 bytes each. 10 million rows took 39 s and 2.1 GB as one table, and 19 s and 0.8 GB in files.
ROWS_HELD = 2**22
PART_FILES = 128  # each must fit in memory; with a billion rows, a file has 8 million
# Bytes of coded rows per byte of the table on disk. A row is coded in 13 to 40 bytes; even with rounded scores it takes one byte on disk.
EXPANSION = 50

# The columns of coded rows: y (n, labels) as 0, 1 or -1, score (n, labels), code0, code1, ... (one per attribute, numbered in the order in
# which the groups occurred) and, if there are any, patient (hashes) and weight.
CodedRows = dict[str, npt.NDArray[Any]]


def read_batches(path: Path, columns: Columns) -> Iterator[tuple[str, int, ColumnsRead]]:
    """The columns of a table that have a role, in batches: the file and rows for messages, the number of rows, and their values."""
    requested, text = list(columns.used), columns.text
    with needing("a table that is read in batches"):
        import_module("pyarrow")
    for file, partition in _table_files(path):
        where = str(file.relative_to(path)) if path.is_dir() else file.name
        required = [name for name in requested if name not in partition]
        start = 0
        try:
            read = _parquet_parts if table_files.is_parquet(file) else _csv_parts
            for count, found in read(file, where, requested, required, columns):
                for name in partition.keys() & {*requested} - found.keys():
                    constant = pd.Series([partition[name]] * count, dtype=object)
                    found[name] = _as_arrow(constant) if name in text else constant
                place = f"{where}, rows {start + 1:,} to {start + count:,} (the numbers of rows below count from there)" if start else where
                yield place, count, found
                start += count
        except EquipoiseError:
            raise
        except Exception as error:
            raise table_files.unreadable(where, error) from error


def _table_files(path: Path) -> list[tuple[Path, dict[str, str | None]]]:
    """The files of a table in order, each with the column values in the names of its folders."""
    if path.is_file():
        return [(path, {})]
    if not path.is_dir():
        raise no_such_file(path)
    files = []
    for file in sorted(p for p in path.rglob("*") if p.is_file() and p.name.lower().endswith(TABLE_SUFFIXES)):
        inside = file.relative_to(path).parts
        if any(part.startswith(("_", ".")) for part in inside):  # metadata and logs of the program that wrote the data set
            continue
        pairs = [part.partition("=") for part in inside[:-1] if "=" in part]
        files.append((file, {unquote(key): None if value == NULL_PARTITION else unquote(value) for key, _, value in pairs}))
    if not files:
        raise BadInput(f"{path} is a folder without a table; expected files that end in {', '.join(TABLE_SUFFIXES)}")
    return files


def _parquet_parts(
    file: Path, where: str, requested: Sequence[str], required: Sequence[str], columns: Columns
) -> Iterator[tuple[int, ColumnsRead]]:
    _, schema = table_files.parquet_header(file)
    raise_all(column_values.missing_columns([name for name in required if name not in schema.names], schema.names), where)
    stored = [name for name in requested if name in schema.names]
    table_files.flat_columns(schema, stored, where)
    for part in table_files.parquet_batches(file, stored, BATCH_ROWS, MAX_TABLE_BYTES):
        if len(part):
            yield len(part), {name: part[name] if name in columns.text else table_files.arrow_values(part[name]) for name in stored}


def _csv_parts(
    file: Path, where: str, requested: Sequence[str], required: Sequence[str], columns: Columns
) -> Iterator[tuple[int, ColumnsRead]]:
    with _open_unzipped(file) as stream, _Metered(stream, where) as metered:
        encoding = table_files.encoding_of(metered, file)
    if encoding is None:  # Windows-1252 is supported only for a file that is read as a whole
        raise BadInput(f"{where} is not UTF-8, as a CSV file that is read in batches must be. Export it as UTF-8 or as Parquet.")
    dialect = table_files.csv_format(_open_unzipped(file), encoding, file)
    names = [name for name in dialect.names if name]
    raise_all(column_values.missing_columns([name for name in required if name not in names], names), where)
    stored = [raw for raw, name in zip(dialect.raw_names, dialect.names, strict=True) if name in requested]
    with _open_unzipped(file) as stream, _Metered(stream, where, MAX_TABLE_BYTES) as metered:
        reader = pd.read_csv(metered, low_memory=False, usecols=stored, iterator=True, **dialect.options(columns.text, columns.words))
        rows = min(BATCH_ROWS, FIRST_ROWS)
        while True:
            metered.used = 0
            try:
                part = reader.get_chunk(rows)
            except StopIteration:
                return
            rows = min(BATCH_ROWS, 4 * rows, max(1, BATCH_BYTES * len(part) // max(1, metered.used)))
            frame = dialect.rename(part.reset_index(drop=True), {*columns.text, *columns.words})
            names = [name for name in requested if name in frame.columns]
            yield len(frame), {name: _as_arrow(frame[name]) if name in columns.text else frame[name] for name in names}


class _Metered(io.RawIOBase):
    """A stream of text that counts the bytes read, and raises `BadInput` if a line, or the rows of one batch, have too many of them."""

    def __init__(self, stream: BinaryIO, where: str, limit: float = math.inf) -> None:
        self.stream, self.where, self.limit = stream, where, limit
        self.used = 0  # bytes since the batch began
        self.line = 0  # bytes since the last line break

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        piece = self.stream.read(len(buffer))
        buffer[: len(piece)] = piece
        end = max(piece.rfind(b"\n"), piece.rfind(b"\r"))
        self.line = self.line + len(piece) if end < 0 else len(piece) - end - 1
        self.used += len(piece)
        if self.line > table_files.HEADER_BYTES:
            raise BadInput(
                f"{self.where} has a line of more than {table_files.HEADER_BYTES:,} bytes. Export it again, with one line per row."
            )
        if self.used > self.limit:
            raise BadInput(f"{self.where} has rows of more than {self.limit:,} bytes. Export it again, with shorter rows.")
        return len(piece)

    def seek(self, offset: int, whence: int = 0, /) -> int:
        self.used = self.line = 0
        return self.stream.seek(offset, whence)


def _open_unzipped(file: Path) -> BinaryIO:
    with file.open("rb") as stream:
        zipped = stream.read(2) == b"\x1f\x8b"
    return cast(BinaryIO, gzip.open(file, "rb")) if zipped else file.open("rb")


def _as_arrow(column: "pd.Series[Any]") -> "pa.Array[Any]":
    import pyarrow as pa

    return pa.array(column.to_numpy(dtype=object), pa.string(), from_pandas=True)


@dataclass(frozen=True, eq=False)
class ScannedRows:
    """The rows of a table in which one label is known, in parts that each hold all rows of their patients."""

    rows: int
    name: str
    attributes: tuple[Attribute, ...]  # without codes
    whole: bool  # all rows are one part, in memory
    _parts: Sequence[Callable[[], CodedRows]] = field(repr=False)
    _label: int = 0  # the position among the labels that are stored together
    _labels: int = 1
    logits: bool = False  # whether the stored scores are logits

    @property
    def count(self) -> int:
        """The number of parts."""
        return len(self._parts)

    def parts(self) -> Iterator[Scores]:
        """The scores, one part at a time in memory."""
        for part in self._parts:
            yield self._scores(part())

    def parts_of_all(self) -> Iterator[list[Scores]]:
        """The scores of all labels that are stored together, for each part, in the rows where every label is known."""
        for part in self._parts:
            rows = part()
            complete = _select(rows, (rows["y"] != column_values.UNKNOWN).all(1))
            yield [replace(self, _label=k)._scores(complete) for k in range(self._labels)]

    def _scores(self, rows: CodedRows) -> Scores:
        """The scores of one label, sorted by patient, so that sums by patient access memory in order. Codes replace patient ids."""
        rows = rows | {"y": rows["y"][:, self._label], "score": rows["score"][:, self._label]}
        if self._labels > 1:
            rows = _select(rows, rows["y"] != column_values.UNKNOWN)
        patients = None
        if "patient" in rows:
            rows = _select(rows, np.argsort(rows["patient"]))
            patients = np.cumsum(np.diff(rows["patient"], prepend=rows["patient"][:1]) != 0)
        attributes = tuple(replace(a, codes=rows[f"code{k}"].astype(np.int64)) for k, a in enumerate(self.attributes))
        # Patients stay integers: as objects they would take 40 bytes each.
        y = rows["y"].astype(np.int64)
        score, logit = column_values.score_and_logit(np.ascontiguousarray(rows["score"]), self.logits)
        owners = cast("ObjectArray | None", patients)
        return Scores(y, score, attributes, owners, name=self.name, weight=rows.get("weight"), logit=logit)


def _select(rows: CodedRows, index: npt.NDArray[Any]) -> CodedRows:
    """The rows at these positions, or where a mask is True."""
    if index.dtype == bool and index.all():
        return rows
    return {name: column[index] for name, column in rows.items()}


class Storage:
    """Buffers coded rows in memory up to `ROWS_HELD` rows, then writes them to files by patient, up to a number of bytes."""

    def __init__(self, labels: int, max_bytes: int, name: str) -> None:
        self.max_bytes, self.name = max_bytes, name
        self.max_held = ROWS_HELD // max(1, (3 + labels) // 4)  # 40 bytes per row for one label, 9 more for each further label
        self.held: list[CodedRows] = []
        self.files: list[IO[bytes]] = []
        self.written = 0  # bytes
        self.dtype: np.dtype[np.void] | None = None  # of the records in the files
        self.rows = 0

    def add(self, rows: CodedRows) -> None:
        self.rows += len(rows["y"])
        self.held.append(rows)
        if not self.files and self.rows <= self.max_held:
            return
        # Appends the rows in memory to the files, those of one patient to the same file.
        if not self.files:
            self.files = [tempfile.TemporaryFile() for _ in range(PART_FILES)]  # noqa: SIM115 (closed by `close`)
        for rows in self.held:
            records = np.empty(len(rows["y"]), np.dtype([(name, column.dtype, column.shape[1:]) for name, column in rows.items()]))
            for name, column in rows.items():
                records[name] = column
            self.written += records.nbytes
            if self.written > self.max_bytes:
                raise BadInput(
                    f"{self.name} needs more than {self.max_bytes:,} bytes in the temporary folder {tempfile.gettempdir()}, far more than "
                    "its size on disk: its rows are almost all the same. If the table is right, raise the limit: data.max_table_bytes, or "
                    f"the environment variable {LIMIT_VARIABLE}."
                )
            start = self.rows - sum(len(held["y"]) for held in self.held)
            keys = rows.get("patient", np.arange(start, start + len(records), dtype=np.uint64))
            place = (splitmix64(keys) % np.uint64(PART_FILES)).astype(np.uint8)
            by_place = records[np.argsort(place, kind="stable")]
            ends = np.cumsum(np.bincount(place, minlength=PART_FILES))
            for file, begin, end in zip(self.files, [0, *ends[:-1]], ends, strict=True):
                file.write(by_place[begin:end].tobytes())
        self.dtype = records.dtype
        self.held = []

    def close(self) -> None:
        """Closes the files, which deletes them."""
        for file in self.files:
            file.close()

    def parts(self) -> list[Callable[[], CodedRows]]:
        """All rows, read from memory or from one file after the other. The storage releases the rows in memory."""
        if self.files:
            return [partial(self._read, file) for file in self.files if file.tell()]
        rows = {name: np.concatenate([held[name] for held in self.held]) for name in self.held[0]}
        self.held = []
        return [lambda: rows]

    def _read(self, file: IO[bytes]) -> CodedRows:
        file.seek(0)
        records = np.fromfile(file, cast("np.dtype[np.void]", self.dtype))
        return {name: np.ascontiguousarray(records[name]) for name in cast(tuple[str, ...], records.dtype.names)}


MOST_ALIKE = 2**18  # ids that are kept, to find those that are alike
MAX_LEVELS = 100_000  # a group column with more distinct values is refused as an identifier without reading on


@takes_fields_of(Columns, without=("classes", "id", "score_prefix", "features", "view", *NOT_IN_BATCHES, "max_table_bytes"))
def scan(path: str | Path, *, name: str = "", **columns: Any) -> "Scan":
    """The scores in a table on disk of any size, which `eq.audit` reads in batches.

    `path` is a CSV or Parquet file, a folder of such files, or a data set partitioned by folders such as `sex=F`. The columns have the same
    roles as in `Scores.from_frame`; identifiers and groups are read as text. This call reads nothing yet.

    >>> scan("visits/", label="y", score="p", group="sex", patient="id").columns.group
    ('sex',)
    """
    return Scan(Path(path), Columns(**columns), name)


@dataclass(frozen=True)
class Scan:
    """A table on disk and its columns. It is read when it is audited: `eq.audit(scan)`."""

    path: Path
    columns: Columns
    name: str = ""
    limit: int | None = None  # in bytes, as in `read_table`

    def __post_init__(self) -> None:
        problems = self.columns.problems()
        labels, scores = list(self.columns.label), list(self.columns.score)
        if len(labels) != 1 or len(scores) != 1:
            problems.append(
                f"a scan has one label and one score column; got {labels}, {scores}. Several labels are a scan "
                "each: eq.audit({'a': eq.scan(path, label='a', ...), 'b': eq.scan(path, label='b', ...)})"
            )
        raise_all(problems, self.called)

    @contextmanager
    def read(self) -> Iterator[ScannedRows]:
        """The coded rows, in memory or in temporary files that are deleted when the context ends."""
        with read_scans({self.columns.label[0]: self}) as stored:
            yield next(iter(stored.values()))

    @property
    def called(self) -> str:
        """The name of the scores in messages and results."""
        return self.name or self.path.name


@contextmanager
def read_scans(scans: Mapping[str, Scan]) -> Iterator[dict[str, ScannedRows]]:
    """The coded rows of each label of one table, which is read once; with several labels, the rows in which each is known."""
    first = next(iter(scans.values()))
    aligned = [replace(s, columns=s.columns.changed(label=first.columns.label, score=first.columns.score)) for s in scans.values()]
    if any(s != first for s in aligned):
        raise BadInput(
            f"the labels {', '.join(scans)} are read together, from one table with the same groups, patients and weights. Scan the same "
            "path with the same columns for each, or audit them one by one."
        )
    coder = _TableCoder(scans)
    try:
        for where, count, found in read_batches(first.path, coder.columns):
            coder.add(where, count, found)
        yield coder.stored()
    finally:
        coder.storage.close()


class _TableCoder:
    """Codes and stores the rows of a table, batch by batch."""

    def __init__(self, scans: Mapping[str, Scan]) -> None:
        first = next(iter(scans.values()))
        own = [scan.columns for scan in scans.values()]
        self.columns = first.columns.changed(label=[c.label[0] for c in own], score=[c.score[0] for c in own])
        self.labels, self.name = list(scans), first.called
        self.groups = [groups.GroupCoder(name, first.columns.bins.get(name)) for name in first.columns.group]
        on_disk = sum(file.stat().st_size for file, _ in _table_files(first.path))
        allowed = max(MAX_TABLE_BYTES, max_table_bytes() if first.limit is None else first.limit)
        self.storage = Storage(len(scans), max(allowed, EXPANSION * on_disk), self.name)
        self.known, self.positives = (np.zeros(len(scans), np.int64) for _ in range(2))  # rows of each label
        self.patient_type = ""  # integers or text
        self.alike = _AlikeIds()

    def add(self, where: str, count: int, found: ColumnsRead) -> None:
        """Adds the rows of a batch; raises `BadInput` with everything wrong with them."""
        columns, problems = self.columns, list[str]()
        y, score = np.zeros((count, len(self.labels)), np.int8), np.zeros((count, len(self.labels)))
        rows: CodedRows = {"score": score, "y": y}
        if columns.missing:
            plain = {*columns.label, *columns.score, columns.weight, *columns.bins}
            found = {n: column_values.without_texts(column, columns.missing) if n in plain else column for n, column in found.items()}
        for k, (label_column, score_column) in enumerate(zip(columns.label, columns.score, strict=True)):
            y[:, k], label_problems = column_values.parse_label(
                found[label_column], label_column, columns.positive, unknown_allowed=len(self.labels) > 1
            )
            known = y[:, k] != column_values.UNKNOWN
            values, logit, score_problems = column_values.read_score_column(found[score_column], score_column, columns.logits, known)
            score[:, k] = values if logit is None else logit
            problems += label_problems + score_problems
        if columns.weight is not None:
            rows["weight"], weight_problems = column_values.read_weights(found[columns.weight], columns.weight)
            problems += weight_problems
        for k, group in enumerate(self.groups):
            with collecting(problems):
                rows[f"code{k}"] = _group_codes(group, found[group.name], where, columns).astype(np.int32)
        if columns.patient is not None:
            with collecting(problems):
                rows["patient"] = self._hash_patients(found[columns.patient], columns.patient, where)
        raise_all(problems, where)
        self.known += (y != column_values.UNKNOWN).sum(0)
        self.positives += (y == 1).sum(0)
        self.storage.add(rows)

    def _hash_patients(self, values: "pa.Array[Any]", name: str, where: str) -> HashArray:
        """A 64-bit hash of each patient id. Integers and text are not mixed, so that 7 and '7' cannot be two patients."""
        import pyarrow as pa

        if not pa.types.is_dictionary(values.type) and not pa.types.is_integer(values.type):
            values = values.dictionary_encode()
        patient_type = "text" if pa.types.is_dictionary(values.type) else "integers"
        if self.patient_type not in ("", patient_type):
            raise BadInput(
                f"patient column {name!r} holds {patient_type} in {where} and {self.patient_type} before. Store it as text in all files."
            )
        self.patient_type = patient_type
        if patient_type == "integers" and not values.null_count:
            return splitmix64(values.to_numpy(zero_copy_only=False).astype(np.int64).view(np.uint64))
        if patient_type == "integers":
            values = values.cast(pa.string()).dictionary_encode()
        ids = np.array([*table_files.arrow_texts(values.dictionary, name, where), None], dtype=object)
        codes = table_files.dictionary_codes(values)
        if values.null_count or any(text is None or not text.strip() for text in ids[:-1]):
            raise_all(column_values.identifier_problems(pd.Series(ids[codes], dtype=object), name, "patient"))
        self.alike.add([text for text in ids[:-1] if text is not None])
        return _hash_names(ids[:-1])[codes]

    def stored(self) -> dict[str, ScannedRows]:
        """The rows of each label; raises `BadInput` with everything wrong with the table as a whole."""
        if not self.storage.rows:
            raise BadInput("the table has no rows", source=self.name)
        columns, problems = self.columns, list[str]()
        for label, positives, rows in zip(columns.label, self.positives, self.known, strict=True):
            problems += column_values.constant_label_problems(int(positives), int(rows), label, columns.positive)
        attributes, level_codes = [], []
        for group, reference in zip(self.groups, columns.references, strict=True):
            with collecting(problems):
                attribute, codes = group.attribute(reference)
                attributes.append(attribute)
                level_codes.append(codes)
        raise_all(problems, self.name)
        stored = self.storage.parts()
        parts = [partial(_recoded, part, level_codes) for part in stored]
        self._warn_of_alike_patients(parts)
        if columns.conflicts != "row":
            resolved, kept_codes = [], []
            for k, attribute in enumerate(attributes):
                coded = ((rows[f"code{k}"], pd.factorize(rows["patient"])[0]) for part in parts for rows in [part()])
                with collecting(problems):
                    attribute, codes = groups.resolve_conflicts(attribute, coded, columns.conflicts, str(columns.patient))
                    resolved.append(attribute)
                    kept_codes.append(codes)
            raise_all(problems, self.name)
            attributes, parts = resolved, [partial(_recoded, part, level_codes, columns.conflicts, kept_codes) for part in stored]
        whole = not self.storage.files
        return {
            label: ScannedRows(int(rows), self.name, tuple(attributes), whole, parts, k, len(self.labels), self.columns.logits)
            for k, (label, rows) in enumerate(zip(self.labels, self.known, strict=True))
        }

    def _warn_of_alike_patients(self, parts: Sequence[Callable[[], CodedRows]]) -> None:
        """Warns of patient ids that differ only in what cannot be seen."""
        forms = np.array(list(self.alike.changed), dtype=object)
        if not len(forms):
            return
        hashes, present = _hash_names(forms), np.zeros(len(forms), bool)
        for part in parts:
            present |= np.isin(hashes, part()["patient"])
        for form in forms[present]:  # an id itself
            self.alike.changed[form].add(form)
        if sets := sorted(sorted(alike) for alike in self.alike.changed.values() if len(alike) > 1):
            groups.warn_of_alike_patients(sets, str(self.columns.patient))


def _recoded(
    part: Callable[[], CodedRows], level_codes: Sequence[IntArray], rule: str = "row", kept_codes: Sequence[IntArray] = ()
) -> CodedRows:
    """The rows of a part with the codes of the levels; under a rule for patients in several groups, of the levels that still have rows."""
    rows = part()
    codes = [new_codes[rows[f"code{k}"]] for k, new_codes in enumerate(level_codes)]
    if kept_codes:
        units = pd.factorize(rows["patient"])[0]
        codes = [kept[groups.resolve_codes(code, units, rule)] for kept, code in zip(kept_codes, codes, strict=True)]
    return rows | {f"code{k}": code for k, code in enumerate(codes)}


class _AlikeIds:
    """The ids of a table that is read in batches, as far as they may be alike: those that folding changes.

    Of two ids that are alike, at least one differs from their common folded form. The form has the case of most ids in the first batch, so
    that few ids differ from it.
    """

    def __init__(self) -> None:
        self.changed: dict[str, set[str]] = {}  # by their folded form
        self.case: Callable[[str], str] | None = None

    def add(self, ids: list[str]) -> None:
        """Adds the different ids of a batch."""
        joined = "".join(ids)
        if self.case is None:
            some = joined[:10_000]
            self.case = str.upper if sum(map(str.isupper, some)) > sum(map(str.islower, some)) else str.lower
        if len(self.changed) >= MOST_ALIKE or (not groups.UNUSUAL.search(joined) and joined == self.case(joined)):
            return
        for name, form in zip(ids, map(self.case, groups.folded_names(ids)), strict=True):
            if form != name:
                self.changed.setdefault(form, set()).add(name)


def _group_codes(group: groups.GroupCoder, values: Any, where: str, columns: Columns) -> IntArray:
    """The code of each row of a batch: of names, an Arrow array; of numbers to be binned, a pandas column."""
    import pyarrow as pa

    if group.bins is not None:
        return group.add_numbers(values)
    encoded = values if pa.types.is_dictionary(values.type) else values.dictionary_encode()
    known = column_values.without_texts(table_files.arrow_texts(encoded.dictionary, group.name, where), columns.missing)
    names = groups.merge_groups(known, columns.merge)
    codes = group.add_names(list(names), table_files.dictionary_codes(encoded))
    if len(group.code_of) > MAX_LEVELS:
        raise BadInput(
            f"column {group.name!r} holds more than {MAX_LEVELS:,} different values, like an identifier; a group needs a few levels. Use "
            "another column."
        )
    return codes


def _hash_names(names: npt.NDArray[np.object_]) -> HashArray:
    """A 64-bit hash of each name."""
    return np.asarray(pd.util.hash_array(names, categorize=False), dtype=np.uint64)
