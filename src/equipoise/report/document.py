"""A result as sections, made once: headings, sentences, tables and figures, which pages, terminals and notebooks render.

Words are text in which names from users' files and emphasis are marked, so that each renderer can escape and shorten them in its own way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from equipoise import __version__
from equipoise.report.text import plain, short_name

if TYPE_CHECKING:
    from equipoise.measures import Estimate
    from equipoise.report.panels import Panel, Scale

Called = Callable[[str], str]  # from a group to the user's words for it


class Span(str):
    """Text of a kind: a "name" from a user's file, an element of HTML ("strong", "em", "code"), or a class of the style sheet."""

    __slots__ = ("kind",)
    kind: str

    def __new__(cls, text: object, kind: str = "name") -> Span:
        made = super().__new__(cls, text)
        made.kind = kind
        return made


Words: TypeAlias = "str | tuple[str, ...]"


def strong(text: str) -> Span:
    """Text that stands out."""
    return Span(text, "strong")


def spans(words: Words) -> list[tuple[str, str]]:
    """The kind and the text of each part; plain text has no kind."""
    return [(part.kind if isinstance(part, Span) else "", str(part)) for part in ((words,) if isinstance(words, str) else words)]


def text_of(words: Words) -> str:
    """Words as one line of plain text, with names shortened."""
    return "".join(short_name(text) if kind == "name" else plain(text) for kind, text in spans(words))


def joined(parts: Sequence[Words], between: str = "; ") -> tuple[str, ...]:
    """Words with a separator between them."""
    return tuple(span for k, part in enumerate(parts) for span in ((between,) if k else ()) + ((part,) if isinstance(part, str) else part))


@dataclass(frozen=True)
class Cell:
    """A cell of a table: words, or a value with its interval. `style` is a class; "shown" stands out."""

    words: Words = ""
    value: Estimate | None = None
    kind: str = "share"  # how numbers are written, see `text.amount`
    style: str = ""
    tag: str = ""  # a label behind the words, such as "reference"
    means: Words = ""  # in small print
    wide: int = 1  # columns
    href: str = ""
    deep: int | None = None  # percent of a colour behind it


@dataclass(frozen=True)
class Column:
    """The head of a column. `short` stands next to each value on a phone; a terminal narrower than `least` leaves the column out."""

    head: Words
    short: str = ""
    style: str = ""
    least: int = 0


@dataclass(frozen=True)
class Block:
    """Rows of a table with a heading of their own, and an axis if their values are drawn."""

    rows: Sequence[tuple[Cell, ...]]
    heading: Words = ""
    means: Words = ""
    scale: Scale | None = None
    style: str = ""


@dataclass(frozen=True)
class Table:
    """A table. The first cell of a row is its name; values are drawn on the axis of the table, or of their block, if it has one."""

    part: ClassVar[str] = "table"
    caption: Words
    columns: Sequence[Column]
    blocks: Sequence[Block]
    style: str = ""
    id: str = ""
    by: str = ""  # what the headings of blocks are
    units: str = ""  # behind the caption where numbers have no unit of their own
    scale: Scale | None = None
    over: Sequence[tuple[str, int, str]] = ()  # heads above heads: text, columns and style
    grid: bool = False  # in a terminal, one row per block and one column per row

    def only(self, *places: int) -> Table:
        """The table with some of its columns."""
        blocks = [replace(block, rows=[_picked(row, places) for row in block.rows]) for block in self.blocks]
        return replace(self, columns=[self.columns[place] for place in places], blocks=blocks)

    def flat(self) -> Table:
        """The table with the headings of its blocks in a first column."""
        rows = [(Cell(block.heading, means=block.means), *row) for block in self.blocks for row in block.rows]
        return replace(self, columns=[Column(self.by), *self.columns], blocks=[Block(rows)], by="", scale=None)

    def turned(self, start: int = 0, stop: int | None = None) -> Table:
        """A table with one value per row, as a grid with one row per block, and one column per row from `start` to `stop`."""
        heads = [Column(self.by), *(Column(labelled(row[0])) for row in self.blocks[0].rows[start:stop])]
        rows = [(Cell(block.heading), *(row[1] for row in block.rows[start:stop])) for block in self.blocks]
        return replace(self, columns=heads, blocks=[Block(rows)], by="", grid=False)


def _picked(row: tuple[Cell, ...], places: Sequence[int]) -> tuple[Cell, ...]:
    at, picked = 0, []
    for cell in row:
        if at in places:
            picked.append(cell)
        at += cell.wide
    return tuple(picked)


def table(caption: Words, columns: Sequence[Any], rows: Iterable[Sequence[Any]], **more: Any) -> Table:
    """A table of one block; words stand for columns and cells without anything else."""
    heads = [column if isinstance(column, Column) else Column(column) for column in columns]
    return Table(caption, heads, [Block([tuple(cell if isinstance(cell, Cell) else Cell(cell) for cell in row) for row in rows])], **more)


def labelled(cell: Cell) -> tuple[str, ...]:
    """The words of a cell with its label in brackets."""
    return joined([cell.words, f" ({cell.tag})" if cell.tag else ""], "")


@dataclass(frozen=True)
class Text:
    """A paragraph. `style` is a class: the "lead", a "callout", "notes", or "warning", which is a callout too."""

    part: ClassVar[str] = "text"
    words: Words
    style: str = ""
    id: str = ""
    data: tuple[str, str] | None = None  # name and value of a data attribute


@dataclass(frozen=True)
class Items:
    """A list of notes."""

    part: ClassVar[str] = "items"
    items: Sequence[Words]
    style: str = "notes"


@dataclass(frozen=True)
class Heading:
    """A heading within a section."""

    part: ClassVar[str] = "heading"
    words: Words


@dataclass(frozen=True)
class Figures:
    """Panels side by side."""

    part: ClassVar[str] = "figures"
    panels: Sequence[Panel]


@dataclass(frozen=True)
class Folded:
    """Parts that a page shows on request."""

    part: ClassVar[str] = "folded"
    summary: Words
    parts: Sequence[Part]


@dataclass(frozen=True)
class Fixed:
    """Fixed text and controls of a page, from the macro of this name in its template."""

    part: ClassVar[str] = "fixed"
    name: str


Part: TypeAlias = "Table | Text | Items | Heading | Figures | Folded | Fixed"


@dataclass(frozen=True)
class Section:
    """A section of a page. With a `hint` it is folded, for engineers and statisticians."""

    anchor: str
    heading: str
    hint: str
    parts: Sequence[Part]
    on_paper: bool = True


@dataclass(frozen=True)
class Document:
    """A result as a page: its sections, and the values in the fixed text of its template."""

    template: str
    kind: str
    title: str
    sections: Sequence[Section]
    values: Mapping[str, Any]
    called: Called = str
    few: str = ""  # the meaning of the mark of few patients
    scripts: Sequence[str] = ("page.js",)
    data: object = None  # for the scripts
    contents: bool = True  # whether sections are numbered and listed
    version: str = __version__


def outcome(style: str, text: str) -> Text:
    """The answer of a page: its first word on a plain ground, so that nothing depends on colour, then the rest of the sentence."""
    first, _, rest = text.partition(": ")
    return Text((strong(f"{first}:"), f" {rest}"), f"lead outcome outcome-{style}", data=("outcome", style))
