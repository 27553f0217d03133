"""`equipoise apply`: scores and decisions of a repaired network for new patients."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import Field

from equipoise import data
from equipoise.cli.console import JsonOption, bar, notes, say, say_code, to_json
from equipoise.cli.options import takes_case
from equipoise.disk import check_writable, write_text
from equipoise.errors import BadInput
from equipoise.specification import Specification, setting

if TYPE_CHECKING:
    import pandas as pd

FORMULAS = ("=", "+", "-", "@", "\t", "\r", "\n")  # the first characters of cells that a spreadsheet runs as formulas


class ApplySpec(Specification):
    """The section [apply]: how decisions are made and written."""

    seed: int = setting("random seed of a randomised rule, which draws by the ids of the rows", 0, ge=0)
    spreadsheet_safe: bool = setting("prefix ' to ids that a spreadsheet would run as a formula (starting with =, +, -, @, ...)", False)
    max_table_bytes: int | None = setting("largest table to read, in bytes after decompression", None, ge=1)


class ApplyCase(Specification):
    """The images of new patients, and how they are decided."""

    images: data.ImageFolder = Field(default_factory=data.ImageFolder)
    apply: ApplySpec = Field(default_factory=ApplySpec)


@takes_case(ApplyCase, "images")
def apply_command(
    folder: Annotated[Path, typer.Argument(help="Folder written by `equipoise debias`, of one label or of several.")],
    file: Annotated[Path, typer.Argument(help="CSV or Parquet file with one row per new patient; no label is needed.")],
    *,
    case: Callable[[], ApplyCase],
    model: Annotated[
        str | None, typer.Option(help="Factory of the network, as file.py:factory; its code is executed.", show_default="none: see --trust")
    ] = None,
    trust: Annotated[
        bool,
        typer.Option(
            "--trust", help="Run the code recorded in the folder, if it is unchanged; without this option the command only shows it."
        ),
    ] = False,
    save: Annotated[
        Path | None, typer.Option("--out", metavar="FILE.csv", help="Write the decisions as CSV to this file.", show_default="printed")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Score and decide new patients. The protected attribute is needed only if the rule decides by group.

    [bold]Example:[/bold] equipoise apply repaired/ new.csv --images xrays/ --model my_model.py:build --out decisions.csv
    """
    from equipoise.case import Bundle, bundles_in, counting

    asked = case()
    images, how = asked.images, asked.apply
    if how.spreadsheet_safe and as_json and save is None:
        raise BadInput("apply.spreadsheet_safe applies to the CSV, and --json prints none. Add --out decisions.csv, or omit one of them.")
    if save:
        check_writable(save)
    shown = images.folder is not None
    loading: dict[str, Any] = {"model": model, "transform": images.transform, "trust": trust, "images": shown, "running": say_code}
    bundles = [Bundle.load(place, **loading) for place in bundles_in(folder)]
    decided: dict[str, pd.DataFrame] = {}
    with notes():
        text = {name for bundle in bundles for name in bundle.text_columns} | ({images.column} if images.column is not None else set())
        frame = data.read_table(file, text=text, limit=how.max_table_bytes)
        with counting(bar)("reading images", len(frame)) as advance:
            reading = {name: getattr(images, name) for name in ("skip_broken", "allow_outside", "max_pixels", "cache")}
            files: dict[str, Any] = {"images": images.folder, "image_column": images.column, **reading}
            for bundle in bundles:
                decided[bundle.run.label] = bundle.decide(frame, **files, seed=how.seed, name=file.name, progress=advance)
    table = decided[bundles[0].run.label] if len(bundles) == 1 else _joined(decided)
    content = _csv(table, how.spreadsheet_safe)
    if save:
        write_text(save, content)
    if as_json:
        documents = {
            bundle.run.label: {
                "schema": "equipoise.decisions",
                "schema_version": 1,
                "rule": bundle.rule.describe(),
                "needs_group": bundle.rule.needs_group,
                "rows": len(own),
                "left_out": len(frame) - len(own),
                "positive": int(own["decision"].sum()),
                "out": save and str(save),
                "decisions": json.loads(own.to_json(orient="records", double_precision=15)),
            }
            for bundle, own in zip(bundles, decided.values(), strict=True)
        }
        print(to_json(documents if len(bundles) > 1 else documents[bundles[0].run.label]))
    elif save:
        for bundle, own in zip(bundles, decided.values(), strict=True):
            label = f"{bundle.run.label}: " if len(bundles) > 1 else ""
            say(f"{label}{len(own):,} rows, {int(own['decision'].sum()):,} decided positive ({bundle.rule.describe()}): {save}")
    else:
        print(content, end="")


def _joined(decided: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """The decisions of several labels side by side: the ids, then columns that begin with the name of the label."""
    made = ["score", "probability", "decision"]
    ids = next(iter(decided.values())).drop(columns=made, errors="ignore")
    for label, own in decided.items():
        for name in [name for name in made if name in own]:
            ids[f"{label} {name}"] = own[name].to_numpy()
    return ids


def _csv(table: pd.DataFrame, spreadsheet_safe: bool) -> str:
    """The table as CSV; if asked, with a ' before every text, in cells and column names, that a spreadsheet would run as a formula."""

    def safe(value: object) -> object:
        return f"'{value}" if isinstance(value, str) and value.startswith(FORMULAS) else value

    texts = table.drop(columns=["score", "probability", "decision"], errors="ignore")
    # Without quotation marks, which Python omits for a carriage return, a reader would end the row there.
    broken = any("\r" in str(value) for name in texts for value in (name, *texts[name]))
    if spreadsheet_safe:
        columns = {name: own if own.dtype.kind in "biuf" else own.astype(object).map(safe) for name, own in table.items()}
        table = type(table)(columns).rename(columns=safe)
    return str(table.to_csv(index=False, quoting=csv.QUOTE_NONNUMERIC if broken else csv.QUOTE_MINIMAL))
