"""The numbers of README and docs, generated from the rows under experiments/.

    python docs/_build/tables.py                          # writes every generated block of every page
    python docs/_build/tables.py --check                  # exit code 1, with the blocks, if a page is stale or states a number of its own
    python docs/_build/tables.py show experiments/peers/splits.csv    # any file of rows as a Markdown table

A block stands between `<!-- generated: NAME -->` and `<!-- end -->`; its text is what the function of that name in
`docs/_build/blocks/` returns, and a line that names the rows it read. The notes next to the rows (experiments/<study>/README.md) may hold blocks too, and numbers of their own.
"""

import argparse
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pandas as pd
from blocks import (
    beyond,
    chexnet,
    claims,
    coverage,
    data_sets,
    default,
    install,
    literature,
    measures,
    methods,
    monitoring,
    predictors,
    published,
    readme,
    scale,
    tripod,
)
from blocks.rows import READ, sources, table

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"(?P<start><!-- generated: (?P<name>[\w-]+) -->\n).*?(?P<end><!-- end -->)", re.DOTALL)
MEASURED = re.compile(r"(?<![\w.])[-+]?[01]\.\d{3,}")  # three decimal places: a result, which only a block may state
OWN = ("reproduction.md",)  # pages that another script generates
GENERATED = ("api", "commands", "settings", "_methods")  # by docs/_build/generate.py, when the site is built
PAGES = (readme, beyond, default, methods, measures, scale, data_sets, chexnet, claims, coverage, monitoring, predictors, published, literature)
PAGES += (install, tripod)
BLOCKS: Mapping[str, Callable[[], str]] = {name: block for page in PAGES for name, block in page.BLOCKS.items()}


def filled(text: str, place: str) -> str:
    """A page with its blocks as the rows give them."""

    def block(found: "re.Match[str]") -> str:
        if found["name"] not in BLOCKS:
            raise SystemExit(f"{place}: unknown block {found['name']!r}; expected one of {', '.join(BLOCKS)}")
        READ.clear()
        made = BLOCKS[found["name"]]()
        return f"{found['start']}\n{made}\n{sources(READ) if READ else ''}\n{found['end']}"

    return BLOCK.sub(block, text)


def stated(text: str) -> Iterator[str]:
    """Results that a page states outside of its blocks and its code."""
    text = BLOCK.sub("", text)
    text = re.sub(r"```.*?```|`[^`]*`", "", text, flags=re.DOTALL)
    for number, line in enumerate(text.splitlines(), 1):
        for found in MEASURED.finditer(line if not line.startswith("    ") else ""):
            yield f"{found.group()} (line {number} without blocks and code: {line.strip()[:60]})"


def pages() -> list[Path]:
    """README, CONTRIBUTING and every page of the site that this script fills."""
    return [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *(p for p in sorted((ROOT / "docs").rglob("*.md")) if p.name not in OWN and p.stem not in GENERATED),
    ]


def notes() -> list[Path]:
    """The notes next to the rows that hold blocks."""
    found = [*sorted((ROOT / "experiments").glob("*/README.md")), *sorted((ROOT / "benchmarks").glob("*/README.md"))]
    return [path for path in found if BLOCK.search(path.read_text(encoding="utf-8"))]


def problems() -> list[str]:
    """What is stale on any page or note, or stated by hand on a page."""
    found, published = [], pages()
    for path in [*published, *notes()]:
        text = path.read_text(encoding="utf-8")
        place = path.relative_to(ROOT)
        if filled(text, str(place)) != text:
            found.append(f"{place}: a generated block is stale; run python docs/_build/tables.py")
        if path in published:
            found += [f"{place}: states {number}; generate it from experiments/" for number in stated(text)]
    return found


def write() -> None:
    """Writes every generated block of every page and note, and prints those that changed."""
    for path in [*pages(), *notes()]:
        text = path.read_text(encoding="utf-8")
        new = filled(text, str(path))
        if new != text:
            path.write_text(new, encoding="utf-8")
            print(f"wrote {path.relative_to(ROOT)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if a page is stale")
    parser.add_argument("show", nargs="*", metavar="show FILE", help="print a file of rows as a Markdown table")
    given = parser.parse_args()
    if given.show:
        for name in given.show[given.show[0] == "show" :]:
            frame = pd.read_csv(name, dtype=str, keep_default_na=False)
            print(table(frame.columns, frame.itertuples(index=False)))
        return
    if given.check:
        found = problems()
        print("\n".join(found), file=sys.stderr)
        sys.exit(int(bool(found)))
    write()


if __name__ == "__main__":
    main()
