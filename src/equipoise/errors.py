"""What can go wrong with what a user hands in: each message states what was expected, what was found, where, and what to do next."""

import importlib.util
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from signal import SIGINT
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import ValidationError

STOPPED = 128 + SIGINT  # the exit code of an interrupted command


class EquipoiseError(Exception):
    """Anything that Equipoise raises on purpose. The command line turns it into one message and exit code 2."""

    def __reduce__(self) -> tuple[Any, ...]:
        """As Python pickles any object, since an error must come back whole from another process, whatever it was made of."""
        return _made_again, (type(self), self.args), self.__dict__


def _made_again(kind: type[EquipoiseError], told: tuple[Any, ...]) -> EquipoiseError:
    return kind.__new__(kind, *told)


class BadInput(EquipoiseError, ValueError):
    """One or more problems of an input, all in one message.

    >>> print(BadInput("no column 'sex'", "score above 1", source="scores.csv"))
    2 problems in scores.csv:
    - no column 'sex'
    - score above 1

    `advice` concerns all of the problems and is not counted as one of them. In `problems` it follows the last one, so that it is not lost
    where they are listed with others.
    """

    def __init__(self, *problems: str, source: str = "", advice: str = "") -> None:
        self.problems = problems
        if advice and problems:
            self.problems = (*problems[:-1], f"{problems[-1].rstrip('.')}. {advice}")
        where = f" in {source}" if source else ""
        if len(problems) == 1:
            text = f"{source}: {self.problems[0]}" if source else self.problems[0]
        else:
            text = "\n".join([f"{len(problems)} problems{where}:", *(f"- {p}" for p in problems), *([advice] if advice else [])])
        super().__init__(text)


class Untrusted(BadInput):
    """Code that a folder names would have to be run, without having been asked for."""


class EmptyCell(BadInput):
    """A measure needs samples in a cell (group, label) that has none."""


class TooFewPatients(EmptyCell):
    """A cell (group, label) that a goal needs has too few patients for any claim."""


class UnknownName(BadInput):
    """A name that is not in a closed list: a measure, a method, a data set, a group."""

    def __init__(self, kind: str, name: object, valid: Iterable[object]) -> None:
        choices = [str(v) for v in valid]
        super().__init__(f"unknown {kind} {name!r}.{did_you_mean(name, choices)} Valid: {', '.join(choices) or '(none)'}.")


class Misuse(BadInput, TypeError):
    """A call with the wrong kind of thing; the message names the right call.

    >>> print(Misuse("eq.split", "a Cohort", 3, {"int": "Make one first."}))
    eq.split takes a Cohort; got int. Make one first.
    """

    def __init__(self, call: str, wanted: str, given: object, instead: Mapping[str, str] | None = None) -> None:
        kinds = [kind.__name__ for kind in type(given).__mro__]
        advice = next((told for kind in kinds if (told := (instead or {}).get(kind))), "")
        super().__init__(f"{call} takes {wanted}; got {kinds[0]}.{f' {advice}' if advice else ''}")


class MissingExtra(EquipoiseError, ImportError):
    """An optional dependency is not installed; the message holds the pip command."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs {package}, which is not installed: pip install 'equipoise[{extra}]'")


EXTRAS = {  # the extra of each package that not every use needs
    **dict.fromkeys(("torch", "torchvision", "safetensors", "PIL"), "torch"),
    "pyarrow": "parquet",
    "duckdb": "tables",
    "psycopg": "postgresql",
}


@contextmanager
def needing(purpose: str, extra: str = "") -> Iterator[None]:
    """Raises `MissingExtra` with the pip command if a package of an extra is imported in the block and is not installed.

    >>> with needing("a network"):
    ...     raise ModuleNotFoundError(name="torch")
    Traceback (most recent call last):
    equipoise.errors.MissingExtra: a network needs torch, which is not installed: pip install 'equipoise[torch]'
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        if package not in EXTRAS:
            raise
        raise MissingExtra(PACKAGES.get(package, package), extra or EXTRAS[package], purpose) from error


def did_you_mean(name: object, choices: Iterable[str], cutoff: float = 0.5) -> str:
    """A hint at the choice nearest to a name, whatever its case; empty where none is near.

    >>> did_you_mean("COMPAS", ["adult", "compas"])
    " Did you mean 'compas'?"
    """
    folded = {choice.casefold(): choice for choice in choices}
    near = get_close_matches(str(name).casefold(), folded, n=1, cutoff=cutoff)
    return f" Did you mean {folded[near[0]]!r}?" if near else ""


def first_line(error: BaseException) -> str:
    """The first line of what an error says, without the full stop at its end; the name of its kind where it says nothing.

    >>> first_line(OSError("no space left.\\nmore")), first_line(ValueError())
    ('no space left', 'ValueError')
    """
    lines = str(error).strip().splitlines()
    return lines[0].strip().rstrip(".") if lines else type(error).__name__


def pick(kind: str, name: str, valid: Iterable[str]) -> str:
    """The name itself if it is in the list, otherwise an error that names the closest one."""
    choices = list(valid)
    if name not in choices:
        raise UnknownName(kind, name, choices)
    return name


@contextmanager
def collecting(problems: list[str]) -> Iterator[None]:
    """Adds the problems of a BadInput in the block to the list instead of raising it."""
    try:
        yield
    except BadInput as error:
        problems += error.problems


def raise_all(problems: Sequence[str], source: str = "") -> None:
    """Raises every collected problem at once; does nothing if there is none."""
    if problems:
        raise BadInput(*problems, source=source)


def validation_problems(error: "ValidationError", skip: int = 1) -> list[str]:
    """The problems in a pydantic error: key, expectation and value. The first `skip` parts of a location are not keys."""
    problems = []
    for problem in error.errors(include_url=False):
        key = ".".join(map(str, problem["loc"][skip:]))
        message = problem["msg"].removeprefix("Value error, ")
        message = f"{message[:1].lower()}{message[1:]}"
        if problem["type"] not in ("missing", "value_error"):
            message += f"; got {str(problem['input'])[:60]!r}"
        problems.append(f"{key}: {message}" if key else message)
    return problems


PACKAGES = {"sklearn": "scikit-learn", "PIL": "pillow", "cv2": "opencv-python", "skimage": "scikit-image", "yaml": "pyyaml"}


def pip_advice(error: ModuleNotFoundError) -> str:
    """The pip command for a library that is not installed, as an addition to a message; empty if the name is not that of a library.

    >>> pip_advice(ModuleNotFoundError(name="nowhere_to_be_found.layers"))
    ' It needs the library nowhere_to_be_found, which is not installed: pip install nowhere_to_be_found'
    """
    module = (error.name or "").partition(".")[0]
    if not module or importlib.util.find_spec(module) is not None:
        return ""
    package = PACKAGES.get(module, module)
    return f" It needs the library {package}, which is not installed: pip install {package}"
