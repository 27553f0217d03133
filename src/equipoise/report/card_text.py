r"""Text for model cards: names from users' files that can be neither markup nor control characters, and metadata as YAML.

Both cards are Markdown (the CHAI schema's text fields too), and one of them lies inside XML, which forbids some characters altogether.
"""

import json
import re
from collections.abc import Mapping, Sequence

from equipoise.report.terminal import printable

LONGEST_NAME, LONGEST_LINE = 60, 800
# What XML forbids besides controls, what no file can hold, and what some readers take for the end of a line or of a file.
UNFIT = re.compile("[\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff\u2028\u2029\ufeff]")
# What Markdown or HTML could act on; a '_' inside a word and an '&' that begins no entity are harmless and stay readable.
MARKUP = re.compile(r"([\\`*\[\]<|~#$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|&(?=#?\w+;))")
HTML = re.compile(r"<(?!https?://|mailto:)(?=[A-Za-z/!?])")


def clean(text: object) -> str:
    r"""The text with control characters, changes of direction and broken characters written out. Lines stay.

    >>> clean("a\x00b\ud800c")
    'a\\x00b\\ud800c'
    """
    return printable(UNFIT.sub(lambda found: found[0].encode("unicode_escape").decode(), str(text).expandtabs(4)))


def name(value: object, longest: int = LONGEST_NAME) -> str:
    r"""A name from a user's file on one line of Markdown, shortened, with nothing in it that Markdown or HTML would act on.

    >>> print(name("<b>|two\nlines"))
    \<b>\|two\\nlines
    """
    text = clean(value).replace("\n", "\\n")
    if len(text) > longest:
        text = f"{text[: longest - 20]} ... {text[-15:]}"
    return MARKUP.sub(r"\\\1", text)


def line(value: object) -> str:
    """The same for a whole sentence that may hold names, such as the description of a decision rule."""
    return name(value, LONGEST_LINE)


def prose(text: str) -> str:
    """What the user wrote for the card: Markdown stays, HTML is shown as text.

    >>> prose("**see** <https://a.org>, p < 0.05 <script>")
    '**see** <https://a.org>, p < 0.05 &lt;script>'
    """
    return HTML.sub("&lt;", clean(text).strip())


def fenced(text: object, language: str = "") -> str:
    """A block of code, with a fence that nothing in it can close."""
    body = clean(text)
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", body)), default=0))
    return f"{fence}{language}\n{body}\n{fence}"


def spread(value: float, low: float, high: float, sign: str = "") -> str:
    """A value with its interval, or 'insufficient data' for NaN."""
    if value != value:
        return "insufficient data"
    return f"{value:{sign}.3f} [{low:{sign}.3f}, {high:{sign}.3f}]"


def to_yaml(value: object, indent: int = 0) -> str:
    """Mappings, lists, texts and numbers as block YAML in which every text is quoted, so that none of them means anything else.

    >>> print(to_yaml({"tags": ["a: b", "no"], "value": 1e-05}))
    tags:
      - "a: b"
      - "no"
    value: 1.0e-05
    """
    pad = " " * indent
    if isinstance(value, Mapping):
        rows = []
        for key, inner in value.items():
            block = isinstance(inner, (Mapping, list, tuple)) and len(inner) > 0
            rows.append(f"{pad}{key}:" + (f"\n{to_yaml(inner, indent + 2)}" if block else f" {to_yaml(inner)}"))
        return "\n".join(rows) if rows else "{}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        items = [to_yaml(inner, indent + 2) for inner in value]
        return "\n".join(f"{pad}- {item.lstrip()}" for item in items) if items else "[]"
    if isinstance(value, (int, float)):
        text = repr(value).lower()
        return text if "e" not in text or "." in text else text.replace("e", ".0e")  # YAML reads 1e-05 as text
    return json.dumps(clean(value), ensure_ascii=False)
