"""Names that are alike: groups or patient ids that differ only in case, blanks, invisible characters or Unicode form.

They are different names and are never merged, since a value from a table is not reinterpreted. But they may be one group or patient that
two programs wrote differently, which cannot be seen on a screen.
"""

import logging
import re
import unicodedata
from collections.abc import Callable, Iterable

log = logging.getLogger(__name__)

SHOWN = 3  # sets of alike names in a warning
MOST = 2**18  # ids of a table read in batches that are kept for the comparison
UNUSUAL = re.compile(r"[^\x21-\x7e]")  # anything but visible ASCII characters
INVISIBLE = re.compile(  # control characters but blanks, format characters such as a zero-width space, variation selectors
    "[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\xad\u0600-\u0605\u061c\u06dd\u070f\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f"
    "\ufeff\ufff9-\ufffb\U000e0001-\U000e01ef]"
)
BLANKS = re.compile(r"[^\S\n]+")
DIFFERENCE = "that differ only in case, blanks, invisible characters or Unicode form and are kept apart"


def alike_names(names: Iterable[str]) -> list[list[str]]:
    """The sets of different names that are alike, each in alphabetical order.

    >>> alike_names(["F", "f", "M", "M ", "x"])
    [['F', 'f'], ['M', 'M ']]
    """
    names = list(names)
    joined = "".join(names)
    if not _is_unusual(joined) and joined in (joined.lower(), joined.upper()):  # takes a tenth of the time of folding
        return []
    forms = _folded(names)
    if len(set(forms)) == len(names):
        return []
    sets: dict[str, list[str]] = {}
    for name, form in zip(names, forms, strict=True):
        sets.setdefault(form, []).append(name)
    return sorted(sorted(alike) for alike in sets.values() if len(alike) > 1)


def _is_unusual(text: str) -> bool:
    """Whether a text has any but visible ASCII characters."""
    return not text.isascii() or UNUSUAL.search(text) is not None


def _folded(names: list[str]) -> list[str]:
    """The names in lower case, in a fixed Unicode form, without invisible characters and blanks around them; all in one text, for speed."""
    text = "\n".join(name.replace("\n", " ") if "\n" in name else name for name in names)
    if not _is_unusual(text.replace("\n", "")):
        return text.lower().split("\n")
    text = unicodedata.normalize("NFKC", INVISIBLE.sub("", unicodedata.normalize("NFKC", text)).casefold())
    return [line.strip() for line in BLANKS.sub(" ", text).split("\n")]


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
        if len(self.changed) >= MOST or (not _is_unusual(joined) and joined == self.case(joined)):
            return
        for name, form in zip(ids, map(self.case, _folded(ids)), strict=True):
            if form != name:
                self.changed.setdefault(form, set()).add(name)

    def sets(self, unchanged: Iterable[str]) -> list[list[str]]:
        """The sets of alike ids, given those of the folded forms that are ids themselves."""
        for name in unchanged:
            self.changed[name].add(name)
        return sorted(sorted(alike) for alike in self.changed.values() if len(alike) > 1)
