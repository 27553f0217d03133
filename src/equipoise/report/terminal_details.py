"""The whole audit in a terminal (--verbose): all rates, gaps and curves, underdiagnosis, shrunken gaps and probes of layers."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from equipoise import models
from equipoise.measures import (
    ALL_ROWS,
    CALIBRATION_ERROR,
    GROUP_MEASURES,
    OVERALL_SCORE_MEASURES,
    SCORE_MEASURES,
    Audit,
    LabelAudit,
    group_estimate,
    meaning,
)
from equipoise.report.terminal_audit import (
    CLEAR_MARK,
    FEW_MARK,
    about_intervals,
    about_rows,
    between,
    headline,
    marks,
    points,
    share,
    table_of,
)
from equipoise.report.text import interval, p_value_words, percent, plural, printable, rows_counted, short_name
from equipoise.report.wording.audits import counted_unit
from equipoise.report.wording.names import PERFORMANCE, RATES, distinct, gap_words, lacking_words, rate_title

WIDE = 110  # columns of a terminal below which simultaneous intervals are left out
AMONG = {None: "all patients", 1: "positives", 0: "negatives"}  # rows of a probe, by label
INTERVAL = len("-0.123 [-0.123, -0.123]†")


def audit_view(audit: Audit, names: Mapping[str, str] | None = None) -> RenderableType:
    """The whole audit, label by label: the conclusion, performance, tables of rates, gaps and decision curves, and notes."""
    parts: list[RenderableType] = []
    for label, own in audit.prefixed.items():
        parts += [Text(f"\n{printable(label)}", style="bold underline")] if label else []
        parts.append(_label_view(own, names))
    return Group(*parts)


def _label_view(audit: LabelAudit, names: Mapping[str, str] | None) -> RenderableType:
    parts: list[RenderableType] = headline(audit, names, whole=True)
    if any(name in PERFORMANCE or name in OVERALL_SCORE_MEASURES for name in audit.estimates):
        parts.append(_performance_table(audit))
    parts += [_GroupTables(rows, audit) for _, rows in audit.groups.groupby("attribute", sort=False)]
    parts += [_GapTable(rows) for _, rows in audit.gaps.groupby("attribute", sort=False)]
    if audit.curves["net_benefit"].notna().any():
        parts.append(_curve_table(audit))
    return Group(*parts, *(Text(note, style="dim") for note in _notes(audit)))


def _performance_table(audit: LabelAudit) -> Table:
    table = table_of(f"All patients, with {percent(audit.settings.level)} intervals")
    table.add_column("")
    table.add_column("value", justify="right")
    for name, estimate in audit.estimates.items():
        if name in PERFORMANCE or name in OVERALL_SCORE_MEASURES:
            words = PERFORMANCE[name] if name in PERFORMANCE else RATES[name].name
            table.add_row(words, _interval(estimate.value, estimate.low, estimate.high))
    return table


@dataclass(frozen=True)
class _GroupTables:
    """The rates of an attribute's groups: as many groups side by side as fit the terminal, so that no interval is broken."""

    rows: pd.DataFrame
    audit: LabelAudit

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        names = max(map(len, (rate.name for rate in RATES.values()))) + 4  # with the table's edges and padding
        fit = max(1, (options.max_width - names) // (INTERVAL + 3))
        for start in range(0, len(self.rows), fit):
            yield _group_table(self.rows.iloc[start : start + fit], self.audit)


def _group_table(rows: pd.DataFrame, audit: LabelAudit) -> Table:
    table = table_of(f"By {short_name(rows['attribute'].iloc[0])}, with {percent(audit.settings.level)} intervals")
    table.add_column("")
    for name, row in rows.iterrows():
        header = Text(f"{short_name(name)}{' (reference)' if row['reference'] else ''}", overflow="fold")
        table.add_column(header, justify="right", width=INTERVAL)
    for count in ("n", "positives", "negatives"):
        table.add_row("rows" if count == "n" else count, *map(rows_counted, rows[count]))
    for measure in (*GROUP_MEASURES, *SCORE_MEASURES, CALIBRATION_ERROR):
        if measure in rows:
            estimates = [group_estimate(row, measure) for _, row in rows.iterrows()]
            title = rate_title(measure, audit.settings) + (" [if calibrated]" if measure == CALIBRATION_ERROR else "")
            table.add_row(Text(title), *(_interval(e.value, e.low, e.high, few=e.few) for e in estimates))
    return table


def _curve_table(audit: LabelAudit) -> Table:
    """Net benefit by group at up to five of the thresholds."""
    cuts = sorted(audit.curves["threshold"].unique())
    cuts = [cuts[k] for k in sorted({round(k * (len(cuts) - 1) / 4) for k in range(5)})]
    unit = counted_unit(audit.rows, audit.patients)
    title = f"Net benefit per 1,000 {unit} by threshold: deciding by the score, by treating all; treating none is 0"
    table = table_of(title, text=["group"], numbers=[f"{cut:.3g}" for cut in cuts])
    for (attribute, group), rows in audit.curves.groupby(["attribute", "group"], sort=False):
        curve = rows.set_index("threshold").loc[cuts, ["net_benefit", "treat_all"]]
        cells = ["" if np.isnan(benefit) else f"{1000 * benefit:.0f}, {1000 * treat_all:.0f}" for benefit, treat_all in curve.to_numpy()]
        name = "all patients" if attribute == ALL_ROWS else f"{short_name(attribute)}: {short_name(group)}"
        table.add_row(Text(name), *cells)
    return table


def underdiagnosis_view(audit: LabelAudit) -> RenderableType:
    """Underdiagnosis by group: of patients with a finding, the share decided to have none."""
    level = percent(audit.settings.level)
    table = table_of(f"Underdiagnosis: of patients with a finding, the share decided to have none, with {level} intervals", text=["group"])
    table.add_column("with a finding", justify="right", max_width=len("a finding"))
    for column in ("underdiagnosed, %", "gap, points", "adjusted p"):
        table.add_column(column, justify="right", no_wrap=True)
    several = len(audit.references) > 1
    for row in audit.underdiagnosis.itertuples():
        name = f"{short_name(row.attribute)}: {short_name(row.group)}" if several else short_name(row.group)
        gap = {"value": row.gap, "low": row.gap_low, "high": row.gap_high, "clear": row.clear, "few": row.few}
        table.add_row(
            Text(f"{name}{' (ref.)' if row.reference else ''}"),
            rows_counted(row.with_finding),
            share(row.rate, row.low, row.high, few=False),
            Text("") if row.reference else Text.assemble(points(gap), marks(gap)),
            p_value_words(row.p_adjusted),
        )
    clear = f"{CLEAR_MARK}: clear of 0 after adjustment for {plural(audit.comparisons, 'comparison')} (Holm)"
    return Group(table, Text(f"No finding: {printable(audit.rule.describe())}. {clear}.", style="dim"))


def shrunken_view(audit: Audit) -> RenderableType:
    """Shrunken gaps (empirical Bayes) next to the plain ones, of attributes with at least four groups, of each label."""
    return Group(*(part for label, own in audit.prefixed.items() for part in ("", _shrunken_table(own, label))))


def _shrunken_table(audit: LabelAudit, label: str) -> RenderableType:
    of_label = f" of {short_name(label)}" if label else ""
    gaps = audit.shrunken()
    gaps = gaps[gaps["shrunken"].notna() & gaps["measure"].isin(distinct(gaps["measure"].unique()))]
    if not len(gaps):
        return Text(f"No shrunken gaps{of_label}: they need an attribute with at least four groups that have a rate.", style="dim")
    title = f"Shrunken gaps{of_label} (empirical Bayes), with {percent(audit.settings.level)} intervals, in points"
    table = table_of(title, text=["gap in", "between"], numbers=["plain", "shrunken"])
    for row in gaps.to_dict("records"):
        plain, shrunken, low, high = (f"{100 * row[column]:+.1f}" for column in ("value", "shrunken", "low", "high"))
        table.add_row(Text(gap_words(str(row["measure"]))), Text(between(row)), plain, f"{shrunken} [{low}, {high}]")
    note = "Rates are shrunk towards the mean of the groups, more if less is known about them: better on average, biased towards no gap."
    return Group(table, Text(note, style="dim"))


@dataclass(frozen=True)
class _GapTable:
    """The gaps of an attribute with their p-values, and with simultaneous intervals if the terminal is wide enough."""

    rows: pd.DataFrame

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        wide = options.max_width >= WIDE
        table = table_of(f"Gaps by {short_name(self.rows['attribute'].iloc[0])}: the group's rate minus the reference's")
        table.add_column("measure", no_wrap=True)
        table.add_column("between", overflow="fold")
        table.add_column("gap", justify="right", width=INTERVAL)
        if wide:
            table.add_column("simultaneous", justify="right", no_wrap=True)
        table.add_column("minimum detectable gap", justify="right", max_width=len("detectable"))
        table.add_column("p", justify="right")
        table.add_column("adjusted p", justify="right", max_width=len("adjusted"))
        for row in self.rows.itertuples():
            gap = _interval(row.value, row.low, row.high, sign="+", few=row.few)
            if row.clear:
                gap.stylize("bold")
            cells: list[RenderableType] = [str(row.measure), Text(f"{short_name(row.group)} minus {short_name(row.reference)}"), gap]
            if not np.isnan(row.value):
                cells += [f"[{row.simultaneous_low:+.3f}, {row.simultaneous_high:+.3f}]"] if wide else []
                cells += ["none" if np.isnan(row.detectable) else f"{row.detectable:.3f}", p_value_words(row.p_value)]
                cells.append(p_value_words(row.p_adjusted) + (CLEAR_MARK if row.clear else ""))
            table.add_row(*cells)
        yield table


def _notes(audit: LabelAudit) -> Iterator[str]:
    yield from about_rows(audit)
    for name in audit.assumed:
        reference = short_name(audit.references[name])
        yield f"{short_name(name)}: no reference was given, so the largest group, {reference}, is used (--reference)."
    unit = "rows" if audit.patients is None else "patients"
    for (group, lacking), attribute in zip(audit.groups["lacking"].items(), audit.groups["attribute"], strict=True):
        if lacking:
            yield f"{short_name(attribute)} {short_name(group)}: {lacking_words(lacking, audit.settings, unit)}."
    yield about_intervals(audit)
    if len(audit.gaps):
        yield "p: by permutation of groups; adjusted p: for all comparisons of the audit; measures that mirror each other are one."
        yield "; ".join(f"{name} = {meaning(name)}" for name in audit.gaps["measure"].unique()) + "."


def _interval(value: float, low: float, high: float, sign: str = "", few: bool = False) -> Text:
    return Text(interval(value, low, high, sign) + (FEW_MARK if few else ""), style="yellow" if np.isnan(value) else "")


def encoding_view(layers: pd.DataFrame, level: float = 0.95) -> RenderableType:
    """How well each attribute can be predicted from each layer, which does not show whether the network uses it."""
    parts: list[RenderableType] = []
    for name, rows in layers.groupby("attribute", sort=False):
        table = table_of(
            f"How well {short_name(name)} can be predicted from the inputs of a layer: AUROC of a probe, {percent(level)} intervals"
        )
        for column in ("depth", "layer", "width", "among", "AUROC"):
            table.add_column(column, justify="left" if column in ("layer", "among") else "right", overflow="fold")
        table.columns[-1].width = INTERVAL
        for _, row in rows.iterrows():
            layer = (str(row["depth"]), short_name(row["layer"]), f"{row['width']:,}")
            for k, (measure, label) in enumerate(models.AUROC_LABELS.items()):
                auroc = _interval(row[measure], row[f"{measure}_low"], row[f"{measure}_high"])
                if row[f"{measure}_low"] > row["chance"]:
                    auroc.stylize("bold")
                table.add_row(*(layer if k == 0 else ("", "", "")), AMONG[label], auroc)
        parts.append(table)
        parts += [Text(f"{short_name(name)}: {printable(note)}.", style="dim") for note in dict.fromkeys(rows["note"]) if note]
    chance = "0.5 or less is chance (bold: the interval is above it). Among rows of one label, differences in prevalence have no effect."
    return Group(*parts, Text(f"{chance} {models.READ_IS_NOT_USED}", style="dim"))
