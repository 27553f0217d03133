"""The code on the pages: its blocks, and a way to run them as a reader would.

A block is marked behind its language: `run` is executed, `file=NAME` is saved under that name, `output` is what the block before it prints.
"""

import contextlib
import io
import re
import runpy
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

from equipoise.cli import run

ROUNDING = 0.02


@dataclass(frozen=True)
class Block:
    """A block of code on a page: its language, its marks, and the code."""

    language: str
    marks: tuple[str, ...]
    code: str


def blocks(path: Path) -> list[Block]:
    """The blocks of a page, fenced or indented, in order."""
    found = []
    for token in MarkdownIt("commonmark").parse(path.read_text(encoding="utf-8")):
        if token.type in ("fence", "code_block"):
            language, *marks = token.info.split() or [""]
            found.append(Block(language, tuple(marks), token.content))
    return found


def command_lines(code: str) -> list[str]:
    """The commands in a block of shell, continued lines joined, comments removed."""
    return [line.strip() for line in re.sub(r"\\\n\s*", "", code).splitlines() if line.strip() and not line.startswith("#")]


def follow(page: Path) -> str:
    """What the commands of a page print, run in the current folder; Python that prints something else than its `output` is an error."""
    names: dict[str, object] = {"__name__": "page"}
    printed, shown = "", ""
    for block in blocks(page):
        if file := next((mark.removeprefix("file=") for mark in block.marks if mark.startswith("file=")), None):
            Path(file).write_text(block.code, encoding="utf-8")
        elif block.language == "python" and "run" in block.marks:
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(compile(block.code, page.name, "exec"), names)
            printed = out.getvalue()
        elif block.language == "sh" and "run" in block.marks:
            for line in command_lines(block.code):
                shown += run_line(line)
        elif "output" in block.marks and not same(printed, block.code):
            raise AssertionError(f"{page.name}: expected the output\n{block.code}\nfound\n{printed}")
    return shown


def same(printed: str, shown: str) -> bool:
    """Whether two texts have the same words, and numbers that differ by rounding at most, as they may from machine to machine.

    >>> same("eod -0.161 [-0.2, 0]", "eod  -0.160 [-0.2, 0]"), same("eod -0.3", "eod -0.1"), same("met", "not met")
    (True, False, False)
    """
    number = r"[-+]?\d+\.\d+"
    found, expected = ([float(each) for each in re.findall(number, text)] for text in (printed, shown))
    words = [re.sub(number, "#", text).split() for text in (printed, shown)]
    return words[0] == words[1] and all(abs(a - b) <= ROUNDING for a, b in zip(found, expected, strict=True))


def run_line(line: str) -> str:
    """What a command line prints; only `equipoise` and `python` are run."""
    first, *arguments = shlex.split(line)
    if first == "equipoise":
        with contextlib.redirect_stdout(io.StringIO()) as out:
            if (code := run(arguments)) != 0:
                raise AssertionError(f"exit code {code}: {line}")
        return out.getvalue()
    if first != "python" or len(arguments) != 1:
        raise AssertionError(f"only equipoise and python FILE are run: {line}")
    _run_file(Path(arguments[0]).resolve())
    return ""


def _run_file(file: Path) -> None:
    """Runs a file as `python FILE` does, without the seconds that a new process takes to import torch; nothing of it stays imported."""
    before = set(sys.modules)
    sys.path.insert(0, str(file.parent))
    try:
        runpy.run_path(str(file), run_name="__main__")
    finally:
        sys.path.remove(str(file.parent))
        for name in set(sys.modules) - before:
            if Path(getattr(sys.modules[name], "__file__", None) or "/").parent == file.parent:
                del sys.modules[name]
