"""`equipoise data`: list, check and fetch the data sets; list and clear the cached images."""

from __future__ import annotations

import shlex
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from equipoise import studies
from equipoise.cli.app import Command
from equipoise.cli.console import JsonOption, RootOption, bar, out, say, to_json
from equipoise.errors import BadInput, pick, raise_all

if TYPE_CHECKING:
    from equipoise.data import ImageCache

data = typer.Typer(
    no_args_is_help=True,
    help="""Data sets of the paper: list them, check their files, download them from the publisher; manage cached images.

    [bold]Example:[/bold] equipoise data list""",
)


@data.command("list", cls=Command)
def data_list(as_json: JsonOption = False) -> None:
    """List the data sets that `equipoise.load` reads.

    [bold]Example:[/bold] equipoise data list
    """
    recipes = studies.CATALOGUE.values()
    if as_json:
        keys = ("name", "description", "attribute", "rows", "features", "paper", "citation", "licence")
        print(to_json([{key: getattr(recipe, key) for key in keys} | {"options": list(recipe.options)} for recipe in recipes]))
        return
    for recipe in recipes:
        about = f"{recipe.rows:>7,} rows x {recipe.features:>3}  by {recipe.attribute}: {recipe.description}"
        out.print(Text.assemble((f"{recipe.name:10}", "bold"), about), soft_wrap=True)
        if recipe.paper:
            say(f"        In the paper: {recipe.paper}.", "dim")
        say(f"        {recipe.citation}. Licence: {recipe.licence}.", "dim")


@data.command("check", cls=Command)
def data_check(
    name: Annotated[list[str] | None, typer.Argument(help="Data sets.", show_default="all with files")] = None,
    root: RootOption = None,
    mimic_iv: Annotated[Path | None, typer.Option(help="Folder of MIMIC-IV, for mimic-cxr.", show_default="that of mimic-cxr")] = None,
    as_json: JsonOption = False,
) -> None:
    """Check that the files exist and have the right checksums; exit code 2 otherwise.

    [bold]Example:[/bold] equipoise data check adult --root data
    """
    names = name or [r.name for r in studies.CATALOGUE.values() if r.files and not r.by_hand]
    users = [n for n in names if any(file.option == "mimic_iv" for file in studies.CATALOGUE[pick("data set", n, studies.CATALOGUE)].files)]
    if mimic_iv is not None and not users:
        raise BadInput("--mimic-iv names the folder of the tables that mimic-cxr takes from MIMIC-IV. Check mimic-cxr, or omit it.")
    folders = {} if mimic_iv is None else {"mimic_iv": mimic_iv}
    states = [(n, state) for n in names for state in studies.check_files(n, root, **(folders if n in users else {}))]
    if as_json:
        print(to_json([{"data": n, "file": s.file, "path": str(s.path) if s.path else None, "status": s.status} for n, s in states]))
    else:
        for n, s in states:
            say(f"{n}: {s.file}: {s.status}" + (f" ({s.path})" if s.path else ""))
        for n in names:
            if not studies.CATALOGUE[n].files:
                say(f"{n}: simulated, needs no files")
    wrong = list(dict.fromkeys(n for n, s in states if s.status != "ok"))
    problems = [
        f"files of {n} are missing or have the wrong checksum. {by_hand}" for n in wrong if (by_hand := studies.CATALOGUE[n].by_hand)
    ]
    if fetched := [n for n in wrong if not studies.CATALOGUE[n].by_hand]:
        command = shlex.join(["equipoise", "data", "fetch", *fetched, *(["--root", str(root)] if root else [])])
        problems.append(f"files of {', '.join(fetched)} are missing or have the wrong checksum. To download them: {command}")
    raise_all(problems)


@data.command("fetch", cls=Command)
def data_fetch(
    name: Annotated[list[str], typer.Argument(help="Data sets.")],
    root: Annotated[Path | None, typer.Option(help="Folder in which each data set gets a folder.", show_default="the user cache")] = None,
) -> None:
    """Download a data set from its publisher and check it.

    [bold]Example:[/bold] equipoise data fetch adult bank
    """
    for n in name:
        pick("data set", n, studies.CATALOGUE)
    for n in name:
        with bar(f"fetching {n}") as step:
            folder = studies.fetch(n, root, progress=lambda _, done, total, step=step: step(done, total or done))  # type: ignore[misc]
        say(f"{n}: {folder}")


@data.command("cache", cls=Command)
def data_cache(
    remove: Annotated[bool, typer.Option("--clear", help="Delete them instead of listing them.")] = False,
    older_than: Annotated[float | None, typer.Option(help="Only caches unused for this many days.", show_default="all")] = None,
    folder: Annotated[
        Path | None, typer.Option(help="A folder given to images.cache (cache= in Python).", show_default="images in the user cache")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List or delete decoded images cached on disk. Nothing is deleted automatically.

    [bold]Example:[/bold] equipoise data cache --clear --older-than 30
    """
    from equipoise.data import ImageCache

    if older_than is not None and not older_than >= 0:
        raise BadInput(f"--older-than must be a non-negative number of days; got {older_than}")
    if folder is not None and not folder.expanduser().is_dir():
        raise BadInput(f"no such folder: {folder}. Give the folder that was given to images.cache.")
    caches = [cache for cache in ImageCache.found(folder) if older_than is None or cache.days >= older_than]
    if remove:
        ImageCache.clear(caches)
    place, total = ImageCache.folder(folder), sum(cache.bytes for cache in caches)
    if as_json:
        rows = [
            {"path": str(c.path), "images": c.images, "size": c.size, "bytes": c.bytes, "last_used": _when(c), "removed": remove}
            for c in caches
        ]
        print(to_json({"folder": str(place), "bytes": total, "caches": rows}))
        return
    for c in caches:
        content = f"{c.images:,} images at {c.size} px" if c.images else "unfinished or damaged"
        say(f"{c.path}: {content}, {_size_words(c.bytes)}, last used {_when(c)} ({c.days:.0f} days ago)")
    say(f"{'removed ' if remove else ''}{len(caches):,} caches, {_size_words(total)}, in {place}")


def _when(cache: ImageCache) -> str:
    return datetime.fromtimestamp(cache.used).isoformat(sep=" ", timespec="seconds")


def _size_words(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB" if size < 2**30 else f"{size / 2**30:,.1f} GiB"
