"""Where a study's data come from: a set of the catalogue, or a file of the user's own."""

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_type_hints

from equipoise.data import CATALOGUE, Cohort, check_files, cohort_in, data_folder, file_states, load, read_table, sha256, user_cache
from equipoise.errors import BadInput, pick

SOURCES = tuple(CATALOGUE)
OURS = ("root", "progress", "cache", "workers")  # arguments of a loader that change no number: the run sees to them
HASHED = 2**26  # bytes of a table that is known by its content; a larger one by its length, to spare reading it


def option_types(source: str) -> dict[str, Any]:
    """The options that a source takes and their types."""
    loader = CATALOGUE[pick("data", source, SOURCES)].load
    hints = get_type_hints(loader)
    return {name: hints[name] for name in inspect.signature(loader).parameters if name not in OURS}


def load_source(source: str, root: str | Path | None, options: Mapping[str, Any], progress: Callable[[int], None] | None = None) -> Cohort:
    """The cohort of a source with these options. Pixels lie in a file of the user's cache, so that a process is sent its name alone.

    `progress` is told how many more images are decoded.
    """
    mapped = {"cache": user_cache() / "images", "progress": progress} if _is_images(source) else {}
    return load(source, root, **options, **mapped)


def load_file(path: Path, **columns: Any) -> Cohort:
    """The cohort in a CSV or Parquet file."""
    group, label, bins = columns["group"], columns["label"], columns.get("bins") or {}
    groups = [group] if isinstance(group, str) else group
    text = {name for name in (columns.get("patient"), columns.get("id"), *groups) if name is not None and name not in bins}
    words = [label] if columns.get("positive") is not None else []
    return cohort_in(read_table(path, text=text, words=words), text, name=path.name, **columns)


def signature(source: str, root: str | Path | None, options: Mapping[str, Any]) -> str:
    """What tells the files of a source from others, or an error that says what is missing.

    The catalogue's own files have known checksums, so there is nothing to tell; of tables without one, names and content do. Images are
    taken to belong to their tables.
    """
    recipe = CATALOGUE[source]
    if not recipe.by_hand:
        wrong = [f"{state.file} {state.status}" for state in check_files(source, root) if state.status != "ok"]
        if wrong:
            place = "" if root is None else f" --root {root}"
            raise BadInput(f"data set {source!r}: {'; '.join(wrong)}. To get the files: equipoise data fetch {source}{place}")
        return ""
    elsewhere = [Path(options["mimic_iv"])] if options.get("mimic_iv") else []
    found = [state.path for folder in [data_folder(source, root), *elsewhere] for state in file_states(source, folder)]
    return sha256(repr(sorted({_told(path) for path in found if path is not None})).encode())


def _told(path: Path) -> tuple[str, str]:
    size = path.stat().st_size
    return path.name.lower(), sha256(path.read_bytes()) if size <= HASHED else str(size)


def _is_images(source: str) -> bool:
    return "cache" in inspect.signature(CATALOGUE[source].load).parameters
