"""The report of 50,000 patients and 4 methods with long traces: its size, the seconds to write it and the seconds to open it.

    python benchmarks/report.py [rows]

The browser is Chromium: EQUIPOISE_CHROMIUM, or the one of the system. "Opened" is the load event and one frame painted after it.
"""

import os
import shutil
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from equipoise.comparison import Comparison
from equipoise.report import write_page

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.cases import small_case

PATIENTS = 50_000
METHODS = ("bias-gda", "pruning", "adversarial-finetune", "random")
STEPS = (600, 600, 600, 20_000)
LARGEST, SLOWEST = 8.0, 2.0  # megabytes, seconds
PAINTED = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now()))))"


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else PATIENTS
    case = _with_long_traces(rows)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.html"
        start = time.perf_counter()
        write_page(case, path)
        written = time.perf_counter() - start
        size = path.stat().st_size / 1e6
        print(f"{rows:,} patients, {len(METHODS)} methods with {', '.join(f'{s:,}' for s in STEPS)} steps")
        print(f"size     {size:.2f} MB (at most {LARGEST:g})")
        print(f"written  {written:.1f} s")
        seconds = _open(path)
        if seconds is None:
            print("opened   not measured: no Chromium or no playwright")
        else:
            print(f"opened   {seconds:.2f} s, median of 3 (at most {SLOWEST:g})")
        if size > LARGEST or (seconds is not None and seconds > SLOWEST):
            sys.exit(1)


def _with_long_traces(rows: int) -> Comparison:
    """Scores of many patients with traces of fewer: thousands of evaluations of 50,000 patients would take longer than the report."""
    small, large = small_case(rows=400, methods=METHODS, steps=STEPS), small_case(rows=rows, methods=METHODS, steps=12, patients=False)
    candidates = tuple(
        replace(big, candidate=replace(big.candidate, trace=long.candidate.trace, chosen=long.candidate.chosen))
        for big, long in zip(large.candidates, small.candidates, strict=True)
    )
    return replace(large, candidates=candidates)


def _open(path: Path) -> float | None:
    """The median seconds to open the page in a fresh browser."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return None
    browser_path = os.environ.get("EQUIPOISE_CHROMIUM") or shutil.which("chromium")
    if not browser_path:
        return None
    seconds = []
    with sync_playwright() as driver:
        for _ in range(3):
            browser = driver.chromium.launch(executable_path=browser_path, args=["--no-sandbox", "--disable-gpu", "--no-first-run"])
            page = browser.new_page(viewport={"width": 1280, "height": 900})
            start = time.perf_counter()
            page.goto(path.as_uri(), wait_until="load")
            page.evaluate(PAINTED)
            seconds.append(time.perf_counter() - start)
            browser.close()
    return statistics.median(seconds)


if __name__ == "__main__":
    main()
