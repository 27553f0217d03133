"""Terms: measures, rates, performance and groups in words, and which measures are the same one under two names."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

from equipoise.data import Attribute
from equipoise.errors import BadInput, UnknownName, raise_all
from equipoise.measures import (
    GROUP_MEASURES,
    HOW_COMPARED,
    MEASURES,
    SCORE_MEASURES,
    SUMMARIES,
    lacking_note,
    measure_of,
    missed_case_worth,
)
from equipoise.report.text import percent, short_name

if TYPE_CHECKING:
    from equipoise.measures import AuditSpec

AT_BOUND = 5e-4  # less than this from the upper bound would be printed as 0.0 or 0.1 points


class Rate(NamedTuple):
    """A rate of a group in words; `kind` is its format (see `text.amount`)."""

    name: str
    means: str
    kind: str = "share"


RATE_WORDS = {
    "selection_rate": Rate("share flagged", "of all patients, the share that is decided positive"),
    "tpr": Rate("sensitivity", "of those who have the finding, the share that is detected"),
    "fpr": Rate("false positive rate", "of those who do not have it, the share that is flagged"),
    "tnr": Rate("specificity", "of those who do not have it, the share that is cleared"),
    "fnr": Rate("miss rate", "of those who have the finding, the share that is missed"),
    "ppv": Rate("PPV", "positive predictive value: of those flagged, the share who have the finding"),
    "npv": Rate("NPV", "negative predictive value: of those cleared, the share who do not have it"),
    "auroc": Rate("AUROC", "the probability that a patient with the finding scores higher than one without; 0.5 is chance", "area"),
    "calibration_in_the_large": Rate(
        "calibration in the large",
        "mean score minus the share who have the finding, in points; above zero the scores are too high",
        "points",
    ),
    "calibration_intercept": Rate(
        "calibration intercept",
        "on the logit scale, with the slope at 1; above zero the finding is more frequent than the scores suggest",
        "signed",
    ),
    "calibration_slope": Rate(
        "calibration slope", "of the label on the logit of the score; below 1 the scores are too extreme, above 1 too moderate", "number"
    ),
    "calibration_error": Rate(
        "calibration error",
        "mean distance between the score and the share who have the finding, over 10 bins, in points; bar: range of a calibrated model",
        "size",
    ),
    "brier": Rate("Brier score", "mean squared difference between score and label; 0 is perfect", "area"),
    "sensitivity_at_specificity": Rate(
        "sensitivity at fixed specificity", "at the group's own threshold, with the same specificity in every group"
    ),
    "specificity_at_sensitivity": Rate(
        "specificity at fixed sensitivity", "at the group's own threshold, with the same sensitivity in every group"
    ),
}
HEADLINE = ("tpr", "tnr", "ppv", "npv")  # rates that are always visible on a page; those of the scores are folded
SHOWN_RATES = (  # of groups on the pages
    *(*HEADLINE, "auroc", "sensitivity_at_specificity", "specificity_at_sensitivity"),
    *("brier", "calibration_in_the_large", "calibration_intercept", "calibration_slope", "calibration_error"),
)
PERFORMANCE_WORDS = {
    "balanced_accuracy": "balanced accuracy",
    "accuracy": "accuracy",
    "f1": "F1",
    "auroc": "AUROC",
    "average_precision": "average precision",
}


def upper_bound_words(below: float | None, performance: str = "") -> str:
    """The distance from the group-aware upper bound in points: '1.2 below', '0.3 above', 'at it'; longer if `performance` is named.

    >>> [upper_bound_words(below) for below in (0.0123, -0.003, 0.0, None)], upper_bound_words(0.0123, "accuracy")
    (['1.2 below', '0.3 above', 'at it', '—'], '1.2 points of accuracy below it')
    """
    if below is None or math.isnan(below):
        return "—"
    if abs(below) < AT_BOUND:
        return "at it"
    where, size = "below" if below > 0 else "above", f"{100 * abs(below):.1f}"
    return f"{size} points of {performance} {where} it" if performance else f"{size} {where}"


def share_words(measure: str) -> tuple[str, str]:
    """The question that a measure answers, as the text before and after the name of the finding; a sum of rates is spelled out.

    >>> "pneumonia".join(share_words("eod"))
    'of the patients who have pneumonia, the share that is detected'
    """
    return MEASURES[measure].question if measure in MEASURES else (f"{_spelled(measure)}, in the detection of ", "")


def gap_words(measure: str) -> str:
    """A measure in a few words.

    >>> gap_words("tpr-0.5fpr"), gap_words("tpr_worst")
    ('sensitivity - 0.5 times false positive rate', 'sensitivity, worst group')
    """
    if measure in SUMMARIES:
        return HOW_COMPARED[SUMMARIES[measure].how].format(RATE_WORDS[SUMMARIES[measure].rate].name)
    return MEASURES[measure].short if measure in MEASURES else _spelled(measure)


def summary_kind(measure: str) -> str:
    """The format of a summary of groups (see `text.amount`)."""
    summary = SUMMARIES[measure]
    return RATE_WORDS[summary.rate].kind if summary.how == "worst" else "number" if summary.is_ratio else "points"


def _spelled(measure: str) -> str:
    """A signed sum of rates in words; any other measure is returned unchanged."""
    try:
        return measure_of(measure).words
    except BadInput:
        return measure


def distinct(measures: Iterable[str]) -> list[str]:
    """The measures without those that mirror an earlier one, as fnr_gap mirrors eod.

    >>> distinct(["spd", "eod", "aod", "fpr_gap", "tnr_gap", "fnr_gap", "ppv_gap"])
    ['spd', 'eod', 'aod', 'fpr_gap', 'ppv_gap']
    """
    by_signature: dict[tuple[object, ...], str] = {}
    for name in measures:
        by_signature.setdefault(measure_of(name).signature, name)
    return list(by_signature.values())


def mirrors(measures: Iterable[str]) -> dict[str, list[str]]:
    """For each distinct measure, the measures that mirror it.

    >>> mirrors(["eod", "fpr_gap", "tnr_gap", "fnr_gap"])
    {'eod': ['fnr_gap'], 'fpr_gap': ['tnr_gap']}
    """
    names = list(measures)
    shown = distinct(names)
    return {
        name: [other for other in names if other not in shown and measure_of(other).signature == measure_of(name).signature]
        for name in shown
    }


def rate_title(rate: str, settings: AuditSpec) -> str:
    """The name of a rate of a group, with the value of a fixed operating point: 'sensitivity at 90% specificity'."""
    fixed = {"sensitivity_at_specificity": settings.specificity, "specificity_at_sensitivity": settings.sensitivity}
    return RATE_WORDS[rate].name.replace("fixed", percent(fixed[rate])) if rate in fixed else RATE_WORDS[rate].name


def lacking_words(lacking: Mapping[str, str], settings: AuditSpec, unit: str) -> str:
    """The rates of a group with insufficient data and why, from a cell of `lacking` in `Audit.groups`; 'everything' if all are affected.

    >>> from equipoise.measures import AuditSpec
    >>> lacking_words({"tpr": "few", "calibration_slope": "constant"}, AuditSpec(), "patients")
    'insufficient data (fewer than 5 patients): sensitivity; insufficient data: calibration slope (all scores are equal)'
    """
    reasons = set(lacking.values())
    named = {RATE_WORDS[measure].name if measure in RATE_WORDS else measure: reason for measure, reason in lacking.items()}
    if len(reasons) == 1 and lacking.keys() >= {*GROUP_MEASURES, *SCORE_MEASURES}:
        named = {"everything": reasons.pop()}
    return lacking_note(named, settings.min_patients, unit)


def rate_words(rate: str) -> str:
    """The name of a rate of a group, or of a term of a measure ("selection")."""
    return RATE_WORDS["selection_rate" if rate == "selection" else rate].name


def performance_words(measure: str) -> str:
    """A performance measure in words."""
    worth = missed_case_worth(measure)
    if worth is not None:
        return f"net benefit (a missed case is worth {worth:g} false alarms)"
    return PERFORMANCE_WORDS.get(measure, measure.replace("_", " "))


class GroupNames(dict[str, str]):
    """The user's words for groups, such as {"F": "women"}; a group without any keeps its name."""

    def full(self, group: object) -> str:
        """The name of a group at any length, for pages, which shorten it themselves."""
        return self.get(str(group), str(group))

    def __call__(self, group: object) -> str:
        return short_name(self.full(group))


def group_words(given: Mapping[str, str] | None, attributes: Mapping[str, Sequence[str]]) -> GroupNames:
    """The user's words for groups, extended to intersections; raises an error that lists every group that is not in the data.

    >>> group_words({"F": "women", "M": "men"}, {"sex": ("M", "F"), "age": ("old",)})
    {'F': 'women', 'M': 'men', 'M & old': 'men & old', 'F & old': 'women & old'}
    """
    levels = [level for of_attribute in attributes.values() for level in of_attribute]
    crossed = {Attribute.crossed_name(list(group)): group for group in product(*attributes.values())} if len(attributes) > 1 else {}
    unknown = [group for group in given or {} if group not in levels and group not in crossed]  # these words may be extended already
    raise_all([UnknownName("group", group, levels).problems[0] for group in unknown])
    names = GroupNames({group: str(text) for group, text in (given or {}).items()})
    if names:
        names.update({name: Attribute.crossed_name([names.full(level) for level in group]) for name, group in crossed.items()})
    return names
