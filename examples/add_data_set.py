"""Add a data set without editing the package: a recipe that turns a file into a cohort.

    python examples/add_data_set.py --out example-output

From then on it is a data set like any other: `eq.load("ward")` verifies its file by checksum before reading it. In the package, this would
be one file in `src/equipoise/studies/sets/` and its name in `SETS` of `src/equipoise/studies/catalogue.py`; studies and
`equipoise data list` then know it too.
"""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

import equipoise as eq
from equipoise.disk import sha256
from equipoise.studies import CATALOGUE, File, Recipe

NAME, FILE = "ward", "ward.csv"


def ward(root: Path, *, attribute_as_input: bool = False) -> eq.Cohort:
    """The patients of one ward, from the folder that holds ward.csv. Ids are text, as everywhere."""
    frame = pd.read_csv(root / FILE, dtype={"patient": str})
    return eq.Cohort.from_frame(
        frame, label="sick", group="sex", reference="M", patient="patient", attribute_as_input=attribute_as_input, name=NAME
    )


def write_file(folder: Path, rows: int) -> Path:
    """The path of a simulated table; a real data set has its file already."""
    rng = np.random.default_rng(0)
    sick, women = rng.integers(0, 2, rows), rng.random(rows) < 0.5
    frame = pd.DataFrame({"patient": np.arange(rows).astype(str), "sex": np.where(women, "F", "M"), "sick": sick})
    frame["marker"] = rng.normal(sick * np.where(women, 0.8, 1.6)).round(4)
    folder.mkdir(parents=True, exist_ok=True)
    frame.to_csv(folder / FILE, index=False)
    return folder / FILE


def add(checksum: str, rows: int) -> None:
    """Adds the data set to the catalogue."""
    CATALOGUE[NAME] = Recipe(
        name=NAME,
        load=ward,
        files=(File(FILE, checksum, url=""),),
        attribute="sex",
        description="patients of one ward, simulated",
        citation="none",
        licence="CC0",
        rows=rows,
        features=1,
        by_hand="Copy ward.csv from the ward's own server.",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Add a data set.")
    parser.add_argument("--out", type=Path, default=Path("example-output"), help="folder for ward.csv")
    parser.add_argument("--rows", type=int, default=2_000)
    given = parser.parse_args()
    path = write_file(given.out / NAME, given.rows)
    add(sha256(path.read_bytes()), given.rows)
    cohort = eq.load(NAME, root=given.out)
    parts = eq.split(cohort, seed=0)
    model = eq.train(parts.train, parts.valid, seed=0, settings=eq.Training(epochs=10))
    print(cohort)
    print(eq.audit(model, parts.test)["eod"])


if __name__ == "__main__":
    main()
