"""The SAPS-II inputs of the published MIMIC-III tables: extremes of the first ICU day, streamed like the means in `saps`.

The windows are those of the public MIMIC code: from admission to the ICU to 24 hours later, laboratory values from six hours before. Of a
GCS component that is not charted with the others, the last value within six hours is taken, else the normal one; an intubated patient's
GCS is 15. PaO2 / FiO2 counts while the patient is ventilated, with the last FiO2 of the four hours before: a patient is ventilated between
two charted ventilator settings that are at most eight hours apart. PaO2 is every pO2 of the laboratory, arterial or not. Urine is the sum.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from equipoise.data.attribute import IntArray
from equipoise.data.columns import FloatArray
from equipoise.data.sets.saps import BLOCK, CHART, LAB, MEASURED, read_blocks, rules_of

EXTREMES = (  # features with both their least and their greatest value
    "heart_rate", "systolic_pressure", "temperature", "urea_nitrogen", "white_cells", "potassium", "sodium", "bicarbonate", "bilirubin",
)  # fmt: skip
GCS = {"gcs_verbal": 5, "gcs_motor": 6, "gcs_eyes": 4}  # component: its normal value
LEVELS = tuple(range(3, 16))  # of the least GCS
# Volumes, pressures and settings that are charted of a ventilator only, as in the public MIMIC code.
VENTILATOR = (
    445, 448, 449, 450, 1340, 1486, 1600, 224687, 639, 654, 681, 682, 683, 684, 224684, 224685, 224686, 218, 436, 535, 444, 459, 224697,
    224695, 224696, 224746, 224747, 221, 1, 1211, 1655, 2000, 226873, 224738, 224419, 224750, 227187, 543, 5865, 5866, 224707, 224709,
    224705, 224706, 60, 437, 505, 506, 686, 220339, 224700, 3459, 501, 502, 503, 224702, 223, 667, 668, 669, 670, 671, 672, 224701,
)  # fmt: skip
HOUR = 3_600.0
DAY = 24 * HOUR
BEFORE = {CHART: 0.0, LAB: 6 * HOUR}  # how long before the ICU a value may lie
TOGETHER, BREATH, APART = 6 * HOUR, 4 * HOUR, 8 * HOUR  # how old a component of the GCS, an FiO2, a ventilator setting may be
INTUBATED = ("et/trach", "ett")  # in the text of the verbal component
FEATURES = tuple(MEASURED)


def first_day(
    files: Mapping[str, Path],
    admissions: IntArray,
    admitted: FloatArray,
    *,
    block: int = BLOCK,
    progress: Callable[[int], None] | None = None,
) -> pd.DataFrame:
    """The 20 measured numbers and the least GCS of the first ICU day, NaN where nothing was charted; rows in the order of `admissions`.

    `admitted` is when each patient came to the ICU, in seconds since 1970.
    """
    order = np.argsort(admissions)
    known, since = admissions[order].astype(np.float64), admitted[order]
    shape = (len(admissions), len(MEASURED))
    low, high, total, count = np.full(shape, np.inf), np.full(shape, -np.inf), np.zeros(shape), np.zeros(shape)
    charted: list[pd.DataFrame] = []  # what is looked at in the order of its times
    marks: list[pd.DataFrame] = []
    read = 0
    for table, path in files.items():
        rules = rules_of(table)
        for rows, item, admission, value, time, text in read_blocks(table, path, block, dated=True):
            assert time is not None
            slot = np.take(rules.slot, item, mode="clip")
            ventilator = np.isin(item, VENTILATOR) if table == CHART else np.zeros(rows, bool)
            needed = np.flatnonzero((slot >= 0) | ventilator)
            place = np.minimum(np.searchsorted(known, admission[needed]), len(known) - 1)
            after = time[needed] - since[place]
            ours = (known[place] == admission[needed]) & (after >= -BEFORE.get(table, 0.0) - APART) & (after <= DAY + APART)
            needed, place, after = needed[ours], order[place[ours]], after[ours]
            marked = ventilator[needed] & ~np.isnan(value[needed])
            marks.append(pd.DataFrame({"stay": place[marked], "after": after[marked]}))
            within = (slot[needed] >= 0) & (after >= -BEFORE.get(table, 0.0)) & (after <= DAY)
            needed, place, after, chosen = needed[within], place[within], after[within], slot[needed[within]]
            found, kept = rules.believed(chosen, value[needed])
            feature = rules.feature[chosen]
            cell = (place * shape[1] + feature)[kept]
            for of, into in ((np.minimum, low), (np.maximum, high), (np.add, total)):
                of.at(into.reshape(-1), cell, found[kept])
            np.add.at(count.reshape(-1), cell, 1.0)
            timed = kept & np.isin(feature, TIMED)
            verbal = feature[timed] == FEATURES.index("gcs_verbal")
            intubated = verbal if text is None else verbal & _intubated(text[needed[timed]])
            columns = {
                "stay": place[timed],
                "after": after[timed],
                "feature": feature[timed],
                "value": found[timed],
                "intubated": intubated,
            }
            charted.append(pd.DataFrame(columns))
            read += rows
            if progress is not None:
                progress(read)
    seen = count > 0
    table_of: dict[str, FloatArray] = {}
    for name in EXTREMES:
        j = FEATURES.index(name)
        table_of[f"{name}_min"] = np.where(seen[:, j], low[:, j], np.nan)
        table_of[f"{name}_max"] = np.where(seen[:, j], high[:, j], np.nan)
    urine = FEATURES.index("urine")
    table_of["urine"] = np.where(seen[:, urine], total[:, urine], np.nan)
    events = pd.concat(charted, ignore_index=True).sort_values(["stay", "after"], kind="stable")
    on = pd.concat(marks, ignore_index=True)
    table_of["pao2_fio2_min"] = _least_ratio(events, on, len(admissions))
    table_of["gcs_min"] = _least_gcs(events, len(admissions))
    return pd.DataFrame(table_of)


TIMED = [FEATURES.index(name) for name in (*GCS, "pao2", "fio2")]


def _intubated(texts: npt.NDArray[np.object_]) -> npt.NDArray[np.bool_]:
    """Which texts of the verbal component say that a patient is intubated."""
    return np.array([text is not None and any(word in str(text).lower() for word in INTUBATED) for text in texts], dtype=bool)


def _least_gcs(events: pd.DataFrame, stays: int) -> FloatArray:
    """The least GCS of each stay."""
    parts = events[events["feature"].isin([FEATURES.index(name) for name in GCS])]
    times = parts[["stay", "after"]].drop_duplicates()
    score = np.zeros(len(times))
    for name, normal in GCS.items():
        own = parts[parts["feature"] == FEATURES.index(name)].drop_duplicates(["stay", "after"], keep="last")
        last = _last_before(times, own[["stay", "after", "value", "intubated"]], TOGETHER)
        score += last["value"].fillna(normal).to_numpy()
        if name == "gcs_verbal":
            intubated = last["intubated"].fillna(False).to_numpy(bool)
    score = np.where(intubated, float(sum(GCS.values())), score) if len(times) else score
    return _least(times["stay"].to_numpy(), score, stays)


def _least_ratio(events: pd.DataFrame, marks: pd.DataFrame, stays: int) -> FloatArray:
    """The least PaO2 / FiO2 (mmHg) of each stay while ventilated."""
    oxygen = events[events["feature"] == FEATURES.index("pao2")]
    breathed = events[events["feature"] == FEATURES.index("fio2")].drop_duplicates(["stay", "after"], keep="last")
    fio2 = _last_before(oxygen[["stay", "after"]], breathed[["stay", "after", "value"]], BREATH)["value"].to_numpy()
    on = marks.drop_duplicates().assign(at=lambda f: f["after"])
    before = _last_before(oxygen[["stay", "after"]], on, np.inf)["at"].to_numpy()
    backwards = _last_before(oxygen[["stay", "after"]].assign(after=lambda f: -f["after"]), on.assign(after=lambda f: -f["after"]), np.inf)
    ventilated = backwards["at"].to_numpy() - before <= APART
    ratio = oxygen["value"].to_numpy() / (fio2 / 100)
    good = ventilated & ~np.isnan(ratio)
    return _least(oxygen["stay"].to_numpy()[good], ratio[good], stays)


def _last_before(times: pd.DataFrame, values: pd.DataFrame, within: float) -> pd.DataFrame:
    """For each (stay, after) the row of `values` with the latest time up to it, not older than `within`; rows as in `times`."""
    left = times.assign(row=np.arange(len(times))).sort_values("after", kind="stable")
    right = values.sort_values("after", kind="stable").assign(stamp=lambda f: f["after"])
    joined = pd.merge_asof(left.astype({"after": float}), right.astype({"after": float}), on="after", by="stay").sort_values("row")
    late = joined["after"] - joined["stamp"] > within
    return joined.mask(late)


def _least(stay: npt.NDArray[np.int64], value: FloatArray, stays: int) -> FloatArray:
    found = np.full(stays, np.inf)
    np.minimum.at(found, stay, value)
    return np.where(np.isinf(found), np.nan, found)
