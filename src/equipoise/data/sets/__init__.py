"""The data sets of the catalogue. Each file reads or simulates one and ends with its recipe."""

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
    """One original file. `canonical` of its unzipped content is hashed, and written by a fetch."""

    name: str
    sha256: str  # empty if there are many releases or extracts
    url: str
    member: str = ""  # the path inside a zip archive; empty if the url is the file itself
    canonical: Callable[[bytes], bytes] = bytes
    other_names: tuple[str, ...] = ()
    places: tuple[str, ...] = ("",)  # subfolders that may hold it
    option: str = ""  # the option of `Recipe.load` that names another folder for it


@dataclass(frozen=True)
class Recipe:
    """A data set: `load` takes the folder of its files (nothing if it is simulated) and options, and returns the cohort."""

    name: str
    load: Callable[..., Cohort]
    files: tuple[File, ...]
    attribute: str
    description: str
    citation: str
    licence: str
    rows: int
    features: int
    paper: str = ""  # rows x inputs in the paper's table of data sets
    folders: tuple[str, ...] = ()  # possible names of its folder, if not the name of the data set
    by_hand: str = ""  # why the files cannot be fetched by a program, and how to get them

    @property
    def options(self) -> dict[str, Any]:
        """The options of `load` with their types, including those of decoding if it passes them on."""
        hints, options = get_type_hints(self.load), dict[str, Any]()
        for parameter in list(inspect.signature(self.load).parameters.values())[1 if self.files else 0 :]:
            passed_on = parameter.kind is parameter.VAR_KEYWORD
            options |= get_type_hints(Decoding) if passed_on else {parameter.name: hints[parameter.name]}
        return options


def original(root: Path, name: str) -> BytesIO:
    """The content of an original file, plain or gzipped."""
    return BytesIO(read_bytes(locate(root, name) or root / name))


def tabular(name: str, features: pd.DataFrame, label: npt.ArrayLike, attribute: Attribute, attribute_as_input: bool) -> Cohort:
    """The cohort of a published table. The index, the position of each row in the original file, becomes its id."""
    ids = features.index.to_numpy(dtype=object)
    features = features.astype(float).reset_index(drop=True)
    if not attribute_as_input:
        features = features.drop(columns=attribute.name)
    return Cohort(Table(features), np.asarray(label, dtype=np.int64), (attribute,), None, ids, name=name)


def is_integer(value: object, least: int) -> bool:
    """Whether an option of a simulation is an integer of at least this size."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and int(value) >= least


def size_problems(n: object, seed: object, least: int, unit: str) -> list[str]:
    """Problems of the number of rows and of the seed of a simulation."""
    problems = [] if is_integer(n, least) else [f"n must be a whole number of at least {least} {unit}; got {n!r}"]
    return problems if is_integer(seed, 0) else [*problems, f"seed must be a whole number of at least 0; got {seed!r}"]
