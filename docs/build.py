"""The documentation as a static site: `python docs/build.py --out site`. A link that leads nowhere fails the build.

Pages are the Markdown files beside this one, CONTRIBUTING and CHANGELOG, and two that are made here: the API reference, from the
docstrings, and the example scripts. The site needs no server and no network. Headings get the anchors that GitHub gives them, so links
hold in both places.
"""

import argparse
import os
import re
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markdown_it import MarkdownIt
from markdown_it.token import Token
from pygments import highlight  # type: ignore[import-untyped]
from pygments.formatters import HtmlFormatter  # type: ignore[import-untyped]
from pygments.lexers import get_lexer_by_name  # type: ignore[import-untyped]
from pygments.util import ClassNotFound  # type: ignore[import-untyped]

sys.path.insert(0, str(Path(__file__).parent))
from reference import reference

DOCS = Path(__file__).parent
NAVIGATION = {  # a page that is in none of these goes to the last
    "Begin": ("index", "start", "choosing", "careful"),
    "Use": ("networks", "report", "folder", "card", "data", "privacy", "phantoms"),
    "Understand": ("measures", "methods"),
    "Look up": ("api", "examples"),
    "Evidence": ("reproduction", "chest-xray", "beyond"),
    "Project": ("contributing", "changelog"),
}
SHORT = {  # what the navigation says, where that is not the page's heading
    "index": "Equipoise on one page",
    "api": "API reference",
    "measures": "Measures",
    "networks": "Your own network",
    "report": "The report explained",
    "folder": "The repaired folder",
    "reproduction": "The paper's numbers",
}
ASSETS = ("site.css", "site.js")


class BrokenDocs(Exception):
    """Links that lead nowhere, all in one message."""


@dataclass(frozen=True)
class Page:
    """One page: its Markdown, and the file that it came from, which relative links start at."""

    name: str
    source: Path
    text: str

    @property
    def title(self) -> str:
        """The first heading, without its marks."""
        found = re.search(r"^# (.+)$", self.text, re.MULTILINE)
        return found.group(1).replace("`", "").replace("*", "") if found else self.name


@dataclass
class Rendered:
    """A page as HTML, with what links may point at and what it points at."""

    page: Page
    html: str
    headings: list[tuple[int, str, str]]  # level, anchor, text
    links: list[tuple[str, str, str]] = field(default_factory=list)  # as written, page, anchor
    images: list[Path] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("site"), help="folder for the site")
    given = parser.parse_args()
    try:
        names = build(given.out)
    except BrokenDocs as error:
        sys.exit(f"error: {error}")
    print(f"{len(names)} pages: {given.out / 'index.html'}")


def build(out: Path, docs: Path = DOCS) -> list[str]:
    """Writes the site and gives the names of its pages; with broken links it raises and writes nothing."""
    pages = {page.name: page for page in find_pages(docs)}
    rendered = [render(page, pages) for page in pages.values()]
    problems = [problem for page in rendered for problem in page.problems]
    anchors = {page.page.name: {anchor for _, anchor, _ in page.headings} for page in rendered}
    for page in rendered:
        problems += [
            f"{page.page.source.name}: {written} names a heading that {name} does not have"
            for written, name, anchor in page.links
            if anchor and anchor not in anchors[name]
        ]
    if problems:
        raise BrokenDocs(f"{len(problems)} broken links:\n" + "\n".join(f"- {problem}" for problem in problems))
    environment = Environment(
        loader=FileSystemLoader(DOCS / "templates"), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.get_template("page.html")
    (out / "images").mkdir(parents=True, exist_ok=True)
    for asset in ASSETS:
        shutil.copyfile(DOCS / "templates" / asset, out / asset)
    order = navigation(pages)
    flat = [name for names in order.values() for name in names]
    for page in rendered:
        for image in page.images:
            shutil.copyfile(image, out / "images" / image.name)
        at = flat.index(page.page.name)
        text = template.render(
            title=page.page.title,
            name=page.page.name,
            body=page.html,
            contents=[(anchor, text.removeprefix("equipoise.")) for level, anchor, text in page.headings if level == 2],
            sections={section: [(name, label(pages[name])) for name in names] for section, names in order.items()},
            before=(flat[at - 1], label(pages[flat[at - 1]])) if at else None,
            after=(flat[at + 1], label(pages[flat[at + 1]])) if at + 1 < len(flat) else None,
        )
        (out / f"{page.page.name}.html").write_text(text, encoding="utf-8")
    return flat


def label(page: Page) -> str:
    """What the navigation calls a page."""
    return SHORT.get(page.name, page.title)


def navigation(pages: Mapping[str, Page]) -> dict[str, list[str]]:
    """The pages that there are, by section."""
    found = {section: [name for name in names if name in pages] for section, names in NAVIGATION.items()}
    placed = {name for names in found.values() for name in names}
    found[list(found)[-1]] += sorted(pages.keys() - placed)
    return {section: names for section, names in found.items() if names}


def find_pages(docs: Path) -> Iterator[Page]:
    """The pages of a folder of Markdown, those that lie beside it, and those that are made."""
    for path in sorted(docs.glob("*.md")):
        yield Page(path.stem, path, path.read_text(encoding="utf-8"))
    for name in ("CONTRIBUTING", "CHANGELOG"):
        if (path := docs.parent / f"{name}.md").is_file():
            yield Page(name.lower(), path, path.read_text(encoding="utf-8"))
    if docs == DOCS:
        yield Page("api", docs / "api", reference())
    if scripts := sorted((docs.parent / "examples").glob("*.py")):
        yield Page("examples", docs / "examples", examples_text(scripts))


def examples_text(scripts: Sequence[Path]) -> str:
    """The example scripts as one page."""
    parts = ["# Examples\n\nFour scripts that run as they are, in seconds. They are in the folder `examples/`, and the tests run them.\n"]
    for script in scripts:
        text = script.read_text(encoding="utf-8")
        title = script.stem.replace("_", " ").replace("csv", "CSV").replace("resnet", "ResNet")
        parts.append(f"## {title[0].upper()}{title[1:]}\n\n`examples/{script.name}`\n\n```python\n{text.rstrip()}\n```\n")
    return "\n".join(parts)


def render(page: Page, pages: Mapping[str, Page]) -> Rendered:
    """A page as HTML. Links to other pages are turned to their HTML, images to the site's folder."""
    parser = MarkdownIt("commonmark", {"html": False, "highlight": _coloured}).enable("table")
    tokens = parser.parse(page.text)
    found = Rendered(page, "", [])
    seen: Counter[str] = Counter()
    for k, token in enumerate(tokens):
        if token.type == "heading_open":
            text = _plain(tokens[k + 1])
            anchor = slug(text, seen)
            token.attrSet("id", anchor)
            found.headings.append((int(token.tag[1]), anchor, text))
        elif token.type == "table_open":
            token.attrSet("tabindex", "0")  # a wide one is scrolled with the keyboard too
        for child in token.children or ():
            if child.type == "link_open":
                child.attrSet("href", _target(found, str(child.attrGet("href")), pages))
            elif child.type == "image":
                child.attrSet("src", _image(found, str(child.attrGet("src"))))
    found.html = parser.renderer.render(tokens, parser.options, {})
    return found


def slug(text: str, seen: "Counter[str]") -> str:
    """The anchor that GitHub gives a heading.

    >>> slug("Logits, or probabilities?", Counter())
    'logits-or-probabilities'
    """
    base = re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-")
    seen[base] += 1
    return base if seen[base] == 1 else f"{base}-{seen[base] - 1}"


def _plain(inline: Token) -> str:
    return "".join(child.content for child in inline.children or () if child.type in ("text", "code_inline"))


def _target(found: Rendered, href: str, pages: Mapping[str, Page]) -> str:
    """Where a link goes in the site; a problem is noted where it goes nowhere."""
    if re.match(r"[a-z]+:", href):
        return href
    place, _, anchor = unquote(href).partition("#")
    here = found.page
    if not place:
        name: str | None = here.name
    else:
        path = Path(os.path.normpath(here.source.parent / place))
        sources = {page.source: page.name for page in pages.values()}
        name = sources.get(path)
        if name is None and path.parent.name == "examples" and path.suffix == ".py" and path.is_file():
            name, anchor = "examples", path.stem.replace("_", "-")
        if name is None and path.parent == DOCS and path.stem in pages and path.suffix in ("", ".html"):
            name = path.stem  # the pages that are made have no file
    if name is None:
        found.problems.append(f"{here.source.name}: {href} leads to no page of the site")
        return href
    found.links.append((href, name, anchor))
    return f"#{anchor}" if not place else f"{name}.html" + (f"#{anchor}" if anchor else "")


def _image(found: Rendered, src: str) -> str:
    path = Path(os.path.normpath(found.page.source.parent / unquote(src)))
    if not path.is_file():
        found.problems.append(f"{found.page.source.name}: there is no image {src}")
    else:
        found.images.append(path)
    return f"images/{path.name}"


def _coloured(code: str, language: str, _attributes: str) -> str:
    """Code with its tokens marked; as it is where the language is not known."""
    try:
        lexer = get_lexer_by_name(language or "text")
    except ClassNotFound:
        lexer = get_lexer_by_name("text")
    marked: str = highlight(code, lexer, HtmlFormatter(nowrap=True))
    return f'<pre tabindex="0"><code>{marked}</code></pre>'


if __name__ == "__main__":
    main()
