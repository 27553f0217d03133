"""How the default was tuned: every step of every method in the worlds of seeds 1000 to 1999, stored once, and what variants would choose.

    python experiments/worlds/tuning.py store --out build/steps.pkl.gz [--seeds 1000 2000] [--workers 2] [--seconds 500]
    python experiments/worlds/tuning.py compare build/steps.pkl.gz

A stored step has its cross-fitted estimates, which a variant may use, and the true rates of each group, which judge it. The steps of
methods that change a network are not stored: these worlds have scores, some with inputs for bias-score.
"""

import argparse
import gzip
import pickle
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import worlds

SURE_OF_RISE = 1.645  # standard errors: an upper 95 % limit


def stored(seed: int) -> dict[str, Any] | None:
    """The steps of every method in one world, with their estimates and their truth; None if the world is refused."""
    import equipoise as eq
    from equipoise.methods import auto, driver

    w = worlds.world(seed)
    rng = np.random.default_rng([seed, 5])
    rows = worlds.scores_of(w, worlds.rows_of(w, rng))
    truth = worlds.scores_of({**w, "rows_each": 1}, worlds.rows_of(w, rng, worlds.TRUTH))
    cut = None if w["threshold"] == "best" else float(worlds.score_of(w, np.float64(w["cut"])))
    with suppress(eq.BadInput):
        cut_in_use = worlds.best_cut(rows) if cut is None else cut
        methods, steps, choose, decisions = [], [], driver.choose_step, driver.step_decisions

        def decided(own: Any, *given: Any) -> Any:
            if len(given[1]) == len(rows):
                steps.append(own)
            return decisions(own, *given)

        def chose(each: Any, at: Any, **given: Any) -> Any:
            (own,), true = each, decisions(steps[0], None, truth)
            rates = {name: own.cells.rate(name).astype(np.float32) for name in ("tpr", "fpr", "selection")}
            methods.append(
                {
                    "needs_group": given["needs_group"],
                    "randomised": given["randomised"],
                    "without": given["without"],
                    "rate": own.original.total,
                    "variance": own.original.variance,
                    "values": own.values.astype(np.float32),
                    "performance": own.performance,
                    "performance_se": own.performance_se(change=True),
                    "rates": rates,
                    "rate_se": {name: own.rate_se(name, change=True).astype(np.float32) for name in rates},
                    "true": np.stack([worlds.rates_of(f, truth.y, truth.attribute.codes, w["groups"]) for f in true]).astype(np.float32),
                }
            )
            steps.clear()
            return choose(each, at, **given)

        driver.step_decisions, driver.choose_step, enough = decided, chose, auto._good_enough
        auto._good_enough = lambda *_: False  # every method is tried
        try:
            eq.debias(rows, threshold=cut)
        finally:
            driver.step_decisions, driver.choose_step, auto._good_enough = decisions, choose, enough
        before = worlds.rates_of(truth.score >= cut_in_use, truth.y, truth.attribute.codes, w["groups"])
        about = {name: w[name] for name in ("seed", "n", "groups", "gap", "prevalence", "rows_each", "cause", "threshold", "shares")}
        return {**about, "before": before, "methods": methods}
    return None


def store(seeds: range, workers: int, out: Path, seconds: float) -> None:
    """All worlds in one file, as they come."""
    start, found = time.perf_counter(), dict[int, Any]() if not out.exists() else pickle.loads(gzip.decompress(out.read_bytes()))
    out.parent.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        waiting = {pool.submit(stored, seed): seed for seed in seeds if seed not in found}
        for ended in as_completed(waiting):
            if time.perf_counter() - start > seconds:
                for other in waiting:
                    other.cancel()
            if not ended.cancelled() and ended.exception() is None:
                found[waiting[ended]] = ended.result()
            elif not ended.cancelled():
                print(f"FAILED {waiting[ended]}: {ended.exception()!r}", flush=True)
    out.write_bytes(gzip.compress(pickle.dumps(found)))
    print(f"{len(found)} worlds, {time.perf_counter() - start:.0f} s: {out}")


@dataclass(frozen=True)
class Variant:
    """What a choice by expected loss depends on."""

    no_gap: float = 0.2
    no_gap_by_group: float = 0.5
    largest_tau: float = 0.15
    least_gain: float = 0.005
    rise_fpr: float = 0.1
    rise_selection: float = 0.1
    sure: float = 1.0
    sure_of_rise: float = SURE_OF_RISE
    max_loss: float = 0.02
    fall_price: float = 1.0
    worse_price: float = 0.0  # of the probability that the gap grows by two points
    gain_weight: float = 1.0
    kept_sure: float = 1.0
    worse_most: float = 1.0  # a step with a larger probability is not taken
    errors: str = "carried"  # of the original's rates: unchanged by a step, or as far as its decisions are the same ("carried")
    shown: float = 0.0  # standard errors that the performance gained must exceed to count


def chosen(world: dict[str, Any], v: Variant) -> tuple[int, int]:
    """The method and step that a variant takes in a world; step 0 is the original."""
    from equipoise.methods import choosing

    best, taken = 1e-9, (0, 0)
    spreads = choosing.SPREADS
    choosing.SPREADS = np.array([0.0, *(k for k in (*spreads[1:], 0.2, 0.3) if 0 < k <= v.largest_tau)])
    for at, own in enumerate(world["methods"]):
        if len(own["values"]) < 2:
            continue
        prior = v.no_gap_by_group if own["needs_group"] else v.no_gap
        true = choosing.TrueRates.of(own["rate"], own["variance"], prior).draws(np.random.default_rng(0))
        moved = own["values"] - own["values"][0]
        after = true[None] + moved[:, None]
        if v.errors == "carried":
            before, rates = own["variance"], own["rates"]["tpr"].clip(0.01, 0.99)
            then = before * rates * (1 - rates) / (rates[0] * (1 - rates[0]))
            share = ((before + then - own["rate_se"]["tpr"] ** 2) / 2 / before).clip(0, 1)
            rest = np.sqrt((then - share**2 * before).clip(0))
            noise = np.random.default_rng(1).normal(size=true.shape)
            after = (own["rate"] + moved)[:, None] - share[:, None] * (own["rate"] - true) + rest[:, None] * noise
        size = np.abs(after[..., 1:] - after[..., :1]).max(2)
        expected, worse = size.mean(1), (size > size[0] + worlds.POINTS).mean(1)
        gain, change, error = expected[0] - expected, own["performance"] - own["performance"][0], own["performance_se"]
        changes = {name: rate - rate[0] for name, rate in own["rates"].items()}
        lacks = (gain < v.least_gain) | (change - v.sure * error < -v.max_loss - 1e-9) | own["without"] | (worse > v.worse_most)
        lacks |= (changes["tpr"] - v.kept_sure * own["rate_se"]["tpr"] < -1e-9).any(1)
        for name, most in (("fpr", v.rise_fpr), ("selection", v.rise_selection)):
            lacks |= (changes[name] + v.sure_of_rise * own["rate_se"][name] > most + 1e-9).any(1)
        fall = (-changes["tpr"]).clip(min=0).max(1)
        gained = np.where(change > 0, np.maximum(change - v.shown * error, 0), change)
        net = v.gain_weight * gain + gained - v.fall_price * fall - choosing.RANDOMISED_PRICE * own["randomised"] - v.worse_price * worse
        net = np.where(lacks, -np.inf, net)
        net[0] = -np.inf
        if net.max() > best:
            best, taken = float(net.max()), (at, int(net.argmax()))
    choosing.SPREADS = spreads
    return taken


def judged(found: list[dict[str, Any]], v: Variant) -> dict[str, float]:
    """What a variant does to patients."""
    told = []
    for world in found:
        at, step = chosen(world, v)
        after = world["methods"][at]["true"][step] if step else world["before"]
        about = worlds.compared(world["before"], after, world["shares"], np.full(world["groups"], world["prevalence"]))
        told.append({"null": world["gap"] == 0, "acted": step > 0, **about})
    frame = pd.DataFrame(told)
    real, null = frame[~frame["null"]], frame[frame["null"]]
    worse = frame["gap_after"] > frame["gap_before"] + worlds.POINTS
    return {
        "acts, no gap": null["acted"].mean(),
        "acts, gap": real["acted"].mean(),
        "gap before": real["gap_before"].mean(),
        "gap after": real["gap_after"].mean(),
        "worse": worse.mean(),
        "worse, no gap": worse[frame["null"]].mean(),
        "loss": frame["loss"].mean(),
        "loss > 0.02": (frame["loss"] > worlds.LOSS).mean(),
        "fall > 0.02": (frame["fall"] > worlds.POINTS).mean(),
        "alarms > 0.05": (frame["alarms"] > 0.05).mean(),
        "alarms > 0.1": (frame["alarms"] > worlds.BOUND).mean(),
        "alarms, most": frame["alarms"].max(),
    }


def compare(found: list[dict[str, Any]]) -> pd.DataFrame:
    """One variant per row: today's default, and one change each."""
    base = Variant()
    variants = {"default": base}
    for name, values in {
        "no_gap": (0.1, 0.3, 0.5),
        "no_gap_by_group": (0.2, 0.33, 0.7),
        "largest_tau": (0.1, 0.3),
        "least_gain": (0.0025, 0.01),
        "rise_fpr": (0.05, 0.15, 1.0),
        "rise_selection": (0.05, 0.15, 1.0),
        "sure": (0.5, 1.645),
        "kept_sure": (0.0, 0.5),
        "sure_of_rise": (0.0, 1.0),
        "worse_price": (0.02, 0.05),
        "worse_most": (0.1, 0.2, 0.3),
        "gain_weight": (2.0, 5.0),
        "shown": (1.0,),
    }.items():
        variants |= {f"{name} {value:g}": replace(base, **{name: value}) for value in values}
    return pd.DataFrame({name: judged(found, v) for name, v in variants.items()}).T


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["store", "compare"])
    parser.add_argument("file", nargs="?", type=Path)
    parser.add_argument("--out", type=Path, default=Path("build/steps.pkl.gz"))
    parser.add_argument("--seeds", type=int, nargs=2, default=(1000, 2000))
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    given = parser.parse_args()
    if given.part == "store":
        store(range(*given.seeds), given.workers, given.out, given.seconds)
        return
    found = [world for world in pickle.loads(gzip.decompress((given.file or given.out).read_bytes())).values() if world is not None]
    print(len(found), "worlds")
    print(compare(found).round(4).to_string())


if __name__ == "__main__":
    main()
