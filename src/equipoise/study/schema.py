"""What a study is made of, as checked values: data, arms (a method with its settings and its goal), splits, measures, training.

Pydantic checks the types and collects every problem; `plan` turns them into words. Nothing here is imported by `import equipoise`.
"""

import importlib
import json
import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from pydantic import AfterValidator, ConfigDict, Discriminator, Field, PlainValidator, Tag, TypeAdapter, ValidationError, field_validator
from pydantic.dataclasses import dataclass
from pydantic_core.core_schema import ValidationInfo

from equipoise.errors import BadInput, UnknownName, pick, raise_all
from equipoise.measures.gaps import GAPS
from equipoise.measures.performance import AT_THRESHOLD
from equipoise.methods.base import Goal
from equipoise.methods.registry import METHODS
from equipoise.models.train import Training
from equipoise.study.sources import SOURCES, option_types

STRICT = ConfigDict(extra="forbid")
MLP = "mlp"
Limit = float | Mapping[str, float | Mapping[str, float]]  # one number, or by data and measure


def _one_of(kind: str, valid: Any) -> AfterValidator:
    return AfterValidator(lambda name: pick(kind, name, valid))


def _name(value: str) -> str:
    """Names become parts of file names."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+=-]*", value):
        raise ValueError(f"a name is made of letters, digits and . _ + = - (a title may hold anything); got {value!r}")
    return value


def _limit(value: Any) -> Limit | None:
    table = value if isinstance(value, Mapping) else {"": value}
    numbers = [v for entry in table.values() for v in (entry.values() if isinstance(entry, Mapping) else (entry,))]
    if value is not None and not all(isinstance(v, (int, float)) and not isinstance(v, bool) and 0 <= v <= 1 for v in numbers):
        raise ValueError(f"should be a number from 0 to 1, or a table of them by data, by measure or by both; got {value!r}")
    return value  # type: ignore[no-any-return]


def _some(value: tuple[Any, ...]) -> tuple[Any, ...]:
    if not value:
        raise ValueError("is empty; name at least one")
    return value


Name = Annotated[str, AfterValidator(_name)]
Limits = Annotated[Limit | None, PlainValidator(_limit)]


def typed(kind: str, given: Mapping[str, Any], types: Mapping[str, Any]) -> dict[str, Any]:
    """The given values as their types have them (a list becomes a tuple), or one error with every unknown name and wrong type."""
    values: dict[str, Any] = {}
    problems: list[str] = []
    for name, value in given.items():
        try:
            if name not in types:
                raise UnknownName(kind, name, types)
            values[name] = TypeAdapter(types[name]).validate_json(json.dumps(value, default=str), strict=True)
        except UnknownName as error:
            problems += error.problems
        except ValidationError as error:
            wanted = " or ".join(dict.fromkeys(e["msg"].removeprefix("Input should be ") for e in error.errors()))
            problems.append(f"{kind} {name!r} should be {wanted}; got {value!r}")
    raise_all(problems)
    return values


@dataclass(frozen=True, config=STRICT)
class Known:
    """Data by the name of their source, with the options of its loader."""

    source: Annotated[str, _one_of("data", SOURCES)]
    name: Name = ""
    title: str = ""  # shown in tables
    options: dict[str, Any] = Field(default_factory=dict)
    redraw: bool = False  # a simulation that is drawn anew for each split, with the split's seed
    optional: bool = False  # left out unless it is asked for by name
    published: str = ""  # where the paper's numbers for it are, such as adult/sex

    @field_validator("options")
    @classmethod
    def _options(cls, given: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        source = info.data.get("source")
        return given if source is None else typed(f"option of {source}", given, option_types(source))

    @field_validator("redraw")
    @classmethod
    def _redraw(cls, value: bool, info: ValidationInfo) -> bool:
        source = info.data.get("source")
        if value and source is not None and "seed" not in option_types(source):
            raise ValueError(f"only a simulation can be drawn anew; {source} takes no seed")
        return value

    @property
    def path(self) -> None:
        """Not a file of the user's own."""
        return


@dataclass(frozen=True, config=STRICT)
class Own:
    """Data in a CSV or Parquet file, by its columns."""

    file: str
    label: str
    group: str | tuple[str, ...]
    name: Name = ""
    title: str = ""
    reference: str | tuple[str, ...] | None = None
    patient: str | None = None
    id: str | None = None
    features: tuple[str, ...] | None = None
    positive: str | int | None = None
    attribute_as_input: bool = False
    scale: bool = True
    optional: bool = False

    redraw = False
    published = ""

    @property
    def path(self) -> Path:
        """The file."""
        return Path(self.file)

    @property
    def columns(self) -> dict[str, Any]:
        """The arguments of Cohort.from_frame."""
        taken = ("label", "group", "reference", "patient", "id", "features", "positive", "attribute_as_input", "scale")
        return {name: getattr(self, name) for name in taken}


def _kind(value: Any) -> str:
    if isinstance(value, Mapping):  # a misspelt `file` is still told from a source by the columns beside it
        return "known" if "source" in value or not value.keys() & {"file", "label", "group", "patient"} else "own"
    return "own" if isinstance(value, Own) else "known"


Data = Annotated[Annotated[Known, Tag("known")] | Annotated[Own, Tag("own")], Discriminator(_kind)]


@dataclass(frozen=True, config=STRICT)
class Arm:
    """A method with its settings and its goal. Two arms may use one method under different names."""

    method: Annotated[str, _one_of("method", METHODS)]
    name: Name = ""
    settings: dict[str, Any] = Field(default_factory=dict)
    floor: Limits = None
    bound: Limits = None

    @field_validator("settings")
    @classmethod
    def _settings(cls, given: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        method = info.data.get("method")
        if method is None:
            return given
        kind = importlib.import_module(METHODS[method].module).Settings
        values = typed(f"setting of {method}", given, {f.name: get_type_hints(kind)[f.name] for f in fields(kind)})
        kind(**values)  # what only the method itself can check
        return values

    def goal(self, data: str, measure: str, performance: str) -> Goal:
        """What this arm is to reach on these data."""
        return Goal(measure, performance, limit(self.floor, data, measure), limit(self.bound, data, measure))


def limit(given: Limit | None, data: str, measure: str) -> float | None:
    """The number for these data and this measure; None where there is none.

    >>> floors = {"adult": {"spd": 0.52, "eod": 0.75}, "eod": 0.6}
    >>> limit(floors, "adult", "eod"), limit(floors, "bank", "eod"), limit(0.7, "bank", "spd")
    (0.75, 0.6, 0.7)
    """
    if not isinstance(given, Mapping):
        return given
    for key in (data, measure):
        found = given.get(key)
        number = found.get(measure) if isinstance(found, Mapping) else found
        if number is not None:
            return float(number)
    return None


@dataclass(frozen=True, config=STRICT)
class Plan:
    """A study: every arm on every split of all data, for every measure."""

    name: Name
    data: Annotated[tuple[Data, ...], AfterValidator(_some)]
    methods: Annotated[tuple[Arm, ...], AfterValidator(_some)]
    measures: Annotated[tuple[Annotated[str, _one_of("measure", GAPS)], ...], AfterValidator(_some)] = ("spd", "eod")
    splits: Annotated[int, Field(ge=1)] = 20
    first_seed: Annotated[int, Field(ge=0)] = 0
    fractions: tuple[float, float, float] = (0.6, 0.2, 0.2)
    stack: Annotated[int, Field(ge=1)] = 10  # replicates that are trained and repaired as one network
    performance: Annotated[str, _one_of("performance measure", AT_THRESHOLD)] = "balanced_accuracy"
    model: str = MLP  # or file.py:factory
    training: dict[str, Any] = Field(default_factory=dict)
    about: str = ""

    @field_validator("training")
    @classmethod
    def _training(cls, given: dict[str, Any]) -> dict[str, Any]:
        return typed("training setting", given, get_type_hints(Training))

    @field_validator("fractions")
    @classmethod
    def _fractions(cls, value: tuple[float, float, float]) -> tuple[float, float, float]:
        if min(value) <= 0 or abs(sum(value) - 1) > 1e-9:
            raise ValueError(f"fractions must be three positive numbers that add up to 1, for train, validation and test; got {value}")
        return value

    @field_validator("model")
    @classmethod
    def _model(cls, value: str) -> str:
        if value != MLP and not all(value.rpartition(":")[::2]):
            raise BadInput(f"a model is {MLP!r} (the paper's network) or file.py:factory; got {value!r}")
        return value

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seed of each split."""
        return tuple(range(self.first_seed, self.first_seed + self.splits))

    def named(self, name: str) -> Known | Own:
        """The data of that name."""
        return next(d for d in self.data if d.name == name)

    def arm(self, name: str) -> Arm:
        """The arm of that name."""
        return next(a for a in self.methods if a.name == name)
