"""Scans: scores in tables on disk that are audited without loading them as a frame. Each table is read once in batches.

Each row is validated and stored in a few bytes: labels, scores, a code per attribute and a 64-bit hash of the patient (among 50 million
patients the probability that any two have the same hash is below 1 in 10,000).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from equipoise.data.alike_names import AlikeIds, warn_of_alike_patients
from equipoise.data.attribute import (
    CONFLICT_ADVICE,
    MISSING,
    Attribute,
    drop_empty_levels,
    group_names,
    ordered_bin_levels,
    ordered_levels,
    resolve_codes,
    varying_units,
)
from equipoise.data.batches import EXPANSION, Batch, CodedRows, Part, Storage, Stored, read_batches, stored_bytes
from equipoise.data.bins import Bins, Span, all_integers, as_bins, read_numeric_column
from equipoise.data.column_values import identifier_problems, read_score_column, read_weights
from equipoise.data.columns import Columns
from equipoise.data.files import MAX_TABLE_BYTES, max_table_bytes
from equipoise.data.parquet_files import arrow_texts, check_lengths, dictionary_codes
from equipoise.data.splits import HashArray, splitmix64
from equipoise.data.targets import UNKNOWN, constant_label_problems, parse_label
from equipoise.errors import BadInput, collecting, raise_all
from equipoise.specification import takes_fields_of

if TYPE_CHECKING:
    import pyarrow as pa

CodeArray = npt.NDArray[np.int32]
MAX_LEVELS = 100_000  # a group column with more distinct values is refused as an identifier without reading on


@takes_fields_of(Columns, without=("classes", "id", "score_prefix", "features", "view", "max_table_bytes"))
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
        problems = [*self.columns.problems(), *self.columns.conflict_problems()]
        labels, scores = list(self.columns.label), list(self.columns.score)
        if len(labels) != 1 or len(scores) != 1:
            problems.append(
                f"a scan has one label and one score column; got {labels}, {scores}. Several labels are a scan "
                "each: eq.audit({'a': eq.scan(path, label='a', ...), 'b': eq.scan(path, label='b', ...)})"
            )
        raise_all(problems, self.called)

    @contextmanager
    def read(self) -> Iterator[Stored]:
        """The coded rows, in memory or in temporary files that are deleted when the context ends."""
        with read_labels({self.columns.label[0]: self}) as stored:
            yield next(iter(stored.values()))

    @property
    def max_bytes(self) -> int:
        """The bytes that the coded rows may take in temporary files, whatever the size of the table on disk."""
        return max(MAX_TABLE_BYTES, max_table_bytes() if self.limit is None else self.limit)

    @property
    def called(self) -> str:
        """The name of the scores in messages and results."""
        return self.name or self.path.name


@contextmanager
def read_labels(scans: Mapping[str, Scan]) -> Iterator[dict[str, Stored]]:
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
        for batch in coder.batches():
            coder.add(batch)
        yield coder.stored()
    finally:
        coder.storage.close()


class _TableCoder:
    """Codes and stores the rows of a table, batch by batch."""

    def __init__(self, scans: Mapping[str, Scan]) -> None:
        first = next(iter(scans.values()))
        self.columns, self.path, self.name = first.columns, first.path, first.called
        self.labels = {name: (scan.columns.label[0], scan.columns.score[0]) for name, scan in scans.items()}  # label and score column
        self.groups = [_GroupCoder(name, first.columns.bins.get(name)) for name in first.columns.group]
        self.storage = Storage(len(scans), max(first.max_bytes, EXPANSION * stored_bytes(first.path)), self.name)
        self.known, self.positives = (np.zeros(len(scans), np.int64) for _ in range(2))  # rows of each label
        self.patient_type = ""  # integers or text
        self.alike = AlikeIds()

    def batches(self) -> Iterator[Batch]:
        """The rows of the table in batches."""
        roles, bins = self.columns, self.columns.bins
        columns = [name for pair in self.labels.values() for name in pair]
        text = [name for name in (*roles.group, roles.patient) if name is not None and name not in bins]
        numbers = [name for name in (*columns, roles.weight, *bins) if name is not None]
        words = [label for label, _ in self.labels.values()] if roles.positive is not None else ()
        return read_batches(self.path, text=text, values=numbers, words=words)

    def add(self, batch: Batch) -> None:
        """Adds the rows of a batch; raises `BadInput` with everything wrong with them."""
        columns, problems = self.columns, list[str]()
        y, score = np.zeros((batch.rows, len(self.labels)), np.int8), np.zeros((batch.rows, len(self.labels)))
        rows: CodedRows = {"score": score, "y": y}
        for k, (label_column, score_column) in enumerate(self.labels.values()):
            y[:, k], label_problems = parse_label(
                batch.values[label_column], label_column, columns.positive, unknown_allowed=len(self.labels) > 1
            )
            known, scores = y[:, k] != UNKNOWN, batch.values[score_column]
            score[known, k], score_problems = read_score_column(scores if known.all() else scores[known], score_column, columns.logits)
            problems += label_problems + score_problems
        if columns.weight is not None:
            rows["weight"], weight_problems = read_weights(batch.values[columns.weight], columns.weight)
            problems += weight_problems
        for k, group in enumerate(self.groups):
            with collecting(problems):
                rows[f"code{k}"] = group.codes(batch)
        if columns.patient is not None:
            with collecting(problems):
                rows["patient"] = self._hash_patients(batch.texts[columns.patient], columns.patient, batch.where)
        raise_all(problems, batch.where)
        self.known += (y != UNKNOWN).sum(0)
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
        ids, codes = np.array([*_as_names(values.dictionary, name, where), None], dtype=object), dictionary_codes(values)
        if values.null_count or any(text is None or not text.strip() for text in ids[:-1]):
            raise_all(identifier_problems(pd.Series(ids[codes], dtype=object), name, "patient"))
        self.alike.add([text for text in ids[:-1] if text is not None])
        return _hash_names(ids[:-1])[codes]

    def stored(self) -> dict[str, Stored]:
        """The rows of each label; raises `BadInput` with everything wrong with the table as a whole."""
        if not self.storage.rows:
            raise BadInput("the table has no rows", source=self.name)
        columns, problems = self.columns, list[str]()
        for (label_column, _), positives, rows in zip(self.labels.values(), self.positives, self.known, strict=True):
            problems += constant_label_problems(int(positives), int(rows), label_column, columns.positive)
        attributes, level_codes = [], []
        for group, reference in zip(self.groups, columns.references, strict=True):
            with collecting(problems):
                attribute, codes = group.attribute(self.storage.rows, reference)
                attributes.append(attribute)
                level_codes.append(codes)
        raise_all(problems, self.name)
        parts = [replace(part, recode=partial(_recoded, level_codes=level_codes)) for part in self.storage.parts()]
        self._warn_of_alike_patients(parts)
        if columns.conflicts != "row":
            attributes, kept_codes = self._resolve_conflicts(parts, attributes)
            resolve = partial(_recoded, level_codes=level_codes, rule=columns.conflicts, kept_codes=kept_codes)
            parts = [replace(part, recode=resolve) for part in parts]
        return {
            label: Stored(int(rows), self.name, tuple(attributes), parts, k, len(self.labels), self.columns.logits)
            for k, (label, rows) in enumerate(zip(self.labels, self.known, strict=True))
        }

    def _warn_of_alike_patients(self, parts: list[Part]) -> None:
        """Warns of patient ids that differ only in what cannot be seen."""
        forms = np.array(list(self.alike.changed), dtype=object)
        if not len(forms):
            return
        hashes, present = _hash_names(forms), np.zeros(len(forms), bool)
        for part in parts:
            present |= np.isin(hashes, part.read()["patient"])
        warn_of_alike_patients(self.alike.sets(forms[present]), str(self.columns.patient))

    def _resolve_conflicts(self, parts: list[Part], attributes: list[Attribute]) -> tuple[list[Attribute], list[CodeArray]]:
        """The attributes under the rule for patients in several groups, and the codes of the levels that then still have rows."""
        rule = self.columns.conflicts
        varied = np.zeros(len(attributes), np.int64)
        counts = [np.zeros(len(a.levels), np.int64) for a in attributes]
        for part in parts:
            recorded = part.read()
            units = pd.factorize(recorded["patient"])[0]
            for k, attribute in enumerate(attributes):
                codes = recorded[f"code{k}"].astype(np.int64)
                varied[k] += int(varying_units(codes, units).sum())
                codes = codes if rule == "error" else resolve_codes(codes, units, rule)
                counts[k] += np.bincount(codes[codes != MISSING], minlength=len(attribute.levels))
        problems: list[str] = []
        kept_codes, resolved = [], []
        for k, attribute in enumerate(attributes):
            with collecting(problems):
                if rule == "error" and varied[k]:
                    raise BadInput(
                        f"patient column {self.columns.patient!r}: {varied[k]:,} patients have more than one {attribute.name!r}. "
                        f"{CONFLICT_ADVICE}"
                    )
                levels, codes = drop_empty_levels(attribute, counts[k], rule)
                resolved.append(replace(attribute, levels=levels, varied=int(varied[k]), conflicts=rule))
                kept_codes.append(np.append(codes, MISSING).astype(np.int32))
        raise_all(problems, self.name)
        return resolved, kept_codes


def _recoded(rows: CodedRows, level_codes: Sequence[CodeArray], rule: str = "row", kept_codes: Sequence[CodeArray] = ()) -> CodedRows:
    """The rows with the codes of the levels; under a rule for patients in several groups, of the levels that still have rows."""
    codes = [new_codes[rows[f"code{k}"]] for k, new_codes in enumerate(level_codes)]
    if rule not in ("row", "error"):
        units = pd.factorize(rows["patient"])[0]
        codes = [kept[resolve_codes(code.astype(np.int64), units, rule)] for kept, code in zip(kept_codes, codes, strict=True)]
    return rows | {f"code{k}": code for k, code in enumerate(codes)}


class _GroupCoder:
    """Codes the groups of one column in the order in which they occur, and counts their rows."""

    def __init__(self, name: str, edges: Sequence[float] | Bins | None) -> None:
        self.name = name
        self.bins = None if edges is None else as_bins(edges, name)
        self.integers, self.span = True, Span()
        self.code_of: dict[str, int] = {}  # of each group, if the column is not binned
        self.counts = np.zeros(0, np.int64)

    def codes(self, batch: Batch) -> CodeArray:
        """The code of each row of a batch."""
        if self.bins is None:
            codes = self._code_names(batch)
        else:
            numbers = read_numeric_column(batch.values[self.name], self.name)
            self.integers = self.integers and all_integers(numbers)
            self.span += Span.of(numbers)
            codes = self.bins.codes(numbers).astype(np.int32)
        width = len(self.code_of) if self.bins is None else len(self.bins.names)
        self.counts = np.bincount(codes[codes >= 0], minlength=width) + np.pad(self.counts, (0, width - len(self.counts)))
        return codes

    def _code_names(self, batch: Batch) -> CodeArray:
        import pyarrow as pa

        values = batch.texts[self.name]
        encoded = values if pa.types.is_dictionary(values.type) else values.dictionary_encode()
        names = group_names(pd.Series(_as_names(encoded.dictionary, self.name, batch.where), dtype=object))
        for name in names.dropna():
            self.code_of.setdefault(name, len(self.code_of))
        if len(self.code_of) > MAX_LEVELS:
            raise BadInput(
                f"column {self.name!r} holds more than {MAX_LEVELS:,} different values, like an identifier; a group needs a few levels. "
                "Use another column."
            )
        new_codes = np.array([*(MISSING if name is None else self.code_of[name] for name in names), MISSING], np.int32)
        codes: CodeArray = new_codes[dictionary_codes(encoded)]
        return codes

    def attribute(self, rows: int, reference: str | None) -> tuple[Attribute, CodeArray]:
        """The attribute without rows, and the position of each code's group among its levels."""
        bins = self.bins and self.bins.named_for(self.integers)
        names = list(self.code_of) if bins is None else list(bins.names)
        counts = pd.Series(self.counts, index=pd.Index(names, dtype=object))
        counts = counts[counts > 0].sort_values(ascending=False, kind="stable")
        if bins is None:
            levels = ordered_levels(counts, rows, self.name, reference)
        else:
            levels = ordered_bin_levels(counts, bins, self.span, self.name, reference)
        positions = {level: k for k, level in enumerate(levels)}
        level_codes = np.array([*(positions.get(name, MISSING) for name in names), MISSING], np.int32)
        return Attribute(self.name, levels, np.empty(0, np.int64), reference is not None, bins), level_codes


def _hash_names(names: npt.NDArray[np.object_]) -> HashArray:
    """A 64-bit hash of each name."""
    return np.asarray(pd.util.hash_array(names, categorize=False), dtype=np.uint64)


def _as_names(values: "pa.Array[Any]", name: str, where: str) -> npt.NDArray[np.object_]:
    """The names in an Arrow column as `read_table` reads them, None in empty cells."""
    import pyarrow as pa

    if pa.types.is_integer(values.type):
        values = values.cast(pa.string())
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        check_lengths(values, name, where)
        names: npt.NDArray[np.object_] = np.array(values.to_numpy(zero_copy_only=False), dtype=object)
        names[names == ""] = None
        return names
    return np.asarray(arrow_texts(values, name, Path(where)).to_numpy(dtype=object))
