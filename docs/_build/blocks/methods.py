"""The generated blocks of docs/concepts/methods.md."""

from collections.abc import Callable, Mapping

from blocks.rows import INPUTS, NAMES, at, mean_at, one, rows


def card(method: str) -> Callable[[], str]:
    """A function that returns the line of results on the card of a method, as it is today."""

    def line() -> str:
        tables, nih = rows("defaults/tables.csv"), rows("defaults/nih.csv")
        cases = {
            f"{NAMES[data]} by {measure.upper()}": tables[(tables["data"] == data) & (tables["measure"] == measure)]
            for data, measure in (("adult", "spd"), ("compas", "eod"))
        }
        probes = "bias-score-train" if method == "bias-score" else method
        parts = [f"{name}: {mean_at(mine, 'standard', 'original')} → {mean_at(mine, method, 'now')}" for name, mine in cases.items()]
        parts.append(f"NIH, mean of three findings, by EOD: {mean_at(nih, 'standard', 'original')} → {mean_at(nih, probes, 'now')}")
        return f"*Measured:* {'; '.join(parts)}.\n"

    return line


def card_tables() -> str:
    """The line of results on the card of pruning, with the paper's settings."""
    found = rows("beyond/summary.csv")
    parts = []
    for data, measure in (("adult", "spd"), ("compas", "eod")):
        mine = found[(found["inputs"] == INPUTS[0]) & (found["data"] == data) & (found["measure"] == measure)]
        before, after = (one(mine, method=name) for name in ("standard", "pruning"))
        parts.append(f"{NAMES[data]} by {measure.upper()}: {at(before)} → {at(after)}")
    return f"*Measured:* {'; '.join(parts)}.\n"


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
    **{f"card-{name}": card(name) for name in ("bias-gda", "constrained", "bias-score", "group-thresholds")},
    "card-pruning": card_tables,
    **{
        f"card-{name}": card_nih(name)
        for name in ("random", "adversarial-finetune", "adversarial-training", "reject-option", "equalised-odds")
    },
}
