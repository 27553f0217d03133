"""Rows a second and peak memory of the MIMIC-III loader: the demo, then its CHARTEVENTS repeated to 20 million rows, plain and gzipped.

    EQUIPOISE_DATA=/data python benchmarks/mimic_iii.py [--rows 20000000]

Each line is a fresh process with one compute thread. `csv` lines only read and parse the four columns, with each candidate engine;
`load` lines are the whole of `mimic_iii`. Peak memory includes what the imports take, which the line `import` shows alone.
The repeated tables are written to a temporary folder (about 2.3 GB) and deleted.
"""

import argparse
import gzip
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

COLUMNS = ["hadm_id", "itemid", "valuenum", "error"]
FULL_ROWS = 330_712_483  # CHARTEVENTS of MIMIC-III v1.4
CHUNK_ROWS = 500_000  # the fastest of 100,000 to 2,000,000


def read_pandas(path: Path) -> int:
    """The number of rows, parsed by pandas in chunks."""
    import pandas as pd

    types = {"hadm_id": "float64", "itemid": "int32", "valuenum": "float64", "error": "float64"}
    chunks = pd.read_csv(path, usecols=COLUMNS, dtype=types, chunksize=CHUNK_ROWS, keep_default_na=False, na_values=[""])
    return sum(len(chunk) for chunk in chunks)


def read_arrow(path: Path) -> int:
    """The number of rows, parsed by pyarrow in blocks."""
    import pyarrow as pa
    from pyarrow import csv

    types = {"hadm_id": pa.float64(), "itemid": pa.int32(), "valuenum": pa.float64(), "error": pa.float64()}
    reader = csv.open_csv(
        str(path),
        read_options=csv.ReadOptions(use_threads=False),
        parse_options=csv.ParseOptions(newlines_in_values=True),
        convert_options=csv.ConvertOptions(include_columns=COLUMNS, column_types=types),
    )
    return sum(batch.num_rows for batch in reader)


def load(path: Path) -> int:
    """The number of event rows that `mimic_iii` read from the folder of a table."""
    from equipoise.studies.sets.mimic_iii import mimic_iii

    seen = [0]
    mimic_iii(path.parent, progress=seen.append)
    return seen[-1]


def nothing(_: Path) -> int:
    """What the imports alone take."""
    import equipoise.studies.sets.mimic_iii  # noqa: F401

    return 0


JOBS = {"import": nothing, "csv pandas": read_pandas, "csv pyarrow": read_arrow, "load": load}


def run(job: str, path: Path) -> None:
    """Runs one job and prints its line; imports are made before the clock starts."""
    nothing(path)
    import pyarrow.csv  # noqa: F401

    start, busy = time.perf_counter(), time.process_time()
    rows = JOBS[job](path)
    wall, cpu = time.perf_counter() - start, time.process_time() - busy
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    speed = f"{rows / wall / 1e6:6.2f} M rows/s wall {rows / cpu / 1e6:6.2f} M rows/s cpu" if rows else ""
    full = f"  full CHARTEVENTS in {FULL_ROWS / rows * wall:4.0f} s" if rows > 1e6 else ""
    print(f"{job:12} {path.name:20} {rows:11,} rows {wall:6.2f} s {speed}  peak {peak:4.0f} MB{full}", flush=True)


def fresh(job: str, path: Path) -> None:
    """Runs one job in a process of its own, so that its peak memory is its own."""
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, __file__, "--job", job, "--path", str(path)], check=True, env=env)


def repeat(demo: Path, folder: Path, rows: int) -> Path:
    """The demo's tables in a folder, with CHARTEVENTS repeated to that many rows."""
    for table in demo.glob("*.csv.gz"):
        if table.name != "CHARTEVENTS.csv.gz":
            shutil.copy(table, folder)
    header, body = gzip.decompress((demo / "CHARTEVENTS.csv.gz").read_bytes()).split(b"\n", 1)
    lines = body.splitlines(keepends=True)
    path = folder / "CHARTEVENTS.csv"
    with path.open("wb") as file:
        file.write(header + b"\n")
        for _ in range(rows // len(lines)):
            file.write(body)
        file.writelines(lines[: rows % len(lines)])
    return path


def main() -> None:
    """Every line of the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--job", choices=JOBS, help=argparse.SUPPRESS)
    parser.add_argument("--path", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.job:
        run(chosen.job, chosen.path)
        return
    demo = Path(os.environ.get("EQUIPOISE_DATA", "../shared/data")) / "mimic-iii-demo"
    fresh("import", demo / "CHARTEVENTS.csv.gz")
    fresh("load", demo / "CHARTEVENTS.csv.gz")
    with tempfile.TemporaryDirectory() as name:
        plain = repeat(demo, Path(name), chosen.rows)
        for job in ("csv pandas", "csv pyarrow", "load"):
            fresh(job, plain)
        packed = plain.with_name(plain.name + ".gz")
        with plain.open("rb") as source, gzip.open(packed, "wb", compresslevel=6) as target:
            shutil.copyfileobj(source, target, 1 << 20)
        plain.unlink()
        for job in ("csv pandas", "csv pyarrow", "load"):
            fresh(job, packed)


if __name__ == "__main__":
    main()
