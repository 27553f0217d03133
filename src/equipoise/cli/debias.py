"""`equipoise debias`: repair a network, or scores alone, on local patients, evaluate it on held-out ones, and write a folder to serve."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from equipoise import data
from equipoise.cli import inputs as given
from equipoise.cli.checking import CheckOption, ToleranceOption, check, check_lines, check_problems
from equipoise.cli.console import JsonOption, bar, notes
from equipoise.cli.estimators import TrustPickleOption, TrustTypeOption, estimator_of, estimator_problems, is_estimator
from equipoise.cli.goals import goals_of, kept, methods_of, without_groups
from equipoise.cli.inputs import collected, number_problems
from equipoise.cli.networks import label_scores, network_of, output_of, outputs_of, prepared_as_saved, scores_of
from equipoise.cli.outcome import check_pdf, exit_if_lacking, print_labels, print_plan, result_json, write_pdf
from equipoise.cli.scores import LogitsOption, ScoreOption, ScorePrefixOption, ScoreRepair, paired, repair_scores, with_model_only
from equipoise.errors import pick, raise_all


@given.reads_data()
def debias(
    ctx: typer.Context,
    file: given.FileArgument,
    *,
    model: given.ModelOption = None,
    weights: given.WeightsOption = None,
    output_type: given.ModelOutputOption = None,
    output_name: given.OutputNameOption = None,
    trust_pickle: TrustPickleOption = False,
    trust_type: TrustTypeOption = None,
    inputs: given.Inputs,
    score: ScoreOption = None,
    score_prefix: ScorePrefixOption = None,
    logits: LogitsOption = False,
    check_scores: CheckOption = None,
    tolerance: ToleranceOption = None,
    folder: Annotated[Path, typer.Option("--out", help="Folder for the repaired network, the rule, the audits and the report.")],
    method: Annotated[
        list[str] | None,
        typer.Option(
            help="A method to try; repeat the option to compare several.", show_default="auto: all that are worth it, within --budget"
        ),
    ] = None,
    measure: Annotated[
        str, typer.Option(help="Gap to reduce: eod, spd, aod, fpr_gap, ppv_gap, ... or a sum of rates: tpr-fpr, 0.5*tpr+0.5*selection.")
    ] = "eod",
    performance: Annotated[
        str, typer.Option(help="Performance measure to preserve: balanced_accuracy, accuracy or f1.")
    ] = "balanced_accuracy",
    min_performance: Annotated[
        float | None, typer.Option(help="Minimum performance.", show_default="the original's minus --max-loss")
    ] = None,
    max_gap: Annotated[float | None, typer.Option(help="Maximum |gap|.", show_default="none: as small as possible")] = None,
    max_loss: Annotated[
        float | None,
        typer.Option(help="Maximum loss of performance compared with the original, without --min-performance.", show_default="0.02"),
    ] = None,
    no_group_worse: Annotated[
        bool, typer.Option("--no-group-worse", help="No group's sensitivity may fall below its original value.")
    ] = False,
    min_rate: Annotated[
        list[str] | None, typer.Option(help="Minimum rate in every group, as in tpr=0.8; repeat it for more.", show_default="none")
    ] = None,
    selection: Annotated[
        str, typer.Option(help="How a step is chosen: honest or one-se, by cross-fitted values; paper, on the rows it was tuned on.")
    ] = "honest",
    threshold: Annotated[
        float | None,
        typer.Option(help="Threshold in use today: the original decides by it.", show_default="that of best performance on the repair set"),
    ] = None,
    no_group_rules: Annotated[
        bool, typer.Option("--no-group-rules", help="Leave out rules that need each patient's group, in --method auto.")
    ] = False,
    budget: Annotated[float, typer.Option(help="Minutes that all methods together may take, about; 0 for no limit.")] = 10.0,
    recalibrate: Annotated[
        bool,
        typer.Option("--recalibrate/--no-recalibrate", help="Recalibrate the scores of a network that was changed; changes no decision."),
    ] = True,
    force: Annotated[
        bool, typer.Option("--force", help="Go on with too few patients in a cell; the outcome can then only be unclear or harm.")
    ] = False,
    label_goal: Annotated[
        list[str] | None,
        typer.Option(
            "--goal", help="Goal of one of several labels, as in Mass.min_performance=0.8 or Mass.measure=spd; repeat it for more."
        ),
    ] = None,
    test_fraction: Annotated[
        float | None, typer.Option(help="Share of the patients held out for evaluation.", show_default="0.3; none with --test")
    ] = None,
    test_file: Annotated[
        Path | None, typer.Option("--test", help="File with the test set in the same columns, of other patients; then none are held out.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Setting of a method, as in pruning.units=1500; repeat it for more, also for the values of a list."),
    ] = None,
    train: Annotated[
        Path | None,
        typer.Option(
            help="File with the training set in the same columns, for methods that train from scratch; bias-score also learns "
            "from it to predict the group."
        ),
    ] = None,
    title: Annotated[str | None, typer.Option(help="Title of the report.", show_default="label and model")] = None,
    pdf: given.PdfOption = None,
    thumbnails: Annotated[
        bool, typer.Option("--thumbnails", help="Show images of the patients whose score changed most in the report.")
    ] = False,
    probe: Annotated[
        bool,
        typer.Option("--probe", help="Report how well the group can be predicted from each layer; that does not show that it is used."),
    ] = False,
    group_name: given.GroupNameOption = None,
    card: Annotated[Path | None, typer.Option(help="TOML file with facts for the model card.")] = None,
    onnx: Annotated[bool, typer.Option(help="Also write model.onnx.")] = True,
    onnx_rule: Annotated[
        bool, typer.Option("--onnx-rule", help="Include score and decision in model.onnx, if the rule is a threshold.")
    ] = False,
    draws: Annotated[int, typer.Option(help="Number of bootstrap resamples of --probe; other intervals need none.")] = 1000,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the patients in each set, the methods and the estimated time, and exit.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the output of an earlier run.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Also print p-values and the upper bound, and the notes of all methods.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Repair a network, or the scores of any classifier, on local patients, evaluate it on held-out ones and write a folder to serve.

    [bold]Example:[/bold] equipoise debias local.csv --images xrays/ --label pneumonia --group sex --reference M --patient patient_id
    --model my_model.py:build --weights net.safetensors --threshold 0.4 --max-gap 0.05 --out repaired/

    [bold]Official test set:[/bold] equipoise debias local.csv --test official.csv --label pneumonia --group sex --model my_model.py:build
    --weights net.safetensors --method bias-score --method pruning --min-performance 0.75 --out repaired/

    [bold]Scores only:[/bold] equipoise debias scores.csv --score p --label pneumonia --group sex --reference M --patient patient_id
    --threshold 0.5 --out rule/

    [bold]A scikit-learn pipeline:[/bold] equipoise debias local.csv --label sick --group sex --reference M --model pipeline.skops
    --out repaired/

    [bold]Multi-label:[/bold] --label Effusion --label Mass ...: one repair of a network with one output per label, one folder per label.

    [bold]Classes:[/bold] --label finding --class none --class pneumonia --class effusion ...: decided by argmax, one folder per class.
    """
    from equipoise.data import hold_out, same_groups
    from equipoise.methods import Goal
    from equipoise.models import OUTPUTS, code_of
    from equipoise.repair import (
        ROWS_CHECKED,
        SCORE,
        Options,
        Provenance,
        Request,
        Serving,
        check_folder,
        check_labels,
        check_methods,
        estimate,
        findable,
        inputs_of,
        original_weights,
        save_all,
        servings,
        set_output,
        settled_output,
        try_methods,
    )

    inputs, score = paired(inputs, file, score, score_prefix)
    label, images = inputs.options["classes"] or inputs.options["labels"], inputs.options["images"]
    known, score = (None, score) if check_scores is None else (score, [])  # columns of the known scores
    kind = "classes" if inputs.options["classes"] else "labels"
    methods = methods_of(method or ["auto"], settings or [])
    share = 0.3 if test_fraction is None else test_fraction
    problems = inputs.problems() + number_problems(test_fraction=share, draws=draws, seed=seed) + given.page_problems({"--pdf": pdf})
    if test_fraction is not None and test_file is not None:
        problems.append("--test-fraction holds out patients of the data file, --test is a test set of its own; use one of them")
    if not 0 <= budget < float("inf"):
        problems.append(f"--budget must be a number of minutes, or 0 for no limit; got {budget:g}")
    if no_group_rules:
        problems += without_groups(methods)
    if threshold is not None and kind == "classes":
        problems.append("--threshold has no meaning for classes, which are decided by argmax. Omit it.")
    if thumbnails and images is None:
        problems.append("--thumbnails requires --images. Omit it.")
    if weights is not None and not weights.is_file():
        problems.append(f"no such file: {weights}. Give the file with the weights.")
    network_only = {"--weights": weights, "--output-type": output_type, "--output-name": output_name, "--train": train, "--probe": probe}
    network_only |= {"--onnx-rule": onnx_rule, "--class": inputs.options["classes"], "--images": images}
    problems += with_model_only(model, label, score, network_only, logits) + check_problems(
        check_scores, tolerance, model, known, label, inputs.options
    )
    for_networks = network_only | {"--check-scores": check_scores}  # of an estimator, `equipoise audit` checks them
    problems += estimator_problems(model, label, for_networks, trust_pickle, trust_type)
    goal = collected(
        problems,
        lambda: Goal(measure, performance, min_performance, max_gap, kept(no_group_worse, min_rate or []), selection, max_loss, threshold),
    )
    collected(problems, lambda: check_methods(None, methods, train is not None))
    collected(problems, lambda: pick("--output-type", output_type or "auto", OUTPUTS))
    if card is not None:
        from equipoise.report import read_facts

        collected(problems, lambda: read_facts(card))
    which = collected(problems, lambda: output_of(output_name) if len(label) == 1 else None)
    outputs: dict[str, int | str] = {}
    if len(label) > 1 and not score:
        collected(problems, lambda: check_labels(list(methods), label, kind))
        outputs = collected(problems, lambda: outputs_of(output_name, label))
    goals = None if goal is None else collected(problems, lambda: goals_of(label_goal or [], label, goal))
    if not dry_run:
        size_of_weights = weights.stat().st_size if weights and weights.is_file() else 0
        collected(problems, lambda: check_folder(folder, overwrite, 4 * len(label) * size_of_weights))
        collected(problems, lambda: check_pdf(pdf))
    raise_all(problems)
    if check_scores is not None and not check_scores.is_file():
        raise data.no_such_file(check_scores)
    assert goal is not None  # or a problem was raised
    reading, whose = prepared_as_saved(model, inputs.reading)
    if score or is_estimator(model):
        asked = ScoreRepair(file, test_file, share, folder, methods, goal, goals, 60 * budget or None, seed, force, title)
        out = Options(card=card, overwrite=overwrite)
        estimator = None
        if model is not None:
            estimator, reading = estimator_of(model, reading, trust_pickle, trust_type)
            asked, score = replace(asked, model=model), [SCORE]
        repair_scores(ctx, reading, score, logits, asked, out, group_name, dry_run, verbose, as_json, estimator)
        if not dry_run:
            write_pdf(folder, pdf, as_json)
        return
    assert model is not None  # or a problem was raised

    one = len(label) == 1
    code = code_of(model)
    network = network_of(model, weights, reading, which, code)
    came, remarks = original_weights(network, weights)
    check_methods(network, methods, train is not None)
    with notes():
        opened = given.cohort_of(file, reading)
        words = given.group_names_of(group_name, opened.cohort)
        trained = None if train is None else given.cohort_of(train, reading.with_bins_of(opened.cohort)).cohort
        if test_file is None:
            repair, test = hold_out(opened.cohort, share, seed=seed)
        else:
            repair = opened.cohort
            test = same_groups(repair, given.cohort_of(test_file, reading.as_for(repair)).cohort)
        output = output_type or "auto"
        if one:
            scores_of(network, repair.take(range(min(2, len(repair)))), "auto")  # report an error of shape before any work
            output = settled_output(network, repair.inputs, output)
        else:
            set_output(network, output)
        checks = []
        if check_scores is not None:
            whole = opened.cohort
            own = {label[0]: scores_of(network, whole, output)} if one else label_scores(network, whole, output, outputs)
            checks = check(check_scores, known or [], reading, network, whole, own, tolerance)
        prepared = check_lines(checks, opened.preprocessing(), whose)
        shared = [] if one else [f"the network was repaired for {len(label)} {kind} at once: {', '.join(label)}; each has its own report"]
        origin = Provenance.now(
            arguments=["equipoise", *(ctx.obj if isinstance(ctx.obj, list) else [])],
            model=model,
            seed=seed,
            files=[path for path in (file, weights, train, test_file, check_scores) if path is not None],
            cohort=opened.cohort,
            limits=[*opened.summary(), *remarks, *shared, *prepared],
        )
    if dry_run:
        with notes():
            found = estimate(network, repair, test, methods, goal, trained, draws if probe else None, outputs, 60 * budget or None)
        print_plan(found, folder, as_json)
        return
    with notes():
        names = {"patient": reading.patient, "id": reading.id, "conflicts": reading.conflicts}
        if images is not None:
            names |= {"image_column": reading.image_column, "view_column": reading.view}
        read = inputs_of(opened.cohort, **names)
        served = Serving(findable(model), output, test.inputs[: min(len(test), ROWS_CHECKED)], read, which, came, code)
        serving = servings(network, repair, label[0], outputs, served)
        request = Request(label[0], title, origin, draws, thumbnails, probe)
        limits: dict[str, Any] = {"budget": 60 * budget or None, "recalibrate": recalibrate, "force": force}
        named: dict[str, Any] = {"request": request, "outputs": outputs, "goals": goals, "seed": seed, "train": trained}
        cases = try_methods(network, repair, test, methods, goal, **named, **limits, bars=bar)
        options = Options(onnx=onnx, onnx_rule=onnx_rule, thumbnails=thumbnails, card=card, overwrite=overwrite, group_names=words)
        overview = title or f"{len(label)} {kind} of {data.without_folders(model)}"
        done = save_all(cases, folder, serving, options, title=overview, bars=bar)
    if as_json:
        print(result_json(folder, done, opened.to_dict()))
    else:
        print_labels(folder, cases, done, [*opened.lines(), *remarks, *prepared], verbose)
    exit_if_lacking(done)
    write_pdf(folder, pdf, as_json)
