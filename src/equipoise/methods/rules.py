"""Decision rules that methods fit, as plain values: written to `rule.json`, read from it and checked.

A kind of rule is a frozen dataclass with a name, `KIND`, which the registration of its method lists. When a file is read, its fields are
checked against their types, and `problems` checks combinations of fields.

Fits of rules: the original's threshold, and rules along the frontier between gap and performance. These form a grid that is comparable
between sets of rows: removed shares of the gap. Step k is the rule of best performance whose gaps are at most the share 1 - k/20 of the
original gaps, on the same side of zero. A bound on |gap| only would let a rule trade one group's disadvantage for another's, and an
absolute bound would not be comparable between a part of the rows and all rows. The last step, after the grid, is the rule for the goal
itself. Cross-fitted selection fits all of them on parts of the repair set, and compares steps of the same number.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields, replace
from typing import Annotated, Any, ClassVar, cast

import numpy as np
import pandas as pd
from annotated_types import Ge, Le, MinLen

from equipoise import data, measures
from equipoise.data import FloatArray, Scores
from equipoise.errors import BadInput, pick, raise_all, validation_problems
from equipoise.measures import NEVER_REACHED, RATES, Cells, Rule, Threshold, cells_at, measure_of
from equipoise.methods.choosing import WORST, newly_constant, plain_rule, select
from equipoise.methods.contract import METHODS, Fit, FitStep
from equipoise.methods.evaluation import kept_rates, least_rates, smallest_margin
from equipoise.methods.goal import Goal, Note

RULE_SCHEMA, RULE_SCHEMA_VERSION = "equipoise.rule", 2
Cut = Annotated[float, Ge(0.0), Le(NEVER_REACHED)]
Share = Annotated[float, Ge(0.0), Le(1.0)]
Groups = Annotated[tuple[str, ...], MinLen(1)]
GRID_STEPS = 20  # 5 % of the original gap each
REMOVED_SHARES: tuple[float, ...] = tuple(
    k / GRID_STEPS for k in range(1, GRID_STEPS + 1)
)  # removed shares of the original gap, from step 1 on


class FittedRule:
    """The base of the rules that methods fit."""

    KIND: ClassVar[str]
    shared: ClassVar[float | None] = None
    argmax: ClassVar[bool] = False
    needs_group: ClassVar[bool] = False
    randomised: ClassVar[bool] = False

    def problems(self) -> list[str]:
        """What is wrong with the fields of a rule that was read from a file, beyond their types."""
        return []

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON."""
        values = json.loads(json.dumps(asdict(self)))  # type: ignore[call-overload]
        return {"kind": self.KIND, **{name: value for name, value in values.items() if name != "others" or value}}


class RuleByGroup(FittedRule):
    """The base of rules that need each patient's group; a group that the rule was not fitted to is an error."""

    needs_group: ClassVar[bool] = True
    groups: Groups  # all that were compared, the reference first
    missing: Cut  # for a row without a group
    others: tuple[str, ...]  # groups that were not compared, whose rows are decided as rows without a group

    def cuts(self, group: str) -> tuple[float, ...]:
        """The scores at which the decision on a row of this group changes."""
        raise NotImplementedError

    def decide(self, scores: Scores) -> FloatArray:
        """Positive where score >= the threshold of the row's group."""
        cuts = np.array([*(self.cuts(group)[0] for group in self.groups), self.missing])  # a missing group has code -1, the last cut
        return (scores.score >= cuts[measures.group_positions(self.groups, scores, self.KIND, self.others)]).astype(np.float64)

    @property
    def without(self) -> str:
        """The rows that are decided without a group, in words."""
        return f"without a group or of {', '.join(self.others)}" if self.others else "without a group"

    def sql(self, score: str = "score", group: str = "group_name") -> str:
        """The decision in SQL; NULL for a group that the rule was not fitted on."""
        values = {name: measures.sql_number(self.cuts(name)[0]) for name in self.groups}
        cut = sql_by_group(group, values, measures.sql_number(self.missing), self.others)
        return f"case when {score} >= {cut} then 1 when {score} < {cut} then 0 end"

    def problems(self) -> list[str]:
        named = (*self.groups, *self.others)
        return [] if len(set(named)) == len(named) else ["names a group twice in `groups` and `others`"]


def sql_by_group(group: str, values: Mapping[str, str], missing: str, others: Sequence[str]) -> str:
    """The value of a row's group in SQL: `missing` without a group and for `others`, and NULL for a group that is none of these."""
    values = {**values, **dict.fromkeys(others, missing)}
    steps = " ".join(f"when {group} = {data.sql_text(name)} then {value}" for name, value in values.items())
    return f"case when {group} is null then {missing} {steps} end"


def of_every_group(groups: Sequence[str], **values: Sequence[object]) -> list[str]:
    """The problems with fields that do not have one entry per group."""
    return [f"has {len(own)} `{name}` for {len(groups)} `groups`" for name, own in values.items() if len(own) != len(groups)]


def rule_to_dict(rule: Rule) -> dict[str, object]:
    """Plain values for JSON: the rule's fields, and a description for readers without Equipoise.

    >>> rule_to_dict(Threshold(0.5))["kind"], rule_to_dict(Threshold(0.5))["words"]
    ('threshold', 'score >= 0.5 (given)')
    """
    return {**_about(rule), "words": rule.describe(), **rule.to_dict()}


def _about(rule: "Rule | type[Rule]") -> dict[str, object]:
    """The entries that every rule has in a file."""
    return {"schema": RULE_SCHEMA, "schema_version": RULE_SCHEMA_VERSION, "needs_group": rule.needs_group, "randomised": rule.randomised}


def read_rule(content: bytes, source: str) -> Rule:
    """The rule in the bytes of a file.

    - `content`: JSON.
    - `source`: the file, for messages.
    """
    try:
        plain = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{source} is not readable as JSON: {error}.") from error
    return rule_from_dict(plain, source)


def rule_from_dict(plain: object, source: str = "rule.json") -> Rule:
    """The rule that `rule_to_dict` wrote; raises one error that lists all problems."""
    from pydantic import TypeAdapter, ValidationError  # late: `import equipoise` does not need it

    if not isinstance(plain, dict) or plain.get("schema") != RULE_SCHEMA:
        raise BadInput(
            f"{source} holds no decision rule of Equipoise (schema {RULE_SCHEMA!r}). Name the folder that `equipoise debias` wrote."
        )
    if plain.get("schema_version") != RULE_SCHEMA_VERSION:
        raise BadInput(
            f"{source} has version {plain.get('schema_version')!r}; this Equipoise reads {RULE_SCHEMA_VERSION}. Use the one that wrote it."
        )
    kinds: dict[str, type[Any]] = {kind.KIND: kind for method in METHODS.values() for kind in method.rules} | {Threshold.KIND: Threshold}
    kind = kinds[pick(f"kind of rule in {source}:", str(plain.get("kind")), kinds)]
    about, names = {**_about(kind), "kind": kind.KIND}, {f.name for f in fields(kind)}
    problems = [f"{key}: expected {value!r}; got {plain.get(key)!r}" for key, value in about.items() if plain.get(key) != value]
    problems += [f"{key}: unexpected" for key in plain if key not in {*about, *names, "words"}]
    problems += [f"{key}: missing" for key in sorted(names - {"others"}) if key not in plain]
    if not isinstance(plain.get("words"), str):
        problems.append(f"words: expected text; got {plain.get('words')!r}")
    values = json.dumps({key: plain[key] for key in names if key in plain}, default=str)
    try:
        rule = TypeAdapter[Any](kind).validate_json(values, strict=True)
    except ValidationError as error:
        raise_all([*problems, *validation_problems(error, skip=0)], source)
        raise
    raise_all([*problems, *(rule.problems() if kind is not Threshold else [])], source)
    return cast(Rule, rule)


def original_rule(method: str, scores: Scores, goal: Goal) -> tuple[Threshold, Goal]:
    """The original's rule, by the threshold in use or that of best performance, and the goal with its minimum performance."""
    if goal.threshold is not None or goal.capacity is not None:
        weight = measures.normalise_weights(scores.weight)
        threshold = goal.threshold if goal.capacity is None else measures.threshold_at_capacity(scores.score, goal.capacity, weight)
        assert threshold is not None
        performance = float(cells_at(scores, threshold).performance(goal.performance))
    else:
        wanted, weight = (goal.measure, goal.performance), measures.normalise_weights(scores.weight)
        swept = measures.sweep(scores.score, scores.y, scores.attribute, wanted, weight)
        best = swept.best(goal.performance, gap=goal.measure if measure_of(goal.measure).is_quotient else None)
        threshold, performance = best.threshold, best.values[goal.performance]
    settled = goal.settled(performance)
    return plain_rule(method, threshold, scores, settled, original=True), settled


def rule_trace(rules: Sequence[Rule], scores: Scores, goal: Goal) -> pd.DataFrame:
    """The trace of these rules, the original's first."""
    cells = measures.Cells.of(
        np.stack([rule.decide(scores) for rule in rules]), scores.y, scores.attribute, measures.normalise_weights(scores.weight)
    )
    columns = {
        "step": np.arange(len(rules)),
        "gap": cells.worst_gap(goal.measure),
        "performance": cells.performance(goal.performance),
        "threshold": [np.nan if rule.shared is None else rule.shared for rule in rules],
    }
    if goal.keep:
        rates = kept_rates(goal.keep, cells)
        columns["spare"] = smallest_margin(rates, least_rates(goal.keep, rates[0]))
    return pd.DataFrame(columns)


def fit_steps(fit: Fit, method: str, scores: Scores) -> tuple[FitStep, ...]:
    """The steps of a fit; those of a rule are the original, the rules of its grid, and the rule for the goal."""
    if fit.steps:
        return fit.steps
    original = plain_rule(method, fit.trace["threshold"].iloc[0], scores, fit.goal, original=True)
    return (FitStep(original), *map(FitStep, fit.grid()), FitStep(fit.rule, fit.model))


def with_steps(fit: Fit, method: str, scores: Scores) -> Fit:
    """The fit of a goal with its steps, one per row of the trace."""
    if fit.steps:
        return fit
    steps = fit_steps(fit, method, scores)
    return replace(fit, trace=rule_trace([step.rule for step in steps], scores, fit.goal), chosen=len(steps) - 1, steps=steps)


def not_constant(fit: Fit, method: str, scores: Scores) -> Fit:
    """The fit; if the decisions of its rule are constant, the best of the method's other rules, or the original."""
    original, codes = plain_rule(method, fit.trace["threshold"].iloc[0], scores, fit.goal, original=True), scores.attribute.codes
    if not newly_constant(np.stack([original.decide(scores), fit.rule.decide(scores)]), codes)[1]:
        return fit
    wide = with_steps(fit, method, scores)
    usable = wide.trace.copy()
    usable.loc[newly_constant(np.stack([step.rule.decide(scores) for step in wide.steps]), codes), ["gap", "performance"]] = WORST
    chosen = select(usable, wide.goal)
    if chosen.row:
        return replace(wide, rule=wide.steps[chosen.row].rule, chosen=chosen.row, why=(Note("constant"), *chosen.why), met=chosen.met)
    kept = (Note("original_kept"), Note("constant"))
    return replace(fit, rule=original, trace=wide.trace, chosen=0, why=kept, met=False, notes=kept, steps=())


def windows(gaps: FloatArray, share: float, slack: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The lowest and highest gap of each group (groups - 1,) with this share of the original gaps removed.

    >>> [edge.tolist() for edge in windows(np.array([-0.2, 0.1]), 0.5, np.zeros(2))]
    [[-0.1, 0.0], [0.0, 0.05]]
    """
    left = (1.0 - share) * np.nan_to_num(gaps)
    return np.minimum(left, 0.0) - slack, np.maximum(left, 0.0) + slack


def half_rows(measure: str, cells: Cells) -> FloatArray:
    """The change of the gap of each group but the reference (groups - 1,) by half a row: rates cannot be matched more closely."""
    n = cells.n[:-1]
    labels = {None} if measure_of(measure).is_quotient else {RATES[rate] for rate in measure_of(measure).rates}
    counts = np.min([n.sum(-1) if label is None else n[:, label] for label in labels], axis=0)
    half: FloatArray = 0.5 / np.maximum(counts[1:], 1.0)
    return half


def gap_windows(scores: Scores, goal: Goal, original: float) -> Iterator[tuple[float, float, float]]:
    """For each removed share of the original threshold's largest gap: the share, and the lowest and highest remaining gap."""
    before = cells_at(scores, original)
    gap, slack = np.array([before.worst_gap(goal.measure)]), np.array([half_rows(goal.measure, before).min()])
    for share in REMOVED_SHARES:
        low, high = (float(edge[0]) for edge in windows(gap, share, slack))
        if len(scores.attribute.levels) > 2:  # the largest of several gaps may change sides when another group becomes the worst
            low, high = -max(-low, high), max(-low, high)
        yield share, low, high
