"""Bias score: the best attribute-blind rule, u(x) - sum over gaps of lambda_k g_k(x) > 0, with probes on a frozen network for u and g.

Performance and gaps are affine in the decisions. Given x, a positive decision adds u(x) to performance and g_k(x) to gap k: u(x) is the
expected weight of a row in the performance (for balanced accuracy P(1|x) / 2 pi_1 - P(0|x) / 2 pi_0), and g_k(x) its expected weight in the
gap, P(label|x) (P(k|x, label) / P(k, label) - P(ref|x, label) / P(ref, label)) for each rate of the measure. The rule of best performance
with all gaps within a bound is a threshold on u - lambda g (Menon and Williamson 2018 for two groups; OxonFair searches a grid of
multipliers instead, which grows as a power of the number of groups). Here:

- P(label|x) is a logistic regression on the features and the network's logit, which is hardly penalised: with little data it is the
  recalibrated network (Platt), with more data it also corrects the network where groups differ. P(group|x, label) is a multinomial
  regression on the features of the rows with the label. If these are few, probes of all rows, or with the training set added, are fitted
  too, and the one with the lowest held-out log loss is used. A measure on selection rates needs no label. Penalties are chosen by held-out
  log loss.
- Everything is cross-fitted by patient: multipliers, thresholds and the step are chosen on probabilities from models that were not fitted
  to the row. The final probes are fitted on all rows. In the trace, the choice is based on `held_out_gap` and `held_out_performance`;
  `gap` and `performance` are those of the delivered network on the rows that its probes were fitted to.
- The multipliers of any number of gaps come from a linear program (`blind_rule`), for one bound after another from the original gap down to
  zero: these are the steps of the trace. The program bounds the gaps expected from the probabilities plus the difference observed for the
  decisions of the last multipliers, so that a poorly calibrated probe does not leave a gap behind.
- Predictive parity is a quotient; `blind_rule` describes how it becomes a linear program of the same kind.
- For each bound, the threshold is swept on the held-out scores: the best performance within the bound.

The repaired network is an ordinary module (models.features) and needs no group. For scores without a network, it is a rule of plain
numbers: the logit of the given score takes the place of the network, and the named columns are the features.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, cast

import numpy as np
from scipy.special import expit, softmax

from equipoise.data import Cohort, Encoder, FloatArray, Rows, Scores
from equipoise.errors import BadInput, pick
from equipoise.measures import Rule, measure_of
from equipoise.methods.choosing import WORST, newly_constant, plain_rule, select
from equipoise.methods.contract import ONE_BY_ONE, Fit, FitStep, Kind, Rng, Speed, Work, method
from equipoise.methods.evaluation import Label, LabelResult, decisions_at, trace_of
from equipoise.methods.goal import Goal, Note
from equipoise.methods.rules import Cut, FittedRule, Groups

if TYPE_CHECKING:
    from torch import nn

    from equipoise.methods.blind_rule import Problem
    from equipoise.models import FeatureCache, FeatureChoice

BIAS_SCORE = "bias-score"
MENON = """@inproceedings{menon2018cost,
  title     = {The Cost of Fairness in Binary Classification},
  author    = {Menon, Aditya Krishna and Williamson, Robert C.},
  booktitle = {Conference on Fairness, Accountability and Transparency},
  year      = {2018}
}"""
TIMED_ROWS = {True: 128, False: 2000}  # rows to time probes on, for images and tables: the time is linear in the rows only for many rows
FINEST_GAP_BOUND = 0.003  # smallest bound on |gap| used for choosing a threshold; less is within the noise of any data
LEAST_INTERCEPT = -1e4  # the intercept of a group without rows: JSON has no infinity
Numbers = tuple[float, ...]


@dataclass(frozen=True)
class BiasScoreSettings:
    """`depth` selects the features that the probes read; auto is the inputs and the last layer for tables, the inputs for images."""

    depth: str = "auto"  # features that the probes read: auto, inputs, last, inputs and last, hidden or all
    layers: int = 6  # maximum number, evenly spaced
    folds: int = 5
    steps: int = 24  # bounds, from the original gap to zero

    def __post_init__(self) -> None:
        from equipoise.models import DEPTHS

        pick("depth", self.depth, DEPTHS)
        if self.folds < 2 or self.steps < 1 or self.layers < 1:
            raise BadInput(f"bias-score needs at least 2 folds, 1 step and 1 layer; got {self.folds}, {self.steps} and {self.layers}")


@dataclass(frozen=True)
class GroupHead:
    """The posterior of the groups among the rows with a label (None: among all rows), and the cost of each group."""

    label: int | None
    coefficients: tuple[Numbers, ...]  # (groups, columns + 1), the last for the logit
    intercepts: Numbers
    costs: Numbers


@dataclass(frozen=True)
class BiasScoreRule(FittedRule):
    """Positive where the corrected score is at least the threshold. Needs the named columns and no group."""

    threshold: Cut
    groups: Groups  # groups in the repair set, the reference first
    columns: Groups  # columns read next to the score
    numeric: Mapping[str, tuple[float, float]]  # column: mean and scale for standardising
    levels: Mapping[str, tuple[str, ...]]  # column: its levels, one-hot encoded
    coefficients: Numbers  # of the label's probe: the encoded columns, then the logit of the score
    intercept: float
    heads: tuple[GroupHead, ...]
    centre: float  # the probability of the label at which a positive decision breaks even
    origin: str = "given"
    KIND: ClassVar[str] = BIAS_SCORE

    def problems(self) -> list[str]:
        problems = []
        if {*self.numeric, *self.levels} != {*self.columns}:
            problems.append("has an encoding of other columns than its `columns`")
        width = len(self.numeric) + sum(map(len, self.levels.values())) + 1
        if len(self.coefficients) != width:
            problems.append(f"has {len(self.coefficients)} coefficients for {width - 1} encoded columns and the logit")
        for head in self.heads:
            sizes = {len(head.coefficients), len(head.intercepts), len(head.costs)}
            if sizes != {len(self.groups)} or any(len(row) != width for row in head.coefficients):
                problems.append(f"has a head of another size than {len(self.groups)} groups with {width} coefficients each")
        if zero := [name for name, (_, scale) in self.numeric.items() if scale <= 0]:
            problems.append(f"has scales that are not positive: {', '.join(zero)}")
        return problems

    @property
    def encoder(self) -> Encoder:
        """The encoder of its columns."""
        return Encoder(dict(self.numeric), dict(self.levels), self.columns)

    def corrected(self, scores: Scores) -> FloatArray:
        """The corrected score of each row."""
        from equipoise.methods.blind_rule import finite_logit
        from equipoise.models import SCORE_SLOPE

        if scores.features is None:
            named = ", ".join(map(repr, self.columns))
            raise BadInput(f"the rule reads {named} next to the score; {scores.name!r} has no such columns. Name them: features=[...]")
        x = np.column_stack([self.encoder.numbers(scores.features.frame), finite_logit(scores.score)])
        chance = expit(x @ np.array(self.coefficients) + self.intercept)
        value = chance - self.centre
        for head in self.heads:
            posterior = softmax(x @ np.array(head.coefficients).T + np.array(head.intercepts), axis=1)
            share = 1.0 if head.label is None else chance if head.label == 1 else 1 - chance
            value = value - share * (posterior @ np.array(head.costs))
        score: FloatArray = expit(SCORE_SLOPE * value)
        return score

    def decide(self, scores: Scores) -> FloatArray:
        return (self.corrected(scores) >= self.threshold).astype(np.float64)

    def describe(self) -> str:
        return f"score corrected by {', '.join(self.columns)} >= {self.threshold:.4g} ({self.origin})"

    def cuts(self, group: str) -> tuple[float, ...]:  # noqa: ARG002 (where the decision changes depends on the columns)
        return ()

    def sql(self, score: str = "score", group: str = "group_name") -> str:  # noqa: ARG002
        raise BadInput(f"a rule that reads {', '.join(self.columns)} has no SQL. Apply it with `equipoise apply`.")


def bias_score_cost(speed: Speed, settings: BiasScoreSettings) -> Work:
    """The work: fitting the probes; the network's scores and features; an evaluation and a linear program per bound."""
    measure = measure_of(speed.goal.measure)
    probes = 1 + (2 if measure.is_quotient else len(measure.rates))  # one of the label, and one of the groups per rate
    seconds = probes_seconds(speed.model, speed.repair, settings, probes)
    original = "score" if speed.model is None else "network"
    what = f"{probes} probes in {settings.folds} folds next to the original {original}, and {settings.steps} bounds"
    return Work(2 * len(speed.repair), 3 * settings.steps, what, seconds)


def probes_seconds(model: nn.Module | None, cohort: Rows, settings: BiasScoreSettings, probes: int) -> float:
    """Seconds to fit this number of probes (one of the label, the others of the groups) on all rows; extrapolated from a few rows."""
    from equipoise.methods.blind_rule import probe_inputs
    from equipoise.models import probe_seconds

    images = model is not None and len(cast(Cohort, cohort).inputs.shape) > 2
    few = cohort.take(range(min(len(cohort), TIMED_ROWS[images])))
    network = None if model is None else cache_of(model, few)
    x, _ = probe_inputs(few, read_by(network, settings), network)
    folds, rows, groups = settings.folds, len(cohort), len(cohort.attribute.levels)
    device = None if network is None else network.product_device(rows * x.shape[1])
    label_seconds = probe_seconds(x, few.y, 2, folds, rows, device)
    group_seconds = label_seconds if groups == 2 else probe_seconds(x, few.attribute.codes, groups, folds, rows, device)
    return label_seconds + (probes - 1) * group_seconds


def cache_of(model: nn.Module, rows: Rows) -> FeatureCache:
    """What is read of a network on these rows."""
    from equipoise.models import FeatureCache  # imports torch

    return FeatureCache(model, cast(Cohort, rows).inputs)


def read_by(network: FeatureCache | None, settings: BiasScoreSettings) -> FeatureChoice | None:
    """The inputs of the probes: the network's inputs and layers, by the settings; None for scores, of which the named columns are read."""
    if network is None:
        return None
    from equipoise.models import FeatureChoice

    return FeatureChoice.of(network.model, network.inputs, settings.depth, settings.layers)


@method(
    BIAS_SCORE,
    settings=BiasScoreSettings,
    title="probes of label and groups, combined by the best attribute-blind rule",
    kind=Kind.PROBES,
    paper=MENON,
    takes_train=True,
    counts="steps",
    labels=ONE_BY_ONE,
    cost=bias_score_cost,
    effort=1.0,
    in_auto=2,
    in_auto_scores=2,
    rules=(BiasScoreRule,),
)
def bias_score(
    model: nn.Module | None,
    cohort: Rows,
    goal: Goal,
    settings: BiasScoreSettings,
    rng: Rng,
    train: Cohort | None,
    network: FeatureCache | None = None,
) -> Fit:
    """The network with probes next to it, or for scores a rule. The probes of the groups may also be fitted to the training set.

    `network` holds the outputs of the network on the rows of the cohort, if they were computed before.
    """
    from equipoise.methods.blind_rule import fit_probes, parity_path, path  # late: registering the method does not need them
    from equipoise.models import folds_of, predict

    label = Label.of(cohort, goal)
    if network is None and model is not None:
        network = cache_of(model, cohort)
    original = predict(model, cohort, raw=None if network is None else network.raw()).score
    start = label.original(original)
    kept, start = label.keeping(decisions_at(original, start.threshold), start)
    reading = read_by(network, settings)
    problem = fit_probes(cohort, goal, reading, folds_of(cohort, settings.folds, rng.seed), network, train)
    # The minimum performance is counted from the held-out probes at no cost: what they lack there is not lost by the repair.
    plain = label.evaluate(problem.held_out.chance).performance
    settled = goal.settled(min(start.performance, plain))
    stated = goal.settled(start.performance)  # the original's value is its value, whatever the probes lack
    # The smallest bound on |gap| used for choosing a threshold: the change by one row of the smallest group.
    codes, quotient = cohort.attribute.codes, measure_of(goal.measure).is_quotient
    if quotient:
        decided = ((problem.held_out.chance > problem.heads.centre) == bool(measure_of(goal.measure).decided)) & (codes >= 0)
        finest = 1 / max(np.bincount(codes[decided], minlength=len(cohort.attribute.levels)).min(), 1)
    else:
        finest = np.abs(problem.stakes).max() / (codes >= 0).sum()
    narrowest = max(FINEST_GAP_BOUND, float(finest))

    def evaluate(scores: FloatArray, max_gap: float) -> LabelResult:
        return kept.evaluate(scores, max(max_gap, narrowest))

    steps = parity_path(problem, settings.steps, evaluate) if quotient else path(problem, settings.steps)
    results = [start, *(evaluate(problem.priced(problem.held_out, step.costs), step.max_gap) for step in steps)]
    held_out = trace_of(results, range(len(results)))
    # The network or rule that each step would deliver, and the decisions (steps + 1, n) of that very network, in its precision.
    cuts = held_out["threshold"].tolist()
    networks: list[nn.Module] = []
    plain_rules = [plain_rule(BIAS_SCORE, cut, cohort, stated) for cut in cuts[1:]]
    rules: list[Rule] = [*plain_rules]
    if network is None or reading is None:
        scores = cast(Scores, cohort)
        rules = [rule_of(problem, scores, step.costs, rule.value, rule.origin) for step, rule in zip(steps, plain_rules, strict=True)]
        decisions = np.stack([original >= cuts[0], *(rule.decide(scores) for rule in rules)]).astype(np.float64)
    else:
        from equipoise.models import BiasScore, output_kind

        kept_model, kind = copy.deepcopy(network.model), output_kind(network.model, network.inputs)
        made = [BiasScore(kept_model, reading, problem.heads, step.costs, kind).eval() for step in steps]
        networks = [*made]
        by_network = BiasScore.all_scores(made, network.read(reading)) if made else []
        decisions = np.stack([score >= cut for score, cut in zip([original, *by_network], cuts, strict=True)]).astype(np.float64)
    eligible = held_out.copy()
    eligible.loc[newly_constant(decisions, codes), ["gap", "performance"]] = WORST  # constant decisions are not chosen
    selection = select(eligible, settled)
    why = (*selection.why, Note("held_out_rows_decide"))  # in-sample values of the chosen row may differ

    trace = held_out.rename(columns={"gap": "held_out_gap", "performance": "held_out_performance"})
    cells = label.cells(decisions)  # one table per step
    trace.insert(1, "gap", cells.worst_gap(goal.measure))
    trace.insert(2, "performance", cells.performance(goal.performance))
    trace.insert(3, "threshold", trace.pop("threshold"))
    trace["max_gap"] = [np.nan, *(step.max_gap for step in steps)]
    fit_steps = [FitStep(plain_rule(BIAS_SCORE, start.threshold, cohort, stated, original=True), None, (Note("original_kept"),))]
    for row, step in enumerate(steps, start=1):
        values = held_out.iloc[row]
        held_out_values = {"gap": float(values["gap"]), "performance": float(values["performance"])}
        numbers = {"folds": settings.folds, **held_out_values, "of": goal.performance, "before": plain}
        notes = (
            Note("probes", "the inputs" if reading is None else str(reading), step.about),
            Note("chosen_on_held_out_rows", goal.measure, numbers),
        )
        fit_steps.append(FitStep(rules[row - 1], networks[row - 1] if networks else None, notes))
    chosen = fit_steps[selection.row]
    met = selection.met and select(trace.iloc[[selection.row]], settled).met
    if selection.met and not met:
        why = (*why, Note("final_network_misses"))
    used = () if train is None else (Note("training_set", numbers={"rows": max(probe.more for probe in problem.heads.groups)}),)
    return Fit(chosen.rule, trace, selection.row, why, met, stated, used, chosen.model, tuple(fit_steps))


def rule_of(problem: Problem, scores: Scores, prices: FloatArray, threshold: float, origin: str) -> BiasScoreRule:
    """The rule of probes that were fitted to these scores and their columns, with these costs (rates, groups)."""
    assert scores.features is not None  # checked before the probes were fitted
    heads, encoder, task = problem.heads, scores.features.fitted(), problem.heads.task
    return BiasScoreRule(
        threshold,
        scores.attribute.levels,
        encoder.order,
        {name: (float(mean), float(scale)) for name, (mean, scale) in encoder.numeric.items()},
        {name: tuple(levels) for name, levels in encoder.levels.items()},
        tuple(np.diff(task.weight, axis=0)[0].tolist()),
        float(np.diff(task.bias)[0]),
        tuple(
            GroupHead(
                label,
                tuple(tuple(row) for row in probe.weight.tolist()),
                tuple(np.maximum(probe.bias, LEAST_INTERCEPT).tolist()),
                tuple(price.tolist()),
            )
            for label, probe, price in zip(heads.labels, heads.groups, prices, strict=True)
        ),
        heads.centre,
        origin,
    )
