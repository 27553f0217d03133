"""MIMIC-III v1.4: in-hospital mortality from the 17 SAPS-II features, from the raw tables of PhysioNet to the cohort of the paper.

Rows are the first admissions of patients over 15. Features are means over the whole stay (`MEASUREMENTS`), age, three chronic diseases
by ICD-9 code, and the kind of admission. Groups, the reference (A = 1 of the published tables) first, so that gaps have the published
signs: age (>=78, <78), marital_status (single; not single, which includes unknown) and insurance (public, which is Medicare and Medicaid;
private, which is every other payer). The date of birth of patients over 89 is shifted by about 300 years: they get the age 91.4, their
median according to the documentation of the data.

There are two kinds of `inputs`. "stay-averages" are those of the paper's text: 22 encoded columns (15 means, age, 3 diseases, 3 kinds of
admission), and one more for marital_status or insurance as an input. Age is in years, and all first admissions of adults are rows.
"first-day" are those of the paper's table of data sets, which come from its published code: 43 columns, or 44 with marital_status or
insurance. They are minima and maxima of the first ICU day (`first_day`; 20 numbers), age as 0 or 1 (78 and older), the minimum GCS in 13
levels, 3 diseases in 2 levels each and 3 kinds of admission. Rows are admissions to the ICU whose record spans 24 hours, from the first to
the last value of any feature, as in the benchmark whose tables the paper used (35,993 in the paper; `PUBLISHED_ROWS`): a stay of 20 hours
counts if the laboratory went on. (The benchmark's code leaves out spans of exactly 24 hours.) Missing values are filled from the training
set only. Age is not an input if it is the attribute and `attribute_as_input=False`.

The open demo (100 patients, all of whom died at some time) is far too small for fairness results: it only shows that the code runs.

The items are those of Purushotham et al. (J. Biomed. Inform. 2018), checked against D_ITEMS and D_LABITEMS, with three changes: item
225309 (ART BP Systolic) is added; 40086 is left out, since D_ITEMS calls it a drain and not urine; so are 227488 and 227489 (irrigation),
since volume in and volume out are paired too loosely for their difference to be urine. PaO2 is every pO2 of the laboratory, arterial or
not, and the verbal GCS of an intubated patient is 1, as charted. A value outside the plausible range, or one that the hospital marked as
an error, is dropped. Diseases are the ICD-9 ranges of the SAPS-II score as they are in that benchmark (`DISEASE_CODES`).

`stay_means` gives the mean of each feature over the whole stay. `first_day` gives the inputs of the published MIMIC-III tables: extremes of
the first ICU day. Its windows are those of the public MIMIC code: from admission to the ICU to 24 hours later, laboratory values from six
hours before. For a GCS component that is not charted with the others, the last value within six hours is taken, else the normal one; an
intubated patient's GCS is 15. PaO2 / FiO2 counts while the patient is ventilated, with the last FiO2 of the four hours before: a patient is
ventilated between two charted ventilator settings that are at most eight hours apart, and from one hour before the first CPAP or BiPAP mask
of the day to four hours after the last. Urine is the sum.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from equipoise.data import Attribute, Cohort, FeatureTable, FloatArray, IntArray
from equipoise.errors import BadInput, collecting, first_line, pick, raise_all
from equipoise.studies.sets import PHYSIONET, File, Recipe

CHART, LAB, OUTPUT = "CHARTEVENTS", "LABEVENTS", "OUTPUTEVENTS"
EVENT_COLUMNS = {  # table: admission, item, value, and the error flag if the table has one
    CHART: ("hadm_id", "itemid", "valuenum", "error"),
    LAB: ("hadm_id", "itemid", "valuenum"),
    OUTPUT: ("hadm_id", "itemid", "value", "iserror"),
}
TIME_COLUMN = "charttime"  # in every table
BLOCK_BYTES = 1 << 20  # bytes; larger blocks take more memory and are no faster
# Some rows of a table: their number, items, admissions, values (NaN for a row marked as an error), and if dated, times (seconds since 1970,
# NaN if missing) and the texts of CHARTEVENTS.
EventBlock = tuple[int, npt.NDArray[np.int32], FloatArray, FloatArray, FloatArray | None, npt.NDArray[np.object_] | None]


@dataclass(frozen=True)
class ItemIds:
    """Items of one table. A charted value up to `upto` is converted to scale * value + shift; a larger one needs no conversion."""

    table: str
    ids: tuple[int, ...]
    scale: float = 1.0
    shift: float = 0.0
    upto: float = inf


@dataclass(frozen=True)
class Measurement:
    """One feature: its unit, the range of plausible values (both ends included), and where it is charted.

    >>> MEASUREMENTS["heart_rate"].unit, [items.ids for items in MEASUREMENTS["heart_rate"].sources]
    ('1/min', [(211, 220045)])
    """

    unit: str
    low: float
    high: float
    sources: tuple[ItemIds, ...]


_URINE_CAREVUE = (40055, 40056, 40057, 40069, 40085, 40094, 40096, 40405, 40428, 40473, 40651, 40715, 43175)
_URINE_METAVISION = (226557, 226558, 226559, 226560, 226561, 226563, 226564, 226565, 226567, 226584)
_FAHRENHEIT = {"scale": 5 / 9, "shift": -160 / 9}
_PERCENT = {"scale": 100.0, "upto": 1.0}  # the same item holds 0.4 in one row and 40 in the next

MEASUREMENTS = {
    "gcs_verbal": Measurement("points", 1, 5, (ItemIds(CHART, (723, 223900)),)),
    "gcs_motor": Measurement("points", 1, 6, (ItemIds(CHART, (454, 223901)),)),
    "gcs_eyes": Measurement("points", 1, 4, (ItemIds(CHART, (184, 220739)),)),
    "systolic_pressure": Measurement("mmHg", 1, 400, (ItemIds(CHART, (51, 442, 455, 6701, 220050, 220179, 225309)),)),
    "heart_rate": Measurement("1/min", 1, 300, (ItemIds(CHART, (211, 220045)),)),
    "temperature": Measurement("°C", 20, 45, (ItemIds(CHART, (676, 223762)), ItemIds(CHART, (678, 223761), **_FAHRENHEIT))),
    "pao2": Measurement("mmHg", 10, 800, (ItemIds(LAB, (50821,)),)),
    "fio2": Measurement("%", 21, 100, (ItemIds(CHART, (190, 3420, 3422, 223835), **_PERCENT), ItemIds(LAB, (50816,), **_PERCENT))),
    "urine": Measurement("mL a reading", 0, 5000, (ItemIds(OUTPUT, _URINE_CAREVUE + _URINE_METAVISION),)),
    "urea_nitrogen": Measurement("mg/dL", 1, 300, (ItemIds(LAB, (51006,)),)),
    "white_cells": Measurement("1000/µL", 0.1, 1000, (ItemIds(LAB, (51300, 51301)),)),
    "bicarbonate": Measurement("mmol/L", 1, 100, (ItemIds(LAB, (50882,)),)),
    "sodium": Measurement("mmol/L", 80, 200, (ItemIds(LAB, (50824, 50983)),)),
    "potassium": Measurement("mmol/L", 0.5, 30, (ItemIds(LAB, (50822, 50971)),)),
    "bilirubin": Measurement("mg/dL", 0.1, 150, (ItemIds(LAB, (50885,)),)),
}


def _rules(table: str) -> tuple[npt.NDArray[np.int16], Any]:
    """The conversion of each item of a table: the slot of each item id, -1 for one that is not needed, and a record for each slot."""
    rows = [
        (item, feature, items.scale, items.shift, items.upto, measurement.low, measurement.high)
        for feature, measurement in enumerate(MEASUREMENTS.values())
        for items in measurement.sources
        if items.table == table
        for item in items.ids
    ]
    kinds: list[Any] = [("code", "i8"), ("feature", "i8"), *((name, "f8") for name in ("scale", "shift", "upto", "low", "high"))]
    rules: Any = np.array(rows, dtype=kinds).view(np.recarray)
    slot = np.full(rules.code.max() + 2, -1, dtype=np.int16)  # one more than the largest item, to which an unknown one is clipped
    slot[rules.code] = np.arange(len(rows))
    return slot, rules


def stay_means(files: Mapping[str, Path], admissions: IntArray, *, progress: Callable[[int], None] | None = None) -> pd.DataFrame:
    """The mean of each measured feature in each admission, NaN if it was never charted; rows in the order of `admissions`.

    The state is a sum and a count for each admission and feature, so memory does not grow with the tables. Rows are added one by one
    in the order of the files: the result is the same to the bit for every block size. `progress` gets the number of rows read so far.
    """
    states, *_ = _accumulate(files, admissions, None, progress)
    return states["total"] / states["count"]


def _accumulate(
    files: Mapping[str, Path], admissions: IntArray, admitted: FloatArray | None, progress: Callable[[int], None] | None
) -> tuple[dict[str, pd.DataFrame], list[pd.DataFrame], list[pd.DataFrame], list[pd.DataFrame]]:
    """The minimum, maximum, sum and number of values of each feature in each admission: in the first ICU day, or without `admitted` in the
    whole stay. For a first day also the first and last time of a value in the whole stay, the events whose times matter, and the times of
    ventilator settings and of CPAP or BiPAP masks.
    """
    index = pd.Index(admissions.astype(np.float64))
    shape = (len(admissions), len(MEASUREMENTS))
    states = {"low": np.full(shape, np.inf), "high": np.full(shape, -np.inf), "total": np.zeros(shape), "count": np.zeros(shape)}
    record = {"first": np.full(shape, np.inf), "last": np.full(shape, -np.inf)}
    charted: list[pd.DataFrame] = []
    ventilated: list[pd.DataFrame] = []
    masked: list[pd.DataFrame] = []
    read = 0
    for table, path in files.items():
        (slots, rules), earliest = _rules(table), -COUNTED_BEFORE.get(table, 0.0)
        for rows, item, admission, value, time, text in read_blocks(table, path, dated=admitted is not None):
            slot = np.take(slots, item, mode="clip")
            ventilator, mask = (
                np.isin(item, items) if time is not None and table == CHART else np.zeros(rows, bool) for items in (VENTILATOR, MASK)
            )
            needed = np.flatnonzero((slot >= 0) | ventilator | mask)
            stay = index.get_indexer(admission[needed])
            after = np.zeros(len(needed)) if time is None or admitted is None else time[needed] - admitted[stay]
            near = (stay >= 0) & (after >= earliest - VENTILATOR_GAP)
            needed, stay, after = needed[near], stay[near], after[near]
            setting = ventilator[needed] & ~np.isnan(value[needed]) & (after <= DAY + VENTILATOR_GAP)
            ventilated.append(pd.DataFrame({"stay": stay[setting], "after": after[setting]}))
            worn = np.flatnonzero(mask[needed] & (after >= 0) & (after <= DAY))
            if text is not None and len(worn):
                worn = worn[[any(name in str(words).lower() for name in MASKS) for words in text[needed[worn]]]]
                masked.append(pd.DataFrame({"stay": stay[worn], "after": after[worn]}))
            within = (slot[needed] >= 0) & (after >= earliest)
            needed, stay, after = needed[within], stay[within], after[within]
            rule, reading = rules[slot[needed]], value[needed]
            converted = np.where(reading <= rule.upto, rule.scale * reading + rule.shift, reading)  # in the unit of the feature
            kept, feature = (converted >= rule.low) & (converted <= rule.high), rule.feature
            if time is not None:
                cell = (stay * shape[1] + feature)[kept]
                np.minimum.at(record["first"].reshape(-1), cell, after[kept])
                np.maximum.at(record["last"].reshape(-1), cell, after[kept])
            kept = kept & (after <= DAY)
            cell = (stay * shape[1] + feature)[kept]
            np.add.at(states["total"].reshape(-1), cell, converted[kept])
            np.add.at(states["count"].reshape(-1), cell, 1.0)
            if time is not None:
                np.minimum.at(states["low"].reshape(-1), cell, converted[kept])
                np.maximum.at(states["high"].reshape(-1), cell, converted[kept])
                timed = kept & np.isin(feature, TIMED_FEATURES)
                intubated = feature[timed] == FEATURES.index("gcs_verbal")
                if text is not None:
                    intubated &= np.array([any(word in str(words).lower() for word in INTUBATED) for words in text[needed[timed]]], bool)
                events = pd.DataFrame({"stay": stay[timed], "after": after[timed]})
                charted.append(events.assign(feature=feature[timed], value=converted[timed], intubated=intubated))
            read += rows
            if progress is not None:
                progress(read)
    frames = {name: pd.DataFrame(np.where(states["count"] > 0, state, np.nan), columns=FEATURES) for name, state in states.items()}
    return frames | {name: pd.DataFrame(times, columns=FEATURES) for name, times in record.items()}, charted, ventilated, masked


def read_blocks(table: str, path: Path, *, dated: bool = False) -> Iterator[EventBlock]:
    """The rows of a table, block by block, with times and texts if `dated`."""
    import pyarrow as pa
    from pyarrow import csv

    header = {name.lower(): name for name in read_header(path)}
    # Admissions and marks as floats: both have gaps, and a table that went through pandas holds "142345.0".
    types = dict(zip(EVENT_COLUMNS[table], (pa.float64(), pa.int32(), pa.float64(), pa.float64()), strict=False))
    if dated:
        types |= {TIME_COLUMN: pa.timestamp("s")} | ({"value": pa.string()} if table == CHART else {})
    names = [header[column] for column in types]
    try:
        reader = csv.open_csv(
            str(path),
            read_options=csv.ReadOptions(use_threads=False, block_size=BLOCK_BYTES),
            parse_options=csv.ParseOptions(newlines_in_values=True),
            convert_options=csv.ConvertOptions(include_columns=names, column_types=dict(zip(names, types.values(), strict=True))),
        )
        for batch in reader:
            columns = dict(zip(types, batch.columns, strict=True))
            admission, item, value, *mark = (columns[name] for name in EVENT_COLUMNS[table])
            charted = value.to_numpy(zero_copy_only=False)
            if mark and mark[0].null_count < batch.num_rows:
                charted = np.where(mark[0].to_numpy(zero_copy_only=False) == 1, np.nan, charted)
            yield (
                batch.num_rows,
                item.fill_null(-1).to_numpy(zero_copy_only=False),
                admission.to_numpy(zero_copy_only=False),
                charted,
                seconds(columns[TIME_COLUMN].to_numpy(zero_copy_only=False)) if dated else None,
                columns["value"].to_numpy(zero_copy_only=False) if dated and table == CHART else None,
            )
    except (OSError, ValueError) as error:
        reason = first_line(error)
        raise BadInput(f"{path} cannot be read as the MIMIC-III table {table}: {reason}. Download or unpack it again.") from error


def seconds(times: npt.NDArray[np.datetime64]) -> FloatArray:
    """Seconds since 1970; NaN for a missing time."""
    whole = times.astype("datetime64[s]")
    return np.where(np.isnat(whole), np.nan, whole.astype(np.int64).astype(np.float64))


def read_header(path: Path) -> list[str]:
    """The column names of a CSV file, gzipped or not, without surrounding spaces."""
    try:
        return [str(name).strip() for name in pd.read_csv(path, nrows=0).columns]
    except (OSError, ValueError, EOFError) as error:
        raise BadInput(f"{path} cannot be read: {first_line(error)}. Download or unpack it again.") from error


MIN_MAX_FEATURES = (  # features with minimum and maximum
    "heart_rate", "systolic_pressure", "temperature", "urea_nitrogen", "white_cells", "potassium", "sodium", "bicarbonate", "bilirubin",
)  # fmt: skip
GCS = {"gcs_verbal": 5, "gcs_motor": 6, "gcs_eyes": 4}  # component: its normal value
GCS_LEVELS = tuple(range(3, 16))  # of the minimum GCS
# Volumes, pressures and settings that are charted only for a ventilator, as in the public MIMIC code.
VENTILATOR = (
    445, 448, 449, 450, 1340, 1486, 1600, 224687, 639, 654, 681, 682, 683, 684, 224684, 224685, 224686, 218, 436, 535, 444, 459, 224697,
    224695, 224696, 224746, 224747, 221, 1, 1211, 1655, 2000, 226873, 224738, 224419, 224750, 227187, 543, 5865, 5866, 224707, 224709,
    224705, 224706, 60, 437, 505, 506, 686, 220339, 224700, 3459, 501, 502, 503, 224702, 223, 667, 668, 669, 670, 671, 672, 224701,
)  # fmt: skip
MASK, MASKS = (467, 469, 226732), ("cpap mask", "bipap mask")  # oxygen devices, and the texts that count
HOUR = 3_600.0
DAY = 24 * HOUR
COUNTED_BEFORE = {CHART: 0.0, LAB: 6 * HOUR}  # how long before admission to the ICU a value counts
MAX_AGE_GCS, MAX_AGE_FIO2 = 6 * HOUR, 4 * HOUR  # of a GCS component, of an FiO2
VENTILATOR_GAP = 8 * HOUR  # between two settings of one ventilation, at most
BEFORE_MASK, AFTER_MASK = HOUR, 4 * HOUR  # how long before the first and after the last mask of the day a blood gas counts
LEAST_RECORD = 24  # hours that the record of an admission spans
RECORD = "record_hours"
NO_TIMES = pd.DataFrame({"stay": np.empty(0, np.int64), "after": np.empty(0)})
INTUBATED = ("et/trach", "ett")  # in the text of the verbal GCS component
FEATURES = tuple(MEASUREMENTS)
TIMED_FEATURES = [FEATURES.index(name) for name in (*GCS, "pao2", "fio2")]  # features whose times matter


def first_day(
    files: Mapping[str, Path], admissions: IntArray, admitted: FloatArray, *, progress: Callable[[int], None] | None = None
) -> pd.DataFrame:
    """The 20 measured numbers and the minimum GCS of the first ICU day, NaN if never charted, and the hours that the record of the whole
    stay spans; rows in the order of `admissions`.

    `admitted` are the times of admission to the ICU, in seconds since 1970.
    """
    states, charted, ventilated, masked = _accumulate(files, admissions, admitted, progress)
    events = pd.concat(charted, ignore_index=True).sort_values(["stay", "after"], kind="stable")
    masks = pd.concat([NO_TIMES, *masked], ignore_index=True)
    return pd.DataFrame(
        {f"{name}_{end}": side[name] for name in MIN_MAX_FEATURES for end, side in (("min", states["low"]), ("max", states["high"]))}
        | {"urine": states["total"]["urine"]}
        | {"pao2_fio2_min": _min_oxygen_ratio(events, pd.concat(ventilated, ignore_index=True), masks, len(admissions))}
        | {"gcs_min": _min_gcs(events, len(admissions))}
        | {RECORD: (states["last"].max(axis=1) - states["first"].min(axis=1)) / HOUR}
    )


def _min_gcs(events: pd.DataFrame, stays: int) -> FloatArray:
    """The minimum GCS of each stay."""
    parts = events[events["feature"].isin([FEATURES.index(name) for name in GCS])]
    times = parts[["stay", "after"]].drop_duplicates()
    score = np.zeros(len(times))
    for name, normal in GCS.items():
        part = parts[parts["feature"] == FEATURES.index(name)].drop_duplicates(["stay", "after"], keep="last")
        last = _last_before(times, part[["stay", "after", "value", "intubated"]], MAX_AGE_GCS)
        score += last["value"].fillna(normal).to_numpy()
        if name == "gcs_verbal":
            intubated = last["intubated"].fillna(False).to_numpy(bool)
    score = np.where(intubated, float(sum(GCS.values())), score) if len(times) else score
    return _minimum(times["stay"].to_numpy(), score, stays)


def _min_oxygen_ratio(events: pd.DataFrame, ventilated: pd.DataFrame, masks: pd.DataFrame, stays: int) -> FloatArray:
    """The minimum PaO2 / FiO2 (mmHg) of each stay while ventilated, or with a CPAP or BiPAP mask."""
    pao2 = events[events["feature"] == FEATURES.index("pao2")]
    fio2 = events[events["feature"] == FEATURES.index("fio2")].drop_duplicates(["stay", "after"], keep="last")
    times = pao2[["stay", "after"]]
    last_fio2 = _last_before(times, fio2[["stay", "after", "value"]], MAX_AGE_FIO2)["value"].to_numpy()
    settings = ventilated.drop_duplicates().assign(at=lambda f: f["after"])
    previous = _last_before(times, settings, np.inf)["at"].to_numpy()
    following = _last_before(times.assign(after=-times["after"]), settings.assign(after=-settings["after"]), np.inf)["at"].to_numpy()
    ratio = pao2["value"].to_numpy() / (last_fio2 / 100)
    worn = pao2[["stay"]].merge(masks.groupby("stay")["after"].agg(["min", "max"]), left_on="stay", right_index=True, how="left")
    with_mask = (pao2["after"] >= worn["min"] - BEFORE_MASK) & (pao2["after"] <= worn["max"] + AFTER_MASK)
    kept = ((following - previous <= VENTILATOR_GAP) | with_mask.to_numpy(bool)) & ~np.isnan(ratio)
    return _minimum(pao2["stay"].to_numpy()[kept], ratio[kept], stays)


def _last_before(times: pd.DataFrame, values: pd.DataFrame, max_age: float) -> pd.DataFrame:
    """For each (stay, after) the latest row of `values` up to that time and not older than `max_age`; rows as in `times`."""
    left = times.assign(row=np.arange(len(times))).astype({"after": float}).sort_values("after", kind="stable")
    right = values.astype({"after": float}).sort_values("after", kind="stable")
    return pd.merge_asof(left, right, on="after", by="stay", tolerance=max_age).sort_values("row")


def _minimum(stay: npt.NDArray[np.int64], value: FloatArray, stays: int) -> FloatArray:
    """The minimum value of each stay, NaN if it has none."""
    return np.asarray(pd.Series(value).groupby(stay).min().reindex(range(stays)), dtype=np.float64)


ADMISSION_TABLES = {  # table: the columns that are needed, in lower case
    "ADMISSIONS": ("subject_id", "hadm_id", "admittime", "admission_type", "insurance", "marital_status", "hospital_expire_flag"),
    "PATIENTS": ("subject_id", "dob"),
    "DIAGNOSES_ICD": ("hadm_id", "icd9_code"),
    "SERVICES": ("hadm_id", "transfertime", "curr_service"),
    **EVENT_COLUMNS,
}
ADMISSION_GROUPS = {  # attribute: the reference group, the other group, and the values of that column in the reference group
    "age": (">=78", "<78", None),
    "marital_status": ("single", "not single", ("SINGLE",)),
    "insurance": ("public", "private", ("MEDICARE", "MEDICAID")),
}
INPUT_KINDS = ("stay-averages", "first-day")
FIRST_DAY_TABLES = {  # further columns that "first-day" needs
    "ICUSTAYS": ("hadm_id", "intime"),
    **{table: (TIME_COLUMN, "value") if table == CHART else (TIME_COLUMN,) for table in EVENT_COLUMNS},
}
ADMISSION_TYPES = ("medical", "scheduled surgical", "unscheduled surgical")
PUBLISHED_ROWS = 35_993  # of the paper's table of data sets: 21,595 + 7,199 + 7,199
OLD_AGE = 78
ADULT_AGE = 15
SURROGATE_AGE = 91.4
OLDEST_AGE = 150  # at a higher age, the date of birth was shifted
DISEASE_CODES = {  # first and last ICD-9 codes of five characters, compared as text; shorter codes end in spaces
    "aids": (("042  ", "0449 "),),
    "haematologic_malignancy": (
        ("20000", "20238"), ("20240", "20248"), ("20250", "20382"), ("20400", "20522"), ("20580", "20702"), ("20720", "20892"),
        ("2386 ", "2386 "), ("2733 ", "2733 "),
    ),
    "metastatic_cancer": (("1960 ", "1991 "), ("20970", "20975"), ("20979", "20979"), ("78951", "78951")),
}  # fmt: skip
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
    pick("attribute of mimic-iii", attribute, ADMISSION_GROUPS)
    daily = pick("inputs of mimic-iii", inputs, INPUT_KINDS) == "first-day"
    files = _mimic_files(Path(root), daily)
    stays = _first_adult_admissions(files)
    if daily:  # with the first admission to the ICU
        icu, adults = _read_table(files, "ICUSTAYS").sort_values(["intime", "hadm_id"]).drop_duplicates("hadm_id"), len(stays)
        stays = stays.merge(icu, on="hadm_id", how="inner").reset_index(drop=True)
        if stays.empty:
            raise BadInput(
                f'none of the {adults:,} first admissions of adults is in ICUSTAYS; use tables of one extract, or inputs="stay-averages"'
            )
    hadm = stays["hadm_id"].to_numpy(np.int64)
    reference, other, values = ADMISSION_GROUPS[attribute]
    in_reference = (stays["age"] >= OLD_AGE if values is None else stays[attribute].str.strip().str.upper().isin(values)).to_numpy(bool)
    group = Attribute.of(np.where(in_reference, reference, other), attribute, reference)
    diagnoses, kind = _read_table(files, "DIAGNOSES_ICD"), _admission_type(files, hadm, stays["admission_type"])
    code = diagnoses["icd9_code"].str.strip().str.ljust(5)
    diseases = {
        name: np.isin(hadm, diagnoses["hadm_id"][np.any([code.between(first, last) for first, last in ranges], axis=0)])
        for name, ranges in DISEASE_CODES.items()
    }
    if daily:
        levels = {f"{name}={int(level)}": present == level for name, present in diseases.items() for level in (False, True)}
        kinds = {f"admission_type={name}": kind == name for name in ADMISSION_TYPES}
        fixed = pd.DataFrame({"age": stays["age"] >= OLD_AGE, **levels, **kinds}).astype(float)
    else:
        fixed = stays[["age"]].assign(**diseases, admission_type=kind)
    if attribute == "age" and not attribute_as_input:
        fixed = fixed.drop(columns="age")
    elif attribute != "age" and attribute_as_input:
        fixed[f"{attribute}={reference}"] = in_reference

    # Last, since it takes minutes: errors in the small tables are raised before.
    tables = {table: files[table] for table in EVENT_COLUMNS}
    if daily:
        measured = first_day(tables, hadm, seconds(stays["intime"].to_numpy("datetime64[s]")), progress=progress)
    else:
        measured = stay_means(tables, hadm, progress=progress)
    if measured.isna().all(axis=None):
        raise BadInput(
            f"no row of {', '.join(EVENT_COLUMNS)} in {root} belongs to the {len(stays):,} admissions; use tables of one extract"
        )
    if daily:
        gcs, kept = measured.pop("gcs_min"), np.flatnonzero(measured.pop(RECORD) >= LEAST_RECORD)
        if not len(kept):
            raise BadInput(f"no record of the {len(stays):,} admissions to the ICU spans {LEAST_RECORD} hours; use tables of one extract")
        measured = measured.assign(**{f"gcs_min={level}": (gcs == level).astype(float).where(gcs.notna()) for level in GCS_LEVELS})
    cohort = Cohort(
        FeatureTable(pd.concat([measured, fixed], axis=1)),
        stays["hospital_expire_flag"].to_numpy(np.int64),
        (group,),
        stays["subject_id"].to_numpy(dtype=object),
        stays["hadm_id"].to_numpy(dtype=object),
        "mimic-iii",
    )
    return cohort.take(kept) if daily else cohort


def _mimic_files(root: Path, daily: bool) -> dict[str, Path]:
    """The file of each table. Raises one `BadInput` with every table and column that is missing."""
    more = FIRST_DAY_TABLES if daily else {}
    columns = {table: (*ADMISSION_TABLES.get(table, ()), *more.get(table, ())) for table in ADMISSION_TABLES | more}
    if not root.is_dir():
        raise BadInput(f"no such folder: {root}. It must hold the MIMIC-III tables {', '.join(columns)} as .csv or .csv.gz.")
    present = {path.name.lower(): path for path in root.iterdir() if path.is_file()}
    files, problems = {}, list[str]()
    for table, needed in columns.items():
        path = present.get(f"{table.lower()}.csv") or present.get(f"{table.lower()}.csv.gz")
        if path is None:
            problems.append(f"no table {table}.csv or {table}.csv.gz; get it from physionet.org/content/mimiciii/1.4")
            continue
        files[table] = path
        with collecting(problems):
            names = read_header(path)
            if absent := [column for column in needed if column not in map(str.lower, names)]:
                problems.append(f"{path.name} has no column {', '.join(absent)}; it has {', '.join(names)}")
    raise_all(problems, str(root))
    return files


def _read_table(files: Mapping[str, Path], table: str) -> pd.DataFrame:
    """The needed columns of a small table, names in lower case: ids, the flag and dates parsed, all others as text."""
    needed = ADMISSION_TABLES.get(table) or FIRST_DAY_TABLES[table]
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
            elif column in {"admittime", "transfertime", "dob", "intime"}:
                frame[column] = pd.to_datetime(frame[column])
    except (OSError, ValueError, EOFError) as error:
        raise BadInput(f"{files[table]} cannot be read as the MIMIC-III table {table}: {first_line(error)}") from error
    return frame


def _first_adult_admissions(files: Mapping[str, Path]) -> pd.DataFrame:
    """One row per patient: the earliest admission, if the patient was over 15 then, with the age in years."""
    admissions = _read_table(files, "ADMISSIONS").sort_values(["admittime", "hadm_id"]).drop_duplicates("subject_id")
    patients = _read_table(files, "PATIENTS").drop_duplicates("subject_id")
    stays = admissions.merge(patients, on="subject_id", how="left").sort_values("subject_id")
    # Whole days, since 300 years do not fit into a difference in nanoseconds.
    days = stays["admittime"].to_numpy("datetime64[D]") - stays["dob"].to_numpy("datetime64[D]")
    undated = int(np.isnat(days).sum())
    age = days.astype(np.float64) / DAYS_PER_YEAR
    stays["age"] = np.where(age > OLDEST_AGE, SURROGATE_AGE, age)
    adults = stays[stays["age"] > ADULT_AGE].reset_index(drop=True)
    unlabelled = int((~adults["hospital_expire_flag"].isin([0, 1])).sum())
    problems = []
    if undated:
        problems.append(
            f"{undated:,} of {len(stays):,} patients have no admittime in ADMISSIONS or no dob in PATIENTS; use tables of one extract"
        )
    if unlabelled:
        problems.append(f"hospital_expire_flag must be 0 or 1; {unlabelled:,} of {len(adults):,} first admissions of adults have neither")
    if adults.empty:
        problems.append(f"none of {len(stays):,} first admissions is of a patient over {ADULT_AGE}; nothing is left to learn from")
    raise_all(problems, str(files["ADMISSIONS"].parent))
    return adults


def _admission_type(files: Mapping[str, Path], hadm: IntArray, kind: "pd.Series[str]") -> npt.NDArray[np.str_]:
    """Surgical by the first service of the stay, and scheduled if the admission was elective; every other admission is medical."""
    first = _read_table(files, "SERVICES").sort_values("transfertime").drop_duplicates("hadm_id")
    surgical = np.isin(hadm, first["hadm_id"][first["curr_service"].str.upper().str.contains("SURG", na=False)])
    elective = kind.str.strip().str.upper().eq("ELECTIVE").to_numpy(bool)
    medical, scheduled, unscheduled = ADMISSION_TYPES
    return np.where(surgical, np.where(elective, scheduled, unscheduled), medical)


MIMIC_III = (
    Recipe(
        name="mimic-iii",
        load=mimic_iii,
        files=tuple(
            File(f"{table}.csv", "", f"{PHYSIONET}/mimiciii/1.4", other_names=(f"{table.lower()}.csv",))
            for table in ADMISSION_TABLES | FIRST_DAY_TABLES
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
