"""How often the intervals of ratios, ranges, worst groups and differences in measures of scores contain the truth.

    python experiments/coverage/summaries.py --out experiments/coverage --samples 200

Patients are drawn with all of their rows, as in patients.py, and the truth is the value of the population; `equal` has four groups of 400
to 60 patients that do not differ. The sampled patients of each design go through the functions of an audit.
"""

import argparse
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from itertools import repeat
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pandas as pd
from patients import DESIGNS, Design, Population, few_rows, simulated

from equipoise.data import Attribute, Scores
from equipoise.measures import SUMMARIES, AuditSpec, summaries_on_rows

SPEC = AuditSpec(measures=tuple(SUMMARIES))
EQUAL = Design("equal", partial(simulated, (40_000,), 0.3, rows=few_rows, alike=0.4), (400, 200, 100, 60))
NAMES = ("nih-120", "larrazabal-300", "informative-120", "twelve groups", "rare-1000")
CHOSEN = {EQUAL.name: EQUAL} | {each.name: each for each in DESIGNS if each.name in NAMES}
CHUNK = 25  # samples of a task


@cache
def population_of(name: str) -> Population:
    """The population of a design."""
    return CHOSEN[name].population()


def found_in(whole: Population, row: np.ndarray, unit: np.ndarray, code: np.ndarray, groups: int) -> pd.DataFrame:
    """The summaries of some rows."""
    attribute, ids = Attribute("group", tuple(map(str, range(groups))), code), unit.astype(object)
    scores = Scores(whole.y[row], whole.score[row], (attribute,), ids, np.arange(len(row)).astype(object), "simulated")
    return summaries_on_rows(scores, whole.decided[row], (attribute,), SPEC)


def sample(name: str, first: int) -> pd.DataFrame:
    """The summaries of some samples, one row each."""
    design, whole = CHOSEN[name], population_of(name)
    starts, found = np.searchsorted(whole.patient, np.arange(whole.patient[-1] + 2)), []
    group_of = whole.group[starts[:-1]]
    members = [np.flatnonzero(group_of == (0 if design is EQUAL else k)) for k in range(len(design.drawn))]
    for k in range(first, first + CHUNK):
        rng = np.random.default_rng([k, *name.encode()])
        patients = np.concatenate([rng.choice(own, count) for own, count in zip(members, design.drawn, strict=True)])
        size = np.diff(starts)[patients]
        unit = np.repeat(np.arange(len(patients)), size)
        row = np.arange(len(unit)) - np.repeat(np.cumsum(size) - size, size) + starts[patients][unit]
        code = np.repeat(np.arange(len(design.drawn)), design.drawn)[unit]
        found.append(found_in(whole, row, unit, code, len(design.drawn)))
    return pd.concat(found)


def truth_of(name: str) -> pd.DataFrame:
    """The summaries of the population."""
    design, whole = CHOSEN[name], population_of(name)
    row = np.arange(len(whole.y))
    if design is EQUAL:  # every group has the rows of all
        row = np.tile(row, len(design.drawn))
        return found_in(whole, row, np.arange(len(row)), np.repeat(np.arange(len(design.drawn)), len(whole.y)), len(design.drawn))
    return found_in(whole, row, row, whole.group, len(design.drawn))


def coverage_of(name: str, samples: pd.DataFrame) -> pd.DataFrame:
    """One row per summary and group: the share of samples whose interval contains the truth."""
    truth, rows = truth_of(name), []
    for measure, own in samples[samples["value"].notna()].groupby("measure", sort=False):
        each, of_measure = SUMMARIES[str(measure)].of_each_group, truth[truth["measure"] == measure]
        for group, mine in own.groupby("group") if each else [("", own)]:
            true = float((of_measure[of_measure["group"] == group] if each else of_measure)["value"].iloc[0])
            low, high = (mine[end].to_numpy(float) for end in ("low", "high"))
            below, above = float((true < low - 1e-9).mean()), float((true > high + 1e-9).mean())
            shares = {"truth": true, "coverage": 1 - below - above, "below": below, "above": above, "width": float((high - low).mean())}
            rows.append({"design": name, "measure": measure, "group": group, "samples": len(mine)} | shares)
    return pd.DataFrame(rows)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--designs", nargs="*", choices=list(CHOSEN), default=list(CHOSEN))
    asked, found = parser.parse_args(arguments), []
    asked.out.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(asked.workers) as pool:
        for name in asked.designs:
            made = pd.concat(pool.map(sample, repeat(name), range(0, asked.samples, CHUNK)))
            found.append(coverage_of(name, made))
            print(name, found[-1]["coverage"].describe()[["min", "mean", "max"]].round(3).to_dict(), flush=True)
    pd.concat(found).to_csv(asked.out / "summaries.csv", index=False, float_format="%.4f")


if __name__ == "__main__":
    main()
