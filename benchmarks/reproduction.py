"""The tables of docs/reproduction.md from folders of finished studies. Usage: python benchmarks/reproduction.py RESULTS [...]"""

import sys
from pathlib import Path

import pandas as pd

from equipoise.report.study_tables import study_table
from equipoise.study.results import opened, read_rows

METHODS = ("standard", "random", "reject-option", "equalised-odds", "adversarial-finetune", "pruning", "bias-gda", "adversarial-training")


def number(mean: float, sd: float, digits: int = 3, sign: str = "+") -> str:
    return "" if pd.isna(mean) else f"{mean:{sign}.{digits}f} ({sd:.{digits}f})"


def main() -> None:
    for folder in sys.argv[1:]:
        study = opened(Path(folder))
        table = study_table(study.plan, read_rows(study))
        print(f"### {study.plan.name}, {study.plan.splits} splits\n")
        print("| data | measure | method | bias (sd) | published | diff. | mean abs. bias | BA (sd) | published | diff. | s a split |")
        print("|---|---|---|---|---|---|---|---|---|---|---|")
        for row in table.itertuples():
            differences = ["" if pd.isna(d) else f"{d:+.3f}" for d in (row.gap_difference, row.performance_difference)]
            cells = [
                row.title,
                row.measure,
                row.method,
                number(row.gap_mean, row.gap_sd),
                number(row.published_gap, row.published_gap_sd, 2),
                differences[0],
                f"{row.abs_gap_mean:.3f}",
                number(row.performance_mean, row.performance_sd, sign=""),
                number(row.published_performance, row.published_performance_sd, 2, ""),
                differences[1],
                f"{row.seconds:.2f}",
            ]
            print("| " + " | ".join(map(str, cells)) + " |")
        known = table.dropna(subset=["published_gap"])
        if len(known):
            print("\nMean absolute difference to the published means, over the cells of the table:\n")
            print("| method | bias | BA | bias, 0 where ours is nearer 0 | BA, 0 where ours is higher |\n|---|---|---|---|---|")
            for method in METHODS:
                rows = known[known["method"] == method]
                if len(rows):
                    nearer = rows["gap_difference"].abs().where(rows["gap_mean"].abs() > rows["published_gap"].abs(), 0.0)
                    lower = rows["performance_difference"].clip(upper=0).abs()
                    values = (rows["gap_difference"].abs(), rows["performance_difference"].abs(), nearer, lower)
                    print(f"| {method} | " + " | ".join(f"{v.mean():.3f}" for v in values) + " |")
        print()


if __name__ == "__main__":
    main()
