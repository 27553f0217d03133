"""The contract of every debiasing method: a goal goes in, a candidate comes out, and the trace says how it was chosen.

A method is `method(model, cohort, goal, *, seed, ...) -> Candidate`. It sees validation data alone, changes none of its arguments, leaves
no hook behind, and gives the same result for the same seed. If nothing meets the goal it returns the best it saw with `met=False`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import pandas as pd
from torch import nn

from equipoise.errors import pick, raise_all
from equipoise.measures import AT_THRESHOLD, RATES, Rule, named

Progress = Callable[[int, int], None]  # steps done, steps at most
KEEP = 0.02  # what a goal without a floor or a bound may lose of the original's performance, unless it says another loss
BEFORE = "before"  # of a rate that is kept: its value under the original network
SELECTIONS = ("paper", "honest", "one-se")


@dataclass(frozen=True)
class Goal:
    """What to reach: the smallest |gap| with performance at least `floor`; or the best performance with |gap| within `bound`; or both.

    `measure` is the name of a gap or a signed sum of rates, "tpr-fpr" or {"tpr": 1, "fpr": -1}, which gets a name too: 'tpr-fpr'.
    `keep` levels up: no group's rate may fall below what it was before, {"tpr": "before"}, or below a minimum, {"tpr": 0.8}.
    `selection` says how a step is chosen: "paper", by its values on the data it was tuned on; "honest", by confidence bounds on values
    that rows held out have corrected; "one-se", as honest, but of steps that cannot be told from the best the best performing one.
    `lose` is how much of the original's performance may be lost where neither `floor` nor `bound` is given; left out, 0.02.

    >>> Goal("eod", bound=0.05, keep={"tpr": 0.8}).describe()
    '|eod| <= 0.05 with tpr >= 0.8 in every group'
    """

    measure: str = "eod"
    performance: str = "balanced_accuracy"
    floor: float | None = None
    bound: float | None = None
    keep: Mapping[str, float | str] = field(default_factory=dict, hash=False)
    selection: str = "paper"
    lose: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "measure", named(self.measure))
        pick("performance measure", self.performance, AT_THRESHOLD)
        pick("selection", self.selection, SELECTIONS)
        problems = []
        for name in ("floor", "bound", "lose"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 1:
                problems.append(f"the {name} of a goal lies in [0, 1]; got {value}")
        if self.lose is not None and (self.floor is not None or self.bound is not None):
            given = " and ".join(f"{name}={getattr(self, name)}" for name in ("floor", "bound") if getattr(self, name) is not None)
            problems.append(f"lose is for goals without a floor and without a bound; got lose={self.lose} with {given}. Leave it out")
        for rate, least in self.keep.items():
            pick("rate to keep", rate, RATES)
            if least != BEFORE and (isinstance(least, (str, bool)) or not 0 <= least <= 1):
                problems.append(f"a rate is kept at its value {BEFORE!r} or at a minimum in [0, 1]; got {least!r} for {rate}")
        raise_all(problems)
        object.__setattr__(self, "keep", dict(self.keep))  # a copy, so that nobody changes it

    @property
    def may_lose(self) -> float:
        """How far performance may fall below the original's where there is neither floor nor bound."""
        return KEEP if self.lose is None else self.lose

    def settled(self, original: float) -> "Goal":
        """The goal itself, or with a floor a little under the original's performance where it has neither floor nor bound."""
        if self.floor is None and self.bound is None:
            return replace(self, floor=max(0.0, original - self.may_lose), lose=None)
        return self

    def describe(self) -> str:
        """One line in words."""
        parts = [f"smallest |{self.measure}|" if self.bound is None else f"|{self.measure}| <= {self.bound:g}"]
        if self.floor is not None:
            parts.append(f"{self.performance.replace('_', ' ')} >= {self.floor:.3g}")
        if self.lose is not None:
            parts.append(f"{self.performance.replace('_', ' ')} at most {self.lose:g} lower")
        parts += [
            f"no group's {rate} lower than before" if least == BEFORE else f"{rate} >= {least:g} in every group"
            for rate, least in self.keep.items()
        ]
        return " with ".join([parts[0], " and ".join(parts[1:])] if parts[1:] else parts)


@dataclass(frozen=True, eq=False)
class Candidate:
    """What a method found: a network, a decision rule, the steps it tried on validation data, and whether the goal was met."""

    method: str
    model: nn.Module
    rule: Rule
    trace: pd.DataFrame  # one row a step: step, gap, performance, threshold; honest selection adds what it believes each to be
    chosen: int  # the row of the trace that was chosen
    why: str
    met: bool
    goal: Goal
    seed: int
    settings: Mapping[str, object] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    labels: Mapping[str, "Candidate"] = field(default_factory=dict)  # of a network with several outputs: what was found for each label
    pace: float = 1.0  # of one step of the trace, in what the method counts (`METHODS[method].counts`): units pruned, epochs
    ran_as: str = ""  # the method whose trace this is, where another one chose it

    @property
    def ran(self) -> str:
        """The method whose trace this is: of `auto`, the one that it chose."""
        return self.ran_as or self.method

    def __repr__(self) -> str:
        return f"Candidate({self.method}, {len(self.trace):,} steps, {'met' if self.met else 'not met'}: {self.goal.describe()})"

    def __str__(self) -> str:
        if self.labels:
            return "\n".join(f"{label}: {found}" for label, found in self.labels.items())
        held_out = "held_out_gap" in self.trace  # a method with probes: what they say of rows that they have not seen
        told = self.trace[["held_out_gap", "held_out_performance"] if held_out else ["gap", "performance"]].to_numpy()
        (gap, performance), (found, kept) = told[0], told[self.chosen]
        state = "goal met" if self.met else "goal NOT met"
        return (
            f"{self.method}: {self.goal.measure} {gap:+.3f} -> {found:+.3f}, "
            f"{self.goal.performance.replace('_', ' ')} {performance:.3f} -> {kept:.3f} "
            f"on validation{' rows held out' if held_out else ''}; {state}; {self.why}"
        )
