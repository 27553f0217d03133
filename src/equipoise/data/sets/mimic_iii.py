"""MIMIC-III v1.4: in-hospital mortality from the 17 SAPS-II features, from the raw tables of PhysioNet to the cohort of the paper.

Rows are the first admissions of patients over 15. Features are means over the whole stay (`saps.MEASURED`), age, three chronic diseases
by ICD-9 code, and the kind of admission. Groups, the reference (A = 1 of the published tables) first, so that gaps have the published
signs: age (>=78, <78), marital_status (single; not single, which includes unknown) and insurance (public, which is Medicare and Medicaid;
private, which is every other payer). The date of birth of patients over 89 is shifted by about 300 years: they get the age 91.4, their
median according to the documentation of the data.

There are two kinds of `inputs`. "stay-averages" are those of the paper's text: 22 encoded columns (15 means, age, 3 diseases, 3 kinds of
admission), and one more for marital_status or insurance as an input. Age is in years, and all first admissions of adults are rows.
"first-day" are those of the paper's table of data sets, which come from its published code: 43 columns, or 44 with marital_status or
insurance. They are minima and maxima of the first ICU day (`first_day`; 20 numbers), age as 0 or 1 (78 and older), the minimum GCS in 13
levels, 3 diseases in 2 levels each and 3 kinds of admission. Rows are stays of at least 24 hours in the ICU (35,993 in the paper;
`PUBLISHED_ROWS`). Missing values are filled from the training set only. Age is not an input if it is the attribute and
`attribute_as_input=False`.

The open demo (100 patients, all of whom died at some time) is far too small for fairness results: it only shows that the code runs.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from equipoise.data.attribute import Attribute, BoolArray, IntArray
from equipoise.data.cohort import Cohort
from equipoise.data.sets import File, Recipe
from equipoise.data.sets.saps import CHART, COLUMNS, LEVELS, TIME, first_day, read_header, seconds, stay_means
from equipoise.data.table import Table
from equipoise.errors import BadInput, first_line, pick, raise_all

TABLES = {  # table: the columns that are needed, in lower case
    "ADMISSIONS": ("subject_id", "hadm_id", "admittime", "admission_type", "insurance", "marital_status", "hospital_expire_flag"),
    "PATIENTS": ("subject_id", "dob"),
    "DIAGNOSES_ICD": ("hadm_id", "icd9_code"),
    "SERVICES": ("hadm_id", "transfertime", "curr_service"),
    **COLUMNS,
}
GROUPS = {  # attribute: the reference group, the other group, and the values of that column in the reference group
    "age": (">=78", "<78", None),
    "marital_status": ("single", "not single", ("SINGLE",)),
    "insurance": ("public", "private", ("MEDICARE", "MEDICAID")),
}
INPUTS = ("stay-averages", "first-day")
FIRST_DAY_TABLES = {  # further columns that "first-day" needs
    "ICUSTAYS": ("hadm_id", "intime", "outtime"),
    **{table: (TIME, "value") if table == CHART else (TIME,) for table in COLUMNS},
}
KINDS = ("medical", "scheduled surgical", "unscheduled surgical")
PUBLISHED_ROWS = 35_993  # of the paper's table of data sets: 21,595 + 7,199 + 7,199
OLD = 78
ADULT = 15
SURROGATE_AGE = 91.4
OLDEST = 150  # at a higher age, the date of birth was shifted
DISEASES = {  # first and last three-digit ICD-9 code
    "aids": ("042", "044"),
    "haematologic_malignancy": ("200", "208"),
    "metastatic_cancer": ("196", "199"),
}
DAYS_PER_YEAR = 365.2425


def mimic_iii(
    root: Path,
    *,
    attribute: str = "age",
    attribute_as_input: bool = True,
    inputs: str = "stay-averages",
    progress: Callable[[int], None] | None = None,
) -> Cohort:
    """The MIMIC-III cohort in a folder of tables (CSV or CSV.GZ, names in upper or lower case), one row per patient.

    The attribute is age, marital_status or insurance; the inputs are stay-averages or first-day. CHARTEVENTS (33 GB) is streamed, and
    `progress` is called with the number of rows read so far. Missing measurements are NaN, which the encoder of the table fills.
    """
    pick("attribute of mimic-iii", attribute, GROUPS)
    daily = pick("inputs of mimic-iii", inputs, INPUTS) == "first-day"
    files = _files(Path(root), daily)
    stays = _first_adult_admissions(files)
    if daily:
        stays = _stays_of_a_day(files, stays)
    hadm = stays["hadm_id"].to_numpy(np.int64)
    reference, other, values = GROUPS[attribute]
    in_reference = (stays["age"] >= OLD if values is None else stays[attribute].str.strip().str.upper().isin(values)).to_numpy(bool)
    group = Attribute.of(np.where(in_reference, reference, other), attribute, reference)
    diseases, kind = _diseases(files, hadm), _admission_type(files, hadm, stays["admission_type"])
    if daily:
        levels = {f"{name}={int(level)}": present == level for name, present in diseases.items() for level in (False, True)}
        kinds = {f"admission_type={name}": kind == name for name in KINDS}
        fixed = pd.DataFrame({"age": stays["age"] >= OLD, **levels, **kinds}).astype(float)
    else:
        fixed = stays[["age"]].assign(**diseases, admission_type=kind)
    if attribute == "age" and not attribute_as_input:
        fixed = fixed.drop(columns="age")
    elif attribute != "age" and attribute_as_input:
        fixed[f"{attribute}={reference}"] = in_reference

    # Last, since it takes minutes: errors in the small tables are raised before.
    tables = {table: files[table] for table in COLUMNS}
    if daily:
        measured = first_day(tables, hadm, seconds(stays["intime"].to_numpy("datetime64[s]")), progress=progress)
    else:
        measured = stay_means(tables, hadm, progress=progress)
    if measured.isna().all(axis=None):
        raise BadInput(f"no row of {', '.join(COLUMNS)} in {root} belongs to the {len(stays):,} admissions; use tables of one extract")
    if daily:
        gcs = measured.pop("gcs_min")
        measured = measured.assign(**{f"gcs_min={level}": (gcs == level).astype(float).where(gcs.notna()) for level in LEVELS})
    return Cohort(
        Table(pd.concat([measured, fixed], axis=1)),
        stays["hospital_expire_flag"].to_numpy(np.int64),
        (group,),
        stays["subject_id"].to_numpy(dtype=object),
        stays["hadm_id"].to_numpy(dtype=object),
        "mimic-iii",
    )


def _stays_of_a_day(files: Mapping[str, Path], stays: pd.DataFrame) -> pd.DataFrame:
    """The admissions with a first ICU stay of at least 24 hours, and its times."""
    icu = _read(files, "ICUSTAYS").sort_values(["intime", "hadm_id"]).drop_duplicates("hadm_id")
    merged = stays.merge(icu, on="hadm_id", how="inner")
    long = merged[merged["outtime"] - merged["intime"] >= pd.Timedelta(days=1)].reset_index(drop=True)
    if long.empty:
        raise BadInput(
            f"none of the {len(stays):,} first admissions of adults has an ICU stay of at least 24 hours in ICUSTAYS; "
            'use tables of one extract, or inputs="stay-averages"'
        )
    return long


def _files(root: Path, daily: bool) -> dict[str, Path]:
    """The file of each table. Raises one `BadInput` with every table and column that is missing."""
    more = FIRST_DAY_TABLES if daily else {}
    columns = {table: (*TABLES.get(table, ()), *more.get(table, ())) for table in TABLES | more}
    if not root.is_dir():
        raise BadInput(f"no such folder: {root}. It must hold the MIMIC-III tables {', '.join(columns)} as .csv or .csv.gz.")
    present = {path.name.lower(): path for path in root.iterdir() if path.is_file()}
    files, problems = {}, []
    for table, needed in columns.items():
        path = present.get(f"{table.lower()}.csv") or present.get(f"{table.lower()}.csv.gz")
        if path is None:
            problems.append(f"no table {table}.csv or {table}.csv.gz; get it from physionet.org/content/mimiciii/1.4")
            continue
        files[table] = path
        try:
            names = read_header(path)
        except BadInput as error:
            problems += error.problems
            continue
        absent = [column for column in needed if column not in map(str.lower, names)]
        if absent:
            problems.append(f"{path.name} has no column {', '.join(absent)}; it has {', '.join(names)}")
    raise_all(problems, str(root))
    return files


def _read(files: Mapping[str, Path], table: str) -> pd.DataFrame:
    """The needed columns of a small table, names in lower case: ids, the flag and dates parsed, all others as text."""
    needed = TABLES.get(table) or FIRST_DAY_TABLES[table]
    try:
        frame = pd.read_csv(files[table], usecols=lambda name: name.strip().lower() in needed, dtype=str)
        frame = frame.rename(columns=lambda name: name.strip().lower())
        ids = [column for column in ("subject_id", "hadm_id") if column in needed]
        frame = frame.dropna(subset=ids)
        for column in needed:
            if column in ids:
                frame[column] = pd.to_numeric(frame[column]).astype(np.int64)
            elif column == "hospital_expire_flag":
                frame[column] = pd.to_numeric(frame[column])
            elif column in {"admittime", "transfertime", "dob", "intime", "outtime"}:
                frame[column] = pd.to_datetime(frame[column])
    except (OSError, ValueError, EOFError) as error:
        raise BadInput(f"{files[table]} cannot be read as the MIMIC-III table {table}: {first_line(error)}") from error
    return frame


def _first_adult_admissions(files: Mapping[str, Path]) -> pd.DataFrame:
    """One row per patient: the earliest admission, if the patient was over 15 then, with the age in years."""
    admissions = _read(files, "ADMISSIONS").sort_values(["admittime", "hadm_id"]).drop_duplicates("subject_id")
    patients = _read(files, "PATIENTS").drop_duplicates("subject_id")
    stays = admissions.merge(patients, on="subject_id", how="left").sort_values("subject_id")
    # Whole days, since 300 years do not fit into a difference in nanoseconds.
    days = stays["admittime"].to_numpy("datetime64[D]") - stays["dob"].to_numpy("datetime64[D]")
    undated = int(np.isnat(days).sum())
    age = days.astype(np.float64) / DAYS_PER_YEAR
    stays["age"] = np.where(age > OLDEST, SURROGATE_AGE, age)
    adults = stays[stays["age"] > ADULT].reset_index(drop=True)
    unlabelled = int((~adults["hospital_expire_flag"].isin([0, 1])).sum())
    problems = []
    if undated:
        problems.append(
            f"{undated:,} of {len(stays):,} patients have no admittime in ADMISSIONS or no dob in PATIENTS; use tables of one extract"
        )
    if unlabelled:
        problems.append(f"hospital_expire_flag must be 0 or 1; {unlabelled:,} of {len(adults):,} first admissions of adults have neither")
    if adults.empty:
        problems.append(f"none of {len(stays):,} first admissions is of a patient over {ADULT}; nothing is left to learn from")
    raise_all(problems, str(files["ADMISSIONS"].parent))
    return adults


def _diseases(files: Mapping[str, Path], hadm: IntArray) -> dict[str, BoolArray]:
    """Whether each admission has a diagnosis in the range of each chronic disease."""
    diagnoses = _read(files, "DIAGNOSES_ICD")
    code = diagnoses["icd9_code"].str.strip().str[:3]
    return {name: np.isin(hadm, diagnoses["hadm_id"][code.between(first, last)]) for name, (first, last) in DISEASES.items()}


def _admission_type(files: Mapping[str, Path], hadm: IntArray, kind: "pd.Series[str]") -> npt.NDArray[np.str_]:
    """Surgical by the first service of the stay, and scheduled if the admission was elective; every other admission is medical."""
    first = _read(files, "SERVICES").sort_values("transfertime").drop_duplicates("hadm_id")
    surgical = np.isin(hadm, first["hadm_id"][first["curr_service"].str.upper().str.contains("SURG", na=False)])
    elective = kind.str.strip().str.upper().eq("ELECTIVE").to_numpy(bool)
    medical, scheduled, unscheduled = KINDS
    return np.where(surgical, np.where(elective, scheduled, unscheduled), medical)


PHYSIONET = "https://physionet.org/content"
RECIPES = (
    Recipe(
        name="mimic-iii",
        load=mimic_iii,
        files=tuple(
            File(f"{table}.csv", "", f"{PHYSIONET}/mimiciii/1.4", other_names=(f"{table.lower()}.csv",))
            for table in TABLES | FIRST_DAY_TABLES
        ),
        attribute="age",
        description="intensive care in Boston 2001-2012: who dies in hospital",
        citation="Johnson et al., MIMIC-III v1.4, Scientific Data 3:160035, 2016, doi:10.13026/C2XW26",
        licence="PhysioNet Credentialed Health Data License",
        rows=38_597,
        features=22,
        paper="35,993 x 43 (age) or 44, with inputs='first-day'",
        by_hand="It is available to credentialed users who have signed its data use agreement: get the tables from "
        f"{PHYSIONET}/mimiciii/1.4 and name their folder with --root.",
    ),
)
