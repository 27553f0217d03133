"""The rows of finished runs of literature.toml, one per data set, measure, method and split, as experiments/literature/rows.csv.

python experiments/literature/collect.py runs/literature [MORE FOLDERS]
"""

import sys
from pathlib import Path

import pandas as pd

from equipoise.studies import open_study, read_rows

COLUMNS = ["data", "measure", "method", "seed", "gap", "performance", "valid_gap", "valid_performance", "met"]


def main() -> None:
    found = pd.concat([read_rows(open_study(folder)) for folder in sys.argv[1:]])[COLUMNS]
    order = list(dict.fromkeys(found["method"]))
    found = found.drop_duplicates(COLUMNS[:4]).sort_values(COLUMNS[:4], key=lambda c: c.map(order.index) if c.name == "method" else c)
    found.to_csv(Path(__file__).with_name("rows.csv"), index=False, float_format="%.6f", lineterminator="\n")


if __name__ == "__main__":
    main()
