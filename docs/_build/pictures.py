"""The pictures in README and docs: `python docs/_build/pictures.py` writes docs/images/report.png, phantoms.png and choosing.svg.

With names of pictures, only those. The report is that of the quickstart, made by the commands on that page and photographed by Chromium
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

from equipoise.methods.choosing import NO_GAP, TrueRates
from equipoise.report.document import Figures
from equipoise.report.pages import picture_of
from equipoise.report.panels import Axes, Panel
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
        raise SystemExit("expected Chromium on the path or in EQUIPOISE_CHROMIUM; run scripts/debian.sh chromium")
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


SENSITIVITIES = np.array([0.80, 0.70])  # observed, of men and women
SICK = (100, 400, 1600)  # patients with the finding in each group


def choosing(to: Path) -> None:
    """Writes what is left on average of an observed gap of 10 points by how much of it a step removes, for three numbers of patients."""
    removed, panels = np.linspace(0, 0.15, 61), []
    axes = Axes(0.0, 0.11, 0.0, 0.15)
    ticks = axes.x_ticks(np.arange(0, 0.16, 0.05), lambda v: f"{100 * v:.0f}"), axes.y_ticks(np.arange(0, 0.11, 0.02), lambda v: f"{100 * v:.0f}")
    for n in SICK:
        rates = TrueRates.of(SENSITIVITIES, SENSITIVITIES * (1 - SENSITIVITIES) / n, NO_GAP)
        true = np.concatenate([rates.draws(np.random.default_rng(seed)) for seed in range(50)]) @ [-1.0, 1.0]
        left = np.abs(true[:, None] + removed).mean(0)
        best = int(left.argmin())
        marks = [axes.curve("diagonal", zip(removed, np.abs(SENSITIVITIES[1] - SENSITIVITIES[0] + removed), strict=True))]
        marks += [axes.curve("curve", zip(removed, left, strict=True), 0), axes.dot("at", removed[best], left[best], 4.5, 1)]
        title = f"{n:,} sick patients per group: best to remove {100 * removed[best]:.1f} points"
        says = f"{title}. Of {100 * left[0]:.1f} points that are expected, {100 * left[best]:.1f} are then left."
        panels.append(Panel(title, says, *ticks, "points that a step removes", "points that are left", tuple(marks)))
        print(says)
    about = "An observed gap of 10 points. Dotted: what a step leaves of it in these data; blue: on average over the true gaps that are likely."
    to.write_text(picture_of("What a step leaves of a gap", about, [Figures(panels)]), encoding="utf-8")


PICTURES = {"report.png": report, "phantoms.png": phantoms, "choosing.svg": choosing}

if __name__ == "__main__":
    for name in sys.argv[1:] or PICTURES:
        PICTURES[name](DOCS / "images" / name)
