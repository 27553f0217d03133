"""The words and numbers of a report: measures in plain sentences, shares as percentages, differences as percentage points."""

import math

from equipoise.errors import BadInput
from equipoise.measures import meaning, terms
from equipoise.report.terminal import printable

INSUFFICIENT = "insufficient data"
LONGEST = 40  # characters of a name on the page; the whole of it stands in the list of names at its end
MINUS = "\N{MINUS SIGN}"
ALMOST = 5e-4  # a change that would be printed as 0.0 or 0.1 points is none

# What a measure compares, around the name of what is detected, and the question that follows from it.
SHARE: dict[str, tuple[str, str]] = {
    "eod": ("of the patients who have ", ", the share that is detected"),
    "spd": ("of all patients, the share that is flagged for ", ", whether or not they have it"),
    "aod": ("the mean of two shares, of the patients with ", " that are detected and of those without it that get a false alarm"),
    "fpr_gap": ("of the patients who do not have ", ", the share that gets a false alarm"),
    "tnr_gap": ("of the patients who do not have ", ", the share that is rightly cleared"),
    "fnr_gap": ("of the patients who have ", ", the share that is missed"),
    "ppv_gap": ("of the patients who are flagged for ", ", the share that has it"),
    "npv_gap": ("of the patients who are cleared of ", ", the share that does not have it"),
}
SHORT_GAP = {
    "eod": "sensitivity",
    "spd": "share flagged",
    "aod": "average odds",
    "fpr_gap": "false alarm rate",
    "tnr_gap": "specificity",
    "fnr_gap": "miss rate",
    "ppv_gap": "positive predictive value",
    "npv_gap": "negative predictive value",
}
RATE_OF_GAP = {  # aod is a mean of two, and so is many a sum of the user's own
    "eod": "tpr",
    "spd": "selection_rate",
    "fpr_gap": "fpr",
    "tnr_gap": "tnr",
    "fnr_gap": "fnr",
    "ppv_gap": "ppv",
    "npv_gap": "npv",
}

# The rates of a group that the page shows: name, what it is, and whether it is a share (percent), an area or a difference.
RATES: dict[str, tuple[str, str, str]] = {
    "tpr": ("Sensitivity", "of those who have the finding, the share that is detected", "share"),
    "tnr": ("Specificity", "of those who do not have it, the share that is cleared", "share"),
    "ppv": ("PPV", "positive predictive value: of those flagged, the share who have the finding", "share"),
    "npv": ("NPV", "negative predictive value: of those cleared, the share who do not have it", "share"),
    "auroc": ("AUROC", "the chance that a patient with the finding scores higher than one without; 0.5 is a coin", "area"),
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
PERFORMANCE = {"balanced_accuracy": "balanced accuracy", "accuracy": "accuracy", "f1": "F1"}


def share_words(measure: str) -> tuple[str, str]:
    """What a measure compares, before and after the name of the finding; a sum of rates is spelled out, anything else has its own name.

    >>> "pneumonia".join(share_words("eod"))
    'of the patients who have pneumonia, the share that is detected'
    """
    return SHARE.get(measure, (f"{_spelled(measure)}, in the detection of ", ""))


def gap_words(measure: str) -> str:
    """A measure in a few words.

    >>> gap_words("tpr-0.5fpr")
    'sensitivity - 0.5 times false positive rate'
    """
    return SHORT_GAP.get(measure, _spelled(measure))


def _spelled(measure: str) -> str:
    """A signed sum of rates in words; the name itself where it is none."""
    try:
        terms(measure)
    except BadInput:
        return measure
    return meaning(measure).removeprefix("difference in ")


def plain(value: object) -> str:
    """A name from a user's file on one line, with characters that steer the direction of text written out."""
    return printable(str(value)).replace("\n", "\\n")


def short(value: object) -> str:
    """The same, shortened for a label.

    >>> short("a" * 50)
    'aaaaaaaaaaaaaaaaaaaaaaaaaaa…aaaaaaaaaaaa'
    """
    text = plain(value)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 13]}…{text[-12:]}"


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
    """A value in the way of its kind: share '78.2%', area '0.861', points '−3.1', size '3.1'."""
    if value is None or math.isnan(value):
        return INSUFFICIENT
    if kind == "area":
        return number(value, 3)
    if kind == "share":
        return f"{number(100 * value, 1)}%"
    return number(100 * value, 1, sign=kind == "points")


def span(low: float, high: float, kind: str = "share") -> str:
    """The ends of an interval, without the sign of percent: '71.0 to 84.1'; empty where there is none."""
    if math.isnan(low) or math.isnan(high):
        return ""
    if kind == "area":
        return f"{number(low, 3)} to {number(high, 3)}"
    return " to ".join(number(100 * end, 1, sign=kind == "points") for end in (low, high))


def count(value: float, expected: bool = False) -> str:
    """A count; an expected one of a randomised rule with one decimal."""
    return number(value, 1 if expected else 0)
