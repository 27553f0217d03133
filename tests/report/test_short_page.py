"""A saved report, read as data and written again: all that paper shows, and nothing that no report has."""

import pytest

from equipoise.errors import BadInput
from equipoise.report.pdf import short_page
from support.cases import HOSTILE_COLUMN, HOSTILE_NOTE, small_case
from support.facts import says
from support.pages import repair_page

HEAD = '<head>\n<meta name="generator" content="Equipoise">\n<title>A &lt;b&gt;</title></head>'
PAGE = f'<!doctype html>\n<html lang="en">\n{HEAD}\n<body>{{}}</body>\n</html>'


@pytest.mark.parametrize(
    "options",
    [
        {"rows": 200, "methods": ("equalised-odds",)},
        {"hostile": True, "pictures": True, "rows": 300, "methods": ("pruning",)},
        {"groups": tuple("ABCD"), "second": True, "rows": 300, "missing": 0.1, "methods": ("bias-gda",)},
    ],
)
def test_a_saved_report_becomes_the_page_that_is_printed_at_once(options):
    case = small_case(**options)
    again, at_once = (short_page(repair_page(case, paper=paper).encode(), "report.html") for paper in (False, True))
    assert again.partition("<footer>")[0].split() == at_once.partition("<footer>")[0].split()
    assert "data-paper" in again
    assert "default-src 'none'" in again
    assert not any(element in again for element in ("<script", "<img", "<nav", "<input", "<button"))


def test_hostile_names_stay_text():
    page = short_page(repair_page(small_case(hostile=True, pictures=True, rows=300, methods=("pruning",))).encode(), "report.html")
    assert says(page, HOSTILE_COLUMN.replace("<", "&lt;").replace(">", "&gt;").replace("'", "&#x27;"), "&lt;b onmouseover=alert(3)&gt;")
    assert HOSTILE_COLUMN not in page
    assert HOSTILE_NOTE not in page


@pytest.mark.parametrize(
    ("body", "facts"),
    [
        ("<iframe></iframe>", ("<iframe>", "line 6")),
        ('<p onclick="x"></p>', ("<p onclick>",)),
        ('<a href="https://a.org"></a>', ("<a href>",)),
        ('<a href="../b/report.html"></a>', ("<a href>",)),
        ('<p style="background: url(x)"></p>', ("<p style>",)),
        ("<style>p { color: red }</style>", ("<style>",)),
        ('<svg><use href="#a"/></svg>', ("<use/>",)),
        ("<p/>", ("<p/>",)),
        ("<p><span></p></span>", ("</p>",)),
        ("<P></P>", ("<P>",)),
        ("<p class=a></p>", ("<p class=a>",)),
        ("<!-- a -->", ("<!-- a -->",)),
        ("<?php ?>", ("<?php ?>",)),
        ("<![CDATA[a]]>", ("<![CDATA[a]]>",)),
        ("<script></script >", ("<script>", "line 6")),
        ("<script>1", ("<script>",)),
        ("<p>" * 200, ("100 elements",)),
    ],
)
def test_what_no_report_has_is_refused_with_its_name(body: str, facts: tuple[str, ...]):
    with pytest.raises(BadInput) as error:
        short_page(PAGE.format(body).encode(), "b/report.html")
    assert says(str(error.value), "b/report.html", *facts)


def test_another_page_and_another_encoding_are_refused():
    for content in (b"<html><p>of another program</p>", "<meta ü>".encode("latin-1")):
        with pytest.raises(BadInput, match=r"b\.html"):
            short_page(content, "b.html")


def test_text_is_escaped_and_links_to_other_pages_are_their_text():
    page = short_page(PAGE.format('<a href="Mass/report.html">Mass &lt;i&gt; &amp;amp;</a><br>').encode(), "b.html")
    assert "<a>Mass &lt;i&gt; &amp;amp;</a><br>" in page
    assert "<title>A &lt;b&gt;</title>" in page
