"""The data sets of the catalogue, one file each, which reads or simulates it and holds its recipe: the data set as a value."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_type_hints

import numpy as np

from equipoise.data.cohort import Cohort
from equipoise.data.images import Decoding


@dataclass(frozen=True)
class File:
    """One original file. What is hashed, and what a fetch writes, is `canonical` of its unzipped content."""

    name: str
    sha256: str  # empty where there are many releases or extracts, and none to compare with
    url: str
    member: str = ""  # the path inside a zip archive; empty where the url is the file itself
    canonical: Callable[[bytes], bytes] = bytes
    other_names: tuple[str, ...] = ()  # alternatives
    places: tuple[str, ...] = ("",)  # where it may lie inside the folder


@dataclass(frozen=True)
class Recipe:
    """How a data set becomes a cohort: `load` takes the folder of its files, or nothing where it is simulated, and options."""

    name: str
    load: Callable[..., Cohort]
    files: tuple[File, ...]
    attribute: str
    description: str
    citation: str
    licence: str
    rows: int
    features: int
    paper: str = ""  # rows x inputs of the paper's table of data sets
    folders: tuple[str, ...] = ()  # what its folder may be called, if not by its name
    by_hand: str = ""  # why no program can fetch the files, and where a person gets them

    @property
    def options(self) -> dict[str, Any]:
        """The options that `load` takes, with their types; those of decoding too where it passes them on."""
        hints, found = get_type_hints(self.load), dict[str, Any]()
        for parameter in list(inspect.signature(self.load).parameters.values())[1 if self.files else 0 :]:
            passed_on = parameter.kind is parameter.VAR_KEYWORD
            found |= get_type_hints(Decoding) if passed_on else {parameter.name: hints[parameter.name]}
        return found


def whole(value: object, least: int) -> bool:
    """Whether an option of a simulation is an integer of at least this size."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and int(value) >= least
