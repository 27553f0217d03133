"""The paper's main table made again, one network at a time, next to the committed rows, whose networks were trained several at a time.

    python experiments/paper-tabular/same_table.py [experiments/paper-tabular/one-network.csv]

Rounding differs between the two and training amplifies it, so that single rows differ; means over the 20 splits should not.
"""

import sys
from pathlib import Path

import pandas as pd

FOLDER = Path(__file__).parent
KEYS = ["data", "measure", "method"]


def compared(old: pd.DataFrame, new: pd.DataFrame) -> pd.DataFrame:
    """One row per cell of the table: both means, and the mean difference of the same splits with its standard error."""
    both = old.merge(new, on=[*KEYS, "seed"], suffixes=("", "_new"), validate="one_to_one")
    cells = both.assign(d_gap=both["gap_new"] - both["gap"], d_ba=both["performance_new"] - both["performance"]).groupby(KEYS)
    found = cells[["gap", "gap_new", "performance", "performance_new"]].mean()
    for name in ("d_gap", "d_ba"):
        found[name], found[f"{name}_se"] = cells[name].mean(), cells[name].sem()
        found[f"{name}_largest"] = cells[name].apply(lambda values: values.abs().max())
    found["gap_sd"], found["ba_sd"] = cells["gap"].std(), cells["performance"].std()
    return found.assign(splits=cells.size())


def main() -> None:
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER / "one-network.csv"
    found = compared(pd.read_csv(FOLDER / "rows.csv"), pd.read_csv(path))
    print(found.round(3).to_string())
    for name, sd in (("d_gap", "gap_sd"), ("d_ba", "ba_sd")):
        size, error = found[name].abs(), found[f"{name}_se"]
        print(
            f"{name}: {len(found)} cells, mean |difference| {size.mean():.4f}, largest {size.max():.3f}; within half a standard deviation "
            f"of the splits {(size < found[sd] / 2).mean():.0%}; beyond 1.96 standard errors {(size > 1.96 * error).mean():.0%}; largest "
            f"of a single row {found[f'{name}_largest'].max():.3f}"
        )


if __name__ == "__main__":
    main()
