"""Pages as files, HTML or PDF. A PDF is printed by an installed Chromium (Chrome, Edge, Brave) without a window, or by WeasyPrint.

The page is the short one for paper, which needs no script. Nothing is fetched: it is one file, and the browser has an empty profile.
"""

import importlib
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from equipoise.data import replacing, write_text
from equipoise.errors import BadInput

VARIABLE = "EQUIPOISE_CHROMIUM"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "msedge", "microsoft-edge", "brave-browser")
PLACES = (
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
    "/Applications/Microsoft Edge.app/Contents/MacOS/Microsoft Edge",
    r"C:\Program Files\Google\Chrome\Application\chrome.exe",
    r"C:\Program Files (x86)\Microsoft\Edge\Application\msedge.exe",
)
QUIET = ("--headless", "--disable-gpu", "--disable-extensions", "--no-first-run", "--disable-background-networking", "--disable-sync")
ALONE = ("--host-resolver-rules=MAP * ~NOTFOUND",)  # no name of the network is found
WHOLE, SHORT = '<html lang="en">', '<html lang="en" data-paper>'
POLICY = "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; img-src data:; style-src 'unsafe-inline'\">"
SECONDS = 120.0
NONE_FOUND = (
    f"a PDF is printed by Chromium, Chrome or Edge, or by WeasyPrint; none was found. Install one of them (pip install weasyprint), set "
    f"{VARIABLE} to the path of a browser, or write the page (.html) and print it from any browser."
)


def browser() -> str | None:
    """The path of a browser that can print: EQUIPOISE_CHROMIUM, else the first that is installed; None where there is none."""
    named = os.environ.get(VARIABLE)
    if named:
        if not Path(named).is_file():
            raise BadInput(f"{VARIABLE} is {named!r}, which is not a file. Set it to the path of Chromium or Chrome, or unset it.")
        return named
    return next((found for found in map(shutil.which, NAMES) if found), None) or next((p for p in PLACES if Path(p).is_file()), None)


def check_printer() -> None:
    """Raises an error where neither a browser nor WeasyPrint is installed: before any work, not after it."""
    if browser() is None and importlib.util.find_spec("weasyprint") is None:
        raise BadInput(NONE_FOUND)


def is_paper(path: Path) -> bool:
    """Whether a page is printed, by the ending of its file."""
    return path.suffix.lower() == ".pdf"


def write_by_ending(path: Path, make: Callable[[bool], str], *, follow: bool = True) -> Path:
    """The path of a page, HTML or PDF by its ending, which is written whole or not at all; `make(True)` is the short page for paper."""
    return print_page(make(True), path) if is_paper(path) else write_text(path, make(False), follow=follow)


def print_page(html: str, path: Path) -> Path:
    """The path of the PDF of a page, which is written whole or not at all."""
    check_printer()
    found = browser()
    with tempfile.TemporaryDirectory(prefix="equipoise-") as folder:
        source, made = Path(folder) / "page.html", Path(folder) / "page.pdf"
        source.write_text(html, encoding="utf-8")
        if found is None:
            _weasyprint(source, made)
        else:
            _chromium(found, source, made, Path(folder))
        with replacing(path) as temporary:
            shutil.copyfile(made, temporary)
    return path


def short_page(html: str, where: str) -> str:
    """The short page for paper from a whole report that was written before: without scripts, and what is folded is left out."""
    if WHOLE not in html[:500] or '<meta name="generator" content="Equipoise">' not in html[:5000]:
        raise BadInput(f"{where} is not a report of Equipoise. Name a folder that `equipoise debias` wrote, or the JSON of an audit.")
    cut = re.sub(r"<script\b.*?</script>", "", html, flags=re.DOTALL)
    return cut.replace(WHOLE, SHORT, 1).replace("<head>", f"<head>\n{POLICY}", 1)


def _chromium(found: str, source: Path, made: Path, folder: Path) -> None:
    root = hasattr(os, "geteuid") and os.geteuid() == 0  # Chromium's sandbox does not start for root, as in a container
    own = [f"--user-data-dir={folder / 'profile'}", "--no-pdf-header-footer", f"--print-to-pdf={made}"]
    command = [found, *QUIET, *ALONE, *(["--no-sandbox"] if root else []), *own, source.as_uri()]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=SECONDS, check=False)
        said = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    except (OSError, subprocess.TimeoutExpired) as error:
        said = str(error)
    if not made.exists() or not made.read_bytes()[:5] == b"%PDF-":
        raise BadInput(f"{found} printed no PDF: {said}. Write the page (.html) and print it from a browser, or set {VARIABLE} to another.")


def _weasyprint(source: Path, made: Path) -> None:
    weasyprint = importlib.import_module("weasyprint")
    weasyprint.HTML(filename=str(source)).write_pdf(str(made))
