"""The plan of a study as validated dataclasses (data, arms, splits, measures, training), and its tasks. An arm is a method with settings.

Pydantic checks the types and collects every problem; `reading` turns them into messages. Nothing here is imported by `import equipoise`.
"""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, get_type_hints

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator, field_validator
from pydantic.dataclasses import dataclass
from pydantic_core.core_schema import ValidationInfo

from equipoise.errors import BadInput, raise_all
from equipoise.measures import AT_THRESHOLD, canonical_name
from equipoise.methods import DEFAULT_SELECTION, METHODS, SELECTIONS, Goal
from equipoise.studies.catalogue import CATALOGUE
from equipoise.studies.networks import MLP, Network, backbones
from equipoise.studies.sources import STRICT, Data, FromFile, FromSource, Model, Name, Recipe, one_of, parse_values

Limit = float | Mapping[str, float | Mapping[str, float]]  # one number, or by data and measure
PROTOCOLS = {  # ways to split: the default fractions of training, validation and test set
    "split": (0.6, 0.2, 0.2),
    "balanced": (0.5, 0.25, 0.25),  # the paper's chest X-rays: equal numbers of both labels, groups in the shares of `privileged`
    "folds": (0.6, 0.2, 0.2),  # five folds by patient, test sets unchanged: five splits make one cross-validation, and are pooled
}


def _check_limits(value: Any) -> Limit | None:
    table = value if isinstance(value, Mapping) else {"": value}
    numbers = [v for entry in table.values() for v in (entry.values() if isinstance(entry, Mapping) else (entry,))]
    if value is not None and not all(isinstance(v, (int, float)) and not isinstance(v, bool) and 0 <= v <= 1 for v in numbers):
        raise ValueError(f"should be a number from 0 to 1, or a table of them by data, by measure or by both; got {value!r}")
    return value  # type: ignore[no-any-return]


def _not_empty(value: tuple[Any, ...]) -> tuple[Any, ...]:
    if not value:
        raise ValueError("is empty; name at least one")
    return value


def _no_duplicates(value: tuple[str, ...]) -> tuple[str, ...]:
    if twice := sorted({name for name in value if value.count(name) > 1}):
        raise ValueError(f"names {', '.join(twice)} more than once; name each measure once, in any spelling")
    return _not_empty(value)


def _canonical_measure(value: Any) -> str:
    """The canonical name of a measure or of a signed sum of rates."""
    if not isinstance(value, (str, Mapping)):
        raise ValueError(f"should be a measure or a signed sum of rates such as 'tpr-fpr'; got {value!r}")
    return canonical_name(value)


Limits = Annotated[Limit | None, PlainValidator(_check_limits)]


@dataclass(frozen=True, config=STRICT)
class Arm:
    """A method with settings and a goal. Several arms may use the same method under different names."""

    method: Annotated[str, one_of("method", METHODS)]
    name: Name = ""
    settings: dict[str, Any] = Field(default_factory=dict)
    overrides: dict[str, dict[str, Any]] = Field(default_factory=dict)  # further settings by name of data
    min_performance: Limits = None
    max_gap: Limits = None
    selection: Annotated[str, one_of("selection", SELECTIONS)] = DEFAULT_SELECTION
    max_loss: float | None = None  # of performance compared with the original, where there is neither min_performance nor max_gap
    train: bool = False  # whether the method also gets the training set; methods that train from scratch always do
    training: str = ""  # the recipe, one of the study's `trainings`, by which the networks of this arm are trained

    @field_validator("settings")
    @classmethod
    def _settings(cls, raw: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        method = info.data.get("method")
        return raw if method is None else _parse_settings(method, raw, {})

    @field_validator("overrides")
    @classmethod
    def _overrides(cls, raw: dict[str, dict[str, Any]], info: ValidationInfo) -> dict[str, dict[str, Any]]:
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
    def _max_loss(cls, value: float | None, info: ValidationInfo) -> float | None:
        if value is not None and not 0 <= value <= 1:
            raise ValueError(f"should be a number from 0 to 1; got {value}")
        combined = [key for key in ("min_performance", "max_gap") if isinstance(info.data.get(key), (int, float))]
        if value is not None and combined:
            raise ValueError(f"max_loss cannot be combined with min_performance or max_gap; this arm has {' and '.join(combined)}")
        return value

    @field_validator("train")
    @classmethod
    def _train(cls, value: bool, info: ValidationInfo) -> bool:
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
        least, most = limit(self.min_performance, data, measure), limit(self.max_gap, data, measure)
        loss = self.max_loss if least is None and most is None else None  # a table of limits may leave some data out
        return Goal(measure, performance=performance, min_performance=least, max_gap=most, selection=self.selection, max_loss=loss)


def _parse_settings(method: str, raw: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    kind = METHODS[method].settings
    values = parse_values(f"setting of {method}", raw, {f.name: get_type_hints(kind)[f.name] for f in dataclasses.fields(kind)})
    kind(**{**others, **values})  # checks values and combinations
    return values


def limit(limits: Limit | None, data: str, measure: str) -> float | None:
    """The limit for these data and this measure, or None.

    >>> least = {"adult": {"spd": 0.52, "eod": 0.75}, "eod": 0.6}
    >>> limit(least, "adult", "eod"), limit(least, "bank", "eod"), limit(0.7, "bank", "spd")
    (0.75, 0.6, 0.7)
    """
    if not isinstance(limits, Mapping):
        return limits
    for key in (data, measure):
        entry = limits.get(key)
        number = entry.get(measure) if isinstance(entry, Mapping) else entry
        if number is not None:
            return float(number)
    return None


@dataclass(frozen=True, config=STRICT)
class Plan:
    """A study: every arm on every split of every data set, for every measure."""

    name: Name
    data: Annotated[tuple[Data, ...], AfterValidator(_not_empty)]
    methods: Annotated[tuple[Arm, ...], AfterValidator(_not_empty)]
    measures: Annotated[tuple[Annotated[str, BeforeValidator(_canonical_measure)], ...], AfterValidator(_no_duplicates)] = ("spd", "eod")
    splits: Annotated[int, Field(ge=1, le=1_000_000)] = 20
    first_seed: Annotated[int, Field(ge=0)] = 0
    protocol: Annotated[str, one_of("protocol", PROTOCOLS)] = "split"
    fractions: tuple[float, float, float] = PROTOCOLS["split"]
    privileged: tuple[float, float, float] = (0.75, 0.5, 0.5)  # with "balanced": the share of the reference group in each set
    performance: Annotated[str, one_of("performance measure", AT_THRESHOLD)] = "balanced_accuracy"
    model: Model = MLP  # or file.py:factory, or a backbone such as resnet-18
    pretrained: str | dict[str, str] = ""  # initial weights of backbones (a file, or "imagenet"), or a table by backbone
    keep_networks: bool = True  # False: networks are deleted once all of their methods have finished
    training: Recipe = Field(default_factory=dict)
    trainings: dict[Name, Recipe] = Field(default_factory=dict)  # further recipes by name, for arms; they override `training`
    about: str = ""

    @field_validator("fractions")
    @classmethod
    def _fractions(cls, value: tuple[float, float, float]) -> tuple[float, float, float]:
        if min(value) <= 0 or abs(sum(value) - 1) > 1e-9:
            raise ValueError(
                f"fractions must be three positive numbers that add up to 1, for training, validation and test set; got {value}"
            )
        return value

    @field_validator("privileged")
    @classmethod
    def _privileged(cls, value: tuple[float, float, float]) -> tuple[float, float, float]:
        if not all(0 < share < 1 for share in value):
            raise ValueError(f"privileged must be three shares between 0 and 1, for training, validation and test set; got {value}")
        return value

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seed of each split."""
        return tuple(range(self.first_seed, self.first_seed + self.splits))

    def named(self, name: str) -> FromSource | FromFile:
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
        common = self.pretrained if isinstance(self.pretrained, str) else self.pretrained.get(model, "")
        return Network(model, data.pretrained or (common if model in backbones() else ""))


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
class Work:
    """A task with its study."""

    plan: Plan
    fingerprint: str
    version: str
    task: Task
    device: str | None = None  # where networks are computed; None: tables on the CPU, images on a GPU if there is one


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The result of a task: the content of its file, or what went wrong."""

    content: bytes | None = None
    problem: str = ""
    details: str = ""
    died: bool = False  # the worker ended; the task itself may be fine


def tasks_of(plan: Plan) -> list[Task]:
    """All tasks of a study, each training before the tasks that need it."""
    tasks: list[Task] = []
    for data in plan.data:
        for seed in plan.seeds:
            methods = [Task(data.name, seed, arm.name, measure, arm.training) for arm in plan.methods for measure in plan.measures]
            tasks += [*dict.fromkeys(task.training for task in methods), *methods]
    return tasks


def cost(plan: Plan, task: Task) -> float:
    """The approximate duration of a task, in arbitrary units."""
    data = plan.named(task.data)
    rows, features = UNKNOWN_ROWS, 50
    if isinstance(data, FromSource) and data.source in CATALOGUE:
        recipe = CATALOGUE[data.source]
        rows, features = int(data.options.get("n", recipe.rows)), recipe.features
    effort = METHODS[plan.arm(task.method).method].effort if task.method else TRAINING_EFFORT
    return effort * rows * (1 + features / 400)
