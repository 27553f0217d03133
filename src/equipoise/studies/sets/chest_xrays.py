"""Chest X-rays of two hospitals: a finding against no finding, on frontal views.

NIH ChestX-ray14 (Wang, Peng, Lu, Lu, Bagheri and Summers, CVPR 2017; provided by the NIH Clinical Center). Protected: sex or age. Two
layouts are supported: the official one (Data_Entry_2017.csv or Data_Entry_2017_v2020.csv, PNG files in images/ or in images_001/images
etc.), and images/ next to a metadata.csv with the columns image, patient, sex, age, view and finding. Labels were mined from reports by
NIH, with a stated accuracy over 90 %: "No Finding" is noisy too. Images with another finding are neither positive nor negative, and are
left out.

MIMIC-CXR-JPG 2.0.0, as in the paper. Protected: sex or ethnicity. The folder is that of PhysioNet (physionet.org/content/mimic-cxr-jpg):
mimic-cxr-2.0.0-metadata.csv, -chexpert.csv and -split.csv, plain or gzipped, and files/p10/p10000032/s50414267/*.jpg. Sex is in the table
patients of MIMIC-IV and ethnicity in its table admissions (column race, ethnicity before version 2), joined on subject_id. A study is
positive if the CheXpert label of the finding is 1, and negative if it has "No Finding". Uncertain (-1) and unmentioned labels are neither.
Men and white patients are the reference, women and Hispanic or Latino patients the other group. Patients in neither group, in both in
different admissions, or not in MIMIC-IV are left out, and the number of their images is logged.
"""

import logging
from pathlib import Path
from typing import Unpack

import numpy as np
import pandas as pd

from equipoise.data import Cohort, Decoding, age_in_years, is_view, read_table
from equipoise.errors import BadInput, collecting, pick, raise_all
from equipoise.studies.sets import PHYSIONET, File, Recipe, locate

log = logging.getLogger(__name__)
NO_FINDING_COLUMN = "No Finding"
NIH_PAGE = "https://nihcc.app.box.com/v/ChestXray-NIHCC"
NIH_TABLES = ("metadata.csv", "Data_Entry_2017_v2020.csv", "Data_Entry_2017.csv")
NIH_COLUMNS = {  # name in the official files: name here
    "Image Index": "image",
    "Finding Labels": "finding",
    "Patient ID": "patient",
    "Patient Age": "age",
    "Patient Gender": "sex",
    "Patient Sex": "sex",
    "View Position": "view",
}
NIH_NEEDED = ("image", "patient", "sex", "age", "view", "finding")
NIH_FINDINGS = {name.lower(): name for name in (
    "Atelectasis", "Cardiomegaly", "Consolidation", "Edema", "Effusion", "Emphysema", "Fibrosis", "Hernia", "Infiltration", "Mass",
    "Nodule", "Pleural_Thickening", "Pneumonia", "Pneumothorax",
)}  # fmt: skip
OLDER_FROM = 60  # the default age in years from which a patient belongs to the older group
MAX_AGE = 120  # some ages are typing errors, such as 414; those rows have no group
CHEXPERT_FINDINGS = {name.lower(): name for name in (
    "Atelectasis", "Cardiomegaly", "Consolidation", "Edema", "Enlarged Cardiomediastinum", "Fracture", "Lung Lesion", "Lung Opacity",
    "Pleural Effusion", "Pleural Other", "Pneumonia", "Pneumothorax", "Support Devices",
)}  # fmt: skip
MIMIC_CXR_COLUMNS = {  # table: its needed columns, in addition to the finding
    "metadata": ("dicom_id", "subject_id", "study_id", "ViewPosition"),
    "chexpert": ("subject_id", "study_id", NO_FINDING_COLUMN),
    "split": ("dicom_id", "split"),
    "patients": ("subject_id", "gender"),
    "admissions": ("subject_id",),
}
GROUP_TABLES = {"sex": "patients", "ethnicity": "admissions"}  # attribute: the table of MIMIC-IV that holds it
ETHNICITIES = {"WHITE": "white", "HISPANIC": "Hispanic/Latino"}  # beginning of a value: its group
MIMIC_IV_FOLDERS = ("", "hosp", "core")  # subfolders that may hold its tables


def nih(
    root: str | Path,
    *,
    finding: str = "any",
    attribute: str = "sex",
    older: int = OLDER_FROM,
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
    pick("finding of nih", key, ("any", *NIH_FINDINGS))
    pick("attribute of nih", attribute, ("sex", "age"))
    if not 1 <= older <= MAX_AGE:
        raise BadInput(f"older is an age in years from 1 to {MAX_AGE}; got {older}")
    younger_group, older_group = f"<{older}", f">={older}"
    frame = labels_in(folder)
    findings = frame["finding"].astype(str).str.split("|").map(lambda names: {name.strip() for name in names})
    normal = np.array([names == {NO_FINDING_COLUMN} for names in findings])
    labelled = frame["finding"].notna().to_numpy()
    positive = ~normal & labelled if key == "any" else np.array([NIH_FINDINGS[key] in names for names in findings])
    if attribute == "age":
        first = frame.groupby("patient")["age"].transform("min")
        groups = pd.Series(np.where(first < older, younger_group, older_group), index=frame.index, dtype=object)
        frame["age"] = groups.where(first <= MAX_AGE, None)
    chosen = frame.assign(label=positive.astype(int))[(positive | normal) & is_view(frame["view"], views)]
    if chosen.empty:
        raise BadInput(f"no image of {folder} has {finding} or {NO_FINDING_COLUMN} and a view {views}; its views are {set(frame['view'])}")
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
    """The table of either layout with the column names of NIH_NEEDED and ages in years."""
    path = next(filter(None, (locate(folder, name) for name in NIH_TABLES)), None)
    if path is None:
        raise BadInput(f"none of {', '.join(NIH_TABLES)} is in {folder}. Get the data from {NIH_PAGE}.")
    frame = read_table(path, text=("image", "patient", "Image Index", "Patient ID")).rename(columns=NIH_COLUMNS)
    official = {name: official_name for official_name, name in NIH_COLUMNS.items()}
    absent = [name for name in NIH_NEEDED if name not in frame.columns]
    raise_all([f"no column {name!r} ({official[name]!r} in the official file)" for name in absent], str(path))
    ages, problems = [], []
    for row, text in enumerate(frame["age"], start=1):
        try:
            ages.append(np.nan if pd.isna(text) else age_in_years(str(text).removesuffix(".0")))  # a column with gaps holds 57.0
        except BadInput as error:
            problems.append(f"row {row} below the header: {error}")
    raise_all(problems, str(path))
    return frame.assign(age=np.array(ages, dtype=float))[list(NIH_NEEDED)]


def mimic_cxr(
    root: str | Path,
    *,
    finding: str = "enlarged cardiomediastinum",
    attribute: str = "sex",
    mimic_iv: str | Path | None = None,
    official: str = "all",
    views: str = "frontal",
    allow_outside: bool = False,
    **decoding: Unpack[Decoding],
) -> Cohort:
    """The images with a finding and those with none, from the folder of MIMIC-CXR-JPG.

    The tables of MIMIC-IV are searched for in `mimic_iv` (by default the same folder) and in its subfolders hosp/ and core/. `official`
    selects one part of the split that comes with the data (train, validate, test) instead of all images; the paper made a split of its own.
    """
    folder = Path(root).expanduser()
    key = finding.lower().replace("_", " ")
    pick("finding of mimic-cxr", key, CHEXPERT_FINDINGS)
    pick("attribute of mimic-cxr", attribute, GROUP_TABLES)
    pick("official split of mimic-cxr", official, ("all", "train", "validate", "test"))
    label = CHEXPERT_FINDINGS[key]
    tables = _mimic_tables(folder, folder if mimic_iv is None else Path(mimic_iv).expanduser(), GROUP_TABLES[attribute], label, official)
    frame = tables["metadata"].merge(tables["chexpert"], on=["subject_id", "study_id"], how="inner", validate="many_to_one")
    if official != "all":
        frame = frame.merge(tables["split"][["dicom_id", "split"]], on="dicom_id", how="left")
        frame = frame[frame["split"] == official]
    positive = frame[label].eq(1).to_numpy()
    normal = frame[NO_FINDING_COLUMN].eq(1).to_numpy() & ~positive
    frame = frame.assign(label=positive.astype(int))[(positive | normal) & is_view(frame["ViewPosition"], views)]
    people = tables[GROUP_TABLES[attribute]]
    if attribute == "sex":
        groups = people["gender"].where(people["gender"].isin(["F", "M"]))
    else:
        text = people["race" if "race" in people.columns else "ethnicity"].astype("string").str.strip().str.upper()
        groups = pd.Series(None, index=people.index, dtype=object)
        for beginning, group in ETHNICITIES.items():
            groups[text.str.startswith(beginning).fillna(False).to_numpy(bool)] = group
    in_group = groups.notna()
    by_patient = groups[in_group].groupby(people["subject_id"][in_group].to_numpy())
    first, last = by_patient.min(), by_patient.max()
    frame[attribute] = frame["subject_id"].map(first[first == last])  # of patients who are always in the same group
    known = frame[attribute].notna()
    if not known.any():
        raise BadInput(
            f"none of {len(frame):,} images with {label} or {NO_FINDING_COLUMN} in {folder} is of a patient whose {attribute} is known. "
            "Use tables of MIMIC-IV that belong to the images."
        )
    if not known.all():
        log.info("left out %s of %s images of patients in none of the groups of %s", int((~known).sum()), len(frame), attribute)
    frame = frame[known].reset_index(drop=True)
    stems = [
        f"files/p{str(subject)[:2]}/p{subject}/s{study}/{image}"
        for subject, study, image in frame[["subject_id", "study_id", "dicom_id"]].itertuples(index=False)
    ]
    suffix = ".dcm" if (folder / f"{stems[0]}.dcm").is_file() else ".jpg"  # .dcm in MIMIC-CXR, which has the same layout
    return Cohort.from_images(
        frame.assign(image=[f"{stem}{suffix}" for stem in stems]),
        folder=folder,
        image="image",
        label="label",
        group=attribute,
        reference="M" if attribute == "sex" else "white",
        patient="subject_id",
        allow_outside=allow_outside,
        name="mimic-cxr",
        **decoding,
    )


def _mimic_tables(folder: Path, hospital: Path, source: str, finding: str, official: str) -> dict[str, pd.DataFrame]:
    """The needed tables. Raises one `BadInput` with every file and column that is missing."""
    tables, problems = {}, list[str]()
    for table in ("metadata", "chexpert", *(["split"] if official != "all" else []), source):
        in_mimic_iv = table == source
        name = f"{table}.csv" if in_mimic_iv else f"mimic-cxr-2.0.0-{table}.csv"
        places = [hospital / place for place in MIMIC_IV_FOLDERS] if in_mimic_iv else [folder]
        path = next(filter(None, (locate(place, name) for place in places)), None)
        if path is None:
            advice = "mimiciv and name its folder with mimic_iv" if in_mimic_iv else "mimic-cxr-jpg/2.0.0"
            problems.append(f"no {name} or {name}.gz in {', '.join(map(str, places))}; get it from physionet.org/content/{advice}")
            continue
        with collecting(problems):
            frame = tables[table] = read_table(path, text=("dicom_id", "subject_id", "study_id"))
            needed = [*MIMIC_CXR_COLUMNS[table], *([finding] if table == "chexpert" else [])]
            absent = [column for column in needed if column not in frame.columns]
            if table == "admissions" and not {"race", "ethnicity"} & set(frame.columns):
                absent.append("race")
            if absent:
                problems.append(f"{path.name} has no column {', '.join(map(repr, absent))}; it has {', '.join(map(str, frame.columns))}")
    raise_all(problems, str(folder))
    return tables


CHEST_XRAYS = (
    Recipe(
        name="nih",
        load=nih,
        files=(File(NIH_TABLES[0], "", NIH_PAGE, other_names=NIH_TABLES[1:]),),
        attribute="sex",
        description="NIH ChestX-ray14, or a subset: a finding against none on frontal chest X-rays",
        citation="Wang, Peng, Lu, Lu, Bagheri and Summers, CVPR, 2017; provided by the NIH Clinical Center",
        licence="no restrictions, with attribution",
        rows=112_120,
        features=224 * 224,
        folders=("cxr-nih", "nih"),
        by_hand="The images are 42 GB behind a web page: get Data_Entry_2017_v2020.csv and the images from "
        f"{NIH_PAGE} and name their folder with --root.",
    ),
    Recipe(
        name="mimic-cxr",
        load=mimic_cxr,
        files=(
            *(File(f"mimic-cxr-2.0.0-{table}.csv", "", f"{PHYSIONET}/mimic-cxr-jpg/2.0.0") for table in ("metadata", "chexpert", "split")),
            *(
                File(f"{table}.csv", "", f"{PHYSIONET}/mimiciv", places=MIMIC_IV_FOLDERS, option="mimic_iv")
                for table in ("patients", "admissions")
            ),
        ),
        attribute="sex",
        description="MIMIC-CXR-JPG: a finding against none on frontal chest X-rays; sex and ethnicity from MIMIC-IV",
        citation="Johnson et al., MIMIC-CXR-JPG 2.0.0, PhysioNet, 2019, doi:10.13026/8360-t248",
        licence="PhysioNet Credentialed Health Data License",
        rows=377_110,
        features=224 * 224,
        paper="12,322 (sex) or 6,036 (ethnicity) x 224 x 224 px, after balancing",
        folders=("mimic-cxr", "mimic-cxr-jpg"),
        by_hand="It is available to credentialed users who have signed its data use agreement: get the tables and files/ from "
        f"{PHYSIONET}/mimic-cxr-jpg/2.0.0, patients and admissions of MIMIC-IV from {PHYSIONET}/mimiciv, and name the folder with --root, "
        "and that of MIMIC-IV, if it is another one, with --mimic-iv (mimic_iv= in Python).",
    ),
)
