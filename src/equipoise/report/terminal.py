"""An audit on one screen of a terminal: the conclusion, one table of groups, one of gaps. Names are text, never markup."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from equipoise.measures import Audit, Audits
from equipoise.report.measure_words import PERFORMANCE, RATES, gap_words
from equipoise.report.terminal_pieces import (
    CLEAR_MARK,
    about_rows,
    headline,
    how_sampled,
    marks,
    points,
    share,
    shown_gaps,
    shown_groups,
    table_of,
)
from equipoise.report.text import amount, percent, sentence, short_name, span
from equipoise.report.wording import comparison_words, largest_gap

SHARES = ("balanced_accuracy", "accuracy", "f1")  # performance that is printed as a percentage
NARROW = 76  # columns of a terminal below which counts of positives are left out


def audit_summary(audit: Audit) -> RenderableType:
    """The audit on one screen."""
    shown = shown_gaps(audit.gaps)
    parts: list[RenderableType] = headline(audit)
    if performance := _performance_line(audit):
        parts.append(Text(performance))
    groups = shown_groups(audit.groups, shown)
    parts += ["", _GroupRows(groups, audit.settings.level)]
    if len(shown):
        parts += ["", _gap_table(shown, audit.settings.level)]
    hidden = len(audit.groups) - len(groups), len(audit.gaps) - len(shown)
    return Group(*parts, "", *(Text(line, style="dim") for line in _notes(audit, *hidden)))


def audits_summary(audits: Audits) -> RenderableType:
    """The audits of several labels, or classes, on one screen, one row per label."""
    one = "class" if audits.kind == "classes" else "label"
    level = next(iter(audits.values())).settings.level
    table = table_of(f"{len(audits)} {audits.kind}, with {percent(level)} intervals")
    table.add_column(one, overflow="fold")
    table.add_column("rows", justify="right")
    table.add_column("balanced accuracy, %", justify="right", max_width=len("accuracy, %"))
    table.add_column("largest gap", overflow="fold")
    table.add_column("points", justify="right", no_wrap=True)
    table.add_column("")
    for label, audit in audits.items():
        estimate = audit.estimates.get("balanced_accuracy")
        row = largest_gap(audit.gaps)
        cells: list[RenderableType] = [] if row is None else [_between(row, f"{gap_words(str(row['measure']))}: "), points(row), marks(row)]
        table.add_row(Text(short_name(label)), f"{audit.rows:,}", "" if estimate is None else f"{100 * estimate.value:.1f}", *cells)
    first = next(iter(audits.values()))
    clear = f"{CLEAR_MARK}: clear of 0 after adjustment for {comparison_words(first)} of all {audits.kind} (Holm)."
    note = f"{clear} --verbose shows the audit of each {one}."
    return Group(table, Text(note, style="dim"))


def _performance_line(audit: Audit) -> str:
    found = []
    for name, e in audit.estimates.items():
        if name in PERFORMANCE and name in ("balanced_accuracy", "auroc") and not np.isnan(e.value):
            scale, digits, unit = (100, 1, "%") if name in SHARES else (1, 3, "")
            ends = f"{scale * e.low:.{digits}f} to {scale * e.high:.{digits}f}"
            found.append(f"{PERFORMANCE[name]} {scale * e.value:.{digits}f}{unit} ({ends})")
    for name, words in (("calibration_slope", "calibration slope"), ("calibration_intercept", "intercept")):
        if name in audit.estimates and not np.isnan(audit[name].value):
            e, kind = audit[name], RATES[name].kind
            found.append(f"{words} {amount(e.value, kind)} ({span(e.low, e.high, kind)})")
    text = ", ".join(found)
    return f"{sentence(text)}." if text else ""


@dataclass(frozen=True)
class _GroupRows:
    """One row per group: counts, sensitivity and false positive rate."""

    rows: pd.DataFrame
    level: float

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        wide = options.max_width >= NARROW
        table = table_of(f"Groups, with {percent(self.level)} intervals")
        table.add_column("group", overflow="fold")
        for name in ("rows", "positives") if wide else ("rows",):
            table.add_column(name, justify="right", no_wrap=True)
        for name in ("sensitivity, %", "FPR, %"):
            table.add_column(name, justify="right", no_wrap=True)
        several = len(set(self.rows["attribute"])) > 1
        for row in self.rows.itertuples():
            head = f"{short_name(row.attribute)}: {short_name(row.group)}" if several else short_name(row.group)
            counts = [f"{row.n:,}", f"{row.positives:,}"] if wide else [f"{row.n:,}"]
            few = row.few.split(", ")
            rates = [
                share(row.tpr, row.tpr_low, row.tpr_high, "tpr" in few),
                share(row.fpr, row.fpr_low, row.fpr_high, "fpr" in few),
            ]
            table.add_row(Text(f"{head}{' (ref.)' if row.reference else ''}"), *counts, *rates)
        yield table


def _gap_table(rows: pd.DataFrame, level: float) -> Table:
    table = table_of(f"Gaps, group minus reference, with {percent(level)} intervals")
    table.add_column("gap in", overflow="fold")
    table.add_column("between", overflow="fold")
    table.add_column("points", justify="right", no_wrap=True)
    table.add_column("")
    table.add_column("detectable", justify="right", no_wrap=True)
    for _, row in rows.iterrows():
        name = str(row["measure"])
        words = "FPR" if name == "fpr_gap" else gap_words(name)
        detectable = "" if np.isnan(row["value"]) else "none" if np.isnan(row["detectable"]) else f"{100 * row['detectable']:.1f}"
        table.add_row(Text(words if words == name else f"{words} ({name})"), _between(row), points(row), marks(row), detectable)
    return table


def _between(row: "pd.Series[float]", before: str = "") -> Text:
    return Text(f"{before}{short_name(row['group'])} vs {short_name(row['reference'])}")


def _notes(audit: Audit, groups: int, gaps: int) -> Iterator[str]:
    yield from about_rows(audit)
    if audit.assumed:
        chosen = ", ".join(f"{short_name(audit.references[name])} ({short_name(name)})" for name in audit.assumed)
        yield f"Reference: the largest group, {chosen}; choose another with --reference."
    more = [text for count, text in ((groups, f"{groups} more groups"), (gaps, f"{gaps} more gaps")) if count]
    rest = f"--verbose shows {' and '.join(more)}, and all measures." if more else "--verbose shows all measures."
    yield f"{how_sampled(audit)} FPR: false positive rate. detectable: the smallest gap found with 80% power. {rest}"
