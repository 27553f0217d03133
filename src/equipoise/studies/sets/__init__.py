"""The data sets of the catalogue. Each file reads or simulates one or several and ends with their recipes."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np

from equipoise.data import Cohort, Decoding

PHYSIONET = "https://physionet.org/content"


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
    attribute: str
    description: str
    citation: str
    rows: int
    features: int
    files: tuple[File, ...] = ()
    licence: str = "simulated"
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


def locate(folder: Path, name: str) -> Path | None:
    """The file of that name in the folder, plain or with the suffix .gz; None if neither exists."""
    return next((file for file in (folder / name, folder / f"{name}.gz") if file.is_file()), None)


def number_problems(kind: Any, **given: tuple[Any, float, float]) -> list[str]:
    """Problems of options of a simulation, each with its value, the least and the most; `kind` is Integral or Real."""
    problems = []
    for name, (value, least, most) in given.items():
        right = isinstance(value, kind) and type(value) is not bool and np.isfinite(value)
        if not (right and least <= value <= most):
            span = f"of at least {least}" if most == np.inf else f"from {least} to {most}"
            problems.append(f"{name} must be a {'whole ' if kind is Integral else ''}number {span}; got {value!r}")
    return problems
