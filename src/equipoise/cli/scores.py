"""Scores in place of a network: the options that name their columns, and their repair by `equipoise debias`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from equipoise import data, report
from equipoise.cli import inputs as given
from equipoise.cli.console import bar, notes
from equipoise.cli.outcome import exit_if_lacking, print_labels, print_plan, result_json
from equipoise.errors import BadInput

if TYPE_CHECKING:
    from equipoise.methods import Goal
    from equipoise.models import Predictor
    from equipoise.repair import Options

ScoreOption = Annotated[
    list[str] | None,
    typer.Option(
        help="Column with the classifier's score in [0, 1], in place of a --model; one per --label, in the same order. With "
        "--check-scores, a column of that file."
    ),
]
ScorePrefixOption = Annotated[
    str | None,
    typer.Option(
        help="How score columns begin: score_ pairs the column score_Effusion with the label Effusion. Without --label, all such pairs."
    ),
]
LogitsOption = Annotated[bool, typer.Option("--logits", help="The scores are logits: map them by the logistic function first.")]


def paired(inputs: given.Inputs, file: Path, score: list[str] | None, prefix: str | None) -> tuple[given.Inputs, list[str]]:
    """The inputs with their labels, and the score column of each: as named, or by a prefix of all score columns."""
    labels = inputs.options["labels"]
    if prefix is None:
        return inputs, score or []
    if score:
        raise BadInput("--score names score columns one by one, --score-prefix all at once; use one of them")
    found = data.paired_columns(file, prefix)
    if lacking := [label for label in labels if label not in found]:
        raise BadInput(
            *(f"label {label!r} has no score column {prefix + label!r} next to it" for label in lacking),
            f"The pairs of label and score are: {', '.join(found)}. Name those, or correct --score-prefix {prefix}",
            source=file.name,
        )
    chosen = {label: found[label] for label in labels or found}
    return given.Inputs({**inputs.options, "labels": list(chosen)}), list(chosen.values())


def with_model_only(model: str | None, labels: list[str], scores: list[str], network_only: Mapping[str, object], logits: bool) -> list[str]:
    """What is wrong with the options of a network, or of scores: exactly one of them is repaired."""
    problems = []
    if bool(scores) == (model is not None):
        problems.append("give either a column of scores with --score (or --score-prefix) or a network with --model (and --weights)")
    if scores and len(scores) != len(labels):
        problems.append(f"{len(labels)} --label and {len(scores)} --score do not match; give one score per label, in the same order")
    problems += [
        f"--score {name} was given twice. Give each label its own column." for name in sorted({s for s in scores if scores.count(s) > 1})
    ]
    if model is None:
        problems += [f"{option} requires --model. Omit it." for option, value in network_only.items() if value]
    if logits and not scores:
        problems.append("--logits is about the columns of --score. Omit it; a network has --output-type.")
    return problems


@dataclass(frozen=True)
class ScoreRepair:
    """What is to be repaired, how, and where the result goes."""

    file: Path
    test_file: Path | None
    share: float
    folder: Path
    methods: Mapping[str, Mapping[str, Any]]
    goal: Goal
    goals: Mapping[str, Goal] | None
    budget: float | None
    seed: int
    force: bool
    title: str | None
    model: str | None = None  # the file of an estimator that makes the scores


def repair_scores(
    ctx: typer.Context,
    reading: data.Reading,
    columns: list[str],
    logits: bool,
    asked: ScoreRepair,
    options: Options,
    group_name: list[str] | None,
    dry_run: bool,
    verbose: bool,
    as_json: bool,
    estimator: Predictor | None = None,
) -> None:
    """Repairs the scores of each label, prints the result and writes the folder; with a dry run, only what would be done.

    With an estimator, the scores are those that it gives, and it becomes part of the folder.
    """
    from equipoise.models import predict
    from equipoise.repair import Provenance, Request, check_rules, estimate_rules, rule_serving, save_all, try_rules, with_predictor

    check_rules(asked.methods, bool(reading.features) or estimator is not None)
    labels = reading.labels

    def read(path: Path, how: data.Reading) -> dict[str, data.Scores]:
        if estimator is None:
            return data.read_scores(path, how, columns, logits=logits)
        return {labels[0]: predict(estimator, given.cohort_of(path, how).cohort)}

    with notes():
        scores = read(asked.file, reading)
        first = scores[labels[0]]
        words = given.group_names_of(group_name, first)
        if asked.test_file is None:
            repair, test = data.hold_out_scores(scores, asked.share, seed=asked.seed)
        else:
            held = read(asked.test_file, reading.as_for(first))
            repair, test = scores, {label: data.same_groups(own, held[label]) for label, own in scores.items()}
        told = [report.varying_words(each) for each in data.varying_in(first.attributes, first.patients)]
        origin = Provenance.now(
            arguments=["equipoise", *(ctx.obj if isinstance(ctx.obj, list) else [])],
            model=asked.model or f"scores in {asked.file.name}",
            seed=asked.seed,
            files=[path for path in (asked.file, asked.test_file, asked.model and Path(asked.model)) if path],
            limits=told if asked.model else [*told, "the rule decides from scores; the classifier that makes them was not examined"],
        )
    if dry_run:
        with notes():
            found = estimate_rules(repair, test, asked.methods, asked.goal, asked.budget)
        print_plan(found, asked.folder, as_json)
        return
    with notes():
        names: dict[str, Any] = {"patient": reading.patient, "id": reading.id, "conflicts": reading.conflicts, "logits": logits}
        serving = {label: rule_serving(scores[label], score=column, **names) for label, column in zip(labels, columns, strict=True)}
        request = Request(labels[0], asked.title, origin)
        limits: dict[str, Any] = {"seed": asked.seed, "budget": asked.budget, "force": asked.force, "bars": bar}
        cases = try_rules(repair, test, asked.methods, asked.goal, request=request, goals=asked.goals, **limits)
        if estimator is not None:
            cases = {label: with_predictor(case, estimator) for label, case in cases.items()}
        title = asked.title or f"{len(labels)} labels of {asked.file.name}"
        done = save_all(cases, asked.folder, serving, replace(options, group_names=words), title=title, bars=bar)
    if as_json:
        print(result_json(asked.folder, done, {"left_out": []}))
    else:
        print_labels(asked.folder, cases, done, told, verbose)
    exit_if_lacking(done)
