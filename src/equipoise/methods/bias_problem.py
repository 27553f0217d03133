"""What bias-score chooses by: probes of the label and of the groups, and what a positive decision is then worth and adds to each gap."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import logit as logit_of
from torch import device as Device
from torch import nn

from equipoise.data import MISSING, Cohort, Rows, Scores
from equipoise.errors import BadInput
from equipoise.measures import (
    AFFINE_PERFORMANCE,
    RATES,
    FloatArray,
    IntArray,
    gap_values,
    is_quotient,
    performance_functional,
    sweep,
    tabulate_codes,
    terms,
)
from equipoise.methods.goal import Goal
from equipoise.models import BoolArray, Heads, Probe, Reading, ReadOnce, features, fit_probe, log_loss, product_device, value_of

FAINT = 0.01  # of the usual spread of an image's features, which have one unit: one that varies by less tells rounding, not patients
FINEST_SCORE = 1e-6  # a score of exactly 0 or 1 has no finite logit: it counts as this far from it
FEW = 2_000  # rows with a label, up to which a probe of all rows, and of the training set, is tried for them


def finite_logit(score: FloatArray) -> FloatArray:
    """The logit of each score, those of 0 and 1 as of the nearest number that has one."""
    found: FloatArray = logit_of(np.clip(score, FINEST_SCORE, 1 - FINEST_SCORE))
    return found


@dataclass(frozen=True, eq=False)
class Posteriors:
    """What probes say of all rows: the chance of the label (n,), and of each group, one array (n, groups) per rate."""

    chance: FloatArray
    groups: tuple[FloatArray, ...]


@dataclass(frozen=True, eq=False)
class Problem:
    """One repair set with its probes."""

    cohort: Rows
    goal: Goal
    heads: Heads
    held_out: Posteriors
    fitted: Posteriors
    slope: float  # what a positive decision is worth per unit of chance above the centre

    @cached_property
    def stakes(self) -> FloatArray:
        """(gaps, rates, groups): what the posterior of a group adds to a gap."""
        codes, y, levels = self.cohort.attribute.codes, self.cohort.y, self.cohort.attribute.levels
        n = tabulate_codes(np.zeros(()), y, codes, levels).n[:-1]
        found = np.zeros((len(levels) - 1, len(self.heads.labels), len(levels)))
        for r, (rate, sign) in enumerate(terms(self.goal.measure).items()):
            label = RATES[rate]
            counts = n.sum(1) if label is None else n[:, label]
            for k in range(1, len(levels)):
                found[k - 1, r, k], found[k - 1, r, 0] = sign / counts[k], -sign / counts[0]
        # Rows without a group count for performance only, and the probes speak of those with one.
        scaled: FloatArray = found * n.sum()
        return scaled

    def worth(self, posteriors: Posteriors) -> tuple[FloatArray, FloatArray]:
        """u (n,) and g (gaps, n), each times the number of rows."""
        shares = [_share(label, posteriors.chance) for label in self.heads.labels]
        seen = np.stack([share[:, None] * group for share, group in zip(shares, posteriors.groups, strict=True)])  # (rates, n, groups)
        return self.slope * (posteriors.chance - self.heads.centre), np.einsum("krg,rng->kn", self.stakes, seen)

    def cost(self, multipliers: FloatArray) -> FloatArray:
        """(rates, groups): the cost of each group's posterior in units of chance."""
        summed: FloatArray = np.einsum("k,krg->rg", multipliers, self.stakes) / self.slope
        return summed

    def score(self, posteriors: Posteriors, multipliers: FloatArray) -> FloatArray:
        """The score (n,) with these multipliers."""
        return self.priced(posteriors, self.cost(multipliers))

    def priced(self, posteriors: Posteriors, cost: FloatArray) -> FloatArray:
        """The score (n,) with these prices (rates, groups) of the groups' posteriors."""
        return value_of(posteriors.chance, posteriors.groups, self.heads, cost)

    def gaps(self, decisions: FloatArray) -> FloatArray:
        """The gaps (gaps,) of decisions (n,) on these rows."""
        attribute = self.cohort.attribute
        return gap_values(self.goal.measure, tabulate_codes(decisions, self.cohort.y, attribute.codes, attribute.levels))


@dataclass(frozen=True, eq=False)
class Train:
    """The training set as the groups' probes see it."""

    x: FloatArray  # (rows, d)
    codes: IntArray  # of the groups of the repair set
    y: IntArray

    @classmethod
    def of(cls, model: nn.Module, train: Cohort, cohort: Cohort, reading: Reading) -> "Train":
        """The rows whose group is one of the cohort's. A patient of both parts would be known to the probes that are to be held out."""
        shape, own = tuple(train.inputs.shape[1:]), tuple(cohort.inputs.shape[1:])
        if shape != own:
            raise BadInput(f"the training set {train.name!r} holds inputs of shape {shape}, the repair set {cohort.name!r} of {own}")
        if train.patients is not None and cohort.patients is not None:
            shared = set(train.patients) & set(cohort.patients)
            if shared:
                raise BadInput(
                    f"{len(shared):,} patients are in the training set and in the repair set, such as {min(map(str, shared))!r}; "
                    "what is learnt of them there is no evidence here. Give parts of different patients, as split() does."
                )
        place = {level: code for code, level in enumerate(cohort.attribute.levels)}
        names = train.attribute.levels
        codes = np.array(
            [place.get(names[code], MISSING) if code != MISSING else MISSING for code in train.attribute.codes], dtype=np.int64
        )
        known = train.take(np.flatnonzero(codes != MISSING))
        if not len(known):
            raise BadInput(f"no row of the training set {train.name!r} is in the groups {', '.join(place)}; it has {', '.join(names)}")
        return cls(features(model, known.inputs, reading)[1], codes[codes != MISSING], known.y)

    def having(self, label: int | None) -> tuple[FloatArray, IntArray]:
        """Features and groups of the rows with a label, or of all."""
        rows = np.ones(len(self.y), bool) if label is None else self.y == label
        return self.x[rows], self.codes[rows]


def probe_inputs(rows: Rows, reading: Reading, network: ReadOnce | None) -> tuple[FloatArray, FloatArray]:
    """What the probes of the groups read (n, d), and those of the label (n, e), of which the last column is the logit.

    `network` is the one of a cohort, on these rows. Of scores alone, both read the named columns and the logit of the score.
    """
    if isinstance(rows, Scores):
        if rows.features is None:
            raise BadInput(
                f"bias-score reads further columns next to the score, and {rows.name!r} has none. Name them: --feature age "
                "(Python: features=...), or use a method that decides by the score."
            )
        both = np.column_stack([rows.features.fitted().numbers(rows.features.frame), finite_logit(rows.score)])
        return both, both
    assert network is not None  # a cohort comes with a network
    logit, x = network.shown(reading).arrays()
    return x, np.column_stack([x, logit])


def probed(
    cohort: Rows, goal: Goal, reading: Reading, folds: IntArray, network: ReadOnce | None = None, train: Cohort | None = None
) -> Problem:
    """The probes of the label and of the groups, cross-fitted; those of the groups may learn from a training set too."""
    x, read = probe_inputs(cohort, reading, network)
    device = None if network is None else product_device(network.model, network.inputs, x.size)
    y, codes, groups = cohort.y, cohort.attribute.codes, len(cohort.attribute.levels)
    images = isinstance(cohort, Cohort) and len(cohort.inputs.shape) > 2
    finest = FAINT * float(np.median(x.std(0))) if images else 0.0
    task = fit_probe(read, y, 2, folds, free=1, finest=finest, device=device)
    labels = (1, 0) if is_quotient(goal.measure) else tuple(RATES[rate] for rate in terms(goal.measure))
    rows = [(codes >= 0) & ((y == label) if label is not None else True) for label in labels]
    more = None
    if train is not None and network is not None and isinstance(cohort, Cohort) and min(here.sum() for here in rows) <= FEW:
        more = Train.of(network.model, train, cohort, reading)
    probes = tuple(
        _group_probe(x, codes, groups, folds, here, label, more, finest, device) for here, label in zip(rows, labels, strict=True)
    )
    held_out = Posteriors(task.held_out[:, 1], tuple(probe.held_out for probe in probes))
    fitted = Posteriors(task(read)[:, 1], tuple(probe(x) for probe in probes))
    slope, centre = _line(goal.performance, held_out.chance, cohort)
    return Problem(cohort, goal, Heads(task, probes, labels, centre), held_out, fitted, slope)


def _group_probe(
    x: FloatArray,
    codes: IntArray,
    groups: int,
    folds: IntArray,
    rows: BoolArray,
    label: int | None,
    train: Train | None = None,
    finest: float = 0.0,
    device: Device | None = None,
) -> Probe:
    """The posterior of the group given x among the rows with a label.

    Where they are few, a probe of all rows, with any label, may know it better: given x, the label tells little more of the group. So may
    one that learns from the training set too. That one is taken which has the smallest log loss on the rows with the label, held out.
    """
    found = [fit_probe(x, codes, groups, folds, rows, finest=finest, device=device)]
    if rows.sum() <= FEW:
        known = codes >= 0
        others = [] if (rows == known).all() else [(known, None)]
        found += [fit_probe(x, codes, groups, folds, here, finest=finest, device=device) for here, _ in others]
        if train is not None:
            more = [(here, train.having(which)) for here, which in [(rows, label), *others]]
            found += [
                fit_probe(x, codes, groups, folds, here, more=given, finest=finest, device=device) for here, given in more if len(given[1])
            ]
    return min(found, key=lambda probe: log_loss(probe.held_out[rows], codes[rows]))


def _line(performance: str, chance: FloatArray, cohort: Rows) -> tuple[float, float]:
    """What a positive decision is worth, slope * (P(1|x) - centre), times the number of rows."""
    if performance not in AFFINE_PERFORMANCE:
        # F1 is a quotient; near its best value F, its numerator less F times its denominator has the same best rule:
        # 2 TP - F (TP + FP + P).
        attribute = cohort.attribute
        best = sweep(chance, cohort.y, attribute.codes, attribute.levels, (performance,)).best(performance)
        return 2.0, float(best.values[performance]) / 2
    n = np.bincount(cohort.y, minlength=2).astype(np.float64)[None]
    negative, positive = performance_functional(performance, n).w[0] * n.sum()
    return float(positive - negative), float(-negative / (positive - negative))


def _share(label: int | None, chance: FloatArray) -> FloatArray:
    return np.ones_like(chance) if label is None else chance if label == 1 else 1 - chance
