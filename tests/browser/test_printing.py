"""Printing by a real browser: the PDF is there, and a page runs no script and loads no file and nothing from a network."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from equipoise.report import pdf
from equipoise.report.pdf import print_page


@pytest.fixture
def printer(monkeypatch):
    """A browser that prints; the test is skipped where there is none."""
    if pdf.browser() is None:
        pytest.skip(f"printing needs Chromium; set {pdf.VARIABLE} to its path")


@pytest.fixture
def server() -> Iterator[tuple[str, list[str]]]:
    """The address of a server on this machine, and what was asked of it."""
    asked: list[str] = []

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(404)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answer) as found:
        threading.Thread(target=found.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{found.server_port}", asked
        found.shutdown()


def test_a_page_is_printed_without_its_scripts_and_without_other_files(printer, server, tmp_path):
    """Links are in a PDF as plain text, so a link shows whether what holds it was printed."""
    address, asked = server
    secret = tmp_path / "secret.html"
    secret.write_text('<a href="https://secret.invalid/">secret</a>')
    link = "document.body.innerHTML += '<a href=https://script.invalid/>ran</a>'"
    elements = [
        '<a href="https://shown.invalid/">shown</a>',
        f"<SCRIPT>{link}; new Image().src = '{address}/script'</SCRIPT>",
        f'<svg onload="{link}"></svg>',
        *(f"<iframe src='{url}'></iframe><object data='{url}'></object><embed src='{url}'>" for url in (secret.as_uri(), address)),
        f"<img src='{address}/image'><link rel=stylesheet href='{address}/style'>",
        f"<meta http-equiv=refresh content='0; url={secret.as_uri()}'>",
        "<script>document.write('<a href=https://script.invalid/>ran</a>')",
    ]
    pdf = print_page(f"<!doctype html><html><body>{''.join(elements)}</body></html>", tmp_path / "a.pdf").read_bytes()
    assert b"https://shown.invalid/" in pdf
    assert b"https://script.invalid/" not in pdf
    assert b"https://secret.invalid/" not in pdf
    assert asked == []
