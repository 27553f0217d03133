"""`equipoise audit`: scores from anywhere, or a network and a data file."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from equipoise import data, measures, models, repair, report
from equipoise.cli import inputs as given
from equipoise.cli import pipeline
from equipoise.cli.checking import CheckOption, ToleranceOption, check, check_lines, check_problems
from equipoise.cli.console import JsonOption, bar, notes, out
from equipoise.cli.estimators import TrustPickleOption, TrustTypeOption, estimator_of, estimator_problems, is_estimator
from equipoise.cli.inputs import number_problems
from equipoise.cli.networks import label_scores, network_of, output_of, outputs_of, prepared_as_saved, scores_of
from equipoise.cli.scores import LogitsOption, ScoreOption, ScorePrefixOption, paired
from equipoise.errors import did_you_mean, pick, raise_all

# What the JSON of --out must not be called.
OTHER_KINDS = (".html", ".htm", ".pdf", ".csv", ".tsv", ".xlsx", ".parquet", ".png", ".svg", ".md", ".docx")


@given.reads_data()
def audit(
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
    threshold: Annotated[float | None, typer.Option(help="Scores from this value on are decided positive.", show_default="0.5")] = None,
    valid: Annotated[
        Path | None, typer.Option(help="File with the same columns on which the threshold with the best balanced accuracy is chosen.")
    ] = None,
    measure: Annotated[
        list[str] | None,
        typer.Option(
            help="Only this measure (spd, eod, fpr_gap, ppv_gap, ... or a sum of rates such as tpr-fpr), with an error for "
            "empty cells; repeat it for more."
        ),
    ] = None,
    train: Annotated[
        Path | None,
        typer.Option(
            help="File with the training set in the same columns: a logistic regression on the same inputs is fitted to it, and reported "
            "where it clearly does better than the --model."
        ),
    ] = None,
    shrink: Annotated[
        bool,
        typer.Option(
            "--shrink",
            help="Also report shrunken gaps (empirical Bayes) of attributes with at least four groups, such as intersections.",
        ),
    ] = False,
    probe: Annotated[
        bool,
        typer.Option(
            "--probe",
            help="Also report how well the group can be predicted from each layer of the --model; that does not show that it is used.",
        ),
    ] = False,
    draws: Annotated[int | None, typer.Option(help="Number of bootstrap resamples of --probe.", show_default="1000")] = None,
    level: Annotated[float, typer.Option(help="Confidence level of the intervals, at most 0.9999.")] = 0.95,
    seed: Annotated[int, typer.Option(help="Seed of permutations, resamples and the band of a calibrated model.")] = 0,
    min_patients: Annotated[int, typer.Option(help="Cells with fewer patients are reported as 'insufficient data'.")] = 5,
    specificity: Annotated[float, typer.Option(help="Specificity at which the sensitivity of each group is reported (--verbose).")] = 0.9,
    sensitivity: Annotated[float, typer.Option(help="Sensitivity at which the specificity of each group is reported (--verbose).")] = 0.9,
    thresholds: Annotated[
        str, typer.Option(help="Thresholds of the decision curves, START:STOP or START:STOP:STEP (--verbose, --figures, --json).")
    ] = "0.05:0.5",
    no_finding: Annotated[
        str | None,
        typer.Option(
            help="Label that means 'no finding', to report underdiagnosis (its false positive rate); or 'derived': none of the labels."
        ),
    ] = None,
    save: Annotated[Path | None, typer.Option("--out", help="Also write the result as JSON to this file.")] = None,
    page: Annotated[
        Path | None,
        typer.Option("--report", help="Also write a page for people to this file (.html); of several labels, an overview and a page each."),
    ] = None,
    pdf: given.PdfOption = None,
    group_name: given.GroupNameOption = None,
    figures: Annotated[Path | None, typer.Option(help="Also write figures (PNG and SVG) into this folder.")] = None,
    append: pipeline.AppendOption = None,
    date: pipeline.DateOption = None,
    replace_period: pipeline.ReplaceOption = False,
    new_group: pipeline.NewGroupOption = None,
    fail_if: pipeline.FailIfOption = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Print every group, rate and gap instead of one screen.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Report rates per group and gaps between groups, with intervals, for existing scores or for a network.

    [bold]Example:[/bold] equipoise audit scores.csv --label y --score p --group sex --reference M --patient patient_id

    [bold]Age bands:[/bold] equipoise audit scores.csv --label y --score p --group sex --group age --bins age=40,60,80

    [bold]A network and images:[/bold] equipoise audit local.csv --images xrays/ --label pneumonia --group sex --reference M
    --patient patient_id --model my_model.py:build --weights net.safetensors

    [bold]A scikit-learn pipeline:[/bold] equipoise audit local.csv --label sick --group sex --reference M --model pipeline.skops

    [bold]Classes of a network that decides by argmax:[/bold] --label finding --class none --class pneumonia --class effusion --model ...

    [bold]Several labels:[/bold] equipoise audit local.csv --images xrays/ --label Effusion --label Mass --group sex ...

    [bold]Many rows:[/bold] equipoise audit visits/ --label y --score p --group sex --patient patient_id, with a folder of CSV or Parquet
    files, or one that is partitioned by folders such as sex=F. It is read in batches, as is a file above 256 MiB.
    """
    inputs, score = paired(inputs, file, score, score_prefix)
    classes, feature, images = (inputs.options[name] for name in ("classes", "features", "images"))
    label = classes or inputs.options["labels"]
    with_model: dict[str, object] = {
        "--weights": weights,
        "--feature": feature,
        "--output-type": output_type,
        "--output-name": output_name,
        "--images": images,
        "--probe": probe,
        "--train": train,
        "--class": classes,
    }
    probe_draws = 1000 if draws is None else draws
    columns = None if check_scores is None else score or []  # of the known scores
    problems = _role_problems(label, score if columns is None else None, model, with_model) + inputs.problems()
    problems += check_problems(check_scores, tolerance, model, columns, label, inputs.options)
    network_only = {option: value for option, value in with_model.items() if option not in ("--feature", "--train")}
    problems += estimator_problems(model, label, network_only, trust_pickle, trust_type)
    if draws is not None and not probe:
        problems.append("--draws requires --probe; no other interval is resampled. Omit it.")
    if classes and (threshold is not None or valid is not None):
        problems.append("classes are decided by argmax, without a threshold. Omit --threshold and --valid.")
    problems += number_problems(threshold=threshold, draws=probe_draws, level=level, seed=seed, min_patients=min_patients)
    problems += _place_problems(save, {"--report": page, "--pdf": pdf}) + _no_finding_problems(no_finding, label)
    problems += number_problems(specificity=specificity, sensitivity=sensitivity)
    given.collected(problems, lambda: measures.read_range(thresholds))
    problems += pipeline.append_problems(append, date, replace_period, new_group)
    conditions = pipeline.conditions_of(fail_if, problems)
    raise_all(problems)
    for path in (file, valid, check_scores):  # before pandas is imported
        if path is not None and not path.exists():
            raise data.no_such_file(path)
    reading, whose = prepared_as_saved(model, inputs.reading)
    output = "auto" if model is None else pick("--output-type", output_type or "auto", models.OUTPUTS)
    for place in (save, page, pdf, append, figures and figures / "rates.png"):
        if place:
            data.check_writable(place)
    if append:
        measures.history(append).check_period(date or "", replace=replace_period)
    if pdf:
        report.check_printer()
    raise_all(_link_problems(figures, label))
    opened: dict[Path, given.Opened] = {}
    with notes("equipoise.data.images"):
        one = len(label) == 1
        network: Any = None
        if model is not None and is_estimator(model):
            network, reading = estimator_of(model, reading, trust_pickle, trust_type)
        elif model is not None:
            network = network_of(model, weights, reading, output_of(output_name) if one else None)

        def read(path: Path) -> dict[str, data.Scores]:
            if network is None:
                return data.read_scores(path, reading, score or [], logits=logits)
            opened[path] = given.cohort_of(path, reading)
            if one:
                return {label[0]: scores_of(network, opened[path].cohort, output)}
            return label_scores(network, opened[path].cohort, output, outputs_of(output_name, label))

        in_batches = network is None and data.is_large(file, reading.max_table_bytes)
        scores = {} if in_batches else read(file)
        checks = (
            [] if check_scores is None else check(check_scores, columns or [], reading, network, opened[file].cohort, scores, tolerance)
        )
        on = read(valid) if valid else {}
        names = given.group_names_of(group_name, next(iter(scores.values()), None))
        options: measures.AuditOptions = {"threshold": threshold, "measures": measure or None, "level": level, "seed": seed}
        options |= {"min_patients": min_patients, "specificity": specificity, "sensitivity": sensitivity, "thresholds": thresholds}
        options |= {"shrink": shrink, "no_finding": no_finding}
        if classes:  # on the margin over the other classes
            options |= {"rule": measures.Threshold(0.5, measures.ARGMAX)}
        with bar("audit") as step:
            if in_batches:
                every = measures.audit_scans(
                    data.scan_scores(file, reading, score or [], logits=logits), valid=on, progress=_in_turn(step, label), **options
                )
            else:
                asked = {name: measures.Asked.of(options).decided(on.get(name)) for name in scores}
                every = measures.audit_labels(scores, asked, reading.kind, file.name, _in_turn(step, list(scores)))
        if train is not None and network is not None:
            cohort = opened[file].cohort
            known = given.cohort_of(train, reading.with_bins_of(cohort)).cohort
            with bar("simple model"):
                simple = {name: _with_baseline(name, result, scores[name], cohort, known) for name, result in every.items()}
            every = replace(every, audits=simple)
        results, clear = every.audits, every.no_finding
        layers = None
        if probe and network is not None:
            with bar("probes") as step:
                layers = models.encoding(
                    network, opened[file].cohort, draws=probe_draws, level=level, seed=seed, min_patients=min_patients, progress=step
                )
    told = (results[label[0]].to_dict() | measures.no_finding_dict(clear, label[0])) if one else every.to_dict()
    if layers is not None:
        told["encoding"] = json.loads(layers.to_json(orient="records", double_precision=15))
    prepared = check_lines(checks, opened[file].preprocessing() if images else None, whose)
    if checks:
        told["checked_scores"] = [one.to_dict() for one in checks]
    if images:
        told |= opened[file].counts() | {"preprocessing": opened[file].preprocessing()}
        told |= {f"valid_{key}": value for key, value in opened[valid].counts().items()} if valid else {}
    if save or page or pdf:
        files = [path for path in (file, valid, train, weights, check_scores) if path is not None]
        arguments = ["equipoise", *(ctx.obj if isinstance(ctx.obj, list) else [])]
        origin = report.Origin.now(arguments=arguments, files=files, inputs=prepared, group_names=names)
        told["provenance"] = origin.to_dict()
    for place in (page, pdf):
        if place and one:
            report.write_audit_page(results[label[0]], place, group_names=names, origin=origin)
        elif place:
            report.write_audits_page(every, place, group_names=names, origin=origin)
    if save:  # may be shared, so it names no rows
        data.write_text(save, json.dumps(told, indent=2, allow_nan=False) + "\n")
    if images:
        told |= opened[file].to_dict()
        told |= {f"valid_{key}": value for key, value in opened[valid].to_dict().items()} if valid else {}
    if figures:
        for name, place in repair.folders(figures, label).items():
            report.save_audit_figures(scores.get(name), results[name], place)
        if clear is not None:
            report.save_underdiagnosis_figure(clear, figures)
    if append:
        measures.history(append).append(every, date or "", replace=replace_period, new_groups=new_group or ())
    facts = measures.audit_facts(results[label[0]] if one else every) if conditions else []
    if as_json:
        print(json.dumps(told, indent=2, allow_nan=False))
        pipeline.exit_if(conditions, facts)
        return
    if one or verbose:
        for name, result in results.items():
            if not one:
                out.print(Text(f"\n{report.printable(name)}", style="bold underline"))
            out.print(report.audit_view(result) if verbose else report.audit_summary(result))
    else:
        out.print(report.audits_summary(every))
    for name, result in results.items() if shrink else ():
        out.print("", report.shrunken_view(result, "" if one else name))
    if clear is not None:
        out.print("", report.underdiagnosis_view(clear))
    if layers is not None:
        out.print(report.encoding_view(layers, level))
    for path, rows in opened.items():
        for line in rows.lines(varying=False):
            out.print(Text(report.printable(f"{path.name}: {line}")), soft_wrap=True)
    for line in prepared:
        out.print(Text(report.printable(line)), soft_wrap=True)
    for name, place in (("result", save), ("report", page), ("PDF", pdf), ("figures", figures), (f"history with {date}", append)):
        if place:
            out.print(Text(f"{name}: {place}"), soft_wrap=True)
    pipeline.exit_if(conditions, facts)


def _with_baseline(name: str, audit: measures.Audit, scores: data.Scores, cohort: data.Cohort, train: data.Cohort) -> measures.Audit:
    """The audit of a label with a simple model that is fitted to the training set."""
    both = (each.labelled(name) if each.targets is not None else each for each in (cohort, train))
    return repair.with_baseline(audit, scores, *both)


def _in_turn(step: Callable[[int, int], None], labels: list[str]) -> Callable[[str], Callable[[int, int], None]]:
    """The progress of each label as a share of that of all labels."""

    def of(label: str) -> Callable[[int, int], None]:
        return lambda done, total: step(labels.index(label) * total + done, len(labels) * total)

    return of


def _role_problems(labels: list[str], scores: list[str] | None, model: str | None, with_model: dict[str, object]) -> list[str]:
    problems = []
    if scores and len(scores) != len(labels):
        problems.append(f"{len(labels)} --label and {len(scores)} --score do not match; give one score per label, in the same order")
    if len(labels) > 1 and with_model["--probe"]:
        problems.append("--probe takes one --label, since the layers are the same for all. Omit the others.")
    if (not scores) == (model is None):
        problems.append("give either a column of scores with --score or a network with --model (and --weights)")
    if model is None:
        problems += [f"{option} requires --model. Omit it." for option, value in with_model.items() if value]
    return problems


def _no_finding_problems(name: str | None, labels: list[str]) -> list[str]:
    """A problem where --no-finding names no label, or is to be derived from one."""
    if name is None or name in labels:
        return []
    if name != measures.DERIVED:
        return [f"--no-finding {name} is not a --label.{did_you_mean(name, labels)} Name one of them, or use --no-finding derived."]
    return [] if len(labels) > 1 else ["--no-finding derived needs several --label: no finding is none of them."]


def _link_problems(figures: Path | None, labels: list[str]) -> list[str]:
    """One problem per folder of a label, in that of --figures, that is a link: figures written through it could replace any file."""
    places = [] if figures is None or len(labels) == 1 else repair.folders(figures, labels).values()
    return [
        f"{place} is a link, and figures are not written through links. Remove it, or name another --figures."
        for place in places
        if place.is_symlink()
    ]


def _place_problems(save: Path | None, pages: Mapping[str, Path | None]) -> list[str]:
    """A problem where --out, --report or --pdf names a format that it does not write."""
    problems = given.page_problems(pages)
    kind = "" if save is None else save.suffix.lower()
    if save is not None and kind in OTHER_KINDS:
        page = next((option for option, endings in given.ENDINGS.items() if kind in endings), None)
        instead = f"{page} {save.name}" if page else "--figures FOLDER for figures (PNG and SVG)"
        problems.append(f"--out writes JSON; {save.name!r} is another format. Use --out {save.with_suffix('.json').name}, or {instead}.")
    return problems
