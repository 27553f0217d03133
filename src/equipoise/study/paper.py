"""The numbers of the paper: the cells of its tables, and the sizes of its data sets."""

import json
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

SIZES = {  # rows of training, validation and test sets (Table `tab:datasets`); the paper gives none for its simulations
    "adult": (27_133, 9_044, 9_045),
    "bank": (18_292, 6_098, 6_098),
    "compas": (3_700, 1_233, 1_234),
    "mimic-iii": (21_595, 7_199, 7_199),
    "mimic-cxr/sex": (5_528, 3_368, 3_426),
    "mimic-cxr/ethnicity": (3_984, 930, 1_122),
}


class Published(NamedTuple):
    """The paper's numbers in one cell of a table: means and standard deviations over its splits."""

    bias: float
    bias_sd: float
    performance: float
    performance_sd: float


def published(data: str, measure: str, method: str, part: str = "test") -> Published | None:
    """The paper's numbers for data such as adult/sex, mimic-iii/age, loh/0.1 or mimic-cxr/sex/vgg-16; None where it has none.

    >>> published("adult/sex", "spd", "standard")
    Published(bias=-0.32, bias_sd=0.02, performance=0.82, performance_sd=0.01)
    """
    numbers = _tables()[part].get(data, {}).get(measure, {}).get(method)
    return None if numbers is None else Published(*numbers)


def published_sizes(data: str) -> tuple[int, int, int] | None:
    """The rows of the paper's training, validation and test sets for data such as adult/sex or mimic-iii/age; None where it gives none.

    >>> published_sizes("mimic-iii/age"), published_sizes("loh/0.1")
    ((21595, 7199, 7199), None)
    """
    first, _, rest = data.partition("/")
    return SIZES.get(first) or SIZES.get(f"{first}/{rest.partition('/')[0]}")


@cache
def _tables() -> dict[str, dict[str, dict[str, dict[str, list[float]]]]]:
    tables: dict[str, Any] = json.loads((files("equipoise.study") / "published.json").read_text(encoding="utf-8"))
    return {part: tables[part] for part in ("test", "validation")}
