"""`equipoise debias`: a network repaired on local patients, judged on others, and a folder with all that is needed to use it."""

import json
import platform
import shlex
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from equipoise import __version__
from equipoise.cli import inputs as given
from equipoise.cli.console import JsonOption, bar, err, notes, out
from equipoise.data.cohort import Cohort
from equipoise.errors import BadInput, UnknownName, pick, raise_all
from equipoise.report.terminal import NOISE_WORDS, printable, short_name

if TYPE_CHECKING:
    from torch import nn

    from equipoise.models.checkpoint import Checkpoint
    from equipoise.report.case import Case
    from equipoise.report.forecast import Forecast
    from equipoise.report.repaired import Written

ROWS_CHECKED = 64  # of the part kept aside, to compare ONNX with torch
BEST_RULE = (
    "best rule: performance above (+) or below (-) the best rule that knows the group (linear program), found on the scores as they came "
    "and on these very rows, at the same |gap|."
)
NO_BEST_RULE = "best rule: none, as this gap or performance is no sum of rates, or a cell is empty."
FOR_THE_COMMITTEE = ("report.html", "card.md and card.xml")  # without these the work is not done


def debias(
    ctx: typer.Context,
    file: given.FileArgument,
    label: given.LabelOption,
    group: given.GroupOption,
    model: Annotated[
        str,
        typer.Option(
            help="The network, as file.py:factory or package.module:factory, a backbone, or an exported program (.pt2); its code is run.",
            rich_help_panel="Network",
        ),
    ],
    folder: Annotated[Path, typer.Option("--out", help="Folder for the repaired network, the rule, the audits and the report.")],
    reference: given.ReferenceOption = None,
    patient: given.PatientOption = None,
    id: given.IdOption = None,
    positive: given.PositiveOption = None,
    method: Annotated[str, typer.Option(help="A method, or several to compare, as in bias-gda,pruning,reject-option.")] = "bias-gda",
    measure: Annotated[
        str, typer.Option(help="The gap to reduce: eod, spd, aod, fpr_gap, ppv_gap, ... or a sum of rates: tpr-fpr, 0.5*tpr+0.5*selection.")
    ] = "eod",
    performance: Annotated[str, typer.Option(help="What must not be lost: balanced_accuracy, accuracy or f1.")] = "balanced_accuracy",
    floor: Annotated[
        float | None, typer.Option(help="The least performance to keep.", show_default="0.02 under the original's, without a bound")
    ] = None,
    bound: Annotated[float | None, typer.Option(help="The largest |gap| to allow.", show_default="none: as small as possible")] = None,
    level_up: Annotated[bool, typer.Option("--level-up", help="No group's sensitivity may fall below what it was.")] = False,
    minimum: Annotated[
        list[str] | None, typer.Option(help="A least rate of every group, as in tpr=0.8; repeat it for more.", show_default="none")
    ] = None,
    selection: Annotated[
        str, typer.Option(help="How a step is chosen: paper, by the rows it was tuned on; honest or one-se, corrected by rows held out.")
    ] = "paper",
    test_fraction: Annotated[float, typer.Option(help="Share of the patients that is kept aside for the verdict.")] = 0.3,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="A method's own setting, as in pruning.units=1500; repeat it for more.")
    ] = None,
    train: Annotated[Path | None, typer.Option(help="File like FILE with rows to train on, for methods that train from scratch.")] = None,
    weights: given.WeightsOption = None,
    feature: given.FeatureOption = None,
    model_output: given.ModelOutputOption = None,
    model_output_name: given.OutputNameOption = None,
    images: given.ImagesOption = None,
    image_column: given.ImageColumnOption = None,
    view_column: given.ViewColumnOption = None,
    from_headers: given.FromHeadersOption = False,
    size: given.SizeOption = None,
    channels: given.ChannelsOption = None,
    norm: given.NormOption = None,
    skip_broken: given.SkipBrokenOption = False,
    cache: given.CacheOption = None,
    title: Annotated[str | None, typer.Option(help="What the report calls the network.", show_default="label and model")] = None,
    thumbnails: Annotated[
        bool, typer.Option("--thumbnails", help="Put images of the patients whose score changed most into the report.")
    ] = False,
    probe: Annotated[
        bool,
        typer.Option(
            "--probe", help="Put into the report how well the group can be read from each layer, which is not whether it is used."
        ),
    ] = False,
    card: Annotated[Path | None, typer.Option(help="TOML file with what the model card needs and Equipoise cannot know.")] = None,
    onnx: Annotated[bool, typer.Option(help="Also write model.onnx.")] = True,
    onnx_rule: Annotated[
        bool, typer.Option("--onnx-rule", help="Put score and decision into model.onnx, where the rule is a threshold.")
    ] = False,
    draws: Annotated[int, typer.Option(help="Bootstrap draws for the intervals.")] = 1000,
    plan: Annotated[bool, typer.Option("--plan", help="Say what would be done, with which patients, how long about; and stop.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what an earlier run wrote into --out.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Repair a network on local patients and write a folder that drops into the old serving code. The verdict is of patients kept aside.

    [bold]Example:[/bold] equipoise debias local.csv --images xrays/ --label pneumonia --group sex --reference M --patient patient_id
    --model my_model.py:build --weights net.safetensors --method bias-gda,pruning --measure eod --floor 0.75 --out repaired/
    """
    from equipoise.data.splits import keep_aside
    from equipoise.methods.base import Goal
    from equipoise.models.score import OUTPUTS
    from equipoise.report.folder import check_folder
    from equipoise.report.repaired import Options, Serving, write_repaired
    from equipoise.report.trial import check_methods, most_changed, run_trial, told_output

    inputs = given.Inputs(
        label=label,
        group=group,
        reference=reference,
        patient=patient,
        id=id,
        positive=positive,
        features=feature,
        images=images,
        image_column=image_column,
        view_column=view_column,
        from_headers=from_headers,
        size=size,
        channels=channels,
        norm=norm,
        skip_broken=skip_broken,
        cache=cache,
    )
    methods = _methods(method, settings or [])
    problems = inputs.problems() + _number_problems(test_fraction, draws, seed)
    if thumbnails and images is None:
        problems.append("--thumbnails goes with --images, and there are none. Leave it out.")
    if weights is not None and not weights.is_file():
        problems.append(f"no such file: {weights}. Name the file with the weights.")
    goal = _collected(problems, lambda: Goal(measure, performance, floor, bound, _kept(level_up, minimum or []), selection))
    _collected(problems, lambda: check_methods(None, methods, train is not None))
    _collected(problems, lambda: pick("--model-output", model_output or "auto", OUTPUTS))
    if card is not None:
        from equipoise.report.card_facts import read_facts

        _collected(problems, lambda: read_facts(card))
    if not plan:
        _collected(problems, lambda: check_folder(folder, overwrite, 4 * weights.stat().st_size if weights and weights.is_file() else 0))
    raise_all(problems)
    assert goal is not None  # or a problem was raised

    network, came, remarks = _network(model, weights, inputs, model_output_name)
    check_methods(network, methods, train is not None)
    with notes():
        opened = given.cohort_of(file, inputs)
        trained = None if train is None else given.cohort_of(train, inputs).cohort
        repair, test = keep_aside(opened.cohort, test_fraction, seed=seed)
        given.scores_of(network, repair.take(range(min(2, len(repair)))), "auto")  # an error of shape is better told now
        output = told_output(network, repair.inputs, model_output or "auto")
        if plan:
            from equipoise.report.forecast import forecast

            _print_plan(forecast(network, repair, test, methods, goal, trained), folder, as_json)
            return
        trial = run_trial(network, repair, test, methods, goal, seed=seed, train=trained, bars=bar)
        shown = most_changed(trial.original.test, trial.repairs[trial.chosen].test, test) if thumbnails else None
        probes = trial.probes(test, draws=draws, seed=seed, bars=bar) if probe else None
        arguments = ["equipoise", *(ctx.obj if isinstance(ctx.obj, list) else [])]
        case = trial.case(
            title=title or f"{label}, {model}",
            label=label,
            provenance=_provenance(arguments, model, file, weights, train, opened, seed, remarks),
            thumbnails=shown,
            probes=probes,
        )
        serving = Serving(
            model=_findable(model),
            output=output,
            sample=test.inputs[: min(len(test), ROWS_CHECKED)],
            inputs=_plain(inputs, opened.cohort),
            output_name=model_output_name,
            came=came,
        )
        options = Options(onnx=onnx, onnx_rule=onnx_rule, thumbnails=thumbnails, card=card, draws=draws, overwrite=overwrite)
        written = write_repaired(case, folder, serving, options, failures=trial.failures, bars=bar)
    if as_json:
        extra = {"out": str(folder), "files": list(written.files), "failures": dict(written.failures), "rows_left_out": opened.to_dict()}
        print(json.dumps({**json.loads((folder / "audit.json").read_text(encoding="utf-8")), **extra}, indent=2, allow_nan=False))
    else:
        _print_result(case, written, [*opened.lines(), *remarks])
    for what, why in written.failures.items():
        err.print(Text(printable(f"not done: {what}: {why}"), style="yellow"), soft_wrap=True)
    if any(what in written.failures for what in FOR_THE_COMMITTEE):
        raise typer.Exit(1)


def _collected(problems: list[str], check: Any) -> Any:
    """What a check gives; its problems go to the others."""
    try:
        return check()
    except BadInput as error:
        problems += error.problems
        return None


def _kept(level_up: bool, minimum: list[str]) -> dict[str, float | str]:
    """The rates to keep, from --level-up and --minimum."""
    from equipoise.methods.base import BEFORE

    found: dict[str, float | str] = {"tpr": BEFORE} if level_up else {}
    problems = []
    for text in minimum:
        rate, equals, value = text.partition("=")
        try:
            number = float(value)
        except ValueError:
            equals = ""
        if not equals:
            problems.append(f"--minimum must be RATE=NUMBER, as in tpr=0.8; got {text!r}")
        elif rate in found:
            problems.append(f"{rate} has two limits, {found[rate]} and {number:g}; use one of them")
        else:
            found[rate] = number
    raise_all(problems)
    return found


def _number_problems(fraction: float, draws: int, seed: int) -> list[str]:
    checks = {
        f"--test-fraction must lie between 0 and 1, as 0.3 does; got {fraction}": 0 < fraction < 1,
        f"--draws must be at least 2; got {draws}": draws >= 2,
        f"--seed must be at least 0; got {seed}": seed >= 0,
    }
    return [problem for problem, fine in checks.items() if not fine]


def _methods(names: str, settings: list[str]) -> dict[str, dict[str, Any]]:
    """The methods in a list with commas, each with its own settings."""
    from equipoise.methods.registry import METHODS

    methods: dict[str, dict[str, Any]] = {name.strip(): {} for name in names.split(",") if name.strip()}
    problems: list[str] = []
    for text in settings:
        place, equals, value = text.partition("=")
        name, dot, key = place.partition(".")
        if not (equals and dot and key):
            problems.append(f"--set must be METHOD.SETTING=VALUE, as in pruning.units=1500; got {text!r}")
        elif name not in methods:
            problems += UnknownName("method in --set, which is not among --method:", name, methods).problems
        elif name in METHODS:
            _collected(problems, lambda name=name, key=key, value=value: methods[name].update({key: _value(name, key, value)}))
    raise_all(problems)
    return methods


def _value(method: str, key: str, text: str) -> Any:
    """A setting's text as the type that the method declares for it."""
    from pydantic import TypeAdapter, ValidationError

    from equipoise.methods.registry import METHODS

    settings = import_module(METHODS[method].module).Settings
    pick(f"setting of {method}", key, [f.name for f in fields(settings)])
    declared: TypeAdapter[Any] = TypeAdapter(get_type_hints(settings)[key])
    try:
        return declared.validate_python(text)
    except ValidationError as error:
        with suppress(ValidationError):
            return declared.validate_json(text)
        with suppress(ValidationError):  # several values with commas
            return declared.validate_python([part.strip() for part in text.split(",")])
        raise BadInput(f"--set {method}.{key}: {text!r} will not do: {error.errors()[0]['msg']}") from None


def _network(
    model: str, weights: Path | None, inputs: given.Inputs, output_name: str | None
) -> tuple["nn.Module", "Checkpoint | None", list[str]]:
    """The network, the file that its weights came in, and a remark where they cannot go back the same way."""
    from equipoise.models.checkpoint import Checkpoint, load_model, read_checkpoint
    from equipoise.models.export import state_like
    from equipoise.models.exported import SUFFIX, weights_of
    from equipoise.models.vision import OneOutput

    if model.endswith(SUFFIX):
        network = load_model(model, weights)
        if output_name is not None:
            network = OneOutput(network, int(output_name) if output_name.lstrip("-").isdigit() else output_name).eval()
    else:
        network = given.network_of(model, weights, inputs, output_name)
    if weights is None:
        inner = network.inner if output_name is not None and isinstance(network, OneOutput) else network
        return network, Checkpoint(weights_of(inner)), []
    came = read_checkpoint(weights)
    try:
        state_like(came.state, network)
    except BadInput as error:
        return network, None, [f"the weights are written under the network's own keys, not as they came: {error.problems[0]}"]
    return network, came, []


def _findable(model: str) -> str:
    """The model's name with an absolute path, to be found from any folder."""
    place, colon, name = model.rpartition(":")
    if colon and (place.endswith(".py") or "/" in place):
        return f"{Path(place).absolute()}:{name}"
    return str(Path(model).absolute()) if model.endswith(".pt2") else model


def _plain(inputs: given.Inputs, cohort: Cohort) -> dict[str, object]:
    """How new rows become inputs, for `equipoise apply`."""
    from equipoise.data.images import Images
    from equipoise.data.table import Table

    names = {"patient": inputs.patient, "id": inputs.id}
    if isinstance(cohort.source, Images):
        source = cohort.source
        how = {"size": int(source.shape[-1]), "channels": source.channels, "mean": list(source.mean), "std": list(source.std)}
        return {**names, "images": how, "image_column": inputs.image_column}
    assert isinstance(cohort.source, Table)
    return {**names, "images": None, "features": [str(c) for c in cohort.source.frame.columns]}


def _provenance(
    arguments: list[str],
    model: str,
    file: Path,
    weights: Path | None,
    train: Path | None,
    opened: given.Opened,
    seed: int,
    remarks: list[str],
) -> Any:
    import numpy as np
    import pandas as pd
    import torch

    from equipoise.data.images import Images
    from equipoise.report.case import Provenance

    code = model.rpartition(":")[0]
    paths = [path for path in (file, weights, train, Path(code) if code.endswith(".py") else None) if path is not None]
    hashes = {path.name: _sha256(path) for path in (*paths, *([Path(model)] if model.endswith(".pt2") else []))}
    if isinstance(opened.cohort.source, Images):
        hashes["list of images"] = _sha256_of("\n".join(map(str, opened.cohort.ids)))
    versions = {"equipoise": __version__, "torch": torch.__version__, "numpy": np.__version__, "pandas": pd.__version__}
    return Provenance(
        command=shlex.join(arguments),
        model=model,
        seed=seed,
        when=datetime.now(UTC).isoformat(timespec="seconds"),
        versions={**versions, "python": platform.python_version()},
        hashes=hashes,
        limits=(*opened.lines(), *remarks),
    )


def _sha256(path: Path) -> str:
    import hashlib

    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sha256_of(text: str) -> str:
    from equipoise.data.files import sha256

    return sha256(text.encode())


def _print_plan(found: "Forecast", folder: Path, as_json: bool) -> None:
    if as_json:
        print(json.dumps({**found.to_dict(), "out": str(folder)}, indent=2, allow_nan=False))
        return
    who = Table(title="Who is in which part", box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
    for column in ("part", "group", "label", "rows", "patients"):
        who.add_column(column, justify="right" if column in ("rows", "patients") else "left")
    for row in found.parts.itertuples():
        who.add_row(row.part, short_name(row.group), str(row.label), f"{row.rows:,}", "" if row.patients is None else f"{row.patients:,}")
    what = Table(title="What will be done", box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
    what.add_column("method")
    what.add_column("steps")
    what.add_column("at most about", justify="right")
    for step in found.steps:
        what.add_row(step.method, step.what, "not known" if step.seconds is None else duration(step.seconds))
    total = "not known" if found.seconds is None else duration(found.seconds)
    out.print(Group(who, what))
    out.print(
        Text(f"goal: {found.to_dict()['goal']}; at most about {total} in all, the report aside; result in {printable(str(folder))}"),
        soft_wrap=True,
    )
    out.print("Nothing was done. Leave out --plan to do it.")


def _print_result(case: "Case", written: "Written", remarks: list[str]) -> None:
    from equipoise.report.repaired import verdict

    goal, document = case.result.candidate.goal, dict[str, Any](written.document)
    performance = goal.performance.replace("_", " ")
    table = _plain_table(
        f"The {len(case.result.test):,} rows kept aside, with 95% intervals", "", goal.measure, performance, "goal", "needs the group"
    )
    table.columns[-1].max_width = len("needs")
    beside = _plain_table("Beside chance, and the best rule that knows the group", "", f"|{goal.measure}|", "noise", "excess", "best rule")
    rows: list[tuple[str, Any, Any, str, bool]] = [("as it came", written.before.to_dict(), document["limit"], "", False)]
    for name, entry in document["methods"].items():
        rows.append((name, entry["test_part"], entry["limit"], "met" if entry["met"] else "NOT met", entry["needs_group"]))
    for name, found, limit, met, needs in rows:
        gap, chosen = found[goal.measure], name == case.result.name
        head, style = Text(f"{name} (chosen)" if chosen else name), "bold" if chosen else ""
        table.add_row(head, _interval(gap, "+"), _interval(found[goal.performance], ""), met, "yes" if needs else "no", style=style)
        size = None if gap["value"] is None else abs(gap["value"])
        cells = (_number(size, ""), _number(gap["noise"], ""), _number(gap["excess"], "+"), _number(limit and -limit["below"], "+"))
        beside.add_row(head, *cells, style=style)
    out.print(Group(table, beside))
    out.print(Text(f"{NOISE_WORDS} {BEST_RULE if document['limit'] else NO_BEST_RULE}", style="dim"))
    out.print(Text(printable(verdict(case))), soft_wrap=True)
    if not case.result.candidate.met:
        out.print(Text(f"The goal was NOT met: {printable(case.result.candidate.why)}.", style="bold yellow"), soft_wrap=True)
    for line in remarks:
        out.print(Text(printable(line)), soft_wrap=True)
    if written.onnx is not None:
        out.print(f"model.onnx differs from torch by at most {written.onnx.max_difference:.1e} on {written.onnx.rows} rows.")
    out.print(Text(f"Written to {printable(str(written.folder))}: {', '.join(written.files)}"), soft_wrap=True)


def _plain_table(title: str, *columns: str) -> Table:
    # Nothing to spare: with intervals and names of methods whole, it just fits into 80.
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold", collapse_padding=True, pad_edge=False)
    for k, column in enumerate(columns):
        table.add_column(column, no_wrap=k in (1, 2), overflow="fold")
    return table


def _interval(estimate: Mapping[str, Any], sign: str) -> str:
    if estimate["value"] is None:
        return "insufficient data"
    low, high = (("?" if estimate[end] is None else f"{estimate[end]:{sign}.3f}") for end in ("low", "high"))
    return f"{estimate['value']:{sign}.3f} [{low}, {high}]"


def _number(value: float | None, sign: str) -> str:
    return "" if value is None else f"{value:{sign}.3f}"


def duration(seconds: float) -> str:
    """A rough duration in words.

    >>> duration(0.2), duration(8), duration(700), duration(9000)
    ('1 s', '8 s', '12 min', '2.5 h')
    """
    if seconds < 90:
        return f"{max(1.0, seconds):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
