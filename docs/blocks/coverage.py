"""The generated blocks of docs/coverage.md."""

from collections.abc import Callable, Mapping

from blocks.rows import rows, table

COVERED = {"balanced": "balanced", "rare": "few positives", "clustered": "4 rows per patient", "extreme": "rates near 0 and 1"}
FEW_VALUES = "counts of few patients take few values"
ONE_SIDED = "wider than needed where decisions change in one direction only: that none changed the other way is no proof"
WHY_OUTSIDE = {  # kind: why its coverage is above, or below, the accepted range
    "rate of a group": (f"at rates near 0 or 1 {FEW_VALUES}", FEW_VALUES),
    "gap": (f"at rates near 0 or 1 {FEW_VALUES}", FEW_VALUES),
    "performance": (f"at rates near 0 or 1 {FEW_VALUES}", FEW_VALUES),
    "score of a group": ("wider than needed with few positives or nearly certain scores", "few patients have the finding"),
    "decision curve": ("wider than needed where hardly any decision is wrong", "few patients have the finding"),
    "band of a calibrated model": ("with few patients the error takes few values", "with few patients the error takes few values"),
    "change of a rate": (ONE_SIDED, "few decisions changed"),
    "rate without a change": ("no decision changed, in any sample", ""),
    "change of a gap": (ONE_SIDED, "few decisions changed"),
    "change of performance": (ONE_SIDED, "few decisions changed"),
}


def coverage() -> str:
    """How often each interval covered the truth, by design: the lowest and the highest over sample sizes."""
    found = rows("coverage/rows.csv").fillna({"group": ""})
    unchanged = (found["kind"] == "change of a rate") & (found["group"] == "a")  # the threshold of the reference stays
    kinds = found["kind"].mask(unchanged, "rate without a change")
    found = found.assign(kind=kinds, hits=found["coverage"] * found["repetitions"])
    pooled = found.groupby(["kind", "measure", "design", "rows"], sort=False)[["hits", "repetitions"]].sum()
    shares = pooled.assign(share=pooled["hits"] / pooled["repetitions"]).reset_index()
    chance = 2 * (0.95 * 0.05 / shares["repetitions"]) ** 0.5  # two standard errors: what counting so many samples leaves open
    shares = shares.assign(wide=shares["share"] > 0.98, narrow=shares["share"] + chance < 0.95)
    lines = []
    for (kind, measure), mine in shares[shares["design"].isin(COVERED)].groupby(["kind", "measure"], sort=False):
        cells = []
        for design in COVERED:
            seen = mine[mine["design"] == design]["share"]
            cells.append("" if seen.empty else f"{seen.min():.3f} to {seen.max():.3f}" if len(seen) > 1 else f"{seen.min():.3f}")
        low = mine[mine["share"] < 0.93]
        above, below = WHY_OUTSIDE[kind]
        why = [above] if mine["wide"].any() else []
        if len(low):
            why.append(below if low["narrow"].any() else "within what chance leaves open in so many samples")
        lines.append([kind, measure, *cells, "; ".join(dict.fromkeys(why))])
    return table(("interval of", "measure", *COVERED.values(), "why outside 0.93 to 0.98"), lines)


def coverage_repetitions() -> str:
    """How many samples the table of coverage rests on."""
    found = rows("coverage/rows.csv")
    counts = found.groupby(["design", "rows"])["repetitions"].max()
    inside, low = found["coverage"].between(0.93, 0.98).mean(), int((found["coverage"] < 0.93).sum())
    samples = " to ".join(dict.fromkeys((f"{counts.min():,}", f"{counts.max():,}")))
    return (
        f"{len(found):,} intervals in {len(counts)} designs of {found['rows'].min():,} to {found['rows'].max():,} rows, "
        f"{samples} samples of each; {100 * inside:.0f} % of them have a coverage of 0.93 to 0.98, and {low} a lower one.\n"
    )


def coverage_tests() -> str:
    """How often an audit highlights a gap that is none, how often a simultaneous interval misses, and the power of the detectable gap."""
    found = rows("coverage/tests.csv")
    lines = []
    for line in found.itertuples():
        gap_size = "" if line.gap != line.gap else f"{line.gap:.3f}"
        lines.append([line.what, line.design, f"{line.rows:,}", f"{line.repetitions:,}", gap_size, f"{line.share:.3f}"])
    return table(("what", "design", "rows", "samples", "gap", "share"), lines)


BLOCKS: Mapping[str, Callable[[], str]] = {
    "coverage": coverage,
    "coverage-repetitions": coverage_repetitions,
    "coverage-tests": coverage_tests,
}
