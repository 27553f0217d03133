"""Parts of a document in a terminal. Names are text, never markup."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table as RichTable
from rich.text import Text as RichText

from equipoise.report.document import Cell, Folded, Heading, Items, Part, Table, Text, labelled, text_of
from equipoise.report.text import INSUFFICIENT, MINUS, amount, span

NUMBERS = len("+12.3 [+12.3, +12.3]*†")  # the width of a value with its interval
STYLES = {"lead": "bold", "callout": "yellow", "notes": "dim"}


def in_terminal(parts: Iterable[Part]) -> RenderableType:
    """Parts as text and tables; figures are for pages."""
    return Group(*_drawn(parts))


def _drawn(parts: Iterable[Part]) -> Iterator[RenderableType]:
    for part in parts:
        if isinstance(part, Text):
            yield RichText(text_of(part.words), style=next((STYLES[name] for name in part.style.split() if name in STYLES), ""))
        elif isinstance(part, Items):
            yield from (RichText(text_of(words), style="dim") for words in part.items)
        elif isinstance(part, Heading):
            yield RichText(f"\n{text_of(part.words)}", style="bold underline")
        elif isinstance(part, Table):
            yield _Fitted(part)
        elif isinstance(part, Folded):
            yield RichText(f"\n{text_of(part.summary)}", style="bold")
            yield from _drawn(part.parts)


@dataclass(frozen=True)
class _Fitted:
    """A table as wide as the terminal: columns that do not fit are left out, and a grid is divided, so that no interval is broken."""

    table: Table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if not self.table.grid:
            yield _rich_table(self.table.flat() if self.table.by else self.table, options.max_width)
            return
        names = max(len(text_of(block.heading)) for block in self.table.blocks) + 4
        fit = max(1, (options.max_width - names) // (NUMBERS + 3))
        for start in range(0, len(self.table.blocks[0].rows), fit):
            yield _rich_table(self.table.turned(start, start + fit), options.max_width, NUMBERS)


def _rich_table(table: Table, width: int, each: int | None = None) -> RichTable:
    title = RichText(text_of(table.caption) + table.units)
    made = RichTable(box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="bold", pad_edge=False, show_edge=False)
    kept = [column.least <= width for column in table.columns]
    for place, column in enumerate(table.columns):
        text, own = place == 0 or "text" in column.style, each if place else None
        if kept[place]:
            head, side = RichText(text_of(column.head), overflow="fold"), "left" if text else "right"
            made.add_column(head, justify=side, no_wrap=not text and own is None, overflow="fold", width=own)  # type: ignore[arg-type]
    for row in (row for block in table.blocks for row in block.rows):
        drawn = [shown for cell in row for shown in (_rich_cell(cell), *([RichText()] * (cell.wide - 1)))]
        made.add_row(*(shown for shown, keep in zip(drawn, kept, strict=False) if keep))
    return made


def _rich_cell(cell: Cell) -> RichText:
    unknown = cell.value is not None and cell.value.value != cell.value.value
    return RichText("" if cell.wide > 1 else cell_text(cell), style="yellow" if unknown else "bold" if "shown" in cell.style else "")


def cell_text(cell: Cell) -> str:
    """A cell as text: words, or a value with its interval, in ASCII without a percent sign, and its marks (* is clear, † is few)."""
    estimate = cell.value
    if estimate is None:
        means = text_of(cell.means) if len(text_of(cell.means)) < len("predictive_gap") else ""
        return text_of(labelled(cell)).replace(MINUS, "-") + (f" ({means})" if means and means != text_of(cell.words) else "")
    if estimate.value != estimate.value:
        return INSUFFICIENT
    ends = span(estimate.low, estimate.high, cell.kind).replace(" to ", ", ")
    text = f"{amount(estimate.value, cell.kind)} [{ends}]" if ends else amount(estimate.value, cell.kind)
    return text.replace(MINUS, "-").replace("%", "") + ("*" if estimate.clear else "") + ("†" if estimate.few else "")
