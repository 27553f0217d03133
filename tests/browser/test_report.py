"""The report in a real browser: it opens alone, every figure is there, lines can be dragged, and no name in it runs."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from equipoise.comparison import Comparison, below_upper_bound
from equipoise.methods import Goal, select
from equipoise.report.explorer import explorer_data, thin
from equipoise.report.text import amount, number
from equipoise.report.wording.names import SHOWN_RATES, upper_bound_words
from support.cases import GOAL, HOSTILE, HOSTILE_COLUMN, HOSTILE_NOTE, small_case
from support.facts import says
from support.goals import paper_goal
from support.watched_pages import OPEN, Watched


@pytest.fixture
def open_report(browser, tmp_path: Path) -> Iterator[Callable[..., Watched]]:
    """Writes the report of a case and opens the file."""
    contexts = []

    def opened(
        case: Comparison, *, width: int = 1200, colours: str = "light", folded: bool = False, scripts: bool = True, **options
    ) -> Watched:
        path = tmp_path / "report.html"
        case.report(path, **options)
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=colours, java_script_enabled=scripts)
        contexts.append(context)
        found = Watched(context.new_page())
        found.page.goto(path.as_uri())
        if not folded and scripts:
            found.page.locator("section.folded > details").evaluate_all(OPEN)
            found.page.wait_for_timeout(50)  # a figure that was folded is drawn again
        return found

    yield opened
    for context in contexts:
        context.close()


def test_a_printed_page_lists_no_contents_since_it_lacks_some_of_the_sections(open_report):
    page = open_report(small_case(), folded=True).page
    assert page.locator("nav").is_visible()
    page.evaluate("document.documentElement.setAttribute('data-paper', '')")
    assert not page.locator("#explorer").is_visible()
    assert not page.locator("nav").is_visible()


@pytest.mark.parametrize("width", [700, 970, 1000, 1200])
def test_no_heading_of_a_table_is_broken_inside_a_word(open_report, width):
    page = open_report(small_case(), width=width).page
    narrow = """heads => heads.filter(th => th.offsetParent).map(th => {
        const wide = document.createElement("span"); wide.textContent = th.textContent; wide.style.whiteSpace = "nowrap"; th.append(wide);
        const style = getComputedStyle(th), room = th.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
        return th.textContent.includes(" ") || wide.offsetWidth <= room ? "" : wide.textContent;
    }).filter(text => text)"""
    assert page.eval_on_selector_all("#gaps thead th:not(.plot)", narrow) == []


def _rows(page) -> list[list[str]]:
    return page.eval_on_selector_all("#choices tbody tr", "rows => rows.map(r => [...r.querySelectorAll('td')].map(c => c.textContent))")


def _expected(case: Comparison, goal: Goal) -> list[list[str]]:
    """The table of choices by the rule of the library."""
    rows = []
    for repair in case.candidates:
        trace = repair.candidate.trace
        picked = select(trace, goal)
        row = trace.iloc[picked.row]
        threshold = "—" if np.isnan(row["threshold"]) else number(row["threshold"], 3)
        met = "yes" if picked.met else "no"
        below = upper_bound_words(below_upper_bound(case.original.valid, goal, float(row["gap"]), float(row["performance"])))
        rows.append([f"{int(row['step']):,}", amount(row["gap"], "points"), amount(row["performance"]), threshold, met, below])
    return rows


TWO_ATTRIBUTES = {"rows": 2000, "second": True, "missing": 0.05}  # one case for all tests that need a second attribute


@pytest.mark.parametrize("options", [{}, TWO_ATTRIBUTES, {"pictures": True}])
def test_it_opens_from_a_file_and_asks_for_nothing_else(open_report, options: dict):
    opened = open_report(small_case(**options), thumbnails=True)
    opened.page.mouse.wheel(0, 4000)
    assert opened.said == []
    assert [url for url in opened.asked if not url.startswith("data:image/png")] == [opened.page.url]
    assert opened.page.url.startswith("file://")


def test_every_figure_is_there_and_says_what_it_shows(open_report):
    case = small_case(pictures=True)
    page = open_report(case, thumbnails=True).page
    page.locator("details").evaluate_all(OPEN)
    sections = ["verdict", "affected", "options", "gaps", "groups", "cohort", "signoff", "limits"]
    sections += ["explorer", "trajectories", "curves", "separation", "images", "method"]
    assert page.eval_on_selector_all("main > section", "all => all.map(s => s.id)") == sections
    assert page.eval_on_selector_all("nav a", "all => all.map(a => a.hash.slice(1))") == sections
    labels = page.eval_on_selector_all("svg[role=img]", "all => all.map(f => f.getAttribute('aria-label'))")
    assert all(labels)
    assert page.locator("#groups .panel svg").count() == 2  # calibration before and after
    assert page.locator("#curves .panel svg").count() == 2 + 2 * 2 + 2  # ROC, scores and decision curves of two groups
    assert page.locator("#trajectories .panel svg").count() == 3  # equalised odds has no path
    assert page.locator("#groups .forest:not(.head)").count() == len(SHOWN_RATES) * 2
    assert page.locator("#gaps .forest:not(.head)").count() == 4  # measures that mirror another are not repeated
    assert page.locator("#images img").count() == 12 + 2
    assert all(page.eval_on_selector_all("img", "all => all.map(i => i.alt && i.naturalWidth > 0)"))
    assert page.locator("#plot .now").count() == len(case.candidates)
    assert all(page.eval_on_selector_all(".panel svg, .forest, #plot svg", "all => all.map(f => f.getBoundingClientRect().width > 50)"))


def test_at_the_start_the_table_is_what_the_run_chose(open_report):
    case = small_case()
    rows = _rows(open_report(case).page)
    for row, repair in zip(rows, case.candidates, strict=True):
        chosen = repair.candidate.trace.iloc[repair.candidate.chosen]
        assert row[:3] == [f"{int(chosen['step'])}", amount(chosen["gap"], "points"), amount(chosen["performance"])]


def test_dragging_the_floor_chooses_other_steps_and_changes_the_table(open_report):
    case = small_case(steps=60)
    page = open_report(case).page
    before, marks = _rows(page), page.eval_on_selector_all("#plot .now", "all => all.map(m => m.getAttribute('d'))")
    page.locator("#line-min_performance").scroll_into_view_if_needed()
    knob = page.locator("#line-min_performance circle").bounding_box()
    x, y = knob["x"] + knob["width"] / 2, knob["y"] + knob["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x, y - 30, steps=4)
    page.mouse.move(x, y - 60, steps=4)
    page.mouse.up()
    min_performance = float(page.locator("#line-min_performance").get_attribute("aria-valuenow"))
    assert min_performance > 100 * GOAL.min_performance + 2
    assert _rows(page) != before
    assert page.eval_on_selector_all("#plot .now", "all => all.map(m => m.getAttribute('d'))") != marks
    assert says(page.locator("#explorer-says").text_content(), f"{min_performance:.1f}%")
    page.mouse.move(x, y)  # without a button nothing follows
    assert float(page.locator("#line-min_performance").get_attribute("aria-valuenow")) == min_performance
    page.locator("#reset").click()
    assert _rows(page) == before


@pytest.mark.parametrize("min_performance", [0.80, 0.775, 0.99])
def test_a_floor_that_is_typed_chooses_as_the_library_does(open_report, min_performance: float):
    case = small_case(steps=60)
    page = open_report(case).page
    page.locator("#min_performance").fill(f"{100 * min_performance:.1f}")
    assert _rows(page) == _expected(case, GOAL.changed(min_performance=min_performance))


def test_the_lines_are_sliders_for_the_keyboard(open_report):
    case = small_case(steps=60)
    page = open_report(case).page
    line = page.locator("#line-min_performance")
    assert line.get_attribute("role") == "slider"
    line.focus()
    for _ in range(6):
        page.keyboard.press("ArrowUp")
    assert line.get_attribute("aria-valuenow") == "77.0"
    assert line.get_attribute("aria-valuetext") == "77.0% balanced accuracy"
    assert _rows(page) == _expected(case, GOAL.changed(min_performance=0.77))
    page.keyboard.press("End")
    assert line.get_attribute("aria-valuenow") == line.get_attribute("aria-valuemax")
    assert {row[4] for row in _rows(page)} == {"no"}
    page.keyboard.press("PageDown")
    assert float(line.get_attribute("aria-valuenow")) == pytest.approx(float(line.get_attribute("aria-valuemax")) - 5, abs=0.11)


def test_a_bound_can_be_added_and_stand_alone(open_report):
    case = small_case(steps=60)
    page = open_report(case).page
    assert not page.locator("#line-max_gap").is_visible()
    assert page.locator("#use-min_performance").is_disabled()  # one of the two is needed
    page.locator("#use-max_gap").check()
    assert _rows(page) == _expected(case, GOAL.changed(max_gap=0.05))
    page.locator("#use-min_performance").uncheck()
    assert _rows(page) == _expected(case, GOAL.changed(min_performance=None, max_gap=0.05))
    page.locator("#line-max_gap").focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("#line-max_gap").get_attribute("aria-valuetext") == "5.5 percentage points"
    assert _rows(page) == _expected(case, GOAL.changed(min_performance=None, max_gap=0.055))


def test_every_tab_stop_can_be_seen_and_none_traps(open_report):
    page = open_report(small_case()).page
    seen = []
    for _ in range(120):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("document.activeElement.id || document.activeElement.textContent.trim().slice(0, 20)"))
    assert {"theme", "line-min_performance", "use-max_gap", "reset", "walk"} <= set(seen)


def test_steps_can_be_looked_at_one_by_one_and_under_the_pointer(open_report):
    case = small_case(steps=60)
    page = open_report(case).page
    page.locator("#walk-method").select_option(label="pruning")
    page.locator("#walk").fill("17")
    row = case.candidates[1].candidate.trace.iloc[17]
    said = page.locator("#walk-says").text_content()
    margins = explorer_data(case, "")["margin"]
    gap, performance = (f"± {100 * margins[key]:.1f} at most" for key in ("gap", "performance"))
    assert said.startswith("pruning, step 17")
    assert says(said, amount(row["gap"], "points"), gap, amount(row["performance"]), performance)
    page.locator("#plot").scroll_into_view_if_needed()
    box = page.locator("#plot .now").first.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2 + 1)
    assert page.locator(".tip").is_visible()
    assert "step" in page.locator(".tip").text_content()


def _random_traces(count: int) -> Iterator[tuple[pd.DataFrame, Goal]]:
    """Traces with ties, and goals that many, one or none of their steps reach."""
    rng = np.random.default_rng(0)
    for k in range(count):
        n = int(rng.integers(1, 60))
        digits = int(rng.integers(1, 4))  # few digits: many ties
        gap, performance = np.round(rng.normal(0, 0.2, n), digits), np.round(rng.uniform(0.4, 0.9, n), digits)
        min_performance, max_gap = (float(np.round(rng.uniform(0, high), digits)) for high in (1.0, 0.4))
        goal = paper_goal(min_performance=None if k % 3 == 1 else min_performance, max_gap=None if k % 3 == 0 else max_gap)
        yield pd.DataFrame({"step": range(n), "gap": gap, "performance": performance, "threshold": 0.5}), goal


def test_the_page_chooses_what_select_chooses(open_report):
    page = open_report(small_case()).page
    traces = list(_random_traces(600))
    sent = [[t["gap"].tolist(), t["performance"].tolist(), g.min_performance, g.max_gap] for t, g in traces]
    found = page.evaluate("all => all.map(([g, p, f, b]) => equipoise.select(g, p, f, b))", sent)
    wanted = [select(t, g) for t, g in traces]
    assert [(f["row"], f["met"]) for f in found] == [(w.row, w.met) for w in wanted]
    assert {w.met for w in wanted} == {True, False}


def test_thinning_loses_no_choice(open_report):
    page = open_report(small_case()).page
    sent, wanted = [], []
    for trace, goal in _random_traces(300):
        kept, _ = thin(trace, 0, shown=3)
        part = trace.iloc[kept]
        sent.append([part["gap"].tolist(), part["performance"].tolist(), goal.min_performance, goal.max_gap])
        wanted.append((trace, goal, kept))
    found = page.evaluate("all => all.map(([g, p, f, b]) => equipoise.select(g, p, f, b))", sent)
    for choice, (trace, goal, rows) in zip(found, wanted, strict=True):
        picked = select(trace, goal)
        assert (rows[choice["row"]], choice["met"]) == (picked.row, picked.met)


def test_long_traces_are_thinned_and_the_page_says_so(open_report):
    case = small_case(methods=("bias-gda", "pruning"), steps=(1000, 12))
    page = open_report(case).page
    assert says(page.locator("#explorer").text_content(), "1,001")
    page.locator("#min_performance").fill("79.5")
    assert _rows(page) == _expected(case, GOAL.changed(min_performance=0.795))


def test_hostile_names_are_text_and_run_nothing(open_report):
    case = small_case(hostile=True, pictures=True)
    opened = open_report(case, thumbnails=True)
    page = opened.page
    page.locator("#plot").scroll_into_view_if_needed()
    page.locator("#line-min_performance").focus()
    page.keyboard.press("ArrowUp")
    page.wait_for_timeout(100)
    assert opened.said == []
    assert [url for url in opened.asked if not url.startswith("data:image/png")] == [page.url]
    assert page.locator("script").count() == 2  # the data and the page's own
    assert page.locator("[onerror], [onmouseover], img[src=x]").count() == 0
    text = page.locator("body").text_content()
    for name in (HOSTILE_COLUMN, HOSTILE[0], HOSTILE[1], HOSTILE[2], HOSTILE_NOTE.replace("\u202e", "\\u202e")):
        assert name in text
    assert "\u202e" not in text
    assert "\\u202eright to left\\u202c مجموعة" in text
    assert page.title().startswith(HOSTILE[0])


def test_a_name_of_ten_thousand_letters_is_short_in_tables_and_whole_at_the_end(open_report):
    page = open_report(small_case(hostile=True, pictures=True)).page
    link = page.locator("#cohort a.long").first
    assert len(link.text_content()) <= 40
    link.click()
    target = page.evaluate("location.hash.slice(1)")
    assert page.locator(f"#{target}").text_content() == HOSTILE[3]
    assert page.locator(f"#{target}").bounding_box()["height"] < 300


@pytest.mark.parametrize("options", [{"pictures": True}, TWO_ATTRIBUTES])
def test_on_a_desktop_it_is_short_until_it_is_unfolded(open_report, options: dict):
    page = open_report(small_case(**options), width=1280, folded=True, thumbnails=True).page
    assert page.evaluate("document.documentElement.scrollHeight") <= 7600  # 1,140 of them are the options
    assert page.locator("#plot").count() == 1
    assert not page.locator("#plot").is_visible()


def test_a_link_to_a_folded_section_opens_it(open_report):
    page = open_report(small_case(), folded=True).page
    page.locator("nav a[href='#curves']").click()
    page.locator("#curves .panel").first.wait_for(state="visible")
    assert not page.locator("#method dl").first.is_visible()


def test_without_scripts_nothing_is_dead(open_report):
    page = open_report(small_case(), scripts=False).page
    assert page.locator("[data-outcome]").is_visible()
    assert not page.locator("#theme").is_visible()
    page.locator("#explorer summary").first.click()
    assert page.locator("#choices").is_visible()
    assert not page.locator("#explore").is_visible()
    assert page.locator("#explorer noscript p").is_visible()


@pytest.mark.parametrize("options", [{}, {"hostile": True}, {"groups": tuple("ABCDEFGHI"), "second": True, "methods": ("pruning",)}])
def test_a_phone_needs_no_sideways_scroll(open_report, options: dict):
    page = open_report(small_case(pictures=True, **options), width=360, thumbnails=True).page
    page.locator("details").evaluate_all(OPEN)
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    assert page.evaluate("getComputedStyle(document.body).overflowX") == "visible"  # it fits, nothing is cut off
    assert page.locator("#plot svg").bounding_box()["width"] <= 360


def test_colours_follow_the_system_and_the_button(open_report):
    def paper(page) -> str:
        return page.evaluate("getComputedStyle(document.body).backgroundColor")

    page = open_report(small_case(), colours="dark").page
    dark = paper(page)
    page.locator("#theme").click()
    light = paper(page)
    page.locator("#theme").click()
    assert (light, paper(page)) == ("rgb(255, 255, 255)", dark)
    assert dark != light
    page.emulate_media(media="print")
    assert paper(page) == light
    assert not page.locator("#theme").is_visible()
    assert not page.locator(".controls").is_visible()
    assert page.locator("#plot svg").is_visible()


def test_what_is_folded_is_open_on_paper(open_report):
    page = open_report(small_case(**TWO_ATTRIBUTES)).page
    assert page.locator("details:not([open])").count() > 0
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("details:not([open])").count() == 0
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator("details:not([open])").count() > 0


def test_the_best_rule_is_a_line_where_there_is_one(open_report):
    case = small_case(steps=60)
    page = open_report(case).page
    corners = "b = path.getBBox(), s = path.ownerSVGElement.viewBox.baseVal"
    script = f"path => {{ const {corners}; return [b.x, b.y, b.x + b.width, b.y + b.height, s.width, s.height]; }}"
    left, top, right, bottom, width, height = page.eval_on_selector("#plot path.best", script)
    assert 0 < left < 0.2 * width
    assert 0.9 * width < right <= width
    assert 0 <= top <= bottom < height
    assert "upper bound (group-aware)" in page.locator("#legend").inner_text()
    page = open_report(small_case(goal=paper_goal("eod", "f1", min_performance=0.4), methods=("bias-gda",))).page
    assert page.locator("#plot path.best").count() == 0
    assert "upper bound" not in page.locator("#legend").inner_text()
    assert {len(row) for row in _rows(page)} == {5}
