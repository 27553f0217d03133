"""The data of a study: a data set of the catalogue with options of its loader, or a file described by its columns.

Pydantic checks the types and collects every problem; `reading` turns them into messages.
"""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from pydantic import AfterValidator, ConfigDict, Discriminator, Field, Tag, TypeAdapter, ValidationError, field_validator
from pydantic.dataclasses import dataclass
from pydantic_core.core_schema import ValidationInfo

from equipoise.data import (
    CONFLICTS,
    Cohort,
    Columns,
    bin_problems,
    cohort_from_table,
    read_table,
    sha256,
    user_cache,
)
from equipoise.errors import BadInput, UnknownName, pick, raise_all
from equipoise.models import Training
from equipoise.studies.catalogue import CATALOGUE, check_files, data_folder, file_states, load
from equipoise.studies.networks import check_model

STRICT = ConfigDict(extra="forbid")
SOURCE, FILE = "from-source", "from-file"  # the two kinds of data, as they appear in the location of a pydantic error
SOURCES = tuple(CATALOGUE)
SET_BY_RUN = ("progress", "cache", "workers")  # arguments of loaders that do not affect results
MAX_HASHED = 2**26  # bytes; a larger table is identified by its size, to avoid reading it
Decoding = Callable[[int], None]  # called with the number of images decoded since the last call


def one_of(kind: str, valid: Any) -> AfterValidator:
    """Validates that a value is one of the `valid` names."""
    return AfterValidator(lambda name: pick(kind, name, valid))


def _name(value: str) -> str:
    """Returns a name unchanged, if it can be part of a file name."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+=-]*", value):
        raise ValueError(f"expected letters, digits and . _ + = - in a name (a title may contain anything); got {value!r}")
    return value


Name = Annotated[str, AfterValidator(_name)]
Model = Annotated[str, AfterValidator(check_model)]


def parse_values(kind: str, raw: Mapping[str, Any], types: Mapping[str, Any]) -> dict[str, Any]:
    """The values converted to their declared types (a list becomes a tuple). Raises one error with every unknown name and wrong type."""
    values: dict[str, Any] = {}
    problems: list[str] = []
    for name, value in raw.items():
        try:
            if name not in types:
                raise UnknownName(kind, name, types)
            values[name] = TypeAdapter(types[name]).validate_json(json.dumps(value, default=str), strict=True)
        except UnknownName as error:
            problems += error.problems
        except ValidationError as error:
            expected = " or ".join(dict.fromkeys(e["msg"].removeprefix("Input should be ") for e in error.errors()))
            problems.append(f"{kind} {name!r} should be {expected}; got {value!r}")
    raise_all(problems)
    return values


def _recipe(raw: dict[str, Any]) -> dict[str, Any]:
    values = parse_values("training setting", raw, get_type_hints(Training))
    Training(**values)  # checks values and combinations
    return values


Recipe = Annotated[dict[str, Any], AfterValidator(_recipe)]


def option_types(source: str) -> dict[str, Any]:
    """The options of a source with their types."""
    options = CATALOGUE[pick("data", source, SOURCES)].options
    return {name: kind for name, kind in options.items() if name not in SET_BY_RUN}


@dataclass(frozen=True, config=STRICT)
class FromSource:
    """A data set of the catalogue, with the options of its loader."""

    source: Annotated[str, one_of("data", SOURCES)]
    name: Name = ""
    title: str = ""  # in tables of results
    options: dict[str, Any] = Field(default_factory=dict)
    redraw: bool = False  # whether a simulation is drawn again for each split, with the seed of the split
    optional: bool = False  # whether it is run only if named
    published: str = ""  # key of its results in the paper, such as adult/sex
    model: Model | None = None  # instead of the study's
    pretrained: str = ""  # initial weights of a backbone: a file, or "imagenet"
    training: Recipe = Field(default_factory=dict)  # overrides the study's

    @field_validator("options")
    @classmethod
    def _options(cls, raw: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        source = info.data.get("source")
        return raw if source is None else parse_values(f"option of {source}", raw, option_types(source))

    @field_validator("redraw")
    @classmethod
    def _redraw(cls, value: bool, info: ValidationInfo) -> bool:
        source = info.data.get("source")
        if value and source is not None and "seed" not in option_types(source):
            raise ValueError(f"only a simulation can be drawn again for each split; {source} has no option `seed`")
        return value

    def load(self, root: str | Path | None = None, decoding: Decoding | None = None, **options: Any) -> Cohort:
        """The cohort, loaded with further options. Pixels are cached on disk, so that only the file name is sent to other processes."""
        images = "cache" in CATALOGUE[self.source].options
        cached = {"cache": user_cache() / "images", "progress": decoding} if images else {}
        return load(self.source, root, **{**self.options, **options}, **cached)

    def checksum(self, root: str | Path | None) -> str:
        """A checksum of the names and contents of the tables, or "" if the catalogue has checksums; raises an error if files are missing.

        Images are not included: they are taken to belong to their tables.
        """
        recipe = CATALOGUE[self.source]
        if not recipe.by_hand:
            wrong = [f"{state.file} {state.status}" for state in check_files(self.source, root) if state.status != "ok"]
            if wrong:
                place = "" if root is None else f" --root {root}"
                raise BadInput(f"data set {self.source!r}: {'; '.join(wrong)}. To get the files: equipoise data fetch {self.source}{place}")
            return ""
        folders = [data_folder(self.source, root), *(Path(place) for place in [self.options.get("mimic_iv")] if place)]
        paths = [state.path for folder in folders for state in file_states(self.source, folder)]
        return sha256(repr(sorted({_table_checksum(path) for path in paths if path is not None})).encode())


def _table_checksum(path: Path) -> tuple[str, str]:
    size = path.stat().st_size
    return path.name.lower(), sha256(path.read_bytes()) if size <= MAX_HASHED else str(size)


@dataclass(frozen=True, config=STRICT)
class FromFile:
    """Data in a CSV or Parquet file, with the roles of its columns."""

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
    bins: dict[str, tuple[float, ...]] = Field(default_factory=dict)  # edges that cut a numeric column into groups
    conflicts: Annotated[str, one_of("rule for conflicts", CONFLICTS)] = "row"  # for patients recorded in more than one group
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
    def _bins(cls, bins: dict[str, tuple[float, ...]], info: ValidationInfo) -> dict[str, tuple[float, ...]]:
        group = info.data.get("group")
        raise_all(bin_problems(bins, [group] if isinstance(group, str) else list(group or bins)))
        return bins

    @property
    def path(self) -> Path:
        """The file."""
        return Path(self.file)

    def load(self, root: str | Path | None = None, decoding: Decoding | None = None) -> Cohort:  # noqa: ARG002 (as FromSource.load)
        """The cohort in the file."""
        columns = Columns(**{name: value for name, value in vars(self).items() if name in Columns.model_fields})
        frame, how = read_table(self.path, text=columns.text, words=columns.words), (self.attribute_as_input, self.scale)
        return cohort_from_table(frame, columns, self.path.name, text=columns.text, attribute_as_input=how[0], scale=how[1])

    def checksum(self, root: str | Path | None) -> str:  # noqa: ARG002 (as FromSource.checksum)
        """The checksum of the file."""
        return sha256(self.path.read_bytes())


def _kind(value: Any) -> str:
    if isinstance(value, Mapping):  # a misspelt `file` still differs from a source by the columns next to it
        return SOURCE if "source" in value or not value.keys() & {"file", "label", "group", "patient"} else FILE
    return FILE if isinstance(value, FromFile) else SOURCE


Data = Annotated[Annotated[FromSource, Tag(SOURCE)] | Annotated[FromFile, Tag(FILE)], Discriminator(_kind)]
