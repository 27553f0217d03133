"""An audit on one screen of a terminal: the conclusion, one table of groups, one of gaps; and the cells that other tables share.

Names are text, never markup.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from equipoise.measures import Audit, LabelAudit
from equipoise.report.text import INSUFFICIENT, amount, percent, plural, printable, rows_counted, sentence, short_name, span
from equipoise.report.wording.audits import (
    BY_ROW,
    baseline_words,
    decisions_words,
    few_words,
    largest_gap,
    lead,
    left_out_words,
    overview_answer,
    sampled_words,
    unflagged_words,
    varying_words,
)
from equipoise.report.wording.names import PERFORMANCE, RATES, attributes_of, distinct, gap_words, group_words

CLEAR_MARK = "*"  # of a gap that is clear after adjustment; it is also bold, which a file does not show
FEW_MARK = "†"  # of an estimate from few patients
MOST_GROUPS, MOST_GAPS = 10, 9  # rows of each table on one screen
NARROW = 76  # columns of a terminal below which counts of positives are left out
SUMMARISED = {"balanced_accuracy": "share", "auroc": "area"}  # performance in the summary, and its format
Row: TypeAlias = "Mapping[Any, Any] | pd.Series[Any]"


def audit_summary(audit: Audit, names: Mapping[str, str] | None = None) -> RenderableType:
    """The audit on one screen, of several labels with one row per label; `names` are words for groups, as on the page."""
    return _label_summary(audit.only, names) if len(audit.labels) == 1 else _labels_summary(audit)


def _label_summary(audit: LabelAudit, names: Mapping[str, str] | None) -> RenderableType:
    gaps = shown_gaps(audit.gaps)
    groups = shown_groups(audit, gaps)
    parts: list[RenderableType] = headline(audit, names)
    if performance := _performance_line(audit):
        parts.append(Text(performance))
    parts += ["", _GroupTable(groups, audit.settings.level)]
    if len(gaps):
        parts += ["", _gap_table(gaps, audit.settings.level)]
    notes = _notes(audit, hidden_groups=len(audit.groups) - len(groups), hidden_gaps=len(audit.gaps) - len(gaps))
    return Group(*parts, "", *(Text(note, style="dim") for note in notes))


def _labels_summary(audit: Audit) -> RenderableType:
    one, first = audit.kind.one, next(iter(audit.labels.values()))
    table = table_of(f"{len(audit.labels)} {audit.kind}, with {percent(first.settings.level)} intervals", text=[one])
    table.add_column("rows", justify="right")
    table.add_column("balanced accuracy, %", justify="right", max_width=len("accuracy, %"))
    table.add_column("largest gap", overflow="fold")
    table.add_column("points", justify="right", no_wrap=True)
    table.add_column("")
    for label, own in audit.labels.items():
        estimate, gap = own.estimates.get("balanced_accuracy"), largest_gap(own)
        accuracy = "" if estimate is None else f"{100 * estimate.value:.1f}"
        cells: list[RenderableType] = []
        if gap is not None:
            cells = [Text(f"{gap_words(str(gap['measure']))}: {between(gap)}"), points(gap), marks(gap)]
        table.add_row(Text(short_name(label)), f"{own.rows:,}", accuracy, *cells)
    head = f"Audit of {short_name(audit.name)}, {len(audit.labels)} {audit.kind}. {decisions_words(audit.labels)}"
    parts: list[RenderableType] = [Text(printable(head)), Text(overview_answer(audit)[1], style="bold")]
    if warning := unflagged_words(audit.labels, audit.kind):
        parts.append(Text(printable(warning), style="yellow"))
    comparisons = plural(first.comparisons, "comparison")
    clear = f"{CLEAR_MARK}: clear of 0 after adjustment for {comparisons} of all {audit.kind} (Holm)."
    largest = "Largest gap: of the clear ones if there are any, and among these of single attributes before intersections."
    notes = f"{_unit_words(first)} {clear} {largest} --verbose shows the audit of each {one}."
    return Group(*parts, "", table, Text(notes, style="dim"))


# Cells and lines that several tables share


def table_of(title: str, *, text: Iterable[str] = (), numbers: Iterable[str] = ()) -> Table:
    """An empty table in the style of all tables, with columns of text, which is wrapped, and of numbers, which are not."""
    table = Table(box=box.SIMPLE_HEAD, title=Text(title), title_justify="left", title_style="bold", pad_edge=False, show_edge=False)
    for column in text:
        table.add_column(column, overflow="fold")
    for column in numbers:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def points(row: Row) -> Text:
    """A gap with its interval in percentage points, bold if it is clear."""
    if np.isnan(row["value"]):
        return Text(INSUFFICIENT, style="yellow")
    value, low, high = (100 * row[end] for end in ("value", "low", "high"))
    return Text(f"{value:+.1f} [{low:+.1f}, {high:+.1f}]", style="bold" if row["clear"] else "")


def marks(row: Row) -> str:
    """The marks of a gap: whether it is clear, and whether it is from few patients."""
    return (CLEAR_MARK if row["clear"] else "") + (FEW_MARK if row["few"] else "")


def share(value: float, low: float, high: float, few: bool) -> Text:
    """A rate with its interval in percent."""
    if np.isnan(value):
        return Text(INSUFFICIENT, style="yellow")
    return Text(f"{100 * value:.1f} [{100 * low:.1f}, {100 * high:.1f}]{FEW_MARK if few else ''}")


def between(row: Row) -> str:
    """The two groups of a gap."""
    return f"{short_name(row['group'])} vs {short_name(row['reference'])}"


def headline(audit: LabelAudit, names: Mapping[str, str] | None = None, *, whole: bool = False) -> list[RenderableType]:
    """The name, size and decision rule of the audit, and the sentence that leads its page too; the second one only if `whole`."""
    size = f"{audit.rows:,} rows" + (f" of {audit.patients:,} patients" if audit.patients is not None else "")
    head = Text.assemble("Audit of ", (short_name(audit.name), "bold"), f": {size}. Positive if {printable(audit.rule.describe())}.")
    first, *further = lead(audit, group_words(names, attributes_of(audit)))[1]
    sentences = [Text(first, style="bold"), *(map(Text, further) if whole else ())]
    parts: list[RenderableType] = [head, *(sentences if len(audit.gaps) else ())]
    if warning := unflagged_words({audit.name: audit}):
        parts.append(Text(printable(warning), style="yellow"))
    return [*parts, *(Text(line) for line in baseline_words(audit.baseline, audit.settings.level))]


def about_rows(audit: LabelAudit) -> Iterator[str]:
    """Notes on the rows: missing groups, patients in several groups, and samples of very large tables."""
    for name, missing in audit.missing.items():
        if missing:
            yield f"{short_name(name)}: {missing:.1%} of rows have no value; they count for performance, not for gaps."
    yield from (f"{printable(varying_words(varying))}." for varying in audit.varying)
    yield from filter(None, [left_out_words(audit)])
    yield from map(printable, sampled_words(audit))


def about_intervals(audit: LabelAudit) -> str:
    """The kind of intervals, and the meaning of the marks."""
    text = _unit_words(audit)
    if len(audit.gaps):
        text += f" {CLEAR_MARK}: clear after adjustment for {plural(audit.comparisons, 'comparison')} (Holm)."
    if audit.groups["few"].str.len().sum() + audit.gaps["few"].sum():
        text += f" {FEW_MARK}: {few_words(audit.rows, audit.patients, audit.weighted)}."
    return text + (" Rates are weighted by the sample weights." if audit.weighted else "")


def _unit_words(audit: LabelAudit) -> str:
    return f"Score intervals by {f'row: {BY_ROW}' if audit.patients is None else 'patient'}."


def shown_gaps(gaps: pd.DataFrame) -> pd.DataFrame:
    """The gaps that fit on one screen, without mirrored measures: all of them, or the largest of each attribute and measure.

    The average of two gaps that are both shown (aod of eod and fpr_gap) is left out.
    """
    measures = distinct(gaps["measure"].unique())
    if {"eod", "fpr_gap", "aod"} <= set(measures):
        measures.remove("aod")
    gaps = gaps[gaps["measure"].isin(measures)].reset_index(drop=True)
    if len(gaps) > MOST_GAPS:
        size = gaps["value"].abs().fillna(-1)
        gaps = gaps.loc[sorted(size.groupby([gaps["attribute"], gaps["measure"]], sort=False).idxmax())]
    if len(gaps) > MOST_GAPS:
        gaps = gaps.loc[sorted(gaps["value"].abs().nlargest(MOST_GAPS).index)]
    return gaps


def shown_groups(audit: LabelAudit, gaps: pd.DataFrame) -> pd.DataFrame:
    """The groups that fit on one screen: all, or those of single attributes, first references and groups with a gap in `gaps`."""
    groups = audit.groups.rename_axis("group").reset_index()
    if len(groups) > MOST_GROUPS:
        groups = groups[~groups["attribute"].isin(audit.intersections)]
    if len(groups) <= MOST_GROUPS:
        return groups
    compared = set(zip(gaps["attribute"], gaps["group"].astype(str), strict=True)) if len(gaps) else set()
    first = [bool(r) or (a, str(g)) in compared for r, a, g in zip(groups["reference"], groups["attribute"], groups["group"], strict=True)]
    order = groups.assign(_first=first).sort_values(["_first", "n"], ascending=False, kind="stable").index[:MOST_GROUPS]
    return groups.loc[sorted(order)]


# The parts of the summary


def _performance_line(audit: LabelAudit) -> str:
    values = []
    for name, estimate in audit.estimates.items():
        if name in SUMMARISED and not np.isnan(estimate.value):
            scale, digits, unit = (100, 1, "%") if SUMMARISED[name] == "share" else (1, 3, "")
            ends = f"{scale * estimate.low:.{digits}f} to {scale * estimate.high:.{digits}f}"
            values.append(f"{PERFORMANCE[name]} {scale * estimate.value:.{digits}f}{unit} ({ends})")
    for name, words in (("calibration_slope", "calibration slope"), ("calibration_intercept", "intercept")):
        if name in audit.estimates and not np.isnan(audit[name].value):
            estimate, kind = audit[name], RATES[name].kind
            values.append(f"{words} {amount(estimate.value, kind)} ({span(estimate.low, estimate.high, kind)})")
    return f"{sentence(', '.join(values))}." if values else ""


@dataclass(frozen=True)
class _GroupTable:
    """One row per group: counts, sensitivity and false positive rate."""

    rows: pd.DataFrame
    level: float

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        counts = ["n", "positives"] if options.max_width >= NARROW else ["n"]
        numbers = (*("rows" if count == "n" else count for count in counts), "sensitivity, %", "FPR, %")
        table = table_of(f"Groups, with {percent(self.level)} intervals", text=["group"], numbers=numbers)
        several = len(set(self.rows["attribute"])) > 1
        for row in self.rows.to_dict("records"):
            name = f"{short_name(row['attribute'])}: {short_name(row['group'])}" if several else short_name(row["group"])
            few = row["few"].split(", ")
            rates = [share(row[rate], row[f"{rate}_low"], row[f"{rate}_high"], rate in few) for rate in ("tpr", "fpr")]
            table.add_row(Text(f"{name}{' (ref.)' if row['reference'] else ''}"), *(rows_counted(row[count]) for count in counts), *rates)
        yield table


def _gap_table(gaps: pd.DataFrame, level: float) -> Table:
    title = f"Gaps, group minus reference, with {percent(level)} intervals"
    table = table_of(title, text=["gap in", "between"], numbers=["points"])
    table.add_column("")
    table.add_column("detectable", justify="right", no_wrap=True)
    for _, row in gaps.iterrows():
        name = str(row["measure"])
        words = "FPR" if name == "fpr_gap" else gap_words(name)
        detectable = "" if np.isnan(row["value"]) else "none" if np.isnan(row["detectable"]) else f"{100 * row['detectable']:.1f}"
        table.add_row(Text(words if words == name else f"{words} ({name})"), Text(between(row)), points(row), marks(row), detectable)
    return table


def _notes(audit: LabelAudit, hidden_groups: int, hidden_gaps: int) -> Iterator[str]:
    yield from about_rows(audit)
    if audit.assumed:
        chosen = ", ".join(f"{short_name(audit.references[name])} ({short_name(name)})" for name in audit.assumed)
        yield f"Reference: the largest group, {chosen}; choose another with --reference."
    more = [f"{count} more {name}" for count, name in ((hidden_groups, "groups"), (hidden_gaps, "gaps")) if count]
    rest = f"--verbose: {', '.join([*more, 'all rates'])}."
    yield f"{about_intervals(audit)} FPR: false positive rate. detectable: own interval, 80% power. {rest}"
