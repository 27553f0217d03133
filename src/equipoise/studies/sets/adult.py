"""Adult (UCI Census Income): does a person earn over 50,000 dollars a year? Protected: sex. Rows and columns as in the paper's table."""

from pathlib import Path

import pandas as pd

from equipoise.data import Attribute, Cohort
from equipoise.studies.sets import UCI, File, Recipe, original, tabular

FILES = ("adult.data", "adult.test")
NUMBERS = ["age", "education-num", "capital-gain", "capital-loss", "hours-per-week"]
CATEGORIES = ["workclass", "education", "marital-status", "occupation", "relationship", "native-country"]
COLUMNS = [
    "age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation", "relationship", "race", "sex",
    "capital-gain", "capital-loss", "hours-per-week", "native-country", "income",
]  # fmt: skip


def adult(root: Path, *, attribute_as_input: bool = True) -> Cohort:
    """45,222 people with 98 features (97 without sex), from the folder that holds adult.data and adult.test.

    Rows with a missing value and the census weight are left out. An id is the row's position in adult.data followed by adult.test.
    """
    frame = pd.concat([_read(root, name) for name in FILES], ignore_index=True).dropna()
    binary = pd.DataFrame({"race": frame["race"] == "White", "sex": frame["sex"] == "Male"})
    levels = pd.get_dummies(frame[CATEGORIES], prefix_sep="=", dtype=float)
    label = frame["income"].str.rstrip(".") == ">50K"  # labels of adult.test end with a dot, those of adult.data do not
    sex = Attribute.of(frame["sex"], name="sex", reference="Male")
    return tabular("adult", pd.concat([frame[NUMBERS], binary, levels], axis=1), label, sex, attribute_as_input)


def _read(root: Path, name: str) -> pd.DataFrame:
    # The first line of adult.test is a note, "|1x3 Cross validator".
    return pd.read_csv(
        original(root, name),
        names=COLUMNS,
        usecols=[column for column in COLUMNS if column != "fnlwgt"],
        skiprows=1 if name == "adult.test" else 0,
        skipinitialspace=True,
        na_values=["?"],
    )


RECIPES = (
    Recipe(
        name="adult",
        load=adult,
        files=(
            File("adult.data", "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d", f"{UCI}/adult/adult.data"),
            File("adult.test", "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05", f"{UCI}/adult/adult.test"),
        ),
        attribute="sex",
        description="US census 1994: who earns over 50,000 dollars a year",
        citation="Becker and Kohavi, Adult, UCI Machine Learning Repository, 1996, doi:10.24432/C5XW20",
        licence="CC BY 4.0",
        rows=45_222,
        features=98,
        paper="45,222 x 98",
    ),
)
