"""The options of `equipoise audit`, and their problems."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from equipoise import data, measures, repair
from equipoise.cli.inputs import check_places, collected, json_problems, page_problems, parse_thresholds
from equipoise.cli.options import GroupNameOption, PdfOption, pipeline_option
from equipoise.cli.source_options import SourceOptions, check_score_problems, estimator_problems, role_problems
from equipoise.errors import did_you_mean, raise_all

RETURNING = ("first", "all")


@dataclass(frozen=True)
class AnalysisOptions:
    """Options of the estimates."""

    threshold: Annotated[
        list[str] | None,
        typer.Option(
            help="Scores at or above this value are decided positive; with several labels, one for all, or LABEL=VALUE, as in Mass=0.08, "
            "repeated for each.",
            show_default="0.5",
        ),
    ] = None
    valid: Annotated[
        Path | None, typer.Option(help="File with the same columns on which the threshold with the best balanced accuracy is chosen.")
    ] = None
    measure: Annotated[
        list[str] | None,
        typer.Option(
            help="Only this measure (spd, eod, fpr_gap, ppv_gap, ... or a sum of rates such as tpr-fpr), with an error for "
            "empty cells; repeat it for more."
        ),
    ] = None
    train: Annotated[
        Path | None,
        typer.Option(
            help="File with the training set in the same columns: a logistic regression on the same inputs is fitted to it, and reported "
            "where it clearly does better than the --model."
        ),
    ] = None
    shrink: Annotated[
        bool,
        typer.Option(
            "--shrink", help="Also report shrunken gaps (empirical Bayes) of attributes with at least four groups, such as intersections."
        ),
    ] = False
    probe: Annotated[
        bool,
        typer.Option(
            "--probe",
            help="Also report how well each layer of the --model predicts the group; this does not show that the network uses it.",
        ),
    ] = False
    draws: Annotated[int | None, typer.Option(help="Number of bootstrap resamples of --probe.", show_default="1000")] = None
    level: Annotated[float, typer.Option(help="Confidence level of the intervals, at most 0.9999.")] = 0.95
    seed: Annotated[int, typer.Option(help="Seed of permutations, resamples and the band of a calibrated model.")] = 0
    min_patients: Annotated[int, typer.Option(help="Cells with fewer patients are reported as 'insufficient data'.")] = 5
    specificity: Annotated[float, typer.Option(help="Specificity at which the sensitivity of each group is reported (--verbose).")] = 0.9
    sensitivity: Annotated[float, typer.Option(help="Sensitivity at which the specificity of each group is reported (--verbose).")] = 0.9
    thresholds: Annotated[
        str, typer.Option(help="Thresholds of the decision curves, START:STOP or START:STOP:STEP (--verbose, --figures, --json).")
    ] = "0.05:0.5"
    no_finding: Annotated[
        str | None,
        typer.Option(
            help="Label that means 'no finding', to report underdiagnosis (its false positive rate); or 'derived': none of the labels."
        ),
    ] = None

    def spec(self) -> measures.AuditSpec:
        """The options as the library takes them."""
        names = (
            *("valid", "train", "shrink", "probe", "level", "seed", "min_patients", "specificity", "sensitivity", "thresholds"),
            "no_finding",
        )
        options: dict[str, Any] = {name: getattr(self, name) for name in names} | ({} if self.draws is None else {"draws": self.draws})
        return measures.AuditSpec(**options, measures=None if not self.measure else tuple(self.measure))


@dataclass(frozen=True)
class FileOptions:
    """Options of the files to write."""

    save: Annotated[Path | None, typer.Option("--out", help="Also write the result as JSON to this file.")] = None
    page: Annotated[
        Path | None,
        typer.Option("--report", help="Also write an HTML report to this file; with several labels, an overview and one page per label."),
    ] = None
    pdf: PdfOption = None
    group_name: GroupNameOption = None
    figures: Annotated[Path | None, typer.Option(help="Also write figures (PNG and SVG) into this folder.")] = None


@dataclass(frozen=True)
class HistoryOptions:
    """The history to which an audit is added."""

    append: Annotated[
        Path | None, pipeline_option(help="Add the audit to this history (.parquet), which `equipoise compare` follows over time.")
    ] = None
    date: Annotated[
        str | None,
        pipeline_option(
            help="Period of --append: a year, quarter, month, week or day, as in 2026, 2026-Q4, 2026-11, 2026-W46 or 2026-11-16."
        ),
    ] = None
    replace_period: Annotated[bool, pipeline_option("--replace", help="Replace the period if the history of --append has it.")] = False
    new_group: Annotated[
        list[str] | None, pipeline_option(help="Group to accept although it is new to the history of --append; repeat it for more.")
    ] = None
    earlier: Annotated[
        list[Path] | None,
        pipeline_option(
            help="Table of an earlier period with the same --patient column: its patients are left out, so that each is in one period "
            "of the history; repeat it for more. Nothing about patients is stored."
        ),
    ] = None
    returning: Annotated[
        str,
        pipeline_option(help="Patients of --earlier: first (only their first period counts) or all (they count again, with a warning)."),
    ] = "first"


def option_problems(source: SourceOptions, analysis: AnalysisOptions, files: FileOptions, history: HistoryOptions) -> list[str]:
    """Options that cannot be combined, or are invalid."""
    options, labels = source.inputs.options, source.inputs.labels
    network_only = source.network_only | {"--probe": analysis.probe}
    problems = role_problems(source, network_only | {"--feature": options["features"], "--train": analysis.train})
    if len(labels) > 1 and analysis.probe:
        problems.append("--probe takes one --label, since the layers are the same for all. Omit the others.")
    problems += source.inputs.problems() + check_score_problems(source) + estimator_problems(source, network_only)
    if analysis.draws is not None and not analysis.probe:
        problems.append("--draws requires --probe; no other interval is resampled. Omit it.")
    if options["classes"] and (analysis.threshold or analysis.valid is not None):
        problems.append("classes are decided by argmax, without a threshold. Omit --threshold and --valid.")
    collected(problems, lambda: parse_thresholds(analysis.threshold, labels))
    collected(problems, analysis.spec)
    problems += page_problems({"--report": files.page, "--pdf": files.pdf}) + json_problems(files.save)
    problems += _no_finding_problems(analysis.no_finding, labels)
    return problems + _history_problems(history) + _earlier_problems(source, analysis, history)


def _history_problems(options: HistoryOptions) -> list[str]:
    """Options of a history that cannot be combined, or are invalid."""
    append = options.append
    if options.returning not in RETURNING:
        return [f"--returning must be {' or '.join(RETURNING)}; got {options.returning!r}"]
    if options.returning != RETURNING[0] and not options.earlier:
        return [f"--returning {options.returning} requires the tables of earlier periods. Add --earlier FILE, or omit --returning."]
    if append is None:
        used = {"--date": options.date is not None, "--replace": options.replace_period, "--new-group": bool(options.new_group)}
        return [f"{option} requires --append FILE. Add it, or omit {option}." for option, is_used in used.items() if is_used]
    if options.date is None:
        return ["--append requires the period of the audit. Add --date, as in --date 2026-11."]
    if append.suffix.lower() not in (".parquet", ".pq"):
        return [f"--append writes Parquet; got {append.name!r}. Use --append {append.with_suffix('.parquet').name}."]
    return []


def _earlier_problems(source: SourceOptions, analysis: AnalysisOptions, history: HistoryOptions) -> list[str]:
    """Options that cannot be combined with --earlier."""
    if not history.earlier:
        return []
    options = source.inputs.options
    problems = [] if options["patient"] else ["--earlier finds patients by their ids. Add --patient with their column."]
    used = {"--train": analysis.train, "--probe": analysis.probe}
    problems += [f"{option} is about all rows and cannot be combined with --earlier. Omit one of them." for option, v in used.items() if v]
    if source.network.model is None and source.file.exists() and data.is_large(source.file, options["max_table_bytes"]):
        problems.append(
            f"{source.file} is read in batches, from which patients of --earlier cannot be left out. Leave them out of the table."
        )
    return problems


def _no_finding_problems(name: str | None, labels: list[str]) -> list[str]:
    """A problem if --no-finding does not name a label, or cannot be derived."""
    if name is None or name in labels:
        return []
    if name != measures.DERIVED:
        return [f"--no-finding {name} is not a --label.{did_you_mean(name, labels)} Name one of them, or use --no-finding derived."]
    return [] if len(labels) > 1 else ["--no-finding derived needs several --label: no finding is none of them."]


def check_files(source: SourceOptions, analysis: AnalysisOptions, files: FileOptions, history: HistoryOptions) -> None:
    """Raises an error before any work if a file does not exist or cannot be written."""
    for path in (source.file, analysis.valid, source.scores.check_scores, *(history.earlier or ())):  # before pandas is imported
        if path is not None and not path.exists():
            raise data.no_such_file(path)
    check_places(files.save, files.page, history.append, files.figures and files.figures / "rates.png", pdf=files.pdf)
    if history.append:
        measures.history(history.append).check_period(history.date or "", replace=history.replace_period)
    labels = source.inputs.labels
    folders = [] if files.figures is None or len(labels) == 1 else repair.folders(files.figures, labels).values()
    problems = [  # figures written through a link could replace any file
        f"{folder} is a link, and figures are not written through links. Remove it, or name another --figures."
        for folder in folders
        if folder.is_symlink()
    ]
    raise_all(problems)
