"""The generated blocks on false alarms and delays of repeated audits."""

from collections.abc import Callable, Mapping

import numpy as np

from blocks.rows import rows, table

BOUND = 0.05  # false alarms over a whole history, at 95 %


RETURNING = ("the same patients in all periods", "two thirds of the patients return")  # not identified, so that the guarantee does not hold


def false_alarms() -> str:
    """The share of stable histories with an alarm in any of 50 periods."""
    found = rows("monitoring/false_alarms.csv")
    stated = found[~found["world"].isin(RETURNING)]
    if (stated["any"] > BOUND).any():
        raise SystemExit("more false alarms than stated in experiments/monitoring/false_alarms.csv")
    lines = [
        [
            row["world"],
            f"{row['reference']} and {row['group']}",
            f"{row['level']:.1%}",
            f"{row['change']:.1%}",
            f"{row['any']:.1%}",
            f"{row['ratio']:.1%}",
            f"{row['pooled']:.1%}",
            f"{row['naive']:.0%}",
        ]
        for row in found.to_dict("records")
    ]
    header = ("stable world", "patients per period (reference, group)", "level", "change", "any alarm", "any of the ratio", "level, pooled", "tested every period")
    return table(header, lines)


def delays() -> str:
    """The periods until a gap of 0.1 is reported."""
    found = rows("monitoring/delays.csv")
    lines = []
    for row in found.to_dict("records"):
        if row["world"].endswith("start") and row["alarm"] == "any":
            continue  # the level only
        ends = [f"{row[name]:.0f}" if np.isfinite(row[name]) and row[name] <= 60 else "never" for name in ("median", "ninth_decile")]
        lines.append([row["world"], f"{row['reference']} and {row['group']}", row["alarm"], *ends, f"{row['within_12']:.0%}"])
    header = ("world", "patients with the finding per period", "alarm", "median", "9 of 10 within", "within 12 periods")
    return table(header, lines)


def short() -> str:
    """False alarms over 50 periods, and the periods until a gap of 0.1 that is there from the start is reported."""
    found, late = rows("monitoring/false_alarms.csv"), rows("monitoring/delays.csv")
    stable = found[~found["world"].isin(RETURNING)]
    start = late[late["world"].str.endswith("start") & (late["alarm"] == "level")]
    waits = ", ".join(f"{row['median']:.0f} periods ({row['reference']} and {row['group']})" for row in start.to_dict("records"))
    return (
        f"In simulations of stable classifiers, a false alarm within 50 periods occurred in {100 * stable['any'].min():.1f} to "
        f"{100 * stable['any'].max():.1f} % of histories; testing each period on its own gave {100 * stable['naive'].min():.0f} to "
        f"{100 * stable['naive'].max():.0f} %. The median time until a gap of 0.1 is reported, by the "
        f"patients with the finding per period in reference and group: {waits}.\n"
    )


BLOCKS: Mapping[str, Callable[[], str]] = {
    "monitoring-false-alarms": false_alarms,
    "monitoring-delays": delays,
    "monitoring-short": short,
}
