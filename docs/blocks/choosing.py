"""The generated blocks of docs/concepts/choosing.md."""

from collections.abc import Callable, Mapping

from blocks.rows import INPUTS, at, rows, table


def choosing() -> str:
    """What the results favour, by situation: means over the cases of each."""
    found, nih = rows("beyond/summary.csv"), rows("nih-beyond/splits-20.csv")
    real = found[found["data"].isin(("adult", "bank", "compas"))]
    image = nih[nih["network"] == "resnet-18"]
    cases = (
        ("tables, attribute among the inputs", "`bias-score` or `constrained`", real[real["inputs"] == INPUTS[0]], "bias-score"),
        (
            "tables, attribute not among the inputs",
            "`bias-score`; `group-thresholds` if the group may be used",
            real[real["inputs"] == INPUTS[1]],
            "bias-score",
        ),
        ("chest X-rays, 160 to 1,000 repair images", "`bias-score` with the training set", image, "bias-score-train"),
    )
    lines = []
    for where, advice, frame, best in cases:
        means = frame.groupby("method")[["mean_abs_gap", "balanced_accuracy"]].mean()
        lines.append(
            [where, advice, *(at(means.loc[method]) for method in ("standard", "bias-gda", "constrained", best, "group-thresholds"))]
        )
    return table(
        ("situation", "start with", "original", "bias-gda", "constrained", "bias-score", "group-thresholds (uses the group)"), lines
    )


BLOCKS: Mapping[str, Callable[[], str]] = {
    "choosing": choosing,
}
