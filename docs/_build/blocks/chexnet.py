"""The generated blocks on the scores of a published chest X-ray network: its audit, and its repair from scores alone."""

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
        "are marked in the overview of all findings. Of the findings with a mark, at most 5 % are expected to have no difference.\n"
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
    """The differences that the overview marks, largest first within each attribute."""
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


OUTCOMES = ("closed", "reduced", "unclear", "unchanged", "harm")


def repairs() -> pd.DataFrame:
    """Every contender on every finding and split, with the gap and performance of the original next to its own."""
    found = rows("chexnet-repair/rows.csv")
    place = ["attribute", "finding", "split"]
    original = found[found["method"] == "original"].set_index(place)[["gap", "balanced_accuracy", "outcome"]]
    return found[found["method"] != "original"].join(original.add_suffix("_original"), on=place)


def chexnet_repaired() -> str:
    """What each contender did on held-out patients, over all findings and splits."""
    found, lines = repairs(), []
    for attribute in ("sex", "age"):
        for method in found["method"].unique():
            own = found[(found["attribute"] == attribute) & (found["method"] == method)]
            fitted = own[own["gap"].notna()]
            if not len(fitted):
                continue
            counts = [int((fitted["outcome"] == outcome).sum()) for outcome in OUTCOMES]
            before, after = (100 * fitted[name].abs().mean() for name in ("gap_original", "gap"))
            lost = 100 * (fitted["balanced_accuracy"] - fitted["balanced_accuracy_original"]).mean()
            name = method if len(fitted) == len(own) else f"{method} ({len(own) - len(fitted)} errors)"
            lines.append([attribute, name, f"{before:.1f} → {after:.1f}", f"{lost:+.1f}", *counts, f"{fitted['seconds'].median():.1f}"])
    head = ("by", "method", "mean size of the difference, points", "balanced accuracy, points", *OUTCOMES, "seconds")
    return table(head, lines)


def chexnet_repaired_findings() -> str:
    """Equipoise on each finding: the size of the difference before and after, and the outcomes over the splits."""
    found, lines = repairs(), []
    ours = found[found["method"] == "Equipoise auto"]
    for finding in ours["finding"].unique():
        cells = [finding.replace("_", " ").lower()]
        for attribute in ("sex", "age"):
            own = ours[(ours["finding"] == finding) & (ours["attribute"] == attribute)]
            counts = [f"{int((own['outcome'] == outcome).sum())} {outcome}" for outcome in OUTCOMES if (own["outcome"] == outcome).any()]
            if not len(own):
                cells += ["", "too few patients"]
                continue
            cells += [f"{100 * own['gap_original'].abs().mean():.1f} → {100 * own['gap'].abs().mean():.1f}", ", ".join(counts)]
        lines.append(cells)
    return table(("finding", "by sex, points", "outcomes", "by age band, points", "outcomes"), lines)


def chexnet_repaired_run() -> str:
    """How many splits there were, and which findings have too few patients."""
    found = rows("chexnet-repair/rows.csv")
    short = found[found["outcome"] == "too few patients"].groupby("attribute").size().to_dict()
    told = "; ".join(f"{count} by {attribute}" for attribute, count in short.items()) or "none"
    small = int(found[found["method"] == "original"]["rows"].median())
    return (
        f"Splits of the patients: {found['split'].nunique()}; 14 findings; the test set has about {small:,} images. Repairs that were not "
        f"made, as a cell of group and label has fewer than 5 patients: {told}.\n"
    )


def chexnet_harm() -> str:
    """How many repairs of each contender helped, and how many did harm, on held-out patients; one line per contender."""
    found = repairs()
    found = found[found["gap"].notna()]
    lines = []
    for method, own in found.groupby("method", sort=False):
        better = int(own["outcome"].isin(("closed", "reduced")).sum())
        before, after = (100 * own[name].abs().mean() for name in ("gap_original", "gap"))
        lines.append([method, len(own), better, int((own["outcome"] == "harm").sum()), f"{before:.1f} → {after:.1f}"])
    return table(("method", "repairs", "closed or reduced", "harm", "mean size of the difference, points"), lines)


BLOCKS: Mapping[str, Callable[[], str]] = {
    "chexnet-run": chexnet_run,
    "chexnet-findings": chexnet_findings,
    "chexnet-gaps": chexnet_gaps,
    "chexnet-underdiagnosis": chexnet_underdiagnosis,
    "chexnet-detectable": chexnet_detectable,
    "chexnet-repaired-run": chexnet_repaired_run,
    "chexnet-repaired": chexnet_repaired,
    "chexnet-repaired-findings": chexnet_repaired_findings,
    "chexnet-harm": chexnet_harm,
}
