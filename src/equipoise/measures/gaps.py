"""The measures, as data. A rate is a share of positive decisions given a label; a gap is a signed sum of rates.

A gap compares a group with the reference: `rate[other] - rate[reference]`. To add a measure, add a line to GAPS; for one of your own give
a sum of rates wherever a measure is named: `"tpr-fpr"`, `"0.5*tpr + 0.5*fpr"`, `{"tpr": 0.5, "fpr": 0.5}`. Predictive parity is none of
these: its rates are shares of those decided alike, so that decisions stand below the line too. Such gaps are in QUOTIENTS.
"""

import math
import re
from collections.abc import Iterable, Mapping

from equipoise.errors import BadInput, UnknownName

RATES: dict[str, int | None] = {"selection": None, "tpr": 1, "fpr": 0}  # share of positive decisions, given this label

GAPS: dict[str, dict[str, float]] = {  # signed sums of rates, other group minus reference
    "spd": {"selection": 1.0},  # statistical parity difference, equation 1 of the paper
    "eod": {"tpr": 1.0},  # equal opportunity difference, equation 2
    "aod": {"tpr": 0.5, "fpr": 0.5},  # average odds difference
    "fpr_gap": {"fpr": 1.0},
    "tnr_gap": {"fpr": -1.0},
    "fnr_gap": {"tpr": -1.0},
}

QUOTIENTS: dict[str, int] = {"ppv_gap": 1, "npv_gap": 0}  # share of those decided so whose label is that; other group minus reference

MEANING: dict[str, str] = {
    "spd": "statistical parity difference: share decided positive",
    "eod": "equal opportunity difference: sensitivity",
    "aod": "average odds difference: mean of sensitivity and false positive rate",
    "fpr_gap": "difference in false positive rate",
    "tnr_gap": "difference in specificity",
    "fnr_gap": "difference in miss rate",
    "ppv_gap": "predictive parity difference: positive predictive value",
    "npv_gap": "difference in negative predictive value",
}

Gap = str | Mapping[str, float]  # a name from GAPS or QUOTIENTS, or a signed sum of rates of the user's own

_WORDS = {"selection": "share decided positive", "tpr": "sensitivity", "fpr": "false positive rate"}
_TERM = re.compile(r"\s*([+-]?)\s*(?:(\d+(?:\.\d*)?(?:e[+-]?\d+)?|\.\d+)\s*\*?\s*)?([a-z_]+)\s*", re.IGNORECASE)


def terms(gap: Gap) -> Mapping[str, float]:
    """The signed rates of a gap: {'tpr': 1.0} for 'eod'. A quotient has none.

    >>> terms("aod")
    {'tpr': 0.5, 'fpr': 0.5}
    >>> terms("tpr - 2*fpr")
    {'tpr': 1.0, 'fpr': -2.0}
    """
    if isinstance(gap, str):
        if gap in GAPS:
            return GAPS[gap]
        return {} if gap in QUOTIENTS else _parsed(gap, ())
    for rate in gap:
        if rate not in RATES:
            raise UnknownName("rate", rate, RATES)
    return gap


def named(gap: Gap, beside: Iterable[str] = ()) -> str:
    """The one name of a measure: from the tables, or its sum of rates in one way of writing. `beside` are names that an error lists too.

    >>> named("0.5*tpr + 0.5*fpr"), named({"fpr": -1, "tpr": 1}), named("ppv_gap")
    ('aod', 'tpr-fpr', 'ppv_gap')
    """
    if isinstance(gap, str) and (gap in GAPS or gap in QUOTIENTS):
        return gap
    given = _parsed(gap, beside) if isinstance(gap, str) else terms(gap)
    problems = [f"the weight of {rate} in a measure is a number; got {w!r}" for rate, w in given.items() if not _is_number(w)]
    if problems:
        raise BadInput(*problems)
    signed = {rate: float(given[rate]) for rate in RATES if given.get(rate)}
    if not signed:
        raise BadInput(f"a measure is a signed sum of rates with at least one that counts, such as 'tpr-fpr'; got {gap!r}")
    for name, known in GAPS.items():
        if known == signed:
            return name
    parts = [f"{'-' if w < 0 else '+'}{'' if abs(w) == 1 else f'{abs(w):.12g}'}{rate}" for rate, w in signed.items()]
    parts.sort(key=lambda part: part[0])  # '+' comes before '-', so that a name seldom begins with a minus
    return "".join(parts).removeprefix("+")


def is_quotient(gap: Gap) -> bool:
    """Whether decisions stand below the line of a gap too, so that its weights change with them and it may have no value."""
    return isinstance(gap, str) and gap in QUOTIENTS


def meaning(measure: str) -> str:
    """What a measure is, in words.

    >>> meaning("tpr-0.5fpr")
    'difference in sensitivity - 0.5 times false positive rate'
    """
    if measure in MEANING:
        return MEANING[measure]
    spoken = ""
    for rate, w in terms(measure).items():
        sign = "- " if w < 0 else "+ " if spoken else ""
        spoken += f" {sign}{'' if abs(w) == 1 else f'{abs(w):g} times '}{_WORDS[rate]}"
    return f"difference in{spoken}"


def labels_needed(gap: Gap) -> tuple[int, ...]:
    """The labels whose cells must not be empty: (1,) for 'eod', () for 'spd' and quotients, which need only rows."""
    return tuple(sorted({label for rate in terms(gap) if (label := RATES[rate]) is not None}))


def _parsed(text: str, beside: Iterable[str]) -> dict[str, float]:
    """The signed rates of a sum that is written out; an error that names the measures, the rates and an example."""
    found: dict[str, float] = {}
    matches, at = [], 0
    while at < len(text) and (match := _TERM.match(text, at)) and (match[1] or not at):  # a sign between any two terms
        matches.append(match)
        at = match.end()
    if at < len(text) or not matches or (len(matches) == 1 and not matches[0][2] and not matches[0][1] and matches[0][3] not in RATES):
        sums = f"or a signed sum of the rates {', '.join(RATES)}, such as 'tpr-fpr' or '0.5*tpr+0.5*fpr'"
        raise UnknownName("measure", text, [*GAPS, *QUOTIENTS, *beside, sums])
    for sign, weight, rate in (match.groups() for match in matches):
        if rate not in RATES:
            raise UnknownName(f"rate in the measure {text!r}:", rate, RATES)
        found[rate] = found.get(rate, 0.0) + float(f"{sign}{weight or 1}")
    return found


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
