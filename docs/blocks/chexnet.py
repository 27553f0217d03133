"""The generated blocks of docs/chexnet.md."""

from collections.abc import Callable, Mapping

import pandas as pd

from blocks.rows import rows, table

CHEXNET = "chexnet-nih"
IN_WORDS = {"eod": "sensitivity", "fpr_gap": "false positive rate"}


def points(line: "pd.Series[float]", names: tuple[str, str, str] = ("value", "low", "high")) -> str:
    """A difference in percentage points with its interval."""
    value, low, high = (100 * float(line[name]) for name in names)
    return f"{value:+.1f} [{low:+.1f}, {high:+.1f}]"


def small_p(value: float) -> str:
    """A p-value."""
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def chexnet_run() -> str:
    """How many images and patients were audited, and how many comparisons were made."""
    run, gaps = rows(f"{CHEXNET}/run.csv").iloc[0], rows(f"{CHEXNET}/gaps.csv")
    clear, known = int(gaps["clear"].sum()), gaps[gaps["value"].notna()]
    apart = int(((known["low"] > 0) | (known["high"] < 0)).sum())
    return (
        f"{run['test_rows']:,.0f} images of {run['test_patients']:,.0f} patients were audited; thresholds come from the other "
        f"{run['patients'] - run['test_patients']:,.0f} of {run['patients']:,.0f} patients. The audit makes {run['comparisons']:.0f} "
        f"comparisons, of which this page shows {run['shown']:.0f}. {apart} of their pointwise intervals exclude zero; {clear} differences "
        "remain after adjustment for all that the audit makes.\n"
    )


def chexnet_findings() -> str:
    """Every finding: how frequent it is, how well its score ranks and how it is calibrated, and how many of its gaps remain."""
    found, gaps = rows(f"{CHEXNET}/findings.csv"), rows(f"{CHEXNET}/gaps.csv")
    lines = []
    for line in found.itertuples():
        own = gaps[(gaps["finding"] == line.finding) & gaps["value"].notna()]
        lines.append(
            [
                line.finding.replace("_", " ").lower(),
                f"{line.positives:,}",
                f"{line.auroc:.3f} [{line.auroc_low:.3f}, {line.auroc_high:.3f}]",
                f"{line.calibration_slope:.2f} [{line.calibration_slope_low:.2f}, {line.calibration_slope_high:.2f}]",
                f"{line.calibration_intercept:+.2f} [{line.calibration_intercept_low:+.2f}, {line.calibration_intercept_high:+.2f}]",
                f"{int(own['clear'].sum())} of {len(own)}",
            ]
        )
    return table(("finding", "positive images", "AUROC", "calibration slope", "calibration intercept", "clear differences"), lines)


def chexnet_gaps() -> str:
    """The differences that remain after adjustment, largest first within each attribute."""
    gaps = rows(f"{CHEXNET}/gaps.csv")
    clear = gaps[gaps["clear"]].assign(size=lambda frame: frame["value"].abs()).sort_values(["attribute", "size"], ascending=[True, False])
    lines = [
        [
            f"{line['attribute']}: {line['group']} minus {line['reference']}",
            line["finding"].replace("_", " ").lower(),
            IN_WORDS[line["measure"]],
            points(line) + ("†" if line["few"] else ""),
            small_p(line["p_adjusted"]),
        ]
        for _, line in clear.iterrows()
    ]
    return table(("between", "finding", "difference in", "points", "adjusted p"), lines)


def chexnet_detectable() -> str:
    """The minimum detectable difference in sensitivity, over findings and groups."""
    gaps = rows(f"{CHEXNET}/gaps.csv")
    own = 100 * gaps.loc[(gaps["measure"] == "eod") & gaps["value"].notna(), "detectable"]
    return (
        f"With so few positive patients per group, the minimum detectable difference in sensitivity (80 % power, before adjustment) is "
        f"{own.median():.0f} points in the median of {len(own)} comparisons; it ranges from {own.min():.0f} to {own.max():.0f} points"
        f"{'' if own.notna().all() else f', and in {int(own.isna().sum())} no possible difference would be detected'}.\n"
    )


def chexnet_underdiagnosis() -> str:
    """Of images with a finding, the share on which no finding is flagged, by group."""
    lines = []
    for _, line in rows(f"{CHEXNET}/underdiagnosis.csv").iterrows():
        rate = " ".join([f"{100 * line['rate']:.1f}", f"[{100 * line['low']:.1f}, {100 * line['high']:.1f}]"])
        compared = ["reference", ""] if line["reference"] else [points(line, ("gap", "gap_low", "gap_high")), small_p(line["p_adjusted"])]
        lines.append([f"{line['attribute']}: {line['group']}", f"{line['with_finding']:,}", rate, *compared])
    return table(("group", "images with a finding", "none flagged, %", "difference, points", "adjusted p"), lines)


BLOCKS: Mapping[str, Callable[[], str]] = {
    "chexnet-run": chexnet_run,
    "chexnet-findings": chexnet_findings,
    "chexnet-gaps": chexnet_gaps,
    "chexnet-underdiagnosis": chexnet_underdiagnosis,
    "chexnet-detectable": chexnet_detectable,
}
