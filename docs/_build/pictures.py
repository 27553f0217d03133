"""The pictures in README and docs: `python docs/_build/pictures.py` writes docs/images/report.png and docs/images/phantoms.png.

The report is that of the quickstart, made by the commands on that page and photographed by Chromium
(EQUIPOISE_CHROMIUM, or the one on the path).
"""

import contextlib
import os
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

sys.path.insert(0, str(Path(__file__).parent))
from pages import follow

from equipoise.studies import PHANTOM_MEAN, PHANTOM_STD, phantom

DOCS = Path(__file__).parents[1]
SIZE = {"width": 1440, "height": 900}


def report(to: Path) -> None:
    """Writes the first screen of the quickstart's report."""
    from playwright.sync_api import sync_playwright

    chromium = (
        os.environ.get("EQUIPOISE_CHROMIUM")
        or shutil.which("chromium")
        or shutil.which("chromium-browser")
        or shutil.which("google-chrome")
    )
    if not chromium:
        raise SystemExit("expected Chromium on the path or in EQUIPOISE_CHROMIUM; run scripts/browser.sh")
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), sync_playwright() as driver:
        follow(DOCS / "quickstart.md")
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport=SIZE, color_scheme="light")
        page.goto((Path(folder) / "repaired" / "report.html").as_uri())
        page.wait_for_load_state("networkidle")
        page.screenshot(path=to)
        browser.close()


def phantoms(to: Path) -> None:
    """Writes six simulated X-rays of healthy men, sick men, healthy women and sick women, one row each."""
    cohort = phantom(120, size=224, seed=3, hardness=0.5)
    film = np.clip(cohort.inputs[:, 0].numpy() * PHANTOM_STD + PHANTOM_MEAN, 0, 1)
    cells = [(cohort.groups == sex) & (cohort.y == sick) for sex in ("M", "F") for sick in (0, 1)]
    lines = [np.concatenate(film[cell][:6], axis=1) for cell in cells]
    Image.fromarray((np.concatenate(lines) * 255).astype(np.uint8)).resize((1008, 672)).save(to, optimize=True)


if __name__ == "__main__":
    report(DOCS / "images" / "report.png")
    phantoms(DOCS / "images" / "phantoms.png")
