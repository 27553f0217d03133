"""Pages and other texts from templates: HTML with its style, scripts and their data, figures as SVG, XML, Markdown and plain text.

Everything in HTML is escaped. The Content-Security-Policy allows only the page's own script, by its hash, so no name in a user's file could
run as a script even if an escape were missed.
"""

import base64
import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from equipoise.report import text as writing
from equipoise.report.document import Document, Part, Words, spans, text_of
from equipoise.report.terminal import cell_text
from equipoise.report.text import LONGEST, Span, clean, line, plain
from equipoise.report.wording.audits import left_out_words
from equipoise.report.wording.names import upper_bound_words

TEMPLATES = Path(__file__).parent / "templates"


class LongNames:
    """The names that are too long for a table, in the order of their first use; the page lists them in full at its end."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def place(self, value: object) -> int | None:
        """The position of a long name in the list; None for a short name."""
        text = str(value)
        if len(plain(text)) <= LONGEST:
            return None
        if text not in self.names:
            self.names.append(text)
        return self.names.index(text)


def page_of(document: Document, *, paper: bool = False) -> str:
    """A document as HTML; on `paper`, without scripts and with folded sections open."""
    return framed("page.html", {"d": document} | dict(document.values), () if paper else document.scripts, document.data, paper=paper)


def framed(template: str, context: Mapping[str, Any], scripts: Sequence[str] = (), data: object = None, *, paper: bool = False) -> str:
    """A page with its style, its scripts and their data."""
    shared: dict[str, Any] = {
        "style": Markup(_read_template("report.css") + _read_template("figure.css")),
        "book": LongNames(),
        "paper": paper,
        "data": None,
    }
    if scripts:
        script = "".join(map(_read_template, scripts))
        shared |= {"script": Markup(script), "script_hash": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}
        shared |= {"data": None if data is None else script_data(data)}
    return render(template, shared | dict(context))


def picture_of(title: str, about: str, parts: Sequence[Part]) -> str:
    """The figures of parts, and the tables with an axis, as one SVG on white, with its style."""
    light = dict(re.findall(r"--([\w-]+): ([^;]+);", _read_template("report.css").partition("}")[0]))
    style = re.sub(
        r"var\(--([\w-]+)\)", lambda name: light[name[1]], _read_template("figure.css")
    )  # few programs but browsers know variables
    context = {"style": Markup(style), "font": Markup(light["sans"]), "ink": light["ink"]}
    return render("figure.svg", context | {"title": title, "about": about, "parts": parts})


def in_notebook(parts: Iterable[Any]) -> str:
    """Parts as short HTML without scripts, for a notebook: sentences and tables."""
    return render("notebook.html", {"parts": [part.flat() if part.part == "table" and part.by else part for part in parts]})


def in_markdown(parts: Iterable[Any]) -> str:
    """Paragraphs, lists and tables as Markdown with every name escaped; figures and controls are for pages."""
    texts: list[str] = []
    for part in parts:
        if part.part == "text":
            words = f"**{line(text_of(part.words))}**" if part.style in ("heading", "lead") else _emphasised(part.words)
            texts.append(words)
        elif part.part == "items":
            texts += [_emphasised(part.lead)] if part.lead else []
            texts.append("\n".join(f"- {_emphasised(words)}" for words in part.items))
        elif part.part == "facts":
            facts = (tuple(map(_emphasised, fact)) for fact in part.facts)
            texts.append("\n".join(f"- {title}: **{fact}** ({note})" for title, fact, note in facts))
        elif part.part == "folded":
            texts.append(in_markdown(part.parts))
        elif part.part == "table":
            made = part.flat() if part.by else part
            heads, over = (
                [line(column.short.replace("\n", " ") or text_of(column.head)) for column in made.columns],
                [text for text, wide, _ in made.over for _ in range(wide)],
            )
            if len(set(heads)) < len(heads):  # columns of two sets
                heads[1:] = [f"{line(text_of(text))}: {head}" for text, head in zip(over, heads[1:], strict=True)]
            rows = [heads, ["---"] * len(heads)]
            for row in (row for block in made.blocks for row in block.rows):
                shown = [line(cell_text(cell)) if cell.value is None else cell_text(cell) for cell in row]
                rows.append([text for cell, own in zip(row, shown, strict=True) for text in ([""] * cell.wide if cell.wide > 1 else [own])])
            texts.append(f"**{line(text_of(part.caption))}**\n\n" + "\n".join(f"| {' | '.join(row)} |" for row in rows))
    return "\n\n".join(texts)


def _emphasised(words: Words) -> str:
    """Words as Markdown."""
    return "".join(f"**{line(text)}**" if kind == "strong" else line(text_of(Span(text, kind))) for kind, text in spans(words))


def render(template: str, context: Mapping[str, Any]) -> str:
    """A template with its context as text, with the settings of its kind, by the ending of its name."""
    return _environment(template.removesuffix(".j2").rpartition(".")[2]).get_template(template).render(context)


@cache
def _environment(kind: str) -> Environment:
    """The settings for html, svg, xml, md or txt: an unknown name is an error, and HTML, SVG and XML are escaped.

    In Markdown, a template passes every name through the filter `name`, `line` or `fenced`. In plain text every value is on one line,
    with control characters escaped, unless it is marked as safe.
    """
    safe = {"xml": clean, "txt": plain}.get(kind)  # the output of a macro, which is marked, is safe already
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=kind in ("html", "svg", "xml"),
        finalize=None if safe is None else lambda value: value if isinstance(value, Markup) else safe(value),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=kind in ("xml", "md"),
    )
    environment.filters |= vars(writing)  # amount, short, ...
    environment.filters |= {"words": text_of, "named": Span, "spans": spans, "cell_text": cell_text}
    environment.filters |= {"left_out_words": left_out_words, "upper_bound_words": upper_bound_words}
    environment.tests["nan"] = math.isnan
    return environment


def _read_template(file: str) -> str:
    return (TEMPLATES / file).read_text(encoding="utf-8")


def script_data(data: object) -> Markup:
    """JSON for a <script> element, with every character escaped that could end the element."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))  # ASCII: line separators are escaped too
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))
