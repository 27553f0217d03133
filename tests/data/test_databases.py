"""The audit of a table in a database is that of the same rows in memory, and no row leaves the database."""

import json
import logging
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import pytest

import equipoise as eq
from equipoise.data import scans
from equipoise.data.databases import Database
from equipoise.errors import BadInput
from equipoise.measures import Audit, Threshold
from equipoise.methods.equalised_odds import EqualisedOdds, Steps
from equipoise.methods.reject_option import RejectOption
from equipoise.methods.thresholds import GroupThresholds
from support.facts import says

psycopg = pytest.importorskip("psycopg")
ROLES = {"label": "y", "score": "p", "group": ["sex", "ward"], "patient": "patient", "reference": ["M", "a"]}


def _free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])


class Server:
    """A PostgreSQL server in a temporary folder, on a free port."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder / "data", _free_port()
        self.how = {"user": "postgres"} if os.geteuid() == 0 else {}
        if self.how:
            shutil.chown(folder, "postgres")
        self.run("initdb", "-D", self.folder, "-A", "trust", "-U", "postgres", "--no-sync")
        self.start()

    def run(self, command: str, *arguments: object) -> None:
        """Runs one of the programs of PostgreSQL."""
        program = shutil.which(command) or next(map(str, Path("/usr/lib/postgresql").glob(f"*/bin/{command}")))
        subprocess.run([program, *map(str, arguments)], check=True, capture_output=True, cwd="/tmp", timeout=60, **self.how)

    def start(self) -> None:
        """Starts the server."""
        options = f"-p {self.port} -k {self.folder} -c listen_addresses=127.0.0.1 -c fsync=off"
        self.run("pg_ctl", "-D", self.folder, "-o", options, "-l", self.folder / "log", "-w", "start")

    def stop(self) -> None:
        """Stops the server at once."""
        self.run("pg_ctl", "-D", self.folder, "-m", "immediate", "stop")

    def connect(self) -> "psycopg.Connection[tuple[object, ...]]":
        """A connection that may write."""
        return psycopg.connect(host="127.0.0.1", port=self.port, user="postgres", dbname="postgres", autocommit=True)

    def url(self, table: str, user: str = "postgres") -> str:
        """The URL of a table."""
        return f"postgresql://{user}@127.0.0.1:{self.port}/postgres/{table}"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    if not shutil.which("initdb") and not list(Path("/usr/lib/postgresql").glob("*/bin/initdb")):
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    folder = Path(tempfile.mkdtemp(prefix="postgresql-"))
    try:
        made = Server(folder)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"PostgreSQL cannot be started here: {error.stderr[-200:]!r}")
    yield made
    made.stop()
    shutil.rmtree(folder, ignore_errors=True)


def _frame(seed: int) -> pd.DataFrame:
    """A random table: patients with several rows, rare groups, groups that change, empty cells."""
    rng = np.random.default_rng(seed)
    rows = int(rng.integers(60, 400))
    patient = rng.integers(0, max(2, int(rows / rng.uniform(1, 3))), rows)
    y = (rng.random(rows) < rng.uniform(0.2, 0.6)).astype(int)
    p = np.clip(rng.normal(0.4 + 0.2 * y, 0.2), 0, 1).round(int(rng.integers(2, 17)))
    varies = rng.random() < 0.5
    sex = np.array(["F", "M"])[(rng.integers(0, 2, rows) if varies else patient) % 2]
    ward = rng.choice(["a", "b", 'c\' "x"', None], rows, p=[0.5, 0.4, 0.06, 0.04])
    return pd.DataFrame({"y": y, "p": p, "sex": sex, "ward": ward, "patient": patient.astype(str), "w": rng.integers(1, 4, rows) / 2})


def _write(frame: pd.DataFrame, server: Server, folder: Path, name: str) -> dict[str, str | Path]:
    """The table in a file and in each database: where it is."""
    folder = folder / name
    folder.mkdir(exist_ok=True)
    frame.to_parquet(folder / "rows.parquet")
    with sqlite3.connect(folder / "rows.sqlite") as lite:
        frame.to_sql(name, lite, index=False, if_exists="replace")
    with duckdb.connect(str(folder / "rows.duckdb")) as duck:
        duck.execute(f"create or replace table {name} as select * from '{folder}/rows.parquet'")
    _to_postgresql(frame, server, name)
    return {
        "file": folder / "rows.parquet",
        "sqlite": f"sqlite:///{folder}/rows.sqlite?table={name}",
        "duckdb": f"duckdb:///{folder}/rows.duckdb?table={name}",
        "postgresql": server.url(name),
    }


def _to_postgresql(frame: pd.DataFrame, server: Server, name: str) -> None:
    with server.connect() as connection:
        connection.execute(f"drop table if exists {name} cascade")
        connection.execute(f"create table {name} (y int, p double precision, sex text, ward text, patient text, w double precision)")
        with connection.cursor().copy(f"copy {name} from stdin") as copy:
            for row in frame.astype(object).where(frame.notna(), None).itertuples(index=False):
                copy.write_row(row)


def _same(found: Audit, whole: Audit) -> None:
    """Rates, gaps and AUROC of all groups that both show are equal; a database may withhold more intersections."""
    both = found.gaps["value"].notna().to_numpy() & whole.gaps["value"].notna().to_numpy()
    assert found.gaps[["measure", "attribute", "group"]].equals(whole.gaps[["measure", "attribute", "group"]])
    assert (found.gaps["value"].isna() >= whole.gaps["value"].isna()).all()
    for name in ("value", "low", "high", "patients"):
        np.testing.assert_allclose(found.gaps[name][both].astype(float), whole.gaps[name][both].astype(float), atol=1e-9, err_msg=name)
    for rate in ("tpr", "fpr", "ppv", "selection_rate", "auroc"):
        known = found.groups[rate].notna().to_numpy()
        for end in ("", "_low", "_high"):
            limit = rate == "auroc" and end  # their degrees of freedom are computed in another way, which few rows show
            large = known & (whole.groups["n"] >= 100).to_numpy() if limit else known
            ours, theirs = found.groups[rate + end][large], whole.groups[rate + end][large]
            np.testing.assert_allclose(ours, theirs, atol=0.03 if limit else 1e-9, err_msg=rate + end)


@pytest.mark.parametrize("start", range(0, 40, 20))
def test_random_tables_in_files_and_databases_are_audited_as_in_memory(server: Server, tmp_path: Path, monkeypatch, start: int):
    monkeypatch.setattr(scans, "ROWS_HELD", 0)
    for seed in range(start, start + 20):
        frame = _frame(seed)
        roles = {**ROLES, **({"weight": "w"} if seed % 3 == 0 else {}), **({"patient": None} if seed % 7 == 0 else {})}
        whole = eq.audit(eq.Scores.from_frame(frame, **roles), threshold=0.45)
        for kind, place in _write(frame, server, tmp_path, "scores").items():
            if kind in ("file", "postgresql") or seed % 10 == 0:
                found = eq.audit(eq.scan(place, **roles), threshold=0.45)
                _same(found, whole)
                if kind == "file":
                    assert found.rows == whole.rows
                    assert found.groups["note"].str.contains("withheld").tolist() == whole.groups["note"].str.contains("withheld").tolist()


@pytest.fixture
def table(server: Server) -> pd.DataFrame:
    frame = _frame(5)
    _to_postgresql(frame, server, "scores")
    return frame


@pytest.mark.usefixtures("table")
def test_errors_say_what_to_do(server: Server):
    with server.connect() as connection:
        connection.execute("drop role if exists nobody_here")
        connection.execute("create role nobody_here login")
    tries = {
        server.url("scores", user="nobody_here"): "GRANT SELECT",
        server.url("scoes"): "no such table",
        server.url("nowhere.scores"): "no such",
        server.url("scores") + "?timeout=x": "number of seconds",
        f"postgresql://postgres:secret@127.0.0.1:{server.port}/postgres/scores": "PGPASSWORD",
        "postgresql://postgres@127.0.0.1:1/postgres/scores": "connection",
        f"postgresql://postgres@127.0.0.1:{server.port}/postgres": "names no table",
        "sqlite:///nowhere.db?table=x": "no such file",
    }
    for url, expected in tries.items():
        with pytest.raises(BadInput) as error:
            eq.audit(eq.scan(url, **ROLES), threshold=0.5)
        assert says(error.value, expected), url
        assert "secret" not in str(error.value)
    for change, expected in (
        ({"score": "w"}, "'w'"),
        ({"group": "none"}, "'none'"),
        ({"score": "sex"}, "'sex'"),
        ({"conflicts": "first"}, "view"),
    ):
        roles = {**ROLES, "reference": None, **change}
        with pytest.raises(BadInput) as error:
            eq.audit(eq.scan(server.url("scores"), **roles), threshold=0.5)
        assert says(error.value, expected)


def test_hostile_names_are_only_names(server: Server, table: pd.DataFrame):
    names = {"sex": 'sex"; drop table scores; --', "y": "la'bel", "p": "p; select 1"}
    hostile = "x'); drop table scores; --"
    frame = table.assign(sex=table["sex"].replace("F", hostile)).rename(columns=names)
    with server.connect() as connection:
        connection.execute('drop table if exists "odd; name"')
        listed = ", ".join(
            f'{column} as "{names.get(column, column).replace(chr(34), 2 * chr(34))}"' for column in table.columns if column != "sex"
        )
        odd = f"case sex when 'F' then 'x''); drop table scores; --' else sex end as \"{names['sex'].replace(chr(34), 2 * chr(34))}\""
        connection.execute(f'create table "odd; name" as select {listed}, {odd} from scores')
    roles = {"label": names["y"], "score": names["p"], "group": names["sex"], "patient": "patient", "reference": "M"}
    found = eq.audit(eq.scan(server.url("odd%3B%20name"), **roles), threshold=0.45)
    whole = eq.audit(eq.Scores.from_frame(frame, **roles), threshold=0.45)
    assert hostile in found.groups.index
    np.testing.assert_allclose(found.groups["tpr"], whole.groups["tpr"])
    with server.connect() as connection:
        assert connection.execute("select count(*) from scores").fetchone() == (len(table),)


def test_no_row_and_no_small_group_leaves_the_database(server: Server, table: pd.DataFrame, monkeypatch, caplog):
    frame = table.assign(ward=np.where(np.arange(len(table)) < 2, "rare", "a"))
    frame.loc[frame.index[len(frame) // 2 :], "ward"] = "b"
    _to_postgresql(frame, server, "scores")
    results = []
    real = Database.query
    monkeypatch.setattr(Database, "query", lambda self, sql: results.append(found := real(self, sql)) or found)
    caplog.set_level(logging.INFO, logger="equipoise.sql")
    found = eq.audit(eq.scan(server.url("scores"), **ROLES), threshold=0.45)
    assert max(len(next(iter(each.values()))) for each in results) <= 12  # combinations of groups
    ids = set(frame["patient"])
    assert not any(ids & set(map(str, column)) for each in results for name, column in each.items() if column.dtype == object)
    assert len(caplog.records) == len(results)
    assert all(record.getMessage().startswith(("select", "with")) for record in caplog.records)
    assert np.isnan(found.groups.loc["rare", "tpr"])
    by_group = [each for each in results if {"name", "n"} <= each.keys() or {"code", "n"} <= each.keys()]
    assert len(by_group) == 8  # names of two attributes; then both and their intersection, again without the rows left out
    assert not any(((each["n"] > 1) & (each["n"] < 5)).any() for each in by_group)


def test_neither_the_ends_nor_a_small_bin_of_a_number_leave_the_database(server: Server, table: pd.DataFrame, monkeypatch):
    frame = table.assign(w=np.where(np.arange(len(table)) % 2, 30.25, 50.25))
    frame.loc[frame.index[:2], "w"] = 97.75
    _to_postgresql(frame, server, "scores")
    results = []
    real = Database.query
    monkeypatch.setattr(Database, "query", lambda self, sql: results.append(found := real(self, sql)) or found)
    roles = {
        **{role: column for role, column in ROLES.items() if role not in ("weight", "reference")},
        "group": "w",
        "bins": {"w": [40, 90]},
    }
    found = eq.audit(eq.scan(server.url("scores"), **roles), threshold=0.45)
    assert len(found.groups) >= 2
    cells = [value for each in results for column in each.values() if column.dtype != object for value in column]
    assert not {30.25, 50.25, 97.75} & set(cells)
    assert not any(((each["n"] > 1) & (each["n"] < 5)).any() for each in results if "n" in each and len(each["n"]) > 1)


def test_an_audit_sees_one_snapshot_and_twenty_run_at_once(server: Server, table: pd.DataFrame, monkeypatch):
    whole, real = len(table), Database.query

    def inserting(self: Database, sql: str) -> dict[str, np.ndarray]:
        with server.connect() as connection:
            connection.execute("insert into scores select 1, 0.9, 'F', 'a', 'new', 1 from generate_series(1, 10)")
        return real(self, sql)

    monkeypatch.setattr(Database, "query", inserting)
    assert eq.audit(eq.scan(server.url("scores"), **ROLES), threshold=0.45).rows == whole
    monkeypatch.setattr(Database, "query", real)
    _to_postgresql(table, server, "scores")
    with ThreadPoolExecutor(20) as threads:
        rows = list(threads.map(lambda _: eq.audit(eq.scan(server.url("scores"), **ROLES), threshold=0.45)["eod"].value, range(20)))
    assert len(set(rows)) == 1


def test_a_server_that_is_stopped_is_one_clear_error(server: Server, table: pd.DataFrame, monkeypatch):
    del table
    real, queries = Database.query, []

    def stopping(self: Database, sql: str) -> dict[str, np.ndarray]:
        queries.append(sql)
        if len(queries) == 5:
            server.stop()
        return real(self, sql)

    monkeypatch.setattr(Database, "query", stopping)
    try:
        with pytest.raises(BadInput) as error:
            eq.audit(eq.scan(server.url("scores"), **ROLES), threshold=0.45)
        assert says(error.value, "scores", "run it again") or says(error.value, "scores", "Run it again")
    finally:
        server.start()


def test_a_statement_that_takes_too_long_is_stopped(server: Server):
    with server.connect() as connection:
        connection.execute(
            "create or replace view slow as select s.*, case when pg_sleep(1) is null then 1.0 else 2.0 end as waited from scores as s"
        )
    with pytest.raises(BadInput) as error:
        eq.audit(eq.scan(server.url("slow") + "?timeout=0.3", **{**ROLES, "weight": "waited"}), threshold=0.45)
    assert says(error.value, "timeout")


def test_a_command_audits_a_table_in_a_database_and_shows_the_queries(table: pd.DataFrame, tmp_path: Path, capfd):
    with sqlite3.connect(tmp_path / "rows.sqlite") as lite:
        table.to_sql("scores", lite, index=False)
    place = f"sqlite:///{tmp_path}/rows.sqlite?table=scores"
    (tmp_path / "case.toml").write_text(
        f'[data]\ntable = "{place}"\nlabel = "y"\nscore = "p"\ngroup = "sex"\npatient = "patient"\n[model]\nthreshold = 0.45\n'
    )
    code = [sys.executable, "-m", "equipoise", "audit"]
    found = subprocess.run([*code, tmp_path / "case.toml", "--show-sql", "--json"], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert found.stderr.startswith("select")
    by_flags = [place, "--label", "y", "--score", "p", "--group", "sex", "--patient", "patient", "--threshold", "0.45", "--json"]
    again = subprocess.run([*code, *by_flags], capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["eod"]["value"] == json.loads(found.stdout)["eod"]["value"]


def test_rules_decide_in_sql_as_in_python():
    rng = np.random.default_rng(0)
    score = np.concatenate([rng.random(500), rng.random(20).round(2)])
    low, middle, high = sorted([float(score[3]), float(np.nextafter(score[7], 1)), 0.3])
    groups = ("F", "M", "it's")
    frame = pd.DataFrame({"y": rng.integers(0, 2, 520), "p": score, "sex": rng.choice([*groups, "X", None], 520)})
    scores = eq.Scores.from_frame(frame, label="y", score="p", group="sex", reference="M")
    rules = [
        Threshold(low),
        GroupThresholds(groups, (low, middle, high), 0.5, others=("X",)),
        RejectOption(middle, 0.1, favoured=("F",), groups=groups, others=("X",)),
        EqualisedOdds(
            groups, (Steps((low,), (0.0, 1.0)), Steps((low, high), (0.0, 0.25, 1.0)), Steps((), (0.5,))), (0.5, 0.3, 0.2), others=("X",)
        ),
    ]
    with duckdb.connect() as engine:
        engine.register("rows", frame)
        for rule in rules:
            decided = engine.execute(f"select {rule.sql('p', 'sex')} as f from rows").fetchnumpy()["f"]
            np.testing.assert_allclose(np.asarray(decided, dtype=float), rule.decide(scores), atol=1e-15)
            assert engine.execute(f"select {rule.sql('0.5', chr(39) + 'new' + chr(39))} as f").fetchone() == (None,) or not rule.needs_group
