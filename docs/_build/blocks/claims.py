"""The generated blocks on the order in which audits spend their error."""

from collections.abc import Callable, Mapping

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


BLOCKS: Mapping[str, Callable[[], str]] = {"claims-simulated": simulated, "claims-published": published}
