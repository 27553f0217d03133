"""Progress bars of long work: a function from the name of a task to a context that yields a function of the work done and the total."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

Bars = Callable[[str], AbstractContextManager[Callable[[int, int], None]]]


def no_bars(_: str) -> AbstractContextManager[Callable[[int, int], None]]:
    """No progress bars."""
    return nullcontext(lambda _done, _total: None)


def counting(bars: Bars) -> Callable[[str, int], AbstractContextManager[Callable[[int], None]]]:
    """Progress bars for work that reports increments, as `data.read_cohort` takes them: from the name of a task and its total.

    >>> with counting(no_bars)("reading images", 20) as advance:
    ...     advance(5)
    """

    @contextmanager
    def count(what: str, total: int) -> Iterator[Callable[[int], None]]:
        done = 0
        with bars(what) as step:

            def advance(increment: int) -> None:
                nonlocal done
                done += increment
                step(done, total)

            yield advance

    return count
