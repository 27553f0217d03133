"""The plan of a study, read from a TOML file or a preset and validated as a whole, narrowed and adjusted; and its tasks.

    name = "my-hospital"
    splits = 20                                    # seeds first_seed, first_seed + 1, ...
    measures = ["eod"]
    model = "networks.py:make"                     # default: the paper's MLP; for images also a backbone such as resnet-18
    protocol = "balanced"                          # default: "split", a random split

    [[data]]
    file = "patients.csv"                          # or source = "adult", with options = { attribute_as_input = false }
    name = "icu"
    label = "died"                                 # the columns, as in [data] of a case file
    group = "sex"
    reference = "M"
    patient = "subject_id"

    [[methods]]                                    # an arm: a method with settings and a goal
    method = "bias-gda"
    settings = { epochs = 50 }
    overrides = { icu = { learning_rate = 1e-6 } } # settings for these data only
    min_performance = { icu = { eod = 0.70 } }     # or one number; by measure, by data, or by both
    train = false                                  # true gives bias-score and auto the training set as well
    training = "published"                         # one of the study's `trainings`; default: its `training`

    [trainings.published]                          # another recipe, for the arms that name it
    restore = "last"

Data and methods may also be plain lists of names. An entry of data may have its own `model`. `pretrained`, in an entry of data or for the
whole study (one value, or a table by backbone), is a file with initial weights of a backbone, or "imagenet" for its published weights.
Paths are relative to the folder of the TOML file. The presets are in the folder `presets`.
"""

import dataclasses
import json
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Self, get_type_hints

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, TypeAdapter, ValidationError, field_validator, model_validator
from pydantic import ValidationInfo as Info

from equipoise.data import Cohort, Columns, read_cohort
from equipoise.disk import sha256, user_cache
from equipoise.errors import BadInput, UnknownName, collecting, did_you_mean, pick, raise_all
from equipoise.measures import AT_THRESHOLD, canonical_name
from equipoise.methods import DEFAULT_SELECTION, METHODS, SELECTIONS, Goal
from equipoise.models import Training
from equipoise.specification import Share, Specification, one_of, specification_problems
from equipoise.studies.catalogue import CATALOGUE, check_files, data_folder, load
from equipoise.studies.networks import MLP, PUBLISHED_WEIGHTS, Network, backbones, check_model

PROTOCOLS = {  # ways to split: the default fractions of training, validation and test set
    "split": (0.6, 0.2, 0.2),
    "balanced": (0.5, 0.25, 0.25),  # the paper's chest X-rays: equal numbers of both labels, groups in the shares of `privileged`
    "folds": (0.6, 0.2, 0.2),  # five folds by patient, test sets unchanged: five splits make one cross-validation, and are pooled
}
PRIVILEGED = (0.75, 0.5, 0.5)  # the share of the reference group in each set, as in the paper
USED_COLUMNS = {"label", "group", "reference", "patient", "id", "bins", "positive", "conflicts", "features", "max_table_bytes", "raw"}
SET_BY_RUN = ("progress", "cache", "workers")  # arguments of loaders that do not affect results
MAX_HASHED = 2**26  # bytes; a larger table is identified by its size, to avoid reading it
PRESETS_FOLDER = files("equipoise.studies") / "presets"
PRESETS = tuple(sorted(file.name.removesuffix(".toml") for file in PRESETS_FOLDER.iterdir() if file.name.endswith(".toml")))
Portion = Annotated[float, Field(gt=0, lt=1)]
Shares = tuple[Portion, Portion, Portion]  # of the training, validation and test set


def _plain_name(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+=-]*", value):
        raise ValueError(f"expected letters, digits and . _ + = - in a name (a title may contain anything); got {value!r}")
    return value


def _entry_name(value: str, info: Info) -> str:
    """The name of an entry: by default its method, data set or file."""
    given = info.data
    name = value or given.get("method") or given.get("source") or Path(given.get("file") or "").stem
    return _plain_name(name) if name else ""  # without any, the method or the data are reported


def _by_name(value: Any) -> Any:
    """A table by name. A single value counts for all names: it stands under ""."""
    return value if isinstance(value, Mapping) else {} if value in (None, "") else {"": value}


def _by_measure(value: Any) -> dict[str, Any]:
    return {_canonical(name): entry for name, entry in _by_name(value).items()}


def _canonical(measure: Any) -> str:
    """The canonical name of a measure; anything else is returned as text, and reported where names are compared."""
    try:
        return canonical_name(measure)
    except (BadInput, TypeError):
        return str(measure)


def _shortest(limits: "Limits") -> Any:
    """Limits as a user would write them: a number where a table has only one for all names."""
    by_data = {name: table[""] if table.keys() == {""} else table for name, table in limits.items()}
    return by_data.get("", by_data) or None


def _absolute(value: str, info: Info) -> str:
    """The path of a file, relative to the folder of the study; "" and "imagenet" are no paths."""
    folder = (info.context or {}).get("folder")
    return value if folder is None or value in ("", PUBLISHED_WEIGHTS) else str(folder / value)


def _file(value: str, info: Info) -> str:
    path = _absolute(value, info)
    if (folder := (info.context or {}).get("folder")) is not None and not Path(path).is_file():
        raise ValueError(f"no such file: {path}. Check the name; it is relative to {folder}.")
    return path


def _model(value: str, info: Info) -> str:
    code, _, factory = value.rpartition(":")
    return f"{_file(code, info)}:{factory}" if code.endswith(".py") else check_model(value)


def parse_values(kind: str, raw: Mapping[str, Any], types: Mapping[str, Any]) -> dict[str, Any]:
    """The values converted to their declared types (a list becomes a tuple). Raises one error with every unknown name and wrong type."""
    values: dict[str, Any] = {}
    problems: list[str] = []
    for name, value in raw.items():
        try:
            with collecting(problems):
                pick(kind, name, types)
                values[name] = TypeAdapter(types[name]).validate_json(json.dumps(value, default=str), strict=True)
        except ValidationError as error:
            expected = " or ".join(dict.fromkeys(e["msg"].removeprefix("Input should be ") for e in error.errors()))
            problems.append(f"{kind} {name!r} should be {expected}; got {value!r}")
    raise_all(problems)
    return values


def _training_settings(raw: dict[str, Any]) -> dict[str, Any]:
    values = parse_values("training setting", raw, {name: field.annotation for name, field in Training.model_fields.items()})
    Training(**values)  # checks values and combinations
    return values


def _expanded(key: str) -> BeforeValidator:
    """Validates an entry, which may be only what it would have under `key`."""
    return BeforeValidator(lambda raw: {key: raw} if isinstance(raw, str) else raw)


EntryName = Annotated[str, AfterValidator(_plain_name)]
Model = Annotated[str, AfterValidator(_model)]
Weights = Annotated[str, AfterValidator(_absolute)]
WeightsByModel = Annotated[dict[str, Weights], BeforeValidator(_by_name)]
TrainingSettings = Annotated[dict[str, Any], AfterValidator(_training_settings)]
# By data or measure, and within that by measure: {"adult": {"eod": 0.7}}; "" counts for all.
Limits = Annotated[
    dict[str, dict[str, Share]],
    BeforeValidator(lambda value: {name: _by_measure(table) for name, table in _by_measure(value).items()}),
    PlainSerializer(_shortest),
]


def option_types(source: str) -> dict[str, Any]:
    """The options of a data set of the catalogue with their types."""
    return {name: kind for name, kind in CATALOGUE[source].options.items() if name not in SET_BY_RUN}


class StudyData(Columns):
    """An entry of data: a data set of the catalogue (`source`) with options of its loader, or a table (`file`) with its columns."""

    source: Annotated[str, one_of("data", CATALOGUE)] | None = None
    file: Annotated[str, AfterValidator(_file)] | None = None
    name: Annotated[str, AfterValidator(_entry_name)] = Field("", validate_default=True)
    title: str = ""  # in tables of results
    options: dict[str, Any] = Field(default_factory=dict)
    redraw: bool = False  # whether a simulation is drawn again for each split, with the seed of the split
    attribute_as_input: bool = False  # of a table: whether the group is an input
    scale: bool = True  # of a table: whether inputs are standardised
    optional: bool = False  # whether it is run only if named
    published: str = ""  # key of its results in the paper, such as adult/sex
    model: Model | None = None  # instead of the study's
    pretrained: Weights = ""  # initial weights of a backbone: a file, or "imagenet"
    training: TrainingSettings = Field(default_factory=dict)  # overrides the study's

    @field_validator("options")
    @classmethod
    def _options(cls, raw: dict[str, Any], info: Info) -> dict[str, Any]:
        source = info.data.get("source")
        options = raw if source is None else parse_values(f"option of {source}", raw, option_types(source))
        return {name: _absolute(str(value), info) if name == "mimic_iv" else value for name, value in options.items()}

    @field_validator("redraw")
    @classmethod
    def _redraw(cls, value: bool, info: Info) -> bool:
        source = info.data.get("source")
        if value and source is not None and "seed" not in option_types(source):
            raise ValueError(f"only a simulation can be drawn again for each split; {source} has no option `seed`")
        return value

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if self.source is not None:
            other, kind = {*Columns.model_fields, "file", "attribute_as_input", "scale"}, f"{self.source!r} is a data set of the catalogue"
        else:
            other, kind = {*Columns.model_fields, "options", "redraw", "published"} - USED_COLUMNS, "these data are a table"
        problems = [
            f"{name} cannot be given, since {kind}. Leave it out." for name in sorted(other & self.model_dump(exclude_defaults=True).keys())
        ]
        if self.source is None:
            problems += [] if self.file is not None else ["no data set (source) and no table (file) is named. Add one of them."]
            problems += self.problems() if len(self.label) < 2 else [f"expected one label; got {', '.join(self.label)}"]
        raise_all(problems)
        return self

    def load(self, root: str | Path | None = None, decoding: Callable[[int], None] | None = None, **options: Any) -> Cohort:
        """The cohort. Pixels are cached on disk, so that only the file name is sent to other processes; `decoding` gets their number."""
        if self.source is None:
            how: dict[str, Any] = {"attribute_as_input": self.attribute_as_input, "scale": self.scale}
            return read_cohort(str(self.file), self.changed(raw=True), **how).cohort
        images = "cache" in CATALOGUE[self.source].options
        cached = {"cache": user_cache() / "images", "progress": decoding} if images else {}
        return load(self.source, root, **{**self.options, **options}, **cached)

    def checksum(self, root: str | Path | None) -> str:
        """A checksum of the names and contents of the tables, or "" if the catalogue has checksums; raises an error if files are missing.

        Images are not included: they are taken to belong to their tables.
        """
        if self.source is None:
            return sha256(Path(str(self.file)).read_bytes())
        data_folder(self.source, root)  # raises an error if files are missing
        if not CATALOGUE[self.source].by_hand:
            return ""
        folders = {name: self.options[name] for name in ("mimic_iv",) if name in self.options}
        paths = {state.path for state in check_files(self.source, root, **folders)}
        sizes = {path: path.stat().st_size for path in paths if path is not None}
        contents = {(path.name.lower(), sha256(path.read_bytes()) if size <= MAX_HASHED else str(size)) for path, size in sizes.items()}
        return sha256(repr(sorted(contents)).encode())


def _parse_settings(method: str, raw: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    kind = METHODS[method].settings
    values = parse_values(f"setting of {method}", raw, {f.name: get_type_hints(kind)[f.name] for f in dataclasses.fields(kind)})
    kind(**{**others, **values})  # checks values and combinations
    return values


class Arm(Specification):
    """A method with settings and a goal. Several arms may use the same method under different names."""

    method: Annotated[str, one_of("method", METHODS)]
    name: Annotated[str, AfterValidator(_entry_name)] = Field("", validate_default=True)
    settings: dict[str, Any] = Field(default_factory=dict)
    overrides: dict[str, dict[str, Any]] = Field(default_factory=dict)  # further settings by name of data
    min_performance: Limits = Field(default_factory=dict)
    max_gap: Limits = Field(default_factory=dict)
    selection: Annotated[str, one_of("selection", SELECTIONS)] = DEFAULT_SELECTION
    max_loss: Share | None = None  # of performance compared with the original, where there is no other limit
    train: bool = False  # whether the method also gets the training set; methods that train from scratch always do
    training: str = ""  # the recipe, one of the study's `trainings`, by which the networks of this arm are trained

    @field_validator("settings")
    @classmethod
    def _settings(cls, raw: dict[str, Any], info: Info) -> dict[str, Any]:
        method = info.data.get("method")
        return raw if method is None else _parse_settings(method, raw, {})

    @field_validator("overrides")
    @classmethod
    def _overrides(cls, raw: dict[str, dict[str, Any]], info: Info) -> dict[str, dict[str, Any]]:
        method, settings = info.data.get("method"), info.data.get("settings")
        if method is None or settings is None:
            return raw
        values, problems = {}, []
        for data, overrides in raw.items():
            try:
                values[data] = _parse_settings(method, overrides, settings)
            except BadInput as error:
                problems += [f"{data}: {problem}" for problem in error.problems]
        raise_all(problems)
        return values

    @field_validator("max_loss")
    @classmethod
    def _max_loss(cls, value: float | None, info: Info) -> float | None:
        combined = [key for key in ("min_performance", "max_gap") if "" in info.data.get(key, {})]
        if value is not None and combined:
            raise ValueError(f"max_loss cannot be combined with min_performance or max_gap; this arm has {' and '.join(combined)}")
        return value

    @field_validator("train")
    @classmethod
    def _train(cls, value: bool, info: Info) -> bool:
        method = info.data.get("method")
        if value and method is not None and not METHODS[method].takes_train:
            users = ", ".join(name for name, method in METHODS.items() if method.takes_train)
            raise ValueError(f"{method} makes no use of the training set; these methods do: {users}")
        return value

    def settings_for(self, data: str) -> dict[str, Any]:
        """The settings on these data."""
        return {**self.settings, **self.overrides.get(data, {})}

    def goal(self, data: str, measure: str, performance: str) -> Goal:
        """The goal of this arm on these data."""

        def limit(limits: Limits) -> float | None:
            tables = (limits.get(name, {}) for name in (data, measure, ""))
            return next((number for table in tables if (number := table.get(measure, table.get(""))) is not None), None)

        least, most = limit(self.min_performance), limit(self.max_gap)
        loss = self.max_loss if least is None and most is None else None  # a table of limits may leave some data out
        return Goal(measure, performance=performance, min_performance=least, max_gap=most, selection=self.selection, max_loss=loss)

    def narrowed(self, data: Sequence[str], measures: Sequence[str]) -> Self:
        """The arm without settings and limits for other data and measures."""

        def kept(limits: Limits) -> Limits:
            few = {name: table for name, table in limits.items() if name in ("", *data, *measures)}
            return {name: {m: number for m, number in table.items() if m in ("", *measures)} for name, table in few.items()}

        overrides = {name: settings for name, settings in self.overrides.items() if name in data}
        return self.changed(overrides=overrides, min_performance=kept(self.min_performance), max_gap=kept(self.max_gap))


def _not_empty(value: tuple[Any, ...]) -> tuple[Any, ...]:
    if not value:
        raise ValueError("is empty; name at least one")
    return value


def _measure(value: Any) -> str:
    if not isinstance(value, (str, Mapping)):
        raise ValueError(f"should be a measure or a signed sum of rates such as 'tpr-fpr'; got {value!r}")
    return canonical_name(value)


def _measures(value: tuple[str, ...]) -> tuple[str, ...]:
    if twice := sorted({name for name in value if value.count(name) > 1}):
        raise ValueError(f"names {', '.join(twice)} more than once; name each measure once, in any spelling")
    return _not_empty(value)


def _protocol_fractions(value: Any, info: Info) -> Any:
    return PROTOCOLS.get(info.data.get("protocol", ""), value) if value is None else value


def _whole(value: Shares) -> Shares:
    if abs(sum(value) - 1) > 1e-9:
        raise ValueError(f"the fractions of training, validation and test set must add up to 1; got {value}")
    return value


class StudyPlan(Specification):
    """A study: every arm on every split of every data set, for every measure."""

    name: EntryName
    data: Annotated[tuple[Annotated[StudyData, _expanded("source")], ...], AfterValidator(_not_empty)]
    methods: Annotated[tuple[Annotated[Arm, _expanded("method")], ...], AfterValidator(_not_empty)]
    measures: Annotated[tuple[Annotated[str, BeforeValidator(_measure)], ...], AfterValidator(_measures)] = ("spd", "eod")
    splits: Annotated[int, Field(ge=1, le=1_000_000)] = 20
    first_seed: Annotated[int, Field(ge=0)] = 0
    protocol: Annotated[str, one_of("protocol", PROTOCOLS)] = "split"
    fractions: Annotated[Shares, BeforeValidator(_protocol_fractions), AfterValidator(_whole)] = Field(None, validate_default=True)
    privileged: Shares = PRIVILEGED  # with "balanced": the share of the reference group in each set
    performance: Annotated[str, one_of("performance measure", AT_THRESHOLD)] = "balanced_accuracy"
    model: Model = MLP  # or file.py:factory, or a backbone such as resnet-18
    pretrained: WeightsByModel = Field(default_factory=dict)  # initial weights by backbone: a file, or "imagenet"
    keep_networks: bool = True  # False: networks are deleted once all of their methods have finished
    training: TrainingSettings = Field(default_factory=dict)
    trainings: dict[EntryName, TrainingSettings] = Field(
        default_factory=dict
    )  # further recipes by name, for arms; they override `training`
    about: str = ""

    @model_validator(mode="after")
    def _entries(self, info: Info) -> Self:
        raise_all([*self._entry_problems(), *self._weight_problems((info.context or {}).get("folder"))])
        return self

    def _entry_problems(self) -> Iterator[str]:
        """Names that are used twice, and settings, limits and recipes for names that are not in the study."""
        data = [entry.name for entry in self.data]
        for kind, names in (("data", data), ("methods", [arm.name for arm in self.methods])):
            folded = [name.casefold() for name in names]
            duplicates = dict.fromkeys(name for name in names if folded.count(name.casefold()) > 1)
            yield from (f"{kind}: the name {name!r} is used more than once. Give each entry a unique name." for name in duplicates)
        for position, arm in enumerate(self.methods):
            where = f"methods[{position}]"
            for name in arm.overrides:
                if name not in data:
                    yield f"{where}.overrides: {name!r} is not among the data of this study.{_near_names(name, data)}"
            if arm.training and arm.training not in self.trainings:
                hint = (
                    _near_names(arm.training, self.trainings) if self.trainings else f" The study has none; add [trainings.{arm.training}]."
                )
                yield f"{where}.training: {arm.training!r} is none of the study's trainings.{hint}"
            for key, limits in (("min_performance", arm.min_performance), ("max_gap", arm.max_gap)):
                for name, table in limits.items():
                    if name not in (known := ("", *data, *self.measures)):
                        yield f"{where}.{key}: {name!r} is neither data nor a measure of this study.{_near_names(name, known[1:])}"
                    for measure in table.keys() - {"", *self.measures}:
                        yield f"{where}.{key}.{name}: {measure!r} is not a measure of this study.{_near_names(measure, self.measures)}"

    def _weight_problems(self, folder: Path | None) -> Iterator[str]:
        """Initial weights that no network would use, and files that do not exist."""
        models = [data.model or self.model for data in self.data]
        for position, (data, model) in enumerate(zip(self.data, models, strict=True)):
            if data.pretrained and model not in backbones():
                yield f"data[{position}].pretrained: only {', '.join(backbones())} start from a file; the model is {model!r}"
        for name in self.pretrained:
            if name and name not in backbones():
                yield f"pretrained: {name!r} is not a backbone.{_near_names(name, backbones())}"
            elif not any(model == name if name else model in backbones() for model in models):
                wanted = name or " or ".join(backbones())
                yield f"pretrained: none of the data has the model {wanted}. Name one with `model`, or leave it out."
        for file in {*self.pretrained.values(), *(data.pretrained for data in self.data)} - {"", PUBLISHED_WEIGHTS}:
            if folder is not None and not Path(file).is_file():
                yield f"no such file: {file}. Check the name; it is relative to {folder}."

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seed of each split."""
        return tuple(range(self.first_seed, self.first_seed + self.splits))

    def named(self, name: str) -> StudyData:
        """The data with this name."""
        return next(d for d in self.data if d.name == name)

    def recipe(self, data: str, name: str = "") -> dict[str, Any]:
        """The training settings for these data, updated by the named recipe."""
        return {**self.training, **self.named(data).training, **(self.trainings[name] if name else {})}

    def arm(self, name: str) -> Arm:
        """The arm with this name."""
        return next(a for a in self.methods if a.name == name)

    def network(self, name: str) -> Network:
        """The network for the data with this name."""
        data = self.named(name)
        model = data.model or self.model
        common = self.pretrained.get(model, self.pretrained.get("", ""))
        return Network(model, data.pretrained or (common if model in backbones() else ""))


def _near_names(name: object, valid: Iterable[str]) -> str:
    return f"{did_you_mean(name, valid)} Valid: {', '.join(valid)}."


def read_plan(source: str | Path) -> StudyPlan:
    """The plan of a preset (one of `PRESETS`), by name, or in a TOML file. Raises one error with every problem.

    >>> read_plan("paper-tabular").measures
    ('spd', 'eod')
    """
    path = Path(source)
    preset = str(source) in PRESETS
    if not preset and not path.is_file():
        if path.suffix == ".toml":
            raise BadInput(f"no such file: {path}. Name a TOML file, or one of the studies {', '.join(PRESETS)}.")
        raise UnknownName("study", str(source), [*PRESETS, "or a file that ends in .toml"])
    try:
        raw = tomllib.loads((PRESETS_FOLDER / f"{source}.toml" if preset else path).read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} is not a TOML file: {error}. Correct that place.") from error
    name, folder = (str(source), None) if preset else (path.stem, path.absolute().parent)
    return make_plan({"name": name, **raw}, source=str(source), folder=folder)


def make_plan(raw: Mapping[str, Any], *, source: str = "study", folder: Path | None = None) -> StudyPlan:
    """The plan in a dictionary, with the keys of a TOML file. Raises one error with every problem.

    - `source`: what the error names as the place of the problems.
    - `folder`: paths are relative to it, and the files must exist; without it, neither is checked.

    >>> make_plan({"name": "small", "data": ["compas"], "methods": ["standard"], "measures": ["eod"], "splits": 2}).seeds
    (0, 1)
    """
    try:
        return StudyPlan.model_validate(raw, context={"folder": folder})
    except ValidationError as error:
        raise BadInput(*specification_problems(error, StudyPlan, placed=True), source=source) from None


def narrow(
    plan: StudyPlan,
    *,
    splits: int | None = None,
    data: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    measures: Sequence[str] | None = None,
) -> StudyPlan:
    """The plan restricted to these splits and names. Raises one error with every unknown name.

    - `splits`: so many, counted from the first; more than the plan has are added.
    - `data`, `methods`, `measures`: names in the plan; all of them by default, except data that are marked as optional.

    >>> [arm.name for arm in narrow(read_plan("paper-tabular"), methods=["standard"]).methods]
    ['standard']
    """
    problems = []
    measures = None if measures is None else [_canonical(measure) for measure in measures]
    for kind, names, known in (
        ("data in this study", data, [d.name for d in plan.data]),
        ("method in this study", methods, [a.name for a in plan.methods]),
        ("measure in this study", measures, list(plan.measures)),
    ):
        problems += [p for name in names or () if name not in known for p in UnknownName(kind, name, known).problems]
    if splits is not None and splits < 1:
        problems.append(f"splits must be at least 1; got {splits}")
    raise_all(problems, plan.name)
    kept_data = [d for d in plan.data if (d.name in data if data else not d.optional)]
    kept_measures = [m for m in plan.measures if not measures or m in measures]
    arms = [a.narrowed([d.name for d in kept_data], kept_measures) for a in plan.methods if not methods or a.name in methods]
    recipes = {name: recipe for name, recipe in plan.trainings.items() if name in {a.training for a in arms}}
    return plan.changed(splits=splits or plan.splits, data=kept_data, methods=arms, measures=kept_measures, trainings=recipes)


def with_options(plan: StudyPlan, **options: Any) -> StudyPlan:
    """The plan with these options of data sets (arguments of `load`) set for every data set that has them.

    None leaves an option unchanged. Raises an error if no data set of the plan has an option.
    """
    new = {name: value for name, value in options.items() if value is not None}
    taken = [{name: new[name] for name in new.keys() & option_types(d.source).keys()} if d.source else {} for d in plan.data]
    listed = ", ".join(entry.name for entry in plan.data)
    unused = sorted(new.keys() - {name for some in taken for name in some})
    raise_all([f"{name} is an option of none of the data: {listed}. Leave it out." for name in unused], plan.name)
    return plan.changed(data=[d.changed(options={**d.options, **some}) if some else d for d, some in zip(plan.data, taken, strict=True)])


def with_initial_weights(plan: StudyPlan, weights: Sequence[str] | None) -> StudyPlan:
    """The plan with initial weights of backbones instead of its own.

    `weights` are texts such as resnet-18=file, or resnet-18=imagenet for the published ones; None lets all networks start from random ones.
    """
    if weights is None:
        return plan.changed(pretrained={}, data=[data.changed(pretrained="") for data in plan.data])
    pairs = [text.partition("=")[::2] for text in weights]
    names = [name for name, _ in pairs]
    problems = [f"expected weights as resnet-18=file; got {text!r}" for text, pair in zip(weights, pairs, strict=True) if not all(pair)]
    problems += [f"weights of {name} were given twice. Give each network once." for name in dict.fromkeys(names) if names.count(name) > 1]
    raise_all(problems, plan.name)
    new = {name: file if file == PUBLISHED_WEIGHTS else str(Path(file).absolute()) for name, file in pairs}
    raise_all([*plan.model_copy(update={"pretrained": new})._weight_problems(Path.cwd())], plan.name)
    return plan.model_copy(update={"pretrained": {**plan.pretrained, **new}}) if new else plan


TRAINING_EFFORT = 10.0  # of training a small network, on the scale of `METHODS[name].effort`
UNKNOWN_ROWS = 10_000


@dataclasses.dataclass(frozen=True)
class Task:
    """One task of a study. A task without a method trains the network of its split, by the named recipe if there is one."""

    data: str
    seed: int
    method: str = ""
    measure: str = ""
    recipe: str = ""

    @property
    def key(self) -> str:
        """The name of the task and of its file."""
        split = f"{self.data}@{self.seed:04d}"
        if self.method:
            return f"{split}@{self.method}@{self.measure}"
        return f"{split}@{self.recipe}" if self.recipe else split

    @property
    def training(self) -> "Task":
        """The task that trains the network of this split."""
        return Task(self.data, self.seed, recipe=self.recipe)

    def __str__(self) -> str:
        what = f"{self.method}, {self.measure}" if self.method else f"training{self.recipe and f' ({self.recipe})'}"
        return f"{self.data}, split {self.seed}: {what}"


@dataclasses.dataclass(frozen=True)
class StudyTask:
    """A task with its study."""

    plan: StudyPlan
    fingerprint: str
    version: str
    task: Task
    device: str | None = None  # where networks are computed; None: tables on the CPU, images on a GPU if there is one
    plugins: Mapping[str, bytes] = dataclasses.field(default_factory=dict)  # the source of each plug-in file by its path
    trained: Callable[[], bytes] | None = None  # reads the file of the network, which can be half a gigabyte; None to train it


@dataclasses.dataclass(frozen=True)
class TaskResult:
    """The result of a task: the content of its file, or what went wrong."""

    content: bytes | None = None
    problem: str = ""
    details: str = ""
    died: bool = False  # the worker ended; the task itself may be fine


def tasks_of(plan: StudyPlan) -> list[Task]:
    """All tasks of a study, each training before the tasks that need it."""
    tasks: list[Task] = []
    for data in plan.data:
        for seed in plan.seeds:
            methods = [Task(data.name, seed, arm.name, measure, arm.training) for arm in plan.methods for measure in plan.measures]
            tasks += [*dict.fromkeys(task.training for task in methods), *methods]
    return tasks


def task_cost(plan: StudyPlan, task: Task) -> float:
    """The approximate duration of a task, in arbitrary units."""
    data = plan.named(task.data)
    rows, features = UNKNOWN_ROWS, 50
    if data.source is not None:
        recipe = CATALOGUE[data.source]
        rows, features = int(data.options.get("n", recipe.rows)), recipe.features
    effort = METHODS[plan.arm(task.method).method].effort if task.method else TRAINING_EFFORT
    return effort * rows * (1 + features / 400)
