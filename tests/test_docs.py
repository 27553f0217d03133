"""The documentation: the site builds and its links hold, its code runs, its commands exist, and nothing is left out."""

import ast
import contextlib
import importlib
import io
import json
import re
import shlex
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

import build as site
import pytest
import reference
import typer
from markdown_it import MarkdownIt

import equipoise
from equipoise.cli import run
from equipoise.cli.app import app
from equipoise.data import CATALOGUE
from equipoise.measures import GAPS
from equipoise.methods import METHODS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
START = DOCS / "start.md"
TEXTS = [*PAGES, *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "CHANGELOG"))]
LANGUAGES = {"", "python", "sh", "text", "toml"}


@dataclass(frozen=True)
class Block:
    """A block of code on a page: its language, what else stands behind that, and the code."""

    language: str
    marks: tuple[str, ...]
    code: str


def blocks(path: Path) -> list[Block]:
    """The blocks of a page, fenced or indented."""
    found = []
    for token in MarkdownIt("commonmark").parse(path.read_text(encoding="utf-8")):
        if token.type in ("fence", "code_block"):
            language, *marks = token.info.split() or [""]
            found.append(Block(language, tuple(marks), token.content))
    return found


def command_lines(code: str) -> list[str]:
    """The commands in a block of shell: continued lines joined, remarks left out."""
    return [line.strip() for line in re.sub(r"\\\n\s*", "", code).splitlines() if line.strip() and not line.startswith("#")]


def inline_commands(path: Path) -> list[str]:
    """The commands that stand in running text."""
    tokens = MarkdownIt("commonmark").enable("table").parse(path.read_text(encoding="utf-8"))
    spans = [child.content for token in tokens for child in token.children or () if child.type == "code_inline"]
    return [span for span in spans if re.match(r"equipoise [a-z]", span)]


def parsed(line: str) -> list[str]:
    """What is wrong with a command line, by the command's own parser."""
    command = typer.main.get_command(app)
    arguments = shlex.split(line, comments=True)[1:]
    try:
        while hasattr(command, "commands"):
            command = command.commands[arguments.pop(0)]
        command.make_context("equipoise", arguments)
    except Exception as error:
        return [f"{line}: {type(error).__name__}: {error}"]
    return []


def known(line: str) -> list[str]:
    """What a command in running text names that does not exist: it may leave things out, and list several with a bar or a slash."""
    command, unknown = typer.main.get_command(app), []
    for word in shlex.split(line)[1:]:
        if hasattr(command, "commands"):
            if word not in command.commands:
                return [f"{line}: no command {word}"]
            command = command.commands[word]
            if len(set(line.split()) & {"|", "/"}):
                break
        elif word.startswith("--") and not any(word in (*option.opts, *option.secondary_opts) for option in command.params):
            unknown.append(f"{line}: no option {word}")
    return unknown


class Links(HTMLParser):
    """The targets, sources and anchors of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.sources: list[str] = []
        self.anchors: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.targets += [given["href"]] if tag == "a" else []
        self.sources += [given[key] for key in ("src", "href") if key in given and tag in ("img", "script", "link")]
        self.anchors += [given["id"]] if "id" in given else []


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("site")
    site.build(out)
    return out


def test_every_link_of_the_built_site_leads_somewhere(built):
    pages = {path.name: Links(path.read_text(encoding="utf-8")) for path in built.glob("*.html")}
    assert {"index.html", "start.html", "api.html", "examples.html", "contributing.html", "changelog.html"} <= set(pages)
    assert {f"{path.stem}.html" for path in PAGES} <= set(pages)
    wrong = []
    for name, page in pages.items():
        assert len(page.anchors) == len(set(page.anchors)), f"{name} has two headings with one anchor"
        for target in page.targets:
            place, _, anchor = target.partition("#")
            if not re.match(r"https?:|mailto:", target) and (
                (place or name) not in pages or (anchor and anchor not in pages[place or name].anchors)
            ):
                wrong.append(f"{name}: {target}")
        wrong += [f"{name}: {source}" for source in page.sources if not (built / source).is_file()]
    assert wrong == []


def test_the_site_asks_nothing_of_a_network(built):
    for path in built.glob("*.html"):
        assert [source for source in Links(path.read_text(encoding="utf-8")).sources if ":" in source or source.startswith("/")] == []
    assert "url(" not in (built / "site.css").read_text()
    assert "@import" not in (built / "site.css").read_text()


def test_every_page_stands_in_the_navigation_of_every_page(built):
    names = {path.name for path in built.glob("*.html")}
    for path in built.glob("*.html"):
        text = path.read_text(encoding="utf-8")
        assert set(Links(text[text.index("<nav") : text.index("</nav>")]).targets) == names


def test_broken_links_fail_the_build_all_at_once(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text(
        "# One\n\n[a](none.md) [b](two.md#none) ![c](none.png) [d](two.md#here-it-is) [e](#two) [f](#one)"
    )
    (tmp_path / "docs" / "two.md").write_text("# Two\n\n## Here it is\n")
    with pytest.raises(site.BrokenDocs) as error:
        site.build(tmp_path / "out", tmp_path / "docs")
    assert sorted(re.findall(r"(none\.md|two\.md#none|none\.png|#two) ?", str(error.value))) == [
        "#two",
        "none.md",
        "none.png",
        "two.md#none",
    ]
    assert not (tmp_path / "out").exists()


def test_html_in_a_page_is_shown_as_text(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text(
        "# <script>alert(1)</script>\n\n<img src=x onerror=alert(2)>\n\n```python\n'</pre><b>'\n```\n"
    )
    site.build(tmp_path / "out", tmp_path / "docs")
    text = (tmp_path / "out" / "index.html").read_text()
    assert "<script>alert" not in text
    assert "<img src=x" not in text
    assert "</pre><b>" not in text


@pytest.mark.parametrize("page", [page for page in PAGES if page != START], ids=lambda path: path.stem)
def test_the_code_of_a_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    follow(page)


def follow(page: Path) -> None:
    """Does what a page says, in this folder: blocks marked `run`, in order, and what they print where a block marked `output` follows."""
    place: dict[str, object] = {"__name__": "page"}
    printed = ""
    for block in blocks(page):
        if file := next((mark.removeprefix("file=") for mark in block.marks if mark.startswith("file=")), None):
            Path(file).write_text(block.code)
        elif block.language == "python" and "run" in block.marks:
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(compile(block.code, page.name, "exec"), place)
            printed = out.getvalue()
        elif block.language == "sh" and "run" in block.marks:
            for line in command_lines(block.code):
                _run_line(line)
        elif "output" in block.marks:
            assert printed.split() == block.code.split()


def _run_line(line: str) -> None:
    first, *arguments = shlex.split(line)
    if first == "equipoise":
        with contextlib.redirect_stdout(io.StringIO()):
            assert run(arguments) == 0, line
    else:
        assert first == "python", f"only equipoise and python are run: {line}"
        subprocess.run([sys.executable, *arguments], check=True, timeout=300)


def test_the_five_minutes_end_with_what_they_promise(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    follow(START)
    assert {"net.safetensors", "local.csv", "scores.csv", "new.csv", "decisions.csv", "repaired"} <= {
        path.name for path in tmp_path.iterdir()
    }
    told = (DOCS / "folder.md").read_text()
    assert [path.name for path in (tmp_path / "repaired").iterdir() if f"`{path.name}`" not in told] == []

    # The table on the page is that of this run; another machine may round otherwise.
    found = json.loads((tmp_path / "repaired" / "audit.json").read_text())
    parts = {"as it came": found["before"], **{name: method["test_part"] for name, method in found["methods"].items()}}
    table = next(block.code for block in blocks(START) if "as it came" in block.code)
    for name, part in parts.items():
        row = next(line for line in table.splitlines() if line.startswith(name))
        numbers = [float(number) for number in re.findall(r"[-+]?\d\.\d+", row)]
        assert [part[measure][end] for measure in ("eod", "balanced_accuracy") for end in ("value", "low", "high")] == pytest.approx(
            numbers, abs=0.02
        )
    assert f"{found['chosen']} (chosen)" in table


@pytest.mark.parametrize("page", TEXTS, ids=lambda path: path.stem)
def test_every_command_on_a_page_exists(page):
    shell = [line for block in blocks(page) if block.language in ("", "sh") for line in command_lines(block.code)]
    problems = [problem for line in shell if line.startswith("equipoise ") for problem in parsed(line)]
    problems += [problem for line in inline_commands(page) for problem in known(line)]
    assert problems == []


@pytest.mark.parametrize(("line", "fine"), [
    ("equipoise data cache --clear", True),
    ("equipoise data cach", False),
    ("equipoise audit scores.csv --label y --score p --group sex", True),
    ("equipoise audit scores.csv --label y --scores p --group sex", False),
    ("equipoise audit scores.csv --score p --group sex", False),
    ("equipoise audit scores.csv --label y --group sex --draws many", False),
])  # fmt: skip
def test_the_check_of_commands_can_fail(line, fine):
    assert (parsed(line) == []) == fine


def test_the_check_of_commands_in_text_can_fail():
    assert known("equipoise audit") == known("equipoise debias --dry-run") == known("equipoise study list | run | show") == []
    assert known("equipoise audits")
    assert known("equipoise debias --plans")


@pytest.mark.parametrize("page", TEXTS, ids=lambda path: path.stem)
def test_code_that_is_not_run_could_be(page):
    """It is Python, what it imports of Equipoise exists, TOML can be read, and no block is of a kind that nobody checks."""
    for block in blocks(page):
        assert block.language in LANGUAGES
        if block.language == "toml":
            tomllib.loads(block.code)
        if block.language != "python":
            continue
        for node in ast.walk(ast.parse(block.code)):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("equipoise"):
                module = importlib.import_module(str(node.module))
                for alias in node.names:
                    assert hasattr(module, alias.name) or importlib.import_module(f"{node.module}.{alias.name}")


def test_nothing_is_left_out():
    texts = {path.stem: path.read_text(encoding="utf-8") for path in PAGES}
    methods = texts["methods"] + texts.get("beyond", "")
    assert [name for name in METHODS if f"`{name}`" not in methods and f"## {name}" not in methods] == []
    assert [name for name in GAPS if f"`{name}`" not in texts["measures"] + texts.get("beyond", "")] == []
    assert [name for name in CATALOGUE if f"`{name}`" not in texts["data"]] == []


def test_the_reference_has_every_public_name_with_its_signature():
    text = reference.reference()
    assert [name for name in equipoise.__all__ if name != "__version__" and f"\n### {name}\n" not in text] == []
    assert 'method: str = "bias-gda"' in text.replace("'", '"')
    assert ">>> len(Scores.from_frame(frame" in text  # examples as they are
    assert "y: IntArray  # (n,) 0 or 1; 1 is what the classifier detects" in text  # fields with their comments


def test_the_reference_names_only_what_exists():
    missing = [
        f"{module}.{name}"
        for module, names in reference.MODULES.items()
        for name in names
        if not hasattr(importlib.import_module(module), name)
    ]
    assert missing == []
