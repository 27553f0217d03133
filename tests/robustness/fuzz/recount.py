"""An audit by another way, for an oracle: rows as text, counted with plain Python, compared with the JSON of `equipoise audit`."""

import csv
import gzip
import io
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, str]
NEEDED = ("patient", "sex", "y", "p")


class Invalid(ValueError):
    """A table that nobody could audit without guessing."""


def rows_of(content: bytes, delimiter: str = ",") -> list[dict[str, str]]:
    """The rows of a CSV file as text; Invalid where its shape is not that of a table with the columns needed."""
    if content[:2] == b"\x1f\x8b":
        content = gzip.decompress(content)
    try:
        text = content.decode("utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig")
    except UnicodeDecodeError:
        text = content.decode("cp1252", errors="replace")  # as documented for tables that are not UTF-8; bytes that it lacks are refused
    lines = [line for line in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter) if line]
    if not lines:
        raise Invalid("no lines")
    header = [name.strip() for name in lines[0]]
    if any(header.count(name) != 1 for name in NEEDED):
        raise Invalid("a column is missing or there twice")
    if any(any(line[len(header) :]) for line in lines[1:]):
        raise Invalid("a row has more cells than the header")
    return [dict(zip(header, line + [""] * (len(header) - len(line)), strict=False)) for line in lines[1:]]


def number(text: str) -> float:
    """The number in a cell; Invalid where there is none."""
    word = text.strip().lower()
    if word in ("true", "false"):
        return float(word == "true")
    try:
        if "_" in word or "inf" in word or "nan" in word:
            raise ValueError
        value = float(word)
    except ValueError:
        raise Invalid(f"{text!r} is no number") from None
    if not math.isfinite(value):
        raise Invalid(f"{text!r} is not finite")
    return value


def recounted(rows: Sequence[Row], threshold: float = 0.5) -> dict[str, dict[str, float]]:
    """n, positives, selection rate, sensitivity and false positive rate of each group; Invalid where a cell cannot be read."""
    cells: dict[str, dict[str, float]] = {}
    for row in rows:
        y, p = number(row["y"]), number(row["p"])
        if y not in (0, 1):
            raise Invalid(f"label {row['y']!r}")
        if not 0 <= p <= 1:
            raise Invalid(f"score {row['p']!r}")
        if row["patient"] == "":
            raise Invalid("no patient")
        if row["sex"] == "":
            continue
        cell = cells.setdefault(row["sex"], {"n": 0, "positives": 0, "flagged": 0, "hits": 0})
        cell["n"] += 1
        cell["positives"] += y
        cell["flagged"] += p >= threshold
        cell["hits"] += y == 1 and p >= threshold
    return {
        group: {
            "n": c["n"],
            "positives": c["positives"],
            "selection_rate": c["flagged"] / c["n"],
            "tpr": c["hits"] / c["positives"] if c["positives"] else math.nan,
            "fpr": (c["flagged"] - c["hits"]) / (c["n"] - c["positives"]) if c["n"] > c["positives"] else math.nan,
        }
        for group, c in cells.items()
    }


def compared(printed: str, rows: Sequence[Row], threshold: float = 0.5) -> str:
    """What is wrong with an audit's JSON for these rows, or nothing."""
    try:
        expected = recounted(rows, threshold)
    except Invalid as error:
        return f"accepted, although {error}"
    try:
        found: dict[str, Any] = json.loads(printed)
    except ValueError:
        return "the output is not JSON"
    if found["rows"] != len(rows):
        return f"{found['rows']} rows were audited and the file has {len(rows)}"
    patients = len({row["patient"] for row in rows})
    if found["patients"] is not None and found["patients"] != patients:
        return f"{found['patients']} patients were audited and the file has {patients}"
    groups = {row["group"]: row for row in found["groups"] if row["attribute"] == "sex"}
    if set(groups) != set(expected):
        return f"the groups are {sorted(expected)} in the file and {sorted(groups)} in the audit"
    for group, cell in expected.items():
        for name, value in cell.items():
            shown = groups[group][name]
            if shown is None:  # insufficient data
                continue
            if math.isnan(value) or abs(shown - value) > 1e-9:
                return f"{name} of {group!r} is {value} in the file and {shown} in the audit"
    for gap in found["gaps"]:
        if gap["measure"] == "eod" and gap["value"] is not None:
            value = expected[gap["group"]]["tpr"] - expected[gap["reference"]]["tpr"]
            if abs(gap["value"] - value) > 1e-9:
                return f"eod of {gap['group']!r} is {value} in the file and {gap['value']} in the audit"
    return ""
