"""Small files that hold far more than they take: they are audited without what has no role, or refused, in ordinary memory."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fuzz import bombs

from equipoise.data import engines, scans
from support.facts import says

pytest.importorskip("resource", reason="limits of memory are those of POSIX")

AUDIT = ["--label", "y", "--score", "p", "--threshold", "0.5"]
ORDINARY = 450  # MiB; the same audit of a sound file takes about 150
LIMIT = 6 * 2**30  # bytes of addresses, of which most are never used


# Starts the command in a bounded space of addresses and prints its largest memory. A process that was started by pytest itself would be
# said to have had the memory of pytest.
LAUNCHER = """
import resource, subprocess, sys

limit = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
done = subprocess.run([sys.executable, "-m", "equipoise", *sys.argv[2:]], stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(done.returncode)
"""


class Measured(NamedTuple):
    """What a command left, and the most memory that it had, in MiB."""

    code: int
    err: str
    peak: int


def measured(folder: Path, *arguments: object) -> Measured:
    """Runs one command in a process of its own."""
    command = [sys.executable, "-c", LAUNCHER, str(LIMIT), *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment, check=False, timeout=300)
    return Measured(done.returncode, done.stderr, int(done.stdout) // (2**20 if sys.platform == "darwin" else 2**10))


@pytest.fixture(scope="module")
def lists(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one file."""
    folder = tmp_path_factory.mktemp("lists")
    bombs.long_lists(folder / "s.parquet")
    assert (folder / "s.parquet").stat().st_size < 50_000
    return folder


def test_lists_without_a_role_take_no_memory(lists):
    found = measured(lists, "audit", "s.parquet", *AUDIT, "--group", "sex")
    assert found.code == 0, found.err
    assert found.peak < ORDINARY


@pytest.mark.parametrize(("role", "place"), [("--patient", "s.parquet"), ("--score", "s.parquet"), ("--score", "."), ("--group", ".")])
def test_lists_in_a_role_are_refused_unread(lists, role, place):
    roles = {"--label": "y", "--score": "p", "--group": "sex"} | {role: "notes"}
    found = measured(lists, "audit", place, *(word for pair in roles.items() for word in pair))
    assert found.code == 2
    assert says(found.err, "'notes'", "lists")
    assert found.peak < ORDINARY


@pytest.mark.parametrize("kind", ["binary", "string"])
def test_a_long_value_in_every_row_is_stored_once_and_is_no_name(tmp_path, kind):
    bombs.repeated_bytes(tmp_path / "s.parquet", "notes", kind)
    assert (tmp_path / "s.parquet").stat().st_size < 5_000
    found = measured(tmp_path, "audit", "s.parquet", *AUDIT, "--group", "sex")
    assert found.code == 0, found.err
    assert found.peak < ORDINARY
    for place in ("s.parquet", "."):
        found = measured(tmp_path, "audit", place, *AUDIT, "--group", "notes")
        assert found.code == 2
        assert says(found.err, "'notes'", "1,048,576")
        assert found.peak < ORDINARY


@pytest.mark.parametrize("beginning", [b"y,p,sex\n1,0.5,F\n0,0.5,", b"y,p,sex,", b'y,p,sex\n1,0.5,"F\n'])
def test_a_line_without_an_end_in_a_folder_is_refused(tmp_path, beginning):
    (tmp_path / "folder").mkdir()
    bombs.endless_line(tmp_path / "folder" / "a.csv.gz", beginning)
    found = measured(tmp_path, "audit", "folder", *AUDIT, "--group", "sex")
    assert found.code == 2
    assert says(found.err, "a.csv.gz", "line", "4,194,304")
    assert "Traceback" not in found.err
    assert found.peak < ORDINARY


def test_a_row_of_many_lines_in_a_folder_is_refused(run):
    Path("folder").mkdir()
    Path("folder/a.csv").write_bytes(b'y,p,sex\n1,0.5,F\n0,0.5,"' + b"aaaaaaa\n" * 600_000 + b'"\n')
    code, _, err = run("audit", "folder", *AUDIT, "--group", "sex")
    assert code == 2
    assert says(err, "a.csv", "4,194,304")


def test_rows_that_do_not_fit_in_memory_or_the_temporary_folder_are_an_error(run, monkeypatch):
    """The memory of the engine and its temporary files are limited; nothing is left in the folder."""
    monkeypatch.setattr(scans, "ROWS_HELD", 1000)
    monkeypatch.setattr(scans, "MAX_TABLE_BYTES", 10**6)
    monkeypatch.setattr(engines, "MEMORY_BYTES", 40_000_000)
    monkeypatch.setenv("EQUIPOISE_MAX_TABLE_BYTES", "1000000")
    Path("folder").mkdir()
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"y": rng.integers(0, 2, 2_000_000), "p": rng.random(2_000_000), "sex": rng.choice(["F", "M"], 2_000_000)})
    frame.assign(patient=np.arange(2_000_000)).to_parquet("folder/a.parquet")
    arguments = ["audit", "folder", *AUDIT, "--group", "sex", "--patient", "patient"]
    Path("temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(Path("temporary").absolute()))
    monkeypatch.setattr(scans, "EXPANSION", 0)
    code, _, err = run(*arguments)
    assert code == 2
    assert says(err, "1,000,000", "temporary folder", "data.max_table_bytes", "EQUIPOISE_MAX_TABLE_BYTES")
    assert list(Path("temporary").iterdir()) == []


def test_rows_longer_than_the_metadata_state_are_refused(run):
    """The size of the row group in the metadata is a number like any other."""
    rows = 32
    table = pa.table(
        {"y": np.arange(rows) % 2, "p": np.full(rows, 0.5), "sex": ["F", "F", "M", "M"] * (rows // 4)}
        | {"notes": [f"{k:06d}" + "a" * 2**22 for k in range(rows)]}
    )
    with pq.ParquetWriter("s.parquet", table.schema, compression="zstd", use_dictionary=False) as writer:
        for k in range(rows):
            writer.write_table(table.slice(k, 1))
    with pq.ParquetFile("s.parquet") as file:
        sizes = {file.metadata.row_group(k).total_byte_size for k in range(rows)}
    content = Path("s.parquet").read_bytes()
    for number in {_varint(2 * size) for size in sizes}:
        content = content.replace(number, _varint(100, len(number)))
    Path("s.parquet").write_bytes(content)
    with pq.ParquetFile("s.parquet") as file:
        assert {file.metadata.row_group(k).total_byte_size for k in range(rows)} == {50}
    code, _, err = run("audit", "s.parquet", *AUDIT, "--group", "sex", "--set", f"data.max_table_bytes={10**6}")
    assert code == 2
    assert says(err, "s.parquet", "1,000,000", "data.max_table_bytes")


def _varint(number: int, length: int = 0) -> bytes:
    """A number as Thrift writes it, seven bits per byte, in at least so many bytes."""
    digits = [number >> shift & 127 for shift in range(0, max(number.bit_length(), 7 * length, 1), 7)]
    return bytes([*(digit | 128 for digit in digits[:-1]), digits[-1]])


@pytest.mark.parametrize(("bomb", "named"), [(bombs.large_tensor, "1 row"), (bombs.sparse_weights, "sparse")])
def test_a_graph_that_asks_for_too_much_memory_is_refused(run, bomb, named):
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    bomb(Path("net.onnx"))
    assert Path("net.onnx").stat().st_size < 300
    rng = np.random.default_rng(0)
    pd.DataFrame({"y": np.arange(60) % 2, "a": rng.random(60), "b": rng.random(60), "sex": ["F", "F", "M"] * 20}).to_csv(
        "x.csv", index=False
    )
    model = ["--model", "net.onnx", "--set", "data.features=a", "--set", "data.features=b"]
    code, _, err = run("audit", "x.csv", "--label", "y", "--group", "sex", "--threshold", "0.5", *model)
    assert code == 2
    assert says(err, "net.onnx", "memory", "bytes", named)
    assert "Traceback" not in err
