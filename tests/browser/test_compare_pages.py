"""The pages of a comparison and of gaps over time in a real browser: alone, on a phone, in the dark, on paper, and with hostile names."""

from collections.abc import Iterator

import numpy as np
import pandas as pd
import pytest

import equipoise as eq
from equipoise.comparison import Comparison
from equipoise.measures import Monitoring
from equipoise.report.pdf import browser as printer
from support.audits import HOSTILE
from support.watched_pages import OPEN, PHONE, WIDE, Watched, check_words_stand_out, open_page

NAMES = {"F": "women", "M": "men"}


def _audit(seed: int, groups: list[str], gap: float = 0.0, name: str = "y") -> eq.Audit:
    rng = np.random.default_rng(seed)
    rows = 160 * len(groups)
    frame = pd.DataFrame({"y": rng.integers(0, 2, rows), "sex": np.tile(groups, 160), "age": rng.choice(["old", "young"], rows)})
    frame["p"] = np.clip(0.3 + 0.4 * frame.y - gap * ((frame.sex == groups[0]) & (frame.y == 1)) + rng.normal(0, 0.2, rows), 0, 1)
    scores = eq.Scores.from_frame(frame, label="y", score="p", group=["sex", "age"], reference=[groups[-1], "old"], name=name)
    return eq.audit(scores, measures=["eod", "fpr_gap"], thresholds="0.2:0.3")


@pytest.fixture(scope="module")
def compared() -> Comparison:
    return eq.compare({"Uster": _audit(0, ["F", "M"]), "Chur": _audit(1, ["F", "M"], 0.4)})


@pytest.fixture(scope="module")
def followed() -> Monitoring:
    return eq.history({f"2026-{month:02}": _audit(month, ["F", "M"], 0.4 * (month > 3)) for month in range(1, 7)}).monitor()


@pytest.fixture(scope="module", params=["compared", "followed"])
def opened(request, browser, tmp_path_factory) -> Iterator[Watched]:
    found = request.getfixturevalue(request.param)
    one = open_page(browser, found.report(tmp_path_factory.mktemp("page") / "page.html", group_names=NAMES))
    yield one
    one.page.context.close()


def test_it_opens_alone_says_nothing_and_lists_its_sections(opened):
    assert opened.said == []
    assert opened.asked == [opened.page.url]
    sections = opened.page.eval_on_selector_all("main > section", "all => all.map(s => s.id)")
    assert sections == opened.page.eval_on_selector_all("nav a", "all => all.map(a => a.hash.slice(1))")
    assert sections[0] == "verdict"
    assert "women" in opened.page.locator("#verdict .lead").inner_text()
    assert all(opened.page.eval_on_selector_all("svg[role=img]", "all => all.map(f => f.getAttribute('aria-label'))"))


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_words_stand_out_from_their_ground(opened, colours: str):
    check_words_stand_out(opened.page, colours, least=8)


def test_a_phone_needs_no_sideways_scroll_and_paper_has_no_controls(opened):
    page = opened.page
    page.set_viewport_size(PHONE)
    page.locator("details").evaluate_all(OPEN)
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
    page.set_viewport_size(WIDE)
    page.emulate_media(media="print")
    assert not page.locator("#theme").is_visible()
    assert page.locator("#verdict").is_visible()
    page.emulate_media(media="screen")


def test_intersections_are_folded_and_have_the_words_of_the_user(browser, compared, tmp_path):
    page = open_page(browser, compared.report(tmp_path / "page.html", group_names=NAMES)).page
    folded = page.locator("#gaps details")
    assert folded.count() == 1
    assert not folded.locator("table").is_visible()
    assert "women & young" in folded.text_content()
    assert "F & young" not in page.locator("body").text_content()
    page.context.close()


def test_a_chart_has_limits_that_lie_within_it(browser, followed, tmp_path):
    page = open_page(browser, followed.report(tmp_path / "page.html")).page
    ends = page.eval_on_selector_all("svg path.diagonal", "all => all.map(p => [p.getBBox().y, p.getBBox().y + p.getBBox().height])")
    low, high = page.eval_on_selector("svg .grid", "g => [g.ownerSVGElement.viewBox.baseVal.y, g.ownerSVGElement.viewBox.baseVal.height]")
    drawn = [end for end in ends if end != [0, 0]]
    assert len(drawn) >= len(followed.gaps)
    assert all(low < top <= bottom < high for top, bottom in drawn)
    page.context.close()


def test_hostile_names_are_text_and_run_nothing(browser, tmp_path):
    names = [name.strip() for name in HOSTILE]
    found = {"</script><script>alert(2)": _audit(0, names), '"><img src=x onerror=alert(1)>': _audit(1, names, 0.4)}
    made = [eq.compare(found).report(tmp_path / "a.html")]
    made.append(eq.history(dict(zip(("2026-01", "2026-02"), found.values(), strict=True))).monitor().report(tmp_path / "b.html"))
    for path in made:
        opened = open_page(browser, path)
        page = opened.page
        page.locator("details").evaluate_all(OPEN)
        assert opened.said == []
        assert opened.asked == [page.url]
        assert page.locator("[onerror], img").count() == 0
        assert page.locator("script").count() == 1
        text = page.locator("body").text_content()
        assert HOSTILE[1] in text
        assert "\x1b" not in text
        page.set_viewport_size(PHONE)
        assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
        page.context.close()


@pytest.mark.parametrize("kind", ["compared", "followed"])
def test_the_pdf_is_short(request, tmp_path, kind: str):
    if printer() is None:
        pytest.skip("printing needs Chromium in PATH, or EQUIPOISE_CHROMIUM")
    made = request.getfixturevalue(kind).report(tmp_path / "page.pdf", group_names=NAMES).read_bytes()
    assert 1 <= sum(made.count(b"/Type /Page" + end) for end in (b"\n", b"/", b" ")) <= 4
