"""The table of a study by folds: all folds of a deal put together, intervals by drawing patients."""

import pandas as pd
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from equipoise.study import Plan

COLUMNS = ("method", "gap", "|gap|", "noise", "excess", "performance", "|gap| closed", "performance lost")


def pooled_view(plan: Plan, frame: pd.DataFrame) -> RenderableType:
    """One table a data set and measure, for a terminal."""
    if frame.empty:
        return Text("No deal of folds is complete yet, so nothing can be pooled.")
    tables: list[RenderableType] = []
    for (data, measure), here in frame.groupby(["data", "measure"], sort=False):
        first = here.iloc[0]
        held = f"{first['patients']:,} patients, {first['rows']:,} rows, {first['deals']} {'deal' if first['deals'] == 1 else 'deals'}"
        title = f"{plan.named(str(data)).title or data}, {measure}: all folds pooled ({held})"
        table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False)
        for column in COLUMNS:
            table.add_column(column, no_wrap=column == "method")
        for row in lines(here):
            table.add_row(*row)
        tables.append(table)
    name = plan.performance.replace("_", " ")
    told = (
        f"Performance is {name}. Brackets: 95 % intervals by drawing patients, the same for every deal. Noise: the |gap| with groups dealt "
    )
    told += "out at random; excess: |gap| minus that. Closed and lost: the original network's less the method's, of the same patients."
    return Group(*tables, Text(told))


def lines(frame: pd.DataFrame) -> list[tuple[str, ...]]:
    """The cells of each line, as in COLUMNS."""
    return [
        (
            str(row["method"]),
            _with_interval(row, "gap", "+"),
            f"{row['mean_abs']:.3f}",
            f"{row['noise']:.3f}",
            f"{row['excess']:+.3f}",
            _with_interval(row, "performance", ""),
            _with_interval(row, "gap_closed", "+"),
            _with_interval(row, "performance_lost", "+"),
        )
        for _, row in frame.iterrows()
    ]


def _with_interval(row: "pd.Series[float]", name: str, sign: str) -> str:
    if pd.isna(row[name]):
        return ""
    return f"{row[name]:{sign}.3f} [{row[f'{name}_low']:{sign}.3f}, {row[f'{name}_high']:{sign}.3f}]"
