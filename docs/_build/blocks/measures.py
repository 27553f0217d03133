"""The generated blocks of docs/concepts/measures.md."""

from collections.abc import Callable, Mapping

from blocks.rows import one, rows, table

LAYERS = {"inputs": "inputs", "linears.1": "first hidden", "linears.6": "sixth hidden", "out": "last hidden", "output": "output"}


def encoding() -> str:
    """What a linear probe reads from the layers of one network before and after a repair."""
    found = rows("encoding/compas.csv")
    lines = [
        [name, *(f"{one(found, attribute_in_inputs='yes', layer=layer, when=when)['auroc']:.2f}" for when in ("before", "after"))]
        for layer, name in LAYERS.items()
    ]
    return table(("layer", "AUROC of race, before", "after"), lines)


BLOCKS: Mapping[str, Callable[[], str]] = {
    "encoding": encoding,
}
