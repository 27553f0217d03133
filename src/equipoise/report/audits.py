"""An audit as parts, of one label or of several: one screen of a terminal, the whole audit, and the tables that its page shows too."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from equipoise.measures import (
    ALL_ROWS,
    CALIBRATION_ERROR,
    GROUP_MEASURES,
    OVERALL_SCORE_MEASURES,
    SCORE_MEASURES,
    SUMMARIES,
    Audit,
    AuditSpec,
    Estimate,
    LabelAudit,
    group_estimate,
    measure_of,
)
from equipoise.report.document import Block, Called, Cell, Column, Items, Part, Scale, Table, Text, Words, outcome, table
from equipoise.report.text import Span, amount, p_value_words, percent, plural, rows_counted, sentence, short, span
from equipoise.report.wording import audits as wording
from equipoise.report.wording.names import (
    PERFORMANCE_WORDS,
    RATE_WORDS,
    GroupNames,
    distinct,
    gap_words,
    group_words,
    lacking_words,
    rate_title,
    summary_kind,
)

SCREEN_GROUPS, SCREEN_GAPS = 10, 9  # rows of each table on one screen of a terminal
NARROW, WIDE = 76, 110  # columns of a terminal below which counts of positives, and simultaneous intervals, are left out
FIRST_MEASURES = ("eod", "fpr_gap")  # missed findings and false alarms: always on paper, and first in the overview of several labels
BY_LABEL = {  # the differences by a label and an adjudicated one
    "label": "label, all rows",
    "label_adjudicated": "label, adjudicated rows",
    "adjudicated": "adjudicated label",
    "corrected": "corrected, all rows",
}
ENDS = ("", "_low", "_high")
ALL_RATES = (*GROUP_MEASURES, *SCORE_MEASURES, CALIBRATION_ERROR)
AREAS = ("auroc", "average_precision")
SCREEN_VALUES = {"balanced_accuracy": "share", "auroc": "area", "calibration_slope": "number", "calibration_intercept": "signed"}
UNKNOWN_ESTIMATE = Estimate(math.nan, math.nan, math.nan)
LAYER_ROWS = {None: "all patients", 1: "positives", 0: "negatives"}  # of a probe, by label


# Tables that audits and repairs share


def rate_table(
    caption: Words, rates: Mapping[str, Sequence[tuple[Cell, ...]]], settings: AuditSpec, heads: Sequence[str], **more: Any
) -> Table:
    """The rates of groups, each on its axis; a row is the name of a group and its estimates, one under each head."""
    blocks = []
    for rate, rows in rates.items():
        kind = RATE_WORDS[rate].kind
        valued = [(first, *(Cell(value=cell.value, kind=kind) for cell in values)) for first, *values in rows]
        scale = Scale.of([cell.value for row in valued for cell in row[1:] if cell.value], kind)
        blocks.append(Block(valued, rate_title(rate, settings), RATE_WORDS[rate].means, scale))
    return Table(caption, [Column("Group"), *(Column(head, head.lower()) for head in heads)], blocks, by="rate", **more)


def gap_table(
    caption: Words,
    gaps: Mapping[str, Sequence[Sequence[Estimate]]],
    called: Called,
    heads: Sequence[str],
    means: Callable[[str], str] = str,
    once: bool = False,
    **more: Any,
) -> Table:
    """The gaps of each measure on one axis, with simultaneous intervals, p-values and detectable gaps; a row has one gap per head.

    A reference that all rows share is said `once` for each measure.
    """
    blocks = []
    pairs = [(sides[-1].group, sides[-1].reference) for rows in gaps.values() for sides in rows]
    shared, head = both_or_group(pairs, called) if once else (None, "Between")
    for measure, gap_rows in gaps.items():
        rows = []
        for sides in gap_rows:
            last = sides[-1]
            row = [Cell((Span(called(last.group)),) if shared else between(last, called)), *(gap_cell(gap) for gap in sides)]
            if math.isnan(last.value):
                row.append(Cell((Span(short(last.note.replace("insufficient data: ", "")), "span"),), wide=3))
            else:
                p = [p_value_words(gap.p_adjusted) or "—" for gap in sides]
                before = (Span(p[0], "value"), " ", Span(f"[{p_value_words(last.p_value)}]", "span"))
                row.append(Cell((Span(span(last.simultaneous_low, last.simultaneous_high, "points"), "span"),)))
                row += [
                    Cell((" → ".join(p) if set(p) != {"—"} else "—") if len(sides) > 1 else before),
                    Cell(amount(last.detectable, "detectable")),
                ]
            rows.append(tuple(row))
        blocks.append(Block(rows, (gap_words(measure), *(shared or ())), means(measure)))
    scale = Scale.of([gap for rows in gaps.values() for sides in rows for gap in sides], "points")
    further = [Column("Simultaneous", least=WIDE), Column("Adjusted p"), Column("Detectable")]
    columns = [Column("Group" if shared else head, style="text"), *(Column(head, head.lower()) for head in heads), *further]
    return Table(caption, columns, blocks, by="gap in", scale=scale, **{"style": "gaps"} | more)


def gap_cell(gap: Estimate) -> Cell:
    """A gap in points; it stands out if it is clear."""
    return Cell(value=gap, kind="points", style="shown" if gap.clear else "")


def both_or_group(pairs: Sequence[tuple[Any, Any]], called: Called) -> tuple[tuple[str, ...] | None, Words]:
    """Words behind a heading with the reference that several groups share, and the head of a column of groups; None if each names both."""
    references = {str(reference) for _, reference in pairs}
    if len(references) != 1 or len({str(group) for group, _ in pairs}) < 2:
        return None, "Between"
    reference = Span(called(references.pop()))
    return (", minus ", reference), ("Group minus ", reference)


def between(gap: Any, called: Called) -> tuple[str, ...]:
    """The two groups of a gap, or of a ratio."""
    how = " / " if getattr(gap, "measure", "") in SUMMARIES and SUMMARIES[gap.measure].is_ratio else " minus "
    return Span(called(gap.group)), how, Span(called(gap.reference))


def performance_rows(audit: LabelAudit) -> list[tuple[str, Estimate, str]]:
    """The performance over all patients: its name, its value and the kind of its numbers."""
    names = [name for name in PERFORMANCE_WORDS if name in audit.estimates]
    return [(sentence(PERFORMANCE_WORDS[name]), audit[name], "area" if name in AREAS else "share") for name in names]


def row_notes(audit: LabelAudit, called: Called) -> list[Words]:
    """Notes on the rows: missing groups, patients in several groups, rows that are left out, and references that were not given."""
    notes = list[Words]()
    for name, missing in audit.missing.items():
        if missing:
            notes.append((Span(name), f" is unknown for {amount(missing)} of the rows. They count for performance, not for differences."))
    notes += [f"{wording.varying_words(each)}." for each in audit.varying if each.patients]
    notes += [wording.left_out_words(audit)] if audit.left_out else []
    for name in audit.assumed:
        reference = Span(called(audit.references[name]))
        notes.append((Span(name), ": no reference was given, so the largest group, ", reference, ", is used (--reference)."))
    return notes


def _chosen(rows: pd.DataFrame, attribute: str | None, measures: Iterable[str] = ()) -> pd.DataFrame:
    """The rows of one attribute, or of all, and of some measures, or of all that do not mirror each other."""
    chosen = rows if attribute is None or not len(rows) else rows[rows["attribute"] == attribute]
    if "measure" not in chosen or (chosen["measure"].isin(SUMMARIES).any() and not measures):
        return chosen
    return chosen[chosen["measure"].isin([*measures] or distinct(chosen["measure"].unique()))]


class LabelSections:
    """The parts of the audit of one label, from which its page and its views in a terminal and a notebook are put together."""

    def __init__(self, audit: LabelAudit, names: Mapping[str, str] | None = None) -> None:
        self.audit = audit
        self.groups = {str(name): rows for name, rows in audit.groups.groupby("attribute", sort=False)}
        self.single = [name for name in self.groups if name not in audit.intersections]
        self.names = group_words(names, {name: list(map(str, self.groups[name].index)) for name in self.single})
        self.called: Called = self.names.full
        self.level = percent(audit.settings.level)
        self.comparisons, self.controlled = plural(audit.comparisons, "comparison"), wording.controlled_words(audit)
        self.unit = wording.counted_unit(audit.rows, audit.patients)
        self.by_row = f"by row: {wording.BY_ROW}" if audit.patients is None else ""
        self.few = wording.few_words(audit.rows, audit.patients, audit.weighted)  # the meaning of the mark

    def head(self) -> Text:
        """The name, the size and the decision rule of the audit."""
        size = f"{self.audit.rows:,} rows" + (f" of {self.audit.patients:,} patients" if self.audit.patients is not None else "")
        return Text(("Audit of ", Span(self.audit.name), f": {size}. Positive if {self.audit.rule.describe()}."))

    def answer(self, *, whole: bool = True) -> list[Part]:
        """The sentence that leads every output, the largest difference if `whole`, and warnings."""
        style, first = wording.answer(self.audit, self.names)
        unflagged = wording.unflagged_words({self.audit.name: self.audit})
        baseline = wording.baseline_words(self.audit.baseline, self.audit.settings.level) if self.audit.baseline else []
        return [
            outcome(style, first),
            *([Text(wording.conclusion(self.audit, self.names), id="conclusion")] if whole and style == "harm" else []),
            *([Text(unflagged, "callout", "unflagged")] if unflagged else []),
            *(Text(words, "callout", "" if k else "baseline") for k, words in enumerate(baseline)),
        ]

    def interval_words(self) -> str:
        """The kind of intervals, and the meaning of the marks."""
        text = f"Score intervals {self.by_row or 'by patient'}."
        if len(self.audit.gaps):
            text += f" *: clear after adjustment for {self.comparisons}."
        if self.audit.groups["few"].str.len().sum() + self.audit.gaps["few"].sum():
            text += f" †: {self.few}."
        return text + (" Rates are weighted by the sample weights." if self.audit.weighted else "")

    # Tables

    def name(self, group: object, row: Any, **more: Any) -> Cell:
        """The name of a group."""
        return Cell((Span(self.called(str(group))),), tag="reference" if row["reference"] else "", **more)

    def rates(self, attribute: str, rates: Iterable[str]) -> Table:
        """The rates of the groups of an attribute."""
        groups = self.groups[attribute]
        valued = {
            rate: [(self.name(group, row), Cell(value=group_estimate(row, rate))) for group, row in groups.iterrows()]
            for rate in rates
            if rate in groups
        }
        units = f", in percent or as on the page, with {self.level} intervals"
        return rate_table(("Rates by ", Span(attribute)), valued, self.audit.settings, ["Rate"], style="rates", units=units, grid=True)

    def gaps(self, rows: pd.DataFrame, attribute: str = "", measures: Iterable[str] | None = None, **more: Any) -> Table:
        """Gaps by measure, from rows of `LabelAudit.gaps`."""
        by_measure = {
            measure: [[Estimate.of_gap(row)] for row in rows[rows["measure"] == measure].to_dict("records")]
            for measure in (dict.fromkeys(rows["measure"]) if measures is None else measures)
        }
        caption: Words = ("Differences by ", Span(attribute)) if attribute else "Differences"
        units = f": group minus reference, in points, with {self.level} intervals"
        return gap_table(caption, by_measure, self.called, ["Difference"], once=measures is not None, units=units, **more)

    def shrunken(self, attribute: str | None = None) -> list[Part]:
        """Shrunken differences next to the plain ones, of one attribute or of all; nothing if no attribute has enough groups."""
        gaps = self.audit.shrunken()
        gaps = gaps[gaps["shrunken"].notna() & gaps["measure"].isin(distinct(gaps["measure"].unique()))]
        rows = []
        for row in (gaps if attribute is None else gaps[gaps["attribute"] == attribute]).itertuples():
            shrunken = Cell(value=Estimate(row.shrunken, row.low, row.high), kind="points")
            rows.append((sentence(gap_words(str(row.measure))), between(row, self.called), amount(row.value, "points"), shrunken))
        heads = ["Difference in", Column("Between", style="text"), "Plain", "Shrunken"]
        caption = f"Differences in percentage points, plain and shrunken (empirical Bayes), the latter with {self.level} intervals"
        title = Text("Shrunken differences (empirical Bayes)", "heading")
        return [title, Text(wording.SHRINKAGE, "notes"), table(caption, heads, rows, style="shrunken")] if rows else []

    def summaries(self, attribute: str) -> list[Part]:
        """Ratios, ranges, worst groups and differences in measures of scores, of those that were asked for."""
        rows = []
        for row in _chosen(self.audit.summaries, attribute).itertuples():
            groups = [Span(self.called(group)) for group in (row.group, row.reference) if group]
            named: Words = (*groups[:1], *((" / " if SUMMARIES[row.measure].is_ratio else " minus ", groups[1]) if groups[1:] else ()))
            value = Estimate(row.value, row.low, row.high, few=bool(row.few), note=str(row.note))
            rows.append(
                (sentence(gap_words(row.measure)), named, Cell(value=value, kind=summary_kind(row.measure)), p_value_words(row.p_value))
            )
        caption = ("Groups compared, by ", Span(attribute), f": ratios as they are, otherwise in percent or points, {self.level} intervals")
        heads = ["Compared", Column("Groups", style="text"), Column("Value", "value"), Column("p, not adjusted", least=NARROW)]
        return [table(caption, heads, rows, style="stack")] if rows else []

    def within(self, attribute: str | None = None, measures: Iterable[str] = ()) -> list[Part]:
        """Differences among comparable patients next to those of all, of one attribute or of all; nothing if the rows have no strata."""
        rows, found = [], self.audit.within
        for row in _chosen(found, attribute, measures).itertuples():
            within = Cell(value=Estimate(row.value, row.low, row.high, note=str(row.note)), kind="points")
            left_out = f"{row.left_out:,}" if row.left_out else "none"
            name = sentence(gap_words(str(row.measure)))
            rows.append((name, between(row, self.called), amount(row.crude, "points"), within, left_out))
        if not rows:
            return []
        strata = Span(str(found["within"].iloc[0]))
        heads = ["Difference in", Column("Between", style="text"), "All patients", ("Within ", strata), Column("Rows left out", least=WIDE)]
        caption = (
            "Differences in percentage points among patients with the same ",
            strata,
            f" (Mantel-Haenszel), with {self.level} intervals",
        )
        return [table(caption, heads, rows, style="stack")]

    def adjudicated(self, attribute: str | None = None, measures: Iterable[str] = ()) -> list[Part]:
        """How well the label agrees with the adjudicated one, and the differences by both; nothing without an adjudicated label."""
        groups, rows, agreement = self.audit.label_groups, [], []
        for row in _chosen(groups, attribute).itertuples():
            shares = [Cell(value=Estimate(*(getattr(row, f"{name}{end}") for end in ENDS))) for name in ("carried", "confirmed")]
            group = Cell((Span(self.called(row.group)),), tag="reference" if row.reference else "")
            agreement.append((group, f"{row.rows:,}", f"{row.positives:,}", shares[0], f"{row.labelled:,}", shares[1]))
        for row in _chosen(self.audit.label_gaps, attribute, measures).itertuples():
            compared: Words = (sentence(gap_words(str(row.measure))), ", ", *between(row, self.called))
            for name, words in BY_LABEL.items():
                gap = Estimate(*(getattr(row, f"{name}{end}") for end in ENDS))
                known = not math.isnan(gap.value)
                bounds = f"{span(gap.low, gap.high, 'points')} (bounds)" if not math.isnan(gap.low) else "insufficient data"
                rows.append((compared, words, Cell(value=gap, kind="points") if known else Cell(bounds)))
                compared = ""
        if not rows:
            return []
        heads = ["Group", "rows", Column("positives", least=WIDE), "labelled, %", Column("labelled", least=WIDE), "confirmed, %"]
        caption = f"Adjudicated rows: positives that are labelled, and labelled rows that are confirmed, {self.level} intervals"
        of_gaps = f"Differences in points by the label and by the adjudicated label, {self.level} intervals"
        columns = ["Difference in", Column("by", style="text"), "Difference"]
        tables = table(caption, heads, agreement, style="stack"), table(of_gaps, columns, rows, style="stack")
        return [*tables, Text(wording.CORRECTED, "notes")]

    def performance(self) -> list[Part]:
        """Performance and calibration over all patients."""
        audit = self.audit
        rows: list[tuple[Cell | Words, Cell]] = [(name, Cell(value=value, kind=kind)) for name, value, kind in performance_rows(audit)]
        for rate in (name for name in OVERALL_SCORE_MEASURES if name in audit.estimates):
            words = RATE_WORDS[rate]
            rows.append((Cell(sentence(words.name), means=words.means), Cell(value=audit[rate], kind=words.kind)))
        return [table(f"Performance over all patients, with {self.level} intervals", ["Measure", "Value"], rows)] if rows else []

    def cohort(self, attribute: str) -> Table:
        """The rows of each group."""
        least, rows = self.audit.settings.min_patients, []
        for group, row in self.groups[attribute].iterrows():
            counts = [row["positives"], row["negatives"]]
            marked = [Cell(rows_counted(count), style="few" if pd.isna(count) or count < least else "") for count in counts]
            rows.append((self.name(group, row), f"{row['n']:,}", *marked))
        return table(("Rows by ", Span(attribute)), ["Group", "rows", "with the finding", "without"], rows, style="cohort")

    def curves(self) -> Table:
        """Net benefit by group at up to five thresholds."""
        curves, rows = self.audit.curves, []
        cuts = sorted(curves["threshold"].unique())
        cuts = [cuts[k] for k in sorted({round(k * (len(cuts) - 1) / 4) for k in range(5)})]
        for (attribute, group), own in curves.groupby(["attribute", "group"], sort=False):
            curve = own.set_index("threshold").loc[cuts, ["net_benefit", "treat_all"]].to_numpy()
            name: Words = "all patients" if attribute == ALL_ROWS else (Span(attribute), ": ", Span(self.called(group)))
            rows.append((name, *("" if math.isnan(benefit) else f"{1000 * benefit:.0f}, {1000 * of_all:.0f}" for benefit, of_all in curve)))
        caption = f"Net benefit per 1,000 {self.unit} by threshold: deciding by the score, by treating all; treating none is 0"
        return table(caption, ["group", *(f"{cut:.3g}" for cut in cuts)], rows)

    # Views

    def screen(self) -> list[Part]:
        """The audit on one screen: the answer, one table of groups, one of gaps, and notes.

        Gaps are without mirrored measures and without the average of two that are both shown (aod of eod and fpr_gap): all that fit, or the
        largest of each attribute and measure. Groups are all, or those of single attributes, first references and groups with such a gap.
        """
        audit, gaps, rows = self.audit, self.audit.gaps, []
        measures = distinct(gaps["measure"].unique())
        if {"eod", "fpr_gap", "aod"} <= set(measures):
            measures.remove("aod")
        gaps = gaps[gaps["measure"].isin(measures)].reset_index(drop=True)
        if len(gaps) > SCREEN_GAPS:
            size = gaps["value"].abs().fillna(-1)
            gaps = gaps.loc[sorted(size.groupby([gaps["attribute"], gaps["measure"]], sort=False).idxmax())]
        gaps = gaps if len(gaps) <= SCREEN_GAPS else gaps.loc[sorted(gaps["value"].abs().nlargest(SCREEN_GAPS).index)]
        groups = audit.groups.rename_axis("group").reset_index()
        if len(groups) > SCREEN_GROUPS:
            groups = groups[~groups["attribute"].isin(audit.intersections)]
        if len(groups) > SCREEN_GROUPS:
            compared = set(zip(gaps["attribute"], gaps["group"].astype(str), strict=True))
            names = zip(groups["reference"], groups["attribute"], groups["group"], strict=True)
            first = [bool(reference) or (attribute, str(group)) in compared for reference, attribute, group in names]
            order = groups.assign(_first=first).sort_values(["_first", "n"], ascending=False, kind="stable").index[:SCREEN_GROUPS]
            groups = groups.loc[sorted(order)]
        several = len(set(groups["attribute"])) > 1
        for row in groups.to_dict("records"):
            name = (*((Span(row["attribute"]), ": ") if several else ()), Span(row["group"]))
            rates = [Cell(value=group_estimate(row, rate)) for rate in ("tpr", "fpr")]
            called = Cell(name, tag="reference" if row["reference"] else "")
            rows.append((called, f"{row['n']:,}", rows_counted(row["positives"]), *rates))
        heads = ["group", "rows", Column("positives", least=NARROW), "sensitivity, %", "FPR, %"]
        values = []
        for measure, kind in SCREEN_VALUES.items():
            if measure in audit.estimates and not math.isnan(audit[measure].value):
                words = PERFORMANCE_WORDS.get(measure, "intercept" if "intercept" in measure else "calibration slope")
                values.append(f"{words} {amount(audit[measure].value, kind)} ({span(audit[measure].low, audit[measure].high, kind)})")
        more = [(len(audit.groups) - len(groups), "groups"), (len(audit.gaps) - len(gaps), "gaps")]
        rest = ", ".join([*(f"{count} more {name}" for count, name in more if count), "all rates"])
        legend = f"{self.interval_words()} FPR: false positive rate. Detectable: own interval, 80% power. --verbose: {rest}."
        return [
            self.head(),
            *(self.answer(whole=False) if len(audit.gaps) else []),
            *([Text(f"{sentence(', '.join(values))}.")] if values else []),
            *(Text(""), table(f"Groups, with {self.level} intervals", heads, rows)),
            *((Text(""), self.gaps(gaps).only(0, 1, 4)) if len(gaps) else ()),
            *(part for name in self.single for part in (Text(""), *self.summaries(name)) if len(audit.summaries)),
            *(part for name in self.single for part in (Text(""), *self.within(name, FIRST_MEASURES)) if len(audit.within)),
            *(part for name in self.single for part in (Text(""), *self.adjudicated(name, FIRST_MEASURES)) if len(audit.label_gaps)),
            *(Text(""), Items([*row_notes(self.audit, self.called), *wording.sampled_words(audit), legend])),
        ]

    def whole(self) -> list[Part]:
        """The whole audit in a terminal: every rate of every group, every gap, decision curves and notes."""
        audit, unit = self.audit, "rows" if self.audit.patients is None else "patients"
        parts = [self.head(), *(self.answer() if len(audit.gaps) else []), *self.performance()]
        parts += [part for name in self.groups for part in (self.cohort(name), self.rates(name, ALL_RATES))]
        parts += [self.gaps(rows, str(name)) for name, rows in audit.gaps.groupby("attribute", sort=False)]
        parts += [part for name in self.groups for part in (*self.summaries(name), *self.within(name), *self.adjudicated(name))]
        parts += [self.curves()] if audit.curves["net_benefit"].notna().any() else []
        notes = [*row_notes(self.audit, self.called), *wording.sampled_words(audit)]
        for (group, lacking), attribute in zip(audit.groups["lacking"].items(), audit.groups["attribute"], strict=True):
            if lacking:
                notes.append((Span(attribute), " ", Span(group), f": {lacking_words(lacking, audit.settings, unit)}."))
        notes.append(self.interval_words())
        if len(audit.gaps):
            notes.append(f"Adjusted p [before adjustment]: {self.controlled}. Measures that mirror each other are one comparison.")
            notes.append("; ".join(f"{name} = {measure_of(name).meaning}" for name in audit.gaps["measure"].unique()) + ".")
        return [*parts, Items(notes)]


# All labels


def labels_table(audit: Audit, links: Mapping[str, str], names: GroupNames, most: int | None = None) -> Table:
    """One row per label: its answer, balanced accuracy, rows, and largest gap."""
    rows = []
    for label, own in list(audit.overview.items())[:most]:
        style, text = wording.answer(own, names, brief=True)
        estimate, gap = own.estimates.get("balanced_accuracy", UNKNOWN_ESTIMATE), wording.largest_gap_row(own)
        largest: list[Cell | Words] = ["", ""]
        if gap is not None:
            found = Estimate.of_gap(gap)
            largest = [(f"{gap_words(str(gap['measure']))}: ", *between(found, names.full)), gap_cell(found)]
        first = Cell((Span(label),), href=links.get(label, ""))
        accuracy = "" if math.isnan(estimate.value) else f"{100 * estimate.value:.1f}"
        rows.append((first, Cell(text, style=f"outcome-{style}"), Cell(value=estimate), f"{own.rows:,}", accuracy, *largest))
    heads = [sentence(audit.kind.one), Column("Answer", style="text"), "Balanced accuracy", "rows"]
    heads += ["balanced accuracy, %", Column("largest gap", style="text"), "points"]
    level = percent(next(iter(audit.labels.values())).settings.level)
    caption = f"The answer for each, with the balanced accuracy over all patients and its {level} interval"
    return table(caption, heads, rows, style="labels stack")


def further_by_label(audit: Audit, called: Called, most: int | None = None) -> list[Part]:
    """The largest gap of each label among comparable patients, and by an adjudicated label; nothing if the rows have neither."""
    within, adjudicated = list[Any](), list[Any]()
    strata, level = "", percent(next(iter(audit.labels.values())).settings.level)
    for label, own in list(audit.overview.items())[:most]:
        gap = wording.largest_gap_row(own)
        for frame, rows, sides in ((own.within, within, ("value",)), (own.label_gaps, adjudicated, ("adjudicated", "corrected"))):
            if gap is None or not len(frame):
                continue
            same = np.logical_and.reduce([frame[name] == gap[name] for name in ("measure", "attribute", "group")])
            row = frame[same].iloc[0] if same.any() else None
            if row is not None:
                plain = float(row["crude" if sides == ("value",) else "label"])
                values = [Estimate(row[side], *(row[f"{side}{end}".removeprefix("value_")] for end in ENDS[1:])) for side in sides]
                named = (f"{gap_words(str(gap['measure']))}: ", *between(row, called))
                rows.append(((Span(label),), named, amount(plain, "points"), *(Cell(value=value, kind="points") for value in values)))
                strata = str(row.get("within", strata))
    made, of = list[Part](), [sentence(audit.kind.one), Column("largest gap", style="text")]
    if within:
        caption: Words = ("Among patients with the same ", Span(strata), f" (Mantel-Haenszel), with {level} intervals")
        made += [Text(""), table(caption, [*of, "all patients", ("within ", Span(strata))], within)]
    if adjudicated:
        caption = f"By the adjudicated label of some rows, and as that would show all rows, with {level} intervals"
        made += [Text(""), table(caption, [*of, "label", "adjudicated", "corrected"], adjudicated), Text(wording.CORRECTED, "notes")]
    return made


def audit_screen(audit: Audit, names: Mapping[str, str] | None = None, *, most: int | None = None) -> list[Part]:
    """The audit on one screen; of several labels, of which at most so many are shown, the answer and one row per label."""
    first = LabelSections(next(iter(audit.labels.values())), names)
    if len(audit.labels) == 1:
        return first.screen()
    one, warning = audit.kind.one, wording.unflagged_words(audit.labels, audit.kind)
    notes = (
        f"{first.interval_words().partition('.')[0]}. *: clear of 0. {wording.overview_words(audit)}. "
        "Largest gap: of the clear ones if there are any, and among these of single attributes before intersections. "
        f"--verbose shows the audit of each {one}."
    )
    left_out = [f"The first {most} of {len(audit.labels)} {audit.kind}."] if most is not None and len(audit.labels) > most else []
    made = labels_table(audit, {}, first.names, most).only(0, 3, 4, 5, 6)
    return [
        Text(("Audit of ", Span(audit.name), f", {len(audit.labels)} {audit.kind}. {wording.decisions_words(audit.labels)}")),
        outcome(*wording.overview_answer(audit)),
        *([Text(warning, "callout")] if warning else []),
        *(Text(""), replace(made, caption=f"{len(audit.labels)} {audit.kind}, with {first.level} intervals")),
        *further_by_label(audit, first.called, most),
        Items([notes, *left_out]),
    ]


def audit_parts(
    audit: Audit, names: Mapping[str, str] | None = None, *, verbose: bool = False, layers: pd.DataFrame | None = None
) -> list[Part]:
    """The audit for a terminal, on one screen or whole, label by label; then what else was asked for: shrunken gaps, probes of `layers`."""
    parts, more, settings = ([] if verbose else audit_screen(audit, names)), list[Part](), next(iter(audit.labels.values())).settings
    for label, own in audit.prefixed.items() if verbose or settings.shrink else ():
        sections, heading = LabelSections(own, names), [Text(label, "heading")] if label else []
        parts += [*heading, *sections.whole()] if verbose else []
        if settings.shrink:
            of_label = f" of {label}" if label else ""
            none = Text(f"No shrunken differences{of_label}: they need an attribute with at least four groups that have a rate.")
            more += [*heading, *(sections.shrunken() or [none])]
    if audit.no_finding is not None:
        more += underdiagnosis_parts(audit.no_finding, LabelSections(audit.no_finding, names).called)
    return [*parts, *more, *([] if layers is None else encoding_parts(layers, settings.level))]


def underdiagnosis_parts(audit: LabelAudit, called: Called = str) -> tuple[Text, Table, Text]:
    """Underdiagnosis by group, from the audit of "no finding": of patients with a finding, the share decided to have none."""
    rows = []
    for row in audit.underdiagnosis.itertuples():
        gap = Estimate(row.gap, row.gap_low, row.gap_high, clear=bool(row.clear), few=bool(row.few))
        name = Cell((Span(row.attribute), ": ", Span(called(row.group))), tag="reference" if row.reference else "")
        rate = Cell(value=Estimate(row.rate, row.low, row.high))
        difference = Cell() if row.reference else gap_cell(gap)
        rows.append((name, rows_counted(row.with_finding), rate, difference, p_value_words(row.p_adjusted)))
    level, comparisons = percent(audit.settings.level), plural(audit.comparisons, "comparison")
    caption = (
        f"Rows with a finding, the share decided to have none, and the difference from the reference in points, with {level} intervals"
    )
    about = f"Of the patients who have a finding, the share that is decided to have none. Here “no finding” means: {audit.rule.describe()}."
    heads = ["Group", "with a finding", "underdiagnosed", "difference", "adjusted p"]
    return Text(about), table(caption, heads, rows), Text(f"Bold: clear of zero after adjustment for {comparisons}.", "notes")


def encoding_parts(layers: pd.DataFrame, level: float = 0.95) -> list[Part]:
    """How well each attribute can be predicted from each layer, which does not show whether the network uses it."""
    from equipoise.models import AUROC_LABELS

    parts: list[Part] = []
    for name, own in layers.groupby("attribute", sort=False):
        rows = []
        for _, row in own.iterrows():
            for k, (measure, label) in enumerate(AUROC_LABELS.items()):
                auroc = Estimate(row[measure], row[f"{measure}_low"], row[f"{measure}_high"])
                layer = ((Span(row["layer"]),), str(row["depth"]), f"{row['width']:,}") if k == 0 else ("", "", "")
                rows.append((*layer, LAYER_ROWS[label], Cell(value=auroc, kind="area", style="shown" if auroc.low > row["chance"] else "")))
        words = ("How well ", Span(name), f" can be predicted from the inputs of a layer: AUROC of a probe, {percent(level)} intervals")
        notes = Items([(Span(name), f": {note}.") for note in dict.fromkeys(own["note"]) if note])
        parts += [table(words, ["layer", "depth", "width", Column("among", style="text"), "AUROC"], rows), notes]
    chance = "0.5 or less is chance (bold: the interval is above it). Among rows of one label, differences in prevalence have no effect."
    return [*parts, Items([f"{chance} {wording.READ_IS_NOT_USED}"])]
