"""The options of `equipoise debias`, read and checked: what a repair is to reach, by which methods, on which patients."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from equipoise import data
from equipoise.cli.inputs import Source, collected, group_names_of, number_problems, page_problems, role_problems
from equipoise.cli.networks import check_problems, estimator_problems, is_estimator, output_of, outputs_of
from equipoise.cli.options import GroupNameOption, PdfOption
from equipoise.cli.outcome import check_pdf
from equipoise.errors import BadInput, UnknownName, pick, raise_all

if TYPE_CHECKING:
    from equipoise.methods import Goal
    from equipoise.repair import Options


@dataclass(frozen=True)
class GoalOptions:
    """What the repair is to reach, and by which methods."""

    method: Annotated[
        list[str] | None,
        typer.Option(help="A method to try; repeat the option to compare several.", show_default="auto: tries several within --budget"),
    ] = None
    measure: Annotated[
        str, typer.Option(help="Gap to reduce: eod, spd, aod, fpr_gap, ppv_gap, ... or a sum of rates: tpr-fpr, 0.5*tpr+0.5*selection.")
    ] = "eod"
    performance: Annotated[str, typer.Option(help="Performance measure to preserve: balanced_accuracy, accuracy or f1.")] = (
        "balanced_accuracy"
    )
    min_performance: Annotated[float | None, typer.Option(help="Minimum performance.", show_default="the original's minus --max-loss")] = (
        None
    )
    max_gap: Annotated[float | None, typer.Option(help="Maximum |gap|.", show_default="none: as small as possible")] = None
    max_loss: Annotated[
        float | None,
        typer.Option(help="Maximum loss of performance compared with the original, without --min-performance.", show_default="0.02"),
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
    ] = "honest"
    threshold: Annotated[
        float | None,
        typer.Option(
            help="Threshold in use today, at which the original is evaluated.", show_default="the one of best performance on the repair set"
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
    """On which patients, and what is written."""

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
        bool,
        typer.Option("--probe", help="Report how well each layer predicts the group; this does not show that the network uses it."),
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

    @property
    def share(self) -> float:
        """The share of the patients that is held out."""
        return 0.3 if self.test_fraction is None else self.test_fraction


@dataclass(frozen=True)
class Repair:
    """All that was asked for, after it was checked."""

    source: Source
    wanted: GoalOptions
    run: RunOptions
    folder: Path
    methods: dict[str, dict[str, Any]]
    goal: Goal
    goals: dict[str, Goal] | None  # of each label, where --goal was given
    outputs: dict[str, int | str]  # the network's output of each of several labels

    @property
    def budget(self) -> float | None:
        """The seconds that all methods together may take."""
        return 60 * self.wanted.budget or None

    @property
    def files(self) -> list[Path]:
        """The files that were read."""
        model = self.source.network.model if is_estimator(self.source.network.model) else None
        named = (self.source.file, self.source.network.weights, self.run.train, self.run.test_file, self.source.scores.check_scores, model)
        return [Path(path) for path in named if path is not None]

    def options(self) -> Options:
        """What is written, and how groups are called in it."""
        from equipoise.repair import Options

        run = self.run
        of_networks = {"onnx": run.onnx, "onnx_rule": run.onnx_rule, "thumbnails": run.thumbnails}
        return Options(**of_networks, card=run.card, overwrite=run.overwrite, group_names=group_names_of(run.group_name))


def repair_of(source: Source, wanted: GoalOptions, run: RunOptions, folder: Path) -> Repair:
    """The repair that the options ask for; an error with all that is wrong with them."""
    from equipoise.methods import Goal
    from equipoise.models import OUTPUTS
    from equipoise.repair import check_folder, check_labels, check_methods

    labels, kind, network = source.inputs.labels, source.kind, source.network
    methods = methods_of(wanted.method or ["auto"], run.settings or [])
    problems = _option_problems(source, wanted, run) + (without_groups(methods) if wanted.no_group_rules else [])
    rates = partial(kept, wanted.no_group_worse, wanted.min_rate or [])
    w = wanted
    goal = collected(
        problems,
        lambda: Goal(w.measure, w.performance, w.min_performance, w.max_gap, rates(), w.selection, w.max_loss, w.threshold),
    )
    collected(problems, lambda: check_methods(None, methods, run.train is not None))
    collected(problems, lambda: pick("--output-type", network.output_type or "auto", OUTPUTS))
    if run.card is not None:
        from equipoise.report import read_facts

        collected(problems, partial(read_facts, run.card))
    outputs: dict[str, int | str] = {}
    if len(labels) == 1:
        collected(problems, lambda: output_of(network.output_name))
    elif not source.columns:
        collected(problems, lambda: check_labels(list(methods), labels, kind))
        outputs = collected(problems, lambda: outputs_of(network.output_name, labels))
    goals = None if goal is None else collected(problems, lambda: goals_of(wanted.label_goal or [], labels, goal))
    if not run.dry_run:
        size_of_weights = network.weights.stat().st_size if network.weights and network.weights.is_file() else 0
        collected(problems, lambda: check_folder(folder, run.overwrite, 4 * len(labels) * size_of_weights))
        collected(problems, lambda: check_pdf(run.pdf))
    raise_all(problems)
    if (check_scores := source.scores.check_scores) is not None and not check_scores.is_file():
        raise data.no_such_file(check_scores)
    return Repair(source, wanted, run, folder, methods, goal, goals, outputs)


def _option_problems(source: Source, wanted: GoalOptions, run: RunOptions) -> list[str]:
    """Options that do not go together, or have a value that is not allowed."""
    inputs, network, scores = source.inputs, source.network, source.scores
    problems = inputs.problems() + number_problems(test_fraction=run.test_fraction, draws=run.draws, seed=run.seed)
    problems += page_problems({"--pdf": run.pdf})
    if run.test_fraction is not None and run.test_file is not None:
        problems.append("--test-fraction holds out patients of the data file, --test is a test set of its own; use one of them")
    if not 0 <= wanted.budget < float("inf"):
        problems.append(f"--budget must be a number of minutes, or 0 for no limit; got {wanted.budget:g}")
    if wanted.threshold is not None and source.kind == "classes":
        problems.append("--threshold has no meaning for classes, which are decided by argmax. Omit it.")
    if run.thumbnails and inputs.options["images"] is None:
        problems.append("--thumbnails requires --images. Omit it.")
    if network.weights is not None and not network.weights.is_file():
        problems.append(f"no such file: {network.weights}. Give the file with the weights.")
    network_only = source.of_networks | {"--train": run.train, "--probe": run.probe, "--onnx-rule": run.onnx_rule}
    problems += role_problems(source, network_only)
    twice = sorted({column for column in source.columns if source.columns.count(column) > 1})
    problems += [f"--score {column} was given twice. Give each label its own column." for column in twice]
    if scores.logits and not source.columns:
        problems.append("--logits is about the columns of --score. Omit it; a network has --output-type.")
    return problems + check_problems(source) + estimator_problems(source, network_only)


def methods_of(names: list[str], settings: list[str]) -> dict[str, dict[str, Any]]:
    """The methods to try, each with its own settings; a setting that is a list is repeated."""
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
        methods[name][key] = collected(problems, partial(_value, name, key, values))
    raise_all(problems)
    return methods


def without_groups(methods: dict[str, dict[str, Any]]) -> list[str]:
    """What is wrong with leaving out rules that need the group; `auto` leaves them out."""
    from equipoise.methods import METHODS

    asked = [name for name in methods if name in METHODS and METHODS[name].needs_group]
    for name, settings in methods.items():
        if name in METHODS and METHODS[name].runs_others:
            settings["allow_group"] = False
    return [f"--no-group-rules leaves out rules that need each patient's group; --method {name} is one. Omit it." for name in asked]


def _value(method: str, key: str, given: list[str]) -> Any:
    """A setting's text, or the texts of a list, as the type that the method declares for it."""
    from pydantic import TypeAdapter, ValidationError

    from equipoise.methods import METHODS

    settings = METHODS[method].settings
    pick(f"setting of {method}", key, [f.name for f in fields(settings)])
    declared: TypeAdapter[Any] = TypeAdapter(get_type_hints(settings)[key])
    with suppress(ValidationError):
        return declared.validate_python(given if len(given) > 1 else given[0])
    with suppress(ValidationError):  # a list of one
        return declared.validate_python(given)
    with suppress(ValidationError):  # of a setting that is no list the last value counts, as for options
        return declared.validate_json(given[-1])
    try:
        return declared.validate_python(given[-1])
    except ValidationError as error:
        raise BadInput(f"invalid value {given[-1]!r} for --set {method}.{key}: {error.errors()[0]['msg']}") from None


def goals_of(texts: list[str], labels: list[str], goal: Goal) -> dict[str, Goal] | None:
    """The goal of each label: the common one with what --goal says of that label; None where it says nothing."""
    given: dict[str, dict[str, Any]] = {label: {} for label in labels}
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
        elif key in ("measure", "performance"):
            given[label][key] = value
        elif key in ("min_performance", "max_gap", "max_loss", "threshold"):
            try:
                given[label][key] = float(value)
            except ValueError:
                problems.append(f"invalid value {value!r} for --goal {place}: expected a number")
        else:
            problems += UnknownName(
                "key in --goal", key, ("measure", "performance", "min_performance", "max_gap", "max_loss", "threshold")
            ).problems
    raise_all(problems)
    return {label: replace(goal, **own) for label, own in given.items()} if texts else None


def kept(no_group_worse: bool, min_rate: list[str]) -> dict[str, float | str]:
    """The rates to keep, from --no-group-worse and --min-rate."""
    from equipoise.methods import BEFORE

    found: dict[str, float | str] = {"tpr": BEFORE} if no_group_worse else {}
    problems = []
    for text in min_rate:
        rate, equals, value = text.partition("=")
        try:
            number = float(value)
        except ValueError:
            equals = ""
        if not equals:
            problems.append(f"--min-rate must be RATE=NUMBER, as in tpr=0.8; got {text!r}")
        elif rate in found:
            problems.append(f"{rate} has two limits, {found[rate]} and {number:g}; use one of them")
        else:
            found[rate] = number
    raise_all(problems)
    return found
