"""The network or estimator of --model: loading it, its scores and outputs, and the comparison of its scores with known ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from equipoise import data, repair, report
from equipoise.cli.console import say_code
from equipoise.cli.inputs import Source
from equipoise.cli.options import NetworkOptions, flag_of
from equipoise.errors import BadInput, UnknownName, raise_all

if TYPE_CHECKING:
    from torch import nn

    from equipoise.models import Code, Predictor

ESTIMATOR_FILES = (".skops", ".pkl", ".pickle", ".joblib")  # as in models, repeated here to avoid imports for a network


def load_network(options: NetworkOptions, reading: data.ReadOptions, output_name: str | None = None, code: Code | None = None) -> nn.Module:
    """The network of --model in eval mode: from a factory, a backbone, a file or a folder. With `output_name`, only that output of it.

    An exported program looks like data but is code, so running one is reported on stderr.
    """
    from equipoise.models import BACKBONES, PROGRAM, OneOutput, code_of, includes_weights, load_weights, network_with, output_named

    model, weights = options.model or "", options.weights
    if model in BACKBONES and (weights is None or reading.images is None):
        lacking = [option for option, value in (("--weights", weights), ("--images", reading.images)) if value is None]
        raise BadInput(f"--model {model} is an untrained backbone for images; add {' and '.join(lacking)}")
    code = code or code_of(model)
    if weights is not None and includes_weights(model):
        raise BadInput(f"{model} contains its weights. Omit {weights}.")
    state = None if weights is None else load_weights(weights)
    if model.endswith(PROGRAM):
        say_code(code)
    network = network_with(model, code, state, str(weights))
    normalised = reading.norm["mean"] or reading.preset or reading.transform
    from_torchxrayvision = any(type(module).__module__.partition(".")[0] == "torchxrayvision" for module in network.modules())
    if reading.images is not None and not normalised and from_torchxrayvision:
        raise BadInput(
            "the network is one of torchxrayvision, which are trained on pixels from -1024 to 1024: add --preset torchxrayvision or "
            "--normalise xray; or --normalise unit if yours scales them itself"
        )
    if output_name is not None:
        network = OneOutput(network, output_named(output_name))
    return network.eval()


def with_saved_preprocessing(model: str | None, reading: data.ReadOptions) -> tuple[data.ReadOptions, str]:
    """The reading with the preprocessing saved in a folder of transformers, except for options that were given.

    Also returns the origin of the preprocessing in words, which are empty for any other model.
    """
    if model is None or reading.images is None:
        return reading, ""
    from equipoise.models import PREPARED, is_folder, preparation_in

    if not is_folder(model) or not (Path(model) / PREPARED).is_file():
        return reading, ""
    if reading.preset is not None or reading.transform is not None:
        return reading, f"instead of {PREPARED} in {model}"
    prepared, overridden = reading.with_preprocessing(preparation_in(model), model)
    exceptions = f", but for {', '.join(map(flag_of, overridden))}" if overridden else ""
    return prepared, f"as in {PREPARED} of the model{exceptions}"


def predicted(network: nn.Module, cohort: data.Cohort, output: str) -> data.Scores:
    """The scores of a network. If it cannot take the images, the error says which shapes it can."""
    from equipoise.models import predict, shape_advice

    try:
        return predict(network, cohort, output=output)
    except BadInput as error:
        source = cohort.source
        if not isinstance(source, data.Images):
            raise
        advice = shape_advice(network, cohort.inputs.shape[1:])
        if source.transform is not None:
            advice = f"The transform {source.transform.named} returns shape {tuple(source.shape[1:])}. Correct it, or --channels."
        if not advice:
            raise
        raise BadInput(" ".join((*error.problems, advice))) from error


def label_scores(
    network: nn.Module, cohort: data.Cohort, labels: list[str], output: str, outputs: Mapping[str, int | str]
) -> dict[str, data.Scores]:
    """The scores of each label, from one pass of the network over the rows."""
    from equipoise import models

    if len(labels) == 1:
        return {labels[0]: predicted(network, cohort, output)}
    repair.set_output(network, output)
    chosen = models.chosen_outputs(network, cohort.inputs, cohort.labels, cohort.kind, outputs)
    return models.scores_of({name: chosen.view(position) for position, name in enumerate(cohort.labels)}, cohort)


def parse_outputs(texts: list[str] | None, labels: list[str]) -> dict[str, int | str]:
    """The output of the network for each of several labels, from --output-name.

    >>> parse_outputs(["Effusion=3", "Mass=Mass/Nodule"], ["Effusion", "Mass"])
    {'Effusion': 3, 'Mass': 'Mass/Nodule'}
    """
    from equipoise.models import output_named

    outputs: dict[str, int | str] = {}
    problems = []
    for text in texts or []:
        label, equals, output = (piece.strip() for piece in text.partition("="))
        if not equals or not output:
            problems.append(f"--output-name must be LABEL=OUTPUT where there are several labels, as in {labels[0]}=0; got {text!r}")
        elif label not in labels:
            problems += UnknownName("label in --output-name", label, labels).problems
        elif label in outputs:
            problems.append(f"--output-name {label} was given twice; give one output per label")
        else:
            outputs[label] = output_named(output)
    raise_all(problems)
    return outputs


def parse_output(texts: list[str] | None) -> str | None:
    """The name or number of the output of the network for the only label, from --output-name."""
    if texts and len(texts) > 1:
        raise BadInput(f"--output-name takes one output where there is one --label; got {', '.join(map(repr, texts))}")
    return texts[0] if texts else None


def is_estimator(model: str | None) -> bool:
    """Whether --model names the file of an estimator."""
    return model is not None and model.endswith(ESTIMATOR_FILES)


def estimator_problems(source: Source, network_only: Mapping[str, object]) -> list[str]:
    """Options for estimators without one, or options for networks with an estimator."""
    model, labels = source.network.model, source.inputs.labels
    if not is_estimator(model):
        trust = {"--trust-pickle": source.network.trust_pickle, "--trust-type": source.network.trust_type}
        return [f"{option} is for a --model in a file ({', '.join(ESTIMATOR_FILES)}). Omit it." for option, value in trust.items() if value]
    problems = [f"{option} is for networks, and {model} holds an estimator. Omit it." for option, value in network_only.items() if value]
    if len(labels) > 1:
        problems.append(f"{model} gives one score per row; name one --label, not {', '.join(labels)}")
    return problems


def load_estimator(options: NetworkOptions, reading: data.ReadOptions) -> tuple[Predictor, data.ReadOptions]:
    """The estimator of --model, and the reading of its raw columns: those of --feature, or those it was fitted on."""
    from equipoise.models import load_predictor

    trust: dict[str, Any] = {"trusted": options.trust_type or (), "trust_pickle": options.trust_pickle}
    estimator = load_predictor(options.model or "", positive=reading.positive, **trust)
    if reading.images is not None:
        raise BadInput(f"{options.model} holds an estimator, which takes columns of a table. Omit --images.")
    columns = reading.features or (None if estimator.columns is None else list(estimator.columns))
    return estimator, replace(reading, features=columns, raw=True)


def check_score_problems(source: Source) -> list[str]:
    """Problems with --check-scores and the options that it needs."""
    options, tolerance = source.inputs.options, source.scores.tolerance
    if source.scores.check_scores is None:
        return [] if tolerance is None else ["--tolerance requires --check-scores. Omit it."]
    problems = []
    if source.network.model is None:
        problems.append("--check-scores compares the scores of a --model. Add it, or omit --check-scores.")
    if not source.known or len(source.known) != len(source.inputs.labels):
        each = "--class, with its probability, in the same order" if options["classes"] else "--label"
        problems.append(f"--check-scores needs the column of the known scores: one --score per {each}; got {len(source.known)}")
    if options["images"] is None and options["id"] is None:
        problems.append("--check-scores joins rows by --id; name the column with ids that both files have.")
    if tolerance is not None and not tolerance > 0:
        problems.append(f"--tolerance must be positive, as in 0.0001; got {tolerance:g}")
    return problems


def check_known_scores(
    source: Source, reading: data.ReadOptions, network: Any, cohort: data.Cohort, scores: Mapping[str, data.Scores]
) -> list[repair.ScoreCheck]:
    """Compares the scores of each label with those of --check-scores; raises an error with all differences and, if known, the reason.

    For classes, which are decided by argmax, softmax probabilities are compared, since these are what other software reports.
    """
    file = source.scores.check_scores
    if file is None:
        return []
    if source.kind == "classes":
        from equipoise.models import chosen_outputs, probabilities_of

        outputs = parse_outputs(source.network.output_name, source.inputs.labels)
        scores = probabilities_of(chosen_outputs(network, cohort.inputs, cohort.labels, cohort.kind, outputs), cohort)
    names = [reading.id] if reading.images is None else [reading.image_column] if reading.image_column else list(data.IMAGE_COLUMNS)
    frame = data.read_table(file, text={name for name in names if name}, limit=reading.max_table_bytes)
    key = next((name for name in names if name in frame.columns), None)
    if key is None:
        listed = ", ".join(map(str, frame.columns))
        raise BadInput(
            f"no column with the ids of the rows (tried {', '.join(map(str, names))}). The columns are: {listed}.", source=file.name
        )
    checks, tolerance, only = [], source.scores.tolerance or repair.TOLERANCE, len(scores) == 1
    for (label, label_scores), column in zip(scores.items(), source.known, strict=True):
        known = repair.known_scores(frame, column, key)
        check = repair.compare_with_known(label_scores, known, tolerance, file.name if only else label)
        checks.append(check if check.agrees else repair.with_hint(check, network if only else None, cohort, label_scores, known))
    if not all(check.agrees for check in checks):
        raise repair.ScoresDiffer(checks)
    return checks


def preprocessing_lines(checks: list[repair.ScoreCheck], preprocessing: Mapping[str, object] | None, origin: str = "") -> list[str]:
    """The preprocessing of the images with its origin, and the result of the comparison with known scores."""
    lines = []
    if preprocessing is not None:
        unchecked = "" if checks else "; the scores were not compared with known ones (--check-scores)"
        lines.append(f"images: {report.preprocessing_words(preprocessing)}{f' ({origin})' if origin else ''}{unchecked}")
    return lines + list(map(str, checks))
