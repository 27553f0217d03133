"""How many patients an audit needs to show a gap in sensitivity, and a repair to show that it was closed, before they are collected.

The statistics are those of an audit: its minimum detectable gap, here as a function of the number of patients.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from equipoise.data import FloatArray
from equipoise.errors import BadInput
from equipoise.measures.audit import Audit
from equipoise.measures.intervals import DETECTION_POWER, detectable_gap, fewer_clusters
from equipoise.measures.plan_spec import PlanSpec
from equipoise.presenting import Presented
from equipoise.specification import takes_fields_of

MOST_PATIENTS = 10**9
CURVE = (0.125, 0.25, 0.5, 1, 2, 4)  # multiples of the patients needed


@dataclass(frozen=True)
class Comparable:
    """A group and the reference: the sensitivity of the reference, and what one patient of the audit adds to each, (2,) reference first."""

    label: str
    group: str
    reference: str
    sensitivity: float
    patients: FloatArray  # with the finding
    size: FloatArray  # effective rows with the finding

    def detectable(self, patients: float, level: float) -> float:
        """The minimum detectable gap with this number of patients; infinite if none is."""
        size = fewer_clusters(patients * self.size, np.maximum(patients * self.patients - 1, 1), level).reshape(2, 1)
        return float(np.nan_to_num(detectable_gap([1.0], np.array([self.sensitivity]), size[0], size[1], level), nan=np.inf))

    def needed(self, gap: float, level: float) -> float:
        """The least number of patients with which a gap is detectable; infinite beyond a thousand million."""
        low, high = 1, 2
        while self.detectable(high, level) > gap:
            low, high = high, 2 * high
            if high > MOST_PATIENTS:
                return math.inf
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self.detectable(middle, level) <= gap else (middle, high)
        return float(high)


@dataclass(frozen=True, eq=False)
class Plan(Presented):
    """The patients that an audit and a repair need, per group, and the detectable gap by the number of patients."""

    spec: PlanSpec
    groups: pd.DataFrame  # label, group, reference, sensitivity, share, audit, repair
    curve: pd.DataFrame  # label, group, patients, detectable

    @property
    def patients(self) -> float:
        """The patients that an audit needs, for the group that needs most."""
        return float(self.groups["audit"].max())

    @property
    def repair(self) -> float:
        """The patients that a repair needs, so that those it holds out are as many as an audit needs."""
        return float(self.groups["repair"].max())

    def __repr__(self) -> str:
        return f"Plan(gap={self.spec.gap}, audit={self.patients:,.0f} patients, repair={self.repair:,.0f} patients)"

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; None for a number of patients beyond a thousand million."""
        frames = {
            name: frame.replace({np.inf: None}).to_dict("records") for name, frame in (("groups", self.groups), ("curve", self.curve))
        }
        return {"settings": self.spec.model_dump(mode="json"), "power": DETECTION_POWER, **frames}


@takes_fields_of(PlanSpec)
def plan(audit: Audit | None = None, **settings: Any) -> Plan:
    """How many patients are needed to show a gap in sensitivity with 80 % power, and how many for a repair.

    - `audit`: an audit of earlier patients, from which the sensitivity, the shares of the groups and how alike the visits of a patient are
      are taken; of intersections, nothing is planned.
    - `settings`: what is assumed without an audit, and the gap.

    >>> plan(gap=0.1, sensitivity=0.8, share=0.5).patients
    593.0
    >>> plan(gap=0.05, sensitivity=0.8, share=0.3, visits=2.1, prevalence=0.1)
    Plan(gap=0.05, audit=19,007 patients, repair=63,357 patients)
    """
    spec = PlanSpec(**settings)
    compared = [_assumed(spec)] if audit is None else list(_observed(audit))
    if not compared:
        raise BadInput("the audit has no group with the finding next to the reference. Give --sensitivity and --share instead.")
    groups, curve = [], []
    for each in compared:
        needed = each.needed(spec.gap, spec.level)
        where = {"label": each.label, "group": each.group, "reference": each.reference}
        share = float(each.patients[1] / each.patients.sum())
        repair = needed if math.isinf(needed) else float(math.ceil(needed / spec.test_fraction))
        groups.append(where | {"sensitivity": each.sensitivity, "share": share, "audit": needed, "repair": repair})
        for patients in [] if math.isinf(needed) else [max(2, round(needed * times)) for times in CURVE]:
            curve.append(where | {"patients": patients, "detectable": each.detectable(patients, spec.level)})
    columns = ["label", "group", "reference", "patients", "detectable"]
    return Plan(spec, pd.DataFrame(groups), pd.DataFrame(curve, columns=columns))


def _assumed(spec: PlanSpec) -> Comparable:
    people = np.array([1 - spec.share, spec.share]) * spec.prevalence
    effect = 1 + (spec.visits - 1) * spec.correlation
    return Comparable("", "the group", "the reference", spec.sensitivity, people, people * spec.visits / effect)


def _observed(audit: Audit) -> Iterator[Comparable]:
    """The groups of an audit, each as one patient of it adds to them."""
    for label, own in audit.labels.items():
        for attribute in own.references:
            if attribute in own.intersections:
                continue
            rate, levels = own.sums[attribute]["tpr"], list(map(str, own.groups.index[own.groups["attribute"] == attribute]))
            total = float(own.sums[attribute]["selection_rate"].patients.sum())
            for k in range(1, len(levels)):
                if min(rate.patients[0], rate.patients[k]) >= own.settings.min_patients:
                    people, size = rate.patients[[0, k]] / total, rate.size[[0, k]] / total
                    yield Comparable(label, levels[k], levels[0], float(rate.value[0]), people, size)
