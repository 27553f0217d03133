"""Comparisons, gaps over time and conditions in words."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from equipoise.data import Returning
from equipoise.measures import Condition, Monitoring, Verdict
from equipoise.repair import Contrast
from equipoise.report.measure_words import crossed, distinct, gap_words
from equipoise.report.text import amount, count, percent, printable, sentence, short_name
from equipoise.report.wording import Called


def returning_words(found: Returning) -> str:
    """How many patients were in earlier periods, and what that means for limits that hold over all periods."""
    who = f"{found.patients:,} of {found.of_patients:,} patients ({found.patients / found.of_patients:.1%}) were in an earlier period"
    if not found.patients:
        return f"none of {found.of_patients:,} patients was in an earlier period"
    if found.left_out:
        return f"{who}; their {found.rows:,} rows were left out, so that each patient counts in one period"
    return f"{who} and count again: limits and alarms over all periods are then too narrow (--returning first leaves them out)"


def contrast_conclusion(found: Contrast, names: Mapping[str, str] | None = None) -> str:
    """The largest clear change of a gap in one sentence, of an intersection only where no other is clear, and how many are clear."""
    called = Called(names or {})
    gaps = found.gaps[found.gaps["value"].notna() & found.gaps["measure"].isin(distinct(found.gaps["measure"].unique()))]
    family = f"{found.comparisons:,} comparison{'' if found.comparisons == 1 else 's'}"
    if not len(gaps):
        return "No change of a difference could be estimated: insufficient data."
    clear = gaps[gaps["clear"].astype(bool)]
    if not len(clear):
        return f"No change of a difference between groups is clear after adjustment for {family}."
    single = clear[~clear["attribute"].isin(crossed(list(gaps["attribute"].unique())))]
    row = clear.loc[(single if len(single) else clear)["value"].abs().idxmax()]
    low, high = (amount(row[f"simultaneous_{end}"], "points") for end in ("low", "high"))
    ends = f"simultaneous {percent(found.level)} interval of the change {low} to {high}"
    of = f" for {short_name(row['label'])}" if row["label"] else ""
    return (
        f"The difference in {gap_words(str(row['measure']))}{of} between {called(row['group'])} and {called(row['reference'])} is "
        f"{amount(row['second'], 'points')} points with {short_name(row['compared'])} and {amount(row['first'], 'points')} with "
        f"{short_name(found.first)} ({ends}); {found.findings} of {family} {'is' if found.findings == 1 else 'are'} clear."
    )


def differ_words(found: Contrast, names: Mapping[str, str] | None = None) -> Iterator[str]:
    """How many decisions differ between models on the same rows, of all and by group."""
    called = Called(names or {})
    for name, each in found.affected.items():
        first = each[0]
        total = first.counts[-1]
        rows = total.positives + total.negatives
        by_group = "; ".join(
            f"{called(own.group) if own.group else 'group unknown'}: {count(own.detected, first.expected)} detected and "
            f"{count(own.missed, first.expected)} missed, {count(own.cleared, first.expected)} cleared and "
            f"{count(own.alarmed, first.expected)} falsely flagged"
            for own in first.counts[:-1]
        )
        patients = "" if first.patients is None else f" ({first.patients:,} patients)"
        changed = count(total.changed, first.expected)
        yield f"{changed} of {rows:,} decisions{patients} differ with {short_name(name)}. {sentence(by_group)}."


def monitoring_conclusion(found: Monitoring, names: Mapping[str, str] | None = None) -> str:
    """The strongest alarm in one sentence; that there is none otherwise."""
    called = Called(names or {})
    gaps = found.gaps
    changed, shown = gaps[gaps["changed"].astype(bool)], gaps[gaps["shown"].astype(bool)]
    if not len(changed) and not len(shown):
        return "No difference between groups is shown so far, and none has changed; the limits state what remains possible."
    row: pd.Series[Any]
    if len(changed):
        row = changed.loc[changed["evidence"].idxmax()]
        what = (
            f"has changed, most likely since {row['since']}: from {amount(row['before'], 'points')} to {amount(row['after'], 'points')} "
            f"points (reported in {row['changed_in']})"
        )
    else:
        row = shown.loc[shown["value"].abs().idxmax()]
        low, high = amount(row["low"], "points"), amount(row["high"], "points")
        what = f"is {amount(row['value'], 'points')} points over all periods ({low} to {high})"
    of = f" for {short_name(row['label'])}" if row["label"] else ""
    start = f"The difference in {gap_words(str(row['measure']))}{of} between {called(row['group'])} and {called(row['reference'])}"
    more = len(gaps[gaps["changed"].astype(bool) | gaps["shown"].astype(bool)]) - 1
    return f"{start} {what}.{f' {more} more gap' + ('' if more == 1 else 's') + ' raised an alarm.' if more else ''}"


def state_words(row: Mapping[Any, Any]) -> str:
    """What is known of one gap over time, in a few words."""
    if np.isnan(row["value"]):
        return ""
    said = [f"shown in {row['shown_in']}"] if row["shown"] else []
    if row["changed"]:
        said.append(f"changed since {row['since']}: {amount(row['before'], 'points')} to {amount(row['after'], 'points')}")
    return "; ".join(said) or "no alarm"


def condition_words(condition: Condition, verdict: Verdict) -> str:
    """Why a condition fails a pipeline, in one sentence; empty where it does not."""
    if verdict.holds:
        told = []
        for clause, fact, value in verdict.why:
            label, compared = (*fact.where, "", "")[:2]
            of = f" of {fact.group} minus {fact.reference}" if fact.reference else f" of {fact.group}" if fact.group else ""
            where = "".join(f", {each}" for each in (label, compared) if each)
            name = fact.name if clause.field == "value" else f"{fact.name}.{clause.field}"
            said = "holds" if not clause.operator else f"is {value:.4g}"
            told.append(printable(f"{f'|{name}|' if clause.absolute else name}{of}{where} {said}"))
        return f"{' and '.join(told)}: fails because of --fail-if {condition.text!r}."
    if verdict.unknown:
        lacking = ", ".join(repr(clause.text) for clause in verdict.unknown)
        return f"{lacking} cannot be checked, because no group has sufficient data: fails because of --fail-if {condition.text!r}."
    return ""
