"""The documentation: the site builds without warnings and works offline, its code runs, its commands exist, its numbers are generated."""

import ast
import contextlib
import importlib
import io
import json
import re
import shlex
import tomllib
import warnings
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import generate
import pandas as pd
import pytest
import tables
from blocks.default import advice
from markdown_it import MarkdownIt
from pages import blocks, command_lines, follow
from sphinx.cmd.build import build_main

import equipoise
from equipoise.cli.app import command_line
from equipoise.measures import GAPS
from equipoise.methods import METHODS
from equipoise.studies import CATALOGUE, make_plan

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(path for path in DOCS.rglob("*.md") if path.stem not in tables.GENERATED)
QUICKSTART = DOCS / "quickstart.md"
TEXTS = [*PAGES, *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "CHANGELOG"))]
LANGUAGES = {"", "python", "sh", "text", "toml"}


def name(path: Path) -> str:
    return str(path.relative_to(ROOT).with_suffix(""))


def inline_commands(path: Path) -> list[str]:
    """The commands in running text."""
    tokens = MarkdownIt("commonmark").enable("table").parse(path.read_text(encoding="utf-8"))
    spans = [child.content for token in tokens for child in token.children or () if child.type == "code_inline"]
    return [span for span in spans if re.match(r"equipoise [a-z]", span)]


@cache
def own_parser() -> Any:
    """A parser that no command uses: it remembers the help options of the first context, which has no parent here."""
    return command_line.__wrapped__()


def parsed(line: str) -> list[str]:
    """What is wrong with a command line, by the command's own parser."""
    command = own_parser()
    arguments = shlex.split(re.sub(r" --plugin \S+", "", line), comments=True)[1:]  # of every command, and taken out before it is parsed
    try:
        while hasattr(command, "commands"):
            command = command.commands[arguments.pop(0)]
        command.make_context("equipoise", arguments)
    except Exception as error:
        return [f"{line}: {type(error).__name__}: {error}"]
    return []


def known(line: str) -> list[str]:
    """What a command in running text names that does not exist; it may leave things out, and list several with a bar or a slash."""
    command, unknown = command_line(), []
    for word in shlex.split(line)[1:]:
        if hasattr(command, "commands"):
            if word not in command.commands:
                return [f"{line}: no command {word}"]
            command = command.commands[word]
            if set(line.split()) & {"|", "/"}:
                break
        elif word.startswith("--") and not any(word in (*option.opts, *option.secondary_opts) for option in command.params):
            unknown.append(f"{line}: no option {word}")
    return unknown


class Sources(HTMLParser):
    """What a page loads, and its anchors."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        if tag in ("img", "script", "source") or (tag == "link" and given.get("rel") in ("stylesheet", "preload", "icon")):
            self.loaded += [given[key] for key in ("src", "href") if given.get(key)]
        self.anchors |= {given["id"]} if "id" in given else set()


def sphinx(*arguments: object) -> tuple[int, str]:
    """The exit code and the messages of a build in this process, which spares the imports of another one."""
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()) as said:
        warnings.simplefilter("ignore")  # of libraries; those of Sphinx itself are no Python warnings, and fail the build
        code = build_main(["-q", "-W", "-b", "html", *map(str, arguments)])
    return code, said.getvalue()


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("site")
    code, said = sphinx("--keep-going", "-d", out / "doctrees", DOCS, out / "html")
    assert code == 0, said
    return out / "html"


def test_the_site_builds_without_a_warning_and_holds_every_page(built):
    assert [page for page in PAGES if not (built / page.relative_to(DOCS).with_suffix(".html")).is_file()] == []


def test_the_site_loads_nothing_from_a_network(built):
    wrong = []
    for path in built.rglob("*.html"):
        wrong += [
            f"{path.name}: {source}" for source in Sources(path.read_text(encoding="utf-8")).loaded if re.match(r"(https?:)?//", source)
        ]
    wrong += [
        path.name
        for path in built.rglob("*.css")
        if re.search(r"(?:url\(|@import)\s*['\"]?(?:https?:)?//", path.read_text(encoding="utf-8"))
    ]
    assert wrong == []


def test_the_search_index_knows_pages_commands_and_names(built):
    index = (built / "searchindex.js").read_text(encoding="utf-8")
    data = json.loads(index[index.index("(") + 1 : index.rindex(")")])
    assert {"how-to/audit-a-csv", "reference/commands", "reference/api", "beyond"} <= set(data["docnames"])
    assert {"prune", "detect"} & set(data["terms"])


def test_the_reference_has_every_public_name_command_and_setting(built):
    anchors = Sources((built / "reference" / "api.html").read_text(encoding="utf-8")).anchors
    assert [name for name in equipoise.__all__ if name != "__version__" and f"equipoise.{name}" not in anchors] == []
    text = re.sub(r"<[^>]+>", "", (built / "reference" / "commands.html").read_text(encoding="utf-8"))
    command = command_line()
    assert [name for name in command.commands if f"equipoise {name}" not in text] == []
    options = [
        option.opts[0]
        for name in ("audit", "debias", "apply")
        for option in command.commands[name].params
        if option.opts[0].startswith("--")
    ]
    assert [option for option in options if option not in text] == []
    settings = (built / "reference" / "settings.html").read_text(encoding="utf-8")
    assert [name for name in ("bias-gda", "pruning", "bias-score") if f'id="{name}"' not in settings] == []


WORDS = ("demographic parity", "disparate impact", "equal opportunity", "equalised odds", "sensitive feature", "sample_weight")
WORDS += ("privileged", "protected attribute", "pos_label", "confidence interval", "threshold", "calibration", "underdiagnosis")
WORDS += ("DICOM", "ONNX", "Parquet", "power", "missing values", "install", "torch")


@pytest.mark.parametrize("words", WORDS)
def test_a_reader_finds_the_words_of_the_field(words):
    assert any(words.lower() in path.read_text(encoding="utf-8").lower() for path in PAGES)


def test_every_setting_of_a_method_has_a_meaning():
    assert [line for line in generate.settings().splitlines() if line.endswith("|  |")] == []


def test_the_schema_of_a_case_is_published(built):
    assert json.loads((built / "_static" / "case.schema.json").read_text())["properties"]["data"]


def test_a_dead_link_fails_the_build(tmp_path):
    (tmp_path / "conf.py").write_text('extensions = ["myst_parser"]\n')
    (tmp_path / "index.md").write_text("# One\n\n[a](none.md)\n")
    code, said = sphinx(tmp_path, tmp_path / "out")
    assert code != 0
    assert "none.md" in said


@pytest.mark.parametrize("page", [page for page in [*PAGES, ROOT / "README.md"] if page != QUICKSTART], ids=name)
def test_the_code_of_a_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    follow(page)


def test_the_quickstart_ends_with_what_it_promises(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    follow(QUICKSTART)
    assert {"net.safetensors", "local.csv", "scores.csv", "new.csv", "decisions.csv", "repaired"} <= {
        path.name for path in tmp_path.iterdir()
    }
    formats = (DOCS / "reference" / "formats.md").read_text(encoding="utf-8")
    assert [path.name for path in (tmp_path / "repaired").iterdir() if f"`{path.name}`" not in formats] == []

    # The table on the page is that of this run; another machine may round differently.
    found = json.loads((tmp_path / "repaired" / "audit.json").read_text())
    sets = {"original": found["before"], **{method: entry["test_set"] for method, entry in found["methods"].items()}}
    shown = next(block.code for block in blocks(QUICKSTART) if block.language == "text" and "original" in block.code)
    for method, audit in sets.items():
        row = next(line for line in shown.splitlines() if line.startswith(method))
        numbers = [float(number) for number in re.findall(r"[-+]?\d\.\d+", row)]
        expected = [audit[measure][end] for measure in ("eod", "balanced_accuracy") for end in ("value", "low", "high")]
        assert expected == pytest.approx(numbers[:6], abs=0.02)


@pytest.mark.parametrize("page", TEXTS, ids=name)
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
    ("equipoise audit scores.csv --label y --group sex --draws many", False),
])  # fmt: skip
def test_the_check_of_commands_can_fail(line, fine):
    assert (parsed(line) == []) == fine


def test_the_check_of_commands_in_text_can_fail():
    assert known("equipoise audit") == known("equipoise debias --dry-run") == known("equipoise study list | run | show") == []
    assert known("equipoise audits")
    assert known("equipoise debias --dry-runs")


@pytest.mark.parametrize("page", TEXTS, ids=name)
def test_code_that_is_not_run_could_be(page):
    """It is Python, what it imports of Equipoise exists, TOML can be read, and every block has a language that is checked."""
    for block in blocks(page):
        if block.language.startswith("{"):  # a directive
            continue
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


def test_the_study_on_the_page_is_a_valid_plan():
    (text,) = (block.code for block in blocks(DOCS / "how-to" / "run-a-study.md") if block.language == "toml")
    plan = make_plan(tomllib.loads(text), source="run-a-study.md")
    assert [arm.method for arm in plan.methods] == ["standard", "bias-score", "bias-gda"]


def test_every_method_measure_and_data_set_is_described():
    concepts, reference = DOCS / "concepts", DOCS / "reference"
    methods = (concepts / "methods.md").read_text(encoding="utf-8")
    assert [name for name in METHODS if f"\n## {name}\n" not in methods] == []
    measures = (concepts / "measures.md").read_text(encoding="utf-8")
    assert [name for name in GAPS if f"`{name}`" not in measures] == []
    data = (reference / "data-sets.md").read_text(encoding="utf-8")
    assert [name for name in CATALOGUE if f"`{name}`" not in data] == []


def test_every_number_is_generated_from_rows_that_are_kept():
    assert tables.problems() == []


def test_a_stale_block_and_a_number_of_its_own_are_found():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert tables.filled(text, "README.md") == text
    stale = re.sub(r"0\.\d{3} at 0\.\d{3}", "0.999 at 0.999", text, count=1)
    assert stale != text
    assert tables.filled(stale, "README.md") == text
    assert list(tables.stated("It reaches 0.123 there.")) != []
    assert list(tables.stated("`0.123` and\n```\n0.123\n```\nand 0.02")) == []
    with pytest.raises(SystemExit, match="'none'"):
        tables.filled("<!-- generated: none -->\n<!-- end -->", "page.md")


def test_the_advice_follows_from_the_rows():
    means = pd.DataFrame(
        {"mean_abs_gap": [0.2, 0.05, 0.051, 0.01, 0.04], "balanced_accuracy": [0.80, 0.78, 0.79, 0.70, 0.78]},
        index=["standard", "a", "b-train", "costly", "aware"],
    )
    assert advice(means, ("a", "b-train", "costly"), "aware") == "`a` or `b` with the training set; `aware` if the group may be used"
    means.loc["a", "balanced_accuracy"] = 0.774
    assert advice(means, ("a", "b-train"), "aware").startswith("`b` with the training set;")  # as small a gap, at a higher price
    means.loc["aware", "mean_abs_gap"] = 0.06
    assert advice(means, ("a", "costly"), "aware") == "`a`"


def test_every_block_is_used_on_a_page():
    used = {
        found["name"] for path in [*tables.pages(), *tables.notes()] for found in tables.BLOCK.finditer(path.read_text(encoding="utf-8"))
    }
    assert used == set(tables.BLOCKS)


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= 900
