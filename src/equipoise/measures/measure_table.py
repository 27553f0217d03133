"""The table of measures. No large package is imported: mistakes are reported at once.

A rate is a share of positive decisions given a label; a gap is a signed sum of rates.

A gap compares a group with the reference: `rate[other] - rate[reference]`. To add a measure, add an entry to this table, with its words. A
sum of rates can be used wherever a measure is named: `"tpr-fpr"`, `"0.5*tpr + 0.5*fpr"`, `{"tpr": 0.5, "fpr": 0.5}`. Predictive values are
not sums of rates: their denominators are decisions, so they are quotients.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

from equipoise.errors import BadInput, UnknownName, raise_all
from equipoise.plugins import Registry


class Ratio(NamedTuple):
    """The coefficients of the columns in the numerator and denominator of a ratio.

    For the difference of two ratios with the same denominator, `either` is the numerator of their sum.
    """

    top: tuple[float, ...]
    bottom: tuple[float, ...]
    either: tuple[float, ...] | None = None


class _Ratios(dict[str, Ratio]):
    """Ratios by name; that of a net benefit is made from its name."""

    def __missing__(self, name: str) -> Ratio:
        worth = missed_case_worth(name)
        if worth is None:
            raise KeyError(name)
        return Ratio((0, 0, -1 / worth, 1), (0, 1, 0, 0))


def missed_case_worth(name: str) -> float | None:
    """The number of false alarms that one missed case is worth in a net benefit; None for other measures of performance.

    Net benefit is (true positives - false positives / worth) / positives: 1 for a perfect classifier, 0 for one that flags no patient.

    >>> missed_case_worth("net_benefit_10"), missed_case_worth("accuracy")
    (10.0, None)
    """
    found = re.fullmatch(r"net_benefit_(\d*\.?\d+)", name)
    return float(found[1]) if found and float(found[1]) > 0 else None


RATIOS = _Ratios(
    {  # columns: n0, n1 (rows with label 0, 1), s0, s1 (sums of their decisions)
        "selection_rate": Ratio((0, 0, 1, 1), (1, 1, 0, 0)),
        "tpr": Ratio((0, 0, 0, 1), (0, 1, 0, 0)),
        "fpr": Ratio((0, 0, 1, 0), (1, 0, 0, 0)),
        "tnr": Ratio((1, 0, -1, 0), (1, 0, 0, 0)),
        "ppv": Ratio((0, 0, 0, 1), (0, 0, 1, 1)),
        "npv": Ratio((1, 0, -1, 0), (1, 1, -1, -1)),
        "accuracy": Ratio((1, 0, -1, 1), (1, 1, 0, 0)),
        "f1": Ratio((0, 0, 0, 2), (0, 1, 1, 1)),
        "jaccard": Ratio((0, 0, 0, 1), (0, 1, 1, 0)),  # true positives among rows that are positive or decided positive; F1 = 2 J / (1 + J)
    }
)
RATIOS["selection"] = RATIOS["selection_rate"]  # its name in sums of rates
COMPLEMENTS = {"tnr": "fpr", "fnr": "tpr"}  # one minus the other rate
GROUP_RATES = ("selection_rate", "tpr", "fpr", "tnr", "fnr", "ppv", "npv")  # that an audit reports of every group
ESTIMATED_RATES = tuple(rate for rate in GROUP_RATES if rate not in COMPLEMENTS)  # with sums of their own
RATES: dict[str, int | None] = {"selection": None, "tpr": 1, "fpr": 0}  # share of positive decisions, given this label
AT_THRESHOLD = ("balanced_accuracy", "accuracy", "f1")  # measures of performance that depend on the decisions
PERFORMANCE = ("balanced_accuracy", "accuracy", "f1", "auroc", "average_precision")
OVERALL_SCORE_MEASURES = ("brier", "calibration_intercept", "calibration_slope", "calibration_in_the_large")
AFFINE_PERFORMANCE = ("balanced_accuracy", "accuracy")  # and net benefits
OVERALL = (*PERFORMANCE, *OVERALL_SCORE_MEASURES)  # measures of all rows together; all others are gaps


def estimated_rate(rate: str) -> str:
    """The name of one of RATES among the rates that an audit estimates."""
    return "selection_rate" if rate == "selection" else rate


def is_performance(name: str) -> bool:
    """Whether this is a measure of performance that depends on the decisions."""
    return name in AT_THRESHOLD or missed_case_worth(name) is not None


def is_affine_performance(name: str) -> bool:
    """Whether this measure of performance is a sum of weights of decisions, given the counts of labels."""
    return name in AFFINE_PERFORMANCE or missed_case_worth(name) is not None


@dataclass(frozen=True)
class Measure:
    """A gap between a group and the reference, and its words. It compares either a sum of `rates` or a predictive value (`decided`)."""

    name: str
    meaning: str
    short: str  # the compared quantity in a few words
    question: tuple[str, str] = ("", "")  # the compared quantity in a sentence, before and after the name of the finding
    rates: Mapping[str, float] = field(default_factory=dict)  # signed sum of RATES
    decided: int | None = None  # 1: positive predictive value, 0: negative predictive value
    rate: str = ""  # the compared rate, as in `Audit.groups`; empty for a sum of several

    @property
    def is_quotient(self) -> bool:
        """Whether the denominators are decisions, so that the weights change with the decisions and the gap may be undefined."""
        return self.decided is not None

    @property
    def coefficients(self) -> Mapping[str, float]:
        """The ratios that are compared between groups, with their coefficients in the sum.

        >>> measure_of("spd").coefficients, measure_of("ppv_gap").coefficients
        ({'selection_rate': 1.0}, {'ppv': 1.0})
        """
        if self.is_quotient:
            return {self.rate: 1.0}
        return {estimated_rate(rate): sign for rate, sign in self.rates.items()}

    @property
    def labels(self) -> tuple[int, ...]:
        """The labels that every group must have: (1,) for 'eod', () for 'spd' and quotients, which need rows of any label."""
        return tuple(sorted({label for rate in self.rates if (label := RATES[rate]) is not None}))

    @property
    def signature(self) -> tuple[object, ...]:
        """A key that is equal for measures that are multiples of each other, such as eod and fnr_gap: they are one comparison.

        >>> measure_of("eod").signature == measure_of("2*tpr").signature, measure_of("aod").signature == measure_of("eod").signature
        (True, False)
        """
        first = next((self.rates[rate] for rate in RATES if self.rates.get(rate)), 1.0)
        return tuple((rate, round(self.rates[rate] / first, 9)) for rate in RATES if self.rates.get(rate)) or (self.name,)

    @property
    def words(self) -> str:
        """The signed sum of rates in words.

        >>> measure_of("tpr-0.5fpr").words
        'sensitivity - 0.5 times false positive rate'
        """
        return _words(self.rates)


MEASURES = Registry[Measure]("measures")


def add_measure(measure: Measure) -> Measure:
    """Registers a measure under its name for audits, goals and reports, and returns it; a name that stands for another is refused."""
    if MEASURES.registered.setdefault(measure.name, measure) != measure:
        raise ValueError(f"a measure named {measure.name!r} exists, with other rates or words. Choose another name")
    return measure


for _measure in (
    Measure(
        "spd",  # equation 1 of the paper
        meaning="statistical parity difference: share decided positive",
        short="share flagged",
        question=("of all patients, the share that is flagged for ", ", whether or not they have it"),
        rates={"selection": 1.0},
        rate="selection_rate",
    ),
    Measure(
        "eod",  # equation 2
        meaning="equal opportunity difference: sensitivity",
        short="sensitivity",
        question=("of the patients who have ", ", the share that is detected"),
        rates={"tpr": 1.0},
        rate="tpr",
    ),
    Measure(
        "aod",
        meaning="average odds difference: mean of sensitivity and false positive rate",
        short="average odds",
        question=("the mean of two shares, of the patients with ", " that are detected and of those without it that are flagged"),
        rates={"tpr": 0.5, "fpr": 0.5},
    ),
    Measure(
        "fpr_gap",
        meaning="difference in false positive rate",
        short="false positive rate",
        question=("of the patients who do not have ", ", the share that is flagged"),
        rates={"fpr": 1.0},
        rate="fpr",
    ),
    Measure(
        "tnr_gap",
        meaning="difference in specificity",
        short="specificity",
        question=("of the patients who do not have ", ", the share that is correctly cleared"),
        rates={"fpr": -1.0},
        rate="tnr",
    ),
    Measure(
        "fnr_gap",
        meaning="difference in miss rate",
        short="miss rate",
        question=("of the patients who have ", ", the share that is missed"),
        rates={"tpr": -1.0},
        rate="fnr",
    ),
    Measure(
        "ppv_gap",
        meaning="predictive parity difference: positive predictive value",
        short="positive predictive value",
        question=("of the patients who are flagged for ", ", the share that has it"),
        decided=1,
        rate="ppv",
    ),
    Measure(
        "npv_gap",
        meaning="difference in negative predictive value",
        short="negative predictive value",
        question=("of the patients who are cleared of ", ", the share that does not have it"),
        decided=0,
        rate="npv",
    ),
):
    add_measure(_measure)
GAPS = tuple(name for name, each in MEASURES.registered.items() if not each.is_quotient)  # of Equipoise: signed sums of rates
RATES_COMPARED = {each.rate: name for name, each in MEASURES.registered.items() if each.rate in ESTIMATED_RATES}  # rate: its gap

Gap = str | Mapping[str, float]  # a name from MEASURES, or a signed sum of rates


class Summary(NamedTuple):
    """A measure of groups that is no signed sum of rates: it is reported with its interval, and is no goal of a repair.

    It is known by its form: a rate, or a measure of the scores, and how the groups are compared, as in `tpr_ratio` or `auroc_worst`.
    """

    name: str
    rate: str  # as in `Audit.groups`
    how: str  # of HOW_COMPARED

    @property
    def of_each_group(self) -> bool:
        """Whether every group is compared with the reference; otherwise it is one number for all groups of an attribute."""
        return self.how in ("gap", "ratio")

    @property
    def of_scores(self) -> bool:
        """Whether it is one of the scores, whatever the threshold."""
        return self.rate in COMPARED_SCORES.values()

    @property
    def is_ratio(self) -> bool:
        """Whether groups do not differ at 1 instead of 0."""
        return self.how in ("ratio", "min_ratio")


HOW_COMPARED = {  # how groups are compared, in words; {} is the rate
    "gap": "difference in {}",
    "ratio": "ratio of {}",
    "range": "{}, highest minus lowest",
    "min_ratio": "{}, lowest divided by highest",
    "worst": "{}, worst group",
}
COMPARED_SCORES = {"auroc": "auroc", "brier": "brier", "calibration": "calibration_in_the_large"}  # measures of scores by their short names
WORSE_IF_HIGHER = ("fpr", "fnr", "brier")
SUMMARIES: dict[str, Summary] = {
    **{f"{rate}_{how}": Summary(f"{rate}_{how}", rate, how) for how in ("ratio", "min_ratio", "range", "worst") for rate in GROUP_RATES},
    **{
        f"{short}_{how}": Summary(f"{short}_{how}", rate, how)
        for how in ("gap", "range", "worst")
        for short, rate in COMPARED_SCORES.items()
        if (short, how) != ("calibration", "worst")
    },
}
SUMMARY_FORMS = "a rate with _ratio, _min_ratio, _range or _worst, such as tpr_worst, or auroc_gap, brier_gap, calibration_gap"


def not_a_goal(name: str) -> str:
    """Why a summary of groups is no goal of a repair, and what can be one instead.

    >>> not_a_goal("tpr_worst").partition(": ")[0]
    'tpr_worst is reported by audits, and not tested in a family, followed over time or the goal of a repair'
    """
    summary = SUMMARIES[name]
    if summary.of_scores:
        why = "it does not depend on decisions, which a goal changes"
    else:
        difference = next((gap for gap in MEASURES if MEASURES[gap].rate == summary.rate), "eod")
        limits = {"tpr": "keep = { tpr = 0.8 }", "fpr": "max_rate = { fpr = 0.2 }", "selection_rate": "max_rate = { selection = 0.3 }"}
        limit = limits.get(COMPLEMENTS.get(summary.rate, summary.rate))
        why = f"the difference in the same rate is {difference}" + (
            f", and a goal limits the rate of every group by {limit}" if limit else ""
        )
    possible = f"Possible are {', '.join(MEASURES)}, and sums of rates such as tpr-fpr"
    return f"{name} is reported by audits, and not tested in a family, followed over time or the goal of a repair: {why}. {possible}"


_RATE_WORDS = {"selection": "share decided positive", "tpr": "sensitivity", "fpr": "false positive rate"}
_TERM = re.compile(r"\s*([+-]?)\s*(?:(\d+(?:\.\d*)?(?:e[+-]?\d+)?|\.\d+)\s*\*?\s*)?([a-z_]+)\s*", re.IGNORECASE)


def measure_of(gap: str) -> Measure:
    """The measure of this name, or of this sum of rates.

    >>> measure_of("aod").rates, measure_of("tpr - 2*fpr").rates, measure_of("tpr - 2*fpr").meaning
    ({'tpr': 0.5, 'fpr': 0.5}, {'tpr': 1.0, 'fpr': -2.0}, 'difference in sensitivity - 2 times false positive rate')
    """
    return MEASURES[gap] if gap in MEASURES else _sum_of_rates(gap)


@cache
def _sum_of_rates(gap: str) -> Measure:
    rates = _parsed(gap, ())
    words = _words(rates)
    return Measure(gap, f"difference in {words}", words, rates=rates)


def _words(rates: Mapping[str, float]) -> str:
    words = ""
    for rate, w in rates.items():
        sign = "- " if w < 0 else "+ " if words else ""
        words += f" {sign}{'' if abs(w) == 1 else f'{abs(w):g} times '}{_RATE_WORDS[rate]}"
    return words.removeprefix(" ")


def canonical_name(gap: Gap, also: Iterable[str] = ()) -> str:
    """The canonical name of a measure: from the table, or its sum of rates in normal form. `also` are further names that an error lists.

    >>> canonical_name("0.5*tpr + 0.5*fpr"), canonical_name({"fpr": -1, "tpr": 1}), canonical_name("ppv_gap")
    ('aod', 'tpr-fpr', 'ppv_gap')
    """
    weights: Mapping[str, float]
    if not isinstance(gap, str):
        weights = gap
    elif gap in MEASURES:
        return gap
    else:
        weights = _parsed(gap, also)
    for rate in weights:
        if rate not in RATES:
            raise UnknownName("rate", rate, RATES)
    numbers = {rate: isinstance(w, (int, float)) and not isinstance(w, bool) and math.isfinite(w) for rate, w in weights.items()}
    raise_all([f"the weight of {rate} in a measure is a number; got {weights[rate]!r}" for rate, right in numbers.items() if not right])
    signed = {rate: float(weights[rate]) for rate in RATES if weights.get(rate)}
    if not signed:
        raise BadInput(f"a measure is a signed sum of rates with at least one that counts, such as 'tpr-fpr'; got {gap!r}")
    for name, measure in MEASURES.items():
        if measure.rates == signed:
            return name
    parts = [f"{'-' if w < 0 else '+'}{'' if abs(w) == 1 else f'{abs(w):.12g}'}{rate}" for rate, w in signed.items()]
    parts.sort(key=lambda part: part[0])  # '+' comes before '-', so that a name seldom begins with a minus
    return "".join(parts).removeprefix("+")


def _parsed(text: str, also: Iterable[str]) -> dict[str, float]:
    """The signed rates of a sum in words; raises an error that lists the measures, the rates and an example."""
    signed: dict[str, float] = {}
    matches, at = [], 0
    while at < len(text) and (match := _TERM.match(text, at)) and (match[1] or not at):  # a sign is required between two terms
        matches.append(match)
        at = match.end()
    if text in SUMMARIES:
        raise BadInput(not_a_goal(text))
    if at < len(text) or not matches or (len(matches) == 1 and not matches[0][2] and not matches[0][1] and matches[0][3] not in RATES):
        sums = f"or a signed sum of the rates {', '.join(RATES)}, such as 'tpr-fpr' or '0.5*tpr+0.5*fpr'"
        raise UnknownName("measure", text, [*MEASURES, *also, sums])
    for sign, weight, rate in (match.groups() for match in matches):
        if rate not in RATES:
            raise UnknownName(f"rate in the measure {text!r}:", rate, RATES)
        signed[rate] = signed.get(rate, 0.0) + float(f"{sign}{weight or 1}")
    return signed
