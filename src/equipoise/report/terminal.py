"""An audit as tables for a terminal. Names come from users' files, so they are always text, never markup."""

import numpy as np
import pandas as pd
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from equipoise.measures.audit import Audit
from equipoise.measures.estimates import GROUP_MEASURES, INSUFFICIENT
from equipoise.measures.gaps import GAPS, MEANING

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
GROUPS_A_TABLE = 4


def audit_view(audit: Audit) -> RenderableType:
    """The whole audit: what was audited, a table of rates, a table of gaps, and what to mind."""
    parts: list[RenderableType] = [_headline(audit), _performance(audit)]
    for _, rows in audit.groups.groupby("attribute", sort=False):
        for start in range(0, len(rows), GROUPS_A_TABLE):
            parts.append(_groups(rows.iloc[start : start + GROUPS_A_TABLE], audit))
    if len(audit.gaps):
        parts.append(_gaps(audit))
    parts += _remarks(audit)
    return Group(*parts)


def _headline(audit: Audit) -> Text:
    unit = f"{audit.rows:,} rows" + (f" of {audit.patients:,} patients" if audit.patients is not None else "")
    return Text.assemble(("Audit of ", ""), (audit.name, "bold"), f": {unit}. Positive if {audit.rule.describe()}.")


def _performance(audit: Audit) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title=f"Everybody together, with {audit.settings.level:.0%} intervals", title_justify="left")
    table.add_column("")
    table.add_column("value", justify="right")
    for name, estimate in audit.estimates.items():
        if name not in GAPS:
            table.add_row(PERFORMANCE_NAMES[name], _interval(estimate.value, estimate.low, estimate.high))
    return table


def _groups(rows: pd.DataFrame, audit: Audit) -> Table:
    attribute = str(rows["attribute"].iloc[0])
    table = Table(box=box.SIMPLE_HEAD, title=Text(f"By {attribute}, with {audit.settings.level:.0%} intervals"), title_justify="left")
    table.add_column("")
    for name, row in rows.iterrows():
        table.add_column(Text(f"{name}{' (reference)' if row['reference'] else ''}"), justify="right")
    for count in ("n", "positives", "negatives"):
        table.add_row("rows" if count == "n" else count, *[f"{v:,}" for v in rows[count]])
    for measure in GROUP_MEASURES:
        cells = [_interval(row[measure], row[f"{measure}_low"], row[f"{measure}_high"]) for _, row in rows.iterrows()]
        table.add_row(ROW_NAMES[measure], *cells)
    return table


def _gaps(audit: Audit) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title="Gaps: the group's rate minus the reference's", title_justify="left")
    for column, justify in (("measure", "left"), ("between", "left"), ("gap", "right"), ("smallest gap these data could show", "right")):
        table.add_column(column, justify=justify)  # type: ignore[arg-type]
    for row in audit.gaps.itertuples():
        between = Text(f"{row.group} minus {row.reference}")
        known = not np.isnan(row.value)
        gap = _interval(row.value, row.low, row.high, sign="+")
        if known and (row.low > 0 or row.high < 0):
            gap.stylize("bold")
        table.add_row(str(row.measure), between, gap, f"{row.detectable:.3f}" if known else "")
    return table


def _remarks(audit: Audit) -> list[RenderableType]:
    lines = []
    for name, share in audit.missing.items():
        if share:
            lines.append(f"{name}: {share:.1%} of rows have no value; they count for performance, not for gaps.")
    for name in audit.assumed:
        lines.append(f"{name}: nobody named a reference, so the largest group, {audit.references[name]}, was taken (--reference).")
    for group, note in audit.groups["note"].items():
        if note:
            lines.append(f"{group}: {note}.")
    drawn = "rows" if audit.patients is None else "patients"
    lines.append(f"Intervals: {audit.settings.draws:,} bootstrap draws of {drawn}. Bold: the interval leaves out 0.")
    meanings = [f"{name} = {MEANING[name]}" for name in audit.gaps["measure"].unique() if name in MEANING]
    if meanings:
        lines.append("; ".join(meanings) + ".")
    return [Text(line, style="dim") for line in lines]


def _interval(value: float, low: float, high: float, sign: str = "") -> Text:
    if np.isnan(value):
        return Text(INSUFFICIENT, style="yellow")
    return Text(f"{value:{sign}.3f} [{low:{sign}.3f}, {high:{sign}.3f}]")
