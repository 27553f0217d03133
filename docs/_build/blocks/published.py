"""The generated blocks on published tables that were made again from scores (experiments/published)."""

from collections.abc import Callable, Mapping

import pandas as pd

from blocks.chexnet import small_p
from blocks.rows import rows, table

IN_WORDS = {"eod": "sensitivity", "fpr_gap": "false positive rate"}
RATE = {"eod": "tpr", "fpr_gap": "fpr"}
FILE, GAPS = "published/rows.csv", "published/gaps.csv"


def _of(network: str, kind: str) -> pd.DataFrame:
    found = rows(FILE)
    return found[(found["network"] == network) & (found["table"] == kind)]


def _words(finding: str) -> str:
    return finding.replace("_", " ").lower()


def _with_limits(row: "pd.Series[float]") -> str:
    return f"{row['ours']:.3f} ({row['low']:.3f} to {row['high']:.3f})"


def summary() -> str:
    """How far each published table is from ours, and how many of the published differences are clear by patient."""
    lines = []
    for (network, kind), cell in rows(FILE).groupby(["network", "table"], sort=False):
        known = cell[cell["published"].notna()]
        size = (known["ours"] - known["published"]).abs()
        inside = known["published"].between(known["low"], known["high"])
        worst = known.loc[size.idxmax()]
        where = ", ".join(str(part) for part in (_words(worst["finding"]), worst["variant"], worst["group"]) if part == part and part != "all")
        lines.append([network, kind, len(known), f"{size.mean():.3f}", f"{size.max():.3f} ({where})", f"{inside.sum()} of {len(known)}"])
    header = ("network", "table", "published numbers", "mean difference", "largest", "published number within our interval")
    return table(header, lines)


def claims() -> str:
    """How many of the differences that the papers report are clear by patient, before and after adjustment."""
    lines = []
    for (network, measure), cell in rows(GAPS).groupby(["network", "measure"], sort=False):
        single = ~cell["attribute"].str.contains("&", regex=False)
        for name, own in (("one attribute", cell[single]), ("crossed", cell[~single])):
            if len(own):
                unadjusted = (own["p_value"] <= 0.05).sum()
                lines.append([network, IN_WORDS[measure], name, len(own), unadjusted, own["clear"].sum()])
    return table(("network", "difference in", "groups", "differences", "p ≤ 0.05, unadjusted", "clear after adjustment"), lines)


def chexnet() -> str:
    """AUROCs of the retrained CheXNet."""
    lines = []
    for _, row in _of("CheXNet, retrained", "AUROC").iterrows():
        lines.append([_words(row["finding"]), f"{row['published']:.3f}", _with_limits(row), f"{row['ours'] - row['published']:+.3f}"])
    return table(("finding", "published", "ours", "difference"), lines)


def larrazabal_aurocs() -> str:
    """AUROC by sex and composition of the training set."""
    found = _of("Larrazabal et al.", "AUROC by sex")
    by = found.set_index(["finding", "variant", "group"])
    variants = list(dict.fromkeys(found["variant"]))
    lines = []
    for finding in dict.fromkeys(found["finding"]):
        cells = [" / ".join(_with_limits(by.loc[(finding, variant, sex)]) for sex in ("M", "F")) for variant in variants]
        lines.append([_words(finding), *cells])
    return table(("finding", *(f"{variant}: men / women" for variant in variants)), lines)


def larrazabal_gaps() -> str:
    """Differences between women and men at the published thresholds: published, ours, and whether they are clear."""
    rates = _of("Larrazabal et al.", "rates by sex").set_index(["variant", "finding", "group", "measure"])
    gaps = rows(GAPS).query("network == 'Larrazabal et al.'").set_index(["variant", "finding", "measure"])
    lines = []
    for variant, finding in dict.fromkeys((variant, finding) for variant, finding, *_ in rates.index):
        line = [variant, _words(finding)]
        for measure, rate in RATE.items():
            published = [rates.loc[(variant, finding, sex, rate), "published"] for sex in ("F", "M")]
            own = gaps.loc[(variant, finding, measure)]
            limits = f"{100 * own['value']:+.1f} ({100 * own['low']:+.1f} to {100 * own['high']:+.1f})"
            line += [f"{100 * (published[0] - published[1]):+.1f}", limits, f"{small_p(own['p_adjusted'])}{' *' if own['clear'] else ''}"]
        lines.append(line)
    heads = [f"{words}: {kind}" for words in IN_WORDS.values() for kind in ("published", "ours", "adjusted p")]
    return table(("trained on", "finding", *heads), lines)


def underdiagnosis() -> str:
    """False positive rates of "no finding" by sex, age and both: means over five seeds."""
    found, gaps = _of("Nature Medicine", "underdiagnosis"), rows(GAPS).query("network == 'Nature Medicine'")
    lines = []
    for group, cell in found.groupby("group", sort=False):
        own = gaps[gaps["group"] == group]
        published, ours = cell["published"].mean(), cell["ours"].mean()
        span = f"{cell['low'].mean():.3f} to {cell['high'].mean():.3f}"
        apart = (cell["ours"] - cell["published"]).abs().max()
        against = own["reference"].iloc[0] if len(own) else ""
        difference = f"{100 * own['value'].mean():+.1f}" if len(own) else ""
        marks = [f"{(own['p_value'] <= 0.05).sum()} of {len(own)}", f"{own['clear'].sum()} of {len(own)}"] if len(own) else ["", ""]
        lines.append([group, f"{published:.3f}", f"{ours:.3f}", span, f"{apart:.3f}", against, difference, *marks])
    header = ("group", "published", "ours", "mean interval", "largest difference of a seed", "compared with", "points", "seeds with p ≤ 0.05")
    return table((*header, "clear after adjustment"), lines)


BLOCKS: Mapping[str, Callable[[], str]] = {
    "published-summary": summary,
    "published-claims": claims,
    "published-chexnet": chexnet,
    "published-larrazabal-aurocs": larrazabal_aurocs,
    "published-larrazabal-gaps": larrazabal_gaps,
    "published-underdiagnosis": underdiagnosis,
}
