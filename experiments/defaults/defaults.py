"""Methods with the settings of before and with today's defaults, on the same networks and splits. Writes one CSV file of rows.

    python experiments/defaults/defaults.py tables --out experiments/defaults/tables.csv [--workers 2] [--seeds 100 ... 119] [--seconds 540]
    python experiments/defaults/defaults.py nih --out experiments/defaults/nih.csv --device cuda   # ResNet-18 by sex, as `nih-beyond`
    python experiments/defaults/defaults.py halves --out experiments/defaults/halves.csv   # constrained on Adult, schedule and selection
    python experiments/defaults/defaults.py summary experiments/defaults/tables.csv --write experiments/defaults/README.md   # their table

`before`: fixed schedules, steps chosen on the rows that they were tuned on. `now`: adaptive schedules, steps chosen by cross-fitted values,
the same minimum performance. `default`: `eq.debias(network, rows, measure=...)` and nothing else, which lets performance fall by 0.02;
`default, same minimum`: the same with the minimum of the others. No setting was tuned on the seeds 100 to 119. The rows of one split share
a network, so that differences are paired; intervals use the corrected variance of splits that share rows (Nadeau and Bengio 2003).
"""

import argparse
import os
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pandas as pd

PERFORMANCE = "balanced_accuracy"
MEASURES = {"tables": ("spd", "eod"), "nih": ("eod",), "halves": ("spd", "eod")}
START, END = "<!-- from the rows -->\n", "\n<!-- up to here -->"
DATA = {"tables": ("adult", "bank", "compas"), "nih": ("any", "effusion", "atelectasis"), "halves": ("adult",)}
PAPER = {"selection": "paper"}
SCHEDULE = {"schedule": "paper"}
BEFORE: dict[str, dict[str, dict[str, Any]]] = {  # settings of the studies experiments/beyond/beyond.toml and nih-beyond
    "tables": {
        "bias-gda": {**PAPER, **SCHEDULE, "learning_rate": 1e-5, "batch": 256, "epochs": 200, "evals_per_epoch": 3},
        "constrained": {**PAPER, **SCHEDULE},
        "bias-score": PAPER,
        "group-thresholds": PAPER,
    },
    "nih": {
        "bias-gda": {**PAPER, **SCHEDULE, "learning_rate": 1e-5, "batch": 32, "epochs": 10, "evals_per_epoch": 10},
        "constrained": {**PAPER, **SCHEDULE, "learning_rate": 1e-4, "batch": 64},
        "bias-score": PAPER,
        "bias-score-train": PAPER,  # also learns from the training set what separates the sexes
        "group-thresholds": PAPER,
    },
}
GDA = {("adult", "spd"): 0.62, ("adult", "eod"): 0.80, ("bank", "spd"): 0.70, ("bank", "eod"): 0.70, ("compas", "spd"): 0.61}
GDA |= {("compas", "eod"): 0.58}
OTHERS = {("adult", "spd"): 0.78, ("adult", "eod"): 0.82, ("bank", "spd"): 0.86, ("bank", "eod"): 0.86, ("compas", "spd"): 0.64}
OTHERS |= {("compas", "eod"): 0.64}
SCORE = {("adult", "spd"): 0.78, ("adult", "eod"): 0.81, ("bank", "spd"): 0.85, ("bank", "eod"): 0.85, ("compas", "spd"): 0.62}
SCORE |= {("compas", "eod"): 0.62}
FREE = {"allow_worse": True, "max_rise": {"fpr": 1.0, "selection": 1.0}}  # of limits that the arms before did not have
HALVES: dict[str, dict[str, Any]] = {
    "before": {**PAPER, **SCHEDULE, **FREE},
    "schedule only": {**PAPER, **FREE},
    "selection only": {**SCHEDULE, **FREE},
    "now": FREE,
}
LEAST = {"bias-gda": GDA, "constrained": OTHERS, "bias-score": SCORE, "group-thresholds": OTHERS, "auto": OTHERS}  # minimum performance


@dataclass(frozen=True)
class Case:
    """One split of one data set or finding. The published bias GD/A, which takes longest on tables, is a case of its own."""

    part: str
    data: str
    seed: int
    root: str
    device: str
    methods: tuple[str, ...] = ()  # all of them where none is named
    published: bool = False


def cases(part: str, seeds: list[int], data: list[str], root: str, device: str, methods: tuple[str, ...]) -> Iterator[Case]:
    """All cases, every data set of a seed first; those that take longest last."""
    for published in (False, True) if part == "tables" else (False,):
        for seed in seeds:
            for name in data or DATA[part]:
                yield Case(part, name, seed, root, device, methods, published)


def arms(case: Case, measure: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Method, arm and keywords of eq.debias."""
    if case.part == "halves":
        for arm, half in HALVES.items():
            yield "constrained", arm, {"method": "constrained", "min_performance": OTHERS[case.data, measure], **half}
        return
    for method, before in BEFORE[case.part].items():
        least = {} if case.part == "nih" else {"min_performance": LEAST[method][case.data, measure]}
        last = case.part == "tables" and method == "bias-gda"
        if last == case.published:
            yield method, "before", {"method": method.removesuffix("-train"), **before, **least}
        if not case.published:
            yield method, "now", {"method": method.removesuffix("-train"), **least}
    if case.published:
        return
    yield "auto", "default", {}
    if case.part == "nih":
        yield "auto-train", "default", {}
    else:
        yield "auto", "default, same minimum", {"min_performance": LEAST["auto"][case.data, measure]}


def prepared(case: Case) -> tuple[Any, Any]:
    """The sets of a split and the network trained on them."""
    import equipoise as eq
    from equipoise.models import backbone
    from equipoise.studies import balanced_parts

    if case.part != "nih":
        parts = eq.split(eq.load(case.data, case.root or None), seed=case.seed)
        return parts, eq.train(parts.train, parts.valid, seed=case.seed)
    import torch

    cohort = eq.load("nih", case.root or None, finding=case.data, attribute="sex", size=112)
    parts = balanced_parts(cohort, seed=case.seed, fractions=(0.5, 0.25, 0.25), privileged=(0.75, 0.5, 0.5))
    torch.manual_seed(case.seed)
    about = eq.Training(epochs=20, batch=32, learning_rate=1e-4, patience=10, optimiser="adamw", schedule="step", step=20, augment=True)
    return parts, eq.train(parts.train, parts.valid, model=backbone("resnet-18").to(case.device), seed=case.seed, settings=about)


def run_case(case: Case) -> list[dict[str, Any]]:
    """The rows of a split: the original and every arm, for every measure."""
    import torch

    torch.set_num_threads(1)
    import equipoise as eq
    from equipoise.errors import EquipoiseError
    from equipoise.measures import Cells, largest_gap
    from equipoise.models import predict

    parts, model = prepared(case)
    shared = len(parts.test) / (len(parts.train) + len(parts.valid))
    rows = []
    for measure in MEASURES[case.part]:
        original = [] if case.published else [("standard", "original", {"method": "standard", "selection": "paper"})]
        wanted = (arm for arm in arms(case, measure) if not case.methods or arm[0] in case.methods)
        for method, arm, settings in [*original, *wanted]:
            row = {
                "part": case.part,
                "data": case.data,
                "seed": case.seed,
                "measure": measure,
                "method": method,
                "arm": arm,
                "shared": shared,
            }
            start = time.perf_counter()
            try:
                train = parts.train if method.endswith("-train") else None
                found = eq.debias(model, parts.valid, measure=measure, seed=case.seed, train=train, **settings)
                row["seconds"] = time.perf_counter() - start
                scores = predict(found.model, parts.test)
                cells = Cells.of(found.rule.decide(scores), scores.y, scores.attribute)
                row |= {"gap": float(largest_gap(cells.gaps(measure))), "performance": float(cells.performance(PERFORMANCE))}
                row |= {"outcome": str(found.outcome or ""), "took": found.ran, "needs_group": found.rule.needs_group, "problem": ""}
            except EquipoiseError as error:
                row |= {"seconds": time.perf_counter() - start, "outcome": "refused", "problem": str(error).replace("\n", " ")[:300]}
            rows.append(row)
    return rows


def run_all(every: list[Case], workers: int, seconds: float, out: Path) -> pd.DataFrame:
    """The rows of all cases that end within the time, written after each."""
    start, rows = time.perf_counter(), []
    out.parent.mkdir(parents=True, exist_ok=True)
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"))
    waiting = {pool.submit(run_case, case): case for case in every}
    ended = 0
    try:
        for done in as_completed(waiting, timeout=seconds):
            ended += 1
            try:
                rows += done.result()
            except Exception as error:  # one case that fails must not end the others
                print(f"FAILED {waiting[done]}: {type(error).__name__}: {error}", flush=True)
            pd.DataFrame(rows).round(6).to_csv(out, index=False)
    except TimeoutError:
        print("time is up", flush=True)
    for process in (pool._processes or {}).values():
        process.terminate()
    pool.shutdown(wait=False, cancel_futures=True)
    print(f"{len(rows)} rows, {ended} of {len(every)} cases ended, {time.perf_counter() - start:.0f} s", flush=True)
    return pd.DataFrame(rows)


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    """Mean |gap| and performance of each arm, and how `now` differs from `before` on the same networks."""
    from equipoise.studies import corrected_t_test

    rows = rows.sort_values(["data", "measure"], kind="stable")
    lines = []
    for (data, measure, method, arm), some in rows.groupby(["data", "measure", "method", "arm"], sort=False):
        line: dict[str, Any] = {"data": data, "measure": measure, "method": method, "arm": arm, "splits": int(some["gap"].notna().sum())}
        line |= {"gap": some["gap"].mean(), "mean |gap|": some["gap"].abs().mean(), "balanced accuracy": some["performance"].mean()}
        line |= {"seconds": some["seconds"].median()}
        if arm == "now":
            same = (rows["data"] == data) & (rows["measure"] == measure) & (rows["method"] == method) & (rows["arm"] == "before")
            both = some.merge(rows[same], on="seed", suffixes=("", "_before")).dropna(subset=["gap", "gap_before"])
            for name, change in (
                ("|gap| now - before", both["gap"].abs() - both["gap_before"].abs()),
                ("BA now - before", both["performance"] - both["performance_before"]),
            ):
                found = corrected_t_test(change.to_numpy(dtype=np.float64), float(both["shared"].mean()))
                line[name] = f"{found['difference']:+.3f} [{found['low']:+.3f}, {found['high']:+.3f}]"
        lines.append(line)
    return pd.DataFrame(lines)


def written(table: pd.DataFrame, file: Path) -> None:
    """Puts the table between the marks of a Markdown file."""
    lines = ["| " + " | ".join(table.columns.str.replace("|", "\\|")) + " |", "|" + "---|" * len(table.columns)]
    for row in table.itertuples(index=False):
        cells = (
            f"{cell:.3f}" if isinstance(cell, float) and not np.isnan(cell) else "" if isinstance(cell, float) else str(cell)
            for cell in row
        )
        lines.append("| " + " | ".join(cells) + " |")
    before, _, rest = file.read_text(encoding="utf-8").partition(START)
    file.write_text(before + START + "\n" + "\n".join(lines) + "\n" + END + rest.partition(END)[2], encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=(*DATA, "summary"))
    parser.add_argument("files", nargs="*", type=Path, help="rows to summarise")
    parser.add_argument("--out", type=Path, default=Path("rows.csv"))
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) // 2))
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(100, 120)))
    parser.add_argument("--seconds", type=float, default=1e6, help="stop after so many")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--data", nargs="+", default=[], help="only these")
    parser.add_argument("--methods", nargs="+", default=[], help="only these")
    parser.add_argument("--write", type=Path, help="Markdown file whose marked part is replaced by the table")
    given = parser.parse_args()
    if given.part == "summary":
        rows = pd.concat([pd.read_csv(path) for path in given.files])
    else:
        every = list(cases(given.part, given.seeds, given.data, os.environ.get("EQUIPOISE_DATA", ""), given.device, tuple(given.methods)))
        rows = run_all(every, given.workers, given.seconds, given.out)
    if given.write:
        written(summary(rows), given.write)
    with pd.option_context("display.width", 250, "display.max_columns", 30, "display.float_format", "{:.3f}".format):
        print(summary(rows).to_string(index=False, na_rep=""))


if __name__ == "__main__":
    main()
