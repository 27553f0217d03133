"""The choices of a committee: the options side by side with what each costs whom, and what limits every rule on these scores."""

import math
from collections.abc import Sequence
from dataclasses import replace

from equipoise.comparison import Comparison, Option, limits_of
from equipoise.report import document as doc
from equipoise.report.document import Cell, Column, Part, Table, Text, table
from equipoise.report.panels import BOTTOM, HEIGHT, LEFT, TOP, WIDTH, Axes, Mark, Panel, steps_within
from equipoise.report.text import Span, amount, number, percent, sentence, short
from equipoise.report.wording import repairs as words
from equipoise.report.wording.names import GroupNames, gap_words, performance_words

MOST_COLUMNS = 3  # groups with columns of their own; of more, the one with most errors
WIDE_OPTIONS = 140  # columns of a terminal
LETTER = 5.8  # the width of a letter in a figure
LEAST_REACH = 0.02  # of the axes of the figure


def options_table(repair: Comparison, called: GroupNames, *, brief: bool = False) -> Table:
    """Each option: the largest difference, the performance, and missed findings and false alarms per 1,000 of all and of each group.

    If `brief`, for a terminal, the difference has no interval.
    """
    goal, unit = repair.goal, words.error_unit(repair)
    groups = [balance.group for balance in repair.options[0].balances if balance.group is not None]
    few = len(groups) <= MOST_COLUMNS

    def errors(option: Option, side: str) -> list[Cell]:
        of_group = {balance.group: getattr(balance, f"{side}_after") for balance in option.balances}
        cells = {group: Cell("too few" if math.isnan(value) else amount(value, "thousand0")) for group, value in of_group.items()}
        if few:
            return [cells[group] for group in (None, *groups)]
        most = max(groups, key=lambda group: -1.0 if math.isnan(of_group[group]) else of_group[group])
        return [cells[None], Cell(cells[most].words, means=(Span(called.full(most)),))]

    rows = []
    for option in repair.options:
        name = Cell(option.name, tag="chosen" if option.chosen else "", means=words.option_words(option))
        needs = "yes" if option.tried.candidate.rule.needs_group else "no"
        gap = Cell(amount(option.gap.value, "points")) if brief else Cell(value=replace(option.gap, few=False), kind="points")
        values = (gap, Cell(value=option.performance))
        rows.append((name, *values, *errors(option, "missed"), *errors(option, "alarms"), needs))
    named = [Column("all"), *(Column((Span(called.full(group)),)) for group in groups)] if few else [Column("all"), Column("highest")]
    phone = [
        [Column(column.head, f"{kind}\n{doc.text_of(column.head)}", "part" if k == 0 else "") for k, column in enumerate(named)]
        for kind in ("missed", "alarms")
    ]
    heads = [
        "Option",
        Column("Largest difference", "difference"),
        Column(sentence(performance_words(goal.performance)), least=WIDE_OPTIONS),
    ]
    over = [("", 2, ""), ("Missed findings", len(named), "part"), ("False alarms", len(named), "part"), ("", 1, "part")]
    intervals = "" if brief else f", with {percent(repair.settings.level)} intervals"
    caption = f"Per 1,000 {unit}; the difference in {gap_words(goal.measure)} in points{intervals}"
    return table(
        caption,
        [*heads, *phone[0], *phone[1], Column("Needs the group", style="part", least=WIDE_OPTIONS)],
        rows,
        style="options stack",
        over=over,
    )


def options_panel(repair: Comparison) -> Panel:
    """The size of the largest difference of each option against its false alarms."""
    known = [
        (option, option.balances[-1].alarms_after, abs(option.gap.value)) for option in repair.options if not math.isnan(option.gap.value)
    ]
    alarms, sizes = [x for _, x, _ in known], [y for _, _, y in known]
    room = max(LEAST_REACH, 0.35 * (max(alarms) - min(alarms)))
    axes = Axes(0.0, max(LEAST_REACH, 1.15 * max(sizes)), max(0.0, min(alarms) - room / 4), max(alarms) + room)
    marks = [
        axes.dot("spot", x, y, 5 if option.chosen else 3.5, int(option.chosen), f"{option.name}: {amount(y, 'size')} points")
        for option, x, y in known
    ]
    taken = [(axes.x(x) - 6, axes.x(x) + 6, axes.y(y)) for _, x, y in known]  # from left to right, at this height
    for k, (option, _, _) in sorted(enumerate(known), key=lambda each: not each[1][0].chosen):
        name, (start, end, height) = f"{short(option.name, 24)}{', chosen' if option.chosen else ''}", taken[k]
        others, sides = taken[:k] + taken[k + 1 :], ((end + 2, end + 2 + LETTER * len(name)), (start - 2 - LETTER * len(name), start - 2))
        spans = [(low, high, height + down) for down in (0, -13, 13, -26, 26) for low, high in sides]
        place = next((span for span in spans if _is_free(span, others)), spans[0])
        taken.append(place)
        left = place[0] < start
        marks.append(Mark("label left" if left else "label", title=name, at=(place[1] if left else place[0], place[2] + 3.5)))
    said = "; ".join(f"{option.name}: {amount(y, 'size')} points with {amount(x, 'thousand0')} false alarms" for option, x, y in known)
    ticks = axes.x_ticks(steps_within(axes.left, axes.right, 5, (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)), lambda v: number(1000 * v, 0))
    ticks_y = axes.y_ticks(
        steps_within(0.0, axes.high, 6, (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)), lambda v: number(100 * v, 1 if axes.high < 0.05 else 0)
    )
    title = "Size of the largest difference, by false alarms of all patients"
    return Panel(title, f"{title}. {said}.", ticks, ticks_y, "false alarms per 1,000", "points", tuple(marks))


def _is_free(span: tuple[float, float, float], others: Sequence[tuple[float, float, float]]) -> bool:
    """Whether a text from left to right, at a height, is inside the figure and over no other text or dot."""
    low, high, height = span
    inside = low > LEFT and high < WIDTH and TOP < height < HEIGHT - BOTTOM
    return inside and not any(low < other[1] and high > other[0] and abs(height - other[2]) < 11 for other in others)


def options_parts(repair: Comparison, called: GroupNames) -> list[Part]:
    """The options as a table and a figure, and why the chosen one was chosen."""
    made: list[Part] = [Text(words.chosen_words(repair)), options_table(repair, called)]
    drawable = sum(not math.isnan(option.gap.value) for option in repair.options) > 1
    return [*made, *([doc.Figures([options_panel(repair)])] if drawable else []), Text(words.OPTIONS_NOTE, "notes")]


def limit_parts(repair: Comparison, called: GroupNames, figure: Sequence[Part] = ()) -> list[Part]:
    """What limits a repair of these scores: separation by group, the price of finding more, and what would help; empty if unknown.

    `figure` stands below the sentences, on a page.
    """
    cut = repair.original.candidate.rule.shared
    if cut is None or repair.original.candidate.rule.argmax:
        return []
    found = limits_of(repair.original.test, cut, repair.settings.level, repair.settings.min_patients)
    if len(found.exchanges) < 2:
        return []
    rows = []
    for own in found.exchanges:
        level = "" if math.isnan(own.threshold) else number(own.threshold, 3)
        prices = ("" if math.isnan(price) else words.price_words(price) for price in (own.alarms_per_case, own.cheapest))
        rows.append((Cell((Span(called.full(own.group)),)), Cell(value=own.auroc, kind="area"), amount(own.sensitivity), level, *prices))
    columns = [Column(head, head.lower()) for head in ("Sensitivity", "Threshold", "Alarms per case", "Cheapest case")]
    wanted = amount(found.exchanges[0].wanted)
    caption = f"The original's scores: the threshold for a sensitivity of {wanted}, and the price of further cases in false alarms"
    sentences: list[Part] = [
        Text(each, "callout" if k == 0 and found.worse else "", "separation-words" if k == 0 else "")
        for k, each in enumerate(words.limits_words(found, called))
    ]
    help_title = Text("What would help", "heading")
    made = table(caption, ["Group", Column("AUROC"), *columns], rows, style="stack")
    advice: list[doc.Words] = [*words.help_words(found, called), *filter(None, [words.retrain_words(repair)])]
    return [*sentences, *figure, made, help_title, doc.Items(advice, "")]
