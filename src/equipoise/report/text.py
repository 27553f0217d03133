"""Text and numbers of every output: names from users' files made safe and short, numbers and intervals formatted.

Shares are percentages with one decimal place, differences are percentage points; cards and tables in a terminal show fractions with three.
"""

import math
import re
from datetime import datetime

INSUFFICIENT = "insufficient data"
LONGEST = 40  # characters of a name on a page; the list of names at its end shows it in full
LONGEST_NAME, LONGEST_LINE = 60, 800  # characters of a name in a table or a card, and of a sentence in a card
MINUS = "\N{MINUS SIGN}"
# Controls, colours, line breaks and changes of direction; characters that XML forbids, that UTF-8 cannot encode, or that some readers take
# for the end of a file. U+2028, U+FFFE and U+FFFF in a name also stop the program that draws figures.
CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff\ufeff]")
# Characters with a meaning in Markdown or HTML; a '_' inside a word and an '&' that begins no entity are harmless and stay readable.
MARKUP = re.compile(r"([\\`*\[\]<|~#$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|&(?=#?\w+;))")
HTML = re.compile(r"<(?!https?://|mailto:)(?=[A-Za-z/!?])")


# Text from users' files


class Span(str):
    """Text of a kind: a "name" from a user's file, an element of HTML ("strong", "em", "code"), or a class of the style sheet."""

    __slots__ = ("kind",)
    kind: str

    def __new__(cls, text: object, kind: str = "name") -> "Span":
        made = super().__new__(cls, text)
        made.kind = kind
        return made


def printable(text: str) -> str:
    r"""The text with unsafe characters escaped, so that a name in a file cannot control the terminal. Line breaks stay.

    >>> printable("\x1b[31mred")
    '\\x1b[31mred'
    """
    return CONTROLS.sub(lambda match: match[0] if match[0] == "\n" else match[0].encode("unicode_escape").decode(), text)


def plain(value: object) -> str:
    """A name from a user's file on one line, with unsafe characters escaped."""
    return CONTROLS.sub(lambda match: match[0].encode("unicode_escape").decode(), str(value))


def short(value: object, longest: int = LONGEST) -> str:
    """A name on one line; if it is too long, its middle is left out, and its last 12 characters stay.

    >>> short("a" * 50)
    'aaaaaaaaaaaaaaaaaaaaaaaaaaa…aaaaaaaaaaaa'
    """
    text = plain(value)
    return text if len(text) <= longest else f"{text[: longest - 13]}…{text[-12:]}"


def p_value_words(p: float) -> str:
    """A p-value with three decimals; empty for NaN.

    >>> p_value_words(0.0321), p_value_words(2e-7), p_value_words(1.0), p_value_words(float("nan"))
    ('0.032', '<0.001', '1.000', '')
    """
    if math.isnan(p):
        return ""
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def short_name(value: object) -> str:
    """A name for a table in a terminal or a figure."""
    return short(value, LONGEST_NAME)


def sentence(text: str) -> str:
    """The text with a capital first letter; F1 stays F1."""
    return text[:1].upper() + text[1:]


def clean(text: object) -> str:
    r"""The text with unsafe characters escaped and tabs as blanks, for XML and YAML. Line breaks stay.

    >>> clean("a\x00b\ud800c")
    'a\\x00b\\ud800c'
    """
    return printable(str(text).expandtabs(4))


def name(value: object, longest: int = LONGEST_NAME) -> str:
    r"""A name on one line of Markdown, shortened, with all markup escaped.

    >>> print(name("<b>|two\nlines"))
    \<b>\|two\\nlines
    """
    return MARKUP.sub(r"\\\1", short(str(value).expandtabs(4), longest))


def line(value: object) -> str:
    """A sentence that may contain names, as one line of Markdown."""
    return name(value, LONGEST_LINE)


def prose(text: str) -> str:
    """Text that the user wrote for the card: Markdown is kept, HTML is escaped.

    >>> prose("**see** <https://a.org>, p < 0.05 <script>")
    '**see** <https://a.org>, p < 0.05 &lt;script>'
    """
    return HTML.sub("&lt;", clean(text).strip())


def fenced(text: object, language: str = "") -> str:
    """A Markdown code block, with a fence longer than any run of backticks inside it."""
    body = clean(text)
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", body)), default=0))
    return f"{fence}{language}\n{body}\n{fence}"


# Numbers


def number(value: float, digits: int, sign: bool = False) -> str:
    """A number with a typographic minus sign, and no sign before zero.

    >>> number(-0.04, 1), number(-2.25, 2), number(3, 1, sign=True)
    ('0.0', '−2.25', '+3.0')
    """
    text = f"{value:+,.{digits}f}" if sign else f"{value:,.{digits}f}"
    if not text.strip("+-0.,"):
        text = text.strip("+-")
    return text.replace("-", MINUS)


def amount(value: float | None, kind: str = "share") -> str:
    """A value by its kind.

    Kinds: share '78.2%', area '0.861', number '1.07', signed '−0.31', points '−3.1', size '3.1', detectable '3.1' or 'none', and per 1,000
    with so many digits, thousand0 '43' or, with a sign, thousand1+ '+43.2'.
    """
    if value is None or math.isnan(value):
        return "none" if kind == "detectable" else INSUFFICIENT
    return _by_kind(value, kind) + ("%" if kind == "share" else "")


def span(low: float, high: float, kind: str = "share") -> str:
    """The ends of an interval, without a percent sign: '71.0 to 84.1'; empty if either is NaN."""
    if math.isnan(low) or math.isnan(high):
        return ""
    return f"{_by_kind(low, kind)} to {_by_kind(high, kind)}"


def _by_kind(value: float, kind: str) -> str:
    if kind.startswith("thousand"):
        return number(1000 * value, int(kind[8]), sign=kind.endswith("+"))
    if kind in ("number", "signed"):
        return number(value, 2, sign=kind == "signed")
    return number(value, 3) if kind == "area" else number(100 * value, 1, sign=kind == "points")


def interval(value: float, low: float, high: float, sign: str = "") -> str:
    """A fraction with its interval, or 'insufficient data' for NaN.

    >>> interval(0.1234, 0.1, 0.15), interval(-0.1, -0.2, 0.03, "+"), interval(float("nan"), 0, 0)
    ('0.123 [0.100, 0.150]', '-0.100 [-0.200, +0.030]', 'insufficient data')
    """
    if math.isnan(value):
        return INSUFFICIENT
    ends = ("?" if math.isnan(end) else f"{end:{sign}.3f}" for end in (low, high))
    return f"{value:{sign}.3f} [{', '.join(ends)}]"


def rows_counted(value: object) -> str:
    """A number of rows, or 'withheld' if it is missing because a group has too few patients.

    >>> rows_counted(1234), rows_counted(float("nan"))
    ('1,234', 'withheld')
    """
    import pandas as pd  # late: wrong options are reported without it

    return "withheld" if pd.isna(value) else f"{int(value):,}"  # type: ignore[call-overload]


def count(value: float, expected: bool = False, exact: bool = False) -> str:
    """A count; the expected count of a randomised rule is rounded, or has a decimal place in a table (`exact`).

    >>> count(1234), count(830.1, expected=True), count(3.21, expected=True), count(830.1, expected=True, exact=True)
    ('1,234', 'about 830', 'about 3.2', '830.1')
    """
    if not expected or exact:
        return number(value, 1 if expected else 0)
    return f"about {number(value, 0 if value >= 10 else 1)}" if value else "0"


def plural(count: int, noun: str) -> str:
    """A count with its noun.

    >>> plural(1, "comparison"), plural(1200, "comparison")
    ('1 comparison', '1,200 comparisons')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def how_many(rows: int, patients: int | None, kind: str = "") -> str:
    """The number of patients and rows: '500 patients (1,200 rows)'.

    >>> how_many(1200, 500), how_many(1200, None, "test")
    ('500 patients (1,200 rows)', '1,200 test rows')
    """
    prefix = f"{kind} " if kind else ""
    if patients is None:
        return f"{rows:,} {prefix}rows"
    return f"{patients:,} {prefix}patients" + ("" if patients == rows else f" ({rows:,} rows)")


def percent(level: float) -> str:
    """A level as a percentage, 95% or 99.9%."""
    return f"{100 * level:.4g}%"


def duration(seconds: float) -> str:
    """A rough duration in words.

    >>> duration(0.2), duration(8), duration(700), duration(9000)
    ('1 s', '8 s', '12 min', '2.5 h')
    """
    if seconds < 90:
        return f"{max(1.0, seconds):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def date_words(when: str) -> str:
    """An ISO date and time in words; any other text is returned as it is, shortened."""
    try:
        moment = datetime.fromisoformat(when)
    except ValueError:
        return short(when)
    return f"{moment.day} {moment:%B %Y, %H:%M} {moment.tzname() or ''}".rstrip()
