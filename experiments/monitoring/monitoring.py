"""How often monitoring raises a false alarm, and after how many periods it reports a gap that is there.

    python experiments/monitoring/monitoring.py --out experiments/monitoring     # about a minute on one core

A stable world is monitored in 50 periods, with the functions that `equipoise compare history.parquet` uses, for one gap (eod) at 95 %:
half of the error is for the level of the gap (confidence sequence), half for its change. Both are counted over all periods. The naive chart
tests every period at 95 %, as is usual; the limits "pooled" are for the rates of all periods pooled, without strata; "ratio" are alarms of
the ratio of both rates, of its level or change. Patients are new in each period, except where they return; then they are identified
(`history.earlier`) or not.
"""

import argparse
import csv
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np

from equipoise.measures.moments import DECISION_RATIOS, Moments
from equipoise.measures.monitoring import Strata, change_evidence, confidence_sequence, first_period

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
    again: float = 0.0  # share of the patients of a period who were in an earlier one
    identified: bool = False  # whether such patients are known
    drift: tuple[float, float] | None = None  # the rate at the start and at the end, of both, while the group's share goes from 0.2 to 0.8
    ppv: bool = False  # PPV instead of sensitivity, with a prevalence that drifts


Period = tuple[Moments, np.ndarray]  # the products of sums of patients who return (groups, 4, 4)


def drawn(world: World, sizes: tuple[int, int], rng: np.random.Generator, periods: int, repetitions: int) -> Iterator[Period]:
    """The moments of each period: groups are the repetitions of the reference, then those of the group."""
    known: dict[int, tuple[np.ndarray, ...]] = {}  # of each patient: propensity, visits, hits
    for t in range(periods):
        if world.ppv:
            share = 0.2 + 0.6 * t / (periods - 1)
            yield predictive(np.round(np.array([1 - share, share]) * sum(sizes)), 0.5 - 0.35 * t / (periods - 1), rng, repetitions)
            continue
        hits, squares, patients = np.zeros((2, repetitions)), np.zeros((2, repetitions)), np.zeros((2, repetitions))
        products = np.zeros((2, repetitions, 4, 4))
        for side, size in enumerate(sizes):
            rate = world.rate + side * (world.gap + (world.change if t >= 12 else 0.0))
            number = rng.poisson(size, repetitions)
            if world.drift is not None:
                share = 0.2 + 0.6 * t / (periods - 1)
                rate = world.drift[0] + (world.drift[1] - world.drift[0]) * t / (periods - 1)
                number = np.full(repetitions, round(sum(sizes) * (share if side else 1 - share)))
            if world.shared == 0.0:
                hits[side] = squares[side] = rng.binomial(number, rate)
            elif not world.again:
                widest, total = int(number.max()), 1 / world.shared - 1  # of the beta distribution
                each = rng.binomial(world.rows, rng.beta(rate * total, (1 - rate) * total, (repetitions, widest)))
                each = each * (np.arange(widest) < number[:, None])
                hits[side], squares[side] = each.sum(1), (each**2).sum(1)
            else:
                new, total = size - (round(size * world.again) if t else 0), 1 / world.shared - 1
                came = rng.beta(rate * total, (1 - rate) * total, (repetitions, new))
                before = known.get(side, (came[:, :0],) * 3)
                everyone = [np.concatenate([past, more], axis=1) for past, more in zip(before, (came, 0 * came, 0 * came), strict=True)]
                there = np.append(rng.choice(before[0].shape[1], size - new, replace=False), before[0].shape[1] + np.arange(new)).astype(
                    int
                )
                each = rng.binomial(1, everyone[0][:, there])
                m = np.stack([everyone[1][:, there], everyone[2][:, there]], axis=2)
                x = np.stack([np.ones_like(each), each], axis=2)
                cross = np.einsum("rpa,rpb->rab", m, x)
                products[side][:, 1::2, 1::2] = cross + cross.swapaxes(1, 2)
                everyone[1][:, there] += 1
                everyone[2][:, there] += each
                known[side] = tuple(everyone)
                hits[side], squares[side], number = each.sum(1), (each**2).sum(1), np.full(repetitions, size)
            patients[side] = number
        yield moments(patients.ravel(), hits.ravel(), squares.ravel(), world.rows), products.reshape(-1, 4, 4) * world.identified


def predictive(patients: np.ndarray, prevalence: float, rng: np.random.Generator, repetitions: int) -> Period:
    """A period of a classifier with sensitivity 0.8 and false positive rate 0.1: its PPV follows the prevalence."""
    n = np.repeat(patients, repetitions).astype(int)
    sick = rng.binomial(n, prevalence)
    total = np.stack([n - sick, sick, rng.binomial(n - sick, 0.1), rng.binomial(sick, 0.8)], axis=1).astype(float)
    second = np.zeros((len(n), 4, 4))
    second[:, range(4), range(4)] = total
    for a, b in ((0, 2), (1, 3)):
        second[:, a, b] = second[:, b, a] = total[:, b]
    held = np.stack([total @ np.array(each.bottom, dtype=float) for each in DECISION_RATIOS.values()], axis=1)
    return Moments(DECISION_RATIOS, total, second, held, held, np.zeros((*held.shape, 6)), np.zeros_like(second)), np.zeros_like(second)


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
    powers = np.zeros((*held.shape, 6))
    of_hits = rows * squares, rows**2 * hits, rows**3 * patients, rows**2 * squares, rows**3 * hits, rows**4 * patients
    powers[:, list(ratios).index("tpr")] = np.stack(of_hits, axis=-1)
    return Moments(ratios, total, second, held, units, powers, np.zeros_like(second))


def monitored(
    world: World, sizes: tuple[int, int], seed: int, periods: int = PERIODS, repetitions: int = REPETITIONS
) -> dict[str, np.ndarray]:
    """For each repetition, the first period with each alarm; -1 for none."""
    found, products = zip(*drawn(world, sizes, np.random.default_rng(seed), periods, repetitions), strict=True)
    signs = {"ppv" if world.ppv else "tpr": 1.0}
    strata = Strata.of(found, signs, products, shape=(2, repetitions))
    _, low, high = (each[:, 0] for each in confidence_sequence(strata.gaps(), ALPHA))
    evidence = change_evidence(strata, ALPHA).value[:, 0]
    ratio = 1.0 if world.ppv else (world.rate + world.gap) / world.rate
    _, ratio_low, ratio_high = (each[:, 0] for each in confidence_sequence(strata.gaps(), ALPHA, is_ratio=True))
    of_ratio = change_evidence(strata, ALPHA, is_ratio=True).value[:, 0]
    outside = {"pooled": [], "naive": []}
    for own, so_far in zip(found, accumulate(found), strict=True):
        for name, sums in (("pooled", so_far), ("naive", own)):
            each = sums.signed(signs)
            gap = each[repetitions:].minus(each[:repetitions])
            _, below, above = confidence_sequence(gap, ALPHA) if name == "pooled" else gap.limits(LEVEL)
            outside[name].append((below > world.gap) | (above < world.gap))
    return {
        "change": first_period(evidence >= 1 / ALPHA),
        "level": first_period((low > world.gap) | (high < world.gap)),
        "shown": first_period((low > 0) | (high < 0)),
        "ratio": first_period((ratio_low > ratio) | (ratio_high < ratio) | (of_ratio >= 1 / ALPHA)),
        **{name: first_period(np.array(missed)) for name, missed in outside.items()},
    }


STABLE = (
    World("no gap", 0.8, 0.0),
    World("gap of 0.05", 0.8, -0.05),
    World("sensitivity 0.97", 0.97, 0.0),
    World("sensitivity 0.1", 0.1, 0.0),
    World("three rows per patient", 0.8, 0.0, rows=3, shared=0.5),
    World("the same patients in all periods", 0.8, 0.0, shared=0.5, again=1.0),
    World("the same patients in all periods, identified", 0.8, 0.0, shared=0.5, again=1.0, identified=True),
    World("two thirds of the patients return", 0.8, 0.0, shared=0.5, again=2 / 3),
    World("two thirds of the patients return, identified", 0.8, 0.0, shared=0.5, again=2 / 3, identified=True),
)
DRIFTING = {  # the first number is that of the patients of both groups together
    "sensitivity falls in both, the shares change": World("sensitivity falls in both, the shares change", 0.9, 0.0, drift=(0.9, 0.6)),
    "sensitivity rises in both, the shares change": World("sensitivity rises in both, the shares change", 0.6, 0.0, drift=(0.6, 0.9)),
    "PPV follows the prevalence, the shares change": World("PPV follows the prevalence, the shares change", 0.8, 0.0, ppv=True),
}
DRIFTING_SIZES, DRIFTING_REPETITIONS = {"200": (160, 40), "1000": (800, 200)}, 1000


def false_alarms() -> Iterator[dict[str, object]]:
    for k, world in enumerate((*STABLE, *DRIFTING.values())):
        for name, sizes in (DRIFTING_SIZES if world.name in DRIFTING else SIZES).items():
            if world.again and name == "large":
                continue
            repetitions = REPETITIONS if world.shared == 0 or name != "large" else REPETITIONS // 2
            repetitions = DRIFTING_REPETITIONS if world.name in DRIFTING else 500 if world.again else repetitions
            found = monitored(world, sizes, 100 * k + len(name), repetitions=repetitions)
            either = (found["change"] >= 0) | (found["level"] >= 0)
            shares = {what: float((found[what] >= 0).mean()) for what in ("change", "level", "pooled", "naive", "ratio")}
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
