"""Ours beside OxonFair, Fairlearn and AIF360: gap, balanced accuracy and seconds, and the time that many groups take.

Usage: EQUIPOISE_DATA=... .venv-bench/bin/python experiments/peers/peers.py FOLDER [splits [data ...]], after environment.sh.
FOLDER keeps the networks, which are trained once. With data named, the table of many groups is left out.

On Adult, Bank and COMPAS everybody gets the same network's scores, is fitted on the same validation part and judged on the same test
part, and is asked for the best balanced accuracy with |gap| within a bound, where it can be asked for that: equalised odds knows no
bound. Two take the training part as well: OxonFair's second head, a logistic regression for the group, and Fairlearn's
ExponentiatedGradient, which trains a classifier anew. What is randomised is judged in expectation. Seconds are of fitting alone, the
median of one run a split, one thread.

For many groups: rows whose labels, groups and posteriors are simulated, so that nothing but the search is timed, each in a process of its
own with limits on time and memory; in brackets the gap and balanced accuracy on these very rows.
"""

import json
import logging
import os
import resource
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from fairlearn.reductions import DemographicParity, ErrorRate, ExponentiatedGradient, TruePositiveRateParity
from libraries import (
    AIF360_NAMES,
    FAIRLEARN_NAMES,
    Fit,
    aif360_equalised_odds,
    aif360_reject_option,
    fairlearn_thresholds,
    measured,
    oxonfair_thresholds,
)
from oxonfair import DeepDataDict, DeepFairPredictor
from oxonfair.utils import group_metrics
from oxonfair.utils.group_metric_classes import BaseGroupMetric
from sklearn.linear_model import LogisticRegression

import equipoise as eq
from equipoise.data import Attribute, FloatArray
from equipoise.measures import RATES, measure_of
from equipoise.methods import Label, equalised_odds, reject_option
from equipoise.methods import blind_rule as bias_problem
from equipoise.methods.blind_rule import path
from equipoise.methods.thresholds import group_thresholds
from equipoise.models import FeatureCache, FeatureChoice, Heads, Probe, initial_mlp, predict

DATA = ("adult", "bank", "compas")
BOUND = 0.02
ROWS = 9_000
GROUPS = (2, 3, 4, 8)
LIMIT_SECONDS, LIMIT_GIGABYTES = 60, 8  # of one search
NEEDS = "(needs the group)"
Decide = Callable[["Part"], FloatArray]
OXONFAIR_RATES = {"spd": group_metrics.pos_pred_rate, "eod": group_metrics.recall}
FAIRLEARN_MOMENTS = {"spd": DemographicParity, "eod": TruePositiveRateParity}


class AgainstReference(BaseGroupMetric):  # type: ignore[misc]
    """The largest |rate of a group - rate of the reference|: OxonFair's own differences are of all pairs, another question for 3 groups."""

    def __call__(self, *given: Any) -> Any:
        rate = self.func(*self.build_array(given))
        return np.abs(rate[..., 1:] - rate[..., :1]).max(-1)


@dataclass(frozen=True, eq=False)
class Part:
    """A part of the data with what a network says of it."""

    cohort: eq.Cohort
    scores: eq.Scores
    logit: FloatArray
    last: FloatArray  # features (n, d): the last layer
    wide: FloatArray  # the inputs and the last layer, what the bias score reads

    @property
    def codes(self) -> Any:
        return self.scores.attribute.codes

    @property
    def inputs(self) -> FloatArray:
        found: FloatArray = np.asarray(self.cohort.inputs, dtype=np.float64)
        return found


@dataclass(frozen=True)
class Row:
    """One way to decide, on one split."""

    data: str
    measure: str
    method: str
    gap: float
    balanced_accuracy: float
    seconds: float


def part_of(model: torch.nn.Module, cohort: eq.Cohort) -> Part:
    logit, last = FeatureCache(model, cohort.inputs).read(FeatureChoice.of(model, cohort.inputs, "last")).arrays()
    wide = FeatureCache(model, cohort.inputs).read(FeatureChoice.of(model, cohort.inputs)).arrays()[1]
    return Part(cohort, predict(model, cohort), logit, last, wide)


def network(folder: Path, name: str, parts: eq.Parts, seed: int) -> torch.nn.Module:
    """The trained network of one split, or as it was kept."""
    file = folder / f"{name}-{seed}.pt"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        torch.save(eq.train(parts.train, parts.valid, seed=seed).state_dict(), file)
    model = initial_mlp(parts.train.inputs.shape[1], seed)
    model.load_state_dict(torch.load(file, weights_only=True))
    return model.eval()


def contenders(model: torch.nn.Module, train: Part, valid: Part, measure: str, seed: int) -> dict[str, Callable[[], Decide]]:
    """What fits, and returns what decides, by name."""
    goal, scores = eq.Goal(measure, max_gap=BOUND, selection="paper"), valid.scores
    cut = float(group_thresholds(scores, goal).trace["threshold"].iloc[0])  # the best balanced accuracy without a bound
    gap = AgainstReference(OXONFAIR_RATES[measure].func, "largest gap", False)

    def ours_blind() -> Decide:
        found = eq.debias(model, valid.cohort, method="bias-score", measure=measure, max_gap=BOUND, selection="paper", seed=seed)
        return lambda part: found.rule.decide(predict(found.model, part.cohort))

    def ours(fit: Callable[..., Any]) -> Callable[[], Decide]:
        return by_scores(lambda: fit(scores, goal).rule.decide)

    found: dict[str, Callable[[], Decide]] = {
        "the network as it is": lambda: lambda part: (part.scores.score >= cut).astype(np.float64),
        "equipoise bias-score": ours_blind,
        "OxonFair, two heads on the last layer": oxonfair_heads(train, valid, gap, lambda part: part.last),
        "OxonFair, second head on the inputs too": oxonfair_heads(train, valid, gap, lambda part: part.wide),
        "Fairlearn ExponentiatedGradient, a logistic regression trained anew, 10 rounds": lambda: exponentiated_gradient(train, measure),
        f"equipoise group-thresholds {NEEDS}": ours(group_thresholds),
        f"OxonFair, a threshold a group {NEEDS}": by_scores(oxonfair_thresholds(scores, gap, BOUND)),
        f"Fairlearn ThresholdOptimizer, no gap {NEEDS}": by_scores(fairlearn_thresholds(scores, FAIRLEARN_NAMES[measure])),
        f"Fairlearn ThresholdOptimizer, tol = the bound {NEEDS}": by_scores(fairlearn_thresholds(scores, FAIRLEARN_NAMES[measure], BOUND)),
        f"equipoise reject-option {NEEDS}": ours(reject_option.reject_option),
        f"AIF360 RejectOptionClassification, 25 x 20 {NEEDS}": by_scores(aif360_reject_option(scores, measure, BOUND, cut)),
    }
    if measure == "eod":
        found[f"equipoise equalised-odds {NEEDS}"] = ours(equalised_odds.equalised_odds)
        found[f"AIF360 EqOddsPostprocessing {NEEDS}"] = by_scores(aif360_equalised_odds(scores, cut))
    return found


def by_scores(fit: Fit) -> Callable[[], Decide]:
    """What fits a rule for scores, and returns what decides about a part."""

    def fitted() -> Decide:
        decide = fit()
        return lambda part: decide(part.scores)

    return fitted


def oxonfair_heads(train: Part, valid: Part, gap: Any, read: Callable[[Part], FloatArray]) -> Callable[[], Decide]:
    def fitted() -> Decide:
        head = LogisticRegression(max_iter=200).fit(read(train), train.codes)

        def both(part: Part) -> FloatArray:
            return np.column_stack([part.logit, head.predict_proba(read(part))[:, 1]])

        fair = DeepFairPredictor(valid.cohort.y, both(valid), valid.codes)
        fair.fit(group_metrics.balanced_accuracy.overall, gap, BOUND)
        return lambda part: np.asarray(fair.predict(DeepDataDict(part.cohort.y, both(part), part.codes)), dtype=np.float64)

    return fitted


def exponentiated_gradient(train: Part, measure: str) -> Decide:
    share = train.cohort.y.mean()
    rule = ExponentiatedGradient(
        LogisticRegression(max_iter=100),
        FAIRLEARN_MOMENTS[measure](difference_bound=BOUND),
        objective=ErrorRate(costs={"fp": share, "fn": 1 - share}),  # balanced accuracy, up to a factor
        max_iter=10,
    ).fit(train.inputs, train.cohort.y, sensitive_features=train.codes)
    return lambda part: rule._pmf_predict(part.inputs)[:, 1]


def side_by_side(name: str, folder: Path, splits: int) -> list[Row]:
    whole = eq.load(name)
    rows = []
    for seed in range(splits):
        parts = eq.split(whole, seed=seed)
        model = network(folder, name, parts, seed)
        train, valid, test = (part_of(model, cohort) for cohort in (parts.train, parts.valid, parts.test))
        for measure in AIF360_NAMES:
            for method, fit in contenders(model, train, valid, measure, seed).items():
                start = time.perf_counter()
                decide = fit()
                seconds = time.perf_counter() - start
                rows.append(Row(name, measure, method, **measured(measure, decide(test), test.scores), seconds=seconds))
        print(f"{name}, split {seed}: done", file=sys.stderr)
    return rows


@dataclass(frozen=True, eq=False)
class Simulated:
    """Rows with their groups, labels, and what perfect probes say of them."""

    cohort: eq.Cohort
    chance: FloatArray  # P(1|x)
    posterior: FloatArray  # (n, groups)

    @property
    def scores(self) -> eq.Scores:
        return eq.Scores(self.cohort.y, self.chance, self.cohort.attributes, None, self.cohort.ids)


def simulated(groups: int) -> Simulated:
    """Groups of unequal size that x tells only in part, and whose chances of the label differ."""
    rng = np.random.default_rng(groups)
    posterior = rng.dirichlet(np.full(groups, 0.3), ROWS)
    posterior = posterior * np.linspace(2, 1, groups)
    posterior /= posterior.sum(1, keepdims=True)
    codes = (rng.random(ROWS)[:, None] > posterior.cumsum(1)).sum(1).clip(0, groups - 1)
    chance = 1 / (1 + np.exp(-rng.normal(-1 + 1.5 * posterior @ np.linspace(0, 1, groups), 1.2)))
    y = (rng.random(ROWS) < chance).astype(np.int64)
    attribute = Attribute("group", tuple(f"g{k}" for k in range(groups)), codes)
    return Simulated(eq.Cohort(torch.zeros(ROWS, 1), y, (attribute,)), chance, posterior)


def our_multipliers(given: Simulated, bounds: int = 24) -> FloatArray:
    """Decisions by bias-score's path over so many bounds, the last of them zero, each with its best threshold within the bound."""
    goal = eq.Goal("spd", max_gap=BOUND, selection="paper")
    labels = Label.of(given.cohort, goal)
    posteriors = bias_problem.Posteriors(given.chance, (given.posterior,))
    nobody = Probe(np.zeros((2, 1)), np.zeros(2), np.zeros((0, 2)), 0.0, 0.0)  # the posteriors are given
    slope, centre = bias_problem._line(goal.performance, given.chance, given.cohort)
    heads = Heads(nobody, (nobody,), tuple(RATES[rate] for rate in measure_of(goal.measure).rates), centre)
    problem = bias_problem.Problem(given.cohort, goal, heads, posteriors, posteriors, slope)
    best, decisions = -np.inf, np.zeros(ROWS)
    for step in path(problem, bounds):
        score = problem.priced(posteriors, step.costs)
        look = labels.evaluate(score, BOUND)
        if abs(float(look.gap[0])) <= BOUND and look.performance[0] > best:
            best, decisions = float(look.performance[0]), (score >= look.threshold[0]).astype(np.float64)
    return decisions


def oxonfair_multipliers(given: Simulated) -> FloatArray:
    logit, y, codes = np.log(given.chance / (1 - given.chance)), given.cohort.y, given.cohort.attribute.codes
    both = np.column_stack([logit, given.posterior if given.posterior.shape[1] > 2 else given.posterior[:, 1:]])
    fair = DeepFairPredictor(y, both, codes)
    fair.fit(group_metrics.balanced_accuracy.overall, parity_gap(), BOUND)
    return np.asarray(fair.predict(DeepDataDict(y, both, codes)), dtype=np.float64)


def parity_gap() -> AgainstReference:
    return AgainstReference(group_metrics.pos_pred_rate.func, "largest gap", False)


SEARCHES = {
    "equipoise bias-score, 24 bounds": our_multipliers,
    "equipoise bias-score, one bound": lambda given: our_multipliers(given, 1),
    "OxonFair, inferred groups": oxonfair_multipliers,
    f"equipoise group-thresholds {NEEDS}": lambda given: group_thresholds(
        given.scores, eq.Goal("spd", max_gap=BOUND, selection="paper")
    ).rule.decide(given.scores),
    f"OxonFair, a threshold a group {NEEDS}": lambda given: oxonfair_thresholds(given.scores, parity_gap(), BOUND)()(given.scores),
    f"Fairlearn ThresholdOptimizer, tol = the bound {NEEDS}": lambda given: fairlearn_thresholds(
        given.scores, FAIRLEARN_NAMES["spd"], BOUND
    )()(given.scores),
}


def search(name: str, groups: int) -> None:
    """One search, in a process of its own: prints what it found."""
    given = simulated(groups)
    SEARCHES[name](simulated(2))  # so that no import is timed
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT_GIGABYTES * 2**30,) * 2)
    signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(LIMIT_SECONDS)
    start = time.perf_counter()
    try:
        decisions = SEARCHES[name](given)
    except TimeoutError:
        print(json.dumps({"failed": f"over {LIMIT_SECONDS} s"}))
        return
    except MemoryError as error:
        print(json.dumps({"failed": f"over {LIMIT_GIGABYTES} GB", "message": str(error)}))
        return
    seconds = time.perf_counter() - start
    signal.alarm(0)
    print(json.dumps({"seconds": seconds, **measured("spd", decisions, given.cohort)}))


def _too_long(*_: object) -> None:
    raise TimeoutError


def searched(name: str, groups: int) -> str:
    """The cell of the table for one search."""
    command = [sys.executable, __file__, "--search", name, str(groups)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=2 * LIMIT_SECONDS, check=True)
    except subprocess.TimeoutExpired:
        return f"over {LIMIT_SECONDS} s"
    found = json.loads(done.stdout.splitlines()[-1])
    if "message" in found:
        print(f"{name}, {groups} groups: {found['message']}", file=sys.stderr)
    return found.get("failed") or f"{found['seconds']:.2f} s ({found['gap']:+.3f}, {found['balanced_accuracy']:.3f})"


def main() -> None:
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    folder, splits = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 3
    named = sys.argv[3:]
    rows = [row for name in named or DATA for row in side_by_side(name, folder, splits)]
    print(f"| data | measure | method | gap on test | mean absolute gap | BA on test | s to fit |\n|{'---|' * 7}")
    for data, measure, method in dict.fromkeys((row.data, row.measure, row.method) for row in rows):
        own = [row for row in rows if (row.data, row.measure, row.method) == (data, measure, method)]
        gap, performance, seconds = ([getattr(row, name) for row in own] for name in ("gap", "balanced_accuracy", "seconds"))
        print(
            f"| {data} | {measure} | {method} | {np.mean(gap):+.3f} | {np.abs(gap).mean():.3f} | {np.mean(performance):.3f} "
            f"| {np.median(seconds):.3f} |"
        )
    if named:
        return
    print(
        f"\n| {ROWS:,} rows, spd within {BOUND:g} | {' | '.join(f'{groups} groups' for groups in GROUPS)} |\n|{'---|' * (1 + len(GROUPS))}"
    )
    for name in SEARCHES:
        print(f"| {name} | {' | '.join(searched(name, groups) for groups in GROUPS)} |", flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # theirs, of each other's versions
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    if sys.argv[1:2] == ["--search"]:
        search(sys.argv[2], int(sys.argv[3]))
    else:
        main()
