"""The repair that nobody has tuned: plain networks, no settings, rows that no repair has seen. Writes one CSV file of rows.

    python experiments/anywhere/anywhere.py tables --out rows.csv [--workers 2] [--seeds 100 101] \
      [--arms default group-thresholds] [--seconds 540]
    python experiments/anywhere/anywhere.py worlds --out rows.csv        # simulated patients, whose true gap is measured on 50,000 of them
    python experiments/anywhere/anywhere.py images --out rows.csv        # NIH chest X-rays; needs a GPU to end in reasonable time
    python experiments/anywhere/anywhere.py summary rows.csv ...   # their table; --write FILE.md puts it between the marks there

An arm is what a user types: `default` is `eq.debias(model, rows)` and nothing else; an arm named like a method is
`eq.debias(model, rows, method=...)`; `published` is bias gradient descent/ascent with the schedule and the selection of the paper, and
`group thresholds as fitted` are group-aware thresholds chosen on the rows that they are fitted to. Where a repair is refused, the original
stays in use, and the row says so. The gap left is signed by the gap before: the sum over runs of sign(before) x after, over the sum of
|before|, so that runs that overshoot do not count as half repaired, and chance does not count as a gap.
"""

import argparse
import copy
import os
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import t as student_t

MEASURE, PERFORMANCE = "eod", "balanced_accuracy"
ARMS: dict[str, dict[str, Any]] = {
    "default": {},
    "bias-gda": {"method": "bias-gda"},
    "bias-score": {"method": "bias-score"},
    "constrained": {"method": "constrained"},
    "adversarial-finetune": {"method": "adversarial-finetune"},
    "pruning": {"method": "pruning"},
    "group-thresholds": {"method": "group-thresholds"},
    "reject-option": {"method": "reject-option"},
    "equalised-odds": {"method": "equalised-odds"},
    "group thresholds as fitted": {"method": "group-thresholds", "selection": "paper"},
    "published": {"method": "bias-gda", "selection": "paper", "schedule": "paper"},
}
TABLES = {"adult": (200, 1000, 4000, 30000), "bank": (200, 1000, 4000, 15000), "compas": (200, 1000, 2600)}
TRAINED, TESTED = {"adult": 5000, "bank": 5000, "compas": 1500}, {"adult": 10222, "bank": 10000, "compas": 2000}
NETWORKS = ("linear", "hidden layer", "batch norm", "tanh")
WORLDS = ("loh", "loh, no gap", "zafar")
WORLD_ROWS, MANY = (200, 1000, 4000), 50_000
IMAGE_NETWORKS = ("resnet-18", "mobilenet-v3", "densenet", "squeezenet", "vit")
IMAGE_TASKS = ("sex", "age")


@dataclass(frozen=True)
class Case:
    """One network on one data set with so many rows to repair it on, and the arms to run."""

    part: str
    data: str
    network: str
    rows: int
    seed: int
    arms: tuple[str, ...]
    root: str
    device: str = "cpu"


def cases(part: str, seeds: list[int], arms: tuple[str, ...], root: str, device: str, size: int) -> Iterator[Case]:
    """All cases of a part, every seed of the quick ones first."""
    if part == "tables":
        for seed in seeds:
            for rows in sorted({rows for some in TABLES.values() for rows in some}):
                for data in (name for name, some in TABLES.items() if rows in some):
                    for network in NETWORKS:
                        yield Case(part, data, network, rows, seed, arms, root)
    elif part == "worlds":
        for seed in seeds:
            for rows in WORLD_ROWS:
                for data in WORLDS:
                    yield Case(part, data, "hidden layer", rows, seed, arms, root)
    else:
        for seed in seeds:
            for data in IMAGE_TASKS:
                for network in IMAGE_NETWORKS:
                    yield Case(part, data, network, size, seed, arms, root, device)


def plain_network(name: str, inputs: int) -> Any:
    """A network as people write them, with its initial weights."""
    from torch import nn

    layers: dict[str, list[nn.Module]] = {
        "linear": [nn.Linear(inputs, 1)],
        "hidden layer": [nn.Linear(inputs, 32), nn.ReLU(), nn.Linear(32, 1)],
        "batch norm": [
            *(nn.Linear(inputs, 32), nn.BatchNorm1d(32), nn.ReLU()),
            *(nn.Linear(32, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1)),
        ],
        "tanh": [nn.Linear(inputs, 32), nn.Tanh(), nn.Linear(32, 1), nn.Sigmoid()],
    }
    return nn.Sequential(*layers[name], nn.Flatten(0))


def image_network(name: str, size: int) -> Any:
    """A network for one-channel images of torchvision's, with its initial weights."""
    from torch import nn

    from equipoise.models import backbone
    from equipoise.models.vision import import_torchvision

    if name in ("resnet-18", "squeezenet"):
        return backbone(name)
    models = import_torchvision().models
    if name == "densenet":
        network = models.DenseNet(growth_rate=16, block_config=(4, 8, 8, 4), num_init_features=32, num_classes=1)
        network.features.conv0 = nn.Conv2d(1, 32, 7, 2, 3, bias=False)
    elif name == "mobilenet-v3":
        network = models.mobilenet_v3_small(num_classes=1)
        first = network.features[0][0]
        network.features[0][0] = nn.Conv2d(1, first.out_channels, first.kernel_size, first.stride, first.padding, bias=False)
    else:
        network = models.VisionTransformer(
            image_size=size, patch_size=8, num_layers=4, num_heads=4, hidden_dim=128, mlp_dim=256, num_classes=1
        )
        network.conv_proj = nn.Conv2d(1, 128, 8, 8)
    return nn.Sequential(network, nn.Flatten(0))


def prepared(case: Case) -> tuple[Any, Any, Any]:
    """The trained network, the rows to repair it on and the rows to judge it by."""
    import torch

    import equipoise as eq
    from equipoise.data import generator

    torch.manual_seed(case.seed)  # initial weights of plain modules
    if case.part == "images":
        cohort = eq.load("nih", case.root or None, attribute=case.data, size=case.rows)
        parts = eq.split(cohort, seed=case.seed)
        settings = eq.Training(epochs=8, batch=32, learning_rate=3e-4, patience=8, optimiser="adamw", schedule="step", augment=True)
        network = image_network(case.network, case.rows).to(case.device)
        return eq.train(parts.train, parts.valid, model=network, seed=case.seed, settings=settings), parts.valid, parts.test
    rng = generator(case.seed, "rows of anywhere")
    if case.part == "worlds":
        name = case.data.partition(",")[0]
        trained, tested = 2000, MANY
        cohort = eq.load(name, n=trained + tested + case.rows, seed=case.seed)
        if case.data != name:  # the group says nothing about anything
            attribute = cohort.attribute
            cohort = replace(cohort, attributes=(replace(attribute, codes=rng.permutation(attribute.codes)),))
    else:
        cohort = eq.load(case.data, case.root or None)
        trained, tested = TRAINED[case.data], TESTED[case.data]
    order = rng.permutation(len(cohort))
    train, test, rest = np.split(order, [trained, trained + tested])
    inner = cohort.take(train[: trained * 4 // 5]), cohort.take(train[trained * 4 // 5 :])
    network = plain_network(case.network, cohort.inputs.shape[1])
    settings = eq.Training(epochs=60, patience=8)
    model = eq.train(*inner, model=network, seed=case.seed, settings=settings)
    return model, cohort.take(rest[: case.rows], f"{case.data}/repair"), cohort.take(test, f"{case.data}/test")


def judged(candidate: Any, test: Any) -> tuple[float, float, Any]:
    """The gap, the performance and the decisions of a result on rows that it has not seen."""
    from equipoise.measures import Cells, largest_gap
    from equipoise.models import predict

    scores = predict(candidate.model, test)
    decisions = candidate.rule.decide(scores)
    cells = Cells.of(decisions, scores.y, scores.attribute)
    return float(largest_gap(cells.gaps(MEASURE))), float(cells.performance(PERFORMANCE)), decisions


def run_case(case: Case) -> list[dict[str, Any]]:
    """The rows of a case, one per arm."""
    import torch

    torch.set_num_threads(1)
    import equipoise as eq
    from equipoise.errors import EquipoiseError
    from equipoise.measures import Threshold

    model, repair, test = prepared(case)
    try:
        original = eq.debias(copy.deepcopy(model), repair, method="standard", selection="paper", force=True)
    except EquipoiseError:  # a cell without a single row: every arm is refused, and the network decides as it was trained to
        original = SimpleNamespace(model=model, rule=Threshold(float(model.threshold), "training"))
    gap, performance, before = judged(original, test)
    told = {"part": case.part, "data": case.data, "network": case.network, "rows": len(repair), "seed": case.seed}
    told |= {"test_rows": len(test), "gap_before": gap, "performance_before": performance}
    rows = []
    for arm in case.arms:
        start = time.perf_counter()
        row = {**told, "arm": arm, "outcome": "refused", "took": "", "needs_group": False, "test_outcome": "", "problem": ""}
        row |= {"gap": gap, "performance": performance, "changed": 0.0}
        try:
            found = eq.debias(model, repair, seed=case.seed, **ARMS[arm])
            row["seconds"] = time.perf_counter() - start
            after, kept, decisions = judged(found, test)
            held = eq.compare({"original": original, "repaired": found}, test)
            row |= {"gap": after, "performance": kept, "changed": float(np.abs(decisions - before).mean()), "took": found.ran}
            row |= {"outcome": str(found.outcome or ""), "test_outcome": str(held.outcome), "needs_group": found.rule.needs_group}
        except EquipoiseError as error:
            row |= {"problem": str(error).replace("\n", " ")[:300], "seconds": time.perf_counter() - start}
        rows.append(row)
    return rows


def run_all(every: list[Case], workers: int, seconds: float, out: Path) -> pd.DataFrame:
    """The rows of all cases that end within the time, written after each."""
    start, rows, failures = time.perf_counter(), [], 0
    out.parent.mkdir(parents=True, exist_ok=True)
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"))
    waiting = {pool.submit(run_case, case): case for case in every}
    try:
        for done in as_completed(waiting, timeout=seconds):
            try:
                rows += done.result()
            except Exception as error:  # one case that fails must not end the others; it is printed and counted
                failures += 1
                print(f"FAILED {waiting[done]}: {type(error).__name__}: {error}", flush=True)
            pd.DataFrame(rows).to_csv(out, index=False)
    except TimeoutError:
        print("time is up", flush=True)
    for process in (pool._processes or {}).values():
        process.terminate()
    pool.shutdown(wait=False, cancel_futures=True)
    left = sum(not one.done() for one in waiting)
    print(f"{len(rows)} rows of {len(every) - left - failures} cases, {failures} failed, {left} left, {time.perf_counter() - start:.0f} s")
    return pd.DataFrame(rows)


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    """What is left of the gap and lost of the performance, per part, size of the repair set and arm."""
    known = rows[rows["gap_before"].notna()].copy()
    known["size"] = np.where(known["part"] == "images", "images", np.where(known["rows"] >= 2000, "2,000 rows or more", "fewer rows"))
    known["null"] = known["data"].str.endswith("no gap")

    def told(some: pd.DataFrame) -> pd.Series:
        sign, loss = np.sign(some["gap_before"]), some["performance_before"] - some["performance"]
        closed = some[some["outcome"] == "closed"]
        return pd.Series(
            {
                "runs": len(some),
                "refused": int((some["outcome"] == "refused").sum()),
                "mean |gap| before": some["gap_before"].abs().mean(),
                "mean |gap| after": some["gap"].abs().mean(),
                "share of the signed gap left": (sign * some["gap"]).sum() / some["gap_before"].abs().sum(),
                "mean loss": loss.mean(),
                "worst loss": loss.max(),
                **{f"{name}": int((some["outcome"] == name).sum()) for name in ("closed", "reduced", "unclear", "harm", "unchanged")},
                "closed, |gap| on test beyond 0.05": int((closed["gap"].abs() > 0.05).sum()),
                "median seconds": some["seconds"].median(),
                "needs group": int(some["needs_group"].sum()),
            }
        )

    columns: list[str] = ["part", "null", "size", "arm"]
    return known.groupby(columns, sort=False)[list(known.columns.difference(columns))].apply(told).reset_index()


MARKS = ("<!-- from the rows -->", "<!-- up to here -->")
AIMS = {"2,000 rows or more": 0.15, "images": 0.5, "mean loss": 0.01, "worst loss": 0.04, "no gap": 1.1}  # of the default
PLAIN = "group thresholds as fitted"


def written(rows: pd.DataFrame) -> str:
    """The table of all rows and what it says of the default, in Markdown."""
    table = summary(rows)
    table["part"] = table["part"] + np.where(table.pop("null"), " without a gap", "")
    columns = [name for name in table.columns if name != "needs group"]
    lines = ["| " + " | ".join(columns).replace("|gap|", "\\|gap\\|") + " |", "|" + "---|" * len(columns)]
    for _, row in table.iterrows():
        lines.append("| " + " | ".join(_cell(name, row[name]) for name in columns) + " |")
    return "\n".join([*lines, "", *(f"- {text}" for text in _sentences(rows))])


def _cell(name: str, value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    places = 1 if name == "median seconds" else 3 if "gap left" in name or name.startswith(("mean", "worst")) else 0
    return f"{value:.{places}f}"


def _left(rows: pd.DataFrame) -> float:
    """The share of the signed gap that is left."""
    return float((np.sign(rows["gap_before"]) * rows["gap"]).sum() / rows["gap_before"].abs().sum())


def _left_interval(rows: pd.DataFrame, other: pd.DataFrame | None = None) -> str:
    """The 95 % interval of the share that is left, or of what is left beyond another arm's; the seeds are the units of this ratio."""
    left = np.sign(rows["gap_before"]) * rows["gap"]
    if other is not None:
        run = ["data", "network", "rows", "seed"]
        theirs = other.set_index(run)["gap"].reindex(pd.MultiIndex.from_frame(rows[run])).to_numpy()
        left = left - np.sign(rows["gap_before"]) * theirs
    sums = pd.DataFrame({"left": left, "before": rows["gap_before"].abs(), "seed": rows["seed"]}).groupby("seed").sum()
    share, seeds = sums["left"].sum() / sums["before"].sum(), len(sums)
    error = np.sqrt(seeds / (seeds - 1) * ((sums["left"] - share * sums["before"]) ** 2).sum()) / sums["before"].sum()
    half = student_t.ppf(0.975, seeds - 1) * error
    return f"[{share - half:.0%}, {share + half:.0%}]" if other is None else f"{share:+.0%} [{share - half:+.0%}, {share + half:+.0%}]"


def _sentences(rows: pd.DataFrame) -> Iterator[str]:
    rows = rows[rows["gap_before"].notna()]
    default, plain = (rows[rows["arm"] == arm] for arm in ("default", PLAIN))
    null = default["data"].str.endswith("no gap")
    for name, some in (("2,000 rows or more", lambda r: r[r["rows"] >= 2000]), ("fewer rows", lambda r: r[r["rows"] < 2000])):
        own, other = (some(arm[arm["part"] == "tables"]) for arm in (default, plain))
        if own.empty:
            continue
        each = []
        for data, of in own[own["outcome"] != "refused"].groupby("data"):
            shares = ", ".join(f"{_left(by):.0%} with {size:,}" for size, by in of.groupby("rows"))
            each.append(f"{'COMPAS' if data == 'compas' else data.capitalize()} {shares}")
        aim = f"{AIMS[name]:.0%}" if name in AIMS else f"not more than {PLAIN}"
        sizes = " and ".join(f"{arm['gap'].abs().mean():.3f}" for arm in (own, other))
        kept, refusals = int((own["changed"] == 0).sum()), int((own["outcome"] == "refused").sum())
        yield (
            f"Tables, {name}: the default leaves {_left(own):.1%} of the signed gap {_left_interval(own)} (aim: {aim}), "
            f"{PLAIN} {_left(other):.1%}, a difference of {_left_interval(own, other)}; the mean |gap| after is {sizes}. "
            f"By data: {'; '.join(each)}. No decision differs in {kept} of {len(own)} runs, {refusals} of which were refused."
        )
    images = default[default["part"] == "images"]
    if len(images):
        yield (
            f"Images: the default leaves {_left(images):.0%} (aim: {AIMS['images']:.0%}), with a mean |gap| of "
            f"{images['gap_before'].abs().mean():.3f} before and {images['gap'].abs().mean():.3f} after."
        )
    for part, own in default[~null].groupby("part", sort=False):
        loss = own["performance_before"] - own["performance"]
        yield (
            f"Loss of balanced accuracy of the default, {part}: {loss.mean():.3f} on average (aim: {AIMS['mean loss']}), "
            f"{loss.max():.3f} at worst (aim: {AIMS['worst loss']})."
        )
    for size, own in default[null].groupby("rows"):
        before, after = own["gap_before"].abs().mean(), own["gap"].abs().mean()
        thresholds = plain.loc[plain["data"].str.endswith("no gap") & (plain["rows"] == size), "gap"].abs().mean()
        yield (
            f"Worlds without a gap, {size:,} rows: a mean |gap| of {before:.4f} becomes {after:.4f} "
            f"(aim: at most {AIMS['no gap']} times it), {thresholds:.4f} with {PLAIN}."
        )
    closed, reduced = (default[default["outcome"] == name] for name in ("closed", "reduced"))
    worse = int((reduced["gap"].abs() >= reduced["gap_before"].abs()).sum())
    harmed = {part: int((own["test_outcome"] == "harm").sum()) for part, own in reduced.groupby("part", sort=False)}
    told = ", ".join(f"{count} of {int((reduced['part'] == part).sum())} in {part}" for part, count in harmed.items())
    beyond = int((closed["gap"].abs() > 0.05).sum())
    yield (
        f"`closed` was {len(closed)} times the outcome, with a |gap| on the test rows beyond 0.05 in {beyond}; `reduced` {len(reduced)} "
        f"times, with a |gap| there that is not smaller in {worse}. On the test rows `reduced` was harm, by a performance below its limit "
        f"or a larger gap, in {told or 'none'}."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("tables", "worlds", "images", "summary"))
    parser.add_argument("files", nargs="*", type=Path, help="rows to summarise")
    parser.add_argument("--out", type=Path, default=Path("rows.csv"))
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) // 2))
    parser.add_argument("--seeds", type=int, nargs="+", default=[100, 101, 102])
    parser.add_argument("--arms", nargs="+", default=list(ARMS))
    parser.add_argument("--networks", nargs="+", help="only these")
    parser.add_argument("--data", nargs="+", help="only these")
    parser.add_argument("--rows", type=int, nargs="+", help="only repair sets of these sizes")
    parser.add_argument("--seconds", type=float, default=1e6, help="stop after so many")
    parser.add_argument("--size", type=int, default=64, help="pixels per side")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--write", type=Path, help="Markdown file whose marked part is replaced by the summary")
    given = parser.parse_args()
    if given.part == "summary":
        rows = pd.concat([pd.read_csv(path) for path in given.files], ignore_index=True)
        if given.write is not None:
            head, rest = given.write.read_text(encoding="utf-8").split(MARKS[0])
            given.write.write_text(f"{head}{MARKS[0]}\n{written(rows)}\n{MARKS[1]}{rest.split(MARKS[1])[1]}", encoding="utf-8")
    else:
        every = list(cases(given.part, given.seeds, tuple(given.arms), os.environ.get("EQUIPOISE_DATA", ""), given.device, given.size))
        limits: Mapping[str, Callable[[Case], bool]] = {
            "networks": lambda case: case.network in given.networks,
            "data": lambda case: case.data in given.data,
            "rows": lambda case: case.rows in given.rows,
        }
        every = [case for case in every if all(keep(case) for name, keep in limits.items() if getattr(given, name))]
        rows = run_all(every, given.workers, given.seconds, given.out)
    with pd.option_context("display.width", 250, "display.max_columns", 30, "display.float_format", "{:.3f}".format):
        print(summary(rows).to_string(index=False))


if __name__ == "__main__":
    main()
