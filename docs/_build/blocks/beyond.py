"""The generated blocks of docs/beyond.md."""

from collections.abc import Callable, Mapping

import pandas as pd
from chest_xray import whole

from blocks.rows import BALANCED, INPUTS, NAMES, SPLIT, at, gap, interval, one, over_splits, rows, table


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
    split, folds = rows("nih/splits-40.csv"), rows("nih/folds.csv")
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
    """The pretrained network, by sex and age."""
    found = whole(rows("nih-pretrained/rows.csv"))
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


def one_group() -> str:
    """Networks trained on one sex or one view, and what repairs leave."""

    def within(line: pd.Series, name: str) -> str:
        return f"{line[name]:+.3f} [{line[f'{name}_low']:+.3f}, {line[f'{name}_high']:+.3f}]"

    def both(line: pd.Series, rate: str) -> str:
        return f"{100 * line[f'{rate}_seen']:.0f} / {100 * line[f'{rate}_unseen']:.0f} %"

    lines = []
    for _, line in rows("one-group/rows.csv").iterrows():
        repaired = line["arm"] != "original"
        changes = [within(line, "gap_change"), within(line, "ba_change"), f"{4 * line['acted']:.0f} of 4"] if repaired else ["", "", ""]
        gap = f"{line['gap']:+.3f} [{line['low']:+.3f}, {line['high']:+.3f}]"
        lines.append([line["cause"], line["arm"], gap, both(line, "tpr"), both(line, "fpr"), *changes])
    header = ("trained on", "repair", "EOD, all patients", "sensitivity, seen / unseen group", "false alarms", "change of the size of the gap")
    return table((*header, "change of balanced accuracy", "acts in"), lines)


def third_party() -> str:
    """A network of others: its gaps on later patients, and what repairs of its file leave."""

    def within(line: pd.Series, name: str, low: str, high: str) -> str:
        return f"{line[name]:+.3f} [{line[low]:+.3f}, {line[high]:+.3f}]"

    audited = []
    for _, line in rows("third-party/audit.csv").iterrows():
        areas, positives = (f"{line[f'{what}_reference']:{kind}} / {line[f'{what}_other']:{kind}}" for what, kind in (("auroc", ".2f"), ("positives", ".0f")))
        audited.append([line["finding"], line["by"], within(line, "gap", "low", "high"), areas, positives])
    first = table(("finding", "by", "EOD, later patients", "AUROC, reference / other", "images with the finding"), audited)
    repaired = []
    for _, line in rows("third-party/rows.csv").iterrows():
        rates = [f"{100 * line[f'{rate}_reference']:.0f} / {100 * line[f'{rate}_other']:.0f} %" for rate in ("tpr", "fpr")]
        changes = [within(line, name, f"{name}_low", f"{name}_high") for name in ("gap_change", "ba_change")] if line["arm"] != "original" else ["", ""]
        acts = "" if line["arm"] == "original" else "yes" if line["acted"] else "no"
        repaired.append([f"{line['finding']} by {line['by']}", line["arm"], within(line, "gap", "low", "high"), *rates, *changes, acts])
    head = ("task", "repair", "EOD, later patients", "sensitivity, reference / other", "false alarms", "change of the size of the gap", "change of balanced accuracy", "acts")
    return f"{first}\n\n{table(head, repaired)}"


def selection() -> str:
    """How much each way to choose a step promises and keeps, over the eight cases."""
    found = rows("beyond/selection.csv")
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


def speed() -> str:
    """Seconds next to other libraries; of an audit with all its intervals, which resamples nothing, from the rows of benchmarks/scale."""
    found = rows("../benchmarks/speed/comparison.csv")
    lines = [
        [
            line.task,
            f"{line.equipoise_s:g} s, {line.equipoise_does}",
            f"{line.other_s:,g} s, {line.other}",
            f"{line.ratio:,.0f}" if line.ratio == line.ratio else "",
        ]
        for line in found[~found["task"].str.contains("bootstrap")].itertuples()
    ]
    own, other = (one(rows("../benchmarks/scale/rows.csv"), benchmark=name) for name in ("two-attributes", "two-attributes-fairlearn"))
    audit = [
        f"audit of {own['rows']:,.0f} rows by two attributes and their intersection",
        f"{own['cpu_s']:.2g} s, all gaps, rates and tests, intervals by patient",
        f"{other['cpu_s']:,.0f} s, fairlearn, six rates, intervals by row from 1,000 resamples ({other['note']})",
        f"{other['cpu_s'] / own['cpu_s']:,.0f}",
    ]
    return table(("task", "Equipoise", "other library", "ratio"), [*lines[:1], audit, *lines[1:]])


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
        for line in rows("../benchmarks/speed/gpu.csv").itertuples()
    ]
    header = ("3,368 images, 224 px", "pruning step", "of its ceiling", "published code (reported)", "bias-gda epoch", "of its ceiling")
    return table(header, lines)


BLOCKS: Mapping[str, Callable[[], str]] = {
    "beyond-headline": beyond_headline,
    "beyond-tabular": beyond_tabular,
    "beyond-chest-xray": beyond_chest_xray,
    "nih-paper": nih_paper,
    "nih-pretrained": nih_pretrained,
    "one-group": one_group,
    "third-party": third_party,
    "selection": selection,
    "peers": peers,
    "peers-groups": peers_groups,
    "multi-label": multi_label,
    "pruning": pruning,
    "speed": speed,
    "speed-gpu": speed_gpu,
}
