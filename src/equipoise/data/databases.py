"""Tables in a database: PostgreSQL, SQLite or a DuckDB file. They are read where they are, in one read-only snapshot.

What leaves the database are names of groups and sums over groups of enough patients; no row does. The connection comes from a URL without
a password: `postgresql://user@host:5432/database/schema.view`, `sqlite:///file.db?table=scores`, `duckdb:///file.duckdb?table=main.scores`.
PostgreSQL takes what the URL leaves out, and the password, from its own places: PGHOST, PGUSER, PGPASSWORD, PGSERVICE, a password file.
Each statement is logged by `equipoise.sql` (`--show-sql`).
"""

import logging
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Timer
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import numpy as np
import pandas as pd

from equipoise.data import attribute as groups
from equipoise.data import column_values
from equipoise.data.columns import Columns
from equipoise.data.engines import Engine, Table, quoted
from equipoise.disk import DATABASE_SCHEMES
from equipoise.errors import BadInput, EquipoiseError, first_line, needing, raise_all

log = logging.getLogger("equipoise.sql")
TIMEOUT_SECONDS = 600.0  # of a statement; ?timeout= in the URL sets another
NUMBERS = {20, 21, 23, 700, 701, 1700}  # PostgreSQL's ids of the types of numbers
BOOLEAN = 16
DENIED = {  # what a database says, by the name of its error, and what to do
    "InsufficientPrivilege": "the role may not read it: GRANT SELECT ON the table (and USAGE ON its schema) TO the role",
    "UndefinedTable": "there is no such table or view, or the role may not see it. Check schema and name",
    "InvalidSchemaName": "there is no such schema. Check its name",
    "QueryCanceled": "a statement took longer than the timeout, or was cancelled: raise ?timeout=SECONDS in the URL",
    "OperationalError": "the connection failed or was lost. Check host, port, database and role, and run it again",
    "AdminShutdown": "the server was shut down. Run it again",
    "InterruptException": "a statement took longer than the timeout: raise ?timeout=SECONDS in the URL",
}


@dataclass(frozen=True)
class Place:
    """Where a table is, from its URL."""

    scheme: str
    table: str
    database: str  # or a file
    options: Mapping[str, Any]
    timeout: float

    @classmethod
    def of(cls, url: object) -> "Place":
        scheme, rest = re.sub(DATABASE_SCHEMES, r"\1://", str(url), count=1).split("://", 1)
        parts = urlsplit(f"//{rest}")
        if parts.password is not None:
            raise BadInput("a password does not belong in the name of a table, which outputs hold. Set PGPASSWORD, or use a password file.")
        options = dict(parse_qsl(parts.query))
        try:
            timeout = float(options.pop("timeout", TIMEOUT_SECONDS))
        except ValueError:
            raise BadInput(f"timeout must be a number of seconds; got {parts.query!r}") from None
        if scheme == "postgresql":
            database, _, table = unquote(parts.path.lstrip("/")).partition("/")
            known = {"host": parts.hostname, "port": parts.port, "user": parts.username, "dbname": database}
            settings = {key: value for key, value in known.items() if value} | options
        else:
            table, path = options.pop("table", ""), unquote(parts.netloc + parts.path)
            database, settings = str(Path(path) if Path(path).exists() else Path("/") / path), {}
        if not table:
            expected = {"postgresql": "postgresql://host/database/schema.view"}.get(scheme, f"{scheme}:///file.db?table=scores")
            raise BadInput(f"the URL names no table; expected {expected}")
        if scheme != "postgresql" and not Path(database).is_file():
            raise BadInput(f"no such file: {database}. Check the name and the folder.")
        return cls(scheme, table, database, settings, timeout)

    @property
    def relation(self) -> str:
        """The table in SQL: a schema and a name, or a name."""
        return ".".join(map(quoted, self.table.split(".", 1)))


class Database(Engine):
    """A database that is only read. What is kept for later queries are their common table expressions."""

    remote = True

    def __init__(self, connection: Any, place: Place) -> None:
        super().__init__(connection)
        self.place, self.kept = place, dict[str, str]()
        self.ends = np.inf  # when a statement has taken too long

    def query(self, sql: str) -> Table:
        used, found = set[str](), sql
        for name in reversed(self.kept):
            if re.search(rf"\b{name}\b", found):
                used.add(name)
                found += f" {self.kept[name]}"
        kept = ", ".join(f"{name}{body}" for name, body in self.kept.items() if name in used)
        rest = sql[5:] if sql.startswith("with ") else sql
        whole = f"with {kept}{', ' if sql.startswith('with ') else ' '}{rest}" if kept else sql
        log.info("%s;", whole)
        self.ends = time.monotonic() + self.place.timeout
        timer = Timer(self.place.timeout, self.connection.interrupt) if self.place.scheme == "duckdb" else None
        if timer:
            timer.start()
        try:
            cursor = self.connection.execute(whole)
            columns = list(zip(*cursor.fetchall(), strict=True)) or [()] * len(cursor.description)
        finally:
            if timer:
                timer.cancel()
        return {described[0]: _array(column) for described, column in zip(cursor.description, columns, strict=True)}

    def view(self, name: str, sql: str) -> None:
        self.drop(name)
        self.kept[name] = f" as ({sql})"

    def keep(self, name: str, sql: str, parts: Sequence[str] = ("1 = 1",)) -> None:
        self.view(name, sql.replace("{part}", parts[0]))

    def parts(self, count: int) -> list[str]:  # noqa: ARG002 (the database divides the work itself)
        return ["1 = 1"]

    def values(self, name: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        self.drop(name)
        listed = ", ".join(f"({', '.join(row)})" for row in rows)
        self.kept[name] = f"({', '.join(columns)}) as (values {listed})"

    def drop(self, *names: str) -> None:
        for name in names:
            self.kept.pop(name, None)


def _array(values: Sequence[Any]) -> Any:
    """A column of a result: numbers, with NaN for NULL, or objects."""
    if any(isinstance(value, str) for value in values):
        return np.array(values, dtype=object)
    return np.array([np.nan if value is None else float(value) for value in values], dtype=np.float64)


@contextmanager
def database(url: object) -> Iterator[Database]:
    """A database in one read-only transaction, whose snapshot all queries see; its errors are `BadInput` and say what to do."""
    place = Place.of(url)
    connection = None
    try:
        connection = _connect(place)
        yield Database(connection, place)
    except EquipoiseError:
        raise
    except Exception as error:
        names = [kind.__name__ for kind in type(error).__mro__]
        if not {"Error", "DatabaseError"} & {*names}:
            raise
        known = next(
            (DENIED[name] for name in names if name in DENIED and not (name == "OperationalError" and place.scheme != "postgresql")), ""
        )
        if "interrupted" in str(error):
            known = DENIED["InterruptException"]
        raise BadInput(f"{place.table} in {place.scheme}: {known or first_line(error)}.") from None
    finally:
        if connection is not None:
            connection.close()


def _connect(place: Place) -> Any:
    if place.scheme == "postgresql":
        with needing("a table in PostgreSQL"):
            import psycopg

        # Of sums over sums PostgreSQL knows no sizes: it would join them row by row, in minutes instead of milliseconds.
        plans = "-c enable_nestloop=off -c jit=off"
        timeout = f"-c statement_timeout={int(1000 * place.timeout)} -c default_transaction_read_only=on {plans}"
        connection: Any = psycopg.connect(application_name="equipoise", options=timeout, connect_timeout=10, **place.options)
        connection.isolation_level, connection.read_only = psycopg.IsolationLevel.REPEATABLE_READ, True
        return connection
    if place.scheme == "sqlite":
        import sqlite3

        lite = sqlite3.connect(f"{Path(place.database).absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)
        ends = {"at": np.inf}
        lite.set_progress_handler(lambda: time.monotonic() > ends["at"], 100_000)
        ends["at"] = time.monotonic() + place.timeout
        lite.execute("begin")
        return lite
    with needing("a DuckDB file"):
        import duckdb

    duck = duckdb.connect(place.database, read_only=True)
    duck.execute("begin transaction")
    return duck


def stage(engine: Database, columns: Columns) -> None:
    """Makes the view `staged` of the columns that have a role, as `scans` does of files; raises `BadInput` with what is wrong."""
    names, place, relation = list(columns.used), engine.place, engine.place.relation
    described = engine.connection.execute(f"select * from {relation} where 1 = 0").description
    present = [column[0] for column in described]
    raise_all(column_values.missing_columns([name for name in names if name not in present], present), place.table)
    kinds = {column[0]: _kind(engine, column) for column in described if column[0] in names}
    made, wrong, several = list[str](), dict[str, str](), len(columns.label) > 1
    for k, (label, score) in enumerate(zip(columns.label, columns.score, strict=True)):
        cell, name, number = _cell(label, kinds[label], columns)
        if columns.positive is None:
            y = f"when {number} = 1 then 1 when {number} = 0 then 0"
            what = f"label column {label!r} must hold 0 and 1{', or NULL or -1 where it is not known' if several else ''}"
        else:
            known = groups.to_numbers(pd.Series([columns.positive], dtype=object))[0]
            equal = f"{number} = {float(known)!r}" if kinds[label] == "number" else f"{name} = {_text(groups.level_name(columns.positive))}"
            y, what = f"when {equal} then 1 when {cell} is not null then 0", f"label column {label!r} must hold a value"
        unknown = f"when {cell} is null or {number} = -1 then -1" if several else f"when {cell} is null then null"
        y = f"case {unknown} {y} end"
        p = _cell(score, kinds[score], columns)[2]
        usable = f"{p} between -1e300 and 1e300" if columns.logits else f"{p} between 0 and 1"
        made += [f"{y} as y{k}", f"{p} as s{k}"]
        wrong[what] = f"({y}) is null"
        wrong[f"score column {score!r} must hold {'finite numbers' if columns.logits else 'numbers in [0, 1]'}"] = (
            f"({y}) >= 0 and case when {usable} then 0 else 1 end = 1"
        )
    for k, group in enumerate(columns.group):
        cell, name, number = _cell(group, kinds[group], columns)
        if group in columns.bins:
            made.append(f"{number} as b{k}")
            wrong[f"column {group!r} is to be binned and must hold numbers"] = f"{cell} is not null and {number} is null"
        else:
            made.append(f"case when trim({name}) <> '' then {name} end as g{k}")
    if columns.patient is not None:
        cell, name, _ = _cell(columns.patient, kinds[columns.patient], columns)
        made.append(f"{cell} as unit")
        wrong[f"patient column {columns.patient!r} must hold an id"] = f"{cell} is null or trim({name}) = ''"
    if columns.weight is not None:
        w = _cell(columns.weight, kinds[columns.weight], columns)[2]
        made.append(f"{w} as w")
        wrong[f"weight column {columns.weight!r} must hold positive, finite numbers"] = (
            f"case when {w} > 0 and {w} < 1e300 then 0 else 1 end = 1"
        )
    counts = ", ".join(f"sum(case when {sql} then 1 else 0 end) as bad{k}" for k, sql in enumerate(wrong.values()))
    found = engine.query(f"select count(*) as n, {counts} from {relation}")
    problems = [
        f"{what}; {int(found[f'bad{k}'][0]):,} of {int(found['n'][0]):,} rows do not. Correct the view, or leave those rows out of it"
        for k, what in enumerate(wrong)
        if found["n"][0] and found[f"bad{k}"][0]
    ]
    raise_all(problems, place.table)
    engine.view("staged", f"select {', '.join(made)} from {relation}")


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _kind(engine: Database, column: Sequence[Any]) -> str:
    """Whether a column holds numbers, booleans or text. SQLite has no types of columns, so its values are looked at."""
    if engine.place.scheme == "sqlite":
        name = quoted(column[0])
        other = f"sum(case when typeof({name}) in ('text', 'blob') then 1 else 0 end)"
        return "text" if engine.query(f"select coalesce({other}, 0) as n from {engine.place.relation}")["n"][0] else "number"
    kind = column[1]
    if kind == BOOLEAN or str(kind) == "BOOLEAN":
        return "boolean"
    return "number" if kind in NUMBERS or re.match(r"U?(TINY|SMALL|BIG|HUGE)?INT(EGER)?|FLOAT|DOUBLE|DECIMAL|NUMBER", str(kind)) else "text"


def _cell(column: str, kind: str, columns: Columns) -> tuple[str, str, str]:
    """The cell of a column in SQL, the same as a name and as a number; NULL if it is missing."""
    cell = quoted(column)
    if kind == "boolean":
        cases = (f"case when {cell} then {yes} when not {cell} then {no} end" for yes, no in (("'True'", "'False'"), ("1", "0")))
        name, number = cases
        return cell, name, number
    name, number = f"cast({cell} as varchar)", f"cast({cell} as double precision)" if kind == "number" else "cast(null as double precision)"
    if columns.missing and column not in columns.text:
        codes = groups.to_numbers(pd.Series(list(columns.missing), dtype=object)) if kind == "number" else columns.missing
        listed = [f"{code!r}" for code in codes if np.isfinite(code)] if kind == "number" else [_text(str(code)) for code in codes]
        if listed:
            unless = f"case when {cell} in ({', '.join(listed)}) then null else"
            return f"{unless} {cell} end", f"{unless} {name} end", f"{unless} {number} end"
    return cell, name, number
