"""The generated block of docs/how-to/bring-your-model.md."""

from collections.abc import Callable, Mapping

from blocks.rows import rows, table

FILE = "predictors/rows.csv"
NAMES = {"adult": "Adult, sex", "compas": "COMPAS, race"}
PLAIN = "the model as it is"


def predictors_peers() -> str:
    """Each model on each data set: mean |gap| and balanced accuracy of every method that has finished the same splits as the model."""
    found = rows(FILE).assign(size=lambda frame: frame["gap"].abs())
    methods = list(dict.fromkeys(found["method"]))
    needs = {method: bool(own["needs_group"].any()) for method, own in found.groupby("method")}
    lines = []
    for (data, measure, model), part in found.groupby(["data", "measure", "model"]):
        splits = set(part[part["method"] == PLAIN]["split"])
        cells = []
        for method in methods:
            own = part[part["method"] == method]
            whole = len(own) > 0 and set(own["split"]) >= splits
            cells.append(f"{own['size'].mean():.3f} / {own['balanced_accuracy'].mean():.3f}" if whole else "")
        lines.append([NAMES[str(data)], measure, model, len(splits), *cells])
    head = ("data, group", "gap", "model", "splits", *(f"{method}{' (group)' if needs[method] else ''}" for method in methods))
    return table(head, lines)


def predictors_seconds() -> str:
    """Median seconds of each method on the machine that did nothing else."""
    quiet = rows(FILE)
    quiet = quiet[quiet["machine"] == "16 cores"]
    lines = [
        [NAMES[str(data)], method, f"{own['seconds'].median():.2f}"]
        for (data, method), own in quiet.groupby(["data", "method"], sort=False)
    ]
    return table(("data, group", "method", "seconds"), lines)


BLOCKS: Mapping[str, Callable[[], str]] = {"predictors-peers": predictors_peers, "predictors-seconds": predictors_seconds}
