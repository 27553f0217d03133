"""Scores of more rows than are convenient to hold: a table on disk, read once in batches and kept by patient.

Each row becomes a few bytes: label, score, a code per attribute and a hash of 64 bits of the patient (among 50 million patients the chance
that any two share one is below 1 in 10,000). Up to `HELD` rows stay in memory as one `Scores`. More are written to a temporary folder,
into files that hold all rows of each of their patients, so that every sum over patients is a sum over those files and memory does not grow
with the rows.
"""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import numpy as np
import numpy.typing as npt
import pandas as pd

from equipoise.data.attribute import MISSING, Attribute, group_names, levels_of, levels_of_bins, settled_codes, varying, without_empty
from equipoise.data.batches import Batch, read_batches
from equipoise.data.bins import Bins, Span, edges_of, numbers_in
from equipoise.data.columns import FloatArray, ObjectArray, Roles, collecting, identifier_problems, score_of, weight_of
from equipoise.data.scores import Scores
from equipoise.data.table_files import arrow_texts
from equipoise.data.targets import label_of, one_label
from equipoise.errors import BadInput, raise_all

if TYPE_CHECKING:
    import pyarrow as pa

# Rows that stay in memory, at about 40 bytes each. 10 million rows took 39 s and 2.1 GB as one table, and 19 s and 0.8 GB in parts.
HELD = 2**22
FILES = 128  # that the others are written to; each must fit in memory, so a billion rows are 8 million at a time
MOST_LEVELS = 100_000  # different values of a group column, after which it is taken for an identifier without reading on

HashArray = npt.NDArray[np.uint64]


def scan(
    path: str | Path,
    *,
    label: str,
    score: str,
    group: str | Sequence[str],
    reference: str | Sequence[str] | None = None,
    patient: str | None = None,
    positive: object = None,
    bins: Mapping[str, Sequence[float] | Bins] | None = None,
    conflicts: str = "row",
    weight: str | None = None,
    name: str = "",
) -> "Scan":
    """The scores in a table on disk, which `eq.audit` reads in batches, however many rows there are.

    `path` is a CSV or Parquet file, a folder of such files, or a data set that is partitioned by folders such as `sex=F`. The columns mean
    the same as in `Scores.from_frame`; identifiers and groups are read as text. Nothing is read yet.

    >>> scan("visits/", label="y", score="p", group="sex", patient="id").roles.groups
    ['sex']
    """
    return Scan(Path(path), Roles(label, group, reference, patient, None, score, weight, positive, bins=bins, conflicts=conflicts), name)


@dataclass(frozen=True)
class Scan:
    """A table on disk and the roles of its columns. Nothing is read before it is audited: `eq.audit(scan)`."""

    path: Path
    roles: Roles
    name: str = ""

    def __post_init__(self) -> None:
        problems = [*self.roles.name_problems(), *self.roles.conflict_problems()]
        if not isinstance(self.roles.label, str) or self.roles.score is None:
            problems.append(
                f"a table that is read in batches has one label and one score column; got {self.roles.labels}, {self.roles.score!r}"
            )
        raise_all(problems, self.called)

    @contextmanager
    def read(self) -> "Iterator[Stored]":
        """The coded rows, in memory or in a temporary folder that is removed afterwards."""
        with tempfile.TemporaryDirectory(prefix="equipoise-") as folder:
            rows = _Rows(self, Path(folder))
            try:
                for batch in self._batches():
                    rows.add(batch)
            finally:
                rows.close()
            yield rows.stored()

    def _batches(self) -> Iterator[Batch]:
        roles, bins = self.roles, self.roles.bins or {}
        text = [name for name in (*roles.groups, roles.patient) if name is not None and name not in bins]
        numbers = [name for name in (*roles.labels, roles.score, roles.weight, *bins) if name is not None]
        return read_batches(self.path, text=text, values=numbers, words=roles.labels if roles.positive is not None else ())

    @property
    def called(self) -> str:
        """The name of the scores in messages and results."""
        return self.name or self.path.name


@dataclass(frozen=True, eq=False)
class Stored:
    """Coded rows of a table. `parts` are Scores with the same groups, each with all rows of its patients."""

    rows: int
    name: str
    attributes: tuple[Attribute, ...]  # without codes
    _parts: "Sequence[_Part]" = field(repr=False)

    @property
    def whole(self) -> bool:
        """Whether all rows are one part, in memory."""
        return len(self._parts) == 1

    @property
    def count(self) -> int:
        """How many parts there are."""
        return len(self._parts)

    def parts(self) -> Iterator[Scores]:
        """The scores, patient by patient; one at a time is in memory."""
        for part in self._parts:
            held = part.read()
            yield _scores(held, self.attributes, self.name)


@dataclass(frozen=True, eq=False)
class _Coded:
    """Coded rows; the codes of groups are those of the order in which the groups were seen until `_Rows.stored` settles them."""

    y: npt.NDArray[np.int8]
    score: FloatArray
    codes: tuple[npt.NDArray[np.int32], ...]
    patient: HashArray | None
    weight: FloatArray | None

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True, eq=False)
class _Part:
    """Rows of some patients: in memory, or in a file."""

    held: _Coded | None
    file: Path | None
    dtype: np.dtype[np.void] | None
    maps: tuple[npt.NDArray[np.int32], ...]  # from codes as they were seen to those of the levels
    rule: str  # of CONFLICTS
    kept: tuple[npt.NDArray[np.int32], ...] = ()  # from those to the levels that have rows once the rule was applied

    def read(self) -> _Coded:
        coded = self.held or _from_records(np.fromfile(cast(Path, self.file), cast("np.dtype[np.void]", self.dtype)))
        codes = tuple(own[each] for own, each in zip(self.maps, coded.codes, strict=True))
        if self.rule in ("row", "error"):
            return replace(coded, codes=codes)
        units = pd.factorize(coded.patient)[0]
        settled = [settled_codes(each.astype(np.int64), units, self.rule) for each in codes]
        return replace(coded, codes=tuple(own[each] for own, each in zip(self.kept, settled, strict=True)))


def _scores(coded: _Coded, attributes: Sequence[Attribute], name: str) -> Scores:
    """The rows in the order of their patients, whose codes replace their ids: sums by patient then run through memory in order."""
    y, score, codes, weight, patients = coded.y, coded.score, coded.codes, coded.weight, None
    if coded.patient is not None:
        order = np.argsort(coded.patient)
        ordered = coded.patient[order]
        patients = np.cumsum(np.concatenate([[False], ordered[1:] != ordered[:-1]]))
        y, score, codes = y[order], score[order], tuple(each[order] for each in codes)
        weight = None if weight is None else weight[order]
    held = tuple(replace(a, codes=each.astype(np.int64)) for a, each in zip(attributes, codes, strict=True))
    # Codes and row numbers stay numbers: as objects they would take 40 bytes each.
    ids = cast(ObjectArray, np.arange(len(coded)))
    return Scores(y.astype(np.int64), score, held, cast("ObjectArray | None", patients), ids, name, weight)


class _Rows:
    """Coded rows as they come in: in memory up to `HELD`, then in files by patient."""

    def __init__(self, scan: Scan, folder: Path) -> None:
        self.scan, self.folder = scan, folder
        self.groups = [_Group(name, (scan.roles.bins or {}).get(name)) for name in scan.roles.groups]
        self.held: list[_Coded] = []
        self.files: list[BinaryIO] = []
        self.rows = self.positives = 0
        self.kind = ""  # how patients are stored

    def add(self, batch: Batch) -> None:
        coded = self._coded(batch)
        self.rows += len(coded)
        self.positives += int(coded.y.sum())
        self.held.append(coded)
        if self.files or self.rows > HELD:
            self._write()

    def _coded(self, batch: Batch) -> _Coded:
        """The rows of a batch, or an error that lists everything wrong with them."""
        roles, problems = self.scan.roles, []
        label, scored = roles.labels[0], cast(str, roles.score)
        y, wrong = label_of(batch.values[label], label, roles.positive)
        problems += wrong
        score, wrong = score_of(batch.values[scored], scored)
        problems += wrong
        weight: FloatArray | None = None
        if roles.weight is not None:
            weight, wrong = weight_of(batch.values[roles.weight], roles.weight)
            problems += wrong
        codes = []
        for group in self.groups:
            with collecting(problems):
                codes.append(group.codes(batch))
        patient = None
        if roles.patient is not None:
            with collecting(problems):
                patient = self._patients(batch.texts[roles.patient], roles.patient, batch.where)
        raise_all(problems, batch.where)
        return _Coded(y.astype(np.int8), score, tuple(codes), patient, weight)

    def _patients(self, values: "pa.Array[Any]", name: str, where: str) -> HashArray:
        """A number of 64 bits for each patient id. Integers and text are not mixed, so that 7 and '7' cannot be two patients."""
        import pyarrow as pa
        import pyarrow.compute as pc

        kind = "integers" if pa.types.is_integer(values.type) else "text"
        if self.kind not in ("", kind):
            raise BadInput(f"patient column {name!r} holds {kind} in {where} and {self.kind} before. Store it as text in all files.")
        self.kind = kind
        if kind == "integers" and not values.null_count:
            return mixed(values.to_numpy(zero_copy_only=False).astype(np.int64).view(np.uint64))
        ids = _names(values, name, where)
        plain = pa.types.is_string(values.type) and not values.null_count  # which most are: then a look at the blanks is enough
        if not plain or pc.any(pc.or_(pc.equal(pc.binary_length(values), 0), pc.utf8_is_space(values))).as_py():
            raise_all(identifier_problems(pd.Series(ids, dtype=object), name, "patient"))
        return np.asarray(pd.util.hash_array(ids, categorize=False), dtype=np.uint64)

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

    def stored(self) -> Stored:
        """The rows with their groups in order, or an error that lists what is wrong with the table as a whole."""
        scan = self.scan
        if not self.rows:
            raise BadInput("the table has no rows", source=scan.called)
        roles = scan.roles
        problems = one_label(self.positives, self.rows, roles.labels[0], roles.positive)
        attributes, maps = [], []
        for group, reference in zip(self.groups, roles.references, strict=True):
            with collecting(problems):
                attribute, places = group.attribute(self.rows, reference)
                attributes.append(attribute)
                maps.append(places)
        raise_all(problems, scan.called)
        if self.files:
            parts = [
                _Part(None, path, self.dtype, tuple(maps), scan.roles.conflicts)
                for k in range(FILES)
                if (path := self.folder / f"{k}.rows").stat().st_size
            ]
        else:
            parts = [_Part(_joined(self.held), None, None, tuple(maps), scan.roles.conflicts)]
        self.held = []
        return self._settled(parts, attributes)

    def _settled(self, parts: list[_Part], attributes: list[Attribute]) -> Stored:
        """The rows with patients in several groups treated as asked."""
        scan = self.scan
        if scan.roles.conflicts == "row":
            return Stored(self.rows, scan.called, tuple(attributes), parts)
        varied = np.zeros(len(attributes), np.int64)
        counts = [np.zeros(len(a.levels), np.int64) for a in attributes]
        for part in parts:
            recorded = replace(part, rule="row").read()
            units = pd.factorize(recorded.patient)[0]
            for k, attribute in enumerate(attributes):
                codes = recorded.codes[k].astype(np.int64)
                varied[k] += int(varying(codes, units).sum())
                codes = codes if scan.roles.conflicts == "error" else settled_codes(codes, units, scan.roles.conflicts)
                counts[k] += np.bincount(codes[codes != MISSING], minlength=len(attribute.levels))
        problems: list[str] = []
        kept = []
        for k, attribute in enumerate(attributes):
            try:
                if scan.roles.conflicts == "error" and varied[k]:
                    raise BadInput(_refused(scan.roles, int(varied[k]), attribute.name))
                levels, place = without_empty(attribute, counts[k], scan.roles.conflicts)
            except BadInput as error:
                problems += error.problems
                continue
            attributes[k] = replace(attribute, levels=levels, varied=int(varied[k]), conflicts=scan.roles.conflicts)
            kept.append(np.append(place, MISSING).astype(np.int32))
        raise_all(problems, scan.called)
        return Stored(self.rows, scan.called, tuple(attributes), [replace(part, kept=tuple(kept)) for part in parts])


def _refused(roles: Roles, patients: int, attribute: str) -> str:
    return (
        f"patient column {roles.patient!r}: {patients:,} patients have more than one {attribute!r}. Correct them, leave it empty where it "
        "is not known, or choose how they count with --conflicts row, first, majority or blank (in Python conflicts=...)."
    )


class _Group:
    """The groups of one column in the order in which they were seen, and how many rows each has."""

    def __init__(self, name: str, edges: Sequence[float] | Bins | None) -> None:
        self.name = name
        self.bins = None if edges is None else edges if isinstance(edges, Bins) else Bins(edges_of(edges, name), whole=True)
        self.given = isinstance(edges, Bins)
        self.whole, self.span = True, Span()
        self.seen: dict[str, int] = {}
        self.count = np.zeros(0, np.int64)

    def codes(self, batch: Batch) -> npt.NDArray[np.int32]:
        if self.bins is None:
            found = self._named(batch)
        else:
            numbers = numbers_in(batch.values[self.name], self.name)
            known = numbers[~np.isnan(numbers)]
            self.whole = self.whole and bool((known == np.round(known)).all())
            self.span += Span.of(numbers)
            found = self.bins.codes(numbers).astype(np.int32)
        width = len(self.seen) if self.bins is None else len(self.bins.names)
        counts = np.bincount(found[found >= 0], minlength=width)
        self.count = counts + np.pad(self.count, (0, width - len(self.count)))
        return found

    def _named(self, batch: Batch) -> npt.NDArray[np.int32]:
        import pyarrow as pa

        values = batch.texts[self.name]
        coded = values if pa.types.is_dictionary(values.type) else values.dictionary_encode()
        names = group_names(pd.Series(_names(coded.dictionary, self.name, batch.where), dtype=object))
        for name in names:
            if name is not None and name not in self.seen:
                self.seen[name] = len(self.seen)
        if len(self.seen) > MOST_LEVELS:
            raise BadInput(
                f"column {self.name!r} holds more than {MOST_LEVELS:,} different values, like an identifier; a group needs a few levels. "
                "Use another column."
            )
        place = np.array([*(MISSING if name is None else self.seen[name] for name in names), MISSING], np.int32)
        codes: npt.NDArray[np.int32] = place[coded.indices.fill_null(len(names)).to_numpy(zero_copy_only=False)]
        return codes

    def attribute(self, rows: int, reference: str | None) -> tuple[Attribute, npt.NDArray[np.int32]]:
        """The attribute without rows, and the place of each code among its levels."""
        bins = self.bins
        if bins is not None and not self.given:
            bins = Bins(bins.edges, self.whole and all(float(edge).is_integer() for edge in bins.edges))
        seen = list(self.seen) if bins is None else list(bins.names)
        counts = pd.Series(self.count, index=pd.Index(seen, dtype=object))
        counts = counts[counts > 0].sort_values(ascending=False, kind="stable")
        levels = (
            levels_of(counts, rows, self.name, reference) if bins is None else levels_of_bins(counts, bins, self.span, self.name, reference)
        )
        order = {level: k for k, level in enumerate(levels)}
        place = np.array([*(order.get(name, MISSING) for name in seen), MISSING], np.int32)
        return Attribute(self.name, levels, np.empty(0, np.int64), reference is not None, bins), place


def _names(values: "pa.Array[Any]", name: str, where: str) -> npt.NDArray[np.object_]:
    """The texts of an Arrow column as `read_table` reads them, None where there is none."""
    import pyarrow as pa

    if pa.types.is_integer(values.type):
        values = values.cast(pa.string())
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        found: npt.NDArray[np.object_] = np.array(values.to_numpy(zero_copy_only=False), dtype=object)
        found[found == ""] = None
        return found
    return np.asarray(arrow_texts(values, name, Path(where)).to_numpy(dtype=object))


def mixed(numbers: HashArray) -> HashArray:
    """The numbers scattered over 64 bits, equal ones alike (the finaliser of splitmix64)."""
    x = numbers + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _records(coded: _Coded) -> npt.NDArray[np.void]:
    columns: dict[str, npt.NDArray[Any]] = {"score": coded.score, "y": coded.y}
    columns |= {f"code{k}": each for k, each in enumerate(coded.codes)}
    columns |= {name: each for name, each in (("patient", coded.patient), ("weight", coded.weight)) if each is not None}
    records = np.empty(len(coded), np.dtype([(name, each.dtype) for name, each in columns.items()]))
    for name, each in columns.items():
        records[name] = each
    return records


def _from_records(records: npt.NDArray[np.void]) -> _Coded:
    held = {name: np.ascontiguousarray(records[name]) for name in cast(tuple[str, ...], records.dtype.names)}
    codes = tuple(held[name] for name in held if name.startswith("code"))
    return _Coded(held["y"], held["score"], codes, held.get("patient"), held.get("weight"))


def _joined(parts: list[_Coded]) -> _Coded:
    """All rows in one; a column at a time, so that few are held twice."""
    first = parts[0]
    return _Coded(
        np.concatenate([p.y for p in parts]),
        np.concatenate([p.score for p in parts]),
        tuple(np.concatenate([p.codes[k] for p in parts]) for k in range(len(first.codes))),
        None if first.patient is None else np.concatenate([cast(HashArray, p.patient) for p in parts]),
        None if first.weight is None else np.concatenate([cast(FloatArray, p.weight) for p in parts]),
    )
