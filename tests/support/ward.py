"""Patients of two wards for the tests of predictors: a marker that shows the disease less in women."""

import numpy as np
import pandas as pd


def patients(rows: int, seed: int = 0) -> pd.DataFrame:
    """One row per patient: `marker`, `ward` (most women are in one of the two), `sex` and `sick`."""
    rng = np.random.default_rng(seed)
    sex = rng.choice(["F", "M"], rows)
    sick = rng.integers(0, 2, rows)
    ward = np.where(rng.random(rows) < np.where(sex == "F", 0.9, 0.1), "gynaecology", "medical")
    marker = sick * np.where(sex == "F", 0.6, 2.0) + rng.normal(size=rows)
    return pd.DataFrame({"marker": marker, "ward": ward, "sex": sex, "sick": sick})
