"""The table of measures, and what an audit reports of them (`AuditSpec`). No large package is imported: mistakes are reported at once.

A rate is a share of positive decisions given a label; a gap is a signed sum of rates.

A gap compares a group with the reference: `rate[other] - rate[reference]`. To add a measure, add an entry to this table, with its words. A
sum of rates can be used wherever a measure is named: `"tpr-fpr"`, `"0.5*tpr + 0.5*fpr"`, `{"tpr": 0.5, "fpr": 0.5}`. Predictive values are
not sums of rates: their denominators are decisions, so they are quotients (QUOTIENTS).
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator, field_validator

from equipoise.errors import BadInput, UnknownName, raise_all
from equipoise.specification import Specification, setting


class Ratio(NamedTuple):
    """The coefficients of the columns in the numerator and denominator of a ratio.

    For the difference of two ratios with the same denominator, `either` is the numerator of their sum.
    """

    top: tuple[float, ...]
    bottom: tuple[float, ...]
    either: tuple[float, ...] | None = None


RATIOS: dict[str, Ratio] = {  # columns: n0, n1 (rows with label 0, 1), s0, s1 (sums of their decisions)
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
RATIOS["selection"] = RATIOS["selection_rate"]  # its name in sums of rates
RATES: dict[str, int | None] = {"selection": None, "tpr": 1, "fpr": 0}  # share of positive decisions, given this label
RANGE_STEPS = 18  # between the ends of a range, if no step is given
MOST_THRESHOLDS = 200  # in a range
AT_THRESHOLD = ("balanced_accuracy", "accuracy", "f1")  # measures of performance that depend on the decisions
PERFORMANCE = ("balanced_accuracy", "accuracy", "f1", "auroc", "average_precision")
OVERALL_SCORE_MEASURES = ("brier", "calibration_intercept", "calibration_slope", "calibration_in_the_large")
OVERALL = (*PERFORMANCE, *OVERALL_SCORE_MEASURES)  # measures of all rows together; all others are gaps


@dataclass(frozen=True)
class Measure:
    """A gap between a group and the reference, and its words. It compares either a sum of `rates` or a predictive value (`decided`)."""

    name: str
    meaning: str
    short: str  # the compared quantity in a few words
    question: tuple[str, str]  # the compared quantity in a sentence, before and after the name of the finding
    rates: Mapping[str, float] = field(default_factory=dict)  # signed sum of RATES
    decided: int | None = None  # 1: positive predictive value, 0: negative predictive value
    rate: str = ""  # the compared rate, as in `Audit.groups`; empty for a sum of several


MEASURES: dict[str, Measure] = {}
GAPS: dict[str, Mapping[str, float]] = {}  # the measures that are signed sums of rates
QUOTIENTS: dict[str, int] = {}  # the measures that are predictive values, with their label


def add_measure(measure: Measure) -> Measure:
    """Registers a measure under its name for audits, goals and reports, and returns it."""
    MEASURES[measure.name] = measure
    if measure.decided is None:
        GAPS[measure.name] = measure.rates
    else:
        QUOTIENTS[measure.name] = measure.decided
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

Gap = str | Mapping[str, float]  # a name from GAPS or QUOTIENTS, or a signed sum of rates

_WORDS = {"selection": "share decided positive", "tpr": "sensitivity", "fpr": "false positive rate"}
_TERM = re.compile(r"\s*([+-]?)\s*(?:(\d+(?:\.\d*)?(?:e[+-]?\d+)?|\.\d+)\s*\*?\s*)?([a-z_]+)\s*", re.IGNORECASE)


def terms(gap: str) -> Mapping[str, float]:
    """The signed rates of a gap: {'tpr': 1.0} for 'eod'. A quotient has none.

    >>> terms("aod")
    {'tpr': 0.5, 'fpr': 0.5}
    >>> terms("tpr - 2*fpr")
    {'tpr': 1.0, 'fpr': -2.0}
    """
    return GAPS[gap] if gap in GAPS else {} if gap in QUOTIENTS else _parsed(gap, ())


def canonical_name(gap: Gap, also: Iterable[str] = ()) -> str:
    """The canonical name of a measure: from the table, or its sum of rates in normal form. `also` are further names that an error lists.

    >>> canonical_name("0.5*tpr + 0.5*fpr"), canonical_name({"fpr": -1, "tpr": 1}), canonical_name("ppv_gap")
    ('aod', 'tpr-fpr', 'ppv_gap')
    """
    weights: Mapping[str, float]
    if not isinstance(gap, str):
        weights = gap
    elif gap in GAPS or gap in QUOTIENTS:
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
    for name, rates in GAPS.items():
        if rates == signed:
            return name
    parts = [f"{'-' if w < 0 else '+'}{'' if abs(w) == 1 else f'{abs(w):.12g}'}{rate}" for rate, w in signed.items()]
    parts.sort(key=lambda part: part[0])  # '+' comes before '-', so that a name seldom begins with a minus
    return "".join(parts).removeprefix("+")


def is_quotient(gap: str) -> bool:
    """Whether the denominators of a gap are decisions, so that its weights change with the decisions and it may be undefined."""
    return gap in QUOTIENTS


def signature(gap: str) -> tuple[object, ...]:
    """A key that is equal for measures that are multiples of each other, such as eod and fnr_gap: they are one comparison.

    >>> signature("eod") == signature("fnr_gap") == signature("2*tpr"), signature("aod") == signature("eod")
    (True, False)
    """
    signed = terms(gap)
    first = next((signed[rate] for rate in RATES if signed.get(rate)), 1.0)
    return tuple((rate, round(signed[rate] / first, 9)) for rate in RATES if signed.get(rate)) or (gap,)


def meaning(measure: str) -> str:
    """The meaning of a measure in words.

    >>> meaning("tpr-0.5fpr")
    'difference in sensitivity - 0.5 times false positive rate'
    """
    return MEASURES[measure].meaning if measure in MEASURES else f"difference in {rates_words(measure)}"


def rates_words(measure: str) -> str:
    """The signed sum of rates of a measure in words.

    >>> rates_words("tpr-0.5fpr")
    'sensitivity - 0.5 times false positive rate'
    """
    words = ""
    for rate, w in terms(measure).items():
        sign = "- " if w < 0 else "+ " if words else ""
        words += f" {sign}{'' if abs(w) == 1 else f'{abs(w):g} times '}{_WORDS[rate]}"
    return words.removeprefix(" ")


def coefficients(gap: str) -> Mapping[str, float]:
    """The ratios that a gap compares between groups, with their coefficients in the sum.

    >>> coefficients("spd"), coefficients("ppv_gap")
    ({'selection_rate': 1.0}, {'ppv': 1.0})
    """
    if gap in QUOTIENTS:
        return {MEASURES[gap].rate: 1.0}
    return {"selection_rate" if rate == "selection" else rate: sign for rate, sign in terms(gap).items()}


def labels_needed(gap: str) -> tuple[int, ...]:
    """The labels that every group must have: (1,) for 'eod', () for 'spd' and quotients, which need rows of any label."""
    return tuple(sorted({label for rate in terms(gap) if (label := RATES[rate]) is not None}))


def _parsed(text: str, also: Iterable[str]) -> dict[str, float]:
    """The signed rates of a sum in words; raises an error that lists the measures, the rates and an example."""
    signed: dict[str, float] = {}
    matches, at = [], 0
    while at < len(text) and (match := _TERM.match(text, at)) and (match[1] or not at):  # a sign is required between two terms
        matches.append(match)
        at = match.end()
    if at < len(text) or not matches or (len(matches) == 1 and not matches[0][2] and not matches[0][1] and matches[0][3] not in RATES):
        sums = f"or a signed sum of the rates {', '.join(RATES)}, such as 'tpr-fpr' or '0.5*tpr+0.5*fpr'"
        raise UnknownName("measure", text, [*GAPS, *QUOTIENTS, *also, sums])
    for sign, weight, rate in (match.groups() for match in matches):
        if rate not in RATES:
            raise UnknownName(f"rate in the measure {text!r}:", rate, RATES)
        signed[rate] = signed.get(rate, 0.0) + float(f"{sign}{weight or 1}")
    return signed


def thresholds_of(thresholds: str | Sequence[float]) -> tuple[float, ...]:
    """The thresholds in ascending order, from a range START:STOP or START:STOP:STEP, or from a sequence.

    >>> thresholds_of("0.1:0.3:0.1"), len(thresholds_of("0.05:0.5")), thresholds_of([0.5, 0.2])
    ((0.1, 0.2, 0.3), 19, (0.2, 0.5))
    """
    if not isinstance(thresholds, str):
        cuts = tuple(sorted({float(value) for value in thresholds}))
        if any(not 0 < cut < 1 for cut in cuts):
            raise BadInput(f"thresholds of decision curves must be between 0 and 1, without these ends; got {', '.join(map(str, cuts))}")
        return cuts
    try:
        numbers = [float(part) for part in thresholds.split(":")]
    except ValueError:
        numbers = []
    if len(numbers) not in (2, 3):
        raise BadInput(f"thresholds must be START:STOP or START:STOP:STEP, as in 0.05:0.5; got {thresholds!r}")
    start, stop = numbers[:2]
    step = numbers[2] if len(numbers) == 3 else (stop - start) / RANGE_STEPS
    if not 0 < start <= stop < 1 or (stop > start and not step > 0):
        raise BadInput(f"thresholds must ascend between 0 and 1, without these ends, by a step above 0; got {thresholds!r}")
    count = 1 if start == stop else math.floor((stop - start) / step + 1e-9) + 1
    if count > MOST_THRESHOLDS:
        raise BadInput(f"{count:,} thresholds in {thresholds!r}; at most {MOST_THRESHOLDS} are computed. Use a larger step.")
    return tuple(round(start + k * step, 10) for k in range(count))


NONE_OF_THE_LABELS = "none of the labels"  # given instead of the name of a label where no label means "no finding"


# The canonical name of a measure of an audit; an invalid one is an error before anything is computed.
Named = Annotated[Gap, AfterValidator(lambda measure: str(measure) if measure in OVERALL else canonical_name(measure, also=OVERALL))]


class AuditSpec(Specification):
    """What an audit reports: measures, the level of intervals, and the number of patients that a cell needs.

    >>> AuditSpec(measures=("0.5*tpr+0.5*fpr", "auroc")).gaps
    ('aod',)
    """

    measures: tuple[Named, ...] | None = setting(
        "Only this measure (spd, eod, fpr_gap, ppv_gap, ... or a sum of rates such as tpr-fpr), with an error for empty cells; repeat it "
        "for more.",
        None,
        flag="--measure",
    )
    also: tuple[Named, ...] = setting("Measures in addition to the default ones.", ())
    valid: Path | None = setting(
        "File with the same columns on which the threshold with the best balanced accuracy is chosen.", None, flag="--valid"
    )
    optimise: str = setting("Performance measure by which a threshold is chosen.", "balanced_accuracy")
    shrink: bool = setting(
        "Also report shrunken gaps (empirical Bayes) of attributes with at least four groups, such as intersections.", False
    )
    probe: bool = setting(
        "Also report how well each layer of the model predicts the group; this does not show that the network uses it.", False
    )
    draws: int = setting("Number of bootstrap resamples of the probes.", 1000, ge=2)
    level: float = setting("Confidence level of the intervals.", 0.95, ge=0.01, le=0.9999)
    seed: int = setting("Seed of permutations, resamples and the band of a calibrated model.", 0, ge=0)
    min_patients: int = setting("Cells with fewer patients are reported as 'insufficient data'.", 5, ge=1)
    specificity: float = setting("Specificity at which the sensitivity of each group is reported (--verbose).", 0.9, gt=0, lt=1)
    sensitivity: float = setting("Sensitivity at which the specificity of each group is reported (--verbose).", 0.9, gt=0, lt=1)
    thresholds: str | tuple[float, ...] = setting(
        "Thresholds of the decision curves, START:STOP or START:STOP:STEP (--verbose, report.figures, --json).", "0.05:0.5"
    )
    no_finding: str | None = setting(
        "Label that means 'no finding', to report underdiagnosis (its false positive rate); or 'none of the labels'.", None
    )

    @field_validator("thresholds", mode="before")
    @classmethod
    def _range(cls, thresholds: Any) -> Any:
        """A range in words stays as it is, once it can be read; other thresholds are sorted."""
        cuts = thresholds_of(thresholds)
        return thresholds if isinstance(thresholds, str) else cuts

    @property
    def wanted(self) -> tuple[str, ...]:
        """The names of all measures."""
        names = (*GAPS, *OVERALL) if self.measures is None else self.measures
        return tuple(dict.fromkeys(map(str, (*names, *self.also))))

    @property
    def gaps(self) -> tuple[str, ...]:
        """The gaps among the measures."""
        return tuple(m for m in self.wanted if m not in OVERALL)

    @property
    def performance(self) -> tuple[str, ...]:
        """The performance measures."""
        return tuple(m for m in self.wanted if m in PERFORMANCE)
