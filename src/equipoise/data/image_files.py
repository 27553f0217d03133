"""Which file belongs to which row, by name and never by position, and which rows are frontal views."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from equipoise.data.attribute import level_name
from equipoise.errors import BadInput, raise_all

VIEWS = {  # view: how its names begin; more may follow, as in AP PORTABLE
    "frontal": r"(?i)\s*(?:PA|AP|FRONTAL|POSTERO-?ANTERIOR|ANTERO-?POSTERIOR)\b",
    "PA": r"(?i)\s*(?:PA|POSTERO-?ANTERIOR)\b",
    "AP": r"(?i)\s*(?:AP|ANTERO-?POSTERIOR)\b",
}


def of_view(column: "pd.Series[Any]", view: str = "frontal") -> npt.NDArray[np.bool_]:
    """Which rows are frontal views (PA, AP or frontal, in any case), or of one of these kinds. A row without a view is none."""
    return np.asarray(column.astype("string").str.match(VIEWS[view]).fillna(False), dtype=bool)


def find_files(names: "pd.Series[Any]", folder: str | Path, column: str) -> list[Path]:
    """The file of each name: a path inside the folder, or a file name or its stem anywhere below it; one error for all that are unclear.

    A name without a file stays as it is, to be reported with the broken ones, unless no name at all has one.
    """
    root = Path(folder).expanduser()
    if not root.is_dir():
        raise BadInput(f"no such folder: {folder}. Name the one that holds the images.")
    empty = np.flatnonzero(names.isna().to_numpy())
    texts = names.map(level_name, na_action="ignore").fillna("").tolist()
    paths = [root / text for text in texts]
    problems = (
        [f"image column {column!r}: {len(empty):,} of {len(names):,} rows are empty. Fill them in or leave them out."] if len(empty) else []
    )
    lost = [at for at, path in enumerate(paths) if texts[at] and not path.is_file()]
    below: dict[str, list[Path]] = {}
    for place, _, files in os.walk(root) if lost else ():
        for file in files:
            for key in {file, Path(file).stem}:
                below.setdefault(key, []).append(Path(place) / file)
    for at in lost:
        found = below.get(Path(texts[at]).name, [])
        if len(found) > 1:
            shown = ", ".join(str(path.relative_to(root)) for path in sorted(found)[:3])
            problems.append(f"image {texts[at]!r} may be any of {len(found)} files below {root}: {shown}. Write the path instead.")
        paths[at] = found[0] if len(found) == 1 else paths[at]
    if len(lost) == len(paths) and not any(path.is_file() for path in paths):
        problems.append(
            f"no image of column {column!r} is in {root} or below it; the first is {texts[lost[0]]!r}. Name another folder or column."
        )
    raise_all(problems)
    return paths
