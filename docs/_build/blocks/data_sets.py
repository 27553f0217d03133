"""The generated blocks of docs/reference/data-sets.md."""

from collections.abc import Callable, Mapping

from blocks.rows import gap, rows, table


def phantoms() -> str:
    """The gap of a classifier that knows the latent width of a simulated X-ray."""
    lines = [
        [f"{line.hardness:g}", gap(line.eod_measured), gap(line.eod_closed_form), f"{line.balanced_accuracy:.3f}"]
        for line in rows("phantoms/oracle.csv").itertuples()
    ]
    return table(("hardness", "EOD, measured", "EOD, closed form", "balanced accuracy"), lines)


BLOCKS: Mapping[str, Callable[[], str]] = {
    "phantoms": phantoms,
}
