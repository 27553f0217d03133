"""The generated blocks of README.md."""

from collections.abc import Callable, Mapping

from blocks.rows import NAMES, mean_at, rows, table

ARMS = {"standard": "original", "bias-gda": "now", "constrained": "now", "bias-score": "now", "auto": "default"}


def readme_results() -> str:
    """The results in the README: the same networks before, after the paper's method, after two others, and after the defaults."""
    tables, present = rows("defaults/tables.csv"), rows("defaults/present.csv")
    lines = []
    for data, measure in (("adult", "spd"), ("adult", "eod"), ("compas", "spd"), ("compas", "eod")):
        earlier, today = (every[(every["data"] == data) & (every["measure"] == measure)] for every in (tables, present))
        cells = [mean_at(earlier, method, arm) for method, arm in ARMS.items()]
        lines.append([f"{NAMES[data]}, {measure.upper()}", *cells, mean_at(today, "auto", "default")])
    heads = ("data, measure", "original", "`bias-gda` (the paper)", "`constrained`", "`bias-score`", "earlier default")
    return table((*heads, f"today's default ({present['seed'].nunique()} splits)"), lines)


BLOCKS: Mapping[str, Callable[[], str]] = {
    "readme-results": readme_results,
}
