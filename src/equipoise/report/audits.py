"""The sections of an audit: the page of its label, or the overview of several; one screen of a terminal, and the whole audit."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from equipoise.measures import (
    ALL_ROWS,
    CALIBRATION_ERROR,
    GROUP_MEASURES,
    OVERALL_SCORE_MEASURES,
    SCORE_MEASURES,
    AuditSpec,
    Estimate,
    LabelAudit,
    group_estimate,
    meaning,
)
from equipoise.report import document as doc
from equipoise.report.document import Block, Called, Cell, Column, Fixed, Part, Section, Span, Table, Text, Words, table
from equipoise.report.origin import Origin
from equipoise.report.panels import DIAGONAL, Mark, Panel, Scale, decision_panels, dot, path_through, percents, x_at, y_at
from equipoise.report.text import amount, date_words, how_many, p_value_words, percent, plain, plural, rows_counted, sentence, short, span
from equipoise.report.wording import audits as wording
from equipoise.report.wording.names import (
    HEADLINE,
    PERFORMANCE,
    RATES,
    SHOWN,
    attributes_of,
    distinct,
    gap_words,
    group_words,
    lacking_words,
    rate_title,
)

SECTIONS = {  # the heading of each section and, of folded ones, a hint
    "verdict": ("The answer", ""),
    "worse": ("Who is worse off", ""),
    "gaps": ("The differences", ""),
    "groups": ("Each group", ""),
    "threshold": ("Another threshold", ""),
    "cohort": ("The patients", ""),
    "signoff": ("Decision", ""),
    "limits": ("What these measures do not show", ""),
    "calibration": ("Calibration", "does a score mean the same in every group; AUROC and fixed operating points"),
    "curves": ("Decision curves", "is deciding by the score better than treating all, or none"),
    "subgroups": ("All groups and intersections", "every group by any rate, sorted and filtered"),
    "method": ("Method and provenance", "how intervals and tests are made; command, versions, checksums"),
}
DECISIONS = ("use the classifier", "use it under conditions", "repair it first", "do not use it")  # to tick on paper
MOST_CLEAR = 12  # clear differences in the table of the answer
MOST_GROUPS = 40  # of an attribute with rates and differences on axes; attributes with more are in the explorer only
SCREEN_GROUPS, SCREEN_GAPS = 10, 9  # rows of each table on one screen of a terminal
NARROW, WIDE = 76, 110  # columns of a terminal below which counts of positives, and simultaneous intervals, are left out
FIRST_MEASURES = ("eod", "fpr_gap")  # missed findings and false alarms: always on paper, and first in the overview of several labels
PANELS_ON_PAPER = 6  # figures of an attribute
ALL_RATES = (*GROUP_MEASURES, *SCORE_MEASURES, CALIBRATION_ERROR)
AREAS = ("auroc", "average_precision")
UNKNOWN = Estimate(math.nan, math.nan, math.nan)
CALIBRATION_BINS = 10


# Tables that audits and repairs share


def rate_table(
    caption: Words, rates: Mapping[str, Sequence[tuple[Cell, ...]]], settings: AuditSpec, heads: Sequence[str], **more: Any
) -> Table:
    """The rates of groups, each on its axis; a row is the name of a group and its estimates, one under each head."""
    blocks = []
    for rate, rows in rates.items():
        kind = RATES[rate].kind
        valued = [(first, *(Cell(value=cell.value, kind=kind) for cell in values)) for first, *values in rows]
        scale = Scale.of([cell.value for row in valued for cell in row[1:] if cell.value], kind)
        blocks.append(Block(valued, rate_title(rate, settings), RATES[rate].means, scale))
    return Table(caption, [Column("Group"), *(Column(head, head.lower()) for head in heads)], blocks, by="rate", **more)


def gap_table(
    caption: Words,
    gaps: Mapping[str, Sequence[Sequence[Estimate]]],
    called: Called,
    heads: Sequence[str],
    means: Callable[[str], str] = str,
    **more: Any,
) -> Table:
    """The gaps of each measure on one axis, with simultaneous intervals, p-values and detectable gaps; a row has one gap per head."""
    blocks = [
        Block([(Cell(between(sides[-1], called)), *_gap_cells(sides)) for sides in rows], gap_words(measure), means(measure))
        for measure, rows in gaps.items()
    ]
    scale = Scale.of([gap for rows in gaps.values() for sides in rows for gap in sides], "points")
    further = [Column("Simultaneous", least=WIDE), Column("Adjusted p"), Column("Detectable")]
    columns = [Column("Between", style="text"), *(Column(head, head.lower()) for head in heads), *further]
    return Table(caption, columns, blocks, by="gap in", scale=scale, **{"style": "gaps"} | more)


def _gap_cells(sides: Sequence[Estimate]) -> Iterator[Cell]:
    last = sides[-1]
    yield from (Cell(value=gap, kind="points", style="shown" if gap.clear else "") for gap in sides)
    if math.isnan(last.value):
        yield Cell((Span(short(last.note.replace("insufficient data: ", "")), "span"),), wide=3)
        return
    p = [p_value_words(gap.p_adjusted) or "—" for gap in sides]
    yield Cell((Span(span(last.simultaneous_low, last.simultaneous_high, "points"), "span"),))
    yield Cell(" → ".join(p) if len(sides) > 1 else (Span(p[0], "value"), " ", Span(f"[{p_value_words(last.p_value)}]", "span")))
    yield Cell(amount(last.detectable, "detectable"))


def between(gap: Any, called: Called) -> tuple[str, ...]:
    """The two groups of a gap."""
    return Span(called(gap.group)), " minus ", Span(called(gap.reference))


def shown_gaps(gaps: pd.DataFrame) -> pd.DataFrame:
    """The gaps that fit on one screen, without mirrored measures: all of them, or the largest of each attribute and measure.

    The average of two gaps that are both shown (aod of eod and fpr_gap) is left out.
    """
    measures = distinct(gaps["measure"].unique())
    if {"eod", "fpr_gap", "aod"} <= set(measures):
        measures.remove("aod")
    gaps = gaps[gaps["measure"].isin(measures)].reset_index(drop=True)
    if len(gaps) > SCREEN_GAPS:
        size = gaps["value"].abs().fillna(-1)
        gaps = gaps.loc[sorted(size.groupby([gaps["attribute"], gaps["measure"]], sort=False).idxmax())]
    return gaps if len(gaps) <= SCREEN_GAPS else gaps.loc[sorted(gaps["value"].abs().nlargest(SCREEN_GAPS).index)]


# The audit of one label


class LabelSections:
    """The parts of the audit of one label, from which its page and its views in a terminal and a notebook are put together."""

    def __init__(self, audit: LabelAudit, names: Mapping[str, str] | None = None) -> None:
        self.audit, self.names = audit, group_words(names, attributes_of(audit))
        self.called: Called = self.names.full
        self.level = percent(audit.settings.level)
        self.comparisons = plural(audit.comparisons, "comparison")
        self.unit = wording.counted_unit(audit.rows, audit.patients)
        self.few = wording.few_words(audit.rows, audit.patients, audit.weighted)
        self.groups = {str(name): rows for name, rows in audit.groups.groupby("attribute", sort=False)}
        self.single = [name for name in self.groups if name not in audit.intersections]
        self.by_row = f"by row: {wording.BY_ROW}" if audit.patients is None else ""

    def answer(self, *, whole: bool = True) -> list[Part]:
        """The sentence that leads every output, the largest difference if `whole`, and warnings."""
        style, (first, *further) = wording.lead(self.audit, self.names)
        unflagged = wording.unflagged_words({self.audit.name: self.audit})
        baseline = wording.baseline_words(self.audit.baseline, self.audit.settings.level)
        return [
            doc.outcome(style, first),
            *(Text(words, id="conclusion") for words in further if whole),
            *([Text(unflagged, "callout", "unflagged")] if unflagged else []),
            *(Text(words, "callout", "" if k else "baseline") for k, words in enumerate(baseline)),
        ]

    def head(self) -> list[Part]:
        """The name, the size and the decision rule of the audit."""
        size = f"{self.audit.rows:,} rows" + (f" of {self.audit.patients:,} patients" if self.audit.patients is not None else "")
        return [Text(("Audit of ", Span(self.audit.name), f": {size}. Positive if {self.audit.rule.describe()}."))]

    def row_notes(self) -> list[Words]:
        """Notes on the rows: missing groups, patients in several groups, rows that are left out, and references that were not given."""
        audit, notes = self.audit, list[Words]()
        for name, missing in audit.missing.items():
            if missing:
                notes.append(
                    (Span(name), f" is unknown for {amount(missing)} of the rows. They count for performance, not for differences.")
                )
        notes += [f"{wording.varying_words(each)}." for each in audit.varying if each.patients]
        notes += filter(None, [wording.left_out_words(audit)])
        for name in audit.assumed:
            reference = Span(self.called(audit.references[name]))
            notes.append((Span(name), ": no reference was given, so the largest group, ", reference, ", is used (--reference)."))
        return notes

    def interval_words(self) -> str:
        """The kind of intervals, and the meaning of the marks."""
        text = f"Score intervals {self.by_row or 'by patient'}."
        if len(self.audit.gaps):
            text += f" *: clear after adjustment for {self.comparisons} (Holm)."
        if self.audit.groups["few"].str.len().sum() + self.audit.gaps["few"].sum():
            text += f" †: {self.few}."
        return text + (" Rates are weighted by the sample weights." if self.audit.weighted else "")

    # Tables

    def name(self, group: object, row: Any, **more: Any) -> Cell:
        """The name of a group."""
        return Cell((Span(self.called(str(group))),), tag="reference" if row["reference"] else "", **more)

    def rates(self, attribute: str, rates: Iterable[str], *, paper: bool = False) -> Table:
        """The rates of the groups of an attribute; on paper without axes, one row per group."""
        groups = self.groups[attribute]
        valued = {
            rate: [(self.name(group, row), Cell(value=group_estimate(row, rate))) for group, row in groups.iterrows()]
            for rate in rates
            if rate in groups
        }
        units = f", in percent or as on the page, with {self.level} intervals"
        made = rate_table(("Rates by ", Span(attribute)), valued, self.audit.settings, ["Rate"], style="rates", units=units, grid=True)
        if not paper:
            return made
        by_group = zip(*(block.rows for block in made.blocks), strict=True)
        heads = [Column("Group"), *(Column(sentence(doc.text_of(block.heading))) for block in made.blocks)]
        return table(made.caption, heads, [(rows[0][0], *(row[1] for row in rows)) for rows in by_group], style="compact")

    def gaps(self, rows: pd.DataFrame, attribute: str = "", measures: Iterable[str] | None = None, **more: Any) -> Table:
        """Gaps by measure, from rows of `LabelAudit.gaps`."""
        by_measure = {
            measure: [[Estimate.of_gap(row)] for row in rows[rows["measure"] == measure].to_dict("records")]
            for measure in (dict.fromkeys(rows["measure"]) if measures is None else measures)
        }
        caption: Words = ("Differences by ", Span(attribute)) if attribute else "Differences"
        units = f": group minus reference, in points, with {self.level} intervals"
        return gap_table(caption, by_measure, self.called, ["Difference"], **{"units": units} | more)

    def clear_gaps(self) -> list[Part]:
        """The differences that are clear after adjustment, of attributes that are drawn."""
        gaps, order = self.audit.gaps, distinct(self.audit.gaps["measure"].unique())
        gaps = gaps[gaps["clear"].astype(bool) & gaps["measure"].isin(order) & gaps["attribute"].isin(self.drawn)]
        if not len(gaps):
            return []
        places = [(self.drawn.index(a), order.index(m)) for a, m in zip(gaps["attribute"], gaps["measure"], strict=True)]
        gaps = gaps.loc[[gaps.index[k] for k in sorted(range(len(gaps)), key=lambda k: places[k])]][:MOST_CLEAR]
        caption = f"Clear after adjustment for {self.comparisons}, in percentage points"
        tables = [self.gaps(gaps[gaps["attribute"] == name], style="stack").flat() for name in dict.fromkeys(gaps["attribute"])]
        rows = [row for each in tables for block in each.blocks for row in block.rows]
        return [Table(caption, tables[0].columns, [Block(rows)], style="stack").only(0, 1, 2, 3, 4)]

    @property
    def drawn(self) -> list[str]:
        """The attributes with few enough groups to be drawn."""
        return [name for name, groups in self.groups.items() if len(groups) <= MOST_GROUPS]

    def shrunken(self, attribute: str | None = None) -> list[Part]:
        """Shrunken differences next to the plain ones, of one attribute or of all; nothing if no attribute has enough groups."""
        gaps = self.audit.shrunken()
        gaps = gaps[gaps["shrunken"].notna() & gaps["measure"].isin(distinct(gaps["measure"].unique()))]
        gaps = gaps if attribute is None else gaps[gaps["attribute"] == attribute]
        rows = [
            (
                sentence(gap_words(str(row.measure))),
                between(row, self.called),
                amount(row.value, "points"),
                Cell(value=Estimate(row.shrunken, row.low, row.high), kind="points"),
            )
            for row in gaps.itertuples()
        ]
        heads = ["Difference in", Column("Between", style="text"), "Plain", "Shrunken"]
        caption = f"Differences in percentage points, plain and shrunken (empirical Bayes), the latter with {self.level} intervals"
        title = doc.Heading("Shrunken differences (empirical Bayes)")
        return [title, Text(wording.SHRINKAGE, "notes"), table(caption, heads, rows, style="shrunken")] if rows else []

    def performance(self) -> list[Part]:
        """Performance and calibration over all patients."""
        audit = self.audit
        rows: list[tuple[Cell | Words, Cell]] = [
            (sentence(PERFORMANCE[name]), Cell(value=audit[name], kind="area" if name in AREAS else "share"))
            for name in PERFORMANCE
            if name in audit.estimates
        ]
        for name in OVERALL_SCORE_MEASURES:
            if name in audit.estimates:
                first = Cell(sentence(RATES[name].name), means=RATES[name].means)
                rows.append((first, Cell(value=audit[name], kind=RATES[name].kind)))
        return [table(f"Performance over all patients, with {self.level} intervals", ["Measure", "Value"], rows)] if rows else []

    def cohort(self, attribute: str) -> Table:
        """The rows of each group."""
        least, rows = self.audit.settings.min_patients, []
        for group, row in self.groups[attribute].iterrows():
            counts = [row["positives"], row["negatives"]]
            marked = [Cell(rows_counted(count), style="few" if pd.isna(count) or count < least else "") for count in counts]
            rows.append((self.name(group, row), f"{row['n']:,}", *marked))
        return table(("Rows by ", Span(attribute)), ["Group", "rows", "with the finding", "without"], rows, style="cohort")

    def errors(self, attribute: str) -> Table:
        """Missed findings and false alarms of each group per 1,000, and their differences from the reference."""
        worse = {"fnr": wording.worse_by(self.audit, wording.MISSED), "fpr": wording.worse_by(self.audit, wording.ALARMS)}
        rows = []
        for group, row in self.groups[attribute].iterrows():
            line = [self.name(group, row, means=f"{rows_counted(row['positives'])} rows with, {rows_counted(row['negatives'])} without")]
            for rate, differences in worse.items():
                more = differences.get((attribute, str(group)), UNKNOWN)
                style = f"shown {'loss' if more.value > 0 else 'gain'}" if more.clear else "empty" if row["reference"] else ""
                known = Cell(value=Estimate(more.value, more.low, more.high), kind="thousand0+", style=style)
                unknown = Cell("" if row["reference"] else "—", style=style)
                line += [Cell(value=group_estimate(row, rate), kind="thousand0"), unknown if math.isnan(more.value) else known]
            rows.append(line)
        missed, flagged = Column("missed", "missed of 1,000 with"), Column("flagged", "flagged of 1,000 without", "part")
        over = (("Missed, of 1,000 with the finding", 2, ""), ("Falsely flagged, of 1,000 without it", 2, "part"))
        heads = ["Group", missed, "difference", flagged, "difference"]
        return table(("By ", Span(attribute)), heads, rows, style="balance stack", over=over)

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

    def calibration(self, attribute: str) -> list[Panel]:
        """One panel per group: the share with the finding against the mean score, in bins of the score.

        It is drawn from `Audit.by_threshold`, so that it reveals no more about single patients than the threshold slider does.
        """
        steps, panels = self.audit.by_threshold[self.audit.by_threshold["attribute"] == attribute], []
        for code, group in enumerate(dict.fromkeys(steps["group"])):
            sides = [steps[(steps["group"] == group) & (steps["label"] == label)].set_index("threshold") for label in (1, 0)]
            points = _calibration_points(*sides) if all(len(side) for side in sides) else []
            if not points:
                continue
            spots = [(x_at(x, 0, 1), y_at(y, 0, 1)) for x, y in points]
            marks = [DIAGONAL, Mark("curve", path_through(spots), code), *(Mark("spot", dot(x, y, 2.5), code) for x, y in spots)]
            title = short(self.called(str(group)))
            says = f"Calibration of {title}: {'; '.join(f'score {amount(x)}, share {amount(y)}' for x, y in points)}."
            panels.append(Panel(title, says, percents("x"), percents("y"), "mean score", "share with the finding", tuple(marks)))
        return panels

    # Views

    def screen(self) -> list[Part]:
        """The audit on one screen: the answer, one table of groups, one of gaps, and notes."""
        audit, gaps = self.audit, shown_gaps(self.audit.gaps)
        groups = self._screen_groups(gaps)
        several, rows = len(set(groups["attribute"])) > 1, []
        for row in groups.to_dict("records"):
            first = Cell(
                ((Span(row["attribute"]), ": ") if several else ()) + (Span(row["group"]),), tag="reference" if row["reference"] else ""
            )
            rates = [Cell(value=group_estimate(row, rate)) for rate in ("tpr", "fpr")]
            rows.append((first, f"{row['n']:,}", rows_counted(row["positives"]), *rates))
        heads = [Column("group"), Column("rows"), Column("positives", least=NARROW), Column("sensitivity, %"), Column("FPR, %")]
        values = []
        for name, kind in {
            "balanced_accuracy": "share",
            "auroc": "area",
            "calibration_slope": "number",
            "calibration_intercept": "signed",
        }.items():
            if name in audit.estimates and not math.isnan(audit[name].value):
                words = PERFORMANCE.get(name, "intercept" if "intercept" in name else "calibration slope")
                values.append(f"{words} {amount(audit[name].value, kind)} ({span(audit[name].low, audit[name].high, kind)})")
        more = [(len(audit.groups) - len(groups), "groups"), (len(audit.gaps) - len(gaps), "gaps")]
        rest = ", ".join([*(f"{count} more {name}" for count, name in more if count), "all rates"])
        legend = f"{self.interval_words()} FPR: false positive rate. Detectable: own interval, 80% power. --verbose: {rest}."
        return [
            *self.head(),
            *(self.answer(whole=False) if len(audit.gaps) else []),
            *([Text(f"{sentence(', '.join(values))}.")] if values else []),
            *(Text(""), table(f"Groups, with {self.level} intervals", heads, rows)),
            *((Text(""), self.gaps(gaps).only(0, 1, 4)) if len(gaps) else ()),
            *(Text(""), doc.Items([*self.row_notes(), *wording.sampled_words(audit), legend])),
        ]

    def _screen_groups(self, gaps: pd.DataFrame) -> pd.DataFrame:
        """The groups that fit on one screen: all, or those of single attributes, first references and groups with a gap in `gaps`."""
        groups = self.audit.groups.rename_axis("group").reset_index()
        if len(groups) > SCREEN_GROUPS:
            groups = groups[~groups["attribute"].isin(self.audit.intersections)]
        if len(groups) <= SCREEN_GROUPS:
            return groups
        compared = set(zip(gaps["attribute"], gaps["group"].astype(str), strict=True))
        names = zip(groups["reference"], groups["attribute"], groups["group"], strict=True)
        first = [bool(reference) or (attribute, str(group)) in compared for reference, attribute, group in names]
        order = groups.assign(_first=first).sort_values(["_first", "n"], ascending=False, kind="stable").index[:SCREEN_GROUPS]
        return groups.loc[sorted(order)]

    def whole(self) -> list[Part]:
        """The whole audit in a terminal: every rate of every group, every gap, decision curves and notes."""
        audit, unit = self.audit, "rows" if self.audit.patients is None else "patients"
        parts = [*self.head(), *(self.answer() if len(audit.gaps) else []), *self.performance()]
        parts += [part for name in self.groups for part in (self.cohort(name), self.rates(name, ALL_RATES))]
        parts += [self.gaps(rows, str(name)) for name, rows in audit.gaps.groupby("attribute", sort=False)]
        parts += [self.curves()] if audit.curves["net_benefit"].notna().any() else []
        notes = [*self.row_notes(), *wording.sampled_words(audit)]
        for (group, lacking), attribute in zip(audit.groups["lacking"].items(), audit.groups["attribute"], strict=True):
            if lacking:
                notes.append((Span(attribute), " ", Span(group), f": {lacking_words(lacking, audit.settings, unit)}."))
        notes.append(self.interval_words())
        if len(audit.gaps):
            notes.append(
                "Adjusted p: by permutation of groups, for all comparisons [before adjustment]; measures that mirror each other are one."
            )
            notes.append("; ".join(f"{name} = {meaning(name)}" for name in audit.gaps["measure"].unique()) + ".")
        return [*parts, doc.Items(notes)]

    def page(self, origin: Origin | None, *, paper: bool = False) -> doc.Document:
        """The report for a committee, shorter on paper."""
        audit, most = self.audit, PANELS_ON_PAPER if paper else None
        threshold = None if paper else threshold_data(audit, self.called)

        def gaps(name: str) -> list[Part]:
            rows = audit.gaps[audit.gaps["attribute"] == name]
            wanted = {*FIRST_MEASURES, *rows["measure"][rows["clear"].astype(bool)]} if paper else set(rows["measure"])
            shown = [measure for measure in distinct(rows["measure"].unique()) if measure in wanted]
            return [self.gaps(rows, name, shown), *(self.shrunken(name) if audit.settings.shrink else [])]

        def calibration(name: str) -> list[Part]:
            panels, rest = self.calibration(name)[:most], [rate for rate in SHOWN if rate not in HEADLINE]
            figures = [doc.Figures(panels)] if panels else []
            return [*figures, *([] if paper else [self.rates(name, rest)])] if name in self.drawn else []

        def curves(name: str) -> list[Part]:
            panels = decision_panels(name, [("", audit)], self.called)[:most] if name in self.drawn else []
            return [doc.Figures(panels)] if panels else []

        first, *further = self.answer()
        made: dict[str, list[Part] | None] = {
            "verdict": [first, Fixed("question"), *further, Fixed("facts"), *self.clear_gaps()],
            "worse": self._by_attribute(lambda name: [self.errors(name)], headed=False),
            "gaps": self._by_attribute(gaps, paper=paper) if set(self.drawn) & set(audit.gaps["attribute"]) else None,
            "groups": [*self._by_attribute(lambda name: [self.rates(name, HEADLINE, paper=paper)], paper=paper), *self.performance()],
            "threshold": [] if threshold else None,
            "cohort": [*([] if paper else self._by_attribute(lambda name: [self.cohort(name)], headed=False)), self.cohort_notes()],
            "signoff": [],
            "limits": [],
            "calibration": self._by_attribute(calibration, paper=paper) or None,
            "curves": self._by_attribute(curves, paper=paper) or None,
            "subgroups": None if paper else [],
            "method": [],
        }
        return doc.Document(
            "audit.html",
            "audit",
            audit.name,
            [Section(anchor, *SECTIONS[anchor], parts) for anchor, parts in made.items() if parts is not None],
            {"s": self, "slider": threshold} | page_values(self, origin),
            self.called,
            self.few,
            ("svg.js", "page.js", "threshold.js", "subgroups.js"),
            {"threshold": threshold, "subgroups": subgroup_data(audit, self.called)},
        )

    def cohort_notes(self) -> doc.Items:
        """What the counts of rows are, and notes on the rows."""
        least = self.audit.settings.min_patients
        notes = [
            "“With the finding” means labelled so in the data, which is not always the truth.",
            f"A group with fewer than {least} patients with the finding (or without it) is shown as “insufficient data”, not as zero.",
            *(["Rates, differences and curves are weighted by the sample weights; counts are rows."] if self.audit.weighted else []),
        ]
        return doc.Items([*notes, *self.row_notes()])

    def _by_attribute(self, parts: Callable[[str], Sequence[Part]], *, paper: bool = False, headed: bool = True) -> list[Part]:
        """Parts of each attribute: intersections are folded, and left out on paper; many groups are only in the explorer."""
        made: list[Part] = []
        for name, groups in self.groups.items():
            crossed, own = name in self.audit.intersections, list(parts(name))
            if own and name not in self.drawn:
                where = Span("subgroups|all groups and intersections", "link")
                own = [Text((f"{len(groups)} groups by ", Span(name), " are too many to draw; they are in ", where, "."), "notes")]
            if own and headed and not crossed and len(self.single) > 1:
                own.insert(0, doc.Heading(("By ", Span(name))))
            if own and not (crossed and paper):
                made += [doc.Folded((f"{len(groups)} intersections: ", Span(name)), own)] if crossed else own
        return made


def _calibration_points(positive: pd.DataFrame, negative: pd.DataFrame) -> list[tuple[float, float]]:
    """Mean score and share with the finding between thresholds that both labels have, merged into about ten bins of equal size."""
    cuts = sorted(set(positive.index) & set(negative.index))
    sides = [(side.loc[cuts, "above"].to_numpy(), _scores_above(side, cuts)) for side in (positive, negative)]
    above = sides[0][0] + sides[1][0]
    places = (int(np.searchsorted(-above, -mass)) for mass in np.linspace(above[0], 0, CALIBRATION_BINS + 1)[:-1])
    starts = sorted({place for place in places if place < len(above)})
    points = []
    for low, high in pairwise([*starts, len(cuts)]):
        masses, scores = (np.array([side[k][low] - (side[k][high] if high < len(cuts) else 0.0) for side in sides]) for k in (0, 1))
        if masses.sum() > 0 and not np.isnan(scores).any():
            points.append((float(scores.sum() / masses.sum()), float(masses[0] / masses.sum())))
    return points


def _scores_above(steps: pd.DataFrame, cuts: Sequence[float]) -> Any:
    """The sum of the scores at or above each cut; NaN if the score of a bin is unknown."""
    mass = steps["above"].to_numpy() - np.append(steps["above"].to_numpy()[1:], 0.0)
    sums = np.where(mass > 0, mass * steps["score"].to_numpy(), 0.0)
    return pd.Series(sums[::-1].cumsum()[::-1], index=steps.index).loc[list(cuts)].to_numpy()


def threshold_data(audit: LabelAudit, called: Called = str) -> dict[str, Any] | None:
    """Data for the threshold slider: by attribute and group, the number of rows at or above each threshold; None if unknown."""
    attributes = []
    for name, rows in audit.by_threshold.groupby("attribute", sort=False):
        groups = []
        for group, own in rows.groupby("group", sort=False):
            by_label = {
                str(label): [_short_numbers(cell["threshold"]), _short_numbers(cell["above"])] for label, cell in own.groupby("label")
            }
            groups.append({"name": short(called(str(group))), "reference": str(group) == audit.references[str(name)], "cells": by_label})
        attributes.append({"name": short(name), "groups": groups})
    positions = sorted(set(audit.by_threshold["threshold"]) - {0.0})
    return {"attributes": attributes, "positions": positions, "used": audit.rule.shared} if attributes else None


def _short_numbers(values: Iterable[float]) -> list[float]:
    """Numbers in full precision, whole ones without a decimal point."""
    return [int(value) if float(value).is_integer() else float(value) for value in values]


def subgroup_data(audit: LabelAudit, called: Called = str) -> dict[str, Any]:
    """Data for the explorer of groups: every group and intersection with its rates and intervals."""
    rates, rows = [rate for rate in ("selection_rate", *SHOWN) if rate in audit.groups], []
    for group, row in audit.groups.iterrows():
        estimates = [group_estimate(row, rate) for rate in rates]
        rows.append(
            {
                "attribute": short(row["attribute"]),
                "name": short(called(str(group))),
                "full": plain(called(str(group)))[:400],
                "reference": bool(row["reference"]),
                "n": int(row["n"]),
                "positives": None if pd.isna(row["positives"]) else int(row["positives"]),
                "values": [[*(None if math.isnan(v) else round(v, 5) for v in (e.value, e.low, e.high)), int(e.few)] for e in estimates],
            }
        )
    measures = [{"name": sentence(rate_title(r, audit.settings)), "means": RATES[r].means, "kind": RATES[r].kind} for r in rates]
    return {"measures": measures, "groups": rows}


def page_values(sections: LabelSections, origin: Origin | None) -> dict[str, Any]:
    """Values in the fixed text of the pages."""
    audit, gap = sections.audit, wording.largest_gap(sections.audit)
    return {
        "audit": audit,
        "origin": origin,
        "when": "" if origin is None else date_words(origin.when),
        "limit_words": wording.LIMITS,
        "rates": RATES,
        "size": how_many(audit.rows, audit.patients),
        "decisions": DECISIONS,
        "detectable": wording.DETECTABLE,
        "mark_and_interval": wording.MARK_AND_INTERVAL,
        "gap": None if gap is None else Estimate.of_gap(gap),
        "gap_name": "" if gap is None else gap_words(str(gap["measure"])),
        "largest": sentence(wording.largest_words(audit)),
        "harms": wording.harms(audit),
        "performance": [
            (sentence(PERFORMANCE[name]), audit[name], "area" if name in AREAS else "share")
            for name in PERFORMANCE
            if name in audit.estimates
        ],
        "sampled": wording.sampled_words(audit),
    }


AMONG = {None: "all patients", 1: "positives", 0: "negatives"}  # rows of a probe, by label


def encoding_parts(layers: pd.DataFrame, level: float = 0.95) -> list[Part]:
    """How well each attribute can be predicted from each layer, which does not show whether the network uses it."""
    from equipoise.models import AUROC_LABELS, READ_IS_NOT_USED  # imports torch

    parts: list[Part] = []
    for name, own in layers.groupby("attribute", sort=False):
        rows = []
        for _, row in own.iterrows():
            for k, (measure, label) in enumerate(AUROC_LABELS.items()):
                auroc = Estimate(row[measure], row[f"{measure}_low"], row[f"{measure}_high"])
                layer = ((Span(row["layer"]),), str(row["depth"]), f"{row['width']:,}") if k == 0 else ("", "", "")
                rows.append((*layer, AMONG[label], Cell(value=auroc, kind="area", style="shown" if auroc.low > row["chance"] else "")))
        words = ("How well ", Span(name), f" can be predicted from the inputs of a layer: AUROC of a probe, {percent(level)} intervals")
        parts.append(table(words, ["layer", "depth", "width", Column("among", style="text"), "AUROC"], rows))
        parts.append(doc.Items([(Span(name), f": {note}.") for note in dict.fromkeys(own["note"]) if note]))
    chance = "0.5 or less is chance (bold: the interval is above it). Among rows of one label, differences in prevalence have no effect."
    return [*parts, doc.Items([f"{chance} {READ_IS_NOT_USED}"])]
