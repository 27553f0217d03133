"""NIH ChestX-ray14: a finding against no finding, on frontal views. Protected: sex or age.

Two layouts are supported: the official one (Data_Entry_2017.csv or Data_Entry_2017_v2020.csv, PNG files in images/ or in images_001/images
etc.), and images/ next to a metadata.csv with the columns image, patient, sex, age, view and finding. Labels were mined from reports by
NIH, with a stated accuracy over 90 %: "No Finding" is noisy too. Images with another finding are neither positive nor negative, and are
left out. Wang, Peng, Lu, Lu, Bagheri and Summers, CVPR 2017.
The data are provided by the NIH Clinical Center: https://nihcc.app.box.com/v/ChestXray-NIHCC
"""

from pathlib import Path
from typing import Unpack

import numpy as np
import pandas as pd

from equipoise.data import VIEWS, Cohort, Decoding, age_in_years, is_view, read_table
from equipoise.errors import BadInput, pick, raise_all
from equipoise.studies.sets import File, Recipe, locate

TABLES = ("metadata.csv", "Data_Entry_2017_v2020.csv", "Data_Entry_2017.csv")
COLUMNS = {  # name in the official files: name here
    "Image Index": "image",
    "Finding Labels": "finding",
    "Patient ID": "patient",
    "Patient Age": "age",
    "Patient Gender": "sex",
    "Patient Sex": "sex",
    "View Position": "view",
}
NEEDED = ("image", "patient", "sex", "age", "view", "finding")
IDENTIFIERS = ("image", "patient", "Image Index", "Patient ID")
NORMAL = "No Finding"
FINDINGS = {
    name.lower(): name
    for name in (
        *("Atelectasis", "Cardiomegaly", "Consolidation", "Edema", "Effusion", "Emphysema"),
        *("Fibrosis", "Hernia", "Infiltration", "Mass", "Nodule", "Pleural_Thickening"),
        *("Pneumonia", "Pneumothorax"),
    )
}
ATTRIBUTES = ("sex", "age")
OLD = 60  # the default age in years from which a patient belongs to the older group
OLDEST = 120  # some ages are typing errors, such as 414; those rows have no group


def nih(
    root: str | Path,
    *,
    finding: str = "any",
    attribute: str = "sex",
    older: int = OLD,
    views: str = "frontal",
    allow_outside: bool = False,
    **decoding: Unpack[Decoding],
) -> Cohort:
    """The images with a finding ('any' for all of them) and those with none, from the folder of one of the two layouts.

    The attribute is sex (F, M; the reference is M) or age: under `older` years, or at least that (with the default, <60 and >=60). Older
    patients are the reference, as in the paper's MIMIC-III: a negative EOD means that disease is missed more often in the younger. The age
    is that at the patient's first image, so that each patient belongs to one group. Views are frontal, PA or AP.
    """
    folder = Path(root).expanduser()
    key = finding.lower()
    pick("finding of nih", key, ("any", *FINDINGS))
    pick("attribute of nih", attribute, ATTRIBUTES)
    pick("views of nih", views, VIEWS)
    if not 1 <= older <= OLDEST:
        raise BadInput(f"older is an age in years from 1 to {OLDEST}; got {older}")
    younger_group, older_group = f"<{older}", f">={older}"
    frame = labels_in(folder)
    findings = frame["finding"].astype(str).str.split("|").map(lambda names: {name.strip() for name in names})
    normal = np.array([names == {NORMAL} for names in findings])
    labelled = frame["finding"].notna().to_numpy()
    positive = ~normal & labelled if key == "any" else np.array([FINDINGS[key] in names for names in findings])
    if attribute == "age":
        first = frame.groupby("patient")["age"].transform("min")
        groups = pd.Series(np.where(first < older, younger_group, older_group), index=frame.index, dtype=object)
        frame["age"] = groups.where(first <= OLDEST, None)
    chosen = frame.assign(label=positive.astype(int))[(positive | normal) & is_view(frame["view"], views)]
    if chosen.empty:
        raise BadInput(f"no image of {folder} has {finding} or {NORMAL} and a view {views}; its views are {set(frame['view'])}")
    images = folder / "images"
    return Cohort.from_images(
        chosen,
        folder=images if images.is_dir() else folder,
        image="image",
        label="label",
        group=attribute,
        reference="M" if attribute == "sex" else older_group,
        patient="patient",
        allow_outside=allow_outside,
        name="nih",
        **decoding,
    )


def labels_in(folder: Path) -> pd.DataFrame:
    """The table of either layout with the column names of NEEDED and ages in years."""
    path = next(filter(None, (locate(folder, name) for name in TABLES)), None)
    if path is None:
        raise BadInput(f"none of {', '.join(TABLES)} is in {folder}. Get the data from https://nihcc.app.box.com/v/ChestXray-NIHCC.")
    frame = read_table(path, text=IDENTIFIERS).rename(columns=COLUMNS)
    official = {name: official_name for official_name, name in COLUMNS.items()}
    absent = [name for name in NEEDED if name not in frame.columns]
    raise_all([f"no column {name!r} ({official[name]!r} in the official file)" for name in absent], str(path))
    ages, problems = [], []
    for row, text in enumerate(frame["age"], start=1):
        try:
            ages.append(np.nan if pd.isna(text) else age_in_years(str(text).removesuffix(".0")))  # a column with gaps holds 57.0
        except BadInput as error:
            problems.append(f"row {row} below the header: {error}")
    raise_all(problems, str(path))
    return frame.assign(age=np.array(ages, dtype=float))[list(NEEDED)]


RECIPES = (
    Recipe(
        name="nih",
        load=nih,
        files=(File(TABLES[0], "", "https://nihcc.app.box.com/v/ChestXray-NIHCC", other_names=TABLES[1:]),),
        attribute="sex",
        description="NIH ChestX-ray14, or a subset: a finding against none on frontal chest X-rays",
        citation="Wang, Peng, Lu, Lu, Bagheri and Summers, CVPR, 2017; provided by the NIH Clinical Center",
        licence="no restrictions, with attribution",
        rows=112_120,
        features=224 * 224,
        folders=("cxr-nih", "nih"),
        by_hand="The images are 42 GB behind a web page: get Data_Entry_2017_v2020.csv and the images from "
        "https://nihcc.app.box.com/v/ChestXray-NIHCC and name their folder with --root.",
    ),
)
