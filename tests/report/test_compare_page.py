"""The pages of comparisons and of gaps over time: numbers of the result, and names from users' files as text only."""

import io
import re

import numpy as np
import pandas as pd
import pytest

import equipoise as eq
from equipoise.comparison import Comparison
from equipoise.measures import Monitoring
from equipoise.report import condition_words
from equipoise.report.changes import monitoring_conclusion
from support.audits import joined

HOSTILE = "<script>alert(1)</script>"


def audit(seed: int, gap: float = 0.0, rows: int = 200) -> eq.Audit:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"y": rng.integers(0, 2, rows), "sex": rng.choice([HOSTILE, "M"], rows)})
    frame["p"] = np.clip(0.3 + 0.4 * frame.y - gap * ((frame.sex != "M") & (frame.y == 1)) + rng.normal(0, 0.2, rows), 0, 1)
    scores = eq.Scores.from_frame(frame, label="y", score="p", group="sex", reference="M")
    return eq.audit(scores, measures=["eod", "auroc"], thresholds="0.2:0.3")


@pytest.fixture(scope="module")
def compared() -> Comparison:
    return eq.compare({HOSTILE: audit(0), "b": audit(1, 0.4)})


@pytest.fixture(scope="module")
def followed() -> Monitoring:
    return eq.history({f"2026-{month:02}": audit(month, 0.0 if month < 3 else 0.4) for month in range(1, 6)}).monitor(["eod"])


def test_names_are_text_and_the_change_is_on_the_page(compared, tmp_path):
    page = compared.report(tmp_path / "page.html").read_text(encoding="utf-8")
    assert HOSTILE not in page
    assert "&lt;script&gt;" in page
    change = f"{100 * compared.changes.gaps['value'][0]:+.1f}".replace("-", "\N{MINUS SIGN}")
    assert change in page
    assert page.count('class="shown"') == compared.changes.gaps["clear"].sum() + compared.changes.rates["clear"].sum()


def test_a_chart_has_a_dot_per_period_and_the_alarms_from_its_start_on(followed, tmp_path):
    page = followed.report(tmp_path / "page.html").read_text(encoding="utf-8")
    assert HOSTILE not in page
    dots = re.findall(r'class="spot g(\d)"', page)
    gap = followed.gaps.iloc[0]
    assert gap["changed"]
    assert dots == ["0", "0", "1", "1", "1"]
    assert gap["since"] == "2026-03"


def test_a_notebook_shows_the_conclusion_and_names_as_text(compared, followed):
    for found, gaps, fact in ((compared, compared.changes.gaps, "b"), (followed, followed.gaps, "2026-03")):
        html = found._repr_html_()
        assert fact in html
        assert HOSTILE not in html
        assert html.count("<tr>") == 1 + len(gaps)


def test_words_for_groups_are_checked(compared, tmp_path):
    page = compared.report(tmp_path / "page.html", group_names={"M": "men"}).read_text(encoding="utf-8")
    assert "men" in page
    with pytest.raises(eq.BadInput, match="women"):
        compared.report(tmp_path / "page.html", group_names={"women": "F"})


def test_the_terminal_shows_no_markup_of_users(compared, followed):
    from rich.console import Console

    from equipoise.report import changes_screen, in_terminal, monitoring_screen

    console = Console(width=200, record=True, file=io.StringIO())
    for view in (changes_screen(compared.changes, verbose=True), monitoring_screen(followed, verbose=True)):
        console.print(in_terminal(view))
    text = console.export_text()
    assert "2026-03" in text
    assert HOSTILE in text


def test_the_compared_model_has_the_same_head_in_every_table(compared):
    from rich.console import Console

    from equipoise.report import changes_screen, in_terminal

    console = Console(width=200, record=True, file=io.StringIO())
    console.print(in_terminal(changes_screen(compared.changes)))
    heads = [line.split() for line in console.export_text().splitlines() if line.split()[-1:] == ["change"] and HOSTILE in line.split()]
    assert [head[head.index(HOSTILE) + 1] for head in heads] == ["b"] * (1 + bool(len(compared.changes.performance)))
    assert "<th>b</th>" in compared._repr_html_()


def test_no_alarm_is_not_said_to_show_that_nothing_changed():
    followed = eq.history({f"2026-{month:02}": audit(month) for month in range(1, 3)}).monitor(["eod"])
    assert not followed.alarms
    _, words = monitoring_conclusion(followed)
    assert "none has changed" not in words
    assert "does not show that there is none" in words


@pytest.mark.parametrize("ending", ["docx", "json", ""])
def test_a_report_with_another_ending_is_refused_before_anything_is_written(compared, followed, tmp_path, ending):
    audits = joined(a=audit(0), b=audit(1))
    for found in (compared, followed, audit(0), audits):
        with pytest.raises(eq.BadInput, match=r"\.html"):
            found.report(tmp_path / f"page.{ending}".rstrip("."))
    assert not list(tmp_path.iterdir())
    assert compared.report(tmp_path / "page.HTM").is_file()


def test_a_condition_names_the_group_the_number_and_itself(compared):
    from equipoise.comparison import change_facts
    from equipoise.measures import read_condition

    condition = read_condition("|eod| > 0.1")
    words = condition_words(condition, condition.check(change_facts(compared.changes)))
    assert f"{abs(compared.changes.gaps['value'][0]):.4g}" in words
    assert "|eod| > 0.1" in words
    never = read_condition("eod > 5")
    assert condition_words(never, never.check(change_facts(compared.changes))) == ""
