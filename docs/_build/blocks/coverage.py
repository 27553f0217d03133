"""The generated blocks on how often intervals contain the truth."""

from collections.abc import Callable, Mapping

import pandas as pd

from blocks.rows import rows, table

COVERED = {"balanced": "balanced", "rare": "few positives", "clustered": "4 rows per patient", "extreme": "rates near 0 and 1"}
ACCEPTED = (0.93, 0.98)
FEW_EVENTS = 10  # expected rows with the rarer outcome, or decisions that changed
CHANCE = 2.0  # standard errors by which a coverage may be below the accepted range, with so many samples
CHANGED = "fewer than 10 decisions changed in one of the cells: that few or none changed is no proof that none would"
FEW = "fewer than 10 rows with the rarer outcome: so few values are possible that no interval covers in exactly 95 %"
WHY_WIDE = {  # kind or measure: why its intervals are wider than needed with more events
    "sensitivity_at_specificity": "two uncertain rates, of which the second is read from a curve with steps",
    "specificity_at_sensitivity": "two uncertain rates, of which the second is read from a curve with steps",
    "auroc": "the variance of the score interval is that of less concentrated scores",
    "average_precision": "the lower limit allows for the bias of small samples",
    "change of a rate, threshold": "decisions change in one direction only, and the interval allows for the other",
    "change of a gap, threshold": "decisions change in one direction only, and the interval allows for the other",
    "change of performance, threshold": "decisions change in one direction only, and the interval allows for the other",
}
WIDE = "wider than needed; the safe side"
BY_CHANCE = "within what chance leaves open in so many samples"
NARROW = "narrower than stated"


def coverage() -> str:
    """How often each interval covered the truth, by design: the lowest and the highest over sample sizes."""
    found = _found()
    found = found.assign(hits=found["coverage"] * found["repetitions"])
    lines = []
    for (kind, measure), mine in found[found["design"].isin(COVERED)].groupby(["kind", "measure"], sort=False):
        pooled = mine.groupby(["design", "rows"])[["hits", "repetitions"]].sum()
        share = pooled["hits"] / pooled["repetitions"]
        cells = []
        for design in COVERED:
            seen = share[share.index.get_level_values("design") == design]
            cells.append("" if seen.empty else f"{seen.min():.3f} to {seen.max():.3f}" if len(seen) > 1 else f"{seen.min():.3f}")
        lines.append([kind, measure, *cells])
    return table(("interval of", "measure", *COVERED.values()), lines)


def coverage_reasons() -> str:
    """Why intervals cover in more or less than the accepted share of samples: one line per reason, with how many they are."""
    found = _found()
    outside = found[found["reason"] != ""]
    lines = []
    for (above, reason), mine in sorted(outside.groupby(["above_accepted", "reason"]), key=lambda item: (item[0][0], -len(item[1]))):
        kinds = "; ".join(dict.fromkeys(mine["kind"]))
        share = f"{mine['coverage'].min():.3f} to {mine['coverage'].max():.3f}"
        lines.append(["above 0.98" if above else "below 0.93", reason, kinds, f"{len(mine):,}", share])
    return table(("coverage", "reason", "intervals of", "number", "lowest to highest"), lines)


def _found() -> pd.DataFrame:
    """One row per interval, with the reason why its coverage is outside the accepted range; an empty one where it is not."""
    found = rows("coverage/rows.csv").fillna({"group": ""})
    return found.assign(above_accepted=found["coverage"] > ACCEPTED[1], reason=[_reason(line) for line in found.to_dict("records")])


def _reason(line: Mapping[str, object]) -> str:
    share, samples, kind = float(str(line["coverage"])), float(str(line["repetitions"])), str(line["kind"])
    if share > ACCEPTED[1]:
        if float(str(line["events"])) < FEW_EVENTS:
            return CHANGED if kind.startswith("change") else FEW
        return WHY_WIDE.get(str(line["measure"]), WHY_WIDE.get(kind, WIDE))
    if share < ACCEPTED[0]:
        error = (ACCEPTED[0] * (1 - ACCEPTED[0]) / samples) ** 0.5
        return BY_CHANCE if share >= ACCEPTED[0] - CHANCE * error else NARROW
    return ""


def coverage_repetitions() -> str:
    """How many samples the table of coverage rests on."""
    found = _found()
    counts = found.groupby(["design", "rows"])["repetitions"].max()
    above, below = int(found["above_accepted"].sum()), int((found["coverage"] < ACCEPTED[0]).sum())
    narrow = int((found["reason"] == NARROW).sum())
    samples = " to ".join(dict.fromkeys((f"{counts.min():,}", f"{counts.max():,}")))
    return (
        f"{len(found):,} intervals in {len(counts)} designs of {found['rows'].min():,} to {found['rows'].max():,} rows, "
        f"{samples} samples of each: {100 * (1 - (above + below) / len(found)):.0f} % contain the truth in 93 to 98 % of samples, "
        f"{100 * above / len(found):.0f} % more often and {below} intervals less often, {narrow} of them by more than chance explains.\n"
    )


def coverage_tests() -> str:
    """How often an audit highlights a gap that is none, how often a simultaneous interval misses, and the power of the detectable gap."""
    found = rows("coverage/tests.csv")
    lines = []
    for line in found.itertuples():
        gap_size = "" if line.gap != line.gap else f"{line.gap:.3f}"
        none = "" if line.none != line.none else f"{100 * line.none:.0f} %"
        lines.append([line.what, line.design, f"{line.rows:,}", f"{line.repetitions:,}", gap_size, none, f"{line.share:.3f}"])
    return table(("what", "design", "rows", "samples", "median gap", "none", "share"), lines)


def coverage_short() -> str:
    """How often intervals cover, a gap that is none is highlighted, and the minimum detectable gap is detected."""
    found = rows("coverage/tests.csv")
    chance = found[found["what"] == "a gap that is none is highlighted"]["share"]
    power = found[found["what"].str.startswith("power")]["share"]
    return (
        f"{coverage_repetitions().rstrip()} Where there is no gap, one is called clear in at most {100 * chance.max():.1f} % of samples; "
        f"the power at the minimum detectable gap is {power.min():.2f} to {power.max():.2f}.\n"
    )


def coverage_formula() -> str:
    """The coverage of rates of NIH patients by three formulas of the variance, for 120 patients."""
    found, lines = rows("coverage/formula.csv"), []
    for (label, flagged), own in found[found["patients"] == 120].groupby(["label", "flagged"], sort=False):
        by_rate = own.set_index("rate")
        cells = [f"{by_rate.loc[rate, name]:.3f}" for rate in ("selection_rate", "fpr") for name in FORMULAS]
        lines.append([label, f"{flagged:.0%}", *cells])
    header = ("label", "flagged", *(f"{rate}: {words}" for rate in ("share flagged", "FPR") for words in FORMULAS.values()))
    return table(header, lines)


def coverage_summaries() -> str:
    """The coverage of ratios, ranges, worst groups and differences in measures of scores: the lowest and the highest of each kind."""
    found = rows("coverage/summaries.csv")
    found = found[found["samples"] >= found["samples"].max() / 2]  # the rest are a selection
    scores = ("auroc", "brier", "calibration")
    kind = found["measure"].str.rpartition("_")[2].where(~found["measure"].str.endswith("min_ratio"), "min_ratio")
    of = found["measure"].str.partition("_")[0]
    found = found.assign(kind=kind, of=of.where(of.isin(scores), "rates"))
    lines = []
    for (what, name), own in found.groupby(["kind", "of"], sort=False):
        cells = []
        for design in found["design"].unique():
            mine = own[own["design"] == design]["coverage"]
            cells.append("" if mine.empty else f"{mine.min():.3f} to {mine.max():.3f}" if len(mine) > 1 else f"{mine.min():.3f}")
        lines.append([SUMMARY_KINDS[what], name, *cells])
    return table(("interval of", "of", *found["design"].unique()), lines)


SUMMARY_KINDS = {
    "ratio": "ratio to the reference",
    "gap": "difference from the reference",
    "min_ratio": "lowest divided by highest",
    "range": "highest minus lowest",
    "worst": "worst group",
}
FORMULAS = {"Kish": "before", "patient by patient": "formula, by patient", "power sums": "audit"}
BLOCKS: Mapping[str, Callable[[], str]] = {
    "coverage-formula": coverage_formula,
    "coverage-summaries": coverage_summaries,
    "coverage": coverage,
    "coverage-reasons": coverage_reasons,
    "coverage-repetitions": coverage_repetitions,
    "coverage-tests": coverage_tests,
    "coverage-short": coverage_short,
}
