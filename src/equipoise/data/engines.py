"""Engines that answer queries about a table: DuckDB inside this process for files, or the database that holds the table.

A query is plain SQL that DuckDB, PostgreSQL and SQLite share: names in double quotes, common table expressions, windows. What one query
makes for later ones is a temporary table in DuckDB, and in a database, which is only read, a common table expression of later queries.
"""

import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from equipoise.disk import LIMIT_VARIABLE
from equipoise.errors import BadInput, first_line, needing

MEMORY_BYTES = 700_000_000  # of DuckDB; what needs more goes to the temporary folder, encrypted
Table = dict[str, npt.NDArray[Any]]


def quoted(name: str) -> str:
    """A name of a column or a table in SQL."""
    return '"' + name.replace('"', '""') + '"'


def sql_text(value: str) -> str:
    """A text in SQL."""
    return "'" + value.replace("'", "''") + "'"


class Engine:
    """Answers queries. `remote` is whether the rows are in a database, which only sums over enough patients may leave."""

    remote = False
    uniform = "unit / 18446744073709551616.0"  # a number in [0, 1) of each patient, from a hash

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    def run(self, sql: str) -> Any:
        """Runs a statement."""
        return self.connection.execute(sql)

    def query(self, sql: str) -> Table:
        """The columns of the result; NULL is NaN in numbers and None in text."""
        return {name: _filled(column) for name, column in self.run(sql).fetchnumpy().items()}

    def view(self, name: str, sql: str) -> None:
        """Names the rows of a query for later ones."""
        self.run(f"create or replace temp view {name} as {sql}")

    def keep(self, name: str, sql: str, parts: Sequence[str] = ("1 = 1",)) -> None:
        """Names the rows of a query for several later ones, which do not compute them again; its `{part}` stands for each of the parts."""
        for k, part in enumerate(parts):
            self.run(f"{f'insert into {name}' if k else f'create or replace temp table {name} as'} {sql.replace('{part}', part)}")

    def parts(self, count: int) -> list[str]:
        """Conditions in SQL that divide the patients into so many parts."""
        ends = [k * 2**64 // count for k in range(count + 1)]
        return [f"unit between {low} and {high - 1}" for low, high in pairwise(ends)] if count > 1 else ["1 = 1"]

    def values(self, name: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Names a small table of values in SQL."""
        listed = ", ".join(f"({', '.join(row)})" for row in rows)
        self.keep(name, f"select * from (values {listed}) as listed({', '.join(columns)})")

    def drop(self, *names: str) -> None:
        """Releases what was kept."""
        for name in names:
            self.run(f"drop table if exists {name}")

    def number(self, value: float) -> str:
        """A number in SQL, exactly."""
        return f"cast('{value!r}' as double precision)"


@contextmanager
def embedded(name: str, max_bytes: int) -> Iterator[Engine]:
    """DuckDB in this process, with its memory and its temporary files limited; the files are deleted at the end.

    - `name`: of the table, for messages.
    - `max_bytes`: of temporary files.
    """
    with needing("a table of this size"):
        import duckdb
    folder = Path(tempfile.gettempdir()) / f"equipoise-{secrets.token_hex(8)}"  # made only if it is needed
    threads = os.environ.get("OMP_NUM_THREADS", "")
    settings: dict[str, Any] = {
        "memory_limit": f"{MEMORY_BYTES}B",
        "temp_directory": str(folder),
        "max_temp_directory_size": f"{max_bytes}B",
        "temp_file_encryption": True,  # of a process that was killed, nothing that can be read is left
        "force_mbedtls_unsafe": True,  # the cipher that is part of DuckDB; a better one would have to be downloaded
        "threads": int(threads) if threads.isdigit() and int(threads) else os.cpu_count() or 1,
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
    }
    connection = duckdb.connect(config=settings)
    connection.execute("set enable_progress_bar = false")
    try:
        yield Engine(connection)
    except duckdb.OutOfMemoryException:
        raise BadInput(
            f"{name} needs more than {MEMORY_BYTES:,} bytes of memory and more than {max_bytes:,} bytes in the temporary folder "
            f"{tempfile.gettempdir()}. If the table is right, raise the limit: data.max_table_bytes, or the environment variable "
            f"{LIMIT_VARIABLE}."
        ) from None
    finally:
        connection.close()
        shutil.rmtree(folder, ignore_errors=True)


def _filled(column: Any) -> npt.NDArray[Any]:
    """A column of DuckDB without its mask."""
    if not np.ma.isMaskedArray(column) or not np.ma.getmaskarray(column).any():
        return np.asarray(column)
    masked: Any = column if column.dtype == object else column.astype(np.float64)
    return np.asarray(masked.filled(None if column.dtype == object else np.nan))


def reason(error: Exception) -> str:
    """What DuckDB says about a file, without the values in it."""
    lines = str(error).splitlines()
    wanted = [
        line.strip() for line in lines if re.match(r"\s*(Expected Number|Maximum line size|Value with unterminated|Invalid unicode)", line)
    ]
    return ". ".join([first_line(error), *wanted[:1]])
