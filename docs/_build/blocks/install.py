"""The generated block on the size of an installation."""

from collections.abc import Callable, Mapping

from blocks.rows import rows, table


def install() -> str:
    """Size and time of Equipoise, with and without extras, next to other libraries."""
    found = rows("install/sizes.csv")
    lines = [[f"`{line.install}` {line.version}", line.packages, f"{line.megabytes:,}", line.cpu_seconds] for line in found.itertuples()]
    return table(("`pip install`", "packages", "megabytes", "seconds of CPU"), lines)


BLOCKS: Mapping[str, Callable[[], str]] = {"install": install}
