"""Where a command writes: the problems of file names, and a check before any work that the files can be written."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from equipoise import data, report

ENDINGS = {"--report": (".html", ".htm"), "--pdf": (".pdf",)}
NOT_JSON = (".html", ".htm", ".pdf", ".csv", ".tsv", ".xlsx", ".parquet", ".png", ".svg", ".md", ".docx")  # refused by --out of an audit


def page_problems(places: Mapping[str, Path | None]) -> list[str]:
    """One problem for each of --report and --pdf whose file name has another extension."""
    return [
        f"{option} writes {ENDINGS[option][0]}; got {place.name!r}. Use {option} {place.with_suffix(ENDINGS[option][0]).name}."
        for option, place in places.items()
        if place is not None and place.suffix.lower() not in ENDINGS[option]
    ]


def json_problems(save: Path | None) -> list[str]:
    """A problem if the --out of an audit has the extension of another format than JSON."""
    if save is None or save.suffix.lower() not in NOT_JSON:
        return []
    page = next((option for option, endings in ENDINGS.items() if save.suffix.lower() in endings), None)
    instead = f"{page} {save.name}" if page else "--set report.figures=FOLDER for figures (PNG and SVG)"
    return [f"--out writes JSON; {save.name!r} is another format. Use --out {save.with_suffix('.json').name}, or {instead}."]


def check_places(*places: Path | None, pdf: Path | None = None) -> None:
    """Raises an error before any work if a file cannot be written, or if there is no program to print the PDF."""
    for place in (*places, pdf):
        if place:
            data.check_writable(place)
    if pdf:
        report.check_printer()


def check_exist(*paths: Path | None) -> None:
    """Raises an error if a file to read does not exist; before pandas is imported."""
    for path in paths:
        if path is not None and not path.exists():
            raise data.no_such_file(path)
