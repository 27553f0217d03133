"""Changes of gaps, rates and performance: between classifiers on the same patients, or between sites or periods with different patients.

On the same rows classifiers are compared row by row (paired): only decisions that differ count. Audits of different patients are compared
by their sums: the variances of both add up. Every change of a gap is one comparison; its p-value is one minus the confidence level at which
the interval ends at zero, adjusted by Holm's method over all gaps, and separately over all rates. Simultaneous intervals agree with it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from equipoise.comparison.findings import Affected, ScoredCandidate, affected
from equipoise.data import FloatArray, Scores
from equipoise.errors import BadInput, raise_all
from equipoise.measures import (
    AT_THRESHOLD,
    FEW_PATIENTS,
    INSUFFICIENT_DATA,
    RATES_COMPARED,
    SUMMARIES,
    AuditSpec,
    AuditSums,
    Estimate,
    Fact,
    PairedDecisions,
    Ranking,
    SignedSum,
    combine_limits,
    comparisons_of,
    concatenate_sums,
    family_decisions,
    gap_facts,
    measure_of,
    records,
    shown_scores,
    summaries_on_rows,
    units_of,
)

CHANGE_KEYS = ("label", "compared", "measure", "attribute", "group", "reference")
CHANGE_NUMBERS = ("first", "second", "value", "low", "high")
CHANGE_TESTS = ("simultaneous_low", "simultaneous_high", "p_value", "p_adjusted", "clear")
COMPARISON_SCHEMA, COMPARISON_VERSION = "equipoise.comparison", 2


@dataclass(frozen=True, eq=False)
class Changes:
    """Differences between classifiers or cohorts: each of `others` compared with `first`, other minus first.

    `gaps` has one row per gap: its value in both, the change with its interval and adjusted p-value, and `clear` for a finding. `rates` has
    the same per group; `performance` covers all patients. If `paired`, the patients are the same, and `affected` maps each of `others` to
    the decisions that differ. `summaries` are those that were asked for: ratios, ranges, worst groups, differences in measures of scores.
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
    intersections: tuple[str, ...] = ()  # attributes that are the intersection of others
    summaries: pd.DataFrame = field(default_factory=partial(pd.DataFrame, columns=[*CHANGE_KEYS, *CHANGE_NUMBERS, "note"]))

    @property
    def comparisons(self) -> int:
        """The number of changes of gaps that were adjusted for; measures that mirror each other count once."""
        return int(comparisons_of(_keyed(self.gaps)).max(initial=-1)) + 1

    @property
    def findings(self) -> int:
        """The number of these changes that are clear after adjustment."""
        return len(set(comparisons_of(_keyed(self.gaps))[self.gaps["clear"].to_numpy(dtype=bool)]))

    def __str__(self) -> str:
        lines = [f"{', '.join(self.others)} compared with {self.first}, on {'the same' if self.paired else 'different'} patients"]
        for row in self.gaps.to_dict("records"):
            change = Estimate(row["value"], row["low"], row["high"], str(row["note"]))
            gap = f"{row['measure']} of {row['group']} minus {row['reference']}"
            lines.append(f"  {gap}: {row['first']:+.3f} to {row['second']:+.3f}, change {change}{' *' if row['clear'] else ''}")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON; None for insufficient data."""
        decided_differently = {
            name: [{"attribute": a.attribute, "patients": a.patients, "groups": [vars(counts) for counts in a.counts]} for a in affected]
            for name, affected in self.affected.items()
        }
        return {
            "schema": COMPARISON_SCHEMA,
            "schema_version": COMPARISON_VERSION,
            "first": self.first,
            "others": list(self.others),
            "paired": self.paired,
            "level": self.level,
            "rows": {name: rows for name, (rows, _) in self.sizes.items()},
            "patients": {name: patients for name, (_, patients) in self.sizes.items()},
            "decisions": dict(self.decisions),
            "intersections": list(self.intersections),
            "comparisons": self.comparisons,
            "findings": self.findings,
            "gaps": records(self.gaps),
            "rates": records(self.rates),
            "performance": records(self.performance),
            **({"summaries": records(self.summaries)} if len(self.summaries) else {}),
            "decided_differently": decided_differently,
        }


def change_facts(changes: Changes) -> list[Fact]:
    """All numbers of a comparison that a condition can refer to; the value of a gap or a rate is its change."""
    facts = [Fact("findings", {"value": float(changes.findings)}), *gap_facts(changes.gaps.to_dict("records"))]
    rates = [row | {"reference": ""} for row in changes.rates.to_dict("records")]
    others = (row for frame in (changes.performance, changes.summaries) for row in frame.to_dict("records"))
    return [*facts, *gap_facts(rates, measure="rate"), *gap_facts(others)]


def changes_on_rows(classifiers: Sequence[ScoredCandidate], spec: AuditSpec) -> Changes:
    """The changes from the first classifier to each other one on the same rows, decision by decision."""
    original, *others = classifiers
    first, reference = original.test, original.name
    shown, blocks, performance, changed = shown_scores(first, spec.min_patients), list[_Block](), list[tuple[Any, ...]](), {}
    before, summaries = original.decisions()[shown.kept], list[dict[str, Any]]()
    for other in others:
        decisions = before, other.decisions()[shown.kept]
        for attribute in shown.attributes:
            pair = PairedDecisions(replace(shown.scores, attributes=(attribute,)), decisions, spec)

            def change_of(gap: str, pair: PairedDecisions = pair) -> _Change:
                return *pair.rates(gap), pair.signed(gap), pair.patients(gap)

            keys = {"label": "", "compared": other.name, "attribute": attribute.name}
            blocks += _blocks(keys, attribute.levels, spec.gaps, change_of, spec.min_patients, first.patients is not None)
        pair = PairedDecisions(shown.scores, decisions, spec)
        for measure in spec.performance:
            if measure in AT_THRESHOLD:
                change = pair.performance_change(measure)
                performance.append(("", other.name, measure, *pair.performance(measure), change.value, change.low, change.high))
            elif measure == "auroc":
                performance.append(("", other.name, measure, *_auroc_change(shown.scores, shown.like(other.test), spec.level)))
        if spec.summaries:
            of_rows = (shown.scores, before), (shown.like(other.test), decisions[1])
            sides = (summaries_on_rows(rows, f, shown.attributes, spec) for rows, f in of_rows)
            summaries += _summary_changes({"label": "", "compared": other.name}, *sides)
        changed[other.name] = affected(shown.scores, *decisions, shown.attributes)
    size = len(first), None if first.patients is None else len(set(first.patients))
    decisions_of = {each.name: each.rule.describe() for each in classifiers}
    intersections = tuple(attribute.name for attribute in shown.attributes if attribute.intersection)
    tables = _comparison_tables(blocks, performance, spec.level)
    names = tuple(other.name for other in others)
    more = changed, intersections, pd.DataFrame(summaries, columns=[*CHANGE_KEYS, *CHANGE_NUMBERS, "note"])
    return Changes(reference, names, True, *tables, dict.fromkeys(decisions_of, size), decisions_of, spec.level, *more)


def changes_of_audits(subjects: Mapping[str, Mapping[str, AuditSums]], *, common_groups: bool = False) -> Changes:
    """The changes between audits of different patients, each by label: from the first to every other one.

    Raises an error if they cover the same rows, or differ in labels, measures, groups, references, levels or weighting. With
    `common_groups`, groups that are not in all of them are left out.
    """
    if common_groups:
        subjects = with_common_groups(subjects)
    reference, *names = subjects
    raise_all([p for name in names for p in incompatibilities(reference, subjects[reference], name, subjects[name])])
    blocks, performance, summaries = list[_Block](), list[tuple[Any, ...]](), list[dict[str, Any]]()
    for name, (label, first) in product(names, subjects[reference].items()):
        second = subjects[name][label]
        for attribute, levels in first.groups.items():
            sides = first.sums[attribute], second.sums[attribute].taken([second.groups[attribute].index(group) for group in levels])

            def change_of(gap: str, sides: tuple[Any, Any] = sides) -> _Change:
                signed = measure_of(gap).coefficients
                counts = np.min([side[rate].patients for side in sides for rate in signed], axis=0)
                before, after = (side.signed(signed) for side in sides)
                return before.total, after.total, after.minus(before), counts

            keys, least = {"label": label, "compared": name, "attribute": attribute}, max(first.min_patients, second.min_patients)
            blocks += _blocks(keys, levels, first.measures, change_of, least, first.patients is not None)
        for measure, before in first.performance.items():
            if (after := second.performance.get(measure)) is not None:
                pairs = (np.array([getattr(after, end), getattr(before, end)]) for end in ("value", "low", "high"))
                change = map(float, combine_limits([1.0, -1.0], *pairs))  # limits from those of both (Zou and Donner 2008)
                performance.append((label, name, measure, before.value, after.value, *change))
        summaries += _summary_changes({"label": label, "compared": name}, first.summaries, second.summaries)
    first_labels = {name: next(iter(by_label.values())) for name, by_label in subjects.items()}
    sizes = {name: (sums.rows, sums.patients) for name, sums in first_labels.items()}
    rules, one = {name: sums.decision for name, sums in first_labels.items()}, first_labels[reference]
    tables = _comparison_tables(blocks, performance, one.level)
    found = pd.DataFrame(summaries, columns=[*CHANGE_KEYS, *CHANGE_NUMBERS, "note"])
    return Changes(reference, tuple(names), False, *tables, sizes, rules, one.level, {}, one.intersections, found)


def _summary_changes(keys: Mapping[str, str], first: pd.DataFrame, second: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """The summaries that both sides have, and their changes, with limits from those of both (Zou and Donner 2008).

    On the same patients both sides vary together, which the limits leave out: they are wider than needed.
    """
    for row in first.to_dict("records"):
        of_each = SUMMARIES[row["measure"]].of_each_group
        same = (second["measure"] == row["measure"]) & (second["attribute"] == row["attribute"])
        same &= (second["group"] == row["group"]) | (not of_each)
        for other in second[same].to_dict("records")[:1]:
            pairs = (np.array([other[end], row[end]], dtype=np.float64) for end in ("value", "low", "high"))
            change = dict(zip(("value", "low", "high"), map(float, combine_limits([1.0, -1.0], *pairs)), strict=True))
            named = {name: row[name] if of_each else "" for name in ("group", "reference")}
            sides = {"first": row["value"], "second": other["value"]} | change
            about = {"measure": row["measure"], "attribute": row["attribute"], "note": row["note"] or other["note"]}
            yield {**keys, **about, **named, **sides}


_Change = tuple[FloatArray, FloatArray, SignedSum, FloatArray]  # of each group: rates before and after, their change, patients
_Block = tuple[pd.DataFrame, SignedSum]  # rows of a table, and their changes


def _blocks(
    keys: Mapping[str, str],
    levels: Sequence[str],
    measures: Sequence[str],
    change_of: Callable[[str], _Change],
    min_patients: int,
    by_patient: bool,
) -> Iterator[_Block]:
    """The changes of one attribute's gaps, with one row per group except the reference, and of its rates, with one row per group."""
    for measure in (*measures, *RATES_COMPARED):
        first, second, change, counts = change_of(RATES_COMPARED.get(measure, measure))
        is_gap = measure not in RATES_COMPARED
        if is_gap:
            first, second, change = first[1:] - first[0], second[1:] - second[0], change[1:].minus(change[:1])
            counts = np.minimum(counts[1:], counts[0])
        usable = (counts >= min_patients) & ~np.isnan(change.total)
        rows = {
            **keys,
            "measure": measure,
            "group": list(levels[1:] if is_gap else levels),
            "reference": levels[0],
            "first": np.where(usable, first, np.nan),
            "second": np.where(usable, second, np.nan),
            "patients": counts.astype(int),
            "few": usable & (counts < FEW_PATIENTS),
            "note": np.where(
                usable, "", f"{INSUFFICIENT_DATA}: fewer than {min_patients} {'patients' if by_patient else 'rows'} in a cell"
            ),
        }
        yield pd.DataFrame(rows), change


def _comparison_tables(
    blocks: Sequence[_Block], performance: Sequence[tuple[Any, ...]], level: float
) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """The tables of gaps, rates and performance."""
    gap_blocks, rate_blocks = ([own for own in blocks if (own[0]["measure"].iloc[0] in RATES_COMPARED) == rate] for rate in (False, True))
    gaps, rates = _with_tests(gap_blocks, level), _with_tests(rate_blocks, level)
    overall = pd.DataFrame(performance, columns=["label", "compared", "measure", *CHANGE_NUMBERS])
    return gaps, rates.rename(columns={"measure": "rate"}), overall


def _with_tests(blocks: Sequence[tuple[pd.DataFrame, SignedSum]], level: float) -> pd.DataFrame:
    """All rows, with p-values adjusted together and with simultaneous intervals over all of them."""
    columns = [*CHANGE_KEYS, *CHANGE_NUMBERS, *CHANGE_TESTS, "patients", "few", "note"]
    if not blocks:  # no gap was asked for
        return pd.DataFrame(columns=columns).astype({"clear": bool, "few": bool})
    frame = pd.concat([rows for rows, _ in blocks], ignore_index=True)
    changes, known = concatenate_sums([change for _, change in blocks]), frame["first"].notna().to_numpy()

    numbers = {name: np.where(known, end, np.nan) for name, end in zip(("value", "low", "high"), changes.limits(level), strict=True)}
    tested = family_decisions(_keyed(frame.assign(**numbers)), changes, level)
    frame = tested.assign(label=frame["label"], measure=frame["measure"])
    return frame[columns]


def _keyed(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows as `comparisons_of` counts them: label and compared name as one key, and a rate under the name of its gap."""
    key = pd.Series(list(zip(frame["label"], frame["compared"], strict=True)), index=frame.index, dtype=object)
    return frame.assign(label=key, measure=[RATES_COMPARED.get(name, name) for name in frame["measure"]])


def _auroc_change(first: Scores, second: Scores, level: float) -> tuple[float, float, float, float, float]:
    """AUROC of both scores on the same rows and its change, from the limits of each and their correlation (Zou and Donner 2008).

    The correlation is that of the placements (DeLong, DeLong and Clarke-Pearson 1988), added up by patient (Obuchowski 1997). It is 0 if
    one AUROC has no observed variance, as with perfect separation, which other patients need not show.
    """
    units = units_of(first.patients, len(first))
    ranked = [Ranking(scores.rank, scores.y, units, first.weight) for scores in (first, second)]
    (before, *_), (after, *_) = limits = [each.auroc(level) for each in ranked]
    if np.isnan([before, after]).any():
        return before, after, np.nan, np.nan, np.nan
    influences = [each.by_patient(each.weighted.influence("auroc")) for each in ranked]
    lengths = [float(np.sqrt((influence**2).sum())) for influence in influences]
    shared = float(influences[0] @ influences[1]) / (lengths[0] * lengths[1]) if min(lengths) > 0 else 0.0
    correlation = np.array([[1.0, shared], [shared, 1.0]])
    areas, below, above = np.array(limits).T
    value, low, high = combine_limits([-1.0, 1.0], areas, below, above, correlation)
    return before, after, float(value), float(low), float(high)


# Whether two sets of scores cover the same patients, and whether two audits are compatible


def matched_rows(first: Scores, second: Scores, first_name: str, second_name: str, paired: bool | None) -> Scores | None:
    """The second scores in the row order of the first if both are of the same rows; None if they are of different patients.

    Rows without ids are numbered; they count as the same if labels and groups agree row by row. Raises an error if the ids contradict
    `paired`, if only some patients are in both sets, or if nothing shows which of the two it is.
    """
    names, (ids, other_ids) = f"{first_name} and {second_name}", (set(first.ids), set(second.ids))
    order, where, problem = np.arange(0), f"in {second_name} than in {first_name}", ""
    if ids != other_ids or len(first) != len(second):
        problem = (
            f"the same rows are needed in both: {first_name} has {len(ids - other_ids):,} that {second_name} lacks, and "
            f"{second_name} has {len(other_ids - ids):,} that {first_name} lacks. Keep the rows that both models scored, with the "
            "same ids (data.id)."
        )
    else:
        position = {key: k for k, key in enumerate(second.ids)}
        order = np.array([position[key] for key in first.ids], dtype=np.int64)
        groups = [[(a.name, a.levels, a.codes[rows].tolist()) for a in s.attributes] for s, rows in ((first, ...), (second, order))]
        if mislabelled := int((first.y != second.y[order]).sum()):
            problem = f"{mislabelled:,} of {len(first):,} rows have another label {where}. Use the same labels for both."
        elif groups[0] != groups[1]:
            problem = f"some rows are in another group {where}. Use the same group columns, bins and reference for both."
    if not problem and paired is not False:
        return second.take(order)
    if paired:
        raise BadInput(problem)
    numbered = any(own.patients is None and np.array_equal(own.ids, np.arange(len(own))) for own in (first, second))
    if paired is None and numbered:
        raise BadInput(
            f"{names} may be of the same patients or of different ones: they have no ids, and their rows differ. State which with "
            "--set compare.paired=true or false (paired=True or False), or name a column of patient ids, --patient."
        )
    keys = [set(own.ids if own.patients is None else own.patients) for own in (first, second)]
    if not numbered and (shared := len(keys[0] & keys[1])):
        unit = "patients" if first.patients is not None else "rows"
        raise BadInput(
            f"{shared:,} {unit} are in both {names}, so they are not different {unit}. Leave them out of one, or compare the models on the "
            "rows that both have."
        )
    return None


def with_common_groups(subjects: Mapping[str, Mapping[str, AuditSums]]) -> dict[str, dict[str, AuditSums]]:
    """The audits with the groups that all of them have."""

    def restricted(audit: AuditSums, label: str) -> AuditSums:
        audits = [by_label[label] for by_label in subjects.values() if label in by_label]
        groups, sums = {}, {}
        for attribute, levels in audit.groups.items():
            shared = [group for group in levels if all(group in one.groups.get(attribute, ()) for one in audits)]
            groups[attribute] = tuple(shared)
            sums[attribute] = audit.sums[attribute].taken([levels.index(group) for group in shared])
        return replace(audit, groups=groups, sums=sums)

    return {name: {label: restricted(audit, label) for label, audit in by_label.items()} for name, by_label in subjects.items()}


def incompatibilities(
    first_name: str, first_audits: Mapping[str, AuditSums], second_name: str, second_audits: Mapping[str, AuditSums]
) -> list[str]:
    """The reasons why two audits, each by label, cannot be compared."""
    names = f"{first_name} and {second_name}"
    if set(first_audits) != set(second_audits):
        labels = f"{', '.join(first_audits)} and {', '.join(second_audits)}"
        return [f"{names} are of different labels: {labels}. Audit the same labels."]
    problems = []
    for label, first in first_audits.items():
        second, where = second_audits[label], f"{names}{f', {label}' if len(first_audits) > 1 else ''}"
        if first.digest is not None and first.digest == second.digest:
            problems.append(
                f"{where}: these are the same {first.rows:,} rows, so they are not two samples of patients. Compare the models by row: "
                "equipoise compare FILE --score OLD --score NEW, or eq.compare({...}) with their scores."
            )
        checks: list[tuple[str, set[Any], set[Any], str]] = [
            ("measures", set(first.measures), set(second.measures), "Audit both with the same --measure."),
            ("attributes", set(first.groups), set(second.groups), "Audit both with the same --group."),
            ("confidence levels", {first.level}, {second.level}, "Audit both with the same audit.level."),
            ("weighting", {first.weighted}, {second.weighted}, "Audit both with or without data.weight."),
        ]
        for what, first_value, second_value, remedy in checks:
            if first_value != second_value:
                shown = " and ".join(", ".join(sorted(map(str, each))) for each in (first_value, second_value))
                problems.append(f"{where}: different {what}: {shown}. {remedy}")
        for attribute in first.groups.keys() & second.groups.keys():
            references = first.groups[attribute][:1], second.groups[attribute][:1]
            if references[0] != references[1]:
                shown = " and ".join(", ".join(reference) or "none" for reference in references)
                problems.append(f"{where}: different references of {attribute}: {shown}. Audit both with the same --reference.")
            if unmatched := set(first.groups[attribute]) ^ set(second.groups[attribute]):
                problems.append(
                    f"{where}: different groups of {attribute}; not in both: {', '.join(sorted(unmatched))}. Write groups in the same way, "
                    "or leave out those that are not in both with --set compare.common_groups=true (common_groups=True)."
                )
    return problems
