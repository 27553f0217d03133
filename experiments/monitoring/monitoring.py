"""How often monitoring raises a false alarm, and after how many periods it reports a gap that is there.

    python experiments/monitoring/monitoring.py --out experiments/monitoring     # about a minute on one core

A stable world is monitored in 50 periods, with the functions that `equipoise compare history.parquet` uses, for one gap (eod) at 95 %:
half of the error is for the level of the gap (confidence sequence), half for its change. Both are counted over all periods. The naive chart
tests every period at 95 %, as is usual. Patients are new in each period, except where they return;
then all their rows count, or those of their first period only (`equipoise audit --earlier`).
"""

import argparse
import csv
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np

from equipoise.measures.monitoring import change_evidence, confidence_sequence, first_period
from equipoise.measures.moments import DECISION_RATIOS, Moments

PERIODS, REPETITIONS, LEVEL = 50, 2000, 0.95
ALPHA = (1 - LEVEL) / 2  # for the level and for the change of one gap
SIZES = {"small": (12, 6), "medium": (60, 30), "large": (300, 150)}  # patients with the finding per period: reference, group


@dataclass(frozen=True)
class World:
    """Sensitivity of the reference, and the gap in each period."""

    name: str
    rate: float
    gap: float  # from the first period on
    change: float = 0.0  # added to the gap from period 13 on
    rows: int = 1  # per patient
    shared: float = 0.0  # of the variance between rows, the share between patients
    returning: bool = False  # the same patients in all periods
    again: float = 0.0  # share of the patients of a period who were in an earlier one
    first: bool = False  # such patients are left out, as with `audit --earlier`


def drawn(world: World, sizes: tuple[int, int], rng: np.random.Generator, periods: int, repetitions: int) -> Iterator[Moments]:
    """The moments of each period: groups are the repetitions of the reference, then those of the group."""
    propensity: dict[int, np.ndarray] = {}
    for t in range(periods):
        hits, squares, patients = np.zeros((2, repetitions)), np.zeros((2, repetitions)), np.zeros((2, repetitions))
        for side, size in enumerate(sizes) if not world.again else ():
            rate = world.rate + side * (world.gap + (world.change if t >= 12 else 0.0))
            number = rng.poisson(size, repetitions) if not world.returning else np.full(repetitions, size)
            if world.shared == 0.0:
                hits[side] = rng.binomial(number, rate)
                squares[side] = hits[side]
            else:
                widest = int(number.max())
                total = 1 / world.shared - 1  # of the beta distribution
                if not world.returning or side not in propensity:
                    propensity[side] = rng.beta(rate * total, (1 - rate) * total, (repetitions, widest))
                each = rng.binomial(world.rows, propensity[side]) * (np.arange(widest) < number[:, None])
                hits[side], squares[side] = each.sum(1), (each**2).sum(1)
            patients[side] = number
        for side, size in enumerate(sizes) if world.again else ():
            new = size - (round(size * world.again) if t else 0)
            total = 1 / world.shared - 1
            came = rng.beta(world.rate * total, (1 - world.rate) * total, (repetitions, new))
            known = propensity.get(side, came[:, :0])
            back = known[:, rng.choice(known.shape[1], size - new, replace=False)]
            propensity[side] = np.concatenate([known, came], axis=1)
            each = rng.binomial(world.rows, came if world.first else np.concatenate([came, back], axis=1))
            hits[side], squares[side], patients[side] = each.sum(1), (each**2).sum(1), each.shape[1]
        yield moments(patients.ravel(), hits.ravel(), squares.ravel(), world.rows)


def moments(patients: np.ndarray, hits: np.ndarray, squares: np.ndarray, rows: int) -> Moments:
    """Moments of positives only: `patients` of each group have `rows` rows each."""
    n = len(patients)
    total, second = np.zeros((n, 4)), np.zeros((n, 4, 4))
    total[:, 1], total[:, 3] = rows * patients, hits
    second[:, 1, 1], second[:, 3, 3] = rows**2 * patients, squares
    second[:, 1, 3] = second[:, 3, 1] = rows * hits
    ratios = DECISION_RATIOS
    held, units = np.zeros((n, len(ratios))), np.zeros((n, len(ratios)))
    held[:, list(ratios).index("tpr")], units[:, list(ratios).index("tpr")] = rows * patients, patients
    return Moments(ratios, total, second, held, units)


def monitored(
    world: World, sizes: tuple[int, int], seed: int, periods: int = PERIODS, repetitions: int = REPETITIONS
) -> dict[str, np.ndarray]:
    """For each repetition, the first period with each alarm; -1 for none."""
    rng = np.random.default_rng(seed)
    found = list(drawn(world, sizes, rng, periods, repetitions))
    signs = {"tpr": 1.0}
    evidence = change_evidence(found, signs, ALPHA, shape=(2, repetitions))
    outside, above, naive = [], [], []
    for own, so_far in zip(found, accumulate(found), strict=True):
        each = so_far.signed(signs)
        _, low, high = confidence_sequence(each[repetitions:].minus(each[:repetitions]), ALPHA)
        outside.append((low > world.gap) | (high < world.gap))
        above.append((low > 0) | (high < 0))
        single = own.signed(signs)
        _, low, high = single[repetitions:].minus(single[:repetitions]).limits(LEVEL)
        naive.append((low > world.gap) | (high < world.gap))
    return {
        "change": first_period(evidence.value[:, 0] >= 1 / ALPHA),
        "level": first_period(np.array(outside)),
        "shown": first_period(np.array(above)),
        "naive": first_period(np.array(naive)),
    }


STABLE = (
    World("no gap", 0.8, 0.0),
    World("gap of 0.05", 0.8, -0.05),
    World("sensitivity 0.97", 0.97, 0.0),
    World("sensitivity 0.1", 0.1, 0.0),
    World("three rows per patient", 0.8, 0.0, rows=3, shared=0.5),
    World("the same patients in all periods", 0.8, 0.0, rows=1, shared=0.5, returning=True),
    World("two thirds of the patients return", 0.8, 0.0, shared=0.5, again=2 / 3),
    World("two thirds of the patients return, first periods only", 0.8, 0.0, shared=0.5, again=2 / 3, first=True),
)


def false_alarms() -> Iterator[dict[str, object]]:
    for k, world in enumerate(STABLE):
        for name, sizes in SIZES.items():
            if (world.returning or world.again) and name == "large":
                continue
            repetitions = REPETITIONS if world.shared == 0 or name != "large" else REPETITIONS // 2
            found = monitored(world, sizes, 100 * k + len(name), repetitions=repetitions)
            either = (found["change"] >= 0) | (found["level"] >= 0)
            shares = {what: float((found[what] >= 0).mean()) for what in ("change", "level", "naive")}
            yield {"world": world.name, "periods": PERIODS, "size": name, "reference": sizes[0], "group": sizes[1],
                   "repetitions": repetitions, **shares, "any": float(either.mean())}  # fmt: skip


def delays() -> Iterator[dict[str, object]]:
    """In how many periods a gap of 0.1 is reported: one that begins in period 13, and one that is there from the first period on."""
    for k, world in enumerate(
        (World("gap of 0.1 from period 13 on", 0.8, 0.0, change=-0.1), World("gap of 0.1 from the start", 0.8, -0.1))
    ):
        start = 12 if world.change else 0
        for name, sizes in SIZES.items():
            found = monitored(world, sizes, 1000 + 100 * k + len(name), periods=72)
            alarms = {"change": found["change"], "level": found["shown"]}
            alarms["any"] = np.where(
                found["change"] < 0, found["shown"], np.where(found["shown"] < 0, found["change"], np.minimum(*alarms.values()))
            )
            for alarm, first in alarms.items():
                if alarm == "change" and not start:
                    continue
                after = np.where(first >= start, first - start + 1, np.inf)[(first < 0) | (first >= start)]
                row: dict[str, object] = {"world": world.name, "size": name, "reference": sizes[0], "group": sizes[1], "alarm": alarm}
                row |= {"repetitions": REPETITIONS, "too_early": float(((first >= 0) & (first < start)).mean())}
                row |= {f"within_{limit}": float((after <= limit).mean()) for limit in (6, 12, 24, 60)}
                yield row | {
                    "median": float(np.quantile(after, 0.5, method="higher")),
                    "ninth_decile": float(np.quantile(after, 0.9, method="higher")),
                }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    folder = parser.parse_args().out
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in (("false_alarms", false_alarms), ("delays", delays)):
        start, listed = time.process_time(), []
        for row in rows():
            listed.append(row)
            print(row, flush=True)
        with (folder / f"{name}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, list(listed[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows({k: f"{v:.4f}" if isinstance(v, float) else v for k, v in row.items()} for row in listed)
        print(f"{name}: {time.process_time() - start:.0f} s of CPU time")


if __name__ == "__main__":
    main()
