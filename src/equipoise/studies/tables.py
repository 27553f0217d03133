"""The results of a study as the paper's tables: mean and sd over splits, the best in bold, the second best in italics, the published number
and the difference from it. For a terminal, as CSV and as LaTeX; on the test sets or the validation sets. A study by folds also has a table
of its pooled folds.
"""

import textwrap
from collections.abc import Iterator, Sequence
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from equipoise.data import write_text
from equipoise.report import interval, p_value_words, plural, printable
from equipoise.studies.plan import Plan, StudyData
from equipoise.studies.rows import SIZES
from equipoise.studies.summary import ORIGINAL, compare, published, published_sizes, study_table

DIGITS = 3
FAR_FEWER = 0.25  # of the paper's rows: with fewer, a warning is shown
QUANTITIES = {"gap": "bias", "performance": "performance"}
RANKS = {1: "bold", 2: "italic"}
HEADERS = {"size": "|bias|", "p_value": "p", "published": "published", "difference": "diff."}
POOLED = ("method", "gap", "|gap|", "p", "performance", "change of the gap", "performance lost")
WIDTHS = {"name": 24, "ours": 17, "size": 8, "p_value": 7, "published": 16, "difference": 9}  # of columns, with the space between them


def study_view(plan: Plan, rows: pd.DataFrame, width: int = 140, part: str = "test") -> RenderableType:
    """The tables for a terminal of this width."""
    frame = study_table(plan, rows, part)
    tables = [
        _rich(layout)
        for measure in plan.measures
        for quantity in QUANTITIES
        for layout in _layouts(plan, frame[frame["measure"] == measure], measure, quantity, width, part)
    ]
    return Group(*tables, *(Text(line, style="dim") for line in _notes(plan, rows)))


def study_text(plan: Plan, rows: pd.DataFrame) -> str:
    """The same tables as plain text."""
    with StringIO() as buffer:
        Console(width=140, file=buffer, force_terminal=False).print(study_view(plan, rows))
        return buffer.getvalue()


def save_csv(plan: Plan, rows: pd.DataFrame, folder: str | Path, part: str = "test") -> list[Path]:
    """Writes rows.csv (of both sets), table.csv and, if the study has the original network, comparison.csv."""
    frames = {"rows": rows, "table": study_table(plan, rows, part)}
    baseline = next((arm.name for arm in plan.methods if arm.method == ORIGINAL), None)
    if baseline in set(rows["method"]):
        frames["comparison"] = compare(rows, str(baseline), part=part, redrawn=[data.name for data in plan.data if data.redraw])
    return [write_text(Path(folder) / f"{name}.csv", frame.to_csv(index=False)) for name, frame in frames.items()]


def save_latex(plan: Plan, rows: pd.DataFrame, folder: str | Path, part: str = "test") -> list[Path]:
    """Writes one file per measure and quantity, for \\input in a document with booktabs. As in the paper, without p-values."""
    frame = study_table(plan, rows, part)
    written = []
    for measure in plan.measures:
        for quantity, word in QUANTITIES.items():
            layouts = _layouts(plan, frame[frame["measure"] == measure], measure, quantity, 140, part)
            text = "\n".join(_latex(layout) for layout in layouts)
            written.append(write_text(Path(folder) / f"{measure}-{word}.tex", text))
    return written


Cell = dict[str, Any]  # the rank of a method, and texts: ours, size (the mean |gap|), p_value (over all splits), published, difference


class Layout(NamedTuple):
    """A table: titles of its rows (`lines`) and of its groups of columns, and a cell for each pair."""

    title: str
    corner: str
    lines: list[str]
    columns: list[str]
    cells: list[list[Cell]]

    @property
    def shown(self) -> list[str]:
        """The columns of a group that are not empty."""
        return [name for name in ("ours", *HEADERS) if any(name in cell for line in self.cells for cell in line)]


def _layouts(plan: Plan, frame: pd.DataFrame, measure: str, quantity: str, width: int, part: str) -> Iterator[Layout]:
    """Methods in rows and data in columns, as in the paper's tables; vice versa if there are more data, as for its simulations."""
    cells = {(row["data"], row["method"]): _cell(row, quantity) for row in frame.to_dict("records")}
    data = {d.name: printable(d.title or d.name) for d in plan.data if d.name in set(frame["data"])}
    methods = {a.name: a.name for a in plan.methods if a.name in set(frame["method"])}
    methods_down = len(data) <= max(len(methods), 3)
    down, across = (methods, data) if methods_down else (data, methods)
    what = "bias: the group's rate minus the reference's" if quantity == "gap" else plan.performance.replace("_", " ")
    title = f"{measure.upper()}, {what} on the {part} set, mean ± sd over splits"
    names = list(across)
    widths = [WIDTHS[name] for name in Layout("", "", [], [], [list(cells.values())]).shown]
    side_by_side = max(1, (width - WIDTHS["name"]) // sum(widths)) if cells else 1
    for start in range(0, len(names), side_by_side):
        chunk = names[start : start + side_by_side]
        rows = [[cells.get((c, d) if methods_down else (d, c), {}) for c in chunk] for d in down]
        yield Layout(title, "method" if methods_down else "data", list(down.values()), [across[c] for c in chunk], rows)


def _cell(row: dict[str, float], quantity: str) -> Cell:
    sign = "+" if quantity == "gap" else ""
    cell: Cell = {"rank": int(row[f"{quantity}_rank"])}
    cell["ours"] = _mean_sd(row[f"{quantity}_mean"], row[f"{quantity}_sd"], DIGITS, sign)
    if quantity == "gap":
        cell |= {"size": f"{row['abs_gap_mean']:.{DIGITS}f}", "p_value": p_value_words(row["p_value"])}
    if not np.isnan(row.get(f"published_{quantity}", np.nan)):
        cell["published"] = _mean_sd(row[f"published_{quantity}"], row[f"published_{quantity}_sd"], 2, sign)
        cell["difference"] = f"{row[f'{quantity}_difference']:+.{DIGITS}f}"
    return {name: value for name, value in cell.items() if value != ""}


def _mean_sd(mean: float, sd: float, digits: int, sign: str) -> str:
    return f"{mean:{sign}.{digits}f}" + ("" if np.isnan(sd) else f" ± {sd:.{digits}f}")


def _rich(layout: Layout) -> Table:
    # No spare space: with p-values, one group of columns just fits into 80.
    table = Table(box=box.SIMPLE_HEAD, title=layout.title, title_justify="left", collapse_padding=True, pad_edge=False)
    table.add_column(layout.corner, no_wrap=True)
    for name in layout.columns:
        for part in layout.shown:
            table.add_column(Text(HEADERS.get(part, name), style="dim" if part in HEADERS else ""), justify="right", no_wrap=part != "ours")
    for name, line in zip(layout.lines, layout.cells, strict=True):
        texts = [Text(_wrapped(name) if layout.corner == "method" else name)]
        for cell in line:
            style = RANKS.get(cell.get("rank", 0), "")
            texts += [Text(cell.get(part, ""), style=style if part == "ours" else "dim") for part in layout.shown]
        table.add_row(*texts)
    return table


def _wrapped(name: str) -> str:
    """The name of a method, wrapped if it is longer than its column, so that the numbers next to it are not cut off.

    >>> print(_wrapped("adversarial-finetune-published"))
    adversarial-finetune-
      published
    """
    return "\n".join(textwrap.wrap(name, WIDTHS["name"] - 2, subsequent_indent="  ")) or name


def _latex(layout: Layout) -> str:
    shown = [part for part in layout.shown if part != "p_value"]
    header = [layout.corner, *(HEADERS.get(part, name) for name in layout.columns for part in shown)]
    lines = [
        f"% {layout.title}",
        f"\\begin{{tabular}}{{l{'r' * (len(header) - 1)}}}",
        "\\toprule",
        " & ".join(map(_escaped, header)) + " \\\\",
        "\\midrule",
    ]
    for name, line in zip(layout.lines, layout.cells, strict=True):
        texts = [_escaped(name)]
        for cell in line:
            inside = {part: _escaped(cell.get(part, "")) for part in shown}
            marked = {1: f"\\textbf{{{inside['ours']}}}", 2: f"\\textit{{{inside['ours']}}}"}.get(cell.get("rank", 0), inside["ours"])
            texts += [marked, *(text for part, text in inside.items() if part != "ours")]
        lines.append(" & ".join(texts) + " \\\\")
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}"]) + "\n"


def _escaped(text: str) -> str:
    for plain, safe in (
        ("\\", "\\textbackslash "),
        *((c, f"\\{c}") for c in "&%$#_{}"),
        ("±", "$\\pm$"),
        ("~", "\\textasciitilde "),
        ("^", "\\textasciicircum "),
    ):
        text = text.replace(plain, safe)
    return text.replace("+0.", "$+$0.").replace("-0.", "$-$0.")


def _size_notes(known: Sequence[StudyData], rows: pd.DataFrame) -> Iterator[str]:
    """The rows of each set next to the paper's, and a warning if there are far fewer."""
    if not set(SIZES) <= set(rows.columns):
        return
    for data in known:
        paper = published_sizes(data.published)
        ours = rows.loc[rows["data"] == data.name, list(SIZES)].dropna().mean()
        if paper is None or ours.isna().any():
            continue
        title = printable(data.title or data.name)
        sizes = " / ".join(f"{n:,.0f}" for n in ours)
        yield f"{title}: {sizes} rows for training, validation and test; the paper has {' / '.join(f'{n:,}' for n in paper)}."
        if ours.sum() < FAR_FEWER * sum(paper):
            share = ours.sum() / sum(paper)
            too_few = "too few to compare with its numbers; the differences may be due to chance"
            yield f"Warning: {title} has {share:.1%} of the paper's rows: {too_few}."


def _notes(plan: Plan, rows: pd.DataFrame) -> Sequence[str]:
    lines = [
        "Bold: best, italic: second best, of all methods but the original network. |bias|: mean of the absolute values, "
        "which scatter around 0 cannot hide. P: twice the median over splits of the permutation p-value, "
        "which holds for splits that share rows."
    ]
    known = [data for data in plan.data if any(published(data.published, m, arm.method) for m in plan.measures for arm in plan.methods)]
    if known:
        lines[0] += " Diff.: ours minus published."
        lines += _size_notes(known, rows)
    planned = len(plan.data) * len(plan.measures) * len(plan.methods) * plan.splits
    done = int(rows.groupby(["data", "measure", "method"]).size().sum())
    if done != planned:
        lines.append(f"Not complete: {planned - done:,} rows of {planned:,} are missing; run the study again to resume it.")
    met = rows.groupby("method", sort=False)["met"].mean()
    unmet = [f"{name} in {1 - share:.0%}" for name, share in met.items() if share < 1]
    if unmet:
        lines.append(f"Goal not met on the validation set: {', '.join(unmet)} of rows.")
    return lines


def pooled_view(plan: Plan, frame: pd.DataFrame) -> RenderableType:
    """One table per data set and measure of the pooled folds, for a terminal."""
    if frame.empty:
        return Text("No cross-validation is complete yet, so there are no pooled folds.")
    tables: list[RenderableType] = []
    for (data, measure), pooled in frame.groupby(["data", "measure"], sort=False):
        first = pooled.iloc[0]
        size = f"{first['patients']:,} patients, {first['rows']:,} rows, {plural(first['repeats'], 'repeat')}"
        title = f"{plan.named(str(data)).title or data}, {measure}: all folds pooled ({size})"
        table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False)
        for column in POOLED:
            table.add_column(column, no_wrap=column == "method")
        for line in pooled_lines(pooled):
            table.add_row(*line)
        tables.append(table)
    note = (
        f"Performance is {plan.performance.replace('_', ' ')}. Brackets: 95 % intervals by resampling patients, the same in every repeat. "
        "P: the permutation p-value of the |gap|, of several repeats twice the median. Change: the method's gap minus the original "
        "network's, and performance lost: the reverse, both for the same patients."
    )
    return Group(*tables, Text(note))


def pooled_lines(frame: pd.DataFrame) -> list[tuple[str, ...]]:
    """The cells of each row of pooled folds; columns are those of POOLED."""
    return [
        (
            str(row["method"]),
            _with_interval(row, "gap", "+"),
            f"{row['mean_abs']:.3f}",
            p_value_words(row["p_value"]),
            _with_interval(row, "performance", ""),
            _with_interval(row, "gap_change", "+"),
            _with_interval(row, "performance_lost", "+"),
        )
        for _, row in frame.iterrows()
    ]


def _with_interval(row: "pd.Series[float]", name: str, sign: str) -> str:
    if pd.isna(row[name]):
        return ""
    return interval(float(row[name]), float(row[f"{name}_low"]), float(row[f"{name}_high"]), sign)
