"""The generated blocks of README.md."""

from collections.abc import Callable, Mapping

from blocks.rows import INPUTS, NAMES, TASKS, at, one, rows, table


def readme_results() -> str:
    """The results in the README: before, after the paper's method, and after the two recommended here."""
    found, nih, now = rows("beyond/summary.csv"), rows("nih-beyond/splits-20.csv"), rows("defaults/tables.csv")
    splits = now[now["arm"] == "default"]["seed"].nunique()
    default = now[now["arm"] == "default"].assign(size=now["gap"].abs()).groupby(["data", "measure"])[["size", "performance"]].mean()
    shown = {
        f"{NAMES[data]}, {measure.upper()}": f"{mean['size']:.3f} at {mean['performance']:.3f}"
        for (data, measure), mean in default.iterrows()
    }
    cases = [
        (
            f"{NAMES[data]}, {measure.upper()}",
            found[(found["data"] == data) & (found["measure"] == measure) & (found["inputs"] == INPUTS[0])],
        )
        for data, measure in (("adult", "spd"), ("adult", "eod"), ("compas", "spd"), ("compas", "eod"))
    ]
    cases += [(f"NIH X-rays, {task}, EOD", nih[(nih["network"] == "resnet-18") & (nih["task"] == task)]) for task in TASKS]
    lines = []
    for name, mine in cases:
        best = "bias-score-train" if "NIH" in name else "bias-score"
        methods = ("standard", "bias-gda", "constrained", best)
        lines.append([name, *(at(one(mine, method=method)) for method in methods), shown.get(name, "")])
    return table(
        ("data, measure", "original", "`bias-gda` (the paper)", "`constrained`", "`bias-score`", f"default, {splits} splits"), lines
    )


BLOCKS: Mapping[str, Callable[[], str]] = {
    "readme-results": readme_results,
}
