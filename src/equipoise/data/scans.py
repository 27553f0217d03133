"""Tables on disk whose scores are audited without being held as a frame: read once in batches, checked, coded and stored by patient.

Each row becomes a few bytes: labels, scores, a code per attribute and a hash of 64 bits of the patient (among 50 million patients the
chance that any two share one is below 1 in 10,000).
"""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from equipoise.data.attribute import (
    MISSING,
    Attribute,
    group_names,
    levels_of,
    levels_of_bins,
    settled_codes,
    varying,
    without_empty,
)
from equipoise.data.batches import Batch, Coded, HashArray, Part, Storage, Stored, mixed, read_batches
from equipoise.data.bins import Bins, Span, edges_of, numbers_in
from equipoise.data.columns import Roles, identifier_problems, score_of, weight_of
from equipoise.data.table_files import arrow_texts
from equipoise.data.targets import UNKNOWN, label_of, one_label
from equipoise.errors import BadInput, collecting, raise_all

if TYPE_CHECKING:
    import pyarrow as pa

MOST_LEVELS = 100_000  # different values of a group column, after which it is taken for an identifier without reading on


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
                f"a scan has one label and one score column; got {self.roles.labels}, {self.roles.score!r}. Several labels are a scan "
                "each: eq.audit({'a': eq.scan(path, label='a', ...), 'b': eq.scan(path, label='b', ...)})"
            )
        raise_all(problems, self.called)

    @contextmanager
    def read(self) -> Iterator[Stored]:
        """The coded rows, in memory or in a temporary folder that is removed afterwards."""
        with read_labels({self.roles.labels[0]: self}) as stored:
            yield next(iter(stored.values()))

    @property
    def called(self) -> str:
        """The name of the scores in messages and results."""
        return self.name or self.path.name


@contextmanager
def read_labels(scans: Mapping[str, Scan]) -> Iterator[dict[str, Stored]]:
    """The coded rows of each label of one table, which is read once; with several labels, of the rows in which each is known."""
    first = next(iter(scans.values()))
    same = [replace(own, roles=replace(own.roles, label=first.roles.label, score=first.roles.score)) for own in scans.values()]
    if any(own != first for own in same):
        raise BadInput(
            f"the labels {', '.join(scans)} are read together, from one table with the same groups, patients and weights. Scan the same "
            "path with the same columns for each, or audit them one by one."
        )
    with tempfile.TemporaryDirectory(prefix="equipoise-") as folder:
        rows = _Rows(scans, Path(folder))
        try:
            for batch in rows.batches():
                rows.add(batch)
        finally:
            rows.storage.close()
        yield rows.stored()


class _Rows:
    """The rows of a table as they come in, coded and stored."""

    def __init__(self, scans: Mapping[str, Scan], folder: Path) -> None:
        first = next(iter(scans.values()))
        self.roles, self.path, self.called = first.roles, first.path, first.called
        self.labels = {name: (scan.roles.labels[0], str(scan.roles.score)) for name, scan in scans.items()}  # the columns of each
        self.groups = [_Group(name, (first.roles.bins or {}).get(name)) for name in first.roles.groups]
        self.storage = Storage(folder, len(scans))
        self.known, self.positives = (np.zeros(len(scans), np.int64) for _ in range(2))  # rows of each label
        self.kind = ""  # how patients are stored

    def batches(self) -> Iterator[Batch]:
        """The rows of the table in batches."""
        roles, bins = self.roles, self.roles.bins or {}
        columns = [name for pair in self.labels.values() for name in pair]
        text = [name for name in (*roles.groups, roles.patient) if name is not None and name not in bins]
        numbers = [name for name in (*columns, roles.weight, *bins) if name is not None]
        words = [label for label, _ in self.labels.values()] if roles.positive is not None else ()
        return read_batches(self.path, text=text, values=numbers, words=words)

    def add(self, batch: Batch) -> None:
        """Adds the rows of a batch, or raises an error that lists everything wrong with them."""
        roles, problems = self.roles, list[str]()
        y, score = np.zeros((batch.rows, len(self.labels)), np.int8), np.zeros((batch.rows, len(self.labels)))
        for k, (label, scored) in enumerate(self.labels.values()):
            found, wrong = label_of(batch.values[label], label, roles.positive, gaps=len(self.labels) > 1)
            problems += wrong
            y[:, k] = found
            here = found != UNKNOWN
            values, wrong = score_of(batch.values[scored] if here.all() else batch.values[scored][here], scored, roles.logits)
            problems += wrong
            score[here, k] = values
        weight = None
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
        self.known += (y != UNKNOWN).sum(0)
        self.positives += (y == 1).sum(0)
        self.storage.add(Coded(y, score, tuple(codes), patient, weight))

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

    def stored(self) -> dict[str, Stored]:
        """The rows of each label with their groups in order, or an error that lists what is wrong with the table as a whole."""
        if not self.storage.rows:
            raise BadInput("the table has no rows", source=self.called)
        roles, problems = self.roles, list[str]()
        for (label, _), positives, rows in zip(self.labels.values(), self.positives, self.known, strict=True):
            problems += one_label(int(positives), int(rows), label, roles.positive)
        attributes, maps = [], []
        for group, reference in zip(self.groups, roles.references, strict=True):
            with collecting(problems):
                attribute, places = group.attribute(self.storage.rows, reference)
                attributes.append(attribute)
                maps.append(places)
        raise_all(problems, self.called)
        parts = self.storage.parts(tuple(maps), roles.conflicts)
        if roles.conflicts != "row":
            attributes, parts = self._settled(parts, attributes)
        named = self.called
        return {
            label: Stored(int(rows), named, tuple(attributes), parts, k, len(self.labels))
            for k, (label, rows) in enumerate(zip(self.labels, self.known, strict=True))
        }

    def _settled(self, parts: list[Part], attributes: list[Attribute]) -> tuple[list[Attribute], list[Part]]:
        """The attributes and parts with patients in several groups treated as asked."""
        rule = self.roles.conflicts
        varied = np.zeros(len(attributes), np.int64)
        counts = [np.zeros(len(a.levels), np.int64) for a in attributes]
        for part in parts:
            recorded = replace(part, rule="row").read()
            units = pd.factorize(recorded.patient)[0]
            for k, attribute in enumerate(attributes):
                codes = recorded.codes[k].astype(np.int64)
                varied[k] += int(varying(codes, units).sum())
                codes = codes if rule == "error" else settled_codes(codes, units, rule)
                counts[k] += np.bincount(codes[codes != MISSING], minlength=len(attribute.levels))
        problems: list[str] = []
        kept, settled = [], []
        for k, attribute in enumerate(attributes):
            with collecting(problems):
                if rule == "error" and varied[k]:
                    raise BadInput(
                        f"patient column {self.roles.patient!r}: {varied[k]:,} patients have more than one {attribute.name!r}. Correct "
                        "them, leave it empty where it is not known, or choose how they count with --conflicts row, first, majority or "
                        "blank (in Python conflicts=...)."
                    )
                levels, place = without_empty(attribute, counts[k], rule)
                settled.append(replace(attribute, levels=levels, varied=int(varied[k]), conflicts=rule))
                kept.append(np.append(place, MISSING).astype(np.int32))
        raise_all(problems, self.called)
        return settled, [replace(part, kept=tuple(kept)) for part in parts]


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
