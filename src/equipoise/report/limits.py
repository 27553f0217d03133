"""How far a repair is from the best that any rule which knows the group could do with the network's scores as they came."""

import numpy as np
import numpy.typing as npt

from equipoise.data import MISSING, Attribute, Scores
from equipoise.measures import WORDS, Audit, FloatArray, limit
from equipoise.methods import Goal

LIMIT_WORDS = WORDS
AT_IT = 5e-4  # less would be printed as 0.0 or 0.1 points


def limit_at(scores: Scores, goal: Goal, gaps: npt.ArrayLike, attribute: Attribute | None = None) -> FloatArray | None:
    """The limit's performance at the size of each of these gaps, on these scores; NaN where a gap is. None where there is no line."""
    size = np.abs(np.atleast_1d(np.asarray(gaps, dtype=np.float64)))
    known = ~np.isnan(size)
    among = attribute or scores.attribute
    best = limit(scores.score, scores.y, among.codes, among.levels, goal.measure, goal.performance, size[known])
    if best is None:
        return None
    found = np.full(len(size), np.nan)
    found[known] = best
    return found


def below_limit(scores: Scores, goal: Goal, gap: float, performance: float, attribute: Attribute | None = None) -> float | None:
    """How far a performance is below the limit at the same |gap|; below zero it is above. None where there is no line or no gap."""
    best = limit_at(scores, goal, gap, attribute)
    below = np.nan if best is None else float(best[0]) - performance
    return None if np.isnan(below) else below


def with_enough_data(attribute: Attribute, audit: Audit, gap: str) -> Attribute:
    """The attribute without the groups for which the audit says 'insufficient data', whose gaps would outshine the others."""
    rows = audit.gaps[(audit.gaps["measure"] == gap) & (audit.gaps["attribute"] == attribute.name)]
    short = set(rows.loc[rows["value"].isna(), "group"])
    levels = tuple(level for level in attribute.levels if level not in short)
    if len(levels) < 2:
        return attribute
    codes = np.array([*(levels.index(level) if level in levels else MISSING for level in attribute.levels), MISSING])
    return Attribute(attribute.name, levels, codes[attribute.codes], attribute.named)


def limit_words(below: float | None, performance: str = "") -> str:
    """The distance in points: '1.2 below', '0.3 above', 'at it'; with the performance named, as in '1.2 points of accuracy below it'.

    >>> limit_words(0.0123), limit_words(-0.003), limit_words(0.0), limit_words(None), limit_words(0.0123, "accuracy")
    ('1.2 below', '0.3 above', 'at it', '—', '1.2 points of accuracy below it')
    """
    if below is None or np.isnan(below):
        return "—"
    if abs(below) < AT_IT:
        return "at it"
    where, size = "below" if below > 0 else "above", f"{100 * abs(below):.1f}"
    return f"{size} points of {performance} {where} it" if performance else f"{size} {where}"
