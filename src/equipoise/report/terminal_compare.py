"""Comparisons and gaps over time in a terminal: the conclusion first, then one table. Names are text, never markup."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from equipoise.comparison import ScoreComparison
from equipoise.measures import Monitoring
from equipoise.report.terminal_audit import CLEAR_MARK, FEW_MARK, between, marks, points, table_of
from equipoise.report.text import how_many, number, percent, plural, printable, short_name
from equipoise.report.wording.comparisons import contrast_conclusion, differ_words, few_changes_words, monitoring_conclusion, state_words
from equipoise.report.wording.names import PERFORMANCE, RATES, distinct, gap_words

BARS = "▁▂▃▄▅▆▇█"
MOST_GAPS = 12  # on one screen
KEYS = ["label", "measure", "attribute", "group"]  # of one gap over time


def contrast_view(contrast: ScoreComparison, verbose: bool = False) -> RenderableType:
    """A comparison: sizes, the conclusion, changes of gaps and, with `verbose`, changes of the rates of each group."""
    sizes = "; ".join(
        f"{short_name(name)}: {how_many(rows, patients)}, positive if {printable(contrast.decisions[name])}"
        for name, (rows, patients) in contrast.sizes.items()
    )
    parts: list[RenderableType] = [Text(sizes + "."), Text(contrast_conclusion(contrast), style="bold")]
    parts += [Text(line) for line in differ_words(contrast)]
    gaps = contrast.gaps[contrast.gaps["measure"].isin(distinct(contrast.gaps["measure"].unique()))]
    shown = gaps if verbose or len(gaps) <= MOST_GAPS else gaps.loc[sorted(gaps["value"].abs().nlargest(MOST_GAPS).index)]
    title = f"Gaps, group minus reference, in points, with {percent(contrast.level)} intervals of the change"
    parts += ["", _change_table(title, contrast, shown, of_gaps=True, verbose=verbose)]
    if verbose:
        parts += ["", _change_table("Rates of each group, in points", contrast, contrast.rates, of_gaps=False, verbose=verbose)]
    if len(contrast.performance):
        parts += ["", _performance_table(contrast)]
    few = f" {FEW_MARK}: {few_changes_words(contrast)}." if contrast.gaps["few"].any() else ""
    more = "" if verbose else f" --verbose shows {'all gaps and ' if len(shown) < len(gaps) else ''}the rates of each group."
    note = f"{CLEAR_MARK}: the change is clear of 0 after adjustment for {plural(contrast.comparisons, 'comparison')} (Holm).{few}{more}"
    assumed = "" if contrast.paired else " Assumed: no patient is in more than one of them."
    return Group(*parts, "", Text(note + assumed, style="dim"))


def _change_table(title: str, contrast: ScoreComparison, rows: pd.DataFrame, *, of_gaps: bool, verbose: bool) -> Table:
    table = table_of(title, text=["gap in", "between"] if of_gaps else ["rate", "group"])
    several = len(contrast.others) > 1
    for name in (short_name(contrast.first), _second_head(contrast)):
        table.add_column(Text(name), justify="right", overflow="fold")
    table.add_column("change", justify="right", no_wrap=True)
    table.add_column("")
    if verbose:
        table.add_column("adjusted p", justify="right")
    for row in rows.to_dict("records"):
        words = gap_words(str(row["measure"])) if of_gaps else RATES[str(row["rate"])].name
        groups = between(row) if of_gaps else short_name(row["group"])
        compared = f" ({short_name(row['compared'])})" if several else ""
        sides = ["" if np.isnan(row[side]) else number(100 * row[side], 1, sign=of_gaps) for side in ("first", "second")]
        p = ["" if np.isnan(row["p_adjusted"]) else f"{row['p_adjusted']:.3f}"] if verbose else []
        table.add_row(Text(f"{_label(row, rows)}{words}"), Text(f"{groups}{compared}"), *sides, points(row), marks(row), *p)
    return table


def _second_head(contrast: ScoreComparison) -> str:
    """The head of the column of the compared model: its name, unless there are several, which each row names."""
    return "compared" if len(contrast.others) > 1 else short_name(contrast.others[0])


def _performance_table(contrast: ScoreComparison) -> Table:
    table = table_of("Performance of all patients")
    for head in ("measure", short_name(contrast.first), _second_head(contrast), "change"):
        table.add_column(Text(head), justify="left" if head == "measure" else "right")
    for row in contrast.performance.to_dict("records"):
        measure = f"{_label(row, contrast.performance)}{PERFORMANCE[str(row['measure'])]}"
        compared = f" ({short_name(row['compared'])})" if len(contrast.others) > 1 else ""
        change = "" if np.isnan(row["value"]) else f"{row['value']:+.3f} [{row['low']:+.3f}, {row['high']:+.3f}]"
        table.add_row(Text(f"{measure}{compared}"), f"{row['first']:.3f}", f"{row['second']:.3f}", change)
    return table


def monitoring_view(monitoring: Monitoring, verbose: bool = False) -> RenderableType:
    """Gaps over time: the conclusion, one row per gap with its course, and, with `verbose`, every period."""
    head = f"{len(monitoring.periods)} periods, {monitoring.periods[0]} to {monitoring.periods[-1]}."
    limits = f"with limits that hold in all periods ({percent(monitoring.level)})"
    title = f"Gaps over all periods, group minus reference, in points, {limits}"
    table = table_of(title, text=["gap in", "between"], numbers=["all periods"])
    table.add_column("course", no_wrap=True)
    table.add_column("", overflow="fold")
    for row in monitoring.gaps.to_dict("records"):
        course = monitoring.frame[(monitoring.frame[KEYS] == [row[key] for key in KEYS]).all(axis=1)]
        table.add_row(
            Text(f"{_label(row, monitoring.gaps)}{gap_words(str(row['measure']))}"),
            Text(between(row)),
            points({**row, "clear": row["shown"]}),
            sparkline(course["value"]),
            Text(state_words(row), style="bold" if row["changed"] or row["shown"] else ""),
        )
    parts: list[RenderableType] = [Text(head), Text(monitoring_conclusion(monitoring), style="bold"), "", table]
    if verbose:
        parts += ["", _period_table(monitoring)]
    note = (
        f"The chance of any false alarm, over {plural(monitoring.comparisons, 'gap')} and all periods, including future ones, is at most "
        f"{percent(1 - monitoring.level)}, if each patient is in one period only.{'' if verbose else ' --verbose shows every period.'}"
    )
    return Group(*parts, "", Text(note, style="dim"))


def _period_table(monitoring: Monitoring) -> Table:
    title = f"Each period, with its own {percent(monitoring.level)} interval and the limits at which it would raise an alarm on its own"
    table = table_of(title, text=["gap", "period"], numbers=["points", "limits", "so far", "evidence"])
    for row in monitoring.frame.to_dict("records"):
        name = f"{_label(row, monitoring.gaps)}{row['measure']}, {short_name(row['group'])}"
        limits = "" if np.isnan(row["limit_low"]) else f"{100 * row['limit_low']:+.1f} to {100 * row['limit_high']:+.1f}"
        so_far = "" if np.isnan(row["so_far"]) else f"{100 * row['so_far']:+.1f}"
        table.add_row(Text(name), str(row["period"]), points({**row, "clear": False}), limits, so_far, f"{row['evidence']:.2g}")
    return table


def sparkline(values: Iterable[float]) -> str:
    """Values as block characters, from the lowest to the highest; a dot for NaN.

    >>> sparkline([0.0, 0.5, 1.0, float("nan")])
    '▁▅█·'
    """
    listed = [float(value) for value in values]
    known = [value for value in listed if not np.isnan(value)]
    if not known:
        return "·" * len(listed)
    low, width = min(known), max(max(known) - min(known), 1e-12)
    return "".join("·" if np.isnan(v) else BARS[min(int((v - low) / width * len(BARS)), len(BARS) - 1)] for v in listed)


def _label(row: Mapping[Any, Any], rows: pd.DataFrame) -> str:
    """The label of a row, if there are several in the table."""
    return f"{short_name(row['label'])}: " if row["label"] and len(set(rows["label"])) > 1 else ""
