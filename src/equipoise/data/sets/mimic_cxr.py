"""MIMIC-CXR-JPG 2.0.0: a finding against no finding, on frontal views, as in the paper. Protected: sex or ethnicity.

The folder is that of PhysioNet (physionet.org/content/mimic-cxr-jpg): mimic-cxr-2.0.0-metadata.csv, -chexpert.csv and -split.csv, plain or
gzipped, and files/p10/p10000032/s50414267/*.jpg. Sex is in the table patients of MIMIC-IV and ethnicity in its table admissions (column
race, ethnicity before version 2), joined on subject_id.

A study is positive if the CheXpert label of the finding is 1, and negative if it has "No Finding". Uncertain (-1) and unmentioned labels
are neither. Men and white patients are the reference, women and Hispanic or Latino patients the other group. Patients in neither group, in
both in different admissions, or not in MIMIC-IV are left out, and the number of their images is logged.
"""

import logging
from pathlib import Path
from typing import Unpack

import pandas as pd

from equipoise.data.cohort import Cohort
from equipoise.data.files import locate
from equipoise.data.image_files import VIEWS, is_view
from equipoise.data.images import Decoding
from equipoise.data.sets import File, Recipe
from equipoise.data.table_files import read_table
from equipoise.errors import BadInput, pick, raise_all

log = logging.getLogger(__name__)
NORMAL = "No Finding"
FINDINGS = {
    name.lower(): name
    for name in (
        *("Atelectasis", "Cardiomegaly", "Consolidation", "Edema", "Enlarged Cardiomediastinum", "Fracture"),
        *("Lung Lesion", "Lung Opacity", "Pleural Effusion", "Pleural Other", "Pneumonia", "Pneumothorax"),
        "Support Devices",
    )
}
TABLES = {  # table: its needed columns, in addition to the finding
    "metadata": ("dicom_id", "subject_id", "study_id", "ViewPosition"),
    "chexpert": ("subject_id", "study_id", NORMAL),
    "split": ("dicom_id", "split"),
    "patients": ("subject_id", "gender"),
    "admissions": ("subject_id",),
}
IDENTIFIERS = ("dicom_id", "subject_id", "study_id")
SOURCES = {"sex": "patients", "ethnicity": "admissions"}  # attribute: the table that holds it
REFERENCES = {"sex": "M", "ethnicity": "white"}
ETHNICITIES = {"WHITE": "white", "HISPANIC": "Hispanic/Latino"}  # beginning of a value: its group
PARTS = ("all", "train", "validate", "test")
MIMIC_IV = ("", "hosp", "core")  # subfolders that may hold its tables
PHYSIONET = "https://physionet.org/content"


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
    pick("finding of mimic-cxr", key, FINDINGS)
    pick("attribute of mimic-cxr", attribute, SOURCES)
    pick("official split of mimic-cxr", official, PARTS)
    pick("views of mimic-cxr", views, VIEWS)
    label = FINDINGS[key]
    tables = _read(folder, folder if mimic_iv is None else Path(mimic_iv).expanduser(), SOURCES[attribute], label, official)
    frame = tables["metadata"].merge(tables["chexpert"], on=["subject_id", "study_id"], how="inner", validate="many_to_one")
    if official != "all":
        frame = frame.merge(tables["split"][["dicom_id", "split"]], on="dicom_id", how="left")
        frame = frame[frame["split"] == official]
    positive = frame[label].eq(1).to_numpy()
    normal = frame[NORMAL].eq(1).to_numpy() & ~positive
    frame = frame.assign(label=positive.astype(int))[(positive | normal) & is_view(frame["ViewPosition"], views)]
    groups = _sex(tables["patients"]) if attribute == "sex" else _ethnicity(tables["admissions"])
    frame[attribute] = frame["subject_id"].map(groups)
    known = frame[attribute].notna()
    if not known.any():
        raise BadInput(
            f"none of {len(frame):,} images with {label} or {NORMAL} in {folder} is of a patient whose {attribute} is known. "
            "Use tables of MIMIC-IV that belong to the images."
        )
    if not known.all():
        log.info("left out %s of %s images of patients in none of the groups of %s", int((~known).sum()), len(frame), attribute)
    frame = frame[known].reset_index(drop=True)
    return Cohort.from_images(
        frame.assign(image=_paths(frame, folder)),
        folder=folder,
        image="image",
        label="label",
        group=attribute,
        reference=REFERENCES[attribute],
        patient="subject_id",
        allow_outside=allow_outside,
        name="mimic-cxr",
        **decoding,
    )


def _read(folder: Path, hospital: Path, source: str, finding: str, official: str) -> dict[str, pd.DataFrame]:
    """The needed tables. Raises one `BadInput` with every file and column that is missing."""
    tables, problems = {}, []
    for table in ("metadata", "chexpert", *(["split"] if official != "all" else []), source):
        in_mimic_iv = table == source
        name = f"{table}.csv" if in_mimic_iv else f"mimic-cxr-2.0.0-{table}.csv"
        places = [hospital / place for place in MIMIC_IV] if in_mimic_iv else [folder]
        path = next(filter(None, (locate(place, name) for place in places)), None)
        if path is None:
            advice = "mimiciv and name its folder with mimic_iv" if in_mimic_iv else "mimic-cxr-jpg/2.0.0"
            problems.append(f"no {name} or {name}.gz in {', '.join(map(str, places))}; get it from physionet.org/content/{advice}")
            continue
        try:
            tables[table] = read_table(path, text=IDENTIFIERS)
        except BadInput as error:
            problems += error.problems
            continue
        needed = [*TABLES[table], *([finding] if table == "chexpert" else [])]
        absent = [column for column in needed if column not in tables[table].columns]
        if table == "admissions" and not {"race", "ethnicity"} & set(tables[table].columns):
            absent.append("race")
        if absent:
            problems.append(
                f"{path.name} has no column {', '.join(map(repr, absent))}; it has {', '.join(map(str, tables[table].columns))}"
            )
    raise_all(problems, str(folder))
    return tables


def _sex(patients: pd.DataFrame) -> "pd.Series[str]":
    """F or M by subject_id."""
    known = patients[patients["gender"].isin(["F", "M"])]
    return _consistent(known["subject_id"], known["gender"])


def _ethnicity(admissions: pd.DataFrame) -> "pd.Series[str]":
    """White or Hispanic/Latino by subject_id, for patients who are always in the same one of these groups."""
    text = admissions["race" if "race" in admissions.columns else "ethnicity"].astype("string").str.strip().str.upper()
    groups = pd.Series(None, index=admissions.index, dtype=object)
    for beginning, group in ETHNICITIES.items():
        groups[text.str.startswith(beginning).fillna(False).to_numpy(bool)] = group
    known = groups.notna()
    return _consistent(admissions["subject_id"][known], groups[known])


def _consistent(subjects: "pd.Series[int]", groups: "pd.Series[str]") -> "pd.Series[str]":
    """The group by subject, for subjects with the same group in every row."""
    grouped = groups.groupby(subjects.to_numpy())
    first, last = grouped.min(), grouped.max()
    return first[first == last]


def _paths(frame: pd.DataFrame, folder: Path) -> list[str]:
    """The path of each image inside the folder: .jpg, or .dcm if the first one is (as in MIMIC-CXR, which has the same layout)."""
    stems = [
        f"files/p{str(subject)[:2]}/p{subject}/s{study}/{image}"
        for subject, study, image in frame[["subject_id", "study_id", "dicom_id"]].itertuples(index=False)
    ]
    suffix = ".dcm" if stems and (folder / f"{stems[0]}.dcm").is_file() else ".jpg"
    return [f"{stem}{suffix}" for stem in stems]


RECIPES = (
    Recipe(
        name="mimic-cxr",
        load=mimic_cxr,
        files=(
            *(File(f"mimic-cxr-2.0.0-{table}.csv", "", f"{PHYSIONET}/mimic-cxr-jpg/2.0.0") for table in ("metadata", "chexpert", "split")),
            *(File(f"{table}.csv", "", f"{PHYSIONET}/mimiciv", places=MIMIC_IV, option="mimic_iv") for table in ("patients", "admissions")),
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
