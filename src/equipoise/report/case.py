"""A case: all that a report, a model card and a repaired folder are written from. One network, its repairs, and the patients kept aside."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pandas as pd

from equipoise.data import Scores
from equipoise.measures import FloatArray
from equipoise.methods import Candidate


@dataclass(frozen=True, eq=False)
class UnitMap:
    """Which units of one convolution were switched off: the share of channels still on at each position."""

    layer: str
    kept: FloatArray  # (height, width), from 0 to 1


@dataclass(frozen=True, eq=False)
class Repair:
    """What one method found, and the scores of its network on the part that it was found on and on the part kept aside."""

    candidate: Candidate
    valid: Scores
    test: Scores
    seconds: float = 0.0
    units: tuple[UnitMap, ...] = ()

    @property
    def name(self) -> str:
        """The method."""
        return self.candidate.method

    def decisions(self) -> FloatArray:
        """The decisions on the part kept aside, or the probabilities of a randomised 1."""
        return self.candidate.rule.decide(self.test)


@dataclass(frozen=True, eq=False)
class Probes:
    """How well each attribute can be read from each layer, as `encoding` tells it, of the network as it came and of the repaired one."""

    before: pd.DataFrame
    after: pd.DataFrame


@dataclass(frozen=True)
class Provenance:
    """What is needed to do it again."""

    command: str
    model: str  # as the user named it
    seed: int
    when: str  # ISO date and time
    versions: Mapping[str, str] = field(default_factory=dict)
    hashes: Mapping[str, str] = field(default_factory=dict)  # file: sha256
    limits: Sequence[str] = ()  # what the reader must know, such as rows left out


@dataclass(frozen=True, eq=False)
class Case:
    """A network, its repairs on the validation part, and what they do on the test part. `chosen` was selected on validation alone."""

    title: str
    label: str  # what the classifier detects, in the user's word
    original: Repair  # the method `standard`: the network as it came
    repairs: tuple[Repair, ...]
    chosen: int  # position in `repairs`
    provenance: Provenance
    thumbnails: Mapping[object, npt.NDArray[np.uint8]] = field(
        default_factory=dict, repr=False
    )  # id: gray image (h, w), if the user allows it
    probes: Probes | None = None  # on the test part, if the user asks for it

    @property
    def result(self) -> Repair:
        """The repair that was chosen."""
        return self.repairs[self.chosen]
