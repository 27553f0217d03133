"""The tables of the pretrained network on the page about chest X-rays are those that its rows give."""

import chest_xray
import numpy as np
import pandas as pd
import pytest

DATA = [f"nih-{finding}-{attribute}" for attribute in chest_xray.ATTRIBUTES for finding in chest_xray.FINDINGS]
SIZES = {"train_rows": 300, "valid_rows": 100, "test_rows": 100}  # of two splits, the mean has 1/2 + 1/4 of their variance


def rows() -> pd.DataFrame:
    """Three splits of two methods, the last of them not whole; gaps of standard are 0.1, 0.3 and 9, those of random half of that."""
    made = [
        {
            **{"data": data, "method": method, "seed": seed, "gap": gap * share, "valid_gap": 0.0, "size": 64, **SIZES},
            **{"performance": 0.8 - 0.1 * (method == "random"), "valid_performance": 0.8, "needs_group": False},
        }
        for data in DATA
        for method, share in (("standard", 1.0), ("random", 0.5))
        for seed, gap in enumerate((0.1, 0.3, 9.0))
    ]
    return pd.DataFrame(made[:-1])


def test_only_whole_splits_count_and_intervals_have_the_corrected_variance() -> None:
    lines = list(chest_xray.tables(rows()))
    assert sum(line.startswith("| standard |") for line in lines) == len(DATA)
    assert "(2 splits, 64 px" in lines[0]
    half = 12.706204736 * np.std([0.1, 0.3], ddof=1) * np.sqrt(1 / 2 + 1 / 4)  # t of one degree of freedom
    standard = next(line for line in lines if line.startswith("| standard |")).split(" | ")
    assert standard[2] == f"+0.200 [{0.2 - half:+.3f}, {0.2 + half:+.3f}]"
    assert standard[3] == "0.200"
    random = next(line for line in lines if line.startswith("| random |")).split(" | ")
    assert random[6].startswith("+0.100 [+0.100, +0.100]")


def test_tables_go_between_the_marks() -> None:
    text = f"before\n{chest_xray.MARKS[0]}\nreplaced\n{chest_xray.MARKS[1]}\nafter\n"
    new = chest_xray.page(text, rows())
    assert new.startswith("before\n")
    assert new.endswith("\nafter\n")
    assert "replaced" not in new
    assert chest_xray.page(new, rows()) == new
    with pytest.raises(SystemExit, match="marks"):
        chest_xray.page("nothing", rows())


def test_the_page_holds_the_tables_of_the_rows_that_are_kept() -> None:
    if not chest_xray.ROWS.is_file():
        pytest.skip("no rows of nih-pretrained are kept here")
    kept = pd.read_csv(chest_xray.ROWS)
    assert np.isfinite(kept[["gap", "performance", "train_rows", "test_rows"]]).all(axis=None)
    text = chest_xray.PAGE.read_text(encoding="utf-8")
    assert chest_xray.page(text, kept) == text
