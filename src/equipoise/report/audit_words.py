"""Who is worse off by an audit, in one sentence for a committee: missed findings first, then false alarms, per 1,000 patients."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pandas as pd

from equipoise.measures import Audit, Estimate
from equipoise.report.measure_words import crossed
from equipoise.report.text import amount, percent, short_name, thousand
from equipoise.report.wording import Called, comparison_words, conclusion, largest_gap

MISSED, ALARMS = "missed findings", "false alarms"
COMPARED = {  # the measures whose difference is one in missed findings or false alarms, and whether a higher value is worse
    MISSED: {"eod": False, "fnr_gap": True},
    ALARMS: {"fpr_gap": True, "tnr_gap": False},
}
SAID = 2  # of each kind, in the sentence
HARM, OTHER, NONE, UNKNOWN = "harm", "unclear", "unchanged", "unclear"  # the style of the sentence


@dataclass(frozen=True)
class Harm:
    """A group that is worse off than another, clear after adjustment: by how much more of its patients, with the simultaneous interval."""

    kind: str
    attribute: str
    group: str
    than: str
    more: float
    low: float
    high: float
    few: bool


def worse_by(audit: Audit, kind: str) -> dict[tuple[str, str], Estimate]:
    """By attribute and group, how many more are missed (or falsely flagged) than in the reference; negative where they are fewer."""
    found: dict[tuple[str, str], Estimate] = {}
    for row in audit.gaps.to_dict("records"):
        worse = COMPARED[kind].get(str(row["measure"]))
        key = str(row["attribute"]), str(row["group"])
        if worse is None or key in found:
            continue
        gap = Estimate.of_gap({str(name): value for name, value in row.items()})
        found[key] = gap if worse else _negated(gap)
    return found


def _negated(gap: Estimate) -> Estimate:
    ends = (gap.high, gap.low, gap.simultaneous_high, gap.simultaneous_low)
    low, high, wide_low, wide_high = (-end for end in ends)
    return replace(gap, value=-gap.value, low=low, high=high, simultaneous_low=wide_low, simultaneous_high=wide_high)


def harms(audit: Audit) -> list[Harm]:
    """Every group that is clearly worse off: missed findings first, single attributes before intersections, the largest first."""
    folded = crossed(list(audit.groups["attribute"].unique()))
    found = []
    for kind in COMPARED:
        for (attribute, _), gap in worse_by(audit, kind).items():
            if gap.clear:
                worse, other = (gap.group, gap.reference) if gap.value > 0 else (gap.reference, gap.group)
                low, high = sorted(abs(end) for end in (gap.simultaneous_low, gap.simultaneous_high))
                found.append(Harm(kind, attribute, worse, other, abs(gap.value), low, high, gap.few))
    return sorted(found, key=lambda h: (h.attribute in folded, h.kind == ALARMS, -h.more))


def harm_words(harm: Harm, names: Mapping[str, str]) -> str:
    """One harm in words: 'of 1,000 women who have the finding, 121 more (60 to 182) are missed than of 1,000 men'."""

    def people(group: str) -> str:
        called = Called(names)(group)
        return called if group in names else f"patients ({short_name(harm.attribute)} {called})"

    has, happens = ("who have the finding", "missed") if harm.kind == MISSED else ("who do not have it", "falsely flagged")
    more = f"{thousand(harm.more)} more ({thousand(harm.low)} to {thousand(harm.high)})"
    return f"of 1,000 {people(harm.group)} {has}, {more} are {happens} than of 1,000 {people(harm.than)}"


def answer(audit: Audit, names: Mapping[str, str] | None = None, *, brief: bool = False) -> tuple[str, str]:
    """The style and the sentence that a page of an audit begins with: who is worse off; else another difference, none, or too few.

    A `brief` sentence, for one of several labels, leaves out the number of comparisons.
    """
    found, words = harms(audit), names or {}
    single = [h for h in found if h.attribute not in crossed(list(audit.groups["attribute"].unique()))] or found
    said = [h for kind in COMPARED for h in [h for h in single if h.kind == kind][:SAID]]
    if said:
        more = len(found) - len(said)
        rest = f"; and {more} more such difference{'s' if more > 1 else ''}" if more else ""
        return HARM, f"Worse off: {'; '.join(harm_words(h, words) for h in said)}{rest}."
    largest = largest_gap(audit.gaps)
    if largest is None:
        return UNKNOWN, "Insufficient data: no difference between groups could be estimated from these patients."
    if largest["clear"]:
        return OTHER, f"A difference, not in missed findings or false alarms: {_lowered(conclusion(audit, names))}"
    unseen = _unseen(audit, Called(words))
    if brief:
        return NONE, f"No clear difference{f'; {unseen}' if unseen else ''}."
    many = f"{audit.own_comparisons:,} comparison{'' if audit.own_comparisons == 1 else 's'}"
    family = "" if audit.own_comparisons == audit.comparisons else f" for all {audit.comparisons:,}"
    return (
        NONE,
        f"No clear difference: none of {many} between groups is clear after adjustment{family}{f', but {unseen}' if unseen else ''}.",
    )


def _lowered(text: str) -> str:
    return text if text[:2].isupper() else text[:1].lower() + text[1:]


def _unseen(audit: Audit, called: Called) -> str:
    """What the audit may have missed: the minimum detectable difference in missed findings, the largest over the groups."""
    rows = audit.gaps[audit.gaps["measure"].isin(COMPARED[MISSED]) & ~audit.gaps["attribute"].isin(crossed(list(audit.references)))]
    rows = rows[rows["value"].notna() & ~rows.duplicated(["attribute", "group"])]
    if not len(rows) or rows["detectable"].isna().all():
        return "" if not len(rows) else "this many patients would not show any possible difference in missed findings"
    row: pd.Series[float] = rows.loc[rows["detectable"].idxmax()]
    return (
        f"differences in missed findings of up to {amount(float(row['detectable']), 'size')} percentage points may be missed with "
        f"this many patients ({called(row['group'])})"
    )


def interval_words(audit: Audit) -> str:
    """What the interval in the sentence is: 'simultaneous 95% intervals, for 12 comparisons'."""
    return f"simultaneous {percent(audit.settings.level)} intervals, for {comparison_words(audit)}"
