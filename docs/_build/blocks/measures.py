"""The generated blocks of docs/concepts/measures.md."""

from collections.abc import Callable, Mapping

from blocks.rows import one, rows, table


def encoding() -> str:
    """What a linear probe reads from the layers of one network before and after a repair."""
    found = rows("nih/encoding.csv")
    mine = found[(found["data"] == "compas") & (found["attribute_in_inputs"] == "yes")]
    lines = [
        [layer, *(f"{one(mine, layer=layer, when=when)['auroc']:.2f}" for when in ("before", "after"))]
        for layer in dict.fromkeys(mine["layer"])
    ]
    return table(("layer", "AUROC of race, before", "after"), lines)


BLOCKS: Mapping[str, Callable[[], str]] = {
    "encoding": encoding,
}
