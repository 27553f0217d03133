"""The optimisation problem of bias-score: probes of the label and of the groups, and the value and the gaps of a positive decision."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import logit as logit_of
from torch import device as Device
from torch import nn

from equipoise.data import MISSING, BoolArray, Cohort, Rows, Scores
from equipoise.errors import BadInput
from equipoise.measures import (
    AFFINE_PERFORMANCE,
    RATES,
    Cells,
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
from equipoise.models import Heads, Probe, Reading, ReadOnce, features, fit_probe, log_loss, product_device, value_of

FAINT = 0.01  # features of images that vary by less than this share of the median standard deviation are treated as rounding noise
FINEST_SCORE = 1e-6  # scores are clipped to this distance from 0 and 1, which have no finite logit
FEW = 2_000  # rows with a label, up to which probes of all rows and of the training set are tried as well


def finite_logit(score: FloatArray) -> FloatArray:
    """The logit of each score, clipped so that it is finite."""
    finite: FloatArray = logit_of(np.clip(score, FINEST_SCORE, 1 - FINEST_SCORE))
    return finite


@dataclass(frozen=True, eq=False)
class Posteriors:
    """Predicted probabilities of all rows: of the label (n,), and of each group, one array (n, groups) per rate."""

    chance: FloatArray
    groups: tuple[FloatArray, ...]


@dataclass(frozen=True, eq=False)
class Problem:
    """A repair set with its probes."""

    cohort: Rows
    goal: Goal
    heads: Heads
    held_out: Posteriors
    fitted: Posteriors
    slope: float  # value of a positive decision per unit of P(1|x) above the centre

    @cached_property
    def stakes(self) -> FloatArray:
        """(gaps, rates, groups): the weight of each group's posterior in each gap."""
        levels, n = self.cohort.attribute.levels, self.cells(np.zeros(())).n[:-1]
        weights = np.zeros((len(levels) - 1, len(self.heads.labels), len(levels)))
        for r, (rate, sign) in enumerate(terms(self.goal.measure).items()):
            label = RATES[rate]
            counts = n.sum(1) if label is None else n[:, label]
            for k in range(1, len(levels)):
                weights[k - 1, r, k], weights[k - 1, r, 0] = sign / counts[k], -sign / counts[0]
        # Rows without a group count for performance only; the probes of the groups are fitted to the other rows.
        scaled: FloatArray = weights * n.sum()
        return scaled

    def worth(self, posteriors: Posteriors) -> tuple[FloatArray, FloatArray]:
        """u (n,) and g (gaps, n), each times the number of rows."""
        chance = posteriors.chance
        label_chances = [np.ones_like(chance) if label is None else chance if label == 1 else 1 - chance for label in self.heads.labels]
        joint = np.stack([p[:, None] * group for p, group in zip(label_chances, posteriors.groups, strict=True)])  # (rates, n, groups)
        return self.slope * (chance - self.heads.centre), np.einsum("krg,rng->kn", self.stakes, joint)

    def cost(self, multipliers: FloatArray) -> FloatArray:
        """(rates, groups): the cost of each group's posterior, in units of P(1|x)."""
        summed: FloatArray = np.einsum("k,krg->rg", multipliers, self.stakes) / self.slope
        return summed

    def priced(self, posteriors: Posteriors, cost: FloatArray) -> FloatArray:
        """The score (n,) with these costs (rates, groups) of the groups' posteriors."""
        return value_of(posteriors.chance, posteriors.groups, self.heads, cost)

    def cells(self, decisions: FloatArray) -> Cells:
        """The cell table of decisions (n,) on these rows."""
        attribute = self.cohort.attribute
        return tabulate_codes(decisions, self.cohort.y, attribute.codes, attribute.levels)

    def gaps(self, decisions: FloatArray) -> FloatArray:
        """The gaps (gaps,) of decisions (n,) on these rows."""
        return gap_values(self.goal.measure, self.cells(decisions))


@dataclass(frozen=True, eq=False)
class Train:
    """The training set as input for the groups' probes."""

    x: FloatArray  # (rows, d)
    codes: IntArray  # of the groups of the repair set
    y: IntArray

    @classmethod
    def of(cls, model: nn.Module, train: Cohort, cohort: Cohort, reading: Reading) -> "Train":
        """The rows whose group is one of the cohort's; raises an error if a patient is in both sets, since held-out rows must be unseen."""
        shape, repair_shape = tuple(train.inputs.shape[1:]), tuple(cohort.inputs.shape[1:])
        if shape != repair_shape:
            raise BadInput(
                f"the training set {train.name!r} holds inputs of shape {shape}, the repair set {cohort.name!r} of {repair_shape}"
            )
        if train.patients is not None and cohort.patients is not None:
            shared = set(train.patients) & set(cohort.patients)
            if shared:
                raise BadInput(
                    f"{len(shared):,} patients are in the training set and in the repair set, such as {min(map(str, shared))!r}; "
                    "probes cannot be fitted and tested on the same patients. Use sets of different patients, as split() makes them."
                )
        place = {level: code for code, level in enumerate(cohort.attribute.levels)}
        names = train.attribute.levels
        codes = np.array(
            [place.get(names[code], MISSING) if code != MISSING else MISSING for code in train.attribute.codes], dtype=np.int64
        )
        rows = train.take(np.flatnonzero(codes != MISSING))
        if not len(rows):
            raise BadInput(f"no row of the training set {train.name!r} is in the groups {', '.join(place)}; it has {', '.join(names)}")
        return cls(features(model, rows.inputs, reading)[1], codes[codes != MISSING], rows.y)

    def having(self, label: int | None) -> tuple[FloatArray, IntArray]:
        """Features and groups of the rows with a label, or of all rows."""
        rows = np.ones(len(self.y), bool) if label is None else self.y == label
        return self.x[rows], self.codes[rows]


def probe_inputs(rows: Rows, reading: Reading, network: ReadOnce | None) -> tuple[FloatArray, FloatArray]:
    """Inputs of the groups' probes (n, d) and of the label's probe (n, e), whose last column is the logit.

    `network` is the network of a cohort on these rows. For scores without a network, both are the named columns and the logit of the score.
    """
    if isinstance(rows, Scores):
        if rows.features is None:
            raise BadInput(
                f"bias-score reads further columns next to the score, and {rows.name!r} has none. Name them: --set data.features=age "
                "(Python: features=...), or use a method that decides by the score."
            )
        columns = np.column_stack([rows.features.fitted().numbers(rows.features.frame), finite_logit(rows.score)])
        return columns, columns
    assert network is not None  # a cohort comes with a network
    logit, x = network.shown(reading).arrays()
    return x, np.column_stack([x, logit])


def probed(
    cohort: Rows, goal: Goal, reading: Reading, folds: IntArray, network: ReadOnce | None = None, train: Cohort | None = None
) -> Problem:
    """The problem with cross-fitted probes of the label and of the groups; the groups' probes may use a training set too."""
    x, label_inputs = probe_inputs(cohort, reading, network)
    device = None if network is None else product_device(network.model, network.inputs, x.size)
    y, codes, groups = cohort.y, cohort.attribute.codes, len(cohort.attribute.levels)
    images = isinstance(cohort, Cohort) and len(cohort.inputs.shape) > 2
    finest = FAINT * float(np.median(x.std(0))) if images else 0.0
    task = fit_probe(label_inputs, y, 2, folds, free=1, finest=finest, device=device)
    labels = (1, 0) if is_quotient(goal.measure) else tuple(RATES[rate] for rate in terms(goal.measure))
    rows = [(codes >= 0) & ((y == label) if label is not None else True) for label in labels]
    more = None
    if train is not None and network is not None and isinstance(cohort, Cohort) and min(here.sum() for here in rows) <= FEW:
        more = Train.of(network.model, train, cohort, reading)
    probes = tuple(
        _group_probe(x, codes, groups, folds, here, label, more, finest, device) for here, label in zip(rows, labels, strict=True)
    )
    held_out = Posteriors(task.held_out[:, 1], tuple(probe.held_out for probe in probes))
    fitted = Posteriors(task(label_inputs)[:, 1], tuple(probe(x) for probe in probes))
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

    If these are few, probes of all rows and probes that also use the training set are fitted as well (given x, the label adds little
    information about the group). Returns the one with the smallest held-out log loss on the rows with the label.
    """
    subsets = [(rows, label)]  # rows to fit to, and the label of the training rows to add
    if rows.sum() <= FEW and not (rows == (codes >= 0)).all():
        subsets.append((codes >= 0, None))
    probes = [fit_probe(x, codes, groups, folds, here, finest=finest, device=device) for here, _ in subsets]
    if rows.sum() <= FEW and train is not None:
        for here, which in subsets:
            more = train.having(which)
            if len(more[1]):
                probes.append(fit_probe(x, codes, groups, folds, here, more=more, finest=finest, device=device))
    return min(probes, key=lambda probe: log_loss(probe.held_out[rows], codes[rows]))


def _line(performance: str, chance: FloatArray, cohort: Rows) -> tuple[float, float]:
    """Slope and centre of the value of a positive decision, slope * (P(1|x) - centre), times the number of rows."""
    if performance not in AFFINE_PERFORMANCE:
        # F1 is a quotient; near its best value F, its numerator less F times its denominator has the same best rule:
        # 2 TP - F (TP + FP + P).
        attribute = cohort.attribute
        best = sweep(chance, cohort.y, attribute.codes, attribute.levels, (performance,)).best(performance)
        return 2.0, float(best.values[performance]) / 2
    n = np.bincount(cohort.y, minlength=2).astype(np.float64)[None]
    negative, positive = performance_functional(performance, n).w[0] * n.sum()
    return float(positive - negative), float(-negative / (positive - negative))
