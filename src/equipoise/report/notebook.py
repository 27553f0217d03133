"""Results in a notebook: the conclusion and one or two small tables, as HTML. Every name is escaped."""

import math
from collections.abc import Mapping, Sequence
from functools import singledispatch
from typing import Any, NamedTuple

from equipoise.comparison import Comparison, ScoreComparison
from equipoise.measures import Audit, LabelAudit, Monitoring
from equipoise.methods import Candidate
from equipoise.report.templating import page_of
from equipoise.report.terminal_audit import marks, points, share, shown_gaps, shown_groups
from equipoise.report.text import how_many, percent, plural, printable, rows_counted, sentence, short_name
from equipoise.report.wording.audits import decisions_words, largest_gap, lead, overview_answer, unflagged_words
from equipoise.report.wording.comparisons import contrast_conclusion, differ_words, monitoring_conclusion, state_words
from equipoise.report.wording.names import PERFORMANCE, gap_words
from equipoise.report.wording.notes import why_words
from equipoise.report.wording.repairs import goal_words, outcome_words, outcomes_words, repair_answer

MOST_LABELS = 20  # rows of a table of labels
GAP_COLUMNS = ("gap in", "between", "points")


class Table(NamedTuple):
    """A table: the first column is text, the others are numbers."""

    caption: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


@singledispatch
def html_of(value: object) -> str:
    """A result as HTML, for a notebook: of an audit, a candidate, a comparison or a history."""
    raise TypeError(f"{type(value).__name__} is not shown in notebooks")


@html_of.register
def _audit(audit: Audit) -> str:
    """An audit: the conclusion, its groups and its gaps; of several labels, or classes, the largest gap of each."""
    return _label_html(audit.only) if len(audit.labels) == 1 else _labels_html(audit)


def _label_html(audit: LabelAudit) -> str:
    gaps = shown_gaps(audit.gaps)
    groups = shown_groups(audit, gaps).to_dict("records")
    level, several = percent(audit.settings.level), len({row["attribute"] for row in groups}) > 1
    about = f"Audit of {short_name(audit.name)}: {how_many(audit.rows, audit.patients)}. Positive if {printable(audit.rule.describe())}."
    columns = ("group", "rows", "positives", "sensitivity, %", "false positive rate, %")
    group_rows = []
    for row in groups:
        name = f"{short_name(row['attribute']) + ': ' if several else ''}{short_name(row['group'])}"
        few = str(row["few"]).split(", ")
        rates = [share(row[rate], row[f"{rate}_low"], row[f"{rate}_high"], rate in few).plain for rate in ("tpr", "fpr")]
        group_rows.append((f"{name}{' (reference)' if row['reference'] else ''}", f"{row['n']:,}", rows_counted(row["positives"]), *rates))
    tables = [Table(f"Groups, with {level} intervals", columns, group_rows)]
    if not len(gaps):
        return _html([about], *tables)
    clear = f"* clear of 0 after adjustment for {plural(audit.comparisons, 'comparison')}"
    rows = [_gap_cells(row) for row in gaps.to_dict("records")]
    tables.append(Table(f"Gaps in percentage points, group minus reference, with {level} intervals; {clear}", GAP_COLUMNS, rows))
    warning = filter(None, [printable(unflagged_words({audit.name: audit}))])
    return _html([*lead(audit)[1], *warning, about], *tables)


def _gap_cells(row: Mapping[Any, Any]) -> tuple[str, ...]:
    between = f"{short_name(row['group'])} and {short_name(row['reference'])}"
    return gap_words(str(row["measure"])), between, f"{points(row).plain}{marks(row)}"


def _labels_html(audit: Audit) -> str:
    one, rows = audit.kind.one, []
    for label, own in list(audit.labels.items())[:MOST_LABELS]:
        gap = largest_gap(own)
        rows.append((short_name(label), f"{own.rows:,}", *(("", "", "") if gap is None else _gap_cells(gap))))
    clear = f"{audit.findings} of {plural(audit.comparisons, 'comparison')} are clear of 0 after adjustment."
    about = f"Audit of {short_name(audit.name)}. {printable(decisions_words(audit.labels))} {clear}"
    lines = [overview_answer(audit)[1], *filter(None, [printable(unflagged_words(audit.labels, audit.kind))]), about]
    if len(audit.labels) > MOST_LABELS:
        lines.append(f"The first {MOST_LABELS} of {len(audit.labels)} {audit.kind}.")
    return _html(lines, Table("The largest gap of each, in percentage points", (one, "rows", *GAP_COLUMNS), rows))


@html_of.register
def _comparison(case: Comparison) -> str:
    """A comparison: the outcome, and every method on the held-out rows."""
    findings, goal = case.found, case.goal
    rows = [
        (
            f"{short_name(row.name)}{' (chosen)' if row.chosen else ''}",
            str(row.gap),
            str(row.performance),
            "" if row.judgement is None else str(row.judgement.outcome),
            "yes" if row.needs_group else "no",
        )
        for row in findings.methods
    ]
    columns = ("method", f"{gap_words(goal.measure)} ({goal.measure})", PERFORMANCE[goal.performance], "outcome", "needs the group")
    held_out = Table(
        f"{how_many(findings.after.rows, findings.after.patients, 'held-out')}, {percent(case.settings.level)} intervals", columns, rows
    )
    return _html([repair_answer(case), f"Goal: {goal_words(goal)}."], held_out)


@html_of.register
def _candidate(candidate: Candidate) -> str:
    """A candidate: the outcome on cross-fitted rows, if there is any, and the original and the chosen step on the repair set."""
    judgements = {label: each.judgement for label, each in candidate.labels.items() if each.judgement is not None}
    lines = ["In-sample: there are no held-out rows to judge it by. Audit it on a test set."]
    if judgements:
        lines = [outcomes_words(judgements) if len(judgements) > 1 else outcome_words(*judgements.values())]
    rows, goals = [], {}
    for label, each in list(candidate.labels.items())[:MOST_LABELS]:
        prefix = f"{short_name(label)}: " if label else ""
        for step, name in ((0, "original"), (each.chosen, f"{each.ran}, step {each.chosen}")):
            row = each.trace.iloc[step]
            rows.append((f"{prefix}{name}", f"{100 * row['gap']:+.1f}", f"{100 * row['performance']:.1f}"))
        goals[f"{prefix}{goal_words(each.goal)}"] = each
    goal = next(iter(goals.values())).goal
    if len(goals) == 1:
        lines.append(sentence(why_words(candidate.only.why)))
    lines.append(f"Goal: {'; '.join(goals)}.")
    columns = ("step", f"{gap_words(goal.measure)}, points", f"{PERFORMANCE[goal.performance]}, %")
    return _html(lines, Table("On the repair set, to which it was fitted", columns, rows))


@html_of.register
def _contrast(contrast: ScoreComparison) -> str:
    """A comparison of scores or audits: the conclusion, and the change of every gap."""
    rows = []
    for row in shown_gaps(contrast.gaps).to_dict("records"):
        sides = ["" if math.isnan(row[side]) else f"{100 * row[side]:+.1f}" for side in ("first", "second")]
        words, between, change = _gap_cells(row)
        rows.append((words, between, short_name(row["compared"]), *sides, change))
    clear = f"* clear of 0 after adjustment for {plural(contrast.comparisons, 'comparison')}"
    second = "compared" if len(contrast.others) > 1 else short_name(contrast.others[0])
    columns = ("gap in", "between", "model", short_name(contrast.first), second, "change")
    caption = f"Gaps in percentage points, group minus reference, with {percent(contrast.level)} intervals of the change; {clear}"
    return _html([contrast_conclusion(contrast), *differ_words(contrast)], Table(caption, columns, rows))


@html_of.register
def _monitoring(monitoring: Monitoring) -> str:
    """Gaps over time: the conclusion, and the state of every gap."""
    rows = []
    for row in monitoring.gaps.to_dict("records"):
        rows.append((*_gap_cells({**row, "clear": False, "few": False}), state_words(row)))
    limits = f"with limits that hold in all periods ({percent(monitoring.level)})"
    caption = f"{monitoring.periods[0]} to {monitoring.periods[-1]}, in percentage points, {limits}"
    return _html([monitoring_conclusion(monitoring)], Table(caption, ("gap in", "between", "all periods", "alarm"), rows))


def _html(lines: list[str], *tables: Table) -> str:
    return page_of("notebook.html", {"lines": lines, "tables": tables})
