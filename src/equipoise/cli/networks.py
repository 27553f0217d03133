"""The network, or the estimator in a file, that the options of a command name: its scores, its outputs, and the check of known scores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from equipoise import data, repair, report
from equipoise.cli.console import say_code
from equipoise.cli.inputs import Source
from equipoise.cli.options import OPTIONS, NetworkOptions
from equipoise.errors import BadInput, UnknownName, raise_all

if TYPE_CHECKING:
    from torch import nn

    from equipoise.models import Code, Predictor

FILES = (".skops", ".pkl", ".pickle", ".joblib")  # of estimators, as in models; named here so that no library is imported for a network


def network_of(given: NetworkOptions, reading: data.Reading, output_name: str | None = None, code: Code | None = None) -> nn.Module:
    """The network that the options name, in eval mode: a factory's, a backbone's, a file's or a folder's; one output if it has many.

    That an exported program is run is shown on stderr.
    """
    from equipoise.models import BACKBONES, PROGRAM, OneOutput, code_of, includes_weights, load_weights, network_with, output_named

    model, weights = given.model or "", given.weights
    if model in BACKBONES and (weights is None or reading.images is None):
        lacking = [option for option, value in (("--weights", weights), ("--images", reading.images)) if value is None]
        raise BadInput(f"--model {model} is an untrained backbone for images; add {' and '.join(lacking)}")
    code = code or code_of(model)
    if weights is not None and includes_weights(model):
        raise BadInput(f"{model} contains its weights. Omit {weights}.")
    state = None if weights is None else load_weights(weights)
    if model.endswith(PROGRAM):
        say_code(code)  # it looks like data and is code
    network = network_with(model, code, state, str(weights))
    own = reading.norm["mean"] or reading.preset or reading.transform
    if reading.images is not None and not own and any(type(m).__module__.partition(".")[0] == "torchxrayvision" for m in network.modules()):
        raise BadInput(
            "the network is one of torchxrayvision, which are trained on pixels from -1024 to 1024: add --preset torchxrayvision or "
            "--normalise xray; or --normalise unit if yours scales them itself"
        )
    if output_name is not None:
        network = OneOutput(network, output_named(output_name))
    return network.eval()


def prepared_as_saved(given: NetworkOptions, reading: data.Reading) -> tuple[data.Reading, str]:
    """How images are read for the network in a folder of transformers: as its preprocessor does, but for options that are given.

    The words say where the preprocessing comes from; they are empty for any other model.
    """
    model = given.model
    if model is None or reading.images is None:
        return reading, ""
    from equipoise.models import PREPARED, is_folder, preparation_in

    if not is_folder(model) or not (Path(model) / PREPARED).is_file():
        return reading, ""
    if reading.preset is not None or reading.transform is not None:
        return reading, f"instead of {PREPARED} in {model}"
    adopted, instead = reading.prepared_as(preparation_in(model), model)
    flags = [OPTIONS[name].flag or f"--{name}" for name in instead]
    return adopted, f"as in {PREPARED} of the model" + (f", but for {', '.join(flags)}" if flags else "")


def scores_of(network: nn.Module, cohort: data.Cohort, output: str) -> data.Scores:
    """The network's scores; where it cannot take the images, the error says which it can."""
    from equipoise.models import predict, shape_advice

    try:
        return predict(network, cohort, output=output)
    except BadInput as error:
        source = cohort.source
        advice = shape_advice(network, cohort.inputs.shape[1:]) if isinstance(source, data.Images) else ""
        if isinstance(source, data.Images) and source.transform is not None:
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
        return {labels[0]: scores_of(network, cohort, output)}
    repair.set_output(network, output)
    chosen = models.chosen_outputs(network, cohort.inputs, cohort.labels, cohort.kind, outputs)
    return models.scores_of({name: chosen.view(at) for at, name in enumerate(cohort.labels)}, cohort)


def outputs_of(names: list[str] | None, labels: list[str]) -> dict[str, int | str]:
    """The network's output for each of several labels.

    >>> outputs_of(["Effusion=3", "Mass=Mass/Nodule"], ["Effusion", "Mass"])
    {'Effusion': 3, 'Mass': 'Mass/Nodule'}
    """
    from equipoise.models import output_named

    found: dict[str, int | str] = {}
    problems = []
    for text in names or []:
        label, equals, which = (piece.strip() for piece in text.partition("="))
        if not equals or not which:
            problems.append(f"--output-name must be LABEL=OUTPUT where there are several labels, as in {labels[0]}=0; got {text!r}")
        elif label not in labels:
            problems += UnknownName("label in --output-name", label, labels).problems
        elif label in found:
            problems.append(f"--output-name {label} was given twice; give one output per label")
        else:
            found[label] = output_named(which)
    raise_all(problems)
    return found


def output_of(names: list[str] | None) -> str | None:
    """The network's output for the only label, by name or number."""
    if names and len(names) > 1:
        raise BadInput(f"--output-name takes one output where there is one --label; got {', '.join(map(repr, names))}")
    return names[0] if names else None


def is_estimator(model: str | None) -> bool:
    """Whether --model names the file of an estimator."""
    return model is not None and model.endswith(FILES)


def estimator_problems(source: Source, network_only: Mapping[str, object]) -> list[str]:
    """What does not go with the file of an estimator, or with anything else."""
    model, labels = source.network.model, source.inputs.labels
    if not is_estimator(model):
        given = {"--trust-pickle": source.network.trust_pickle, "--trust-type": source.network.trust_type}
        return [f"{option} is for a --model in a file ({', '.join(FILES)}). Omit it." for option, value in given.items() if value]
    found = [f"{option} is for networks, and {model} holds an estimator. Omit it." for option, value in network_only.items() if value]
    if len(labels) > 1:
        found.append(f"{model} gives one score per row; name one --label, not {', '.join(labels)}")
    return found


def estimator_of(given: NetworkOptions, reading: data.Reading) -> tuple[Predictor, data.Reading]:
    """The classifier in a file, and how its rows are read: the raw columns that it was fitted on, or those of --feature."""
    from equipoise.models import load_predictor

    found = load_predictor(given.model or "", trusted=given.trust_type or (), trust_pickle=given.trust_pickle, positive=reading.positive)
    if reading.images is not None:
        raise BadInput(f"{given.model} holds an estimator, which takes columns of a table. Omit --images.")
    columns = reading.features or (None if found.columns is None else list(found.columns))
    return found, replace(reading, features=columns, raw=True)


def check_problems(source: Source) -> list[str]:
    """What is wrong with the options of --check-scores."""
    scores, options, tolerance = source.scores, source.inputs.options, source.scores.tolerance
    if scores.check_scores is None:
        return [] if tolerance is None else ["--tolerance requires --check-scores. Omit it."]
    found = [] if source.network.model is not None else ["--check-scores compares the scores of a --model. Add it, or omit --check-scores."]
    if not source.known or len(source.known) != len(source.inputs.labels):
        each = "--class, with its probability, in the same order" if options["classes"] else "--label"
        found.append(f"--check-scores needs the column of the known scores: one --score per {each}; got {len(source.known)}")
    if options["images"] is None and options["id"] is None:
        found.append("--check-scores joins rows by --id; name the column with ids that both files have.")
    if tolerance is not None and not tolerance > 0:
        found.append(f"--tolerance must be positive, as in 0.0001; got {tolerance:g}")
    return found


def checks_of(
    source: Source, reading: data.Reading, network: nn.Module | object, cohort: data.Cohort, scores: Mapping[str, data.Scores]
) -> list[repair.ScoreCheck]:
    """The check of each label's scores next to the known ones; an error with all differences, and the reason where one is found.

    Of classes, which are decided by argmax, the softmax probabilities are compared: that is what others report.
    """
    file = source.scores.check_scores
    if file is None:
        return []
    if source.kind == "classes":
        scores = _class_probabilities(source, network, cohort)
    names = [reading.id] if reading.images is None else [reading.image_column] if reading.image_column else list(data.IMAGE_COLUMNS)
    frame = data.read_table(file, text={name for name in names if name}, limit=reading.max_table_bytes)
    key = next((name for name in names if name in frame.columns), None)
    if key is None:
        shown = ", ".join(map(str, frame.columns))
        raise BadInput(
            f"no column with the ids of the rows (tried {', '.join(map(str, names))}). The columns are: {shown}.", source=file.name
        )
    found = []
    for (label, own), column in zip(scores.items(), source.known, strict=True):
        known = repair.known_scores(frame, column, key)
        one = repair.compare_known(own, known, source.scores.tolerance or repair.TOLERANCE, file.name if len(scores) == 1 else label)
        found.append(one if one.agrees else repair.with_hint(one, network if len(scores) == 1 else None, cohort, own, known))
    if not all(one.agrees for one in found):
        raise repair.ScoresDiffer(found)
    return found


def _class_probabilities(source: Source, network: Any, cohort: data.Cohort) -> dict[str, data.Scores]:
    from equipoise.models import chosen_outputs, probabilities_of

    outputs = outputs_of(source.network.output_name, source.inputs.labels)
    return probabilities_of(chosen_outputs(network, cohort.inputs, cohort.labels, cohort.kind, outputs), cohort)


def check_lines(checks: list[repair.ScoreCheck], preprocessing: Mapping[str, object] | None, whose: str = "") -> list[str]:
    """What was done to the images, `whose` preprocessing that is, and whether the scores were compared with known ones."""
    source = f" ({whose})" if whose else ""
    said = [] if preprocessing is None else [f"images: {report.preprocessing_words(preprocessing)}{source}"]
    if preprocessing is not None and not checks:
        said[0] += "; the scores were not compared with known ones (--check-scores)"
    return said + [str(one) for one in checks]
