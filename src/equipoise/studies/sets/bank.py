"""Bank Marketing (UCI): does a client subscribe to a term deposit? Protected: age. Rows and columns as in the paper's table."""

from pathlib import Path

import numpy as np
import pandas as pd

from equipoise.data import Attribute, Cohort
from equipoise.studies.sets import UCI, File, Recipe, original, tabular

FILE = "bank-additional-full.csv"
CATEGORIES = ["job", "marital", "education", "default", "housing", "loan", "contact", "month", "day_of_week", "poutcome"]
OLDER, YOUNGER = "25 and over", "under 25"


def bank(root: Path, *, attribute_as_input: bool = True) -> Cohort:
    """30,488 phone calls with 57 features (56 without age), from the folder that holds bank-additional-full.csv.

    Rows with an unknown value are left out. Age is a feature only as "25 or over". An id is the row's position in the file.
    """
    frame = pd.read_csv(original(root, FILE), sep=";", na_values=["unknown"]).dropna()
    older = frame["age"] >= 25
    features = pd.get_dummies(frame.assign(age=older).drop(columns="y"), columns=CATEGORIES, prefix_sep="=", dtype=float)
    age = Attribute.of(np.where(older, OLDER, YOUNGER), name="age", reference=OLDER)
    return tabular("bank", features, frame["y"] == "yes", age, attribute_as_input)


RECIPES = (
    Recipe(
        name="bank",
        load=bank,
        files=(
            File(
                FILE,
                "74adfc578bf77a7ff4bb1ba4a9f8709d9e3c6907342959c2c8416847e0afb4d8",
                f"{UCI}/00222/bank-additional.zip",
                member="bank-additional/bank-additional-full.csv",
            ),
        ),
        attribute="age",
        description="Portuguese bank 2008-2010: who subscribes to a term deposit when called",
        citation="Moro, Cortez and Rita, Decision Support Systems 62:22-31, 2014, doi:10.24432/C5K306",
        licence="CC BY 4.0",
        rows=30_488,
        features=57,
        paper="30,488 x 57",
    ),
)
