"""The report of an audit in a real browser: the threshold moves exactly, groups are explored, and no name in it runs.

One page is opened for most tests; each leaves it as it finds it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from equipoise.data import Scores
from equipoise.measures import Audit
from equipoise.report.pdf import browser as printer
from equipoise.report.text import amount
from support.audits import HOSTILE, audit_of, frame_of
from support.pages import audit_page
from support.watched_pages import OPEN, PHONE, WIDE, Watched, check_words_stand_out, open_page

NAMES = {"F": "women", "M": "men"}
GROUPS = "rows => rows.map(r => [r.querySelector('bdi').innerText, r.querySelector('.value').innerText])"


def _frame(n: int, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    y, sex, age = rng.integers(0, 2, n), rng.choice(["F", "M"], n), rng.choice(["old", "young"], n)
    p = 1 / (1 + np.exp(-rng.normal(-0.5 + 1.8 * y - 0.8 * ((sex == "F") & (y == 1)), 1)))
    return pd.DataFrame({"sex": sex, "age": age, "y": y, "p": p, "id": np.arange(n).astype(str)})


@dataclass(frozen=True)
class Opened:
    """An audit and its page."""

    scores: Scores
    audit: Audit
    watched: Watched

    @property
    def page(self) -> Any:
        return self.watched.page


def _opened(browser, folder: Path, scores, audit, **context) -> Opened:
    path = folder / "audit.html"
    path.write_text(audit_page(audit, NAMES if "F" in audit.groups.index else None), encoding="utf-8")
    return Opened(scores, audit, open_page(browser, path, **context))


@pytest.fixture(scope="module")
def opened(browser, tmp_path_factory) -> Iterator[Opened]:
    scores, audit = audit_of(_frame(1500), group=["sex", "age"], reference=["M", "old"], patient="id", threshold=0.4)
    found = _opened(browser, tmp_path_factory.mktemp("audit"), scores, audit)
    found.page.locator("section.folded > details").evaluate_all(OPEN)
    yield found
    found.page.context.close()


def _rates(page) -> dict[str, list[str]]:
    rows = page.eval_on_selector_all("#move-rates tbody tr", "rows => rows.map(r => [...r.children].map(c => c.innerText))")
    return {row[0].split()[0]: row[1:] for row in rows}


def test_it_opens_alone_and_says_nothing(opened):
    assert opened.watched.said == []
    assert opened.watched.asked == [opened.page.url]
    sections = opened.page.eval_on_selector_all("main > section", "all => all.map(s => s.id)")
    assert sections == opened.page.eval_on_selector_all("nav a", "all => all.map(a => a.hash.slice(1))")
    assert sections[:4] == ["verdict", "worse", "gaps", "groups"]
    assert all(opened.page.eval_on_selector_all("svg[role=img]", "all => all.map(f => f.getAttribute('aria-label'))"))


def test_at_the_threshold_in_use_the_slider_shows_the_rates_of_the_audit(opened):
    assert "0.4" in opened.page.locator("#move-now").inner_text()
    for group, name in NAMES.items():
        row = opened.audit.groups.loc[group]
        told = _rates(opened.page)[name]
        assert told[:4] == [amount(row[rate]) for rate in ("selection_rate", "tpr", "tnr", "ppv")]
        assert told[4:] == [f"{1000 * row['fnr']:.0f}", f"{1000 * row['fpr']:.0f}"]


def test_at_any_threshold_the_rates_are_exact_or_a_range_that_holds_them(opened):
    data = opened.page.evaluate("JSON.parse(document.getElementById('page-data').textContent).threshold")
    scores, words, exact, seen = opened.scores, {words: name for name, words in NAMES.items()}, 0, 0
    for at in data["positions"]:
        found = opened.page.evaluate("at => equipoise.ratesAt(at)", at)
        for own, attribute, groups in zip(scores.attributes, data["attributes"], found, strict=True):
            for group, told in zip(attribute["groups"], groups, strict=True):
                rows = own.codes == own.levels.index(words.get(group["name"], group["name"]))
                y, f = scores.y[rows], scores.score[rows] >= at
                wanted = {"flagged": f.mean(), "tpr": f[y == 1].mean(), "tnr": (~f)[y == 0].mean(), "alarms": f[y == 0].mean()}
                for rate, value in (wanted | ({"ppv": y[f].mean()} if f.any() else {})).items():
                    low, high = told[rate]
                    assert low - 1e-9 <= value <= high + 1e-9, (at, group["name"], rate)
                    exact, seen = exact + (high - low < 1e-12), seen + 1
    assert 0.3 * seen < exact < seen


def test_the_slider_moves_by_keyboard_and_comes_back(opened):
    page, before = opened.page, _rates(opened.page)
    page.locator("#move-at").focus()
    for _ in range(5):
        page.keyboard.press("ArrowRight")
    assert _rates(page) != before
    assert page.locator("#move-at").get_attribute("aria-valuetext") != "0.4"
    page.locator("#move-attribute").select_option(label="age")
    assert set(_rates(page)) == {"old", "young"}
    page.locator("#move-attribute").select_option(label="sex")
    page.locator("#move-back").click()
    assert _rates(page) == before
    assert "women minus men" in page.locator("#move-says").inner_text()


def test_groups_are_sorted_and_filtered_by_any_rate(opened):
    page = opened.page

    def rows() -> list[tuple[str, str]]:
        return [tuple(row) for row in page.eval_on_selector_all("#group-rows tbody tr", GROUPS)]

    wanted = opened.audit.groups.sort_values("tpr")["tpr"]
    assert [value for _, value in rows()] == [amount(v) for v in wanted]
    assert len(rows()) == len(wanted) == 2 + 2 + 4
    page.locator("#group-order").select_option("high")
    assert [value for _, value in rows()] == [amount(v) for v in wanted[::-1]]
    page.locator("#group-attribute").select_option("sex & age")
    assert len(rows()) == 4
    page.locator("#group-least").fill(str(int(opened.audit.groups.loc["F & old", "n"]) + 1))
    assert "women & old" not in [name for name, _ in rows()]
    page.locator("#group-measure").select_option(label="AUROC")
    assert all(value.startswith("0.") for _, value in rows())
    assert opened.watched.said == []


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_words_stand_out_from_their_ground(opened, colours: str):
    check_words_stand_out(opened.page, colours, least=10)


def test_a_phone_needs_no_sideways_scroll_and_paper_has_no_controls(opened):
    page = opened.page
    page.set_viewport_size(PHONE)
    page.locator("details").evaluate_all(OPEN)
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    page.set_viewport_size(WIDE)
    page.emulate_media(media="print")
    assert not page.locator("#move").is_visible()
    assert not page.locator("#theme").is_visible()
    assert page.locator(".signoff").is_visible()
    page.emulate_media(media="screen")


def test_hostile_names_are_text_and_run_nothing(browser, tmp_path):
    found = _opened(
        browser, tmp_path, *audit_of(frame_of(HOSTILE, column='"><img src=x onerror=alert(1)>'), name="</script><script>alert(2)")
    )
    page = found.page
    page.locator("details").evaluate_all(OPEN)
    page.locator("#move-at").focus()
    page.keyboard.press("ArrowRight")
    page.locator("#group-order").select_option("high")
    assert found.watched.said == []
    assert found.watched.asked == [page.url]
    assert page.locator("[onerror], img").count() == 0
    assert page.locator("script").count() == 2
    text = page.locator("body").text_content()
    assert HOSTILE[1] in text
    assert "\x1b" not in text
    page.set_viewport_size(PHONE)
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    page.context.close()


def test_fifty_thousand_rows_make_a_small_file_that_still_moves(browser, tmp_path):
    scores, audit = audit_of(_frame(50_000, seed=2), group=["sex", "age"], reference=["M", "old"], threshold=0.4)
    found = _opened(browser, tmp_path, scores, audit)
    assert (tmp_path / "audit.html").stat().st_size < 5_000_000
    before = _rates(found.page)
    found.page.locator("#move-at").fill("3")
    assert _rates(found.page) != before
    assert found.watched.said == []
    found.page.context.close()


def test_the_pdf_of_an_audit_has_three_to_five_pages(opened, tmp_path):
    if printer() is None:
        pytest.skip("printing needs Chromium in PATH, or EQUIPOISE_CHROMIUM")
    made = opened.audit.report(tmp_path / "audit.pdf", group_names=NAMES).read_bytes()
    assert 3 <= made.count(b"/Type /Page\n") + made.count(b"/Type /Page/") + made.count(b"/Type /Page ") <= 5
