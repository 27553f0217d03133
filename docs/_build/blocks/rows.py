"""Rows under experiments/ as numbers in words and as Markdown tables."""

import os
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pandas as pd

ROOT = Path(__file__).parents[3]
EXPERIMENTS = ROOT / "experiments"
READ: set[str] = set()  # the files that were read since this was cleared, by their path in the repository
NAMES = {"compas": "COMPAS", "bank": "Bank", "adult": "Adult", "loh-2.5": "Loh, alpha 2.5", "zafar-0.7": "Zafar, vartheta 0.7"}
SPLIT, BALANCED = 0.2 / 0.8, 0.25 / 0.75  # test rows divided by the others, of the protocols of studies
TASKS = ("any finding", "effusion", "atelectasis")
INPUTS = ("attribute among the inputs", "attribute not among the inputs")


def rows(name: str) -> pd.DataFrame:
    """A file of rows under experiments/."""
    path = os.path.relpath(EXPERIMENTS / name, ROOT)
    READ.add(path)
    return _frame(path)


@cache
def _frame(path: str) -> pd.DataFrame:
    return pd.read_csv(ROOT / path)


def sources(read: Iterable[str]) -> str:
    """The line under a block that names its rows: the README in each of these folders has the command that made them, and one for a cell."""
    folders: dict[str, list[str]] = {}
    for path in sorted(read):
        folder, _, name = path.rpartition("/")
        folders.setdefault(f"`{folder}`", []).append(f"`{name}`")
    listed = [f"{folder} ({', '.join(names)})" for folder, names in folders.items()]
    return f"Rows and commands: {'; '.join(listed)}.\n"


def one(frame: pd.DataFrame, **where: object) -> "pd.Series[float]":
    """The only row with these values."""
    for column, value in where.items():
        frame = frame[frame[column] == value]
    if len(frame) != 1:
        raise SystemExit(f"expected one row with {where}, found {len(frame)}")
    return frame.iloc[0]


def table(header: Iterable[str], lines: Iterable[Iterable[object]]) -> str:
    """A Markdown table."""
    head = list(header)
    made = [[str(cell) for cell in line] for line in lines]
    if any(len(line) != len(head) for line in made):
        raise SystemExit(f"a line of the table {head} has another number of cells")
    return (
        "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in [head, ["---"] * len(head), *made])
        + "\n"
    )


def gap(value: float) -> str:
    """A signed gap."""
    return f"{value:+.3f}"


def at(line: "pd.Series[float]", column: str = "mean_abs_gap") -> str:
    """Mean absolute gap at balanced accuracy."""
    return f"{line[column]:.3f} at {line['balanced_accuracy']:.3f}"


def mean_at(frame: pd.DataFrame, method: str, arm: str) -> str:
    """Mean absolute gap at balanced accuracy of one arm of experiments/defaults, over its splits."""
    own = frame[(frame["method"] == method) & (frame["arm"] == arm)]
    if own.empty:
        raise SystemExit(f"expected rows of {method}, {arm}; found none")
    return f"{own['gap'].abs().mean():.3f} at {own['performance'].mean():.3f}"


def interval(line: "pd.Series[float]", column: str = "gap") -> str:
    """A gap with its interval."""
    return f"{line[column]:+.3f} [{line[f'{column}_low']:+.3f}, {line[f'{column}_high']:+.3f}]"


def over_splits(line: "pd.Series[float]", splits: int, shared: float, column: str = "gap") -> "pd.Series[float]":
    """The line with the interval of a mean over splits that share rows (Nadeau and Bengio 2003), instead of the plain one in its rows."""
    wider, value = (1 + splits * shared) ** 0.5, line[column]
    return pd.Series({**line, **{f"{column}_{end}": value + wider * (line[f"{column}_{end}"] - value) for end in ("low", "high")}})
