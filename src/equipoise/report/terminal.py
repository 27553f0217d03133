"""An audit as tables for a terminal. Names come from users' files, so they are always text, never markup."""

import re
from dataclasses import dataclass

import numpy as np
import pandas as pd
from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from equipoise import models
from equipoise.data import CONFLICTS, Varying
from equipoise.measures import GROUP_MEASURES, INSUFFICIENT, Audit, meaning

ROW_NAMES = {
    "selection_rate": "decided positive",
    "tpr": "sensitivity (TPR)",
    "fpr": "false positive rate (FPR)",
    "tnr": "specificity (TNR)",
    "fnr": "miss rate (FNR)",
    "ppv": "PPV",
    "npv": "NPV",
    "auroc": "AUROC",
    "calibration_error": "calibration error",
}
PERFORMANCE_NAMES = {
    "balanced_accuracy": "balanced accuracy",
    "accuracy": "accuracy",
    "f1": "F1",
    "auroc": "AUROC",
    "average_precision": "average precision",
}
GIVEN_NAMES = {None: "everybody", 1: "positives", 0: "negatives"}
INTERVAL = len("0.123 [0.123, 0.123]")
GAP_INTERVAL = len("-0.123 [-0.123, -0.123]")
LONGEST_HEADER = len("smallest gap")
LONGEST_NAME = 60
NOISE_WORDS = (
    "noise: the size of gap that a classifier without any shows on these rows by chance, on average; excess: |gap| minus noise, and at or "
    "below 0 no sign of a gap."
)
UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")  # controls, colours and changes of direction


def audit_view(audit: Audit) -> RenderableType:
    """The whole audit: what was audited, a table of rates, a table of gaps, and what to mind."""
    parts: list[RenderableType] = [_headline(audit)]
    if any(name in PERFORMANCE_NAMES for name in audit.estimates):
        parts.append(_performance(audit))
    parts += [_GroupTables(rows, audit) for _, rows in audit.groups.groupby("attribute", sort=False)]
    parts += [_gaps(rows) for _, rows in audit.gaps.groupby("attribute", sort=False)]
    parts += _remarks(audit)
    return Group(*parts)


def encoding_view(layers: pd.DataFrame, level: float = 0.95) -> RenderableType:
    """How well each attribute can be read from each layer, and that this is not whether it is used."""
    parts: list[RenderableType] = []
    for name, rows in layers.groupby("attribute", sort=False):
        table = _table(f"How well {short_name(name)} can be read from what enters a layer: AUROC of a probe, {percent(level)} intervals")
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
    chance = (
        "Chance is 0.5 (bold: the interval is above it), and so is less. Among rows of one label a difference in prevalence tells nothing."
    )
    return Group(*parts, Text(f"{chance} {models.READ_IS_NOT_USED}", style="dim"))


def printable(text: str) -> str:
    r"""The text with control characters written out, so that a name in a file cannot steer the terminal. Lines stay.

    >>> printable("\x1b[31mred")
    '\\x1b[31mred'
    """
    return UNSEEN.sub(lambda found: found[0] if found[0] == "\n" else found[0].encode("unicode_escape").decode(), text)


def percent(level: float) -> str:
    """A level as a percentage, 95% or 99.9%."""
    return f"{100 * level:.4g}%"


def short_name(value: object) -> str:
    """A name from a user's file, on one line and short enough for a table."""
    text = printable(str(value)).replace("\n", "\\n")
    return text if len(text) <= LONGEST_NAME else f"{text[: LONGEST_NAME - 20]} ... {text[-15:]}"


def varying_words(varying: Varying) -> str:
    """How many patients have more than one group, and how they count."""
    have = "patient has" if varying.patients == 1 else "patients have"
    return f"{varying.attribute}: {varying.patients:,} {have} more than one recorded group; {CONFLICTS[varying.rule]} (--conflicts)"


def _headline(audit: Audit) -> Text:
    unit = f"{audit.rows:,} rows" + (f" of {audit.patients:,} patients" if audit.patients is not None else "")
    return Text.assemble("Audit of ", (short_name(audit.name), "bold"), f": {unit}. Positive if {printable(audit.rule.describe())}.")


def _performance(audit: Audit) -> Table:
    table = _table(f"Everybody together, with {percent(audit.settings.level)} intervals")
    table.add_column("")
    table.add_column("value", justify="right")
    for name, estimate in audit.estimates.items():
        if name in PERFORMANCE_NAMES:
            table.add_row(PERFORMANCE_NAMES[name], _interval(estimate.value, estimate.low, estimate.high))
    return table


@dataclass(frozen=True)
class _GroupTables:
    """The rates of an attribute's groups: as many groups side by side as the terminal is wide, so that no interval is broken."""

    rows: pd.DataFrame
    audit: Audit

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        names = max(map(len, ROW_NAMES.values())) + 4  # with the table's edges and the space around them
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
        table.add_row(ROW_NAMES[measure], *cells)
    return table


def _gaps(rows: pd.DataFrame) -> Table:
    table = _table(f"Gaps by {short_name(rows['attribute'].iloc[0])}: the group's rate minus the reference's")
    table.add_column("measure", no_wrap=True)
    table.add_column("between", overflow="fold")
    table.add_column("gap", justify="right", width=GAP_INTERVAL)
    table.add_column("smallest gap these data could show", justify="right", max_width=LONGEST_HEADER)
    table.add_column("noise", justify="right")
    table.add_column("excess", justify="right")
    for row in rows.itertuples():
        known = not np.isnan(row.value)
        gap = _interval(row.value, row.low, row.high, sign="+")
        if known and (row.low > 0 or row.high < 0):
            gap.stylize("bold")
        between = Text(f"{short_name(row.group)} minus {short_name(row.reference)}")
        beside = [f"{row.detectable:.3f}", f"{row.noise:.3f}", f"{row.excess:+.3f}"]
        table.add_row(str(row.measure), between, gap, *(beside if known else [""] * len(beside)))
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
        lines.append(f"{short_name(name)}: nobody named a reference, so the largest group, {reference}, was taken (--reference).")
    for (group, note), attribute in zip(audit.groups["note"].items(), audit.groups["attribute"], strict=True):
        if note:
            lines.append(f"{short_name(attribute)} {short_name(group)}: {_in_words(str(note))}.")
    drawn = "rows" if audit.patients is None else "patients"
    lines.append(f"Intervals: {audit.settings.draws:,} bootstrap draws of {drawn}. Bold: the interval leaves out 0.")
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
    return before + separator + ", ".join(ROW_NAMES.get(m, m) for m in measures)


def _interval(value: float, low: float, high: float, sign: str = "") -> Text:
    if np.isnan(value):
        return Text(INSUFFICIENT, style="yellow")
    return Text(f"{value:{sign}.3f} [{low:{sign}.3f}, {high:{sign}.3f}]")
