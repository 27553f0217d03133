"""COMPAS (ProPublica): is a defendant charged again within two years? Protected: race. Rows and columns as in the paper's table.

The published file names people. Only the columns below are ever parsed, hashed or written; names, birth dates and case numbers are not
among them.
"""

from io import BytesIO
from pathlib import Path

import numpy as np
import pandas as pd

from equipoise.data import Attribute, Cohort
from equipoise.errors import BadInput
from equipoise.studies.sets import File, Recipe, original, tabular

FILE = "compas-scores-two-years.csv"
COUNTS = ["age", "juv_fel_count", "juv_misd_count", "juv_other_count", "priors_count"]
CATEGORIES = ["age_cat", "c_charge_degree", "c_charge_desc"]
INPUTS = [*COUNTS, *CATEGORIES, "sex", "race"]
# The columns that are read: inputs, the label, and three that only decide which rows are kept.
COLUMNS: dict[str, str] = {
    **dict.fromkeys([*CATEGORIES, "sex", "race", "score_text"], "str"),
    **dict.fromkeys([*COUNTS, "days_b_screening_arrest", "is_recid", "two_year_recid"], "Int64"),
}
WHITE, OTHER = "Caucasian", "not Caucasian"


def compas(root: Path, *, attribute_as_input: bool = True) -> Cohort:
    """6,167 defendants with 401 features (400 without race), from the folder that holds compas-scores-two-years.csv.

    Rows are kept if the arrest was within 30 days of the screening, the outcome is known, the charge is not an ordinary traffic
    offence and there is a score. An id is the row's position in the file.
    """
    frame = read(original(root, FILE).getvalue())
    kept = (
        frame["days_b_screening_arrest"].between(-30, 30).fillna(False)
        & (frame["is_recid"] != -1)
        & (frame["c_charge_degree"] != "O")
        & frame["score_text"].notna()  # "N/A" in the file, which pandas reads as missing
    )
    frame = frame[kept].dropna(subset=[*INPUTS, "two_year_recid"])
    binary = pd.DataFrame({"sex": frame["sex"] == "Female", "race": frame["race"] == WHITE})
    levels = pd.get_dummies(frame[CATEGORIES], prefix_sep="=", dtype=float)
    race = Attribute.of(np.where(frame["race"] == WHITE, WHITE, OTHER), name="race", reference=WHITE)
    features = pd.concat([frame[COUNTS], binary, levels], axis=1)
    return tabular("compas", features, frame["two_year_recid"] == 1, race, attribute_as_input)


def read(content: bytes) -> pd.DataFrame:
    """The needed columns and no others, in the same order and type for every copy of the file."""
    try:
        header = pd.read_csv(BytesIO(content), nrows=0).columns
        if absent := [name for name in COLUMNS if name not in header]:
            raise BadInput(f"{FILE} has no column {', '.join(map(repr, absent))}; it must be ProPublica's file of 7,214 rows")
        frame = pd.read_csv(BytesIO(content), usecols=list(COLUMNS), dtype=COLUMNS)[list(COLUMNS)]
    except BadInput:
        raise
    except (ValueError, TypeError) as error:
        raise BadInput(f"{FILE} cannot be read: {error}") from error
    texts = [name for name, kind in COLUMNS.items() if kind == "str"]
    return frame.assign(**{name: frame[name].str.strip() for name in texts})


def anonymous(content: bytes) -> bytes:
    """The needed columns as CSV: the same bytes for every copy of the file, with or without the columns that identify people."""
    text: str = read(content).to_csv(index=False, lineterminator="\n")
    return text.encode()


PROPUBLICA = "https://raw.githubusercontent.com/propublica/compas-analysis/bafff5da3f2e45eca6c2d5055faad269defd135a"
RECIPES = (
    Recipe(
        name="compas",
        load=compas,
        files=(
            File(
                FILE,
                "98de31c0d69f9bc205913c0293b4c52f7f8570b7368a9d4072dc38616f01c99a",
                f"{PROPUBLICA}/compas-scores-two-years.csv",
                canonical=anonymous,
            ),
        ),
        attribute="race",
        description="Broward County 2013-2014: which defendants are charged again within two years",
        citation="Angwin, Larson, Mattu and Kirchner, Machine Bias, ProPublica, 2016",
        licence="none stated (public records, published by ProPublica)",
        rows=6_167,
        features=401,
        paper="6,167 x 401",
    ),
)
