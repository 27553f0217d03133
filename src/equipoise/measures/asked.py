"""What an audit is asked for: how decisions are made, which measures are reported, and how they are estimated.

`AuditOptions` are the keywords of every function that audits; `Asked` is what they become.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, TypedDict

import numpy as np

from equipoise.data import Scores
from equipoise.errors import BadInput, EmptyCell, UnknownName
from equipoise.measures.cells import Cells
from equipoise.measures.decision import Rule, choose_rule
from equipoise.measures.estimates import Settings
from equipoise.measures.functional import gap_values, predictive, require_cells
from equipoise.measures.gaps import GAPS, QUOTIENTS, Gap, is_quotient, named
from equipoise.measures.performance import PERFORMANCE
from equipoise.measures.score_measures import OF_ALL
from equipoise.measures.threshold_range import thresholds_of

PLAIN = (*PERFORMANCE, *OF_ALL)  # measures of all rows together


class AuditOptions(TypedDict, total=False):
    """The keywords of an audit. See `Asked` and `Settings` for their defaults."""

    rule: Rule | None
    threshold: float | None
    optimise: str
    measures: Sequence[Gap] | None
    also: Sequence[Gap]
    shrink: bool
    no_finding: str | None
    level: float
    seed: int
    min_patients: int
    specificity: float
    sensitivity: float
    thresholds: str | Sequence[float]


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What an audit is asked for."""

    rule: Rule | None = None  # the decision; or score >= threshold; or the best threshold on other scores; or 0.5
    threshold: float | None = None
    optimise: str = "balanced_accuracy"  # by which a threshold is the best one
    measures: Sequence[Gap] | None = None  # only these, and an empty cell that they need is an error
    also: Sequence[Gap] = ()
    shrink: bool = False  # whether shrunken gaps are reported next to the plain ones
    no_finding: str | None = None  # of several labels: the one that means "no finding", or "derived"
    settings: Settings = field(default_factory=Settings)

    def __post_init__(self) -> None:
        if self.rule is not None and self.threshold is not None:
            raise BadInput("give a decision rule or a threshold, not both")

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> "Asked":
        """What these keywords ask for, checked; `thresholds` may be START:STOP or START:STOP:STEP."""
        own, numbers = ({f.name for f in fields(kind) if f.name != "settings"} for kind in (cls, Settings))
        for name in options:
            if name not in own | numbers:
                raise UnknownName("setting of an audit", name, [*AuditOptions.__annotations__])
        given = {name: value for name, value in options.items() if name in numbers}
        if "thresholds" in given:
            given["thresholds"] = thresholds_of(given["thresholds"])
        asked = cls(**{name: value for name, value in options.items() if name in own}, settings=Settings(**given))
        _ = asked.wanted  # a measure that cannot be read is an error before anything is computed
        return asked

    def decided(self, valid: Scores | None = None) -> "Asked":
        """The same with its decision rule settled, on the scores `valid` where a threshold is chosen on them."""
        return self if self.rule is not None else replace(self, rule=choose_rule(self.threshold, valid, self.optimise), threshold=None)

    @property
    def decision(self) -> Rule:
        """The decision rule."""
        return self.rule or choose_rule(self.threshold)

    @cached_property
    def wanted(self) -> tuple[str, ...]:
        """The names of all measures."""
        usual: tuple[Gap, ...] = (*GAPS, *PLAIN) if self.measures is None else tuple(self.measures)
        listed = [m if isinstance(m, str) and m in PLAIN else named(m, also=PLAIN) for m in (*usual, *self.also)]
        return tuple(dict.fromkeys(listed))

    @property
    def gaps(self) -> list[str]:
        """The gaps among the measures."""
        return [m for m in self.wanted if m not in PLAIN]

    @property
    def performance(self) -> list[str]:
        """The performance measures."""
        return [m for m in self.wanted if m in PERFORMANCE]

    @property
    def strict(self) -> bool:
        """Whether an empty cell that a measure needs is an error."""
        return self.measures is not None

    def require(self, tables: Sequence[Cells], where: str) -> None:
        """Raises every empty cell that a measure which was asked for needs, in one error."""
        problems: list[str] = []
        for cells in tables if self.strict else ():
            for gap in self.gaps:
                try:
                    require_cells(gap, cells, where)
                except EmptyCell as error:
                    problems += error.problems
                else:
                    problems += _undecided(gap, cells, where)
        if problems:
            raise EmptyCell(*problems)


def _undecided(gap: str, cells: Cells, where: str) -> list[str]:
    """One problem per group without any row decided so, for which a quotient has no value."""
    if not is_quotient(gap) or not np.isnan(gap_values(gap, cells)).any():
        return []
    label = QUOTIENTS[gap]
    decided, other = ("positive", "lower") if label else ("negative", "higher")
    lacking = np.isnan(predictive(label, cells))
    return [
        f"{gap} needs rows that are decided {decided} in every group; {level!r} has none of {int(cells.n[code].sum()):,} rows in {where}. "
        f"Use a {other} threshold, more data, or merge groups"
        for code, level in enumerate(cells.levels)
        if lacking[code]
    ]
