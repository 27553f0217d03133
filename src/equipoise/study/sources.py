"""The data of a study: a data set of the catalogue with the options of its loader, or a file of the user's own by its columns.

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
    CATALOGUE,
    CONFLICTS,
    Cohort,
    bin_problems,
    check_files,
    cohort_in,
    data_folder,
    file_states,
    load,
    read_table,
    sha256,
    user_cache,
)
from equipoise.errors import BadInput, UnknownName, pick, raise_all
from equipoise.models import Training
from equipoise.study.networks import checked

STRICT = ConfigDict(extra="forbid")
SOURCE, FILE = "from-source", "from-file"  # the two kinds of data, as pydantic names them in the place of a problem
SOURCES = tuple(CATALOGUE)
HANDLED = ("progress", "cache", "workers")  # arguments of a loader that change no number; the run sets them
HASHED = 2**26  # bytes: a larger table is identified by its length instead of its content, to avoid reading it
Decoding = Callable[[int], None]  # called with the number of images that were decoded since the last call


def one_of(kind: str, valid: Any) -> AfterValidator:
    """A name from a closed list."""
    return AfterValidator(lambda name: pick(kind, name, valid))


def _name(value: str) -> str:
    """The name itself; names become parts of file names."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+=-]*", value):
        raise ValueError(f"expected letters, digits and . _ + = - in a name (a title may contain anything); got {value!r}")
    return value


Name = Annotated[str, AfterValidator(_name)]
Model = Annotated[str, AfterValidator(checked)]


def typed(kind: str, given: Mapping[str, Any], types: Mapping[str, Any]) -> dict[str, Any]:
    """The given values with their declared types (a list becomes a tuple), or one error with every unknown name and wrong type."""
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
    Training(**values)  # checks values and combinations
    return values


Recipe = Annotated[dict[str, Any], AfterValidator(_recipe)]


def option_types(source: str) -> dict[str, Any]:
    """The options of a source and their types."""
    options = CATALOGUE[pick("data", source, SOURCES)].options
    return {name: kind for name, kind in options.items() if name not in HANDLED}


@dataclass(frozen=True, config=STRICT)
class FromSource:
    """A data set of the catalogue, with the options of its loader."""

    source: Annotated[str, one_of("data", SOURCES)]
    name: Name = ""
    title: str = ""  # shown in tables
    options: dict[str, Any] = Field(default_factory=dict)
    redraw: bool = False  # a simulation that is drawn again for each split, with the split's seed
    optional: bool = False  # included only if it is named
    published: str = ""  # where the paper's numbers for it are, such as adult/sex
    model: Model | None = None  # in place of the study's
    pretrained: str = ""  # the file of the weights that a backbone starts from, or "imagenet"
    training: Recipe = Field(default_factory=dict)  # overrides the study's

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
            raise ValueError(f"only a simulation can be drawn again for each split; {source} has no option `seed`")
        return value

    def load(self, root: str | Path | None = None, decoding: Decoding | None = None, **options: Any) -> Cohort:
        """The cohort, with further options. Pixels lie in a file of the user's cache, so that a process is sent only the file's name."""
        images = "cache" in CATALOGUE[self.source].options
        mapped = {"cache": user_cache() / "images", "progress": decoding} if images else {}
        return load(self.source, root, **{**self.options, **options}, **mapped)

    def checksum(self, root: str | Path | None) -> str:
        """A checksum of the source's files, or an error that names what is missing.

        Empty where the catalogue has the files' checksums. Otherwise of the names and contents of its tables; images are taken to belong
        to their tables.
        """
        recipe = CATALOGUE[self.source]
        if not recipe.by_hand:
            wrong = [f"{state.file} {state.status}" for state in check_files(self.source, root) if state.status != "ok"]
            if wrong:
                place = "" if root is None else f" --root {root}"
                raise BadInput(f"data set {self.source!r}: {'; '.join(wrong)}. To get the files: equipoise data fetch {self.source}{place}")
            return ""
        folders = [data_folder(self.source, root), *(Path(place) for place in [self.options.get("mimic_iv")] if place)]
        found = [state.path for folder in folders for state in file_states(self.source, folder)]
        return sha256(repr(sorted({_table_checksum(path) for path in found if path is not None})).encode())


def _table_checksum(path: Path) -> tuple[str, str]:
    size = path.stat().st_size
    return path.name.lower(), sha256(path.read_bytes()) if size <= HASHED else str(size)


@dataclass(frozen=True, config=STRICT)
class FromFile:
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
    bins: dict[str, tuple[float, ...]] = Field(default_factory=dict)  # the edges that make groups of a numeric column
    conflicts: Annotated[str, one_of("rule for conflicts", CONFLICTS)] = "row"  # for patients with more than one group
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

    @property
    def path(self) -> Path:
        """The file."""
        return Path(self.file)

    @property
    def columns(self) -> dict[str, Any]:
        """The arguments of Cohort.from_frame."""
        taken = ("label", "group", "reference", "patient", "id", "features", "positive", "attribute_as_input", "scale", "bins", "conflicts")
        return {name: getattr(self, name) for name in taken}

    def load(self, root: str | Path | None = None, decoding: Decoding | None = None) -> Cohort:  # noqa: ARG002 (as FromSource.load)
        """The cohort in the file."""
        groups = [self.group] if isinstance(self.group, str) else self.group
        text = {name for name in (self.patient, self.id, *groups) if name is not None and name not in self.bins}
        words = [self.label] if self.positive is not None else []
        return cohort_in(read_table(self.path, text=text, words=words), text, name=self.path.name, **self.columns)

    def checksum(self, root: str | Path | None) -> str:  # noqa: ARG002 (as FromSource.checksum)
        """The checksum of the file."""
        return sha256(self.path.read_bytes())


def _kind(value: Any) -> str:
    if isinstance(value, Mapping):  # a misspelt `file` still differs from a source by the columns next to it
        return SOURCE if "source" in value or not value.keys() & {"file", "label", "group", "patient"} else FILE
    return FILE if isinstance(value, FromFile) else SOURCE


Data = Annotated[Annotated[FromSource, Tag(SOURCE)] | Annotated[FromFile, Tag(FILE)], Discriminator(_kind)]
