"""The generated blocks of docs/concepts/methods.md."""

from collections.abc import Callable, Mapping

from blocks.rows import INPUTS, NAMES, at, one, rows


def card(method: str) -> Callable[[], str]:
    """A function that returns the line of results on the card of a method."""

    def line() -> str:
        found = rows("beyond/summary.csv")
        parts = []
        for data, measure in (("adult", "spd"), ("compas", "eod")):
            mine = found[(found["inputs"] == INPUTS[0]) & (found["data"] == data) & (found["measure"] == measure)]
            before, after = (one(mine, method=name) for name in ("standard", method))
            parts.append(f"{NAMES[data]} by {measure.upper()}: {at(before)} → {at(after)}")
        images = rows("nih-beyond/splits-20.csv")
        mine = images[(images["network"] == "resnet-18") & (images["task"] == "effusion")]
        name = "bias-score-train" if method == "bias-score" else method
        if name in set(mine["method"]):
            parts.append(f"NIH effusion by EOD: {at(one(mine, method='standard'))} → {at(one(mine, method=name))}")
        return f"*Measured:* {'; '.join(parts)}.\n"

    return line


def card_nih(method: str) -> Callable[[], str]:
    """A function that returns the line of results of a method measured on images only."""

    def line() -> str:
        found = rows("nih/splits.csv")
        parts = []
        for task in ("any finding", "effusion"):
            mine = found[(found["network"] == "resnet-18") & (found["task"] == task)]
            parts.append(f"NIH {task} by EOD: {at(one(mine, method='standard'))} → {at(one(mine, method=method))}")
        return f"*Measured:* {'; '.join(parts)}.\n"

    return line


BLOCKS: Mapping[str, Callable[[], str]] = {
    **{f"card-{name}": card(name) for name in ("bias-gda", "pruning", "constrained", "bias-score", "group-thresholds")},
    **{
        f"card-{name}": card_nih(name)
        for name in ("random", "adversarial-finetune", "adversarial-training", "reject-option", "equalised-odds")
    },
}
