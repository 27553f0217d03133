"""A repair in words: its goal, its outcome, its method, who is better and who is worse."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import cast

import numpy as np

from equipoise.comparison import (
    KEEP_ORIGINAL,
    LEVEL_UP,
    SMALLEST_GAP,
    WITHOUT_GROUP,
    Balance,
    Comparison,
    Option,
    RepairLimits,
    ScoredCandidate,
)
from equipoise.data import LaterPatients
from equipoise.measures import OUTCOMES, Estimate, Shift
from equipoise.methods import Goal, Judgement, Note, Outcome
from equipoise.report.text import Span, amount, number, p_value_words, percent, sentence, short_name, span
from equipoise.report.wording.audits import counted_unit
from equipoise.report.wording.names import GroupNames, gap_words, group_words, performance_words, rate_words
from equipoise.report.wording.notes import why_words

MANY_ERRORS = 0.05  # more missed findings or false alarms, as a share of a group's rows, that the first sentence names: 50 per 1,000
ALPHA = 0.05  # of the test of whether the change differs between periods
SMALL_CHANGE = 0.01  # changes of less than 10 in 1,000 have a decimal place


def goal_words(goal: Goal) -> str:
    """A goal in words.

    >>> from equipoise.methods import Goal
    >>> goal_words(Goal("eod", min_performance=0.75, allow_worse=True))
    'the smallest difference in sensitivity with balanced accuracy of at least 75.0%'
    >>> goal_words(Goal("spd", max_gap=0.05, keep={"tpr": "before"}))
    "the best balanced accuracy with a difference in share flagged of at most 5.0 points, and no group's sensitivity lower than before"
    >>> goal_words(Goal("eod", "f1", allow_worse=True).settled(0.8))
    "the smallest difference in sensitivity with F1 at most 2.0 points below the original's (80.0% on the repair set)"
    >>> goal_words(Goal("eod", groups=["M", "F", "X"], allow_worse=True))
    'the smallest difference in sensitivity between M, F and X'
    """
    measure, performance = gap_words(goal.measure), performance_words(goal.performance)
    measure += f" between {', '.join(goal.groups[:-1])} and {goal.groups[-1]}" if goal.groups else ""
    minimum = ""
    if goal.min_performance is not None and goal.original is not None:  # relative to the original, which has other values on other rows
        lost = amount(goal.original - goal.min_performance, "size")
        minimum = f" with {performance} at most {lost} points below the original's ({amount(goal.original)} on the repair set)"
    elif goal.min_performance is not None:
        minimum = f" with {performance} of at least {amount(goal.min_performance)}"
    if goal.max_gap is None:
        aim = f"the smallest difference in {measure}{minimum}"
    else:
        within = f"a difference in {measure} of at most {amount(goal.max_gap, 'size')} points"
        aim = f"{within}{minimum}" if minimum else f"the best {performance} with {within}"
    aim += f", with {amount(goal.capacity)} of patients flagged" if goal.capacity is not None else ""
    kept = [
        f"no group's {rate_words(rate)} lower than before"
        if isinstance(least, str)
        else f"a {rate_words(rate)} of at least {amount(least)} in every group"
        for rate, least in goal.keep.items()
    ]
    return ", and ".join([aim, *kept])


def evidence_words(comparison: Comparison, called: GroupNames, size: str) -> tuple[str, ...]:
    """The rates behind the largest difference before and after, its change on these rows (`size`), and what remains of it."""
    found, judgement = comparison.found, comparison.judgement
    old, new = found.gap_before, found.gap_after
    met = f"{limits} " if (limits := met_words(judgement)) else ""
    if found.seen == "insufficient":
        return (f"{met}Of {size}, {old.note}.",)
    made: list[str] = [met]
    if found.rate_of(old.group) and found.rate_of(old.reference):
        for k, (when, gap) in enumerate((("Before the repair, ", old), ("; after it, ", new))):
            sides = [(group, cast(tuple[Estimate, Estimate], found.rate_of(group))[k]) for group in (gap.group, gap.reference)]
            made += [when, "" if k else f"{rate_words(found.rate or '')} was "]
            for place, (group, rate) in enumerate(sides):
                made += [" and " if place else "", f"{amount(rate.value)} in ", Span(called.full(group))]
        made.append(". ")
    of_group = (
        ["The difference"] if len(comparison.original.test.attribute.levels) == 2 else ["The difference of ", Span(called.full(old.group))]
    )
    change, level = found.gap_change, percent(found.settings.level)
    by = f" changed by {amount(change.value, 'points')} points ({level} interval {span(change.low, change.high, 'points')})"
    if found.seen == "smaller":
        shown = ", more than the sampling of test patients can explain" if judgement.outcome in ("closed", "reduced") else ""
        made += [*of_group, f"{by}{shown}. "]
    elif found.seen == "unclear":
        end = "; the interval of that change includes zero:"
        made += [
            *(Span(part, getattr(part, "kind", "strong")) for part in (*of_group, f"{by}{end}")),
            " the sampling of test patients may explain it. ",
        ]
    elif found.contradicts:
        went = f" on which it went from {amount(found.valid_before, 'points')} to {amount(found.valid_after, 'points')} points. "
        made += [Span("This contradicts the repair set,", "strong"), went, *of_group, f"{by}. "]
    elif found.seen == "larger":
        made += [*of_group, f"{by}. "]
    if found.remains:
        made.append("A difference remains: its interval excludes zero.")
    else:
        least = f"the detectable difference, before adjustment, is {amount(new.detectable, 'detectable')} points."
        none = "with this many patients, no possible difference is detectable."
        remains = "What remains cannot be distinguished from zero in these patients, but is not shown to be zero: "
        made.append(f"{remains}{none if np.isnan(new.detectable) else least}")
    return tuple(made)


LARGE_GAP = 0.1  # of which the paper says that repairs of weights may fail
SMALL_REPAIR_SET = 1000  # rows: the paper's example of a validation set that is overfitted
OPTION_WORDS = {
    KEEP_ORIGINAL: "no decision changes",
    LEVEL_UP: "groups that are behind get a lower threshold; no threshold rises",
    SMALLEST_GAP: "a threshold for each group, whatever it costs some of them",
    WITHOUT_GROUP: "one threshold for everybody",
}
OPTIONS_NOTE = (
    "Every option is judged on the same held-out patients, with rules fitted to the repair set. The choice was made on the repair set; "
    "choosing again by this table makes its numbers too optimistic."
)


def option_words(option: Option) -> str:
    """What an option does."""
    own = method_words(option.tried)
    return OPTION_WORDS.get(option.name, "" if own == option.name else own)


def chosen_words(comparison: Comparison) -> str:
    """Which option was chosen, and why."""
    [*chosen] = (option for option in comparison.options if option.chosen)
    notes = comparison.result.candidate.why
    why = why_words([note for note in notes if note.kind != "best_of_methods"] or notes)
    name = chosen[0].name if chosen and chosen[0].name in OPTION_WORDS else method_words(comparison.result)
    return f"Chosen: {name}. Why: {why}."


def limits_words(found: RepairLimits, called: GroupNames) -> Iterator[tuple[str, ...]]:
    """Whether the classifier itself is worse in a group, and what it costs to find as many cases there as in the best-off group."""
    areas = {own.group: own.auroc for own in found.exchanges}
    worse = found.worse
    if worse is None:
        yield ("The scores separate patients with the finding from those without it about equally well in all groups (AUROC).",)
    else:
        high = Span(called.full(worse.reference))
        pairs = f"{amount(areas[worse.group].value)} of pairs of a patient with the finding and one without it in the right order, and in "
        ends = f"points, {span(worse.low, worse.high, 'points')}). No rule on these scores changes that; it only moves its price."
        yield (
            *(Span("The classifier itself is worse in ", "strong"), Span(called.full(worse.group), "strong"), Span(".", "strong")),
            *(
                " Its scores put ",
                pairs,
                high,
                f" {amount(areas[worse.reference].value)} (difference {amount(worse.value, 'points')} ",
                ends,
            ),
        )
    for own in found.exchanges:
        if not math.isnan(own.alarms_per_case):
            needed = f"{price_words(own.alarms_per_case)} more false alarms for each further case"
            cheapest = "" if math.isnan(own.cheapest) else f"; the cheapest further cases cost {price_words(own.cheapest)} each"
            at = f" takes a threshold of {number(own.threshold, 3)}: {needed}{cheapest}."
            yield (
                "To find ",
                amount(own.wanted),
                " of the cases in ",
                Span(called.full(own.group)),
                f" instead of {amount(own.sensitivity)}",
                at,
            )


def price_words(price: float) -> str:
    """Further false alarms for a case: 2.9, or 143."""
    return number(price, 1 if price < 10 else 0)


def help_words(found: RepairLimits, called: GroupNames) -> list[tuple[str, ...]]:
    """What would help where no rule does."""
    made: list[tuple[str, ...]] = []
    if found.worse is not None:
        group = Span(called.full(found.worse.group))
        made.append(("Fine-tuning, or training again, with more patients of this group (", group, ") who have the finding."))
        made.append(
            ("A look at the labels and the images of this group (", group, "): if they are of another quality, no rule corrects it.")
        )
    made.append(("Another threshold, if its price is acceptable: --choose “level up”, or a larger goal.max_rise.",))
    return made


def retrain_words(comparison: Comparison) -> str:
    """The paper's advice where the difference is large and the repair set small; else empty."""
    before, rows = comparison.found.gap_before, comparison.result.valid
    small = rows is not None and len(rows) < SMALL_REPAIR_SET
    if not (small and before.clear and abs(before.value) >= LARGE_GAP) or comparison.outcome == Outcome.CLOSED:
        return ""
    return (
        f"Training again from scratch, or a rule that uses the group (group-thresholds, equalised-odds): the difference is large "
        f"({amount(before.value, 'points')} points, clear of zero) and the repair set small ({len(rows or ()):,} rows), where repairs of "
        "weights may fail or cost performance. Methods that train again take the training set (data.train)."
    )


def contribution_words(contribution: Shift) -> str:
    """The change of a rate in words: 'fewer of those with the finding are detected'."""
    more = "more" if contribution.change.value > 0 else "fewer"
    return {
        "tpr": f"{more} of those with the finding are detected",
        "fpr": f"{more} of those without the finding are flagged",
        "selection": f"{more} patients are flagged",
    }[contribution.rate]


def outcome_words(judgement: Judgement, *, names: Mapping[str, str] | None = None) -> str:
    """The outcome of a repair in one sentence that begins with its name, and whether the difference was clear before.

    `names` are words for groups, such as {"F": "women"}. Page, terminal, cards and README.txt begin with this sentence, followed by what
    changed for all patients and for groups (`repair_answer`).
    """
    called, outcome, measure = GroupNames(names or {}), judgement.outcome, gap_words(judgement.measure)
    needed = f"; about {judgement.patients_needed:,} patients like these would be needed" if judgement.patients_needed is not None else ""
    groups = ", ".join(map(called, judgement.short))
    if judgement.largest is None and outcome == "unchanged":
        return "Unchanged: no decision differs."
    possible = "".join(f"{_harm_words(note, judgement, called)}; " for note in judgement.possible_harms)
    if judgement.largest is None and outcome != "harm":
        return f"Unclear: {possible}too few patients for a difference in {measure} of {groups}{needed}."
    subject, moved, before = "", "", ""
    if judgement.largest is not None:
        gap, sides = judgement.gaps[0], []
        for side in ("before", "after"):  # the largest, with its group if there are several
            values = {gap.group: getattr(gap, side).value for gap in judgement.gaps if gap.known}
            group = max(values, key=lambda group: abs(values[group]))
            sides.append(amount(values[group], "points") + (f" ({called(group)})" if len(judgement.gaps) > 1 else ""))
        before, after = sides
        subject = f"the largest difference in {measure} from {called(gap.reference)}"
        if len(judgement.gaps) == 1:
            subject = f"the difference in {measure} between {called(gap.group)} and {called(gap.reference)}"
        subject = f"{subject}, {'clear before' if judgement.clear_before else 'not clear before'},"
        moved = f"{subject} went from {before} to {after} percentage points"
        if judgement.same or judgement.larger:
            how = "practically the same in these patients" if judgement.same else "larger"
            moved = f"{subject} is {how}, {before} percentage points before and {after} after"
    if moved and judgement.source == "cross-fitted" and outcome != "unchanged":  # these patients made the rule: others will have more
        expected = max(gap.expected for gap in judgement.gaps if gap.known)
        moved = f"{moved} (in other patients, {amount(expected, 'size')} are to be expected)"
    if outcome == "harm":
        harms = [_harm_words(note, judgement, called) for note in judgement.harms]
        larger = any(note.kind == "larger_gap" for note in judgement.harms)
        return f"Harm: {'; '.join([*harms, *([moved] if moved and not larger else [])])}."
    if outcome == "unchanged":
        return f"Unchanged: no decision differs, so {subject} stays at {before} percentage points."
    limit = f"±{amount(judgement.max_gap, 'size')}"
    if outcome == "closed":
        return f"Closed: {moved}, with its interval within {limit}."
    if outcome == "reduced" and judgement.performance_after.value < judgement.performance_limit:
        return f"Reduced: {moved}; {_performance_change(judgement)}, below its limit of {amount(judgement.performance_limit)}."
    if outcome == "reduced":
        return f"Reduced: {moved}, but is not shown to be within {limit}."
    if judgement.short:
        return f"Unclear: {possible}{moved}; too few patients in {groups}{needed}."
    if judgement.same:
        return f"Unclear: {possible}{moved}; no benefit is shown."
    crossed_zero = judgement.largest is not None and judgement.largest.before.value * judgement.largest.after.value < 0
    sides_changed = ", or has only changed sides" if crossed_zero and not judgement.larger else ""
    size = "larger" if judgement.larger else "smaller"
    return f"Unclear: {possible}{moved}; {judgement.patients:,} patients are too few to show whether it is {size}{sides_changed}{needed}."


def later_words(*judgements: Judgement) -> str:
    """Whether outcomes were found on patients who are later than those of the repair, as those will be whom the repair decides on."""
    return "tested on later patients" if judgements and all(judgement.later for judgement in judgements) else "not tested on later patients"


def cross_test_words(folds: int) -> str:
    """How patients are judged by nested cross-fitting."""
    return (
        "all patients were used to fit the repair and to judge it: each is judged by a repair of the same method that was fitted and "
        f"chosen without them ({folds} folds), and intervals are wider, because the delivered repair is another one"
    )


def later_patients_words(later: LaterPatients) -> str:
    """How patients were divided by a date, for the limits of a repair."""
    divided = f"the test set holds the {later.patients:,} patients first seen on or after {later.after}"
    rows = max(int(left_out.sum()) for left_out in later.left_out)  # of the labels, which are known in different rows
    if not later.returning:
        return divided
    return f"{divided}; {later.returning:,} patients seen before and again stay in the repair set, without their {rows:,} later rows"


def outcomes_words(judgements: Mapping[str, Judgement], kind: str = "labels") -> str:
    """The outcomes of labels in one sentence: that of a single label; or the worst with its labels first, then the number of each other."""
    later = later_words(*judgements.values())
    if len(judgements) == 1:
        return f"{outcome_words(*judgements.values()).removesuffix('.')}; {later}."
    outcomes = {label: str(judgement.outcome) for label, judgement in judgements.items()}
    counts = {name: list(outcomes.values()).count(name) for name in OUTCOMES if name in outcomes.values()}
    worst = next(iter(counts))
    if len(counts) == 1:
        return f"{sentence(worst)}: in all {len(outcomes)} {kind}; {later}."
    labels = ", ".join(short_name(label) for label, outcome in outcomes.items() if outcome == worst)
    rest = ", ".join(f"{name} in {count}" for name, count in counts.items() if name != worst)
    return f"{sentence(worst)}: in {counts[worst]} of {len(outcomes)} {kind} ({labels}); {rest}; {later}."


def _performance_change(judgement: Judgement) -> str:
    before, after, change = judgement.performance_before.value, judgement.performance_after.value, judgement.performance_change
    shown = amount(before), amount(after)
    moved = f"stayed at {shown[0]}" if len({*shown}) == 1 else f"{'fell' if after < before else 'went'} from {shown[0]} to {shown[1]}"
    words = f"{performance_words(judgement.performance)} {moved}"
    if judgement.source == "cross-fitted":
        return f"{words}, a change of {amount(change.value, 'points')} ({span(change.low, change.high, 'points')}) points"
    return words


def _harm_words(note: Note, judgement: Judgement, called: GroupNames) -> str:
    numbers = note.numbers
    if note.kind == "performance_below_limit":
        clear = note in judgement.harms
        below = f"{'' if clear else 'possibly '}below its limit of {amount(numbers['limit'])}"
        return f"{_performance_change(judgement)}, {below}: sampling error {'does not explain' if clear else 'may explain'} it"
    if note.kind == "larger_gap":
        groups = f"between {called(note.subject)} and {called(numbers['reference'])}"
        before, after = (amount(numbers[side], "points") for side in ("before", "after"))
        return f"the difference in {gap_words(judgement.measure)} {groups} is larger, {before} percentage points before and {after} after"
    if note.kind == "rate_worse":
        before, after, limit = (amount(numbers[key]) for key in ("before", "after", "limit"))
        return f"{rate_words(numbers['rate'])} of {called(note.subject)} fell from {before} to {after}, below its limit of {limit}"
    if note.kind == "capacity_exceeded":
        return f"{amount(numbers['flagged'])} of patients are flagged, clearly more than the capacity of {amount(numbers['capacity'])}"
    return f"{note.kind.replace('_', ' ')}: {called(note.subject)}"


def balance_words(rows: Iterable[Balance], unit: str, digits: int = 0, names: Mapping[str, str] | None = None) -> dict[str, list[str]]:
    """The groups that are clearly better ("gain") or clearly worse ("loss"), in missed findings and false alarms per 1,000."""
    called = GroupNames(names or {})
    changes: dict[str, list[str]] = {"gain": [], "loss": []}
    for row in rows:
        for errors, change in (("missed findings", row.missed), ("false alarms", row.alarms)):
            if row.group is None or not (change.high < 0 or change.low > 0):
                continue
            more, side = ("more", "loss") if change.value > 0 else ("fewer", "gain")
            ends = " to ".join(amount(end, f"thousand{digits}") for end in sorted(abs(end) for end in (change.low, change.high)))
            size = amount(abs(change.value), f"thousand{digits}")
            changes[side].append(f"{called(row.group)}, {size} {more} {errors} per 1,000 {unit} ({ends})")
    return changes


def repair_answer(comparison: Comparison, names: Mapping[str, str] | None = None) -> str:
    """The outcome of the repair on held-out patients, in one sentence: the first of README.txt, cards, report and terminal.

    First the difference, and whether it was clear before; then what changed for all patients; then the group with the largest rise of
    missed findings or false alarms; at last a budget that ran out.
    """
    balances, unit = comparison.found.balances[comparison.found.main], error_unit(comparison)
    parts = [outcome_words(comparison.judgement, names=names).removesuffix("."), later_words(comparison.judgement)]
    if comparison.judgement.changed:
        parts.append(for_all_words(comparison.judgement, balances, unit))
        parts.append(more_errors_words(balances, unit, names))
    ran_out = {"cut_short": "{} was stopped after {steps:,} steps", "no_time": "{} was not tried"}
    notes = [note for tried in comparison.candidates for note in tried.candidate.notes if note.kind in ran_out]
    cut = dict.fromkeys(ran_out[note.kind].format(note.subject, **note.numbers) for note in notes)
    parts += [f"the budget (repair.budget) ran out: {', '.join(cut)}"] if cut else []
    return f"{'; '.join(filter(None, parts))}."


def for_all_words(judgement: Judgement, rows: Iterable[Balance], unit: str) -> str:
    """What changed for all patients: the performance, missed findings and false alarms, each marked if its change is not clear."""
    total, parts = next((row for row in rows if row.group is None), None), []
    for errors, change in () if total is None else (("missed findings", total.missed), ("false alarms", total.alarms)):
        if not np.isnan(change.value):
            size = amount(abs(change.value), "thousand0" if abs(change.value) >= SMALL_CHANGE else "thousand1")
            more = "no more" if not change.value else f"{size} {'more' if change.value > 0 else 'fewer'}"
            parts.append(f"{more} {errors}{_unclear_mark(change)}")
    changes = [f"{' and '.join(parts)} per 1,000 {unit}"] if parts else []
    if not np.isnan(judgement.performance_change.value) and judgement.clear_loss is None:  # a loss below its limit is named as a harm
        changes.insert(0, f"{_performance_change(judgement)}{_unclear_mark(judgement.performance_change)}")
    return f"for all patients, {', with '.join(changes)}" if changes else ""


def _unclear_mark(change: Estimate) -> str:
    return "" if change.low > 0 or change.high < 0 or not change.value else " (not clear)"


def more_errors_words(rows: Iterable[Balance], unit: str, names: Mapping[str, str] | None = None) -> str:
    """The largest clear rise of missed findings and of false alarms in a group, if it is at least `MANY_ERRORS`; empty if there is none."""
    called, parts = GroupNames(names or {}), defaultdict(list)
    groups = {str(row.group): row for row in rows if row.group is not None}
    for errors, kind in (("missed findings", "missed"), ("false alarms", "alarms")):
        changes = {group: getattr(row, kind) for group, row in groups.items()}
        worse = {group: change.value for group, change in changes.items() if change.low > 0 and change.value >= MANY_ERRORS}
        if worse:
            group = max(worse, key=lambda group: worse[group])
            parts[group].append(f"{amount(worse[group], 'thousand0')} more {errors}")
    worst = (f"in {called(group)} ({groups[group].rows:,} {unit}), {' and '.join(more)} per 1,000" for group, more in parts.items())
    return f"worst {', and '.join(worst)}" if parts else ""


def error_unit(comparison: Comparison) -> str:
    """What errors are counted per 1,000 of: rows, unless each patient is known to have one."""
    return counted_unit(comparison.found.after.rows, comparison.found.after.patients)


def groups_called(comparison: Comparison, given: Mapping[str, str] | None) -> GroupNames:
    """The user's words for groups, extended to the intersections of this comparison."""
    return group_words(given, {attribute.name: attribute.levels for attribute in comparison.original.test.attributes})


def is_original(comparison: Comparison) -> bool:
    """Whether the result is the original: the same scores for all test rows and the same threshold. Then nothing can change."""
    before, after = comparison.original.candidate.rule, comparison.result.candidate.rule
    same_rule = before.shared is not None and before.shared == after.shared
    return same_rule and np.array_equal(comparison.original.test.score, comparison.result.test.score)


def met_words(judgement: Judgement) -> str:
    """Whether the limits of the goal are kept on held-out rows; empty for a goal without a maximum gap."""
    if judgement.met is None:
        return ""
    return "All limits of the goal are kept on these rows." if judgement.met else "Not all limits of the goal are kept on these rows."


def period_words(comparison: Comparison, names: Mapping[str, str] | None = None) -> str:
    """Whether the change of the difference is the same in the periods of the test set; empty if their days are not known."""
    found, called = comparison.found.periods, groups_called(comparison, names)
    if found is None or np.isnan(found.p_value):
        return ""
    changes = ", ".join("not known" if np.isnan(each.change.value) else amount(each.change.value, "points") for each in found.periods)
    verdict = "differs between the periods" if found.p_value < ALPHA else "is not shown to differ between the periods"
    return (
        f"In {len(found.periods)} periods of the test set, {found.periods[0].first} to {found.periods[-1].last}, the difference "
        f"of {called(found.group)} changed by {changes} points; the change {verdict} (heterogeneity p = {p_value_words(found.p_value)})."
    )


def original_words(comparison: Comparison) -> str:
    """The threshold of the original model and its origin; empty for classes, which are decided by argmax."""
    candidate = comparison.original.candidate
    if candidate.rule.shared is None or candidate.rule.argmax:
        return ""
    best = f"of best {performance_words(candidate.goal.performance)} on the repair set"
    origin = "in use" if candidate.goal.threshold is not None else best
    return f"The original decides by score >= {candidate.rule.shared:.4g}, the threshold {origin}."


def method_words(tried: ScoredCandidate) -> str:
    """The method of a candidate, and the method that chose it, if another one did: bias-score, chosen by auto."""
    ran, method = tried.candidate.ran, tried.candidate.method
    if ran == method:
        return tried.name
    if tried.candidate.chosen == 0:
        return f"{tried.name} (the original stays)"
    return f"{ran}, chosen by {method}" if tried.name == method else f"{tried.name} ({ran}, chosen by {method})"


def repair_set_words(comparison: Comparison) -> str:
    """The method and the goal, and the gap before and after on the repair set, to which the method was fitted."""
    result, candidate = comparison.result, comparison.result.candidate
    before, after = (amount(float(candidate.trace.iloc[step]["gap"]), "points") for step in (0, candidate.chosen))
    rows = "" if result.valid is None else f" ({len(result.valid):,} rows)"
    goal = f"Goal: {goal_words(candidate.goal)}."
    if candidate.chosen == 0:
        return f"On the repair set{rows} {result.name} kept the original, with a difference of {before} points. {goal}"
    name = method_words(result)
    comma = "," if "," in name else ""
    return f"On the repair set{rows}, to which it was fitted, {name}{comma} changed the difference from {before} to {after} points. {goal}"
