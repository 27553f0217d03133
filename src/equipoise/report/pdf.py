"""Pages as PDF, printed by an installed Chromium (Chrome, Edge, Brave) without a window, or by WeasyPrint.

The short page for paper is printed, which needs no script and no other file. Chromium opens it as a web archive (MHTML), whose page runs no
scripts and can load only what is in the archive, no file and nothing from a network, with an empty profile in which scripts are switched
off as well: the flag scriptEnabled=false would also stop the script by which Chromium prints. WeasyPrint runs no scripts and is given a
fetcher that refuses everything but `data:`.

The page of a saved report is read as data and never given to a printer. The folder of a repair may come from anyone, and its checksums only
show that it is complete. Its page has numbers of patients whose rows are not saved, so it cannot be computed again. Every element and
attribute must be one of those that the templates write; they are written again around escaped text, with the style of this version.
Anything else is an error that names its line.
"""

import importlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from html import escape, unescape
from pathlib import Path
from typing import Any, NoReturn

from markupsafe import Markup

from equipoise.disk import atomic_path
from equipoise.errors import BadInput
from equipoise.report.text import short

VARIABLE = "EQUIPOISE_CHROMIUM"
BROWSER_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
OTHER_BROWSERS = ("msedge", "microsoft-edge", "brave-browser")
BROWSER_PLACES = (
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
    "/Applications/Microsoft Edge.app/Contents/MacOS/Microsoft Edge",
    r"C:\Program Files\Google\Chrome\Application\chrome.exe",
    r"C:\Program Files (x86)\Microsoft\Edge\Application\msedge.exe",
)
CHROMIUM_FLAGS = ("--headless", "--disable-gpu", "--disable-extensions", "--no-first-run", "--disable-background-networking")
OFFLINE_FLAGS = ("--disable-sync", "--host-resolver-rules=MAP * ~NOTFOUND")  # no host name is resolved
NO_SCRIPTS = {"profile": {"default_content_setting_values": {"javascript": 2}}}  # 2: blocked
PRINT_SECONDS = 120.0  # seconds
WEASYPRINT = "68"  # the first version with a fetcher that can be limited to `data:`
PAGE_ENDINGS = (".html", ".htm", ".pdf")
NONE_FOUND = (
    f"a PDF is printed by Chromium, Chrome or Edge, or by WeasyPrint; none was found. Install one of them (pip install weasyprint), set "
    f"{VARIABLE} to the path of a browser, or write the page (.html) and print it from any browser."
)

DOCTYPE = "<!doctype html>"
TAG = re.compile(r"""<(/?)([a-z][a-z0-9]*)((?:\s+[A-Za-z][A-Za-z0-9-]*(?:="[^"<]*")?)*)\s*(/?)>""")
ATTRIBUTE = re.compile(r"""([A-Za-z][A-Za-z0-9-]*)(?:="([^"<]*)")?""")
SVG_SHAPES = re.compile("circle|line|path|rect|text")
PAGE_ELEMENTS = re.compile(
    "a|abbr|bdi|body|br|caption|code|dd|details|div|dl|dt|em|figcaption|figure|footer|h1|h2|h3|header|li|main|ol|p|section|span|strong"
    f"|summary|table|tbody|td|th|thead|time|tr|ul|svg|g|title|{SVG_SHAPES.pattern}"
)
PAGE_ATTRIBUTES = re.compile(
    "class|id|open|title|role|scope|colspan|datetime|tabindex|(aria|data)-[a-z]+"  # of text and tables
    "|d|r|cx|cy|x|y|x1|x2|y1|y2|width|height|viewBox|transform|text-anchor"  # of shapes
)
VALUES = {"href": re.compile("#.*"), "style": re.compile("display: block")}
REPORT_LINK = re.compile(r"[\w%.~-]+/report\.html")  # to the report of one label; paper shows its text
WITHOUT_END = ("br", "meta", "input", "img")  # without an end tag
WITHOUT_ELEMENTS = ("script", "style")  # without elements in them
DROPPED = ("head", "script", "nav", "button")  # with all that is in them; the new page has its own head
DEEPEST = 100  # elements in each other
GENERATOR = '<meta name="generator" content="Equipoise">'
COPY_AGAIN = "Copy the folder again from a source that you trust, or run `equipoise debias` again."


def browser() -> str | None:
    """The path of a browser that can print: EQUIPOISE_CHROMIUM, else the first that is installed; None if there is none."""
    path = os.environ.get(VARIABLE)
    if path:
        if not Path(path).is_file():
            raise BadInput(f"{VARIABLE} is {path!r}, which is not a file. Set it to the path of Chromium or Chrome, or unset it.")
        return path
    return next((path for path in map(shutil.which, BROWSER_NAMES + OTHER_BROWSERS) if path), None) or next(
        (path for path in BROWSER_PLACES if Path(path).is_file()), None
    )


def check_printer() -> None:
    """Raises `BadInput` if neither a browser nor WeasyPrint is installed; call it before any work is done."""
    if browser() is None:
        if importlib.util.find_spec("weasyprint") is None:
            raise BadInput(NONE_FOUND)
        _weasyprint()


def is_paper(path: Path) -> bool:
    """Whether the path ends in .pdf."""
    return path.suffix.lower() == ".pdf"


def check_ending(path: Path) -> None:
    """Raises `BadInput` if the path of a report ends in neither .html, .htm nor .pdf."""
    if path.suffix.lower() not in PAGE_ENDINGS:
        raise BadInput(
            f"a report is HTML or PDF; got {path.name!r}. Use a name that ends in .html or .pdf, such as {path.with_suffix('.html').name}."
        )


def print_page(html: str, path: Path) -> Path:
    """Prints a page as PDF, whole or not at all; returns its path. No script of the page runs, and it can load nothing but `data:`."""
    check_printer()
    program = browser()
    with tempfile.TemporaryDirectory(prefix="equipoise-") as folder:
        pdf = Path(folder) / "page.pdf"
        if program is None:
            weasyprint = _weasyprint()
            fetcher = weasyprint.URLFetcher(allowed_protocols={"data"})
            weasyprint.HTML(string=html, url_fetcher=fetcher).write_pdf(str(pdf))
        else:
            source = Path(folder) / "page.mhtml"
            source.write_bytes(_archive(html))
            _print_with_chromium(program, source, pdf)
        with atomic_path(path) as temporary:
            shutil.copyfile(pdf, temporary)
    return path


def _archive(html: str) -> bytes:
    """The page as a web archive of one part."""
    from email import message, policy  # late: only a PDF needs them, and they take 80 ms

    page = message.EmailMessage(policy=policy.SMTP)
    page.set_content(html, subtype="html", cte="base64")
    page["Content-Location"] = "https://page.invalid/"
    archive = message.EmailMessage(policy=policy.SMTP)
    archive["MIME-Version"] = "1.0"
    archive.make_related()
    archive.attach(page)
    return archive.as_bytes()


def _weasyprint() -> Any:
    """WeasyPrint; raises `BadInput` if it is too old or cannot be loaded."""
    try:
        found = importlib.import_module("weasyprint")
    except OSError as error:
        raise BadInput(f"WeasyPrint cannot be loaded: {error}. Install the libraries that it needs, or Chromium.") from error
    if not hasattr(found, "URLFetcher"):
        raise BadInput(f"WeasyPrint {found.__version__} is installed, and {WEASYPRINT} or newer is needed: pip install -U weasyprint")
    return found


def _print_with_chromium(program: str, source: Path, pdf: Path) -> None:
    profile = pdf.parent / "profile"
    (profile / "Default").mkdir(parents=True)
    (profile / "Default" / "Preferences").write_text(json.dumps(NO_SCRIPTS), encoding="utf-8")
    root = hasattr(os, "geteuid") and os.geteuid() == 0  # for whom the sandbox does not start, as in a container
    command = [
        program,
        *CHROMIUM_FLAGS,
        *OFFLINE_FLAGS,
        *(["--no-sandbox"] if root else []),
    ]
    command += [f"--user-data-dir={profile}", "--no-pdf-header-footer", f"--print-to-pdf={pdf}", source.as_uri()]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=PRINT_SECONDS, check=False)
        problem = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    except (OSError, subprocess.TimeoutExpired) as error:
        problem = str(error)
    if not pdf.exists() or pdf.read_bytes()[:5] != b"%PDF-":
        raise BadInput(
            f"{program} printed no PDF: {problem}. Write the page (.html) and print it from a browser, or set {VARIABLE} to another."
        )


# A saved report


def short_page(content: bytes, where: str) -> str:
    """The short page for paper from the bytes of a saved report; raises an error about a page that Equipoise did not write."""
    try:
        html = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadInput(f"{where} is not text in UTF-8: {error}. {COPY_AGAIN}") from error
    if not html.startswith(DOCTYPE) or GENERATOR not in html[:5000]:
        raise BadInput(f"{where} is not a report of Equipoise. Name a folder that `equipoise debias` wrote, or the JSON of an audit.")
    from equipoise.report.pages import framed  # imports templates

    reader = _PageReader(html, where)
    reader.read()
    return framed("again.html", {"heading": "".join(reader.title), "body": Markup("".join(reader.body))}, paper=True)


class _PageReader:
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
                found = ((pair[1], pair[2]) for pair in ATTRIBUTE.finditer(attributes))
                self._start(name, {key: None if value is None else unescape(value) for key, value in found}, bool(closed))
            self.place = self.html.find(f"</{name}>", tag.end()) if name in WITHOUT_ELEMENTS and not ends else tag.end()
            if self.place < 0:
                self._refuse(f"<{name}> without its end", start)
        if self.open:
            self._refuse(f"<{self.open[-1][0]}> without its end")

    def _start(self, tag: str, given: Mapping[str, str | None], closed: bool) -> None:
        if not self.open and tag != "html":
            self._refuse(f"<{tag}> outside of <html>")
        if len(self.open) >= DEEPEST:
            self._refuse(f"more than {DEEPEST} elements in each other")
        if closed and not SVG_SHAPES.fullmatch(tag):
            self._refuse(f"<{tag}/>")
        # Paper shows folded sections and details only if they are open, explain, or hold the settings.
        hidden = self.hidden > 0 or tag in DROPPED
        if tag == "section":
            hidden |= "folded" in (given.get("class") or "").split() and given.get("id") != "method"
        elif tag == "details":
            hidden |= not {"open", "why"} & {*given, given.get("class")} and self.open[-1:] != [("section", "method")]
        if not hidden and self.open:  # the first element is <html>, which the new page has
            self.body.append(f"<{tag}{self._attributes(tag, given)}>")
        if tag not in WITHOUT_END:
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

    def _attributes(self, tag: str, given: Mapping[str, str | None]) -> str:
        """The attributes of an element as HTML; raises an error if the element or one of them is none of Equipoise's."""
        if not PAGE_ELEMENTS.fullmatch(tag):
            self._refuse(f"<{tag}>")
        written = " open" if tag == "details" and "open" not in given else ""
        for name, value in given.items():
            allowed = VALUES[name].fullmatch(value or "") if name in VALUES else PAGE_ATTRIBUTES.fullmatch(name)
            if not allowed and not (name == "href" and REPORT_LINK.fullmatch(value or "")):
                self._refuse(f"<{tag} {name}>")
            if allowed:
                written += f" {name}" if value is None else f' {name}="{escape(value)}"'
        return written

    def _refuse(self, what: str, place: int | None = None) -> NoReturn:
        line = 1 + self.html.count("\n", 0, self.place if place is None else place)
        raise BadInput(f"{self.where} holds {what} in line {line}, which no report of Equipoise has: it was changed. {COPY_AGAIN}")
