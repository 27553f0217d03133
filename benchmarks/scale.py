"""Audits of many rows and many groups, next to Fairlearn. Usage: python benchmarks/scale.py [NAME ...] [--out benchmarks/scale/rows.csv]

Each measurement runs in a process of its own, with one thread, and reports its CPU time (which a busy machine changes least), wall time and
peak memory. Tables are made in a temporary folder and removed; 100 million rows need 2 GB there, and 4 GB more while they are audited.
FairCareAI could not be compared: pip finds no version of it for this Python.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pandas as pd

import equipoise as eq

PIECE = 2_000_000  # rows of one file
DRAWS = 20  # of Fairlearn, scaled to 1,000


def write_table(folder: Path, rows: int, patients: int, groups: int) -> None:
    """Writes Parquet files of visits: several per patient, who has one group and an own risk; scores differ between groups."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    effect = np.random.default_rng(0).normal(size=groups) * 0.15
    for k, start in enumerate(range(0, rows, PIECE)):
        n, rng = min(PIECE, rows - start), np.random.default_rng([0, k])
        patient = rng.integers(0, patients, n)
        mixed = (patient * 2_654_435_761) % 2**32
        group, risk = mixed % groups, (mixed // groups % 1000) / 1000 - 0.5
        y = (rng.random(n) < 0.1 + 0.1 * (risk > 0)).astype(np.int8)
        score = 1 / (1 + np.exp(-(rng.normal(size=n) - 2 + 2 * y + risk + effect[group] * y)))
        names = pa.DictionaryArray.from_arrays(pa.array(group.astype(np.int32)), pa.array([f"group {g}" for g in range(groups)]))
        table = pa.table({"y": y, "p": score, "group": names, "patient": pa.array(patient).cast(pa.string())})
        pq.write_table(table, folder / f"part-{k:04d}.parquet", row_group_size=500_000)


def audit_table(rows: int, patients: int, groups: int) -> dict[str, object]:
    """The audit of a folder of Parquet files, from the files to all estimates."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        made = subprocess.run([sys.executable, __file__, "--write", folder, str(rows), str(patients), str(groups)], check=True)
        assert made.returncode == 0
        found, cost = measured(lambda: eq.audit(eq.scan(place, label="y", score="p", group="group", patient="patient"), threshold=0.5))
    return {"rows": found.rows, "patients": found.patients, "groups": groups, **cost}


def many_groups() -> dict[str, object]:
    """The audit of a frame with 1,000 groups of 40 rows."""
    rng = np.random.default_rng(0)
    n, patients = 40_000, 20_000
    patient = rng.integers(0, patients, n)
    y = rng.integers(0, 2, n)
    frame = pd.DataFrame({"y": y, "p": rng.random(n) * 0.6 + 0.3 * y, "g": (patient % 1000).astype(str), "patient": patient.astype(str)})
    frame["g"] = "site " + frame["g"]
    scores = eq.Scores.from_frame(frame, label="y", score="p", group="g", patient="patient")
    found, cost = measured(lambda: eq.audit(scores, threshold=0.5))
    return {"rows": n, "patients": found.patients, "groups": len(found.groups), **cost}


def sweep_million() -> dict[str, object]:
    """Every threshold of 1,000,000 scores: two gaps and balanced accuracy. The fastest of seven."""
    from equipoise.data import Attribute
    from equipoise.measures import sweep

    rng = np.random.default_rng(0)
    n = 1_000_000
    groups, y = Attribute("group", ("ref", "other"), rng.integers(0, 2, n)), rng.integers(0, 2, n)
    score = 1 / (1 + np.exp(-(rng.normal(size=n) + y)))
    costs = [measured(lambda: sweep(score, y, groups, ("spd", "eod", "balanced_accuracy")))[1] for _ in range(7)]
    return {"rows": n, "patients": n, "groups": 2, **min(costs, key=lambda cost: float(str(cost["cpu_s"])))}


def _two_attributes() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    n = 22_000
    patient = rng.integers(0, 9_000, n)
    y = (rng.random(n) < 0.2).astype(int)
    p = 1 / (1 + np.exp(-(rng.normal(size=n) - 2 + 2 * y)))
    return pd.DataFrame(
        {
            "y": y,
            "p": p,
            "sex": np.array(["F", "M"])[patient % 2],
            "race": np.array(list("ABCDE"))[patient % 5],
            "patient": patient.astype(str),
        }
    )


def two_attributes() -> dict[str, object]:
    """The audit of 22,000 rows by two attributes and their intersection: all measures with intervals, adjusted tests, decision curves."""
    frame = _two_attributes()
    scores = eq.Scores.from_frame(frame, label="y", score="p", group=["sex", "race"], patient="patient")
    eq.audit(scores, threshold=0.5)  # imports
    found, cost = measured(lambda: eq.audit(scores, threshold=0.5))
    return {"rows": len(frame), "patients": found.patients, "groups": len(found.groups), **cost}


def two_attributes_fairlearn() -> dict[str, object]:
    """The same rows with Fairlearn: six rates of the intersections with bootstrap intervals of rows (it has none of patients)."""
    import fairlearn.metrics as fl

    frame = _two_attributes()
    rates = {name: getattr(fl, name) for name in ("selection_rate", "true_positive_rate", "false_positive_rate")}
    rates |= {name: getattr(fl, name) for name in ("true_negative_rate", "false_negative_rate", "count")}
    decided = (frame["p"] >= 0.5).astype(int)

    def run() -> object:
        return fl.MetricFrame(
            metrics=rates,
            y_true=frame["y"],
            y_pred=decided,
            sensitive_features=frame[["sex", "race"]],
            n_boot=DRAWS,
            ci_quantiles=[0.025, 0.975],
            random_state=0,
        ).by_group_ci

    _, cost = measured(run)
    scaled = {name: round(float(str(cost[name])) * 1000 / DRAWS, 1) for name in ("cpu_s", "wall_s")}
    return {
        "rows": len(frame),
        "patients": len(frame),
        "groups": 10,
        **cost,
        **scaled,
        "note": f"timed with {DRAWS} draws, scaled to 1,000",
    }


def start(*arguments: str) -> dict[str, object]:
    """CPU time of a command in a new process; the fastest of seven."""
    costs = []
    for _ in range(7):
        before, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run([sys.executable, "-m", "equipoise", *arguments], capture_output=True, check=False)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        costs.append({"cpu_s": round(used, 3), "wall_s": round(time.perf_counter() - wall, 3), "peak_mb": round(after.ru_maxrss / 1024)})
    return min(costs, key=lambda cost: float(str(cost["cpu_s"])))


def measured(run: Callable[[], object]) -> tuple[eq.Audit, dict[str, object]]:
    """What a function returns, with its CPU and wall time and the peak memory of this process so far."""
    cpu, wall = time.process_time(), time.perf_counter()
    found = run()
    cost = {"cpu_s": round(time.process_time() - cpu, 3), "wall_s": round(time.perf_counter() - wall, 3)}
    return found, {**cost, "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)}  # type: ignore[return-value]


MISSING = ("audit", "no-such-file.csv", "--label", "y", "--score", "p", "--group", "g")  # everything but the rows
BENCHMARKS: dict[str, Callable[[], dict[str, object]]] = {
    "audit-1m": lambda: audit_table(1_000_000, 500_000, 6),
    "audit-10m": lambda: audit_table(10_000_000, 5_000_000, 6),
    "audit-30m": lambda: audit_table(30_000_000, 15_000_000, 6),
    "audit-100m": lambda: audit_table(100_000_000, 50_000_000, 6),
    "groups-1000": many_groups,
    "sweep-1m": sweep_million,
    "two-attributes": two_attributes,
    "two-attributes-fairlearn": two_attributes_fairlearn,
    "start-version": lambda: start("--version"),
    "start-help": lambda: start("--help"),
    "start-audit": lambda: start(*MISSING),
}


def main() -> None:
    """Runs the named benchmarks (all without 100 million rows by default) and writes or updates their rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*BENCHMARKS, []])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--one", choices=list(BENCHMARKS))
    parser.add_argument("--write", nargs=4)
    given = parser.parse_args()
    if given.write:
        folder, *sizes = given.write
        write_table(Path(folder), *map(int, sizes))
        return
    if given.one:
        print(json.dumps(BENCHMARKS[given.one]()))
        return
    rows = [] if given.out is None or not given.out.exists() else pd.read_csv(given.out).to_dict("records")
    for name in given.names or [name for name in BENCHMARKS if name != "audit-100m"]:
        ran = subprocess.run([sys.executable, __file__, "--one", name], capture_output=True, text=True, check=True)
        row = {"benchmark": name, **json.loads(ran.stdout.splitlines()[-1])}
        print(row, flush=True)
        rows = [*(old for old in rows if old["benchmark"] != name), row]
        if given.out:
            order = {name: k for k, name in enumerate(BENCHMARKS)}
            given.out.parent.mkdir(parents=True, exist_ok=True)
            columns = ["benchmark", "rows", "patients", "groups", "cpu_s", "wall_s", "peak_mb", "note"]
            frame = pd.DataFrame(rows).sort_values("benchmark", key=lambda names: names.map(order)).reindex(columns=columns)
            frame.astype(dict.fromkeys(("rows", "patients", "groups", "peak_mb"), "Int64")).to_csv(given.out, index=False)


if __name__ == "__main__":
    main()
