"""Comparisons of scores or audits, and gaps over time: their sentences and their sections."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from equipoise.comparison import Changes, Comparison
from equipoise.data import FloatArray
from equipoise.measures import FEW_PATIENTS, SUMMARIES, Estimate, Monitoring
from equipoise.report import document as doc
from equipoise.report.audits import WIDE, between, both_or_group
from equipoise.report.document import Called, Cell, Column, Fixed, Items, Part, Section, Table, Text, Words, table
from equipoise.report.panels import Axes, Panel, steps_within
from equipoise.report.text import Span, amount, count, how_many, number, p_value_words, percent, plural, sentence, short, short_name, span
from equipoise.report.wording.names import PERFORMANCE_WORDS, RATE_WORDS, GroupNames, distinct, gap_words, group_words, summary_kind
from equipoise.report.wording.repairs import period_words

GAP_KEYS = ["label", "measure", "attribute", "group"]  # of one gap over time
SCREEN_CHANGES = 12  # on one screen
MOST_UNWATCHED = 5  # gaps in a sentence
LEAST_HEIGHT = 0.05  # of a chart, on each side of zero
MOST_TICKS, MOST_DOTS = 3, 60  # periods with a label, and with a dot
LEAST_FALL = 0.005  # of a difference: by less, it is the same
SPARKS = "▁▂▃▄▅▆▇█"


def _checked_group_names(rows: pd.DataFrame, intersections: Collection[str], names: Mapping[str, str] | None) -> GroupNames:
    """The user's words for groups, checked against the groups of the result."""
    groups = {str(name): list(dict.fromkeys([*own["reference"], *own["group"]])) for name, own in rows.groupby("attribute", sort=False)}
    return group_words(names, {name: levels for name, levels in groups.items() if name not in intersections})


def _labelled(row: Any, rows: pd.DataFrame, words: str) -> Words:
    """Words with the label of the row, if there are several in the table."""
    return (Span(row.label), f": {sentence(words)}") if row.label and len(set(rows["label"])) > 1 else sentence(words)


# A repair by period


def period_parts(repair: Comparison, called: GroupNames) -> list[Part]:
    """The change of the largest difference in each period of the test set, if the days of its rows are known."""
    found, rows = repair.found.periods, list[Any]()
    if found is None:
        return []
    for each in found.periods:
        sides = (amount(side, "points") for side in (each.before, each.after))
        rows.append((f"{each.first} to {each.last}", f"{each.patients:,}", *sides, Cell(value=each.change, kind="points")))
    caption = (
        f"Difference in {gap_words(repair.goal.measure)} of ",
        Span(called.full(found.group)),
        ", by the first visit of the patients",
    )
    sentences = filter(None, [period_words(repair, called)])
    return [table(caption, ["First seen", "Patients", "Before", "After", "Change"], rows), *map(Text, sentences)]


# Two or more classifiers


def few_changes_words(changes: Changes) -> str:
    """The meaning of the mark of few patients, who are counted whatever their number of rows."""
    return f"fewer than {FEW_PATIENTS} {'rows' if all(patients is None for _, patients in changes.sizes.values()) else 'patients'}"


def changes_conclusion(changes: Changes, names: Mapping[str, str] | None = None) -> str:
    """The largest clear change of a gap in one sentence, preferably of a single attribute, and how many changes are clear."""
    gaps = changes.gaps[changes.gaps["value"].notna() & changes.gaps["measure"].isin(distinct(changes.gaps["measure"].unique()))]
    comparisons = plural(changes.comparisons, "comparison")
    if not len(changes.gaps):
        return "No differences were asked for."
    if not len(gaps):
        return "No change in a difference could be estimated: insufficient data."
    clear = gaps[gaps["clear"].astype(bool)]
    if not len(clear):
        return f"No change in a difference between groups is clear after adjustment for {comparisons}."
    single = clear[~clear["attribute"].isin(changes.intersections)]
    row = clear.loc[(single if len(single) else clear)["value"].abs().idxmax()]
    low, high = (amount(row[f"simultaneous_{end}"], "points") for end in ("low", "high"))
    interval = f"simultaneous {percent(changes.level)} interval of the change {low} to {high}"
    return (
        f"{_difference_words(row, names)} is {amount(row['second'], 'points')} points with {short_name(row['compared'])} and "
        f"{amount(row['first'], 'points')} with {short_name(changes.first)} ({interval}); "
        f"{changes.findings} of {comparisons} {'is' if changes.findings == 1 else 'are'} clear."
    )


def _difference_words(row: "pd.Series[Any]", names: Mapping[str, str] | None) -> str:
    called = GroupNames(names or {})
    label = f" for {short_name(row['label'])}" if row["label"] else ""
    if row["measure"] in SUMMARIES:
        return f"The {gap_words(str(row['measure']))}{label} of {called(row['group'])} to that of {called(row['reference'])}"
    return f"The difference in {gap_words(str(row['measure']))}{label} between {called(row['group'])} and {called(row['reference'])}"


def differ_words(changes: Changes, names: Mapping[str, str] | None = None) -> Iterator[str]:
    """One sentence per compared model: how many decisions differ on the same rows, of all patients and by group."""
    called = GroupNames(names or {})
    for name, by_attribute in changes.affected.items():
        affected = by_attribute[0]
        expected, total = affected.expected, affected.counts[-1]
        by_group = "; ".join(
            f"{called(row.group) if row.group else 'group unknown'}: {count(row.detected, expected)} detected and "
            f"{count(row.missed, expected)} missed, {count(row.cleared, expected)} cleared and "
            f"{count(row.alarmed, expected)} falsely flagged"
            for row in affected.counts[:-1]
        )
        patients = "" if affected.patients is None else f" ({affected.patients:,} patients)"
        decisions = f"{count(total.changed, expected)} of {total.positives + total.negatives:,} decisions{patients}"
        yield f"{decisions} differ with {short_name(name)}. {sentence(by_group)}."


def change_table(changes: Changes, rows: pd.DataFrame, called: Called) -> Table:
    """The gaps of both sides, or the rates of each group, and their changes."""
    of_gaps = "measure" in rows
    kind, lines = "points" if of_gaps else "share", []
    among, head = both_or_group(list(zip(rows["group"], rows["reference"], strict=True)), called) if of_gaps else (None, "Group")
    for row in rows.itertuples():
        change = Estimate(row.value, row.low, row.high, clear=bool(row.clear), few=bool(row.few))
        compared = (" (", Span(row.compared), ")") if len(changes.others) > 1 else ()
        lines.append(
            (
                _labelled(row, changes.gaps, gap_words(str(row.measure)) if of_gaps else RATE_WORDS[str(row.rate)].name),
                (*(between(row, called) if of_gaps and not among else (Span(called(row.group)),)), *compared),
                *("" if np.isnan(side) else amount(side, kind) for side in (row.first, row.second)),
                Cell(value=change, kind="points", style="shown" if change.clear else ""),
                span(row.simultaneous_low, row.simultaneous_high, "points"),
                p_value_words(row.p_adjusted),
            )
        )
    what = "Differences, group minus reference, in percentage points" if of_gaps else "Rates of each group in percent"
    heads = ["Difference in" if of_gaps else "Rate", Column(head, style="text"), *_sides(changes), "change"]
    heads += [Column("Simultaneous interval", least=WIDE), "Adjusted p"]
    caption = f"{what}; changes in percentage points with {percent(changes.level)} intervals"
    return table(caption, heads, lines, style="stack")


def _sides(changes: Changes) -> list[Words]:
    """The heads of the two sides: the name of the compared one, unless there are several, which each row names."""
    return [(Span(changes.first),), "compared" if len(changes.others) > 1 else (Span(changes.others[0]),)]


def change_performance(changes: Changes) -> Table:
    """The performance of both sides over all patients, and its change."""
    rows = []
    for row in changes.performance.itertuples():
        compared = (" (", Span(row.compared), ")") if len(changes.others) > 1 else ()
        measure = _labelled(row, changes.gaps, PERFORMANCE_WORDS[str(row.measure)])
        sides = [amount(side, "area") for side in (row.first, row.second)]
        rows.append((doc.joined([measure, compared], ""), *sides, Cell(value=Estimate(row.value, row.low, row.high), kind="points")))
    caption = f"Performance over all patients, with {percent(changes.level)} intervals of the change"
    return table(caption, ["Measure", *_sides(changes), "change"], rows)


def change_summaries(changes: Changes, called: Called) -> list[Part]:
    """The ratios, ranges, worst groups and differences in measures of scores of both sides, and their changes; nothing without any."""
    rows = []
    for row in changes.summaries.itertuples():
        kind, ratio = summary_kind(row.measure), SUMMARIES[row.measure].is_ratio
        groups = [Span(called(group)) for group in (row.group, row.reference) if group]
        among: Words = (groups[0], " / " if ratio else " minus ", groups[1]) if groups else (Span(row.attribute), ": all groups")
        compared = (" (", Span(row.compared), ")") if len(changes.others) > 1 else ()
        change = Cell(value=Estimate(row.value, row.low, row.high, note=row.note), kind="signed" if ratio else "points")
        sides = ("" if np.isnan(side) else amount(side, kind) for side in (row.first, row.second))
        rows.append((_labelled(row, changes.gaps, gap_words(row.measure)), (*among, *compared), *sides, change))
    note = "; those of the same patients are wider than needed" if changes.paired else ""
    caption = f"Groups compared, with {percent(changes.level)} intervals of the change{note}"
    return [table(caption, ["Compared", Column("Groups", style="text"), *_sides(changes), "change"], rows, style="stack")] if rows else []


def changes_document(changes: Changes, names: Mapping[str, str] | None = None) -> doc.Document:
    """The report of a comparison; `names` are words for groups, such as {"F": "women"}."""
    called = _checked_group_names(changes.rates, changes.intersections, names)
    gaps = changes.gaps[changes.gaps["measure"].isin(distinct(changes.gaps["measure"].unique()))]

    def by_attribute(rows: pd.DataFrame) -> list[Part]:
        parts: list[Part] = []
        single = [name for name in rows["attribute"].unique() if name not in changes.intersections]
        for name in rows["attribute"].unique():
            own = change_table(changes, rows[rows["attribute"] == name], called.full)
            parts += [Text(("By ", Span(name)), "heading")] if name in single and len(single) > 1 else []
            parts.append(own if name in single else doc.Folded(("Intersections: ", Span(name)), [own]))
        return parts

    verdict: list[Part] = [Text(changes_conclusion(changes, called), "lead outcome"), *map(Text, differ_words(changes, called))]
    sections = [
        Section("verdict", "The answer", "", verdict),
        Section("gaps", "Changes in differences", "", by_attribute(gaps)),
        Section("rates", "Changes in each group", "", by_attribute(changes.rates)),
        Section("summaries", "Groups compared otherwise", "", change_summaries(changes, called.full)),
        Section("performance", "Performance", "", [change_performance(changes)] if len(changes.performance) else []),
        Section("method", "Method and limits", "", [Fixed("about")]),
    ]
    few, sizes = few_changes_words(changes), {name: how_many(rows, patients) for name, (rows, patients) in changes.sizes.items()}
    title = f"{', '.join(changes.others)} compared with {changes.first}"
    return doc.Document("changes.html", "comparison", title, sections, {"found": changes, "sizes": sizes}, called.full, few)


def changes_screen(changes: Changes, verbose: bool = False) -> list[Part]:
    """The sections of a comparison in a terminal: with `verbose` all of them, otherwise the largest changes of gaps without rates."""
    sizes = [
        (Span(name), f": {how_many(rows, patients)}, positive if {changes.decisions[name]}")
        for name, (rows, patients) in changes.sizes.items()
    ]
    sections = {section.anchor: section.parts for section in changes_document(changes).sections}
    few = f" †: {few_changes_words(changes)}." if changes.gaps["few"].any() else ""
    more = ""
    if not verbose:
        gaps = changes.gaps[changes.gaps["measure"].isin(distinct(changes.gaps["measure"].unique()))]
        shown = gaps.loc[sorted(gaps["value"].abs().nlargest(SCREEN_CHANGES).index)] if len(gaps) > SCREEN_CHANGES else gaps
        more = f" --verbose shows {'all gaps and ' if len(shown) < len(gaps) else ''}the rates of each group."
        sections |= {"gaps": [change_table(changes, shown, str).only(0, 1, 2, 3, 4)] if len(shown) else [], "rates": []}
    assumed = "" if changes.paired else " Assumed: no patient is in more than one of them."
    note = f"*: the change is clear of 0 after adjustment for {plural(changes.comparisons, 'comparison')} (Holm).{few}{more}{assumed}"
    below = [part for anchor in ("gaps", "rates", "summaries", "performance") if sections[anchor] for part in (Text(""), *sections[anchor])]
    return [Text((*doc.joined(sizes), ".")), *sections["verdict"], *below, Text(""), Text(note, "notes")]


# One classifier at several centres


def centres_parts(label: str, by_centre: Mapping[str, Changes], measure: str) -> list[Part]:
    """What the repair of each centre leaves at every centre, on its held-out patients: the answer, and a table."""
    rows, after, every, clear = list[Any](), dict[str, list[tuple[float, float]]](), list[str](), 0
    for centre, changes in by_centre.items():
        gaps = changes.gaps[(changes.gaps["measure"] == measure) & ~changes.gaps["attribute"].isin(changes.intersections)]
        performance = changes.performance.drop_duplicates("compared").set_index("compared")
        every += [name for name in changes.others if name not in every]
        for name, own in gaps.groupby("compared", sort=False):
            sizes = float(own["first"].abs().max()), float(own["second"].abs().max())
            after.setdefault(str(name), []).append(sizes)
            for row in own.itertuples():
                change = Estimate(row.value, row.low, row.high, clear=bool(row.clear), few=bool(row.few))
                clear += change.clear
                lost = performance.loc[name] if name in performance.index else None
                rows.append(
                    (
                        (Span(centre),),
                        (Span(str(name)),),
                        between(row, short_name),
                        amount(row.first, "points"),
                        amount(row.second, "points"),
                        Cell(value=change, kind="points", style="shown" if change.clear else ""),
                        "" if lost is None else amount(lost["value"], "points"),
                    )
                )
    falls = {name: sum(second < first - LEAST_FALL for first, second in sizes) for name, sizes in after.items()}
    rises = {name: sum(second > first + LEAST_FALL for first, second in sizes) for name, sizes in after.items()}
    count, of = len(by_centre), f" in {gap_words(measure)}{f' ({short_name(label)})' if label else ''}"
    serves = [name for name in every if len(after.get(name, [])) == count and not rises[name] and falls[name]]
    if serves:
        best = max(serves, key=lambda name: falls[name])
        answer = (
            f"One repair may serve all: the {best} reduces the difference{of} at {falls[best]} of {count} centres and increases it at none."
        )
    else:
        answer = f"No repair serves all {count} centres: none reduces the difference{of} at one of them without increasing it at another."
    each: list[Words] = [
        (Span(name), f": reduces the difference at {falls[name]} of {len(sizes)} centres, increases it at {rises[name]}")
        for name, sizes in after.items()
    ]
    each.append(
        f"{clear} of these {plural(len(rows), 'change')} {'is' if clear == 1 else 'are'} clear of zero after adjustment at its centre"
    )
    level = percent(next(iter(by_centre.values())).level)
    caption = f"Difference{of} on held-out patients, in percentage points, with {level} intervals of the change; change in performance"
    texts = [Column(head, style="text") for head in ("Centre", "Decided by", "Between")]
    heads = [*texts, "Original", "After", "Change", "Performance"]
    return [Text(answer, "lead outcome"), Items(each), table(caption, heads, rows, style="stack")]


def centres_document(
    by_label: Mapping[str, Mapping[str, Changes]], measures: Mapping[str, str], failures: Mapping[str, str]
) -> doc.Document:
    """The page of several centres: what each repair leaves at every centre, then all changes at each."""
    first = next(changes for own in by_label.values() for changes in own.values())
    several, called = len(by_label) > 1, GroupNames({})
    answers: list[Part] = []
    sections: list[Section] = []
    for row, (label, by_centre) in enumerate(by_label.items()):
        answers += [Text((Span(label),), "heading")] if several else []
        answers += centres_parts(label if several else "", by_centre, measures[label])
        for at, (centre, changes) in enumerate(by_centre.items()):
            gaps = changes.gaps[changes.gaps["measure"].isin(distinct(changes.gaps["measure"].unique()))]
            parts: list[Part] = [*map(Text, differ_words(changes)), change_table(changes, gaps, called.full)]
            parts += [change_table(changes, changes.rates, called.full), change_performance(changes)]
            sections.append(Section(f"centre-{row}-{at}", f"{f'{label}, ' if several else ''}{centre}", "", parts))
    answers += [Items([(Span(what), f": {why}") for what, why in failures.items()], lead="Not compared:")] if failures else []
    sizes = {name: words for own in by_label.values() for centre, changes in own.items() for name, words in _centre_size(centre, changes)}
    sections = [Section("verdict", "The answer", "", answers), *sections, Section("method", "Method and limits", "", [Fixed("about")])]
    centres = list(dict.fromkeys(centre for own in by_label.values() for centre in own))
    decisions = dict.fromkeys(sizes, first.decisions[first.first])
    values = {"found": replace(first, decisions=decisions), "sizes": sizes}
    return doc.Document(
        "changes.html", "comparison", f"Repairs of {', '.join(centres)}", sections, values, called.full, few_changes_words(first)
    )


def _centre_size(centre: str, changes: Changes) -> list[tuple[str, str]]:
    return [(centre, how_many(*changes.sizes[changes.first]))]


# Gaps over time


def monitoring_conclusion(monitoring: Monitoring, names: Mapping[str, str] | None = None) -> tuple[str, str]:
    """The style and the first sentence on gaps over time: the strongest alarm, or that there is none."""
    gaps = monitoring.gaps
    changed, shown = gaps["changed"].astype(bool), gaps["shown"].astype(bool)
    row: pd.Series[Any]
    if changed.any():
        row = gaps.loc[gaps["evidence"][changed].idxmax()]
        state = (
            f"has changed, most likely since {row['since']}: from {_followed(row, row['before'])} to {_followed(row, row['after'])}"
            f"{_points(row)} (reported in {row['changed_in']})"
        )
    elif shown.any():
        row = gaps.loc[(gaps["value"] - gaps["measure"].isin(SUMMARIES))[shown].abs().idxmax()]
        value, low, high = (_followed(row, row[end]) for end in ("value", "low", "high"))
        state = f"is {value}{_points(row)} over all periods ({low} to {high})"
    else:
        none = "no difference between groups, and no change of one, is shown so far, which does not show that there is none"
        return "unchanged", f"No alarm: {none}; the limits state what remains possible."
    more = int((changed | shown).sum()) - 1
    others = f" {more} more gap{'' if more == 1 else 's'} raised an alarm." if more else ""
    words = _difference_words(row, names)
    return "harm", f"Alarm: {words[:1].lower()}{words[1:]} {state}.{others}"


def _kind(row: Mapping[Any, Any]) -> str:
    """The format of the numbers of one gap, or ratio, over time."""
    return "number" if row["measure"] in SUMMARIES else "points"


def _followed(row: Mapping[Any, Any], value: float) -> str:
    return amount(value, _kind(row))


def _points(row: Mapping[Any, Any]) -> str:
    return "" if row["measure"] in SUMMARIES else " points"


def unwatched_words(monitoring: Monitoring, names: Mapping[str, str] | None = None) -> str:
    """The gaps of which the last period shows nothing, in one sentence; empty if there are none."""
    called, rows = GroupNames(names or {}), [row for row in monitoring.gaps.to_dict("records") if row["unwatched"]]
    listed = []
    for row in rows[:MOST_UNWATCHED]:
        label = f"{row['label']}: " if row["label"] else ""
        groups = f"{called(row['group'])} and {called(row['reference'])}"
        listed.append(f"{label}{gap_words(str(row['measure']))} of {groups}, {state_words(row)}")
    more = f", and {len(rows) - len(listed)} more" if len(rows) > len(listed) else ""
    return f"Not watched: {'; '.join(listed)}{more}." if rows else ""


def state_words(row: Mapping[Any, Any]) -> str:
    """The state of one gap over time in a few words."""
    if np.isnan(row["value"]):
        return f"insufficient data, last measured in {row['measured_in']}" if row["measured_in"] else "never measured"
    states = [f"not measured since {row['measured_in']}"] if row["unwatched"] else []
    states += [f"shown in {row['shown_in']}"] if row["shown"] else []
    if row["changed"]:
        states.append(f"changed since {row['since']}: {_followed(row, row['before'])} to {_followed(row, row['after'])}")
    return "; ".join(states) or "no alarm"


def course_table(monitoring: Monitoring, called: Called) -> Table:
    """One row per gap: its value over all periods, its course, and its state."""
    rows = []
    for row in monitoring.gaps.itertuples():
        course = _course(monitoring, row)["value"]
        value = Cell(value=Estimate(row.value, row.low, row.high), kind=_kind(row._asdict()), style="shown" if row.shown else "")
        state = Cell(state_words(row._asdict()), style="shown" if row.changed or row.shown else "")
        name = _labelled(row, monitoring.gaps, gap_words(str(row.measure)))
        rows.append((name, between(row, called), value, sparkline(course), state))
    limits = f"with limits that hold in all periods at once ({percent(monitoring.level)})"
    ratios = "; ratios as they are" if monitoring.gaps["measure"].isin(SUMMARIES).any() else ""
    caption = f"Differences over all periods, group minus reference, in percentage points{ratios}, {limits}"
    heads = ["Difference in", Column("Between", style="text"), "All periods", "course", Column("Alarm", style="text")]
    return table(caption, heads, rows, style="stack")


def _course(monitoring: Monitoring, row: Any) -> pd.DataFrame:
    return monitoring.frame[(monitoring.frame[GAP_KEYS] == [getattr(row, key) for key in GAP_KEYS]).all(axis=1)]


def period_tables(monitoring: Monitoring, called: Called) -> list[Part]:
    """Every period of each gap."""
    level, parts = percent(monitoring.level), list[Part]()
    for row in monitoring.gaps.itertuples():
        rows = []
        for each in _course(monitoring, row).itertuples():
            kind = _kind(row._asdict())
            ends = [span(each.low, each.high, kind), span(each.limit_low, each.limit_high, kind)]
            so_far = Cell(value=Estimate(each.so_far, each.so_far_low, each.so_far_high), kind=kind)
            rows.append((str(each.period), amount(each.value, kind), *ends, so_far, f"{each.evidence:.2g}"))
        name = doc.joined([_labelled(row, monitoring.gaps, gap_words(str(row.measure))), ", ", between(row, called)], "")
        caption = f"Each period, with its own {level} interval and the limits at which it would raise an alarm on its own"
        heads = ["Period", "Difference", f"{level} interval", "Limits", "All so far", "Evidence of change"]
        parts.append(doc.Folded(name, [table(caption, heads, rows)]))
    return parts


def monitoring_screen(monitoring: Monitoring, verbose: bool = False) -> list[Part]:
    """Gaps over time: the conclusion, one row per gap with its course, and, with `verbose`, every period."""
    note = (
        f"The chance of any false alarm, over {plural(monitoring.comparisons, 'gap')} and all periods, including future ones, is at most "
        f"{percent(1 - monitoring.level)}, if patients who return are identified (audit --set "
        f"history.earlier=FILE).{'' if verbose else ' --verbose shows every period.'}"
    )
    return [
        Text(f"{len(monitoring.periods)} periods, {monitoring.periods[0]} to {monitoring.periods[-1]}."),
        doc.outcome(*monitoring_conclusion(monitoring)),
        *(Text(words, "callout") for words in [unwatched_words(monitoring)] if words),
        *(Text(""), course_table(monitoring, str)),
        *(period_tables(monitoring, str) if verbose else ()),
        *(Text(""), Text(note, "notes")),
    ]


def monitoring_document(monitoring: Monitoring, names: Mapping[str, str] | None = None, *, paper: bool = False) -> doc.Document:
    """The report of gaps over time; `names` are words for groups, such as {"F": "women"}; on `paper` without every period."""
    called = _checked_group_names(monitoring.gaps, monitoring.intersections, names)
    charts = [chart(_course(monitoring, row), row._asdict(), called.full) for row in monitoring.gaps.itertuples()]
    verdict: list[Part] = [
        doc.outcome(*monitoring_conclusion(monitoring, called)),
        *(Text(words, "callout") for words in [unwatched_words(monitoring, called)] if words),
        course_table(monitoring, called.full).only(0, 1, 2, 4),
    ]
    sections = [
        Section("verdict", "The answer", "", verdict),
        Section("charts", "Over time", "", [doc.Figures(charts)]),
        *([] if paper else [Section("periods", "Every period", "", period_tables(monitoring, called.full))]),
        Section("method", "Method and limits", "", [Fixed("about")]),
    ]
    values = {"found": monitoring, "alpha": percent(1 - monitoring.level), "expected": amount(monitoring.expected_change, "size")}
    title = f"Differences, {monitoring.periods[0]} to {monitoring.periods[-1]}"
    return doc.Document("monitoring.html", "monitoring", title, sections, values, called.full)


def chart(course: pd.DataFrame, row: Mapping[Any, Any], called: Called = str) -> Panel:
    """One gap over time: the gap of each period, the confidence sequence of all so far, and the limits of a single period."""
    null = 1.0 if row["measure"] in SUMMARIES else 0.0
    value, so_far, so_far_low, so_far_high, *limits = (
        course[column].to_numpy(np.float64) - null for column in ("value", "so_far", "so_far_low", "so_far_high", "limit_low", "limit_high")
    )
    largest = float(np.nanmax(np.abs([*value, *so_far, 0.0])))
    known_limits = np.abs(np.concatenate(limits))[~np.isnan(np.concatenate(limits))]
    high = min(max(LEAST_HEIGHT, 1.6 * largest, 1.05 * float(np.median(known_limits)) if len(known_limits) else 0.0), 1.0)
    low, last = -high, max(len(course) - 1, 1)
    axes = Axes(low, high, -0.4, last + 0.4)

    def course_of(values: FloatArray) -> list[tuple[float, float]]:
        return [(k, np.nan if np.isnan(v) else min(max(v, low), high)) for k, v in enumerate(values)]

    marks, band = [axes.level("base", 0, "no difference")], [[*course_of(end)] for end in (so_far_high, so_far_low)]
    known = [k for k, v in enumerate(so_far_low) if not np.isnan(v)]
    if len(known) > 1:
        edge = [*(band[0][k] for k in known), *(band[1][k] for k in reversed(known))]
        marks.append(axes.curve("area benefit", edge, title="limits of the difference over all periods so far", end="Z"))
    for limit in limits:  # not drawn outside the chart
        inside = [(k, v if low <= v <= high else np.nan) for k, v in enumerate(limit)]
        marks.append(axes.curve("diagonal", inside, title="limits of a single period"))
    marks.append(axes.curve("benefit", course_of(so_far), title="all periods so far"))
    if len(course) <= MOST_DOTS:
        for period, gap, (k, y) in zip(course["period"], value, course_of(value), strict=True):
            if not np.isnan(gap):
                alarm = bool(row["changed"]) and str(period) >= str(row["since"])
                marks.append(axes.dot("spot", k, y, 4 if alarm else 3, int(alarm), f"{period}: {_followed(row, gap + null)}{_points(row)}"))
    labelled = np.unique(np.linspace(0, len(course) - 1, min(MOST_TICKS, len(course))).round().astype(int))
    ticks_x = axes.x_ticks(labelled, lambda k: str(course["period"].iloc[int(k)]))
    ticks_y = axes.y_ticks(steps_within(low, high, 6), lambda v: number(1 + v, 2) if null else number(100 * v, 0, sign=True))
    how = "/" if null else "minus"
    title = f"{gap_words(str(row['measure']))}: {short(called(str(row['group'])))} {how} {short(called(str(row['reference'])))}"
    recent = "; ".join(f"{p} {_followed(row, v + null)}" for p, v in zip(course["period"][-6:], value[-6:], strict=True) if not np.isnan(v))
    says = f"{title}{'' if null else ', in points'}. {state_words(row)}. The last periods: {recent}."
    return Panel(title, says, ticks_x, ticks_y, "period", "ratio" if null else "points", tuple(marks))


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
    return "".join("·" if np.isnan(v) else SPARKS[min(int((v - low) / width * len(SPARKS)), len(SPARKS) - 1)] for v in listed)
