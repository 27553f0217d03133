"""How often intervals cover the truth with hard patients: those of NIH, informative numbers of rows, unequal groups, certain scores.

    python experiments/coverage/patients.py --out experiments/coverage   # 1,000 samples of each; continues where it was stopped
    python experiments/coverage/patients.py --out /tmp/coverage --samples 100 --designs nih-120

A design is a population of patients with their rows, labels, scores and a group. A sample draws patients of each group with replacement,
all rows of each, and the truth is the value of the population. Many samples go through the functions of an audit at once, as groups.
"""

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from time import process_time

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import numpy.typing as npt
import pandas as pd

from equipoise.data import Attribute, Scores
from equipoise.measures import AuditSpec, measure_of
from equipoise.measures.audit_spec import thresholds_of
from equipoise.measures.moments import moments_of
from equipoise.measures.score_measures import aurocs, decision_curves, estimate_scores, operating_points

DATA = Path(os.environ.get("EQUIPOISE_DATA", "data"))
ACCEPTED = (0.93, 0.98)
RATES = ("selection_rate", "tpr", "fpr", "ppv", "npv")
GAPS = ("spd", "eod", "fpr_gap", "aod", "ppv_gap", "npv_gap")
SPEC = AuditSpec(thresholds=(0.1, 0.3))
CHUNK = 100  # samples that are saved together
IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Population:
    """The rows of all patients, sorted by patient."""

    patient: IntArray  # (rows,) codes 0 .. P-1, ascending
    group: IntArray  # (rows,) of the patient, the reference is 0
    y: IntArray
    score: FloatArray
    cut: float

    @property
    def decided(self) -> FloatArray:
        """Decisions at the threshold."""
        return (self.score >= self.cut).astype(np.float64)


@dataclass(frozen=True)
class Design:
    """A population, and the number of patients that a sample draws from each of its groups."""

    name: str
    population: Callable[[], Population]
    drawn: tuple[int, ...]


def nih(data: str, label: str, score: str, flagged: float) -> Population:
    """Real patients, women compared with men, at the threshold that flags this share."""
    path = DATA / {"chexnet": "chexnet-nih/scores.csv.gz", "larrazabal": "larrazabal-nih-sex/fold_00.csv.gz"}[data]
    rows = pd.read_csv(path, usecols=["patient", "sex", label, score], dtype={"patient": str}).dropna()
    rows = rows.sort_values("patient", kind="stable")
    patient = np.unique(rows["patient"].to_numpy(), return_inverse=True)[1]
    p = rows[score].to_numpy(float)
    return Population(
        patient, (rows["sex"] == "F").to_numpy(np.int64), rows[label].to_numpy(np.int64), p, float(np.quantile(p, 1 - flagged))
    )


def simulated(
    patients: tuple[int, ...],
    prevalence: Sequence[float] | float,
    *,
    rows: Callable[[np.random.Generator, FloatArray], IntArray],
    alike: float,
    scores: Callable[[FloatArray, IntArray, np.random.Generator], FloatArray] | None = None,
    cut: float = 0.3,
) -> Population:
    """Patients with a latent severity, on which labels, scores and the number of rows may depend."""
    rng = np.random.default_rng(1)
    group_of = np.repeat(np.arange(len(patients)), patients)
    severity = rng.normal(size=len(group_of))
    unit = np.repeat(np.arange(len(group_of)), rows(rng, severity))
    chance = np.broadcast_to(np.asarray(prevalence, float), len(patients))[group_of][unit]
    latent = np.sqrt(alike) * severity[unit] + np.sqrt(1 - alike) * rng.normal(size=len(unit))
    y = (latent > -_normal_quantile(chance)).astype(np.int64)
    x = 1.3 * y + np.sqrt(alike) * severity[unit] * 0.7 + rng.normal(0, 1, len(unit)) - 1.5
    score = 1 / (1 + np.exp(-1.2 * x)) if scores is None else scores(x, y, rng)
    return Population(unit, group_of[unit], y, score, cut)


def _normal_quantile(p: FloatArray) -> FloatArray:
    from scipy.special import ndtri

    return np.asarray(ndtri(p))


def one_row(rng: np.random.Generator, severity: FloatArray) -> IntArray:  # noqa: ARG001
    """One row per patient."""
    return np.ones(len(severity), np.int64)


def few_rows(rng: np.random.Generator, severity: FloatArray) -> IntArray:
    """One to about ten rows, whatever the patient."""
    return 1 + rng.poisson(1.5, len(severity))


def more_rows_if_ill(rng: np.random.Generator, severity: FloatArray) -> IntArray:
    """Patients who are more ill have many more rows: informative cluster size."""
    return 1 + rng.poisson(np.exp(0.3 + 0.9 * severity))


def nih_rows(rng: np.random.Generator, severity: FloatArray) -> IntArray:
    """Numbers of rows of real patients (median 1, at most 184), whatever the severity."""
    patients = pd.read_csv(DATA / "chexnet-nih/scores.csv.gz", usecols=["patient"])["patient"]
    return np.asarray(rng.choice(patients.value_counts().to_numpy(), len(severity)), dtype=np.int64)


def nearly_certain(wrong: float, x: FloatArray, y: IntArray, rng: np.random.Generator) -> FloatArray:  # noqa: ARG001
    """Scores near 0 and 1, of which a share is on the wrong side."""
    right = rng.random(len(y)) >= wrong
    logit = np.where(right == (y == 1), 1, -1) * rng.uniform(5, 9, len(y))
    return np.asarray(1 / (1 + np.exp(-logit)))


TWELVE = (400, 300, 200, 150, 120, 100, 80, 60, 50, 40, 30, 25)  # patients
LARGE = (40_000, 40_000)  # of a simulated population
_NIH = partial(nih, "chexnet", "Effusion", "score_Effusion", 0.2)
_INFORMATIVE = partial(simulated, LARGE, (0.3, 0.2), rows=more_rows_if_ill, alike=0.5)
_RARE = partial(simulated, LARGE, 0.02, rows=few_rows, alike=0.3)
DESIGNS = (
    *(Design(f"nih-{n}", _NIH, (n, n)) for n in (60, 120, 300)),
    *(Design(f"larrazabal-{n}", partial(nih, "larrazabal", "Infiltration", "score0_Infiltration", 0.2), (n, n)) for n in (120, 300)),
    *(Design(f"nih rows-{n}", partial(simulated, LARGE, 0.3, rows=nih_rows, alike=0.4), (n, n)) for n in (60, 120, 300)),
    *(Design(f"informative-{n}", _INFORMATIVE, (n, n)) for n in (60, 120, 300)),
    Design("twelve groups", partial(simulated, (8_000,) * 12, 0.3, rows=few_rows, alike=0.4), TWELVE),
    *(Design(f"rare-{n}", _RARE, (n, n)) for n in (300, 1000)),
    *(
        Design(
            f"certain-{100 * w:g}-{n}", partial(simulated, LARGE, 0.3, rows=one_row, alike=0.0, scores=partial(nearly_certain, w)), (n, n)
        )
        for w in (0.01, 0.05)
        for n in (100, 400)
    ),
    Design(
        "certain-5-clustered", partial(simulated, LARGE, 0.3, rows=few_rows, alike=0.5, scores=partial(nearly_certain, 0.05)), (150, 150)
    ),
)


@cache
def population_of(name: str) -> Population:
    """The population of a design."""
    return next(design for design in DESIGNS if design.name == name).population()


@cache
def truth_of(name: str) -> tuple[dict[str, FloatArray], dict[str, FloatArray]]:
    """The values of the groups of the population, and their gaps."""
    whole, groups = population_of(name), len(next(design for design in DESIGNS if design.name == name).drawn)
    sums = moments_of(whole.decided, whole.y, whole.group, groups, np.arange(len(whole.y)))
    values = {rate: sums[rate].value for rate in RATES}
    scores = _scores(whole.y, whole.score, whole.group, np.arange(len(whole.y)), groups)
    values["auroc"] = aurocs(scores, scores.attribute, np.arange(len(whole.y)), 0.95).value
    rows, limits = estimate_scores(scores, scores.attribute, np.arange(len(whole.y)), SPEC)
    values |= {measure: each.value for measure, each in limits.items()}
    points = operating_points(rows, SPEC.specificity, SPEC.sensitivity, 0.95, 5)
    values |= dict(zip(("sensitivity_at_specificity", "specificity_at_sensitivity"), (each.value for each in points), strict=True))
    curves = decision_curves(rows, "group", scores.attribute.levels, thresholds_of(SPEC.thresholds), 0.95, 5)
    values |= {f"net benefit at {cut:g}": own["net_benefit"].to_numpy() for cut, own in curves.groupby("threshold")}
    gaps = {measure: sums.gap(measure_of(measure).coefficients).total for measure in GAPS}
    return values, gaps


def _scores(y: IntArray, score: FloatArray, group: IntArray, unit: IntArray, groups: int) -> Scores:
    ids = unit.astype(object)
    attribute = Attribute("group", tuple(map(str, range(groups))), group)
    return Scores(y, score, (attribute,), ids, np.arange(len(y)).astype(object), "simulated")


def hits_of(design: Design, first: int, samples: int) -> Iterator[tuple[str, str, int, FloatArray, FloatArray, FloatArray]]:
    """Kind, measure and group of each interval, with its limits in all samples, and the truth."""
    whole, groups = population_of(design.name), len(design.drawn)
    starts = np.searchsorted(whole.patient, np.arange(whole.patient[-1] + 2))
    group_of = whole.group[starts[:-1]]
    members = [np.flatnonzero(group_of == k) for k in range(groups)]
    drawn, code = [], []
    for k in range(samples):
        rng = np.random.default_rng([first + k, *design.name.encode()])
        for g, count in enumerate(design.drawn):
            drawn.append(rng.choice(members[g], count))
            code.append(np.full(count, k * groups + g))
    patients, codes = np.concatenate(drawn), np.concatenate(code)
    size = np.diff(starts)[patients]
    unit = np.repeat(np.arange(len(patients)), size)
    row = np.arange(len(unit)) - np.repeat(np.cumsum(size) - size, size) + starts[patients][unit]
    y, score, group, f = whole.y[row], whole.score[row], codes[unit], whole.decided[row]
    many, least = samples * groups, SPEC.min_patients
    sums = moments_of(f, y, group, many, unit)
    values, true_gaps = truth_of(design.name)
    by_rate: dict[str, tuple[FloatArray, FloatArray]] = {}
    for rate in RATES:
        _, low, high = sums.signed({rate: 1.0}).limits(0.95)
        by_rate[rate] = low, np.where(sums[rate].patients >= least, high, np.nan)
    scores = _scores(y, score, group, unit, many)
    area = aurocs(scores, scores.attribute, unit, 0.95)
    by_rate["auroc"] = area.low, np.where(area.patients >= least, area.high, np.nan)
    rows, limits = estimate_scores(scores, scores.attribute, unit, SPEC)
    by_rate |= {measure: (each.low, each.high) for measure, each in limits.items()}
    points = operating_points(rows, SPEC.specificity, SPEC.sensitivity, 0.95, least)
    for measure, each in zip(("sensitivity_at_specificity", "specificity_at_sensitivity"), points, strict=True):
        by_rate[measure] = each.low, each.high
    curves = decision_curves(rows, "group", scores.attribute.levels, thresholds_of(SPEC.thresholds), 0.95, least)
    by_rate |= {f"net benefit at {cut:g}": (own["low"].to_numpy(), own["high"].to_numpy()) for cut, own in curves.groupby("threshold")}
    for measure, (low, high) in by_rate.items():
        for g in range(groups):
            yield "group", measure, g, low[g::groups], high[g::groups], values[measure][g]
    for measure in GAPS:
        signed = sums.signed(measure_of(measure).coefficients)
        enough = np.min([sums[rate].patients for rate in measure_of(measure).coefficients], axis=0) >= least
        for g in range(1, groups):
            own, reference = slice(g, None, groups), slice(0, None, groups)
            _, low, high = signed[own].minus(signed[reference]).limits(0.95)
            yield "gap", measure, g, low, np.where(enough[own] & enough[reference], high, np.nan), true_gaps[measure][g - 1]


def made(task: tuple[str, int, int, Path]) -> str:
    """Makes one piece, unless it is there already; what it took."""
    name, first, samples, folder = task
    path = folder / f"{name.replace(' ', '-')}-{first:04d}.csv"
    if path.is_file():
        return f"{path.stem}: there already"
    start, lines = process_time(), []
    design = next(each for each in DESIGNS if each.name == name)
    for kind, measure, group, low, high, truth in hits_of(design, first, samples):
        known = ~np.isnan(low) & ~np.isnan(high)
        below, above = int((truth < low[known] - 1e-12).sum()), int((truth > high[known] + 1e-12).sum())
        width = float((high - low)[known].sum())
        lines.append((name, kind, measure, group, int(known.sum()), below, above, width, samples))
    columns = ["design", "kind", "measure", "group", "intervals", "below", "above", "width", "samples"]
    pd.DataFrame(lines, columns=columns).to_csv(path, index=False)
    return f"{path.stem}: {process_time() - start:.0f} s of CPU"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--designs", nargs="*", choices=[design.name for design in DESIGNS])
    asked = parser.parse_args(arguments)
    folder = asked.out / "pieces-patients"
    folder.mkdir(parents=True, exist_ok=True)
    names = [design.name for design in DESIGNS if not asked.designs or design.name in asked.designs]
    tasks = [(name, first, min(CHUNK, asked.samples - first), folder) for name in names for first in range(0, asked.samples, CHUNK)]
    if asked.workers > 1:
        with ProcessPoolExecutor(asked.workers) as pool:
            for line in pool.map(made, tasks):
                print(line, flush=True)
    else:
        for task in tasks:
            print(made(task), flush=True)
    pieces = pd.concat([pd.read_csv(path) for path in sorted(folder.glob("*.csv"))])
    found = pieces.groupby(["design", "kind", "measure", "group"], sort=False).sum().reset_index()
    found = found[found["intervals"] >= found["samples"] / 2]  # the rest are a selection
    found["coverage"] = 1 - (found["below"] + found["above"]) / found["intervals"]
    for name in ("below", "above", "width"):
        found[name] /= found["intervals"]
    found.to_csv(asked.out / "patients.csv", index=False, float_format="%.4f")
    outside = found[~found["coverage"].between(*ACCEPTED)]
    print(f"{len(found)} intervals, {len(outside)} with a coverage outside {ACCEPTED[0]} to {ACCEPTED[1]}", file=sys.stderr)


if __name__ == "__main__":
    main()
