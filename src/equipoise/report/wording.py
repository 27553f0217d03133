"""Findings, goals, outcomes and notes in words: the only place where values become sentences that several outputs share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

from equipoise.data import CONFLICTS, Varying, joined
from equipoise.errors import UnknownName, raise_all
from equipoise.measures import ARGMAX, Threshold
from equipoise.report.measure_words import PERFORMANCE, RATES, crossed, distinct, gap_words, performance_words, rate_words
from equipoise.report.text import amount, percent, sentence, short_name, thousand

if TYPE_CHECKING:
    import pandas as pd

    from equipoise.measures import Audit, Baseline, Contribution, Versus
    from equipoise.methods import Goal, Judgement, Note
    from equipoise.repair import Balance, Comparison, Tried

OUTCOMES = ("harm", "unclear", "reduced", "closed", "unchanged")  # in this order for several labels


def largest_gap(gaps: pd.DataFrame) -> pd.Series[Any] | None:
    """The largest gap: of those that are clear after adjustment where there are any, and of these not of an intersection if possible."""
    pool = gaps[gaps["value"].notna() & gaps["measure"].isin(distinct(gaps["measure"].unique()))]
    for preferred in (pool["clear"], ~pool["attribute"].isin(crossed(list(gaps["attribute"].unique())))):
        wanted = preferred.reindex(pool.index)
        pool = pool[wanted] if wanted.any() else pool
    return pool.loc[pool["value"].abs().idxmax()] if len(pool) else None


def comparison_words(audit: Audit) -> str:
    """How many comparisons an audit makes: '12 comparisons'."""
    return f"{audit.comparisons:,} comparison{'' if audit.comparisons == 1 else 's'}"


def sampled_words(audit: Audit) -> list[str]:
    """What the figures of very many rows rest on: a sample of them, or binned scores; empty where all rows were used as they are."""
    lines = []
    if "sampled" in audit.groups:
        sampled = audit.groups[audit.groups["sampled"] < audit.groups["n"]]
        if len(sampled):
            names = ", ".join(dict.fromkeys(short_name(name) for name in sampled.index))
            lines.append(
                "Calibration intercept, slope and error, operating points and decision curves are from random samples of whole patients "
                f"(at least {int(sampled['sampled'].min()):,} rows each) in groups with more: {names}."
            )
    noted: dict[str, list[str]] = {}
    for name, estimate in audit.estimates.items():
        if estimate.note and not estimate.group and not math.isnan(estimate.value):
            noted.setdefault(estimate.note, []).append(PERFORMANCE[name] if name in PERFORMANCE else RATES[name].name)
    return lines + [f"{sentence(' and '.join(names))} of all patients: {note}." for note, names in noted.items()]


def group_words(given: Mapping[str, str] | None, attributes: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """The user's words for groups, for intersections too; raises an error that names every group that the data do not have.

    >>> group_words({"F": "women", "M": "men"}, {"sex": ("M", "F"), "age": ("old",)})
    {'F': 'women', 'M': 'men', 'M & old': 'men & old', 'F & old': 'women & old'}
    """
    levels = [level for own in attributes.values() for level in own]
    problems = [UnknownName("group", group, levels).problems[0] for group in given or {} if group not in levels]
    raise_all(problems)
    words = {group: str(text) for group, text in (given or {}).items()}
    if words and len(attributes) > 1:
        for group in product(*attributes.values()):
            words[joined(list(group))] = joined([words.get(level, level) for level in group])
    return words


def attributes_of(audit: Audit) -> dict[str, list[str]]:
    """The groups of each attribute of an audit, without intersections."""
    found = {str(name): [str(group) for group in rows.index] for name, rows in audit.groups.groupby("attribute", sort=False)}
    return {name: levels for name, levels in found.items() if name not in crossed(list(found))}


class Called(dict[str, str]):
    """The words for groups; a group without words of its own has its name, shortened."""

    def __call__(self, group: object) -> str:
        return short_name(self.get(str(group), str(group)))


def conclusion(audit: Audit, names: Mapping[str, str] | None = None) -> str:
    """The largest finding of an audit in one sentence, and how many of its comparisons are findings after adjustment.

    The interval is the simultaneous one, because the gap was selected for its size.
    """
    row, many, called = largest_gap(audit.gaps), comparison_words(audit), Called(names or {})
    if row is None:
        return "No difference could be estimated: insufficient data."
    if not row["clear"]:
        return f"No difference between groups is clear after adjustment for {many}; differences below the detectable size remain possible."
    low, high = sorted(100 * abs(row[f"simultaneous_{end}"]) for end in ("low", "high"))
    family = "" if audit.own_comparisons == audit.comparisons else f" for all {audit.comparisons:,}"
    of = f"{audit.own_comparisons:,} comparison{'' if audit.own_comparisons == 1 else 's'}"
    found = f"{audit.findings} of {of} {'is' if audit.findings == 1 else 'are'} clear after adjustment{family}"
    ends = f"simultaneous {percent(audit.settings.level)} interval {low:.1f} to {high:.1f}"
    return (
        f"{sentence(gap_words(str(row['measure'])))} is {100 * abs(row['value']):.1f} percentage points "
        f"{'lower' if row['value'] < 0 else 'higher'} in {called(row['group'])} than in {called(row['reference'])} "
        f"({ends}); {found}."
    )


def goal_words(goal: Goal) -> str:
    """A goal in words.

    >>> from equipoise.methods import Goal
    >>> goal_words(Goal("eod", min_performance=0.75))
    'the smallest difference in sensitivity with balanced accuracy of at least 75.0%'
    >>> goal_words(Goal("spd", max_gap=0.05, keep={"tpr": "before"}))
    "the best balanced accuracy with a difference in share flagged of at most 5.0 points, and no group's sensitivity lower than before"
    >>> goal_words(Goal("eod").settled(0.8))
    "the smallest difference in sensitivity with balanced accuracy at most 2.0 points below the original's (78.0% on the repair set)"
    """
    what, performance = gap_words(goal.measure), performance_words(goal.performance)
    floor = ""
    if goal.min_performance is not None and goal.original is not None:  # relative to the original, as estimated on the repair set
        lost = amount(goal.original - goal.min_performance, "size")
        floor = f" with {performance} at most {lost} points below the original's ({amount(goal.min_performance)} on the repair set)"
    elif goal.min_performance is not None:
        floor = f" with {performance} of at least {amount(goal.min_performance)}"
    within = f"a difference in {what} of at most {amount(goal.max_gap, 'size')} points"
    if goal.max_gap is None:
        asked = f"the smallest difference in {what}{floor}"
    else:
        asked = f"{within}{floor}" if floor else f"the best {performance} with {within}"
    kept = [
        f"no group's {rate_words(rate)} lower than before"
        if isinstance(least, str)
        else f"a {rate_words(rate)} of at least {amount(least)} in every group"
        for rate, least in goal.keep.items()
    ]
    return ", and ".join([asked, *kept])


def contribution_words(contribution: Contribution) -> str:
    """What happened to a rate, in words."""
    more = "more" if contribution.change > 0 else "fewer"
    return {
        "tpr": f"{more} of those with the finding are detected",
        "fpr": f"{more} of those without the finding are flagged",
        "selection": f"{more} patients are flagged",
    }[contribution.rate]


def varying_words(varying: Varying) -> str:
    """How many patients have more than one group, and how they count."""
    have = "patient has" if varying.patients == 1 else "patients have"
    return f"{varying.attribute}: {varying.patients:,} {have} more than one recorded group; {CONFLICTS[varying.rule]} (--conflicts)"


def outcome_words(judgement: Judgement, *, details: bool = True, names: Mapping[str, str] | None = None) -> str:
    """The outcome of a repair in one sentence that begins with its name, harm first; without `details` in as few words as possible.

    `names` are words for groups, such as {"F": "women"}. Page, terminal, cards and README.txt begin with this sentence.
    """
    called = Called(names or {})
    worst = judgement.largest
    if judgement.outcome == "harm":
        return f"Harm: {'; '.join(_harm_words(note, judgement, called, details) for note in judgement.harms)}."
    if worst is None and judgement.outcome == "unchanged":
        return "Unchanged: no decision differs."
    if worst is None:
        groups = ", ".join(map(called, judgement.short))
        return f"Unclear: too few patients for a difference in {gap_words(judgement.measure)} of {groups}{_needed_words(judgement)}."
    subject, limit = _difference(judgement, called), f"±{amount(judgement.max_gap, 'size')}"
    first, last = _ends(judgement, called)
    moved = f"{subject} went from {first} to {last} percentage points"
    if judgement.outcome == "unchanged":
        return f"Unchanged: no decision differs{f', so {subject} stays at {first} percentage points' if details else ''}."
    if judgement.outcome == "closed":
        return (
            f"Closed: {moved}, with its interval within {limit}." if details else f"Closed: {subject} is within {limit} percentage points."
        )
    if judgement.outcome == "reduced":
        low = judgement.performance_after.value < judgement.performance_limit
        lacking = f"{_performance_ends(judgement)}, below its limit of {amount(judgement.performance_limit)}" if low else ""
        return (
            f"Reduced: {moved}{f'; {lacking}' if lacking else f', but is not shown to be within {limit}'}."
            if details
            else f"Reduced: {subject} is smaller."
        )
    moved = f"{subject} is larger, {first} percentage points before and {last} after" if judgement.larger else moved
    if judgement.short:
        why = f"too few patients in {', '.join(map(called, judgement.short))}"
    else:
        sides = ", or has only changed sides" if worst.before.value * worst.after.value < 0 and not judgement.larger else ""
        why = f"{judgement.patients:,} patients are too few to show whether it is {'larger' if judgement.larger else 'smaller'}{sides}"
    return f"Unclear: {moved}; {why}{_needed_words(judgement)}." if details else f"Unclear: {why}."


def outcomes_words(judgements: Mapping[str, Judgement], kind: str = "labels") -> str:
    """The outcomes of several labels in one sentence, harm first, with the labels that have it."""
    found = [str(judgement.outcome) for judgement in judgements.values()]
    order = [name for name in OUTCOMES if name in found]
    head, rest = order[0], order[1:]
    if not rest:
        return f"{sentence(head)}: in all {len(found)} {kind}."
    named = ", ".join(short_name(label) for label, own in zip(judgements, found, strict=True) if own == head)
    return (
        f"{sentence(head)}: in {found.count(head)} of {len(found)} {kind} ({named}); {', '.join(f'{o} in {found.count(o)}' for o in rest)}."
    )


def _difference(judgement: Judgement, called: Called) -> str:
    """The difference that is judged: between two groups, or the largest from the reference."""
    one = judgement.gaps[0]
    if len(judgement.gaps) == 1:
        return f"the difference in {gap_words(judgement.measure)} between {called(one.group)} and {called(one.reference)}"
    return f"the largest difference in {gap_words(judgement.measure)} from {called(one.reference)}"


def _ends(judgement: Judgement, called: Called) -> list[str]:
    """The largest difference before and after, in points, with its group where there are several."""
    known = [gap for gap in judgement.gaps if gap.known]
    sides = [max(known, key=lambda gap, side=side: abs(getattr(gap, side).value)) for side in ("before", "after")]  # type: ignore[misc]
    values = [getattr(gap, side).value for gap, side in zip(sides, ("before", "after"), strict=True)]
    several = len(judgement.gaps) > 1
    return [amount(value, "points") + (f" ({called(gap.group)})" if several else "") for value, gap in zip(values, sides, strict=True)]


def _performance_ends(judgement: Judgement) -> str:
    what, before, after = performance_words(judgement.performance), judgement.performance_before.value, judgement.performance_after.value
    return f"{what} {'fell' if after < before else 'went'} from {amount(before)} to {amount(after)}"


def _needed_words(judgement: Judgement) -> str:
    needed = judgement.patients_needed
    return f"; about {needed:,} patients like these would be needed" if needed is not None else ""


def _harm_words(note: Note, judgement: Judgement, called: Called, details: bool) -> str:
    """One harm in words."""
    n = note.numbers
    if note.kind == "performance_below_limit":
        brief = f"{performance_words(note.subject)} fell below its limit"
        surely = "which sampling error does not explain" if n["clear"] else "which sampling error may explain"
        return f"{_performance_ends(judgement)}, below its limit of {amount(n['limit'])}, {surely}" if details else brief
    if note.kind == "larger_gap":
        subject = f"the difference in {gap_words(judgement.measure)} between {called(note.subject)} and {called(n['reference'])}"
        if not details:
            return f"{subject} is larger"
        return f"{subject} is larger, {amount(n['before'], 'points')} percentage points before and {amount(n['after'], 'points')} after"
    if note.kind == "rate_worse":
        brief = f"{rate_words(n['rate'])} of {called(note.subject)} fell"
        return f"{brief} from {amount(n['before'])} to {amount(n['after'])}, below its limit of {amount(n['limit'])}" if details else brief
    return f"{note.kind.replace('_', ' ')}: {called(note.subject)}"


def balance_words(rows: Iterable[Balance], unit: str, digits: int = 0, names: Mapping[str, str] | None = None) -> dict[str, list[str]]:
    """Who is clearly better ("gain") and who is clearly worse ("loss"), in missed findings and false alarms per 1,000."""
    called = Called(names or {})
    found: dict[str, list[str]] = {"gain": [], "loss": []}
    for row in rows:
        for what, change in (("missed findings", row.missed), ("false alarms", row.alarms)):
            if row.group is None or not (change.high < 0 or change.low > 0):
                continue
            size, ends = thousand(abs(change.value), digits), sorted(abs(end) for end in (change.low, change.high))
            more = "more" if change.value > 0 else "fewer"
            words = f"{called(row.group)}, {size} {more} {what} per 1,000 {unit} ({' to '.join(thousand(end, digits) for end in ends)})"
            found["loss" if change.value > 0 else "gain"].append(words)
    return found


def baseline_words(baseline: Baseline | None, level: float = 0.95) -> list[str]:
    """Where a simple model clearly does better than the network or the repaired classifier, a sentence each; otherwise nothing."""
    if baseline is None:
        return []
    what, found = performance_words(baseline.performance), []
    seen = "16 x 16 pixels and statistics of each image" if baseline.inputs == "pixels" else "the same inputs"
    if baseline.beats_original:
        found.append(
            f"The model may be the limit: a logistic regression on {seen}, fitted to the {baseline.fitted_on}, has a {what} of "
            f"{_ahead(baseline.original, level)} than the original network on the same {baseline.rows:,} held-out rows."
        )
    if baseline.beats_repaired and baseline.repaired is not None:
        gaps = (amount(gap, "points") for gap in (baseline.repaired.gap, baseline.repaired.other_gap))
        found.append(
            f"A logistic regression on {seen} with a constraint on the difference in {gap_words(baseline.measure)} has a {what} of "
            f"{_ahead(baseline.repaired, level)} than the repaired classifier, with a difference of {' compared with '.join(gaps)} points: "
            "consider another model."
        )
    return found


def _ahead(other: Versus, level: float) -> str:
    ends = " to ".join(amount(end, "size") for end in (other.difference.low, other.difference.high))
    points = amount(other.difference.value, "size")
    return f"{amount(other.value)}, {points} points ({percent(level)} interval {ends}) more"


def repair_answer(comparison: Comparison) -> str:
    """What the repair achieved on held-out patients, in one sentence: the first of README.txt, the cards and the terminal."""
    return outcome_words(comparison.judgement)


def met_words(judgement: Judgement) -> str:
    """Whether the goal's limits are kept on held-out rows; empty for a goal without a maximum gap."""
    if judgement.met is None:
        return ""
    return "All limits of the goal are kept on these rows." if judgement.met else "Not all limits of the goal are kept on these rows."


def original_words(comparison: Comparison) -> str:
    """The threshold of the original, and where it comes from; empty for classes, which are decided by argmax."""
    from equipoise.methods import IN_USE  # after torch, which auditing scores does not load

    candidate = comparison.original.candidate
    if not isinstance(candidate.rule, Threshold) or candidate.rule.origin == ARGMAX:
        return ""
    best = f"of best {performance_words(candidate.goal.performance)} on the repair set"
    origin = "in use" if candidate.rule.origin == IN_USE else best
    return f"The original decides by score >= {candidate.rule.value:.4g}, the threshold {origin}."


def method_words(tried: Tried) -> str:
    """The method of a candidate, and which method chose it, if another one did: bias-score, chosen by auto."""
    ran, method = tried.candidate.ran, tried.candidate.method
    if ran == method:
        return tried.name
    if tried.candidate.chosen == 0:
        return f"{tried.name} (the original stays)"
    return f"{ran}, chosen by {method}" if tried.name == method else f"{tried.name} ({ran}, chosen by {method})"


def repair_set_words(comparison: Comparison) -> str:
    """One sentence on the repair set: the method, and the gap before and after on the rows that it was fitted to."""
    candidate = comparison.result.candidate
    gaps = [candidate.trace.iloc[at]["gap"] for at in (0, candidate.chosen)]
    first, last = (amount(float(gap), "points") for gap in gaps)
    rows = "" if comparison.result.valid is None else f" ({len(comparison.result.valid):,} rows)"
    name = method_words(comparison.result)
    if candidate.chosen == 0:
        return f"On the repair set{rows} {comparison.result.name} kept the original, at {first} points. Goal: {goal_words(candidate.goal)}."
    return (
        f"On the repair set{rows}, to which it was fitted, {name}{',' if ',' in name else ''} changed it from {first} to {last} points. "
        f"Goal: {goal_words(candidate.goal)}."
    )


def preprocessing_words(how: Mapping[str, Any]) -> str:
    """How the pixels of images became the input of a network, from the plain values in run.json.

    >>> preprocessing_words({"resize": 80, "crop": 64, "interpolation": "bilinear", "channels": 1, "mean": [0.5], "std": [0.25]})
    'shorter side resized to 80 pixels (bilinear), central 64 x 64 pixels cropped, greyscale, (pixel - 0.5) / 0.25'
    """
    if how.get("transform"):
        code = how["transform"]
        checksum = f" (SHA-256 {code['sha256'][:12]}...)" if code["sha256"] else ""
        converted = {1: ", from greyscale", 3: ", from RGB"}.get(how.get("channels") or 0, "")
        return f"prepared by the transform {code['named']}{checksum}{converted}"
    resize, crop, kind = how.get("resize"), how.get("crop"), how["interpolation"]
    said = ["preprocessing of torchxrayvision" if how.get("preset") == "torchxrayvision" else ""]
    said += ["largest central square cropped"] if crop == "square" else []
    if isinstance(resize, int):
        said.append(f"shorter side resized to {resize} pixels ({kind})")
    elif resize is not None:
        said.append(f"{'resized' if crop == 'square' else 'stretched'} to {resize[0]} x {resize[1]} pixels ({kind})")
    said += [f"central {crop} x {crop} pixels cropped"] if isinstance(crop, int) else []
    said.append({1: "greyscale", 3: "RGB"}.get(how["channels"], f"{how['channels']} channels"))
    mean, std = (", ".join(f"{value:g}" for value in how[name]) for name in ("mean", "std"))
    several = len(how["mean"]) > 1
    said.append(f"(pixel - {f'({mean})' if several else mean}) / {f'({std})' if several else std}")
    return ", ".join(filter(None, said))
