"""The measured SAPS-II features of MIMIC-III as data, and their mean over an admission, streamed from tables that do not fit into memory.

The items are those of Purushotham et al. (J. Biomed. Inform. 2018), checked against D_ITEMS and D_LABITEMS, with three changes: item
225309 (ART BP Systolic) is added; 40086 is left out, since D_ITEMS calls it a drain and not urine; so are 227488 and 227489 (irrigation),
since volume in and volume out are paired too loosely for their difference to be urine. PaO2 is every pO2 of the laboratory, arterial or
not, and the verbal GCS of an intubated patient is 1, as charted. A value outside the plausible range, or one that the hospital marked as
an error, is dropped.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from equipoise.data.attribute import IntArray
from equipoise.data.columns import FloatArray
from equipoise.errors import BadInput

CHART, LAB, OUTPUT = "CHARTEVENTS", "LABEVENTS", "OUTPUTEVENTS"
COLUMNS = {  # table: admission, item, value, and the mark of an error where the table has one
    CHART: ("hadm_id", "itemid", "valuenum", "error"),
    LAB: ("hadm_id", "itemid", "valuenum"),
    OUTPUT: ("hadm_id", "itemid", "value", "iserror"),
}
TIME = "charttime"  # in every table
BLOCK = 1 << 20  # bytes; larger blocks take more memory and are no faster
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Items:
    """Items of one table. A charted value up to `upto` means scale * value + shift, one above it means itself."""

    table: str
    ids: tuple[int, ...]
    scale: float = 1.0
    shift: float = 0.0
    upto: float = inf


@dataclass(frozen=True)
class Measurement:
    """One feature: its unit, the range in which a value is believed (both ends included), and where it is charted.

    >>> MEASURED["heart_rate"].unit, [items.ids for items in MEASURED["heart_rate"].sources]
    ('1/min', [(211, 220045)])
    """

    unit: str
    low: float
    high: float
    sources: tuple[Items, ...]


_URINE_CAREVUE = (40055, 40056, 40057, 40069, 40085, 40094, 40096, 40405, 40428, 40473, 40651, 40715, 43175)
_URINE_METAVISION = (226557, 226558, 226559, 226560, 226561, 226563, 226564, 226565, 226567, 226584)
_FAHRENHEIT = {"scale": 5 / 9, "shift": -160 / 9}
_PERCENT = {"scale": 100.0, "upto": 1.0}  # the same item holds 0.4 in one row and 40 in the next

MEASURED = {
    "gcs_verbal": Measurement("points", 1, 5, (Items(CHART, (723, 223900)),)),
    "gcs_motor": Measurement("points", 1, 6, (Items(CHART, (454, 223901)),)),
    "gcs_eyes": Measurement("points", 1, 4, (Items(CHART, (184, 220739)),)),
    "systolic_pressure": Measurement("mmHg", 1, 400, (Items(CHART, (51, 442, 455, 6701, 220050, 220179, 225309)),)),
    "heart_rate": Measurement("1/min", 1, 300, (Items(CHART, (211, 220045)),)),
    "temperature": Measurement("°C", 20, 45, (Items(CHART, (676, 223762)), Items(CHART, (678, 223761), **_FAHRENHEIT))),
    "pao2": Measurement("mmHg", 10, 800, (Items(LAB, (50821,)),)),
    "fio2": Measurement("%", 21, 100, (Items(CHART, (190, 3420, 3422, 223835), **_PERCENT), Items(LAB, (50816,), **_PERCENT))),
    "urine": Measurement("mL a reading", 0, 5000, (Items(OUTPUT, _URINE_CAREVUE + _URINE_METAVISION),)),
    "urea_nitrogen": Measurement("mg/dL", 1, 300, (Items(LAB, (51006,)),)),
    "white_cells": Measurement("1000/µL", 0.1, 1000, (Items(LAB, (51300, 51301)),)),
    "bicarbonate": Measurement("mmol/L", 1, 100, (Items(LAB, (50882,)),)),
    "sodium": Measurement("mmol/L", 80, 200, (Items(LAB, (50824, 50983)),)),
    "potassium": Measurement("mmol/L", 0.5, 30, (Items(LAB, (50822, 50971)),)),
    "bilirubin": Measurement("mg/dL", 0.1, 150, (Items(LAB, (50885,)),)),
}


@dataclass(frozen=True, eq=False)
class Rules:
    """What to do with each item of one table: `slot[itemid]` is a position in the other arrays, -1 for an item that is not needed."""

    slot: npt.NDArray[np.int16]
    feature: IntArray
    scale: FloatArray
    shift: FloatArray
    upto: FloatArray
    low: FloatArray
    high: FloatArray

    def believed(self, slot: npt.NDArray[np.int16], charted: FloatArray) -> tuple[FloatArray, Bools]:
        """The values in their units, and which of them lie in the range of their feature."""
        found = np.where(charted <= self.upto[slot], self.scale[slot] * charted + self.shift[slot], charted)
        return found, (found >= self.low[slot]) & (found <= self.high[slot])


class Block(NamedTuple):
    """Some rows of a table. Times are seconds since 1970, NaN where there is none; texts come with CHARTEVENTS."""

    rows: int
    item: npt.NDArray[np.int32]
    admission: FloatArray
    value: FloatArray  # NaN for a row marked as an error
    time: FloatArray | None = None
    text: npt.NDArray[np.object_] | None = None


def stay_means(
    files: Mapping[str, Path],
    admissions: IntArray,
    *,
    block: int = BLOCK,
    progress: Callable[[int], None] | None = None,
) -> pd.DataFrame:
    """The mean of each measured feature in each admission, NaN where it was never charted; rows in the order of `admissions`.

    The state is a sum and a count for each admission and feature, so memory does not grow with the tables. Rows are added one by one
    in the order of the files: the result is the same to the bit for every block size. `progress` gets the number of rows read so far.
    """
    order = np.argsort(admissions)
    known = admissions[order].astype(np.float64)
    shape = (len(admissions), len(MEASURED))
    total, count, read = np.zeros(shape), np.zeros(shape), 0
    for table, path in files.items():
        rules = rules_of(table)
        for rows, item, admission, value, *_ in read_blocks(table, path, block):
            slot = np.take(rules.slot, item, mode="clip")
            needed = np.flatnonzero(slot >= 0)
            place = np.minimum(np.searchsorted(known, admission[needed]), len(known) - 1)
            slot = slot[needed]
            found, kept = rules.believed(slot, value[needed])
            kept &= known[place] == admission[needed]
            cell = order[place[kept]] * shape[1] + rules.feature[slot[kept]]
            np.add.at(total.reshape(-1), cell, found[kept])
            np.add.at(count.reshape(-1), cell, 1.0)
            read += rows
            if progress is not None:
                progress(read)
    mean = np.divide(total, count, out=np.full(shape, np.nan), where=count > 0)
    return pd.DataFrame(mean, columns=list(MEASURED))


def rules_of(table: str) -> Rules:
    rows = [
        (item, feature, s.scale, s.shift, s.upto, m.low, m.high)
        for feature, m in enumerate(MEASURED.values())
        for s in m.sources
        if s.table == table
        for item in s.ids
    ]
    item, feature, *numbers = (np.array(column) for column in zip(*rows, strict=True))
    # One more than the largest, so that an unknown item is clipped to a place that says "not needed".
    slot = np.full(item.max() + 2, -1, dtype=np.int16)
    slot[item] = np.arange(len(item))
    return Rules(slot, feature, *(column.astype(np.float64) for column in numbers))


def read_blocks(table: str, path: Path, block: int = BLOCK, *, dated: bool = False) -> Iterator[Block]:
    """The rows of a table, block by block, with times and texts if `dated`."""
    import pyarrow as pa
    from pyarrow import csv

    header = {name.lower(): name for name in read_header(path)}
    # Admissions and marks as floats: both have gaps, and a table that went through pandas holds "142345.0".
    types = dict(zip(COLUMNS[table], (pa.float64(), pa.int32(), pa.float64(), pa.float64()), strict=False))
    if dated:
        types |= {TIME: pa.timestamp("s")} | ({"value": pa.string()} if table == CHART else {})
    names = [header[column] for column in types]
    try:
        reader = csv.open_csv(
            str(path),
            read_options=csv.ReadOptions(use_threads=False, block_size=block),
            parse_options=csv.ParseOptions(newlines_in_values=True),
            convert_options=csv.ConvertOptions(include_columns=names, column_types=dict(zip(names, types.values(), strict=True))),
        )
        for batch in reader:
            columns = dict(zip(types, batch.columns, strict=True))
            admission, item, value, *mark = (columns[name] for name in COLUMNS[table])
            charted = value.to_numpy(zero_copy_only=False)
            if mark and mark[0].null_count < batch.num_rows:
                charted = np.where(mark[0].to_numpy(zero_copy_only=False) == 1, np.nan, charted)
            yield Block(
                batch.num_rows,
                item.fill_null(-1).to_numpy(zero_copy_only=False),
                admission.to_numpy(zero_copy_only=False),
                charted,
                seconds(columns[TIME].to_numpy(zero_copy_only=False)) if dated else None,
                columns["value"].to_numpy(zero_copy_only=False) if dated and table == CHART else None,
            )
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise BadInput(f"{path} cannot be read as the MIMIC-III table {table}: {reason}. Download or unpack it again.") from error


def seconds(times: npt.NDArray[np.datetime64]) -> FloatArray:
    """Seconds since 1970; NaN for a time that is missing."""
    whole = times.astype("datetime64[s]")
    return np.where(np.isnat(whole), np.nan, whole.astype(np.int64).astype(np.float64))


def read_header(path: Path) -> list[str]:
    """The column names of a CSV file, gzipped or not, as they are written."""
    try:
        return [str(name).strip() for name in pd.read_csv(path, nrows=0).columns]
    except (OSError, ValueError, EOFError) as error:
        raise BadInput(f"{path} cannot be read: {str(error).splitlines()[0]}. Download or unpack it again.") from error
