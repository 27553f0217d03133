"""A short version of experiments/coverage/simulate.py: intervals of small samples cover the truth about as often as they say."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from simulate import DESIGNS, piece

COVERAGE = Path(__file__).parents[2] / "experiments" / "coverage"
REPETITIONS = 40
HITS = {"rare": 300, "extreme": 100}  # design: rows


@pytest.fixture(scope="module")
def covered() -> pd.DataFrame:
    """The intervals of both designs, each measure over all groups: how often they were seen and how often they covered."""
    pieces = [piece(design, HITS[design.name], 0, REPETITIONS)[0] for design in DESIGNS if design.name in HITS]
    rows = pd.concat(pieces).assign(covered=lambda d: d["repetitions"] - d["below"] - d["above"])
    return rows.groupby(["kind", "measure"])[["repetitions", "covered"]].sum().reset_index()


def test_every_kind_of_interval_was_seen(covered: pd.DataFrame) -> None:
    assert {"rate of a group", "score of a group", "performance", "gap", "change of a rate, network", "change of a gap, threshold"} <= set(
        covered["kind"]
    )
    assert {"tpr", "ppv", "auroc", "f1", "average_precision", "eod", "aod", "ppv_gap"} <= set(covered["measure"])


def test_intervals_cover_the_truth_in_samples_with_few_positives_and_rates_near_0_and_1(covered: pd.DataFrame) -> None:
    share = covered["covered"] / covered["repetitions"]
    allowed = 0.95 - 3.5 * (0.95 * 0.05 / covered["repetitions"]) ** 0.5  # three and a half standard errors
    low = covered[share < allowed]
    assert low.empty, low.assign(share=share).to_string()


def test_together_they_miss_as_often_as_they_say(covered: pd.DataFrame) -> None:
    assert 0.945 <= covered["covered"].sum() / covered["repetitions"].sum() <= 0.985


def test_the_committed_results_are_as_required() -> None:
    """Coverage of at least 0.93 (two standard errors below it by chance), 5 % false findings with a margin, and the stated power.

    With unequal patients or weights, some intervals are known to be narrower, as the note next to the rows says: 0.90 is the limit there.
    """
    rows, tests = (pd.read_csv(COVERAGE / name) for name in ("rows.csv", "tests.csv"))
    assert (rows["repetitions"].groupby([rows["design"], rows["rows"]]).max() >= 500).all()
    unequal = rows["design"].str.contains("unequal|weights")
    least = np.where(unequal, 0.90, 0.93 - 2 * (0.93 * 0.07 / rows["repetitions"]) ** 0.5)
    assert (rows["coverage"] >= least).all()
    assert (rows.loc[unequal & (rows["kind"] == "gap"), "coverage"] >= 0.93).all()
    wide = rows[rows["coverage"] > 0.98]
    assert (wide["events"] < 10).mean() > 0.95  # wider than needed only where there is little to count
    of_power = tests["what"].str.startswith("power")
    found = tests["what"].str.startswith("share of gaps that are there")  # as large as the design makes it
    assert (tests.loc[~of_power & ~found, "share"] <= 0.06).all()
    # The detectable gap is that of patients with as many rows each; where they differ it is a little too small, as the note says.
    least = np.where(tests["design"].str.contains("unequal"), 0.68, 0.75)
    assert tests["share"].between(least, 0.90)[of_power].all()
