"""The numbers of README and docs, generated from the rows under results/.

    python docs/tables.py                          # writes every generated block of every page
    python docs/tables.py --check                  # exit code 1, with the blocks, if a page is stale or states a number of its own
    python docs/tables.py show results/peers/splits.csv    # any file of rows as a Markdown table

A block stands between `<!-- generated: NAME -->` and `<!-- end -->`; its text is what the function NAME of `BLOCKS` returns.
"""

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

import pandas as pd
from chest_xray import ROWS as PRETRAINED
from chest_xray import whole

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
BLOCK = re.compile(r"(?P<start><!-- generated: (?P<name>[\w-]+) -->\n).*?(?P<end><!-- end -->)", re.DOTALL)
MEASURED = re.compile(r"(?<![\w.])[-+]?[01]\.\d{3,}")  # three decimal places: a result, which only a block may state
OWN = ("reproduction.md",)  # pages that another script generates
GENERATED = ("api", "commands", "settings", "rooms", "_methods")  # by docs/generate.py, when the site is built
NAMES = {"compas": "COMPAS", "bank": "Bank", "adult": "Adult", "loh-2.5": "Loh, alpha 2.5", "zafar-0.7": "Zafar, vartheta 0.7"}
SPLIT, BALANCED = 0.2 / 0.8, 0.25 / 0.75  # test rows divided by the others, of the protocols of studies
TASKS = ("any finding", "effusion", "atelectasis")
INPUTS = ("attribute among the inputs", "attribute not among the inputs")


@cache
def rows(name: str) -> pd.DataFrame:
    """A file of rows under results/."""
    return pd.read_csv(RESULTS / name)


def one(frame: pd.DataFrame, **where: object) -> "pd.Series[float]":
    """The only row with these values."""
    for column, value in where.items():
        frame = frame[frame[column] == value]
    if len(frame) != 1:
        raise SystemExit(f"expected one row with {where}, found {len(frame)}")
    return frame.iloc[0]


def table(header: Iterable[str], lines: Iterable[Iterable[object]]) -> str:
    """A Markdown table."""
    head = list(header)
    made = [[str(cell) for cell in line] for line in lines]
    if any(len(line) != len(head) for line in made):
        raise SystemExit(f"a line of the table {head} has another number of cells")
    return (
        "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in [head, ["---"] * len(head), *made])
        + "\n"
    )


def gap(value: float) -> str:
    """A signed gap."""
    return f"{value:+.3f}"


def at(line: "pd.Series[float]", column: str = "mean_abs_gap") -> str:
    """Mean absolute gap at balanced accuracy."""
    return f"{line[column]:.3f} at {line['balanced_accuracy']:.3f}"


def interval(line: "pd.Series[float]", column: str = "gap") -> str:
    """A gap with its interval."""
    return f"{line[column]:+.3f} [{line[f'{column}_low']:+.3f}, {line[f'{column}_high']:+.3f}]"


def over_splits(line: "pd.Series[float]", splits: int, shared: float, column: str = "gap") -> "pd.Series[float]":
    """The line with the interval of a mean over splits that share rows (Nadeau and Bengio 2003), instead of the plain one in its rows."""
    wider, value = (1 + splits * shared) ** 0.5, line[column]
    return pd.Series({**line, **{f"{column}_{end}": value + wider * (line[f"{column}_{end}"] - value) for end in ("low", "high")}})


def readme_results() -> str:
    """The results in the README: before, after the paper's method, and after the two recommended here."""
    found, nih = rows("beyond/summary.csv"), rows("nih-beyond/splits-20.csv")
    cases = [
        (
            f"{NAMES[data]}, {measure.upper()}",
            found[(found["data"] == data) & (found["measure"] == measure) & (found["inputs"] == INPUTS[0])],
        )
        for data, measure in (("adult", "spd"), ("adult", "eod"), ("compas", "spd"), ("compas", "eod"))
    ]
    cases += [(f"NIH X-rays, {task}, EOD", nih[(nih["network"] == "resnet-18") & (nih["task"] == task)]) for task in TASKS]
    lines = []
    for name, mine in cases:
        best = "bias-score-train" if "NIH" in name else "bias-score"
        methods = ("standard", "bias-gda", "constrained", best)
        lines.append([name, *(at(one(mine, method=method)) for method in methods)])
    return table(("data, measure", "original", "`bias-gda` (the paper)", "`constrained`", "`bias-score`"), lines)


def beyond_headline() -> str:
    """The aims, and what was reached."""
    lines = []
    for aim in rows("beyond/aims.csv").itertuples():
        frame = rows(aim.file)
        if aim.file.startswith("beyond"):
            frame = frame[(frame["inputs"] == INPUTS[0]) & (frame["measure"] == aim.measure)].rename(columns={"data": "task"})
        reached, before = (one(frame, task=aim.data, method=method) for method in (aim.method, "standard"))
        paper = " at ".join(
            form.format(value) for form, value in (("{:+.2f}", aim.paper_gap), ("{:.2f}", aim.paper_balanced_accuracy)) if value == value
        )
        cells = [f"{gap(line['gap'])}, {line['mean_abs_gap']:.3f} at {line['balanced_accuracy']:.3f}" for line in (before, reached)]
        lines.append(
            [
                aim.task,
                paper or "none",
                aim.aim,
                *cells,
                f"`{aim.method.removesuffix('-train')}`" + (", with the training set" if aim.method.endswith("-train") else ""),
            ]
        )
    return table(("task", "paper's best", "aim", "original: gap, mean |gap| at BA", "reached: gap, mean |gap| at BA", "by"), lines)


def beyond_tabular() -> str:
    """Every method on the paper's tables and simulations."""
    found = rows("beyond/summary.csv")
    methods = ("standard", "pruning", "bias-gda", "constrained", "bias-score", "group-thresholds")
    parts = []
    for inputs in INPUTS:
        mine = found[found["inputs"] == inputs]
        lines = []
        for (data, measure), cell in mine.groupby(["data", "measure"], sort=False):
            by = cell.set_index("method")
            lines.append([f"{NAMES[data]}, {measure.upper()}", *(at(by.loc[method]) for method in methods)])
        parts.append(f"**{inputs.capitalize()}**\n\n" + table(("data, measure", *methods[:-1], "group-thresholds (uses the group)"), lines))
    return "\n".join(parts)


def beyond_chest_xray() -> str:
    """The new methods on NIH images, 40 splits and pooled folds."""
    split, folds = rows("nih-beyond/splits-40.csv"), rows("nih-beyond/folds.csv")
    lines = []
    for line in split.itertuples():
        before = one(split, task=line.task, method="standard")
        left = "" if line.method == "standard" else f"{100 * line.gap / before['gap']:.0f} %"
        if line.method.endswith("0.03"):
            continue
        pooled = one(folds, task=line.task, method=line.method)
        lines.append(
            [
                line.task,
                _used(line.method),
                interval(over_splits(pd.Series(line._asdict()), 40, BALANCED)),
                left,
                f"{line.balanced_accuracy:.3f}",
                interval(pooled),
                f"{pooled['balanced_accuracy']:.3f}",
            ]
        )
    return table(("task", "method", "EOD, 40 splits", "left", "BA", "EOD, pooled folds", "BA, pooled folds"), lines)


def _used(method: str) -> str:
    """A method with what it uses beyond the repair set."""
    known = {"bias-score-train": "bias-score with the training set", "group-thresholds": "group-thresholds (uses the group)"}
    return known.get(method, method)


def nih_paper() -> str:
    """The paper's methods on NIH images: EOD on the validation and on the test set."""
    found = rows("nih/splits.csv")
    methods = ("standard", "pruning", "bias-gda", "adversarial-finetune", "adversarial-training", "reject-option", "equalised-odds")
    lines = []
    for (network, task), cell in found.groupby(["network", "task"], sort=False):
        by = cell.set_index("method")
        lines.append(
            [
                f"{network}, {task}",
                *(f"{gap(by.loc[m, 'valid_gap'])} → {gap(by.loc[m, 'gap'])} ({by.loc[m, 'balanced_accuracy']:.2f})" for m in methods),
            ]
        )
    return table(("network, task", *methods), lines)


def nih_pretrained() -> str:
    """The pretrained network, by sex and age, once its rows are there."""
    if not PRETRAINED.is_file():
        return "The study `nih-pretrained` (EfficientNet-Lite0 from ImageNet weights, by sex and by age) has no rows yet.\n"
    found = whole(pd.read_csv(PRETRAINED))
    found = found.assign(absolute=found["gap"].abs())
    methods = ("standard", "pruning", "bias-gda", "constrained", "bias-score", "bias-score-train", "group-thresholds")
    lines = []
    for data, cell in found.groupby("data", sort=False):
        means = cell.groupby("method")[["gap", "absolute", "performance"]].mean()
        task = str(data).removeprefix("nih-").replace("any-", "any finding-").replace("-", " by ")
        shown = (f"{gap(line['gap'])}, {line['absolute']:.3f} at {line['performance']:.3f}" for line in (means.loc[m] for m in methods))
        lines.append([task, *shown])
    header = ("task", *(_used(method) for method in methods))
    return f"EfficientNet-Lite0 from ImageNet weights: EOD, mean |EOD| at BA over {found['seed'].nunique()} splits.\n\n" + table(
        header, lines
    )


def selection() -> str:
    """How much each way to choose a step promises and keeps, over the eight cases."""
    found = rows("selection/splits.csv")
    means = found.groupby("selection", sort=False)[["mean_abs_gap", "optimism", "mean_abs_error", "balanced_accuracy"]].mean()
    names = {"paper": "paper's rule, in-sample", "honest": "cross-fitted", "one-se": "one standard error"}
    header = ("selection", "mean |gap|, test", "optimism", "mean |test - promised|", "BA")
    return table(header, [[names[str(k)], *(f"{line[c]:.3f}" for c in means)] for k, line in means.iterrows()])


def peers() -> str:
    """Other libraries on the same networks, without the group at prediction time."""
    found = rows("peers/splits.csv")
    mine = found[found["needs_group"] == "no"]
    methods = list(dict.fromkeys(mine["method"]))
    lines = []
    for method in methods:
        cells = [
            at(one(mine, data=data, measure=measure, method=method)) for data in ("adult", "bank", "compas") for measure in ("spd", "eod")
        ]
        lines.append([method.replace("equipoise ", "**") + "**" if method.startswith("equipoise") else method, *cells])
    return table(("method", *(f"{NAMES[data]}, {measure}" for data in ("adult", "bank", "compas") for measure in ("SPD", "EOD"))), lines)


def peers_groups() -> str:
    """Seconds for 2 to 8 groups."""
    found = rows("peers/many-groups.csv")
    lines = []
    for method, cell in found.groupby("method", sort=False):
        by = cell.set_index("groups")
        lines.append([method, *(f"{line.seconds:g} s" if line.seconds == line.seconds else line.stopped for line in by.itertuples())])
    return table(("9,000 rows, SPD within 0.02", "2 groups", "3 groups", "4 groups", "8 groups"), lines)


def multi_label() -> str:
    """Three labels of one network, repaired together."""
    found = rows("multi-label/nih.csv")
    wider = (1 + 10 * SPLIT) ** 0.5  # of 10 splits: as in over_splits
    lines = []
    for method, cell in found.groupby("method", sort=False):
        by = cell.set_index("label")
        lines.append(
            [
                _used(str(method)),
                *(f"{gap(line.gap)} ± {wider * line.standard_error:.3f} ({line.balanced_accuracy:.3f})" for line in by.itertuples()),
            ]
        )
    return table(("method", *dict.fromkeys(found["label"])), lines)


def predictive() -> str:
    """The gap in PPV that is left."""
    found = rows("predictive-values/splits.csv")
    names = list(dict.fromkeys(found["method"]))
    lines = [[data, *(at(one(found, data=data, method=name)) for name in names)] for data in dict.fromkeys(found["data"])]
    return table(("data", *names), lines)


def pruning() -> str:
    """Criteria of pruning on hidden units."""
    found = rows("pruning/criteria.csv")
    found = found[found["units"] != "input"]
    names = list(dict.fromkeys(found["criterion"]))
    lines = [
        [f"{NAMES[data]}, {measure.upper()}", *(at(one(found, data=data, measure=measure, criterion=name)) for name in names)]
        for data, measure in dict.fromkeys(zip(found["data"], found["measure"], strict=True))
    ]
    return table(("data, measure", *names), lines)


def encoding() -> str:
    """What a linear probe reads from the layers of one network before and after a repair."""
    found = rows("encoding/auroc.csv")
    mine = found[(found["data"] == "compas") & (found["attribute_in_inputs"] == "yes")]
    lines = [
        [layer, *(f"{one(mine, layer=layer, when=when)['auroc']:.2f}" for when in ("before", "after"))]
        for layer in dict.fromkeys(mine["layer"])
    ]
    return table(("layer", "AUROC of race, before", "after"), lines)


def speed() -> str:
    """Seconds next to other libraries."""
    lines = [
        [
            line.task,
            f"{line.equipoise_s:g} s, {line.equipoise_does}",
            f"{line.other_s:,g} s, {line.other}",
            f"{line.ratio:,.0f}" if line.ratio == line.ratio else "",
        ]
        for line in rows("speed/comparison.csv").itertuples()
    ]
    return table(("task", "Equipoise", "other library", "ratio"), lines)


def scale() -> str:
    """CPU time and peak memory of audits of many rows and groups."""
    names = {
        "audit-1m": "audit of a folder of Parquet files",
        "audit-10m": "audit of a folder of Parquet files",
        "audit-30m": "audit of a folder of Parquet files",
        "audit-100m": "audit of a folder of Parquet files",
        "groups-1000": "audit of a frame with many groups",
        "sweep-1m": "gaps and balanced accuracy at every threshold",
        "two-attributes": "audit by two attributes and their intersection",
        "two-attributes-fairlearn": "Fairlearn: six rates of the intersections, 1,000 resamples of rows",
    }
    found = rows("scale/rows.csv")
    lines = [
        [
            names[line.benchmark],
            f"{line.rows:,.0f}",
            f"{line.patients:,.0f}",
            f"{line.groups:.0f}",
            f"{line.cpu_s:,.1f} s",
            f"{line.peak_mb:,.0f} MB",
        ]
        for line in found[found["benchmark"].isin(names)].itertuples()
    ]
    return table(("task", "rows", "patients", "groups", "CPU time", "peak memory"), lines)


def speed_gpu() -> str:
    """Seconds on one H200."""
    lines = [
        [
            line.network,
            f"{line.pruning_step_s:.2f} s",
            f"{line.pruning_ratio_to_ceiling:.2f}",
            f"{line.published_code_pruning_step_s:.1f} s",
            f"{line.bias_gda_epoch_s:.2f} s",
            f"{line.bias_gda_ratio_to_ceiling:.2f}",
        ]
        for line in rows("speed/gpu.csv").itertuples()
    ]
    header = ("3,368 images, 224 px", "pruning step", "of its ceiling", "published code (reported)", "bias-gda epoch", "of its ceiling")
    return table(header, lines)


def phantoms() -> str:
    """The gap of a classifier that knows the latent width of a simulated X-ray."""
    lines = [
        [f"{line.hardness:g}", gap(line.eod_measured), gap(line.eod_closed_form), f"{line.balanced_accuracy:.3f}"]
        for line in rows("phantoms/oracle.csv").itertuples()
    ]
    return table(("hardness", "EOD, measured", "EOD, closed form", "balanced accuracy"), lines)


def choosing() -> str:
    """What the results favour, by situation: means over the cases of each."""
    found, nih = rows("beyond/summary.csv"), rows("nih-beyond/splits-20.csv")
    real = found[found["data"].isin(("adult", "bank", "compas"))]
    image = nih[nih["network"] == "resnet-18"]
    cases = (
        ("tables, attribute among the inputs", "`bias-score` or `constrained`", real[real["inputs"] == INPUTS[0]], "bias-score"),
        (
            "tables, attribute not among the inputs",
            "`bias-score`; `group-thresholds` if the group may be used",
            real[real["inputs"] == INPUTS[1]],
            "bias-score",
        ),
        ("chest X-rays, 160 to 1,000 repair images", "`bias-score` with the training set", image, "bias-score-train"),
    )
    lines = []
    for where, advice, frame, best in cases:
        means = frame.groupby("method")[["mean_abs_gap", "balanced_accuracy"]].mean()
        lines.append(
            [where, advice, *(at(means.loc[method]) for method in ("standard", "bias-gda", "constrained", best, "group-thresholds"))]
        )
    return table(
        ("situation", "start with", "original", "bias-gda", "constrained", "bias-score", "group-thresholds (uses the group)"), lines
    )


def card(method: str) -> Callable[[], str]:
    """A function that returns the line of results on the card of a method."""

    def line() -> str:
        found = rows("beyond/summary.csv")
        parts = []
        for data, measure in (("adult", "spd"), ("compas", "eod")):
            mine = found[(found["inputs"] == INPUTS[0]) & (found["data"] == data) & (found["measure"] == measure)]
            before, after = (one(mine, method=name) for name in ("standard", method))
            parts.append(f"{NAMES[data]} by {measure.upper()}: {at(before)} → {at(after)}")
        images = rows("nih-beyond/splits-20.csv")
        mine = images[(images["network"] == "resnet-18") & (images["task"] == "effusion")]
        name = "bias-score-train" if method == "bias-score" else method
        if name in set(mine["method"]):
            parts.append(f"NIH effusion by EOD: {at(one(mine, method='standard'))} → {at(one(mine, method=name))}")
        return f"*Measured (mean |gap| at balanced accuracy, 20 splits).* {'; '.join(parts)}.\n"

    return line


def card_nih(method: str) -> Callable[[], str]:
    """A function that returns the line of results of a method measured on images only."""

    def line() -> str:
        found = rows("nih/splits.csv")
        parts = []
        for task in ("any finding", "effusion"):
            mine = found[(found["network"] == "resnet-18") & (found["task"] == task)]
            parts.append(f"NIH {task} by EOD: {at(one(mine, method='standard'))} → {at(one(mine, method=method))}")
        return f"*Measured (mean |gap| at balanced accuracy, 20 splits).* {'; '.join(parts)}.\n"

    return line


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
        f"{run['patients'] - run['test_patients']:,.0f} of {run['patients']:,.0f} patients. There are {run['comparisons']:.0f} comparisons."
        f" {apart} of their pointwise intervals exclude zero; {clear} differences remain after adjustment.\n"
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
    "chexnet-run": chexnet_run,
    "chexnet-findings": chexnet_findings,
    "chexnet-gaps": chexnet_gaps,
    "chexnet-underdiagnosis": chexnet_underdiagnosis,
    "chexnet-detectable": chexnet_detectable,
    "readme-results": readme_results,
    "beyond-headline": beyond_headline,
    "beyond-tabular": beyond_tabular,
    "beyond-chest-xray": beyond_chest_xray,
    "nih-paper": nih_paper,
    "nih-pretrained": nih_pretrained,
    "selection": selection,
    "peers": peers,
    "peers-groups": peers_groups,
    "multi-label": multi_label,
    "predictive": predictive,
    "pruning": pruning,
    "encoding": encoding,
    "speed": speed,
    "speed-gpu": speed_gpu,
    "scale": scale,
    "phantoms": phantoms,
    "choosing": choosing,
    **{f"card-{name}": card(name) for name in ("bias-gda", "pruning", "constrained", "bias-score", "group-thresholds")},
    **{
        f"card-{name}": card_nih(name)
        for name in ("random", "adversarial-finetune", "adversarial-training", "reject-option", "equalised-odds")
    },
}


def filled(text: str, place: str) -> str:
    """A page with its blocks as the rows give them."""

    def block(found: "re.Match[str]") -> str:
        if found["name"] not in BLOCKS:
            raise SystemExit(f"{place}: unknown block {found['name']!r}; expected one of {', '.join(BLOCKS)}")
        return f"{found['start']}\n{BLOCKS[found['name']]()}\n{found['end']}"

    return BLOCK.sub(block, text)


def stated(text: str) -> Iterator[str]:
    """Results that a page states outside of its blocks and its code."""
    text = BLOCK.sub("", text)
    text = re.sub(r"```.*?```|`[^`]*`", "", text, flags=re.DOTALL)
    for number, line in enumerate(text.splitlines(), 1):
        for found in MEASURED.finditer(line if not line.startswith("    ") else ""):
            yield f"{found.group()} (line {number} without blocks and code: {line.strip()[:60]})"


def pages() -> list[Path]:
    """README, CONTRIBUTING and every page of the site that this script fills."""
    return [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *(p for p in sorted((ROOT / "docs").rglob("*.md")) if p.name not in OWN and p.stem not in GENERATED),
    ]


def problems() -> list[str]:
    """What is stale, or stated by hand, on any page."""
    found = []
    for path in pages():
        text = path.read_text(encoding="utf-8")
        place = path.relative_to(ROOT)
        if filled(text, str(place)) != text:
            found.append(f"{place}: a generated block is stale; run python docs/tables.py")
        found += [f"{place}: states {number}; generate it from results/" for number in stated(text)]
    return found


def write() -> None:
    """Writes every generated block of every page, and prints the pages that changed."""
    for path in pages():
        text = path.read_text(encoding="utf-8")
        new = filled(text, str(path))
        if new != text:
            path.write_text(new, encoding="utf-8")
            print(f"wrote {path.relative_to(ROOT)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if a page is stale")
    parser.add_argument("show", nargs="*", metavar="show FILE", help="print a file of rows as a Markdown table")
    given = parser.parse_args()
    if given.show:
        for name in given.show[given.show[0] == "show" :]:
            frame = pd.read_csv(name, dtype=str, keep_default_na=False)
            print(table(frame.columns, frame.itertuples(index=False)))
        return
    if given.check:
        found = problems()
        print("\n".join(found), file=sys.stderr)
        sys.exit(int(bool(found)))
    write()


if __name__ == "__main__":
    main()
