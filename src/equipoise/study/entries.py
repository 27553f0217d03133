"""The data of a study as checked values: a source by name with the options of its loader, or a file of the user's own by its columns.

Pydantic checks the types and collects every problem; `plan` turns them into words.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from pydantic import (
    AfterValidator,
    ConfigDict,
    Discriminator,
    Field,
    SerializerFunctionWrapHandler,
    Tag,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_serializer,
)
from pydantic.dataclasses import dataclass
from pydantic_core.core_schema import ValidationInfo

from equipoise.data import CONFLICTS, bin_problems
from equipoise.errors import UnknownName, pick, raise_all
from equipoise.models import Training
from equipoise.study.network import checked
from equipoise.study.sources import SOURCES, option_types

STRICT = ConfigDict(extra="forbid")


def one_of(kind: str, valid: Any) -> AfterValidator:
    """A name from a closed list."""
    return AfterValidator(lambda name: pick(kind, name, valid))


def _name(value: str) -> str:
    """Names become parts of file names."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+=-]*", value):
        raise ValueError(f"a name is made of letters, digits and . _ + = - (a title may hold anything); got {value!r}")
    return value


Name = Annotated[str, AfterValidator(_name)]
Model = Annotated[str, AfterValidator(checked)]


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


def _recipe(given: dict[str, Any]) -> dict[str, Any]:
    values = typed("training setting", given, get_type_hints(Training))
    Training(**values)  # what only it can check
    return values


Recipe = Annotated[dict[str, Any], AfterValidator(_recipe)]


@dataclass(frozen=True, config=STRICT)
class Known:
    """Data by the name of their source, with the options of its loader."""

    source: Annotated[str, one_of("data", SOURCES)]
    name: Name = ""
    title: str = ""  # shown in tables
    options: dict[str, Any] = Field(default_factory=dict)
    redraw: bool = False  # a simulation that is drawn anew for each split, with the split's seed
    optional: bool = False  # left out unless it is asked for by name
    published: str = ""  # where the paper's numbers for it are, such as adult/sex
    model: Model | None = None  # in place of the study's
    pretrained: str = ""  # the file of the weights that a backbone starts from, or "imagenet"
    training: Recipe = Field(default_factory=dict)  # over the study's

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
    bins: dict[str, tuple[float, ...]] = Field(default_factory=dict)  # the edges that make groups of a column of numbers
    conflicts: Annotated[str, one_of("rule for conflicts", CONFLICTS)] = "row"  # of patients with more than one group
    attribute_as_input: bool = False
    scale: bool = True
    optional: bool = False
    model: Model | None = None
    pretrained: str = ""
    training: Recipe = Field(default_factory=dict)

    redraw = False
    published = ""

    @field_validator("bins")
    @classmethod
    def _bins(cls, given: dict[str, tuple[float, ...]], info: ValidationInfo) -> dict[str, tuple[float, ...]]:
        group = info.data.get("group")
        raise_all(bin_problems(given, [group] if isinstance(group, str) else list(group or given)))
        return given

    @model_serializer(mode="wrap")
    def _plain(self, as_usual: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without what is usual, so that the fingerprint of a study from before there was a choice stays as it was."""
        content: dict[str, Any] = as_usual(self)
        return {key: value for key, value in content.items() if (key, value) not in (("bins", {}), ("conflicts", "row"))}

    @property
    def path(self) -> Path:
        """The file."""
        return Path(self.file)

    @property
    def columns(self) -> dict[str, Any]:
        """The arguments of Cohort.from_frame."""
        taken = ("label", "group", "reference", "patient", "id", "features", "positive", "attribute_as_input", "scale", "bins", "conflicts")
        return {name: getattr(self, name) for name in taken}


def _kind(value: Any) -> str:
    if isinstance(value, Mapping):  # a misspelt `file` is still told from a source by the columns beside it
        return "known" if "source" in value or not value.keys() & {"file", "label", "group", "patient"} else "own"
    return "own" if isinstance(value, Own) else "known"


Data = Annotated[Annotated[Known, Tag("known")] | Annotated[Own, Tag("own")], Discriminator(_kind)]
