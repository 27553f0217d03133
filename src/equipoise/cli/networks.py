"""The network that the options of a command name, its scores, and which of its outputs belongs to which label."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from equipoise import data
from equipoise.cli.console import say_code
from equipoise.cli.inputs import OPTIONS
from equipoise.errors import BadInput, UnknownName, raise_all

if TYPE_CHECKING:
    from torch import nn

    from equipoise.models import Code


def network_of(
    model: str, weights: Path | None, reading: data.Reading, output_name: str | None = None, code: Code | None = None
) -> nn.Module:
    """The network that the options name, in eval mode: a factory's, a backbone's, a file's or a folder's; one output if it has many.

    That an exported program is run is shown on stderr.
    """
    from equipoise.models import BACKBONES, PROGRAM, OneOutput, code_of, includes_weights, load_weights, network_with, output_named

    if model in BACKBONES and (weights is None or reading.images is None):
        lacking = [option for option, given in (("--weights", weights), ("--images", reading.images)) if given is None]
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


def prepared_as_saved(model: str | None, reading: data.Reading) -> tuple[data.Reading, str]:
    """How images are read for the network in a folder of transformers: as its preprocessor does, but for options that are given.

    The words say where the preprocessing comes from; they are empty for any other model.
    """
    from equipoise.models import PREPARED, is_folder, preparation_in

    if model is None or reading.images is None or not is_folder(model) or not (Path(model) / PREPARED).is_file():
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


def label_scores(network: nn.Module, cohort: data.Cohort, output: str, outputs: Mapping[str, int | str]) -> dict[str, data.Scores]:
    """The scores of each label, from one pass of the network over the rows."""
    from equipoise.models import chosen_outputs, scores_of
    from equipoise.repair import set_output

    set_output(network, output)
    chosen = chosen_outputs(network, cohort.inputs, cohort.labels, cohort.kind, outputs)
    return scores_of({name: chosen.view(at) for at, name in enumerate(cohort.labels)}, cohort)


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
