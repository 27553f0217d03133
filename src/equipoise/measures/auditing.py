"""The audit of scores in memory: what is asked for, the measures of each label on its own, then all of them tested and adjusted together.

`AuditOptions` are the keywords of every function that audits; `Asked` is what they become.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from typing import Any, TypedDict, Unpack

import numpy as np
import pandas as pd

from equipoise.data import Attribute, IntArray, Scores, varying_in
from equipoise.errors import BadInput, EmptyCell, UnknownName, pick
from equipoise.measures.audit import DERIVED, NO_FINDING, Audit, Audits, NoneOf, digest_of, none_of
from equipoise.measures.by_threshold import COLUMNS, by_threshold
from equipoise.measures.calibration import Scored
from equipoise.measures.cells import Cells, FloatArray, normalised, tabulate
from equipoise.measures.clusters import units_of
from equipoise.measures.estimates import Estimate, Settings, coefficients, estimate_attribute, estimate_performance, simultaneous
from equipoise.measures.functional import gap_values, predictive, require_cells
from equipoise.measures.gaps import GAPS, QUOTIENTS, Gap, is_quotient, named, thresholds_of
from equipoise.measures.many_rows import losses_of, of_all_rows, rows_used, sample_of
from equipoise.measures.moments import Moments
from equipoise.measures.multiplicity import adjusted, comparisons_of, critical_levels
from equipoise.measures.performance import PERFORMANCE
from equipoise.measures.permutation import p_values
from equipoise.measures.score_measures import CURVES, OF_ALL, ScoreMeasures, estimate_scores, everyone, overall, with_score_measures
from equipoise.measures.thresholds import Rule, choose_rule

PLAIN = (*PERFORMANCE, *OF_ALL)  # measures of all rows together


class AuditOptions(TypedDict, total=False):
    """The keywords of an audit. See `Asked` and `Settings` for their defaults."""

    rule: Rule | None
    threshold: float | None
    optimise: str
    measures: Sequence[Gap] | None
    also: Sequence[Gap]
    shrink: bool
    no_finding: str | None
    level: float
    seed: int
    min_patients: int
    specificity: float
    sensitivity: float
    thresholds: str | Sequence[float]


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What an audit is asked for."""

    rule: Rule | None = None  # the decision; or score >= threshold; or the best threshold on other scores; or 0.5
    threshold: float | None = None
    optimise: str = "balanced_accuracy"  # by which a threshold is the best one
    measures: Sequence[Gap] | None = None  # only these, and an empty cell that they need is an error
    also: Sequence[Gap] = ()
    shrink: bool = False  # whether shrunken gaps are reported next to the plain ones
    no_finding: str | None = None  # of several labels: the one that means "no finding", or "derived"
    settings: Settings = field(default_factory=Settings)

    def __post_init__(self) -> None:
        if self.rule is not None and self.threshold is not None:
            raise BadInput("give a decision rule or a threshold, not both")

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> "Asked":
        """What these keywords ask for, checked; `thresholds` may be START:STOP or START:STOP:STEP."""
        own, numbers = ({f.name for f in fields(kind) if f.name != "settings"} for kind in (cls, Settings))
        for name in options:
            if name not in own | numbers:
                raise UnknownName("setting of an audit", name, [*AuditOptions.__annotations__])
        given = {name: value for name, value in options.items() if name in numbers}
        if "thresholds" in given:
            given["thresholds"] = thresholds_of(given["thresholds"])
        asked = cls(**{name: value for name, value in options.items() if name in own}, settings=Settings(**given))
        _ = asked.wanted  # a measure that cannot be read is an error before anything is computed
        return asked

    def decided(self, valid: Scores | None = None) -> "Asked":
        """The same with its decision rule settled, on the scores `valid` where a threshold is chosen on them."""
        return self if self.rule is not None else replace(self, rule=choose_rule(self.threshold, valid, self.optimise), threshold=None)

    @property
    def decision(self) -> Rule:
        """The decision rule."""
        return self.rule or choose_rule(self.threshold)

    @cached_property
    def wanted(self) -> tuple[str, ...]:
        """The names of all measures."""
        usual: tuple[Gap, ...] = (*GAPS, *PLAIN) if self.measures is None else tuple(self.measures)
        listed = [m if isinstance(m, str) and m in PLAIN else named(m, also=PLAIN) for m in (*usual, *self.also)]
        return tuple(dict.fromkeys(listed))

    @property
    def gaps(self) -> list[str]:
        """The gaps among the measures."""
        return [m for m in self.wanted if m not in PLAIN]

    @property
    def performance(self) -> list[str]:
        """The performance measures."""
        return [m for m in self.wanted if m in PERFORMANCE]

    @property
    def strict(self) -> bool:
        """Whether an empty cell that a measure needs is an error."""
        return self.measures is not None

    def require(self, tables: Sequence[Cells], where: str) -> None:
        """Raises every empty cell that a measure which was asked for needs, in one error."""
        problems: list[str] = []
        for cells in tables if self.strict else ():
            for gap in self.gaps:
                try:
                    require_cells(gap, cells, where)
                except EmptyCell as error:
                    problems += error.problems
                else:
                    problems += _undecided(gap, cells, where)
        if problems:
            raise EmptyCell(*problems)


def _undecided(gap: str, cells: Cells, where: str) -> list[str]:
    """One problem per group without any row decided so, for which a quotient has no value."""
    if not is_quotient(gap) or not np.isnan(gap_values(gap, cells)).any():
        return []
    label = QUOTIENTS[gap]
    decided, other = ("positive", "lower") if label else ("negative", "higher")
    lacking = np.isnan(predictive(label, cells))
    return [
        f"{gap} needs rows that are decided {decided} in every group; {level!r} has none of {int(cells.n[code].sum()):,} rows in {where}. "
        f"Use a {other} threshold, more data, or merge groups"
        for code, level in enumerate(cells.levels)
        if lacking[code]
    ]


Progress = Callable[[int, int], None]


def audit_scores(
    scores: Scores, *, valid: Scores | None = None, progress: Progress | None = None, **options: Unpack[AuditOptions]
) -> Audit:
    """The audit of scores.

    The decision is that of `rule`; or `score >= threshold`; or the threshold that is best by `optimise` on the scores `valid`; or 0.5. A
    cell with fewer than `min_patients` patients is "insufficient data". Naming `measures` makes an empty cell an error instead; `also`
    adds to those that are usual. A measure is a name, or a signed sum of rates such as "tpr-fpr".

    Sensitivity is also reported at a fixed `specificity`, and the reverse at a fixed `sensitivity`; `thresholds` (START:STOP,
    START:STOP:STEP or a sequence) are those of the decision curves. With `shrink`, shrunken gaps (empirical Bayes) are reported as well.

    >>> rng = np.random.default_rng(0)
    >>> frame = pd.DataFrame({"y": rng.integers(0, 2, 400), "p": rng.random(400), "sex": rng.choice(["F", "M"], 400)})
    >>> found = audit_scores(Scores.from_frame(frame, label="y", score="p", group="sex", reference="M"), threshold=0.5)
    >>> found["eod"].low < found["eod"].value < found["eod"].high
    True
    """
    return audit_asked(scores, Asked.of(options).decided(valid), progress)


def audit_asked(scores: Scores, asked: Asked, progress: Progress | None = None) -> Audit:
    """The audit of scores that was asked for."""
    (found,) = concluded({scores.name: measured(scores, asked, progress)}).values()
    return found


def audit_labels(
    scores: Mapping[str, Scores], asked: Mapping[str, Asked], kind: str, name: str, progress: Callable[[str], Progress] | None = None
) -> Audits:
    """The audits of several labels, or classes, of one model; each asks for its own decision. They are one family of comparisons.

    "No finding" is asked for by the first of them.
    """
    each = {label: measured(own, asked[label], progress(label) if progress else None) for label, own in scores.items()}
    wanted = next(iter(asked.values())).no_finding
    if wanted == DERIVED:
        each[NO_FINDING] = _no_finding(scores, asked)
    return audits_of(each, kind, name, wanted)


def audits_of(each: "Mapping[str, Measured]", kind: str, name: str, no_finding: str | None) -> Audits:
    """The audits of measured labels, tested together; derived decisions on "no finding" are the last of them."""
    found = list(concluded(each).values())
    derived = found.pop() if no_finding == DERIVED else None
    audits = {label: replace(own, label=label) for label, own in zip(each, found, strict=False)}
    if no_finding is not None and derived is None:
        derived = audits[pick("label for no finding", no_finding, (*audits, DERIVED))]
    return Audits(audits, kind, name, derived)


def no_finding_asked(asked: Mapping[str, Asked]) -> Asked:
    """What is asked for of derived decisions on "no finding": their false positive rate, which is underdiagnosis."""
    settings = replace(next(iter(asked.values())).settings, thresholds=())
    return Asked(rule=NoneOf(tuple(asked)), measures=("fpr_gap",), settings=settings)


def _no_finding(scores: Mapping[str, Scores], asked: Mapping[str, Asked]) -> "Measured":
    """Derived decisions on "no finding"; they have no score, nor what depends on one."""
    return measured(none_of(scores, {label: own.decision for label, own in asked.items()}), no_finding_asked(asked), scored=False)


@dataclass(frozen=True, eq=False)
class Measured:
    """All of an audit but its tests, which are adjusted together with those of the other labels."""

    audit: Audit  # without p-values, simultaneous intervals and headlines
    sums: Sequence[Moments]  # of each attribute, in the order of the rows of gaps
    gaps: Sequence[str]
    tested: Callable[[int], Sequence[FloatArray]]  # p-values for a number of comparisons, as the rows: by attribute, measure and group


def measured(scores: Scores, asked: Asked, progress: Progress | None = None, *, scored: bool = True) -> Measured:
    """Every estimate of an audit; without those of the scores themselves where the scores are none."""
    settings, rule = asked.settings, asked.decision
    f = rule.decide(scores)
    attributes = list(scores.attributes)
    if len(attributes) > 1:
        attributes.append(Attribute.crossed(attributes))
    if asked.strict and scored:
        asked.require([tabulate(f, scores.y, each, normalised(scores.weight)) for each in scores.attributes], scores.name)
    steps = len(attributes) + 1
    units = units_of(scores.patients, len(scores))
    group_frames, gap_frames, sums = [], [], []
    of_all = _of_scores(scores, everyone(len(scores)), units, settings) if scored else None
    curves = [] if of_all is None else [of_all[0].curves]
    for k, attribute in enumerate(attributes):
        groups, gaps, moments = estimate_attribute(scores, f, attribute, asked.gaps, settings)
        sums.append(moments)
        if scored:
            own, used = _of_scores(scores, attribute, units, settings)
            curves.append(own.curves)
            groups = with_score_measures(groups, own, settings.min_patients, "rows" if scores.patients is None else "patients", used)
        group_frames.append(groups)
        gap_frames.append(gaps)
        if progress:
            progress(k + 1, steps)

    def tested(comparisons: int) -> list[FloatArray]:
        return [p for each in attributes for p in _tested(scores, f, each, asked.gaps, comparisons, settings.seed)]

    estimates = estimate_performance(scores, f, asked.performance, settings)
    if of_all is not None:
        estimates |= overall_measures(*of_all, len(scores), asked)
    if progress:
        progress(steps, steps)
    audit = Audit(
        estimates=estimates,
        groups=pd.concat(group_frames),
        gaps=pd.concat(gap_frames, ignore_index=True),
        rule=rule,
        missing={a.name: a.missing for a in attributes},
        references={a.name: a.reference for a in attributes},
        assumed=tuple(a.name for a in scores.attributes if not a.named),
        rows=len(scores),
        patients=None if scores.patients is None else int(units.max(initial=-1)) + 1,
        name=scores.name,
        settings=settings,
        varying=varying_in(scores.attributes, scores.patients),
        curves=pd.concat(curves, ignore_index=True) if curves else pd.DataFrame(columns=CURVES),
        by_threshold=by_threshold(scores, rule, units, settings.min_patients) if scored else pd.DataFrame(columns=COLUMNS),
        weighted=scores.weight is not None,
        shrink=asked.shrink,
        sums={a.name: own for a, own in zip(attributes, sums, strict=True)},
        digest=digest_of(scores),
    )
    return Measured(audit, sums, asked.gaps, tested)


def _of_scores(scores: Scores, attribute: Attribute, units: IntArray, settings: Settings) -> tuple[ScoreMeasures, IntArray]:
    """The measures of the scores of each group, and how many of its rows they come from."""
    sample = sample_of(scores, attribute, units)
    found, used = estimate_scores(*sample, settings), rows_used(sample[1])
    if sample[1] is attribute:
        return found, used
    sampled = used < rows_used(attribute)
    rows = Scored.of(scores.score, scores.y, attribute.codes, len(attribute.levels), units, scores.weight)
    return of_all_rows(found, losses_of(rows), settings.level, sampled, settings.min_patients), used


def overall_measures(found: ScoreMeasures, used: IntArray, rows: int, asked: Asked) -> dict[str, Estimate]:
    """The measures of the scores of all rows together that were asked for, with a note where they come from a sample."""
    sampled = f"from a random sample of {int(used[0]):,} of {rows:,} rows (whole patients)" if used[0] < rows else ""
    return {name: overall(found, name, sampled) for name in OF_ALL if name in asked.wanted}


def _tested(scores: Scores, f: FloatArray, attribute: Attribute, gaps: Sequence[str], comparisons: int, seed: int) -> list[FloatArray]:
    """The p-values of the gaps of one attribute, by measure (groups - 1,)."""
    codes, levels, patients = attribute.codes, attribute.levels, scores.patients
    found = p_values(f, scores.y, codes, levels, patients, gaps, weight=scores.weight, comparisons=comparisons, seed=seed)
    return [found[name] for name in gaps]


def concluded(each: Mapping[str, Measured]) -> dict[str, Audit]:
    """The audits of all labels: gaps with adjusted tests and simultaneous intervals, over all labels together, and their headlines."""
    level = next(iter(each.values())).audit.settings.level
    gaps = pd.concat([own.audit.gaps.assign(label=k) for k, own in enumerate(each.values())], ignore_index=True)
    comparisons = int(comparisons_of(gaps).max(initial=-1)) + 1
    p = np.concatenate([np.zeros(0), *(p for own in each.values() for p in own.tested(comparisons))])
    gaps = adjusted(gaps.assign(p_value=np.where(gaps["value"].notna(), p, np.nan)), level)
    correlations = [
        (len(own.gaps) * (len(m.total) - 1), partial(m.gap_correlation, {name: coefficients(name) for name in own.gaps}))
        for own in each.values()
        for m in own.sums
    ]
    levels = critical_levels(gaps, correlations, level)
    found: dict[str, Audit] = {}
    start = 0
    for label, own in each.items():
        rows = slice(start, start := start + len(own.audit.gaps))
        mine = simultaneous(gaps.iloc[rows].drop(columns="label").reset_index(drop=True), own.sums, levels[rows])
        found[label] = replace(own.audit, gaps=mine, comparisons=comparisons, estimates=_headlines(mine) | own.audit.estimates)
    return found


def _headlines(gaps: pd.DataFrame) -> dict[str, Estimate]:
    """The gap of each measure with the largest absolute value among the groups that have one."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for row in gaps.to_dict("records"):
        rows.setdefault(str(row["measure"]), []).append({str(name): value for name, value in row.items()})
    found = {}
    for measure, mine in rows.items():
        known = [row for row in mine if not np.isnan(row["value"])]
        short = len(mine) - len(known)
        note = f"{short} of {len(mine)} groups have insufficient data" if short and known else None
        found[measure] = Estimate.of_gap(max(known, key=lambda row: abs(row["value"])) if known else mine[0], note)
    return found
