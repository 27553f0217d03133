"""The generated blocks of README.md."""

from collections.abc import Callable, Mapping

from blocks.rows import NAMES, mean_at, rows, table

NIH = {"any": "any finding", "effusion": "effusion", "atelectasis": "atelectasis"}
ARMS = {"standard": "original", "bias-gda": "now", "constrained": "now", "bias-score": "now", "auto": "default"}


def readme_results() -> str:
    """The results in the README: the same networks before, after the paper's method, after two others, and after the default."""
    tables, nih, present = rows("defaults/tables.csv"), rows("defaults/nih.csv"), rows("defaults/present.csv")
    cases = [
        (f"{NAMES[data]}, {measure.upper()}", tables[(tables["data"] == data) & (tables["measure"] == measure)], "bias-score")
        for data, measure in (("adult", "spd"), ("adult", "eod"), ("compas", "spd"), ("compas", "eod"))
    ]
    cases += [(f"NIH X-rays, {words}, EOD", nih[nih["data"] == task], "bias-score-train") for task, words in NIH.items()]
    lines = [[name, *(mean_at(mine, probes if m == "bias-score" else m, arm) for m, arm in ARMS.items())] for name, mine, probes in cases]
    today = present.groupby(["data", "measure"])
    for line, (data, measure) in zip(lines, (("adult", "spd"), ("adult", "eod"), ("compas", "spd"), ("compas", "eod")), strict=False):
        line.append(mean_at(today.get_group((data, measure)), "auto", "default"))
    for line in lines[4:]:
        line.append("not made again")
    splits = present["seed"].nunique()
    heads = ("data, measure", "original", "`bias-gda` (the paper)", "`constrained`", "`bias-score`", "earlier default")
    return table((*heads, f"today's default ({splits} splits)"), lines)


BLOCKS: Mapping[str, Callable[[], str]] = {
    "readme-results": readme_results,
}
