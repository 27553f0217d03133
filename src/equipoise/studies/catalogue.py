"""The catalogue of data sets, each with a recipe in `sets`: load one by name, check its files, download them from the publisher."""

import os
import shlex
import urllib.request
import zipfile
import zlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from http.client import HTTPException
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, NamedTuple

from equipoise.data import Cohort
from equipoise.disk import atomic_path, read_bytes, sha256, user_cache
from equipoise.errors import BadInput, Misuse, pick
from equipoise.plugins import Registry
from equipoise.studies.sets import File, Recipe, locate
from equipoise.studies.sets.chest_xrays import CHEST_XRAYS
from equipoise.studies.sets.mimic_iii import MIMIC_III
from equipoise.studies.sets.phantom import PHANTOM
from equipoise.studies.sets.tabular import TABULAR

OpenUrl = Callable[[str], AbstractContextManager[BinaryIO]]
DownloadProgress = Callable[[str, int, int | None], None]  # file, bytes so far, total bytes if the server states them


class FileStatus(NamedTuple):
    """A file of a data set, its path, and 'ok', 'missing' or its problem."""

    file: str
    path: Path | None
    status: str


CATALOGUE = Registry[Recipe]("data_sets")
CATALOGUE.registered.update((recipe.name, recipe) for recipe in (*TABULAR, *PHANTOM, *CHEST_XRAYS, *MIMIC_III))


def load(name: str, root: str | Path | None = None, **options: object) -> Cohort:
    """The cohort of a data set by name, after checking its files.

    - `name`: one of `equipoise data list`.
    - `root`: holds one folder per data set, or is that folder; the default is EQUIPOISE_DATA and then the user's cache. A simulation needs
      no files.
    - `options`: of the data set, such as `attribute_as_input=False`, `size=64` or `alpha=2.0`; an unknown one is an error that lists them.

    >>> len(load("loh", n=50, alpha=2.0))
    50
    """
    advice = "Your own rows are read by eq.Cohort.from_frame(frame, label=..., group=...) or from_images(...)."
    if not isinstance(name, str):
        raise Misuse("eq.load", f"the name of a data set ({', '.join(CATALOGUE)})", name, {"DataFrame": advice, "PurePath": advice})
    if name not in CATALOGUE and Path(name).suffix.lower() in (".csv", ".gz", ".parquet", ".tsv", ".xlsx"):
        raise BadInput(f"eq.load takes the name of a data set ({', '.join(CATALOGUE)}), not a file; got {name!r}. {advice}")
    recipe = recipe_of(name)
    unknown = [option for option in options if option not in recipe.options]
    if unknown:
        raise BadInput(f"data set {name!r} has no option {', '.join(map(repr, unknown))}. Valid: {', '.join(recipe.options)}.")
    if not recipe.files:
        return recipe.load(**options)
    return recipe.load(data_folder(name, root), **options)


def data_folder(name: str, root: str | Path | None = None) -> Path:
    """The folder that `load` reads; raises `BadInput` with the missing files, the folders searched and how to get the files.

    For data that have to be downloaded by hand, one table is enough here: the loader decides which of the others it needs.
    """
    recipe = recipe_of(name)
    folder, states = _best_folder(recipe, root)
    problems = [f"{state.path or state.file} {state.status}" for state in states if state.status != "ok"]
    if problems and not (recipe.by_hand and len(problems) < len(states)):
        searched = ", ".join(map(str, _folders(recipe, root)))
        what = f"none of {', '.join(file.name for file in recipe.files)} is there" if recipe.by_hand else "; ".join(problems)
        command = f"equipoise data fetch {name}" + (f" --root {shlex.quote(str(root))}" if root is not None else "")
        raise BadInput(f"data set {name!r}: {what}. Looked in {searched}. {recipe.by_hand or f'To get the files: {command}'}")
    return folder


def check_files(name: str, root: str | Path | None = None, **folders: str | Path) -> list[FileStatus]:
    """The state of each file of a data set in the folder that `load` would read; empty for a simulation.

    - `name`, `root`: as in `load`.
    - `folders`: options of `load` that name another folder for some of the files.

    A file without a known checksum is 'ok' if it exists.
    """
    recipe = recipe_of(name)
    states = _best_folder(recipe, root)[1]
    return [
        _state(Path(folders[file.option]).expanduser(), file) if file.option in folders else state
        for file, state in zip(recipe.files, states, strict=True)
    ]


def fetch(name: str, root: str | Path | None = None, progress: DownloadProgress | None = None, open_url: OpenUrl | None = None) -> Path:
    """Downloads the files of a data set from its publisher and returns their folder.

    - `name`: of a data set whose files may be fetched by a program; the error for another one says how to get them.
    - `root`: the files go into `root`/name; by default into the user's cache.
    - `progress`: is given the file, the bytes so far and the total, if the server states one.
    - `open_url`: opens a URL; by default that of the standard library.

    Every file is checked before any is written. Existing files with the right checksum are not downloaded again.
    """
    recipe = recipe_of(name)
    if not recipe.files:
        raise BadInput(f"data set {name!r} is simulated and has no files to fetch; load it with equipoise.load({name!r})")
    if recipe.by_hand:
        raise BadInput(f"data set {name!r} cannot be fetched. {recipe.by_hand}")
    folder = (user_cache() if root is None else Path(root).expanduser()) / name
    outdated = [file for file in recipe.files if _state(folder, file).status != "ok"]
    contents = {file.name: _download(file, folder, progress, open_url or _open_url) for file in outdated}
    for file_name, content in contents.items():
        with atomic_path(folder / file_name) as temporary:
            temporary.write_bytes(content)
    return folder


def recipe_of(name: str) -> Recipe:
    return CATALOGUE[pick("data set", name, CATALOGUE)]


def _folders(recipe: Recipe, root: str | Path | None) -> list[Path]:
    # `fetch` without a root writes to the cache, so the cache is searched even if EQUIPOISE_DATA is set.
    roots = [os.environ.get("EQUIPOISE_DATA") or None, user_cache()] if root is None else [root]
    bases = [Path(base).expanduser() for base in roots if base is not None]
    names = recipe.folders or (recipe.name,)
    return [folder for base in bases for folder in (*(base / name for name in names), base)]


def _best_folder(recipe: Recipe, root: str | Path | None) -> tuple[Path, list[FileStatus]]:
    """The folder with the most files that are ok, then with the most files, then the first; and the states of its files."""
    candidates = [(folder, [_state(folder, file) for file in recipe.files]) for folder in _folders(recipe, root)]
    return max(candidates, key=lambda c: (sum(s.status == "ok" for s in c[1]), sum(s.path is not None for s in c[1])))


def _state(folder: Path, file: File) -> FileStatus:
    names = (file.name, *file.other_names)
    paths = (locate(folder / place, name) for place in file.places for name in names)
    path = next(filter(None, paths), None)
    if path is None:
        return FileStatus(" or ".join(names), None, "missing")
    if not file.sha256:
        return FileStatus(path.name, path, "ok")
    try:
        digest = sha256(file.canonical(read_bytes(path)))
    except (OSError, EOFError, zlib.error, BadInput) as error:
        return FileStatus(file.name, path, f"cannot be read ({error})")
    return FileStatus(file.name, path, "ok" if digest == file.sha256 else f"has sha256 {digest}, expected {file.sha256}")


def _download(file: File, folder: Path, progress: DownloadProgress | None, open_url: OpenUrl) -> bytes:
    """The content of a file in the form that is written; raises `BadInput` unless its checksum is right."""
    content = b""
    try:
        with open_url(file.url) as response:
            total = getattr(response, "length", None)
            while chunk := response.read(1 << 16):
                content += chunk
                if progress is not None:
                    progress(file.name, len(content), total)
        if file.member:
            content = zipfile.ZipFile(BytesIO(content)).read(file.member)
        content = file.canonical(content)
    except (OSError, HTTPException) as error:
        raise BadInput(f"cannot download {file.url}: {error}. Check the network, or put {file.name} into {folder} by hand.") from error
    except (zipfile.BadZipFile, KeyError, BadInput) as error:
        raise BadInput(f"what {file.url} sent is not {file.name} ({error}); nothing was written. Try again later.") from error
    if (digest := sha256(content)) != file.sha256:
        raise BadInput(f"{file.url} sent {file.name} with sha256 {digest}, expected {file.sha256}; nothing was written. Try again later.")
    return content


def _open_url(url: str) -> AbstractContextManager[BinaryIO]:
    request = urllib.request.Request(url, headers={"User-Agent": "equipoise"})
    response: AbstractContextManager[BinaryIO] = urllib.request.urlopen(request, timeout=60)
    return response
