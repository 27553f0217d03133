"""The tables of docs/reproduction.md, and of the choice of our defaults, from the rows in experiments/: `python docs/_build/reproduction.py`; with
`--check` nothing is written, and a page that is older than its rows is an error.

A study is brought into experiments/ by `python docs/_build/reproduction.py --collect runs/paper-tabular --note "16 cores, 9 minutes"`: its rows
without their traces, its definition, and what it took. A cell that differs from the published mean by more than one published standard
deviation needs an explanation in experiments/<study>/explanations.toml; one without an explanation, or an explanation without such a cell, is
an error.
"""

import argparse
import json
import re
import sys
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pandas as pd

from equipoise.studies import StudyPlan, corrected_t_test, make_plan, open_study, published, read_rows, read_timings, summarise

ROOT = Path(__file__).parents[2]
EXPERIMENTS = ROOT / "experiments"
PAGE, CHOICE = ROOT / "docs" / "reproduction.md", EXPERIMENTS / "departures" / "README.md"
NOTES = {name: EXPERIMENTS / name / "README.md" for name in ("paper-tabular", "paper-sensitivity")}
COLUMNS = ["data", "measure", "method", "seed", "gap", "performance", "valid_gap", "valid_performance", "met", "step", "steps"]
COLUMNS += ["min_performance", "max_gap", "seconds"]
SUFFIX = "-published"
VARIANTS = {"published": "ours as published", "default": "ours with our choices"}
QUANTITIES = {"bias": ("gap", "+"), "BA": ("performance", "")}
DIGITS = 2  # of the published numbers
WITHOUT_GROUP = ("random", "adversarial-finetune", "pruning", "bias-gda", "adversarial-training")  # at prediction time
TABLES = {"tabular": "paper-tabular", "sensitivity": "paper-sensitivity"}
CHOICES = {  # arms of paper-tabular and of departures: mode, weights
    "bias-gda-eval-best": "eval mode, best weights",
    "bias-gda": "training mode, best weights (our default)",
    "bias-gda-eval-last": "eval mode, last weights",
    "bias-gda-published": "training mode, last weights (published)",
}
COMPARED = {  # what is compared with what
    "mode: training instead of eval, best weights": ("bias-gda", "bias-gda-eval-best"),
    "mode: training instead of eval, last weights": ("bias-gda-published", "bias-gda-eval-last"),
    "weights: last instead of best, eval mode": ("bias-gda-eval-last", "bias-gda-eval-best"),
    "weights: last instead of best, training mode": ("bias-gda-published", "bias-gda"),
}


class Stale(Exception):
    """What is wrong with the page or with the explanations, all in one message."""


@dataclass(frozen=True)
class Study:
    """A study in experiments/: its definition, its rows, and where they are."""

    folder: Path
    plan: StudyPlan
    rows: pd.DataFrame

    @classmethod
    def read(cls, folder: Path) -> "Study":
        """The study in a folder of experiments/."""
        definition = json.loads((folder / "study.json").read_text(encoding="utf-8"))["definition"]
        return cls(folder, make_plan(definition, source=str(folder)), pd.read_csv(folder / "rows.csv"))


@dataclass(frozen=True)
class Cell:
    """One number of a table: a mean over splits, next to the published one."""

    data: str
    measure: str
    method: str
    variant: str  # published or default
    quantity: str  # bias or BA
    mean: float
    sd: float
    paper: float
    paper_sd: float

    @property
    def key(self) -> str:
        """What explanations call it."""
        return f"{self.data} {self.measure} {self.method} {self.variant} {self.quantity}"

    @property
    def beyond(self) -> bool:
        """Whether it differs from the published mean by more than one published standard deviation, at the digits that the paper prints."""
        return abs(round(self.mean, DIGITS) - self.paper) > self.paper_sd + 1e-9

    def __str__(self) -> str:
        sign = QUANTITIES[self.quantity][1]
        return f"{self.mean:{sign}.{DIGITS}f} ± {self.sd:.{DIGITS}f}"


def cells_of(study: Study) -> list[Cell]:
    """The cells of a study, in the order of its plan."""
    found = []
    for data in study.plan.data:
        for measure in study.plan.measures:
            for arm in study.plan.methods:
                paper = published(data.published, measure, arm.method)
                rows = study.rows.query("data == @data.name and measure == @measure and method == @arm.name")
                if paper is None or rows.empty:
                    continue
                variant = "published" if arm.name.endswith(SUFFIX) else "default"
                for quantity, (column, _) in QUANTITIES.items():
                    mean, sd = float(rows[column].mean()), float(rows[column].std())
                    numbers = (paper.bias, paper.bias_sd) if quantity == "bias" else (paper.performance, paper.performance_sd)
                    found.append(Cell(data.name, measure, arm.method, variant, quantity, mean, sd, *numbers))
    return found


def explanations_of(study: Study, cells: Sequence[Cell]) -> list[tuple[str, list[Cell]]]:
    """Each explanation with its cells; an error that names every cell that has none or too many, and every name that is no such cell."""
    path = study.folder / "explanations.toml"
    written = tomllib.loads(path.read_text(encoding="utf-8")).get("explanation", []) if path.is_file() else []
    beyond = {cell.key: cell for cell in cells if cell.beyond}
    named = [key for entry in written for key in entry["cells"]]
    problems = [f"no explanation for {key}" for key in beyond if key not in named]
    problems += [f"{key} is explained and within one published standard deviation, or no cell" for key in named if key not in beyond]
    problems += [f"{key} is explained more than once" for key in dict.fromkeys(named) if named.count(key) > 1]
    if problems:
        raise Stale(f"{path}: {len(problems)} problems\n" + "\n".join(f"- {problem}" for problem in problems))
    return [(" ".join(entry["because"].split()), [beyond[key] for key in entry["cells"]]) for entry in written]


def table(study: Study, cells: Sequence[Cell]) -> Iterator[str]:
    """A line per data, measure and method: bias and balanced accuracy, published, ours as published, ours with our choices."""
    found = {cell.key: cell for cell in cells}
    yield f"| data | measure | method | published: bias, BA | {' | '.join(f'{name}: bias, BA' for name in VARIANTS.values())} |"
    yield "|---|---|---|---|" + "---|" * len(VARIANTS)
    for start in dict.fromkeys((cell.data, cell.measure, cell.method) for cell in cells):
        name, measure, method = start
        paper = [cell for cell in cells if (cell.data, cell.measure, cell.method) == start][:2]
        texts = [", ".join(f"{c.paper:{QUANTITIES[c.quantity][1]}.{DIGITS}f} ± {c.paper_sd:.{DIGITS}f}" for c in paper)]
        for variant in VARIANTS:
            own = [found.get(f"{name} {measure} {method} {variant} {quantity}") for quantity in QUANTITIES]
            texts.append(", ".join(_marked(cell) for cell in own if cell))
        yield f"| {study.plan.named(name).title or name} | {measure.upper()} | {method} | {' | '.join(texts)} |"


def _marked(cell: Cell) -> str:
    return f"**{cell}**" if cell.beyond else str(cell)


def differences(cells: Sequence[Cell]) -> Iterator[str]:
    """Per method, the mean absolute difference to the published means, and how many cells are beyond one standard deviation."""
    heads = [f"{name}: {quantity}" for name in VARIANTS.values() for quantity in QUANTITIES]
    yield f"| method | {' | '.join(heads)} | {' | '.join(f'{name}: cells beyond' for name in VARIANTS.values())} |"
    yield "|---|" + "---|" * (len(heads) + len(VARIANTS))
    for method in dict.fromkeys(cell.method for cell in cells):
        texts, beyond = [], []
        for variant in VARIANTS:
            own = [cell for cell in cells if (cell.method, cell.variant) == (method, variant)]
            for quantity in QUANTITIES:
                sizes = [abs(cell.mean - cell.paper) for cell in own if cell.quantity == quantity]
                texts.append(f"{sum(sizes) / len(sizes):.3f}" if sizes else "")
            beyond.append(f"{sum(cell.beyond for cell in own)} of {len(own)}" if own else "")
        yield f"| {method} | {' | '.join([*texts, *beyond])} |"


def explained(study: Study, cells: Sequence[Cell]) -> Iterator[str]:
    """Every explanation, and the cells that it is for; their numbers are in the table."""
    for because, own in explanations_of(study, cells):
        yield f"- {because}"
        for variant, name in VARIANTS.items():
            places: dict[str, list[str]] = {}
            for c in (c for c in own if c.variant == variant):
                places.setdefault(f"{study.plan.named(c.data).title or c.data}, {c.measure.upper()}, {c.method}", []).append(c.quantity)
            if places:
                texts = "; ".join(f"{place} ({', '.join(quantities)})" for place, quantities in places.items())
                yield f"  Cells, {name}: {texts}."
        yield ""


def blocks(results: Path = EXPERIMENTS) -> dict[str, str]:
    """The generated blocks of the page by name: a table, what it differs by, and where the reasons are."""
    found = {}
    for name, study_name in TABLES.items():
        if not (results / study_name / "rows.csv").is_file():
            found[name] = f"No rows in `experiments/{study_name}` yet: the study has not been run in full (see the notes there)."
            continue
        study = Study.read(results / study_name)
        cells = cells_of(study)
        off = sum(cell.beyond for cell in cells)
        lines = [_run_of(study), "", *table(study, cells), "", "Mean absolute difference to the published means, per method:", ""]
        lines += [*differences(cells), ""]
        lines += [f"{off} of {len(cells)} cells are beyond one published standard deviation; the reasons are in `experiments/{study_name}`."]
        found[name] = "\n".join(lines).strip()
    return found


def today(results: Path = EXPERIMENTS) -> dict[str, str]:
    """The block on the product's default: what `auto` leaves without further settings, next to the published original and best method."""
    found = pd.read_csv(results / "defaults" / "present.csv")
    study = Study.read(results / "paper-tabular")
    titles = {data.name: data.title or data.name for data in study.plan.data}
    lines = ["| data | measure | published: original | published: smallest bias without the group, method | original | today's default | splits |"]
    lines.append("|---|---|---|---|---|---|---|")
    for (data, measure), cell in found[found["problem"].isna()].groupby(["data", "measure"]):
        papers = {method: published(study.plan.named(data).published, measure, method) for method in ("standard", *WITHOUT_GROUP)}
        known = {method: number for method, number in papers.items() if number is not None}
        best = min((method for method in known if method != "standard"), key=lambda method: abs(known[method].bias))
        told = [f"{p.bias:+.2f} ± {p.bias_sd:.2f}, {p.performance:.2f} ± {p.performance_sd:.2f}" for p in (known["standard"], known[best])]
        ours = [cell[cell["arm"] == arm] for arm in ("original", "default")]
        told += [
            f"{own['gap'].mean():+.2f} ± {own['gap'].std():.2f}, {own['performance'].mean():.2f} ± {own['performance'].std():.2f}" for own in ours
        ]
        lines.append(f"| {titles[data]} | {measure.upper()} | {told[0]} | {told[1]}, {best} | {told[2]} | {told[3]} | {len(ours[1])} |")
    return {"today": "\n".join(lines)}


def reasons(name: str, results: Path = EXPERIMENTS) -> dict[str, str]:
    """The block of the notes on a study: every cell beyond one published standard deviation, with why."""
    study = Study.read(results / name)
    return {"reasons": "\n".join(explained(study, cells_of(study))).strip()}


def pages(results: Path = EXPERIMENTS) -> dict[Path, dict[str, str]]:
    """The generated blocks of every page."""
    notes = {path: reasons(name, results) for name, path in NOTES.items()}
    notes[NOTES["paper-sensitivity"]] |= minimum(results)
    return {PAGE: blocks(results) | today(results), CHOICE: choice(results), **notes}


def minimum(results: Path = EXPERIMENTS) -> dict[str, str]:
    """The block on the minimum performance, which the paper does not give: how far our arms as published are from it under each."""
    study = Study.read(results / "paper-sensitivity")
    found = pd.read_csv(results / "paper-sensitivity" / "floors.csv")
    found = found[found["method"].str.endswith(SUFFIX)].assign(method=lambda rows: rows["method"].str.removesuffix(SUFFIX))
    paper = [published(study.plan.named(row.data).published, row.measure, row.method) for row in found.itertuples()]
    assert all(paper)  # every cell of this study is in the paper
    found["simulation"] = found["data"].str.partition("-")[0].str.capitalize()
    found["bias"] = [abs(gap - p.bias) for gap, p in zip(found["gap"], paper, strict=True) if p]
    found["BA"] = [abs(value - p.performance) for value, p in zip(found["performance"], paper, strict=True) if p]
    keys = ["simulation", "measure", "method"]
    means = found.groupby([*keys, "min_performance"], sort=False)[["bias", "BA"]].mean()
    least = list(dict.fromkeys(found["min_performance"]))
    lines = [f"| simulation | measure | method | {' | '.join(f'{value:.2f}' for value in least)} |", "|---|---|---|" + "---|" * len(least)]
    for key in dict.fromkeys(means.index.droplevel("min_performance")):
        numbers = [means.loc[(*key, value)] for value in least]
        best = min(range(len(least)), key=lambda k: numbers[k]["BA"])
        texts = [f"{row['bias']:.3f}, {row['BA']:.3f}" for row in numbers]
        texts[best] = f"**{texts[best]}**"
        lines.append(f"| {key[0]} | {key[1].upper()} | {key[2]} | {' | '.join(texts)} |")
    return {"minimum": "\n".join(lines)}


def choice(results: Path = EXPERIMENTS) -> dict[str, str]:
    """The blocks on which our defaults rest: the four variants of bias GD/A, and what each choice changes, paired by split."""
    studies = [Study.read(results / name) for name in ("paper-tabular", "departures")]
    rows = pd.concat([study.rows for study in studies], ignore_index=True)
    rows = rows[rows["method"].isin(CHOICES)]
    titles = {data.name: data.title or data.name for data in studies[0].plan.data}
    shared = studies[0].plan.fractions[2] / sum(studies[0].plan.fractions[:2])
    lines = ["| data | measure | bias GD/A | bias | mean absolute bias | BA |", "|---|---|---|---|---|---|"]
    found = summarise(rows).set_index(["data", "measure", "method"])
    cells = list(dict.fromkeys((data, measure) for data, measure, _ in found.index))
    for data, measure in cells:
        for arm, words in CHOICES.items():
            row = found.loc[(data, measure, arm)]
            bias, size = f"{row['gap_mean']:+.3f} ± {row['gap_sd']:.3f}", f"{row['abs_gap_mean']:.3f}"
            accuracy = f"{row['performance_mean']:.3f} ± {row['performance_sd']:.3f}"
            lines.append(f"| {titles[data]} | {measure.upper()} | {words} | {bias} | {size} | {accuracy} |")
    paired = [f"| data | measure | quantity | {' | '.join(COMPARED)} |", "|---|---|---|" + "---|" * len(COMPARED)]
    sized = rows.assign(abs_gap=rows["gap"].abs())
    for quantity, words in (("abs_gap", "absolute bias"), ("performance", "BA")):
        table = sized.pivot_table(index=["data", "measure", "seed"], columns="method", values=quantity)
        changes = {name: table[new] - table[old] for name, (new, old) in COMPARED.items()}
        for data, measure in cells:
            each = [_interval(c[data, measure], shared) for c in changes.values()]
            paired.append(f"| {titles[data]} | {measure.upper()} | {words} | {' | '.join(each)} |")
        pooled = [_interval(c.groupby("seed").mean(), shared) for c in changes.values()]  # the mean of the cells in each split
        paired.append(f"| mean of all six | | {words} | {' | '.join(pooled)} |")
    return {"choice table": "\n".join(lines), "choice paired": "\n".join(paired), "choice run": _run_of(studies[1])}


def _interval(difference: "pd.Series[float]", shared: float) -> str:
    """Mean and 95 % t interval of paired differences, with the variance of splits that share rows."""
    found = corrected_t_test(difference.to_numpy(dtype=np.float64), shared)
    return f"{found['difference']:+.3f} [{found['low']:+.3f}, {found['high']:+.3f}]"


def _run_of(study: Study) -> str:
    """How the rows came to be."""
    about = json.loads((study.folder / "study.json").read_text(encoding="utf-8"))
    timings = pd.read_csv(study.folder / "timings.csv")
    counted = "training included" if "training" in set(timings["method"]) else "training not counted"
    where = "of processes that shared one GPU" if about.get("device", "cpu").startswith("cuda") else "of one core"
    spent = f" {timings['seconds'].sum() / 60:.0f} minutes {where}, {counted}."
    rows = f"{len(study.rows):,} rows in `experiments/{study.folder.name}/rows.csv`"
    return f"{rows}, of study {about['fingerprint']}, Equipoise {about['version']}, {about['collected']}: {about['note']}.{spent}"


def filled(text: str, found: dict[str, str]) -> str:
    """The text with its generated blocks replaced; a block that is not there, or not known, is an error."""
    places = re.findall(r"^\[//\]: # \(begin (.+)\)$", text, re.MULTILINE)
    if set(places) != set(found) or len(places) != len(found):
        raise Stale(f"the page should have each of these blocks once: {', '.join(found)}; it has {', '.join(places)}")
    for name, block in found.items():
        pattern = re.compile(rf"(^\[//\]: # \(begin {re.escape(name)}\)$\n).*?(^\[//\]: # \(end\)$)", re.MULTILINE | re.DOTALL)
        text, count = pattern.subn(lambda match, block=block: f"{match[1]}\n{block}\n\n{match[2]}", text)
        if count != 1:
            raise Stale(f"block {name!r} does not end with [//]: # (end)")
    return text


def collect(source: Path, note: str, results: Path = EXPERIMENTS) -> Path:
    """Brings a study from the folder of its run into experiments/, without networks and traces."""
    study = open_study(source)
    rows = read_rows(study)
    wanted = len(study.plan.data) * len(study.plan.measures) * len(study.plan.methods) * study.plan.splits
    if len(rows) != wanted:
        raise Stale(f"{source} is not finished: {len(rows):,} rows of {wanted:,}")
    folder = results / study.plan.name
    folder.mkdir(parents=True, exist_ok=True)
    rows[COLUMNS].to_csv(folder / "rows.csv", index=False, float_format="%.6g")
    read_timings(study).round(2).to_csv(folder / "timings.csv", index=False)
    about = json.loads((source / "study.json").read_text(encoding="utf-8"))
    kept = {key: about[key] for key in ("study", "fingerprint", "version", "code", "definition")}
    device = ", ".join(dict.fromkeys(rows["device"].dropna().astype(str))) or "cpu"
    told = {**kept, "device": device, "collected": datetime.now(UTC).date().isoformat(), "note": note}
    (folder / "study.json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; fail where the page is older than the rows")
    parser.add_argument("--collect", type=Path, help="the folder of a finished study, to bring into experiments/")
    parser.add_argument("--note", default="", help="with --collect: machine and time of the run")
    given = parser.parse_args()
    try:
        if given.collect:
            print(collect(given.collect, given.note))
            return
        for page, found in pages().items():
            old = page.read_text(encoding="utf-8")
            new = filled(old, found)
            if given.check and new != old:
                raise Stale(f"{page.relative_to(ROOT)} is older than the rows in experiments/: python docs/_build/reproduction.py")
            if not given.check:
                page.write_text(new, encoding="utf-8")
    except Stale as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
