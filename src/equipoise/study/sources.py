"""Where a study's data come from: a set of the catalogue, MIMIC-III, or a file of the user's own."""

import inspect
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_type_hints

from equipoise.data import catalogue
from equipoise.data.cohort import Cohort
from equipoise.data.files import read_table, sha256, user_cache
from equipoise.data.mimic_iii import TABLES, mimic_iii
from equipoise.errors import BadInput, pick

FOLDERS: dict[str, Callable[..., Cohort]] = {"mimic-iii": mimic_iii}  # loaders of credentialed data, which take the folder of the tables
SOURCES = (*catalogue.CATALOGUE, *FOLDERS)


def option_types(source: str) -> dict[str, Any]:
    """The options that a source takes and their types."""
    pick("data", source, SOURCES)
    loader = FOLDERS[source] if source in FOLDERS else catalogue.CATALOGUE[source].load
    taken = ("progress",) if source in FOLDERS else ()
    names = [p.name for p in inspect.signature(loader).parameters.values() if p.name not in ("root", *taken)]
    hints = get_type_hints(loader)
    return {name: hints[name] for name in names}


def load_source(source: str, root: str | Path | None, options: Mapping[str, Any]) -> Cohort:
    """The cohort of a source with these options."""
    if source in FOLDERS:
        return FOLDERS[source](_folder(source, root), **options)
    return catalogue.load(source, root, **options)


def load_file(path: Path, **columns: Any) -> Cohort:
    """The cohort in a CSV or Parquet file."""
    return Cohort.from_frame(read_table(path), name=path.name, **columns)


def signature(source: str, root: str | Path | None) -> str:
    """What tells the files of a source from others, or an error that says what is missing.

    The catalogue's files have known checksums, so there is nothing to tell; of credentialed tables, names and sizes do.
    """
    if source in FOLDERS:
        folder = _folder(source, root)
        sizes = sorted((p.name.lower(), p.stat().st_size) for p in folder.iterdir() if p.name.upper().split(".")[0] in TABLES)
        return sha256(repr(sizes).encode())
    wrong = [f"{state.file} {state.status}" for state in catalogue.check(source, root) if state.status != "ok"]
    if wrong:
        place = "" if root is None else f" --root {root}"
        raise BadInput(f"data set {source!r}: {'; '.join(wrong)}. To get the files: equipoise data fetch {source}{place}")
    return ""


def _folder(source: str, root: str | Path | None) -> Path:
    """The folder with the tables: `root`/source, or the root itself where the tables lie in it."""
    base = Path(root or os.environ.get("EQUIPOISE_DATA") or user_cache()).expanduser()
    folder = base / source if (base / source).is_dir() else base
    if not folder.is_dir() or not any(p.name.upper().startswith("ADMISSIONS.CSV") for p in folder.iterdir()):
        raise BadInput(
            f"{source}: no ADMISSIONS.csv or ADMISSIONS.csv.gz in {base / source} or {base}. "
            "Get the tables from physionet.org (credentialed access) and name their folder with --root."
        )
    return folder
