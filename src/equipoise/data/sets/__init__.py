"""The data sets of the catalogue, one file each, which reads or simulates it and holds its recipe: the data set as a value."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import numpy.typing as npt
import pandas as pd

from equipoise.data.attribute import Attribute
from equipoise.data.cohort import Cohort
from equipoise.data.files import locate, read_bytes
from equipoise.data.images import Decoding
from equipoise.data.table import Table

UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases"


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


def original(root: Path, name: str) -> BytesIO:
    """The content of an original file, plain or gzipped."""
    return BytesIO(read_bytes(locate(root, name) or root / name))


def tabular(name: str, features: pd.DataFrame, label: npt.ArrayLike, attribute: Attribute, attribute_as_input: bool) -> Cohort:
    """The cohort of a published table, whose index is the place of each row in the original file and becomes its id."""
    ids = features.index.to_numpy(dtype=object)
    features = features.astype(float).reset_index(drop=True)
    if not attribute_as_input:
        features = features.drop(columns=attribute.name)
    return Cohort(Table(features), np.asarray(label, dtype=np.int64), (attribute,), None, ids, name=name)


def whole(value: object, least: int) -> bool:
    """Whether an option of a simulation is an integer of at least this size."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and int(value) >= least
