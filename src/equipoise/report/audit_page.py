"""The HTML report of an audit for a committee, and the overview of several labels. Each is one file, for screens, phones and paper.

The JSON of an audit records its origin, from which its pages can be written again.
"""

import json
import math
import platform
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from equipoise import __version__
from equipoise.data import sha256, sha256_of, without_folders, write_text
from equipoise.errors import BadInput
from equipoise.measures import OF_ALL, Audit, Audits, Estimate, read_audit
from equipoise.report.audit_views import AuditView, audit_views, subgroup_data, threshold_data, underdiagnosis_rows
from equipoise.report.audit_words import answer, harms, interval_words
from equipoise.report.measure_words import PERFORMANCE, RATES, crossed, distinct, gap_words
from equipoise.report.panels import Called
from equipoise.report.paper import is_paper, print_page, short_page, write_by_ending
from equipoise.report.templating import LIMITS, date_words, how_many, numbered, page_of, script_data
from equipoise.report.text import percent
from equipoise.report.wording import attributes_of, baseline_words, comparison_words, conclusion, group_words, largest_gap, sampled_words

LIBRARIES = ("numpy", "pandas", "scipy", "torch")


@dataclass(frozen=True)
class Origin:
    """What is needed to make an audit again."""

    command: str = ""
    when: str = ""  # ISO date and time
    versions: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)  # name: SHA-256
    inputs: Sequence[str] = ()  # how images were prepared, and whether the scores were compared with known ones
    group_names: Mapping[str, str] = field(default_factory=dict)  # the user's words, for a page that is made again

    @classmethod
    def now(
        cls,
        *,
        arguments: Sequence[str] = (),
        files: Iterable[Path] = (),
        inputs: Sequence[str] = (),
        group_names: Mapping[str, str] | None = None,
    ) -> "Origin":
        """The origin of an audit that is made now: its command line without folders, versions, and the SHA-256 of its files.

        Of a folder, it is that of the names and sizes of the files in it.
        """
        used = {name: str(sys.modules[name].__version__) for name in LIBRARIES if hasattr(sys.modules.get(name), "__version__")}
        return cls(
            command=shlex.join(map(without_folders, arguments)),
            when=datetime.now(UTC).isoformat(timespec="seconds"),
            versions={"equipoise": __version__, **used, "python": platform.python_version()},
            files=dict(map(_checksum, files)),
            inputs=tuple(inputs),
            group_names=dict(group_names or {}),
        )

    @classmethod
    def of(cls, plain: object) -> "Origin | None":
        """The origin in the JSON of an audit; None where it has none."""
        if not isinstance(plain, Mapping):
            return None

        def table(name: str) -> dict[str, str]:
            own = plain.get(name)
            return {str(k): str(v) for k, v in own.items()} if isinstance(own, Mapping) else {}

        inputs = plain.get("inputs")
        said = tuple(map(str, inputs)) if isinstance(inputs, (list, tuple)) else ()
        command, when = (str(plain.get(name, "")) for name in ("command", "when"))
        return cls(command, when, table("versions"), table("files"), said, table("group_names"))

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON."""
        return asdict(self)


def _checksum(path: Path) -> tuple[str, str]:
    if path.is_file():
        return path.name, sha256_of(path)
    inside = sorted(file for file in path.rglob("*") if file.is_file())
    listed = "\n".join(f"{file.relative_to(path).as_posix()} {file.stat().st_size}" for file in inside)
    return f"{path.name} (names and sizes of {len(inside):,} files)", sha256(listed.encode())


SCRIPTS = ("svg.js", "page.js", "threshold.js", "subgroups.js")
CONTENTS = {
    "verdict": "The answer",
    "worse": "Who is worse off",
    "gaps": "The differences",
    "groups": "Each group",
    "threshold": "Another threshold",
    "cohort": "The patients",
    "signoff": "Decision",
    "limits": "Limits",
    "calibration": "Calibration",
    "curves": "Decision curves",
    "subgroups": "All groups and intersections",
    "method": "Method and provenance",
}
DECISIONS = ("use the classifier", "use it under conditions", "repair it first", "do not use it")  # to tick on paper
SHOWN_CLEAR = 12  # clear differences in the table of the answer
ON_PAPER = ("eod", "fpr_gap")  # missed findings and false alarms: printed even where none is clear, and first of several labels
PANELS_ON_PAPER, PANELS = 6, 1000  # figures of an attribute


def write_audit_page(
    audit: Audit,
    path: Path,
    *,
    follow: bool = True,
    group_names: Mapping[str, str] | None = None,
    origin: Origin | None = None,
) -> Path:
    """The path of an audit's report, HTML or PDF by its ending, which is written whole or not at all.

    `follow`: through a link, as fits a path that the user named. `origin` is where the audit comes from.
    """
    return write_by_ending(path, lambda paper: audit_page(audit, group_names, origin, paper=paper), follow=follow)


def write_audits_page(audits: Audits, path: Path, *, group_names: Mapping[str, str] | None = None, origin: Origin | None = None) -> Path:
    """The path of the overview of several labels, which is written there, and the page of each next to it; a PDF has the overview only."""
    links: dict[str, Path] = {}
    if not is_paper(path):
        from equipoise.repair import folders  # imports torch

        places = folders(path.parent, [*audits, ""])  # with one name more, so that even one label has a name of its own
        links = {label: path.with_name(f"{path.stem}-{places[label].name}.html") for label in audits}
    for label, page in links.items():
        own = replace(audits[label], name=f"{label}, {audits.name}")
        write_audit_page(own, page, follow=False, group_names=group_names, origin=origin)
    names = {label: quote(page.name) for label, page in links.items()}
    return write_by_ending(path, lambda paper: audits_page(audits, names, group_names, origin, paper=paper))


def audit_page(audit: Audit, names: Mapping[str, str] | None = None, origin: Origin | None = None, *, paper: bool = False) -> str:
    """The report of an audit as HTML; `names` are words for groups, such as {"F": "women"}; on `paper` it is short."""
    words = group_words(names, attributes_of(audit))

    def called(group: str) -> str:
        return words.get(group, group)

    views = audit_views(audit, called)
    moved = threshold_data(audit, called)
    absent = {
        "gaps": not any(view.gaps for view in views),
        "threshold": moved is None or paper,
        "calibration": not any(view.rates for view in views),
        "curves": not any(view.curves for view in views),
        "subgroups": paper,
    }
    context = _shared(audit, called, origin) | _answer(audit, words, views)
    context |= numbered({anchor: heading for anchor, heading in CONTENTS.items() if not absent.get(anchor)})
    context |= {
        "views": views,
        "on_paper": ON_PAPER,
        "most_panels": PANELS_ON_PAPER if paper else PANELS,
        "single": [view for view in views if not view.folded],
        "threshold": moved,
        "data": script_data({"threshold": moved, "subgroups": subgroup_data(audit, called)}),
    }
    return page_of("audit.html", context, SCRIPTS, paper=paper)


def _shared(audit: Audit, called: Called, origin: Origin | None) -> dict[str, Any]:
    """What several sections use, the frame of the page, and where the audit comes from."""
    return {
        "title": audit.name,
        "kind": "audit",
        "version": __version__,
        "origin": origin,
        "when": "" if origin is None else date_words(origin.when),
        "audit": audit,
        "called": called,
        "level": percent(audit.settings.level),
        "min_patients": audit.settings.min_patients,
        "rates": RATES,
        "gap_words": gap_words,
        "comparisons": comparison_words(audit),
        "sampled": sampled_words(audit),
        "size_words": how_many(audit.rows, audit.patients),
        "unit": "rows" if audit.patients is None or audit.patients != audit.rows else "patients",
        "decisions": DECISIONS,
        "limits": LIMITS,
    }


def _answer(audit: Audit, words: Mapping[str, str], views: list[AuditView]) -> dict[str, Any]:
    """The sentence that the page begins with, and the numbers below it."""
    style, text = answer(audit, words)
    clear = [(measure, e) for view in views for measure, rows in view.gaps.items() for e in rows if e.clear]
    largest = largest_gap(audit.gaps)
    return {
        "style_of_answer": style,
        "answer": text,
        "conclusion": conclusion(audit, words),
        "interval_words": interval_words(audit),
        "harms": harms(audit),
        "largest": None if largest is None else Estimate.of_gap(dict(largest)),
        "largest_measure": "" if largest is None else str(largest["measure"]),
        "clear": clear[:SHOWN_CLEAR],
        "more_clear": max(0, len(clear) - SHOWN_CLEAR),
        "performance": [(name, audit[name]) for name in PERFORMANCE if name in audit.estimates],
        "performance_words": PERFORMANCE,
        "of_scores": [(name, audit[name]) for name in OF_ALL if name in audit.estimates],
        "baseline_words": baseline_words(audit.baseline, audit.settings.level),
    }


def audits_page(
    audits: Audits,
    links: Mapping[str, str],
    given: Mapping[str, str] | None = None,
    origin: Origin | None = None,
    *,
    paper: bool = False,
) -> str:
    """The overview of several labels as HTML: a matrix of labels by groups, and the answer for each; `links` are their pages."""
    first = next(iter(audits.values()))
    names = group_words(given, attributes_of(first))
    rows = []
    for label, audit in audits.items():
        style, text = answer(audit, names, brief=True)
        rows.append({"label": label, "href": links.get(label, ""), "style": style, "answer": text, "audit": audit})
    clear = audits.no_finding
    context: dict[str, Any] = {
        "title": audits.name,
        "kind": "audit",
        "kind_words": audits.kind,
        "version": __version__,
        "origin": origin,
        "when": "" if origin is None else date_words(origin.when),
        "rows": rows,
        "matrices": matrices(audits),
        "harmed": [row["label"] for row in rows if row["style"] == "harm"],
        "findings": audits.findings,
        "comparisons": comparison_words(first),
        "size_words": how_many(first.rows, first.patients),
        "gap_words": gap_words,
        "called": lambda group: names.get(group, group),
        "level": percent(first.settings.level),
        "underdiagnosis": [] if clear is None else underdiagnosis_rows(clear),
        "no_finding": clear,
        "limits": LIMITS,
        "decisions": DECISIONS,
        "sections": {"signoff": ""},
    }
    return page_of("audits.html", context, ("page.js",), paper=paper)


def matrices(audits: Audits) -> list[dict[str, Any]]:
    """One matrix per measure, those of missed findings and false alarms first: the gap of each group, by label; without intersections."""
    first = next(iter(audits.values()))
    single = [attribute for attribute in first.references if attribute not in crossed(list(first.references))]
    measures = distinct(first.gaps["measure"].unique())
    found = []
    for measure in sorted(measures, key=lambda name: ON_PAPER.index(name) if name in ON_PAPER else len(ON_PAPER)):
        cells: dict[str, dict[tuple[str, str], Estimate]] = {}
        for label, audit in audits.items():
            own = audit.gaps[audit.gaps["attribute"].isin(single) & (audit.gaps["measure"] == measure)].to_dict("records")
            cells[label] = {(str(row["attribute"]), str(row["group"])): Estimate.of_gap(row) for row in own}
        groups = list(dict.fromkeys(key for row in cells.values() for key in row))
        columns = [(name, first.references[name], [group for attribute, group in groups if attribute == name]) for name in single]
        sizes = [abs(e.value) for row in cells.values() for e in row.values() if not math.isnan(e.value)]
        found.append({"measure": measure, "columns": columns, "cells": cells, "widest": max([0.05, *sizes])})
    return found


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
