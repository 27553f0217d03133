"""Names that look alike: groups or patient ids that differ only in case, blanks, invisible characters or Unicode form.

They are different names and are never merged, since a value from a table is not reinterpreted. But they may be one group or patient that
two programs wrote differently, which cannot be seen on a screen.
"""

import logging
import re
import unicodedata
from collections.abc import Callable, Iterable

log = logging.getLogger(__name__)

SHOWN = 3  # sets of alike names in a warning
MOST = 2**17  # ids of a table read in batches that are kept for the comparison
UNUSUAL = re.compile(r"[^\x21-\x7e]")  # anything but visible ASCII characters
CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f\x7f-\x9f]")  # except blanks
DIFFERENCE = "that differ only in case, blanks, invisible characters or Unicode form and are kept apart"


def alike_names(names: Iterable[str]) -> list[list[str]]:
    """The sets of different names that are alike, each in alphabetical order.

    >>> alike_names(["F", "f", "M", "M ", "x"])
    [['F', 'f'], ['M', 'M ']]
    """
    names = list(names)
    if _all_distinct(names):
        return []
    sets: dict[str, set[str]] = {}
    for name in names:
        sets.setdefault(folded(name), set()).add(name)
    return sorted(sorted(alike) for alike in sets.values() if len(alike) > 1)


def folded(name: str) -> str:
    """The name in lower case, in a fixed Unicode form, without invisible characters and blanks around it.

    >>> folded("Zu\\u0308rich\\u200b ") == folded("Z\\u00dcRICH")
    True
    """
    if not name.isascii():
        name = unicodedata.normalize("NFKC", name)
        name = "".join(c for c in CONTROL.sub("", name) if unicodedata.category(c) != "Cf" and not "\ufe00" <= c <= "\ufe0f")
        return " ".join(unicodedata.normalize("NFKC", name.casefold()).split())
    return (" ".join(CONTROL.sub("", name).split()) if UNUSUAL.search(name) else name).lower()


def _all_distinct(names: list[str]) -> bool:
    """Whether no two names can be alike, as of visible ASCII characters in one case. Takes a fraction of the time to fold them."""
    joined = "".join(names)
    return joined.isascii() and not UNUSUAL.search(joined) and joined in (joined.lower(), joined.upper())


def warn_of_alike_patients(sets: list[list[str]], column: str) -> None:
    """Logs a warning that names patient ids which are alike, if there are any."""
    if sets:
        log.warning(
            "patient column %r holds ids %s: %s. If they are of one patient, correct the table, since intervals are too narrow otherwise",
            column,
            DIFFERENCE,
            listed(sets),
        )


def listed(sets: list[list[str]]) -> str:
    """Sets of alike names, for a message, with characters escaped where they are the difference.

    >>> listed([["F", "f"], ["\\u00e9", "e\\u0301"]])
    "'F', 'f'; '\\\\xe9', 'e\\\\u0301'"
    """

    def shown(alike: list[str]) -> str:
        visible = len({unicodedata.normalize("NFC", name) for name in alike}) == len(alike)
        return ", ".join(map(repr if visible else ascii, alike))

    more = f"; and {len(sets) - SHOWN:,} more" if len(sets) > SHOWN else ""
    return "; ".join(map(shown, sets[:SHOWN])) + more


class AlikeIds:
    """The ids of a table that is read in batches, as far as they may be alike: those that folding changes.

    Of two ids that are alike, at least one differs from their common folded form. The form has the case of most ids in the first batch, so
    that few ids differ from it.
    """

    def __init__(self) -> None:
        self.changed: dict[str, set[str]] = {}  # by their folded form
        self.case: Callable[[str], str] | None = None

    def add(self, ids: list[str]) -> None:
        """Adds the different ids of a batch."""
        joined = "".join(ids)
        if self.case is None:
            some = joined[:10_000]
            self.case = str.upper if sum(map(str.isupper, some)) > sum(map(str.islower, some)) else str.lower
        if len(self.changed) >= MOST or (joined.isascii() and joined == self.case(joined) and not UNUSUAL.search(joined)):
            return
        for name in ids:
            if (form := self.case(folded(name))) != name:
                self.changed.setdefault(form, set()).add(name)

    def sets(self, unchanged: Iterable[str]) -> list[list[str]]:
        """The sets of alike ids, given those of the folded forms that are ids themselves."""
        for name in unchanged:
            self.changed[name].add(name)
        return sorted(sorted(alike) for alike in self.changed.values() if len(alike) > 1)
