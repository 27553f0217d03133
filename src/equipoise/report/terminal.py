"""Parts of a document in a terminal. Names are text, never markup."""

from collections.abc import Iterable
from dataclasses import dataclass
from textwrap import wrap
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table as RichTable
from rich.text import Text as RichText

from equipoise.report.document import Cell, Table, text_of
from equipoise.report.text import INSUFFICIENT, MINUS, amount, span

NUMBERS_WIDTH = len("+12.3 [+12.3, +12.3]*†")  # of a value with its interval
STYLES = {"lead": "bold", "callout": "yellow", "notes": "dim", "heading": "bold underline"}
STYLES |= {"outcome-harm": "bold red", "outcome-unclear": "bold yellow", "outcome-reduced": "bold", "outcome-closed": "bold green"}
STYLES |= {"outcome-unchanged": "bold yellow"}


def in_terminal(parts: Iterable[Any]) -> RenderableType:
    """Parts as text and tables; figures and controls are for pages."""
    drawn: list[RenderableType] = []
    for part in parts:
        if part.part == "text":
            style = next((STYLES[name] for name in part.style.split() if name in STYLES), "")
            drawn.append(RichText(("\n" if part.style == "heading" else "") + text_of(part.words), style=style))
        elif part.part == "items":
            drawn += [RichText(text_of(words), style="dim") for words in (*filter(None, [part.lead]), *part.items)]
        elif part.part == "facts":
            drawn += [RichText(f"{text_of(title)}: {text_of(fact)} ({text_of(note)})") for title, fact, note in part.facts]
        elif part.part == "table":
            drawn.append(_FittedTable(part))
        elif part.part == "folded":
            drawn += [RichText(f"\n{text_of(part.summary)}", style="bold"), in_terminal(part.parts)]
    return Group(*drawn)


@dataclass(frozen=True)
class _FittedTable:
    """A table as wide as the terminal: columns that do not fit are left out, and a grid is divided, so that no interval is broken."""

    table: Table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width, each, tables = options.max_width, None, [self.table.flat() if self.table.by else self.table]
        if self.table.grid:
            names = max(len(text_of(block.heading)) for block in self.table.blocks) + 4
            each, fit = NUMBERS_WIDTH, max(1, (width - names) // (NUMBERS_WIDTH + 3))
            tables = [self.table.turned(start, start + fit) for start in range(0, len(self.table.blocks[0].rows), fit)]
        for table in tables:
            title = RichText(text_of(table.caption) + table.units)
            made = RichTable(box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="bold", pad_edge=False, show_edge=False)
            kept = [column.least <= width for column in table.columns]
            rows = []
            for cells in (row for block in table.blocks for row in block.rows):
                rows.append(list[RichText]())
                for cell in cells:
                    unknown = cell.value is not None and cell.value.value != cell.value.value
                    style = "yellow" if unknown else "bold" if "shown" in cell.style else ""
                    rows[-1] += [RichText("" if cell.wide > 1 else cell_text(cell), style=style), *[RichText()] * (cell.wide - 1)]
            room = width
            named = [column.short if table.over and column.short else text_of(column.head) for column in table.columns]
            cells_of = [[row[place].plain for row in rows if place < len(row)] for place in range(len(named))]
            least = max((len(word) for cell in cells_of[0] for word in cell.split()), default=0)
            if least + sum(3 + max(map(len, (name, *cells))) for name, cells in zip(named[1:], cells_of[1:], strict=True)) > width:
                # Heads take several lines before the names of the rows lose their place.
                named = ["\n".join(wrap(name, max(map(len, (*cells, *name.split()))))) for name, cells in zip(named, cells_of, strict=True)]
            for place, column in enumerate(table.columns):
                text, own = place == 0 or "text" in column.style, each if place else None
                if kept[place]:
                    head, side = RichText(named[place], overflow="fold"), "left" if text else "right"
                    shown = [*named[place].split("\n"), *cells_of[place]]
                    longest = max(len(part) for line in shown for part in (line.split() or [""] if text else [line]))
                    narrow = longest if "narrow" in column.style else None
                    room -= longest + 3 if place else 0
                    made.add_column(head, justify=side, no_wrap=not text and own is None, overflow="fold", width=own, max_width=narrow)  # type: ignore[arg-type]
            for first, *more in rows:
                if max(map(len, first.plain.split()), default=0) > room:
                    first = RichText(first.plain.replace("-", "-\n"), first.style)  # otherwise it would be broken anywhere
                made.add_row(*(shown for shown, keep in zip([first, *more], kept, strict=False) if keep))
            yield made


def cell_text(cell: Cell) -> str:
    """A cell as text: words, or a value with its interval, in ASCII without a percent sign, and its marks (* is clear, † is few)."""
    estimate = cell.value
    if estimate is None:
        means = text_of(cell.means) if len(text_of(cell.means)) < len("predictive_gap") else ""
        tag = f" ({cell.tag})" if cell.tag else ""
        return f"{text_of(cell.words)}{tag}".replace(MINUS, "-") + (f" ({means})" if means and means != text_of(cell.words) else "")
    if estimate.value != estimate.value:
        return INSUFFICIENT
    ends = span(estimate.low, estimate.high, cell.kind).replace(" to ", ", ")
    text = f"{amount(estimate.value, cell.kind)} [{ends}]" if ends else amount(estimate.value, cell.kind)
    return text.replace(MINUS, "-").replace("%", "") + ("*" if estimate.clear else "") + ("†" if estimate.few else "")
