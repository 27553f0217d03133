"""Printing: by a named or installed browser, by WeasyPrint, or an error before any work that names what to install."""

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from equipoise.errors import BadInput
from equipoise.report import check_printer, pdf
from equipoise.report.pdf import print_page
from support.facts import says
from support.printer import FAILS, browser_at


@pytest.fixture
def nothing(monkeypatch, tmp_path):
    """A machine without a browser and without WeasyPrint."""
    monkeypatch.delenv(pdf.VARIABLE, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setattr(pdf, "BROWSER_PLACES", ())
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "weasyprint" else real(name, *more))


def test_the_browser_that_is_named_prints(monkeypatch, tmp_path):
    monkeypatch.setenv(pdf.VARIABLE, str(browser_at(tmp_path / "browser")))
    made = print_page("<p>all of it</p>", tmp_path / "deep" / "a.pdf")
    assert made.read_bytes() == b"%PDF-1.4 <p>all of it</p>\n"
    assert [path.name for path in made.parent.iterdir()] == ["a.pdf"]


def test_a_browser_on_the_path_is_found(nothing, monkeypatch, tmp_path):
    (tmp_path / "bin").mkdir()
    browser_at(tmp_path / "bin" / "google-chrome")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setattr(pdf, "BROWSER_NAMES", ("google-chrome",))
    check_printer()
    assert print_page("x", tmp_path / "a.pdf").read_bytes().startswith(b"%PDF-")


def test_without_a_printer_the_error_names_what_to_install(nothing, tmp_path):
    with pytest.raises(BadInput) as error:
        check_printer()
    assert says(str(error.value), "Chromium", "pip install weasyprint", pdf.VARIABLE)
    with pytest.raises(BadInput):
        print_page("x", tmp_path / "a.pdf")
    assert not (tmp_path / "a.pdf").exists()


@pytest.fixture
def weasyprint(nothing, monkeypatch):
    """A machine with WeasyPrint only: what stands for it prints the page and the protocols that may be fetched."""

    class Page:
        def __init__(self, *, string: str, url_fetcher: set[str]) -> None:
            self.text = f"{string} {url_fetcher}"

        def write_pdf(self, place: str) -> None:
            Path(place).write_text(f"%PDF- {self.text}", encoding="utf-8")

    found = SimpleNamespace(HTML=Page, URLFetcher=lambda *, allowed_protocols: allowed_protocols, __version__="67.0")
    monkeypatch.setitem(sys.modules, "weasyprint", found)
    monkeypatch.setattr(importlib.util, "find_spec", lambda *_: object())
    return found


def test_weasyprint_prints_where_there_is_no_browser_and_may_fetch_data_only(weasyprint, tmp_path):
    assert print_page("page", tmp_path / "a.pdf").read_text() == "%PDF- page {'data'}"


def test_a_weasyprint_whose_fetching_cannot_be_limited_is_refused_before_any_work(weasyprint):
    del weasyprint.URLFetcher
    with pytest.raises(BadInput) as error:
        check_printer()
    assert says(str(error.value), "67.0", "68", "pip install -U weasyprint")


@pytest.mark.parametrize("script", [FAILS, "#!/bin/sh\nexit 0\n"])
def test_a_browser_that_prints_nothing_is_an_error_and_keeps_the_old_file(monkeypatch, tmp_path, script: str):
    found = browser_at(tmp_path / "browser", script)
    monkeypatch.setenv(pdf.VARIABLE, str(found))
    (tmp_path / "a.pdf").write_text("old")
    with pytest.raises(BadInput, match=str(found)):
        print_page("x", tmp_path / "a.pdf")
    assert (tmp_path / "a.pdf").read_text() == "old"


def test_a_browser_that_is_not_there_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv(pdf.VARIABLE, str(tmp_path / "none"))
    with pytest.raises(BadInput, match=pdf.VARIABLE):
        check_printer()
