"""What values of the rooms on the left show and save: the only imports of rooms on the right, made when a method is called.

`Audit.report(path)` is in `measures`, and the page that it writes in `report`; `Comparison.save(folder)` writes a bundle, in `case`.
"""

from pathlib import Path
from typing import Any


def html_of(value: Any) -> str:
    """A result as HTML, for a notebook."""
    from equipoise.report import html_of

    return html_of(value)


def write_page(value: Any, path: str | Path, **options: Any) -> Path:
    """The path of a result's report, written as HTML or PDF by its ending."""
    from equipoise.report import write_page

    return write_page(value, Path(path), **options)


def why_words(why: Any) -> str:
    """Why a step or a method was chosen, in words."""
    from equipoise.report import why_words

    return why_words(why)


def save_comparison(comparison: Any, folder: str | Path, **options: Any) -> Path:
    """The folder with the bundle of a comparison."""
    from equipoise.case import save_comparison

    return save_comparison(comparison, Path(folder), **options)
