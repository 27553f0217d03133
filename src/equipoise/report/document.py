"""A result as sections, made once: headings, sentences, tables and figures, which pages, terminals and notebooks render.

Words are text in which names from users' files and emphasis are marked, so that each renderer can escape and shorten them in its own way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from equipoise import __version__
from equipoise.report.text import Span, number, plain, short_name

if TYPE_CHECKING:
    from equipoise.measures import Estimate
    from equipoise.report.panels import Panel

Called = Callable[[str], str]  # from a group to the user's words for it


Words: TypeAlias = "str | tuple[str, ...]"


def spans(words: Words) -> list[tuple[str, str]]:
    """The kind and the text of each part; plain text has no kind."""
    return [(part.kind if isinstance(part, Span) else "", str(part)) for part in ((words,) if isinstance(words, str) else words)]


def text_of(words: Words) -> str:
    """Words as one line of plain text, with names shortened."""
    return "".join(short_name(text) if kind == "name" else plain(text) for kind, text in spans(words))


def joined(parts: Sequence[Words], between: str = "; ") -> tuple[str, ...]:
    """Words with a separator between them."""
    made: list[str] = []
    for k, part in enumerate(parts):
        made += [between] if k and between else []
        made += [part] if isinstance(part, str) else part
    return tuple(made)


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
class Scale:
    """The axis on which values of a table are drawn; places are in percent of its width."""

    low: float
    high: float
    kind: str

    @classmethod
    def of(cls, estimates: Iterable[Estimate], kind: str) -> Scale:
        """An axis with all estimates and their simultaneous intervals: round numbers in the possible range, wide enough to read."""
        ends = [end for e in estimates for end in (e.value, e.low, e.high, e.simultaneous_low, e.simultaneous_high) if end == end]
        low, high = (min(ends), max(ends)) if ends else (0.0, 1.0)
        if kind == "number":  # a slope with the target 1
            return cls(math.floor(min(low, 0.9) * 5) / 5, math.ceil(max(high, 1.1) * 5) / 5, kind) if ends else cls(0.0, 2.0, kind)
        if kind in ("points", "signed"):
            reach = math.ceil(max(abs(low), abs(high), 0.05) * 1.08 * 20) / 20 if ends else 0.5
            return cls(-reach, reach, kind)
        low, high = (max(0.0, math.floor((low - 0.02) * 10) / 10), min(1.0, math.ceil((high + 0.02) * 10) / 10)) if ends else (low, high)
        return cls(low, max(high, low + 0.1), kind)

    def place(self, value: float) -> str:
        """The place of a value, from 1 to 99 so that no dot is cut off."""
        return f"{1 + 98 * min(max((value - self.low) / (self.high - self.low), 0.0), 1.0):.2f}"

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """The places and labels of the ends and the middle."""
        made = []
        for value in (self.low, (self.low + self.high) / 2, self.high):
            shown, digits = (value, 2) if self.kind in ("area", "number", "signed") else (100 * value, 0)
            if not digits and not math.isclose(shown, round(shown), abs_tol=1e-6):
                digits = 1
            text = number(shown, digits, sign=self.kind in ("points", "signed"))
            made.append((float(self.place(value)), f"{text}%" if self.kind == "share" else text))
        return made


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
        """The table with some of its columns, in this order."""
        blocks = []
        for block in self.blocks:  # a wide cell stands at its first place
            rows = [dict(zip(accumulate((cell.wide for cell in row), initial=0), row, strict=False)) for row in block.rows]
            blocks.append(replace(block, rows=[tuple(row[place] for place in places if place in row) for row in rows]))
        return replace(self, columns=[self.columns[place] for place in places], blocks=blocks)

    def flat(self) -> Table:
        """The table with the headings of its blocks in a first column."""
        rows = [(Cell(block.heading, means=block.means), *row) for block in self.blocks for row in block.rows]
        return replace(self, columns=[Column(self.by), *self.columns], blocks=[Block(rows)], by="", scale=None)

    def turned(self, start: int = 0, stop: int | None = None) -> Table:
        """A table with one value per row, as a grid with one row per block, and one column per row from `start` to `stop`."""
        heads = [
            Column(self.by),
            *(Column(joined([row[0].words, f" ({row[0].tag})" if row[0].tag else ""], "")) for row in self.blocks[0].rows[start:stop]),
        ]
        rows = [(Cell(block.heading), *(row[1] for row in block.rows[start:stop])) for block in self.blocks]
        return replace(self, columns=heads, blocks=[Block(rows)], by="", grid=False)


def table(caption: Words, columns: Sequence[Any], rows: Iterable[Sequence[Any]], **more: Any) -> Table:
    """A table of one block; words stand for columns and cells without anything else."""
    heads = [column if isinstance(column, Column) else Column(column) for column in columns]
    return Table(caption, heads, [Block([tuple(cell if isinstance(cell, Cell) else Cell(cell) for cell in row) for row in rows])], **more)


@dataclass(frozen=True)
class Text:
    """A paragraph. `style` is a class: the "lead", a "callout", "notes"; or "heading", for one within a section."""

    part: ClassVar[str] = "text"
    words: Words
    style: str = ""
    id: str = ""
    data: tuple[str, str] | None = None  # name and value of a data attribute


@dataclass(frozen=True)
class Items:
    """A list of notes; with a `lead`, a callout with these words and the list below them."""

    part: ClassVar[str] = "items"
    items: Sequence[Words]
    style: str = "notes"
    lead: Words = ""
    id: str = ""


@dataclass(frozen=True)
class Facts:
    """The numbers to remember, each with its name above it and what it means below."""

    part: ClassVar[str] = "facts"
    facts: Sequence[tuple[Words, Words, Words]]


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


Part: TypeAlias = "Table | Text | Items | Facts | Figures | Folded | Fixed"


@dataclass(frozen=True)
class Section:
    """A section of a page: the macro of its name, then parts. With a `hint` it is folded, for engineers and statisticians."""

    anchor: str
    heading: str
    hint: str = ""
    parts: Sequence[Part] = ()
    on_paper: bool = True


SIGNOFF = Section("signoff", "Decision"), Section("limits", "What these measures do not show")  # in every report for a committee


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
    return Text((Span(f"{first}:", "strong"), f" {rest}"), f"lead outcome outcome-{style}", data=("outcome", style))
