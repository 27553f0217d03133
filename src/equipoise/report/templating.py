"""Templates: the frame of every page with its style, scripts and their data, and the settings for HTML, XML, Markdown and plain text.

Everything in HTML is escaped. The Content-Security-Policy allows only the page's own script, by its hash, so no name in a user's file could
run as a script even if an escape were missed.
"""

import base64
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from equipoise.report.text import (
    LONGEST,
    amount,
    clean,
    count,
    fenced,
    line,
    name,
    p_value_words,
    plain,
    rows_counted,
    sentence,
    short,
    span,
    thousand,
)
from equipoise.report.wording.audits import left_out_words
from equipoise.report.wording.names import upper_bound_words

TEMPLATES = Path(__file__).parent / "templates"
LIMITS = (
    "A small difference in one measure does not mean that the classifier is equally good for every group. Other measures may differ, and "
    "some cannot be equal at the same time if the finding is more frequent in one group than in another.",
    "Labels are taken as the truth. If a group's disease is missed or over-diagnosed in the records, these measures inherit it.",
    "Groups are those of the given columns. Differences within a group, and groups that were not recorded, are not seen.",
    "The patients are those of these data, at this place and time. A new scanner, clinic or population needs a new audit.",
    "Intervals cover the sampling of patients, not errors of labels, recording or selection.",
    "Nothing here shows that a difference was caused by the group, nor that a decision is lawful or clinically right. "
    "That is for clinicians, patients and the committee.",
)


class LongNames:
    """The names that are too long for a table, in the order of their first use; the page lists them in full at its end."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def place(self, value: object) -> int | None:
        """The position of a long name in the list; None for a short name."""
        text = str(value)
        if len(plain(text)) <= LONGEST:
            return None
        if text not in self.names:
            self.names.append(text)
        return self.names.index(text)


def page_of(template: str, context: Mapping[str, Any], scripts: Sequence[str] = (), *, paper: bool = False) -> str:
    """A template with its context as HTML; on `paper`, without scripts and folded sections."""
    shared: dict[str, Any] = {"style": Markup(_read("report.css")), "book": LongNames(), "paper": paper}
    if scripts and not paper:
        script = "".join(map(_read, scripts))
        shared |= {"script": Markup(script), "script_hash": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}
    return render(template, shared | dict(context))


def render(template: str, context: Mapping[str, Any]) -> str:
    """A template with its context as text, with the settings of its kind, by the ending of its name."""
    return _environment(template.removesuffix(".j2").rpartition(".")[2]).get_template(template).render(context)


@cache
def _environment(kind: str) -> Environment:
    """The settings for html, xml, md or txt: an unknown name is an error, and HTML and XML are escaped.

    In Markdown, a template passes every name through the filter `name`, `line` or `fenced`. In plain text every value is on one line,
    with control characters escaped, unless it is marked as safe.
    """
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=kind in ("html", "xml"),
        finalize=FINALIZE.get(kind),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=kind in ("xml", "md"),
    )
    numbers = (amount, count, p_value_words, rows_counted, span, thousand)
    for function in (*numbers, fenced, left_out_words, line, name, plain, sentence, short, upper_bound_words):
        environment.filters[function.__name__] = function
    environment.tests["nan"] = math.isnan
    return environment


def _cleaned(value: object) -> object:
    return value if isinstance(value, Markup) else clean(value)  # the output of a macro is clean already


def _on_one_line(value: object) -> object:
    return value if isinstance(value, Markup) else plain(value)


FINALIZE = {"xml": _cleaned, "txt": _on_one_line}


def _read(file: str) -> str:
    return (TEMPLATES / file).read_text(encoding="utf-8")


def script_data(data: object) -> Markup:
    """JSON for a <script> element, with every character escaped that could end the element."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))  # ASCII: line separators are escaped too
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def numbered(contents: Mapping[str, str]) -> dict[str, Any]:
    """The contents of a page by anchor, and the number of each section."""
    return {"contents": list(contents.items()), "sections": {anchor: k + 1 for k, anchor in enumerate(contents)}}
