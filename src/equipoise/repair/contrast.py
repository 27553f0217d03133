"""Contrasts: what differs between models on the same patients, or between sites or periods with different patients.

Two models on the same rows are compared row by row (paired): only decisions that differ count. Audits of different patients are compared by
their sums: the variances of both add up. Every change of a gap is one comparison; p-values are those levels at which intervals end at zero,
adjusted by Holm's method over all gaps, and separately over all rates. Simultaneous intervals are Bonferroni's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from equipoise.data import Attribute, Scores
from equipoise.errors import BadInput, raise_all
from equipoise.measures import (
    AT_THRESHOLD,
    FEW,
    INSUFFICIENT,
    Asked,
    AuditSums,
    Estimate,
    Fact,
    FloatArray,
    Ranking,
    Settings,
    SignedSum,
    adjusted,
    audit_asked,
    coefficients,
    combined,
    comparisons_of,
    gap_facts,
    paired,
    quantile,
    records,
    stacked,
    sums_of,
    units_of,
)
from equipoise.presenting import presenter
from equipoise.repair.changes import Affected, affected, all_attributes
from equipoise.repair.pairing import aligned, same_patients, unlike, with_common_groups

RATES_COMPARED = {"selection_rate": "spd", "tpr": "eod", "fpr": "fpr_gap", "ppv": "ppv_gap", "npv": "npv_gap"}  # rate: its gap
BEFORE = ("label", "compared", "measure", "attribute", "group", "reference")
NUMBERS = ("first", "second", "value", "low", "high")
LATER = ("simultaneous_low", "simultaneous_high", "p_value", "p_adjusted", "clear")
SCHEMA, SCHEMA_VERSION = "equipoise.comparison", 1


@dataclass(frozen=True, eq=False)
class Contrast:
    """What differs between classifiers or cohorts: each of `others` compared with `first`, other minus first.

    `gaps` has one row per gap: its value in both, the change with its interval and adjusted p-value, and `clear` for a finding. `rates` has
    the same per group; `performance` is of all patients. `paired` says that the patients are the same; then `affected` has the decisions
    that differ, by the name of the other.
    """

    first: str
    others: tuple[str, ...]
    paired: bool
    gaps: pd.DataFrame
    rates: pd.DataFrame
    performance: pd.DataFrame
    sizes: Mapping[str, tuple[int, int | None]]  # by name: rows and patients
    decisions: Mapping[str, str]  # by name: when a decision is positive
    level: float
    affected: Mapping[str, Sequence[Affected]] = field(default_factory=dict)

    @property
    def comparisons(self) -> int:
        """How many changes of gaps were adjusted for; measures that mirror each other count once."""
        return int(comparisons_of(_keyed(self.gaps)).max(initial=-1)) + 1

    @property
    def findings(self) -> int:
        """How many of them are clear after adjustment."""
        return len(set(comparisons_of(_keyed(self.gaps))[self.gaps["clear"].to_numpy(dtype=bool)]))

    def __repr__(self) -> str:
        return f"Contrast({', '.join(self.others)} minus {self.first}; {'the same' if self.paired else 'different'} patients)"

    def __str__(self) -> str:
        lines = [f"{', '.join(self.others)} compared with {self.first}, on {'the same' if self.paired else 'different'} patients"]
        for row in self.gaps.to_dict("records"):
            change = Estimate(row["value"], row["low"], row["high"], str(row["note"]))
            named = f"{row['measure']} of {row['group']} minus {row['reference']}"
            lines.append(f"  {named}: {row['first']:+.3f} to {row['second']:+.3f}, change {change}{' *' if row['clear'] else ''}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return str(presenter("contrast_html")(self))

    def report(self, path: str | Path, *, group_names: Mapping[str, str] | None = None) -> Path:
        """The path of the report of this comparison, HTML or PDF (.pdf) by its ending, with the user's words for groups: {"F": "women"}."""
        return Path(presenter("write_contrast_page")(self, Path(path), group_names=group_names))

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON; None for insufficient data."""
        decided = {
            name: [{"attribute": own.attribute, "patients": own.patients, "groups": [vars(each) for each in own.counts]} for own in each]
            for name, each in self.affected.items()
        }
        return {
            "schema": SCHEMA,
            "schema_version": SCHEMA_VERSION,
            "first": self.first,
            "others": list(self.others),
            "paired": self.paired,
            "level": self.level,
            "rows": {name: rows for name, (rows, _) in self.sizes.items()},
            "patients": {name: patients for name, (_, patients) in self.sizes.items()},
            "decisions": dict(self.decisions),
            "comparisons": self.comparisons,
            "findings": self.findings,
            "gaps": records(self.gaps),
            "rates": records(self.rates),
            "performance": records(self.performance),
            "decided_differently": decided,
        }


def contrast_facts(found: Contrast) -> list[Fact]:
    """All numbers of a comparison that a condition may be about: of a gap or a rate, the value is its change."""
    facts = [Fact("findings", {"value": float(found.findings)}), *gap_facts(found.gaps.to_dict("records"))]
    rates = [row | {"reference": ""} for row in found.rates.to_dict("records")]
    return [*facts, *gap_facts(rates, measure="rate"), *gap_facts(found.performance.to_dict("records"))]


def contrast_sums(subjects: Mapping[str, Mapping[str, AuditSums]], *, common_groups: bool = False) -> Contrast:
    """The contrast of audits of different patients, each by label: every other one with the first.

    Raises an error where they are of the same rows, or differ in labels, measures, groups, references, levels or weighting. With
    `common_groups`, groups that are not in all of them are left out.
    """
    names = list(subjects)
    if common_groups:
        subjects = with_common_groups(subjects)
    problems = [each for name in names[1:] for each in unlike(names[0], subjects[names[0]], name, subjects[name])]
    raise_all(problems)
    gaps, rates, performance = [], [], []
    first = subjects[names[0]]
    level = next(iter(first.values())).level
    for name in names[1:]:
        for label, one in first.items():
            other = subjects[name][label]
            least = max(one.min_patients, other.min_patients)
            for attribute, levels in one.groups.items():
                order = [other.groups[attribute].index(group) for group in levels]
                mine, theirs = one.sums[attribute], other.sums[attribute].taken(order)
                table = _Table(label, name, attribute, levels, least, level, "rows" if one.patients is None else "patients")
                for measure in (*one.measures, *RATES_COMPARED):
                    signed = coefficients(measure) if measure not in RATES_COMPARED else {measure: 1.0}
                    counts = np.min([each.patients(rate) for each in (mine, theirs) for rate in signed], axis=0)
                    before, after = mine.signed(signed), theirs.signed(signed)
                    change = after.minus(before)
                    if measure in RATES_COMPARED:
                        rates += table.rates(measure, before.total, after.total, change, counts)
                        continue
                    sides = [side[1:].minus(side[:1]) for side in (before, after)]
                    gaps += table.gaps(measure, sides[0].total, sides[1].total, sides[1].minus(sides[0]), counts)
            performance += [
                (label, name, measure, each.value, other.performance[measure].value, *_difference(each, other.performance[measure]))
                for measure, each in one.performance.items()
                if measure in other.performance
            ]
    whole = {name: next(iter(each.values())) for name, each in subjects.items()}
    return _contrast(
        names,
        False,
        gaps,
        rates,
        performance,
        {name: (each.rows, each.patients) for name, each in whole.items()},
        {name: each.decision for name, each in whole.items()},
        level,
    )


def contrast_scores(subjects: Mapping[str, Scores], asked: Mapping[str, Asked], *, paired: bool | None = None) -> Contrast:
    """The contrast of scores: of several models on the same patients, by row, or of different patients.

    Which of them it is follows from the ids, or from `paired`; raises an error where they do not agree, or some patients are in both.
    """
    names = list(subjects)
    first, level = subjects[names[0]], next(iter(asked.values())).settings.level
    related = [same_patients(first, subjects[name], names[0], name, paired) for name in names[1:]]
    if len(set(related)) > 1:
        alike, unlike = (", ".join(n for n, r in zip(names[1:], related, strict=True) if r == kind) for kind in (True, False))
        raise BadInput(f"{alike} and {names[0]} are of the same patients, {unlike} is not. Compare the models on the same patients first.")
    if not related[0]:
        return contrast_sums({name: sums_of(replace(audit_asked(own, asked[name]), name=name)) for name, own in subjects.items()})
    gaps: list[tuple[Any, ...]] = []
    rates: list[tuple[Any, ...]] = []
    performance: list[tuple[Any, ...]] = []
    differ = {}
    old = asked[names[0]].decision.decide(first)
    for name in names[1:]:
        other, settings = aligned(first, subjects[name], names[0], name), asked[name].settings
        new = asked[name].decision.decide(other)
        for attribute in all_attributes(first):
            own = _of_rows(first, attribute, old, new, name, asked[names[0]].gaps, settings)
            gaps, rates = gaps + own.gaps, rates + own.rates
        performance += _paired_performance(first, other, old, new, name, asked[names[0]].performance, settings)
        differ[name] = affected(first, old, new)
    patients = None if first.patients is None else len(set(first.patients))
    decisions = {name: each.decision.describe() for name, each in asked.items()}
    return _contrast(names, True, gaps, rates, performance, dict.fromkeys(names, (len(first), patients)), decisions, level, differ)


class _Rows(NamedTuple):
    gaps: list[tuple[Any, ...]]
    rates: list[tuple[Any, ...]]


def _of_rows(
    scores: Scores, attribute: Attribute, old: FloatArray, new: FloatArray, name: str, measures: Sequence[str], settings: Settings
) -> _Rows:
    """The changes of one attribute's gaps and rates between two sets of decisions on the same rows."""
    both = paired(replace(scores, attributes=(attribute,)), old, new, settings)
    unit = "rows" if scores.patients is None else "patients"
    table = _Table("", name, attribute.name, attribute.levels, settings.min_patients, settings.level, unit)
    found = _Rows([], [])
    for measure in (*measures, *RATES_COMPARED):
        of = RATES_COMPARED.get(measure, measure)
        before, after = both.rates(of)
        if measure in RATES_COMPARED:
            found.rates.extend(table.rates(measure, before, after, both.signed(of), both.patients(of)))
            continue
        change = both.signed(of)
        sides = before[1:] - before[0], after[1:] - after[0]
        found.gaps.extend(table.gaps(measure, *sides, change[1:].minus(change[:1]), both.patients(of)))
    return found


@dataclass(frozen=True)
class _Table:
    """What the rows of one attribute of one comparison share."""

    label: str
    compared: str
    attribute: str
    levels: Sequence[str]
    least: int
    level: float
    unit: str

    def gaps(self, measure: str, first: FloatArray, second: FloatArray, change: SignedSum, counts: FloatArray) -> list[tuple[Any, ...]]:
        """One row per group except the reference."""
        return self._rows(measure, self.levels[1:], first, second, change, np.minimum(counts[1:], counts[0]))

    def rates(self, rate: str, first: FloatArray, second: FloatArray, change: SignedSum, counts: FloatArray) -> list[tuple[Any, ...]]:
        """One row per group."""
        return self._rows(rate, self.levels, first, second, change, counts)

    def _rows(
        self, what: str, groups: Sequence[str], first: FloatArray, second: FloatArray, change: SignedSum, counts: FloatArray
    ) -> list[tuple[Any, ...]]:
        usable = (counts >= self.least) & ~np.isnan(change.total)
        found = []
        for k, group in enumerate(groups):
            values = [float(x[k]) if usable[k] else np.nan for x in (first, second)]
            note = "" if usable[k] else f"{INSUFFICIENT}: fewer than {self.least} {self.unit} in a cell"
            where = (self.label, self.compared, what, self.attribute, group, self.levels[0])
            found.append((*where, *values, int(counts[k]), bool(usable[k] and counts[k] < FEW), note, change[k : k + 1]))
        return found


def _contrast(
    names: Sequence[str],
    paired: bool,
    gaps: Sequence[tuple[Any, ...]],
    rates: Sequence[tuple[Any, ...]],
    performance: Sequence[tuple[Any, ...]],
    sizes: Mapping[str, tuple[int, int | None]],
    decisions: Mapping[str, str],
    level: float,
    differ: Mapping[str, Sequence[Affected]] | None = None,
) -> Contrast:
    tables = [_concluded(rows, level) for rows in (gaps, rates)]
    of_all = pd.DataFrame(list(performance), columns=["label", "compared", "measure", *NUMBERS])
    frames = tables[0], tables[1].rename(columns={"measure": "rate"}), of_all
    return Contrast(names[0], tuple(names[1:]), paired, *frames, sizes, decisions, level, differ or {})


def _concluded(rows: Sequence[tuple[Any, ...]], level: float) -> pd.DataFrame:
    """The rows with p-values adjusted together, and with intervals that hold for all of them at once."""
    frame = pd.DataFrame([row[:-1] for row in rows], columns=[*BEFORE, "first", "second", "patients", "few", "note"])
    changes, known = stacked([row[-1] for row in rows]), frame["first"].notna().to_numpy()

    def where_known(**columns: FloatArray) -> dict[str, FloatArray]:
        return {name: np.where(known, values, np.nan) for name, values in columns.items()}

    value, low, high = changes.limits(level)
    frame = frame.assign(**where_known(value=value, low=low, high=high, p_value=changes.p_values()))
    frame = adjusted(_keyed(frame), level).assign(label=frame["label"], measure=frame["measure"])
    count = max(int(comparisons_of(_keyed(frame)).max(initial=-1)) + 1, 1)
    wide = 1 - (1 - level) / count
    _, low, high = changes.limits(wide)
    frame = frame.assign(**where_known(simultaneous_low=low, simultaneous_high=high))
    return frame[[*BEFORE, *NUMBERS, *LATER, "patients", "few", "note"]]


def _keyed(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows as `comparisons_of` counts them: label and name as one key, and a rate by the name of its gap."""
    key = pd.Series(list(zip(frame["label"], frame["compared"], strict=True)), index=frame.index, dtype=object)
    return frame.assign(label=key, measure=[RATES_COMPARED.get(name, name) for name in frame["measure"]])


def _difference(first: Estimate, second: Estimate) -> tuple[float, float, float]:
    """The difference of two estimates of different patients, with its limits from theirs (Zou and Donner 2008)."""
    each = (np.array([getattr(second, end), getattr(first, end)]) for end in ("value", "low", "high"))
    value, low, high = combined([1.0, -1.0], *each)
    return float(value), float(low), float(high)


def _paired_performance(
    first: Scores, other: Scores, old: FloatArray, new: FloatArray, name: str, measures: Sequence[str], settings: Settings
) -> list[tuple[Any, ...]]:
    both = paired(first, old, new, settings)
    found: list[tuple[Any, ...]] = []
    for measure in measures:
        if measure in AT_THRESHOLD:
            change = both.performance_change(measure)
            found.append(("", name, measure, *both.performance(measure), change.value, change.low, change.high))
        elif measure == "auroc":
            found.append(("", name, measure, *_auroc_change(first, other, settings.level)))
    return found


def _auroc_change(first: Scores, other: Scores, level: float) -> tuple[float, float, float, float, float]:
    """AUROC of both scores on the same rows and its change (DeLong, DeLong and Clarke-Pearson 1988; by patient, Obuchowski 1997)."""
    ranked = [Ranking(each.score, each.y) for each in (first, other)]
    areas = [float(each.auroc(first.weight)) for each in ranked]
    if np.isnan(areas).any():
        return (*areas, np.nan, np.nan, np.nan)  # type: ignore[return-value]
    by_row = np.zeros(len(first))
    for sign, each in zip((-1.0, 1.0), ranked, strict=True):
        for rows, part in zip((each.positive, each.negative), each.auroc_influence(first.weight), strict=True):
            by_row[rows] += sign * part
    units = units_of(first.patients, len(first))
    half = quantile(level) * float(np.sqrt((np.bincount(units, by_row) ** 2).sum()))
    change = areas[1] - areas[0]
    return areas[0], areas[1], change, max(change - half, -1.0), min(change + half, 1.0)
