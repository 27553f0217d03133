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
from equipoise.data.mimic_cxr import mimic_cxr
from equipoise.data.mimic_iii import TABLES as MIMIC_III_TABLES
from equipoise.data.mimic_iii import mimic_iii
from equipoise.data.nih import TABLES as NIH_TABLES
from equipoise.data.nih import nih
from equipoise.data.phantom import phantom
from equipoise.data.synthetic import loh, zafar
from equipoise.errors import BadInput, Misuse, pick

OpenUrl = Callable[[str], AbstractContextManager[BinaryIO]]
Progress = Callable[[str, int, int | None], None]  # file, bytes so far, bytes in all where the server says
UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases"
PHYSIONET = "https://physionet.org/content"
MIMIC_IV = ("", "hosp", "core")  # where its tables may lie inside a folder
PROPUBLICA = "https://raw.githubusercontent.com/propublica/compas-analysis/bafff5da3f2e45eca6c2d5055faad269defd135a"


@dataclass(frozen=True)
class File:
    """One original file. What is hashed, and what a fetch writes, is `canonical` of its unzipped content."""

    name: str
    sha256: str  # empty where there are many releases or extracts, and none to compare with
    url: str
    member: str = ""  # the path inside a zip archive; empty where the url is the file itself
    canonical: Callable[[bytes], bytes] = bytes
    other_names: tuple[str, ...] = ()  # any of them will do
    places: tuple[str, ...] = ("",)  # where it may lie inside the folder


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
    paper: str = ""  # rows x inputs of the paper's table of data sets
    folders: tuple[str, ...] = ()  # what its folder may be called, if not by its name
    by_hand: str = ""  # why no program can fetch the files, and where a person gets them

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
        paper="45,222 x 98",
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
        paper="30,488 x 57",
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
        paper="6,167 x 401",
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
    "nih": Recipe(
        name="nih",
        load=nih,
        files=(File(NIH_TABLES[0], "", "https://nihcc.app.box.com/v/ChestXray-NIHCC", other_names=NIH_TABLES[1:]),),
        attribute="sex",
        description="NIH ChestX-ray14, or a part of it: a finding against none on frontal chest X-rays",
        citation="Wang, Peng, Lu, Lu, Bagheri and Summers, CVPR, 2017; provided by the NIH Clinical Center",
        licence="no restrictions, with attribution",
        rows=112_120,
        features=224 * 224,
        folders=("cxr-nih", "nih"),
        by_hand="The images are 42 GB behind a web page for people: get Data_Entry_2017_v2020.csv and the images from "
        "https://nihcc.app.box.com/v/ChestXray-NIHCC and name their folder with --root.",
    ),
    "mimic-cxr": Recipe(
        name="mimic-cxr",
        load=mimic_cxr,
        files=(
            *(File(f"mimic-cxr-2.0.0-{table}.csv", "", f"{PHYSIONET}/mimic-cxr-jpg/2.0.0") for table in ("metadata", "chexpert", "split")),
            *(File(f"{table}.csv", "", f"{PHYSIONET}/mimiciv", places=MIMIC_IV) for table in ("patients", "admissions")),
        ),
        attribute="sex",
        description="MIMIC-CXR-JPG: a finding against none on frontal chest X-rays; sex and ethnicity from MIMIC-IV",
        citation="Johnson et al., MIMIC-CXR-JPG 2.0.0, PhysioNet, 2019, doi:10.13026/8360-t248",
        licence="PhysioNet Credentialed Health Data License",
        rows=377_110,
        features=224 * 224,
        paper="12,322 (sex) or 6,036 (ethnicity) x 224 x 224 px, after balancing",
        folders=("mimic-cxr", "mimic-cxr-jpg"),
        by_hand="It is handed out to credentialed users who have signed its data use agreement: get the tables and files/ from "
        f"{PHYSIONET}/mimic-cxr-jpg/2.0.0, patients and admissions of MIMIC-IV from {PHYSIONET}/mimiciv, and name the folder with --root.",
    ),
    "mimic-iii": Recipe(
        name="mimic-iii",
        load=mimic_iii,
        files=tuple(
            File(f"{table}.csv", "", f"{PHYSIONET}/mimiciii/1.4", other_names=(f"{table.lower()}.csv",)) for table in MIMIC_III_TABLES
        ),
        attribute="age",
        description="intensive care in Boston 2001-2012: who dies in hospital",
        citation="Johnson et al., MIMIC-III v1.4, Scientific Data 3:160035, 2016, doi:10.13026/C2XW26",
        licence="PhysioNet Credentialed Health Data License",
        rows=38_597,
        features=22,
        paper="35,993 x 43 (age) or 44, with inputs='first-day'",
        by_hand="It is handed out to credentialed users who have signed its data use agreement: get the tables from "
        f"{PHYSIONET}/mimiciii/1.4 and name their folder with --root.",
    ),
}


def load(name: str, root: str | Path | None = None, **options: object) -> Cohort:
    """The cohort of a data set by name, its files checked first.

    `root` holds one folder a data set, or is that folder; without it EQUIPOISE_DATA and then the user's cache are searched.
    A simulation needs none.

    >>> len(load("loh", n=50, alpha=2.0))
    50
    """
    own = "Your own rows are read by eq.Cohort.from_frame(frame, label=..., group=...) or from_images(...)."
    if not isinstance(name, str):
        raise Misuse("eq.load", f"the name of a data set ({', '.join(CATALOGUE)})", name, {"DataFrame": own, "PurePath": own})
    if name not in CATALOGUE and Path(name).suffix.lower() in (".csv", ".gz", ".parquet", ".tsv", ".xlsx"):
        raise BadInput(f"eq.load takes the name of a data set ({', '.join(CATALOGUE)}), not a file; got {name!r}. {own}")
    recipe = _recipe(name)
    unknown = [option for option in options if option not in recipe.options]
    if unknown:
        raise BadInput(f"data set {name!r} has no option {', '.join(map(repr, unknown))}. Valid: {', '.join(recipe.options)}.")
    if not recipe.files:
        return recipe.load(**options)
    return recipe.load(data_folder(name, root), **options)


def data_folder(name: str, root: str | Path | None = None) -> Path:
    """The folder that `load` reads, or an error that says what is missing there, where it was looked for and how to get it.

    Of data that are fetched by hand it is enough that one table is there: which of the others are needed, their loader knows.
    """
    recipe = _recipe(name)
    folder, states = _best(recipe, root)
    problems = [f"{state.path or state.file} {state.status}" for state in states if state.status != "ok"]
    if problems and not (recipe.by_hand and len(problems) < len(states)):
        looked = ", ".join(map(str, _folders(recipe, root)))
        what = f"none of {', '.join(file.name for file in recipe.files)} is there" if recipe.by_hand else "; ".join(problems)
        raise BadInput(f"data set {name!r}: {what}. Looked in {looked}. {recipe.by_hand or 'To get the files: ' + _command(name, root)}")
    return folder


def check_files(name: str, root: str | Path | None = None) -> list[FileStatus]:
    """The state of each file of a data set, where `load` would read it; empty for a simulation.

    Where no checksum is known, a file that is there is 'ok'.
    """
    return _best(_recipe(name), root)[1]


def file_states(name: str, folder: str | Path) -> list[FileStatus]:
    """The state of each file of a data set in one folder."""
    return [_state(Path(folder).expanduser(), file) for file in _recipe(name).files]


def fetch(name: str, root: str | Path | None = None, progress: Progress | None = None, open_url: OpenUrl | None = None) -> Path:
    """The folder that now holds a data set's files, downloaded from its publisher into `root`/name, by default in the user's cache.

    Every file is checked before any is written. Files that are there and right are not downloaded again.
    """
    recipe = _recipe(name)
    if not recipe.files:
        raise BadInput(f"data set {name!r} is simulated and has no files to fetch; load it with equipoise.load({name!r})")
    if recipe.by_hand:
        raise BadInput(f"data set {name!r} cannot be fetched. {recipe.by_hand}")
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
    names = recipe.folders or (recipe.name,)
    return [folder for base in bases for folder in (*(base / name for name in names), base)]


def _best(recipe: Recipe, root: str | Path | None) -> tuple[Path, list[FileStatus]]:
    """The first of the folders with most files that are right, then with most files, and their states."""
    found = [(folder, [_state(folder, file) for file in recipe.files]) for folder in _folders(recipe, root)]
    return max(found, key=lambda one: (sum(s.status == "ok" for s in one[1]), sum(s.path is not None for s in one[1])))


def _state(folder: Path, file: File) -> FileStatus:
    names = (file.name, *file.other_names)
    path = next((there for place in file.places for name in names if (there := locate(folder / place, name))), None)
    if path is None:
        return FileStatus(" or ".join(names), None, "missing")
    if not file.sha256:
        return FileStatus(path.name, path, "ok")
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
