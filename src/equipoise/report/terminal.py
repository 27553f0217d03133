"""An audit in a terminal: on one screen (the conclusion, one table of groups, one of gaps), or all of it. Names are text, never markup."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from equipoise import models
from equipoise.measures import (
    CALIBRATION_ERROR,
    EVERYONE,
    FEW,
    GROUP_MEASURES,
    OF_ALL,
    SCORE_MEASURES,
    Audit,
    Audits,
    group_estimate,
    meaning,
)
from equipoise.report.text import amount, interval, p_words, percent, printable, sentence, short_name, span
from equipoise.report.wording import (
    PERFORMANCE,
    RATES,
    baseline_words,
    comparison_words,
    conclusion,
    crossed,
    distinct,
    gap_words,
    lacking_words,
    largest_gap,
    rate_title,
    sampled_words,
    varying_words,
)

MOST_GROUPS, MOST_GAPS = 10, 9  # rows of each table on one screen
SHARES = ("balanced_accuracy", "accuracy", "f1")  # performance that is printed as a percentage
NARROW, WIDE = 76, 110  # columns of a terminal below which counts of positives, and simultaneous intervals, are left out
GIVEN_NAMES = {None: "all patients", 1: "positives", 0: "negatives"}
CLEAR_MARK = "*"  # of a gap that is clear after adjustment; it is bold, which a file does not show
FEW_MARK = "†"  # of an estimate from few patients
INTERVAL = GAP_INTERVAL = len("-0.123 [-0.123, -0.123]†")
LONGEST_HEADER = len("detectable")


# One screen


def audit_summary(audit: Audit) -> RenderableType:
    """The audit on one screen."""
    shown = _shown_gaps(audit.gaps)
    parts: list[RenderableType] = _headline(audit)
    if performance := _performance_line(audit):
        parts.append(Text(performance))
    groups = _shown_groups(audit.groups, shown)
    parts += ["", _GroupRows(groups, audit.settings.level)]
    if len(shown):
        parts += ["", _gap_table(shown, audit.settings.level)]
    hidden = len(audit.groups) - len(groups), len(audit.gaps) - len(shown)
    return Group(*parts, "", *(Text(line, style="dim") for line in _notes(audit, *hidden)))


def audits_summary(audits: Audits) -> RenderableType:
    """The audits of several labels, or classes, on one screen, one row per label."""
    one = "class" if audits.kind == "classes" else "label"
    level = next(iter(audits.values())).settings.level
    table = _table(f"{len(audits)} {audits.kind}, with {percent(level)} intervals")
    table.add_column(one, overflow="fold")
    table.add_column("rows", justify="right")
    table.add_column("balanced accuracy, %", justify="right", max_width=len("accuracy, %"))
    table.add_column("largest gap", overflow="fold")
    table.add_column("points", justify="right", no_wrap=True)
    table.add_column("")
    for label, audit in audits.items():
        estimate = audit.estimates.get("balanced_accuracy")
        row = largest_gap(audit.gaps)
        cells: list[RenderableType] = (
            [] if row is None else [_between(row, f"{gap_words(str(row['measure']))}: "), _points(row), _marks(row)]
        )
        table.add_row(Text(short_name(label)), f"{audit.rows:,}", "" if estimate is None else f"{100 * estimate.value:.1f}", *cells)
    first = next(iter(audits.values()))
    clear = f"{CLEAR_MARK}: clear of 0 after adjustment for {comparison_words(first)} of all {audits.kind} (Holm)."
    note = f"{clear} --verbose shows the audit of each {one}."
    return Group(table, Text(note, style="dim"))


def _shown_gaps(gaps: pd.DataFrame) -> pd.DataFrame:
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


def _shown_groups(groups: pd.DataFrame, gaps: pd.DataFrame) -> pd.DataFrame:
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
        table = _table(f"Groups, with {percent(self.level)} intervals")
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
                _share(row.tpr, row.tpr_low, row.tpr_high, "tpr" in few),
                _share(row.fpr, row.fpr_low, row.fpr_high, "fpr" in few),
            ]
            table.add_row(Text(f"{head}{' (ref.)' if row.reference else ''}"), *counts, *rates)
        yield table


def _gap_table(rows: pd.DataFrame, level: float) -> Table:
    table = _table(f"Gaps, group minus reference, with {percent(level)} intervals")
    table.add_column("gap in", overflow="fold")
    table.add_column("between", overflow="fold")
    table.add_column("points", justify="right", no_wrap=True)
    table.add_column("")
    table.add_column("detectable", justify="right", no_wrap=True)
    for _, row in rows.iterrows():
        name = str(row["measure"])
        words = "FPR" if name == "fpr_gap" else gap_words(name)
        detectable = "" if np.isnan(row["value"]) else "none" if np.isnan(row["detectable"]) else f"{100 * row['detectable']:.1f}"
        table.add_row(Text(words if words == name else f"{words} ({name})"), _between(row), _points(row), _marks(row), detectable)
    return table


def _between(row: "pd.Series[float]", before: str = "") -> Text:
    return Text(f"{before}{short_name(row['group'])} vs {short_name(row['reference'])}")


def _points(row: "Mapping[str, float] | pd.Series[float]") -> Text:
    if np.isnan(row["value"]):
        return Text("insufficient data", style="yellow")
    value, low, high = (100 * row[end] for end in ("value", "low", "high"))
    return Text(f"{value:+.1f} [{low:+.1f}, {high:+.1f}]", style="bold" if row["clear"] else "")


def _marks(row: "Mapping[str, float] | pd.Series[float]") -> str:
    return (CLEAR_MARK if row["clear"] else "") + (FEW_MARK if row["few"] else "")


def _share(value: float, low: float, high: float, few: bool) -> Text:
    if np.isnan(value):
        return Text("insufficient data", style="yellow")
    return Text(f"{100 * value:.1f} [{100 * low:.1f}, {100 * high:.1f}]{FEW_MARK if few else ''}")


def _notes(audit: Audit, groups: int, gaps: int) -> Iterator[str]:
    yield from _about_rows(audit)
    if audit.assumed:
        chosen = ", ".join(f"{short_name(audit.references[name])} ({short_name(name)})" for name in audit.assumed)
        yield f"Reference: the largest group, {chosen}; choose another with --reference."
    more = [text for count, text in ((groups, f"{groups} more groups"), (gaps, f"{gaps} more gaps")) if count]
    rest = f"--verbose shows {' and '.join(more)}, and all measures." if more else "--verbose shows all measures."
    yield f"{_how_sampled(audit)} FPR: false positive rate. detectable: the smallest gap found with 80% power. {rest}"


# Everything


def audit_view(audit: Audit) -> RenderableType:
    """The whole audit: what was audited, the conclusion, a table of rates, a table of gaps, and notes."""
    parts: list[RenderableType] = _headline(audit)
    if any(name in PERFORMANCE or name in OF_ALL for name in audit.estimates):
        parts.append(_performance(audit))
    parts += [_GroupTables(rows, audit) for _, rows in audit.groups.groupby("attribute", sort=False)]
    parts += [_GapRows(rows) for _, rows in audit.gaps.groupby("attribute", sort=False)]
    if audit.curves["net_benefit"].notna().any():
        parts.append(_curves(audit))
    parts += _remarks(audit)
    return Group(*parts)


def _performance(audit: Audit) -> Table:
    table = _table(f"All patients, with {percent(audit.settings.level)} intervals")
    table.add_column("")
    table.add_column("value", justify="right")
    for name, estimate in audit.estimates.items():
        if name in PERFORMANCE or name in OF_ALL:
            words = PERFORMANCE[name] if name in PERFORMANCE else RATES[name].name
            table.add_row(words, _interval(estimate.value, estimate.low, estimate.high))
    return table


@dataclass(frozen=True)
class _GroupTables:
    """The rates of an attribute's groups: as many groups next to each other as fit the terminal, so that no interval is broken."""

    rows: pd.DataFrame
    audit: Audit

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        names = max(map(len, (rate.name for rate in RATES.values()))) + 4  # with the table's edges and padding
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
    for measure in (*GROUP_MEASURES, *SCORE_MEASURES, CALIBRATION_ERROR):
        if measure in rows:
            found = [group_estimate(row, measure) for _, row in rows.iterrows()]
            title = rate_title(measure, audit.settings) + (" [if calibrated]" if measure == CALIBRATION_ERROR else "")
            table.add_row(Text(title), *(_interval(e.value, e.low, e.high, few=e.few) for e in found))
    return table


def _curves(audit: Audit) -> Table:
    """Net benefit by group at about five of the thresholds."""
    cuts = sorted(audit.curves["threshold"].unique())
    cuts = [cuts[k] for k in sorted({round(k * (len(cuts) - 1) / 4) for k in range(5)})]
    table = _table("Net benefit per 1,000 patients by threshold: deciding by the score, by treating all; treating none is 0")
    table.add_column("group", overflow="fold")
    for cut in cuts:
        table.add_column(f"{cut:.3g}", justify="right", no_wrap=True)
    for (attribute, group), rows in audit.curves.groupby(["attribute", "group"], sort=False):
        here = rows.set_index("threshold")
        pairs = [(float(here.loc[cut, "net_benefit"]), float(here.loc[cut, "treat_all"])) for cut in cuts]
        cells = ["" if np.isnan(benefit) else f"{1000 * benefit:.0f}, {1000 * every:.0f}" for benefit, every in pairs]
        name = "all patients" if attribute == EVERYONE else f"{short_name(attribute)}: {short_name(group)}"
        table.add_row(Text(name), *cells)
    return table


def underdiagnosis_view(audit: Audit) -> RenderableType:
    """Underdiagnosis by group: of those with a finding, the share that is decided to have none."""
    level = percent(audit.settings.level)
    table = _table(f"Underdiagnosis: of patients with a finding, the share decided to have none, with {level} intervals")
    table.add_column("group", overflow="fold")
    table.add_column("with a finding", justify="right", max_width=len("a finding"))
    table.add_column("underdiagnosed, %", justify="right", no_wrap=True)
    table.add_column("gap, points", justify="right", no_wrap=True)
    table.add_column("adjusted p", justify="right", no_wrap=True)
    several = len(audit.references) > 1
    for row in audit.underdiagnosis.itertuples():
        head = f"{short_name(row.attribute)}: {short_name(row.group)}" if several else short_name(row.group)
        ends = {"value": row.gap, "low": row.gap_low, "high": row.gap_high, "clear": row.clear, "few": row.few}
        gap = Text("") if row.reference else Text.assemble(_points(ends), _marks(ends))
        cells: list[RenderableType] = [f"{row.with_finding:,}", _share(row.rate, row.low, row.high, few=False), gap]
        table.add_row(
            Text(f"{head}{' (ref.)' if row.reference else ''}"), *cells, "" if np.isnan(row.p_adjusted) else p_words(row.p_adjusted)
        )
    clear = f"{CLEAR_MARK}: clear of 0 after adjustment for {comparison_words(audit)} (Holm)"
    note = f"No finding: {printable(audit.rule.describe())}. {clear}."
    return Group(table, Text(note, style="dim"))


def shrunken_view(audit: Audit, label: str = "") -> RenderableType:
    """Shrunken gaps (empirical Bayes) next to the plain ones, of attributes with groups enough."""
    of = f" of {short_name(label)}" if label else ""
    gaps = audit.shrunken()
    gaps = gaps[gaps["shrunken"].notna() & gaps["measure"].isin(distinct(gaps["measure"].unique()))]
    if not len(gaps):
        return Text(f"No shrunken gaps{of}: they need an attribute with at least four groups that have a rate.", style="dim")
    table = _table(f"Shrunken gaps{of} (empirical Bayes), with {percent(audit.settings.level)} intervals, in points")
    for name in ("gap in", "between"):
        table.add_column(name, overflow="fold")
    for name in ("plain", "shrunken"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in gaps.itertuples():
        shrunken = f"{100 * row.shrunken:+.1f} [{100 * row.low:+.1f}, {100 * row.high:+.1f}]"
        between = Text(f"{short_name(row.group)} vs {short_name(row.reference)}")
        table.add_row(Text(gap_words(str(row.measure))), between, f"{100 * row.value:+.1f}", shrunken)
    note = "Rates are drawn towards the mean of the groups, the more the less is known of each: better on average, biased towards no gap."
    return Group(table, Text(note, style="dim"))


@dataclass(frozen=True)
class _GapRows:
    """The gaps of an attribute with their p-values, and simultaneous intervals where the terminal is wide enough."""

    rows: pd.DataFrame

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        wide = options.max_width >= WIDE
        table = _table(f"Gaps by {short_name(self.rows['attribute'].iloc[0])}: the group's rate minus the reference's")
        table.add_column("measure", no_wrap=True)
        table.add_column("between", overflow="fold")
        table.add_column("gap", justify="right", width=GAP_INTERVAL)
        if wide:
            table.add_column("simultaneous", justify="right", no_wrap=True)
        table.add_column("minimum detectable gap", justify="right", max_width=LONGEST_HEADER)
        table.add_column("p", justify="right")
        table.add_column("adjusted p", justify="right", max_width=len("adjusted"))
        for row in self.rows.itertuples():
            gap = _interval(row.value, row.low, row.high, sign="+", few=row.few)
            if row.clear:
                gap.stylize("bold")
            cells: list[RenderableType] = [str(row.measure), Text(f"{short_name(row.group)} minus {short_name(row.reference)}"), gap]
            if not np.isnan(row.value):
                cells += [f"[{row.simultaneous_low:+.3f}, {row.simultaneous_high:+.3f}]"] if wide else []
                cells += ["none" if np.isnan(row.detectable) else f"{row.detectable:.3f}", p_words(row.p_value)]
                cells.append(p_words(row.p_adjusted) + (CLEAR_MARK if row.clear else ""))
            table.add_row(*cells)
        yield table


def _remarks(audit: Audit) -> list[RenderableType]:
    lines = list(_about_rows(audit))
    for name in audit.assumed:
        reference = short_name(audit.references[name])
        lines.append(f"{short_name(name)}: no reference was given, so the largest group, {reference}, is used (--reference).")
    for (group, note), attribute in zip(audit.groups["note"].items(), audit.groups["attribute"], strict=True):
        if note:
            lines.append(f"{short_name(attribute)} {short_name(group)}: {lacking_words(str(note))}.")
    lines.append(_how_sampled(audit))
    if len(audit.gaps):
        lines.append("p: by permutation of groups; adjusted p: for all comparisons of the audit; measures that mirror each other are one.")
    meanings = [f"{name} = {meaning(name)}" for name in audit.gaps["measure"].unique()]
    if meanings:
        lines.append("; ".join(meanings) + ".")
    return [Text(line, style="dim") for line in lines]


def _interval(value: float, low: float, high: float, sign: str = "", few: bool = False) -> Text:
    return Text(interval(value, low, high, sign) + (FEW_MARK if few else ""), style="yellow" if np.isnan(value) else "")


# Both


def _headline(audit: Audit) -> list[RenderableType]:
    """What was audited, and the conclusion."""
    unit = f"{audit.rows:,} rows" + (f" of {audit.patients:,} patients" if audit.patients is not None else "")
    head = Text.assemble("Audit of ", (short_name(audit.name), "bold"), f": {unit}. Positive if {printable(audit.rule.describe())}.")
    simple = [Text(line) for line in baseline_words(audit.baseline, audit.settings.level)]
    return [head, *([Text(conclusion(audit), style="bold")] if len(audit.gaps) else []), *simple]


def _about_rows(audit: Audit) -> Iterator[str]:
    """What to know about the rows: those without a group, and patients in several groups."""
    for name, share in audit.missing.items():
        if share:
            yield f"{short_name(name)}: {share:.1%} of rows have no value; they count for performance, not for gaps."
    yield from (f"{printable(varying_words(each))}." for each in audit.varying)
    yield from map(printable, sampled_words(audit))


def _how_sampled(audit: Audit) -> str:
    unit = "rows" if audit.patients is None else "patients"
    marked = audit.groups["few"].str.len().sum() + audit.gaps["few"].sum()
    few = f" {FEW_MARK}: fewer than {FEW} {unit}." if marked else ""
    clear = f" {CLEAR_MARK}: clear of 0 after adjustment for {comparison_words(audit)} (Holm)." if len(audit.gaps) else ""
    weighted = " Rates are weighted by the sample weights." if audit.weighted else ""
    return f"Intervals: score intervals, by {unit[:-1]}.{clear}{few}{weighted}"


def _table(title: str) -> Table:
    return Table(box=box.SIMPLE_HEAD, title=Text(title), title_justify="left", title_style="bold", pad_edge=False, show_edge=False)


# Layers


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
