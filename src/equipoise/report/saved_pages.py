"""Pages of what was saved before: the report of an audit from its JSON, and the PDF of a repair from its folder."""

import json
from collections.abc import Mapping
from pathlib import Path

from equipoise.data import write_text
from equipoise.errors import BadInput
from equipoise.measures import Audit, read_audit
from equipoise.report.audit_page import write_audit_page, write_audits_page
from equipoise.report.origin import Origin
from equipoise.report.paper import print_page, short_page

REPORT = "report.html"


def write_again(
    source: str | Path, *, page: str | Path | None = None, pdf: str | Path | None = None, group_names: Mapping[str, str] | None = None
) -> list[Path]:
    """The paths of a page and a PDF, written from the JSON of an audit or from the folder of a repair.

    Without a name for either, the page of an audit is written next to its JSON. Words for groups are those of the audit unless others are
    given. The report of a repair needs the rows of its patients,
    which are not saved, so its page is that in the folder.
    """
    place = Path(source)
    if place.is_dir():
        return _of_folder(place, page, pdf, group_names)
    found = read_audit(place)
    origin = Origin.of(json.loads(place.read_text(encoding="utf-8")).get("provenance"))
    words = group_names or (None if origin is None else origin.group_names)
    wanted = [Path(name) for name in (page, pdf) if name is not None] or [place.with_suffix(".html")]
    for path in wanted:
        if isinstance(found, Audit):
            write_audit_page(found, path, group_names=words, origin=origin)
        else:
            write_audits_page(found, path, group_names=words, origin=origin)
    return wanted


def _of_folder(folder: Path, page: str | Path | None, pdf: str | Path | None, group_names: Mapping[str, str] | None) -> list[Path]:
    whole = folder / REPORT
    if not whole.is_file():
        raise BadInput(f"{folder} has no {REPORT}. Name a folder that `equipoise debias --out` wrote, or the JSON of an audit.")
    if page is None and pdf is None:
        raise BadInput(f"{folder} has its page already: {whole}. Give --pdf FILE.pdf to print it, or --report FILE.html to copy it.")
    if group_names:
        raise BadInput(f"the words for groups in {whole} were given to `equipoise debias` and cannot be changed here. Omit --group-name.")
    html = whole.read_text(encoding="utf-8")
    short = short_page(html, str(whole))
    written = []
    if page is not None:
        written.append(write_text(Path(page), html))
    if pdf is not None:
        written.append(print_page(short, Path(pdf)))
    return written
