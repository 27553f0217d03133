"""Scans: scores in tables of any size that are audited where they lie. DuckDB reads the files, and what an audit needs is added up in it.

A table is a CSV or Parquet file, a folder of them, or a data set partitioned by folders such as sex=F. Columns are read as in `read_table`.
Each row is validated and stored in a few bytes, compressed: labels, scores, a code per attribute and a 64-bit hash of the patient (among
50 million patients the probability that any two have the same hash is below 1 in 10,000). A table of up to `ROWS_HELD` rows is then audited
in memory; of a larger one, only sums leave the engine (`measures.streaming`).
"""

import glob
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote

import numpy as np
import pandas as pd

from equipoise.data import attribute as groups
from equipoise.data import column_values, table_files
from equipoise.data.attribute import Attribute, IntArray, ObjectArray
from equipoise.data.cohort import Scores
from equipoise.data.columns import NOT_IN_BATCHES, Columns
from equipoise.data.databases import Place, database, stage
from equipoise.data.engines import Engine, embedded, quoted, reason, sql_text
from equipoise.disk import MAX_TABLE_BYTES, is_database, max_table_bytes, no_such_file
from equipoise.errors import BadInput, EquipoiseError, collecting, raise_all
from equipoise.specification import takes_fields_of

CHECKED_ROWS = 2**14  # that are read again around a value that cannot be used
NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"  # a missing value in the folder names of partitioned data sets
TABLE_SUFFIXES = (".parquet", ".pq", ".csv", ".tsv", ".csv.gz", ".tsv.gz")  # of the files in a folder that are read
ROWS_HELD = 2**21  # of one label in memory
EXPANSION = 50  # bytes of temporary files per byte of the table on disk, at most
MOST_ALIKE = 2**18  # ids that are compared, to find those that are alike
SHOWN_FROM = 5  # of a group whose number of rows may leave a database
MAX_LEVELS = 100_000  # a group column with more distinct values is refused as an identifier
NUMBER_TYPES = ("INT", "FLOAT", "DOUBLE", "DECIMAL", "BOOLEAN", "HUGEINT")  # in the names of DuckDB's types
DECIMAL_COMMA = r"\s*-?\d+(,\d+)?([eE][-+]?\d+)?\s*"


@takes_fields_of(Columns, without=("classes", "id", "score_prefix", "features", "view", *NOT_IN_BATCHES, "max_table_bytes"))
def scan(path: str | Path, *, name: str = "", **columns: Any) -> "Scan":
    """The scores in a table of any size, on disk or in a database, which `eq.audit` adds up where they are.

    `path` is a CSV or Parquet file, a folder of such files, a pattern such as `visits/*.csv`, or a data set partitioned by folders such as
    `sex=F`; or the URL of a table in a database, such as `postgresql://host/database/schema.view`. The columns have the same roles as in
    `Scores.from_frame`; identifiers and groups are read as text. Nothing is read yet.

    >>> scan("visits/", label="y", score="p", group="sex", patient="id").columns.group
    ('sex',)
    """
    return Scan(Path(path), Columns(**columns), name)


@dataclass(frozen=True)
class Scan:
    """A table on disk and its columns. It is read when it is audited: `eq.audit(scan)`."""

    path: Path  # or the URL of a table in a database
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
    def read(self) -> "Iterator[Scores | StoredRows]":
        """The rows: in memory, or coded in an engine that is closed when the context ends."""
        with read_scans({self.columns.label[0]: self}) as stored:
            yield stored[self.columns.label[0]]

    @property
    def called(self) -> str:
        """The name of the scores in messages and results."""
        return self.name or (Place.of(self.path).table if is_database(self.path) else self.path.name)


@dataclass(frozen=True, eq=False)
class StoredRows:
    """The coded rows of a table in an engine: of each, its labels (-1: unknown), scores, groups, patient and weight."""

    engine: Engine
    name: str
    rows_stored: int
    attributes: tuple[Attribute, ...]  # without codes
    has_patients: bool
    weighted: bool
    logits: bool  # whether the stored scores are logits
    label: int = 0  # the position among the labels that are stored together

    @property
    def score(self) -> str:
        """The score in SQL."""
        stored = f"s{self.label}"
        return f"1 / (1 + exp(-greatest({stored}, -700)))" if self.logits else stored

    @property
    def group(self) -> str:
        """The name of the group of the only attribute in SQL."""
        if len(self.attributes) > 1:
            raise BadInput(
                f"the rule reads one group, and there are several: {', '.join(a.name for a in self.attributes)}. Name one (--group)."
            )
        steps = " ".join(f"when {code} then {sql_text(level)}" for code, level in enumerate(self.attributes[0].levels))
        return f"case code0 {steps} end"

    def rows(self, decision: str) -> str:
        """The rows in which the label is known, in SQL, with a decision on them (see `Rule.sql`)."""
        columns = {"y": f"y{self.label}", "score": self.score, "ranked": f"s{self.label}", "f": decision}
        return self._select(columns, f"y{self.label} >= 0")

    def rows_without_finding(self, decisions: Sequence[str]) -> str:
        """The rows in which all labels are known, with the label that none is positive and the decision that none is decided so."""
        places = range(len(decisions))
        decided = " * ".join(f"(1 - {each})" for each in decisions)
        none = f"case when {' or '.join(f'y{k} = 1' for k in places)} then 0 else 1 end"
        return self._select({"y": none, "score": decided, "ranked": decided, "f": decided}, " and ".join(f"y{k} >= 0" for k in places))

    def _select(self, columns: Mapping[str, str], known: str) -> str:
        names = [f"code{k}" for k in range(len(self.attributes))] + ["unit"] + ["w"] * self.weighted
        listed = ", ".join([*(f"{sql} as {name}" for name, sql in columns.items()), *names])
        return f"select {listed} from coded where {known}"


@contextmanager
def read_scans(scans: Mapping[str, Scan]) -> "Iterator[Mapping[str, Scores] | Mapping[str, StoredRows]]":
    """The rows of each label of one table, which is read once: those in which it is known, in memory or in an engine."""
    first = next(iter(scans.values()))
    aligned = [replace(s, columns=s.columns.changed(label=first.columns.label, score=first.columns.score)) for s in scans.values()]
    if any(s != first for s in aligned):
        raise BadInput(
            f"the labels {', '.join(scans)} are read together, from one table with the same groups, patients and weights. Scan the same "
            "path with the same columns for each, or audit them one by one."
        )
    own = [scan.columns for scan in scans.values()]
    columns = first.columns.changed(label=[c.label[0] for c in own], score=[c.score[0] for c in own])
    if is_database(first.path):
        if columns.conflicts != "row":
            raise BadInput("data.conflicts is for files. In a database, leave it out, and make a view in which each patient has one group.")
        with database(first.path) as source:
            stage(source, columns)
            yield _TableCoder(source, columns, first.called).stored(list(scans))
        return
    files = _table_files(first.path)
    allowed = max(MAX_TABLE_BYTES, max_table_bytes() if first.limit is None else first.limit)
    with embedded(first.called, max(allowed, EXPANSION * sum(file.stat().st_size for file, _ in files))) as engine:
        coder = _TableCoder(engine, columns, first.called)
        for file, partition in files:
            coder.add(file, str(file.relative_to(first.path)) if first.path.is_dir() else file.name, partition)
        yield coder.stored(list(scans))


def _table_files(path: Path) -> list[tuple[Path, dict[str, str | None]]]:
    """The files of a table in order, each with the column values in the names of its folders."""
    if path.is_file():
        return [(path, {})]
    if not path.is_dir():
        if glob.has_magic(str(path)) and (found := sorted(glob.glob(str(path), recursive=True))):  # noqa: PTH207 (absolute too)
            return [file for each in found for file in _table_files(Path(each))]
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


@dataclass(frozen=True)
class _File:
    """One file as a relation in SQL, with the type of each column that it has."""

    relation: str
    types: Mapping[str, str]
    commas: bool = False  # whether numbers may have decimal commas
    csv: bool = False

    @classmethod
    def of(cls, engine: Engine, file: Path, where: str, needed: Sequence[str]) -> "_File":
        name = sql_text("".join(f"[{c}]" if c in "*?[" else c for c in str(file)))
        if table_files.is_parquet(file):
            _, schema = table_files.parquet_header(file)
            raise_all(column_values.missing_columns([name for name in needed if name not in schema.names], schema.names), where)
            table_files.flat_columns(schema, needed, where)
            relation = f"read_parquet({name})"
            described = engine.query(
                f"select column_name, column_type from (describe select {', '.join(map(quoted, needed)) or '*'} from {relation})"
            )
            return cls(relation, dict(zip(described["column_name"], described["column_type"], strict=True)))
        if table_files.last_line_too_long(file):
            raise _unreadable(where, ValueError("Maximum line size"))
        dialect = table_files.dialect_of(file)
        names = [name for name in dialect.names if name]
        raise_all(column_values.missing_columns([name for name in needed if name not in names], names), where)
        if dialect.skip_space:
            raise BadInput(f"{where} has a space after each separator. Export it without these spaces, or as Parquet.")
        columns = ", ".join(f"{sql_text(name or raw)}: 'VARCHAR'" for raw, name in zip(dialect.raw_names, dialect.names, strict=True))
        how = {
            "columns": f"{{{columns}}}",
            "auto_detect": "false",
            "header": "true",
            "delim": sql_text(dialect.separator),
            "quote": "'\"'",
            "escape": "'\"'",
            "nullstr": "''",
            "strict_mode": "true",
            "skip": str(dialect.lines_before),
            "max_line_size": str(table_files.HEADER_BYTES),
            "encoding": "'utf-16'" if dialect.encoding == "utf-16" else "'utf-8'",
            "compression": "'gzip'" if table_files.is_gzip(file) else "'none'",
        }
        relation = f"read_csv({name}, {', '.join(f'{key}={value}' for key, value in how.items())})"
        return cls(relation, dict.fromkeys(names, "VARCHAR"), dialect.separator != ",", csv=True)


class _TableCoder:
    """Reads the files of a table into an engine, and codes their rows."""

    def __init__(self, engine: Engine, columns: Columns, name: str) -> None:
        self.engine, self.columns, self.name = engine, columns, name
        self.patient_type = ""  # integers or text
        self.case = ""  # of most letters in ids: lower or upper
        if engine.remote:  # where the view `staged` is there already
            return
        made = [*(f"y{k} tinyint, s{k} double" for k in range(len(columns.label)))]
        made += [f"b{k} double" if group in columns.bins else f"g{k} varchar" for k, group in enumerate(columns.group)]
        made += ["unit ubigint", "odd varchar"] if columns.patient is not None else []
        made += ["w double"] if columns.weight is not None else []
        engine.run(f"create temp table staged ({', '.join([*made, 'bad boolean'])})")

    def add(self, file: Path, where: str, partition: Mapping[str, str | None]) -> None:
        """Adds the rows of a file; raises `BadInput` with everything wrong with those around the first that cannot be used."""
        columns, requested = self.columns, list(self.columns.used)
        start = self._count()
        try:
            source = _File.of(self.engine, file, where, [name for name in requested if name not in partition])
            constants = {name: "null" if value is None else sql_text(value) for name, value in partition.items() if name in requested}
            cells = {name: _Cell.of(name, source, constants, columns) for name in requested}
            self._check_patients(cells, where)
            if columns.patient is not None and not self.case:
                some = f"select {cells[columns.patient].name} as name from {source.relation} limit 1000"
                joined = "".join(
                    name for name in self.engine.query(f"select cast(name as varchar) as name from ({some}) as first_rows")["name"] if name
                )
                self.case = "upper" if sum(map(str.isupper, joined)) > sum(map(str.islower, joined)) else "lower"
            self.engine.run(f"insert into staged select {', '.join(_staged(cells, columns, self.case))} from {source.relation}")
            bad = self.engine.query(f"select min(rowid) as first from staged where bad and rowid >= {start}")["first"][0]
            if np.isnan(bad):
                return
            first = int(bad) - start
            self._raise_problems(source, constants, first - first % CHECKED_ROWS, where)
        except EquipoiseError:
            raise
        except Exception as error:
            if type(error).__name__ == "OutOfMemoryException":
                raise
            raise _unreadable(where, error) from error

    def _count(self) -> int:
        return int(self.engine.query("select count(*) as n from staged")["n"][0])

    def _check_patients(self, cells: "Mapping[str, _Cell]", where: str) -> None:
        """Raises `BadInput` if integers and text are mixed, so that 7 and '7' cannot be two patients."""
        if self.columns.patient is None:
            return
        kind = "integers" if "INT" in cells[self.columns.patient].type else "text"
        if self.patient_type not in ("", kind):
            raise BadInput(
                f"patient column {self.columns.patient!r} holds {kind} in {where} and {self.patient_type} before. Store it as text in all "
                "files."
            )
        self.patient_type = kind

    def _raise_problems(self, source: _File, constants: Mapping[str, str], start: int, where: str) -> None:
        """Raises `BadInput` with everything wrong with the rows of a file from this one on."""
        columns, problems = self.columns, list[str]()
        listed = ", ".join(f"{constants.get(name, quoted(name))} as {quoted(name)}" for name in columns.used)
        chunk = f"select {listed} from {source.relation} limit {CHECKED_ROWS} offset {start}"
        for name in columns.text & columns.used.keys() - constants.keys():
            length = {"VARCHAR": "strlen", "BLOB": "octet_length"}.get(source.types.get(name, "VARCHAR"))
            if length:
                longest = self.engine.query(f"select coalesce(max({length}({quoted(name)})), 0) as n from {source.relation}")["n"][0]
                problems += [table_files.long_name_problem(name, int(longest))] if longest > table_files.LONGEST_NAME else []
        raise_all(problems, where)
        table = self.engine.connection.sql(chunk).to_arrow_table()
        count, found = table.num_rows, dict[str, Any]()
        place = f"{where}, rows {start + 1:,} to {start + count:,} (the numbers of rows below count from there)" if start else where
        plain = {*columns.label, *columns.score, columns.weight, *columns.bins}
        for name in columns.used:
            with collecting(problems):
                values = (table_files.arrow_texts if name in columns.text else lambda cells, *_: table_files.arrow_values(cells))(
                    table[name], name, where
                )
                if source.csv and name not in columns.text:
                    values = values.where(~values.isin(table_files.MISSING_WORDS), None)
                    if source.commas and name not in columns.words:
                        values = values.map(lambda cell: cell.replace(",", ".") if isinstance(cell, str) and cell.count(",") == 1 else cell)
                found[name] = column_values.without_texts(values, columns.missing) if name in plain else values
        raise_all(problems, place)
        for label, score in zip(columns.label, columns.score, strict=True):
            y, label_problems = column_values.parse_label(found[label], label, columns.positive, unknown_allowed=len(columns.label) > 1)
            known = y != column_values.UNKNOWN
            problems += label_problems + column_values.read_score_column(found[score], score, columns.logits, known)[-1]
        if columns.weight is not None:
            problems += column_values.read_weights(found[columns.weight], columns.weight)[-1]
        for name in columns.bins:
            with collecting(problems):
                groups.read_numeric_column(found[name], name)
        if columns.patient is not None:
            problems += column_values.identifier_problems(found[columns.patient], columns.patient, "patient")
        raise_all(problems or [f"a value in the columns {', '.join(columns.used)} cannot be used"], place)

    def stored(self, labels: Sequence[str]) -> "Mapping[str, Scores] | Mapping[str, StoredRows]":
        """The rows of each label; raises `BadInput` with everything wrong with the table as a whole."""
        engine, columns, problems, rows = self.engine, self.columns, list[str](), self._count()
        if not rows:
            raise BadInput("the table has no rows", source=self.name)
        for k, label in enumerate(columns.label):
            n = engine.query(
                f"select count(*) as n, coalesce(sum(case when y{k} = 1 then 1 else 0 end), 0) as n1 from staged where y{k} >= 0"
            )
            problems += column_values.constant_label_problems(int(n["n1"][0]), int(n["n"][0]), label, columns.positive)
        attributes = []
        for k, reference in enumerate(columns.references):
            with collecting(problems):
                attributes.append(self._code_groups(k, reference, rows))
        raise_all(problems, self.name)
        self._warn_of_alike_patients()
        joins = " ".join(f"left join levels{k} on g{k} = levels{k}.name" for k, a in enumerate(attributes) if a.bins is None)
        codes = [
            f"coalesce(levels{k}.code, -1) as code{k}" if a.bins is None else f"{self._bin_code(k, a)} as code{k}"
            for k, a in enumerate(attributes)
        ]
        held, several = rows <= ROWS_HELD and not engine.remote, columns.conflicts != "row"
        hashed = "0 as unit" if engine.remote else "hash(staged.rowid) as unit"
        own = (
            [f"y{k}, s{k}" for k in range(len(columns.label))]
            + [hashed if columns.patient is None else "unit"]
            + ["w"] * (columns.weight is not None)
        )
        own += ["staged.rowid as pos"] if held or several else []
        engine.keep("coded", f"select {', '.join([*own, *codes])} from staged {joins}")
        if not engine.remote:
            engine.drop("staged")
        if several:
            attributes = _resolved(engine, attributes, columns)
        shared = engine, self.name, rows, tuple(attributes), columns.patient is not None, columns.weight is not None, columns.logits
        if not held:
            return {label: StoredRows(*shared, k) for k, label in enumerate(labels)}
        table = engine.query("select * from coded order by pos")
        return {label: _scores(StoredRows(*shared, k), table) for k, label in enumerate(labels)}

    def _code_groups(self, k: int, reference: object, rows: int) -> Attribute:
        """An attribute without codes; the table `levels{k}` has the code of each name."""
        columns, name, engine = self.columns, self.columns.group[k], self.engine
        coder = groups.GroupCoder(name, columns.bins.get(name))
        coder.rows = rows
        n = f"case when count(*) between 1 and {SHOWN_FROM - 1} then 1 else count(*) end" if engine.remote else "count(*)"
        if coder.bins is not None:
            b, codes = f"b{k}", _bin_of(f"b{k}", coder.bins.edges)
            suspects = ", ".join(map(str, groups.SENTINELS))
            found = engine.query(f"select {codes} as code, {n} as n from staged where {b} is not null group by 1")
            coder.counts[found["code"].astype(int)] = found["n"].astype(int)
            regular = f"{b} is not null and {b} not in ({suspects})"
            if engine.remote:  # the smallest and the largest value are those of a patient
                coder.low, coder.high, coder.span_known = min(0.0, coder.bins.edges[0]), coder.bins.edges[-1], False
            else:
                ends = engine.query(f"select min({b}) as low, max({b}) as high from staged where {regular}")
                low, high = float(ends["low"][0]), float(ends["high"][0])
                coder.low, coder.high = (np.inf, -np.inf) if np.isnan(low) else (low, high)
            broken = engine.query(f"select {n} as n from staged where {b} <> floor({b})")
            coder.integers = not broken["n"][0]
            suspect = engine.query(f"select {b} as value, {n} as n from staged where {b} in ({suspects}) group by 1")
            coder.suspects.update(dict(zip(suspect["value"].tolist(), suspect["n"].astype(int).tolist(), strict=True)))
            return coder.attribute(cast("str | None", reference))[0]
        first = f"-{n}" if engine.remote else "min(rowid)"
        named = f"select g{k} as name, {n} as n, {first} as first from staged where g{k} is not null"
        found = engine.query(f"{named} group by 1 order by 3, 1 limit {MAX_LEVELS + 1}")
        if len(found["n"]) > MAX_LEVELS:
            raise BadInput(
                f"column {name!r} holds more than {MAX_LEVELS:,} different values, like an identifier; a group needs a few levels. Use "
                "another column."
            )
        raw = pd.Series(found["name"], dtype=object)
        names = groups.merge_groups(column_values.without_texts(raw, columns.missing), columns.merge)
        places = coder.add_names(list(names), np.arange(len(names)))
        coder.rows, coder.counts = rows, np.bincount(places[places >= 0], found["n"][places >= 0], len(coder.code_of)).astype(np.int64)
        attribute, level_codes = coder.attribute(cast("str | None", reference))
        listed = [(sql_text(each), str(level_codes[code])) for each, code in zip(raw, places, strict=True)]
        engine.values(f"levels{k}", ("name", "code"), listed)
        return attribute

    def _bin_code(self, k: int, attribute: Attribute) -> str:
        """The code of the bin of a number in SQL, by the order of the levels."""
        bins = cast(groups.Bins, attribute.bins)
        places = {level: place for place, level in enumerate(attribute.levels)}
        codes = [places.get(name, -1) for name in bins.names]
        return _bin_of(f"b{k}", bins.edges, codes)

    def _warn_of_alike_patients(self) -> None:
        """Warns of patient ids that differ only in what cannot be seen: those that folding changes, and their folded forms."""
        if self.columns.patient is None or self.engine.remote:
            return
        found = self.engine.query(f"select distinct odd from staged where odd is not null limit {MOST_ALIKE}")["odd"].tolist()
        if not found:
            return
        changed: dict[str, set[str]] = {}
        for name, form in zip(found, map(str.upper if self.case == "upper" else str.lower, groups.folded_names(found)), strict=True):
            changed.setdefault(form, set()).add(name)
        self.engine.values("forms", ("form",), [(sql_text(form),) for form in changed])
        for form in self.engine.query("select form from forms where hash(form) in (select unit from staged)")["form"].tolist():
            changed[form].add(form)  # an id itself
        if sets := sorted(sorted(alike) for alike in changed.values() if len(alike) > 1):
            groups.warn_of_alike_patients(sets, str(self.columns.patient))


def _unreadable(where: str, error: Exception) -> BadInput:
    """The error for a file that DuckDB cannot read."""
    told = str(error)
    if "not utf-8" in told.lower():  # Windows-1252 is supported only for a file that is read as a whole
        return BadInput(f"{where} is not UTF-8, as a CSV file of this size must be. Export it as UTF-8 or as Parquet.")
    if "Maximum line size" in told:
        return BadInput(f"{where} has a line of more than {table_files.HEADER_BYTES:,} bytes. Export it again, with one line per row.")
    return table_files.unreadable(where, ValueError(reason(error)))


@dataclass(frozen=True)
class _Cell:
    """The cells of one column of a file in SQL: as text and as numbers, NULL if they are missing."""

    type: str
    name: str
    value: str
    number: str

    @classmethod
    def of(cls, name: str, source: _File, constants: Mapping[str, str], columns: Columns) -> "_Cell":
        dtype, cell = source.types.get(name, "VARCHAR"), constants.get(name, quoted(name))
        is_number = any(kind in dtype for kind in NUMBER_TYPES)
        if dtype in ("FLOAT", "DOUBLE"):  # 1.0 is 1, as pandas turns integers with gaps into floating-point numbers
            limit = 2**24 if dtype == "FLOAT" else 2**53
            whole = f"when {cell} = floor({cell}) then cast(cast({cell} as bigint) as varchar)"
            name_sql = f"case when abs({cell}) >= {limit} then null {whole} else cast({cell} as varchar) end"
        elif dtype == "BOOLEAN":
            name_sql = f"case when {cell} then 'True' when not {cell} then 'False' end"
        elif dtype == "BLOB":
            name_sql = f"case when octet_length({cell}) <= {table_files.LONGEST_NAME} then try(decode({cell})) end"
        else:
            name_sql = cell if dtype == "VARCHAR" else f"cast({cell} as varchar)"
        if dtype == "VARCHAR" and name in columns.text:
            name_sql = f"case when strlen({cell}) <= {table_files.LONGEST_NAME} then {cell} end"
        if is_number:
            number = f"cast({cell} as double)"
        elif dtype == "VARCHAR":
            point = (
                f"case when regexp_full_match({cell}, {sql_text(DECIMAL_COMMA)}) then replace({cell}, ',', '.') else {cell} end"
                if source.commas
                else cell
            )
            number = f"case when contains({cell}, '_') then null else try_cast({point} as double) end"
        else:
            number = "cast(null as double)"
        missing = (
            []
            if name in columns.text or not source.csv or name in constants
            else [f"{cell} in ({', '.join(map(sql_text, sorted(table_files.MISSING_WORDS)))})"]
        )
        if columns.missing and name not in columns.text:
            numbers = groups.to_numbers(pd.Series(list(columns.missing), dtype=object))
            listed = ", ".join(map(repr, numbers[np.isfinite(numbers)].tolist()))
            missing += [f"{number} in ({listed})"] if listed and (is_number or source.csv) else []
            missing += [] if is_number else [f"{name_sql} in ({', '.join(sql_text(groups.level_name(each)) for each in columns.missing)})"]
        if missing:
            unless = f"case when {' or '.join(missing)} then null else"
            return cls(dtype, f"{unless} {name_sql} end", f"{unless} {cell} end", f"{unless} {number} end")
        return cls(dtype, name_sql, cell, number)


def _staged(cells: Mapping[str, _Cell], columns: Columns, case: str) -> list[str]:
    """The columns of the staged table in SQL. In a row that is bad, some value cannot be used; odd are ids that folding may change."""
    made, bad, several = list[str](), list[str](), len(columns.label) > 1
    for label, score in zip(columns.label, columns.score, strict=True):
        cell, p = cells[label], cells[score].number
        unknown = f"when {cell.value} is null or {cell.number} = -1 then -1" if several else f"when {cell.value} is null then null"
        if columns.positive is None:
            y = f"case {unknown} when {cell.number} = 1 then 1 when {cell.number} = 0 then 0 end"
        else:
            y = f"case {unknown} when {_is_positive(cell, columns.positive)} then 1 else 0 end"
        usable = f"isfinite({p})" if columns.logits else f"{p} between 0 and 1"
        made += [y, p]
        bad += [f"({y}) is null", f"({y}) >= 0 and not coalesce({usable}, false)"]
    for name in columns.group:
        cell = cells[name]
        if name in columns.bins:
            made.append(f"case when trim(cast({cell.value} as varchar)) = '' then null else {cell.number} end")
            bad.append(f"trim(cast({cell.value} as varchar)) <> '' and not coalesce(isfinite({cell.number}), false)")
        else:
            made.append(f"case when trim({cell.name}) <> '' then {cell.name} end")
            bad.append(f"{cell.value} is not null and {cell.name} is null")
    if columns.patient is not None:
        cell = cells[columns.patient]
        name = cell.name
        integers = "INT" in cell.type
        made.append(f"hash(cast({cell.value} as bigint))" if integers else f"hash({name})")
        made.append("null" if integers else f"case when regexp_matches({name}, '[^!-~]') or {name} <> {case}({name}) then {name} end")
        bad.append(f"{cell.value} is null" if integers else f"coalesce(trim({name}) = '', true)")
    if columns.weight is not None:
        w = cells[columns.weight].number
        made.append(w)
        bad.append(f"not coalesce(isfinite({w}) and {w} > 0, false)")
    return [*made, " or ".join(f"({each})" for each in bad)]


def _is_positive(cell: _Cell, positive: object) -> str:
    """Whether a label is the positive value in SQL, as `column_values.equals` compares."""
    if any(kind in cell.type for kind in NUMBER_TYPES) and cell.type != "BOOLEAN":
        number = groups.to_numbers(pd.Series([positive], dtype=object))[0]
        return f"{cell.number} = {float(number)!r}" if np.isfinite(number) else "false"
    return f"{cell.name} = {sql_text(groups.level_name(positive))}"


def _bin_of(number: str, edges: Sequence[float], codes: Sequence[int] | None = None) -> str:
    """The bin of a number in SQL, as a position or as one of these codes; -1 for NULL."""
    named = range(len(edges) + 1) if codes is None else codes
    steps = " ".join(f"when {number} < {edge!r} then {code}" for edge, code in zip(edges, named, strict=False))
    return f"case when {number} is null then -1 {steps} else {named[-1]} end"


def _resolved(engine: Engine, attributes: Sequence[Attribute], columns: Columns) -> list[Attribute]:
    """The attributes under a rule of CONFLICTS for patients in several groups; the coded rows have their groups then."""
    rule, problems, resolved = columns.conflicts, list[str](), list[Attribute]()
    patients = int(engine.query("select count(distinct unit) as n from coded")["n"][0])
    for k, attribute in enumerate(attributes):
        order = {"majority": "n desc, first", "first": "first"}.get(rule, "code")
        several = f"select unit, code{k} as code, count(*) as n, min(pos) as first from coded where code{k} >= 0 group by 1, 2"
        main = f"row_number() over (partition by unit order by {order}) as place, count(*) over (partition by unit) as of"
        code = "-1" if rule == "blank" else "code"
        engine.keep(
            f"main{k}", f"select unit, {code} as code from (select *, {main} from ({several}) as each) as ranked where place = 1 and of > 1"
        )
        varied = int(engine.query(f"select count(*) as n from main{k}")["n"][0])
        if rule != "error":
            new = f"case when code{k} >= 0 and main{k}.unit is not null then main{k}.code else code{k} end"
            engine.keep(
                "coded_again", f"select coded.* replace ({new} as code{k}) from coded left join main{k} on coded.unit = main{k}.unit"
            )
            engine.run("drop table coded")
            engine.run("alter table coded_again rename to coded")
        found = engine.query(f"select code{k} as code, count(*) as n from coded where code{k} >= 0 group by 1")
        counts = np.zeros(len(attribute.levels), np.int64)
        counts[found["code"].astype(int)] = found["n"].astype(int)
        with collecting(problems):
            kept, new_codes = groups.resolve_conflicts(attribute, varied, patients, counts, rule, str(columns.patient))
            resolved.append(kept)
            if len(kept.levels) < len(attribute.levels):
                steps = " ".join(f"when {old} then {code}" for old, code in enumerate(new_codes[:-1]))
                engine.run(f"update coded set code{k} = case code{k} {steps} else -1 end")
    raise_all(problems)
    return resolved


def _scores(stored: StoredRows, table: Mapping[str, Any]) -> Scores:
    """The scores of one label in memory. Codes replace patient ids."""
    known = np.flatnonzero(table[f"y{stored.label}"] >= 0)
    rows = {name: column[known] for name, column in table.items()}
    score, logit = column_values.score_and_logit(rows[f"s{stored.label}"], stored.logits)
    attributes = tuple(replace(a, codes=rows[f"code{k}"].astype(np.int64)) for k, a in enumerate(stored.attributes))
    units: IntArray | None = pd.factorize(rows["unit"])[0].astype(np.int64) if stored.has_patients else None
    y = rows[f"y{stored.label}"].astype(np.int64)
    return Scores(
        y, score, attributes, cast("ObjectArray | None", units), cast(ObjectArray, known), stored.name, rows.get("w"), logit=logit
    )
