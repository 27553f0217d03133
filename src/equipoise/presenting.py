"""What values of the rooms on the left show and save: the only imports of rooms on the right, made when a method is called.

`Audit.report(path)` is in `measures`, and the page that it writes in `report`; `Comparison.save(folder)` writes a bundle, in `case`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Presented:
    """A result that has a report, and is shown in notebooks."""

    def report(self, path: str | Path, *, group_names: Mapping[str, str] | None = None, **options: Any) -> Path:
        """The path of the report, written as a page (.html) or PDF (.pdf).

        Of an audit of several labels, the page is an overview with one page per label next to it, and a PDF the overview.

        - `group_names`: words for the groups in the data, such as {"F": "women", "M": "men"}.
        - `thumbnails=True`, of a repair: include images of patients; a PDF has none.
        """
        from equipoise.report import write_page

        return write_page(self, Path(path), group_names=group_names, **options)

    def _repr_html_(self) -> str:
        return notebook_html(self)


def notebook_html(value: Any) -> str:
    """A result as HTML, for a notebook."""
    from equipoise.report import html_of

    return html_of(value)


def reasons_in_words(why: Any) -> str:
    """Why a step or a method was chosen, in words."""
    from equipoise.report import why_words

    return why_words(why)


def write_bundle(comparison: Any, folder: str | Path, **options: Any) -> Path:
    """The folder with the bundle of a comparison."""
    from equipoise.case import save_comparison

    return save_comparison(comparison, Path(folder), **options)
