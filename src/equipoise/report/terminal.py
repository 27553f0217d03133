"""An audit as tables for a terminal. Names come from users' files, so they are always text, never markup."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from equipoise import models
from equipoise.measures import GROUP_MEASURES, Audit, meaning
from equipoise.report.wording import PERFORMANCE, RATE_NAMES, interval, percent, printable, short_name, varying_words

GIVEN_NAMES = {None: "all patients", 1: "positives", 0: "negatives"}
INTERVAL = len("0.123 [0.123, 0.123]")
GAP_INTERVAL = len("-0.123 [-0.123, -0.123]")
LONGEST_HEADER = len("detectable")
NOISE_WORDS = (
    "noise: the mean size of a gap on these rows if groups were assigned at random; excess: |gap| minus noise; at or below 0 there is no "
    "sign of a gap."
)


def audit_view(audit: Audit) -> RenderableType:
    """The whole audit: what was audited, a table of rates, a table of gaps, and notes."""
    parts: list[RenderableType] = [_headline(audit)]
    if any(name in PERFORMANCE for name in audit.estimates):
        parts.append(_performance(audit))
    parts += [_GroupTables(rows, audit) for _, rows in audit.groups.groupby("attribute", sort=False)]
    parts += [_gaps(rows) for _, rows in audit.gaps.groupby("attribute", sort=False)]
    parts += _remarks(audit)
    return Group(*parts)


def encoding_view(layers: pd.DataFrame, level: float = 0.95) -> RenderableType:
    """How well each attribute can be predicted from each layer, which does not show whether it is used."""
    parts: list[RenderableType] = []
    for name, rows in layers.groupby("attribute", sort=False):
        table = _table(
            f"How well {short_name(name)} can be predicted from the inputs of a layer: AUROC of a probe, {percent(level)} intervals"
        )
        for column in ("depth", "layer", "width", "among", "AUROC"):
            table.add_column(column, justify="left" if column in ("layer", "among") else "right", overflow="fold")
        table.columns[-1].width = INTERVAL
        for _, row in rows.iterrows():
            where = (str(row["depth"]), short_name(row["layer"]), f"{row['width']:,}")
            for k, (measure, label) in enumerate(models.GIVEN.items()):
                found = _interval(row[measure], row[f"{measure}_low"], row[f"{measure}_high"])
                if row[f"{measure}_low"] > row["chance"]:
                    found.stylize("bold")
                table.add_row(*(where if k == 0 else ("", "", "")), GIVEN_NAMES[label], found)
        parts.append(table)
        parts += [Text(f"{short_name(name)}: {printable(note)}.", style="dim") for note in dict.fromkeys(rows["note"]) if note]
    chance = "0.5 or less is chance (bold: the interval is above it). Among rows of one label a difference in prevalence has no effect."
    return Group(*parts, Text(f"{chance} {models.READ_IS_NOT_USED}", style="dim"))


def _headline(audit: Audit) -> Text:
    unit = f"{audit.rows:,} rows" + (f" of {audit.patients:,} patients" if audit.patients is not None else "")
    return Text.assemble("Audit of ", (short_name(audit.name), "bold"), f": {unit}. Positive if {printable(audit.rule.describe())}.")


def _performance(audit: Audit) -> Table:
    table = _table(f"All patients, with {percent(audit.settings.level)} intervals")
    table.add_column("")
    table.add_column("value", justify="right")
    for name, estimate in audit.estimates.items():
        if name in PERFORMANCE:
            table.add_row(PERFORMANCE[name], _interval(estimate.value, estimate.low, estimate.high))
    return table


@dataclass(frozen=True)
class _GroupTables:
    """The rates of an attribute's groups: as many groups next to each other as fit the terminal, so that no interval is broken."""

    rows: pd.DataFrame
    audit: Audit

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        names = max(map(len, RATE_NAMES.values())) + 4  # with the table's edges and padding
        fit = max(1, (options.max_width - names) // (INTERVAL + 3))
        for start in range(0, len(self.rows), fit):
            yield _groups(self.rows.iloc[start : start + fit], self.audit)


def _groups(rows: pd.DataFrame, audit: Audit) -> Table:
    table = _table(f"By {short_name(rows['attribute'].iloc[0])}, with {percent(audit.settings.level)} intervals")
    table.add_column("")
    for name, row in rows.iterrows():
        header = Text(f"{short_name(name)}{' (reference)' if row['reference'] else ''}", overflow="fold")
        table.add_column(header, justify="right", width=INTERVAL)
    for count in ("n", "positives", "negatives"):
        table.add_row("rows" if count == "n" else count, *[f"{v:,}" for v in rows[count]])
    for measure in GROUP_MEASURES:
        cells = [_interval(row[measure], row[f"{measure}_low"], row[f"{measure}_high"]) for _, row in rows.iterrows()]
        table.add_row(RATE_NAMES[measure], *cells)
    return table


def _gaps(rows: pd.DataFrame) -> Table:
    table = _table(f"Gaps by {short_name(rows['attribute'].iloc[0])}: the group's rate minus the reference's")
    table.add_column("measure", no_wrap=True)
    table.add_column("between", overflow="fold")
    table.add_column("gap", justify="right", width=GAP_INTERVAL)
    table.add_column("minimum detectable gap", justify="right", max_width=LONGEST_HEADER)
    table.add_column("noise", justify="right")
    table.add_column("excess", justify="right")
    for row in rows.itertuples():
        known = not np.isnan(row.value)
        gap = _interval(row.value, row.low, row.high, sign="+")
        if known and (row.low > 0 or row.high < 0):
            gap.stylize("bold")
        between = Text(f"{short_name(row.group)} minus {short_name(row.reference)}")
        more = [f"{row.detectable:.3f}", f"{row.noise:.3f}", f"{row.excess:+.3f}"]
        table.add_row(str(row.measure), between, gap, *(more if known else [""] * len(more)))
    return table


def _table(title: str) -> Table:
    return Table(box=box.SIMPLE_HEAD, title=Text(title), title_justify="left")


def _remarks(audit: Audit) -> list[RenderableType]:
    lines = []
    for name, share in audit.missing.items():
        if share:
            lines.append(f"{short_name(name)}: {share:.1%} of rows have no value; they count for performance, not for gaps.")
    lines += [f"{printable(varying_words(each))}." for each in audit.varying]
    for name in audit.assumed:
        reference = short_name(audit.references[name])
        lines.append(f"{short_name(name)}: no reference was given, so the largest group, {reference}, is used (--reference).")
    for (group, note), attribute in zip(audit.groups["note"].items(), audit.groups["attribute"], strict=True):
        if note:
            lines.append(f"{short_name(attribute)} {short_name(group)}: {_in_words(str(note))}.")
    drawn = "rows" if audit.patients is None else "patients"
    lines.append(f"Intervals: {audit.settings.draws:,} bootstrap resamples of {drawn}. Bold: the interval excludes 0.")
    if len(audit.gaps):
        lines.append(NOISE_WORDS)
    meanings = [f"{name} = {meaning(name)}" for name in audit.gaps["measure"].unique()]
    if meanings:
        lines.append("; ".join(meanings) + ".")
    return [Text(line, style="dim") for line in lines]


def _in_words(note: str) -> str:
    """A note with the names of the table's rows; all of them are 'everything'."""
    before, separator, after = note.partition(": ")
    measures = after.split(", ")
    if set(measures) == set(GROUP_MEASURES):
        return f"{before}: everything"
    return before + separator + ", ".join(RATE_NAMES.get(m, m) for m in measures)


def _interval(value: float, low: float, high: float, sign: str = "") -> Text:
    return Text(interval(value, low, high, sign), style="yellow" if np.isnan(value) else "")
