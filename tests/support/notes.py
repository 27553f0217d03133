"""Notes of a repair in tests: a note by its kind."""

from collections.abc import Iterable

from equipoise.methods import Note


def note_of(notes: Iterable[Note], kind: str) -> Note:
    """The only note of this kind."""
    (found,) = (note for note in notes if note.kind == kind)
    return found
