"""The catalogue of data sets: each one is an entry in a table. Load one by name, check its files, fetch them from the publisher."""

import inspect
import os
import shlex
import urllib.request
import zipfile
import zlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from http.client import HTTPException
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, NamedTuple

from equipoise.data.adult import adult
from equipoise.data.bank import bank
from equipoise.data.cohort import Cohort
from equipoise.data.compas import anonymous, compas
from equipoise.data.files import locate, read_bytes, replacing, sha256, user_cache
from equipoise.data.phantom import phantom
from equipoise.data.synthetic import loh, zafar
from equipoise.errors import BadInput, pick

OpenUrl = Callable[[str], AbstractContextManager[BinaryIO]]
Progress = Callable[[str, int, int | None], None]  # file, bytes so far, bytes in all where the server says
UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases"
PROPUBLICA = "https://raw.githubusercontent.com/propublica/compas-analysis/bafff5da3f2e45eca6c2d5055faad269defd135a"


@dataclass(frozen=True)
class File:
    """One original file. What is hashed, and what a fetch writes, is `canonical` of its unzipped content."""

    name: str
    sha256: str
    url: str
    member: str = ""  # the path inside a zip archive; empty where the url is the file itself
    canonical: Callable[[bytes], bytes] = bytes


@dataclass(frozen=True)
class Recipe:
    """How a data set becomes a cohort: `load` takes the folder of its files, or nothing where it is simulated, and options."""

    name: str
    load: Callable[..., Cohort]
    files: tuple[File, ...]
    attribute: str
    description: str
    citation: str
    licence: str
    rows: int
    features: int

    @property
    def options(self) -> tuple[str, ...]:
        """The names of the options that `load` takes."""
        names = tuple(inspect.signature(self.load).parameters)
        return names[1:] if self.files else names


class FileStatus(NamedTuple):
    """A file of a data set, where it is, and 'ok', 'missing' or what is wrong with it."""

    file: str
    path: Path | None
    status: str


CATALOGUE: dict[str, Recipe] = {
    "adult": Recipe(
        name="adult",
        load=adult,
        files=(
            File("adult.data", "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d", f"{UCI}/adult/adult.data"),
            File("adult.test", "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05", f"{UCI}/adult/adult.test"),
        ),
        attribute="sex",
        description="US census 1994: who earns over 50,000 dollars a year",
        citation="Becker and Kohavi, Adult, UCI Machine Learning Repository, 1996, doi:10.24432/C5XW20",
        licence="CC BY 4.0",
        rows=45_222,
        features=98,
    ),
    "bank": Recipe(
        name="bank",
        load=bank,
        files=(
            File(
                "bank-additional-full.csv",
                "74adfc578bf77a7ff4bb1ba4a9f8709d9e3c6907342959c2c8416847e0afb4d8",
                f"{UCI}/00222/bank-additional.zip",
                member="bank-additional/bank-additional-full.csv",
            ),
        ),
        attribute="age",
        description="Portuguese bank 2008-2010: who subscribes to a term deposit when called",
        citation="Moro, Cortez and Rita, Decision Support Systems 62:22-31, 2014, doi:10.24432/C5K306",
        licence="CC BY 4.0",
        rows=30_488,
        features=57,
    ),
    "compas": Recipe(
        name="compas",
        load=compas,
        files=(
            File(
                "compas-scores-two-years.csv",
                "98de31c0d69f9bc205913c0293b4c52f7f8570b7368a9d4072dc38616f01c99a",
                f"{PROPUBLICA}/compas-scores-two-years.csv",
                canonical=anonymous,
            ),
        ),
        attribute="race",
        description="Broward County 2013-2014: which defendants are charged again within two years",
        citation="Angwin, Larson, Mattu and Kirchner, Machine Bias, ProPublica, 2016",
        licence="none stated (public records, published by ProPublica)",
        rows=6_167,
        features=401,
    ),
    "loh": Recipe(
        name="loh",
        load=loh,
        files=(),
        attribute="A",
        description="simulated: the label depends on A through an interaction, as strongly as alpha says",
        citation="Loh, Cao and Zhou, WIREs Data Mining and Knowledge Discovery 9(5), 2019",
        licence="simulated",
        rows=30_000,
        features=21,
    ),
    "zafar": Recipe(
        name="zafar",
        load=zafar,
        files=(),
        attribute="A",
        description="simulated: two Gaussian classes seen through a random network, A tied to the label by an angle",
        citation="Zafar, Valera, Gomez Rodriguez and Gummadi, AISTATS, PMLR 54:962-970, 2017",
        licence="simulated",
        rows=30_000,
        features=501,
    ),
    "phantom": Recipe(
        name="phantom",
        load=phantom,
        files=(),
        attribute="sex",
        description="simulated chest X-rays: a widened cardiomediastinum, harder to see in women, as much as hardness says",
        citation="Equipoise",
        licence="simulated",
        rows=2_000,
        features=64 * 64,
    ),
}


def load(name: str, root: str | Path | None = None, **options: object) -> Cohort:
    """The cohort of a data set by name, its files checked first.

    `root` holds one folder a data set, or is that folder; without it EQUIPOISE_DATA and then the user's cache are searched.
    A simulation needs none.

    >>> len(load("loh", n=50, alpha=2.0))
    50
    """
    recipe = _recipe(name)
    unknown = [option for option in options if option not in recipe.options]
    if unknown:
        raise BadInput(f"data set {name!r} has no option {', '.join(map(repr, unknown))}. Valid: {', '.join(recipe.options)}.")
    if not recipe.files:
        return recipe.load(**options)
    folder, states = _best(recipe, root)
    problems = [f"{state.path or state.file} {state.status}" for state in states if state.status != "ok"]
    if problems:
        looked = ", ".join(map(str, _folders(recipe, root)))
        raise BadInput(f"data set {name!r}: {'; '.join(problems)}. Looked in {looked}. To get the files: {_command(name, root)}")
    return recipe.load(folder, **options)


def check(name: str, root: str | Path | None = None) -> list[FileStatus]:
    """The state of each file of a data set, where `load` would read it; empty for a simulation."""
    return _best(_recipe(name), root)[1]


def fetch(name: str, root: str | Path | None = None, progress: Progress | None = None, open_url: OpenUrl | None = None) -> Path:
    """The folder that now holds a data set's files, downloaded from its publisher into `root`/name, by default in the user's cache.

    Every file is checked before any is written. Files that are there and right are not downloaded again.
    """
    recipe = _recipe(name)
    if not recipe.files:
        raise BadInput(f"data set {name!r} is simulated and has no files to fetch; load it with equipoise.load({name!r})")
    folder = (user_cache() if root is None else Path(root).expanduser()) / name
    wanted = [file for file in recipe.files if _state(folder, file).status != "ok"]
    contents = {file.name: _download(file, folder, progress, open_url or _open_url) for file in wanted}
    for file_name, content in contents.items():
        with replacing(folder / file_name) as temporary:
            temporary.write_bytes(content)
    return folder


def _recipe(name: str) -> Recipe:
    return CATALOGUE[pick("data set", name, CATALOGUE)]


def _folders(recipe: Recipe, root: str | Path | None) -> list[Path]:
    # A fetch without a root writes to the cache, so a data root that lacks the files must not hide it.
    roots = [os.environ.get("EQUIPOISE_DATA") or None, user_cache()] if root is None else [root]
    bases = [Path(base).expanduser() for base in roots if base is not None]
    return [folder for base in bases for folder in (base / recipe.name, base)]


def _best(recipe: Recipe, root: str | Path | None) -> tuple[Path, list[FileStatus]]:
    """The first of the folders with most files that are right, then with most files, and their states."""
    found = [(folder, [_state(folder, file) for file in recipe.files]) for folder in _folders(recipe, root)]
    return max(found, key=lambda one: (sum(s.status == "ok" for s in one[1]), sum(s.path is not None for s in one[1])))


def _state(folder: Path, file: File) -> FileStatus:
    path = locate(folder, file.name)
    if path is None:
        return FileStatus(file.name, None, "missing")
    try:
        found = sha256(file.canonical(read_bytes(path)))
    except (OSError, EOFError, zlib.error, BadInput) as error:
        return FileStatus(file.name, path, f"cannot be read ({error})")
    return FileStatus(file.name, path, "ok" if found == file.sha256 else f"has sha256 {found}, expected {file.sha256}")


def _command(name: str, root: str | Path | None) -> str:
    return f"equipoise data fetch {name}" + (f" --root {shlex.quote(str(root))}" if root is not None else "")


def _download(file: File, folder: Path, progress: Progress | None, open_url: OpenUrl) -> bytes:
    """The content of a file as it will be written, once its checksum is right."""
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
    if (found := sha256(content)) != file.sha256:
        raise BadInput(f"{file.url} sent {file.name} with sha256 {found}, expected {file.sha256}; nothing was written. Try again later.")
    return content


def _open_url(url: str) -> AbstractContextManager[BinaryIO]:
    request = urllib.request.Request(url, headers={"User-Agent": "equipoise"})
    response: AbstractContextManager[BinaryIO] = urllib.request.urlopen(request, timeout=60)
    return response
