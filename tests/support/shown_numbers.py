"""Numbers with their intervals as pages, cards and the terminal show them, next to those of audit.json."""

import re
from collections.abc import Iterator
from typing import Any

PATIENTS = ["--patient", "pid"]
NUMBER = r"[+\u2212-]?\d+(?:\.\d+)?"
SHOWN = re.compile(rf"({NUMBER}) \[({NUMBER}), ({NUMBER})\]")  # as in cards and on the terminal
RATES = {
    "Sensitivity": "tpr",
    "Specificity": "tnr",
    "PPV": "ppv",
    "NPV": "npv",
    "AUROC": "auroc",
    "Calibration in the large": "calibration_in_the_large",
    "Calibration intercept": "calibration_intercept",
    "Calibration slope": "calibration_slope",
    "Calibration error": "calibration_error",
    "Brier score": "brier",
    "Sensitivity at 90% specificity": "sensitivity_at_specificity",
    "Specificity at 90% sensitivity": "specificity_at_sensitivity",
}
PLAIN = ("auroc", "brier", "calibration_intercept", "calibration_slope")  # printed as they are, not in percent
Interval = tuple[float | None, float | None, float | None]


def is_near(text: str, value: float | None, scale: float = 1.0) -> bool:
    """Whether the text is this value, rounded to the digits that are shown; none, where no gap is detectable."""
    if text == "none":
        return value is None
    digits = len(text.partition(".")[2].rstrip("%"))
    shown = float(text.rstrip("%").replace("\N{MINUS SIGN}", "-"))
    return value is not None and abs(shown - scale * value) <= 0.5 * 10**-digits + 1e-9


def is_shown(shown: tuple[str, ...] | None, expected: Interval, scale: float = 1.0) -> bool:
    """Whether a value and its interval are shown; None stands for insufficient data."""
    if shown is None:
        return expected[0] is None
    return all(is_near(text, value, scale) for text, value in zip(shown, expected, strict=True))


def ends_of(row: dict[str, Any], name: str = "") -> Interval:
    between = f"{name}_expected" if name == "calibration_error" else name  # the range of a calibrated model
    keys = (name, f"{between}_low", f"{between}_high") if name else ("value", "low", "high")
    return row[keys[0]], row[keys[1]], row[keys[2]]


def cell_of(cell: Any) -> tuple[str, str, str] | None:
    """The value and the interval in a cell of the report."""
    value, span = cell.xpath(".//span[@class='value']/text()"), cell.xpath(".//span[@class='span']/text()")
    if not value:
        assert cell.text_content().strip() == "insufficient data"
        return None
    low, _, high = span[0].partition(" to ")
    return value[0], low, high


def named_by(cell: Any) -> str:
    return " ".join(bdi.text_content() for bdi in cell.xpath(".//bdi"))


def all_ends(value: Any) -> Iterator[Interval]:
    if isinstance(value, dict):
        if {"value", "low", "high"} <= set(value):
            yield ends_of(value)
        for key in value:
            if f"{key}_low" in value or f"{key}_expected_low" in value:
                yield ends_of(value, key)
            yield from all_ends(value[key])
    elif isinstance(value, list):
        for inner in value:
            yield from all_ends(inner)
