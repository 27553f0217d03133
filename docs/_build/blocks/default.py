"""The generated blocks on the default, and on which method to choose, from rows that no setting was tuned on."""

from collections.abc import Callable, Mapping

import numpy as np
import pandas as pd

from blocks.rows import INPUTS, at, rows, table

DEFAULT, PLAIN, PUBLISHED = "default", "group thresholds as fitted", "published"
NEED_GROUP = ("reject-option", "equalised-odds", "group-thresholds", PLAIN)
OUTCOMES = ("closed", "reduced", "unclear", "unchanged", "harm", "refused")
CASE = ["data", "network", "rows", "seed"]
MANY = 2_000  # rows of a repair set
KEPT = 0.03  # of balanced accuracy: a method that loses more on average is not recommended
ALIKE = 0.002  # of mean |gap|: methods that differ by less are named together ...
BEHIND = 0.015  # ... unless one has this much less balanced accuracy than the other


def _anywhere(*names: str) -> pd.DataFrame:
    """Runs on networks that no setting was tuned on, with the size of the gap before and after."""
    found = pd.concat([rows(f"anywhere/{name}.csv") for name in names], ignore_index=True)
    found = found[found["gap_before"].notna()]
    many = found["rows"] >= MANY
    where = {
        "tables": np.where(many, f"tables, {MANY:,} rows or more", "tables, fewer rows"),
        "images": "NIH X-rays, about 1,000 images",
        "worlds": np.where(found["data"].str.endswith("no gap"), "simulated patients without a gap", "simulated patients with a gap"),
    }
    sets = np.select([found["part"] == part for part in where], list(where.values()), "")
    lost = found["performance_before"] - found["performance"]
    return found.assign(where=sets, before=found["gap_before"].abs(), after=found["gap"].abs(), lost=lost)


def anywhere() -> str:
    """What the default did, next to group thresholds fitted without any correction, by kind of data."""
    found = _anywhere("tables", "worlds", "images")
    lines = []
    for where, part in found.groupby("where", sort=False):
        own, plain = (part[part["arm"] == arm] for arm in (DEFAULT, PLAIN))
        counts = [f"{int((own['outcome'] == name).sum())} {name}" for name in OUTCOMES if (own["outcome"] == name).any()]
        lines.append(
            [
                where,
                len(own),
                f"{own['before'].mean():.3f} → {own['after'].mean():.3f}",
                f"{-own['lost'].mean():+.3f}",
                ", ".join(counts),
                f"{plain['before'].mean():.3f} → {plain['after'].mean():.3f}" if len(plain) else "",
                f"{own['seconds'].median():.0f} s",
            ]
        )
    head = ("data", "runs", "mean |EOD|, test set", "balanced accuracy", "outcomes", f"{PLAIN} (uses the group)", "median time")
    return table(head, lines)


def methods_anywhere() -> str:
    """Every method on the tables: the gap that is left and the performance that is lost, with few and with many rows."""
    found = _anywhere("tables", "methods")
    found = found[found["seed"].isin(set(rows("anywhere/methods.csv")["seed"]))]  # the same networks for every method
    sizes = sorted(set(found["where"]))
    names = {PUBLISHED: "`bias-gda` with the published schedule", PLAIN: PLAIN, DEFAULT: "the default (`auto`)"}
    means = {arm: own.groupby("where")[["after", "lost"]].mean() for arm, own in found.groupby("arm")}
    order = sorted(means, key=lambda arm: (arm != DEFAULT, float(means[arm]["after"].mean())))
    runs = found[found["arm"] == DEFAULT].groupby("where").size()
    original = ["original", *(f"{found[(found['where'] == size) & (found['arm'] == DEFAULT)]['before'].mean():.3f}" for size in sizes)]
    lines = [original]
    for arm in order:
        name = names.get(arm, f"`{arm}`") + (" (uses the group)" if arm in NEED_GROUP else "")
        own, here = means[arm], found[found["arm"] == arm].groupby("where")["before"].agg(["size", "mean"])
        fewer = [f", of {here['mean'][k]:.3f} in {here['size'][k]} runs" if here["size"][k] < runs[k] else "" for k in sizes]
        lines.append([name, *(f"{own['after'][k]:.3f} ({-own['lost'][k]:+.3f}){few}" for k, few in zip(sizes, fewer, strict=True))])
    complete = {arm: own for arm, own in means.items() if (found["arm"] == arm).sum() == runs.sum()}
    best = []
    for size in sizes:
        blind = {arm: float(own["after"][size]) for arm, own in complete.items() if arm not in NEED_GROUP}
        least = min(blind, key=lambda arm: blind[arm])
        best.append(f"{names.get(least, f'`{least}`')} ({size})")
    head = ("method", *(f"{size} ({runs[size]} runs)" for size in sizes))
    return table(head, lines) + f"\nSmallest without the group: {'; '.join(best)}.\n"


def choosing() -> str:
    """What the results favour, by situation: means over the cases of each, and the advice that follows from them."""
    earlier = rows("beyond/summary.csv")
    blind_to_it = earlier[earlier["data"].isin(("adult", "bank", "compas")) & (earlier["inputs"] == INPUTS[1])]
    cases = (
        ("tables, attribute among the inputs", "cross-fitted", _present("tables"), "bias-score"),
        ("tables, attribute not among the inputs", "in-sample", blind_to_it, "bias-score"),
        ("chest X-rays, 160 to 1,000 repair images", "cross-fitted", _present("nih"), "bias-score-train"),
    )
    lines = []
    for where, selection, frame, probes in cases:
        blind, aware = ("bias-gda", "constrained", probes), "group-thresholds"
        means = frame.groupby("method")[["mean_abs_gap", "balanced_accuracy"]].mean()
        values = [at(means.loc[method]) if method in means.index else "" for method in ("standard", "auto", *blind, aware)]
        lines.append([where, selection, advice(means, blind, aware), *values])
    methods = ("original", "the default", "bias-gda", "constrained", "bias-score", "group-thresholds (uses the group)")
    return table(("situation", "selection", "favoured", *methods), lines)


def _present(part: str) -> pd.DataFrame:
    """The methods as they are today, on the paper's tables or on NIH X-rays: one line per data set, measure and method."""
    found = rows(f"defaults/{part}.csv")
    found = found[found["arm"].isin(("original", "now", "default"))]
    found = found.assign(mean_abs_gap=found["gap"].abs(), balanced_accuracy=found["performance"])
    return found.groupby(["data", "measure", "method"], as_index=False)[["mean_abs_gap", "balanced_accuracy"]].mean()


def advice(means: pd.DataFrame, blind: tuple[str, ...], aware: str) -> str:
    """The methods that leave the smallest gap of those that keep performance; the rule that uses the group if it leaves less still.

    Of methods whose gaps are alike, those that are clearly behind in performance are not named.
    """
    keeps = [method for method in blind if means.loc["standard", "balanced_accuracy"] - means.loc[method, "balanced_accuracy"] <= KEPT]
    least = min(means.loc[method, "mean_abs_gap"] for method in keeps)
    alike = [method for method in keeps if means.loc[method, "mean_abs_gap"] <= least + ALIKE]
    best = max(means.loc[method, "balanced_accuracy"] for method in alike)
    named = [method for method in alike if means.loc[method, "balanced_accuracy"] > best - BEHIND]
    words = " or ".join(f"`{m.removesuffix('-train')}`" + (" with the training set" if m.endswith("-train") else "") for m in named)
    return words + (f"; `{aware}` if the group may be used" if means.loc[aware, "mean_abs_gap"] < least - ALIKE else "")


def worlds() -> str:
    """What the default and others do to patients in simulated worlds whose truth is known, none of which was used for tuning."""
    found, lines = pd.concat([rows("worlds/scores.csv"), rows("worlds/others.csv.gz").query("part == 'scores'")]), list[list[object]]()
    found = found[found["arm"] != "bias-score as fitted"]  # needs inputs, which a third of the worlds has
    seeds = found.groupby(["tag", "arm"])["seed"].agg(set)
    found = found[found["seed"].isin(set.intersection(*seeds))]  # the same worlds for every rule
    names = {"before": "the default before (smallest |gap| plus a standard error)", "default": "the default"}
    for (tag, arm), part in found.groupby(["tag", "arm"], sort=False):
        null = part["gap"] == 0
        lines.append(
            [
                names.get(tag, "") or names.get(arm, arm),
                len(part),
                f"{part.loc[null, 'acted'].mean():.0%}",
                f"{part.loc[~null, 'gap_before'].mean():.3f} → {part.loc[~null, 'gap_after'].mean():.3f}",
                f"{(part['gap_after'] > part['gap_before'] + 0.02).mean():.1%}",
                f"{-part['loss'].mean():+.3f}",
                f"{(part['fall'] > 0.02).mean():.1%}",
                f"{(part['alarms'] > 0.1).mean():.1%}",
            ]
        )
    head = ("rule", "worlds", "acts without a gap", "true gap, where there is one", "gap worse by 2 points", "balanced accuracy")
    return table((*head, "a group's sensitivity down by 2 points", "a group's false alarms up by 10 points"), lines)


BLOCKS: Mapping[str, Callable[[], str]] = {"anywhere": anywhere, "methods-anywhere": methods_anywhere, "choosing": choosing, "worlds": worlds}
