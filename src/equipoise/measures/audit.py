"""The audit of scores: rates of every group and gaps between them, with error bars."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from equipoise.data import CONFLICTS, Attribute, Scores, Varying, varying_in
from equipoise.errors import BadInput, EmptyCell, UnknownName, pick
from equipoise.measures.bootstrap import units_of
from equipoise.measures.cells import Cells, FloatArray, normalised, tabulate
from equipoise.measures.decision import Rule, Threshold, choose_rule
from equipoise.measures.estimates import Estimate, Settings, coefficients, estimate_attribute, estimate_performance, simultaneous
from equipoise.measures.functional import gap_values, predictive, require_cells
from equipoise.measures.gaps import GAPS, QUOTIENTS, Gap, is_quotient, named
from equipoise.measures.moments import Moments
from equipoise.measures.multiplicity import adjusted, comparisons_of, critical_levels
from equipoise.measures.net_benefit import CURVES, thresholds_of
from equipoise.measures.no_finding import DERIVED, NoneOf, none_of, underdiagnosis
from equipoise.measures.performance import PERFORMANCE
from equipoise.measures.permutation import p_values
from equipoise.measures.sampling import sample_of, sampled_notes
from equipoise.measures.score_measures import OF_ALL, estimate_scores, everyone, overall, with_score_measures
from equipoise.measures.shrinkage import shrunken_gaps
from equipoise.presenting import presenter

SCHEMA_VERSION = 3


@dataclass(frozen=True, eq=False)
class Audit:
    """What an audit found. `audit["eod"]` is a gap or a performance measure with its interval; `groups` has one row per group.

    With more than two groups (or several attributes) `audit["eod"]` is the gap with the largest absolute value; `gaps` has all, each with
    its permutation p-value. `clear` marks those that are findings after adjustment for all `comparisons` of the audit.
    """

    estimates: dict[str, Estimate]
    groups: pd.DataFrame
    gaps: pd.DataFrame
    rule: Rule
    missing: dict[str, float]  # attribute: share of rows without it
    references: dict[str, str]
    assumed: tuple[str, ...]  # attributes without a named reference: the largest group was taken
    rows: int
    patients: int | None
    name: str
    settings: Settings
    varying: tuple[Varying, ...] = ()  # attributes with more than one group in some patients
    comparisons: int = 0  # gaps that were adjusted for; measures that mirror each other count once
    curves: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=CURVES))  # decision curves: one row per group and threshold
    weighted: bool = False  # by sample weights

    def __getitem__(self, measure: Gap) -> Estimate:
        name = measure if isinstance(measure, str) and measure in self.estimates else _named(measure)
        if name not in self.estimates:
            raise UnknownName("measure in this audit", name, self.estimates)
        return self.estimates[name]

    @property
    def underdiagnosis(self) -> pd.DataFrame:
        """One row per group, where this is the audit of "no finding": the share of those with a finding who are cleared, and its gap."""
        return underdiagnosis(self.groups, self.gaps)

    @property
    def findings(self) -> int:
        """How many of the comparisons are clear after adjustment."""
        return len(set(comparisons_of(self.gaps)[self.gaps["clear"].to_numpy(dtype=bool)]))

    def __repr__(self) -> str:
        patients = "" if self.patients is None else f" of {self.patients:,} patients"
        return f"Audit({self.name!r}, {self.rows:,} rows{patients}, {', '.join(self.estimates)})"

    def __str__(self) -> str:
        lines = [f"Audit of {self.name}: {self.rows:,} rows; positive if {self.rule.describe()}"]
        lines += [f"  {name}: {estimate}" for name, estimate in self.estimates.items()]
        lines += [f"  {each.patients:,} patients have more than one {each.attribute}; {CONFLICTS[each.rule]}" for each in self.varying]
        return "\n".join(lines)

    def shrunken(self) -> pd.DataFrame:
        """The gaps with shrunken values next to them (empirical Bayes), for many small groups such as intersections; NaN for few groups.

        They are better guesses on average and biased towards no gap, so they complement `gaps` and have no p-values.
        """
        return shrunken_gaps(self.groups, self.gaps, self.settings.level)

    def report(self, path: str | Path) -> Path:
        """The path of the HTML report of this audit, which is written there."""
        return Path(presenter("write_audit_page")(self, Path(path)))

    def to_dict(self, *, shrunken: bool = False) -> dict[str, object]:
        """Plain values for JSON: for each measure, an object with value, low and high under its name; shrunken gaps if asked for."""
        return {
            "schema": "equipoise.audit",
            "schema_version": SCHEMA_VERSION,
            "name": self.name,
            "rows": self.rows,
            "patients": self.patients,
            "resampled": "rows" if self.patients is None else "patients",
            "decision": self.rule.describe(),
            "threshold": self.rule.value if isinstance(self.rule, Threshold) else None,
            "needs_group": self.rule.needs_group,
            "references": self.references,
            "references_assumed": list(self.assumed),
            "missing_attribute_share": self.missing,
            "patients_in_several_groups": {each.attribute: each.patients for each in self.varying},
            "conflicts": next((each.rule for each in self.varying), "row"),
            "settings": {
                "level": self.settings.level,
                "draws": self.settings.draws,
                "seed": self.settings.seed,
                "min_patients": self.settings.min_patients,
                "specificity": self.settings.specificity,
                "sensitivity": self.settings.sensitivity,
            },
            "weighted": self.weighted,
            "comparisons": self.comparisons,
            "findings": self.findings,
            **{name: estimate.to_dict() for name, estimate in self.estimates.items()},
            "groups": _records(self.groups.rename_axis("group").reset_index()),
            "gaps": _records(self.gaps),
            **({"shrunken_gaps": _records(self.shrunken())} if shrunken else {}),
            "curves": _records(self.curves),
        }


@dataclass(frozen=True, eq=False)
class Audits(Mapping[str, Audit]):
    """The audit of each label: `audits["Effusion"]["eod"]`."""

    audits: Mapping[str, Audit]
    kind: str
    name: str
    no_finding: Audit | None = None  # of "no finding", one of the labels or derived from them, where it was asked for

    def __getitem__(self, label: str) -> Audit:
        if label not in self.audits:
            raise UnknownName("label in this audit", label, self.audits)
        return self.audits[label]

    def __contains__(self, label: object) -> bool:
        return label in self.audits

    def __iter__(self) -> Iterator[str]:
        return iter(self.audits)

    def __len__(self) -> int:
        return len(self.audits)

    def __str__(self) -> str:
        return "\n".join(f"{label}: {audit}" for label, audit in self.audits.items())

    def report(self, path: str | Path) -> Path:
        """The path of the HTML report of all labels, which is written there; the page of each is in a folder next to it."""
        return Path(presenter("write_audits_page")(self, Path(path)))

    def to_dict(self, *, shrunken: bool = False) -> dict[str, object]:
        """Plain values for JSON: the audit of each label under its name."""
        return {
            "schema": "equipoise.audits",
            "name": self.name,
            "kind": self.kind,
            "labels": {k: v.to_dict(shrunken=shrunken) for k, v in self.audits.items()},
            **no_finding_dict(self.no_finding),
        }


def no_finding_dict(audit: Audit | None) -> dict[str, object]:
    """Plain values for JSON of the audit of "no finding": underdiagnosis by group, and the decision; empty without one."""
    if audit is None:
        return {}
    told = {"decision": audit.rule.describe(), "rows": audit.rows, "comparisons": audit.comparisons}
    return {"no_finding": told | {"underdiagnosis": _records(audit.underdiagnosis)}}


def audit_scores(
    scores: Scores,
    *,
    rule: Rule | None = None,
    threshold: float | None = None,
    valid: Scores | None = None,
    measures: Sequence[Gap] | None = None,
    also: Sequence[Gap] = (),
    optimise: str = "balanced_accuracy",
    draws: int = 1000,
    level: float = 0.95,
    seed: int = 0,
    min_patients: int = 5,
    specificity: float = 0.9,
    sensitivity: float = 0.9,
    thresholds: str | Sequence[float] = "0.05:0.5",
    progress: Callable[[int, int], None] | None = None,
) -> Audit:
    """The audit of scores.

    The decision is that of `rule`; or `score >= threshold`; or the threshold that is best by `optimise` on the scores `valid`; or 0.5. A
    cell with fewer than `min_patients` patients is "insufficient data". Naming `measures` makes an empty cell an error instead; `also`
    adds to those that are usual. A measure is a name, or a signed sum of rates such as "tpr-fpr".

    Sensitivity is also reported at a fixed `specificity`, and the reverse at a fixed `sensitivity`; `thresholds` (START:STOP,
    START:STOP:STEP or a sequence) are those of the decision curves.

    >>> rng = np.random.default_rng(0)
    >>> frame = pd.DataFrame({"y": rng.integers(0, 2, 400), "p": rng.random(400), "sex": rng.choice(["F", "M"], 400)})
    >>> found = audit_scores(Scores.from_frame(frame, label="y", score="p", group="sex", reference="M"), threshold=0.5)
    >>> found["eod"].low < found["eod"].value < found["eod"].high
    True
    """
    asked = asked_for(
        rule=rule,
        threshold=threshold,
        valid=valid,
        measures=measures,
        also=also,
        optimise=optimise,
        draws=draws,
        level=level,
        seed=seed,
        min_patients=min_patients,
        specificity=specificity,
        sensitivity=sensitivity,
        thresholds=thresholds,
    )
    return audit_asked(scores, asked, progress)


@dataclass(frozen=True)
class Asked:
    """What an audit is asked for: a decision rule, measures and settings."""

    rule: Rule
    wanted: tuple[str, ...]
    settings: Settings
    strict: bool = False  # whether an empty cell that a measure needs is an error
    scored: bool = True  # whether the measures of the scores themselves are estimated

    @property
    def gaps(self) -> list[str]:
        """The gaps among the measures."""
        return [m for m in self.wanted if m not in PERFORMANCE and m not in OF_ALL]

    @property
    def performance(self) -> list[str]:
        """The performance measures."""
        return [m for m in self.wanted if m in PERFORMANCE]

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


def asked_for(
    *,
    rule: Rule | None = None,
    threshold: float | None = None,
    valid: Scores | None = None,
    measures: Sequence[Gap] | None = None,
    also: Sequence[Gap] = (),
    optimise: str = "balanced_accuracy",
    draws: int = 1000,
    level: float = 0.95,
    seed: int = 0,
    min_patients: int = 5,
    specificity: float = 0.9,
    sensitivity: float = 0.9,
    thresholds: str | Sequence[float] = "0.05:0.5",
) -> Asked:
    """What the arguments of `audit_scores` ask for, checked."""
    if draws < 2 or not 0 < level < 1:
        raise BadInput(f"an interval needs at least 2 draws and a level between 0 and 1; got draws={draws}, level={level}")
    if rule is not None and threshold is not None:
        raise BadInput("give a decision rule or a threshold, not both")
    outside = {name: value for name, value in (("specificity", specificity), ("sensitivity", sensitivity)) if not 0 < value < 1}
    if outside:
        raise BadInput(*(f"{name} must be between 0 and 1, without these ends; got {value}" for name, value in outside.items()))
    plain = (*PERFORMANCE, *OF_ALL)  # of all rows together
    usual: tuple[Gap, ...] = (*GAPS, *plain) if measures is None else tuple(measures)
    listed = [m if isinstance(m, str) and m in plain else named(m, also=plain) for m in (*usual, *also)]
    wanted = tuple(dict.fromkeys(listed))
    settings = Settings(draws, level, seed, min_patients, specificity, sensitivity, thresholds_of(thresholds))
    decided = rule or choose_rule(threshold, valid, optimise)
    return Asked(decided, wanted, settings, strict=measures is not None)


def audit_no_finding(scores: Mapping[str, Scores], audits: Mapping[str, Audit], label: str = DERIVED) -> Audit:
    """The audit of "no finding", whose false positive rate is underdiagnosis: that of a label, or derived as none of the labels.

    `scores` and `audits` are those of the labels of one model. Derived decisions have no score, so there is nothing that depends on one.
    """
    if label != DERIVED:
        return audits[pick("label for no finding", label, (*audits, DERIVED))]
    found = none_of(scores, {name: audit.rule for name, audit in audits.items()})
    settings = replace(next(iter(audits.values())).settings, thresholds=())
    return audit_asked(found, Asked(NoneOf(tuple(audits)), ("fpr_gap",), settings, scored=False))


def audit_asked(scores: Scores, asked: Asked, progress: Callable[[int, int], None] | None = None) -> Audit:
    """The audit of scores that was asked for."""
    settings, scored = asked.settings, asked.scored
    f = asked.rule.decide(scores)
    attributes = list(scores.attributes)
    if len(attributes) > 1:
        attributes.append(Attribute.crossed(attributes))
    asked.require(
        [tabulate(f, scores.y, each, normalised(scores.weight)) for each in scores.attributes] if asked.strict else [], scores.name
    )
    steps = len(attributes) + 1
    units = units_of(scores.patients, len(scores))
    group_frames, gap_frames, sums = [], [], []
    of_all = estimate_scores(*sample_of(scores, everyone(len(scores)), units), settings) if scored else None
    curves = [] if of_all is None else [of_all.curves]
    for k, attribute in enumerate(attributes):
        groups, gaps, moments = estimate_attribute(scores, f, attribute, asked.gaps, settings)
        sums.append(moments)
        if scored:
            sample = sample_of(scores, attribute, units)
            own = estimate_scores(*sample, settings)
            curves.append(own.curves)
            groups = with_score_measures(groups, own, settings.min_patients, "rows" if scores.patients is None else "patients")
            groups["note"] = sampled_notes(groups, sample[1])
        group_frames.append(groups)
        gap_frames.append(gaps)
        if progress:
            progress(k + 1, steps)

    def tested(comparisons: int) -> list[FloatArray]:
        return [p for each in attributes for p in _tested(scores, f, each, asked.gaps, comparisons, settings.seed)]

    gaps, comparisons, estimates = concluded(gap_frames, sums, tested, asked)
    estimates |= estimate_performance(scores, f, asked.performance, settings)
    estimates |= {name: overall(of_all, name) for name in OF_ALL if of_all is not None and name in asked.wanted}
    if progress:
        progress(steps, steps)
    return Audit(
        estimates=estimates,
        groups=pd.concat(group_frames),
        gaps=gaps,
        rule=asked.rule,
        missing={a.name: a.missing for a in attributes},
        references={a.name: a.reference for a in attributes},
        assumed=tuple(a.name for a in scores.attributes if not a.named),
        rows=len(scores),
        patients=None if scores.patients is None else int(units.max(initial=-1)) + 1,
        name=scores.name,
        settings=settings,
        varying=varying_in(scores.attributes, scores.patients),
        comparisons=comparisons,
        curves=pd.concat(curves, ignore_index=True) if curves else pd.DataFrame(columns=CURVES),
        weighted=scores.weight is not None,
    )


def concluded(
    frames: Sequence[pd.DataFrame], sums: Sequence[Moments], tested: Callable[[int], Sequence[FloatArray]], asked: Asked
) -> tuple[pd.DataFrame, int, dict[str, Estimate]]:
    """The gaps of all attributes with adjusted tests and simultaneous intervals, how many comparisons they are, and the headline of each.

    `sums` are the moments of each attribute; `tested` gives their p-values for a number of comparisons, as the rows: by attribute, measure
    and group.
    """
    settings, names = asked.settings, asked.gaps
    gaps = pd.concat(frames, ignore_index=True)
    comparisons = int(comparisons_of(gaps).max(initial=-1)) + 1
    p = np.concatenate([np.zeros(0), *tested(comparisons)])
    gaps = adjusted(gaps.assign(p_value=np.where(gaps["value"].notna(), p, np.nan)), settings.level)
    signed = {name: coefficients(name) for name in names}
    levels = critical_levels(gaps, [(len(names) * (len(m.total) - 1), partial(m.gap_correlation, signed)) for m in sums], settings.level)
    gaps = simultaneous(gaps, sums, levels)
    return gaps, comparisons, _headlines(gaps)


def _tested(scores: Scores, f: FloatArray, attribute: Attribute, gaps: Sequence[str], comparisons: int, seed: int) -> list[FloatArray]:
    """The p-values of the gaps of one attribute, by measure (groups - 1,)."""
    codes, levels, patients = attribute.codes, attribute.levels, scores.patients
    found = p_values(f, scores.y, codes, levels, patients, gaps, weight=scores.weight, comparisons=comparisons, seed=seed)
    return [found[name] for name in gaps]


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


def _named(measure: Gap) -> str:
    """The name of a measure; what cannot be read stays as it is, for an error that lists what there is."""
    try:
        return named(measure)
    except BadInput:
        return str(measure)


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


def _records(frame: pd.DataFrame) -> list[dict[str, object]]:
    plain = frame.astype(object).where(frame.notna(), None)
    return [{str(k): (v.item() if isinstance(v, np.generic) else v) for k, v in row.items()} for row in plain.to_dict("records")]
