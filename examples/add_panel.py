"""Add a figure to the report without editing the package: the share of each group that is flagged, at every threshold.

    python examples/add_panel.py --out example-output

A panel is a value: a title, its content in words for screen readers, and marks on axes, which the templates draw. In the package, the
function would be in `src/equipoise/report/panels.py`.
"""

import argparse
from pathlib import Path

import numpy as np

import equipoise as eq
from equipoise.report import SHARES, Panel, add_panels, share_panel

HEADING = "Share flagged at every threshold"


def flagged(case: eq.Comparison) -> list[Panel]:
    """One panel before the repair and one after, with one curve per group, on the held-out rows."""
    attribute = case.original.test.attribute
    cuts = np.linspace(0, 1, 101)
    panels = []
    for title, tried in (("Before", case.original), ("After", case.result)):
        marks, words = [], []
        for k, level in enumerate(attribute.levels):
            scores = tried.test.score[attribute.codes == k]
            shares = [float((scores >= cut).mean()) for cut in cuts]
            marks.append(SHARES.curve("curve", zip(cuts, shares, strict=True), k, level))
            words.append(f"{level}: {shares[50]:.1%} at 0.5")
        says = f"{HEADING}, {title.lower()}. {'; '.join(words)}."
        panels.append(share_panel(title, says, "threshold", "share flagged", marks))
    return panels


add_panels(HEADING, flagged)


def main() -> None:
    parser = argparse.ArgumentParser(description="Add a figure to the report.")
    parser.add_argument("--out", type=Path, default=Path("example-output"), help="folder for report.html")
    parser.add_argument("--rows", type=int, default=2_000)
    parser.add_argument("--epochs", type=int, default=10, help="of training")
    given = parser.parse_args()
    parts = eq.split(eq.load("loh", n=given.rows, alpha=2.0, seed=0), seed=0)
    model = eq.train(parts.train, parts.valid, seed=0, settings=eq.Training(epochs=given.epochs))
    result = eq.debias(model, parts.valid, method="bias-score", measure="spd", max_gap=0.05, seed=0)
    both = eq.compare({"original": model, "repaired": result}, parts.test, valid=parts.valid)
    given.out.mkdir(parents=True, exist_ok=True)
    print(both)
    print(f"written: {both.report(given.out / 'report.html')}")


if __name__ == "__main__":
    main()
