"""The generated blocks on classifiers that are not networks, and on the recalibration of repaired ones."""

from collections.abc import Callable, Mapping

from blocks.rows import NAMES as DATA
from blocks.rows import at, rows, table

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
    """Median seconds of each method on the logistic pipeline, which all of them finished."""
    found = rows(FILE)
    found = found[found["model"] == "logistic pipeline"]
    lines = [
        [NAMES[str(data)], method, f"{own['seconds'].median():.2f}"]
        for (data, method), own in found.groupby(["data", "method"], sort=False)
    ]
    return table(("data, group", "method", "seconds"), lines)


def predictors_short() -> str:
    """Every method over the models and splits that it ran on: the gap of these models before and after, and the change in performance."""
    place = ["data", "measure", "model", "split"]
    found = rows(FILE).assign(size=lambda frame: frame["gap"].abs())
    plain = found[found["method"] == PLAIN].set_index(place)[["size", "balanced_accuracy"]].add_suffix("_before")
    found = found[found["method"] != PLAIN].join(plain, on=place, how="inner")
    cases = list(dict.fromkeys(zip(found["data"], found["measure"], strict=True)))
    lines = []
    for method, own in found.groupby("method", sort=False):
        cells = []
        for data, measure in cases:
            part = own[(own["data"] == data) & (own["measure"] == measure)]
            change = (part["balanced_accuracy"] - part["balanced_accuracy_before"]).mean()
            sizes = f"{part['size_before'].mean():.3f} → {part['size'].mean():.3f}"
            cells.append(f"{sizes} ({change:+.3f}; {len(part)})" if len(part) else "")
        lines.append([f"{method}{' (group)' if own['needs_group'].any() else ''}", *cells])
    return table(("method", *(f"{NAMES[str(data)]}, {measure}" for data, measure in cases)), lines)


def estimators() -> str:
    """bias-score on scikit-learn models, next to the original and one threshold per group."""
    found = rows("bias-score/estimators.csv").assign(mean_abs_gap=lambda frame: frame["gap"].abs())
    lines = []
    for (data, measure, model), part in found.groupby(["data", "measure", "model"]):
        means = part.groupby("method")[["mean_abs_gap", "balanced_accuracy"]].mean()
        cells = (at(means.loc[method]) for method in ("standard", "bias-score", "group-thresholds"))
        lines.append([DATA[str(data)], measure, model, part["split"].nunique(), *cells])
    return table(("data", "gap", "model", "splits", "original", "bias-score", "group-thresholds (uses the group)"), lines)


def recalibration() -> str:
    """How far scores are from observed frequencies before and after recalibration, and the decisions that it changed."""
    found = rows("recalibration/splits.csv")
    lines = []
    for (data, method), part in found.groupby(["data", "method"], sort=False):
        large = " → ".join(f"{part[f'{which}_large'].abs().mean():.3f}" for which in ("original", "repaired", "recalibrated"))
        error = " → ".join(f"{part[f'{which}_error'].mean():.3f}" for which in ("original", "repaired", "recalibrated"))
        lines.append([DATA[str(data)], method, part["split"].nunique(), large, error, int(part["changed"].sum())])
    head = ("data", "method", "splits", "in the large: original → repaired → recalibrated", "binned error, likewise", "decisions changed")
    return table(head, lines)


BLOCKS: Mapping[str, Callable[[], str]] = {
    "predictors-peers": predictors_peers,
    "predictors-seconds": predictors_seconds,
    "predictors-short": predictors_short,
    "estimators": estimators,
    "recalibration": recalibration,
}
