"""The words and numbers of every output: text made safe, numbers and intervals formatted, measures, goals and notes in words.

Shares are percentages with one decimal place, differences are percentage points; cards and the terminal show fractions with three.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from equipoise.data import CONFLICTS, Varying
from equipoise.errors import BadInput
from equipoise.measures import MEASURES, meaning, terms

if TYPE_CHECKING:
    from equipoise.methods import Goal
    from equipoise.repair import Comparison, Contribution

INSUFFICIENT = "insufficient data"
LONGEST = 40  # characters of a name on the page; the list of names at its end has it in full
LONGEST_NAME, LONGEST_LINE = 60, 800  # characters of a name in a table or a card, and of a sentence in a card
AT_BOUND = 5e-4  # less than this from the upper bound would be printed as 0.0 or 0.1 points
MINUS = "\N{MINUS SIGN}"
UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")  # controls, colours and changes of direction
# Besides controls: what XML forbids, what no file can hold, and what some readers take for the end of a line or of a file.
UNFIT = re.compile("[\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff\u2028\u2029\ufeff]")
# What Markdown or HTML could act on; a '_' inside a word and an '&' that begins no entity are harmless and stay readable.
MARKUP = re.compile(r"([\\`*\[\]<|~#$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|&(?=#?\w+;))")
HTML = re.compile(r"<(?!https?://|mailto:)(?=[A-Za-z/!?])")

# The rates of a group that the page shows: name, what it is, and whether it is a share (percent), an area or a difference.
RATES: dict[str, tuple[str, str, str]] = {
    "tpr": ("Sensitivity", "of those who have the finding, the share that is detected", "share"),
    "tnr": ("Specificity", "of those who do not have it, the share that is cleared", "share"),
    "ppv": ("PPV", "positive predictive value: of those flagged, the share who have the finding", "share"),
    "npv": ("NPV", "negative predictive value: of those cleared, the share who do not have it", "share"),
    "auroc": ("AUROC", "the probability that a patient with the finding scores higher than one without; 0.5 is chance", "area"),
    "calibration_in_the_large": (
        "Calibration in the large",
        "mean score minus the share who have the finding, in points; above zero the scores are too high",
        "points",
    ),
    "calibration_error": (
        "Calibration error",
        "mean distance of the score from the share who have the finding, over 10 bins, in points",
        "size",
    ),
}
RATE_NAMES = {
    "selection_rate": "decided positive",
    "tpr": "sensitivity (TPR)",
    "fpr": "false positive rate (FPR)",
    "tnr": "specificity (TNR)",
    "fnr": "miss rate (FNR)",
    "ppv": "PPV",
    "npv": "NPV",
    "auroc": "AUROC",
    "calibration_error": "calibration error",
}
PERFORMANCE = {
    "balanced_accuracy": "balanced accuracy",
    "accuracy": "accuracy",
    "f1": "F1",
    "auroc": "AUROC",
    "average_precision": "average precision",
}


# Text from users' files


def printable(text: str) -> str:
    r"""The text with control characters written out, so that a name in a file cannot steer the terminal. Lines stay.

    >>> printable("\x1b[31mred")
    '\\x1b[31mred'
    """
    return UNSEEN.sub(lambda found: found[0] if found[0] == "\n" else found[0].encode("unicode_escape").decode(), text)


def plain(value: object) -> str:
    """A name from a user's file on one line, with control characters and changes of direction written out."""
    return printable(str(value)).replace("\n", "\\n")


def short(value: object, longest: int = LONGEST) -> str:
    """A name on one line, with its middle left out where it is too long.

    >>> short("a" * 50)
    'aaaaaaaaaaaaaaaaaaaaaaaaaaa…aaaaaaaaaaaa'
    """
    return _shortened(plain(value), longest)


def short_name(value: object) -> str:
    """A name for a table in a terminal or a figure."""
    return short(value, LONGEST_NAME)


def _shortened(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 13]}…{text[-12:]}"


def clean(text: object) -> str:
    r"""The text with control characters, changes of direction and broken characters written out, for XML and YAML. Lines stay.

    >>> clean("a\x00b\ud800c")
    'a\\x00b\\ud800c'
    """
    return printable(UNFIT.sub(lambda found: found[0].encode("unicode_escape").decode(), str(text).expandtabs(4)))


def name(value: object, longest: int = LONGEST_NAME) -> str:
    r"""A name on one line of Markdown, shortened, with nothing in it that Markdown or HTML would act on.

    >>> print(name("<b>|two\nlines"))
    \<b>\|two\\nlines
    """
    return MARKUP.sub(r"\\\1", _shortened(clean(value).replace("\n", "\\n"), longest))


def line(value: object) -> str:
    """A whole sentence that may hold names, as one line of Markdown."""
    return name(value, LONGEST_LINE)


def prose(text: str) -> str:
    """Text that the user wrote for the card: Markdown stays, HTML is shown as text.

    >>> prose("**see** <https://a.org>, p < 0.05 <script>")
    '**see** <https://a.org>, p < 0.05 &lt;script>'
    """
    return HTML.sub("&lt;", clean(text).strip())


def fenced(text: object, language: str = "") -> str:
    """A Markdown block of code, with a fence that nothing in it can close."""
    body = clean(text)
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", body)), default=0))
    return f"{fence}{language}\n{body}\n{fence}"


# Numbers


def number(value: float, digits: int, sign: bool = False) -> str:
    """A number with a true minus, and never a minus before a zero.

    >>> number(-0.04, 1), number(-2.25, 2), number(3, 1, sign=True)
    ('0.0', '−2.25', '+3.0')
    """
    text = f"{value:+,.{digits}f}" if sign else f"{value:,.{digits}f}"
    if not text.strip("+-0.,"):
        text = text.strip("+-")
    return text.replace("-", MINUS)


def amount(value: float | None, kind: str = "share") -> str:
    """A value by its kind: share '78.2%', area '0.861', points '−3.1', size '3.1'."""
    if value is None or math.isnan(value):
        return INSUFFICIENT
    if kind == "area":
        return number(value, 3)
    if kind == "share":
        return f"{number(100 * value, 1)}%"
    return number(100 * value, 1, sign=kind == "points")


def span(low: float, high: float, kind: str = "share") -> str:
    """The ends of an interval, without a percent sign: '71.0 to 84.1'; empty where there is none."""
    if math.isnan(low) or math.isnan(high):
        return ""
    if kind == "area":
        return f"{number(low, 3)} to {number(high, 3)}"
    return " to ".join(number(100 * end, 1, sign=kind == "points") for end in (low, high))


def interval(value: float, low: float, high: float, sign: str = "") -> str:
    """A fraction with its interval, or 'insufficient data' for NaN.

    >>> interval(0.1234, 0.1, 0.15), interval(-0.1, -0.2, 0.03, "+"), interval(float("nan"), 0, 0)
    ('0.123 [0.100, 0.150]', '-0.100 [-0.200, +0.030]', 'insufficient data')
    """
    if math.isnan(value):
        return INSUFFICIENT
    ends = ("?" if math.isnan(end) else f"{end:{sign}.3f}" for end in (low, high))
    return f"{value:{sign}.3f} [{', '.join(ends)}]"


def count(value: float, expected: bool = False) -> str:
    """A count; the expected count of a randomised rule has one decimal."""
    return number(value, 1 if expected else 0)


def percent(level: float) -> str:
    """A level as a percentage, 95% or 99.9%."""
    return f"{100 * level:.4g}%"


def upper_bound_words(below: float | None, performance: str = "") -> str:
    """The distance from the group-aware upper bound in points: '1.2 below', '0.3 above', 'at it'; with the performance measure named.

    >>> [upper_bound_words(below) for below in (0.0123, -0.003, 0.0, None)], upper_bound_words(0.0123, "accuracy")
    (['1.2 below', '0.3 above', 'at it', '—'], '1.2 points of accuracy below it')
    """
    if below is None or math.isnan(below):
        return "—"
    if abs(below) < AT_BOUND:
        return "at it"
    where, size = "below" if below > 0 else "above", f"{100 * abs(below):.1f}"
    return f"{size} points of {performance} {where} it" if performance else f"{size} {where}"


# Measures, goals and notes


def share_words(measure: str) -> tuple[str, str]:
    """What a measure compares, before and after the name of the finding; a sum of rates is spelled out, anything else has its own name.

    >>> "pneumonia".join(share_words("eod"))
    'of the patients who have pneumonia, the share that is detected'
    """
    return MEASURES[measure].question if measure in MEASURES else (f"{_spelled(measure)}, in the detection of ", "")


def gap_words(measure: str) -> str:
    """A measure in a few words.

    >>> gap_words("tpr-0.5fpr")
    'sensitivity - 0.5 times false positive rate'
    """
    return MEASURES[measure].short if measure in MEASURES else _spelled(measure)


def _spelled(measure: str) -> str:
    """A signed sum of rates in words; the name itself where it is none."""
    try:
        terms(measure)
    except BadInput:
        return measure
    return meaning(measure).removeprefix("difference in ")


def performance_words(measure: str) -> str:
    """A performance measure in words."""
    return PERFORMANCE.get(measure, measure.replace("_", " "))


def goal_words(goal: Goal) -> str:
    """A goal in words.

    >>> from equipoise.methods import Goal
    >>> goal_words(Goal("eod", min_performance=0.75))
    'the smallest difference in sensitivity with balanced accuracy of at least 75.0%'
    """
    what, performance = gap_words(goal.measure), performance_words(goal.performance)
    floor = "" if goal.min_performance is None else f" with {performance} of at least {amount(goal.min_performance)}"
    if goal.max_gap is None:
        return f"the smallest difference in {what}{floor}"
    within = f"a difference in {what} of at most {amount(goal.max_gap, 'size')} points"
    return f"{within}{floor}" if floor else f"the best {performance} with {within}"


def contribution_words(contribution: Contribution) -> str:
    """What happened to a rate, in words."""
    more = "more" if contribution.change > 0 else "fewer"
    return {
        "tpr": f"{more} of those with the finding are detected",
        "fpr": f"{more} of those without the finding get a false alarm",
        "selection": f"{more} patients are flagged",
    }[contribution.rate]


def varying_words(varying: Varying) -> str:
    """How many patients have more than one group, and how they count."""
    have = "patient has" if varying.patients == 1 else "patients have"
    return f"{varying.attribute}: {varying.patients:,} {have} more than one recorded group; {CONFLICTS[varying.rule]} (--conflicts)"


def verdict(comparison: Comparison) -> str:
    """One sentence on the repair set, with the measure, the groups and whether the goal was met."""
    candidate = comparison.result.candidate
    first, row = candidate.trace.iloc[0], candidate.trace.iloc[candidate.chosen]
    attribute = comparison.result.test.attribute
    who = f"{', '.join(attribute.others)} minus {attribute.reference}" if len(attribute.others) < 4 else f"{attribute.name}, the largest"
    rows = "" if comparison.result.valid is None else f"{len(comparison.result.valid):,} rows of the "
    name = comparison.result.name if candidate.ran == candidate.method else f"{comparison.result.name} ({candidate.ran})"
    return (
        f"{name} changed {candidate.goal.measure} ({who}) from {first['gap']:+.3f} to {row['gap']:+.3f} "
        f"on the {rows}repair set; the goal ({candidate.goal.describe()}) was {'met' if candidate.met else 'NOT met'} there."
    )
