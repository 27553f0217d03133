"""`equipoise apply`: scores and decisions for new patients with a repaired network and its rule."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from equipoise import data, report
from equipoise.cli.console import JsonOption, counting, err, notes, out, say_code
from equipoise.cli.inputs import (
    IMAGE_COLUMNS,
    AllowOutsideOption,
    CacheOption,
    ImageColumnOption,
    ImagesOption,
    MaxPixelsOption,
    MaxTableOption,
    SkipBrokenOption,
)
from equipoise.errors import BadInput, did_you_mean, raise_all

if TYPE_CHECKING:
    import pandas as pd

    from equipoise.data import Images

FORMULAS = ("=", "+", "-", "@", "\t", "\r", "\n")  # how a cell begins that a spreadsheet runs


def apply(
    folder: Annotated[Path, typer.Argument(help="The folder that `equipoise debias` wrote.")],
    file: Annotated[Path, typer.Argument(help="CSV or Parquet file with new patients, one row each; no label is needed.")],
    images: ImagesOption = None,
    image_column: ImageColumnOption = None,
    skip_broken: SkipBrokenOption = False,
    allow_outside: AllowOutsideOption = False,
    max_pixels: MaxPixelsOption = data.MAX_PIXELS,
    cache: CacheOption = None,
    model: Annotated[
        str | None, typer.Option(help="The network's factory, as file.py:factory; its code is run.", show_default="none: see --trust")
    ] = None,
    trust: Annotated[
        bool,
        typer.Option("--trust", help="Run the code that the folder names, if it is unchanged; without it the command shows it."),
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of the draws, where the rule is randomised.")] = 0,
    save: Annotated[Path | None, typer.Option("--out", help="Write the decisions as CSV to this file.", show_default="printed")] = None,
    spreadsheet_safe: Annotated[
        bool,
        typer.Option(
            "--spreadsheet-safe",
            help="Put a ' before ids that begin with =, +, -, @, a tab or a line break, which a spreadsheet would run as a formula.",
        ),
    ] = False,
    max_table_bytes: MaxTableOption = None,
    as_json: JsonOption = False,
) -> None:
    """Scores and decisions for new patients. The protected attribute is needed only where the rule decides by group.

    [bold]Example:[/bold] equipoise apply repaired/ new.csv --images xrays/ --model my_model.py:build --out decisions.csv
    """
    import numpy as np
    import pandas as pd

    from equipoise.report import code_asked_for, decide, groups_of, read_bundle, repaired_in

    if seed < 0:
        raise BadInput(f"--seed must be at least 0; got {seed}")
    if spreadsheet_safe and as_json and save is None:
        raise BadInput("--spreadsheet-safe is about the CSV, and --json prints none. Add --out decisions.csv, or leave one of them out.")
    if save:
        data.check_writable(save)
    bundle = read_bundle(folder)
    code = code_asked_for(bundle, model, trust)
    how = bundle.run["inputs"]
    if how["images"] is None and images is not None:
        raise BadInput(f"the network in {folder} takes columns of numbers, not images. Leave out --images.")
    if how["images"] is not None and images is None:
        raise BadInput(f"the network in {folder} takes images. Name their folder: --images xrays/")
    if model is None or model.endswith(".pt2"):
        say_code(code)
    repaired = repaired_in(bundle, code, model)
    bins = data.bins_in(how.get("bins") or {})
    pictures = () if images is None else (image_column or how.get("image_column"), *IMAGE_COLUMNS)
    text = {n for n in (how.get("id"), how.get("patient"), *pictures, *repaired.groups) if n is not None and n not in bins}
    with notes():
        frame = data.read_table(file, text=text, limit=max_table_bytes)
    attributes = groups_of(frame, repaired.groups, file.name, bins)
    column = image_column or how.get("image_column") or next((c for c in IMAGE_COLUMNS if c in frame.columns), None)
    names = [name for name in (how.get("id"), how.get("patient"), column if images else None) if name in frame.columns]
    if images is not None and column is not None and {column, how.get("patient")} <= set(frame.columns):
        _check_one_patient(frame, column, how["patient"], file.name)
    if how.get("view_column") in frame.columns:
        _check_frontal(frame[how["view_column"]], file.name)
    with notes():
        if images is None:
            inputs: Any = _numbers(frame, how["features"], text, file.name)
            kept = np.arange(len(frame))
        else:
            opened = _pictures(frame, column, images, how["images"], file.name, skip_broken, allow_outside, max_pixels, cache)
            inputs, kept = opened, np.array([at for at in range(len(frame)) if at not in opened.broken])
        score = repaired.score(inputs)
    attributes = tuple(attribute.take(kept) for attribute in attributes)
    ids = frame[names[0]].to_numpy(dtype=object)[kept] if names else kept.astype(object)
    found = decide(repaired, score, attributes, ids, seed, file.name)
    about = frame[list(dict.fromkeys(names))].iloc[kept].reset_index(drop=True) if names else pd.DataFrame({"row": kept + 1})
    if taken := [c for c in about.columns if c in found.columns]:
        shown = ", ".join(map(repr, taken))
        raise BadInput(
            f"the ids are in {shown}, a name that the decisions have too, so that they could not be told apart. Rename the column."
        )
    table = pd.concat([about, found], axis=1)
    remarks = [*_remarks(repaired, attributes, len(frame) - len(kept)), *_of_ids(about, how.get("id"), file.name)]
    remarks += _of_repair(how, frame, repaired.rule.needs_group)
    for remark in remarks:
        err.print(Text(f"note: {report.printable(remark)}", style="yellow"), soft_wrap=True)
    shown = _spreadsheet_safe(table) if spreadsheet_safe else table
    # Python writes a carriage return without quotation marks, and a reader would end the row there.
    broken = any("\r" in str(value) for name in about for value in (name, *about[name]))
    content = shown.to_csv(index=False, quoting=csv.QUOTE_NONNUMERIC if broken else csv.QUOTE_MINIMAL)
    if save:
        data.write_text(save, content)
    if as_json:
        print(json.dumps(_document(repaired, table, save, len(frame) - len(kept)), indent=2, allow_nan=False))
    elif save:
        flagged = int(table["decision"].sum())
        rule, place = report.printable(repaired.rule.describe()), report.printable(str(save))
        said = f"{len(table):,} rows, {flagged:,} decided positive ({rule}): {place}"
        out.print(Text(said), soft_wrap=True)
    else:
        print(content, end="")


def _numbers(frame: pd.DataFrame, features: list[str], text: set[str], name: str) -> Any:
    """The input columns as the network takes them, numbers even where the column is a group as well."""
    import numpy as np
    import torch

    frame = frame.assign(**{column: data.as_parsed(frame[column]) for column in features if column in text and column in frame.columns})
    problems = [f"no input column {c!r}.{did_you_mean(c, map(str, frame.columns), 0.6)}" for c in features if c not in frame.columns]
    for column in (c for c in features if c in frame.columns):
        if frame[column].dtype.kind not in "biuf":
            problems.append(f"input column {column!r} holds no numbers. Encode it as in the repair.")
        elif bad := int((~np.isfinite(frame[column].to_numpy(dtype=float, na_value=np.nan))).sum()):
            problems.append(f"input column {column!r}: {bad:,} of {len(frame):,} rows are empty or infinite. Fill them in as in training.")
    raise_all(problems, name)
    return torch.tensor(frame[features].to_numpy(dtype=np.float32))


def _spreadsheet_safe(table: pd.DataFrame) -> pd.DataFrame:
    """The table with a ' before every text, in cells and names of columns, that a spreadsheet would take for a formula."""

    import pandas as pd

    def safe(value: object) -> object:
        return f"'{value}" if isinstance(value, str) and value.startswith(FORMULAS) else value

    columns = {name: table[name].astype(object).map(safe) if table[name].dtype.kind not in "biuf" else table[name] for name in table}
    return pd.DataFrame(columns).rename(columns=safe)


def _pictures(
    frame: pd.DataFrame,
    column: str | None,
    folder: Path,
    how: dict[str, Any],
    name: str,
    skip_broken: bool,
    allow_outside: bool,
    max_pixels: int,
    cache: Path | None,
) -> Images:
    from equipoise.data import Images, find_files

    if column is None or column not in frame.columns:
        shown = ", ".join(map(str, frame.columns))
        raise BadInput(f"no column with the names of images. Name it with --image-column. The columns are: {shown}.", source=name)
    files = find_files(frame[column], folder, column, allow_outside=allow_outside)
    rows = [f"row {at + 1} below the header" for at in range(len(files))]
    options: dict[str, Any] = {"size": how["size"], "channels": how["channels"], "mean": how["mean"], "std": how["std"]}
    with counting("reading images", len(files)) as more:
        return Images.open(files, **options, places=rows, skip_broken=skip_broken, max_pixels=max_pixels, cache=cache, progress=more)


def _check_one_patient(frame: pd.DataFrame, image: str, patient: str, name: str) -> None:
    """Raises where one image is named for several patients, of whom all but one would get another's score."""
    whose = frame.groupby(image)[patient].nunique()
    shared = whose[whose > 1].index
    if len(shared):
        some = ", ".join(map(repr, shared[:5])) + (" ..." if len(shared) > 5 else "")
        raise BadInput(
            f"image column {image!r}: {len(shared):,} images are named for more than one patient of {patient!r}: {some}. "
            "Correct the table: an image is one patient's.",
            source=name,
        )


def _check_frontal(views: pd.Series[Any], name: str) -> None:
    """Raises where a row is not a frontal view, which the repair left out, so that nothing is known of its scores."""
    from equipoise.data import of_view

    other = ~of_view(views)
    if other.any():
        raise BadInput(
            f"{int(other.sum()):,} of {len(other):,} rows are not frontal views by the column {views.name!r}; the first is row "
            f"{int(other.argmax()) + 1:,} below the header. The network was repaired on frontal views only. Leave those rows out.",
            source=name,
        )


def _of_repair(how: dict[str, Any], frame: pd.DataFrame, needs_group: bool) -> list[str]:
    """How the new rows may differ from those of the repair without being refused."""
    found, view = [], how.get("view_column")
    if view is not None and view not in frame.columns:
        found.append(f"the network was repaired on frontal views only, and there is no column {view!r} to check the new rows by")
    if needs_group and how.get("conflicts", "row") != "row":
        found.append(
            f"the group of each row is taken as recorded; the repair settled patients with several groups by --conflicts {how['conflicts']}"
        )
    return found


def _of_ids(about: pd.DataFrame, id: str | None, name: str) -> list[str]:
    """What to know of the ids beside the decisions: that there are none, or that some are there more than once."""
    if id is None:
        return []
    if id not in about.columns:
        return [f"{name} has no column {id!r}, which held the ids in the repair; the rows are told apart by {about.columns[0]!r}"]
    again = about[id][about[id].duplicated() & about[id].notna()].nunique()
    return [f"{again:,} ids in {id!r} are in more than one row, and each row has its own decision"] if again else []


def _remarks(repaired: Any, attributes: tuple[Any, ...], left_out: int) -> list[str]:
    import numpy as np

    remarks = list(repaired.remarks)
    if left_out:
        remarks.append(f"{left_out:,} rows whose image cannot be read have no decision")
    missing = int(np.any([attribute.codes < 0 for attribute in attributes], axis=0).sum()) if attributes else 0
    if missing:
        remarks.append(f"{missing:,} rows have no group; the rule decides them as it does where the group is not known")
    return remarks


def _document(repaired: Any, table: pd.DataFrame, save: Path | None, left_out: int) -> dict[str, object]:
    rows = json.loads(table.to_json(orient="records", double_precision=15))
    about = {
        "schema": "equipoise.decisions",
        "schema_version": 1,
        "rule": repaired.rule.describe(),
        "needs_group": repaired.rule.needs_group,
    }
    return {
        **about,
        "rows": len(table),
        "left_out": left_out,
        "positive": int(table["decision"].sum()),
        "out": save and str(save),
        "decisions": rows,
    }
