"""The generated blocks on the order in which audits spend their error."""

from collections.abc import Callable, Mapping

import pandas as pd

from blocks.chexnet import IN_WORDS, small_p
from blocks.rows import rows, table

RULES = {"one family": "all gaps of all labels at once", "in order": "in order"}


def simulated() -> str:
    """False marks and findings of simulated audits by each rule."""
    lines = []
    for row in rows("claims/simulated.csv").to_dict("records"):
        found = [f"{row[name]:.0%}" if row[name] == row[name] else "" for name in ("found_single", "found_intersections")]
        share, labels = f"{row['false_in_label']:.1%}", f"{row['false_labels_in_overview']:.1%}"
        lines.append([row["world"], RULES[row["rule"]], f"{row['audits']:,}", share, labels, *found])
    header = ("world", "error is spent", "audits", "a false mark in a label", "false labels in the overview", "found, single", "found, crossed")
    return table(header, lines)


def published() -> str:
    """Findings in missed findings and false alarms of published networks, before and after."""
    found = [rows(f"claims/published_{version}.csv").groupby("network", sort=False).sum(numeric_only=True) for version in ("before", "after")]
    labels = rows("claims/published_after.csv").groupby("network", sort=False)["label"].count()
    lines = []
    for name in found[1].index:
        before, after = (each.loc[name] for each in found)
        single, crossed = (f"{before[f'found_{k}']} / {after[f'found_{k}']}" for k in ("single", "crossed"))
        lines.append([name, str(labels[name]), str(after["single"]), single, str(after["crossed"]), crossed, str(after["below_05"])])
    header = ("network", "labels", "gaps", "clear before / after", "crossed gaps", "clear before / after", "single, p ≤ 0.05 unadjusted")
    return table(header, lines)


def findings() -> str:
    """Every difference of the published networks that is clear before or after, with its adjusted p-values."""
    keys = ["network", "label", "measure", "attribute", "group", "reference"]
    after, before = (rows(f"claims/findings_{version}.csv").fillna({"label": ""}) for version in ("after", "before"))
    both = after.merge(before, on=keys, how="outer", suffixes=("_after", "_before"))
    clear = {version: both[f"clear_{version}"].eq(True) for version in ("before", "after")}
    lines, seen = [], ""
    for k, row in both[clear["before"] | clear["after"]].iterrows():
        p = {version: "" if pd.isna(value := row[f"p_adjusted_{version}"]) else small_p(value) for version in clear}
        marks = {version: f"{p[version]}{' *' if clear[version][k] else ''}" for version in clear}
        value = row["value_after"] if pd.notna(row["value_after"]) else row["value_before"]
        named = "" if row["network"] == seen else row["network"]
        seen, finding = row["network"], row["label"].replace("_", " ").lower()
        between = f"{row['group']} minus {row['reference']}"
        lines.append([named, finding, IN_WORDS[row["measure"]], between, f"{100 * value:+.1f}", *marks.values()])
    header = ("network", "finding", "difference in", "between", "points", "adjusted p before", "adjusted p after")
    return table(header, lines)


BLOCKS: Mapping[str, Callable[[], str]] = {"claims-simulated": simulated, "claims-published": published, "claims-findings": findings}
