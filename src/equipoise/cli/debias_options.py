"""The options of `equipoise debias`: the goal, methods and patients of a repair, parsed and checked."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from equipoise import data
from equipoise.cli.inputs import check_places, collected, group_names_of, number_problems, page_problems, parse_thresholds, repeated
from equipoise.cli.options import GroupNameOption, PdfOption
from equipoise.cli.source_options import SourceOptions, check_score_problems, estimator_problems, parse_output, parse_outputs, role_problems
from equipoise.errors import BadInput, UnknownName, pick, raise_all
from equipoise.methods import DEFAULT_MAX_LOSS, DEFAULT_MEASURE, DEFAULT_PERFORMANCE, DEFAULT_SELECTION

if TYPE_CHECKING:
    from equipoise.methods import Goal
    from equipoise.repair import RepairRequest

GOAL_NAMES, GOAL_NUMBERS = ("measure", "performance"), ("min_performance", "max_gap", "max_loss", "threshold")  # keys of --goal


@dataclass(frozen=True)
class GoalOptions:
    """The goal of the repair, and the methods to try."""

    method: Annotated[
        list[str] | None,
        typer.Option(help="A method to try; repeat the option to compare several.", show_default="auto: tries several within --budget"),
    ] = None
    measure: Annotated[
        str, typer.Option(help="Gap to reduce: eod, spd, aod, fpr_gap, ppv_gap, ... or a sum of rates: tpr-fpr, 0.5*tpr+0.5*selection.")
    ] = DEFAULT_MEASURE
    performance: Annotated[str, typer.Option(help="Performance measure to preserve: balanced_accuracy, accuracy or f1.")] = (
        DEFAULT_PERFORMANCE
    )
    min_performance: Annotated[float | None, typer.Option(help="Minimum performance.", show_default="the original's minus --max-loss")] = (
        None
    )
    max_gap: Annotated[float | None, typer.Option(help="Maximum |gap|.", show_default="none: as small as possible")] = None
    max_loss: Annotated[
        float | None,
        typer.Option(
            help="Maximum loss of performance compared with the original, without --min-performance.", show_default=str(DEFAULT_MAX_LOSS)
        ),
    ] = None
    no_group_worse: Annotated[bool, typer.Option("--no-group-worse", help="No group's sensitivity may fall below its original value.")] = (
        False
    )
    min_rate: Annotated[
        list[str] | None, typer.Option(help="Minimum rate in every group, as in tpr=0.8; repeat it for more.", show_default="none")
    ] = None
    selection: Annotated[
        str,
        typer.Option(help="How a step is chosen: honest or one-se, by cross-fitted values; paper, on the rows the method was fitted to."),
    ] = DEFAULT_SELECTION
    threshold: Annotated[
        list[str] | None,
        typer.Option(
            help="Threshold in use today, at which the original is evaluated; with several labels, one for all, or LABEL=VALUE, as in "
            "Mass=0.08, repeated for each.",
            show_default="the one of best performance on the repair set",
        ),
    ] = None
    no_group_rules: Annotated[
        bool, typer.Option("--no-group-rules", help="Leave out rules that need each patient's group, in --method auto.")
    ] = False
    budget: Annotated[float, typer.Option(help="Approximate limit for all methods together, in minutes; 0 for no limit.")] = 10.0
    recalibrate: Annotated[
        bool,
        typer.Option("--recalibrate/--no-recalibrate", help="Recalibrate the scores of a network that was changed; changes no decision."),
    ] = True
    force: Annotated[
        bool, typer.Option("--force", help="Continue with too few patients in a cell; the outcome is then unclear, harm or unchanged.")
    ] = False
    label_goal: Annotated[
        list[str] | None,
        typer.Option(
            "--goal", help="Goal of one of several labels, as in Mass.min_performance=0.8 or Mass.measure=spd; repeat it for more."
        ),
    ] = None


@dataclass(frozen=True)
class RunOptions:
    """The patients of the repair, and what is written."""

    test_fraction: Annotated[
        float | None, typer.Option(help="Share of the patients held out for evaluation.", show_default="0.3; none with --test")
    ] = None
    test_file: Annotated[
        Path | None, typer.Option("--test", help="File with the test set in the same columns, of other patients; then none are held out.")
    ] = None
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Setting of a method, as in pruning.units=1500; repeat it for more, also for the values of a list."),
    ] = None
    train: Annotated[
        Path | None,
        typer.Option(
            help="File with the training set in the same columns, for methods that train from scratch; bias-score also learns "
            "from it to predict the group."
        ),
    ] = None
    title: Annotated[str | None, typer.Option(help="Title of the report.", show_default="label and model")] = None
    pdf: PdfOption = None
    thumbnails: Annotated[
        bool, typer.Option("--thumbnails", help="Show images of the patients whose score changed most in the report.")
    ] = False
    probe: Annotated[
        bool, typer.Option("--probe", help="Report how well each layer predicts the group; this does not show that the network uses it.")
    ] = False
    group_name: GroupNameOption = None
    card: Annotated[Path | None, typer.Option(help="TOML file with facts for the model card.")] = None
    onnx: Annotated[bool, typer.Option(help="Also write model.onnx.")] = True
    onnx_rule: Annotated[
        bool, typer.Option("--onnx-rule", help="Include score and decision in model.onnx, if the rule is a threshold.")
    ] = False
    draws: Annotated[int, typer.Option(help="Number of bootstrap resamples of --probe; other intervals need none.")] = 1000
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the patients in each set, the methods and the estimated time, and exit.")
    ] = False
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the output of an earlier run.")] = False


def parse_request(source: SourceOptions, goal_options: GoalOptions, run: RunOptions, folder: Path, arguments: list[str]) -> RepairRequest:
    """The repair that the options ask for. Raises one error with all of their problems."""
    from equipoise.models import OUTPUTS
    from equipoise.repair import Options, RepairRequest, check_folder, check_methods

    labels, network = source.inputs.labels, source.network
    methods = parse_methods(goal_options.method or ["auto"], run.settings or [])
    problems = _option_problems(source, goal_options, run)
    if goal_options.no_group_rules:
        problems += _leave_out_group_rules(methods)
    threshold = collected(problems, lambda: parse_thresholds(goal_options.threshold, labels))
    goal = collected(problems, lambda: _parse_goal(goal_options, None if isinstance(threshold, dict) else threshold))
    together = labels if len(labels) > 1 and not source.columns else ()
    collected(problems, lambda: check_methods(methods, train=run.train is not None, labels=together, kind=source.kind))
    collected(problems, lambda: pick("--output-type", network.output_type or "auto", OUTPUTS))
    if run.card is not None:
        from equipoise.report import read_facts

        collected(problems, partial(read_facts, run.card))
    if len(labels) == 1:
        collected(problems, lambda: parse_output(network.output_name))
    elif not source.columns:
        collected(problems, lambda: parse_outputs(network.output_name, labels))
    goals = None if goal is None else collected(problems, lambda: _parse_goals(goal_options, labels, goal, threshold))
    if not run.dry_run:
        weight_bytes = network.weights.stat().st_size if network.weights and network.weights.is_file() else 0
        collected(problems, lambda: check_folder(folder, run.overwrite, 4 * len(labels) * weight_bytes))
        collected(problems, lambda: check_places(pdf=run.pdf))
    raise_all(problems)
    if (check_scores := source.scores.check_scores) is not None and not check_scores.is_file():
        raise data.no_such_file(check_scores)
    network_files = {"onnx": run.onnx, "onnx_rule": run.onnx_rule, "thumbnails": run.thumbnails}
    return RepairRequest(
        source.source(),
        goal,
        methods,
        goals,
        test=run.test_file,
        test_fraction=0.3 if run.test_fraction is None else run.test_fraction,
        train=run.train,
        seed=run.seed,
        budget=60 * goal_options.budget or None,
        recalibrate=goal_options.recalibrate,
        force=goal_options.force,
        title=run.title,
        probe=run.probe,
        draws=run.draws,
        options=Options(**network_files, card=run.card, overwrite=run.overwrite, group_names=group_names_of(run.group_name)),
        arguments=arguments,
    )


def _option_problems(source: SourceOptions, goal: GoalOptions, run: RunOptions) -> list[str]:
    """Options that cannot be combined, or are invalid."""
    inputs, network, scores = source.inputs, source.network, source.scores
    problems = inputs.problems() + number_problems(test_fraction=run.test_fraction, draws=run.draws, seed=run.seed)
    problems += page_problems({"--pdf": run.pdf})
    if run.test_fraction is not None and run.test_file is not None:
        problems.append("--test-fraction holds out patients of the data file, --test is a separate test set; use one of them")
    if not 0 <= goal.budget < float("inf"):
        problems.append(f"--budget must be a number of minutes, or 0 for no limit; got {goal.budget:g}")
    if goal.threshold and source.kind == "classes":
        problems.append("--threshold has no meaning for classes, which are decided by argmax. Omit it.")
    if run.thumbnails and inputs.options["images"] is None:
        problems.append("--thumbnails requires --images. Omit it.")
    if network.weights is not None and not network.weights.is_file():
        problems.append(f"no such file: {network.weights}. Give the file with the weights.")
    network_only = source.network_only | {"--train": run.train, "--probe": run.probe, "--onnx-rule": run.onnx_rule}
    problems += role_problems(source, network_only)
    problems += [f"--score {column} was given twice. Give each label its own column." for column in repeated(source.columns)]
    if scores.logits and not source.columns:
        problems.append("--logits is about the columns of --score. Omit it; a network has --output-type.")
    return problems + check_score_problems(source) + estimator_problems(source, network_only)


def parse_methods(names: list[str], settings: list[str]) -> dict[str, dict[str, Any]]:
    """The methods of --method, each with its settings of --set. A setting that is a list is repeated."""
    from equipoise.methods import METHODS

    methods: dict[str, dict[str, Any]] = {name: {} for name in names}
    texts: dict[tuple[str, str], list[str]] = {}
    problems: list[str] = [f"--method {name} was given twice; name each method once" for name in methods if names.count(name) > 1]
    for text in settings:
        place, equals, value = text.partition("=")
        name, dot, key = place.partition(".")
        if not (equals and dot and key):
            problems.append(f"--set must be METHOD.SETTING=VALUE, as in pruning.units=1500; got {text!r}")
        elif name not in methods:
            problems += UnknownName("method in --set, which is not among --method:", name, methods).problems
        elif name in METHODS:
            texts.setdefault((name, key), []).append(value)
    for (name, key), values in texts.items():
        methods[name][key] = collected(problems, partial(_parse_setting, name, key, values))
    raise_all(problems)
    return methods


def _parse_setting(method: str, key: str, texts: list[str]) -> Any:
    """A setting as the type that the method declares for it; several texts are the values of a list."""
    from pydantic import TypeAdapter, ValidationError

    from equipoise.methods import METHODS

    settings = METHODS[method].settings
    pick(f"setting of {method}", key, [f.name for f in fields(settings)])
    declared: TypeAdapter[Any] = TypeAdapter(get_type_hints(settings)[key])
    with suppress(ValidationError):
        return declared.validate_python(texts if len(texts) > 1 else texts[0])
    with suppress(ValidationError):  # a list with one value
        return declared.validate_python(texts)
    if len(texts) == 1:
        with suppress(ValidationError):
            return declared.validate_json(texts[0])
    try:
        return declared.validate_python(texts if len(texts) > 1 else texts[0])
    except ValidationError as error:
        problem = error.errors()[0]
        at = next((part for part in problem["loc"] if isinstance(part, int)), None)  # of the value in a list
        if len(texts) > 1 and at is None:
            raise BadInput(f"--set {method}.{key} was given {len(texts)} times, and takes one value. Give it once.") from None
        raise BadInput(f"invalid value {texts[at or 0]!r} for --set {method}.{key}: {problem['msg']}") from None


def _leave_out_group_rules(methods: dict[str, dict[str, Any]]) -> list[str]:
    """Sets `auto` to leave out rules that need the group; returns a problem for each named method that is such a rule."""
    from equipoise.methods import METHODS

    problems = []
    for name, settings in methods.items():
        if name in METHODS and METHODS[name].needs_group:
            problems.append(f"--no-group-rules leaves out rules that need each patient's group; --method {name} is one. Omit it.")
        if name in METHODS and METHODS[name].runs_others:
            settings["allow_group"] = False
    return problems


def _parse_goal(options: GoalOptions, threshold: float | None) -> Goal:
    from equipoise.methods import Goal

    names = ("measure", "performance", "min_performance", "max_gap", "selection", "max_loss")
    keep = parse_kept_rates(options.no_group_worse, options.min_rate or [])
    return Goal(**{name: getattr(options, name) for name in names}, keep=keep, threshold=threshold)


def _parse_goals(options: GoalOptions, labels: list[str], goal: Goal, threshold: float | dict[str, float] | None) -> dict[str, Goal] | None:
    """The goal of each label, with its threshold; None if all have the same."""
    goals = parse_label_goals(options.label_goal or [], labels, goal)
    if not isinstance(threshold, dict):
        return goals
    twice = [label for label in labels if goals is not None and goals[label].threshold is not None]
    raise_all([f"{label} has a threshold in --threshold and in --goal. Omit one of them." for label in twice])
    return {label: (goals or {}).get(label, goal).changed(threshold=threshold[label]) for label in labels}


def parse_label_goals(texts: list[str], labels: list[str], goal: Goal) -> dict[str, Goal] | None:
    """The goal of each label: the common goal, changed by --goal; None without --goal."""
    changes: dict[str, dict[str, Any]] = {label: {} for label in labels}
    problems: list[str] = []
    for text in texts:
        place, equals, value = text.partition("=")
        label, dot, key = place.rpartition(".")
        if not (equals and dot and len(labels) > 1):
            problems.append(
                f"--goal must be LABEL.KEY=VALUE with more than one --label, as in {labels[0]}.min_performance=0.8; got {text!r}"
            )
        elif label not in labels:
            problems += UnknownName("label in --goal", label, labels).problems
        elif key in changes[label]:
            problems.append(f"--goal {place} was given twice. Give it once.")
        elif key in GOAL_NAMES:
            changes[label][key] = value
        elif key in GOAL_NUMBERS:
            try:
                changes[label][key] = float(value)
            except ValueError:
                problems.append(f"invalid value {value!r} for --goal {place}: expected a number")
        else:
            problems += UnknownName("key in --goal", key, (*GOAL_NAMES, *GOAL_NUMBERS)).problems
    raise_all(problems)
    return {label: goal.changed(**changes[label]) for label in labels} if texts else None


def parse_kept_rates(no_group_worse: bool, min_rate: list[str]) -> dict[str, float | str]:
    """The limits of rates in every group, from --no-group-worse and --min-rate."""
    from equipoise.methods import BEFORE

    limits: dict[str, float | str] = {"tpr": BEFORE} if no_group_worse else {}
    problems = []
    for text in min_rate:
        rate, _, value = text.partition("=")
        try:
            number = float(value)  # also fails if there is no "="
        except ValueError:
            problems.append(f"--min-rate must be RATE=NUMBER, as in tpr=0.8; got {text!r}")
            continue
        if rate in limits:
            problems.append(f"{rate} has two limits, {limits[rate]} and {number:g}; use one of them")
        else:
            limits[rate] = number
    raise_all(problems)
    return limits
