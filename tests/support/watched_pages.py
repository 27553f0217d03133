"""Pages in a real browser, with all that they said and asked for, and whether their words stand out from the ground."""

from pathlib import Path
from typing import Any

import numpy as np

WIDE, PHONE = {"width": 1200, "height": 900}, {"width": 360, "height": 800}
OPEN = "all => all.forEach(d => { d.open = true; })"  # every <details>
CONTRAST = 4.5  # of words to their ground, as WCAG asks
WORDS = "h1, h2, h3, p, td, th, li, summary, button, caption, .span, .means, .tag, .fact-note, figcaption, dt, a"
COLOURS = f"""() => [...document.querySelectorAll("{WORDS}")].filter((e) => e.checkVisibility() && e.textContent.trim()).map((e) => {{
  let ground = e; while (ground && getComputedStyle(ground).backgroundColor === "rgba(0, 0, 0, 0)") ground = ground.parentElement;
  return [e.className || e.tagName, getComputedStyle(e).color, getComputedStyle(ground || document.body).backgroundColor];
}})"""


class Watched:
    """A page, and all that it said and asked for."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.said: list[str] = []
        self.asked: list[str] = []
        page.on("console", lambda message: self.said.append(message.text))
        page.on("pageerror", lambda error: self.said.append(str(error)))
        page.on("dialog", lambda dialog: (self.said.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: self.asked.append(request.url))


def open_page(browser: Any, path: Path, **context: Any) -> Watched:
    """The page in a file, in a context of its own."""
    found = Watched(browser.new_context(**({"viewport": WIDE} | context)).new_page())
    found.page.goto(path.as_uri())
    return found


def check_words_stand_out(page: Any, colours: str, least: int) -> None:
    """Fails where words are too faint in these colours, light or dark, or the page has fewer kinds of words than it should."""
    page.emulate_media(color_scheme=colours)
    found = {tuple(each) for each in page.evaluate(COLOURS)}
    page.emulate_media(color_scheme="light")
    assert len(found) > least
    for what, colour, ground in found:
        bright, dim = sorted((_luminance(colour), _luminance(ground)), reverse=True)
        assert (bright + 0.05) / (dim + 0.05) >= CONTRAST, (what, colour, ground)


def _luminance(colour: str) -> float:
    parts = [float(v) / 255 for v in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    linear = [v / 12.92 if v <= 0.03928 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]
    return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))
