"""Pieces of an audit in a terminal or a notebook: the rows shown, numbers with intervals, marks, notes. Names are text, never markup."""

from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd
from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from equipoise.measures import FEW, Audit
from equipoise.report.measure_words import crossed, distinct
from equipoise.report.text import printable, short_name
from equipoise.report.wording import baseline_words, comparison_words, conclusion, sampled_words, varying_words

CLEAR_MARK = "*"  # of a gap that is clear after adjustment; it is bold, which a file does not show
FEW_MARK = "†"  # of an estimate from few patients
MOST_GROUPS, MOST_GAPS = 10, 9  # rows of each table on one screen


def points(row: "Mapping[str, float] | pd.Series[float]") -> Text:
    if np.isnan(row["value"]):
        return Text("insufficient data", style="yellow")
    value, low, high = (100 * row[end] for end in ("value", "low", "high"))
    return Text(f"{value:+.1f} [{low:+.1f}, {high:+.1f}]", style="bold" if row["clear"] else "")


def marks(row: "Mapping[str, float] | pd.Series[float]") -> str:
    return (CLEAR_MARK if row["clear"] else "") + (FEW_MARK if row["few"] else "")


def share(value: float, low: float, high: float, few: bool) -> Text:
    if np.isnan(value):
        return Text("insufficient data", style="yellow")
    return Text(f"{100 * value:.1f} [{100 * low:.1f}, {100 * high:.1f}]{FEW_MARK if few else ''}")


def headline(audit: Audit) -> list[RenderableType]:
    """What was audited, and the conclusion."""
    unit = f"{audit.rows:,} rows" + (f" of {audit.patients:,} patients" if audit.patients is not None else "")
    head = Text.assemble("Audit of ", (short_name(audit.name), "bold"), f": {unit}. Positive if {printable(audit.rule.describe())}.")
    simple = [Text(line) for line in baseline_words(audit.baseline, audit.settings.level)]
    return [head, *([Text(conclusion(audit), style="bold")] if len(audit.gaps) else []), *simple]


def about_rows(audit: Audit) -> Iterator[str]:
    """What to know about the rows: those without a group, and patients in several groups."""
    for name, share in audit.missing.items():
        if share:
            yield f"{short_name(name)}: {share:.1%} of rows have no value; they count for performance, not for gaps."
    yield from (f"{printable(varying_words(each))}." for each in audit.varying)
    yield from map(printable, sampled_words(audit))


def how_sampled(audit: Audit) -> str:
    unit = "rows" if audit.patients is None else "patients"
    marked = audit.groups["few"].str.len().sum() + audit.gaps["few"].sum()
    few = f" {FEW_MARK}: fewer than {FEW} {unit}." if marked else ""
    clear = f" {CLEAR_MARK}: clear of 0 after adjustment for {comparison_words(audit)} (Holm)." if len(audit.gaps) else ""
    weighted = " Rates are weighted by the sample weights." if audit.weighted else ""
    return f"Intervals: score intervals, by {unit[:-1]}.{clear}{few}{weighted}"


def table_of(title: str) -> Table:
    return Table(box=box.SIMPLE_HEAD, title=Text(title), title_justify="left", title_style="bold", pad_edge=False, show_edge=False)


def shown_gaps(gaps: pd.DataFrame) -> pd.DataFrame:
    """All gaps but mirrors, and the mean of two that are shown, where they fit; otherwise the largest of each attribute and measure."""
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


def shown_groups(groups: pd.DataFrame, gaps: pd.DataFrame) -> pd.DataFrame:
    """All groups where they fit; otherwise those of single attributes, references and groups with a gap in the table first."""
    groups = groups.rename_axis("group").reset_index()
    if len(groups) > MOST_GROUPS:
        groups = groups[~groups["attribute"].isin(crossed(list(groups["attribute"].unique())))]
    if len(groups) <= MOST_GROUPS:
        return groups
    compared = set(zip(gaps["attribute"], gaps["group"].astype(str), strict=True)) if len(gaps) else set()
    named = [bool(r) or (a, str(g)) in compared for r, a, g in zip(groups["reference"], groups["attribute"], groups["group"], strict=True)]
    order = groups.assign(_named=named).sort_values(["_named", "n"], ascending=False, kind="stable").index[:MOST_GROUPS]
    return groups.loc[sorted(order)]
