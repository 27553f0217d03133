"""The tasks of a study: which there are, what each needs, and roughly how long each takes compared with the others."""

from dataclasses import dataclass

from equipoise.data import CATALOGUE
from equipoise.methods import METHODS
from equipoise.study.plan import Plan
from equipoise.study.sources import FromSource

TRAINING_EFFORT = 10.0  # of training a small network, next to `METHODS[name].effort`
UNKNOWN_ROWS = 10_000


@dataclass(frozen=True)
class Task:
    """One task of a study. Without a method it trains the networks of its block, by the recipe of that name if it has one."""

    data: str
    seeds: tuple[int, ...]
    method: str = ""
    measure: str = ""
    recipe: str = ""

    @property
    def key(self) -> str:
        """Its name, also the name of its file."""
        block = f"{self.data}@{self.seeds[0]:04d}-{self.seeds[-1]:04d}"
        if self.method:
            return f"{block}@{self.method}@{self.measure}"
        return f"{block}@{self.recipe}" if self.recipe else block

    @property
    def training(self) -> "Task":
        """The task that trains the networks of the same block."""
        return Task(self.data, self.seeds, recipe=self.recipe)

    def __str__(self) -> str:
        what = f"{self.method}, {self.measure}" if self.method else f"training{self.recipe and f' ({self.recipe})'}"
        return f"{self.data}, splits {self.seeds[0]}-{self.seeds[-1]}: {what}"


@dataclass(frozen=True)
class Work:
    """A task and the study that it belongs to."""

    plan: Plan
    fingerprint: str
    version: str
    task: Task
    device: str | None = None  # where networks are computed; None: tables on the CPU, images on a GPU if there is one


@dataclass(frozen=True)
class Outcome:
    """The result of a task: the content of its file, or what went wrong."""

    content: bytes | None = None
    problem: str = ""
    details: str = ""
    died: bool = False  # the worker ended; the task itself may be fine


def tasks_of(plan: Plan) -> list[Task]:
    """All tasks of a study, each training before the tasks that need it."""
    found = []
    for data in plan.data:
        for start in range(0, plan.splits, plan.stack):
            seeds = plan.seeds[start : start + plan.stack]
            methods = [Task(data.name, seeds, arm.name, measure, arm.training) for arm in plan.methods for measure in plan.measures]
            found += [*dict.fromkeys(task.training for task in methods), *methods]
    return found


def cost(plan: Plan, task: Task) -> float:
    """Roughly how long a task takes, in arbitrary units."""
    data = plan.named(task.data)
    rows, features = UNKNOWN_ROWS, 50
    if isinstance(data, FromSource) and data.source in CATALOGUE:
        recipe = CATALOGUE[data.source]
        rows, features = int(data.options.get("n", recipe.rows)), recipe.features
    effort = METHODS[plan.arm(task.method).method].effort if task.method else TRAINING_EFFORT
    return effort * rows * (1 + features / 400) * len(task.seeds)
