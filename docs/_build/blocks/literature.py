"""The generated block on methods of the literature (experiments/literature)."""

from collections.abc import Callable, Mapping

from blocks.rows import gap, rows, table


def literature() -> str:
    """Mean gap, mean absolute gap and balanced accuracy of each method, by measure."""
    found = rows("literature/rows.csv").assign(size=lambda frame: frame["gap"].abs())
    measures = list(dict.fromkeys(found["measure"]))
    lines = []
    for method in dict.fromkeys(found["method"]):
        own = found[found["method"] == method]
        cells = []
        for measure in measures:
            line = own[own["measure"] == measure][["gap", "size", "performance"]].mean()
            cells.append(f"{gap(line['gap'])}, {line['size']:.3f} at {line['performance']:.3f}")
        lines.append([f"`{method}`", str(own["seed"].nunique()), *cells])
    return table(("method", "splits", *(f"{name.upper()}: gap, mean |gap| at BA" for name in measures)), lines)


BLOCKS: Mapping[str, Callable[[], str]] = {"literature": literature}
