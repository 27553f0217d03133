"""The results of a study as the paper's tables: mean and sd over splits, the best in bold, the second best in italics, the published number
and the difference from it. For a terminal, as CSV and as LaTeX; on the test sets or the validation sets. A study by folds also has a table
of its pooled folds.

Trajectories of its methods are drawn as in the paper's Figure 3: every split thin, the median over splits bold. The horizontal axis is in
the unit of the method (units pruned, epochs). Bias is solid, performance dashed. The limits of the goal are dotted, and the chosen step of
every split is marked on both of its lines.
"""

import textwrap
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from equipoise.disk import write_text
from equipoise.methods import METHODS
from equipoise.report import Axes, Figures, Panel, interval, p_value_words, picture_of, plural, printable, steps_within
from equipoise.studies.plan import StudyPlan
from equipoise.studies.results import ROW_KEYS, SET_SIZES, StudyFolder
from equipoise.studies.summary import ORIGINAL_METHOD, TABLE_DIGITS, compare_methods, published, published_sizes, read_pooled, study_table

TEXT_WIDTH = 140  # of tables in a file, in characters
FAR_FEWER = 0.25  # of the paper's rows: with fewer, a warning is shown
QUANTITIES = {"gap": "bias", "performance": "performance"}
RANK_STYLES = {1: "bold", 2: "italic"}
COLUMN_HEADERS = {"size": "|bias|", "p_value": "p", "published": "published", "difference": "diff."}
POOLED_HEADERS = ("method", "gap", "|gap|", "p", "performance", "change of the gap", "performance lost")
COLUMN_WIDTHS = {
    "name": 24,
    "ours": 17,
    "size": 8,
    "p_value": 7,
    "published": 16,
    "difference": 9,
}  # of columns, with the space between them
MOST_STEPS = 150  # drawn; a panel has a line per split, so more would only make the file large


def study_view(plan: StudyPlan, rows: pd.DataFrame, width: int = TEXT_WIDTH, part: str = "test") -> RenderableType:
    """The tables of a study for a terminal, one per measure and quantity.

    - `rows`: of `read_rows`; a study that is not finished has fewer.
    - `width`: of the terminal in characters; wider tables are divided.
    - `part`: "test" or "validation", the set that the results are of.
    """
    tables = [_rich(layout) for layouts in _layouts(plan, rows, part, width).values() for layout in layouts]
    return Group(*tables, *(Text(line, style="dim") for line in _footnotes(plan, rows)))


def study_text(plan: StudyPlan, rows: pd.DataFrame) -> str:
    """The same tables as plain text."""
    with StringIO() as buffer:
        Console(width=TEXT_WIDTH, file=buffer, force_terminal=False).print(study_view(plan, rows))
        return buffer.getvalue()


def save_csv(plan: StudyPlan, rows: pd.DataFrame, folder: str | Path, part: str = "test") -> list[Path]:
    """Writes rows.csv (of both sets), table.csv and, if the study has the original network, comparison.csv."""
    frames = {"rows": rows, "table": study_table(plan, rows, part)}
    baseline = next((arm.name for arm in plan.methods if arm.method == ORIGINAL_METHOD), None)
    if baseline in set(rows["method"]):
        frames["comparison"] = compare_methods(rows, str(baseline), part=part, redrawn=[data.name for data in plan.data if data.redraw])
    return [write_text(Path(folder) / f"{name}.csv", frame.to_csv(index=False)) for name, frame in frames.items()]


def save_latex(plan: StudyPlan, rows: pd.DataFrame, folder: str | Path, part: str = "test") -> list[Path]:
    """Writes one file per measure and quantity, for \\input in a document with booktabs. As in the paper, without p-values."""
    texts = {name: "\n".join(_latex(layout) for layout in layouts) for name, layouts in _layouts(plan, rows, part).items()}
    return [write_text(Path(folder) / f"{name}.tex", text) for name, text in texts.items()]


TableCell = dict[str, Any]  # the rank of a method, and texts: ours, size (the mean |gap|), p_value (over all splits), published, difference


class Layout(NamedTuple):
    """A table: titles of its rows (`lines`) and of its groups of columns, and a cell for each pair."""

    title: str
    corner: str
    lines: list[str]
    columns: list[str]
    cells: list[list[TableCell]]

    @property
    def shown(self) -> list[str]:
        """The columns of a group that are not empty."""
        return [name for name in ("ours", *COLUMN_HEADERS) if any(name in cell for line in self.cells for cell in line)]


def _layouts(plan: StudyPlan, rows: pd.DataFrame, part: str, width: int = TEXT_WIDTH) -> dict[str, list[Layout]]:
    """The tables of a study by measure and quantity, several if they are too wide for one."""
    frame = study_table(plan, rows, part)
    return {
        f"{measure}-{word}": list(_side_by_side(plan, frame[frame["measure"] == measure], measure, quantity, width, part))
        for measure in plan.measures
        for quantity, word in QUANTITIES.items()
    }


def _side_by_side(plan: StudyPlan, frame: pd.DataFrame, measure: str, quantity: str, width: int, part: str) -> Iterator[Layout]:
    """Methods in rows and data in columns, as in the paper's tables; vice versa if there are more data, as for its simulations."""
    cells = {(row["data"], row["method"]): _cell(row, quantity) for row in frame.to_dict("records")}
    data = {d.name: printable(d.title or d.name) for d in plan.data if d.name in set(frame["data"])}
    methods = {a.name: a.name for a in plan.methods if a.name in set(frame["method"])}
    methods_down = len(data) <= max(len(methods), 3)
    down, across = (methods, data) if methods_down else (data, methods)
    what = "bias: the group's rate minus the reference's" if quantity == "gap" else plan.performance.replace("_", " ")
    title = f"{measure.upper()}, {what} on the {part} set, mean ± sd over splits"
    names = list(across)
    widths = [COLUMN_WIDTHS[name] for name in Layout("", "", [], [], [list(cells.values())]).shown]
    side_by_side = max(1, (width - COLUMN_WIDTHS["name"]) // sum(widths)) if cells else 1
    for start in range(0, len(names), side_by_side):
        chunk = names[start : start + side_by_side]
        rows = [[cells.get((c, d) if methods_down else (d, c), {}) for c in chunk] for d in down]
        yield Layout(title, "method" if methods_down else "data", list(down.values()), [across[c] for c in chunk], rows)


def _cell(row: dict[str, float], quantity: str) -> TableCell:
    sign = "+" if quantity == "gap" else ""
    cell: TableCell = {"rank": int(row[f"{quantity}_rank"])}
    cell["ours"] = _mean_sd(row[f"{quantity}_mean"], row[f"{quantity}_sd"], TABLE_DIGITS, sign)
    if quantity == "gap":
        cell |= {"size": f"{row['abs_gap_mean']:.{TABLE_DIGITS}f}", "p_value": p_value_words(row["p_value"])}
    if not np.isnan(row.get(f"published_{quantity}", np.nan)):
        cell["published"] = _mean_sd(row[f"published_{quantity}"], row[f"published_{quantity}_sd"], 2, sign)
        cell["difference"] = f"{row[f'{quantity}_difference']:+.{TABLE_DIGITS}f}"
    return {name: value for name, value in cell.items() if value != ""}


def _mean_sd(mean: float, sd: float, digits: int, sign: str) -> str:
    return f"{mean:{sign}.{digits}f}" + ("" if np.isnan(sd) else f" ± {sd:.{digits}f}")


def _rich(layout: Layout) -> Table:
    # No spare space: with p-values, one group of columns just fits into 80.
    table = Table(box=box.SIMPLE_HEAD, title=layout.title, title_justify="left", collapse_padding=True, pad_edge=False)
    table.add_column(layout.corner, no_wrap=True)
    for name in layout.columns:
        for part in layout.shown:
            table.add_column(
                Text(COLUMN_HEADERS.get(part, name), style="dim" if part in COLUMN_HEADERS else ""), justify="right", no_wrap=part != "ours"
            )
    for name, line in zip(layout.lines, layout.cells, strict=True):
        texts = [Text(_wrapped(name) if layout.corner == "method" else name)]
        for cell in line:
            style = RANK_STYLES.get(cell.get("rank", 0), "")
            texts += [Text(cell.get(part, ""), style=style if part == "ours" else "dim") for part in layout.shown]
        table.add_row(*texts)
    return table


def _wrapped(name: str) -> str:
    """The name of a method, wrapped if it is longer than its column, so that the numbers next to it are not cut off.

    >>> print(_wrapped("adversarial-finetune-published"))
    adversarial-finetune-
      published
    """
    return "\n".join(textwrap.wrap(name, COLUMN_WIDTHS["name"] - 2, subsequent_indent="  ")) or name


def _latex(layout: Layout) -> str:
    shown = [part for part in layout.shown if part != "p_value"]
    header = [layout.corner, *(COLUMN_HEADERS.get(part, name) for name in layout.columns for part in shown)]
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


def _footnotes(plan: StudyPlan, rows: pd.DataFrame) -> list[str]:
    """What the tables mean, the rows of each set next to the paper's, and what is missing."""
    lines = [
        "Bold: best, italic: second best, of all methods but the original network. |bias|: mean of the absolute values, "
        "which scatter around 0 cannot hide. P: twice the median over splits of the permutation p-value, "
        "which holds for splits that share rows."
    ]
    known = [data for data in plan.data if any(published(data.published, m, arm.method) for m in plan.measures for arm in plan.methods)]
    if known:
        lines[0] += " Diff.: ours minus published."
    for data in known if set(SET_SIZES) <= set(rows.columns) else ():
        paper = published_sizes(data.published)
        ours = rows.loc[rows["data"] == data.name, list(SET_SIZES)].dropna().mean()
        if paper is None or ours.isna().any():
            continue
        title, sizes = printable(data.title or data.name), " / ".join(f"{n:,.0f}" for n in ours)
        lines.append(f"{title}: {sizes} rows for training, validation and test; the paper has {' / '.join(f'{n:,}' for n in paper)}.")
        if (share := ours.sum() / sum(paper)) < FAR_FEWER:
            too_few = "too few to compare with its numbers; the differences may be due to chance"
            lines.append(f"Warning: {title} has {share:.1%} of the paper's rows: {too_few}.")
    planned = len(plan.data) * len(plan.measures) * len(plan.methods) * plan.splits
    done = int(rows.groupby(["data", "measure", "method"]).size().sum())
    if done != planned:
        lines.append(f"Not complete: {planned - done:,} rows of {planned:,} are missing; run the study again to resume it.")
    met = rows.groupby("method", sort=False)["met"].mean()
    unmet = [f"{name} in {1 - share:.0%}" for name, share in met.items() if share < 1]
    if unmet:
        lines.append(f"Goal not met on the validation set: {', '.join(unmet)} of rows.")
    return lines


def pooled_view(folder: StudyFolder) -> RenderableType:
    """One table per data set and measure of the pooled folds of a study by folds, for a terminal."""
    return pooled_tables(folder.plan, read_pooled(folder))


def pooled_tables(plan: StudyPlan, frame: pd.DataFrame) -> RenderableType:
    """The same from pooled results."""
    if frame.empty:
        return Text("No cross-validation is complete yet, so there are no pooled folds.")
    tables: list[RenderableType] = []
    for (data, measure), pooled in frame.groupby(["data", "measure"], sort=False):
        first = pooled.iloc[0]
        size = f"{first['patients']:,} patients, {first['rows']:,} rows, {plural(first['repeats'], 'repeat')}"
        title = f"{plan.named(str(data)).title or data}, {measure}: all folds pooled ({size})"
        table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False)
        for column in POOLED_HEADERS:
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
    """The cells of each row of pooled folds; columns are those of POOLED_HEADERS."""
    lines: list[tuple[str, ...]] = []
    for row in frame.to_dict("records"):
        gap, performance, change, lost = (
            "" if pd.isna(row[name]) else interval(row[name], row[f"{name}_low"], row[f"{name}_high"], sign)
            for name, sign in (("gap", "+"), ("performance", ""), ("gap_change", "+"), ("performance_lost", "+"))
        )
        lines.append((str(row["method"]), gap, f"{row['mean_abs']:.3f}", p_value_words(row["p_value"]), performance, change, lost))
    return lines


def save_trajectories(plan: StudyPlan, rows: pd.DataFrame, traces: pd.DataFrame, folder: str | Path) -> list[Path]:
    """Writes a figure (SVG) for each data set with a stepwise method, with one panel per method and measure."""
    steps, written = _stepwise(plan, rows, traces), []
    about = "Thin: each split. Bold: median over splits. Dots: each split's chosen step. Dotted: the limits of the goal."
    for data, of_data in steps.groupby("data", sort=False):
        cells = dict(list(of_data.groupby(["method", "measure"], sort=False)))
        names = [(arm.name, measure) for arm in plan.methods for measure in plan.measures]
        panels = [arm_panel(cells[name], plan, *name) for name in names if name in cells]
        picture = picture_of(f"{plan.named(str(data)).title or data}: validation set", about, [Figures(panels)])
        written.append(write_text(Path(folder) / f"trajectories-{data}.svg", picture, follow=False))
    return written


def _stepwise(plan: StudyPlan, rows: pd.DataFrame, traces: pd.DataFrame) -> pd.DataFrame:
    """The traces of stepwise methods, with their coordinate `x`, the chosen step and the limits of the goal."""
    stepwise = [arm.name for arm in plan.methods if METHODS[arm.method].counts]
    chosen = rows[[*ROW_KEYS, "step", "pace", "min_performance", "max_gap"]].rename(columns={"step": "chosen"})
    merged = traces[traces["method"].isin(stepwise)].merge(chosen, on=ROW_KEYS, how="inner")
    return merged.assign(x=merged["step"] * merged["pace"].fillna(1.0))


def median_line(part: pd.DataFrame) -> pd.DataFrame:
    """The median over splits at each step that at least half of the splits reach: few splits would not be a fair sample.

    >>> steps = pd.DataFrame({"seed": [0, 1, 2, 0], "x": [0, 0, 0, 1], "gap": [1.0, 2.0, 9.0, 5.0], "performance": 0.5})
    >>> median_line(steps).values.tolist()
    [[0.0, 2.0, 0.5]]
    """
    grouped = part.groupby("x")
    enough = grouped.size() * 2 >= part["seed"].nunique()
    return grouped[["gap", "performance"]].median()[enough].reset_index()


def axis_title(plan: StudyPlan, part: pd.DataFrame, arm: str) -> str:
    """The unit of the horizontal axis of an arm; steps if its rows have no pace."""
    return METHODS[plan.arm(arm).method].unit(plan.arm(arm).settings) if part["pace"].notna().all() else "step"


def arm_panel(part: pd.DataFrame, plan: StudyPlan, arm: str, measure: str) -> Panel:
    """Bias and performance of an arm against its steps, with the median of the limits that splits have of their own."""
    splits, middle = part.drop_duplicates("seed"), median_line(part)
    least, most = (float(splits[name].median()) for name in ("min_performance", "max_gap"))
    low, last = min(-0.05, float(part["gap"].min()) - 0.03), max(float(part["x"].max()), 1.0)
    axes = Axes(low, 1.0, 0.0, last)
    marks = [axes.level("base", 0)]
    if not np.isnan(least):
        marks.append(axes.level("min_performance", least, f"minimum {least:.2f}"))
    if not np.isnan(most):
        marks += [axes.level("max_gap", end, f"maximum gap {most:g}") for end in (most, -most) if end >= low]
    for name in QUANTITIES:
        for frame, style in (*((split, " thin") for _, split in part.groupby("seed")), (middle, "")):
            drawn = frame.iloc[np.unique(np.linspace(0, len(frame) - 1, MOST_STEPS).astype(int))]
            marks.append(axes.curve(f"track {name}{style}", zip(drawn["x"], drawn[name], strict=True)))
        chosen = part[part["step"] == part["chosen"]]
        marks += [axes.dot(f"end {name}", x, y, 2.5) for x, y in zip(chosen["x"], chosen[name], strict=True)]
    first, end = middle.iloc[0], middle.iloc[-1]
    says = (
        f"{arm}, {measure}: {len(splits)} splits. Median bias {first['gap']:+.3f} at first and {end['gap']:+.3f} at the last step that "
        f"half of them reach; {plan.performance.replace('_', ' ')} {first['performance']:.3f} and {end['performance']:.3f}."
    )
    ticks = (
        axes.x_ticks(np.linspace(0, last, 5), lambda v: f"{v:.3g}"),
        axes.y_ticks(steps_within(low, 1.0, 6), lambda v: f"{v:.1f}".replace("-0.0", "0.0")),
    )
    title = axis_title(plan, part, arm)
    return Panel(f"{arm}, {measure.upper()}", says, *ticks, title, f"bias, {plan.performance.replace('_', ' ')}", tuple(marks))
