"""Pages as PDF, printed by an installed Chromium (Chrome, Edge, Brave) without a window, or by WeasyPrint.

The short page for paper is printed, which needs no script and no other file. Chromium opens it as a web archive (MHTML), whose page runs no
scripts and can load only what is in the archive, no file and nothing from a network, with an empty profile in which scripts are switched
off as well: the flag scriptEnabled=false would also stop the script by which Chromium prints. WeasyPrint runs no scripts and is given a
fetcher that refuses everything but `data:`.
"""

import importlib
import importlib.util
import json
import os
import shutil
import subprocess
import tempfile
from email.message import EmailMessage
from email.policy import SMTP
from pathlib import Path
from typing import Any

from equipoise.data import atomic_path
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
OFFLINE = ("--host-resolver-rules=MAP * ~NOTFOUND",)  # no host name is resolved
NO_SCRIPTS = {"profile": {"default_content_setting_values": {"javascript": 2}}}  # 2: blocked
TIMEOUT = 120.0  # seconds
WEASYPRINT = "68"  # the first version with a fetcher that can be limited to `data:`
ENDINGS = (".html", ".htm", ".pdf")
NONE_FOUND = (
    f"a PDF is printed by Chromium, Chrome or Edge, or by WeasyPrint; none was found. Install one of them (pip install weasyprint), set "
    f"{VARIABLE} to the path of a browser, or write the page (.html) and print it from any browser."
)


def browser() -> str | None:
    """The path of a browser that can print: EQUIPOISE_CHROMIUM, else the first that is installed; None if there is none."""
    path = os.environ.get(VARIABLE)
    if path:
        if not Path(path).is_file():
            raise BadInput(f"{VARIABLE} is {path!r}, which is not a file. Set it to the path of Chromium or Chrome, or unset it.")
        return path
    return next((path for path in map(shutil.which, NAMES) if path), None) or next((path for path in PLACES if Path(path).is_file()), None)


def check_printer() -> None:
    """Raises `BadInput` if neither a browser nor WeasyPrint is installed; call it before any work is done."""
    if browser() is None:
        if importlib.util.find_spec("weasyprint") is None:
            raise BadInput(NONE_FOUND)
        _weasyprint()


def is_paper(path: Path) -> bool:
    """Whether the path ends in .pdf."""
    return path.suffix.lower() == ".pdf"


def check_ending(path: Path) -> None:
    """Raises `BadInput` if the path of a report ends in neither .html, .htm nor .pdf."""
    if path.suffix.lower() not in ENDINGS:
        raise BadInput(
            f"a report is HTML or PDF; got {path.name!r}. Use a name that ends in .html or .pdf, such as {path.with_suffix('.html').name}."
        )


def print_page(html: str, path: Path) -> Path:
    """Prints a page as PDF, whole or not at all; returns its path. No script of the page runs, and it can load nothing but `data:`."""
    check_printer()
    program = browser()
    with tempfile.TemporaryDirectory(prefix="equipoise-") as folder:
        pdf = Path(folder) / "page.pdf"
        if program is None:
            weasyprint = _weasyprint()
            fetcher = weasyprint.URLFetcher(allowed_protocols={"data"})
            weasyprint.HTML(string=html, url_fetcher=fetcher).write_pdf(str(pdf))
        else:
            source = Path(folder) / "page.mhtml"
            source.write_bytes(_archive(html))
            _print_with_chromium(program, source, pdf)
        with atomic_path(path) as temporary:
            shutil.copyfile(pdf, temporary)
    return path


def _archive(html: str) -> bytes:
    """The page as a web archive of one part."""
    page = EmailMessage(policy=SMTP)
    page.set_content(html, subtype="html", cte="base64")
    page["Content-Location"] = "https://page.invalid/"
    archive = EmailMessage(policy=SMTP)
    archive["MIME-Version"] = "1.0"
    archive.make_related()
    archive.attach(page)
    return archive.as_bytes()


def _weasyprint() -> Any:
    """WeasyPrint; raises `BadInput` if it is too old or cannot be loaded."""
    try:
        found = importlib.import_module("weasyprint")
    except OSError as error:
        raise BadInput(f"WeasyPrint cannot be loaded: {error}. Install the libraries that it needs, or Chromium.") from error
    if not hasattr(found, "URLFetcher"):
        raise BadInput(f"WeasyPrint {found.__version__} is installed, and {WEASYPRINT} or newer is needed: pip install -U weasyprint")
    return found


def _print_with_chromium(program: str, source: Path, pdf: Path) -> None:
    root = hasattr(os, "geteuid") and os.geteuid() == 0  # Chromium's sandbox does not start for root, as in a container
    profile = pdf.parent / "profile"
    (profile / "Default").mkdir(parents=True)
    (profile / "Default" / "Preferences").write_text(json.dumps(NO_SCRIPTS), encoding="utf-8")
    sandbox = ["--no-sandbox"] if root else []
    command = [
        program,
        *QUIET,
        *OFFLINE,
        *sandbox,
        f"--user-data-dir={profile}",
        "--no-pdf-header-footer",
        f"--print-to-pdf={pdf}",
        source.as_uri(),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=TIMEOUT, check=False)
        problem = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    except (OSError, subprocess.TimeoutExpired) as error:
        problem = str(error)
    if not pdf.exists() or pdf.read_bytes()[:5] != b"%PDF-":
        raise BadInput(
            f"{program} printed no PDF: {problem}. Write the page (.html) and print it from a browser, or set {VARIABLE} to another."
        )
