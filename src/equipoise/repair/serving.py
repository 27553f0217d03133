"""How the classifier of a repair is served: its code, its weights and its inputs, as run.json records them."""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from equipoise.data import Rows, Scores, Table
from equipoise.errors import BadInput
from equipoise.models import (
    MLP,
    Checkpoint,
    ChosenOutputs,
    Code,
    HuggingFaceNetwork,
    OneOutput,
    code_of,
    is_folder,
    is_network,
    onnx_file_and_output,
    onnx_in,
    output_kind,
    read_checkpoint,
    state_like,
    weights_of,
)
from equipoise.repair.saved_predictor import PREDICTOR_SCORE
from equipoise.repair.schema import IMAGES_FORMAT, Inputs, SavedClasses, SavedCode, SavedEncoder, SavedModel

ROWS_CHECKED = 64  # of the test set, to compare ONNX with torch
OWN_NETWORK = "mlp"  # the network that `train` builds for tables, which is Equipoise's own code


@dataclass(frozen=True, eq=False)
class Serving:
    """How new patients are served in the same way: what run.json records of the classifier and its inputs, and what its files need."""

    inputs: Inputs
    model: SavedModel | None = None  # None: a rule without a network
    sample: Tensor | None = None  # a few real rows, to check the ONNX file with
    checkpoint: Checkpoint | None = None  # the original weights' file


def saved_model(load: str | None, output: str, *, code: Code | None = None, **more: Any) -> SavedModel:
    """How to build a network again from an argument of `load_model`; None: the network is given when the bundle is loaded."""
    load = None if load is None else absolute_model_name(load)
    if code is None and load not in (None, OWN_NETWORK):
        with suppress(BadInput):  # not found from this folder: `apply` will require --model
            code = code_of(str(load))
    saved = None if code is None else SavedCode(path=None if code.path is None else str(code.path), sha256=code.sha256)
    return SavedModel(load=load, output=output, code=saved, **more)


def serving_of(model: object, rows: Rows) -> Serving:
    """How a classifier in this process is served; of networks, those of Equipoise are built again, others are given to `Bundle.load`.

    `rows` are its inputs; of a classifier that is not a network, its scores.
    """
    if not is_network(model) or isinstance(rows, Scores):
        return Serving(inputs_of(rows, **({} if model is None else {"score": PREDICTOR_SCORE})))
    name = OWN_NETWORK if type(model) is MLP else None
    if (graph := onnx_in(model)) is not None and graph.content:
        name = f"{absolute_model_name(graph.source)}:{graph.which}"
    return Serving(inputs_of(rows), saved_model(name, output_kind(model, rows.inputs)), rows.inputs[:ROWS_CHECKED])


def original_weights(network: nn.Module, weights: Path | None) -> tuple[Checkpoint | None, list[str]]:
    """The original weights as in their file, and a note if the repaired weights cannot be written in the same format."""
    if weights is None:
        while isinstance(network, (OneOutput, HuggingFaceNetwork)):
            network = network.inner
        return Checkpoint(weights_of(network)), []
    checkpoint = read_checkpoint(weights)
    try:
        state_like(checkpoint.state, network)
    except BadInput as error:
        return None, [f"the weights are written under the network's own keys, not under those of the original file: {error.problems[0]}"]
    return checkpoint, []


def saved_models(
    chosen: ChosenOutputs | None, labels: Sequence[str], load: str, code: Code | None, output: str, output_name: str | None
) -> dict[str, SavedModel]:
    """How the network of each label is built: with its output of the network; of the only label, with this output."""
    if chosen is None:
        return {labels[0]: saved_model(load, output, code=code, output_name=output_name)}
    if chosen.kind.argmax:  # the score of a class is the margin of its logit over the others
        classes = SavedClasses(names=list(labels), columns=list(chosen.columns), output=chosen.output)
        return {label: saved_model(load, "logit", code=code, classes=classes) for label in labels}
    names = {label: None if chosen.flat else str(column) for label, column in zip(labels, chosen.columns, strict=True)}
    return {label: saved_model(load, chosen.output, code=code, output_name=name) for label, name in names.items()}


def inputs_of(rows: Rows, **names: Any) -> Inputs:
    """How new rows are prepared like these.

    `names` are entries that the rows do not hold: patient, id, image_column, view_column and conflicts; of scores, score and logits.
    """
    known: dict[str, Any] = {"bins": {a.name: a.bins for a in rows.attributes if a.bins is not None}} | names
    if isinstance(rows, Scores):
        features = None if rows.features is None else [str(c) for c in rows.features.frame.columns]
        return Inputs(**{"features": features, "score": "score"} | known)
    if (preprocessing := rows.source.to_dict()) is not None:
        return Inputs(**known, images=IMAGES_FORMAT.validate_json(json.dumps(preprocessing)))
    if not isinstance(rows.source, Table):
        return Inputs(**known, width=int(rows.inputs.shape[-1]))
    encoder, features = rows.source.fitted(), [str(column) for column in rows.source.frame.columns]
    encoded = SavedEncoder(numeric=dict(encoder.numeric), levels=dict(encoder.levels)) if rows.source.scale or encoder.levels else None
    return Inputs(**known, features=features, encoder=encoded)


def absolute_model_name(model: str) -> str:
    """The model's name with an absolute path, so that it can be found from any folder."""
    if (graph := onnx_file_and_output(model)) is not None:
        return str(Path(graph[0]).absolute()) + (f":{graph[1]}" if graph[1] else "")
    if is_folder(model):
        return str(Path(model).absolute())
    place, colon, name = model.rpartition(":")
    if colon and (place.endswith(".py") or "/" in place):
        return f"{Path(place).absolute()}:{name}"
    return str(Path(model).absolute()) if model.endswith(".pt2") else model
