"""Comparisons of models, gaps over time, and conditions of a pipeline in words."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from equipoise.comparison import ScoreComparison
from equipoise.data import ReturningPatients
from equipoise.measures import FEW, Condition, Monitoring, Verdict
from equipoise.report.text import amount, count, percent, plural, printable, sentence, short_name
from equipoise.report.wording.names import GroupNames, distinct, gap_words


def returning_words(returning: ReturningPatients) -> str:
    """The number of patients who were in earlier periods, and the consequence for limits that hold over all periods."""
    if not returning.patients:
        return f"none of {returning.of_patients:,} patients was in an earlier period"
    share = returning.patients / returning.of_patients
    who = f"{returning.patients:,} of {returning.of_patients:,} patients ({share:.1%}) were in an earlier period"
    if returning.left_out:
        return f"{who}; their {returning.rows:,} rows were left out, so that each patient counts in one period"
    return f"{who} and count again: limits and alarms over all periods are then too narrow (--set history.returning=first leaves them out)"


def few_changes_words(contrast: ScoreComparison) -> str:
    """The meaning of the mark of few patients, who are counted whatever their number of rows."""
    return f"fewer than {FEW} {'rows' if all(patients is None for _, patients in contrast.sizes.values()) else 'patients'}"


def contrast_conclusion(contrast: ScoreComparison, names: Mapping[str, str] | None = None) -> str:
    """The largest clear change of a gap in one sentence, preferably of a single attribute, and how many changes are clear."""
    gaps = contrast.gaps[contrast.gaps["value"].notna() & contrast.gaps["measure"].isin(distinct(contrast.gaps["measure"].unique()))]
    comparisons = plural(contrast.comparisons, "comparison")
    if not len(gaps):
        return "No change in a difference could be estimated: insufficient data."
    clear = gaps[gaps["clear"].astype(bool)]
    if not len(clear):
        return f"No change in a difference between groups is clear after adjustment for {comparisons}."
    single = clear[~clear["attribute"].isin(contrast.intersections)]
    row = clear.loc[(single if len(single) else clear)["value"].abs().idxmax()]
    low, high = (amount(row[f"simultaneous_{end}"], "points") for end in ("low", "high"))
    interval = f"simultaneous {percent(contrast.level)} interval of the change {low} to {high}"
    return (
        f"{_difference(row, names)} is {amount(row['second'], 'points')} points with {short_name(row['compared'])} and "
        f"{amount(row['first'], 'points')} with {short_name(contrast.first)} ({interval}); "
        f"{contrast.findings} of {comparisons} {'is' if contrast.findings == 1 else 'are'} clear."
    )


def _difference(row: "pd.Series[Any]", names: Mapping[str, str] | None) -> str:
    called = GroupNames(names or {})
    label = f" for {short_name(row['label'])}" if row["label"] else ""
    return f"The difference in {gap_words(str(row['measure']))}{label} between {called(row['group'])} and {called(row['reference'])}"


def differ_words(contrast: ScoreComparison, names: Mapping[str, str] | None = None) -> Iterator[str]:
    """One sentence per compared model: how many decisions differ on the same rows, of all patients and by group."""
    called = GroupNames(names or {})
    for name, by_attribute in contrast.affected.items():
        affected = by_attribute[0]
        expected, total = affected.expected, affected.counts[-1]
        by_group = "; ".join(
            f"{called(row.group) if row.group else 'group unknown'}: {count(row.detected, expected)} detected and "
            f"{count(row.missed, expected)} missed, {count(row.cleared, expected)} cleared and "
            f"{count(row.alarmed, expected)} falsely flagged"
            for row in affected.counts[:-1]
        )
        patients = "" if affected.patients is None else f" ({affected.patients:,} patients)"
        decisions = f"{count(total.changed, expected)} of {total.positives + total.negatives:,} decisions{patients}"
        yield f"{decisions} differ with {short_name(name)}. {sentence(by_group)}."


def monitoring_conclusion(monitoring: Monitoring, names: Mapping[str, str] | None = None) -> str:
    """The strongest alarm in one sentence, or that there is none."""
    gaps = monitoring.gaps
    changed, shown = gaps["changed"].astype(bool), gaps["shown"].astype(bool)
    row: pd.Series[Any]
    if changed.any():
        row = gaps.loc[gaps["evidence"][changed].idxmax()]
        state = (
            f"has changed, most likely since {row['since']}: from {amount(row['before'], 'points')} to {amount(row['after'], 'points')} "
            f"points (reported in {row['changed_in']})"
        )
    elif shown.any():
        row = gaps.loc[gaps["value"][shown].abs().idxmax()]
        low, high = amount(row["low"], "points"), amount(row["high"], "points")
        state = f"is {amount(row['value'], 'points')} points over all periods ({low} to {high})"
    else:
        none = "No difference between groups, and no change of one, is shown so far, which does not show that there is none"
        return f"{none}; the limits state what remains possible."
    more = int((changed | shown).sum()) - 1
    others = f" {more} more gap{'' if more == 1 else 's'} raised an alarm." if more else ""
    return f"{_difference(row, names)} {state}.{others}"


def state_words(row: Mapping[Any, Any]) -> str:
    """The state of one gap over time in a few words."""
    if np.isnan(row["value"]):
        return ""
    states = [f"shown in {row['shown_in']}"] if row["shown"] else []
    if row["changed"]:
        states.append(f"changed since {row['since']}: {amount(row['before'], 'points')} to {amount(row['after'], 'points')}")
    return "; ".join(states) or "no alarm"


def condition_words(condition: Condition, verdict: Verdict) -> str:
    """The reason for which a condition fails a pipeline, in one sentence; empty if it does not."""
    if verdict.holds:
        reasons = []
        for clause, fact, value in verdict.why:
            groups = f" of {fact.group} minus {fact.reference}" if fact.reference else f" of {fact.group}" if fact.group else ""
            where = "".join(f", {place}" for place in fact.where[:2] if place)  # the label, and the compared model
            name = fact.name if clause.field == "value" else f"{fact.name}.{clause.field}"
            state = "holds" if not clause.operator else f"is {value:.4g}"
            reasons.append(printable(f"{f'|{name}|' if clause.absolute else name}{groups}{where} {state}"))
        return f"{' and '.join(reasons)}: fails because of --fail-if {condition.text!r}."
    if verdict.unknown:
        lacking = ", ".join(repr(clause.text) for clause in verdict.unknown)
        return f"{lacking} cannot be checked, because no group has sufficient data: fails because of --fail-if {condition.text!r}."
    return ""
