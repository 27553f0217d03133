"""The numbers in a column of any type: of text, of objects, of integers too large for a floating-point number."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd


def numbers_of(column: "pd.Series[Any]") -> npt.NDArray[np.float64]:
    """The numbers (n,) in a column, NaN where there is none; what is too large for one is infinite.

    >>> numbers_of(pd.Series(["1", "x", None, "9" * 400])).tolist()
    [1.0, nan, nan, inf]
    """
    if pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_complex_dtype(column):
        return np.asarray(column.to_numpy(dtype=np.float64, na_value=np.nan))
    return np.array([_number(value) for value in column.astype(object)], dtype=np.float64)


def _number(value: Any) -> float:
    if isinstance(value, str) and (not value.isascii() or "_" in value):  # which Python would read as digits, and no other program
        return float("nan")
    try:
        return float(value)
    except OverflowError:
        return float("inf")
    except (TypeError, ValueError):
        return float("nan")
