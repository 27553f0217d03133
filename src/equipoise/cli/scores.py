"""`equipoise debias` for scores in place of a network, or for those of an estimator in a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from equipoise import data, report
from equipoise.cli.console import bar, notes
from equipoise.cli.inputs import cohort_of, group_names_of
from equipoise.cli.networks import checks_of, estimator_of, is_estimator
from equipoise.cli.outcome import exit_if_lacking, print_labels, print_plan, result_json, write_pdf
from equipoise.cli.repairs import Repair

if TYPE_CHECKING:
    from equipoise.models import Predictor
    from equipoise.repair import Comparison, Provenance, Saved, ScoreCheck

    ByLabel = dict[str, data.Scores]


def repair_scores(asked: Repair, arguments: list[str], verbose: bool, as_json: bool) -> None:
    """Repairs the scores of each label, prints the result and writes the folder; with a dry run, only what would be done.

    With an estimator, the scores are those that it gives, and it becomes part of the folder.
    """
    from equipoise.repair import check_rules, estimate_rules

    reading, network, run = asked.source.inputs.reading, asked.source.network, asked.run
    estimator = None
    if is_estimator(network.model):
        estimator, reading = estimator_of(network, reading)
    check_rules(asked.methods, bool(reading.features) or estimator is not None)
    with notes():
        scores, checks = _read(asked, estimator, asked.source.file, reading, check=True)
        first = scores[reading.labels[0]]
        group_names_of(run.group_name, first)  # an error before any work
        if run.test_file is None:
            repair, test = data.hold_out_scores(scores, run.share, seed=run.seed)
        else:
            held, _ = _read(asked, estimator, run.test_file, reading.as_for(first))
            repair, test = scores, {label: data.same_groups(own, held[label]) for label, own in scores.items()}
        told = [report.varying_words(each) for each in data.varying_in(first.attributes, first.patients)] + list(map(str, checks))
        origin = _origin(asked, told, arguments)
    if run.dry_run:
        with notes():
            found = estimate_rules(repair, test, asked.methods, asked.goal, asked.budget)
        print_plan(found, asked.folder, as_json)
        return
    with notes():
        cases, done = _repaired(asked, reading, estimator, (scores, repair, test), origin)
    if as_json:
        print(result_json(asked.folder, done, {"left_out": []}))
    else:
        print_labels(asked.folder, cases, done, told, verbose)
    exit_if_lacking(done)
    write_pdf(asked.folder, run.pdf, as_json)


def _read(
    asked: Repair, estimator: Predictor | None, path: Path, how: data.Reading, *, check: bool = False
) -> tuple[ByLabel, list[ScoreCheck]]:
    """The scores of each label in a file, or those that the estimator gives to its rows, and their check next to known ones."""
    if estimator is None:
        return data.read_scores(path, how, asked.source.columns, logits=asked.source.scores.logits), []
    from equipoise.models import predict

    cohort = cohort_of(path, how).cohort
    found = {how.labels[0]: predict(estimator, cohort)}
    return found, checks_of(asked.source, how, estimator, cohort, found) if check else []


def _origin(asked: Repair, told: list[str], arguments: list[str]) -> Provenance:
    from equipoise.repair import Provenance

    model = asked.source.network.model
    return Provenance.now(
        arguments=arguments,
        model=model or f"scores in {asked.source.file.name}",
        seed=asked.run.seed,
        files=asked.files,
        limits=told if model else [*told, "the rule decides from scores; the classifier that makes them was not examined"],
    )


def _repaired(
    asked: Repair, reading: data.Reading, estimator: Predictor | None, rows: tuple[ByLabel, ByLabel, ByLabel], origin: Provenance
) -> tuple[dict[str, Comparison], dict[str, Saved]]:
    """The comparison of each label, and what was written of it."""
    from equipoise.repair import SCORE, Request, rule_serving, save_all, try_rules, with_predictor

    scores, repair, test = rows
    labels, run = reading.labels, asked.run
    columns = asked.source.columns if estimator is None else [SCORE]
    names: dict[str, Any] = {"patient": reading.patient, "id": reading.id, "conflicts": reading.conflicts}
    names |= {"logits": asked.source.scores.logits}
    serving = {label: rule_serving(scores[label], score=column, **names) for label, column in zip(labels, columns, strict=True)}
    request = Request(labels[0], run.title, origin)
    limits: dict[str, Any] = {"seed": run.seed, "budget": asked.budget, "force": asked.wanted.force, "bars": bar}
    cases = try_rules(repair, test, asked.methods, asked.goal, request=request, goals=asked.goals, **limits)
    if estimator is not None:
        cases = {label: with_predictor(case, estimator) for label, case in cases.items()}
    title = run.title or f"{len(labels)} labels of {asked.source.file.name}"
    return cases, save_all(cases, asked.folder, serving, asked.options(), title=title, bars=bar)
