"""The tables of docs/chest-xray.md from the folders of finished `equipoise study run nih` runs, as Markdown.

    python experiments/nih/nih_tables.py runs/resnet-18 runs/squeezenet ...
    python experiments/nih/nih_tables.py runs/nih-folds      # a study by folds: all folds pooled
    python experiments/nih/nih_tables.py --left runs/forty   # how much of the original's gap is left: all splits, and either half of them

Intervals are 95 % t intervals of the mean over splits, with the corrected variance of splits that share rows (Nadeau and Bengio 2003).
"P": twice the median p-value over splits.
"""

import argparse

import numpy as np
import pandas as pd

from equipoise.studies import (
    StudyFolder,
    combined_p,
    corrected_t_test,
    open_study,
    ratio_to_training_rows,
    read_rows,
    read_timings,
)
from equipoise.studies.summary import read_pooled
from equipoise.studies.tables import POOLED_HEADERS, pooled_lines


def mean(values: pd.Series, shared: float, signed: bool = True) -> str:
    """A mean with its interval; as it is where there is one value."""
    found, sign = corrected_t_test(values.to_numpy(dtype=np.float64), shared), "+" if signed else ""
    if np.isnan(found["low"]):
        return f"{found['difference']:{sign}.3f}"
    return f"{found['difference']:{sign}.3f} [{found['low']:{sign}.3f}, {found['high']:{sign}.3f}]"


def pooled(study: StudyFolder) -> None:
    """One table for all data of a study by folds."""
    frame = read_pooled(study)
    names = [{"gap": "signed gap", "|gap|": "abs. gap"}.get(name, name.replace("|gap|", "abs. gap")) for name in POOLED_HEADERS]
    print(f"| data | {' | '.join(names)} |")
    print("|---" * (len(POOLED_HEADERS) + 1) + "|")
    for data, here in frame.groupby("data", sort=False):
        for cells in pooled_lines(here):
            print(f"| {study.plan.named(str(data)).title} | {' | '.join(cells)} |")
    patients = ", ".join(f"{n:,}" for n in frame.groupby("data", sort=False)["patients"].first())
    print(f"\n{frame['repeats'].max()} repeats; patients: {patients}")


def left(study: StudyFolder) -> None:
    """What methods leave of the original network's signed gap, in one table for all data."""
    rows = read_rows(study)
    seeds = np.sort(rows["seed"].unique())
    halves = np.array_split(seeds, 2)
    print(f"| task | method | test gap, {len(seeds)} splits | left | {' | '.join(f'splits {h[0]} to {h[-1]}' for h in halves)} ", end="")
    print("| mean abs. | p | BA | BA lost, paired |\n" + "|---" * 10 + "|")
    for data in study.plan.data:
        mine = rows[rows["data"] == data.name].set_index(["method", "seed"]).sort_index()
        before, shared = mine.loc["standard"], ratio_to_training_rows(mine)
        for arm in study.plan.methods:
            one = mine.loc[arm.name]
            means = [(one.loc[some, "gap"].mean(), before.loc[some, "gap"].mean()) for some in (seeds, *halves)]
            shares = ["" if arm.name == "standard" else f"{now / then:.0%}" for now, then in means]
            parts = [f"{now:+.3f} ({share})".removesuffix(" ()") for (now, _), share in zip(means[1:], shares[1:], strict=True)]
            lost = "" if arm.name == "standard" else mean(before["performance"] - one["performance"], shared)
            print(
                f"| {data.title} | {arm.name} | {mean(one['gap'], shared)} | {shares[0]} | {' | '.join(parts)} "
                f"| {one['gap'].abs().mean():.3f} "
                f"| {combined_p(one['p_value']):.3f} | {one['performance'].mean():.3f} | {lost} |"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+")
    parser.add_argument("--least", type=int, default=2, help="leave out methods with fewer splits")
    parser.add_argument("--left", action="store_true", help="what is left of the original's gap, for studies of many splits")
    for folder in parser.parse_args().folders:
        study = open_study(folder)
        if study.plan.protocol == "folds" or parser.parse_args().left:
            (left if parser.parse_args().left else pooled)(study)
            continue
        rows = read_rows(study)
        seconds = read_timings(study)
        for data in [d for d in study.plan.data if d.name in set(rows["data"])]:
            mine = rows[rows["data"] == data.name]
            print(f"\n**{data.title}** ({mine.groupby('method').size().min()} to {mine.groupby('method').size().max()} splits)\n")
            print("| method | EOD, validation | EOD, test | mean abs., test | p | BA, validation | BA, test | seconds |")
            print("|---|---|---|---|---|---|---|---|")
            for arm in study.plan.methods:
                one = mine[mine["method"] == arm.name]
                if len(one) < parser.parse_args().least:
                    continue
                valid, shared = ratio_to_training_rows(one, "validation"), ratio_to_training_rows(one)
                print(
                    f"| {arm.name} | {mean(one['valid_gap'], valid)} | {mean(one['gap'], shared)} "
                    f"| {one['gap'].abs().mean():.3f} | {combined_p(one['p_value']):.3f} "
                    f"| {mean(one['valid_performance'], valid, False)} | {mean(one['performance'], shared, False)} "
                    f"| {one['seconds'].mean():.1f} |"
                )
        print(f"\n{len(rows)} rows of {study.plan.name}; {seconds['seconds'].sum():,.0f} seconds of work in all")


if __name__ == "__main__":
    main()
