"""The short page for paper of a saved report, written again: its file is read as data and never given to a printer.

The folder of a repair may come from anyone, and its checksums only show that it is complete. Its page has numbers of patients whose rows
are not saved, so it cannot be computed again. Every element and attribute must be one of those that the templates write; they are written
again around escaped text, with the style of this version. Anything else is an error that names its line.
"""

import re
from collections.abc import Mapping
from html import escape, unescape
from typing import NoReturn

from markupsafe import Markup

from equipoise.errors import BadInput
from equipoise.report.pages import framed
from equipoise.report.text import short

DOCTYPE = "<!doctype html>"
TAG = re.compile(r"""<(/?)([a-z][a-z0-9]*)((?:\s+[A-Za-z][A-Za-z0-9-]*(?:="[^"<]*")?)*)\s*(/?)>""")
ATTRIBUTE = re.compile(r"""([A-Za-z][A-Za-z0-9-]*)(?:="([^"<]*)")?""")
SHAPES = re.compile("circle|line|path|rect|text")
ELEMENTS = re.compile(
    "a|abbr|bdi|body|br|caption|code|dd|details|div|dl|dt|em|figcaption|figure|footer|h1|h2|h3|header|li|main|ol|p|section|span|strong"
    f"|summary|table|tbody|td|th|thead|time|tr|ul|svg|g|title|{SHAPES.pattern}"
)
ATTRIBUTES = re.compile(
    "class|id|open|title|role|scope|colspan|datetime|tabindex|(aria|data)-[a-z]+"  # of text and tables
    "|d|r|cx|cy|x|y|x1|x2|y1|y2|width|height|viewBox|transform|text-anchor"  # of shapes
)
VALUES = {"href": re.compile("#.*"), "style": re.compile("display: block")}
LINK = re.compile(r"[\w%.~-]+/report\.html")  # to the report of one label; paper shows its text
EMPTY = ("br", "meta", "input", "img")  # without an end tag
RAW = ("script", "style")  # without elements in them
DROPPED = ("head", "script", "nav", "button")  # with all that is in them; the new page has its own head
DEEPEST = 100  # elements in each other
GENERATOR = '<meta name="generator" content="Equipoise">'
AGAIN = "Copy the folder again from a source that you trust, or run `equipoise debias` again."


def short_page(content: bytes, where: str) -> str:
    """The short page for paper from the bytes of a saved report; raises an error about a page that Equipoise did not write."""
    try:
        html = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadInput(f"{where} is not text in UTF-8: {error}. {AGAIN}") from error
    if not html.startswith(DOCTYPE) or GENERATOR not in html[:5000]:
        raise BadInput(f"{where} is not a report of Equipoise. Name a folder that `equipoise debias` wrote, or the JSON of an audit.")
    reader = _Reader(html, where)
    reader.read()
    return framed("again.html", {"heading": "".join(reader.title), "body": Markup("".join(reader.body))}, paper=True)


class _Reader:
    """Reads a page in one pass and writes the elements that are shown on paper."""

    def __init__(self, html: str, where: str) -> None:
        self.html, self.where = html, where
        self.place = len(DOCTYPE)  # of the tag that is read
        self.title: list[str] = []
        self.body: list[str] = []
        self.open: list[tuple[str, str | None]] = []  # elements that are open, with their ids
        self.hidden = 0  # how many of them, from the outermost one that paper does not show

    def read(self) -> None:
        """Reads the whole page; raises an error about the first thing that no report has."""
        while (start := self.html.find("<", self.place)) >= 0:
            self._text(self.html[self.place : start])
            self.place = start
            tag = TAG.match(self.html, start)
            if tag is None:
                self._refuse(repr(short("".join(self.html[start : start + 100].partition(">")[:2]))))
            ends, name, attributes, closed = tag.groups()
            if ends:
                self._end(name)
            else:
                self._start(name, {key: None if value is None else unescape(value) for key, value in _pairs(attributes)}, bool(closed))
            self.place = self.html.find(f"</{name}>", tag.end()) if name in RAW and not ends else tag.end()
            if self.place < 0:
                self._refuse(f"<{name}> without its end", start)
        if self.open:
            self._refuse(f"<{self.open[-1][0]}> without its end")

    def _start(self, tag: str, given: Mapping[str, str | None], closed: bool) -> None:
        if not self.open and tag != "html":
            self._refuse(f"<{tag}> outside of <html>")
        if len(self.open) >= DEEPEST:
            self._refuse(f"more than {DEEPEST} elements in each other")
        if closed and not SHAPES.fullmatch(tag):
            self._refuse(f"<{tag}/>")
        hidden = self.hidden > 0 or self._is_hidden(tag, given)
        if not hidden and self.open:  # the first element is <html>, which the new page has
            self.body.append(f"<{tag}{self._attributes(tag, given)}>")
        if tag not in EMPTY:
            self.open.append((tag, given.get("id")))
            self.hidden += hidden
        if closed:
            self._end(tag)

    def _end(self, tag: str) -> None:
        if not self.open or self.open.pop()[0] != tag:
            self._refuse(f"</{tag}> without its start")
        if self.hidden:
            self.hidden -= 1
        elif self.open:
            self.body.append(f"</{tag}>")

    def _text(self, text: str) -> None:
        if not self.hidden and len(self.open) > 1:
            self.body.append(escape(unescape(text)))
        elif [tag for tag, _ in self.open] == ["html", "head", "title"]:
            self.title.append(unescape(text))

    def _is_hidden(self, tag: str, given: Mapping[str, str | None]) -> bool:
        """Whether paper shows nothing of an element: folded sections other than the settings are for the screen."""
        if tag == "section":
            return "folded" in (given.get("class") or "").split() and given.get("id") != "method"
        if tag == "details":
            return "open" not in given and self.open[-1:] != [("section", "method")]
        return tag in DROPPED

    def _attributes(self, tag: str, given: Mapping[str, str | None]) -> str:
        """The attributes of an element as HTML; raises an error if the element or one of them is none of Equipoise's."""
        if not ELEMENTS.fullmatch(tag):
            self._refuse(f"<{tag}>")
        written = " open" if tag == "details" and "open" not in given else ""
        for name, value in given.items():
            allowed = VALUES[name].fullmatch(value or "") if name in VALUES else ATTRIBUTES.fullmatch(name)
            if not allowed and not (name == "href" and LINK.fullmatch(value or "")):
                self._refuse(f"<{tag} {name}>")
            if allowed:
                written += f" {name}" if value is None else f' {name}="{escape(value)}"'
        return written

    def _refuse(self, what: str, place: int | None = None) -> NoReturn:
        line = 1 + self.html.count("\n", 0, self.place if place is None else place)
        raise BadInput(f"{self.where} holds {what} in line {line}, which no report of Equipoise has: it was changed. {AGAIN}")


def _pairs(attributes: str) -> list[tuple[str, str | None]]:
    return [(found[1], found[2]) for found in ATTRIBUTE.finditer(attributes)]
