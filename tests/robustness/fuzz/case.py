"""One mutated input: the command to run on it, and the oracle that judges what came of it."""

from collections.abc import Callable
from dataclasses import dataclass

UNKNOWN = ""  # what an oracle returns where nothing is wrong


@dataclass(frozen=True)
class Outcome:
    """What a command did. `trace` is that of an exception that left the command, which a user would see as a traceback."""

    code: int
    out: str
    err: str
    trace: str = ""


@dataclass(frozen=True)
class Case:
    """A mutated input in the working folder. `judge` returns what is wrong with an outcome of exit code 0, or nothing."""

    what: str  # the mutation, in a few words
    command: list[str]
    judge: Callable[[Outcome], str]


def refused(outcome: Outcome) -> str:
    """The judgement of an input that must not be accepted."""
    return f"accepted with exit code {outcome.code}"


def anything(_: Outcome) -> str:
    """The judgement where any answer is right."""
    return UNKNOWN
