"""The measures, as data. A rate is a share of positive decisions given a label; a gap is a signed sum of rates.

A gap compares a group with the reference: `rate[other] - rate[reference]`. To add a measure, add a line to GAPS.
"""

from collections.abc import Mapping

from equipoise.errors import UnknownName

RATES: dict[str, int | None] = {"selection": None, "tpr": 1, "fpr": 0}  # share of positive decisions, given this label

GAPS: dict[str, dict[str, float]] = {  # signed sums of rates, other group minus reference
    "spd": {"selection": 1.0},  # statistical parity difference, equation 1 of the paper
    "eod": {"tpr": 1.0},  # equal opportunity difference, equation 2
    "aod": {"tpr": 0.5, "fpr": 0.5},  # average odds difference
    "fpr_gap": {"fpr": 1.0},
    "tnr_gap": {"fpr": -1.0},
    "fnr_gap": {"tpr": -1.0},
}

MEANING: dict[str, str] = {
    "spd": "statistical parity difference: share decided positive",
    "eod": "equal opportunity difference: sensitivity",
    "aod": "average odds difference: mean of sensitivity and false positive rate",
    "fpr_gap": "difference in false positive rate",
    "tnr_gap": "difference in specificity",
    "fnr_gap": "difference in miss rate",
}

Gap = str | Mapping[str, float]  # a name from GAPS, or a signed sum of rates of the user's own


def terms(gap: Gap) -> Mapping[str, float]:
    """The signed rates of a gap: {'tpr': 1.0} for 'eod'.

    >>> terms("aod")
    {'tpr': 0.5, 'fpr': 0.5}
    """
    if isinstance(gap, str):
        if gap not in GAPS:
            raise UnknownName("measure", gap, GAPS)
        return GAPS[gap]
    for rate in gap:
        if rate not in RATES:
            raise UnknownName("rate", rate, RATES)
    return gap


def labels_needed(gap: Gap) -> tuple[int, ...]:
    """The labels whose cells must not be empty: (1,) for 'eod', () for 'spd', which needs only rows."""
    return tuple(sorted({label for rate in terms(gap) if (label := RATES[rate]) is not None}))
