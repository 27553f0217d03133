"""A real browser for the tests of pages; they are skipped, with the reason, where there is none."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

QUIET = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--disable-quic",
)


@pytest.fixture(scope="session")
def browser() -> Iterator[object]:
    """Chromium without a window: EQUIPOISE_CHROMIUM, or the one of the system."""
    playwright = pytest.importorskip("playwright.sync_api", reason="browser tests need playwright: pip install playwright")
    found = (
        os.environ.get("EQUIPOISE_CHROMIUM")
        or shutil.which("chromium")
        or shutil.which("chromium-browser")
        or shutil.which("google-chrome")
    )
    if not found or not Path(found).exists():
        pytest.skip(f"browser tests need Chromium; set EQUIPOISE_CHROMIUM to its path (looked at: {found or 'chromium in PATH'})")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=found, args=list(QUIET))
        yield started
        started.close()
